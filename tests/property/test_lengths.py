"""Random programs on sequences of changing lengths give what they give where each is planned."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.fusion import _plans
from ferrule.fusion.dynamic import lengths
from ferrule.fusion.dynamic.families import _families

PROGRAMS = 40
LONGEST = 140
TABLES = [
    np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    for seed, shape in enumerate([(LONGEST, 9), (5, LONGEST), (2, LONGEST, 6)])
]
WEIGHTS = np.random.default_rng(9).standard_normal((9, 7)).astype(np.float32)

Make = Callable[[Tensor, random.Random], Tensor]


def part(rng: random.Random, start: int, length: int) -> Tensor:
    """A part of a table, along its long axis: a view, or memory of its own."""
    table = rng.choice(TABLES)
    axis = table.shape.index(LONGEST)
    places = (*[slice(None)] * axis, slice(start, start + length))
    if rng.random() < 0.5:
        return Tensor(np.ascontiguousarray(table[places])).realize()
    return Tensor(table).realize()[places]


def axis(x: Tensor, rng: random.Random) -> int:
    return rng.randrange(x.ndim)


def written(x: Tensor, rng: random.Random) -> Tensor:
    y = x.contiguous() if rng.random() < 0.5 else (x * 1.5).realize()
    if y.shape[0] > 2:
        if rng.random() < 0.5:
            y[:-1] += 1.0
        else:
            y[0] = y[1] * 2
    return y


def without_some(x: Tensor, rng: random.Random) -> Tensor:
    at = axis(x, rng)
    first, last = rng.choice([0, 1]), rng.choice([0, 1])
    if x.shape[at] < 4:
        return x
    return x[(*[slice(None)] * at, slice(first, x.shape[at] - last))]


def joined(x: Tensor, rng: random.Random) -> Tensor:
    at = axis(x, rng)
    other = x.sum(at, keepdim=True) if rng.random() < 0.5 else x.exp()
    return x.cat(other, dim=at)


def products(x: Tensor, rng: random.Random) -> Tensor:
    if x.ndim < 2:
        return x.reshape(-1, 1) * x.reshape(1, -1) if x.shape[0] < 300 else x
    if x.shape[-1] == 9:
        return x @ Tensor(WEIGHTS)
    return x @ x.transpose(-1, -2) if x.shape[-2] < 300 else x


OPS: list[Make] = [
    lambda x, rng: (x * 2 + 1).relu(),
    lambda x, rng: getattr(x, rng.choice(["sum", "max", "mean"]))(axis(x, rng), keepdim=True),
    lambda x, rng: x.mean(axis(x, rng)),
    lambda x, rng: x.softmax(axis(x, rng)),
    lambda x, rng: x - x.mean(axis(x, rng), keepdim=True),
    lambda x, rng: x.permute(rng.sample(range(x.ndim), x.ndim)),
    lambda x, rng: x.flatten(),
    lambda x, rng: x.flip(axis(x, rng)),
    lambda x, rng: x.pad(tuple([(rng.choice([0, 1, 2]), rng.choice([0, 1])) for _ in x.shape])),
    lambda x, rng: x.roll(rng.choice([1, x.shape[0] // 2]), axis(x, rng)),
    lambda x, rng: x.cumsum(axis(x, rng)),
    lambda x, rng: x + Tensor.arange(x.shape[-1]) * 0.1,
    lambda x, rng: x[::2],
    lambda x, rng: x.repeat(*([2] + [1] * (x.ndim - 1))),
    lambda x, rng: x.realize(),
    without_some,
    joined,
    products,
    written,
]


def run(seed: int, start: int, length: int) -> list[np.ndarray]:
    rng = random.Random(seed)
    x = part(rng, start, length)
    held = []
    for _ in range(rng.randint(1, 6)):
        if x.ndim == 0 or max(x.shape) > 2000 or np.prod(x.shape) > 30_000:
            break
        x = rng.choice(OPS)(x, rng)
        if rng.random() < 0.2:
            held.append(x)
    if rng.random() < 0.3:
        x = x.sum() * part(rng, start, length)
    Tensor.realize(x, *held)
    return [value.numpy() for value in (x, *held)]


def test_random_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    plan = lengths._planned
    monkeypatch.setattr(lengths, "_planned", lambda *args: planned.append(args) or plan(*args))
    for seed in range(PROGRAMS):
        rng = random.Random(seed)
        spans = [(0, length) for length in rng.sample(range(3, 60), 5)]
        if rng.random() < 0.5:
            spans = [(rng.randrange(LONGEST - length), length) for _, length in spans]
        _plans.clear()
        _families.clear()
        found = [run(seed, *span) for span in spans][3:]
        for span, results in zip(spans[3:], found, strict=True):
            _plans.clear()
            _families.clear()
            expected = run(seed, *span)
            for ours, wanted in zip(results, expected, strict=True):
                assert ours.shape == wanted.shape, (seed, span)
                close = 1e-4 * max(1.0, float(np.abs(wanted).max(initial=0)))
                np.testing.assert_allclose(ours, wanted, 3e-4, close, err_msg=f"{seed} {span}")
    assert len(planned) > PROGRAMS // 2
