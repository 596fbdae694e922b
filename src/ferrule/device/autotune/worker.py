"""The worker process of `measurement.py`: it compiles, checks and times kernels on request."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.base.config import Context
from ferrule.device import Compiled, Device
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, dtypes

_Source: TypeAlias = tuple[str, tuple[int, int] | None]
"""A kernel's text, and its numbers of blocks and of threads in each."""

# None of these is measured.
_SAMPLE_S = 0.03  # seconds to time one candidate
_MIN_SAMPLES = 3  # runs of one candidate, unless they take `_LONG_S` together
_MAX_SAMPLES = 300  # runs of one candidate
_LONG_S = 0.5  # seconds
_MAX_SLOWDOWN = 1.5  # times the best time; a candidate above is not timed further
_BLOCK_S = 0.01  # seconds of a finalist's turn
_RANGES = ((-1.0, 1.0), (0.5, 1.5))  # of random inputs; the second if the first gives no number
# Roundings by which sums that are added up in another order may differ. Not measured.
_ROUNDINGS = 1024


def serve(number: int) -> None:
    """Answer questions from the connection with the file descriptor `number` until it ends."""
    _no_core_dumps()
    connection: Connection[bytes, bytes] = Connection(number)
    bench: _Bench | None = None
    settings: dict[str, Any] = {}
    with suppress(EOFError, OSError):
        while True:
            question = json.loads(connection.recv_bytes())
            # The alarm ends this process even if the kernel hangs.
            signal.setitimer(signal.ITIMER_REAL, question["alarm"])
            answer: dict[str, Any] = {}
            try:
                if question["do"] == "begin":
                    bench = None
                    settings = question["settings"]
                with Context(DEBUG=0, BEAM=0, LRU=0, **settings):
                    if bench is None:
                        bench = _Bench(question["job"])
                    answer["result"] = bench.answer(question)
            except Exception as error:
                answer["error"] = f"{type(error).__name__}: {error}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(json.dumps(answer).encode())


def _no_core_dumps() -> None:
    # Not on every system.
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _register(device: str, opener: str) -> None:
    module, _, name = opener.partition(":")
    Device.register(device.partition(":")[0], getattr(import_module(module), name))


class WrongResultError(ValueError):
    """A candidate's results differ from those of the original kernel."""


@final
class _Bench:
    """The buffers of a kernel, filled with random numbers, and the correct results."""

    def __init__(self, job: dict[str, Any]) -> None:
        if job["opener"] is not None:
            _register(job["device"], job["opener"])
        device = Device[job["device"]]
        assert isinstance(device, Compiled)
        self._device = device
        self._name: str = job["name"]
        self._vals: tuple[int, ...] = tuple(job["vals"])
        self._writes: list[int] = job["writes"]
        self._updated = sorted(set(job["writes"]) & set(job["reads"]))
        self._dtypes = [dtypes.from_name(name) for name, _ in job["slots"]]
        slots = zip(job["slots"], self._dtypes, strict=True)
        self._buffers = [Buffer(device.device, size, dtype) for (_, size), dtype in slots]
        self._handles = [buffer._buf for buffer in self._buffers]
        self._initial: dict[int, Any] = {}
        self._expected: dict[int, Any] = {}
        self._programs: dict[str, Callable[..., float]] = {}

    def answer(self, question: dict[str, Any]) -> float | list[float]:
        match question["do"]:
            case "begin":
                return self._begin(question["source"])
            case "try":
                return self._try(question["source"], question["exact"], question["best"])
            case _:
                return self._compare(question["sources"], question["seconds"])

    def _begin(self, source: _Source) -> float:
        """Fill the buffers, and keep the original kernel's results."""
        program = self._program(source)
        for low, high in _RANGES:
            self._fill(low, high)
            self._run(program)
            self._expected = self._results()
            if all(np.isfinite(values).all() for values in self._expected.values()):
                break
        return self._time(program, float("inf"))

    def _try(self, source: _Source, exact: bool, best: float) -> float:
        program = self._program(source)
        self._restore(self._writes)
        first = self._run(program)
        for slot, found in self._results().items():
            problem = difference(self._dtypes[slot], self._expected[slot], found, exact)
            if problem is not None:
                raise WrongResultError(f"buffer {slot}: {problem}")
        is_far_off = first > max(2 * _MAX_SLOWDOWN * best, _SAMPLE_S / 10)
        return first if is_far_off else self._time(program, best)

    def _compare(self, sources: Sequence[_Source], seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        programs = [self._program(source) for source in sources]
        samples: list[list[float]] = [[] for _ in programs]
        while time.perf_counter() < end or not samples[-1]:
            for program, found in zip(programs, samples, strict=True):
                self._restore(self._updated)
                self._run(program)
                stop = time.perf_counter() + _BLOCK_S
                found.append(self._run(program))
                while time.perf_counter() < stop:
                    found.append(self._run(program))
        return [_quartile(found) for found in samples]

    def _program(self, source: _Source) -> Callable[..., float]:
        text, launch = source
        program = self._programs.get(text)
        if program is None:
            program = self._device.runtime(self._name, self._device.compiler.compile(text))
            if launch is not None:
                blocks, threads = launch
                sizes = {"global_size": [blocks, 1, 1], "local_size": [threads, 1, 1]}
                program = partial(program, **sizes)
            self._programs[text] = program
        return program

    def _run(self, program: Callable[..., float]) -> float:
        return float(program(*self._handles, vals=self._vals, wait=True))

    def _time(self, program: Callable[..., float], best: float) -> float:
        """The lower quartile of some runs; of a few only if it is clearly slower than `best`."""
        samples: list[float] = []
        stop = time.perf_counter() + _SAMPLE_S
        while len(samples) < _MAX_SAMPLES:
            samples.append(self._run(program))
            if len(samples) < _MIN_SAMPLES and sum(samples) < _LONG_S:
                continue
            if time.perf_counter() > stop or min(samples) > _MAX_SLOWDOWN * best:
                break
        return _quartile(samples)

    def _fill(self, low: float, high: float) -> None:
        generator = np.random.default_rng(0)
        for slot, (buffer, dtype) in enumerate(zip(self._buffers, self._dtypes, strict=True)):
            values = _random(generator, dtype, buffer.size, low, high)
            buffer.copyin(_bytes(values))
            if slot in self._writes:
                self._initial[slot] = values

    def _restore(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._buffers[slot].copyin(_bytes(self._initial[slot]))

    def _results(self) -> dict[int, Any]:
        return {slot: self._buffers[slot].toCPU().copy() for slot in self._writes}


def _random(generator: Any, dtype: DType, size: int, low: float, high: float) -> Any:
    """Random values of a dtype; integers are small enough for shifts and products."""
    if dtypes.is_float(dtype):
        values = generator.random(size, np.float64 if dtype.itemsize == 8 else np.float32)
        values *= high - low
        values += low
        return values.astype(dtype.np, copy=False)
    return generator.integers(0, 2 if dtype is dtypes.bool else 8, size).astype(dtype.np)


def _bytes(values: Any) -> memoryview:
    return memoryview(values.view(np.uint8))


def _quartile(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def difference(dtype: DType, expected: Any, found: Any, exact: bool) -> str | None:
    """The difference of two arrays of results, as text; None if they agree.

    Without `exact`, floats may have been added up in another order.

    >>> ones = np.ones(3, np.float32)
    >>> difference(dtypes.float32, ones, ones * np.float32(1 + 1e-6), exact=False)
    >>> difference(dtypes.float32, ones, ones * np.float32(1 + 1e-6), exact=True)
    '3 of 3 values differ, by 9.54e-07 at most'
    """
    if np.array_equal(expected.view(np.uint8), found.view(np.uint8)):
        return None
    a, b = expected.astype(np.float64), found.astype(np.float64)
    allowed = 0.0
    if dtypes.is_float(dtype) and not exact:
        sums = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
        steps = _ROUNDINGS * 2.0**-sums.mantissa_bits + 2 * 2.0**-dtype.mantissa_bits
        size = np.where(np.isfinite(a), np.abs(a), 0.0)
        allowed = steps * np.maximum(size, np.sqrt(np.mean(size**2)))
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
        bad = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (apart <= allowed))
    if not bad.any():
        return None
    return f"{bad.sum()} of {bad.size} values differ, by {apart[bad].max():.3g} at most"
