"""The backend of `torch.compile`: graphs that PyTorch has traced, captured by `TinyJit`.

PyTorch traces the model and its way back, and gives both as graphs of ATen's operators. Tensors are
shared through DLPack, in both directions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from ferrule.autograd import no_grad
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor
from ferrule.torch.graph import Graph, graph_of
from ferrule.torch.registry import rule_for
from ferrule.torch.rules.spectra import Pairs
from ferrule.torch.values import TorchError, shared


class Compiled:
    """A graph as a function of PyTorch's tensors: it gives a list of them."""

    def __init__(self, graph: Graph) -> None:
        self._run = _captured(graph)
        self._last: list[tuple[Any, Any, Tensor] | None] = [None] * len(graph.inputs)

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results of the graph."""
        given = [self._shared(place, value) for place, value in enumerate(arguments)]
        with no_grad():
            results = self._run(*given)
        return [_returned(result) for result in results]

    def _shared(self, place: int, value: Any) -> Any:
        """A tensor in the memory of PyTorch's, that of the last call if it is the same one."""
        if not hasattr(value, "data_ptr"):
            return value
        if value.is_complex():
            from torch import view_as_real

            return Pairs(shared(view_as_real(value.resolve_conj())))
        last, memory = self._last[place], (value.data_ptr(), value.shape, value.stride())
        if last is not None and last[0]() is value and last[1] == memory:
            return last[2]
        try:
            tensor = shared(value, copy=False)
        except BufferError:  # a copy is of this call alone: PyTorch may write to the original
            return shared(value)
        self._last[place] = (ref(value), memory, tensor)
        return tensor


def _captured(graph: Graph) -> Callable[..., Any]:
    def run(*inputs: Any) -> list[Any]:
        return [
            Pairs(one.tensor.contiguous()) if isinstance(one, Pairs) else one
            for one in graph.run(inputs)
        ]

    return TinyJit(run)


def _returned(value: Any) -> Any:
    from torch import from_dlpack, view_as_complex

    if isinstance(value, Pairs):
        return view_as_complex(from_dlpack(value.tensor))
    return from_dlpack(value) if isinstance(value, Tensor) else value


def _compiler(module: Any, examples: Sequence[Any]) -> Any:
    """Compiles a graph of ATen's operators."""
    from functorch.compile import make_boxed_func

    return make_boxed_func(Compiled(graph_of(module, gives_complex=True)))


def backend(module: Any, examples: Sequence[Any], **options: Any) -> Any:
    """What `torch.compile(model, backend="ferrule")` calls with a graph that it has traced.

    Raises `TorchError` with all operators that have no rule, and for tensors that are not in the
    memory of the host.
    """
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd

    for example in examples:
        device = getattr(example, "device", None)
        if device is not None and device.type != "cpu":
            raise TorchError(
                f"[torch.compile] a tensor is on {device}; the backend takes those of the host"
            )
    table = {
        operator: function
        for operator, function in core_aten_decompositions().items()
        if rule_for(str(operator)) is None
    }
    compiled = aot_autograd(
        fw_compiler=_compiler,
        bw_compiler=_compiler,
        inference_compiler=_compiler,
        decompositions=table,
    )
    return compiled(module, examples)


def register() -> None:
    """Make the backend known to PyTorch, if that is imported; else it finds it as an entry point.

    An entry point needs an installed package, which a tree on the path of imports is not.
    """
    if "torch" not in sys.modules:
        return
    from torch._dynamo.backends.registry import list_backends, register_backend

    if "ferrule" not in list_backends():
        register_backend(backend, name="ferrule")
