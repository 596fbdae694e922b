"""Shapes, axes, padding, joining, splitting, against NumPy."""

from typing import Any

import numpy as np
import pytest
from tests.fuzz.drawing import MANY_DTYPES

from ferrule.dtype import dtypes
from ferrule.ir.expr import Variable
from ferrule.tensor import Tensor

CUBE = np.arange(24).reshape(2, 3, 4)


def assert_same(tensor: Tensor, expected: Any) -> None:
    found = tensor.numpy()
    np.testing.assert_array_equal(found, expected)
    assert found.shape == np.shape(expected)


def test_reshapes(device: str) -> None:
    x = Tensor(CUBE)
    assert_same(x.reshape(4, 6), CUBE.reshape(4, 6))
    assert_same(x.reshape((3, -1)), CUBE.reshape(3, -1))
    assert_same(x.reshape([2, None, 2, 2]), CUBE.reshape(2, 3, 2, 2))
    assert_same(x.view(24), CUBE.reshape(24))
    assert_same(x.flatten(), CUBE.reshape(-1))
    assert_same(x.flatten(1), CUBE.reshape(2, 12))
    assert_same(x.flatten(0, 1), CUBE.reshape(6, 4))
    assert_same(x.unflatten(2, (2, -1)), CUBE.reshape(2, 3, 2, 2))
    assert_same(Tensor(5).flatten(), [5])
    assert_same(Tensor([5]).reshape(()), np.array(5))
    assert Tensor(np.zeros((0, 3))).reshape(3, 0).shape == (3, 0)


def test_axes_of_size_one(device: str) -> None:
    x = Tensor(CUBE.reshape(1, 6, 1, 4))
    assert x.squeeze().shape == (6, 4)
    assert x.squeeze(0).shape == (6, 1, 4)
    assert x.squeeze(1).shape == (1, 6, 1, 4)
    assert x.squeeze((0, 2)).shape == (6, 4)
    assert x.unsqueeze(-1).shape == (1, 6, 1, 4, 1)
    assert x.unsqueeze(0).shape == (1, 1, 6, 1, 4)
    assert Tensor(3).unsqueeze(0).tolist() == [3]


def test_expand(device: str) -> None:
    x = Tensor([[1], [2]])
    assert_same(x.expand(2, 3), np.broadcast_to([[1], [2]], (2, 3)))
    assert_same(x.expand(4, -1, 3), np.broadcast_to([[1], [2]], (4, 2, 3)))
    assert_same(x.broadcast_to((2, 5)), np.broadcast_to([[1], [2]], (2, 5)))
    assert_same(Tensor([7]).expand_as(x), [[7], [7]])


def test_orders_of_axes(device: str) -> None:
    x = Tensor(CUBE)
    assert_same(x.permute(2, 0, 1), CUBE.transpose(2, 0, 1))
    assert_same(x.permute((-1, 0, 1)), CUBE.transpose(2, 0, 1))
    assert_same(x.transpose(), CUBE.transpose(1, 0, 2))
    assert_same(x.transpose(-1, 0), CUBE.swapaxes(-1, 0))
    assert_same(x.T, CUBE.T)
    assert_same(x.mT, CUBE.swapaxes(1, 2))
    assert_same(x.movedim(0, -1), np.moveaxis(CUBE, 0, -1))
    assert_same(x.movedim((0, 1), (1, 2)), np.moveaxis(CUBE, (0, 1), (1, 2)))
    assert_same(x.flip(0, -1), np.flip(CUBE, (0, -1)))
    assert_same(x.flip((1,)), np.flip(CUBE, 1))


def test_parts(device: str) -> None:
    x = Tensor(CUBE)
    assert_same(x.shrink((None, (1, 3), (0, 2))), CUBE[:, 1:3, 0:2])
    assert_same(x.narrow(2, 1, 2), CUBE[:, :, 1:3])
    assert_same(x.T.reshape(6, 4), CUBE.T.reshape(6, 4))


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", MODES)
def test_pad(device: str, mode: str) -> None:
    x = Tensor(CUBE)
    pairs = ((0, 0), (1, 2), (2, 1))
    expected = np.pad(CUBE, pairs, MODES[mode])  # type: ignore[call-overload]
    assert_same(x.pad(pairs, mode=mode), expected)
    assert_same(x.pad((2, 1, 1, 2), mode=mode), expected)
    cut = np.pad(CUBE, ((0, 0), (0, 1), (0, 0)), MODES[mode])[:, :, 1:]  # type: ignore[call-overload]
    assert_same(x.pad((None, (0, 1), (-1, 0)), mode=mode), cut)


def test_pad_with_a_value(device: str) -> None:
    wide = np.pad(CUBE, ((0, 0), (0, 0), (1, 2)), constant_values=7)
    assert_same(Tensor(CUBE).pad((1, 2), value=7), wide)
    assert_same(Tensor([1.0]).pad((1, 1), value=-np.inf), [-np.inf, 1, -np.inf])
    assert_same(Tensor([True]).pad((1, 1), value=True), [True] * 3)
    assert_same((Tensor([0.5]).exp() + 1).pad((1, 1))[::2], [0, 0])


def test_joining(device: str) -> None:
    x, y = Tensor(CUBE), Tensor(-CUBE[:, :1])
    assert_same(x.cat(y, dim=1), np.concatenate([CUBE, -CUBE[:, :1]], 1))
    assert_same(Tensor.cat(y, x, y, dim=-2), np.concatenate([-CUBE[:, :1], CUBE, -CUBE[:, :1]], 1))
    assert_same(x.cat([y], dim=1), np.concatenate([CUBE, -CUBE[:, :1]], 1))
    assert_same(Tensor.stack(x, x, dim=2), np.stack([CUBE, CUBE], 2))
    assert_same(x.stack(x), np.stack([CUBE, CUBE]))
    assert_same(x.stack(x, dim=-1), np.stack([CUBE, CUBE], -1))
    assert Tensor([1]).cat(Tensor([2.5])).dtype is dtypes.float32
    assert_same(Tensor(np.zeros((0, 2))).cat(Tensor(np.ones((1, 2)))), [[1, 1]])
    parts = [Tensor([float(i)]) for i in range(20)]
    assert_same(Tensor.cat(*parts), np.arange(20.0))


def test_joining_keeps_the_bits(device: str) -> None:
    a, b = np.array([-0.0, np.nan, 1.0], "f"), np.array([-0.0, np.inf], "f")
    joined = Tensor(a).cat(Tensor(b)).numpy()
    np.testing.assert_array_equal(joined.view(np.uint32), np.concatenate([a, b]).view(np.uint32))


def test_splitting(device: str) -> None:
    x = Tensor(CUBE)
    for found, expected in zip(x.split(2, 1), np.split(CUBE, [2], 1), strict=True):
        assert_same(found, expected)
    for found, expected in zip(x.split([1, 3], -1), np.split(CUBE, [1], -1), strict=True):
        assert_same(found, expected)
    assert [part.shape for part in Tensor(np.arange(10)).chunk(4)] == [(3,), (3,), (3,), (1,)]
    assert [part.tolist() for part in x.unbind(1)] == [CUBE[:, i].tolist() for i in range(3)]
    assert [part.shape for part in Tensor(np.zeros((0, 2))).split(3)] == [(0, 2)]


def test_repeating(device: str) -> None:
    x = Tensor(CUBE)
    assert_same(x.repeat(2, 1, 3), np.tile(CUBE, (2, 1, 3)))
    assert_same(x.repeat(2, 1, 1, 2), np.tile(CUBE, (2, 1, 1, 2)))
    assert_same(x.repeat_interleave(3, 1), np.repeat(CUBE, 3, 1))
    assert_same(x.repeat_interleave(2), np.repeat(CUBE, 2))


def test_roll(device: str) -> None:
    x = Tensor(CUBE)
    for shift in (-5, -1, 0, 2, 7):
        assert_same(x.roll(shift), np.roll(CUBE, shift))
        assert_same(x.roll(shift, 2), np.roll(CUBE, shift, 2))
    assert_same(x.roll((1, -2), (0, 2)), np.roll(CUBE, (1, -2), (0, 2)))


def test_unfold(device: str) -> None:
    row = np.arange(10)
    windows = np.lib.stride_tricks.sliding_window_view
    assert_same(Tensor(row).unfold(0, 3, 2), windows(row, 3)[::2])
    assert_same(Tensor(CUBE).unfold(1, 2, 1), windows(CUBE, 2, 1))


def test_triangles_and_grids(device: str) -> None:
    for k in (-2, 0, 1, 3):
        assert_same(Tensor(CUBE).tril(k), np.tril(CUBE, k))
        assert_same(Tensor(CUBE).triu(k), np.triu(CUBE, k))
    for indexing in ("ij", "xy"):
        found = Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]), Tensor([6]), indexing=indexing)
        expected = np.meshgrid([1, 2], [3, 4, 5], [6], indexing=indexing)  # type: ignore[call-overload]
        for part, wanted in zip(found, expected, strict=True):
            assert_same(part, wanted)


def test_symbolic_sizes(device: str) -> None:
    size = Variable("n", 1, 10)
    full = np.arange(20.0).reshape(2, 10)
    for count in (1, 3, 10):
        bound = size.bind(count)
        x = Tensor(full).shrink((None, (0, bound)))
        assert x.shape == (2, bound)
        assert_same(x, full[:, :count])
        assert_same(x + 1, full[:, :count] + 1)
        assert_same(x.sum(1), full[:, :count].sum(1))
        assert_same(x.mean(1), full[:, :count].mean(1))
        assert_same(x @ x.T, full[:, :count] @ full[:, :count].T)
        assert_same(x.cat(x, dim=1), np.concatenate([full[:, :count]] * 2, 1))
        assert_same(x.softmax(1).sum(1).round(), [1, 1])
        assert_same(x.argmax(1), [count - 1] * 2)
        assert_same(Tensor(full)[:, : size.bind(count)] * 2, full[:, :count] * 2)
        part = Tensor(full[:, :count].copy()).reshape(2, bound)
        assert_same(part * part, full[:, :count] ** 2)
        assert_same(Tensor.ones(2, bound) * 3, np.full((2, count), 3.0))
        assert_same(Tensor.arange(bound), np.arange(count))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16, np.bool_, np.float64])
@pytest.mark.parametrize("size", [1, 5, 16, 33, 200])
def test_flipped_vectors(device: str, dtype: type, size: int) -> None:
    array = (np.random.default_rng(0).standard_normal((3, size)) * 50).astype(dtype)
    x = Tensor(array, device=device)
    flipped = array[:, ::-1]
    np.testing.assert_array_equal(x.flip(1).numpy(), flipped)
    sides = ((0, 0), (2, 3))
    np.testing.assert_array_equal(x.pad((2, 3)).flip(1).numpy(), np.pad(array, sides)[:, ::-1])
    np.testing.assert_array_equal(x.flip(1).pad((2, 3)).numpy(), np.pad(flipped, sides))


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 3)])
def test_single_elements_of_a_padded_tensor(device: str, shape: tuple[int, ...]) -> None:
    """The border is not the element beside it, whatever is computed of it."""
    array = np.arange(1.0, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    padded = np.pad(array, 1)
    x = Tensor(array, requires_grad=True)
    frame = x.pad(((1, 1),) * len(shape))
    places = list(np.ndindex(*padded.shape))
    elements = Tensor.stack(*[frame[place] * 2 + 1 for place in places])
    assert_same(elements, np.stack([padded[place] * 2 + 1 for place in places]))
    weights = np.arange(len(places), dtype=np.float32)
    (elements * Tensor(weights)).sum().backward()
    inside = 2 * weights.reshape(padded.shape)[(slice(1, -1),) * len(shape)]
    assert x.grad is not None
    assert_same(x.grad, inside)


def test_a_border_that_a_variable_moves(device: str) -> None:
    variable = Variable("before", 0, 4)
    array = np.array([0.7, -1.2, 0.4], np.float32)
    for before in range(5):
        n = variable.bind(before)
        moved = Tensor(array).pad(((n, 4 - n),))
        expected = np.pad(array, (before, 4 - before)) + 1
        elements = [(moved[place] + 1).item() for place in range(7)]
        np.testing.assert_array_equal(np.array(elements, np.float32), expected)


@pytest.mark.parametrize("dtype", sorted({*MANY_DTYPES}))
def test_movements_of_every_dtype(device: str, dtype: str) -> None:
    """Those that NumPy does not know as well."""
    array = np.arange(24).reshape(4, 6) % 5
    functions = [
        lambda x: x.unfold(0, 2, 1),
        lambda x: x.pad(((0, 1), (0, 0))).unfold(1, 3, 2),
        lambda x: x[::-1, 1::2].T,
        lambda x: x.pad(((1, 0), (0, 2)))[:, 3:],
        lambda x: x.reshape(2, 12)[:, None].expand(2, 3, 12),
        lambda x: x.repeat(2, 1).roll(1, 0),
        lambda x: x.diagonal(),
    ]
    source = Tensor(array, dtype=dtype)
    plain = source.float()  # the numbers as the dtype rounds them
    for function in functions:
        np.testing.assert_array_equal(function(source).float().numpy(), function(plain).numpy())
