"""NumPy's BLAS: its functions, its number of threads, and solutions of triangles.

NumPy's wheels come with OpenBLAS, which has a pool of threads of its own, one for each core. They
wait for each other in loops. If another process has one of the cores, a call for a matrix of 100 x
100 takes milliseconds, a turn of the system's scheduler, instead of a tenth of one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Final, TypeAlias, final

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
_Controls: TypeAlias = tuple[Callable[[], int], Callable[[int], Any]]
# The prefixes and suffixes of function names in the builds of OpenBLAS.
_NAMES: Final = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))
# CBLAS' numbers for rows that are contiguous, and for the arguments of its solver of triangles.
_ROW_MAJOR, _NOT_TRANSPOSED, _LEFT = 101, 111, 141
_UPPER, _LOWER, _NOT_UNIT, _UNIT = 121, 122, 131, 132


@cache
def _library() -> ctypes.CDLL | None:
    """A library by which the functions of NumPy's BLAS are found; None if it has no file."""
    try:
        # A look-up in a library also finds the functions of the libraries that it loads.
        return ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None


def find(name: str) -> tuple[Any, Any] | None:
    """A function of NumPy's BLAS or LAPACK, and the type of its integers; None if it has none.

    The names of LAPACK's functions end with an underscore.
    """
    for before, after in _NAMES:
        found = getattr(_library(), f"{before}{name}{after}", None)
        if found is not None:
            return found, ctypes.c_int64 if after else ctypes.c_int
    return None


@cache
def _controls() -> _Controls | None:
    """OpenBLAS' functions to get and set its number of threads; None if NumPy has another BLAS."""
    library = _library()
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


@final
class _TriangleSolvers:
    """CBLAS' solvers for triangles: of one right side (trsv), and of several (trsm)."""

    def __init__(self, of_one: Any, of_several: Any, real: Any, integer: Any) -> None:
        matrix = ctypes.c_void_p, integer
        of_one.argtypes = [*[ctypes.c_int] * 4, integer, *matrix, *matrix]
        of_several.argtypes = [*[ctypes.c_int] * 5, integer, integer, real, *matrix, *matrix]
        of_one.restype = of_several.restype = None
        self._of_one = of_one
        self._of_several = of_several

    def solve(self, a: int, x: int, size: int, columns: int, kind: Sequence[int]) -> None:
        """X with t X = x, in the place of x, for addresses of contiguous matrices.

        One right side is 2.5 times as fast by trsv (300 rows, Zen 4, 2026-11).
        """
        if columns == 1:
            self._of_one(_ROW_MAJOR, *kind, size, a, size, x, 1)
        else:
            self._of_several(_ROW_MAJOR, _LEFT, *kind, size, columns, 1, a, size, x, columns)


@cache
def _triangle_solvers(dtype: np.dtype[Any]) -> _TriangleSolvers | None:
    """The solvers for a dtype; None if no library has them."""
    letter, real = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}[dtype.char]
    of_one, of_several = [find(f"cblas_{letter}{name}") for name in ("trsv", "trsm")]
    if of_one is None or of_several is None:
        return None
    return _TriangleSolvers(of_one[0], of_several[0], real, of_one[1])


def solve_triangles(a: Array, b: Array, is_upper: bool, unit: bool) -> Array | None:
    """X with t X = b for the triangles t of (…, n, n), and b of (…, n, k); None without CBLAS.

    The dtype is float32 or float64. A zero on the diagonal gives infinities and NaN.

    >>> import numpy as np
    >>> solve_triangles(np.array([[2.0, 7.0], [1.0, 1.0]]), np.array([[2.0], [2.0]]), False, False)
    array([[1.],
           [1.]])
    """
    solvers = _triangle_solvers(a.dtype)
    if solvers is None:
        return None
    size, columns = b.shape[-2:]
    a = np.ascontiguousarray(a)
    if a.shape[:-2] != b.shape[:-2]:  # NumPy's functions for this take as long as a small matrix
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = np.broadcast_to(a, (*batch, size, size))
        b = np.broadcast_to(b, (*batch, size, columns))
    x = np.array(b, order="C")
    kind = _UPPER if is_upper else _LOWER, _NOT_TRANSPOSED, _UNIT if unit else _NOT_UNIT
    for at, to in zip(addresses(a), addresses(x), strict=True):
        solvers.solve(at, to, size, columns, kind)
    return x


def address(array: Array) -> int:
    """The address of the first element of a contiguous array."""
    if array.flags.writeable:  # a quarter of the time of `array.ctypes.data`
        memory: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return array.ctypes.data


def addresses(matrices: Array) -> list[int]:
    """The address of each matrix."""
    first, strides = address(matrices), matrices.strides
    if matrices.ndim == 2:
        return [first]
    return [
        first + sum([i * stride for i, stride in zip(place, strides, strict=False)])
        for place in np.ndindex(matrices.shape[:-2])
    ]
