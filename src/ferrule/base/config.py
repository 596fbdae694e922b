"""Settings: read from the environment once, changed for a block by `Context`.

No other module reads the environment. A new thread starts with the process's settings, whatever
block it was started in. Only the threads that compile take the settings of the thread that they
work for. Of the process's settings `set_num_threads` and `set_float32_matmul_precision` change one
each.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, final

from ferrule.base.records import dataclass

P = ParamSpec("P")
R = TypeVar("R")


class ConfigError(ValueError):
    """A setting that does not exist, or a value that it cannot take."""


PASSES = (
    "fusion",
    "blocks",
    "guests",
    "outputs",
    "merge",
    "sizes",
    "pieces",
    "memory",
    "lengths",
    "offsets",
)
"""Optimisations of the scheduler, by the names that `FERRULE_SKIP` takes."""


@final
@dataclass(frozen=True)
class Config:
    """All settings. A field is named as its environment variable."""

    DEBUG: int
    """The amount of output, 0 to 7."""
    BEAM: int
    """Width of the search for a kernel's schedule; 0: no search."""
    BEAM_SECONDS: float
    """The seconds that the search may take for a kernel."""
    JIT: int
    """0: `TinyJit` calls its function plainly; 1: it captures, and graphs; 2: it captures only; 3:
    as 1, and each replay is compared with a plain call."""
    LRU: int
    """0: freed memory goes back to the system at once; 1: allocators keep it for reuse."""
    ALLOW_TF32: int
    """1: products of float32 matrices may be of operands rounded to tf32, where that is faster."""
    FERRULE_CHECK_INDEX: int
    """1: a position of a tensor that is out of range raises `IndexError` when it is computed."""
    FERRULE_SKIP: frozenset[str]
    """Optimisations that the scheduler leaves out, of `PASSES`."""
    FERRULE_DEVICE: str | None
    """The default device; None: the first that opens."""
    FERRULE_CPU_DEVICES: int
    """The number of devices CPU, CPU:1 and so on, and of NUMPY; each is made when first used."""
    FERRULE_NUM_THREADS: int
    """The number of threads that a CPU kernel may use."""
    FERRULE_COMPILE_WORKERS: int | None
    """The number of processes that compile kernels beside this one; None: one less than threads."""
    FERRULE_CACHE_DIR: str
    """The folder of the on-disk cache."""
    FERRULE_MEMORY_LIMIT: int | None
    """Bytes that a device's allocator may hold, in use and cached; None: its own choice."""


def usable_cores() -> int:
    """The number of cores that this process may use: by its affinity, and by its group's quota."""
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
        return max(1, min(allowed, quota_cores(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))))
    return os.cpu_count() or 1


def quota_cores(membership: Path, groups: Path) -> int:
    """The number of cores whose time Linux grants this process, rounded up; large without a limit.

    `membership` is the file that lists its control groups, `groups` the folder where they are
    mounted. A container sees its own group as the root; outside of one, parent groups count, too.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return _MANY_CORES
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return _MANY_CORES
    folder = groups / own.strip("/")
    places = [place for place in (folder, *folder.parents) if place.is_relative_to(groups)]
    return min(_quota(place / "cpu.max") for place in places)


_MANY_CORES = 1 << 20


def _quota(file: Path) -> int:
    """The cores that a file `cpu.max` grants: `quota period` in microseconds, or `max period`."""
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return _MANY_CORES
    return _MANY_CORES if quota == "max" else -(-int(quota) // int(period))


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


def _checked_seconds(name: str, value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{name}={value!r}: expected a positive number of seconds")
    return seconds


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


def _checked_passes(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    wanted = list(value) if isinstance(value, Iterable) else [value]
    unknown = [part for part in wanted if part not in PASSES]
    if unknown:
        raise ConfigError(
            f"{name}: the scheduler has no optimisation {unknown[0]!r} to leave out; expected some "
            f"of {', '.join(PASSES)}, with commas between them"
        )
    return frozenset(map(str, wanted))


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r}: expected a non-empty string")
    return value


_SMALLEST = {
    **{"DEBUG": 0, "BEAM": 0, "JIT": 0, "LRU": 0},
    **{"ALLOW_TF32": 0, "FERRULE_CHECK_INDEX": 0, "FERRULE_NUM_THREADS": 1},
    "FERRULE_CPU_DEVICES": 1,
    "FERRULE_COMPILE_WORKERS": 0,
}
_NAMES = tuple(field.name for field in fields(Config))


def _checked(name: str, value: object) -> Any:
    if value is None and name in ("FERRULE_COMPILE_WORKERS", "FERRULE_DEVICE"):
        return None
    if name in _SMALLEST:
        return _checked_int(name, value, _SMALLEST[name])
    if name == "BEAM_SECONDS":
        return _checked_seconds(name, value)
    if name == "FERRULE_MEMORY_LIMIT":
        return _checked_bytes(name, value)
    if name == "FERRULE_SKIP":
        return _checked_passes(name, value)
    return _checked_text(name, value)


def _warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn of variables whose names are nearly those of settings."""
    known = {name.removeprefix("FERRULE_"): name for name in _NAMES}
    for name in environment:
        if name.startswith("FERRULE_") and name not in _NAMES:
            from difflib import get_close_matches  # slow to import

            for near in get_close_matches(name.removeprefix("FERRULE_"), known, 1, 0.8):
                text = f"the environment's {name} is no setting; did you mean {known[near]}?"
                warnings.warn(text, stacklevel=2)


def config_from(environment: Mapping[str, str]) -> Config:
    """The settings that `environment` asks for; an empty value counts as absent.

    Warns of a name that is nearly a setting's. Raises `ConfigError` for a malformed value.
    """
    defaults = Config(
        DEBUG=0,
        BEAM=0,
        BEAM_SECONDS=5.0,
        JIT=1,
        LRU=1,
        ALLOW_TF32=0,
        FERRULE_CHECK_INDEX=0,
        FERRULE_SKIP=frozenset(),
        FERRULE_DEVICE=None,
        FERRULE_CPU_DEVICES=8,
        FERRULE_NUM_THREADS=usable_cores(),
        FERRULE_COMPILE_WORKERS=None,
        FERRULE_CACHE_DIR=_user_cache_dir(environment),
        FERRULE_MEMORY_LIMIT=None,
    )
    _warn_of_misspelt(environment)
    asked = {name: environment[name] for name in _NAMES if environment.get(name)}
    return replace(defaults, **{name: _checked(name, value) for name, value in asked.items()})


_process = config_from(os.environ)


@dataclass(frozen=True)
class _Block:
    """The settings inside a block: the changes of it and of outer blocks, over the process's."""

    changes: dict[str, Any]
    process: Config
    settings: Config

    @staticmethod
    def of(changes: dict[str, Any]) -> _Block:
        return _Block(changes, _process, replace(_process, **changes))


# The last entry is in force; the ones below it return as blocks end.
_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("ferrule_config", default=())


def config() -> Config:
    """The settings in force here and now.

    >>> with Context(DEBUG=3):
    ...     config().DEBUG
    3
    """
    blocks = _blocks.get()
    if not blocks:
        return _process
    block = blocks[-1]
    if block.process is not _process:
        return replace(_process, **block.changes)
    return block.settings


def set_num_threads(number: int) -> None:
    """Let each CPU kernel use `number` threads from now on, in all threads of this process.

    Captured functions follow as well. Results are the same bits for any number. The default is
    `FERRULE_NUM_THREADS` in the environment, else the number of cores that the process may run on.
    A `Context(FERRULE_NUM_THREADS=...)` block has priority.

    Raises `ConfigError` for anything but an integer of at least 1.

    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    global _process
    checked = _checked_int("set_num_threads: FERRULE_NUM_THREADS", number, 1)
    _process = replace(_process, FERRULE_NUM_THREADS=checked)


def get_num_threads() -> int:
    """The number of threads that a CPU kernel may use, here and now.

    >>> with Context(FERRULE_NUM_THREADS=3):
    ...     get_num_threads()
    3
    """
    return config().FERRULE_NUM_THREADS


_PRECISIONS = ("highest", "high", "medium")  # of `torch.set_float32_matmul_precision`


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of products of float32 from now on, in all threads of this process.

    "highest", the default, is float32. "high" lets a GPU round the operands of matrix products,
    convolutions and attention to tf32, with 10 bits of mantissa, and add up in float32. So does
    "medium", which is less precise in PyTorch. It is the setting `ALLOW_TF32`, 0 or 1. The setting
    at the time when a tensor is computed counts, not the one when the expression is written.

    Raises `ConfigError` for any other name.

    >>> set_float32_matmul_precision("high")
    >>> get_float32_matmul_precision()
    'high'
    >>> set_float32_matmul_precision("highest")
    """
    global _process
    if precision not in _PRECISIONS:
        raise ConfigError(
            f"set_float32_matmul_precision({precision!r}): expected one of {', '.join(_PRECISIONS)}"
        )
    _process = replace(_process, ALLOW_TF32=int(precision != "highest"))


def get_float32_matmul_precision() -> str:
    """The precision of products of float32, here and now: "highest" or "high".

    >>> with Context(ALLOW_TF32=1):
    ...     get_float32_matmul_precision()
    'high'
    """
    return "high" if config().ALLOW_TF32 else "highest"


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
        blocks = _blocks.get()
        around = blocks[-1].changes if blocks else {}
        _blocks.set((*blocks, _Block.of({**around, **self._changes})))

    def __exit__(self, *_: object) -> None:
        _blocks.set(_blocks.get()[:-1])

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, run with these settings whenever it is called."""

        @wraps(function)
        def with_settings(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return with_settings
