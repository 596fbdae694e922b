"""Safetensors files: a header in JSON, and the bytes of all tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.nn.state.files import (
    Array,
    PathLike,
    StateError,
    check_named,
    distinct_names,
    in_folder,
    is_index,
    lazy_tensor,
    load_shards,
    mapped,
    replacing,
)
from ferrule.tensor import Tensor

_FORMAT_NAMES = {
    "BOOL": dtypes.bool,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
    "F8_E4M3": dtypes.float8_e4m3,
    "F8_E5M2": dtypes.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _FORMAT_NAMES.items()}
_MAX_HEADER_BYTES = 100_000_000
"""The greatest number of bytes of a header that the format allows."""


def safe_save(
    tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes `tensors` to a safetensors file, whole or not at all: an older file stays until then.

    Raises `OSError` where the file cannot be written.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.state import safe_load, safe_save
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     safe_save({"x": Tensor([1.0, 2.0])}, f"{folder}/x.safetensors")
    ...     safe_load(f"{folder}/x.safetensors")["x"].tolist()
    [1.0, 2.0]
    """
    check_named(tensors, "safe_save")
    if "__metadata__" in tensors:
        raise StateError("safe_save: the format keeps the name __metadata__; rename that tensor")
    for pair in (metadata or {}).items():
        if not all(isinstance(text, str) for text in pair):
            raise StateError(f"safe_save: the metadata {pair[0]!r}: {pair[1]!r} is not of two str")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    # The widest first: then all of them start at a multiple of their size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        dtype, array = tensors[name].dtype, arrays[name]
        end = offset + array.nbytes
        place = {"shape": list(array.shape), "data_offsets": [offset, end]}
        header[name] = {"dtype": _NAMES[dtype], **place}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def safe_load(path: PathLike, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, each read when it is realised.

    Of a model in several files, `path` is their index, `model.safetensors.index.json`; it may also
    be the folder with this or `model.safetensors`, as Hugging Face has it.

    Raises `FileNotFoundError`, and `StateError` for a damaged file or a dtype that ferrule does not
    have.
    """
    path = in_folder(path, "model.safetensors", "model.safetensors.index.json")
    data = mapped(path)
    if is_index(data):
        return load_shards(path, data, lambda shard: safe_load(shard, device))
    if data[:4].tobytes() == b"PK\x03\x04":
        raise _broken(path, "it is a zip archive; torch_load and npz_load read these")
    header, start = _header(path, data)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(path, name, entry)
    _check_places(path, header, data.size - start)
    tensors = {}
    for name, entry in header.items():
        dtype = _FORMAT_NAMES[entry["dtype"]]
        begin, end = entry["data_offsets"]
        read = _reader(data[start + begin : start + end], dtype, tuple(entry["shape"]))
        tensors[name] = lazy_tensor(read, entry["shape"], dtype, device)
    return tensors


def _reader(part: Array, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
    return lambda: np.frombuffer(part, dtype.np).reshape(shape)


def _broken(path: PathLike, problem: str) -> StateError:
    return StateError(f"{path} is not a whole safetensors file: {problem}")


def _header(path: PathLike, data: Array) -> tuple[dict[str, Any], int]:
    """The header, and where the bytes of the tensors start."""
    if data.size < 8:
        raise _broken(path, f"it has {data.size} bytes, and the length of the header takes 8")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(_MAX_HEADER_BYTES, data.size - 8):
        raise _broken(path, f"a header of {length} bytes does not fit into {data.size}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=distinct_names)
    except ValueError as error:
        raise _broken(path, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is no JSON object")
    return header, 8 + length


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_entry(path: PathLike, name: str, entry: Any) -> None:
    """Raises `StateError` for an entry that is no tensor of a dtype that ferrule has."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise _broken(path, f"{name} has no dtype, shape and data_offsets")
    if entry["dtype"] not in _FORMAT_NAMES:
        known = ", ".join(_FORMAT_NAMES)
        raise StateError(f"{path}: {name} has dtype {entry['dtype']}; ferrule reads {known}")
    offsets = entry["data_offsets"]
    if not _is_sizes(entry["shape"]) or not _is_sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"the shape or the place of {name} is wrong")
    size = prod(entry["shape"]) * _FORMAT_NAMES[entry["dtype"]].itemsize
    if offsets[1] - offsets[0] != size:
        raise _broken(path, f"{name} takes {size} bytes, and its place is {offsets}")


def _check_places(path: PathLike, header: Mapping[str, Any], size: int) -> None:
    """Raises `StateError` unless the tensors follow one another and fill the file."""
    end = 0
    for begin, stop in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != end:
            raise _broken(path, f"there is a gap or an overlap at byte {end} of the tensors")
        end = stop
    if end != size:
        raise _broken(path, f"the tensors take {end} bytes, and there are {size}")
