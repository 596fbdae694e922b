"""Writing and reducing at positions, by masks, in copies: against NumPy, element by element."""

from typing import Any

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit, Variable, dtypes

GRID = np.arange(12).reshape(3, 4)
STEPS = {
    "sum": np.add,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
    "mean": np.add,
}


def reduced(own: Any, axis: int, index: Any, src: Any, how: str, include_self: bool) -> Any:
    """scatter_reduce, one element after the other."""
    result, counts = own.copy(), np.full(own.shape, int(include_self))
    for place in np.ndindex(index.shape):
        target = list(place)
        target[axis] = index[place]
        at = tuple(target)
        first = counts[at] == 0
        result[at] = src[place] if first else STEPS[how](result[at], src[place])
        counts[at] += 1
    if how == "mean":
        divide = np.floor_divide if own.dtype.kind in "iu" else np.divide
        result = divide(result, np.maximum(counts, 1)).astype(own.dtype)
    return result


@pytest.mark.parametrize("how", STEPS)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float16], ids=str)
def test_scatter_reduce(device: str, how: str, include_self: bool, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    own = rng.integers(0, 4, (4, 5)).astype(dtype)
    src = rng.integers(0, 4, (6, 5)).astype(dtype)
    for axis, index in ((0, rng.integers(0, 4, (6, 3))), (1, rng.integers(0, 5, (4, 5)))):
        expected = reduced(own, axis, index, src, how, include_self)
        got = Tensor(own).scatter_reduce(
            axis, Tensor(index), Tensor(src), how, include_self=include_self
        )
        assert got.dtype.np == dtype
        np.testing.assert_array_equal(got.numpy(), expected)


def test_extremes_of_special_numbers(device: str) -> None:
    src = Tensor([-np.inf, np.nan, 2.0])
    at = Tensor([0, 1, 1])
    result = Tensor([5.0, 1.0, 3.0]).scatter_reduce(0, at, src, "amax", include_self=False)
    np.testing.assert_array_equal(result.numpy(), np.array([-np.inf, np.nan, 3], np.float32))
    small = Tensor([-128, 127], dtype=dtypes.int8).scatter_reduce(
        0, Tensor([0, 1]), Tensor([-128, 127], dtype=dtypes.int8), "amin"
    )
    assert small.tolist() == [-128, 127]


def test_gradients_of_products_with_zeros(device: str) -> None:
    x = Tensor([2.0, 0.0, 3.0], requires_grad=True)
    src = Tensor([4.0, 0.0, 5.0, 0.0, 0.0], requires_grad=True)
    at = Tensor([0, 0, 1, 2, 2])
    x.scatter_reduce(0, at, src, "prod").sum().backward()
    assert x.grad is not None
    assert src.grad is not None
    assert x.grad.tolist() == [0, 5, 0]
    assert src.grad.tolist() == [0, 8, 0, 0, 0]


def test_gradients_of_extremes_are_shared(device: str) -> None:
    x = Tensor([2.0, 1.0], requires_grad=True)
    src = Tensor([2.0, 2.0, 1.0, 0.0], requires_grad=True)
    x.scatter_reduce(0, Tensor([0, 0, 0, 1]), src, "amax").sum().backward()
    assert x.grad is not None
    assert src.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [1 / 3, 1], rtol=1e-6)
    np.testing.assert_allclose(src.grad.numpy(), [1 / 3, 1 / 3, 0, 0], rtol=1e-6)


def test_gradients_go_to_the_last_of_equal_positions(device: str) -> None:
    x, new = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor([4.0, 5.0, 6.0])
    new.requires_grad = True
    y = x * 1
    y[Tensor([1, 1, 0])] = new
    (y * Tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad is not None
    assert new.grad is not None
    assert x.grad.tolist() == [0, 0, 100]
    assert new.grad.tolist() == [0, 10, 1]


def test_many_equal_positions_take_no_square_of_memory(device: str) -> None:
    count = 200_000
    places = np.random.default_rng(0).integers(0, 50, count).astype(np.int32)
    x, expected = Tensor(np.zeros(50, np.int32)), np.zeros(50, np.int32)
    x[Tensor(places)] = Tensor(np.arange(count, dtype=np.int32))
    expected[places] = np.arange(count)
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("places", ["many", "one"])
def test_the_zeros_come_before_what_is_put_there(device: str, places: str) -> None:
    """In a result that is large enough for several threads."""
    size = 300_000
    index = {"many": np.random.default_rng(0).integers(0, size, 1000), "one": np.array([0])}[places]
    values = np.arange(1, 1 + index.size, dtype=np.float32)
    expected = np.zeros(size, np.float32)
    np.add.at(expected, index, values)
    index = index.astype(np.int32)
    with Context(FERRULE_NUM_THREADS=2):
        for _ in range(3):
            x = Tensor.zeros(size).scatter_add(0, Tensor(index), Tensor(values))
            np.testing.assert_array_equal(x.numpy(), expected)


def test_a_whole_tensor_is_written_by_a_mask_of_no_axes(device: str) -> None:
    x = Tensor(np.arange(300_000, dtype=np.int32))
    with Context(FERRULE_NUM_THREADS=2):
        x[True] = -1
        assert (x.numpy() == -1).all()


def test_slices_along_an_axis(device: str) -> None:
    x, at = Tensor(GRID), [2, 0, 2]
    new = np.arange(100, 112).reshape(3, 4)
    added = GRID.copy()
    np.add.at(added, at, 2 * new)
    for index in (at, Tensor(at), np.array(at, np.uint8)):
        assert x.index_add(0, index, Tensor(new), alpha=2).tolist() == added.tolist()
        assert x.index_copy(0, index, Tensor(new))[2].tolist() == new[2].tolist()
        assert x.index_fill(0, index, -1)[[0, 2]].tolist() == [[-1] * 4] * 2
        assert x.index_reduce(0, index, Tensor(new), "amax")[2].tolist() == new[2].tolist()
    assert x.tolist() == GRID.tolist()
    assert x.index_fill(1, [-1], Tensor(7))[:, 3].tolist() == [7, 7, 7]


def test_index_put_and_put(device: str) -> None:
    x = Tensor(GRID)
    rows, columns = np.array([0, 0, 2]), np.array([1, 1, 3])
    expected = GRID.copy()
    np.add.at(expected, (rows, columns), [5, 6, 7])
    at = (Tensor(rows), Tensor(columns))
    assert x.index_put(at, Tensor([5, 6, 7]), accumulate=True).tolist() == expected.tolist()
    assert x.index_put(at, Tensor([5, 6, 7]))[0, 1].item() == 6
    assert x.index_put((None, columns), 1, accumulate=True)[:, 1].tolist() == [3, 7, 11]
    assert x.put(Tensor([11, 0]), Tensor([1, 2])).flatten()[[0, 11]].tolist() == [2, 1]
    assert x.put([5, 5], [1, 2], accumulate=True)[1, 1].item() == 8


def test_masked_scatter(device: str) -> None:
    mask = GRID % 3 == 0
    expected = GRID.copy()
    np.place(expected, mask, [50, 51, 52, 53])
    got = Tensor(GRID).masked_scatter(Tensor(mask), Tensor([50, 51, 52, 53]))
    assert got.tolist() == expected.tolist()
    row = Tensor(GRID).masked_scatter(Tensor([True, False, False, True]), Tensor(np.arange(6)))
    assert row[:, [0, 3]].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_taking(device: str) -> None:
    x = Tensor(GRID)
    assert x.take(Tensor([[0, -1]])).tolist() == np.take(GRID, [[0, -1]]).tolist()
    assert x.take([1, 1], 1).tolist() == np.take(GRID, [1, 1], 1).tolist()
    order = GRID.argsort(1)[:, ::-1].copy()
    assert x.take_along_axis(Tensor(order), 1).tolist() == GRID[:, ::-1].tolist()


def test_positions_of_what_is_not_zero(device: str) -> None:
    x = Tensor(GRID % 5)
    for mine, theirs in zip(x.nonzero(as_tuple=True), np.nonzero(GRID % 5), strict=True):
        assert mine.tolist() == theirs.tolist()
    assert x.argwhere().tolist() == np.argwhere(GRID % 5).tolist()
    assert [part.tolist() for part in (x == 4).where()] == [[1, 2], [0, 1]]
    assert Tensor(3).nonzero().shape == (1, 0)


@pytest.mark.parametrize("size", [0, 3, 11, 30])
def test_a_given_number_of_positions(device: str, size: int) -> None:
    x, known = Tensor(GRID % 5), np.argwhere(GRID % 5)
    expected = np.full((size, 2), 9)
    expected[: len(known)] = known[:size]
    found = x.nonzero_static(size=size, fill_value=9)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.dtype is dtypes.int32
    assert Tensor(3).nonzero_static(size=size).shape == (size, 0)
    assert Tensor([]).nonzero_static(size=size).tolist() == [[-1]] * size


def test_a_given_number_of_positions_is_captured() -> None:
    find = TinyJit(lambda x: x.nonzero_static(size=2).realize())
    for values in ([0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 2, 2]):
        expected = [[n] for n in np.flatnonzero(values)] + [[-1]] * (2 - np.count_nonzero(values))
        assert find(Tensor(values).realize()).tolist() == expected


def test_parts_replaced_in_copies(device: str) -> None:
    x = Tensor(GRID)
    assert x.select_scatter(Tensor([7, 8, 9]), 1, -1)[:, 3].tolist() == [7, 8, 9]
    assert x.slice_scatter(Tensor([[7], [8], [9]]), 1, 0, 4, 2)[:, 2].tolist() == [7, 8, 9]
    for offset in (-3, -1, 0, 2, 3):
        expected = GRID.copy()
        count = expected.diagonal(offset).size
        expected[max(-offset, 0) :, max(offset, 0) :][range(count), range(count)] = -1
        got = x.diagonal_scatter(Tensor([-1] * count), offset)
        assert got.tolist() == expected.tolist()
    assert x.tolist() == GRID.tolist()


def test_choices_and_places(device: str) -> None:
    assert Tensor([1, 2, 3]).combinations(2, with_replacement=True).shape == (6, 2)
    assert Tensor([1]).combinations().shape == (0, 2)
    rows, columns = Tensor([5, 11]).unravel_index((3, 4))
    assert (rows.tolist(), columns.tolist()) == ([1, 2], [1, 3])


@pytest.mark.parametrize("count", [1, 5, 24])
def test_elements_that_all_go_to_one_known_place_are_all_added(device: str, count: int) -> None:
    values = np.arange(1, count + 1, dtype=np.float32)
    places = Tensor.full((count,), 2, dtype=dtypes.int32, device=device)
    found = Tensor.zeros(4, device=device).scatter_add(0, places, Tensor(values, device=device))
    assert found.tolist() == [0, 0, values.sum(), 0]


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1)])
def test_an_axis_of_one_element_is_scattered(device: str, shape: tuple[int, int]) -> None:
    values = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    places = np.full(shape, 2, np.int32)
    for axis in (0, 1):
        expected = np.zeros((5, shape[1]) if axis == 0 else (shape[0], 5), np.float32)
        np.add.at(np.moveaxis(expected, axis, 0), 2, values.sum(axis))
        start = Tensor.zeros(*expected.shape, device=device)
        found = start.scatter_add(
            axis, Tensor(places, device=device), Tensor(values, device=device)
        )
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 3, 4), (64, 40, 64)])
def test_elements_of_a_symbolic_size(device: str, shape: tuple[int, ...], axis: int) -> None:
    """They are fewer than the places along an axis; the others stay what they were."""
    random = np.random.RandomState(0)
    whole = random.randint(-9, 9, shape).astype(np.int32)
    added = random.randint(-9, 9, shape).astype(np.int32)
    places = random.randint(0, min(shape), shape).astype(np.int32)
    size = Variable("n", 1, shape[1])
    for count in (1, shape[1] - 1, shape[1]):
        parts = [Tensor(array)[:, : size.bind(count)] for array in (places, added)]
        index = [*np.indices(shape)[:, :, :count]]
        index[axis] = places[:, :count]
        expected = whole.copy()
        np.add.at(expected, tuple(index), added[:, :count])
        found = Tensor(whole).scatter_add(axis, *parts)
        np.testing.assert_array_equal(found.numpy(), expected)
