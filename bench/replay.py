"""The cost of a launch: a replay of 100 captured kernels, each of which needs the one before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from harness import Figure, Plan, Row, load_torch, relative_error, run_script

from ferrule import GlobalCounters, Tensor, TinyJit

KERNELS = 100
CALLS = 2000


def _chain(x: Tensor) -> Tensor:
    for _ in range(KERNELS):
        x = (x * 0.5 + 1).realize()
    return x


def _median(call: Callable[[], object], calls: int) -> Figure:
    samples = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return Figure(statistics.median(samples), min(samples), max(samples), calls)


def measure(plan: Plan) -> list[Row]:
    """One row: a replay, and the same operations one by one in PyTorch for scale."""
    x = np.arange(8, dtype=np.float32)
    chain = TinyJit(_chain)
    own = Tensor(x).realize()
    for _ in range(5):
        result = chain(own)
    expected = x.astype(np.float64) * 0.5**KERNELS + 2 * (1 - 0.5**KERNELS)
    error = relative_error(result.numpy(), expected)
    if not error < 1e-6:
        raise ValueError(f"replay is off by {error:.2e}")
    calls = CALLS if plan.rounds > 5 else CALLS // 10
    figures = {"ferrule": _median(lambda: chain(own), calls)}
    torch = load_torch()
    if torch is not None:
        theirs = torch.from_numpy(x)

        def torch_chain() -> None:
            y = theirs
            for _ in range(KERNELS):
                y = y * 0.5 + 1

        figures["torch"] = _median(torch_chain, calls // 10)
    ratios = {
        peer: figure.median / figures["ferrule"].median
        for peer, figure in figures.items()
        if peer != "ferrule"
    }
    before = GlobalCounters.kernel_count
    chain(own)
    captured = {"kernels": float(GlobalCounters.kernel_count - before)}
    return [Row("replay of 100 kernels on 8 floats", "us", figures, ratios, captured)]


if __name__ == "__main__":
    run_script(measure)
