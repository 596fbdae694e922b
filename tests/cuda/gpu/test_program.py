"""Kernels on a GPU: their arguments, their sizes, what goes wrong."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from tests.cuda import fake
from tests.cuda.fake import FakeDriver
from tests.cuda.gpu.conftest import ADD, COUNT, LoadProgram, buffer, values

from ferrule.base.config import Context
from ferrule.device.runner import RunnerError
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.runtime.cuda.compiler import CUDACompiler
from ferrule.runtime.cuda.driver import GPU, CUDAError, Timer, open_gpu
from ferrule.runtime.cuda.memory import CUDAAllocator
from ferrule.runtime.cuda.program import CUDAProgram

# In each block: the sum over all of its 128 threads, by shuffles and by shared memory.
BLOCK_SUM = """
extern "C" __global__ void __launch_bounds__(128) block_sum(float* out, const float* a) {
  __shared__ float of_warp[4];
  float sum = a[blockIdx.x * 128 + threadIdx.x];
  for (int distance = 16; distance; distance /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = of_warp[threadIdx.x % 4];
  __syncthreads();
  for (int distance = 2; distance; distance /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}"""

# Four elements at once, unless it is compiled for addresses that do not allow it.
QUADS = """
extern "C" __global__ void quads(float* out, const float* a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifndef FERRULE_UNALIGNED
  float4 four = ((const float4*)a)[i];
  four.x += 1; four.y += 1; four.z += 1; four.w += 1;
  ((float4*)out)[i] = four;
#else
  for (int k = 0; k < 4; k++) out[4 * i + k] = a[4 * i + k] + 1;
#endif
}"""

# Says by its value which of its two forms ran.
FORMS = """
extern "C" __global__ void forms(float* out, const float* a) {
#ifdef FERRULE_UNALIGNED
  out[threadIdx.x] = 2;
#else
  out[threadIdx.x] = 1;
#endif
}"""


def ones(*sizes: int) -> dict[str, Any]:
    grid, block = sizes
    return {"global_size": [grid, 1, 1], "local_size": [block, 1, 1]}


@pytest.mark.usefixtures("allocator")
def test_it_computes(load: LoadProgram) -> None:
    a, b, out = buffer(1, size=256), buffer(2, size=256), buffer(size=256)
    program = load("add", ADD)
    assert program(out._buf, a._buf, b._buf, **ones(4, 64)) is None
    assert (values(out) == 3).all()
    seconds = program(out._buf, out._buf, b._buf, **ones(4, 64), wait=True)
    assert seconds is not None
    assert 0 < seconds < 10
    assert (values(out) == 5).all()


@pytest.mark.usefixtures("allocator")
def test_threads_of_a_block_work_together(load: LoadProgram) -> None:
    numbers = np.random.default_rng(1).integers(-9, 9, 384).astype(np.float32)
    a = Buffer.fromCPU("CUDA", numbers)
    out = buffer(size=3)
    load("block_sum", BLOCK_SUM)(out._buf, a._buf, **ones(3, 128))
    np.testing.assert_array_equal(values(out), numbers.reshape(3, 128).sum(1))


@pytest.mark.usefixtures("allocator")
def test_a_kernel_is_queued_and_not_awaited(load: LoadProgram, driver: FakeDriver) -> None:
    a, out = buffer(1), buffer()
    program = load("add", ADD)
    program(out._buf, a._buf, a._buf, **ones(1, 64))
    assert driver.pending() > 0
    assert (values(out) == 2).all()
    assert driver.pending() == 0


@pytest.mark.usefixtures("allocator")
def test_values_are_those_of_the_call(load: LoadProgram) -> None:
    out = buffer(0, dtypes.int32)
    program = load("count", COUNT)
    # All of these are queued before the first runs: each has its own arguments.
    for n in (10, 20, 0, -1, 64, 2**31 - 1, -(2**31)):
        program(out._buf, vals=(n,), **ones(1, 64))
    expected = np.full(64, 2)
    expected[:20] += 1
    expected[:10] += 1
    np.testing.assert_array_equal(values(out), expected)


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_a_value_of_more_than_32_bits(load: LoadProgram, value: int) -> None:
    with pytest.raises(RunnerError, match=f"kernel count: the variable's value {value} does not"):
        load("count", COUNT)(buffer(0, dtypes.int32)._buf, vals=(value,), **ones(1, 64))


@pytest.mark.usefixtures("allocator")
def test_other_arguments_than_the_kernel_has(load: LoadProgram) -> None:
    a = buffer()._buf
    with pytest.raises(RunnerError, match="kernel add takes 3 buffers and 0 values, got 2 and 0"):
        load("add", ADD)(a, a, **ones(1, 64))
    with pytest.raises(RunnerError, match="kernel count takes 1 buffers and 1 values, got 1 and 0"):
        load("count", COUNT)(a, **ones(1, 64))
    source = 'extern "C" __global__ void halves(short x, float* out) { *out = x; }'
    with pytest.raises(CUDAError, match=r"kernel halves has parameters of \[2, 8\] bytes"):
        load("halves", source)


@pytest.mark.usefixtures("allocator")
def test_sizes_that_a_gpu_does_not_have(load: LoadProgram) -> None:
    a = buffer()._buf
    program = load("add", ADD)
    with pytest.raises(RunnerError, match=r"kernel add: a grid of \(1, 65536, 1\) blocks; .* up"):
        program(a, a, a, global_size=[1, 65536, 1], local_size=[1, 1, 1])
    with pytest.raises(RunnerError, match=r"kernel add: a grid of \(2147483648, 1, 1\) blocks"):
        program(a, a, a, **ones(2**31, 1))
    for threads in (0, 1025):
        with pytest.raises(RunnerError, match=rf"kernel add: a block of \({threads}, 1, 1\) thr"):
            program(a, a, a, **ones(1, threads))
    with pytest.raises(RunnerError, match=r"a block of \(1, 1, 65\) threads; it takes 1 to 1024"):
        program(a, a, a, global_size=[1, 1, 1], local_size=[1, 1, 65])


@pytest.mark.usefixtures("allocator")
def test_no_blocks_at_all(load: LoadProgram) -> None:
    out = buffer(5)
    assert load("add", ADD)(out._buf, out._buf, out._buf, **ones(0, 64)) is None
    assert (values(out) == 5).all()


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 2), (3, 7), (4, 8)])
def test_addresses_that_are_no_multiples_of_16(
    first: int, second: int, allocator: CUDAAllocator, compiler: CUDACompiler, load: LoadProgram
) -> None:
    program = load("quads", QUADS, compiler=compiler)
    numbers = np.arange(80, dtype=np.float32)
    a, out = Buffer.fromCPU("CUDA", numbers), buffer(size=80)
    parts = out.view(first, 64), a.view(second, 64)
    program(*[part._buf for part in parts], **ones(1, 16))
    np.testing.assert_array_equal(values(parts[0]), numbers[second : second + 64] + 1)


@pytest.mark.usefixtures("allocator")
def test_the_form_is_that_of_the_addresses(compiler: CUDACompiler, load: LoadProgram) -> None:
    program = load("forms", FORMS, compiler=compiler)
    a, out = buffer(size=80), buffer(size=80)
    for first, form in ((0, 1), (1, 2), (4, 1), (6, 2), (8, 1)):
        program(out._buf, a.view(first, 16)._buf, **ones(1, 80))
        assert (values(out) == form).all()


@pytest.mark.usefixtures("allocator")
def test_unaligned_code_needs_a_compiler(load: LoadProgram) -> None:
    a = buffer(1, size=80)
    program = load("quads", QUADS)
    program(a._buf, a._buf, **ones(1, 16))
    with pytest.raises(RunnerError, match="kernel quads: an address is no multiple of 16"):
        program(a.view(1, 64)._buf, a._buf, **ones(1, 16))
    # A kernel without vectors is the same code anyway.
    load("add", ADD)(*[a.view(1, 64)._buf] * 3, **ones(1, 64))


@pytest.mark.usefixtures("allocator")
def test_shared_memory_by_the_launch(load: LoadProgram, driver: FakeDriver) -> None:
    a = buffer()._buf
    program = load("add", ADD)
    before = driver.calls("cuFuncSetAttribute")
    for nbytes in (0, 1 << 10, 100 << 10):
        program(a, a, a, **ones(1, 64), shared_bytes=nbytes)
    open_gpu(0).synchronize()
    assert driver.ran()[-3:] == ["add 1x64+0", "add 1x64+1024", "add 1x64+102400"]
    assert driver.calls("cuFuncSetAttribute") == before + 1


@pytest.mark.usefixtures("driver")
def test_threads_that_part_at_a_barrier(allocator: CUDAAllocator, load: LoadProgram) -> None:
    source = """
extern "C" __global__ void parted(float* out) {
  if (threadIdx.x < 7) __syncthreads();
  out[threadIdx.x] = 1;
}"""
    out = allocator.alloc(256)
    load("parted", source)(out, **ones(1, 64))
    with pytest.raises(CUDAError, match=r"CUDA_ERROR_LAUNCH_FAILED: parted: thread \d+ is done"):
        open_gpu(0).synchronize()


@pytest.mark.usefixtures("driver")
def test_writing_past_the_end(allocator: CUDAAllocator, load: LoadProgram) -> None:
    source = 'extern "C" __global__ void past(int* out) { out[5] = 1; }'
    load("past", source)(allocator.alloc(20), **ones(1, 1))
    with pytest.raises(CUDAError, match=r"ILLEGAL_ADDRESS: something was written next to 20 byt"):
        open_gpu(0).synchronize()


@pytest.mark.usefixtures("driver")
def test_failures_of_the_driver(load: LoadProgram, gpu: GPU, driver: FakeDriver) -> None:
    with pytest.raises(CUDAError, match="loading the kernel add: CUDA_ERROR_INVALID_IMAGE"):
        CUDAProgram("add", b"not a program", gpu)
    with pytest.raises(CUDAError, match="kernel subtract: CUDA_ERROR_NOT_FOUND"):
        load("subtract", ADD)
    program = load("add", ADD)
    driver.fail("cuLaunchKernel", 719)
    with pytest.raises(CUDAError, match="kernel add: CUDA_ERROR_LAUNCH_FAILED") as caught:
        program(None, None, None, **ones(1, 64))
    assert caught.value.code == "CUDA_ERROR_LAUNCH_FAILED"


def test_a_program_goes_with_its_last_user(load: LoadProgram, driver: FakeDriver) -> None:
    gc.collect()
    before = driver.alive("modules")
    program = load("add", ADD)
    assert driver.alive("modules") == before + 1
    del program
    gc.collect()
    assert driver.alive("modules") == before


def test_a_program_is_unloaded_after_its_last_launch(
    allocator: CUDAAllocator, load: LoadProgram
) -> None:
    out = buffer(1)
    load("add", ADD)(out._buf, out._buf, out._buf, **ones(1, 64))
    gc.collect()
    assert (values(out) == 2).all()


@pytest.mark.usefixtures("allocator")
def test_several_threads_launch_one_kernel(load: LoadProgram) -> None:
    program = load("add", ADD)
    a = buffer(1)
    outs = [buffer(k) for k in range(4)]

    def launch(out: Buffer) -> None:
        for _ in range(50):
            program(out._buf, out._buf, a._buf, **ones(1, 64))

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, out in enumerate(outs):
        assert (values(out) == k + 50).all()


def test_memory_is_kept_for_queued_kernels(load: LoadProgram, allocator: CUDAAllocator) -> None:
    program = load("add", ADD)
    out = buffer()
    with Context(LRU=0):
        a, b = buffer(1), buffer(2)
        program(out._buf, a._buf, b._buf, **ones(1, 64))
        del a, b
        gc.collect()
    assert (values(out) == 3).all()


# What a real driver refuses or leaves undefined: the fake driver has to refuse it as well.


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("body", "threads", "text"),
    [
        ("*(float4*)(out + 1) = *(float4*)out;", 1, "MISALIGNED_ADDRESS.*type of what is there"),
        ("out[0] = __shfl_xor_sync(0x3u, out[0], 1);", 32, "by a mask without itself"),
        ("out[0] = __shfl_sync(0xfu, out[0], 8);", 4, "of one that takes no part in the exchange"),
    ],
)
def test_what_threads_may_not_do(
    body: str, threads: int, text: str, allocator: CUDAAllocator, load: LoadProgram
) -> None:
    source = f'extern "C" __global__ void wrong(float* out) {{ {body} }}'
    load("wrong", source)(allocator.alloc(1024), **ones(1, threads))
    with pytest.raises(CUDAError, match=text):
        open_gpu(0).synchronize()


@pytest.mark.usefixtures("allocator", "driver")
def test_no_block_finds_what_another_left(load: LoadProgram) -> None:
    source = """
extern "C" __global__ void left(float* out) {
  __shared__ float last;
  out[blockIdx.x] = last;
  last = 5;
}"""
    out = buffer(size=3)
    load("left", source)(out._buf, **ones(3, 1))
    assert not (values(out) == 5).any()


@pytest.mark.usefixtures("driver")
def test_memory_that_is_gone(allocator: CUDAAllocator, load: LoadProgram) -> None:
    program = load("count", COUNT)
    with Context(LRU=0):
        memory = allocator.alloc(256)
        allocator.free(memory, 256)
    program(memory, vals=(1,), **ones(1, 1))
    with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS: count has memory that is not allocated"):
        open_gpu(0).synchronize()


SHARED_TWICE = """
extern "C" __global__ void __launch_bounds__(64) twice(float* out) {
  __shared__ float declared[4096];
  declared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = declared[63 - threadIdx.x];
}"""


@pytest.mark.usefixtures("allocator")
def test_shared_memory_by_the_launch_and_by_the_kernel(load: LoadProgram) -> None:
    """Each is below what a launch may ask for without permission; both are not."""
    out = buffer()
    load("twice", SHARED_TWICE)(out._buf, **ones(1, 64), shared_bytes=40 << 10)
    np.testing.assert_array_equal(values(out), np.arange(64)[::-1])


@pytest.mark.usefixtures("allocator")
def test_more_shared_memory_than_there_is(load: LoadProgram) -> None:
    out = buffer()
    program = load("twice", SHARED_TWICE)
    with pytest.raises(CUDAError, match="shared memory: CUDA_ERROR_INVALID_VALUE"):
        program(out._buf, **ones(1, 64), shared_bytes=220 << 10)
    program(out._buf, **ones(1, 64), shared_bytes=1 << 10)
    np.testing.assert_array_equal(values(out), np.arange(64)[::-1])


@pytest.mark.usefixtures("allocator")
def test_more_threads_than_the_kernel_is_made_for(load: LoadProgram) -> None:
    program = load("twice", SHARED_TWICE)
    with pytest.raises(RunnerError, match=r"a block of \(65, 1, 1\) threads; it takes 1 to 64"):
        program(buffer()._buf, **ones(1, 65))


@pytest.mark.usefixtures("driver")
def test_code_for_another_kind_of_gpu(gpu: GPU) -> None:
    lib = CUDACompiler("sm_80", fake.FakeToolchain()).compile(ADD)
    message = (
        "NO_BINARY_FOR_GPU: the image is for sm_80; update NVIDIA's driver, or install an NVRT"
    )
    with pytest.raises(CUDAError, match=message):
        CUDAProgram("add", lib, gpu)


@pytest.mark.usefixtures("driver")
def test_nothing_is_heard_of_destructors_after_a_failure(
    allocator: CUDAAllocator, load: LoadProgram, gpu: GPU
) -> None:
    """Where the GPU is lost to a kernel, nothing can be given back; one error is enough."""
    program, timer = load("add", ADD), Timer(gpu)
    with Context(LRU=0):
        out = buffer()
    load("past", 'extern "C" __global__ void past(float* out) { out[64] = 1; }')(out._buf)
    with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
        gpu.synchronize()
    with Context(LRU=0):
        del program, timer, out
        gc.collect()
