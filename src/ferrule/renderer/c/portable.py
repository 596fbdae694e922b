"""Kernels as standard C11: for any compiler, and to be read.

What is done to a value of several lanes is a function of the file's, such as `add_f32x16`: one
operation on vectors of gcc and clang, and a loop over an array for other compilers (`vectors.py`).
Loops over the lanes in the kernels themselves are up to four times as slow (2026-11): gcc and clang
unroll them before they look for vectors. Nothing else relies on more than C11 says: no aliasing of
types, no signed overflow, no extension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypedDict, final

from ferrule.base.records import dataclass
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import RenderError, dtype_of
from ferrule.renderer.c import prelude as cprelude
from ferrule.renderer.c import vectors
from ferrule.renderer.c.alu import Arithmetic, alu, atom, bare, bitcast, cast
from ferrule.renderer.c.bounds import bounds, range_of, within
from ferrule.renderer.c.dialect import (
    CAN_OVERFLOW,
    C,
    is_special,
    literal,
    memory_type,
    special_bits,
    symbol,
    type_of,
)
from ferrule.renderer.c.inline import Uses
from ferrule.renderer.c.prelude import Prelude

# `fma` is a slow function where a processor lacks the instruction. Clang 14 does not define
# FP_FAST_FMAF.
_FUSED: Final = """/* a * b + c, rounded once if the processor has an instruction for it. */
#if defined(FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define fusedf(a, b, c) fmaf(a, b, c)
#define fused(a, b, c) fma(a, b, c)
#else
#define fusedf(a, b, c) ((a) * (b) + (c))
#define fused(a, b, c) ((a) * (b) + (c))
#endif"""

PORTABLE: Final = replace(
    C,
    name="C11",
    header=(
        "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n"
        "typedef int8_t i8;\ntypedef int16_t i16;\ntypedef int32_t i32;\ntypedef int64_t i64;\n"
        "typedef uint8_t u8;\ntypedef uint16_t u16;\ntypedef uint32_t u32;\ntypedef uint64_t u64;"
        f"\n\n{_FUSED}\n\n{vectors.HEADER}"
    ),
    flags=("-std=c11", "-O3", "-ffp-contract=off"),
    function="INLINE ",
    aligned="_Alignas({bytes}) ",
    functions={"fma": "fused"},
)
"""C11, with the header that all kernels of a file share."""

_ALIGNMENT: Final = 64  # bytes; scratch arrays begin at lines of the cache


@final
@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel's function: the buffer or the variable of a slot of its program."""

    slot: int
    dtype: DType
    is_buffer: bool
    is_written: bool

    @property
    def name(self) -> str:
        return f"data{self.slot}" if self.is_buffer else f"value{self.slot}"

    def declaration(self, restrict: bool) -> str:
        """Its declaration; `restrict` says that no other buffer overlaps it."""
        if not self.is_buffer:
            return f"i64 {self.name}"
        const = "" if self.is_written else "const "
        return f"{const}{memory_type(self.dtype)} *{'restrict ' * restrict}{self.name}"


@final
@dataclass(frozen=True)
class KernelFunction:
    """A kernel as a function of C. `text` lacks the head, which depends on the calls."""

    name: str
    parameters: tuple[Parameter, ...]
    lines: tuple[str, ...]

    def text(self, restrict: bool) -> str:
        """The definition; `restrict` says that the buffers of no call overlap."""
        parameters = ", ".join(p.declaration(restrict) for p in self.parameters) or "void"
        head = f"static void {self.name}({parameters}) {{"
        return "\n".join([head, *self.lines, "}"])


def kernel_function(name: str, uops: Sequence[UOp], prelude: Prelude) -> KernelFunction:
    """The function of a kernel, of which one thread does all chunks.

    The helpers that it calls go to `prelude`, which all kernels of a file share.

    Raises:
        RenderError: an operation that C has not, or one of several threads.
    """
    (extent,) = (u for u in uops if u.op is UOps.EXTENT)
    # Values without a use are left out, so the number of chunks needs one.
    counted = UOp(UOps.SET, src=(extent.src[0], extent.src[0]))
    body = [counted if u is extent else u for u in uops]
    function = _FunctionText(prelude, body, extent.src[0])
    written = {u.src[0] for u in uops if u.op is UOps.STORE}
    slots = {u: u for u in uops if u.op in (UOps.PARAM, UOps.VALUE) and function.uses.users[u]}
    parameters = [
        Parameter(u.arg, dtype_of(u), u.op is UOps.PARAM, u in written)
        for u in sorted(slots, key=lambda u: u.arg)
    ]
    for u, parameter in zip(sorted(slots, key=lambda u: u.arg), parameters, strict=True):
        function.values[u] = parameter.name
    for u in body:
        if u is not counted:
            function.add(u)
    return KernelFunction(symbol(name), tuple(parameters), tuple(function.text()))


_UNIFORM: Final = (UOps.CONST, UOps.SPLAT)  # the same in all lanes
_MASK: Final = {UOps.LOAD: 2, UOps.STORE: 3}


def _operands(u: UOp) -> Sequence[UOp]:
    """The values that the text of a UOp contains."""
    place = _MASK.get(u.op, len(u.src))
    if place >= len(u.src) or u.src[place].lanes == 1:
        return u.src
    mask = u.src[place]
    terms = [mask] if mask.op in _UNIFORM else _first_lanes(u)
    return u.src if terms is None else [*u.src[:place], *chain(*(term.src for term in terms))]


def _first_lanes(u: UOp) -> list[UOp] | None:
    """Of a LOAD or STORE of a number of first lanes: a bound, and what to take off for the number.

    In the mask of such, a lane's number, plus values that are the same in all lanes, is below one.
    """
    pointer, index, *_ = u.src
    mask = u.src[_MASK[u.op]]
    is_copied = index.lanes == 1 and pointer.dtype is not dtypes.bool
    if not is_copied or mask.op is not UOps.ALU or mask.arg is not ExprOp.CMPLT:
        return None
    number, terms = mask.src[0], [mask.src[1]]
    while number.op is not UOps.IOTA:
        if number.op is UOps.CAST:
            (number,) = number.src
        elif number.op is UOps.ALU and number.arg is ExprOp.ADD:
            left, right = number.src
            number, term = (right, left) if left.op in _UNIFORM else (left, right)
            terms.append(term)
        else:
            return None
    return terms if all(term.op in _UNIFORM for term in terms) else None


class _Lanes(TypedDict, total=False):
    """Which lanes of an access there are; see `vectors.load`."""

    index: tuple[DType, str]
    mask: str
    count: str


@final
class _FunctionText:
    """The lines of a function so far; `add` renders one more UOp."""

    def __init__(self, prelude: Prelude, uops: Sequence[UOp], chunks: UOp) -> None:
        self.prelude = prelude
        self.chunks = chunks
        self.uses = Uses(uops, _operands)
        self.bounds = bounds(uops, has_blocks=False)
        self.read = {u.src[0] for u in uops if u.op is UOps.GET and u in self.uses.live}
        self.top: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[UOp, str] = {}
        self.count = 0

    # -- text --------------------------------------------------------------------------------------

    def text(self) -> list[str]:
        return ["  " + line for line in self.top] + self.lines

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def operand(self, u: UOp) -> str:
        return self.value(u.src[0])

    def define(self, u: UOp, value: str, prefix: str = "t", how: str = "const ") -> str:
        """A variable for a value; its name."""
        kind = type_of(dtype_of(u))
        if u.lanes > 1:
            kind = vectors.vector_type(self.prelude, dtype_of(u), u.lanes)
        name = self.new(prefix)
        self.emit(f"{how}{kind} {name} = {bare(value)};")
        return name

    def register(self, u: UOp) -> str:
        """A variable for a register; compilers warn of one that is never read."""
        name = self.define(u, self.operand(u), "acc", "")
        if u not in self.read:
            self.emit(f"(void){name};")
        return name

    def expression(self, u: UOp, value: str) -> str:
        """The value, if it needs no variable, or the variable."""
        return atom(value) if u in self.uses.unnamed else self.define(u, value)

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp, if anything depends on it."""
        if u not in self.uses.live:
            return
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.SET:
                register, value = map(self.value, u.src)
                self.emit(f"{register} = {bare(value)};")
            case UOps.IF:
                self.open(f"if ({bare(self.operand(u))}) {{")
            case UOps.END | UOps.ENDIF:
                self.depth -= 1
                self.emit("}")
            case UOps.LOCAL:
                self.array(u)
            case UOps.PARAM | UOps.VALUE:
                pass  # named by the function's head
            case _ if u.op in _VALUES:
                self.values[u] = _VALUES[u.op](self, u)
            case _:
                raise RenderError(
                    f"{u.op.name}: a function in C has one thread and no such instruction; "
                    "schedule the kernel for a target without it"
                )

    def expression_of(self, u: UOp) -> str:
        return self.expression(u, self.alu(u) if u.op is UOps.ALU else self.operand(u))

    def constant(self, dtype: DType, value: float) -> str:
        if is_special(dtype, value):
            return self.prelude.call(cprelude.of_bits(type_of(dtype)), special_bits(dtype, value))
        return literal(dtype, value)

    # -- lanes -------------------------------------------------------------------------------------

    def lane(self, u: UOp, number: int) -> str:
        """One lane of a value."""
        if u.op in _UNIFORM or u.lanes == 1:
            return self.scalar(u) if u.op in _UNIFORM else self.values[u]
        return vectors.lane(self.prelude, dtype_of(u), u.lanes, self.values[u], number)

    def scalar(self, u: UOp) -> str:
        """What is in all lanes of a value."""
        return self.constant(dtype_of(u), u.arg) if u.op is UOps.CONST else self.values[u.src[0]]

    def value(self, u: UOp) -> str:
        """The text of a value; of one that is the same in all lanes, a call that repeats it."""
        if u.op is UOps.IOTA and u.lanes > 1:
            return vectors.numbers(self.prelude, dtype_of(u), u.lanes)
        if u.op not in _UNIFORM or u.lanes == 1:
            return self.values[u]
        return vectors.splat(self.prelude, dtype_of(u), u.lanes, self.scalar(u))

    def shuffle(self, u: UOp) -> str:
        """Chosen lanes."""
        source, operands = u.src[0], [self.value(s) for s in u.src]
        if u.lanes == 1:
            number, place = divmod(u.arg[0], source.lanes)
            return self.define(u, self.lane(u.src[number], place))
        if source.lanes == 1:
            values = [operands[number] for number in u.arg]
            return self.define(u, vectors.listed(self.prelude, dtype_of(u), values))
        text = vectors.shuffled(self.prelude, dtype_of(u), source.lanes, u.arg, operands)
        return self.define(u, text)

    def halve(self, u: UOp) -> str:
        """Combine the lower half of the lanes with the upper until one is left."""
        dtype, lanes, value = dtype_of(u), u.src[0].lanes, self.operand(u)
        t = Arithmetic(self.prelude, dtype, type_of(dtype))
        while lanes > 2:
            half = lanes // 2
            orders = range(half), range(half, lanes)
            parts = [vectors.shuffled(self.prelude, dtype, lanes, o, [value]) for o in orders]
            lanes = half
            text = vectors.operation(t, u.arg, lanes, [dtype, dtype], dtype, parts)
            value = self.define(UOp(UOps.ALU, dtype, lanes), text)
        if lanes == 1:
            return value
        pair = [vectors.lane(self.prelude, dtype, lanes, value, number) for number in range(2)]
        return self.define(u, alu(u.arg, t, pair))

    # -- arithmetic --------------------------------------------------------------------------------

    def alu(self, u: UOp) -> str:
        if u.arg is ExprOp.DOT and u.lanes == 1:
            helper = cprelude.dot(self.prelude, *(type_of(dtype_of(s)) for s in u.src))
            return self.prelude.call(helper, *map(self.value, u.src))
        computed = u.src[1:] if u.arg is ExprOp.WHERE else u.src
        dtype = dtype_of(computed[0])
        known = u.arg in CAN_OVERFLOW and u in self.bounds
        t = Arithmetic(
            self.prelude,
            dtype,
            type_of(dtype),
            is_exact=known and within(self.bounds[u], range_of(dtype)),
            not_negative=self.bounds.get(computed[0], range_of(dtype))[0] >= 0,
        )
        if u.lanes == 1:
            return alu(u.arg, t, [self.value(s) for s in u.src])
        by_constant = u.arg in vectors.BY_CONSTANT and u.src[1].op is UOps.CONST
        constant = self.scalar(u.src[1]) if by_constant else None
        operands = [self.value(s) for s in u.src[: 1 if by_constant else None]]
        kinds = [dtype_of(s) for s in u.src]
        return vectors.operation(t, u.arg, u.lanes, kinds, dtype_of(u), operands, constant)

    def cast(self, u: UOp) -> str:
        (x,) = u.src
        source, target = dtype_of(x), dtype_of(u)
        if u.lanes == 1:
            return self.expression(u, cast(self.prelude, source, target, self.value(x)))
        if x.op is UOps.IOTA and not dtypes.is_float(target):
            text = vectors.numbers(self.prelude, target, u.lanes)
        else:
            text = vectors.converted(self.prelude, source, target, u.lanes, self.value(x))
        return self.expression(u, text)

    def bitcast(self, u: UOp) -> str:
        (x,) = u.src
        source, target = dtype_of(x), dtype_of(u)
        if x.lanes == u.lanes > 1 and dtypes.bool not in (source, target):
            text = vectors.same_bits(self.prelude, source, target, u.lanes, self.operand(u))
            return self.define(u, text)
        lanes = [self.lane(x, number) for number in range(x.lanes)]
        values = bitcast(self.prelude, source, target, lanes)
        if u.lanes == 1:
            return self.define(u, values[0])
        return self.define(u, vectors.listed(self.prelude, target, values))

    # -- memory ------------------------------------------------------------------------------------

    def array(self, u: UOp) -> None:
        """Declare an array at the top of the function."""
        name, size = u.arg
        self.values[u] = pointer = self.new(f"{symbol(name)}_")
        aligned = PORTABLE.aligned.format(bytes=_ALIGNMENT)
        self.top.append(f"{aligned}{memory_type(dtype_of(u))} {pointer}[{size}];")

    def load(self, u: UOp) -> str:
        pointer, index, *mask = u.src
        dtype = dtype_of(u)
        zero = self.constant(dtype, 0)
        if u.lanes == 1:
            value = f"{self.values[pointer]}[{bare(self.values[index])}]"
            value = f"{value} != 0" if dtype is dtypes.bool else value
            is_masked = mask and self.values[mask[0]] != "true"
            return self.define(
                u, f"{self.values[mask[0]]} ? {value} : {zero}" if is_masked else value
            )
        condition, place, options = self.access(u, pointer, index, mask)
        value = vectors.load(self.prelude, dtype, u.lanes, place, **options)
        if condition is not None:
            value = f"{condition} ? {value} : {vectors.splat(self.prelude, dtype, u.lanes, zero)}"
        return self.define(u, value)

    def store(self, u: UOp) -> None:
        pointer, index, value, *mask = u.src
        text = bare(self.value(value))
        if value.lanes == 1:
            guard = f"if ({bare(self.values[mask[0]])}) " if mask else ""
            self.emit(f"{guard}{self.values[pointer]}[{bare(self.values[index])}] = {text};")
            return
        condition, place, options = self.access(u, pointer, index, mask)
        call = vectors.store(self.prelude, dtype_of(value), value.lanes, place, text, **options)
        self.emit(f"if ({bare(condition)}) {call};" if condition is not None else f"{call};")

    def access(
        self, u: UOp, pointer: UOp, index: UOp, masks: Sequence[UOp]
    ) -> tuple[str | None, str, _Lanes]:
        """Of an access of several lanes: the condition of all, the place, and which lanes."""
        condition: str | None = None
        options = _Lanes()
        place = self.values[pointer]
        if index.lanes > 1:
            options["index"] = dtype_of(index), self.value(index)
        elif self.values[index] != "0":
            place = f"{place} + {self.values[index]}"
        for mask in masks:
            if mask.op in _UNIFORM:
                text = self.scalar(mask)
                condition = text if text != "true" else None
                continue
            terms = _first_lanes(u)
            if terms is None:
                options["mask"] = self.values[mask]
            else:
                options["count"] = " - ".join([f"(i64){self.scalar(term)}" for term in terms])
        return condition, place, options

    # -- control -----------------------------------------------------------------------------------

    def open(self, line: str) -> None:
        self.emit(line)
        self.depth += 1

    def open_loop(self, u: UOp) -> str:
        first, limit, step = (self.values[s] for s in u.src)
        name = symbol(str(u.arg))
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.open(f"for (i64 {name} = {bare(first)}; {name} < {limit}; {advance}) {{")
        return name


_VALUES: Final[dict[UOps, Callable[[_FunctionText, UOp], str]]] = {
    UOps.START: lambda function, u: "0",
    UOps.STOP: lambda function, u: function.values[function.chunks],
    UOps.LOOP: _FunctionText.open_loop,
    UOps.CONST: _FunctionText.scalar,
    UOps.IOTA: lambda function, u: "0",
    UOps.ALU: _FunctionText.expression_of,
    UOps.CAST: _FunctionText.cast,
    UOps.BITCAST: _FunctionText.bitcast,
    UOps.SPLAT: _FunctionText.scalar,
    UOps.EXTRACT: lambda function, u: function.lane(u.src[0], u.arg),
    UOps.SHUFFLE: _FunctionText.shuffle,
    UOps.HREDUCE: _FunctionText.halve,
    UOps.REG: _FunctionText.register,
    UOps.GET: _FunctionText.expression_of,
    UOps.LOAD: _FunctionText.load,
}
"""The text of each UOp that has a value."""
