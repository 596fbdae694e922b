"""CAST and BITCAST in LLVM IR, between all dtypes.

bfloat16 is converted by shifts: the processors' own instruction flushes subnormals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.target import Target
from ferrule.renderer.arithmetic import Step, conversion
from ferrule.renderer.base import STORAGE_ONLY
from ferrule.renderer.float8 import FORMATS
from ferrule.renderer.llvm import expand, float8
from ferrule.renderer.llvm.value import Value, type_of, vector


def _has_half(target: Target) -> bool:
    """True if float16 and float32 convert in one instruction."""
    return target.arch == "aarch64" or "+f16c" in target.features.split(",")


def _by_half(x: Value, first: str, second: str, target: DType) -> Value:
    """Two conversions, by way of LLVM's own type for float16."""
    half = vector("half", x.lanes)
    between = x.code.assign(f"{first} {x} to {half}")
    return x.made(f"{second} {half} {between} to {type_of(target, x.lanes)}", target)


def _widened(x: Value, target: DType) -> Value:
    """float32 from the bits of a narrower float."""
    if x.dtype in FORMATS:
        return float8.widened(x)
    if x.dtype is dtypes.bfloat16:
        return (x.bits.resized(dtypes.uint32) << 16).view(target)
    if not _has_half(x.code.target):
        return expand.half_to_float(x)
    return _by_half(x, "bitcast", "fpext", target)


def _bfloat16_bits(x: Value) -> Value:
    bits = x.bits
    upper = bits >> 16
    # Add just under half of the last kept bit, or exactly half if it is odd: ties to even.
    to_even = (upper & 1) + 0x7FFF
    rounded = bits + to_even >> 16
    quiet = upper | 0x40
    return x.is_nan().select(quiet, rounded)


def _narrowed(x: Value, target: DType) -> Value:
    """The bits of a narrower float from float32."""
    if target in FORMATS:
        return float8.narrowed(x, target)
    if target is dtypes.bfloat16:
        return _bfloat16_bits(x).convert("trunc", target)
    if not _has_half(x.code.target):
        return expand.float_to_half(x)
    return _by_half(x, "fptrunc", "bitcast", target)


def _odd_float(x: Value, target: DType) -> Value:
    """float64 to float32 with an inexact result made odd, so that one more rounding is correct."""
    near = x.resized(target)
    back = near.resized(x.dtype)
    size = x.intrinsic("fabs")
    too_far = back.intrinsic("fabs") > size
    towards_zero = near.bits - too_far.resized(dtypes.uint32)
    finite = size < float("inf")
    inexact = back.op("fcmp one", x) & finite
    return (towards_zero | inexact.resized(dtypes.uint32)).view(target)


def _is_nonzero(x: Value, target: DType) -> Value:
    if x.dtype in STORAGE_ONLY:  # bits: both zeros have none but the sign
        x = x.bits & (1 << (x.dtype.bits - 1)) - 1
    return x.differs(0)


def _one_or_zero(x: Value, target: DType) -> Value:
    if dtypes.is_float(target):
        return x.select(x.constant(1.0, target), x.constant(0.0, target))
    return x.resized(target)


def _settled(x: Value, instruction: str, whole: DType) -> Value:
    """A conversion; `freeze` makes the poison of a number that does not fit the same at
    each use.
    """
    converted = x.convert(instruction, whole)
    return converted.made(f"freeze {converted}")


def _whole_part(x: Value, target: DType) -> Value:
    """A float as an integer, by way of a wider signed one if there is one, so that small negatives
    wrap.
    """
    is_small = target.itemsize < 4 or target is dtypes.int32
    settled = _settled(x, "fptosi", dtypes.int32 if is_small else dtypes.int64)
    if target is dtypes.uint64:
        is_negative = x < 0
        settled = is_negative.select(settled, _settled(x, "fptoui", target))
    return settled.resized(target)


def _converted(x: Value, target: DType) -> Value:
    if x.is_real or not dtypes.is_float(target):
        return x.resized(target)
    return x.convert("sitofp" if x.is_signed else "uitofp", target)


_STEPS: Final[dict[Step, Callable[[Value, DType], Value]]] = {
    Step.TEST: _is_nonzero,
    Step.CHOOSE: _one_or_zero,
    Step.WIDEN: _widened,
    Step.NARROW: _narrowed,
    Step.ODD: _odd_float,
    Step.TRUNCATE: _whole_part,
    Step.CONVERT: _converted,
}


def cast(x: Value, target: DType) -> Value:
    """The value in another dtype."""
    for step, dtype in conversion(x.dtype, target):
        x = _STEPS[step](x, dtype)
    return x


def bitcast(x: Value, target: DType, lanes: int) -> Value:
    """The same bits as `lanes` values of another dtype."""
    if x.dtype is target:
        return x
    if x.lanes != lanes:
        return x.made(f"bitcast {x} to {type_of(target, lanes)}", target, lanes)
    if x.dtype is dtypes.bool:
        return x.resized(dtypes.uint8).view(target)
    if target is dtypes.bool:
        return x.bits.differs(0)
    return x.view(target)
