"""What the movement ops mean: each is a function from an index into the result to an index into the
source.

`idx` is a tuple of index expressions, one for each axis of the result. The answer is the index into
the source and, where the result is not always read from the source, the condition under which it is
(elsewhere the result is 0).
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.expr import Expr, all_of, as_expr, const, less, sint

Index = tuple[Expr, ...]


def flatten(idx: Sequence[Expr], shape: Sequence[sint]) -> Expr:
    """The row-major position of an index."""
    out = const(0)
    for i, size in zip(idx, shape, strict=True):
        out = out * size + i
    return out


def unflatten(position: Expr, shape: Sequence[sint]) -> Index:
    """The index of a row-major position."""
    out: list[Expr] = []
    for size in reversed(shape[1:]):
        out.append(position % size)
        position = position // size
    if shape:
        out.append(position)
    return tuple(reversed(out))


def _same(a: sint, b: sint) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def reshape(idx: Index, shape: Sequence[sint], source: Sequence[sint]) -> Index:
    """Axes are regrouped only where they must be: independent groups of axes do not mix, and axes
    of size 1 take no part.
    """
    wide = [(i, size) for i, size in zip(idx, shape, strict=True) if not _same(size, 1)]
    found = iter(
        _regroup(
            [i for i, _ in wide],
            [size for _, size in wide],
            [size for size in source if not _same(size, 1)],
        )
    )
    return tuple(const(0) if _same(size, 1) else next(found) for size in source)


def _regroup(idx: Sequence[Expr], shape: Sequence[sint], source: Sequence[sint]) -> list[Expr]:
    out: list[Expr] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        first, start = i, j
        left: sint = 1
        right: sint = 1
        while (i == first and j == start) or not _same(left, right):
            behind = as_expr(left).min <= as_expr(right).min
            if i < len(shape) and (j >= len(source) or behind):
                left = left * shape[i]
                i += 1
            elif j < len(source):
                right = right * source[j]
                j += 1
            else:
                break
        out.extend(unflatten(flatten(idx[first:i], shape[first:i]), source[start:j]))
    return out


def permute(idx: Index, axes: Sequence[int]) -> Index:
    """`result.shape[i] = source.shape[axes[i]]`."""
    out: list[Expr] = [const(0)] * len(idx)
    for i, axis in zip(idx, axes, strict=True):
        out[axis] = i
    return tuple(out)


def expand(idx: Index, shape: Sequence[sint], source: Sequence[sint]) -> Index:
    """An axis of size 1 repeats."""
    return tuple(
        const(0) if _same(size, 1) and not _same(wide, 1) else i
        for i, wide, size in zip(idx, shape, source, strict=True)
    )


def pad(idx: Index, arg: Sequence[tuple[sint, sint]], source: Sequence[sint]) -> tuple[Index, Expr]:
    """`arg` holds (before, after) for each axis.

    Returns the index before the padding, and the condition that it is one. Along an axis of one
    element it is 0, so that what is read there is one value, whatever the place that it is put at.
    """
    inner = tuple(i - before for i, (before, _) in zip(idx, arg, strict=True))
    inside = _inside(inner, source, arg)
    zero = const(0)
    return tuple(zero if _same(n, 1) else i for i, n in zip(inner, source, strict=True)), inside


def _inside(idx: Index, shape: Sequence[sint], arg: Sequence[tuple[sint, sint]]) -> Expr:
    conditions: list[Expr] = []
    for i, size, (before, after) in zip(idx, shape, arg, strict=True):
        if not _same(before, 0):
            conditions.append(less(const(-1), i))
        if not _same(after, 0):
            conditions.append(less(i, as_expr(size)))
    return all_of(conditions)


def shrink(idx: Index, arg: Sequence[tuple[sint, sint]]) -> Index:
    """`arg` holds (start, stop) for each axis."""
    return tuple(i + start for i, (start, _) in zip(idx, arg, strict=True))


def stride(idx: Index, arg: Sequence[int], source: Sequence[sint]) -> Index:
    """Every `arg`-th element; a negative multiplier starts from the end."""
    return tuple(
        i * m if m > 0 else as_expr(size) - 1 + i * m
        for i, m, size in zip(idx, arg, source, strict=True)
    )


def as_strided(
    idx: Index, arg: tuple[Sequence[sint], Sequence[sint], sint], source: Sequence[sint]
) -> Index:
    """`arg` is (shape, strides, offset) on the flat source."""
    _, strides, offset = arg
    position = as_expr(offset)
    for i, step in zip(idx, strides, strict=True):
        position = position + i * step
    return unflatten(position, source)


def window(idx: Index, arg: tuple[int, int, int, int]) -> Index:
    """`arg` is (axis, size, stride, dilation).

    The last axis of the result counts inside the window.
    """
    axis, _, step, dilation = arg
    return (*idx[:axis], idx[axis] * step + idx[-1] * dilation, *idx[axis + 1 : -1])


def unwindow(
    idx: Index, arg: tuple[int, sint, int, int], source: Sequence[sint]
) -> tuple[Index, Expr]:
    """`arg` is (axis, length, stride, dilation): where in `window` a position came from."""
    axis, _, step, dilation = arg
    distance = idx[axis] - idx[-1] * dilation
    position = distance // step
    conditions = [less(const(-1), distance), less(position, as_expr(source[axis]))]
    if step != 1:
        conditions.append(less(distance % step, const(1)))
    return (*idx[:axis], position, *idx[axis + 1 :]), all_of(conditions)
