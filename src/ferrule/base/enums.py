"""The standard library's `Enum` with fast look-ups and hashes of members.

The compiler looks up members thousands of times in every step. Before Python 3.12 the metaclass of
enumerations has a `__getattr__`, so that each `BinaryOps.ADD` takes the slow path of attribute
look-up: four times as long as an attribute of another class.
"""

from __future__ import annotations

import enum
import sys
import warnings
from typing import TYPE_CHECKING, Any, final


class _Members(enum.EnumType):
    """Looks in the class's own `__dict__` first, where the members are."""

    if not TYPE_CHECKING and sys.version_info < (3, 12):
        # The interpreter has a fast path for this function alone.
        __getattribute__ = object.__getattribute__

        def __getattr__(cls, name: str) -> Any:
            return type.__getattribute__(cls, name)


class Enum(enum.Enum, metaclass=_Members):
    """The standard `Enum` whose members are equal and hashed by identity, not by name.

    Class methods are not allowed: look-ups return the entries of the class's `__dict__` unbound.

    >>> class Side(Enum):
    ...     LEFT = 1
    >>> Side.LEFT, Side["LEFT"] is Side(1), Side.__members__
    (<Side.LEFT: 1>, True, mappingproxy({'LEFT': <Side.LEFT: 1>}))
    """

    __hash__ = object.__hash__

    def __init_subclass__(cls) -> None:
        for name, member in vars(cls).items():
            if isinstance(member, classmethod):
                raise TypeError(
                    f"{cls.__name__}.{name}: a class method of an Enum is found unbound"
                )


@final
class Renamed:
    """The name that a member had before: gives the member, with a warning.

    It belongs in a base class of the enumeration, because look-ups do not call what they find in
    the enumeration's own `__dict__`.
    """

    def __init__(self, now: str) -> None:
        self.now = now

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: Any) -> Any:
        warnings.warn(
            f"{owner.__name__}.{self.name} is {owner.__name__}.{self.now} now; its old name will "
            "be gone in the next version",
            DeprecationWarning,
            stacklevel=2 if sys.version_info >= (3, 12) else 3,  # `__getattr__` is in between
        )
        return getattr(owner, self.now)
