"""Tests of what the device CUDA is made of, on a GPU or the fake driver; skipped where none is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.cuda import fake

from ferrule.device import CompiledASTRunner
from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import Buffer, allocators
from ferrule.ir.expr import Variable, sint
from ferrule.runtime.cuda.compiler import NVRTC, CUDACompiler
from ferrule.runtime.cuda.driver import GPU, architecture, open_gpu
from ferrule.runtime.cuda.memory import CUDAAllocator
from ferrule.runtime.cuda.program import CUDAProgram

ADD = """
extern "C" __global__ void add(float* out, const float* a, const float* b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = a[i] + b[i];
}"""
COUNT = """
extern "C" __global__ void count(int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += 1;
}"""
SIZE = 64


def _open(number: int) -> GPU:
    try:
        return open_gpu(number)
    except (ImportError, OSError) as error:
        pytest.skip(str(error))


@pytest.fixture
def gpu() -> GPU:
    """The first GPU."""
    return _open(0)


@pytest.fixture
def other_gpu() -> GPU:
    """Another GPU."""
    return _open(1)


@pytest.fixture
def driver() -> fake.FakeDriver:
    """The fake driver, for tests that ask it what happened."""
    found = fake.loaded()
    if found is None:
        pytest.skip("this is a real GPU, which does not tell")
    return found


@pytest.fixture
def compiler(gpu: GPU) -> CUDACompiler:
    """What compiles for the GPU that is there."""
    toolchain = NVRTC() if fake.loaded() is None else fake.FakeToolchain()
    return CUDACompiler(architecture(gpu.capability), toolchain)


@pytest.fixture
def allocator(gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> CUDAAllocator:
    """The memory of the first GPU, under the name CUDA."""
    made = CUDAAllocator(gpu)
    monkeypatch.setitem(allocators, "CUDA", made)
    return made


@pytest.fixture
def other_allocator(other_gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> CUDAAllocator:
    """The memory of another GPU, under the name CUDA:1."""
    made = CUDAAllocator(other_gpu)
    monkeypatch.setitem(allocators, "CUDA:1", made)
    return made


LoadProgram = Callable[..., CUDAProgram]
MakeRunner = Callable[..., CompiledASTRunner]


@pytest.fixture
def load(gpu: GPU, compiler: CUDACompiler) -> LoadProgram:
    """`load(name, source)`: the program of a kernel."""

    def load_program(name: str, source: str, **options: Any) -> CUDAProgram:
        return CUDAProgram(name, compiler.compile_cached(source), gpu, **options)

    return load_program


@pytest.fixture
def runner(allocator: CUDAAllocator, gpu: GPU, compiler: CUDACompiler) -> MakeRunner:
    """`runner(name, source, blocks, threads, *variables)`: a kernel as something to capture."""

    def make(
        name: str, source: str, blocks: sint = 1, threads: int = SIZE, *variables: Variable
    ) -> CompiledASTRunner:
        made = CompiledASTRunner(None, name, source, [blocks], [threads])
        made.device = "CUDA"
        made.lib = compiler.compile_cached(source)
        made.program = CUDAProgram(name, made.lib, gpu, compiler)
        made.vars = variables
        return made

    return make


@pytest.fixture
def add(runner: MakeRunner) -> CompiledASTRunner:
    """out = a + b, over SIZE elements."""
    return runner("add", ADD)


def buffer(value: float = 0, dtype: DType = dtypes.float32, size: int = SIZE) -> Buffer:
    """A buffer on the GPU that holds `size` times the same."""
    values = np.full(size, value, dtype.np)
    return Buffer("CUDA", size, dtype).copyin(values.data.cast("B"))


def values(of: Buffer) -> np.ndarray:
    """What a buffer holds."""
    return np.array(of.toCPU())
