"""The tests of the device CUDA, run in processes that have the fake driver."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda import fake

ROOT = Path(__file__).parents[2]
why_not = fake.missing()
pytestmark = pytest.mark.skipif(bool(why_not), reason=f"no fake driver: {why_not}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


# Of the backend tests those that have every op and dtype, replays with other inputs, memory at any
# address; `make test-cuda-fake` runs all. The longest first.
FILES = (
    "backend/test_jit.py",
    "backend/test_ops_ast.py",
    "cuda/gpu/test_program.py",
    "cuda/gpu/test_graph.py",
    "cuda/gpu/test_memory.py",
    "cuda/gpu/test_matrices.py",
    "cuda/gpu/test_tf32.py",
    "cuda/gpu/test_bench.py",
)

SOME = {"backend/test_lengths.py": "cache_that_grows or two_lengths"}
"""Of other files those whose names say that."""


@pytest.mark.parametrize("name", [*FILES, *SOME])
def test_on_the_fake_driver(name: str) -> None:
    options = ("-q", "-n", "0", "-W", "error", "-p", "tests.cuda.plugin", "--device", "CUDA")
    done = run("-m", "pytest", *options, f"tests/{name}", "-k", SOME.get(name, ""))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_the_settings_of_tests_come_first() -> None:
    """Kernels for the fake driver must not get into the user's own disk cache."""
    program = "import sys, tests.cuda.plugin; print('ferrule' in sys.modules)"
    assert run("-c", program).stdout == "False\n"


# Everything that is alive at the end of a program, in an order that is nobody's choice.
AT_EXIT = """
import atexit
from tests.cuda import fake
driver = fake.load()
kinds = ("graphs", "executables", "modules", "streams", "events", "pinned")
atexit.register(lambda: print({kind: driver.alive(kind) for kind in kinds}))

import numpy as np
from ferrule.ir.buffer import Buffer, allocators
from ferrule.device.capture import JitItem
from ferrule.base.config import Context
from ferrule.device import CompiledASTRunner
from ferrule.runtime.cuda.compiler import CUDACompiler
from ferrule.runtime.cuda.driver import open_gpu
from ferrule.runtime.cuda.memory import CUDAAllocator
from ferrule.runtime.cuda.program import CUDAProgram
from ferrule.runtime.cuda.graph import CUDAGraph
from tests.cuda.gpu.conftest import ADD

gpu = open_gpu(0)
allocators["CUDA"] = CUDAAllocator(gpu)
runner = CompiledASTRunner(None, "add", ADD, [1], [64])
runner.device = "CUDA"
lib = CUDACompiler("sm_90a", fake.FakeToolchain()).compile(ADD)
runner.program = CUDAProgram("add", lib, gpu)
x = Buffer.fromCPU("CUDA", np.ones(64, np.float32))
graph = CUDAGraph([JitItem(runner, [x, x, x])], [x], {})
graph([x], {}, wait=True)
print(x.toCPU()[0])
graph([x], {})
print({kind: driver.alive(kind) for kind in kinds})
cycle = [graph, x]
cycle.append(cycle)
"""


def test_nothing_is_left_at_exit() -> None:
    done = run("-W", "error", "-c", AT_EXIT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result, before, after = done.stdout.splitlines()
    assert float(result) == 2
    alive = {"graphs": 1, "executables": 1, "modules": 1, "streams": 1, "events": 2, "pinned": 2}
    assert eval(before) == alive
    # Code stays: the process takes it along.
    assert eval(after) == dict.fromkeys(alive, 0) | {"modules": 1}


FORK = """
import os
from tests.cuda import fake
fake.load()
import numpy as np
from ferrule import Tensor
from ferrule.runtime import cuda
cuda.toolchain = fake.FakeToolchain
from ferrule.runtime.cuda.driver import CUDAError, Timer, open_gpu
timer = Timer(open_gpu(0))
x = Tensor([1.0, 2.0], device="CUDA") + 1
print(x.numpy(), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    try:
        x.numpy()
    except CUDAError as error:
        print(error, flush=True)
"""


def test_a_fork_cannot_use_the_gpu() -> None:
    """It says so once, and its destructors say nothing."""
    done = run("-W", "error", "-c", FORK)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first == "[2. 3.]"
    assert "a forked process cannot use a GPU that its parent has opened" in second


def test_gpus_that_are_hidden() -> None:
    program = """
from tests.cuda import fake
fake.load(devices=0)
from ferrule.runtime.cuda.driver import open_gpu
try:
    open_gpu(0)
except OSError as error:
    print(error)
"""
    done = run("-c", program)
    assert "no usable CUDA driver" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("CUDA_VISIBLE_DEVICES may hide the GPUs that there are")


def test_a_machine_without_a_gpu() -> None:
    program = """
from tests.cuda import fake
fake.load(devices=1)
from ferrule.runtime.cuda.driver import open_gpu
open_gpu(0)
try:
    open_gpu(1)
except OSError as error:
    print(error)
"""
    done = run("-c", program)
    assert done.stdout.strip() == "there is no GPU 1: the CUDA driver has 1", done.stderr
