"""State: the tensors and the Python values that a function can reach without its arguments."""

from __future__ import annotations

import builtins
import functools
import operator
import types
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, final

import numpy as np

from ferrule.device import Compiled, Device, Interpreted
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr
from ferrule.jit.executed import Executed, is_installed
from ferrule.jit.names import NO_NAMES, Names, global_names, names_of
from ferrule.jit.places import (
    MADE_BY_A_STATEMENT,
    MISSING,
    Path,
    Place,
    attribute_of,
    attributes,
    below,
    cells,
    class_place,
    defaults,
    imported,
    is_opaque,
    is_plain,
    is_trusted,
    items,
    slots,
    tensors_of,
    weakly,
)
from ferrule.jit.values import Value
from ferrule.tensor import Tensor

_WITHOUT_STATE: Final = (type(Device), Compiled, Interpreted, Tensor, DType, Expr)
_IN_FIXED_PLACES: Final = (
    *(tuple, frozenset, types.MethodType, functools.partial),
    *(staticmethod, classmethod, property, functools.cached_property, weakref.ref),
)
_CONTAINERS: Final = (list, dict, set, deque)
_OF_FRAMES: Final = {"f_globals", "f_locals", "f_back"}
_ARRAYS: Final = (np.ndarray, bytearray, memoryview, array)
_WITH_CODE: Final = (types.FunctionType, types.ModuleType, type)
"""Kinds of values not followed for computed names: they lead to all code of a package."""
_Content: TypeAlias = "int | tuple[_Content, ...]"
"""The `id()` of a tensor, or those of the tensors in a tuple."""


@final
class State:
    """The tensors, numbers, strings and arrays that code can reach from `roots`, with their places.

    The walk follows the names that the code loads, and the names in the functions that it calls:
    those that it `executed`. Attributes that no code names may change freely. Before the first call
    nothing is known of what it executes (None): then all functions of the program that are in reach
    count, and all attributes. Tensors are not kept alive.
    """

    def __init__(self, roots: Iterable[Any], executed: Executed | None) -> None:
        self.codes: set[types.CodeType] = set()
        """The code whose names the walk followed."""
        self.opaque: dict[str, str] = {}
        """The objects in reach whose state cannot be compared: their names, and their kinds."""
        self.values: list[Value] = []
        self.copies: list[Value] = []
        """Copies of containers of numbers and the like."""
        self.arrays: list[Any] = []
        self.classes: list[tuple[Callable[[], Any], type, dict[str, Any] | None]] = []
        """Objects whose class or `__dict__` can be replaced, weakly, and what they are. It is None
        if nothing in it was found."""
        self._executed = executed
        self._names = NO_NAMES
        self._steps: list[tuple[Place, Any]] = []
        self._found: dict[tuple[int, Any], Any] = {}
        """The keys of all places that code may read, by their identities."""
        self._keys: dict[int, str] = {}
        """The key of a place of each object, by `id()`."""
        self._holders: dict[int, tuple[Any, int]] = {}
        """The objects that hold places, by `id()`, and their lengths."""
        self._tensors: dict[int, weakref.ref[Tensor]] = {}
        self._places: dict[int, list[Place]] = {}
        """The places of each tensor, by `id()`; for one in tuples those of the outermost ones."""
        self._contents: dict[tuple[int, Any], tuple[Place, _Content]] = {}
        """The places of tensors, and of tuples of tensors, by their identities."""
        self._tuples: Counter[int] = Counter()
        """The number of places of each tuple of tensors, by `id()`."""
        self._waiting: dict[str, list[tuple[Place, Any]]] = {}
        self._objects: list[object] = []
        self._kinds: dict[type, dict[type, None]] = {Tensor: {}}
        """The classes of this package and NumPy in reach, each with those derived from it."""
        self._seen: set[type] = set()
        """The classes that were looked into."""
        self._modules: dict[int, dict[str, Any]] = {}
        """The dicts of modules, by `id()`: one may hold all others (`sys.modules`)."""
        self._roots = list(roots)
        self._stack: list[Any] = list(self._roots)
        self._kept: dict[int, Any] = {}
        """All objects until the walk is over, so that no `id()` is used twice."""
        self._members: dict[type, list[tuple[str, Any]]] = {}
        """For classes, what `_hidable` gave in the walk."""
        self._walk()
        self._kept.clear()
        self._members.clear()

    def again(self, executed: Executed | None) -> State:
        """What is reached from the same roots now."""
        return State(self._roots, executed)

    # -- what was found --------------------------------------------------------------------------

    @functools.cached_property
    def kinds(self) -> list[Value]:
        """The shapes, dtypes and devices of tensors, when they are first asked for."""
        return [
            Value(f"the tensor {place.key}", functools.partial(_kind_at, place), place=place)
            for place in self.tensor_places()
        ]

    @property
    def assigned(self) -> Set[str]:
        """The names of attributes, and of variables, that the code assigns to."""
        return self._names.stored

    @property
    def tells_apart(self) -> bool:
        """True if the code may tell tensors apart that are equal."""
        return self._names.tells_apart

    def path(self) -> Path:
        """The objects on the way to what was found, with their places.

        Places of tensors are left out, but for those in classes, which a derived class may hide;
        and those of tuples that the code may replace: `self.state = self.cell(x, self.state)`. A
        tuple of tensors has no numbers, and the tensors have guards on their memory.
        """
        more = [
            (place, place.get())
            for place, content in self._contents.values()
            if isinstance(content, tuple) or isinstance(place.holder, type)
            if place.key not in self.assigned
        ]
        return (*self._steps, *more)

    def adds_to(self, earlier: State) -> bool:
        """True if this walk, after a call, stands for the `earlier` one, before it: what it found
        besides is not what the call may have changed, and no tensor.
        """
        added = [(place, key) for place, key in self._found.items() if place not in earlier._found]
        copied = [copy.container for copy in self.copies if isinstance(copy.container, _CONTAINERS)]
        if not earlier._holders.keys() >= set(map(id, copied)):
            return False
        if any([key in self.assigned or place in self._contents for place, key in added]):
            return False
        self.kinds = earlier.kinds
        return True

    def tensor_places(self) -> list[Place]:
        """The places that hold a tensor by itself, but for gradients."""
        return [
            place
            for place, content in self._contents.values()
            if isinstance(content, int) and not isinstance(place.holder, Tensor)
        ]

    def tensors(self) -> list[Tensor]:
        """The tensors that are alive."""
        found = (reference() for reference in self._tensors.values())
        return [tensor for tensor in found if tensor is not None]

    def __contains__(self, tensor: Tensor) -> bool:
        return self._is_alive(id(tensor))

    def _is_alive(self, number: int) -> bool:
        reference = self._tensors.get(number)
        return reference is not None and reference() is not None

    def places(self, tensor: Tensor) -> list[Place]:
        """All places of a tensor, or of the outermost tuples of tensors that it is in."""
        return self._places[id(tensor)]

    def places_of(self, tensor: Tensor) -> Path:
        """The places of a tensor that could have another content, with their present contents."""
        return tuple([(place, place.get()) for place in self.places(tensor) if not place.fixed])

    def has_moved(self, tensor: Tensor) -> bool:
        """True if one of the places of a tensor has another content now."""
        return any([self._is_replaced(place) for place in self.places(tensor) if not place.fixed])

    def _is_replaced(self, place: Place) -> bool:
        return _content(place.get()) != self._contents[place.identity][1]

    def aliased(self, names: Set[str]) -> list[Tensor]:
        """The tensors in several places, one of which has one of these names."""
        places = {number: found for number, found in self._places.items() if len(found) > 1}
        return [
            tensor
            for tensor in self.tensors()
            if any([place.key in names for place in places.get(id(tensor), ())])
        ]

    def states(self) -> list[Place]:
        """The places that may be states.

        They hold a tensor, or a tuple of tensors that is in no other place. Gradients are left out.
        """
        places = [place for place, _ in self._contents.values()]
        return [
            place
            for place in places
            if not isinstance(place.holder, Tensor) and self._is_once(place.get())
        ]

    def _is_once(self, content: Any) -> bool:
        """True if each tuple around the tensors is in one place only."""
        if not isinstance(content, tuple):
            return True
        return self._tuples[id(content)] == 1 and all(map(self._is_once, content))

    def changes(self, later: State) -> list[Place]:
        """The places where another tensor is in the `later` walk, or none any more."""
        found = [
            place
            for identity, (place, content) in later._contents.items()
            if self._has_changed(identity, place, content, later)
        ]
        return found + [
            place
            for identity, (place, _) in self._contents.items()
            if identity not in later._contents and tensors_of(place.get()) is None
        ]

    def _has_changed(
        self, identity: tuple[int, Any], place: Place, content: _Content, later: State
    ) -> bool:
        old = self._contents.get(identity)
        if old is not None:
            return old[1] != content or not all(map(self._is_alive, _leaves(content)))
        holds_names = not isinstance(place.holder, (list, deque, Tensor)) and isinstance(
            place.key, str
        )
        # Code that did not run before may have read it, and no code has put it there.
        return not (
            holds_names and id(place.holder) in self._holders and place.key not in later.assigned
        )

    def knows(self, place: Place) -> bool:
        """True if replays can write to a place: its holder was in reach, with the same length."""
        holder = place.holder
        if place.fixed:
            return False
        if isinstance(holder, Tensor):
            return holder in self
        known = self._holders.get(id(holder))
        return known is not None and known[1] == _length(holder)

    def has_holder(self, number: int) -> bool:
        """True if an object in reach that holds places, such as a list, has this `id()`."""
        return number in self._holders

    # -- the walk --------------------------------------------------------------------------------

    def _walk(self) -> None:
        if self._executed is not None:
            for code, space in list(self._executed.codes.items()):  # other threads may add to them
                self._look_into_code(code, space)
            for query in list(self._executed.queries):
                self.values.append(Value(f"the result of {query.__qualname__}()", query))
        while self._stack:
            value = self._stack.pop()
            if id(value) not in self._kept:
                self._kept[id(value)] = value
                self._look_into(value)
        self._look_for_what_is_missing()
        self._watch_methods_of_package()
        values = [value.place for value in self.values if value.place is not None]
        copied = [copy.container for copy in self.copies]
        contents = [place for place, _ in self._contents.values()]
        steps = [place for place, _ in self._steps]
        found = {*map(id, copied), *[id(one.holder) for one in (*values, *contents, *steps)]}
        self.classes = [
            (reference, kind, own if id(own) in found else None)
            for reference, kind, own in self.classes
            if id(own) in found or kind.__flags__ & MADE_BY_A_STATEMENT
        ]

    def _look_into(self, value: Any) -> None:
        kind = type(value)
        if is_plain(value) and not kind.__dictoffset__:
            return
        if issubclass(kind, types.FunctionType):
            self._look_into_function(value)
        elif issubclass(kind, types.ModuleType):
            self._look_into_module(value)
        elif issubclass(kind, type):
            self._look_into_class(value)
            self._stack.append(kind)
        else:
            self._look_into_data(value)

    def _look_into_data(self, value: Any) -> None:
        kind = type(value)
        if kind in weakref.ProxyTypes:  # who asks it for anything asks another object
            self._refuse(value)
        elif issubclass(kind, _ARRAYS):
            self._look_into_array(value)
        elif issubclass(kind, _CONTAINERS):
            self._look_into_container(value)
            if kind not in _CONTAINERS:
                self._look_into_object(value)
        elif kind is types.MappingProxyType:
            self._copy("the keys of a mapping", tuple, value)
            self._copy("a mapping", tuple, value.values())
            for key, child in value.items():
                self._take(Place(value, key, fixed=True), child)
        elif issubclass(kind, ContextVar):
            self._hold(value)
            self._take(Place(value, value.name), value.get(MISSING))
        elif issubclass(kind, weakref.ref):
            self.values.append(Value("a weak reference", functools.partial(_is_alive, value)))
            self._stack.append(value())
        elif issubclass(kind, _IN_FIXED_PLACES) or "__wrapped__" in attributes(value):
            self._look_into_fixed(value)
        elif issubclass(kind, Tensor) and id(value) not in self._tensors:
            self._take_tensors(Place(value, fixed=True), value, [value])
        elif not issubclass(kind, _WITHOUT_STATE) or issubclass(kind, Tensor):
            if issubclass(kind, BaseException):
                self._stack.append(value.args)
            self._look_into_object(value)

    def _look_into_fixed(self, value: Any) -> None:
        """Looks into a tuple, a method or the like: these may have attributes, too."""
        for place, child in below(value):
            self._take(place, child)
        kind = type(value)
        if issubclass(kind, _IN_FIXED_PLACES) and (
            kind not in _IN_FIXED_PLACES or attributes(value)
        ):
            self._look_into_attributes(value)

    def _hold(self, holder: Any) -> None:
        self._holders[id(holder)] = holder, _length(holder)

    def _look_into_module(self, module: types.ModuleType) -> None:
        if not is_trusted(module):
            space = vars(module)
            self._modules[id(space)] = space
            self._hold(space)
            self._offer_named(space, self._names.everything() | self._names.stored)
        elif module is np:
            self._offer(Place(vars(np), "random"), np.random)

    def _look_into_array(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            self.values.append(Value("an array of objects", lambda: tuple(value.flat)))
            self._stack += value.flat
        else:
            self.arrays.append(value)

    def _look_into_container(
        self, container: list[Any] | deque[Any] | dict[Any, Any] | set[Any]
    ) -> None:
        self._hold(container)
        kind = f"a {type(container).__name__}"
        if isinstance(container, set):
            self._copy(kind, frozenset, container)
            for place, child in below(container):
                self._take(place, child)
            return
        self.values.append(Value.from_container(f"the length of {kind}", len, container))
        if isinstance(container, dict):
            self._copy(f"the keys of {kind}", tuple, container)
            self._stack += [key for key in container if not is_plain(key)]
        children = list(below(container))
        if all(is_plain(child) for _, child in children):
            parts = container.values() if isinstance(container, dict) else container
            self._copy(kind, tuple, parts, container)
        else:
            for place, child in children:
                self._take(place, child)

    def _copy(
        self, name: str, copy: Callable[[Any], Any], container: Collection[Any], of: Any = None
    ) -> None:
        self.copies.append(Value.from_container(name, copy, container, of))

    def _look_into_function(self, function: types.FunctionType) -> None:
        own = vars(function)
        self.classes.append((weakly(function), type(function), own))
        self._hold(own)
        self._offer_all(own)
        if not self._runs(function.__code__):
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            # Tools that reload modules replace the code.
            if name != "__code__" or all(function is not root for root in self._roots):
                self.values.append(Value.at(Place(function, name)))
        named, _ = names_of(function.__code__)
        for place, child in cells(function):
            self._hold(place.holder)
            if _may_use(named, place.key, child):
                self._take(place, child)
        self._look_into_code(function.__code__, function.__globals__)
        for name, default in defaults(function):
            if _may_use(named, name, default):
                self._take(Place(function, name, fixed=True), default)

    def _look_into_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        if code in self.codes:
            return
        self.codes.add(code)
        named, loaded = names_of(code)
        if not is_installed(code):
            for name in loaded.read & _OF_FRAMES:
                self.opaque[name] = "attribute of a frame"
        self._stack += imported(code, space)
        self._hold(space)
        known = space.get("__builtins__", vars(builtins))
        if isinstance(known, types.ModuleType):
            known = vars(known)
        for name in global_names(code):
            if name in space:
                if _may_use(named, name, space[name]):
                    self._take(Place(space, name), space[name])
            elif name in known and name in named.everything():
                self._steps.append((Place(known, name), known[name]))
                self._steps.append((Place(space, name), MISSING))
        names, wanted = self._waiting.keys(), loaded.everything() | loaded.stored
        new = wanted - self._names.everything() - self._names.stored
        is_first = loaded.unknown and not self._names.unknown
        self._names |= loaded
        for name in list(names) if is_first else sorted(wanted & names):
            for place, child in self._waiting.pop(name):
                self._offer(place, child)
        for module in list(self._modules.values()):
            self._offer_named(module, new)

    def _look_into_class(self, kind: type) -> None:
        if kind in self._seen:
            return
        self._seen.add(kind)
        for base in kind.__mro__:
            if base is object:
                continue
            if is_trusted(base):
                self._kinds.setdefault(base, {})[kind] = None
                continue
            for name, child in items(vars(base)):
                ran = self._ran(child)
                if ran or not name.startswith("__"):
                    self._look_into_member(base, kind, name, child, ran)

    def _look_into_member(self, base: type, kind: type, name: str, child: Any, ran: bool) -> None:
        take = self._take if ran else self._offer
        self._hold(base)
        take(class_place(base, name, child), child)
        if name not in vars(kind):  # the derived class may get its own
            self._hold(kind)
            take(class_place(kind, name, child), child)

    def _ran(self, value: Any) -> bool:
        """True for a function that a call ran, or entered this package by."""
        code = getattr(value, "__code__", None)
        if self._executed is not None and code in self._executed.entered:
            return True
        return isinstance(code, types.CodeType) and self._runs(code)

    def _runs(self, code: types.CodeType) -> bool:
        """True for code that calls run, as far as is known."""
        return not is_installed(code) if self._executed is None else code in self._executed.codes

    def _refuse(self, value: object) -> None:
        """Note an object whose state cannot be compared."""
        kind = type(value).__name__
        self.opaque.setdefault(self._keys.get(id(value), kind), kind)

    def _look_into_object(self, value: object) -> None:
        kind: Any = type(value)
        if is_opaque(kind):
            self._refuse(value)
            return
        self._look_into_attributes(value)

    def _look_into_attributes(self, value: object) -> None:
        kind: Any = type(value)
        own = attributes(value)
        if kind.__dictoffset__ or not issubclass(kind, tuple):  # a named tuple stays what it is
            self.classes.append((weakly(value), kind, own if attributes(value) is own else None))
        self._look_into_class(kind)
        self._objects.append(value)
        self._hold(own)
        self._hold(value)
        places = [*slots(value), *[(Place(own, name), child) for name, child in own.items()]]
        reads_all = any(map(_reads_itself, kind.__mro__[:-1]))
        if reads_all:
            self._copy(f"the attributes of a {kind.__name__}", frozenset, own)
        for place, child in places:
            if reads_all or self._executed is None:
                self._take(place, child)
            else:
                self._offer(place, child)
        # A class's attribute counts as long as the object has none of that name.
        for name, child in self._hidable(kind) if hasattr(value, "__dict__") else ():
            if name not in own:
                self._offer(Place(own, name), child)

    def _hidable(self, kind: type) -> list[tuple[str, Any]]:
        """The attributes of a class that an attribute of an object may hide."""
        found = self._members.get(kind)
        if found is None:
            found = self._members[kind] = [
                (name, child)
                for base in kind.__mro__[:-1]
                for name, child in items(vars(base))
                if is_plain(child) or not (is_trusted(base) or _sets(child))
                if not name.startswith("__")
            ]
        return found

    def _watch_methods_of_package(self) -> None:
        """Adds guards for the functions of this package's classes that code names, or ran."""
        if self._executed is None:
            return
        names = self._names.everything()
        ran = self._executed.entered | self._executed.codes.keys()
        for base, kinds in self._kinds.items():
            # Methods of tensors have a few wrappers in common: one that ran does not tell which.
            by_code = _functions_of(base)
            alone = [found[0] for code in ran & by_code.keys() if len(found := by_code[code]) == 1]
            members = vars(base)
            for name in sorted({*[name for name in names if name in members], *alone}):
                for holder in dict.fromkeys((base, *kinds)):
                    place = class_place(holder, name, members[name])
                    self._steps.append((place, place.get()))

    def _look_for_what_is_missing(self) -> None:
        """Adds guards for missing attributes: ones that code asks for, and an object may get."""
        for value in self._objects:
            own = attributes(value)
            if self._names.unknown:
                self._copy(f"the attributes of a {type(value).__name__}", frozenset, own)
            for name in sorted(self._names.asked):
                if attribute_of(value, name) is MISSING and hasattr(value, "__dict__"):
                    self.values.append(Value.at(Place(own, name)))

    def _offer_named(self, space: dict[str, Any], names: Set[str]) -> None:
        for name in sorted(names & space.keys()):  # in the same order in each walk
            self._offer(Place(space, name), space[name])

    def _offer_all(self, attributes: dict[str, Any]) -> None:
        for name, child in items(attributes):
            self._offer(Place(attributes, name), child)

    def _offer(self, place: Place, child: Any) -> None:
        """Takes an attribute if code seen so far names it; otherwise keeps it for later code."""
        is_of_object = id(place.holder) not in self._modules and not issubclass(
            type(child), _WITH_CODE
        )
        if (self._names.unknown and is_of_object) or _may_use(self._names, place.key, child):
            self._take(place, child)
        else:
            self._waiting.setdefault(place.key, []).append((place, child))

    def _take(self, place: Place, child: Any) -> None:
        self._found[place.identity] = place.key
        if not place.fixed and place.get() is MISSING:  # the child belongs to the class
            self.values.append(Value.at(place))
            return
        tensors = tensors_of(child)
        if tensors is not None:
            self._take_tensors(place, child, tensors)
        elif not is_plain(child):
            if (
                not place.fixed
                and child is not Tensor
                and not issubclass(type(child), types.ModuleType)
            ):
                self._steps.append((place, child))
            if not place.fixed:
                self._keys.setdefault(id(child), str(place.key))
            self._stack.append(child)
        else:
            if not place.fixed:
                self.values.append(Value.at(place))
            self._stack += [child] if type(child).__dictoffset__ else []

    def _take_tensors(self, place: Place, content: Any, tensors: Iterable[Tensor]) -> None:
        """Take a tensor, or a tuple of tensors; and gradients."""
        self._kept[id(content)] = content
        for part in _tuples_in(content):
            self._tuples[id(part)] += 1
        if not place.fixed:
            self._contents[place.identity] = place, _content(content)
        for tensor in tensors:
            self._places.setdefault(id(tensor), []).append(place)
            if id(tensor) not in self._tensors:
                self._tensors[id(tensor)] = weakref.ref(tensor)
                self._kept[id(tensor)] = tensor
                if attributes(tensor):  # of a class derived from Tensor
                    self._look_into(tensor)
                if tensor.grad is not None:
                    self._take_tensors(Place(tensor, "grad"), tensor.grad, [tensor.grad])


_functions: dict[type, tuple[list[Any], dict[types.CodeType, list[str]]]] = {}
"""The members of classes of this package and NumPy, and the names of the functions among them."""


def _functions_of(kind: type) -> dict[types.CodeType, list[str]]:
    """The names of a class's functions, by their code."""
    members = vars(kind)
    known = _functions.get(kind)
    if known is None or not (
        len(known[0]) == len(members) and all(map(operator.is_, members.values(), known[0]))
    ):
        found: dict[types.CodeType, list[str]] = {}
        for name, child in items(members):
            code = getattr(child, "__code__", None)
            if code is not None:
                found.setdefault(code, []).append(name)
        known = _functions[kind] = list(members.values()), found
    return known[1]


def _content(value: Any) -> _Content:
    if issubclass(type(value), tuple):
        return tuple([_content(part) for part in value])
    return id(value)


def _leaves(content: _Content) -> Iterator[int]:
    if isinstance(content, int):
        yield content
    else:
        for part in content:
            yield from _leaves(part)


def _tuples_in(value: Any) -> Iterator[Any]:
    """A tuple, and those in it."""
    if issubclass(type(value), tuple):
        yield value
        for part in value:
            yield from _tuples_in(part)


def _length(holder: Any) -> int:
    return len(holder) if issubclass(type(holder), list | deque) else 0


def _is_alive(reference: weakref.ref[Any]) -> bool:
    return reference() is not None


def _reads_itself(kind: type) -> bool:
    """True if a class has methods that are not analysed, which may read any attribute."""
    return kind.__module__.partition(".")[0] == "ferrule"


def _sets(value: Any) -> bool:
    """True if a class's attribute is a data descriptor, which an object's own cannot hide."""
    return hasattr(type(value), "__set__")


def _may_use(names: Names, name: str, value: Any) -> bool:
    """True if code that loads these names may depend on, or replace, a value with that name."""
    if is_plain(value):  # it cannot be called
        return name in names.read or (value is None and name in names.stored)
    if issubclass(type(value), list | dict | set):
        is_read = name in names.read or name in names.called
        return is_read or (name in names.counted and _holds_tensors(value))
    if name in names.everything():
        return True
    return name in names.stored and tensors_of(value) is not None


def _holds_tensors(container: Any) -> bool:
    values = container.values() if isinstance(container, dict) else container
    return any([tensors_of(value) is not None for value in values])


def _kind_at(place: Place) -> Any:
    """The shape, the dtype and the device of the tensor in a place."""
    tensor = place.get()
    return (tensor.shape, tensor.dtype, tensor.device) if isinstance(tensor, Tensor) else MISSING
