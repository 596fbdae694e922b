"""Rows of figures, and the table of them."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from limits import Limits
from rounds import Timing, ratio
from workloads import Workload

UNCOUNTED = ("ferrule.packed", "onnxruntime.packed")
"""Those that get the weights as constants, packed beforehand: listed, but not compared with."""
PACKAGES = ("numpy", "torch", "jax", "tinygrad", "mlx", "onnxruntime", "triton", "cupy", "llvmlite")
PACKED_FOR = {"cupy": ("cupy-cuda13x", "cupy-cuda12x")}
"""Names of a package's builds, where each kind of system has one of its own."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One line of the table: the row of figures, and what does not go into it."""

    workload: Workload
    row: Row
    left: dict[str, str]
    """The contenders without figures, and why."""
    ratios: dict[str, float]

    @property
    def ratio_target(self) -> float:
        """The ratio that this row is to reach, for its number of threads."""
        target = self.workload.target
        if self.row["threads"] > 1:
            return target.ratio
        return min(target.ratio, target.one_thread)

    @property
    def misses(self) -> list[str]:
        """What of the target is not reached."""
        target, row = self.workload.target, self.row
        if row["ferrule_ms"] is None:
            return ["no figure"]
        found = []
        if row["ratio"] is None or row["ratio"] < self.ratio_target:
            found.append(f"ratio {self.ratio_target:g}")
        if row["threads"] > 1:
            for peer, wanted in target.against:
                if self.ratios.get(peer, wanted) < wanted:
                    found.append(f"{wanted:g} of {peer}")
            if (row["limit_fraction"] or 1.0) < target.limit_fraction:
                found.append(f"{target.limit_fraction:.2f} of the limit")
            if row["ferrule_ms"] > target.at_most_ms:
                found.append(f"{target.at_most_ms:g} ms")
        return found


def outcome(
    workload: Workload, threads: int, timings: dict[str, Timing], limits: Limits
) -> Outcome:
    """The row of a workload, from its contenders' timings."""
    figures = {name: timing.ms for name, timing in timings.items() if timing.blocks}
    own = timings.get("ferrule", Timing(left="not asked for"))
    own_ms = figures.pop("ferrule", None)
    ratios = {name: ratio(timings[name], own) for name in figures} if own_ms else {}
    counted = {name: ms for name, ms in figures.items() if not name.startswith(UNCOUNTED)}
    best = min(counted, key=lambda name: counted[name]) if counted else None
    rates = workload.half, workload.tf32
    limit = limits.least_ms(workload.flops, workload.reads, workload.writes, *rates)
    row = {
        "workload": workload.name,
        "threads": threads,
        "ferrule_ms": own_ms,
        "peers": figures,
        "best_peer": best,
        "ratio": ratios.get(best) if best else None,
        "limit_ms": limit or None,
        "limit_fraction": limit / own_ms if limit and own_ms else None,
        "error": own.left or own.error,
    }
    left = {name: timing.left for name, timing in timings.items() if timing.left}
    return Outcome(workload, row, left, ratios)


# Text


def described(found: Outcome) -> str:
    """An outcome in a line, for the terminal."""
    row = found.row
    parts = [f"{row['workload']:40s} {row['threads']}T  ferrule {_ms(row['ferrule_ms'])}"]
    parts += [f"{name} {_ms(ms)}" for name, ms in row["peers"].items()]
    parts.append(f"ratio {_number(row['ratio'])}")
    parts.append(f"limit {_number(row['limit_fraction'])}")
    parts += [f"{name}: {reason}" for name, reason in found.left.items()]
    return "  ".join([*parts, _verdict(found)])


def table(outcomes: Iterable[Outcome], limits: Iterable[Limits]) -> str:
    """All outcomes in Markdown, by number of threads and class."""
    lines = [", ".join(f"{name} {value}" for name, value in machine().items()), ""]
    lines += _limit_table(limits)
    section = ""
    for found in outcomes:
        title = f"{found.workload.group}, threads: {found.row['threads']}"
        if title != section:
            section = title
            lines += ["", f"## {title}", "", *_header()]
        lines.append(_line(found))
    lines += ["", "Peers without a figure:", ""]
    reasons = (
        f"{f.row['workload']}, {name}: {why}" for f in outcomes for name, why in f.left.items()
    )
    return "\n".join([*lines, *(f"- {reason}" for reason in reasons), ""])


def _header() -> list[str]:
    names = (
        "workload",
        "ferrule",
        "peers",
        "best peer",
        "ratio",
        "target",
        "of the limit",
        "error",
    )
    return ["| " + " | ".join((*names, "")) + " |", "|---" * (len(names) + 1) + "|"]


def _line(found: Outcome) -> str:
    row = found.row
    peers = ", ".join(f"{name} {_ms(ms)}" for name, ms in row["peers"].items())
    error = f"{row['error']:.0e}" if isinstance(row["error"], float) else str(row["error"] or "")
    cells = [
        row["workload"],
        _ms(row["ferrule_ms"]),
        peers,
        row["best_peer"] or "",
        _number(row["ratio"]),
        f"{found.ratio_target:g}",
        _number(row["limit_fraction"]),
        error,
        _verdict(found),
    ]
    return "| " + " | ".join(cells) + " |"


def _limit_table(limits: Iterable[Limits]) -> list[str]:
    """Bandwidths are "read, write, triad"."""
    names = ("threads", "FMA GFLOPS", "bfloat16 GFLOPS")
    names += ("in cache, GB/s: read, write, triad", "64 MiB", "512 MiB")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for found in limits:
        cells = [str(found.threads), f"{found.fma / 1e9:.0f}", f"{found.bfloat16 / 1e9:.0f}"]
        for level in (found.cached, found.memory, found.large):
            rates = (level.read, level.write, level.triad)
            cells.append(", ".join(f"{rate / 1e9:.0f}" for rate in rates))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _verdict(found: Outcome) -> str:
    return f"missed: {', '.join(found.misses)}" if found.misses else "reached"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def machine() -> dict[str, str]:
    """What the figures were measured on and with."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "gpu": _gpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def _gpu() -> str:
    """The GPUs and their driver, by NVIDIA's own tool."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return "; ".join(found.stdout.split("\n")).strip("; ")


def _version(name: str) -> str:
    for package in (name, *PACKED_FOR.get(name, ())):
        with suppress(PackageNotFoundError):
            return version(package)
    return "not installed"
