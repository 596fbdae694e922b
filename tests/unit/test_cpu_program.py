"""Programs of the CPU: compiled, loaded, called; and the memory that they work on."""

import ctypes
import gc
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ferrule.base import diskcache
from ferrule.base.config import Context
from ferrule.ir.target import detect_cpu
from ferrule.runtime.cpu import llvm
from ferrule.runtime.cpu import memory as cpu_memory
from ferrule.runtime.cpu.llvm import CPUCompiler
from ferrule.runtime.cpu.memory import CPUAllocator, CPUMemory
from ferrule.runtime.cpu.program import CPUProgram

Kernels = dict[str, Callable[..., str]]
compiler = llvm.host_compiler()


def filled(allocator: CPUAllocator, values: np.ndarray) -> CPUMemory:
    memory: CPUMemory = allocator.alloc(values.nbytes)
    allocator.copyin(memory, values.data.cast("B"))
    return memory


@pytest.fixture
def add(kernels: Kernels) -> CPUProgram:
    """out[i] = a[i] + b[i], for as many elements as the variable says."""
    source = kernels["add_kernel"]("add", kernels["extent_from"](3))
    return CPUProgram("add", compiler.compile_cached(source))


# *** programs ***


def test_a_program_adds(add: CPUProgram) -> None:
    allocator = CPUAllocator()
    a = np.arange(100, dtype=np.float32)
    b = np.full(100, 0.5, np.float32)
    out = allocator.alloc(400)
    add(out, filled(allocator, a), filled(allocator, b), vals=(100,))
    np.testing.assert_array_equal(np.frombuffer(out.view(), np.float32), a + b)


def test_parts_of_blocks_are_buffers_too(add: CPUProgram) -> None:
    allocator = CPUAllocator()
    whole = filled(allocator, np.arange(30, dtype=np.float32))
    a, b, out = (allocator.offset(whole, 40 * n, 40) for n in range(3))
    add(out, a, b, vals=(10,))
    expected = np.arange(10) + np.arange(10, 20)
    np.testing.assert_array_equal(np.frombuffer(whole.view(), np.float32)[20:], expected)


def test_many_threads_call_one_program(add: CPUProgram) -> None:
    failures: list[int] = []

    def call(number: int) -> None:
        allocator = CPUAllocator()
        a = filled(allocator, np.full(50, number, np.float32))
        out = allocator.alloc(200)
        for _ in range(200):
            add(out, a, a, vals=(50,))
            if not (np.frombuffer(out.view(), np.float32) == 2 * number).all():
                failures.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_documented_attributes(add: CPUProgram) -> None:
    assert add.name == "add"
    assert add.helper_handle.memcpy
    if compiler.target.arch == "x86-64":
        assert add.mem.readonly
        assert len(add.mem) > 0
    values = np.arange(4, dtype=np.float32)
    memory = filled(CPUAllocator(), values)
    table = np.array([memory.address, memory.address, memory.address, 4], np.int64)
    add.fxn(table.ctypes.data, 1, 3)
    expected = [0, 2, 4, 3]
    np.testing.assert_array_equal(np.frombuffer(memory.view(), np.float32), expected)


def test_a_program_loaded_by_llvm(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors and systems that our own loader does not know."""
    monkeypatch.setattr(llvm, "supports", lambda data: False)
    program = CPUProgram("add", compiler.compile(kernels["add_kernel"]("add")))
    memory = filled(CPUAllocator(), np.array([2], np.float32))
    program(memory, memory, memory)
    assert np.frombuffer(memory.view(), np.float32)[0] == 4
    assert len(program.mem) == 0


def test_names_with_dots_and_digits(kernels: Kernels) -> None:
    source = kernels["add_kernel"]("E_4.2_x0")
    program = CPUProgram("E_4.2_x0", compiler.compile(source))
    memory = filled(CPUAllocator(), np.array([2], np.float32))
    program(memory, memory, memory)
    assert np.frombuffer(memory.view(), np.float32)[0] == 4


def test_programs_are_freed(kernels: Kernels) -> None:
    program = CPUProgram("add", compiler.compile_cached(kernels["add_kernel"]("add")))
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


# *** the compiler ***


def test_the_key_names_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    target = detect_cpu()
    key = CPUCompiler(target).cachekey
    assert key == CPUCompiler(target).cachekey
    fields = target.to_json()
    other = type(target).from_json(fields | {"features": "+sse2"})
    keys = {key, CPUCompiler(other).cachekey}
    monkeypatch.setattr(llvm, "_FLAGS", "O0")
    keys.add(CPUCompiler(target).cachekey)
    monkeypatch.setattr(llvm, "_package_version", lambda: "99")
    keys.add(CPUCompiler(target).cachekey)
    assert len(keys) == 4


def test_the_key_needs_no_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setattr(llvm, "find_spec", lambda name: None)
    assert CPUCompiler(detect_cpu()).cachekey != compiler.cachekey


def test_compilation_is_deterministic_and_cached(kernels: Kernels, tmp_path: Path) -> None:
    source = kernels["add_kernel"]("add")
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        first = compiler.compile_cached(source)
        assert compiler.cachekey is not None
        assert diskcache.get(compiler.cachekey, source) == first
    assert compiler.compile(source) == first


def test_many_at_once_give_the_same(kernels: Kernels) -> None:
    sources = [kernels["add_kernel"](f"add{number}") for number in range(12)]
    with ThreadPoolExecutor(3) as threads:
        compiled = list(threads.map(compiler.compile, sources))
    assert compiled == [compiler.compile(source) for source in sources]


def test_without_the_unlocked_entry_it_is_the_same(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kernels["add_kernel"]("add")
    expected = compiler.compile(source)
    monkeypatch.setattr(llvm, "_emitter", lambda: None)
    assert compiler.compile(source) == expected


def test_disassembly_shows_the_code(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = compiler.compile(kernels["add_kernel"]("add"))
    shown = compiler.disassemble(lib)
    if shutil.which("objdump") and compiler.target.arch == "x86-64":
        assert "<add.extent>:" in shown
        assert "ret" in shown
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiler.disassemble(b"\x7fELF" + bytes(14)).splitlines() == [
        "000000  7f 45 4c 46 00 00 00 00 00 00 00 00 00 00 00 00",
        "000010  00 00",
    ]


# *** memory ***


@pytest.mark.parametrize("size", [1, 63, 64, 4096, 65535, 65536, 1 << 20, (2 << 20) + 5])
def test_blocks_are_aligned_and_hold_their_size(size: int) -> None:
    allocator = CPUAllocator()
    blocks = [allocator.alloc(size) for _ in range(5)]
    for number, block in enumerate(blocks):
        assert block.address % 64 == 0
        block.view()[:] = bytes([number]) * size
    for number, block in enumerate(blocks):
        assert bytes(block.view()) == bytes([number]) * size
        assert ctypes.string_at(block.address, size) == bytes(block.view())


def test_a_freed_block_is_used_again() -> None:
    allocator = CPUAllocator()
    block = allocator.alloc(1000)
    address = block.address
    allocator.free(block, 1000)
    assert allocator.alloc(1000).address == address


def test_copies_in_and_out() -> None:
    allocator = CPUAllocator()
    block = allocator.alloc(10)
    allocator.copyin(block, memoryview(b"0123456789"))
    out = bytearray(10)
    allocator.copyout(memoryview(out), block)
    assert out == b"0123456789"
    part = allocator.offset(block, 3, 4)
    assert bytes(allocator.as_buffer(part)) == b"3456"
    again = allocator.offset(part, 1, 2)
    assert bytes(again.view()) == b"45"
    assert again.address == block.address + 4


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_view_keeps_the_memory(size: int) -> None:
    allocator = CPUAllocator()
    block = allocator.alloc(size)
    block.view()[:] = b"x" * size
    view = allocator.as_buffer(block)
    with Context(LRU=0):
        allocator.free(block, size)
    del block
    gc.collect()
    others = [allocator.alloc(size) for _ in range(10)]
    for other in others:
        other.view()[:] = b"y" * size
    assert bytes(view) == b"x" * size


def test_no_room_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = CPUAllocator(budget=1 << 62)
    with pytest.raises(MemoryError, match=f"the system has no room for {1 << 60} bytes"):
        allocator.alloc(1 << 60)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cpu_memory.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        allocator.alloc(1 << 20)
