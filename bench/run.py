"""Runs all benchmarks, one after another, and prints the table of docs/performance.md.

Each script is a process of its own with two threads on two cores. The figures go to
bench/results.json; `--table` prints the table again from that file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import UNITS

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
SCRIPTS = ("kernels", "matmul", "rows", "memory", "replay", "mlp", "cold", "startup", "demo")
CORES = 2


def machine() -> dict[str, str]:
    """What the figures were measured on and with."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "processor": _processor(),
        "cores used": str(len(os.sched_getaffinity(0))),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch", "jax")},
    }


def _commit() -> str:
    command = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def run_all(names: list[str], quick: bool) -> dict[str, Any]:
    """The rows of the scripts, and the scripts that failed."""
    found: dict[str, Any] = {"machine": machine(), "rows": {}, "failed": []}
    threads = f"FERRULE_NUM_THREADS={CORES}"
    with TemporaryDirectory() as folder:
        for name in names:
            output = Path(folder) / f"{name}.json"
            command = ["env", threads, sys.executable, f"{FOLDER}/{name}.py", "--json", str(output)]
            print(f"# {name}", file=sys.stderr, flush=True)
            subprocess.run(command + ["--quick"] * quick, stdout=sys.stderr)
            if output.exists():
                found["rows"][name] = json.loads(output.read_text())
            else:
                found["failed"].append(name)
    return found


# The table


def table(results: dict[str, Any]) -> str:
    """All rows in Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in results["machine"].items()), ""]
    lines += ["| what | ferrule | peers | peer / ferrule |", "|---|---|---|---|"]
    for rows in results["rows"].values():
        lines += [_table_row(row) for row in rows]
    lines += [f"\n{name}: failed, no figures" for name in results["failed"]]
    return "\n".join(lines)


def _table_row(row: dict[str, Any]) -> str:
    figures = dict(row["figures"])
    own = [_time(figures.pop("ferrule"), row["unit"])] if "ferrule" in figures else []
    own += [f"{name} {value:.6g}" for name, value in row["values"].items()]
    peers = [f"{name} {_time(found, row['unit'])}" for name, found in figures.items()]
    ratios = [f"{name} {value:.2f}" for name, value in row["ratios"].items()]
    cells = (row["name"], ", ".join(own), ", ".join(peers), ", ".join(ratios))
    return "| " + " | ".join(cells) + " |"


def _time(found: dict[str, Any], unit: str) -> str:
    return f"{found['median'] * UNITS[unit]:.3g} {unit}"


def main() -> int:
    """Runs the scripts asked for; the exit status says whether all of them gave figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", help=f"of {', '.join(SCRIPTS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="short blocks: rough figures")
    parser.add_argument("--table", action="store_true", help="only print the table of the last run")
    arguments = parser.parse_args()
    unknown = set(arguments.scripts) - set(SCRIPTS)
    if unknown:
        parser.error(f"no script is called {', '.join(sorted(unknown))}")
    if not arguments.table:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        results = run_all(arguments.scripts or list(SCRIPTS), arguments.quick)
        RESULTS.write_text(json.dumps(results, indent=1))
    results = json.loads(RESULTS.read_text())
    print(table(results))
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
