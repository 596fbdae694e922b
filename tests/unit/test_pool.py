"""Sharing chunks among threads: each is run once, whatever the threads, and Ctrl-C works."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.interrupting import interrupted_once

from ferrule.base.config import Context, config
from ferrule.runtime.cpu import llvm, native, pool
from ferrule.runtime.cpu.memory import CPUAllocator, CPUMemory
from ferrule.runtime.cpu.program import CPUProgram, native_runtime

Kernels = dict[str, Callable[..., str]]
compiler = llvm.host_compiler()
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
may_fork = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def program(name: str, source: str) -> CPUProgram:
    return CPUProgram(name, compiler.compile_cached(source))


def counters(size: int) -> tuple[CPUMemory, np.ndarray]:
    memory = CPUAllocator().alloc(8 * size)
    array = np.frombuffer(memory.view(), np.int64)
    array[:] = 0
    return memory, array


@pytest.fixture
def counting(kernels: Kernels) -> CPUProgram:
    """out[i] += 1 for as many chunks as the variable says."""
    return program("count", kernels["count_kernel"]("count", kernels["extent_from"](1)))


@pytest.fixture
def slow(kernels: Kernels) -> CPUProgram:
    """The same, a fraction of a millisecond a chunk."""
    extent = kernels["extent_from"](1)
    return program("slow", kernels["count_kernel"]("slow", extent, busy=400_000))


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("n_chunks", [0, 1, 2, 5, 16, 33, 1000, 12345])
def test_each_chunk_is_run_once(counting: CPUProgram, n_threads: int, n_chunks: int) -> None:
    memory, array = counters(13_000)
    with Context(FERRULE_NUM_THREADS=n_threads):
        for _ in range(20):
            counting(memory, vals=(n_chunks,))
    assert (array[:n_chunks] == 20).all()
    assert not array[n_chunks:].any()


def test_a_negative_extent_runs_nothing(counting: CPUProgram) -> None:
    memory, array = counters(8)
    counting(memory, vals=(-3,))
    assert not array.any()


@pytest.fixture
def stacks(kernels: Kernels) -> CPUProgram:
    """Each of 64 chunks notes the stack that it ran on; a worker has its own."""
    body = (
        kernels["slot"]("out", 0)
        + """
  %place = alloca i64
  %stack = ptrtoint ptr %place to i64
  %at = getelementptr i64, ptr %out, i64 %i
  store i64 %stack, ptr %at
  br label %wait
wait:
  %turn = phi i64 [ 0, %chunk ], [ %turn.next, %wait ]
  call void asm sideeffect "", ""()
  %turn.next = add i64 %turn, 1
  %again = icmp slt i64 %turn.next, 100000
  br i1 %again, label %wait, label %end
end:
"""
    )
    return program("stacks", kernels["kernel_source"]("stacks", body, "ret i64 64"))


def threads_of_chunks(stacks: CPUProgram, n_threads: int) -> np.ndarray:
    """Which chunks this thread ran, and which a worker, in a run in which both took part."""
    memory, array = counters(64)
    with Context(FERRULE_NUM_THREADS=1):
        stacks(memory)
    own = int(array[0])
    for _ in range(200):
        with Context(FERRULE_NUM_THREADS=n_threads):
            stacks(memory)
        is_own = abs(array - own) < 1 << 20
        if is_own.any() and not is_own.all():
            return is_own
    pytest.fail("in 200 runs of 64 chunks no worker took one, or all")


def test_workers_take_part(stacks: CPUProgram) -> None:
    assert 0 < threads_of_chunks(stacks, 3).sum() < 64


def test_two_threads_work_from_both_ends(stacks: CPUProgram) -> None:
    """The caller has the first chunks in every run, and the worker the last."""
    for _ in range(20):
        is_own = threads_of_chunks(stacks, 2)
        assert is_own[0]
        assert not is_own[-1]
        assert np.count_nonzero(np.diff(is_own)) == 1


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_more_chunks_than_32_bits_hold(kernels: Kernels, n_threads: int) -> None:
    """They are counted by several; each call adds how many it was given, and notes the last."""
    source = f"""
define i64 @"many.extent"(ptr %args) nounwind {{
  {kernels["extent_from"](1)}
}}
define void @"many"(ptr %args, i64 %start, i64 %stop) nounwind {{
  {kernels["slot"]("out", 0)}
  %size = sub i64 %stop, %start
  %before = atomicrmw add ptr %out, i64 %size monotonic
  %last_at = getelementptr i64, ptr %out, i64 1
  %last = atomicrmw max ptr %last_at, i64 %stop monotonic
  ret void
}}
"""
    many = program("many", source)
    for size in ((1 << 31) - 1, 1 << 31, (1 << 33) + 5):
        memory, array = counters(2)
        with Context(FERRULE_NUM_THREADS=n_threads):
            many(memory, vals=(size,))
        assert array.tolist() == [size, size]


def test_a_worker_that_sleeps_is_woken(slow: CPUProgram) -> None:
    memory, array = counters(64)
    with Context(FERRULE_NUM_THREADS=3):
        for _ in range(5):
            time.sleep(0.01)  # far longer than workers spin
            slow(memory, vals=(16,))
    assert (array[:16] == 5).all()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves workers between cores")
def test_workers_keep_their_right_to_all_cores(slow: CPUProgram) -> None:
    """One that leaves its caller's core is allowed there again."""
    memory, _ = counters(64)
    with Context(FERRULE_NUM_THREADS=4):
        for _ in range(30):
            time.sleep(0.002)
            slow(memory, vals=(8,))
    # A worker that is just moving is done in a moment, or as soon as a busy machine lets it run.
    for _ in range(6000):
        masks = {
            line
            for status in Path("/proc/self/task").glob("*/status")
            for line in status.read_text().splitlines()
            if line.startswith("Cpus_allowed:")
        }
        if len(masks) == 1:
            return
        time.sleep(0.01)
    pytest.fail(f"workers may run on {masks}")


def test_many_callers_at_once(counting: CPUProgram, slow: CPUProgram) -> None:
    """One has the pool, the others run their kernels alone; nobody's chunks get lost."""
    failures: list[str] = []

    def call(kernel: CPUProgram, n_chunks: int) -> None:
        memory, array = counters(n_chunks)
        with Context(FERRULE_NUM_THREADS=3):
            for round_number in range(1, 30):
                kernel(memory, vals=(n_chunks,))
                if not (array == round_number).all():
                    failures.append(f"{kernel.name} {n_chunks} in round {round_number}")

    callers = [
        threading.Thread(target=call, args=(kernel, n_chunks))
        for kernel, n_chunks in [(counting, 1000), (slow, 3), (counting, 7), (slow, 2)]
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_a_caller_on_another_thread_flushing_denormals(kernels: Kernels) -> None:
    """The mode of the calling thread must not change what a kernel computes."""
    arch = compiler.target.arch
    if arch not in MODES:
        pytest.skip(f"no mode is set on {arch}")
    source, flush = MODES[arch]
    body = (
        kernels["slot"]("out", 0)
        + """
  %at = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %at
  %half = fmul float %x, 0.5
  store float %half, ptr %at
"""
    )
    halve = program("halve", kernels["kernel_source"]("halve", body))
    mode = llvm.load_object(compiler.compile(source), {}, ("set_mode", "get_mode"))
    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_int32)(mode.address("set_mode"))
    get_mode = ctypes.CFUNCTYPE(ctypes.c_int32)(mode.address("get_mode"))
    memory = CPUAllocator().alloc(4)
    value = np.frombuffer(memory.view(), np.float32)
    value[:] = np.float32(1.5e-38)
    usual = get_mode()
    try:
        set_mode(usual | flush)
        halve(memory)
        flushing = get_mode()
    finally:
        set_mode(usual)
    assert value[0] == np.float32(0.75e-38)
    assert flushing & flush == flush  # the caller has its mode back


# How the mode is read and set, and its bits for zeros in place of denormals.
X86_MODE = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @set_mode(i32 %mode) {
  %at = alloca i32
  store i32 %mode, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
define i32 @get_mode() {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %mode = load i32, ptr %at
  ret i32 %mode
}
"""
ARM_MODE = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define void @set_mode(i32 %mode) {
  %whole = zext i32 %mode to i64
  call void @llvm.aarch64.set.fpcr(i64 %whole)
  ret void
}
define i32 @get_mode() {
  %whole = call i64 @llvm.aarch64.get.fpcr()
  %mode = trunc i64 %whole to i32
  ret i32 %mode
}
"""
MODES = {"x86-64": (X86_MODE, 0x8040), "aarch64": (ARM_MODE, 1 << 24)}


@needs_fork
@may_fork
def test_a_forked_child_has_a_pool_of_its_own(counting: CPUProgram) -> None:
    memory, array = counters(1000)
    with Context(FERRULE_NUM_THREADS=3):
        counting(memory, vals=(1000,))
        child = os.fork()
        if child == 0:
            threads = threading.active_count()
            counting(memory, vals=(1000,))
            good = threads == 1 and threading.active_count() == 3 and (array == 2).all()
            os._exit(0 if good else 1)
        counting(memory, vals=(1000,))
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 2).all()


@needs_fork
@may_fork
def test_a_fork_while_another_thread_runs_a_kernel(slow: CPUProgram) -> None:
    memory, _ = counters(2000)
    stop = threading.Event()

    def run() -> None:
        with Context(FERRULE_NUM_THREADS=2):
            while not stop.is_set():
                slow(memory, vals=(100,))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                own, array = counters(50)
                with Context(FERRULE_NUM_THREADS=2):
                    slow(own, vals=(50,))
                os._exit(0 if (array == 1).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_ctrl_c_stops_a_long_kernel(slow: CPUProgram) -> None:
    memory, array = counters(10_000_000)
    for n_threads in (1, 2):
        array[:] = 0
        with Context(FERRULE_NUM_THREADS=n_threads):
            with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: array[:1000].any()):
                slow(memory, vals=(10_000_000,))
            done = int(array.sum())
            assert 0 < done < 10_000_000  # all of them would take minutes
            assert array.max() == 1
            # The process, the program and the pool are as good as before.
            array[:] = 0
            slow(memory, vals=(100,))
            assert int(array.sum()) == 100


def test_a_kernel_is_continued_where_its_slice_ended(slow: CPUProgram) -> None:
    """Slices of no time: every block of chunks is a call of its own."""
    runtime = native_runtime()
    memory, array = counters(500)
    before = runtime.slice_ticks
    try:
        runtime.slice_ticks = 0
        runtime.apply_times()
        for n_threads in (1, 2, 3):
            array[:] = 0
            with Context(FERRULE_NUM_THREADS=n_threads):
                slow(memory, vals=(500,))
            assert (array == 1).all()
    finally:
        runtime.slice_ticks = before
        runtime.apply_times()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_taken_at_both_ends_stays_taken(counting: CPUProgram, n_threads: int) -> None:
    """Also where another slice ends before the rest is done."""
    runtime = native_runtime()
    functions = [counting.body, counting.extent, runtime.pool, 0]
    kept, address = pool.record(functions)
    launch = runtime.launcher(address)
    memory, array = counters(1000)
    table = b"".join(value.to_bytes(8, "little") for value in (memory.address, 1000))
    before = runtime.slice_ticks
    try:
        runtime.slice_ticks = 0
        runtime.apply_times()
        taken, calls = 31 | 44 << 32, 0
        with Context(FERRULE_NUM_THREADS=n_threads):
            while taken:
                taken = launch(table, taken, runtime.threads(config()))
                calls += 1
    finally:
        runtime.slice_ticks = before
        runtime.apply_times()
    assert calls > 1 or n_threads > 1  # another thread may do all that is left in the first
    assert kept[:3].tolist() == functions[:3]
    assert (array[31:-44] == 1).all()
    assert not array[:31].any()
    assert not array[-44:].any()


def test_the_time_is_given_when_asked_for(slow: CPUProgram) -> None:
    memory, _ = counters(4)
    assert slow(memory, vals=(4,)) is None
    started = time.perf_counter()
    seconds = slow(memory, vals=(4,), wait=True)
    assert seconds is not None
    assert 0 < seconds <= time.perf_counter() - started


# The other way to sleep, and calls without PyCFunction: what other systems use.


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> pool.NativeRuntime:
    """A runtime with POSIX condition variables, the system's clock, and ctypes."""
    monkeypatch.setattr(pool, "_has_python_calls", False)
    source = native.ir("other", sys.platform, for_python=False)
    names = pool.runtime_functions()
    code = llvm.load_object(compiler.compile_cached(source), pool.runtime_externals(), names)
    return pool.NativeRuntime(code, "other")


def test_condition_variables_and_ctypes(portable: pool.NativeRuntime, kernels: Kernels) -> None:
    source = kernels["count_kernel"]("count", kernels["extent_from"](1), busy=20_000)
    code = llvm.load_object(
        compiler.compile_cached(source), pool.kernel_externals, ("count", "count.extent")
    )
    functions = [code.address("count"), code.address("count.extent")]
    record, address = pool.record([*functions, portable.pool, 0])
    assert len(record) == 4
    launch = portable.launcher(address)
    memory, array = counters(300)
    table = b"".join(value.to_bytes(8, "little") for value in (memory.address, 300))
    with Context(FERRULE_NUM_THREADS=3):
        for round_number in range(1, 31):
            if round_number % 10 == 0:
                time.sleep(0.01)
            taken = launch(table, 0, portable.threads(config()))
            while taken:
                taken = launch(table, taken, portable.threads(config()))
            assert (array == round_number).all()
    portable.stop()
    assert portable.threads(config()) == 1
    assert launch(table, 0, 2) == 0
    assert (array == 31).all()


def test_other_processors_get_a_runtime_too() -> None:
    for arch, system in [("aarch64", "linux"), ("aarch64", "darwin"), ("riscv64", "linux")]:
        source = native.ir(arch, system, for_python=True)
        assert "llvm.x86" not in source
        assert ("@syscall" in source) == ((arch, system) == ("aarch64", "linux"))


@pytest.mark.parametrize(
    ("function", "runs_code"),
    [
        (native.LAUNCH, "call void %body"),
        (native.REPLAY, "@run_batch"),
        (native.REPLAY, "@run_lanes"),
        (native.WORKER, "@take_block"),
    ],
)
def test_code_of_other_threads_is_fetched_anew(function: str, runs_code: str) -> None:
    """AArch64 wants an `isb` between hearing of new code and running it; x86-64 does not."""

    def body(arch: str) -> str:
        source = native.ir(arch, "linux", for_python=False)
        return source[source.index(f'@"{function}"') :].partition("\n}\n")[0]

    before = body("aarch64").partition(runs_code)[0]
    assert "@llvm.aarch64.isb" in before
    assert len(before) < len(body("aarch64"))
    assert "isb" not in body("x86-64")


AT_EXIT = """
import atexit, threading, time
import numpy as np
from ferrule.base.config import Context
from ferrule.runtime.cpu import llvm
from ferrule.runtime.cpu.memory import CPUAllocator
from ferrule.runtime.cpu.program import CPUProgram

SOURCE = '''{source}'''

def run(n_chunks):
    memory = CPUAllocator().alloc(8 * n_chunks)
    array = np.frombuffer(memory.view(), np.int64)
    array[:] = 0
    with Context(FERRULE_NUM_THREADS=3):
        kernel(memory, vals=(n_chunks,))
    return int(array.sum())

atexit.register(lambda: print("after the pool:", run(10)))
kernel = CPUProgram("slow", llvm.host_compiler().compile_cached(SOURCE))
print("before:", run(10))
threading.Thread(target=run, args=(1_000_000,), daemon=True).start()
time.sleep(0.05)
"""


def test_the_interpreter_exits_cleanly(kernels: Kernels, tmp_path: Path) -> None:
    """With a daemon thread inside a long kernel, and a kernel run after the pool has ended."""
    source = kernels["count_kernel"]("slow", kernels["extent_from"](1), busy=100_000)
    environment = {"FERRULE_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT.format(source=source)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "before: 10\nafter the pool: 10\n"
    assert done.returncode == 0
