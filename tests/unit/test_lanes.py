"""Lanes: batches of several devices, whose steps wait for each other and else run at once."""

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.interrupting import interrupted_once

from ferrule.base.config import Context
from ferrule.device import CompiledASTRunner
from ferrule.device.capture import JitItem
from ferrule.device.lanes import Segment, lanes_of
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.runtime.cpu import llvm
from ferrule.runtime.cpu.graph import CPUGraph
from ferrule.runtime.cpu.program import CPUProgram, NativeProgram, native_runtime

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_EXTENT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class PythonKernel(CompiledASTRunner):
    """A kernel that calls a function of Python with its chunks: `function(start, stop)`.

    It writes its first buffer, and reads the others.
    """

    def __init__(self, device: str, function: Callable[[int, int], Any], chunks: int = 1) -> None:
        super().__init__(None, "python", "")
        self.device = device
        self._body = _BODY(lambda table, start, stop: function(start, stop))
        self._extent = _EXTENT(lambda table: chunks)
        addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (self._body, self._extent)]
        self.program = NativeProgram(*addresses)


def buffer(device: str = "CPU") -> Buffer:
    return Buffer(device, 16, dtypes.int32)


def item(device: str, function: Callable[[int, int], Any], *buffers: Buffer) -> JitItem:
    return JitItem(PythonKernel(device, function), list(buffers))


def nothing(start: int, stop: int) -> None:
    pass


# *** the plan ***


def test_one_device_is_one_segment() -> None:
    a = buffer()
    (lane,) = lanes_of([item("CPU", nothing, a), item("CPU", nothing, a)])
    assert (lane.steps, lane.segments) == ((0, 1), (Segment(2, (0,)),))


def test_independent_devices_wait_for_nothing() -> None:
    a, b = buffer(), buffer("CPU:1")
    steps = [item("CPU", nothing, a), item("CPU:1", nothing, b)] * 3
    lanes = lanes_of(steps)
    assert [lane.device for lane in lanes] == ["CPU", "CPU:1"]
    assert [lane.steps for lane in lanes] == [(0, 2, 4), (1, 3, 5)]
    assert all(lane.segments == (Segment(3, (0, 0)),) for lane in lanes)


def test_segments_end_where_another_lane_waits() -> None:
    a, b, c = buffer(), buffer("CPU:1"), buffer()
    steps = [
        item("CPU", nothing, c),
        item("CPU", nothing, a),
        item("CPU", nothing, c),
        item("CPU:1", nothing, b),
        item("CPU:1", nothing, b, a),  # RAW: after step 1
        item("CPU", nothing, a),  # WAR: after step 4
    ]
    first, second = lanes_of(steps)
    assert first.segments == (Segment(2, (0, 0)), Segment(3, (0, 0)), Segment(4, (0, 2)))
    assert second.segments == (Segment(1, (0, 0)), Segment(2, (1, 0)))


# *** runs ***


def test_lanes_run_at_once() -> None:
    """Each kernel waits for the one of the other lane: one after the other, none would end."""
    meeting = threading.Barrier(2, timeout=20)
    met = []

    def meet(start: int, stop: int) -> None:
        try:
            meeting.wait()
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)

    steps = [item("CPU", meet, buffer()), item("CPU:1", meet, buffer("CPU:1"))]
    graph = CPUGraph(steps * 3, [], {})
    with Context(FERRULE_NUM_THREADS=2):
        graph([], {})
    assert met == [True] * 6


def test_a_thread_that_waits_for_another_lane_sleeps() -> None:
    a, b = buffer(), buffer("CPU:1")
    ends = []

    def wait(start: int, stop: int) -> None:
        time.sleep(0.4)
        ends.append("CPU")

    def end(start: int, stop: int) -> None:
        ends.append("CPU:1")

    graph = CPUGraph([item("CPU", wait, a), item("CPU:1", end, b, a)], [], {})
    with Context(FERRULE_NUM_THREADS=2):
        before = time.process_time()
        graph([], {})
        used = time.process_time() - before
    assert ends == ["CPU", "CPU:1"]
    assert used < 0.2


def test_a_lane_has_its_share_of_the_threads() -> None:
    """With four threads, two for each of two lanes: all four chunks run at once."""
    meeting = threading.Barrier(4, timeout=20)
    met = []

    def meet(start: int, stop: int) -> None:
        for _ in range(start, stop):
            try:
                meeting.wait()
                met.append(True)
            except threading.BrokenBarrierError:
                met.append(False)

    steps = [
        JitItem(PythonKernel(device, meet, chunks=2), [buffer(device)])
        for device in ("CPU", "CPU:1")
    ]
    graph = CPUGraph(steps, [], {})
    with Context(FERRULE_NUM_THREADS=4):
        graph([], {})
        graph([], {})
    assert len(met) == 8
    assert all(met)


def random_steps(
    generator: random.Random, note: Callable[[int, bool], None]
) -> tuple[list[JitItem], list[set[int]]]:
    """Steps of three devices, and for each the steps that it must wait for."""
    memory = [buffer(f"CPU:{k % 3}") for k in range(5)]
    steps: list[JitItem] = []
    uses: list[tuple[int, set[int]]] = []
    after: list[set[int]] = []
    for number in range(generator.randrange(1, 25)):

        def run(start: int, stop: int, number: int = number) -> None:
            note(number, True)
            note(number, False)

        out = generator.randrange(5)
        read = set(generator.sample(range(5), generator.randrange(3))) - {out}
        device = generator.choice(["CPU", "CPU:1", "CPU:2"])
        steps.append(item(device, run, memory[out], *[memory[k] for k in read]))
        after.append(
            {j for j, (o, r) in enumerate(uses) if o == out or out in r or o in read}
            | {j for j, step in enumerate(steps[:-1]) if step.prg.device == device}
        )
        uses.append((out, read))
    return steps, after


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("sliced", [False, True])
def test_every_step_runs_once_and_after_what_it_needs(n_threads: int, sliced: bool) -> None:
    runtime = native_runtime()
    before = runtime.slice_ticks
    events: list[tuple[int, bool]] = []
    try:
        runtime.slice_ticks = 0 if sliced else before
        runtime.apply_times()
        for seed in range(40):
            generator = random.Random(seed)
            steps, after = random_steps(generator, lambda *event: events.append(event))
            graph = CPUGraph(steps, [], {})
            for _ in range(2):
                events.clear()
                with Context(FERRULE_NUM_THREADS=n_threads):
                    graph([], {})
                assert sorted(events) == sorted((n, b) for n in range(len(steps)) for b in (0, 1))
                place = {event: k for k, event in enumerate(events)}
                for number, needed in enumerate(after):
                    for other in needed:
                        assert place[other, False] < place[number, True], (seed, number, other)
    finally:
        runtime.slice_ticks = before
        runtime.apply_times()


def test_ctrl_c_stops_all_lanes(kernels: dict[str, Callable[..., str]]) -> None:
    source = kernels["count_kernel"]("slow", "ret i64 64", busy=300_000)  # 0.1 ms a chunk
    program = CPUProgram("slow", llvm.host_compiler().compile_cached(source))
    devices = ("CPU", "CPU:1")
    counts = [Buffer.fromCPU(device, np.zeros(64, np.int64)) for device in devices]
    steps = []
    for device, count in zip(devices, counts, strict=True):
        runner = CompiledASTRunner(None, "slow", source)
        runner.device, runner.program = device, program
        steps.append(JitItem(runner, [count]))

    def seen() -> list[int]:
        return [int(count.borrowed().max()) for count in counts]

    with Context(FERRULE_NUM_THREADS=2):
        graph = CPUGraph(steps * 20_000, [], {})
        with pytest.raises(KeyboardInterrupt), interrupted_once(lambda: all(seen())):
            graph([], {})
        done = seen()
        assert 0 < min(done)
        assert max(done) < 20_000  # all of them would take minutes
        CPUGraph(steps * 2, [], {})([], {})
    total = [int(count.borrowed().sum()) for count in counts]
    assert total[0] <= 64 * (done[0] + 2)
    assert [int(count.borrowed().min()) >= 2 for count in counts] == [True, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_has_lanes_too() -> None:
    total = [0]

    def count(start: int, stop: int) -> None:
        total[0] += stop - start

    steps = [
        JitItem(PythonKernel(device, count, chunks=5), [buffer(device)])
        for device in ("CPU", "CPU:1")
    ]
    graph = CPUGraph(steps, [], {})
    with Context(FERRULE_NUM_THREADS=4):
        graph([], {})
        assert total == [10]
        child = os.fork()
        if child == 0:
            graph([], {})
            os._exit(0 if total == [20] else 1)
        assert os.waitpid(child, 0)[1] == 0
