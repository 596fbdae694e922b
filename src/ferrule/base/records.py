"""`dataclass`, as in the standard library, in a fifth of the time.

The standard one compiles each method of each class from text, 0.35 ms a class: a quarter of the
time that `import ferrule` and a first kernel took. Here only `__init__` is compiled, when it is
first looked up, as most classes are not used in most processes; the other methods are closures over
the names of the fields. Type checkers see the standard one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as standard_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_set = object.__setattr__


class _Init:
    """A placeholder for a class's `__init__`, which it compiles and installs when looked up."""

    def __init__(self, cls: type, members: tuple[Field[Any], ...], frozen: bool) -> None:
        self.parts = cls, members, frozen

    def __get__(self, instance: object, owner: type) -> Any:
        method: Any = _compiled_init(*self.parts)
        self.parts[0].__init__ = method  # type: ignore[misc]
        return method.__get__(instance, owner)


def _compiled_init(cls: type, members: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """The `__init__` of a class with these members."""
    known: dict[str, Any] = {"_set": _set, "_missing": MISSING}
    parameters, body = [], []
    for member in members:
        name, value = member.name, member.name
        if member.default is not MISSING:
            known[f"_default_{name}"] = member.default
            parameters.append(f"{name}=_default_{name}")
        elif member.default_factory is not MISSING:
            known[f"_make_{name}"] = member.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = [f"def __init__({', '.join(['self', *parameters])}):", *(body or ["pass"])]
    found: dict[str, Any] = {}
    exec("\n ".join(lines), known, found)
    method: Callable[..., None] = found["__init__"]
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__annotations__ = {m.name: m.type for m in members} | {"return": None}
    return method


def _representation(members: tuple[Field[Any], ...]) -> Callable[[Any], str]:
    # `fields` takes most of the time of a short text, and keys of kernels have thousands.
    names = [member.name for member in members]

    def __repr__(self: Any) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    return __repr__


def _values(members: tuple[Field[Any], ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the values of these members of an object as a tuple."""
    names = [member.name for member in members]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])


def _comparison(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:
        if self is other:
            return True
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _freeze(cls: Any, members: tuple[Field[Any], ...]) -> None:
    names = frozenset([member.name for member in members])

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, member.name) for member in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for member, value in zip(fields(self), state, strict=True):
        _set(self, member.name, value)


def _made(cls: Any, frozen: bool, eq: bool, repr: bool, slots: bool) -> Any:
    own = set(vars(cls))
    if cls.__doc__ is None:  # else the standard library asks `inspect` for a signature
        cls.__doc__ = f"{cls.__name__}({', '.join(vars(cls).get('__annotations__', ()))})"
    made: Any = standard_dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    members = fields(made)
    made.__init__ = _Init(made, members, frozen)
    if repr and "__repr__" not in own:
        made.__repr__ = _representation(members)
    if eq and "__eq__" not in own:
        values = _values(tuple([member for member in members if member.compare]))
        made.__eq__ = _comparison(values)
        if "__hash__" not in own:
            made.__hash__ = _hash(values) if frozen else None
    if frozen:
        _freeze(made, members)
        if slots:
            made.__getstate__, made.__setstate__ = _getstate, _setstate
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False):
        """The class with the methods of a record: see `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: _made(cls, frozen, eq, repr, slots)
        return _made(cls, frozen, eq, repr, slots)
