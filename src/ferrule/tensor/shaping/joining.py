"""Padding, joining, splitting, repeating: values made of parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ferrule.autograd import Number, Shape, TracedValue
from ferrule.autograd.concat import all_true, concatenated
from ferrule.base.calls import one_of
from ferrule.ir.constant_folding import is_negative_zero
from ferrule.ir.dtype import promote
from ferrule.ir.expr import as_int, sint
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, expanded, known_size, whole_size
from ferrule.tensor.data import from_host
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import plain
from ferrule.tensor.shaping.movement import listed, part_along, reshaped

# -- padding -------------------------------------------------------------------------------------


@method
def pad(self: Tensor, padding: Any, mode: str = "constant", value: Number = 0.0) -> Tensor:
    """More elements around: copies of `value`, or of the tensor itself.

    `padding` is PyTorch's flat tuple, (left, right, top, bottom, …) from the last axis on, or
    one (before, after) or None for each axis. Negative amounts cut. `mode` is "constant",
    "reflect", "replicate" or "circular".

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).pad((1, 2)).tolist()
    [0, 1, 2, 0, 0]
    >>> Tensor([1, 2, 3]).pad(((2, 0),), "reflect").tolist()
    [3, 2, 1, 2, 3]
    """
    pairs = pad_pairs(padding, self._shape)
    if mode == "constant":
        return extended(self, pairs, value)
    one_of(mode, ("constant", *_PAD_MODES), "[pad] mode")
    return _padded_by_itself(self, pairs, mode)


def extended(self: Tensor, pairs: Sequence[tuple[sint, sint]], value: Number) -> Tensor:
    """More elements around, copies of a value; negative amounts cut."""
    source = _cut(self, pairs)
    added = [(_positive(before), _positive(after)) for before, after in pairs]
    if all(same(n, 0) for pair in added for n in pair):
        return source.clone()
    inner = source._read()
    return self._wrap(padded(inner, added, value))


def _cut(self: Tensor, pairs: Sequence[tuple[sint, sint]]) -> Tensor:
    """Without what negative amounts of padding remove."""
    if not any(isinstance(n, int) and n < 0 for pair in pairs for n in pair):
        return self
    return self.shrink(
        [
            (_positive(-before), size - _positive(-after))
            for (before, after), size in zip(pairs, self._shape, strict=True)
        ]
    )


def _padded_by_itself(self: Tensor, pairs: Sequence[tuple[sint, sint]], mode: str) -> Tensor:
    # What is repeated all round is what a cut leaves; the others continue the whole tensor.
    circular = mode == "circular"
    result = _cut(self, pairs) if circular else self
    # The last axis first, so that what is repeated on others is whole rows, not a few columns.
    for axis, (before, after) in reversed(list(enumerate(pairs))):
        if not isinstance(before, int) or not isinstance(after, int):
            raise ShapeError(f"[pad] mode {mode!r} needs sizes that are known, not {pairs}")
        if before > 0 or after > 0:
            result = _border(result, axis, max(before, 0), max(after, 0), mode)
    if not circular:
        cuts = [tuple(min(n, 0) for n in pair if isinstance(n, int)) for pair in pairs]
        result = _cut(result, [(before, after) for before, after in cuts])
    return result.clone()


def _border(self: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    size = self._shape[axis]
    limit = {"reflect": size - 1, "circular": size}.get(mode)
    if limit is not None and max(before, after) > limit:
        raise ShapeError(
            f"[pad] mode {mode!r} can add at most {limit} on an axis of size {size}, "
            f"not {max(before, after)}"
        )
    parts = [self]
    if before:
        parts.insert(0, _edge(self, axis, before, mode, first=True))
    if after:
        parts.append(_edge(self, axis, after, mode, first=False))
    return parts[0] if len(parts) == 1 else parts[0].cat(*parts[1:], dim=axis)


def _edge(self: Tensor, axis: int, count: int, mode: str, first: bool) -> Tensor:
    """The padding before the first, or after the last, element of an axis."""
    size = known_size(self._shape[axis], "pad")
    if mode == "reflect":
        start = 1 if first else size - 1 - count
        return self.narrow(axis, start, count).flip(axis)
    if mode == "circular":
        return self.narrow(axis, size - count if first else 0, count)
    shape = [n if i != axis else count for i, n in enumerate(self._shape)]
    return self.narrow(axis, 0 if first else size - 1, 1).expand(shape)


# -- joining and splitting -----------------------------------------------------------------------


@method
def cat(self: Tensor | Sequence[Tensor], *others: Any, dim: int = 0) -> Tensor:
    """This tensor and others one after the other along an axis.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
    [1, 2, 3]
    >>> Tensor.cat([Tensor([[1]]), Tensor([[2]])], dim=1).tolist()
    [[1, 2]]
    """
    if not isinstance(self, Tensor) and len(others) == 1 and isinstance(others[0], int):
        return cat(self, dim=others[0])  # as PyTorch's cat([a, b], 1)
    parts = tensors_of(self, others, "cat")
    # PyTorch's convention: an empty vector joins anything.
    parts = [part for part in parts if part._shape != (0,)] or parts[:1]
    first = parts[0]
    axis = first._axis(dim, "cat")
    for part in parts[1:]:
        _check_joinable(first, part, axis)
    dtype = promote(*[part.dtype for part in parts])
    values = [part._read().cast(dtype) for part in parts]
    for value in values[1:]:
        check_devices(values[0], value, "cat")
    return first._wrap(concatenated(values, axis))


@method
def stack(self: Tensor | Sequence[Tensor], *others: Any, dim: int = 0) -> Tensor:
    """This tensor and others of its shape along a new axis.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
    [[1, 2], [3, 4]]
    >>> Tensor.stack([Tensor([1, 2]), Tensor([3, 4])], dim=1).tolist()
    [[1, 3], [2, 4]]
    """
    if not isinstance(self, Tensor) and len(others) == 1 and isinstance(others[0], int):
        return stack(self, dim=others[0])
    parts = tensors_of(self, others, "stack")
    shape = parts[0]._shape
    for part in parts[1:]:
        if part._shape != shape:
            raise ShapeError(
                f"[stack] the shapes {shape} and {part._shape} differ; "
                "use .cat() to join along an axis that is there"
            )
    axis = dim if dim >= 0 else dim + len(shape) + 1
    first, *rest = [part.unsqueeze(axis) for part in parts]
    return first.cat(*rest, dim=axis)


@method
def split(self: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of an axis, as views: of one size (the last may be smaller), or of sizes given.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 2, 3, 4, 5]).split(2)]
    [[1, 2], [3, 4], [5]]
    """
    axis = self._axis(dim, "split")
    length = known_size(self._shape[axis], "split")
    sizes = plain(sizes)
    if isinstance(sizes, int):
        if sizes < 1:
            raise ShapeError(f"[split] the size of a part is at least 1, not {sizes}")
        full, rest = divmod(length, sizes)
        sizes = [sizes] * full + [rest] * (rest > 0) or [0]
    if sum(sizes) != length:
        raise ShapeError(
            f"[split] the sizes {list(sizes)} add up to {sum(sizes)}, and axis {dim} of shape "
            f"{self._shape} has {length}"
        )
    ends = pairwise(accumulate(sizes, initial=0))
    return tuple([part_along(self, axis, start, stop) for start, stop in ends])


@method
def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts of an axis, of equal size but for the last. Views.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 2, 3, 4, 5]).chunk(2)]
    [[1, 2, 3], [4, 5]]
    """
    chunks = plain(chunks)
    if chunks < 1:
        raise ShapeError(f"[chunk] the number of chunks is at least 1, not {chunks}")
    length = known_size(self._shape[self._axis(dim, "chunk")], "chunk")
    return self.split(max(-(-length // chunks), 1), dim)


@method
def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The elements of an axis one by one, without it. Views.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([[1, 2], [3, 4]]).unbind()]
    [[1, 2], [3, 4]]
    """
    axis = self._axis(dim, "unbind")
    parts = [self.narrow(axis, place, 1) for place in range(plain(self._shape[axis]))]
    rest = self._shape[:axis] + self._shape[axis + 1 :]
    return tuple([reshaped(part, rest) for part in parts])


def repeated(self: Tensor, *repeats: Any) -> Tensor:
    """The whole tensor several times along each axis; new axes come in front."""
    counts = tuple([whole_size(count, "repeat", "a count") for count in listed(repeats)])
    missing = len(counts) - len(self._shape)
    if missing < 0:
        raise ShapeError(f"[repeat] {counts} has fewer counts than shape {self._shape} has axes")
    own = (1,) * missing + self._shape
    apart: list[sint] = [n for size in own for n in (1, size)]
    wide = [n for count, size in zip(counts, own, strict=True) for n in (count, size)]
    value = self._read().reshape(tuple(apart)).expand(tuple(wide))
    total = [count * size for count, size in zip(counts, own, strict=True)]
    return self._wrap(value.reshape(tuple(total)))


@method
def repeat_interleave(
    self: Tensor, repeats: Any, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    """Each element several times, one after the other; without an axis, of the flat tensor.

    `repeats` is one number, or one for each element: a list or a tensor, which is computed now.
    `output_size`, the sum of `repeats`, is checked. Raises `ShapeError` for an axis that is out of
    range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).repeat_interleave(2).tolist()
    [1, 1, 2, 2]
    >>> Tensor([1, 2]).repeat_interleave([1, 3]).tolist()
    [1, 2, 2, 2]
    """
    if dim is None:
        return self.flatten().repeat_interleave(repeats, 0, output_size)
    axis = self._axis(dim, "repeat_interleave")
    if isinstance(repeats, bool | float | np.floating):
        raise TypeError(f"[repeat_interleave] a count is a whole number, not {repeats!r}")
    if not isinstance(repeats, int):
        return _repeat_each(self, repeats, axis, output_size)
    if repeats < 0:
        raise ShapeError(f"[repeat_interleave] the count {repeats} is negative")
    before, size, after = self._shape[:axis], self._shape[axis], self._shape[axis + 1 :]
    value = self._read().reshape((*before, size, 1, *after))
    value = value.expand((*before, size, repeats, *after))
    return self._wrap(value.reshape((*before, as_int(size * repeats), *after)))


def _repeat_each(self: Tensor, repeats: Any, axis: int, output_size: int | None) -> Tensor:
    """Each element as often as it says for it."""
    counts = np.asarray(repeats.numpy() if isinstance(repeats, Tensor) else repeats)
    size = known_size(self._shape[axis], "repeat_interleave")
    if counts.size == 1:
        counts = np.broadcast_to(counts.reshape(1), (size,))
    if counts.shape != (size,) or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ShapeError(
            f"[repeat_interleave] repeats are one count of at least 0 for each of the {size} "
            f"elements of axis {axis}, not {counts.tolist()}"
        )
    places = np.repeat(np.arange(size, dtype=np.int32), counts)
    if output_size not in (None, len(places)):
        raise ShapeError(
            f"[repeat_interleave] the counts add up to {len(places)}, not to output_size "
            f"{output_size}"
        )
    value = self._read()
    wide = (*value.shape[:axis], len(places), *value.shape[axis + 1 :])
    index = expanded(from_host(places, None, self.device), wide, axis)
    return self._wrap(value.gather(index, axis))


@method
def roll(
    self: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Tensor:
    """The elements moved along an axis; those that leave at one end come back at the other.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).roll(1).tolist()
    [4, 1, 2, 3]
    """
    shifts = plain(shifts)
    if dims is None:
        if not isinstance(shifts, int):
            raise ShapeError("[roll] several shifts need as many dims")
        return self.flatten().roll(shifts, 0).reshape(self._shape)
    moves = [shifts] if isinstance(shifts, int) else [plain(n) for n in shifts]
    axes = [dims] if isinstance(dims, int) else list(dims)
    if len(moves) != len(axes):
        raise ShapeError(f"[roll] {len(moves)} shifts for {len(axes)} dims")
    result = self.clone()
    for shift, dim in zip(moves, axes, strict=True):
        axis = self._axis(dim, "roll")
        size = known_size(self._shape[axis], "roll")
        start = -shift % size if size else 0
        if start:
            front, back = result.split([start, size - start], axis)
            result = back.cat(front, dim=axis)
    return result


@method
def unfold(self: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements of an axis, `step` apart, as a new last axis.

    A copy, where PyTorch has a view: writes to it do not reach this tensor. Raises
    `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
    [[1, 2], [2, 3], [3, 4]]
    """
    if not self._shape:
        return self.reshape(1).unfold(dim, size, step).squeeze(0)
    axis = self._axis(dim, "unfold")
    length = self._shape[axis]
    if size < 0 or step < 1 or (isinstance(length, int) and size > length):
        raise ShapeError(
            f"[unfold] windows of {size} elements, {step} apart, do not fit axis {dim} of "
            f"shape {self._shape}"
        )
    return self._wrap(self._read().window(axis, size, step))


def tensors_of(first: Any, others: Sequence[Any], what: str = "cat") -> list[Tensor]:
    """The tensors that a method was given: itself and others, or one list of them.

    So `Tensor.cat([a, b])` is `a.cat(b)`. Raises `TypeError` for anything but tensors.
    """
    parts = list(first) if isinstance(first, list | tuple) else [first]
    parts.extend(listed(others))
    if not parts:
        raise ShapeError(f"[{what}] there are no tensors to join; give one at least")
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"[{what}] {type(part).__name__} is no tensor; make it one with Tensor(...)"
            )
    return parts


_PAD_MODES = ("reflect", "replicate", "circular")


def _positive(count: sint) -> sint:
    return max(count, 0) if isinstance(count, int) else count


def pad_pairs(padding: Any, shape: Shape) -> list[tuple[sint, sint]]:
    """One (before, after) for each axis, from either way to write padding."""
    rank = len(shape)
    if isinstance(padding, int):
        every = f"({', '.join([str(padding)] * 2 * rank)})"
        raise TypeError(f"[pad] takes two amounts for each axis; for all of shape {shape}: {every}")
    given = list(padding)
    if any(pair is None or isinstance(pair, list | tuple) for pair in given):
        if len(given) != rank:
            raise ShapeError(
                f"[pad] {len(given)} pairs for the {rank} axes of shape {shape}; "
                "give one for each, or a flat tuple from the last axis on"
            )
        whole = [(0, 0) if pair is None else pair for pair in given]
        return [
            (whole_size(low, "pad", "an amount"), whole_size(high, "pad", "an amount"))
            for low, high in whole
        ]
    if len(given) % 2 or len(given) > 2 * rank:
        raise ShapeError(
            f"[pad] a flat tuple of {len(given)} amounts does not fit shape {shape}; "
            "it has two for each axis, from the last one on"
        )
    amounts = [whole_size(amount, "pad", "an amount") for amount in given]
    pairs = [(amounts[place], amounts[place + 1]) for place in range(0, len(given), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def padded(value: TracedValue, pairs: Sequence[tuple[sint, sint]], fill: Number) -> TracedValue:
    """The value with (before, after) copies of a number around each axis."""
    if fill == 0 and not is_negative_zero(fill):
        return value.pad(pairs)
    inside = TracedValue(all_true(value)).pad(pairs)
    return inside.where(value.pad(pairs), fill)


def to_bound(value: TracedValue, fill: Number) -> TracedValue:
    """The value with copies of a number behind a last axis of symbolic size, up to its bound.

    So what depends on the size, such as the blocks of a running total, is the same for all sizes.
    """
    size = value.shape[-1]
    if isinstance(size, int):
        return value
    none = ((0, 0),) * (len(value.shape) - 1)
    return padded(value, (*none, (0, as_int(size.max - size))), fill)


def _check_joinable(first: Tensor, part: Any, axis: int) -> None:
    a, b = first._shape, part._shape
    if len(a) != len(b) or a[:axis] != b[:axis] or a[axis + 1 :] != b[axis + 1 :]:
        raise ShapeError(
            f"[cat] the shapes {a} and {b} differ at other axes than {axis}, along which they are "
            "joined; make the other sizes equal first"
        )
