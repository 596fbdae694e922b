"""What the CPU says when something is wrong."""

import sys
from collections.abc import Iterator

import pytest

from ferrule.device import CompileError
from ferrule.runtime.cpu import elf, llvm
from ferrule.runtime.cpu.elf import ObjectError
from ferrule.runtime.cpu.program import CPUProgram

compiler = llvm.host_compiler()
KERNEL = """
define i64 @"r_10.extent"(ptr %args) {
  ret i64 1
}
define void @"r_10"(ptr %args, i64 %start, i64 %stop) {
  ret void
}
"""


def test_code_that_is_no_llvm_names_the_kernel_and_the_line() -> None:
    broken = KERNEL.replace("ret void", "return nothing")
    message = r"(?s)kernel r_10: LLVM does not accept its code:.*return nothing"
    with pytest.raises(CompileError, match=message):
        compiler.compile(broken)


def test_code_that_is_wrong_in_itself_is_refused() -> None:
    """The parser takes it; the verifier does not."""
    broken = KERNEL.replace(
        "  ret void", "  br label %b\nb:\n  %x = add i64 %y, 1\n  %y = add i64 %x, 1\n  ret void"
    )
    with pytest.raises(CompileError, match=r"(?s)kernel r_10: .*does not dominate all uses"):
        compiler.compile(broken)


def test_source_without_a_kernel() -> None:
    with pytest.raises(CompileError, match=r"kernel \?: LLVM does not accept its code"):
        compiler.compile("nonsense")


@pytest.fixture
def without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    llvm._llvm.cache_clear()
    yield
    llvm._llvm.cache_clear()


@pytest.mark.usefixtures("without_llvmlite")
def test_without_llvmlite_it_says_how_to_get_it() -> None:
    message = r"the CPU device compiles with llvmlite, .*; run: pip install llvmlite"
    with pytest.raises(CompileError, match=message):
        compiler.compile(KERNEL)


def test_a_kernel_of_another_name() -> None:
    lib = compiler.compile(KERNEL)
    message = r"object file: no symbol 'r_11'; it defines r_10, r_10\.extent"
    with pytest.raises(ObjectError, match=message):
        CPUProgram("r_11", lib)


def test_a_kernel_without_its_extent() -> None:
    lib = compiler.compile(KERNEL.replace("r_10.extent", "other"))
    with pytest.raises(ObjectError, match=r"no symbol 'r_10\.extent'; it defines other, r_10"):
        CPUProgram("r_10", lib)


def test_bytes_that_are_no_program() -> None:
    with pytest.raises(ObjectError, match="object file: LLVM cannot link it"):
        CPUProgram("r_10", b"not an object file")


def test_a_system_that_forbids_new_code(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler.target.arch != "x86-64":
        pytest.skip("LLVM loads the code here")
    lib = compiler.compile(KERNEL)
    CPUProgram("r_10", lib)
    monkeypatch.setattr(elf, "_mprotect", lambda *_: -1)
    message = "does not let this process execute memory that it has written"
    with pytest.raises(OSError, match=message):
        CPUProgram("r_10", lib)
