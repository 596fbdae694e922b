"""What is said where a function cannot be captured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ferrule.autograd import GradientError
from ferrule.base.config import Context
from ferrule.device.capture import Capture, GraphException
from ferrule.errors import LinalgError
from ferrule.ir.expr import Variable
from ferrule.jit import JitError, TinyJit
from ferrule.tensor import Tensor

THIS_FILE = Path(__file__).name


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: bool(x),
        lambda x: float(x),
        lambda x: np.asarray(x),
    ],
    ids=["item", "tolist", "numpy", "bool", "float", "asarray"],
)
def test_reading_values_inside(read: Any) -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = x + 1
        read(y)
        return y

    f(Tensor([1.0]))
    with pytest.raises(JitError, match="values are read inside a captured function") as raised:
        f(Tensor([1.0]))
    message = str(raised.value)
    assert THIS_FILE in message
    assert "Return the tensor and read it outside" in message
    assert f.cnt == 1


def test_the_line_of_the_user_is_named() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * x.item()

    line = f.fxn.__code__.co_firstlineno + 2
    f(Tensor([1.0]))
    with pytest.raises(JitError, match=f"{THIS_FILE}:{line}: "):
        f(Tensor([1.0]))


def test_reading_is_fine_again_afterwards() -> None:
    @TinyJit
    def f(x: Tensor, read: bool) -> Tensor:
        y = x + 1
        return y * 2 if read and y.item() > 0 else y

    f(Tensor([1.0]), False)
    with pytest.raises(JitError):
        f(Tensor([1.0]), True)
    assert Tensor([3.0]).item() == 3
    for i in range(3):
        assert f(Tensor([float(i)]), False).item() == i + 1


@pytest.mark.parametrize(
    "value", [1, 2.5, "text", np.zeros(2), object()], ids=lambda value: type(value).__name__
)
def test_returning_anything_but_tensors(value: object) -> None:
    @TinyJit
    def f(x: Tensor) -> Any:
        return (x + 1, [value])

    f(Tensor([1.0]))
    with pytest.raises(JitError, match=f"returns {type(value).__name__} .* return tensors"):
        f(Tensor([1.0]))


def test_a_variable_with_two_values() -> None:
    n = Variable("n", 1, 8)

    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum()

    x = Tensor(np.ones(8, np.float32)).realize()
    f(x[: n.bind(2)], x[: n.bind(2)])
    with pytest.raises(ValueError, match="variable n is 2 in one argument and 3 in another"):
        f(x[: n.bind(2)], x[: n.bind(3)])


@pytest.mark.parametrize("part", [False, True])
def test_writing_to_what_is_passed_and_reached(part: bool) -> None:
    class Model:
        def __init__(self) -> None:
            self.state = Tensor([1.0, 2.0]).realize()

        @TinyJit
        def f(self, x: Tensor, write: bool) -> Tensor:
            if write and part:
                x[1:] = 5.0
            elif write:
                x.assign(x + 1)
            return self.state + x

    model = Model()
    for _ in range(3):
        assert model.f(Tensor([1.0, 2.0]), False).tolist() == [2, 4]
    with pytest.raises(
        JitError, match=r"writes to an argument of shape .2,. that it can also reach"
    ):
        model.f(model.state, True)


@pytest.mark.parametrize("view", [lambda x: x.reshape(4), lambda x: x.T, lambda x: x[1]])
def test_writing_to_a_view_of_what_is_reached(view: Callable[[Tensor], Tensor]) -> None:
    state = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()

    @TinyJit
    def f(x: Tensor, write: bool) -> Tensor:
        if write:
            x += 10
        return state + x.sum()

    for _ in range(3):
        f(view(state), False)
    with pytest.raises(JitError, match=r"writes to an argument of shape .* that it can also reach"):
        f(view(state), True)


def test_writing_to_a_part_of_another_tensor_later() -> None:
    data = Tensor([float(i) for i in range(8)]).realize()

    @TinyJit
    def f(x: Tensor, write: bool) -> Tensor:
        if write:
            x.assign(x + 1)
        return x * 2

    for start in (0, 4, 0, 4, 0):
        f(data[start : start + 4], False)
    with pytest.raises(JitError, match=r"an argument of shape \(4,\) that is a part of another"):
        f(data[0:4], True)


def test_methods_of_objects_that_nobody_can_watch() -> None:
    class Slotted:
        __slots__ = ("rate",)

        @TinyJit
        def scaled(self, x: Tensor) -> Tensor:
            return x * 2

    message = "method of Slotted: nobody is told .*; add '__weakref__' to its __slots__, or"
    with pytest.raises(JitError, match=message):
        Slotted().scaled(Tensor([1.0]))


def test_captures_do_not_nest() -> None:
    with (
        Capture(),
        pytest.raises(JitError, match="a capture cannot begin inside another"),
        Capture(),
    ):
        pass


def test_a_graph_exception_has_a_message() -> None:
    error = GraphException("no room")
    assert error.message == str(error) == "no room"
    assert GraphException().message == ""


def test_the_reason_for_not_capturing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Model:
        state: ClassVar = {"hidden": Tensor([0.0])}

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.state = {"hidden": self.state["hidden"] + x}
            return self.state["hidden"]

    model = Model()
    with Context(DEBUG=1):
        for _ in range(3):
            model.step(Tensor([1.0]))
    assert "step: run plainly because it moves tensors" in capsys.readouterr().out


def test_a_gradient_from_outside_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)

    @TinyJit
    def add_to_gradient(x: Tensor) -> Tensor:
        return (weight * x).sum().backward()

    with Context(DEBUG=1):
        for _ in range(4):
            weight.grad = Tensor([1.0, 1.0, 1.0])[1:]
            add_to_gradient(Tensor([3.0, 4.0]).realize())
            assert weight.grad.tolist() == [4.0, 5.0]
    expected = "again because the gradient of a tensor of shape (2,) was made anew outside, and"
    assert expected in capsys.readouterr().out


def test_a_replayed_result_has_no_tape() -> None:
    """What the first two calls return has one, so that the way out has to be named."""
    weight = Tensor([1.0, 2.0], requires_grad=True)
    loss = TinyJit(lambda x: (weight * x).sum())
    for _ in range(2):
        loss(Tensor([3.0, 4.0]).realize()).backward()
    with pytest.raises(GradientError, match=r"call backward\(\) in the captured function"):
        loss(Tensor([3.0, 4.0]).realize()).backward()


def test_a_state_that_is_replaced_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Model:
        def __init__(self) -> None:
            self.state = [Tensor([0.0]).realize()]

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.state = [(self.state[0] + x).realize()]
            return self.state[0] * 2

    model = Model()
    with Context(DEBUG=1):
        for number in range(4):
            assert model.step(Tensor([1.0]).realize()).item() == 2 * number + 2
    printed = capsys.readouterr().out
    assert "moves tensors about in a way that replays cannot follow" in printed


def test_a_write_that_raises_is_the_error_of_the_first_who_reads_it() -> None:
    written, other = Tensor(np.zeros((2, 2), np.float32)).realize(), Tensor([1.0]).realize()
    double, read = TinyJit(lambda x: x * 2), TinyJit(lambda x: x + written)
    for _ in range(3):
        double(other)
        read(other)
    assert double.jit_cache
    assert read.jit_cache
    written.assign(Tensor([[-1.0, 0.0], [0.0, 1.0]]).cholesky())
    also_written = other.clone().realize()
    also_written.assign(other * 5)
    for number in range(3):
        assert double(Tensor([number])).tolist() == [2 * number]
    with pytest.raises(LinalgError, match="not positive definite"):
        read(other)
    assert also_written.tolist() == [5]
    assert written.tolist() == [[0, 0], [0, 0]]
    assert read(other).tolist() == [[1, 1], [1, 1]]
    written.assign(Tensor(np.ones((2, 2), np.float32)))
    assert read(other).tolist() == [[2, 2], [2, 2]]
