"""PyTorch's checkpoints, read without executing what is pickled in them.

A checkpoint is a zip archive: `data.pkl` says how the tensors are put together, and there is a
member for each storage. The unpickler here knows what a state of tensors needs. Objects of other
classes become stand-ins, which hold nothing.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.nn.state.files import (
    Archive,
    Array,
    PathLike,
    StateError,
    is_index,
    lazy_tensor,
    load_shards,
    mapped,
)
from ferrule.tensor import Tensor

_STORAGES = {
    "BoolStorage": dtypes.bool,
    "ByteStorage": dtypes.uint8,
    "CharStorage": dtypes.int8,
    "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32,
    "LongStorage": dtypes.int64,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64,
    "UntypedStorage": dtypes.uint8,
}
_DTYPES = {dtype.numpy_name: dtype for dtype in dtypes.all}  # which are PyTorch's names too

# Classes of Python that hold values and do nothing else.
_PLAIN = {
    kind.__name__: kind
    for kind in (bool, complex, dict, float, frozenset, int, list, set, slice, str, tuple)
}

# Tensors of PyTorch that are none here, and what to save instead.
_REFUSED = {
    "ComplexFloatStorage": "it holds complex numbers: save torch.view_as_real(x)",
    "ComplexDoubleStorage": "it holds complex numbers: save torch.view_as_real(x)",
    "_rebuild_qtensor": "it holds a quantised tensor: save x.int_repr(), with scale and zero point",
    "_rebuild_sparse_tensor": "it holds a sparse tensor: save x.to_dense()",
    "_rebuild_nested_tensor": "it holds a nested tensor: save its parts as a list",
    "_rebuild_meta_tensor_no_storage": "it holds a tensor without values, on the device meta",
}

# The errors of an unpickler in bytes that are no pickle.
_DAMAGE = (
    pickle.UnpicklingError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
)


def torch_load(path: PathLike, device: str | None = None) -> Any:
    """Load a file that `torch.save` wrote: usually a dict of tensors by name, read lazily.

    Of a model in several files, `path` is their index, `pytorch_model.bin.index.json`.

    Tensors become ferrule's; numbers, strings and containers stay as they are, and a device is its
    name. Nothing in the file is executed: what is an object of another class, such as the settings
    of a run, becomes a stand-in without contents, and a whole model is refused. Tensors that
    shared a storage get memory of their own.

    Raises `FileNotFoundError`, and `StateError` for a damaged file, PyTorch's formats before 1.6,
    and tensors that ferrule does not have (complex, sparse, quantised); where the bytes of a tensor
    are damaged, when it is realised.
    """
    data = mapped(path)
    if is_index(data):
        return load_shards(path, data, lambda shard: torch_load(shard, device))
    _check_kind(path, data)
    archive = Archive(path, "PyTorch checkpoint")
    pickles = [name for name in archive.members if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise StateError(f"{path} is no PyTorch checkpoint: there is no data.pkl in it")
    folder = pickles[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in archive.members and archive.contents(order).tobytes() != sys.byteorder.encode():
        raise StateError(f"{path} was written on a machine with another order of bytes")
    content = io.BytesIO(archive.contents(pickles[0]).tobytes())
    try:
        found = _Unpickler(content, archive, folder, device).load()
    except StateError:
        raise
    except _DAMAGE as error:
        raise StateError(f"{path}: data.pkl is damaged: {error}") from error
    if isinstance(found, Unread) or (isinstance(found, type) and issubclass(found, Unread)):
        raise StateError(f"{path} holds {found!r} and no tensors by name; {_SAVE_STATE}")
    return found


_SAVE_STATE = "save model.state_dict() instead"


def _check_kind(path: PathLike, data: Array) -> None:
    start = data[:9].tobytes()
    if start[:4] == b"PK\x03\x04":
        return
    if start[8:] == b"{":
        raise StateError(f"{path} is no PyTorch checkpoint; safe_load reads safetensors files")
    if start[:1] == b"\x80":
        raise StateError(
            f"{path} is a bare pickle, as PyTorch wrote before 1.6; torch.save it again with a"
            " newer PyTorch, or as safetensors"
        )
    raise StateError(f"{path} is no PyTorch checkpoint: it is no zip archive")


class Unread:
    """A stand-in for an object in a checkpoint whose class is not PyTorch's, and was not called.

    All contents of the object are ignored.
    """

    kind = "object"

    def __new__(cls, *_: Any, **__: Any) -> Unread:
        """A stand-in, whatever the class it stands for is made from."""
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """For classes that are lists."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self!r} has no attribute {name!r}: only tensors, numbers, strings and containers of"
            " a checkpoint are read"
        )

    def __repr__(self) -> str:
        return f"<unread {self.kind}>"


class _Storage(NamedTuple):
    """A storage: its member of the archive, and the type of its elements."""

    member: str
    dtype: DType
    size: int


@final
class _Unpickler(pickle.Unpickler):
    """Knows tensors, storages and dtypes, and `OrderedDict`; refuses every other name."""

    def __init__(self, file: io.BytesIO, archive: Archive, folder: str, device: str | None) -> None:
        super().__init__(file)
        self._archive = archive
        self._folder = folder
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self._typed_tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
            ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
            ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
            ("torch", "Tensor"): Tensor,
            ("torch.nn.parameter", "Parameter"): Tensor,
            ("torch.nn.parameter", "Buffer"): Tensor,
            ("torch", "device"): _device_name,
            ("collections", "Counter"): Counter,
            ("collections", "defaultdict"): defaultdict,
            ("_codecs", "encode"): _encoded,
            ("numpy", "dtype"): _NumpyType,
            ("numpy.core.multiarray", "scalar"): _numpy_number,
            ("numpy._core.multiarray", "scalar"): _numpy_number,
        }
        if (module, name) in known:
            return known[module, name]
        if module in ("builtins", "__builtin__") and name in _PLAIN:
            return _PLAIN[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module.split(".")[0] != "torch":
            return type("Unread", (Unread,), {"kind": f"{module}.{name}"})
        reason = _REFUSED.get(
            name, f"only tensors, numbers, strings and containers are read; {_SAVE_STATE}"
        )
        raise StateError(f"{self._archive.path} needs {module}.{name}: {reason}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size = pid
        member = f"{self._folder}data/{key}"
        if kind != "storage" or not isinstance(dtype, DType):
            raise pickle.UnpicklingError(f"{pid} is no storage")
        info = self._archive.members.get(member)
        if info is None:
            raise pickle.UnpicklingError(f"there is no {member}")
        if info.file_size != size * dtype.itemsize:
            raise pickle.UnpicklingError(
                f"{member} has {info.file_size} bytes, not {size * dtype.itemsize}"
            )
        return _Storage(member, dtype, size)

    def _tensor(
        self,
        storage: _Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool = False,
        hooks: Any = None,
        marks: Any = None,
        *_: Any,
    ) -> Tensor:
        read = self._strided(storage, storage.dtype, offset, shape, strides)
        # PyTorch may note that a tensor is the negative of what its storage holds.
        return -read if marks and marks.get("neg") else read

    def _typed_tensor(self, storage: _Storage, *given: Any) -> Tensor:
        offset, shape, strides, _requires_grad, _hooks, dtype, *_ = given
        return self._strided(storage, dtype, offset, shape, strides)

    def _strided(
        self,
        storage: _Storage,
        dtype: DType,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> Tensor:
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise pickle.UnpicklingError(f"a tensor has shape {shape} and strides {strides}")
        held = storage.size * storage.dtype.itemsize // dtype.itemsize
        steps = zip(shape, strides, strict=True)
        last = offset + sum((size - 1) * stride for size, stride in steps)
        if 0 not in shape and last >= held:
            raise pickle.UnpicklingError(f"a tensor reaches beyond {storage.member}")
        read = _reader(self._archive, storage.member, dtype, (offset, shape, strides))
        return lazy_tensor(read, shape, dtype, self._device)


def _reader(
    archive: Archive, member: str, dtype: DType, view: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> Callable[[], Array]:
    offset, shape, strides = view

    def read() -> Array:
        data = archive.contents(member)
        whole = data.size // dtype.itemsize * dtype.itemsize
        # As integers: strides are NumPy's to take, and it does not know all dtypes.
        elements = np.frombuffer(data[:whole], f"u{dtype.itemsize}")[offset:]
        steps = [stride * dtype.itemsize for stride in strides]
        part = np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)
        return np.array(part, order="C").view(dtype.np)

    return read


def _parameter(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


def _of_type(rebuild: Callable[..., Any], _: Any, arguments: tuple[Any, ...], *__: Any) -> Any:
    """A tensor of a class of its own, as a plain one."""
    return rebuild(*arguments)


def _device_name(kind: str, index: int | None = None) -> str:
    return kind if index is None else f"{kind}:{index}"


def _encoded(text: str, encoding: str) -> bytes:
    """How pickles of Python 2 spell bytes."""
    return text.encode(encoding)


class _NumpyType:
    """A type of NumPy, as far as numbers of it need it."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # What comes second is the order of bytes.
        self.code = state[1] + self.code


def _numpy_number(kind: _NumpyType, data: Any = b"") -> Any:
    """A number of NumPy as one of Python."""
    return np.frombuffer(data, kind.code)[0].item()
