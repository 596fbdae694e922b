"""What memory bounds: the sum of 16 million floats, and adding 1 to each."""

from __future__ import annotations

import numpy as np
from harness import Plan, Row, compare, load_torch, run_script

from ferrule import Tensor, TinyJit

COUNT = 16 * 1024 * 1024


def measure(plan: Plan) -> list[Row]:
    """One row for each operation."""
    torch = load_torch()
    x = np.random.default_rng(0).standard_normal(COUNT, dtype=np.float32) + 0.5
    own = Tensor(x).realize()
    total = TinyJit(lambda t: t.sum().realize())
    plus_one = TinyJit(lambda t: (t + 1).realize())
    sum_calls = {"ferrule": lambda: total(own)}
    add_calls = {"ferrule": lambda: plus_one(own)}
    if torch is not None:
        theirs = torch.from_numpy(x)
        sum_calls["torch"] = lambda: theirs.sum()
        add_calls["torch"] = lambda: theirs + 1
    exact = x.astype(np.float64)
    return [
        compare("sum of 16M", sum_calls, plan, reference=exact.sum(), tolerance=1e-4),
        compare("x + 1 of 16M", add_calls, plan, reference=exact + 1),
    ]


if __name__ == "__main__":
    run_script(measure)
