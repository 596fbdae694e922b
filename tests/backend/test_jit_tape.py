"""Captured functions and the tape: what was recorded before a call, and which tensors need it."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit


def _ones(value: float) -> Tensor:
    return (Tensor.ones(4) * value).contiguous().realize()


WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a factor": lambda w, call: w * (3 if call % 4 < 2 else 5),
    "a factor, computed": lambda w, call: (w * (3 if call % 4 < 2 else 5)).realize(),
    "a movement": lambda w, call: (w.flip(0) if call % 4 < 2 else w * 1).contiguous().realize(),
}
"""What is on the tape is the same to look at, but gradients go other ways from there."""


@pytest.mark.parametrize("name", WAYS)
def test_a_backward_pass_that_goes_on_through_an_argument(name: str) -> None:
    weight = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()

    def step(h: Tensor, x: Tensor) -> Tensor:
        weight.grad = None
        (h * x).sum().backward()
        assert weight.grad is not None
        return weight.grad * 1

    captured = TinyJit(step)
    x = Tensor([1.0, 10.0, 100.0, 1000.0]).realize()
    for call in range(8):
        expected = step(WAYS[name](weight, call), x).numpy()
        np.testing.assert_array_equal(captured(WAYS[name](weight, call), x).numpy(), expected)


@pytest.mark.parametrize("name", WAYS)
def test_a_backward_pass_that_goes_on_through_what_the_function_finds(name: str) -> None:
    weight = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()
    kept = SimpleNamespace(h=weight)

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (kept.h * x).sum().backward()
        assert weight.grad is not None
        return weight.grad * 1

    captured = TinyJit(step)
    x = Tensor([1.0, 10.0, 100.0, 1000.0]).realize()
    for call in range(8):
        kept.h = WAYS[name](weight, call)
        expected = step(x).numpy()
        kept.h = WAYS[name](weight, call)
        np.testing.assert_array_equal(captured(x).numpy(), expected)


@pytest.mark.parametrize("name", WAYS)
def test_a_backward_pass_that_goes_on_through_a_gradient(name: str) -> None:
    weight = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()
    parameter = Tensor([1.0, 1.0, 1.0, 1.0], requires_grad=True).realize()

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        assert parameter.grad is not None
        (parameter.grad * x).sum().backward()
        return weight.grad * 1 if weight.grad is not None else x

    captured = TinyJit(step)
    x = Tensor([1.0, 10.0, 100.0, 1000.0]).realize()
    for call in range(8):
        parameter.grad = WAYS[name](weight, call)
        expected = step(x).numpy()
        parameter.grad = WAYS[name](weight, call)
        np.testing.assert_array_equal(captured(x).numpy(), expected)


def test_what_is_not_captured_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    weight = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()

    @TinyJit
    def step(h: Tensor) -> None:
        h.sum().backward()

    with Context(DEBUG=1):
        step(weight * 2)
        step(weight * 2)
    assert "backward() in it goes on through what was computed before" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags", [[True] * 4 + [False] * 4, [False] * 4 + [True] * 4, [True, False] * 4]
)
def test_a_parameter_is_frozen_or_no_more(flags: list[bool]) -> None:
    first = Tensor([2.0, 3.0], requires_grad=True).realize()
    second = Tensor([1.0, 5.0], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> None:
        first.grad = second.grad = None
        (first * second * x).sum().backward()

    for call, flag in enumerate(flags):
        first.requires_grad = flag
        step(Tensor([call, 1.0]).realize())
        assert second.grad is not None
        assert second.grad.tolist() == [2 * call, 3]
        assert (first.grad is not None) == flag
        if first.grad is not None:
            assert first.grad.tolist() == [call, 5]


def test_a_tensor_that_required_no_gradient_and_is_gone() -> None:
    weight = Tensor([2.0, 3.0], requires_grad=True).realize()
    kept = SimpleNamespace(other=Tensor([1.0, 1.0]).realize())

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        assert weight.grad is not None
        return weight.grad if x is kept.other else weight.grad * 2

    for call in range(6):
        if call == 3:
            kept.other = None
        weight.requires_grad = call < 5
        if call == 5:
            with pytest.raises(RuntimeError, match="requires a gradient"):
                step(Tensor([call, 1.0]).realize())
        else:
            assert step(Tensor([call, 1.0]).realize()).tolist() == [2 * call, 2]


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shared memory": lambda tensor, weight: tensor.detach(),
    "a view": lambda tensor, weight: tensor.reshape(2, 2).reshape(4),
    "a part": lambda tensor, weight: Tensor.cat(tensor, tensor).realize()[2:6],
    "on the tape": lambda tensor, weight: tensor + weight * 0,
    "on the tape, computed": lambda tensor, weight: (tensor + weight * 0).realize(),
}


def _adds(parameter: Tensor, x: Tensor) -> Tensor:
    (parameter * x).sum().backward()
    assert parameter.grad is not None
    return parameter.grad * 1


def _writes(parameter: Tensor, x: Tensor) -> Tensor:
    assert parameter.grad is not None
    parameter.grad *= x
    return parameter.grad + 1


def _takes(parameter: Tensor, x: Tensor) -> Tensor:
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    return gradient * x


@pytest.mark.parametrize("use", [_adds, _writes, _takes])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_a_view_or_on_the_tape(
    name: str, use: Callable[[Tensor, Tensor], Tensor]
) -> None:
    weight = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()
    parameters = [Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize() for _ in range(2)]
    captured = TinyJit(lambda x: use(parameters[1], x))
    for call in range(8):
        tensors = [_ones(call), _ones(call)]
        for parameter, tensor in zip(parameters, tensors, strict=True):
            if call % 3 != 2 or parameter.grad is None:
                parameter.grad = GRADIENTS[name](tensor, weight)
        x = _ones(call + 2)
        expected = use(parameters[0], x)
        found = captured(x)
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        np.testing.assert_array_equal(tensors[1].numpy(), tensors[0].numpy())
        first, second = [parameter.grad for parameter in parameters]
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            np.testing.assert_array_equal(second.numpy(), first.numpy())


def _doubles(parameter: Tensor, x: Tensor) -> Tensor:
    assert parameter.grad is not None
    parameter.grad *= 2
    return x + parameter.grad


def _replaces(parameter: Tensor, x: Tensor) -> Tensor:
    assert parameter.grad is not None
    parameter.grad = parameter.grad + x * 3
    return x * 5 + parameter.grad


@pytest.mark.parametrize("use", [_adds, _doubles, _replaces])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("shared", ["x", ".x", "x.", "..x"])
def test_a_gradient_is_in_the_memory_of_an_argument(
    shared: str, detached: bool, use: Callable[[Tensor, Tensor], Tensor]
) -> None:
    parameters = [Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize() for _ in range(2)]
    captured = TinyJit(lambda x: use(parameters[1], x))
    for call in range(9):
        given = [_ones(call + 1), _ones(call + 1)]
        is_shared = shared[call % len(shared)] == "x"
        for parameter, x in zip(parameters, given, strict=True):
            parameter.grad = _ones(10) if not is_shared else x.detach() if detached else x
        found, expected = captured(given[1]), use(parameters[0], given[0])
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        np.testing.assert_array_equal(given[1].numpy(), given[0].numpy())
        assert parameters[0].grad is not None
        assert parameters[1].grad is not None
        np.testing.assert_array_equal(parameters[1].grad.numpy(), parameters[0].grad.numpy())


@pytest.mark.parametrize("shared", ["x", ".x", "x.", "..x"])
def test_two_gradients_are_in_one_memory(shared: str) -> None:
    first, second = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        assert first.grad is not None
        assert second.grad is not None
        first.grad *= 2
        return x + first.grad + second.grad

    for call in range(9):
        is_shared = shared[call % len(shared)] == "x"
        first.grad = Tensor([10.0, 20.0]).realize()
        second.grad = first.grad if is_shared else Tensor([1.0, 2.0]).realize()
        expected = [call + 40.0, call + 80] if is_shared else [call + 21.0, call + 42]
        assert step(Tensor([call, call]).float().realize()).tolist() == expected
        assert second.grad.tolist() == ([20, 40] if is_shared else [1, 2])


def test_a_replay_that_makes_a_gradient_is_not_that_which_adds_to_one(device: str) -> None:
    weight = Tensor(np.zeros(4, np.float32), requires_grad=True).realize()

    @TinyJit
    def collect(x: Tensor) -> None:
        (weight * x).sum().backward()

    expected = np.zeros(4)
    for call in range(9):
        if call < 4 or call == 7:
            weight.grad, expected = None, np.zeros(4)
        collect(Tensor(np.arange(4, dtype=np.float32) + call))
        expected += np.arange(4) + call
        assert weight.grad is not None
        np.testing.assert_array_equal(weight.grad.numpy(), expected)
