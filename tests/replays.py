"""Functions that are called plainly and captured, and must give the same."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ferrule.base.config import Context
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

Call = Callable[..., Any]
Capture = Callable[[Call], Call]

kept: list[Tensor] = []
"""Tensors that are still there when the function has others: so their memory is."""


def tensor(*values: float) -> Tensor:
    found = Tensor(np.array(values, np.float32)).realize()
    kept.append(found)
    return found


def results(f: Call, changes: dict[int, Callable[[], object]], calls: int = 12) -> Iterator[Any]:
    """What calls give; before some of them something happens."""
    for number in range(calls):
        if number in changes:
            changes[number]()
        yield f(tensor(number, 1)).tolist()


def replayed_like_plain(case: Callable[[Capture], Iterator[Any]]) -> list[TinyJit[Any]]:
    """Asserts that a case gives the same with captured functions; returns these."""
    captured: list[TinyJit[Any]] = []

    def capture(function: Call) -> Call:
        captured.append(TinyJit(function))
        return captured[-1]

    with Context(FERRULE_DEVICE="NUMPY"), np.errstate(divide="ignore"):
        plain = list(case(lambda function: function))
        assert repr(list(case(capture))) == repr(plain)
    kept.clear()
    return captured
