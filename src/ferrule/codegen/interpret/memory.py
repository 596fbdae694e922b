"""The memory of the interpreter: it checks bounds, initialization, and races between threads."""

from __future__ import annotations

from typing import Final, final

import numpy

from ferrule.base.records import dataclass
from ferrule.codegen.interpret.arithmetic import Array, InterpretError


class AccessError(InterpretError, IndexError):
    """A load or a store outside its buffer, or a read of scratch before any write to it."""


class RaceError(InterpretError):
    """Two threads touch an element, one to write it, and nothing says which comes first."""


NOBODY: Final = -1
"""In place of a thread's number."""
_SEVERAL: Final = -2


@final
class Users:
    """The thread that has read, and the one that has written, each element since the last
    barrier.
    """

    def __init__(self, size: int) -> None:
        self.readers = numpy.full(size, NOBODY)
        self.writers = numpy.full(size, NOBODY)

    def forget(self) -> None:
        """Start anew: all accesses so far are ordered before the following ones."""
        self.readers[:] = NOBODY
        self.writers[:] = NOBODY

    def read(self, chosen: Array, threads: Array, name: str) -> None:
        """Record that each of the chosen elements is read by the thread beside it."""
        self._check(self.writers, chosen, threads, f"reads {name}", "written")
        before = self.readers[chosen]
        mine = (before == NOBODY) | (before == threads)
        readers = numpy.where(mine, threads, _SEVERAL)
        self.readers[chosen] = readers
        self.readers[chosen[self.readers[chosen] != readers]] = _SEVERAL

    def write(self, chosen: Array, threads: Array, name: str) -> None:
        """Record that each of the chosen elements is written by the thread beside it."""
        self._check(self.writers, chosen, threads, f"writes {name}", "written")
        self._check(self.readers, chosen, threads, f"writes {name}", "read")
        self.writers[chosen[::-1]] = threads[::-1]
        self._check(self.writers, chosen, threads, f"writes {name}", "written")

    def _check(self, users: Array, chosen: Array, threads: Array, does: str, done: str) -> None:
        others = (users[chosen] != NOBODY) & (users[chosen] != threads)
        if others.any():
            raise RaceError(
                f"thread {threads[others][0]} {does}[{chosen[others][0]}], which another thread "
                f"has {done} since the last barrier"
            )


@final
class Memory:
    """The memory of a PARAM, a LOCAL or a SHARED. Each thread has a copy of a LOCAL."""

    def __init__(
        self, name: str, data: Array, written: Array | None, users: Users | None, copies: int
    ) -> None:
        self.name = name
        self.data = data
        self.written = written  # one bool for each element of scratch; None: all is readable
        self.users = users  # None: a single thread, or a copy for each
        self.awaited = numpy.zeros(len(data), bool)  # elements that a copy is on its way to
        self.products = numpy.zeros(len(data), numpy.int64)  # products under way that read each
        self.hidden_by = numpy.full(len(data), -1)  # the thread whose write products cannot see yet
        self.size = len(data) // copies
        self.first = numpy.arange(copies)[:, None] * self.size

    def chosen(self, index: Array, mask: Array | None, what: str, shape: tuple[int, int]) -> Array:
        """The element for each thread and lane whose mask is true, checked."""
        every = index if index.shape[1] == shape[1] else index + numpy.arange(shape[1])
        outside = (every < 0) | (every >= self.size)
        if mask is not None:
            outside = outside & mask
        if outside.any():
            first = numpy.broadcast_to(every, outside.shape)[outside][0]
            raise AccessError(f"{what} of {self.name}[{first}]: it has {self.size} elements")
        return _taken(every + self.first if len(self.first) > 1 else every, mask, shape)

    def consecutive(self, index: Array, mask: Array | None, shape: tuple[int, int]) -> slice | None:
        """The elements for a thread alone, if they are neighbours, all in bounds and none masked.

        Most accesses are like this, and a single check of the bounds is enough for them.
        """
        if shape[0] > 1 or index.shape[1] > 1 or self.users is not None:
            return None
        start = int(index[0, 0])
        stop = start + shape[1]
        if start < 0 or stop > self.size or (mask is not None and not mask.all()):
            return None
        return slice(start, stop)

    def load(self, index: Array, lanes: int, mask: Array | None, threads: Array) -> Array:
        """The elements for each thread; those from `index` on, if it has one lane."""
        shape = (len(threads), lanes)
        here = self.consecutive(index, mask, shape)
        if here is not None and (self.written is None or self.written[here].all()):
            return self.data[None, here].copy()
        chosen = self.chosen(index, mask, "load", shape)
        if self.users is not None:
            self.users.read(chosen, _taken(threads[:, None], mask, shape), self.name)
        if self.written is not None and not self.written[chosen].all():
            first = chosen[~self.written[chosen]][0] % self.size
            raise AccessError(f"load of {self.name}[{first}], which was never written")
        if mask is None:
            return self.data[chosen].reshape(shape)
        value = numpy.zeros(shape, self.data.dtype)
        value[numpy.broadcast_to(mask, shape)] = self.data[chosen]
        return value

    def store(self, index: Array, value: Array, mask: Array | None, threads: Array) -> None:
        """Puts values where `load` would take them from."""
        shape = (len(threads), value.shape[1])
        here = self.consecutive(index, mask, shape)
        if here is not None and not self.awaited[here].any():
            if self.written is not None:
                self.written[here] = True
            self.data[here] = value[0]
            return
        chosen = self.chosen(index, mask, "store", shape)
        self.write(chosen, _taken(threads[:, None], mask, shape))
        self.data[chosen] = _taken(value, mask, shape)

    def write(self, chosen: Array, threads: Array) -> None:
        """Record that thread `threads[i]` writes element `chosen[i]`; raise if that is a race."""
        self.refuse(chosen, self.awaited[chosen], "is written, and a copy is on its way to it")
        self.refuse(
            chosen, self.products[chosen] > 0, "is written, and products that go on read it"
        )
        self.hidden_by[chosen] = threads
        if self.users is not None:
            self.users.write(chosen, threads, self.name)
        if self.written is not None:
            self.written[chosen] = True

    def refuse(self, chosen: Array, wrong: Array, problem: str) -> None:
        """Raise RaceError if an access to any of the chosen elements is wrong."""
        if wrong.any():
            raise RaceError(f"{self.name}[{chosen[wrong][0]}] {problem}")

    def show(self, threads: Array) -> None:
        """Let products by warp groups see the elements that these threads have written."""
        self.hidden_by[numpy.isin(self.hidden_by, threads)] = -1

    def multiplied(self, index: Array, threads: Array) -> tuple[Array, Array]:
        """The values that a product by warp groups reads, and the numbers of their elements."""
        value = self.load(index, index.shape[1], None, threads)
        chosen = self.chosen(index, None, "product", value.shape)
        is_hidden = self.hidden_by[chosen] >= 0
        self.refuse(chosen, is_hidden, "is read by a product; no PROXY_FENCE shows it")
        numpy.add.at(self.products, chosen, 1)
        return value, chosen

    def await_copy(self, index: Array, value: Array, mask: Array | None, threads: Array) -> Copy:
        """A copy of values to elements, which no thread may read or write before it has arrived."""
        shape = (len(threads), value.shape[1])
        chosen = self.chosen(index, mask, "copy", shape)
        by = _taken(threads[:, None], mask, shape)
        self.write(chosen, by)
        assert self.written is not None, f"a copy to {self.name}, which is no scratch"
        self.written[chosen], self.awaited[chosen] = False, True
        return Copy(self, chosen, _taken(value, mask, shape), by)


@final
@dataclass(frozen=True)
class Copy:
    """Values on their way to elements of a memory, by the threads that wait for them."""

    memory: Memory
    chosen: Array
    values: Array
    threads: Array

    def arrive(self) -> None:
        """Let the values arrive."""
        self.memory.awaited[self.chosen] = False
        self.memory.write(self.chosen, self.threads)
        self.memory.data[self.chosen] = self.values


def _taken(x: Array, mask: Array | None, shape: tuple[int, int]) -> Array:
    """The elements with a true mask, of a value broadcast to a shape."""
    if x.shape != shape:
        x = numpy.broadcast_to(x, shape)
    if mask is None:
        return x.ravel()
    return x[mask if mask.shape == shape else numpy.broadcast_to(mask, shape)]
