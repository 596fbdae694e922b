"""Scatters for blocks of threads: in order, without races, whatever the positions are."""

import numpy as np
import pytest
from tests.blocks import GRID
from tests.gpus import LARGE
from tests.kernels import Array, add, load, store, total

from ferrule.codegen.analysis.injective_stores import is_injective, owned_digit
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import KernelError, Store
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.opt import Opt, ScheduleError
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.scatter import scatter_in_parts
from ferrule.codegen.uops import UOps
from ferrule.dtype import dtypes
from ferrule.ir.expr import INDEX, TRUE, Variable, both, cast, const, less, range_
from ferrule.ir.expr import load as element
from ferrule.ops import LazyOp, ReduceOps


def scattered(values: Array, places: Array, axis: int, base: Array) -> Array:
    """Elements added to those of a base, in order in float32."""
    size = base.shape[axis]
    out = base.copy()
    for index in np.ndindex(*values.shape):
        place = int(places[index])
        if 0 <= place < size:
            out[(*index[:axis], place, *index[axis + 1 :])] += values[index]
    return out


def run_scatter(
    shape: tuple[int, ...],
    axis: int,
    size: int,
    *,
    shared: bool,
    in_place: bool = False,
    places: Array | None = None,
    parts: int | None = None,
) -> Linearizer:
    """Interprets a scatter along an axis; with positions for each element, or for the axis; into
    zeros, or into what is there. The places are in `parts`, or in as many as take the least time.
    """
    given = tuple(n if i == axis or not shared else 1 for i, n in enumerate(shape))
    generator = np.random.default_rng(0)
    if places is None:
        places = generator.integers(-1, size + 1, given).astype(np.int32)
    places = places.reshape(given)
    dtype = next(d for d in (dtypes.int32, dtypes.int64) if d.np == places.dtype)
    positions = load(2, *given, dtype=dtype).expand(shape)
    whole = (*shape[:axis], size, *shape[axis + 1 :])
    there = (load(0, *whole),) if in_place else ()
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, *shape), positions, *there), (axis, size)))
    plan = Plan(Linearizer(ast, GRID, ()).kernel, GRID)
    plan.collapse()
    made = parts is None or scatter_in_parts(plan, parts)
    assert made
    linearizer = Linearizer(ast, GRID, None if parts is None else plan.opts).linearize()
    base = generator.standard_normal(whole).astype(np.float32) * np.float32(in_place)
    values = generator.standard_normal(shape).astype(np.float32)
    expected = scattered(values, np.broadcast_to(places, shape), axis, base)
    out = base.ravel() if in_place else np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, values.ravel(), places.ravel()])
    assert np.array_equal(out.reshape(expected.shape), expected)
    return linearizer


@pytest.mark.parametrize("shape", [(1,), (1, 8), (8, 1), (1, 1)])
def test_what_is_added_to_is_loaded_after_it_is_filled(shape: tuple[int, ...]) -> None:
    """Where a loop over elements is missing, the load may seem to be the same in all loops."""
    for axis in range(len(shape)):
        run_scatter(shape, axis, 5, shared=False)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((9, 21), 0, 4), ((9, 21), 1, 5), ((3, 7, 10), 1, 6), ((2, 3, 4, 33), 2, 3), ((40, 16), 0, 3)],
)
def test_scatters_along_any_axis(
    shape: tuple[int, ...], axis: int, size: int, shared: bool
) -> None:
    assert run_scatter(shape, axis, size, shared=shared).threads > 1


@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((9, 21), 0, 4), ((3, 7, 10), 1, 6), ((64, 5), 0, 300), ((64,), 0, 1000), ((1, 8), 0, 9)],
)
def test_what_is_in_memory_is_not_filled(shape: tuple[int, ...], axis: int, size: int) -> None:
    """Only what is written is touched, by many threads all the same."""
    linearizer = run_scatter(shape, axis, size, shared=True, in_place=True)
    assert len(linearizer.kernel.roots) == 1
    assert linearizer.threads > 1
    stores = sum(u.op is UOps.STORE for u in linearizer.uops)
    run_scatter(shape, axis, size, shared=False, in_place=True)
    filled = run_scatter(shape, axis, size, shared=True)
    assert stores < sum(u.op is UOps.STORE for u in filled.uops)


def test_a_copy_of_other_memory_is_made_first() -> None:
    args = (load(1, 6), load(2, 6, dtype=dtypes.int32), load(3, 40))
    ast = store(LazyOp(ReduceOps.SCATTER, args, (0, 40, "last")))
    linearizer = Linearizer(ast, GRID).linearize()
    places = np.array([6, -1, 39, 6, 40, 3], np.int32)
    base = np.arange(40, 80, dtype=np.float32)
    out = np.full(40, np.nan, np.float32)
    interpret(linearizer.uops, [out, np.arange(1, 7, dtype=np.float32), places, base])
    base[[39, 6, 3]] = [3, 4, 6]
    assert np.array_equal(out, base)


def test_columns_are_blocks_and_threads() -> None:
    linearizer = run_scatter((11, 320), 0, 1, shared=True)
    assert (linearizer.blocks, linearizer.threads) == (5, 16)


# Places that parts divide and that they do not; one column, columns that are no vectors, and
# axes outside of the one that is scattered.
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [
        ((300, 8), 0, 64),
        ((300, 8), 0, 53),
        ((300,), 0, 61),
        ((301, 5), 0, 30),
        ((2, 150, 3), 1, 48),
    ],
)
def test_places_are_divided_where_elements_are_many(
    shape: tuple[int, ...], axis: int, size: int
) -> None:
    linearizer = run_scatter(shape, axis, size, shared=True)
    assert "partition" in {opt.primitive for opt in linearizer.opts}
    blocks = linearizer.blocks
    assert isinstance(blocks, int)
    assert blocks > 1


def test_a_thread_loads_several_places_at_once() -> None:
    linearizer = run_scatter((304,), 0, 61, shared=True)
    loads = {u.lanes for u in linearizer.uops if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM}
    assert loads == {1, 4}
    assert "stage" in [opt.primitive for opt in linearizer.opts]


@pytest.mark.parametrize(("width", "lanes"), [(128, 4), (64, 2), (40, 1), (5, 1)])
def test_threads_look_at_an_element_each_and_add_together(width: int, lanes: int) -> None:
    """As many of them are busy with the columns of one element as can be."""
    linearizer = run_scatter((256, width), 0, 64, shared=True, parts=16)
    assert "skip" in [opt.primitive for opt in linearizer.opts]
    assert linearizer.threads == 32
    loads = {u.lanes for u in linearizer.uops if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM}
    assert loads == {1, lanes}
    looks = [u for u in linearizer.uops if u.op is UOps.ACROSS]
    assert len(looks) == 4  # at 32 elements each, before the first of them is added


@pytest.mark.parametrize(
    "places",
    [
        np.full(96, 11),  # one place, to which all of a part go
        np.arange(96),
        np.arange(96)[::-1],
        np.repeat([5, 2], 48),
        np.full(96, 96),  # nowhere
        np.where(np.arange(96) % 32 == 31, 7, -5),  # the last bit alone
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("in_place", [False, True])
def test_any_elements_may_be_those_of_a_part(
    places: Array, dtype: type[np.integer], in_place: bool
) -> None:
    given = places.astype(dtype)
    linearizer = run_scatter((96, 33), 0, 96, shared=True, in_place=in_place, places=given, parts=8)
    assert "skip" in [opt.primitive for opt in linearizer.opts]


@pytest.mark.parametrize("count", [31, 32, 33, 127, 128, 129])
def test_elements_that_fill_no_looks(count: int) -> None:
    linearizer = run_scatter((count, 40), 0, 90, shared=True, parts=16)
    assert "skip" in [opt.primitive for opt in linearizer.opts]


def test_columns_of_other_places_are_looked_at_one_by_one() -> None:
    """Whether an element is a thread's own differs from column to column."""
    linearizer = run_scatter((256, 64), 0, 64, shared=False, parts=16)
    assert "partition" in [opt.primitive for opt in linearizer.opts]
    assert "skip" not in [opt.primitive for opt in linearizer.opts]


def test_one_thread_skips_what_is_stored_nowhere() -> None:
    places = np.array([3, -1, 9, 0, 3, 7, 7, 8, -2], np.int32)
    values = np.arange(1, 10, dtype=np.float32)
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 9), load(2, 9, dtype=dtypes.int32)), (0, 8)))
    linearizer = Linearizer(ast, GRID, [Opt("skip", ("out0", "i0.0"))]).linearize()
    out = np.full(8, np.nan, np.float32)
    interpret(linearizer.uops, [out, values, places])
    assert out.tolist() == [4, 0, 0, 6, 0, 0, 0, 13]
    assert "for i0.0 in 9 by the set bits of out0.bits" in str(linearizer)


def test_skip_needs_values_that_say_where() -> None:
    def schedule(elements: int, *opts: Opt) -> None:
        args = (
            load(1, elements, 2),
            load(2, elements, 1, dtype=dtypes.int32).expand((elements, 2)),
        )
        Linearizer(store(LazyOp(ReduceOps.SCATTER, args, (0, 8))), GRID, opts)

    message = r"skip\(i0.0\) in kernel .* no plain loop of at most 32 iterations"
    with pytest.raises(ScheduleError, match=message):
        schedule(33, Opt("skip", ("out0", "i0.0")))
    with pytest.raises(ScheduleError, match=r"skip\(i0.1\).* nothing but the loops around it says"):
        schedule(32, Opt("skip", ("out0", "i0.1")))
    skipped = Opt("skip", ("out0", "i0.0"))
    with pytest.raises(ScheduleError, match=r"unroll\(i0.0\).* only some of its iterations"):
        schedule(32, skipped, Opt("unroll", ("out0", "i0.0")))
    with pytest.raises(ScheduleError, match=r"fuse\(i0.0\).* only some iterations"):
        schedule(32, skipped, Opt("fuse", ("out0", "i0.0")))
    with pytest.raises(ScheduleError, match=r"split\(i0.0, 4, 'mask'\).* it is limited"):
        schedule(32, skipped, Opt("split", ("out0", "i0.0", 4)))
    with pytest.raises(KernelError, match=r"the bitmask of loop i0.0 is not known where it begins"):
        schedule(32, skipped, Opt("recompute", ("out0.bits", 1)))


def test_parts_of_places_leave_out_what_is_outside() -> None:
    """Places before the first and after the last, as far as integers go."""
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 6), load(2, 6, dtype=dtypes.int32)), (0, 7)))
    uops = Linearizer(ast, GRID, [Opt("partition", ("out0", 3))]).linearize().uops  # 3, 2 and 2
    places = np.array([6, -1, 7, 2**31 - 1, -(2**31), 3], np.int32)
    out = np.full(7, np.nan, np.float32)
    interpret(uops, [out, np.arange(1, 7, dtype=np.float32), places])
    assert out.tolist() == [0, 0, 0, 6, 0, 0, 1]


@pytest.mark.parametrize("how", ["max", "prod", "last"])
def test_parts_of_places_combine_in_any_way(how: str) -> None:
    values = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    places = np.random.default_rng(1).integers(0, 11, 50).astype(np.int32)
    args = (load(1, 50), load(2, 50, dtype=dtypes.int32))
    ast = store(LazyOp(ReduceOps.SCATTER, args, (0, 11, how)))
    results = []
    for opts in ([], [Opt("partition", ("out0", 4))]):
        out = np.zeros(11, np.float32)
        interpret(Linearizer(ast, GRID, opts).linearize().uops, [out, values, places])
        results.append(out.tobytes())
    assert results[0] == results[1]


def test_partition_needs_one_place_that_a_value_says() -> None:
    message = r"partition\(out0, 4\) in kernel .* stores where one value says"
    with pytest.raises(ScheduleError, match=message):
        Linearizer(store(load(1, 6)), GRID, [Opt("partition", ("out0", 4))])
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 6), load(2, 6, dtype=dtypes.int32)), (0, 7)))
    with pytest.raises(ScheduleError, match="fewer places than parts"):
        Linearizer(ast, GRID, [Opt("partition", ("out0", 8))])


def test_many_parts_pay_for_long_scatters_alone() -> None:
    """Where rows are long enough for all threads, no thread passes elements of others by."""

    def parts(rows: int, columns: int) -> int:
        places = load(2, rows, 1, dtype=dtypes.int32).expand((rows, columns))
        args = load(1, rows, columns), places
        ast = store(LazyOp(ReduceOps.SCATTER, args, (0, 4096)))
        opts = Linearizer(ast, LARGE).opts
        return next((opt.args[1] for opt in opts if opt.primitive == "partition"), 1)

    assert parts(10_000, 64) > parts(10_000, 1 << 12) >= 1
    assert parts(1, 1 << 20) == 1


def test_sums_are_scattered_by_many_threads() -> None:
    """The gradient of a table whose rows all images of a batch share."""
    values = np.random.default_rng(0).standard_normal((3, 20, 16)).astype(np.float32)
    places = np.random.default_rng(1).integers(0, 40, (20, 1)).astype(np.int32)
    positions = load(2, 20, 1, dtype=dtypes.int32).expand((20, 16))
    sums = total(load(1, 3, 20, 16), 0).reshape((20, 16))
    ast = store(LazyOp(ReduceOps.SCATTER, (sums, positions), (0, 40)))
    linearizer = Linearizer(ast, GRID).linearize()
    assert linearizer.threads > 1
    out = np.full(40 * 16, np.nan, np.float32)
    interpret(linearizer.uops, [out, values.ravel(), places.ravel()])
    whole = np.broadcast_to(places, (20, 16))
    expected = scattered(values.sum(0), whole, 0, np.zeros((40, 16), np.float32))
    np.testing.assert_allclose(out.reshape(40, 16), expected, rtol=1e-5, atol=1e-6)


def test_what_has_no_other_axis_is_done_in_order() -> None:
    linearizer = run_scatter((50,), 0, 1, shared=False)
    assert (linearizer.blocks, linearizer.threads) == (1, 1)


def test_the_digit_of_an_axis() -> None:
    b, i, j = range_("b", 3), range_("i", 9), range_("j", 4)
    place = cast(element(2, dtypes.int32, i), INDEX)
    inside = both(less(place, const(5)), less(place * -1, const(1)))
    store_ = Store(0, b * 20 + place * 4 + j, inside)
    assert owned_digit(store_, b) == (20, 3)
    assert owned_digit(store_, j) == (1, 4)
    assert owned_digit(store_, i) is None
    unbounded = Store(0, b * 20 + place * 4 + j, TRUE)
    assert owned_digit(unbounded, b) is None
    assert owned_digit(unbounded, j) == (1, 4)


def test_parts_of_an_axis_own_what_it_did() -> None:
    i = range_("i", 9)
    outer, inner = range_("j.o", 2), range_("j.i", 8)
    place = cast(element(2, dtypes.int32, i), INDEX)
    index = place * 11 + outer * 8 + inner
    tail = less(outer * 8 + inner, const(11))
    assert is_injective(Store(0, index, tail), inner)
    assert is_injective(Store(0, index, tail), outer)
    assert not is_injective(Store(0, index, TRUE), inner)
    part, row = range_("part*j.o", 8), range_("row", 2)
    rows = less(row * 4 + part // 2, const(7))
    index = (row * 4 + part // 2) * 11 + part % 2 * 8 + inner
    columns = less(part % 2 * 8 + inner, const(11))
    assert is_injective(Store(0, index, both(rows, columns)), part)
    assert is_injective(Store(0, index, both(columns, rows)), part)
    assert not is_injective(Store(0, index, rows), part)
    fused = range_("b*j", 12)
    parts = fused // 4 * 20 + fused % 4
    assert is_injective(Store(0, parts), fused)
    assert not is_injective(Store(0, fused % 4), fused)


def test_roots_that_store_elsewhere_do_not_become_one() -> None:
    positions = load(2, 9, 21, dtype=dtypes.int32)
    ast = store(LazyOp(ReduceOps.SCATTER, (add(*[load(1, 9, 21)] * 2), positions), (0, 4)))
    with pytest.raises(ScheduleError, match=r"enter\(out0z, out0, 1\).* same parts of one buffer"):
        Linearizer(ast, GRID, [Opt("enter", ("out0z", "out0", 1))])
    with pytest.raises(ScheduleError, match="two iterations may store to one place"):
        Linearizer(ast, GRID, [Opt("bind", ("out0", "i0.0"))])


@pytest.mark.parametrize("width", [1, 3, 4])
def test_elements_may_be_fewer_than_places_by_a_variable(width: int) -> None:
    """What fills all columns is not put inside of a loop over as many as the variable says."""
    n = Variable("n", 1, 4)
    places = np.random.default_rng(0).integers(0, 5, (2, 3, width)).astype(np.int32)
    values = np.random.default_rng(1).standard_normal((2, 3, width)).astype(np.float32)
    base = np.random.default_rng(2).standard_normal((5, 3, 4)).astype(np.float32)
    sources = (load(1, 2, 3, n), load(2, 2, 3, n, dtype=dtypes.int32), load(3, 5, 3, 4))
    ast = store(LazyOp(ReduceOps.SCATTER, sources, (0, 5)))
    linearizer = Linearizer(ast, GRID).linearize()
    out = np.full(base.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, values.ravel(), places.ravel(), base.ravel()], {4: width})
    expected = base.copy()
    expected[:, :, :width] = scattered(values, places, 0, base[:, :, :width])
    assert np.array_equal(out.reshape(base.shape), expected)
