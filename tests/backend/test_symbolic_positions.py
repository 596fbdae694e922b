"""Positions on axes of symbolic size: lists, arrays and tensors, counted from either end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable
from ferrule.ir.shape.view import ShapeError

Array = np.ndarray[Any, Any]
N = Variable("n", 1, 7)
X = np.arange(14, dtype=np.float32).reshape(7, 2) / 2
PLACES = np.array([0, -1, 2, -3, 1])

# Of a tensor and an array alike: the first axis is of symbolic size, or the last.
ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "a list": lambda x, index: x[[0, -1, 2, -3]],
    "an array": lambda x, index: x[PLACES],
    "a tensor": lambda x, index: x[index],
    "on both axes": lambda x, index: x[[0, -1, 2], [1, -1, -2]],
    "on both, one a tensor": lambda x, index: x[index, [1, 0, -1, -2, 1]],
    "beside a slice": lambda x, index: x[index, 1:],
    "beside an integer": lambda x, index: x[[-1, 0], -1],
}


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("name", ROWS)
def test_positions_are_numpys(device: str, name: str, size: int) -> None:
    chosen = ROWS[name]
    x = Tensor(X)[: N.bind(size)]
    np.testing.assert_array_equal(chosen(x, Tensor(PLACES)).numpy(), chosen(X[:size], PLACES))


@pytest.mark.parametrize("size", [3, 7])
def test_rows_of_symbolic_size_are_told_apart(device: str, size: int) -> None:
    x = Tensor(np.ascontiguousarray(X.T))[:, : N.bind(size)]
    own = X.T[:, :size]
    for index in ([0, 1, 1], [2, 1, 0]), ([0, -1, 1], [-1, 1, -2]):
        np.testing.assert_array_equal(x[index].numpy(), own[tuple(index)])
        np.testing.assert_array_equal(x[tuple(map(Tensor, index))].numpy(), own[tuple(index)])


def test_other_ways_to_choose(device: str) -> None:
    x, own = Tensor(X)[: N.bind(4)], X[:4]
    index = np.array([[0, -1], [-4, 2]])
    expected = np.take_along_axis(own, index, 0)
    np.testing.assert_array_equal(x.gather(0, Tensor(index)).numpy(), expected)
    rows = x.index_select(0, Tensor([-1, 0]))
    np.testing.assert_array_equal(rows.numpy(), own[[-1, 0]])
    added = x.index_add(0, Tensor([-1, 0]), Tensor(np.ones((2, 2), np.float32)))
    expected = own.copy()
    expected[[-1, 0]] += 1
    np.testing.assert_array_equal(added.numpy(), expected)


def test_writes(device: str) -> None:
    for key in ([0, 1], [-1, -2]), (1, [0, -1]):
        x, own = Tensor(np.ascontiguousarray(X.T))[:, : N.bind(5)] * 1, X.T[:, :5].copy()
        x = x.contiguous()
        x[key] = Tensor([7.0, 8.0])
        own[key] = [7, 8]
        np.testing.assert_array_equal(x.numpy(), own)


def test_gradients(device: str) -> None:
    x = Tensor(X)[: N.bind(4)].detach().requires_grad_()
    (slope,) = (x[[0, -1, -1]] * Tensor([[1.0], [2.0], [4.0]])).sum().gradient(x)
    np.testing.assert_array_equal(slope.numpy(), [[1, 1], [0, 0], [0, 0], [6, 6]])


def test_a_replay_counts_from_the_end_of_its_own_size(device: str) -> None:
    @TinyJit
    def ends(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return x[[0, -1], [-1, 0]].realize(), x[index].realize()

    for size in (3, 4, 5, 2, 7):
        first, second = ends(Tensor(X).realize()[: N.bind(size)], Tensor([-1, 0, -2]))
        np.testing.assert_array_equal(first.numpy(), X[:size][[0, -1], [-1, 0]])
        np.testing.assert_array_equal(second.numpy(), X[:size][[-1, 0, -2]])


def test_what_is_out_of_range_for_any_size_is_refused(device: str) -> None:
    x = Tensor(X)[: N.bind(3)]
    for index in ([0, 7], [-8]):
        with pytest.raises(IndexError, match="out of range for axis 0"):
            x[index]


def test_labels_of_unknown_number_are_an_error() -> None:
    n = Variable("n", 1, 5).bind(2)
    labels = Tensor(np.ones((1, 5), np.int32))[:, :n]
    scores = Tensor(np.zeros((3, 1, 4), np.float32))
    with pytest.raises(ShapeError, match=r"\[ctc_loss\] the size n=2 is symbolic"):
        scores.ctc_loss(labels, [3], [1])
