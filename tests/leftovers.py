"""Folders that runs of the tests left behind when they were killed."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_MARK = "in-use"


def in_use(folder: str) -> IO[str]:
    """Marks a folder as used for as long as this process lives, and holds the result."""
    mark = Path(folder, _MARK).open("w")  # noqa: SIM115 it stays open
    if fcntl is not None:
        fcntl.flock(mark, fcntl.LOCK_EX)
    return mark


def remove_leftovers(parent: str, prefix: str) -> None:
    """Removes the marked folders whose processes are gone: the system takes locks from the dead."""
    if fcntl is None:
        return
    for folder in Path(parent).glob(f"{prefix}*"):
        # Another user's, or removed by another run at this moment, or not marked, or in use.
        with suppress(OSError), (folder / _MARK).open("r+") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
