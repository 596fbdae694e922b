"""Checks of replays: a replay and a plain call, both from the same state, are compared.

The replay runs first, and all that it wrote to gets its earlier contents back. Then the function is
called. So what the function does besides computing happens once, and the outcome is that of the
plain call. Its kernels are made as those of a capture are: for these lengths and these constants.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.base.config import config
from ferrule.base.containers import mapped
from ferrule.base.interrupts import Whole
from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.device import BufferCopy, CompiledASTRunner, JITRunner, observer
from ferrule.device.capture import GraphExecutor, JitError, JitItem
from ferrule.device.runner import ASTRunner, watched_since
from ferrule.engine.random import streams
from ferrule.engine.realize import others_turn, realize
from ferrule.ir.buffer import Buffer, newest_serial
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import ConstBuffer, LazyOp
from ferrule.ir.storage import keep_written, pending_writes
from ferrule.jit.before import compute_lazy
from ferrule.jit.executed import CallOfPackage, Executed, watching
from ferrule.jit.hooks import code_of
from ferrule.jit.inputs import Arguments
from ferrule.jit.places import Place
from ferrule.jit.replay import Replay
from ferrule.jit.report.ways import Ways
from ferrule.jit.results import tensors_in
from ferrule.jit.sharing import Sharing
from ferrule.jit.state import State
from ferrule.jit.values import form
from ferrule.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_MOST_SHOWN = 3
"""The number of differences that an error lists."""
_ROUNDING = 1 << 10
"""Units in the last place of a tensor's largest element that rounding may make. Not measured."""
_WAY_OUT = "pass it as an argument, or keep it in a tensor"
_NAME = "\0"
"""The stand-in for the name of what is compared: names are looked for where there is a
difference."""


def call_checked(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    arguments: Arguments,
    replay: Replay,
) -> Any:
    """The result of a plain call, after a replay of the same call was compared with it.

    The guards of the replay hold, and the caller has the lock `turn`, which is released while the
    function runs. Raises `JitError` for a difference, when the plain call has been made.
    """
    check = _Check(function, args, kwargs, arguments)
    replayed = check.replay(replay)
    plain = _Plain()
    try:
        result = check.call(plain)
    except Exception as error:
        if isinstance(replayed, Exception) or isinstance(error, MemoryError):
            raise
        problem = f"gives a result where a plain call raises {type(error).__name__}: {error}"
        raise JitError(check.message(problem, plain.source(replay))) from error
    if isinstance(replayed, Exception):
        problem = f"raises {type(replayed).__name__} where a plain call does not: {replayed}"
        raise JitError(check.message(problem, plain.source(replay))) from replayed
    may_round = bool(arguments.parts or arguments.closed_over) or plain.has_other_programs(replay)
    found = list(check.differences(replayed, result, may_round))
    if found and check.is_disturbed(plain):
        if config().DEBUG >= 1:
            print("TinyJit: not compared, as another thread wrote to what the call uses")
    elif found:
        more = len(found) - _MOST_SHOWN
        shown = [*found[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        problem = f"differs from a plain call in the same state: {'; '.join(shown)}"
        raise JitError(check.message(problem, plain.source(replay)))
    return result


@final
@dataclass
class _Copy:
    """A tensor of an outcome, as it was."""

    kind: dict[str, Any]
    """The shape, the dtype and the like."""
    values: Array | None
    """The elements; None for a tensor from before the call, whose memory is compared by itself."""
    known: int
    """The `id()` of a tensor from before the call; 0 for one that the call made."""
    gradient: _Copy | None


@final
@dataclass
class _Outcome:
    """The outcome of a replay."""

    result: Any
    """The result, with a `_Copy` for each tensor."""
    places: list[tuple[Place, Any]]
    """The places that it would put tensors in, with a `_Copy` for each."""
    contents: list[Array | None]
    """The contents of the memory from before the call."""
    streams: list[Array]
    """The positions of the streams of random numbers."""


@final
class _Check:
    """One checked call: the tensors from before it, and how they are compared afterwards."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        arguments: Arguments,
    ) -> None:
        self._function = function
        self._args, self._kwargs = args, kwargs
        self._arguments = arguments
        self._given = arguments.tensors[: arguments.explicit]
        self._leaves = list(map(id, tensors_in([*args, kwargs])))
        # Of everything in reach, whatever code is known to run.
        self._state = State([*code_of(function), *arguments.objects], None)
        tensors = dict.fromkeys([*self._given, *self._state.tensors()])
        compute_lazy(tensors)
        self._streams = streams()
        realize([stream.node for stream in self._streams])
        self._known = {id(tensor): weakref.ref(tensor) for tensor in tensors}
        """The tensors from before the call, by `id()`."""
        alone = {id(tensor._cell): weakref.ref(tensor) for tensor in tensors}
        self._cells = alone.keys()
        """The cells from before the call, by `id()`; as long as a tensor has one, none is new."""
        self._tensors = list(alone.values())
        """A tensor for each of the cells."""
        self._gradients = [
            None if tensor.grad is None else weakref.ref(tensor.grad) for tensor in self._given
        ]
        self._serials: list[int] = []
        """The serials of the versions of these tensors before the plain call."""
        self._memory: list[tuple[Buffer, int]] = []
        """The memory of these tensors and of the streams, and the number of writes to it so far."""
        self._written: frozenset[int] = frozenset()
        """The serial numbers of the memory that the replay wrote to."""
        self._changed: list[Place] = []
        """The places where the plain call left another tensor, or none."""

    # -- the two calls -----------------------------------------------------------------------------

    def replay(self, replay: Replay) -> _Outcome | Exception:
        """The outcome of a replay, or the error that it raises; all is as before afterwards."""
        memory = list(dict.fromkeys(replay.written(self._arguments.buffers)))
        self._written = frozenset([buffer.serial for buffer in memory])
        outcome: _Outcome | Exception
        with Whole():
            kept = [(buffer, Buffer(buffer.device, buffer.size, buffer.dtype)) for buffer in memory]
            for buffer, contents in kept:
                _fill(contents, buffer)
            try:
                outcome = self._outcome(replay)
            except MemoryError:
                raise
            except Exception as error:
                outcome = error.with_traceback(None)
            finally:
                for buffer, contents in kept:
                    _fill(buffer, contents)
                    buffer.note_write()
                for tensor in self._alive():
                    if tensor is not None:
                        tensor._cell.forget_views()
        self._serials = list(map(_serial, self._alive()))
        self._memory = [(memory, memory._version) for memory in self._memory_now()]
        return outcome

    def _memory_now(self) -> list[Buffer]:
        cells = [tensor._cell for tensor in self._alive() if tensor is not None]
        nodes = [*[cell.value.node for cell in cells], *[one.node for one in self._streams]]
        found = [node.realized for node in nodes]
        return list(dict.fromkeys([buffer.base for buffer in found if buffer is not None]))

    def _outcome(self, replay: Replay) -> _Outcome:
        arguments = self._arguments
        tensors, buffers = list(arguments.tensors), list(arguments.buffers)
        result, put = replay.run_apart(tensors, buffers, arguments.var_vals)
        places = [(place, content) for place, content in put if self._is_from_before(place)]
        for place, content in put:
            if not self._is_from_before(place):
                place.set(content)
        return _Outcome(
            self._copied(result),
            [(place, self._copied(content)) for place, content in places],
            [None if tensor is None else _contents(tensor) for tensor in self._alive()],
            [_elements(stream.node) for stream in self._streams],
        )

    def call(self, plain: _Plain) -> Any:
        """The result of a plain call, which is computed with all that the call leaves lazy.

        As in a capture, all is computed together, and several views by way of their base.
        """
        taken, last = this_thread.state.taken, LazyBuffer.empty((), dtypes.uint8, "").serial
        with plain.noting(), keep_written(last):
            with others_turn(), watching(plain.executed):
                result = self._function(*self._args, **self._kwargs)
            self._changed = self._changes()
            left = [place.get() for place in self._changed]
            found = [tensor for content in (result, *left) for tensor in tensors_in([content])]
            made = [
                tensor for tensor in dict.fromkeys(found) if id(tensor._cell) not in self._cells
            ]
            made += [tensor.grad for tensor in made if tensor.grad is not None]
            numbers = {tensor: number for number, tensor in enumerate(self._given)}
            sharing = Sharing(numbers, made, self._arguments.var_vals.keys())
            alone = [tensor for tensor in made if tensor not in sharing]
            nodes = [tensor.lazydata for tensor in [*alone, *sharing.wholes.values()]]
            nodes = [node for node in nodes if node.base_const() is None]
            realize(list(dict.fromkeys([*nodes, *[one.node for one in pending_writes()]])))
        plain.takes_others = this_thread.state.taken != taken
        return result

    def is_disturbed(self, plain: _Plain) -> bool:
        """True if another thread wrote to memory of the call while the function ran.

        Such a write may have been computed by this thread, or by the other one.
        """
        known = {memory.serial for memory, _ in self._memory}
        moved = [memory.serial for memory in self._memory_now() if memory.serial not in known]
        return (
            plain.takes_others
            or not plain.writes.keys() >= {*moved}
            or any(
                memory._version - before > plain.writes[memory.serial]
                for memory, before in self._memory
            )
        )

    # -- the comparison ----------------------------------------------------------------------------

    def differences(self, replayed: _Outcome, result: Any, may_round: bool) -> Iterator[str]:
        """A text for each difference between a replay and the plain call that has just ended."""
        for text in _differences(_NAME, replayed.result, self._copied(result), may_round):
            yield text.replace(_NAME, "result")
        if list(map(id, tensors_in([*self._args, self._kwargs]))) != self._leaves:
            yield "the plain call leaves other tensors in its arguments"
        yield from self._differences_of_places(replayed, may_round)
        pairs = zip(self._alive(), self._serials, replayed.contents, strict=True)
        for tensor, serial, contents in pairs:
            if tensor is not None and contents is not None and self._may_differ(tensor, serial):
                text = _difference(contents, _contents(tensor), may_round)
                if text:
                    name = self._ways().to(tensor) or f"a tensor of shape {tensor.shape}"
                    yield f"{name} {text}"
        for stream, position in zip(self._streams, replayed.streams, strict=True):
            if position.tobytes() != _elements(stream.node).tobytes():
                yield f"the random numbers of {stream.node.device} go on elsewhere"

    def _differences_of_places(self, replayed: _Outcome, may_round: bool) -> Iterator[str]:
        in_replay = {place.identity: content for place, content in replayed.places}
        for place in self._changed:
            if place.identity not in in_replay:
                yield f"the plain call replaces {self._name_of(place)}, and the replay does not"
        for place, content in replayed.places:
            for text in _differences(_NAME, content, self._copied(place.get()), may_round):
                yield text.replace(_NAME, self._name_of(place))

    def _changes(self) -> list[Place]:
        """The places where the plain call left another tensor, or none."""
        found = self._state.changes(self._state.again(None))
        known = {place.identity for place in found}
        for tensor, gradient in zip(self._given, self._gradients, strict=True):
            place = Place(tensor, "grad")
            old = None if gradient is None else gradient()
            is_same = tensor.grad is old and (old is not None or gradient is None)
            if not is_same and place.identity not in known:
                found.append(place)
        return found

    def _may_differ(self, tensor: Tensor, serial: int) -> bool:
        """True if the replay or the plain call wrote to the memory of a tensor."""
        buffer = tensor._cell.value.node.realized
        is_written = buffer is not None and buffer.base.serial in self._written
        return is_written or _serial(tensor) != serial

    def _copied(self, value: Any) -> Any:
        """A value with a `_Copy` for each tensor."""
        return mapped(value, lambda leaf: self._copy(leaf) if isinstance(leaf, Tensor) else leaf)

    def _copy(self, tensor: Tensor) -> _Copy:
        is_known = self._is_known(tensor)
        kind = {
            "shape": tensor.shape,
            "dtype": tensor.dtype,
            "device": tensor.device,
            "requires_grad": bool(tensor.requires_grad),
        }
        if is_known:
            return _Copy(kind, None, id(tensor), None)
        gradient = None if tensor.grad is None else self._copy(tensor.grad)
        return _Copy(kind, tensor.numpy(), 0, gradient)

    def _is_known(self, tensor: Tensor) -> bool:
        reference = self._known.get(id(tensor))
        return reference is not None and reference() is tensor

    def _is_from_before(self, place: Place) -> bool:
        """False for the gradient of a tensor that the call made."""
        return not isinstance(place.holder, Tensor) or self._is_known(place.holder)

    def _alive(self) -> list[Tensor | None]:
        return [reference() for reference in self._tensors]

    def _ways(self) -> Ways:
        return Ways(self._function, _arguments(self._function, self._args, self._kwargs))

    def _name_of(self, place: Place) -> str:
        return self._ways().to(place) or str(place.key)

    def message(self, problem: str, source: str) -> str:
        """The text of an error: the function and its line, what is wrong, and the likely source."""
        code = _code_of(self._function)
        line = "an unknown line" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return f"{line}: a replay of {name} {problem}; {source}"


def _arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The arguments of a call, by the names of the parameters."""
    try:
        return list(inspect.signature(function).bind(*args, **kwargs).arguments.items())
    except (TypeError, ValueError):  # a function in C, or a call that does not fit
        return [*[(f"argument {n}", value) for n, value in enumerate(args)], *kwargs.items()]


def _code_of(function: Any) -> types.CodeType | None:
    """The code of a function, a method, a `partial` or an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(inspect.unwrap(function), "__func__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _fill(to: Buffer, source: Buffer) -> None:
    BufferCopy(to.device, to.nbytes, source.device)([to, source], {})


def _serial(tensor: Tensor | None) -> int:
    """The serial of the version of a tensor's memory."""
    return 0 if tensor is None else tensor._cell.value.node.serial


def _contents(tensor: Tensor) -> Array:
    """The contents of all memory that a tensor shares with its views."""
    return _elements(tensor._cell.value.node)


def _elements(node: LazyBuffer) -> Array:
    return Tensor._wrap(TracedValue(node)).numpy()


# *** differences between values ***


def _for_any_length(runners: Iterable[JITRunner]) -> set[LazyOp | None]:
    """The kernels that are for any length."""
    return {runner.ast for runner in runners if isinstance(runner, ASTRunner) and runner.is_general}


def _differences(name: str, replayed: Any, plain: Any, may_round: bool) -> Iterator[str]:
    """A text for each difference between values with a `_Copy` for each tensor."""
    if isinstance(replayed, _Copy) and isinstance(plain, _Copy):
        yield from _differences_of_tensors(name, replayed, plain, may_round)
    elif type(replayed) is not type(plain) or _keys(replayed) != _keys(plain):
        yield f"{name} is {_kind(replayed)} in the replay and {_kind(plain)} in the plain call"
    else:
        keys = _keys(replayed)
        for key in keys or ():
            yield from _differences(f"{name}[{key!r}]", replayed[key], plain[key], may_round)
        if keys is None and replayed is not plain:
            yield f"{name} is {replayed!r:.40} in the replay and {plain!r:.40} in the plain call"


def _differences_of_tensors(
    name: str, replayed: _Copy, plain: _Copy, may_round: bool
) -> Iterator[str]:
    for what, value in replayed.kind.items():
        if value != plain.kind[what]:
            other = plain.kind[what]
            yield f"the {what} of {name} is {value} in the replay and {other} in the plain call"
            return
    if replayed.known != plain.known:
        yield f"{name} is another tensor than in the plain call"
    elif replayed.values is not None and plain.values is not None:
        text = _difference(replayed.values, plain.values, may_round)
        if text:
            yield f"{name} {text}"
    if replayed.gradient is not None or plain.gradient is not None:
        gradient = f"the gradient of {name}"
        yield from _differences(gradient, replayed.gradient, plain.gradient, may_round)


def _keys(value: Any) -> list[Any] | None:
    """The keys of a container; None for any other value."""
    if isinstance(value, list | tuple):
        return list(range(len(value)))
    return list(value) if isinstance(value, dict) else None


def _kind(value: Any) -> str:
    if isinstance(value, _Copy):
        return "a tensor"
    keys = _keys(value)
    if keys is None:
        return "None" if value is None else f"a {type(value).__name__}"
    return f"a {type(value).__name__} of {keys if isinstance(value, dict) else len(keys)}"


def _difference(replayed: Array, plain: Array, may_round: bool) -> str:
    """The number of elements whose bits differ, the first one, and the largest distance.

    Empty if there are none. With `may_round` elements that rounding may make different are left
    out.
    """
    if replayed.shape != plain.shape:
        return f"has the shape {replayed.shape} in the replay and {plain.shape} in the plain call"
    if replayed.tobytes() == plain.tobytes():
        return ""
    differ = (_bits(replayed) != _bits(plain)).any(1)
    with np.errstate(all="ignore"):
        a, b = replayed.astype(np.float64).reshape(-1), plain.astype(np.float64).reshape(-1)
        distance = np.where(a == b, 0, np.abs(a - b))
        if may_round and not np.issubdtype(plain.dtype, np.integer) and plain.dtype != bool:
            largest = np.max(np.abs(b), where=np.isfinite(b), initial=0)
            differ &= ~(distance <= _ROUNDING * _epsilon(plain) * largest)
            differ &= ~(np.isnan(a) & np.isnan(b))
    numbers = np.flatnonzero(differ)
    if not numbers.size:
        return ""
    first = numbers[0]
    x, y = replayed.reshape(-1)[first], plain.reshape(-1)[first]
    values = f"{x} in the replay and {y} in the plain call"
    if not plain.shape:
        return f"is {values}"
    at = ", ".join(map(str, np.unravel_index(first, plain.shape)))
    most = np.max(distance, where=~np.isnan(distance), initial=0)
    count = f"differs in {numbers.size} of {plain.size} elements by up to {most:.3g}"
    return f"{count}, first at [{at}]: {values}"


def _bits(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, array.itemsize)


def _epsilon(array: Array) -> float:
    """The distance from 1 to the next number of an array's dtype."""
    dtype = dtypes.from_np(array.dtype)
    return float(2.0**-dtype.mantissa_bits)


# *** the source of a difference ***


@final
class _Plain:
    """What is noted of a plain call: the calls of this package, and its kernels."""

    def __init__(self) -> None:
        self.executed = Executed()
        self.executed.calls = []
        self.takes_others = False
        """True if it computed something that another thread made meanwhile, or the other way."""
        self.writes: Counter[int] = Counter()
        """The number of its writes to each memory, by serial number."""
        self._runners: list[JITRunner] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A block whose runs are noted, and whose kernels are those of a capture."""
        watching = observer.set(self._run)
        since = watched_since.set(newest_serial())
        try:
            yield
        finally:
            observer.reset(watching)
            watched_since.reset(since)

    def _run(
        self, runner: JITRunner, rawbufs: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> float | None:
        self._runners.append(runner)
        written = [rawbufs[place] for place in runner.writes if place < len(rawbufs)]
        self.writes.update([buffer.base.serial for buffer in written])
        return runner(rawbufs, var_vals)

    def has_other_programs(self, replay: Replay) -> bool:
        """True if a kernel had another schedule in the capture, so that rounding may differ.

        Or if one of the two calls had kernels for any length, and the other had not.
        """
        if _for_any_length(_runners(replay)) != _for_any_length(self._runners):
            return True
        compiled = [one for one in _runners(replay) if isinstance(one, CompiledASTRunner)]
        known = {runner.ast: runner.lib for runner in compiled}
        return any(
            isinstance(runner, CompiledASTRunner)
            and runner.ast in known
            and known[runner.ast] != runner.lib
            for runner in self._runners
        )

    def source(self, replay: Replay) -> str:
        """What the captured call did otherwise, and the line of it, as far as that is known."""
        if replay.calls is None:
            return self._source_in_kernels(replay)
        calls = self.executed.calls or []
        for captured, now in zip(replay.calls, calls, strict=False):
            if captured.line != now.line:
                return (
                    f"the captured call went on at {_shown(captured)}, the plain call at "
                    f"{_shown(now)}; pass what decides that as an argument"
                )
            if list(map(form, captured.given)) != list(map(form, now.given)):
                return f"{_other_values(captured, now)}; {_WAY_OUT}"
        if len(replay.calls) != len(calls):
            longer, call = max(
                (replay.calls, "captured"), (calls, "plain"), key=lambda p: len(p[0])
            )
            last = longer[min(len(replay.calls), len(calls))]
            return f"only the {call} call went on at {_shown(last)}"
        return (
            "the function gave the same numbers to ferrule as in the captured call, so a kernel or "
            "its memory is at fault"
        )

    def _source_in_kernels(self, replay: Replay) -> str:
        """The constant that differs; the function was not checked yet when it was captured."""
        before, now = _constants(_runners(replay)), _constants(self._runners)
        gone, new = list(before - now), list(now - before)
        if not gone or not new:
            return "reset() it, and call it with checks from the start, to see the line"
        (_, was), (dtype, number) = gone[0], new[0]
        lines = [
            f", given at {_shown(call)}"
            for call in self.executed.calls or []
            if any(_rounded(value, dtype) == number for value in call.given)
        ]
        line = lines[0] if lines else ""
        return f"the replay computes with {was}, the plain call with {number}{line}; {_WAY_OUT}"


def _runners(replay: Replay) -> list[JITRunner]:
    """The runners of a replay, those in graphs included."""

    def inside(items: Sequence[JitItem]) -> Iterator[JITRunner]:
        for item in items:
            if isinstance(item.prg, GraphExecutor):
                yield from inside(item.prg.jit_cache)
            else:
                yield item.prg

    return list(inside(replay.batch.items))


def _constants(runners: Sequence[JITRunner]) -> Counter[tuple[DType, str]]:
    """The numbers in kernels, with their dtypes."""
    trees = [one.ast for one in runners if isinstance(one, ASTRunner) and one.ast is not None]
    nodes = [node.arg for tree in trees for node in tree.toposort()]
    found = [arg for arg in nodes if isinstance(arg, ConstBuffer)]
    return Counter([(arg.dtype, _rounded(arg.val, arg.dtype)) for arg in found])


def _rounded(value: Any, dtype: DType) -> str:
    """A number as it is in a dtype, as a text; empty for any other value."""
    if not isinstance(value, bool | int | float | np.number):
        return ""
    with np.errstate(all="ignore"):
        return str(np.asarray(value).astype(dtype.np).item())


def _shown(call: CallOfPackage) -> str:
    """The line of a call, with its text."""
    path, _, number = call.line.rpartition(":")
    text = linecache.getline(path, int(number)).strip()
    return f"{call.line} ({text})" if text else call.line


def _other_values(captured: CallOfPackage, now: CallOfPackage) -> str:
    """What a call was given, and is given now."""
    pairs = list(zip(captured.given, now.given, strict=False))
    others = [(a, b) for a, b in pairs if form(a) != form(b)]
    if not others:
        return f"{_shown(now)} is given {len(now.given)} values, and {len(captured.given)} before"
    (was, value), *_ = others
    return (
        f"{_shown(now)} gives {value!r:.80} to ferrule, and gave {was!r:.80} in the captured call"
    )
