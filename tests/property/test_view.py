"""Random chains of movements: `View` agrees with NumPy, also on which reshapes need a copy."""

import math

import numpy
from hypothesis import given
from hypothesis import strategies as st

from ferrule.ir.expr import TRUE, Expr, Variable, const
from ferrule.ir.shape.view import View


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


def values_of(view: View, values: dict[Expr, Expr]) -> numpy.ndarray:
    """`places` of a view of numbers only, for values of its variables."""
    out = numpy.full(view.shape, -1)
    for place in numpy.ndindex(*view.shape):
        offset, valid = view.index([const(i) for i in place])
        if valid.substitute(values) is TRUE:
            out[place] = offset.substitute(values).arg
    return out


def move_by_variables(
    draw: st.DrawFn, view: View, array: numpy.ndarray, values: dict[Expr, Expr]
) -> tuple[View, numpy.ndarray]:
    """One movement by offsets that are variables, done to both."""
    axis = draw(st.integers(0, array.ndim - 1))
    front = (slice(None),) * axis
    pairs: list[tuple[Expr | int, Expr | int]] = [(0, 0)] * array.ndim
    if array.size < 40 and draw(st.booleans()):
        total = draw(st.integers(1, 4))
        before = draw(st.integers(0, total))
        variable = Variable(f"v{len(values)}", 0, total)
        values[variable] = const(before)
        pairs[axis] = (variable, total - variable)
        wide = [(0, 0)] * array.ndim
        wide[axis] = (before, total - before)
        return view.pad(pairs), numpy.pad(array, wide, constant_values=-1)
    size = array.shape[axis]
    length = draw(st.just(1) | st.integers(1, size))
    start = draw(st.integers(0, size - length))
    variable = Variable(f"v{len(values)}", 0, size - length)
    values[variable] = const(start)
    pairs = [(0, n) for n in array.shape]
    pairs[axis] = (variable, variable + length)
    return view.shrink(pairs), array[(*front, slice(start, start + length))]


@given(st.data())
def test_movements_by_variables_agree_with_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    view = View.create(shape)
    array = numpy.arange(math.prod(shape)).reshape(shape)
    values: dict[Expr, Expr] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            view, array = move_by_variables(data.draw, view, array, values)
            continue
        kind = data.draw(st.sampled_from(["expand", "permute", "stride", "reshape"]))
        if kind == "reshape":
            reshaped = view.reshape(data.draw(factorings(array.size)))
            if reshaped is not None:
                view, array = reshaped, array.reshape(reshaped.shape)
        elif kind == "expand":
            wide = [data.draw(st.integers(1, 3)) if n == 1 else n for n in array.shape]
            view, array = view.expand(wide), numpy.broadcast_to(array, wide)
        elif kind == "permute":
            axes = data.draw(st.permutations(range(array.ndim)))
            view, array = view.permute(axes), array.transpose(axes)
        else:
            steps = [data.draw(st.sampled_from([1, -1, 2])) for _ in array.shape]
            view = view.stride(steps)
            array = array[tuple(slice(None, None, step) for step in steps)]
        assert view.shape == array.shape
    numpy.testing.assert_array_equal(values_of(view, values), array)


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
