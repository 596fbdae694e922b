"""`ferrule.load`: runs a program from a file of the format `ferrule`, without any compiler.

Such a file is a shared library, followed by a description of its tensors (JSON), and at the end the
magic bytes, the version of the format, the length of the description, and a checksum of everything
before. It holds machine code, which runs with all rights of the process that loads it: **load files
only from people whose programs you would run**. The checksum finds damage, not malice.

This module imports NumPy, and nothing else of ferrule.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import json
import mmap
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, NoReturn, TypeAlias, final

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

MAGIC: Final = b"ferrule\n"
FORMAT_VERSION: Final = 1
FOOTER: Final = Struct("<32sQII8s")
"""Checksum, bytes of the description, version of the format, 0, magic bytes."""
INTERFACE_VERSION: Final = 1

Size: TypeAlias = int | str | list[Any]
"""A number, the name of a size, or an operation with its operands."""

_OPERATIONS: Final[Mapping[str, Callable[..., int]]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "IDIV": lambda a, b: a // b,
    "MOD": lambda a, b: a % b,
    "NEG": lambda a: -a,
    "MIN": min,
    "MAX": max,
    "CMPLT": lambda a, b: int(a < b),
    "WHERE": lambda condition, a, b: a if condition else b,
}


class LoadError(ValueError):
    """A file is no program that can be loaded here; the message says why."""


def checksum(parts: Sequence[memoryview | bytes]) -> bytes:
    """The checksum of a file whose contents come in parts."""
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


def size_of(size: Size, values: Mapping[str, int]) -> int:
    """The value of a size."""
    if isinstance(size, str):
        return values[size]
    if isinstance(size, list):
        name, *operands = size
        return _OPERATIONS[name](*[size_of(one, values) for one in operands])
    return size


@final
class LoadedTensor:
    """A tensor of a loaded program: its name, its dtype in NumPy, and its shape."""

    def __init__(self, row: Mapping[str, Any], largest: Mapping[str, int]) -> None:
        self.name: str = row["name"]
        self.dtype = np.dtype(row["dtype"])
        self.sizes: list[Size] = row["shape"]
        self.shape = tuple([size_of(size, largest) for size in self.sizes])
        """The shape with the largest sizes."""
        self._strides: list[Size] = row["strides"]
        self._offset: int = row["offset"]
        self.place: int = row["place"]
        """The number of a pointer of a run; -1 - n: in the memory of state n."""
        self.nbytes: int = row["nbytes"]
        self.is_changed: bool = row["changed"]
        """True if the program writes to it."""

    def __repr__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}"

    def shape_for(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with these sizes."""
        return tuple([size_of(size, values) for size in self.sizes])

    def array(self, memory: Array, values: Mapping[str, int]) -> Array:
        """The tensor in some memory."""
        strides = [size_of(step, values) * self.dtype.itemsize for step in self._strides]
        return np.ndarray(self.shape_for(values), self.dtype, memory.data, self._offset, strides)


@final
class Program:
    """A loaded program: a function of arrays, with states of its own.

    `arguments`, `results` and `sizes` say what it takes and gives; `states` are arrays in its
    memory, by name, to be read, changed and saved. It runs in one thread at a time; two of them,
    loaded from one file, share weights and nothing else.
    """

    def __init__(self, library: ctypes.CDLL, about: Mapping[str, Any]) -> None:
        self.name: str = about["name"]
        self._library = library
        self.sizes: dict[str, tuple[int, int]] = {
            name: (low, high) for name, low, high in about["sizes"]
        }
        """The least and the greatest value of each size."""
        largest = {name: high for name, (_, high) in self.sizes.items()}
        self._largest = largest
        self.arguments = [LoadedTensor(row, largest) for row in about["arguments"]]
        self.results = [LoadedTensor(row, largest) for row in about["results"]]
        self._states = [LoadedTensor(row, largest) for row in about["states"]]
        self._template = about["template"]
        self._pointers: list[int] = about["pointers"]
        self._instance = ctypes.c_void_p()
        self._function("state").restype = ctypes.c_void_p
        self._function("error_string").restype = ctypes.c_char_p
        self._function("target").restype = ctypes.c_char_p
        for name in ("run_tensors", "destroy", "reset", "state", "target"):
            self._function(name).argtypes = None
        self._check(self._function("create")(ctypes.byref(self._instance)))
        self.target: str = self._function("target")(self._instance).decode()
        """The instruction set whose kernels were chosen for this processor."""

    @property
    def states(self) -> dict[str, Array]:
        """The states by name: arrays in the memory of the program, which they keep alive."""
        pairs = zip(self._states, self._memory(), strict=True)
        return {one.name: one.array(memory, self._largest) for one, memory in pairs}

    def __repr__(self) -> str:
        return f"<program {self.name} for {self.target}: {self.arguments} -> {self.results}>"

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self.name}_{name}")

    def _check(self, error: int) -> None:
        if error:
            raise LoadError(f"{self.name}: {self._function('error_string')(error).decode()}")

    def _memory(self) -> list[Array]:
        found = []
        for number, one in enumerate(self._states):
            address = self._function("state")(self._instance, number)
            memory: Any = (ctypes.c_uint8 * one.nbytes).from_address(address)
            memory._program = self  # which frees the memory at its end
            found.append(np.frombuffer(memory, np.uint8))
        return found

    def __call__(self, *arguments: Any, **sizes: int) -> Any:
        """The results for arrays, or what NumPy makes arrays of; sizes are keywords.

        Arrays that the captured function changes are changed.

        Raises `TypeError` for too few or too many arguments or sizes, and for an array of another
        kind of numbers (floats for integers); `ValueError` for a shape, a size or an integer that
        does not fit.
        """
        if len(arguments) != len(self.arguments):
            names = ", ".join([one.name for one in self.arguments])
            raise TypeError(f"{self.name} takes ({names}), and got {len(arguments)} arguments")
        if sizes.keys() != self.sizes.keys():
            raise TypeError(f"{self.name} takes the sizes {[*self.sizes]}, and got {[*sizes]}")
        for name, (low, high) in self.sizes.items():
            if not low <= sizes[name] <= high:
                raise ValueError(f"{self.name}: {name} is {sizes[name]}, not from {low} to {high}")
        return _filled(self._template, [*self.run(arguments, sizes).values()])

    def run(self, arguments: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, Array]:
        """All results by name; see `__call__`."""
        memory = [np.zeros(nbytes, np.uint8) for nbytes in self._pointers]
        for one, argument in zip(self.arguments, arguments, strict=True):
            # Numbers of Python have no dtype yet.
            given = np.asarray(argument, None if hasattr(argument, "dtype") else one.dtype)
            if given.shape != one.shape_for(sizes):
                shape = one.shape_for(sizes)
                raise ValueError(f"{one.name} has the shape {given.shape}, and not {shape}")
            if not np.can_cast(given.dtype, one.dtype, "same_kind"):
                raise TypeError(f"{one.name} has the dtype {given.dtype}, and not {one.dtype}")
            room = one.array(memory[one.place], sizes)
            room[...] = given
            if room.dtype.kind in "iu" and (room != given).any():
                raise ValueError(f"{one.name} has numbers that {one.dtype} cannot hold")
        pointers = (ctypes.c_void_p * (len(memory) or 1))(*[part.ctypes.data for part in memory])
        numbers = (ctypes.c_int64 * (len(sizes) or 1))(*[sizes[name] for name in self.sizes])
        self._check(self._function("run_tensors")(self._instance, pointers, numbers))
        for one, argument in zip(self.arguments, arguments, strict=True):
            if one.is_changed and isinstance(argument, np.ndarray):
                argument[...] = one.array(memory[one.place], sizes)
        states = self._memory() if any(one.place < 0 for one in self.results) else []
        places = [*memory, *[part.copy() for part in states[::-1]]]
        return {one.name: one.array(places[one.place], sizes) for one in self.results}

    def reset(self) -> None:
        """Gives all states the contents that they had at the export."""
        self._function("reset")(self._instance)

    def set_threads(self, threads: int) -> None:
        """The number of threads of later runs; raises `LoadError` if it was exported for one."""
        if not hasattr(self._library, f"{self.name}_set_threads"):
            raise LoadError(f"{self.name} was exported for one thread; export it with threads=True")
        self._check(self._function("set_threads")(self._instance, threads))

    def __del__(self) -> None:
        if getattr(self, "_instance", None):
            self._function("destroy")(self._instance)


def _filled(template: Any, results: Sequence[Array]) -> Any:
    """The results in the containers of a template."""
    if isinstance(template, int):
        return results[template]
    if isinstance(template, dict):
        kind, parts = template["kind"], template["parts"]
        if kind == "dict":
            return {ast.literal_eval(key): _filled(part, results) for key, part in parts}
        made = [_filled(part, results) for part in parts]
        return made if kind == "list" else tuple(made)
    return None


def load(path: str | Path, check: bool = True) -> Program:
    """The program in a file that `step.export(path, "ferrule")` wrote.

    **The file holds machine code: load only what you trust as you trust a program.** The checksum
    says that nothing was damaged, not who made it; with `check=False` it is not computed.

    Raises `LoadError` for a file that is no such program, is damaged, or is for another version of
    the format or another processor; `OSError` for one that cannot be read.

    >>> import ferrule
    >>> try:
    ...     ferrule.load(__file__)
    ... except ValueError as error:
    ...     print("not a program" in str(error))
    True
    """
    path = Path(path)
    about = _read(path, check)
    with tempfile.TemporaryDirectory(prefix="ferrule-") as folder:
        # A name of its own: by a name that it knows the system gives the library of before.
        link = Path(folder) / f"{about['name']}.so"
        link.symlink_to(path.absolute())
        try:
            library = ctypes.CDLL(str(link))
        except OSError as error:
            raise LoadError(f"{path}: the system cannot load it: {error}") from error
    return Program(library, about)


def _read(path: Path, check: bool) -> dict[str, Any]:
    """The description of a program, after all checks."""

    def refuse(reason: str) -> NoReturn:
        raise LoadError(f"{path}: {reason}")

    size = path.stat().st_size
    if size < FOOTER.size:
        refuse("not a program of ferrule: it is too short")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest, length, version, _, magic = FOOTER.unpack_from(data, size - FOOTER.size)
        if magic != MAGIC:
            refuse('not a program of ferrule, or cut short; step.export(path, "ferrule") makes one')
        if version != FORMAT_VERSION:
            refuse(
                f"it has version {version} of the format, and this ferrule reads {FORMAT_VERSION}"
            )
        if length > size - FOOTER.size:
            refuse("it is damaged: its description is longer than the file")
        if check:
            view = memoryview(data)
            try:
                found = checksum([view[: size - FOOTER.size], _footer_rest(length, version)])
            finally:
                view.release()
            if found != digest:
                refuse("it is damaged: its checksum differs")
        start = size - FOOTER.size - length
        try:
            about: dict[str, Any] = json.loads(data[start : start + length])
            machine = _MACHINES.get(platform.machine().lower(), platform.machine())
            if about["interface"] != INTERFACE_VERSION:
                refuse(f"it has version {about['interface']} of the interface of programs")
            if about["machine"] != machine:
                refuse(f"it is for {about['machine']}, and this processor is {machine}")
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise LoadError(f"{path}: its description is not readable: {error!r}") from error
    return about


def _footer_rest(length: int, version: int) -> bytes:
    """The parts of the footer that the checksum covers."""
    return FOOTER.pack(bytes(32), length, version, 0, MAGIC)


def footer(parts: Sequence[bytes | memoryview], length: int) -> bytes:
    """The end of a file with these contents, whose last `length` bytes are the description."""
    digest = checksum([*parts, _footer_rest(length, FORMAT_VERSION)])
    return FOOTER.pack(digest, length, FORMAT_VERSION, 0, MAGIC)


_MACHINES: Final = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}
