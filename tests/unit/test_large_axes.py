"""Places that 32 bits do not hold: axes of 2**31 elements, most of them without memory."""

import numpy as np
import pytest

from ferrule import Tensor, dtypes

LIMIT = 1 << 31
SIDE = 1 << 16


def ones(*shape: int) -> Tensor:
    return Tensor.ones(1).expand(*shape)


def numbers(size: int) -> Tensor:
    return Tensor.arange(size, dtype=dtypes.int64)


def test_numbers_are_counted_in_a_type_that_holds_them() -> None:
    assert numbers(LIMIT + 10)[-2:].tolist() == [LIMIT + 8, LIMIT + 9]
    assert numbers(LIMIT + 10).flip(0)[:2].tolist() == [LIMIT + 9, LIMIT + 8]
    assert Tensor.arange(LIMIT, LIMIT + 2, dtype=dtypes.int64).tolist() == [LIMIT, LIMIT + 1]
    assert Tensor.arange(0, 5 * LIMIT, LIMIT, dtype=dtypes.float64).tolist()[-1] == 4 * LIMIT
    assert Tensor.arange(2**64 - 2, 2**64, dtype=dtypes.uint64).tolist() == [2**64 - 2, 2**64 - 1]
    assert Tensor.arange(0, -3 * LIMIT, -LIMIT, dtype=dtypes.int64).tolist()[-1] == -2 * LIMIT


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [
        (LIMIT, LIMIT + 1, 1, None),
        (0, LIMIT + 1, LIMIT, None),
        (-LIMIT - 1, 0, LIMIT, None),
        (0, 300, 1, dtypes.int8),
        (-1, 1, 1, dtypes.uint32),
        (2**64 - 1, 2**64, 1, dtypes.int64),
    ],
)
def test_numbers_that_do_not_fit_are_refused(start, stop, step, dtype) -> None:
    with pytest.raises(OverflowError, match="does not fit"):
        Tensor.arange(start, stop, step, dtype=dtype)


def test_positions_of_extremes() -> None:
    last = numbers(LIMIT + 3).argmax()
    assert last.dtype is dtypes.int64
    assert last.item() == LIMIT + 2
    assert ones(SIDE, SIDE).argmax(1).dtype is dtypes.int32


def test_counts() -> None:
    many = ones(SIDE, SIDE) > 0
    assert many.sum().item() == many.count_nonzero().item() == SIDE * SIDE
    assert many.count_nonzero(0).dtype is dtypes.int32
    assert many.sum(0).dtype is Tensor([True, False]).cumsum().dtype is dtypes.int64
    assert many.reshape(-1).cumsum().dtype is dtypes.int64


@pytest.mark.parametrize("index", [Tensor, np.array], ids=["tensor", "array"])
def test_positions_on_two_axes(index) -> None:
    rows = numbers(SIDE).reshape(SIDE, 1) * SIDE
    table = rows + numbers(SIDE)
    found = table[index([40000, SIDE - 1]), index([5, -1])]
    assert found.tolist() == [40000 * SIDE + 5, SIDE * SIDE - 1]


def test_negative_positions_on_a_long_axis() -> None:
    assert numbers(LIMIT + 3)[Tensor([-1, 1])].tolist() == [LIMIT + 2, 1]


def test_elements_that_are_set_on_a_long_axis() -> None:
    memory = Tensor.zeros(LIMIT + 3, dtype=dtypes.uint8).contiguous()
    memory[LIMIT + 1] = 3
    assert memory[-3:].tolist() == [0, 3, 0]


def test_positions_have_a_type_for_the_axis() -> None:
    places = Tensor.zeros(LIMIT + 3, dtype=dtypes.uint8).nonzero()
    assert places.shape == (0, 1)
    assert places.dtype is dtypes.int64
