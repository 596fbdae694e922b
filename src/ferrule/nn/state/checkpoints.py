"""PyTorch's checkpoints, read without executing what is pickled in them.

A checkpoint is a zip archive: `data.pkl` says how the tensors are put together, and there is a
member for each storage. One of TorchScript has code beside it, which is not read. Older formats are
in `legacy.py`.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, final

from ferrule.ir.dtype import DType
from ferrule.nn.state.files import (
    Archive,
    Array,
    PathLike,
    StateError,
    in_folder,
    is_index,
    load_shards,
    mapped,
)
from ferrule.nn.state.legacy import is_stream, is_tar, load_stream, load_tar
from ferrule.nn.state.unpickling import (
    DAMAGE,
    SAVE_STATE,
    Scripted,
    Storage,
    Unpickler,
    Unread,
    tensors_in,
)


def torch_load(path: PathLike, device: str | None = None) -> Any:
    """Load a file that `torch.save` wrote: usually a dict of tensors by name, read lazily.

    Of a model in several files, `path` is their index, `pytorch_model.bin.index.json`; it may also
    be the folder with this or `pytorch_model.bin`, as Hugging Face has it.

    Tensors become ferrule's; numbers, strings and containers stay as they are, and a device is its
    name. Nothing in the file is executed: what is an object of another class, such as the settings
    of a run, becomes a stand-in without contents, and a whole model is refused. Of an archive of
    TorchScript the parameters and buffers are read, under their names. Files from before PyTorch
    1.6 are read as well. Tensors that shared a storage get memory of their own.

    Raises `FileNotFoundError`, and `StateError` for a damaged file and for tensors that ferrule
    does not have (complex, sparse, quantised); where the bytes of a tensor in an archive are
    damaged, when it is realised.
    """
    path = in_folder(path, "pytorch_model.bin", "pytorch_model.bin.index.json")
    data = mapped(path)
    if is_index(data):
        return load_shards(path, data, lambda shard: torch_load(shard, device))
    try:
        found = _loader(path, data)(path, device)
    except StateError:
        raise
    except DAMAGE as error:
        raise StateError(f"{path}: its pickle is damaged: {error}") from error
    if isinstance(found, Unread) or (isinstance(found, type) and issubclass(found, Unread)):
        raise StateError(f"{path} holds <unread {found.kind}> and no tensors by name; {SAVE_STATE}")
    return found


def _loader(path: PathLike, data: Array) -> Callable[[PathLike, str | None], Any]:
    """The function that reads a file's format."""
    start = data[:512].tobytes()
    if start[:4] == b"PK\x03\x04":
        return _load_archive
    if is_tar(start):
        return load_tar
    if is_stream(start):
        return load_stream
    if start[8:9] == b"{":
        raise StateError(f"{path} is no PyTorch checkpoint; safe_load reads safetensors files")
    if start[:1] == b"\x80":
        raise StateError(
            f"{path} is a bare pickle, which PyTorch does not write; torch.save it, or save it as"
            " safetensors"
        )
    raise StateError(f"{path} is no PyTorch checkpoint: it is no zip archive")


def _load_archive(path: PathLike, device: str | None) -> Any:
    archive = Archive(path, "PyTorch checkpoint")
    pickles = [name for name in archive.members if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise StateError(f"{path} is no PyTorch checkpoint: there is no data.pkl in it")
    folder = pickles[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in archive.members and archive.contents(order).tobytes() != sys.byteorder.encode():
        raise StateError(f"{path} was written on a machine with another order of bytes")
    found = _Unpickler(archive, pickles[0], folder, device).load()
    return tensors_in(found) if isinstance(found, Scripted) else found


@final
class _Unpickler(Unpickler):
    """The unpickler of an archive, whose storages are members."""

    def __init__(self, archive: Archive, name: str, folder: str, device: str | None) -> None:
        super().__init__(io.BytesIO(archive.contents(name).tobytes()), archive.path, device)
        self._archive = archive
        self._folder = folder

    def persistent_load(self, pid: Any) -> Storage:
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
        return Storage(member, dtype, size, partial(self._archive.contents, member))
