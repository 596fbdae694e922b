"""The code that a call really runs: its own functions, and the C functions that these call.

A profile function sees calls of Python functions and of C functions. It would see those inside of
this package too, which are most: a training step makes 270,000 such events, and takes four times as
long with them (Zen 5, 2026-11). So it is paused for as long as a function of this package runs.
Nothing tells when that returns to code that is watched, but its frame goes away then, and with it
whatever the frame refers to: `_Resume` in its `f_trace`. An error that the program handles keeps
the frame: what ran until it goes was not seen, and `_Resume` notes where that was. Functions of
this package that call functions of the program say so (`base/callbacks.py`). What the garbage
collector runs, such as finalizers, is none of the function's. Where the function waits for another
thread, its call gives way to others (`jit/exclusion.py`).
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import zlib
from abc import get_cache_token
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from sysconfig import get_paths
from threading import Condition, Thread, get_ident
from types import BuiltinFunctionType, CodeType, FrameType, MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple, cast, final

import numpy as np

from ferrule.base.containers import leaves
from ferrule.base.threadstate import this_thread
from ferrule.fusion.graph import toposort
from ferrule.ir.dtype import exact
from ferrule.ir.expr import Expr
from ferrule.jit.exclusion import come_back, give_way
from ferrule.jit.names import is_procedure
from ferrule.jit.places import is_opaque, is_plain
from ferrule.tensor import Tensor

_TRUSTED: Final = tuple(
    [f"{folder}/" for folder in (Path(np.__file__).parent, Path(__file__).parents[1])]
)
"""The folders of NumPy and of this package."""
_INSTALLED: Final = tuple(
    [f"{get_paths()[kind]}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
)
"""The folders of installed libraries."""
_PURE: Final = frozenset(
    {
        *("builtins", "math", "cmath", "itertools", "numpy", "zlib", "binascii"),
        *("unicodedata", "_operator", "_functools", "_collections", "_struct", "_bisect", "_heapq"),
        *("_json", "_sre", "_abc", "_weakref", "_thread", "_io", "_contextvars", "_statistics"),
        *("_datetime", "_codecs", "_string", "_signal", "_warnings"),
    }
)
"""Modules of C functions whose results depend on their arguments alone, or matter to nobody."""
_CLOCKS: Final = frozenset({"time"})
"""Modules of C functions that tell the time, mostly for a report."""
_NOT_PURE: Final = frozenset({"globals", "input"})
"""Built-in functions that read what no name in the code tells."""
_HARMLESS: Final = frozenset(
    {
        *("collect", "freeze", "unfreeze", "enable", "disable", "exc_info", "exception", "intern"),
        *(
            "getsizeof",
            "getrefcount",
            "audit",
            "is_finalizing",
            "setprofile",
            "settrace",
            "_getframe",
        ),
    }
)
"""Functions of `gc` and `sys` that tell nothing that matters to a result."""
_QUERIES: Final = frozenset(
    {
        *("locked", "getrecursionlimit", "getswitchinterval", "isenabled", "get_threshold"),
        *("getcwd", "getpid", "get_ident", "get_native_id", "get_debug"),
    }
)
"""C functions that ask for a setting or the like, which can be asked for again."""
_REGISTERED: Final = frozenset({"_abc_instancecheck", "_abc_subclasscheck"})
"""C functions that depend on the classes that were registered with abstract ones."""
_VALUES: Final[tuple[type, ...]] = (
    *(str, bytes, bytearray, int, float, complex, tuple, frozenset, range, slice, type(None)),
    *(list, dict, set, deque, MappingProxyType, memoryview, type),
    *(np.generic, np.ndarray, np.dtype),
    *(type({}.keys()), type({}.values()), type({}.items())),
    *(ContextVar, re.Pattern, re.Match, np.ufunc),
)
"""Types whose methods read the object alone: its contents are compared before each replay."""
_MOST_CODES: Final = 1 << 14
"""Functions that one captured function may call: a model and its libraries call hundreds."""
_GARBAGE: Final = -1
"""Instead of an `id()`: a watch is paused while garbage is collected."""
_WAITS: Final = frozenset({Condition.wait.__code__, Thread.join.__code__})
"""What all waiting for other threads in the standard library comes down to, but for locks and what
is written in C: to start a thread, an event, a barrier, a queue, a future."""
_GENERATOR: Final = 0x20 | 0x80 | 0x200
"""The flags of code whose frame outlives a call (`inspect.CO_GENERATOR`, and those of async)."""


@final
class CallOfPackage(NamedTuple):
    """A call of this package by the program."""

    line: str
    """`file:line` of the caller."""
    given: tuple[Any, ...]
    """The numbers and strings that it was given, and a description of all else."""


@final
class Executed:
    """The calls outside of this package that a result may depend on."""

    def __init__(self) -> None:
        self.codes: dict[CodeType, dict[str, Any]] = {}
        """The code that ran, with its globals."""
        self.entered: set[CodeType] = set()
        """The code of this package that the program called."""
        self.impure: dict[str, str] = {}
        """The C functions whose results depend on something outside of Python, and their lines."""
        self.unseen: dict[str, None] = {}
        """The lines before which code ran that was not seen."""
        self.queries: dict[Any, None] = {}
        """The C functions that were called, without arguments, whose results can be compared."""
        self.waits: dict[str, None] = {}
        """The lines that wait for another thread."""
        self.reads_clock = False
        """True if a function was called that tells the time, or the like."""
        self.constants: Counter[Hashable] = Counter()
        """The constants of all graphs that were computed in the last call."""
        self.calls: list[CallOfPackage] | None = None
        """The calls of this package in the last call, in order; None if they are not noted."""

    @property
    def asks_outside(self) -> bool:
        """True if something outside of Python was asked for."""
        return bool(self.impure or self.queries)

    def add(self, other: Executed) -> None:
        """Add the calls of another."""
        if len(self.codes) > _MOST_CODES:  # it is made anew in each call
            self.codes.clear()
        self.codes.update(other.codes)
        self.entered |= other.entered
        self.impure.update(other.impure)
        self.unseen.update(other.unseen)
        self.queries.update(other.queries)
        self.waits.update(other.waits)
        self.reads_clock |= other.reads_clock

    def publish(self, other: Executed) -> None:
        """Add the calls of another in new objects: other threads may be at the old ones."""
        both = Executed()
        both.add(self)
        both.add(other)
        self.codes, self.entered, self.impure = both.codes, both.entered, both.impure
        self.unseen, self.queries, self.waits = both.unseen, both.queries, both.waits
        self.reads_clock = both.reads_clock

    def _call_of_c(self, function: Any, frame: FrameType) -> None:
        if not isinstance(function, BuiltinFunctionType):
            return
        owner, kind = function.__self__, _kind_of(function.__self__)
        if function.__name__ in _QUERIES or function.__name__ in _REGISTERED:
            is_query = function.__name__ in _QUERIES
            self.queries[function if is_query else get_cache_token] = None
            return
        if owner is None or isinstance(owner, ModuleType):
            module = (function.__module__ or getattr(owner, "__name__", "")).partition(".")
            self.reads_clock |= module[0] in _CLOCKS
            if function.__name__ not in _NOT_PURE and module[0] in _PURE | _CLOCKS:
                return
            if module[0] in ("gc", "sys") and function.__name__ in _HARMLESS:
                return
        elif issubclass(kind, _VALUES) or not is_opaque(kind):
            return
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.impure.setdefault(function.__qualname__, line)


@final
class _Resume:
    """Resumes a watch when it is deleted, with the frame that refers to it.

    In a debugger it is the frame's trace function, which calls the debugger's own.
    """

    __slots__ = ("_caller", "_instruction", "_traced_by", "_watch")

    def __init__(self, watch: _Watch, caller: FrameType | None, traced_by: Any) -> None:
        self._watch = watch
        self._caller = caller
        self._instruction = -1 if caller is None else caller.f_lasti
        self._traced_by = traced_by

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._traced_by is not None:
            self._traced_by = self._traced_by(frame, event, arg)

    def __del__(self) -> None:
        watch = self._watch
        if watch.paused_by == id(self) and watch.is_on and get_ident() == watch.thread:
            frame, caller = sys._getframe(1), self._caller
            if frame is not caller or frame.f_lasti != self._instruction:
                watch.note_unseen(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            watch.resume()


@final
class _Call:
    """A call that is open: what ran in it."""

    __slots__ = ("code", "executed", "is_apart", "uses_package")

    def __init__(self, executed: Executed, code: CodeType | None, is_apart: bool) -> None:
        self.executed = executed
        self.code = code
        self.is_apart = is_apart
        self.uses_package = False
        """True if it called this package."""


@final
class _Watch:
    """The profile function, and the calls that are open, the innermost last."""

    def __init__(self, notes_calls: bool = False) -> None:
        self.is_on = True
        self.thread = get_ident()
        self.paused_by = 0
        """The `id()` of the object that will resume it; 0 if it is not paused."""
        self.asked_by: FrameType | None = None
        """The frame of the program that called this package, while it is paused for that call."""
        self.constants: list[Hashable] = []
        self.ran = Executed()
        """All that ran in calls that matter, once the block has ended."""
        self.calls: list[CallOfPackage] | None = [] if notes_calls else None
        """The calls of this package; None if they are not to be noted."""
        self.generators = 0
        """The generators of this package that are running: the watch is not paused in these."""
        self.has_given_way = False
        """True from when the function waits for another thread until it uses this package."""
        self._calls = [_Call(Executed(), None, is_apart=False)]
        self._profile: Any = self.see
        """One object: Python up to 3.11 calls it without a reference, and it may be replaced."""

    def resume(self) -> None:
        """See what runs from here on."""
        self.paused_by, self.asked_by = 0, None
        sys.setprofile(self._profile)

    def pause(self, by: int) -> None:
        """See nothing that runs from here on, until the object with this `id()` resumes it."""
        sys.setprofile(None)
        self.paused_by, self.asked_by = by, None

    def before_garbage(self, phase: str, _: object) -> None:
        """Pause it while garbage is collected: `see` does so when this is called."""

    def after_garbage(self, phase: str, _: object) -> None:
        """Resume it when garbage has been collected."""
        if phase == "stop" and self.paused_by == _GARBAGE and get_ident() == self.thread:
            self.resume()

    def note_unseen(self, until: str) -> None:
        """Note that code ran, up to some line, that was not seen."""
        self._calls[-1].executed.unseen[until] = None

    def end(self) -> None:
        """End all calls that are open."""
        while len(self._calls) > 1:
            self._end(result=self)
        self._profile = self.asked_by = None
        self.ran = self._calls[0].executed
        self.ran.constants = Counter(self.constants)

    def note_lazy(self, tensors: Iterable[Tensor]) -> None:
        """Note the constants of what is not computed yet, if a function told the time."""
        if any([call.executed.reads_clock for call in self._calls]):
            for node in toposort([tensor.lazydata for tensor in tensors], everything=True):
                value = node.base_const()
                if value is not None and not isinstance(value, Expr):
                    self.constants.append(exact(value))

    def add(self, executed: Executed) -> None:
        """Add what an inner watch saw."""
        self._calls[-1].executed.add(executed)

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        """Note an event."""
        code = frame.f_code
        if _is_trusted(code) and code.co_flags & _GENERATOR and event in ("call", "return"):
            # Those that ran before the watch began, as that of this block, only return.
            self.generators = max(0, self.generators + (1 if event == "call" else -1))
        elif self.generators:
            pass  # what a generator of this package calls
        elif event == "c_call":
            if not _is_trusted(code):
                self._calls[-1].executed._call_of_c(arg, frame)
        elif event == "call":
            call = self._calls[-1]
            if code is _BEFORE_GARBAGE:
                self.pause(_GARBAGE)
                return
            if not _is_trusted(code):
                if code in _WAITS:
                    self._wait(frame)
                executed = Executed()
                executed.codes[code] = frame.f_globals
                self._calls.append(_Call(executed, code, _is_apart(frame)))
                return
            if self.has_given_way:
                self.has_given_way = False
                come_back()
            call.executed.entered.add(code)
            call.uses_package = True
            caller = frame.f_back
            if self.calls is not None and caller is not None and not _is_trusted(caller.f_code):
                self.calls.append(_call_of_package(frame, caller))
            resume = _Resume(self, caller, frame.f_trace)
            self.pause(id(resume))
            # A frame of this package would keep the one alive that has a `_Resume`.
            if caller is not None and not _is_trusted(caller.f_code):
                self.asked_by = caller
            frame.f_trace = resume
        elif event == "return" and len(self._calls) > 1 and not _is_trusted(code):
            self._end(arg)

    def _wait(self, frame: FrameType) -> None:
        """Let others go on: the function waits for another thread."""
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_filename.startswith(_INSTALLED):
            caller = caller.f_back
        line = "" if caller is None else f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self._calls[0].executed.waits[line] = None
        self.has_given_way = True
        give_way()

    def _end(self, result: Any) -> None:
        """End the innermost call.

        A call apart that returned nothing, and called nothing of this package, as one that logs,
        has no part in the result.
        """
        call, whole = self._calls.pop(), self._calls[-1]
        executed = call.executed
        is_apart = result is None and call.is_apart and not call.uses_package
        # One that raises an error, as where a file is missing, seems to return None.
        if is_apart and call.code is not None and executed.asks_outside:
            is_apart = is_procedure(call.code)
        if not is_apart:
            whole.executed.add(executed)
            whole.uses_package |= call.uses_package


_BEFORE_GARBAGE: Final = _Watch.before_garbage.__code__


def _call_of_package(frame: FrameType, caller: FrameType) -> CallOfPackage:
    """The call that has just begun."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    return CallOfPackage(line, tuple(map(_described, leaves(given, open_records=False))))


def _described(value: Any) -> Any:
    """A number or a string; a text that tells an array, a shape or a type from others."""
    if is_plain(value):
        return value
    if isinstance(value, Tensor):
        shape = getattr(value, "_shape", ())  # a new one has none yet
        return f"a tensor of shape {[size if isinstance(size, int) else '' for size in shape]}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        checksum = zlib.crc32(value.tobytes())
        return f"an array of shape {value.shape}, {value.dtype}, with the checksum {checksum:08x}"
    return f"a {type(value).__name__}"


def _kind_of(value: object) -> Any:
    """The type of an object; `value.__class__` may run its own code."""
    return type(value)


@functools.lru_cache(maxsize=1 << 14)
def _is_trusted(code: CodeType) -> bool:
    return code.co_filename.startswith(_TRUSTED)


@functools.lru_cache(maxsize=1 << 14)
def is_installed(code: CodeType) -> bool:
    """True for code of an installed library, or of this package."""
    return code.co_filename.startswith((*_INSTALLED, *_TRUSTED))


def _is_apart(frame: FrameType) -> bool:
    """True for a call of an installed library's function that cannot change what it is given."""
    return frame.f_code.co_filename.startswith(_INSTALLED) and all(
        [
            name in ("self", "cls") or is_plain(value) or (type(value) is dict and not value)
            for name, value in frame.f_locals.items()
        ]
    )


@final
class watching:  # a block, no thing
    """A block that adds to `executed` what runs in it, in this thread.

    A profile function that was set before is left out for as long.
    """

    __slots__ = ("_executed", "_noted", "_outer", "_profile", "_watch")

    def __init__(self, executed: Executed) -> None:
        self._executed = executed

    def __enter__(self) -> _Watch:
        state, watch = this_thread.state, _Watch(self._executed.calls is not None)
        self._watch, self._profile = watch, cast("Any", sys.getprofile())
        self._outer, self._noted = state.seeing, state.constants
        state.seeing, state.constants = watch, watch.constants
        gc.callbacks.insert(0, watch.before_garbage)
        gc.callbacks.append(watch.after_garbage)
        watch.resume()
        return watch

    def __exit__(self, *_: object) -> None:
        state, watch, profile = this_thread.state, self._watch, self._profile
        if watch.paused_by != id(sys._getframe().f_trace):
            watch.note_unseen("its end")
        sys.setprofile(None)
        gc.callbacks.remove(watch.before_garbage)
        gc.callbacks.remove(watch.after_garbage)
        watch.is_on, state.seeing, state.constants = False, self._outer, self._noted
        if hasattr(profile, "enable"):  # cProfile's, which is no function
            profile.enable()
        else:
            sys.setprofile(profile)
        watch.end()
        self._executed.publish(watch.ran)
        self._executed.constants = watch.ran.constants
        self._executed.calls = watch.calls
        if self._outer is not None:
            self._outer.add(watch.ran)
