"""The instruction by which warps multiply matrices: who holds what, and where there is none."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.gpus import ARCHITECTURES, GPU, TENSOR, nvidia, nvrtc
from tests.kernels import load, matmul, store

from ferrule.codegen.interpret import InterpretError, interpret, matrices, mma, unfolded
from ferrule.codegen.interpret.arithmetic import to_tf32
from ferrule.codegen.intrinsics import (
    MATRIX_INTRINSICS,
    MMA,
    MMA_TF32,
    WARP,
    MatrixIntrinsic,
    matrix_intrinsic,
    native_matrix_intrinsic,
    of_matrices,
)
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import ProgramError, UOp, UOps, verify
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import RenderError
from ferrule.renderer.c.style import cuda_renderer, opencl_renderer
from ferrule.runtime.cuda.compiler import CUDACompiler

F16, F32, I64 = dtypes.float16, dtypes.float32, dtypes.int64
MULTIPLIED = [dtype for by in MATRIX_INTRINSICS.values() for dtype in by.sources]
both = pytest.mark.parametrize("by", MATRIX_INTRINSICS.values(), ids=lambda by: by.name)


def layouts(by: MatrixIntrinsic) -> list[tuple]:
    """Which element is where, how many each thread has, and the shape, of all three matrices."""
    shapes = ((by.rows, by.terms), (by.terms, by.columns), (by.rows, by.columns))
    return list(zip((by.left, by.right, by.result), by.held, shapes, strict=True))


@both
@pytest.mark.parametrize("which", range(3), ids=["left", "right", "result"])
def test_each_element_is_held_once(which: int, by: MatrixIntrinsic) -> None:
    place, count, shape = layouts(by)[which]
    thread, element = np.indices((WARP, count))
    held = np.zeros(shape, int)
    np.add.at(held, place(thread, element), 1)
    assert (held == 1).all()


def test_who_holds_what_of_tf32() -> None:
    """The figures of "Matrix Fragments for mma.m16n8k8" in the PTX ISA, for .tf32."""
    for thread in range(WARP):
        group, member = thread >> 2, thread % 4
        left = [(group, member), (group + 8, member), (group, member + 4), (group + 8, member + 4)]
        assert [MMA_TF32.left(thread, e) for e in range(4)] == left
        assert [MMA_TF32.right(thread, e) for e in range(2)] == [
            (member, group),
            (member + 4, group),
        ]
        result = [(group + 8 * (e >= 2), 2 * member + e % 2) for e in range(4)]
        assert [MMA_TF32.result(thread, e) for e in range(4)] == result


@both
def test_it_is_a_product_of_matrices(by: MatrixIntrinsic) -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.integers(-4, 5, (WARP, n)).astype(np.float32) for n in by.held)
    left, right, result = layouts(by)
    wholes = zip((a, b, c, mma(by, a, b, c)), (left, right, result, result), strict=True)
    x, y, before, after = (unfolded(part, place, shape) for part, (place, _, shape) in wholes)
    np.testing.assert_array_equal(after, x @ y + before)


def test_float32_is_rounded_only_where_that_is_allowed() -> None:
    def found(target: Target) -> list[MatrixIntrinsic | None]:
        return [native_matrix_intrinsic(dtype, F32, target) for dtype in (F16, F32, dtypes.int32)]

    assert found(TENSOR) == [MMA, None, None]
    assert found(TENSOR.with_tf32) == [MMA, MMA_TF32, None]
    assert found(GPU.with_tf32) == [None, None, None]
    assert found(replace(TENSOR.with_tf32, warp=1)) == [None, None, None]
    assert native_matrix_intrinsic(F32, dtypes.float64, TENSOR.with_tf32) is None


HALF = 2.0**-11  # of the last bit that 1.0 keeps


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1 + HALF, 1 + 2 * HALF),  # half-way is away from zero
        (-1 - HALF, -1 - 2 * HALF),
        (1 + HALF - 2.0**-23, 1.0),
        (1 + 3 * HALF, 1 + 4 * HALF),
        (2 - 2.0**-23, 2.0),
        (0.0, 0.0),
        (-0.0, -0.0),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (3.4028235e38, np.inf),
        (2.0**-137, 2.0**-136),  # of subnormals as many bits are left, from the same place on
        (2.0**-138, 0.0),
    ],
)
def test_what_tf32_holds(value: float, rounded: float) -> None:
    found = to_tf32(np.array([value], np.float32))
    np.testing.assert_array_equal(found, np.float32(rounded))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.float32(rounded)))


def test_no_number_stays_none() -> None:
    """Whatever its bits are: the largest would overflow."""
    bits = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32)
    assert np.isnan(to_tf32(bits.view(np.float32))).all()


def test_four_matrices_are_what_is_multiplied() -> None:
    """Of 16 x 16 of the left operand, and of 16 x 16 of the right one, which is two products'."""
    thread, element = np.indices((WARP, 8))
    matrix, row, column = of_matrices(thread, element, transposed=False)
    left = (matrix % 2 * 8 + row, matrix // 2 * 8 + column)
    np.testing.assert_array_equal(left, MMA.left(thread, element))
    matrix, column, row = of_matrices(thread, element, transposed=False)
    term, n = MMA.right(thread, element % 4)
    right = (matrix % 2 * 8 + row, matrix // 2 * 8 + column)
    np.testing.assert_array_equal(right, (term, n + element // 4 * 8))


def test_four_matrices_of_32_bits_are_what_is_multiplied() -> None:
    thread, element = np.indices((WARP, 4))
    matrix, row, column = of_matrices(thread, element, transposed=False, packed=1)
    left = (matrix % 2 * 8 + row, matrix // 2 * 4 + column)
    np.testing.assert_array_equal(left, MMA_TF32.left(thread, element))
    term, n = MMA_TF32.right(thread, element % 2)
    right = (matrix % 2 * 4 + column, matrix // 2 * 8 + row)
    np.testing.assert_array_equal(right, (term, n + element // 2 * 8))


@pytest.mark.parametrize("transposed", [False, True])
def test_each_thread_gives_a_row(transposed: bool) -> None:
    whole = np.arange(WARP * 8, dtype=np.float32).reshape(4, 8, 8)
    given = (whole.swapaxes(1, 2) if transposed else whole).reshape(WARP, 8)
    got = matrices(given, transposed)
    for thread, element in np.ndindex(WARP, 8):
        row, column = thread // 4, thread % 4 * 2 + element % 2
        assert got[thread, element] == whole[element // 2, row, column]


def shared_matrices(transposed: bool = False, lanes: int = 8, dtype: DType = F16) -> list[UOp]:
    """Each thread stores a row to shared memory, and what it gets of the four matrices."""
    one, eight = UOp(UOps.CONST, I64, arg=1), UOp(UOps.CONST, I64, arg=8)
    extent = UOp(UOps.EXTENT, src=(one,), arg=WARP)
    thread = UOp(UOps.THREAD, I64)
    source, out = (UOp(UOps.PARAM, dtype, arg=slot) for slot in range(2))
    at = UOp(UOps.ALU, I64, 1, (thread, eight), ExprOp.MUL)
    shared = UOp(UOps.SHARED, dtype, arg=("rows", WARP * 8))
    row = UOp(UOps.LOAD, dtype, 8, (source, at), 8)
    store = UOp(UOps.STORE, src=(shared, at, row), arg=8)
    got = UOp(UOps.MATRICES, dtype, lanes, (shared, at), transposed)
    result = UOp(UOps.STORE, src=(out, at, got), arg=8)
    begin = [one, eight, extent, thread, source, out, at, shared, row, store]
    return [*begin, UOp(UOps.BARRIER), got, result]


def test_matrices_from_shared_memory() -> None:
    x = np.arange(WARP * 8).astype(np.float16)
    out = np.zeros_like(x)
    interpret(shared_matrices(transposed=True), [x, out])
    np.testing.assert_array_equal(out.reshape(WARP, 8), matrices(x.reshape(WARP, 8), True))


def test_matrices_are_of_16_bytes_a_row_in_shared_memory() -> None:
    verify(shared_matrices(lanes=4, dtype=F32))
    for uops in (shared_matrices(lanes=4), shared_matrices(dtype=F32)):
        with pytest.raises(ProgramError, match="loads 16 bytes for each thread from memory that"):
            verify(uops)
    for uops in (
        shared_matrices(lanes=4, dtype=F32, transposed=True),
        shared_matrices(lanes=2, dtype=dtypes.float64),
    ):
        with pytest.raises(ProgramError, match="elements of 16 bits, or, as they lie there, of 32"):
            verify(uops)


def program(dtype: DType = F16, lanes: int | None = None, threads: int = WARP) -> list[UOp]:
    """The product of matrices of ones, stored by each thread."""
    by = matrix_intrinsic(dtype) or MMA
    one = UOp(UOps.CONST, I64, arg=1)
    given = a = UOp(UOps.CONST, dtype, lanes or by.held[0], arg=1.0)
    taken = b = UOp(UOps.CONST, dtype, by.held[1], arg=1.0)
    if by.rounds:
        a, b = (UOp(UOps.ALU, x.dtype, x.lanes, (x,), ExprOp.TF32) for x in (a, b))
    c = UOp(UOps.CONST, F32, 4, arg=0.5)
    four = UOp(UOps.CONST, I64, arg=4)
    start = UOp(UOps.START, I64)
    thread = UOp(UOps.THREAD, I64)
    product = UOp(UOps.MMA, F32, 4, (a, b, c))
    buffer = UOp(UOps.PARAM, F32, arg=0)
    at = UOp(UOps.ALU, I64, 1, (thread, four), ExprOp.MUL)
    extent = UOp(UOps.EXTENT, src=(one,), arg=threads)
    store = UOp(UOps.STORE, src=(buffer, at, product))
    begin = [one, extent, start, given, taken, *(x for x in (a, b) if by.rounds)]
    return [*begin, c, four, thread, product, buffer, at, store]


@pytest.mark.parametrize(("dtype", "found"), [(F16, 16.5), (F32, 8.5)])
def test_a_program_of_it(dtype: DType, found: float) -> None:
    out = np.zeros(WARP * 4, np.float32)
    interpret(program(dtype), [out])
    assert (out == found).all()


def test_all_threads_of_a_warp_take_part() -> None:
    with pytest.raises(InterpretError, match="MMA by 16 threads; all 32 of each warp take part"):
        interpret(program(threads=16), [np.zeros(64, np.float32)])


def test_operands_are_checked() -> None:
    with pytest.raises(ProgramError, match="bfloat16, or float32 rounded to tf32, not"):
        verify(program(dtypes.float64))
    with pytest.raises(ProgramError, match="takes 8 and 4 elements"):
        verify(program(lanes=4))
    with pytest.raises(ProgramError, match="takes 4 and 2 elements"):
        verify(program(F32, lanes=8))


def test_only_float32_is_rounded() -> None:
    x = UOp(UOps.CONST, dtypes.float64, 1, (), 1.0)
    with pytest.raises(ProgramError, match=r"TF32: rounds float32, not dtypes\.float64"):
        verify([x, UOp(UOps.ALU, dtypes.float64, 1, (x,), ExprOp.TF32)])


def test_float32_is_rounded_before_it_is_multiplied() -> None:
    """The instruction leaves out what it does not take, which is another number."""
    uops = program(F32)
    rounded = {u: u.src[0] for u in uops if u.op is UOps.ALU and u.arg is ExprOp.TF32}
    (product,) = (u for u in uops if u.op is UOps.MMA)
    given = replace(product, src=tuple(rounded.get(s, s) for s in product.src))
    with pytest.raises(ProgramError, match=r"multiplies dtypes\.float32 that is not rounded"):
        verify([*uops[: uops.index(product)], given])


def test_only_cuda_has_it() -> None:
    target = replace(GPU, warp=1)
    with pytest.raises(RenderError, match="MMA: OpenCL C with warps of 1 and blocks of 32 threads"):
        opencl_renderer(target).render("product", program())


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda dtype: dtype.name)
def test_the_instruction_compiles(dtype: DType, arch: str) -> None:
    compiler, lanes = nvrtc(), 16 // dtype.itemsize
    transposed = [shared_matrices(True, dtype=dtype)] if dtype is not F32 else []
    for uops in (program(dtype), shared_matrices(lanes=lanes, dtype=dtype), *transposed):
        source = cuda_renderer(GPU).render("product", uops)
        assert compiler.resources(source, arch).spilled_bytes == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)), ids=str)
def test_the_instruction_for_tf32_is_what_runs(transposed: tuple[bool, bool], arch: str) -> None:
    """All products, and no other; and at most twice as many roundings: each is an addition, unless
    its operand is infinite or no number.
    """
    a, b = (load(slot, 1024, 1024) for slot in (1, 2))
    left, right = (x.permute((1, 0)) if t else x for x, t in zip((a, b), transposed, strict=True))
    target = nvidia(arch).with_tf32
    k = Linearizer(store(matmul(left, right)), target, name="product").linearize()
    compiler = CUDACompiler(arch, nvrtc())
    listing = compiler.disassemble(compiler.compile(cuda_renderer(target).render(k.name, k.uops)))
    multiplied = listing.count("HMMA.1688.F32.TF32")
    # The loop over a step's terms may stay one.
    assert multiplied > 0
    assert multiplied % sum(u.op is UOps.MMA for u in k.uops) == 0
    assert "FFMA" not in listing
    assert 0 < listing.count("FSETP.GEU") <= 2 * multiplied
