"""Reduces along and across memory for blocks of threads: values, and what they read."""

import numpy as np
import pytest
from tests.blocks import GRID, run
from tests.gpus import nvidia
from tests.kernels import (
    Case,
    add,
    constant,
    layernorm,
    load,
    mul,
    numpy_layernorm,
    numpy_softmax,
    reduce,
    softmax,
    store,
    sub,
    total,
)
from tests.roles import copied, copies, of_kind, reduces, the_output, the_reduce

from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import KernelError, Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.uops import UOps
from ferrule.dtype import dtypes
from ferrule.ir.expr import ExprOp, Variable
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    LazyOp,
    MovementOps,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)


def softmax_of(rows: int, columns: int, axis: int = 1) -> Case:
    ast = store(softmax(load(1, rows, columns), axis))
    return Case("softmax", ast, ((rows, columns),), lambda x: numpy_softmax(x, axis))


def accesses(linearizer: Linearizer, op: UOps) -> list[int]:
    """The lanes of all loads, or of all stores, of buffers."""
    found = [u for u in linearizer.uops if u.op is op and u.src[0].op is UOps.PARAM]
    return [u.lanes if op is UOps.LOAD else u.src[2].lanes for u in found]


# Rows and columns that divide by nothing, short ones, long ones, and one alone.
SHAPES = [(3, 64), (5, 61), (40, 20), (33, 3), (300, 12), (2, 1100), (1, 50), (70, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_any_shape(shape: tuple[int, int], axis: int) -> None:
    run(softmax_of(*shape, axis))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_any_shape(shape: tuple[int, int], axis: int) -> None:
    run(Case("sum", store(total(load(1, *shape), axis)), (shape,), lambda x: x.sum(axis)))


def test_a_row_is_read_once_and_computed_once() -> None:
    linearizer = run(softmax_of(4, 128))
    assert accesses(linearizer, UOps.LOAD) == [4]
    assert accesses(linearizer, UOps.STORE) == [4]
    assert not any(u.op in (UOps.SHARED, UOps.LOCAL) for u in linearizer.uops)
    (copy,) = copies(linearizer.scheduled)
    assert copied(copy) == 1
    (powers,) = (c for n in reduces(linearizer.scheduled) for c in n.computes if c.ranges)
    assert powers.monoid is None


def test_a_row_with_a_tail_stays_in_registers() -> None:
    case = Case("norm", store(layernorm(load(1, 5, 130))), ((5, 130),), numpy_layernorm)
    linearizer = run(case)
    assert accesses(linearizer, UOps.LOAD) == [2, 2, 2]
    assert not any(u.op is UOps.LOCAL for u in linearizer.uops)


def test_places_to_read_at_are_read_once_with_what_is_there() -> None:
    """One load inside of another: a copy of the inner first would leave none like the outer."""
    index = load(2, 5, 40, dtype=dtypes.int32)
    linearizer = Linearizer(
        store(softmax(LazyOp(MovementOps.GATHER, (load(1, 5, 50), index), 1), 1)), GRID
    ).linearize()
    assert len(accesses(linearizer, UOps.LOAD)) == 4
    numbers = np.random.default_rng(3)
    x, places = numbers.normal(size=(5, 50)).astype(np.float32), numbers.integers(0, 50, (5, 40))
    out = np.zeros(200, np.float32)
    interpret(linearizer.uops, [out, x.ravel(), places.astype(np.int32).ravel()])
    expected = numpy_softmax(np.take_along_axis(x, places, 1), 1)
    np.testing.assert_allclose(out.reshape(5, 40), expected, rtol=2e-5)


def readers(linearizer: Linearizer) -> list[str]:
    """The nests that load from buffers."""
    nests = linearizer.scheduled.nests
    return [n.name for n in nests if any(e.op is ExprOp.LOAD for e in n.nodes)]


def test_rows_that_are_too_long_are_read_again() -> None:
    case = Case("norm", store(layernorm(load(1, 2, 4096))), ((2, 4096),), numpy_layernorm)
    assert len(readers(run(case))) == 3


@pytest.mark.parametrize("columns", [4096, 4097, 5000])
def test_a_maximum_and_the_powers_below_it_take_one_pass(columns: int) -> None:
    """A long row is read once for both, a piece at a time, and once more for the result."""
    assert len(readers(run(softmax_of(2, columns)))) == 2


def finite_or_0(x: LazyOp) -> LazyOp:
    """A value, or 0 instead of an infinite one."""
    zero, inf = constant(0.0, x.shape), constant(float("inf"), x.shape)
    magnitude = LazyOp(TernaryOps.WHERE, (LazyOp(BinaryOps.CMPLT, (zero, x)), x, sub(zero, x)))
    finite = LazyOp(BinaryOps.CMPLT, (magnitude, inf))
    known = LazyOp(BinaryOps.OR, (finite, LazyOp(BinaryOps.CMPNE, (x, x))))
    return LazyOp(TernaryOps.WHERE, (known, x, zero))


def sum_of_powers(x: LazyOp, of: LazyOp, signs: LazyOp | None = None) -> LazyOp:
    """Of 2 ** (x - the largest of something), where there is a negative sign if there are any."""
    shift = finite_or_0(reduce(ReduceOps.MAX, of, 1))
    powers = LazyOp(UnaryOps.EXP2, (sub(x, shift.expand(x.shape)),))
    if signs is not None:
        zero = constant(0.0, x.shape)
        is_in = LazyOp(BinaryOps.CMPLT, (signs, zero))
        powers = LazyOp(TernaryOps.WHERE, (is_in, powers, zero))
    return store(add(LazyOp(UnaryOps.LOG2, (total(powers, 1),)), shift))


INF, NAN = float("inf"), float("nan")
# What is in a row of numbers, and where.
SPECIAL: list[dict[int, float]] = [
    {},
    {0: 300.0},
    {4999: 300.0},
    {0: INF},
    {4999: INF},
    {0: 300.0, 4999: INF},
    {0: INF, 4999: 300.0},
    {7: NAN},
    {4999: NAN},
    {0: INF, 2500: NAN},
    {i: -INF for i in range(5000)},
    {i: -INF for i in range(2500)},
    {i: -INF for i in range(1, 5000)},
    {i: -300.0 for i in range(5000)},
    {i: i / 10 for i in range(5000)},
    {i: -i / 10 for i in range(5000)},
]


def test_powers_in_one_pass_are_right_whatever_numbers_there_are() -> None:
    x = np.random.default_rng(0).standard_normal((len(SPECIAL), 5000)).astype(np.float32)
    for row, special in zip(x, SPECIAL, strict=True):
        row[list(special)] = list(special.values())
    source = load(1, *x.shape)
    linearizer = Linearizer(sum_of_powers(source, source), GRID).linearize()
    assert len(readers(linearizer)) == 1
    out = np.zeros(len(x), np.float32)
    with np.errstate(all="ignore"):
        interpret(linearizer.uops, [out, x.ravel()])
        expected = np.logaddexp2.reduce(x.astype(np.float64), 1)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


def fuse_reduces(ast: LazyOp) -> None:
    """A maximum and a sum of 5000 terms go along them together, 500 at a time."""
    kernel = lower(ast, "powers")
    (top,) = (n for n in kernel.computes if n.startswith("max"))
    (powers,) = (n for n in kernel.computes if n.startswith("sum"))
    loops = [(n, kernel.owner[n].loops[0].range.name, 500) for n in (top, powers)]
    apply_opts(kernel, [*(Opt("split", loop) for loop in loops), Opt("fuse_reduces", (powers,))])


def test_powers_go_on_from_those_before_only_if_they_are_all_there_is() -> None:
    """What is infinite in the maximum alone would make the sum so far too large, for good."""
    x, other = load(1, 2, 5000), load(2, 2, 5000)
    fuse_reduces(sum_of_powers(x, x))
    with pytest.raises(ScheduleError, match="not shifted by a largest value"):
        fuse_reduces(sum_of_powers(x, other))
    with pytest.raises(ScheduleError, match="no sum of all powers"):
        fuse_reduces(sum_of_powers(x, x, other))


def test_sums_are_multiplied_by_few_factors() -> None:
    """Each has an error: rows of many pieces are read twice."""
    gpu = nvidia("sm_90a")
    for columns, count in ((50257, 1), (1 << 20, 2)):
        x = load(1, 4096, columns)
        assert len(readers(Linearizer(sum_of_powers(x, x), gpu))) == count


def test_short_rows_share_a_block() -> None:
    linearizer = run(Case("sum", store(total(load(1, 400, 16), 1)), ((400, 16),), _rows))
    assert (linearizer.blocks, linearizer.threads) == (50, 32)
    assert [u.arg for u in linearizer.uops if u.op is UOps.ACROSS] == [(ExprOp.ADD, 4, 1)]


def _rows(x: np.ndarray) -> np.ndarray:
    sums: np.ndarray = x.sum(1)
    return sums


def test_tall_columns_are_shared_out_along_them() -> None:
    ast = store(total(load(1, 500, 8), 0))
    linearizer = run(Case("sum", ast, ((500, 8),), lambda x: x.sum(0)))
    assert (linearizer.blocks, linearizer.threads) == (1, 32)
    assert [u.arg for u in linearizer.uops if u.op is UOps.ACROSS] == [(ExprOp.ADD, 16, 2)]


def test_wide_columns_are_done_by_a_thread_each() -> None:
    ast = store(total(load(1, 9, 9000), 0))
    linearizer = run(Case("sum", ast, ((9, 9000),), lambda x: x.sum(0)))
    assert not any(u.op is UOps.ACROSS for u in linearizer.uops)
    assert linearizer.threads == 32


def test_columns_are_loaded_and_stored_by_vectors() -> None:
    linearizer = run(
        Case("sum", store(total(load(1, 40, 300), 0)), ((40, 300),), lambda x: x.sum(0))
    )
    assert set(accesses(linearizer, UOps.LOAD)) == {4}
    assert accesses(linearizer, UOps.STORE) == [4]
    odd = run(Case("sum", store(total(load(1, 40, 301), 0)), ((40, 301),), lambda x: x.sum(0)))
    assert set(accesses(odd, UOps.LOAD)) == {1}


@pytest.mark.parametrize(("columns", "ahead"), [(512, 16), (2 * 132 * 32, 4)])
def test_few_blocks_have_more_loads_under_way(columns: int, ahead: int) -> None:
    """A multiprocessor has as many in any case."""
    linearizer = Linearizer(store(total(load(1, 2048, columns), 0)), nvidia("sm_90a"))
    loops = [loop for nest in linearizer.scheduled.nests for loop in nest.loops]
    assert [loop.size for loop in loops if loop.kind is Kind.UNROLL] == [ahead]


@pytest.mark.parametrize("rows", [1024, 1029, 1300])
def test_columns_with_many_loads_under_way(rows: int) -> None:
    """All that is loaded together, and the rest of it."""
    values = np.random.default_rng(0).standard_normal((rows, 32)).astype(np.float32)
    uops = Linearizer(store(total(load(1, rows, 32), 0)), nvidia("sm_90a")).linearize().uops
    out = np.full(32, np.nan, np.float32)
    interpret(uops, [out, values.ravel()])
    np.testing.assert_allclose(out, values.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-4)


def test_what_is_large_decides_what_is_contiguous() -> None:
    """A vector that lies along the terms, and a matrix that lies across them."""
    x = load(1, 1, 70).permute((1, 0)).expand((70, 64))
    ast = store(total(mul(x, load(2, 70, 64)), 0))
    linearizer = run(Case("product", ast, ((70,), (70, 64)), lambda v, m: v @ m))
    assert set(accesses(linearizer, UOps.LOAD)) == {1, 4}


def test_results_of_one_pass_are_two_stores() -> None:
    x = load(2, 40, 64)
    sums, squares = store(total(x, 0), 0), store(total(mul(x, x), 0), 1)
    linearizer = Linearizer(LazyOp(BufferOps.SINK, (sums, squares)), GRID).linearize()
    values = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    first, second = np.zeros((2, 64), np.float32)
    interpret(linearizer.uops, [first, second, values.ravel()])
    np.testing.assert_allclose(first, values.sum(0), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(second, (values * values).sum(0), rtol=2e-5)
    assert len(linearizer.scheduled.roots) == 1
    assert set(accesses(linearizer, UOps.LOAD)) == {4}


def test_a_root_that_loads_what_another_stores_is_no_part_of_its_pass() -> None:
    sums, others = store(total(load(2, 40, 64), 0), 0), store(total(load(0, 40, 64), 0), 1)
    kernel = lower(LazyOp(BufferOps.SINK, (sums, others)), "kernel")
    with pytest.raises(ScheduleError, match="their places or loops differ"):
        apply_opts(kernel, [Opt("merge", ("out0", "out1"))])


def test_reduces_of_rows_that_are_masked() -> None:
    x = load(1, 7, 21).pad(((1, 2), (3, 0)))
    expected = lambda x: np.pad(x, ((1, 2), (3, 0))).sum(1)  # noqa: E731
    run(Case("padded", store(total(x, 1)), ((7, 21),), expected))


def test_a_sum_and_its_roots_own_columns() -> None:
    x = load(1, 6, 40)
    scaled = LazyOp(UnaryOps.NEG, (total(x, 1).expand((6, 40)),))
    run(Case("spread", store(scaled), ((6, 40),), lambda x: np.repeat(-x.sum(1)[:, None], 40, 1)))


def less_the_maximum() -> Case:
    """Sums of what is left of a maximum that hangs further out."""
    top = reduce(ReduceOps.MAX, load(2, 3, 16), 1).reshape((3, 1, 1)).expand((3, 4, 400))
    ast = store(total(sub(load(1, 3, 4, 400), top), 2))
    expected = lambda x, m: (x - m.max(1)[:, None, None]).sum(2)  # noqa: E731
    return Case("less", ast, ((3, 4, 400), (3, 16)), expected)


@pytest.mark.parametrize("shape", [(3, 20, 32), (1, 33, 64), (5, 7, 16)])
def test_sums_of_columns_whose_weights_are_reduced_further_out(shape: tuple[int, int, int]) -> None:
    n, terms, _ = shape
    weights = softmax(load(2, n, terms), 1).reshape((n, terms, 1)).expand(shape)
    ast = store(total(mul(load(1, *shape), weights), 1))

    def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.einsum("nkc,nk->nc", x, numpy_softmax(w, 1))[:, None]

    run(Case("weighted", ast, (shape, (n, terms)), expected))


def test_what_few_results_need_is_computed_again_for_many() -> None:
    linearizer = run(less_the_maximum())
    assert [opt for opt in linearizer.opts if opt.primitive == "recompute"]
    assert linearizer.blocks == 12


def nested_sums(rows: int, columns: int) -> LazyOp:
    """The sum of the squares of the sums of rows."""
    each = total(load(1, rows, columns), 1)
    return store(total(mul(each, each), 0))


@pytest.mark.parametrize(("shape", "outer"), [((24, 3), True), ((3, 24), False)])
def test_threads_share_out_the_longer_of_two_sums(shape: tuple[int, int], outer: bool) -> None:
    expected = lambda x: (x.sum(1) ** 2).sum().reshape(1)  # noqa: E731
    linearizer = run(Case("sums", nested_sums(*shape), (shape,), expected))
    inner, around = reduces(linearizer.scheduled)
    assert inner.at is not None
    assert inner.at[0] == around.name
    found = [n for n in linearizer.scheduled.nests if of_kind(n, Kind.THREAD)]
    assert found == [around if outer else inner]


def test_recompute_stays_where_its_readers_are() -> None:
    kernel = lower(less_the_maximum().ast, "kernel")
    out = the_output(kernel).name
    (name,) = (n.name for n in kernel.nests if n.at == (out, 1))
    deeper = apply_opts(kernel, [Opt("recompute", (name, 2))])
    with pytest.raises(ScheduleError, match=r"it hangs at \('out0', 2\), and .* read it"):
        apply_opts(deeper, [Opt("recompute", (name, 1))])
    (reader,) = (n.name for n in kernel.nests if n.at == (out, 2))
    outside = apply_opts(kernel, [Opt("compute_at", (reader, 1))])
    with pytest.raises(ScheduleError, match="have to be in the loops that it enters"):
        apply_opts(outside, [Opt("recompute", (name, 2))])


def staged(ast: LazyOp) -> Plan:
    """A copy of a row, as the largest value of it reads it."""
    plan = Plan(lower(ast, "kernel"), GRID)
    largest, out = reduces(plan.kernel)[0], the_output(plan.kernel).name
    (e,) = loads(largest.computes[0].value)
    plan.stage(largest.name, e, out, 1, largest.loop_ranges, "x")
    return plan


def test_a_copy_is_read_by_those_who_load_the_same() -> None:
    plan = staged(store(softmax(load(1, 3, 20), 1)))
    nest = reduces(plan.kernel)[1].name
    with pytest.raises(ScheduleError, match=r"reuse\(b1, number 1, x\).* has 1 different loads"):
        plan.do("reuse", nest, 1, "x", 1)
    plan.do("reuse", nest, 1, "x")
    powers = reduces(plan.kernel)[1]
    assert [(e.arg, e.src) for e in powers.reads if e.src] == [("x", (powers.loops[0].range,))]
    assert not loads(powers.computes[0].value)


def test_a_copy_of_something_else_is_not_reused() -> None:
    x = load(1, 3, 20)
    ast = store(add(softmax(x, 1), x.stride((1, -1))))
    plan = staged(ast)
    out = the_output(plan.kernel).name
    with pytest.raises(ScheduleError, match=rf"{out} loads b1\[.*, which is not what x holds"):
        plan.do("reuse", out, 1, "x", 0)
    plan.do("reuse", out, 1, "x", 1)
    (read,) = (e for e in the_output(plan.kernel).reads if e.arg == "x")
    assert read.src == (the_output(plan.kernel).loops[1].range,)


def test_digits_of_threads_that_overlap() -> None:
    ast = store(load(1, 8, 8))
    plan = Plan(lower(ast, "kernel"), GRID)
    out = the_output(plan.kernel)
    for r, step in zip(out.loop_ranges, (2, 4), strict=True):
        plan.do("bind", out.name, r, "thread", step)
    with pytest.raises(KernelError, match="are no digits of one number"):
        Linearizer(ast, GRID, plan.opts).linearize()


def test_only_powers_of_two_of_threads_are_combined() -> None:
    ast = store(total(load(1, 8, 6), 1))
    plan = Plan(lower(ast, "kernel"), GRID)
    nest = the_reduce(plan.kernel)
    plan.do("bind", nest.name, nest.loops[0].range)
    with pytest.raises(KernelError, match="combines over 6 threads, 1 apart"):
        Linearizer(ast, GRID, plan.opts).linearize()


def test_a_chosen_step_makes_neighbours() -> None:
    ast = store(total(load(1, 16, 8), 0))
    plan = Plan(lower(ast, "kernel"), GRID)
    out, nest = the_output(plan.kernel), the_reduce(plan.kernel)
    plan.do("bind", out.name, out.loops[-1].range, "thread", 1)
    _, few = plan.split(nest.name, nest.loops[0].range, 4)
    plan.do("bind", nest.name, few, "thread", 8)
    linearizer = run(Case("sum", ast, ((16, 8),), lambda x: x.sum(0)), plan.opts)
    loops = [loop for nest in linearizer.scheduled.nests for loop in nest.loops]
    assert [loop.step for loop in loops if loop.kind is Kind.THREAD] == [8, 1]
    assert [u.arg for u in linearizer.uops if u.op is UOps.ACROSS] == [(ExprOp.ADD, 4, 8)]


@pytest.mark.parametrize("value", [1, 7, 33, 40])
@pytest.mark.parametrize("varies", [0, 1])
def test_sizes_that_vary(varies: int, value: int) -> None:
    n = Variable("n", 1, 40)
    x = load(1, *((n, 20) if varies == 0 else (5, n)))
    linearizer = Linearizer(store(softmax(x, 1)), GRID).linearize()
    shape = (value, 20) if varies == 0 else (5, value)
    given = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = np.full(given.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, given.ravel()], [value])
    np.testing.assert_allclose(out.reshape(shape), numpy_softmax(given, 1), rtol=1e-5, atol=1e-5)


def test_several_roots_of_one_kernel() -> None:
    x = load(3, 9, 40)
    stores = (store(total(x, 1), 0), store(total(x, 0), 1), store(add(x, x), 2))
    linearizer = Linearizer(LazyOp(BufferOps.SINK, stores), GRID).linearize()
    given = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    out = [np.full(n, np.nan, np.float32) for n in (9, 40, 360)]
    interpret(linearizer.uops, [*out, given.ravel()])
    for found, expected in zip(out, (given.sum(1), given.sum(0), 2 * given), strict=True):
        np.testing.assert_allclose(found, expected.ravel(), rtol=1e-5, atol=1e-5)


# What hangs outside of all loops: its terms, and the shape of what reads it.
OUTSIDE = [(700, (64, 300)), (16384, (16384,)), (4000, (3, 9001)), (9, (2, 41, 201))]


@pytest.mark.parametrize(("terms", "shape"), OUTSIDE, ids=str)
def test_what_all_need_is_computed_again_by_each_of_several_blocks(
    terms: int, shape: tuple[int, ...]
) -> None:
    ones = (1,) * len(shape)
    mean = mul(total(load(2, terms), 0), constant(1 / terms, (1,))).reshape(ones)
    ast = store(sub(load(1, *shape), mean.expand(shape)))
    case = Case("centred", ast, (shape, (terms,)), lambda x, y: x - y.mean())
    blocks = run(case, target=nvidia("sm_90a")).blocks
    assert blocks in range(2, 1057)


# Few results that many others wait for each: what each is a sum of, and what reads it.
FEW = [((3, 40), (3, 30000), 1), ((2, 64), (2, 8209), 1), ((40, 8), (9000, 8), 0)]


@pytest.mark.parametrize(("terms", "shape", "axis"), FEW, ids=str)
def test_what_few_rows_or_columns_need_is_computed_again_by_each_of_several_blocks(
    terms: tuple[int, int], shape: tuple[int, int], axis: int
) -> None:
    ast = store(sub(load(1, *shape), total(load(2, *terms), axis).expand(shape)))
    case = Case("centred", ast, (shape, terms), lambda x, y: x - y.sum(axis, keepdims=True))
    assert run(case, target=nvidia("sm_90a")).blocks in range(4, 1057)


def test_equal_parts_of_a_row_are_moved_in_vectors() -> None:
    shape = (3, 30000)
    ast = store(sub(load(1, *shape), total(load(2, 3, 40), 1).expand(shape)))
    linearizer = Linearizer(ast, nvidia("sm_90a")).linearize()
    assert set(accesses(linearizer, UOps.STORE)) == {4}


def test_rows_shorter_than_a_block_are_shared_out_together() -> None:
    """All threads have as much to do: 65 columns alone would leave three of four idle."""
    shape = (2048, 65)
    spread = total(load(2, 2048), 0).reshape((1, 1)).expand(shape)
    of_rows = mul(load(1, *shape), load(3, 2048, 1).expand(shape))
    case = Case(
        "sub",
        store(sub(of_rows, spread)),
        (shape, (2048,), (2048, 1)),
        lambda x, y, z: x * z - y.sum(dtype=np.float64).astype(np.float32),
    )
    linearizer = run(case, target=nvidia("sm_90a"))
    (root,) = linearizer.scheduled.roots
    blocks, *inside = (loop.size for loop in root.loops)
    assert blocks > 1
    # The last of a thread's copies may be beyond the end.
    assert np.prod(inside) * blocks < 1.5 * 2048 * 65


def test_reduces_that_need_one_another_are_computed_again_together() -> None:
    """The first of them is read by the second: they enter the blocks in the other order."""
    shape, scores = (2, 20000), load(2, 2, 50)
    top = reduce(ReduceOps.MAX, scores, 1)
    weights = total(LazyOp(UnaryOps.EXP2, (sub(scores, top.expand((2, 50))),)), 1)
    case = Case(
        "scaled",
        store(mul(load(1, *shape), weights.expand(shape))),
        (shape, (2, 50)),
        lambda x, y: x * np.exp2(y - y.max(1, keepdims=True)).sum(1, keepdims=True),
    )
    assert run(case, target=nvidia("sm_90a")).blocks in range(4, 1057)


def test_what_takes_long_is_not_computed_again_by_all_blocks() -> None:
    """Of rows that have a block each, which would all be read several times."""
    shape = (64, 8192)
    assert Linearizer(softmax_of(*shape).ast, nvidia("sm_90a")).blocks == 64


def test_what_one_block_does_at_once_is_done_by_one() -> None:
    mean = mul(total(load(2, 500), 0), constant(1 / 500, (1,)))
    case = Case(
        "centred",
        store(sub(load(1, 900), mean.expand((900,)))),
        ((900,), (500,)),
        lambda x, y: x - y.mean(),
    )
    assert run(case, target=nvidia("sm_90a")).blocks == 1
