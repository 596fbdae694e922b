"""Contractions for blocks of threads, in the interpreter: values, races, what is chosen."""

import itertools
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpus import ASYNC, GPU, TENSOR
from tests.kernels import (
    Case,
    add,
    as_multiplied,
    constant,
    convolution,
    dot_products,
    exp,
    load,
    make_inputs,
    matmul,
    mul,
    numpy_convolution,
    numpy_gather,
    positions,
    products,
    store,
    sub,
    total,
    widened,
)
from tests.roles import reduces, the_output, the_reduce

from ferrule.codegen.interpret import AccessError, RaceError, interpret
from ferrule.codegen.intrinsics import MMA, MMA_TF32, MatrixIntrinsic, matrix_intrinsic
from ferrule.codegen.kernel import COMBINING_BYTES, KernelError
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import PRIMITIVES, Opt, ScheduleError
from ferrule.codegen.plan import Plan
from ferrule.codegen.primitives.products import tensorize
from ferrule.codegen.schedules.gpu import tile as gridtile
from ferrule.codegen.schedules.gpu.cost import BlockTile, best_group
from ferrule.codegen.schedules.gpu.tile import tile_grid
from ferrule.codegen.threads import Threads
from ferrule.codegen.uops import UOps
from ferrule.codegen.wellformed import verify
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp, Variable
from ferrule.ops import BinaryOps, BufferOps, LazyOp, ReduceOps

SMALL = BlockTile(rows=2, columns=4, row_threads=4, column_threads=2, step=8)
TALL = BlockTile(rows=8, columns=1, row_threads=1, column_threads=8, step=4)
FLAT = BlockTile(rows=1, columns=8, row_threads=8, column_threads=1, step=16)


def tiled(ast: LazyOp, tile: BlockTile) -> Linearizer:
    """A kernel with a tile of its own."""
    plan = Plan(lower(ast, "tiled"), GPU)
    plan.collapse()
    assert tile_grid(plan, the_output(plan.kernel).name, tile)
    return Linearizer(ast, GPU, plan.opts).linearize()


def run(case: Case, tile: BlockTile = SMALL) -> Linearizer:
    """Interprets a tiled kernel, and compares with NumPy."""
    linearizer = tiled(case.ast, tile)
    inputs = make_inputs(case)
    expected = case.expected(*inputs)
    out = np.full(expected.size, np.nan, expected.dtype)
    interpret(linearizer.uops, [out, *(i.ravel() for i in inputs)])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=2e-5, atol=1e-5)
    assert linearizer.threads == tile.threads
    return linearizer


def product(m: int, n: int, k: int, *, transposed: tuple[bool, bool] = (False, False)) -> Case:
    """`a @ b`, either of them stored the other way round."""
    left = load(1, k, m).permute((1, 0)) if transposed[0] else load(1, m, k)
    right = load(2, n, k).permute((1, 0)) if transposed[1] else load(2, k, n)
    return Case(
        "product",
        store(matmul(left, right)),
        ((k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n)),
        lambda a, b: (a.T if transposed[0] else a) @ (b.T if transposed[1] else b),
    )


def distances(a: LazyOp, b: LazyOp) -> LazyOp:
    """The largest difference between rows: no product, and no sum."""
    (m, k), n = a.shape, b.shape[0]
    left = a.reshape((m, 1, k)).expand((m, n, k))
    right = b.reshape((1, n, k)).expand((m, n, k))
    return LazyOp(ReduceOps.MAX, (sub(left, right),), (m, n, 1)).reshape((m, n))


def epilogue(a: LazyOp, b: LazyOp, bias: LazyOp) -> LazyOp:
    result = add(matmul(a, b), bias.expand((6, 9)))
    return LazyOp(BinaryOps.MAX, (result, constant(0, (6, 9))))


CASES = [
    product(9, 13, 21),
    product(8, 16, 16, transposed=(True, False)),
    product(5, 18, 12, transposed=(False, True)),
    product(7, 10, 9, transposed=(True, True)),
    Case(
        "batch",
        store(products(load(1, 3, 5, 8), load(2, 3, 8, 9))),
        ((3, 5, 8), (3, 8, 9)),
        np.matmul,
    ),
    Case(
        "convolution",
        store(convolution(load(1, 2, 2, 3, 4), load(2, 3, 2, 3, 3))),
        ((2, 2, 3, 4), (3, 2, 3, 3)),
        numpy_convolution,
    ),
    Case(
        "dots",
        store(dot_products(load(1, 2, 5, 12), load(2, 2, 3, 12))),
        ((2, 5, 12), (2, 3, 12)),
        lambda a, b: np.einsum("nik,njk->ij", a, b),
    ),
    Case(
        "epilogue",
        store(epilogue(load(1, 6, 10), load(2, 10, 9), load(3, 1, 9))),
        ((6, 10), (10, 9), (1, 9)),
        lambda a, b, bias: np.maximum(a @ b + bias, 0),
    ),
    Case(
        "prologue",
        store(matmul(exp(load(1, 6, 10)), mul(load(2, 10, 9), load(2, 10, 9)))),
        ((6, 10), (10, 9)),
        lambda a, b: np.exp(a) @ (b * b),
    ),
    Case(
        "distances",
        store(distances(load(1, 6, 10), load(2, 7, 10))),
        ((6, 10), (7, 10)),
        lambda a, b: (a[:, None] - b[None]).max(2),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tiles_of_contractions(case: Case) -> None:
    linearizer = run(case)
    assert sum(u.op is UOps.SHARED for u in linearizer.uops) == 2


@pytest.mark.parametrize("tile", [TALL, FLAT], ids=["tall", "flat"])
def test_tiles_of_other_shapes(tile: BlockTile) -> None:
    run(product(9, 13, 21), tile)


@settings(max_examples=8, deadline=None)
@given(
    sizes=st.tuples(st.integers(2, 20), st.integers(2, 20), st.integers(2, 20)),
    transposed=st.tuples(st.booleans(), st.booleans()),
    rows=st.sampled_from([1, 2, 4]),
    columns=st.sampled_from([1, 2, 4, 8]),
    threads=st.sampled_from([(1, 8), (2, 4), (4, 2)]),
    step=st.sampled_from([2, 4, 8]),
    pipeline_depth=st.integers(1, 4),
)
def test_any_tile_of_any_product(
    sizes: tuple[int, int, int],
    transposed: tuple[bool, bool],
    rows: int,
    columns: int,
    threads: tuple[int, int],
    step: int,
    pipeline_depth: int,
) -> None:
    run(
        product(*sizes, transposed=transposed),
        BlockTile(rows, columns, *threads, step, pipeline_depth=pipeline_depth),
    )


def test_an_operand_is_copied_with_the_places_where_it_is_read() -> None:
    """The places are used again too, but only for what is in the copy."""
    gathered = load(1, 13, 9).gather(positions(load(2, 13, 19)), 1)
    case = Case(
        "gathered",
        store(matmul(gathered, load(3, 19, 11))),
        ((13, 9), (13, 19), (19, 11)),
        lambda x, places, y: numpy_gather(x, places) @ y,
    )
    linearizer = run(case)
    assert len([u for u in linearizer.uops if u.op is UOps.SHARED]) == 2


def test_what_is_computed_from_a_copy_is_no_value_of_a_load_alone() -> None:
    """Places that are copied first: the elements there depend on a copy."""
    ast = store(total(load(1, 5, 7).gather(positions(load(2, 5, 37)), 1), 1))
    plan = Plan(lower(ast, "gathered"), GPU)
    out, nest = the_output(plan.kernel).name, the_reduce(plan.kernel)
    plan.do("stage", nest.name, 2, out, 1, nest.loop_ranges, "places")
    plan.do("stage", nest.name, 1, out, 1, nest.loop_ranges, "elements", 0, "value")
    verify(plan.kernel)
    assert {"places", "elements"} <= set(plan.kernel.computes)


def test_sizes_that_are_variables() -> None:
    n = Variable("n", 2, 19)
    linearizer = tiled(store(matmul(load(1, n, 9), load(2, 9, n))), SMALL)
    for size in (2, 8, 13):
        a = np.arange(size * 9, dtype=np.float32)
        b = np.cos(a)
        out = np.full(size * size, np.nan, np.float32)
        interpret(linearizer.uops, [out, a, b], [size])
        expected = a.reshape(size, 9) @ b.reshape(9, size)
        np.testing.assert_allclose(out.reshape(size, size), expected, rtol=1e-5, atol=1e-4)


def test_narrow_floats_are_widened_when_they_are_copied() -> None:
    a, b = (load(i, 8, 16, dtype=dtypes.float16) for i in (1, 2))
    uops = tiled(store(matmul(widened(a), widened(b.permute((1, 0))))), SMALL).uops
    loads = [u for u in uops if u.op is UOps.LOAD and u.dtype is dtypes.float16]
    casts = [u for u in uops if u.op is UOps.CAST and u.dtype is dtypes.float32]
    assert {(u.lanes, u.arg) for u in loads} == {(8, 8)}
    assert len(casts) == len(loads)


def test_a_sum_has_two_barriers_and_no_mask_in_its_innermost_loop() -> None:
    uops = tiled(product(9, 13, 21).ast, SMALL).uops
    assert sum(u.op is UOps.BARRIER for u in uops) == 2
    products = [u for u in uops if u.op is UOps.ALU and u.arg.name == "MULACC"]
    assert len(products) == 4 * SMALL.rows * SMALL.columns // 4


@pytest.mark.parametrize("number", [0, 1])
def test_without_a_barrier_it_is_a_race(number: int) -> None:
    case = product(9, 13, 21)
    uops = tiled(case.ast, SMALL).uops
    barrier = [u for u in uops if u.op is UOps.BARRIER][number]
    inputs = [i.ravel() for i in make_inputs(case)]
    without = [u for u in uops if u is not barrier]
    with pytest.raises((RaceError, AccessError)):
        interpret(without, [np.zeros(9 * 13, np.float32), *inputs])


# -- products of matrices by warps -----------------------------------------------------------------

WARPS = BlockTile(4, 4, 8, 8, step=32, matrices=MMA)


def narrow(m: int, n: int, k: int, dtype: DType, *, transposed: tuple[bool, bool]) -> LazyOp:
    left = (
        load(1, k, m, dtype=dtype).permute((1, 0)) if transposed[0] else load(1, m, k, dtype=dtype)
    )
    right = (
        load(2, n, k, dtype=dtype).permute((1, 0)) if transposed[1] else load(2, k, n, dtype=dtype)
    )
    return store(matmul(widened(left), widened(right)))


MULTIPLIED = [dtype for by in (MMA, MMA_TF32) for dtype in by.sources]


def by_warps(dtype: DType) -> MatrixIntrinsic:
    by = matrix_intrinsic(dtype)
    assert by is not None
    return by


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda dtype: dtype.name)
def test_warps_multiply_matrices(dtype: DType, transposed: tuple[bool, bool]) -> None:
    m, n, k = 37, 19, 41
    by = by_warps(dtype)
    linearizer = tiled(narrow(m, n, k, dtype, transposed=transposed), replace(WARPS, matrices=by))
    assert sum(u.op is UOps.MMA for u in linearizer.uops) == 2 * 2
    assert linearizer.threads == 64
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(s).astype(dtype.np) for s in ((m, k), (k, n)))
    out = np.full(m * n, np.nan, np.float32)
    stored = [x.T if t else x for x, t in zip((a, b), transposed, strict=True)]
    interpret(linearizer.uops, [out, *(np.ascontiguousarray(x).ravel() for x in stored)])
    expected = as_multiplied(a, by) @ as_multiplied(b, by)
    np.testing.assert_allclose(out.reshape(m, n), expected, rtol=1e-5, atol=1e-5)


def test_large_products_of_narrow_floats_are_by_warps_where_there_is_an_instruction() -> None:
    ast = narrow(1024, 1024, 1024, dtypes.bfloat16, transposed=(False, True))
    for target in (GPU, TENSOR):
        linearizer = Linearizer(ast, target).linearize()
        assert any(u.op is UOps.MMA for u in linearizer.uops) == (target is TENSOR)
        assert 0 < shared_bytes(linearizer) <= target.shared_bytes


def test_products_of_float32_are_rounded_for_it_only_if_that_is_allowed() -> None:
    ast = product(1024, 1024, 1024).ast
    for target in (TENSOR, TENSOR.with_tf32, GPU.with_tf32):
        uops = Linearizer(ast, target).linearize().uops
        multiplied = any(u.op is UOps.MMA for u in uops)
        rounded = any(u.op is UOps.ALU and u.arg is ExprOp.TF32 for u in uops)
        assert multiplied == rounded == (target is TENSOR.with_tf32)


def test_copies_of_float32_are_as_wide_as_it_is() -> None:
    """In shared memory, of which large tiles take nearly all."""
    target = ASYNC.with_tf32
    uops = Linearizer(product(4096, 4096, 4096).ast, target).linearize().uops
    shared = [u for u in uops if u.op is UOps.SHARED]
    assert {u.dtype for u in shared} == {dtypes.float32}
    assert target.shared_bytes / 2 < sum(4 * u.arg[1] for u in shared) <= target.shared_bytes


@pytest.mark.parametrize("transposed", [(False, True), (True, False)], ids=str)
def test_each_operand_is_rounded_once(transposed: tuple[bool, bool]) -> None:
    """However many products it is part of: two of each row, and two of each column."""
    ast = narrow(64, 64, 64, dtypes.float32, transposed=transposed)
    uops = tiled(ast, BlockTile(4, 4, 8, 8, step=8, matrices=MMA_TF32)).uops
    rounded = [u for u in uops if u.op is UOps.ALU and u.arg is ExprOp.TF32]
    assert sum(u.op is UOps.MMA for u in uops) == 4
    assert sum(u.lanes for u in rounded) == 2 * 4 + 2 * 2
    assert len({u.src for u in rounded}) == len(rounded)


def test_other_loops_are_no_product_of_matrices() -> None:
    ast = narrow(64, 64, 64, dtypes.float16, transposed=(False, False))
    linearizer = tiled(ast, SMALL)
    nest = the_reduce(linearizer.scheduled)
    *_, term = (loop.range for loop in nest.loops if loop.range not in nest.result_axes)
    with pytest.raises(ScheduleError, match="does not add up 16 products of matrices"):
        tensorize(linearizer.scheduled, nest.name, term.name, MMA.name)


# -- what is chosen --------------------------------------------------------------------------------


def shared_bytes(linearizer: Linearizer) -> int:
    shared = [u for u in linearizer.uops if u.op is UOps.SHARED]
    return sum(u.arg[1] * u.dtype.itemsize for u in shared if u.dtype is not None)


def chosen(case: Case) -> Linearizer:
    return Linearizer(case.ast, GPU).linearize()


def test_a_large_product_has_large_tiles() -> None:
    linearizer = chosen(product(4096, 4096, 4096))
    assert linearizer.blocks <= 32 * 32
    assert linearizer.threads >= 128
    assert 0 < shared_bytes(linearizer) <= GPU.shared_bytes
    loads = [u for u in linearizer.uops if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM]
    assert {u.arg for u in loads} == {4}


def test_a_smaller_one_has_blocks_for_all_multiprocessors() -> None:
    assert chosen(product(512, 128, 784)).blocks >= 100


def test_images_and_filters_are_rows_and_columns() -> None:
    ast = store(convolution(load(1, 32, 64, 56, 56), load(2, 64, 64, 3, 3)))
    linearizer = Linearizer(ast, GPU).linearize()
    assert linearizer.blocks == 32 * 56 * 56 // 256
    assert 0 < shared_bytes(linearizer) <= GPU.shared_bytes


@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda dtype: dtype.name)
def test_warps_multiply_images_and_filters(dtype: DType) -> None:
    """The mask of a padded image is that of its load; what is too narrow to go to shared memory by
    itself is loaded while the warps multiply.
    """
    x, w = load(1, 32, 64, 56, 56, dtype=dtype), load(2, 64, 64, 3, 3, dtype=dtype)
    ast = store(convolution(widened(x), widened(w)))
    opts = {opt.primitive for opt in Linearizer(ast, ASYNC.with_tf32).opts}
    assert {"tensorize", "pipeline"} <= opts


def test_a_step_has_whole_windows_where_places_would_be_computed_for_each() -> None:
    """So that of an element only its channel changes from step to step."""
    ast = store(convolution(load(1, 32, 64, 56, 56), load(2, 64, 64, 3, 3)))
    linearizer = Linearizer(ast, ASYNC).linearize()
    nest = the_reduce(linearizer.scheduled)
    terms = {
        r for loop in nest.loops if loop.range not in nest.result_axes for r in loop.lineage[:1]
    }
    assert len(terms) == 1, "they are all of one loop"
    _, *inside = (loop for loop in nest.loops if loop.range not in nest.result_axes)
    assert prod(loop.size for loop in inside) % 9 == 0
    depth, divided = 0, []
    for u in linearizer.uops:
        depth += (u.op is UOps.LOOP) - (u.op is UOps.END)
        if depth > 1 and u.op is UOps.ALU and u.arg in (ExprOp.IDIV, ExprOp.MOD):
            divided.append(u)
    # The copy that is read, and nothing else.
    assert len(divided) <= 1


@pytest.mark.parametrize(
    ("rows", "group"), [(32, 16), (31, 31), (48, 16), (1, 1), (67, 67), (521, 1)]
)
def test_blocks_that_run_at_once_are_a_square(rows: int, group: int) -> None:
    assert best_group(rows, 264, BlockTile(8, 8, 16, 16, 32)) == group


def groups_of_rows(linearizer: Linearizer) -> list[int]:
    """How many tiles of rows are in a group, if there are some: what the loop over tiles of rows is
    split by, once these are made.
    """
    rows, _ = the_output(linearizer.kernel).loop_ranges
    found, kernel = [], linearizer.kernel
    for opt in linearizer.opts:
        if opt.primitive == "split":
            nest = kernel.by_name[opt.args[0]]
            (loop,) = (loop for loop in nest.loops if loop.range.name == opt.args[1])
            is_outer = loop.lineage == (rows,) and nest.loops[0] is loop
            found += [opt.args[2]] if is_outer and nest.at is None else []
        kernel = PRIMITIVES[opt.primitive](kernel, *opt.args)
    return found


def test_blocks_go_down_some_rows_first() -> None:
    linearizer = chosen(product(4096, 4096, 512))
    assert groups_of_rows(linearizer) == [16]
    assert linearizer.blocks == 32 * 32


@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)), ids=str)
def test_groups_of_rows_of_blocks(
    transposed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block has its own results, whatever their order."""
    monkeypatch.setattr(gridtile, "best_group", lambda rows, *_: 2 if rows % 2 == 0 else 1)
    linearizer = run(product(31, 19, 9, transposed=transposed))
    assert groups_of_rows(linearizer) == [2]


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (4096, 1, 4096)], ids=["row", "column"])
def test_a_vector_is_not_staged(sizes: tuple[int, int, int]) -> None:
    assert shared_bytes(chosen(product(*sizes))) == 0


def test_without_shared_memory_there_are_no_tiles() -> None:
    target = replace(GPU, shared_bytes=0)
    linearizer = Linearizer(product(512, 512, 512).ast, target).linearize()
    assert shared_bytes(linearizer) == 0


def test_a_padded_axis_is_not_split() -> None:
    opts = [*tiled(product(9, 13, 21).ast, SMALL).opts]
    assert any(opt.primitive == "pad" for opt in opts)
    (pad,) = [opt for opt in opts if opt.primitive == "pad"][:1]
    with pytest.raises(ScheduleError, match="padded already; pad it last"):
        Linearizer(product(9, 13, 21).ast, GPU, [*opts, Opt("split", (*pad.args[:2], 2))])


def test_what_is_kept_can_be_padded_alone() -> None:
    with pytest.raises(ScheduleError, match="no axis of a stage of out0"):
        Linearizer(store(load(1, 4)), GPU, [Opt("pad", ("out0", "i0.0", 1))])


def test_several_roots_share_the_memory_of_a_block() -> None:
    stores = [
        store(matmul(load(2 * i + 2, 512, 512), load(2 * i + 3, 512, 512)), i) for i in range(2)
    ]
    linearizer = Linearizer(LazyOp(BufferOps.SINK, tuple(stores)), GPU).linearize()
    assert sum(u.op is UOps.SHARED for u in linearizer.uops) == 4
    assert shared_bytes(linearizer) <= GPU.shared_bytes - COMBINING_BYTES


def test_a_warp_that_multiplies_matrices_has_all_of_its_threads() -> None:
    sums = store(total(load(3, 4, 1024), 1), 4)
    product_ = narrow(37, 19, 41, dtypes.float16, transposed=(False, False))
    ast = LazyOp(BufferOps.SINK, (product_, sums))
    plan = Plan(lower(ast, "both"), GPU)
    plan.collapse()
    assert tile_grid(plan, plan.kernel.roots[0].name, WARPS)
    rows = reduces(plan.kernel)[-1]
    _, thread = plan.split(rows.name, rows.loops[-1].range, 256)
    plan.do("bind", rows.name, thread)
    with pytest.raises(KernelError, match="by 64 of the 256 threads"):
        Threads(plan.kernel)
