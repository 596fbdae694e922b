"""The gradient of every operation, by finite differences in float64."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import grad
from ferrule.tensor import Tensor

RNG = np.random.default_rng(0)
# No two elements are equal, and none is near a point where a function has a kink.
A = np.array([[0.31, -1.42, 0.77], [1.93, -0.58, -0.11]])
B = np.array([[1.27, 0.64, -0.45], [-1.61, 0.23, 2.05]])
POSITIVE = np.array([[0.4, 1.7, 2.9], [0.8, 3.3, 1.1]])

UNARY: dict[str, tuple[Callable[[Tensor], Tensor], np.ndarray]] = {
    "neg": (lambda x: -x, A),
    "square": (Tensor.square, A),
    "sqrt": (Tensor.sqrt, POSITIVE),
    "rsqrt": (Tensor.rsqrt, POSITIVE),
    "reciprocal": (Tensor.reciprocal, A),
    "exp": (Tensor.exp, A),
    "exp2": (Tensor.exp2, A),
    "expm1": (Tensor.expm1, A),
    "log": (Tensor.log, POSITIVE),
    "log2": (Tensor.log2, POSITIVE),
    "log10": (Tensor.log10, POSITIVE),
    "log1p": (Tensor.log1p, POSITIVE),
    "sin": (Tensor.sin, A * 3),
    "cos": (Tensor.cos, A * 3),
    "tan": (Tensor.tan, A * 0.5),
    "sinh": (Tensor.sinh, A),
    "cosh": (Tensor.cosh, A),
    "tanh": (Tensor.tanh, A),
    "erf": (Tensor.erf, A),
    "abs": (Tensor.abs, A),
    "relu": (Tensor.relu, A),
    "relu6": (Tensor.relu6, A * 5),
    "leaky_relu": (Tensor.leaky_relu, A),
    "elu": (Tensor.elu, A),
    "celu": (lambda x: x.celu(0.7), A),
    "selu": (Tensor.selu, A),
    "sigmoid": (Tensor.sigmoid, A),
    "logsigmoid": (Tensor.logsigmoid, A),
    "gelu tanh": (Tensor.gelu, A),
    "gelu": (lambda x: x.gelu("none"), A),
    "quick_gelu": (Tensor.quick_gelu, A),
    "silu": (Tensor.silu, A),
    "mish": (Tensor.mish, A),
    "softplus": (Tensor.softplus, A),
    "softplus beta": (lambda x: x.softplus(3.0), A),
    "softsign": (Tensor.softsign, A),
    "hardtanh": (Tensor.hardtanh, A),
    "hardsigmoid": (Tensor.hardsigmoid, A * 2),
    "hardswish": (Tensor.hardswish, A),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), A),
    "pow 3": (lambda x: x**3, A),
    "pow -2": (lambda x: x**-2, A),
    "pow 1.7": (lambda x: x**1.7, POSITIVE),
    "rpow": (lambda x: 1.7**x, A),
    "2 ** x": (lambda x: 2**x, A),
    "rsub": (lambda x: 3 - x, A),
    "rdiv": (lambda x: 3 / x, A),
    "rmod": (lambda x: 7.3 % x, POSITIVE),
    "cast": (lambda x: (x.float() * 1.5).double(), np.round(A, 2)),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(device: str, name: str) -> None:
    function, point = UNARY[name]
    single = name == "cast"  # float32 in the middle
    if single:
        assert_gradients(function, point, step=1e-2, tolerance=1e-4)
    else:
        assert_gradients(function, point)


BINARY: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], np.ndarray, np.ndarray]] = {
    "add": (lambda x, y: x + y, A, B),
    "sub": (lambda x, y: x - y, A, B),
    "mul": (lambda x, y: x * y, A, B),
    "div": (lambda x, y: x / y, A, B),
    "mod": (lambda x, y: x % y, A * 5, B),
    "pow": (lambda x, y: x**y, POSITIVE, B),
    "maximum": (Tensor.maximum, A, B),
    "minimum": (Tensor.minimum, A, B),
    "where": (lambda x, y: (x > 0).where(x * 2, y), A, B),
    "lerp": (lambda x, y: x.lerp(y, 0.3), A, B),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, 2.0) * y, A, B),
    "broadcast row": (lambda x, y: x * y, A, B[0]),
    "broadcast column": (lambda x, y: x / y, A, B[:, :1]),
    "broadcast both": (lambda x, y: x + y, A[:1], B[:, :1]),
    "same twice": (lambda x, y: x * y * x + y, A, B),
    "matmul": (lambda x, y: x @ y, A, B.T.copy()),
    "matvec": (lambda x, y: x @ y, A, B[0]),
    "vecmat": (lambda x, y: x @ y, A[0], B.T.copy()),
    "dot": (lambda x, y: x.dot(y), A[0], B[0]),
    "outer": (lambda x, y: x.outer(y), A[0], B[1]),
    "cat": (lambda x, y: x.cat(y, x, dim=1), A, B),
    "stack": (lambda x, y: x.stack(y, dim=1), A, B),
    "einsum": (lambda x, y: Tensor.einsum("ij,kj->ki", x, y), A, B),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(device: str, name: str) -> None:
    function, first, second = BINARY[name]
    assert_gradients(function, first, second)


CUBE = RNG.permutation(24).reshape(2, 3, 4) * 0.17 - 1.9
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(4, 6),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "expand": lambda x: x.unsqueeze(1).expand(2, 5, 3, 4),
    "flip": lambda x: x.flip(0, 2),
    "pad": lambda x: x.pad((1, 2, 0, 3)),
    "pad value": lambda x: x.pad((1, -1), value=3.0),
    "pad reflect": lambda x: x.pad((2, 1), mode="reflect"),
    "pad circular": lambda x: x.pad((2, 1), mode="circular"),
    "pad replicate": lambda x: x.pad((2, 1), mode="replicate"),
    "shrink": lambda x: x.shrink((None, (1, 3), (0, 2))),
    "slice": lambda x: x[1, :, 1:3],
    "slice step": lambda x: x[:, ::2, ::-3],
    "index list": lambda x: x[:, [0, 2, 2]],
    "index tensor": lambda x: x[:, Tensor([0, 2, -1])],
    "index pair": lambda x: x[Tensor([0, 1, 1]), :, Tensor([3, 0, 0])],
    "gather": lambda x: x.gather(2, Tensor([[[0, 3], [1, 1], [2, 0]]])),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "split": lambda x: x.split(2, 2)[1] * 3,
    "tril": Tensor.tril,
    "triu": lambda x: x.triu(1),
    "einsum diagonal": lambda x: Tensor.einsum("iji->j", x[:, :, :2]),
    "contiguous": lambda x: x.T.contiguous() * 2,
    "clone": lambda x: x.clone() * 2,
    "scatter": lambda x: x.scatter(2, Tensor(np.array([[[1, 3], [0, 2], [1, 1]]])), x[:1, :, :2]),
    "scatter_add": lambda x: x.scatter_add(1, Tensor(np.zeros((2, 3, 4), np.int32)), x * x),
    "index_put": lambda x: x.index_put((Tensor([1, 0, 1]),), x[[0, 1, 0]].square()),
    "index_put add": lambda x: x.index_put(
        (Tensor([0, 1, 0]), None, Tensor([1, 3, 1])), x[0, :, :3].square().T, accumulate=True
    ),
    "index_add": lambda x: x.index_add(1, Tensor([2, 0, 2]), x.square(), alpha=3),
    **{
        f"scatter {how}{' alone' * alone}": lambda x, how=how, alone=alone: x.scatter_reduce(
            1,
            Tensor([[[0, 2], [0, 1], [0, 0]]]),
            x[1:, :, 1:3] * x[0, 0, 0],
            how,
            include_self=not alone,
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for alone in (False, True)
    },
    "setitem": lambda x: _written(x, slice(1, 3), 2.0),
    "setitem tensor": lambda x: _written(x, Tensor([2, 0]), x[0, 0, 0]),
}


def _written(x: Tensor, part: object, value: object) -> Tensor:
    y = x * 2
    y[:, part] = value
    return y * x


@pytest.mark.parametrize("name", MOVES)
def test_movement(device: str, name: str) -> None:
    assert_gradients(MOVES[name], CUBE)


REDUCES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": Tensor.sum,
    "sum axes": lambda x: x.sum((0, 2)),
    "sum keepdim": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(2),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min((0, 2)),
    "var": lambda x: x.var(2),
    "std": lambda x: x.std((0, 1)),
    "norm": lambda x: x.norm(axis=1),
    "norm 3": lambda x: x.norm(3, axis=1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "cumsum": lambda x: x.cumsum(2),
    "layernorm": lambda x: x.layernorm(),
    "layernorm axes": lambda x: x.layernorm((1, 2)),
    "rms_norm": lambda x: x.rms_norm(),
    "cross_entropy": lambda x: x.cross_entropy(Tensor([[0, 2, 1, 1], [2, 2, 0, 1]])),
    "smoothing": lambda x: x.cross_entropy(Tensor([[0, 2, 1, 1], [2, 2, 0, 1]]), "none", 0.2),
    "attention": lambda x: x.scaled_dot_product_attention(x * 2, x - 1),
    "causal": lambda x: x.scaled_dot_product_attention(x * 2, x - 1, is_causal=True),
    "max_pool": lambda x: x.max_pool2d((2, 2), 1),
    "max_pool blocks": lambda x: x.max_pool2d((1, 2)),
    "avg_pool": lambda x: x.avg_pool2d((2, 3), 1, padding=1),
}


@pytest.mark.parametrize("name", REDUCES)
def test_reduce(device: str, name: str) -> None:
    assert_gradients(REDUCES[name], CUBE)


def test_long_cumsum(device: str) -> None:
    x = Tensor(np.ones(600), requires_grad=True)
    x.cumsum(0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.arange(600, 0, -1))


def test_prod_with_zeros(device: str) -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [2.0, 3.0, 4.0]])
    t = Tensor(x, requires_grad=True)
    t.prod(1).sum().backward()
    assert t.grad.tolist() == [[0, 6, 0], [0, 0, 0], [12, 8, 6]]


PRODUCTS = {
    "prod": lambda x: x.prod(1),
    "prod of two axes": lambda x: x.reshape(2, 2, 3).prod((0, 2)),
    "scatter_reduce": lambda x: Tensor.ones(4, 2, dtype="float64").scatter_reduce(
        1, Tensor([[0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]), x, "prod"
    ),
    "index_reduce": lambda x: Tensor.ones(4, 2, dtype="float64").index_reduce(
        1, Tensor([0, 1, 0]), x, "prod"
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_second_and_third_gradients_of_products_with_zeros(device: str, name: str) -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [2.0, 3.0, 4.0], [0.0, 0.0, 0.0]])

    def slope(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        weights = Tensor(np.arange(1.0, 13.0).reshape(4, 3))
        return lambda t: grad(lambda u: function(u).sum())(t) * weights

    first = slope(PRODUCTS[name])
    assert_gradients(first, x)
    assert_gradients(slope(first), x)


CONVOLUTIONS = {
    "plain": {},
    "padding": {"padding": 1},
    "stride": {"stride": 2, "padding": (1, 0)},
    "dilation": {"dilation": (1, 2), "padding": 2},
    "uneven padding": {"padding": (0, 2, 1, 0)},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(device: str, name: str) -> None:
    image, filters, bias = (RNG.normal(size=n) for n in ((2, 2, 5, 4), (4, 2, 3, 2), (4,)))
    options = CONVOLUTIONS[name]
    assert_gradients(lambda x, w, b: x.conv2d(w, b, **options), image, filters, bias)


def test_grouped_and_transposed_conv2d(device: str) -> None:
    image, filters = RNG.normal(size=(1, 4, 4, 3)), RNG.normal(size=(4, 2, 2, 2))
    assert_gradients(lambda x, w: x.conv2d(w, groups=2), image, filters)
    options = {"stride": 2, "padding": 1, "output_padding": (1, 0), "groups": 2}
    assert_gradients(lambda x, w: x.conv_transpose2d(w, **options), image, filters)


def test_second_derivatives(device: str) -> None:
    point = np.array([0.4, -1.3, 2.2])
    x = Tensor(point, requires_grad=True)
    (first,) = (x.sin() * x.exp()).sum().gradient(x, create_graph=True)
    (second,) = first.sum().gradient(x)
    expected = 2 * np.cos(point) * np.exp(point)
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["conv", "softmax", "max", "window"])
def test_second_derivatives_by_differences(device: str, name: str) -> None:
    weight = RNG.normal(size=(2, 3, 2))
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "conv": lambda x: x.conv2d(Tensor(weight), stride=2, padding=1).square(),
        "softmax": lambda x: x.softmax(1).square(),
        "max": lambda x: x.max(1) ** 3,
        "window": lambda x: x.unfold(2, 2, 1).square() * 0.5,
    }

    def slope(x: Tensor) -> Tensor:
        with Tensor.no_grad(False):
            source = x if x.requires_grad else x.requires_grad_()
            return functions[name](source).sum().gradient(source, create_graph=True)[0]

    assert_gradients(slope, RNG.normal(size=(2, 3, 4)), tolerance=1e-5)


NOTHING = np.zeros((0, 3), np.int32)
OF_NO_ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[2:] * 2,
    "gather": lambda x: x.gather(1, Tensor(NOTHING)),
    "positions": lambda x: x[Tensor(NOTHING[:, 0])],
    "diagonal": lambda x: x.diagonal(7),
    "diag": lambda x: x[0, :0].diag(),
    "vander": lambda x: x[0].vander(0),
    "cat": lambda x: Tensor.zeros(1, 3, dtype="float64").cat(x[:0]),
    "scatter_add": lambda x: Tensor.zeros(2, 3, dtype="float64").scatter_add(
        0, Tensor(NOTHING), x[:0]
    ),
    "index_add": lambda x: Tensor.zeros(2, 3, dtype="float64").index_add(
        0, Tensor(NOTHING[:, 0]), x[:0]
    ),
    "sum": lambda x: x[:0].sum(0),
    "matmul": lambda x: x[:, :0] @ x[:, :0].T,
    "combinations": lambda x: x[0].combinations(5),
}


@pytest.mark.parametrize("name", OF_NO_ELEMENTS)
def test_what_is_made_of_no_elements_has_gradients_of_zeros(device: str, name: str) -> None:
    x = Tensor(A, requires_grad=True)
    OF_NO_ELEMENTS[name](x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros_like(A))
