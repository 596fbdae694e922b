"""A run of the machine: programs one after the other, findings told apart and written down."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.check import Finding
from tests.fuzz.workers import (
    DEVICES,
    Job,
    Pool,
    Report,
    drawn,
    run_one,
    shrunk,
    with_opencl,
    write_json,
)

MOST_SHRUNK = 2
"""Findings of one kind and place that are made smaller; later ones are only counted."""


class Session:
    """One call of `python -m tests.fuzz`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.saved: dict[str, Any] = {}
        if options.state is not None and options.state.exists():
            self.saved = json.loads(options.state.read_text())
        seed = self.saved.get("seed") if options.seed is None else options.seed
        if seed is None:
            seed = random.SystemRandom().randrange(1 << 31)
        self.job = Job(
            seed=seed,
            size=options.size,
            focus=options.focus,
            devices=tuple(options.devices.split(",")) if options.devices else with_opencl(DEVICES),
            patience=options.patience,
        )
        self.first = self.saved.get("next", 0)
        self.done = 0
        self.found: Counter[tuple[str, str]] = Counter()
        self.smaller: Counter[tuple[str, str]] = Counter()
        """Of the kinds that findings have when they are shrunk, which may be fewer."""
        self.written: list[Path] = []
        self.accepted: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.slow: list[tuple[float, int]] = []
        self.empty = 0

    def run(self) -> int:
        job = self.job
        print(f"seed {job.seed}, {job.size} programs, focus {job.focus or 'none'}", flush=True)
        if self.options.only is not None:
            return self.run_only(self.options.only)
        start = time.monotonic()
        until = start + 60 * self.options.minutes
        numbers: Any = itertools.count(self.first)
        if self.options.programs is not None:
            numbers = range(self.first, self.first + self.options.programs)
        last_said = start
        pool = Pool(job, self.options.jobs)
        try:
            for report in pool.run(numbers, until):
                self.take(report)
                if self.found and self.options.first:
                    break
                if time.monotonic() - last_said > 30:
                    last_said = time.monotonic()
                    self.say(last_said - start)
        except KeyboardInterrupt:
            print("interrupted")
        self.say(time.monotonic() - start)
        self.save()
        for path in self.written:
            print(f"found {path}")
        return 1 if self.found else 0

    def run_only(self, index: int) -> int:
        _, program, ways = drawn(self.job, index)
        if program is not None:
            print(program.text())
        for way in ways:
            print("way:", way)
        finding = run_one(self.job, index).finding
        if finding is not None:
            print((finding if self.options.no_shrink else shrunk(finding)).text())
        return 1 if finding is not None else 0

    def take(self, report: Report) -> None:
        self.done += 1
        self.accepted += report.accepted
        self.rejected += report.rejected
        self.empty += not report.drawn
        if report.seconds > 2:
            self.slow.append((report.seconds, report.index))
        if report.finding is not None:
            self.take_finding(report.finding, report.index)
        if self.done % 200 == 0:
            self.save()

    def take_finding(self, finding: Finding, index: int) -> None:
        self.found[finding.key] += 1
        if self.found[finding.key] > MOST_SHRUNK:
            return
        smaller = finding if self.options.no_shrink else shrunk(finding)
        smaller = replace(smaller, detail=f"{self.again(index)}\n\n{smaller.detail}")
        self.smaller[smaller.key] += 1
        if self.smaller[smaller.key] > MOST_SHRUNK:
            return
        name = re.sub(r"\W+", "-", f"{smaller.kind}-{smaller.where}")[:60]
        path = self.options.findings / f"{name}-{self.job.seed}-{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(smaller.text())
        self.written.append(path)
        print(f"\n{smaller.text()}", flush=True)

    def again(self, index: int) -> str:
        parts = [f"python -m tests.fuzz --seed {self.job.seed} --only {index}"]
        parts += [f"--size {self.job.size}"] if self.job.size != "small" else []
        parts += [f"--focus {self.job.focus}"] if self.job.focus else []
        return " ".join(parts)

    def say(self, seconds: float) -> None:
        each = 1000 * seconds / max(self.done, 1)
        print(
            f"{self.done} programs, {each:.0f} ms each, {sum(self.found.values())} findings of "
            f"{len(self.found)} kinds, {self.empty} not drawn, {len(self.slow)} slow",
            flush=True,
        )

    def save(self) -> None:
        if self.options.state is None:
            return
        state = {
            "seed": self.job.seed,
            "next": self.first + self.done,
            "programs": self.saved.get("programs", 0) + self.done,
            "findings": {" ".join(key): count for key, count in self.found.items()},
            "accepted": dict(self.accepted),
            "rejected": dict(self.rejected),
            "slow": sorted(self.slow, reverse=True)[:50],
        }
        write_json(str(self.options.state), state)
