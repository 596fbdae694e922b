"""The unpickler of PyTorch's checkpoints: it knows what a state of tensors needs, and runs nothing.

Objects of other classes become stand-ins, which hold nothing.
"""

from __future__ import annotations

import pickle
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.nn.state.files import Array, PathLike, StateError, lazy_tensor
from ferrule.tensor import Tensor

SAVE_STATE: Final = "save model.state_dict() instead"
_MAX_DEPTH: Final = 200
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
DAMAGE = (
    pickle.UnpicklingError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
)


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


class Storage(NamedTuple):
    """A storage: how it is called and read, and the type and the number of its elements."""

    name: str
    dtype: DType
    size: int
    read: Callable[[], Array]
    """Gives its bytes."""


class Unpickler(pickle.Unpickler):
    """Knows tensors, storages and dtypes, and `OrderedDict`; refuses every other name.

    A format says in `persistent_load` what a storage is.
    """

    def __init__(self, file: Any, path: PathLike, device: str | None) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for; raises `StateError` for one of PyTorch's others."""
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor"): self._tensor,
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
        if module.split(".")[0] == "__torch__":
            return Scripted
        if module == "torch.jit._pickle":
            return _first
        if module in ("builtins", "__builtin__") and name in _PLAIN:
            return _PLAIN[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module.split(".")[0] != "torch":
            return type("Unread", (Unread,), {"kind": f"{module}.{name}"})
        reason = _REFUSED.get(
            name, f"only tensors, numbers, strings and containers are read; {SAVE_STATE}"
        )
        raise StateError(f"{self._path} needs {module}.{name}: {reason}")

    def _tensor(
        self,
        storage: Storage,
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

    def _typed_tensor(self, storage: Storage, *given: Any) -> Tensor:
        offset, shape, strides, _requires_grad, _hooks, dtype, *_ = given
        return self._strided(storage, dtype, offset, shape, strides)

    def _strided(
        self,
        storage: Storage,
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
            raise pickle.UnpicklingError(f"a tensor reaches beyond {storage.name}")
        read = _reader(storage, dtype, (offset, shape, strides))
        return lazy_tensor(read, shape, dtype, self._device)


def _reader(
    storage: Storage, dtype: DType, view: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> Callable[[], Array]:
    offset, shape, strides = view

    def read() -> Array:
        data = storage.read()
        whole = data.size // dtype.itemsize * dtype.itemsize
        # As integers: strides are NumPy's to take, and it does not know all dtypes.
        elements = np.frombuffer(data[:whole], f"u{dtype.itemsize}")[offset:]
        steps = [stride * dtype.itemsize for stride in strides]
        part = np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)
        return np.array(part, order="C").view(dtype.np)

    return read


class Scripted:
    """A stand-in for a module of TorchScript: its attributes, by name."""

    attributes: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


def tensors_in(module: Scripted) -> dict[str, Tensor]:
    """The tensors of a module of TorchScript and of those in it, under dotted names."""
    found: dict[str, Tensor] = {}
    waiting: list[tuple[str, Any, frozenset[int]]] = [("", module, frozenset())]
    while waiting:
        name, value, around = waiting.pop()
        if isinstance(value, Tensor):
            found[name] = value
            continue
        if isinstance(value, Scripted):
            parts = [(str(key), part) for key, part in value.attributes.items()]
        elif isinstance(value, list | tuple):
            parts = [(str(place), part) for place, part in enumerate(value)]
        elif isinstance(value, dict):
            parts = [(str(key), part) for key, part in value.items()]
        else:
            continue
        if id(value) in around or len(around) > _MAX_DEPTH:
            raise pickle.UnpicklingError(f"{name[:60]}... is in itself, or nested too deeply")
        inside = around | {id(value)}
        waiting += [(f"{name}.{key}" if name else key, part, inside) for key, part in parts[::-1]]
    return found


def _first(value: Any, *_: Any) -> Any:
    """A list whose type TorchScript says beside it."""
    return value


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
