"""`from_exported`: a program that `torch.export` has made, as a function of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ferrule.autograd import no_grad
from ferrule.ir.dtype import DType
from ferrule.nn.module import Layer
from ferrule.tensor import Tensor
from ferrule.torch.graph import Graph, graph_of
from ferrule.torch.registry import rule_for
from ferrule.torch.values import Ref, TorchError, dtype_of, shared


class Port(NamedTuple):
    """An input: its name, and what it must be like."""

    name: str
    shape: tuple[int | None, ...] | None
    """None for a size that may vary; None as a whole for a number."""
    dtype: DType | None
    value: Any = None
    """The only value of an input that is no tensor and was not said to vary."""


class Kept:
    """A tensor that the state of PyTorch's model does not list, and this one's does not either."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Model(Layer):
    """A model of PyTorch: a function of tensors, which holds its parameters and buffers.

    It is called as PyTorch's model is, with tensors or NumPy arrays, and returns tensors in the
    same containers. Its tensors are attributes, under the names in PyTorch's `state_dict`.
    """

    def __init__(self, program: Any) -> None:
        graph = graph_of(program.graph_module)
        signature = program.graph_signature
        self._graph: Graph = graph
        self._ports = tuple(_ports(program))
        self._form = _form_of(program.call_spec.in_spec)
        self._result = _form_of(program.call_spec.out_spec)
        self._hidden: dict[str, Kept] = {}
        sources = {spec.arg.name: spec for spec in signature.input_specs if spec.target}
        self._sources = tuple(
            sources[name].target if name in sources else None for name in graph.inputs
        )
        parameters = set(signature.parameters)
        made: dict[Any, Tensor] = {}
        for name, value in {**program.state_dict, **program.constants}.items():
            if not hasattr(value, "dtype"):
                continue
            place = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            tensor = made.setdefault(place, shared(value)) if value.numel() else shared(value)
            if name in parameters:
                self.register_parameter(name, tensor.requires_grad_(value.requires_grad))
            elif name in program.state_dict:
                self.register_buffer(name, tensor)
            else:
                self._hidden[name] = Kept(tensor)
        self._effects = tuple(
            (_kind(spec), spec.target, spec.arg) for spec in _listed_outputs(signature)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for these inputs, in the containers of PyTorch's model."""
        given: list[Any] = [None] * len(self._ports)
        _match(self._form, (args, kwargs), given, "arguments")
        values = [_input(port, value) for port, value in zip(self._ports, given, strict=True)]
        by_user = iter(values)
        inputs = [
            next(by_user) if source is None else self._tensor(source) for source in self._sources
        ]
        outputs = self._graph.run(inputs)
        results = []
        for output, (kind, target, _) in zip(outputs, self._effects, strict=True):
            if kind == "result":
                results.append(output)
            else:
                self._write(kind, target, output, values)
        return _rebuilt(self._result, results)

    def _tensor(self, name: str) -> Tensor:
        hidden = self._hidden.get(name)
        found: Tensor = vars(self)[name] if hidden is None else hidden.tensor
        return found

    def _write(self, kind: str, target: str, value: Tensor, inputs: Sequence[Any]) -> None:
        if kind == "state":
            written = self._tensor(target)
        else:
            names = [port.name for port in self._ports]
            written = inputs[names.index(target)]
        with no_grad():
            written.assign(value.detach().cast(written.dtype))


def from_exported(program: Any) -> Model:
    """A model that `torch.export.export` has traced, as a function of ferrule's tensors.

    Parameters and buffers share PyTorch's memory. They are attributes under the names of PyTorch's
    `state_dict`: `nn.state.get_state_dict(model)` lists them. Sizes that were exported as dynamic
    may differ in each call. It works in `TinyJit`, `grad` and `no_grad`, and can be trained.

    Raises `TorchError` if the program has operators or data types that are not supported: the
    message lists them all. Raises `ImportError` if PyTorch is not installed.
    """
    try:
        from torch.export import ExportedProgram, default_decompositions
    except ImportError as error:
        raise ImportError(
            "[from_exported] PyTorch 2.6 or newer is needed; install it: pip install torch"
        ) from error
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            f"[from_exported] an ExportedProgram is needed, not {type(program).__name__}; make "
            "one: torch.export.export(model, (example,))"
        )
    table = default_decompositions()
    for operator in [*table.keys()]:
        if rule_for(str(operator)) is not None:
            del table[operator]
    return Model(program.run_decompositions(table))


# -- inputs --------------------------------------------------------------------------------------


def _ports(program: Any) -> list[Port]:
    found = {
        node.name: node.meta.get("val")
        for node in program.graph_module.graph.nodes
        if node.op == "placeholder"
    }
    ports = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        value: Any = found.get(spec.arg.name)
        if hasattr(value, "dtype"):
            shape = tuple(size if isinstance(size, int) else None for size in value.shape)
            ports.append(Port(spec.arg.name, shape, dtype_of(value.dtype)))
        else:
            ports.append(Port(spec.arg.name, None, None, getattr(spec.arg, "value", None)))
    return ports


def _input(port: Port, value: Any) -> Any:
    if port.shape is None:
        if port.value is not None and value != port.value:
            raise TorchError(
                f"input {port.name!r} is {value!r}; the program was exported for {port.value!r}"
            )
        return value
    if type(value).__module__ == "torch":
        tensor = shared(value)
    else:
        tensor = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
    fits = len(tensor.shape) == len(port.shape) and all(
        wanted is None or wanted == size
        for wanted, size in zip(port.shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype is not port.dtype:
        raise TorchError(
            f"input {port.name!r} has the shape {tensor.shape} and the dtype {tensor.dtype}; it "
            f"must be {port.shape} of {port.dtype}"
        )
    return tensor


# -- outputs -------------------------------------------------------------------------------------


def _listed_outputs(signature: Any) -> list[Any]:
    return list(signature.output_specs)


def _kind(spec: Any) -> str:
    name = spec.kind.name
    if name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
        return "state"
    if name == "USER_INPUT_MUTATION":
        return "input"
    if name == "USER_OUTPUT":
        return "result"
    raise TorchError(f"an output of the program is a {name}, which is not supported")


# -- containers ----------------------------------------------------------------------------------


class Container(NamedTuple):
    """A container of PyTorch's inputs or outputs: its class, and its parts by keys or in order."""

    kind: type
    keys: tuple[Any, ...] | None
    parts: tuple[Any, ...]


def _form_of(spec: Any) -> Any:
    """The containers of a `TreeSpec`, with places instead of values."""
    from torch.utils._pytree import tree_unflatten

    return _described(tree_unflatten([Ref(place) for place in range(spec.num_leaves)], spec))


def _described(value: Any) -> Any:
    if isinstance(value, Ref) or value is None:
        return value
    if isinstance(value, Mapping):
        parts = tuple(_described(part) for part in value.values())
        return Container(type(value), tuple(value), parts)
    if isinstance(value, list | tuple):
        return Container(type(value), None, tuple(_described(part) for part in value))
    raise TorchError(f"a container of the class {type(value).__name__} is not supported")


def _match(form: Any, given: Any, values: list[Any], where: str) -> None:
    """Put what was given into the places of a form."""
    if isinstance(form, Ref):
        values[form.place] = given
        return
    if form is None:
        return
    if form.keys is not None:
        if not isinstance(given, Mapping) or {*given} != {*form.keys}:
            has = sorted(given) if isinstance(given, Mapping) else type(given).__name__
            raise TorchError(f"the {where} have the names {has}; they must be {list(form.keys)}")
        inside = [given[key] for key in form.keys]
    else:
        if not isinstance(given, list | tuple) or len(given) != len(form.parts):
            count = len(given) if isinstance(given, list | tuple) else type(given).__name__
            raise TorchError(f"the {where} are {count}; {len(form.parts)} are needed")
        inside = list(given)
    for part, value in zip(form.parts, inside, strict=True):
        _match(part, value, values, where)


def _rebuilt(form: Any, values: Sequence[Any]) -> Any:
    if isinstance(form, Ref):
        return values[form.place]
    if form is None:
        return None
    parts = [_rebuilt(part, values) for part in form.parts]
    if form.keys is not None:
        named = dict(zip(form.keys, parts, strict=True))
        return named if form.kind is dict else form.kind(**named)
    if hasattr(form.kind, "_fields"):
        return form.kind(*parts)
    return form.kind(parts)
