"""The loader of object files on AArch64, looked at from any processor.

Objects are laid out as they are there, and their instructions decoded.
"""

import ctypes

import pytest

from ferrule.runtime.cpu import elf
from ferrule.runtime.cpu.elf import ObjectError
from ferrule.runtime.cpu.pool import kernel_externals
from ferrule.runtime.cpu.relocations import AARCH64

binding = pytest.importorskip("llvmlite.binding")

ARM = "aarch64-unknown-linux-gnu"
FOR_ARM = """
@i8 = internal global i8 8
@i16 = internal global i16 16
@i32 = internal global i32 32
@i64 = internal global i64 64
@visible = global i64 7
@pointer = global ptr @i64
declare ptr @memcpy(ptr, ptr, i64)

define internal void @written() noinline nounwind {
  store i8 1, ptr @i8
  store i16 1, ptr @i16
  store i32 1, ptr @i32
  store i64 1, ptr @i64
  ret void
}
define i8 @load_i8() nounwind {
  call void @written()
  %x = load i8, ptr @i8
  ret i8 %x
}
define i16 @load_i16() nounwind {
  %x = load i16, ptr @i16
  ret i16 %x
}
define i32 @load_i32() nounwind {
  %x = load i32, ptr @i32
  ret i32 %x
}
define i64 @load_i64() nounwind {
  %x = load i64, ptr @i64
  ret i64 %x
}
define <4 x float> @constant() nounwind {
  ret <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>
}
define ptr @inside() nounwind {
  ret ptr @i64
}
define ptr @cell() nounwind {
  ret ptr @visible
}
define ptr @outside() nounwind {
  ret ptr @memcpy
}
define void @call(ptr %to, ptr %from) nounwind {
  %a = call ptr @memcpy(ptr %to, ptr %from, i64 100)
  %b = tail call ptr @memcpy(ptr %from, ptr %to, i64 1000)
  ret void
}
"""


@pytest.fixture(scope="module")
def arm_object() -> bytes:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple(ARM)
    except RuntimeError:
        pytest.skip("this LLVM is built without AArch64")
    machine = target.create_target_machine(reloc="pic", codemodel="small", opt=2)
    module = binding.parse_assembly(FOR_ARM)
    module.triple = ARM
    return bytes(machine.emit_object(module))


def word(address: int) -> int:
    return int.from_bytes(ctypes.string_at(address, 4), "little")


def signed(field: int, bits: int) -> int:
    return field - (1 << bits) if field >> (bits - 1) else field


def addressed(start: int, log2_bytes: int) -> int:
    """What `adrp`, and the next instruction with a place in the page, address together."""
    while word(start) & 0x9F000000 != 0x90000000:
        start += 4
    page = word(start)
    field = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
    low = word(start + 4) >> 10 & 0xFFF
    return (start & ~0xFFF) + (signed(field, 21) << 12) + (low << log2_bytes)


def branches(start: int) -> list[tuple[int, int]]:
    """(the instruction's first six bits, target) of each branch, up to one that does not return."""
    found = []
    while word(start) != 0xD65F03C0:  # ret
        if word(start) >> 26 in (0b000101, 0b100101):  # b, bl
            distance = signed(word(start) & 0x3FFFFFF, 26) * 4
            found.append((word(start) >> 26, start + distance))
            if word(start) >> 26 == 0b000101:
                break
        start += 4
    return found


def content(address: int) -> int:
    return int.from_bytes(ctypes.string_at(address, 8), "little")


def test_arm_addresses(arm_object: bytes) -> None:
    loaded = elf.load(arm_object, kernel_externals, AARCH64)
    for bits, log2_bytes in [(8, 0), (16, 1), (32, 2), (64, 3)]:
        at = addressed(loaded.address(f"load_i{bits}"), log2_bytes)
        assert content(at) & ((1 << bits) - 1) == bits
    values = ctypes.string_at(addressed(loaded.address("constant"), 4), 16)
    assert memoryview(values).cast("f").tolist() == [1.0, 2.0, 3.0, 4.0]
    inside = addressed(loaded.address("inside"), 0)
    assert content(inside) == 64
    assert content(loaded.address("pointer")) == inside
    assert content(addressed(loaded.address("cell"), 3)) == loaded.address("visible")
    assert content(addressed(loaded.address("outside"), 3)) == kernel_externals["memcpy"]


def test_arm_calls(arm_object: bytes) -> None:
    loaded = elf.load(arm_object, kernel_externals, AARCH64)
    ((kind, written),) = branches(loaded.address("load_i8"))
    assert kind == 0b100101
    assert content(addressed(written, 0)) & 0xFF == 8
    calls = branches(loaded.address("call"))
    assert [kind for kind, _ in calls] == [0b100101, 0b000101]
    for _, stub in calls:
        assert word(stub) == 0x58000050  # ldr x16, stub + 8
        assert word(stub + 4) == 0xD61F0200  # br x16
        assert content(stub + 8) == kernel_externals["memcpy"]


def test_arm_distances_are_checked() -> None:
    relocations = AARCH64.relocations
    page, call, wide = (relocations[kind].encode for kind in (275, 283, 299))
    assert page(0x90000008, 0x5FFF, 0x6000) == 0xB0000008  # one page on
    assert page(0x90000008, 0x6000, 0x5FFF) == 0xF0FFFFE8  # one page back
    assert call(0x94000000, 0x1000, 0x0FFC) == 0x97FFFFFF
    for encode, place, target in [(page, 0, 1 << 32), (call, 0, 1 << 27), (call, 1 << 28, 0)]:
        with pytest.raises(OverflowError, match="too far"):
            encode(0, place, target)
    with pytest.raises(OverflowError, match="8 bytes into its page, not a multiple of 16"):
        wide(0, 0, 0x1008)


def test_arm_objects_are_for_arm(arm_object: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "HOST", AARCH64)
    monkeypatch.setattr(elf, "_clear_cache", lambda: print)
    assert elf.supports(arm_object)
    monkeypatch.setattr(elf, "_clear_cache", lambda: None)
    assert not elf.supports(arm_object)
    monkeypatch.setattr(elf, "HOST", None)
    assert not elf.supports(arm_object)
    with pytest.raises(ObjectError, match="no loader for"):
        elf.load(arm_object, kernel_externals, None)


def test_new_instructions_are_made_visible(
    arm_object: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor does not see to that itself: all of the code, once it is written."""
    seen = []

    def clear_cache(start: int, stop: int) -> None:
        seen.append((start, stop, ctypes.string_at(start, 4)))

    monkeypatch.setattr(elf, "HOST", AARCH64)
    monkeypatch.setattr(elf, "_clear_cache", lambda: clear_cache)
    loaded = elf.load(arm_object, kernel_externals, AARCH64)
    ((start, stop, first),) = seen
    assert stop - start == len(loaded.mem)
    assert first == bytes(loaded.mem[:4]) != bytes(4)
