"""Which axis of a product the lanes run along."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from tests.kernels import add, load, matmul, mul, store, total, widened
from tests.programs import HOST
from tests.roles import copies, partials, parts, the_copy, the_output, the_reduce

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.kernel import Kind, reads
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import step_of
from ferrule.codegen.schedules.tile import best_tile
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import Variable

WIDE = replace(
    HOST,
    vector_bytes=64,
    n_vector_registers=32,
    max_threads=1,
    l1_bytes=48 << 10,
    l2_bytes=1 << 20,
)


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "step"),
    [(128, 512, 512, 1), (64, 1024, 1024, 1), (16, 512, 500, 500)],
)
def test_lanes_of_two_operands_that_both_have_to_be_transposed(
    rows: int, terms: int, columns: int, step: int
) -> None:
    """`a @ b.T`: the smaller is transposed, unless the stores then fell into few cache sets."""
    right = load(2, columns, terms).permute((1, 0))
    root = schedule(lower(store(matmul(load(1, rows, terms), right)), "k"), WIDE).kernel.roots[0]
    lanes = next(loop.range for loop in root.loops if loop.kind is Kind.VECTOR)
    (compute,) = root.computes
    assert compute.store is not None
    assert step_of(compute.store.index, lanes) == step


def test_blocks_of_an_unknown_number_of_rows_end_where_the_rows_do() -> None:
    """Else those that are not there would be computed in place of the last."""
    ast = store(matmul(load(1, Variable("n", 1, 1024), 512), load(2, 512, 256)))
    kernel = lower(ast, "k")
    of_rows = the_output(kernel).loops[0].range
    root = the_output(schedule(kernel, replace(WIDE, max_threads=16)).kernel)
    tiles, row = parts(root, of_rows)  # what is outside of these is fused with the panels
    assert tiles.end is not None
    assert row.end is None


@pytest.mark.parametrize(
    ("columns", "lanes"), [(3, 4), (4, 4), (8, 8), (9, 16), (16, 16), (64, 16)]
)
def test_vectors_are_no_wider_than_what_fills_them(columns: int, lanes: int) -> None:
    """Some processors do two multiply-adds of half a vector in the time of one of a whole one."""
    tile = best_tile(WIDE, 4, 28, columns)
    assert tile.lanes == lanes
    assert tile.rows * tile.vectors >= 8  # as many as a multiply-add takes cycles, twice


@pytest.mark.parametrize(
    ("terms", "columns", "packed"),
    [(64, 3136, False), (64, 3100, True), (64, 1024, True), (300, 3136, True)],
)
def test_right_operands_that_stay_in_the_first_cache_are_not_packed(
    terms: int, columns: int, packed: bool
) -> None:
    """Unless lines are cut, or fall into few sets."""
    ast = store(matmul(load(1, 64, terms), load(2, terms, columns)))
    assert bool(copies(schedule(lower(ast, "k"), WIDE).kernel, 2)) == packed


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dots"),
    [
        (16, 4096, 16, True),
        (64, 4096, 64, False),  # 188 us in tiles, 207 by inner products (Zen 4, 2026-11-28)
        (16, 65536, 16, True),
        (512, 512, 512, False),
        (256, 8192, 256, False),
        (64, 200, 64, False),
        (100, 5001, 77, False),  # vectors would lie in two cache lines
    ],
)
def test_long_sums_add_up_lanes_instead_of_turning_operands(
    rows: int, terms: int, columns: int, dots: bool
) -> None:
    """`a @ b.T`: the terms are neighbours in both operands."""
    right = load(2, columns, terms).permute((1, 0))
    kernel = schedule(lower(store(matmul(load(1, rows, terms), right)), "k"), WIDE).kernel
    assert bool(partials(kernel)) == dots
    assert not dots or len(kernel.nests) == 3, "there is no copy"


@pytest.mark.parametrize(
    ("rows", "terms", "ahead"), [(16, 1 << 16, ((1, 1024),)), (16, 1 << 12, ())]
)
def test_long_sums_fetch_the_next_block_of_columns(
    rows: int, terms: int, ahead: tuple[tuple[int, int], ...]
) -> None:
    """It is a page of each, so no processor looks ahead; not where the second cache has them."""
    right = load(2, rows, terms).permute((1, 0))
    kernel = schedule(lower(store(matmul(load(1, rows, terms), right)), "k"), WIDE).kernel
    (partial,) = partials(kernel)
    assert partial.ahead == ahead


@pytest.mark.parametrize("terms", [768, 1000, 4096])
@pytest.mark.parametrize("rows", [5, 8, 16])
def test_few_rows_read_the_other_operand_where_it_is(rows: int, terms: int) -> None:
    """A copy would take longer than the two or three times that it is read; the next columns come
    into the cache meanwhile.
    """
    ast = store(matmul(load(1, rows, terms), load(2, terms, 3072)))
    kernel = schedule(lower(ast, "k"), WIDE).kernel
    assert list(kernel.nests) == [the_reduce(kernel), the_output(kernel)]
    width = prod(loop.range.size.arg for loop in the_output(kernel).loops[-2:])
    assert the_reduce(kernel).ahead == ((2, width),)


@pytest.mark.parametrize(("terms", "size"), [(64, 1100), (300, 2000)])
def test_rows_that_are_far_apart_and_the_columns_are_of_one_matrix(terms: int, size: int) -> None:
    """`x.T @ x`: each of the two loads of `x` has a copy of its own."""
    x = load(1, terms, size)
    kernel = schedule(lower(store(matmul(x.permute((1, 0)), x)), "k"), WIDE).kernel
    (product,) = the_reduce(kernel).computes
    read = {e.arg for e in reads([product.value])}
    assert read == {nest.name for nest in copies(kernel, 1)}
    assert len(read) == 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_columns_of_a_matrix_times_itself_are_packed(dtype: DType) -> None:
    """`x @ x.T`: else each tile would gather them one by one."""
    x = load(1, 40, 30, dtype=dtype)
    product = store(matmul(widened(x), widened(x).permute((1, 0))))
    kernel = schedule(lower(product, "k"), replace(WIDE, features="")).kernel
    assert copies(kernel, 1)


def test_two_loads_of_one_buffer_fetch_the_next_panel_once() -> None:
    """Also where both run along the lanes."""
    x = load(1, 64, 1 << 14)
    ast = store(matmul(load(2, 24, 64), mul(x, x.stride((-1, 1)))))
    root = schedule(lower(ast, "k"), WIDE).kernel
    assert [dict(nest.ahead).get(1) for nest in root.nests].count(32) == 1


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((1000, 777, 333), 14),  # 7 panels of 125 tiles: an odd number, in two blocks each
        ((300, 300, 300), 10),  # an even number
        ((1024, 1024, 1024), 16),
        ((640, 333, 77), 10),
        ((700, 300, 160), 10),
    ],
)
def test_rows_are_in_as_many_blocks_as_threads_can_share_evenly(
    shape: tuple[int, int, int], chunks: int
) -> None:
    """No more: each block copies a panel anew, and its last tiles may be done twice."""
    rows, terms, columns = shape
    ast = store(matmul(load(1, rows, terms), load(2, terms, columns)))
    root = schedule(lower(ast, "k"), replace(WIDE, max_threads=2)).kernel.roots[0]
    assert root.loops[0].range.size.arg == chunks


@pytest.mark.parametrize(("columns", "distance"), [(333, 48), (64, None)])
def test_squares_that_are_transposed_later_are_fetched_where_they_are_far(
    columns: int, distance: int | None
) -> None:
    """Three squares of 16 x 16 for each of the three vectors of a panel are 8 KB and a bit."""
    right = load(2, columns, 777).permute((1, 0))
    kernel = schedule(lower(store(matmul(load(1, 1000, 777), right)), "k"), WIDE).kernel
    assert dict(the_copy(kernel, 2).ahead).get(2) == distance


def test_each_of_several_loads_of_one_operand_has_a_copy_of_its_own() -> None:
    """Loads are numbered anew when one has become a copy: two copies had the same name."""
    x = load(1, 3, 49, 2, dtype=dtypes.float64)
    across, along = x.stride((1, 1, -1)), x.stride((1, -1, 1))
    mixed = add(add(x, across), add(along, along.stride((1, 1, -1))))
    shape = (3, 98, 49, 2)
    left = mixed.reshape((3, 1, 49, 2)).expand(shape)
    right = load(2, 98, 49, 2, dtype=dtypes.float64).reshape((1, *shape[1:])).expand(shape)
    product = total(mul(left, right), 2, 3).reshape((3, 98))
    kernel = schedule(lower(store(product), "k"), WIDE).kernel
    names = [nest.name for nest in kernel.nests]
    assert len(names) == len(set(names))
    assert len([name for name in names if "pack1" in name]) == 4
