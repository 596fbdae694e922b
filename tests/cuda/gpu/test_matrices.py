"""Products of matrices by the warps of a GPU: the instruction, or what stands for it elsewhere."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.cuda import fake
from tests.cuda.gpu.conftest import MakeRunner
from tests.kernels import (
    as_multiplied,
    load,
    matmul,
    narrow_attention,
    numpy_softmax,
    store,
    widened,
)
from tests.roles import the_output

from ferrule.codegen.intrinsics import MATRIX_INTRINSICS, MMA, WGMMA, matrix_intrinsic
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.chains import Chain, ChainTile, tile_chain
from ferrule.codegen.schedules.gpu.cost import BlockTile
from ferrule.codegen.schedules.gpu.tile import tile_grid
from ferrule.codegen.uops import UOps
from ferrule.dtype import DType
from ferrule.ir.buffer import Buffer
from ferrule.ops import LazyOp
from ferrule.renderer.c.style import cuda_renderer
from ferrule.runtime.cuda.driver import GPU, CUDAError, gpu_target

WARPS = BlockTile(4, 4, 8, 8, step=32, matrices=MMA)
MULTIPLIED = [dtype for by in MATRIX_INTRINSICS.values() for dtype in by.sources]
ROWS, COLUMNS, TERMS = 46, 31, 70
"""Elements of the right operand come in pairs only where it is transposed."""


def run_tiled(  # type: ignore[no-untyped-def]
    ast: LazyOp,
    tile: BlockTile,
    gpu: GPU,
    runner: MakeRunner,
    *inputs: np.ndarray,  # type: ignore[type-arg]
    shape: tuple[int, int] = (ROWS, COLUMNS),
):
    """What a kernel with a tile stores, and its program."""
    plan = Plan(lower(ast, "product"), gpu_target(gpu))
    plan.collapse()
    assert tile_grid(plan, the_output(plan.kernel).name, tile)
    k = Linearizer(ast, plan.target, plan.opts, "product").linearize()
    product = runner(k.name, cuda_renderer(plan.target).render(k.name, k.uops), k.blocks, k.threads)
    product.runtime_args = {"shared_bytes": k.shared_bytes}
    out = Buffer.fromCPU("CUDA", np.full(shape, np.nan, np.float32))
    product.exec([out, *(Buffer.fromCPU("CUDA", value) for value in inputs)])
    return out.toCPU().reshape(shape), {u.op for u in k.uops}


@pytest.mark.parametrize("pipeline_depth", [1, 2, 3])
@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda dtype: dtype.name)
def test_products_by_warps(
    dtype: DType, transposed: tuple[bool, bool], pipeline_depth: int, gpu: GPU, runner: MakeRunner
) -> None:
    shapes = ((ROWS, TERMS), (TERMS, COLUMNS))
    stored = [shape[::-1] if t else shape for shape, t in zip(shapes, transposed, strict=True)]
    loaded = [load(slot, *shape, dtype=dtype) for slot, shape in enumerate(stored, 1)]
    a, b = (x.permute((1, 0)) if t else x for x, t in zip(loaded, transposed, strict=True))
    ast = store(matmul(widened(a), widened(b)))
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype(dtype.np) for shape in stored]
    by = matrix_intrinsic(dtype)
    assert by is not None
    tile = replace(WARPS, pipeline_depth=pipeline_depth, matrices=by)
    found, ops = run_tiled(ast, tile, gpu, runner, *inputs)
    assert UOps.MMA in ops
    # Elements of 32 bits cannot be transposed on their way to a warp.
    assert (UOps.MATRICES in ops) == (by is MMA or transposed != (True, False))
    assert (UOps.COPY in ops) == (pipeline_depth > 1)
    taken = (as_multiplied(x, by) for x in inputs)
    x, y = (x.T if t else x for x, t in zip(taken, transposed, strict=True))
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("columns", [64, 256])
@pytest.mark.parametrize("dtype", WGMMA.sources, ids=lambda dtype: dtype.name)
def test_products_by_warp_groups(
    dtype: DType, columns: int, transposed: tuple[bool, bool], gpu: GPU, runner: MakeRunner
) -> None:
    if not WGMMA.is_native(gpu_target(gpu)):
        pytest.skip("this GPU has no products by warp groups")
    m, n, k = 200, 328, 456
    shapes = ((m, k), (k, n))
    stored = [shape[::-1] if t else shape for shape, t in zip(shapes, transposed, strict=True)]
    loaded = [load(slot, *shape, dtype=dtype) for slot, shape in enumerate(stored, 1)]
    a, b = (x.permute((1, 0)) if t else x for x, t in zip(loaded, transposed, strict=True))
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype(dtype.np) for shape in stored]
    tile = BlockTile(2, columns // 4, 64, 4, step=64, matrices=WGMMA, pipeline_depth=4)
    ast = store(matmul(widened(a), widened(b)))
    found, ops = run_tiled(ast, tile, gpu, runner, *inputs, shape=(m, n))
    assert UOps.WGMMA in ops
    taken = (x.astype(np.float64) for x in inputs)
    x, y = (x.T if t else x for x, t in zip(taken, transposed, strict=True))
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=2e-4)


def test_more_shared_memory_than_a_kernel_has_by_itself(gpu: GPU, runner: MakeRunner) -> None:
    a, b = (load(slot, *shape) for slot, shape in ((1, (ROWS, TERMS)), (2, (TERMS, COLUMNS))))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((ROWS, TERMS)).astype(np.float32)
    y = generator.standard_normal((TERMS, COLUMNS)).astype(np.float32)
    tile = BlockTile(
        rows=4, columns=4, row_threads=16, column_threads=16, step=64, pipeline_depth=2
    )
    found, _ = run_tiled(store(matmul(a, b)), tile, gpu, runner, x, y)
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_copies_ahead_of_their_use(transposed: bool, gpu: GPU, runner: MakeRunner) -> None:
    a = load(1, TERMS, ROWS).permute((1, 0)) if transposed else load(1, ROWS, TERMS)
    ast = store(matmul(a, load(2, TERMS, COLUMNS)))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((ROWS, TERMS)).astype(np.float32)
    y = generator.standard_normal((TERMS, COLUMNS)).astype(np.float32)
    tile = BlockTile(rows=2, columns=4, row_threads=8, column_threads=8, step=8, pipeline_depth=3)
    found, ops = run_tiled(
        ast, tile, gpu, runner, np.ascontiguousarray(x.T) if transposed else x, y
    )
    assert UOps.COPY in ops
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-4)


# What is wrong with a kernel in which each thread copies 16 bytes to shared memory and back.
COPIES = """
struct alignas(16) Piece { float lane[4]; };
extern "C" __global__ void turn(Piece *out, const Piece *x) {
  __shared__ Piece scratch[33];
  int thread = threadIdx.x;
  __pipeline_memcpy_async((char *)&scratch[thread] + OFFSET, &x[thread], 16, 4 * ZEROS);
  __pipeline_commit();
  if (WAITS) __pipeline_wait_prior(0);
  __syncthreads();
  out[thread] = scratch[31 - thread];
  __pipeline_wait_prior(LEFT);
}"""
NOTHING_WRONG = {"OFFSET": 0, "ZEROS": 0, "WAITS": 1, "LEFT": 0}


def transposed(runner: MakeRunner, **changes: int) -> np.ndarray:  # type: ignore[type-arg]
    text = COPIES
    for name, value in (NOTHING_WRONG | changes).items():
        text = text.replace(name, str(value))
    x = np.arange(128, dtype=np.float32)
    out = Buffer.fromCPU("CUDA", np.zeros(128, np.float32))
    runner("turn", text, 1, 32).exec([out, Buffer.fromCPU("CUDA", x)])
    return out.toCPU().reshape(32, 4)[::-1]


def test_the_fake_driver_copies_when_it_is_waited_for(
    driver: fake.FakeDriver, runner: MakeRunner
) -> None:
    x = np.arange(128, dtype=np.float32).reshape(32, 4)
    np.testing.assert_array_equal(transposed(runner), x)
    np.testing.assert_array_equal(transposed(runner, ZEROS=2)[:, 2:], 0)
    assert (transposed(runner, WAITS=0) != x).any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"OFFSET": 4}, "MISALIGNED_ADDRESS.* not aligned to its size"),
        ({"WAITS": 0, "LEFT": 1}, "LAUNCH_FAILED.*its copies are on"),
    ],
)
def test_the_fake_driver_refuses_wrong_copies(
    change: dict[str, int], text: str, driver: fake.FakeDriver, runner: MakeRunner
) -> None:
    with pytest.raises(CUDAError, match=text):
        transposed(runner, **change)


@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda dtype: dtype.name)
def test_chains_by_warps(dtype: DType, gpu: GPU, runner: MakeRunner) -> None:
    rows, terms, depth, columns = 45, 70, 30, 20
    ast = narrow_attention(dtype, rows, terms, depth, columns)
    plan = Plan(lower(ast, "chain"), gpu_target(gpu))
    plan.collapse()
    chain = Chain.of(plan.kernel, the_output(plan.kernel).name)
    assert chain is not None
    by = matrix_intrinsic(dtype)
    assert by is not None
    scores = BlockTile(2, 8, 16, 4, step=by.terms, matrices=by)
    tile_chain(plan, chain, ChainTile(scores, replace(scores, columns=8, step=32)))
    k = Linearizer(ast, plan.target, plan.opts, "chain").linearize()
    assert sum(u.op is UOps.MMA for u in k.uops) == 4 + 4 * (2 if by.is_chained else 1)
    run = runner(k.name, cuda_renderer(plan.target).render(k.name, k.uops), k.blocks, k.threads)
    generator = np.random.default_rng(0)
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    arrays = [generator.standard_normal(shape).astype(dtype.np) for shape in shapes]
    out = Buffer.fromCPU("CUDA", np.zeros((rows, columns), np.float32))
    run.exec([out, *(Buffer.fromCPU("CUDA", value) for value in arrays)])
    q, key, value = (x.astype(np.float64) for x in arrays)
    expected = numpy_softmax(q @ key.T, 1) @ value
    found = out.toCPU().reshape(rows, columns)
    np.testing.assert_allclose(found, expected, atol=2.0 ** -(min(10, dtype.mantissa_bits) - 3))


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", WGMMA.sources, ids=lambda dtype: dtype.name)
def test_chains_by_warp_groups(dtype: DType, width: int, gpu: GPU, runner: MakeRunner) -> None:
    if not WGMMA.is_native(gpu_target(gpu)):
        pytest.skip("this GPU has no products by warp groups")
    rows, terms, depth, columns = 200, 300, width, width
    ast = narrow_attention(dtype, rows, terms, depth, columns)
    plan = Plan(lower(ast, "chain"), gpu_target(gpu))
    plan.collapse()
    chain = Chain.of(plan.kernel, the_output(plan.kernel).name)
    assert chain is not None
    scores = BlockTile(2, 16, 64, 4, step=64, matrices=WGMMA, pipeline_depth=2)
    results = replace(scores, columns=width // 4, step=64)
    tile_chain(plan, chain, ChainTile(scores, results, whole=True))
    k = Linearizer(ast, plan.target, plan.opts, "chain").linearize()
    assert any(u.op is UOps.WGMMA for u in k.uops)
    run = runner(k.name, cuda_renderer(plan.target).render(k.name, k.uops), k.blocks, k.threads)
    run.runtime_args = {"shared_bytes": k.shared_bytes}
    generator = np.random.default_rng(0)
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    arrays = [(generator.standard_normal(shape) / 4).astype(dtype.np) for shape in shapes]
    out = Buffer.fromCPU("CUDA", np.zeros((rows, columns), np.float32))
    run.exec([out, *(Buffer.fromCPU("CUDA", value) for value in arrays)])
    q, key, value = (x.astype(np.float64) for x in arrays)
    expected = numpy_softmax(q @ key.T, 1) @ value
    found = out.toCPU().reshape(rows, columns)
    np.testing.assert_allclose(found, expected, atol=2.0 ** -(min(10, dtype.mantissa_bits) - 3))
