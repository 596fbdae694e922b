"""Bound variables as numbers and as sizes: results are those of the value, in replays too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.backend.test_variables import ARITHMETIC, COMPARISONS
from tests.planning import Work

import ferrule
from ferrule import Tensor, TinyJit, Variable, dtypes, nn
from ferrule.ir.shape.view import ShapeError

pytestmark = pytest.mark.usefixtures("device")

N = Variable("n", 0, 12)
VALUES = (4, 7, 2, 12, 1, 4, 0, 5)
X = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)

# *** numbers of Python ***

BINARY = [*ARITHMETIC, *COMPARISONS]
OTHERS = [
    0.5,
    -2.5,
    3.0,
    2.9999,
    math.inf,
    -math.inf,
    math.nan,
    2,
    -3,
    True,
    Fraction(7, 2),
    2 + 1j,
    np.float32(1.5),
    np.float64(3.0),
    np.int64(3),
    np.int32(-2),
    np.array([1.5, 3.0]),
    np.array([[3], [4]]),
    Variable("m", 1, 9).bind(3),
]
UNARY = [
    float,
    int,
    bool,
    complex,
    operator.neg,
    operator.pos,
    abs,
    round,
    math.floor,
    math.ceil,
    math.trunc,
    math.sqrt,
    math.exp,
    operator.index,
    lambda n: round(n, -1),
    lambda n: f"{n:.2f} {n:03d}",
    lambda n: [10, 11, 12, 13, 14][n],
    lambda n: list(range(n)),
    lambda n: "ab" * n,
    lambda n: np.sqrt(n),
    lambda n: np.array([n, 0.5]),
    lambda n: np.zeros(n),
    lambda n: max(n, 2.5),
    lambda n: sum([n, n, 0.5]),
    lambda n: n in [1, 3],
    lambda n: n & 1,
    lambda n: 8 | n,
    lambda n: n ^ 5,
    lambda n: n << 2,
    lambda n: 64 >> n,
    lambda n: 0.5 + (n < 4) + (n > 2.5) * 2,
    lambda n: n if n else -1,
]


def plain(result: Any) -> Any:
    """Expressions as their values, in whatever they are."""
    if isinstance(result, tuple):
        return tuple([plain(part) for part in result])
    if isinstance(result, ferrule.ir.expr.Expr):
        return bool(result) if result.dtype is ferrule.ir.expr.BOOL else int(result)
    return result


def result_of(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return plain(function(*args))
    except (ZeroDivisionError, TypeError, ValueError, OverflowError) as error:
        return TypeError if isinstance(error, TypeError) else ValueError


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_variable_in_arithmetic_is_its_value(op: Callable[[Any, Any], Any], other: Any) -> None:
    number = plain(other)
    for value in (3, 0, 4):
        bound = N.bind(value)
        if (
            op in (operator.floordiv, operator.mod, divmod)
            and isinstance(number, int | np.integer)
            and number < 0
        ):
            continue  # symbolic divisions are by positive numbers
        found, wanted = result_of(op, bound, other), result_of(op, value, number)
        np.testing.assert_equal(found, wanted)
        assert np.asarray(found).dtype.kind == np.asarray(wanted).dtype.kind
        if value or op not in (operator.floordiv, operator.mod, divmod):
            np.testing.assert_equal(result_of(op, other, bound), result_of(op, number, value))


@pytest.mark.parametrize("function", UNARY)
def test_a_variable_is_taken_for_its_value(function: Callable[[Any], Any]) -> None:
    for value in (3, 0, 4):
        found = plain(function(N.bind(value)))
        np.testing.assert_equal(found, function(value))
        assert type(found) is type(function(value))


def test_an_expression_of_variables_equals_its_value() -> None:
    n, m = N.bind(3), Variable("m", 1, 9).bind(6)
    assert n + 3 == m
    assert n * 2 == 6.0
    assert n * m - 1 != 18
    assert n != 4
    assert (n, 8) == (3, 8)
    assert n in {n: 1}
    assert hash(n) == hash(N.bind(3))
    assert N != 3  # it has no value
    assert N == N


def test_a_variable_without_a_value_is_no_number() -> None:
    for use in (lambda: N * 1.5, lambda: N / 2, lambda: float(N), lambda: math.sqrt(N + 1)):
        with pytest.raises(TypeError, match=r"has no value; bind .*variable\.bind\(value\)"):
            use()
    assert (N < 2.5) is (N < 3)
    assert (N <= 2.5) is (N < 3)
    assert (N > 2.5) is (N > 2)
    assert (N >= 2.5) is (N > 2)
    assert bool(N < 12.5)
    assert not N > math.inf
    with pytest.raises(TypeError, match="the truth of n < 3 is not known"):
        bool(N < 2.5)
    with pytest.raises(TypeError, match="unsupported operand"):
        N + None  # type: ignore[operator]


# *** in functions of tensors ***

ON_TENSORS: list[Callable[[Tensor, Any], Any]] = [
    lambda x, n: x * (n * 1.5),
    lambda x, n: x * n * 0.5,
    lambda x, n: x + 0.5 * n,
    lambda x, n: n - x,
    lambda x, n: (n + 0.5) / (x.abs() + 1),
    lambda x, n: x / (n + 1) ** 0.5,
    lambda x, n: x // (n + 0.5),
    lambda x, n: x % (n + 1),
    lambda x, n: (x.abs() + 1) ** n,
    lambda x, n: (x.abs() + 1) ** (n * 0.5),
    lambda x, n: (n + 1) ** x,
    lambda x, n: x * (n < 4.5),
    lambda x, n: x * ((n < 4.5) + 1),
    lambda x, n: x * (n // 2.5),
    lambda x, n: x * math.sqrt(n),
    lambda x, n: x * 2 if n < 4.5 else x,
    lambda x, n: x * 2 if n == 4 else x,
    lambda x, n: x * 2 if n != 4.0 else x,
    lambda x, n: x * 2 if n else x,
    lambda x, n: (x * 2 > n) | (n == 2),
    lambda x, n: x * np.float32(1.5) * n,
    lambda x, n: x * (np.array([0.5] * 8, np.float32) * n),
    lambda x, n: x.clamp(-0.1 * n, n * 0.1),
    lambda x, n: x.pad(((1, n), (0, 0)), value=n * 0.5)[:3],
    lambda x, n: x.lerp(x * 2, n * 0.5),
    lambda x, n: x.leaky_relu(n * 0.1),
    lambda x, n: x.layernorm(eps=n),
    lambda x, n: x.add(x, alpha=n * 0.5),
    lambda x, n: (x > 0).where(n * 0.5, x),
    lambda x, n: (x > 0).where(n, 0.5),
    lambda x, n: x.masked_fill(x > 0, n),
    lambda x, n: x.round(n),
    lambda x, n: x.roll(n, 0),
    lambda x, n: x.norm(n + 1, 0),
    lambda x, n: x.tril(n),
    lambda x, n: x.diagonal(n - 3),
    lambda x, n: x.topk(n // 2)[0],
    lambda x, n: Tensor.cat(*x.split(n + 1)[::-1]),
    lambda x, n: Tensor.cat(*x.chunk(n + 1)[::-1]),
    lambda x, n: x.sum() * Tensor.full((2,), n * 0.5),
    lambda x, n: x.sum() + Tensor([n, 0.5]),
    lambda x, n: x.sum() + Tensor.eye(n),
    lambda x, n: x.sum() + Tensor.arange(n),
    lambda x, n: x.sum() + Tensor.arange(0, n, 0.5),
    lambda x, n: x.sum() + Tensor.arange(n, 0, -2),
    lambda x, n: x.sum() + Tensor.arange(0, 20, n + 1),
    lambda x, n: x.sum() + Tensor.arange(4, n),
    lambda x, n: x.sum() + Tensor.linspace(0, n, 5),
    lambda x, n: sum([x * 0.5] * n, x),
]


@pytest.mark.parametrize("function", ON_TENSORS)
def test_functions_take_variables_for_numbers(function: Callable[[Tensor, Any], Any]) -> None:
    x = Tensor(X).realize()
    replayed = TinyJit(lambda x, n: function(x, n).realize())
    for value in VALUES:
        wanted = function(x, value)
        for call in (function, replayed):
            found = call(x, N.bind(value))
            assert found.dtype is wanted.dtype
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-5, atol=1e-6)


def test_integers_that_a_dtype_does_not_hold() -> None:
    x = Tensor([1, 2], dtype=dtypes.uint8).realize()
    many = Variable("k", -5, 1000)
    add = TinyJit(lambda x, k: (x + k).realize())
    for value in (3, 7, 250):
        assert add(x, many.bind(value)).tolist() == [1 + value, 2 + value]
    for value in (300, -1):
        for use in (add, lambda x, k: x + k, lambda x, k: Tensor(k, dtype=x.dtype)):
            with pytest.raises(OverflowError, match=r"does not fit dtypes\.uint8"):
                use(x, many.bind(value))


def test_lanes_have_one_value() -> None:
    x = Tensor(X).realize()
    for value in (3, 5):
        n = N.bind(value)
        found = ferrule.vmap(lambda row, n=n: row * (n * 0.5) + n)(x)
        np.testing.assert_allclose(found.numpy(), X * (value * 0.5) + value, rtol=1e-6)


# *** as lengths ***


def attention(**settings: Any) -> Callable[[Tensor], Tensor]:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    return lambda x: layer(x, x, x, **{k: f(x) for k, f in settings.items()})[0]


def later(x: Tensor) -> Tensor:
    """The keys behind each query."""
    length = x.shape[1]
    return Tensor.ones(12, 12).triu(1).cast(dtypes.bool)[:length, :length]


def behind(x: Tensor) -> Tensor:
    """The keys that are padding."""
    return (Tensor.arange(12).expand(2, 12) > 2)[:, : x.shape[1]]


def layer_of(make: Callable[[], Any], *more: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    layer = make()
    return lambda x: layer(x, *[f(x) for f in more])


def encoder() -> Any:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def decoder() -> Any:
    return nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def recurrent(kind: Any) -> Callable[[Tensor], Tensor]:
    layer = kind(8, 4, batch_first=True)
    result: Callable[[Tensor], Tensor] = lambda x: layer(x)[0]  # noqa: E731
    return result


OF_LENGTH: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "attention": attention,
    "masked attention": lambda: attention(attn_mask=later),
    "padded attention": lambda: attention(key_padding_mask=behind),
    "dot product": lambda: lambda x: x.scaled_dot_product_attention(x, x),
    "causal": lambda: lambda x: x.scaled_dot_product_attention(x, x, is_causal=True),
    "encoder": lambda: layer_of(encoder),
    "masked encoder": lambda: layer_of(encoder, later),
    "decoder": lambda: layer_of(decoder, lambda x: x * 2),
    "layernorm": lambda: layer_of(lambda: nn.LayerNorm(8)),
    "layernorm of a length": lambda: lambda x: x.transpose(1, 2).layernorm(),
    "groups": lambda: lambda x: nn.GroupNorm(2, 8)(x.transpose(1, 2)),
    "convolution": lambda: (lambda conv: lambda x: conv(x.transpose(1, 2)))(
        nn.Conv1d(8, 4, 3, padding=1)
    ),
    "strided convolution": lambda: (lambda conv: lambda x: conv(x.transpose(1, 2)))(
        nn.Conv1d(8, 4, 3, padding=1, stride=2)
    ),
    "GRU": lambda: recurrent(nn.GRU),
    "LSTM": lambda: recurrent(nn.LSTM),
    "embedding": lambda: (
        lambda table: lambda x: table((x.detach() * 3).cast(dtypes.int32).abs()[:, :, 0])
    )(nn.Embedding(20, 3)),
    "cross_entropy": lambda: lambda x: x[0].cross_entropy(Tensor.arange(x.shape[1]) % 8),
    "heads": lambda: lambda x: x.reshape(2, x.shape[1], 2, -1).transpose(1, 2) * 2,
}


@pytest.mark.parametrize("name", OF_LENGTH)
def test_layers_take_variable_lengths(name: str) -> None:
    Tensor.manual_seed(3)
    layer = OF_LENGTH[name]()
    x = Tensor(np.concatenate([X, X[::-1]]).reshape(2, 12, 8)).realize()
    replayed = TinyJit(lambda x: layer(x).realize())
    length = Variable("length", 1, 12)
    for value in (4, 7, 2, 12, 1):
        wanted = layer(x[:, :value]).numpy()
        for call in (layer, replayed):
            found = call(x[:, : length.bind(value)]).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["masked attention", "encoder", "decoder", "convolution", "GRU"])
def test_gradients_through_variable_lengths(name: str) -> None:
    Tensor.manual_seed(3)
    layer = OF_LENGTH[name]()
    x = Tensor(np.concatenate([X, X[::-1]]).reshape(2, 12, 8)).realize()
    length = Variable("length", 1, 12)
    for value in (4, 7):
        wanted = ferrule.grad(lambda x, n=value: layer(x[:, :n]).square().sum())(x)
        n = length.bind(value)
        found = ferrule.grad(lambda x, n=n: layer(x[:, :n]).square().sum())(x)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-3, atol=1e-4)


# *** in shapes ***


def test_what_is_left_of_the_elements() -> None:
    x = Tensor(np.arange(96.0).reshape(12, 8)).realize()
    array = np.arange(96.0).reshape(12, 8)
    n = Variable("n", 1, 12)
    for value in (4, 6, 12):
        part = x[: n.bind(value)]
        size = part.shape[0]
        assert part.reshape(size, 2, -1).shape == (size, 2, 4)
        assert part.reshape(2, size, 2, -1).shape[-1] == 2
        assert part.reshape(-1, 4).shape == (size * 2, 4)
        assert part.reshape(-1, size).shape == (8, size)
        for shape in ((size * 4, -1), (-1, 2), (2, -1), (4, size, -1), (size // 2, -1)):
            plain_shape = [int(n) for n in shape]
            np.testing.assert_array_equal(
                (part.reshape(shape) + 1).numpy(), array[:value].reshape(plain_shape) + 1
            )
    for shape in ((3, -1), (-1, 5)):
        with pytest.raises(ShapeError, match="does not fit a tensor of shape"):
            x[: n.bind(4)].reshape(shape)


def test_a_size_that_divides_for_some_values_only() -> None:
    x = Tensor(np.arange(96.0).reshape(12, 8)).realize()
    n = Variable("n", 1, 12)
    thirds = TinyJit(lambda x: x.reshape(3, -1).sum(1).realize())
    for value in (3, 6, 12, 9):
        wanted = np.arange(value * 8.0).reshape(3, -1).sum(1)
        np.testing.assert_array_equal(thirds(x[: n.bind(value)]).numpy(), wanted)
    with pytest.raises(ShapeError, match="does not fit a tensor of shape"):
        thirds(x[: n.bind(4)])


def test_random_chains_of_shapes() -> None:
    """Movements of a tensor with two symbolic sizes, one after the other, as NumPy does them."""
    array = np.arange(6 * 5 * 4.0, dtype=np.float32).reshape(6, 5, 4)
    x = Tensor(array).realize()
    first, second = Variable("i", 1, 6), Variable("j", 1, 5)
    for seed in range(60):
        chain = _chain(np.random.default_rng(seed))
        replayed = TinyJit(lambda x, i, j, chain=chain: (chain(x[:i, :j], i, j) * 1).realize())
        for i, j in ((3, 4), (2, 5), (6, 1), (1, 3), (5, 5)):
            wanted = chain(array[:i, :j], i, j)
            for call in (lambda x, i, j, chain=chain: chain(x[:i, :j], i, j), replayed):
                found = call(x, first.bind(i), second.bind(j)).numpy()
                np.testing.assert_array_equal(found, wanted, err_msg=f"{seed} {i} {j}")


def _chain(random: np.random.Generator) -> Callable[[Any, Any, Any], Any]:
    """A random function of an array or a tensor of shape (i, j, 4)."""
    shapes: list[Callable[[Any, Any], tuple[Any, ...]]] = [
        lambda i, j: (j, i, 4),
        lambda i, j: (i, j, 4),
        lambda i, j: (1, i * j, 4),
        lambda i, j: (i * j, 2, -1),
        lambda i, j: (2, -1, j),
        lambda i, j: (-1, i),
        lambda i, j: (i * 4, j),
        lambda i, j: (-1,),
        lambda i, j: (j, 2, i, -1),
        lambda i, j: (4, -1, i, 1),
        lambda i, j: (i, 2, 1, j, 2),
        lambda i, j: (2 * j, 2 * i),
    ]
    steps: list[Callable[[Any, Any, Any], Any]] = []
    for _ in range(random.integers(2, 6)):
        kind = random.integers(5)
        if kind < 3:
            shape = shapes[random.integers(len(shapes))]
            steps.append(lambda x, i, j, shape=shape: x.reshape(shape(i, j)))
        elif kind == 3:
            order = random.permutation(5)
            steps.append(lambda x, i, j, order=order: _permuted(x, order))
        else:
            steps.append(lambda x, i, j: x + 1)

    def chain(x: Any, i: Any, j: Any) -> Any:
        for step in steps:
            x = step(x, i, j)
        return x

    return chain


def _permuted(x: Any, order: Any) -> Any:
    axes = tuple([int(axis) for axis in order if axis < len(x.shape)])
    return x.permute(axes) if isinstance(x, Tensor) else x.transpose(axes)


def test_a_scatter_into_a_temporary_of_a_symbolic_shape(device: str) -> None:
    # Its base is read by another view than the one by which the result is stored.
    n = Variable("n", 1, 2).bind(2)
    rows = Tensor([[1, 1], [1, 1]], dtype=dtypes.int64).realize()[:n, :n]
    added, place = Tensor([1.0, 1.0]).realize()[:n], Tensor([1])

    def scattered() -> Tensor:  # nobody else has what it computes on the way
        table = ferrule.hessian(lambda x: x.softmin().sum())(Tensor([1.0] * 5))
        chosen = table[rows, 0]
        return ferrule.vmap(lambda x: x.scatter_add(0, place, added).cos() - chosen)(chosen)

    np.testing.assert_allclose(scattered().numpy(), np.cos([[[0, 1]] * 2] * 2), atol=1e-6)


# *** running totals and orders along a size ***


def gradient_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def gradient(x: Any) -> Any:
        y = x.contiguous().detach().requires_grad_()
        (function(y) * 3).sum().backward()
        return y.grad

    return gradient


ALONG: dict[str, Callable[[Any], Any]] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0)[0],
    "where the largest so far is": lambda x: x.cummax(0)[1],
    "cummin": lambda x: x.cummin(0)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "sort": lambda x: x.sort(0).values,
    "from the largest": lambda x: x.sort(0, descending=True).values,
    "argsort": lambda x: x.argsort(0),
    "the largest": lambda x: x.topk(1, 0).values,
    "integers": lambda x: (x * 4).cast(dtypes.int32).sort(0).values,
    "long": lambda x: x.repeat(1, 1).reshape(-1).cumsum(0),
    "the gradient of cumsum": gradient_of(lambda x: x.cumsum(0)),
    "the gradient of cumprod": gradient_of(lambda x: x.cumprod(0)),
    "the gradient of logcumsumexp": gradient_of(lambda x: x.logcumsumexp(0)),
    "the gradient of sort": gradient_of(lambda x: x.sort(0).values),
}


@pytest.mark.parametrize("name", ALONG)
def test_totals_and_orders_along_a_variable_are_planned_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, m = ALONG[name], Variable("m", 1, 12)
    values = [value for value in VALUES if value]
    expected = {n: function(Tensor(X[:n]).realize()).numpy() for n in values}
    work = Work(monkeypatch)
    x = Tensor(X).realize()
    run = TinyJit(lambda part: function(part).realize())
    planned = []
    for n in values:
        for part in (function(x[: m.bind(n)]), run(x[: m.bind(n)])):
            np.testing.assert_allclose(part.numpy(), expected[n], rtol=1e-4, atol=1e-4)
        planned.append(work.plans)
    # A capture may plan once more, and so may a call while values of the one before are held.
    assert planned[3:] == planned[2:3] * (len(planned) - 3)
