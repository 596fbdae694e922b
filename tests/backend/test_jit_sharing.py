"""Results of a replay share memory with arguments, and with one another, as in a plain call."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")


def _flipped(x: Tensor) -> tuple[Tensor, ...]:
    return x.flip(0), (x * 2).realize()


def _parts_of_an_argument(x: Tensor) -> tuple[Tensor, ...]:
    return x[1:3], x.reshape(2, 2).T, x.detach(), x.detach()[2]


def _parts_of_one_value(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).contiguous()
    return y[1:3], y.reshape(2, 2), y.detach(), y


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return tuple((x + 1).chunk(2))


def _parts_under_no_grad(x: Tensor) -> tuple[Tensor, ...]:
    with Tensor.no_grad():
        return x[1:], x.flip(0)[:2]


@pytest.mark.parametrize(
    "function",
    [_flipped, _parts_of_an_argument, _parts_of_one_value, _chunks, _parts_under_no_grad],
)
@pytest.mark.parametrize("given", ["memory", "a part", "a view"])
def test_results_share_memory_as_those_of_the_plain_function_do(
    function: Callable[[Tensor], tuple[Tensor, ...]], given: str
) -> None:
    runs: list[int] = []

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        runs.append(0)
        return function(x)

    for call in range(6):
        seen = []
        for run in (function, step):
            whole = Tensor(np.arange(8, dtype=np.float32) + call).realize()
            x = {"memory": whole[:4].clone(), "a part": whole[call % 3 :][:4]}.get(
                given, whole[::2]
            )
            results = run(x.realize())
            wrote = [*results, x]
            for number, tensor in enumerate(wrote):
                tensor.assign(tensor * 10 + number)
            seen.append([tensor.numpy() for tensor in [*wrote, whole]])
        for expected, found in zip(*seen, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert len(runs) == (3 if given == "a part" else 2)


def test_a_view_of_a_captured_argument_left_in_an_attribute_shares_its_memory() -> None:
    kept = SimpleNamespace(last=Tensor([0.0]).realize())

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept.last = x[1:3]
        return (x * 2).realize()

    for call in range(4):
        x = (Tensor([1.0, 2.0, 3.0]) * (call + 1)).realize()
        step(x)
        x.assign(x * 10)
        np.testing.assert_array_equal(kept.last.numpy(), x.numpy()[1:3])


def test_gradients_flow_through_a_view_that_a_replay_returns() -> None:
    @TinyJit
    def rows(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:], x.detach()[1:]

    for _ in range(4):
        x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
        view, detached = rows(x)
        (view * 5).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 5.0, 5.0]
        assert view.requires_grad
        assert not detached.requires_grad


def _added_up(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    (weight * x).sum().backward()
    assert weight.grad is not None
    return weight.grad[1:], weight.grad.detach(), weight.grad.sum().realize()


def _read(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    assert weight.grad is not None
    return weight.grad.flip(0), (weight.grad * x).sum().realize()


def _let_go(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    assert weight.grad is not None
    left = weight.grad.detach()
    weight.grad = None
    return left[1:], (left * x).realize()


@pytest.mark.parametrize("function", [_added_up, _read, _let_go])
def test_views_of_a_gradient_that_a_captured_function_finds_are_of_that_of_the_call(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> None:
    runs: list[float] = []
    found: list[list[list[object]]] = []
    for is_captured in (False, True):
        weight = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
        settings = SimpleNamespace(scale=1.0)

        def step(
            x: Tensor, weight: Tensor = weight, settings: SimpleNamespace = settings
        ) -> tuple[Tensor, ...]:
            runs.append(0)
            return function(weight, x * settings.scale)

        run = TinyJit(step) if is_captured else step
        runs.clear()
        seen: list[list[object]] = []
        for call in range(10):
            settings.scale = 1.0 if call < 5 else 2.0  # captured again, with what is known then
            gradient = Tensor([10.0 * call, 1.0 * call, 2.0]).realize()
            weight.grad = gradient
            results = run(Tensor([1.0, 2.0, 3.0 * call]).realize())
            before = [tensor.tolist() for tensor in results]
            gradient.assign(gradient * 3)
            seen.append([*before, *[tensor.tolist() for tensor in results]])
        found.append(seen)
    assert found[0] == found[1]
    assert len(runs) == 3
