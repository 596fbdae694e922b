"""A few lines that use every layer of an installed ferrule, checked against NumPy."""

import numpy

from ferrule import Tensor, TinyJit


def check(found: Tensor, expected: numpy.ndarray) -> None:
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


generator = numpy.random.default_rng(0)
x = generator.standard_normal((17, 33), dtype=numpy.float32)
w = generator.standard_normal((33, 9), dtype=numpy.float32)

weight = Tensor(w, requires_grad=True)
loss = (Tensor(x) @ weight).relu().sum()
loss.backward()
check(loss, numpy.maximum(x @ w, 0).sum())
check(weight.grad, x.T @ (x @ w > 0))


@TinyJit
def softmax(rows: Tensor) -> Tensor:
    return rows.softmax(axis=1).realize()


for scale in (1, 2, 3, 4):
    powers = numpy.exp(x * scale)
    check(softmax(Tensor(x * scale)), powers / powers.sum(axis=1, keepdims=True))

print("ferrule works: matmul, gradient, softmax, capture and replay")
