"""Tables in which equal objects are one object, for as long as something refers to it.

A `WeakValueDictionary` does the same, and takes several times as long: it is Python code, and each
node of each graph needs a look-up.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, final


@final
class Entry(weakref.ref[Any]):
    """A weak reference to an object that knows its key and its table."""

    __slots__ = ("__weakref__", "key", "table")
    key: Any
    table: Table


@final
class Table(dict[Any, Entry]):
    """The live objects, by their keys.

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
        """The live object with an equal key; None if there is none."""
        entry = self.get(key)
        return None if entry is None else entry()

    def remember(self, key: Any, made: Any) -> Any:
        """Enter `made` under `key`, and return it; or return the object that is there already.

        Another thread, or a destructor, may have entered one since the caller found none. The
        caller then has to forget `made`.
        """
        entry = Entry(made, forget)
        entry.key = key
        entry.table = self
        return made if self.setdefault(key, entry) is entry else self.enter(entry)

    def enter(self, entry: Entry) -> Any:
        """As `remember`, with an entry that is made already."""
        key = entry.key
        while True:
            found = self.setdefault(key, entry)
            other = found()
            if other is not None:
                return other
            self._remove(key, found)  # its object is gone, and the callback has not run yet

    def _remove(self, key: Any, entry: Entry) -> None:
        if self.get(key) is not entry:
            return
        found = self.pop(key, entry)
        if found is not entry:
            self.setdefault(key, found)


def forget(entry: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Remove the entry of an object that is dead, or that nobody is to find any more.

    It does not remove another entry that a thread has put in its place meanwhile, and drops the
    key, since the entry may outlive what it was for. At the end of the process it uses no global
    name, and hashes no key: objects may outlive names.
    """
    if not is_finalizing():
        key = entry.key
        entry.key = None
        table = entry.table
        found = table.pop(key, entry)
        if found is not entry:  # its place is another's already, who keeps it
            table.setdefault(key, found)
