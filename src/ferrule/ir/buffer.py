"""Memory of a device: `Buffer`, and the `Allocator` that it comes from.

Devices register their allocators in `allocators`. A buffer knows its device by name, so that this
module needs nothing above it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from heapq import heapify, heappop
from itertools import count
from typing import TYPE_CHECKING, Any, Final, final

from ferrule.base.config import config
from ferrule.base.forks import lock_across_forks
from ferrule.base.helpers import GlobalCounters
from ferrule.base.threadstate import Slot, this_thread
from ferrule.ir.dtype import DType, dtypes

if TYPE_CHECKING:
    from numpy import ndarray


class BufferUseError(ValueError):
    """A buffer was asked for something that its size, its dtype or its device does not allow."""


class AllocationSizeError(BufferUseError, AssertionError):
    """An allocator was asked for no memory, or for less."""


class Allocator:
    """Gives, takes back and fills the memory of one device. A device subclasses it.

    Four more methods are optional: `as_buffer(opaque) -> memoryview` for memory that the host can
    address (`Buffer.toCPU` then copies nothing), `offset(opaque, start, nbytes) -> opaque` for a
    part of a block (`Buffer.view` needs it), `adopt(bytes) -> opaque` for a block in the memory
    of a NumPy array, which it keeps alive (`Buffer.lent` needs it), and `transfer(dest, src)` for
    copies inside the device and between devices of this kind, without the host.
    """

    __slots__ = ()

    def alloc(self, size: int) -> Any:
        """`size` bytes of memory.

        Raises `AllocationSizeError` (also an `AssertionError`) for a size below 1, `MemoryError`
        where there is no room.
        """
        if size <= 0:
            raise AllocationSizeError(
                f"alloc({size}): the size must be positive; an empty Buffer needs no memory"
            )
        return self._alloc(size)

    def free(self, opaque: Any, size: int) -> None:
        """Take back memory that `alloc(size)` gave."""
        self._free(opaque)

    def _alloc(self, size: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define _alloc(size)")

    def _free(self, opaque: Any) -> None:
        """Do nothing: the opaque object owns its memory."""

    def copyin(self, dest: Any, src: memoryview) -> None:
        """Copies bytes of the host into the block `dest`."""
        raise NotImplementedError(f"{type(self).__name__} does not define copyin(dest, src)")

    def copyout(self, dest: memoryview, src: Any) -> None:
        """Copies the block `src` into bytes of the host."""
        raise NotImplementedError(f"{type(self).__name__} does not define copyout(dest, src)")


def host_memory() -> int:
    """The bytes of physical memory of this machine; a large number where that is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


_system: Final = lock_across_forks()
"""Held while memory comes from the system or goes back, in any allocator; lists of kept blocks need
no lock."""
_HOST_MEMORY = host_memory()
_MIN_KEPT_BYTES = 64 << 20  # bytes that may be kept however few are in use; not measured


def readable_bytes(size: int) -> str:
    """A number of bytes in the largest unit that leaves at least one.

    >>> readable_bytes(3 << 20), readable_bytes(12)
    ('3.0 MiB', '12 bytes')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} bytes"


class LRUAllocator(Allocator):
    """Keeps freed blocks for requests of the same size; the blocks unused for longest go first.

    Memory in use and kept memory never exceed the budget together: the argument, else
    `FERRULE_MEMORY_LIMIT`, else `capacity`, the memory that there is (by default the host's).
    Without a budget or a limit they stay below about twice the peak of memory in use: sizes that
    come again find their blocks, and sizes that never do leave none behind. With `LRU=0` nothing is
    kept. Safe to use from several threads, and from a destructor.
    """

    def __init__(self, budget: int | None = None, capacity: int | None = None) -> None:
        self._budget = budget
        self._capacity = _HOST_MEMORY if capacity is None else capacity
        self._held = 0
        self._most_used = 0
        self._next_look = _MIN_KEPT_BYTES
        """The bytes held at which `_trim` next compares them with the bytes in use."""
        self._clock = count()
        # For each size the kept blocks with the time of their return, the oldest first.
        self._kept: dict[int, list[tuple[int, Any]]] = {}

    @property
    def budget(self) -> int:
        """The bytes that may be in use and kept together."""
        if self._budget is not None:
            return self._budget
        return config().FERRULE_MEMORY_LIMIT or self._capacity

    @property
    def cached(self) -> int:
        """The bytes that are kept."""
        return sum([size * len(kept) for size, kept in list(self._kept.items())])

    @property
    def used(self) -> int:
        """The bytes that are in use."""
        return self._held - self.cached

    def alloc(self, size: int) -> Any:
        """`size` bytes: a kept block of that size if there is one, else new memory.

        Raises `AllocationSizeError` for a size below 1. Raises `MemoryError` if `size` exceeds the
        budget less the bytes in use, or if the device has no memory left after all kept blocks were
        freed.
        """
        try:
            return self._kept[size].pop()[1]
        except LookupError:
            pass  # nothing of that size is kept
        with _system:
            self._make_room(size)
            opaque = self._alloc_or_flush(size)
            self._held += size
            return opaque

    def free(self, opaque: Any, size: int) -> None:
        """Take back memory that `alloc(size)` gave, and keep it unless `LRU=0`."""
        settings = config()
        if not settings.LRU:
            with _system:
                self._give_back(opaque, size)
            return
        kept = self._kept.get(size)
        if kept is None:
            kept = self._kept.setdefault(size, [])
        kept.append((next(self._clock), opaque))
        if self._kept.get(size) is not kept:  # it was empty, and has been dropped meanwhile
            with _system:
                self._put(size, kept)
        if settings.FERRULE_MEMORY_LIMIT is not None:  # it may have been lowered since
            with _system:
                self._evict_until(self.budget)

    def free_cache(self) -> None:
        """Give all kept blocks back to the system."""
        with _system:
            self._evict_until(0)

    def _make_room(self, size: int) -> None:
        budget = self.budget
        if self._held + size > budget and self.used + size <= budget:
            self._evict_until(budget - size)
        if self._held + size > budget:
            raise MemoryError(
                f"{readable_bytes(size)} asked for, {readable_bytes(self.used)} in use, and the "
                f"budget is {readable_bytes(budget)}; free tensors, or raise FERRULE_MEMORY_LIMIT"
            )
        is_given = self._budget is not None or config().FERRULE_MEMORY_LIMIT is not None
        if self._held + size > self._next_look and not is_given:
            self._trim(size)

    def _trim(self, size: int) -> None:
        """Free the blocks unused for longest, if much more is held than was ever in use.

        Taking and returning kept blocks does not count the bytes in use. So they are counted here,
        whenever an eighth more is held.
        """
        self._most_used = max(self._most_used, self.used + size)
        most = 2 * self._most_used + _MIN_KEPT_BYTES
        if self._held + size > most:
            self._evict_until(most * 3 // 4 - size)
        self._next_look = self._held + size + max(_MIN_KEPT_BYTES, self._most_used) // 8

    def _alloc_or_flush(self, size: int) -> Any:
        try:
            return super().alloc(size)
        except MemoryError:
            self.free_cache()
        try:
            return super().alloc(size)
        except MemoryError as error:
            raise MemoryError(
                f"{readable_bytes(size)} asked for, {readable_bytes(self.used)} in use: "
                f"the device has no memory left ({error})"
            ) from error

    def _evict_until(self, limit: int) -> None:
        """Free the blocks unused for longest until at most `limit` bytes are held, or no block."""
        if self._held <= limit:
            return
        # Other threads, and destructors, take and give meanwhile.
        sizes = list(self._kept.items())
        by_age = [(time, size) for size, kept in sizes for time, _ in list(kept)]
        heapify(by_age)
        while by_age and self._held > limit:
            _, size = heappop(by_age)
            try:
                _, opaque = self._kept[size].pop(0)
            except LookupError:
                continue  # somebody was faster
            self._give_back(opaque, size)
            kept = self._kept.get(size)
            if not kept:  # or sizes that never come again would fill the table
                self._put(size, self._kept.pop(size, []))

    def _put(self, size: int, kept: list[tuple[int, Any]]) -> None:
        """Have these blocks of one size in the table, if there are any."""
        while kept:
            now = self._kept.setdefault(size, kept)
            if now is kept:
                return
            try:
                now.append(kept.pop())
            except IndexError:
                return  # another thread took the last one

    def _give_back(self, opaque: Any, size: int) -> None:
        self._held -= size
        self._free(opaque)


class _Allocators(dict[str, Allocator]):
    """Allocators by device name; a device that is not open yet is opened at first use."""

    opener: Callable[[str], Allocator] | None = None

    def __missing__(self, device: str) -> Allocator:
        if self.opener is None:
            raise KeyError(f"device {device} has no allocator; import ferrule.device to open it")
        return self.opener(device)


allocators = _Allocators()

# Called before a buffer's contents go to the host; a capture forbids that, since its replays would
# not see other contents.
read_guard: Slot[Callable[[Buffer], None]] = Slot("read_guard")
_serials = count(1)


def newest_serial() -> int:
    """A serial number above those of all buffers so far, and below those of all to come."""
    return next(_serials)


@final
class Buffer:
    """`size` elements of `dtype` in the memory of `device`, given back when nothing refers to it.

    `serial` is unique and never used again; `filled` tells whether the host has put something in.
    An `opaque` handle that is passed in belongs to the caller and is not freed. A buffer of size 0
    has no memory: its `_buf` is None.

    Raises `BufferUseError` for a negative size, `MemoryError` where the device has no room.
    """

    __slots__ = (
        "__weakref__",
        "_allocator",
        "_base",
        "_buf",
        "_exports",
        "_version",
        "byte_offset",
        "device",
        "dtype",
        "filled",
        "nbytes",
        "serial",
        "size",
    )

    _allocator: Allocator | None
    _base: Buffer | None
    _buf: Any
    _exports: list[Callable[[], object]]
    """References to the live arrays that share the memory. Arrays die in any thread, amid anything:
    adding to a list and removing are single steps, which `+= 1` and `-= 1` need not be."""

    def __init__(self, device: str, size: int, dtype: DType, opaque: Any = None) -> None:
        self._allocator = None
        self._base = None
        self._exports = []
        self._version = 0
        self.byte_offset = 0
        self.filled = False
        self.device = device
        self.size = size
        self.dtype = dtype
        self.serial = next(_serials)
        nbytes = size * dtype.itemsize
        self.nbytes = nbytes
        self._buf = opaque
        if opaque is None and size != 0:
            if size < 0:
                raise BufferUseError(f"Buffer: the size {size} is negative")
            allocator = allocators[device]
            try:
                self._buf = allocator.alloc(nbytes)
            except MemoryError as error:
                raise MemoryError(f"{self._description()}: {error}") from error
            self._allocator = allocator
            GlobalCounters.mem_used += nbytes

    def __del__(self) -> None:
        # Set only after the memory was given: a constructor that failed has nothing to free.
        allocator = self._allocator
        if allocator is not None:
            nbytes = self.nbytes
            GlobalCounters.mem_used -= nbytes
            allocator.free(self._buf, nbytes)

    def _description(self) -> str:
        return f"Buffer of {self.size} x {self.dtype} ({self.nbytes} bytes) on {self.device}"

    def __repr__(self) -> str:
        part = "" if self._base is None else f" at byte {self.byte_offset} of #{self._base.serial}"
        return f"<Buffer #{self.serial} {self.device} {self.size} {self.dtype}{part}>"

    # *** parts ***

    @property
    def base(self) -> Buffer:
        """The buffer that owns the memory: this one, unless it is a view."""
        return self if self._base is None else self._base

    @property
    def exports(self) -> int:
        """The number of live arrays that share this memory, made by `toCPU` or lent."""
        return len(self.arrays)

    @property
    def arrays(self) -> list[object]:
        """The live arrays that share this memory; `exports` stays while somebody holds these."""
        base = self if self._base is None else self._base
        if not base._exports:
            return []
        found = [reference() for reference in base._exports[:]]
        return [array for array in found if array is not None]

    @property
    def version(self) -> int | None:
        """A number that grows with each write to this memory.

        None while arrays share the memory, since others may then write there unseen.
        """
        base = self if self._base is None else self._base
        return None if base._exports else base._version

    def note_write(self) -> None:
        """Count a finished write; `copyin` and every run of a kernel do so."""
        base = self if self._base is None else self._base
        base._version += 1

    def view(self, offset: int, size: int, dtype: DType | None = None) -> Buffer:
        """The `size` elements of `dtype` (this buffer's, unless given) from element `offset` on.

        The view shares the memory and keeps it alive. Raises `BufferUseError` where the part does
        not lie inside.
        """
        dtype = self.dtype if dtype is None else dtype
        start = offset * dtype.itemsize
        stop = start + size * dtype.itemsize
        if offset < 0 or size < 0 or stop > self.nbytes:
            raise BufferUseError(
                f"view({offset}, {size}, {dtype}) of {self}: "
                f"bytes {start}..{stop} are not inside its {self.nbytes}"
            )
        base = self.base
        byte_offset = self.byte_offset + start
        opaque = None
        if size != 0:
            opaque = self._part(byte_offset, size * dtype.itemsize)
        part = Buffer.__new__(Buffer)
        part._allocator = None
        part._base = base
        part._buf = opaque
        part._exports = []
        part._version = 0
        part.byte_offset = byte_offset
        part.device = self.device
        part.dtype = dtype
        part.filled = False
        part.nbytes = size * dtype.itemsize
        part.serial = next(_serials)
        part.size = size
        return part

    def _part(self, byte_offset: int, nbytes: int) -> Any:
        offset = getattr(allocators[self.device], "offset", None)
        if offset is None:
            raise BufferUseError(
                f"view of {self}: memory of {self.device} cannot be taken in parts"
            )
        return offset(self.base._buf, byte_offset, nbytes)

    # *** to and from the host ***

    def copyin(self, mv: memoryview) -> Buffer:
        """Fills the buffer with the bytes of `mv`, and returns it.

        Other objects that lend their memory, such as bytes and arrays, do as well. Raises
        `BufferUseError` where the lengths in bytes differ, or `mv` is not contiguous.
        """
        mv = memoryview(mv)
        if mv.nbytes != self.nbytes:
            raise BufferUseError(f"copyin: {mv.nbytes} bytes do not fill the {self._description()}")
        if not mv.c_contiguous:
            raise BufferUseError("copyin: the memory is not contiguous; copy it first")
        self.base.filled = True
        if self.size != 0:
            allocators[self.device].copyin(self._buf, mv.cast("B"))
        self.note_write()
        return self

    def copyout(self, mv: memoryview) -> memoryview:
        """Copies the buffer into the bytes of `mv`, and returns it. Raises as `copyin` does."""
        mv = memoryview(mv)
        if mv.nbytes != self.nbytes:
            raise BufferUseError(
                f"copyout: the {self._description()} does not fill {mv.nbytes} bytes"
            )
        if not mv.c_contiguous:
            raise BufferUseError("copyout: the memory is not contiguous")
        _announce_read(self)
        if self.size != 0:
            allocators[self.device].copyout(mv.cast("B"), self._buf)
        return mv

    def toCPU(self) -> ndarray[Any, Any]:
        """A flat NumPy array of the contents.

        Where the host can address the memory, the array shares it, read-only, and keeps it alive;
        `exports` counts such arrays. Elsewhere it is a copy.
        """
        import numpy

        _announce_read(self)
        if self.size == 0:
            return numpy.empty(0, self.dtype.np)
        as_buffer = getattr(allocators[self.device], "as_buffer", None)
        if as_buffer is None:
            return self.copied((self.size,))
        array = numpy.frombuffer(as_buffer(self._buf).toreadonly(), self.dtype.np)
        base = self.base
        export = weakref.ref(array)
        base._exports.append(export)
        base.note_write()  # in advance: the owner of the array may write to it
        # Views of the array keep it alive, and the finalizer keeps the memory until then.
        weakref.finalize(array, _end_export, base, export).atexit = False
        return array

    def borrowed(self) -> ndarray[Any, Any]:
        """`toCPU` for callers that drop the array before anything else runs: it is no export."""
        import numpy

        as_buffer = getattr(allocators[self.device], "as_buffer", None)
        if as_buffer is None or self.size == 0:
            return self.toCPU()
        _announce_read(self)
        return numpy.frombuffer(as_buffer(self._buf).toreadonly(), self.dtype.np)

    def fill(self, values: ndarray[Any, Any]) -> None:
        """Fill the buffer with its number of values, row-major, cast to its own dtype.

        Raises `BufferUseError` for more or fewer values.
        """
        import numpy

        if values.size != self.size:
            raise BufferUseError(f"fill: {values.size} values for the {self._description()}")
        as_buffer = getattr(allocators[self.device], "as_buffer", None)
        if as_buffer is None or self.size == 0:
            array = numpy.ascontiguousarray(values, self.dtype.np)
            self.copyin(array.reshape(-1).view(numpy.uint8).data)
            return
        self.base.filled = True
        own = numpy.frombuffer(as_buffer(self._buf), self.dtype.np)
        numpy.copyto(own.reshape(values.shape), values, casting="unsafe")
        self.note_write()

    def copied(self, shape: tuple[int, ...]) -> ndarray[Any, Any]:
        """A NumPy array of that shape, row-major, with a copy of the contents."""
        import numpy

        array: ndarray[Any, Any] = numpy.empty(shape, self.dtype.np)
        self.copyout(array.reshape(-1).view(numpy.uint8).data)
        return array

    @staticmethod
    def fromCPU(device: str, x: ndarray[Any, Any]) -> Buffer:
        """A new buffer on `device` with a copy of the array, row-major."""
        import numpy

        buffer = Buffer(device, x.size, dtypes.from_np(x.dtype))
        flat = numpy.ascontiguousarray(x).reshape(-1)
        return buffer.copyin(flat.view(numpy.uint8).data)

    @staticmethod
    def lent(device: str, x: ndarray[Any, Any]) -> Buffer | None:
        """A buffer on `device` in the memory of a flat array, which it keeps alive.

        Nothing writes there, as with memory that was handed out. None if the device does not work
        in the host's memory. None as well if the array is empty, not contiguous, or not aligned to
        its elements.
        """
        import numpy

        adopt = getattr(allocators[device], "adopt", None)
        if (
            adopt is None
            or x.ndim != 1
            or x.size == 0
            or not (x.flags.c_contiguous and x.flags.aligned)
        ):
            return None
        buffer = Buffer(device, x.size, dtypes.from_np(x.dtype), adopt(x.view(numpy.uint8)))
        buffer._exports.append(lambda: x)
        buffer.filled = True
        return buffer


@final
class Salvage(Allocator):
    """Moves the memory of a buffer to a new one when nothing refers to the buffer any more.

    The contents stay as they are. The memory is freed with the new buffer.
    """

    __slots__ = ("_allocator", "_device", "_dtype", "_size", "buffer")

    def __init__(self, old: Buffer, allocator: Allocator) -> None:
        self._allocator = allocator
        self._device = old.device
        self._size = old.size
        self._dtype = old.dtype
        self.buffer: Buffer | None = None
        """The new buffer; None while something refers to the old one."""
        old._allocator = self

    @staticmethod
    def of(old: Buffer) -> Salvage | None:
        """The one of this buffer; None if the buffer does not own its memory."""
        allocator = old._allocator
        if type(allocator) is Salvage:
            return allocator
        return None if allocator is None else Salvage(old, allocator)

    def free(self, opaque: Any, size: int) -> None:
        """Take the memory of the old buffer."""
        self.buffer = buffer = Buffer(self._device, self._size, self._dtype, opaque)
        buffer._allocator = self._allocator
        GlobalCounters.mem_used += size


def note_writes(buffers: Iterable[Buffer]) -> None:
    """Count a finished write to each buffer."""
    for buffer in buffers:
        base = buffer._base
        if base is None:
            base = buffer
        base._version += 1


def _announce_read(buffer: Buffer) -> None:
    guard = this_thread.state.read_guard
    if guard is not None:
        guard(buffer)


def _end_export(base: Buffer, export: weakref.ref[Any]) -> None:
    base._exports.remove(export)
