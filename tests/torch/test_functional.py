"""`nn.functional` against PyTorch's: the parameters of each function, and results of some calls."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.nn import functional as F

torch = pytest.importorskip("torch")
theirs = torch.nn.functional


def parameters(function: Any) -> list[str] | None:
    """The names of a function's parameters; from its docstring if it is written in C."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    try:
        found = list(inspect.signature(function).parameters)
    except ValueError:
        line = (function.__doc__ or "").strip().split("\n")[0]
        given = re.search(r"\((.*?)\) *->", line)
        if given is None:
            return None
        found = [re.split("[=:]", part)[0].strip() for part in given[1].split(",")]
    return None if found == ["args", "kwargs"] else [name for name in found if name != "*"]


@pytest.mark.parametrize("name", F.__all__)
def test_parameters_are_pytorchs(name: str) -> None:
    expected = parameters(getattr(theirs, name))
    if expected is not None:
        assert list(inspect.signature(getattr(F, name)).parameters) == expected


RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)
ROWS = RNG.standard_normal((5, 4)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2, 3])
WEIGHT = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (X,), {"inplace": False}),
    ("leaky_relu", (X, 0.2), {}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("softplus", (X * 30,), {}),
    ("hardtanh", (X,), {"min_val": -0.5}),
    ("rrelu", (X,), {}),
    ("softmax", (X,), {"dim": 1}),
    ("log_softmax", (X, 1), {}),
    ("dropout", (X,), {"training": False}),
    ("linear", (ROWS, ROWS), {}),
    ("conv2d", (X, WEIGHT), {"padding": 1, "stride": 2}),
    ("conv_transpose2d", (X, WEIGHT, None, 2), {}),
    ("max_pool2d", (X, 2), {}),
    ("avg_pool2d", (X, 3), {"stride": 1, "padding": 1, "count_include_pad": False}),
    ("adaptive_avg_pool2d", (X, 2), {}),
    ("unfold", (X, 3), {"padding": 1}),
    ("pad", (X, (1, 2)), {"value": 3.0}),
    ("pad", (X, (1, 1, 1, 1)), {"mode": "reflect"}),
    ("interpolate", (X,), {"scale_factor": 2.0, "mode": "bilinear", "align_corners": False}),
    ("layer_norm", (X, (6, 6)), {}),
    ("group_norm", (X, 2), {}),
    ("normalize", (ROWS,), {"dim": 0}),
    ("one_hot", (LABELS,), {"num_classes": 5}),
    ("embedding", (LABELS, ROWS), {}),
    ("cross_entropy", (ROWS, LABELS), {"label_smoothing": 0.1, "reduction": "sum"}),
    ("cross_entropy", (ROWS, LABELS, abs(ROWS[0])), {}),
    ("nll_loss", (ROWS, LABELS), {}),
    ("mse_loss", (ROWS, ROWS * 2), {}),
    ("binary_cross_entropy_with_logits", (ROWS, ROWS * 0 + 1), {}),
    ("kl_div", (ROWS, ROWS), {"log_target": True, "reduction": "batchmean"}),
    ("huber_loss", (ROWS, ROWS * 2, "mean", 0.5), {}),
    ("cosine_similarity", (ROWS, ROWS + 1), {}),
    ("triplet_margin_loss", (ROWS, ROWS + 1, ROWS * 2), {"margin": 2.0}),
    ("scaled_dot_product_attention", (X, X, X), {"is_causal": True}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_results_are_pytorchs(name: str, args: Any, kwargs: Any) -> None:
    mine = [Tensor(value) if isinstance(value, np.ndarray) else value for value in args]
    reference = [torch.tensor(value) if isinstance(value, np.ndarray) else value for value in args]
    found = getattr(F, name)(*mine, **kwargs)
    exact = getattr(theirs, name)(*reference, **kwargs)
    np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=1e-5, atol=1e-5)
