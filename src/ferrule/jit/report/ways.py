"""Ways: the expressions by which a function's code reaches objects, such as `self.layers[0]`.

They are found by a walk of their own, and only when text for the user is to be made of them.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias, final

from ferrule.device import Compiled, Device, Interpreted
from ferrule.jit.names import global_names
from ferrule.jit.places import Place, attributes, cells, is_plain, is_trusted, slots
from ferrule.tensor import Tensor

_MAX_OBJECTS = 100_000
"""Objects to walk over: nothing beyond has a way. Not measured."""
_WITHOUT_PARTS = (type(Device), Compiled, Interpreted)

Found: TypeAlias = Iterator[tuple[str, Any]]
"""Objects, each with the way to it."""


@final
class Ways:
    """The shortest way from the code of a function to each object in its reach."""

    def __init__(self, function: Callable[..., Any], given: Iterable[tuple[str, Any]] = ()) -> None:
        """`given` are objects among the arguments, with their names."""
        self.tensors: list[tuple[str, Tensor]] = []
        """The tensors in reach, each with its way."""
        self._of_object: dict[int, tuple[str, Any]] = {}
        """The way to each object, by `id()`, with the object, so that no `id()` is used twice."""
        self._starts: dict[int, str] = {}
        """What ways to the places of a holder begin with, by its `id()`."""
        self._space: dict[str, Any] | None = None
        """The module's variables of the function itself."""
        self._names: set[str] = set()
        """The names in the code so far: of modules only what these name is looked at."""
        is_code = isinstance(function, types.FunctionType | types.MethodType | functools.partial)
        waiting = deque([*given, ("" if is_code else "self", function)])
        while waiting and len(self._of_object) < _MAX_OBJECTS:
            name, value = waiting.popleft()
            if id(value) not in self._of_object and not is_plain(value):
                self._of_object[id(value)] = name, value
                if issubclass(type(value), Tensor):
                    self.tensors.append((name, value))
                if type(value) not in weakref.ProxyTypes:
                    waiting += self._below(name, value)

    def to(self, value: Any) -> str | None:
        """The way to an object, or to the content of a place; None if there is none."""
        if type(value) is not Place:
            found = self._of_object.get(id(value))
            return None if found is None else found[0]
        start = self._starts.get(id(value.holder))
        return None if start is None else _way(start, value.key)

    def _below(self, name: str, value: Any) -> Found:
        """The objects that a value refers to."""
        kind = type(value)  # `value.__class__` may run the object's own code
        if issubclass(kind, dict):
            yield from self._parts(value, f"{name}[", value.items())
        elif issubclass(kind, list | deque):
            yield from self._parts(value, f"{name}[", enumerate(value))
        elif issubclass(kind, tuple):
            yield from [(f"{name}[{number}]", child) for number, child in enumerate(value)]
        elif issubclass(kind, set | frozenset):
            yield from [(name, child) for child in value]
        elif issubclass(kind, types.FunctionType):
            yield from self._below_function(value)
        elif issubclass(kind, types.MethodType):
            yield from [(_owner(name, value), value.__self__), (name, value.__func__)]
        elif issubclass(kind, functools.partial):
            parts = (name, value.func), (f"{name}.args", value.args)
            yield from (*parts, (f"{name}.keywords", value.keywords))
        elif issubclass(kind, types.ModuleType):
            if not _is_foreign(value):
                members = [(key, child) for key, child in [*vars(value).items()]]
                named = [(key, child) for key, child in members if key in self._names]
                yield from self._parts(vars(value), f"{name}.", named)
        elif issubclass(kind, type):
            if not _is_foreign(value):
                yield from self._parts(value, f"{name}.", [*vars(value).items()])
                yield from [(base.__name__, base) for base in value.__bases__]
        elif issubclass(kind, ContextVar):
            yield from self._parts(value, name, [("get()", value.get(None))])
        elif issubclass(kind, weakref.ref):
            yield name, value()
        elif not issubclass(kind, _WITHOUT_PARTS):
            yield from self._below_object(name, value)

    def _below_object(self, name: str, value: Any) -> Found:
        own = attributes(value)
        inside = own["__wrapped__"] if "__wrapped__" in own else _described(value)
        if inside is not None:  # a wrapper, such as another captured function
            yield name, inside
            return
        yield from self._parts(own, f"{name}.", [*own.items()])
        fixed = [(place.key, child) for place, child in slots(value)]
        if issubclass(type(value), Tensor):
            fixed = [("grad", value.grad)]
        yield from self._parts(value, f"{name}.", fixed)
        yield type(value).__name__, type(value)

    def _below_function(self, function: types.FunctionType) -> Found:
        if _is_foreign(function):
            return
        code, space = function.__code__, function.__globals__
        self._starts[id(function)] = f"{function.__name__}."
        names = dict.fromkeys(global_names(code))
        self._names |= names.keys()
        if self._space is None:
            self._space = space
        module = str(space.get("__name__", "")).rpartition(".")[2]
        for place, child in cells(function):
            yield from self._parts(place.holder, "", [(place.key, child)])
        found = [(name, space[name]) for name in names if name in space]
        yield from self._parts(space, "" if space is self._space else f"{module}.", found)
        yield from [(function.__name__, default) for default in function.__defaults__ or ()]
        yield from (function.__kwdefaults__ or {}).items()

    def _parts(self, holder: Any, start: str, parts: Iterable[tuple[Any, Any]]) -> Found:
        """The contents of a holder's places, given by their keys; the first way there counts."""
        start = self._starts.setdefault(id(holder), start)
        return ((_way(start, key), child) for key, child in list(parts))


def _way(start: str, key: Any) -> str:
    return f"{start}{key!r}]" if start.endswith("[") else f"{start}{key}"


def _owner(name: str, method: types.MethodType) -> str:
    """The way to the object of a method: what stands in front, or what its code calls it."""
    code = getattr(method.__func__, "__code__", None)
    own = code.co_varnames[0] if code is not None and code.co_argcount else "self"
    return name.rpartition(".")[0] or own


def _described(value: Any) -> Any:
    """The function of a descriptor; None for other objects."""
    kind = type(value)
    if issubclass(kind, staticmethod | classmethod):
        return value.__func__
    if issubclass(kind, property):
        return value.fget
    return value.func if issubclass(kind, functools.cached_property) else None


def _is_foreign(value: Any) -> bool:
    """True if a class, a function or a module belongs to Python, NumPy or this package."""
    name = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    package = str(name or "builtins").partition(".")[0]
    return package in sys.stdlib_module_names or is_trusted(value)
