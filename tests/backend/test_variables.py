"""A bound variable is a number to Python, and a size to tensors, also in replays."""

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable, nn
from ferrule.ir.shape.view import ShapeError

N, M = Variable("n", 1, 10), Variable("m", 1, 10)
RNG = np.random.default_rng(7)
X = RNG.standard_normal((10, 10)).astype(np.float32)

# *** numbers ***

ARITHMETIC = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    divmod,
]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
NUMBERS = [2, 3, 0.5, 1.5, 3.0, np.float32(2.5), np.int64(2), True]


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS])
def test_operators_with_numbers_are_those_of_the_value(op: Callable[[Any, Any], Any]) -> None:
    for value, number in product((1, 3, 7), NUMBERS):
        bound = N.bind(value)
        for a, b, expected in [
            (bound, number, op(value, number)),
            (number, bound, op(number, value)),
        ]:
            found = op(a, b)
            parts = zip(found, expected, strict=True) if op is divmod else [(found, expected)]
            for ours, theirs in parts:
                assert float(ours) == float(theirs), (op, a, b)
                if op in COMPARISONS:
                    assert bool(ours) is bool(theirs)


@pytest.mark.parametrize("value", [1, 2, 9])
def test_functions_of_numbers_take_bound_variables(value: int) -> None:
    n = N.bind(value)
    assert (int(n), float(n), math.sqrt(n), abs(-n), round(n)) == (
        value,
        float(value),
        math.sqrt(value),
        value,
        value,
    )
    assert (list(range(n)), [0] * 10 == [0] * (n + 10 - value)) == (list(range(value)), True)
    assert max(n, 5) == max(value, 5)
    assert f"{n:03d}" == f"{value:03d}"
    assert "few" if n < 2.5 else value > 2.5


def test_a_variable_without_a_value_is_no_number() -> None:
    for use in (lambda: N * 0.5, lambda: float(N), lambda: N / 2, lambda: bool(N < 3)):
        with pytest.raises(TypeError, match=r"bind"):
            use()
    assert (N == 3) is False


def test_tensors_with_numbers_of_variables(device: str) -> None:
    x = Tensor([1.0, 2.0])
    n = N.bind(3)
    for result, expected in [
        (x * (n * 1.5), [4.5, 9.0]),
        (n * x, [3.0, 6.0]),
        (x + (n + 0.5), [4.5, 5.5]),
        (x / n, [1 / 3, 2 / 3]),
        (n / x, [3.0, 1.5]),
        (x.clamp(max=n / 2), [1.0, 1.5]),
        (Tensor.full((2,), n * 0.5), [1.5, 1.5]),
        (x.pad((1, 0), value=n / 2), [1.5, 1.0, 2.0]),
        ((x * 2).lerp(x, n / 6), [1.5, 3.0]),
    ]:
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_replays_follow_the_value(device: str) -> None:
    @TinyJit
    def scaled(x: Tensor, n: Any) -> Tensor:
        factor = n * 0.5 if n > 2.5 else n / 4
        return (x * factor).realize()

    for value in (3, 3, 3, 4, 4, 4, 2, 1, 3, 7):
        expected = 2.0 * (value * 0.5 if value > 2.5 else value / 4)
        assert scaled(Tensor([2.0]), N.bind(value)).item() == expected


# *** sizes ***

SHAPES: list[Callable[[Any, Any], tuple[Any, ...]]] = [
    lambda n, m: (m, n),
    lambda n, m: (n * m,),
    lambda n, m: (1, n * m),
    lambda n, m: (n, 1, m),
    lambda n, m: (-1,),
    lambda n, m: (n, -1),
    lambda n, m: (-1, m),
    lambda n, m: (m, -1, 1),
    lambda n, m: (m * n, 1, -1),
]


def test_chains_of_reshapes_are_numpys(device: str) -> None:
    random = np.random.default_rng(3)
    for _ in range(40):
        chain = [SHAPES[k] for k in random.integers(0, len(SHAPES), random.integers(1, 4))]
        values = [int(value) for value in random.integers(1, 10, 2)]
        bound = N.bind(values[0]), M.bind(values[1])
        found, expected = Tensor(X)[: bound[0], : bound[1]], X[: values[0], : values[1]]
        for shape in chain:
            found = found.reshape(*shape(*bound))
            expected = expected.reshape(shape(*values))
        flat = (found * 2 + 1).reshape(-1)
        sizes = [int(size) for size in found.shape]
        assert sizes == list(expected.shape)
        np.testing.assert_allclose(flat.sum().item(), (expected * 2 + 1).sum(), rtol=1e-5)
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_rest_of_a_symbolic_size_is_divided(device: str, heads: int) -> None:
    @TinyJit
    def parted(x: Tensor, n: Any) -> Tensor:
        apart = x[:, :n].reshape(2, n, heads, -1)
        return (apart.transpose(1, 2).reshape(2 * heads, n, -1) * 2).sum(1).realize()

    x = RNG.standard_normal((2, 10, 8)).astype(np.float32)
    for value in (4, 4, 4, 7, 1, 10):
        expected = x[:, :value].reshape(2, value, heads, -1).transpose(0, 2, 1, 3)
        expected = expected.reshape(2 * heads, value, -1).sum(1) * 2
        found = parted(Tensor(x), N.bind(value)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_size_that_is_no_divisor_is_an_error() -> None:
    x = Tensor(X)[: N.bind(3)]
    with pytest.raises(ShapeError, match="does not fit"):
        x.reshape(4, -1)
    assert [int(size) for size in x.reshape(6, -1).shape] == [6, 5]


@pytest.mark.parametrize("causal", [False, True])
def test_layers_of_transformers_take_lengths_that_vary(causal: bool) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16)
    attention = nn.MultiheadAttention(8, 2)
    x = RNG.standard_normal((2, 10, 8)).astype(np.float32)

    def run(part: Tensor) -> list[Tensor]:
        attended = attention(part, part, part, is_causal=causal)[0]
        return [encoder(part).sum(1).realize(), attended.sum(1).realize()]

    captured = TinyJit(lambda whole, n: run(whole[:, :n]))
    for value in (4, 4, 4, 7, 1, 10):
        for found in (run(Tensor(x)[:, : N.bind(value)]), captured(Tensor(x), N.bind(value))):
            for ours, theirs in zip(found, run(Tensor(x[:, :value])), strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("windows", ["avg_pool1d", "max_pool1d", "lp_pool1d"])
def test_gradients_of_windows_of_a_symbolic_size(device: str, windows: str) -> None:
    """Quotients by what may be 0, such as n // 3, have no bounds: no loop is cut by them."""

    def gradient(x: Tensor, place: int) -> np.ndarray[Any, Any]:
        arguments = (2, 3) if windows == "lp_pool1d" else (3,)
        result = getattr(x.requires_grad_(), windows)(*arguments)[place]
        return result.sum().gradient(x)[0].numpy()

    x = np.abs(X[:, None, :]) + 1
    for value, place in product((3, 5, 6, 9, 10), (-1, 0, 1)):
        symbolic = Tensor(x)[: N.bind(value), :, : N.bind(value)]
        expected = gradient(Tensor(x[:value, :, :value]), place)
        np.testing.assert_allclose(gradient(symbolic, place), expected, rtol=1e-5, atol=1e-6)


# Parts that some values of a variable would take beyond the end of what they are parts of.
PARTS: dict[str, Callable[[Any, Any], Any]] = {
    "from the second row": lambda x, n: x[1 : n + 1],
    "from the fifth row": lambda x, n: x[4 : n + 4],
    "backwards": lambda x, n: (
        x[::-1][3 : n + 3] if isinstance(x, np.ndarray) else x.flip(0)[3 : n + 3]
    ),
    "columns": lambda x, n: x[:, 2 : n + 2],
    "columns of rows": lambda x, n: x[2 : n + 2, 1 : n + 1],
    "turned": lambda x, n: x.T[1 : n + 1],
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_symbolic_size_that_begin_inside(device: str, part: str) -> None:
    own = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    chosen, size = PARTS[part], Variable("n", 1, 12)

    @TinyJit
    def captured(x: Tensor, n: Any) -> list[Tensor]:
        return [chosen(x, n).contiguous(), chosen(x * 2, n) + 1, chosen(x, n).sum(0)]

    for n in (1, 3, 2, 4, 1, 3):
        expected = [chosen(own, n), chosen(own * 2, n) + 1, chosen(own, n).sum(0)]
        for found in captured(Tensor(own), size.bind(n)), captured.fxn(Tensor(own), size.bind(n)):
            for ours, theirs in zip(found, expected, strict=True):
                # The numbers of a sum may be added in any order, and some cancel.
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", ["from the second row", "from the fifth row", "backwards"])
def test_rows_that_are_written_to_may_begin_inside(device: str, part: str) -> None:
    own = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)
    for n in (1, 3, 2, 4):
        x, array = Tensor(own).clone(), own.copy()
        PARTS[part](x, Variable("n", 1, 12).bind(n)).add_(1)
        PARTS[part](array, n)[...] += 1
        np.testing.assert_array_equal(x.numpy(), array)
