"""Where things are: the attributes, items and variables that hold what code can get at."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, final

from ferrule.device import Compiled, Device, Interpreted
from ferrule.records import dataclass
from ferrule.tensor import Tensor

# Functions with an assert that pytest has rewritten could get at all tests that there are.
_TOOLS = frozenset({"_pytest", "pytest", "pluggy", "hypothesis"})
_FOREIGN = frozenset(sys.stdlib_module_names) | _TOOLS | {"numpy", "ferrule", "builtins"}
_MADE_BY_A_STATEMENT = 1 << 9
"""The flag of types that Python code made (`Py_TPFLAGS_HEAPTYPE`)."""
# The devices have every kernel that was ever made, and all memory.
WITHOUT_TENSORS = (types.ModuleType, type(Device), Compiled, Interpreted)
MISSING = object()
"""What there is in a place where nothing is."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """Where a value is found: an item of a dict or a list, an attribute, a closure's variable.

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
        if isinstance(holder, list):
            return holder[self.key] if self.key < len(holder) else MISSING
        if isinstance(holder, types.CellType):
            return _contents(holder)
        return getattr(holder, self.key, MISSING)

    def getter(self) -> Callable[[], Any]:
        """`get` as one call of C, which may raise IndexError or ValueError where nothing is."""
        holder = self.holder
        if self.fixed:
            return self.get
        if isinstance(holder, dict):
            return functools.partial(dict.get, holder, self.key, MISSING)
        if isinstance(holder, list):
            return functools.partial(operator.getitem, holder, self.key)
        if isinstance(holder, types.CellType):
            return functools.partial(getattr, holder, "cell_contents")
        return functools.partial(getattr, holder, self.key, MISSING)

    def set(self, value: Any) -> None:
        """Puts a value there."""
        holder = self.holder
        if isinstance(holder, dict) or isinstance(holder, list):  # noqa: SIM101 - a third of the time
            holder[self.key] = value
        elif isinstance(holder, types.CellType):
            holder.cell_contents = value
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
    elif isinstance(value, list):
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
            yield from _fixed(value, (*vars(value).values(), *value.__bases__))
    elif isinstance(value, staticmethod | classmethod):
        yield from _fixed(value, (value.__func__,))
    elif isinstance(value, property):
        yield from _fixed(value, (value.fget,))
    elif isinstance(value, functools.cached_property):
        yield from _fixed(value, (value.func,))
    elif "__wrapped__" in attributes(value):
        # A wrapper, such as another captured function: its own state is nobody's business.
        yield from _fixed(value, (value.__wrapped__,))
    elif not isinstance(value, WITHOUT_TENSORS):
        yield from _below_object(value)


def _fixed(holder: Any, values: Iterable[Any]) -> Iterator[Found]:
    return ((Place(holder, i, fixed=True), value) for i, value in enumerate(values))


def _below_function(function: types.FunctionType) -> Iterator[Found]:
    if is_foreign(function):
        return
    yield from _cells(function)
    yield from _fixed(function, (function.__defaults__, function.__kwdefaults__, vars(function)))
    names = dict.fromkeys(_names(function.__code__))
    spaces = [function.__globals__]
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and not is_foreign(value):
            spaces.append(vars(value))
    for space in spaces:
        yield from [(Place(space, name), space[name]) for name in names if name in space]


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


def attributes(value: object) -> dict[str, Any]:
    """The attributes of an object that has a dict for them; some objects make up any name."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def slots(value: object) -> Iterator[Found]:
    """The attributes of an object that have a place of their own."""
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield Place(value, name), getattr(value, name, None)


def _below_object(value: object) -> Iterator[Found]:
    yield from _fixed(value, (attributes(value), type(value)))
    yield from slots(value)


def is_foreign(value: Any) -> bool:
    """Whether a class, a function or a module is none of the program's own."""
    if isinstance(value, types.ModuleType):
        return _is_foreign_module(value.__name__)
    module = getattr(value, "__module__", None) or "builtins"
    return not _is_nameless(value, module) and _is_foreign_module(module)


def _is_nameless(value: Any, module: str) -> bool:
    """Whether a function or class was made by `exec` in a namespace that is no module's."""
    if isinstance(value, type):
        return module == "builtins" and bool(value.__flags__ & _MADE_BY_A_STATEMENT)
    return module == "builtins" and isinstance(value, types.FunctionType)


def _is_foreign_module(module: str) -> bool:
    return module.partition(".")[0] in _FOREIGN
