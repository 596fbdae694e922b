"""Values written at positions of one axis: replaced, added, multiplied, compared.

Of `positions`, those out of range write nowhere. Where they repeat, the last one counts in
`placed`, and all of them in `reduced`; both take one pass over the new elements.
"""

from __future__ import annotations

from typing import Final

from ferrule.counting import count_to, place_dtype
from ferrule.dtype import dtypes
from ferrule.expr import as_int, sint
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.ops import BinaryOps
from ferrule.tensor.arithmetic import floor_div
from ferrule.tensor.elementwise import complement

REDUCTIONS: Final = ("sum", "prod", "mean", "amax", "amin")


def grown(value: Value, like: Value, fill: int = 0) -> Value:
    """The value with a number behind, up to another's shape."""
    if value.shape == like.shape:
        return value
    pairs = list(zip(value.shape, like.shape, strict=True))
    arg = [(0, as_int(wide - size)) for size, wide in pairs]
    padded = value.pad(arg)
    if fill == 0:
        return padded
    return value.full(1).pad(arg).differs(0).where(padded, fill)


def at_positions(value: Value, positions: Value, axis: int) -> Value:
    """The elements of a whole value at positions along an axis."""
    sizes = zip(positions.shape, value.shape, strict=True)
    cut = [(0, own if place == axis else n) for place, (n, own) in enumerate(sizes)]
    return value.shrink(cut).gather(positions, axis)


def hits(positions: Value, like: Value, axis: int) -> Value:
    """Where in a whole value something is written."""
    ones = Value(positions.node).full(1)
    return grown(ones.scatter(positions, axis, like.shape[axis], "last"), like).differs(0)


# *** the last one counts ***


def placed(old: Value, positions: Value, new: Value, axis: int, unique: bool = False) -> Value:
    """`old` with `new` at positions along an axis; of several for one, the last.

    `unique` says that no two positions are equal.
    """
    size = old.shape[axis]
    if unique:
        written = new.scatter(positions, axis, size)
    else:
        node = new.detach().scatter(positions, axis, size, "last").node
        written = record("scatter", _LAST, (new, positions), node, axis)
    return hits(positions, old, axis).where(grown(written, old), old)


def _reverse_last(grad: Value, entry: Entry) -> Gradients:
    """To the element that counted, and to no other of its position."""
    (positions,) = entry.saved
    axis = entry.arg
    count = positions.shape[axis]
    own = [count if place == axis else 1 for place in range(len(positions.shape))]
    number = count_to(count, place_dtype(count), grad.node.device).reshape(tuple(own))
    number = number.expand(positions.shape)
    last = number.scatter(positions, axis, grad.shape[axis], "last").gather(positions, axis)
    return last.equals(number).where(grad.gather(positions, axis), 0), None


_LAST = Rule(_reverse_last, inputs=(1,))


# *** all of them count ***


def reduced(
    old: Value, positions: Value, new: Value, axis: int, how: str, include_self: bool
) -> Value:
    """`old` with the sum, product, mean or extreme of the new elements at each position.

    With `include_self` what was there is one of these elements. `how` is one of `REDUCTIONS`.
    """
    if how in ("amax", "amin"):
        return _extreme(old, positions, new, axis, how == "amax", include_self)
    if how == "prod":
        return _product(old, positions, new, axis, include_self)
    size = old.shape[axis]
    hit = hits(positions, old, axis)
    start = old if include_self else hit.where(old.full(0), old)
    total = start + grown(new.scatter(positions, axis, size), old)
    if how == "sum":
        return total
    count = grown(new.full(1).detach().scatter(positions, axis, size), old)
    count = count + 1 if include_self else hit.where(count, 1)
    if dtypes.is_float(total.dtype):
        return total / count
    return floor_div(total, count)


def _merged(whole: Value, hit: Value, old: Value, include_self: bool, both: Value) -> Value:
    """What was there where nothing is written; elsewhere the reduction, with it or without."""
    return hit.where(both if include_self else whole, old)


def _extreme(
    old: Value, positions: Value, new: Value, axis: int, largest: bool, include_self: bool
) -> Value:
    a, b = old.detach(), new.detach()
    if not largest:
        a, b = _opposite(a), _opposite(b)
    found = grown(b.scatter(positions, axis, a.shape[axis], "max"), a)
    result = _merged(found, hits(positions, a, axis), a, include_self, a.maximum(found))
    result = result if largest else _opposite(result)
    arg = (axis, include_self)
    return record("scatter_reduce", _EXTREME, (old, new, positions), result.node, arg)


def _opposite(value: Value) -> Value:
    """The order reversed."""
    return -value if dtypes.is_float(value.dtype) else complement(value)


def _reverse_extreme(grad: Value, entry: Entry) -> Gradients:
    """Evenly to all elements that are the extreme of their position."""
    old, new, positions = entry.saved
    axis, include_self = entry.arg
    result = entry.result().detach()
    mine = old.equals(result)
    if not include_self:
        mine = mine.alu(BinaryOps.AND, hits(positions, old, axis).differs(True))
    theirs = new.equals(at_positions(result, positions, axis))
    own, other = mine.cast(grad.dtype), theirs.cast(grad.dtype)
    count = own + grown(other.scatter(positions, axis, grad.shape[axis]), grad)
    share = grad / count.equals(0).where(count.full(1), count)
    return share * own, at_positions(share, positions, axis) * other, None


_EXTREME = Rule(_reverse_extreme, inputs=(0, 1, 2), output=True)


def _product(old: Value, positions: Value, new: Value, axis: int, include_self: bool) -> Value:
    found = grown(_products(new, positions, axis, old.shape[axis]), old, 1)
    return _merged(found, hits(positions, old, axis), old, include_self, old * found)


def _products(new: Value, positions: Value, axis: int, size: sint) -> Value:
    """The product of the elements for each position; 1 where there are none."""
    node = new.detach().scatter(positions, axis, size, "prod").node
    return record("scatter_reduce", _PRODUCT, (new, positions), node, axis)


def _reverse_product(grad: Value, entry: Entry) -> Gradients:
    """The product of the others: with one zero it is left to the zero alone, with two it is 0."""
    new, positions = entry.saved
    axis = entry.arg
    size = grad.shape[axis]
    zero = new.equals(0)
    others = zero.where(new.full(1), new)
    rest = _products(others, positions, axis, size).gather(positions, axis) / others
    zeros = zero.cast(new.dtype)
    met = zeros.scatter(positions, axis, size).gather(positions, axis)
    return met.equals(zeros).where(grad.gather(positions, axis) * rest, 0), None


_PRODUCT = Rule(_reverse_product, inputs=(0, 1))
