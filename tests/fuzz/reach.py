"""`python -m tests.fuzz.reach`: measures the coverage of the package by random programs alone.

Programs are run in this process under `coverage`, an extra of development. The report gives for
each part of the package the lines and branches that ran, and lists what never did: public methods,
primitives of scheduling, schedules, rules of gradients, and all other functions.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTS = ("ir/shape", "fusion", "codegen", "autograd", "tensor", "jit")
FOCI = ("", "", "views", "gradients", "jit", "threads", "writes", "dtypes")


@dataclass
class Part:
    """The coverage of the modules of a folder."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0
    functions: int = 0
    never: dict[str, list[str]] = field(default_factory=dict)
    """By module: functions that were never entered."""


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """The functions of a module: their names, and the first and last line of their bodies."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and not _is_stub(body):
                yield f"{prefix}{node.name}", body[0].lineno, body[-1].end_lineno or 0
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from functions_of(node, prefix)


def _is_stub(body: Sequence[ast.stmt]) -> bool:
    first = body[0]
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def measure(measured: Any, path: Path, part: Part) -> None:
    """Adds what ran of a module, from a `Coverage`."""
    _, statements, _, missing, _ = measured.analysis2(str(path))
    run = set(statements) - set(missing)
    part.lines += len(statements)
    part.lines_run += len(run)
    for total, taken in measured.branch_stats(str(path)).values():
        part.branches += total
        part.branches_run += taken
    never = []
    for name, first, last in functions_of(ast.parse(path.read_text())):
        part.functions += 1
        if not any(first <= line <= last for line in run):
            never.append(name)
    if never:
        part.never[f"{path.parent.name}/{path.name}"] = never


def run_programs(count: int, minutes: float, seed: int) -> tuple[int, Counter[str], Counter[str]]:
    """Runs programs of each focus in turn; the number of them, and calls accepted and rejected."""
    from tests.fuzz.workers import Job, run_one

    warnings.simplefilter("ignore")
    accepted: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    until = time.monotonic() + 60 * minutes
    done = 0
    while done < count and time.monotonic() < until:
        size = "large" if done % 25 == 24 else "small"
        report = run_one(Job(seed, size, FOCI[done % len(FOCI)]), done)
        accepted += report.accepted
        rejected += report.rejected
        done += 1
    return done, accepted, rejected


def report(parts: dict[str, Part], accepted: Counter[str], rejected: Counter[str]) -> str:
    """All that was measured, as text."""
    from ferrule.codegen.opt import PRIMITIVES
    from tests.fuzz.surface import methods

    rows = ["| part | lines | branches | functions never entered |", "|---|---|---|---|"]
    for name, part in parts.items():
        lines, branches = (
            _share(part.lines_run, part.lines),
            _share(part.branches_run, part.branches),
        )
        missed = sum(map(len, part.never.values()))
        rows.append(f"| {name} | {lines} | {branches} | {missed} of {part.functions} |")
    never = {name for part in parts.values() for names in part.never.values() for name in names}
    called = [method.name for method in methods()]
    refused = [f"{n} ({rejected[n]})" for n in called if not accepted[n] and rejected[n]]
    undrawn = [n for n in called if not accepted[n] and not rejected[n]]
    below = parts["codegen"].never.items()
    missed_primitives = {n for file, names in below if "primitives/" in file for n in names}
    unapplied = sorted(name for name, f in PRIMITIVES.items() if f.__name__ in missed_primitives)
    schedules = sorted(name for name in never if name.startswith(("schedule_", "_schedule")))
    rules = sorted(name for name in never if name.startswith(("_reverse", "_forward")))
    sections = {
        "Methods of which every call was refused (times)": refused,
        "Methods never drawn": undrawn,
        "Primitives never applied": unapplied,
        "Schedules never chosen": schedules,
        "Rules of gradients never run": rules,
    }
    for title, names in sections.items():
        rows += ["", f"{title}: {len(names)}", f"  {', '.join(names) or 'none'}"]
    rows += ["", "Functions never entered:"]
    for part in parts.values():
        rows += [f"  {module}: {', '.join(names)}" for module, names in part.never.items()]
    return "\n".join(rows) + "\n"


def _share(run: int, of: int) -> str:
    return f"{100 * run / max(of, 1):.0f} % of {of}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.reach", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, help="how many, at most")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    try:
        import coverage
    except ImportError:
        parser.error("this needs coverage: pip install -e '.[dev]'")
    # Found without being imported: what runs at import time is measured too.
    spec = importlib.util.find_spec("ferrule")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    with tempfile.TemporaryDirectory(prefix="ferrule-reach-") as cache:
        os.environ["FERRULE_CACHE_DIR"] = cache
        include = [f"{package}/{part}/*" for part in PARTS]
        measured = coverage.Coverage(branch=True, include=include, data_file=None)
        measured.start()
        done, accepted, rejected = run_programs(options.programs, options.minutes, seed)
        measured.stop()
    parts = {}
    for name in PARTS:
        parts[name] = Part()
        for path in sorted((package / name).rglob("*.py")):
            measure(measured, path, parts[name])
    print(f"seed {seed}, {done} programs\n\n{report(parts, accepted, rejected)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
