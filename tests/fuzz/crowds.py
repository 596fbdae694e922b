"""Eight threads at once, each with its own tensors and captured functions, and some shared ones.

What each thread does is drawn. A thread writes to its own tensors only, and to shared totals in
captured functions that add to them. So each of its results is, to the bit, that of the same thread
alone without captures, and the totals are sums.

`python -m tests.fuzz.crowds ROUNDS [SEED]` runs many of them.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from random import Random
from typing import Any

import numpy as np

from ferrule import Context, Tensor, TinyJit
from tests.fuzz.check import Finding, finding_beside

SHARE = 0.02
"""Of the programs, beside which crowds are drawn."""
SHARE_OF_THREADS = 0.3
"""The same where threads are what is looked for."""
THREADS, MOST_STEPS, INPUTS = 8, 8, 3
SIZES = (2, 5, 64)
PATIENCE = 60.0
"""Seconds for all threads, after which they wait for each other for ever."""

SHARED = (
    "(x * k).realize()",
    "(x + k.sum(), x - k)",
    "(x.reshape(1, -1) * k.reshape(-1, 1)).sum(1)",
    "(x * c * k).relu().realize()",
)
"""Captured functions that all threads call; `k` and `c` are read only."""
TOTALS = ("(total.add_(x.sum()) * 0).abs().realize()", "total.assign(total + x.sum()) * 0 + x")
"""Captured functions that all threads call, and that add to one tensor of all."""
OWN = (
    "(a.assign(a * 0.5 + x) * k).realize()",
    "(b.add_(x) + a).realize()",
    "(x * k + a, b.sum())",
    "first(shared0(x)) + a",
    "descend(p, x, k)",
    "(b.assign(b + x).realize(), a * rate[0])",
)
"""Captured functions of one thread, with its own tensors `a`, `b`, `p` and numbers `rate`."""
STEPS = (
    *("own0(x{j})", "own1(x{j})", "own0(x{j})", "own1(x{j})", "shared0(x{j})", "shared1(x{j})"),
    *("count(x{j})", "own0(x{j} + 1)", "shared0(wide[{j}])", "own1(wide[{j}])"),
    *("a.numpy()", "(a * k).numpy()", "b[1:].tolist()", "a.clone().add_(1)", "p.grad"),
    *("a.add_({j})", "b.assign(x{j})", "rate.__setitem__(0, {j}.5)", "shared1(b)"),
)
"""Statements; what each of them gives is compared."""


def descend(p: Tensor, x: Tensor, k: Tensor) -> Tensor:
    """A step of gradient descent, which leaves the gradient."""
    p.grad = None
    loss = (p * x - k).square().sum()
    loss.backward()
    assert p.grad is not None
    with Tensor.no_grad():
        p.assign(p - p.grad * 0.125)
    return loss.realize(p, p.grad)


def first(found: Any) -> Tensor:
    """The first of several results, or the only one."""
    return found[0] if isinstance(found, tuple) else found


class Crowd:
    """What the threads do."""

    def __init__(self, rng: Random) -> None:
        self.size = rng.choice(SIZES)
        self.device = rng.choice(["NUMPY", "CPU"])
        self.interval = rng.choice([1e-6, 1e-5, 1e-4])
        self.shared = rng.choices(SHARED, k=2)
        self.total = rng.choice(TOTALS)
        self.own = [rng.choices(OWN, k=2) for _ in range(THREADS)]
        self.steps = [
            [rng.choice(STEPS).format(j=rng.randrange(INPUTS)) for _ in range(rng.randint(3, 8))]
            for _ in range(THREADS)
        ]

    def __str__(self) -> str:
        lines = [f"{self.device}, {self.size} elements, a switch after {self.interval:g} seconds"]
        lines += [f"shared{n} = TinyJit(lambda x: {text})" for n, text in enumerate(self.shared)]
        lines.append(f"count = TinyJit(lambda x: {self.total})")
        for number, steps in enumerate(self.steps):
            lines.append(f"thread {number}:")
            lines += [
                f"    own{n} = TinyJit(lambda x: {s})" for n, s in enumerate(self.own[number])
            ]
            lines += [f"    {step}" for step in steps]
        return "\n".join(lines)

    def names_of_all(self) -> dict[str, Any]:
        names: dict[str, Any] = {"Tensor": Tensor, "descend": descend, "first": first}
        names["c"] = 3.0
        names["k"] = Tensor(np.arange(1, self.size + 1, dtype=np.float32)).realize()
        names["total"] = Tensor([0.0]).realize()
        for n, text in enumerate(self.shared):
            names[f"shared{n}"] = TinyJit(eval(f"lambda x: {text}", names))
        names["count"] = TinyJit(eval(f"lambda x: {self.total}", names))
        return names

    def results(self, number: int, shared: dict[str, Any]) -> list[Any]:
        """What the steps of a thread give."""
        names = dict(shared)
        rng = np.random.RandomState(number)
        wide = rng.randint(-3, 4, (INPUTS, self.size)).astype(np.float32)
        names["wide"] = Tensor(wide).realize()
        names |= {f"x{j}": Tensor(row).realize() for j, row in enumerate(wide)}
        names |= {"a": Tensor(wide[0]).realize(), "b": Tensor(wide[1]).realize(), "rate": [0.5]}
        names["p"] = Tensor(wide[2], requires_grad=True).realize()
        for n, text in enumerate(self.own[number]):
            names[f"own{n}"] = TinyJit(eval(f"lambda x: {text}", names))
        return [contents(eval(step, names)) for step in self.steps[number] * 2]

    def mistake(self) -> str:
        """What went wrong; mostly nothing."""
        said: list[str] = []
        with Context(FERRULE_DEVICE=self.device, JIT=0):
            names = self.names_of_all()
            wanted = [self.results(number, names) for number in range(THREADS)]
            total = names["total"].item()
        before = sys.getswitchinterval()
        sys.setswitchinterval(self.interval)
        try:
            with Context(FERRULE_DEVICE=self.device):
                names = self.names_of_all()
                threads = [
                    threading.Thread(
                        target=self.work, args=(n, names, wanted[n], said), daemon=True
                    )
                    for n in range(THREADS)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(PATIENCE)
                if any(thread.is_alive() for thread in threads):
                    return "\n".join([*said, "threads wait for ever"])
                if not said and names["total"].item() != total:
                    said.append(f"the total is {names['total'].item()}, not {total}")
        finally:
            sys.setswitchinterval(before)
        return "\n".join(said)

    def work(self, number: int, names: dict[str, Any], wanted: list[Any], said: list[str]) -> None:
        """The life of one thread."""
        try:
            with Context(FERRULE_DEVICE=self.device):
                found = self.results(number, names)
        except Exception as error:
            said.append(f"thread {number}: {''.join(traceback.format_exception(error)[-3:])}")
            return
        steps = self.steps[number] * 2
        for step, now, alone in zip(steps, found, wanted, strict=True):
            if now != alone:
                said.append(f"thread {number}: {step} gives {now}, and alone {alone}")
                return


def contents(found: Any) -> Any:
    """What can be compared, to the bit."""
    if isinstance(found, tuple):
        return tuple(contents(part) for part in found)
    if isinstance(found, Tensor | np.ndarray):
        array = found.numpy() if isinstance(found, Tensor) else found
        return [float(number).hex() for number in array.reshape(-1)]
    return found


def finding(seed: int, index: int, focus: str) -> Finding | None:
    """A finding in a crowd of threads, drawn for a share of the programs."""
    rng = Random(f"crowd:{seed}:{index}")
    if rng.random() > (SHARE_OF_THREADS if focus == "threads" else SHARE):
        return None
    crowd = Crowd(rng)
    return finding_beside("a crowd of threads", crowd, crowd.mistake)


def main(rounds: int, seed: int = 0) -> int:
    """Runs many; prints the mistakes, and returns how many there were."""
    mistakes, start = 0, time.monotonic()
    for index in range(rounds):
        crowd = Crowd(Random(f"crowd:{seed}:{index}"))
        said = crowd.mistake()
        if said:
            mistakes += 1
            print(f"round {index}: {crowd}\n{said}", flush=True)
    print(f"{rounds} rounds in {time.monotonic() - start:.0f} s, {mistakes} mistakes")
    return mistakes


if __name__ == "__main__":
    sys.exit(min(main(*map(int, sys.argv[1:])), 1))
