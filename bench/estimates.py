"""How good the estimate of a kernel's time is: what its choice loses against the best candidate.

The kernels are those of `drawn_programs.py`, which the constants of the estimate were not set by.
The candidates of each are the schedules that `ferrule.tune` begins with, and edits of them. All are
compiled and timed by turns, and the least time of each is kept. The loss of a choice is its time
over that of the fastest candidate.

    .venv/bin/python bench/estimates.py [--threads 1] [--seed 0] [class ...]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log

import numpy as np
from drawn_programs import Drawn, drawn

from ferrule import Context, Device
from ferrule.codegen.estimate import cycles
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.mutate import Opts, neighbours
from ferrule.codegen.search import seeds
from ferrule.device import Compiled, CompiledASTRunner, JITRunner, observer
from ferrule.device.runner import watched_since
from ferrule.ir.buffer import Buffer, newest_serial
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.target import Target

SEEDS, EDITS = 10, 12
"""Candidates of a kernel, at most."""
ROUNDS = 7
ROUND_S = 0.003
"""Seconds of one candidate in each round."""
LEAST_RUNS = 3
"""Runs in each round; another process may have the core in one of them."""
HOPELESS = 3.0
"""The loss from which on a candidate has two rounds only."""


@dataclass
class Candidate:
    """A schedule of a kernel: its opts, estimated cycles and least measured seconds."""

    opts: Opts
    estimate: float
    run: Callable[[], float]
    seconds: float = float("inf")


def kernels_of(program: Drawn) -> dict[LazyOp, list[Buffer]]:
    """The kernels that a program runs, with the buffers of one run."""
    generator = np.random.default_rng(0)
    given = [operand.tensor(generator) for operand in program.operands]
    found: dict[LazyOp, list[Buffer]] = {}

    def watch(
        runner: JITRunner, buffers: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> float | None:
        if isinstance(runner, CompiledASTRunner) and runner.ast is not None and not var_vals:
            found.setdefault(runner.ast, list(buffers))
        return runner(buffers, var_vals, wait=True)

    token, since = observer.set(watch), watched_since.set(newest_serial())
    try:
        results = program.function(*given)
        for result in results if isinstance(results, list) else [results]:
            result.realize()
    finally:
        observer.reset(token)
        watched_since.reset(since)
    return found


def candidates_of(
    device: Compiled, target: Target, ast: LazyOp, buffers: list[Buffer]
) -> list[Candidate]:
    """The candidates of a kernel, compiled; the heuristic's own choice is the first."""
    kernel = Linearizer(ast, target).kernel
    found = list(islice(seeds(kernel, target), SEEDS))
    found += neighbours(kernel, found[0], target)[:EDITS]
    candidates = []
    for opts in dict.fromkeys(found):
        try:
            linearizer = Linearizer(ast, target, opts)
            runner = device.to_program(linearizer)
        except Exception:  # an edit need not be legal, and is found out at any stage
            if opts is found[0]:
                raise
            continue
        estimate = cycles(linearizer.scheduled, target)
        run = _timed(runner, buffers)
        candidates.append(Candidate(opts, estimate, run))
    return candidates


def _timed(runner: CompiledASTRunner, buffers: list[Buffer]) -> Callable[[], float]:
    """A run of a kernel; it gives the seconds that it took."""

    def run() -> float:
        taken = runner(buffers, {}, wait=True)
        assert taken is not None
        return taken

    return run


def measure(candidates: Sequence[Candidate]) -> None:
    """Time candidates by turns."""
    for number in range(ROUNDS):
        best = min(candidate.seconds for candidate in candidates)
        for candidate in candidates:
            if number > 1 and candidate.seconds > HOPELESS * best:
                continue
            candidate.run()
            stop = time.perf_counter() + ROUND_S
            runs = 0
            while runs < LEAST_RUNS or time.perf_counter() < stop:
                candidate.seconds = min(candidate.seconds, candidate.run())
                runs += 1


def measured(
    classes: Sequence[str], seed: int, threads: int
) -> Iterator[tuple[str, LazyOp, list[Candidate]]]:
    """The different kernels of the programs, and their candidates, timed."""
    device = Device["CPU"]
    assert isinstance(device, Compiled)
    target = replace(device.linearizer_opts, max_threads=threads)
    done: set[LazyOp] = set()
    for program in drawn(seed, classes):
        # Without kernels for any length, which programs of several shapes get.
        with Context(FERRULE_NUM_THREADS=threads, FERRULE_SKIP="lengths"):
            for ast, buffers in kernels_of(program).items():
                if ast not in done:
                    done.add(ast)
                    candidates = candidates_of(device, target, ast, buffers)
                    if len(candidates) > 1:
                        measure(candidates)
                        yield program.name, ast, candidates


def main() -> None:
    """Print the loss of each kernel, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", help="classes of drawn_programs.py; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=Device["CPU"].linearizer_opts.max_threads)
    given = parser.parse_args()
    losses: dict[str, list[float]] = defaultdict(list)
    for name, _, candidates in measured(given.classes, given.seed, given.threads):
        best = min(candidate.seconds for candidate in candidates)
        least = min(candidates, key=lambda candidate: candidate.estimate)
        of_least, own = least.seconds / best, candidates[0].seconds / best
        losses["the least estimate"].append(of_least)
        losses["what the rules choose"].append(own)
        figures = f"{of_least:6.2f} {own:6.2f} {best * 1e6:10.1f} us {len(candidates):3d}"
        print(f"{name[:60]:60s} {figures}", flush=True)
    for title, values in losses.items():
        mean = exp(sum(map(log, values)) / len(values))
        over = sum(value > 1.5 for value in values)
        print(
            f"{title}: {len(values)} kernels, {mean:.3f}, at most {max(values):.2f}; {over} > 1.5"
        )


if __name__ == "__main__":
    main()
