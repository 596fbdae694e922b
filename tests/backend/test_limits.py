"""Sizes and places with variables: nothing beyond a tensor is read or written, in replays too."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable
from ferrule.ir.shape.view import ShapeError

pytestmark = pytest.mark.usefixtures("device")

ROWS = np.arange(12.0, dtype=np.float32).reshape(3, 4)
PLACE = Variable("i", 0, 100000)
SIZE = Variable("n", 1, 100000)


def set_row(x: Tensor, at: Any) -> Tensor:
    x[at] = 7.0
    return x


READS: list[tuple[Callable[[Tensor, Any], Any], Callable[[int], Any], int, str]] = [
    (lambda x, i: x[i] + 0, lambda i: ROWS[i], 2, "[index] i=5 is out of range for axis 0"),
    (lambda x, i: x[:, i] + 0, lambda i: ROWS[:, i], 3, "[index] i=5 is out of range for axis 1"),
    (lambda x, i: x[i : i + 2].sum(), lambda i: ROWS[i : i + 2].sum(), 1, "[index] (i=5, i=5 + 2"),
    (lambda x, i: x[:i].sum(), lambda i: ROWS[:i].sum(), 3, "is no part of axis 0"),
    (lambda x, i: x[i:].sum(), lambda i: ROWS[i:].sum(), 2, "bounds with variables are not cut"),
    (
        lambda x, i: x.shrink((None, (i, i + 1))).sum(),
        lambda i: ROWS[:, i].sum(),
        3,
        "[shrink] (i=5, i=5 + 1) is no part of an axis of size 4",
    ),
    (
        lambda x, i: set_row(x + 0, i).sum(),
        lambda i: 66 - ROWS[i].sum() + 28,
        2,
        "[index] i=5 is out of range",
    ),
]


@pytest.mark.parametrize(("read", "expected", "last", "message"), READS)
def test_what_is_out_of_range_is_an_error(
    read: Callable[[Tensor, Any], Any], expected: Callable[[int], Any], last: int, message: str
) -> None:
    x = Tensor(ROWS).realize()
    for i in (last, 0, last):
        np.testing.assert_array_equal(read(x, PLACE.bind(i)).numpy(), expected(i))
    with pytest.raises((IndexError, ShapeError), match=re.escape(message)):
        read(x, PLACE.bind(5))


@pytest.mark.parametrize(("read", "expected", "last", "message"), READS)
def test_it_is_in_replays_too(
    read: Callable[[Tensor, Any], Any], expected: Callable[[int], Any], last: int, message: str
) -> None:
    x = Tensor(ROWS).realize()
    runs = []

    @TinyJit
    def f(x: Tensor, i: Any) -> Any:
        runs.append(1)
        return read(x, i)

    for i in (0, last, 1, 0):
        np.testing.assert_array_equal(f(x, PLACE.bind(i)).numpy(), expected(i))
    assert len(runs) == 2
    for wrong in (5, 100000):
        with pytest.raises((IndexError, ShapeError), match=re.escape(message.split("i=5")[0])):
            f(x, PLACE.bind(wrong))
    np.testing.assert_array_equal(f(x, PLACE.bind(last)).numpy(), expected(last))
    assert x.tolist() == ROWS.tolist()


def test_writes_stay_inside_in_replays() -> None:
    x = Tensor(ROWS).realize()

    @TinyJit
    def put(x: Tensor, i: Any, value: Tensor) -> None:
        x[i] = value

    for i in (0, 1, 2):
        put(x, PLACE.bind(i), Tensor([float(i)] * 4))
    with pytest.raises(IndexError, match="out of range for axis 0 of shape"):
        put(x, PLACE.bind(3), Tensor([9.0] * 4))
    assert x.tolist() == [[0.0] * 4, [1.0] * 4, [2.0] * 4]


def test_a_size_in_a_replay_is_as_many_elements() -> None:
    x = Tensor(ROWS).realize()

    @TinyJit
    def f(x: Tensor, n: Any) -> Tensor:
        return x.reshape(n, 3).sum(0)

    for _ in range(3):
        assert f(x, SIZE.bind(4)).tolist() == [18, 22, 26]
    for wrong in (5, 3, 100000):
        with pytest.raises(ShapeError, match="does not fit a tensor of shape"):
            f(x, SIZE.bind(wrong))
    assert f(x, SIZE.bind(4)).tolist() == [18, 22, 26]


def test_parts_of_a_symbolic_size() -> None:
    x = Tensor(np.arange(8.0)).realize()
    n = Variable("n", 1, 8)

    @TinyJit
    def ends(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[-2:] * 1, x[1:2] * 1, x[1] * 1

    for size in (4, 5, 8, 2):
        last, second, element = ends(x[: n.bind(size)])
        assert last.tolist() == [size - 2, size - 1]
        assert second.tolist() == [1]
        assert element.item() == 1
    with pytest.raises(IndexError, match="is no part of axis 0"):
        ends(x[: n.bind(1)])


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_there_is_no_largest_of_no_elements(name: str) -> None:
    x = Tensor(np.arange(8.0)).realize()
    n = Variable("n", 0, 8)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        result: Tensor = getattr(x, name)(0)
        return result

    for size in (3, 8, 5):
        expected = getattr(np.arange(8.0)[:size], name)()
        assert f(x[: n.bind(size)]).item() == expected
    for _ in range(2):
        with pytest.raises(ShapeError, match=rf"\[{name}\] axis 0 of shape .* has no elements"):
            f(x[: n.bind(0)])
    assert f(x[: n.bind(4)]).item() == getattr(np.arange(8.0)[:4], name)()


def test_nothing_in_front_of_a_tensor_is_taken() -> None:
    x = Tensor(ROWS).realize()
    i = Variable("i", -3, 2)

    @TinyJit
    def f(x: Tensor, i: Any) -> Tensor:
        return x[i] + 0

    for at in (0, 2, 1):
        assert f(x, i.bind(at)).tolist() == ROWS[at].tolist()
    for call in (f, lambda x, i: x[i], lambda x, i: x.shrink(((i, i + 1), None))):
        with pytest.raises((IndexError, ShapeError), match="i=-1"):
            call(x, i.bind(-1))
    with pytest.raises(IndexError, match="is no part of axis 0"):
        _ = x[: SIZE.bind(1)][-2:]


def test_sizes_that_are_zero() -> None:
    x = Tensor(np.arange(1.0, 9.0)).realize()
    n = Variable("n", 0, 8)

    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sum(), x * 2, x.cat(x, Tensor([1.0]))

    for size in (3, 0, 8, 0, 1):
        total, double, joined = f(x[: n.bind(size)])
        part = list(range(1, size + 1))
        assert total.item() == sum(part)
        assert double.tolist() == [2 * i for i in part]
        assert joined.tolist() == [*part, *part, 1]


def test_bounds_that_say_it_all_leave_nothing_to_check() -> None:
    x = Tensor(ROWS).realize()

    @TinyJit
    def f(x: Tensor, i: Any) -> Tensor:
        return x[i : i + 2] + 0

    i = Variable("i", 0, 1)
    for at in (0, 1, 0):
        assert f(x, i.bind(at)).tolist() == ROWS[at : at + 2].tolist()
    assert not next(iter(f._replays.values())).limits


def test_a_value_that_the_function_looks_at_is_the_one_of_the_call() -> None:
    """Whatever it does with it, a replay would have that of the capture."""
    x = Tensor(ROWS).realize()

    @TinyJit
    def by_val(x: Tensor, i: Any) -> Tensor:
        return x * i.val

    @TinyJit
    def by_unbind(x: Tensor) -> Tensor:
        return x.sum() * (1 if x.shape[0].unbind()[1] > 2 else 7)

    for i in (1, 2, 3, 4, 2):
        assert by_val(x, PLACE.bind(i)).tolist() == (ROWS * i).tolist()
    for size in (1, 2, 3, 2, 3):
        part = x[: Variable("n", 1, 3).bind(size)]
        assert by_unbind(part).item() == ROWS[:size].sum() * (1 if size > 2 else 7)


def test_symbolic_shapes_of_views_are_shapes_of_views_too() -> None:
    n = Variable("n", 1, 10)
    x = Tensor(ROWS).realize()
    for view, array in ((x, ROWS), (x.T, ROWS.T), (x[1:], ROWS[1:]), (x[:, 1:3], ROWS[:, 1:3])):
        rows, columns = array.shape
        for shape in ((n.bind(rows), columns), (rows, n.bind(columns))):
            symbolic = view.reshape(shape)
            np.testing.assert_array_equal(symbolic.sum(0).numpy(), array.sum(0))
            back = symbolic.reshape(rows, columns)
            np.testing.assert_array_equal((back + 1).numpy(), array + 1)
            flat = symbolic.reshape(rows * columns)
            np.testing.assert_array_equal(flat.numpy(), array.reshape(-1))


def test_writes_through_symbolic_shapes() -> None:
    x = Tensor(ROWS).realize()
    x.reshape(Variable("n", 1, 10).bind(4), 3).reshape(12)[5] = 50.0
    x.reshape(Variable("n", 1, 10).bind(6), 2)[1, 0] = 20.0
    expected = ROWS.copy().reshape(-1)
    expected[[5, 2]] = 50, 20
    assert x.tolist() == expected.reshape(3, 4).tolist()
