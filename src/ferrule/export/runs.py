"""The runs of a replay one by one, those of loops included, and what they run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.runner import ASTRunner, JITRunner
from ferrule.engine.loop_runs import Loop
from ferrule.export.program import ExportError
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.lazyop import LazyOp
from ferrule.jit.batch import Batch
from ferrule.jit.report.explain import captured_runs

DEVICE: Final = "CPU"
"""The device that exported programs run on."""


def whole_of(memory: Memory) -> Buffer | int | LoopScratch:
    """The memory that a part is of; other memory itself."""
    return memory.whole if isinstance(memory, Part) else memory


@final
@dataclass(frozen=True, eq=False)
class LoopScratch:
    """The scratch memory of one loop."""

    nbytes: int


@final
@dataclass(frozen=True)
class Part:
    """`nbytes` of some memory, from byte `start` on."""

    whole: Buffer | int | LoopScratch
    start: int
    nbytes: int


Memory: TypeAlias = Buffer | int | LoopScratch | Part
"""A buffer; a number, for an input that each replay has for itself; or a part of one of these."""


@final
@dataclass(frozen=True)
class Run:
    """One captured run."""

    runner: JITRunner
    buffers: tuple[Memory, ...]
    line: str
    ast: LazyOp | None


def _size(memory: Memory, kinds: Sequence[tuple[str, int, DType]]) -> int:
    """The number of elements of a whole buffer; `kinds` are those of the replay's inputs."""
    assert isinstance(memory, Buffer | int), "a captured run is on whole buffers"
    return kinds[memory][1] if isinstance(memory, int) else memory.size


def unrolled_runs(batch: Batch, packed: bool) -> Iterator[Run]:
    """The runs with the trips of loops one by one, where their number is fixed."""
    kinds = batch.kinds
    for found in captured_runs(batch):
        run = Run(found.runner, found.buffers, found.line, found.ast)
        loop = None
        if isinstance(run.runner, Loop):
            loop = run.runner.unrolled(_size(run.buffers[0], kinds), packed)
        if loop is None:
            yield run
            continue
        memory: list[Any] = [*run.buffers, LoopScratch(loop.scratch_bytes), *loop.tables]
        for runner, parts in loop.runs:
            buffers = [Part(memory[one.buffer], one.start, one.nbytes) for one in parts]
            ast = runner.ast if isinstance(runner, ASTRunner) else None
            yield Run(runner, tuple(buffers), run.line, ast)


def _is_step(runner: JITRunner) -> bool:
    """True if a program can have the run as a step."""
    is_known = isinstance(runner, CompiledASTRunner | BufferCopy)
    return runner.device == DEVICE and is_known


def check_runs(runs: Sequence[Run]) -> None:
    """Raises `ExportError` if there are runs that a program cannot have, and lists them."""
    others = [run for run in runs if not _is_step(run.runner)]
    if not others:
        return
    on_devices = {run.runner.device for run in others} - {DEVICE}
    listed = [f"{run.runner.name or type(run.runner).__name__} ({run.line})" for run in others]
    shown = "; ".join(dict.fromkeys(listed))
    if on_devices:
        raise ExportError(
            f"exported programs run on {DEVICE}, and this is on {', '.join(sorted(on_devices))}: "
            f"{shown}; move the tensors by x.to({DEVICE!r}) before the capture"
        )
    raise ExportError(
        f"an exported program has kernels and copies only, and this is something else: {shown}; "
        "compute it outside of the function, and pass the result"
    )
