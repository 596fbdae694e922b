"""PyTorch's checkpoints from before 1.6: several pickles in a row; before 0.1.10 tar archives.

Numbers are as the machine that wrote them had them; other orders of bytes are refused.
"""

from __future__ import annotations

import pickle
import struct
import tarfile
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Final, NamedTuple, final

from ferrule.ir.dtype import DType
from ferrule.nn.state.files import Array, PathLike, StateError, mapped
from ferrule.nn.state.unpickling import Storage, Unpickler, Unread
from ferrule.tensor import Tensor

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_VERSION: Final = 1001


class _Nothing(pickle.Unpickler):
    """The unpickler of what needs no names."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place here")


def is_stream(start: bytes) -> bool:
    """True if a file begins with the number that marks pickles one after the other."""
    return start[:1] == b"\x80" and _MAGIC.to_bytes(10, "little") in start[:16]


def is_tar(start: bytes) -> bool:
    """True if a file begins as a tar archive."""
    return start[257:262] == b"ustar"


# -- pickles one after the other -------------------------------------------------------------------


class _Part(NamedTuple):
    """Where a storage is in a file, in bytes."""

    start: int
    size: int


def load_stream(path: PathLike, device: str | None) -> Any:
    """The object in a file of a magic number, settings, the object, and storages."""
    with open(path, "rb") as file:
        magic, version, system = (_Nothing(file).load() for _ in range(3))
        if magic != _MAGIC or version != _VERSION:
            raise StateError(f"{path} is of version {version!r}; only {_VERSION} is known")
        if isinstance(system, dict) and system.get("little_endian") is False:
            raise StateError(f"{path} was written on a machine with another order of bytes")
        reader = _Stream(file, path, device)
        found = reader.load()
        keys = _Nothing(file).load()
        if not isinstance(keys, list):
            raise pickle.UnpicklingError("there is no list of storages")
        reader.find(keys, file.tell())
    return found


@final
class _Stream(Unpickler):
    """The unpickler of an object whose storages follow it, which it learns of later."""

    def __init__(self, file: IO[bytes], path: PathLike, device: str | None) -> None:
        super().__init__(file, path, device)
        self._bytes = mapped(path)
        self._parts: dict[str, _Part] = {}
        self._known: dict[str, Storage] = {}

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and pid and pid[0] == "module":
            return pid[1]  # a class, with its source beside it
        kind, dtype, key, _, size, view = pid
        if kind != "storage" or not isinstance(dtype, DType) or type(size) is not int or size < 0:
            raise pickle.UnpicklingError(f"{pid} is no storage")
        name = str(key)
        whole = Storage(f"storage {name}", dtype, size, partial(self._read, name))
        if self._known.setdefault(name, whole)[:3] != whole[:3]:
            raise pickle.UnpicklingError(f"storage {name} has two types or sizes")
        if view is None:
            return whole
        _, offset, count = view
        return part_of(whole, offset, count)

    def find(self, keys: list[Any], place: int) -> None:
        """Note where the storages of these keys are, from a place in the file on."""
        for key in map(str, keys):
            storage = self._known.get(key)
            if storage is None:
                raise pickle.UnpicklingError(f"storage {key} belongs to nothing")
            count = int.from_bytes(self._bytes[place : place + 8].tobytes(), "little", signed=True)
            size = storage.size * storage.dtype.itemsize
            if count != storage.size or place + 8 + size > self._bytes.size:
                raise pickle.UnpicklingError(f"{storage.name} is not whole")
            self._parts[key] = _Part(place + 8, size)
            place += 8 + size
        lacking = self._known.keys() - self._parts.keys()
        if lacking:
            raise pickle.UnpicklingError(f"there is no storage {min(lacking)}")

    def _read(self, key: str) -> Array:
        start, size = self._parts[key]
        return self._bytes[start : start + size]


def part_of(whole: Storage, offset: Any, count: Any) -> Storage:
    """A storage that is a part of another one, counted in elements."""
    numbers = (offset, count)
    if any(type(n) is not int or n < 0 for n in numbers) or offset + count > whole.size:
        raise pickle.UnpicklingError(f"a part of {whole.name} reaches beyond it")
    start, stop = (n * whole.dtype.itemsize for n in (offset, offset + count))
    return Storage(whole.name, whole.dtype, count, lambda: whole.read()[start:stop])


# -- tar archives ----------------------------------------------------------------------------------


def load_tar(path: PathLike, device: str | None) -> Any:
    """The object in an archive of storages, tensors, and a pickle that refers to them."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = {member.name: member for member in archive.getmembers()}
            lacking = {"storages", "tensors", "pickle"} - members.keys()
            if lacking:
                raise StateError(f"{path} is no PyTorch checkpoint: there is no {min(lacking)}")

            def opened(name: str) -> IO[bytes]:
                file = archive.extractfile(members[name])
                if file is None:
                    raise pickle.UnpicklingError(f"{name} is no file")
                return file

            storages = _storages(opened("storages"), members["storages"], path, device)
            tensors = _tensors(opened("tensors"), storages, path, device)
            return _Tar(opened("pickle"), path, device, tensors.__getitem__).load()
    except (tarfile.TarError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise StateError(f"{path} is not a whole PyTorch checkpoint: {error}") from error


@final
class _Tar(Unpickler):
    """The unpickler of a member, in which a number stands for a tensor."""

    def __init__(
        self,
        file: IO[bytes],
        path: PathLike,
        device: str | None,
        tensor: Callable[[int], Tensor] | None = None,
    ) -> None:
        super().__init__(file, path, device)
        self._tensor_of = tensor

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "torch" and name.endswith("Tensor"):
            return Unread  # the type of a tensor, which its storage says too
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple):
            return pid[0]  # a class, with its source beside it
        if self._tensor_of is None:
            raise pickle.UnpicklingError(f"{pid!r} has no place here")
        return self._tensor_of(int(pid))

    def strided(
        self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        """A view of a storage."""
        return self._strided(storage, storage.dtype, offset, shape, strides)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise pickle.UnpicklingError(f"{value!r} is no number of parts")
    return value


def _storages(
    file: IO[bytes], member: tarfile.TarInfo, path: PathLike, device: str | None
) -> dict[Any, Storage]:
    """The storages by their keys; those that are parts of others come last."""
    data = mapped(path)

    def load() -> Any:
        return _Tar(file, path, device).load()

    found: dict[Any, Storage] = {}
    for _ in range(_count(load())):
        key, _, dtype = load()
        if not isinstance(dtype, DType):
            raise pickle.UnpicklingError(f"storage {key} has no type")
        (count,) = struct.unpack("<q", file.read(8))
        size = _count(count) * dtype.itemsize
        start = file.tell()
        if start + size > member.size:
            raise pickle.UnpicklingError(f"storage {key} is not whole")
        place = member.offset_data + start
        found[key] = Storage(f"storage {key}", dtype, count, _slice(data, place, size))
        file.seek(start + size)
    for target, root, offset, count in load():
        found[target] = part_of(found[root], offset, count)
    return found


def _slice(data: Array, place: int, size: int) -> Callable[[], Array]:
    return lambda: data[place : place + size]


def _tensors(
    file: IO[bytes], storages: dict[Any, Storage], path: PathLike, device: str | None
) -> dict[int, Tensor]:
    """The tensors by the numbers that stand for them."""
    found: dict[int, Tensor] = {}
    reader = _Tar(file, path, device)
    for _ in range(_count(_Tar(file, path, device).load())):
        key, storage, _ = _Tar(file, path, device).load()
        (axes,) = struct.unpack("<q", file.read(8))
        if not 0 <= axes <= _MAX_AXES:
            raise pickle.UnpicklingError(f"tensor {key} has {axes} axes")
        numbers = struct.unpack(f"<{2 * axes + 1}q", file.read(8 * (2 * axes + 1)))
        shape, strides, offset = numbers[:axes], numbers[axes:-1], numbers[-1]
        found[int(key)] = reader.strided(storages[storage], offset, shape, strides)
    return found


_MAX_AXES: Final = 64
