"""Gradients of attention for blocks of threads: three chains, and one number for each row.

They are interpreted; and of whole graphs it is told what their kernels are.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.gpus import GPU, LARGE, TENSOR
from tests.kernels import (
    Array,
    AttentionGradients,
    constant,
    load,
    log_of_sums,
    masked_scores,
    matmul,
    no_later,
    store,
    widened,
)
from tests.planning import Work
from tests.roles import last_reduce, the_output
from tests.unit.test_gridchains import SMALL, by_warps, results, rounding, tile, tiled, warps

from ferrule import Tensor, fusion
from ferrule.codegen.interpret import AccessError, RaceError, interpret
from ferrule.codegen.intrinsics import MMA_TF32, MatrixIntrinsic
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.schedules.gpu.chains import ChainTile, can_fuse_reduces
from ferrule.codegen.uops import UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ops import BufferOps, LazyOp, TernaryOps

GRADIENTS = ("query", "key", "value")
ROWS = replace(SMALL, results=None)


def ast_of(which: AttentionGradients, name: str) -> LazyOp:
    ast: LazyOp = getattr(which, name)()
    return ast


def shape_of(which: AttentionGradients, name: str) -> tuple[int, int]:
    return (which.rows if name == "query" else which.terms), which.depth


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(9, 21, 10), (16, 16, 8), (21, 9, 7)], ids=str)
def test_gradients_of_attention(name: str, causal: bool, sizes: tuple[int, int, int]) -> None:
    which = AttentionGradients(*sizes, causal=causal)
    linearizer = tiled(ast_of(which, name))
    operands = used(linearizer, which)
    found = results(linearizer, operands, shape_of(which, name))
    np.testing.assert_allclose(found, which.expected()[name], rtol=2e-5, atol=1e-5)


def used(linearizer: Linearizer, which: AttentionGradients) -> tuple[Array, ...]:
    """The inputs up to the last one that a kernel reads, in the type that it has for them."""
    loads = [node.arg for node in linearizer.ast.toposort() if node.op is BufferOps.LOAD]
    types = {arg.idx: arg.dtype.np for arg in loads}
    inputs = enumerate(which.inputs()[: max(types)], 1)
    return tuple(x.astype(types.get(slot, np.float32)) for slot, x in inputs)


@pytest.mark.parametrize("depth", [32, 64, 80, 128])
@pytest.mark.parametrize("name", GRADIENTS)
def test_heads_of_any_width(name: str, depth: int) -> None:
    which = AttentionGradients(7, 13, depth)
    linearizer = tiled(ast_of(which, name), tile(2, 2, 4, 2, 8, 32))
    found = results(linearizer, used(linearizer, which), shape_of(which, name))
    np.testing.assert_allclose(found, which.expected()[name], rtol=1e-4, atol=1e-5)


@by_warps
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("causal", [False, True])
def test_warps_multiply_matrices(
    name: str, by: MatrixIntrinsic, dtype: DType, causal: bool
) -> None:
    which = AttentionGradients(37, 41, 24, dtype, causal)
    linearizer = tiled(ast_of(which, name), warps(2, 4, 2, 16, by), TENSOR)
    contractions = 2 if name == "value" else 3
    assert len({u.src[:1] for u in linearizer.uops if u.op is UOps.MMA}) >= contractions
    found = results(linearizer, used(linearizer, which), shape_of(which, name))
    np.testing.assert_allclose(found, which.expected()[name], atol=16 * rounding(dtype))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chosen", [ROWS, replace(tile(2, 1, 1, 1, 8, 4), results=None)])
def test_the_logarithm_of_the_sum_of_powers(causal: bool, chosen: ChainTile) -> None:
    q, k = load(1, 19, 10), load(2, 21, 10)
    linearizer = tiled(store(log_of_sums(masked_scores(q, k, causal))), chosen)
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(s).astype(np.float32) for s in ((19, 10), (21, 10)))
    found = results(linearizer, (x, y), (19, 1))
    scores = x.astype(np.float64) @ y.T
    scores = np.where(np.tril(np.ones_like(scores)), scores, -np.inf) if causal else scores
    expected = np.log(np.exp(scores).sum(1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_of_rows_by_warps() -> None:
    q, k = (load(i, n, 24, dtype=dtypes.bfloat16) for i, n in ((1, 37), (2, 41)))
    wide = (widened(x) for x in (q, k))
    ast = store(log_of_sums(masked_scores(*wide)))
    linearizer = tiled(ast, replace(warps(2, 4, 1, 16), results=None), TENSOR)
    assert any(u.op is UOps.MMA for u in linearizer.uops)
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((n, 24)).astype(dtypes.bfloat16.np) for n in (37, 41))
    found = results(linearizer, (x, y), (37, 1))
    scores = x.astype(np.float64) @ y.astype(np.float64).T
    np.testing.assert_allclose(found, np.log(np.exp(scores).sum(1, keepdims=True)), rtol=1e-5)


def test_rows_that_are_infinite_or_no_number() -> None:
    """As the kernel that is written, one row after the other."""
    ast = store(log_of_sums(masked_scores(load(1, 6, 2), load(2, 21, 2))))
    generator = np.random.default_rng(2)
    x, y = (generator.standard_normal((n, 2)).astype(np.float32) for n in (6, 21))
    y[:, 0] = np.abs(y[:, 0]) + 0.1
    x[0], x[1], x[2], x[3] = (np.nan, 0), (np.inf, 0), (-np.inf, 0), (3e38, 0)
    found = results(tiled(ast, ROWS), (x, y), (6, 1))
    with np.errstate(all="ignore"):
        expected = results(Linearizer(ast, GPU, []).linearize(), (x, y), (6, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.isnan(found[:3]).all()
    assert np.isfinite(found[4:]).all()


@pytest.mark.parametrize("name", GRADIENTS)
def test_without_a_barrier_it_is_a_race(name: str) -> None:
    which = AttentionGradients(9, 21, 10)
    linearizer = tiled(ast_of(which, name))
    inputs = [x.ravel() for x in used(linearizer, which)]
    barriers = [u for u in linearizer.uops if u.op is UOps.BARRIER]
    assert len(barriers) >= 4
    for barrier in barriers:
        without = [u for u in linearizer.uops if u is not barrier]
        out = np.zeros(np.prod(shape_of(which, name)), np.float32)
        with pytest.raises((RaceError, AccessError)):
            interpret(without, [out, *inputs])


# -- tiles that are left out -----------------------------------------------------------------------


def limits(linearizer: Linearizer, which: str) -> list[int]:
    """The first or last tile of each block."""
    kernel = linearizer.scheduled
    (loop,) = last_reduce(kernel).loops[:1]
    limit = getattr(loop, which)
    block = the_output(kernel).loops[0].range
    return [limit.substitute({block: block.size * 0 + i}).arg for i in range(block.size.arg)]


def test_tiles_that_a_causal_mask_empties_are_left_out() -> None:
    """A query goes up to its own key, a key begins with its own query; the longest way first."""
    which = AttentionGradients(64, 64, 8, causal=True)
    assert limits(tiled(which.query()), "end") == list(range(8, 0, -1))
    assert limits(tiled(which.key()), "start") == list(range(8))
    assert limits(tiled(which.value()), "start") == list(range(8))
    number = store(log_of_sums(masked_scores(load(1, 64, 8), load(2, 64, 8), causal=True)))
    assert limits(tiled(number, ROWS), "end") == list(range(8, 0, -1))


def test_the_same_where_operands_are_rounded() -> None:
    """What is masked is 0, and rounded it still is. Tiles have 16 rows and 32 terms."""
    which = AttentionGradients(64, 64, 8, causal=True)
    chosen = warps(1, 4, 1, 8, MMA_TF32)
    assert limits(tiled(which.query(), chosen), "end") == [2, 2, 1, 1]
    assert limits(tiled(which.key(), chosen), "start") == [0, 0, 1, 1]
    assert limits(tiled(which.value(), chosen), "start") == [0, 0, 1, 1]


def test_where_a_row_may_have_no_score_no_tile_of_its_sum_is_left_out() -> None:
    """Rows without a score are as many of the lowest number, not as many as are in some tiles."""
    q, k = load(1, 40, 8), load(2, 40, 8)
    scores = matmul(q, k.permute((1, 0)))
    seen = no_later((40, 40)).pad(((8, 0), (0, 0))).shrink(((0, 40), (0, 40)))
    low = LazyOp(TernaryOps.WHERE, (seen, scores, constant(-1e30, scores.shape)))
    ast = store(log_of_sums(low))
    linearizer = tiled(ast, ROWS)
    assert last_reduce(linearizer.scheduled).loops[0].end is None
    x = np.ones((40, 8), np.float32)
    found = results(linearizer, (x, x), (40, 1))
    counts = np.maximum(np.arange(40) - 7, 0)
    expected = np.where(counts > 0, 8 + np.log(np.maximum(counts, 1)), -1e30)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)


# -- which kernels there are -----------------------------------------------------------------------


def gradients(
    positions: int, depth: int, dtype: str, mask: str, heads: int = 2, groups: int = 1
) -> list[LazyBuffer]:
    """Of query, key and value, not computed yet."""

    def operand(count: int) -> Tensor:
        shape = (1, count, positions, depth)
        return Tensor(np.zeros(shape, np.float32)).cast(dtype).realize().requires_grad_()

    q, k, v = operand(heads), operand(heads // groups), operand(heads // groups)
    given = {}
    if mask == "kept":
        given["attn_mask"] = Tensor(np.ones((positions, positions), bool)).realize()
    elif mask == "added":
        given["attn_mask"] = Tensor(np.ones((positions, positions), np.float32)).cast(dtype)
        given["attn_mask"].realize()
    result = q.scaled_dot_product_attention(
        k, v, is_causal=mask == "causal", enable_gqa=groups > 1, **given
    )
    upstream = operand(heads).detach()
    return [x.lazydata for x in result.gradient(q, k, v, gradient=upstream)]


@pytest.fixture
def blocks_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is made and cut for a GPU."""
    monkeypatch.setattr(fusion, "target_of", lambda device: LARGE)


@pytest.mark.usefixtures("blocks_of_threads")
def test_attention_of_any_length_is_one_kernel_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    chains = []
    for n in (200, 230, 211, 251, 140):
        x = Tensor.empty(16, n, 64)
        items = fusion.make_schedule([x.scaled_dot_product_attention(x, x).lazydata]).items
        chains.append(items[-1].ast)
        assert can_fuse_reduces(lower(items[-1].ast, "chain"))
    assert [bool(ast.vars()) for ast in chains] == [False] + [True] * 4
    assert work.plans == 2


@pytest.mark.usefixtures("blocks_of_threads")
@pytest.mark.parametrize("mask", ["none", "causal", "kept", "added"])
@pytest.mark.parametrize(("depth", "dtype"), [(64, "float32"), (128, "bfloat16"), (80, "float16")])
def test_nothing_in_memory_is_as_large_as_the_scores(mask: str, depth: int, dtype: str) -> None:
    heads, positions = 2, 2048
    items = fusion.make_schedule(gradients(positions, depth, dtype, mask, heads)).items
    most = max(buffer.size for item in items for buffer in item.outputs)
    assert most == heads * positions * depth
    chains = [i.ast for i in items if any(n.op is BufferOps.STAGE for n in i.ast.toposort())]
    assert len(chains) == 5  # the result, the number of each row, three gradients
    for ast in chains:
        assert can_fuse_reduces(lower(ast, "chain"))
        linearizer = Linearizer(ast, LARGE).linearize()
        assert any(opt.primitive == "fuse_reduces" for opt in linearizer.opts)
        assert any(opt.primitive == "limit" for opt in linearizer.opts) == (mask == "causal")
        assert any(u.op is UOps.MMA for u in linearizer.uops) == (dtype != "float32")


@pytest.mark.usefixtures("blocks_of_threads")
def test_heads_that_share_a_key_and_a_value() -> None:
    nodes = gradients(2048, 64, "float32", "none", heads=6, groups=3)
    items = fusion.make_schedule(nodes).items
    assert max(buffer.size for item in items for buffer in item.buffers) == 6 * 2048 * 64


@pytest.mark.usefixtures("blocks_of_threads")
def test_scores_that_are_not_much_larger_than_what_they_are_made_of_are_stored() -> None:
    items = fusion.make_schedule(gradients(256, 64, "float32", "none", heads=16)).items
    assert max(buffer.size for item in items for buffer in item.buffers) == 16 * 256 * 256


@pytest.mark.usefixtures("blocks_of_threads")
def test_a_hidden_layer_with_long_sums_is_computed_once() -> None:
    """What several kernels want is stored where it takes many operations."""
    x, first, second = (
        Tensor(np.zeros(shape, np.float32)).realize().requires_grad_()
        for shape in ((8192, 512), (512, 4096), (4096, 512))
    )
    hidden = (x @ first).relu()
    grads = (hidden @ second).gradient(first, second, gradient=Tensor.ones(8192, 512))
    del hidden
    items = fusion.make_schedule([grad.lazydata for grad in grads]).items
    assert not any(n.op is BufferOps.STAGE for item in items for n in item.ast.toposort())
