"""Calibration: the `Speeds` of this machine's cores, measured by small loops.

Each loop repeats one kind of instruction, on independent values or on one chain of them. It is
timed several times, and the least time counts, as other processes can only add to it. A loop's time
is turned into cycles by that of a chain of integer additions, which takes one cycle each.

    python -m ferrule calibrate
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Final, final

from ferrule.base.config import Context
from ferrule.codegen.linearizer import Linearizer
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazyop import BinaryOps, BufferOps, ConstBuffer, LazyOp, MemBuffer, Op, UnaryOps
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.speeds import Speeds, shipped
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES, Target, detect_cpu
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu.llvm import CPUCompiler, load_object
from ferrule.runtime.cpu.measured import keep
from ferrule.runtime.cpu.memory import CPUAllocator
from ferrule.runtime.cpu.program import CPUProgram

_ROUNDS: Final = 15
_ROUND_SECONDS: Final = 0.004
_AT_ONCE: Final = 12
"""Independent values of a loop: more than what a core begins while it waits for a result."""
_MEMORY_BYTES: Final = 256 << 20
"""More than the caches of most machines."""
_ELEMENTS: Final = 4096
_TERMS: Final = 8
"""Results of an operation by which two kernels differ: their times differ by that."""

_NOTHING: Final = 'define void @empty(ptr %t, i64 %a, i64 %b) {{\n  ret void\n}}\n\
define i64 @"empty.extent"(ptr %t) {{\n  ret i64 {extent}\n}}\n'
_HEAD: Final = """define void @measured(ptr %memory, i64 %times) {{
entry:
{before}
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
{phis}
{work}
  %next = add nuw i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %body, label %done
done:
  ret void
}}
"""


def calibrate() -> Speeds:
    """Measures the speeds of this machine's cores, and keeps them in the disk cache.

    Processes that begin later use them: their kernels may have other schedules, and so round
    differently. Takes a few seconds; other work on the machine meanwhile makes it less exact.
    """
    target = detect_cpu()
    speeds = _Machine(target).speeds()
    keep(target.key, speeds)
    return speeds


@final
class _Machine:
    """The host, as loops that are timed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._compiler = CPUCompiler(target)
        self._allocator = CPUAllocator()
        self._vector = f"<{target.lanes(4)} x float>"
        # The registers of vectors, as constraints of inline assembly name them.
        self._class = "w" if target.arch == "aarch64" else "x"
        self._hertz = 1 / self._seconds_of_chain()

    def speeds(self) -> Speeds:
        """All constants; those that no loop measures as they are shipped."""
        target = self._target
        per_store = self._cycles(self._stores)
        per_addition = self._cycles(self._calculations)
        line = self._cycles_of_line(target.l2_bytes // 2)
        known = shipped(target.arch)
        measured = replace(
            known,
            hertz=self._hertz,
            bytes_per_second=LINE_BYTES * self._hertz / self._cycles_of_line(_MEMORY_BYTES),
            arithmetic=1 / per_addition,
            latency=self._cycles(self._chain),
            loads=1 / self._cycles(self._loads),
            stores=1 / per_store,
            shuffles=1 / self._cycles(self._shuffles),
            instructions=1 / self._cycles(self._mixture),
            masked_store=max(self._cycles(self._masked_stores) / per_store, 1.0),
            line=line,
            # Loads that do not wait for each other hide what a line alone costs; kernels' do wait.
            line_alone=line * known.line_alone / known.line,
            threads=self._cycles_of_threads(),
        )
        floats, ints = dtypes.float32, dtypes.int32
        return replace(
            measured,
            exp2=self._operation(UnaryOps.EXP2, floats) / per_addition,
            log2=self._operation(UnaryOps.LOG2, floats) / per_addition,
            sin=self._operation(UnaryOps.SIN, floats) / per_addition,
            sqrt=self._operation(UnaryOps.SQRT, floats) / per_addition,
            division=self._operation(BinaryOps.DIV, floats) / per_addition,
            remainder=self._operation(BinaryOps.MOD, floats) / per_addition,
            integer_division=self._operation(BinaryOps.DIV, ints) / per_addition,
        )

    # -- loops of one kind of instruction ------------------------------------------------------

    def _cycles(self, make: Callable[[], tuple[str, int]]) -> float:
        """The cycles of one instruction of a loop."""
        source, count = make()
        return self._seconds(source, PAGE_BYTES) * self._hertz / count

    def _seconds_of_chain(self) -> float:
        steps = 16
        work = [_barrier(f"a{n}", f"a{n}b", "i64", "r") for n in range(steps)]
        chain = [f"  %a{n + 1} = add i64 %a{n}b, %times" for n in range(steps)]
        both = [line for pair in zip(work, chain, strict=True) for line in pair]
        phis = f"  %a0 = phi i64 [ 1, %entry ], [ %a{steps}, %body ]"
        return self._seconds(_HEAD.format(before="", phis=phis, work="\n".join(both)), 64) / steps

    def _values(self, one: Callable[[str, str], str]) -> tuple[str, int]:
        """A loop in which each of several vectors becomes another one."""
        before = f"  %start = load {self._vector}, ptr %memory"
        names = [f"v{n}" for n in range(_AT_ONCE)]
        phis = [f"  %{v} = phi {self._vector} [ %start, %entry ], [ %{v}n, %body ]" for v in names]
        work = [one(v, f"{v}n") for v in names]
        return _HEAD.format(before=before, phis="\n".join(phis), work="\n".join(work)), _AT_ONCE

    def _calculation(self, op: str, value: str, result: str) -> str:
        kept = _barrier(value, f"{value}b", self._vector, self._class)
        return f"{kept}\n  %{result} = {op} {self._vector} %{value}b, %start"

    def _calculations(self) -> tuple[str, int]:
        """Additions and products by turns: some processors have other units for each."""
        ops = cycle(("fadd", "fmul"))
        return self._values(lambda value, result: self._calculation(next(ops), value, result))

    def _chain(self) -> tuple[str, int]:
        before = f"  %start = load {self._vector}, ptr %memory"
        phis = f"  %v0 = phi {self._vector} [ %start, %entry ], [ %v{_AT_ONCE}, %body ]"
        work = [self._calculation("fadd", f"v{n}", f"v{n + 1}") for n in range(_AT_ONCE)]
        return _HEAD.format(before=before, phis=phis, work="\n".join(work)), _AT_ONCE

    def _shuffles(self) -> tuple[str, int]:
        lanes = self._target.lanes(4)
        order = ", ".join(f"i32 {n}" for n in reversed(range(lanes)))

        def one(value: str, result: str) -> str:
            kept = _barrier(value, f"{value}b", self._vector, self._class)
            mask = f"<{lanes} x i32> <{order}>"
            of = f"{self._vector} %{value}b, {self._vector} poison"
            return f"{kept}\n  %{result} = shufflevector {of}, {mask}"

        return self._values(one)

    def _places(self, one: Callable[[int], str]) -> tuple[str, int]:
        """A loop of accesses to several vectors in the first cache."""
        start = f"  %start = load {self._vector}, ptr %memory"
        size = self._target.vector_bytes
        before = [start] + [
            f"  %p{n} = getelementptr i8, ptr %memory, i64 {size * n}" for n in range(_AT_ONCE)
        ]
        work = "\n".join(one(n) for n in range(_AT_ONCE))
        return _HEAD.format(before="\n".join(before), phis="", work=work), _AT_ONCE

    def _loads(self) -> tuple[str, int]:
        return self._places(lambda n: f"  %l{n} = load volatile {self._vector}, ptr %p{n}")

    def _stores(self) -> tuple[str, int]:
        return self._places(lambda n: f"  store volatile {self._vector} %start, ptr %p{n}")

    def _masked_stores(self) -> tuple[str, int]:
        lanes = self._target.lanes(4)
        masks = f"<{lanes} x i1>"
        name = f"llvm.masked.store.v{lanes}f32.p0"
        source, count = self._places(
            lambda n: f"  call void @{name}({self._vector} %start, ptr %p{n}, i32 4, {masks} %mask)"
        )
        read = f"  %bits = load <{lanes} x i32>, ptr %memory\n  %mask = icmp eq <{lanes} x i32>"
        mask = f"{read} %bits, zeroinitializer\n  br label %body\nbody:"
        declared = f"declare void @{name}({self._vector}, ptr, i32, {masks})\n"
        return declared + source.replace("  br label %body\nbody:", mask, 1), count

    def _mixture(self) -> tuple[str, int]:
        """Loads, and additions of vectors and of integers, so few of each that all can begin."""
        vectors, integers = 3, 10
        before = f"  %start = load {self._vector}, ptr %memory"
        phis = [
            f"  %v{n} = phi {self._vector} [ %start, %entry ], [ %v{n}n, %body ]"
            for n in range(vectors)
        ]
        phis += [f"  %s{n} = phi i64 [ 1, %entry ], [ %s{n}n, %body ]" for n in range(integers)]
        work = [self._calculation("fadd", f"v{n}", f"v{n}n") for n in range(vectors)]
        work += [f"  %l{n} = load volatile {self._vector}, ptr %memory" for n in range(vectors)]
        for n in range(integers):
            kept = _barrier(f"s{n}", f"s{n}b", "i64", "r")
            work.append(f"{kept}\n  %s{n}n = add i64 %s{n}b, 1")
        source = _HEAD.format(before=before, phis="\n".join(phis), work="\n".join(work))
        return source, 2 * vectors + integers + 2

    # -- memory --------------------------------------------------------------------------------

    def _cycles_of_line(self, nbytes: int) -> float:
        """The cycles to load one line of a block that is read again and again."""
        at_once = 8
        lines = nbytes // LINE_BYTES // at_once * at_once
        work = ["  %at = getelementptr i8, ptr %memory, i64 %place"]
        for n in range(at_once):
            work += [
                f"  %p{n} = getelementptr i8, ptr %at, i64 {n * LINE_BYTES}",
                f"  %l{n} = load volatile i64, ptr %p{n}",
            ]
        work += [
            f"  %after = add i64 %place, {at_once * LINE_BYTES}",
            f"  %in = icmp ult i64 %after, {lines * LINE_BYTES}",
            "  %placen = select i1 %in, i64 %after, i64 0",
        ]
        phis = "  %place = phi i64 [ 0, %entry ], [ %placen, %body ]"
        source = _HEAD.format(before="", phis=phis, work="\n".join(work))
        seconds = self._seconds(source, lines * LINE_BYTES, lines // at_once)
        return seconds * self._hertz / at_once

    # -- kernels -------------------------------------------------------------------------------

    def _cycles_of_threads(self) -> float:
        """The cycles by which a kernel without work takes longer on all threads than on one."""
        alone, shared = (
            CPUProgram("empty", self._compiler.compile(_NOTHING.format(extent=extent)))
            for extent in (1, max(self._target.max_threads, 2))
        )
        with Context(FERRULE_NUM_THREADS=max(self._target.max_threads, 1)):
            seconds = [_least(program) for program in (alone, shared)]
        return max((seconds[1] - seconds[0]) * self._hertz, 1.0)

    def _operation(self, op: Op, dtype: DType) -> float:
        """The cycles of an operation on one vector."""
        seconds = [self._repeated(op, dtype, times) for times in (1, 1 + _TERMS)]
        vectors = _ELEMENTS / self._target.lanes(4) * _TERMS
        additions = 2 * self._cycles(self._calculations)
        return max((seconds[1] - seconds[0]) * self._hertz / vectors - additions, additions)

    def _repeated(self, op: Op, dtype: DType, times: int) -> float:
        """The seconds of a kernel that adds up several results of an operation for each element."""
        st = ShapeTracker.from_shape((_ELEMENTS,))
        everywhere = ShapeTracker.from_shape((1,)).expand((_ELEMENTS,))
        value, other = (LazyOp(BufferOps.LOAD, (), MemBuffer(n, dtype, st)) for n in (1, 2))
        for n in range(times):
            number = LazyOp(BufferOps.CONST, (), ConstBuffer(n + 1, dtype, everywhere))
            term = LazyOp(BinaryOps.ADD, (other, number))
            term = LazyOp(op, (term,) if isinstance(op, UnaryOps) else (term, other))
            value = LazyOp(BinaryOps.ADD, (value, term))
        root = LazyOp(BufferOps.STORE, (value,), MemBuffer(0, dtype, st))
        program = Linearizer(root, self._target, name="repeated")
        source = LLVMRenderer(self._target).render("repeated", program.linearize().uops)
        kernel = CPUProgram("repeated", self._compiler.compile(source))
        blocks = [self._allocator.alloc(_ELEMENTS * 4) for _ in range(3)]
        ones = (ctypes.c_float if dtype is dtypes.float32 else ctypes.c_int32)(3)
        for block in blocks:
            self._allocator.copyin(block, memoryview(bytes(ones) * _ELEMENTS))
        with Context(FERRULE_NUM_THREADS=1):
            return _least(lambda: kernel(*blocks))

    def _seconds(self, source: str, nbytes: int, least: int = 64) -> float:
        """The seconds of one iteration of a loop on a block of memory, in at least `least`."""
        code = load_object(self._compiler.compile(source), {}, ("measured",))
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("measured"))
        block = self._allocator.alloc(max(nbytes, PAGE_BYTES))
        ctypes.memset(block.address, 0, block.nbytes)
        once = _least(lambda: run(block.address, least), 1)
        times = max(least, round(least * _ROUND_SECONDS / max(once, 1e-9)))
        return _least(lambda: run(block.address, times), 1) / times


def _barrier(value: str, result: str, kind: str, register: str) -> str:
    """Code that the compiler cannot look into: it leaves a value as it is, in no time."""
    return f'  %{result} = call {kind} asm sideeffect "", "={register},0"({kind} %{value})'


def _least(run: Callable[[], object], times: int = 200) -> float:
    """The least seconds of a call."""
    found = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - started) / times)
    return min(found)
