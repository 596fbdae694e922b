"""`ferrule.tune` and `BEAM`: budgets, winners on disk, results that stay what they are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clocks import Clock, clock_of
from tests.kernels import load, matmul, store

from ferrule import Context, Tensor, TinyJit, Variable, tune
from ferrule.base import diskcache
from ferrule.codegen.opt import Opt
from ferrule.codegen.search import seeds
from ferrule.device import Compiled, Device, DeviceUnavailableError
from ferrule.device.autotune import measurement, tuner
from ferrule.device.autotune.measurement import Worker, WorkerLostError
from ferrule.device.autotune.tuning_cache import TunedSchedule, TuningWarning
from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import allocators
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.jit import tuning
from ferrule.jit.tuning import TuneError
from ferrule.ops import BufferOps, LazyOp, MemBuffer, ReduceOps
from ferrule.runtime.cpu import device as open_cpu

AST = store(matmul(load(1, 40, 64), load(2, 64, 48)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes by a second for each question to a worker, however long the answer takes."""
    clock = clock_of(monkeypatch, tuning, tuner, measurement)
    monkeypatch.setattr(tuner, "_MAX_FINAL_S", 0.2)
    ask = Worker.ask

    def asked(worker: Worker, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        clock.now += min(seconds, 1.0)
        return ask(worker, question, seconds)

    monkeypatch.setattr(Worker, "ask", asked)
    return clock


def cpu() -> Compiled:
    """The device as a process finds it that has run nothing yet."""
    return open_cpu("CPU")


def another_schedule(ast: LazyOp) -> tuple[Opt, ...]:
    kernel = cpu().get_linearizer(ast).kernel
    _, second, *_ = seeds(kernel, cpu().linearizer_opts)
    return second


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_cpu(values: np.ndarray) -> Tensor:
    return Tensor(values, device="CPU")


# winners


def test_a_winner_goes_to_json_and_back() -> None:
    winner = TunedSchedule((Opt("split", ("out0", "i0.0", 4, "mask")),), 2.0, 1.0, 7, "")
    assert TunedSchedule.from_json(winner.to_json()) == winner
    assert winner.gained
    assert not TunedSchedule((), 1.0, 1.0).gained


@pytest.mark.parametrize("text", ["", "5", "[1]", "[[], 1, 2, 3]", '[[[3, "x"]], 1, 2, 3, ""]'])
def test_what_is_no_winner(text: str) -> None:
    with pytest.raises(ValueError, match="not a winner"):
        TunedSchedule.from_json(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty disk cache."""
    return tmp_path / "cache"


def test_a_winner_is_used_by_later_devices(folder: Path) -> None:
    opts = another_schedule(AST)
    with Context(FERRULE_CACHE_DIR=str(folder)):
        first = cpu()
        own = first.get_linearizer(AST).opts
        assert own != opts
        untuned = first.get_runner(AST)
        first.adopt(AST, TunedSchedule(opts, 2.0, 1.0, 5))
        assert first.get_linearizer(AST).opts == opts
        assert first.get_runner(AST).lib != untuned.lib
        later = cpu()
        assert later.get_runner(AST).lib == first.get_runner(AST).lib
        assert later.get_linearizer(AST).opts == opts


def test_no_gain_changes_nothing(folder: Path) -> None:
    with Context(FERRULE_CACHE_DIR=str(folder)):
        found = cpu()
        before = found.get_runner(AST)
        found.adopt(AST, TunedSchedule(found.get_linearizer(AST).opts, 1.0, 1.0, 5))
        assert found.get_runner(AST) is before


BAD_OPTS = (
    TunedSchedule((Opt("split", ("no such nest", "i", 4, "mask")),), 2.0, 1.0).to_json().encode()
)


@pytest.mark.parametrize("entry", [b"garbage", BAD_OPTS])
def test_a_corrupt_winner_is_ignored_with_a_warning(folder: Path, entry: bytes) -> None:
    with Context(FERRULE_CACHE_DIR=str(folder)):
        found = cpu()
        diskcache.put("winner", found.cache_key(AST), entry)
        with pytest.warns(TuningWarning, match="a tuned schedule is not used"):
            runner = found.get_runner(AST)
        assert runner is found.get_runner(AST)


# tune


@pytest.mark.usefixtures("clock")
def test_tune_gives_a_report_and_leaves_results_as_they_were() -> None:
    a, b = on_cpu(numbers(33, 70)), on_cpu(numbers(70, 90, seed=1))
    before = (a @ b).numpy()
    report = tune(lambda a, b: (a @ b).relu(), a, b, seconds=8.0, width=1)
    (kernel,) = report.kernels
    assert kernel.runs == 1
    assert kernel.trials > 1
    assert kernel.before >= kernel.after > 0
    assert kernel.gain >= 1
    assert kernel.name in str(report)
    # The schedule that won may add up in another order.
    np.testing.assert_allclose((a @ b).relu().numpy(), np.maximum(before, 0), atol=1e-5)


@pytest.mark.parametrize("hangs", ["nothing", "begin", "try", "compare"])
def test_tune_keeps_to_its_time(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that hangs at one kind of question takes all the time that it is given."""
    clock = clock_of(monkeypatch, tuning, tuner, measurement)
    asked: list[str] = []

    def ask(worker: Worker, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        asked.append(question["do"])
        if question["do"] == hangs:
            clock.now += seconds
            worker.generation += 1
            raise WorkerLostError("the worker was lost: it hangs")
        took = question.get("seconds", 0.05)
        assert took <= seconds
        clock.now += took
        count = len(question.get("sources", ()))
        return {"result": [1e-6] * count if count else 1e-6}

    monkeypatch.setattr(Worker, "ask", ask)
    x = on_cpu(numbers(300, 300))
    report = tune(lambda x: (x @ x).softmax(1).sum(0), x, seconds=3.0)
    assert len(report.kernels) >= 2
    assert hangs in ("nothing", *asked)
    assert report.seconds == clock.now
    # An answer to the last question may be on its way.
    assert 1.5 < clock.now <= 3.0 + measurement._GRACE_S


def test_no_time_at_all() -> None:
    report = tune(lambda x: x + 1, on_cpu(numbers(70)), seconds=0.01)
    assert [kernel.note for kernel in report.kernels] == ["no time was left"]


def test_lazy_tensors() -> None:
    x = on_cpu(numbers(64, 65)).exp()
    report = tune([x, x.sum(1)], seconds=1.0)
    assert report.kernels
    assert x.lazydata.realized is not None
    assert tune(x.realize(), seconds=1.0).kernels == ()


def test_a_captured_function_is_captured_anew() -> None:
    @TinyJit
    def product(x: Tensor) -> Tensor:
        return (x @ x).realize()

    values = numbers(50, 50)
    x = on_cpu(values)
    for _ in range(3):
        product(x)
    tune(product, x, seconds=1.0)
    assert product.jit_cache == []
    for _ in range(3):
        np.testing.assert_allclose(product(x).numpy(), values @ values, rtol=1e-4, atol=1e-4)
    assert product.jit_cache


def test_what_writes_is_written_once() -> None:
    total = on_cpu(numbers(80) * 0).contiguous().realize()

    def step() -> None:
        total.assign(total + 1).realize()

    tune(step, seconds=1.0)
    assert total.numpy().tolist() == [1.0] * 80


@pytest.mark.usefixtures("clock")
def test_data_decide_where_it_reads() -> None:
    x, index = on_cpu(numbers(40, 8)), Tensor([3, 1, 2], device="CPU")
    report = tune(lambda: x[index], seconds=1.0)
    assert any("depends on data" in kernel.note for kernel in report.kernels)


def test_a_device_that_interprets_has_nothing_to_tune() -> None:
    assert tune(lambda: Tensor([1.0], device="NUMPY") + 1, seconds=1.0).kernels == ()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices that are registered are known in this test alone."""
    monkeypatch.setattr(Device, "_registered", {})
    monkeypatch.setattr(Device, "_opened", dict(Device._opened))
    yield
    allocators.pop("MINE", None)


@pytest.mark.usefixtures("registry", "clock")
def test_a_registered_device_is_known_where_kernels_are_tried() -> None:
    Device.register("mine", open_cpu)
    report = tune(lambda x: x @ x, Tensor(numbers(64, 64), device="MINE"), seconds=8.0, width=1)
    (kernel,) = report.kernels
    assert kernel.note == ""
    assert kernel.trials > 1


@pytest.mark.usefixtures("registry", "clock")
def test_a_function_that_cannot_be_imported_is_named() -> None:
    Device.register("mine", lambda name: open_cpu(name))
    report = tune(lambda x: x @ x, Tensor(numbers(64, 64), device="MINE"), seconds=4.0)
    (kernel,) = report.kernels
    assert "MINE was registered with a function that another process cannot import" in kernel.note


@pytest.mark.parametrize(("seconds", "width"), [(0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_arguments_are_checked(seconds: float, width: int) -> None:
    with pytest.raises(ValueError, match="it must be a number above 0"):
        tune(lambda: None, seconds=seconds, width=width)


def test_what_is_neither_a_function_nor_tensors() -> None:
    with pytest.raises(TypeError, match="tune: int is no function, nor tensors"):
        tune(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tune: seconds is '3'; it must be a number above 0"):
        tune(lambda: None, seconds="3")  # type: ignore[arg-type]


def test_not_inside_of_a_capture() -> None:
    @TinyJit
    def inner(x: Tensor) -> Tensor:
        tune(lambda: x + 1, seconds=1.0)
        return x + 1

    inner(on_cpu(numbers(10)))
    with pytest.raises(TuneError, match="inside of a captured function"):
        inner(on_cpu(numbers(10)))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("entry", ["os:_exit", "time:sleep"])
def test_it_returns_whatever_the_worker_does(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.device._TRIAL_WORKER", entry)
    values = numbers(31, 37)
    x = on_cpu(values)
    report = tune(lambda x: x.sum(1), x, seconds=1.0)
    assert "the worker was lost" in report.kernels[0].note
    np.testing.assert_allclose(x.sum(1).numpy(), values.sum(1), rtol=1e-4, atol=1e-4)


def test_several_threads() -> None:
    results: dict[int, np.ndarray] = {}
    values = [numbers(40, 41 + i) for i in range(3)]

    def work(i: int) -> None:
        x = on_cpu(values[i])
        tune(lambda x: x @ x.T, x, seconds=1.5)
        results[i] = (x @ x.T).numpy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(values):
        np.testing.assert_allclose(results[i], x @ x.T, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("clock")
def test_a_search_does_not_wait_for_another_one_for_ever() -> None:
    begun, ended = threading.Event(), threading.Event()

    def another() -> None:
        with tuner.search_lock:
            begun.set()
            ended.wait()

    thread = threading.Thread(target=another)
    thread.start()
    begun.wait()
    report = tune(lambda x: x + 1, on_cpu(numbers(70)), seconds=0.6)
    ended.set()
    thread.join()
    assert [kernel.note for kernel in report.kernels] == ["another search took all the time"]


# BEAM


def test_beam_searches_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[LazyOp] = []
    opts = another_schedule(AST)

    def pretend(self: object, ast: LazyOp, seconds: float, width: int) -> TunedSchedule:
        searched.append(ast)
        assert (seconds, width) == (3.5, 2)
        return TunedSchedule(opts, 2.0, 1.0, 9)

    monkeypatch.setattr("ferrule.device.autotune.tuner.Tuner.tune", pretend)
    with Context(FERRULE_CACHE_DIR=str(folder)):
        found = cpu()
        untuned = found.get_runner(AST)
        with Context(BEAM=2, BEAM_SECONDS=3.5):
            tuned = found.get_runner(AST)
            assert tuned.lib != untuned.lib
            assert found.get_linearizer(AST).opts == opts
            found.prepare([AST])
            assert cpu().get_runner(AST).lib == tuned.lib
        assert found.get_runner(AST) is tuned
    assert searched == [AST]


def test_results_do_not_depend_on_beam() -> None:
    a, b = numbers(70, 90), numbers(90, 50)
    with Context(BEAM=2, BEAM_SECONDS=1):
        found = (on_cpu(a) @ on_cpu(b)).numpy()
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)


IN_A_SCRIPT = """
import sys
import numpy as np
from ferrule import Tensor
x = Tensor(np.ones((20, 30), np.float32), device="CPU")
print((x @ x.T).sum().item())
"""


def test_beam_in_a_script_without_a_guard(tmp_path: Path) -> None:
    """The worker must not run the user's program again."""
    script = tmp_path / "script.py"
    script.write_text(IN_A_SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={
            "BEAM": "1",
            "BEAM_SECONDS": "1",
            "FERRULE_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("12000.0", "")


def test_no_warnings_without_a_reason(folder: Path) -> None:
    with warnings.catch_warnings(), Context(FERRULE_CACHE_DIR=str(folder)):
        warnings.simplefilter("error")
        cpu().get_runner(AST)
    assert isinstance(Device["CPU"], Compiled)


@pytest.mark.usefixtures("clock")
def test_buffers_that_another_process_could_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.device.autotune.tuner.host_memory", lambda: 1000)
    report = tune(lambda x: x.exp(), on_cpu(numbers(51)), seconds=1.0)
    assert "too large" in report.kernels[0].note


@pytest.mark.usefixtures("clock")
def test_sizes_that_vary() -> None:
    values = numbers(50, 64)
    x, rows = on_cpu(values), Variable("rows", 1, 50)

    def product(n: int) -> Tensor:
        return (x[: rows.bind(n)] @ x.T).sum(0)

    (kernel,) = tune(product, 7, seconds=8.0, width=1).kernels
    assert kernel.trials > 1
    for n in (1, 7, 50):
        expected = (values[:n] @ values.T).sum(0)
        np.testing.assert_allclose(product(n).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("clock")
def test_what_is_updated_in_place() -> None:
    values = numbers(5000)
    total = on_cpu(values).contiguous().realize()

    def step() -> None:
        total.assign(total * 0.5 + 1).realize()

    (kernel,) = tune(step, seconds=8.0, width=1).kernels
    assert kernel.trials > 1
    step()
    np.testing.assert_allclose(total.numpy(), (values * 0.5 + 1) * 0.5 + 1, rtol=1e-6)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.float64])
def test_other_dtypes(dtype: DType) -> None:
    x = on_cpu(np.arange(40 * 30).reshape(40, 30) % 7).cast(dtype).realize()
    expected = (x @ x.T).numpy()
    (kernel,) = tune(lambda: x @ x.T, seconds=8.0, width=1).kernels
    assert kernel.trials > 1
    np.testing.assert_array_equal((x @ x.T).numpy(), expected)


def test_kernels_of_blocks_are_tried_with_their_own_launches() -> None:
    try:
        opened = Device["CL"]
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    assert isinstance(opened, Compiled)
    n = Variable("n", 1, 40)
    st = ShapeTracker.from_shape((n, 48))
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st))
    with opened.tuner() as tuner:
        winner = tuner.tune(LazyOp(ReduceOps.SUM, (x,), (n, 1)), 6.0, 1)
    # On a busy machine the budget may be gone with one compilation: that is no failure.
    assert "Error" not in winner.note
    assert winner.note or 0 < winner.after <= winner.before
