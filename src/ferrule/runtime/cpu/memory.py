"""Host memory for kernels."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any, TypeAlias, final

from ferrule.ir.buffer import LRUAllocator

_ALIGNMENT = 64  # bytes, a cache line, and the widest vector register
_MAPPED_FROM = 64 << 10  # bytes; larger blocks are mappings of their own. Not measured
_HUGE_PAGE = 2 << 20  # bytes, on x86-64 and most of AArch64


Owner: TypeAlias = bytearray | mmap.mmap | memoryview


@final
class CPUMemory:
    """A block of host memory, or a part of one, which it keeps alive."""

    __slots__ = ("_owner", "_start", "address", "nbytes")

    def __init__(self, owner: Owner, start: int, nbytes: int, address: int) -> None:
        self._owner = owner
        self._start = start
        self.nbytes = nbytes
        self.address = address

    def view(self) -> memoryview:
        """The bytes, not copied; the view keeps the memory alive."""
        return memoryview(self._owner)[self._start : self._start + self.nbytes]

    def part(self, start: int, nbytes: int) -> CPUMemory:
        """The `nbytes` bytes from byte `start` on."""
        return CPUMemory(self._owner, self._start + start, nbytes, self.address + start)


def _ask_for_huge_pages(pages: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without them says no, and small pages do as well.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)


def _address_of(owner: bytearray | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(owner))


class CPUAllocator(LRUAllocator):
    """Host memory, aligned to 64 bytes, as `CPUMemory`.

    The first touch of a page costs more than most kernels that touch it. So freed blocks are kept
    (`LRUAllocator`), and large blocks ask for huge pages, which take a tenth of the time.
    """

    def _alloc(self, size: int) -> CPUMemory:
        if size < _MAPPED_FROM:
            small = bytearray(size + _ALIGNMENT)
            address = _address_of(small)
            start = -address % _ALIGNMENT
            return CPUMemory(small, start, size, address + start)
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"the system has no room for {size} bytes: {error}") from error
        if size >= _HUGE_PAGE:
            _ask_for_huge_pages(pages)
        return CPUMemory(pages, 0, size, _address_of(pages))

    def copyin(self, dest: CPUMemory, src: memoryview) -> None:
        """Copies bytes of the host into the block `dest`."""
        dest.view()[:] = src

    def copyout(self, dest: memoryview, src: CPUMemory) -> None:
        """Copies the block `src` into bytes of the host."""
        dest[:] = src.view()

    def as_buffer(self, opaque: CPUMemory) -> memoryview:
        """The block's own bytes; the view keeps the memory alive."""
        return opaque.view()

    def offset(self, opaque: CPUMemory, start: int, nbytes: int) -> CPUMemory:
        """The part of a block from byte `start` on."""
        return opaque.part(start, nbytes)

    def adopt(self, array: Any) -> CPUMemory:
        """The memory of a flat NumPy array of bytes, which is kept alive."""
        return CPUMemory(array.data, 0, array.nbytes, array.ctypes.data)
