"""Loops of captured steps: the same kernels again and again, on memory that moves on by strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ferrule.base.records import dataclass
from ferrule.device.runner import JITRunner
from ferrule.ir.dtype import DType


@final
@dataclass(frozen=True, slots=True)
class Stream:
    """Memory that each trip of a loop finds at another address of one buffer."""

    buffer: int
    """The number of the buffer that the loop runs on."""
    offset: int = 0
    """The first byte in the first trip, if the loop goes forwards."""
    stride: int = 0
    """The bytes from a trip to the next one."""
    other: int = 0
    """The bytes from the memory of one trip to that of the next, where two take turns."""
    phase: int = 0
    """1 if the first trip has the second of two memories that take turns."""
    backwards: bool = False
    """True if the first trip has the last part."""

    def start(self, trips: int) -> int:
        """The first byte in the first trip of so many, without what alternates."""
        return self.offset + (self.stride * (trips - 1) if self.backwards else 0)

    @property
    def step(self) -> int:
        """The bytes by which a trip's memory is behind that of the trip before."""
        return -self.stride if self.backwards else self.stride

    def at(self, trip: int, trips: int) -> int:
        """The first byte in a trip."""
        turn = self.other * ((trip + self.phase) & 1)
        return self.start(trips) + self.step * trip + turn


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """`size` elements of `dtype`, from byte `offset` of a stream's memory on."""

    stream: Stream
    offset: int
    size: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize


@final
@dataclass(frozen=True)
class LoopStep:
    """A run that each trip makes, and the memory that it runs on, outputs first."""

    runner: JITRunner
    operands: Sequence[Operand]
