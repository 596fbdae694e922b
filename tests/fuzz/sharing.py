"""Threads that share tensors: some add to them, others read, and nothing is lost or torn.

What each thread does is drawn. All writes add, so that their order does not matter: in the end a
tensor holds the sum of all. Each write is of a whole half, so that every read finds equal elements
in a half, and no thread ever reads less than it has read before.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from ferrule import Context, Tensor, TinyJit
from tests.fuzz.check import Finding, finding_beside

SHARE = 0.05
"""Of the programs, beside which threads that share tensors are drawn."""
SHARE_OF_THREADS = 0.5
"""The same where threads are what is looked for."""
SIZES = (2, 6, 1000, 66000)
TENSORS = 2
"""Shared ones, `w0` and `w1`, each with `v0` and `v1`, views of its second half."""
MOST_THREADS, MOST_STEPS = 5, 8
PATIENCE = 60.0
"""Seconds for all threads, after which they wait for each other for ever."""

CAPTURED = (
    "(w{n}.add_(x) * 1).realize()",
    "(w{n}.add_(x).sum() * 0).realize()",
    "(Tensor.cat(w{n}[:h].add_(x), v{n}.add_(x)) * 1).realize()",
    "(w{n}.add_(x) - w{m}.add_(x)).realize()",
)
"""Functions that add `x` to shared tensors: `add0` and so on, each for one of the tensors."""
WRITES = (
    *("w{n}.add_({c})", "w{n}.add_({c}).realize()", "w{n}.add_(Tensor([{c}.0]))"),
    *("w{n}.add_(Tensor.full((2 * h,), {c}.0))", "brief(lambda: w{n}.add_({c}))"),
    "both(w{n}[:h].add_({c}), v{n}.add_({c}))",
)
"""Each adds `c` to one shared tensor."""
READS = (
    *("w{n}.numpy()", "(w{n} * 2).numpy() / 2", "w{n}.numpy(copy=False)", "v{n}.numpy()"),
    *("w{n}.clone().numpy()", "w{n}.clone().add_(1).numpy() - 1", "w{n}.tolist()"),
    *("(w{n} * 1).realize().numpy()", "look{n}(Tensor([2.0])).numpy() / 2", "w{n}[h:].numpy()"),
)
IDLE = (
    *("(Tensor([1.0]) * 2).realize()", "brief(lambda: Tensor([1.0]).add_(2))"),
    "brief(lambda: (Tensor.zeros(3).contiguous() + 1).realize())",
)


class Step:
    """One statement of a thread: code, and by how much it makes each shared tensor grow."""

    def __init__(self, rng: Random, captured: list[str]) -> None:
        self.read: int | None = None
        """The number of the tensor that the statement reads."""
        self.adds = [0] * TENSORS
        n, c = rng.randrange(TENSORS), rng.randint(0, 3)
        kind = rng.random()
        if kind < 0.3:
            self.code = rng.choice(WRITES).format(n=n, c=c)
            self.adds[n] = c
        elif kind < 0.6:
            number = rng.randrange(len(captured))
            self.code = f"add{number}(Tensor([{c}.0]))"
            self.adds = [c * (f"w{n}" in captured[number]) for n in range(TENSORS)]
        elif kind < 0.9:
            self.code, self.read = rng.choice(READS).format(n=n), n
        else:
            self.code = rng.choice(IDLE)
        self.held = self.read is not None and rng.random() < 0.2
        """True if something lazy is made of the tensor, and read after the last statement."""
        if self.held:
            self.code = f"w{n} * 1"


class Threads:
    """What some threads do to the tensors that they share."""

    def __init__(self, rng: Random) -> None:
        self.size = rng.choice(SIZES)
        self.device = rng.choice(["NUMPY", "NUMPY", "CPU"])
        self.interval = rng.choice([1e-6, 1e-5, 1e-4])
        numbers = rng.sample(range(TENSORS), TENSORS)
        templates = rng.choices(CAPTURED, k=rng.choice([1, 2, 3]))
        self.captured = [text.format(n=numbers[0], m=numbers[1]) for text in templates]
        self.steps = [
            [Step(rng, self.captured) for _ in range(rng.randint(1, MOST_STEPS))]
            for _ in range(rng.randint(2, MOST_THREADS))
        ]
        self.totals = [
            sum(step.adds[n] for steps in self.steps for step in steps) for n in range(TENSORS)
        ]

    def __str__(self) -> str:
        lines = [f"{self.device}, {self.size} elements, a switch after {self.interval:g} seconds"]
        lines += [f"add{n} = TinyJit(lambda x: {text})" for n, text in enumerate(self.captured)]
        for number, steps in enumerate(self.steps):
            lines.append(f"thread {number}:")
            lines += [f"    {'held: ' * step.held}{step.code}" for step in steps]
        return "\n".join(lines)

    def mistakes(self) -> list[str]:
        """What went wrong in the threads, or what the tensors hold in the end; mostly nothing."""
        said: list[str] = []
        before = sys.getswitchinterval()
        sys.setswitchinterval(self.interval)
        try:
            with Context(FERRULE_DEVICE=self.device):
                names = self.names()
                threads = [
                    threading.Thread(target=self.work, args=(number, names, said), daemon=True)
                    for number in range(len(self.steps))
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(PATIENCE)
                if any(thread.is_alive() for thread in threads):
                    return [*said, "threads wait for ever"]
                for n, total in enumerate(self.totals):
                    found = names[f"w{n}"].numpy()
                    if not (found == total).all():
                        said.append(f"w{n} is {found} in the end, not {total}")
        finally:
            sys.setswitchinterval(before)
        return said

    def mistake(self) -> str:
        """All `mistakes` in one text."""
        return "\n".join(self.mistakes())

    def names(self) -> dict[str, Any]:
        h = self.size // 2
        names: dict[str, Any] = {"Tensor": Tensor, "h": h, "brief": brief, "both": both}
        for n in range(TENSORS):
            w = names[f"w{n}"] = Tensor.zeros(2 * h).contiguous().realize()
            names[f"v{n}"] = w[h:]
            names[f"look{n}"] = TinyJit(lambda x, w=w: (w * x).realize())
        for n, text in enumerate(self.captured):
            names[f"add{n}"] = TinyJit(eval(f"lambda x: {text}", names))
        return names

    def work(self, number: int, names: dict[str, Any], said: list[str]) -> None:
        """The life of one thread."""
        least = [np.zeros(2) for _ in range(TENSORS)]
        held: list[tuple[Step, Tensor]] = []
        try:
            with Context(FERRULE_DEVICE=self.device):
                for step in self.steps[number]:
                    found = eval(step.code, names)
                    if step.held:
                        held.append((step, found))
                    elif step.read is not None:
                        least[step.read] = self.halves(np.asarray(found), step, least[step.read])
                for step, tensor in held:
                    self.halves(tensor.numpy(), step, np.zeros(2))
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-3:])
            said.append(f"thread {number}: {text}")

    def halves(self, found: np.ndarray, step: Step, least: np.ndarray) -> np.ndarray:
        """The numbers in both halves of what was read, which are no less than before."""
        assert step.read is not None
        h = self.size // 2
        parts = [found[:h], found[h:]] if len(found) > h else [found]
        numbers = np.array([part[0] for part in parts])
        equal = all((part == part[0]).all() for part in parts)
        total = self.totals[step.read]
        if not equal or (numbers < least[-len(parts) :]).any() or (numbers > total).any():
            raise ValueError(f"{step.code} is {found}, after {least}, of {total} in all")
        return np.concatenate([least[: 2 - len(parts)], numbers])


def brief(work: Callable[[], object]) -> None:
    """Calls `work()` in a thread that ends then, which may leave a write for others to do."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def both(*_: object) -> None:
    """Two statements as one."""


def finding(seed: int, index: int, focus: str) -> Finding | None:
    """A finding in threads that share tensors, drawn for a share of the programs."""
    rng = Random(f"sharing:{seed}:{index}")
    if rng.random() > (SHARE_OF_THREADS if focus == "threads" else SHARE):
        return None
    threads = Threads(rng)
    return finding_beside("threads that share tensors", threads, threads.mistake)
