"""Fair timing: contenders take turns in one process, and every result is checked first.

A round gives each contender one block of calls; the order rotates. Before a block, the threads of
the one before are given time to fall asleep, and a few calls are not counted. A contender's figure
is the median of its blocks' medians, and a ratio is the median of the rounds' ratios, so that a
slow spell of the machine, which hits neighbours in a round alike, cancels out.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int = 9
    block_s: float = 0.1
    settle_s: float = 0.004
    warmup_s: float = 0.25


QUICK = Plan(rounds=5, block_s=0.02, warmup_s=0.006)


@dataclass(frozen=True)
class Figure:
    """One contender's time for a call, in seconds."""

    median: float
    fastest_block: float
    slowest_block: float
    calls: int
    error: float | None = None
    """Against float64: the largest difference, over the largest magnitude of the reference."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    unit: str
    figures: dict[str, Figure] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    """How many times longer each peer takes than ferrule: above 1, ferrule is faster."""
    values: dict[str, float] = field(default_factory=dict)
    """Figures that are no times, such as a kernel count or an accuracy."""
    notes: tuple[str, ...] = ()


UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}


# Timing


def _block(call: Call, plan: Plan) -> list[float]:
    time.sleep(plan.settle_s)
    warm_until = time.perf_counter() + plan.warmup_s
    call()
    while time.perf_counter() < warm_until:
        call()
    samples = []
    end = time.perf_counter() + plan.block_s
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def alternate(calls: dict[str, Call], plan: Plan) -> dict[str, list[list[float]]]:
    """The blocks of samples of each contender, in seconds, round by round."""
    for call in calls.values():
        for _ in range(4):  # enough for a jit to capture
            call()
    names = list(calls)
    blocks: dict[str, list[list[float]]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(plan.rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                blocks[name].append(_block(calls[name], plan))
    finally:
        gc.enable()
    return blocks


def figure(blocks: Sequence[Sequence[float]], error: float | None = None) -> Figure:
    """The summary of one contender's blocks."""
    medians = [statistics.median(block) for block in blocks]
    return Figure(
        median=statistics.median(medians),
        fastest_block=min(medians),
        slowest_block=max(medians),
        calls=sum(len(block) for block in blocks),
        error=error,
    )


def ratio(peer: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> float:
    """The median, over the rounds, of the peer's time over our own."""
    return statistics.median(
        statistics.median(theirs) / statistics.median(ours)
        for theirs, ours in zip(peer, own, strict=True)
    )


def relative_error(result: Any, reference: Any) -> float:
    """The largest difference from a float64 reference, over the reference's largest magnitude."""
    expected = np.asarray(reference, dtype=np.float64)
    found = np.asarray(result, dtype=np.float64)
    if found.shape != expected.shape:
        raise ValueError(f"expected shape {expected.shape}, got {found.shape}")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def compare(
    name: str,
    calls: dict[str, Call],
    plan: Plan,
    *,
    unit: str = "ms",
    reference: Any = None,
    tolerance: float = 1e-5,
    notes: tuple[str, ...] = (),
) -> Row:
    """Checks the results of all calls, then times them in turns.

    Results are NumPy arrays, or have `numpy()`, or convert by `numpy.asarray`. Raises `ValueError`
    for a wrong result.
    """
    errors: dict[str, float | None] = dict.fromkeys(calls)
    if reference is not None:
        for contender, call in calls.items():
            for _ in range(4):  # what is checked must be what is timed: the replay, not the capture
                result = call()
            error = relative_error(to_numpy(result), reference)
            if not error <= tolerance:
                raise ValueError(f"{name}: {contender} is off by {error:.2e} (limit {tolerance})")
            errors[contender] = error
    blocks = alternate(calls, plan)
    peers = [contender for contender in calls if contender != "ferrule"]
    ratios = {peer: ratio(blocks[peer], blocks["ferrule"]) for peer in peers if "ferrule" in calls}
    figures = {contender: figure(blocks[contender], errors[contender]) for contender in calls}
    return Row(name, unit, figures, ratios, notes=notes)


def to_numpy(result: Any) -> Any:
    """A contender's result as a NumPy array."""
    return result.numpy() if hasattr(result, "numpy") else np.asarray(result)


# Peers


def load_torch(threads: int = 2) -> Any | None:
    """PyTorch with so many threads, or None, with the reason printed."""
    try:
        import torch
    except ImportError as error:
        print(f"no torch rows: {error}; run bench/setup.sh", file=sys.stderr)
        return None
    torch.set_num_threads(threads)
    return torch


def load_jax() -> Any | None:
    """JAX, or None, with the reason printed. It uses the cores that the process may run on."""
    try:
        import jax
    except ImportError as error:
        print(f"no jax rows: {error}; run bench/setup.sh", file=sys.stderr)
        return None
    return jax


# Scripts


def run_script(measure: Callable[[Plan], list[Row]]) -> None:
    """The command line of all scripts: prints the rows, and writes them as JSON if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="short blocks: rough figures")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    rows = measure(QUICK if arguments.quick else Plan())
    for row in rows:
        print(described(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def described(row: Row) -> str:
    """A row as one line of text."""
    scale = UNITS.get(row.unit, 1.0)
    parts = [f"{row.name:38s}"]
    parts += [f"{name} {scale * fig.median:.4g} {row.unit}" for name, fig in row.figures.items()]
    parts += [f"{peer}/ferrule {value:.2f}" for peer, value in row.ratios.items()]
    parts += [f"{name} {value:.6g}" for name, value in row.values.items()]
    return "  ".join([*parts, *row.notes])
