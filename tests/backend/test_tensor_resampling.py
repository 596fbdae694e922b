"""Resized images, sampled grids and shuffled pixels, against formulas for one element in NumPy."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.fusion import make_schedule
from ferrule.helpers import GlobalCounters
from ferrule.ops import MovementOps, UnaryOps
from ferrule.tensor import Tensor

RNG = np.random.default_rng(12)


# *** adaptive pooling ***


def parts(length: int, count: int) -> list[range]:
    """The part of an axis that each element of the result sees."""
    return [range(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((2, 7), (3,)), ((2, 3, 8, 6), (4, 3)), ((3, 7, 10), (5, 4)), ((2, 5, 4, 3), (2, None, 2))],
    ids=str,
)
def test_adaptive_pooling(device: str, shape: tuple[int, ...], wanted: tuple[Any, ...]) -> None:
    image, count = RNG.normal(size=shape), len(wanted)
    spatial = shape[-count:]
    sizes = [own if n is None else n for n, own in zip(wanted, spatial, strict=True)]
    mean, best, index = [], [], []
    for window in itertools.product(*[parts(n, k) for n, k in zip(spatial, sizes, strict=True)]):
        places = [int(np.ravel_multi_index(tap, spatial)) for tap in itertools.product(*window)]
        seen = image.reshape(*shape[:-count], -1)[..., places]
        mean.append(seen.mean(-1))
        best.append(seen.max(-1))
        index.append(np.asarray(places)[seen.argmax(-1)])
    target = (*shape[:-count], *sizes)
    x = Tensor(image)
    found = getattr(x, f"adaptive_avg_pool{count}d")(wanted)
    np.testing.assert_allclose(found.numpy(), np.stack(mean, -1).reshape(target), rtol=1e-12)
    found, where = getattr(x, f"adaptive_max_pool{count}d")(wanted, return_indices=True)
    np.testing.assert_array_equal(found.numpy(), np.stack(best, -1).reshape(target))
    np.testing.assert_array_equal(where.numpy(), np.stack(index, -1).reshape(target))


def test_gradients_of_adaptive_pooling() -> None:
    image = RNG.permutation(2 * 5 * 7).reshape(2, 5, 7) / 7
    assert_gradients(lambda x: x.adaptive_avg_pool2d((3, 2)), image)
    assert_gradients(lambda x: x.adaptive_max_pool2d((3, 2)), image)


# *** interpolation ***


def cubic(distance: float) -> float:
    """Keys' kernel with a slope of -0.75."""
    t, a = abs(distance), -0.75
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def resizing(size: int, wanted: int, mode: str, align: bool) -> np.ndarray:
    """The matrix (wanted, size) of weights along an axis."""
    matrix = np.zeros((wanted, size))
    for place in range(wanted):
        if mode.startswith("nearest"):
            start = place + 0.5 if mode.endswith("exact") else place
            matrix[place, min(math.floor(start * size / wanted), size - 1)] = 1
            continue
        where = (place + 0.5) * size / wanted - 0.5
        if align:
            where = place * (size - 1) / max(wanted - 1, 1)
        where = max(where, 0) if mode == "linear" else where
        for tap in range(math.floor(where) - 1, math.floor(where) + 3):
            weight = max(0, 1 - abs(where - tap)) if mode == "linear" else cubic(where - tap)
            matrix[place, min(max(tap, 0), size - 1)] += weight
    return matrix


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bicubic"])
@pytest.mark.parametrize("wanted", [(8, 10), (3, 4), (4, 5), (1, 7), (2, 1)], ids=str)
def test_interpolation(device: str, mode: str, wanted: tuple[int, int]) -> None:
    image = RNG.normal(size=(2, 3, 4, 5))
    for align in (False, True):
        if align and mode.startswith("nearest"):
            continue
        rows, columns = (
            resizing(n, new, mode, align) for n, new in zip((4, 5), wanted, strict=True)
        )
        expected = rows @ image @ columns.T
        found = Tensor(image).interpolate(wanted, mode=mode, align_corners=align)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_interpolation_by_a_factor(device: str) -> None:
    image = RNG.normal(size=(1, 2, 5)).astype(np.float32)
    x = Tensor(image)
    # Places are a factor apart, though the last element is cut.
    found = x.interpolate(scale_factor=1.5, mode="linear").numpy()
    places = np.clip((np.arange(7) + 0.5) / 1.5 - 0.5, 0, None)
    expected = np.stack([np.interp(places, np.arange(5), row) for row in image[0]])
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    again = x.interpolate(scale_factor=1.5, mode="linear", recompute_scale_factor=True)
    np.testing.assert_array_equal(again.numpy(), x.interpolate(7, mode="linear").numpy())
    area = x.interpolate(3, mode="area")
    np.testing.assert_array_equal(area.numpy(), x.adaptive_avg_pool1d(3).numpy())
    assert x.half().interpolate(7, mode="linear").dtype is dtypes.float16
    assert Tensor([[[1, 5]]]).interpolate(4).tolist() == [[[1, 1, 5, 5]]]
    assert Tensor([[[1, 5]]]).interpolate((3,), "linear").tolist() == [[[1, 3, 5]]]


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [((5, 7), (10, 28)), ((3, 5), (9, 40)), ((6, 9), (9, 6)), ((6, 8), (3, 2)), ((1, 35), (4, 70))],
    ids=str,
)
def test_linear_interpolation_by_simple_ratios(
    device: str, sizes: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """Rows and columns repeated instead of gathered; gradients are the transposed matrices."""
    image = RNG.normal(size=(2, 3, *sizes)).astype(np.float32)
    grad = RNG.normal(size=(2, 3, *wanted)).astype(np.float32)
    for align in (False, True):
        rows, columns = (resizing(*n, "linear", align) for n in zip(sizes, wanted, strict=True))
        x = Tensor(image, requires_grad=True)
        found = x.interpolate(wanted, mode="bilinear", align_corners=align)
        found.backward(Tensor(grad))
        np.testing.assert_allclose(found.numpy(), rows @ image @ columns.T, rtol=1e-5, atol=5e-6)
        back = rows.T @ grad @ columns
        np.testing.assert_allclose(x.grad.numpy(), back, rtol=1e-5, atol=3e-5)


def test_an_element_at_the_border_counts_alone() -> None:
    """What lies beyond is no number that a weight of 0 would have to hide."""
    x = Tensor(np.array([[[math.inf, 1.0, 2.0, math.inf]]], np.float32))
    found = x.interpolate(8, mode="linear").numpy()[0, 0]
    np.testing.assert_array_equal(np.isfinite(found), [0, 0, 0, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(found[[0, -1]], math.inf)


def kernels(value: Tensor) -> int:
    before = GlobalCounters.kernel_count
    value.realize()
    return GlobalCounters.kernel_count - before


@pytest.mark.parametrize("mode", ["bicubic", "area"])
def test_an_axis_is_resized_in_a_kernel_of_its_own(mode: str) -> None:
    """In one, the first axis is resized for each element that the second gathers."""
    x = Tensor.ones(1, 8, 30, 30).realize()
    assert kernels(x.interpolate(size=(7, 11), mode=mode)) == 3  # with one for the tables


def test_gradients_of_interpolation() -> None:
    image = RNG.normal(size=(1, 2, 3, 4))
    for mode in ("nearest", "bilinear", "bicubic"):
        assert_gradients(lambda x, m=mode: x.interpolate((5, 3), mode=m), image)
    assert_gradients(lambda x: x.interpolate((6, 4)), image)
    for wanted in ((6, 2), (2, 12)):
        assert_gradients(lambda x, n=wanted: x.interpolate(n, mode="bilinear"), image)


# *** grids ***


def reflected(where: float, size: int, align: bool) -> float:
    """Mirrored at both ends as often as it takes."""
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    while not low <= where <= high and high > low:
        where = 2 * low - where if where < low else 2 * high - where
    return where if high > low else 0.0


def sample(
    image: np.ndarray, point: np.ndarray, mode: str, padding: str, align: bool
) -> np.ndarray:
    """One element of the result: (channels,) of (channels, *spatial)."""
    spatial = image.shape[1:]

    def inside(where: float, size: int) -> float:
        if padding == "reflection":
            where = reflected(where, size, align)
        return where if padding == "zeros" else min(max(where, 0), size - 1)

    taps: list[list[tuple[int, float]]] = []
    for size, coordinate in zip(spatial, point[::-1], strict=True):
        where = ((coordinate + 1) * size - 1) / 2
        if align:
            where = (coordinate + 1) / 2 * (size - 1)
        where = where if mode == "bicubic" else inside(where, size)
        low = math.floor(where)
        if mode == "nearest":
            taps.append([(round(where), 1.0)])
        elif mode == "bilinear":
            taps.append([(low, low + 1 - where), (low + 1, where - low)])
        else:
            around = range(low - 1, low + 3)
            taps.append([(round(inside(tap, size)), cubic(where - tap)) for tap in around])
    total = np.zeros(len(image))
    for chosen in itertools.product(*taps):
        place = tuple(tap for tap, _ in chosen)
        if all(0 <= tap < size for tap, size in zip(place, spatial, strict=True)):
            total += image[(slice(None), *place)] * math.prod(weight for _, weight in chosen)
    return total


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample(device: str, mode: str, padding: str, align: bool) -> None:
    image = RNG.normal(size=(2, 3, 4, 5))
    grid = RNG.uniform(-2.5, 2.5, size=(2, 3, 2, 2))
    found = Tensor(image).grid_sample(Tensor(grid), mode, padding, align).numpy()
    for n, i, j in np.ndindex(2, 3, 2):
        expected = sample(image[n], grid[n, i, j], mode, padding, align)
        np.testing.assert_allclose(found[n, :, i, j], expected, rtol=1e-9, atol=1e-12)


def test_channels_have_their_places_in_common() -> None:
    """Which elements and how much of each is computed once, not for each channel."""
    grid = Tensor(np.tanh(np.random.default_rng(0).normal(size=(1, 20, 20, 2)))).float().realize()
    image = Tensor.ones(1, 3, 9, 9).realize()
    *_, last = make_schedule([image.grid_sample(grid).lazydata]).items
    ops = [node.op for node in last.ast.toposort()]
    assert MovementOps.GATHER in ops
    assert UnaryOps.TRUNC not in ops


def test_grid_sample_in_three_dimensions(device: str) -> None:
    image, grid = RNG.normal(size=(1, 2, 3, 4, 2)), RNG.uniform(-1.3, 1.3, size=(1, 2, 2, 1, 3))
    for mode in ("nearest", "bilinear"):
        found = Tensor(image).grid_sample(Tensor(grid), mode).numpy()
        for place in np.ndindex(2, 2, 1):
            expected = sample(image[0], grid[(0, *place)], mode, "zeros", False)
            np.testing.assert_allclose(found[(0, slice(None), *place)], expected, rtol=1e-9)


def test_gradients_of_grids() -> None:
    image, grid = RNG.normal(size=(1, 2, 3, 4)), RNG.uniform(-1.4, 1.4, size=(1, 2, 3, 2))
    for mode, padding in (("bilinear", "zeros"), ("bicubic", "border"), ("bilinear", "reflection")):
        assert_gradients(lambda x, g, m=mode, p=padding: x.grid_sample(g, m, p), image, grid)
    theta = RNG.normal(size=(2, 2, 3))
    assert_gradients(lambda x: x.affine_grid((2, 1, 3, 2)), theta)


def test_identity_grids(device: str) -> None:
    for shape in ((2, 3, 4, 5), (1, 2, 3, 2, 4)):
        image, count = RNG.normal(size=shape), len(shape) - 2
        theta = Tensor(np.tile(np.eye(count, count + 1), (shape[0], 1, 1)))
        for align in (False, True):
            grid = theta.affine_grid(shape, align)
            found = Tensor(image).grid_sample(grid, align_corners=align)
            np.testing.assert_allclose(found.numpy(), image, rtol=1e-12, atol=1e-12)


# *** pixels and channels ***


def test_shuffles(device: str) -> None:
    image = RNG.normal(size=(2, 12, 3, 4))
    shuffled = Tensor(image).pixel_shuffle(2)
    expected = np.zeros((2, 3, 6, 8))
    for c, i, j in np.ndindex(3, 2, 2):
        expected[:, c, i::2, j::2] = image[:, 4 * c + 2 * i + j]
    np.testing.assert_array_equal(shuffled.numpy(), expected)
    np.testing.assert_array_equal(shuffled.pixel_unshuffle(2).numpy(), image)
    order = np.arange(12).reshape(3, 4).T.reshape(-1)
    np.testing.assert_array_equal(Tensor(image).channel_shuffle(3).numpy(), image[:, order])
