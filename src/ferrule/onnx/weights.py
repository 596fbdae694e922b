"""The weights of a model, left in its files: mapped into memory, and copied once, into tensors.

A model is a protocol buffer (https://protobuf.dev/programming-guides/encoding): fields, each with a
number, a kind and, where it is a text or a message, a length. Here large tensors are taken out of
it before the onnx package parses the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ferrule.onnx.values import Array, OnnxError, dtype_of

# Fields of the messages ModelProto, GraphProto and TensorProto, by their numbers in onnx.proto.
_GRAPH: Final = 7
_INITIALIZER: Final = 5
_INPUT: Final = 11
_RAW_DATA: Final = 9
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

_LARGE: Final = 1024
"""Bytes from which on a tensor is taken out. Smaller ones are read with the rest, as shapes are."""


class Weight(NamedTuple):
    """A tensor whose elements are still in a file."""

    name: str
    dtype: int
    """The number of its data type in `onnx.TensorProto`."""
    shape: tuple[int, ...]
    data: Array
    """Its bytes."""

    @property
    def array(self) -> Array:
        """The elements, read as they are used; raises `OnnxError` if there are too few or many."""
        dtype = np.dtype(dtype_of(self.dtype).np)
        wanted = prod(self.shape) * dtype.itemsize
        if min(self.shape, default=0) < 0 or self.data.nbytes != wanted:
            raise OnnxError(
                f"tensor {self.name!r} of the shape {self.shape} needs {wanted} bytes, but the "
                f"model has {self.data.nbytes}"
            )
        return self.data.view(dtype).reshape(self.shape)


class _Field(NamedTuple):
    number: int
    start: int
    """Where the field begins, with its number."""
    content: int
    """Where its content begins."""
    end: int


def mapped(path: Path) -> Array:
    """The bytes of a file, read as they are used."""
    if path.stat().st_size == 0:
        raise OnnxError(f"{path} is empty")
    return np.memmap(path, np.uint8, "r")


def split(data: Array, folder: Path | None) -> tuple[Any, list[Weight]]:
    """A model without its large tensors, as an `onnx.ModelProto`, and these.

    In the model they are inputs. Raises `OnnxError` if the bytes are no model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise ImportError(
            f"{error}; models in ONNX's format need: pip install 'ferrule[onnx]'"
        ) from error
    try:
        weights: list[Weight] = []
        rest = bytearray()
        for field in _fields(data, 0, len(data)):
            if field.number == _GRAPH:
                rest += _message(_GRAPH, _without_weights(data, field, folder, weights))
            else:
                rest += data[field.start : field.end].tobytes()
        return onnx.ModelProto.FromString(bytes(rest)), weights
    except DecodeError as error:
        raise OnnxError("the bytes are no model in ONNX's format") from error


def _without_weights(
    data: Array, graph: _Field, folder: Path | None, weights: list[Weight]
) -> bytes:
    rest = bytearray()
    inputs: set[str] = set()
    for field in _fields(data, graph.content, graph.end):
        weight = None
        if field.number == _INITIALIZER:
            weight = _weight(data, field, folder)
        elif field.number == _INPUT:
            inputs.add(_name(data[field.content : field.end].tobytes()))
        if weight is None:
            rest += data[field.start : field.end].tobytes()
        else:
            weights.append(weight)
    for weight in weights:
        if weight.name not in inputs:
            rest += _message(_INPUT, _input(weight))
    return bytes(rest)


def _name(value_info: bytes) -> str:
    from onnx import ValueInfoProto

    return str(ValueInfoProto.FromString(value_info).name)


def _input(weight: Weight) -> bytes:
    from onnx import helper

    info = helper.make_tensor_value_info(weight.name, weight.dtype, weight.shape)
    return bytes(info.SerializeToString())


def _weight(data: Array, field: _Field, folder: Path | None) -> Weight | None:
    """A tensor that is large, or in another file; None for others."""
    from onnx import TensorProto

    raw: Array | None = None
    rest = bytearray()
    for part in _fields(data, field.content, field.end):
        if part.number == _RAW_DATA and part.end - part.content >= _LARGE:
            raw = data[part.content : part.end]
        else:
            rest += data[part.start : part.end].tobytes()
    tensor = TensorProto.FromString(bytes(rest))
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external(tensor, folder)
    if raw is None:
        return None
    return Weight(tensor.name, tensor.data_type, tuple(tensor.dims), raw)


def _external(tensor: Any, folder: Path | None) -> Array:
    """The bytes of a tensor in a file beside the model."""
    if folder is None:
        raise OnnxError(f"tensor {tensor.name!r} is in another file; load the model by its path")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    path = folder / location
    # Links are followed first: what they lead to must be in the folder too.
    inside = os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))
    if not location or os.path.isabs(location) or not inside:
        raise OnnxError(f"tensor {tensor.name!r} is in {location!r}, outside of the model's folder")
    if not path.is_file():
        raise OnnxError(f"tensor {tensor.name!r} is in {path}, which is not there")
    data = mapped(path)
    try:
        start = int(entries.get("offset", 0))
        size = int(entries.get("length", len(data) - start))
    except ValueError as error:
        raise OnnxError(f"tensor {tensor.name!r}: its place in {path} is no number") from error
    if start < 0 or size < 0 or start + size > len(data):
        raise OnnxError(
            f"tensor {tensor.name!r} is at {start} to {start + size} of {path}, which has "
            f"{len(data)} bytes"
        )
    return data[start : start + size]


# Protocol buffers


def _fields(data: Array, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message; raises `OnnxError` if they do not fit it."""
    at = start
    while at < end:
        key, content = _varint(data, at, end)
        kind = key & 7
        if kind == _VARINT:
            _, after = _varint(data, content, end)
        elif kind == _BYTES:
            size, content = _varint(data, content, end)
            after = content + size
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            after = content + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise OnnxError("the bytes are no model in ONNX's format")
        if after > end:
            raise OnnxError("the model ends too early: the file is cut, or no model")
        yield _Field(key >> 3, at, content, after)
        at = after


def _varint(data: Array, at: int, end: int) -> tuple[int, int]:
    """A whole number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while at < end and shift < 64:
        byte = int(data[at])
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise OnnxError("the bytes are no model in ONNX's format")


def _message(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
