"""Tables in which equal objects are one object, for as long as something refers to it.

A `WeakValueDictionary` does the same, and takes several times as long: it is Python code, and these
tables are asked for every node of every graph.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, final


@final
class Entry(weakref.ref[Any]):
    """A weak reference to an object that knows its key and its table."""

    __slots__ = ("key", "table")
    key: Any
    table: Table


@final
class Table(dict[Any, Entry]):
    """The objects that are alive, by what they are.

    >>> table, numbers = Table(), frozenset((1, 2))
    >>> table.remember("small", numbers) is numbers
    True
    >>> table.find("small") is numbers, table.find("large")
    (True, None)
    >>> del numbers
    >>> len(table)
    0
    """

    def find(self, key: Any) -> Any:
        """The object that is equal to `key`; None where there is none."""
        entry = self.get(key)
        return None if entry is None else entry()

    def remember(self, key: Any, made: Any) -> Any:
        """From now on `made` is the one that is equal to `key`, and given back.

        Unless there is one: another thread, or a destructor, was faster than the caller, who
        found none. Then it is that one, and `made` is to be forgotten.
        """
        entry = Entry(made, _forget)
        entry.key = key
        entry.table = self
        while True:
            found = self.setdefault(key, entry)
            if found is entry:
                return made
            other = found()
            if other is not None:
                return other
            self.remove(found)  # what it was is gone, and nobody has said so yet

    def remove(self, entry: Entry) -> None:
        """Removes an entry; one that another thread has put in its place meanwhile stays."""
        key = entry.key
        if self.get(key) is not entry:
            return
        found = self.pop(key, entry)
        if found is not entry:
            self.setdefault(key, found)


def _forget(entry: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Uses no global name, nor hashes a key, when the process ends: objects may outlive names."""
    if not is_finalizing():
        entry.table.remove(entry)
