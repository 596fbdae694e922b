"""Host functions: functions of NumPy arrays as lazy nodes.

Primitive ops express a few functions badly: sorting, and matrix decompositions. They run as a node
of their own when the graph is realised, in captured programs as well. Inputs are copied to the
host, and the result goes back to its device.
`GlobalCounters.host_calls` counts them, so that a test can tell that nothing else leaves a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.autograd import Shape, TracedValue
from ferrule.base.config import config
from ferrule.base.helpers import GlobalCounters, colored
from ferrule.device.capture import user_location
from ferrule.device.runner import JITRunner, update_stats
from ferrule.engine.blas import one_blas_thread
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Variable, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
_SMALL_MATRIX_ELEMENTS = 200 * 200  # elements up to which one thread computes; see `HostFunction`


@final
class HostFunction(JITRunner):
    """Runs `function(*arrays, *args)` and puts the array that it gives into the first buffer.

    `line` is where a user asked for it, for the messages of errors.
    """

    is_pure = True

    def __init__(
        self,
        function: Callable[..., Array],
        args: tuple[Any, ...],
        shapes: tuple[tuple[int, ...], ...],
        device: str,
        line: str,
    ) -> None:
        self.function = function
        self.args = args
        self.shapes = shapes
        self.device = device
        self.line = line
        self.name = f"host {function.__name__.strip('_')}"
        self._title = colored(self.name, "yellow")
        self._sizes = [prod(shape) for shape in shapes[1:]]
        # To wake and join its other threads takes OpenBLAS longer than a small matrix.
        self._is_small = max(map(_matrix_size, shapes)) <= _SMALL_MATRIX_ELEMENTS

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run; an error of the function reaches the caller, with the user's line as a note."""
        out, *sources = rawbufs
        start = time.perf_counter()
        shapes = self.shapes[1:]
        arrays = [
            source.borrowed()[:size].reshape(shape)
            for source, size, shape in zip(sources, self._sizes, shapes, strict=True)
        ]
        try:
            if self._is_small or config().FERRULE_NUM_THREADS == 1:
                with one_blas_thread:
                    result = np.asarray(self.function(*arrays, *self.args))
            else:
                result = np.asarray(self.function(*arrays, *self.args))
        except Exception as error:
            error.add_note(f"{self.name}, asked for at {self.line}")
            raise
        assert result.shape == self.shapes[0], f"{self.name} gave {result.shape}"
        out.fill(result)
        seconds = time.perf_counter() - start
        GlobalCounters.host_calls += 1
        moved = sum([buffer.nbytes for buffer in rawbufs])
        count = len(rawbufs)
        update_stats(self._title, 0, moved, var_vals, seconds, count, jit=jit, device=self.device)
        return seconds


def _matrix_size(shape: tuple[int, ...]) -> int:
    """The elements of one matrix."""
    return prod(shape[-2:])


def on_host(
    function: Callable[..., Array],
    sources: Sequence[TracedValue],
    shape: Shape,
    dtype: DType,
    *args: Any,
) -> TracedValue:
    """The result of `function(*arrays of the sources, *args)`, as a lazy value off the tape.

    `function` must be a module's function, pure, and give an array of `shape`, which is converted
    to `dtype`; `args`, which have to be hashable, are passed on as they are. Each node that is
    realised is one call.

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
    runner = _host_function(function, shapes, device, user_location(), *args)
    nodes = [source.node for source in sources]
    return TracedValue(LazyBuffer.custom(runner, nodes, shape, dtype, device))


@lru_cache(maxsize=1024, typed=True)
def _host_function(
    function: Callable[..., Array],
    shapes: tuple[tuple[int, ...], ...],
    device: str,
    line: str,
    *args: Any,
) -> HostFunction:
    """One object for each function and its arguments, so that equal graphs have equal keys."""
    return HostFunction(function, args, shapes, device, line)


def _known(shape: tuple[sint, ...], function: Callable[..., Array]) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in shape):
        raise ShapeError(
            f"[{function.__name__.strip('_')}] runs on the host and needs known sizes, "
            f"not {shape}; realise a slice of known size first"
        )
    return tuple(size for size in shape if isinstance(size, int))
