"""The instruction by which warps multiply matrices: who holds what, and where there is none."""

from dataclasses import replace

import numpy as np
import pytest
from tests.gpus import ARCHITECTURES, GPU, nvrtc

from ferrule.codegen.interpret import InterpretError, interpret, matrices, mma, unfolded
from ferrule.codegen.intrinsics import MMA, WARP, of_matrices
from ferrule.codegen.uops import ProgramError, UOp, UOps, verify
from ferrule.dtype import DType, dtypes
from ferrule.expr import ExprOp
from ferrule.renderer.base import RenderError
from ferrule.renderer.cstyle import cuda_renderer, opencl_renderer

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


def test_four_matrices_are_what_is_multiplied() -> None:
    """Of 16 x 16 of the left operand, and of 16 x 16 of the right one, which is two products'."""
    thread, element = np.indices((WARP, 8))
    matrix, row, column = of_matrices(thread, element, turned=False)
    left = (matrix % 2 * 8 + row, matrix // 2 * 8 + column)
    np.testing.assert_array_equal(left, MMA.left(thread, element))
    matrix, column, row = of_matrices(thread, element, turned=False)
    term, n = MMA.right(thread, element % 4)
    right = (matrix % 2 * 8 + row, matrix // 2 * 8 + column)
    np.testing.assert_array_equal(right, (term, n + element // 4 * 8))


@pytest.mark.parametrize("turned", [False, True])
def test_each_thread_gives_a_row(turned: bool) -> None:
    whole = np.arange(WARP * 8, dtype=np.float32).reshape(4, 8, 8)
    given = (whole.swapaxes(1, 2) if turned else whole).reshape(WARP, 8)
    got = matrices(given, turned)
    for thread, element in np.ndindex(WARP, 8):
        row, column = thread // 4, thread % 4 * 2 + element % 2
        assert got[thread, element] == whole[element // 2, row, column]


def shared_matrices(turned: bool = False, lanes: int = 8, dtype: DType = F16) -> list[UOp]:
    """Each thread stores a row to shared memory, and what it gets of the four matrices."""
    one, eight = UOp(UOps.CONST, I64, arg=1), UOp(UOps.CONST, I64, arg=8)
    extent = UOp(UOps.EXTENT, src=(one,), arg=WARP)
    thread = UOp(UOps.THREAD, I64)
    source, out = (UOp(UOps.PARAM, dtype, arg=slot) for slot in range(2))
    at = UOp(UOps.ALU, I64, 1, (thread, eight), ExprOp.MUL)
    shared = UOp(UOps.SHARED, dtype, arg=("rows", WARP * 8))
    row = UOp(UOps.LOAD, dtype, 8, (source, at), 8)
    store = UOp(UOps.STORE, src=(shared, at, row), arg=8)
    got = UOp(UOps.MATRICES, dtype, lanes, (shared, at), turned)
    result = UOp(UOps.STORE, src=(out, at, got), arg=8)
    begin = [one, eight, extent, thread, source, out, at, shared, row, store]
    return [*begin, UOp(UOps.BARRIER), got, result]


def test_matrices_from_shared_memory() -> None:
    x = np.arange(WARP * 8).astype(np.float16)
    out = np.zeros_like(x)
    interpret(shared_matrices(turned=True), [x, out])
    np.testing.assert_array_equal(out.reshape(WARP, 8), matrices(x.reshape(WARP, 8), True))


def test_matrices_are_of_16_bits_in_shared_memory() -> None:
    for uops in (shared_matrices(lanes=4), shared_matrices(dtype=F32)):
        with pytest.raises(ProgramError, match="loads 8 elements of 16 bits from memory that the"):
            verify(uops)


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
    target = replace(GPU, warp=1)
    with pytest.raises(RenderError, match="MMA: OpenCL C with warps of 1 and blocks of 32 threads"):
        opencl_renderer(target).render("product", program())


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", MMA.sources, ids=lambda dtype: dtype.name)
def test_the_instruction_compiles(dtype: DType, arch: str) -> None:
    compiler = nvrtc()
    for uops in (program(dtype), shared_matrices(dtype=dtype), shared_matrices(True, dtype=dtype)):
        source = cuda_renderer(GPU).render("product", uops)
        assert compiler.resources(source, arch).spilled_bytes == 0
