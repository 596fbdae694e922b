"""What `repr` shows of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Any

from ferrule.tensor import Tensor

_WIDTH = 100


class Shown:
    """A layer whose `repr` names its settings, the shapes of its tensors, and the layers in it.

    >>> from ferrule import nn
    >>> nn.Linear(3, 2)
    Linear(weight=(2, 3), bias=(2,))
    """

    def __repr__(self) -> str:
        parts = [
            f"{name}={_text(value)}"
            for name, value in vars(self).items()
            if not name.startswith("_")
        ]
        line = ", ".join(parts)
        kind = type(self).__name__
        if len(kind) + len(line) < _WIDTH and "\n" not in line:
            return f"{kind}({line})"
        return f"{kind}({_block(parts)})"


def _block(parts: Sequence[str]) -> str:
    """The parts on lines of their own, between two brackets."""
    lines = indent(",\n".join(parts), "  ")
    return f"\n{lines},\n"


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.shape)
    if isinstance(value, list | tuple) and any(isinstance(part, Shown) for part in value):
        return f"[{_block([repr(part) for part in value])}]"
    if callable(value) and not isinstance(value, Shown):
        return str(getattr(value, "__name__", value))
    return repr(value)
