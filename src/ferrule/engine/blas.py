"""The number of threads of NumPy's linear algebra.

NumPy's wheels come with OpenBLAS, which has a pool of threads of its own, one for each core. They
wait for each other in loops. If another process has one of the cores, a call for a matrix of 100 x
100 takes milliseconds, a turn of the system's scheduler, instead of a tenth of one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Final, TypeAlias, final

import numpy as np

_Controls: TypeAlias = tuple[Callable[[], int], Callable[[int], Any]]
# The prefixes and suffixes of function names in the builds of OpenBLAS.
_NAMES: Final = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))


@cache
def _controls() -> _Controls | None:
    """OpenBLAS' functions to get and set its number of threads; None if NumPy has another BLAS."""
    try:
        # A look-up in a library also finds the functions of the libraries that it loads.
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None
    for before, after in _NAMES:
        get = getattr(library, f"{before}openblas_get_num_threads{after}", None)
        put = getattr(library, f"{before}openblas_set_num_threads{after}", None)
        if get is not None and put is not None:
            return get, put
    return None


def blas_threads() -> int | None:
    """The number of threads that OpenBLAS takes now; None if NumPy has another BLAS."""
    controls = _controls()
    return None if controls is None else controls[0]()


@final
class _OneThread:
    """A block in which OpenBLAS computes on the calling thread; several threads may be inside."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = 0
        self._before = 1

    def __enter__(self) -> None:
        controls = _controls()
        if controls is None:
            return
        get, put = controls
        with self._lock:
            if self._inside == 0:
                self._before = get()
                if self._before != 1:
                    put(1)
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        controls = _controls()
        if controls is None:
            return
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before != 1:
                controls[1](self._before)


one_blas_thread: Final = _OneThread()
