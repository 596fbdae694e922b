"""Running native kernels from Python: worker threads, launches, replays. See `native` for the rest.

The workers are daemon threads of Python inside a native function, without the GIL, so nothing but
`threading.Thread` creates and joins them. They are started when first needed. A forked child begins
without any, and at the interpreter's exit they are told to return.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, final

from ferrule.base.config import Config
from ferrule.runtime.cpu import native, native_parts
from ferrule.runtime.cpu.elf import LoadedObject

Launch: TypeAlias = Callable[[bytes, int, int], int]
"""`launch(table, taken, threads)` runs the chunks from `taken` on, at first 0. It returns 0 when
all are done; otherwise the `taken` to go on with.
"""

Replay: TypeAlias = Callable[[int, int, list[int]], int]
"""`replay(0, threads, inputs)` begins, `replay(1, threads, inputs)` goes on: 1 until it is done."""

# Functions that the native code may call. Kernels call memory functions only.
_MEMORY = ("memcpy", "memmove", "memset")
_THREADS = ("clock_gettime", "sched_getcpu", "sched_yield", "syscall")
_POSIX_THREADS = (
    "pthread_cond_broadcast",
    "pthread_cond_wait",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
)

SLOT_BYTES = 8
"""The bytes of an address or a value in a record."""
_MAX_THREADS = 1024
# Bytes; kernels may hold a packed panel or two on the stack, and some systems give threads little.
_STACK_BYTES = 16 << 20
_METH_FASTCALL = 0x80  # of CPython's methodobject.h


def _addresses(library: ctypes.CDLL, names: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for name in names:
        if hasattr(library, name):
            found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return found


process = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
"""The libraries of this process; the C library among them."""

kernel_externals = _addresses(process, _MEMORY)
"""The functions that a kernel may call, with their addresses."""

_has_python_calls = sys.implementation.name == "cpython"


def runtime_source(arch: str) -> str:
    """The source of the native runtime for this interpreter."""
    return native.ir(arch, sys.platform, _has_python_calls)


def runtime_externals() -> dict[str, int]:
    """The functions that the native runtime calls, with their addresses."""
    found = _addresses(process, _MEMORY + _THREADS + _POSIX_THREADS)
    if _has_python_calls:
        found |= _addresses(ctypes.pythonapi, native_parts.PYTHON_FUNCTIONS)
    return found


def runtime_functions() -> tuple[str, ...]:
    """The names of the functions that the native runtime defines."""
    names = [native.WORKER, native.STOP, native.LAUNCH, native.REPLAY]
    names += [native.COPY, native.COPY_EXTENT, native.WHILE, native.WHILE_EXTENT]
    names += [native.SORT, native.SELECT, native.MEDIAN, native.ROWS_EXTENT]
    if _has_python_calls:
        names += [native.PYTHON_LAUNCH, native.PYTHON_REPLAY]
    return tuple(names)


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _python_method(name: bytes, address: int) -> Callable[[int], Any]:
    """A function that binds a native method of Python to its `self`."""
    definition = _MethodDefinition(name, address, _METH_FASTCALL, None)
    new = ctypes.pythonapi.PyCFunction_NewEx
    create = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )(ctypes.cast(new, ctypes.c_void_p).value or 0)

    def bind(self: int) -> Any:
        # The definition must outlive every method; `bind` holds it, and lives with the process.
        return create(ctypes.addressof(definition), self, None)

    return bind


def record(slots: Iterable[int]) -> tuple[array[int], int]:
    """Memory with these 8-byte values in it, as `native` lays out its records, and its address."""
    memory = array("q", slots)
    return memory, memory.buffer_info()[0]


def batch_record(
    items: int,
    n_items: int,
    patches: int,
    n_patches: int,
    pool: int,
    total: int,
    strides: int = 0,
    n_strides: int = 0,
    lanes: int = 0,
    n_lanes: int = 0,
    gate: int = 0,
) -> tuple[array[int], int]:
    """The record of a batch, as `native` lays it out: the addresses and counts of its parts.

    `total` is the number of items to run; beyond `n_items` they are run again. A batch with lanes
    has no items of its own.
    """
    here = [items, n_items, patches, n_patches, pool, 0, 0, total, 0, strides, n_strides]
    return record([*here, lanes, n_lanes, 0, 1, gate])


LANE_THREADS = native.BATCH_LANE_THREADS // SLOT_BYTES
"""The slot of a batch with the number of threads that each of its lanes has."""


def lane_records(lanes: Sequence[tuple[int, int, int]]) -> tuple[array[int], int]:
    """The records of lanes, as `native` lays them out.

    A lane is the addresses of its batch and of its segments, and the number of these.
    """
    padding = [0] * (native.LANE_BYTES // SLOT_BYTES - 5)
    slots = [[0, 0, batch, n_segments, segments, *padding] for batch, segments, n_segments in lanes]
    return record(value for lane in slots for value in lane)


@final
class ThreadPool:
    """Worker threads that share the chunks of a kernel with the thread that calls it.

    `address` is that of its record.
    """

    def __init__(self, worker: Callable[[int], None], stop: Callable[[int], None]) -> None:
        self._worker = worker
        self._stop = stop
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def reset(self, slice_ticks: int, spin_ticks: int) -> None:
        """Reset the pool to rest, without workers: at the start, and in a forked child."""
        self._memory[:] = bytes(mmap.PAGESIZE)
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self._ready = 1
        self._most = _MAX_THREADS
        self.apply_times(slice_ticks, spin_ticks)
        process.pthread_mutex_init(ctypes.c_void_p(self.address + native.POOL_MUTEX), None)
        process.pthread_cond_init(ctypes.c_void_p(self.address + native.POOL_CONDITION), None)

    def apply_times(self, slice_ticks: int, spin_ticks: int) -> None:
        """Apply the times of `NativeRuntime`: the second one for new workers."""
        ctypes.c_int64.from_address(self.address + native.POOL_SLICE).value = slice_ticks
        ctypes.c_int64.from_address(self.address + native.POOL_SPIN).value = spin_ticks

    def threads(self, asked: int) -> int:
        """The number of threads that a kernel gets if so many are asked for; they are started."""
        return asked if asked <= self._ready else self._start(asked)

    def _start(self, asked: int) -> int:
        if not self._lock.acquire(blocking=False):
            return min(asked, self._ready)  # another thread is at it, or this one, if interrupted
        try:
            if asked > self._most:
                asked = self._most
            try:
                while self._ready < asked:
                    self._workers.append(_worker_thread(self._worker, self.address, self._ready))
                    self._ready += 1
            except RuntimeError:
                # The system gives no more threads, so kernels use those that are there.
                self._most = self._ready
            return min(asked, self._ready)
        finally:
            self._lock.release()

    def stop(self) -> None:
        """End the workers, for good: kernels run on the calling thread from now on."""
        with self._lock:
            self._most = self._ready = 1
            self._stop(self.address)
            for worker in self._workers:
                worker.join(timeout=1.0)
            self._workers = []


@final
class NativeRuntime:
    """The loaded native runtime, with its pools of threads. A process has one.

    The first pool is for kernels and for batches. The second one has no workers: threads that run a
    batch of several devices sleep there. Each lane of such a batch has one of the others, so that
    each device has its share of the threads.

    `slice_ticks` and `spin_ticks` are times: how long a call runs before it lets Python in, and how
    long an idle worker looks for work before it sleeps. A tick is one of the time stamp counter (2
    to 5 GHz) on x86-64, and a nanosecond elsewhere.
    """

    def __init__(self, code: LoadedObject, arch: str) -> None:
        self._code = code
        on_x86 = arch == "x86-64"
        self.slice_ticks = 1 << 28 if on_x86 else 60_000_000  # 54 to 130 ms
        self.spin_ticks = 1 << 18 if on_x86 else 60_000  # 54 to 130 us
        self.copy = code.address(native.COPY), code.address(native.COPY_EXTENT)
        """The kernel that copies, and its extent: destination, source, bytes."""
        self.while_ = code.address(native.WHILE), code.address(native.WHILE_EXTENT)
        """The kernel that ends a loop: condition, number of items left, number of trips."""
        symbols = {"sort": native.SORT, "select": native.SELECT, "median": native.MEDIAN}
        self.row_functions = {
            name: (code.address(symbol), code.address(native.ROWS_EXTENT))
            for name, symbol in symbols.items()
        }
        """Kernels of rows of codes, with their extents: see `native_sort`."""
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address(native.WORKER))
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address(native.STOP))
        if _has_python_calls:
            address = code.address
            self._bind_launch = _python_method(b"launch", address(native.PYTHON_LAUNCH))
            self._bind_replay = _python_method(b"replay", address(native.PYTHON_REPLAY))
        self._pools: list[ThreadPool] = []
        self._shared = self._pool(0)
        self.pool = self._shared.address
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.stop)

    @property
    def gate(self) -> int:
        """The address of the record at which threads wait for lanes."""
        return self._pool(1).address

    def _pool(self, number: int) -> ThreadPool:
        """A pool by its number; it has no threads until these are asked for."""
        while len(self._pools) <= number:
            made = ThreadPool(self._worker, self._stop)
            made.reset(self.slice_ticks, self.spin_ticks)
            self._pools.append(made)
        return self._pools[number]

    def _reset(self) -> None:
        for pool in self._pools:
            pool.reset(self.slice_ticks, self.spin_ticks)

    def apply_times(self) -> None:
        """Apply the present `slice_ticks`, and for new workers `spin_ticks`."""
        for pool in self._pools:
            pool.apply_times(self.slice_ticks, self.spin_ticks)

    def threads(self, settings: Config) -> int:
        """The number of threads that these settings give to a kernel; they are started by then."""
        return self._shared.threads(settings.FERRULE_NUM_THREADS)

    def lane_pool(self, number: int) -> int:
        """The address of the pool of the lane with this number."""
        return self._pool(2 + number).address

    def lane_threads(self, settings: Config, n_lanes: int) -> int:
        """The number of threads that each of so many lanes has: its share of those of a kernel."""
        share = settings.FERRULE_NUM_THREADS // n_lanes
        if share <= 1:
            return 1
        return min([self._pool(2 + number).threads(share) for number in range(n_lanes)])

    def stop(self) -> None:
        """End the workers, for good: kernels run on the calling thread from now on."""
        for pool in self._pools:
            pool.stop()

    def launcher(self, record_address: int) -> Launch:
        """The function that runs the program whose record is at an address; see `native`."""
        if _has_python_calls:
            launch: Launch = self._bind_launch(record_address)
            return launch
        arguments = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(self._code.address(native.LAUNCH))
        return partial(function, record_address)

    def replayer(self, record_address: int) -> Replay:
        """The function that runs the batch whose record is at an address; see `native`."""
        if _has_python_calls:
            replay: Replay = self._bind_replay(record_address)
            return replay
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(self._code.address(native.REPLAY))

        def replay_through_ctypes(on: int, threads: int, inputs: list[int]) -> int:
            given = None if on else (ctypes.c_int64 * (len(inputs) or 1))(*inputs)
            return int(function(record_address, given, threads))

        return replay_through_ctypes


def _worker_thread(worker: Callable[[int], None], pool: int, number: int) -> threading.Thread:
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(
            target=worker, args=(pool,), name=f"ferrule-{number}", daemon=True
        )
        thread.start()
        return thread
    finally:
        threading.stack_size(before)
