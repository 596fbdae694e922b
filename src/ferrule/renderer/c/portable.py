"""Kernels as standard C11: for any compiler, and to be read.

A value of several lanes is a short array, and what is done to it a loop over its lanes, which gcc
and clang turn into vector instructions of any processor: at the speed of their own vector types, or
faster (2026-11). Nothing relies on more than C11 says: no aliasing of types, no signed overflow, no
extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import RenderError, dtype_of
from ferrule.renderer.c import prelude as cprelude
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
        "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n\n"
        "typedef int8_t i8;\ntypedef int16_t i16;\ntypedef int32_t i32;\ntypedef int64_t i64;\n"
        "typedef uint8_t u8;\ntypedef uint16_t u16;\ntypedef uint32_t u32;\ntypedef uint64_t u64;"
        f"\n\n{_FUSED}"
    ),
    flags=("-std=c11", "-O3", "-ffp-contract=off"),
    aligned="_Alignas({bytes}) ",
    functions={"fma": "fused"},
)
"""C11, with the header that all kernels of a file share."""

_LANE: Final = re.compile(r"\blane\b")
_OF_MEMORY: Final = re.compile(r"\[|\bacc")
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
    function = _LaneFunction(prelude, body, extent.src[0])
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


def _is_of_lane_number(u: UOp, value: str) -> bool:
    """True if each lane is known from its number and from variables that do not change.

    Such masks and indices need no array: a compiler that sees the comparison takes an access with a
    mask for one of its first lanes.
    """
    return u.lanes > 1 and not dtypes.is_float(dtype_of(u)) and not _OF_MEMORY.search(value)


@final
class _LaneFunction:
    """The lines of a function so far; `add` renders one more UOp.

    The text of a value of several lanes is one of `lane`, the variable of the loop around it.
    """

    def __init__(self, prelude: Prelude, uops: Sequence[UOp], chunks: UOp) -> None:
        self.prelude = prelude
        self.chunks = chunks
        self.uses = Uses(uops)
        self.bounds = bounds(uops, has_blocks=False)
        self.top: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[UOp, str] = {}
        self.count = 0

    # -- text --------------------------------------------------------------------------------------

    def text(self) -> list[str]:
        return ["  " + line for line in self.top] + self.lines

    def emit(self, line: str, lanes: int = 1) -> None:
        """A statement, for each lane."""
        loop = f"for (i64 lane = 0; lane < {lanes}; lane++) " if lanes > 1 else ""
        self.lines.append("  " * self.depth + loop + line)

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def operand(self, u: UOp) -> str:
        return self.values[u.src[0]]

    def define(self, u: UOp, value: str, prefix: str = "t", how: str = "const ") -> str:
        """A variable for a value, an array for several lanes; its text."""
        return self.variable(type_of(dtype_of(u)), u.lanes, value, prefix, how)

    def variable(self, kind: str, lanes: int, value: str, prefix: str, how: str = "const ") -> str:
        name = self.new(prefix)
        if lanes == 1:
            self.emit(f"{how}{kind} {name} = {bare(value)};")
            return name
        self.emit(f"{kind} {name}[{lanes}];")
        self.emit(f"{name}[lane] = {bare(value)};", lanes)
        return f"{name}[lane]"

    def listed(self, u: UOp, values: Sequence[str]) -> str:
        """An array of given lanes; its text."""
        kind = type_of(dtype_of(u))
        if u.lanes == 1:
            return self.variable(kind, 1, values[0], "t")
        name = self.new("t")
        self.emit(f"const {kind} {name}[{u.lanes}] = {{{', '.join(map(bare, values))}}};")
        return f"{name}[lane]"

    def expression(self, u: UOp, value: str) -> str:
        """The value, if it needs no variable, or the variable."""
        is_unnamed = u in self.uses.unnamed or _is_of_lane_number(u, value)
        return atom(value) if is_unnamed else self.define(u, value)

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp, if anything depends on it."""
        if u not in self.uses.live:
            return
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.SET:
                register, value = (self.values[s] for s in u.src)
                self.emit(f"{register} = {bare(value)};", u.src[0].lanes)
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
        return _LANE.sub(str(number), self.values[u])

    def shuffle(self, u: UOp) -> str:
        """Chosen lanes: a loop if they are equally far apart in one operand."""
        first, step = u.arg[0], u.arg[1] - u.arg[0] if u.lanes > 1 else 0
        source = u.src[first // u.src[0].lanes]
        place = first % u.src[0].lanes
        last = place + (u.lanes - 1) * step
        is_even = list(u.arg) == [first + i * step for i in range(u.lanes)]
        if is_even and step >= 0 and last < source.lanes:
            scaled = f"{step} * lane" if step != 1 else "lane"
            index = str(place) if step == 0 else f"{place} + {scaled}" if place else scaled
            return self.define(u, _LANE.sub(index, self.values[source]))
        both = [self.lane(s, number) for s in u.src for number in range(s.lanes)]
        return self.listed(u, [both[number] for number in u.arg])

    def halve(self, u: UOp) -> str:
        """Combine the lower half of the lanes with the upper until one is left."""
        t = Arithmetic(self.prelude, dtype_of(u), type_of(dtype_of(u)))
        lanes, value = u.src[0].lanes, self.operand(u)
        while lanes > 1:
            lanes //= 2
            upper = _LANE.sub(f"lane + {lanes}" if lanes > 1 else "1", value)
            lower = value if lanes > 1 else _LANE.sub("0", value)
            value = self.variable(t.kind, lanes, alu(u.arg, t, (lower, upper)), "t")
        return value

    # -- arithmetic --------------------------------------------------------------------------------

    def alu(self, u: UOp) -> str:
        operands = [self.values[s] for s in u.src]
        if u.arg is ExprOp.DOT:
            helper = cprelude.dot(self.prelude, *(type_of(dtype_of(s)) for s in u.src))
            return self.prelude.call(helper, *operands)
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
        return alu(u.arg, t, operands)

    def cast(self, u: UOp) -> str:
        source, target = dtype_of(u.src[0]), dtype_of(u)
        return self.expression(u, cast(self.prelude, source, target, self.operand(u)))

    def bitcast(self, u: UOp) -> str:
        x = u.src[0]
        kinds = dtype_of(x), dtype_of(u)
        if x.lanes == u.lanes:
            (value,) = bitcast(self.prelude, *kinds, [self.operand(u)])
            return self.define(u, value)
        lanes = [self.lane(x, number) for number in range(x.lanes)]
        return self.listed(u, bitcast(self.prelude, *kinds, lanes))

    # -- memory ------------------------------------------------------------------------------------

    def array(self, u: UOp) -> None:
        """Declare an array at the top of the function."""
        name, size = u.arg
        self.values[u] = pointer = self.new(f"{symbol(name)}_")
        aligned = PORTABLE.aligned.format(bytes=_ALIGNMENT)
        self.top.append(f"{aligned}{memory_type(dtype_of(u))} {pointer}[{size}];")

    def element(self, pointer: UOp, index: UOp, lanes: int) -> str:
        """The place in memory of each lane."""
        text = bare(self.values[index])
        if index.lanes < lanes:
            text = "lane" if text == "0" else f"{text} + lane"
        return f"{self.values[pointer]}[{text}]"

    def load(self, u: UOp) -> str:
        pointer, index, *mask = u.src
        value = self.element(pointer, index, u.lanes)
        if u.dtype is dtypes.bool:
            value = f"{value} != 0"
        if mask and self.values[mask[0]] != "true":
            value = f"{self.values[mask[0]]} ? {value} : {self.constant(dtype_of(u), 0)}"
        return self.define(u, value)

    def store(self, u: UOp) -> None:
        pointer, index, value, *mask = u.src
        place = self.element(pointer, index, value.lanes)
        guard = f"if ({bare(self.values[mask[0]])}) " if mask else ""
        self.emit(f"{guard}{place} = {bare(self.values[value])};", value.lanes)

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


_VALUES: Final[dict[UOps, Callable[[_LaneFunction, UOp], str]]] = {
    UOps.START: lambda function, u: "0",
    UOps.STOP: lambda function, u: function.values[function.chunks],
    UOps.LOOP: _LaneFunction.open_loop,
    UOps.CONST: lambda function, u: function.constant(dtype_of(u), u.arg),
    UOps.IOTA: lambda function, u: "lane" if u.lanes > 1 else "0",
    UOps.ALU: _LaneFunction.expression_of,
    UOps.CAST: _LaneFunction.cast,
    UOps.BITCAST: _LaneFunction.bitcast,
    UOps.SPLAT: lambda function, u: function.operand(u),
    UOps.EXTRACT: lambda function, u: function.lane(u.src[0], u.arg),
    UOps.SHUFFLE: _LaneFunction.shuffle,
    UOps.HREDUCE: _LaneFunction.halve,
    UOps.REG: lambda function, u: function.define(u, function.operand(u), "acc", ""),
    UOps.GET: _LaneFunction.expression_of,
    UOps.LOAD: _LaneFunction.load,
}
"""The text of each UOp that has a value."""
