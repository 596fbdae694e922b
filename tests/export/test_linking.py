"""The linker of shared libraries: what LLVM emits runs, and for AArch64 it is decoded."""

from __future__ import annotations

import ctypes
import io
from pathlib import Path
from typing import Any

import llvmlite.binding
import pytest

from ferrule.export import features
from ferrule.export.linking import Blob, SharedLibrary
from ferrule.export.objects import Member, data_object, defined_names, renamed, write_archive
from ferrule.export.step_code import Lines, expression
from ferrule.ir.expr import ExprOp, Variable
from ferrule.ir.expr.build import less, minimum
from ferrule.runtime.cpu import elf, llvm
from ferrule.runtime.cpu.elf import ObjectError
from ferrule.runtime.cpu.relocations import AARCH64, Machine

compiler = llvm.host_compiler()
HOST = elf.HOST
pytestmark = pytest.mark.skipif(
    HOST is None or not elf.supports(compiler.compile("")), reason="not a system with ELF files"
)

# A jump table, constants, a table of addresses, calls of libc and of another object file, the
# address of a function of libc, and the read-only data.
FIRST = """
@texts = internal constant [2 x ptr] [ptr @one, ptr @two]
@one = internal constant [4 x i8] c"one\\00"
@two = internal constant [4 x i8] c"two\\00"
@data = external constant i8
declare ptr @memcpy(ptr, ptr, i64)
declare hidden i64 @twice(i64)

define ptr @text(i64 %n) nounwind {
  %at = getelementptr ptr, ptr @texts, i64 %n
  %text = load ptr, ptr %at
  ret ptr %text
}
define void @copy(ptr %to, ptr %from, i64 %n) nounwind {
  %a = call ptr @memcpy(ptr %to, ptr %from, i64 %n)
  ret void
}
define ptr @outside() nounwind {
  ret ptr @memcpy
}
define i64 @four_times(i64 %n) nounwind {
  %a = call i64 @twice(i64 %n)
  %b = call i64 @twice(i64 %a)
  ret i64 %b
}
define i8 @byte(i64 %n) nounwind {
  %at = getelementptr i8, ptr @data, i64 %n
  %byte = load i8, ptr %at
  ret i8 %byte
}
define <4 x float> @constant() nounwind {
  ret <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>
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
  ret i64 4
c:
  ret i64 99
d:
  ret i64 23
e:
  ret i64 7
other:
  ret i64 0
}
"""
SECOND = """
define i64 @twice(i64 %n) nounwind {
  %m = mul i64 %n, 2
  ret i64 %m
}
"""
EXPORTED = ["text", "copy", "outside", "four_times", "byte", "constant", "choose"]
DATA = bytes(range(256)) * 40


def blob() -> Blob:
    return Blob("data", len(DATA), lambda: [DATA[:100], DATA[100:]])


def linked(objects: list[bytes], machine: Machine, exported: list[str] | None = None) -> bytes:
    names = EXPORTED if exported is None else exported
    library = SharedLibrary(objects, names, ["memcpy"], blob(), machine, "some.so")
    file = io.BytesIO()
    assert library.write(file) == len(file.getvalue())
    return file.getvalue()


def objects() -> list[bytes]:
    return [compiler.compile(FIRST), compiler.compile(SECOND)]


def test_a_library_runs(tmp_path: Path) -> None:
    assert HOST is not None
    path = tmp_path / "some.so"
    path.write_bytes(linked(objects(), HOST))
    library = ctypes.CDLL(str(path))
    library.text.restype = ctypes.c_char_p
    library.outside.restype = ctypes.c_void_p
    assert [library.text(n) for n in range(2)] == [b"one", b"two"]
    to = ctypes.create_string_buffer(4)
    library.copy(to, b"abc", 4)
    assert to.value == b"abc"
    types = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    ctypes.CFUNCTYPE(*types)(library.outside())(to, b"def", 4)
    assert to.value == b"def"
    assert library.four_times(3) == 12
    assert [library.byte(n) & 255 for n in (0, 5, 255, 10239)] == [0, 5, 255, 255]
    assert [library.choose(n) for n in range(6)] == [17, 4, 99, 23, 7, 0]
    assert not hasattr(library, "twice")


def test_names_are_changed_and_hidden(tmp_path: Path) -> None:
    assert HOST is not None
    first, second = objects()
    names = {"twice": "other.twice"}
    files = [renamed(first, names, HOST), renamed(second, names, HOST)]
    assert defined_names(files[1], HOST) == ["other.twice"]
    path = tmp_path / "other.so"
    path.write_bytes(linked(files, HOST))
    assert ctypes.CDLL(str(path)).four_times(5) == 20
    with pytest.raises(ObjectError, match="'twice' from outside"):
        linked([first, files[1]], HOST)


def test_what_does_not_fit_is_refused() -> None:
    assert HOST is not None
    first, second = objects()
    with pytest.raises(ObjectError, match="two object files define 'twice'"):
        linked([first, second, second], HOST)
    with pytest.raises(ObjectError, match="it needs 'twice' from outside"):
        linked([first], HOST)
    with pytest.raises(ObjectError, match="no object file defines 'nothing'"):
        linked([first, second], HOST, ["nothing"])
    for variable in ("@x = global i64 4", "@x = global i64 0", "@x = global ptr @x"):
        with pytest.raises(ObjectError, match="it has variables"):
            linked([compiler.compile(variable)], HOST, [])


def static_object(source: str) -> bytes:
    """Code that is not independent of its position."""
    triple = llvmlite.binding.get_process_triple()
    target = llvmlite.binding.Target.from_triple(triple)
    machine = target.create_target_machine(reloc="static", codemodel="small")
    module = llvmlite.binding.parse_assembly(f'target triple = "{triple}"\n{source}')
    return bytes(machine.emit_object(module))


def test_addresses_in_read_only_data_are_refused() -> None:
    """The dynamic linker could not fill them in."""
    assert HOST is not None
    source = "@table = constant [1 x ptr] [ptr @f]\ndefine void @f() {\n  ret void\n}\n"
    with pytest.raises(ObjectError, match="an address in read-only data"):
        linked([static_object(source)], HOST, ["f"])


@pytest.mark.parametrize("damage", ["place", "kind"])
def test_damaged_relocations_are_refused(damage: str) -> None:
    assert HOST is not None
    first, second = objects()
    data = bytearray(first)
    table, count = word(data, 40, 8), word(data, 60, 2)
    rows = [elf.SECTION.unpack_from(data, table + 64 * number) for number in range(count)]
    relocations, code = next(
        (row, rows[row[7]]) for row in rows if row[1] == 4 and rows[row[7]][2] & elf.EXECUTE
    )
    offset, kind, symbol, addend = elf.RELOCATION.unpack_from(data, relocations[4])
    if damage == "place":
        offset = code[5] - 1
    else:
        kind = 250
    elf.RELOCATION.pack_into(data, relocations[4], offset, kind, symbol, addend)
    with pytest.raises(ObjectError, match=f"relocation of kind {kind} against"):
        linked([bytes(data), second], HOST)


def dynamic_symbols(data: bytes) -> dict[str, int]:
    """The kind of each symbol in a library's dynamic table, by name."""
    segments = [elf.HEADER.size + 56 * number for number in range(word(data, 56, 2))]
    dynamic = next(at for at in segments if word(data, at) == 2)
    start, size = word(data, dynamic + 8, 8), word(data, dynamic + 32, 8)
    entries = {word(data, at, 8): word(data, at + 8, 8) for at in range(start, start + size, 16)}
    count = word(data, entries[4] + 4)
    rows = [elf.SYMBOL.unpack_from(data, entries[6] + 24 * number) for number in range(1, count)]
    names = [data[entries[5] + row[0] :].split(b"\0", 1)[0].decode() for row in rows]
    return dict(zip(names, [row[1] for row in rows], strict=True))


def test_exported_symbols_are_functions_or_objects(tmp_path: Path) -> None:
    assert HOST is not None
    source = "@seven = constant i64 7\ndefine i64 @eight() {\n  ret i64 8\n}\n"
    data = linked([compiler.compile(source)], HOST, ["seven", "eight"])
    assert dynamic_symbols(data) == {"seven": 0x11, "eight": 0x12}
    path = tmp_path / "some.so"
    path.write_bytes(data)
    library = ctypes.CDLL(str(path))
    assert ctypes.c_int64.in_dll(library, "seven").value == 7
    assert library.eight() == 8


def test_a_data_object_is_read_back() -> None:
    assert HOST is not None
    member = data_object("data", len(DATA), blob().pieces, HOST)
    contents = b"".join(member.pieces())
    assert len(contents) == member.nbytes
    sections = elf.read_sections(contents, HOST)
    assert [section.data for section in sections if section.loaded] == [DATA]
    assert [section.alignment for section in sections if section.loaded] == [4096]
    assert defined_names(contents, HOST) == ["data"]
    table = next(section for section in sections if section.kind == 2)
    assert elf.SYMBOL.unpack_from(table.data, 24)[4:] == (0, len(DATA)), "its place and size"


@pytest.mark.parametrize("sizes", [(5, 6), (6, 5), (5, 5, 0)])
def test_members_of_archives_begin_at_even_places(sizes: tuple[int, ...]) -> None:
    """As the format asks; the index has the place of each symbol's member, big-endian."""
    members = [
        Member.of("m" * (number + 2), b"x" * size, [f"s{number}", f"t{number}"])
        for number, size in enumerate(sizes)
    ]
    file = io.BytesIO()
    write_archive(file, members)
    data = file.getvalue()
    assert data.startswith(b"!<arch>\n")
    at, found = 8, {}
    while at < len(data):
        assert at % 2 == 0
        assert data[at + 58 : at + 60] == b"`\n"
        size = int(data[at + 48 : at + 58])
        found[at] = data[at : at + 16].rstrip(), data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    assert at == len(data)
    (head, index), (long_head, long_names), *rest = found.values()
    assert (head, long_head) == (b"/", b"//")
    assert [contents for _, contents in rest] == [b"x" * size for size in sizes]
    names = [long_names[int(name[1:]) :].split(b"/\n")[0].decode() for name, _ in rest]
    assert names == [one.name for one in members]
    count = int.from_bytes(index[:4], "big")
    places = [int.from_bytes(index[4 * n + 4 : 4 * n + 8], "big") for n in range(count)]
    symbols = index[4 + 4 * count :].split(b"\0")[:count]
    assert symbols == [name.encode() for one in members for name in one.symbols]
    assert places == [place for place in list(found)[2:] for _ in range(2)]


# *** AArch64, from any processor ***


def arm_objects() -> list[bytes]:
    binding: Any = pytest.importorskip("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    target = binding.Target.from_triple(triple)
    machine = target.create_target_machine(cpu="generic", reloc="pic", codemodel="small")
    return [
        machine.emit_object(binding.parse_assembly(f'target triple = "{triple}"\n{text}'))
        for text in (FIRST, SECOND)
    ]


def word(data: bytes | bytearray, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "little")


def page_of(data: bytes, at: int) -> int:
    """The page that the instruction `adrp` at a place names."""
    code = word(data, at)
    assert code & 0x9F000000 == 0x90000000
    distance = (code >> 5 & 0x7FFFF) << 2 | code >> 29 & 3
    distance -= (distance >> 20) << 21
    return (at & ~0xFFF) + (distance << 12)


def test_a_library_for_aarch64_calls_by_cells() -> None:
    data = linked(arm_objects(), AARCH64)
    assert word(data, 18, 2) == AARCH64.number
    segments = [elf.HEADER.size + 56 * number for number in range(word(data, 56, 2))]
    loaded = [
        (word(data, at + 4), word(data, at + 8, 8), word(data, at + 48, 8))
        for at in segments
        if word(data, at) == 1
    ]
    assert [flags for flags, _, _ in loaded] == [4, 5, 6, 4]
    assert all(start % 0x10000 == 0 and page == 0x10000 for _, start, page in loaded)
    assert data[loaded[3][1] :][: len(DATA)] == DATA
    kinds_of_segments = {word(data, at): at for at in segments}
    stack, read_only = kinds_of_segments[0x6474E551], kinds_of_segments[0x6474E552]
    assert word(data, stack + 4) == 6, "no code on the stack"
    filled = next(at for at in segments if word(data, at + 4) == 6 and word(data, at) == 1)
    for field in (8, 16, 32, 40):
        assert word(data, read_only + field, 8) == word(data, filled + field, 8)
    assert word(data, filled + 40, 8) % 0x10000 == 0, "whole pages become read-only"
    dynamic = next(at for at in segments if word(data, at) == 2)
    start, size = word(data, dynamic + 8, 8), word(data, dynamic + 32, 8)
    entries = {word(data, at, 8): word(data, at + 8, 8) for at in range(start, start + size, 16)}
    relocations = list(elf.RELOCATION.iter_unpack(data[entries[7] :][: entries[8]]))
    kinds = {kind for _, kind, _, _ in relocations}
    assert kinds == {1027, 1025}, "addresses in the library, and cells of functions outside"
    cell = next(place for place, kind, _, _ in relocations if kind == 1025)
    # The stub is the code that jumps by the cell: adrp x16, ldr x17, br x17.
    code = loaded[1][1]
    jump = bytes.fromhex("20021fd6")
    stub = data.index(jump, code) - 8
    low = (word(data, stub + 4) >> 10 & 0xFFF) * 8
    assert page_of(data, stub) + low == cell
    calls = [
        at + ((word(data, at) & 0x3FFFFFF) << 2)
        for at in range(code, stub, 4)
        if word(data, at) >> 26 in (0x25, 0x05)
    ]
    assert stub in calls


def test_sizes_are_computed_as_python_does(tmp_path: Path) -> None:
    """The machine code for expressions of variables: quotients and rests below 0, too."""
    assert HOST is not None
    n, m = Variable("n", -40, 40), Variable("m", -5, 5)
    sizes = [n // 7, n % 7, n * 3 - m, -n, minimum(n, m), minimum(n, -m) * 2, less(n, m)]
    for number, size in enumerate(sizes):
        code = Lines()
        value = expression(code, size, {n: "%n", m: "%m"})
        kind = "i1" if size.op is ExprOp.CMPLT else "i64"
        code.do(f"{value}.wide = zext i1 {value} to i64") if kind == "i1" else None
        result = f"{value}.wide" if kind == "i1" else value
        body = "\n".join(code.lines)
        source = f"define i64 @f(i64 %n, i64 %m) {{\n{body}\n  ret i64 {result}\n}}\n"
        path = tmp_path / f"{number}.so"
        path.write_bytes(linked([compiler.compile(source)], HOST, ["f"]))
        function = ctypes.CDLL(str(path)).f
        function.argtypes, function.restype = (ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
        for a in range(-40, 41):
            for b in (-5, 0, 3):
                assert function(a, b) == size.infer({n: a, m: b}), (size, a, b)


def test_the_processor_has_the_features_that_llvm_finds(tmp_path: Path) -> None:
    """The bits of `cpuid`, one by one, against what LLVM asks for by itself."""
    assert HOST is not None
    arch = compiler.target.arch
    if arch != "x86-64":
        pytest.skip("not an x86-64 processor")
    known = llvmlite.binding.get_host_cpu_features()
    asked = [name for name in features.X86 if name in known]
    functions = []
    for number, name in enumerate(asked):
        lines, bit = features.checks(arch, [name])[0]
        body = "\n".join(lines)
        functions.append(f"define i1 @f{number}() {{\n{body}\n  ret i1 {bit}\n}}\n")
    source = features.helpers(arch, ["avx"]) + "\n".join(functions)
    names = [f"f{number}" for number in range(len(asked))]
    path = tmp_path / "features.so"
    path.write_bytes(linked([compiler.compile(source)], HOST, names))
    library = ctypes.CDLL(str(path))
    found = {name: bool(library[f"f{number}"]() & 1) for number, name in enumerate(asked)}
    assert found == {name: known[name] for name in asked}
    assert len(asked) > 20
