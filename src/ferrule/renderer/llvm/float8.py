"""Conversions between float32 and the bits of the float8 formats, in LLVM IR.

All roundings are to nearest, ties to even. A number that is too large becomes an infinity, or NaN
if the format has none.
"""

from __future__ import annotations

from ferrule.ir.dtype import DType
from ferrule.renderer.float8 import FORMATS, Format
from ferrule.renderer.llvm.value import Lanes


def widened(t: Lanes, dtype: DType, x: str) -> str:
    """float32 from the bits of a float8.

    The bits, shifted to their places in a float32, are the number times 2**(b - 127), also if it is
    subnormal.
    """
    f = FORMATS[dtype]
    real, whole = t.of("float"), t.of("i32")
    bits = t.convert("zext", x, "i32")
    size = whole.op("and", bits, whole.constant(0x7F))
    moved = whole.op("shl", size, whole.constant(f.shift))
    scaled = whole.convert("bitcast", moved, "float")
    number = real.op("fmul", scaled, real.constant(2.0 ** (127 - f.bias)))
    special = whole.op("or", moved, whole.constant(0x7F800000))
    is_special = whole.compare("ugt", size, whole.constant(f.largest))
    finite = real.convert("bitcast", number, "i32")
    sign = whole.op("shl", whole.op("and", bits, whole.constant(0x80)), whole.constant(24))
    result = whole.op("or", sign, whole.select(is_special, special, finite))
    return whole.convert("bitcast", result, "float")


def narrowed(real: Lanes, dtype: DType, x: str) -> str:
    """The bits of a float8 from float32."""
    f = FORMATS[dtype]
    whole = real.of("i32")
    bits = real.convert("bitcast", x, "i32")
    size = whole.op("and", bits, whole.constant(0x7FFFFFFF))
    normal = _normal(whole, f, size)
    tiny = _subnormal(real, f, size)
    least = (127 - f.bias + 1) << 23  # the bits of the least normal number
    finite = whole.select(whole.compare("ult", size, whole.constant(least)), tiny, normal)
    too_large = whole.compare("ugt", finite, whole.constant(f.largest))
    result = whole.select(too_large, whole.constant(f.overflow), finite)
    result = whole.select(real.compare("uno", x, x), whole.constant(f.nan), result)
    sign = whole.op("and", whole.op("lshr", bits, whole.constant(24)), whole.constant(0x80))
    return whole.convert("trunc", whole.op("or", result, sign), "i8")


def _normal(whole: Lanes, f: Format, size: str) -> str:
    """Round a normal number: add just under half of the last kept bit, or exactly half if that bit
    is odd.
    """
    kept = whole.op("lshr", size, whole.constant(f.shift))
    odd = whole.op("and", kept, whole.constant(1))
    half = whole.op("add", odd, whole.constant((1 << (f.shift - 1)) - 1))
    rounded = whole.op("lshr", whole.op("add", size, half), whole.constant(f.shift))
    return whole.op("sub", rounded, whole.constant((127 - f.bias) << f.fraction))


def _subnormal(real: Lanes, f: Format, size: str) -> str:
    """Round to a subnormal: add a number whose last bit is the step of the subnormals."""
    whole = real.of("i32")
    step = 1 - f.bias - f.fraction
    anchor = 2.0 ** (step + 23)
    added = real.op("fadd", whole.convert("bitcast", size, "float"), real.constant(anchor))
    base = (step + 23 + 127) << 23
    return whole.op("sub", real.convert("bitcast", added, "i32"), whole.constant(base))
