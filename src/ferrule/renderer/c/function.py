"""The body of a function in C, UOp by UOp.

A value of several lanes is a variable for each lane, so that shuffles and the like are only other
names. Adjacent elements are moved together if the index is known to be aligned, unless
FERRULE_UNALIGNED is defined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, final

from ferrule.codegen.intrinsics import WARP
from ferrule.codegen.uops import UOp, UOps, shared_alignment, shared_to_ask_for
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import RenderError
from ferrule.renderer.c import prelude as cprelude
from ferrule.renderer.c.alu import Arithmetic, alu, atom, bare, bitcast, cast
from ferrule.renderer.c.blocks import (
    Group,
    across,
    commit_copies,
    copy_ahead,
    matrices,
    mma,
    of_warp_groups,
    together,
    wait_for_copies,
    wgmma,
)
from ferrule.renderer.c.bounds import INT32, bounds, range_of, within
from ferrule.renderer.c.dialect import (
    Dialect,
    is_special,
    literal,
    memory_type,
    special_bits,
    type_of,
)
from ferrule.renderer.c.inline import Uses
from ferrule.renderer.c.prelude import Helper, Prelude, struct

_VECTOR_BYTES: Final = 16  # bytes of the widest access of a thread
_CAN_OVERFLOW: Final = frozenset({ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.MULACC, ExprOp.NEG})


def _dtype(u: UOp) -> DType:
    assert u.dtype is not None, u
    return u.dtype


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
        self.threads = _threads(uops)
        self.waiting = _waiting_blocks(uops)
        self.top: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self.lanes: dict[UOp, list[str]] = {}
        self.pointers: dict[UOp, str] = {}
        self.shared_bytes = 0
        self.scratch_bytes = 0
        self.asks = bool(shared_to_ask_for(uops, target)) and bool(dialect.shared_at_launch)
        """True if its arrays in shared memory are in the bytes that a launch asks for."""
        self.shared_alignment = shared_alignment(uops)
        self.count = 0

    # -- text --------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
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

    def kind(self, u: UOp) -> str:
        """The C type of a variable: 32 bits for a 64-bit index that needs no more."""
        dtype = _dtype(u)
        small = dtype is dtypes.int64 and within(self.bounds.get(u, range_of(dtype)), INT32)
        return "i32" if small and self.dialect.has_blocks else type_of(dtype)

    def names(self, u: UOp, name: str = "t") -> list[str]:
        """New names of variables, one for each lane."""
        name = f"{name}{self.number()}"
        return [name] if u.lanes == 1 else [f"{name}_{i}" for i in range(u.lanes)]

    def declare(self, kind: str, name: str, value: str) -> None:
        self.emit(f"{kind} {name} = {bare(value)};")

    def define(self, u: UOp, values: Sequence[str], name: str = "t", how: str = "const ") -> None:
        """A variable for each lane."""
        self.lanes[u] = self.names(u, name)
        for variable, value in zip(self.lanes[u], values, strict=True):
            self.declare(how + self.kind(u), variable, value)

    def result(self, helper: Helper, *operands: str) -> str:
        """A variable for the result of a helper."""
        name = f"t{self.number()}"
        self.declare(f"const {helper.result}", name, self.prelude.call(helper, *operands))
        return name

    def result_lanes(self, helper: Helper, lanes: int, *operands: str) -> list[str]:
        """The lanes of the struct that a helper returns."""
        return _lanes_of(self.result(helper, *operands), lanes)

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp, if anything depends on it."""
        if u not in self.uses.live:
            return
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.LOAD:
                self.load(u)
            case UOps.REG:
                self.define(u, self.lanes[u.src[0]], "acc", "")
            case UOps.SET:
                for name, value in zip(self.lanes[u.src[0]], self.lanes[u.src[1]], strict=True):
                    self.emit(f"{name} = {bare(value)};")
            case UOps.LOOP:
                self.open_loop(u)
            case UOps.IF:
                self.emit(f"if ({bare(self.scalar(u.src[0]))}) {{")
                self.depth += 1
            case UOps.END | UOps.ENDIF if self.is_block(u.src[0]):
                pass
            case UOps.END | UOps.ENDIF:
                self.depth -= 1
                self.emit("}")
                if u.src[0] in self.waiting and self.dialect.after_waiting:
                    self.emit(self.dialect.after_waiting)
            case UOps.LOCAL | UOps.SHARED:
                self.array(u)
            case UOps.BARRIER:
                self.emit(self.blocks_only(u, self.dialect.barrier))
            case UOps.ACROSS:
                self.across(u)
            case UOps.MMA:
                self.multiply(u)
            case UOps.MATRICES:
                self.matrices(u)
            case UOps.COPY:
                self.copy(u)
            case UOps.COMMIT if self.dialect.commit:
                self.emit(f"{self.prelude.call(commit_copies(self.prelude))};")
            case UOps.WAIT if self.dialect.wait:
                self.emit(f"{self.prelude.call(wait_for_copies(self.prelude, u.arg))};")
            case UOps.WGMMA:
                self.multiply_together(u)
            case UOps.WGMMA_FENCE | UOps.WGMMA_COMMIT | UOps.WGMMA_WAIT | UOps.PROXY_FENCE:
                self.emit(f"{self.prelude.call(of_warp_groups(u))};")
            case UOps.COMMIT | UOps.WAIT:
                self.blocks_only(u, "")  # copies are complete at once
            case UOps.PARAM | UOps.VALUE:
                pass  # named by the function's head
            case UOps.PREFETCH:
                pass  # it changes nothing but the time, and standard C has no such statement
            case _:
                self.value(u)

    def value(self, u: UOp) -> None:
        """Render a UOp that has a value."""
        match u.op:
            case UOps.START | UOps.STOP | UOps.THREAD:
                self.place(u)
            case UOps.CONST:
                self.lanes[u] = [self.constant(_dtype(u), u.arg)] * u.lanes
            case UOps.IOTA:
                self.lanes[u] = [str(lane) for lane in range(u.lanes)]
            case UOps.ALU | UOps.CAST:
                self.expression(u)
            case UOps.BITCAST:
                x = u.src[0]
                self.define(u, bitcast(self.prelude, _dtype(x), _dtype(u), self.lanes[x]))
            case UOps.SPLAT:
                self.lanes[u] = self.lanes[u.src[0]] * u.lanes
            case UOps.EXTRACT:
                self.lanes[u] = [self.lanes[u.src[0]][u.arg]]
            case UOps.SHUFFLE:
                both = [lane for s in u.src for lane in self.lanes[s]]
                self.lanes[u] = [both[lane] for lane in u.arg]
            case UOps.HREDUCE:
                self.halve(u)
            case UOps.GET if u in self.uses.renamed:
                self.lanes[u] = self.lanes[u.src[0]]
            case UOps.GET:
                self.define(u, self.lanes[u.src[0]])
            case _:
                raise RenderError(f"{u.op.name} has no value")

    def blocks_only(self, u: UOp, text: str) -> str:
        if not self.dialect.has_blocks:
            raise RenderError(
                f"{u.op.name}: {self.dialect.name} has no blocks of threads; "
                "use a dialect that has, or a kernel of one thread"
            )
        return text

    def place(self, u: UOp) -> None:
        if not self.dialect.has_blocks and u.op is not UOps.THREAD:
            self.lanes[u] = ["start" if u.op is UOps.START else "stop"]
            return
        if u.op is UOps.STOP:
            self.lanes[u] = [f"({self.dialect.block} + 1)"]
            return
        is_thread = u.op is UOps.THREAD
        text = self.dialect.thread if is_thread else self.dialect.block
        self.lanes[u] = ["thread" if is_thread else "block"]
        self.emit(f"const i32 {self.scalar(u)} = {self.blocks_only(u, text)};")

    def constant(self, dtype: DType, value: float) -> str:
        if is_special(dtype, value):
            return self.prelude.call(cprelude.of_bits(type_of(dtype)), special_bits(dtype, value))
        return literal(dtype, value)

    # -- arithmetic --------------------------------------------------------------------------------

    def expression(self, u: UOp) -> None:
        if u.op is UOps.CAST and self.is_same(u, u.src[0]):
            self.lanes[u] = self.lanes[u.src[0]]
            return
        if u.op is UOps.CAST and self.is_by_pairs(u):
            self.cast_pairs(u)
            return
        values = self.cast(u) if u.op is UOps.CAST else self.alu(u)
        if u in self.uses.inlined:
            self.lanes[u] = [atom(value) for value in values]
        else:
            self.define(u, values)

    def is_same(self, u: UOp, x: UOp) -> bool:
        """True if a cast of an integer needs no text: a variable of the same type, or a literal."""
        source, target = _dtype(x), _dtype(u)
        if dtypes.is_float(source) or dtypes.is_float(target) or x in self.uses.inlined:
            return False
        if x.op in (UOps.CONST, UOps.IOTA):
            signed = not (dtypes.is_unsigned(source) or dtypes.is_unsigned(target))
            whole = dtypes.bool not in (source, target)
            return signed and whole and within(self.bounds[x], range_of(target))
        return self.kind(u) == self.kind(x)

    def cast(self, u: UOp) -> list[str]:
        x = u.src[0]
        kind, source, target = self.kind(u), _dtype(x), _dtype(u)
        if kind == self.kind(x) and not (dtypes.is_float(source) or dtypes.is_float(target)):
            return self.lanes[x]
        target = dtypes.int32 if kind == "i32" else target
        return [cast(self.prelude, source, target, lane) for lane in self.lanes[x]]

    def is_by_pairs(self, u: UOp) -> bool:
        """True if an instruction rounds two adjacent lanes at once."""
        source, target = _dtype(u.src[0]), _dtype(u)
        if source is not dtypes.float32 or target not in cprelude.PAIRED or u.lanes % 2:
            return False
        return cprelude.narrowed_pair(target).name in self.dialect.instructions

    def cast_pairs(self, u: UOp) -> None:
        helper, lanes = cprelude.narrowed_pair(_dtype(u)), self.lanes[u.src[0]]
        pairs = [self.result(helper, *pair) for pair in zip(lanes[::2], lanes[1::2], strict=True)]
        found = bitcast(self.prelude, dtypes.uint32, _dtype(u), pairs)
        self.lanes[u] = [atom(lane) for lane in found]

    def alu(self, u: UOp) -> list[str]:
        operands = u.src[1:] if u.arg is ExprOp.WHERE else u.src
        t = self.arithmetic(u, operands)
        texts = [self.lanes[s] for s in u.src]
        if t.kind == "i64" and t.is_exact and all(self.kind(s) == "i32" for s in operands):
            # C would compute in 32 bits otherwise.
            texts[0] = [f"(i64){lane}" for lane in texts[0]]
        return [alu(u.arg, t, lane) for lane in zip(*texts, strict=True)]

    def arithmetic(self, u: UOp, operands: Sequence[UOp]) -> Arithmetic:
        dtype = _dtype(operands[0])
        if dtypes.is_float(dtype):
            return Arithmetic(self.prelude, dtype, type_of(dtype))
        kinds = {self.kind(s) for s in (*operands, *([u] if u.dtype is dtype else []))}
        kind = "i32" if kinds == {"i32"} else type_of(dtype)
        exact = u.arg in _CAN_OVERFLOW and u in self.bounds
        return Arithmetic(
            self.prelude,
            dtype,
            kind,
            is_exact=exact and within(self.bounds[u], INT32 if kind == "i32" else range_of(dtype)),
            not_negative=self.bounds.get(operands[0], range_of(dtype))[0] >= 0,
        )

    def halve(self, u: UOp) -> None:
        """Combine the lower half of the lanes with the upper until one is left."""
        dtype = _dtype(u)
        t = Arithmetic(self.prelude, dtype, type_of(dtype))
        lanes = self.lanes[u.src[0]]
        while len(lanes) > 1:
            half = len(lanes) // 2
            pairs = zip(lanes[:half], lanes[half:], strict=True)
            lanes = [atom(alu(u.arg, t, pair)) for pair in pairs]
        self.define(u, lanes)

    def across(self, u: UOp) -> None:
        (_, count, step), threads = u.arg, self.threads
        if threads % (count * step):
            raise RenderError(
                f"ACROSS of {count} threads, {step} apart: the {threads} of a block do not divide "
                "into such groups; use a divisor"
            )
        warp = self.target.warp if self.dialect.exchange else 1
        group = Group(count, step, threads, min(warp, 32))
        dtype = _dtype(u)
        lanes = together(dtype, u.lanes, group)
        helper = across(self.prelude, u, group, lanes)
        operands = [self.blocks_only(u, self.dialect.thread)]
        if group.needs_memory:
            self.scratch_bytes = max(self.scratch_bytes, threads * lanes * dtype.itemsize)
            kept = self.prelude.vector(memory_type(dtype), lanes)
            operands.append(f"({self.dialect.to_shared}{kept} *)scratch")
        values = self.lanes[u.src[0]]
        if lanes == 1:
            self.define(u, [self.prelude.call(helper, value, *operands) for value in values])
            return
        self.lanes[u] = []
        for i in range(0, u.lanes, lanes):
            part = values[i : i + lanes]
            self.lanes[u] += self.result_lanes(helper, lanes, *part, *operands)

    def of_warps(self, u: UOp) -> None:
        """Raise an error if there are no warps for an operation by warps."""
        if not self.dialect.exchange or self.target.warp != WARP or self.threads % WARP:
            raise RenderError(
                f"{u.op.name}: {self.dialect.name} with warps of {self.target.warp} and blocks of "
                f"{self.threads} threads has no warps of {WARP} that multiply matrices"
            )

    def multiply(self, u: UOp) -> None:
        """Emit a warp's product of matrices; the value is this thread's part of it."""
        self.of_warps(u)
        helper = mma(self.prelude, _dtype(u.src[0]))
        operands = [lane for s in u.src for lane in self.lanes[s]]
        self.lanes[u] = self.result_lanes(helper, u.lanes, "thread", *operands)

    def multiply_together(self, u: UOp) -> None:
        """Emit a product of matrices by four warps; the value is this thread's part of it."""
        self.of_warps(u)
        *left, right, beside, before = u.src
        helper = wgmma(self.prelude, _dtype(right), u.lanes, u.arg)
        held = self.lanes[left[0]] if len(left) == 1 else self.place_of(*left)
        operands = (*held, *self.place_of(right, beside), *self.lanes[before])
        self.lanes[u] = self.result_lanes(helper, u.lanes, "thread", *operands)

    def place_of(self, pointer: UOp, index: UOp) -> list[str]:
        """An array, and an index in it."""
        return [self.pointers[pointer], self.scalar(index)]

    def matrices(self, u: UOp) -> None:
        """Emit a load of four matrices; this thread gives the place of a row, and gets parts of all
        four.
        """
        self.of_warps(u)
        (row,) = self.elements(u.src[0], u.src[1], 1)
        registers = self.result_lanes(matrices(self.prelude, u.arg), 4, "thread", f"&{row}")
        lanes = bitcast(self.prelude, dtypes.uint32, _dtype(u), registers)
        self.lanes[u] = [atom(lane) for lane in lanes]

    # -- memory ------------------------------------------------------------------------------------

    def array(self, u: UOp) -> None:
        """Declare scratch memory at the top of the function."""
        name, size = u.arg
        dtype = _dtype(u)
        self.pointers[u] = f"{re.sub('[^A-Za-z0-9_]', '_', name)}_{self.number()}"
        text = f"{memory_type(dtype)} {self.pointers[u]}[{size}];"
        if u.op is UOps.SHARED:
            self.blocks_only(u, "")
            self.share(u, text)
        else:
            self.top.append(self.dialect.aligned.format(bytes=_VECTOR_BYTES) + text)

    def share(self, u: UOp, declaration: str) -> None:
        """Declare an array in the memory of the block."""
        size = u.arg[1] * _dtype(u).itemsize
        if not self.asks:
            self.shared(declaration, size)
            return
        if self.shared_bytes == 0:
            asked = self.dialect.shared_at_launch.format(bytes=self.shared_alignment)
            self.top += asked.splitlines()
        kind, first = memory_type(_dtype(u)), self.shared_bytes
        multiple = self.shared_alignment
        self.count_shared(declaration, -(-size // multiple) * multiple)
        self.top.append(f"{kind} *const {self.pointers[u]} = ({kind} *)(shared + {first});")

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

    def masks(self, u: UOp, position: int) -> list[str] | None:
        """The mask of each lane; None if all are on."""
        masks = self.lanes[u.src[position]] if len(u.src) > position else None
        return None if masks is not None and set(masks) == {"true"} else masks

    def parts(
        self, u: UOp, dtype: DType, lanes: int, masks: Sequence[str] | None, *indices: UOp
    ) -> list[tuple[int, int]]:
        """(first lane, number of lanes) of each access of a LOAD, STORE or COPY."""
        is_aligned = isinstance(u.arg, int) and all(index.lanes == 1 for index in indices)
        is_one = masks is None or len(set(masks)) == 1
        return pieces(lanes, dtype.itemsize, u.arg if is_aligned and is_one else 1)

    def load(self, u: UOp) -> None:
        elements, masks = self.elements(u.src[0], u.src[1], u.lanes), self.masks(u, 2)
        names, self.lanes[u] = self.names(u), []
        for first, lanes in self.parts(u, _dtype(u), u.lanes, masks, u.src[1]):
            mask = masks[first] if masks is not None else None
            if lanes > 1:
                self.lanes[u] += self.load_vector(u, elements[first], lanes, mask)
                continue
            value = self.load_element(_dtype(u), elements[first], mask)
            self.emit(f"const {self.kind(u)} {names[first]} = {value};")
            self.lanes[u].append(names[first])

    def load_element(self, dtype: DType, element: str, mask: str | None) -> str:
        value = f"{element} != 0" if dtype is dtypes.bool else element
        return value if mask is None else f"{mask} ? {value} : {self.constant(dtype, 0)}"

    def load_vector(self, u: UOp, element: str, lanes: int, mask: str | None) -> list[str]:
        """Load adjacent elements by one access; the lanes."""
        kind = self.prelude.vector(memory_type(_dtype(u)), lanes)
        name = f"v{self.number()}"
        place = f"*(const {self.space(u.src[0])}{kind} *)&{element}"
        if mask is None:
            self.emit(f"const {kind} {name} = {place};")
        else:
            self.emit(f"{kind} {name} = {struct(['0'] * lanes)};")
            self.emit(f"if ({bare(mask)}) {name} = {place};")
        elements = _lanes_of(name, lanes)
        return [f"({x} != 0)" for x in elements] if u.dtype is dtypes.bool else elements

    def store(self, u: UOp) -> None:
        pointer, index, value = u.src[:3]
        elements, masks = self.elements(pointer, index, value.lanes), self.masks(u, 3)
        values = [bare(lane) for lane in self.lanes[value]]
        for first, lanes in self.parts(u, _dtype(value), value.lanes, masks, index):
            target, new = elements[first], values[first]
            if lanes > 1:
                kind = self.prelude.vector(memory_type(_dtype(value)), lanes)
                new = f"v{self.number()}"
                self.emit(f"const {kind} {new} = {struct(values[first : first + lanes])};")
                target = f"*({self.space(pointer)}{kind} *)&{target}"
            guard = f"if ({bare(masks[first])}) " if masks is not None else ""
            self.emit(f"{guard}{target} = {new};")

    def copy(self, u: UOp) -> None:
        """Emit copies of adjacent elements, as far as they are aligned; of others one by one."""
        self.blocks_only(u, "")
        to, to_index, source, index = u.src[:4]
        dtype, masks = _dtype(to), self.masks(u, 4)
        here, there = self.elements(to, to_index, u.lanes), self.elements(source, index, u.lanes)
        guard = f"if ({bare(self.scalar(u.src[5]))}) " if len(u.src) > 5 else ""
        for first, lanes in self.parts(u, dtype, u.lanes, masks, to_index, index):
            helper = copy_ahead(self.prelude, dtype, lanes)
            kind = self.prelude.vector(memory_type(dtype), lanes)
            call = self.prelude.call(
                helper,
                f"({self.dialect.to_shared}{kind} *)&{here[first]}",
                f"({self.dialect.device}const {kind} *)&{there[first]}",
                bare(masks[first]) if masks is not None else "true",
            )
            self.emit(f"{guard}{call};")

    # -- control -----------------------------------------------------------------------------------

    def open_loop(self, u: UOp) -> None:
        first, limit, step = (self.scalar(s) for s in u.src)
        if self.is_block(u):
            self.lanes[u] = [first]
            return
        name, kind = f"i{self.depth - 1}", self.kind(u)
        self.lanes[u] = [name]
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.emit(f"for ({kind} {name} = {bare(first)}; {name} < {limit}; {advance}) {{")
        self.depth += 1

    def is_block(self, u: UOp) -> bool:
        """True if a loop is over the chunks, of which a block has one."""
        return self.dialect.has_blocks and _is_over_chunks(u)


def _lanes_of(name: str, lanes: int) -> list[str]:
    """The lanes of a struct."""
    return [f"{name}.lane[{lane}]" for lane in range(lanes)]


def _plus(index: str, offset: int) -> str:
    """An index `offset` places further on."""
    if index.isdecimal():
        return str(int(index) + offset)
    return f"{index} + {offset}" if offset else index


def _threads(uops: Sequence[UOp]) -> int:
    return next((u.arg or 1 for u in uops if u.op is UOps.EXTENT), 1)


def _is_over_chunks(u: UOp) -> bool:
    if u.op is not UOps.LOOP:
        return False
    ends = [s.src[0] if s.op is UOps.CAST else s for s in u.src[:2]]
    return [s.op for s in ends] == [UOps.START, UOps.STOP]


def _waiting_blocks(uops: Sequence[UOp]) -> frozenset[UOp]:
    """The loops and conditions in which threads wait, if anything comes after them.

    The outermost ones count, and the loop over chunks does not.
    """
    found: set[UOp] = set()
    waiting: set[UOp] = set()
    open_blocks: list[UOp] = []
    for u in uops:
        if u.op in (UOps.LOOP, UOps.IF):
            open_blocks.append(u)
        elif u.op in (UOps.END, UOps.ENDIF):
            open_blocks.pop()
            continue
        elif u.op in (UOps.BARRIER, UOps.ACROSS, UOps.MMA, UOps.WGMMA):
            waiting.update([block for block in open_blocks if not _is_over_chunks(block)][:1])
        found |= waiting.difference(open_blocks)
    return frozenset(found)
