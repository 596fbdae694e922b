"""The object loader: what LLVM emits runs; anything else it refuses, with the reason."""

import ctypes
import mmap
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule.runtime.cpu import elf, llvm
from ferrule.runtime.cpu.elf import ObjectError
from ferrule.runtime.cpu.pool import kernel_externals

compiler = llvm.host_compiler()
pytestmark = pytest.mark.skipif(
    not elf.supports(compiler.compile("")), reason="LLVM loads what is compiled here"
)

ADD = """
define i64 @add(i64 %a, i64 %b) nounwind {
  %c = add i64 %a, %b
  ret i64 %c
}
"""
# A jump table, a vector constant, a global that is written, one that is zero, a pointer to
# another global, a static function: every kind of section and relocation that occurs.
EVERYTHING = """
@counter = internal global i64 40
@zeros = internal global [100 x i64] zeroinitializer
@pointer = internal global ptr getelementptr (i8, ptr @counter, i64 0)
@visible = global i64 7
declare ptr @memcpy(ptr, ptr, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i64 @next() noinline nounwind {
  %at = load ptr, ptr @pointer
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret i64 %new
}
define i64 @count() nounwind {
  %a = call i64 @next()
  %z = load i64, ptr getelementptr (i64, ptr @zeros, i64 99)
  %v = load i64, ptr @visible
  %s = add i64 %a, %z
  %t = add i64 %s, %v
  ret i64 %t
}
define i64 @choose(i64 %n) nounwind {
  switch i64 %n, label %other [
    i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e
  ]
a:
  ret i64 17
b:
  ret i64 5
c:
  ret i64 99
d:
  ret i64 -4
e:
  ret i64 1234567890123
other:
  ret i64 0
}
define void @scale(ptr %to, ptr %from) nounwind {
  %copied = call ptr @memcpy(ptr %to, ptr %from, i64 64)
  %x = load <16 x float>, ptr %to, align 4
  %y = fmul <16 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0,
    float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0, float 14.0,
    float 15.0, float 16.0>
  store <16 x float> %y, ptr %to, align 4
  ret void
}
define void @clear(ptr %p, i64 %n) nounwind {
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 false)
  ret void
}
define ptr @function_address() nounwind {
  ret ptr @memcpy
}
"""


def load(source: str) -> elf.LoadedObject:
    return elf.load(compiler.compile(source), kernel_externals)


def function(loaded: elf.LoadedObject, name: str, *types: object) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *types)(loaded.address(name))  # type: ignore[arg-type]


def test_a_function_runs() -> None:
    loaded = load(ADD)
    assert function(loaded, "add", ctypes.c_int64, ctypes.c_int64)(2**40, 2) == 2**40 + 2
    assert list(loaded.symbols) == ["add"]


def test_data_constants_jump_tables_and_calls_out() -> None:
    loaded = load(EVERYTHING)
    count = function(loaded, "count")
    assert [count(), count()] == [48, 49]
    choose = function(loaded, "choose", ctypes.c_int64)
    assert [choose(n) for n in range(6)] == [17, 5, 99, -4, 1234567890123, 0]
    source = (ctypes.c_float * 16)(*range(16))
    result = (ctypes.c_float * 16)()
    function(loaded, "scale", ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.addressof(result), ctypes.addressof(source)
    )
    assert list(result) == [n * (n + 1) for n in range(16)]
    function(loaded, "clear", ctypes.c_void_p, ctypes.c_int64)(ctypes.addressof(result), 64)
    assert list(result) == [0.0] * 16
    address = ctypes.CFUNCTYPE(ctypes.c_uint64)(loaded.address("function_address"))()
    assert address == kernel_externals["memcpy"]


def test_two_loads_share_nothing() -> None:
    first, second = load(EVERYTHING), load(EVERYTHING)
    assert function(first, "count")() == 48
    assert function(second, "count")() == 48


sees_mappings = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="the system does not list its mappings"
)


def mapping_of(address: int) -> str:
    """The permissions of the page at `address`."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions, *_ = line.split()
            start, stop = (int(part, 16) for part in span.split("-"))
            if start <= address < stop:
                return permissions
    raise AssertionError(f"{address:#x} is not mapped")


@sees_mappings
def test_no_page_is_writable_and_executable() -> None:
    loaded = load(EVERYTHING)
    assert mapping_of(loaded.address("count")) == "r-xp"
    assert mapping_of(loaded.address("visible")) == "rw-p"
    with pytest.raises(TypeError, match="read-only"):
        loaded.mem[0] = 0
    assert len(loaded.mem) % mmap.PAGESIZE == 0


@sees_mappings
@pytest.mark.parametrize("page", [16 << 10, 64 << 10])
def test_larger_pages(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some systems on AArch64 have; what is written shares none with code there either."""
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    loaded = load(EVERYTHING)
    assert len(loaded.mem) == page
    start = loaded.address("count") // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    assert mapping_of(start) == "r-xp"
    assert mapping_of(loaded.address("visible")) == "rw-p"
    assert function(loaded, "count")() == 48


@sees_mappings
def test_the_mapping_goes_with_the_object() -> None:
    loaded = load(ADD)
    address = loaded.address("add")
    mem = loaded.mem
    del loaded
    assert mapping_of(address) == "r-xp"
    assert len(mem) > 0
    del mem
    with pytest.raises(AssertionError, match="not mapped"):
        mapping_of(address)


@pytest.mark.skipif(
    compiler.target.arch == "aarch64",
    reason="there LLVM 22 ends the process where data is far from the code",
)
def test_llvm_loads_the_same() -> None:
    names = ("count", "choose", "visible")
    loaded = llvm.load_with_llvm(compiler.compile(EVERYTHING), kernel_externals, names)
    assert function(loaded, "count")() == 48
    assert function(loaded, "choose", ctypes.c_int64)(3) == -4
    with pytest.raises(ObjectError, match="LLVM cannot link it"):
        llvm.load_with_llvm(compiler.compile(ADD), kernel_externals, ("absent",))


def test_other_formats_go_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "supports", lambda data: False)
    loaded = llvm.load_object(compiler.compile(ADD), kernel_externals, ("add",))
    assert function(loaded, "add", ctypes.c_int64, ctypes.c_int64)(3, 4) == 7
    assert len(loaded.mem) == 0


def rejected(data: bytes, message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        elf.load(data, kernel_externals)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ObjectError, match=r"no symbol 'sub'; it defines add"):
        load(ADD).address("sub")
    with pytest.raises(ObjectError, match=r"no symbol 'sub'"):
        llvm.load_object(compiler.compile(ADD), kernel_externals, ("add", "sub"))
    needs_sin = "declare double @sin(double)\n" + ADD.replace(
        "ret i64", "%s = call double @sin(double 1.0)\n  ret i64"
    )
    rejected(compiler.compile(needs_sin), r"it needs 'sin' from outside; there is memcpy, memmove")


def test_unsupported_contents_are_named() -> None:
    local = "@v = thread_local global i64 1\n" + ADD
    rejected(compiler.compile(local), "thread-local data")
    common = "@v = common global i64 0\n" + ADD
    rejected(compiler.compile(common), "symbol 'v' is in section 0xfff2")
    text = section_headers(bytearray(compiler.compile(ADD)))[".text"]
    initialiser = bytearray(compiler.compile(ADD))
    initialiser[text + 4] = 14
    rejected(bytes(initialiser), "initialisers")
    writable = bytearray(compiler.compile(ADD))
    writable[text + 8] |= 1
    rejected(bytes(writable), "both writable and executable")


def section_headers(data: bytearray) -> dict[str, int]:
    """Where the header of each section is."""
    table = int.from_bytes(data[40:48], "little")
    n_sections = int.from_bytes(data[60:62], "little")
    names_index = int.from_bytes(data[62:64], "little")
    at = [table + 64 * n for n in range(n_sections)]
    names = int.from_bytes(data[at[names_index] + 24 : at[names_index] + 32], "little")

    def name(header: int) -> str:
        start = names + int.from_bytes(data[header : header + 4], "little")
        return data[start : data.index(b"\0", start)].decode()

    return {name(header): header for header in at}


def test_malformed_headers_are_rejected() -> None:
    good = compiler.compile(EVERYTHING)
    rejected(b"", "not 64-bit little-endian ELF")
    rejected(b"MZ" + good[2:], "not 64-bit little-endian ELF")
    rejected(good[:40], "truncated or malformed")
    rejected(good[: len(good) // 2], "is outside of its")
    rejected(good[:18] + b"\xf3\0" + good[20:], "machine 243")
    assert not elf.supports(good[:18] + b"\xf3\0" + good[20:])
    assert not elf.supports(b"\x7fELF")
    assert elf.supports(good)


@pytest.mark.parametrize(
    ("section", "offset", "width", "value", "message"),
    [
        (".text", 48, 8, 3, "aligned to 3 bytes"),
        (".text", 48, 8, 1 << 20, "aligned to 1048576"),
        (".text", 32, 8, 1 << 40, "a section of 1099511627776 bytes"),
        (".text", 24, 8, 1 << 40, "is outside of its"),
        (".bss", 32, 8, 1 << 31, "a section of 2147483648 bytes"),
        (".symtab", 40, 4, 999, "truncated or malformed"),
        (".symtab", 32, 8, 25, "truncated or malformed"),
        (".rela.text", 4, 4, 9, "relocations without addends"),
    ],
)
def test_malformed_sections_are_rejected(
    section: str, offset: int, width: int, value: int, message: str
) -> None:
    data = bytearray(compiler.compile(EVERYTHING))
    at = section_headers(data)[section] + offset
    data[at : at + width] = value.to_bytes(width, "little")
    rejected(bytes(data), message)


def first_entry(data: bytearray, section: str) -> int:
    header = section_headers(data)[section]
    return int.from_bytes(data[header + 24 : header + 32], "little")


def test_malformed_relocations_are_rejected() -> None:
    good = compiler.compile(EVERYTHING)
    at = first_entry(bytearray(good), ".rela.text")
    rejected(good[:at] + b"\xff\xff\xff\x7f" + good[at + 4 :], "outside of its section")
    rejected(good[: at + 8] + b"\x0b\0" + good[at + 10 :], "relocation of kind 11 against")
    rejected(good[: at + 12] + b"\xff\xff" + good[at + 14 :], "truncated or malformed")
    rejected(good[: at + 16] + b"\0" * 7 + b"\x7f" + good[at + 24 :], "too far")


def test_random_damage_never_crashes() -> None:
    """Only headers and tables: damaged instructions are beyond any loader."""
    good = compiler.compile(EVERYTHING)
    headers = section_headers(bytearray(good))
    generator = random.Random(5)
    table = min(headers.values())
    tables = [(0, 64), (table, len(good) - table)]
    for section in (".symtab", ".rela.text", ".strtab"):
        tables.append((first_entry(bytearray(good), section), 48))
    refusals = []
    for _ in range(400):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            start, size = generator.choice(tables)
            data[start + generator.randrange(size)] = generator.randrange(256)
        try:
            elf.load(bytes(data), kernel_externals)
        except ObjectError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all(text.startswith("object file: ") for text in refusals)
