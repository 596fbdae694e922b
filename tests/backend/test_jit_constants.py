"""Captured functions that use what ferrule keeps for itself: random state, counted numbers."""

import numpy as np
import pytest

from ferrule import Tensor, TinyJit

pytestmark = pytest.mark.usefixtures("device")


def test_random_numbers_are_captured_and_go_on_as_without() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x + Tensor.rand(4)).realize()

    x = Tensor([0.0] * 4).realize()
    Tensor.manual_seed(3)
    plain = [noisy(x).tolist() for _ in range(6)]
    captured = TinyJit(noisy)
    Tensor.manual_seed(3)
    assert [captured(x).tolist() for _ in range(6)] == plain
    assert captured.jit_cache
    Tensor.manual_seed(3)
    assert [captured(x).tolist() for _ in range(3)] == plain[:3]


def test_replays_and_plain_calls_draw_from_one_stream() -> None:
    captured = TinyJit(lambda x: (x + Tensor.rand(2)).realize())
    x = Tensor([0.0, 0.0]).realize()
    Tensor.manual_seed(5)
    mixed = []
    for _ in range(4):
        mixed += [captured(x).tolist(), Tensor.rand(2).tolist()]
    Tensor.manual_seed(5)
    assert mixed == [Tensor.rand(2).tolist() for _ in range(8)]


def test_arange_is_captured() -> None:
    count = TinyJit(lambda x: (x + Tensor.arange(5)).realize())
    for start in range(5):
        result = count(Tensor([start] * 5).realize())
        assert result.tolist() == list(range(start, start + 5))
    assert count.jit_cache


def test_cross_entropy_is_captured() -> None:
    loss = TinyJit(lambda x, y: x.sparse_categorical_crossentropy(y).realize())
    rng = np.random.default_rng(0)
    for _ in range(4):
        scores = rng.standard_normal((3, 5)).astype(np.float32)
        labels = rng.integers(0, 5, 3)
        powers = np.exp(scores.astype(np.float64))
        expected = -np.log(powers[np.arange(3), labels] / powers.sum(1)).mean()
        found = loss(Tensor(scores).realize(), Tensor(labels).realize()).item()
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert loss.jit_cache
