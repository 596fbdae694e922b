"""Searches for the schedule of a kernel: `codegen/search.py` proposes, `measurement.py` times."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from threading import RLock
from typing import Any, final

from ferrule.base.config import config
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.mutate import Opts, copies
from ferrule.codegen.opt import apply_opts
from ferrule.codegen.search import reassociates, search, slot_sizes
from ferrule.device.autotune.measurement import Job, Source, TrialError, Trials, Worker
from ferrule.device.autotune.tuning_cache import TunedSchedule
from ferrule.device.runner import CompiledASTRunner
from ferrule.ir.buffer import host_memory
from ferrule.ir.expr import as_expr
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.target import allowed

# None of these is measured.
_MIN_GAIN = 0.03  # fraction of the time; a smaller gain is noise, and not worth a program
_MAX_COPIES = 600  # copies of a kernel's statement; a candidate with more is not compiled
_MAX_UOPS = 6000  # UOps of a candidate; one with more takes too long to compile
_FINALISTS = 3  # schedules that are timed against one another at the end
_BUFFER_COPIES = 8  # of the buffers that have to fit: those of the worker, its results, and our own
_FINAL_SHARE = 0.15  # fraction of a search's seconds for the finalists
_MAX_FINAL_S = 1.5  # seconds for the finalists, at most

search_lock = RLock()
"""Held during a search: kernels that are timed at the same time would slow each other down."""


def _after_fork() -> None:
    # The thread that held the lock does not exist in the child.
    global search_lock
    search_lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@final
class Tuner:
    """Finds schedules for kernels of one device, in a worker process.

    The process lives as long as the `with` block. `entry` is the worker's function, as
    "module:function"; `opener` the one registered for the device in this process, if there is one.
    """

    def __init__(
        self, device: str, renderer: Any, entry: str, opener: Callable[..., Any] | None = None
    ) -> None:
        self._device = device
        self._opener = opener
        self._renderer = renderer
        self._worker = Worker(entry)

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def tune(
        self, ast: LazyOp, seconds: float, width: int, known: TunedSchedule | None = None
    ) -> TunedSchedule:
        """The fastest schedule for a kernel that is found within `seconds`, `known` included.

        It never fails: if nothing can be tried, the winner is the heuristic's own schedule.
        """
        deadline = time.monotonic() + seconds
        base = Linearizer(ast, allowed(self._renderer.target))
        if not search_lock.acquire(timeout=max(seconds, 0.0)):
            return TunedSchedule(base.opts, note="another search took all the time")
        try:
            source = _source(base, self._renderer)
            final = min(_FINAL_SHARE * seconds, _MAX_FINAL_S)
            trials = Trials(self._worker, self._job(base), source, deadline, final)
            candidates = _Candidates(base, self._renderer, trials, source)
            winner = candidates.winner(width, known)
        except TrialError as error:
            winner = TunedSchedule(base.opts, note=str(error))
        finally:
            search_lock.release()
        if config().DEBUG >= 1:
            print(f"search {base.name}: {winner}")
        return winner

    def _job(self, base: Linearizer) -> Job:
        """The description of a kernel for the worker."""
        sizes = slot_sizes(base.kernel)
        if sizes is None:
            raise TrialError("where it reads or writes depends on data")
        slots = list(zip(base.kernel.slots, sizes, strict=True))
        if _BUFFER_COPIES * sum(dtype.itemsize * size for dtype, size in slots) > host_memory():
            raise TrialError("its buffers are too large for another process to have them too")
        runner = CompiledASTRunner(base.ast, base.name, "")
        return Job(
            self._device,
            base.name,
            tuple((dtype.name, size) for dtype, size in slots),
            tuple(sorted(runner.reads or ())),
            tuple(sorted(runner.writes)),
            tuple(variable.max for variable in runner.vars),
            None if self._opener is None else _importable(self._device, self._opener),
        )


def _importable(device: str, opener: Callable[..., Any]) -> str:
    """The path of a function for another process, as "module:function"."""
    module, name = getattr(opener, "__module__", ""), getattr(opener, "__name__", "")
    found = getattr(sys.modules.get(module), name, None)
    if module == "__main__" or found is not opener:
        raise TrialError(
            f"device {device} was registered with a function that another process cannot import; "
            "put it at the top of a module, not of a script"
        )
    return f"{module}:{name}"


def _source(k: Linearizer, renderer: Any) -> Source:
    """The source of a kernel and its launch, with the largest values of variables."""
    text: str = renderer.render(k.name, k.linearize().uops)
    launch = k.launch
    if launch is None:
        return Source(text)
    blocks = as_expr(launch.blocks)
    return Source(text, (blocks.infer({v: v.max for v in blocks.vars()}), launch.threads))


@final
class _Candidates:
    """The schedules of one kernel that are tried: each becomes a source, which is timed once."""

    def __init__(self, base: Linearizer, renderer: Any, trials: Trials, source: Source) -> None:
        self._base = base
        self._renderer = renderer
        self._trials = trials
        self._seen = {source}
        self._exact = not reassociates(base.kernel, base.opts)
        self._sources: dict[Opts, Source] = {base.opts: source}

    def winner(self, width: int, known: TunedSchedule | None) -> TunedSchedule:
        """Searches until the time that is left is needed to compare the best."""
        base, trials = self._base, self._trials
        more = () if known is None else (known.opts,)
        found = search(base.kernel, base.target, self._measure, width, trials.is_over, more)
        best = [trial.opts for trial in found if trial.opts != base.opts][:_FINALISTS]
        finalists = [base.opts, *best]
        times = trials.compare([self._sources[opts] for opts in finalists])
        tried = len(self._sources)
        if times is None:
            return TunedSchedule(
                base.opts, trials=tried, note="the worker was lost in the comparison"
            )
        before = times[0]
        after, opts = min(zip(times, finalists, strict=True), key=lambda pair: pair[0])
        if after > (1 - _MIN_GAIN) * before:
            return TunedSchedule(base.opts, before, before, tried)
        return TunedSchedule(opts, before, after, tried)

    def _measure(self, opts: Opts) -> float | None:
        """The seconds of a run; None if there is no program, or it was tried before."""
        if opts == self._base.opts:
            return self._trials.best
        source = self._source(opts)
        if source is None or source in self._seen:
            return None
        self._seen.add(source)
        exact = self._exact and not reassociates(self._base.kernel, opts)
        seconds = self._trials.measure(source, exact)
        if seconds is not None:
            self._sources[opts] = source
        return seconds

    def _source(self, opts: Opts) -> Source | None:
        base = self._base
        # An edit of a schedule need not make sense, and its errors may come from any layer.
        try:
            if copies(apply_opts(base.kernel, opts)) > _MAX_COPIES:
                return None
            k = Linearizer(base.ast, base.target, opts, base.name).linearize()
            if len(k.uops) > _MAX_UOPS:
                return None
            return _source(k, self._renderer)
        except Exception:
            return None
