"""`python -m tests.fuzz.mutants`: measures how many careless edits the machine would have found.

Each mutation (see `mutations.py`) is made in a copy of the package, which the machine then runs on
until its first finding. A finding counts if the package as it is does not have it too. Exits with 1
if fewer were killed than `--least`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import PARTS, Mutation, all_mutations, drawn

ROOT = Path(__file__).resolve().parents[2]
FILE = "its file"
# What each part is mostly about, where its mutants are looked for; others by methods of their file.
FOCI = {
    "ir": ("views", ""),
    "autograd": ("gradients", FILE),
    "fusion": ("aliases", "", "contractions"),
    "codegen": ("", "contractions"),
}
ROUND = 30.0
"""Seconds of one run of the machine, after which the next focus and seed are taken."""
MOST_FALSE = 3
"""Findings of the package as it is, after which a mutant is given up."""
SMOKE_SECONDS = 60.0
GRACE = 120.0
"""Seconds that a run may take beyond its time, on a busy machine."""

SMOKE = """
import numpy as np
from ferrule import Context, Tensor
a = np.arange(24.0, dtype=np.float32).reshape(4, 6) - 7
for device in ("NUMPY", "CPU"):
    with Context(FERRULE_DEVICE=device):
        x = Tensor(a).requires_grad_()
        y = (x.T.reshape(2, 12)[:, ::-1] * 2 + 1).relu().sum(1)
        wanted = np.maximum(a.T.reshape(2, 12)[:, ::-1] * 2 + 1, 0)
        assert np.array_equal(y.detach().numpy(), wanted.sum(1)), y.numpy()
        (grad,) = y.sum().gradient(x)
        assert np.array_equal(grad.numpy(), 2.0 * (a * 2 + 1 > 0)), grad.numpy()
"""


@dataclass(frozen=True)
class Verdict:
    """The fate of a mutant."""

    killed: bool
    how: str
    """"smoke", the kind of a finding and its place, or why it survived."""
    seconds: float
    programs: int = 0


class Copy:
    """A copy of the package's source, in which one file at a time is changed."""

    def __init__(self, folder: Path, source: Path = ROOT / "src") -> None:
        # With the compiled files, which stay valid, since the times of change are copied too.
        self.path = folder / "src"
        shutil.copytree(source, self.path)

    @contextmanager
    def changed(self, mutation: Mutation) -> Any:
        """The copy with a mutation, for a block."""
        file = self.path / "ferrule" / mutation.file
        before, times = file.read_bytes(), file.stat()
        self.forget(file)
        file.write_bytes(mutation.applied(before))
        try:
            yield self
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            self.forget(file)

    @staticmethod
    def forget(file: Path) -> None:
        """Removes what Python has compiled of a file: two changes may be of one second."""
        for path in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            path.unlink()

    def python(self, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
        """The exit code and the output of Python with this copy; -1 if it takes too long."""
        with tempfile.TemporaryDirectory(prefix="ferrule-mutant-") as cache:
            environment = dict(os.environ, PYTHONPATH=str(self.path), FERRULE_CACHE_DIR=cache)
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                output, _ = process.communicate()
                return -1, output.decode(errors="replace")
            return process.returncode, output.decode(errors="replace")


def judge(
    mutation: Mutation,
    mutated: Copy,
    clean: Copy,
    seconds: float,
    seed: int,
    programs: int | None = None,
) -> Verdict:
    """Looks for a mutant for so many seconds, or with so many programs."""
    start = time.monotonic()
    with mutated.changed(mutation):
        code, _ = mutated.python(["-c", SMOKE], SMOKE_SECONDS)
        if code:
            return Verdict(True, "smoke", time.monotonic() - start)
        return _fuzzed(mutation, mutated, clean, seconds, seed, programs, start)


def _fuzzed(
    mutation: Mutation,
    mutated: Copy,
    clean: Copy,
    seconds: float,
    seed: int,
    programs: int | None,
    start: float,
) -> Verdict:
    foci = FOCI.get(mutation.file.partition("/")[0], (FILE,))
    numbers = random.Random(f"{seed}:{mutation.name}")
    spent, done, false = 0.0, 0, 0
    turn = 0
    while spent < seconds and false < MOST_FALSE:
        focus = foci[turn % len(foci)].replace(FILE, mutation.file)
        turn += 1
        share = min(ROUND if len(foci) > 1 else seconds, seconds - spent)
        options = ["--seed", str(numbers.randrange(1 << 31))]
        options += ["--focus", focus] if focus else []
        budget = ["--minutes", str(share / 60), "--jobs", "1", "--first", "--no-shrink"]
        budget += ["--programs", str(programs)] if programs else []
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ferrule-mutant-") as folder:
            command = ["-m", "tests.fuzz", *options, *budget, "--findings", folder]
            code, output = mutated.python(command, share + GRACE)
        spent += time.monotonic() - begun
        done += _programs(output)
        if code == 2:
            raise RuntimeError(f"the machine does not take {command}: {output}")
        if code == 0:
            if programs:
                break
            continue
        how = _title(output) if code == 1 else f"exit code {code}"
        again = re.search(r"--only (\d+)", output)
        if code != 1 or again is None:
            return Verdict(True, how, time.monotonic() - start, done)
        check = ["-m", "tests.fuzz", *options, "--only", again[1], "--no-shrink"]
        if clean.python(check, GRACE)[0] == 0:
            return Verdict(True, how, time.monotonic() - start, done)
        false += 1
    why = "nothing found" if false < MOST_FALSE else "has findings without the mutation"
    return Verdict(False, why, time.monotonic() - start, done)


def _programs(output: str) -> int:
    found = re.findall(r"^(\d+) programs,", output, re.MULTILINE)
    return int(found[-1]) if found else 0


def _title(output: str) -> str:
    found = re.search(r'^"""(.*)$', output, re.MULTILINE)
    if found is None:
        return output.strip().splitlines()[-1][:100] if output.strip() else "no output"
    return found[1][:100]


# -- a run ---------------------------------------------------------------------------------------


class Run:
    """Mutants one after the other, with what became of them kept in a file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.verdicts: dict[str, Verdict] = {}
        if options.state.exists():
            saved = json.loads(options.state.read_text())["verdicts"]
            self.verdicts = {name: Verdict(**verdict) for name, verdict in saved.items()}

    def run(self) -> int:
        package = ROOT / "src" / "ferrule"
        chosen = drawn(all_mutations(package), self.options.draw, self.options.seed)
        if self.options.only:
            chosen = [m for m in chosen if any(text in m.name for text in self.options.only)]
        print(f"seed {self.options.seed}, {len(chosen)} mutants", flush=True)
        left = [m for m in chosen if m.name not in self.verdicts or self.options.only]
        with tempfile.TemporaryDirectory(prefix="ferrule-mutants-") as folder:
            self.clean = Copy(Path(folder) / "clean")
            self.copies: queue.Queue[Copy] = queue.Queue()
            for number in range(self.options.jobs):
                self.copies.put(Copy(Path(folder) / str(number)))
            with ThreadPoolExecutor(self.options.jobs) as pool:
                try:
                    list(pool.map(self.one, left))
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
                    print("interrupted")
        return self.summary(chosen)

    def one(self, mutation: Mutation) -> None:
        copy = self.copies.get()
        try:
            seconds = 60 * self.options.minutes
            verdict = judge(mutation, copy, self.clean, seconds, self.options.seed)
        finally:
            self.copies.put(copy)
        with self.lock:
            self.verdicts[mutation.name] = verdict
            self.save()
            self.say(mutation, verdict)

    def say(self, mutation: Mutation, verdict: Verdict) -> None:
        source = (ROOT / "src" / "ferrule" / mutation.file).read_bytes()
        word = "killed" if verdict.killed else "SURVIVED"
        print(f"{word} {mutation.name} ({verdict.how}, {verdict.seconds:.0f} s, ", end="")
        print(f"{verdict.programs} programs)\n{mutation.diff(source)}\n", flush=True)

    def save(self) -> None:
        self.options.state.parent.mkdir(parents=True, exist_ok=True)
        data = {name: asdict(verdict) for name, verdict in self.verdicts.items()}
        new = self.options.state.with_suffix(".new")
        new.write_text(json.dumps({"seed": self.options.seed, "verdicts": data}, indent=1))
        new.replace(self.options.state)

    def summary(self, chosen: Sequence[Mutation]) -> int:
        judged = [m for m in chosen if m.name in self.verdicts]
        killed = [m for m in judged if self.verdicts[m.name].killed]
        for part in PARTS:
            here = [m for m in judged if m.file.startswith(part)]
            if here:
                print(f"{part}: {sum(m in killed for m in here)} of {len(here)} killed")
        kinds = Counter(self.verdicts[m.name].how.partition(":")[0] for m in killed)
        print("by " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
        share = len(killed) / max(len(judged), 1)
        print(f"{len(killed)} of {len(judged)} killed ({100 * share:.0f} %); to look at by hand:")
        for mutation in judged:
            if mutation not in killed:
                print(f"  {mutation.name} ({self.verdicts[mutation.name].how})")
        return int(share < self.options.least)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the draw; drawn and printed if not given")
    parser.add_argument("--draw", type=int, default=150, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=2.0, help="for each mutant, at most")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="mutants whose names have one of these in them")
    parser.add_argument("--least", type=float, default=0.0, help="the share to be killed")
    parser.add_argument("--state", type=Path, help="a file; goes on where a run with it ended")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    if options.state is None:
        options.state = ROOT / "build" / "fuzz" / f"mutants-{options.seed}.json"
    return options


if __name__ == "__main__":
    sys.exit(Run(arguments()).run())
