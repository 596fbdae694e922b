"""Dependence: which steps wait for which others, by the memory that they read and write.

A step that reads waits for the one that wrote (RAW, read after write). A step that writes waits for
the one that wrote before it (WAW), and for all that have read that since (WAR).

The schedule asks this of versions, before there is an order: the graph says who makes a version,
who reads it, and which one replaces it. Executors ask it of bytes, in program order: by then
intermediate results that have nothing to do with each other share an arena.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar, final

from ferrule.ir.buffer import Buffer

T = TypeVar("T")

_END = 1 << 62  # beyond the last byte of any buffer


@final
class Contents(Generic[T]):
    """The contents of some memory between two writes: the steps that wrote it, and its readers."""

    __slots__ = ("readers", "writers")

    def __init__(self, writers: Iterable[T] = (), readers: Iterable[T] = ()) -> None:
        self.writers = set(writers)
        self.readers = set(readers)

    def before(self, writes: bool) -> set[T]:
        """The steps that another one waits for: RAW if it reads, WAW and WAR if it writes."""
        return self.writers | self.readers if writes else self.writers


@final
class _Segment:
    """Bytes that the same steps have used."""

    def __init__(self, start: int, stop: int, contents: Contents[int]) -> None:
        self.start = start
        self.stop = stop
        self.contents = contents

    def split(self, at: int) -> _Segment:
        """End at byte `at`; the rest becomes a segment of its own."""
        same = Contents(self.contents.writers, self.contents.readers)
        rest = _Segment(at, self.stop, same)
        self.stop = at
        return rest


@final
class Dependencies:
    """Takes steps in program order, and gives for each the steps that have to be done before it.

    >>> from ferrule.ir.dtype import dtypes
    >>> a, b, c = (Buffer("CPU", 4, dtypes.int32, opaque=object()) for _ in range(3))
    >>> dependencies = Dependencies()
    >>> dependencies.add([(a, False, True)])
    []
    >>> dependencies.add([(b, False, True), (a, True, False)])
    [0]
    >>> dependencies.add([(c, False, True), (a, True, False), (b, True, False)])
    [1]
    """

    def __init__(self) -> None:
        self._memory: dict[int, list[_Segment]] = {}
        # For each step, as bits, all steps that are done when it is.
        self._done_with: list[int] = []

    def add(self, accesses: Iterable[tuple[Buffer, bool, bool]]) -> list[int]:
        """The numbers of the earlier steps that the next step must wait for.

        The step is given by the buffers that it uses, and whether it reads and writes each. Steps
        that another one of these waits for anyway are left out.
        """
        listed = list(accesses)
        for buffer, _, _ in listed:
            self._split(buffer)
        used = [(self._inside(buffer), reads, writes) for buffer, reads, writes in listed]
        earlier: set[int] = set()
        for segments, _, writes in used:
            for segment in segments:
                earlier |= segment.contents.before(writes)
        number = len(self._done_with)
        for segments, reads, writes in used:
            for segment in segments:
                if writes:
                    segment.contents = Contents([number])
                elif reads and number not in segment.contents.writers:
                    segment.contents.readers.add(number)
        return self._without_implied(earlier)

    def _without_implied(self, earlier: set[int]) -> list[int]:
        done = 0
        needed: list[int] = []
        for step in sorted(earlier, reverse=True):
            if not done >> step & 1:
                needed.append(step)
                done |= self._done_with[step]
        self._done_with.append(done | 1 << len(self._done_with))
        return needed[::-1]

    def _split(self, buffer: Buffer) -> None:
        """Split segments so that some begin and end where the buffer does."""
        segments = self._memory.setdefault(buffer.base.serial, [_Segment(0, _END, Contents())])
        for at in (buffer.byte_offset, buffer.byte_offset + buffer.nbytes):
            place = next(i for i, segment in enumerate(segments) if segment.stop > at)
            if segments[place].start < at:
                segments.insert(place + 1, segments[place].split(at))

    def _inside(self, buffer: Buffer) -> list[_Segment]:
        """The segments of the buffer's bytes."""
        start, stop = buffer.byte_offset, buffer.byte_offset + buffer.nbytes
        segments = self._memory[buffer.base.serial]
        return [segment for segment in segments if start <= segment.start and segment.stop <= stop]
