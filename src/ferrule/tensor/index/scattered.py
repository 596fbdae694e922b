"""Values written at positions of one axis: replaced, added, multiplied, compared.

Of `positions`, those out of range write nowhere. Where they repeat, the last one counts in
`placed`, and all of them in `reduced`. Each is a copy with elements put in, which the scheduler
does without the copy where nothing else needs what was there.
"""

from __future__ import annotations

from typing import Final

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, is_recording, record
from ferrule.autograd.iota import iota, position_dtype
from ferrule.autograd.rules import taken
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps, ReduceOps
from ferrule.tensor.broadcast import expanded
from ferrule.tensor.math.arithmetic import floor_div

REDUCTIONS: Final = ("sum", "prod", "mean", "amax", "amin")


# *** the last one counts ***


def placed(
    old: TracedValue, positions: TracedValue, new: TracedValue, axis: int, unique: bool = False
) -> TracedValue:
    """`old` with `new` at positions along an axis; of several for one, the last.

    `unique` says that no two positions are equal.
    """
    node = old.detach().put(new.detach(), positions, axis, "last").node
    return record("scatter", _UNIQUE if unique else _LAST, (old, new, positions), node, axis)


def _without(value: TracedValue, positions: TracedValue, axis: int) -> TracedValue:
    """The value with 0 at positions."""
    return placed(value, positions, value.full(0, positions.shape), axis)


def _reverse_unique(grad: TracedValue, entry: GradNode) -> Gradients:
    (positions,) = entry.saved
    axis = entry.arg
    return _without(grad, positions, axis), taken(grad, positions, axis), None


def _reverse_last(grad: TracedValue, entry: GradNode) -> Gradients:
    """To the element that counted, and to no other of its position."""
    (positions,) = entry.saved
    axis = entry.arg
    count = positions.shape[axis]
    number = iota(count, position_dtype(count), grad.node.device)
    number = expanded(number, positions.shape, axis)
    last = number.scatter(positions, axis, grad.shape[axis], "last").gather(positions, axis)
    counted = last.equals(number).where(taken(grad, positions, axis), 0)
    return _without(grad, positions, axis), counted, None


_UNIQUE = Rule(_reverse_unique, inputs=(2,))
_LAST = Rule(_reverse_last, inputs=(2,))


# *** all of them count ***


def reduced(
    old: TracedValue,
    positions: TracedValue,
    new: TracedValue,
    axis: int,
    how: str,
    include_self: bool,
) -> TracedValue:
    """`old` with the sum, product, mean or extreme of the new elements at each position.

    With `include_self` the old element is one of these elements. `how` is one of `REDUCTIONS`.
    """
    if how in ("amax", "amin"):
        return _extreme(old, positions, new, axis, how[1:], include_self)
    start = 1 if how == "prod" else 0
    if not include_self:
        old = placed(old, positions, new.full(start, positions.shape), axis)
    if how == "prod":
        return _product(old, positions, new, axis)
    total = old.put(new, positions, axis)
    if how == "sum":
        return total
    count = old.full(1).detach()
    count = count if include_self else _without(count, positions, axis)
    count = count.put(new.full(1, positions.shape), positions, axis)
    count = count if include_self else count.maximum(1)
    if dtypes.is_float(total.dtype):
        return total / count
    return floor_div(total, count)


def _extreme(
    old: TracedValue,
    positions: TracedValue,
    new: TracedValue,
    axis: int,
    how: str,
    include_self: bool,
) -> TracedValue:
    start = old.detach()
    if not include_self:
        none = dtypes.min(new.dtype) if how == "max" else dtypes.max(new.dtype)
        start = placed(start, positions, new.full(none, positions.shape), axis)
    result = start.put(new.detach(), positions, axis, how)
    arg = (axis, include_self)
    return record("scatter_reduce", _EXTREME, (old, new, positions), result.node, arg)


def _reverse_extreme(grad: TracedValue, entry: GradNode) -> Gradients:
    """Evenly to all elements that are the extreme of their position."""
    old, new, positions = entry.saved
    axis, include_self = entry.arg
    result = entry.result().detach()
    own = old.equals(result).cast(grad.dtype)
    own = own if include_self else _without(own, positions, axis)
    other = new.equals(taken(result, positions, axis)).cast(grad.dtype)
    count = own.put(other, positions, axis)
    share = grad / count.equals(0).where(count.full(1), count)
    return share * own, taken(share, positions, axis) * other, None


_EXTREME = Rule(_reverse_extreme, inputs=(0, 1, 2), output=True)


def _product(old: TracedValue, positions: TracedValue, new: TracedValue, axis: int) -> TracedValue:
    node = old.detach().put(new.detach(), positions, axis, "prod").node
    return record("scatter_reduce", _PRODUCT, (old, new, positions), node, axis)


def _reverse_product(grad: TracedValue, entry: GradNode) -> Gradients:
    """The product of the others: with one zero it is left to the zero alone, with two it is 0."""
    old, new, positions = entry.saved
    axis = entry.arg
    ones = old.full(1)
    if is_recording():
        theirs = taken(grad * old, positions, axis) * _product_of_others(new, positions, axis)
        return grad * _product(ones, positions, new, axis), theirs, None
    zero = new.equals(0)
    others = zero.where(new.full(1), new)
    rest = taken(_product(ones, positions, others, axis), positions, axis) / others
    zeros = zero.cast(new.dtype)
    met = taken(old.full(0).put(zeros, positions, axis), positions, axis)
    theirs = met.equals(zeros).where(taken(grad * old, positions, axis) * rest, 0)
    return grad * _product(ones, positions, new, axis), theirs, None


def _product_of_others(new: TracedValue, positions: TracedValue, axis: int) -> TracedValue:
    """For each element, the product of the others for its position, without a division.

    So its own derivatives are right at zeros; each element is compared with each.
    """
    rank = len(new.shape)
    order = [*[place for place in range(rank) if place != axis], axis]
    rows, size = [new.shape[place] for place in order[:-1]], new.shape[axis]
    square = (*rows, size, size)

    def against(value: TracedValue, place: int) -> TracedValue:
        """Along one of the last two axes, the same along the other."""
        shape = (*rows, size, 1) if place == 0 else (*rows, 1, size)
        return value.permute(order).reshape(shape).expand(square)

    number = iota(size, position_dtype(size), new.node.device)
    number = expanded(number, (*rows, size))
    lines = [number.reshape((*rows, *n)).expand(square) for n in ((size, 1), (1, size))]
    meets = against(positions, 1).equals(against(positions, 0))
    meets = meets.alu(BinaryOps.AND, lines[0].differs(lines[1]))
    ones = new.full(1, square)
    products = meets.where(against(new, 1), ones).reduce(ReduceOps.PROD, (rank,))
    products = products.reshape((*rows, size))
    return products.permute([order.index(place) for place in range(rank)])


_PRODUCT = Rule(_reverse_product, inputs=(0, 1, 2))
