"""Methods that take tensors are given tensors: anything else is a `TypeError` that says so.

Operators and what is like them take numbers, lists and arrays as well (`Operand`). The others would
fail somewhere inside, with an error about an attribute that nobody has heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any, Final, TypeAlias, TypeVar, cast

from ferrule.tensor.base import TensorBase

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Expected: TypeAlias = tuple[int, str, bool]
"""A parameter that has to be a tensor: its place, its name, and whether it may be None."""

_TENSORS: Final = ("TensorBase", "Tensor", "Self")
_OR_NONE: Final = " | None"


def check_tensors(owner: type[T]) -> type[T]:
    """Makes the public methods of a class check the parameters that are annotated as tensors.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).gather(0, [0])
    Traceback (most recent call last):
    ...
    TypeError: [gather] index has to be a tensor, not list; make it one: Tensor(...)
    """
    members: dict[str, Any] = {}
    for theme in reversed(owner.__mro__):
        members.update(vars(theme))
    for name, member in members.items():
        if name.startswith("_") or not isinstance(member, FunctionType):
            continue
        expected = list(_expected(member))
        if expected:
            setattr(owner, name, _checking(member, expected, name))
    return owner


def takes_tensors(call: F) -> F:
    """The same for one method; a layer's `__call__` has the layer's name in the error."""
    assert isinstance(call, FunctionType)
    name = None if call.__name__ == "__call__" else call.__name__
    return cast(F, _checking(call, list(_expected(call)), name))


def _expected(function: FunctionType) -> Iterator[Expected]:
    # `inspect.signature` would take ten milliseconds for all methods.
    inner: Any = getattr(function, "__wrapped__", function)
    code = inner.__code__
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        annotation = str(inner.__annotations__.get(name))
        plain = annotation.removesuffix(_OR_NONE)
        if plain in _TENSORS:
            yield place, name, plain != annotation


def _checking(
    function: FunctionType, expected: list[Expected], own_name: str | None
) -> Callable[..., Any]:
    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        count = len(args)
        for place, name, optional in expected:
            if place < count:
                given = args[place]
            elif name in kwargs:
                given = kwargs[name]
            else:
                continue
            if not isinstance(given, TensorBase) and not (optional and given is None):
                raise no_tensor(own_name or type(args[0]).__name__, name, given)
        return function(*args, **kwargs)

    return method


def no_tensor(what: str, name: str, given: object) -> TypeError:
    """The error for something that has to be a tensor, and is none."""
    return TypeError(
        f"[{what}] {name} has to be a tensor, not {type(given).__name__}; make it one: Tensor(...)"
    )
