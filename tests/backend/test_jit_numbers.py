"""Numbers that a captured function finds by itself: replays are those of the present ones."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from ferrule import nn
from ferrule.base.config import Context
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")

rate = 1.0
flag = True
counted = 0
settings: dict[str, Any] = {"rate": 1.0, "inner": {"power": 1}}
rates = [1.0, 2.0]
namespace = types.SimpleNamespace(rate=1.0)
first, second = [1.0, 2.0], [3.0]
members = {1.0, 3.0}
named = {"a": 1.0, "b": 2.0}


def with_global(x: Tensor) -> Tensor:
    return x * rate


def with_flag(x: Tensor) -> Tensor:
    return x + 1 if flag else x - 1


def with_helper(x: Tensor) -> Tensor:
    return helper(x)


def helper(x: Tensor) -> Tensor:
    return with_global(x) + 1


def with_dict(x: Tensor) -> Tensor:
    return x * settings["rate"] ** settings["inner"]["power"]


def with_list(x: Tensor) -> Tensor:
    return x * sum(rates)


def with_lists(x: Tensor) -> Tensor:
    return x * sum(first) - sum(second)


def with_set(x: Tensor) -> Tensor:
    return x * sum(members)


def with_names(x: Tensor) -> Tensor:
    return x * named.get("a", 5.0)


def with_namespace(x: Tensor) -> Tensor:
    return x * namespace.rate


def by_text(x: Tensor) -> Tensor:
    return x * float(getattr(namespace, "rate"))  # noqa: B009


def inside(x: Tensor) -> Tensor:
    return sum((x * rate for _ in range(2)), start=Tensor(0.0))


def fill(container: Any, contents: Any) -> None:
    container.clear()
    container.update(contents)


def share(one: list[float], its: list[float], other: list[float], rest: list[float]) -> None:
    """The same numbers in the same order, in lists of other lengths."""
    one[:], other[:] = its, rest


def set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], None], Callable[[], None]]] = {
    "global": (with_global, set_global("rate", 3.0), set_global("rate", 1.0)),
    "type": (with_global, set_global("rate", True), set_global("rate", 1.0)),
    "nan": (with_global, set_global("rate", float("nan")), set_global("rate", 1.0)),
    "sign of zero": (with_global, set_global("rate", -0.0), set_global("rate", 0.0)),
    "flag": (with_flag, set_global("flag", False), set_global("flag", True)),
    "of a helper": (with_helper, set_global("rate", 3.0), set_global("rate", 1.0)),
    "helper": (with_helper, set_global("helper", with_flag), set_global("helper", helper)),
    "dict": (
        with_dict,
        lambda: settings.update(rate=2.0),
        lambda: settings.update(rate=1.0),
    ),
    "dict in a dict": (
        with_dict,
        lambda: settings.update(rate=2.0, inner={"power": 2}),
        lambda: settings.update(rate=2.0, inner={"power": 1}),
    ),
    "item": (with_list, lambda: rates.__setitem__(0, 4.0), lambda: rates.__setitem__(0, 1.0)),
    "longer list": (
        with_list,
        lambda: rates.append(4.0),
        lambda: rates.__setitem__(slice(2, 9), []),
    ),
    "another list": (
        with_lists,
        lambda: share(first, [1.0], second, [2.0, 3.0]),
        lambda: share(first, [1.0, 2.0], second, [3.0]),
    ),
    "set": (with_set, lambda: fill(members, {2.0, 3.0}), lambda: fill(members, {1.0, 3.0})),
    "name": (
        with_names,
        lambda: fill(named, {"c": 1.0, "b": 2.0}),
        lambda: fill(named, {"a": 1.0, "b": 2.0}),
    ),
    "namespace": (
        with_namespace,
        lambda: setattr(namespace, "rate", 2.0),
        lambda: setattr(namespace, "rate", 1.0),
    ),
    "text": (
        by_text,
        lambda: setattr(namespace, "rate", 2.0),
        lambda: setattr(namespace, "rate", 1.0),
    ),
    "function inside": (inside, set_global("rate", 3.0), set_global("rate", 1.0)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_numbers_of_the_module(what: str) -> None:
    function, change, change_back = CHANGES[what]
    captured = TinyJit(function)
    change_back()
    for turn in range(12):
        [change_back, change][turn // 3 % 2]()
        x = Tensor([float(turn + 1)])
        expected = function(x).numpy()
        result = captured(x).numpy()
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))
    change_back()


def test_equal_numbers_that_are_other_objects_are_the_same() -> None:
    numbers = [1.5, 2.5]
    runs: list[int] = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x * sum(numbers)

    for _ in range(6):
        numbers[:] = [float(text) for text in ("1.5", "2.5")]
        assert f(Tensor([2.0])).item() == 8.0
    numbers[1] = 3.5
    assert f(Tensor([2.0])).item() == 10.0
    assert len(runs) == 3, "the two numbers are captured once"


def test_what_is_gone_is_not_replayed() -> None:
    weight = Tensor([2.0])
    weights = [Tensor([3.0]), Tensor([4.0])]

    @TinyJit
    def f(x: Tensor) -> Tensor:
        for factor in weights:
            x = x * factor
        return x * weight  # noqa: F821 - until it is deleted

    for _ in range(4):
        assert f(Tensor([1.0])).item() == 24.0
    weights.pop()
    for _ in range(4):
        assert f(Tensor([1.0])).item() == 6.0
    del weight
    with pytest.raises(NameError):
        f(Tensor([1.0]))


def test_numbers_of_closures() -> None:
    scale = 1
    runs: list[int] = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x * scale

    for scale in (1, 1, 1, 2, 2, 1, 2, 2, 1, 1):
        assert f(Tensor([3.0])).item() == 3 * scale
    assert len(runs) == 3, "each number is captured once"


class Base:
    exponent = 1

    def power(self, x: Tensor) -> Tensor:
        return x**self.exponent


@dataclass
class Config:
    scale: float = 1.0
    unused: int = 0


@dataclass(eq=False)
class Model(Base):
    limit: ClassVar[float] = 100.0
    config: Config = field(default_factory=Config)
    act: Callable[[Tensor], Tensor] = Tensor.relu
    step: int = 0
    epoch: int = 0
    layers: list[Callable[[Tensor], Tensor]] = field(default_factory=list)
    history: list[float] = field(default_factory=list)

    def tick(self) -> None:
        self.epoch += 1

    @property
    def doubled(self) -> float:
        return 2 * self.config.scale

    @TinyJit
    def captured(self, x: Tensor) -> Tensor:
        return self.plain(x)

    def plain(self, x: Tensor) -> Tensor:
        x = self.act(self.power(x) * self.doubled).minimum(self.limit)
        for layer in self.layers:
            x = layer(x)
        return x + self.advance().step()  # a method, and no number of that name

    def advance(self) -> "Step":
        return Step()


class Step:
    def step(self) -> int:
        return 1


def _check(model: Model, changes: list[Callable[[], None]]) -> None:
    for change in changes:
        change()
        for i in range(4):
            x = Tensor([3.0, -2.0]) + i
            np.testing.assert_array_equal(model.captured(x).numpy(), model.plain(x).numpy())


def test_attributes() -> None:
    model = Model()
    _check(
        model,
        [
            lambda: None,
            lambda: setattr(model.config, "scale", 3.0),
            lambda: setattr(model, "config", Config(0.5)),
            lambda: setattr(model.config, "scale", 0.25),
            lambda: setattr(model, "exponent", 2),
            lambda: delattr(model, "exponent"),
            lambda: setattr(Base, "exponent", 3),
            lambda: setattr(Base, "exponent", 1),
            lambda: setattr(model, "act", Tensor.tanh),
            lambda: setattr(model, "limit", 0.5),
            lambda: model.layers.append(Tensor.exp),
            lambda: model.layers.append(lambda x: x + 1),
            lambda: model.layers.reverse(),
        ],
    )


def test_numbers_that_the_function_does_not_read_may_change() -> None:
    model = Model()
    runs: list[int] = []
    plain = model.plain

    def counted_plain(x: Tensor) -> Tensor:
        runs.append(1)
        return plain(x)

    captured = TinyJit(counted_plain)
    for i in range(8):
        model.tick()
        model.step += 1
        model.config.unused += 1
        model.history.append(float(i))
        assert captured(Tensor([float(i)])).item() == 2.0 * i + 1
    assert len(runs) == 2


def test_a_function_that_counts_its_calls_is_captured() -> None:
    runs = 0
    items, by_name = [0], {"runs": 0}
    model = Model()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        global counted
        nonlocal runs
        runs += 1
        counted += 1
        items[0] += 1
        by_name["runs"] += 1
        model.step += 1
        model.history.append(0.0)
        return x + 1

    for i in range(6):
        assert f(Tensor([i])).item() == i + 1
    assert runs == model.step == len(model.history) == items[0] == by_name["runs"] == 2


def test_an_item_that_is_counted_and_read_is_no_count() -> None:
    items = [0.0]
    model = Model()
    model.history.append(0.0)
    same = model.history

    @TinyJit
    def f(x: Tensor) -> Tensor:
        items[0] += 1
        model.history[0] += 1
        return x * items[0] + same[0]

    for i in range(6):
        assert f(Tensor([2.0])).item() == 3 * (i + 1)


@pytest.mark.parametrize("kind", [list, dict])
def test_an_item_that_is_a_tensor_is_no_count(kind: type) -> None:
    state: Any = [Tensor([0.0])] if kind is list else {0: Tensor([0.0])}

    @TinyJit
    def f(x: Tensor) -> Tensor:
        state[0] += 1
        return x * 2

    for i in range(6):
        assert f(Tensor([i])).item() == 2 * i
    assert state[0].item() == 6
    assert f.jit_cache


def test_defaults_that_are_added_to() -> None:
    """A list among them is looked at only if the function does so, itself or in a lambda."""
    x = Tensor([1.0]).realize()

    @TinyJit
    def noted(x: Tensor, *, log: list[int] = []) -> Tensor:  # noqa: B006
        log.append(1)
        return x + 1

    for _ in range(5):
        assert noted(x).item() == 2
    assert noted._replays

    @TinyJit
    def counted(x: Tensor, log: list[int] = []) -> Tensor:  # noqa: B006
        log.append(1)
        return x * len(log)

    @TinyJit
    def within(x: Tensor, log: list[int] = []) -> Tensor:  # noqa: B006
        log.append(1)
        return (lambda: x * len(log))()

    for number in range(1, 7):
        assert counted(x).item() == within(x).item() == number


def test_a_function_that_reads_what_it_counts_runs_each_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = 0

    @TinyJit
    def f(x: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return x / steps

    with Context(DEBUG=1):
        for i in range(1, 40):
            assert f(Tensor([1.0])).item() == pytest.approx(1 / i)
    assert "it changes what it reads besides tensors: steps was 1, and is 2" in (
        capsys.readouterr().out
    )


def test_numbers_of_layers() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.LeakyReLU(0.1))
    captured = TinyJit(lambda x: model(x))
    x = Tensor([[1.0, 2.0, -3.0, 4.0]])
    for slope in (0.1, 0.1, 0.1, 0.5, 0.5):
        model[2].negative_slope = slope
        np.testing.assert_array_equal(captured(x).numpy(), model(x).numpy())


def test_settings_of_an_optimizer() -> None:
    def train(captured: bool) -> list[float]:
        p = Tensor([1.0, 2.0])
        optimizer = nn.optim.SGD([p], lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (p * x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        run = TinyJit(step) if captured else step
        losses = []
        for i in range(9):
            optimizer.param_groups[0]["weight_decay"] = 0.1 if 3 < i < 6 else 0.0
            losses.append(run(Tensor([1.0, -1.0])).item())
        return losses

    assert train(True) == train(False)


def test_partial_functions_and_defaults() -> None:
    config = Config(2.0)

    def scaled(config: Config, x: Tensor, *, other: Config = config) -> Tensor:
        return x * config.scale + other.scale

    captured = TinyJit(functools.partial(scaled, config))
    for scale in (2.0, 2.0, 2.0, 3.0, 3.0):
        config.scale = scale
        assert captured(Tensor([1.0])).item() == 2 * scale


def test_numpy_numbers_and_arrays() -> None:
    array = np.ones(2, np.float32)
    number = np.float32(1)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * Tensor(array) + float(number)

    for i in range(8):
        if i > 3:
            array[0] = i // 2
            number = np.float32(i // 3)
        expected = 2 * array + number
        np.testing.assert_array_equal(f(Tensor([2.0, 2.0])).numpy(), expected)


def test_large_arrays_are_read_anew(capsys: pytest.CaptureFixture[str]) -> None:
    array = np.ones(1 << 20, np.float32)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x + Tensor(array).sum()

    @TinyJit
    def size(x: Tensor) -> Tensor:
        return x + array.size

    with Context(DEBUG=1):
        for i in range(5):
            array[0] = 1 + i
            assert f(Tensor([1.0])).item() == 1 + array.size + i
            assert size(Tensor([1.0])).item() == 1 + array.size
    printed = capsys.readouterr().out
    assert "make that a tensor outside" in printed
    assert "TinyJit size: captured 1 kernel" in printed


def test_what_changes_in_every_call_is_not_captured_again_and_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = Config()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * config.scale

    with Context(DEBUG=1):
        for i in range(60):
            config = Config(float(i))
            assert f(Tensor([2.0])).item() == 2.0 * i
    printed = capsys.readouterr().out
    assert 1 < printed.count(": captured ") < 10


def test_numbers_of_inherited_methods() -> None:
    """The globals that a base class's methods name are looked at too."""

    class Child(Scaled):
        pass

    captured = TinyJit(Child().method)
    for i in range(4):
        globals()["weight"] = Tensor([float(i)]).realize()
        assert captured(Tensor([2.0])).item() == 2.0 * i


weight = Tensor([0.0])


class Scaled:
    def method(self, x: Tensor) -> Tensor:
        return x * weight
