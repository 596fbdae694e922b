"""The lists, dicts and dataclasses that a captured function is given, and what it does to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from ferrule.containers import is_record, leaves
from ferrule.jit.places import attributes
from ferrule.jit.reach import Reach
from ferrule.jit.results import replace_tensors
from ferrule.tensor import Tensor


@final
class Containers:
    """The arguments of a call that is captured.

    Where some tensors have a stand-in, the function is given copies of the containers, with the
    stand-ins. What it does to a copy is done to the original after the call.
    """

    def __init__(self, given: Any, stand_ins: Mapping[Tensor, Tensor]) -> None:
        self.given = given if stand_ins else ()
        """The containers of which there are copies."""
        self.used = replace_tensors(given, stand_ins) if stand_ins else given
        """What the function is called with."""
        self._before = _tensors(self.used)
        self._pairs = list(_pairs(given, self.used)) if stand_ins else []
        """Each container that was copied, and its copy."""
        self._originals: dict[int, Any] = {id(copy): original for original, copy in self._pairs}
        self._originals |= {id(stand_in): tensor for tensor, stand_in in stand_ins.items()}

    def are_found_twice(self, reach: Reach) -> bool:
        """Whether a copy would not do: its original is in several places, or can be reached too."""
        originals = [id(original) for original, _ in self._pairs]
        is_repeated = len(set(originals)) < len(originals)
        return is_repeated or any(reach.has_holder(number) for number in held_in(self.given))

    def have_changed(self) -> bool:
        """Whether other tensors are in them, or the same in other places, than before the call."""
        after = _tensors(self.used)
        pairs = zip(self._before, after, strict=False)
        return len(after) != len(self._before) or any(old is not new for old, new in pairs)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """A block that may change the copies; the originals change likewise after it."""
        before = [_contents(copy) for _, copy in self._pairs]
        try:
            yield
        finally:
            for (original, copy), contents in zip(self._pairs, before, strict=True):
                if not _are_same(contents, _contents(copy)):
                    _fill(original, copy, self._original)

    def _original(self, value: Any) -> Any:
        """What is given for a stand-in or a copy; anything else as it is, but for such in it."""
        found = self._originals.get(id(value))
        if found is not None:
            return found
        if isinstance(value, tuple):
            parts = [self._original(part) for part in value]
            return getattr(type(value), "_make", tuple)(parts)
        if isinstance(value, list | dict) or is_record(value):  # which the call made
            _fill(value, value, self._original)
        return value


def held_in(value: Any) -> set[int]:
    """The lists and dicts in containers, those of a dataclass's attributes included, by `id()`."""
    if not (isinstance(value, list | tuple | dict) or is_record(value)):
        return set()
    inside = set[int]().union(*map(held_in, _contents(value)))
    if isinstance(value, tuple):
        return inside
    return {id(attributes(value) if is_record(value) else value), *inside}


def _tensors(value: Any) -> list[Tensor | None]:
    """The tensors in containers, and None for all else there, in order."""
    return [leaf if isinstance(leaf, Tensor) else None for leaf in leaves(value)]


def _contents(container: Any) -> list[Any]:
    """What a container holds, with the keys of a dict."""
    if isinstance(container, dict):
        return [part for item in container.items() for part in item]
    if is_record(container):
        return [getattr(container, field.name) for field in dataclasses.fields(container)]
    return list(container)


def _are_same(some: list[Any], others: list[Any]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(one is other for one, other in pairs)


def _pairs(given: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The containers in `given` that can be changed, each with the one in its place in `copy`."""
    if not (isinstance(given, list | tuple | dict) or is_record(given)):
        return
    if not isinstance(given, tuple):
        yield given, copy
    for part, copied in zip(_contents(given), _contents(copy), strict=True):
        yield from _pairs(part, copied)


def _fill(container: Any, like: Any, original: Callable[[Any], Any]) -> None:
    """Gives a container what another one holds, with the originals of what is in it."""
    if isinstance(container, list):
        container[:] = [original(part) for part in like]
    elif isinstance(container, dict):
        contents = {key: original(part) for key, part in like.items()}
        container.clear()
        container.update(contents)
    else:
        for field in dataclasses.fields(container):
            object.__setattr__(container, field.name, original(getattr(like, field.name)))
