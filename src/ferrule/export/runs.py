"""The runs of a replay one by one, what they run on, and those that a program cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.runner import JITRunner
from ferrule.engine.loop_runs import Loop, LoopParts
from ferrule.export.program import ExportError
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.lazyop import LazyOp
from ferrule.jit.batch import Batch
from ferrule.jit.report.explain import captured_runs

DEVICE: Final = "CPU"
"""The device that exported programs run on."""


Memory: TypeAlias = Buffer | int
"""A buffer, or a number, for an input that each replay has for itself."""


@final
@dataclass(frozen=True)
class Run:
    """One captured run."""

    runner: JITRunner
    buffers: tuple[Memory, ...]
    line: str
    ast: LazyOp | None


def runs_of(batch: Batch) -> list[Run]:
    """The runs of a batch."""
    found = captured_runs(batch)
    return [Run(one.runner, one.buffers, one.line, one.ast) for one in found]


def loop_parts(loop: Loop, size: int, packed: bool) -> LoopParts:
    """The steps of a loop whose first buffer has so many elements.

    Raises `ExportError` if its kernels are for tensors of any lengths.
    """
    found = loop.parts(size, packed)
    if found is None:
        raise ExportError(
            "a loop computes on tensors whose sizes vary without a Variable, and has a plan for "
            "each size; capture the function on arguments of one shape, or on x[: n.bind(size)]"
        )
    return found


def _others(runner: JITRunner, size: int) -> Iterator[JITRunner]:
    """The runners that a program cannot have, in a run on a first buffer of so many elements."""
    if runner.device != DEVICE:
        yield runner
    elif isinstance(runner, Loop):
        for step in loop_parts(runner, size, packed=False).body:
            yield from _others(step.runner, step.operands[0].size)
    elif not isinstance(runner, CompiledASTRunner | BufferCopy):
        yield runner


def check_runs(runs: Sequence[Run], kinds: Sequence[tuple[str, int, DType]]) -> None:
    """Raises `ExportError` if there are runs that a program cannot have, and lists them."""
    others = [
        (runner, run.line)
        for run in runs
        for runner in _others(run.runner, size_of(run.buffers[0], kinds))
    ]
    if not others:
        return
    on_devices = {runner.device for runner, _ in others} - {DEVICE}
    listed = [f"{runner.name or type(runner).__name__} ({line})" for runner, line in others]
    shown = "; ".join(dict.fromkeys(listed))
    if on_devices:
        raise ExportError(
            f"exported programs run on {DEVICE}, and this is on {', '.join(sorted(on_devices))}: "
            f"{shown}; move the tensors by x.to({DEVICE!r}) before the capture"
        )
    raise ExportError(
        "an exported program has kernels, copies and loops of these only, and this is something "
        f"else: {shown}; compute it outside of the function, and pass the result"
    )


def size_of(memory: Memory, kinds: Sequence[tuple[str, int, DType]]) -> int:
    """The number of elements of memory; `kinds` are those of the replay's inputs."""
    return kinds[memory][1] if isinstance(memory, int) else memory.size
