"""Lists, dicts and dataclasses among the arguments of a captured call, and the call's changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from ferrule.base.containers import is_record, leaves
from ferrule.jit.places import attributes
from ferrule.jit.results import replace_tensors
from ferrule.jit.state import State
from ferrule.tensor import Tensor


@final
class Containers:
    """The arguments of a captured call.

    If some tensors have a stand-in, the function gets copies of the containers that hold the
    stand-ins. Its changes to a copy are repeated on the original after the call.
    """

    def __init__(self, given: Any, stand_ins: Mapping[Tensor, Tensor]) -> None:
        self.given = given if stand_ins else ()
        """The arguments that were copied."""
        self.used = replace_tensors(given, stand_ins) if stand_ins else given
        """The arguments that the function is called with."""
        self._before = _tensors(self.used)
        self._pairs = list(_pairs(given, self.used)) if stand_ins else []
        """Each container that was copied, and its copy."""
        self._originals: dict[int, Any] = {id(copy): original for original, copy in self._pairs}
        self._originals |= {id(stand_in): tensor for tensor, stand_in in stand_ins.items()}

    def are_found_twice(self, state: State) -> bool:
        """True if a container is among the arguments twice, or is also reachable by the function.

        A copy would then differ from the container that the function finds the other way.
        """
        originals = [id(original) for original, _ in self._pairs]
        is_repeated = len(set(originals)) < len(originals)
        return is_repeated or any(state.has_holder(number) for number in held_in(self.given))

    def have_changed(self) -> bool:
        """True if the call changed which tensors the containers hold, or their order."""
        after = _tensors(self.used)
        pairs = zip(self._before, after, strict=False)
        return len(after) != len(self._before) or any(old is not new for old, new in pairs)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """A block that may change the copies; afterwards the originals get the same changes."""
        before = [_contents(copy) for _, copy in self._pairs]
        try:
            yield
        finally:
            for (original, copy), contents in zip(self._pairs, before, strict=True):
                if not _are_same(contents, _contents(copy)):
                    _fill(original, copy, self._original)

    def _original(self, value: Any) -> Any:
        """The argument behind a stand-in or a copy; other values have those inside replaced."""
        found = self._originals.get(id(value))
        if found is not None:
            return found
        if isinstance(value, tuple):
            parts = [self._original(part) for part in value]
            return getattr(type(value), "_make", tuple)(parts)
        if isinstance(value, list | dict) or is_record(value):  # a container that the call made
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
    """The items of a container, including the keys of a dict."""
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
    """Copies the contents of one container into another, with copies replaced by originals."""
    if isinstance(container, list):
        container[:] = [original(part) for part in like]
    elif isinstance(container, dict):
        contents = {key: original(part) for key, part in like.items()}
        container.clear()
        container.update(contents)
    else:
        for field in dataclasses.fields(container):
            object.__setattr__(container, field.name, original(getattr(like, field.name)))
