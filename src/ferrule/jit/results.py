"""Results and effects of a captured function, as templates from which replays make new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias, final

from ferrule.autograd import GradientError, GradNode, Rule, TracedValue
from ferrule.base.containers import leaves, mapped
from ferrule.base.records import dataclass
from ferrule.device.capture import JitError, user_location
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Variable, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.jit.inputs import has_variables, with_values, without_values
from ferrule.jit.places import Place
from ferrule.jit.sharing import Shared
from ferrule.tensor import Tensor

Leaf: TypeAlias = int | Tensor | None
"""A tensor of a result: a number, or a handle on memory from before the call, such as a parameter
that the function updates. The numbers count the arguments' tensors, then the tensors that the call
made, then the aliases of any of these."""


NewTensor: TypeAlias = tuple[str, int, DType, tuple[sint, ...], "GradNode | None"]
"""A tensor in new memory: its device, number of elements, dtype, shape, and the end of the tape."""


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in an argument."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def replace_tensors(value: Any, replacements: Mapping[Tensor, Tensor]) -> Any:
    """A value with some of its tensors replaced."""

    def replaced(leaf: Any) -> Any:
        return replacements.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf

    return mapped(value, replaced)


def returned_tensors(result: Any) -> list[Tensor]:
    """The tensors in what a function returned, in order.

    Raises `JitError` for anything but tensors, None, and tuples, lists and dicts of them: another
    value would stay what it was in the captured call.
    """
    found = [leaf for leaf in leaves(result, open_records=False) if leaf is not None]
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise JitError(
                f"{user_location()}: the captured function returns {type(leaf).__name__} "
                f"{leaf!r:.60}, which replays would return unchanged; return tensors (or None, or "
                "tuples, lists and dicts of them), and compute other values outside"
            )
    return found


def build_result(template: Any, tensors: Sequence[Tensor]) -> Any:
    """The result of the function, from a template with a `Leaf` in the place of each tensor."""
    kind = type(template)
    if kind is int:
        return tensors[template]
    if kind is tuple or kind is list:
        parts = [build_result(part, tensors) for part in template]
        return parts if kind is list else tuple(parts)
    return mapped(template, lambda leaf: tensors[leaf] if type(leaf) is int else leaf)


@final
@dataclass(frozen=True)
class Effect:
    """A tensor that the call left in a place, or as the gradient of a tensor of the call.

    `where` is the place, or the number of the tensor: an argument or one that the call made.
    """

    where: Place | int
    leaf: Any
    """A `Leaf`, or a tuple of them."""

    def place(self, tensors: Sequence[Tensor]) -> Place:
        """The place, which may be the gradient of one of the tensors."""
        where = self.where
        return Place(tensors[where], "grad") if isinstance(where, int) else where

    def apply(self, tensors: Sequence[Tensor]) -> None:
        """Puts the replay's own tensor there."""
        where = self.where
        tensor = build_result(self.leaf, tensors)
        if isinstance(where, int):
            tensors[where].grad = tensor
        else:
            where.set(tensor)


@final
@dataclass(frozen=True)
class Fresh:
    """A value that each replay computes in new memory."""

    shape: tuple[sint, ...]
    dtype: DType
    device: str
    size: int
    symbolic: bool

    @staticmethod
    def like(node: LazyBuffer) -> Fresh:
        """A value like `node`, whose bound variables take new values at each replay."""
        free, _ = without_values(node.shape)
        return Fresh(free, node.dtype, node.device, node.size, has_variables(free))

    def allocate(self) -> Buffer:
        """Memory for the value."""
        return Buffer(self.device, self.size, self.dtype)

    def make(
        self, var_vals: Mapping[Variable, int], memory: Buffer | None = None
    ) -> tuple[Buffer, LazyBuffer]:
        """Memory, and a node for the value to be computed there.

        This `memory` is taken if it fits.
        """
        if memory is None or (
            memory.size != self.size
            or memory.dtype is not self.dtype
            or memory.device != self.device
        ):
            memory = Buffer(self.device, self.size, self.dtype)
        shape = with_values(self.shape, var_vals) if self.symbolic else self.shape
        return memory, LazyBuffer.in_buffer(memory, shape)


def _refuse(grad: TracedValue, entry: GradNode) -> tuple[TracedValue | None, ...]:
    raise GradientError(
        "[backward] a gradient arrives at a result of a captured function, whose replays record no "
        "tape; call backward() in the captured function, or detach() the result where no gradient "
        "is to flow"
    )


_NO_TAPE = Rule(_refuse)


def end_of_tape(tensor: Tensor) -> GradNode | None:
    """The tape entry of a result in replays, which raises for a gradient; None for a leaf.

    Replays record no tape. Without the entry, a gradient that flows on in the plain function would
    silently end at the result.
    """
    if tensor.is_leaf:
        return None
    return GradNode("REPLAY", _NO_TAPE, (), tensor.lazydata, None)


@final
@dataclass
class Outcome:
    """The result and the effects of a call, for replays to make again."""

    fresh: list[Fresh] = field(default_factory=list)
    """The values to compute."""
    made: list[tuple[int, GradNode | None]] = field(default_factory=list)
    """The number of the value, and the end of the tape, of each tensor to make."""
    shared: list[Shared] = field(default_factory=list)
    """The aliases: tensors in the memory of an argument, or of a tensor that is made."""
    collecting: list[int] = field(default_factory=list)
    """The numbers of the tensors, made or shared, that collect a gradient of their own."""
    template: Any = None
    """The result, with a `Leaf` in the place of each tensor."""
    effects: list[Effect] = field(default_factory=list)

    def new_tensors(self) -> list[NewTensor] | None:
        """The tensors to make, if each is one of the values and there is nothing else to do.

        None for other outcomes, and for shapes with variables.
        """
        numbers = [number for number, _ in self.made]
        if (
            numbers != list(range(len(self.fresh)))
            or any([value.symbolic for value in self.fresh])
            or self.shared
            or self.collecting
        ):
            return None
        pairs = zip(self.fresh, self.made, strict=True)
        return [(v.device, v.size, v.dtype, v.shape, edge) for v, (_, edge) in pairs]

    def gradients(self, given: int) -> list[tuple[int | Tensor, int]]:
        """The gradients that replays set on tensors from before the call, with the values' numbers.

        Each such tensor is given, by number, or as it is. `given` is the number of the tensors
        that are given. Replays do not read the old gradients: a function that replaces what it
        reads is not replayed.
        """
        found: list[tuple[int | Tensor, int]] = []
        for effect in self.effects:
            where, leaf = effect.where, effect.leaf
            holder = where.holder if isinstance(where, Place) else where
            is_made = isinstance(leaf, int) and 0 <= leaf - given < len(self.made)
            if is_made and (isinstance(holder, Tensor) or (type(holder) is int and holder < given)):
                found.append((holder, self.made[leaf - given][0]))
        return found
