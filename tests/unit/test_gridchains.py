"""Chains of contractions for blocks of threads, interpreted: values, races, what is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpus import ASYNC, GPU, TENSOR, nvidia
from tests.kernels import (
    Array,
    Case,
    add,
    as_multiplied,
    attention,
    causal_attention,
    constant,
    exp,
    load,
    make_inputs,
    matmul,
    mul,
    narrow_attention,
    numpy_causal_attention,
    numpy_softmax,
    reduce,
    stage,
    store,
    sub,
    widened,
)
from tests.roles import copies, last_reduce, reduces, the_output
from tests.unit.test_gridtile import shared_bytes

from ferrule import Tensor
from ferrule.codegen.interpret import AccessError, RaceError, interpret
from ferrule.codegen.intrinsics import MATRIX_INTRINSICS, MMA, MatrixIntrinsic
from ferrule.codegen.kernel import MONOIDS, Kernel, KernelError, Kind
from ferrule.codegen.linearizer import Linearizer, linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.chains import Chain, ChainTile, can_fuse_reduces, tile_chain
from ferrule.codegen.schedules.gpu.cost import BlockTile
from ferrule.codegen.uops import UOps
from ferrule.codegen.wellformed import verify
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp, Length, as_expr, const, sint
from ferrule.ir.target import Target
from ferrule.ops import BinaryOps, LazyOp, ReduceOps, TernaryOps, UnaryOps
from ferrule.schedule import create_schedule


def tile(rows: int, terms: int, columns: int, down: int, across: int, step: int) -> ChainTile:
    return ChainTile(
        BlockTile(rows, terms, down, across, step),
        BlockTile(rows, columns, down, across, terms * across),
    )


MULTIPLIED = [(by, dtype) for by in MATRIX_INTRINSICS.values() for dtype in by.sources]


by_warps = pytest.mark.parametrize(("by", "dtype"), MULTIPLIED, ids=lambda x: x.name)
"""A test for each instruction and each dtype that it multiplies."""


def rounding(dtype: DType) -> float:
    """How far off what is multiplied of a number of that dtype may be, relative to it."""
    return 2.0 ** -(min(10, dtype.mantissa_bits) + 1)


def warps(count: int, terms: int, columns: int, step: int, by: MatrixIntrinsic = MMA) -> ChainTile:
    """Warps below one another, each with 16 rows."""
    scores = BlockTile(2, 2 * terms, 8 * count, 4, step, matrices=by)
    return ChainTile(scores, replace(scores, columns=2 * columns, step=8 * terms))


SMALL = tile(4, 2, 2, 2, 4, 8)
FLAT = tile(2, 1, 4, 1, 8, 4)
TALL = tile(8, 4, 1, 4, 2, 8)


def tiled(ast: LazyOp, chosen: ChainTile = SMALL, target: Target = GPU) -> Linearizer:
    """A chain with a tile of its own."""
    plan = Plan(lower(ast, "chain"), target)
    plan.collapse()
    chain = Chain.of(plan.kernel, the_output(plan.kernel).name)
    assert chain is not None
    assert can_fuse_reduces(plan.kernel)
    tile_chain(plan, chain, chosen)
    linearizer = Linearizer(ast, target, plan.opts).linearize()
    assert linearizer.threads == chosen.threads
    return linearizer


def results(linearizer: Linearizer, inputs: Sequence[Array], shape: tuple[int, ...]) -> Array:
    out = np.full(shape, np.nan, np.float32)
    interpret(linearizer.uops, [out.ravel(), *(i.ravel() for i in inputs)])
    return out


def run(case: Case, chosen: ChainTile = SMALL) -> None:
    """Interprets a tiled chain, and compares with NumPy."""
    inputs = make_inputs(case)
    expected = case.expected(*inputs)
    found = results(tiled(case.ast, chosen), inputs, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


# -- values ----------------------------------------------------------------------------------------


def plain(rows: int, terms: int, depth: int, columns: int) -> Case:
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    ast = store(attention(*(load(i, *shape) for i, shape in enumerate(shapes, 1))))
    return Case("attention", ast, shapes, lambda q, k, v: numpy_softmax(q @ k.T, 1) @ v)


def causal(rows: int, terms: int, depth: int, columns: int) -> Case:
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    ast = store(causal_attention(*(load(i, *shape) for i, shape in enumerate(shapes, 1))))
    return Case("causal", ast, shapes, numpy_causal_attention)


def scores_of(q: LazyOp, k: LazyOp) -> LazyOp:
    return matmul(q, k.permute((1, 0)))


def over_rows(op: ReduceOps, x: LazyOp) -> LazyOp:
    return reduce(op, x, 1).expand(x.shape)


def relu(x: LazyOp) -> LazyOp:
    return LazyOp(BinaryOps.MAX, (x, constant(0, x.shape)))


def divided(a: LazyOp, b: LazyOp) -> LazyOp:
    return LazyOp(BinaryOps.DIV, (a, b))


def linear(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """Weights without a largest value, and divided by their sum."""
    weights = add(stage(relu(scores_of(q, k)), 1), constant(0.25, (q.shape[0], k.shape[0])))
    return matmul(stage(divided(weights, over_rows(ReduceOps.SUM, weights)), 1), v)


def hidden_layer(x: LazyOp, first: LazyOp, second: LazyOp) -> LazyOp:
    return matmul(stage(relu(scores_of(x, first)), 1), second)


def undivided(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """Powers of the base 2, and no sum of them."""
    scores = stage(scores_of(q, k), 1)
    shifted = sub(scores, over_rows(ReduceOps.MAX, scores))
    return matmul(stage(LazyOp(UnaryOps.EXP2, (shifted,)), 1), v)


def biased(q: LazyOp, k: LazyOp, v: LazyOp, bias: LazyOp) -> LazyOp:
    """With something added to the scores, and an epilogue."""
    scores = stage(add(scores_of(q, k), bias), 1)
    powers = stage(exp(sub(scores, over_rows(ReduceOps.MAX, scores))), 1)
    weights = stage(mul(powers, LazyOp(UnaryOps.RECIP, (over_rows(ReduceOps.SUM, powers),))), 1)
    return relu(matmul(weights, v))


SHAPES = ((9, 10), (21, 10), (21, 7))


def case_of(make: Callable[..., LazyOp], expected: Callable[..., Array], *more: int) -> Case:
    shapes = (*SHAPES, more) if more else SHAPES
    loads = [load(i, *shape) for i, shape in enumerate(shapes, 1)]
    return Case(make.__name__, store(make(*loads)), shapes, expected)


def numpy_linear(q: Array, k: Array, v: Array) -> Array:
    weights = np.maximum(q @ k.T, 0) + 0.25
    return weights / weights.sum(1, keepdims=True) @ v


def numpy_undivided(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.T
    return 2.0 ** (scores - scores.max(1, keepdims=True)) @ v


CASES = [
    plain(9, 21, 10, 7),
    plain(8, 16, 8, 8),
    plain(17, 3, 5, 9),
    causal(21, 21, 10, 7),
    causal(5, 30, 9, 6),
    case_of(linear, numpy_linear),
    case_of(hidden_layer, lambda x, a, b: np.maximum(x @ a.T, 0) @ b),
    case_of(undivided, numpy_undivided),
    case_of(biased, lambda q, k, v, b: np.maximum(numpy_softmax(q @ k.T + b, 1) @ v, 0), 9, 21),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tiles_of_chains(case: Case) -> None:
    run(case)


def test_the_terms_of_a_score_may_be_of_any_number() -> None:
    """Rows that are not of a known length are not copied whole."""
    n = Length("n", 1, 40)
    ast = store(attention(load(1, 9, n), load(2, 11, n), load(3, 11, 8)))
    for target in (GPU, ASYNC):
        linearizer = Linearizer(ast, target).linearize()
        assert linearizer.threads > 1
        for size in (1, 13, 40):
            q, k, v = make_inputs(plain(9, 11, size, 8))
            out = np.full((9, 8), np.nan, np.float32)
            interpret(linearizer.uops, [out.ravel(), q.ravel(), k.ravel(), v.ravel()], [size])
            expected = numpy_softmax(q @ k.T, 1) @ v
            np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-5)


N, K = Length("n", 1, 64), Length("k", 1, 64)


@pytest.mark.parametrize(
    ("make", "rows", "terms"),
    [(attention, N, 21), (causal_attention, 9, K), (causal_attention, N, K)],
    ids=["rows", "terms", "both"],
)
def test_rows_and_terms_of_any_number(make: Callable[..., LazyOp], rows: sint, terms: sint) -> None:
    shapes = ((rows, 10), (terms, 10), (terms, 7))
    ast = store(make(*(load(i, *shape) for i, shape in enumerate(shapes, 1))))
    uops = tiled(ast).uops
    expected = {attention: lambda q, k, v: numpy_softmax(q @ k.T, 1) @ v}
    generator = np.random.default_rng(0)
    for n, count in [(1, 1), (5, 17), (12, 9)]:
        sizes = {N: n, K: count}
        known = [tuple(as_expr(size).infer(sizes) for size in shape) for shape in shapes]
        q, k, v = (generator.standard_normal(shape).astype(np.float32) for shape in known)
        out = np.full((len(q), 7), np.nan, np.float32)
        values = [sizes[variable] for variable in ast.vars()]
        interpret(uops, [x.ravel() for x in (out, q, k, v)], values)
        wanted = expected.get(make, numpy_causal_attention)(q, k, v)
        np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", [FLAT, TALL], ids=["flat", "tall"])
def test_tiles_of_other_shapes(chosen: ChainTile) -> None:
    run(causal(19, 21, 10, 7), chosen)


@settings(max_examples=8, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(2, 20)] * 4),
    form=st.sampled_from([plain, causal]),
    rows=st.sampled_from([1, 2, 4]),
    terms=st.sampled_from([1, 2, 4]),
    columns=st.sampled_from([1, 2, 8]),
    threads=st.sampled_from([(1, 8), (2, 4), (4, 2), (4, 1)]),
    step=st.sampled_from([2, 8]),
)
def test_any_tile_of_any_chain(
    sizes: tuple[int, int, int, int],
    form: Callable[..., Case],
    rows: int,
    terms: int,
    columns: int,
    threads: tuple[int, int],
    step: int,
) -> None:
    run(form(*sizes), tile(rows, terms, columns, *threads, step))


def with_mask(low: float) -> LazyOp:
    """A mask from memory; where it is 0 there is no score, and no weight."""
    q, k, v, given = (load(i, *s) for i, s in enumerate((*SHAPES, (9, 21)), 1))
    seen = LazyOp(UnaryOps.CAST, (given,), dtypes.bool)
    low_ = constant(low, (9, 21))
    scores = stage(LazyOp(TernaryOps.WHERE, (seen, scores_of(q, k), low_)), 1)
    powers = stage(exp(sub(scores, over_rows(ReduceOps.MAX, scores))), 1)
    weights = mul(powers, LazyOp(UnaryOps.RECIP, (over_rows(ReduceOps.SUM, powers),)))
    chosen = LazyOp(TernaryOps.WHERE, (seen, weights, constant(0, (9, 21))))
    return store(matmul(stage(chosen, 1), v))


@pytest.mark.parametrize("low", [-1e30, -float("inf")])
def test_rows_without_any_score_are_zero(low: float) -> None:
    generator = np.random.default_rng(1)
    q, k, v = (generator.standard_normal(s).astype(np.float32) for s in SHAPES)
    mask = (generator.random((9, 21)) > 0.5).astype(np.float32)
    mask[2], mask[5], mask[7, :16] = 0, 1, 0
    found = results(tiled(with_mask(low)), (q, k, v, mask), (9, 7))
    with np.errstate(all="ignore"):
        expected = numpy_softmax(np.where(mask > 0, q @ k.T, -np.inf), 1) @ v
    expected[2] = 0
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    assert not found[2].any()


def test_numbers_that_are_none_and_scores_that_are_too_large() -> None:
    """The rows are those of the chain as it is written, one row after the other."""
    case = plain(12, 21, 2, 3)
    generator = np.random.default_rng(2)
    q, k, v = (generator.standard_normal(s).astype(np.float32) for s in case.inputs)
    k[:, 1] = np.arange(21) - 10  # the largest scores come last, or first
    q[0] = 0, 1000
    q[1] = 0, -1000
    q[2] = 3e38, 0
    q[3] = np.nan, 0
    q[4] = np.inf, 0
    q[5] = -np.inf, 0
    k[:, 0] = np.abs(k[:, 0]) + 0.1  # so that row 5 has no score but -inf
    found = results(tiled(case.ast), (q, k, v), (12, 3))
    written = Linearizer(case.ast, GPU, []).linearize()
    with np.errstate(all="ignore"):
        expected = results(written, (q, k, v), (12, 3))
    assert np.isnan(expected[3:6]).all()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_a_value_that_is_infinite_is_in_its_column_alone() -> None:
    case = plain(9, 21, 10, 7)
    inputs = list(make_inputs(case))
    inputs[2] = inputs[2].copy()
    inputs[2][4, 3] = np.inf
    found = results(tiled(case.ast), inputs, (9, 7))
    assert np.isinf(found[:, 3]).all()
    assert np.isfinite(np.delete(found, 3, 1)).all()


# -- how -------------------------------------------------------------------------------------------


def test_the_largest_value_and_both_sums_go_on_from_the_tile_before() -> None:
    linearizer = tiled(plain(9, 21, 10, 7).ast)
    running = [
        c for n in linearizer.scheduled.nests for c in n.computes if c.carried_by is not None
    ]
    assert [c.monoid.name for c in running if c.monoid] == ["max", "sum", "sum"]
    assert [c.initial is None for c in running] == [True, False, False]
    assert {c.carried_by for c in running} == {last_reduce(linearizer.scheduled).loops[0].range}


def test_without_a_largest_value_sums_just_go_on() -> None:
    kernel = tiled(case_of(linear, numpy_linear).ast).scheduled
    running = [c for n in kernel.nests for c in n.computes if c.carried_by is not None]
    assert len(running) == 2
    assert all(c.initial is None for c in running)


def test_a_block_has_the_rows_of_a_tile_in_shared_memory_and_not_of_the_scores() -> None:
    sizes = [shared_bytes(tiled(plain(n, n, 16, 16).ast)) for n in (64, 256)]
    assert sizes[0] == sizes[1] < 4 << 10


@pytest.mark.parametrize("number", range(5))
def test_without_a_barrier_it_is_a_race(number: int) -> None:
    case = plain(9, 21, 10, 7)
    uops = tiled(case.ast).uops
    barriers = [u for u in uops if u.op is UOps.BARRIER]
    assert len(barriers) == 4
    if number == len(barriers):
        results(tiled(case.ast), make_inputs(case), (9, 7))
        return
    without = [u for u in uops if u is not barriers[number]]
    inputs = [i.ravel() for i in make_inputs(case)]
    with pytest.raises((RaceError, AccessError)):
        interpret(without, [np.zeros(63, np.float32), *inputs])


def test_tiles_that_a_causal_mask_empties_are_left_out() -> None:
    """And the blocks with most tiles come first."""
    assert ends(tiled(causal(64, 64, 8, 8).ast).scheduled) == list(range(8, 0, -1))


def test_tiles_that_a_causal_mask_leaves_whole_have_no_mask() -> None:
    """All but the last of each block: its loop is two, of which one looks at no index."""
    case = causal(64, 64, 8, 8)
    linearizer = tiled(case.ast)
    known = [s.known for s in last_reduce(linearizer.scheduled).loops[0].segments]
    assert [len(k) > 0 for k in known] == [True, False]
    whole, masked = (_comparisons(linearizer, n) for n in range(2))
    assert whole == 0
    assert masked > 0
    run(case)


def _comparisons(linearizer: Linearizer, number: int) -> int:
    """How often indices are compared in one of the loops over tiles of terms."""
    uops = linearizer.uops
    name = last_reduce(linearizer.scheduled).loop_ranges[0].name
    loop = [u for u in uops if u.op is UOps.LOOP and u.arg == name][number]
    end = next(i for i, u in enumerate(uops) if u.op is UOps.END and u.src[0] is loop)
    inside = uops[uops.index(loop) : end]
    return sum(
        u.op is UOps.ALU and u.arg is ExprOp.CMPLT and dtypes.is_int(u.src[0].dtype)
        for u in inside
        if u.src and u.src[0].dtype is not None
    )


def test_a_mask_that_leaves_scores_in_the_sum_leaves_no_tile_out() -> None:
    """Scores of 0 where there is none are in the sum of the powers, if not in the result."""

    def make(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
        rows, columns = q.shape[0], k.shape[0]
        seen = constant(1, (rows,), dtypes.bool).pad(((columns - 1, 0),))
        seen = seen.window(0, columns).stride((1, -1))
        nothing = constant(0, (rows, columns))
        scores = stage(LazyOp(TernaryOps.WHERE, (seen, scores_of(q, k), nothing)), 1)
        powers = stage(exp(sub(scores, over_rows(ReduceOps.MAX, scores))), 1)
        weights = mul(powers, LazyOp(UnaryOps.RECIP, (over_rows(ReduceOps.SUM, powers),)))
        return matmul(stage(LazyOp(TernaryOps.WHERE, (seen, weights, nothing)), 1), v)

    def expected(q: Array, k: Array, v: Array) -> Array:
        return np.tril(numpy_softmax(np.tril(q @ k.T), 1)) @ v

    case = case_of(make, expected)
    assert last_reduce(tiled(case.ast).scheduled).loops[0].end is None
    run(case)


# -- what is not fused -----------------------------------------------------------------------


def centred(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """The mean is subtracted: what a tile adds is not known before all tiles are."""
    scores = stage(scores_of(q, k), 1)
    return matmul(stage(sub(scores, mul(over_rows(ReduceOps.SUM, scores), scores)), 1), v)


def squared(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """Products of two powers that grow."""
    scores = stage(scores_of(q, k), 1)
    powers = stage(exp(sub(scores, over_rows(ReduceOps.MAX, scores))), 1)
    return matmul(stage(mul(powers, powers), 1), v)


def of_the_largest(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    scores = stage(scores_of(q, k), 1)
    powers = stage(exp(sub(scores, over_rows(ReduceOps.MAX, scores))), 1)
    return matmul(stage(mul(scores, over_rows(ReduceOps.MAX, powers)), 1), v)


def negated(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    scores = stage(scores_of(q, k), 1)
    shifted = mul(sub(scores, over_rows(ReduceOps.MAX, scores)), constant(-1, scores.shape))
    return matmul(stage(LazyOp(UnaryOps.EXP2, (shifted,)), 1), v)


REFUSED = {
    centred: "needs what is only known after the loop",
    squared: "a product of two values that both grow",
    of_the_largest: "is no sum of what is multiplied later",
    negated: "is no power of a difference",
}


def running(kernel: Kernel) -> list[Opt]:
    """The last sum of a chain for all of its rows, along its terms."""
    last = last_reduce(kernel).name
    return [Opt("compute_at", (last, 1)), Opt("fuse_reduces", (last,))]


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_chains_that_need_the_end_before_the_loop(make: Callable[..., LazyOp]) -> None:
    ast = case_of(make, numpy_linear).ast
    kernel = lower(ast, "chain")
    assert Chain.of(kernel, the_output(kernel).name) is not None
    assert not can_fuse_reduces(kernel)
    with pytest.raises(ScheduleError, match=REFUSED[make]):
        apply_opts(kernel, running(kernel))


def test_a_sum_that_float16_may_not_hold_is_not_rounded_to_it() -> None:
    def make(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
        weights = stage(relu(scores_of(q, k)), 1)
        inverse = LazyOp(UnaryOps.RECIP, (over_rows(ReduceOps.SUM, weights),))
        narrow = LazyOp(UnaryOps.CAST, (mul(weights, inverse),), dtypes.float16)
        return matmul(stage(widened(narrow), 1), v)

    kernel = lower(case_of(make, numpy_linear).ast, "chain")
    with pytest.raises(ScheduleError, match="may be too large for it before the end"):
        apply_opts(kernel, running(kernel))


def test_the_loop_that_something_runs_along_stays_as_it_is() -> None:
    ast = plain(9, 21, 10, 7).ast
    linearizer = tiled(ast)
    opts, last = list(linearizer.opts), last_reduce(linearizer.scheduled)
    name, loop = last.name, last.loops[0].range.name
    for opt, message in (
        (Opt("split", (name, loop, 2)), f"{loop} carries .*; do it before `fuse_reduces`"),
        (Opt("fuse", (name, loop)), f"{loop} carries .*; do it before `fuse_reduces`"),
        (Opt("group", (name, (loop,))), "or a loop carries its values"),
        (Opt("fuse_reduces", (name,)), f"a loop carries {name} already"),
    ):
        with pytest.raises(ScheduleError, match=message):
            Linearizer(ast, GPU, [*opts, opt])


def test_what_runs_along_a_loop_is_in_registers_and_inside_of_it() -> None:
    linearizer = tiled(plain(9, 21, 10, 7).ast)
    kernel = linearizer.scheduled
    (largest,) = (n for n in reduces(kernel) if n.computes[0].monoid is MONOIDS["max"])
    (c,) = largest.computes
    blocks = the_output(kernel).loops[0].range
    with pytest.raises(
        KernelError, match=rf".* cannot carry {c.name}: it is no loop that it is in"
    ):
        verify(kernel.with_nest(replace(largest, computes=(replace(c, carried_by=blocks),))))
    loops = tuple(replace(loop, kind=Kind.SERIAL) for loop in largest.loops)
    with pytest.raises(KernelError, match="carried by a loop, and not in registers"):
        linearize(kernel.with_nest(replace(largest, loops=loops)), GPU)


def test_the_axes_of_what_is_not_kept() -> None:
    with pytest.raises(ScheduleError, match=r"axes\(out0, \['i'\]\) in kernel .*: it has the axes"):
        Linearizer(store(load(1, 4)), GPU, [Opt("axes", ("out0", ("i",)))])


# -- products of matrices by warps -----------------------------------------------------------------


@by_warps
@pytest.mark.parametrize("sizes", [(37, 41, 19, 13), (32, 64, 32, 16)], ids=str)
def test_warps_multiply_both_times(
    by: MatrixIntrinsic, dtype: DType, sizes: tuple[int, int, int, int]
) -> None:
    rows, terms, depth, columns = sizes
    ast = narrow_attention(dtype, *sizes)
    linearizer = tiled(ast, warps(2, 4, 1, by.terms, by), TENSOR)
    assert sum(u.op is UOps.MMA for u in linearizer.uops) == 4 + (2 if by.is_chained else 1)
    generator = np.random.default_rng(3)
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    q, k, v = (generator.standard_normal(s).astype(dtype.np) for s in shapes)
    found = results(linearizer, (q, k, v), (rows, columns))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    expected = numpy_softmax(wide[0] @ wide[1].T, 1) @ wide[2]
    np.testing.assert_allclose(found, expected, atol=16 * rounding(dtype))


@pytest.mark.parametrize("terms", [17, 33, 50])
def test_fewer_terms_than_a_tile_has(terms: int) -> None:
    """Some of a thread's scores are all beyond the last term: one value for all of its lanes."""
    shapes = ((37, 24), (terms, 24), (terms, 13))
    linearizer = tiled(narrow_attention(dtypes.float16, 37, terms, 24, 13), warps(2, 8, 2, 16))
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal(s).astype(np.float16) for s in shapes)
    found = results(linearizer, (q, k, v), (37, 13))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    expected = numpy_softmax(wide[0] @ wide[1].T, 1) @ wide[2]
    np.testing.assert_allclose(found, expected, atol=16 * rounding(dtypes.float16))


@pytest.mark.parametrize("dtype", MMA.sources, ids=lambda dtype: dtype.name)
def test_what_is_multiplied_again_stays_in_registers(dtype: DType) -> None:
    """A product's results lie among the threads as the left operand of the next one does."""
    assert [by.is_chained for by in MATRIX_INTRINSICS.values()] == [True, False]
    linearizer = tiled(narrow_attention(dtype, 64, 96, 32, 16), warps(2, 4, 2, 16), TENSOR)
    shared = [u for u in linearizer.uops if u.op is UOps.SHARED]
    assert len(shared) == 3  # queries, keys and values


# -- copies ahead ----------------------------------------------------------------------------------


def whole(chosen: ChainTile, pipeline_depth: int) -> ChainTile:
    return replace(chosen, scores=replace(chosen.scores, pipeline_depth=pipeline_depth), whole=True)


def count(linearizer: Linearizer, op: UOps) -> int:
    return sum(u.op is op for u in linearizer.uops)


@pytest.mark.parametrize("pipeline_depth", [1, 2, 3])
@pytest.mark.parametrize("form", [plain, causal])
@pytest.mark.parametrize("chosen", [SMALL, FLAT, TALL])
def test_all_terms_of_scores_at_once(
    chosen: ChainTile, form: Callable[..., Case], pipeline_depth: int
) -> None:
    case = form(19, 43, 20, 8)
    inputs = make_inputs(case)
    linearizer = tiled(case.ast, whole(chosen, pipeline_depth), ASYNC)
    expected = case.expected(*inputs)
    found = results(linearizer, inputs, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    along = last_reduce(linearizer.scheduled).loops[0]
    loops = len(along.segments) or 1  # each begins copies, and so does what comes before them
    assert count(linearizer, UOps.COMMIT) == (
        pipeline_depth - 1 + loops if pipeline_depth > 1 else 0
    )


@pytest.mark.parametrize("pipeline_depth", [1, 2])
@pytest.mark.parametrize(("step", "depth"), [(16, 16), (16, 40), (32, 64), (64, 40)])
def test_all_terms_of_scores_at_once_by_warps(step: int, depth: int, pipeline_depth: int) -> None:
    rows, terms, columns = 45, 70, 16
    ast = narrow_attention(dtypes.float16, rows, terms, depth, columns)
    linearizer = tiled(ast, whole(warps(2, 4, 2, step), pipeline_depth), ASYNC)
    # One where the rows are there, one in each tile of terms; without copies ahead two.
    assert count(linearizer, UOps.BARRIER) == (2 if pipeline_depth > 1 else 3)
    generator = np.random.default_rng(3)
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    q, k, v = ((generator.standard_normal(s) / 2).astype(np.float16) for s in shapes)
    found = results(linearizer, (q, k, v), (rows, columns))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    expected = numpy_softmax(wide[0] @ wide[1].T, 1) @ wide[2]
    np.testing.assert_allclose(found, expected, atol=16 * rounding(dtypes.float16))


def test_rows_are_copied_once() -> None:
    """In no loop but that over blocks; and what is ahead, only of tiles that a mask leaves."""
    kernel = tiled(causal(64, 64, 16, 8).ast, whole(SMALL, 2), ASYNC).scheduled
    rows, *others = sorted(copies(kernel), key=lambda n: n.computes[0].pipeline_depth)
    out, last = the_output(kernel).name, last_reduce(kernel)
    assert (rows.at, rows.computes[0].pipeline_depth) == ((out, 1), 1)
    assert [(n.at, n.computes[0].pipeline_depth) for n in others] == [((last.name, 1), 2)] * 2
    assert last.loops[0].end is not None


def ends(kernel: Kernel) -> list[int]:
    """How many tiles of terms each block goes along, in the order of the blocks."""
    loop, (first, *_) = last_reduce(kernel).loops[0], the_output(kernel).loop_ranges
    assert loop.end is not None
    return [int(loop.end.substitute({first: const(i)}).arg) for i in range(int(first.size.arg))]


@pytest.mark.parametrize("heads", [3, 2048])
def test_heads_share_the_device(heads: int) -> None:
    """Blocks with most work come first of as many heads as fill it, and not of all."""
    q, k, v = (Tensor.empty(1, heads, 256, 64, dtype="bfloat16", device="CPU") for _ in range(3))
    attended = q.scaled_dot_product_attention(k, v, is_causal=True)
    ast = create_schedule([attended.lazydata])[-1].ast
    found = ends(Linearizer(ast, nvidia("sm_90a")).scheduled)
    starts = [0, *(i for i in range(1, len(found)) if found[i] > found[i - 1]), len(found)]
    groups = {tuple(found[i:j]) for i, j in pairwise(starts)}
    assert len(groups) == 1
    assert (len(starts) == 2) == (heads == 3)
    assert len(set(found)) > 1


def test_a_loop_with_a_value_along_it_is_not_reversed() -> None:
    ast = store(reduce(ReduceOps.SUM, load(1, 4, 8), 1))
    with pytest.raises(ScheduleError, match=r"reverse\(r0.1\) in kernel .*: sum0 makes a value"):
        Linearizer(ast, GPU, [Opt("reverse", ("sum0", "r0.1"))])


def test_scores_are_of_rounded_operands() -> None:
    """And all that is made of them, but for weights that are rounded as they are multiplied."""
    rows, terms, depth = 37, 41, 24
    case = plain(rows, terms, depth, terms)
    generator = np.random.default_rng(3)
    q, k = (generator.standard_normal((n, depth)).astype(np.float32) for n in (rows, terms))
    v = np.eye(terms, dtype=np.float32)
    by = MATRIX_INTRINSICS["mma1688"]
    linearizer = tiled(case.ast, warps(2, 8, 8, 16, by), TENSOR)
    found = results(linearizer, (q, k, v), (rows, terms))
    expected = numpy_softmax(as_multiplied(q, by) @ as_multiplied(k, by).T, 1)
    # The weights' own rounding is of at most half a bit of 11.
    np.testing.assert_allclose(found, expected, rtol=1.05 * rounding(dtypes.float32), atol=1e-9)


def test_weights_are_in_shared_memory_as_narrow_as_they_are() -> None:
    uops = tiled(narrow_attention(dtypes.bfloat16, 37, 41, 19, 13), SMALL).uops
    narrow = [u for u in uops if u.op is UOps.SHARED and u.dtype is dtypes.bfloat16]
    assert len(narrow) == 1


# -- what is chosen --------------------------------------------------------------------------------


def test_large_chains_have_large_tiles() -> None:
    for target, make in ((GPU, plain), (TENSOR, None)):
        sizes = (4096, 4096, 64, 64)
        ast = make(*sizes).ast if make else narrow_attention(dtypes.bfloat16, *sizes)
        linearizer = Linearizer(ast, target).linearize()
        assert linearizer.blocks <= 4096 // 32
        assert 0 < shared_bytes(linearizer) <= target.shared_bytes
        assert any(u.op is UOps.MMA for u in linearizer.uops) == (make is None)
        assert any(opt.primitive == "fuse_reduces" for opt in linearizer.opts)


@pytest.mark.parametrize("width", [64, 128])
def test_large_chains_are_copied_ahead(width: int) -> None:
    ast = narrow_attention(dtypes.bfloat16, 4096, 4096, width, width)
    linearizer = Linearizer(ast, nvidia("sm_90a")).linearize()
    assert count(linearizer, UOps.COMMIT) == 2
    assert count(linearizer, UOps.BARRIER) == 2
    assert linearizer.threads == 128


def test_chains_of_float32_are_by_warps_only_if_that_is_allowed() -> None:
    ast = plain(4096, 4096, 64, 64).ast
    for target in (TENSOR, TENSOR.with_tf32):
        linearizer = Linearizer(ast, target).linearize()
        multiplied = [u.src[0].dtype for u in linearizer.uops if u.op is UOps.MMA]
        assert set(multiplied) == ({dtypes.float32} if target.allows_tf32 else set())
        assert 0 < shared_bytes(linearizer) <= target.shared_bytes


@pytest.mark.parametrize("columns", [8, 200, 1000])
def test_results_of_any_width(columns: int) -> None:
    linearizer = Linearizer(plain(512, 512, 300, columns).ast, GPU).linearize()
    assert any(opt.primitive == "fuse_reduces" for opt in linearizer.opts)
    assert shared_bytes(linearizer) <= GPU.shared_bytes


def test_where_no_tile_fits_a_thread_keeps_the_blocks() -> None:
    case = plain(9, 21, 10, 7)
    linearizer = Linearizer(case.ast, replace(GPU, shared_bytes=64)).linearize()
    assert not any(opt.primitive == "fuse_reduces" for opt in linearizer.opts)
    inputs = make_inputs(case)
    found = results(linearizer, inputs, (9, 7))
    np.testing.assert_allclose(found, case.expected(*inputs), rtol=2e-5, atol=1e-5)
