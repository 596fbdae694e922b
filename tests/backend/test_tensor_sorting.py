"""Sorting and what it picks, against NumPy: order, ties, NaN, gradients, host calls."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gradients import assert_gradients

from ferrule import TinyJit
from ferrule.device import Device
from ferrule.dtype import DType, dtypes
from ferrule.fusion.forms import has_kernels
from ferrule.helpers import GlobalCounters
from ferrule.tensor import Tensor

RNG = np.random.default_rng(11)
CUBE = RNG.normal(size=(3, 4, 5))
TIES = RNG.integers(0, 3, (4, 30))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting(device: str, axis: int, descending: bool) -> None:
    values, indices = Tensor(CUBE).sort(axis, descending)
    expected = np.sort(CUBE, axis)
    if descending:
        expected = np.flip(expected, axis)
    np.testing.assert_array_equal(values.numpy(), expected)
    assert indices.dtype is dtypes.int32
    np.testing.assert_array_equal(
        np.take_along_axis(CUBE, indices.numpy().astype(np.int64), axis), expected
    )
    found = Tensor(CUBE).argsort(axis, descending=descending)
    np.testing.assert_array_equal(found.numpy(), indices.numpy())


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 2, 50), (2, 300)])
@pytest.mark.parametrize("wide", [False, True])
def test_sorting_64_bits(device: str, dtype: Any, shape: tuple[int, ...], wide: bool) -> None:
    """Small numbers, which share their upper halves, and numbers of which halves are shared."""
    if dtype is np.float64:
        array = RNG.standard_normal(shape) * (1e300 if wide else 1)
        for step, value in [(5, array.flat[0]), (7, np.nan), (11, -0.0), (13, 0.0), (17, -np.inf)]:
            array.flat[1::step] = value
    elif wide:
        ends = np.iinfo(dtype)
        array = RNG.integers(ends.min, ends.max, shape, dtype)
        array.flat[::3] &= dtype(0xFFFF)
        array.flat[::4] &= ~dtype(0xFFFFFFFF)
    else:
        array = RNG.integers(0, 50, shape).astype(dtype)
    order = np.argsort(array, -1, kind="stable")
    before = GlobalCounters.host_calls
    np.testing.assert_array_equal(Tensor(array).argsort(stable=True).numpy(), order)
    if Device[device].row_function is not None:
        assert GlobalCounters.host_calls == before
    values, places = Tensor(array).sort(descending=True, stable=True)
    from_end = np.argsort(np.flip(array, -1), -1, kind="stable")
    expected = np.flip(shape[-1] - 1 - from_end, -1)
    np.testing.assert_array_equal(places.numpy(), expected)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(array, expected, -1))


def test_equal_elements_stay_in_their_order(device: str) -> None:
    found = Tensor(TIES).argsort(1).numpy()
    np.testing.assert_array_equal(found, np.argsort(TIES, 1, kind="stable"))
    found = Tensor(TIES).argsort(1, descending=True).numpy()
    np.testing.assert_array_equal(found, np.argsort(-TIES, 1, kind="stable"))


def test_nan_is_the_largest(device: str) -> None:
    x = Tensor([math.nan, 1.0, math.inf, math.nan, -math.inf])
    assert x.argsort().tolist() == [4, 1, 2, 0, 3]
    assert x.argsort(descending=True).tolist() == [0, 3, 2, 1, 4]
    assert math.isnan(x.topk(1).values.item())


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_every_bit_pattern_and_its_order(device: str, dtype: DType, descending: bool) -> None:
    bits = RNG.integers(0, 256, (3, 200 * dtype.itemsize)).astype(np.uint8)
    bits[:, -dtype.itemsize :] = bits[:, : dtype.itemsize]  # one at least is there twice
    values = (bits & 1).astype(bool) if dtype is dtypes.bool else bits.view(dtype.np)
    values[1, :4] = np.array([0.0, -0.0, 0.0, -0.0]).astype(dtype.np)
    found = Tensor(values).argsort(1, descending=descending).numpy()
    exact = values if values.dtype.isbuiltin == 1 else values.astype(np.float32)
    for row, order in zip(exact, found, strict=True):
        numbers = list(range(len(row)))
        if descending:  # not NumPy's order turned, in which equal elements are turned as well
            ranks = np.unique(row, return_inverse=True, equal_nan=True)[1]
            wanted = sorted(numbers, key=lambda place, ranks=ranks: -ranks[place])
        else:
            wanted = np.argsort(row, kind="stable").tolist()
        assert order.tolist() == wanted


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_every_dtype(device: str, dtype: DType) -> None:
    values = np.array([3, 0, 1, 2, 1], np.float32).astype(dtype.np)
    found = Tensor(values).sort()
    assert found.values.dtype is dtype
    wanted = [False, True, True, True, True] if dtype is dtypes.bool else [0, 1, 1, 2, 3]
    assert found.values.tolist() == wanted
    if dtypes.is_int(dtype):
        limits = np.array([dtypes.max(dtype), 0, dtypes.min(dtype)], dtype.np)
        np.testing.assert_array_equal(Tensor(limits).msort().numpy(), np.sort(limits))


def test_the_largest_and_the_smallest(device: str) -> None:
    for axis in (0, 1, 2):
        for k in (0, 1, 2, 3):
            large, places = Tensor(CUBE).topk(k, axis)
            expected = np.flip(np.sort(CUBE, axis), axis).take(range(k), axis)
            np.testing.assert_array_equal(large.numpy(), expected)
            assert places.shape == expected.shape
            small = Tensor(CUBE).topk(k, axis, largest=False).values
            np.testing.assert_array_equal(small.numpy(), np.sort(CUBE, axis).take(range(k), axis))
    assert Tensor([1, 5, 5, 5]).topk(2).indices.tolist() == [1, 2]


@pytest.mark.parametrize("keepdim", [False, True])
def test_one_of_an_axis(device: str, keepdim: bool) -> None:
    x = Tensor(CUBE)
    for axis in (0, 1, -1):
        for k in (1, 2, 3):
            values, places = x.kthvalue(k, axis, keepdim)
            expected = np.sort(CUBE, axis).take([k - 1], axis)
            expected = expected if keepdim else expected.squeeze(axis)
            np.testing.assert_array_equal(values.numpy(), expected)
            assert places.shape == expected.shape
    odd = x.median(2, keepdim)
    np.testing.assert_array_equal(odd.values.numpy(), np.median(CUBE, 2, keepdims=keepdim))
    assert x.median().item() == np.sort(CUBE.ravel())[29]


def test_medians_and_nan(device: str) -> None:
    holes = np.array([[3.0, math.nan, 1.0, 2.0, 4.0], [math.nan] * 5, [5.0, 4.0, 3.0, 2.0, 1.0]])
    x = Tensor(holes)
    values, places = x.median(1)
    np.testing.assert_array_equal(values.numpy(), [math.nan, math.nan, 3])
    assert places.tolist() == [1, 0, 2]
    np.testing.assert_array_equal(x.nanmedian(1).values.numpy(), [2, math.nan, 3])
    assert math.isnan(x.median().item())
    assert x.nanmedian().item() == 3
    assert Tensor([4, 1, 3, 2]).median().item() == 2


def test_modes(device: str) -> None:
    values, places = Tensor(TIES).mode(1)
    for row, value, place in zip(TIES, values.tolist(), places.tolist(), strict=True):
        counts = np.bincount(row)
        assert value == counts.argmax()
        assert place == np.flatnonzero(row == value)[-1]
    assert Tensor([[2.0], [1.0]]).mode(0, keepdim=True).values.tolist() == [[1.0]]


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, [0.1, 0.5, 0.99]], ids=str)
def test_quantiles(device: str, q: Any, interpolation: Any) -> None:
    x = Tensor(CUBE)
    for axis in (None, 0, 1, (0, 2), -1):
        for keepdim in (False, True):
            found = x.quantile(q, axis, keepdim, interpolation=interpolation).numpy()
            expected = np.quantile(CUBE, q, axis, keepdims=keepdim, method=interpolation)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    tensor = x.quantile(Tensor(np.asarray(q)), 1, interpolation=interpolation)
    expected = np.quantile(CUBE, q, 1, method=interpolation)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_quantiles_and_nan(device: str) -> None:
    holes = CUBE.copy()
    holes[0, 0, :3] = holes[1, 1, 1] = math.nan
    holes[2, 2] = math.nan
    x = Tensor(holes)
    np.testing.assert_allclose(x.quantile(0.4, 2).numpy(), np.quantile(holes, 0.4, 2))
    found = x.nanquantile([0.2, 0.9], 2).numpy()
    for row in np.ndindex(3, 4):
        there = holes[row][~np.isnan(holes[row])]
        expected = np.quantile(there, [0.2, 0.9]) if there.size else [math.nan] * 2
        np.testing.assert_allclose(found[:, *row], expected)
    assert Tensor([math.inf, math.inf, 1.0]).quantile(0.75).item() == math.inf
    assert np.isnan(Tensor([1.0, 2.0]).quantile(Tensor([-0.5, 1.5])).numpy()).all()


def test_gradients(device: str) -> None:
    assert_gradients(lambda x: x.sort(1, descending=True).values, CUBE)
    assert_gradients(lambda x: x.topk(2, 0).values, CUBE)
    assert_gradients(lambda x: x.median(2).values, CUBE)
    assert_gradients(lambda x: x.nanmedian(), CUBE)
    assert_gradients(lambda x: x.quantile([0.15, 0.6], (0, 2)), CUBE)
    assert_gradients(lambda x, q: x.quantile(q, 1), CUBE, np.array([0.1, 0.7]))


def test_tensors_without_axes_and_without_elements(device: str) -> None:
    x = Tensor(2.5)
    for axis in (0, -1):
        for found in (x.sort(axis), x.topk(1, axis), x.kthvalue(1, axis), x.mode(axis)):
            assert [(part.shape, part.item()) for part in found] == [((), 2.5), ((), 0)]
        assert x.median(axis, keepdim=True).values.shape == ()
        assert x.quantile([0.5], axis).tolist() == [2.5]
    empty = Tensor(np.zeros((3, 0, 2)))
    assert empty.sort(1).values.shape == (3, 0, 2)
    assert empty.kthvalue(1, 0).values.shape == (0, 2)


def test_it_is_lazy_and_at_most_the_order_is_on_the_host(device: str) -> None:
    x = Tensor(CUBE.astype(np.float32)).realize()
    before = GlobalCounters.host_calls
    values, indices = (x * 2).sort()
    assert GlobalCounters.host_calls == before
    values.realize(indices)
    has_row_functions = Device[device].row_function is not None
    assert GlobalCounters.host_calls == before + (not has_row_functions)


def test_captured(device: str) -> None:
    @TinyJit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        found = (x + 1).sort()
        return found.values.realize(), x.quantile(0.5).realize()

    for seed in range(4):
        values = np.random.default_rng(seed).normal(size=20)
        ordered, middle = both(Tensor(values))
        np.testing.assert_allclose(ordered.numpy(), np.sort(values) + 1)
        np.testing.assert_allclose(middle.numpy(), np.median(values))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans(), st.data())
def test_any_shape(sizes: list[int], descending: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    values = np.random.default_rng(1).integers(-2, 3, sizes)
    found = Tensor(values).argsort(axis, descending).numpy()
    keys = -values if descending else values
    np.testing.assert_array_equal(found, np.argsort(keys, axis, kind="stable"))


@pytest.mark.parametrize("size", [301, 4096])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_few_of_long_rows(device: str, size: int, largest: bool) -> None:
    """Found in parts of a row; each has every n-th element, and some elements are in none."""
    x = np.random.default_rng(4).integers(0, 50, (2, 2, size)).astype(np.float32)
    x[0, :, 5::29] = np.nan
    x[:, 0, -3:] = 100
    keys = np.where(np.isnan(x), 200, x)
    places = np.argsort(-keys if largest else keys, -1, kind="stable")
    for k in (1, 2, 17, 18):
        found = Tensor(x).topk(k, largest=largest)
        np.testing.assert_array_equal(found.indices.numpy(), places[..., :k])
        np.testing.assert_array_equal(
            found.values.numpy(), np.take_along_axis(x, places[..., :k], -1)
        )
        if not largest:
            np.testing.assert_array_equal(Tensor(x).kthvalue(k).indices.numpy(), places[..., k - 1])


def test_few_of_an_order_need_no_host(device: str) -> None:
    """Each is the largest of those after the one before it."""
    x = Tensor(np.arange(300, dtype=np.float32).reshape(3, 100)).realize()
    before = GlobalCounters.host_calls
    found = x.topk(16)
    assert found.values[1].tolist() == [float(n) for n in range(199, 183, -1)]
    assert x.kthvalue(2).indices.tolist() == [1, 1, 1]
    if has_kernels(device):
        assert GlobalCounters.host_calls == before


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.uint32, np.int32, np.int64, np.bool_]
)
def test_what_an_order_picks_is_as_all_of_the_order(device: str, dtype: type) -> None:
    """Of narrow dtypes the host gets numbers that hold a position, and sorts as few as it can."""
    rng = np.random.default_rng(3)
    x = (rng.integers(0, 20, (3, 41)) - (0 if np.dtype(dtype).kind in "ub" else 8)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[:2, ::7] = np.nan
        x[:, 3::11], x[:, 5::13], x[:, 4::17] = -0.0, np.inf, -np.inf
    up = np.argsort(x, -1, kind="stable")
    down = 40 - np.flip(np.argsort(np.flip(x, -1), -1, kind="stable"), -1)
    tensor = Tensor(x)
    for k in (1, 2, 7, 40, 41):
        np.testing.assert_array_equal(tensor.topk(k).indices.numpy(), down[:, :k])
        np.testing.assert_array_equal(tensor.topk(k, largest=False).indices.numpy(), up[:, :k])
        np.testing.assert_array_equal(tensor.kthvalue(k).indices.numpy(), up[:, k - 1])
    missing = (x != x).sum(1)
    middle = np.where(missing > 0, 41 - missing, 20)
    rows = np.arange(3)
    np.testing.assert_array_equal(tensor.median(1).indices.numpy(), up[rows, middle])
    middle = (40 - missing) // 2
    np.testing.assert_array_equal(tensor.nanmedian(1).indices.numpy(), up[rows, middle])
    for row, place in zip(x, tensor.mode(1).indices.tolist(), strict=True):
        values, counts = np.unique(row, return_counts=True, equal_nan=False)
        assert place == np.flatnonzero(row == values[counts.argmax()])[-1]
    values, inverse = tensor.unique(return_inverse=True)
    np.testing.assert_array_equal(values.numpy()[inverse.numpy()], x)


def test_computed_nan_are_last_whatever_their_sign(device: str) -> None:
    """Arithmetic gives NaN of either sign, before or after it is negated in the same kernel."""
    x = np.tile(np.float32([1.0, -1.5, 2.0, -2.5, 0.0, np.inf, 1.0, 1.0]), 3).reshape(6, 4)
    base, power = Tensor(x).realize(), (Tensor(x) ** Tensor(x)).realize()
    functions = [lambda x: -x, lambda x: x.abs(), lambda x: 1 - x, lambda x: x * -1, lambda x: +x]
    for made in (base**base, power, base.sqrt(), base - base, (base.log() * 0).realize()):
        for function in functions:
            expected = np.sort(function(made).numpy(), -1)
            has_nan = np.isnan(expected).any(1)
            # Sorted as they are computed, in one kernel.
            ordered = function(made).sort(descending=True)[0].numpy()
            np.testing.assert_array_equal(function(made).sort()[0].numpy(), expected)
            np.testing.assert_array_equal(ordered, expected[:, ::-1])
            np.testing.assert_array_equal(
                np.isnan(function(made).topk(1)[0].numpy()[:, 0]), has_nan
            )
            np.testing.assert_array_equal(
                np.isnan(function(made).median(1).values.numpy()), has_nan
            )
