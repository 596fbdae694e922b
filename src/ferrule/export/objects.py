"""Relocatable object files: with other names of symbols, with data, and many in an archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import BinaryIO, Final, TypeAlias, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.runtime.cpu.elf import (
    ALLOCATE,
    HEADER,
    MAGIC,
    RELOCATABLE,
    SECTION,
    SYMBOL,
    UNDEFINED,
    read_sections,
    read_symbols,
)
from ferrule.runtime.cpu.relocations import Machine

_HIDDEN: Final = 2
_SYMBOL_TABLE: Final = 2


def renamed(data: bytes, names: Mapping[str, str], machine: Machine) -> bytes:
    """An object file with other names of its global symbols; those that it defines are hidden.

    A hidden symbol is seen by the other objects of a program or library, and not from outside.
    """
    sections = read_sections(data, machine)
    symbols = read_symbols(sections)
    number = next(n for n, section in enumerate(sections) if section.kind == _SYMBOL_TABLE)
    link = sections[number].link
    table_at = int.from_bytes(data[40:48], "little")
    place = _offset(data, table_at, number)
    # Names are added at the end, so that the old ones stay where they are.
    strings = bytearray(sections[link].data)
    changed = bytearray(data)
    for row, symbol in enumerate(symbols):
        if not symbol.is_global:
            continue
        at = place + row * SYMBOL.size
        name, info, other, *rest = SYMBOL.unpack_from(changed, at)
        if symbol.name in names:
            name = len(strings)
            strings += names[symbol.name].encode() + b"\0"
        other = other if symbol.section == UNDEFINED else _HIDDEN
        SYMBOL.pack_into(changed, at, name, info, other, *rest)
    header = table_at + link * SECTION.size
    row_of_strings = list(SECTION.unpack_from(changed, header))
    row_of_strings[4:6] = len(changed), len(strings)
    SECTION.pack_into(changed, header, *row_of_strings)
    return bytes(changed + strings)


def _offset(data: bytes, table: int, number: int) -> int:
    """The place of a section's contents in an object file."""
    return int(SECTION.unpack_from(data, table + number * SECTION.size)[4])


def defined_names(data: bytes, machine: Machine) -> list[str]:
    """The names of the symbols that an object file defines for others."""
    symbols = read_symbols(read_sections(data, machine))
    return [s.name for s in symbols if s.is_global and s.section != UNDEFINED]


Pieces: TypeAlias = Callable[[], Iterable[bytes]]


@final
@dataclass(frozen=True)
class Member:
    """A member of an archive: a file in pieces, and the symbols that it defines."""

    name: str
    nbytes: int
    pieces: Pieces
    symbols: tuple[str, ...]

    @staticmethod
    def of(name: str, data: bytes, symbols: Sequence[str]) -> Member:
        """A member that is at hand as a whole."""
        return Member(name, len(data), lambda: [data], tuple(symbols))


def data_object(name: str, nbytes: int, pieces: Pieces, machine: Machine) -> Member:
    """An object file with read-only data at a symbol, aligned to a page."""
    section_names = b"\0.weights\0.symtab\0.strtab\0.note.GNU-stack\0"
    strings = b"\0" + name.encode() + b"\0"
    start = 0x1000
    end = start + round_up(nbytes, 8)
    symbol = SYMBOL.pack(1, 0x11, _HIDDEN, 1, 0, nbytes)
    symbols = bytes(SYMBOL.size) + symbol
    strings_at = end + len(symbols)
    names_at = strings_at + len(strings)
    table_at = round_up(names_at + len(section_names), 8)
    rows = [
        (1, 1, ALLOCATE, 0, start, nbytes, 0, 0, start, 0),
        (section_names.index(b".symtab"), 2, 0, 0, end, len(symbols), 3, 1, 8, SYMBOL.size),
        (section_names.index(b".strtab"), 3, 0, 0, strings_at, len(strings), 0, 0, 1, 0),
        (section_names.index(b".note"), 1, 0, 0, names_at, 0, 0, 0, 1, 0),
        (0, 3, 0, 0, names_at, len(section_names), 0, 0, 1, 0),
    ]
    header = (MAGIC.ljust(16, b"\0"), RELOCATABLE, machine.number, 1, 0, 0, table_at, 0)
    first = HEADER.pack(*header, HEADER.size, 0, 0, SECTION.size, len(rows) + 1, len(rows))
    table = bytes(SECTION.size) + b"".join([SECTION.pack(*row) for row in rows])
    last = symbols + strings + section_names
    last += bytes(table_at - end - len(last)) + table

    def all_pieces() -> Iterable[bytes]:
        yield first.ljust(start, b"\0")
        yield from pieces()
        yield bytes(end - start - nbytes) + last

    return Member(f"{name}.o", end + len(last), all_pieces, (name,))


_ARCHIVE: Final = b"!<arch>\n"


def write_archive(file: BinaryIO, members: Sequence[Member]) -> None:
    """Writes an archive, in the format of `ar`, with its table of symbols."""
    long_names = b"".join([f"{member.name}/\n".encode() for member in members])
    long_names += b"\n" * (len(long_names) % 2)
    symbols = [(name, number) for number, one in enumerate(members) for name in one.symbols]
    names = b"".join([name.encode() + b"\0" for name, _ in symbols])
    table_bytes = 4 + 4 * len(symbols) + len(names)
    table_bytes += table_bytes % 2
    start = len(_ARCHIVE) + 60 + table_bytes + 60 + len(long_names)
    places = []
    for member in members:
        places.append(start)
        start += 60 + round_up(member.nbytes, 2)
    words = Struct(f">{1 + len(symbols)}I")
    table = words.pack(len(symbols), *[places[number] for _, number in symbols]) + names
    file.write(_ARCHIVE)
    file.write(_entry("/", table_bytes) + table.ljust(table_bytes, b"\0"))
    file.write(_entry("//", len(long_names)) + long_names)
    at = 0
    for member in members:
        file.write(_entry(f"/{at}", member.nbytes))
        written = sum([file.write(piece) for piece in member.pieces()])
        assert written == member.nbytes, "the pieces are as long as they said"
        file.write(b"\n" * (written % 2))
        at += len(member.name) + 2


def _entry(name: str, nbytes: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{nbytes:<10}`\n".encode()
