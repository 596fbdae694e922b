"""`View` against NumPy's strides, masks by hand, symbolic sizes, and its errors."""

import itertools
from collections.abc import Sequence

import numpy
import pytest

from ferrule.ir.expr import TRUE, Variable, const
from ferrule.ir.shape.view import ShapeError, View, row_major


def read(view: View, buffer: numpy.ndarray) -> numpy.ndarray:
    """The tensor that `view` makes of a flat buffer, element by element."""
    out = numpy.zeros(view.shape, buffer.dtype)
    for place in itertools.product(*(range(size) for size in view.shape)):
        offset, valid = view.index([const(i) for i in place])
        if valid is TRUE:
            out[place] = buffer[offset.arg]
    return out


def strided(view: View, buffer: numpy.ndarray) -> numpy.ndarray:
    steps = [stride * buffer.itemsize for stride in view.strides]
    start = buffer[view.offset :]
    return numpy.lib.stride_tricks.as_strided(start, view.shape, steps, writeable=False)


BUFFER = numpy.arange(1, 25)


def test_a_new_view_is_row_major() -> None:
    view = View.create((2, 3, 4))
    assert view.strides == (12, 4, 1)
    assert view.contiguous
    assert view.size == 24
    numpy.testing.assert_array_equal(read(view, BUFFER), BUFFER.reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((), ()), ((1,), (0,)), ((3, 1, 2), (2, 0, 1)), ((0, 3), (0, 0)), ((5,), (1,))],
)
def test_row_major_strides(shape: Sequence[int], strides: Sequence[int]) -> None:
    assert row_major(shape) == strides


def test_equal_layouts_are_equal_views() -> None:
    assert View.create((1, 3), (7, 1)) == View.create((1, 3))
    assert View.create((2, 3), mask=((0, 2), (0, 3))) == View.create((2, 3))
    assert View.create((2, 3), (9, 1), mask=((1, 2), (0, 3))).offset == 9
    assert hash(View.create((0, 3), (5, 5), 7)) == hash(View.create((0, 3)))
    assert View.create((2, 3), mask=((1, 1), (0, 3))) == View.create((2, 3), mask=((0, 2), (2, 1)))


def test_movements_give_the_strides_of_numpy() -> None:
    array = BUFFER.reshape(2, 3, 4)
    view = View.create((2, 3, 4))
    moved = view.permute((2, 0, 1)).shrink(((1, 4), (0, 2), (1, 3))).stride((-2, 1, 1))
    expected = array.transpose(2, 0, 1)[1:4, 0:2, 1:3][::-2]
    assert tuple(8 * stride for stride in moved.strides) == expected.strides
    numpy.testing.assert_array_equal(read(moved, BUFFER), expected)
    numpy.testing.assert_array_equal(strided(moved, BUFFER), expected)


def test_expand_has_stride_zero() -> None:
    view = View.create((3, 1)).expand((3, 4))
    assert view.strides == (1, 0)
    numpy.testing.assert_array_equal(
        read(view, BUFFER), numpy.broadcast_to(BUFFER[:3, None], (3, 4))
    )


def test_pad_reads_zero_outside() -> None:
    view = View.create((2, 3)).pad(((1, 0), (0, 2)))
    assert view.mask == ((1, 3), (0, 3))
    expected = numpy.pad(BUFFER[:6].reshape(2, 3), ((1, 0), (0, 2)))
    numpy.testing.assert_array_equal(read(view, BUFFER), expected)


def test_pad_then_shrink_to_nothing_but_padding() -> None:
    view = View.create((2, 3)).pad(((2, 0), (0, 0))).shrink(((0, 2), (0, 3)))
    assert not read(view, BUFFER).any()
    assert view.real_size == 0
    assert not read(view.reshape((3, 2)), BUFFER).any()
    assert not read(view.expand((2, 3)), BUFFER).any()


@pytest.mark.parametrize("multiplier", [1, 2, 3, -1, -2, -3])
def test_stride_over_padding(multiplier: int) -> None:
    view = View.create((5,)).pad(((2, 1),)).stride((multiplier,))
    numpy.testing.assert_array_equal(
        read(view, BUFFER), numpy.pad(BUFFER[:5], (2, 1))[::multiplier]
    )


def test_reshape_that_fits() -> None:
    rows = View.create((6, 4)).shrink(((1, 5), (0, 4)))
    assert rows.reshape((2, 2, 4)) == View.create((2, 2, 4), (8, 4, 1), 4)
    columns = View.create((6, 4)).shrink(((0, 6), (0, 2)))
    assert columns.reshape((2, 3, 2)) == View.create((2, 3, 2), (12, 4, 1))
    assert columns.reshape((6, 1, 2, 1)) == View.create((6, 1, 2, 1), (4, 0, 1, 0))


def test_reshape_that_needs_a_copy_is_none() -> None:
    assert View.create((6, 4)).permute((1, 0)).reshape((24,)) is None
    assert View.create((6, 4)).shrink(((0, 6), (0, 2))).reshape((12,)) is None
    assert View.create((4,)).pad(((1, 1),)).reshape((2, 3)) is None


def test_reshape_keeps_a_mask_that_is_a_box() -> None:
    view = View.create((2, 4)).pad(((1, 1), (0, 0)))
    reshaped = view.reshape((2, 2, 4))
    assert reshaped is None  # rows 1 and 2 of four are no box of a 2 by 2 arrangement
    flat = view.reshape((16,))
    assert flat is not None
    assert flat.mask == ((4, 12),)
    assert flat.reshape((4, 2, 2)) == view.reshape((4, 2, 2))


def test_reshape_of_one_row_left_by_padding() -> None:
    view = View.create((1, 4)).pad(((1, 2), (0, 0)))
    numpy.testing.assert_array_equal(
        read(view.reshape((2, 8)), BUFFER),
        numpy.pad(BUFFER[:4].reshape(1, 4), ((1, 2), (0, 0))).reshape(2, 8),
    )


def test_reshape_of_an_empty_view() -> None:
    assert View.create((0, 3)).reshape((2, 0)) == View.create((2, 0))


def test_injective() -> None:
    assert View.create((3, 4)).permute((1, 0)).stride((-2, 1)).is_injective
    assert View.create((3, 4)).pad(((1, 1), (2, 0))).is_injective
    assert not View.create((3, 1)).expand((3, 2)).is_injective
    assert not View.create((4, 3), (1, 1)).is_injective
    assert View.create((0, 3), (0, 0)).is_injective


@pytest.mark.parametrize(
    ("view", "touched"),
    [
        (View.create((3, 4)), 12),
        (View.create((3, 4), (8, 2)), 12),
        (View.create((3, 1)).expand((3, 5)), 3),
        (View.create((4, 3), (1, 1)), 6),
        (View.create((3, 4)).pad(((1, 1), (2, 2))), 12),
        (View.create(()), 1),
        (View.create((0, 4)), 0),
    ],
)
def test_real_size(view: View, touched: int) -> None:
    assert view.real_size == touched


def test_symbolic_sizes() -> None:
    n = Variable("n", 1, 10)
    view = View.create((n, 4))
    assert view.strides == (4, 1)
    assert view.reshape((n * 4,)) == View.create((4 * n,))
    assert view.reshape((2, n, 2)) == View.create((2, n, 2))
    assert view.pad(((1, 2), (0, 0))).shrink(((1, n + 1), (0, 4))) == view
    assert view.permute((1, 0)).is_injective
    assert view.real_size is n * 4
    part = View.create((10, 4)).shrink(((0, n), (0, 4)))
    assert part == view


def test_the_values_of_variables_decide_whether_a_reshape_fits() -> None:
    n = Variable("n", 1, 10)
    rows = View.create((3, 4))
    assert rows.reshape((n, 4)) == View.create((n, 4))
    assert rows.permute((1, 0)).reshape((4, n)) is None
    assert View.create((n, 4)).reshape((12,)) == View.create((12,))


def test_symbolic_offset() -> None:
    start = Variable("start", 0, 6)
    view = View.create((10, 2)).shrink(((start, start + 4), (0, 2)))
    assert view.shape == (4, 2)
    assert view.offset is start * 2
    offset, valid = view.index([const(1), const(1)])
    assert offset.infer({start: 5}) == 13
    assert valid is TRUE


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda v: v.reshape((4, 2)), "8 elements are asked for, and there are 6"),
        (lambda v: v.permute((0, 0)), "each of the axes 0 to 1 is needed once"),
        (lambda v: v.expand((4, 3)), "only axes of size 1 repeat"),
        (lambda v: v.expand((2, 3, 1)), "reshape first to add axes"),
        (lambda v: v.pad(((0, 0),)), "one pair for each axis"),
        (lambda v: v.pad(((0, -1), (0, 0))), "a count is negative; use shrink"),
        (lambda v: v.shrink(((0, 3), (0, 3))), r"\(0, 3\) is no part of \(0, 2\)"),
        (lambda v: v.stride((0, 1)), "none may be 0"),
        (lambda v: v.index([const(0)]), "1 indices for the 2 axes"),
        (lambda v: View.create((2, -1)), "a size is negative"),
        (lambda v: View.create((2, 3), (1,)), "one stride and one mask for each axis"),
    ],
)
def test_mistakes(mistake: object, message: str) -> None:
    assert callable(mistake)
    with pytest.raises(ShapeError, match=message):
        mistake(View.create((2, 3)))
