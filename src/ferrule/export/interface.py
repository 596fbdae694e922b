"""The interface of an exported program in C: its names, and what it says of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, final

from ferrule.base.records import dataclass
from ferrule.export.program import BlockKind, ExportedProgram, TensorSpec
from ferrule.ir.dtype import DType
from ferrule.ir.expr import ExprOp, Variable, sint

VERSION: Final = 1
"""The version of the interface: it changes when a program for the old one would not run."""

ERRORS: Final = {
    0: "no error",
    1: "there is not enough memory",
    2: "the program is for a processor with other instructions than this one has",
    3: "a pointer is null",
    4: "a size is outside of its bounds",
    5: "the system gives no more threads",
}
OK, NO_MEMORY, PROCESSOR, NULL_POINTER, SIZE, THREADS = ERRORS
ERROR_NAMES: Final = ("OK", "NO_MEMORY", "PROCESSOR", "NULL_POINTER", "SIZE", "THREADS")

C_TYPES: Final = {
    "bool": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float32": "float",
    "float64": "double",
}
_BY_SIZE: Final = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
_KEYWORDS: Final = """
alignas alignof and asm auto bool break case catch char class const constexpr continue default
delete do double else enum export extern false float for friend goto if inline int long mutable
namespace new not nullptr operator or private protected public register restrict return self short
signed sizeof sizes static struct switch template tensors this throw true try typedef typeof union
unsigned using virtual void volatile while xor instance NULL linux unix
"""
_LIBRARY: Final = """
abort abs access acos acosh alarm asctime asin asinh assert atan atan2 atanh atof atoi atol bind
bsearch calloc cbrt ceil clock close connect copysign cos cosh ctime difftime div dup environ erf
erfc errno exit exp exp2 expm1 fabs fclose fdim feof fflush fgetc fgets floor fma fmax fmin fmod
fopen fork fprintf fputc fputs fread free freopen frexp fseek ftell fwrite gamma getc getchar
getenv gets gmtime hypot ilogb index ioctl isalnum isalpha j0 j1 jn kill labs ldexp lgamma link
listen localtime log log10 log1p log2 logb longjmp lrint lround main malloc memchr memcmp memcpy
memmove memset mktime modf nan nearbyint nextafter nice open pause perror pipe poll pow printf putc
putchar puts qsort raise rand random read realloc recv remainder remove remquo rename rewind rindex
rint round scanf select send setbuf setjmp signal sin sinh sleep socket sprintf sqrt srand sscanf
stat stderr stdin stdout strcat strchr strcmp strcpy strlen strtod strtok strtol sync system tan
tanh tgamma time times tmpfile tolower toupper trunc umask uname ungetc unlink va_list vprintf wait
write y0 y1 yn int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t
"""
"""Names in the headers of C and POSIX; programs that include these have no types of that name."""


def c_type(dtype: DType) -> str:
    """The type of an element in C; types that C lacks are unsigned integers of their size."""
    return C_TYPES.get(dtype.name, _BY_SIZE[dtype.itemsize])


def c_name(text: str) -> str:
    """A name for C, with `_` in the place of what C does not allow."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_") or "program"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if name in _KEYWORDS.split() else name


def program_name(text: str) -> str:
    """The name of a program in C, which is that of its type.

    >>> program_name("my-net"), program_name("log")
    ('my_net', 'log_')
    """
    name = c_name(text)
    return f"{name}_" if name in _LIBRARY.split() else name


@final
@dataclass(frozen=True)
class Parameter:
    """Memory that a call is given a pointer to: an argument, or room for a result."""

    block: int
    name: str
    spec: TensorSpec
    is_written: bool


@final
@dataclass(frozen=True)
class Described:
    """A tensor as the interface describes it: its place is a pointer's number, or a state's."""

    spec: TensorSpec
    place: int
    """The number of a pointer of the call; for a state, -1 less its number."""


class Interface:
    """What the files of one program have in common: names, pointers, states, and tensors."""

    def __init__(self, program: ExportedProgram, name: str) -> None:
        self.program = program
        self.name = program_name(name)
        kinds = (BlockKind.ARGUMENT, BlockKind.RESULT)
        specs = {spec.cell.block: spec for spec in (*program.results, *program.arguments)}
        taken = {c_name(variable.name) for variable in program.variables}
        self.parameters: list[Parameter] = []
        for kind in kinds:
            for number, block in program.of_kind(kind):
                found = _free(c_name(block.name), taken)
                taken.add(found)
                is_written = block.is_written
                self.parameters.append(Parameter(number, found, specs[number], is_written))
        self.states = [number for number, _ in program.of_kind(BlockKind.STATE)]
        """The blocks of the states, in the order of their numbers."""
        self.sizes = [c_name(variable.name) for variable in program.variables]

    @cached_property
    def place_of_block(self) -> dict[int, int]:
        """The place of each block that the interface names; see `Described`."""
        places = {parameter.block: n for n, parameter in enumerate(self.parameters)}
        return places | {block: -1 - n for n, block in enumerate(self.states)}

    def described(self, specs: Sequence[TensorSpec]) -> list[Described]:
        """Tensors with their places."""
        return [Described(spec, self.place_of_block[spec.cell.block]) for spec in specs]

    @cached_property
    def state_specs(self) -> list[TensorSpec]:
        """The tensor in each state's block, in the order of `states`."""
        program = self.program
        specs = {spec.cell.block: spec for spec in (*program.effects, *program.states)}
        return [specs[block] for block in self.states]


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def size_data(size: sint, names: Mapping[Variable, str]) -> Any:
    """A size as data: a number, the name of a variable, or an operation with its operands."""
    if isinstance(size, int):
        return size
    if isinstance(size, Variable):
        return names[size]
    if size.op is ExprOp.CONST:
        return int(size.arg)
    return [size.op.name, *[size_data(operand, names) for operand in size.src]]


def shape_text(shape: Sequence[sint]) -> str:
    """A shape as text, with the names of variables."""
    return ", ".join(map(str, shape))
