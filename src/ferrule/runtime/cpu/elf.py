"""Loads relocatable object files (ELF, as LLVM emits them) without LLVM.

A process whose kernels are all in the disk cache needs no compiler, only this. An object becomes
one mapping: first what is read or executed, then, from a page of its own, what is written. The
mapping is filled while it is writable and the first part is then made executable and read-only;
no page is ever both. Objects of other formats, and those of processors that `relocations` does not
know, are left to LLVM (`supports`).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.runtime.cpu.relocations import MACHINES, Machine


class ObjectError(ValueError):
    """An object file that is malformed, or that asks for something the loader does not do."""


MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
RELOCATABLE = 1
HEADER = Struct("<16sHHIQQQIHHHHHH")
SECTION = Struct("<IIQQQQIIQQ")
SYMBOL = Struct("<IBBHQQ")
RELOCATION = Struct("<QIIq")

_SYMBOL_TABLE, _RELOCATIONS_WITH_ADDEND, _NO_BITS, _RELOCATIONS_WITHOUT = 2, 4, 8, 9
_INITIALISERS = (14, 15, 16)
_UNWIND = 0x70000001
WRITE, ALLOCATE, EXECUTE, _THREAD_LOCAL = 1, 2, 4, 0x400
UNDEFINED, ABSOLUTE, _FIRST_RESERVED = 0, 0xFFF1, 0xFF00
_GLOBAL_BINDINGS = (1, 2)
_NO_RELOCATION = 0

HOST = MACHINES.get(platform.machine().lower())
"""The processor that this process runs on; None if `relocations` does not know it."""

_MAX_IMAGE = 1 << 30  # bytes; no kernel comes near it


@final
@dataclass(frozen=True, slots=True)
class Section:
    """A section of an object file; `data` is empty for one of zeros."""

    kind: int
    flags: int
    data: bytes
    size: int
    link: int
    info: int
    alignment: int

    @property
    def loaded(self) -> bool:
        """True if the section is part of the program in memory."""
        # Unwind tables are for exceptions, which kernels do not throw.
        return bool(self.flags & ALLOCATE) and self.kind != _UNWIND and self.size > 0


@final
@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: `value` is its place in a section, given by number."""

    name: str
    section: int
    value: int
    is_global: bool


@final
@dataclass(frozen=True, slots=True)
class LoadedObject:
    """Code in memory. It stays there as long as this object, or a view of `mem`, does."""

    symbols: Mapping[str, int]
    """The addresses of the functions and variables that the object defines for others."""
    mem: memoryview
    """The executable part, read-only; empty if LLVM loaded the object."""
    owner: object
    """The object that keeps the memory mapped."""

    def address(self, name: str) -> int:
        """The address of `name`. Raises `ObjectError` if the object does not define it."""
        if name not in self.symbols:
            defined = ", ".join(sorted(self.symbols)) or "nothing"
            raise ObjectError(f"object file: no symbol {name!r}; it defines {defined}")
        return self.symbols[name]


def supports(data: bytes) -> bool:
    """True if `load` is meant for this kind of object file, whatever its state."""
    if HOST is None or len(data) < HEADER.size or not data.startswith(MAGIC):
        return False
    if not HOST.has_coherent_instructions and _clear_cache() is None:
        return False
    return int.from_bytes(data[18:20], "little") == HOST.number


def load(data: bytes, externals: Mapping[str, int], machine: Machine | None = HOST) -> LoadedObject:
    """Map the object file `data`; its undefined symbols are resolved by `externals`.

    `machine` is the processor that it was compiled for. Code for another processor than this one is
    laid out and protected in the same way, for inspection.

    Raises `ObjectError` if the file is malformed, needs a symbol that is not in `externals`, or
    uses a feature that kernels have no need of; `OSError` if the system refuses the memory.
    """
    if machine is None:
        raise ObjectError(f"object file: no loader for {platform.machine()}; LLVM has one")
    try:
        sections = read_sections(data, machine)
        symbols = read_symbols(sections)
        return _Image(machine, sections, symbols, externals).load()
    except (StructError, IndexError) as cut_short:
        raise ObjectError(f"object file: truncated or malformed: {cut_short}") from cut_short


def _slice(data: bytes, start: int, size: int, what: str) -> bytes:
    if start + size > len(data):
        raise ObjectError(
            f"object file: {what} at {start}..{start + size} is outside of its {len(data)} bytes"
        )
    return data[start : start + size]


def read_sections(data: bytes, machine: Machine) -> list[Section]:
    """The sections of a relocatable object file."""
    if not data.startswith(MAGIC):
        raise ObjectError(f"object file: not 64-bit little-endian ELF, it starts {data[:7]!r}")
    header = HEADER.unpack_from(data)
    kind, number, table, entry_size, count = header[1], header[2], header[6], *header[11:13]
    if kind != RELOCATABLE or number != machine.number:
        raise ObjectError(
            f"object file: kind {kind} for machine {number}, expected a relocatable one"
            f" ({RELOCATABLE}) for {machine.name} ({machine.number})"
        )
    if entry_size != SECTION.size:
        raise ObjectError(f"object file: section headers of {entry_size} bytes, expected 64")
    rows = SECTION.iter_unpack(_slice(data, table, count * entry_size, "the section table"))
    return [_read_section(data, *row) for row in rows]


def _read_section(
    data: bytes,
    _name: int,
    kind: int,
    flags: int,
    _address: int,
    offset: int,
    size: int,
    link: int,
    info: int,
    alignment: int,
    _entry_size: int,
) -> Section:
    alignment = max(alignment, 1)
    if alignment & (alignment - 1) or alignment > mmap.PAGESIZE:
        raise ObjectError(f"object file: a section aligned to {alignment} bytes")
    if size > _MAX_IMAGE:
        raise ObjectError(f"object file: a section of {size} bytes")
    if flags & ALLOCATE and (flags & _THREAD_LOCAL or kind in _INITIALISERS):
        raise ObjectError("object file: thread-local data and initialisers are not supported")
    contents = b"" if kind == _NO_BITS else _slice(data, offset, size, "a section")
    return Section(kind, flags, contents, size, link, info, alignment)


def read_symbols(sections: list[Section]) -> list[Symbol]:
    """The symbols of an object file with these sections."""
    for section in sections:
        if section.kind == _SYMBOL_TABLE:
            names = sections[section.link].data
            rows = SYMBOL.iter_unpack(section.data)
            return [_read_symbol(names, row, len(sections)) for row in rows]
    return []


def _read_symbol(names: bytes, row: tuple[int, int, int, int, int, int], n_sections: int) -> Symbol:
    name_offset, info, _, section, value, _ = row
    end = names.find(b"\0", name_offset)
    if end < 0:
        raise ObjectError(f"object file: a symbol's name at {name_offset} does not end")
    name = names[name_offset:end].decode("utf-8", "replace")
    is_reserved = section >= _FIRST_RESERVED and section != ABSOLUTE
    if is_reserved or n_sections <= section < _FIRST_RESERVED:
        # Source file names are absolute; common symbols and the like never come from LLVM IR.
        raise ObjectError(f"object file: symbol {name!r} is in section {section:#x}")
    return Symbol(name, section, value, info >> 4 in _GLOBAL_BINDINGS)


def read_relocations(sections: Sequence[Section]) -> list[tuple[int, int, int, int, int]]:
    """The relocations of what is loaded, each as (section, offset in it, kind, symbol, addend)."""
    found = []
    for section in sections:
        is_needed = section.info < len(sections) and sections[section.info].loaded
        if section.kind == _RELOCATIONS_WITHOUT and is_needed:
            raise ObjectError("object file: relocations without addends")
        if section.kind == _RELOCATIONS_WITH_ADDEND and is_needed:
            for offset, kind, symbol, addend in RELOCATION.iter_unpack(section.data):
                found.append((section.info, offset, kind, symbol, addend))
    return found


# A stub, by which calls reach libc from far away: code that jumps, and the address; see
# `Machine.jump`.
_STUB = Struct("<8sQ")
_STUB_CELL = 8


class _Image:
    """One object on its way into memory."""

    def __init__(
        self,
        machine: Machine,
        sections: list[Section],
        symbols: list[Symbol],
        externals: Mapping[str, int],
    ) -> None:
        self.machine = machine
        self.sections = sections
        self.symbols = symbols
        self.externals = externals
        self.offsets: dict[int, int] = {}
        self.stubs: dict[int, int] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        end = self._place(0, writable=False)
        first_stub = round_up(end, _STUB.size)
        for number, index in enumerate(self._symbols_with_stubs()):
            self.stubs[index] = first_stub + number * _STUB.size
        self.protected = round_up(first_stub + len(self.stubs) * _STUB.size, mmap.PAGESIZE)
        self.size = round_up(self._place(self.protected, writable=True), mmap.PAGESIZE)
        if not 0 < self.size <= _MAX_IMAGE:
            raise ObjectError(f"object file: {self.size} bytes to load")

    def _place(self, end: int, writable: bool) -> int:
        for index, section in enumerate(self.sections):
            if section.loaded and bool(section.flags & WRITE) == writable:
                if writable and section.flags & EXECUTE:
                    raise ObjectError("object file: a section is both writable and executable")
                self.offsets[index] = round_up(end, section.alignment)
                end = self.offsets[index] + section.size
        return end

    def _relocations(self) -> list[tuple[int, int, int, int, int]]:
        return read_relocations(self.sections)

    def _symbols_with_stubs(self) -> list[int]:
        needed: dict[int, None] = {}
        for _, _, kind, index, _ in self._relocations():
            is_call = kind in self.machine.calls
            is_call_out = is_call and self.symbols[index].section == UNDEFINED
            if is_call_out or kind in self.machine.cells:
                needed[index] = None
        return list(needed)

    def load(self) -> LoadedObject:
        """Map memory, fill it, and make the code executable."""
        image = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(image))
        for index, offset in self.offsets.items():
            data = self.sections[index].data
            image[offset : offset + len(data)] = data
        for index, offset in self.stubs.items():
            address = self._symbol_address(self.symbols[index])
            _STUB.pack_into(image, offset, self.machine.jump, address)
        for relocation in self._relocations():
            self._relocate(image, *relocation)
        _make_executable(self.base, self.protected)
        defined = {
            symbol.name: self._symbol_address(symbol)
            for symbol in self.symbols
            if symbol.is_global and symbol.section in self.offsets
        }
        code = memoryview(image).toreadonly()[: self.protected]
        return LoadedObject(defined, code, image)

    def _symbol_address(self, symbol: Symbol) -> int:
        if symbol.section == UNDEFINED:
            if symbol.name not in self.externals:
                known = ", ".join(sorted(self.externals)) or "nothing"
                raise ObjectError(
                    f"object file: it needs {symbol.name!r} from outside; there is {known}"
                )
            return self.externals[symbol.name]
        if symbol.section == ABSOLUTE:
            return symbol.value
        if symbol.section not in self.offsets or symbol.value > _MAX_IMAGE:
            raise ObjectError(f"object file: symbol {symbol.name!r} is not in memory")
        return self.base + self.offsets[symbol.section] + symbol.value

    def _target(self, kind: int, index: int) -> int:
        """The address that a relocation of this kind against a symbol refers to."""
        if kind in self.machine.cells:
            return self.base + self.stubs[index] + _STUB_CELL
        if kind in self.machine.calls and index in self.stubs:
            return self.base + self.stubs[index]
        return self._symbol_address(self.symbols[index])

    def _relocate(
        self, image: mmap.mmap, section: int, offset: int, kind: int, index: int, addend: int
    ) -> None:
        name = self.symbols[index].name
        if kind == _NO_RELOCATION:
            return
        relocation = self.machine.relocations.get(kind)
        if relocation is None:
            raise ObjectError(
                f"object file: relocation of kind {kind} against {name!r};"
                " compile position-independent code in the small code model"
            )
        if offset + relocation.nbytes > self.sections[section].size:
            raise ObjectError(f"object file: a relocation at {offset} is outside of its section")
        start = self.offsets[section] + offset
        place = slice(start, start + relocation.nbytes)
        before = int.from_bytes(image[place], "little")
        target = self._target(kind, index) + addend
        try:
            after = relocation.encode(before, self.base + start, target)
        except OverflowError as error:
            raise ObjectError(f"object file: {name!r} is {error}") from error
        image[place] = after.to_bytes(relocation.nbytes, "little")


_PROT_READ, _PROT_EXECUTE = 1, 4
_mprotect = None


def _make_executable(address: int, size: int) -> None:
    global _mprotect
    if _mprotect is None:
        _mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        _mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if _mprotect(address, size, _PROT_READ | _PROT_EXECUTE) != 0:
        raise OSError(
            ctypes.get_errno(),
            "the system does not let this process execute memory that it has written;"
            " native kernels need that (SELinux: allow execmem)",
        )
    if HOST is not None and not HOST.has_coherent_instructions:
        clear_cache = _clear_cache()
        assert clear_cache is not None, "supports() says that LLVM loads here"
        clear_cache(address, address + size)


@cache
def _clear_cache() -> Callable[[int, int], None] | None:
    """The function of the compiler's runtime library that makes written code visible to all
    processors.

    It takes the first address of the code, and the one after its end. None if the library is not
    installed. It cannot be made here, as it would have to be called on itself first.
    """
    try:
        library = ctypes.CDLL("libgcc_s.so.1")
    except OSError:
        return None
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    return prototype(("__clear_cache", library)) if hasattr(library, "__clear_cache") else None
