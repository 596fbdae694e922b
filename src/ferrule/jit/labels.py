"""Labels of what a function can reach, for messages about a call: `self.layers[0].weight`."""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from ferrule.jit.places import PLAIN, Place, attributes, below
from ferrule.tensor import Tensor


@final
class Labels:
    """The names of the tensors and the places that a function can reach, the shortest of each."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._tensors: dict[int, str] = {}
        self._places: dict[tuple[int, Any], str] = {}
        seen: dict[int, Any] = {}
        waiting = deque[tuple[Any, str, bool]]([(function, "", False)])
        for name, value in _arguments(function, args, kwargs):
            self._add(value, f"the argument {name}", waiting)
        while waiting:
            value, name, is_namespace = waiting.popleft()
            if id(value) in seen:
                continue
            seen[id(value)] = value  # kept until the end, so that no id is used twice
            for place, child, child_name in _below(value, name, is_namespace):
                if not place.fixed:
                    self._places.setdefault(place.identity, child_name)
                self._add(child, child_name, waiting, child is attributes(value))

    def _add(
        self,
        value: Any,
        name: str,
        waiting: deque[tuple[Any, str, bool]],
        is_namespace: bool = False,
    ) -> None:
        if isinstance(value, Tensor):
            self._tensors.setdefault(id(value), name)
        if not isinstance(value, PLAIN):
            waiting.append((value, name, is_namespace))

    def of(self, tensor: Tensor) -> str:
        """The name of a tensor."""
        return self._tensors.get(id(tensor), f"a tensor of shape {tensor.shape}")

    def at(self, place: Place) -> str:
        """The name of a place."""
        return self._places.get(place.identity, str(place.key))


def _arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a call, by the names of the parameters."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a function in C, or a call that does not fit
        yield from [(str(number), value) for number, value in enumerate(args)]
        yield from kwargs.items()
        return
    yield from bound.arguments.items()


def _below(value: Any, name: str, is_namespace: bool) -> Iterator[tuple[Place, Any, str]]:
    """The places of a value, their contents, and their names; `name` is that of the value."""
    for place, child in below(value):
        yield place, child, _name_below(value, name, is_namespace, place)


def _name_below(value: Any, name: str, is_namespace: bool, place: Place) -> str:
    key = place.key
    if isinstance(value, types.MethodType):
        return name if key else "self"
    if place.fixed:
        return f"{name}[{key}]" if isinstance(value, tuple) else name
    if isinstance(value, types.FunctionType):
        return str(key)
    if isinstance(value, Tensor):
        return f"the gradient of {name}"
    if isinstance(value, list | deque | dict) and not is_namespace:
        return f"{name}[{key!r}]"
    return f"{name}.{key}" if name else str(key)


def code_of_function(function: Any) -> types.CodeType | None:
    """The code of a function, a method, a `partial` or an object that can be called."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        else:
            break
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
