"""Nested lists, tuples, dicts and dataclasses: their leaves, and copies with other leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


def is_record(value: Any) -> bool:
    """True if a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def leaves(value: Any, open_records: bool = True) -> Iterator[Any]:
    """The leaves of nested lists, tuples, dicts and dataclasses; any other value is a leaf.

    They come in order. Dataclasses are leaves themselves unless `open_records`.
    """
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif open_records and is_record(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        yield value
        return
    for part in parts:
        yield from leaves(part, open_records)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with each leaf changed."""
    if isinstance(value, list):
        return [mapped(part, change) for part in value]
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        return getattr(type(value), "_make", tuple)(parts)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    if is_record(value):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            part = mapped(getattr(value, field.name), change)
            object.__setattr__(copied, field.name, part)
        return copied
    return change(value)


def filled(value: Any, contents: Iterator[Any]) -> Any:
    """The same containers with other leaves, taken from an iterator in order.

    >>> filled({"a": 1, "b": [2, 3]}, iter("xyz"))
    {'a': 'x', 'b': ['y', 'z']}
    """
    return mapped(value, lambda _: next(contents))


def matching(value: Any, like: Any, name: str, prefix: bool = False) -> list[Any]:
    """The leaves of a value that belong to those of another: one for each, in its order.

    With `prefix` a leaf in the place of a container belongs to everything in it. Raises
    `ValueError` where the containers differ.

    >>> matching((0, [1, None]), ("x", ["y", {"z": "v", "w": "u"}]), "axes", prefix=True)
    [0, 1, None, None]
    """
    if is_record(like):
        like = {field.name: getattr(like, field.name) for field in dataclasses.fields(like)}
    if is_record(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    keys, found = _parts(like), _parts(value)
    if found is None and (prefix or keys is None):
        return [value] * sum(1 for _ in leaves(like))
    if keys is None or found is None or keys.keys() != found.keys():
        raise ValueError(
            f"{name}: {_form(value)} does not match {_form(like)}; give the same containers"
        )
    return [leaf for key in keys for leaf in matching(found[key], keys[key], name, prefix)]


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def _form(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    return f"{type(value).__name__}"
