"""Ways to run a program, which must all give what its statements mean one by one."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from ferrule import Context, Tensor, TinyJit
from tests.fuzz.program import Program, assigned
from tests.fuzz.reference import Outcome, gradients

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Way:
    """How to run a program. The defaults are plain: fused, eager, on NUMPY."""

    device: str = "NUMPY"
    cuts: tuple[tuple[int, str], ...] = ()
    """After which statements results are realised, or made contiguous."""
    jit: int = 0
    """The setting JIT under which the program is a `TinyJit`; 0: it is none."""
    late: bool = False
    """True if results are read after the last call, instead of after their own."""
    threads: int = 1
    """For kernels."""
    layout: int = 0
    """If not 0, the seed of how arguments lie in memory."""
    beside: int = 0
    """How many other Python threads run the same program at the same time."""

    def __str__(self) -> str:
        plain = Way()
        parts = [self.device]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "device" and value != getattr(plain, field.name):
                parts.append(f"{field.name}={value}")
        return " ".join(parts)

    def simpler(self) -> list[Way]:
        """The ways that are this one but for one decision."""
        plain = Way()
        found = [
            replace(self, **{name: getattr(plain, name)})
            for name, value in asdict(self).items()
            if value != getattr(plain, name)
        ]
        if len(self.cuts) > 1:
            found += [replace(self, cuts=(cut,)) for cut in self.cuts]
        return found


def draw_way(program: Program, rng: random.Random, focus: str, devices: Sequence[str]) -> Way:
    """A random way that a program can be run in."""
    cuts: list[tuple[int, str]] = []
    kinds = ["realize"] if program.writes else ["realize", "contiguous"]
    if rng.random() < 0.45:
        share = rng.choice([0.2, 0.5])
        places = range(len(program.body))
        cuts = [(place, rng.choice(kinds)) for place in places if rng.random() < share]
    jit = rng.choice([1, 1, 2]) if rng.random() < (0.8 if focus == "jit" else 0.35) else 0
    beside = 0
    if not jit or focus == "threads":
        beside = rng.choice([1, 2]) if rng.random() < (0.8 if focus == "threads" else 0.03) else 0
    return Way(
        device=rng.choice(devices),
        cuts=tuple(cuts),
        jit=jit,
        late=rng.random() < 0.4,
        threads=rng.choice([1, 1, 2, 7]),
        # A reshape of another layout may be a copy: what is then written is not seen in it.
        layout=rng.randint(1, 1000) if rng.random() < 0.3 and not program.writes else 0,
        beside=beside,
    )


def draw_ways(
    program: Program, rng: random.Random, focus: str, devices: Sequence[str], count: int
) -> list[Way]:
    """Ways for a program: the plain one, which costs little and fuses all, and random ones."""
    return [Way(), *(draw_way(program, rng, focus, devices) for _ in range(count))]


def run(program: Program, way: Way) -> Outcome:
    """Runs a program in a way; raises what it raises."""
    settings = {"FERRULE_DEVICE": way.device, "FERRULE_NUM_THREADS": way.threads}
    with ExitStack() as stack:
        stack.enter_context(Context(**settings, **({"JIT": way.jit} if way.jit else {})))
        if way.beside:
            return _run_beside(program, way, settings)
        return _Run(program, way).all_calls()


def _run_beside(program: Program, way: Way, settings: dict[str, Any]) -> Outcome:
    """Runs the program in several threads at once; a thread that differs is the outcome."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(way.beside + 1)

    def work() -> None:
        try:
            with Context(**settings, **({"JIT": way.jit} if way.jit else {})):
                barrier.wait(20)
                outcomes.append(_Run(program, way).all_calls())
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work) for _ in range(way.beside + 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    for outcome in outcomes[1:]:
        if not same_bits(outcome, outcomes[0]):
            return outcome
    return outcomes[0]


def same_bits(a: Outcome, b: Outcome) -> bool:
    pairs = zip(chain(*a.calls), chain(*b.calls), strict=True)
    return all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


class _Run:
    """A program about to be run: its function, and its state."""

    def __init__(self, program: Program, way: Way) -> None:
        self.program, self.way = program, way
        self.names: dict[str, Any] = {"np": np, "Tensor": Tensor, "__name__": "program"}
        self.names["rng"] = program.rng(-1)
        for source in program.states:
            self.names[source.name] = eval(source.made, self.names)
        self.function = self.compile()

    def compile(self) -> Callable[..., Sequence[Tensor]]:
        extra: dict[int, list[str]] = {}
        for place, kind in self.way.cuts:
            if place < len(self.program.body):
                for name in assigned(self.program.body[place]):
                    text = f"{name}.realize()"
                    if kind == "contiguous":
                        text = f"{name} = {name}.contiguous()"
                    extra.setdefault(place, []).append(f"if isinstance({name}, Tensor): {text}")
        exec(self.program.step_text(extra), self.names)
        step: Callable[..., Sequence[Tensor]] = self.names["step"]
        wanted = [
            place
            for place, source in enumerate(self.program.arguments)
            if source.name in self.program.wanted
        ]

        def whole(*arguments: Tensor) -> Sequence[Tensor]:
            results = step(*arguments)
            if not wanted:
                return results
            return (*results, *gradients(results, [arguments[place] for place in wanted]))

        return TinyJit(whole) if self.way.jit else whole

    def arguments(self, call: int) -> list[Tensor]:
        rng = self.program.rng(call)
        names = {**self.names, "rng": rng}
        layouts = random.Random(self.way.layout)
        made = []
        for source in self.program.arguments:
            tensor = eval(source.made, names)
            if self.way.layout:
                tensor = laid_out(tensor, layouts)
            if source.name in self.program.wanted:
                tensor.requires_grad_()
            made.append(tensor)
        return made

    def all_calls(self) -> Outcome:
        kept = []
        outcome = Outcome()
        # A result may be a view of the state, which later calls write to.
        late = self.way.late and not (self.program.writes and self.program.states)
        for call in range(self.program.calls):
            results = self.function(*self.arguments(call))
            kept.append(results)
            if not late:
                outcome.calls.append([*map(to_array, results), *self.state()])
        if late:
            outcome.calls = [[*map(to_array, results), *self.state()] for results in kept]
        return outcome

    def state(self) -> list[Array]:
        return [to_array(self.names[source.name]) for source in self.program.states]


def to_array(tensor: Tensor) -> Array:
    array = tensor.detach().numpy()
    assert array.shape == tensor.shape, f"shape {tensor.shape}, and in memory {array.shape}"
    assert array.dtype == tensor.dtype.np, f"dtype {tensor.dtype}, and in memory {array.dtype}"
    return array


def laid_out(tensor: Tensor, rng: random.Random) -> Tensor:
    """The same values in other memory: transposed, with gaps, backwards, or further in."""
    array = tensor.numpy()
    kind = rng.choice(["same", "transposed", "gaps", "backwards", "inside", "last"])
    if array.ndim == 0 or kind == "same":
        return tensor
    dtype = tensor.dtype
    if kind == "transposed":
        order = rng.sample(range(array.ndim), array.ndim)
        base = Tensor(np.ascontiguousarray(array.transpose(order)), dtype=dtype)
        return base.permute(tuple(int(place) for place in np.argsort(order)))
    if kind == "last":  # the second axis last in memory, as in images with channels last
        base = Tensor(np.ascontiguousarray(np.moveaxis(array, min(1, array.ndim - 1), -1)))
        return base.movedim(-1, min(1, array.ndim - 1))
    if kind == "gaps":
        base = Tensor(np.repeat(array, 2, -1), dtype=dtype)
        return base[..., ::2]
    if kind == "backwards":
        return Tensor(np.ascontiguousarray(np.flip(array, 0)), dtype=dtype).flip(0)
    base = Tensor(np.concatenate([array[:1] * 0, array, array[:1] * 0]), dtype=dtype)
    return base[array.shape[0] and 1 : array.shape[0] + 1] if array.shape[0] else base
