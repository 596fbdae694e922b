"""Where things are: the attributes, items and variables that hold what code can get at."""

from __future__ import annotations

import functools
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from importlib.util import resolve_name
from typing import Any, TypeAlias, final

from ferrule.device import Compiled, Device, Interpreted
from ferrule.jit.names import imports_of
from ferrule.records import dataclass
from ferrule.tensor import Tensor

# Functions with an assert that pytest has rewritten could get at all tests that there are.
_TOOLS = frozenset({"_pytest", "pytest", "pluggy", "hypothesis"})
_FOREIGN = frozenset(sys.stdlib_module_names) | _TOOLS | {"numpy", "ferrule", "builtins"}
_LARGE = 150
"""Loaded modules of a package that takes too long to look at: SciPy and JAX have some 400, PyTorch
1,500, which take 20 s a capture (Zen 5, 2026-11); packages for settings have up to 100."""
_MADE_BY_A_STATEMENT = 1 << 9
"""The flag of types that Python code made (`Py_TPFLAGS_HEAPTYPE`)."""
# The devices have every kernel that was ever made, and all memory.
WITHOUT_TENSORS = (types.ModuleType, type(Device), Compiled, Interpreted)
MISSING = object()
"""What there is in a place where nothing is."""
_WITH_ITEMS = (dict, list, deque)


@final
@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """Where a value is found: an item of a dict, list or deque, an attribute, a closure's variable.

    A fixed place, such as an item of a tuple, always holds the same, and cannot be asked for it.
    """

    holder: Any
    key: Any = None
    fixed: bool = False

    def get(self) -> Any:
        """What is there now; an object that is nowhere else, if nothing is, or if it is fixed."""
        holder = self.holder
        if self.fixed:
            return MISSING
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
        """`get` as one call of C, which may raise IndexError or ValueError where nothing is."""
        holder = self.holder
        if self.fixed:
            return self.get
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
        """What makes two places one, while their holder lives."""
        return id(self.holder), self.key


Path: TypeAlias = tuple[tuple[Place, Any], ...]
"""Places on the way to something, each with what is found there."""
Found: TypeAlias = tuple[Place, Any]


def tensors_of(value: Any) -> list[Tensor] | None:
    """The tensors in a place: one, or those of a tuple; None if there is anything else."""
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, tuple) or not value:
        return None
    found = [tensors_of(part) for part in value]
    known = [tensors for tensors in found if tensors is not None]
    return [t for tensors in known for t in tensors] if len(known) == len(found) else None


def replaceable(place: Place, path: Path) -> tuple[Place, Path]:
    """The place where a tensor can be replaced, and the way there: that of the tuple around it."""
    if place.fixed and isinstance(place.holder, tuple) and path and isinstance(path[-1][1], tuple):
        return path[-1][0], path[:-1]
    return place, path


def below(value: Any) -> Iterator[Found]:
    """What can be got at from a value, and where it is."""
    if isinstance(value, Tensor):
        yield Place(value, "grad"), value.grad
    elif isinstance(value, dict):
        yield from [(Place(value, key), child) for key, child in value.items()]
    elif isinstance(value, list | deque):
        yield from [(Place(value, i), child) for i, child in enumerate(value)]
    elif isinstance(value, tuple | set | frozenset):
        yield from _fixed(value, value)
    elif isinstance(value, types.FunctionType):
        yield from _below_function(value)
    elif isinstance(value, types.MethodType):
        yield from _fixed(value, (value.__self__, value.__func__))
    elif isinstance(value, functools.partial):
        yield from _fixed(value, (value.func, value.args, value.keywords))
    elif isinstance(value, type):
        if not is_foreign(value):
            for name, child in items(vars(value)):
                yield class_place(value, name, child), child
            yield from _fixed(value, value.__bases__)
    elif isinstance(value, staticmethod | classmethod):
        yield from _fixed(value, (value.__func__,))
    elif isinstance(value, property):
        yield from _fixed(value, (value.fget,))
    elif isinstance(value, functools.cached_property):
        yield from _fixed(value, (value.func,))
    elif isinstance(value, ContextVar):
        yield Place(value, value.name), value.get(MISSING)
    elif isinstance(value, weakref.ref):
        yield from _fixed(value, (value(),))
    elif "__wrapped__" in attributes(value):
        # A wrapper, such as another captured function: its own state is nobody's business.
        yield from _fixed(value, (value.__wrapped__,))
    elif not isinstance(value, WITHOUT_TENSORS):
        yield from _below_object(value)


def _fixed(holder: Any, values: Iterable[Any]) -> Iterator[Found]:
    return ((Place(holder, i, fixed=True), value) for i, value in enumerate(values))


def class_place(kind: type, name: str, child: Any) -> Place:
    """Where a class has an attribute; a fixed place, if to ask for it gives something else."""
    return Place(kind, name, attribute_of(kind, name) is not child)


def attribute_of(value: object, name: str) -> Any:
    """What asking for an attribute gives; `MISSING` too where that raises another error."""
    try:
        return getattr(value, name, MISSING)
    except Exception:  # whatever the object's own code raises
        return MISSING


def _below_function(function: types.FunctionType) -> Iterator[Found]:
    if is_foreign(function):
        if not is_of_python(function):  # a decorator has what it decorates there
            yield from _cells(function)
        return
    yield from _cells(function)
    yield from _fixed(function, (function.__defaults__, function.__kwdefaults__, vars(function)))
    names = dict.fromkeys(_names(function.__code__))
    for space in _spaces(function, names):
        yield from [(Place(space, name), space[name]) for name in names if name in space]


def _spaces(function: types.FunctionType, names: Iterable[str]) -> list[dict[str, Any]]:
    """The variables of a function's module, of those that it names or imports, and of theirs."""
    spaces = [function.__globals__]
    found: list[Any] = [*imported(function), *[content for _, content in _cells(function)]]
    for space in spaces:  # which grows
        found += [space[name] for name in names if name in space]
        for value in found:
            is_module = isinstance(value, types.ModuleType) and not is_foreign(value)
            if is_module and all(vars(value) is not known for known in spaces):
                spaces.append(vars(value))
        found.clear()
    return spaces


def imported(function: types.FunctionType) -> list[types.ModuleType]:
    """The modules that a function imports when it is called, as far as they are loaded."""
    package = function.__globals__.get("__package__") or ""
    names: list[str] = []
    for level, name in imports_of(function.__code__):
        # The statement gives the first of `a.b.c`, or the last, or what is in that.
        whole = resolve_name("." * level + name, package) if package or not level else name
        names += [whole, whole.partition(".")[0]]
    return [module for name in dict.fromkeys(names) if (module := sys.modules.get(name))]


def _cells(function: types.FunctionType) -> Iterator[Found]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(cell, name), _contents(cell)


def variables(function: types.FunctionType) -> Iterator[Found]:
    """The variables outside of a function that it names: those of closures, and global ones."""
    yield from _cells(function)
    space = function.__globals__
    for name in dict.fromkeys(_names(function.__code__)):
        if name in space:
            yield Place(space, name), space[name]


def defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The parameters of a function that have a default, and these."""
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return MISSING


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function, and those defined inside it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def items(space: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a namespace has now: to ask for an attribute may run code that adds others."""
    return list(space.items())


def attributes(value: object) -> dict[str, Any]:
    """The attributes of an object that has a dict for them; some objects make up any name."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def slots(value: object) -> Iterator[Found]:
    """The attributes of an object that have a place of their own."""
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            child = attribute_of(value, name)
            yield Place(value, name), None if child is MISSING else child


def _below_object(value: object) -> Iterator[Found]:
    yield from _fixed(value, (attributes(value), type(value)))
    yield from slots(value)


def is_foreign(value: Any) -> bool:
    """Whether a class, a function or a module is none of the program's own.

    Such are those of Python, NumPy and this package, and of large packages that do not use this
    one, such as another library of tensors: a look at all of it takes tens of seconds.
    """
    return is_of_python(value) or is_bystander(value)


def is_of_python(value: Any) -> bool:
    """Whether a class, a function or a module is one of Python, NumPy or this package."""
    module = _module_of(value)
    return module.partition(".")[0] in _FOREIGN and not _is_nameless(value, module)


def is_bystander(value: Any) -> bool:
    """Whether a class, a function or a module is one of a large package without tensors."""
    return _module_of(value).partition(".")[0] in _bystanders(len(sys.modules))


def _module_of(value: Any) -> str:
    name = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    return name if isinstance(name, str) and name else "builtins"


def _is_nameless(value: Any, module: str) -> bool:
    """Whether a function or class was made by `exec` in a namespace that is no module's."""
    if isinstance(value, type):
        return module == "builtins" and bool(value.__flags__ & _MADE_BY_A_STATEMENT)
    return module == "builtins" and isinstance(value, types.FunctionType)


@functools.lru_cache(maxsize=1)
def _bystanders(_loaded: int) -> frozenset[str]:
    """The large packages of which no module that is loaded has anything of this package."""
    modules: dict[str, list[Any]] = {}
    for name, module in list(sys.modules.items()):
        modules.setdefault(name.partition(".")[0], []).append(module)
    large = {p: found for p, found in modules.items() if len(found) >= _LARGE and p not in _FOREIGN}
    return frozenset(package for package, found in large.items() if not any(map(_uses_us, found)))


def _uses_us(module: Any) -> bool:
    return any(map(_is_of_this_package, list(attributes(module).values())))


def _is_of_this_package(value: Any) -> bool:
    """Whether a module's variable is of this package: a module, class, function or instance."""
    kind = type(value)  # asked for its class, an object may run code of its own
    if issubclass(kind, types.ModuleType):
        name: Any = value.__name__
    elif issubclass(kind, type | types.FunctionType):
        name = value.__module__
    else:
        name = kind.__module__
    return isinstance(name, str) and name.partition(".")[0] == "ferrule"
