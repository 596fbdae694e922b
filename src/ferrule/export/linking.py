"""Links relocatable object files to a shared library, without a linker.

The library is laid out as it will lie in memory, so that a place in the file is its address from
the start of the library. Its segments, each from a page of its own: tables and constants
(read-only), code (read-only, executable), addresses that the dynamic linker fills in (read-only
from then on), and at last the weights (read-only), which stay on disk until they are used.

There are no variables: a library has no state. What no object defines is looked up in the process
that loads the library, so that no C library is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import BinaryIO, Final, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.runtime.cpu.elf import (
    ABSOLUTE,
    ALLOCATE,
    EXECUTE,
    HEADER,
    MAGIC,
    RELOCATION,
    SECTION,
    SYMBOL,
    UNDEFINED,
    WRITE,
    ObjectError,
    Section,
    Symbol,
    read_relocations,
    read_sections,
    read_symbols,
)
from ferrule.runtime.cpu.relocations import AARCH64, X86_64, Machine

_PROGRAM_HEADER: Final = Struct("<IIQQQQQQ")
_DYNAMIC: Final = Struct("<qQ")
_SHARED: Final = 3
_LOAD, _DYNAMIC_SEGMENT, _STACK, _READ_ONLY_AFTER = 1, 2, 0x6474E551, 0x6474E552
_R, _W, _X = 4, 2, 1
_STUB_BYTES: Final = 16
_FUNCTION, _OBJECT = 2, 1
_GLOBAL: Final = 1 << 4
_PROGBITS, _STRINGS, _RELA, _HASH, _DYNAMIC_SECTION, _DYNAMIC_SYMBOLS = 1, 3, 4, 5, 6, 11


@final
@dataclass(frozen=True)
class _Dynamic:
    """What the dynamic linker of a processor calls things, and how code jumps by a cell."""

    absolute: int
    """The kind of relocation for an address of 8 bytes."""
    relative: int
    """The kind for an address in the library itself."""
    cell: int
    """The kind for a cell with the address of a symbol."""
    page: int
    """The largest page size of systems for it."""
    stub: Callable[[int, int], bytes]
    """`stub(place, cell)`: code at a place that jumps to the address in a cell."""


def _x86_stub(place: int, cell: int) -> bytes:
    distance = cell - (place + 6)
    return b"\xff\x25" + distance.to_bytes(4, "little", signed=True) + b"\xcc" * 10


def _arm_stub(place: int, cell: int) -> bytes:
    """adrp x16, cell; ldr x17, [x16, low]; br x17; nop."""
    page, low = AARCH64.relocations[275].encode, AARCH64.relocations[286].encode
    words = page(0x90000010, place, cell), low(0xF9400211, 0, cell), 0xD61F0220, 0xD503201F
    return b"".join([word.to_bytes(4, "little") for word in words])


_DYNAMICS: Final = {
    X86_64.number: _Dynamic(1, 8, 6, 0x1000, _x86_stub),
    AARCH64.number: _Dynamic(257, 1027, 1025, 0x10000, _arm_stub),
}


@final
@dataclass(frozen=True)
class Blob:
    """Read-only data of a library, in pieces: `nbytes` in all, under the name of a symbol."""

    name: str
    nbytes: int
    pieces: Callable[[], Iterable[bytes]]


@final
class _Object:
    """An object file on its way into a library, with the places of its sections there."""

    def __init__(self, data: bytes, machine: Machine) -> None:
        self.sections = read_sections(data, machine)
        self.symbols = read_symbols(self.sections)
        self.relocations = read_relocations(self.sections)
        self.places: dict[int, int] = {}
        table_at, names = int.from_bytes(data[40:48], "little"), HEADER.unpack_from(data)[13]
        for number, section in enumerate(self.sections):
            if section.loaded and section.flags & WRITE:
                start = int.from_bytes(data[table_at + number * SECTION.size :][:4], "little")
                if not self.sections[names].data.startswith(b".data.rel.ro", start):
                    raise ObjectError("object file: it has variables, and programs have none")


@final
class SharedLibrary:
    """A shared library made of object files: `exported` are the names of its functions.

    Raises `ObjectError` for files that it cannot link, or that need a function that is neither in
    one of them nor among the `imported`.
    """

    def __init__(
        self,
        objects: Sequence[bytes],
        exported: Sequence[str],
        imported: Sequence[str],
        blob: Blob,
        machine: Machine,
        name: str,
    ) -> None:
        self._machine = machine
        self._dynamic = _DYNAMICS[machine.number]
        self._name = name
        self._blob = blob
        self._exported = exported
        self._imported = imported
        self._objects = [_Object(data, machine) for data in objects]
        self._defined: dict[str, tuple[_Object, Symbol]] = {}
        for one in self._objects:
            for symbol in one.symbols:
                if symbol.is_global and symbol.section != UNDEFINED:
                    if symbol.name in self._defined:
                        raise ObjectError(f"two object files define {symbol.name!r}")
                    self._defined[symbol.name] = one, symbol
        self._stubs: dict[str, int] = {}
        self._cells: dict[tuple[int, str], int] = {}
        self._used: list[str] = []
        """The names of the functions that come from outside."""
        self._scan()
        self._lay_out()
        self.image = self._filled()

    def write(self, file: BinaryIO) -> int:
        """Writes the library to a file; returns its size in bytes."""
        file.write(self.image)
        written = 0
        if self._blob.nbytes:
            file.write(bytes(self._blob_at - len(self.image)))
            for piece in self._blob.pieces():
                written += file.write(piece)
            assert written == self._blob.nbytes, "the pieces are as long as they said"
        return (self._blob_at if self._blob.nbytes else len(self.image)) + written

    # -- what there is ---------------------------------------------------------------------------

    def _is_inside(self, symbol: Symbol) -> bool:
        is_local = symbol.section != UNDEFINED
        return is_local or symbol.name in self._defined or symbol.name == self._blob.name

    def _scan(self) -> None:
        """Finds the stubs, the cells and the relocations that are left to the dynamic linker."""
        machine = self._machine
        names: dict[str, None] = {}
        stubs: dict[str, None] = {}
        cells: dict[tuple[int, str], None] = {}
        count = 0
        for number, one in enumerate(self._objects):
            for section, _, kind, index, _ in one.relocations:
                symbol = one.symbols[index]
                inside = self._is_inside(symbol)
                if not inside:
                    if symbol.name not in self._imported:
                        raise ObjectError(f"object file: it needs {symbol.name!r} from outside")
                    names[symbol.name] = None
                if kind in machine.cells:
                    cells[self._cell_key(number, index, symbol)] = None
                elif kind in machine.calls and not inside:
                    stubs[symbol.name] = None
                    cells[-1, symbol.name] = None
                elif kind == self._dynamic.absolute:
                    if not one.sections[section].flags & WRITE:
                        raise ObjectError("object file: an address in read-only data")
                    count += 1
        self._used = list(names)
        self._stubs = dict.fromkeys(stubs, 0)
        self._cells = dict.fromkeys(cells, 0)
        self._n_dynamic = count + len(cells)

    def _cell_key(self, number: int, index: int, symbol: Symbol) -> tuple[int, str]:
        """What a cell is for: a name, or a symbol of one object file."""
        is_named = symbol.is_global or symbol.section == UNDEFINED
        return (-1, symbol.name) if is_named else (number, str(index))

    # -- where it is -----------------------------------------------------------------------------

    def _place(self, end: int, wanted: Callable[[Section], bool]) -> int:
        for one in self._objects:
            for index, section in enumerate(one.sections):
                if section.loaded and wanted(section):
                    one.places[index] = round_up(end, section.alignment)
                    end = one.places[index] + section.size
        return end

    def _lay_out(self) -> None:
        page = self._dynamic.page
        self._strings = _Strings([self._name, *self._used, *self._exported])
        n_symbols = 1 + len(self._used) + len(self._exported)
        self._headers = 7 if self._blob.nbytes else 6
        self._symbols_at = round_up(HEADER.size + self._headers * _PROGRAM_HEADER.size, 8)
        self._hash_at = self._symbols_at + n_symbols * SYMBOL.size
        self._strings_at = self._hash_at + 4 * (2 + 1 + n_symbols)
        self._relocations_at = round_up(self._strings_at + len(self._strings.data), 8)
        self._data_at = self._relocations_at + self._n_dynamic * RELOCATION.size
        self._data_end = self._place(
            self._data_at, lambda s: not s.flags & (WRITE | EXECUTE) and bool(s.flags & ALLOCATE)
        )
        self._code_at = round_up(self._data_end, page)
        end = round_up(self._place(self._code_at, lambda s: bool(s.flags & EXECUTE)), _STUB_BYTES)
        for name in self._stubs:
            self._stubs[name] = end
            end += _STUB_BYTES
        self._code_end = end
        self._filled_at = round_up(end, page)
        end = round_up(self._place(self._filled_at, lambda s: bool(s.flags & WRITE)), 8)
        self._cells_at = end
        for key in self._cells:
            self._cells[key] = end
            end += 8
        self._dynamic_at = end
        self._n_entries = 12
        # The system makes whole pages read-only, so that the segment ends with a page.
        self._filled_end = round_up(end + self._n_entries * _DYNAMIC.size, page)
        sections = [".dynsym", ".hash", ".dynstr", ".rela.dyn", ".rodata", ".text"]
        sections += [".data.rel.ro", ".got", ".dynamic", ".weights", ".shstrtab"]
        self._section_names = _Strings(sections)
        self._section_names_at = self._filled_end
        self._sections_at = round_up(self._filled_end + len(self._section_names.data), 8)
        end = self._sections_at + (1 + len(sections)) * SECTION.size
        self._image_end = end
        self._blob_at = round_up(end, page)

    def _address(self, one: _Object, symbol: Symbol) -> int:
        """The address of a symbol in the library."""
        if symbol.section == UNDEFINED:
            if symbol.name == self._blob.name:
                return self._blob_at
            one, symbol = self._defined[symbol.name]
        if symbol.section == ABSOLUTE:
            return symbol.value
        if symbol.section not in one.places:
            raise ObjectError(f"object file: symbol {symbol.name!r} is not in memory")
        return one.places[symbol.section] + symbol.value

    # -- what it contains ------------------------------------------------------------------------

    def _filled(self) -> bytes:
        image = bytearray(self._image_end)
        for one in self._objects:
            for index, place in one.places.items():
                data = one.sections[index].data
                image[place : place + len(data)] = data
        relative: list[tuple[int, int]] = []
        named: list[tuple[int, int, int]] = []
        for number, one in enumerate(self._objects):
            for relocation in one.relocations:
                self._relocate(image, number, one, relocation, relative, named)
        for name, place in self._stubs.items():
            code = self._dynamic.stub(place, self._cells[-1, name])
            image[place : place + len(code)] = code
        numbers = {name: 1 + number for number, name in enumerate(self._used)}
        for (number, key), cell in self._cells.items():
            if key in numbers:
                named.append((cell, numbers[key], self._dynamic.cell))
            else:
                relative.append((cell, self._cell_target(number, key)))
        self._put_tables(image, relative, named)
        self._put_headers(image)
        return bytes(image)

    def _cell_target(self, number: int, key: str) -> int:
        if number >= 0:
            one = self._objects[number]
            return self._address(one, one.symbols[int(key)])
        if key == self._blob.name:
            return self._blob_at
        return self._address(*self._defined[key])

    def _relocate(
        self,
        image: bytearray,
        number: int,
        one: _Object,
        relocation: tuple[int, int, int, int, int],
        relative: list[tuple[int, int]],
        named: list[tuple[int, int, int]],
    ) -> None:
        section, offset, kind, index, addend = relocation
        symbol = one.symbols[index]
        if kind == 0:
            return
        known = self._machine.relocations.get(kind)
        if known is None or offset + known.nbytes > one.sections[section].size:
            raise ObjectError(f"object file: relocation of kind {kind} against {symbol.name!r}")
        place = one.places[section] + offset
        if kind == self._dynamic.absolute:
            if self._is_inside(symbol):
                relative.append((place, self._address(one, symbol) + addend))
            else:
                named.append((place, 1 + self._used.index(symbol.name), kind))
            return
        if kind in self._machine.cells:
            target = self._cells[self._cell_key(number, index, symbol)]
        elif self._is_inside(symbol):
            target = self._address(one, symbol)
        elif kind in self._machine.calls:
            target = self._stubs[symbol.name]
        else:
            raise ObjectError(f"object file: the code needs the place of {symbol.name!r}")
        spot = slice(place, place + known.nbytes)
        before = int.from_bytes(image[spot], "little")
        try:
            after = known.encode(before, place, target + addend)
        except OverflowError as error:
            raise ObjectError(f"object file: {symbol.name!r} is {error}") from error
        image[spot] = after.to_bytes(known.nbytes, "little")

    def _put_tables(
        self,
        image: bytearray,
        relative: Sequence[tuple[int, int]],
        named: Sequence[tuple[int, int, int]],
    ) -> None:
        """Fills in the tables of the dynamic linker."""
        strings = self._strings
        image[self._strings_at : self._strings_at + len(strings.data)] = strings.data
        at = self._symbols_at + SYMBOL.size
        for name in self._used:
            SYMBOL.pack_into(image, at, strings.at[name], _GLOBAL | _FUNCTION, 0, 0, 0, 0)
            at += SYMBOL.size
        for name in self._exported:
            if name not in self._defined:
                raise ObjectError(f"no object file defines {name!r}")
            one, symbol = self._defined[name]
            address = self._address(one, symbol)
            is_code = bool(one.sections[symbol.section].flags & EXECUTE)
            kind = _GLOBAL | (_FUNCTION if is_code else _OBJECT)
            # Any number but 0 says that it is defined; 6 is that of the code in our own table.
            SYMBOL.pack_into(image, at, strings.at[name], kind, 0, 6, address, 0)
            at += SYMBOL.size
        # A table of one bucket: a list of all symbols. There are few.
        count = 1 + len(self._used) + len(self._exported)
        chain = [*range(2, count), 0] if count > 1 else []
        words = [1, count, 1 if count > 1 else 0, 0, *chain]
        Struct(f"<{len(words)}I").pack_into(image, self._hash_at, *words)
        at = self._relocations_at
        for place, target in sorted(relative):
            RELOCATION.pack_into(image, at, place, self._dynamic.relative, 0, target)
            at += RELOCATION.size
        for place, number, kind in sorted(named):
            RELOCATION.pack_into(image, at, place, kind, number, 0)
            at += RELOCATION.size
        entries = [
            *((14, strings.at[self._name]), (4, self._hash_at), (5, self._strings_at)),
            *((6, self._symbols_at), (10, len(strings.data)), (11, SYMBOL.size)),
            *((7, self._relocations_at), (8, self._n_dynamic * RELOCATION.size)),
            *((9, RELOCATION.size), (0x6FFFFFF9, len(relative)), (30, 8), (0, 0)),
        ]
        assert len(entries) == self._n_entries
        for number, entry in enumerate(entries):
            _DYNAMIC.pack_into(image, self._dynamic_at + number * _DYNAMIC.size, *entry)

    def _put_headers(self, image: bytearray) -> None:
        n_sections = 12
        header = (MAGIC.ljust(16, b"\0"), _SHARED, self._machine.number, 1, 0, HEADER.size)
        counts = (HEADER.size, _PROGRAM_HEADER.size, self._headers, SECTION.size, n_sections)
        HEADER.pack_into(image, 0, *header, self._sections_at, 0, *counts, n_sections - 1)
        page = self._dynamic.page
        filled = self._filled_end - self._filled_at
        segments = [
            (_LOAD, _R, 0, self._data_end, page),
            (_LOAD, _R | _X, self._code_at, self._code_end - self._code_at, page),
            (_LOAD, _R | _W, self._filled_at, filled, page),
            *([(_LOAD, _R, self._blob_at, self._blob.nbytes, page)] * (self._headers - 6)),
            (_DYNAMIC_SEGMENT, _R | _W, self._dynamic_at, self._n_entries * _DYNAMIC.size, 8),
            (_READ_ONLY_AFTER, _R, self._filled_at, filled, 1),
            (_STACK, _R | _W, 0, 0, 16),
        ]
        for number, (kind, flags, at, size, alignment) in enumerate(segments):
            place = HEADER.size + number * _PROGRAM_HEADER.size
            _PROGRAM_HEADER.pack_into(image, place, kind, flags, at, at, at, size, size, alignment)
        names = self._section_names
        image[self._section_names_at : self._section_names_at + len(names.data)] = names.data
        n_symbols = 1 + len(self._used) + len(self._exported)
        dynamic = self._n_entries * _DYNAMIC.size
        relocations = self._n_dynamic * RELOCATION.size
        rows = [
            # name, kind, flags, place, size, link, info, alignment, size of an entry
            (".dynsym", _DYNAMIC_SYMBOLS, 2, self._symbols_at, n_symbols * 24, 3, 1, 8, 24),
            (".hash", _HASH, 2, self._hash_at, 4 * (3 + n_symbols), 1, 0, 4, 4),
            (".dynstr", _STRINGS, 2, self._strings_at, len(self._strings.data), 0, 0, 1, 0),
            (".rela.dyn", _RELA, 2, self._relocations_at, relocations, 1, 0, 8, 24),
            (".rodata", _PROGBITS, 2, self._data_at, self._data_end - self._data_at, 0, 0, 64, 0),
            (".text", _PROGBITS, 6, self._code_at, self._code_end - self._code_at, 0, 0, 64, 0),
            *(
                (name, kind, 3, at, stop - at, link, 0, 8, entry)
                for name, kind, at, stop, link, entry in (
                    (".data.rel.ro", _PROGBITS, self._filled_at, self._cells_at, 0, 0),
                    (".got", _PROGBITS, self._cells_at, self._dynamic_at, 0, 8),
                    (
                        ".dynamic",
                        _DYNAMIC_SECTION,
                        self._dynamic_at,
                        self._dynamic_at + dynamic,
                        3,
                        16,
                    ),
                )
            ),
            (".weights", _PROGBITS, 2, self._blob_at, self._blob.nbytes, 0, 0, page, 0),
            (".shstrtab", _STRINGS, 0, self._section_names_at, len(names.data), 0, 0, 1, 0),
        ]
        for number, (name, kind, flags, at, size, link, info, alignment, entry) in enumerate(rows):
            address = at if flags else 0
            place = self._sections_at + (1 + number) * SECTION.size
            row = names.at[name], kind, flags, address, at, size, link, info, alignment, entry
            SECTION.pack_into(image, place, *row)


@final
class _Strings:
    """A table of names, and the place of each in it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.at: dict[str, int] = {}
        data = b"\0"
        for name in names:
            self.at[name] = len(data)
            data += name.encode() + b"\0"
        self.data: Final = data


def externals_of(objects: Sequence[bytes], machine: Machine) -> Mapping[str, None]:
    """The names that object files need from outside of themselves."""
    parts = [read_symbols(read_sections(data, machine)) for data in objects]
    defined = {s.name for part in parts for s in part if s.is_global and s.section != UNDEFINED}
    needed = [s.name for part in parts for s in part if s.section == UNDEFINED and s.name]
    return dict.fromkeys([name for name in needed if name not in defined])
