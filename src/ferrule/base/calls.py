"""Errors for calls that do not fit a function: they name its parameters, and the nearest name.

Python says which argument is wrong, but not which parameters there are. A call that fits costs no
more than one function around it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeGuard, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Parameters of other libraries' functions, and their replacements here.
_INSTEAD = {
    "learning_rate": "its name is lr",
    "inplace": "functions whose names end in _ write in place",
    "memory_format": "tensors have one order of axes: leave it out",
    "non_blocking": "copies are as they have to be: leave it out",
    "out": "write the result with assign: y.assign(x)",
    "pin_memory": "there is nothing to pin: leave it out",
}


def whole(given: object, what: str) -> int:
    """A whole number as an int: Python's, NumPy's, or of any other type with `__index__`.

    Raises `TypeError`, whose message begins with `what`, for anything else. That includes floats,
    even 2.0, and bools: both are mistakes more often than not.

    >>> whole(3, "[roll] shifts")
    3
    >>> whole(0.5, "[roll] shifts")
    Traceback (most recent call last):
    TypeError: [roll] shifts is a whole number, not 0.5
    """
    if not isinstance(given, bool):
        try:
            return operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            pass
    hint = ""
    if isinstance(given, float) and given.is_integer():
        hint = f"; write int({given!r})"
    raise TypeError(f"{what} is a whole number, not {given!r}{hint}")


def one_of(
    given: object, choices: Iterable[object], what: str, error: type[Exception] = ValueError
) -> None:
    """Raises an error, whose message begins with `what`, for what is none of some choices.

    >>> one_of("median", ["sum", "mean"], "[scatter_reduce] reduce")
    Traceback (most recent call last):
    ValueError: [scatter_reduce] reduce 'median' is not one of 'sum', 'mean'
    """
    known = list(choices)
    if given not in known:
        raise error(f"{what} {given!r} is not one of {', '.join(map(repr, known))}")


def is_several(given: object) -> TypeGuard[Iterable[Any]]:
    """True if an argument is several numbers: any iterable but text and arrays without axes.

    >>> is_several([2]), is_several(2), is_several("same")
    (True, False, False)
    """
    if isinstance(given, str) or getattr(given, "ndim", 1) == 0:
        return False
    return isinstance(given, Iterable)


def unknown_keyword(what: str, name: str, accepted: Iterable[str]) -> TypeError:
    """The error for a keyword that a function does not take.

    >>> unknown_keyword("[sum]", "axs", ["axis", "keepdim"])
    TypeError("[sum] got an unexpected keyword argument 'axs'; did you mean axis? It takes axis, \
keepdim")
    """
    from difflib import get_close_matches  # which takes longer to import than all else here

    known = list(accepted)
    near = get_close_matches(name, known, n=1) or [
        other for other in known if other.startswith(name) or name.startswith(other)
    ]
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    if name in _INSTEAD:
        hint = f"{_INSTEAD[name]}; {takes}"
    else:
        hint = f"did you mean {near[0]}? I{takes[1:]}" if near else takes
    return TypeError(f"{what} got an unexpected keyword argument {name!r}; {hint}")


def misfit(
    what: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """The error for a call with these arguments; None if they fit the signature."""
    parameters = signature.parameters.values()
    named = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in kwargs:
            if name not in named:
                return unknown_keyword(what, name, named)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        return TypeError(f"{what}{inspect.Signature(plain)}: {error}")
    return None


def explains(function: F) -> F:
    """Make a function, or a constructor, raise errors that name its parameters for a misfit call.

    >>> @explains
    ... def scale(x, factor=2):
    ...     return x * factor
    >>> scale(3, facto=4)
    Traceback (most recent call last):
    TypeError: scale got an unexpected keyword argument 'facto'; did you mean factor? It takes x, \
factor
    """
    is_constructor = function.__name__ in ("__init__", "__new__")

    @wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            signature = inspect.signature(function)
            given = args
            what = function.__name__
            if is_constructor:
                what = (args[0] if isinstance(args[0], type) else type(args[0])).__name__
                signature = signature.replace(parameters=[*signature.parameters.values()][1:])
                given = args[1:]
            problem = misfit(what, signature, given, kwargs)
            if problem is None:
                raise
        raise problem

    return cast(F, explaining)


def explain_constructor(owner: type[Any]) -> None:
    """Apply `explains` to the constructor that a class itself defines, if there is one."""
    constructor = vars(owner).get("__init__")
    if constructor is not None:
        type.__setattr__(owner, "__init__", explains(constructor))
