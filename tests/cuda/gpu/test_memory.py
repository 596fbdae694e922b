"""Memory of a GPU: what copies leave where, and what is there when there is no more."""

import gc
import threading

import numpy as np
import pytest
from tests.cuda.fake import FakeDriver
from tests.cuda.gpu.conftest import ADD, LoadProgram, buffer, values

from ferrule.base.config import Context
from ferrule.device import BufferCopy
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.runtime.cuda.driver import GPU, CUDAError
from ferrule.runtime.cuda.memory import CUDAAllocator, allow_access

SLOT = 4 << 20


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("size", [1, 7, SLOT - 1, SLOT, SLOT + 1, 3 * SLOT + 5])
def test_there_and_back(size: int) -> None:
    numbers = random_bytes(size)
    there = Buffer.fromCPU("CUDA", numbers)
    np.testing.assert_array_equal(values(there), numbers)


@pytest.mark.usefixtures("allocator")
def test_the_source_may_change_at_once() -> None:
    numbers = random_bytes(2 * SLOT + 3)
    source = numbers.copy()
    there = Buffer("CUDA", source.size, dtypes.uint8).copyin(source.data)
    source[:] = 0
    np.testing.assert_array_equal(values(there), numbers)


@pytest.mark.usefixtures("allocator")
def test_many_small_copies_take_turns() -> None:
    buffers = [Buffer.fromCPU("CUDA", random_bytes(10, seed)) for seed in range(20)]
    for seed, there in enumerate(buffers):
        np.testing.assert_array_equal(values(there), random_bytes(10, seed))


@pytest.mark.usefixtures("allocator")
def test_memory_of_the_host_that_cannot_be_written_to() -> None:
    there = Buffer("CUDA", 5, dtypes.uint8).copyin(memoryview(b"ferru"))
    assert bytes(values(there)) == b"ferru"
    back = bytearray(5)
    there.copyout(memoryview(back))
    assert back == b"ferru"


@pytest.mark.usefixtures("allocator")
def test_parts() -> None:
    numbers = np.arange(100, dtype=np.int32)
    whole = Buffer.fromCPU("CUDA", numbers)
    part = whole.view(10, 5)
    np.testing.assert_array_equal(values(part), numbers[10:15])
    part.copyin(np.zeros(5, np.int32).data.cast("B"))
    numbers[10:15] = 0
    np.testing.assert_array_equal(values(whole), numbers)
    of_part = part.view(3, 1, dtypes.int32)
    of_part.copyin(np.array([7], np.int32).data.cast("B"))
    assert values(whole)[13] == 7


def test_freed_memory_is_used_again(allocator: CUDAAllocator, driver: FakeDriver) -> None:
    before = driver.calls("cuMemAlloc")
    for _ in range(32):
        buffer(1, size=1000)
    assert driver.calls("cuMemAlloc") == before + 1
    assert allocator.cached == 4000
    assert allocator.used == 0
    alive = driver.alive("memory")
    allocator.free_cache()
    assert driver.alive("memory") == alive - 1


def test_what_is_used_again_waits_its_turn(allocator: CUDAAllocator, load: LoadProgram) -> None:
    add = load("add", ADD)
    out, two = buffer(), buffer(2)
    a = buffer(1)
    sizes = {"global_size": [1, 1, 1], "local_size": [64, 1, 1]}
    add(out._buf, a._buf, two._buf, **sizes)
    address = a._buf.address
    del a
    again = buffer(50)
    assert again._buf.address == address
    assert (values(out) == 3).all()
    assert (values(again) == 50).all()


def test_without_a_cache(allocator: CUDAAllocator, driver: FakeDriver) -> None:
    with Context(LRU=0):
        alive = driver.alive("memory")
        kept = buffer(1)
        assert driver.alive("memory") == alive + 1
        del kept
        assert driver.alive("memory") == alive


def test_when_there_is_no_memory_the_cache_is_emptied(
    allocator: CUDAAllocator, driver: FakeDriver
) -> None:
    del_me = buffer(size=1 << 18)
    del del_me
    kept = allocator.cached
    assert kept == 1 << 20
    driver.fail("cuMemAlloc", 2)
    there = buffer(3, size=100)
    assert allocator.cached == 0
    assert (values(there) == 3).all()


def test_when_there_is_no_memory_at_all(allocator: CUDAAllocator, driver: FakeDriver) -> None:
    held = buffer(size=1 << 18)
    used = driver.used_memory()
    driver.set_memory(used + (2 << 20))
    try:
        message = (
            r"Buffer of 1048576 x dtypes.float32 \(4194304 bytes\) on CUDA: 4.0 MiB asked for, "
            r"1.0 MiB in use: the device has no memory left \(2.0 MiB of .* are free on"
        )
        with pytest.raises(MemoryError, match=message):
            buffer(size=1 << 20)
        there = buffer(2, size=1 << 18)
        assert (values(there) == 2).all()
    finally:
        driver.set_memory(1 << 30)
    assert held.nbytes == 1 << 20


def test_the_budget_is_the_memory_of_the_gpu(allocator: CUDAAllocator, gpu: GPU) -> None:
    assert allocator.budget == gpu.total_bytes
    with Context(FERRULE_MEMORY_LIMIT="1M"):
        assert allocator.budget == 1 << 20
        with pytest.raises(MemoryError, match=r"the budget is 1\.0 MiB; free tensors"):
            buffer(size=1 << 20)


def test_copies_inside_the_gpu_stay_there(allocator: CUDAAllocator, driver: FakeDriver) -> None:
    numbers = random_bytes(SLOT + 9)
    a = Buffer.fromCPU("CUDA", numbers)
    b = Buffer("CUDA", a.size, dtypes.uint8)
    before = driver.calls("cuMemcpyDtoHAsync"), driver.calls("cuMemcpyHtoDAsync")
    BufferCopy("CUDA", a.nbytes, "CUDA")([b, a], {})
    after = driver.calls("cuMemcpyDtoHAsync"), driver.calls("cuMemcpyHtoDAsync")
    assert before == after
    a.copyin(np.zeros(a.size, np.uint8).data)
    np.testing.assert_array_equal(values(b), numbers)


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize(("dest", "src"), [(0, 3), (3, 0), (2, 2)])
def test_copies_between_parts_that_overlap(dest: int, src: int) -> None:
    numbers = np.arange(20, dtype=np.int32)
    whole = Buffer.fromCPU("CUDA", numbers)
    copy = BufferCopy("CUDA", 40, "CUDA")
    copy([whole.view(dest, 10), whole.view(src, 10)], {})
    expected = numbers.copy()
    expected[dest : dest + 10] = numbers[src : src + 10]
    np.testing.assert_array_equal(values(whole), expected)


@pytest.mark.usefixtures("allocator", "other_allocator")
def test_copies_between_gpus(load: LoadProgram) -> None:
    add = load("add", ADD)
    a, out = buffer(1), buffer()
    add(out._buf, a._buf, a._buf, global_size=[1, 1, 1], local_size=[64, 1, 1])
    there = Buffer("CUDA:1", 64, dtypes.float32)
    # It waits for the kernel on one GPU, and what comes next there waits for it.
    BufferCopy("CUDA:1", out.nbytes, "CUDA")([there, out], {})
    out.copyin(np.zeros(64, np.float32).data.cast("B"))
    assert (values(there) == 2).all()
    assert (values(out) == 0).all()
    BufferCopy("CUDA", out.nbytes, "CUDA:1")([out, there], {})
    assert (values(out) == 2).all()


@pytest.mark.parametrize("code", [217, 711], ids=["unsupported", "too many"])
def test_gpus_without_access_to_each_other(
    code: int, gpu: GPU, other_gpu: GPU, driver: FakeDriver
) -> None:
    allow_access.cache_clear()
    driver.fail("cuCtxEnablePeerAccess", code)
    allow_access(gpu, other_gpu)
    allow_access.cache_clear()
    driver.fail("cuCtxEnablePeerAccess", 201)
    with pytest.raises(CUDAError, match="access to another GPU: CUDA_ERROR_INVALID_CONTEXT"):
        allow_access(gpu, other_gpu)


@pytest.mark.usefixtures("allocator", "other_allocator")
def test_two_gpus_by_turns() -> None:
    pairs = []
    for k in range(5):
        here = buffer(k)
        there = Buffer.fromCPU("CUDA:1", np.full(64, 10 * k, np.float32))
        pairs.append((here, there))
    for k, (here, there) in enumerate(pairs):
        assert (values(there) == 10 * k).all()
        assert (values(here) == k).all()


@pytest.mark.usefixtures("driver")
def test_a_destructor_does_not_change_the_gpu_of_others(
    allocator: CUDAAllocator, other_gpu: GPU
) -> None:
    from ferrule.runtime.cuda.driver import bindings, check

    with Context(LRU=0):
        here = buffer(1)
        other_gpu.activate()
        del here
        gc.collect()
        assert int(check(bindings().cuCtxGetCurrent())) == int(other_gpu.context)


@pytest.mark.usefixtures("allocator")
def test_a_thread_of_its_own() -> None:
    found: list[np.ndarray] = []

    def work() -> None:
        found.append(values(buffer(4)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (found[0] == 4).all()


@pytest.mark.usefixtures("allocator")
def test_from_and_to_other_devices() -> None:
    import ferrule.device

    assert ferrule.device.Device
    numbers = np.arange(64, dtype=np.float32)
    for name in ("CPU", "NUMPY"):
        elsewhere = Buffer.fromCPU(name, numbers)
        here, back = buffer(), Buffer(name, 64, dtypes.float32)
        BufferCopy("CUDA", here.nbytes, name)([here, elsewhere], {})
        BufferCopy(name, here.nbytes, "CUDA")([back, here], {})
        np.testing.assert_array_equal(back.toCPU(), numbers)


@pytest.mark.usefixtures("allocator")
def test_failures_are_reported(driver: FakeDriver) -> None:
    there = buffer(1)
    driver.fail("cuMemcpyDtoHAsync", 719)
    with pytest.raises(CUDAError, match="a copy from the GPU: CUDA_ERROR_LAUNCH_FAILED"):
        values(there)
    driver.fail("cuMemcpyHtoDAsync", 719)
    with pytest.raises(CUDAError, match="a copy to the GPU: CUDA_ERROR_LAUNCH_FAILED"):
        buffer(2)
    assert (values(there) == 1).all()
