"""The device NUMPY: every op is one NumPy function, and a kernel is a sequence of calls.

It is the reference that compiled devices are tested against, so correctness comes first. Movement
ops are strided views, and a sum of products that is a contraction is a matrix product; everything
else is as plain as possible.

float16, bfloat16 and the 8-bit floats compute in float32 and round after each op; their reductions
accumulate in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

from ferrule.device import Interpreted, virtual_index
from ferrule.ir.buffer import LRUAllocator
from ferrule.ir.dtype import DType, compute_dtype, dtypes, truncate
from ferrule.ir.expr import Expr, sint
from ferrule.ir.lazyop import (
    BinaryOps,
    BufferOps,
    ConstBuffer,
    LoadOps,
    MemBuffer,
    MovementOps,
    Op,
    ReduceOps,
    TernaryOps,
    UnaryOps,
    cast_arg,
    how_scattered,
)
from ferrule.ir.op_table import REDUCED, Combination, scattered
from ferrule.ir.shape.view import View

Array: TypeAlias = np.ndarray[Any, Any]
Function: TypeAlias = Callable[..., Any]


class NumpyAllocator(LRUAllocator):
    """Blocks are arrays of bytes."""

    def _alloc(self, size: int) -> Array:
        return np.empty(size, np.uint8)

    def copyin(self, dest: Array, src: memoryview) -> None:
        """Copies bytes of the host into the block `dest`."""
        dest[:] = np.frombuffer(src, np.uint8)

    def copyout(self, dest: memoryview, src: Array) -> None:
        """Copies the block `src` into bytes of the host."""
        np.frombuffer(dest, np.uint8)[:] = src

    def as_buffer(self, opaque: Array) -> memoryview:
        """The block as bytes of the host, not copied."""
        return opaque.data

    def offset(self, opaque: Array, start: int, nbytes: int) -> Array:
        """A part of a block."""
        return opaque[start : start + nbytes]

    def adopt(self, array: Array) -> Array:
        """A flat array of bytes as a block."""
        return array


# *** numbers ***

_NARROW_FLOATS = frozenset(
    np.dtype(dtype.np) for dtype in dtypes.all if compute_dtype(dtype) is not dtype
)
_CONTRACTED = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def _wide(x: Array) -> Array:
    """The values in the dtype to compute in."""
    return x.astype(np.float32) if x.dtype in _NARROW_FLOATS else x


def _is_bool(x: Array) -> bool:
    return bool(x.dtype == np.bool_)


def _is_float(x: Array) -> bool:
    return bool(x.dtype.kind == "f") or x.dtype in _NARROW_FLOATS


def _computed(function: Function) -> Function:
    """`function`, computed wide and rounded to the dtype of its operands."""

    def run(*operands: Array) -> Array:
        result = function(*[_wide(value) for value in operands])
        return np.asarray(result).astype(operands[0].dtype, copy=False)

    return run


def _compared(function: Function) -> Function:
    """`function` of two operands, its result bool."""

    def run(a: Array, b: Array) -> Array:
        return np.asarray(function(_wide(a), _wide(b)))

    return run


def _negate(x: Array) -> Array:
    negated: Array = np.logical_not(x) if _is_bool(x) else np.negative(x)
    return negated


def _cast(x: Array, arg: Any) -> Array:
    dtype, bitcast = cast_arg(arg)
    if bitcast:
        bits: Array = np.ascontiguousarray(x).view(dtype.np)
        return bits.reshape(x.shape)
    return _is_nonzero(x) if dtype is dtypes.bool else _wide(x).astype(dtype.np)


def _is_nonzero(x: Array) -> Array:
    return np.not_equal(_wide(x), 0)


def _divide(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(np.true_divide(a, b))
    divisor = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a, divisor)
    rest = a - quotient * divisor
    towards_zero = quotient + ((rest != 0) & ((a < 0) != (divisor < 0)))
    return np.asarray(np.where(b == 0, b.dtype.type(0), towards_zero))


def _remainder(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(np.fmod(a, b))
    divisor = np.where(b == 0, b.dtype.type(1), b)
    return np.asarray(np.where(b == 0, a, np.fmod(a, divisor)))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its error: together exactly a + b."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded float64 product and its error, by splitting the factors in halves of 26 bits."""
    high_a, low_a = _halves(a)
    high_b, low_b = _halves(b)
    product = a * b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, error


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def _sum_to_odd(a: Array, b: Array) -> Array:
    """a + b in float64, with its last bit odd if inexact, so that another rounding is safe."""
    total, error = _two_sum(a, b)
    bits = np.asarray(total).view(np.int64)
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    # Away from zero is one more in the bits, towards zero one less.
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64)


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c`, rounded once."""
    if not _is_float(a):
        return a * b + c
    x, y, z = (value.astype(np.float64) for value in (a, b, c))
    if a.dtype != np.float64:
        return _narrowed(_sum_to_odd(x * y, z), a.dtype)  # the product of two float32 is exact
    product, product_error = _two_product(x, y)
    carry, carry_error = _two_sum(z, product_error)
    total, total_error = _two_sum(product, carry)
    result = total + _sum_to_odd(carry_error, total_error)
    return np.where(np.isfinite(result), result, x * y + z)


def _narrowed(odd: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.float32:
        return odd.astype(np.float32)
    # ml_dtypes goes through float32: that step has to be odd as well.
    middle = odd.astype(np.float32)
    error = odd - middle
    bits = np.asarray(middle).view(np.int32)
    inexact = np.isfinite(middle) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (middle > 0), 1, -1).astype(np.int32)
    return np.where(inexact, bits + step, bits).view(np.float32).astype(dtype)


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition if _is_bool(condition) else _is_nonzero(condition), a, b)


# *** reductions ***


def _reduced_axes(x: Array, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(shape) if size != x.shape[axis])


_COMBINED = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
"""The ufunc that combines values, by the names of `COMBINATIONS`."""


def _reduction(combination: Combination) -> Function:
    """A reduction by a NumPy ufunc: in the dtype itself, or wide for narrow floats."""
    function: Any = _COMBINED[combination.name]

    def run(x: Array, shape: tuple[int, ...]) -> Array:
        wide = _wide(x)
        axes = _reduced_axes(x, shape)
        given = {}
        if wide.size == 0 and function.identity is None:  # a symbolic size may be 0
            given["initial"] = combination.identity(dtypes.from_np(wide.dtype))
        result = function.reduce(wide, axis=axes, dtype=wide.dtype, keepdims=True, **given)
        return np.asarray(result).astype(x.dtype, copy=False)

    return run


def _scatter(value: Array, index: Array, *others: Any) -> Array:
    *base, arg = others
    axis, size = arg[:2]
    shape = base[0].shape if base else (*value.shape[:axis], size, *value.shape[axis + 1 :])
    combination = scattered(how_scattered(arg))
    start = base[0] if base else combination.identity(dtypes.from_np(value.dtype))
    result = np.full(shape, start, value.dtype)
    valid = (index >= 0) & (index < size)
    places = list(np.nonzero(valid))
    places[axis] = index[valid]
    if combination.name == "last":
        result[tuple(places)] = value[valid]
    else:
        _COMBINED[combination.name].at(result, tuple(places), value[valid])
    return result


def _sum_of_product(a: Array, b: Array, shape: tuple[int, ...]) -> Array:
    """SUM over MUL; a matrix product if the operands vary along different axes."""
    axes = _contraction_axes(a, b, shape) if a.dtype in _CONTRACTED else None
    if axes is None:
        return np.asarray(_sum(_multiply(a, b), shape))
    batch, rows, columns, summed = axes
    left = _as_matrices(a, batch, rows, summed)
    right = _as_matrices(b, batch, summed, columns)
    product: Array = np.matmul(left, right)
    order = (*batch, *rows, *columns)
    sizes = [a.shape[axis] for axis in order]
    ones = [axis for axis in range(a.ndim) if axis not in order]
    result = product.reshape(*sizes, *[1] * len(ones))
    return result.transpose(np.argsort((*order, *ones)))


def _exp2_of_product(a: Array, b: Array) -> Array:
    """EXP2 over MUL; exp if the factor is log2(e), as on compiled devices.

    Otherwise the rounding of the product would cost exp as many bits as its exponent has.
    """
    is_constant = b.size > 0 and not any(
        step for step, size in zip(b.strides, b.shape, strict=True) if size > 1
    )
    if is_constant and b.dtype in _CONTRACTED and b.flat[0] == b.dtype.type(1 / np.log(2.0)):
        return np.asarray(np.exp(a))
    return np.asarray(_computed(np.exp2)(_multiply(a, b)))


Axes: TypeAlias = tuple[int, ...]


def _contraction_axes(
    a: Array, b: Array, shape: tuple[int, ...]
) -> tuple[Axes, Axes, Axes, Axes] | None:
    """The (batch, row, column, summed) axes; None if this is no contraction."""
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for axis, size in enumerate(shape):
        if a.shape[axis] != 1:
            kept = size != 1
            key = (a.strides[axis] != 0, b.strides[axis] != 0, kept)
            groups.setdefault(key, []).append(axis)
    batch = groups.pop((True, True, True), [])
    rows = groups.pop((True, False, True), [])
    columns = groups.pop((False, True, True), [])
    summed = groups.pop((True, True, False), [])
    if groups or not (rows or columns) or not summed or 0 in a.shape:
        return None
    return tuple(batch), tuple(rows), tuple(columns), tuple(summed)


def _as_matrices(x: Array, batch: Axes, rows: Axes, columns: Axes) -> Array:
    used = (*batch, *rows, *columns)
    varying = x[tuple(slice(None) if axis in used else 0 for axis in range(x.ndim))]
    places = np.argsort(np.argsort(used))
    sizes = [prod(x.shape[axis] for axis in group) for group in (batch, rows, columns)]
    return varying.transpose(places).reshape(sizes)


# *** movements ***


def _pad(x: Array, arg: tuple[tuple[int, int], ...]) -> Array:
    sizes = [size + before + after for size, (before, after) in zip(x.shape, arg, strict=True)]
    result = np.zeros(sizes, x.dtype)
    inside = [slice(before, before + n) for n, (before, _) in zip(x.shape, arg, strict=True)]
    result[tuple(inside)] = x
    return result


def _shrink(x: Array, arg: tuple[tuple[int, int], ...]) -> Array:
    return x[tuple(slice(start, stop) for start, stop in arg)]


def _stride(x: Array, arg: tuple[int, ...]) -> Array:
    return x[tuple(slice(None, None, step) for step in arg)]


def _as_strided(x: Array, arg: tuple[tuple[int, ...], tuple[int, ...], int]) -> Array:
    return _strided(np.ascontiguousarray(x), *arg)


def _strided(memory: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """A view of contiguous memory; NumPy raises if it would reach outside."""
    step = memory.itemsize
    if 0 in shape:
        return np.empty(shape, memory.dtype)
    bytes_apart = [stride * step for stride in strides]
    return np.ndarray(shape, memory.dtype, memory, offset * step, bytes_apart)


def _window(x: Array, arg: tuple[int, int, int, int]) -> Array:
    axis, size, stride, dilation = arg
    count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
    step = x.strides[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    strides = (*x.strides[:axis], step * stride, *x.strides[axis + 1 :], step * dilation)
    # As integers: NumPy cannot stride over types that it does not know.
    integers = x.view(f"u{x.itemsize}")
    found = np.lib.stride_tricks.as_strided(integers, shape, strides, writeable=False)
    return found.view(x.dtype)


def _unwindow(x: Array, arg: tuple[int, int, int, int]) -> Array:
    axis, length, stride, dilation = arg
    result = np.zeros((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)
    targets = np.moveaxis(result, axis, 0)
    sources = np.moveaxis(x, axis, 0)
    for k in range(x.shape[-1]):
        places = targets[k * dilation :: stride][: len(sources)]
        places[..., k] = sources[: len(places), ..., k]
    return result


def _gather(x: Array, index: Array, axis: int) -> Array:
    size = x.shape[axis]
    if size == 0:
        return np.zeros(index.shape, x.dtype)
    valid = (index >= 0) & (index < size)
    found = np.take_along_axis(x, np.where(valid, index, 0), axis)
    return np.where(valid, found, x.dtype.type(0))


# *** memory ***


def _known(sizes: Sequence[sint]) -> list[int]:
    """The sizes of a view as numbers: variables have been replaced by their values."""
    assert all(isinstance(size, int) for size in sizes), f"no value for a variable in {sizes}"
    return cast(list[int], list(sizes))


def _there(view: View) -> tuple[slice, ...]:
    """The elements of a view that its mask leaves."""
    return tuple(slice(start, stop) for start, stop in map(_known, view.valid_ranges))


def _in_memory(handle: Array | None, dtype: DType, view: View) -> Array:
    """The elements of a view that its mask leaves, in the memory itself."""
    ranges = [_known(pair) for pair in view.valid_ranges]
    strides = _known(view.strides)
    sizes = [stop - start for start, stop in ranges]
    firsts = [start * step for (start, _), step in zip(ranges, strides, strict=True)]
    (offset,) = _known([view.offset])
    if handle is None:  # a buffer without elements
        return np.empty(sizes, dtype.np)
    return _strided(handle.view(dtype.np), sizes, strides, offset + sum(firsts))


def _masked(there: Array, view: View, dtype: DType) -> Array:
    """A view's elements, with zeros where its mask hides them."""
    if view.mask is None:
        return there
    result: Array = np.zeros(_known(view.shape), dtype.np)
    result[_there(view)] = there
    return result


def _load(handle: Array, arg: MemBuffer) -> Array:
    view = arg.st.view
    return _masked(_in_memory(handle, arg.dtype, view), view, arg.dtype)


def _constant(arg: ConstBuffer) -> Array:
    view = arg.st.view
    assert not isinstance(arg.val, Expr), f"no value for a variable in {arg.val}"
    value = np.array(truncate(arg.dtype, arg.val), arg.dtype.np)
    if view.mask is not None:
        return _masked(value, view, arg.dtype)
    return np.broadcast_to(value, _known(view.shape))


def _store(value: Array, handle: Array, arg: MemBuffer) -> Array:
    view = arg.st.view
    _in_memory(handle, arg.dtype, view)[...] = value[_there(view)]
    return value


# *** the table ***

_sum = _reduction(REDUCED[ReduceOps.SUM])
_multiply = _computed(np.multiply)

FUNCTIONS: dict[Op, Function] = {
    UnaryOps.EXP2: _computed(np.exp2),
    UnaryOps.LOG2: _computed(np.log2),
    UnaryOps.CAST: _cast,
    UnaryOps.SIN: _computed(np.sin),
    UnaryOps.COS: _computed(np.cos),
    UnaryOps.SQRT: _computed(np.sqrt),
    UnaryOps.RECIP: _computed(np.reciprocal),
    UnaryOps.NEG: _computed(_negate),
    UnaryOps.TRUNC: _computed(np.trunc),
    BinaryOps.ADD: _computed(np.add),
    BinaryOps.SUB: _computed(np.subtract),
    BinaryOps.MUL: _multiply,
    BinaryOps.DIV: _computed(_divide),
    BinaryOps.MAX: _computed(np.maximum),
    BinaryOps.MOD: _computed(_remainder),
    BinaryOps.CMPLT: _compared(np.less),
    BinaryOps.CMPNE: _compared(np.not_equal),
    BinaryOps.XOR: np.bitwise_xor,
    BinaryOps.AND: np.bitwise_and,
    BinaryOps.OR: np.bitwise_or,
    BinaryOps.SHL: np.left_shift,
    BinaryOps.SHR: np.right_shift,
    TernaryOps.MULACC: _multiply_add,
    TernaryOps.WHERE: _where,
    **{op: _reduction(row) for op, row in REDUCED.items() if row.name in _COMBINED},
    ReduceOps.SCATTER: _scatter,
    MovementOps.RESHAPE: np.reshape,
    MovementOps.PERMUTE: np.transpose,
    MovementOps.EXPAND: np.broadcast_to,
    MovementOps.PAD: _pad,
    MovementOps.SHRINK: _shrink,
    MovementOps.STRIDE: _stride,
    MovementOps.AS_STRIDED: _as_strided,
    MovementOps.WINDOW: _window,
    MovementOps.UNWINDOW: _unwindow,
    MovementOps.GATHER: _gather,
    LoadOps.CONTIGUOUS: np.array,
    BufferOps.LOAD: _load,
    BufferOps.CONST: _constant,
    BufferOps.STORE: _store,
    BufferOps.STAGE: lambda value, axes: value,
}


def _quiet(function: Function) -> Function:
    """`function` without warnings, its result an array: inf and NaN are values."""

    def run(*args: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*args))

    return run


def device(name: str) -> Interpreted:
    """NumPy as a device: `NUMPY` is the first one, `NUMPY:1` the next.

    Raises `DeviceIndexError` for an index that `FERRULE_CPU_DEVICES` does not allow.
    """
    virtual_index(name)
    functions = {op: _quiet(function) for op, function in FUNCTIONS.items()}
    fused: dict[tuple[Op, Op], Function] = {
        (ReduceOps.SUM, BinaryOps.MUL): _quiet(_sum_of_product),
        (UnaryOps.EXP2, BinaryOps.MUL): _quiet(_exp2_of_product),
    }
    return Interpreted(NumpyAllocator(), functions, name, fused)
