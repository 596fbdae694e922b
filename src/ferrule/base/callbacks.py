"""Calls of functions of the program by functions of this package, such as `grad` and `Sequential`.

A capture sees which code of the program runs (`jit/executed.py`), and does not look at functions of
this package. So these say when they call back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ferrule.base.threadstate import this_thread

T = TypeVar("T")


def call_back(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """`function(*args, **kwargs)`, a function of the program, which a capture is to see.

    >>> call_back(max, 2, 3)
    3
    """
    watch = this_thread.state.seeing
    if watch is None:
        return function(*args, **kwargs)
    generators, watch.generators = watch.generators, 0
    paused_by = watch.paused_by
    watch.resume()
    try:
        return function(*args, **kwargs)
    finally:
        watch.pause(paused_by)
        watch.generators = generators
