"""What is said about devices, memory and runners that are not there, or do not fit."""

import numpy as np
import pytest

import ferrule.device
from ferrule.base.config import Context
from ferrule.device import Compiler, Device, DeviceUnavailableError, JITRunner, RunnerError
from ferrule.device.runner import BufferCopy
from ferrule.dtype import dtypes
from ferrule.ir.buffer import AllocationSizeError, Allocator, Buffer, BufferUseError, LRUAllocator
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer


def test_an_unknown_device_names_those_that_are_known() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"no device is called .TPU.; .* CPU, .*NUMPY"):
        Device["tpu"]
    with pytest.raises(ModuleNotFoundError, match="no device is called 'TPU:1'"):
        Buffer(Device.canonicalize("tpu:1"), 4, dtypes.float32)
    with Context(FERRULE_DEVICE="XPU"), pytest.raises(ModuleNotFoundError, match="'XPU'"):
        _ = Device.DEFAULT
    with pytest.raises(ModuleNotFoundError, match="'NOPE'"):
        Device.DEFAULT = "nope"


def test_a_device_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ferrule.device._TABLE, "BROKEN", "ferrule_no_such_module:device")
    with pytest.raises(DeviceUnavailableError, match="BROKEN cannot be opened: No module named"):
        Device["BROKEN"]


def test_alloc_of_nothing() -> None:
    for size in (0, -4):
        with pytest.raises(AllocationSizeError, match=rf"alloc.{size}.: the size must be positive"):
            LRUAllocator().alloc(size)
    with pytest.raises(AssertionError):
        Allocator().alloc(0)


def test_an_allocator_that_lacks_a_method() -> None:
    with pytest.raises(NotImplementedError, match="Allocator does not define _alloc"):
        Allocator().alloc(1)
    with pytest.raises(NotImplementedError, match="does not define copyin"):
        Allocator().copyin(None, memoryview(b""))
    with pytest.raises(NotImplementedError, match="does not define copyout"):
        Allocator().copyout(memoryview(bytearray()), None)


def test_out_of_memory_names_the_sizes() -> None:
    allocator = Device["NUMPY"].allocator
    assert isinstance(allocator, LRUAllocator)
    allocator.free_cache()  # a block of that size may be kept from another test
    with (
        Context(FERRULE_MEMORY_LIMIT=1 << 20),
        pytest.raises(
            MemoryError, match=r"Buffer of 1048576 x dtypes.float32 .4194304 bytes. on"
        ) as raised,
    ):
        Buffer("NUMPY", 1 << 20, dtypes.float32)
    assert "4.0 MiB asked for" in str(raised.value)
    assert "the budget is 1.0 MiB" in str(raised.value)
    assert "FERRULE_MEMORY_LIMIT" in str(raised.value)


def test_wrong_uses_of_a_buffer() -> None:
    with pytest.raises(BufferUseError, match="the size -1 is negative"):
        Buffer("NUMPY", -1, dtypes.float32)
    buffer = Buffer("NUMPY", 4, dtypes.float32)
    with pytest.raises(BufferUseError, match="copyin: 4 bytes do not fill the Buffer of 4 x"):
        buffer.copyin(memoryview(b"1234"))
    with pytest.raises(BufferUseError, match="not contiguous; copy it first"):
        buffer.copyin(np.zeros(8, np.float32)[::2].data)
    with pytest.raises(BufferUseError, match="does not fill 4 bytes"):
        buffer.copyout(memoryview(bytearray(4)))
    with pytest.raises(BufferUseError, match=r"bytes 8..20 are not inside its 16"):
        buffer.view(2, 3)
    with pytest.raises(BufferUseError, match="not inside"):
        buffer.view(-1, 1)


class _Whole(LRUAllocator):
    """Memory that cannot be taken in parts."""

    def _alloc(self, size: int) -> bytearray:
        return bytearray(size)


def test_memory_that_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ferrule.ir.buffer.allocators, "WHOLE", _Whole())
    buffer = Buffer("WHOLE", 4, dtypes.float32)
    with pytest.raises(BufferUseError, match="memory of WHOLE cannot be taken in parts"):
        buffer.view(0, 1)


def _add() -> LazyOp:
    st = ShapeTracker.from_shape((4,))
    loads = [LazyOp(BufferOps.LOAD, (), MemBuffer(i, dtypes.float32, st)) for i in (1, 2)]
    return LazyOp(BinaryOps.ADD, tuple(loads))


def test_too_few_buffers() -> None:
    buffer = Buffer("NUMPY", 4, dtypes.float32)
    with pytest.raises(RunnerError, match="takes 3 buffers, got 2"):
        Device["NUMPY"].get_runner(_add()).exec([buffer, buffer])


@pytest.mark.parametrize("name", ["CPU", "NUMPY"])
def test_too_many_or_too_small_buffers(name: str) -> None:
    buffer = Buffer(name, 4, dtypes.float32)
    runner = Device[name].get_runner(_add())
    with pytest.raises(RunnerError, match="takes 3 buffers, got 4"):
        runner.exec([buffer] * 4)
    small = Buffer(name, 3, dtypes.float32)
    with pytest.raises(RunnerError, match=r"needs 16 bytes in buffer 2, but .* has 12; allocate"):
        runner.exec([buffer, buffer, small])


def test_a_runner_and_a_compiler_that_define_nothing() -> None:
    with pytest.raises(NotImplementedError, match="JITRunner does not define __call__"):
        JITRunner().exec([])
    with pytest.raises(NotImplementedError, match="Compiler does not define compile"):
        Compiler().compile_cached("")
    with pytest.raises(NotImplementedError, match="Compiler does not define disassemble"):
        Compiler().disassemble(b"")


def test_copies_of_what_does_not_fit() -> None:
    four, three = (Buffer("NUMPY", size, dtypes.float32) for size in (4, 3))
    with pytest.raises(RunnerError, match="size and dtype must agree"):
        BufferCopy("NUMPY", 16, "NUMPY").exec([four, three])
