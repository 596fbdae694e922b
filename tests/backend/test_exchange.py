"""Tensors and other libraries: who shares memory with whom, for how long, and who sees a write."""

import copy
import gc
import operator as op
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Tensor, TinyJit, dtypes
from ferrule.dtype import DType, DTypeError
from ferrule.jit import JitError

NARROW = [dtype for dtype in dtypes.all if dtype.fmt is None]
PLAIN = [dtype for dtype in dtypes.all if dtype.fmt is not None]

pytestmark = pytest.mark.host_memory


def address(x: Tensor) -> int:
    return int(x.numpy(copy=False).ctypes.data)


def array_of(dtype: DType, *shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype.np)


# *** from NumPy ***


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_an_array_is_borrowed_whatever_its_dtype(device: str, dtype: DType) -> None:
    array = array_of(dtype, 2, 3)
    x = Tensor.from_numpy(array, copy=False)
    assert x.dtype is dtype
    assert address(x) == array.ctypes.data
    assert x.numpy().tobytes() == array.tobytes()


slices = st.builds(
    slice,
    st.none() | st.integers(-5, 5),
    st.none() | st.integers(-5, 5),
    st.sampled_from([None, 1, 2, -1, -3]),
)


@given(st.permutations(range(3)), st.tuples(slices, slices, slices), st.booleans())
def test_any_strides_are_shared(order: list[int], key: tuple[slice, ...], repeat: bool) -> None:
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5).transpose(order)[key]
    if repeat:
        array = np.broadcast_to(array, (2, *array.shape))
    x = Tensor.from_numpy(array, copy=False)
    assert x.numpy().tolist() == array.tolist()
    assert (x * 2).numpy().tolist() == (array * 2).tolist()


def test_zeros_by_nothing_and_numbers(device: str) -> None:
    for array in (np.zeros((0, 3), np.float32), np.array(5.0), np.array(True)):
        x = Tensor.from_numpy(array, copy=False)
        assert (x.shape, x.tolist()) == (array.shape, array.tolist())


@pytest.mark.parametrize("share", [Tensor.from_numpy, Tensor.from_dlpack])
def test_a_number_without_axes_is_shared(device: str, share: Callable[..., Tensor]) -> None:
    array = np.array(2.0)
    x = share(array, copy=False)
    array[()] = 7
    assert (x.shape, x.item()) == ((), 7)


def test_the_lender_keeps_its_values(device: str) -> None:
    array = np.ones(3, np.float32)
    x = Tensor.from_numpy(array)
    view = x[:2]
    x += 1
    view *= 3
    assert x.tolist() == [6, 6, 2]
    assert array.tolist() == [1, 1, 1]


def test_a_tensor_sees_what_the_lender_writes(device: str) -> None:
    array = np.ones(3, np.float32)
    x = Tensor.from_numpy(array).realize()
    array[1] = 5
    assert x.tolist() == [1, 5, 1]


def test_a_read_only_array_is_borrowed(device: str) -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    x = Tensor.from_numpy(array, copy=False)
    assert address(x) == array.ctypes.data
    x.assign([1, 2, 3]).realize()
    assert (x.tolist(), array.tolist()) == ([1, 2, 3], [1, 1, 1])


def test_copies_where_asked_or_needed(device: str) -> None:
    array = np.ones(3, np.float32)
    x = Tensor.from_numpy(array, copy=True)
    array[0] = 7
    assert x.tolist() == [1, 1, 1]
    unaligned = np.zeros(9, np.uint8)[1:].view(np.float32)
    assert Tensor.from_numpy(unaligned).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"\[from_numpy\] an array of float32, shape \(2,\)"):
        Tensor.from_numpy(unaligned, copy=False)


def test_borrowed_memory_lives_as_long_as_it_is_used(device: str) -> None:
    array = np.ones(100, np.float32)
    alive = weakref.ref(array)
    y = Tensor.from_numpy(array) + 1
    del array
    gc.collect()
    assert alive() is not None
    assert y.tolist() == [2] * 100
    y.realize()
    gc.collect()
    assert alive() is None


def test_buffers(device: str) -> None:
    data = bytearray(b"\x01\x00\x02\x00\x03\x00")
    x = Tensor.frombuffer(data, dtypes.int16, offset=2)
    assert x.tolist() == [2, 3]
    assert Tensor.frombuffer(data, "int16", count=1).tolist() == [1]
    with pytest.raises(ValueError, match="buffer size must be a multiple"):
        Tensor.frombuffer(data, dtypes.float32)


def test_replays_take_borrowed_arguments(device: str) -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return (x * 2).realize()

    results = [double(Tensor.from_numpy(np.full(4, n, np.float32))) for n in range(5)]
    assert [y.tolist()[0] for y in results] == [0, 2, 4, 6, 8]


def test_replays_do_not_write_to_the_lender(device: str) -> None:
    @TinyJit
    def count(x: Tensor) -> Tensor:
        x += 1
        return x.realize()

    for n in range(5):
        array = np.full(4, n, np.float32)
        x = Tensor.from_numpy(array)
        count(x)
        assert (x.tolist()[0], array[0]) == (n + 1, n)


def test_numpy_integers_are_sizes_and_axes(device: str) -> None:
    two = np.int64(2)
    x = Tensor([[1, 2], [3, 4]])
    shapes = [
        x.reshape(two, two),
        Tensor.zeros(two, two),
        Tensor.full((two, two), 1),
        x[:1].expand(two, two),
        x.sum(np.int64(1)).broadcast_to((two, two)),
    ]
    assert [y.shape for y in shapes] == [(2, 2)] * 5
    assert all(type(size) is int for y in shapes for size in y.shape)


# *** to NumPy ***


def test_asarray_shares_and_array_copies(device: str) -> None:
    x = (Tensor([1.0, 2.0]) * 2).realize()
    shared = np.asarray(x)
    assert shared.ctypes.data == address(x)
    assert not shared.flags.writeable
    own = np.array(x)
    assert own.flags.writeable
    assert own.ctypes.data != address(x)
    x += 1
    assert (x.tolist(), shared.tolist(), own.tolist()) == ([3, 5], [2, 4], [2, 4])


def test_asarray_converts(device: str) -> None:
    x = Tensor([1.5, 2.5])
    assert np.asarray(x, np.int64).tolist() == [1, 2]
    assert x.__array__(np.float64).dtype == np.float64
    assert x.__array__(np.float32, copy=True).flags.writeable
    with pytest.raises(ValueError, match="only as a copy"):
        x.__array__(np.float64, copy=False)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_asarray_of_what_numpy_lacks(device: str, dtype: DType) -> None:
    array = array_of(dtype, 3)
    found = np.asarray(Tensor(array))
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_the_array_interface_keeps_the_memory(device: str) -> None:
    class Other:
        def __init__(self, interface: dict[str, Any]) -> None:
            self.__array_interface__ = interface

    x = Tensor([[1, 2], [3, 4]]) + 1
    array = np.asarray(Other(x.__array_interface__))
    del x
    gc.collect()
    Tensor.zeros(2, 2).contiguous().realize()
    assert array.tolist() == [[2, 3], [4, 5]]
    with pytest.raises(AttributeError, match="bfloat16"):
        _ = Tensor([1.0]).bfloat16().__array_interface__


@pytest.mark.host_memory
def test_a_buffer_shares_the_memory(device: str) -> None:
    """`np.asarray` takes it where there is the protocol: from Python 3.12 on it had a copy."""
    x = (Tensor([1.0, 2.0]) * 2).realize()
    assert np.asarray(x.__buffer__(0)).ctypes.data == address(x)
    buffer = Tensor([1.0]).__buffer__(0)
    assert buffer.readonly


def test_the_buffer_protocol(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]])
    buffer = x.__buffer__(0)
    assert buffer.tolist() == [[1, 2], [3, 4]]
    assert buffer.readonly
    with pytest.raises(BufferError, match="read-only"):
        x.__buffer__(1)
    with pytest.raises(BufferError, match="bfloat16"):
        x.bfloat16().__buffer__(0)
    if sys.version_info >= (3, 12):
        assert memoryview(x).tolist() == [[1, 2], [3, 4]]


def test_a_capture_hands_nothing_out(device: str) -> None:
    def shared(x: Tensor) -> Tensor:
        np.asarray(x + 1)
        return x.realize()

    jit = TinyJit(shared)
    jit(Tensor([1.0]))
    with pytest.raises(JitError):
        jit(Tensor([1.0]))


# *** DLPack ***


@pytest.mark.parametrize("dtype", PLAIN, ids=lambda dtype: dtype.name)
def test_numpy_takes_a_capsule(device: str, dtype: DType) -> None:
    x = Tensor(array_of(dtype, 2, 3))
    array = np.from_dlpack(x)
    assert array.ctypes.data == address(x)
    assert not array.flags.writeable
    assert (array.dtype, array.tolist()) == (np.dtype(dtype.np), x.tolist())


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_a_tensor_takes_a_tensor(device: str, dtype: DType, version: tuple[int, int]) -> None:
    class Producer:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __dlpack__(self, **_: Any) -> object:
            return self.x.__dlpack__(max_version=version)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.x.__dlpack_device__()

    x = Tensor(array_of(dtype, 2, 3))
    y = Tensor.from_dlpack(Producer(x), copy=False)
    assert address(y) == address(x)
    assert y.dtype is dtype
    assert y.numpy().tobytes() == x.numpy().tobytes()
    z = Tensor.from_dlpack(x, copy=True)
    assert address(z) != address(x)


def test_a_capsule_keeps_its_values(device: str) -> None:
    x = (Tensor([1.0, 2.0]) + 1).realize()
    array = np.from_dlpack(x)
    x += 1
    assert (x.tolist(), array.tolist()) == ([3, 4], [2, 3])
    del x
    gc.collect()
    (Tensor([7.0, 7.0]) * 1.0).realize()
    assert array.tolist() == [2, 3]


def test_a_capsule_that_nobody_takes_lets_go(device: str) -> None:
    x = (Tensor([1.0, 2.0]) + 1).realize()
    buffer = x.lazydata.realized
    assert buffer is not None
    for version in (None, (1, 0)):
        capsule = x.__dlpack__(max_version=version)
        assert buffer.exports == 1
        del capsule
        gc.collect()
        assert buffer.exports == 0


def test_a_copy_is_the_consumers_own(device: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    array = np.from_dlpack(x, copy=True)
    assert array.flags.writeable
    array[0] = 9
    assert x.tolist() == [1, 2]


def test_results_of_replays_keep_their_values_outside(device: str) -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return ((x * 2).contiguous() + 1).realize()

    arrays = [np.from_dlpack(double(Tensor([float(n)]))) for n in range(6)]
    assert [array[0] for array in arrays] == [1, 3, 5, 7, 9, 11]


def test_producers_elsewhere_are_asked_for_a_copy() -> None:
    class Gpu:
        def __init__(self, moves: bool) -> None:
            self.moves = moves

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **wanted: Any) -> object:
            if not self.moves:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            assert wanted["dl_device"] == (1, 0)
            return np.arange(3.0).__dlpack__(max_version=wanted["max_version"])

    assert Tensor.from_dlpack(Gpu(True)).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match=r"DLPack device \(2, 0\) comes .* device \(1, 0\), only"):
        Tensor.from_dlpack(Gpu(True), copy=False)
    with pytest.raises(BufferError, match=r"a Gpu on DLPack device \(2, 0\)"):
        Tensor.from_dlpack(Gpu(False))


def test_what_cannot_be_exchanged() -> None:
    x = Tensor([1.0])
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        Tensor.from_dlpack([1])
    with pytest.raises(DTypeError, match="complex128 x 1 have no ferrule dtype"):
        Tensor.from_dlpack(np.array([1j]))
    with pytest.raises(BufferError, match=r"goes to the host.*not to \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="the host has no streams"):
        x.__dlpack__(stream=1)


# *** copies and pickles ***


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(device: str, protocol: int) -> None:
    matrix = Tensor([[1, 2], [3, 4]])
    for x in (matrix, matrix.T, matrix[1:, 0], matrix + 1, Tensor(2.5), Tensor.zeros(0, 2)):
        y = pickle.loads(pickle.dumps(x, protocol))
        assert (y.shape, y.dtype, y.device, y.tolist()) == (x.shape, x.dtype, device, x.tolist())
    parameter = pickle.loads(pickle.dumps(Tensor([1.0], requires_grad=True), protocol))
    assert parameter.is_leaf
    assert parameter.requires_grad
    parameter.sum().backward()
    assert parameter.grad.tolist() == [1]


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_pickles_out_of_band(device: str, dtype: DType) -> None:
    x = Tensor(array_of(dtype, 100))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 400
    assert sum(part.raw().nbytes for part in buffers) == x.nbytes
    y = pickle.loads(data, buffers=buffers)
    assert y.dtype is dtype
    assert y.numpy().tobytes() == x.numpy().tobytes()


def test_a_shallow_copy_shares_and_a_deep_one_does_not(device: str) -> None:
    x = Tensor([1.0, 2.0])
    near, far = copy.copy(x), copy.deepcopy(x)
    x[0] = 5
    assert (near.tolist(), far.tolist()) == ([5, 2], [1, 2])


def test_copies_of_leaves_are_leaves(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    for y in (copy.copy(x), copy.deepcopy(x)):
        assert y.is_leaf
        assert y.requires_grad
    assert copy.copy(x).grad is None
    twin = copy.deepcopy(x)
    assert twin.grad is not x.grad
    assert twin.grad.tolist() == x.grad.tolist()
    (x.grad).assign([0, 0])
    assert twin.grad.tolist() == [2, 4]
    assert copy.copy(x * 2).requires_grad
    assert not copy.deepcopy(x * 2).requires_grad


# *** Python's own protocols ***


def test_as_python_numbers(device: str) -> None:
    assert (bool(Tensor(0)), int(Tensor(2.7)), float(Tensor(3))) == (False, 2, 3.0)
    assert complex(Tensor(2.5)) == 2.5
    assert [10, 20, 30][Tensor(1)] == 20
    for x in (Tensor(True), Tensor(1.0)):
        with pytest.raises(TypeError, match="is no index"):
            range(x)
    for convert in (int, float, complex):
        with pytest.raises(ValueError, match="is not one element"):
            convert(Tensor([1, 2]))


def test_as_text(device: str) -> None:
    x = Tensor([1, 2])
    assert repr(x) == str(x) == f"Tensor([1, 2], dtype=dtypes.int32, device={device!r})"
    assert f"{x}" == str(x)
    assert f"{Tensor(2.0) + 0.5:.3f}" == "2.500"
    shown: list[str] = []

    @TinyJit
    def show(x: Tensor) -> Tensor:
        shown.append(repr(x))
        return x.realize()

    for _ in range(3):
        show(Tensor([1.0]).realize())
    assert any("realized" in text for text in shown)


def test_as_a_container(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert len(x) == 2
    assert 3 in x
    assert 5 not in x
    assert None not in x
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert x in {x}
    assert len({x, Tensor([[1, 2], [3, 4]])}) == 2


# *** other libraries ***


def test_jax_and_back() -> None:
    jax = pytest.importorskip("jax")
    x = (Tensor([[1.0, 2.0], [3.0, 4.0]]) + 1).realize()
    there = jax.dlpack.from_dlpack(x)
    assert there.unsafe_buffer_pointer() == address(x)
    x *= 0
    assert there.tolist() == [[2, 3], [4, 5]]
    for dtype in ("float32", "bfloat16", "int8", "uint32", "bool"):
        array = jax.numpy.ones((2, 3), dtype, device=jax.devices("cpu")[0])
        back = Tensor.from_dlpack(array, copy=False)
        assert address(back) == array.unsafe_buffer_pointer()
        assert (back.shape, back.dtype) == ((2, 3), dtypes.from_name(dtype))


def test_torch_and_back() -> None:
    torch = pytest.importorskip("torch")
    x = (Tensor([[1.0, 2.0], [3.0, 4.0]]) + 1).realize()
    there = torch.from_dlpack(x)
    assert there.data_ptr() == address(x)
    x *= 0
    del x
    gc.collect()
    assert there.tolist() == [[2, 3], [4, 5]]
    for name in ("float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"):
        tensor = torch.ones((2, 3), dtype=getattr(torch, name))
        back = Tensor.from_dlpack(tensor, copy=False)
        assert address(back) == tensor.data_ptr()
        assert (back.shape, back.dtype) == ((2, 3), dtypes.from_name(name))
        again = torch.from_dlpack(back)
        assert again.dtype == tensor.dtype
        assert again.data_ptr() == tensor.data_ptr()
    for tensor in (torch.arange(6).reshape(2, 3).T, torch.zeros(0, 2), torch.tensor(3)):
        assert Tensor.from_dlpack(tensor, copy=False).tolist() == tensor.tolist()
    assert Tensor(torch.ones(2, dtype=torch.bfloat16)).dtype is dtypes.bfloat16


def test_ml_dtypes_arrays_have_their_dtypes() -> None:
    assert Tensor.from_numpy(np.ones(2, ml_dtypes.bfloat16)).dtype is dtypes.bfloat16


@pytest.mark.parametrize(
    "function",
    [
        op.add,
        op.sub,
        op.mul,
        op.truediv,
        op.floordiv,
        op.mod,
        op.pow,
        op.matmul,
        op.lt,
        op.le,
        op.gt,
        op.ge,
        op.eq,
        op.ne,
        op.and_,
        op.or_,
        op.xor,
        op.lshift,
        op.rshift,
    ],
)
def test_operators_of_arrays_and_tensors_give_tensors(function: Any) -> None:
    array = np.array([[5, 3], [2, 7]], np.int32)
    other = np.array([[2, 3], [1, 4]], np.int32)
    expected = function(array, other)
    for left, right in ((array, Tensor(other)), (Tensor(array), other)):
        result = function(left, right)
        assert isinstance(result, Tensor)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    if function is not op.matmul:
        result = function(np.int32(6), Tensor(other))
        assert isinstance(result, Tensor)
        np.testing.assert_allclose(result.numpy(), function(6, other), rtol=1e-6)


def test_functions_of_numpy_give_arrays() -> None:
    array = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    x = Tensor(array)
    calls: list[Callable[[Any], Any]] = [
        np.sin,
        np.sum,
        np.mean,
        np.size,
        np.linalg.norm,
        lambda a: np.max(a, axis=0),
        lambda a: np.concatenate([a, np.ones((1, 2), np.float32), a]),
        lambda a: np.where(a > 2, a, 0),
        lambda a: np.maximum(1.5, a),
        lambda a: np.add.reduce(a),
        lambda a: np.sqrt(a, where=np.array([True, False]), out=np.zeros((2, 2), np.float32)),
    ]
    for call in calls:
        result, expected = call(x), call(array)
        assert type(result) is type(expected)
        np.testing.assert_array_equal(result, expected)
    assert (np.shape(x), np.ndim(x)) == ((2, 2), 2)


def test_what_numpy_writes_to_is_an_array() -> None:
    array = np.array([1.0, 2.0])
    same = array
    array += Tensor([1.0, 1.0])
    assert array is same
    assert same.tolist() == [2.0, 3.0]
    x = Tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"\[np.sin\] NumPy cannot write to a tensor, as `out`"):
        np.sin(array, out=x)  # type: ignore[call-overload]
