"""The dependencies of a batch's steps, by the bytes that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import final

from ferrule.buffer import Buffer
from ferrule.records import dataclass

_END = 1 << 62  # beyond the last byte of any buffer


@final
@dataclass
class _Segment:
    """Bytes that the same steps have used: the last step that wrote them, and the readers since."""

    start: int
    stop: int
    writer: int | None = None
    readers: set[int] = field(default_factory=set)

    def split(self, at: int) -> _Segment:
        """End at byte `at`; the rest becomes a segment of its own."""
        rest = _Segment(at, self.stop, self.writer, set(self.readers))
        self.stop = at
        return rest


@final
class Dependencies:
    """Takes steps in program order, and gives for each the steps that have to be done before it.

    If their bytes overlap, a reader waits for the writer, and a writer for the writer and the
    readers.

    >>> from ferrule.dtype import dtypes
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
                if segment.writer is not None:
                    earlier.add(segment.writer)
                if writes:
                    earlier |= segment.readers
        number = len(self._done_with)
        for segments, reads, writes in used:
            for segment in segments:
                if writes:
                    segment.writer = number
                    segment.readers = set()
                elif reads and segment.writer != number:
                    segment.readers.add(number)
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
        segments = self._memory.setdefault(buffer.base.serial, [_Segment(0, _END)])
        for at in (buffer.byte_offset, buffer.byte_offset + buffer.nbytes):
            place = next(i for i, segment in enumerate(segments) if segment.stop > at)
            if segments[place].start < at:
                segments.insert(place + 1, segments[place].split(at))

    def _inside(self, buffer: Buffer) -> list[_Segment]:
        """The segments of the buffer's bytes."""
        start, stop = buffer.byte_offset, buffer.byte_offset + buffer.nbytes
        segments = self._memory[buffer.base.serial]
        return [segment for segment in segments if start <= segment.start and segment.stop <= stop]
