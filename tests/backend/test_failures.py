"""Whatever raises in a `realize` or in a replay, nothing that a program can see has changed.

Each program here is a row of steps that compute at most once: by one `realize`, or by one call of a
captured function. Each allocation of a step fails in turn, each preparation of kernels, and each
launch is interrupted. Afterwards all contents are those from before the step, or, if an interrupt
came too late, those from after it. Then the step is made again, and the program ends as if nothing
had happened. Steps that compute several times are in `test_atomic_steps.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit
from ferrule.device import Compiled, Device
from ferrule.device.runner import BufferCopy, CompiledASTRunner, InterpretedASTRunner
from ferrule.engine.host import HostFunction
from ferrule.engine.random import manual_seed, stream_of
from ferrule.ir.buffer import allocators
from ferrule.nn.optim import SGD, Adam, Optimizer

Contents: TypeAlias = dict[str, Any]
Tensors: TypeAlias = dict[str, Tensor | None]
Step: TypeAlias = Callable[[], object]


class Failure(Exception):
    """What is raised where a test says so."""


def rows(*shape: int) -> Tensor:
    """A tensor in memory, of small numbers that differ."""
    places = np.arange(np.prod(shape), dtype=np.float32)
    return Tensor(((places * 7 % 13 - 6) / 8 + places / 256).reshape(shape)).realize()


def named(name: str, tensors: Sequence[Tensor | None]) -> Tensors:
    return {f"{name} {number}": tensor for number, tensor in enumerate(tensors)}


# *** programs ***


class Program:
    """Some tensors, and steps that change them and compute at most once each."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []

    def steps(self) -> list[Step]:
        raise NotImplementedError

    tested: Sequence[int] = (0, 1)
    """The numbers of the steps that are made to fail."""

    def tensors(self) -> Tensors:
        """All that the program can see; it can be read without any more memory."""
        raise NotImplementedError

    def contents(self) -> Contents:
        found: Contents = {}
        for name, tensor in self.tensors().items():
            found[name] = None if tensor is None else np.array(tensor.numpy(copy=False))
        return found


class Chain(Program):
    """Intermediate results, and several kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.weight = rows(6, 40), rows(40, 40)
        self.y = ((self.x @ self.weight).tanh() @ self.weight).softmax(-1)

    def second(self) -> None:
        self.results.append((self.y.sum(0) @ self.weight).exp().realize())

    def steps(self) -> list[Step]:
        return [self.y.realize, self.second]

    def tensors(self) -> Tensors:
        return {"x": self.x, "weight": self.weight, **named("result", self.results)}


class Writes(Program):
    """Writes to several tensors, which read what others write."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = rows(5, 8), rows(8), rows(3, 8)

    def step(self) -> None:
        self.a.assign(self.a * 0.5 + (self.a @ rows(8, 8)).sum(0))
        self.b += self.a.sum(0)
        self.c[1:] = self.b.softmax() * self.c[:1]
        self.b[2:4] = self.a.max()
        Tensor.realize(self.a, self.b, self.c)

    def steps(self) -> list[Step]:
        return [self.step] * 2

    def tensors(self) -> Tensors:
        return {"a": self.a, "b": self.b, "c": self.c}


class CapturedWrites(Writes):
    """Writes of a captured function, to an argument as well."""

    tested = (1, 2)  # the call that is captured, and the first replay

    def __init__(self) -> None:
        super().__init__()
        self.x = rows(8)
        self.captured = TinyJit(self.call)

    def call(self, x: Tensor) -> Tensor:
        self.a.assign(self.a * 0.5 + x)
        self.b += self.a.sum(0)
        self.b[2:4] = self.a.max()
        self.c[1:] = self.b.softmax() * self.c[:1]
        x += 1
        return (self.c @ self.a.transpose(0, 1)).tanh()

    def step(self) -> None:
        self.results.append(self.captured(self.x))

    def steps(self) -> list[Step]:
        return [self.step] * 4

    def tensors(self) -> Tensors:
        return {**super().tensors(), "x": self.x, **named("result", self.results)}


class State(Program):
    """States that a captured function replaces, and random numbers."""

    tested = (1, 2)

    def __init__(self) -> None:
        super().__init__()
        manual_seed(5)
        Tensor.rand(1).realize()  # the stream is in memory
        self.h, self.count, self.weight, self.x = rows(4, 6), rows(1), rows(6, 6), rows(4, 6)
        self.both = rows(2), rows(3)
        self.captured = TinyJit(self.call)

    def call(self, x: Tensor) -> Tensor:
        self.h = (self.h @ self.weight + x).tanh()
        self.both = self.both[0] * 0.5, self.both[1] + self.both[0].sum()
        self.count += 1
        return (self.h * Tensor.rand(4, 6) + self.count).softmax()

    def step(self) -> None:
        self.results.append(self.captured(self.x))

    def steps(self) -> list[Step]:
        return [self.step] * 4

    def tensors(self) -> Tensors:
        return {
            **{"h": self.h, "count": self.count, "weight": self.weight},
            **named("both", self.both),
            **named("result", self.results),
            "random": Tensor(stream_of(self.x.device)),
        }


class Host(State):
    """A function of the host, between kernels that write."""

    def call(self, x: Tensor) -> Tensor:
        self.h = (self.h @ self.weight + x).tanh()
        self.count += self.h.sum()
        ordered = self.h.sort()[0]
        self.weight *= ordered.sum().clip(1, 1.5)
        return ordered.softmax()


class Copies(State):
    """A capture that copies for its replays: data of the host, which a kernel writes over."""

    def call(self, x: Tensor) -> Tensor:
        data = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        self.count += data.sum()
        data += x.sum(0)
        self.h = data
        self.weight *= 0.5
        return x.contiguous()


class Training(Program):
    """A network with dropout, and an optimiser."""

    tested = (4, 5)  # the second time

    def __init__(self) -> None:
        super().__init__()
        manual_seed(5)
        Tensor.rand(1).realize()
        self.weights = [rows(6, 7), rows(7), rows(7, 3)]
        self.x = rows(4, 6)
        self.optimizer = self.made_for(self.weights)

    def made_for(self, weights: list[Tensor]) -> Optimizer:
        return Adam(weights, lr=0.1)

    def forward(self) -> None:
        self.loss = self.network(self.x)
        self.optimizer.zero_grad()
        self.loss.backward()

    def network(self, x: Tensor) -> Tensor:
        first, bias, last = self.weights
        with Tensor.train():
            hidden = (x @ first + bias).tanh().dropout(0.25)
        return (hidden @ last).square().mean()

    def backward(self) -> None:
        grads = [weight.grad for weight in self.weights]
        self.results.append(Tensor.realize(self.loss, *[g for g in grads if g is not None]))

    def steps(self) -> list[Step]:
        return [self.forward, self.backward, self.optimizer.step] * 2

    def tensors(self) -> Tensors:
        grads = named("grad", [weight.grad for weight in self.weights])
        found = {
            **named("weight", self.weights),
            **named("state", [t for one in self.optimizer.state for t in one.values()]),
            **named("result", self.results),
        }
        later = {**grads, "random": Tensor(stream_of(self.x.device))}  # than `forward`
        return found | {name: one for name, one in later.items() if one is None or _is_done(one)}


def _is_done(tensor: Tensor) -> bool:
    return tensor.lazydata.realized is not None


class TrainingBySGD(Training):
    def made_for(self, weights: list[Tensor]) -> Optimizer:
        return SGD(weights, lr=0.1, momentum=0.9)


class CapturedTraining(Training):
    """A training step as a captured function."""

    tested = (2,)  # a replay: the call that is captured computes several times

    def __init__(self) -> None:
        super().__init__()
        self.captured = TinyJit(self.call)
        self.kept: list[Any] = []

    def call(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad()
        loss = self.network(x)
        loss.backward()
        self.optimizer.step()
        return loss.realize(), loss * 2

    def step(self) -> None:
        self.results += self.captured(self.x)

    def steps(self) -> list[Step]:
        return [self.step] * 4


class CapturedTrainingBySGD(CapturedTraining):
    """One that gives the gradients of the call before to somebody else."""

    def made_for(self, weights: list[Tensor]) -> Optimizer:
        return SGD(weights, lr=0.1)

    def step(self) -> None:
        whole, aliased, lazy = [weight.grad for weight in self.weights]
        if whole is not None and aliased is not None and lazy is not None:
            self.kept = [whole, aliased.detach(), lazy * 2]
        super().step()


class Accumulation(CapturedTraining):
    """Gradients that add up over several calls."""

    def call(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.network(x)
        loss.backward()
        return loss, loss * 2


PREPARING = [Chain, Writes, CapturedWrites, State, Host, Copies, Training, TrainingBySGD]
REPLAYED = [CapturedTraining, CapturedTrainingBySGD, Accumulation]
programs = pytest.mark.parametrize("kind", [*PREPARING, *REPLAYED])


# *** failures ***


@contextmanager
def failing(
    target: object, name: str, at: int, error: BaseException, stays: bool
) -> Iterator[list[int]]:
    """A block in which call number `at` of a method raises, and all later ones if that `stays`.

    Gives how many calls there were.
    """
    original = getattr(target, name)
    calls = [0]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at or (stays and calls[0] > at):
            raise error
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, guarded)
        yield calls


@contextmanager
def interrupted(at: int) -> Iterator[list[int]]:
    """A block with Ctrl-C at launch number `at`."""
    calls = [0]

    def watched(plain: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                signal.raise_signal(signal.SIGINT)
            return plain(self, *args, **kwargs)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for kind in [CompiledASTRunner, InterpretedASTRunner, BufferCopy, HostFunction]:
            patch.setattr(kind, "__call__", watched(kind.__call__))
        yield calls


def assert_same(found: Contents, expected: Contents, where: str, *, exactly: bool = False) -> None:
    """The expected contents, up to how steps round: graphs that are held longer have other kernels.

    With `exactly`, to the bit.
    """
    assert expected.keys() <= found.keys(), where
    for name, other in expected.items():
        one = found[name]
        if one is None or other is None or exactly:
            np.testing.assert_array_equal(one, other, f"{where}: {name}")
        else:
            np.testing.assert_allclose(one, other, 1e-4, 1e-6, err_msg=f"{where}: {name}")


def course(kind: type[Program]) -> list[Contents]:
    """The contents before each step, and after the last."""
    program = kind()
    found = [program.contents()]
    for step in program.steps():
        step()
        found.append(program.contents())
    return found


def check(
    kind: type[Program],
    broken: Callable[[int], Any],
    error: type[BaseException],
    may_be_done: bool = False,
) -> None:
    """Fails each tested step at each place; `broken(k)` is a block in which the k-th call fails."""
    expected = course(kind)
    failures = 0
    for number in kind.tested:
        at, is_reached = 0, True
        while is_reached:
            at += 1
            where = f"step {number}, failure {at}"
            program = kind()
            steps = program.steps()
            for step in steps[:number]:
                step()
            before = program.contents()
            has_raised = False
            with broken(at) as calls:
                try:
                    steps[number]()
                except error:
                    has_raised = True
                is_reached = calls[0] >= at
                if not may_be_done:
                    found = program.contents()  # what raised may still raise
            if may_be_done:
                found = program.contents()
            is_done = not has_raised
            if has_raised and may_be_done and not _are_same(found, before):
                is_done = True
                program.results += _results_of(program, expected[number + 1])
                assert_same(program.contents(), expected[number + 1], where)
            elif has_raised:
                assert_same(found, before, where, exactly=True)
            for step in steps[number + is_done :]:
                step()
            assert_same(program.contents(), expected[-1], f"{where}, at the end")
            failures += is_reached
    assert failures


def _are_same(found: Contents, expected: Contents) -> bool:
    return all(np.array_equal(found[name], expected[name]) for name in expected)


def _results_of(program: Program, expected: Contents) -> list[Tensor]:
    """The results of a step that was done and raised, which are lost."""
    names = [name for name in expected if name.startswith("result")]
    return [Tensor(expected[name]).realize() for name in names[len(program.results) :]]


@programs
@pytest.mark.parametrize("stays", [True, False])
def test_an_allocation_fails(kind: type[Program], stays: bool, device: str) -> None:
    def broken(at: int) -> Any:
        return failing(allocators[device], "alloc", at, MemoryError("no room"), stays)

    check(kind, broken, MemoryError)


def test_a_gradient_that_somebody_holds_is_put_back_itself(device: str) -> None:
    program = CapturedTraining()
    for _ in range(3):
        program.step()
    first, second, third = [weight.grad for weight in program.weights]
    assert second is not None
    assert third is not None
    part, copy = second[:3], third.clone()
    del second, third
    no_room = failing(allocators[device], "alloc", 1, MemoryError("no room"), stays=True)
    with no_room, pytest.raises(MemoryError):
        program.step()
    assert program.weights[0].grad is first
    for weight in program.weights[1:]:
        assert weight.grad is not None
        weight.grad.assign(weight.grad * 0 + 1)
    assert part.tolist() == [1, 1, 1]
    assert copy.abs().max().item() != 1


def test_seeds_are_set_everywhere_or_nowhere(device: str) -> None:
    manual_seed(1)
    other = "NUMPY" if device != "NUMPY" else "CPU"
    for name in (device, other):
        Tensor.rand(1, device=name).realize()
    before = [Tensor(stream_of(name)).tolist() for name in (device, other)]
    for name in (device, other):
        with failing(allocators[name], "alloc", 1, MemoryError("no room"), stays=True):
            with pytest.raises(MemoryError):
                manual_seed(2)
            assert [Tensor(stream_of(name)).tolist() for name in (device, other)] == before


@pytest.mark.parametrize("kind", PREPARING)
@pytest.mark.parametrize("stays", [True, False])
def test_a_kernel_cannot_be_prepared(kind: type[Program], stays: bool, device: str) -> None:
    def broken(at: int) -> Any:
        Compiled.tuned += 1  # so that plans ask for their kernels again
        return failing(Device[device], "prepare", at, Failure("no"), stays)

    check(kind, broken, Failure)


@programs
def test_ctrl_c_at_a_launch(kind: type[Program], device: str) -> None:
    with Context(JIT=2):  # kernel by kernel
        check(kind, interrupted, KeyboardInterrupt, may_be_done=True)
