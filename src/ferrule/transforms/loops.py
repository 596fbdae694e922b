"""`scan`: a function that is run again and again on values that it carries on.

The function is traced once, on placeholders, and becomes the body of a loop (`engine/loop.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ferrule.autograd import (
    IDENTITY,
    GradNode,
    TracedValue,
    is_recording,
    tape_position,
    transforming,
)
from ferrule.base.callbacks import call_back
from ferrule.base.containers import leaves, mapped, matching
from ferrule.base.helpers import check_function
from ferrule.engine.loop_body import LoopError, Trips, placeholder
from ferrule.engine.random import Words, drawn_by, random_words
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, sint
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor import Tensor
from ferrule.tensor.cell import watch_writes
from ferrule.transforms.loop_gradients import Trip, edges_from_outside, looped


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: sint | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `carry, y = f(carry, x)` for each row `x` of `xs`; gives the last carry, and all `y`.

    `init` is the first carry. `carry`, `x` and `y` are tensors, or tuples, lists, dicts or
    dataclasses of tensors; numbers and NumPy arrays in `init` and `xs` become tensors. The rows are
    along axis 0 of the tensors in `xs`, and the `y` are stacked there. With `reverse` the last row
    comes first. Without `xs`, `x` is None and `length` is the number of rows: an integer or a bound
    `Variable`.

    `f` is called once, on tensors that stand for the values of each row, and runs as one loop.
    Tensors that it closes over may be parts of it; what depends on these alone is computed once. It
    may draw random numbers, which differ from row to row.

    Raises `LoopError` if `f` returns no pair, or a carry of another shape, dtype or structure; if
    it reads the values of tensors, or writes to tensors from outside. Raises `ShapeError` if the
    numbers of rows differ, or are not given.

    >>> import ferrule
    >>> def step(total, x):
    ...     total = total + x
    ...     return total, total * 10
    >>> last, all_of_them = ferrule.scan(step, ferrule.Tensor(0.0), ferrule.Tensor([1.0, 2.0, 3.0]))
    >>> last.item(), all_of_them.tolist()
    (6.0, [10.0, 30.0, 60.0])
    """
    check_function(f, "scan")
    init, xs = mapped(init, number_as_tensor), mapped(xs, number_as_tensor)
    starts, arrays = values_in("scan", "init", init), values_in("scan", "xs", xs)
    n_rows = _trips(arrays, length)
    trace = LoopTrace("scan", starts, arrays, n_rows)
    found = trace.call(f, init, xs)
    if not isinstance(found, tuple) or len(found) != 2:
        raise LoopError(
            f"[scan] the function returns a pair (carry, y), not {_shown(found)}; return "
            "(carry, None) if there is nothing to stack"
        )
    carry, y = mapped(found[0], number_as_tensor), mapped(found[1], number_as_tensor)
    following = check_carry("scan", init, carry)
    rows = values_in("scan", "y", y)
    last, stacked = trace.loop(following, rows, Trips(n_rows, reverse))
    return filled_tensors(init, last), filled_tensors(y, stacked)


def number_as_tensor(leaf: Any) -> Any:
    """Numbers and arrays as tensors; everything else as it is."""
    return Tensor(leaf) if isinstance(leaf, int | float | np.ndarray | np.generic) else leaf


def filled_tensors(tree: Any, values: Sequence[TracedValue]) -> Any:
    """The containers with other values in the place of their tensors."""
    contents = iter(values)
    return mapped(tree, lambda leaf: None if leaf is None else Tensor._wrap(next(contents)))


def values_in(what: str, where: str, tree: Any) -> list[TracedValue]:
    """The values of the tensors in containers. Raises `LoopError` for anything but tensors."""
    found = [leaf for leaf in leaves(tree) if leaf is not None]
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise LoopError(
                f"[{what}] {where} holds {leaf!r:.40} ({type(leaf).__name__}); it holds tensors, "
                "numbers and arrays, or None, in tuples, lists, dicts and dataclasses"
            )
    return [leaf._read() for leaf in found]


def _shown(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def _trips(arrays: Sequence[TracedValue], length: sint | None) -> sint:
    """The number of rows."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | Expr)):
        raise TypeError(f"[scan] length is an integer or a bound Variable, not {length!r}")
    if isinstance(length, int) and length < 0:
        raise ShapeError(f"[scan] length {length} is negative")
    found = length
    for value in arrays:
        if not value.shape:
            raise ShapeError(
                "[scan] xs holds a tensor without axes; its tensors have a row for each trip, "
                "along axis 0: close over what is the same in all of them"
            )
        size = value.shape[0]
        if found is None:
            found = size
        elif not same(found, size):
            raise ShapeError(
                f"[scan] a tensor in xs has {size} rows, in shape {value.shape}, and there are to "
                f"be {found}; give all as many"
            )
    if found is None:
        raise ShapeError("[scan] there are neither xs nor a length; give one of them")
    return found


def check_carry(what: str, init: Any, carry: Any) -> list[TracedValue]:
    """The values of a carry after a trip. Raises `LoopError` if they are not as those before it."""
    try:
        after = matching(carry, init, f"[{what}] the carry that the function returns")
    except ValueError as error:
        raise LoopError(str(error)) from None
    paths = list(_paths(init))
    found = []
    for leaf, before, path in zip(after, leaves(init), paths, strict=True):
        if before is None and leaf is None:
            continue
        if before is None or not isinstance(leaf, Tensor):
            raise LoopError(
                f"[{what}] carry{path} is {_kind(before)} before a trip and {_kind(leaf)} after it"
            )
        old, new = before._read(), leaf._read()
        if old.dtype is not new.dtype:
            raise LoopError(
                f"[{what}] carry{path} is of {old.dtype} before a trip and of {new.dtype} after "
                f"it; cast one of them: the loop has one place for both"
            )
        if not _same_shape(old.shape, new.shape):
            raise LoopError(
                f"[{what}] carry{path} has shape {old.shape} before a trip and {new.shape} after "
                "it; expand one of them: the loop has one place for both"
            )
        found.append(new)
    return found


def _same_shape(a: Sequence[sint], b: Sequence[sint]) -> bool:
    return len(a) == len(b) and all(same(m, n) for m, n in zip(a, b, strict=True))


def _kind(leaf: Any) -> str:
    return "None" if leaf is None else f"a {type(leaf).__name__}"


def _paths(tree: Any) -> Any:
    """For each leaf, the text that names it in the containers."""
    if isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", None)
        for number, part in enumerate(tree):
            name = f"[{number}]" if names is None else f".{names[number]}"
            yield from (name + rest for rest in _paths(part))
    elif isinstance(tree, dict):
        for key, part in tree.items():
            yield from (f"[{key!r}]" + rest for rest in _paths(part))
    elif hasattr(type(tree), "__dataclass_fields__"):
        for name in type(tree).__dataclass_fields__:
            yield from (f".{name}" + rest for rest in _paths(getattr(tree, name)))
    else:
        yield ""


# *** the trace of one trip ***


@final
class LoopTrace:
    """The call of a function on placeholders, and the loop that it becomes."""

    def __init__(
        self,
        what: str,
        starts: Sequence[TracedValue],
        arrays: Sequence[TracedValue],
        rows: sint | None,
    ) -> None:
        self.what = what
        self.arrays = list(arrays)
        self._n_rows = rows
        self._tape_start = tape_position()
        self.carries: list[TracedValue] = []
        self.enter(starts)
        self.rows = [self._stand_in(value, value.shape[1:]) for value in arrays]

    def _stand_in(self, value: TracedValue, shape: Sequence[sint]) -> TracedValue:
        """A placeholder for a value in each trip; its edge is an end of the trip's tape."""
        if 0 in shape:
            return value.full(0, tuple(shape))
        node = placeholder(self.what, shape, value.dtype, value.node.device)
        if not dtypes.is_float(value.dtype) or not is_recording():
            return TracedValue(node)
        return TracedValue(node, GradNode("argument", IDENTITY, (TracedValue(node),), node, None))

    def enter(self, starts: Sequence[TracedValue]) -> None:
        """Set the values that the loop starts with."""
        self.starts = list(starts)
        self.carries = [self._stand_in(value, value.shape) for value in starts]

    def call(self, function: Callable[..., Any], init: Any, xs: Any) -> Any:
        """The result of the function on the placeholders."""
        with watch_writes() as before, transforming(is_recording()), drawn_by(self._draw):
            carry, row = filled_tensors(init, self.carries), filled_tensors(xs, self.rows)
            found = call_back(function, carry, row)
        written = [cell for cell, old in before.items() if cell.value.node is not old.node]
        for cell in written:
            cell.restore(before[cell])
        if written:
            raise LoopError(
                f"[{self.what}] the function writes to a tensor from outside, of shape "
                f"{written[0].value.shape}; carry it on, and write to it after the loop"
            )
        return found

    def _draw(self, shape: Sequence[sint], device: str) -> Words:
        """The words of one trip: the words of all trips are rows that it reads."""
        if self._n_rows is None:
            raise LoopError(
                f"[{self.what}] the function draws random numbers, of shape {tuple(shape)}, for an "
                "unknown number of trips; give max_trips"
            )
        words = random_words((self._n_rows, *shape), device)
        found = [self._stand_in(word, tuple(shape)) for word in words]
        self.arrays += words
        self.rows += found
        return found[0], found[1]

    def loop(
        self, following: Sequence[TracedValue], rows: Sequence[TracedValue], trips: Trips
    ) -> tuple[list[TracedValue], list[TracedValue]]:
        """The last carries and the stacked rows."""
        outs = [*following, *rows]
        if trips.most == 0:
            return self.starts, [row.full(0, (0, *row.shape)).detach() for row in rows]
        edges = [value.edge for value in outs if value.edge is not None]
        outside = edges_from_outside(edges, self._tape_start)
        trip = Trip(self.carries, self.rows, outs, outside, self._tape_start)
        return looped(self.what, trip, self.starts, self.arrays, trips)
