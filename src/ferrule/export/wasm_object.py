"""A linker for one WebAssembly object of LLVM's: it becomes a module with a memory of its own.

An object imports its memory and the stack pointer, and leaves addresses open. With all code in one
object the numbers of functions and types are final; what is left is to define what is imported, and
to add the place of the object's data to each address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.export.program import ExportError

PAGE_BYTES: Final = 65536
_HEAD: Final = b"\0asm\1\0\0\0"
_TYPE, _IMPORT, _FUNCTION, _MEMORY, _GLOBAL, _EXPORT, _CODE, _DATA = 1, 2, 3, 5, 6, 7, 10, 11
_CUSTOM: Final = 0
_OF_FUNCTIONS, _OF_MEMORY = 0, 2  # kinds of exports
_I32, _I32_CONST, _END, _MUTABLE = 0x7F, 0x41, 0x0B, 1
_SYMBOL_TABLE: Final = 8  # the part of the section "linking"
_FUNCTION_SYMBOL, _DATA_SYMBOL, _GLOBAL_SYMBOL, _SECTION_SYMBOL = 0, 1, 2, 3
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40
_FINAL: Final = frozenset({0, 6, 7})  # numbers of functions, types and globals, right as they are
_ADDRESS_LEB, _ADDRESS_SLEB, _ADDRESS_I32 = 3, 4, 5
_LEB_BYTES: Final = 5  # of a number that a linker fills in


def leb(number: int, width: int = 1) -> bytes:
    """An unsigned number in LEB128, of at least `width` bytes.

    >>> leb(300).hex(), leb(3, 5).hex()
    ('ac02', '8380808000')
    """
    out = bytearray()
    while number > 0x7F or len(out) < width - 1:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed_leb(number: int, width: int = 1) -> bytes:
    """A signed number in LEB128, of at least `width` bytes.

    >>> signed_leb(64).hex(), signed_leb(-1).hex()
    ('c000', '7f')
    """
    out = bytearray()
    while not -64 <= number < 64 or len(out) < width - 1:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number & 0x7F)
    return bytes(out)


@final
class _Reader:
    """Reads the parts of a file in order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def bytes(self, size: int) -> bytes:
        self.place += size
        return self.data[self.place - size : self.place]

    def number(self, is_signed: bool = False) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if is_signed and byte & 0x40 else value

    def name(self) -> str:
        return self.bytes(self.number()).decode()

    def __bool__(self) -> bool:
        return self.place < len(self.data)


@final
@dataclass(frozen=True)
class _Symbol:
    kind: int
    name: str
    number: int
    """The number of the function or of the data segment."""
    offset: int = 0


@final
@dataclass(frozen=True)
class Segment:
    """Bytes that memory has at an address from the beginning."""

    address: int
    contents: bytes


@final
class WasmObject:
    """An object file, taken apart.

    Raises `ExportError` for a function or another thing that it needs and does not have.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_HEAD):
            raise ExportError("LLVM's object is no WebAssembly of version 1")
        self._sections: dict[int, bytes] = {}
        self._customs: dict[str, bytes] = {}
        self._order: list[int] = []
        reader = _Reader(data[len(_HEAD) :])
        while reader:
            kind, contents = reader.byte(), reader.bytes(reader.number())
            self._order.append(kind)
            if kind == _CUSTOM:
                custom = _Reader(contents)
                name = custom.name()
                self._customs[name] = contents[custom.place :]
            else:
                self._sections[kind] = contents
        self._check_imports()
        self._symbols = list(self._read_symbols())
        self._segments = list(self._read_segments())

    @property
    def data_bytes(self) -> int:
        """The bytes of the object's own data."""
        return max((s.address + len(s.contents) for s in self._segments), default=0)

    def _check_imports(self) -> None:
        reader = _Reader(self._sections.get(_IMPORT, b"\0"))
        for _ in range(reader.number()):
            _, name, kind = reader.name(), reader.name(), reader.byte()
            if name == "__linear_memory":
                has_maximum = reader.byte() & 1
                for _ in range(1 + has_maximum):
                    reader.number()
            elif name == "__stack_pointer":
                reader.bytes(2)
            else:
                raise ExportError(
                    f"the kernels need {name} (an import of kind {kind}), which a module of this "
                    "format cannot have; report this as a bug"
                )

    def _read_symbols(self) -> Iterator[_Symbol]:
        reader = _Reader(self._customs["linking"])
        reader.number()  # the version
        while reader:
            kind, part = reader.byte(), _Reader(reader.bytes(reader.number()))
            if kind != _SYMBOL_TABLE:
                continue
            for _ in range(part.number()):
                yield self._read_symbol(part)

    @staticmethod
    def _read_symbol(part: _Reader) -> _Symbol:
        kind, flags = part.byte(), part.number()
        if kind == _DATA_SYMBOL:
            name = part.name()
            if flags & _UNDEFINED:
                raise ExportError(f"the kernels need the data {name}; report this as a bug")
            number, offset, _ = part.number(), part.number(), part.number()
            return _Symbol(kind, name, number, offset)
        number = part.number()
        has_name = kind != _SECTION_SYMBOL and (not flags & _UNDEFINED or flags & _EXPLICIT_NAME)
        return _Symbol(kind, part.name() if has_name else "", number)

    def _read_segments(self) -> Iterator[Segment]:
        reader = _Reader(self._sections.get(_DATA, b"\0"))
        for _ in range(reader.number()):
            reader.number()  # flags: at a given address
            reader.byte()
            address = reader.number(is_signed=True)
            reader.byte()
            yield Segment(address, reader.bytes(reader.number()))

    def _relocated(self, section: int, name: str, base: int) -> bytes:
        """The contents of a section with the object's data at `base`."""
        out = bytearray(self._sections[section])
        reader = _Reader(self._customs.get(name, b"\0\0"))
        reader.number()  # the section
        for _ in range(reader.number()):
            kind, place, index = reader.byte(), reader.number(), reader.number()
            if kind in _FINAL:
                continue
            if kind not in (_ADDRESS_LEB, _ADDRESS_SLEB, _ADDRESS_I32):
                raise ExportError(f"relocation {kind} of LLVM's is not known; report this as a bug")
            symbol, addend = self._symbols[index], reader.number(is_signed=True)
            address = base + self._segments[symbol.number].address + symbol.offset + addend
            if kind == _ADDRESS_I32:
                value = address.to_bytes(4, "little")
            else:
                encode = signed_leb if kind == _ADDRESS_SLEB else leb
                value = encode(address, _LEB_BYTES)
            out[place : place + len(value)] = value
        return bytes(out)

    def module(
        self,
        exports: Mapping[str, str],
        segments: Sequence[Segment],
        *,
        base: int,
        stack_bytes: int,
        memory_bytes: int,
        customs: Mapping[str, bytes],
    ) -> bytes:
        """The module that exports `memory` and some functions, by their names in the object.

        The stack takes the first bytes, so that too deep a one traps and overwrites nothing. The
        object's data are at `base`; `segments` are further contents of memory.
        """
        if "reloc.DATA" in self._customs:
            raise ExportError("the kernels have data with addresses; report this as a bug")
        numbers = {s.name: s.number for s in self._symbols if s.kind == _FUNCTION_SYMBOL}
        named = [_text("memory") + bytes([_OF_MEMORY]) + leb(0)]
        for name, symbol in exports.items():
            named.append(_text(name) + bytes([_OF_FUNCTIONS]) + leb(numbers[symbol]))
        own = [Segment(base + s.address, s.contents) for s in self._segments]
        data = [_segment(s) for s in (*own, *segments) if s.contents]
        stack = bytes([_I32, _MUTABLE, _I32_CONST]) + signed_leb(stack_bytes) + bytes([_END])
        pages = round_up(memory_bytes, PAGE_BYTES) // PAGE_BYTES
        parts = [
            (_TYPE, self._sections[_TYPE]),
            (_FUNCTION, self._sections[_FUNCTION]),
            (_MEMORY, _vector([b"\1" + leb(pages) + leb(pages)])),
            (_GLOBAL, _vector([stack])),
            (_EXPORT, _vector(named)),
            (_CODE, self._relocated(_CODE, "reloc.CODE", base)),
            (_DATA, _vector(data)),
            *((_CUSTOM, _text(name) + contents) for name, contents in customs.items()),
        ]
        return _HEAD + b"".join(bytes([kind]) + leb(len(part)) + part for kind, part in parts)


def _text(name: str) -> bytes:
    return leb(len(name.encode())) + name.encode()


def _vector(parts: Sequence[bytes]) -> bytes:
    return leb(len(parts)) + b"".join(parts)


def _segment(segment: Segment) -> bytes:
    address = bytes([0, _I32_CONST]) + signed_leb(segment.address) + bytes([_END])
    return address + leb(len(segment.contents)) + segment.contents
