"""Files of tensors: mapped into memory, read at realisation, written whole or not at all.

A tensor of a file is a lazy node that copies its bytes from the mapped file to its device. What is
never realised is never read. A file may be replaced meanwhile, which is how all savers here write;
it must not be written over in place.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, final
from uuid import uuid4

import numpy as np

from ferrule.device.capture import user_location
from ferrule.engine.host import HostFunction
from ferrule.ir.dtype import DType
from ferrule.ir.lazy import LazyBuffer
from ferrule.tensor import Tensor
from ferrule.tensor.data import to_device

Array: TypeAlias = np.ndarray[Any, Any]
PathLike: TypeAlias = str | os.PathLike[str]


class StateError(ValueError):
    """Tensors that do not fit the model, or a file that does not hold what its header says."""


def check_named(tensors: object, what: str) -> None:
    """Raises `StateError` unless these are tensors by name."""
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise StateError(
            f"{what}: {kind} is no dict of tensors by name; pass nn.state.get_state_dict(model)"
        )
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise StateError(f"{what}: the name {name!r} is {type(name).__name__}, not a str")
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise StateError(f"{what}: {name} is {kind}, not a tensor; make it one: Tensor(x)")


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` at the end, if nothing went wrong.

    If `path` is a link, its target is replaced; if it is a pipe or a device, it is written to.
    """
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder; add a name")
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        opened = unfinished.open("xb")
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; nothing was written", str(path)) from error
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def in_folder(path: PathLike, *names: str) -> PathLike:
    """The first file of these names in a folder; the path itself, if there is none or no folder."""
    found = [Path(path) / name for name in names] if os.path.isdir(path) else []
    return next((file for file in found if file.is_file()), path)


def mapped(path: PathLike) -> Array:
    """The bytes of a file, read as they are used; raises `FileNotFoundError`."""
    if os.path.isdir(path):
        inside = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
        raise IsADirectoryError(f"{path} is a folder; name the file in it, which has {inside}")
    if os.path.getsize(path) == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r")


def lazy_tensor(
    read: Callable[[], Array], shape: Sequence[int], dtype: DType, device: str | None
) -> Tensor:
    """A tensor whose elements `read` gives when it is realised."""
    sizes = tuple(shape)
    if 0 in sizes:
        return Tensor(np.empty(sizes, dtype.np), device=device)
    place = to_device(device)
    runner = HostFunction(_file_read, (read,), (sizes,), place, user_location())
    return Tensor(LazyBuffer.custom(runner, [], sizes, dtype, place))


def _file_read(read: Callable[[], Array]) -> Array:
    return read()


def distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in JSON; raises `ValueError` where a name occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


# Models in several files


def is_index(data: Array) -> bool:
    """True if a file is JSON, as the index of several files is."""
    return data[:1].tobytes() == b"{"


def load_shards(
    path: PathLike, data: Array, load: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Tensor]:
    """The tensors of all files that an index names, which lie beside it."""
    try:
        places = json.loads(data.tobytes(), object_pairs_hook=distinct_names).get("weight_map")
    except ValueError as error:
        raise StateError(f"{path} is not a whole index of files: {error}") from error
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise StateError(f"{path} is no index of files of tensors: it has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in dict.fromkeys(places.values()):
        if Path(name).name != name:
            raise StateError(f"{path} names {name!r}, which is not in the same folder")
        file = Path(path).parent / name
        if not file.is_file():
            raise FileNotFoundError(f"{file} is not there, and {path} names it")
        found = load(file)
        wanted = [tensor for tensor, place in places.items() if place == name]
        lacking = [tensor for tensor in wanted if tensor not in found]
        if lacking:
            raise StateError(f"{file} lacks {lacking[0]}, which {path} says is in it")
        tensors.update({tensor: found[tensor] for tensor in wanted})
    return tensors


# Zip archives, which NumPy and PyTorch put arrays into


@final
class Archive:
    """The members of a zip file; those that are not compressed are parts of the mapped file."""

    def __init__(self, path: PathLike, kind: str) -> None:
        self.path = path
        self.bytes = mapped(path)
        self._verified: set[str] = set()
        try:
            with zipfile.ZipFile(path) as archive:
                self.members = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
            raise StateError(f"{path} is not a whole {kind}: {error}") from error
        if not self._are_counted():
            raise StateError(f"{path} is not a whole {kind}: its directory lacks members")

    def _are_counted(self) -> bool:
        """True if the number of members is the one at the directory's end, which `zipfile` ignores.

        Numbers of more than 16 bits are in another record, and not checked.
        """
        end = self.bytes[-(1 << 16) - 22 :].tobytes()
        place = end.rfind(b"PK\x05\x06")
        count = int.from_bytes(end[place + 10 : place + 12], "little")
        return count in (len(self.members), 0xFFFF)

    def head(self, name: str, count: int) -> bytes:
        """The first bytes of a member, not verified."""
        with (
            self._damage_named(name),
            zipfile.ZipFile(self.path) as archive,
            archive.open(name) as member,
        ):
            return member.read(count)

    def contents(self, name: str) -> Array:
        """All bytes of a member; raises `StateError` where they are not those that were written."""
        info = self.members[name]
        with self._damage_named(name):
            if info.compress_type != zipfile.ZIP_STORED:
                with zipfile.ZipFile(self.path) as archive:
                    return np.frombuffer(archive.read(name), np.uint8)
            return self._stored(info)

    @contextmanager
    def _damage_named(self, name: str) -> Iterator[None]:
        """A block that reports errors as damage, which makes `zipfile` raise various errors."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
            raise StateError(f"{self.path}: {name} is damaged: {error}") from error

    def _stored(self, info: zipfile.ZipInfo) -> Array:
        # The header before the data: 30 bytes, a name and an extra field of its own.
        head = self.bytes[info.header_offset : info.header_offset + 30].tobytes()
        if head[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("there is no member where the directory says")
        lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        start = info.header_offset + 30 + lengths
        data = self.bytes[start : start + info.file_size]
        if data.size != info.file_size:
            raise zipfile.BadZipFile("the file ends in it")
        if info.filename not in self._verified:
            if zlib.crc32(data.data) != info.CRC:
                raise zipfile.BadZipFile("its checksum differs")
            self._verified.add(info.filename)
        return data
