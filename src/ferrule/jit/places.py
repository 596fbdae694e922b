"""Places: the attributes, items and variables through which code reaches objects."""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import re
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from importlib.util import resolve_name
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.jit.names import imports_of
from ferrule.tensor import Tensor

MADE_BY_A_STATEMENT = 1 << 9
"""The flag of types made by a class statement (`Py_TPFLAGS_HEAPTYPE`)."""
PLAIN = (int, float, complex, str, bytes, type(None), range, slice, np.generic)
"""The types of numbers, strings and the like."""
MISSING = object()
"""The content of an empty place."""
_WITH_ITEMS = (dict, list, deque)


def is_plain(value: Any) -> bool:
    """True if a value is a number, a string, or a tuple of such: these are immutable."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return issubclass(type(value), PLAIN) or value is MISSING


@final
@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """The place of a value: an item of a dict, list or deque, an attribute, or a variable.

    A fixed place, such as an item of a tuple, always holds the same value and cannot be read here.
    """

    holder: Any
    key: Any = None
    fixed: bool = False
    raw: bool = False
    """True for what a class's own `__dict__` has: `getattr` makes another object of that."""

    def get(self) -> Any:
        """The present content; `MISSING` if the place is empty or fixed."""
        holder = self.holder
        if self.fixed:
            return MISSING
        if self.raw:
            return vars(holder).get(self.key, MISSING)
        if isinstance(holder, dict):
            return holder.get(self.key, MISSING)
        if isinstance(holder, list | deque):
            return holder[self.key] if self.key < len(holder) else MISSING
        if isinstance(holder, types.CellType):
            return _contents(holder)
        if isinstance(holder, ContextVar):
            return holder.get(MISSING)
        return getattr(holder, self.key, MISSING)

    def getter(self) -> Callable[[], Any]:
        """`get` as one call of C; it may raise IndexError or ValueError for an empty place."""
        holder = self.holder
        if self.fixed:
            return self.get
        if self.raw:
            return functools.partial(vars(holder).get, self.key, MISSING)
        if isinstance(holder, dict):
            return functools.partial(dict.get, holder, self.key, MISSING)
        if isinstance(holder, list | deque):
            return functools.partial(operator.getitem, holder, self.key)
        if isinstance(holder, types.CellType):
            return functools.partial(getattr, holder, "cell_contents")
        if isinstance(holder, ContextVar):
            return functools.partial(holder.get, MISSING)
        return functools.partial(getattr, holder, self.key, MISSING)

    def set(self, value: Any) -> None:
        """Puts a value there."""
        holder = self.holder
        if isinstance(holder, _WITH_ITEMS):
            holder[self.key] = value
        elif isinstance(holder, types.CellType):
            holder.cell_contents = value
        elif isinstance(holder, ContextVar):
            holder.set(value)
        else:
            setattr(holder, self.key, value)

    @property
    def identity(self) -> tuple[int, Any]:
        """The key by which places are compared; it is unique while the holder lives."""
        return id(self.holder), self.key


Path: TypeAlias = tuple[tuple[Place, Any], ...]
"""The places on the way to an object, each with its content."""
Found: TypeAlias = tuple[Place, Any]


def tensors_of(value: Any) -> list[Tensor] | None:
    """The tensors in a value: a tensor, or tuples of tensors; None if it is anything else."""
    kind = type(value)  # `value.__class__` may run the object's own code
    if issubclass(kind, Tensor):
        return [value]
    if not issubclass(kind, tuple) or not value:
        return None
    found = [tensors_of(part) for part in value]
    known = [tensors for tensors in found if tensors is not None]
    return [t for tensors in known for t in tensors] if len(known) == len(found) else None


def below(value: Any) -> Iterator[Found]:
    """The objects that a container, a method or the like refers to directly, with their places."""
    if isinstance(value, dict):
        yield from [(Place(value, key), child) for key, child in value.items()]
    elif isinstance(value, list | deque):
        yield from [(Place(value, i), child) for i, child in enumerate(value)]
    elif isinstance(value, tuple | set | frozenset):
        yield from _fixed(value, value)
    elif isinstance(value, types.MethodType):
        yield from _fixed(value, (value.__self__, value.__func__))
    elif isinstance(value, functools.partial):
        yield from _fixed(value, (value.func, value.args, value.keywords))
    elif isinstance(value, staticmethod | classmethod):
        yield from _fixed(value, (value.__func__,))
    elif isinstance(value, property):
        yield from _fixed(value, (value.fget,))
    elif isinstance(value, functools.cached_property):
        yield from _fixed(value, (value.func,))
    else:  # a wrapper, such as another captured function: its own state does not matter
        yield from _fixed(value, (value.__wrapped__,))


def _fixed(holder: Any, values: Iterable[Any]) -> Iterator[Found]:
    return ((Place(holder, i, fixed=True), value) for i, value in enumerate(values))


def class_place(kind: type, name: str, child: Any) -> Place:
    """The place of a class's attribute."""
    return Place(kind, name, raw=attribute_of(kind, name) is not child)


def attribute_of(value: object, name: str) -> Any:
    """The value of an attribute, or `MISSING` if reading it raises any error."""
    try:
        return getattr(value, name, MISSING)
    except Exception:  # whatever the object's own code raises
        return MISSING


def imported(code: types.CodeType, space: Mapping[str, Any]) -> list[types.ModuleType]:
    """The loaded modules that code with these globals imports when it is called."""
    package = space.get("__package__") or ""
    names: list[str] = []
    for level, name in imports_of(code):
        # `import a.b.c` binds `a`; `import a.b.c as x` and `from a.b.c import x` use `a.b.c`.
        whole = resolve_name("." * level + name, package) if package or not level else name
        names += [whole, whole.partition(".")[0]]
    return [module for name in dict.fromkeys(names) if (module := sys.modules.get(name))]


def cells(function: types.FunctionType) -> Iterator[Found]:
    """The closure variables of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(cell, name), _contents(cell)


def defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The parameters of a function that have a default, with the defaults."""
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return MISSING


def items(space: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A copy of a namespace's items: reading an attribute may run code that adds others."""
    return list(space.items())


def attributes(value: object) -> dict[str, Any]:
    """The `__dict__` of an object; empty if it has none.

    The type is checked because some objects make up a value for any name.
    """
    if not type(value).__dictoffset__:
        return {}
    found = attribute_of(value, "__dict__")
    return found if isinstance(found, dict) else {}


def slots(value: object) -> Iterator[Found]:
    """The attributes of an object that are in slots."""
    for kind in type(value).__mro__:
        if issubclass(Tensor, kind):
            continue
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            child = attribute_of(value, name)
            yield Place(value, name), None if child is MISSING else child


@functools.lru_cache(maxsize=1 << 12)
def is_opaque(kind: type) -> bool:
    """True for a type whose instances have a state in C that Python code cannot compare.

    Such are iterators, generators, files, generators of random numbers, proxies. Their memory is
    larger than their attributes take.
    """
    if issubclass(kind, _IMMUTABLE) or hasattr(kind, "__get__"):  # descriptors
        return False
    while kind not in _COMPARED and kind.__base__ is not None:
        base = kind.__base__
        names = vars(kind).get("__slots__", ())
        count = 1 if isinstance(names, str) else len(tuple(names))
        count += kind.__dictoffset__ != base.__dictoffset__
        count += kind.__weakrefoffset__ != base.__weakrefoffset__
        if kind.__basicsize__ - base.__basicsize__ > _POINTER * count:
            return True
        kind = base
    return False


_POINTER = 8  # bytes
_IMMUTABLE = (
    *(re.Pattern, re.Match, np.dtype, np.ufunc, datetime.date, datetime.time, datetime.timedelta),
    *(datetime.tzinfo, decimal.Decimal, types.CodeType, types.BuiltinFunctionType),
    *(types.WrapperDescriptorType, types.MethodWrapperType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.EllipsisType, types.NotImplementedType, types.GenericAlias, types.UnionType),
    *(type(threading.Lock()), type(threading.RLock()), type(vars(Mapping)["_abc_impl"])),
    *(BaseException, Tensor),
)
"""Types in C whose instances do not change, or whose state matters to no result."""
_COMPARED = (int, float, complex, str, bytes, tuple, list, dict, set, frozenset, deque, type)
"""Types in C whose instances are compared by their contents."""


def is_trusted(value: Any) -> bool:
    """True if a class, a function or a module belongs to NumPy or this package.

    NumPy's random numbers are left out: a function of these gives another result each time.
    """
    package, _, module = _module_of(value).partition(".")
    return package in ("numpy", "ferrule") and module.partition(".")[0] != "random"


def _module_of(value: Any) -> str:
    name = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    return name if isinstance(name, str) and name else "builtins"


def weakly(value: object) -> Callable[[], Any]:
    """A function that gives the object; it does not keep it alive, where there is a way."""
    try:
        return weakref.ref(value)
    except TypeError:
        return functools.partial(operator.getitem, (value,), 0)
