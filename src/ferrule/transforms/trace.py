"""Traces: calls of functions with a tape of their own, the base of all derivatives.

The arguments' values become *roots*: entries that pass a gradient on to the argument's own edge. So
a transformation inside another sees its own roots only, and the outer one sees through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from ferrule.autograd import (
    IDENTITY,
    GradEdge,
    GradientError,
    GradNode,
    Shape,
    TracedValue,
    is_recording,
    tape_position,
    transforming,
)
from ferrule.autograd.backward import entries_below, hooks, pull_back
from ferrule.base.callbacks import call_back
from ferrule.base.containers import leaves, mapped, matching
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def as_tensor(leaf: Any) -> Any:
    """Floats and arrays as tensors; everything else as it is."""
    return Tensor(leaf) if isinstance(leaf, float | np.ndarray | np.floating) else leaf


def wrap(values: Sequence[TracedValue]) -> list[Tensor]:
    """Tensors of values."""
    return [Tensor._wrap(value) for value in values]


def read(tensors: Sequence[Tensor]) -> list[TracedValue]:
    """The values of tensors."""
    return [tensor._read() for tensor in tensors]


def replaced(tree: Any, contents: Sequence[Any]) -> Any:
    """The same containers with other contents in the place of their tensors."""
    new = iter(contents)
    return mapped(tree, lambda leaf: next(new) if isinstance(leaf, Tensor) else leaf)


def blank(tree: Any) -> Any:
    """The same containers with zeros in the place of their tensors, which take no memory."""
    return replaced(
        tree, wrap([TracedValue(value.node).full(0) for value in read(tensors_of(tree))])
    )


@final
class Trace:
    """One call of a function by the transformation `what`, and the tape of it."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.roots: list[GradNode] = []
        self.arguments: list[TracedValue] = []
        self.outputs: list[TracedValue] = []
        self._start = tape_position()
        self._recording = is_recording()
        self._open = False
        """True if the outputs depend on tensors that need a gradient outside this call."""

    def enter(self, tree: Any, where: str) -> Any:
        """Arguments to differentiate by: their tensors become roots.

        Raises `DTypeError` for tensors of integers, and for leaves that are no tensors.
        """
        return mapped(tree, lambda leaf: None if leaf is None else self._root(leaf, where))

    def _root(self, leaf: Any, where: str) -> Tensor:
        tensor = as_tensor(leaf)
        if not isinstance(tensor, Tensor):
            raise DTypeError(
                f"[{self.what}] {where} holds {leaf!r:.40} ({type(leaf).__name__}): only tensors "
                "of floats have derivatives; pass it in an argument that is not differentiated, "
                "or close over it (a model is a function of its tensors by "
                "nn.state.functional_call)"
            )
        value = tensor._read()
        if not dtypes.is_float(value.dtype):
            raise DTypeError(
                f"[{self.what}] {where} holds a tensor of {value.dtype} and shape {value.shape}: "
                "only floats have derivatives; cast it (x.float()), or close over it"
            )
        source = value if self._recording else value.detach()
        root = GradNode("argument", IDENTITY, (source,), value.node, None)
        self.roots.append(root)
        self.arguments.append(value)
        return Tensor._wrap(TracedValue(value.node, root))

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call the function. Returns its result."""
        with transforming():
            return call_back(function, *args, **kwargs)

    def differentiable(self, tree: Any) -> list[TracedValue]:
        """The values in the function's result, from which `pull` starts.

        Raises `DTypeError` for anything but tensors of floats.
        """
        for leaf in leaves(tree):
            if leaf is not None and not isinstance(leaf, Tensor):
                raise DTypeError(
                    f"[{self.what}] the function returned {leaf!r:.40} ({type(leaf).__name__}); "
                    "it must return tensors, and can return other values with has_aux=True"
                )
            if leaf is not None and not dtypes.is_float(leaf.dtype):
                raise DTypeError(
                    f"[{self.what}] the function returned a tensor of {leaf.dtype} and shape "
                    f"{leaf.shape}, which has no derivative; return it with has_aux=True"
                )
        self.outputs = read(tensors_of(tree))
        self._open = any(self._leads_outside(value.edge) for value in self.outputs)
        return self.outputs

    def leave(self, tree: Any) -> Any:
        """The function's result outside of this call's tape."""

        def left(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            value = leaf._read()
            return Tensor._wrap(value if self._leads_outside(value.edge) else value.detach())

        return mapped(tree, left)

    def _leads_outside(self, edge: GradEdge | None) -> bool:
        """True if a gradient outside of this call can go through an edge."""
        if edge is None or not self._recording:
            return False
        if not self._is_inside(edge):
            return True
        below = entries_below([edge], self._start)
        parents = (parent for entry in below for parent in entry.parents if parent is not None)
        return not all(self._is_inside(parent) for parent in parents)

    def _is_inside(self, edge: GradEdge) -> bool:
        return isinstance(edge, GradNode) and edge.serial > self._start

    def pull(self, seeds: Mapping[int, TracedValue]) -> list[TracedValue]:
        """The gradients of the arguments, given those of some outputs, by number."""
        outputs = [self.outputs[number] for number in seeds]
        create = is_recording() and (self._open or _any_edge(seeds.values()))
        found = pull_back(
            outputs, list(seeds.values()), self.roots, retain=True, create_graph=create
        )
        pairs = zip(self.roots, self.arguments, strict=True)
        return [found[root] if root in found else value.full(0) for root, value in pairs]

    def linear(self) -> Linear:
        """The derivative as a linear function from tangents of the arguments to the outputs'."""
        return Linear(self, self._open)


@final
class Linear:
    """The derivative of a traced call, forwards.

    Pulling back is linear in the gradient that it starts from, so that its own gradient is the
    transposed map: tangents of the arguments give tangents of the outputs. Laziness computes only
    those parts of the first pass that the second one needs.
    """

    def __init__(self, trace: Trace, is_open: bool) -> None:
        self._outputs = trace.outputs
        self._open = is_open
        with transforming():
            starts = [value.full(0) for value in trace.outputs]
            self._starts = [GradNode("tangent", IDENTITY, (v,), v.node, None) for v in starts]
            seeds = [TracedValue(v.node, e) for v, e in zip(starts, self._starts, strict=True)]
            # Hooks change gradients, not tangents.
            found = pull_back(
                trace.outputs, seeds, trace.roots, retain=True, create_graph=True, unhooked=hooks
            )
        self._pulled = [found.get(root) for root in trace.roots]

    def push(self, tangents: Mapping[int, TracedValue]) -> list[TracedValue]:
        """The tangents of the outputs, given those of some arguments, by number."""
        pairs = [(self._pulled[number], tangent) for number, tangent in tangents.items()]
        known = [(pulled, tangent) for pulled, tangent in pairs if pulled is not None]
        create = is_recording() and (self._open or _any_edge(tangents.values()))
        found = pull_back(
            [pulled for pulled, _ in known],
            [tangent for _, tangent in known],
            self._starts,
            retain=True,
            create_graph=create,
        )
        pairs_out = zip(self._starts, self._outputs, strict=True)
        return [found[start] if start in found else out.full(0) for start, out in pairs_out]


def _any_edge(values: Any) -> bool:
    return any(value.edge is not None for value in values)


def fitting(
    what: str, name: str, tree: Any, like: Sequence[TracedValue], form: Any
) -> list[TracedValue]:
    """The values of a tree of tangents or gradients, in the order of the tensors of another.

    They are cast to the others' dtypes; numbers and arrays count as tensors. None is zeros.

    Raises `ShapeError` if a shape differs, `GradientError` if the containers do.
    """
    try:
        given = matching(tree, form, f"[{what}] the {name}")
    except ValueError as error:
        raise GradientError(str(error)) from None
    wanted = [isinstance(leaf, Tensor) for leaf in leaves(form)]
    found = [leaf for leaf, needed in zip(given, wanted, strict=True) if needed]
    return [
        _fitting(what, name, leaf, value.shape, value)
        for leaf, value in zip(found, like, strict=True)
    ]


def _fitting(what: str, name: str, leaf: Any, shape: Shape, like: TracedValue) -> TracedValue:
    if leaf is None:
        return like.full(0)
    tensor = Tensor(leaf, device=like.node.device) if not isinstance(leaf, Tensor) else leaf
    value = tensor._read()
    if value.shape != shape:
        raise ShapeError(
            f"[{what}] the {name} of shape {value.shape} does not fit a tensor of shape {shape}"
        )
    return value.cast(like.dtype)
