"""`FERRULE_CHECK_INDEX`: positions of tensors that are out of range, said where they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import nn
from ferrule.base.config import Context
from ferrule.helpers import GlobalCounters
from ferrule.ir.expr import Variable
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Use = Callable[[Tensor, Tensor], Tensor]


def _written(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[:, i] = -1.0
    return y


# Of positions on the second axis, whose size is 3; or of classes.
BY_POSITION: dict[str, Use] = {
    "[]": lambda x, i: x[:, i],
    "[,]": lambda x, i: x[Tensor([0, 1]), i],
    "[] = ": _written,
    "gather": lambda x, i: x.gather(1, i.reshape(2, 1)),
    "take": lambda x, i: x.take(i, dim=1),
    "take_along_dim": lambda x, i: x.take_along_dim(i.reshape(2, 1), 1),
    "index_select": lambda x, i: x.index_select(1, i),
    "scatter": lambda x, i: x.scatter(1, i.reshape(2, 1), 5.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i.reshape(2, 1), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i.reshape(2, 1), x, "amax"),
    "index_add": lambda x, i: x.index_add(1, i, x[:, :2]),
    "index_copy": lambda x, i: x.index_copy(1, i, x[:, :2]),
    "index_fill": lambda x, i: x.index_fill(1, i, 9.0),
    "index_reduce": lambda x, i: x.index_reduce(1, i, x[:, :2], "prod"),
    "index_put": lambda x, i: x.index_put((Tensor([0, 1]), i), Tensor([7.0, 8.0])),
    "put": lambda x, i: x[0].put(i, Tensor([7.0, 8.0])),
    "embedding": lambda x, i: i.embedding(x.T),
    "embedding_bag": lambda x, i: i.reshape(1, 2).embedding_bag(x.T),
    "embedding by frequency": lambda x, i: i.embedding(x.T, scale_grad_by_freq=True),
}
BY_CLASS: dict[str, Use] = {
    "one_hot": lambda x, i: i.one_hot(3),
    "cross_entropy": lambda x, i: x.cross_entropy(i),
    "nll_loss": lambda x, i: x.nll_loss(i),
    "multi_margin_loss": lambda x, i: x.multi_margin_loss(i),
    "max_unpool1d": lambda x, i: x[:, :1].max_unpool1d(i.reshape(2, 1), 3),
}
ALL = BY_POSITION | BY_CLASS


@pytest.mark.parametrize("use", ALL.items(), ids=lambda use: use[0])
def test_the_position_is_named(device: str, use: tuple[str, Use]) -> None:
    with Context(FERRULE_CHECK_INDEX=1):
        for wrong in (7, -8):
            with pytest.raises(IndexError, match=rf"the position {wrong}, element (1|\(\d, \d\)),"):
                use[1](Tensor(X), Tensor([0, wrong])).realize()


@pytest.mark.parametrize("use", ALL.items(), ids=lambda use: use[0])
def test_what_is_in_range_is_the_same(device: str, use: tuple[str, Use]) -> None:
    for right in ((0, 2), (1, 1)):
        plain = use[1](Tensor(X), Tensor(right)).numpy()
        with Context(FERRULE_CHECK_INDEX=1):
            np.testing.assert_array_equal(use[1](Tensor(X), Tensor(right)).numpy(), plain)


@pytest.mark.parametrize("use", BY_POSITION.items(), ids=lambda use: use[0])
def test_negative_positions_count_from_the_end(device: str, use: tuple[str, Use]) -> None:
    with Context(FERRULE_CHECK_INDEX=1):
        found = use[1](Tensor(X), Tensor([0, -1])).numpy()
        np.testing.assert_array_equal(found, use[1](Tensor(X), Tensor([0, 2])).numpy())


@pytest.mark.parametrize("use", ALL.items(), ids=lambda use: use[0])
def test_a_replay_looks_as_well(device: str, use: tuple[str, Use]) -> None:
    @TinyJit
    def step(x: Tensor, i: Tensor) -> Tensor:
        return use[1](x, i).realize()

    x = Tensor(X).realize()
    with Context(FERRULE_CHECK_INDEX=1):
        for _ in range(4):
            expected = step(x, Tensor([0, 1])).numpy()
        with pytest.raises(IndexError, match="the position 7"):
            step(x, Tensor([7, 1]))
        np.testing.assert_array_equal(step(x, Tensor([0, 1])).numpy(), expected)
    step(x, Tensor([7, 1]))  # the setting is part of the signature


def test_gradients_go_through(device: str) -> None:
    def loss(w: Tensor) -> Tensor:
        return (w[Tensor([0, -1, 0])] ** 2).sum() + w.T.cross_entropy(Tensor([0, 1, 1]))

    plain = ferrule.grad(loss)(Tensor(X)).numpy()
    with Context(FERRULE_CHECK_INDEX=1):
        np.testing.assert_array_equal(ferrule.grad(loss)(Tensor(X)).numpy(), plain)
        with pytest.raises(IndexError, match=r"\[index\] the position 2, element 0"):
            ferrule.grad(lambda w: w[Tensor([2])].sum())(Tensor(X)).realize()


def test_under_vmap(device: str) -> None:
    def element(row: Tensor, place: Tensor) -> Tensor:
        return row[place]

    with Context(FERRULE_CHECK_INDEX=1):
        assert ferrule.vmap(element)(Tensor(X), Tensor([2, 0])).tolist() == [2.0, 3.0]
        with pytest.raises(IndexError, match="the position 3"):
            ferrule.vmap(element)(Tensor(X), Tensor([2, 3])).realize()


def test_ignored_labels_are_no_mistake(device: str) -> None:
    with Context(FERRULE_CHECK_INDEX=1):
        assert np.isfinite(Tensor(X).cross_entropy(Tensor([-100, 1])).item())
        assert np.isfinite(Tensor(X).cross_entropy(Tensor([7, 1]), ignore_index=7).item())


def test_symbolic_sizes_are_not_looked_at(device: str) -> None:
    n = Variable("n", 1, 3).bind(2)
    with Context(FERRULE_CHECK_INDEX=1):
        assert Tensor(X)[:, :n][:, Tensor([1])].tolist() == [[1.0], [4.0]]
        places = Tensor([[0, 1, 2]])[:, :n]
        assert Tensor(X[:1]).gather(1, places).sum().item() == 1.0


def test_without_it_nothing_is_looked_at(device: str) -> None:
    table = nn.Embedding(3, 2)
    before = GlobalCounters.host_calls
    assert table(Tensor([5])).tolist() == [[0.0, 0.0]]
    assert Tensor([3]).one_hot(3).tolist() == [[0, 0, 0]]
    assert GlobalCounters.host_calls == before


def test_classes_that_are_counted_are_not_negative() -> None:
    with pytest.raises(IndexError, match=r"\[one_hot\] class indices are 0 or more, not -1"):
        Tensor([2, -1]).one_hot()


def test_gradients_by_frequency_of_negative_positions(device: str) -> None:
    def gradient(places: list[int]) -> Any:
        def loss(w: Tensor) -> Tensor:
            return Tensor(places).embedding(w, scale_grad_by_freq=True).sum()

        return ferrule.grad(loss)(Tensor(X)).tolist()

    assert gradient([-1, 1, 0]) == gradient([1, 1, 0]) == [[1.0] * 3] * 2


def test_rows_at_negative_positions_are_shortened(device: str) -> None:
    table = Tensor([[3.0, 4.0], [6.0, 8.0]])
    found = Tensor([-1]).embedding(table, max_norm=5.0).numpy()
    np.testing.assert_allclose(found, [[3.0, 4.0]], rtol=1e-5)
