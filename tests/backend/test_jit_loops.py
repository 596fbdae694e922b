"""Loops as people write them: captured, they give the plain numbers, and soon only replay."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ferrule.jit
from ferrule import nn
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")

Loop = Callable[[Callable[..., Any]], Iterator[Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each call that is no replay: "captured", "refused" or "plain"."""
    found: list[str] = []
    capture, run = ferrule.jit.capture_call, TinyJit._run

    def capturing(*args: Any) -> Any:
        result, replay = capture(*args)
        found.append("captured" if isinstance(replay, ferrule.jit.Replay) else "refused")
        return result, replay

    def running(self: Any, *args: Any) -> Any:
        found.append("plain")
        return run(self, *args)

    monkeypatch.setattr("ferrule.jit.capture_call", capturing)
    monkeypatch.setattr(TinyJit, "_run", running)
    return found


def check(loop: Loop, calls: list[str], warm: int = 0) -> list[str]:
    """The calls that were no replays; from step `warm` on there is none.

    A loop yields the tensors that are to be the same with and without captures, but for roundings:
    in a plain call, what else is to be computed decides which kernels there are.
    """
    Tensor.manual_seed(0)
    plain = [[value.numpy() for value in step] for step in loop(lambda function: function)]
    assert not calls
    Tensor.manual_seed(0)
    until_warm = 0
    for number, step in enumerate(loop(TinyJit)):
        for value, expected in zip(step, plain[number], strict=True):
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-6)
        if number < warm:
            until_warm = len(calls)
    assert number == len(plain) - 1
    if warm:
        assert calls[until_warm:] == []
    return calls


def batches(count: int, size: int = 4) -> Iterator[Tensor]:
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield Tensor(rng.standard_normal((size, 3)).astype(np.float32))


class Model:
    """Two layers, and a loss that needs no labels."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shapes = [(3, 5), (5,), (5, 2)]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.params = [Tensor(array, requires_grad=True).realize() for array in arrays]

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias, last = self.params
        return (x.matmul(weight) + bias).relu().matmul(last)

    def loss(self, x: Tensor) -> Tensor:
        return (self(x) - x.sum(axis=1, keepdim=True)).square().mean()


def training_step(model: Model, optimizer: Any) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.loss(x).backward()
        optimizer.step()
        return loss

    return step


# *** what is kept from earlier steps ***


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, Tensor.clone, lambda w: w * 1, lambda w: w.clone().realize()]
)
def test_the_best_weights_so_far(copied: Any, calls: list[str]) -> None:
    """Copies share memory with the weights until one of them is written to; replays write, too."""

    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        step = jit(training_step(model, nn.optim.SGD(model.params, lr=0.1)))
        for number, x in enumerate(batches(20)):
            loss = step(x)
            if number % 6 == 2:
                best = [copied(param.detach()) for param in model.params]
            if number % 6 == 5:
                for param, kept in zip(model.params, best, strict=True):
                    param.assign(kept)
            yield [loss, *model.params] if number < 3 else [loss, *model.params, *best]

    assert check(loop, calls, 2)[:2] == ["plain", "captured"]


def test_an_average_of_weights_that_stays_lazy(calls: list[str]) -> None:
    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        step = jit(training_step(model, nn.optim.Adam(model.params)))
        average = [param.detach() for param in model.params]
        for x in batches(8):
            yield [step(x)]
            average = [
                a * 0.9 + b.detach() * 0.1 for a, b in zip(average, model.params, strict=True)
            ]
        yield average

    assert check(loop, calls, 2) == ["plain", "captured"]


def test_results_that_are_copies_of_state(calls: list[str]) -> None:
    """That of the captured call, too, keeps its value."""

    def loop(jit: Any) -> Iterator[Any]:
        total = Tensor([0.0, 1.0]).realize()

        def add(x: Tensor) -> tuple[Tensor, Tensor]:
            total.assign(total + x.sum())
            return total.clone(), total * 1

        add = jit(add)
        seen = []
        for x in batches(8):
            seen.append(add(x))
            yield [total]
        yield from seen

    assert check(loop, calls, 2) == ["plain", "captured"]


def test_a_copy_of_an_argument_that_is_written_to(calls: list[str]) -> None:
    def loop(jit: Any) -> Iterator[Any]:
        def add(total: Tensor, x: Tensor) -> None:
            total.assign(total + x.sum())

        add = jit(add)
        total = Tensor([0.0, 1.0]).realize()
        seen = []
        for x in batches(8):
            add(total, x)
            seen += [total.clone(), total * 2]
            yield [total]
        yield seen

    assert check(loop, calls, 2) == ["plain", "captured"]


def test_a_copy_is_made_only_where_somebody_holds_an_old_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model()
    step = TinyJit(training_step(model, nn.optim.Adam(model.params)))
    for x in batches(3):
        step(x)
    monkeypatch.delattr("ferrule.jit.readers.BufferCopy")
    for x in batches(3):
        step(x)
    kept = model.params[0].detach().clone()
    with pytest.raises(NameError, match="BufferCopy"):
        step(next(batches(1)))
    assert kept.shape == (3, 5)


def test_a_copy_that_is_held_while_a_call_is_captured(calls: list[str]) -> None:
    """The scheduler copies the old version, and the call reads the copy: so must each replay."""

    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        step = jit(training_step(model, nn.optim.SGD(model.params, lr=0.1)))
        for number, x in enumerate(batches(6)):
            if number == 1:
                kept = [param.detach().clone() for param in model.params]
            yield [step(x), *model.params]
        yield kept

    assert check(loop, calls, 2) == ["plain", "captured"]


def test_copies_of_what_the_call_then_writes_over(calls: list[str]) -> None:
    def loop(jit: Any) -> Iterator[Any]:
        total = Tensor([0.0, 1.0]).realize()

        def add(x: Tensor) -> tuple[Tensor, ...]:
            old = total.clone()
            total.assign(total + x.sum())
            return old, old * 1, old * total, total.clone()

        add = jit(add)
        seen = []
        for x in batches(8):
            seen.append(add(x))
            yield [*seen[-1], total]
        yield from seen

    assert check(loop, calls, 2) == ["plain", "captured"]


def test_a_function_that_first_writes_after_its_first_call(calls: list[str]) -> None:
    """Then nothing is known of writes when it is captured."""

    def loop(jit: Any) -> Iterator[Any]:
        total = Tensor([0.0, 1.0]).realize()

        def add(x: Tensor, is_written: bool) -> Tensor:
            before = total + x.sum()
            if is_written:
                total.assign(before)
            return before * 2

        add = jit(add)
        kept = total.clone()
        for number, x in enumerate(batches(9)):
            yield [add(x, number > 0), total, kept]

    assert check(loop, calls, 3) == ["plain", "refused", "captured"]


def test_a_tensor_that_is_moved_to_where_it_is() -> None:
    class Model:
        weight = Tensor([1.0])
        last = weight

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.last = self.weight
            return x * 2

    model = Model()
    for number in range(6):
        model.weight = Tensor([float(number)]).realize()
        for _ in range(3):
            model.step(Tensor([1.0]).realize())
            assert model.last is model.weight
