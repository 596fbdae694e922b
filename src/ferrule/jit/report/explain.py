"""Explanations of captured functions: what a replay runs, how long it takes, and what it uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final, final

from ferrule.autograd.iota import is_numbers
from ferrule.base.config import Context
from ferrule.base.records import dataclass
from ferrule.device import BufferCopy, Compiled, CompiledASTRunner, Device, JITRunner
from ferrule.device.capture import GraphExecutor, JitItem
from ferrule.device.runner import ASTRunner
from ferrule.engine.random import streams
from ferrule.ir.buffer import Buffer, readable_bytes
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazyop import BufferOps, LazyOp
from ferrule.jit.batch import Batch
from ferrule.jit.inputs import memory_serial
from ferrule.jit.replay import Replay
from ferrule.jit.report.limits import bandwidth, peak
from ferrule.jit.report.messages import way_to_spot, ways_of
from ferrule.jit.report.signature import Parameters, Signature, shown, tensors_below
from ferrule.jit.report.ways import Ways

_MIN_ROUNDS: Final = 3
_MAX_ROUNDS: Final = 50
_SECONDS: Final = 0.3
"""The least and the greatest number of timed rounds, and the seconds after which there is no more.
A round runs all items in order, so that caches are as in a replay. Not measured."""
_MAX_LISTED: Final = 12  # inputs, tensors and numbers in a list


@final
@dataclass(frozen=True)
class KernelReport:
    """One run of a replay: a kernel, a copy, or a function of the host."""

    name: str
    line: str
    """The line of the program that asked for the result, as `file:line`."""
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    """The operands: name, shape and dtype."""
    schedule: str
    """The opts of its schedule; empty for what has none."""
    seconds: float | None
    """The median time of a run; None if it was not timed, and then `note` says why."""
    operations: int
    nbytes: int
    """The bytes that it has to read and to write at least."""
    compute_share: float | None
    """Its operations a second, of those of a product of matrices; None if it cannot be compared."""
    memory_share: float | None
    """Its bytes a second, of those of `x + 1` with as many bytes."""
    note: str = ""


@final
class Explanation(str):
    """The text about a captured function, with its kernels as data."""

    kernels: tuple[KernelReport, ...] = ()

    def __repr__(self) -> str:
        return str(self)


def explained(
    title: str,
    replay: Replay,
    key: Sequence[Any],
    others: Mapping[tuple[Any, ...], Replay],
    function: Callable[..., Any],
) -> Explanation:
    """What a replay with the signature `key` runs. Its kernels run on memory of their own.

    `others` are the function's other replays. The caller holds the lock `turn`, so that nothing
    else uses the memory between the kernels.
    """
    operands = _Operands(replay, key[0], function)
    runs = list(captured_runs(replay.batch))
    if replay.packed is not None and replay.packed.are_ready():
        packed = captured_runs(
            replay.packed.batch
        )  # whose kernels have the same trees and schedules
        runs = [replace(run, ast=plain.ast) for run, plain in zip(packed, runs, strict=True)]
    with Context(DEBUG=0, BEAM=0):
        times = _times(runs, replay)
        kernels = [
            _report(run, operands, seconds, note)
            for run, (seconds, note) in zip(runs, times, strict=True)
        ]
    lines = [*_table(title, kernels), "", *_summary(operands)]
    for other, one in others.items():
        found = other[0].changes(key[0], Parameters(function))
        found = found or one.numbers.changes(operands.ways.to) or ["gradients or states"]
        lines.append(f"another replay (uses: {one.runs}) differs in {_listed(found)}")
    text = Explanation("\n".join(lines))
    text.kernels = tuple(kernels)
    return text


# *** the runs of a batch, one by one ***


@final
@dataclass(frozen=True)
class CapturedRun:
    """One captured run; a buffer is the number of an input where each replay has its own."""

    runner: JITRunner
    line: str
    buffers: tuple[Buffer | int, ...]
    ast: LazyOp | None
    """The tree of a kernel."""

    def outputs(self) -> list[int]:
        """The positions of the buffers that it writes to."""
        return [i for i in range(len(self.buffers)) if self.runner.access(i)[1]]


def captured_runs(batch: Batch) -> Iterator[CapturedRun]:
    """The runs of a batch, with those that run together one by one."""
    for number, item in enumerate(batch.items):
        if isinstance(item.prg, GraphExecutor):
            for inner, captured in enumerate(item.prg.jit_cache):
                yield _run(captured, inner, item.prg.replaced)
        else:
            yield _run(item, number, batch.input_replace)


def _run(item: JitItem, number: int, replaced: Mapping[tuple[int, int], int]) -> CapturedRun:
    pairs = enumerate(item.rawbufs)
    buffers = [replaced[number, i] if buffer is None else buffer for i, buffer in pairs]
    ast = item.prg.ast if isinstance(item.prg, ASTRunner) else None
    return CapturedRun(item.prg, item.line, tuple(buffers), ast)


# *** names ***


@final
class _Operands:
    """The names of the buffers of a replay, with the shapes and dtypes of their tensors."""

    def __init__(self, replay: Replay, signature: Signature, function: Callable[..., Any]) -> None:
        self.replay = replay
        self.ways = ways_of(function, signature, Parameters(function), replay)
        self.given = [
            (label, part[0], part[1])
            for name, argument in signature.arguments(Parameters(function))
            for label, part in tensors_below(name, argument)
        ]
        """The name, shape and dtype of each tensor that is given or found by the function."""
        self.explicit = len(self.given)
        self.given += _found(replay, self.ways)
        names = [name for name, _, _ in self.given]
        self.results, self.effects = _results(replay, names, self.ways)
        self._inputs = [f"{name} {_kind(shape, dtype)}" for name, shape, dtype in self.given]
        for number, fresh in enumerate(replay.outcome.fresh):
            name = self.results.get(number, f"result {number}")
            self._inputs.append(f"{name} {_kind(fresh.shape, fresh.dtype)}")
        for part in replay.parts:
            whole = self._inputs[part.number].partition(" ")[0]
            self._inputs.append(f"part of {whole} {_kind((part.size,), part.dtype)}")
        self._named = {
            serial: (name, _kind(tensor.shape, tensor.dtype))
            for name, tensor in self.ways.tensors
            if (serial := memory_serial(tensor.lazydata)) is not None
        }
        for stream in streams():
            if stream.node.realized is not None:
                self._named[stream.node.realized.base.serial] = "random numbers", ""
        for panel in () if replay.packed is None else replay.packed.panels:
            name, kind = self._named.get(panel.weight.base.serial, ("a weight", ""))
            self._named[panel.packed.serial] = f"packed {name}", kind
        self._changed = {buffer.base.serial for buffer in replay.changed}
        self._values: dict[tuple[int, int], str] = {}
        """The value that is at each place of an arena now: memory and first byte."""
        self.values: list[int] = []
        """The bytes of each value between the kernels."""
        self.arenas: dict[int, Buffer] = {}
        self.outside: dict[int, tuple[Buffer, str, str]] = {}
        """The memory from outside, its name, and the shape and dtype of its tensor."""
        self.written: set[int] = set()
        """The numbers of the inputs that are written to."""

    def name(self, run: CapturedRun, position: int) -> str:
        """The name of an operand. Runs are to be named in order."""
        buffer, (reads, writes) = run.buffers[position], run.runner.access(position)
        if isinstance(buffer, int):
            self.written |= {buffer} if writes else set()
            return self._inputs[buffer]
        serial = buffer.base.serial
        if serial not in self.arenas and (not writes or serial in self._changed):
            what = "0, 1, 2, ..." if is_numbers(buffer.base) else "constant"
            other = what, _kind((buffer.size,), buffer.dtype)
            name, kind = self._named.get(serial, other)
            self.outside[serial] = buffer.base, name, kind
            return f"{name} {kind}".rstrip()
        self.arenas[serial] = buffer.base
        place = serial, buffer.byte_offset
        if writes and not reads:
            name = f"t{len(self.values)} {_kind(_stored(run, position), buffer.dtype)}"
            self._values[place] = name
            self.values.append(buffer.nbytes)
        return self._values.get(place, f"part of a value {_kind((buffer.size,), buffer.dtype)}")

    def is_written(self, serial: int) -> bool:
        """True if the replay writes to this memory from outside."""
        return serial in self._changed


def _found(replay: Replay, ways: Ways) -> Iterator[tuple[str, Any, Any]]:
    """The name, shape and dtype of each gradient and state that the function finds."""
    for spot, kind in zip(replay.found.used, replay.found_key, strict=False):
        if isinstance(kind, tuple):
            name, (_, *tensors) = way_to_spot(spot, ways), kind
            for number, (shape, dtype, *_) in enumerate(tensors):
                yield (name if len(tensors) == 1 else f"{name}[{number}]"), shape, dtype


def _results(replay: Replay, given: Sequence[str], ways: Ways) -> tuple[dict[int, str], list[str]]:
    """The names of the values that replays compute in new memory, and all places they leave."""
    outcome = replay.outcome
    numbers: dict[int, str] = dict(enumerate(given))
    places = list(_leaves("result", outcome.template))
    for effect in outcome.effects:
        where = effect.where
        if isinstance(where, int):
            places.append((f"{numbers.get(where, 'result')}.grad", effect.leaf))
        else:
            places += _leaves(ways.to(where) or str(where.key), effect.leaf)
    found: dict[int, str] = {}
    for name, leaf in places:
        made = leaf - len(given) if isinstance(leaf, int) else -1
        if 0 <= made < len(outcome.made):
            found.setdefault(outcome.made[made][0], name)
    return found, [name for name, _ in places if not name.startswith("result")]


def _leaves(name: str, template: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a template, and the expressions for them."""
    if isinstance(template, list | tuple):
        for number, part in enumerate(template):
            yield from _leaves(f"{name}[{number}]", part)
    elif isinstance(template, dict):
        for key, part in template.items():
            yield from _leaves(f"{name}[{key!r}]", part)
    elif template is not None:
        yield name, template


def _stored(run: CapturedRun, position: int) -> Any:
    """The shape of the value that a run stores to one of its buffers."""
    buffer = run.buffers[position]
    assert isinstance(buffer, Buffer)
    ast = run.ast
    roots = () if ast is None else ast.src if ast.op is BufferOps.SINK else (ast,)
    shapes = [root.src[0].shape for root in roots if root.arg.idx == position]
    return shapes[0] if shapes else (buffer.size,)


def _kind(shape: Any, dtype: DType) -> str:
    return f"{shown(tuple(shape))} {str(dtype).removeprefix('dtypes.')}"


# *** times ***


@final
class _Scratch:
    """Memory for timing a replay in place of the program's, which stays as it is.

    Inputs and results hold zeros, which are good as indices too. Memory from outside that the
    replay writes to is copied.
    """

    def __init__(self, replay: Replay) -> None:
        self._inputs = [Buffer(*kind) for kind in replay.batch.kinds]
        for buffer in self._inputs:
            buffer.copyin(memoryview(bytes(buffer.nbytes)))
        self._copies: dict[int, Buffer] = {}
        for memory in replay.changed:
            copy = Buffer(memory.device, memory.size, memory.dtype)
            BufferCopy(copy.device, copy.nbytes, memory.device)([copy, memory], {})
            self._copies[memory.serial] = copy

    def of(self, run: CapturedRun) -> list[Buffer]:
        """The buffers for a run."""
        return [self._instead(buffer) for buffer in run.buffers]

    def _instead(self, buffer: Buffer | int) -> Buffer:
        if isinstance(buffer, int):
            return self._inputs[buffer]
        copy = self._copies.get(buffer.base.serial)
        if copy is None:
            return buffer
        return copy.view(buffer.byte_offset // buffer.dtype.itemsize, buffer.size, buffer.dtype)


def _times(runs: Sequence[CapturedRun], replay: Replay) -> list[tuple[float | None, str]]:
    """The median seconds of each run; where there are none, the reason."""
    try:
        scratch = _Scratch(replay)
        buffers = [scratch.of(run) for run in runs]
    except MemoryError as error:
        return [(None, f"not timed, for lack of memory: {error}")] * len(runs)
    notes = [""] * len(runs)
    times: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for number in range(_MAX_ROUNDS + 1):
        if number > _MIN_ROUNDS and time.perf_counter() - started > _SECONDS:
            break
        for place, run in enumerate(runs):
            if notes[place]:
                continue
            try:
                begun = time.perf_counter()
                taken = run.runner(buffers[place], replay.var_vals, wait=True)
                seconds = time.perf_counter() - begun if taken is None else taken
            except Exception as error:
                if not run.runner.may_raise:
                    raise
                # A function of the host may refuse zeros: no failure of the program's.
                notes[place] = f"not timed: with zeros it raises {type(error).__name__}: {error}"
            else:
                times[place] += [seconds] if number else []  # the first round only warms up
    return [
        (None if note else median(found), note) for found, note in zip(times, notes, strict=True)
    ]


# *** the text ***


def _report(
    run: CapturedRun, operands: _Operands, seconds: float | None, note: str
) -> KernelReport:
    runner, outputs = run.runner, run.outputs()
    names = [operands.name(run, position) for position in range(len(run.buffers))]
    out, replay = run.buffers[0], operands.replay
    size = replay.batch.kinds[out][1] if isinstance(out, int) else out.size
    operations, nbytes = runner.costs(size, replay.var_vals)
    device = Device[runner.device] if runner.device else None
    shares: list[float | None] = [None, None]
    schedule = ""
    if isinstance(device, Compiled) and isinstance(runner, CompiledASTRunner):
        if run.ast is not None:
            schedule = ", ".join(map(repr, device.get_linearizer(run.ast).opts))
        dtype = _computes_in(run, operands)
        if seconds and dtype is not None:
            best = peak(runner.device, dtype).operations_per_second
            shares[0] = operations / seconds / best
        if seconds:
            shares[1] = nbytes / seconds / bandwidth(runner.device, nbytes)
    return KernelReport(
        runner.name,
        run.line,
        tuple([names[i] for i in outputs]),
        tuple([name for i, name in enumerate(names) if i not in outputs]),
        *(schedule, seconds, operations, nbytes, shares[0], shares[1], note),
    )


def _computes_in(run: CapturedRun, operands: _Operands) -> DType | None:
    """The float dtype that a run computes in: of its result, or of an operand; None if none."""
    kinds = operands.replay.batch.kinds
    found = [kinds[one][2] if isinstance(one, int) else one.dtype for one in run.buffers]
    return next((dtype for dtype in found if dtypes.is_float(dtype)), None)


_HEAD = "           time  share    GFLOPS  limit    GB/s  limit  kernel"
_LEGEND = (
    "limits, measured here: of operations, a product of matrices of the same dtype; of bytes,",
    "x + 1 with as many bytes, which a kernel that only reads may exceed",
)


def _table(title: str, kernels: Sequence[KernelReport]) -> list[str]:
    """A line with the figures of each kernel, and below it its operands and its schedule."""
    whole = sum([kernel.seconds or 0.0 for kernel in kernels])
    count = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
    lines = [f"{title}: {count}, {_time(whole)} one by one", "", _HEAD]
    for number, kernel in enumerate(kernels):
        lines.append(_row(number, kernel, whole))
        lines.append(f"     {', '.join(kernel.outputs)} <- {', '.join(kernel.inputs) or 'nothing'}")
        lines += [f"     {text}" for text in (kernel.schedule, kernel.note) if text]
    are_compared = any([kernel.memory_share is not None for kernel in kernels])
    return [*lines, *(_LEGEND if are_compared else ())]


def _row(number: int, kernel: KernelReport, whole: float) -> str:
    seconds = kernel.seconds
    if not seconds:
        figures = f"{'-':>10} {'-':>6} {'-':>9} {'-':>6} {'-':>7} {'-':>6}"
    else:
        rates = f"{kernel.operations / seconds / 1e9:9.1f} {_percent(kernel.compute_share)}"
        moved = f"{kernel.nbytes / seconds / 1e9:7.1f} {_percent(kernel.memory_share)}"
        figures = f"{_time(seconds):>10} {_percent(seconds / whole)} {rates} {moved}"
    return f"{number:3d}  {figures}  {kernel.name}  {_short(kernel.line)}"


def _short(line: str) -> str:
    """A place in a file, from the folder that the program runs in if it is below that."""
    return line.removeprefix(f"{os.getcwd()}{os.sep}")


def _percent(share: float | None) -> str:
    return f"{'-':>6}" if share is None else f"{share:6.0%}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def _summary(operands: _Operands) -> list[str]:
    """What goes in and out, and the memory that a replay takes."""
    replay, given = operands.replay, operands.given
    names = [f"{name} {_kind(shape, dtype)}" for name, shape, dtype in given]
    outside = [
        " ".join([name, *filter(None, [kind]), *["(written)"] * operands.is_written(serial)])
        for serial, (_, name, kind) in operands.outside.items()
    ]
    written = [name for number, (name, *_) in enumerate(given) if number in operands.written]
    written += [operands.outside[memory.serial][1] for memory in replay.changed]
    results = [name for name in operands.results.values() if name not in operands.effects]
    sections = {
        "inputs": names[: operands.explicit],
        "found": names[operands.explicit :],
        "tensors": outside,
        "numbers": replay.numbers.shown(operands.ways.to),
        "results": results,
        "writes": list(dict.fromkeys([*written, *operands.effects])),
    }
    lines = [f"{title:<8} {_listed(found)}" for title, found in sections.items() if found]
    return [*lines, *_memory(operands)]


def _memory(operands: _Operands) -> list[str]:
    replay = operands.replay
    kinds = replay.batch.kinds
    first, last = len(operands.given), len(operands.given) + len(replay.outcome.fresh)
    sizes = [size * dtype.itemsize for _, size, dtype in kinds]
    outside = sum([memory.nbytes for memory, *_ in operands.outside.values()])
    arena = sum([memory.nbytes for memory in operands.arenas.values()])
    parts = {
        "inputs": sum(sizes[:first]),
        "tensors": outside,
        "results": sum(sizes[first:last]),
        "between kernels": arena,
    }
    text = ", ".join([f"{name} {readable_bytes(size)}" for name, size in parts.items() if size])
    lines = [f"memory   {readable_bytes(sum(parts.values()))} at most: {text}"]
    values = sum(operands.values)
    if len(operands.values) > 1:
        count = f"{len(operands.values)} values between kernels, {readable_bytes(values)} together"
        lines.append(f"         {count}, share {readable_bytes(arena)}")
    return lines


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f", and {more} more" if more > 0 else "")
