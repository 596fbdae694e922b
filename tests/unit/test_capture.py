"""Capturing runs: what is remembered, what is kept alive, and the plan for memory in between."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ferrule.device import CompiledASTRunner, Device, JITRunner
from ferrule.device.capture import (
    Capture,
    GraphExecutor,
    GraphReentryError,
    JitError,
    JitItem,
    PlaceHolder,
    Recorded,
    get_input_replace,
    get_jc_idxs_with_updatable_launch_dims,
    get_jc_idxs_with_updatable_var_vals,
    get_jit_stats,
    is_capturing,
    shared_buffers,
    user_location,
)
from ferrule.device.memory_planner import ALIGNMENT
from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer

F = dtypes.float32


def new(size: int = 4, dtype: DType = F) -> Buffer:
    return Buffer("NUMPY", size, dtype)


def of(*values: float) -> Buffer:
    return Buffer.fromCPU("NUMPY", np.array(values, np.float32))


def binary(op: BinaryOps, size: int = 4) -> JITRunner:
    st = ShapeTracker.from_shape((size,))
    loads = [LazyOp(BufferOps.LOAD, (), MemBuffer(i, F, st)) for i in (1, 2)]
    return Device["NUMPY"].get_runner(LazyOp(op, tuple(loads)))


ADD, MUL = BinaryOps.ADD, BinaryOps.MUL


def replay(items: list[JitItem]) -> None:
    for item in items:
        item.prg([buffer for buffer in item.rawbufs if buffer is not None], {})


def test_runs_are_recorded_and_can_run_again() -> None:
    x, y, out = of(1, 2, 3, 4), of(1, 1, 1, 1), new()
    with Capture() as capture:
        assert is_capturing()
        between = new()
        binary(ADD).exec([between, x, y])
        binary(MUL).exec([out, between, x])
    assert not is_capturing()
    assert out.toCPU().tolist() == [2, 6, 12, 20]
    assert set(capture.read) == {x.serial, y.serial}
    assert set(capture.updated) == {out.serial}
    items = capture.items()
    x.copyin(np.array([2, 2, 2, 2], np.float32).data)
    replay(items)
    assert out.toCPU().tolist() == [6, 6, 6, 6]


def test_intermediates_are_not_kept_alive() -> None:
    x, out = of(1, 2, 3, 4), new()
    with Capture() as capture:
        between = new()
        binary(ADD).exec([between, x, x])
        gone = weakref.ref(between)
        binary(ADD).exec([out, between, between])
        del between
        assert gone() is None
    items = capture.items()
    made = items[0].rawbufs[0]
    assert made is items[1].rawbufs[1] is items[1].rawbufs[2]
    assert made is not None
    out.copyin(np.zeros(4, np.float32).data)
    replay(items)
    assert out.toCPU().tolist() == [4, 8, 12, 16]


def test_what_is_alive_stands_for_itself_unless_released() -> None:
    x = of(1, 2, 3, 4)
    with Capture() as capture:
        result = new()
        binary(ADD).exec([result, x, x])
    assert capture.is_new(result)
    assert capture.is_produced(result)
    assert not capture.is_new(x)
    assert capture.items()[0].rawbufs == [result, x, x]
    released = capture.items({result.serial})[0].rawbufs[0]
    assert released is not result
    assert released is not None
    assert released.size == 4


def test_parts_of_one_memory_stay_parts_of_one() -> None:
    x, out = of(1, 2), new(2)
    with Capture() as capture:
        arena = new(16, dtypes.uint8)
        first, second = arena.view(0, 2, F), arena.view(2, 2, F)
        binary(ADD, 2).exec([first, x, x])
        binary(ADD, 2).exec([second, first, x])
        binary(MUL, 2).exec([out, first, second])
        del arena, first, second
    items = capture.items()
    parts = [items[0].rawbufs[0], items[1].rawbufs[0]]
    assert parts[0] is not None
    assert parts[1] is not None
    assert parts[0].base is parts[1].base
    assert (parts[0].byte_offset, parts[1].byte_offset) == (0, 8)
    replay(items)
    assert out.toCPU().tolist() == [6, 24]


def test_what_the_host_put_in_is_a_constant() -> None:
    x, out = of(1, 2, 3, 4), new()
    with Capture() as capture:
        table = of(10, 20, 30, 40)
        binary(ADD).exec([out, x, table])
        del table
    replay(capture.items())
    assert out.toCPU().tolist() == [11, 22, 33, 44]


def test_a_constant_that_is_written_to_is_put_in_again() -> None:
    x, out = of(1, 1, 1, 1), new()
    with Capture() as capture:
        total = of(1, 2, 3, 4)
        binary(MUL).exec([out, total, x])
        binary(ADD).exec([total, total, x])
        binary(ADD).exec([total, total, x])
        binary(ADD).exec([out, total, out])
        del total
    assert out.toCPU().tolist() == [4, 6, 8, 10]
    items = capture.items()
    for _ in range(3):
        replay(items)
        assert out.toCPU().tolist() == [4, 6, 8, 10]


def test_reading_is_forbidden_inside() -> None:
    x = of(1)
    with Capture():
        with pytest.raises(JitError, match=r"test_capture\.py:\d+: a tensor's values are read"):
            x.toCPU()
        with pytest.raises(JitError, match="values are read"):
            x.copyout(memoryview(bytearray(4)))
    assert x.toCPU().tolist() == [1]


class Doubling(JITRunner):
    """Reads and runs as it likes: that is its own affair."""

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        binary(ADD).exec([rawbufs[0], rawbufs[1], rawbufs[1]])
        assert rawbufs[0].toCPU() is not None
        return None


def test_what_a_runner_does_inside_is_not_recorded() -> None:
    x, out = of(1, 2, 3, 4), new()
    with Capture() as capture:
        Doubling().exec([out, x])
    assert len(capture.recorded) == 1
    assert capture.recorded[0].written() == {out.serial}


def test_an_exception_ends_the_capture() -> None:
    with pytest.raises(ZeroDivisionError), Capture():
        _ = 1 / 0
    assert not is_capturing()
    of(1).toCPU()


def test_variables_have_one_value() -> None:
    n = Variable("n", 1, 4)
    st = ShapeTracker(View.create((n,), (1,)))
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, st))
    runner = Device["NUMPY"].get_runner(LazyOp(ADD, (x, x)))
    with Capture() as capture:
        runner.exec([new(), of(1, 2, 3, 4)], {n: 3})
        with pytest.raises(JitError, match="variable n is 3 in one kernel and 4 in another"):
            runner.exec([new(), of(1, 2, 3, 4)], {n: 4})
    assert capture.var_vals == {n: 3}


def test_the_users_line() -> None:
    assert "test_capture.py:" in user_location()


# *** place holders ***


def test_place_holders_are_known_by_serial_and_range() -> None:
    buffer = new(8)
    whole, part = PlaceHolder(buffer), PlaceHolder(buffer.view(2, 4))
    assert part == PlaceHolder(buffer.view(2, 4))
    assert part != PlaceHolder(buffer.view(3, 4))
    assert part != PlaceHolder(buffer.view(2, 4, dtypes.int32))
    assert part.whole == whole
    assert whole.to_tuple() == ("NUMPY", buffer.serial, 0, 8, F)
    assert part.to_tuple() == ("NUMPY", buffer.serial, 8, 4, F)
    assert part.nbytes == 16


def test_place_holders_are_not_fooled_by_used_ids() -> None:
    seen: dict[PlaceHolder, int] = {}
    for number in range(50):
        buffer = new()
        seen[PlaceHolder(buffer)] = number
        del buffer
    assert len(seen) == 50


def test_alloc_if_needed() -> None:
    buffer = new(8)
    whole, part = PlaceHolder(buffer), PlaceHolder(buffer.view(2, 4))
    assert whole.alloc_if_needed({}) is buffer
    assert part.alloc_if_needed({}).base is buffer
    del buffer
    gc.collect()
    cache: dict[PlaceHolder, Buffer] = {}
    made = part.alloc_if_needed(cache)
    assert made.base is whole.alloc_if_needed(cache)
    assert made is part.alloc_if_needed(cache)
    assert (made.byte_offset, made.size, made.base.size) == (8, 4, 8)


# *** the plan ***


def dead(size: int, dtype: DType = F) -> PlaceHolder:
    return PlaceHolder(new(size, dtype))


def record(out: PlaceHolder, *given: PlaceHolder) -> Recorded:
    return Recorded(JITRunner(), [out, *given])


def bytes_of(part: Buffer) -> set[tuple[int, int]]:
    start = part.byte_offset
    return {(part.base.serial, byte) for byte in range(start, start + part.nbytes)}


def test_a_chain_needs_two_parts() -> None:
    steps = [dead(4) for _ in range(10)]
    plan = shared_buffers([record(b, a) for a, b in pairwise(steps)])
    assert len(set().union(*[bytes_of(plan[step]) for step in steps])) == 2 * 16


def test_neighbours_never_share() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        steps = [dead(int(rng.integers(1, 9))) for _ in range(12)]
        recorded = [
            record(steps[i], *[steps[j] for j in rng.integers(0, i, 2)]) for i in range(1, 12)
        ]
        plan = shared_buffers(recorded)
        uses: dict[PlaceHolder, list[int]] = {}
        for position, item in enumerate(recorded):
            for arg in item.args:
                assert isinstance(arg, PlaceHolder)
                uses.setdefault(arg, []).append(position)
        for a in uses:
            assert plan[a].nbytes == a.nbytes
            for b in uses:
                overlap = min(uses[a]) <= max(uses[b]) and min(uses[b]) <= max(uses[a])
                if a != b and overlap:
                    assert not bytes_of(plan[a]) & bytes_of(plan[b])


def test_what_comes_later_is_where_something_else_was() -> None:
    # Two chains that have nothing to do with each other.
    left, right = [dead(4) for _ in range(3)], [dead(4) for _ in range(3)]
    recorded = [record(chain[i + 1], chain[i]) for chain in (left, right) for i in range(2)]
    plan = shared_buffers(recorded)
    for a, b in zip(left, right, strict=True):
        assert bytes_of(plan[a]) == bytes_of(plan[b])


def test_smaller_memory_goes_into_larger() -> None:
    large, small = dead(100), dead(10, dtypes.int8)
    middle, late = dead(50), dead(50)
    plan = shared_buffers([record(middle, large), record(late, middle), record(small, late)])
    assert bytes_of(plan[late]) < bytes_of(plan[large])
    assert plan[small].base.nbytes < large.nbytes + middle.nbytes + 2 * ALIGNMENT
    assert (plan[small].size, plan[small].dtype) == (10, dtypes.int8)


def test_what_is_alive_is_not_planned() -> None:
    buffer = new()
    holder = PlaceHolder(buffer)
    other = dead(4)
    assert set(shared_buffers([record(holder, other)])) == {other}
    assert set(shared_buffers([record(holder, other)], {buffer.serial})) == {holder, other}


# *** the documented questions ***


def test_input_replace() -> None:
    a, b, c = new(), new(), new()
    runner = JITRunner()
    items = [JitItem(runner, [c, a, b]), JitItem(runner, [None, c, a])]
    assert get_input_replace(items, [a, b]) == {(0, 1): 0, (0, 2): 1, (1, 2): 0}
    assert get_input_replace(items, [a, a]) == {(0, 1): 0, (1, 2): 0}
    assert get_input_replace(items, []) == {}
    assert get_input_replace([JitItem(runner, [a.view(0, 4)])], [a]) == {}


def test_updatable_items() -> None:
    n = Variable("n", 1, 4)
    st = ShapeTracker(View.create((n,), (1,)))
    symbolic = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, st))
    runners: list[Any] = [
        CompiledASTRunner(None, "plain", "", [4, 1, 1], [1, 1, 1]),
        CompiledASTRunner(symbolic, "values", "", [4]),
        CompiledASTRunner(symbolic, "sizes", "", [n], [1]),
        CompiledASTRunner(None, "local", "", [4], [n]),
        JITRunner(),
    ]
    items = [JitItem(runner, []) for runner in runners]
    assert get_jc_idxs_with_updatable_launch_dims(items) == [2, 3]
    assert get_jc_idxs_with_updatable_var_vals(items) == [1, 2]
    ops, mem = get_jit_stats(items)
    assert ops == 0
    assert mem == n * 16
    assert get_jit_stats([]) == (0, 0)


class Graph(GraphExecutor):
    """A batch whose run is a function; `inside` guards it as in those of devices."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__([], [])
        self.work = work

    def replay(
        self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int], wait: bool = False
    ) -> float | None:
        if self.inside:
            raise self.reentered()
        self.inside = True
        try:
            self.work()
        finally:
            self.inside = False
        return None


def test_a_call_from_inside_a_call_is_refused_and_the_next_one_is_not() -> None:
    calls: list[Graph] = []
    graph = Graph(lambda: calls.pop()([], {}) if calls else None)
    calls.append(graph)
    with pytest.raises(GraphReentryError, match=r"^<batch of 0>: called from inside its own call"):
        graph([], {})
    assert graph([], {}) is None


def test_threads_take_turns() -> None:
    inside: list[int] = []

    def work() -> None:
        number = threading.get_ident()
        inside.append(number)
        time.sleep(0.01)
        assert inside[-1] == number

    graph = Graph(work)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: graph([], {}), range(6))) == [None] * 6
    assert len(inside) == 6


def test_tensors_that_were_frozen_before_captures_were_loaded() -> None:
    program = """
import gc
from ferrule import Tensor
total = Tensor([1.0, 2.0, 3.0]).realize()
view = total[1:]
gc.freeze()
from ferrule import TinyJit
add = TinyJit(lambda x: total.assign(total + x).realize())
for i in range(5):
    add(Tensor([1.0, 2.0, 3.0]).realize())
    assert view.tolist() == total.tolist()[1:], (i, view.tolist(), total.tolist())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
