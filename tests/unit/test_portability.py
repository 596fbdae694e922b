"""Whole kernels for lesser processors than this one, run on it, and for others, compiled."""

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.kernels import CASES, Case, load, make_inputs, matmul, softmax, store

from ferrule.codegen.linearizer import Linearizer
from ferrule.ir.target import Target, detect_cpu
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu import native
from ferrule.runtime.cpu.llvm import CPUCompiler
from ferrule.runtime.cpu.memory import CPUAllocator, CPUMemory
from ferrule.runtime.cpu.program import CPUProgram

binding = pytest.importorskip("llvmlite.binding")

HOST = detect_cpu()
# What /proc/cpuinfo says of processors that differ in what a kernel may use.
SSE4 = "pni ssse3 sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE4} avx avx2 f16c fma bmi1 bmi2 abm"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"

PROCESSORS_X86 = {
    "sse2": "",
    "sse4": SSE4,
    "avx": f"{SSE4} avx",
    "avx2 without fma": AVX2.replace(" fma", ""),
    "avx2": AVX2,
    "avx2 with fma and no more": "avx2 fma",
    "avx512 in part": f"{AVX2} avx512f avx512cd",
    "avx512": AVX512,
}
ARM8 = "fp asimd"
ARM82 = f"{ARM8} atomics fphp asimdhp asimddp"
PROCESSORS_ARM = {
    "Raspberry Pi 4": ARM8,
    "Raspberry Pi 5, Graviton 2": ARM82,
    "Apple M2": f"{ARM82} i8mm bf16",
    "Graviton 3": f"{ARM82} sve i8mm bf16",
    "Graviton 4": f"{ARM82} sve sve2 i8mm bf16",
}
on_arm = HOST.arch == "aarch64"
PROCESSORS = PROCESSORS_ARM if on_arm else PROCESSORS_X86

PRODUCT = Case(
    "large_matmul",
    store(matmul(load(1, 130, 200), load(2, 200, 145))),
    ((130, 200), (200, 145)),
    np.matmul,
)
ROWS = Case(
    "large_softmax",
    store(softmax(load(1, 70, 700), 1)),
    ((70, 700),),
    lambda x: (
        np.exp(x - x.max(1, keepdims=True))
        / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
    ),
)


@pytest.fixture(scope="module", params=PROCESSORS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A processor whose code this one can run."""
    file = tmp_path_factory.mktemp("proc") / "cpuinfo"
    label, machine = ("Features", "aarch64") if on_arm else ("flags", "x86_64")
    file.write_text(f"{label}\t: {PROCESSORS[request.param]}\n")
    found = detect_cpu(machine, file, Path("/nowhere"))
    missing = set(found.features.split(",")) - {"", *HOST.features.split(",")}
    if found.arch != HOST.arch or missing:
        pytest.skip(f"this processor lacks {sorted(missing) or 'the instruction set'}")
    return found


def source(case: Case, target: Target) -> str:
    linearizer = Linearizer(case.ast, target, name=case.name).linearize()
    return LLVMRenderer(target).render(case.name, linearizer.uops)


def memory(array: np.ndarray) -> CPUMemory:
    block: CPUMemory = CPUAllocator().alloc(array.nbytes)
    block.view()[:] = array.tobytes()
    return block


@pytest.mark.parametrize("case", [*CASES, PRODUCT, ROWS], ids=lambda case: case.name)
def test_kernels_run(case: Case, target: Target) -> None:
    """Values are right, and nothing is used that the processor does not list."""
    inputs = make_inputs(case)
    expected = np.asarray(case.expected(*inputs)).ravel()
    program = CPUProgram(case.name, CPUCompiler(target).compile(source(case, target)))
    out = memory(np.full(prod(case.ast.src[0].shape), np.nan, np.float32))
    program(out, *(memory(x) for x in inputs))
    found = np.frombuffer(out.view(), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(on_arm, reason="all of its processors have vectors of 16 bytes")
def test_vectors_are_as_wide_as_they_may_be(target: Target) -> None:
    text = assembly(source(PRODUCT, target), binding.get_process_triple(), target)
    features = target.features.split(",")
    assert {16: "%xmm", 32: "%ymm", 64: "%zmm"}[target.vector_bytes] in text
    assert "%ymm" not in text or "+avx" in features or "+avx2" in features
    assert "%zmm" not in text or "+avx512f" in features
    assert ("vfmadd" in text) is target.has_fma
    if not any(feature.startswith("+avx") for feature in features):
        assert "\tv" not in text  # all instructions of AVX begin with this letter


def assembly(text: str, triple: str, target: Target) -> str:
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu="generic" if target.arch == "aarch64" else "x86-64", features=target.features, opt=2
    )
    module = binding.parse_assembly(text)
    module.triple = triple
    module.verify()
    return str(machine.emit_assembly(module))


# *** aarch64 ***

ARM = "aarch64-unknown-linux-gnu"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Target:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        binding.Target.from_triple(ARM)
    except RuntimeError:
        pytest.skip("this LLVM is built without AArch64")
    file = tmp_path_factory.mktemp("proc") / "cpuinfo"
    file.write_text("Features\t: fp asimd atomics\n")
    return detect_cpu("aarch64", file, Path("/nowhere"))


@pytest.mark.parametrize("case", [*CASES, PRODUCT, ROWS], ids=lambda case: case.name)
def test_arm_kernels_compile(case: Case, arm: Target) -> None:
    text = assembly(source(case, arm), ARM, arm)
    calls = {line.split()[1] for line in text.splitlines() if line.startswith("\tbl\t")}
    assert calls <= {"memcpy", "memset", "memmove"}
    assert ".4s" in text or case.name in ("pad_sum", "outer_of_sums", "sum_all")


def test_arm_products_use_multiply_add(arm: Target) -> None:
    text = assembly(source(PRODUCT, arm), ARM, arm)
    assert "fmla\tv" in text


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_the_arm_runtime_compiles(system: str, arm: Target) -> None:
    triple = ARM if system == "linux" else "arm64-apple-darwin"
    text = assembly(native.ir("aarch64", system, for_python=True), triple, arm)
    assert native.REPLAY in text


# *** systems without what Linux has ***

AS_ELSEWHERE = """
import runpy, sys
from ferrule.runtime.cpu import llvm, native, pool
llvm.supports = lambda data: False
native._SYSTEM_CALLS.clear()
native._PROCESSORS.clear()
pool._has_python_calls = False
runpy.run_path(sys.argv[1])
"""


def test_what_other_systems_fall_back_on(tmp_path: Path) -> None:
    """Objects loaded by LLVM, condition variables, the system's clock, and calls by ctypes."""
    smoke = Path(__file__).parents[2] / ".ci" / "smoke.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AS_ELSEWHERE, str(smoke)],
        env={"FERRULE_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    assert "CPU works" in done.stdout
