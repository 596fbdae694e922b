"""Products of float32 on a GPU: exact, or of operands rounded to tf32 where that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from tests.kernels import Array, as_multiplied, numpy_convolution

from ferrule import Context, Tensor, TinyJit
from ferrule.codegen.intrinsics import MMA_TF32

pytestmark = pytest.mark.usefixtures("gpu")


def randn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def on_gpu(x: Array) -> Tensor:
    return Tensor(x, device="CUDA")


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., Array], Array, Array]] = {
    "product": (Tensor.matmul, np.matmul, randn(96, 160), randn(160, 128)),
    "batch": (Tensor.matmul, np.matmul, randn(3, 64, 96), randn(3, 96, 64)),
    "convolution": (
        partial(Tensor.conv2d, padding=1),
        numpy_convolution,
        randn(2, 32, 9, 10),
        randn(64, 32, 3, 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operands_are_rounded_only_where_that_is_allowed(name: str) -> None:
    function, expected, a, b = CASES[name]
    wide = [x.astype(np.float64) for x in (a, b)]
    exact, rounded = expected(*wide), expected(*(as_multiplied(x, MMA_TF32) for x in (a, b)))
    assert np.abs(exact - rounded).max() > 1e-3  # so that each of the two is told from the other
    for allowed, values in ((0, exact), (1, rounded), (0, exact)):
        with Context(ALLOW_TF32=allowed):
            found = function(on_gpu(a), on_gpu(b)).numpy()
        np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-4)


def test_a_captured_function_is_captured_again_where_the_setting_changes() -> None:
    a, b = randn(96, 160), randn(160, 128)
    product = TinyJit(lambda x, y: (x @ y).realize())
    wide = [x.astype(np.float64) for x in (a, b)]
    expected = wide[0] @ wide[1], as_multiplied(a, MMA_TF32) @ as_multiplied(b, MMA_TF32)
    x, y = on_gpu(a).realize(), on_gpu(b).realize()
    for allowed in (0, 0, 0, 1, 1, 1, 0, 1):
        with Context(ALLOW_TF32=allowed):
            found = product(x, y).numpy()
        np.testing.assert_allclose(found, expected[allowed], rtol=1e-5, atol=1e-4)


def test_what_is_infinite_or_no_number_stays() -> None:
    a, b = randn(96, 160), np.eye(160, 128, dtype=np.float32)
    a[0, 0], a[1, 1], a[2, 2] = np.inf, -np.inf, np.nan
    a[3, 3] = np.float32(3.4028235e38)  # rounds to infinity
    with Context(ALLOW_TF32=1):
        found = (on_gpu(a) @ on_gpu(b)).numpy()
    with np.errstate(all="ignore"):
        rounded = as_multiplied(a, MMA_TF32).astype(np.float32).astype(np.float64)
        expected = rounded @ b.astype(np.float64)
    np.testing.assert_array_equal(found[:4], expected[:4].astype(np.float32))


def test_attention_and_its_gradients() -> None:
    shape = (1, 2, 96, 64)
    q, k, v = (randn(*shape) * scale for scale in (1.0, 0.9, 0.8))
    found = []
    for allowed in (0, 1):
        with Context(ALLOW_TF32=allowed):
            tensors = [on_gpu(x) for x in (q, k, v)]
            for tensor in tensors:
                tensor.requires_grad = True
            out = tensors[0].scaled_dot_product_attention(tensors[1], tensors[2])
            gradients = (out * out).sum().gradient(*tensors)
            found.append([x.numpy() for x in (out, *gradients)])
    for exact, rounded in zip(*found, strict=True):
        far = np.abs(exact - rounded).max()
        assert 0 < far < 2.0**-11 * 16 * np.abs(exact).max()
