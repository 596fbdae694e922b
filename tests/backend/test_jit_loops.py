"""Loops as people write them: captured, they give the plain numbers, and soon only replay."""

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ferrule.jit
from ferrule import nn
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor
from ferrule.transforms import scan

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


@pytest.mark.parametrize("is_returned", [True, False])
def test_a_copy_that_the_call_makes_is_written_to(calls: list[str], is_returned: bool) -> None:
    def loop(jit: Any) -> Iterator[Any]:
        def changed(x: Tensor) -> Tensor:
            copied = x.clone()
            copied[1:] = x[:-1] * 2
            return copied if is_returned else copied.sum() + x

        changed = jit(changed)
        seen = []
        for x in batches(8):
            seen += [changed(x), x]
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


# *** gradients that are there before the call ***


def micro_step(model: Model) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        return (model.loss(x) / 3).backward()

    return step


def gradients(model: Model) -> list[Tensor]:
    return [param.grad for param in model.params if param.grad is not None]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("is_captured", [True, False])
def test_gradients_add_up_over_small_batches(
    to_none: bool, is_captured: bool, calls: list[str]
) -> None:
    """Whether there are gradients is a part of the signature; which tensors they are is not."""

    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        optimizer = nn.optim.Adam(model.params, lr=0.05)
        micro = jit(micro_step(model))

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(to_none)

        if is_captured:
            update = jit(update)
        for number, x in enumerate(batches(24)):
            yield [micro(x), *gradients(model)]
            if number % 3 == 2:
                update()
                yield model.params

    captures = ["captured"] * (1 + to_none + is_captured)
    found = check(loop, calls, 10)
    assert sorted(found) == sorted(["plain"] * (1 + is_captured) + captures)


def test_what_others_hold_of_gradients_that_are_added_to(calls: list[str]) -> None:
    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        micro = jit(micro_step(model))
        kept = []
        for number, x in enumerate(batches(12)):
            if number % 3 == 0:
                for param in model.params:
                    param.grad = None
            yield [micro(x)]
            for gradient in gradients(model):
                kept += [gradient, gradient.clone(), gradient * 2]
        yield kept

    assert check(loop, calls, 4) == ["plain", "captured", "captured"]


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_two_captures_that_add_to_the_same_gradients(where: str, calls: list[str]) -> None:
    """As of a generator and a discriminator: each step leaves gradients to the other's model."""

    def loop(jit: Any) -> Iterator[Any]:
        maker, judge = Model(), Model()
        making = nn.optim.Adam(maker.params, lr=0.05)
        judging = nn.optim.Adam(judge.params, lr=0.05)

        def made(z: Tensor) -> Tensor:
            return maker(z).pad(((0, 0), (0, 1)))

        def make(z: Tensor) -> Tensor:
            if where == "inside":
                making.zero_grad()
            loss = judge(made(z)).square().mean().backward()
            making.step()
            return loss

        def tell(x: Tensor, z: Tensor) -> Tensor:
            if where == "inside":
                judging.zero_grad()
            loss = ((judge(x) - 1).square() + judge(made(z).detach()).square()).mean().backward()
            judging.step()
            return loss

        make, tell = jit(make), jit(tell)
        for x, z in zip(batches(10), batches(10), strict=True):
            if where == "outside":
                judging.zero_grad()
            losses = [tell(x, z)]
            if where == "outside":
                making.zero_grad()
            yield [*losses, make(z), *maker.params, *judge.params]
            yield [*gradients(judge), *gradients(maker)]

    assert check(loop, calls, 5) == ["plain", "plain", "captured", "captured"]


def test_a_gradient_that_is_in_another_place_too(calls: list[str]) -> None:
    """What the function reads there is not an input, even if it is the same tensor today."""
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    first = Tensor([10.0, 20.0]).realize()

    class Kept:
        gradient = first

        def step(self, x: Tensor) -> Tensor:
            (weight * x).sum().backward()
            return self.gradient * 2

    kept = Kept()
    step = TinyJit(kept.step)
    x = Tensor([1.0, 1.0]).realize()
    weight.grad = first
    for number in range(1, 5):
        assert step(x).tolist() == [20.0 + 2 * number, 40.0 + 2 * number]
    weight.grad = Tensor([0.0, 0.0]).realize()
    for number in range(1, 5):
        assert step(x).tolist() == [28.0, 48.0]
        assert weight.grad.tolist() == [number, number]


def test_two_tensors_with_one_gradient() -> None:
    a = Tensor([1.0, 2.0], requires_grad=True).realize()
    b = Tensor([3.0, 4.0], requires_grad=True).realize()
    step = TinyJit(lambda x: (a * x + b * x * 2).sum().backward())
    x = Tensor([1.0, 10.0]).realize()
    for number in range(8):
        shared = number % 4 < 2
        a.grad = Tensor([0.0, 0.0]).realize()
        b.grad = a.grad if shared else Tensor([0.0, 0.0]).realize()
        step(x)
        assert a.grad.tolist() == ([3.0, 30.0] if shared else [1.0, 10.0])
        assert b.grad.tolist() == ([3.0, 30.0] if shared else [2.0, 20.0])


def test_a_gradient_that_is_an_argument() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    x = Tensor([1.0, 10.0]).realize()

    @TinyJit
    def step(given: Tensor) -> Tensor:
        (weight * x).sum().backward()
        return given * 1

    other = Tensor([5.0, 5.0]).realize()
    weight.grad = Tensor([0.0, 0.0]).realize()
    for number in range(1, 13):
        result = step(weight.grad if number % 3 else other)
        assert weight.grad.tolist() == [number, 10 * number]
        assert result.tolist() == ([number, 10 * number] if number % 3 else [5.0, 5.0])


def test_gradients_that_the_function_returns_or_moves() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    other = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def move() -> Tensor | None:
        other.grad, weight.grad = weight.grad, None
        return other.grad

    for number in range(6):
        given = weight.grad = Tensor([float(number), 0.0]).realize()
        assert move() is given
        assert other.grad is given
        assert weight.grad is None


def test_a_step_that_looks_for_gradients() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def size(x: Tensor) -> Tensor:
        return x if weight.grad is None else (weight.grad * x).sum()

    x = Tensor([1.0, 10.0]).realize()
    for number in range(12):
        weight.grad = None if number % 4 < 2 else Tensor([float(number), 1.0]).realize()
        assert size(x).tolist() == ([1.0, 10.0] if number % 4 < 2 else number + 10)


def test_a_parameter_that_is_another_tensor_from_now_on(calls: list[str]) -> None:
    """Of the old one, which is still there, it does not matter whether it has a gradient."""

    def loop(jit: Any) -> Iterator[Any]:
        model = Model()
        old = model.params[0]
        step = jit(lambda x: model(x) * 2)
        for number, x in enumerate(batches(12)):
            if number == 4:
                model.params[0] = Tensor(old.numpy() * 2, requires_grad=True).realize()
            yield [step(x), old]

    assert check(loop, calls, 5) == ["plain", "captured", "captured"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_parameter_in_two_places_is_replaced_in_one(anew: bool) -> None:
    """Where its gradient alone matters, and the function reads it in that place."""
    found = []
    for is_captured in (False, True):
        model = SimpleNamespace(weight=_parameter(1.0))
        model.first = model.other = model.weight

        def step(x: Tensor, model: SimpleNamespace = model) -> Tensor:
            if anew:
                model.weight.grad = None
            (model.weight * x).sum().backward()
            return x + 1

        run = TinyJit(step) if is_captured else step
        seen = []
        for call in range(10):
            if call in (5, 8):
                model.weight = _parameter(call)
            run(Tensor([1.0 * call, 2.0]).realize())
            seen.append([tensor.grad.tolist() for tensor in (model.weight, model.first)])
        found.append(seen)
    assert found[0] == found[1]


def _parameter(number: float) -> Tensor:
    return Tensor([number, 2.0]).realize().requires_grad_()


def test_results_from_before_a_capture_are_computed_together(device: str) -> None:
    """A run has one result computed after the capture, and has to give the other one with it."""

    def totals(rows: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda carry, row: (carry + row, carry * row), Tensor.zeros(3), rows)

    captured = TinyJit(totals)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(4):
        rows = Tensor(values, device=device)
        waiting = totals(rows)
        captured(rows)
        last, products = waiting
        assert last.tolist() == values.sum(0).tolist()
        before = np.cumsum(values, 0) - values
        assert products.tolist() == (before * values).tolist()
