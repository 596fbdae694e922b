"""Memory of an OpenCL device.

It is shared virtual memory: blocks have addresses, so that a part of a block may begin at any byte.
A part of a `cl_mem` could only begin at places that the device allows.
"""

from __future__ import annotations

import ctypes
from typing import final

import numpy as np

from ferrule.ir.buffer import LRUAllocator, readable_bytes
from ferrule.runtime.opencl.driver import Accelerator, cl

_ALIGNMENT = 64  # bytes, a cache line


@final
class CLMemory:
    """A block of a device's memory, or a part of one, which it keeps alive."""

    __slots__ = ("_owner", "_start", "address", "nbytes", "pointer")

    def __init__(self, owner: cl.SVMAllocation, start: int, nbytes: int) -> None:
        self._owner = owner
        self._start = start
        self.nbytes = nbytes
        self.address = owner.svm_ptr + start
        self.pointer = cl.SVM(owner.buf[start : start + nbytes])
        """The block as OpenCL's functions take it."""

    def part(self, start: int, nbytes: int) -> CLMemory:
        """The `nbytes` bytes from byte `start` on."""
        return CLMemory(self._owner, self._start + start, nbytes)


@final
class CLAllocator(LRUAllocator):
    """Memory of one OpenCL device, as `CLMemory`.

    Copies wait for the kernels before them. A block goes back to the system by a command of the
    same queue, so after the kernels that use it.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def _alloc(self, size: int) -> CLMemory:
        device = self._accelerator.device
        if size > device.max_mem_alloc_size:
            raise MemoryError(
                f"{device.name} gives at most {readable_bytes(device.max_mem_alloc_size)} a block,"
                f" of {readable_bytes(device.global_mem_size)} in all"
            )
        context, queue = self._accelerator.context, self._accelerator.queue
        flags = cl.svm_mem_flags.READ_WRITE
        try:
            owner = cl.SVMAllocation(context, size, _ALIGNMENT, flags, queue)
        except cl.Error as error:
            raise MemoryError(
                f"{device.name}, of {readable_bytes(device.global_mem_size)}, gives no"
                f" {readable_bytes(size)}: {error}"
            ) from error
        return CLMemory(owner, 0, size)

    def copyin(self, dest: CLMemory, src: memoryview) -> None:
        """Copies bytes of the host into the block `dest`."""
        cl.enqueue_copy(self._accelerator.queue, dest.pointer, _host(src), is_blocking=True)

    def copyout(self, dest: memoryview, src: CLMemory) -> None:
        """Copies the block `src` into bytes of the host."""
        cl.enqueue_copy(self._accelerator.queue, _host(dest), src.pointer, is_blocking=True)

    def offset(self, opaque: CLMemory, start: int, nbytes: int) -> CLMemory:
        """The part of a block from byte `start` on."""
        return opaque.part(start, nbytes)


def _host(memory: memoryview) -> cl.SVM[ctypes.Array[ctypes.c_char]]:
    """Host memory as OpenCL's copies take it."""
    # Made from the address, since pyopencl wants to write to whatever it is given.
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return cl.SVM((ctypes.c_char * memory.nbytes).from_address(address))
