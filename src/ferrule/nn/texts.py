"""Texts of layers, as PyTorch has them: which settings are shown, and how layers are indented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import groupby
from textwrap import indent
from typing import Any

from ferrule.tensor import Tensor

_WIDTH = 100


def text(value: Any) -> str:
    """A setting: a tensor as its shape, a function as its name."""
    if isinstance(value, Tensor):
        return str(value.shape)
    if callable(value) and not hasattr(value, "extra_repr"):
        return str(getattr(value, "__name__", value))
    return repr(value)


def settings(layer: object, shown: str) -> Iterator[str]:
    """The settings that `shown` asks for, a word for each.

    `size` is the value alone, `size=` has its name, `size?` is left out where it is the default of
    the constructor, or that does not take it. `bias` says if there is one.

    >>> from ferrule import nn
    >>> from ferrule.nn.texts import settings
    >>> list(settings(nn.Linear(4, 2, bias=False), "in_features out_features= bias?"))
    ['4', 'out_features=2', 'bias=False']
    """
    parameters = signature(type(layer)).parameters
    for word in shown.split():
        name = word.rstrip("=?")
        is_optional = word.endswith("?")
        if is_optional and name not in parameters:
            continue
        value = getattr(layer, name)
        if name == "bias":
            value = value is not None and value is not False
        if not (is_optional and _is_default(value, parameters[name].default)):
            yield text(value) if word == name else f"{name}={text(value)}"


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor):
        return False
    if isinstance(value, tuple) and not isinstance(default, tuple):
        return all(part == default for part in value)
    return bool(value == default)


def tree(name: str, first: str, each: Sequence[str], below: Sequence[tuple[str, Any]]) -> str:
    """A layer: its settings in one line, and an indented line for each part below.

    If there is nothing below and the line would be long, each of the settings in `each` has one.
    """
    is_short = not each or (len(name) + len(first) < _WIDTH and "\n" not in first)
    if not below and is_short:
        return f"{name}({first})"
    lines = [first] * bool(first) if below else [f"{part}," for part in each]
    parts = [f"({key}): {_part(value)}" for key, value in below]
    body = indent("\n".join([*lines, *parts]), "  ")
    return f"{name}(\n{body}\n)"


def _part(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return text(value)
    lines = "\n".join(f"({number}): {part!r}" for number, part in enumerate(value))
    return f"[\n{indent(lines, '  ')}\n]"


def alike_together(parts: Sequence[Any]) -> str:
    """The lines of a list of layers: neighbours with the same text have one line.

    >>> from ferrule import nn
    >>> from ferrule.nn.texts import alike_together
    >>> alike_together([nn.Tanh(), nn.Tanh(), nn.Sigmoid()])
    '(0-1): 2 x Tanh()\\n(2): Sigmoid()'
    """
    lines, start = [], 0
    for shown, same in groupby(map(text, parts)):
        count = len(list(same))
        several = f"({start}-{start + count - 1}): {count} x {shown}"
        lines.append(several if count > 1 else f"({start}): {shown}")
        start += count
    return "\n".join(lines)
