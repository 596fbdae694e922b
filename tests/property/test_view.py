"""Random chains of movements: `View` agrees with NumPy, also on which reshapes need a copy."""

import math

import numpy
from hypothesis import given
from hypothesis import strategies as st

from ferrule.expr import TRUE, const
from ferrule.shape.view import View


def places(view: View) -> numpy.ndarray:
    """The offset of each element in the buffer, -1 where there is none."""
    out = numpy.full(view.shape, -1)
    for place in numpy.ndindex(*view.shape):
        offset, valid = view.index([const(i) for i in place])
        if valid is TRUE:
            out[place] = offset.arg
    return out


@st.composite
def factorings(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape with `size` elements."""
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return (*shape, size)


def draw_slice(draw: st.DrawFn, size: int) -> tuple[int, int]:
    start = draw(st.integers(0, size - 1))
    return start, draw(st.integers(start + 1, size))


def move(draw: st.DrawFn, view: View, array: numpy.ndarray) -> tuple[View, numpy.ndarray]:
    """One random movement, done to both."""
    kinds = ["permute", "expand", "shrink", "stride", "reshape"]
    kind = draw(st.sampled_from([*kinds, "pad"]))
    if kind == "permute":
        axes = draw(st.permutations(range(array.ndim)))
        return view.permute(axes), array.transpose(axes)
    if kind == "expand":
        shape = [draw(st.integers(1, 3)) if size == 1 else size for size in array.shape]
        return view.expand(shape), numpy.broadcast_to(array, shape)
    if kind == "shrink":
        pairs = [draw_slice(draw, size) for size in array.shape]
        return view.shrink(pairs), array[tuple(slice(*pair) for pair in pairs)]
    if kind == "stride":
        steps = [draw(st.sampled_from([1, -1, 2, -2])) for _ in array.shape]
        return view.stride(steps), array[tuple(slice(None, None, step) for step in steps)]
    if kind == "pad" and array.size < 40:
        pairs = [draw(st.tuples(st.integers(0, 2), st.integers(0, 1))) for _ in array.shape]
        return view.pad(pairs), numpy.pad(array, pairs, constant_values=-1)
    shape = draw(factorings(array.size))
    reshaped = view.reshape(shape)
    if view.mask is None:
        needs_copy = not numpy.shares_memory(array, array.reshape(shape))
        assert (reshaped is None) == needs_copy
    if reshaped is None:
        return view, array
    return reshaped, array.reshape(shape)


@given(st.data())
def test_movements_agree_with_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    view = View.create(shape)
    array = numpy.arange(math.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        view, array = move(data.draw, view, array)
        assert view.shape == array.shape
    numpy.testing.assert_array_equal(places(view), array)
    touched = array[array >= 0]
    distinct = len(numpy.unique(touched))
    assert distinct <= view.real_size <= touched.size
    if view.is_injective:
        assert distinct == view.real_size == touched.size


@given(st.data())
def test_injective_is_never_claimed_wrongly(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 3))
    shape = data.draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    strides = data.draw(st.lists(st.integers(-6, 6), min_size=rank, max_size=rank))
    view = View.create(shape, strides, offset=100)
    array = places(view)
    distinct = len(numpy.unique(array))
    assert distinct <= view.real_size <= array.size
    if view.is_injective:
        assert distinct == array.size == view.real_size
