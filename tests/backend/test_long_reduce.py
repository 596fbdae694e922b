"""Long reduces to few results are split in two; the answer is the same as of one."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule import GlobalCounters, Tensor, Variable
from ferrule.fusion.graph import toposort
from ferrule.ops import ReduceOps


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1 << 19,), None),
        ((3, 1 << 18), 1),
        ((640, 700), None),
        ((2, 262147), 1),
        ((4096, 300), 0),
        ((4099, 300), 0),
    ],
)
def test_sum_and_max(shape: tuple[int, ...], axis: int | None, device: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = Tensor(values, device=device)
    np.testing.assert_array_equal(x.max(axis).numpy(), values.max(axis))
    expected = values.astype(np.float64).sum(axis)
    np.testing.assert_allclose(x.sum(axis).numpy(), expected, rtol=1e-4, atol=1e-2)


def test_half_precision_rounds_once(device: str) -> None:
    values = np.random.default_rng(0).random(1 << 18).astype(np.float16)
    total = Tensor(values, device=device).sum()
    expected = values.astype(np.float64).sum()
    assert abs(total.item() - expected) <= np.spacing(np.float16(60000)) or np.isinf(total.item())


def test_rows_are_added_up_in_parts_but_products_are_not(device: str) -> None:
    rows = np.random.default_rng(0).standard_normal((4096, 300)).astype(np.float32)
    bias, scale = np.arange(300, dtype=np.float32), rows[:, :1]
    x, b, s = (Tensor(a, device=device).realize() for a in (rows, bias, scale))
    GlobalCounters.reset()
    np.testing.assert_allclose((x + b).sum(0).numpy(), (rows + bias).sum(0), rtol=1e-4, atol=0.02)
    assert GlobalCounters.kernel_count == 2
    GlobalCounters.reset()
    product = (s.expand(4096, 300) * b.expand(4096, 300)).sum(0)
    np.testing.assert_allclose(product.numpy(), scale.sum() * bias, rtol=1e-4, atol=0.5)
    assert GlobalCounters.kernel_count == 1


def test_a_long_sum_is_two_kernels(device: str) -> None:
    x = Tensor(np.ones(1 << 18, np.float32), device=device).realize()
    GlobalCounters.reset()
    assert x.sum().item() == 1 << 18
    assert GlobalCounters.kernel_count == 2


def test_what_parts_leave_over_is_combined_by_the_second_kernel(device: str) -> None:
    values = np.ones(262147, np.float32)  # a prime: no number of parts divides it
    values[-1] = 3
    x = Tensor(values, device=device).realize()
    for method, expected in (("sum", 262149), ("max", 3), ("prod", 3)):
        GlobalCounters.reset()
        assert getattr(x, method)().item() == expected
        assert GlobalCounters.kernel_count == 2


def test_it_is_one_node_until_it_is_planned(device: str) -> None:
    x = Tensor(np.ones(1 << 18, np.float32), device=device).realize()
    below = toposort([x.sum().lazydata])
    assert [node.op for node in below if node.op is ReduceOps.SUM] == [ReduceOps.SUM]


def test_a_sum_that_is_needed_again_is_stored(device: str) -> None:
    x = Tensor(np.ones(1 << 18, np.float32), device=device).realize()
    total = x.sum()
    later = (total * 2).exp2()
    assert (total + 1).item() == (1 << 18) + 1
    for again, expected in ((total * 2, 1 << 19), (later, np.inf)):
        GlobalCounters.reset()
        assert again.item() == expected
        assert GlobalCounters.global_mem < x.nbytes


@pytest.mark.parametrize("shape", [(262147,), (3, 131101)])
def test_what_waits_for_a_long_sum_is_shared_out(shape: tuple[int, ...], device: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = Tensor(values, device=device).realize()
    centred = values - values.astype(np.float64).mean()
    np.testing.assert_allclose((x - x.mean()).numpy(), centred, atol=1e-5)
    weights = np.exp(values - values.max().astype(np.float64))
    total = weights.sum(-1, keepdims=True)
    np.testing.assert_allclose((x - x.max()).exp().sum(-1).numpy(), total[..., 0], rtol=1e-4)


@pytest.mark.parametrize("method", ["sum", "max"])
def test_a_sum_of_a_variable_number_of_elements_is_two_kernels(method: str, device: str) -> None:
    """Parts, and what they leave over: none of either, one, as many as there are parts but one."""
    values = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    x = Tensor(values, device=device).realize()
    n = Variable("n", 1, 300_000)
    for size in (1, 63, 64, 65, 200_000, 262_143, 300_000):
        GlobalCounters.reset()
        found = getattr(x[: n.bind(size)], method)().item()
        assert GlobalCounters.kernel_count == 2
        expected = getattr(values[:size].astype(np.float64), method)()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)
