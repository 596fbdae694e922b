"""The instruction by which warps multiply matrices: who holds what, and where there is none."""

from dataclasses import replace

import numpy as np
import pytest

from ferrule.codegen.interpret import InterpretError, interpret, mma, unfolded
from ferrule.codegen.intrinsics import MMA, WARP
from ferrule.codegen.uops import ProgramError, UOp, UOps, verify
from ferrule.dtype import DType, dtypes
from ferrule.expr import ExprOp
from ferrule.renderer.base import RenderError
from ferrule.renderer.cstyle import cuda_renderer, opencl_renderer
from ferrule.target import detect_cpu

F16, F32, I64 = dtypes.float16, dtypes.float32, dtypes.int64
LAYOUTS = [
    (MMA.left, 8, (MMA.rows, MMA.terms)),
    (MMA.right, 4, (MMA.terms, MMA.columns)),
    (MMA.result, 4, (MMA.rows, MMA.columns)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["left", "right", "result"])
def test_each_element_is_held_once(layout: tuple) -> None:
    place, count, shape = layout
    thread, element = np.indices((WARP, count))
    held = np.zeros(shape, int)
    np.add.at(held, place(thread, element), 1)
    assert (held == 1).all()


def test_it_is_a_product_of_matrices() -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.integers(-4, 5, (WARP, n)).astype(np.float32) for n in (8, 4, 4))
    left, right, before, after = (
        unfolded(x, place, shape)
        for x, (place, _, shape) in zip(
            (a, b, c, mma(a, b, c)), [*LAYOUTS, LAYOUTS[2]], strict=True
        )
    )
    np.testing.assert_array_equal(after, left @ right + before)


def program(dtype: DType = F16, lanes: int = 8, threads: int = WARP) -> list[UOp]:
    """The product of matrices of ones, stored by each thread."""
    one = UOp(UOps.CONST, I64, arg=1)
    a = UOp(UOps.CONST, dtype, lanes, arg=1.0)
    b = UOp(UOps.CONST, dtype, 4, arg=1.0)
    c = UOp(UOps.CONST, F32, 4, arg=0.5)
    four = UOp(UOps.CONST, I64, arg=4)
    start = UOp(UOps.START, I64)
    thread = UOp(UOps.THREAD, I64)
    product = UOp(UOps.MMA, F32, 4, (a, b, c))
    buffer = UOp(UOps.PARAM, F32, arg=0)
    at = UOp(UOps.ALU, I64, 1, (thread, four), ExprOp.MUL)
    extent = UOp(UOps.EXTENT, src=(one,), arg=threads)
    store = UOp(UOps.STORE, src=(buffer, at, product))
    return [one, extent, start, a, b, c, four, thread, product, buffer, at, store]


def test_a_program_of_it() -> None:
    out = np.zeros(WARP * 4, np.float32)
    interpret(program(), [out])
    assert (out == 16.5).all()


def test_all_threads_of_a_warp_take_part() -> None:
    with pytest.raises(InterpretError, match="MMA by 16 threads; all 32 of each warp take part"):
        interpret(program(threads=16), [np.zeros(64, np.float32)])


def test_operands_are_checked() -> None:
    with pytest.raises(ProgramError, match="multiplies float16 or bfloat16, not"):
        verify(program(F32))
    with pytest.raises(ProgramError, match="takes 8 and 4 elements"):
        verify(program(lanes=4))


def test_only_cuda_has_it() -> None:
    target = replace(detect_cpu(), block_threads=256, shared_bytes=48 << 10)
    with pytest.raises(RenderError, match="MMA: OpenCL C with warps of 1 and blocks of 32 threads"):
        opencl_renderer(target).render("product", program())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", MMA.sources, ids=lambda dtype: dtype.name)
def test_the_instruction_compiles(dtype: DType, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    from ferrule.runtime.cuda_compiler import NVRTC

    target = replace(detect_cpu(), warp=WARP, block_threads=256, shared_bytes=48 << 10)
    source = cuda_renderer(target).render("product", program(dtype))
    assert NVRTC().resources(source, arch).spilled_bytes == 0
