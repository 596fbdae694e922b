"""Operations that some processors lack, in LLVM IR: fused multiply-add, rounding, fmod, float16.

LLVM would call libm or its own runtime library for these, and a kernel's object must need neither.
All of them are exact where the instruction would be, but for the range named at float64's
multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.renderer.llvm.value import Code, Lanes, literal


def _bits_of(t: Lanes) -> Lanes:
    return t.of("i32" if t.kind == "float" else "i64")


def _two_sum(t: Lanes, a: str, b: str) -> tuple[str, str]:
    """(a + b rounded, the error of that rounding)."""
    total = t.op("fadd", a, b)
    shadow = t.op("fsub", total, a)
    lost_a = t.op("fsub", a, t.op("fsub", total, shadow))
    return total, t.op("fadd", lost_a, t.op("fsub", b, shadow))


def _made_odd(t: Lanes, total: str, lost: str) -> str:
    """A finite sum with its last bit set if the sum is inexact, moved towards the exact value."""
    whole = _bits_of(t)
    bits = t.convert("bitcast", total, whole.kind)
    even = whole.compare("eq", whole.op("and", bits, whole.constant(1)), whole.constant(0))
    inexact = t.compare("one", lost, t.constant(0.0))
    lost_bits = t.convert("bitcast", lost, whole.kind)
    opposite = whole.compare("slt", whole.op("xor", bits, lost_bits), whole.constant(0))
    step = whole.select(opposite, whole.constant(-1), whole.constant(1))
    moved = whole.op("add", bits, step)
    flags = t.of("i1")
    chosen = whole.select(flags.op("and", even, inexact), moved, bits)
    return whole.convert("bitcast", chosen, t.kind)


def fused_by_double(t: Lanes, a: str, b: str, c: str) -> str:
    """A float32 MULACC without the instruction: the product is exact in float64."""
    wide = t.of("double")
    a, b, c = (t.convert("fpext", x, "double") for x in (a, b, c))
    total, lost = _two_sum(wide, wide.op("fmul", a, b), c)
    return wide.convert("fptrunc", _made_odd(wide, total, lost), t.kind)


def _split(t: Lanes, x: str) -> tuple[str, str]:
    """A float64 as two numbers of 26 bits (Veltkamp)."""
    scaled = t.op("fmul", x, t.constant(2.0**27 + 1))
    high = t.op("fsub", scaled, t.op("fsub", scaled, x))
    return high, t.op("fsub", x, high)


def fused_by_parts(t: Lanes, a: str, b: str, c: str) -> str:
    """A float64 MULACC without the instruction (Dekker; Boldo and Melquiond).

    It is rounded once unless a part of it leaves the range of float64; then it is rounded twice.
    """
    product = t.op("fmul", a, b)
    (a_high, a_low), (b_high, b_low) = _split(t, a), _split(t, b)
    error = t.op("fsub", t.op("fmul", a_high, b_high), product)
    error = t.op("fadd", error, t.op("fmul", a_high, b_low))
    error = t.op("fadd", error, t.op("fmul", a_low, b_high))
    error = t.op("fadd", error, t.op("fmul", a_low, b_low))
    low_total, low_lost = _two_sum(t, c, error)
    total, lost = _two_sum(t, product, low_total)
    rest, rest_lost = _two_sum(t, lost, low_lost)
    once = t.op("fadd", total, _made_odd(t, rest, rest_lost))
    twice = t.op("fadd", product, c)
    return t.select(t.compare("ord", once, once), once, twice)


def _with_sign_of(t: Lanes, magnitude: str, sign: str) -> str:
    """A value that is not negative, with the sign of another one."""
    whole = _bits_of(t)
    mask = whole.constant(1 << (int(whole.kind[1:]) - 1))
    sign_bit = whole.op("and", t.convert("bitcast", sign, whole.kind), mask)
    bits = whole.op("or", t.convert("bitcast", magnitude, whole.kind), sign_bit)
    return whole.convert("bitcast", bits, t.kind)


def _absolute(t: Lanes, x: str) -> str:
    return t.intrinsic("fabs", x)


def round_even(t: Lanes, x: str) -> str:
    """The nearest integer, ties to even."""
    # Above `big` every float is an integer; adding it to a smaller one rounds off the fraction.
    big = t.constant(2.0**23 if t.kind == "float" else 2.0**52)
    size = _absolute(t, x)
    rounded = t.op("fsub", t.op("fadd", size, big), big)
    return t.select(t.compare("olt", size, big), _with_sign_of(t, rounded, x), x)


def truncate(t: Lanes, x: str) -> str:
    """The nearest integer towards zero."""
    size = _absolute(t, x)
    rounded = round_even(t, size)
    less = t.op("fsub", rounded, t.constant(1.0))
    floor = t.select(t.compare("olt", size, rounded), less, rounded)
    return _with_sign_of(t, floor, x)


def remainder(t: Lanes, a: str, b: str) -> str:
    """fmod in each lane, by functions that come with the module."""
    t.code.needed.add(_remainder_function(t.kind))
    whole = _bits_of(t).kind
    t.code.needed.add(f"declare {whole} @llvm.ctlz.{whole}({whole}, i1)")
    if not t.code.target.has_fma or "TRUNC" not in t.code.target.native_ops:
        return _per_lane(t, f"ferrule.fmod.{t.kind}", (a, b))
    name = f"ferrule.fmod.{t.lanes}.{t.kind}"
    t.code.needed.add(_near_remainder_function(t, name))
    return t.code.value(f"call {t.type} @{name}({t.type} {a}, {t.type} {b})")


def _near_remainder_function(like: Lanes, name: str) -> str:
    """fmod by a division and a multiply-add if no quotient is large; else lane by lane."""
    code = Code(like.code.target, like.code.needed)
    t = Lanes(code, like.kind, like.lanes)
    near, result = _near_remainder(t, "%a", "%b")
    flags = t.of("i1")
    every = (
        near
        if t.lanes == 1
        else code.call(f"llvm.vector.reduce.and.v{t.lanes}i1", "i1", (flags.type, near))
    )
    code.emit(f"br i1 {every}, label %near, label %far")
    code.label("near")
    code.emit(f"ret {t.type} {result}")
    code.label("far")
    code.emit(f"ret {t.type} {_per_lane(t, f'ferrule.fmod.{t.kind}', ('%a', '%b'))}")
    header = f"define internal {t.type} @{name}({t.type} %a, {t.type} %b) #0 {{"
    return "\n".join([header, "entry:", *code.lines, "}"])


def _near_remainder(t: Lanes, a: str, b: str) -> tuple[str, str]:
    """(a mask where the quotient is small and the divisor finite, the remainder there).

    The whole part of the quotient is right, or one too large if the division was rounded up to it.
    A multiply-add subtracts that much exactly: the rest has few bits, and in the second case the
    wrong sign.
    """
    quotient = t.op("fdiv", a, b)
    most = t.constant(2.0 ** (_FORMATS[t.kind].mantissa - 1))
    small = t.compare("olt", t.intrinsic("fabs", quotient), most)
    size = t.intrinsic("fabs", b)
    near = t.of("i1").op("and", small, t.compare("olt", size, t.constant(math.inf)))
    rest = t.intrinsic("fma", t.op("fneg", t.intrinsic("trunc", quotient)), b, a)
    bits = _bits_of(t)
    signs = bits.op("xor", *(t.convert("bitcast", x, bits.kind) for x in (rest, a)))
    opposite = bits.compare("slt", signs, bits.constant(0))
    wrong = t.of("i1").op("and", opposite, t.compare("one", rest, t.constant(0.0)))
    back = t.op("fadd", rest, t.intrinsic("copysign", size, a))
    return near, t.intrinsic("copysign", t.select(wrong, back, rest), a)


def _per_lane(t: Lanes, function: str, operands: Sequence[str]) -> str:
    """A call of a scalar function for each lane."""
    code = t.code

    def called(arguments: Sequence[str]) -> str:
        text = ", ".join(f"{t.kind} {argument}" for argument in arguments)
        return code.value(f"call {t.kind} @{function}({text})")

    if t.lanes == 1:
        return called(operands)
    result = "poison"
    for lane in range(t.lanes):
        picked = [code.value(f"extractelement {t.type} {x}, i64 {lane}") for x in operands]
        one = called(picked)
        result = code.value(f"insertelement {t.type} {result}, {t.kind} {one}, i64 {lane}")
    return result


@final
@dataclass(frozen=True)
class _Format:
    """A float's kind in LLVM IR, the kind of an integer of its size, and the sizes of its
    fields.
    """

    kind: str
    whole: str
    mantissa: int
    exponent: int

    @property
    def hidden(self) -> int:
        """The bit above the mantissa, which normal floats do not store."""
        return 1 << self.mantissa

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def sign(self) -> str:
        return literal(self.whole, 1, 1 << (self.mantissa + self.exponent))


_FORMATS: Final = {
    "float": _Format("float", "i32", 23, 8),
    "double": _Format("double", "i64", 52, 11),
}


def _remainder_function(kind: str) -> str:
    """fmod of two floats, exactly: a long division in integers, one bit of the quotient a turn."""
    f = _FORMATS[kind]
    return f"""define internal {kind} @ferrule.fmod.{kind}({kind} %a, {kind} %b) #0 {{
{_remainder_of_few(f)}
{_remainder_operands(f)}
{_remainder_division(f)}
{_remainder_scaled(f)}
{_remainder_packed(f)}
}}"""


def _remainder_of_few(f: _Format) -> str:
    """The special cases: infinities, NaN, a divisor of zero, and `|a| < |b|`, which is the result.

    A float's bits are ordered as its magnitude, so comparisons of integers find all of them.
    """
    return f"""entry:
  %a.bits = bitcast {f.kind} %a to {f.whole}
  %b.bits = bitcast {f.kind} %b to {f.whole}
  %sign = and {f.whole} %a.bits, {f.sign}
  %x = xor {f.whole} %a.bits, %sign
  %y = and {f.whole} %b.bits, {f.infinity | (f.hidden - 1)}
  %x.wrong = icmp uge {f.whole} %x, {f.infinity}
  %y.nan = icmp ugt {f.whole} %y, {f.infinity}
  %y.zero = icmp eq {f.whole} %y, 0
  %wrong.1 = or i1 %x.wrong, %y.nan
  %wrong = or i1 %wrong.1, %y.zero
  br i1 %wrong, label %invalid, label %valid
invalid:
  %product = fmul {f.kind} %a, %b
  %nan = fdiv {f.kind} %product, %product
  ret {f.kind} %nan
valid:
  %smaller = icmp ult {f.whole} %x, %y
  br i1 %smaller, label %same, label %prepare
same:
  ret {f.kind} %a"""


def _remainder_operands(f: _Format) -> str:
    """Both magnitudes as integers times powers of two.

    The divisor is normalised, so that one subtraction reduces.
    """
    return f"""prepare:
  %x.field = lshr {f.whole} %x, {f.mantissa}
  %y.field = lshr {f.whole} %y, {f.mantissa}
  %x.subnormal = icmp eq {f.whole} %x.field, 0
  %y.subnormal = icmp eq {f.whole} %y.field, 0
  %x.exponent = select i1 %x.subnormal, {f.whole} 1, {f.whole} %x.field
  %y.unit = select i1 %y.subnormal, {f.whole} 1, {f.whole} %y.field
  %x.fraction = and {f.whole} %x, {f.hidden - 1}
  %y.fraction = and {f.whole} %y, {f.hidden - 1}
  %x.normal = or {f.whole} %x.fraction, {f.hidden}
  %y.normal = or {f.whole} %y.fraction, {f.hidden}
  %x.whole = select i1 %x.subnormal, {f.whole} %x.fraction, {f.whole} %x.normal
  %y.some = select i1 %y.subnormal, {f.whole} %y.fraction, {f.whole} %y.normal
  %y.zeros = call {f.whole} @llvm.ctlz.{f.whole}({f.whole} %y.some, i1 true)
  %y.shift = sub {f.whole} %y.zeros, {f.exponent}
  %y.whole = shl {f.whole} %y.some, %y.shift
  %y.exponent = sub {f.whole} %y.unit, %y.shift
  br label %divide"""


def _remainder_division(f: _Format) -> str:
    """The loop over the bits of the quotient: exponents go down to that of the divisor."""
    return f"""divide:
  %rest = phi {f.whole} [ %x.whole, %prepare ], [ %doubled, %next ]
  %exponent = phi {f.whole} [ %x.exponent, %prepare ], [ %lower, %next ]
  %less = sub {f.whole} %rest, %y.whole
  %fits = icmp uge {f.whole} %rest, %y.whole
  %reduced = select i1 %fits, {f.whole} %less, {f.whole} %rest
  %more = icmp sgt {f.whole} %exponent, %y.exponent
  br i1 %more, label %next, label %normalise
next:
  %doubled = shl {f.whole} %reduced, 1
  %lower = sub {f.whole} %exponent, 1
  br label %divide"""


def _remainder_scaled(f: _Format) -> str:
    """The loop that shifts the rest up to the hidden bit, as far as the exponent has room."""
    return f"""normalise:
  %value = phi {f.whole} [ %reduced, %divide ], [ %twice, %raise ]
  %field = phi {f.whole} [ %y.exponent, %divide ], [ %down, %raise ]
  %low = icmp ult {f.whole} %value, {f.hidden}
  %room = icmp sgt {f.whole} %field, 1
  %nonzero = icmp ne {f.whole} %value, 0
  %raise.1 = and i1 %low, %room
  %raises = and i1 %raise.1, %nonzero
  br i1 %raises, label %raise, label %finish
raise:
  %twice = shl {f.whole} %value, 1
  %down = sub {f.whole} %field, 1
  br label %normalise"""


def _remainder_packed(f: _Format) -> str:
    """The float from that integer and its exponent, with the dividend's sign."""
    return f"""finish:
  %below = icmp slt {f.whole} %field, 1
  %missing = sub {f.whole} 1, %field
  %drop = select i1 %below, {f.whole} %missing, {f.whole} 0
  %final = lshr {f.whole} %value, %drop
  %biased = select i1 %below, {f.whole} 1, {f.whole} %field
  %subnormal = icmp ult {f.whole} %final, {f.hidden}
  %placed = shl {f.whole} %biased, {f.mantissa}
  %base = sub {f.whole} %placed, {f.hidden}
  %packed = add {f.whole} %base, %final
  %magnitude = select i1 %subnormal, {f.whole} %final, {f.whole} %packed
  %result = or {f.whole} %magnitude, %sign
  %out = bitcast {f.whole} %result to {f.kind}
  ret {f.kind} %out"""


# -- float16 ---------------------------------------------------------------------------------------


def half_to_float(bits: Lanes, x: str) -> str:
    """float32 from the bits of float16, i16."""
    whole, real = bits.of("i32"), bits.of("float")
    wide = bits.convert("zext", x, "i32")
    magnitude = whole.op("and", wide, whole.constant(0x7FFF))
    shifted = whole.op("shl", magnitude, whole.constant(13))
    # The exponent's bias differs by 112; a multiplication corrects subnormals too.
    scaled = real.op("fmul", whole.convert("bitcast", shifted, "float"), real.constant(2.0**112))
    special = whole.compare("uge", magnitude, whole.constant(0x7C00))
    all_ones = whole.op("or", shifted, whole.constant(0x7F800000))
    finite = real.convert("bitcast", scaled, "i32")
    sign = whole.op("shl", whole.op("and", wide, whole.constant(0x8000)), whole.constant(16))
    result = whole.op("or", whole.select(special, all_ones, finite), sign)
    return whole.convert("bitcast", result, "float")


def float_to_half(real: Lanes, x: str) -> str:
    """The bits of float16, i16, nearest to a float32; ties to even."""
    whole = real.of("i32")
    bits = real.convert("bitcast", x, "i32")
    magnitude = whole.op("and", bits, whole.constant(0x7FFFFFFF))
    last = whole.op("and", whole.op("lshr", magnitude, whole.constant(13)), whole.constant(1))
    # 112 is the difference of the biases; 0xFFF and the last bit round to even.
    biased = whole.op("add", whole.op("add", magnitude, last), whole.constant(0xFFF - (112 << 23)))
    normal = whole.op("lshr", biased, whole.constant(13))
    # 0.5 has float16's smallest subnormal as its unit: adding it rounds, and leaves the bits.
    size = whole.convert("bitcast", magnitude, "float")
    placed = real.convert("bitcast", real.op("fadd", size, real.constant(0.5)), "i32")
    subnormal = whole.op("sub", placed, whole.constant(0x3F000000))
    is_small = whole.compare("ult", magnitude, whole.constant(0x38800000))
    result = whole.select(is_small, subnormal, normal)
    is_large = whole.compare("uge", magnitude, whole.constant(0x47800000))
    result = whole.select(is_large, whole.constant(0x7C00), result)
    is_nan = whole.compare("ugt", magnitude, whole.constant(0x7F800000))
    result = whole.select(is_nan, whole.constant(0x7E00), result)
    sign = whole.op("and", whole.op("lshr", bits, whole.constant(16)), whole.constant(0x8000))
    return whole.convert("trunc", whole.op("or", result, sign), "i16")
