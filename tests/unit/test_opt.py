"""The scheduling primitives: what they make, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.kernels import (
    add,
    constant,
    exp,
    load,
    matmul,
    mul,
    reduce,
    softmax,
    stage,
    store,
    total,
)

from ferrule.codegen.heuristic import choose
from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.kernel import (
    MONOIDS,
    Compute,
    Kernel,
    KernelError,
    Kind,
    Loop,
    Nest,
    Store,
    scatters,
    show,
)
from ferrule.codegen.linearizer import Linearizer, linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import gap_of_copies
from ferrule.codegen.primitives.editing import is_ordered
from ferrule.codegen.uops import UOps
from ferrule.codegen.wellformed import verify
from ferrule.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, const, less, minimum, range_
from ferrule.ir.expr import load as loaded
from ferrule.ir.target import detect_cpu
from ferrule.ops import BufferOps, LazyOp, ReduceOps, UnaryOps


def product() -> Kernel:
    return lower(store(matmul(load(1, 12, 20), load(2, 20, 32))), "product")


TILED = (
    Opt("split", ("out0", "i0.0", 5, "clamp")),
    Opt("split", ("out0", "i0.1", 16, "mask")),
    Opt("reorder", ("out0", ("i0.0.o", "i0.1.o", "i0.0.i", "i0.1.i"))),
    Opt("unroll", ("out0", "i0.0.i")),
    Opt("vectorize", ("out0", "i0.1.i")),
    Opt("compute_at", ("sum0", 2)),
)


def test_opts_are_data() -> None:
    for opt in TILED:
        assert Opt.from_json(opt.to_json()) == opt
        assert hash(Opt.from_json(opt.to_json())) == hash(opt)


def test_opts_read_from_json_give_the_same_kernel() -> None:
    again = tuple(Opt.from_json(opt.to_json()) for opt in TILED)
    assert apply_opts(product(), again) == apply_opts(product(), TILED)


def test_the_reduce_gets_a_tile_of_registers() -> None:
    kernel = apply_opts(product(), TILED)
    nest = kernel.by_name["sum0"]
    assert [loop.kind for loop in nest.loops] == [Kind.SERIAL, Kind.UNROLL, Kind.VECTOR]
    assert [r.name for r in nest.computes[0].ranges] == ["i0.0.i@sum0", "i0.1.i@sum0"]
    assert nest.at == ("out0", 2)


def test_split_shows_its_tail() -> None:
    text = show(apply_opts(product(), TILED[:1]))
    assert "for i0.0.o in 3" in text
    assert "for i0.0.i in 5" in text
    assert "min(i0.0.o * 5 + i0.0.i, 11)" in text.replace("  ", " ")


def test_an_exact_split_has_no_tail() -> None:
    text = show(apply_opts(product(), [Opt("split", ("out0", "i0.0", 4, "mask"))]))
    assert " if " not in text


@pytest.mark.parametrize(
    ("opt", "message"),
    [
        (Opt("split", ("out0", "i0.7", 4, "mask")), "no loop i0.7 in nest out0 of kernel product"),
        (Opt("split", ("out9", "i0.0", 4, "mask")), "no nest out9 in kernel product"),
        (Opt("split", ("out0", "i0.0", 0, "mask")), "the factor is at least 1"),
        (Opt("split", ("sum0", "r0.2", 3, "clamp")), "cannot repeat elements; use mask or peel"),
        (Opt("reorder", ("out0", ("i0.1",))), "nest out0 has the loops"),
        (Opt("parallel", ("out0", "i0.1")), "only the outermost loop of a root nest"),
        (Opt("fuse", ("out0", "i0.1")), "no loop follows it"),
        (Opt("compute_at", ("out0", 0)), "it hangs at None"),
        (Opt("group", ("out0", ("i0.0",))), "does not combine over all of them"),
        (Opt("stage", ("sum0", 7, "out0", 1, (), "copy")), "0 different loads of it"),
        (Opt("prefetch", ("sum0", 7, 64)), "nest sum0 loads nothing from there"),
        (Opt("prefetch", ("sum0", 1, -1)), "the distance is negative"),
        (Opt("stage", ("sum0", 2, "out0", 1, ("r0.2",), "copy")), "it varies inside with"),
        (Opt("expand_reduce", ("out0",)), "it is no reduce of at most 25 terms to one value"),
        (Opt("merge", ("sum0", "out0")), "their places or loops differ"),
        (Opt("stage_row", ("sum0", "out0")), "they share no costly value"),
        (Opt("transpose", ("out0", "i0.0", "i0.1")), "must be the last two loops"),
        (Opt("tile", ()), "unknown primitive tile"),
    ],
)
def test_refusals(opt: Opt, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        apply_opts(product(), [opt])
    assert message in str(caught.value)


@pytest.mark.parametrize("op", [ReduceOps.SUM, ReduceOps.MAX, ReduceOps.PROD])
def test_a_reduce_that_is_expanded_has_the_same_bits(op: ReduceOps) -> None:
    """Of products as well, which are added by one operation; zeros keep their sign."""
    a, b = (np.random.default_rng(i).standard_normal(60).astype(np.float32) for i in (0, 1))
    a[:12], b[5:20:3], a[30] = -0.0, 0.0, np.nan
    for value in (load(1, 15, 4), mul(load(1, 15, 4), load(2, 15, 4))):
        found = []
        for opts in ((), (Opt("expand_reduce", (f"{op.name.lower()}0",)),)):
            uops = Linearizer(store(reduce(op, value, 1)), detect_cpu(), opts=opts).linearize().uops
            out = np.zeros(15, np.float32)
            interpret(uops, [out, a, b], [], 0, extent(uops, []))
            found.append(out.view(np.int32))
        assert not any(u.op is UOps.REG for u in uops)
        np.testing.assert_array_equal(*found)


def sum_beside_a_chain() -> Kernel:
    """`h = exp(x @ w)` in blocks of rows; `h @ u`, and beside it `h.T @ g`, a sum over the rows."""
    hidden = stage(exp(matmul(load(2, 12, 8), load(3, 8, 20))), 1)
    stores = (
        store(matmul(hidden, load(4, 20, 16))),
        store(matmul(hidden.permute((1, 0)), load(5, 12, 6)), 1),
    )
    return lower(LazyOp(BufferOps.SINK, stores), "beside")


def test_a_sum_over_blocks_is_added_to_memory_beside_them() -> None:
    kernel = sum_beside_a_chain()
    verify(kernel)
    assert len(kernel.roots) == 1
    assert kernel.by_name["out1"].at == ("out0", 1)
    text = "b1[i1.0 * 6 + i1.1] = b1[i1.0 * 6 + i1.1 if i0.0 * -1 < 0] + stage"
    assert text in show(kernel)


def test_a_sum_that_is_not_over_the_blocks_has_a_loop_of_its_own() -> None:
    hidden = stage(exp(matmul(load(2, 12, 8), load(3, 8, 20))), 1)
    other = stage(exp(matmul(load(2, 12, 8), load(6, 8, 20))), 1)
    stores = [store(matmul(hidden, load(4, 20, 16)))]
    for number, value in enumerate((other, mul(hidden, hidden)), 1):
        stores.append(store(mul(total(value, 0), constant(2, (1, 20))), number))
    kernel = lower(LazyOp(BufferOps.SINK, tuple(stores)), "apart")
    verify(kernel)
    assert len(kernel.roots) == 3


ADDED_UP = (
    Opt("split", ("out0", "i0.0", 5, "mask")),
    Opt("compute_at", ("stage1", 1, True)),
    Opt("compute_at", ("out1", 1, True)),
    Opt("accumulate", ("out1", "i0.0.i@out1")),
)


def test_what_the_rows_of_a_block_add_is_summed_first() -> None:
    kernel = apply_opts(sum_beside_a_chain(), ADDED_UP)
    (loop,) = kernel.by_name["out1.sum"].loops
    assert str(loop.end) == "min(i0.0.o * -5 + 12, 5)"
    text = show(kernel)
    assert "if i0.0.o * -1 < 0] + out1.sum" in text
    # The mask stays: a copy of what is loaded has all iterations.
    assert "b5[i0.0.o * 30 + i0.0.i@out1 * 6 + i1.1 if " in text


@pytest.mark.parametrize(
    ("opt", "message"),
    [
        (Opt("parallel", ("out0", "i0.0")), "out1 is stored to one place in several iterations"),
        (Opt("split", ("out0", "i0.0", 5, "clamp")), r"\['out1'\] would be stored twice"),
        (Opt("accumulate", ("out1", "i1.0")), "does not add to memory at a place that is the same"),
        (Opt("accumulate", ("out0", "i0.1")), "does not add to memory"),
    ],
)
def test_what_is_added_to_memory_is_not_disturbed(opt: Opt, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        apply_opts(sum_beside_a_chain(), [opt])


@pytest.mark.parametrize("along", [0, 1])
def test_a_limited_loop_does_not_ask_what_holds_in_all_of_it(along: int) -> None:
    """But what is loaded before it, as it does not vary with it, may be beyond the end there."""
    i, k = range_("i", 4), range_("k", 5)
    element = loaded(1, dtypes.float32, i * 2 + k * along, less(i + k, const(3)))
    sums = Compute("s", element, (), MONOIDS["sum"])
    out = Compute("out", Expr(ExprOp.READ, dtypes.float32, (), "s"), store=Store(0, i))
    nests = (Nest("s", (sums,), (Loop(k),), ("out", 1)), Nest("out", (out,), (Loop(i),)))
    kernel = apply_opts(Kernel("k", nests, (dtypes.float32,) * 2), (Opt("limit", ("s", "k")),))
    uops = linearize(kernel)
    (load_,) = (u for u in uops if u.op is UOps.LOAD)
    assert len(load_.src) == (2 if along else 3)
    x = np.arange(5, dtype=np.float32)
    found = np.full(4, np.nan, np.float32)
    interpret(uops, [found, x])
    terms = [[2 * a + along * b for b in range(5) if a + b < 3] for a in range(4)]
    assert found.tolist() == [float(sum(row)) for row in terms]


def test_a_limited_loop_is_not_split() -> None:
    again = Opt("split", ("out1.sum", "i0.0.i@out1", 2, "mask"))
    with pytest.raises(ScheduleError, match="it is limited"):
        apply_opts(sum_beside_a_chain(), (*ADDED_UP, again))


def test_terms_of_a_sum_change_their_order() -> None:
    kernel = lower(store(total(load(1, 3, 4, 5), 1, 2)), "rows")
    transposed = apply_opts(kernel, [Opt("reorder", ("sum0", ("r0.2", "r0.1")))])
    assert [loop.range.name for loop in transposed.by_name["sum0"].loops] == ["r0.2", "r0.1"]


def test_lanes_stay_innermost_where_copies_of_terms_are_combined() -> None:
    """Lanes around the copies would be other registers than those that the copies fill."""
    opts = (
        Opt("split", ("out0", "i0.1", 8, "mask")),
        Opt("vectorize", ("out0", "i0.1.i")),
        Opt("compute_at", ("sum0", 1)),
        Opt("reorder", ("out0", ("i0.1.o", "i0.1.i"))),
        Opt("split", ("sum0", "r0.0", 4, "peel")),
        Opt("unroll", ("sum0", "r0.0.i")),
        Opt("group", ("sum0", ("r0.0.i",))),
    )
    kernel = apply_opts(lower(store(total(load(1, 14, 8), 0)), "sums"), opts)
    verify(kernel)
    assert all(n.loops[-1].kind is Kind.VECTOR for n in kernel.nests if n.name.startswith("sum0"))
    x = np.random.default_rng(0).standard_normal((14, 8)).astype(np.float32)
    found = np.full(8, np.nan, np.float32)
    uops = linearize(kernel)
    interpret(uops, [found, x.ravel()], [], 0, extent(uops, []))
    np.testing.assert_allclose(found, x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-6)


def test_siblings_merge_into_one_pass() -> None:
    x = load(1, 4, 6)
    squares = total(mul(x, x), 1)
    kernel = lower(store(add(total(x, 1), squares)), "moments")
    merged = apply_opts(kernel, [Opt("merge", ("sum0", "sum1"))])
    assert [nest.name for nest in merged.nests] == ["sum1", "out0"]
    assert [c.name for c in merged.by_name["sum1"].computes] == ["sum0", "sum1"]


def test_a_nest_does_not_merge_with_one_that_it_needs() -> None:
    rows = lower(store(softmax(load(1, 4, 6), 1)), "softmax")
    with pytest.raises(ScheduleError, match="one needs the other"):
        apply_opts(rows, [Opt("merge", ("max0", "sum1"))])


def weights_by_blocks(rows: int, columns: int) -> Kernel:
    """`exp(x) / sum(exp(x))` in blocks of rows, times a matrix."""
    powers = stage(exp(load(1, rows, columns)), 1)
    inverse = LazyOp(UnaryOps.RECIP, (total(powers, 1),))
    weights = stage(mul(powers, inverse.expand(powers.shape)), 1)
    return lower(store(matmul(weights, load(2, columns, 8))), "weights")


BLOCKS = tuple(Opt("compute_at", (name, 0, True)) for name in ("stage2", "sum3", "stage1"))


def test_a_sum_over_a_block_takes_its_terms_as_they_are_computed() -> None:
    merged = (*BLOCKS, Opt("merge", ("stage2", "sum3")))
    kernel = apply_opts(weights_by_blocks(6, 10), merged)
    verify(kernel)
    assert [c.name for c in kernel.by_name["sum3"].computes] == ["stage2", "sum3"]
    assert "stage2" not in kernel.by_name
    assert all(e.arg != "stage2" for e in kernel.by_name["sum3"].reads)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(size).astype(np.float32) for size in (60, 80)]
    found = []
    for opts in (BLOCKS, merged):
        out = np.zeros(48, np.float32)
        uops = linearize(apply_opts(weights_by_blocks(6, 10), opts))
        interpret(uops, [out, *given], [], 0, extent(uops, []))
        found.append(out)
    np.testing.assert_array_equal(found[0].view(np.int32), found[1].view(np.int32))
    x, v = given[0].reshape(6, 10).astype(np.float64), given[1].reshape(10, 8)
    exact = np.exp(x) / np.exp(x).sum(1, keepdims=True) @ v
    np.testing.assert_allclose(found[0].reshape(6, 8), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("before", "names"),
    [
        (BLOCKS, ("sum3", "stage1")),  # of a sum, all terms have to be there
        (BLOCKS[:1], ("stage2", "sum3")),  # at other places
        ((*BLOCKS, Opt("split", ("stage2", "i0.0@stage2", 2))), ("stage2", "sum3")),
        ((*BLOCKS, Opt("reorder", ("stage2", ("i0.0@stage2", "r2.1")))), ("stage2", "sum3")),
    ],
)
def test_what_is_needed_of_other_points_does_not_merge(
    before: tuple[Opt, ...], names: tuple[str, str]
) -> None:
    """With as many rows as columns, so that sizes alone do not tell."""
    with pytest.raises(ScheduleError, match="one needs the other"):
        apply_opts(weights_by_blocks(8, 8), (*before, Opt("merge", names)))


def test_what_hangs_in_a_merged_nest_follows() -> None:
    x = load(1, 4, 6)
    inner = total(mul(x.reshape((4, 6, 1)).expand((4, 6, 5)), load(2, 4, 6, 5)), 2)
    both = add(total(x, 1), total(mul(inner.reshape((4, 6)), x), 1))
    kernel = lower(store(both), "nested")
    names = [nest.name for nest in kernel.nests if nest.at == ("out0", 1)]
    merged = apply_opts(kernel, [Opt("merge", tuple(names))])
    assert len(merged.nests) == len(kernel.nests) - 1


def test_a_former_name_of_a_primitive_warns() -> None:
    kernel = lower(store(softmax(load(1, 4, 6), 1)), "softmax")
    with pytest.warns(DeprecationWarning, match="keep is stage_row now") as caught:
        found = apply_opts(kernel, [Opt("keep", ("sum1", "out0"))])
    assert found == apply_opts(kernel, [Opt("stage_row", ("sum1", "out0"))])
    assert caught[0].filename == __file__


def test_a_stage_lets_the_output_read_what_the_sum_computed() -> None:
    rows = apply_opts(
        lower(store(softmax(load(1, 4, 6), 1)), "softmax"), [Opt("stage_row", ("sum1", "out0"))]
    )
    text = show(rows)
    assert text.count("exp2(") == 2  # in the pass of the sum: once for the stage, once added
    assert "sum1.row[i0.1] * recip(sum1)" in text


def test_verify_finds_a_range_that_is_not_open() -> None:
    kernel = product()
    broken = Kernel(kernel.name, kernel.nests[1:], kernel.slots)
    with pytest.raises(KernelError, match="reads sum0, which nothing computes"):
        verify(broken)


def test_verify_finds_loads_of_what_an_earlier_nest_has_changed() -> None:
    x, y = load(0, 4), load(1, 4)
    doubled = store(add(y, y), 0)
    summed = LazyOp(BufferOps.SINK, (doubled, store(total(x, 0), 2)))
    with pytest.raises(KernelError, match="out1 loads from b0, which out0 changes"):
        verify(lower(summed, "summed"))
    verify(lower(LazyOp(BufferOps.SINK, (store(total(x, 0), 2), doubled)), "in order"))
    verify(lower(LazyOp(BufferOps.SINK, (doubled, store(mul(x, y), 2))), "in one loop"))


def test_what_a_scatter_adds_to_is_not_changed_by_its_zeros_beyond_a_tile() -> None:
    """There its loads stay inside, at a place that is not its own, but nothing is stored."""
    positions = LazyOp(UnaryOps.CAST, (load(2, 27, 1),), dtypes.int32)
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 27, 1), positions), (1, 1)))
    kernel = lower(ast, "scatter")
    verify(apply_opts(kernel, [Opt("split", ("out0", "i0.0", 14, "clamp"))]))
    zeros, added = kernel.nests
    (compute,) = added.computes
    assert compute.store is not None
    next_one = loaded(0, dtypes.float32, minimum(compute.store.index + 1, 26))
    broken = replace(added, computes=(replace(compute, value=next_one),))
    with pytest.raises(KernelError, match="out0 loads from b0, which out0z changes"):
        verify(replace(kernel, nests=(zeros, broken)))


def test_only_large_plain_results_bypass_the_caches() -> None:
    def is_uncached(value: LazyOp) -> bool:
        kernel = lower(store(value), "stream")
        kernel = apply_opts(kernel, choose(kernel, detect_cpu()))
        return any(c.store is not None and c.store.nontemporal for c in kernel.nests[0].computes)

    large, small = load(1, 1 << 22), load(1, 1 << 20)
    assert is_uncached(add(large, large))
    assert not is_uncached(add(small, small))
    assert not is_uncached(exp(large))
    assert not is_uncached(add(load(0, 1 << 22), large))  # in place


CACHED = replace(detect_cpu(), l2_bytes=1 << 20, max_threads=2)


def test_the_next_row_is_fetched_while_the_last_pass_computes_or_stores() -> None:
    def fetched(value: LazyOp) -> dict[str, tuple[tuple[int, int], ...]]:
        kernel = lower(store(value), "rows")
        kernel = apply_opts(kernel, choose(kernel, CACHED))
        return {nest.name: nest.ahead for nest in kernel.nests if nest.ahead}

    def weights(rows: int, columns: int) -> LazyOp:
        return softmax(load(1, rows, columns), 1)

    assert fetched(weights(1 << 14, 1 << 12)) == {"sum1.p": ((1, 1 << 12),)}
    assert fetched(weights(1 << 17, 1 << 9)) == {}  # up to there the processor looks ahead
    assert fetched(weights(1 << 4, 1 << 22)) == {}  # rows that do not fit into the cache
    assert fetched(weights(1 << 4, 1 << 12)) == {}  # the cache has them all
    x = load(1, 1 << 14, 1 << 12)
    far = add(x, total(x, 1).expand(x.shape))
    assert fetched(far) == {"out0": ((1, 1 << 12),)}
    assert fetched(total(mul(far, far), 1)) == {}  # only reads


@pytest.mark.parametrize(("vector_bytes", "count"), [(64, 4), (32, 2), (16, 1)])
def test_each_line_of_the_next_row_is_fetched_once(vector_bytes: int, count: int) -> None:
    """Four vectors are loaded in each iteration."""
    target = replace(CACHED, vector_bytes=vector_bytes)
    value = softmax(load(1, 1 << 14, 1 << 12), 1)
    uops = Linearizer(store(value), target).linearize().uops
    fetched = [u for u in uops if u.op is UOps.PREFETCH]
    assert len(fetched) == count
    loaded = {u.src[1] for u in uops if u.op is UOps.LOAD and u.src[0] is fetched[0].src[0]}
    for u in fetched:
        address, far = u.src[1].src
        assert address in loaded
        assert far.arg == 1 << 12


def test_what_is_fetched_is_seen_and_survives_other_primitives() -> None:
    opts = (Opt("prefetch", ("sum0", 1, 20)), Opt("split", ("sum0", "r0.2", 4, "peel")))
    kernel = apply_opts(product(), opts)
    assert kernel.by_name["sum0"].ahead == ((1, 20),)
    assert "# sum0, fetching b1 20 ahead" in show(kernel)


@pytest.mark.parametrize(("step", "fetched"), [(1, 1), (2, 2), (4, 4), (40, 0)])
def test_copies_that_are_some_elements_apart_fetch_each_line(step: int, fetched: int) -> None:
    """Also where none of them begins one, by the constant part of its index."""
    i, j = range_("i", 4), range_("j", 16)
    value = loaded(1, dtypes.float32, i * 640 + j * step + 3)
    out = Compute("out", value, store=Store(0, i * 16 + j))
    loops = (Loop(i), Loop(j, Kind.UNROLL))
    kernel = Kernel("k", (Nest("out", (out,), loops, ahead=((1, 1000),)),), (dtypes.float32,) * 2)
    assert gap_of_copies(kernel.nests[0], 1) == (step if step < 16 else 1)
    assert sum(u.op is UOps.PREFETCH for u in linearize(kernel)) == fetched


def test_what_is_only_stored_is_fetched_at_a_distance_of_zero() -> None:
    kernel = apply_opts(product(), (Opt("prefetch", ("out0", 0, 0)),))
    assert "# out0, fetching b0 before it is computed" in show(kernel)
    for again in (("out0", 0, 0), ("out0", 0, 16), ("sum0", 0, 0)):
        with pytest.raises(ScheduleError, match="0 for what is only stored"):
            apply_opts(kernel, (Opt("prefetch", again),))


def test_what_is_loaded_for_each_result_is_fetched_before_its_sum() -> None:
    """Each line that a tile adds to its sums, but no bias, and nothing where a cache has it all."""

    def residual(columns: int) -> LazyOp:
        found = matmul(load(1, 64, 64), load(2, 64, columns))
        return store(add(add(found, load(3, 64, columns)), load(4, 64, 1).expand(found.shape)))

    def fetched(ast: LazyOp) -> tuple[tuple[int, int], ...]:
        kernel = lower(ast, "residual")
        return apply_opts(kernel, choose(kernel, CACHED)).roots[0].ahead

    large = 2 * CACHED.l2_bytes // (64 * 4)
    assert fetched(residual(large)) == ((0, 0), (3, 0))
    assert fetched(residual(large // 8)) == ()
    uops = Linearizer(residual(large), CACHED).linearize().uops
    places = {(u.src[0].arg, u.src[1]) for u in uops if u.op is UOps.PREFETCH}
    added = {(3, u.src[1]) for u in uops if u.op is UOps.LOAD and u.src[0].arg == 3}
    assert added
    assert added <= places


@pytest.mark.parametrize(("opt", "depth"), [("parallel", 0), ("vectorize", 1)])
def test_loops_that_scatter_stay_serial(opt: str, depth: int) -> None:
    positions = LazyOp(UnaryOps.CAST, (load(2, 4, 8),), dtypes.int32)
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 4, 8), positions), (1, 8)))
    kernel = lower(ast, "scatter")
    nest = next(n for n in kernel.roots if scatters(n))
    with pytest.raises(ScheduleError, match=r"a value says where \w+ stores, and two iterations"):
        apply_opts(kernel, (Opt(opt, (nest.name, nest.loops[depth].range.name)),))


def test_loops_whose_iterations_scatter_apart_may_be_lanes() -> None:
    """The zeros come first, whatever the lanes; chunks would not know."""
    positions = LazyOp(UnaryOps.CAST, (load(2, 4, 8),), dtypes.int32)
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 4, 8), positions), (1, 8)))
    kernel = lower(ast, "scatter")
    nest = next(n for n in kernel.roots if scatters(n))
    lanes = apply_opts(kernel, (Opt("vectorize", (nest.name, nest.loops[0].range.name)),))
    assert lanes.by_name[nest.name].loops[0].kind is Kind.VECTOR


def test_zeros_that_something_is_added_to_are_not_shared_out() -> None:
    """Chunks are done in any order, and the zeros have to come first."""
    positions = LazyOp(UnaryOps.CAST, (load(2, 1, 8),), dtypes.int32)
    for how in ("last", "max"):
        ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 1, 8), positions), (0, 1, how)))
        kernel = lower(ast, "scatter")
        assert len(kernel.roots) == 2
        for nest in kernel.roots:
            assert is_ordered(kernel, nest.name)
            with pytest.raises(ScheduleError, match="and chunks are done in any order; leave its"):
                apply_opts(kernel, (Opt("parallel", (nest.name, nest.loops[0].range.name)),))
    apart = lower(LazyOp(BufferOps.SINK, (store(load(1, 8)), store(load(3, 9), 2))), "apart")
    assert not any(is_ordered(apart, nest.name) for nest in apart.roots)
