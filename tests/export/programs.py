"""Captured functions that the tests of formats export, each with arguments for one more call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit, Variable, dtypes, nn

Array = np.ndarray[Any, Any]


def rand(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net:
    """Convolutions, pooling and a linear layer, of square images."""

    def __init__(self, side: int = 8, channels: tuple[int, int] = (4, 6)) -> None:
        self.c1 = nn.Conv2d(1, channels[0], 3, padding=1)
        self.c2 = nn.Conv2d(*channels, 3, padding=1)
        self.l1 = nn.Linear(channels[1] * (side // 4) ** 2, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.c1(x).relu().max_pool2d(2)
        x = self.c2(x).relu().max_pool2d(2)
        return self.l1(x.flatten(1))


def network() -> TinyJit[Any]:
    """Two results of a network, one of them of integers."""
    Tensor.manual_seed(0)
    net = Net()
    for parameter in nn.state.get_parameters(net):
        parameter.requires_grad = False

    @TinyJit
    def classify(x: Tensor) -> tuple[Tensor, Tensor]:
        y = net(x)
        return y.softmax(-1).realize(), y.argmax(-1).realize()

    for number in range(4):
        classify(Tensor(rand(3, 1, 8, 8, seed=number)))
    return classify


def training() -> TinyJit[Any]:
    """A training step, with parameters, an optimiser and random numbers as states."""
    Tensor.manual_seed(0)
    net = Net()
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).dropout(0.1).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
        return loss.realize()

    for number in range(4):
        step(Tensor(rand(4, 1, 8, 8, seed=number)), Tensor(np.arange(4, dtype=np.int32)))
    return step


def lengths() -> TinyJit[Any]:
    """A product with a number of rows that each call is given."""
    w, n = Tensor(rand(8, 3)), Variable("n", 1, 10)

    @TinyJit
    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).relu()
        return y.realize(), y.sum(0).realize()

    whole = rand(10, 8, seed=2)
    for number in (3, 4, 5, 6):
        total(Tensor(whole)[: n.bind(number)])
    return total


def generation() -> TinyJit[Any]:
    """One step of generation: a cache that a variable says where to write."""
    position = Variable("position", 0, 7)
    cache = Tensor.zeros(8, 4).contiguous().realize()

    @TinyJit
    def generate(x: Tensor, at: Variable) -> Tensor:
        cache[at : at + 1] = x
        return (cache[: at + 1] @ x.reshape(4, 1)).sum().realize()

    for number in range(4):
        generate(Tensor(rand(1, 4, seed=number)), position.bind(number))
    return generate


def aliases() -> TinyJit[Any]:
    """Results that are arguments, states and views."""
    w = Tensor(rand(3, 4))

    @TinyJit
    def mixed(x: Tensor) -> dict[str, object]:
        y = (x + 1).realize()
        w.assign(w + 1).realize()
        return {"x": x, "y": y, "turned": y.T, "w": w}

    for _ in range(4):
        mixed(Tensor(rand(3, 4, seed=3)))
    return mixed


def kinds() -> TinyJit[Any]:
    """Elements of many dtypes, with infinities and NaN among the constants."""
    special = Tensor([np.inf, -np.inf, np.nan, -0.0, 1e-40, 3.4e38, 0.1, 2.0])
    whole = Tensor(np.array([-(2**63), 2**63 - 1, 0, 1, -1, 7, -7, 2**40], np.int64))

    @TinyJit
    def many(x: Tensor, i: Tensor) -> list[Tensor]:
        half, brain = x.cast(dtypes.float16), x.cast(dtypes.bfloat16)
        return [
            (half * 3 + 1).realize(),
            (brain * brain).realize(),
            (x > special).realize(),
            (whole * 3 + i).realize(),
            (whole // 5).realize(),
            (i.cast(dtypes.uint8) + 250).realize(),
            (x.cast(dtypes.float64).exp() + x.sin()).realize(),
            x.maximum(special).realize(),
            (x.sqrt().log2() + x.exp()).realize(),
        ]

    for number in range(4):
        many(Tensor(rand(8, seed=number)), Tensor(np.arange(8, dtype=np.int64)))
    return many


def sorting() -> TinyJit[Any]:
    """Orders, ranks and medians of long and of short rows, with ties, NaN and infinities."""

    @TinyJit
    def orders(x: Tensor, i: Tensor) -> list[Tensor]:
        coarse = (x * 2).round() / x.round()  # ties, NaN and infinities
        few = coarse[:, :20]
        values, places = coarse.sort(descending=True)
        best, at = x.topk(70)
        return [
            *(values.realize(), places.realize(), best.realize(), at.realize()),
            (few.argsort(stable=True) + i.argsort()).realize(),
            coarse.median(-1).indices.realize(),
            few.nanmedian(-1).values.realize(),
            x.cast(dtypes.float16).kthvalue(150)[0].realize(),
        ]

    for number in range(4):
        orders(
            Tensor(rand(3, 700, seed=number)), Tensor(np.arange(20, dtype=np.int32)[::-1].copy())
        )
    return orders


def conditions() -> TinyJit[Any]:
    """Loops that end by a condition, one in another, and a choice between two functions."""

    @TinyJit
    def nested(x: Tensor) -> list[Tensor]:
        def row(total: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
            small = ferrule.while_loop(lambda y: (y.abs() > 1).any(), lambda y: y / 2, one)
            return total + small, total * small

        last, rows = ferrule.scan(row, Tensor.zeros(4), x)
        pair = ferrule.while_loop(
            lambda pair: (pair[0].abs() > 0.01).any(),
            lambda pair: (pair[0] / 2, pair[1] + 1),
            (x, Tensor(0)),
            max_trips=5,
        )
        chosen = ferrule.cond(x.sum() > 0, lambda y: y.sort()[0], lambda y: y * 3, x)
        return [one.realize() for one in (last, rows, *pair, chosen)]

    for number in range(4):
        nested(Tensor(rand(6, 4, seed=number) * 3))
    return nested


def rows() -> TinyJit[Any]:
    """A loop over as many rows as each call says, the last one first, with its gradient."""
    w, n = Tensor(rand(4, 4)), Variable("n", 1, 9)

    @TinyJit
    def backwards(x: Tensor) -> list[Tensor]:
        def total(x: Tensor) -> Tensor:
            last, steps = ferrule.scan(
                lambda c, row: ((c @ w).tanh() + row,) * 2, Tensor.zeros(4), x, reverse=True
            )
            return last.sum() + steps.square().sum()

        return [total(x).realize(), ferrule.grad(total)(x).realize()]

    whole = Tensor(rand(9, 4, seed=2))
    for number in (3, 4, 5, 6):
        backwards(whole[: n.bind(number)])
    return backwards


def recurrent() -> TinyJit[Any]:
    """A loop of which all is known, with packed weights."""
    Tensor.manual_seed(0)
    lstm = nn.LSTM(256, 256)
    for parameter in nn.state.get_parameters(lstm):
        parameter.requires_grad = False

    @TinyJit
    def steps(x: Tensor) -> list[Tensor]:
        y, (h, _) = lstm(x)
        return [y.realize(), h.realize()]

    for number in range(4):
        steps(Tensor(rand(3, 32, 256, seed=number)))
    return steps


_PLAIN = (network, training, lengths, generation, aliases, kinds, sorting)
_LOOPS = (conditions, rows, recurrent)
PROGRAMS: dict[str, Callable[[], TinyJit[Any]]] = {one.__name__: one for one in (*_PLAIN, *_LOOPS)}
