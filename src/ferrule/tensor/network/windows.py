"""Windows over the last axes of a value: what convolution, pooling and unfolding share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ferrule.autograd import Shape, TracedValue
from ferrule.base.calls import is_several, whole
from ferrule.base.records import dataclass
from ferrule.ir.expr import as_int, sint
from ferrule.ir.shape.view import ShapeError

Sizes: TypeAlias = int | Sequence[int]
Pair: TypeAlias = tuple[int, int]


def each(value: Sizes, count: int, what: str) -> tuple[int, ...]:
    """One number for each spatial axis."""
    values = tuple([whole(n, what) for n in (value if is_several(value) else (value,))])
    if len(values) == 1 and count > 1:
        values = values * count
    if len(values) != count:
        raise ShapeError(f"{what} {values} needs one number, or one for each of {count} axes")
    return values


def paddings(padding: Any, count: int, what: str) -> list[Pair]:
    """(before, after) for each spatial axis.

    One number, one for each axis, or two for each axis from the last one on, as `Tensor.pad` takes.
    """
    amounts = [
        whole(n, f"[{what}] padding") for n in (padding if is_several(padding) else (padding,))
    ]
    if len(amounts) == 2 * count and count > 0:
        pairs = [(amounts[place], amounts[place + 1]) for place in range(0, 2 * count, 2)]
        return pairs[::-1]
    if len(amounts) == 1:
        amounts *= count
    if len(amounts) != count:
        raise ShapeError(
            f"[{what}] padding {tuple(amounts)} needs one number, one for each of {count} axes, "
            "or two for each from the last axis on"
        )
    return [(amount, amount) for amount in amounts]


def known_sizes(sizes: Shape, what: str) -> tuple[int, ...]:
    """The sizes of filters, which must be known."""
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        raise ShapeError(f"[{what}] the filters' sizes {sizes} must be known, not symbolic")
    return tuple(known)


def windows(
    value: TracedValue,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    what: str,
) -> TracedValue:
    """Windows over the last axes: their positions, and then an axis inside the window for each."""
    first = len(value.shape) - len(sizes)
    shape = value.shape[first:]
    for size, stride, dilation, length in zip(sizes, strides, dilations, shape, strict=True):
        if stride < 1 or dilation < 1 or size < 1:
            raise ShapeError(
                f"[{what}] kernel {tuple(sizes)}, stride {tuple(strides)} and dilation "
                f"{tuple(dilations)} must be at least 1"
            )
        reach = dilation * (size - 1) + 1
        if isinstance(length, int) and reach > length:
            raise ShapeError(
                f"[{what}] a kernel of {tuple(sizes)} reaches over {reach} elements, and the "
                f"padded input {tuple(shape)} has {length} there; add padding"
            )
    for place, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        value = value.window(first + place, size, stride, dilation)
    return value


def put_back(
    value: TracedValue, lengths: Sequence[sint], strides: Sequence[int], dilations: Sequence[int]
) -> TracedValue:
    """The adjoint of `windows`: elements of (…, *positions, *kernel) added up where they were."""
    count = len(lengths)
    first = len(value.shape) - 2 * count
    for place in reversed(range(count)):
        value = value.unwindow(first + place, lengths[place], strides[place], dilations[place])
        value = value.sum((len(value.shape) - 1,)).reshape(value.shape[:-1])
    return value


def blocks(value: TracedValue, sizes: Sequence[int], what: str) -> tuple[TracedValue, list[int]]:
    """The last axes cut into blocks: (…, positions, kernel, …), and the axes of the blocks."""
    first = len(value.shape) - len(sizes)
    shape: list[sint] = list(value.shape[:first])
    kept: list[tuple[sint, sint]] = [(0, size) for size in shape]
    axes: list[int] = []
    for size, length in zip(sizes, value.shape[first:], strict=True):
        if isinstance(length, int) and (size < 1 or length < size):
            raise ShapeError(
                f"[{what}] a kernel of {tuple(sizes)} does not fit an input of shape {value.shape}"
            )
        positions = as_int(length // size)
        kept.append((0, as_int(positions * size)))
        axes.append(len(shape) + 1)
        shape.extend([positions, size])
    return value.shrink(kept).reshape(tuple(shape)), axes


@dataclass(frozen=True, slots=True)
class Pool:
    """The windows of a pooling: one entry for each of the last axes."""

    what: str
    """The method that pools."""
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Pair, ...]
    extra: tuple[int, ...]
    """How far windows reach over the padding at the end, if their number is rounded up."""

    @staticmethod
    def make(
        what: str,
        count: int,
        shape: Shape,
        kernel: Sizes,
        stride: Sizes | None,
        padding: Any = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Pool:
        """The windows over the last axes of a shape; an int for a kernel counts for `count`."""
        sizes = (kernel,) * count if isinstance(kernel, int) else tuple(kernel)
        count = len(sizes)
        if len(shape) < count:
            raise ShapeError(f"[{what}] shape {shape} has fewer axes than kernel {sizes}")
        given = None if stride == () else stride  # as PyTorch writes that there is none
        strides = sizes if given is None else each(given, count, f"[{what}] stride")
        dilations = each(dilation, count, f"[{what}] dilation")
        pads = paddings(padding, count, what)
        extra = [0] * count
        if ceil_mode:
            spatial = shape[len(shape) - count :]
            parts = zip(spatial, sizes, strides, dilations, pads, strict=True)
            extra = [_overhang(*part, what) for part in parts]
        return Pool(what, sizes, strides, dilations, tuple(pads), tuple(extra))

    @property
    def spatial(self) -> tuple[Sequence[int], Sequence[int], Sequence[Pair], Sequence[int]]:
        """Sizes, strides, paddings with what is reached beyond them, and dilations."""
        return self.sizes, self.strides, self.borders(len(self.sizes)), self.dilations

    @property
    def is_padded(self) -> bool:
        """True if any window reaches over the input's border."""
        return any(map(any, self.pads)) or any(self.extra)

    def borders(self, rank: int) -> list[Pair]:
        """(before, after) for all axes of a tensor."""
        spatial = [
            (low, high + more) for (low, high), more in zip(self.pads, self.extra, strict=True)
        ]
        return [(0, 0)] * (rank - len(self.sizes)) + spatial

    def taken(self, value: TracedValue) -> tuple[TracedValue, list[int]]:
        """The windows of a padded value, and the axes inside them."""
        count = len(self.sizes)
        if self.strides == self.sizes and all(step == 1 for step in self.dilations):
            return blocks(value, self.sizes, self.what)
        value = windows(value, self.sizes, self.strides, self.dilations, self.what)
        return value, list(range(len(value.shape) - count, len(value.shape)))


def _overhang(length: sint, size: int, stride: int, dilation: int, pad: Pair, what: str) -> int:
    """How many elements the last window lacks, if there are as many as start inside the input."""
    if not isinstance(length, int):
        raise ShapeError(f"[{what}] ceil_mode needs sizes that are known, not {length}")
    if stride < 1:
        return 0  # refused where the windows are taken
    reach = dilation * (size - 1) + 1
    steps = math.ceil((length + sum(pad) - reach) / stride)
    if steps * stride >= length + pad[0]:
        steps -= 1
    return max(steps * stride + reach - length - sum(pad), 0)
