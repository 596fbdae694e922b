"""A value that a program uses twice is one value, however often kernels compute it.

Sums of floats feed operations that jump: maxima and their gradients, comparisons, sorting. Each
program is compared with the same one whose operand of that operation is put into memory first. The
operand's rounding must not matter, so that losses and gradients agree.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from ferrule import Tensor, TinyJit

Operand = Callable[[Tensor, Tensor], Tensor]
Use = Callable[[Tensor], Tensor]


def pooled(x: Tensor) -> Tensor:
    """The means of 3 x 3 neighbours."""
    return x.reshape(1, 1, *x.shape).avg_pool2d(3, stride=1, padding=1).reshape(*x.shape)


def grouped(y: Tensor, how: str) -> Tensor:
    """The extremes of every fourth row."""
    groups = (Tensor.arange(y.shape[0]) % 4).reshape(-1, 1).expand(*y.shape)
    return Tensor.zeros(4, y.shape[1]).scatter_reduce(0, groups, y, how, include_self=False)


SUMMED: dict[str, Operand] = {
    "rows": lambda x, w: x + 0.2 * x.sum(1, keepdim=True),
    "product": lambda x, w: x @ w,
    "layernorm": lambda x, w: x.layernorm(),
    "softmax": lambda x, w: x.softmax(1),
    "columns": lambda x, w: x.softmax(0),
    "norm": lambda x, w: x / x.square().sum(1, keepdim=True).sqrt(),
    "variance": lambda x, w: (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt(),
    "cumsum": lambda x, w: x.cumsum(1),
    "cumprod": lambda x, w: x.cumprod(0),
    "pool": lambda x, w: pooled(x),
    "gram": lambda x, w: (x @ x.T) @ x,
    "logsumexp": lambda x, w: x - x.logsumexp(1, keepdim=True),
    "outer": lambda x, w: x * x.sum(0, keepdim=True) + x.sum(1, keepdim=True),
    "prod": lambda x, w: x * x.prod(1, keepdim=True),
    "einsum": lambda x, w: Tensor.einsum("ij,jk,ik->ik", x, w, x),
    "distances in a plane": lambda x, w: (x.unsqueeze(2) - w[0, :2]).square().sum(2),
    "two scaled": lambda x, w: (Tensor.stack([x, w[0] - x]) * w[:2, :1].unsqueeze(2)).sum(0),
    "sums of pairs": lambda x, w: (x.reshape(*x.shape, 1, 1) + w[:2, :2]).sum(3).sum(2),
}
JUMPS: dict[str, Use] = {
    "max of columns": lambda y: y - y.max(0, keepdim=True),
    "max of rows": lambda y: y - y.max(1, keepdim=True),
    "max": lambda y: y / y.max(),
    "min": lambda y: y.min(0, keepdim=True) * y,
    "equal": lambda y: (y == y.max(1, keepdim=True)).where(y * 3, y),
    "at most": lambda y: (y <= y.min(0, keepdim=True)).where(y * 3, y),
    "count": lambda y: y * (y == y.max(1, keepdim=True)).sum(1, keepdim=True),
    "amax": lambda y: grouped(y, "amax"),
    "amin": lambda y: grouped(y, "amin"),
    "cummin": lambda y: y.cummin(1)[0],
    "sort": lambda y: y.sort(1)[0] - y,
    "argmax": lambda y: y.gather(1, y.argmax(1, keepdim=True)) - y.max(1, keepdim=True) + y,
    "topk": lambda y: y.topk(2, 1)[0],
    "pool": lambda y: y.reshape(1, 1, *y.shape).max_pool2d(2),
    "relu": lambda y: (y - y.mean()).relu(),
    "max of max": lambda y: y.max(0, keepdim=True).max(1, keepdim=True) - y.max(1, keepdim=True),
}
SHAPES = ((12, 5), (7, 33), (40, 17))
WHEN = ("together", "loss first", "result first")


def loss_and_gradient(
    operand: Operand, use: Use, seed: int, when: str, in_memory: bool
) -> list[np.ndarray]:
    """The loss and the gradient of the input, computed in one schedule or several."""
    random = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    x = Tensor(random.standard_normal(shape).astype(np.float32), requires_grad=True)
    w = Tensor(random.standard_normal((shape[1], shape[1])).astype(np.float32))
    y = operand(x, w)
    result = use(y.contiguous() if in_memory else y)
    loss = (result * Tensor(random.standard_normal(result.shape).astype(np.float32))).sum()
    if when == "loss first":
        loss.realize()
    if when == "result first":
        result.realize()
    loss.backward()
    assert x.grad is not None
    return [loss.numpy(), x.grad.numpy()]


PAIRS = list(enumerate(product(SUMMED, JUMPS)))


@pytest.mark.parametrize(("seed", "names"), PAIRS, ids=str)
def test_what_jumps_sees_one_rounding(seed: int, names: tuple[str, str]) -> None:
    operand, use = SUMMED[names[0]], JUMPS[names[1]]
    when = WHEN[seed // len(SHAPES) % len(WHEN)]
    found = loss_and_gradient(operand, use, seed, when, in_memory=False)
    expected = loss_and_gradient(operand, use, seed, when, in_memory=True)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SUMMED)
def test_what_is_held_is_what_its_maximum_was_taken_of(name: str) -> None:
    for seed, shape in enumerate(SHAPES):
        random = np.random.default_rng(seed)
        x = Tensor(random.standard_normal(shape).astype(np.float32))
        w = Tensor(random.standard_normal((shape[1], shape[1])).astype(np.float32))
        y = SUMMED[name](x, w)
        largest = y.max(1, keepdim=True).realize()
        assert ((y == largest).sum(1) >= 1).all().item()
        y = SUMMED[name](x + 1, w)
        number = y.max().item()
        assert (y == number).any().item()


def test_a_captured_gradient_of_a_maximum_is_not_lost() -> None:
    @TinyJit
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = x + 0.2 * x.sum(1, keepdim=True)
        (y - y.max(0, keepdim=True)).square().sum().backward()
        assert x.grad is not None
        return x.grad.realize()

    for seed in range(6):
        values = np.random.default_rng(seed).standard_normal((12, 5)).astype(np.float32)
        y = values.astype(np.float64)
        y = y + 0.2 * y.sum(1, keepdims=True)
        slope = 2 * (y - y.max(0))
        slope[y.argmax(0), range(5)] -= slope.sum(0)
        slope = slope + 0.2 * slope.sum(1, keepdims=True)
        np.testing.assert_allclose(gradient(Tensor(values)).numpy(), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["amin", "amax"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_gradient_of_a_smallest_distance_is_that_of_its_point(count: int, how: str) -> None:
    for seed in range(4):
        random = np.random.default_rng(seed)
        x, points = random.standard_normal((10, 2)), random.standard_normal((count, 2))
        away = x[:, None] - points
        distances = (away**2).sum(-1)
        chosen = distances.argmin(1) if how == "amin" else distances.argmax(1)
        expected = np.zeros_like(points)
        np.add.at(expected, chosen, -2 * away[range(10), chosen])
        centres = Tensor(points, requires_grad=True)
        distance = (Tensor(x).unsqueeze(1) - centres.unsqueeze(0)).square().sum(-1)
        getattr(distance, how)(1).sum().backward()
        assert centres.grad is not None
        np.testing.assert_allclose(centres.grad.numpy(), expected, rtol=1e-9)
