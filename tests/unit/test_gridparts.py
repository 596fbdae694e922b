"""Sums in parts: when they pay, and that two kernels give what one gives."""

from __future__ import annotations

import numpy as np
import pytest
from tests.blocks import GRID
from tests.gpus import LARGE as GPU
from tests.kernels import Array, load, matmul, mul, reduce, store, sub, total, widened

from ferrule import GlobalCounters, Tensor, fusion
from ferrule.codegen.interpret import interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.schedules.gpu.split_reduce import Parts, parts_of
from ferrule.dtype import DType, dtypes
from ferrule.fusion.long_reduces import in_parts, numbered, parts_of_long_reduce
from ferrule.ir.expr import Variable
from ferrule.ir.target import Target
from ferrule.ops import BufferOps, LazyOp, MemBuffer, ReduceOps, UnaryOps


def parts(ast: LazyOp, target: Target = GPU) -> tuple[int, int] | None:
    found = parts_of(ast, target)
    return None if found is None else (found.axis, found.count)


def column_sum(rows: int, columns: int) -> LazyOp:
    return store(total(load(1, rows, columns), 0))


def test_long_columns_are_worth_parts() -> None:
    found = parts(column_sum(32768, 512))
    assert found is not None
    assert found[0] == 0
    assert 4 <= found[1] <= 64


@pytest.mark.parametrize(
    "ast",
    [
        column_sum(64, 64),  # so little that a second kernel takes longer
        column_sum(4096, 4096),  # a block for each multiprocessor, which has many loads under way
        column_sum(4096, 1 << 20),  # as many results as the device has threads
        store(total(load(1, 8192, 1024), 1)),  # and as many threads for fewer of them
        store(total(load(1, 8191, 4096), 0)),  # a prime number of rows
        store(matmul(load(1, 4096, 4096), load(2, 4096, 4096))),
        store(load(1, 4096, 4096)),
    ],
)
def test_where_parts_gain_nothing(ast: LazyOp) -> None:
    assert parts(ast) is None


def test_outer_axes_are_split_first() -> None:
    found = parts(store(total(load(1, 512, 64, 2048), 0, 2)))
    assert found is not None
    assert found[0] == 0


def test_parts_of_a_row_keep_neighbours_together() -> None:
    found = parts(store(total(load(1, 16, 3 * (1 << 16)), 1)))
    assert found is not None
    assert 3 * (1 << 16) // found[1] % 8 == 0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_products_of_few_rows_and_columns_are_in_parts(dtype: DType) -> None:
    a, b = load(1, 64, 1 << 16, dtype=dtype), load(2, 1 << 16, 64, dtype=dtype)
    wide = (a, b) if dtype is dtypes.float32 else (widened(a), widened(b))
    found = parts(store(matmul(*wide)))
    assert found is not None
    assert found[1] >= 32


def test_sizes_that_vary_are_left_alone() -> None:
    n = Variable("n", 1, 1 << 20)
    assert parts(store(total(load(1, n, 64), 0))) is None


def test_a_reduce_that_another_needs_is_left_alone() -> None:
    x = load(1, 1 << 16, 64)
    top = reduce(ReduceOps.MAX, x, 0)
    spread = sub(x, top.expand(x.shape))
    assert parts(store(total(mul(spread, spread), 0))) is None


def test_reduces_over_different_axes_are_left_alone() -> None:
    a, b = total(load(1, 1 << 16, 64), 0), total(load(2, 64, 1 << 16), 1)
    assert parts(store(sub(a, b.permute((1, 0))))) is None


# -- by shape alone, on any device -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((1 << 17,), {0}, (0, 64)),
        (((1 << 17) - 1,), {0}, None),
        ((1 << 23,), {0}, (0, 128)),  # so that a part has fewer than 2**17
        (((1 << 23) - 1,), {0}, (0, 64)),
        ((1 << 30,), {0}, (0, 256)),
        ((31, 131_101), {1}, (1, 64)),
        ((32, 131_101), {1}, None),
        ((640, 700), {0, 1}, (0, 64)),  # the least divisor that is enough
        ((8192, 8193), {0, 1}, (0, 256)),  # of 511 parts many elements would be left over
        ((40, 4099), {0, 1}, (0, 40)),
        ((400, 401), {0, 1}, (0, 80)),
        ((512, 513), {0, 1}, (0, 64)),  # contiguous parts, not 171 of three columns
        ((37, 65, 129), {0, 1, 2}, (0, 37)),
        ((997, 1000), {0, 1}, (0, 62)),  # 16 rows each, and 5 left over
        ((3, 224, 224), {0, 1, 2}, (1, 112)),
        ((24, 20, 301), {0, 1, 2}, (2, 301)),  # no axis has many parts: the largest
    ],
)
def test_long_reduces_are_split_by_their_shapes(
    shape: tuple[int, ...], axes: set[int], expected: tuple[int, int] | None
) -> None:
    assert parts_of_long_reduce(shape, frozenset(axes)) == expected


# -- what both kernels give ------------------------------------------------------------------------


def run(ast: LazyOp, inputs: list[Array], results: Array, axis: int, count: int) -> LazyOp:
    """Interprets both kernels; what the second stores is in `results`. The first's AST."""
    reduces = tuple(node for node in ast.toposort() if isinstance(node.op, ReduceOps))
    first, second = in_parts(ast, Parts(reduces, axis, count), 1 + len(inputs))
    stores = first.src if first.op is BufferOps.SINK else (first,)
    storage = {dtypes.float32: np.float32, dtypes.int32: np.int32}
    shapes = [node.src[0].shape for node in stores]
    memory = [
        np.full(int(np.prod(shape)), 99, storage[node.arg.dtype])
        for node, shape in zip(stores, shapes, strict=True)
    ]
    buffers = [results, *(x.ravel() for x in inputs), *memory]
    for kernel in (first, second):
        renumbered, old = numbered(kernel)
        linearizer = Linearizer(renumbered, GRID).linearize()
        interpret(linearizer.uops, [buffers[number] for number in old])
    return first


@pytest.mark.parametrize(("axis", "count"), [(0, 4), (0, 12), (1, 2), (1, 15)])
def test_parts_of_any_axis_give_the_sum(axis: int, count: int) -> None:
    values = np.random.default_rng(0).standard_normal((12, 30, 20)).astype(np.float32)
    out = np.zeros(20, np.float32)
    ast = store(LazyOp(UnaryOps.NEG, (total(load(1, 12, 30, 20), 0, 1),)))
    first = run(ast, [values], out, axis, count)
    np.testing.assert_allclose(out, -values.sum((0, 1)), rtol=2e-5, atol=1e-5)
    assert first.src[0].shape == (count, 1, 1, 20)


def test_parts_of_a_product_of_matrices() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((24, 96)).astype(np.float32)
    b = generator.standard_normal((96, 20)).astype(np.float32)
    out = np.zeros(24 * 20, np.float32)
    ast = store(matmul(load(1, 24, 96), load(2, 96, 20)))
    (product,) = (node for node in ast.toposort() if isinstance(node.op, ReduceOps))
    axis = next(i for i, n in enumerate(product.shape) if n != product.src[0].shape[i])
    run(ast, [a, b], out, axis, 4)
    np.testing.assert_allclose(out.reshape(24, 20), a @ b, rtol=1e-4, atol=1e-5)


def test_two_reduces_of_one_pass_are_in_parts_together() -> None:
    values = np.random.default_rng(0).standard_normal((60, 20)).astype(np.float32)
    x, out = load(1, 60, 20), np.zeros(20, np.float32)
    ast = store(sub(total(mul(x, x), 0), reduce(ReduceOps.MAX, x, 0)))
    first = run(ast, [values], out, 0, 6)
    np.testing.assert_allclose(out, (values * values).sum(0) - values.max(0), rtol=2e-5)
    assert len(first.src) == 2


def test_nan_and_infinity_get_through() -> None:
    values = np.full((64, 8), -np.inf, np.float32)
    values[40, 1], values[3, 2] = np.nan, 5.0
    out = np.zeros(8, np.float32)
    run(store(reduce(ReduceOps.MAX, load(1, 64, 8), 0)), [values], out, 0, 8)
    np.testing.assert_array_equal(out, values.max(0))


def test_parts_of_narrow_floats_are_wide() -> None:
    """Else each part would be rounded: 2049 is no float16."""
    values = np.ones((2 * 2049, 8), np.float16)
    x = load(1, 2 * 2049, 8, dtype=dtypes.float16)
    ast = store(total(x, 0))
    (added,) = (node for node in ast.toposort() if isinstance(node.op, ReduceOps))
    first, second = in_parts(ast, Parts((added,), 0, 2), 2)
    assert first.arg == MemBuffer(2, dtypes.float32, first.arg.st)
    assert second.src[0].dtype is dtypes.float16
    memory, out = np.zeros(16, np.float32), np.zeros(8, np.float16)
    buffers = [out, values.ravel(), memory]
    for kernel in (first, second):
        renumbered, old = numbered(kernel)
        uops = Linearizer(renumbered, GRID).linearize().uops
        interpret(uops, [buffers[number] for number in old])
    assert memory[0] == 2049
    assert out[0] == 4098 - 2  # the nearest float16 that is even


def test_the_old_contents_of_the_result_are_read_by_the_second_kernel() -> None:
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    out = np.ones(8, np.float32)
    ast = store(sub(load(0, 1, 8), total(load(1, 6, 8), 0)))
    run(ast, [values], out, 0, 3)
    np.testing.assert_array_equal(out, 1 - values.sum(0))


# -- scatters --------------------------------------------------------------------------------------


def scatter(
    shape: tuple[int, ...],
    axis: int,
    size: int,
    *how: str,
    dtype: DType = dtypes.float32,
    base: LazyOp | None = None,
) -> LazyOp:
    places = load(2, *shape, dtype=dtypes.int32)
    values = (load(1, *shape, dtype=dtype), places, *([] if base is None else [base]))
    return store(LazyOp(ReduceOps.SCATTER, values, (axis, size, *how)))


def test_scatters_to_few_places_are_worth_parts() -> None:
    found = parts(scatter((1_000_000,), 0, 256))
    assert found is not None
    assert found[1] >= 256


@pytest.mark.parametrize(
    "ast",
    [
        scatter((8192, 768), 0, 50257),  # to so many that each part of them takes longer
        scatter((2,), 0, 256),
        scatter((1_000_000,), 0, 256, "last"),  # the order of all of them counts
        scatter((1_000_000,), 0, 256, dtype=dtypes.bool),
        scatter((1_000_000,), 0, 256, base=load(0, 256)),
    ],
)
def test_scatters_that_are_left_alone(ast: LazyOp) -> None:
    assert parts(ast) is None


@pytest.mark.parametrize(("how", "combine"), [("add", np.add), ("max", np.maximum)])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_scatter(how: str, combine: np.ufunc, axis: int) -> None:
    shape, size = (24, 36), 7
    generator = np.random.default_rng(0)
    values = generator.integers(-9, 9, shape).astype(np.float32)
    places = generator.integers(-1, size + 1, shape).astype(np.int32)
    start = 0 if how == "add" else -np.inf
    expected = np.full((size, 36) if axis == 0 else (24, size), start, np.float32)
    for index in np.ndindex(*shape):
        place = places[index]
        at = (place, index[1]) if axis == 0 else (index[0], place)
        if 0 <= place < size:
            expected[at] = combine(expected[at], values[index])
    out = np.zeros(expected.size, np.float32)
    run(scatter(shape, axis, size, how), [values, places], out, axis, 6)
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)


# -- whole schedules -------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules as for a GPU, whose kernels the oracle runs."""
    monkeypatch.setattr(fusion, "target_of", lambda device: GPU)


def counted(x: Tensor) -> tuple[Array, int]:
    GlobalCounters.reset()
    return x.numpy(), GlobalCounters.kernel_count


@pytest.mark.usefixtures("gpu")
def test_a_column_sum_and_its_epilogue_are_two_kernels() -> None:
    values = np.random.default_rng(0).standard_normal((6144, 300)).astype(np.float32)
    x = Tensor(values, device="NUMPY").realize()
    found, count = counted(x.sum(0) * 2 + 1)
    np.testing.assert_allclose(found, values.sum(0) * 2 + 1, rtol=1e-4, atol=1e-3)
    assert count == 2
    found, count = counted(x.var(0))
    np.testing.assert_allclose(found, values.var(0, ddof=1), rtol=1e-4)
    assert count == 4


@pytest.mark.usefixtures("gpu")
def test_parts_of_two_reduces_are_one_pass_over_memory() -> None:
    """A variance is a sum of squares and one of distances, both from the mean."""
    values = np.random.default_rng(0).standard_normal((64, 30_000)).astype(np.float32)
    x = Tensor(values, device="NUMPY").realize()
    found, count = counted(x.var(1))
    np.testing.assert_allclose(found, values.var(1, ddof=1), rtol=1e-4)
    assert count <= 4
    assert GlobalCounters.global_mem < 2.1 * x.nbytes


@pytest.mark.usefixtures("gpu")
def test_an_update_reads_the_old_version_before_it_is_replaced() -> None:
    values = np.random.default_rng(0).standard_normal((1200, 1500)).astype(np.float32)
    x, bias = Tensor(values, device="NUMPY"), Tensor.ones(1500, device="NUMPY").realize()
    bias.assign(bias - x.sum(0))
    np.testing.assert_allclose(bias.numpy(), 1 - values.sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("gpu")
def test_many_parts_are_combined_in_parts() -> None:
    places = np.random.default_rng(0).integers(0, 256, 1_000_000).astype(np.int32)
    found, count = counted(Tensor(places, device="NUMPY").bincount(minlength=256))
    np.testing.assert_array_equal(found, np.bincount(places, minlength=256))
    assert count >= 3


@pytest.mark.usefixtures("gpu")
def test_narrow_factors_of_products_are_not_stored_as_wide_ones() -> None:
    a, b = (Tensor.ones(512, 512, dtype=dtypes.bfloat16, device="NUMPY").realize() for _ in "ab")
    found, count = counted((a @ b).cast(dtypes.float32))
    np.testing.assert_array_equal(found, np.full((512, 512), 512, np.float32))
    assert count == 1


@pytest.mark.usefixtures("gpu")
def test_rows_that_blocks_have_are_normalised_in_one_kernel() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((2048, 96)).astype(np.float32)
    found, count = counted(Tensor(values, device="NUMPY").realize().layernorm())
    expected = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert count == 1


@pytest.mark.usefixtures("gpu")
def test_long_sums_are_in_memory_before_they_are_normalised() -> None:
    generator = np.random.default_rng(0)
    values, weight = (generator.standard_normal(n).astype(np.float32) for n in (768, (768, 768)))
    x, w = (Tensor(a, device="NUMPY").realize() for a in (values.reshape(1, 768), weight))
    _, product = counted(x + x @ w)
    rows = x + x @ w
    found, count = counted(rows.layernorm())
    expected = values + values @ weight
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(found[0], expected, rtol=1e-2, atol=1e-2)
    assert count == product + 1


@pytest.mark.usefixtures("gpu")
def test_a_long_sum_is_not_computed_again_for_what_waits_for_it() -> None:
    generator = np.random.default_rng(0)
    q, k, v = (
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((12, 1, 64), (12, 128, 64), (12, 128, 64))
    )
    query, key, value = (Tensor(a, device="NUMPY").realize() for a in (q, k, v))
    found, count = counted(query.scaled_dot_product_attention(key, value))
    scores = np.exp(q @ k.swapaxes(1, 2) / 8)
    np.testing.assert_allclose(found, scores / scores.sum(2, keepdims=True) @ v, atol=1e-4)
    assert count == 3  # scores, their softmax, its product


@pytest.mark.usefixtures("gpu")
def test_sums_of_many_sums_are_two_kernels() -> None:
    x = Tensor(np.ones((2048, 65), np.float32), device="NUMPY").realize()
    found, count = counted((x.sum(1) * x.max(1)).sum())
    assert found == 2048 * 65
    assert count == 2
