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


@final
@dataclass(frozen=True)
class BlockSpeeds:
    """What one multiprocessor of a GPU does in a cycle, for kernels of thread blocks.

    The defaults are of an H100 or H200 (compute capability 9.0): sizes from NVIDIA's CUDA C++
    Programming Guide, times as their comments say. Nothing else was measured.
    """

    lanes: int = 128
    """Multiply-adds of float32 that begin in a cycle."""
    threads: int = 2048
    """Threads that are resident at once."""
    registers: int = 65536
    """Registers of 32 bits, shared by the resident threads."""
    thread_registers: int = 255
    """Registers of one thread, at most."""
    other_registers: int = 40
    """Registers of a thread beside its results (NVRTC, 2026-11-23)."""
    instructions: float = 4.0
    """Instructions of a warp that begin in a cycle."""
    address: float = 1.0
    """Instructions that compute the address of a load or store (NVRTC, 2026-11-23)."""
    quotient: float = 4.0
    """Instructions of a quotient or remainder by a constant that is no power of two."""
    copy: float = 4.0
    """Instructions of a thread that copy an element to shared memory (NVRTC, 2026-11-23)."""
    async_copy: float = 1.0
    """The same for an asynchronous copy."""
    sector: int = 32
    """Bytes that an access moves between the caches, at least."""
    latency: float = 4.0
    """Cycles from the operands of an addition to its result."""
    shared_latency: float = 30.0
    """Cycles from a read of shared memory, or a shuffle, to its value."""
    load_latency: float = 500.0
    """Cycles from a load to the first use of its value, if memory has it (NVRTC, 2026-11-23)."""
    barrier: float = 40.0
    """Cycles for the threads of a block to wait for each other."""
    unrolled: float = 4.0
    """Iterations of a plain loop that NVRTC runs at once, all loads first."""
    matrix: float = 2.0
    """Cycles of a product of matrices by a warp, `mma` (NVRTC, 2026-11-23)."""
    group_column: float = 0.62
    """Cycles of each column of a product by four warps, `wgmma` (an H100, 2026-11-27)."""
    l2_bytes: float = 32.0
    """Bytes that one of all multiprocessors gets from the second cache in a cycle."""
    memory: float = 0.89
    """The share of the memory's rated bytes that copies reach (3.0 of 3.35 TB/s on an H100,
    2026-11-27; 4.3 of 4.8 TB/s on an H200)."""
    launch: float = 1e-6
    """Seconds from one kernel of a graph to the next that needs it (an H100, 2026-11-27)."""


FAMILIES: Final[Mapping[str, Speeds]] = {
    "x86-64": Speeds(),
    # The least of Arm's guides for Neoverse N1, N2 and V1; not measured.
    "aarch64": Speeds(line=2.0, line_alone=5.0, in_flight=128.0),
}
"""The speeds that are shipped, by architecture."""


def shipped(arch: str) -> Speeds:
    """The speeds of an architecture for machines that were not measured."""
    return FAMILIES.get(arch, Speeds())
