"""Kernels for blocks of threads under Oclgrind, which interprets each thread, and reports data
races, accesses outside of buffers, and barriers that some threads do not reach.

It is a thousand times slower than a processor: the shapes are tiny, and so are the blocks.
"""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kernels import CASES, Case

from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.search import slot_sizes
from ferrule.ir.target import detect_cpu
from ferrule.renderer.c.style import opencl_renderer

pytestmark = pytest.mark.skipif(
    shutil.which("oclgrind-kernel") is None, reason="oclgrind is not installed"
)

TARGET = replace(
    detect_cpu(),
    name="oclgrind",
    vector_bytes=16,
    block_threads=32,
    index_bits=32,
    max_threads=4,
    shared_bytes=32 << 10,
    native_ops=frozenset({"SQRT", "MULACC", "TRUNC", "ROUND"}),
)
NAMES = {
    "add",
    "attention",
    "convolution",
    "layernorm",
    "matmul",
    "softmax",
    "softmax_columns",
    "sum_all",
    "sum_columns",
    "sum_rows",
    "transpose",
}
GOLDEN = [case for case in CASES if case.name in NAMES]


def kernel(case: Case) -> tuple[Linearizer, str]:
    """A case's kernel and its source."""
    k = Linearizer(case.ast, TARGET, name=case.name).linearize()
    return k, opencl_renderer(TARGET).render(k.name, k.uops)


def reports(k: Linearizer, source: str, folder: Path, missing: int = 0) -> str:
    """What Oclgrind says about a run on buffers of ones, some elements too short."""
    sizes = slot_sizes(k.kernel)
    assert sizes is not None
    assert isinstance(k.blocks, int)
    (folder / "kernel.cl").write_text(source)
    lines = ["kernel.cl", k.name, f"{k.blocks * k.threads} 1 1", f"{k.threads} 1 1"]
    for size, dtype in zip(sizes, k.kernel.slots, strict=True):
        kind = {"float32": "float", "int32": "int"}[dtype.name]
        lines.append(f"<size={(size - missing) * dtype.itemsize} {kind} fill=1>")
    (folder / "kernel.sim").write_text("\n".join(lines) + "\n")
    command = ["oclgrind-kernel", "--data-races", "--build-options", "-cl-std=CL1.2 -w"]
    run = subprocess.run(
        [*command, "kernel.sim"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_all_cases_are_there() -> None:
    assert len(GOLDEN) == len(NAMES)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_no_races_and_nothing_outside(case: Case, tmp_path: Path) -> None:
    assert reports(*kernel(case), tmp_path) == ""


def test_a_missing_barrier_is_found(tmp_path: Path) -> None:
    """The check itself: without its barriers, a kernel that needs them has races."""
    case = next(case for case in GOLDEN if case.name == "softmax")
    k, source = kernel(case)
    assert k.threads > 1
    without, count = re.subn(r"\bbarrier\([^)]*\);", "", source)
    assert count > 0
    assert "data race" in reports(k, without, tmp_path)


def test_an_access_outside_is_found(tmp_path: Path) -> None:
    case = next(case for case in GOLDEN if case.name == "add")
    found = reports(*kernel(case), tmp_path, missing=1)
    assert "Invalid read of size 4" in found
    assert "Invalid write of size 4" in found
