"""`TinyJit`: run a function in its first call, capture it in the second, then replay it."""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import inf
from time import thread_time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload
from weakref import WeakSet

from ferrule.base.callbacks import call_back
from ferrule.base.calls import explains, whole
from ferrule.base.config import config
from ferrule.base.containers import leaves
from ferrule.base.helpers import check_function, not_a_function
from ferrule.base.threadstate import left_behind, this_thread
from ferrule.device.capture import (
    GraphException,
    JitError,
    JitItem,
    PlaceHolder,
    get_input_replace,
    get_jc_idxs_with_updatable_launch_dims,
    get_jc_idxs_with_updatable_var_vals,
    get_jit_stats,
    is_capturing,
    user_location,
)
from ferrule.engine.realize import settle_writes
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import ShapeError
from ferrule.ir.storage import turn
from ferrule.jit.before import compute_lazy
from ferrule.jit.containers import held_in
from ferrule.jit.exclusion import alone, running, wait_for_others
from ferrule.jit.executed import Executed, watching
from ferrule.jit.fast_path import Recent
from ferrule.jit.found import FoundInputs
from ferrule.jit.hooks import code_of
from ferrule.jit.inputs import Arguments, Chain, memories_of, read_arguments
from ferrule.jit.numbers import Numbers
from ferrule.jit.record import NotReplayable, capture_call
from ferrule.jit.replay import Replay
from ferrule.jit.report.check import call_checked
from ferrule.jit.report.messages import Messages, changes, failure, out_of_range
from ferrule.jit.report.signature import CallKey
from ferrule.jit.results import tensors_in
from ferrule.jit.state import State
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef, before_writes
from ferrule.tensor.extents import Extents, Generalised, extents_of, noting_extents

if TYPE_CHECKING:
    from ferrule.jit.report.explain import Explanation

__all__ = [
    "GraphException",
    "JitError",
    "JitItem",
    "PlaceHolder",
    "ReturnType",
    "TinyJit",
    "get_input_replace",
    "get_jc_idxs_with_updatable_launch_dims",
    "get_jc_idxs_with_updatable_var_vals",
    "get_jit_stats",
]

not_a_function(__name__, "ferrule.TinyJit(function) captures a function")

ReturnType = TypeVar("ReturnType")
"""The return type of the captured function."""

T = TypeVar("T")


@final
class _Undecorated:
    """The result, to type checkers, of a captured function that is still to be given."""


_MOST_REPLAYS = 32
_MOST_UNUSED = 2
"""The limit of replays that were never used: from then on, capture a signature only if it comes a
second time. With 8, a training step of a small GPT with another length in each call compiled 13
times instead of 5 (24 s of processor time instead of 11 for 100 lengths, 2026-11)."""
_MOST_REFUSALS = 3
_CALLS_BETWEEN_ATTEMPTS = 16
_ALL_IN_VAIN = (
    f"{_MOST_REFUSALS} captures in a row gave no replay that was used; one call of "
    f"{_CALLS_BETWEEN_ATTEMPTS} is tried again"
)
_REPLAYED_OFTEN = "it is replayed so often that kernels for its sizes alone pay"
_SEEN_ONCE = (
    f"{_MOST_UNUSED} replays were never used, so a call is captured when it comes the second time; "
    "pass what changes in every call as a Tensor or a bound Variable"
)
_NO_ROOM = (
    f"there are {_MOST_REPLAYS} replays, all used since a call like this one; give the function "
    "fewer kinds of arguments, such as shapes padded to a few sizes"
)


class TinyJit(Generic[ReturnType]):
    """A function of tensors whose kernels are recorded in one call and replayed in later ones.

    The first call runs the function, the second runs and records it, all others replay what ran: no
    Python of the function's own is executed. Results are new tensors each time. A call with other
    shapes, dtypes, devices, views, aliases or Python values than before is recorded anew; so is one
    after a number changed that the function finds in an enclosing scope, in its module or in an
    attribute. With `JIT=0` the function just runs.

    Such a call is recorded at once. If two recordings were never replayed, later ones wait for
    the second call of their kind; 32 are kept.

    On methods each instance has a state of its own.

    With `check=n` the first replay of each recording, and then every n-th, is compared with a plain
    call in the same state, which is the one that counts; with `JIT=3` all replays of all functions
    are. `check` can also be given alone, to decorate: `@TinyJit(check=100)`.

    Raises `JitError` where the function reads a tensor's values (`item`, `tolist`, `numpy`), or
    returns anything but tensors. Raises it as well where a check finds a difference.

    >>> from ferrule import Tensor
    >>> @TinyJit
    ... def double(x):
    ...     return x * 2
    >>> [double(Tensor([i])).item() for i in range(4)]
    [0, 2, 4, 6]
    """

    if not TYPE_CHECKING:  # where `__new__` has to make an instance

        @explains
        def __new__(cls, fxn=None, check=None):
            """A captured function; with `check` alone, a decorator that captures one."""
            if check is not None and whole(check, "[TinyJit] check") < 0:
                raise ValueError(f"[TinyJit] check is {check}; one in so many replays is checked")
            if fxn is None and check is not None:
                return functools.partial(cls, check=check)
            check_function(fxn, "TinyJit")
            return object.__new__(cls)

    @overload
    def __init__(self, fxn: Callable[..., ReturnType], check: int | None = None) -> None: ...

    @overload
    def __init__(self: TinyJit[_Undecorated], *, check: int) -> None: ...

    def __init__(self, fxn: Any = None, check: int | None = None) -> None:
        functools.update_wrapper(self, fxn, updated=())
        self.fxn = fxn
        self.check = check or 0
        """One replay in so many is compared with a plain call; 0: none is."""
        self._instances: dict[int, tuple[weakref.ref[Any], TinyJit[ReturnType]]] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets everything that was captured, and counts calls from 0 again."""
        self.cnt = 0
        """The number of calls so far."""
        self.jit_cache: list[JitItem] = []
        """The items of the replay used last."""
        self.input_replace: dict[tuple[int, int], int] = {}
        """The positions of that replay's inputs and results: `{(item, position): number}`."""
        self.ret: ReturnType | None = None
        """The result of the last call."""
        self.expected_vals: tuple[Variable, ...] = ()
        """The variables that the last call was given values for."""
        self.expected_name_sts_dtype: tuple[Any, ...] = ()
        """The signature of the last call: shapes, dtypes and whatever else replays depend on."""
        self._replays: OrderedDict[tuple[Any, ...], Replay] = OrderedDict()
        self._reachable: dict[int | None, WeakSet[StorageRef]] = {}
        """The memory in reach without the arguments: serial numbers, and the cells in each."""
        self._outside: OrderedDict[tuple[Any, ...], tuple[Numbers, FoundInputs]] = OrderedDict()
        """The other inputs of the function, for each signature of its arguments."""
        self._recent: Recent | None = None
        self._next_slow = 0
        """The number of the next call that must not take the fast path: the first call, and one
        whose replay may be checked."""
        self._cells: frozenset[int] = frozenset()
        """The cells of the tensors that it could reach when it ran last, by `id()`."""
        self._writes = False
        """True if it writes to memory from outside."""
        self._writes_arguments = False
        """True if it writes to some of its arguments."""
        self._copied: set[int] = set()
        """The numbers of the arguments to copy: views whose offset changes between calls."""
        self._parts: dict[tuple[Any, ...], dict[int, Chain]] = {}
        """The last position of each view, for signatures without positions."""
        self._executed = Executed()
        """The code that its calls ran."""
        self._refusals = 0
        """The number of captures in a row that gave no replay, or one that was never used."""
        self._refusal = ""
        """The reason for the last of these."""
        self._seen: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        """The last call with each signature that is captured only if it comes again."""
        self._extents: dict[int | str, Extents] = {}
        """The variables that arguments have as sizes, as the function noted in a plain call."""
        self._learns_extents = True
        """False once a replay was not right for all sizes."""
        self._messages = Messages(getattr(self, "__name__", self.fxn))

    @overload
    def __call__(self: TinyJit[_Undecorated], fxn: Callable[..., T], /) -> TinyJit[T]: ...

    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> ReturnType: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, or replays it."""
        call = self._call_with_extents if self._extents else self._call
        return call(self.fxn, args, kwargs)

    def explain(self) -> Explanation:
        """What the replay used last runs, as text: `print(f.explain())`.

        For each kernel in order: the time of a run; operations a second, and their share of what a
        product of matrices reaches; bytes a second, and their share of what `x + 1` reaches with as
        many bytes; the line that asked for it; its operands; its schedule. Then the inputs, the
        tensors and numbers that the function found by itself, what it writes to, and memory.

        The kernels run a few times, on memory of their own: inputs are zeros, and all tensors keep
        their contents. `kernels` of the returned value has the same as data.

        Without a replay the text says why there is none, and what to do.

        Raises `JitError` inside of a captured function.

        >>> from ferrule import Tensor
        >>> double = TinyJit(lambda x: x * 2)
        >>> for i in range(3):
        ...     y = double(Tensor([i], device="CPU"))
        >>> [(kernel.outputs, kernel.inputs) for kernel in double.explain().kernels]
        [(('result (1,) int32',), ('x (1,) int32',))]
        """
        return self._explain(self.fxn)

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> Any:
        """Writes what the replay used last runs to files that need no framework.

        The format is that of the path's suffix, unless it is given: `so` (a shared library with a
        header in C), `a` (a static one), `ferrule` (for `ferrule.load`), and others; docs/export.md
        has them all. The files are compared with a replay before this returns; the returned object
        has their names, and says what was compared.

        Raises `ExportError` if there is no replay yet, and for what no exported program can do.

        >>> import tempfile
        >>> from ferrule import Tensor
        >>> double = TinyJit(lambda x: x * 2)
        >>> for i in range(3):
        ...     y = double(Tensor([i], device="CPU"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported = double.export(f"{folder}/double.so")
        >>> [file.name for file in exported.files]
        ['double.so', 'double.h', 'double.py']
        """
        return _export(self, path, format, **options)

    def last_replay(
        self, function: Callable[..., Any] | None = None
    ) -> tuple[Replay | None, CallKey, Callable[..., Any]]:
        """The replay used last, or None; its signature; and the function that was captured.

        For code of this package that looks into replays. The caller holds the lock `turn`.
        """
        key = self.expected_name_sts_dtype
        return self._replays.get(key), CallKey(key), function or self.fxn

    def _explain(self, function: Callable[..., Any]) -> Explanation:
        from ferrule.jit.report.explain import Explanation, explained  # imported for this only

        if is_capturing():
            raise JitError(
                f"{user_location()}: explain() inside of a captured function; call it afterwards"
            )
        title = f"TinyJit {self._messages.name}"
        call, reason = self._messages.last_plain
        with turn:
            key = self.expected_name_sts_dtype
            replay = self._replays.get(key)
            if replay is None and call < 0:
                return Explanation(f"{title}: there is no replay yet; call it twice")
            if call == self.cnt - 1:
                title += f": the last call ran plainly because {reason}"
            if replay is None:
                return Explanation(title)
            if call == self.cnt - 1:
                title += "; the last replay"
            others = {other: one for other, one in self._replays.items() if one is not replay}
            return explained(title, replay, key, others, function)

    def _call_with_extents(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ReturnType:
        """`_call`, with arguments as tensors whose sizes vary."""
        if is_capturing() or this_thread.state.transforming:
            return self._call(function, args, kwargs)
        general = Generalised(self._extents, args, kwargs)
        try:
            with before_writes(general.refuse_write):
                result = self._call(function, general.args, general.kwargs)
        except ShapeError as error:
            if general.twins:
                shapes = ", ".join([str(twin.shape) for twin, _, _ in general.twins.values()])
                error.add_note(
                    "this captured function calls a model with bounds, so sizes of its arguments "
                    f"are variables: {shapes}. A tensor from outside of the function does not fit "
                    "them: make it an argument, too, and each size has a capture; or load the "
                    "model without bounds"
                )
            raise
        if general.twins:
            self.ret = result = general.result(result)
        return result

    def _call(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ReturnType:
        state, settings = this_thread.state, config()
        if state.observer is not None or state.transforming or not settings.JIT:
            # Inside another capture, the kernels of this function become part of that one. A
            # transformation has to see every operation of the function.
            self._messages.plain(self.cnt, _reason_to_pass_on())
            result = call_back(function, *args, **kwargs)
        elif self.cnt == 0:
            self._messages.plain(self.cnt, "it is the first call; the next one is captured")
            result = self._run(function, args, kwargs)
            self._next_slow = sys.maxsize
        else:
            if self.cnt >= self._next_slow:
                self._recent = None
                self._next_slow = sys.maxsize
            with turn:  # the guards of a replay must hold until it is over
                if running:
                    wait_for_others(self._cells_of(args, kwargs))
                if state.written or left_behind:
                    settle_writes()
                recent, self._recent = self._recent, None
                given = None if recent is None else recent.given(args, kwargs, state, settings)
                if recent is not None and given is not None:
                    tensors, buffers, var_vals = given
                    replay = recent.replay
                    is_fit = not replay.limits or replay.takes(var_vals)
                    if not is_fit or replay.watch.problem(tensors, buffers) is not None:
                        given = None
                    else:
                        self._recent = recent
                        result = replay.run(tensors, buffers, var_vals)
            if given is None:
                if recent is not None:
                    recent.replay.last_call = self.cnt
                result = self._run_again(function, args, kwargs)
        self.cnt += 1
        self.ret = result
        return result

    def _run(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ReturnType:
        """Calls the function without a capture, and notes if it writes to memory from outside."""
        given = tensors_in([*args, kwargs])
        reached = given
        if not self._writes or not self.cnt:  # or else there is nothing to learn from the others
            others = [leaf for leaf in leaves([*args, kwargs]) if not isinstance(leaf, Tensor)]
            reached = [*given, *State([*code_of(function), *others], None).tensors()]
            self._cells = frozenset([id(tensor._cell) for tensor in reached])
        with alone(self._cells_of(args, kwargs) | {id(self)}):
            with turn:
                compute_lazy(reached)  # so the captured call has the same graph, already planned
                cells = [tensor._cell for tensor in reached]
                before = list(map(_version, cells))
            with noting_extents() as noted, watching(self._executed) as watch:
                result = function(*args, **kwargs)
                watch.note_lazy(tensors_in([result]))
            changed = list(map(operator.ne, map(_version, cells), before))
        if any(changed):
            self._writes = True
            self._writes_arguments |= any(changed[: len(given)])
            self._recent = None
        if noted and self._learns_extents and not self._writes_arguments:
            self._extents |= extents_of(noted, args, kwargs)
        return result

    def _run_again(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ReturnType:
        """A call that the fast path does not take."""
        with alone(self._cells_of(args, kwargs) | {id(self)}) as may_be_captured:
            if may_be_captured:
                return self._replay(function, args, kwargs)
            return self._run(function, args, kwargs)

    def _cells_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """The cells of the tensors that a call may use, by `id()`."""
        return self._cells | {id(tensor._cell) for tensor in tensors_in([*args, kwargs])}

    def _replay(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ReturnType:
        with turn:
            arguments, replay, obstacle = self._matching(function, args, kwargs)
            problem = is_out_of_range = None
            if replay is not None:
                tensors, buffers = arguments.tensors, arguments.buffers
                problem = replay.watch.problem(tensors, buffers)
                is_out_of_range = problem is None and not replay.takes(arguments.var_vals)
                if problem is None and not is_out_of_range:
                    self._refusals = 0
                    if replay.runs >= replay.batch.enough:
                        return self._capture_for_its_sizes(function, args, kwargs, arguments)
                    replay.last_call = self.cnt
                    self._show(arguments, replay)
                    if self._is_due(replay):
                        return self._checked(function, args, kwargs, arguments, replay)
                    self._recent = Recent.of(replay, arguments, args, kwargs)
                    if self.check:
                        self._next_slow = self.cnt + self.check - replay.runs % self.check
                    started = thread_time()
                    result: ReturnType = replay.run(tensors, buffers, arguments.var_vals)
                    if not replay.batch.is_timed:
                        replay.batch.note_time(thread_time() - started)
                    if not replay.batch.is_timed:
                        self._next_slow = self.cnt + 1
                    elif replay.batch.enough < inf:
                        left = self.cnt + int(replay.batch.enough) - replay.runs
                        self._next_slow = min(self._next_slow, max(left, self.cnt) + 1)
                    return result
        if replay is not None and is_out_of_range:
            self._messages.plain(self.cnt, out_of_range(replay, arguments.var_vals))
            if self._extents:  # the function computes with the sizes: a capture for each
                self._extents, self._learns_extents = {}, False
            return self._run(function, args, kwargs)  # raises the error for the value out of range
        reasons = [obstacle] if obstacle else []
        if replay is not None and problem is not None:
            if config().DEBUG >= 1:
                reasons = failure(problem, replay, arguments.key, function)
            del self._replays[arguments.key]
            if replay.runs == 0:
                self._refusals += 1
                self._refusal = problem
        hopeless = self._reason_to_wait(arguments)
        if hopeless is not None:
            self._messages.plain(self.cnt, hopeless, lambda: self._changes(arguments, function))
            return self._run(function, args, kwargs)
        with turn:
            return self._capture(function, args, kwargs, reasons)

    def _capture_for_its_sizes(
        self,
        function: Callable[..., ReturnType],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        arguments: Arguments,
    ) -> ReturnType:
        """Captures a call anew, with kernels for its sizes alone instead of any."""
        del self._replays[arguments.key]
        state = this_thread.state
        state.specialises = True
        try:
            return self._capture(function, args, kwargs, [_REPLAYED_OFTEN])
        finally:
            state.specialises = False

    def _is_due(self, replay: Replay) -> bool:
        """True if the next run of a replay is to be checked."""
        return config().JIT >= 3 or bool(self.check and replay.runs % self.check == 0)

    def _checked(
        self,
        function: Callable[..., ReturnType],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        arguments: Arguments,
        replay: Replay,
    ) -> ReturnType:
        """Calls the function, and compares a replay with that; one that differs is not kept."""
        key = arguments.key
        try:
            result: ReturnType = call_checked(function, args, kwargs, arguments, replay)
        except JitError:
            self._replays.pop(key, None)
            raise
        return result

    def _matching(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Arguments, Replay | None, str]:
        """The arguments in the form that replays take, and the replay for them, if there is one.

        The text is the reason why there is none in spite of its signature.
        """
        obstacle = ""
        arguments = self._read(args, kwargs)
        replay = self._find(arguments)
        if replay is None and self._has_other_parts(args, kwargs):
            arguments = self._read(args, kwargs)
            replay = self._find(arguments)
        if replay is not None and replay.watch.overlaps(arguments.buffers):
            self._writes = True
            arguments, _ = self._read_anew(function, args, kwargs)
            replay = self._find(arguments)
            if replay is not None and replay.watch.overlaps(arguments.buffers):
                replay = None
                obstacle = "a gradient shares memory with another tensor that the function uses"
        if replay is not None and not replay.fills.isdisjoint(held_in([*args, kwargs])):
            replay = None
            obstacle = "an argument is a container that the function also fills by itself"
        return arguments, replay, obstacle

    def _find(self, arguments: Arguments) -> Replay | None:
        """The replay of a call with these arguments, if there is one.

        Completes the signature: adds the numbers, gradients and states that the function finds by
        itself.
        """
        found = self._outside.get(arguments.key)
        if found is None:
            return None
        numbers, inputs = found
        arguments.explicit = len(arguments.tensors)
        signature = inputs.add_to(arguments.tensors, arguments.buffers)
        arguments.key = CallKey((arguments.key, numbers.key(), inputs.places, signature))
        return self._replays.get(arguments.key)

    def _read_anew(
        self, function: Callable[..., ReturnType], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Arguments, State]:
        """The arguments, after a new walk over what the function can reach by itself; and that."""
        objects = self._read(args, kwargs).objects
        state = State([*code_of(function), *objects], self._executed)
        tensors = state.tensors()
        self._cells = frozenset([id(tensor._cell) for tensor in tensors])
        self._reachable = {}
        for tensor in tensors:
            for serial in memories_of(tensor):
                self._reachable.setdefault(serial, WeakSet()).add(tensor._cell)
        return self._read(args, kwargs), state

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        copied = frozenset() if self._writes_arguments else self._copied
        return read_arguments(args, kwargs, self._reachable, self._writes, copied)

    def _has_other_parts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if a call differs from an earlier one only in the positions of its views.

        The views that moved are copied from then on, so that one replay serves all positions.
        """
        if self._writes_arguments:
            return False
        reachable, writes = self._reachable, self._writes
        arguments = read_arguments(args, kwargs, reachable, writes, self._copied, True)
        chains = arguments.chains
        if not chains:
            return False
        before = self._parts.get(arguments.key, chains)
        if len(self._parts) >= _MOST_REPLAYS:
            self._parts.clear()
        self._parts[arguments.key] = chains
        moved = {number for number in chains if chains[number] != before[number]}
        self._copied |= moved
        return bool(moved)

    def _reason_to_wait(self, arguments: Arguments) -> str | None:
        """The reason why a capture would most likely never be replayed; None if it may be."""
        if self._refusals >= _MOST_REFUSALS:
            is_attempt = self.cnt % _CALLS_BETWEEN_ATTEMPTS == 0
            return None if is_attempt else f"{_ALL_IN_VAIN}; the last one because {self._refusal}"
        has_room = len(self._replays) < _MOST_REPLAYS
        if has_room and sum([r.runs == 0 for r in self._replays.values()]) < _MOST_UNUSED:
            return None
        # A number that changes in every call would cause a capture in every call. A capture takes
        # a hundred times as long as a call.
        last_call = self._seen.pop(arguments.key, None)
        self._seen[arguments.key] = self.cnt
        if len(self._seen) > 2 * _MOST_REPLAYS:
            self._seen.popitem(last=False)
        if last_call is None or has_room:
            return _SEEN_ONCE if last_call is None else None
        # A new replay evicts the least recently used one. Allow that only if that one was not used
        # since this signature came last: otherwise a loop over more signatures than there is room
        # for would always evict the replay that it needs next.
        is_needed = next(iter(self._replays.values())).last_call > last_call
        return _NO_ROOM if is_needed else None

    def _changes(self, arguments: Arguments, function: Callable[..., Any]) -> list[str]:
        """The differences between a call and the last one that was captured or replayed."""
        last = self.expected_name_sts_dtype
        return changes(last, arguments.key, self._replays.get(last), function)

    def _capture(
        self,
        function: Callable[..., ReturnType],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reasons: Sequence[str],
    ) -> ReturnType:
        """Runs the function and captures it; `reasons` tell why the replay for it was not right."""
        arguments, state = self._read_anew(function, args, kwargs)
        result: ReturnType
        known = self._outside.get(arguments.key)
        found = FoundInputs() if known is None else known[1]
        self._executed.calls = [] if self.check or config().JIT >= 3 else None
        result, replay = capture_call(
            function, args, kwargs, arguments, self._writes, found, state, self._executed
        )
        calls, self._executed.calls = self._executed.calls, None
        if isinstance(replay, NotReplayable):
            self._refusals += 1
            self._refusal = str(replay)
            self._messages.plain(self.cnt, self._refusal)
            return result
        replay.calls = calls
        self._writes_arguments |= replay.watch.writes_arguments()
        self._outside[arguments.key] = replay.numbers, replay.found
        self._outside.move_to_end(arguments.key)
        kept = replay.numbers.key(), replay.found.places, replay.found_key
        arguments.key = CallKey((arguments.key, *kept))
        self._messages.captured(
            replay.batch.kernels, lambda: reasons or self._changes(arguments, function)
        )
        self._replays[arguments.key] = replay
        replay.last_call = self.cnt
        while len(self._replays) > _MOST_REPLAYS:
            self._replays.popitem(last=False)
        while len(self._outside) > _MOST_REPLAYS:
            self._outside.popitem(last=False)
        self._show(arguments, replay)
        return result

    def _show(self, arguments: Arguments, replay: Replay) -> None:
        """Fills in the documented attributes."""
        if self.expected_name_sts_dtype is not arguments.key:
            self._replays.move_to_end(arguments.key)
            self.jit_cache = replay.batch.items
            self.input_replace = replay.batch.input_replace
            self.expected_vals = tuple(sorted(arguments.var_vals, key=lambda v: v.name))
            self.expected_name_sts_dtype = arguments.key

    # -- methods ---------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """On an instance, the instance's own captured method."""
        return self if instance is None else BoundJit(self._of(instance), instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Copies and pickles the function only: a copy captures its own calls."""
        is_global = _found_by_name(self.fxn) is self
        return str(self.fxn.__qualname__) if is_global else (TinyJit, (self.fxn, self.check))

    def _of(self, instance: Any) -> TinyJit[ReturnType]:
        """The state for one instance; it lives as long as the instance.

        Raises `JitError` if instances of the class cannot be referred to weakly.
        """
        key = id(instance)
        found = self._instances.get(key)
        if found is None:
            forget = functools.partial(_forget, weakref.ref(self), key)
            try:
                known = weakref.ref(instance, forget)
            except TypeError as error:
                kind = type(instance).__name__
                raise JitError(
                    f"a captured method of {kind}: nobody is told when an instance of it is gone; "
                    f"add '__weakref__' to its __slots__, or capture a function of the {kind}"
                ) from error
            found = self._instances[key] = known, TinyJit(self.fxn, self.check)
        return found[1]


def _export(step: Any, path: str | os.PathLike[str], format: str | None, **options: Any) -> Any:
    # The room of exports is above this one, and imports the compiler.
    return import_module("ferrule.export").export(step, path, format, **options)


def _reason_to_pass_on() -> str:
    """The reason why a call is neither captured nor replayed, whatever its arguments."""
    if not config().JIT:
        return "JIT is 0"
    if is_capturing():
        return "it is called by a captured function, whose replays contain it"
    return "a transformation, such as grad or vmap, calls it; capture the transformed function"


def _version(cell: StorageRef) -> tuple[int, int]:
    """The version of a tensor's contents: it changes with every write, even of equal contents.

    A write of equal contents counts, because later calls may write other ones.
    """
    return cell.value.node.serial, 0 if cell.storage is None else cell.storage.writes


def _found_by_name(function: Any) -> Any:
    """The object that a function's module has under its name: a TinyJit, if it is a decorator."""
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found


def _forget(jit: weakref.ref[TinyJit[Any]], key: int, _: object) -> None:
    owner = jit()
    if owner is not None:
        owner._instances.pop(key, None)


@final
class BoundJit(Generic[ReturnType]):
    """A captured method of one instance, with all attributes of a `TinyJit`."""

    __slots__ = ("_instance", "_jit")

    def __init__(self, jit: TinyJit[ReturnType], instance: Any) -> None:
        self._jit = jit
        self._instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> ReturnType:
        """Calls the method, or replays it."""
        jit = self._jit
        call = jit._call_with_extents if jit._extents else jit._call
        return call(types.MethodType(jit.fxn, self._instance), args, kwargs)

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> Any:
        """Writes what the replay used last runs to files; see `TinyJit.export`."""
        return _export(self, path, format, **options)

    def last_replay(self) -> tuple[Replay | None, CallKey, Callable[..., Any]]:
        """The replay used last; see `TinyJit.last_replay`."""
        return self._jit.last_replay(types.MethodType(self._jit.fxn, self._instance))

    def explain(self) -> Explanation:
        """What the replay used last runs; see `TinyJit.explain`."""
        return self._jit._explain(types.MethodType(self._jit.fxn, self._instance))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit, name)
