"""The reverse rule of each primitive op, written over `TracedValue`s."""

from __future__ import annotations

import math

from ferrule.autograd.recording import is_recording
from ferrule.autograd.tape import IDENTITY, Gradients, GradNode, Region, Rule, TracedValue
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, LoadOps, MovementOps, Op, ReduceOps, TernaryOps, UnaryOps
from ferrule.ir.shape.view import prod_sint, same


def _reverse_sub(grad: TracedValue, entry: GradNode) -> Gradients:
    return grad, -grad if entry.parents[1] is not None else None


def _reverse_mul(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    return (
        grad * b if entry.parents[0] is not None else None,
        grad * a if entry.parents[1] is not None else None,
    )


def _reverse_div(grad: TracedValue, entry: GradNode) -> Gradients:
    (b,) = entry.saved
    quotient = grad / b
    return quotient, -(quotient * entry.result()) if entry.parents[1] is not None else None


def _reverse_mod(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    return grad, -(grad * (a / b).alu(UnaryOps.TRUNC)) if entry.parents[1] is not None else None


def _reverse_maximum(grad: TracedValue, entry: GradNode) -> Gradients:
    """Equal operands get half each; the smaller one gets 0, even of an infinite gradient."""
    a, b = entry.saved
    zero, half = grad.full(0), grad * 0.5
    left, right = b < a, a < b
    return left.where(grad, right.where(zero, half)), right.where(grad, left.where(zero, half))


def _reverse_muladd(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    return (
        grad * b if entry.parents[0] is not None else None,
        grad * a if entry.parents[1] is not None else None,
        grad,
    )


def _reverse_where(grad: TracedValue, entry: GradNode) -> Gradients:
    (condition,) = entry.saved
    zero = grad.full(0)
    return None, condition.where(grad, zero), condition.where(zero, grad)


def _reverse_exp2(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * entry.result() * math.log(2),)


def _reverse_log2(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    return (grad / (x * math.log(2)),)


def _reverse_sin(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    return (grad * x.alu(UnaryOps.COS),)


def _reverse_cos(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    return (-(grad * x.alu(UnaryOps.SIN)),)


def _reverse_sqrt(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * 0.5 / entry.result(),)


def _reverse_reciprocal(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (-(grad * result * result),)


def _reverse_sum(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad.expand(entry.shapes[0]),)


def _reverse_max(grad: TracedValue, entry: GradNode) -> Gradients:
    """Elements that share the maximum share its gradient evenly."""
    (x,) = entry.saved
    chosen = x.equals(entry.result().expand(x.shape)).cast(x.dtype)
    share = grad / chosen.sum(entry.arg)
    return (share.expand(x.shape) * chosen,)


def _reverse_prod(grad: TracedValue, entry: GradNode) -> Gradients:
    """The product of the other elements: if one is 0, only its own gradient is not 0."""
    (x,) = entry.saved
    if is_recording():
        return (grad.expand(x.shape) * _product_of_others(x, entry.arg),)
    zero = x.equals(0)
    others = zero.where(x.full(1), x)
    product = others.reduce(ReduceOps.PROD, entry.arg).expand(x.shape)
    zeros = zero.cast(x.dtype).sum(entry.arg).expand(x.shape)
    nothing = x.full(0)
    at_zero = zeros.equals(1).where(product, nothing)
    elsewhere = zeros.equals(0).where(product / others, nothing)
    return (grad.expand(x.shape) * zero.where(at_zero, elsewhere),)


def _product_of_others(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """For each element, the product of the others along the axes, without a division.

    So it is a polynomial, whose own derivatives are right at zeros, too.
    """
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    order = (*kept, *axes)
    moved = x.permute(order)
    rows = moved.shape[: len(kept)]
    size = prod_sint([x.shape[axis] for axis in axes])
    flat = moved.reshape((*rows, size))
    flip = (1,) * len(rows) + (-1,)
    products = _products_before(flat) * _products_before(flat.stride(flip)).stride(flip)
    return products.reshape(moved.shape).permute([order.index(axis) for axis in range(len(order))])


def _products_before(x: TracedValue) -> TracedValue:
    """The product of all elements before each one, along the last axis."""
    size = x.shape[-1]
    most = size if isinstance(size, int) else size.max
    products = _shifted_with_ones(x, 1)
    step = 1
    while step < most:
        products = products * _shifted_with_ones(products, step)
        step *= 2
    return products


def _shifted_with_ones(x: TracedValue, step: int) -> TracedValue:
    """The elements shifted by `step` towards the end of the last axis, with ones in front."""
    none = ((0, 0),) * (len(x.shape) - 1)
    front = [(0, size) for size in x.shape]
    inside = TracedValue(LazyBuffer.const(True, dtypes.bool, x.shape, x.node.device))
    pad = (*none, (step, 0))
    return inside.pad(pad).where(x.pad(pad), 1).shrink(front)


def _reverse_scatter(grad: TracedValue, entry: GradNode) -> Gradients:
    (index,) = entry.saved
    base = (grad,) if len(entry.parents) > 2 else ()
    return taken(grad, index, entry.arg[0]), None, *base


def taken(value: TracedValue, index: TracedValue, axis: int) -> TracedValue:
    """The elements of a value at an index that may be smaller on other axes."""
    sizes = enumerate(zip(index.shape, value.shape, strict=True))
    cut = [(0, whole if place == axis else n) for place, (n, whole) in sizes]
    fits = all(same(stop, whole) for (_, stop), whole in zip(cut, value.shape, strict=True))
    return (value if fits else value.shrink(cut)).gather(index, axis)


def _reverse_reshape(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad.reshape(entry.shapes[0]),)


def _reverse_permute(grad: TracedValue, entry: GradNode) -> Gradients:
    inverse = [0] * len(entry.arg)
    for position, axis in enumerate(entry.arg):
        inverse[axis] = position
    return (grad.permute(inverse),)


def _reverse_expand(grad: TracedValue, entry: GradNode) -> Gradients:
    pairs = zip(entry.shapes[0], grad.shape, strict=True)
    return (grad.sum([axis for axis, (size, wide) in enumerate(pairs) if size != wide]),)


def _reverse_pad(grad: TracedValue, entry: GradNode) -> Gradients:
    sizes = zip(entry.arg, entry.shapes[0], strict=True)
    return (grad.shrink([(before, before + size) for (before, _), size in sizes]),)


def _reverse_shrink(grad: TracedValue, entry: GradNode) -> Gradients:
    sizes = zip(entry.arg, entry.shapes[0], strict=True)
    return (grad.pad([(start, size - stop) for (start, stop), size in sizes]),)


def _reverse_stride(grad: TracedValue, entry: GradNode) -> Gradients:
    """Zeros between the elements, then the flips undone."""
    for axis, step in enumerate(entry.arg):
        if abs(step) != 1:
            grad = _spread(grad, axis, abs(step), entry.shapes[0][axis])
    if any(step < 0 for step in entry.arg):
        grad = grad.stride([-1 if step < 0 else 1 for step in entry.arg])
    return (grad,)


def _spread(value: TracedValue, axis: int, step: int, length: sint) -> TracedValue:
    """The elements along `axis` moved `step` apart, with zeros between them, `length` in all."""
    shape = value.shape
    before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
    none = ((0, 0),)
    apart = value.reshape((*before, size, 1, *after))
    apart = apart.pad(none * (axis + 1) + ((0, step - 1),) + none * len(after))
    apart = apart.reshape((*before, size * step, *after))
    kept = [(0, wide) for wide in apart.shape]
    kept[axis] = (0, length)
    return apart.shrink(kept)


def _reverse_window(grad: TracedValue, entry: GradNode) -> Gradients:
    axis, _, stride, dilation = entry.arg
    length = entry.shapes[0][axis]
    back = grad.unwindow(axis, length, stride, dilation)
    return (back.sum((len(back.shape) - 1,)).reshape(entry.shapes[0]),)


def _reverse_unwindow(grad: TracedValue, entry: GradNode) -> Gradients:
    """A window over each of the K copies, of which element k of copy k is taken: the diagonal.

    Under a sum over the copies, these are equal, and one window has all elements.
    """
    axis, length, stride, dilation = entry.arg
    rank = len(grad.shape)
    size = entry.shapes[0][-1]
    assert isinstance(size, int)
    reach = (entry.shapes[0][axis] - 1) * stride + dilation * (size - 1) + 1
    srcs = grad.node.srcs
    if grad.node.op is MovementOps.EXPAND and srcs[0].shape[-1] == 1:
        first = [(0, n) for n in grad.shape[:-1]]
        copy = grad.shrink([*first, (0, 1)]).reshape(grad.shape[:-1])
        return (_resized(copy, axis, length, reach).window(axis, size, stride, dilation),)
    windows = _resized(grad, axis, length, reach).window(axis, size, stride, dilation)
    ones = TracedValue(LazyBuffer.const(True, dtypes.bool, (size, 1), grad.node.device))
    diagonal = ones.pad(((0, 0), (0, size))).reshape((size * (size + 1),))
    diagonal = diagonal.shrink(((0, size * size),)).reshape((1,) * (rank - 1) + (size, size))
    picked = diagonal.expand(windows.shape).where(windows, 0).sum((rank,))
    return (picked.reshape(entry.shapes[0]),)


def _resized(value: TracedValue, axis: int, length: sint, wanted: sint) -> TracedValue:
    """The value with the size of an axis changed at its end, by zeros or by a cut."""
    more = wanted - length
    if isinstance(more, int) and more < 0:
        return value.shrink([(0, wanted if i == axis else n) for i, n in enumerate(value.shape)])
    return value.pad([(0, more if i == axis else 0) for i in range(len(value.shape))])


def _reverse_gather(grad: TracedValue, entry: GradNode) -> Gradients:
    (index,) = entry.saved
    return grad.scatter(index, entry.arg, entry.shapes[0][entry.arg]), None


def _reverse_assign(grad: TracedValue, entry: GradNode) -> Gradients:
    region: Region | None = entry.arg
    if region is None:
        return None, grad
    value = region.read(grad)
    rest = grad.assign(value.full(0), region) if entry.parents[0] is not None else None
    return rest, value


RULES: dict[Op, Rule] = {
    BinaryOps.ADD: Rule(lambda grad, entry: (grad, grad)),
    BinaryOps.SUB: Rule(_reverse_sub),
    BinaryOps.MUL: Rule(_reverse_mul, inputs=(0, 1)),
    BinaryOps.DIV: Rule(_reverse_div, inputs=(1,), output=True),
    BinaryOps.MOD: Rule(_reverse_mod, inputs=(0, 1)),
    BinaryOps.MAX: Rule(_reverse_maximum, inputs=(0, 1)),
    TernaryOps.MULACC: Rule(_reverse_muladd, inputs=(0, 1)),
    TernaryOps.WHERE: Rule(_reverse_where, inputs=(0,)),
    UnaryOps.EXP2: Rule(_reverse_exp2, output=True),
    UnaryOps.LOG2: Rule(_reverse_log2, inputs=(0,)),
    UnaryOps.SIN: Rule(_reverse_sin, inputs=(0,)),
    UnaryOps.COS: Rule(_reverse_cos, inputs=(0,)),
    UnaryOps.SQRT: Rule(_reverse_sqrt, output=True),
    UnaryOps.RECIP: Rule(_reverse_reciprocal, output=True),
    UnaryOps.NEG: Rule(lambda grad, entry: (-grad,)),
    UnaryOps.CAST: Rule(lambda grad, entry: (grad.cast(entry.kinds[0]),)),
    ReduceOps.SUM: Rule(_reverse_sum),
    ReduceOps.MAX: Rule(_reverse_max, inputs=(0,), output=True),
    ReduceOps.PROD: Rule(_reverse_prod, inputs=(0,)),
    ReduceOps.SCATTER: Rule(_reverse_scatter, inputs=(1,)),
    MovementOps.RESHAPE: Rule(_reverse_reshape),
    MovementOps.PERMUTE: Rule(_reverse_permute),
    MovementOps.EXPAND: Rule(_reverse_expand),
    MovementOps.PAD: Rule(_reverse_pad),
    MovementOps.SHRINK: Rule(_reverse_shrink),
    MovementOps.STRIDE: Rule(_reverse_stride),
    MovementOps.WINDOW: Rule(_reverse_window),
    MovementOps.UNWINDOW: Rule(_reverse_unwindow),
    MovementOps.GATHER: Rule(_reverse_gather, inputs=(1,)),
    LoadOps.CONTIGUOUS: IDENTITY,
    LoadOps.FROM: Rule(lambda grad, entry: (grad.copy_to(entry.arg),)),
    LoadOps.ASSIGN: Rule(_reverse_assign),
}
