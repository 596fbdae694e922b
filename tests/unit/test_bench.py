"""The benchmarks' own arithmetic, and one row of theirs from end to end."""

import ctypes
import gc
import importlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
KEYS = [
    "workload",
    "threads",
    "ferrule_ms",
    "peers",
    "best_peer",
    "ratio",
    "limit_ms",
    "limit_fraction",
    "error",
]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("limits", "workloads", "rounds", "report", "worker", "run")
    return {name: importlib.import_module(name) for name in names}


@pytest.fixture
def limits(bench):
    level = bench["limits"].Bandwidth(read=2e9, write=1e9, triad=1e9)
    cached = bench["limits"].Bandwidth(read=2e10, write=1e10, triad=1e10)
    return bench["limits"].Limits(2, 1e9, 4e9, cached, level, level)


def timing(bench, *seconds, **others):
    return bench["rounds"].Timing(list(seconds), **others)


def test_the_limit_is_the_longer_of_arithmetic_and_memory(limits) -> None:
    assert limits.least_ms(flops=2e9, reads=1e9, writes=0) == pytest.approx(2000)
    assert limits.least_ms(flops=2e9, reads=1e9, writes=0, half=True) == pytest.approx(500)
    assert limits.least_ms(flops=0, reads=1e9, writes=1e9) == pytest.approx(2000)
    assert limits.least_ms(flops=0, reads=1e4, writes=1e4) == pytest.approx(2e-3)


def test_a_ratio_is_the_median_of_the_rounds_own_ratios(bench) -> None:
    own, peer = timing(bench, 1.0, 2.0, 9.0), timing(bench, 2.0, 4.0, 9.0)
    assert bench["rounds"].ratio(peer, own) == 2.0
    assert bench["rounds"].ratio(timing(bench, 3.0), own) == 3.0


def test_hopeless_peers_stop_and_ferrule_does_not(bench) -> None:
    timings = {
        "ferrule": timing(bench, 50.0),
        "quick": timing(bench, 1.0),
        "slow": timing(bench, 5.0),
        "wrong": timing(bench, left="wrong"),
    }
    going = [name for name in timings if bench["rounds"].goes_on(name, timings)]
    assert going == ["ferrule", "quick"]


def test_a_row_compares_with_the_best_peer_that_counts(bench, limits) -> None:
    workload = next(row for row in bench["workloads"].all_workloads() if row.name == "A@B 512")
    timings = {
        "ferrule": timing(bench, 1.0, error=1e-7),
        "jax": timing(bench, 1.5),
        "torch": timing(bench, 3.0),
        "onnxruntime.packed": timing(bench, 0.5),
        "mlx": timing(bench, left="not installed"),
    }
    found = bench["report"].outcome(workload, 2, timings, limits)
    assert list(found.row) == KEYS
    assert found.row["best_peer"] == "jax"
    assert found.row["ratio"] == 1.5
    assert found.row["error"] == 1e-7
    assert found.row["limit_fraction"] == pytest.approx(found.row["limit_ms"] / 1e3)
    assert found.misses == ["0.75 of the limit"]
    text = bench["report"].table([found], [limits])
    assert "| A@B 512 | 1e+03 |" in text
    assert "A@B 512, mlx: not installed" in text


def test_without_a_figure_the_reason_is_the_error(bench, limits) -> None:
    workload = bench["workloads"].all_workloads()[0]
    timings = {"ferrule": timing(bench, left="wrong: off by 1"), "torch": timing(bench, 1.0)}
    found = bench["report"].outcome(workload, 1, timings, limits)
    assert (found.row["error"], found.row["ratio"]) == ("wrong: off by 1", None)
    assert found.misses == ["no figure"]


def test_a_run_that_is_ended_keeps_its_rows(bench, limits, tmp_path: Path, monkeypatch) -> None:
    class Session:
        def __init__(self, *_: object) -> None:
            self.rows = 0

        def measure(self, workload, threads):
            self.rows += 1
            if self.rows > 2:
                os._exit(9)  # nobody has time to write anything
            return bench["report"].outcome(workload, threads, {}, limits)

        def known_limits(self):
            return [limits]

    arguments = ["run.py", "--threads", "2", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr(bench["run"], "Session", Session)
    if (child := os.fork()) == 0:
        bench["run"].main()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2


def test_figures_of_a_gpu_do_not_replace_those_of_the_processor(bench, monkeypatch) -> None:
    folders = []
    for options in ([], ["--gpu"], ["--gpu", "--output", "elsewhere"]):
        monkeypatch.setattr("sys.argv", ["run.py", *options])
        folders.append(bench["run"].arguments().output)
    assert folders == [BENCH, BENCH / "gpu", Path("elsewhere")]


def test_who_may_round_to_tf32_is_told_so_and_nobody_else(bench, monkeypatch, tmp_path) -> None:
    """In processes of their own."""
    rounds = bench["rounds"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    show = "import os, json, sys; json.dump(dict(os.environ), sys.stdout)"
    found = []
    for tf32 in (False, True):
        *line, _ = rounds.command("torch", 1, "worker.py", gpu=True, tf32=tf32)
        found.append(json.loads(subprocess.check_output([*line, "-c", show])))
    names = rounds.OF_TF32.keys()
    assert all(found[0][name] in ("0", "highest") for name in names)
    assert all(found[1][name] in ("1", "tensorfloat32") for name in names)
    assert [settings.get("NVIDIA_TF32_OVERRIDE") for settings in found] == ["0", None]
    session = bench["run"].Session([], rounds.FOR_GPU, tmp_path, gpu=True)
    both = [session.contender("torch", 1, tf32) for tf32 in (False, True)]
    assert [contender.tf32 for contender in both] == [False, True]
    assert session.contender("torch", 1) is both[0]


def test_rows_that_round_to_tf32(bench, limits) -> None:
    rows = {row.name: row for row in bench["workloads"].gpu_workloads()}
    rounded = [row for row in rows.values() if row.tf32]
    assert len(rounded) == 3
    for row in rounded:
        exact = rows[row.name.replace(" tf32", "")]
        assert (row.flops, row.reads, row.half) == (exact.flops, exact.reads, False)
        assert 2**-11 < row.tolerance < 2**-7
    fast = replace(limits, tf32=2e9)
    assert fast.least_ms(flops=2e9, reads=0, writes=0, tf32=True) == pytest.approx(1000)
    assert fast.least_ms(flops=2e9, reads=0, writes=0) == pytest.approx(2000)


def test_workloads_have_names_of_their_own_and_the_same_inputs_each_time(bench) -> None:
    rows = bench["workloads"].all_workloads()
    assert len({row.name for row in rows}) == len(rows)
    on_gpu = [row.name for row in bench["workloads"].gpu_workloads()]
    assert len({*on_gpu, *(row.name for row in rows)}) == len(on_gpu) + len(rows)
    first, second = (rows[1].arrays() for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_measuring_loops_compute_what_they_say(bench) -> None:
    llvm = bench["limits"].llvm
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine, function = bench["limits"]._compiled(bench["limits"]._streams("triad", 4, True, False))
    a, b, c = (np.full(4096, value, np.float32) for value in (1, 2, 0))
    aligned = [array[-array.ctypes.data % 64 // 4 :][:1024] for array in (a, b, c)]
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in aligned]
    function("triad")(*addresses, 1024, 1)
    np.testing.assert_array_equal(aligned[2], np.full(1024, 7, np.float32))
    engine.close()


@pytest.mark.parametrize(
    "name", ["gelu(x*w+b)+x 16K", "conv dX 3x3 N1 C64 56x56", "MLP step, adam"]
)
def test_a_contender_is_checked_and_timed(bench, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "reference.npz")
    load = bench["worker"].load
    bench["worker"].Worker(load("ferrule", "float64")).reference(name, path)
    worker = bench["worker"].Worker(load("ferrule", ""))
    try:
        assert worker.setup(name, path)["error"] < 1e-4
        assert worker.block(seconds=0.0, warmup=0.0)["calls"] == 1
    finally:
        worker.drop()
    assert gc.isenabled()


def test_a_wrong_result_is_not_timed(bench, tmp_path: Path) -> None:
    path = str(tmp_path / "reference.npz")
    np.savez(path, np.ones((16, 1024)))
    worker = bench["worker"].Worker(bench["worker"].load("ferrule", ""))
    with pytest.raises(bench["worker"].Failed, match="wrong: off by"):
        worker.setup("gelu(x*w+b)+x 16K", path)


def test_calls_of_a_gpu_are_awaited_together(bench) -> None:
    """As many as take two milliseconds; those of the processor are awaited one by one."""
    worker = bench["worker"]

    class Library:
        gpu = True
        waits = 0

        def finish(self) -> None:
            self.waits += 1

    library = Library()
    assert [worker.in_flight(library, seconds) for seconds in (1e-9, 1e-4, 1.0)] == [100, 20, 1]
    calls: list[None] = []
    found = worker.block(lambda: calls.append(None), library, 0.0, 0.0, 20)
    assert (found["calls"], len(calls), library.waits) == (20, 20, 1)
    library.gpu = False
    assert worker.in_flight(library, 1e-4) == 1


def test_why_somebody_takes_no_part(bench) -> None:
    worker = bench["worker"]
    assert worker.reason(worker.Failed("wrong")) == "wrong"
    assert worker.reason(ValueError("first\nsecond")) == "ValueError: first"
    try:
        assert not worker
    except AssertionError as error:
        text = worker.reason(AssertionError().with_traceback(error.__traceback__))
    assert "test_bench.py" in text
    assert text.endswith("assert not worker")
