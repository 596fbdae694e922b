"""Calls that do not fit a function: what is said names what it takes, and the nearest name.

Python says which argument is wrong, not which there are. Nothing here costs a call that fits more
than a function around it does.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeGuard, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Parameters that functions elsewhere have, and what does it here.
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

    Floats are none, not even 2.0, nor are bools: both are mistakes more often than not. Raises
    `TypeError`, whose message begins with `what`.

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


def is_several(given: object) -> TypeGuard[Iterable[Any]]:
    """Whether an argument is several numbers: any sequence, but no text and no array of one.

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
    """What is wrong with a call of these arguments; None if they fit."""
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
    """Makes a function, or a constructor, say what it takes where a call does not fit it.

    >>> @explains
    ... def scale(x, factor=2):
    ...     return x * factor
    >>> scale(3, facto=4)
    Traceback (most recent call last):
    TypeError: scale got an unexpected keyword argument 'facto'; did you mean factor? It takes x, \
factor
    """
    is_constructor = function.__name__ == "__init__"

    @wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            signature = inspect.signature(function)
            given = args
            what = function.__name__
            if is_constructor:
                what = type(args[0]).__name__
                signature = signature.replace(parameters=[*signature.parameters.values()][1:])
                given = args[1:]
            problem = misfit(what, signature, given, kwargs)
            if problem is None:
                raise
        raise problem

    return cast(F, explaining)


def explain_constructor(owner: type[Any]) -> None:
    """`explains` for the constructor that a class itself defines, if it does."""
    constructor = vars(owner).get("__init__")
    if constructor is not None:
        type.__setattr__(owner, "__init__", explains(constructor))
