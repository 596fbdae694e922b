"""Guards on the numbers, strings and arrays that a function finds without its arguments.

Replays contain their values from the capture, so a replay is only right while they stay equal.
"""

from __future__ import annotations

import builtins as builtins_module
import functools
import operator
import types
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from itertools import chain
from typing import Any, final

import numpy as np

from ferrule.device import Compiled, Device, Interpreted
from ferrule.ir.dtype import DType, exact
from ferrule.ir.expr import Expr
from ferrule.jit.executed import Executed
from ferrule.jit.names import NO_NAMES, Names, global_names, names_of
from ferrule.jit.places import (
    MADE_BY_A_STATEMENT,
    MISSING,
    PLAIN,
    Path,
    Place,
    attribute_of,
    attributes,
    below,
    cells,
    class_place,
    defaults,
    imported,
    is_foreign,
    is_opaque,
    is_plain,
    is_trusted,
    items,
    slots,
    tensors_of,
)
from ferrule.tensor import Tensor

_WITHOUT_NUMBERS = (type(Device), Compiled, Interpreted, Tensor, DType, Expr)
_IN_FIXED_PLACES = (
    *(tuple, frozenset, types.MethodType, functools.partial),
    *(staticmethod, classmethod, property, functools.cached_property, weakref.ref),
)
_ARRAYS = (np.ndarray, bytearray, memoryview, array)
_WITH_CODE = (types.FunctionType, types.ModuleType, type)
"""Kinds of values not followed for computed names: they lead to all code of a package."""
_LARGEST_ARRAY = 1 << 20  # bytes: larger arrays take too long to compare before each replay


def form(value: Any) -> Any:
    """A key that is equal for values of the same type with the same bits, such as two NaNs.

    Objects other than numbers and strings are known by their `id()`.
    """
    if type(value) is tuple:
        return tuple([form(part) for part in value])
    if isinstance(value, tuple):
        return type(value), tuple([form(part) for part in value])
    if isinstance(value, frozenset):
        return frozenset([form(part) for part in value])
    if isinstance(value, float):
        return type(value), exact(value)
    if isinstance(value, complex):
        return type(value), exact(value.real), exact(value.imag)
    if isinstance(value, np.generic):
        return type(value), value.dtype.str, value.tobytes()
    if isinstance(value, slice | range):
        return type(value), form((value.start, value.stop, value.step))
    return type(value), value if isinstance(value, PLAIN) else id(value)


@final
class _Number:
    """A number, or a copy of a container: the way to read it, and its last value."""

    __slots__ = ("get", "name", "value")

    def __init__(self, name: str, get: Callable[[], Any]) -> None:
        self.name = name
        self.get = get
        self.value = get()

    def read(self) -> Any:
        """The present value; `MISSING` if the object is gone that has it."""
        try:
            return self.get()
        except ReferenceError:
            return MISSING

    def change(self) -> str | None:
        """The description of a change, or None. An equal new object replaces the old one."""
        now, then = self.read(), self.value
        if now is not then:
            if not _are_equal(now, then):
                return f"{self.name} was {then!r:.40}, and is {now!r:.40}"
            self.value = now
        return None


def _are_equal(a: Any, b: Any) -> bool:
    if type(a) is tuple and type(b) is tuple:  # perhaps a copy of a long list
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or form(a) == form(b))
    return bool(form(a) == form(b))


@final
class Numbers:
    """The numbers, strings and arrays that code can read from `roots`, and their places.

    The walk follows the names that the code loads, and the names in the functions that it calls.
    Attributes that no code names may change freely.
    """

    def __init__(self, roots: Iterable[Any], executed: Executed) -> None:
        walk = _Walk(roots, executed)
        self.codes = walk.codes
        """The code whose names the walk followed."""
        self.opaque = walk.opaque
        """The objects in reach whose state cannot be compared: their names, and their kinds."""
        self._found = walk.found
        self._held = {id(container) for container in walk.containers}
        self.assigned = walk.names.stored
        """The names of attributes, and of variables, that the code assigns to."""
        self.path: Path = tuple([step for step in walk.steps if not self._may_be_state(*step)])
        """The objects on the way to the numbers, with their places: they must stay there too."""
        self._numbers = walk.numbers
        self._copies = walk.copies
        self._kinds = [(place, _kind_at(place)) for place in walk.tensors]
        self._arrays = [(found, _contents(found)) for found in walk.arrays if _is_small(found)]
        self.has_large_arrays = len(self._arrays) < len(walk.arrays)
        """True if there are arrays too large to be compared before each replay."""
        self._gets = [number.get for number in self._numbers]
        self._containers = walk.containers
        self._note()

    def adds_to(self, earlier: Numbers) -> bool:
        """True if this walk, after a call, stands for the `earlier` one, before it: what it found
        besides is not what the call may have changed.

        The kinds of tensors are then those of the earlier walk, as far as that found them.
        """
        known, assigned = earlier._found, self.assigned
        added = [key for identity, key in self._found.items() if identity not in known]
        if not self._held <= earlier._held or any([key in assigned for key in added]):
            return False
        others = [pair for pair in self._kinds if pair[0].identity not in known]
        self._kinds = earlier._kinds + others
        return True

    def add_kinds(self, is_watched: Callable[[Place], bool]) -> None:
        """Adds the shapes, dtypes and devices of tensors: code may read these and not the contents.

        Tensors in watched places, which must stay there or are inputs, are left out.
        """
        for place, numbers in self._kinds:
            if not is_watched(place):
                self._numbers += numbers
        self._gets = [number.get for number in self._numbers]
        self._note()

    def _note(self) -> None:
        """Notes the present objects: as long as they are the same, no value is compared."""
        self._values = [number.value for number in self._numbers]
        self._lengths = list(map(len, self._containers))
        self._contents = list(chain.from_iterable(self._containers))

    def _are_the_same(self) -> bool:
        contents = chain.from_iterable(self._containers)
        try:
            same = all(map(operator.is_, map(operator.call, self._gets), self._values))
        except ReferenceError:  # an object that only weak references led to is gone
            same = False
        return (
            same
            and list(map(len, self._containers)) == self._lengths
            and all(map(operator.is_, contents, self._contents))
        )

    def _may_be_state(self, place: Place, child: Any) -> bool:
        """True if the code may replace tensors there: `self.state = self.cell(x, self.state)`.

        Such a place needs no guard here: a tuple of tensors has no numbers, and the tensors have
        guards on their memory.
        """
        return place.key in self.assigned and tensors_of(child) is not None

    def __bool__(self) -> bool:
        return bool(self._numbers or self._copies or self._arrays)

    def key(self) -> tuple[Any, ...]:
        """The present values of all the numbers, for the signature."""
        return tuple([form(number.read()) for number in (*self._numbers, *self._copies)])

    def problem(self) -> str | None:
        """The description of a number or an array that has changed; None if none has."""
        if not self._are_the_same():
            for number in (*self._numbers, *self._copies):
                changed = number.change()
                if changed is not None:
                    return changed
            self._note()
        for found, contents in self._arrays:
            if _contents(found) != contents:
                return "an array that the function reads has changed"
        return None


def _is_small(value: Any) -> bool:
    size = value.nbytes if isinstance(value, np.ndarray) else memoryview(value).nbytes
    return bool(size <= _LARGEST_ARRAY)


def _contents(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    return (bytes(value),)


@final
class _Walk:
    """A walk over all objects that code can reach by names; code found on the way adds names."""

    def __init__(self, roots: Iterable[Any], executed: Executed) -> None:
        self.codes: set[types.CodeType] = set()
        self.opaque: dict[str, str] = {}
        self.found: dict[tuple[int, Any], Any] = {}
        """The keys of all places that code may read, by their identities."""
        self._executed = executed
        self._keys: dict[int, str] = {}
        """The key of a place of each object, by `id()`."""
        self.steps: list[tuple[Place, Any]] = []
        self.numbers: list[_Number] = []
        self.copies: list[_Number] = []
        self.containers: list[Collection[Any]] = []
        """The containers that `copies` were made of."""
        self.arrays: list[Any] = []
        self.names = NO_NAMES
        self.tensors: list[Place] = []
        """The places of tensors."""
        self._waiting: dict[str, list[tuple[Place, Any]]] = {}
        self._objects: list[object] = []
        self._kinds: dict[type, dict[type, None]] = {Tensor: {}}
        """The classes of this package and NumPy in reach, each with those derived from it."""
        self._modules: set[int] = set()
        """The dicts of modules, by `id()`."""
        self._roots = list(roots)
        seen: dict[int, Any] = {}
        self._stack: list[Any] = list(self._roots)
        for code, space in list(executed.codes.items()):  # other threads may add to them
            self._look_into_code(code, space)
        while self._stack:
            value = self._stack.pop()
            if id(value) not in seen:
                seen[id(value)] = value  # kept until the end, so that no id is used twice
                self._look_into(value)
        self._look_for_what_is_missing()
        self._watch_methods_of_package()

    def _look_into(self, value: Any) -> None:
        if is_plain(value) and not type(value).__dictoffset__:
            return
        if type(value) in weakref.ProxyTypes:  # who asks it for anything asks another object
            self._refuse(value)
            return
        if isinstance(value, _ARRAYS):
            self._look_into_array(value)
        elif isinstance(value, list | dict | set | deque):
            self._look_into_container(value)
        elif isinstance(value, types.FunctionType):
            self._look_into_function(value)
        elif isinstance(value, types.ModuleType):
            if not is_trusted(value):
                self._modules.add(id(vars(value)))
                self._offer_all(vars(value))
            elif value is np:
                self._offer(Place(vars(np), "random"), np.random)
        elif isinstance(value, type):
            self._look_into_class(value)
            self._stack.append(type(value))
        elif isinstance(value, ContextVar):
            self._take(Place(value, value.name), value.get(MISSING))
        elif isinstance(value, weakref.ref):
            self.numbers.append(_Number("a weak reference", functools.partial(_is_alive, value)))
            self._stack.append(value())
        elif isinstance(value, _IN_FIXED_PLACES) or "__wrapped__" in attributes(value):
            for place, child in below(value):
                self._take(place, child)
        elif not isinstance(value, _WITHOUT_NUMBERS):
            self._look_into_object(value)

    def _look_into_array(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            self.numbers.append(_Number("an array of objects", lambda: tuple(value.flat)))
            self._stack += value.flat
        else:
            self.arrays.append(value)

    def _look_into_container(
        self, container: list[Any] | deque[Any] | dict[Any, Any] | set[Any]
    ) -> None:
        kind = f"a {type(container).__name__}"
        if isinstance(container, set):
            self._copy(kind, frozenset, container)
            return
        self.numbers.append(_Number(f"the length of {kind}", functools.partial(len, container)))
        if isinstance(container, dict):
            self._copy(f"the keys of {kind}", tuple, container)
        children = list(below(container))
        if all(is_plain(child) for _, child in children):
            parts = container.values() if isinstance(container, dict) else container
            self._copy(kind, tuple, parts)
        else:
            for place, child in children:
                self._take(place, child)

    def _copy(self, name: str, copy: Callable[[Any], Any], container: Collection[Any]) -> None:
        self.copies.append(_Number(name, functools.partial(copy, container)))
        self.containers.append(container)

    def _look_into_function(self, function: types.FunctionType) -> None:
        if function.__code__ not in self._executed.codes:
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            # Tools that reload modules replace the code.
            if name != "__code__" or all(function is not root for root in self._roots):
                get = functools.partial(getattr, function, name)
                self.numbers.append(_Number(f"the {name} of {function.__name__}", get))
        named, _ = names_of(function.__code__)
        for place, child in cells(function):
            if _may_read(named, place.key, child):
                self._take(place, child)
        self._look_into_code(function.__code__, function.__globals__)
        for name, default in defaults(function):
            if _may_read(named, name, default):
                self._stack.append(default)
        self._offer_all(vars(function))

    def _look_into_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        if code in self.codes:
            return
        self.codes.add(code)
        named, loaded = names_of(code)
        self._stack += imported(code, space)
        builtins = space.get("__builtins__", vars(builtins_module))
        if isinstance(builtins, types.ModuleType):
            builtins = vars(builtins)
        for name in global_names(code):
            if name in space:
                if _may_read(named, name, space[name]):
                    self._take(Place(space, name), space[name])
            elif name in builtins and name in named.everything():
                self.steps.append((Place(builtins, name), builtins[name]))
                self.steps.append((Place(space, name), MISSING))
        names, wanted = self._waiting.keys(), loaded.everything() | loaded.stored
        is_first = loaded.unknown and not self.names.unknown
        self.names |= loaded
        for name in list(names) if is_first else wanted & names:
            for place, child in self._waiting.pop(name):
                self._offer(place, child)

    def _look_into_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base is object:
                continue
            if is_trusted(base):
                self._kinds.setdefault(base, {})[kind] = None
                continue
            for name, child in items(vars(base)):
                ran = self._ran(child)
                if ran or not name.startswith("__"):
                    for holder in dict.fromkeys((base, kind)):  # the subclass may get its own
                        place = class_place(holder, name, child)
                        (self._take if ran else self._offer)(place, child)

    def _ran(self, value: Any) -> bool:
        """True for a function that a call ran, or entered this package by."""
        code = getattr(value, "__code__", None)
        return code in self._executed.entered or code in self._executed.codes

    def _refuse(self, value: object) -> None:
        """Note an object whose state cannot be compared."""
        kind = type(value).__name__
        self.opaque.setdefault(self._keys.get(id(value), kind), kind)

    def _look_into_object(self, value: object) -> None:
        kind: Any = type(value)
        if is_opaque(kind):
            self._refuse(value)
            return
        if kind.__flags__ & MADE_BY_A_STATEMENT:
            get = functools.partial(getattr, _weakly(value), "__class__")
            self.numbers.append(_Number(f"the class of a {kind.__name__}", get))
        self._look_into_class(kind)
        self._objects.append(value)
        own = attributes(value)
        places = [*slots(value), *[(Place(own, name), child) for name, child in own.items()]]
        bases = type(value).__mro__[:-1]
        reads_all = any(map(_reads_itself, bases))
        if reads_all:
            self._copy(f"the attributes of a {kind.__name__}", tuple, own)
        for place, child in places:
            if reads_all:
                self._take(place, child)
            else:
                self._offer(place, child)
        # A class's attribute counts as long as the object has none of that name.
        for base in bases if hasattr(value, "__dict__") else ():
            for name, child in items(vars(base)):
                may_be_hidden = is_plain(child) or not (is_foreign(base) or _sets(child))
                if name not in own and may_be_hidden and not name.startswith("__"):
                    self._offer(Place(own, name), child)

    def _watch_methods_of_package(self) -> None:
        """Adds guards for the functions of this package's classes that code names, or ran."""
        names = self.names.everything()
        for base, kinds in self._kinds.items():
            members = vars(base)
            ran = [(name, child.__code__) for name, child in items(members) if self._ran(child)]
            # Methods of tensors have a few wrappers in common: one that ran does not tell which.
            shared = Counter([code for _, code in ran])
            alone = [name for name, code in ran if shared[code] == 1]
            for name in dict.fromkeys([*names.intersection(members), *alone]):
                for holder in dict.fromkeys((base, *kinds)):
                    place = class_place(holder, name, members[name])
                    if not place.fixed:
                        self.steps.append((place, place.get()))

    def _look_for_what_is_missing(self) -> None:
        """Adds guards for missing attributes: ones that code asks for, and an object may get."""
        for value in self._objects:
            own = attributes(value)
            if self.names.unknown:
                self._copy(f"the attributes of a {type(value).__name__}", tuple, own)
            for name in self.names.asked:
                if attribute_of(value, name) is MISSING and hasattr(value, "__dict__"):
                    self.numbers.append(_Number(name, _getter(Place(own, name))))

    def _offer_all(self, attributes: dict[str, Any]) -> None:
        for name, child in items(attributes):
            self._offer(Place(attributes, name), child)

    def _offer(self, place: Place, child: Any) -> None:
        """Takes an attribute if code seen so far names it; otherwise keeps it for later code."""
        is_of_object = id(place.holder) not in self._modules and not issubclass(
            type(child), _WITH_CODE
        )
        if (self.names.unknown and is_of_object) or _may_read(self.names, place.key, child):
            self._take(place, child)
        else:
            self._waiting.setdefault(place.key, []).append((place, child))

    def _take(self, place: Place, child: Any) -> None:
        self.found[place.identity] = place.key
        if not place.fixed and place.get() is MISSING:  # the child belongs to the class
            self.numbers.append(_Number(str(place.key), _getter(place)))
            return
        if issubclass(type(child), Tensor):
            self.tensors += [] if place.fixed else [place]
            if isinstance(place.holder, type):  # a subclass may later hide it
                self.steps.append((place, child))
            return
        if not is_plain(child):
            if (
                not place.fixed
                and child is not Tensor
                and not issubclass(type(child), types.ModuleType)
            ):
                self.steps.append((place, child))
            if not place.fixed:
                self._keys.setdefault(id(child), str(place.key))
            self._stack.append(child)
        else:
            if not place.fixed:
                self.numbers.append(_Number(str(place.key), _getter(place)))
            self._stack += [child] if type(child).__dictoffset__ else []


def _weakly(value: Any) -> Any:
    """A proxy that does not keep the object alive, where there may be one."""
    try:
        return weakref.proxy(value)
    except TypeError:
        return value


def _is_alive(reference: weakref.ref[Any]) -> bool:
    return reference() is not None


def _reads_itself(kind: type) -> bool:
    """True if a class has methods that are not analysed, which may read any attribute."""
    return kind.__module__.partition(".")[0] == "ferrule"


def _sets(value: Any) -> bool:
    """True if a class's attribute is a data descriptor, which an object's own cannot hide."""
    return hasattr(type(value), "__set__")


def _may_read(names: Names, name: str, value: Any) -> bool:
    """True if code that loads these names may depend on a value with that name."""
    if is_plain(value):  # it cannot be called
        return name in names.read or (value is None and name in names.stored)
    if issubclass(type(value), list | dict | set):
        return name in names.read or name in names.called
    return name in names.everything()


def _kind_at(place: Place) -> list[_Number]:
    """The shape, the dtype and the device of the tensor in a place."""
    return [
        _Number(f"the {attribute} of {place.key}", functools.partial(_of_tensor, place, attribute))
        for attribute in ("shape", "dtype", "device")
    ]


def _of_tensor(place: Place, attribute: str) -> Any:
    return getattr(place.get(), attribute, MISSING)


def _getter(place: Place) -> Callable[[], Any]:
    """The fastest function that reads a place, and gives `MISSING` if it is empty."""
    return place.getter() if isinstance(place.holder, dict) else place.get
