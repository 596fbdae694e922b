"""The format `c`: compiled, it computes the replay's numbers, and does nothing undefined."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.export import ExportError, exported_program, formats, trials
from ferrule.export.c import CProgram
from ferrule.export.interface import Interface
from ferrule.export.interpret import Instance
from ferrule.export.program import BlockKind
from tests.export.programs import PROGRAMS, aliases, lengths, network, rand

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler is installed")
STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
BUILDS = [*((name,) for name in COMPILERS), *((name, "-DNO_VECTORS") for name in COMPILERS[:1])]
SANITIZED = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

# Reads the arguments from its input, runs the program twice, and writes results and states.
MAIN = """
#include "%(name)s.h"
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **texts) {
  (void)count;
  void *tensors[16] = {0};
  size_t sizes_of[16] = {0};
  int64_t sizes[4] = {0};
  for (int i = 1; i < count; i++) sizes[i - 1] = atoll(texts[i]);
  for (uint32_t kind = 0; kind < 2; kind++) {
    for (uint32_t n = 0; %(name)s_describe(kind, n); n++) {
      const %(name)s_tensor *one = %(name)s_describe(kind, n);
      if (one->place < 0 || tensors[one->place]) continue;
      sizes_of[one->place] = (size_t)one->nbytes;
      tensors[one->place] = calloc(1, (size_t)one->nbytes + 1);
      if (kind) continue;
      if (fread(tensors[one->place], (size_t)one->nbytes, 1, stdin) != 1) return 90;
    }
  }
  %(name)s *made;
  if (%(name)s_create(&made)) return 91;
  for (int i = 0; i < 2; i++) if (%(name)s_run_tensors(made, tensors, sizes)) return 92;
  for (int i = 0; i < 16; i++) if (tensors[i]) fwrite(tensors[i], 1, sizes_of[i], stdout);
  for (uint32_t n = 0; %(name)s_describe(2, n); n++) {
    fwrite(%(name)s_state(made, n), 1, (size_t)%(name)s_describe(2, n)->nbytes, stdout);
  }
  %(name)s_destroy(made);
  for (int i = 0; i < 16; i++) free(tensors[i]);
  return 0;
}
"""


def build(folder: Path, compiler: str, name: str, *options: str) -> Path:
    (folder / "main.c").write_text(MAIN % {"name": name})
    command = [compiler, *STRICT, *options, "main.c", f"{name}.c", "-o", "main", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert not done.stderr, done.stderr[:3000]
    return folder / "main"


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0) or 1
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * float(largest))


@needs_compiler
@pytest.mark.parametrize("command", BUILDS, ids=" ".join)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_clean_and_right(name: str, command: Sequence[str], tmp_path: Path) -> None:
    """With all warnings as errors and both sanitizers, twice, so that states go on."""
    compiler, *options = command
    step = PROGRAMS[name]()
    exported = step.export(tmp_path / "program.c", target="sse2")
    assert [file.name for file in exported.files] == ["program.c", "program.h"]
    program = exported_program(step, packed=False)
    shared, instance = Interface(program, "program"), Instance(program)
    values = {variable: variable.max - 1 for variable in program.variables}
    blocks = [one.block for one in shared.parameters]
    for number, array in enumerate(instance.arguments.values()):
        array[...] = rand(*array.shape, seed=number) if array.dtype.kind == "f" else 1
    given = b"".join(
        instance.memory[block].tobytes()
        for block in blocks
        if program.blocks[block].kind is BlockKind.ARGUMENT
    )
    for _ in range(2):
        instance.run(values)
    main = build(tmp_path, compiler, "program", *SANITIZED, *options)
    given_sizes = [str(main), *map(str, values.values())]
    done = subprocess.run(given_sizes, input=given, capture_output=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr.decode()[:3000]}"
    place = 0
    kinds = {spec.cell.block: spec.dtype for spec in (*program.results, *program.arguments)}
    kinds |= {spec.cell.block: spec.dtype for spec in (*program.effects, *program.states)}
    for block in [*blocks, *shared.states]:
        nbytes = program.blocks[block].nbytes
        found = np.frombuffer(done.stdout[place : place + nbytes], kinds[block].np)
        place += nbytes
        wanted = instance.memory[block].view(kinds[block].np)
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(found, wanted)
        else:
            close(found.astype(np.float64), wanted.astype(np.float64))
    assert place == len(done.stdout)


@needs_compiler
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_runs(compiler: str, tmp_path: Path) -> None:
    network().export(tmp_path / "net.c", weights="bin", target="sse2")
    assert {file.name for file in tmp_path.iterdir()} == {"net.c", "net.h", "net.bin"}
    command = [compiler, *STRICT, *SANITIZED, "-DNET_EXAMPLE", "net.c", "-o", "net", "-lm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    ran = subprocess.run(["./net"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("result_0: 0.")


@needs_compiler
def test_errors_of_an_instance(tmp_path: Path) -> None:
    lengths().export(tmp_path / "total.c")
    options = ["-O1", "-shared", "-fPIC"]
    command = [COMPILERS[0], *STRICT, *options, "total.c", "-o", "total.so", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "total.so"))
    library.total_error_string.restype = ctypes.c_char_p
    instance = ctypes.c_void_p()
    assert library.total_create(ctypes.byref(instance)) == 0
    memory = [(ctypes.c_float * 80)() for _ in range(3)]
    tensors = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in memory))
    for n, error in ((1, 0), (10, 0), (11, 4), (0, 4), (-(2**40), 4)):
        assert library.total_run_tensors(instance, tensors, (ctypes.c_int64 * 1)(n)) == error
    tensors[1] = None
    assert library.total_run_tensors(instance, tensors, (ctypes.c_int64 * 1)(3)) == 3
    assert library.total_error_string(3) == b"a pointer is null"
    assert library.total_set_state(instance, 0, tensors) == 3
    library.total_destroy(instance)
    library.total_destroy(None)


def test_what_was_verified_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = aliases()
    if COMPILERS:
        assert "compiled by" in step.export(tmp_path / "mixed.c").verified
    monkeypatch.setattr(trials, "c_compiler", lambda: None)
    verified = step.export(tmp_path / "mixed.c").verified
    assert verified.endswith("(its kernels compiled by LLVM, as there is no C compiler)")


@needs_compiler
def test_a_wrong_source_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, right = network(), formats.c_program

    def wrong(*arguments: Any, **options: Any) -> CProgram:
        made = right(*arguments, **options)
        source = made.source.replace(
            "fusedf(a, b, c) fmaf(a, b, c)", "fusedf(a, b, c) fmaf(a, b, -(c))"
        )
        assert source != made.source
        return CProgram(source.replace("(a) * (b) + (c)", "(a) * (b) - (c)"), made.header, None)

    monkeypatch.setattr(formats, "c_program", wrong)
    with pytest.raises(ExportError, match="differs from the replay's"):
        step.export(tmp_path / "net.c", target="sse2")
    assert not (tmp_path / "net.c").exists()


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    step = aliases()
    with pytest.raises(ExportError, match="weights='here': they go to \"c\""):
        step.export(tmp_path / "mixed.c", weights="here")
    with pytest.raises(ValueError, match="no target is called 'z80'"):
        step.export(tmp_path / "mixed.c", target="z80")


def test_names_of_the_file_are_names_in_c(tmp_path: Path) -> None:
    step = TinyJit(lambda x: (x * 2).realize())
    for _ in range(3):
        step(Tensor(rand(4)))
    exported = step.export(tmp_path / "2 for-loops.c")
    assert f'#include "{exported.files[1].name}"' in exported.path.read_text()
