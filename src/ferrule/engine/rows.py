"""Row functions: native functions of the rows of an array as lazy nodes, such as sorting.

A device without them has `Device[name].row_function` None. They run as kernels do: captures, loops
and graph executors take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ferrule.autograd import TracedValue
from ferrule.device import Device
from ferrule.device.runner import RowFunction
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import ShapeError


def by_rows(name: str, x: TracedValue, width: int, *values: int) -> TracedValue:
    """The function of this name for each row of uint64 numbers: (..., n) gives (..., width).

    Raises `ShapeError` for a symbolic size.
    """
    found = row_node(name, x.node, width, *values)
    bounds = [(0, size) for size in x.shape[:-1]]
    return TracedValue(found).shrink([*bounds, (0, width)])


def row_node(name: str, x: LazyBuffer, width: int, *values: int) -> LazyBuffer:
    """The node of `by_rows`: its rows have scratch memory behind the results."""
    *rows, size = _known(x.shape, name)
    runner = _row_function(name, x.device, prod(rows), size, width, *values)
    return LazyBuffer.custom(runner, [x], (*rows, runner.stride), x.dtype, x.device)


@lru_cache(maxsize=1024)
def _row_function(
    name: str, device: str, rows: int, size: int, width: int, *values: int
) -> RowFunction:
    """One object for each function and its values, so that equal graphs have equal keys."""
    find = Device[device].row_function
    assert find is not None, f"{device} has no functions of rows"
    return RowFunction(find(name), name, device, rows, size, width, *values)


def _known(shape: Sequence[sint], name: str) -> tuple[int, ...]:
    known = tuple(size for size in shape if isinstance(size, int))
    if len(known) != len(shape):
        raise ShapeError(
            f"[{name}] needs known sizes, not {tuple(shape)}; realise a slice of known size first"
        )
    return known
