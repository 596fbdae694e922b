"""CAST and BITCAST in LLVM IR, between all dtypes.

| from | to | result |
|---|---|---|
| any | bool | not equal to 0; NaN is true |
| integer | integer | wraps |
| float | integer | the fraction is dropped; what does not fit is some number, the same each time |
| integer, float | float | nearest, ties to even; from float64 in one rounding |

bfloat16 is converted by shifts: the processors' own instruction flushes subnormals.
"""

from __future__ import annotations

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.target import Target
from ferrule.renderer.base import storage_bits
from ferrule.renderer.float8 import FORMATS
from ferrule.renderer.llvm import expand, float8
from ferrule.renderer.llvm.value import Code, Lanes, is_real, lanes_of, register_type

# Dtypes whose bits registers hold.
_NARROW = frozenset({dtypes.float16, dtypes.bfloat16, *FORMATS})


def _has_half(target: Target) -> bool:
    """True if float16 and float32 convert in one instruction."""
    return target.arch == "aarch64" or "+f16c" in target.features.split(",")


def _widened(t: Lanes, dtype: DType, x: str) -> str:
    """float32 from the bits of a narrower float."""
    if dtype in FORMATS:
        return float8.widened(t, dtype, x)
    if dtype is dtypes.bfloat16:
        whole = t.of("i32")
        shifted = whole.op("shl", t.convert("zext", x, "i32"), whole.constant(16))
        return whole.convert("bitcast", shifted, "float")
    if not _has_half(t.code.target):
        return expand.half_to_float(t, x)
    half = t.convert("bitcast", x, "half")
    return t.of("half").convert("fpext", half, "float")


def _bfloat16_bits(real: Lanes, x: str) -> str:
    whole = real.of("i32")
    bits = real.convert("bitcast", x, "i32")
    upper = whole.op("lshr", bits, whole.constant(16))
    # Add just under half of the last kept bit, or exactly half if it is odd: ties to even.
    to_even = whole.op("add", whole.op("and", upper, whole.constant(1)), whole.constant(0x7FFF))
    rounded = whole.op("lshr", whole.op("add", bits, to_even), whole.constant(16))
    quiet = whole.op("or", upper, whole.constant(0x40))
    result = whole.select(real.compare("uno", x, x), quiet, rounded)
    return whole.convert("trunc", result, "i16")


def _narrowed(real: Lanes, dtype: DType, x: str) -> str:
    """The bits of a narrower float from float32."""
    if dtype in FORMATS:
        return float8.narrowed(real, dtype, x)
    if dtype is dtypes.bfloat16:
        return _bfloat16_bits(real, x)
    if not _has_half(real.code.target):
        return expand.float_to_half(real, x)
    half = real.convert("fptrunc", x, "half")
    return real.of("half").convert("bitcast", half, "i16")


def _odd_float(t: Lanes, x: str) -> str:
    """float64 to float32 with an inexact result made odd, so that one more rounding is correct."""
    real, whole = t.of("float"), t.of("i32")
    near = t.convert("fptrunc", x, "float")
    back = real.convert("fpext", near, "double")
    size = t.intrinsic("fabs", x)
    too_far = t.compare("ogt", t.intrinsic("fabs", back), size)
    bits = real.convert("bitcast", near, "i32")
    towards_zero = whole.op("sub", bits, t.of("i1").convert("zext", too_far, "i32"))
    finite = t.compare("olt", size, t.constant(float("inf")))
    inexact = t.of("i1").op("and", t.compare("one", back, x), finite)
    odd = whole.op("or", towards_zero, t.of("i1").convert("zext", inexact, "i32"))
    return whole.convert("bitcast", odd, "float")


def _to_bool(t: Lanes, dtype: DType, x: str) -> str:
    if dtype in _NARROW:  # bits: both zeros have none but the sign
        x = t.op("and", x, t.constant((1 << (dtype.bits - 1)) - 1))
    return t.compare("une" if is_real(t.kind) else "ne", x, t.constant(0))


def _from_bool(t: Lanes, target: DType, x: str) -> str:
    to = lanes_of(t.code, target, t.lanes)
    if target in _NARROW:
        return to.select(x, to.constant(storage_bits(target, 1.0)), to.constant(0))
    if is_real(to.kind):
        return to.select(x, to.constant(1.0), to.constant(0.0))
    return t.convert("zext", x, to.kind)


def _settled(t: Lanes, whole: Lanes, instruction: str, x: str) -> str:
    """A conversion; `freeze` makes the poison of a number that does not fit the same at
    each use.
    """
    return whole.code.value(f"freeze {whole.type} {t.convert(instruction, x, whole.kind)}")


def _float_to_int(t: Lanes, target: DType, x: str) -> str:
    """A float as an integer, by way of a wider signed one if there is one, so that small negatives
    wrap.
    """
    wide = "i32" if target.itemsize < 4 or target is dtypes.int32 else "i64"
    whole = t.of(wide)
    settled = _settled(t, whole, "fptosi", x)
    if target is dtypes.uint64:
        is_negative = t.compare("olt", x, t.constant(0))
        settled = whole.select(is_negative, settled, _settled(t, whole, "fptoui", x))
    if target.bits == int(wide[1:]):
        return settled
    return whole.convert("trunc", settled, register_type(target))


def _int_to_float(t: Lanes, source: DType, target: DType, x: str) -> str:
    instruction = "uitofp" if dtypes.is_unsigned(source) else "sitofp"
    if target in _NARROW:
        return _narrowed(t.of("float"), target, t.convert(instruction, x, "float"))
    return t.convert(instruction, x, register_type(target))


def _int_to_int(t: Lanes, source: DType, target: DType, x: str) -> str:
    if source.itemsize == target.itemsize:
        return x
    if source.itemsize > target.itemsize:
        return t.convert("trunc", x, register_type(target))
    instruction = "zext" if dtypes.is_unsigned(source) else "sext"
    return t.convert(instruction, x, register_type(target))


def _float_to_float(t: Lanes, target: DType, x: str) -> str:
    """Convert a float32 or float64 to another float dtype."""
    if target in _NARROW:
        if t.kind == "double":
            x = _odd_float(t, x)
        return _narrowed(t.of("float"), target, x)
    kind = register_type(target)
    if kind == t.kind:
        return x
    return t.convert("fptrunc" if kind == "float" else "fpext", x, kind)


def cast(code: Code, x: str, source: DType, target: DType, lanes: int) -> str:
    """The value in another dtype."""
    t = lanes_of(code, source, lanes)
    if source is target:
        return x
    if target is dtypes.bool:
        return _to_bool(t, source, x)
    if source is dtypes.bool:
        return _from_bool(t, target, x)
    if source in _NARROW:
        x, t = _widened(t, source, x), t.of("float")
    if not is_real(t.kind):
        if dtypes.is_float(target):
            return _int_to_float(t, source, target, x)
        return _int_to_int(t, source, target, x)
    if dtypes.is_float(target):
        return _float_to_float(t, target, x)
    return _float_to_int(t, target, x)


def bitcast(code: Code, x: str, source: DType, target: DType, lanes: int) -> str:
    """The same bits as `lanes` values of another dtype."""
    t = lanes_of(code, source, lanes * target.itemsize // source.itemsize)
    if source is target:
        return x
    if t.lanes != lanes:
        to = lanes_of(code, target, lanes)
        return code.value(f"bitcast {t.type} {x} to {to.type}")
    if source is dtypes.bool:
        byte = t.convert("zext", x, "i8")
        return bitcast(code, byte, dtypes.uint8, target, lanes)
    if target is dtypes.bool:
        return t.compare("ne", x, t.constant(0))
    kind = register_type(target)
    return x if kind == t.kind else t.convert("bitcast", x, kind)
