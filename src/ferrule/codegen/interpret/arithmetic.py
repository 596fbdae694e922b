"""The operations of programs: each a function on arrays, in the arrays' own dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy

from ferrule.codegen.intrinsics import MatrixIntrinsic, of_matrices
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp

Array = numpy.ndarray[Any, Any]


class InterpretError(RuntimeError):
    """A program that does what compiled code must not do: a mistake in the compiler."""


def _extremum(is_better: Array, a: Array, b: Array) -> Array:
    """MAX and MIN: NaN if either is NaN; of two equal ones (zeros of either sign) the first."""
    return numpy.where(is_better | (b != b), b, a)


def _negative(a: Array) -> Array:
    return ~a if a.dtype.kind == "b" else -a


def _subtract(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        raise InterpretError("SUB of bool has no meaning; use XOR, or cast to an integer first")
    return a - b


def _positive(b: Array) -> Array:
    if (b <= 0).any():
        raise InterpretError(f"an index is divided by {b.min()}; divisors must be positive")
    return b


def _safe_divisor(b: Array) -> Array:
    """The divisor, but 1 for 0 and for -1, whose quotient may not fit."""
    unsafe = (b == 0) | (b == -1) if b.dtype.kind == "i" else b == 0
    return numpy.where(unsafe, 1, b).astype(b.dtype)


def _truncated_division(a: Array, b: Array) -> Array:
    """The quotient, rounded towards zero; x / 0 is 0; a quotient that does not fit wraps."""
    safe = _safe_divisor(b)
    quotient = (a - numpy.fmod(a, safe)) // safe
    negated = numpy.where(b == 0, 0, -a).astype(a.dtype)
    return numpy.where(safe == b, quotient, negated).astype(a.dtype)


def _truncated_remainder(a: Array, b: Array) -> Array:
    """The remainder, with the sign of a; x % 0 is x."""
    return numpy.where(b == 0, a, numpy.fmod(a, _safe_divisor(b))).astype(a.dtype)


def _shift_count(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    if (b < 0).any() or (b >= width).any():
        raise InterpretError(
            f"a shift by {b.ravel().tolist()} of {width}-bit values; counts are below it"
        )
    return b


def _fused_float32(a: Array, b: Array, c: Array) -> Array:
    """A multiply-add rounded once: an inexact float64 sum is made odd, then rounds correctly."""
    product = a.astype(numpy.float64) * b.astype(numpy.float64)
    addend = c.astype(numpy.float64)
    total = product + addend
    shadow = total - product
    lost = (product - (total - shadow)) + (addend - shadow)
    if not lost.any():
        return total.astype(numpy.float32)
    even = (total.view(numpy.int64) & 1) == 0
    inexact = numpy.isfinite(total) & (lost != 0) & even
    towards = numpy.where(lost > 0, numpy.inf, -numpy.inf)
    adjusted = numpy.where(inexact, numpy.nextafter(total, towards), total)
    return adjusted.astype(numpy.float32)


def _fused_scalar(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(numpy.float64(a) * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # for the sign of the zero
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fused(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c`, rounded once for floats."""
    if a.dtype.kind == "b":
        return (a & b) | c
    if a.dtype == numpy.float32:
        return _fused_float32(a, b, c)
    if a.dtype == numpy.float64:
        a, b, c = numpy.broadcast_arrays(a, b, c)
        values = zip(a.ravel().tolist(), b.ravel().tolist(), c.ravel().tolist(), strict=True)
        fused = [_fused_scalar(*operands) for operands in values]
        return numpy.array(fused, numpy.float64).reshape(a.shape)
    return a * b + c


def _without_subnormals(x: Array) -> Array:
    """Float32 values with subnormal ones replaced by zeros of their sign."""
    return numpy.where(numpy.abs(x) < numpy.float32(2.0**-126), numpy.copysign(x * 0, x), x)


def _dot(a: Array, b: Array, c: Array) -> Array:
    """Two multiply-adds on pairs of bfloat16, the one of the upper halves first; or the sum of four
    products of bytes, signed in int32 and unsigned in uint32.
    """
    if c.dtype == numpy.int32:
        products = (_byte(a, place) * _byte(b, place) for place in range(4))
        return sum(products, c)
    total = _without_subnormals(c)
    for shift in (16, 0):
        total = _with_product(total, a, b, shift)
    return total


def _byte(x: Array, place: int) -> Array:
    """One of the four bytes of integers, as int32."""
    shifted: Array = x << (24 - 8 * place) >> 24
    return shifted.astype(numpy.int32)


def _with_product(total: Array, a: Array, b: Array, shift: int) -> Array:
    """A sum with the product of one half of two pairs of bfloat16."""
    x, y = (_without_subnormals((pair >> shift << 16).view(numpy.float32)) for pair in (a, b))
    return _without_subnormals(_fused_float32(x, y, total))


def tile_dot(c: Array, left: Array, right: Array) -> Array:
    """`c + left @ right` of tile registers, as bits: `TileIntrinsic` says in which order."""
    sums = [numpy.zeros(c.shape, numpy.float32)] * 2
    for k in range(left.shape[1]):
        sums = [
            _with_product(part, left[:, k : k + 1], right[k], shift)
            for part, shift in zip(sums, (0, 16), strict=True)
        ]
    total = _without_subnormals(sums[0] + sums[1])
    before = _without_subnormals(c.view(numpy.float32))
    result: Array = _without_subnormals(before + total).view(numpy.uint32)
    return result


def mma(by: MatrixIntrinsic, a: Array, b: Array, c: Array) -> Array:
    """A warp's `a @ b + c`, one row of fragments for each thread; terms add up in order."""
    left = unfolded(a.astype(numpy.float32), by.left, (by.rows, by.terms))
    right = unfolded(b.astype(numpy.float32), by.right, (by.terms, by.columns))
    total = unfolded(c, by.result, (by.rows, by.columns))
    for term in range(by.terms):
        total = total + left[:, term : term + 1] * right[term]
    thread, element = numpy.indices(c.shape)
    parts: Array = total[by.result(thread, element)]
    return parts


def to_tf32(x: Array) -> Array:
    """The nearest float32 with 10 bits of mantissa, the larger of two that are as near."""
    bits = x.view(numpy.uint32)
    rounded = ((bits + numpy.uint32(1 << 12)) & numpy.uint32(~0x1FFF & 0xFFFFFFFF)).view(x.dtype)
    return numpy.where(numpy.isnan(x), x, rounded)


def matrices(rows: Array, transposed: bool) -> Array:
    """The part of four matrices of 8 rows that each of 32 threads gets.

    Each thread has given one row of 16 bytes.
    """
    thread, element = numpy.indices(rows.shape)
    matrix, row, column = of_matrices(thread, element, transposed, rows.shape[1] // 4)
    parts: Array = rows[8 * matrix + row, column]
    return parts


def unfolded(parts: Array, place: Callable[..., Any], shape: tuple[int, int]) -> Array:
    """The matrix whose fragments the threads hold, a row of `parts` for each thread."""
    out = numpy.zeros(shape, parts.dtype)
    out[place(*numpy.indices(parts.shape))] = parts
    return out


_ALU: Final[dict[ExprOp, Callable[..., Array]]] = {
    ExprOp.ADD: lambda a, b: a + b,
    ExprOp.SUB: _subtract,
    ExprOp.MUL: lambda a, b: a * b,
    ExprOp.FDIV: lambda a, b: a / b,
    ExprOp.IDIV: lambda a, b: a // _positive(b),
    ExprOp.MOD: lambda a, b: a % _positive(b),
    ExprOp.TDIV: _truncated_division,
    ExprOp.TMOD: _truncated_remainder,
    ExprOp.FMOD: numpy.fmod,
    ExprOp.NEG: _negative,
    ExprOp.MIN: lambda a, b: _extremum(b < a, a, b),
    ExprOp.MAX: lambda a, b: _extremum(a < b, a, b),
    ExprOp.CMPLT: numpy.less,
    ExprOp.CMPNE: numpy.not_equal,
    ExprOp.AND: numpy.bitwise_and,
    ExprOp.OR: numpy.bitwise_or,
    ExprOp.XOR: numpy.bitwise_xor,
    ExprOp.SHL: lambda a, b: numpy.left_shift(a, _shift_count(a, b)),
    ExprOp.SHR: lambda a, b: numpy.right_shift(a, _shift_count(a, b)),
    ExprOp.NOT: numpy.invert,
    ExprOp.POPCOUNT: lambda a: numpy.bitwise_count(a).astype(a.dtype),
    ExprOp.WHERE: numpy.where,
    ExprOp.MULACC: fused,
    ExprOp.DOT: _dot,
    ExprOp.RECIP: lambda a: numpy.ones_like(a) / a,
    ExprOp.SQRT: numpy.sqrt,
    ExprOp.TRUNC: numpy.trunc,
    ExprOp.ROUND: numpy.rint,
    ExprOp.NEAR_EXP2: numpy.exp2,
    ExprOp.TF32: to_tf32,
}
_STORAGE_ONLY: Final = frozenset(
    {dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2}
)


def operation(op: ExprOp, sources: Sequence[DType]) -> Callable[..., Array]:
    """The function of an operation on values of these dtypes."""
    function = _ALU.get(op)
    if function is None:
        raise InterpretError(f"{op.name} is no operation of a program; expand it first")
    if op is not ExprOp.WHERE and any(source in _STORAGE_ONLY for source in sources):
        raise InterpretError(
            f"{op.name} of {sources[0].name}: programs compute in float32; CAST before and after"
        )
    return function


def _round_to_odd_float32(x: Array) -> Array:
    """float64 to float32, an inexact result made odd, so that one more rounding is right."""
    near = x.astype(numpy.float32)
    away = numpy.abs(near.astype(numpy.float64)) > numpy.abs(x)
    inexact = numpy.isfinite(x) & (near.astype(numpy.float64) != x)
    bits = near.view(numpy.int32) - away.astype(numpy.int32)
    odd: Array = bits | inexact.astype(numpy.int32)
    return odd.view(numpy.float32)


def cast(x: Array, source: DType, target: DType) -> Array:
    """A value as another dtype."""
    if target is dtypes.bool:
        nonzero: Array = x != numpy.zeros_like(x)
        return nonzero
    if dtypes.is_int(target) and dtypes.is_float(source):
        wide = numpy.uint64 if target is dtypes.uint64 else numpy.int64
        return x.astype(wide).astype(target.np)
    if target in _STORAGE_ONLY and source is not dtypes.bool:
        if source is dtypes.float64:
            x = _round_to_odd_float32(x)
        return x.astype(numpy.float32).astype(target.np)
    return x.astype(target.np)


def halved(op: ExprOp, x: Array, dtype: DType) -> Array:
    """Reduce axis 1 of a value: combine its halves until one element is left."""
    function = operation(op, (dtype, dtype))
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = function(x[:, :half], x[:, half:])
    return x
