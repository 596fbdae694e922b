"""PyTorch's checkpoints, written without PyTorch: a pickle that says how tensors are put together.

The pickle names classes of PyTorch by their paths, which Python's own pickler cannot do where these
are not installed.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import row_major
from ferrule.nn.state.files import Array, PathLike, StateError, replacing
from ferrule.tensor import Tensor

_STORAGES: Final = {
    dtypes.bool: "BoolStorage",
    dtypes.uint8: "ByteStorage",
    dtypes.int8: "CharStorage",
    dtypes.int16: "ShortStorage",
    dtypes.int32: "IntStorage",
    dtypes.int64: "LongStorage",
    dtypes.float16: "HalfStorage",
    dtypes.bfloat16: "BFloat16Storage",
    dtypes.float32: "FloatStorage",
    dtypes.float64: "DoubleStorage",
}
"""The types that have a class of storages; others are said with the tensor."""
_ALIGNMENT: Final = 64
"""Bytes; PyTorch maps storages into memory from multiples of it."""
_MAX_DEPTH: Final = 200


def torch_save(obj: Any, path: PathLike) -> None:
    """Write a file that `torch.load` reads, also with `weights_only=True`; whole or not at all.

    `obj` is a tensor, or dicts, lists and tuples of tensors, numbers, strings, bytes and None, such
    as `model.state_dict()` and that of an optimiser. Tensors that share memory share it there too;
    all are on the CPU there.

    Raises `StateError` for objects of other classes, and `OSError` where the file cannot be
    written.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.state import torch_load, torch_save
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     torch_save({"x": Tensor([1.0, 2.0]), "epoch": 3}, f"{folder}/x.pt")
    ...     found = torch_load(f"{folder}/x.pt")
    ...     found["x"].tolist(), found["epoch"]
    ([1.0, 2.0], 3)
    """
    writer = _Writer(_tensors_in(obj, "", 0))
    text = writer.pickled(obj)
    name = Path(path).stem or "archive"
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, f"{name}/data.pkl", text)
        _add(archive, f"{name}/byteorder", sys.byteorder.encode())
        for key, elements in enumerate(writer.storages):
            _add(archive, f"{name}/data/{key}", elements.view(np.uint8).data)
        _add(archive, f"{name}/version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    """Add a member whose contents begin at a multiple of the alignment."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    assert archive.fp is not None
    start = archive.fp.tell() + 30 + len(name.encode()) + 4
    padding = -start % _ALIGNMENT
    # An extra field, of a number that no program knows, as PyTorch has it.
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    archive.writestr(info, data)


# Tensors, and the memory that they share


def _tensors_in(value: Any, name: str, depth: int) -> dict[int, Tensor]:
    """All tensors in nested containers, by `id`; raises `StateError` for what cannot be saved."""
    if depth > _MAX_DEPTH:
        raise StateError(f"torch_save: {name[:60]}... is nested too deeply, or in itself")
    if isinstance(value, Tensor):
        return {id(value): value}
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return {}
    if isinstance(value, Mapping):
        parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
        parts += [(f"a key of {name or 'the dict'}", key) for key in value]
    elif isinstance(value, list | tuple):
        parts = [(f"{name}[{place}]", part) for place, part in enumerate(value)]
    else:
        kind = type(value).__name__
        hint = "make it one: Tensor(x)" if isinstance(value, np.ndarray) else "leave it out"
        if hasattr(value, "state_dict"):
            hint = "save its state_dict()"
        raise StateError(
            f"torch_save: {name or 'the object'} is {kind}, neither a tensor, a number, a string"
            f" nor a container; {hint}"
        )
    found: dict[int, Tensor] = {}
    for place, part in parts:
        found.update(_tensors_in(part, place, depth + 1))
    return found


class _Place(NamedTuple):
    """Where the elements of a tensor are: the storage, and the view in it, counted in elements."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _root(tensor: Tensor) -> Tensor:
    """The tensor of which another one is a view, in the end."""
    handle: Any = tensor
    while handle._parent is not None:
        handle = handle._parent
    root: Tensor = handle
    return root


def _steps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides with PyTorch's numbers where any would do: axes of one element, or none.

    >>> _steps((2, 1), (1, 0))
    (1, 1)
    """
    found: list[int] = []
    usual = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        found.append(stride if size > 1 and 0 not in shape else usual)
        usual = found[-1] * max(size, 1)
    return tuple(reversed(found))


@final
class _Writer:
    """Writes one pickle, and collects the storages that it refers to."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self.storages: list[Array] = []
        self._out: list[bytes] = []
        self._memo: dict[int, int] = {}
        """The numbers of containers and tensors that were written, by `id`."""
        self._places: dict[int, _Place] = {}
        owners: dict[int, list[Tensor]] = {}
        for tensor in tensors.values():
            owners.setdefault(id(tensor._cell), []).append(tensor)
        for sharing in owners.values():
            self._place(sharing)

    def _place(self, sharing: Sequence[Tensor]) -> None:
        """Give tensors in one memory a storage: all of it for several, else what one needs."""
        views = {id(tensor): tensor._layout() for tensor in sharing}
        # Backwards there are no views in PyTorch: such a tensor has its elements for itself.
        forward = [x for x in sharing if all([step >= 0 for step in views[id(x)].strides])]
        if len(forward) > 1:
            storage = self._add(_root(forward[0]))
            for tensor in forward:
                view: Any = views[id(tensor)]
                steps = _steps(view.shape, view.strides)
                self._places[id(tensor)] = _Place(storage, view.offset, view.shape, steps)
        for tensor in sharing:
            if id(tensor) not in self._places:
                shape: Any = tuple(tensor.shape)
                given: Any = row_major(shape)
                place = _Place(self._add(tensor), 0, shape, _steps(shape, given))
                self._places[id(tensor)] = place

    def _add(self, tensor: Tensor) -> int:
        self.storages.append(np.ascontiguousarray(tensor.numpy(copy=False)).reshape(-1))
        return len(self.storages) - 1

    # -- the pickle, in the opcodes of protocol 2 ------------------------------------------------

    def pickled(self, value: Any) -> bytes:
        """The pickle of a value."""
        self._out = [b"\x80\x02"]
        self._put(value)
        return b"".join([*self._out, b"."])

    def _put(self, value: Any) -> None:
        if value is None or isinstance(value, bool | np.bool_):
            self._out.append(b"N" if value is None else b"\x88" if value else b"\x89")
        elif isinstance(value, np.generic):
            self._put(value.item())
        elif isinstance(value, int):
            self._put_int(int(value))
        elif isinstance(value, float):
            self._out.append(b"G" + struct.pack(">d", value))
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            self._out.append(b"X" + struct.pack("<I", len(text)) + text)
        elif isinstance(value, bytes):  # as protocols for Python 2 spell them
            self._call("_codecs", "encode", lambda: self._put_all(value.decode("latin1"), "latin1"))
        elif id(value) in self._memo:
            self._out.append(b"j" + struct.pack("<I", self._memo[id(value)]))
        elif isinstance(value, Tensor):
            self._put_tensor(value)
        elif isinstance(value, tuple):
            self._out.append(b"(")
            self._put_all(*value)
            self._out.append(b"t")
            self._remember(value)
        elif isinstance(value, list):
            self._out.append(b"]")
            self._remember(value)
            self._out.append(b"(")
            self._put_all(*value)
            self._out.append(b"e")
        else:
            if isinstance(value, OrderedDict):
                self._call("collections", "OrderedDict", lambda: None)
            else:
                self._out.append(b"}")
            self._remember(value)
            self._out.append(b"(")
            self._put_all(*chain.from_iterable(value.items()))
            self._out.append(b"u")

    def _put_all(self, *values: Any) -> None:
        for value in values:
            self._put(value)

    def _put_int(self, value: int) -> None:
        if -(1 << 31) <= value < 1 << 31:
            self._out.append(b"J" + struct.pack("<i", value))
            return
        size = value.bit_length() // 8 + 1
        if size > 255:
            raise StateError(f"torch_save: a whole number of {size} bytes is too long for a file")
        self._out.append(b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True))

    def _remember(self, value: Any) -> None:
        number = self._memo[id(value)] = len(self._memo)
        self._out.append(b"r" + struct.pack("<I", number))

    def _name(self, module: str, name: str) -> None:
        self._out.append(f"c{module}\n{name}\n".encode())

    def _call(self, module: str, name: str, put_arguments: Callable[[], None]) -> None:
        self._name(module, name)
        self._out.append(b"(")
        put_arguments()
        self._out.append(b"tR")

    def _put_tensor(self, tensor: Tensor) -> None:
        place = self._places[id(tensor)]
        elements = self.storages[place.storage]
        kind = _STORAGES.get(tensor.dtype)

        def put_arguments() -> None:
            self._out.append(b"(")
            self._put("storage")
            if kind is None:
                self._name("torch.storage", "UntypedStorage")
            else:
                self._name("torch", kind)
            self._put_all(str(place.storage), "cpu")
            self._put(elements.nbytes if kind is None else elements.size)
            self._out.append(b"tQ")
            requires_grad = tensor._leaf is not None
            self._put_all(place.offset, place.shape, place.strides, requires_grad)
            self._call("collections", "OrderedDict", lambda: None)
            if kind is None:
                self._name("torch", tensor.dtype.numpy_name)

        rebuild = "_rebuild_tensor_v3" if kind is None else "_rebuild_tensor_v2"
        self._call("torch._utils", rebuild, put_arguments)
        self._remember(tensor)
