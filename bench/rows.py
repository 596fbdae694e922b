"""Softmax and layernorm along the rows of a 4096 x 1024 matrix."""

from __future__ import annotations

import numpy as np
from harness import Plan, Row, compare, load_torch, run_script

from ferrule import Tensor, TinyJit


def _softmax_reference(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _layernorm_reference(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)


def measure(plan: Plan) -> list[Row]:
    """One row for each operation."""
    torch = load_torch()
    x = np.random.default_rng(0).standard_normal((4096, 1024), dtype=np.float32)
    own = Tensor(x).realize()
    softmax = TinyJit(lambda t: t.softmax(axis=-1).realize())
    layernorm = TinyJit(lambda t: t.layernorm().realize())
    softmax_calls = {"ferrule": lambda: softmax(own)}
    layernorm_calls = {"ferrule": lambda: layernorm(own)}
    if torch is not None:
        theirs = torch.from_numpy(x)
        softmax_calls["torch"] = lambda: torch.softmax(theirs, dim=-1)
        layernorm_calls["torch"] = lambda: torch.nn.functional.layer_norm(theirs, (1024,))
    exact = x.astype(np.float64)
    return [
        compare("softmax 4096x1024", softmax_calls, plan, reference=_softmax_reference(exact)),
        compare(
            "layernorm 4096x1024", layernorm_calls, plan, reference=_layernorm_reference(exact)
        ),
    ]


if __name__ == "__main__":
    run_script(measure)
