"""Errors in the middle of a training step: it is done as a whole or not at all.

Whatever raises, an allocation, a compiler, a function of the host, an interrupt, all parameters and
all state of the optimiser are as they were, or all are as after the step. Either way the program
can go on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit
from ferrule.device import Device
from ferrule.engine.host import HostFunction
from ferrule.ir.buffer import allocators
from ferrule.ir.storage import Storage
from ferrule.nn.optim import LBFGS, Adam

STEPS = 4  # of a captured function: it runs, it is captured, and replayed twice
Contents = list[np.ndarray[Any, Any]]


class Failure(Exception):
    """What is raised where a test says so."""


class Model:
    """Three parameters, which an optimiser updates."""

    def __init__(self, captured: bool) -> None:
        random = np.random.RandomState(3)
        shapes = [(5, 7), (7,), (7, 3)]
        self.weights = [Tensor(random.rand(*s).astype(np.float32)).realize() for s in shapes]
        self.optimizer = Adam(self.weights, lr=0.1)
        self.data = [random.rand(4, 5).astype(np.float32) for _ in range(STEPS)]
        self.step: Callable[[Tensor], Any] = TinyJit(self._step) if captured else self._step

    def _step(self, x: Tensor) -> Tensor:
        first, bias, last = self.weights
        self.optimizer.zero_grad()
        loss = ((x @ first + bias).tanh() @ last).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.realize()

    def contents(self) -> Contents:
        """All numbers of the model and of its optimiser."""
        state = [tensor for one in self.optimizer.state for tensor in one.values()]
        return [tensor.numpy() for tensor in [*self.weights, *state]]

    def run(self, number: int) -> None:
        self.step(Tensor(self.data[number]).realize())


def course(captured: bool, kind: type[Model]) -> list[Contents]:
    """What a model contains before each of its steps, and after the last."""
    model = kind(captured)
    found = [model.contents()]
    for number in range(STEPS):
        model.run(number)
        found.append(model.contents())
    return found


def same(a: Contents, b: Contents) -> bool:
    """Equality, up to how a step rounds: graphs that are held longer have other kernels."""
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-7) for x, y in zip(a, b, strict=True))


@contextmanager
def failing(target: object, name: str, at: int, error: BaseException) -> Iterator[list[int]]:
    """A block in which a method raises from call number `at` on; gives how many calls there were.

    So whatever is still to be done then is not done when somebody looks.
    """
    original = getattr(target, name)
    calls = [0]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] >= at:
            raise error
        return original(*args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(target, name, guarded)
    try:
        yield calls
    finally:
        patch.undo()


def check(
    captured: bool,
    broken: Callable[[int], Any],
    error: type[BaseException],
    kind: type[Model] = Model,
) -> None:
    """Fails each step at each place; `broken(k)` is a block in which the k-th call raises."""
    expected = course(captured, kind)
    for number in range(STEPS):
        at, has_raised = 0, True
        while has_raised:
            at += 1
            model = kind(captured)
            for before in range(number):
                model.run(before)
            has_raised = False
            with broken(at) as calls:
                try:
                    model.run(number)
                except error:
                    has_raised = True
                reached = calls[0] >= at
                found = model.contents()
            is_done = same(found, expected[number + 1])
            where = f"step {number}, call {at}"
            assert is_done or same(found, expected[number]), f"{where}: half a step was done"
            assert is_done or has_raised, f"{where}: nothing was done, and nothing raised"
            for after in range(number + is_done, STEPS):
                model.run(after)
            assert same(model.contents(), expected[STEPS]), f"{where}: it goes on differently"
            has_raised = reached


ways = pytest.mark.parametrize("captured", [False, True])


@ways
def test_an_allocation_that_fails(captured: bool, device: str) -> None:
    def broken(at: int) -> Any:
        return failing(allocators[device], "alloc", at, MemoryError("no room"))

    check(captured, broken, MemoryError)


@ways
@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_kernels_that_cannot_be_prepared(
    error: type[BaseException], captured: bool, device: str
) -> None:
    def broken(at: int) -> Any:
        return failing(Device[device], "prepare", at, error("no"))

    check(captured, broken, error)


@ways
@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_writes_that_are_built_halfway(
    error: type[BaseException], captured: bool, device: str
) -> None:
    check(captured, lambda at: failing(Storage, "write", at, error("no")), error)


@ways
@pytest.mark.parametrize("jit", [1, 2])
def test_a_function_of_the_host_that_raises(jit: int, captured: bool, device: str) -> None:
    """It runs between writes in place; `JIT=2` replays item by item."""

    class WithHost(Model):
        def _step(self, x: Tensor) -> Tensor:
            with Tensor.no_grad():
                self.weights[0].assign(self.weights[0] * 2)
                scale = self.weights[0].sort()[0].sum().clip(1, 1)
                self.weights[1].assign(self.weights[1] * scale * 2)
            return Tensor.realize(*self.weights)

    def broken(at: int) -> Any:
        return failing(HostFunction, "__call__", at, Failure("no"))

    with Context(JIT=jit):
        check(captured, broken, Failure, WithHost)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_search_that_raises_halfway(at: int, device: str) -> None:
    """LBFGS moves the parameters before it calls the closure again."""
    weight = Tensor([3.0, -4.0]).realize()
    optimizer = LBFGS([weight], line_search_fn="strong_wolfe")
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Failure("no")
        optimizer.zero_grad()
        return ((weight - 1) ** 4).sum().backward()

    with pytest.raises(Failure):
        optimizer.step(closure)
    assert weight.tolist() == [3.0, -4.0]
    assert optimizer.state_dict()["state"][0]["old_stps"] == []
    optimizer.step(closure)
    np.testing.assert_allclose(weight.numpy(), [1, 1], atol=0.2)
