"""The machine that runs a program: one for the threads that go in step, several in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, final

import numpy

from ferrule.codegen.interpret.arithmetic import (
    Array,
    InterpretError,
    cast,
    halved,
    matrices,
    mma,
    operation,
    tile_dot,
    unfolded,
)
from ferrule.codegen.interpret.memory import AccessError, Copy, Memory, Users
from ferrule.codegen.intrinsics import TILE, WARP, WGMMA, matrix_intrinsic, of_warp_groups
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType

# The UOps whose values differ between threads, and those at which all threads of a block meet.
_OF_WARPS: Final = frozenset({UOps.MMA, UOps.MATRICES, UOps.WGMMA})
_DIFFERS: Final = _OF_WARPS | {UOps.THREAD, UOps.GET, UOps.LOAD, UOps.ACROSS}
_TOGETHER: Final = _OF_WARPS | {UOps.BARRIER, UOps.ACROSS}


def _dtype(u: UOp) -> DType:
    assert u.dtype is not None, u
    return u.dtype


@final
class Program:
    """A list of UOps, the ends of its loops and ifs, and the functions of its operations."""

    def __init__(self, uops: Sequence[UOp]) -> None:
        self.uops = uops
        self.threads = next((u.arg or 1 for u in uops if u.op is UOps.EXTENT), 1)
        self.place = {u: i for i, u in enumerate(uops)}
        self.end = {u.src[0]: i for i, u in enumerate(uops) if u.op in (UOps.END, UOps.ENDIF)}
        self.inside = _inside(uops)
        self.functions = {
            u: operation(u.arg, [_dtype(s) for s in u.src]) for u in uops if u.op is UOps.ALU
        }

    def in_step(self) -> bool:
        """True if all threads of a block take the same way: no loop or if depends on the thread."""
        own: set[UOp] = set()
        for u in self.uops:
            if self._differs(u) or (u.op is not UOps.ACROSS and own.intersection(u.src)):
                own.add(u)
        return not any(u.op in (UOps.LOOP, UOps.IF) and u in own for u in self.uops)

    def _differs(self, u: UOp) -> bool:
        """True if threads have values of their own even from common operands; not if all combine
        them.
        """
        return u.op in _DIFFERS and not (u.op is UOps.ACROSS and u.arg[1] == self.threads)


def _inside(uops: Sequence[UOp]) -> dict[UOp, list[UOp]]:
    """For each loop and if: itself and the UOps in it, without those in a loop or if
    inside of it.
    """
    inside: dict[UOp, list[UOp]] = {}
    opened: list[UOp] = []
    for u in uops:
        if u.op in (UOps.END, UOps.ENDIF):
            opened.pop()
        elif u.op in (UOps.LOOP, UOps.IF):
            opened.append(u)
            inside[u] = [u]
        elif opened:
            inside[opened[-1]].append(u)
    return inside


@final
class Machine:
    """Threads of a block that go in step: their values so far, registers, scratch, open loops.

    `common` is the memory that they share with the other threads of the block.
    """

    def __init__(
        self,
        program: Program,
        buffers: Sequence[Array],
        values: Mapping[int, int],
        bounds: tuple[int, int],
        threads: Array,
        common: dict[UOp, Memory],
    ) -> None:
        self.program = program
        self.buffers = buffers
        self.values = values
        self.bounds = bounds
        self.threads = threads
        self.common = common
        self.known: dict[UOp, Array] = {}
        self.memory: dict[UOp, Memory] = {}
        self.registers: dict[UOp, Array] = {}
        self.tiles = numpy.zeros((TILE.registers, TILE.rows, TILE.columns), numpy.uint32)
        self.copies: list[Copy] = []
        self.groups: list[list[Copy]] = []
        self.may_multiply = False
        """True after WGMMA_FENCE: registers are ready for products by warp groups."""
        self.products: list[tuple[Memory, Array]] = []
        """The elements that uncommitted products read; `committed` has those of committed ones
        under way.
        """
        self.committed: list[list[tuple[Memory, Array]]] = []

    def run(self, stop_at: UOps | None = None) -> Iterator[UOp]:
        """Run the program; stops at each UOp that waits for the other threads."""
        position = 0
        while position < len(self.program.uops):
            u = self.program.uops[position]
            if u.op is stop_at:
                return
            value_of = _VALUES.get(u.op)
            if value_of is not None:
                self.known[u] = self.checked(u, value_of(self, u))
                position += 1
            else:
                position = self.step(u, position)
            if u.op in _TOGETHER:
                yield u
        if self.copies or any(self.groups):
            raise InterpretError("a block ends while copies are on their way; WAIT for them")
        if self.products or self.committed:
            raise InterpretError("a block ends while products go on; WGMMA_WAIT for them")

    # -- computed values -------------------------------------------------------------------------

    def value(self, u: UOp) -> Array:
        """The value of a UOp."""
        try:
            return self.known[u]
        except KeyError:
            where = "outside the loop or if that computes it"
            raise InterpretError(f"{u.op.name} is used {where}") from None

    def number(self, u: UOp) -> int:
        """The value of a scalar that is the same for all threads."""
        return int(self.value(u)[0, 0])

    def mask(self, u: UOp, position: int) -> Array | None:
        """An optional operand."""
        return self.value(u.src[position]) if len(u.src) > position else None

    def register(self, u: UOp) -> Array:
        """The value of a register."""
        if u not in self.registers:
            raise InterpretError(f"register {u.arg} is used outside the block that has it")
        return self.registers[u]

    def close(self, opening: UOp) -> None:
        """Forget the values computed inside a block; the blocks in it have forgotten theirs."""
        for u in self.program.inside[opening]:
            self.known.pop(u, None)
            self.registers.pop(u, None)

    def checked(self, u: UOp, value: Array) -> Array:
        """The value, if it has the dtype and lanes of its UOp.

        Raises:
            InterpretError: it has others.
        """
        if value.shape[1] != u.lanes or value.dtype != _dtype(u).np:
            raise InterpretError(
                f"{u.op.name} gives {value.dtype} with {value.shape[1]} lanes, "
                f"not {_dtype(u).name} with {u.lanes}"
            )
        return value

    # -- UOps without a value --------------------------------------------------------------------

    def step(self, u: UOp, position: int) -> int:
        """Do one UOp; the position of the next one."""
        match u.op:
            case UOps.LOOP:
                first, limit, step = (self.number(s) for s in u.src)
                if step <= 0:
                    raise InterpretError(f"loop {u.arg} has step {step}; steps are positive")
                if first >= limit:
                    return self.program.end[u] + 1
                self.known[u] = self.counter(u, first)
            case UOps.END:
                return self.end(u.src[0], position)
            case UOps.IF:
                if not self.number(u.src[0]):
                    return self.program.end[u] + 1
            case UOps.ENDIF:
                self.close(u.src[0])
            case UOps.PARAM | UOps.SHARED:
                if u not in self.common:
                    self.common[u] = self.pointer(u)
                self.memory[u] = self.common[u]
            case UOps.LOCAL:
                self.memory[u] = self.pointer(u)
            case UOps.STORE:
                pointer, index, value = u.src[:3]
                memory = self.memory[pointer]
                memory.store(self.value(index), self.value(value), self.mask(u, 3), self.threads)
            case UOps.COPY:
                self.copies.append(self.copy(u))
            case UOps.COMMIT:
                self.groups.append(self.copies)
                self.copies = []
            case UOps.WAIT:
                self.wait(u.arg)
            case UOps.REG:
                self.registers[u] = self.checked(u, self.value(u.src[0]))
            case UOps.SET:
                self.register(u.src[0])
                self.registers[u.src[0]] = self.value(u.src[1])
            case UOps.TILE_ZERO | UOps.TILE_LOAD | UOps.TILE_DOT | UOps.TILE_STORE:
                self.tile(u)
            case UOps.EXTENT | UOps.BARRIER | UOps.PREFETCH:
                pass
            case UOps.WGMMA_FENCE:
                self.may_multiply = True
            case UOps.WGMMA_COMMIT:
                self.committed.append(self.products)
                self.products, self.may_multiply = [], False
            case UOps.WGMMA_WAIT:
                self.finish_products(u.arg)
            case UOps.PROXY_FENCE:
                for memory in self.common.values():
                    memory.show(self.threads)
            case _:
                raise InterpretError(f"{u.op.name} does nothing, and has no value")
        return position + 1

    def counter(self, u: UOp, value: int) -> Array:
        """The value of a loop counter in one iteration."""
        return numpy.array([[value]], _dtype(u).np)

    def end(self, loop: UOp, position: int) -> int:
        """End an iteration: go on to the next one, or leave the loop."""
        counter = self.number(loop) + self.number(loop.src[2])
        limit = self.number(loop.src[1])
        self.close(loop)
        if counter >= limit:
            return position + 1
        self.known[loop] = self.counter(loop, counter)
        return self.program.place[loop] + 1

    def copy(self, u: UOp) -> Copy:
        """Begin a copy. Its source is read now; a compiled kernel may read it until it waits."""
        to, to_index, source, index, mask = u.src[:5]
        valid, only_if = self.value(mask), self.mask(u, 5)
        if only_if is not None:
            valid = valid & only_if
        value = self.memory[source].load(self.value(index), u.lanes, valid, self.threads)
        return self.memory[to].await_copy(self.value(to_index), value, only_if, self.threads)

    def wait(self, newest: int) -> None:
        """Let all groups of copies but the newest ones arrive."""
        while len(self.groups) > newest:
            for copy in self.groups.pop(0):
                copy.arrive()

    def finish_products(self, newest: int) -> None:
        """Finish all groups of products but the newest ones."""
        while len(self.committed) > newest:
            for memory, chosen in self.committed.pop(0):
                numpy.subtract.at(memory.products, chosen, 1)

    def tile(self, u: UOp) -> None:
        """Do an operation on tile registers."""
        number, *rest = u.arg
        if u.op is UOps.TILE_ZERO:
            self.tiles[number] = 0
            return
        if u.op is UOps.TILE_DOT:
            left, right = (self.tiles[n] for n in rest)
            self.tiles[number] = tile_dot(self.tiles[number], left, right)
            return
        pointer, first = u.src
        (stride,) = rest
        lanes = self.tiles[number].nbytes // TILE.rows // _dtype(pointer).itemsize
        for row in range(TILE.rows):
            index = self.value(first) + row * stride
            if u.op is UOps.TILE_LOAD:
                loaded = self.memory[pointer].load(index, lanes, None, self.threads)
                self.tiles[number, row] = numpy.ascontiguousarray(loaded[0]).view(numpy.uint32)
            else:
                value = self.tiles[number, row].view(_dtype(pointer).np)[None]
                self.memory[pointer].store(index, value, None, self.threads)

    def pointer(self, u: UOp) -> Memory:
        """The memory of a PARAM, a LOCAL or a SHARED."""
        several = self.program.threads > 1
        if u.op in (UOps.LOCAL, UOps.SHARED):
            name, size = u.arg
            copies = len(self.threads) if u.op is UOps.LOCAL else 1
            users = Users(size) if several and u.op is UOps.SHARED else None
            data = numpy.zeros(size * copies, _dtype(u).np)
            return Memory(name, data, numpy.zeros(len(data), bool), users, copies)
        if not 0 <= u.arg < len(self.buffers):
            raise AccessError(f"buffer {u.arg} is not there: {len(self.buffers)} were given")
        data = self.buffers[u.arg]
        if data.dtype != numpy.dtype(_dtype(u).np) or data.ndim != 1:
            raise InterpretError(
                f"buffer {u.arg} is a {data.ndim}-d array of {data.dtype}, "
                f"not a flat one of {_dtype(u).name}"
            )
        users = Users(len(data)) if several else None
        return Memory(f"buffer {u.arg}", data, None, users, 1)

    # -- UOps with a value -----------------------------------------------------------------------

    def variable(self, u: UOp) -> Array:
        """A number from the argument table."""
        if u.arg not in self.values:
            raise InterpretError(f"slot {u.arg} of the table has no value; pass it")
        return numpy.array([[self.values[u.arg]]], numpy.int64)

    def constant(self, u: UOp) -> Array:
        """The same number in all lanes."""
        return numpy.full((1, u.lanes), u.arg, _dtype(u).np)

    def alu(self, u: UOp) -> Array:
        """An operation on each lane."""
        return self.program.functions[u](*[self.value(s) for s in u.src])

    def cast(self, u: UOp) -> Array:
        """The same numbers in another dtype."""
        return cast(self.value(u.src[0]), _dtype(u.src[0]), _dtype(u))

    def bitcast(self, u: UOp) -> Array:
        """The same bits in another dtype."""
        return numpy.ascontiguousarray(self.value(u.src[0])).view(_dtype(u).np)

    def shuffle(self, u: UOp) -> Array:
        """Chosen lanes of all operands."""
        return _side_by_side([self.value(s) for s in u.src])[:, list(u.arg)]

    def halved(self, u: UOp) -> Array:
        """All lanes combined."""
        return halved(u.arg, self.value(u.src[0]), _dtype(u.src[0]))

    def load(self, u: UOp) -> Array:
        """Elements of a memory."""
        memory = self.memory[u.src[0]]
        return memory.load(self.value(u.src[1]), u.lanes, self.mask(u, 2), self.threads)

    def multiplied(self, u: UOp, left: Array | None = None) -> Array:
        """A thread's part of a product by four warps, which read it from shared memory.

        If the threads hold the left operand, `left` is the whole of it.
        """
        if not self.may_multiply:
            raise InterpretError("a product begins without WGMMA_FENCE")
        *first, right, beside, before = u.src
        threads, e, held = self.threads[:, None], numpy.arange(u.lanes), WGMMA.held[2]
        rows, columns = WGMMA.result(threads % WARP, e % held)
        rows, columns = rows + threads // WARP * WGMMA.rows, columns + e // held * WGMMA.columns
        out = self.value(before)
        for term in range(WGMMA.terms):
            if left is None:
                inside = rows % (WGMMA.warps * WGMMA.rows)
                x = self.element(first[0], first[1], inside, term, u.arg[0])
            else:
                x = left[rows, term]
            y = self.element(right, beside, columns, term, u.arg[1])
            out = out + x.astype(numpy.float32) * y.astype(numpy.float32)
        return out

    def element(self, pointer: UOp, first: UOp, row: Array, term: int, distance: int) -> Array:
        """Elements of a warp group's operand, which are read until its product is done."""
        index = of_warp_groups(self.value(first), row, term, distance)
        value, chosen = self.memory[pointer].multiplied(index, self.threads)
        self.products.append((self.memory[pointer], chosen))
        return value

    def matrix_row(self, u: UOp) -> Array:
        """The row that each thread gives; the warp then distributes all of them."""
        memory = self.memory[u.src[0]]
        return memory.load(self.value(u.src[1]), u.lanes, None, self.threads)


_VALUES: Final[dict[UOps, Callable[[Machine, UOp], Array]]] = {
    UOps.VALUE: Machine.variable,
    UOps.START: lambda machine, u: numpy.array([[machine.bounds[0]]], numpy.int64),
    UOps.STOP: lambda machine, u: numpy.array([[machine.bounds[1]]], numpy.int64),
    UOps.CONST: Machine.constant,
    UOps.IOTA: lambda machine, u: numpy.arange(u.lanes, dtype=numpy.int64)[None],
    UOps.ALU: Machine.alu,
    UOps.CAST: Machine.cast,
    UOps.BITCAST: Machine.bitcast,
    UOps.SPLAT: lambda machine, u: numpy.repeat(machine.value(u.src[0]), u.lanes, 1),
    UOps.EXTRACT: lambda machine, u: machine.value(u.src[0])[:, u.arg : u.arg + 1],
    UOps.SHUFFLE: Machine.shuffle,
    UOps.HREDUCE: Machine.halved,
    UOps.LOAD: Machine.load,
    UOps.GET: lambda machine, u: machine.register(u.src[0]),
    UOps.THREAD: lambda machine, u: machine.threads[:, None],
    # Each thread's own part; the block combines them, multiplies them, or shares them out.
    UOps.ACROSS: lambda machine, u: machine.value(u.src[0]),
    UOps.MMA: lambda machine, u: machine.value(u.src[2]),
    UOps.MATRICES: Machine.matrix_row,
    UOps.WGMMA: lambda machine, u: machine.value(u.src[-1]),
}
"""The function for the value of each UOp that has one."""


def _side_by_side(parts: Sequence[Array]) -> Array:
    """The lanes of several values of the same threads, side by side."""
    rows = max(len(x) for x in parts)
    return numpy.concatenate([numpy.broadcast_to(x, (rows, x.shape[1])) for x in parts], 1)


def _warps(x: Array) -> list[Array]:
    """The part of each warp of a value that has a row for each thread."""
    return [x[i : i + WARP] for i in range(0, len(x), WARP)]


@final
class Block:
    """The threads of one chunk.

    Between two places where they wait, one machine runs after the other.
    """

    def __init__(self, machines: Sequence[Machine], common: Mapping[UOp, Memory]) -> None:
        self.machines = machines
        self.common = common

    def run(self) -> None:
        """Run the chunk."""
        running = [machine.run() for machine in self.machines]
        while True:
            places = [next(steps, None) for steps in running]
            if any(place is not places[0] for place in places):
                names = sorted({"the end" if u is None else u.op.name for u in places})
                raise InterpretError(f"threads of one block wait at different places: {names}")
            if places[0] is None:
                return
            self._meet(places[0])

    def _meet(self, u: UOp) -> None:
        """Handle a BARRIER, an ACROSS, an MMA or MATRICES that all threads have reached."""
        if u.op is UOps.ACROSS:
            self._combine(u)
            return
        if u.op is UOps.WGMMA:
            self._by_warp_groups(u)
            return
        if u.op in _OF_WARPS:
            self._by_warps(u)
            return
        for pointer, memory in self.common.items():
            if pointer.op is UOps.SHARED and memory.users is not None:
                memory.users.forget()

    def _combine(self, u: UOp) -> None:
        op, count, step = u.arg
        values = self._of_all(u)
        group = halved(op, values.reshape(-1, count, step, u.lanes), _dtype(u))
        every = numpy.repeat(group, count, 1).reshape(values.shape)
        for machine in self.machines:
            machine.known[u] = every[machine.threads]

    def _of_all(self, u: UOp) -> Array:
        """A value, with a row for each thread of the block."""
        return numpy.concatenate(
            [numpy.broadcast_to(m.value(u), (len(m.threads), u.lanes)) for m in self.machines]
        )

    def _by_warp_groups(self, u: UOp) -> None:
        """Multiply by four warps: operands in shared memory, the left one perhaps held by
        threads.
        """
        left = None
        if u.src[0].op is not UOps.SHARED:
            shape = (WGMMA.rows, WGMMA.terms)
            held = _warps(self._of_all(u.src[0]))
            left = numpy.concatenate([unfolded(warp, WGMMA.left, shape) for warp in held])
        for machine in self.machines:
            machine.known[u] = machine.multiplied(u, left)

    def _by_warps(self, u: UOp) -> None:
        """Multiply or distribute matrices in each warp, whose threads hold them in parts."""
        by = matrix_intrinsic(u.src[0].dtype) if u.op is UOps.MMA else None
        parts = [self._of_all(s) for s in ((u,) if by is None else u.src)]
        count = len(parts[0])
        if count % WARP:
            raise InterpretError(
                f"{u.op.name} by {count} threads; all {WARP} of each warp take part"
            )
        warps = zip(*map(_warps, parts), strict=True)
        done = [matrices(warp[0], u.arg) if by is None else mma(by, *warp) for warp in warps]
        every = numpy.concatenate(done)
        for machine in self.machines:
            machine.known[u] = every[machine.threads]
