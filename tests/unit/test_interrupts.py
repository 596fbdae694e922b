"""Ctrl-C while memory is written over: what is begun is finished, once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ferrule.device.runner
from ferrule.base.config import Context
from ferrule.base.interrupts import Whole
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor


@pytest.fixture(autouse=True, params=["CPU", "NUMPY"])
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    with Context(FERRULE_DEVICE=request.param, JIT=2):  # kernel by kernel
        yield


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupting(monkeypatch: pytest.MonkeyPatch, after: int = 1) -> Callable[[], int]:
    """Ctrl-C after so many kernels; gives how many ran."""
    runs = 0

    def watched(plain: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            result = plain(self, *args, **kwargs)
            runs += 1
            if runs == after:
                press()
            return result

        return run

    for kind in (
        ferrule.device.runner.CompiledASTRunner,
        ferrule.device.runner.InterpretedASTRunner,
    ):
        monkeypatch.setattr(kind, "__call__", watched(kind.__call__))
    return lambda: runs


@pytest.mark.parametrize("after", [1, 2, 3])
def test_writes_are_done_once(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    a, b = Tensor([1.0, 2.0]).realize(), Tensor([[1.0, 2.0]] * 3).realize()
    total = a.sum()
    a.assign(a + total)
    b.assign(b * total + a)
    runs = interrupting(monkeypatch, after)
    with pytest.raises(KeyboardInterrupt):
        b.realize()
    assert runs() == 3
    assert a.tolist() == [4, 5]
    assert b.tolist() == [[7, 11]] * 3


def test_what_writes_over_nothing_ends_at_once_and_is_computed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = Tensor([1.0, 2.0]).realize()
    b = a + a.sum()
    runs = interrupting(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        b.realize()
    assert runs() == 1
    assert b.tolist() == [4, 5]


def test_a_replay_leaves_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Tensor([1.0, 2.0]).requires_grad_()
    moment = Tensor([0.0, 0.0]).realize()

    class Count:
        state = Tensor([0.0]).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        assert weight.grad is not None
        with Tensor.no_grad():
            moment.assign(moment * 0.5 + weight.grad)
            weight.assign(weight - moment)
        Count.state = Count.state + 1
        return loss

    for _ in range(4):
        step(Tensor([1.0, 2.0]))
    assert step.jit_cache
    before = weight.numpy(), moment.numpy()
    with monkeypatch.context() as patch:
        runs = interrupting(patch)
        with pytest.raises(KeyboardInterrupt):
            step(Tensor([1.0, 2.0]))
        assert runs() > 1
    expected = before[1] * 0.5 + np.array([1, 2], np.float32)
    np.testing.assert_equal(moment.numpy(), expected)
    np.testing.assert_equal(weight.numpy(), before[0] - expected)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 2]
    assert Count.state.tolist() == [5]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupted(work: Callable[[], object]) -> KeyboardInterrupt:
    """What a block with some work raises."""
    with pytest.raises(KeyboardInterrupt) as raised, Whole():
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return raised.value


def test_the_second_time_ends_a_block_at_once() -> None:
    done = []

    def work() -> None:
        press()
        done.append(1)
        press()
        done.append(2)

    interrupted(work)
    assert done == [1]


def test_a_block_in_a_block() -> None:
    done = []

    def work() -> None:
        with Whole():
            press()
        done.append(1)

    interrupted(work)
    assert done == [1]


def test_a_block_that_raises_and_is_interrupted() -> None:
    def work() -> None:
        press()
        raise ValueError("what went wrong")

    assert isinstance(interrupted(work).__context__, ValueError)


def test_a_program_that_handles_the_signal_itself() -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with Whole():
            press()
            assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_not_told() -> None:
    def work() -> None:
        with Whole():
            done.append(signal.getsignal(signal.SIGINT))

    done: list[Any] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]
