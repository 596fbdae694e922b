"""Reduces along rows and columns: which loop has the lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import exp, load, mul, softmax, store, total, widened
from tests.planning import forget
from tests.programs import HOST
from tests.roles import of_kind, partials, reduces, the_output

from ferrule import Tensor, Variable
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.kernel import MONOIDS, Kernel, Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.dtype import dtypes
from ferrule.fusion import make_schedule
from ferrule.ir.expr import ExprOp, step_along
from ferrule.ops import LazyOp


def kernels(value: Tensor) -> list[Kernel]:
    forget()  # plans for any length have other kernels
    items = make_schedule([value.lazydata]).items
    return [schedule(lower(item.ast, "k"), HOST).kernel for item in items]


@pytest.mark.parametrize("channels", [4, 16, 64])
def test_what_is_the_same_for_all_terms_is_no_reason_for_lanes_along_channels(
    channels: int,
) -> None:
    """The gradient of a batch normalisation: each lane would read another page of the image."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((8, channels, 16, 16)).astype(np.float32)).realize()
    grad, weight, mean, variance = (
        Tensor(rng.random(shape).astype(np.float32)).realize()
        for shape in ((8, channels, 16, 16), *[(1, channels, 1, 1)] * 3)
    )
    slope = grad * weight
    total = (slope * (x - mean)).sum((0, 2, 3), keepdim=True)
    other = (slope / (variance + 1e-5).sqrt()).sum((0, 2, 3), keepdim=True)
    result = slope - total * (x - mean) - other
    found = [(k, o) for k in kernels(result) for n in k.nests for o in of_kind(n, Kind.VECTOR)]
    assert found
    # Channels are as many as nothing else.
    assert all(k.origin(lane.range).size.max != channels for k, lane in found)


@pytest.mark.parametrize(("most", "staged"), [(1024, True), (1 << 20, False)])
def test_a_row_of_unknown_length_is_staged_if_the_longest_may_be(most: int, staged: bool) -> None:
    """Else each power of a softmax is computed twice."""
    ast = store(softmax(load(1, 64, Variable("n", 1, most)), 1))
    kernel = schedule(lower(ast, "k"), HOST).kernel
    assert ("sum1.row" in kernel.computes) == staged


def test_what_is_the_same_for_all_that_is_picked_from_a_row_is_computed_once() -> None:
    """Also where the index, and so whether it is one, is another one in each row."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((4, 6, 40)).astype(np.float32)).realize()
    index = rng.integers(0, 40, (6, 61))
    picked = x.log_softmax(-1).gather(2, Tensor(index).realize().expand(4, 6, 61))
    (kernel,) = kernels(picked)
    assert {n.at for n in reduces(kernel)} == {(the_output(kernel).name, 2)}
    rows = x.numpy().astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    expected = np.take_along_axis(rows, np.broadcast_to(index, (4, 6, 61)), -1)
    np.testing.assert_allclose(picked.numpy(), expected, rtol=1e-5, atol=1e-6)


def normals(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


@pytest.mark.parametrize("shape", [(262147,), (4, 131101)])
def test_what_all_results_wait_for_is_computed_again_for_each_chunk(shape: tuple[int, ...]) -> None:
    """The last step of a long sum: done once, it would leave all the rest to one thread."""
    x = normals(*shape)
    (_, rest) = kernels(x - x.sum())
    (root,) = rest.roots
    assert root.loops[0].kind is Kind.PARALLEL
    assert root.loops[0].range.size.arg >= HOST.max_threads
    assert {n.at for n in rest.nests if n is not root} == {(root.name, 1)}


def test_the_last_chunk_of_results_ends_where_the_results_do() -> None:
    """It read whole rows beyond them, under an empty mask: slow where no page is mapped there."""
    x = normals(1000, 1000)
    found = [
        k for k in kernels(x.var()) if any(o.loops[0].peel is not None for o in k.roots if o.loops)
    ]
    assert found
    for kernel in found:
        (root,) = kernel.roots
        assert root.loops[1].end is not None
    np.testing.assert_allclose(x.var().item(), x.numpy().var(ddof=1), rtol=1e-5)


def test_a_sum_over_rows_of_what_each_row_reduces_has_lanes() -> None:
    """As a divergence of softmaxes: its terms were computed one by one."""
    x, y = normals(64, 100), normals(64, 100) * 2
    total = (y.softmax(1) * (y.log_softmax(1) - x)).sum()
    found = kernels(total)
    hosts = {n.at[0] for k in found for n in k.nests if n.at is not None}
    assert hosts & {nest.name for k in found for nest in partials(k)}
    sums = [
        n for k in found for n in k.nests if any(c.monoid is MONOIDS["sum"] for c in n.computes)
    ]
    assert all(of_kind(nest, Kind.VECTOR) for nest in sums)
    a, b = (part.numpy().astype(np.float64) for part in (x, y))
    log_of_b = b - np.log(np.exp(b).sum(1, keepdims=True))
    np.testing.assert_allclose(total.item(), (np.exp(log_of_b) * (log_of_b - a)).sum(), rtol=1e-5)


def test_a_mask_or_what_it_leaves_is_no_reason_for_lanes_along_the_terms() -> None:
    """The mean of the rows that a mask leaves: x was read one element of a row at a time."""
    x, mask = normals(8, 40, 48), normals(8, 40)
    mean = (x * mask.unsqueeze(2)).sum(1) / (mask * mask).sum(1, keepdim=True)
    (kernel,) = kernels(mean)
    (weighted,) = (n for n in reduces(kernel) if n.result_axes)
    lanes = of_kind(weighted, Kind.VECTOR)
    assert lanes
    assert {kernel.origin(lane.range).size.arg for lane in lanes} == {48}, "columns of x"
    assert any(n.at == (the_output(kernel).name, 1) for n in kernel.nests)
    a, m = (part.numpy().astype(np.float64) for part in (x, mask))
    expected = np.einsum("bij,bi->bj", a, m) / (m * m).sum(1, keepdims=True)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_what_is_as_much_work_as_a_chunk_is_computed_once() -> None:
    x, few = normals(60000), normals(12000)
    (kernel,) = kernels(x * few.sum())
    (root,) = kernel.roots
    assert {n.at for n in kernel.nests if n is not root} == {(root.name, 0)}


def halves(x: LazyOp) -> LazyOp:
    """Numbers of 16 bits, as many as x has, as float32."""
    return widened(load(1, *x.shape, dtype=dtypes.float16))


@pytest.mark.parametrize(
    ("of", "shape", "streams", "lanes"),
    [
        (lambda x: total(x, 1), (1024, 16384), 2, 16),  # from memory
        (lambda x: total(mul(x, x), 1), (1024, 16384), 2, 16),
        (lambda x: total(halves(x), 1), (1024, 32768), 2, 16),
        (lambda x: total(mul(x, load(2, *x.shape)), 1), (1024, 16384), 1, 8),  # two streams anyway
        (lambda x: total(x, 1), (4096, 4096), 1, 8),  # parts would be short: half lines
        (lambda x: total(x, 1), (1024, 16392), 1, 8),  # parts would leave a rest
        (lambda x: total(halves(x), 1), (8192, 4096), 1, 16),  # are half a line
        (lambda x: total(x, 1), (1024, 4096), 1, 16),  # from a cache
        (lambda x: total(exp(x), 1), (4096, 4096), 1, 16),  # powers take longer
        (lambda x: softmax(x, 1), (4096, 4096), 1, 16),  # the row is read again
    ],
)
def test_what_waits_for_memory_alone_reads_two_parts_side_by_side(
    of: Callable[[LazyOp], LazyOp], shape: tuple[int, int], streams: int, lanes: int
) -> None:
    """The processor looks ahead in each of them; loads of whole lines of one overtake it."""
    kernel = schedule(lower(store(of(load(1, *shape))), "k"), TARGET).kernel
    first = kernel.nests[0]
    assert [o.range.size.arg for o in first.loops if o.kind is Kind.VECTOR] == [lanes]
    copies = [o.range.size.arg for o in first.loops if o.kind is Kind.UNROLL]
    assert copies[:-1] == ([streams] if streams > 1 else [])


def test_sums_of_two_parts_side_by_side() -> None:
    x = normals(70, 1 << 17)
    np.testing.assert_allclose(x.sum(1).numpy(), x.numpy().sum(1, np.float64), atol=1e-2)
    np.testing.assert_array_equal(x.max(1).numpy(), x.numpy().max(1))


def _sums_of_pieces(h: Tensor, weights: Tensor, at: Tensor) -> Tensor:
    return (Tensor.cat(*(h * w for w in weights)) * weights.reshape(-1)).sum(0, keepdim=True)


def _picked_pieces(h: Tensor, weights: Tensor, at: Tensor) -> Tensor:
    return Tensor.cat(*(h * w for w in weights)).gather(0, at)


def _picked_from_each_row(h: Tensor, weights: Tensor, at: Tensor) -> Tensor:
    pieces = Tensor.stack(*(h + w for w in weights), dim=1)
    return pieces.gather(1, at.expand(len(h), 1)).sum(1)


@pytest.mark.parametrize("step", [_sums_of_pieces, _picked_pieces, _picked_from_each_row])
def test_a_value_put_at_several_places_is_one_value(
    step: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    """In a chain of such steps, a value for each of the places would be one for each path."""

    def lines(depth: int) -> int:
        h = normals(1)
        for _ in range(depth):
            h = step(h, normals(4, 1), Tensor([2]).realize())
        items = make_schedule([(h + 1).lazydata]).items
        programs = [Linearizer(item.ast, HOST).linearize().program() for item in items]
        return sum(len(program.splitlines()) for program in programs)

    assert lines(6) < 3 * lines(3)


def test_lanes_of_a_double_sum_are_along_the_loop_with_neighbours() -> None:
    """Each term of the inner sum is a column's, which lanes along that sum would gather."""
    full = (8, 64, 48)
    left, right = (
        load(1, 8, 1, 48).expand(full),
        load(2, 48, 64).permute((1, 0)).reshape((1, 64, 48)),
    )
    kernel = schedule(lower(store(total(total(mul(left, right.expand(full)), 2), 1)), "k"), HOST)
    (nest,) = partials(kernel.kernel)
    (lane,) = (loop.range for loop in nest.loops if loop.kind is Kind.VECTOR)
    found = [e for e in nest.nodes if e.op is ExprOp.LOAD and lane in e.ranges]
    assert found
    assert all(step_along(e.src[0], lane) == 1 for e in found)


@pytest.mark.parametrize("shape", [(20_000, 8), (5000, 3), (4097, 10)])
def test_results_of_few_columns_have_several_sums_each(shape: tuple[int, int]) -> None:
    """One sum in a register would wait for the term before."""
    rng = np.random.default_rng(0)
    given = rng.standard_normal(shape).astype(np.float32)
    x = Tensor(given).realize()
    for value, expected in (
        (x.sum(0), given.astype(np.float64).sum(0)),
        (x.max(0), given.max(0)),
        (x.var(0), given.astype(np.float64).var(0, ddof=1)),
    ):
        found = [n for k in kernels(value) for n in k.nests if n.name.endswith(".p")]
        assert found
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-3)
