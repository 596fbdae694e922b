"""Recording of runs for replay: `Capture`, `JitItem`, and the plan of shared memory.

A graph executor imports this module, never `ferrule.jit`.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Sequence, Set
from dataclasses import field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, Final, TypeVar, final

from ferrule.base.helpers import GlobalCounters
from ferrule.base.interrupts import running_handlers
from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.device import (
    BufferCopy,
    CompiledASTRunner,
    Device,
    JITRunner,
    observer,
    update_stats,
)
from ferrule.device.memory_planner import plan_arenas
from ferrule.device.runner import watched_since
from ferrule.ir.buffer import Buffer, newest_serial, read_guard
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Variable, as_expr, sint
from ferrule.ir.storage import turn

T = TypeVar("T")


class JitError(RuntimeError):
    """A function cannot be captured, or a captured one cannot be replayed."""


class GraphException(Exception):
    """A graph executor cannot take these items; they are replayed one by one instead.

    `message` says why.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class GraphReentryError(RuntimeError):
    """A graph was called by a signal handler or a destructor that had interrupted its own call."""


@dataclass
class JitItem:
    """One captured run: a runner or a graph executor, and its buffers (None: set by an input)."""

    prg: JITRunner
    rawbufs: list[Buffer | None]
    line: str = ""
    """The line of the program that asked for the result, as `file:line`."""

    def accesses(self) -> list[tuple[Buffer, bool, bool]]:
        """Each buffer, and two flags: True if the run reads it, and if it writes it."""
        return [
            (buffer, *self.prg.access(i))
            for i, buffer in enumerate(self.rawbufs)
            if buffer is not None
        ]


# *** documented functions of a list of items ***


def get_input_replace(
    jit_cache: list[JitItem], input_rawbuffers: Sequence[Buffer]
) -> dict[tuple[int, int], int]:
    """The uses of the inputs: `{(item, position among its buffers): number of the input}`.

    Buffers are compared by serial number: another buffer in the same memory is no input.
    """
    numbers: dict[int, int] = {}
    for number, buffer in enumerate(input_rawbuffers):
        numbers.setdefault(buffer.serial, number)
    return {
        (j, i): numbers[buffer.serial]
        for j, item in enumerate(jit_cache)
        for i, buffer in enumerate(item.rawbufs)
        if buffer is not None and buffer.serial in numbers
    }


def get_jc_idxs_with_updatable_launch_dims(jit_cache: list[JitItem]) -> list[int]:
    """The items whose launch size depends on a variable."""
    return [
        j
        for j, item in enumerate(jit_cache)
        if isinstance(item.prg, CompiledASTRunner)
        and not all(isinstance(size, int) for size in _launch_sizes(item.prg))
    ]


def _launch_sizes(runner: CompiledASTRunner) -> list[sint]:
    return [*(runner.global_size or []), *(runner.local_size or [])]


def get_jc_idxs_with_updatable_var_vals(jit_cache: list[JitItem]) -> list[int]:
    """The items whose kernel takes variables."""
    return [
        j
        for j, item in enumerate(jit_cache)
        if isinstance(item.prg, CompiledASTRunner) and item.prg.vars
    ]


def get_jit_stats(jit_cache: list[JitItem]) -> tuple[sint, sint]:
    """The operations and the bytes of all items together; symbolic where an item's are."""
    ops: sint = 0
    mem: sint = 0
    for item in jit_cache:
        ops = ops + item.prg.op_estimate
        mem = mem + item.prg.mem_estimate
    return ops, mem


_MOST_COSTS: Final = 64
"""Values of a graph's variables for which its cost is kept. Not measured."""


class GraphExecutor(JITRunner):
    """A batch of captured items that a device runs by one call: a runner on the batch's inputs.

    It costs what its items cost together, and says of each input whether an item reads or writes
    it. A subclass defines `replay`, which sets `inside` while it runs.
    """

    takes_plans: ClassVar[bool] = False
    """True if plans that were not captured are run so as well: making one takes no longer than a
    run, and other inputs cost nothing."""

    spans_devices: ClassVar[bool] = False
    """True if one graph takes the items of several devices of its kind, and copies between them."""

    def __init__(self, jit_cache: list[JitItem], input_rawbuffers: Sequence[Buffer]) -> None:
        self.jit_cache = jit_cache
        self.replaced = get_input_replace(jit_cache, input_rawbuffers)
        """`{(item, position among its buffers): number of the input}`."""
        self.name = f"<batch of {len(jit_cache)}>"
        self.num_kernels = len(jit_cache)
        self.op_estimate, self.mem_estimate = get_jit_stats(jit_cache)
        self.device = jit_cache[0].prg.device if jit_cache else ""
        self.vars = tuple(dict.fromkeys(v for item in jit_cache for v in item.prg.vars))
        uses = [(n, *jit_cache[j].prg.access(i)) for (j, i), n in self.replaced.items()]
        self.reads = frozenset(number for number, reads, _ in uses if reads)
        self.writes = frozenset(number for number, _, writes in uses if writes)
        self.kept = [
            [buffer for i, buffer in enumerate(item.rawbufs) if (j, i) not in self.replaced]
            for j, item in enumerate(jit_cache)
        ]
        """The buffers that are not inputs, which the graph keeps alive."""
        ops, mem = self.op_estimate, self.mem_estimate
        self.cost: tuple[int, int, int] | None = None
        if isinstance(ops, int) and isinstance(mem, int) and not self.vars:
            self.cost = self.num_kernels, ops, mem
        """The kernels, operations and bytes of a call; None if these depend on variables."""
        self._costs: dict[tuple[int, ...], tuple[Any, Any]] = {}
        """The operations and bytes of a call, by the values of its variables."""
        self.inside = False
        """True in a run. A thread that has the turn and sees it is inside itself."""

    def __call__(
        self,
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Runs all items in order. Gives the seconds they took if `wait`.

        Several threads take turns. Raises `GraphReentryError` for a call from inside a call.
        """
        with turn:
            return self.replay(input_rawbuffers, var_vals, wait)

    def replay(
        self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int], wait: bool = False
    ) -> float | None:
        """`__call__`, for callers that have the `turn`."""
        raise NotImplementedError(f"{type(self).__name__} does not define replay")

    def reentered(self) -> GraphReentryError:
        """The error for a call inside a call."""
        return GraphReentryError(
            f"{self.name}: called from inside its own call, by a signal handler or a "
            "destructor, when half of its work was done; call it from elsewhere"
        )

    def count(self, inputs: int, var_vals: dict[Any, int], seconds: float | None) -> None:
        """Adds a call with this number of inputs to the statistics.

        `seconds` is None only for a call that is not printed.
        """
        if seconds is None:
            if self.cost is not None:
                GlobalCounters.add(*self.cost)
                return
            values = tuple([v.infer(var_vals) for v in self.vars])
            cost = self._costs.get(values)
            if cost is None:
                if len(self._costs) >= _MOST_COSTS:
                    self._costs.clear()
                ops, mem = as_expr(self.op_estimate), as_expr(self.mem_estimate)
                cost = self._costs[values] = ops.infer(var_vals), mem.infer(var_vals)
            GlobalCounters.add(self.num_kernels, *cost)
            return
        update_stats(
            self.name,
            self.op_estimate,
            self.mem_estimate,
            var_vals,
            seconds,
            inputs,
            jit=True,
            num_kernels=self.num_kernels,
            device=self.device,
        )


def executor_of(device: str) -> tuple[Any, str] | None:
    """The graph executor for the items of a device, and the device; None if it has none.

    The device is empty for an executor that takes items of all devices of its kind.
    """
    found: Any = getattr(Device[device], "graph", None) if device else None
    if found is None:
        return None
    return found, "" if getattr(found, "spans_devices", False) else device


# *** buffers that may be freed before the replay ***


@final
class PlaceHolder:
    """A stand-in for a buffer that does not keep it alive.

    Two are equal if they have the same memory (by serial number), byte range and dtype. The `id()`
    would not do, because Python reuses it.
    """

    __slots__ = ("byte_offset", "device", "dtype", "memory", "serial", "size", "whole")

    def __init__(self, buf: Buffer) -> None:
        self.device = buf.device
        self.serial = buf.base.serial
        self.byte_offset = buf.byte_offset
        self.size = buf.size
        self.dtype = buf.dtype
        self.memory = weakref.ref(buf.base)
        """The buffer that owns the memory, while something else refers to it."""
        self.whole = self if buf.base is buf else PlaceHolder(buf.base)
        """The place holder of the whole memory."""

    def to_tuple(self) -> tuple[str, int, int, int, DType]:
        """The key for equality: device, serial number of the memory, first byte, size and dtype."""
        return self.device, self.serial, self.byte_offset, self.size, self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceHolder) and self.to_tuple() == other.to_tuple()

    def __hash__(self) -> int:
        return hash(self.to_tuple())

    @property
    def nbytes(self) -> int:
        """The size of the buffer in bytes."""
        return self.size * self.dtype.itemsize

    def alloc_if_needed(self, buffer_cache: dict[PlaceHolder, Buffer]) -> Buffer:
        """The buffer itself while it is alive, else one new buffer for all that are equal."""
        found = buffer_cache.get(self)
        if found is not None:
            return found
        if self.whole is self:
            buffer = self.memory() or Buffer(self.device, self.size, self.dtype)
        else:
            memory = self.whole.alloc_if_needed(buffer_cache)
            buffer = memory.view(self.byte_offset // self.dtype.itemsize, self.size, self.dtype)
        buffer_cache[self] = buffer
        return buffer


# *** the plan of shared memory ***


@dataclass
class Recorded:
    """One run, its buffers not resolved yet."""

    prg: JITRunner
    args: list[Buffer | PlaceHolder]
    line: str = ""

    @staticmethod
    def serial(arg: Buffer | PlaceHolder) -> int:
        """The serial number of the memory that a buffer is in."""
        return arg.serial if isinstance(arg, PlaceHolder) else arg.base.serial

    def written(self) -> set[int]:
        """The serial numbers of the memory that the run writes to."""
        return {self.serial(arg) for i, arg in enumerate(self.args) if self.prg.access(i)[1]}

    def read(self) -> set[int]:
        """The serial numbers of the memory that the run reads."""
        return {self.serial(arg) for i, arg in enumerate(self.args) if self.prg.access(i)[0]}


def shared_buffers(
    recorded: Sequence[Recorded], released: Set[int] = frozenset()
) -> dict[PlaceHolder, Buffer]:
    """A buffer for all memory that is freed or `released`: a part of its device's arena."""
    steps = [
        [
            arg.whole
            for arg in record.args
            if isinstance(arg, PlaceHolder) and (arg.memory() is None or arg.serial in released)
        ]
        for record in recorded
    ]
    places, sizes = plan_arenas(steps)
    arenas = [Buffer(device, nbytes, dtypes.uint8) for device, nbytes in sizes]
    return {
        piece: arenas[arena].view(start // piece.dtype.itemsize, piece.size, piece.dtype)
        for piece, (arena, start) in places.items()
    }


# *** the capture ***

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def user_location() -> str:
    """`file:line` of the innermost caller outside this package."""
    return _location(_user_frame(sys._getframe(1)))


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The frame, or the innermost caller that is outside this package."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def _location(frame: FrameType | None) -> str:
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.lru_cache(maxsize=1 << 12)
def _line(code: CodeType, position: int) -> int:
    """The line of an instruction. A frame looks for it anew each time that it is asked."""
    lines = [line for start, stop, line in code.co_lines() if start <= position < stop]
    return lines[0] or code.co_firstlineno


@final
class Lines:
    """The lines of the program that the nodes of a captured call come from.

    A node is mostly computed later than it is made, and along with others.
    """

    def __init__(self) -> None:
        self._of_node: dict[int, tuple[CodeType, int]] = {}
        """The code that made each node, and the position of the instruction in it."""
        self.present = ""
        """The line of the node that is computed now; empty if it is not known."""

    def note(self, serial: int) -> None:
        """Notes that the program makes the node with this serial number."""
        # To walk up the stack takes 2 us: the watch knows the caller, except after a call back.
        watch = this_thread.state.seeing
        frame = None if watch is None else watch.asked_by
        if frame is None:
            frame = _user_frame(sys._getframe(1))
        if frame is not None:
            self._of_node[serial] = frame.f_code, frame.f_lasti

    def begin(self, serial: int | None) -> None:
        """Notes that the next run computes the node with this serial number."""
        found = None if serial is None else self._of_node.get(serial)
        self.present = "" if found is None else f"{found[0].co_filename}:{_line(*found)}"


def is_capturing() -> bool:
    """True if this thread is recording runs."""
    return this_thread.state.observer is not None


@final
@dataclass
class Capture:
    """A `with` block in which every run is recorded, and reading values raises `JitError`.

    A handler of a signal may compute and read what it likes, unrecorded: it is counted as another
    thread would be (`ThreadState.taken`), since it may have done writes of the block.

    Buffers made inside are recorded as `PlaceHolder`s, so that the block needs no more memory than
    a plain run. All other buffers are kept alive. Afterwards `items` gives the runs.
    """

    recorded: list[Recorded] = field(default_factory=list)
    var_vals: dict[Variable, int] = field(default_factory=dict)
    updated: dict[int, Buffer] = field(default_factory=dict)
    """The buffers from before the block that a run wrote to, by serial number."""
    read: dict[int, Buffer] = field(default_factory=dict)
    """The buffers from before the block that a run read, by serial number."""

    computed: list[weakref.ref[Any]] = field(default_factory=list)
    """The nodes that got memory in the block, weakly."""

    uses_others: bool = False
    """True if a run used memory that another thread wrote to during the block."""

    lacking: str | None = None
    """The text of the error if there was no room for a copy that only replays need."""

    _handlers: int = 0
    """The handlers of signals in which the block is."""
    _first_serial: int = 0
    _produced: set[int] = field(default_factory=set)
    _before: tuple[Any, ...] = ()
    _lines: Lines = field(default_factory=Lines)

    def __enter__(self) -> Capture:
        if is_capturing():
            raise JitError(f"{user_location()}: a capture cannot begin inside another one")
        # Serial numbers only grow, so every buffer of the block has a larger one.
        self._first_serial = newest_serial()
        since = watched_since.set(self._first_serial)
        self._handlers = running_handlers()
        self._before = observer.set(self._run), read_guard.set(self._forbid_reading), since
        this_thread.state.lines = self._lines
        this_thread.state.computed = self.computed
        return self

    def __exit__(self, *_: object) -> None:
        observing, guarding, since = self._before
        observer.reset(observing)
        read_guard.reset(guarding)
        watched_since.reset(since)
        this_thread.state.lines = this_thread.state.computed = None

    def _run(
        self, runner: JITRunner, rawbufs: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> float | None:
        """Records a run, then runs it; runs that the runner starts itself are not recorded."""
        if self._is_interrupted():
            return runner(rawbufs, var_vals)
        self._note_values(runner, var_vals)
        args = [self._remember(runner, i, buffer) for i, buffer in enumerate(rawbufs)]
        self.recorded.append(Recorded(runner, args, self._lines.present or user_location()))
        observing = observer.set(None)
        guarding = read_guard.set(None)
        since = watched_since.set(None)
        try:
            return runner(rawbufs, var_vals)
        finally:
            observer.reset(observing)
            read_guard.reset(guarding)
            watched_since.reset(since)

    def _forbid_reading(self, buffer: Buffer) -> None:
        if not self._is_interrupted():
            raise JitError(
                f"{user_location()}: a tensor's values are read inside a captured function; a "
                "replay would go on with the values of now. Return the tensor and read it outside, "
                "or compute with tensors, for example x.where(a, b) in place of `if x.item():`"
            )

    def _is_interrupted(self) -> bool:
        """True in a handler of a signal that came in the block, which is noted."""
        is_interrupted = running_handlers() > self._handlers
        this_thread.state.taken += is_interrupted
        return is_interrupted

    def _note_values(self, runner: JITRunner, var_vals: dict[Variable, int]) -> None:
        for variable in runner.vars:
            value = var_vals[variable]
            if self.var_vals.setdefault(variable, value) != value:
                raise JitError(
                    f"{user_location()}: variable {variable.name} is {self.var_vals[variable]} in "
                    f"one kernel and {value} in another of the same call; use two variables"
                )

    def is_new(self, buffer: Buffer) -> bool:
        """True if the memory was allocated inside the block."""
        return buffer.base.serial > self._first_serial

    def is_produced(self, buffer: Buffer) -> bool:
        """True if the memory was allocated inside the block and written by a recorded run."""
        return buffer.base.serial in self._produced

    def _remember(self, runner: JITRunner, i: int, buffer: Buffer) -> Buffer | PlaceHolder:
        base = buffer.base
        reads, writes = runner.access(i)
        if not self.is_new(buffer):
            if writes:
                self.updated[base.serial] = base
            if reads:
                self.read[base.serial] = base
            return buffer
        if base.serial not in self._produced and base._version > base.filled:
            self.uses_others = True
        if writes and base.serial not in self._produced:
            if base.filled:
                try:
                    self._record_filling(base)
                except MemoryError as error:
                    self.lacking = str(error)  # the run itself needs no copy
            self._produced.add(base.serial)
        # Memory that only the host has written to is a constant of the captured function.
        return PlaceHolder(buffer) if base.serial in self._produced else buffer

    def _record_filling(self, base: Buffer) -> None:
        """Records a copy of host data that a run is about to change, for replays to restore it."""
        contents = Buffer(base.device, base.size, base.dtype)
        copy = BufferCopy(base.device, base.nbytes, base.device)
        guarding = read_guard.set(None)
        try:
            copy([contents, base], {})
        finally:
            read_guard.reset(guarding)
        for earlier in self.recorded:
            earlier.args = [_as_placeholder(arg, base) for arg in earlier.args]
        self.recorded.insert(0, Recorded(copy, [PlaceHolder(base), contents]))

    def items(self, released: Set[int] = frozenset()) -> list[JitItem]:
        """The runs, with buffers to replay them on.

        A buffer that is still alive stands for itself, unless its serial number is in `released`;
        all others share new memory, where their live ranges allow it.
        """
        buffers = shared_buffers(self.recorded, released)
        return [JitItem(r.prg, _resolved(r, buffers), r.line) for r in self.recorded]


def _resolved(record: Recorded, buffers: dict[PlaceHolder, Buffer]) -> list[Buffer | None]:
    return [
        arg.alloc_if_needed(buffers) if isinstance(arg, PlaceHolder) else arg for arg in record.args
    ]


def _as_placeholder(arg: Buffer | PlaceHolder, base: Buffer) -> Buffer | PlaceHolder:
    return PlaceHolder(arg) if isinstance(arg, Buffer) and arg.base is base else arg
