"""Relocations of object files, for each processor whose files the loader reads.

A relocation names a place in the code or the data, and a symbol; its kind says which value belongs
there. Numbers and formulas are those of the processors' ELF supplements. S is the symbol's address,
A the addend, P the place, and G a cell that holds S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, final

from ferrule.base.records import dataclass

Encode: TypeAlias = Callable[[int, int, int], int]
"""`encode(present value, place, target)`: the value that belongs at the place.

Raises `OverflowError` if the target is out of reach.
"""


@final
@dataclass(frozen=True, slots=True)
class Relocation:
    """One kind of relocation: the number of bytes that it changes, and how."""

    nbytes: int
    encode: Encode


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A processor, as far as a loader of object files has to know it."""

    name: str
    number: int
    """Its number in the header of an object file."""
    jump: bytes
    """Eight bytes of code that jump to the address stored after them.

    Calls use it for functions that are out of their reach. The address is also the cell for code
    that loads it.
    """
    relocations: Mapping[int, Relocation]
    calls: frozenset[int]
    """The kinds whose symbol may be reached by `jump`."""
    cells: frozenset[int]
    """The kinds that need the address of a cell with S, not S itself."""
    has_coherent_instructions: bool
    """True if code can be executed right after it has been written."""


def _within(distance: int, bits: int) -> int:
    """A signed number in `bits` bits."""
    if not -(1 << (bits - 1)) <= distance < 1 << (bits - 1):
        raise OverflowError(f"{distance} bytes away, too far")
    return distance & ((1 << bits) - 1)


def _absolute(_: int, _place: int, target: int) -> int:
    return target & (2**64 - 1)


def _relative_64(_: int, place: int, target: int) -> int:
    return _within(target - place, 64)


def _relative_32(_: int, place: int, target: int) -> int:
    return _within(target - place, 32)


# *** x86-64 ***

_X86_64_CELLS: Final = (9, 41, 42)  # GOTPCREL and two that the linker may relax: G + A - P
_X86_64_CALL: Final = 4  # PLT32: S + A - P

X86_64: Final = Machine(
    name="x86-64",
    number=62,
    jump=b"\xff\x25\x02\x00\x00\x00\x00\x00",  # jmp *2(%rip); two bytes of padding
    relocations={
        1: Relocation(8, _absolute),  # 64: S + A
        2: Relocation(4, _relative_32),  # PC32: S + A - P
        24: Relocation(8, _relative_64),  # PC64: S + A - P
        _X86_64_CALL: Relocation(4, _relative_32),
        **dict.fromkeys(_X86_64_CELLS, Relocation(4, _relative_32)),
    },
    calls=frozenset({_X86_64_CALL}),
    cells=frozenset(_X86_64_CELLS),
    has_coherent_instructions=True,
)


# *** AArch64: instructions of 4 bytes, with numbers in some of their bits ***

_LOG2_PAGE: Final = 12  # pages of the instruction `adrp`, whatever the system's pages are
_LOW: Final = (1 << _LOG2_PAGE) - 1


def _page(instruction: int, place: int, target: int) -> int:
    """`adrp`: the distance in pages from the place to the target."""
    pages = (target >> _LOG2_PAGE) - (place >> _LOG2_PAGE)
    field = _within(pages << _LOG2_PAGE, 21 + _LOG2_PAGE) >> _LOG2_PAGE
    return instruction & 0x9F00001F | (field & 3) << 29 | field >> 2 << 5


def _in_page(log2_bytes: int) -> Encode:
    """`add`, or a load or store of so many bytes: the target's place in its page."""

    def encode(instruction: int, _place: int, target: int) -> int:
        low = target & _LOW
        if low & ((1 << log2_bytes) - 1):
            raise OverflowError(f"{low} bytes into its page, not a multiple of {1 << log2_bytes}")
        return instruction & ~(_LOW << 10) | low >> log2_bytes << 10

    return encode


def _branch(instruction: int, place: int, target: int) -> int:
    """`b`, `bl`: the distance in instructions."""
    return instruction & 0xFC000000 | _within(target - place, 28) >> 2


_AARCH64_CALLS: Final = (282, 283)  # JUMP26, CALL26: S + A - P
_GOT_PAGE, _GOT_LOW = 311, 312  # ADR_GOT_PAGE, LD64_GOT_LO12_NC: of G

AARCH64: Final = Machine(
    name="AArch64",
    number=183,
    jump=b"\x50\x00\x00\x58\x00\x02\x1f\xd6",  # ldr x16, 8; br x16
    relocations={
        257: Relocation(8, _absolute),  # ABS64: S + A
        260: Relocation(8, _relative_64),  # PREL64: S + A - P
        261: Relocation(4, _relative_32),  # PREL32: S + A - P
        275: Relocation(4, _page),  # ADR_PREL_PG_HI21: page of S + A
        277: Relocation(4, _in_page(0)),  # ADD_ABS_LO12_NC: S + A in its page
        278: Relocation(4, _in_page(0)),  # LDST8_ABS_LO12_NC
        284: Relocation(4, _in_page(1)),  # LDST16_ABS_LO12_NC
        285: Relocation(4, _in_page(2)),  # LDST32_ABS_LO12_NC
        286: Relocation(4, _in_page(3)),  # LDST64_ABS_LO12_NC
        299: Relocation(4, _in_page(4)),  # LDST128_ABS_LO12_NC
        _GOT_PAGE: Relocation(4, _page),
        _GOT_LOW: Relocation(4, _in_page(3)),
        **dict.fromkeys(_AARCH64_CALLS, Relocation(4, _branch)),
    },
    calls=frozenset(_AARCH64_CALLS),
    cells=frozenset({_GOT_PAGE, _GOT_LOW}),
    has_coherent_instructions=False,
)

MACHINES: Final = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
"""The machines by the names that systems have for them, in lower case."""
