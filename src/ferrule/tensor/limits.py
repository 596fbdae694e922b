"""Sizes and places that depend on variables: they have to fit with the values that these are bound
to now, and with those of each replay.

The kernels of a captured function take any value. Where the bounds of a variable do not say that
all of them fit, a capture notes what does, so that no replay reads or writes beyond a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from ferrule.ir.expr import Expr, as_expr, as_int, present_value, require, required, sint

Limits: TypeAlias = dict[Expr, None]
"""Differences of sizes, in terms of unbound variables, that must not be negative."""


def at_most(low: sint, high: sint) -> bool:
    """True if `low <= high` with the values bound now; noted for replays unless bounds decide.

    True if a variable has no value, since nothing that depends on it can be computed.
    """
    spare = as_expr(high) - low
    if spare.min >= 0:
        return True
    value = present_value(spare)
    if value is not None:
        require(spare)
    return value is None or value >= 0


def plain(number: Any) -> Any:
    """The present value of an expression, to which replays are bound; anything else unchanged."""
    return int(number) if isinstance(number, Expr) else number


def count_steps(start: Any, stop: Any, step: Any) -> sint:
    """The number of start, start + step, … in front of stop.

    If it depends on variables, replays keep to its being 0 or not.
    """
    if not isinstance(start, Expr) and not isinstance(stop, Expr):
        return int(max(math.ceil((stop - start) / step), 0))
    distance = stop - start if step > 0 else start - stop
    count = as_expr((distance + abs(step) - 1) // abs(step))
    if present_value(count) is not None and count < 0:
        return 0
    return as_int(count)


def is_part(start: sint, stop: sint, size: sint) -> bool:
    """True if start to stop is a part of an axis of that size; see `at_most`."""
    if isinstance(start, int) and isinstance(stop, int) and isinstance(size, int):
        return 0 <= start <= stop <= size
    return at_most(0, start) and at_most(start, stop) and at_most(stop, size)


@contextmanager
def noting_limits() -> Iterator[Limits]:
    """A block that notes the limits of variables' values; a value that is read must not change."""
    noted: Limits = {}
    token = required.set(noted)
    try:
        yield noted
    finally:
        required.reset(token)


def fit(limits: Limits, values: Mapping[Any, int]) -> bool:
    """True if these values of the variables are within the limits."""
    return all([spare.infer(values) >= 0 for spare in limits])
