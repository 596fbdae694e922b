"""What `make bench-cuda` does with ferrule: rows of its own, small enough for the fake driver."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ferrule.device import Device

BENCH = Path(__file__).parents[3] / "bench"
SMALL = {"x+1 16M": (1000,), "softmax 4096x4096, GPU": (40, 40)}


@pytest.fixture
def worker(gpu: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The process of a contender, though it is this one."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("worker")
    Device["CUDA"].synchronize()


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_checked_and_timed(name: str, worker: ModuleType, tmp_path: Path) -> None:
    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        return [rng.standard_normal(SMALL[name], np.float32)]

    row = next(row for row in worker.gpu_workloads() if row.name == name)
    rows = {name: replace(row, inputs=inputs)}
    path = str(tmp_path / "reference.npz")
    reference = worker.Worker(worker.load("ferrule", "float64"))
    contender = worker.Worker(worker.load(*worker.ON_GPU["ferrule"]))
    contender.library.use_gpu()
    reference.workloads = contender.workloads = rows
    reference.reference(name, path)
    try:
        assert 0 < contender.setup(name, path)["error"] < row.tolerance
        assert contender.call().device == "CUDA"
        assert contender.block(seconds=0.0, warmup=0.0)["calls"] == contender.count
    finally:
        contender.drop()


def test_what_the_gpu_can_do_at_most(worker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = importlib.import_module("gpu_limits")
    monkeypatch.setattr(limits, "COPIED", 1 << 20)
    found = limits.measure(1)
    assert found.memory.read > 0
    assert found.fma < found.bfloat16 == 2 * found.tf32
