"""Small functions without a better home, and the counters of what ran."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from operator import mul
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, final

T = TypeVar("T")

# Names that are documented in this module, though they are in a higher layer.
_DOCUMENTED_HERE = {"DType": "ferrule.ir.dtype", "dtypes": "ferrule.ir.dtype"}

if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in _DOCUMENTED_HERE:
            return getattr(import_module(_DOCUMENTED_HERE[name]), name)
        raise no_attribute(__name__, name, [n for n in globals() if not n.startswith("_")])


class _Comparable(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


C = TypeVar("C", bound=_Comparable)


def prod(factors: Iterable[T]) -> T | int:
    """The product of `factors`, 1 if there are none.

    >>> prod([2, 3, 4]), prod(())
    (24, 1)
    """
    return reduce(mul, factors, 1)


def no_attribute(
    module: str, name: str, names: Iterable[str], instead: Mapping[str, str] | None = None
) -> AttributeError:
    """The error for a name that a module lacks, with its replacement or similar names.

    >>> no_attribute("ferrule.nn.optim", "Adan", ["Adam", "SGD"])
    AttributeError("module 'ferrule.nn.optim' has no attribute 'Adan'; did you mean Adam?")
    """
    from difflib import get_close_matches  # which takes longer to import than all else here

    text = f"module {module!r} has no attribute {name!r}"
    hint = (instead or {}).get(name, "")
    if not hint and not name.startswith("__"):
        public = sorted(names)
        alike = {public_name.lower(): public_name for public_name in public}
        near = get_close_matches(name.lower(), alike, cutoff=0.7)
        like = ", ".join(alike[found] for found in near)
        has = (
            f"it has {', '.join(public)}" if len(public) < 30 else f"dir({module}) lists its names"
        )
        hint = f"did you mean {like}?" if near else has
    return AttributeError(f"{text}; {hint}" if hint else text, name=name)


def argsort(keys: Sequence[C]) -> tuple[int, ...]:
    """The positions that sort `keys`; of a permutation, its inverse.

    >>> argsort([2, 0, 1])
    (1, 2, 0)
    """
    return tuple(sorted(range(len(keys)), key=keys.__getitem__))


def ceildiv(numerator: int, denominator: int) -> int:
    """`numerator / denominator`, rounded up.

    >>> ceildiv(7, 4), ceildiv(8, 4)
    (2, 2)
    """
    return -(-numerator // denominator)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`.

    >>> round_up(7, 4), round_up(8, 4)
    (8, 8)
    """
    return ceildiv(number, multiple) * multiple


_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_ANSI = re.compile("\x1b\\[[0-9;]*m")


def check_function(function: object, what: str) -> None:
    """Raise `TypeError` for an object that cannot be called.

    >>> check_function(3, "grad")
    Traceback (most recent call last):
    ...
    TypeError: [grad] takes a function, not int; pass it without calling it
    """
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"[{what}] takes a function, not {kind}; pass it without calling it")


def not_a_function(module: str, instead: str) -> None:
    """Make calling a module raise an error with the replacement.

    For modules that have the name of another library's function.

    >>> import ferrule.jit
    >>> ferrule.jit(print)
    Traceback (most recent call last):
    TypeError: ferrule.jit is a module and cannot be called; ferrule.TinyJit(function) captures a \
function
    """

    class Called(ModuleType):
        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise TypeError(f"{module} is a module and cannot be called; {instead}")

    sys.modules[module].__class__ = Called


def type_name(value: object) -> str:
    """The name of a value's type, with its module's unless it is one of Python's own.

    >>> import numpy as np
    >>> type_name("text"), type_name(np.zeros(2))
    ('str', 'numpy.ndarray')
    """
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def colored(text: str, colour: str) -> str:
    """`text` in a terminal colour; an upper-case name gives the bright form.

    >>> colored("ok", "green")
    '\\x1b[32mok\\x1b[0m'
    """
    code = _COLOURS.index(colour.lower()) + (90 if colour.isupper() else 30)
    return f"\x1b[{code}m{text}\x1b[0m"


def ansi_length(text: str) -> int:
    """The number of characters of `text` that a terminal shows.

    >>> ansi_length(colored("ok", "RED"))
    2
    """
    return len(_ANSI.sub("", text))


@final
class _Counters:
    """The class of `GlobalCounters`; an object, since changing a class costs ten times as much."""

    __slots__ = (
        "global_mem",
        "global_ops",
        "host_calls",
        "kernel_count",
        "mem_used",
        "time_sum_s",
    )

    host_calls: int
    """The number of runs of functions on the host (`ferrule.engine.host`)."""

    def __init__(self) -> None:
        self.mem_used = 0
        self.reset()

    def reset(self) -> None:
        """Sets all totals to zero; memory in use stays counted."""
        self.kernel_count = 0
        self.global_ops = 0
        self.global_mem = 0
        self.time_sum_s = 0.0
        self.host_calls = 0

    def add(self, kernels: int, ops: int, mem: int) -> None:
        """Counts a run: kernels, operations, bytes."""
        self.kernel_count += kernels
        self.global_ops += ops
        self.global_mem += mem


GlobalCounters = _Counters()
"""Totals of all runs in this process. `mem_used` is a level, so `reset` leaves it."""
