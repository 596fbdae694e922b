"""`ferrule.tune`: searches for faster schedules of all kernels that a function runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from ferrule.base.config import Context
from ferrule.base.helpers import type_name
from ferrule.base.records import dataclass
from ferrule.device import Compiled, CompiledASTRunner, Device, JITRunner, observer
from ferrule.device.autotune.tuner import Tuner
from ferrule.device.autotune.tuning_cache import TunedSchedule
from ferrule.device.runner import watched_since
from ferrule.ir.buffer import Buffer, newest_serial
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import LazyOp
from ferrule.jit import BoundJit, TinyJit
from ferrule.jit.results import tensors_in
from ferrule.tensor import Tensor

_MIN_TIME_SHARE = 0.01  # of the time of all kernels; a kernel below is not searched. Not measured
_MIN_SECONDS = 0.5  # of a search; a worker process has hardly started by then. Not measured


class TuneError(RuntimeError):
    """Nothing can be tuned here."""


@dataclass(frozen=True)
class TunedKernel:
    """The result of a search for one kernel; the times are seconds of a run on its own."""

    name: str
    runs: int
    """The number of times that the function runs it."""
    before: float
    """The seconds with the heuristic's schedule; 0 if it was not searched."""
    after: float
    trials: int
    """The number of schedules that were timed."""
    note: str = ""
    """The reason why it was not searched; empty if it was."""

    @property
    def gain(self) -> float:
        """The speed relative to the heuristic's schedule: 2.0 is twice as fast."""
        return self.before / self.after if self.after else 1.0

    def __str__(self) -> str:
        if self.note:
            return f"{self.name:<36s} {self.note}"
        times = f"{self.before * 1e6:10.1f} us -> {self.after * 1e6:10.1f} us"
        return f"{self.name:<36s} {times}  x{self.gain:.2f}  {self.trials} trials, {self.runs} runs"


@dataclass(frozen=True)
class TuneReport:
    """The kernels, those that took longest first, and the seconds that the search took."""

    kernels: tuple[TunedKernel, ...]
    seconds: float

    def __str__(self) -> str:
        last = f"{len(self.kernels)} kernels tuned in {self.seconds:.1f} s"
        return "\n".join([*map(str, self.kernels), last])


@dataclass
class _Use:
    """The number of runs of a kernel, and their seconds."""

    device: str
    name: str
    runs: int = 0
    seconds: float = 0.0


def tune(
    what: Callable[..., Any] | Tensor | Sequence[Tensor],
    *args: Any,
    seconds: float = 30.0,
    width: int = 16,
) -> TuneReport:
    """Searches for faster schedules of the kernels that a function runs, or that tensors need.

    Args:
        what: a function (captured by `TinyJit` or not), which is called once with `args`, side
            effects included; or lazy tensors, which are realised.
        args: the function's arguments.
        seconds: the time of the search, beside the call itself. Kernels get shares of it in
            proportion to the time that they take.
        width: the number of a kernel's fastest schedules that the search continues from.

    Schedules are compiled, checked against the results of the kernel as it was, and timed in
    another process, which is killed when it hangs. What is found holds from now on, in this
    process and, through the disk cache, in later ones. Where a schedule adds up in another order,
    results may differ from those before in the last bits. A function captured by `TinyJit` is
    captured anew; functions captured inside of it are not.

    Returns:
        The results by kernel; `print` shows them.

    Raises:
        TuneError: inside of a function that is being captured.
        TypeError: `what` is neither a function nor tensors.
        ValueError: `seconds` or `width` is not above 0.

    >>> from ferrule import Tensor
    >>> report = tune(lambda x: x.sum(), Tensor([1.0, 2.0], device="CPU"), seconds=0.01)
    >>> len(report.kernels)
    1
    """
    for name, value in (("seconds", seconds), ("width", width)):
        if not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"tune: {name} is {value!r}; it must be a number above 0")
    if not callable(what) and not tensors_in([what]):
        raise TypeError(f"tune: {type_name(what)} is no function, nor tensors; pass one of these")
    if observer.get() is not None:
        raise TuneError("tune() inside of a captured function: call it before, or afterwards")
    uses = _kernels_of(what, args)
    started = time.monotonic()
    kernels = _search(uses, started + seconds, width)
    if isinstance(what, TinyJit | BoundJit):
        what.reset()
    return TuneReport(tuple(kernels), time.monotonic() - started)


def _kernels_of(
    what: Callable[..., Any] | Tensor | Sequence[Tensor], args: Sequence[Any]
) -> dict[LazyOp, _Use]:
    """The kernels that run when `what` is computed."""
    uses: dict[LazyOp, _Use] = {}

    def watch(
        runner: JITRunner, rawbufs: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> float | None:
        taken = runner(rawbufs, var_vals, wait=True)
        if isinstance(runner, CompiledASTRunner) and runner.ast is not None:
            use = uses.setdefault(runner.ast, _Use(runner.device, runner.name))
            use.runs += 1
            use.seconds += taken or 0.0
        return taken

    with Context(JIT=0, BEAM=0):
        token = observer.set(watch)
        since = watched_since.set(newest_serial())  # kernels are to be those of a capture
        try:
            found = what(*args) if callable(what) else what
            tensors = tensors_in([found])
            if tensors:
                tensors[0].realize(*tensors[1:])
        finally:
            observer.reset(token)
            watched_since.reset(since)
    return uses


def _search(uses: dict[LazyOp, _Use], deadline: float, width: int) -> list[TunedKernel]:
    """Search kernel by kernel, those that take longest first."""
    left = sum(use.seconds for use in uses.values())
    least = _MIN_TIME_SHARE * left
    found = []
    with ExitStack() as stack:
        tuners: dict[str, Tuner] = {}
        for ast, use in sorted(uses.items(), key=lambda item: -item[1].seconds):
            device = Device[use.device]
            assert isinstance(device, Compiled)
            if use.device not in tuners:
                tuners[use.device] = stack.enter_context(device.tuner())
            remaining = deadline - time.monotonic()
            budget = remaining * use.seconds / left if left else remaining
            budget = min(max(budget, _MIN_SECONDS), remaining)
            left -= use.seconds
            if use.seconds < least:
                winner = TunedSchedule((), note="too short to matter")
            elif budget < _MIN_SECONDS:
                winner = TunedSchedule((), note="no time was left")
            else:
                winner = tuners[use.device].tune(ast, budget, width, device.winner(ast))
                device.adopt(ast, winner)
            times = (winner.before, winner.after, winner.trials, winner.note)
            found.append(TunedKernel(use.name, use.runs, *times))
    return found
