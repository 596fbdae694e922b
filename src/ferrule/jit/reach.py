"""What a function can reach without being given it, and who holds some memory."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ferrule.buffer import Buffer
from ferrule.gradient import Value
from ferrule.lazy import LazyBuffer
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell

_ATOMS = (int, float, complex, str, bytes, bytearray, type(None), range, slice)
_FOREIGN = frozenset(sys.stdlib_module_names) | {"numpy", "ferrule", "builtins"}


def reachable_tensors(roots: Iterable[Any]) -> list[Tensor]:
    """All tensors that code can get at from `roots`.

    Followed are closures, defaults, the globals that a function names, what a method is bound to,
    attributes, containers and gradients; not the insides of this package and of the standard
    library.
    """
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found[id(value)] = value
            stack.append(value.grad)
        else:
            stack.extend(_below(value))
    return list(found.values())


def _below(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, types.FunctionType):
        yield from _below_function(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, type):
        if not _is_foreign(value):
            yield from list(vars(value).values())
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif "__wrapped__" in getattr(value, "__dict__", {}):
        # A wrapper, such as another captured function: its own state is nobody's business.
        yield value.__wrapped__
    elif not isinstance(value, types.ModuleType):
        yield from _below_object(value)


def _below_function(function: types.FunctionType) -> Iterator[Any]:
    if _is_foreign(function):
        return
    yield from _cell_contents(function)
    yield function.__defaults__
    yield function.__kwdefaults__
    yield vars(function)
    names = list(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if isinstance(value, types.ModuleType) and not _is_foreign_name(value.__name__):
            yield from [vars(value)[attribute] for attribute in names if attribute in vars(value)]


def _cell_contents(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function, and those defined inside it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _below_object(value: object) -> Iterator[Any]:
    yield from list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)
    yield type(value)


def _is_foreign(value: Any) -> bool:
    return _is_foreign_name(getattr(value, "__module__", None) or "builtins")


def _is_foreign_name(module: str) -> bool:
    return module.partition(".")[0] in _FOREIGN


# *** who holds it ***


def holders(memories: Iterable[Buffer]) -> dict[int, list[LazyBuffer]]:
    """The nodes whose contents are in each memory or a part of it, by serial number.

    The garbage collector knows; it is asked once for all, since each question walks the heap.
    """
    wanted = list(memories)
    wanted += _referrers(wanted, Buffer)
    ids = {id(buffer) for buffer in wanted}
    found: dict[int, list[LazyBuffer]] = {}
    for node in _referrers(wanted, LazyBuffer):
        if node.realized is not None and id(node.realized) in ids:
            found.setdefault(node.realized.base.serial, []).append(node)
    return found


def cells(nodes: Iterable[LazyBuffer]) -> dict[LazyBuffer, list[Cell]]:
    """The tensors' memories whose present version each node is."""
    wanted = list(nodes)
    found: dict[LazyBuffer, list[Cell]] = {}
    for cell in _referrers(_referrers(wanted, Value), Cell):
        found.setdefault(cell.value.node, []).append(cell)
    return {node: found[node] for node in wanted if node in found}


def _referrers(values: list[Any], kind: Callable[..., Any]) -> list[Any]:
    if not values:
        return []
    assert isinstance(kind, type)
    return [referrer for referrer in gc.get_referrers(*values) if isinstance(referrer, kind)]
