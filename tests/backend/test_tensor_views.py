"""Views share memory exactly as NumPy's do; writes are seen by all, results never change."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gradients import assert_gradients

from ferrule.base.config import Context
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

CUBE = np.arange(24).reshape(2, 3, 4)


def writeable(view: Any) -> Any:
    """NumPy's diagonals say that they are read-only."""
    if isinstance(view, np.ndarray):
        view.flags.writeable = True
    return view


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[:, 1:],
    "steps": lambda x: x[::-1, ::2, 1::2],
    "integer": lambda x: x[1],
    "new axis": lambda x: x[:, None, 0],
    "reshape": lambda x: x.reshape(6, 4),
    "reshape of a slice": lambda x: x[:, :, 1:].reshape(6, 3),
    "transpose": lambda x: x.transpose(0, 1),
    "all axes": lambda x: x.T,
    "flip": lambda x: x[:, ::-1],
    "diagonal": lambda x: writeable(x.diagonal(1, -2, -1)),
    "diagonal of a view": lambda x: writeable(x.T[:, ::-1].diagonal(-1, 0, 2))[1:],
    "chain": lambda x: x.T[1:3].T.reshape(2, 3, 2)[0],
}


def numpy_transpose(view: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """The same movement for NumPy, whose `transpose` takes an order of axes."""

    class Array(np.ndarray):
        def transpose(self, *axes: Any) -> Any:
            return self.swapaxes(*axes) if axes == (0, 1) and self.ndim > 2 else super().transpose()

    return lambda array: view(array.view(Array))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("source", ["data", "lazy", "realized"])
def test_writes_are_seen_through_views(device: str, name: str, source: str) -> None:
    view, expected = VIEWS[name], CUBE.copy()
    x = Tensor(CUBE)
    if source != "data":
        x, expected = x + 1, expected + 1
    if source == "realized":
        x.realize()
    y = view(x)
    part = numpy_transpose(view)(expected)
    assert np.shares_memory(part, expected)
    y += 100
    part += 100
    np.testing.assert_array_equal(x.numpy(), expected)
    x *= 2
    expected *= 2
    np.testing.assert_array_equal(y.numpy(), part)
    y.assign(-Tensor(np.arange(part.size).reshape(part.shape)))
    part[...] = -np.arange(part.size).reshape(part.shape)
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(y.numpy(), part)


COPIES: dict[str, Callable[[Any], Any]] = {
    "reshape that strides cannot say": lambda x: x.T.reshape(12, 2),
    "positions": lambda x: x[[0, 1]],
    "clone": lambda x: x.clone(),
    "cat": lambda x: x.cat(x),
    "pad": lambda x: x.pad((1, 1)),
    "arithmetic": lambda x: x + 0,
    "copy": lambda x: Tensor(x),
    "cast": lambda x: x.float(),
}


@pytest.mark.parametrize("name", COPIES)
def test_writes_to_copies_are_not(device: str, name: str) -> None:
    x = Tensor(CUBE)
    y = COPIES[name](x)
    before = y.numpy()
    y += 1
    np.testing.assert_array_equal(x.numpy(), CUBE)
    x *= 5
    np.testing.assert_array_equal(y.numpy(), before + 1)


def test_lazy_results_keep_the_value_they_were_made_of(device: str) -> None:
    x = Tensor([1, 2, 3])
    doubled = x * 2
    view = x[1:]
    summed = view + 10
    x += 100
    view[0] = 0
    assert doubled.tolist() == [2, 4, 6]
    assert summed.tolist() == [12, 13]
    assert x.tolist() == [101, 0, 103]
    assert view.tolist() == [0, 103]


@pytest.mark.host_memory
def test_arrays_handed_out_keep_their_contents(device: str) -> None:
    x = Tensor([1, 2, 3]).realize()
    mine, shared = x.numpy(), x.numpy(copy=False)
    x += 1
    assert x.tolist() == [2, 3, 4]
    assert mine.tolist() == shared.tolist() == [1, 2, 3]
    mine[0] = 50
    assert x.tolist() == [2, 3, 4]
    assert not shared.flags.writeable


def test_data_is_copied_at_construction(device: str) -> None:
    array = np.array([1, 2, 3])
    x = Tensor(array)
    array[0] = 50
    assert x.tolist() == [1, 2, 3]


def test_equal_expressions_do_not_share_memory(device: str) -> None:
    a = Tensor([1, 2])
    x, y = a + 1, a + 1
    x[0] = 50
    assert (x.tolist(), y.tolist()) == ([50, 3], [2, 3])
    p, q = Tensor.zeros(2), Tensor.zeros(2)
    p += 1
    assert (p.tolist(), q.tolist()) == ([1, 1], [0, 0])


def test_swapping_through_a_temporary(device: str) -> None:
    x = Tensor([1, 2, 3, 4])
    x[:2], x[2:] = x[2:].clone(), x[:2].clone()
    assert x.tolist() == [3, 4, 1, 2]
    x.assign(x.flip(0))
    assert x.tolist() == [2, 1, 4, 3]
    x[1:] = x[:-1]
    assert x.tolist() == [2, 2, 1, 4]


def test_many_writes_before_anything_runs(device: str) -> None:
    x, expected = Tensor(np.zeros(8, np.int32)), np.zeros(8, np.int32)
    for step in range(30):
        x[step % 8] += step
        x[::2] += x[1::2]
        expected[step % 8] += step
        expected[::2] += expected[1::2]
    np.testing.assert_array_equal(x.numpy(), expected)


def test_writes_stay_in_place(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    memory = x.lazydata.realized
    for _ in range(3):
        x += 1
        x[1:] *= 2
        x.realize()
    assert x.lazydata.realized is memory
    view = x[1:]
    view.assign(x[:2] + 1).realize()
    assert x.lazydata.realized is memory
    assert x.tolist() == [4.0, 5.0, 31.0]


def test_detached_tensors_share_memory(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x.detach()
    y[0] = 5
    assert x.tolist() == [5, 2]
    assert x.requires_grad
    with Tensor.no_grad():
        x += 1
    assert y.tolist() == [6, 3]


def test_long_chains_of_views(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]])
    y = x
    for _ in range(3000):
        y = y.T
    x += 1
    assert y.tolist() == [[2, 3], [4, 5]]
    y[0, 1] = 50
    assert x.tolist() == [[2, 50], [4, 5]]


def test_views_that_are_gone_are_forgotten(device: str) -> None:
    x = Tensor(np.arange(100)).realize()
    for start in range(50):
        x[start : start + 10].sum().item()
    assert len(x._cell.caches or ()) <= 1


# *** random programs ***

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["view", "write", "add", "read", "new", "drop", "realize"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from(["slice", "steps", "flip", "transpose", "row", "flat"]),
    ),
    min_size=3,
    max_size=14,
)


def _take(x: Any, kind: str) -> Any:
    if kind == "slice":
        return x[1:] if x.shape[0] > 1 else x
    if kind == "steps":
        return x[::2]
    if kind == "flip":
        return x[::-1]
    if kind == "transpose":
        return x.T
    if kind == "row":
        return x[-1] if len(x.shape) > 1 else x[:1]
    return x.reshape(-1)


@settings(max_examples=60)
@given(STEPS)
def test_random_programs_are_numpys(steps: list[tuple[str, int, int, str]]) -> None:
    """Views, writes, reads and realisations in any order, the same in NumPy and in ferrule."""
    with Context(FERRULE_DEVICE="NUMPY"):
        base = np.arange(12.0).reshape(3, 4)
        arrays: list[np.ndarray] = [base]
        tensors: list[Tensor] = [Tensor(base)]
        for action, first, second, kind in steps:
            i, j = first % len(arrays), second % len(arrays)
            if action == "view":
                arrays.append(_take(arrays[i], kind))
                tensors.append(_take(tensors[i], kind))
            elif action == "new":
                arrays.append(arrays[i] * 2)
                tensors.append(tensors[i] * 2)
            elif action == "drop" and len(arrays) > 1:
                del arrays[i], tensors[i]
            elif action == "realize":
                tensors[i].realize()
            elif action == "read":
                np.testing.assert_array_equal(tensors[i].numpy(), arrays[i])
            elif action == "add":
                arrays[i] += 1
                tensors[i] += 1
            elif action == "write" and arrays[i].shape == arrays[j].shape:
                arrays[i][...] = arrays[j].copy() + 3
                tensors[i].assign(tensors[j] + 3)
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("shape", [(), (3,), (16, 16)], ids=str)
def test_an_old_version_is_read_before_it_is_written_over(
    device: str, shape: tuple[int, ...]
) -> None:
    """Where one kernel reads a version for one result, and writes the next one over it."""
    x, one = Tensor(np.full(shape, 6, np.int32)), Tensor(np.full(shape, 1, np.int32))
    s = x + x
    x.assign(one)
    s -= x
    x += 1
    s.realize(x)
    assert_all(s, 11)
    assert_all(x, 2)


def test_old_versions_are_read_before_transposed_values_are_written_over_them(device: str) -> None:
    square = np.arange(4096.0, dtype=np.float32).reshape(64, 64)
    a, b = Tensor(np.full((64, 64), 6, np.float32)), Tensor(np.full((64, 64), 7, np.float32))
    product = a * b
    a.assign(Tensor(square).T)
    b.assign(Tensor(square).T * 2)
    a.realize(b, product)
    np.testing.assert_array_equal(a.numpy(), square.T)
    np.testing.assert_array_equal(b.numpy(), square.T * 2)
    assert_all(product, 42)


def assert_all(tensor: Tensor, number: float) -> None:
    np.testing.assert_array_equal(tensor.numpy(), np.full(tensor.shape, number))


def test_gradients_flow_through_writes_to_a_diagonal() -> None:
    def written(a: Tensor, b: Tensor) -> Tensor:
        table = a * 2
        table.diagonal(1)[:] = b * 3
        line = table.diagonal()
        line *= b
        return table.sum(0) * table[0] + table.diagonal(-1).sum()

    rng = np.random.default_rng(3)
    assert_gradients(written, rng.random((3, 4)), rng.random(3))


def test_loops_over_elements_and_batches(device: str) -> None:
    array = np.arange(60, dtype=np.float32).reshape(12, 5)
    x = Tensor(array, device=device).realize()
    array = array.copy()
    for i in range(11):
        assert x[i, i % 5].item() == array[i, i % 5]
        np.testing.assert_array_equal((x[i : i + 2] * 2).numpy(), array[i : i + 2] * 2)
        differences = x[i + 1, ::2] - x[i, ::2]
        np.testing.assert_array_equal(differences.numpy(), array[i + 1, ::2] - array[i, ::2])
        np.testing.assert_array_equal(
            (x[i:, 1:] + x[i:, :-1]).numpy(), array[i:, 1:] + array[i:, :-1]
        )
        x[i, i % 5] = float(-i)
        array[i, i % 5] = -i
        x[i + 1] = x[i] * 2
        array[i + 1] = array[i] * 2
        x[i, 1:] += 1
        array[i, 1:] += 1
        np.testing.assert_array_equal(x.numpy(), array)


def test_strides_are_those_of_numpy() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    x = Tensor(array)
    for part in (
        lambda a: a,
        lambda a: a.transpose(1, 2, 0) if isinstance(a, np.ndarray) else a.permute(1, 2, 0),
        lambda a: a[:, 1:, ::2],
        lambda a: a[1, ::-1],
        lambda a: a.reshape(6, 4)[2:4, 1],
    ):
        view, expected = part(x), part(array)
        assert view.stride() == tuple(step // array.itemsize for step in expected.strides)
        assert view.stride(-1) == view.stride()[-1]
        assert view.is_contiguous() == expected.flags.c_contiguous
        start = expected.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        assert view.storage_offset() == start // array.itemsize
        assert (view.nelement(), view.ndimension()) == (expected.size, expected.ndim)
    assert x[:1].expand(5, 3, 4).stride() == (0, 4, 1)
    assert (x + 1).T.contiguous().is_contiguous()
    assert Tensor.zeros(0, 3).T.is_contiguous()
    with pytest.raises(ShapeError, match=r"\[stride\]"):
        x.stride(3)


CHANGES_NOTHING: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "roll by 0": (CUBE, lambda x: x.roll(0, 1)),
    "roll by the size": (CUBE, lambda x: x.roll((3, -4), (1, 2))),
    "roll of the flat elements": (CUBE, lambda x: x.roll(24)),
    "pad": (CUBE, lambda x: x.pad((0, 0))),
    "pad that cuts": (CUBE, lambda x: x.pad((-1, 0))),
    "pad with itself": (CUBE, lambda x: x.pad((0, 0), "reflect")),
    "pad with itself that cuts": (CUBE, lambda x: x.pad((-1, 0), "circular")),
    "diff": (CUBE, lambda x: x.diff(0)),
    "floor of ints": (CUBE, lambda x: x.floor()),
    "round of ints": (CUBE, lambda x: x.round(2)),
    "nan_to_num of ints": (CUBE, lambda x: x.nan_to_num()),
    "abs of unsigned": (CUBE.astype(np.uint8), lambda x: x.abs()),
    "sign of bools": (CUBE > 3, lambda x: x.sign()),
    "first power": (CUBE[0, :, :3], lambda x: x.matrix_power(1)),
    "take": (CUBE, lambda x: x.take(1, axis=0)),
    "take of the flat elements": (CUBE, lambda x: x.take(1)),
}


@pytest.mark.parametrize("name", CHANGES_NOTHING)
def test_results_have_their_own_memory_where_they_change_nothing(name: str) -> None:
    array, function = CHANGES_NOTHING[name]
    x = Tensor(array)
    result = function(x)
    expected = result.numpy()
    x.zero_()
    np.testing.assert_array_equal(result.numpy(), expected)
    result.fill_(1)
    assert not x.numpy().any()


# What the docstrings say

DOCUMENTED_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(6, 4),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "split": lambda x: x.split(1)[1],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind()[1],
    "narrow": lambda x: x.narrow(0, 1, 1),
    "select": lambda x: x.select(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "diagonal": lambda x: x.diagonal(),
    "rearrange": lambda x: x.rearrange("a b c -> c b a"),
}
DOCUMENTED_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "unfold": lambda x: x.unfold(2, 2, 2),
    "view": lambda x: x.permute(2, 1, 0).view(-1),
    "bitcast": lambda x: x.bitcast("uint32"),
    "diag": lambda x: x[0].diag(),
    "take": lambda x: x.take(Tensor([0, 1])),
    "index_select": lambda x: x.index_select(0, Tensor([0])),
}


@pytest.mark.parametrize("name", [*DOCUMENTED_VIEWS, *DOCUMENTED_COPIES])
def test_docstrings_say_what_shares_memory(name: str) -> None:
    text = str(getattr(Tensor, name).__doc__)
    assert ("iew" in text) if name in DOCUMENTED_VIEWS else ("copy" in text)
    x = Tensor(CUBE.astype(np.int32)).realize()
    part = (DOCUMENTED_VIEWS | DOCUMENTED_COPIES)[name](x)
    part.assign(part.full_like(77)).realize()
    assert bool((x == 77).any()) is (name in DOCUMENTED_VIEWS)
