"""Which tiles the cost model finds quickest, for what the drivers of an A100 and an H100 say."""

from dataclasses import replace

import pytest
from tests.gpus import ARCHITECTURES, nvidia

from ferrule.codegen.grid.cost import Work, best_grid_tile, grid_tile_cost, naive_cost
from ferrule.codegen.intrinsics import MMA_TF32

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
        none = naive_cost(target, work)
        costs.append(none if tile is None else grid_tile_cost(target, work, tile))
    assert costs[0] <= costs[1]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_small_products_have_a_thread_for_each_result(arch: str) -> None:
    for size in [(64, 64, 64), (16, 16, 4096), (8, 8, 64)]:
        work = Work(1, *size, itemsize=4, matrices=MMA_TF32, ahead=True)
        assert best_grid_tile(nvidia(arch), work) is None
