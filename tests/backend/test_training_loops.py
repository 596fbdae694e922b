"""Loops as people write them, around captured steps: they do what the same loops do uncaptured."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes, nn
from ferrule.ir.buffer import allocators
from ferrule.nn.optim import AdamW
from ferrule.nn.optim.lr_scheduler import StepLR
from ferrule.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

pytestmark = pytest.mark.usefixtures("device")

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model() -> nn.Sequential:
    Tensor.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """The last of every three is smaller."""
    sizes = [2 if place % 3 == 2 else 4 for place in range(count)]
    labels = np.random.default_rng(1)
    return [
        (Tensor(numbers(size, 5, seed=place)), Tensor(labels.integers(0, 3, size)))
        for place, size in enumerate(sizes)
    ]


class Training:
    """AdamW with a schedule, clipped gradients, and averaged weights, in one captured step."""

    def __init__(self, captured: bool) -> None:
        self.model = model()
        self.average = model()
        self.optimizer = AdamW(get_parameters(self.model), lr=0.05)
        self.schedule = StepLR(self.optimizer, 2, 0.5)
        self.run = TinyJit(self.step) if captured else self.step

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).cross_entropy(labels)
        loss.backward()
        parameters = get_parameters(self.model)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        self.optimizer.step()
        with Tensor.no_grad():
            for kept, new in zip(get_parameters(self.average), parameters, strict=True):
                kept.lerp_(new, 0.25)
        return loss

    def losses(self, data: list[tuple[Tensor, Tensor]]) -> list[float]:
        found = []
        for x, labels in data:
            found.append(self.run(x, labels).item())
            self.schedule.step()
        return found

    def weights(self) -> list[Any]:
        tensors = [*get_parameters(self.model), *get_parameters(self.average)]
        return [tensor.tolist() for tensor in tensors]


def test_a_captured_loop_is_the_loop() -> None:
    data = batches(9)
    plain, captured = Training(captured=False), Training(captured=True)
    np.testing.assert_allclose(captured.losses(data), plain.losses(data), rtol=1e-5)
    for mine, theirs in zip(captured.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_training_goes_on_from_files_bit_by_bit(tmp_path: Path) -> None:
    data = batches(12)
    first = Training(captured=True)
    first.losses(data[:6])
    models = {"model": first.model, "average": first.average}
    safe_save(get_state_dict(models), tmp_path / "models")
    state = first.optimizer.state_dict()
    tensors = {f"{n}.{k}": x for n, part in state["state"].items() for k, x in part.items()}
    safe_save(tensors, tmp_path / "optimizer")
    settings = json.dumps([state["param_groups"], first.schedule.state_dict()])

    second = Training(captured=True)
    second.losses(data[:3])  # captured already, with other weights
    load_state_dict(
        {"model": second.model, "average": second.average}, safe_load(tmp_path / "models")
    )
    groups, schedule = json.loads(settings)
    kept: dict[int, dict[str, Tensor]] = {}
    for name, tensor in safe_load(tmp_path / "optimizer").items():
        number, _, key = name.partition(".")
        kept.setdefault(int(number), {})[key] = tensor
    second.optimizer.load_state_dict({"state": kept, "param_groups": groups})
    second.schedule.load_state_dict(schedule)
    assert second.losses(data[6:]) == first.losses(data[6:])
    assert second.weights() == first.weights()


def test_a_loss_scale_that_is_a_tensor() -> None:
    """Steps whose gradients overflow in halves are left out, and the scale is halved."""
    weight = Tensor(numbers(5, 3), requires_grad=True)
    scale, good = Tensor(2.0**12).contiguous().realize(), Tensor(0.0).contiguous().realize()

    @TinyJit
    def step(x: Tensor, labels: Tensor, factor: Tensor) -> Tensor:
        weight.grad = None
        loss = (x.half() @ weight.half()).float().cross_entropy(labels)
        (loss * scale * factor).backward()
        assert weight.grad is not None
        gradient = weight.grad / (scale * factor)
        fine = gradient.isfinite().all()
        with Tensor.no_grad():
            weight.assign(fine.where(weight - gradient * 0.5, weight))
            good.assign(fine.where(good + 1, 0))
            scale.assign(fine.where((good >= 2).where(scale * 2, scale), scale * 0.5))
        return scale * 1

    expected, run, before = 2.0**12, 0, weight.tolist()
    for call, (x, labels) in enumerate(batches(9)):
        overflows = call in (3, 7)
        found = step(x, labels, Tensor(np.float32(1e20 if overflows else 1))).item()
        run = 0 if overflows else run + 1
        expected *= 0.5 if overflows else 2 if run >= 2 else 1
        assert found == expected
        assert (weight.tolist() == before) == overflows
        before = weight.tolist()


class Decoder:
    """One layer of attention over the tokens so far, with tied weights."""

    size, places = 8, 12

    def __init__(self) -> None:
        self.embedding = Tensor(numbers(11, self.size, seed=1))
        self.position = Tensor(numbers(self.places, self.size, seed=2))
        self.weights = [Tensor(numbers(self.size, self.size, seed=3 + i)) for i in range(3)]

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        y = (mask.where(q @ k.T / self.size**0.5, -1e9)).softmax(-1) @ v
        return y @ self.embedding.T

    def whole(self, tokens: list[int]) -> int:
        x = self.embedding[Tensor(tokens)] + self.position[: len(tokens)]
        q, k, v = (x @ weight for weight in self.weights)
        mask = Tensor.ones(len(tokens), len(tokens)).tril() > 0
        return int(self.scores(q, k, v, mask)[-1].argmax().item())


def greedy(choose: Callable[[list[int]], int], start: list[int], count: int) -> list[int]:
    tokens = list(start)
    while len(tokens) < count:
        tokens.append(choose(tokens))
    return tokens


def test_a_cache_of_keys_that_a_captured_step_writes_to() -> None:
    """At a place that is a tensor: the tokens are those without a cache."""
    decoder = Decoder()
    keys, values = (Tensor(np.zeros((Decoder.places, 8), np.float32)) for _ in range(2))

    @TinyJit
    def step(token: Tensor, place: Tensor) -> Tensor:
        x = decoder.embedding[token] + decoder.position[place]
        q, k, v = (x @ weight for weight in decoder.weights)
        keys[place] = k
        values[place] = v
        mask = Tensor.arange(Decoder.places) <= place
        return decoder.scores(q, keys, values, mask).argmax()

    expected = greedy(decoder.whole, [3, 1, 4], Decoder.places)
    tokens = [3, 1, 4]
    for place in range(Decoder.places - 1):
        found = int(step(Tensor(tokens[place]), Tensor(place, dtype=dtypes.int32)).item())
        if place + 1 >= len(tokens):
            tokens.append(found)
    assert tokens == expected


def test_captured_evaluation_between_steps_reads_the_weights_of_now() -> None:
    training = Training(captured=True)
    x = Tensor(numbers(6, 5, seed=40))
    evaluate = TinyJit(lambda x: training.model(x).softmax(-1))
    for data in batches(7):
        training.losses([data])
        a, b, c, d = (p.numpy().astype(float) for p in get_parameters(training.model))
        scores = np.tanh(x.numpy() @ a.T + b) @ c.T + d
        expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(evaluate(x).numpy(), expected, rtol=1e-4)


def test_what_nobody_looks_at_does_not_pile_up() -> None:
    """Statistics of batches, gradients of parameters that no optimiser has, averages of weights."""
    inner, outer = nn.Linear(5, 8), nn.Linear(8, 3)
    whole = nn.Sequential(inner, nn.BatchNorm(8), nn.Tanh(), outer)
    optimizer = nn.optim.SGD(get_parameters(inner), lr=0.1)
    average, norm = Tensor.zeros(8, 5), whole[1]
    data = [numbers(4, 5, seed=place) for place in range(12)]
    live = []
    with Tensor.train():
        for x in data:
            optimizer.zero_grad()
            loss = whole(Tensor(x)).square().mean()
            loss.backward()
            optimizer.step()
            average.assign(average * 0.5 + inner.weight.detach())
            loss.item()
            gc.collect()
            live.append(allocators[Tensor.ones(1).device].used)
    assert len(set(live[6:])) == 1, live
    assert norm.num_batches_tracked.item() == len(data)
    assert outer.bias.grad.abs().sum().item() > 0
