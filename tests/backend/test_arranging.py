"""Rotating, stacking, splitting, repeating: what NumPy gives under the same names."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor

CUBE = np.arange(24).reshape(2, 3, 4)
SQUARE = np.arange(9.0).reshape(3, 3)
VECTOR = np.arange(5)

ONE: dict[str, tuple[np.ndarray, Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "swapaxes": (CUBE, lambda x: x.swapaxes(0, -1), lambda a: a.swapaxes(0, -1)),
    "moveaxis": (CUBE, lambda x: x.moveaxis(0, 1), lambda a: np.moveaxis(a, 0, 1)),
    "t": (SQUARE, lambda x: x.t(), lambda a: a.T),
    "H": (SQUARE, lambda x: x.H, lambda a: a.T),
    "mH": (CUBE, lambda x: x.mH, lambda a: a.swapaxes(1, 2)),
    "adjoint": (CUBE, lambda x: x.adjoint(), lambda a: a.swapaxes(1, 2)),
    "ravel": (CUBE, lambda x: x.ravel(), np.ravel),
    "diagonal": (CUBE, lambda x: x.diagonal(1, 0, 2), lambda a: a.diagonal(1, 0, 2)),
    "diagonal below": (CUBE, lambda x: x.diagonal(-1, -1, 1), lambda a: a.diagonal(-1, -1, 1)),
    "diagonal outside": (SQUARE, lambda x: x.diagonal(7), lambda a: a.diagonal(7)),
    "fliplr": (CUBE, lambda x: x.fliplr(), np.fliplr),
    "flipud": (CUBE, lambda x: x.flipud(), np.flipud),
    "tile": (CUBE, lambda x: x.tile(2, 1), lambda a: np.tile(a, (2, 1))),
    "tile to more axes": (VECTOR, lambda x: x.tile((2, 1, 2)), lambda a: np.tile(a, (2, 1, 2))),
    "transpose without axes": (np.array(3), lambda x: x.transpose(0, -1), lambda a: a),
    "squeeze without axes": (np.array(3), lambda x: x.squeeze(0), lambda a: a),
    "unfold without axes": (np.array(3), lambda x: x.unfold(0, 1, 1), lambda a: a.reshape(1)),
    "select": (CUBE, lambda x: x.select(1, -1), lambda a: a[:, -1]),
    "narrow from the end": (VECTOR, lambda x: x.narrow(0, -3, 2), lambda a: a[-3:-1]),
    "narrow at a tensor": (VECTOR, lambda x: x.narrow(0, Tensor(1), 2), lambda a: a[1:3]),
    "repeat_interleave": (
        CUBE,
        lambda x: x.repeat_interleave(Tensor([2, 0, 3]), 1),
        lambda a: np.repeat(a, [2, 0, 3], 1),
    ),
    "repeat_interleave of all": (
        VECTOR,
        lambda x: x.repeat_interleave([0, 0, 0, 0, 0]),
        lambda a: np.repeat(a, [0] * 5),
    ),
    "repeat_interleave by one": (
        VECTOR,
        lambda x: x.repeat_interleave(np.array([3]), output_size=15),
        lambda a: np.repeat(a, 3),
    ),
    "pad": (
        VECTOR,
        lambda x: x.constant_pad_nd((2, 1), 7),
        lambda a: np.pad(a, (2, 1), constant_values=7),
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_one_tensor(device: str, name: str) -> None:
    array, mine, theirs = ONE[name]
    for tensor in (Tensor(array), Tensor(array) + 0):
        result = mine(tensor)
        expected = theirs(array)
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack", "concatenate"])
@pytest.mark.parametrize("array", [VECTOR, SQUARE, CUBE], ids=["vector", "square", "cube"])
def test_joining_a_list(device: str, name: str, array: np.ndarray) -> None:
    x, y = Tensor(array), Tensor(array * 2)
    expected = getattr(np, name)([array, array * 2])
    np.testing.assert_array_equal(getattr(Tensor, name)([x, y]).numpy(), expected)
    np.testing.assert_array_equal(getattr(x, name)(y).numpy(), expected)


def test_cat_and_stack_take_lists_as_pytorchs(device: str) -> None:
    a, b = Tensor([[1, 2]]), Tensor([[3, 4]])
    assert Tensor.cat([a, b]).tolist() == a.cat(b).tolist() == [[1, 2], [3, 4]]
    assert Tensor.cat((a, b), dim=1).tolist() == Tensor.cat([a, b], 1).tolist() == [[1, 2, 3, 4]]
    assert Tensor.stack([a, b], dim=-1).shape == Tensor.stack([a, b], -1).shape == (1, 2, 2)
    assert Tensor.concat([a, b], dim=0).shape == (2, 2)
    assert Tensor.cat([Tensor([]), a]).tolist() == [[1, 2]]


SPLITS = [
    ("tensor_split", np.array_split, VECTOR, (3,)),
    ("tensor_split", np.array_split, VECTOR, ([1, 3],)),
    ("tensor_split", np.array_split, VECTOR, ([3, 1, -1, 9],)),
    ("array_split", np.array_split, CUBE, (2, 2)),
    ("hsplit", np.hsplit, CUBE, (3,)),
    ("hsplit", np.hsplit, VECTOR, ([2],)),
    ("vsplit", np.vsplit, CUBE, (2,)),
    ("dsplit", np.dsplit, CUBE, ([1, 3],)),
]


@pytest.mark.parametrize(("name", "oracle", "array", "args"), SPLITS)
def test_splitting(device: str, name: str, oracle: Any, array: np.ndarray, args: Any) -> None:
    parts = getattr(Tensor(array), name)(*args)
    expected = oracle(array, *args)
    assert len(parts) == len(expected)
    for mine, theirs in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


@pytest.mark.parametrize("k", range(-1, 6))
def test_rot90(device: str, k: int) -> None:
    np.testing.assert_array_equal(Tensor(CUBE).rot90(k, (1, 2)).numpy(), np.rot90(CUBE, k, (1, 2)))
    np.testing.assert_array_equal(Tensor(CUBE).rot90(k, (2, 0)).numpy(), np.rot90(CUBE, k, (2, 0)))


def test_parts_are_views(device: str) -> None:
    x = Tensor(CUBE)
    x.rot90()[0, 0] = -1
    x.select(0, 1).assign(5)
    x.tensor_split(2, 2)[0][0, 0] = 7
    expected = CUBE.copy()
    np.rot90(expected)[0, 0] = -1
    expected[1] = 5
    np.array_split(expected, 2, 2)[0][0, 0] = 7
    np.testing.assert_array_equal(x.numpy(), expected)


def test_atleast(device: str) -> None:
    for array in (np.array(3), VECTOR, SQUARE, CUBE):
        for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
            assert getattr(Tensor(array), name)().shape == getattr(np, name)(array).shape
    first, second = Tensor.atleast_2d([Tensor(1), Tensor(VECTOR)])
    assert (first.shape, second.shape) == ((1, 1), (1, 5))


def test_broadcasting_and_products(device: str) -> None:
    a, b = Tensor([1, 2]), Tensor([[3], [4]])
    assert [x.tolist() for x in Tensor.broadcast_tensors(a, b)] == [
        [[1, 2], [1, 2]],
        [[3, 3], [4, 4]],
    ]
    assert Tensor.broadcast_shapes((2, 1), (1, 3), 3) == (2, 3)
    assert a.cartesian_prod(Tensor([5])).tolist() == [[1, 5], [2, 5]]
    assert Tensor.cartesian_prod([a]).tolist() == [1, 2]


def test_gradients_of_repeated_elements(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x.repeat_interleave(Tensor([2, 0, 3])) * Tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 0, 12]
