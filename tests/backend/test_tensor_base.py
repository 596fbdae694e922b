"""Making tensors, what they say of themselves, and getting data back."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule.dtype import DType, dtypes
from ferrule.fusion.graph import toposort
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.transforms import grad


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (3, dtypes.int32, ()),
        (2.5, dtypes.float32, ()),
        (True, dtypes.bool, ()),
        ([1, 2, 3], dtypes.int32, (3,)),
        ([1.0, 2], dtypes.float32, (2,)),
        ([True, False], dtypes.bool, (2,)),
        ([True, 2], dtypes.int32, (2,)),
        ([[1], [2]], dtypes.int32, (2, 1)),
        (((1.5,),), dtypes.float32, (1, 1)),
        ([], dtypes.float32, (0,)),
        ([[], []], dtypes.float32, (2, 0)),
        (range(4), dtypes.int32, (4,)),
        (b"\x01\xff", dtypes.uint8, (2,)),
        (np.float64(2), dtypes.float64, ()),
        ([np.float32(1), np.float32(2)], dtypes.float32, (2,)),
        (np.zeros((2, 0, 3), np.int16), dtypes.int16, (2, 0, 3)),
        ([np.array([1, 2], np.int16), np.array([3, 4], np.int16)], dtypes.int16, (2, 2)),
        ((np.ones((2, 3)), np.zeros((2, 3), np.float32)), dtypes.float64, (2, 2, 3)),
    ],
)
def test_data(device: str, data: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    x = Tensor(data)
    assert (x.dtype, x.shape, x.device) == (dtype, shape, device)
    expected = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.array(data)
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_arrays_of_every_dtype(device: str, dtype: DType) -> None:
    array = np.array([[1, 0, 2], [3, 1, 0]]).astype(dtype.np)
    x = Tensor(array)
    assert x.dtype is dtype
    found = x.numpy()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(Tensor(array[:, ::-1].T).numpy(), array[:, ::-1].T)
    converted = Tensor([[1, 0, 2], [3, 1, 0]], dtype=dtype)
    assert converted.dtype is dtype
    np.testing.assert_array_equal(converted.numpy(), array)


def test_tensors_of_tensors(device: str) -> None:
    x = Tensor([1.5, 2.5])
    assert Tensor(x).tolist() == [1.5, 2.5]
    assert Tensor(x, dtype="int32").tolist() == [1, 2]
    assert Tensor(x, device="NUMPY").device == "NUMPY"


def test_attributes(device: str) -> None:
    x = Tensor(np.zeros((2, 3), np.float64))
    assert (x.ndim, x.dim(), x.numel(), len(x)) == (2, 2, 6, 2)
    assert (x.size(), x.size(1), x.size(-2)) == ((2, 3), 3, 2)
    assert (x.element_size(), x.itemsize, x.nbytes) == (8, 8, 48)
    assert x.is_floating_point()
    assert repr(x + 1) == f"<Tensor (2, 3) dtypes.float64 on {device}, lazy ADD>"
    assert "requires_grad=True" in repr(Tensor([1.0], requires_grad=True))
    assert {x: 1}[x] == 1


def test_single_values(device: str) -> None:
    assert Tensor([[7]]).item() == 7
    assert isinstance(Tensor([7]).item(), int)
    assert isinstance(Tensor([7.0]).item(), float)
    assert isinstance(Tensor([True]).item(), bool)
    assert (int(Tensor([7.9])), float(Tensor(2)), bool(Tensor([0.0]))) == (7, 2.0, False)
    assert Tensor(3).tolist() == 3


def test_host_protocols(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]])
    np.testing.assert_array_equal(np.asarray(x), [[1, 2], [3, 4]])
    assert np.asarray(x, np.float64).dtype == np.float64
    assert x.data().tolist() == [[1, 2], [3, 4]]
    assert x.data().readonly
    assert x.tolist() == [[1, 2], [3, 4]]


def test_constants(device: str) -> None:
    assert Tensor.zeros(2, 3).tolist() == [[0.0] * 3] * 2
    assert Tensor.ones((2,), dtype="int8").tolist() == [1, 1]
    assert Tensor.full((2,), 7).dtype is dtypes.int32
    assert Tensor.full(2, math.inf).tolist() == [math.inf] * 2
    assert Tensor.full((1,), True).dtype is dtypes.bool
    assert Tensor.empty(3, 4).numpy().shape == (3, 4)
    assert Tensor.zeros().shape == ()
    x = Tensor([[1, 2]])
    assert (x.zeros_like().tolist(), x.ones_like().tolist()) == ([[0, 0]], [[1, 1]])
    assert x.full_like(2.5, dtype=dtypes.float16).tolist() == [[2.5, 2.5]]
    assert Tensor.zeros(2, requires_grad=True).requires_grad


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_constants_of_other_libraries_numbers(device: str, dtype: DType) -> None:
    """A number of NumPy has a dtype, as a tensor has; only Python's numbers take the default."""
    for number in (dtype.np(1), np.array(1, dtype.np), Tensor(1, dtype=dtype)):
        assert Tensor.full((2,), number).dtype is dtype
        for given in (dtypes.int32, dtypes.float32, dtypes.bool):
            made = Tensor.full((3,), number, dtype=given)
            assert (made.dtype, made.tolist()) == (given, [1, 1, 1])
        assert Tensor([2.5, 3.5]).full_like(number).tolist() == [1.0, 1.0]


def test_constants_made_of_arrays_and_tensors(device: str) -> None:
    row = np.array([1, 2, 3])
    for value in (row, Tensor(row)):
        assert Tensor.full((2, 3), value).tolist() == np.full((2, 3), row).tolist()
        with pytest.raises(ShapeError, match="does not broadcast"):
            Tensor.full((2,), value)
    with pytest.raises(OverflowError):
        Tensor.full((2,), np.array(300), dtype=dtypes.uint8)
    number = Tensor(5)
    filled = Tensor.full((2,), number)
    filled[0] = 1
    number.assign(7)
    assert (filled.tolist(), number.item()) == ([1, 5], 7)
    slope = grad(lambda x: (Tensor.full((3,), x) * Tensor([1.0, 2.0, 3.0])).sum())
    assert slope(Tensor(2.0)).item() == 6


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float64, np.float16, np.array, Tensor])
def test_ranges_take_any_numbers(device: str, kind: Callable[[int], Any]) -> None:
    whole = kind not in (np.float64, np.float16)
    found = Tensor.arange(kind(2), kind(7), kind(2))
    assert found.tolist() == [2, 4, 6]
    assert found.dtype is (dtypes.int32 if whole else dtypes.float32)
    assert Tensor.linspace(kind(0), kind(2), 3).tolist() == [0.0, 1.0, 2.0]
    if whole:
        assert set(Tensor.randint(50, low=kind(3), high=kind(5)).tolist()) == {3, 4}


@pytest.mark.parametrize(
    "arguments", [(5,), (2, 7), (0, 10, 3), (5, 0, -2), (3, 3), (5, 1), (0.5, 3), (0, 1, 0.25)]
)
def test_arange(device: str, arguments: tuple[float, ...]) -> None:
    found, expected = Tensor.arange(*arguments), np.arange(*arguments)
    assert found.dtype is (dtypes.int32 if expected.dtype == np.int64 else dtypes.float32)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_sequences(device: str) -> None:
    np.testing.assert_array_equal(Tensor.arange(9000).numpy(), np.arange(9000))
    assert Tensor.arange(1 << 40, (1 << 40) + 3, dtype="int64").tolist()[-1] == (1 << 40) + 2
    assert Tensor.arange(3, dtype="float64").dtype is dtypes.float64
    for steps in (0, 1, 2, 7):
        found = Tensor.linspace(-1, 2, steps, dtype="float64").numpy()
        np.testing.assert_allclose(found, np.linspace(-1, 2, steps)[:steps], rtol=1e-15)
    for n, m in ((3, None), (2, 4), (4, 2), (0, 0), (1, 1), (0, 3)):
        np.testing.assert_array_equal(Tensor.eye(n, m).numpy(), np.eye(n, m))


def test_moving_between_devices(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    for other in ("NUMPY", "CPU"):
        y = x.to(other)
        assert y.device == other
        assert y.tolist() == [1.0, 2.0]
        assert (y * 2).to(device).tolist() == [2.0, 4.0]
    assert x.to(device) is x
    assert x.to(None) is x
    (x.to("NUMPY") ** 3).to("CPU").sum().backward()
    assert x.grad is not None
    assert x.grad.device == device
    assert x.grad.tolist() == [3.0, 12.0]


def test_realize_takes_several(device: str) -> None:
    x, y = Tensor([1]) + 1, Tensor([2]) + 1
    assert x.realize(y) is x
    assert x.lazydata.realized is not None
    assert y.lazydata.realized is not None
    assert Tensor.realize(y, x) is y


def test_replace_and_clone(device: str) -> None:
    x, y = Tensor([1, 2]), Tensor([3, 4, 5])
    view = x[:1]
    assert x.replace(y) is x
    assert x.tolist() == [3, 4, 5]
    x[0] = 9
    assert y.tolist() == [9, 4, 5]
    assert view.tolist() == [1]
    z = y.clone()
    z += 1
    assert y.tolist() == [9, 4, 5]


def test_copies_and_pickles(device: str) -> None:
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.requires_grad
        assert y.is_leaf
        assert y.device == device
        with Tensor.no_grad():
            y += 1
        assert (x.tolist(), y.tolist()) == ([[1.0, 2.0]], [[2.0, 3.0]])
    assert copy.deepcopy(x * 2).requires_grad is None
    half = Tensor([0.5], dtype="bfloat16")
    assert pickle.loads(pickle.dumps(half)).dtype is dtypes.bfloat16
    assert copy.copy(x).tolist() == x.tolist()


def test_comparing_with_none() -> None:
    assert (Tensor([1, 2]) == None) is False  # noqa: E711
    assert (Tensor([1, 2]) != None) is True  # noqa: E711


def test_training_mode() -> None:
    assert not Tensor.training
    with Tensor.train():
        assert Tensor.training
        with Tensor.train(False):
            assert not Tensor.training
        assert Tensor.training
    assert not Tensor.training

    @Tensor.train()
    def step() -> bool:
        return Tensor.training

    assert step()
    Tensor.training = True
    assert Tensor([1.0]).training
    Tensor.training = False


def test_symbolic_numbers(device: str) -> None:
    n = Variable("n", 0, 20)
    assert (Tensor([1, 2]) + n.bind(5)).tolist() == [6, 7]
    assert Tensor(n.bind(7)).item() == 7
    assert Tensor.full((2,), n.bind(3)).tolist() == [3, 3]


def test_a_long_chain_of_operations() -> None:
    """No step recurses as deep as the graph, or as a kernel."""
    x = Tensor([1.0, 2.0])
    y = x
    for i in range(3000):
        y = (y + x) * 0.5 if i % 2 else y - x
    expected = np.array([1.0, 2.0], np.float32)
    z = expected
    for i in range(3000):
        z = (z + expected) * np.float32(0.5) if i % 2 else z - expected
    np.testing.assert_array_equal(y.numpy(), z)


def test_to_a_device_a_dtype_or_what_another_tensor_has() -> None:
    x = Tensor([1.5, 2.5], device="CPU")
    assert x.to("CPU") is x.to(None) is x.to(x) is x
    assert x.to(dtypes.int32).tolist() == x.to(dtype="int32").tolist() == [1, 2]
    moved = x.to("NUMPY", dtypes.int8)
    assert (moved.device, moved.dtype, moved.tolist()) == ("NUMPY", dtypes.int8, [1, 2])
    assert moved.to(dtype=dtypes.int16).device == "NUMPY"
    assert x.to(moved).device == "NUMPY"
    copied = x.to("CPU", copy=True)
    copied += 1
    assert x.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("written", [True, False])
def test_a_number_that_each_turn_of_a_loop_makes_anew_is_stored(written: bool) -> None:
    """The bias of a regression by hand: kernels compute it as they go, each turn's from the last.

    Else the graph would grow with each turn, and each turn compile a kernel of its own.
    """
    x = Tensor(np.linspace(-1, 1, 24, dtype=np.float32))
    bias, expected = Tensor.zeros(1), 0.0
    sizes = []
    for _ in range(9):
        error = (x * 3 + 1 - bias).square().mean()
        step = (x * 3 + 1 - bias).mean() * 0.2
        if written:
            bias.assign(bias + step)
        else:
            bias = bias + step
        assert abs(error.item() - ((x.numpy() * 3 + 1 - expected) ** 2).mean()) < 1e-5
        expected += 0.2 * (1 - expected)
        sizes.append(len(toposort([bias.lazydata])))
    assert abs(bias.item() - expected) < 1e-6
    assert sizes[-1] == sizes[-4] < 2 * max(sizes[:3])


def test_a_tensor_is_freed_past_few_classes() -> None:
    """Python walks along the first bases for each object that it frees."""
    walked: list[type] = [Tensor]
    while walked[-1].__base__ is not None:
        walked.append(walked[-1].__base__)
    assert len(walked) <= 3
