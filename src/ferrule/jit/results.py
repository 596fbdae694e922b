"""What a captured function returns: the shape of it, and how to make it again from a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from ferrule.buffer import Buffer
from ferrule.capture import JitError, user_location
from ferrule.dtype import DType
from ferrule.expr import Expr, Variable, sint, unbind
from ferrule.lazy import LazyBuffer
from ferrule.tensor import Tensor


def returned_tensors(result: Any) -> Iterator[Tensor]:
    """The tensors in what a function returned, in order.

    Raises `JitError` for anything but tensors, None, and tuples, lists and dicts of them: another
    value would stay what it was in the captured call.
    """
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from returned_tensors(part)
    elif isinstance(result, dict):
        for part in result.values():
            yield from returned_tensors(part)
    elif result is not None:
        raise JitError(
            f"{user_location()}: the captured function returns {type(result).__name__} "
            f"{result!r:.60}, which replays would return unchanged; return tensors (or None, or "
            "tuples, lists and dicts of them), and compute other values outside"
        )


@final
@dataclass(frozen=True)
class Fresh:
    """A value that each replay makes in new memory."""

    shape: tuple[sint, ...]
    dtype: DType
    device: str
    size: int
    symbolic: bool

    @staticmethod
    def like(node: LazyBuffer) -> Fresh:
        """A value like `node`, whose bound variables take new values at each replay."""
        free = tuple([unbind(size)[0] for size in node.shape])
        symbolic = any(isinstance(size, Expr) for size in free)
        return Fresh(free, node.dtype, node.device, node.size, symbolic)

    def allocate(self) -> Buffer:
        """Memory for the value."""
        return Buffer(self.device, self.size, self.dtype)

    def make(self, var_vals: Mapping[Variable, int]) -> LazyBuffer:
        """A value in new memory, to be computed there."""
        buffer = self.allocate()
        if not self.symbolic:
            return LazyBuffer.in_buffer(buffer, self.shape)
        bound: dict[Expr, Expr] = {v: v.bind(value) for v, value in var_vals.items()}
        shape = tuple(
            [size.substitute(bound) if isinstance(size, Expr) else size for size in self.shape]
        )
        return LazyBuffer.from_buffer(buffer, shape)


@final
@dataclass(frozen=True)
class Made:
    """The call made the tensor; `number` counts those."""

    number: int


@final
@dataclass(frozen=True)
class Given:
    """The function returned its argument `number` itself."""

    number: int


@final
@dataclass(frozen=True, eq=False)
class Same:
    """A handle on memory from before the call, such as a parameter that the function updates."""

    tensor: Tensor


Leaf: TypeAlias = Made | Given | Same


def map_result(result: Any, leaves: Iterator[Any]) -> Any:
    """`result` with its tensors, or other leaves, replaced by `leaves`, in order."""
    if isinstance(result, dict):
        return {key: map_result(part, leaves) for key, part in result.items()}
    if isinstance(result, list):
        return [map_result(part, leaves) for part in result]
    if isinstance(result, tuple):
        parts = [map_result(part, leaves) for part in result]
        return getattr(type(result), "_make", tuple)(parts)
    return None if result is None else next(leaves)


def build_result(template: Any, made: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
    """What the function returns, from a template with a `Leaf` in the place of each tensor."""
    if type(template) is Made:
        return made[template.number]
    if template is None:
        return None
    return map_result(template, (_tensor(leaf, made, given) for leaf in _leaves(template)))


def _tensor(leaf: Leaf, made: Sequence[Tensor], given: Sequence[Tensor]) -> Tensor:
    if isinstance(leaf, Same):
        return leaf.tensor
    return made[leaf.number] if isinstance(leaf, Made) else given[leaf.number]


def _leaves(template: Any) -> Iterator[Leaf]:
    if isinstance(template, dict):
        template = list(template.values())
    if isinstance(template, list | tuple):
        for part in template:
            yield from _leaves(part)
    elif template is not None:
        yield template
