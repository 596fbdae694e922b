"""A process whose kernels are in the disk cache needs neither llvmlite nor much time."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ferrule.runtime.cpu import elf, llvm

# Objects of other formats and processors than our loader knows.
LLVM_LOADS = not elf.supports(llvm.host_compiler().compile(""))

RUN = """
import sys
import numpy as np
from ferrule.base.config import Context
from ferrule.runtime.cpu.memory import CPUAllocator
from ferrule.runtime.cpu.program import CPUProgram
from ferrule.runtime.cpu.llvm import host_compiler

SOURCE = '''{source}'''

program = CPUProgram("count", host_compiler().compile_cached(SOURCE))
memory = CPUAllocator().alloc(800)
array = np.frombuffer(memory.view(), np.int64)
array[:] = 0
with Context(FERRULE_NUM_THREADS=2):
    program(memory, vals=(100,))
print(int(array.sum()), "llvmlite" in sys.modules)
"""


KERNEL_OF_AN_AST = """
import sys
import numpy as np
from ferrule.device import Buffer, Device
from ferrule.dtype import dtypes
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer
from ferrule.ir.shape.shapetracker import ShapeTracker

st = ShapeTracker.from_shape((100,))
x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st))
total = LazyOp(BinaryOps.ADD, (x, x))
ast = LazyOp(BufferOps.STORE, (total,), MemBuffer(0, dtypes.float32, st))
out, source = (Buffer("CPU", 100, dtypes.float32) for _ in range(2))
source.copyin(np.arange(100, dtype=np.float32).data.cast("B"))
Device["CPU"].get_runner(ast).exec([out, source])
print(out.toCPU().sum(), "llvmlite" in sys.modules)
"""


def run(code: str, folder: Path) -> str:
    environment = {"FERRULE_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_llvmlite_is_imported_on_a_miss_only(
    kernels: dict[str, Callable[..., str]], tmp_path: Path
) -> None:
    source = kernels["count_kernel"]("count", kernels["extent_from"](1))
    code = RUN.format(source=source)
    assert run(code, tmp_path) == "100 True"
    assert run(code, tmp_path) == f"100 {LLVM_LOADS}"


def test_the_whole_way_from_an_ast(tmp_path: Path) -> None:
    assert run(KERNEL_OF_AN_AST, tmp_path) == "9900.0 True"
    assert run(KERNEL_OF_AN_AST, tmp_path) == f"9900.0 {LLVM_LOADS}"


def test_importing_the_device_does_not_import_llvmlite() -> None:
    code = "import sys, ferrule.runtime.cpu; print('llvmlite' in sys.modules)"
    assert run(code, Path(os.devnull)) == "False"


STEP = """
import sys
import numpy as np
from ferrule import Tensor, TinyJit
from ferrule.nn.optim import Adam

weight = Tensor(np.ones((8, 8), np.float32), requires_grad=True)
optimizer = Adam([weight])

@TinyJit
def step(x):
    loss = (x @ weight).tanh().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.realize()

x = Tensor(np.ones((4, 8), np.float32)).realize()
for _ in range(3):
    step(x)
print([name for name in {names} if name in sys.modules])
"""


def test_a_training_step_that_is_in_the_cache_needs_no_code_generation(tmp_path: Path) -> None:
    names = ["ferrule.codegen.linearizer", "ferrule.codegen.kernel", "ferrule.renderer.llvm.ir"]
    code = STEP.replace("{names}", str(names))
    assert run(code, tmp_path) == str(names)
    assert run(code, tmp_path) == "[]"


def test_it_imports_nothing_that_is_not_needed(tmp_path: Path) -> None:
    # Executors come with `logging`; layers and files of models are no part of the step.
    names = ["concurrent.futures", "logging", "zipfile", "ferrule.nn.linear", "ferrule.nn.state"]
    code = STEP.replace("{names}", str(names))
    run(code, tmp_path)
    assert run(code, tmp_path) == "[]"
