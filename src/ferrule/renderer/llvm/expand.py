"""Operations that some processors lack, in LLVM IR: fused multiply-add, rounding, fmod, float16.

LLVM would call libm or its own runtime library for these, and a kernel's object must need neither.
All of them are exact where the instruction would be, but for the range named at float64's
multiply-add.
"""

from __future__ import annotations

import math
from typing import Final

from ferrule.ir.dtype import DType, dtype_from_name, dtypes
from ferrule.renderer.llvm.value import Code, Value, register_type


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """(a + b rounded, the error of that rounding)."""
    total = a + b
    shadow = total - a
    lost_a = a - (total - shadow)
    return total, lost_a + (b - shadow)


def _signed(x: Value) -> Value:
    """The bits as a signed integer, which is negative if the sign bit is set."""
    return x.view(dtype_from_name(f"int{x.dtype.bits}"))


def _made_odd(total: Value, lost: Value) -> Value:
    """A finite sum with its last bit set if the sum is inexact, moved towards the exact value."""
    bits = _signed(total)
    even = (bits & 1).op("icmp eq", 0)
    inexact = lost.op("fcmp one", 0.0)
    opposite = bits ^ _signed(lost) < 0
    moved = bits + opposite.select(bits.constant(-1), bits.constant(1))
    return (even & inexact).select(moved, bits).view(total.dtype)


def fused_by_double(a: Value, b: Value, c: Value) -> Value:
    """A float32 MULACC without the instruction: the product is exact in float64."""
    wide_a, wide_b, wide_c = (x.resized(dtypes.float64) for x in (a, b, c))
    total, lost = _two_sum(wide_a * wide_b, wide_c)
    return _made_odd(total, lost).resized(a.dtype)


def _split(x: Value) -> tuple[Value, Value]:
    """A float64 as two numbers of 26 bits (Veltkamp)."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def fused_by_parts(a: Value, b: Value, c: Value) -> Value:
    """A float64 MULACC without the instruction (Dekker; Boldo and Melquiond).

    It is rounded once unless a part of it leaves the range of float64; then it is rounded twice.
    """
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = a_high * b_high - product + a_high * b_low + a_low * b_high + a_low * b_low
    low_total, low_lost = _two_sum(c, error)
    total, lost = _two_sum(product, low_total)
    rest, rest_lost = _two_sum(lost, low_lost)
    once = total + _made_odd(rest, rest_lost)
    twice = product + c
    return once.op("fcmp ord", once).select(once, twice)


def _with_sign_of(magnitude: Value, sign: Value) -> Value:
    """A value that is not negative, with the sign of another one."""
    sign_bit = sign.bits & 1 << (sign.dtype.bits - 1)
    return (magnitude.bits | sign_bit).view(magnitude.dtype)


def round_even(x: Value) -> Value:
    """The nearest integer, ties to even."""
    # Above `big` every float is an integer; adding it to a smaller one rounds off the fraction.
    big = 2.0**x.dtype.mantissa_bits
    size = x.intrinsic("fabs")
    rounded = size + big - big
    return (size < big).select(_with_sign_of(rounded, x), x)


def truncate(x: Value) -> Value:
    """The nearest integer towards zero."""
    size = x.intrinsic("fabs")
    rounded = round_even(size)
    less = rounded - 1.0
    return _with_sign_of((size < rounded).select(less, rounded), x)


def remainder(a: Value, b: Value) -> Value:
    """fmod in each lane, by functions that come with the module."""
    code, kind, whole = a.code, register_type(a.dtype), f"i{a.dtype.bits}"
    code.needed.add(_remainder_function(a.dtype))
    code.needed.add(f"declare {whole} @llvm.ctlz.{whole}({whole}, i1)")
    if not code.target.has_fma or "TRUNC" not in code.target.native_ops:
        return _remainder_of_lanes(a, b)
    name = f"ferrule.fmod.{a.lanes}.{kind}"
    code.needed.add(_near_remainder_function(a, name))
    return a.made(f"call {a.type} @{name}({a}, {b})")


def _near_remainder_function(like: Value, name: str) -> str:
    """fmod by a division and a multiply-add if no quotient is large; else lane by lane."""
    code = Code(like.code.target, like.code.needed)
    a, b = (Value(code, like.dtype, like.lanes, operand) for operand in ("%a", "%b"))
    near, result = _near_remainder(a, b)
    every = near.name
    if a.lanes > 1:
        every = code.call(f"llvm.vector.reduce.and.v{a.lanes}i1", "i1", (near.type, every))
    code.branch(every, "near", "far")
    code.label("near")
    code.emit(f"ret {result}")
    code.label("far")
    code.emit(f"ret {_remainder_of_lanes(a, b)}")
    return code.text(f"internal {a.type} @{name}({a}, {b})")


def _near_remainder(a: Value, b: Value) -> tuple[Value, Value]:
    """(a mask where the quotient is small and the divisor finite, the remainder there).

    The whole part of the quotient is right, or one too large if the division was rounded up to it.
    A multiply-add subtracts that much exactly: the rest has few bits, and in the second case the
    wrong sign.
    """
    quotient = a / b
    small = quotient.intrinsic("fabs") < 2.0 ** (a.dtype.mantissa_bits - 1)
    size = b.intrinsic("fabs")
    near = small & (size < math.inf)
    rest = (-quotient.intrinsic("trunc")).intrinsic("fma", b, a)
    opposite = _signed(rest) ^ _signed(a) < 0
    wrong = opposite & rest.op("fcmp one", 0.0)
    back = rest + size.intrinsic("copysign", a)
    return near, wrong.select(back, rest).intrinsic("copysign", a)


def _remainder_of_lanes(a: Value, b: Value) -> Value:
    """A call of the scalar function for each lane."""
    if a.lanes == 1:
        return a.made(f"call {a.type} @ferrule.fmod.{a.type}({a}, {b})")
    result = Value(a.code, a.dtype, a.lanes, "poison")
    for lane in range(a.lanes):
        one = _remainder_of_lanes(a.lane(lane), b.lane(lane))
        result = a.made(f"insertelement {result}, {one}, i64 {lane}")
    return result


# The blocks of a long division in integers, which is exact: one bit of the quotient a turn.
_REMAINDER: Final = (
    # The special cases: infinities, NaN, a divisor of zero, and `|a| < |b|`, which is the result.
    # A float's bits are ordered as its magnitude, so comparisons of integers find all of them.
    """entry:
  %a.bits = bitcast {kind} %a to {whole}
  %b.bits = bitcast {kind} %b to {whole}
  %sign = and {whole} %a.bits, {sign}
  %x = xor {whole} %a.bits, %sign
  %y = and {whole} %b.bits, {largest}
  %x.wrong = icmp uge {whole} %x, {infinity}
  %y.nan = icmp ugt {whole} %y, {infinity}
  %y.zero = icmp eq {whole} %y, 0
  %wrong.1 = or i1 %x.wrong, %y.nan
  %wrong = or i1 %wrong.1, %y.zero
  br i1 %wrong, label %invalid, label %valid
invalid:
  %product = fmul {kind} %a, %b
  %nan = fdiv {kind} %product, %product
  ret {kind} %nan
valid:
  %smaller = icmp ult {whole} %x, %y
  br i1 %smaller, label %same, label %prepare
same:
  ret {kind} %a""",
    # Both magnitudes as integers times powers of two.
    # The divisor is normalised, so that one subtraction reduces.
    """prepare:
  %x.field = lshr {whole} %x, {mantissa}
  %y.field = lshr {whole} %y, {mantissa}
  %x.subnormal = icmp eq {whole} %x.field, 0
  %y.subnormal = icmp eq {whole} %y.field, 0
  %x.exponent = select i1 %x.subnormal, {whole} 1, {whole} %x.field
  %y.unit = select i1 %y.subnormal, {whole} 1, {whole} %y.field
  %x.fraction = and {whole} %x, {fraction}
  %y.fraction = and {whole} %y, {fraction}
  %x.normal = or {whole} %x.fraction, {hidden}
  %y.normal = or {whole} %y.fraction, {hidden}
  %x.whole = select i1 %x.subnormal, {whole} %x.fraction, {whole} %x.normal
  %y.some = select i1 %y.subnormal, {whole} %y.fraction, {whole} %y.normal
  %y.zeros = call {whole} @llvm.ctlz.{whole}({whole} %y.some, i1 true)
  %y.shift = sub {whole} %y.zeros, {exponent}
  %y.whole = shl {whole} %y.some, %y.shift
  %y.exponent = sub {whole} %y.unit, %y.shift
  br label %divide""",
    # The loop over the bits of the quotient: exponents go down to that of the divisor.
    """divide:
  %rest = phi {whole} [ %x.whole, %prepare ], [ %doubled, %next ]
  %exponent = phi {whole} [ %x.exponent, %prepare ], [ %lower, %next ]
  %less = sub {whole} %rest, %y.whole
  %fits = icmp uge {whole} %rest, %y.whole
  %reduced = select i1 %fits, {whole} %less, {whole} %rest
  %more = icmp sgt {whole} %exponent, %y.exponent
  br i1 %more, label %next, label %normalise
next:
  %doubled = shl {whole} %reduced, 1
  %lower = sub {whole} %exponent, 1
  br label %divide""",
    # The loop that shifts the rest up to the hidden bit, as far as the exponent has room.
    """normalise:
  %value = phi {whole} [ %reduced, %divide ], [ %twice, %raise ]
  %field = phi {whole} [ %y.exponent, %divide ], [ %down, %raise ]
  %low = icmp ult {whole} %value, {hidden}
  %room = icmp sgt {whole} %field, 1
  %nonzero = icmp ne {whole} %value, 0
  %raise.1 = and i1 %low, %room
  %raises = and i1 %raise.1, %nonzero
  br i1 %raises, label %raise, label %finish
raise:
  %twice = shl {whole} %value, 1
  %down = sub {whole} %field, 1
  br label %normalise""",
    # The float from that integer and its exponent, with the dividend's sign.
    """finish:
  %below = icmp slt {whole} %field, 1
  %missing = sub {whole} 1, %field
  %drop = select i1 %below, {whole} %missing, {whole} 0
  %final = lshr {whole} %value, %drop
  %biased = select i1 %below, {whole} 1, {whole} %field
  %subnormal = icmp ult {whole} %final, {hidden}
  %placed = shl {whole} %biased, {mantissa}
  %base = sub {whole} %placed, {hidden}
  %packed = add {whole} %base, %final
  %magnitude = select i1 %subnormal, {whole} %final, {whole} %packed
  %result = or {whole} %magnitude, %sign
  %out = bitcast {whole} %result to {kind}
  ret {kind} %out""",
)


def _remainder_function(dtype: DType) -> str:
    """The function on two floats. Their bits as integers are ordered as the magnitudes."""
    kind, mantissa = register_type(dtype), dtype.mantissa_bits
    hidden = 1 << mantissa  # the bit above the mantissa, which normal floats do not store
    infinity = ((1 << dtype.exponent_bits) - 1) << mantissa
    body = "\n".join(_REMAINDER).format(
        kind=kind,
        whole=f"i{dtype.bits}",
        sign=-(1 << (dtype.bits - 1)),
        infinity=infinity,
        largest=infinity | (hidden - 1),
        hidden=hidden,
        fraction=hidden - 1,
        mantissa=mantissa,
        exponent=dtype.exponent_bits,
    )
    return f"define internal {kind} @ferrule.fmod.{kind}({kind} %a, {kind} %b) #0 {{\n{body}\n}}"


# -- float16 ---------------------------------------------------------------------------------------


def half_to_float(x: Value) -> Value:
    """float32 from the bits of float16."""
    bits = x.bits.resized(dtypes.uint32)
    magnitude = bits & 0x7FFF
    shifted = magnitude << 13
    # The exponent's bias differs by 112; a multiplication corrects subnormals too.
    scaled = shifted.view(dtypes.float32) * 2.0**112
    special = magnitude >= 0x7C00
    all_ones = shifted | 0x7F800000
    finite = scaled.bits
    sign = (bits & 0x8000) << 16
    return (special.select(all_ones, finite) | sign).view(dtypes.float32)


def float_to_half(x: Value) -> Value:
    """The bits of float16 nearest to a float32; ties to even."""
    bits = x.bits
    magnitude = bits & 0x7FFFFFFF
    last = magnitude >> 13 & 1
    # 112 is the difference of the biases; 0xFFF and the last bit round to even.
    normal = magnitude + last + (0xFFF - (112 << 23)) >> 13
    # 0.5 has float16's smallest subnormal as its unit: adding it rounds, and leaves the bits.
    placed = magnitude.view(dtypes.float32) + 0.5
    subnormal = placed.bits - 0x3F000000
    result = (magnitude < 0x38800000).select(subnormal, normal)
    result = (magnitude >= 0x47800000).select(bits.constant(0x7C00), result)
    result = (magnitude > 0x7F800000).select(bits.constant(0x7E00), result)
    sign = bits >> 16 & 0x8000
    return (result | sign).convert("trunc", dtypes.float16)
