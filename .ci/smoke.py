"""A few lines that use every layer of an installed ferrule, checked against NumPy."""

from importlib.metadata import version

import numpy

import ferrule
from ferrule import Context, Tensor, TinyJit, dtypes, nn

GENERATOR = numpy.random.default_rng(0)


def check(found: Tensor, expected: numpy.ndarray, tolerance: float = 1e-5) -> None:
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def check_gradient() -> None:
    x = GENERATOR.standard_normal((17, 33), dtype=numpy.float32)
    w = GENERATOR.standard_normal((33, 9), dtype=numpy.float32)
    weight = Tensor(w, requires_grad=True)
    loss = (Tensor(x) @ weight).relu().sum()
    loss.backward()
    check(loss, numpy.maximum(x @ w, 0).sum())
    check(weight.grad, x.T @ (x @ w > 0))


def check_functions() -> None:
    x = GENERATOR.uniform(0.1, 3, 100).astype(numpy.float32)
    check(Tensor(x).log().sin().exp().sqrt(), numpy.sqrt(numpy.exp(numpy.sin(numpy.log(x)))))
    counts = numpy.arange(-50, 50)
    check(Tensor(counts) // 7 + Tensor(counts) % 7, counts // 7 + counts % 7)


def check_narrow_floats() -> None:
    x = GENERATOR.standard_normal(64).astype(numpy.float32)
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float64):
        narrow = x.astype(dtype.np)
        found = (Tensor(x).cast(dtype) * 2).cast(dtypes.float32)
        check(found, (narrow * narrow.dtype.type(2)).astype(numpy.float32))


def check_convolution() -> None:
    layer = nn.Conv2d(3, 4, 3)
    images = GENERATOR.standard_normal((2, 3, 8, 8), dtype=numpy.float32)
    windows = numpy.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    expected = numpy.einsum("ncyxij,fcij->nfyx", windows, layer.weight.numpy())
    check(layer(Tensor(images)), expected + layer.bias.numpy()[:, None, None], 1e-4)


def check_replay() -> None:
    softmax = TinyJit(lambda rows: rows.softmax(axis=1).realize())
    for _ in range(4):
        x = GENERATOR.standard_normal((5, 100), dtype=numpy.float32)
        powers = numpy.exp(x)
        check(softmax(Tensor(x)), powers / powers.sum(axis=1, keepdims=True))


assert ferrule.__version__ == version("ferrule")
for device in ("CPU", "NUMPY"):
    with Context(FERRULE_DEVICE=device):
        check_gradient()
        check_functions()
        check_narrow_floats()
        check_convolution()
        check_replay()
    print(f"{device} works: gradients, functions, narrow floats, convolution, replay")
