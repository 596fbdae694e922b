"""Buffers: their memory, its parts, arrays that share it; and the allocator that keeps blocks."""

import gc
import math
import threading
import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.effort import calls

import ferrule.ir.buffer
from ferrule.base.config import Context
from ferrule.device import Device
from ferrule.dtype import DType, dtypes
from ferrule.helpers import GlobalCounters
from ferrule.ir.buffer import Allocator, Buffer, BufferUseError, LRUAllocator, allocators


class Counting(LRUAllocator):
    """Blocks are numbers; a block that is freed twice, or given out twice, fails the test."""

    def __init__(self, budget: int | None = None, room: int = 1 << 60) -> None:
        super().__init__(budget)
        self.room = room
        self.made = 0
        self.live: dict[int, int] = {}

    def _alloc(self, size: int) -> Any:
        if sum(self.live.values()) + size > self.room:
            raise MemoryError("the test has no more")
        self.made += 1
        self.live[self.made] = size
        return self.made

    def _free(self, opaque: Any) -> None:
        del self.live[opaque]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    allocator = Counting()
    monkeypatch.setitem(allocators, "COUNTING", allocator)
    return allocator


# *** buffers ***


def test_serials_are_never_used_again() -> None:
    serials = [Buffer("NUMPY", 4, dtypes.float32).serial for _ in range(100)]
    assert serials == sorted(set(serials))


def test_memory_is_counted(counting: Counting) -> None:
    before = GlobalCounters.mem_used
    buffer = Buffer("COUNTING", 10, dtypes.float64)
    assert GlobalCounters.mem_used == before + 80
    assert buffer.nbytes == 80
    part = buffer.view(2, 0)
    del buffer
    assert GlobalCounters.mem_used == before + 80
    del part
    assert GlobalCounters.mem_used == before


def test_an_empty_buffer_takes_no_memory(counting: Counting) -> None:
    buffer = Buffer("COUNTING", 0, dtypes.float32)
    assert buffer._buf is None
    assert counting.made == 0
    assert buffer.toCPU().shape == (0,)
    buffer.copyin(memoryview(b""))


def test_memory_of_the_caller_is_not_freed(counting: Counting) -> None:
    before = GlobalCounters.mem_used
    buffer = Buffer("COUNTING", 4, dtypes.float32, opaque=123)
    assert buffer._buf == 123
    assert GlobalCounters.mem_used == before
    del buffer
    assert counting.used == 0


def test_a_constructor_that_fails_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(allocators, "COUNTING", Counting(room=8))
    gc.collect()  # what other tests left
    before = GlobalCounters.mem_used
    with pytest.raises(MemoryError, match=r"COUNTING: 4.0 KiB asked for"):
        Buffer("COUNTING", 1024, dtypes.float32)
    gc.collect()
    assert GlobalCounters.mem_used == before


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_round_trip(device: str, dtype: DType) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype.np)
    buffer = Buffer.fromCPU(device, array.T)
    assert (buffer.size, buffer.dtype) == (6, dtype)
    result = buffer.toCPU()
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array.T.reshape(-1))


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_whatever_lends_its_memory_is_copied(device: str) -> None:
    buffer = Buffer(device, 3, dtypes.int16)
    numbers = np.array([1, 2, 3], np.int16)
    for lender in (numbers, numbers.tobytes(), bytearray(numbers.tobytes()), memoryview(numbers)):
        assert buffer.copyin(lender) is buffer  # type: ignore[arg-type]
        found = np.zeros(3, np.int16)
        buffer.copyout(found)  # type: ignore[arg-type]
        assert found.tolist() == [1, 2, 3]
    with pytest.raises(BufferUseError, match="copyin: the memory is not contiguous"):
        buffer.copyin(np.zeros(6, np.int16)[::2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes-like object is required, not 'int'"):
        buffer.copyin(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_parts_share_memory_and_keep_it(device: str) -> None:
    whole = Buffer.fromCPU(device, np.arange(8, dtype=np.int32))
    part = whole.view(2, 4)
    inner = part.view(1, 2)
    bits = part.view(0, 8, dtypes.int16)
    assert (part.base, inner.base) == (whole, whole)
    assert (part.byte_offset, inner.byte_offset) == (8, 12)
    assert inner.toCPU().tolist() == [3, 4]
    assert bits.toCPU().tolist() == [2, 0, 3, 0, 4, 0, 5, 0]
    inner.copyin(np.array([30, 40], np.int32).data)
    assert whole.toCPU().tolist() == [0, 1, 2, 30, 40, 5, 6, 7]
    del whole, part
    Buffer(device, 8, dtypes.int32)
    assert inner.toCPU().tolist() == [30, 40]


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_arrays_share_memory_and_keep_it(device: str) -> None:
    buffer = Buffer.fromCPU(device, np.arange(8, dtype=np.float32))
    assert buffer.exports == 0
    array = buffer.toCPU()
    part = buffer.view(4, 2).toCPU()
    assert buffer.exports == 2
    buffer.copyin(np.arange(8, 16, dtype=np.float32).data)
    assert array[0] == 8
    assert not array.flags.writeable
    del part
    assert buffer.exports == 1
    tail = array[4:]
    del array
    gc.collect()
    assert buffer.exports == 1
    del buffer
    again = [Buffer.fromCPU(device, np.zeros(8, np.float32)) for _ in range(4)]
    assert tail.tolist() == [12, 13, 14, 15]
    assert len(again) == 4


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_toCPU_copies_nothing(device: str) -> None:
    buffer = Buffer(device, 16, dtypes.float32)
    assert np.shares_memory(buffer.toCPU(), buffer.toCPU())


def test_filled_tells_what_the_host_has_written() -> None:
    buffer = Buffer("NUMPY", 4, dtypes.float32)
    assert not buffer.filled
    buffer.view(0, 2).copyin(np.zeros(2, np.float32).data)
    assert buffer.filled


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_a_copy_is_the_callers_own(device: str, shape: tuple[int, ...]) -> None:
    contents = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    buffer = Buffer.fromCPU(device, contents)
    version = buffer.version
    found = buffer.copied(shape)
    np.testing.assert_array_equal(found, contents, strict=True)
    assert found.flags.owndata
    assert found.flags.writeable
    found[...] = 7
    np.testing.assert_array_equal(buffer.copied(shape), contents)
    assert (buffer.exports, buffer.version) == (0, version), "nobody could have written there"


def test_a_read_guard_is_told_of_reads() -> None:
    seen: list[Buffer] = []
    buffer = Buffer.fromCPU("NUMPY", np.zeros(2, np.float32))
    token = ferrule.ir.buffer.read_guard.set(seen.append)
    buffer.toCPU()
    buffer.copyout(memoryview(bytearray(8)))
    buffer.copied((2,))
    ferrule.ir.buffer.read_guard.reset(token)
    buffer.toCPU()
    assert seen == [buffer] * 3


def test_a_buffer_is_cheap() -> None:
    Device["CPU"]
    Buffer("CPU", 16, dtypes.float32)
    assert calls(Buffer, "CPU", 16, dtypes.float32) < 20  # 12, where a block of that size is kept


# *** the allocator ***


def test_freed_blocks_are_used_again() -> None:
    allocator = Counting()
    for _ in range(32):
        allocator.free(allocator.alloc(64), 64)
    assert allocator.made == 1
    assert (allocator.used, allocator.cached) == (0, 64)
    first, second = allocator.alloc(64), allocator.alloc(64)
    assert first != second
    assert (allocator.used, allocator.cached) == (128, 0)


def test_other_sizes_are_not_used() -> None:
    allocator = Counting()
    allocator.free(allocator.alloc(64), 64)
    allocator.alloc(32)
    assert allocator.made == 2


def test_the_budget_holds_and_the_oldest_go_first() -> None:
    allocator = Counting(budget=100)
    blocks = {size: allocator.alloc(size) for size in (10, 20, 30, 40)}
    for size in (30, 10, 40, 20):
        allocator.free(blocks[size], size)
    assert (allocator.used, allocator.cached) == (0, 100)
    allocator.alloc(35)
    assert blocks[30] not in allocator.live
    assert blocks[10] not in allocator.live
    assert blocks[40] in allocator.live
    assert allocator.used + allocator.cached <= 100
    assert allocator.alloc(40) == blocks[40]


def test_random_use_keeps_to_the_budget() -> None:
    rng = np.random.default_rng(0)
    allocator = Counting(budget=1000)
    held: list[tuple[Any, int]] = []
    for _ in range(2000):
        size = int(rng.integers(1, 12)) * 10
        if rng.random() < 0.5 and held:
            opaque, size = held.pop(int(rng.integers(len(held))))
            allocator.free(opaque, size)
        elif allocator.used + size <= 1000:
            opaque = allocator.alloc(size)
            assert opaque not in [other for other, _ in held]
            held.append((opaque, size))
        assert allocator.used == sum(size for _, size in held)
        assert allocator.used + allocator.cached == sum(allocator.live.values()) <= 1000


def test_a_request_above_the_budget() -> None:
    allocator = Counting(budget=100)
    kept = allocator.alloc(60)
    with pytest.raises(MemoryError, match=r"50 bytes asked for, 60 bytes in use, .* is 100 bytes"):
        allocator.alloc(50)
    allocator.free(kept, 60)
    assert allocator.alloc(100)


def test_the_cache_is_flushed_when_memory_runs_out() -> None:
    allocator = Counting(room=100)
    allocator.free(allocator.alloc(60), 60)
    allocator.alloc(80)
    assert (allocator.used, allocator.cached) == (80, 0)
    with pytest.raises(MemoryError, match=r"30 bytes asked for, 80 bytes in use: .* no more\)"):
        allocator.alloc(30)


def test_lru_0_keeps_nothing() -> None:
    allocator = Counting()
    with Context(LRU=0):
        allocator.free(allocator.alloc(64), 64)
    assert (allocator.cached, allocator.live) == (0, {})


def test_free_cache() -> None:
    allocator = Counting()
    for size in (10, 20, 30):
        allocator.free(allocator.alloc(size), size)
    kept = allocator.alloc(5)
    allocator.free_cache()
    assert allocator.cached == 0
    assert list(allocator.live) == [kept]


def test_sizes_that_never_come_again_leave_no_memory_behind() -> None:
    allocator = Counting()
    weights = allocator.alloc(100 << 20)
    for step in range(300):
        size = (20 << 20) + 64 * step
        allocator.free(allocator.alloc(size), size)
        assert allocator.used + allocator.cached == sum(allocator.live.values())
        assert allocator.cached <= (140 + 64 << 20) + 64 * 1000
    assert weights in allocator.live


def test_many_sizes_take_no_memory_of_python() -> None:
    """The blocks are bounded, and so is what is noted of sizes that have none any more."""
    allocator = Counting(budget=1 << 16)
    taken = []
    tracemalloc.start()
    try:
        for number in range(6000):
            size = 1 + number
            allocator.free(allocator.alloc(size), size)
            if number in (3000, 5999):
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[1] - taken[0] < 1 << 17


def test_sizes_that_come_again_find_their_blocks() -> None:
    """However much more they are together than is ever in use at once, up to twice."""
    allocator = Counting()
    sizes = [(40 + i << 20) for i in range(10)]
    for step in range(5):
        held = [allocator.alloc(size) for size in sizes]
        for size, opaque in zip(sizes, held, strict=True):
            allocator.free(opaque, size)
        for size in sizes:
            allocator.free(allocator.alloc(size // 2), size // 2)
        assert allocator.made == 20, step


def test_a_budget_that_was_given_is_used_up() -> None:
    allocator = Counting(budget=1 << 30)
    for size in (200, 201, 202, 203):
        allocator.free(allocator.alloc(size << 20), size << 20)
    assert allocator.cached == 806 << 20


def test_the_limit_is_a_setting() -> None:
    with Context(FERRULE_MEMORY_LIMIT=123):
        assert LRUAllocator().budget == 123
        assert LRUAllocator(7).budget == 7
    assert LRUAllocator().budget > 1 << 24


def test_a_lower_limit_evicts_at_the_next_free() -> None:
    allocator = Counting()
    blocks = [allocator.alloc(50) for _ in range(4)]
    for block in blocks[1:]:
        allocator.free(block, 50)
    with Context(FERRULE_MEMORY_LIMIT=100):
        allocator.free(blocks[0], 50)
    assert allocator.used + allocator.cached <= 100


def test_many_threads() -> None:
    allocator = Counting(budget=10_000)

    def work() -> None:
        for i in range(300):
            size = 10 * (i % 7 + 1)
            allocator.free(allocator.alloc(size), size)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.used == 0
    assert allocator.cached == sum(allocator.live.values())


def test_many_threads_at_the_budget() -> None:
    allocator = Counting(budget=200)
    most: list[int] = []

    def work(number: int) -> None:
        for i in range(300):
            size = 10 * ((i + number) % 4 + 1)
            try:
                opaque = allocator.alloc(size)
            except MemoryError:
                continue
            with ferrule.ir.buffer._system:
                most.append(sum(allocator.live.values()))
            allocator.free(opaque, size)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) > 600
    assert max(most) <= 200
    assert (allocator.used, allocator.cached) == (0, sum(allocator.live.values()))


def test_a_plain_allocator_frees_at_once() -> None:
    class Plain(Allocator):
        freed: ClassVar[list[Any]] = []

        def _alloc(self, size: int) -> Any:
            return size

        def _free(self, opaque: Any) -> None:
            self.freed.append(opaque)

    allocator = Plain()
    allocator.free(allocator.alloc(3), 3)
    assert allocator.freed == [3]


def test_writes_are_counted() -> None:
    """By all parts of one memory together, and not at all while arrays share it."""
    buffer = Buffer.fromCPU("CPU", np.arange(8, dtype=np.float32))
    part = buffer.view(2, 4)
    first = buffer.version
    assert first is not None
    assert part.version == first
    part.copyin(np.zeros(4, np.float32).data)
    assert buffer.version == part.version == first + 1
    buffer.note_write()
    assert part.version == first + 2
    buffer.copyout(memoryview(bytearray(32)))
    assert part.version == first + 2
    array = part.toCPU()
    assert buffer.version is None
    assert part.version is None
    del array
    assert buffer.version == first + 3


def test_memory_of_others_has_no_version() -> None:
    lent = Buffer.lent("CPU", np.zeros(8, np.float32))
    assert lent is not None
    assert lent.version is None


def test_filling_converts_and_counts() -> None:
    buffer = Buffer("CPU", 6, dtypes.int16)
    buffer.fill(np.arange(6.0).reshape(3, 2).T)
    np.testing.assert_array_equal(buffer.toCPU(), [0, 2, 4, 1, 3, 5])
    with pytest.raises(BufferUseError, match="fill: 5 values for the "):
        buffer.fill(np.zeros(5))


def test_a_borrowed_array_is_no_export() -> None:
    buffer = Buffer.fromCPU("CPU", np.arange(4, dtype=np.float32))
    array = buffer.borrowed()
    np.testing.assert_array_equal(array, [0, 1, 2, 3])
    assert not array.flags.writeable
    assert buffer.exports == 0
