"""Models that ferrule writes beside the ones that it was given, both on ONNX Runtime, one thread.

    .venv/bin/python bench/onnx_exports.py [model.onnx ...]

Each model is loaded by ferrule and exported again: without files, the networks of the onnx package
with random weights (`bench/onnx_models.py`). The least thread time of several rounds by turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import onnxruntime
from onnx_models import CALLS, ROUNDS, networks, with_rows

from ferrule.onnx import export, load


def session(data: bytes) -> Any:
    """A session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def least(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The least milliseconds of this thread for each, of several rounds by turns."""
    times = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for place, call in enumerate(calls):
            for _ in range(CALLS):
                start = time.thread_time()
                call()
                times[place] = min(times[place], (time.thread_time() - start) * 1e3)
    return times


def compare(name: str, data: bytes) -> float:
    """Print a line; gives the time of the given model over that of the written one."""
    model = load(data)
    inputs = with_rows(model, 1)
    start = time.perf_counter()
    exported = export(model, None, **inputs)
    seconds = time.perf_counter() - start
    given, written = session(data), session(exported.proto.SerializeToString())
    names = [port.name for port in written.get_inputs()]
    renamed = dict(zip(names, inputs.values(), strict=True))
    theirs, ours = least([lambda: given.run(None, inputs), lambda: written.run(None, renamed)])
    print(
        f"{name:<16s}{ours:9.2f} ms{theirs:9.2f} ms   x{theirs / ours:5.2f}   "
        f"{sum(exported.operators.values()):4d} and {len(model.nodes):4d} nodes, "
        f"written in {seconds:5.2f} s, difference {exported.difference:.0e}",
        flush=True,
    )
    return theirs / ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    models = [(path.stem, path.read_bytes()) for path in arguments.files] or list(networks())
    print(f"{'model':<16s}{'written':>12s}{'given':>12s}")
    ratios = [compare(*model) for model in models]
    print(f"geometric mean x{exp(sum(map(log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
