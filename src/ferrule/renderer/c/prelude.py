"""Functions that come with a kernel in C: operations that C lacks, or defines differently.

Each is a record, and a file has only those that its kernel calls, in the order of their needs. All
are plain C. If a dialect has an instruction for one, that is used if the compiler knows it, and the
plain version stands beside it for others.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.renderer.c.dialect import Dialect, type_of
from ferrule.renderer.float8 import FORMATS

SHIM = "defined(FERRULE_SHIM)"  # in the tests, which define functions with CUDA's names
_UNSIGNED_BITS = {"float": "u32", "double": "u64"}


@final
@dataclass(frozen=True)
class Helper:
    """A function: `parameters` with their types, `body` the statements."""

    name: str
    result: str
    parameters: str
    body: str
    needs: tuple[Helper, ...] = ()


@final
class Prelude:
    """The text of a file before its kernel."""

    def __init__(self, dialect: Dialect, vector_bytes: int = 16) -> None:
        self.dialect = dialect
        self.vector_bytes = vector_bytes
        """The bytes of the processor's vectors."""
        self.parts: dict[str, str] = {}
        self.shuffles: dict[tuple[str, tuple[int, ...], int], int] = {}
        """The numbers of the orders of lanes that functions give."""

    def text(self) -> str:
        return "\n\n".join(self.parts.values())

    def call(self, helper: Helper, *operands: str) -> str:
        """A call of a helper, which the file then has."""
        self._add(helper)
        return f"{helper.name}({', '.join(operands)})"

    def function(self, name: str, kind: str) -> str:
        """The name of one of the language's own functions, of float or double."""
        name = self.dialect.functions.get(name, name)
        return name + (self.dialect.float_suffix if kind == "float" else "")

    def vector(self, kind: str, lanes: int) -> str:
        """A struct of adjacent elements, which one instruction moves; one alone needs none."""
        if lanes == 1:
            return kind
        name = f"{kind}_x{lanes}"
        size = lanes * _size(kind)
        self.parts.setdefault("aligned", _aligned(self.dialect))
        self.parts.setdefault(
            name, f"typedef struct ALIGNED({size}) {{ {kind} lane[{lanes}]; }} {name};"
        )
        return name

    def _add(self, helper: Helper) -> None:
        if helper.name in self.parts:
            return
        for needed in helper.needs:
            self._add(needed)
        body = helper.body
        instruction = self.dialect.instructions.get(helper.name)
        if instruction is not None:
            body = either(self.dialect.instructions_if, instruction, otherwise=body)
        head = f"{self.dialect.function}{helper.result} {helper.name}({helper.parameters})"
        self.parts[helper.name] = f"{head} {{\n{_indented(body)}\n}}"


def struct(values: Iterable[str]) -> str:
    """The initial value of a struct of adjacent elements."""
    return f"{{{{{', '.join(values)}}}}}"


def lanes_of(name: str, lanes: int) -> list[str]:
    """The lanes of a struct of adjacent elements."""
    return [f"{name}.lane[{lane}]" for lane in range(lanes)]


def either(condition: str, text: str, in_tests: str = "", otherwise: str = "") -> str:
    """A text for compilers that meet a condition, and those for others."""
    parts = [f"#if {condition}", text]
    if in_tests:
        parts += [f"#elif {SHIM}", in_tests]
    if otherwise:
        parts += ["#else", otherwise]
    return "\n".join([*parts, "#endif"])


def _indented(body: str) -> str:
    return textwrap.indent(body, "  ", lambda line: not line.startswith("#"))


def _size(kind: str) -> int:
    return {"float": 4, "double": 8}.get(kind) or int(kind[1:]) // 8


def _aligned(dialect: Dialect) -> str:
    return (
        "#ifdef FERRULE_UNALIGNED\n#define ALIGNED(size)\n#else\n"
        f"#define ALIGNED(size) {dialect.aligned.format(bytes='size').strip()}\n#endif"
    )


# -- bits ------------------------------------------------------------------------------------------


def bits_of(kind: str) -> Helper:
    """The bits of a float or a double."""
    whole = _UNSIGNED_BITS[kind]
    return _same_bits(f"bits_of_{kind}", kind, whole)


def of_bits(kind: str) -> Helper:
    """The float or double that has these bits."""
    return _same_bits(f"{kind}_of_bits", _UNSIGNED_BITS[kind], kind)


def _same_bits(name: str, source: str, target: str) -> Helper:
    body = f"union {{ {source} x; {target} y; }} same;\nsame.x = x;\nreturn same.y;"
    return Helper(name, target, f"{source} x", body)


# -- integers and comparison -----------------------------------------------------------------------


def _of_two(name: str, kind: str, *lines: str) -> Helper:
    return Helper(f"{name}_{kind}", kind, f"{kind} a, {kind} b", "\n".join(lines))


def maximum(kind: str) -> Helper:
    """The maximum: NaN if either is, and the first of two equal ones."""
    return _extremum("max", kind, "a < b")


def minimum(kind: str) -> Helper:
    return _extremum("min", kind, "b < a")


def _extremum(name: str, kind: str, better: str) -> Helper:
    chosen = f"{better} || b != b" if kind in _UNSIGNED_BITS else better
    return _of_two(name, kind, f"return {chosen} ? b : a;")


def floor_divide(kind: str) -> Helper:
    """The quotient rounded down; the divisor is positive."""
    return _of_two("floor_divide", kind, "return a / b - (a % b < 0);")


def floor_remainder(kind: str) -> Helper:
    """The remainder of floor division; the divisor is positive."""
    return _of_two("floor_remainder", kind, "return a % b < 0 ? a % b + b : a % b;")


def divide(kind: str) -> Helper:
    """The quotient towards zero; x / 0 = 0, and the one quotient that does not fit wraps."""
    whole = f"u{max(int(kind[1:]), 32)}"
    wraps = f"if (b == -1) return ({kind})(0u - ({whole})a);"
    return _truncated("divide", kind, "if (b == 0) return 0;", wraps, "return a / b;")


def remainder(kind: str) -> Helper:
    """The remainder with the sign of a; x % 0 = x."""
    fits = "if (b == -1) return 0;"
    return _truncated("remainder", kind, "if (b == 0) return a;", fits, "return a % b;")


def _truncated(name: str, kind: str, zero: str, minus_one: str, other: str) -> Helper:
    special = [zero, minus_one] if kind.startswith("i") else [zero]
    return _of_two(name, kind, *special, other)


COUNT_BITS = Helper(
    "count_bits",
    "u32",
    "u32 x",
    """// In pairs of bits, in fours, in bytes, and all bytes in the highest.
const u32 pairs = x - (x >> 1 & 0x55555555u);
const u32 fours = (pairs & 0x33333333u) + (pairs >> 2 & 0x33333333u);
return ((fours + (fours >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;""",
)


# -- narrow floats ---------------------------------------------------------------------------------

_BITS = bits_of("float")
_FLOAT = of_bits("float")
_SIZE = "const u32 bits = bits_of_float(x);\nconst u32 size = bits & 0x7FFFFFFFu;\n"

FLOAT_OF_HALF = Helper(
    "float_of_f16",
    "float",
    "u16 x",
    """const u32 size = x & 0x7FFFu;
// The exponent's bias differs by 112; a multiplication corrects subnormals too.
const u32 finite = bits_of_float(float_of_bits(size << 13) * 0x1p+112f);
const u32 number = size >= 0x7C00u ? size << 13 | 0x7F800000u : finite;
return float_of_bits(number | (x & 0x8000u) << 16);""",
    (_BITS, _FLOAT),
)
HALF_OF_FLOAT = Helper(
    "f16_of_float",
    "u16",
    "float x",
    _SIZE
    + """const u32 sign = bits >> 16 & 0x8000u;
if (size > 0x7F800000u) return (u16)(sign | 0x7E00u);
if (size >= 0x47800000u) return (u16)(sign | 0x7C00u);
if (size < 0x38800000u) {
  // 0.5 has the smallest subnormal as its unit: adding it rounds, and leaves the bits.
  return (u16)(sign | (bits_of_float(float_of_bits(size) + 0.5f) - 0x3F000000u));
}
return (u16)(sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13);""",
    (_BITS, _FLOAT),
)
FLOAT_OF_BFLOAT16 = Helper(
    "float_of_bf16", "float", "u16 x", "return float_of_bits((u32)x << 16);", (_FLOAT,)
)
BFLOAT16_OF_FLOAT = Helper(
    "bf16_of_float",
    "u16",
    "float x",
    """const u32 bits = bits_of_float(x);
if (x != x) return (u16)(bits >> 16 | 0x40u);
// Just under a half, or a half where the last bit kept is odd: ties go to even.
return (u16)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);""",
    (_BITS,),
)
TF32_OF_FLOAT = Helper(
    "tf32_of_float",
    "float",
    "float x",
    """// 10 bits of the mantissa are kept, and half of the last one is rounded up in size.
return x != x ? x : float_of_bits((bits_of_float(x) + 0x1000u) & 0xFFFFE000u);""",
    (_BITS, _FLOAT),
)
ODD_FLOAT = Helper(
    "odd_float",
    "float",
    "double x",
    """// An inexact result is made odd, so that one more rounding is right.
const float near = (float)x;
const double found = (double)near;
const u32 too_far = fabs(found) > fabs(x);
const u32 inexact = found < x || found > x;
return float_of_bits((bits_of_float(near) - too_far) | inexact);""",
    (_BITS, _FLOAT),
)


def _float_of_float8(dtype: DType) -> Helper:
    """float from a float8: its bits, shifted to their places in a float32, are the number times
    2**(bias - 127).
    """
    f, name = FORMATS[dtype], dtype.name.removeprefix("float8_")
    body = f"""const u32 size = x & 0x7Fu;
const u32 moved = size << {f.shift};
const u32 finite = bits_of_float(float_of_bits(moved) * 0x1p+{127 - f.bias}f);
const u32 number = size > {f.largest:#x}u ? moved | 0x7F800000u : finite;
return float_of_bits(number | (x & 0x80u) << 24);"""
    return Helper(f"float_of_{name}", "float", "u8 x", body, (_BITS, _FLOAT))


def _float8_of_float(dtype: DType) -> Helper:
    """A float8 from float; a subnormal is rounded by adding a number whose last bit is
    their step.
    """
    f, name = FORMATS[dtype], dtype.name.removeprefix("float8_")
    least = (127 - f.bias + 1) << 23
    step = 1 - f.bias - f.fraction + 23
    rounds = f"(size >> {f.shift} & 1u) + {(1 << (f.shift - 1)) - 1:#x}u"
    body = f"""{_SIZE}const u32 sign = bits >> 24 & 0x80u;
const u32 tiny = bits_of_float(float_of_bits(size) + 0x1p{step:+}f) - {(step + 127) << 23:#x}u;
const u32 normal = ((size + {rounds}) >> {f.shift}) - {(127 - f.bias) << f.fraction:#x}u;
const u32 finite = size < {least:#x}u ? tiny : normal;
if (x != x) return (u8)(sign | {f.nan:#x}u);
return (u8)(sign | (finite > {f.largest:#x}u ? {f.overflow:#x}u : finite));"""
    return Helper(f"{name}_of_float", "u8", "float x", body, (_BITS, _FLOAT))


WIDENED = {
    dtypes.float16: FLOAT_OF_HALF,
    dtypes.bfloat16: FLOAT_OF_BFLOAT16,
    **{dtype: _float_of_float8(dtype) for dtype in FORMATS},
}
"""float from the bits of a narrower float."""
NARROWED = {
    dtypes.float16: HALF_OF_FLOAT,
    dtypes.bfloat16: BFLOAT16_OF_FLOAT,
    **{dtype: _float8_of_float(dtype) for dtype in FORMATS},
}
"""The bits of a narrower float nearest to a float; ties to even."""


def _narrowed_pair(one: Helper) -> Helper:
    body = f"return {one.name}(x) | (u32){one.name}(y) << 16;"
    name = one.name.replace("_of_float", "x2_of_floats")
    return Helper(name, "u32", "float x, float y", body, (one,))


PAIRS = {dtype: _narrowed_pair(NARROWED[dtype]) for dtype in (dtypes.float16, dtypes.bfloat16)}
"""The bits of two numbers, the first in the lower half."""


# -- products of packed pairs ----------------------------------------------------------------------

_WITHOUT_SUBNORMALS = Helper(
    "without_subnormals",
    type_of(dtypes.float32),
    "float x",
    """const u32 bits = bits_of_float(x);
return bits & 0x7F800000u ? x : float_of_bits(bits & 0x80000000u);""",
    (_BITS, _FLOAT),
)


def near_exp2(prelude: Prelude) -> Helper:
    """2 to the power of a float, for a normal result; in general the language's own function."""
    exact = prelude.function("exp2", "float")
    return Helper("near_exp2", "float", "float x", f"return {exact}(x);")


def dot(prelude: Prelude, left: str, right: str, total: str) -> Helper:
    """A DOT of operands of some types.

    Two multiply-adds on pairs of bfloat16, the upper halves first; or, in i32, four of bytes, which
    are signed in an i32 and unsigned in a u32.
    """
    if total == "i32":
        products = [
            f"(u32)((i32)({left[0]}8)(a >> {place}) * (i32)({right[0]}8)(b >> {place}))"
            for place in (0, 8, 16, 24)
        ]
        whole = f"return (i32)((u32)c + {' + '.join(products)});"
        return Helper(f"dot_{left}_{right}", "i32", f"{left} a, {right} b, i32 c", whole)
    flush, fused = _WITHOUT_SUBNORMALS.name, prelude.function("fma", "float")
    body = f"""const float upper_a = {flush}(float_of_bits(a & 0xFFFF0000u));
const float upper_b = {flush}(float_of_bits(b & 0xFFFF0000u));
const float lower_a = {flush}(float_of_bits(a << 16));
const float lower_b = {flush}(float_of_bits(b << 16));
const float upper = {flush}({fused}(upper_a, upper_b, {flush}(c)));
return {flush}({fused}(lower_a, lower_b, upper));"""
    return Helper("dot_bf16", "float", "u32 a, u32 b, float c", body, (_WITHOUT_SUBNORMALS,))
