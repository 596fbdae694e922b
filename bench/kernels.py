"""How many kernels some expressions take; fusion decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from harness import Plan, Row, relative_error, run_script

from ferrule import GlobalCounters, Tensor

Expression = Callable[..., Tensor]


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1) @ v


def _layernorm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


# name: shapes of the inputs, in ferrule, in NumPy
CASES: dict[str, tuple[list[tuple[int, ...]], Expression, Callable[..., np.ndarray]]] = {
    "softmax": ([(256, 1024)], lambda x: x.softmax(), lambda x: _softmax(x, 1)),
    "layernorm": ([(256, 1024)], lambda x: x.layernorm(), _layernorm),
    "logsumexp": (
        [(256, 1024)],
        lambda x: x.logsumexp(axis=1),
        lambda x: np.log(np.exp(x).sum(1)),
    ),
    "RMSnorm": (
        [(256, 1024)],
        lambda x: x * ((x * x).mean(axis=1, keepdim=True) + 1e-6).rsqrt(),
        lambda x: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6),
    ),
    "softmax(x*w+b) over axis 0": (
        [(256, 1024), (1024,), (1024,)],
        lambda x, w, b: (x * w + b).softmax(axis=0),
        lambda x, w, b: _softmax(x * w + b, 0),
    ),
    "attention": (
        [(1, 4, 128, 64)] * 3,
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        _attention,
    ),
}


def measure(plan: Plan) -> list[Row]:
    """One row for each expression."""
    del plan
    rng = np.random.default_rng(0)
    rows = []
    for name, (shapes, expression, in_numpy) in CASES.items():
        arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
        inputs = [Tensor(array).realize() for array in arrays]
        before = GlobalCounters.kernel_count
        result = expression(*inputs).realize()
        count = GlobalCounters.kernel_count - before
        exact = in_numpy(*(array.astype(np.float64) for array in arrays))
        error = relative_error(result.numpy(), exact)
        if not error < 1e-5:
            raise ValueError(f"{name} is off by {error:.2e}")
        rows.append(Row(f"kernels of {name}", "", values={"kernels": float(count)}))
    return rows


if __name__ == "__main__":
    run_script(measure)
