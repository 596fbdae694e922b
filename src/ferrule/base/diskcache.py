"""The on-disk cache: byte strings by table and key, kept between processes.

The cache never makes a program fail: if the folder cannot be used, or the disk is full, reads miss
and writes are dropped, with a note at `DEBUG=1`. Many processes and threads may use it at once
(SQLite in WAL mode), also across a fork.

Native code is loaded from it. So the folder is created for its user alone, and it is refused,
with a `CacheWarning`, where somebody else owns it or can write to it. Each value is stored with
its SHA-256: an entry that does not match is dropped and read as a miss, and a database that
SQLite cannot read is moved aside and begun anew.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sqlite3
import stat
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar, final

from ferrule.base.config import config
from ferrule.base.forks import take_last

R = TypeVar("R")


class CacheWarning(UserWarning):
    """The disk cache is not used, for a reason that its user can change."""


# The number is that of the layout below.
_FILE = "cache-1.sqlite3"
_LAYOUT = """
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, checksum BLOB NOT NULL, used INTEGER NOT NULL
)"""
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BUSY_SECONDS = 2.0  # for another process to release the database. Not measured
_SECONDS_A_DAY = 86400

LARGEST_BYTES = 512 << 20
"""Bytes of the database above which the least recently used entries are removed."""
_KEPT_SHARE = 0.75  # fraction of `LARGEST_BYTES` that remains then. Not measured
_PUTS_BETWEEN_CHECKS = 64  # writes between two looks at the size. Not measured
_LARGEST_QUERY = 500  # keys in one query; older SQLites allow 999 parameters


def digest(*parts: str | bytes) -> str:
    """A key for values that depend on all `parts`: 64 hexadecimal digits, the same everywhere.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def get(table: str, key: str) -> bytes | None:
    """The value that was `put` under `key` in `table`; None if there is none."""
    return _cache_of(config().FERRULE_CACHE_DIR).get(table, key)


def get_many(table: str, keys: Sequence[str]) -> dict[str, bytes]:
    """The values of those `keys` that are in `table`, by one query."""
    return _cache_of(config().FERRULE_CACHE_DIR).get_many(table, keys)


def put(table: str, key: str, value: bytes) -> None:
    """Keep `value` under `key` in `table`, in place of an earlier value."""
    _cache_of(config().FERRULE_CACHE_DIR).put(table, key, value)


def usage() -> tuple[int, int]:
    """The number of entries, and the bytes that they take on the disk."""
    return _cache_of(config().FERRULE_CACHE_DIR).usage()


def clear() -> int | None:
    """Remove all entries. Returns their number, None if they cannot be removed."""
    return _cache_of(config().FERRULE_CACHE_DIR).clear()


def _note(text: str) -> None:
    if config().DEBUG >= 1:
        print(f"disk cache: {text}")


def _row_key(table: str, key: str) -> bytes:
    return bytes.fromhex(digest(table, key))


def _checksum(row_key: bytes, value: bytes) -> bytes:
    # The digest includes the key, so that an entry under a wrong key does not match either.
    return hashlib.sha256(row_key + value).digest()


def _unsafe(path: Path) -> str | None:
    """The reason why native code must not be loaded from `path`; None if it may be."""
    if not hasattr(os, "geteuid"):
        return None
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"other users can write to {path} (mode {mode:04o}); run: chmod go-w '{path}'"
    return None


@final
class DiskCache:
    """The cache in one folder. The functions of this module use the one that the settings name."""

    def __init__(self, folder: str, largest_bytes: int = LARGEST_BYTES) -> None:
        self._folder = Path(folder)
        self._file = self._folder / _FILE
        self._largest_bytes = largest_bytes
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._usable = True
        self._puts = 0
        _caches.add(self)

    def get(self, table: str, key: str) -> bytes | None:
        """The value that was `put` under `key` in `table`; None if there is none."""
        return self.get_many(table, (key,)).get(key)

    def get_many(self, table: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those `keys` that are in `table`, by as few queries as possible."""
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _LARGEST_QUERY):
            named = {_row_key(table, key): key for key in keys[start : start + _LARGEST_QUERY]}
            nothing: dict[bytes, bytes] = {}
            rows = self._attempt(partial(_read, row_keys=list(named)), nothing)
            found.update((named[row_key], value) for row_key, value in rows.items())
        return found

    def put(self, table: str, key: str, value: bytes) -> None:
        """Keep `value` under `key` in `table`, in place of an earlier value."""
        row_key = _row_key(table, key)
        row = (row_key, value, _checksum(row_key, value), _today())
        check_size = self._puts % _PUTS_BETWEEN_CHECKS == 0

        def write(database: sqlite3.Connection) -> bool:
            database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
            if check_size:
                _evict(database, self._largest_bytes)
            return True

        if self._attempt(write, False):
            self._puts += 1

    def usage(self) -> tuple[int, int]:
        """The number of entries, and the bytes that they take on the disk."""
        return self._attempt(lambda database: (_count(database), _size(database)), (0, 0))

    def clear(self) -> int | None:
        """Remove all entries. Returns their number, None if they cannot be removed."""
        return self._attempt(_remove_all, None)

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self._disconnect()

    def _attempt(self, action: Callable[[sqlite3.Connection], R], otherwise: R) -> R:
        """The result of `action` on the database; `otherwise` if that fails."""
        with self._lock:
            for _ in range(2):
                try:
                    database = self._open()
                    return otherwise if database is None else action(database)
                except sqlite3.DatabaseError as error:
                    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _CORRUPT:
                        _note(f"{self._file}: {error}")
                        return otherwise
                    self._set_aside(str(error))
            return otherwise

    def _open(self) -> sqlite3.Connection | None:
        if self._connection is None and self._usable:
            # An error below would come again, so that there is one attempt only.
            self._usable = False
            try:
                if self._is_safe():
                    self._connection = self._connect()
                    self._usable = True
            except OSError as error:
                _note(f"not used: {error}")
        return self._connection

    def _is_safe(self) -> bool:
        """Create the folder and the file. False, with a warning, if others could plant code."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _unsafe(self._folder)
        if reason is None and not self._file.exists() and os.access(self._folder, os.W_OK):
            # SQLite gives its other files the mode of this one.
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
        if reason is None and self._file.exists():
            reason = _unsafe(self._file)
        if reason is not None:
            warnings.warn(
                f"ferrule's disk cache holds native code, and is not used: {reason},"
                " or set FERRULE_CACHE_DIR to a folder of your own",
                CacheWarning,
                stacklevel=2,
            )
        return reason is None

    def _connect(self) -> sqlite3.Connection:
        # A read-only folder has no place for the files that WAL needs beside the database.
        writable = os.access(self._folder, os.W_OK) and os.access(self._file, os.W_OK)
        options = "" if writable else "?mode=ro&immutable=1"
        self._inode = self._file.stat().st_ino
        database = sqlite3.connect(
            self._file.absolute().as_uri() + options,
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            database.execute("PRAGMA synchronous = NORMAL")
            found = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'")
            if not found.fetchall():
                _lay_out(database)
        except BaseException:  # the file may be no database
            database.close()
            raise
        return database

    def _set_aside(self, reason: str) -> None:
        """Move a database that SQLite cannot read out of the way, so that a new one is begun."""
        _note(f"{self._file}: {reason}; moved aside, and begun anew")
        self._disconnect()
        self._usable = True
        try:
            # Another process may have done it since this one opened the file.
            if self._file.stat().st_ino == self._inode:
                self._file.replace(self._file.with_suffix(".corrupt"))
                for suffix in ("-wal", "-shm"):
                    Path(f"{self._file}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            self._usable = False
            _note(f"not used: {error}")


def _today() -> int:
    return int(time.time()) // _SECONDS_A_DAY


def _lay_out(database: sqlite3.Connection) -> None:
    # SQLite does not wait for others when it changes the journal's mode.
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(_LAYOUT)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def _read(database: sqlite3.Connection, row_keys: list[bytes]) -> dict[bytes, bytes]:
    places = ", ".join("?" * len(row_keys))
    query = f"SELECT key, value, checksum, used FROM entries WHERE key IN ({places})"
    rows = database.execute(query, row_keys).fetchall()
    good = {}
    bad = []
    stale = []
    today = _today()
    for row_key, value, checksum, used in rows:
        if _checksum(row_key, value) != checksum:
            bad.append(row_key)
            continue
        good[row_key] = value
        if used != today:
            stale.append(row_key)
    if bad or stale:
        _tidy(database, bad, stale, today)
    return good


def _tidy(database: sqlite3.Connection, bad: list[bytes], stale: list[bytes], today: int) -> None:
    """Removes broken entries, and notes which ones are in use (once a day, to spare the disk)."""
    if bad:
        _note(f"{len(bad)} broken entries dropped")
    try:
        database.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in bad])
        marks = [(today, key) for key in stale]
        database.executemany("UPDATE entries SET used = ? WHERE key = ?", marks)
    except sqlite3.OperationalError as error:
        # The disk is read-only or full: the values that were read are still good.
        _note(str(error))


def _size(database: sqlite3.Connection) -> int:
    pragmas = ("page_count", "freelist_count", "page_size")
    pages, free, page_size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
    return int((pages - free) * page_size)


def _count(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])


def _remove_all(database: sqlite3.Connection) -> int | None:
    removed = _count(database)
    database.execute("DELETE FROM entries")
    database.execute("VACUUM")
    return removed


def _evict(database: sqlite3.Connection, largest_bytes: int) -> None:
    """Removes the entries that were not used for longest, if all together are too large."""
    size = _size(database)
    if size <= largest_bytes:
        return
    doomed = []
    rows = database.execute("SELECT rowid, length(value) FROM entries ORDER BY used, rowid")
    for row, length in rows.fetchall():
        if size <= largest_bytes * _KEPT_SHARE:
            break
        doomed.append((row,))
        size -= length
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.executemany("DELETE FROM entries WHERE rowid = ?", doomed)
    _note(f"over {largest_bytes} bytes: {len(doomed)} entries removed")


_caches: weakref.WeakSet[DiskCache] = weakref.WeakSet()
_by_folder: dict[str, DiskCache] = {}


def _cache_of(folder: str) -> DiskCache:
    cache = _by_folder.get(folder)
    return _by_folder.setdefault(folder, DiskCache(folder)) if cache is None else cache


# A connection to SQLite must not be open across a fork: the child would believe that it holds
# the parent's locks. Reopening costs less than a millisecond.
_held: list[DiskCache] = []


def _before_fork() -> None:
    for cache in list(_caches):
        cache._lock.acquire()
        cache._disconnect()
        _held.append(cache)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


take_last(_before_fork, _after_fork)


@atexit.register
def _close_all() -> None:
    for cache in list(_caches):
        cache.close()
