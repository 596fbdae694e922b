"""Memory of a GPU, and copies to it, from it and between two.

Memory comes from `cuMemAlloc`, not from the driver's own pools. `LRUAllocator` is a pool already,
and graphs and other GPUs may use such memory without further calls. It is given back so rarely that
waiting for the GPU then costs nothing.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import cache, partial
from threading import Lock
from typing import final

from ferrule.base.records import dataclass
from ferrule.ir.buffer import LRUAllocator, readable_bytes
from ferrule.runtime.cuda.driver import GPU, CUDAMemoryError, bindings, check


@final
@dataclass(frozen=True, slots=True)
class CUDAMemory:
    """A block of a GPU's memory, or a part of one."""

    address: int
    nbytes: int
    gpu: GPU

    def part(self, start: int, nbytes: int) -> CUDAMemory:
        """The `nbytes` bytes from byte `start` on; it does not keep the block."""
        return CUDAMemory(self.address + start, nbytes, self.gpu)

    def overlaps(self, other: CUDAMemory) -> bool:
        """True if the two blocks have a byte in common."""
        return (
            self.gpu is other.gpu
            and self.address < other.address + other.nbytes
            and other.address < self.address + self.nbytes
        )


_SLOT_BYTES = 4 << 20  # bytes of pinned memory of a slot; not measured
_N_SLOTS = 2


@final
class _Slot:
    """Pinned memory of the host, which the GPU reads and writes by itself."""

    def __init__(self, gpu: GPU) -> None:
        driver = bindings()
        self.address = int(check(driver.cuMemAllocHost(_SLOT_BYTES), "pinning memory"))
        self.view = memoryview((ctypes.c_ubyte * _SLOT_BYTES).from_address(self.address)).cast("B")
        self.done = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        """The event of the last copy to or from here."""
        weakref.finalize(
            self,
            gpu.release,
            partial(driver.cuEventSynchronize, self.done),
            partial(driver.cuEventDestroy, self.done),
            partial(driver.cuMemFreeHost, self.address),
        )

    def wait(self) -> None:
        """Wait for the last copy to or from here."""
        check(bindings().cuEventSynchronize(self.done), "a copy between host and GPU")


@final
class Staging:
    """Copies between a GPU and any memory of the host, by way of pinned memory in several slots.

    While one slot is filled or emptied, the GPU copies to or from another.
    """

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        self._lock = Lock()
        self._slots: deque[_Slot] = deque()

    def _next(self) -> _Slot:
        if len(self._slots) < _N_SLOTS:
            self._slots.append(_Slot(self._gpu))
        self._slots.rotate()
        return self._slots[0]

    def upload(self, address: int, src: memoryview) -> None:
        """Queues a copy of bytes of the host; they may change as soon as this returns."""
        driver = bindings()
        with self._lock:
            self._gpu.activate()
            for start in range(0, src.nbytes, _SLOT_BYTES):
                part = src[start : start + _SLOT_BYTES]
                slot = self._next()
                slot.wait()
                slot.view[: part.nbytes] = part
                stream = self._gpu.stream
                copy = driver.cuMemcpyHtoDAsync(address + start, slot.address, part.nbytes, stream)
                check(copy, "a copy to the GPU")
                check(driver.cuEventRecord(slot.done, stream))

    def download(self, dest: memoryview, address: int) -> None:
        """Copies to bytes of the host, which are there when this returns."""
        driver = bindings()
        under_way: deque[tuple[_Slot, memoryview]] = deque()
        with self._lock:
            self._gpu.activate()
            for start in range(0, dest.nbytes, _SLOT_BYTES):
                part = dest[start : start + _SLOT_BYTES]
                slot = self._next()
                stream = self._gpu.stream
                copy = driver.cuMemcpyDtoHAsync(slot.address, address + start, part.nbytes, stream)
                check(copy, "a copy from the GPU")
                check(driver.cuEventRecord(slot.done, stream))
                under_way.append((slot, part))
                if len(under_way) == _N_SLOTS:
                    _take(*under_way.popleft())
            for slot, part in under_way:
                _take(slot, part)


def _take(slot: _Slot, dest: memoryview) -> None:
    slot.wait()
    dest[:] = slot.view[: dest.nbytes]


@final
class CUDAAllocator(LRUAllocator):
    """The memory of one GPU, as `CUDAMemory`. Freed blocks are kept for later requests.

    A block may be given out again while work that uses it is still queued: the work of its next
    owner is queued after that.
    """

    def __init__(self, gpu: GPU) -> None:
        super().__init__(capacity=gpu.total_bytes)
        self.gpu = gpu
        self._staging = Staging(gpu)

    def _alloc(self, size: int) -> CUDAMemory:
        self.gpu.activate()
        try:
            address = int(check(bindings().cuMemAlloc(size), f"{size} bytes"))
        except CUDAMemoryError as error:
            free, total = self.gpu.free_bytes(), self.gpu.total_bytes
            raise MemoryError(
                f"{readable_bytes(free)} of {readable_bytes(total)} are free on {self.gpu.name}"
            ) from error
        return CUDAMemory(address, size, self.gpu)

    def _free(self, opaque: CUDAMemory) -> None:
        driver = bindings()
        self.gpu.release(
            partial(driver.cuStreamSynchronize, self.gpu.stream),
            partial(driver.cuMemFree, opaque.address),
        )

    def copyin(self, dest: CUDAMemory, src: memoryview) -> None:
        """Queues a copy of bytes of the host to the block `dest`; they may change at once."""
        self._staging.upload(dest.address, src)

    def copyout(self, dest: memoryview, src: CUDAMemory) -> None:
        """Copies the block `src` to bytes of the host, after all work that is queued."""
        self._staging.download(dest, src.address)

    def offset(self, opaque: CUDAMemory, start: int, nbytes: int) -> CUDAMemory:
        """The part of a block from byte `start` on."""
        return opaque.part(start, nbytes)

    def transfer(self, dest: CUDAMemory, src: CUDAMemory) -> None:
        """Queues a copy of the block `src`, of this GPU or another, to `dest`, of this GPU."""
        if dest.gpu is not src.gpu:
            _copy_across(dest, src)
        elif dest.overlaps(src):
            between = self.alloc(src.nbytes)
            _copy_inside(between, src)
            _copy_inside(dest, between)
            self.free(between, src.nbytes)
        else:
            _copy_inside(dest, src)


def _copy_inside(dest: CUDAMemory, src: CUDAMemory) -> None:
    dest.gpu.activate()
    stream = dest.gpu.stream
    copy = bindings().cuMemcpyDtoDAsync(dest.address, src.address, src.nbytes, stream)
    check(copy, "a copy inside the GPU")


def _copy_across(dest: CUDAMemory, src: CUDAMemory) -> None:
    """Queue a copy after all work on both GPUs, and before all work that is queued on
    either later.
    """
    to, origin = dest.gpu, src.gpu
    allow_access(to, origin)
    wait_for(to, origin)
    to.activate()
    copy = bindings().cuMemcpyPeerAsync(
        dest.address, to.context, src.address, origin.context, src.nbytes, to.stream
    )
    check(copy, "a copy between GPUs")
    wait_for(origin, to)


def wait_for(gpu: GPU, other: GPU) -> None:
    """Let work that is queued on one GPU from now on wait for the work that is queued on
    another.
    """
    driver = bindings()
    other.activate()
    event = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    check(driver.cuEventRecord(event, other.stream))
    gpu.activate()
    check(driver.cuStreamWaitEvent(gpu.stream, event, 0))
    other.activate()
    check(driver.cuEventDestroy(event))  # the driver frees it when nothing waits for it any more


@cache
def allow_access(gpu: GPU, other: GPU) -> None:
    """Let a GPU read the memory of another directly, if they are connected.

    Otherwise the driver copies by way of the host, also if a GPU has as many peers as it can have.
    """
    driver = bindings()
    if check(driver.cuDeviceCanAccessPeer(gpu.handle, other.handle)):
        gpu.activate()
        (code,) = driver.cuCtxEnablePeerAccess(other.context, 0)
        results = driver.CUresult
        if code not in (
            results.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            results.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            results.CUDA_ERROR_TOO_MANY_PEERS,
        ):
            check((code,), "access to another GPU")
