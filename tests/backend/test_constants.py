"""Python numbers as constants of a dtype: every bit arrives, and what does not fit is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule.dtype import DType, dtypes
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

FLOATS = [d for d in dtypes.all if dtypes.is_float(d)]
# Each of them and its negative are equal, or equal to nothing: only the bits tell them apart.
SIGNED = [0.0, math.nan]

ENTRIES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "pad": lambda x, n: x.pad((1, 1), value=n),
    "constant_pad_nd": lambda x, n: x.constant_pad_nd((1, 0), n),
    "full_like": lambda x, n: x.full_like(n),
    "full": lambda x, n: Tensor.full((2,), n, dtype=x.dtype),
    "Tensor": lambda x, n: Tensor(n, dtype=x.dtype),
    "list": lambda x, n: Tensor([n], dtype=x.dtype),
    "fill_": lambda x, n: x.fill_(n),
    "assign": lambda x, n: x.assign(n),
    "setitem": lambda x, n: _written(x, 0, n),
    "setitem by a mask": lambda x, n: _written(x, x > 1, n),
    "setitem by positions": lambda x, n: _written(x, [0], n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "scatter": lambda x, n: x.scatter(0, Tensor([0]), n),
    "index_fill": lambda x, n: x.index_fill(0, Tensor([0]), n),
    "index_put": lambda x, n: x.index_put((Tensor([0]),), n),
    "put": lambda x, n: x.put(Tensor([0]), n),
    "fill_diagonal_": lambda x, n: x.expand(2, 2).contiguous().fill_diagonal_(n),
}
"""Ways for a number to become elements of a tensor's own dtype."""

OPERANDS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "+": lambda x, n: x + n,
    "reflected": lambda x, n: n - x,
    "==": lambda x, n: x == n,
    "<": lambda x, n: x < n,
    "maximum": lambda x, n: x.maximum(n),
    "clamp": lambda x, n: x.clamp(max=n),
    "where": lambda x, n: (x > 1).where(x, n),
    "where first": lambda x, n: (x > 1).where(n, x),
    "in place": lambda x, n: x.add_(n),
    "threshold": lambda x, n: x.threshold(1, n),
}
"""Ways for a number to meet a tensor; a float makes the result one."""


def _written(x: Tensor, key: Any, number: Any) -> Tensor:
    x[key] = number
    return x


@pytest.mark.parametrize("number", [300, -1, 2**40, np.int64(300)], ids=str)
@pytest.mark.parametrize("entry", {**ENTRIES, **OPERANDS}.items(), ids=lambda e: e[0])
def test_an_integer_that_does_not_fit_is_refused(entry: Any, number: Any) -> None:
    x = Tensor([1, 2], dtype=dtypes.uint8).realize()
    with pytest.raises(OverflowError, match=f"{number} does not fit dtypes.uint8"):
        entry[1](x, number)
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, np.float32("nan")], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int32], ids=lambda d: d.name)
@pytest.mark.parametrize("entry", ENTRIES.items(), ids=lambda e: e[0])
def test_an_infinity_is_no_integer(entry: Any, dtype: DType, number: Any) -> None:
    with pytest.raises(OverflowError, match="does not fit"):
        entry[1](Tensor([1, 2], dtype=dtype), number)


@pytest.mark.parametrize("entry", {**ENTRIES, **OPERANDS}.items(), ids=lambda e: e[0])
def test_what_fits_is_taken(device: str, entry: Any) -> None:
    if entry[0] in OPERANDS:
        numbers: tuple[Any, ...] = (0, 255, np.int64(255))
    else:
        numbers = (0, 255, 255.5, np.int64(255), np.float32(7))  # a fraction is cut off
    for number in numbers:
        found = entry[1](Tensor([1, 2], dtype=dtypes.uint8), number)
        assert found.dtype in (dtypes.uint8, dtypes.bool)
        if entry[0] in ENTRIES:
            assert int(number) in np.ravel(found.numpy()).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("number", SIGNED, ids=str)
@pytest.mark.parametrize("entry", ENTRIES.items(), ids=lambda e: e[0])
def test_the_sign_of_a_literal_arrives(
    device: str, entry: Any, number: float, dtype: DType
) -> None:
    counts = []
    for signed in (number, -number):
        found = entry[1](Tensor([1.0, 2.0], dtype=dtype), signed).numpy()
        expected = np.signbit(np.array(signed, dtype.np))
        same = (found != found) if math.isnan(number) else (found == 0)
        assert same.any()
        assert (np.signbit(found[same]) == expected).all()
        counts.append(same.sum())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("number", SIGNED, ids=str)
def test_a_kernel_tells_signs_apart(device: str, number: float) -> None:
    x = Tensor(np.arange(20, dtype=np.float32))
    both = [(x > 9).where(x, signed) for signed in (number, -number)]
    found = Tensor.stack(both).numpy()
    assert np.signbit(found[:, :10]).all(1).tolist() == [False, True]
    # In kernels of one form, often enough for what changes to be memory.
    for bound in range(12):
        for signed in (number, -number):
            found = np.signbit((x > bound).where(x, signed).numpy()[: bound + 1])
            assert found.all() == found.any() == (math.copysign(1.0, signed) < 0)


def test_a_replay_tells_signs_apart(device: str) -> None:
    @TinyJit
    def fill(x: Tensor, number: float) -> Tensor:
        return (x > 9).where(x, number).realize()

    x = Tensor(np.arange(20, dtype=np.float32))
    for _ in range(4):
        for number in (math.nan, -math.nan, 0.0, -0.0):
            found = np.signbit(fill(x, number).numpy()[:10])
            assert found.all() == found.any() == (math.copysign(1.0, number) < 0)


def test_arithmetic_of_nan_keeps_its_sign(device: str) -> None:
    x = Tensor([1.0, 2.0])
    for number in (math.nan, -math.nan):
        sign = math.copysign(1.0, number) < 0
        assert np.signbit(Tensor(number).numpy()) == sign
        assert np.signbit((-Tensor(number)).numpy()) != sign
        assert np.signbit(x.copysign(number).numpy()).all() == sign
        assert Tensor(number).signbit().item() is sign


def test_gradients_of_powers_of_zero(device: str) -> None:
    base = Tensor([0.0, 0.0, 0.0, -0.0, 2.0])
    slopes = ferrule.grad(lambda y: (base**y).sum())(Tensor([-1.0, 0.0, 1.0, -2.0, -1.0]))
    expected = [-math.inf, 0.0, 0.0, -math.inf, math.log(2) / 2]
    np.testing.assert_allclose(slopes.numpy(), expected, rtol=1e-6)
    slopes = ferrule.grad(lambda y: (0.0**y).sum())(Tensor([-0.5, 0.0, 3.0]))
    assert slopes.tolist() == [-math.inf, 0.0, 0.0]


def test_second_gradients_of_powers_of_zero(device: str) -> None:
    """Where a power is constant, no derivative of what its slope is elsewhere is left."""

    def slope(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: ferrule.grad(lambda y: function(y).sum())(x).sum()

    base = Tensor([0.0, 0.0, 2.0])
    of_exponent = ferrule.grad(slope(lambda y: base**y))(Tensor([2.0, 0.5, 1.0]))
    np.testing.assert_allclose(of_exponent.numpy(), [0, 0, 2 * math.log(2) ** 2], rtol=1e-6)
    exponent = Tensor([0.0, 1.0, 2.0, 3.0])
    of_base = ferrule.grad(slope(lambda x: x**exponent))(Tensor([0.0, 0.0, 0.0, 2.0]))
    np.testing.assert_allclose(of_base.numpy(), [0, 0, 2, 12], rtol=1e-6)
