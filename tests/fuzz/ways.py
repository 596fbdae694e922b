"""Ways to run a program, which must all give what its statements mean one by one."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np

from ferrule import Context, Tensor, TinyJit, fusion
from ferrule.base.config import PASSES
from ferrule.fusion.plans import plan_cache
from ferrule.ir.storage import turn
from tests.fuzz.functions import DERIVATIVES, INSIDE, ORACLES, in_two, mapped, with_gradients
from tests.fuzz.given import NAMES
from tests.fuzz.program import Program, assigned
from tests.fuzz.reference import Outcome, state_of, to_array
from tests.fuzz.sizes import Sizes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Way:
    """A way to run a program. The defaults are plain: fused, eager, on NUMPY."""

    device: str = "NUMPY"
    cuts: tuple[tuple[int, str], ...] = ()
    """After which statements results are realised, or made contiguous."""
    jit: int = 0
    """The setting JIT under which the program is a `TinyJit`; 0: it is none."""
    late: bool = False
    """True if results are read after the last call, instead of after their own."""
    handed: bool = False
    """True if the arrays that results and the state hand out are kept, and not copied."""
    threads: int = 1
    """For kernels."""
    layout: int = 0
    """If not 0, the seed of how arguments lie in memory."""
    beside: int = 0
    """The number of other Python threads that run the same program at the same time."""
    skipped: str = ""
    """Optimisations that the scheduler leaves out, with commas between them."""
    derivative: str = ""
    """The way to find gradients: one of `DERIVATIVES`."""
    split: int = 0
    """If not 0, the statement at which the function becomes two, each captured if `jit` says so."""
    mapped: bool = False
    """True if all calls are one call of the function under `vmap`."""
    variable: int = 0
    """If not 0, the seed of which size of the arguments is a `Variable`."""
    outside: bool = False
    """True if the state is written between calls, with what is in it, by new tensors."""
    stored: bool = False
    """True if plans are forgotten before each call, but for those on disk, which are read again."""

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
            # A mapped function has its gradients inside.
            if value != getattr(plain, name) and not (name == "derivative" and self.mapped)
        ]
        if len(self.cuts) > 1:
            found += [replace(self, cuts=(cut,)) for cut in self.cuts]
        return found


CL_SHARE = 0.015
"""Of ways, on the device CL where there is one: its compiler takes a hundred times as long."""


def draw_way(program: Program, rng: random.Random, focus: str, devices: Sequence[str]) -> Way:
    """A random way that a program can be run in. Devices but for CL are equally likely."""
    kinds = ["realize"] if program.writes else ["realize", "contiguous"]
    cuts: list[tuple[int, str]] = []
    if rng.random() < 0.45:
        share = rng.choice([0.2, 0.5])
        places = range(len(program.body))
        cuts = [(place, rng.choice(kinds)) for place in places if rng.random() < share]
    jit = rng.choice([1, 1, 2, 3]) if rng.random() < (0.8 if focus == "jit" else 0.35) else 0
    beside = 0
    # What is drawn by chance is drawn by whichever thread comes first.
    if (not jit or focus == "threads") and not program.is_random:
        beside = rng.choice([1, 2]) if rng.random() < (0.8 if focus == "threads" else 0.03) else 0
    others = [device for device in devices if device != "CL"] or ["CL"]
    device = rng.choice(others)
    is_cl = rng.random() < CL_SHARE and "CL" in devices and focus != "threads"
    way = Way(
        device="CL" if is_cl else device,
        cuts=tuple(cuts),
        jit=jit,
        late=rng.random() < 0.4,
        handed=rng.random() < 0.3,
        threads=rng.choice([1, 1, 2, 7]),
        # A reshape of another layout may be a copy: what is then written is not seen in it.
        layout=rng.randint(1, 1000) if rng.random() < 0.3 and not program.writes else 0,
        beside=beside,
        skipped=_draw_skipped(rng),
        outside=bool(program.states) and rng.random() < 0.3,
        stored=rng.random() < 0.1,
    )
    if program.wanted and rng.random() < 0.6:
        way = replace(way, derivative=rng.choice([*DERIVATIVES, *ORACLES]))
    return _draw_form(program, way, rng)


def _draw_skipped(rng: random.Random) -> str:
    share = rng.random()
    if share < 0.8:
        return ""
    return ",".join(PASSES) if share < 0.82 else ",".join(rng.sample(PASSES, rng.choice([1, 1, 2])))


def _draw_form(program: Program, way: Way, rng: random.Random) -> Way:
    """The way, perhaps of a function that is another one, or of arguments that are."""
    kind = rng.random()
    lanes_are_calls = not (program.writes and program.states) and not program.is_random
    if way.derivative in ORACLES:
        return replace(way, mapped=True) if kind < 0.3 and lanes_are_calls else way
    if (
        kind < 0.12
        and program.calls > 1
        and program.arguments
        and not any("call" in source.made for source in program.arguments)
        and lanes_are_calls
    ):
        derivative = way.derivative if way.derivative in INSIDE else "grad"
        return replace(way, mapped=True, cuts=(), derivative=derivative if program.wanted else "")
    # What a function captured has no gradients by what is in it.
    is_whole = bool(program.wanted) or program.trains
    if 0.12 < kind < 0.24 and len(program.body) > 1 and not is_whole:
        return replace(way, split=rng.randint(1, len(program.body) - 1), cuts=())
    # What is drawn for a variable size is that of the largest.
    may_differ = bool(program.arguments) and not (program.is_random or program.squeezes)
    if 0.24 < kind < 0.38 and may_differ and not way.beside and not program.writes_to_copies:
        return replace(way, variable=rng.randint(1, 1000), layout=0)
    return way


def settings_of(way: Way) -> dict[str, Any]:
    """The settings under which a program is run."""
    return {
        "FERRULE_DEVICE": way.device,
        "FERRULE_NUM_THREADS": way.threads,
        "FERRULE_SKIP": way.skipped,
        **({"JIT": way.jit} if way.jit else {}),
    }


def draw_ways(
    program: Program, rng: random.Random, focus: str, devices: Sequence[str], count: int
) -> list[Way]:
    """Ways for a program: the plain one, which costs little and fuses all, and random ones."""
    return [Way(), *(draw_way(program, rng, focus, devices) for _ in range(count))]


def run(program: Program, way: Way) -> Outcome:
    """Runs a program in a way; raises what it raises."""
    # Those of a few nodes are not stored otherwise.
    stored = patch.object(plan_cache, "MIN_PARTS", 1) if way.stored else nullcontext()
    with Context(**settings_of(way)), stored:
        if way.beside:
            return _run_beside(program, way)
        return _Run(program, way).all_calls()


def _run_beside(program: Program, way: Way) -> Outcome:
    """Runs the program in several threads at once; a thread that differs is the outcome."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(way.beside + 1)

    def work() -> None:
        try:
            with Context(**settings_of(way)):
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
        self.wanted = [
            place for place, s in enumerate(program.arguments) if s.name in program.wanted
        ]
        self.names: dict[str, Any] = {**NAMES, "__name__": "program"}
        self.names["rng"] = program.rng(-1)
        for source in program.states:
            self.names[source.name] = eval(source.made, self.names)
        if program.is_random:
            Tensor.manual_seed(program.seed)
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
        if self.way.split:
            return in_two(self.program, self.way.split, self.names, bool(self.way.jit))
        exec(self.program.step_text(extra), self.names)
        step: Callable[..., Sequence[Tensor]] = self.names["step"]
        function = with_gradients(step, self.wanted, self.way.derivative)
        if self.way.mapped:
            function = mapped(function)
        return TinyJit(function) if self.way.jit else function

    def arguments(self, call: int) -> list[Tensor]:
        rng = self.program.rng(call)
        names = {**self.names, "rng": rng, "call": call}
        layouts = random.Random(self.way.layout)
        made = []
        for source in self.program.arguments:
            tensor = eval(source.made, names)
            if self.way.layout:
                tensor = laid_out(tensor, layouts)
            made.append(tensor)
        return made

    def all_arguments(self) -> Iterator[list[Tensor]]:
        """The arguments of each call."""
        calls: Iterable[list[Tensor]] = map(self.arguments, range(self.program.calls))
        if self.way.variable:
            calls = list(calls)
            sizes = Sizes(calls, self.way.variable)
            calls = [sizes.bound(tensors) for tensors in calls]
        for tensors in calls:
            for place in self.wanted:
                tensors[place].requires_grad_()
            yield tensors

    def all_calls(self) -> Outcome:
        if self.way.mapped:
            return self.calls_at_once()
        kept = []
        outcome = Outcome()
        # A result may be a view of the state, which later calls write to.
        late = self.way.late and not (self.program.writes and self.program.states)
        for arguments in self.all_arguments():
            if self.way.stored:
                with turn:  # no thread beside is amid its plan
                    fusion._plans.clear()
            results = self.function(*arguments)
            kept.append(results)
            if not late:
                self.add(outcome, results)
            if self.way.outside:
                self.write_state()
        for results in kept if late else ():
            self.add(outcome, results)
        return outcome

    def add(self, outcome: Outcome, results: Iterable[Tensor]) -> None:
        """Reads what a call gave, and the state after it."""
        handed = self.way.handed
        outcome.add([to_array(x, handed) for x in results], self.program, self.names, handed)

    def calls_at_once(self) -> Outcome:
        """All calls as one under `vmap`, which is made three times, as the third is a replay."""
        calls = [[x.detach() for x in arguments] for arguments in self.all_arguments()]
        for _ in range(3 if self.way.jit else 1):
            results = self.function(calls)
        outcome = Outcome()
        for found in results:
            self.add(outcome, found)
        return outcome

    def write_state(self) -> None:
        with Tensor.no_grad():
            for tensor in state_of(self.program, self.names).values():
                tensor.assign(Tensor(tensor.detach().numpy(), dtype=tensor.dtype))


def laid_out(tensor: Tensor, rng: random.Random) -> Tensor:
    """The same values in other memory: transposed, with gaps, backwards, or further in."""
    array = tensor.numpy()
    kind = rng.choice(["same", "transposed", "gaps", "backwards", "inside", "last"])
    if array.ndim == 4 and rng.random() < 0.5:
        kind = "last"
    if array.ndim == 0 or kind == "same":
        return tensor
    dtype = tensor.dtype
    if kind == "transposed":
        order = rng.sample(range(array.ndim), array.ndim)
        base = Tensor(np.ascontiguousarray(array.transpose(order)), dtype=dtype)
        return base.permute(tuple(int(place) for place in np.argsort(order)))
    if kind == "last":  # the second axis last in memory, as in images with channels last
        base = Tensor(
            np.ascontiguousarray(np.moveaxis(array, min(1, array.ndim - 1), -1)), dtype=dtype
        )
        return base.movedim(-1, min(1, array.ndim - 1))
    if kind == "gaps":
        base = Tensor(np.repeat(array, 2, -1), dtype=dtype)
        return base[..., ::2]
    if kind == "backwards":
        return Tensor(np.ascontiguousarray(np.flip(array, 0)), dtype=dtype).flip(0)
    end = np.zeros_like(array[:1])
    base = Tensor(np.concatenate([end, array, end]), dtype=dtype)
    return base[array.shape[0] and 1 : array.shape[0] + 1] if array.shape[0] else base
