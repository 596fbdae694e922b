"""Functions of NumPy arrays as lazy nodes: what is computed on the host, by name and counted.

A few functions have no form in the primitive ops that is worth having: sorting, and matrix
decompositions. They run as a node of their own when the graph is realised, in captured programs
as well; inputs come to the host and the result goes back to its device.
`GlobalCounters.host_calls` counts them, so that a test can tell that nothing else leaves a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.blas import one_blas_thread
from ferrule.buffer import Buffer
from ferrule.capture import user_location
from ferrule.config import config
from ferrule.dtype import DType
from ferrule.expr import Variable, sint
from ferrule.gradient import Shape, Value
from ferrule.helpers import GlobalCounters, colored
from ferrule.lazy import LazyBuffer
from ferrule.runner import JITRunner, update_stats
from ferrule.shape.view import ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
_SMALL_MATRIX = 200 * 200  # elements
_SHARED = 1 << 18  # elements from which on threads, which are started for it, share the rows


@final
class HostFunction(JITRunner):
    """Runs `function(*arrays, *args)` and puts the array that it gives into the first buffer.

    `line` is where a user asked for it, for the messages of errors. The function does the same for
    each element of the first `n_apart` axes, of its arrays and of the result.
    """

    is_pure = True

    def __init__(
        self,
        function: Callable[..., Array],
        args: tuple[Any, ...],
        shapes: tuple[tuple[int, ...], ...],
        device: str,
        line: str,
        n_apart: int = 0,
    ) -> None:
        self.function = function
        self.args = args
        self.shapes = shapes
        self.device = device
        self.line = line
        self.name = f"host {function.__name__.strip('_')}"
        self._title = colored(self.name, "yellow")
        self._sizes = [prod(shape) for shape in shapes[1:]]
        self._rows = prod(shapes[0][:n_apart])
        self._n_apart = n_apart
        # To wake and join its other threads takes OpenBLAS longer than a small matrix.
        self._is_small = max(map(_matrix_size, shapes)) <= _SMALL_MATRIX

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Runs; what the function raises reaches the caller, with the user's line as a note."""
        out, *sources = rawbufs
        start = time.perf_counter()
        shapes = self.shapes[1:]
        arrays = [
            source.borrowed()[:size].reshape(shape)
            for source, size, shape in zip(sources, self._sizes, shapes, strict=True)
        ]
        threads = min(config().FERRULE_NUM_THREADS, self._rows)
        try:
            if threads > 1 and max(self._sizes, default=0) >= _SHARED:
                with one_blas_thread:
                    self._share(out, arrays, threads)
            elif self._is_small or config().FERRULE_NUM_THREADS == 1:
                with one_blas_thread:
                    self._fill(out, arrays, self.shapes[0])
            else:
                self._fill(out, arrays, self.shapes[0])
        except Exception as error:
            error.add_note(f"{self.name}, asked for at {self.line}")
            raise
        seconds = time.perf_counter() - start
        GlobalCounters.host_calls += 1
        moved = sum([buffer.nbytes for buffer in rawbufs])
        count = len(rawbufs)
        update_stats(self._title, 0, moved, var_vals, seconds, count, jit=jit, device=self.device)
        return seconds

    def _fill(self, out: Buffer, arrays: Sequence[Array], shape: tuple[int, ...]) -> None:
        result = np.asarray(self.function(*arrays, *self.args))
        assert result.shape == shape, f"{self.name} gave {result.shape}"
        out.fill(result)

    def _share(self, out: Buffer, arrays: Sequence[Array], threads: int) -> None:
        """Each thread does some rows; NumPy lets go of the interpreter's lock meanwhile."""
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        rows, rest = self._rows, self.shapes[0][self._n_apart :]
        by_row = [array.reshape(rows, *array.shape[self._n_apart :]) for array in arrays]

        def fill(number: int) -> None:
            start, stop = (rows * n // threads for n in (number, number + 1))
            part = out.view(start * prod(rest), (stop - start) * prod(rest))
            self._fill(part, [array[start:stop] for array in by_row], (stop - start, *rest))

        with ThreadPoolExecutor(threads - 1, "ferrule-host") as pool:
            others = [pool.submit(fill, number) for number in range(1, threads)]
            fill(0)
            for other in others:
                other.result()


def _matrix_size(shape: tuple[int, ...]) -> int:
    """The elements of one matrix."""
    return prod(shape[-2:])


def on_host(
    function: Callable[..., Array],
    sources: Sequence[Value],
    shape: Shape,
    dtype: DType,
    *args: Any,
    n_apart: int = 0,
) -> Value:
    """What `function(*arrays of the sources, *args)` gives, as a lazy value outside the tape.

    `function` must be a module's function, pure, and give an array of `shape`, which is converted
    to `dtype`; `args`, which have to be hashable, are passed on as they are. Each node that is
    realised is one call; or several, on threads, where the function does the same for each element
    of the first `n_apart` axes of all arrays: these may be one axis then.

    Raises `ShapeError` for a symbolic size.

    >>> import numpy as np
    >>> from ferrule.tensor import Tensor
    >>> x = Tensor([3.0, 1.0, 2.0])._read()
    >>> Tensor(on_host(np.sort, [x], x.shape, x.dtype).node).tolist()
    [1.0, 2.0, 3.0]
    """
    shapes = tuple(_known(part, function) for part in (shape, *[part.shape for part in sources]))
    device = sources[0].node.device
    if 0 in shape:
        return sources[0].full(0, shape).cast(dtype)
    runner = _host_function(function, shapes, device, user_location(), n_apart, *args)
    nodes = [source.node for source in sources]
    return Value(LazyBuffer.custom(runner, nodes, shape, dtype, device))


@lru_cache(maxsize=1024, typed=True)
def _host_function(
    function: Callable[..., Array],
    shapes: tuple[tuple[int, ...], ...],
    device: str,
    line: str,
    n_apart: int,
    *args: Any,
) -> HostFunction:
    """The same object for the same function, by which a graph with it is found again."""
    return HostFunction(function, args, shapes, device, line, n_apart)


def _known(shape: tuple[sint, ...], function: Callable[..., Array]) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in shape):
        raise ShapeError(
            f"[{function.__name__.strip('_')}] runs on the host and needs known sizes, "
            f"not {shape}; realise a slice of known size first"
        )
    return tuple(size for size in shape if isinstance(size, int))
