"""The body of a function in C, UOp by UOp.

A value of several lanes is a variable for each lane, so that shuffles and the like are only other
names. Adjacent elements are moved together if the index is known to be aligned, unless
FERRULE_UNALIGNED is defined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from ferrule.codegen.intrinsics import WARP
from ferrule.codegen.uops import UOp, UOps, shared_alignment, shared_to_ask_for
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import RenderError, dtype_of
from ferrule.renderer.c import prelude as cprelude
from ferrule.renderer.c.alu import Arithmetic, alu, atom, bare, bitcast, cast
from ferrule.renderer.c.blocks import (
    Across,
    commit_copies,
    copy_ahead,
    matrices,
    mma,
    of_warp_groups,
    wait_for_copies,
    wgmma,
)
from ferrule.renderer.c.bounds import INT32, bounds, range_of, within
from ferrule.renderer.c.dialect import (
    CAN_OVERFLOW,
    Dialect,
    is_special,
    literal,
    memory_type,
    special_bits,
    symbol,
    type_of,
)
from ferrule.renderer.c.inline import Uses
from ferrule.renderer.c.prelude import Helper, Prelude, lanes_of, struct

_VECTOR_BYTES: Final = 16  # bytes of the widest access of a thread
_OF_BLOCKS: Final = frozenset(
    {
        UOps.THREAD,
        UOps.SHARED,
        UOps.BARRIER,
        UOps.ACROSS,
        UOps.COPY,
        UOps.COMMIT,
        UOps.WAIT,
    }
)
_OF_WARPS: Final = frozenset({UOps.MMA, UOps.MATRICES, UOps.WGMMA})
_WAITING: Final = frozenset({UOps.BARRIER, UOps.ACROSS, UOps.MMA, UOps.WGMMA})


def pieces(lanes: int, itemsize: int, multiple: int) -> list[tuple[int, int]]:
    """The accesses that move `lanes` elements from an index that is a multiple of `multiple`.

    Gives (first lane, number of lanes) of accesses of at most 16 bytes, each aligned to its size.

    >>> pieces(lanes=7, itemsize=4, multiple=4), pieces(lanes=8, itemsize=4, multiple=2)
    ([(0, 4), (4, 2), (6, 1)], [(0, 2), (2, 2), (4, 2), (6, 2)])
    """
    largest = max(math.gcd(_VECTOR_BYTES, multiple * itemsize) // itemsize, 1)
    found, first = [], 0
    while first < lanes:
        while largest > lanes - first:
            largest //= 2
        found.append((first, largest))
        first += largest
    return found


@final
class Function:
    """The lines of a function so far; `add` renders one more UOp."""

    def __init__(
        self, dialect: Dialect, target: Target, prelude: Prelude, uops: Sequence[UOp]
    ) -> None:
        self.dialect = dialect
        self.target = target
        self.prelude = prelude
        self.uses = Uses(uops)
        self.bounds = bounds(uops, dialect.has_blocks)
        self.threads = next((u.arg or 1 for u in uops if u.op is UOps.EXTENT), 1)
        self.top: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self.lanes: dict[UOp, list[str]] = {}
        self.pointers: dict[UOp, str] = {}
        self.waits = False
        """True if threads wait in an open loop or condition."""
        self.behind = ""
        """The statement after one in which they have waited, if anything comes after it."""
        self.shared_bytes = 0
        self.scratch_bytes = 0
        self.asks = bool(dialect.shared_at_launch and shared_to_ask_for(uops, target))
        """True if its arrays in shared memory are in the bytes that a launch asks for."""
        self.shared_alignment = shared_alignment(uops)
        self.count = 0

    # -- text --------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        if self.behind:
            self.lines.append(f"  {self.behind}")
            self.behind = ""
        self.lines.append("  " * self.depth + line)

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    def text(self) -> list[str]:
        if self.scratch_bytes:
            self.shared(f"u8 scratch[{self.scratch_bytes}];", self.scratch_bytes)
        return ["  " + line for line in self.top] + self.lines

    def scalar(self, u: UOp) -> str:
        return self.lanes[u][0]

    def operand(self, u: UOp) -> list[str]:
        """The lanes of the first operand."""
        return self.lanes[u.src[0]]

    def kind(self, u: UOp) -> str:
        """The C type of a variable: 32 bits for a 64-bit index that needs no more."""
        dtype = dtype_of(u)
        small = dtype is dtypes.int64 and within(self.bounds.get(u, range_of(dtype)), INT32)
        return "i32" if small and self.dialect.has_blocks else type_of(dtype)

    def names(self, u: UOp, name: str = "t") -> list[str]:
        """New names of variables, one for each lane."""
        name = f"{name}{self.number()}"
        return [name] if u.lanes == 1 else [f"{name}_{i}" for i in range(u.lanes)]

    def define(
        self, u: UOp, values: Sequence[str], name: str = "t", how: str = "const "
    ) -> list[str]:
        """A variable for each lane."""
        names = self.names(u, name)
        for variable, value in zip(names, values, strict=True):
            self.emit(f"{how}{self.kind(u)} {variable} = {bare(value)};")
        return names

    def result(self, helper: Helper, *operands: str) -> str:
        """A variable for the result of a helper."""
        name = f"t{self.number()}"
        self.emit(f"const {helper.result} {name} = {self.prelude.call(helper, *operands)};")
        return name

    def result_lanes(self, helper: Helper, lanes: int, *operands: str) -> list[str]:
        """The lanes of the struct that a helper returns."""
        return lanes_of(self.result(helper, *operands), lanes)

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp, if anything depends on it."""
        if u not in self.uses.live:
            return
        self.check(u)
        if u.op in _WAITING and self.depth > 1:
            self.waits = True
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.SET:
                for name, value in zip(self.operand(u), self.lanes[u.src[1]], strict=True):
                    self.emit(f"{name} = {bare(value)};")
            case UOps.IF:
                self.emit(f"{_guard(self.operand(u)[0])}{{")
                self.depth += 1
            case UOps.END | UOps.ENDIF if not self.is_block(u.src[0]):
                self.close()
            case UOps.LOCAL | UOps.SHARED:
                self.array(u)
            case UOps.BARRIER:
                self.emit(self.dialect.barrier)
            case UOps.COPY:
                self.copy(u)
            case UOps.COMMIT if self.dialect.commit:
                self.emit(f"{self.prelude.call(commit_copies(self.prelude))};")
            case UOps.WAIT if self.dialect.wait:
                self.emit(f"{self.prelude.call(wait_for_copies(self.prelude, u.arg))};")
            case UOps.WGMMA_FENCE | UOps.WGMMA_COMMIT | UOps.WGMMA_WAIT | UOps.PROXY_FENCE:
                self.emit(f"{self.prelude.call(of_warp_groups(u))};")
            case UOps.END | UOps.COMMIT | UOps.WAIT:
                pass  # a block does one chunk, and copies are complete at once
            case UOps.PARAM | UOps.VALUE:
                pass  # named by the function's head
            case _:
                self.lanes[u] = self.value(u)

    def value(self, u: UOp) -> list[str]:
        """The lanes of a UOp that has a value."""
        match u.op:
            case UOps.START | UOps.STOP | UOps.THREAD:
                return self.place(u)
            case UOps.LOOP:
                return self.open_loop(u)
            case UOps.CONST:
                return [self.constant(dtype_of(u), u.arg)] * u.lanes
            case UOps.IOTA:
                return [str(lane) for lane in range(u.lanes)]
            case UOps.ALU:
                return self.expression(u, self.alu(u))
            case UOps.CAST:
                return self.cast(u)
            case UOps.BITCAST:
                kinds = dtype_of(u.src[0]), dtype_of(u)
                return self.define(u, bitcast(self.prelude, *kinds, self.operand(u)))
            case UOps.SPLAT:
                return self.operand(u) * u.lanes
            case UOps.EXTRACT:
                return [self.operand(u)[u.arg]]
            case UOps.SHUFFLE:
                both = [lane for s in u.src for lane in self.lanes[s]]
                return [both[lane] for lane in u.arg]
            case UOps.HREDUCE:
                return self.halve(u)
            case UOps.REG:
                return self.define(u, self.operand(u), "acc", "")
            case UOps.GET:
                return self.expression(u, self.operand(u))
            case UOps.LOAD:
                return self.load(u)
            case UOps.ACROSS:
                return self.across(u)
            case UOps.MMA:
                operands = [lane for s in u.src for lane in self.lanes[s]]
                helper = mma(self.prelude, dtype_of(u.src[0]))
                return self.result_lanes(helper, u.lanes, "thread", *operands)
            case UOps.WGMMA:
                return self.multiply_together(u)
            case UOps.MATRICES:
                return self.matrices(u)
            case _:
                raise RenderError(f"{u.op.name} has no value")

    def check(self, u: UOp) -> None:
        """Raise an error if there are no blocks of threads for a UOp, or no warps."""
        if u.op in _OF_BLOCKS and not self.dialect.has_blocks:
            raise RenderError(
                f"{u.op.name}: {self.dialect.name} has no blocks of threads; "
                "use a dialect that has, or a kernel of one thread"
            )
        has_warps = self.dialect.exchange and self.target.warp == WARP and not self.threads % WARP
        if u.op in _OF_WARPS and not has_warps:
            raise RenderError(
                f"{u.op.name}: {self.dialect.name} with warps of {self.target.warp} and blocks of "
                f"{self.threads} threads has no warps of {WARP} that multiply matrices"
            )

    def place(self, u: UOp) -> list[str]:
        """The number of the first chunk, the one after the last, or the thread."""
        if not self.dialect.has_blocks:
            return [u.op.name.lower()]
        if u.op is UOps.STOP:
            return [f"({self.dialect.block} + 1)"]
        name = "block" if u.op is UOps.START else "thread"
        number = self.dialect.block if u.op is UOps.START else self.dialect.thread
        self.emit(f"const i32 {name} = {number};")
        return [name]

    def constant(self, dtype: DType, value: float) -> str:
        if is_special(dtype, value):
            return self.prelude.call(cprelude.of_bits(type_of(dtype)), special_bits(dtype, value))
        return literal(dtype, value)

    # -- arithmetic --------------------------------------------------------------------------------

    def expression(self, u: UOp, values: Sequence[str]) -> list[str]:
        """The values, if they need no variables, or a variable for each."""
        if u in self.uses.unnamed:
            return [atom(value) for value in values]
        return self.define(u, values)

    def cast(self, u: UOp) -> list[str]:
        x = u.src[0]
        kind, source, target, lanes = self.kind(u), dtype_of(x), dtype_of(u), self.operand(u)
        is_whole = not (dtypes.is_float(source) or dtypes.is_float(target))
        if is_whole and x not in self.uses.inlined and self.is_same(u, x):
            return lanes
        if is_whole and kind == self.kind(x):
            return self.expression(u, lanes)
        are_pairs = source is dtypes.float32 and u.lanes % 2 == 0
        pair = cprelude.PAIRS.get(target) if are_pairs else None
        if pair is not None and pair.name in self.dialect.instructions:
            return self.cast_pairs(pair, target, lanes)
        target = dtypes.int32 if kind == "i32" else target
        return self.expression(u, [cast(self.prelude, source, target, lane) for lane in lanes])

    def is_same(self, u: UOp, x: UOp) -> bool:
        """True if a cast of an integer needs no text: a variable of the same type, or a literal."""
        if x.op not in (UOps.CONST, UOps.IOTA):
            return self.kind(u) == self.kind(x)
        dtypes_of_both = (dtype_of(x), dtype_of(u))
        if dtypes.bool in dtypes_of_both or any(map(dtypes.is_unsigned, dtypes_of_both)):
            return False
        return within(self.bounds[x], range_of(dtype_of(u)))

    def cast_pairs(self, helper: Helper, target: DType, lanes: Sequence[str]) -> list[str]:
        """Round two adjacent lanes at once."""
        pairs = [self.result(helper, *pair) for pair in zip(lanes[::2], lanes[1::2], strict=True)]
        return [atom(lane) for lane in bitcast(self.prelude, dtypes.uint32, target, pairs)]

    def alu(self, u: UOp) -> list[str]:
        operands = u.src[1:] if u.arg is ExprOp.WHERE else u.src
        t = self.arithmetic(u, operands)
        texts = [self.lanes[s] for s in u.src]
        if t.kind == "i64" and t.is_exact and all(self.kind(s) == "i32" for s in operands):
            # C would compute in 32 bits otherwise.
            texts[0] = [f"(i64){lane}" for lane in texts[0]]
        if u.arg is ExprOp.DOT:
            helper = cprelude.dot(self.prelude, *(type_of(dtype_of(s)) for s in u.src))
            return [self.prelude.call(helper, *lane) for lane in zip(*texts, strict=True)]
        return [alu(u.arg, t, lane) for lane in zip(*texts, strict=True)]

    def arithmetic(self, u: UOp, operands: Sequence[UOp]) -> Arithmetic:
        dtype = dtype_of(operands[0])
        kinds = {self.kind(s) for s in (*operands, *([u] if u.dtype is dtype else []))}
        kind = "i32" if kinds == {"i32"} else type_of(dtype)
        exact = u.arg in CAN_OVERFLOW and u in self.bounds
        return Arithmetic(
            self.prelude,
            dtype,
            kind,
            is_exact=exact and within(self.bounds[u], INT32 if kind == "i32" else range_of(dtype)),
            not_negative=self.bounds.get(operands[0], range_of(dtype))[0] >= 0,
        )

    def halve(self, u: UOp) -> list[str]:
        """Combine the lower half of the lanes with the upper until one is left."""
        t, lanes = Arithmetic(self.prelude, dtype_of(u), type_of(dtype_of(u))), self.operand(u)
        while len(lanes) > 1:
            half = len(lanes) // 2
            pairs = zip(lanes[:half], lanes[half:], strict=True)
            lanes = [atom(alu(u.arg, t, pair)) for pair in pairs]
        return self.define(u, lanes)

    # -- threads -----------------------------------------------------------------------------------

    def across(self, u: UOp) -> list[str]:
        (_, count, step), threads = u.arg, self.threads
        if threads % (count * step):
            raise RenderError(
                f"ACROSS of {count} threads, {step} apart: the {threads} of a block do not divide "
                "into such groups; use a divisor"
            )
        warp = self.target.warp if self.dialect.exchange else 1
        way = Across(self.prelude, u, threads, min(warp, 32))
        helper, lanes, operands = way.helper(), way.lanes, [self.dialect.thread]
        if way.needs_memory:
            used = threads * lanes * dtype_of(u).itemsize
            self.scratch_bytes = max(self.scratch_bytes, used)
            operands.append(f"({self.dialect.to_shared}{way.kept} *)scratch")
        values = self.operand(u)
        if lanes == 1:
            return self.define(u, [self.prelude.call(helper, x, *operands) for x in values])
        parts = [values[i : i + lanes] for i in range(0, u.lanes, lanes)]
        found = [self.result_lanes(helper, lanes, *part, *operands) for part in parts]
        return [lane for part in found for lane in part]

    def multiply_together(self, u: UOp) -> list[str]:
        """Emit a product of matrices by four warps; the value is this thread's part of it."""
        *left, right, beside, before = u.src
        helper = wgmma(self.prelude, dtype_of(right), u.lanes, u.arg)
        held = self.lanes[left[0]] if len(left) == 1 else self.place_of(*left)
        operands = (*held, *self.place_of(right, beside), *self.lanes[before])
        return self.result_lanes(helper, u.lanes, "thread", *operands)

    def place_of(self, pointer: UOp, index: UOp) -> list[str]:
        """An array, and an index in it."""
        return [self.pointers[pointer], self.scalar(index)]

    def matrices(self, u: UOp) -> list[str]:
        """Emit a load of four matrices; this thread gives the place of a row, and gets parts of all
        four.
        """
        (row,) = self.elements(u.src[0], u.src[1], 1)
        registers = self.result_lanes(matrices(self.prelude, u.arg), 4, "thread", f"&{row}")
        return [atom(x) for x in bitcast(self.prelude, dtypes.uint32, dtype_of(u), registers)]

    # -- memory ------------------------------------------------------------------------------------

    def array(self, u: UOp) -> None:
        """Declare an array at the top of the function: a thread's own, or the block's."""
        name, size = u.arg
        kind = memory_type(dtype_of(u))
        self.pointers[u] = pointer = f"{symbol(name)}_{self.number()}"
        declaration, size = f"{kind} {pointer}[{size}];", size * dtype_of(u).itemsize
        if u.op is UOps.LOCAL:
            self.top.append(self.dialect.aligned.format(bytes=_VECTOR_BYTES) + declaration)
            return
        if not self.asks:
            self.shared(declaration, size)
            return
        first, multiple = self.shared_bytes, self.shared_alignment
        if first == 0:
            self.top += self.dialect.shared_at_launch.format(bytes=multiple).splitlines()
        self.count_shared(declaration, -(-size // multiple) * multiple)
        self.top.append(f"{kind} *const {pointer} = ({kind} *)(shared + {first});")

    def shared(self, declaration: str, size: int) -> None:
        """Declare an array of a fixed size in the memory of the block."""
        self.count_shared(declaration, size)
        aligned = self.dialect.aligned.format(bytes=self.shared_alignment)
        self.top.append(self.dialect.shared + aligned + declaration)

    def count_shared(self, declaration: str, size: int) -> None:
        self.shared_bytes += size
        if self.shared_bytes > self.target.shared_bytes:
            raise RenderError(
                f"{declaration} {self.shared_bytes} bytes in all are more than the "
                f"{self.target.shared_bytes} that a block shares; use smaller tiles"
            )

    def space(self, pointer: UOp) -> str:
        """The qualifier of the type that a pointer points to."""
        spaces = {UOps.PARAM: self.dialect.device, UOps.SHARED: self.dialect.to_shared}
        return spaces.get(pointer.op, "")

    def elements(self, pointer: UOp, index: UOp, lanes: int) -> list[str]:
        """The place in memory of each lane."""
        texts = self.lanes[index]
        if index.lanes < lanes:
            texts = [_plus(texts[0], lane) for lane in range(lanes)]
        return [f"{self.pointers[pointer]}[{bare(text)}]" for text in texts]

    def accesses(
        self, u: UOp, pointer: UOp, lanes: int, mask: Sequence[UOp], *indices: UOp
    ) -> list[tuple[int, int, str | None]]:
        """(first lane, number of lanes, mask) of each access of a LOAD, STORE or COPY."""
        masks = self.lanes[mask[0]] if mask else ["true"] * lanes
        is_aligned = isinstance(u.arg, int) and all(index.lanes == 1 for index in indices)
        multiple = u.arg if is_aligned and len(set(masks)) == 1 else 1
        parts = pieces(lanes, dtype_of(pointer).itemsize, multiple)
        all_on = set(masks) == {"true"}
        return [(first, n, None if all_on else masks[first]) for first, n in parts]

    def load(self, u: UOp) -> list[str]:
        pointer, index = u.src[:2]
        elements, names = self.elements(pointer, index, u.lanes), self.names(u)
        found = []
        for first, lanes, mask in self.accesses(u, pointer, u.lanes, u.src[2:], index):
            if lanes > 1:
                found += self.load_vector(u, elements[first], lanes, mask)
                continue
            value = self.load_element(dtype_of(u), elements[first], mask)
            self.emit(f"const {self.kind(u)} {names[first]} = {value};")
            found.append(names[first])
        return found

    def load_element(self, dtype: DType, element: str, mask: str | None) -> str:
        value = f"{element} != 0" if dtype is dtypes.bool else element
        return value if mask is None else f"{mask} ? {value} : {self.constant(dtype, 0)}"

    def load_vector(self, u: UOp, element: str, lanes: int, mask: str | None) -> list[str]:
        """Load adjacent elements by one access; the lanes."""
        kind = self.prelude.vector(memory_type(dtype_of(u)), lanes)
        name = f"v{self.number()}"
        place = f"*(const {self.space(u.src[0])}{kind} *)&{element}"
        if mask is None:
            self.emit(f"const {kind} {name} = {place};")
        else:
            self.emit(f"{kind} {name} = {struct(['0'] * lanes)};")
            self.emit(f"{_guard(mask)}{name} = {place};")
        elements = lanes_of(name, lanes)
        return [f"({x} != 0)" for x in elements] if u.dtype is dtypes.bool else elements

    def store(self, u: UOp) -> None:
        pointer, index, value = u.src[:3]
        elements = self.elements(pointer, index, value.lanes)
        values = [bare(lane) for lane in self.lanes[value]]
        for first, lanes, mask in self.accesses(u, pointer, value.lanes, u.src[3:], index):
            target, new = elements[first], values[first]
            if lanes > 1:
                kind = self.prelude.vector(memory_type(dtype_of(value)), lanes)
                new = f"v{self.number()}"
                self.emit(f"const {kind} {new} = {struct(values[first : first + lanes])};")
                target = f"*({self.space(pointer)}{kind} *)&{target}"
            self.emit(f"{_guard(mask)}{target} = {new};")

    def copy(self, u: UOp) -> None:
        """Emit copies of adjacent elements, as far as they are aligned; of others one by one."""
        to, to_index, source, index, mask, *only_if = u.src
        here, there = self.elements(to, to_index, u.lanes), self.elements(source, index, u.lanes)
        guard = _guard(self.scalar(only_if[0]) if only_if else None)
        for first, lanes, valid in self.accesses(u, to, u.lanes, [mask], to_index, index):
            kind = self.prelude.vector(memory_type(dtype_of(to)), lanes)
            call = self.prelude.call(
                copy_ahead(self.prelude, dtype_of(to), lanes),
                f"({self.dialect.to_shared}{kind} *)&{here[first]}",
                f"({self.dialect.device}const {kind} *)&{there[first]}",
                bare(valid or "true"),
            )
            self.emit(f"{guard}{call};")

    # -- control -----------------------------------------------------------------------------------

    def open_loop(self, u: UOp) -> list[str]:
        first, limit, step = (self.scalar(s) for s in u.src)
        if self.is_block(u):
            return [first]
        name = f"i{self.depth - 1}"
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.emit(f"for ({self.kind(u)} {name} = {bare(first)}; {name} < {limit}; {advance}) {{")
        self.depth += 1
        return [name]

    def close(self) -> None:
        """Close the innermost loop or condition."""
        self.depth -= 1
        self.emit("}")
        if self.waits and self.depth == 1:
            self.waits, self.behind = False, self.dialect.after_waiting

    def is_block(self, u: UOp) -> bool:
        """True if a loop is over the chunks, of which a block has one."""
        if u.op is not UOps.LOOP or not self.dialect.has_blocks:
            return False
        ends = [s.src[0] if s.op is UOps.CAST else s for s in u.src[:2]]
        return [s.op for s in ends] == [UOps.START, UOps.STOP]


def _guard(mask: str | None) -> str:
    """The beginning of a statement that is done if a mask is true."""
    return f"if ({bare(mask)}) " if mask else ""


def _plus(index: str, offset: int) -> str:
    """An index `offset` places further on."""
    if index.isdecimal():
        return str(int(index) + offset)
    return f"{index} + {offset}" if offset else index
