"""Products of matrices by warp groups: values, waiting, choice, machine code."""

import re
from dataclasses import replace
from itertools import product as every

import numpy as np
import pytest
from tests.gpus import nvidia, nvrtc
from tests.kernels import narrow_attention, numpy_softmax
from tests.roles import the_output
from tests.unit.test_pipeline import Product, count, interpreted

from ferrule.codegen.interpret import InterpretError, RaceError, interpret
from ferrule.codegen.intrinsics import MMA, WGMMA
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import ScheduleError
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.chains import Chain, ChainTile, tile_chain
from ferrule.codegen.schedules.gpu.cost import BlockTile, Work, best_grid_tile
from ferrule.codegen.schedules.gpu.tile import tile_grid
from ferrule.codegen.uops import ProgramError, UOp, UOps, verify
from ferrule.dtype import dtypes
from ferrule.ops import LazyOp
from ferrule.renderer.c.style import cuda_renderer
from ferrule.runtime.cuda.compiler import CUDACompiler

H100 = nvidia("sm_90a")
TRANSPOSED = list(every((False, True), repeat=2))
SMALL = BlockTile(2, 16, 32, 4, step=64, matrices=WGMMA, pipeline_depth=3)
LARGE = BlockTile(2, 32, 64, 4, step=64, matrices=WGMMA, pipeline_depth=4)


def tiled(product: Product, tile: BlockTile) -> Linearizer:
    plan = Plan(lower(product.ast, "tiled"), H100)
    plan.collapse()
    assert tile_grid(plan, the_output(plan.kernel).name, tile)
    return Linearizer(product.ast, H100, plan.opts, "tiled").linearize()


@pytest.mark.parametrize("tile", [SMALL, LARGE], ids=["64x64", "128x128"])
@pytest.mark.parametrize("transposed", TRANSPOSED, ids=str)
@pytest.mark.parametrize("dtype", WGMMA.sources, ids=lambda dtype: dtype.name)
def test_products(dtype, transposed: tuple[bool, bool], tile: BlockTile) -> None:  # type: ignore[no-untyped-def]
    product = Product(136, 72, 200, dtype, transposed)
    uops = tiled(product, tile).uops
    product.check(interpreted(uops))
    # One for all columns, begun in a loop over the terms of a step.
    (together,) = [u for u in uops if u.op is UOps.WGMMA]
    assert together.lanes == tile.rows * tile.columns
    assert [distance > 0 for distance in together.arg] == [transposed[0], not transposed[1]]
    assert not count(uops, UOps.MATRICES) + count(uops, UOps.MMA)


def test_sums_of_fewer_steps_than_the_pipeline_is_deep() -> None:
    for terms in (8, 64, 72, 128):
        product = Product(64, 64, terms, dtypes.bfloat16)
        product.check(interpreted(tiled(product, LARGE).uops))


def test_one_barrier_for_each_step_and_products_that_go_on() -> None:
    uops = tiled(Product(128, 128, 512, dtypes.float16), LARGE).uops
    assert count(uops, UOps.BARRIER) == count(uops, UOps.PROXY_FENCE) == 1
    assert [u.arg for u in uops if u.op is UOps.WGMMA_WAIT] == [1, 0]
    # Two steps are on their way: one copy is read by this step, one by that before.
    assert [u.arg for u in uops if u.op is UOps.WAIT] == [LARGE.pipeline_depth - 3, 0]


def changed(uops: list[UOp], op: UOps, arg: object = None) -> list[UOp]:
    """A program without an op, or with another argument of its first one."""
    if arg is None:
        return [u for u in uops if u.op is not op]
    first = next(u for u in uops if u.op is op)
    return [replace(u, arg=arg) if u is first else u for u in uops]


@pytest.mark.parametrize(
    ("op", "arg", "error"),
    [
        (UOps.PROXY_FENCE, None, "no PROXY_FENCE shows it"),
        (UOps.WGMMA_FENCE, None, "without WGMMA_FENCE"),
        (UOps.WGMMA_WAIT, 2, "products that go on read it"),
        (UOps.WGMMA_WAIT, None, "products that go on read it"),
    ],
)
def test_what_is_missing_is_found(op: UOps, arg: object, error: str) -> None:
    product = Product(64, 64, 512, dtypes.bfloat16)
    uops = changed(list(tiled(product, SMALL).uops), op, arg)
    with pytest.raises((InterpretError, RaceError), match=error):
        product.check(interpreted(uops))


def test_who_does_not_wait_at_the_end_is_found() -> None:
    product = Product(64, 64, 64, dtypes.bfloat16)
    uops = changed(list(tiled(product, SMALL).uops), UOps.WGMMA_WAIT)
    with pytest.raises(InterpretError, match="ends while products go on"):
        product.check(interpreted(uops))


def test_what_is_no_product_by_warp_groups() -> None:
    uops = list(tiled(Product(64, 64, 64, dtypes.bfloat16), SMALL).uops)
    place, found = next((i, u) for i, u in enumerate(uops) if u.op is UOps.WGMMA)
    for wrong in (replace(found, dtype=dtypes.float64), replace(found, lanes=24)):
        with pytest.raises(ProgramError, match="WGMMA"):
            verify([*uops[:place], wrong])
    with pytest.raises(ScheduleError, match="threads of 4 warps before those of a warp"):
        tiled(Product(64, 64, 64, dtypes.bfloat16), replace(SMALL, row_threads=16))


# -- chains ----------------------------------------------------------------------------------------


def chain_tile(groups: int, terms: int, columns: int) -> ChainTile:
    """Rows for so many warp groups, and lines of 64 terms and columns."""
    scores = BlockTile(2, 16 * terms, 32 * groups, 4, step=64, matrices=WGMMA, pipeline_depth=2)
    return ChainTile(scores, replace(scores, columns=16 * columns, step=64 * terms), whole=True)


def chained(ast: LazyOp, chosen: ChainTile) -> Linearizer:
    plan = Plan(lower(ast, "chain"), H100)
    plan.collapse()
    chain = Chain.of(plan.kernel, the_output(plan.kernel).name)
    assert chain is not None
    tile_chain(plan, chain, chosen)
    return Linearizer(ast, H100, plan.opts, "chain").linearize()


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ((70, 150, 64, 64), chain_tile(1, 1, 1)),
        ((70, 150, 64, 64), chain_tile(2, 2, 1)),
        ((130, 200, 128, 128), chain_tile(1, 1, 2)),
        ((40, 50, 40, 24), chain_tile(1, 1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", WGMMA.sources, ids=lambda dtype: dtype.name)
def test_chains(dtype, sizes: tuple[int, int, int, int], chosen: ChainTile) -> None:  # type: ignore[no-untyped-def]
    rows, terms, depth, columns = sizes
    linearizer = chained(narrow_attention(dtype, *sizes), chosen)
    # What has become of scores is multiplied from registers.
    layouts = [u.arg[0] is None for u in linearizer.uops if u.op is UOps.WGMMA]
    assert False in layouts
    assert True in layouts
    generator = np.random.default_rng(3)
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    q, k, v = ((generator.standard_normal(s) / 2).astype(dtype.np) for s in shapes)
    out = np.full(rows * columns, np.nan, np.float32)
    interpret(linearizer.uops, [out, q.ravel(), k.ravel(), v.ravel()])
    wide = [x.astype(np.float64) for x in (q, k, v)]
    expected = numpy_softmax(wide[0] @ wide[1].T, 1) @ wide[2]
    tolerance = 2.0 ** -(min(10, dtype.mantissa_bits) - 3)
    np.testing.assert_allclose(out.reshape(rows, columns), expected, atol=tolerance)


@pytest.mark.parametrize("op", [UOps.PROXY_FENCE, UOps.WGMMA_FENCE, UOps.WGMMA_WAIT])
def test_what_is_missing_in_a_chain_is_found(op: UOps) -> None:
    linearizer = chained(narrow_attention(dtypes.float16, 64, 192, 64, 64), chain_tile(1, 1, 1))
    uops = changed(list(linearizer.uops), op)
    arrays = [np.ones(n * 64, np.float16) for n in (64, 192, 192)]
    with pytest.raises((InterpretError, RaceError)):
        interpret(uops, [np.zeros(64 * 64, np.float32), *arrays])


@pytest.mark.parametrize("width", [64, 128])
def test_large_chains_are_by_warp_groups(width: int) -> None:
    ast = narrow_attention(dtypes.bfloat16, 4096, 4096, width, width)
    k = Linearizer(ast, H100).linearize()
    assert count(k.uops, UOps.WGMMA) > 0
    assert not count(k.uops, UOps.MMA)
    source = cuda_renderer(H100).render(k.name, k.uops)
    assert nvrtc().resources(source, "sm_90a").spilled_bytes == 0


# -- what is chosen --------------------------------------------------------------------------------


def test_large_products_are_by_warp_groups_where_copies_need_no_registers() -> None:
    work = Work(1, 4096, 4096, 4096, 2, MMA, ahead=True)
    best = best_grid_tile(H100, work)
    assert best is not None
    assert best.matrices is WGMMA
    assert (best.block_rows, best.block_columns) == (128, 256)
    for other in (replace(work, by_registers=(True, False)), replace(work, ahead=False)):
        best = best_grid_tile(H100, other)
        assert best is not None
        assert best.matrices is MMA
    best = best_grid_tile(nvidia("sm_80"), work)
    assert best is not None
    assert best.matrices is MMA


def test_machine_code() -> None:
    tile = replace(LARGE, columns=64)
    k = tiled(Product(512, 512, 4096, dtypes.bfloat16), tile)
    source = cuda_renderer(H100).render(k.name, k.uops)
    toolchain = nvrtc()
    used = toolchain.resources(source, "sm_90a")
    assert used.spilled_bytes == 0
    assert used.registers <= 232
    compiler = CUDACompiler("sm_90a", toolchain)
    try:
        code = compiler.disassemble(compiler.compile(source))
    except ValueError as error:
        pytest.skip(str(error))  # nvdisasm is a package of its own
    # The four products of a step, begun together: the compiler may unroll the loop over steps.
    assert len(re.findall(r"HGMMA\.64x256x16\.F32\.BF16", code)) % 4 == 0
    assert "HGMMA.64x256x16.F32.BF16" in code
    assert "HMMA" not in code
    assert "LDSM" not in code
