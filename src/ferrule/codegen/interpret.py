"""Runs a program in plain Python: what the program IR means, and the oracle of every renderer.

Each value is a NumPy array with a column for each lane, in the value's own dtype, so that float32
arithmetic rounds to float32. It has a row for each thread that goes in step, or one row where all
of them have the same. The interpreter is strict where compiled code would quietly do something
else: an access outside a buffer, a read of scratch that nobody wrote, a divisor of an index that
is not positive, a shift by the width or more, an operation that needs expanding first, a race
between the threads of a block, or a barrier that not all of them reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, final

import numpy

from ferrule.codegen.intrinsics import MMA, WARP, of_matrices
from ferrule.codegen.uops import UOp, UOps, verify
from ferrule.dtype import DType, dtypes
from ferrule.expr import ExprOp
from ferrule.records import dataclass

Array = numpy.ndarray[Any, Any]


class InterpretError(RuntimeError):
    """A program that does what compiled code must not do: a mistake in the compiler."""


class AccessError(InterpretError, IndexError):
    """A load or a store outside its buffer, or a read of scratch before any write to it."""


class RaceError(InterpretError):
    """Two threads touch an element, one to write it, and nothing says which comes first."""


# -- operations on values --------------------------------------------------------------------------


def _maximum(a: Array, b: Array) -> Array:
    """The greater; NaN if either is; of two equal ones (a zero of either sign) the first."""
    if a.dtype.kind == "b":
        return a | b
    return numpy.where((a < b) | (b != b), b, a)


def _minimum(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        return a & b
    return numpy.where((b < a) | (b != b), b, a)


def _negative(a: Array) -> Array:
    return ~a if a.dtype.kind == "b" else -a


def _subtract(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        raise InterpretError("SUB of bool has no meaning; use XOR, or cast to an integer first")
    return a - b


def _positive(b: Array) -> Array:
    if (b <= 0).any():
        raise InterpretError(f"an index is divided by {b.min()}; divisors must be positive")
    return b


def _truncated_division(a: Array, b: Array) -> Array:
    """Towards zero; x / 0 is 0; the quotient that does not fit wraps."""
    safe = numpy.where((b == 0) | (b == -1 if b.dtype.kind == "i" else False), 1, b)
    safe = safe.astype(b.dtype)
    quotient = (a - numpy.fmod(a, safe)) // safe
    negated = numpy.where(b == 0, 0, -a).astype(a.dtype)
    return numpy.where(safe == b, quotient, negated).astype(a.dtype)


def _truncated_remainder(a: Array, b: Array) -> Array:
    """With the sign of a; x % 0 is x."""
    safe = numpy.where((b == 0) | (b == -1 if b.dtype.kind == "i" else False), 1, b)
    remainder = numpy.fmod(a, safe.astype(b.dtype))
    return numpy.where(b == 0, a, remainder).astype(a.dtype)


def _shift_count(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    if (b < 0).any() or (b >= width).any():
        raise InterpretError(
            f"a shift by {b.ravel().tolist()} of {width}-bit values; counts are below it"
        )
    return b


def _fused_float32(a: Array, b: Array, c: Array) -> Array:
    """Rounded once: the float64 sum is made odd where it is inexact, then rounds correctly."""
    product = a.astype(numpy.float64) * b.astype(numpy.float64)
    addend = c.astype(numpy.float64)
    total = product + addend
    shadow = total - product
    lost = (product - (total - shadow)) + (addend - shadow)
    even = (total.view(numpy.int64) & 1) == 0
    inexact = numpy.isfinite(total) & (lost != 0) & even
    towards = numpy.where(lost > 0, numpy.inf, -numpy.inf)
    adjusted = numpy.where(inexact, numpy.nextafter(total, towards), total)
    return adjusted.astype(numpy.float32)


def _fused_scalar(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(numpy.float64(a) * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # for the sign of the zero
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fused(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c`, rounded once for floats."""
    if a.dtype.kind == "b":
        return (a & b) | c
    if a.dtype == numpy.float32:
        return _fused_float32(a, b, c)
    if a.dtype == numpy.float64:
        a, b, c = numpy.broadcast_arrays(a, b, c)
        values = zip(a.ravel().tolist(), b.ravel().tolist(), c.ravel().tolist(), strict=True)
        fused = [_fused_scalar(*operands) for operands in values]
        return numpy.array(fused, numpy.float64).reshape(a.shape)
    return a * b + c


def _without_subnormals(x: Array) -> Array:
    """float32 values, those below the least normal one as zeros of their sign."""
    return numpy.where(numpy.abs(x) < numpy.float32(2.0**-126), numpy.copysign(x * 0, x), x)


def _dot(a: Array, b: Array, c: Array) -> Array:
    """Two multiply-adds on pairs of bfloat16, the one of the upper halves first."""
    total = _without_subnormals(c)
    for shift in (16, 0):
        x, y = (_without_subnormals((pair >> shift << 16).view(numpy.float32)) for pair in (a, b))
        total = _without_subnormals(_fused_float32(x, y, total))
    return total


def mma(a: Array, b: Array, c: Array) -> Array:
    """What each of 32 threads has of `a @ b + c`, from its parts of these: terms in their order."""
    left = unfolded(a.astype(numpy.float32), MMA.left, (MMA.rows, MMA.terms))
    right = unfolded(b.astype(numpy.float32), MMA.right, (MMA.terms, MMA.columns))
    total = unfolded(c, MMA.result, (MMA.rows, MMA.columns))
    for term in range(MMA.terms):
        total = total + left[:, term : term + 1] * right[term]
    thread, element = numpy.indices(c.shape)
    parts: Array = total[MMA.result(thread, element)]
    return parts


def matrices(rows: Array, turned: bool) -> Array:
    """What each of 32 threads gets of four 8 x 8 matrices, of which each has given a row."""
    thread, element = numpy.indices(rows.shape)
    matrix, row, column = of_matrices(thread, element, turned)
    parts: Array = rows[8 * matrix + row, column]
    return parts


def unfolded(parts: Array, place: Callable[..., Any], shape: tuple[int, int]) -> Array:
    """The matrix of which each thread holds a row of `parts`."""
    out = numpy.zeros(shape, parts.dtype)
    out[place(*numpy.indices(parts.shape))] = parts
    return out


_ALU: Final[dict[ExprOp, Callable[..., Array]]] = {
    ExprOp.ADD: lambda a, b: a + b,
    ExprOp.SUB: _subtract,
    ExprOp.MUL: lambda a, b: a * b,
    ExprOp.FDIV: lambda a, b: a / b,
    ExprOp.IDIV: lambda a, b: a // _positive(b),
    ExprOp.MOD: lambda a, b: a % _positive(b),
    ExprOp.TDIV: _truncated_division,
    ExprOp.TMOD: _truncated_remainder,
    ExprOp.FMOD: numpy.fmod,
    ExprOp.NEG: _negative,
    ExprOp.MIN: _minimum,
    ExprOp.MAX: _maximum,
    ExprOp.CMPLT: numpy.less,
    ExprOp.CMPNE: numpy.not_equal,
    ExprOp.AND: numpy.bitwise_and,
    ExprOp.OR: numpy.bitwise_or,
    ExprOp.XOR: numpy.bitwise_xor,
    ExprOp.SHL: lambda a, b: numpy.left_shift(a, _shift_count(a, b)),
    ExprOp.SHR: lambda a, b: numpy.right_shift(a, _shift_count(a, b)),
    ExprOp.NOT: numpy.invert,
    ExprOp.WHERE: numpy.where,
    ExprOp.MULACC: fused,
    ExprOp.DOT: _dot,
    ExprOp.RECIP: lambda a: numpy.ones_like(a) / a,
    ExprOp.SQRT: numpy.sqrt,
    ExprOp.TRUNC: numpy.trunc,
    ExprOp.ROUND: numpy.rint,
}
_STORAGE_ONLY: Final = frozenset(
    {dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2}
)


def _alu(op: ExprOp, operands: Sequence[Array], sources: Sequence[DType]) -> Array:
    function = _ALU.get(op)
    if function is None:
        raise InterpretError(f"{op.name} is no operation of a program; expand it first")
    if op is not ExprOp.WHERE and any(source in _STORAGE_ONLY for source in sources):
        raise InterpretError(
            f"{op.name} of {sources[0].name}: programs compute in float32; CAST before and after"
        )
    return function(*operands)


def _round_to_odd_float32(x: Array) -> Array:
    """float64 to float32, an inexact result made odd, so that one more rounding is right."""
    near = x.astype(numpy.float32)
    away = numpy.abs(near.astype(numpy.float64)) > numpy.abs(x)
    inexact = numpy.isfinite(x) & (near.astype(numpy.float64) != x)
    bits = near.view(numpy.int32) - away.astype(numpy.int32)
    odd: Array = bits | inexact.astype(numpy.int32)
    return odd.view(numpy.float32)


def _cast(x: Array, source: DType, target: DType) -> Array:
    if target is dtypes.bool:
        nonzero: Array = x != numpy.zeros_like(x)
        return nonzero
    if dtypes.is_int(target) and dtypes.is_float(source):
        wide = numpy.uint64 if target is dtypes.uint64 else numpy.int64
        return x.astype(wide).astype(target.np)
    if target in _STORAGE_ONLY and source is not dtypes.bool:
        if source is dtypes.float64:
            x = _round_to_odd_float32(x)
        return x.astype(numpy.float32).astype(target.np)
    return x.astype(target.np)


def _halve(u: UOp, x: Array) -> Array:
    dtype = u.src[0].dtype
    assert dtype is not None
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = _alu(u.arg, (x[:, :half], x[:, half:]), (dtype, dtype))
    return x


# -- memory ----------------------------------------------------------------------------------------


_NOBODY: Final = -1
_SEVERAL: Final = -2


@final
class _Users:
    """Which thread has read, and which has written, each element since the last barrier."""

    def __init__(self, size: int) -> None:
        self.readers = numpy.full(size, _NOBODY)
        self.writers = numpy.full(size, _NOBODY)

    def forget(self) -> None:
        self.readers[:] = _NOBODY
        self.writers[:] = _NOBODY

    def read(self, chosen: Array, threads: Array, name: str) -> None:
        """Each of the chosen elements is read by the thread beside it."""
        self._check(self.writers, chosen, threads, f"reads {name}", "written")
        before = self.readers[chosen]
        mine = (before == _NOBODY) | (before == threads)
        readers = numpy.where(mine, threads, _SEVERAL)
        self.readers[chosen] = readers
        self.readers[chosen[self.readers[chosen] != readers]] = _SEVERAL

    def write(self, chosen: Array, threads: Array, name: str) -> None:
        """Each of the chosen elements is written by the thread beside it."""
        self._check(self.writers, chosen, threads, f"writes {name}", "written")
        self._check(self.readers, chosen, threads, f"writes {name}", "read")
        self.writers[chosen[::-1]] = threads[::-1]
        self._check(self.writers, chosen, threads, f"writes {name}", "written")

    def _check(self, users: Array, chosen: Array, threads: Array, does: str, done: str) -> None:
        others = (users[chosen] != _NOBODY) & (users[chosen] != threads)
        if others.any():
            raise RaceError(
                f"thread {threads[others][0]} {does}[{chosen[others][0]}], which another thread "
                f"has {done} since the last barrier"
            )


@final
class _Memory:
    """What a PARAM, a LOCAL or a SHARED points to. Of a LOCAL each thread has a copy."""

    def __init__(
        self, name: str, data: Array, written: Array | None, users: _Users | None, copies: int
    ) -> None:
        self.name = name
        self.data = data
        self.written = written  # one bool for each element of scratch; None: all is readable
        self.users = users  # None: a single thread, or a copy for each
        self.awaited = numpy.zeros(len(data), bool)  # elements that a copy is on its way to
        self.size = len(data) // copies
        self.first = numpy.arange(copies)[:, None] * self.size

    def chosen(self, index: Array, mask: Array | None, what: str, shape: tuple[int, int]) -> Array:
        """The element for each thread and lane whose mask is true, checked."""
        every = index if index.shape[1] == shape[1] else index + numpy.arange(shape[1])
        outside = (every < 0) | (every >= self.size)
        if mask is not None:
            outside = outside & mask
        if outside.any():
            first = numpy.broadcast_to(every, outside.shape)[outside][0]
            raise AccessError(f"{what} of {self.name}[{first}]: it has {self.size} elements")
        return _taken(every + self.first if len(self.first) > 1 else every, mask, shape)

    def load(self, index: Array, lanes: int, mask: Array | None, threads: Array) -> Array:
        shape = (len(threads), lanes)
        chosen = self.chosen(index, mask, "load", shape)
        if self.users is not None:
            self.users.read(chosen, _taken(threads[:, None], mask, shape), self.name)
        if self.written is not None and not self.written[chosen].all():
            first = chosen[~self.written[chosen]][0] % self.size
            raise AccessError(f"load of {self.name}[{first}], which was never written")
        if mask is None:
            return self.data[chosen].reshape(shape)
        value = numpy.zeros(shape, self.data.dtype)
        value[numpy.broadcast_to(mask, shape)] = self.data[chosen]
        return value

    def store(self, index: Array, value: Array, mask: Array | None, threads: Array) -> None:
        shape = (len(threads), value.shape[1])
        chosen = self.chosen(index, mask, "store", shape)
        self.write(chosen, _taken(threads[:, None], mask, shape))
        self.data[chosen] = _taken(value, mask, shape)

    def write(self, chosen: Array, threads: Array) -> None:
        """Each of the chosen elements is given a value by the thread beside it."""
        if self.awaited[chosen].any():
            first = chosen[self.awaited[chosen]][0]
            raise RaceError(f"{self.name}[{first}] is written, and a copy is on its way to it")
        if self.users is not None:
            self.users.write(chosen, threads, self.name)
        if self.written is not None:
            self.written[chosen] = True

    def await_copy(self, index: Array, value: Array, mask: Array | None, threads: Array) -> _Copy:
        """A copy of values to elements, which nobody may read or write before it is there."""
        shape = (len(threads), value.shape[1])
        chosen = self.chosen(index, mask, "copy", shape)
        by = _taken(threads[:, None], mask, shape)
        self.write(chosen, by)
        assert self.written is not None, f"a copy to {self.name}, which is no scratch"
        self.written[chosen], self.awaited[chosen] = False, True
        return _Copy(self, chosen, _taken(value, mask, shape), by)


@final
@dataclass(frozen=True)
class _Copy:
    """Values on their way to elements of a memory, by the threads that wait for them."""

    memory: _Memory
    chosen: Array
    values: Array
    threads: Array

    def arrive(self) -> None:
        self.memory.awaited[self.chosen] = False
        self.memory.write(self.chosen, self.threads)
        self.memory.data[self.chosen] = self.values


def _taken(x: Array, mask: Array | None, shape: tuple[int, int]) -> Array:
    """The elements, of a value stretched to a shape, whose mask is true."""
    if x.shape != shape:
        x = numpy.broadcast_to(x, shape)
    if mask is None:
        return x.ravel()
    return x[mask if mask.shape == shape else numpy.broadcast_to(mask, shape)]


# -- the machine -----------------------------------------------------------------------------------


# What differs from thread to thread, and where all of a block come together.
_OF_WARPS: Final = frozenset({UOps.MMA, UOps.MATRICES})
_DIFFERS: Final = _OF_WARPS | {UOps.THREAD, UOps.GET, UOps.LOAD, UOps.ACROSS}
_TOGETHER: Final = _OF_WARPS | {UOps.BARRIER, UOps.ACROSS}


@final
class _Program:
    """A list of UOps, and where its loops and ifs begin and end."""

    def __init__(self, uops: Sequence[UOp]) -> None:
        self.uops = uops
        self.threads = threads_of(uops)
        self.place = {u: i for i, u in enumerate(uops)}
        self.end = {u.src[0]: i for i, u in enumerate(uops) if u.op in (UOps.END, UOps.ENDIF)}
        self.body = {u: uops[self.place[u] : end] for u, end in self.end.items()}

    def in_step(self) -> bool:
        """Whether all threads of a block take the same way: no loop or if asks which one it is."""
        own: set[UOp] = set()
        for u in self.uops:
            if u.op in _DIFFERS or own.intersection(u.src):
                own.add(u)
        return not any(u.op in (UOps.LOOP, UOps.IF) and u in own for u in self.uops)


@final
class _Machine:
    """Threads of a block that go in step: their values so far, registers, scratch, open loops.

    `common` is the memory that they have in common with the other threads of the block.
    """

    def __init__(
        self,
        program: _Program,
        buffers: Sequence[Array],
        values: Mapping[int, int],
        bounds: tuple[int, int],
        threads: Array,
        common: dict[UOp, _Memory],
    ) -> None:
        self.program = program
        self.buffers = buffers
        self.values = values
        self.bounds = bounds
        self.threads = threads
        self.common = common
        self.known: dict[UOp, Array] = {}
        self.memory: dict[UOp, _Memory] = {}
        self.registers: dict[UOp, Array] = {}
        self.copies: list[_Copy] = []
        self.groups: list[list[_Copy]] = []

    def value(self, u: UOp) -> Array:
        if u not in self.known:
            raise InterpretError(f"{u.op.name} is used outside the loop or if that computes it")
        return self.known[u]

    def number(self, u: UOp) -> int:
        return int(self.value(u)[0, 0])

    def mask(self, u: UOp, position: int) -> Array | None:
        return self.value(u.src[position]) if len(u.src) > position else None

    def close(self, opening: UOp) -> None:
        """Forget what was computed inside a block."""
        for u in self.program.body[opening]:
            self.known.pop(u, None)
            self.registers.pop(u, None)

    def run(self, stop_at: UOps | None = None) -> Iterator[UOp]:
        """Does the program; stops at each UOp that waits for the other threads."""
        position = 0
        while position < len(self.program.uops):
            u = self.program.uops[position]
            if u.op is stop_at:
                return
            position = self.step(u, position)
            if u.op in _TOGETHER:
                yield u
        if self.copies or any(self.groups):
            raise InterpretError("a block ends while copies are on their way; WAIT for them")

    def step(self, u: UOp, position: int) -> int:
        """Do one UOp; gives the position of the next."""
        match u.op:
            case UOps.LOOP:
                first, limit, step = (self.number(s) for s in u.src)
                if step <= 0:
                    raise InterpretError(f"loop {u.arg} has step {step}; steps are positive")
                if first >= limit:
                    return self.program.end[u] + 1
                self.known[u] = self.counter(u, first)
            case UOps.END:
                loop = u.src[0]
                counter = self.number(loop) + self.number(loop.src[2])
                limit = self.number(loop.src[1])
                self.close(loop)
                if counter < limit:
                    self.known[loop] = self.counter(loop, counter)
                    return self.program.place[loop] + 1
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
            case UOps.EXTENT | UOps.BARRIER | UOps.PREFETCH:
                pass
            case _:
                self.known[u] = self.checked(u, self.compute(u))
        return position + 1

    def copy(self, u: UOp) -> _Copy:
        """Its source is read now; a compiled kernel may do so until it waits."""
        to, to_index, source, index, mask = u.src[:5]
        valid, only_if = self.value(mask), self.mask(u, 5)
        if only_if is not None:
            valid = valid & only_if
        value = self.memory[source].load(self.value(index), u.lanes, valid, self.threads)
        return self.memory[to].await_copy(self.value(to_index), value, only_if, self.threads)

    def wait(self, newest: int) -> None:
        """All groups of copies but the newest ones arrive."""
        while len(self.groups) > newest:
            for copy in self.groups.pop(0):
                copy.arrive()

    def counter(self, u: UOp, value: int) -> Array:
        assert u.dtype is not None
        return numpy.array([[value]], u.dtype.np)

    def register(self, u: UOp) -> Array:
        if u not in self.registers:
            raise InterpretError(f"register {u.arg} is used outside the block that has it")
        return self.registers[u]

    def checked(self, u: UOp, value: Array) -> Array:
        assert u.dtype is not None
        if value.shape[1] != u.lanes or value.dtype != numpy.dtype(u.dtype.np):
            raise InterpretError(
                f"{u.op.name} gives {value.dtype} with {value.shape[1]} lanes, "
                f"not {u.dtype.name} with {u.lanes}"
            )
        return value

    def pointer(self, u: UOp) -> _Memory:
        assert u.dtype is not None
        several = self.program.threads > 1
        if u.op in (UOps.LOCAL, UOps.SHARED):
            name, size = u.arg
            copies = len(self.threads) if u.op is UOps.LOCAL else 1
            users = _Users(size) if several and u.op is UOps.SHARED else None
            data = numpy.zeros(size * copies, u.dtype.np)
            return _Memory(name, data, numpy.zeros(len(data), bool), users, copies)
        if not 0 <= u.arg < len(self.buffers):
            raise AccessError(f"buffer {u.arg} is not there: {len(self.buffers)} were given")
        data = self.buffers[u.arg]
        if data.dtype != numpy.dtype(u.dtype.np) or data.ndim != 1:
            raise InterpretError(
                f"buffer {u.arg} is a {data.ndim}-d array of {data.dtype}, "
                f"not a flat one of {u.dtype.name}"
            )
        users = _Users(len(data)) if several else None
        return _Memory(f"buffer {u.arg}", data, None, users, 1)

    def compute(self, u: UOp) -> Array:
        """The value of a UOp that has one."""
        assert u.dtype is not None
        match u.op:
            case UOps.VALUE:
                if u.arg not in self.values:
                    raise InterpretError(f"slot {u.arg} of the table has no value; pass it")
                return numpy.array([[self.values[u.arg]]], numpy.int64)
            case UOps.START:
                return numpy.array([[self.bounds[0]]], numpy.int64)
            case UOps.STOP:
                return numpy.array([[self.bounds[1]]], numpy.int64)
            case UOps.CONST:
                return numpy.full((1, u.lanes), u.arg, u.dtype.np)
            case UOps.IOTA:
                return numpy.arange(u.lanes, dtype=numpy.int64)[None]
            case UOps.ALU:
                sources = [s.dtype for s in u.src if s.dtype is not None]
                return _alu(u.arg, [self.value(s) for s in u.src], sources)
            case UOps.CAST:
                source = u.src[0].dtype
                assert source is not None
                return _cast(self.value(u.src[0]), source, u.dtype)
            case UOps.BITCAST:
                return numpy.ascontiguousarray(self.value(u.src[0])).view(u.dtype.np)
            case UOps.SPLAT:
                return numpy.repeat(self.value(u.src[0]), u.lanes, 1)
            case UOps.EXTRACT:
                return self.value(u.src[0])[:, u.arg : u.arg + 1]
            case UOps.SHUFFLE:
                return _side_by_side([self.value(s) for s in u.src])[:, list(u.arg)]
            case UOps.HREDUCE:
                return _halve(u, self.value(u.src[0]))
            case UOps.LOAD:
                memory = self.memory[u.src[0]]
                return memory.load(self.value(u.src[1]), u.lanes, self.mask(u, 2), self.threads)
            case UOps.THREAD:
                return self.threads[:, None]
            case UOps.ACROSS:
                return self.value(u.src[0])  # its own part; the block combines them
            case UOps.MMA:
                return self.value(u.src[2])  # the same
            case UOps.MATRICES:  # the row that it gives; the warp shares out all of them
                memory = self.memory[u.src[0]]
                return memory.load(self.value(u.src[1]), u.lanes, None, self.threads)
            case UOps.GET:
                return self.register(u.src[0])
            case _:
                raise InterpretError(f"{u.op.name} has no value")


def _side_by_side(parts: Sequence[Array]) -> Array:
    """Values of the same threads with all their lanes."""
    rows = max(len(x) for x in parts)
    return numpy.concatenate([numpy.broadcast_to(x, (rows, x.shape[1])) for x in parts], 1)


def threads_of(uops: Sequence[UOp]) -> int:
    """How many threads do a chunk of a program together."""
    return next((u.arg or 1 for u in uops if u.op is UOps.EXTENT), 1)


@final
class _Block:
    """The threads of one chunk. Between two places where they wait, one machine goes after the
    other.
    """

    def __init__(self, machines: Sequence[_Machine], common: Mapping[UOp, _Memory]) -> None:
        self.machines = machines
        self.common = common

    def run(self) -> None:
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
        """All threads have got to a BARRIER, an ACROSS, an MMA or MATRICES."""
        if u.op is UOps.ACROSS:
            self._combine(u)
            return
        if u.op in _OF_WARPS:
            self._by_warps(u)
            return
        for pointer, memory in self.common.items():
            if pointer.op is UOps.SHARED and memory.users is not None:
                memory.users.forget()

    def _combine(self, u: UOp) -> None:
        op, count, step = u.arg
        assert u.dtype is not None
        values = self._of_all(u)
        group = values.reshape(-1, count, step, u.lanes)
        while group.shape[1] > 1:
            half = group.shape[1] // 2
            group = _alu(op, (group[:, :half], group[:, half:]), (u.dtype, u.dtype))
        every = numpy.repeat(group, count, 1).reshape(values.shape)
        for machine in self.machines:
            machine.known[u] = every[machine.threads]

    def _of_all(self, u: UOp) -> Array:
        """A value, with a row for each thread of the block."""
        return numpy.concatenate(
            [numpy.broadcast_to(m.value(u), (len(m.threads), u.lanes)) for m in self.machines]
        )

    def _by_warps(self, u: UOp) -> None:
        """Each warp multiplies or shares out matrices, which its threads hold in parts."""
        multiplies = u.op is UOps.MMA
        parts = [self._of_all(s) for s in (u.src if multiplies else (u,))]
        count = len(parts[0])
        if count % WARP:
            raise InterpretError(
                f"{u.op.name} by {count} threads; all {WARP} of each warp take part"
            )
        warps = [[x[i : i + WARP] for x in parts] for i in range(0, count, WARP)]
        done = [mma(*warp) if multiplies else matrices(warp[0], u.arg) for warp in warps]
        every = numpy.concatenate(done)
        for machine in self.machines:
            machine.known[u] = every[machine.threads]


def _by_slot(
    values: Mapping[int, int] | Sequence[int], buffers: Sequence[Array]
) -> Mapping[int, int]:
    if isinstance(values, Mapping):
        return values
    return {len(buffers) + i: value for i, value in enumerate(values)}


def extent(
    uops: Sequence[UOp], values: Mapping[int, int] | Sequence[int] = (), n_buffers: int = 0
) -> int:
    """The number of chunks of a program: what its EXTENT says.

    `values` are as for `interpret`; `n_buffers` is needed where they are a list.
    """
    by_slot = _by_slot(values, [numpy.empty(0)] * n_buffers)
    verify(uops)
    machine = _Machine(_Program(uops), (), by_slot, (0, 0), numpy.arange(1), {})
    for _ in machine.run(stop_at=UOps.EXTENT):
        pass
    (found,) = (u for u in uops if u.op is UOps.EXTENT)
    return machine.number(found.src[0])


def interpret(
    uops: Sequence[UOp],
    buffers: Sequence[Array],
    values: Mapping[int, int] | Sequence[int] = (),
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Do chunks `start` to `stop` - 1 of a program; all of them by default.

    `buffers` are flat arrays, in the order of the PARAMs' slots; the stores change them. `values`
    maps slots of the argument table to the variables' values; a list gives those of the slots
    behind the buffers.

    Raises:
        ProgramError: the program breaks the rules of the IR (`verify`).
        AccessError: a load or a store is out of range, or reads scratch that was never written.
        RaceError: a thread, or a block, touches what another writes.
        InterpretError: anything else that compiled code must not do.
    """
    verify(uops)
    by_slot = _by_slot(values, buffers)
    if stop is None:
        stop = extent(uops, by_slot)
    program = _Program(uops)
    numbers = numpy.arange(program.threads)
    parts = [numbers] if program.in_step() else list(numbers[:, None])
    chunks = [(i, i + 1) for i in range(start, stop)] if program.threads > 1 else [(start, stop)]
    written: dict[int, _Users] = {}
    with numpy.errstate(all="ignore"):
        for bounds in chunks:
            common: dict[UOp, _Memory] = {}
            machines = [_Machine(program, buffers, by_slot, bounds, t, common) for t in parts]
            _Block(machines, common).run()
            _check_blocks(common, written, bounds[0])


def _check_blocks(common: Mapping[UOp, _Memory], blocks: dict[int, _Users], block: int) -> None:
    """What a block has read and written, against what the blocks before it have."""
    for pointer, memory in common.items():
        if pointer.op is not UOps.PARAM or memory.users is None:
            continue
        of_all = blocks.setdefault(pointer.arg, _Users(len(memory.data)))
        (read,) = numpy.nonzero(memory.users.readers != _NOBODY)
        (wrote,) = numpy.nonzero(memory.users.writers != _NOBODY)
        of_all.read(read, numpy.full(len(read), block), f"{memory.name} (as a block)")
        of_all.write(wrote, numpy.full(len(wrote), block), f"{memory.name} (as a block)")
