"""`ShapeTracker`: one View under its documented names."""

import copy
import pickle

import pytest

from ferrule.ir.expr import TRUE, Variable, const
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import ShapeError, View


def test_a_dense_buffer() -> None:
    st = ShapeTracker.from_shape((2, 3))
    assert st.shape == (2, 3)
    assert st.views == (View.create((2, 3)),)
    assert st.contiguous
    assert st.view.strides == (3, 1)
    assert st.size() == st.real_size() == 6
    assert st == ShapeTracker.from_shape((2, 3))


def test_movements_are_the_views() -> None:
    st = ShapeTracker.from_shape((2, 1, 6)).expand((2, 3, 6)).permute((2, 0, 1))
    st = st.pad(((1, 1), (0, 0), (0, 0))).shrink(((0, 4), (0, 2), (0, 1))).stride((1, -1, 1))
    assert st.shape == (4, 2, 1)
    assert st.views[0].mask == ((1, 4), (0, 2), (0, 1))
    assert not st.contiguous
    assert st.size() == 8
    assert st.real_size() == 6


def test_index() -> None:
    st = ShapeTracker.from_shape((2, 3)).permute((1, 0))
    offset, valid = st.index([const(2), const(1)])
    assert offset.arg == 5
    assert valid is TRUE


def test_a_movement_without_a_view() -> None:
    with pytest.raises(ShapeError, match="strides cannot say it; make a contiguous copy first"):
        ShapeTracker.from_shape((2, 3)).permute((1, 0)).reshape((6,))


def test_variables() -> None:
    n = Variable("n", 1, 8)
    start = Variable("a", 0, 2)
    st = ShapeTracker.from_shape((10, 4)).shrink(
        ((start.bind(1), start.bind(1) + n.bind(3)), (0, 4))
    )
    assert st.vars() == [start, n]
    unbound, values = st.unbind()
    assert values == {start: 1, n: 3}
    assert unbound == ShapeTracker.from_shape((10, 4)).shrink(((start, start + n), (0, 4)))
    assert unbound.unbind() == (unbound, {})


def test_one_variable_with_two_values() -> None:
    n = Variable("n", 1, 8)
    st = ShapeTracker(View.create((n.bind(2), n.bind(3))))
    with pytest.raises(ValueError, match=r"n is 2 and 3 .* use one value, or two variables"):
        st.unbind()


def test_copies_are_equal() -> None:
    st = ShapeTracker.from_shape((Variable("n", 1, 8), 4)).pad(((1, 0), (0, 0)))
    assert pickle.loads(pickle.dumps(st)) == st
    assert copy.deepcopy(st) == st
    assert {st: 1}[copy.copy(st)] == 1
