"""Collectives over lists of tensors: what they give, their gradients, their bits, in replays."""

from collections.abc import Callable
from functools import reduce as folded
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, distributed, nn
from ferrule.base.config import Context
from ferrule.device import DeviceIndexError
from ferrule.distributed import collectives
from ferrule.errors import DTypeError, ShapeError
from ferrule.nn.optim import SGD

Array = np.ndarray[Any, Any]


@pytest.fixture(params=[1, 2, 3, 5])
def devices(request: pytest.FixtureRequest) -> list[str]:
    return [f"CPU:{k}" for k in range(request.param)]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(devices: list[str], *shape: int) -> tuple[list[Tensor], list[Array]]:
    arrays = [numbers(*shape, seed=k) for k in range(len(devices))]
    return [Tensor(a, device=d) for a, d in zip(arrays, devices, strict=True)], arrays


def assert_on(tensors: list[Tensor], devices: list[str]) -> None:
    """They are on these devices; the first one is called CPU."""
    assert [one.device for one in tensors] == ["CPU", *devices[1:]]


COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("by_parts", [False, True])
@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 3), (2, 0)])
def test_all_reduce_has_the_bits_of_the_list_in_order(
    shape: tuple[int, ...],
    op: str,
    by_parts: bool,
    devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "_goes_by_parts", lambda n: by_parts)
    tensors, arrays = spread(devices, *shape)
    totals = distributed.all_reduce(tensors, op)
    assert_on(totals, devices)
    for total in (*totals, distributed.reduce(tensors, op)):
        np.testing.assert_array_equal(total.numpy(), folded(COMBINE[op], arrays))
    mean = distributed.all_reduce(tensors, "mean")[-1]
    np.testing.assert_allclose(mean.numpy(), np.mean(arrays, axis=0), rtol=1e-5, atol=1e-6)


def test_parts_and_wholes(devices: list[str]) -> None:
    n = len(devices)
    tensors, arrays = spread(devices, 7, 6)
    parts = distributed.reduce_scatter(tensors, dim=1)
    assert_on(parts, devices)
    for part, wanted in zip(parts, np.array_split(folded(np.add, arrays), n, 1), strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)
    wholes = distributed.all_gather(parts, dim=-1)
    assert_on(wholes, devices)
    for whole in wholes:
        np.testing.assert_array_equal(whole.numpy(), folded(np.add, arrays))
    scattered = distributed.scatter(tensors[0], devices, dim=-2)
    assert_on(scattered, devices)
    for part, wanted in zip(scattered, np.array_split(arrays[0], n, 0), strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)
    np.testing.assert_array_equal(distributed.gather(scattered).numpy(), arrays[0])
    last = distributed.gather(scattered, devices[-1])
    assert last.device == ["CPU", *devices[1:]][-1]
    copies = distributed.broadcast(tensors[0], devices)
    assert_on(copies, devices)
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), arrays[0])


def test_exchanges(devices: list[str]) -> None:
    n = len(devices)
    tensors, arrays = spread(devices, 6, 5)
    mixed = distributed.all_to_all(tensors, 0, 1)
    assert_on(mixed, devices)
    for k, one in enumerate(mixed):
        wanted = np.concatenate([np.array_split(a, n, 0)[k] for a in arrays], 1)
        np.testing.assert_array_equal(one.numpy(), wanted)
    for shift in (-1, 0, 1, 2):
        moved = distributed.permute(tensors, shift)
        assert_on(moved, devices)
        for k, one in enumerate(moved):
            np.testing.assert_array_equal(one.numpy(), arrays[(k - shift) % n])


Collective = Callable[[list[Tensor]], list[Tensor]]
COLLECTIVES: dict[str, Collective] = {
    "all_reduce": distributed.all_reduce,
    "mean": lambda x: distributed.all_reduce(x, "mean"),
    "max": lambda x: distributed.all_reduce(x, "max"),
    "all_gather": distributed.all_gather,
    "reduce_scatter": distributed.reduce_scatter,
    "all_to_all": distributed.all_to_all,
    "permute": distributed.permute,
    "broadcast": lambda x: distributed.broadcast(x[0], [one.device for one in x]),
    "scatter": lambda x: distributed.scatter(x[-1], [one.device for one in x]),
    "gather": lambda x: [distributed.gather(x)],
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_gradients_are_those_on_one_device(name: str, devices: list[str]) -> None:
    """Of a function that is not linear, with a weight for each place."""

    def slopes(names: list[str]) -> list[Array]:
        tensors = [
            Tensor(numbers(6, seed=k), device=d, requires_grad=True) for k, d in enumerate(names)
        ]
        results = COLLECTIVES[name](tensors)
        weights = [Tensor(numbers(*r.shape, seed=9 + k)) for k, r in enumerate(results)]
        loss = folded(
            Tensor.add,
            [
                (r.square() * w.to(r.device)).sum().to("CPU")
                for r, w in zip(results, weights, strict=True)
            ],
        )
        loss.backward()
        zero = np.zeros(6, np.float32)
        return [zero if t.grad is None else t.grad.numpy() for t in tensors]

    for got, wanted in zip(slopes(devices), slopes(["CPU"] * len(devices)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_replays_of_collectives(devices: list[str]) -> None:
    @TinyJit
    def step(*tensors: Tensor) -> list[Tensor]:
        totals = distributed.all_reduce(tensors)
        return [(total * one).realize() for total, one in zip(totals, tensors, strict=True)]

    for call in range(4):
        arrays = [numbers(9, seed=10 * call + k) for k in range(len(devices))]
        results = step(*[Tensor(a, device=d) for a, d in zip(arrays, devices, strict=True)])
        total = folded(np.add, arrays)
        for result, one in zip(results, arrays, strict=True):
            np.testing.assert_array_equal(result.numpy(), total * one)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_data_parallel_training_is_training_on_one_device(
    n_threads: int, devices: list[str]
) -> None:
    """A model on each device, a part of each batch for each, and gradients added up."""
    x, y = numbers(30, 4), numbers(30, 1, seed=1)
    n = len(devices)

    def model(device: str) -> nn.Sequential:
        Tensor.manual_seed(2)
        with Context(FERRULE_DEVICE=device):
            return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def losses(names: list[str]) -> list[float]:
        models = [model(name) for name in names]
        optimizers = [SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]

        def train(x: Tensor, y: Tensor) -> Tensor:
            parts = zip(distributed.scatter(x, names), distributed.scatter(y, names), strict=True)
            errors = []
            for m, (a, b) in zip(models, parts, strict=True):
                m.zero_grad()
                errors.append((m(a) - b).square().sum() / len(x))
                errors[-1].backward()
            for together in zip(*[m.parameters() for m in models], strict=True):
                gradients = distributed.all_reduce([p.grad for p in together])
                for parameter, gradient in zip(together, gradients, strict=True):
                    parameter.grad = gradient
            for optimizer in optimizers:
                optimizer.step()
            return distributed.reduce(errors).realize()

        captured = TinyJit(train)
        with Context(FERRULE_NUM_THREADS=n_threads), Tensor.train():
            found = [captured(Tensor(x), Tensor(y)).item() for _ in range(8)]
        weights = [np.concatenate([p.numpy().ravel() for p in m.parameters()]) for m in models]
        for one in weights[1:]:
            np.testing.assert_array_equal(one, weights[0])
        return found

    np.testing.assert_allclose(losses(devices), losses(["CPU"]), rtol=1e-5)
    assert losses(devices) == losses(devices)
    assert n == len(devices)


def test_what_does_not_go_together() -> None:
    a = Tensor([1.0, 2.0], device="CPU")
    with pytest.raises(
        ShapeError,
        match=r"\[all_reduce\] tensor 0 on CPU has shape \(2,\), tensor 1 "
        r"on CPU:1 has \(3,\); they have to agree",
    ):
        distributed.all_reduce([a, Tensor([1.0, 2.0, 3.0], device="CPU:1")])
    with pytest.raises(DTypeError, match=r"tensor 1 on CPU:1 is dtypes.int32"):
        distributed.all_gather([a, Tensor([1, 2], device="CPU:1")])
    with pytest.raises(ShapeError, match="has shape"):
        distributed.all_gather([a, Tensor([[1.0]], device="CPU:1")])
    with pytest.raises(ValueError, match=r"expected one of sum, mean, prod, max, min, not 'avg'"):
        distributed.all_reduce([a], "avg")
    with pytest.raises(TypeError, match=r"\[reduce\] expected a list of tensors"):
        distributed.reduce(a)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\[all_reduce\] expected a list of tensors"):
        distributed.all_reduce([])
    with pytest.raises(TypeError, match=r"\[broadcast\] expected a list of devices"):
        distributed.broadcast(a, "CPU:1")
    with pytest.raises(DeviceIndexError):
        distributed.broadcast(a, ["CPU:99"])
    with pytest.raises(ShapeError, match=r"\[scatter\] dim 1 is out of range for shape \(2,\)"):
        distributed.scatter(a, ["CPU"], 1)
    with pytest.raises(ShapeError, match="has no parts"):
        distributed.reduce_scatter([Tensor(1.0)])
