"""Running sums, products, extremes along the last axis: one scan, for any associative combination.

A scan works in blocks: within each, over the totals of the blocks, and then what came before a
block is combined with what is in it. So a result is few combinations deep, and its rounding errors
grow as slowly. What a `Monoid` says is how two elements combine, which element changes nothing,
what a short scan is, and how a block's total is had without one.

A short scan is the totals of windows that end with each element. A processor's schedule makes one
loop of these that goes on from element to element (`codegen/schedules/cpu/scans.py`), so blocks are
long there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.autograd import Gradients, GradNode, Number, Rule, TracedValue, record
from ferrule.autograd.iota import iota, position_dtype
from ferrule.base.records import dataclass
from ferrule.fusion.forms import wants_long_totals
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps, ReduceOps
from ferrule.ir.op_table import REDUCED
from ferrule.tensor.broadcast import expanded, known_size, part_of
from ferrule.tensor.math.elementwise import complement
from ferrule.tensor.math.special import exp, log1p, widened
from ferrule.tensor.reduce import rowwise
from ferrule.tensor.shaping.joining import padded, to_bound

_BLOCK = 16  # every element of a block is combined on its own, from all before it
_LONG_BLOCK = 1024  # or goes on from the one before it
Parts = tuple[TracedValue, ...]


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative way to combine elements, each of which is one number or several."""

    combine: Callable[[Parts, Parts], Parts]
    """The combination of an element and the one after it."""
    neutral: Callable[[TracedValue], tuple[Number, ...]]
    """The element that changes nothing, in the dtype of a value."""
    short: Callable[[Monoid, Parts], Parts]
    """The scan of a last axis of at most a block."""
    total: Callable[[TracedValue], TracedValue] | None = None
    """The last axis combined, where one reduction does that."""


def scan(parts: Parts, monoid: Monoid) -> Parts:
    """Each element of the last axis combined with all before it."""
    rest, length = parts[0].shape[:-1], parts[0].shape[-1]
    if not isinstance(length, int):
        neutral = monoid.neutral(parts[0])
        whole = [to_bound(part, fill) for part, fill in zip(parts, neutral, strict=True)]
        return tuple([part_of(part, 0, length) for part in scan(tuple(whole), monoid)])
    size = length
    most = _longest_block(parts[0], monoid)
    if size <= 1 or 0 in rest:
        return parts
    if size <= most:
        return monoid.short(monoid, parts)
    blocks = -(-size // most)
    block = -(-size // blocks)
    filled = _pad(parts, 0, blocks * block - size, monoid)
    apart = tuple([part.reshape((*rest, blocks, block)) for part in filled])
    inner = monoid.short(monoid, apart)
    if monoid.total is None:
        totals = tuple([part_of(part, block - 1, block) for part in inner])
    else:
        totals = (monoid.total(apart[0]),)
    totals = tuple([part.reshape((*rest, blocks)) for part in totals])
    before = _shifted_parts(scan(totals, monoid), 1, monoid)
    wide = tuple([expanded(part, inner[0].shape, 0) for part in before])
    flat = [part.reshape((*rest, blocks * block)) for part in monoid.combine(wide, inner)]
    return tuple([part_of(part, 0, size) for part in flat])


def _longest_block(value: TracedValue, monoid: Monoid) -> int:
    """How many elements are combined without blocks: more where one loop goes through them."""
    is_long = monoid.total is not None and wants_long_totals(value.node.device)
    return _LONG_BLOCK if is_long else _BLOCK


def _pad(parts: Parts, before: int, after: int, monoid: Monoid) -> Parts:
    none = ((0, 0),) * (len(parts[0].shape) - 1)
    pairs = (*none, (before, after))
    neutral = monoid.neutral(parts[0])
    return tuple([padded(part, pairs, fill) for part, fill in zip(parts, neutral, strict=True)])


def _shifted_parts(parts: Parts, step: int, monoid: Monoid) -> Parts:
    """The elements shifted by `step` towards the end, with neutral ones in front."""
    size = parts[0].shape[-1]
    return _pad(tuple([part_of(part, 0, size - step) for part in parts]), step, 0, monoid)


def reversed_last(value: TracedValue) -> TracedValue:
    """The last axis from its end."""
    return value.stride((1,) * (len(value.shape) - 1) + (-1,))


# *** short scans ***


def _by_windows(total: Callable[[TracedValue], TracedValue]) -> Callable[[Monoid, Parts], Parts]:
    """Every element as the total of a window that ends with it: one kernel for a whole block."""

    def short(monoid: Monoid, parts: Parts) -> Parts:
        (value,) = parts
        size = _size(value)
        (filled,) = _pad(parts, size - 1, 0, monoid)
        windows = filled.window(len(value.shape) - 1, size)
        return (total(windows).reshape(value.shape),)

    return short


def _by_doubling(monoid: Monoid, parts: Parts) -> Parts:
    """Combine with elements 1, 2, 4, ... before: for elements that no reduction combines."""
    size = _size(parts[0])
    step = 1
    while step < size:
        parts = monoid.combine(_shifted_parts(parts, step, monoid), parts)
        step *= 2
    return parts


def _reduced(op: ReduceOps) -> Callable[[TracedValue], TracedValue]:
    return lambda values: values.reduce(op, (len(values.shape) - 1,))


def _log_add(before: Parts, after: Parts) -> Parts:
    """The logarithm of e**a + e**b."""
    (a,), (b,) = before, after
    gap = a.equals(b).where(a.full(0), a - b).absolute()  # also of equal infinities
    return (a.maximum(b) + log1p(exp(-gap)),)


def _compose(before: Parts, after: Parts) -> Parts:
    """(a, b) stands for y -> a * y + b; the one after the other."""
    (a, b), (c, d) = before, after
    return a * c, c * b + d


def _of_reduction(op: ReduceOps) -> Monoid:
    """The monoid of a reduce, from the table of combinations."""
    row, total = REDUCED[op], _reduced(op)
    binary = row.binary
    assert binary is not None, f"{op} has no op that combines two results"
    return Monoid(
        lambda before, after: (before[0].alu(binary, after[0]),),
        lambda value: (row.identity(value.dtype),),
        _by_windows(total),
        total,
    )


SUM = _of_reduction(ReduceOps.SUM)
PRODUCT = _of_reduction(ReduceOps.PROD)
MAXIMUM = _of_reduction(ReduceOps.MAX)
LOG_SUM = Monoid(
    _log_add,
    lambda value: (float("-inf"),),
    _by_windows(lambda windows: rowwise.logsumexp(windows, (len(windows.shape) - 1,))),
)
AFFINE = Monoid(_compose, lambda value: (1, 0), _by_doubling)


def _recurrence(factors: TracedValue, addends: TracedValue) -> TracedValue:
    """s with s[k] = addends[k] + factors[k] * s[k + 1], from the end of the last axis."""
    pair = (reversed_last(factors), reversed_last(addends))
    return reversed_last(scan(pair, AFFINE)[1])


# *** sums and products ***


def cumsum(x: TracedValue) -> TracedValue:
    """The sum of the elements up to and with each one."""
    result = scan((widened(x),), SUM)[0].cast(x.dtype)
    return record("cumsum", _CUMSUM, (x,), result.node, None)


def _reverse_cumsum(grad: TracedValue, entry: GradNode) -> Gradients:
    return (reversed_last(cumsum(reversed_last(grad))),)


def cumprod(x: TracedValue) -> TracedValue:
    """The product of the elements up to and with each one."""
    if 0 in x.shape:
        return x
    result = scan((widened(x),), PRODUCT)[0].cast(x.dtype)
    return record("cumprod", _CUMPROD, (x,), result.node, None)


def _reverse_cumprod(grad: TracedValue, entry: GradNode) -> Gradients:
    """The product of what is before x[k], times the sum of what comes out behind it.

    That sum is s[k] = grad[k] + x[k + 1] * s[k + 1]: nothing is divided by, so zeros do no harm.
    """
    x = rowwise.accumulating(entry.saved[0])
    (before,) = _shifted_parts((cumprod(x),), 1, PRODUCT)
    (following,) = _pad((part_of(x, 1, x.shape[-1]),), 0, 1, PRODUCT)
    behind = _recurrence(following, rowwise.accumulating(grad))
    return ((before * behind).cast(entry.kinds[0]),)


def _size(x: TracedValue) -> int:
    return known_size(x.shape[-1], "scan")


def logcumsumexp(x: TracedValue) -> TracedValue:
    """The logarithm of the sum of e**x up to and with each element."""
    if 0 in x.shape:
        return x
    result = scan((widened(x),), LOG_SUM)[0].cast(x.dtype)
    return record("logcumsumexp", _LOGCUMSUMEXP, (x,), result.node, None)


def _reverse_logcumsumexp(grad: TracedValue, entry: GradNode) -> Gradients:
    """e**(x[k] - y[k]) * s[k], where s[k] = grad[k] + e**(y[k] - y[k + 1]) * s[k + 1].

    y never falls, so that no power is larger than 1.
    """
    x = rowwise.accumulating(entry.saved[0])
    y = logcumsumexp(x)
    size = x.shape[-1]
    steps = _share(part_of(y, 0, size - 1), part_of(y, 1, size))
    (factors,) = _pad((steps,), 0, 1, PRODUCT)
    behind = _recurrence(factors, rowwise.accumulating(grad))
    return ((_share(x, y) * behind).cast(entry.kinds[0]),)


def _share(part: TracedValue, whole: TracedValue) -> TracedValue:
    """e**(part - whole); 1 for equal infinities."""
    return exp(part.equals(whole).where(part.full(0), part - whole))


# *** extremes ***


def cummax(x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The largest element up to and with each one, and its position: the last of several."""
    largest = scan((x.detach(),), MAXIMUM)[0]
    return _chosen(x, largest)


def cummin(x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The smallest element up to and with each one, and its position: the last of several."""
    turn = (lambda value: -value) if dtypes.is_float(x.dtype) else complement
    smallest = turn(scan((turn(x.detach()),), MAXIMUM)[0])
    return _chosen(x, smallest)


def _chosen(x: TracedValue, extreme: TracedValue) -> tuple[TracedValue, TracedValue]:
    here = x.detach()
    found = here.equals(extreme).alu(BinaryOps.OR, here.differs(here))
    size = x.shape[-1]
    numbers = iota(size, position_dtype(size), x.node.device)
    positions = scan((found.where(expanded(numbers, x.shape), 0),), MAXIMUM)[0]
    return record("cummax", _CUMMAX, (x, positions), extreme.node, None), positions


def _reverse_cummax(grad: TracedValue, entry: GradNode) -> Gradients:
    (positions,) = entry.saved
    return grad.scatter(positions, len(grad.shape) - 1, grad.shape[-1]), None


_CUMSUM = Rule(_reverse_cumsum)
_CUMPROD = Rule(_reverse_cumprod, inputs=(0,))
_LOGCUMSUMEXP = Rule(_reverse_logcumsumexp, inputs=(0,))
_CUMMAX = Rule(_reverse_cummax, inputs=(1,))


def along(
    axis: int, x: TracedValue, function: Callable[[TracedValue], Sequence[TracedValue]]
) -> list[TracedValue]:
    """The results of a function of the last axis, applied to another axis."""
    order = [i for i in range(len(x.shape)) if i != axis] + [axis]
    back = [order.index(i) for i in range(len(order))]
    return [result.permute(back) for result in function(x.permute(order))]
