"""Which tiles are proposed for contractions, for what the drivers of an A100 and an H100 say."""

from dataclasses import replace

import pytest
from tests.gpus import ARCHITECTURES, nvidia
from tests.kernels import load, matmul, store

from ferrule.codegen.intrinsics import MMA, MMA_TF32, WGMMA, MatrixIntrinsic
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.schedules.gpu.cost import (
    Work,
    _candidates,
    best_grid_tile,
    grid_tile_cost,
)

PRODUCTS = [(128, 128, 128), (1000, 10, 512)]
"""Rows, columns and terms: of few results, or few columns."""


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tile_that_warps_multiply_is_the_quickest_there_is(
    arch: str, size: tuple[int, int, int]
) -> None:
    """So where operands may be rounded, no tile need be weighed that leaves them as they are."""
    target = nvidia(arch)
    rounded = Work(1, *size, itemsize=4, matrices=MMA_TF32, ahead=True)
    exact = replace(rounded, matrices=None)
    costs = []
    for work in (rounded, exact):
        tile = best_grid_tile(target, work)
        assert tile is not None
        costs.append(grid_tile_cost(target, work, tile))
    assert costs[0] <= costs[1]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_few_results_have_no_tile(arch: str) -> None:
    """Threads share each of the long sums, and no copy to shared memory is waited for."""
    ast = store(matmul(load(1, 16, 4096), load(2, 4096, 16)))
    kernel = Linearizer(ast, nvidia(arch)).scheduled
    stages = [c for c in kernel.computes.values() if c.store is None and c.monoid is None]
    threads = [o.size for n in kernel.nests for o in n.loops if o.kind is Kind.THREAD]
    assert not stages
    assert max(threads) > 1


@pytest.mark.parametrize("by", [None, MMA, WGMMA], ids=lambda by: by and by.name)
@pytest.mark.parametrize("by_registers", [(False, False), (True, False)], ids=str)
def test_many_tiles_at_once(by: MatrixIntrinsic | None, by_registers: tuple[bool, bool]) -> None:
    """The estimate of tiles as arrays is that of each."""
    target = nvidia("sm_90a")
    work = Work(2, 700, 384, 1000, 4 if by is None else 2, by, True, by_registers, period=9)
    tiles, table = _candidates(target, work.itemsize, by, work.period, (1, 2, 4))
    assert len(tiles) > 10
    costs = grid_tile_cost(target, work, table)
    assert costs.tolist() == [grid_tile_cost(target, work, tile) for tile in tiles]
