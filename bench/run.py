"""Runs the workloads on ferrule and on every peer, and writes results.json and results.md.

run.py                                  everything
run.py --quick                          a subset, in two minutes
run.py 'conv*' --peers torch --threads 2
run.py --gpu                            what GPUs are for, on one of them
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import start
from limits import Limits, from_json
from report import Outcome, described, outcome, table
from rounds import FOLDER, FOR_GPU, QUICK, Contender, Left, Plan, Timing, command, compare
from worker import ON_GPU, PEERS
from workloads import Workload, all_workloads, gpu_workloads

NOT_QUICK = ("torch.compile", "tinygrad.beam", "ferrule.packed", "onnxruntime.packed")
ONE_CORE = ("tinygrad.beam",)
"""Slow to set up, and no different with one thread: it uses one core in any case."""
ONLY_IMAGES = ("torch.nhwc", "jax.nhwc")
CORES = 2
CORES_FOR_GPU = 8
"""Those who compile for a GPU do it on these."""


class Session:
    """The contenders' processes, the references, and the machine's limits."""

    def __init__(self, peers: list[str], plan: Plan, folder: Path, gpu: bool) -> None:
        self.peers = peers
        self.plan = plan
        self.folder = folder
        self.gpu = gpu
        self._contenders: dict[tuple[str, int, bool], Contender] = {}
        self._limits: dict[int, Limits] = {}

    def contender(self, name: str, threads: int, tf32: bool = False) -> Contender:
        """A contender's process, kept between rows; those that round to tf32 are others."""
        key = (name, threads, tf32)
        if key not in self._contenders:
            log = FOLDER.parent / "build" / "bench" / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            self._contenders[key] = Contender(name, threads, log, self.gpu, tf32)
        return self._contenders[key]

    def limits(self, threads: int) -> Limits:
        """The machine's limits, measured once."""
        if threads not in self._limits:
            script = "gpu_limits.py" if self.gpu else "limits.py"
            line = command("", threads, script, str(threads))
            found = subprocess.run(line, check=False, stdout=subprocess.PIPE, text=True)
            if found.returncode:
                raise SystemExit(f"the machine's limits could not be measured: {script} failed")
            self._limits[threads] = from_json(found.stdout)
        return self._limits[threads]

    def known_limits(self) -> list[Limits]:
        """Those that have been measured."""
        return list(self._limits.values())

    def reference(self, workload: Workload) -> Path:
        """The file of a workload's exact results."""
        path = self.folder / f"{zlib.crc32(workload.name.encode())}.npz"
        if not path.exists():
            worker = self.contender("reference", len(os.sched_getaffinity(0)))
            worker.do("reference", timeout=600.0, workload=workload.name, path=str(path))
            worker.do("drop")
        return path

    def measure(self, workload: Workload, threads: int) -> Outcome:
        """A row."""
        limits = self.limits(threads)
        names = ["ferrule", *self.peers]
        if threads == 1:
            names = [name for name in names if name not in ONE_CORE]
        if not workload.images:
            names = [name for name in names if name not in ONLY_IMAGES]
        try:
            reference = self.reference(workload)
        except Left as reason:
            timings = {"ferrule": Timing(left=f"reference: {reason}")}
            return outcome(workload, threads, timings, limits)
        if workload.kind in ("start", "memory"):
            timings = start.compare(workload, names, threads, reference, self.plan)
        else:
            contenders = {name: self.contender(name, threads, workload.tf32) for name in names}
            if workload.target.any_threads and threads > 1:
                contenders |= {f"{name} 1T": self.contender(name, 1) for name in names[1:]}
            timings = compare(workload, contenders, reference, self.plan)
        return outcome(workload, threads, timings, limits)

    def close(self) -> None:
        """Ends all processes."""
        for contender in self._contenders.values():
            contender.stop()


def chosen(patterns: list[str], quick: bool, gpu: bool = False) -> list[Workload]:
    """The workloads whose names match any pattern."""
    known = gpu_workloads() if gpu else all_workloads()
    workloads = [row for row in known if row.quick or not quick]
    if not patterns:
        return workloads
    return [row for row in workloads if any(fnmatch.fnmatch(row.name, p) for p in patterns)]


def write(outcomes: list[Outcome], limits: list[Limits], folder: Path) -> None:
    """results.json, a list of rows, and results.md."""
    rows = [found.row for found in outcomes]
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "results.md").write_text(table(outcomes, limits))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help="patterns such as 'conv*'; all if none")
    parser.add_argument("--quick", action="store_true", help="a subset in short blocks")
    parser.add_argument(
        "--gpu", action="store_true", help="the device CUDA, with peers that use it"
    )
    parser.add_argument("--threads", help="such as 1,2; the cores and 1 if not given")
    parser.add_argument("--peers", help=f"such as torch,jax; of {', '.join(list(PEERS)[1:])}")
    parser.add_argument("--rounds", type=int, help="how often the contenders take turns")
    parser.add_argument("--output", type=Path, help="the folder of results.*: here, or gpu/")
    parser.add_argument("--list", action="store_true", help="only print the workloads' names")
    found = parser.parse_args()
    known = ON_GPU if found.gpu else PEERS
    if found.output is None:  # those of a GPU are a table of their own
        found.output = FOLDER / "gpu" if found.gpu else FOLDER
    unknown = set((found.peers or "").split(",")) - set(known) - {""}
    if unknown:
        parser.error(f"no peer is called {', '.join(sorted(unknown))}")
    return found


def no_gpu() -> str:
    """Why the device CUDA cannot be used here; empty if it can."""
    script = "from ferrule.device import Device; Device['CUDA']"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


def main() -> int:
    """The exit status says whether ferrule has a figure in every row."""
    asked = arguments()
    workloads = chosen(asked.workloads, asked.quick, asked.gpu)
    if asked.list:
        print("\n".join(row.name for row in workloads))
        return 0
    missing = no_gpu() if asked.gpu else ""
    if missing:
        print(f"nothing to measure: {missing}", file=sys.stderr)
        return 1
    asked.output.mkdir(parents=True, exist_ok=True)
    plan = QUICK if asked.quick else FOR_GPU if asked.gpu else Plan()
    plan = replace(plan, rounds=asked.rounds or plan.rounds)
    peers = [name for name in (ON_GPU if asked.gpu else PEERS) if name != "ferrule"]
    if asked.quick:
        peers = [name for name in peers if name not in NOT_QUICK]
    if asked.peers is not None:
        peers = [name for name in asked.peers.split(",") if name]
    cores = min(CORES_FOR_GPU if asked.gpu else CORES, len(os.sched_getaffinity(0)))
    counts = [cores] if asked.quick or asked.gpu else [cores, 1]
    if asked.threads:
        counts = [int(count) for count in asked.threads.split(",")]
    outcomes: list[Outcome] = []
    with TemporaryDirectory() as folder:
        session = Session(peers, plan, Path(folder), asked.gpu)
        try:
            for threads in counts:
                for workload in workloads:
                    outcomes.append(session.measure(workload, threads))
                    print(described(outcomes[-1]), flush=True)
                    # Whoever ends this early keeps the rows that there are.
                    write(outcomes, session.known_limits(), asked.output)
        finally:
            session.close()
    return 1 if any(found.row["ferrule_ms"] is None for found in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
