"""Infinities and NaN among the operands: a kernel puts them where the graph, node by node, does.

A factor that is 0 in a border, or off a diagonal, times infinity is NaN. What takes such terms away
must not take that away, and what takes a mask from a factor must not make one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit, dtypes
from ferrule.dtype import DType

Function = Callable[..., Tensor]
Case = tuple[Function, Sequence[tuple[int, ...]]]
N = 40

CASES: dict[str, Case] = {
    "a diagonal": (lambda a: (a * Tensor.eye(N)).sum(0), [(N, N)]),
    "an identity": (lambda a: Tensor.eye(N) @ a, [(N, 9)]),
    "an identity behind": (lambda a: a @ Tensor.eye(N), [(9, N)]),
    "a diagonal matrix": (lambda a, b: a.diag() @ b, [(N,), (N, 9)]),
    "a triangle": (lambda a, b: a.tril() @ b, [(N, N), (N, 9)]),
    "a band": (lambda a, b: a.tril(4).triu(-4) @ b, [(N, N), (N, 9)]),
    "one hot": (lambda a: Tensor(list(range(0, N, 3))).one_hot(N).float() @ a, [(N, 9)]),
    "a padded product": (lambda a, b: a.pad(((3, 5), (0, 9))) @ b, [(N, 31), (N, 9)]),
    "put together": (lambda a, b, c: a.cat(b, dim=1) @ c, [(20, 30), (20, 17), (47, 9)]),
    "positions": (lambda a, b: a[[3, 1, 30]] @ b, [(N, 8), (8, 4)]),
    "a window": (lambda a, b: (a.unfold(0, 3, 2) * b).sum(1), [(9,), (4, 3)]),
    "a running total": (lambda a: a.cumsum(0), [(N, 5)]),
    "largest of windows": (lambda a: a.max_pool2d(3, 2, padding=1), [(1, 4, 9, 9)]),
    "means of windows": (lambda a: a.avg_pool2d(3, 2, padding=1), [(1, 4, 9, 9)]),
    "gaps of one term": (lambda a, b: a.conv_transpose1d(b, stride=3), [(1, 1, 7), (1, 2, 2)]),
    "gaps of few terms": (
        lambda a, b: a.conv_transpose2d(b, stride=4),
        [(1, 1, 4, 3), (1, 2, 2, 3)],
    ),
}
# Functions of an image and a filter; a border is in their result (0), or the image's gradient (1).
FILTERED: dict[str, tuple[Function, Sequence[tuple[int, ...]], int]] = {
    "one axis": (lambda a, b: a.conv2d(b), [(2, 4, 19), (6, 4, 3)], 1),
    "two axes": (lambda a, b: a.conv2d(b), [(1, 4, 9, 9), (6, 4, 3, 3)], 1),
    "three axes": (lambda a, b: a.conv2d(b, padding=1), [(1, 3, 5, 6, 7), (4, 3, 3, 3, 3)], 1),
    "a large filter": (lambda a, b: a.conv2d(b), [(1, 3, 9, 9), (5, 3, 7, 7)], 1),
    "padding": (lambda a, b: a.conv2d(b, padding=1), [(2, 4, 9, 9), (6, 4, 3, 3)], 1),
    "uneven padding": (
        lambda a, b: a.conv2d(b, padding=(0, 2, 1, 0)),
        [(2, 4, 9, 9), (6, 4, 3, 3)],
        1,
    ),
    "a stride": (lambda a, b: a.conv2d(b, stride=2, padding=1), [(2, 4, 9, 8), (6, 4, 3, 3)], 1),
    "two strides": (lambda a, b: a.conv2d(b, stride=(1, 3)), [(2, 4, 9, 11), (6, 4, 3, 5)], 1),
    "dilation": (lambda a, b: a.conv2d(b, dilation=2, padding=2), [(2, 4, 9, 9), (6, 4, 3, 3)], 1),
    "groups": (lambda a, b: a.conv2d(b, groups=2, padding=1), [(2, 4, 9, 9), (6, 2, 3, 3)], 1),
    "depthwise": (lambda a, b: a.conv2d(b, groups=8, padding=1), [(2, 8, 9, 9), (8, 1, 3, 3)], 1),
    "an epilogue": (lambda a, b: (a * 2).conv2d(b).relu(), [(1, 4, 9, 9), (6, 4, 3, 3)], 1),
    "many chunks": (lambda a, b: a.conv2d(b, padding=1), [(4, 8, 16, 16), (16, 8, 3, 3)], 1),
    "few products for each weight": (
        lambda a, b: a.conv2d(b, padding=1),
        [(1, 64, 7, 7), (64, 64, 3, 3)],
        1,
    ),
    "a part of the filter for each chunk": (
        lambda a, b: a.conv2d(b, padding=1),
        [(1, 96, 5, 6), (70, 96, 3, 3)],
        1,
    ),
    "a few of the weights": (lambda a, b: a.conv1d(b), [(2, 200, 5), (8, 200, 3)], 1),
    "many depthwise": (lambda a, b: a.conv1d(b, groups=64), [(8, 64, 19), (64, 1, 3)], 1),
    "many strided": (lambda a, b: a.conv2d(b, stride=2), [(4, 8, 33, 33), (16, 8, 3, 3)], 1),
    "transposed": (lambda a, b: a.conv_transpose2d(b), [(1, 4, 9, 9), (4, 6, 3, 3)], 0),
    "transposed, one axis": (lambda a, b: a.conv_transpose2d(b), [(2, 4, 19), (4, 6, 3)], 0),
    "transposed, strided": (
        lambda a, b: a.conv_transpose2d(b, stride=2, padding=1),
        [(2, 4, 9, 9), (4, 6, 3, 3)],
        0,
    ),
    "transposed, groups": (
        lambda a, b: a.conv_transpose2d(b, groups=2, dilation=2),
        [(2, 4, 9, 9), (4, 3, 3, 3)],
        0,
    ),
    "transposed, gaps": (
        lambda a, b: a.conv_transpose2d(b, stride=4),
        [(1, 8, 9, 9), (8, 6, 3, 3)],
        0,
    ),
    "transposed, a part of the image for each chunk": (
        lambda a, b: a.conv_transpose2d(b, stride=2, groups=16),
        [(4, 16, 12, 12), (16, 1, 3, 3)],
        0,
    ),
    "transposed, many chunks": (
        lambda a, b: a.conv_transpose2d(b, stride=2),
        [(4, 8, 16, 16), (8, 16, 3, 3)],
        0,
    ),
}


def places(
    function: Function, shapes: Sequence[tuple[int, ...]], seed: int, device: str
) -> list[tuple[list[int], list[int]]]:
    """Where NaN and where infinities are, in the result and in the gradient of each operand."""
    random = np.random.RandomState(seed)
    operands = []
    with Context(FERRULE_DEVICE=device):
        for shape in shapes:
            array = random.randint(-4, 5, shape).astype(np.float32)
            for special in random.choice([np.inf, -np.inf, np.nan], 2):
                array.reshape(-1)[random.randint(array.size)] = special
            operands.append(Tensor(array, requires_grad=True))
        result = function(*operands)
        upstream = Tensor(random.randint(1, 5, result.shape).astype(np.float32))
        found = [result, *result.gradient(*operands, gradient=upstream)]
        arrays = [tensor.numpy() for tensor in found]
    return [
        (np.flatnonzero(np.isnan(array)).tolist(), np.flatnonzero(np.isinf(array)).tolist())
        for array in arrays
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_they_are_where_the_graph_says(name: str, seed: int) -> None:
    assert places(*CASES[name], seed, "CPU") == places(*CASES[name], seed, "NUMPY")


def whole(random: np.random.RandomState, shape: Sequence[int]) -> np.ndarray:
    """Numbers whose sums and products are exact in any order."""
    return random.randint(-4, 5, shape).astype(np.float32)


def filtered(
    name: str, special: float, where: int, device: str, at: int | None = None
) -> np.ndarray:
    """The result, or the gradient of the image, with one such element in the filter (1), or in what
    it is multiplied by (0): in the middle, or at another place.
    """
    function, shapes, which = FILTERED[name]
    random = np.random.RandomState(3)
    image, weight = (whole(random, shape) for shape in shapes)
    with Context(FERRULE_DEVICE=device):
        shape = function(Tensor(image), Tensor(weight)).shape
        upstream = whole(random, shape)
        place = weight if where else (upstream if which else image)
        if at is None:
            place[len(place) // 2].reshape(-1)[0] = special
        else:
            place.reshape(-1)[at % place.size] = special
        a, b = Tensor(image, requires_grad=True), Tensor(weight)
        result = function(a, b)
        if which == 0:
            return result.numpy()
        return result.gradient(a, gradient=Tensor(upstream))[0].numpy()


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3.0])
@pytest.mark.parametrize("name", FILTERED)
def test_beyond_a_border_an_infinity_meets_nothing(name: str, special: float, where: int) -> None:
    found, expected = (filtered(name, special, where, device) for device in ("CPU", "NUMPY"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "few products for each weight",
        "a part of the filter for each chunk",
        "transposed, strided",
        "transposed, a part of the image for each chunk",
        "transposed, many chunks",
    ],
)
def test_wherever_it_is(name: str, where: int) -> None:
    """A chunk looks at its own part of the elements: at none too few."""
    for at in (0, -1, *np.random.RandomState(7).randint(0, 1 << 20, 10)):
        found, expected = (
            filtered(name, np.inf, where, device, int(at)) for device in ("CPU", "NUMPY")
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_filters_of_other_floats(dtype: DType) -> None:
    def gradient(device: str) -> np.ndarray:
        random = np.random.RandomState(4)
        image, weight = (whole(random, s) for s in [(1, 4, 9, 9), (6, 4, 3, 3)])
        weight[2, 1, 0, 1] = -np.inf
        with Context(FERRULE_DEVICE=device):
            a = Tensor(image, dtype=dtype, requires_grad=True)
            result = a.conv2d(Tensor(weight, dtype=dtype))
            upstream = Tensor(whole(random, result.shape), dtype=dtype)
            return result.gradient(a, gradient=upstream)[0].float().numpy()

    np.testing.assert_array_equal(gradient("CPU"), gradient("NUMPY"))


@pytest.mark.parametrize("name", ["padding", "many chunks", "transposed", "transposed, strided"])
def test_a_filter_becomes_infinite_in_a_replay(name: str) -> None:
    """And finite again: each run looks at the elements that it has."""
    function, shapes, which = FILTERED[name]

    def outcome(a: Tensor, b: Tensor) -> Tensor:
        result = function(a, b)
        return result if which == 0 else (result * 2).sum().gradient(a)[0]

    captured = TinyJit(lambda a, b: outcome(a, b).realize())
    random = np.random.RandomState(5)
    for special in (1.0, 2.0, 1.0, np.inf, 3.0, np.nan):
        image, weight = (whole(random, shape) for shape in shapes)
        weight[len(weight) // 2].reshape(-1)[0] = special
        found = captured(Tensor(image, requires_grad=True), Tensor(weight)).numpy()
        with Context(FERRULE_DEVICE="NUMPY"):
            expected = outcome(Tensor(image, requires_grad=True), Tensor(weight)).numpy()
        np.testing.assert_array_equal(found, expected)


def test_weights_that_stay_the_same_are_packed_with_an_infinity() -> None:
    random = np.random.RandomState(6)
    weight = whole(random, (64, 64, 3, 3))
    weight[5, 4, 0, 1] = np.inf
    filters = Tensor(weight).realize()
    captured = TinyJit(lambda a: a.conv_transpose2d(filters, padding=1).realize())
    for _ in range(4):
        image = whole(random, (2, 64, 12, 12))
        found = captured(Tensor(image)).numpy()
        with Context(FERRULE_DEVICE="NUMPY"):
            expected = Tensor(image).conv_transpose2d(Tensor(weight), padding=1).numpy()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("choose", [Tensor.maximum, Tensor.minimum])
@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_not_the_extreme_has_gradient_zero(
    choose: Callable[..., Tensor], swapped: bool
) -> None:
    """The other operand's gradient is infinite: what is not chosen has no part in it."""
    chosen, other = Tensor([1.0, 2.0, 3.0]), Tensor([-1.0, 3.0, 3.0], requires_grad=True)
    if choose is Tensor.minimum:
        chosen, other = -chosen, -other.detach().requires_grad_()
    result = choose(chosen, other) if swapped else choose(other, chosen)
    infinite = Tensor([np.inf, -np.inf, np.inf])
    assert result.gradient(other, gradient=infinite)[0].tolist() == [0.0, -np.inf, np.inf]
