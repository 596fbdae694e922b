"""Settings: read from the environment once, changed for a block by `Context`.

No other module reads the environment. A new thread starts with the environment's settings,
whatever block it was started in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
R = TypeVar("R")


class ConfigError(ValueError):
    """A setting that does not exist, or a value that it cannot take."""


@final
@dataclass(frozen=True)
class Config:
    """All settings. A field is named as its environment variable."""

    DEBUG: int
    """How much is printed, 0 to 7."""
    BEAM: int
    """Width of the search for a kernel's schedule; 0 takes the heuristic's."""
    JIT: int
    """0: `TinyJit` calls its function plainly; 1: it captures, and graphs; 2: it captures only."""
    LRU: int
    """0: freed memory goes back to the system at once; 1: allocators keep it for reuse."""
    FERRULE_DEVICE: str | None
    """The default device; None: the first that opens."""
    FERRULE_NUM_THREADS: int
    """How many threads a CPU kernel may use."""
    FERRULE_CACHE_DIR: str
    """The folder of the on-disk cache."""
    FERRULE_MEMORY_LIMIT: int | None
    """Bytes that a device's allocator may hold, in use and cached; None: its own choice."""


def usable_cores() -> int:
    """How many cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _user_cache_dir(environment: Mapping[str, str]) -> str:
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "ferrule")
    if sys.platform == "win32":
        local = environment.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
        return os.path.join(local, "ferrule", "Cache")
    base = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(base, "ferrule")


def _checked_int(name: str, value: object, smallest: int) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, float) or number < smallest:
        raise ConfigError(f"{name}={value!r}: expected an integer of at least {smallest}")
    return int(number)


_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _checked_bytes(name: str, value: object) -> int | None:
    if value is None:
        return None
    text = str(value).strip().upper()
    unit = _SUFFIXES.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal() or int(digits) == 0:
        raise ConfigError(
            f"{name}={value!r}: expected a number of bytes, such as 500000000, 512M or 4G"
        )
    return int(digits) * unit


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r}: expected a non-empty string")
    return value


_SMALLEST = {"DEBUG": 0, "BEAM": 0, "JIT": 0, "LRU": 0, "FERRULE_NUM_THREADS": 1}
_NAMES = tuple(field.name for field in fields(Config))


def _checked(name: str, value: object) -> Any:
    if name in _SMALLEST:
        return _checked_int(name, value, _SMALLEST[name])
    if name == "FERRULE_MEMORY_LIMIT":
        return _checked_bytes(name, value)
    if name == "FERRULE_DEVICE" and value is None:
        return None
    return _checked_text(name, value)


def config_from(environment: Mapping[str, str]) -> Config:
    """The settings that `environment` asks for; an empty value counts as absent.

    Raises `ConfigError` for a malformed value.
    """
    defaults = Config(
        DEBUG=0,
        BEAM=0,
        JIT=1,
        LRU=1,
        FERRULE_DEVICE=None,
        FERRULE_NUM_THREADS=usable_cores(),
        FERRULE_CACHE_DIR=_user_cache_dir(environment),
        FERRULE_MEMORY_LIMIT=None,
    )
    asked = {name: environment[name] for name in _NAMES if environment.get(name)}
    return replace(defaults, **{name: _checked(name, value) for name, value in asked.items()})


# The last entry holds now; the ones below it come back as blocks end.
_stack: ContextVar[tuple[Config, ...]] = ContextVar(
    "ferrule_config", default=(config_from(os.environ),)
)


def config() -> Config:
    """The settings in force here and now.

    >>> with Context(DEBUG=3):
    ...     config().DEBUG
    3
    """
    return _stack.get()[-1]


@final
class Context:
    """Settings for a `with` block, or for each call of a decorated function; blocks nest.

    Raises `ConfigError` for an unknown name or a value that it cannot take.

    >>> @Context(BEAM=2)
    ... def width() -> int:
    ...     return config().BEAM
    >>> width()
    2
    """

    def __init__(self, **changes: Any) -> None:
        for name in changes:
            if name not in _NAMES:
                raise ConfigError(
                    f"Context: no setting {name!r}; the settings are {', '.join(_NAMES)}"
                )
        self._changes = {name: _checked(name, value) for name, value in changes.items()}

    def __enter__(self) -> None:
        stack = _stack.get()
        _stack.set((*stack, replace(stack[-1], **self._changes)))

    def __exit__(self, *_: object) -> None:
        _stack.set(_stack.get()[:-1])

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, run with these settings whenever it is called."""

        @wraps(function)
        def with_settings(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return with_settings
