"""Conversions between float32 and the bits of the float8 formats, in LLVM IR.

All roundings are to nearest, ties to even. A number that is too large becomes an infinity, or NaN
if the format has none.
"""

from __future__ import annotations

from ferrule.ir.dtype import DType, dtypes
from ferrule.renderer.float8 import FORMATS, Format
from ferrule.renderer.llvm.value import Value


def widened(x: Value) -> Value:
    """float32 from the bits of a float8.

    The bits, shifted to their places in a float32, are the number times 2**(b - 127), also if it is
    subnormal.
    """
    f = FORMATS[x.dtype]
    bits = x.bits.resized(dtypes.uint32)
    size = bits & 0x7F
    moved = size << f.shift
    number = moved.view(dtypes.float32) * 2.0 ** (127 - f.bias)
    special = moved | 0x7F800000
    is_special = size > f.largest
    finite = number.bits
    sign = (bits & 0x80) << 24
    return (sign | is_special.select(special, finite)).view(dtypes.float32)


def narrowed(x: Value, dtype: DType) -> Value:
    """The bits of a float8 from float32."""
    f = FORMATS[dtype]
    bits = x.bits
    size = bits & 0x7FFFFFFF
    normal = _normal(f, size)
    tiny = _subnormal(f, size)
    least = (127 - f.bias + 1) << 23  # the bits of the least normal number
    finite = (size < least).select(tiny, normal)
    result = (finite > f.largest).select(size.constant(f.overflow), finite)
    result = x.is_nan().select(size.constant(f.nan), result)
    sign = bits >> 24 & 0x80
    return (result | sign).convert("trunc", dtype)


def _normal(f: Format, size: Value) -> Value:
    """Round a normal number: add just under half of the last kept bit, or exactly half if that bit
    is odd.
    """
    odd = size >> f.shift & 1
    half = odd + ((1 << (f.shift - 1)) - 1)
    return (size + half >> f.shift) - ((127 - f.bias) << f.fraction)


def _subnormal(f: Format, size: Value) -> Value:
    """Round to a subnormal: add a number whose last bit is the step of the subnormals."""
    step = 1 - f.bias - f.fraction
    anchor = 2.0 ** (step + 23)
    added = size.view(dtypes.float32) + anchor
    return added.bits - ((step + 23 + 127) << 23)
