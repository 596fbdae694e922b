"""Arguments of methods, checked by how parameters are annotated: tensors, and whole numbers.

Operators and what is like them take numbers, lists and arrays as well (`Operand`). Methods that
need a tensor would fail somewhere inside, with an error about an attribute that nobody has heard
of; and those that need a whole number would compute something with 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import wraps
from types import FunctionType, NoneType
from typing import Any, Final, TypeAlias, TypeVar, cast

from ferrule.base.calls import is_several, whole
from ferrule.base.threadstate import this_thread
from ferrule.ir.expr import Expr
from ferrule.tensor.autocast import POLICIES, call_by
from ferrule.tensor.base import Tensor

F = TypeVar("F", bound=Callable[..., Any])
Check: TypeAlias = Callable[[Any, str, str], Any]
"""Gives an argument, as a method is to have it; or raises, with the method's and its own name."""
Expected: TypeAlias = tuple[int, str, AbstractSet[type[Any]], Check]
"""A parameter that is checked: its place, its name, and the types that are right at once."""

_OR_NONE: Final = " | None"
_ONE: Final = frozenset({"int", "sint"})
_NOT_ONE: Final = frozenset({"Sequence[int]", "Sequence[sint]", "tuple[int, int]"})
_SEVERAL: Final = _NOT_ONE | {"Axes", "Sizes", "Wanted"}
_BESIDE: Final = frozenset({"None", "Tensor", "bool"})


_BY_NAME: Final = 1 << 30
"""The place of a parameter that is given by its name alone."""
_tensor_types: set[type[Any]] = set()
_tensor_types_or_none: set[type[Any]] = {NoneType}


def are_tensors(owner: type[Tensor]) -> None:
    """Says that objects of a class are tensors, which are found to be right the fastest."""
    _tensor_types.add(owner)
    _tensor_types_or_none.add(owner)


def checks_arguments(call: F) -> F:
    """Make one function check its arguments.

    A layer's `__call__` has the layer's name in the error, and follows the layer's policy in a
    block of `autocast`.
    """
    assert isinstance(call, FunctionType)
    expected = list(expected_of(call))
    own_name = None if call.__name__ == "__call__" else call.__name__

    @wraps(call)
    def method(*args: Any, **kwargs: Any) -> Any:
        name = own_name or type(args[0]).__name__
        args, kwargs = checked(expected, args, kwargs, name)
        state = this_thread.state
        policy = None if state.autocast is None else POLICIES.get(name)
        if policy is None:
            return call(*args, **kwargs)
        return call_by(policy, state, call, args, kwargs)

    return cast(F, method)


def expected_of(function: FunctionType) -> Iterator[Expected]:
    """The parameters of a function that are checked, by their annotations; `self` is not."""
    # `inspect.signature` would take ten milliseconds for all methods.
    inner: Any = getattr(function, "__wrapped__", function)
    code = inner.__code__
    for number, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        if name == "self":
            continue
        place = number if number < code.co_argcount else _BY_NAME
        annotation = str(inner.__annotations__.get(name))
        plain = annotation.removesuffix(_OR_NONE)
        none = (NoneType,) if plain != annotation or annotation.startswith("Axes") else ()
        if plain == "Tensor":
            yield place, name, _tensor_types_or_none if none else _tensor_types, _tensor
            continue
        kinds = set(annotation.split(" | "))
        right = frozenset((int, *none, *((bool,) if "bool" in kinds else ())))
        if kinds <= _NOT_ONE | _BESIDE and kinds & _NOT_ONE:
            yield place, name, right - {int}, _several_whole_numbers
        elif kinds & _SEVERAL and kinds <= _SEVERAL | _ONE | _BESIDE:
            yield place, name, right, _whole_numbers
        elif kinds & _ONE and kinds <= _ONE | _BESIDE:
            yield place, name, right, _whole_number


def checked(
    expected: Iterable[Expected], args: tuple[Any, ...], kwargs: dict[str, Any], what: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, whole numbers as ints; raises `TypeError` for a wrong one."""
    for place, name, right, check in expected:
        if place < len(args):
            given = args[place]
            if type(given) not in right:
                found = check(given, what, name)
                if found is not given:
                    args = (*args[:place], found, *args[place + 1 :])
        elif name in kwargs:
            given = kwargs[name]
            if type(given) not in right:
                kwargs = {**kwargs, name: check(given, what, name)}
    return args, kwargs


def _tensor(given: Any, what: str, name: str) -> Any:
    if not isinstance(given, Tensor):
        raise no_tensor(what, name, given)
    return given


def _whole_number(given: Any, what: str, name: str) -> Any:
    return given if isinstance(given, Expr) else whole(given, f"[{what}] {name}")


def _several_whole_numbers(given: Any, what: str, name: str) -> Any:
    if not (isinstance(given, Tensor) or is_several(given)):
        one = _whole_number(given, what, name)
        raise TypeError(
            f"[{what}] {name} takes several whole numbers, not {one} alone; give a tuple: ({one},)"
        )
    return _whole_numbers(given, what, name)


def _whole_numbers(given: Any, what: str, name: str) -> Any:
    if isinstance(given, Tensor):
        return given
    if not is_several(given):
        return _whole_number(given, what, name)
    if isinstance(given, Collection) and all([type(number) in _RIGHT for number in given]):
        return given
    numbers = [n if n is None else _whole_number(n, what, name) for n in given]
    return numbers if isinstance(given, list) else tuple(numbers)


_RIGHT: Final = frozenset({int, NoneType})


def no_tensor(what: str, name: str, given: object) -> TypeError:
    """The error for something that has to be a tensor, and is none."""
    return TypeError(
        f"[{what}] {name} has to be a tensor, not {type(given).__name__}; make it one: Tensor(...)"
    )
