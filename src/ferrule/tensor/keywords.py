"""The names of parameters in NumPy and PyTorch that mean the same: a call may use either."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_SAME: Final = (
    ("axis", "dim", "axes", "dims"),
    ("keepdim", "keepdims"),
    ("correction", "ddof"),
    ("min", "a_min"),
    ("max", "a_max"),
    ("shifts", "shift"),
    ("shape", "size"),
    ("stop", "end"),
    ("steps", "num"),
    ("in_axes", "in_dims"),
    ("out_axes", "out_dims"),
    ("neg_slope", "negative_slope"),
)
_OTHERS: Final = {name: frozenset(group) - {name} for group in _SAME for name in group}


def accept_synonyms(owner: type[T]) -> type[T]:
    """Makes every public method of a class take a parameter under each of its usual names.

    `x.sum(dim=0)` is `x.sum(axis=0)`. A decorator of the class: methods whose parameters have no
    other names, and calls without keywords, are left as they are.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).sum(dim=0, keepdims=True).tolist()
    [[4, 6]]
    """
    members: dict[str, Any] = {}
    for theme in reversed(owner.__mro__):
        members.update(vars(theme))
    for name, member in members.items():
        if name.startswith("_"):
            continue
        kind = type(member) if isinstance(member, classmethod | staticmethod) else None
        function = member.__func__ if kind is not None else member
        if not isinstance(function, FunctionType):
            continue
        synonyms = _synonyms(function)
        if synonyms:
            renaming = _renaming(function, synonyms)
            setattr(owner, name, renaming if kind is None else kind(renaming))
    return owner


def with_synonyms(function: F) -> F:
    """`accept_synonyms` for a function alone."""
    assert isinstance(function, FunctionType)
    return cast(F, _renaming(function, _synonyms(function)))


def _synonyms(function: FunctionType) -> dict[str, str]:
    """The other names of a function's parameters, and what they are called there."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, str] = {}
    for name in parameters:
        others = _OTHERS.get(name, frozenset()).difference(parameters)
        found.update(dict.fromkeys(others, name))
    return found


def _renaming(function: FunctionType, synonyms: dict[str, str]) -> Callable[..., Any]:
    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not synonyms.keys().isdisjoint(kwargs):
            kwargs = _renamed(function.__name__, synonyms, kwargs)
        return function(*args, **kwargs)

    return method


def _renamed(what: str, synonyms: dict[str, str], kwargs: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in kwargs.items():
        known = synonyms.get(name, name)
        if known in result or (known != name and known in kwargs):
            raise TypeError(f"[{what}] {name!r} is another name of {known!r}; give one of them")
        result[known] = value
    return result
