"""Replaying a batch on the CPU: as kernel by kernel, for any inputs, threads and signals."""

import gc
import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
from tests.interrupting import interrupted_once

from ferrule.base.config import Context
from ferrule.device import BufferCopy, CompiledASTRunner, GlobalCounters
from ferrule.device.capture import GraphException, GraphReentryError, JitItem
from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import Buffer, allocators
from ferrule.ir.expr import Variable
from ferrule.runtime.cpu import llvm
from ferrule.runtime.cpu.graph import CPUGraph
from ferrule.runtime.cpu.memory import CPUAllocator
from ferrule.runtime.cpu.program import CPUProgram, native_runtime

Kernels = dict[str, Callable[..., str]]
compiler = llvm.host_compiler()
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
may_fork = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
SIZE = 64


@pytest.fixture(autouse=True)
def cpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory without the rest of the device."""
    monkeypatch.setitem(allocators, "CPU", CPUAllocator())


def runner(name: str, source: str, *variables: Variable) -> CompiledASTRunner:
    made = CompiledASTRunner(None, name, source)
    made.device = "CPU"
    made.lib = compiler.compile_cached(source)
    made.program = CPUProgram(name, made.lib)
    made.vars = variables
    return made


def buffer(value: float = 0, dtype: DType = dtypes.float32, size: int = SIZE) -> Buffer:
    values = np.full(size, value, dtype.np)
    return Buffer("CPU", size, dtype).copyin(values.data.cast("B"))


def values(of: Buffer) -> np.ndarray:
    return np.array(of.toCPU())


@pytest.fixture
def add(kernels: Kernels) -> CompiledASTRunner:
    """out = a + b, over all elements."""
    return runner("add", kernels["add_kernel"]("add", f"ret i64 {SIZE}"))


@pytest.fixture
def slow_count(kernels: Kernels) -> CompiledASTRunner:
    """out[i] += 1, a tenth of a millisecond each."""
    source = kernels["count_kernel"]("slow", f"ret i64 {SIZE}", busy=300_000)
    return runner("slow", source)


def chain(add: CompiledASTRunner, x: Buffer, y: Buffer, length: int) -> list[JitItem]:
    """x + y, + y, and so on: each item needs the one before."""
    items = []
    last = x
    for _ in range(length):
        out = buffer()
        items.append(JitItem(add, [out, last, y]))
        last = out
    return items


def result_of(items: list[JitItem]) -> Buffer:
    last = items[-1].rawbufs[0]
    assert last is not None
    return last


@pytest.mark.parametrize("length", [1, 2, 10, 300])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_a_replay_takes_the_inputs_given(
    add: CompiledASTRunner, length: int, n_threads: int
) -> None:
    x, y = buffer(), buffer()
    items = chain(add, x, y, length)
    graph = CPUGraph(items, [x, y], {})
    with Context(FERRULE_NUM_THREADS=n_threads):
        for number in range(5):
            graph([buffer(number), buffer(10 * number)], {})
            assert (values(result_of(items)) == number + 10 * number * length).all()
    # What it was captured with is an input like any other.
    x.copyin(np.full(SIZE, 3, np.float32).data.cast("B"))
    graph([x, y], {})
    assert (values(result_of(items)) == 3).all()


def test_it_does_what_the_items_do_one_by_one(add: CompiledASTRunner) -> None:
    generator = np.random.default_rng(1)
    pool = [buffer() for _ in range(6)]
    picks = generator.integers(0, 6, (50, 3))
    items = [JitItem(add, [pool[a], pool[b], pool[c]]) for a, b, c in picks]
    graph = CPUGraph(items, pool[:2], {})
    start = generator.integers(-3, 4, (6, SIZE)).astype(np.float32)
    for replay in (False, True):
        for one, contents in zip(pool, start, strict=True):
            one.copyin(contents.data.cast("B"))
        if replay:
            graph(pool[:2], {})
        else:
            for item in items:
                item.prg([b for b in item.rawbufs if b is not None], {})
            expected = [values(one) for one in pool]
    for one, right in zip(pool, expected, strict=True):
        np.testing.assert_array_equal(values(one), right)


def test_an_input_may_be_an_output(add: CompiledASTRunner) -> None:
    x, y = buffer(), buffer(2)
    graph = CPUGraph([JitItem(add, [x, x, y])], [x], {})
    other = buffer(10)
    for _ in range(3):
        graph([other], {})
    assert (values(other) == 16).all()
    assert (values(x) == 0).all()


def test_inputs_that_no_item_uses(add: CompiledASTRunner) -> None:
    x, y, out = buffer(1), buffer(2), buffer()
    graph = CPUGraph([JitItem(add, [out, x, x])], [y, x], {})
    graph([Buffer("CPU", 0, dtypes.float32), buffer(5)], {})
    assert (values(out) == 10).all()


def test_parts_of_buffers(add: CompiledASTRunner) -> None:
    whole = buffer(1, size=3 * SIZE)
    low, middle, high = (whole.view(SIZE * n, SIZE) for n in range(3))
    graph = CPUGraph([JitItem(add, [high, low, middle])], [middle], {})
    graph([buffer(5)], {})
    np.testing.assert_array_equal(values(whole), [1] * 2 * SIZE + [6] * SIZE)


def test_variables_take_their_values_of_now(kernels: Kernels) -> None:
    extent = kernels["extent_from"](1)
    n, m = Variable("n", 1, SIZE), Variable("m", 1, SIZE)
    first = runner("first", kernels["count_kernel"]("first", extent), n)
    second = runner("second", kernels["count_kernel"]("second", extent), m)
    a, b = buffer(0, dtypes.int64), buffer(0, dtypes.int64)
    items = [JitItem(first, [a]), JitItem(second, [b]), JitItem(first, [b])]
    graph = CPUGraph(items, [], {n: 3, m: 5})
    graph([], {n: 3, m: 5})
    graph([], {n: 10, m: 1})
    expected_a, expected_b = np.zeros(SIZE), np.zeros(SIZE)
    expected_a[:3] += 1
    expected_a[:10] += 1
    expected_b[:5] += 1
    expected_b[:3] += 1
    expected_b[:1] += 1
    expected_b[:10] += 1
    np.testing.assert_array_equal(values(a), expected_a)
    np.testing.assert_array_equal(values(b), expected_b)


def test_a_graph_keeps_what_it_needs(add: CompiledASTRunner) -> None:
    x, y = buffer(), buffer(7)
    out = buffer()
    items = chain(add, x, y, 5)
    items.append(JitItem(add, [out, result_of(items), y]))
    graph = CPUGraph(items, [x], {})
    for item in items:
        item.rawbufs = []
    del y, items
    gc.collect()
    rubbish = [buffer(99) for _ in range(50)]
    graph([buffer(1)], {})
    assert (values(out) == 1 + 6 * 7).all()
    assert len(rubbish) == 50


def test_a_batch_of_nothing() -> None:
    assert CPUGraph([], [], {})([], {}, wait=True) is not None


@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_copies_are_items_too(add: CompiledASTRunner, size: int) -> None:
    generator = np.random.default_rng(2)
    numbers = generator.standard_normal(size).astype(np.float32)
    x, middle, last = (buffer(0, size=size) for _ in range(3))
    first_copy = BufferCopy("CPU", x.nbytes, "CPU")
    items = [JitItem(first_copy, [middle, x]), JitItem(first_copy, [last, middle])]
    graph = CPUGraph(items, [x], {})
    other = Buffer("CPU", size, dtypes.float32).copyin(numbers.data.cast("B"))
    graph([other], {})
    np.testing.assert_array_equal(values(last), numbers)
    assert not values(x).any()


def test_other_items_are_refused(add: CompiledASTRunner) -> None:
    x, elsewhere = buffer(), Buffer("NUMPY", SIZE, dtypes.float32)
    copy = BufferCopy("CPU", x.nbytes, "NUMPY")
    message = (
        r"CPUGraph: copy 256 bytes, CPU <- NUMPY is neither a kernel of the CPU nor a copy inside"
    )
    with pytest.raises(GraphException, match=message):
        CPUGraph([JitItem(add, [x, x, x]), JitItem(copy, [x, elsewhere])], [], {})
    with pytest.raises(GraphException, match="a copy of 400 bytes to 256 bytes"):
        CPUGraph([JitItem(copy, [x, buffer(size=100)])], [], {})
    whole = buffer()
    with pytest.raises(GraphException, match="a copy of 80 bytes to 80 bytes, 40 bytes away"):
        CPUGraph([JitItem(copy, [whole.view(0, 20), whole.view(10, 20)])], [], {})


def test_one_line_of_statistics_for_all(
    add: CompiledASTRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = buffer(), buffer()
    add.op_estimate, add.mem_estimate = SIZE, 12 * SIZE
    graph = CPUGraph(chain(add, x, y, 7), [x, y], {})
    before = (
        GlobalCounters.kernel_count,
        GlobalCounters.global_ops,
        GlobalCounters.global_mem,
    )
    assert graph([x, y], {}) is None
    assert GlobalCounters.kernel_count == before[0] + 7
    assert GlobalCounters.global_ops == before[1] + 7 * SIZE
    assert GlobalCounters.global_mem == before[2] + 7 * 12 * SIZE
    assert capsys.readouterr().out == ""
    with Context(DEBUG=2):
        seconds = graph([x, y], {}, jit=True)
    assert seconds is not None
    assert seconds > 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "CPU" in line
    assert "<batch of 7>" in line


def test_threads_take_turns(slow_count: CompiledASTRunner) -> None:
    counts = buffer(0, dtypes.int64)
    graph = CPUGraph([JitItem(slow_count, [counts])] * 3, [], {})

    def replay() -> None:
        with Context(FERRULE_NUM_THREADS=2):
            for _ in range(5):
                graph([], {})

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # No increment is lost, though `+= 1` in a kernel is not atomic.
    assert (values(counts) == 4 * 5 * 3).all()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_replay_in_many_slices(
    add: CompiledASTRunner, slow_count: CompiledASTRunner, n_threads: int
) -> None:
    runtime = native_runtime()
    before = runtime.slice_ticks
    x, y = buffer(), buffer()
    counts = buffer(0, dtypes.int64)
    items = chain(add, x, y, 20)
    items[7:7] = [JitItem(slow_count, [counts])] * 2
    graph = CPUGraph(items, [x, y], {})
    try:
        runtime.slice_ticks = 0
        runtime.apply_times()
        with Context(FERRULE_NUM_THREADS=n_threads):
            graph([buffer(1), buffer(2)], {})
            graph([buffer(2), buffer(3)], {})
    finally:
        runtime.slice_ticks = before
        runtime.apply_times()
    assert (values(result_of(items)) == 2 + 20 * 3).all()
    assert (values(counts) == 4).all()


def test_ctrl_c_stops_a_long_replay(add: CompiledASTRunner, slow_count: CompiledASTRunner) -> None:
    counts = buffer(0, dtypes.int64)
    x, y = buffer(), buffer()
    first = chain(add, x, y, 3)
    slow = [JitItem(slow_count, [counts])] * 20_000
    graph = CPUGraph([*first, *slow], [x, y], {})
    with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: values(counts).any()):
        graph([x, y], {})
    done = values(counts)
    assert 0 < done.max() < 20_000  # all of them would take minutes
    short = CPUGraph([*first, *slow[:2]], [x, y], {})
    short([buffer(1), buffer(1)], {})
    assert (values(result_of(first)) == 4).all()
    assert values(counts).sum() == done.sum() + 2 * SIZE


def test_a_signal_handler_may_not_replay_the_same_graph(
    slow_count: CompiledASTRunner, add: CompiledASTRunner
) -> None:
    counts = buffer(0, dtypes.int64)
    graph = CPUGraph([JitItem(slow_count, [counts])] * 20_000, [], {})
    x = buffer(1)
    out = buffer()
    other = CPUGraph([JitItem(add, [out, x, x])], [], {})

    def handler(*_: object) -> None:
        other([], {})  # another graph is fine
        graph([], {})

    previous = signal.signal(signal.SIGUSR1, handler)
    problem = r"<batch of 20000>: called from inside its own"
    try:
        with (
            pytest.raises(GraphReentryError, match=problem),
            interrupted_once(lambda: values(counts).any(), signal.SIGUSR1),
        ):
            graph([], {})
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert (values(out) == 2).all()


@needs_fork
@may_fork
def test_a_fork_while_another_thread_replays(slow_count: CompiledASTRunner) -> None:
    counts = buffer(0, dtypes.int64)
    graph = CPUGraph([JitItem(slow_count, [counts])] * 5, [counts], {})
    stop = threading.Event()

    def replay() -> None:
        while not stop.is_set():
            graph([counts], {})

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                own = buffer(0, dtypes.int64)
                graph([own], {})
                os._exit(0 if (values(own) == 5).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
