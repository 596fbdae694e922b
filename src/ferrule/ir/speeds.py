"""Speeds of a processor's core: the constants by which schedules and cuts are weighed.

All but the first two are in cycles or in instructions a cycle, so that the clock changes nothing in
the order of two estimates. Each family of processors has a table that is shipped.
`python -m ferrule calibrate` measures one for the machine that it runs on, and keeps it in the disk
cache (`runtime/cpu/measured.py`). Nothing is measured unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, final

from ferrule.base.records import dataclass

_LONG_FLOAT: Final = {
    "EXP2": "exp2",
    "LOG2": "log2",
    "SIN": "sin",
    "COS": "sin",
    "SQRT": "sqrt",
    "RECIP": "division",
    "DIV": "division",
    "FDIV": "division",
    "MOD": "remainder",
    "FMOD": "remainder",
}
_LONG_INTEGER: Final = dict.fromkeys(("DIV", "MOD", "TDIV", "TMOD"), "integer_division")
"""Operations that take longer than an addition, and the names of their times."""


@final
@dataclass(frozen=True)
class Speeds:
    """What one core of a processor does in a cycle.

    The defaults are of recent x86-64 cores (Zen 4, two threads, 2026-11-28): known figures first,
    and then those with which the order of 1,053 schedules was least often wrong.
    """

    hertz: float = 3.0e9
    """Cycles a second."""
    bytes_per_second: float = 25.0e9
    """Bytes a second between memory and one core."""
    arithmetic: float = 2.0
    """Vector operations that begin in a cycle."""
    loads: float = 2.0
    """Loads of a vector that begin in a cycle."""
    stores: float = 1.0
    """Stores of a vector that begin in a cycle."""
    shuffles: float = 1.0
    """Moves of elements between lanes that begin in a cycle."""
    instructions: float = 5.0
    """Instructions of all kinds together that begin in a cycle."""
    masked_store: float = 1.0
    """The time of a vector store with a mask, in vector stores."""
    in_flight: float = 256.0
    """Instructions that a core looks ahead."""
    latency: float = 4.0
    """Cycles from the operands of an addition or a multiplication to its result."""
    line: float = 1.25
    """Cycles to bring a line from the second cache, one of several in a row."""
    line_alone: float = 3.75
    """Cycles to bring a line whose neighbours are not wanted, so that nothing fetches it ahead."""
    threads: float = 1500.0
    """Cycles until other threads have begun, and to wait for the last one."""
    launch: float = 300.0
    """Cycles to start a kernel."""
    exp2: float = 12.0
    """The time of a power of two, in additions, as of all operations below."""
    log2: float = 16.0
    sin: float = 24.0
    """Of a cosine, too."""
    sqrt: float = 6.0
    division: float = 5.0
    """Of floats; of a reciprocal, too."""
    remainder: float = 24.0
    """Of floats."""
    integer_division: float = 20.0
    """Of a remainder of integers, too."""

    def additions(self, name: str, *, is_float: bool) -> float:
        """The time of an operation, in additions; `name` is that of its `Op` or `ExprOp`."""
        long = _LONG_FLOAT.get(name) if is_float else _LONG_INTEGER.get(name)
        return 1.0 if long is None else float(getattr(self, long))

    def to_json(self) -> dict[str, float]:
        """The constants by name."""
        return asdict(self)

    @staticmethod
    def from_json(constants: Mapping[str, Any]) -> Speeds:
        """The speeds that `to_json` described.

        Raises:
            ValueError: a constant is missing, unknown, or no positive finite number.
        """
        names = {field.name for field in fields(Speeds)}
        if set(constants) != names:
            wrong = sorted(names ^ set(constants))
            raise ValueError(f"speeds: these constants are missing or unknown: {', '.join(wrong)}")
        for name, value in constants.items():
            if not isinstance(value, float) or not 0 < value < float("inf"):
                raise ValueError(f"speeds: {name} is {value!r}, not a positive number")
        return Speeds(**constants)


FAMILIES: Final[Mapping[str, Speeds]] = {
    "x86-64": Speeds(),
    # The least of Arm's guides for Neoverse N1, N2 and V1; not measured.
    "aarch64": Speeds(line=2.0, line_alone=5.0, in_flight=128.0),
}
"""The speeds that are shipped, by architecture."""


def shipped(arch: str) -> Speeds:
    """The speeds of an architecture for machines that were not measured."""
    return FAMILIES.get(arch, Speeds())
