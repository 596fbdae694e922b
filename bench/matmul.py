"""float32 matrix products, each operand as it lies or transposed."""

from __future__ import annotations

import numpy as np
from harness import Call, Plan, Row, compare, load_torch, run_script

from ferrule import Tensor, TinyJit

SHAPES = [(512, 512, 512), (1024, 1024, 1024), (1000, 777, 333)]


def _ferrule(a: np.ndarray, b: np.ndarray, form: str) -> Call:
    left, right = Tensor(a).realize(), Tensor(b).realize()

    @TinyJit
    def product(x: Tensor, y: Tensor) -> Tensor:
        x = x.transpose() if form == "A.T @ B" else x
        y = y.transpose() if form == "A @ B.T" else y
        return (x @ y).realize()

    return lambda: product(left, right)


def _torch(torch: object, a: np.ndarray, b: np.ndarray, form: str) -> Call:
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    left = left.T if form == "A.T @ B" else left
    right = right.T if form == "A @ B.T" else right
    return lambda: left @ right


def measure(plan: Plan) -> list[Row]:
    """One row for each shape and form."""
    torch = load_torch()
    rng = np.random.default_rng(0)
    rows = []
    for m, k, n in SHAPES:
        for form in ("A @ B", "A @ B.T", "A.T @ B"):
            a = rng.standard_normal((k, m) if form == "A.T @ B" else (m, k), dtype=np.float32)
            b = rng.standard_normal((n, k) if form == "A @ B.T" else (k, n), dtype=np.float32)
            left = a.T if form == "A.T @ B" else a
            right = b.T if form == "A @ B.T" else b
            calls = {"ferrule": _ferrule(a, b, form)}
            if torch is not None:
                calls["torch"] = _torch(torch, a, b, form)
            reference = left.astype(np.float64) @ right.astype(np.float64)
            rows.append(compare(f"{form} {m}x{k}x{n}", calls, plan, reference=reference))
    return rows


if __name__ == "__main__":
    run_script(measure)
