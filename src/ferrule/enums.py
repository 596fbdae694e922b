"""`Enum`, as the standard library's, whose members are found and hashed in a fraction of the time.

The compiler asks for members thousands of times in every step. Before Python 3.12 the metaclass of
enumerations has a `__getattr__`, and with it each `BinaryOps.ADD` takes the long way of classes
that decide themselves what an attribute is: four times as long as an attribute of another class.
"""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Any


class _Members(enum.EnumType):
    """Looks in the class's own `__dict__` first, where the members are."""

    if not TYPE_CHECKING and sys.version_info < (3, 12):
        # The one function of this name that the interpreter has a short way for.
        __getattribute__ = object.__getattribute__

        def __getattr__(cls, name: str) -> Any:
            return type.__getattribute__(cls, name)


class Enum(enum.Enum, metaclass=_Members):
    """The standard `Enum`: members are equal if they are the same, and hash so, without a name.

    Class methods are not allowed: what is in a class's own `__dict__` is found as it is.

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
