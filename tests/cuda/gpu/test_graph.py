"""Replaying a batch on a GPU: as kernel by kernel, in any order that the dependencies allow."""

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.cuda.fake import FakeDriver
from tests.cuda.gpu.conftest import COUNT, SIZE, MakeRunner, buffer, values
from tests.cuda.gpu.test_program import QUADS
from tests.effort import calls

from ferrule.base.config import Context
from ferrule.device import BufferCopy, CompiledASTRunner, GlobalCounters
from ferrule.device.capture import GraphException, GraphReentryError, JitItem
from ferrule.device.runner import RunnerError
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.runtime.cuda import graph as graph_module
from ferrule.runtime.cuda.driver import GPU, CUDAError, bindings, check
from ferrule.runtime.cuda.graph import CUDAGraph


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


def copy_of(nbytes: int) -> BufferCopy:
    return BufferCopy("CUDA", nbytes, "CUDA")


def run_plainly(items: Sequence[JitItem], var_vals: dict[Any, int] | None = None) -> None:
    for item in items:
        item.prg([b for b in item.rawbufs if b is not None], var_vals or {})


def fill(buffers: Sequence[Buffer], contents: np.ndarray) -> None:
    for one, numbers in zip(buffers, contents, strict=True):
        one.copyin(np.ascontiguousarray(numbers).data.cast("B"))


@pytest.mark.parametrize("length", [1, 2, 10, 100])
def test_a_replay_takes_the_inputs_given(add: CompiledASTRunner, length: int) -> None:
    x, y = buffer(), buffer()
    items = chain(add, x, y, length)
    graph = CUDAGraph(items, [x, y], {})
    for number in range(5):
        graph([buffer(number), buffer(10 * number)], {})
        assert (values(result_of(items)) == number + 10 * number * length).all()
    # What it was captured with is an input like any other.
    x.copyin(np.full(SIZE, 3, np.float32).data.cast("B"))
    y.copyin(np.full(SIZE, 1, np.float32).data.cast("B"))
    graph([x, y], {})
    assert (values(result_of(items)) == 3 + length).all()


def test_replays_are_queued_with_their_own_inputs(
    add: CompiledASTRunner, driver: FakeDriver
) -> None:
    x, total = buffer(), buffer()
    graph = CUDAGraph([JitItem(add, [total, total, x])], [x], {})
    inputs = [buffer(k) for k in range(1, 6)]
    values(total)
    for one in inputs:
        graph([one], {})
    assert driver.pending() >= 5
    assert (values(total) == 15).all()


@pytest.mark.parametrize("seed", range(8))
def test_it_does_what_the_items_do_one_by_one(add: CompiledASTRunner, seed: int) -> None:
    generator = np.random.default_rng(seed)
    pool = [buffer() for _ in range(6)]
    picks = generator.integers(0, 6, (40, 3))
    items = [
        JitItem(copy_of(4 * SIZE), [pool[a], pool[b]])
        if c == 0 and a != b
        else JitItem(add, [pool[a], pool[b], pool[c]])
        for a, b, c in picks
    ]
    start = generator.integers(-3, 4, (6, SIZE)).astype(np.float32)
    fill(pool, start)
    graph = CUDAGraph(items, pool[:2], {})
    run_plainly(items)
    expected = [values(one) for one in pool]
    for _ in range(5):
        fill(pool, start)
        graph(pool[:2], {})
        for one, right in zip(pool, expected, strict=True):
            np.testing.assert_array_equal(values(one), right)


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_buffers_in_any_order(add: CompiledASTRunner, seed: int) -> None:
    """Parts that overlap: a write to some of what was written keeps the rest."""
    generator = np.random.default_rng(100 + seed)
    wholes = [buffer(size=3 * SIZE) for _ in range(2)]

    def part() -> Buffer:
        offset = int(generator.integers(0, 2 * SIZE))
        return wholes[generator.integers(0, 2)].view(offset, SIZE)

    items = []
    for _ in range(30):
        out, a, b = part(), part(), part()
        # In one kernel, reading what it writes elsewhere is nobody's business here.
        if not any(_meet(out, other) for other in (a, b)):
            items.append(JitItem(add, [out, a, b]))
    start = generator.integers(-3, 4, (2, 3 * SIZE)).astype(np.float32)
    fill(wholes, start)
    graph = CUDAGraph(items, [], {})
    run_plainly(items)
    expected = [values(one) for one in wholes]
    for _ in range(3):
        fill(wholes, start)
        graph([], {})
        for one, right in zip(wholes, expected, strict=True):
            np.testing.assert_array_equal(values(one), right)


def _meet(a: Buffer, b: Buffer) -> bool:
    distance = abs(a.byte_offset - b.byte_offset)
    return a.base is b.base and distance < a.nbytes


def test_items_that_need_not_wait_do_not(add: CompiledASTRunner, driver: FakeDriver) -> None:
    x = buffer(1)
    first, second, last = buffer(), buffer(), buffer()
    copy = buffer()
    items = [
        JitItem(copy_of(x.nbytes), [copy, x]),
        JitItem(add, [first, x, x]),
        JitItem(add, [second, x, x]),
        JitItem(add, [last, first, second]),
    ]
    graph = CUDAGraph(items, [x], {})
    values(x)
    driver.ran()
    graph([x], {})
    assert (values(last) == 4).all()
    assert (values(copy) == 1).all()
    # The fake driver takes the last one that it may: nothing waits for the copy.
    assert driver.ran()[:4] == ["add 1x64+0", "add 1x64+0", "add 1x64+0", "copy"]


def test_an_input_may_be_an_output(add: CompiledASTRunner) -> None:
    x, y = buffer(), buffer(2)
    graph = CUDAGraph([JitItem(add, [x, x, y])], [x], {})
    other = buffer(10)
    for _ in range(3):
        graph([other], {})
    assert (values(other) == 16).all()
    assert (values(x) == 0).all()


def test_an_output_comes_back_as_input(add: CompiledASTRunner) -> None:
    x, y, out = buffer(1), buffer(2), buffer()
    graph = CUDAGraph([JitItem(add, [out, x, y])], [x, out], {})
    state = buffer(5)
    for _ in range(4):
        result = buffer()
        graph([state, result], {})
        state = result
    assert (values(state) == 13).all()
    assert not values(out).any()


def test_inputs_that_no_item_uses(add: CompiledASTRunner) -> None:
    x, y, out = buffer(1), buffer(2), buffer()
    graph = CUDAGraph([JitItem(add, [out, x, x])], [y, x], {})
    graph([Buffer("CUDA", 0, dtypes.float32), buffer(5)], {})
    assert (values(out) == 10).all()


def test_parts_as_inputs(add: CompiledASTRunner) -> None:
    whole = buffer(1, size=3 * SIZE)
    low, middle, high = (whole.view(SIZE * n, SIZE) for n in range(3))
    graph = CUDAGraph([JitItem(add, [high, low, middle])], [middle], {})
    graph([buffer(5)], {})
    np.testing.assert_array_equal(values(whole), [1] * 2 * SIZE + [6] * SIZE)


def test_inputs_at_addresses_that_are_no_multiples_of_16(runner: MakeRunner) -> None:
    quads = runner("quads", QUADS, 1, 16)
    x, out = buffer(), buffer()
    graph = CUDAGraph([JitItem(quads, [out, x])], [x, out], {})
    numbers = np.arange(80, dtype=np.float32)
    whole, result = Buffer.fromCPU("CUDA", numbers), buffer(size=80)
    for first, second in ((0, 0), (1, 3), (4, 0), (2, 4), (0, 8)):
        graph([whole.view(first, SIZE), result.view(second, SIZE)], {})
        there = values(result)[second : second + SIZE]
        np.testing.assert_array_equal(there, numbers[first : first + SIZE] + 1)


def test_variables_take_their_values_of_now(runner: MakeRunner) -> None:
    n, m = Variable("n", 1, 2**40), Variable("m", 1, SIZE)
    first, second = runner("count", COUNT, 1, SIZE, n), runner("count", COUNT, 1, SIZE, m)
    a, b = buffer(0, dtypes.int32), buffer(0, dtypes.int32)
    items = [JitItem(first, [a]), JitItem(second, [b]), JitItem(first, [b])]
    graph = CUDAGraph(items, [], {n: 3, m: 5})
    expected_a, expected_b = np.zeros(SIZE), np.zeros(SIZE)
    for values_now in ({n: 3, m: 5}, {n: 10, m: 1}, {n: 10, m: 7}, {n: 3, m: 5}):
        graph([], values_now)
        expected_a[: values_now[n]] += 1
        expected_b[: values_now[m]] += 1
        expected_b[: values_now[n]] += 1
    np.testing.assert_array_equal(values(a), expected_a)
    np.testing.assert_array_equal(values(b), expected_b)
    with pytest.raises(RunnerError, match="does not fit 32 bits"):
        graph([], {n: 2**40, m: 1})
    graph([], {n: 64, m: 64})
    assert (values(b) == expected_b + 2).all()


def test_launch_sizes_follow_variables(runner: MakeRunner, driver: FakeDriver) -> None:
    n = Variable("n", 0, 8)
    grown = runner("add", ADD_BLOCKS, n, 16)
    one = buffer(1, size=128)
    out = buffer(size=128)
    graph = CUDAGraph([JitItem(grown, [out, out, one])], [], {n: 0})
    expected = np.zeros(128)
    driver.ran()
    for blocks in (0, 3, 0, 8, 1):
        graph([], {n: blocks})
        expected[: 16 * blocks] += 1
    np.testing.assert_array_equal(values(out), expected)
    launched = [line for line in driver.ran() if line != "copy"]
    # A grid of no blocks is no launch.
    assert launched == ["add 3x16+0", "add 8x16+0", "add 1x16+0"]


ADD_BLOCKS = """
extern "C" __global__ void add(float* out, const float* a, const float* b) {
  int i = blockIdx.x * 16 + threadIdx.x;
  out[i] = a[i] + b[i];
}"""


def test_only_what_changed_is_updated(add: CompiledASTRunner, driver: FakeDriver) -> None:
    x, y = buffer(), buffer()
    items = chain(add, x, y, 10)
    graph = CUDAGraph(items, [x, y], {})

    def updates() -> int:
        return driver.calls("cuGraphExecKernelNodeSetParams")

    before = updates()
    graph([x, y], {})
    assert updates() == before
    graph([buffer(1), y], {})
    assert updates() == before + 1
    other = buffer(2)
    graph([x, other], {})
    assert updates() == before + 11
    graph([x, other], {})
    assert updates() == before + 11


def test_an_update_that_fails_is_done_again(add: CompiledASTRunner, driver: FakeDriver) -> None:
    x, y = buffer(1), buffer(1)
    items = chain(add, x, y, 3)
    graph = CUDAGraph(items, [x, y], {})
    five, seven = buffer(5), buffer(7)
    driver.fail("cuGraphExecKernelNodeSetParams", 1, after=1)
    with pytest.raises(CUDAError, match="changing a kernel in a graph: CUDA_ERROR_INVALID_VALUE"):
        graph([five, seven], {})
    # Back to what the graph was set to: half of it is not.
    graph([x, y], {})
    assert (values(result_of(items)) == 4).all()
    graph([five, seven], {})
    assert (values(result_of(items)) == 26).all()


def test_a_graph_keeps_what_it_needs(add: CompiledASTRunner) -> None:
    x, y = buffer(), buffer(7)
    out = buffer()
    items = chain(add, x, y, 5)
    items.append(JitItem(add, [out, result_of(items), y]))
    graph = CUDAGraph(items, [x], {})
    for item in items:
        item.rawbufs = []
    del y, items
    gc.collect()
    rubbish = [buffer(99) for _ in range(50)]
    graph([buffer(1)], {})
    assert (values(out) == 1 + 6 * 7).all()
    assert len(rubbish) == 50


def test_a_graph_does_not_keep_its_inputs(add: CompiledASTRunner) -> None:
    x, out = buffer(1), buffer()
    inputs = [x]
    items = [JitItem(add, [out, x, x])]
    graph = CUDAGraph(items, inputs, {})
    items[0].rawbufs = [out, None, None]
    captured = weakref.ref(x)
    assert graph.input_rawbuffers == inputs
    del x, inputs
    gc.collect()
    assert captured() is None
    assert graph.input_rawbuffers == [None]
    given = buffer(4)
    later = weakref.ref(given)
    graph([given], {})
    del given
    gc.collect()
    assert later() is None
    # Its memory may be somebody else's by now, but the graph is queued before that.
    other = buffer(1000)
    assert (values(out) == 8).all()
    assert (values(other) == 1000).all()


def test_several_graphs_at_once(add: CompiledASTRunner) -> None:
    shared = buffer()
    graphs = []
    for k in range(4):
        x = buffer(k)
        graphs.append((CUDAGraph([JitItem(add, [shared, shared, x])], [x], {}), x))
    for _ in range(3):
        for graph, x in graphs:
            graph([x], {})
    assert (values(shared) == 3 * (0 + 1 + 2 + 3)).all()


def test_copies_are_items_too(add: CompiledASTRunner) -> None:
    numbers = np.random.default_rng(2).standard_normal(3_000_000).astype(np.float32)
    x, middle, last = (buffer(0, size=numbers.size) for _ in range(3))
    copy = copy_of(x.nbytes)
    graph = CUDAGraph([JitItem(copy, [middle, x]), JitItem(copy, [last, middle])], [x], {})
    graph([Buffer.fromCPU("CUDA", numbers)], {})
    np.testing.assert_array_equal(values(last), numbers)
    graph([x], {})
    assert not values(last).any()


def test_shared_memory_is_not_forgotten(add: CompiledASTRunner, driver: FakeDriver) -> None:
    x = buffer(1)
    add.runtime_args = {"shared_bytes": 64 << 10}
    graph = CUDAGraph([JitItem(add, [x, x, x])], [x], {})
    other = buffer(3)
    graph([other], {})
    assert (values(other) == 6).all()
    assert [line for line in driver.ran() if line != "copy"][-1] == "add 1x64+65536"


def test_another_gpu_may_be_active(add: CompiledASTRunner, other_gpu: GPU) -> None:
    x = buffer(1)
    other_gpu.activate()
    graph = CUDAGraph([JitItem(add, [x, x, x])], [x], {})
    given = buffer(2)
    other_gpu.activate()
    graph([given], {})
    other_gpu.activate()
    assert (values(given) == 4).all()
    other_gpu.activate()
    del graph
    gc.collect()
    assert int(check(bindings().cuCtxGetCurrent())) == int(other_gpu.context)


def test_other_items_are_refused(add: CompiledASTRunner) -> None:
    x, elsewhere = buffer(), Buffer("NUMPY", SIZE, dtypes.float32)
    copy = BufferCopy("CUDA", x.nbytes, "NUMPY")
    message = r"copy 256 bytes, CUDA <- NUMPY is neither a kernel of a GPU nor a copy between them"
    with pytest.raises(GraphException, match=message):
        CUDAGraph([JitItem(add, [x, x, x]), JitItem(copy, [x, elsewhere])], [], {})
    whole = buffer()
    with pytest.raises(GraphException, match="a copy of 80 bytes to 80 bytes that overlap"):
        CUDAGraph([JitItem(copy_of(80), [whole.view(0, 20), whole.view(10, 20)])], [], {})
    with pytest.raises(GraphException, match="there are no items"):
        CUDAGraph([], [], {})


def test_what_the_driver_refuses_is_replayed_plainly(
    add: CompiledASTRunner, driver: FakeDriver
) -> None:
    x = buffer(1)
    gc.collect()
    before = driver.alive("graphs"), driver.alive("executables")
    for function in ("cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiateWithFlags"):
        driver.fail(function, 2)
        with pytest.raises(GraphException, match=r"CUDAGraph: .*CUDA_ERROR_OUT_OF_MEMORY"):
            CUDAGraph([JitItem(add, [x, x, x])], [], {})
    gc.collect()
    assert (driver.alive("graphs"), driver.alive("executables")) == before


def test_a_graph_is_destroyed_with_its_last_user(
    add: CompiledASTRunner, driver: FakeDriver
) -> None:
    gc.collect()
    before = driver.alive("graphs"), driver.alive("executables")
    x = buffer(1)
    graph = CUDAGraph([JitItem(add, [x, x, x])], [], {})
    graph([], {})
    assert (driver.alive("graphs"), driver.alive("executables")) == (before[0] + 1, before[1] + 1)
    del graph
    gc.collect()
    assert (driver.alive("graphs"), driver.alive("executables")) == before
    assert (values(x) == 2).all()


@pytest.mark.usefixtures("driver")
def test_code_stays_as_long_as_its_graph(runner: MakeRunner) -> None:
    """In whatever order a collection of garbage finds them: the fake driver would complain."""
    quads = runner("quads", QUADS, 1, 16)
    x = buffer(1, size=80)
    graph = CUDAGraph([JitItem(quads, [x, x])], [x], {})
    graph([x.view(1, SIZE)], {})
    cycle: list[object] = [quads.program._aligned, quads, graph]
    cycle.append(cycle)
    del quads, graph, cycle
    gc.collect()
    assert values(x)[1] == 2


def test_copies_of_sizes_that_a_graph_does_not_take(
    add: CompiledASTRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_module, "_MAX_COPY_BYTES", 200)
    x, y = buffer(), buffer()
    with pytest.raises(GraphException, match="a copy of 256 bytes; the driver copies 1 to 200"):
        CUDAGraph([JitItem(add, [x, x, x]), JitItem(copy_of(256), [x, y])], [], {})


def test_one_line_of_statistics_for_all(
    add: CompiledASTRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = buffer(), buffer()
    add.op_estimate, add.mem_estimate = SIZE, 12 * SIZE
    graph = CUDAGraph(chain(add, x, y, 7), [x, y], {})
    before = GlobalCounters.kernel_count, GlobalCounters.global_ops
    assert graph([x, y], {}) is None
    assert GlobalCounters.kernel_count == before[0] + 7
    assert GlobalCounters.global_ops == before[1] + 7 * SIZE
    assert capsys.readouterr().out == ""
    with Context(DEBUG=2):
        seconds = graph([x, y], {}, jit=True)
    assert seconds is not None
    assert seconds > 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "CUDA" in line
    assert "<batch of 7>" in line


def test_time_is_measured_only_if_asked_for(add: CompiledASTRunner, driver: FakeDriver) -> None:
    x = buffer()
    graph = CUDAGraph([JitItem(add, [x, x, x])], [x], {})
    before = driver.calls("cuEventRecord")
    assert graph([x], {}) is None
    assert driver.calls("cuEventRecord") == before
    seconds = graph([x], {}, wait=True)
    assert seconds is not None
    assert seconds > 0


def test_threads_take_turns(runner: MakeRunner) -> None:
    n = Variable("n", 1, SIZE)
    counts = buffer(0, dtypes.int32)
    graph = CUDAGraph([JitItem(runner("count", COUNT, 1, SIZE, n), [counts])] * 3, [], {n: SIZE})

    def replay() -> None:
        for k in range(20):
            graph([], {n: SIZE if k % 2 else 1})

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(counts)[0] == 4 * 20 * 3
    assert (values(counts)[1:] == 4 * 10 * 3).all()


def test_a_call_from_inside_the_call(add: CompiledASTRunner) -> None:
    class Interrupting:
        """Stands for a signal handler, in the middle of the graph's work."""

        serial = 0

        @property
        def _buf(self) -> Any:
            return graph([self], {})

    x = buffer()
    graph = CUDAGraph([JitItem(add, [x, x, x])], [x], {})
    with pytest.raises(GraphReentryError, match="<batch of 1>: called from inside its own call"):
        graph([Interrupting()], {})
    given = buffer(1)
    graph([given], {})
    assert (values(given) == 2).all()


def test_the_documented_methods(add: CompiledASTRunner, gpu: GPU) -> None:
    """A graph put together by hand, by the methods that the documentation names."""
    from ferrule.runtime.cuda.graph import CUDAGraph as Documented

    assert Documented is CUDAGraph
    x, out = buffer(3), buffer()
    made = CUDAGraph([JitItem(add, [out, x, x])], [x], {})
    (arguments,) = made.encode_args_info()
    assert arguments is not None
    arguments.fill([out._buf.address, x._buf.address, x._buf.address], [])
    graph = made.graph_create()
    params = made.build_kernel_node_params(add.program, [1, 1, 1], [32, 1, 1], arguments.pointer)
    node = made.graph_add_kernel_node(graph, None, params)
    again = made.graph_add_kernel_node(graph, [node], params)
    executable = made.graph_instantiate(graph)
    seconds = made.graph_launch(executable, gpu.stream, wait=True)
    assert seconds is not None
    assert (values(out)[:32] == 6).all()
    assert not values(out)[32:].any()
    made.set_kernel_node_launch_dims(params, [2, 1, 1], [32, 1, 1])
    made.graph_exec_kernel_node_set_params(executable, again, params)
    assert made.graph_launch(executable, gpu.stream) is None
    assert (values(out) == 6).all()
    check(bindings().cuGraphExecDestroy(executable))
    check(bindings().cuGraphDestroy(graph))


@pytest.mark.parametrize("length", [1, 100])
def test_a_replay_is_a_few_calls(add: CompiledASTRunner, length: int) -> None:
    """However many kernels there are; with another address, a few more for each that uses it."""
    x, y, other = buffer(), buffer(), buffer()
    graph = CUDAGraph(chain(add, x, y, length), [x, y], {})
    plain = calls(graph, [x, y], {})
    changed = calls(graph, [other, y], {})
    assert plain <= 24
    assert changed <= plain + 14
