"""The names of parameters in NumPy and PyTorch that mean the same: a call may use either.

Other names are an error that says which there are. What is given is checked on the way, by
`checked.py`: a call has one function around it, whatever there is to look at. Methods that
`autocast.py` has a policy for have another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar, cast

from ferrule.base.calls import unknown_keyword
from ferrule.tensor.autocast import autocasting
from ferrule.tensor.checked import Expected, checked, expected_of

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
    ("reps", "dims"),
    ("ord", "p"),
)
_SEVERAL: Final = frozenset({"shape", "size", "axes", "reps", "repeats"})
"""Parameters that may be several arguments, `x.reshape(2, 3)`, and are one by name."""
_OTHERS: Final = {
    name: frozenset(other for group in _SAME if name in group for other in group) - {name}
    for group in _SAME
    for name in group
}


def method(function: F) -> F:
    """Makes a function of tensors a method: it takes each parameter under all its usual names.

    `x.sum(dim=0)` is `x.sum(axis=0)`. Parameters that are annotated as tensors or as whole numbers
    are checked. A function that takes nothing but its operands is left as it is, but for its full
    name, which is that of the method.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).sum(dim=0, keepdims=True).tolist()
    [[4, 6]]
    >>> Tensor([1, 2]).gather(0, [0])
    Traceback (most recent call last):
    ...
    TypeError: [gather] index has to be a tensor, not list; make it one: Tensor(...)
    >>> Tensor([1, 2]).roll(0.5)
    Traceback (most recent call last):
    ...
    TypeError: [roll] shifts is a whole number, not 0.5
    """
    assert isinstance(function, FunctionType)
    name = function.__name__
    function.__qualname__ = f"Tensor.{name}"
    parameters = _parameters(function)
    expected = list(expected_of(function))
    if not (expected or parameters.synonyms or parameters.several or _has_settings(function)):
        return autocasting(cast(F, function))
    return autocasting(cast(F, _accepting(function, parameters, expected, name)))


def with_synonyms(function: F) -> F:
    """`method` for the names of a function alone."""
    assert isinstance(function, FunctionType)
    return cast(F, _accepting(function, _parameters(function), [], function.__name__))


class _Parameters(NamedTuple):
    """The keyword arguments of a function."""

    names: tuple[str, ...]
    synonyms: dict[str, str]
    """The synonyms of its parameters, and the names that these have there."""
    several: frozenset[str]
    """The names of parameters that may be several arguments."""
    is_open: bool
    """True if it takes other names, too."""


def _has_settings(function: FunctionType) -> bool:
    return bool(function.__defaults__ or function.__kwdefaults__)


def _parameters(function: FunctionType) -> _Parameters:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    several: frozenset[str] = frozenset()
    if code.co_flags & CO_VARARGS and code.co_varnames[count] in _SEVERAL:
        name = code.co_varnames[count]
        several = frozenset({name, *_OTHERS.get(name, ())}).difference(names)
    synonyms: dict[str, str] = {}
    for name in names:
        others = _OTHERS.get(name, frozenset()).difference(names, several)
        synonyms.update(dict.fromkeys(others, name))
    named = names[code.co_posonlyargcount :]
    is_open = bool(code.co_flags & CO_VARKEYWORDS)
    return _Parameters(named, synonyms, several, is_open)


def _accepting(
    function: FunctionType, parameters: _Parameters, expected: list[Expected], what: str
) -> Callable[..., Any]:
    plain = frozenset[str]() if parameters.is_open else frozenset(parameters.names)
    by_place = [(place, right) for place, _, right, _ in expected]

    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if not plain.issuperset(kwargs):
                args, kwargs = _renamed(function, parameters, args, kwargs)
            if expected:
                args, kwargs = checked(expected, args, kwargs, what)
            return function(*args, **kwargs)
        count = len(args)
        for place, right in by_place:
            if place < count and type(args[place]) not in right:
                args, _ = checked(expected, args, kwargs, what)
                break
        return function(*args)

    return method


def _renamed(
    function: FunctionType, parameters: _Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    what = f"[{function.__name__}]"
    result: dict[str, Any] = {}
    for name, value in kwargs.items():
        known = parameters.synonyms.get(name, name)
        if name in parameters.several and len(args) == function.__code__.co_argcount:
            args = (*args, value)
            continue
        if known in result or (known != name and known in kwargs):
            raise TypeError(f"{what} {name!r} is another name of {known!r}; give one of them")
        if known not in parameters.names and not parameters.is_open:
            if name in parameters.several:
                raise TypeError(f"{what} {name!r} is there already, by place; give it once")
            taken = [*parameters.names, *sorted(parameters.several)]
            raise unknown_keyword(what, name, [name for name in taken if name != "self"])
        result[known] = value
    return args, result
