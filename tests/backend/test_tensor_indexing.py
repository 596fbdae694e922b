"""Reading and writing parts of tensors, against NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.base.config import Context
from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

CUBE = np.arange(24).reshape(2, 3, 4)
SQUARE = np.array([[0, 2], [1, 1]])

BASIC: list[Any] = [
    0,
    -1,
    (1, 2, 3),
    slice(None),
    slice(1, None),
    (slice(None), slice(None, None, -1)),
    (slice(None), slice(2, 0, -1), slice(0, 4, 2)),
    (slice(None), slice(None, None, -2), slice(3, None, -3)),
    (slice(None), slice(5, 9)),
    (slice(None), slice(-2, -1)),
    (Ellipsis, 1),
    (1, Ellipsis),
    (0, Ellipsis, slice(1, 3)),
    (Ellipsis,),
    None,
    (None, 1, None, slice(0, 2)),
    (slice(None), None, 2),
    (),
    np.int64(1),
    (slice(None), slice(np.int32(0), np.int32(2))),
]
ADVANCED: list[Any] = [
    [1, 0],
    [[0, 1], [1, 1]],
    (slice(None), [2, 0, 0, 1]),
    (slice(None), slice(None), [-1, 0]),
    ([0, 1], [2, 0]),
    ([[0], [1]], [[0, 2]]),
    ([0, 1], slice(None), [3, 1]),
    (0, slice(None), [3, 1, 1]),
    (slice(None), 1, [3, 1, 1]),
    (slice(None), [0, 1], [3, 1], None),
    (slice(1, None), [0, 2], slice(None, None, -1)),
    (None, [1, 0], Ellipsis, [2, 3]),
    ([1, 0, 1], [0, 1, 2], [3, 2, 1]),
    (slice(None), SQUARE),
    (SQUARE % 2, SQUARE, SQUARE),
    (Ellipsis, SQUARE),
    (slice(None), []),
    (slice(None), range(2)),
]
MASKS: list[Any] = [
    CUBE > 11,
    CUBE[:, :, 0] > 3,
    (slice(None), np.array([True, False, True])),
    (slice(None), [True, False, True]),
    (1, CUBE[1] % 2 == 0),
    (slice(None), slice(None), np.array([False, True, True, False])),
    CUBE > 100,
    True,
    False,
    np.True_,
    np.array(True),
    (True, 0),
    (0, False),
    (slice(None), True),
    (Ellipsis, True),
    (Ellipsis, True, slice(0, 2)),
    ([0, 1], True),
    (np.array(False), slice(None)),
    (np.array([True, False]), slice(None), [0]),
]


def as_tensors(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(as_tensors(part) for part in key)
    if isinstance(key, list | np.ndarray):
        array = np.asarray(key)
        return Tensor(array if array.size else array.astype(np.int32))
    return key


def as_arrays(key: Any) -> Any:
    """What NumPy takes: an empty list of positions has no integer type of its own."""
    if isinstance(key, tuple):
        return tuple(as_arrays(part) for part in key)
    return np.asarray(key, np.intp) if isinstance(key, list) and not key else key


def assert_same(tensor: Tensor, expected: Any) -> None:
    assert tensor.shape == np.shape(expected)
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("key", [*BASIC, *ADVANCED, *MASKS], ids=str)
def test_reading(device: str, key: Any) -> None:
    assert_same(Tensor(CUBE)[key], CUBE[as_arrays(key)])
    assert_same((Tensor(CUBE) * 2)[key], CUBE[as_arrays(key)] * 2)


@pytest.mark.parametrize("key", [*ADVANCED, *MASKS], ids=str)
def test_reading_at_tensors(device: str, key: Any) -> None:
    assert_same(Tensor(CUBE)[as_tensors(key)], CUBE[as_arrays(key)])


@pytest.mark.parametrize("key", [*BASIC, *ADVANCED, *MASKS], ids=str)
@pytest.mark.parametrize("kind", ["number", "elements", "one"])
def test_writing(device: str, key: Any, kind: str) -> None:
    expected = CUBE.copy()
    part = expected[as_arrays(key)]
    new: Any = {"number": -1, "elements": -1 - np.arange(part.size).reshape(part.shape)}.get(
        kind, np.full((1,) * part.ndim, -7)
    )
    expected[as_arrays(key)] = new
    for index in (key, as_tensors(key)):
        x = Tensor(CUBE)
        x[index] = new if kind == "number" else Tensor(new)
        assert_same(x, expected)


def test_writing_broadcasts_and_casts(device: str) -> None:
    x = Tensor(CUBE)
    x[:, 1] = Tensor([1.9, 2.9, 3.9, 4.9])
    x[..., 0] = [[7], [8]]
    x[0, 2, 1:] = np.array([5.5, 6.5, 7.5])
    expected = CUBE.copy()
    expected[:, 1] = [1.9, 2.9, 3.9, 4.9]
    expected[..., 0] = [[7], [8]]
    expected[0, 2, 1:] = [5.5, 6.5, 7.5]
    assert_same(x, expected)


def test_the_last_of_equal_positions_counts(device: str) -> None:
    for positions in ([3, 1, 3, 3, 0], Tensor([3, 1, 3, -1, 0])):
        x = Tensor([0.0] * 4)
        x[positions] = Tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        assert x.tolist() == [5.0, 2.0, 0.0, 4.0]
    y = Tensor(np.zeros((2, 3), np.int32))
    y[Tensor([0, 0, 1]), Tensor([1, 1, 2])] = Tensor([4, 5, 6])
    assert y.tolist() == [[0, 5, 0], [0, 0, 6]]


def test_adding_in_place_at_positions(device: str) -> None:
    x = Tensor([1, 2, 3, 4])
    x[Tensor([0, 2])] += 10
    x[1::2] *= 3
    assert x.tolist() == [11, 6, 13, 12]


def test_tensors_out_of_range_read_zero_and_write_nowhere(device: str) -> None:
    x = Tensor([1, 2, 3])
    assert x[Tensor([5, -7, 0])].tolist() == [0, 0, 1]
    x[Tensor([5, 1])] = Tensor([8, 9])
    assert x.tolist() == [1, 9, 3]
    y = Tensor(CUBE)
    assert y[Tensor([0, 1]), Tensor([0, 3])].tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if dtypes.is_int(d)], ids=lambda d: d.name)
def test_every_integer_is_an_index(device: str, dtype: Any) -> None:
    index = Tensor(np.array([2, 0, 1], dtype.np))
    assert Tensor([10, 20, 30])[index].tolist() == [30, 10, 20]
    assert Tensor([10, 20, 30])[index[0]].item() == 30


def test_lazy_indices(device: str) -> None:
    x, i = Tensor(CUBE), Tensor([0, 1])
    assert_same(x[i + 0, (i + 1) % 3], CUBE[[0, 1], [1, 2]])
    assert_same(x[x[0, 0, :2]], CUBE[[0, 1]])
    assert_same(x[i == 1], CUBE[[False, True]])


@pytest.mark.parametrize("shape", [(5,), (64,), (3, 7), (40, 16)])
def test_many_elements_added_at_the_only_place(device: str, shape: tuple[int, ...]) -> None:
    added = np.arange(np.prod(shape)).reshape(shape) % 9
    only = Tensor(np.zeros((*shape[:-1], 1), np.int64))
    found = only.scatter_add(-1, Tensor(np.zeros(shape, np.int32)), Tensor(added))
    np.testing.assert_array_equal(found.numpy(), added.sum(-1, keepdims=True))


def test_gather_and_scatter(device: str) -> None:
    x = Tensor(CUBE)
    index = np.array([[[0, 3, 1], [2, 2, 0]]])
    expected = np.take_along_axis(CUBE[:1, :2], index, 2)
    assert_same(x.gather(2, Tensor(index)), expected)
    whole = CUBE.argsort(1)[:, ::-1]
    assert_same(x.take_along_dim(Tensor(whole), 1), np.take_along_axis(CUBE, whole, 1))
    column = CUBE.argmax(2, keepdims=True)
    assert_same(x.take_along_dim(Tensor(column), 2), np.take_along_axis(CUBE, column, 2))
    assert_same(x.take_along_dim(Tensor([5, 0])), CUBE.reshape(-1)[[5, 0]])
    assert_same(x.index_select(1, Tensor([2, 0])), CUBE[:, [2, 0]])

    new = np.arange(100, 112).reshape(2, 3, 2)
    places = np.stack([np.full((2, 3), 1), np.full((2, 3), 3)], 2)
    written = CUBE.copy()
    np.put_along_axis(written, places, new, 2)
    assert_same(x.scatter(2, Tensor(places), Tensor(new)), written)
    assert_same(x.scatter(2, Tensor(places), 7), np.where(CUBE % 2 == 1, 7, CUBE))
    added = CUBE.copy()
    np.add.at(added, (np.arange(2)[:, None, None], np.arange(3)[:, None], places), new)
    assert_same(x.scatter_add(2, Tensor(places), Tensor(new)), added)
    assert_same(x.scatter(2, Tensor(places), Tensor(new), reduce="add"), added)
    repeated = Tensor([0, 0]).scatter(0, Tensor([1, 1, 1]), Tensor([5, 6, 7]))
    assert repeated.tolist() == [0, 7]


def test_masks(device: str) -> None:
    x = Tensor(CUBE)
    assert_same(x.masked_select(x > 20), CUBE[CUBE > 20])
    assert_same(x.masked_select(Tensor([True, False, False, True])), CUBE[..., [0, 3]].reshape(-1))
    assert_same(Tensor(CUBE % 5).nonzero(), np.argwhere(CUBE % 5))
    y = Tensor(CUBE)
    y[y % 2 == 0] = -1
    assert_same(y, np.where(CUBE % 2 == 0, -1, CUBE))
    y[Tensor([False, True])] = 5
    assert_same(y[1], np.full((3, 4), 5))


def test_one_hot(device: str) -> None:
    labels = np.array([[0, 2], [1, 5]])
    assert_same(Tensor(labels).one_hot(4), (labels[..., None] == np.arange(4)).astype(int))
    assert_same(Tensor(labels).one_hot(), np.eye(6, dtype=int)[labels])
    assert Tensor(labels.astype(np.uint8)).one_hot(6).dtype is dtypes.int32


def test_iteration(device: str) -> None:
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert len(Tensor(CUBE)) == 2
    first, second = Tensor([5, 6])
    assert (first.item(), second.item()) == (5, 6)
    assert 6 in Tensor([5, 6]).tolist()
    assert [10, 20, 30][Tensor(1)] == 20


slices = st.builds(
    slice,
    st.none() | st.integers(-6, 6),
    st.none() | st.integers(-6, 6),
    st.none() | st.integers(-3, 3).filter(bool),
)


@st.composite
def keys(draw: st.DrawFn) -> tuple[Any, ...]:
    """An index for CUBE, with positions on any of its axes."""
    shape = draw(st.sampled_from([(), (2,), (2, 1), (1, 3), (0,)]))
    parts: list[Any] = []
    for size in CUBE.shape[: draw(st.integers(0, 3))]:
        kind = draw(st.sampled_from(["slice", "integer", "positions"]))
        if kind == "slice":
            parts.append(draw(slices))
        elif kind == "integer":
            parts.append(draw(st.integers(-size, size - 1)))
        else:
            count = int(np.prod(shape))
            flat = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
            parts.append(np.array(flat, np.int64).reshape(shape))
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), Ellipsis)
    return tuple(parts)


@given(keys(), st.booleans())
def test_any_index_is_numpys(key: tuple[Any, ...], at_tensors: bool) -> None:
    with Context(FERRULE_DEVICE="NUMPY"):
        index = as_tensors(key) if at_tensors else key
        expected = CUBE.copy()
        part = expected[key]
        x = Tensor(CUBE)
        assert_same(x[index], part)
        new = 100 + np.arange(part.size).reshape(part.shape)
        if part.size:
            expected[key] = new
            x[index] = Tensor(new)
            assert_same(x, expected)


@pytest.mark.parametrize(
    "key",
    [1, -1, (1, 2), (slice(None), 0), (0, slice(1, 3)), (1, None, 0), (..., 2, None), (2, ..., 1)],
    ids=str,
)
def test_integers_take_one_view(device: str, key: Any) -> None:
    """Reading, writing, gradients and views of it are those of NumPy's."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole = Tensor(array, device=device, requires_grad=True)
    part = whole[key]
    assert part._parent is whole
    np.testing.assert_array_equal(part.detach().numpy(), array[key])
    (gradient,) = (part * part).sum().gradient(whole)
    expected = np.zeros_like(array)
    expected[key] = 2 * array[key]
    np.testing.assert_array_equal(gradient.numpy(), expected)
    with Tensor.no_grad():
        part.assign(part + 100)
        whole.detach()[key] += 10
    array[key] += 110
    np.testing.assert_array_equal(whole.detach().numpy(), array)
    np.testing.assert_array_equal(part.detach().numpy(), array[key])


def test_the_one_place_of_an_axis(device: str) -> None:
    x = Tensor([[1.0, 2.0]], device=device, requires_grad=True)
    row = x[0]
    (gradient,) = (row * Tensor([3.0, 4.0], device=device)).sum().gradient(x)
    assert gradient.tolist() == [[3.0, 4.0]]
    with Tensor.no_grad():
        row[1] = 7.0
    assert x.tolist() == [[1.0, 7.0]]
    assert x[0, 1].shape == ()
    with pytest.raises(IndexError, match="1 is out of range for axis 0"):
        x[1]
