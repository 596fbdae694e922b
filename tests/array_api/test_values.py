"""The functions of the standard against NumPy's of the same names, on inputs of every dtype."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, mutually_broadcastable_shapes

import ferrule.array_api as xp
from ferrule import Tensor
from ferrule.ir.shape.view import ShapeError

BOOL = ["bool"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
NUMBERS = INTEGERS + FLOATS
ALL = BOOL + NUMBERS

REAL = [
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]
UNARY = {
    "abs": NUMBERS,
    "bitwise_invert": BOOL + INTEGERS,
    "ceil": NUMBERS,
    "conj": NUMBERS,
    "floor": NUMBERS,
    "imag": NUMBERS,
    "isfinite": NUMBERS,
    "isinf": NUMBERS,
    "isnan": NUMBERS,
    "logical_not": BOOL,
    "negative": NUMBERS,
    "positive": NUMBERS,
    "real": NUMBERS,
    "round": NUMBERS,
    "sign": NUMBERS,
    "signbit": FLOATS,
    "square": NUMBERS,
    "trunc": NUMBERS,
    **dict.fromkeys(REAL, FLOATS),
}
BINARY = {
    "add": NUMBERS,
    "atan2": FLOATS,
    "bitwise_and": BOOL + INTEGERS,
    "bitwise_or": BOOL + INTEGERS,
    "bitwise_xor": BOOL + INTEGERS,
    "copysign": FLOATS,
    "divide": FLOATS,
    "equal": ALL,
    "floor_divide": NUMBERS,
    "greater": NUMBERS,
    "greater_equal": NUMBERS,
    "hypot": FLOATS,
    "less": NUMBERS,
    "less_equal": NUMBERS,
    "logaddexp": FLOATS,
    "logical_and": BOOL,
    "logical_or": BOOL,
    "logical_xor": BOOL,
    "maximum": NUMBERS,
    "minimum": NUMBERS,
    "multiply": NUMBERS,
    "not_equal": ALL,
    "remainder": NUMBERS,
    "subtract": NUMBERS,
}
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def elements(dtype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return st.floats(-1e4, 1e4, width=32) | st.sampled_from([np.inf, -np.inf, np.nan, -0.0])
    if kind.kind == "b":
        return st.booleans()
    limits = np.iinfo(kind)
    return st.integers(int(limits.min), int(limits.max)) | st.integers(0, 5)


@st.composite
def operands(draw: Any, kinds: list[str], count: int = 1) -> list[np.ndarray[Any, Any]]:
    dtype = draw(st.sampled_from(kinds))
    shapes = draw(mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4))
    return [draw(arrays(dtype, shape, elements=elements(dtype))) for shape in shapes.input_shapes]


def check(found: Tensor, expected: Any, rtol: float = 1e-5) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.name == expected.dtype.name
    with np.errstate(all="ignore"):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found.numpy(), expected, rtol, 1e-30)
        else:
            np.testing.assert_array_equal(found.numpy(), expected)


def quiet(name: str, *args: Any, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):
        return getattr(np, name)(*args, **kwargs)


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=15)
@given(st.data())
def test_functions_of_one(name: str, data: Any) -> None:
    (x,) = data.draw(operands(UNARY[name]))
    expected = quiet(name, x)
    check(getattr(xp, name)(xp.asarray(x)), np.asarray(expected))


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=15)
@given(st.data())
def test_functions_of_two(name: str, data: Any) -> None:
    x, y = data.draw(operands(BINARY[name], 2))
    if name in ("floor_divide", "remainder"):  # by 0: NumPy's floats raise flags, integers vary
        assume(np.all(np.isfinite(x)) and np.all(np.isfinite(y)) and np.all(y != 0))
    check(getattr(xp, name)(xp.asarray(x), xp.asarray(y)), quiet(name, x, y))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_take_a_number(name: str) -> None:
    x = np.array([1, 2, 3], "bool" if name.startswith("logical") else BINARY[name][-1])
    scalar: Any = True if x.dtype == np.bool_ else 2
    check(getattr(xp, name)(xp.asarray(x), scalar), quiet(name, x, scalar))
    check(getattr(xp, name)(scalar, xp.asarray(x)), quiet(name, scalar, x))


def test_shifts_by_more_than_the_width() -> None:
    x, y = np.int32([1, -8]), np.int32([40, 33])
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        check(getattr(xp, name)(xp.asarray(x), xp.asarray(y)), quiet(name, x, y))


def test_shifts_and_powers() -> None:
    for dtype in INTEGERS:
        x, y = np.array([1, 2, 100], dtype), np.array([0, 3, 2], dtype)
        for name in ("bitwise_left_shift", "bitwise_right_shift", "pow"):
            check(getattr(xp, name)(xp.asarray(x), xp.asarray(y)), quiet(name, x, y))
    check(xp.pow(xp.asarray([1.5, 2.0]), 2), np.float32([2.25, 4]))
    check(xp.pow(2, xp.asarray([1.5, 2.0])), 2 ** np.float32([1.5, 2]))


def test_clip() -> None:
    x = np.arange(-3, 4)
    for limits in ((None, None), (-1, None), (None, 2), (-1, 2)):
        check(xp.clip(xp.asarray(x), *limits), np.clip(x, *limits))
    assert xp.clip(xp.asarray(np.int8([100])), 0, 50).dtype is xp.int8


# *** along axes ***

REDUCTIONS = {
    "all": ALL,
    "any": ALL,
    "count_nonzero": ALL,
    "max": NUMBERS,
    "mean": FLOATS,
    "min": NUMBERS,
    "prod": FLOATS,
    "std": FLOATS,
    "sum": NUMBERS,
    "var": FLOATS,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=15)
@given(st.data())
def test_reductions(name: str, data: Any) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, max_side=4))
    dtype = data.draw(st.sampled_from(REDUCTIONS[name]))
    values = st.integers(0, 4) if dtype != "bool" else st.booleans()
    x = data.draw(arrays(dtype, shape, elements=values))
    axes = st.none() | st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.none()
    axis, keepdims = data.draw(axes), data.draw(st.booleans())
    found = getattr(xp, name)(xp.asarray(x), axis=axis, keepdims=keepdims)
    expected = np.asarray(quiet(name, x, axis=axis, keepdims=keepdims))
    narrow = name == "sum" and expected.dtype.itemsize == 8 and x.itemsize < 8
    if narrow or name == "count_nonzero":
        expected = expected.astype("uint32" if expected.dtype.kind == "u" else "int32")
    check(found, expected)


def test_reductions_over_several_axes_with_options() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    t = xp.asarray(x)
    check(xp.sum(t, axis=(0, 2), dtype=xp.float64), x.sum((0, 2), np.float64))
    check(xp.var(t, axis=(0, -1), correction=1.0), x.var((0, -1), ddof=1))
    check(xp.std(t, correction=0.5), np.float32(x.std(ddof=0.5)))
    check(xp.prod(xp.asarray(np.int8([100, 2]))), np.int32(200))


def test_running_totals() -> None:
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for name in ("cumulative_sum", "cumulative_prod"):
        for include_initial in (False, True):
            options = {"axis": 1, "include_initial": include_initial}
            check(getattr(xp, name)(xp.asarray(x), **options), quiet(name, x, **options))
        check(getattr(xp, name)(xp.asarray(x[0])), quiet(name, x[0]))
        with pytest.raises(ShapeError, match="needs an axis"):
            getattr(xp, name)(xp.asarray(x))
    check(xp.cumulative_sum(xp.asarray(np.int8([100, 100]))), np.int32([100, 200]))


@pytest.mark.parametrize("name", ["argmax", "argmin", "argsort", "sort"])
@settings(max_examples=15)
@given(st.data())
def test_order(name: str, data: Any) -> None:
    dtype = data.draw(st.sampled_from(NUMBERS))
    shape = data.draw(array_shapes(max_dims=3, max_side=5))
    x = data.draw(arrays(dtype, shape, elements=st.integers(0, 9)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    options = {"stable": True} if "sort" in name else {}
    expected = quiet(name, x, axis=axis, **options)
    found = getattr(xp, name)(xp.asarray(x), axis=axis, **options)
    check(found, expected if name == "sort" else expected.astype(np.int32))


def test_order_the_other_way() -> None:
    x = xp.asarray([2, 3, 1, 3])
    assert xp.sort(x, descending=True).tolist() == [3, 3, 2, 1]
    assert xp.argsort(x, descending=True).tolist() == [1, 3, 0, 2]
    assert xp.argmax(xp.asarray([[1, 5], [7, 2]])).item() == 2


def test_searching() -> None:
    x = np.array([[0, 1], [2, 0]])
    found = xp.nonzero(xp.asarray(x))
    assert [part.tolist() for part in found] == [part.tolist() for part in np.nonzero(x)]
    with pytest.raises(ShapeError, match="without axes"):
        xp.nonzero(xp.asarray(1))
    condition = xp.asarray([True, False])
    assert xp.where(condition, 1, xp.asarray([5, 6])).tolist() == [1, 6]
    assert xp.take(xp.asarray([4, 5, 6]), xp.asarray([2, 0])).tolist() == [6, 4]
    check(xp.take(xp.asarray(x), xp.asarray([1]), axis=1), np.take(x, [1], 1))
    order = np.argsort(x, axis=0)
    check(xp.take_along_axis(xp.asarray(x), xp.asarray(order), axis=0), np.sort(x, 0))
    with pytest.raises(ShapeError, match="needs an axis"):
        xp.take(xp.asarray(x), xp.asarray([0]))


# *** creation ***


def test_creation() -> None:
    check(xp.arange(3), np.arange(3, dtype=np.int32))
    check(xp.arange(1, 2, 0.25), np.arange(1, 2, 0.25, np.float32))
    check(xp.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32))
    check(xp.linspace(0, 1, 5, endpoint=False), np.linspace(0, 1, 5, False, dtype=np.float32))
    for k in (-3, -1, 0, 1, 4):
        check(xp.eye(3, 4, k=k), np.eye(3, 4, k, np.float32))
        square = np.arange(9, dtype=np.int32).reshape(3, 3)
        check(xp.tril(xp.asarray(square), k=k), np.tril(square, k))
        check(xp.triu(xp.asarray(square), k=k), np.triu(square, k))
    for name in ("zeros", "ones"):
        for shape in (3, (), (2, 0), (2, 3)):
            check(getattr(xp, name)(shape), getattr(np, name)(shape, np.float32))
        check(getattr(xp, f"{name}_like")(xp.asarray([1, 2])), getattr(np, name)(2, np.int32))
    check(xp.full((2, 2), True), np.full((2, 2), True))
    check(xp.full_like(xp.asarray([1.0]), 7, dtype=xp.int8), np.int8([7]))
    assert xp.empty((2, 3), dtype=xp.int16).dtype is xp.int16
    assert xp.empty_like(xp.asarray([1])).shape == (1,)
    for indexing in ("xy", "ij"):
        vectors = [np.arange(2), np.arange(3)]
        found = xp.meshgrid(*map(xp.asarray, vectors), indexing=indexing)
        for part, expected in zip(found, np.meshgrid(*vectors, indexing=indexing), strict=True):
            check(part, expected)


def test_asarray_copies_only_where_asked_or_needed() -> None:
    x = xp.asarray([1.0, 2.0])
    assert xp.asarray(x) is x
    own = xp.asarray(x, copy=True)
    x[0] = 9
    assert (x.tolist(), own.tolist()) == ([9, 2], [1, 2])
    array = np.ones(3)
    shared = xp.asarray(array, copy=False)
    array[0] = 5
    assert shared.tolist() == [5, 1, 1]
    assert xp.asarray(array, dtype=xp.float32).dtype is xp.float32
    for wrong in (x, [1.0], array):
        with pytest.raises(ValueError, match="copy=None"):
            xp.asarray(wrong, dtype=xp.int32, copy=False)
    assert xp.asarray(memoryview(array)).tolist() == [5, 1, 1]
    assert xp.from_dlpack(array, copy=False).tolist() == [5, 1, 1]
    assert xp.astype(x, xp.float32, copy=False) is x
    assert xp.astype(x, xp.float32) is not x


# *** shapes ***


def test_manipulation() -> None:
    x = np.arange(6).reshape(1, 2, 3)
    t = xp.asarray(x)
    check(xp.permute_dims(t, (2, 0, 1)), x.transpose(2, 0, 1))
    check(xp.moveaxis(t, 0, -1), np.moveaxis(x, 0, -1))
    check(xp.matrix_transpose(t), x.mT)
    check(xp.expand_dims(t, axis=-1), np.expand_dims(x, -1))
    check(xp.squeeze(t, 0), x[0])
    with pytest.raises(ShapeError, match=r"axis 1 of shape \(1, 2, 3\) has size 2"):
        xp.squeeze(t, (0, 1))
    for axis in (None, 1, (0, 2)):
        check(xp.flip(t, axis=axis), np.flip(x, axis))
        check(xp.roll(t, 2, axis=axis), np.roll(x, 2, axis))
    check(xp.roll(t, (1, 2), axis=(1, 2)), np.roll(x, (1, 2), (1, 2)))
    for repetitions in ((2,), (2, 1, 2), (2, 1, 1, 2)):
        check(xp.tile(t, repetitions), np.tile(x, repetitions))
    check(xp.concat([t, t], axis=1), np.concat([x, x], 1))
    check(xp.concat([t, t], axis=None), np.concat([x, x], None))
    check(xp.stack((t, t), axis=-1), np.stack((x, x), -1))
    for part, expected in zip(xp.unstack(t, axis=2), np.unstack(x, axis=2), strict=True):
        check(part, expected)
    check(xp.broadcast_to(t, (4, 2, 3)), np.broadcast_to(x, (4, 2, 3)))
    one, two = xp.broadcast_arrays(xp.asarray([[1], [2]]), xp.asarray([3, 4]))
    assert (one.tolist(), two.tolist()) == ([[1, 1], [2, 2]], [[3, 4], [3, 4]])


def test_reshape_says_whether_it_copies() -> None:
    x = xp.asarray([[1, 2, 3], [4, 5, 6]])
    view, own = xp.reshape(x, (3, -1), copy=False), xp.reshape(x, (6,), copy=True)
    x[0, 0] = 9
    assert view.tolist() == [[9, 2], [3, 4], [5, 6]]
    assert own.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="needs a copy"):
        xp.reshape(x.T, (6,), copy=False)


# *** products ***


def test_products() -> None:
    x, y = np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(4, 3) + 1
    a, b = xp.asarray(x), xp.asarray(y)
    check(xp.matmul(a, b), x @ y)
    check(xp.tensordot(a, b, axes=1), np.tensordot(x, y, 1))
    check(xp.tensordot(a, b, axes=((0,), (1,))), np.tensordot(x, y, ((0,), (1,))))
    check(xp.vecdot(a, b.T), np.vecdot(x, y.T))
    check(xp.vecdot(a, b.T, axis=0), np.vecdot(x, y.T, axis=0))
    check(xp.linalg.outer(a[0], b[0]), np.outer(x[0], y[0]))
    check(xp.linalg.cross(b, b * b), np.cross(y, y * y))
    check(xp.linalg.trace(a, offset=1), np.trace(x, 1))
    check(xp.linalg.trace(xp.asarray(np.ones((2, 3, 3), np.int8))), np.int32([3, 3]))
    for order in (2, 1, np.inf, 3):
        check(
            xp.linalg.vector_norm(a, axis=1, ord=order), np.linalg.vector_norm(x, axis=1, ord=order)
        )
    check(xp.linalg.vector_norm(a, keepdims=True), np.linalg.vector_norm(x, keepdims=True))
    check(xp.linalg.diagonal(a, offset=1), np.linalg.diagonal(x, offset=1))
    for order in ("fro", "nuc", 1, 2, np.inf):
        options = {"ord": order, "keepdims": True}
        check(xp.linalg.matrix_norm(a, **options), np.linalg.matrix_norm(x, **options))


def test_decompositions() -> None:
    x = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
    a = xp.asarray(x)
    for name in ("cholesky", "det", "eigvalsh", "inv", "pinv", "svdvals"):
        check(getattr(xp.linalg, name)(a), getattr(np.linalg, name)(x))
    for power in (-2, 0, 3):
        check(xp.linalg.matrix_power(a, power), np.linalg.matrix_power(x, power))
    check(xp.linalg.solve(a, a[0]), np.linalg.solve(x, x[0]))
    check(xp.linalg.solve(a, a * 2), np.linalg.solve(x, x * 2))
    assert xp.linalg.matrix_rank(a, rtol=0.6).item() == np.linalg.matrix_rank(x, rtol=0.6)
    rtol = xp.asarray([0.6, 0.1])
    assert xp.linalg.matrix_rank(xp.stack([a, a]), rtol=rtol).tolist() == [1, 3]
    check(xp.linalg.pinv(a, rtol=xp.asarray(0.6)), np.linalg.pinv(x, rtol=0.6))
    check(xp.linalg.cholesky(a, upper=True), np.linalg.cholesky(x, upper=True))
    q, r = xp.linalg.qr(a, mode="complete")
    check(q @ r, x)
    u, s, vh = xp.linalg.svd(a, full_matrices=False)
    check((u * s) @ vh, x)
    values, vectors = xp.linalg.eigh(a)
    check((vectors * values) @ vectors.T, x)
    sign, size = xp.linalg.slogdet(a)
    check(sign * xp.exp(size), np.linalg.det(x))


# *** neighbours, sets, sorted sequences ***


def test_differences_and_repeats() -> None:
    x = np.arange(6.0).reshape(2, 3) ** 2
    a = xp.asarray(x)
    check(xp.diff(a), np.diff(x))
    check(xp.diff(a, axis=0, prepend=a[:1]), np.diff(x, axis=0, prepend=x[:1]))
    check(xp.diff(a, n=2, append=a[:, :1]), np.diff(x, n=2, append=x[:, :1]))
    check(xp.repeat(a, 2), np.repeat(x, 2))
    check(xp.repeat(a, 2, axis=1), np.repeat(x, 2, 1))
    check(xp.repeat(a, xp.asarray([2, 0, 1]), axis=1), np.repeat(x, [2, 0, 1], 1))


@settings(max_examples=15)
@given(arrays(st.sampled_from(NUMBERS), SHAPES, elements=st.integers(0, 5)))
def test_sets(x: np.ndarray[Any, Any]) -> None:
    a = xp.asarray(x)
    expected = np.unique_all(x)
    for name in ("unique_values", "unique_counts", "unique_inverse", "unique_all"):
        found = getattr(xp, name)(a)
        parts = {"values": found} if name == "unique_values" else found._asdict()
        for field, part in parts.items():
            like = getattr(expected, field)
            check(part, like if field == "values" else like.astype(np.int32))


def test_nan_is_unique() -> None:
    values, counts = xp.unique_counts(xp.asarray([np.nan, 1.0, np.nan]))
    np.testing.assert_equal(values.numpy(), [1, np.nan, np.nan])
    assert counts.tolist() == [1, 1, 1]


def test_searchsorted() -> None:
    x, wanted = np.array([1, 3, 3, 5]), np.array([[0, 3], [5, 9]])
    for side in ("left", "right"):
        expected = np.searchsorted(x, wanted, side).astype(np.int32)
        check(xp.searchsorted(xp.asarray(x), xp.asarray(wanted), side=side), expected)
    mixed = xp.asarray([3, 1, 2])
    found = xp.searchsorted(mixed, xp.asarray([2]), sorter=xp.argsort(mixed))
    assert found.tolist() == [1]


# *** the floats next to one ***


@settings(max_examples=100)
@given(st.data())
def test_nextafter(data: Any) -> None:
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    values = st.floats(width=np.dtype(dtype).itemsize * 8)
    x, y = (data.draw(arrays(dtype, 4, elements=values)) for _ in range(2))
    found = xp.nextafter(xp.asarray(x), xp.asarray(y)).numpy()
    expected = quiet("nextafter", x, y)
    assert (np.isnan(found) == np.isnan(expected)).all()
    bits = f"u{x.itemsize}"
    right = (found.view(bits) == expected.view(bits)) | np.isnan(expected)
    right |= (x == y) & (found == y)  # which zero is next to the other, NumPy's types disagree
    assert right.all(), (x, y, found, expected)


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_nextafter_in_bfloat16(device: str) -> None:
    one = Tensor([1.0, 0.0, -0.0, 2.0], device=device).bfloat16()
    found = one.nextafter(Tensor([2.0, 1.0, -1.0, 1.0], device=device).bfloat16()).float()
    assert found.tolist() == [1 + 2.0**-7, 2.0**-133, -(2.0**-133), 2 - 2.0**-7]
