"""NumPy's `.npz` files: a zip archive with an array in each member."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import numpy as np

from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.nn.state.files import (
    Archive,
    Array,
    PathLike,
    StateError,
    check_named,
    lazy_tensor,
    replacing,
)
from ferrule.tensor import Tensor

_OWN = frozenset({dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2})
_MAX_HEADER_BYTES = 10_000


def npz_save(tensors: Mapping[str, Tensor], path: PathLike) -> None:
    """Writes `tensors` to a file for `numpy.load`, whole or not at all.

    Raises `StateError` for types that NumPy lacks (bfloat16, float8), and `OSError` where the file
    cannot be written.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.state import npz_load, npz_save
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     npz_save({"x": Tensor([1.0, 2.0])}, f"{folder}/x.npz")
    ...     npz_load(f"{folder}/x.npz")["x"].tolist()
    [1.0, 2.0]
    """
    check_named(tensors, "npz_save")
    for name, tensor in tensors.items():
        if tensor.dtype in _OWN:
            raise StateError(
                f"npz_save: {name} is {tensor.dtype.name}, which NumPy files cannot say; cast it to"
                " float32, or use safe_save"
            )
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                array = np.asarray(tensor.numpy(), order="C")
                np.lib.format.write_array(member, array, allow_pickle=False)


def npz_load(path: PathLike, device: str | None = None) -> dict[str, Tensor]:
    """The arrays of an `.npz` file, by name, each read and checked when it is realised.

    Nothing in the file is executed. Raises `FileNotFoundError`, and `StateError` for a damaged file
    or for arrays of objects and other types that ferrule does not have.
    """
    archive = Archive(path, ".npz file")
    tensors = {}
    for name in archive.members:
        start, shape, fortran, kind = _array_header(archive, name)
        try:
            dtype = dtypes.from_np(kind.newbyteorder("="))
        except DTypeError as error:
            raise StateError(f"{path}: {name} has dtype {kind}, which ferrule lacks") from error
        read = _reader(archive, name, start, shape, fortran, kind)
        tensors[name.removesuffix(".npy")] = lazy_tensor(read, shape, dtype, device)
    return tensors


def _array_header(archive: Archive, name: str) -> tuple[int, tuple[int, ...], bool, np.dtype]:
    """Where the elements start, their shape, whether columns come first, and their type."""
    try:
        head = io.BytesIO(archive.head(name, _MAX_HEADER_BYTES))
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, fortran, kind = np.lib.format.read_array_header_1_0(head)
        else:
            shape, fortran, kind = np.lib.format.read_array_header_2_0(head)
    except StateError:
        raise
    except (ValueError, EOFError) as error:
        raise StateError(f"{archive.path}: {name} is no NumPy array: {error}") from error
    return head.tell(), shape, fortran, kind


def _reader(
    archive: Archive,
    name: str,
    start: int,
    shape: tuple[int, ...],
    fortran: bool,
    kind: np.dtype,
) -> Callable[[], Array]:
    def read() -> Array:
        data = archive.contents(name)[start:]
        size = int(np.prod(shape)) * kind.itemsize
        if data.size != size:
            raise StateError(
                f"{archive.path}: {name} takes {size} bytes, and there are {data.size}"
            )
        return np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")

    return read
