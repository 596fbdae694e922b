"""Exports to machine code: programs in C and processes without a compiler compute the same bits."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, Variable, nn
from ferrule.export import ExportError, exported_program
from ferrule.export.loading import FOOTER, LoadError
from ferrule.export.retargeting import retargeted
from ferrule.ir.target import named_cpu
from ferrule.runtime.cpu import elf
from ferrule.runtime.cpu.llvm import host_compiler
from tests.export.programs import PROGRAMS, Net, lengths, rand

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
needs_gcc = pytest.mark.skipif("gcc" not in COMPILERS, reason="gcc is not installed")


@pytest.fixture(scope="module")
def classify() -> TinyJit[Tensor]:
    Tensor.manual_seed(0)
    net = Net(28)
    for parameter in nn.state.get_parameters(net):
        parameter.requires_grad = False

    @TinyJit
    def classify(x: Tensor) -> Tensor:
        return net(x).softmax(-1).realize()

    for _ in range(4):
        classify(Tensor(rand(16, 1, 28, 28)))
    return classify


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(folder: Path, source: str, *more: str, compiler: str = "gcc") -> Path:
    """A program in C, compiled in a folder."""
    (folder / "main.c").write_text(source)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    command = [compiler, *strict, "main.c", *more, "-o", "main", "-Wl,-rpath,."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "main"


def ran(program: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(program), *arguments], cwd=program.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


# *** a shared library and its loader ***


def test_the_loader_gives_the_replays_bits(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    exported = classify.export(tmp_path / "digits.so")
    assert "the replay's bits" in repr(exported)
    assert [path.name for path in exported.files] == ["digits.so", "digits.h", "digits.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "digits.h",
        "digits.py",
        "digits.so",
    ]
    x = rand(16, 1, 28, 28, seed=5)
    program = module_at(tmp_path / "digits.py").Digits()
    assert program(x).tobytes() == classify(Tensor(x)).numpy().tobytes()
    assert len((tmp_path / "digits.py").read_text().splitlines()) < 80


def test_the_loader_says_what_does_not_fit(tmp_path: Path) -> None:
    lengths().export(tmp_path / "total.so")
    kind = module_at(tmp_path / "total.py").Total
    total, x = kind(), rand(4, 8)
    wrong = [
        (TypeError, r"total takes \['x'\] and sizes \{'n': \[1, 10\]\}", (), {"n": 4}),
        (TypeError, "total takes", (x,), {}),
        (ValueError, "n is 0, not from 1 to 10", (x,), {"n": 0}),
        (ValueError, r"x has the shape \(4, 8\), and not \(5, 8\)", (x,), {"n": 5}),
        (TypeError, "x has the dtype complex64", (x.astype(np.complex64),), {"n": 4}),
    ]
    for error, text, arguments, sizes in wrong:
        with pytest.raises(error, match=text):
            total(*arguments, **sizes)
    assert total(x.astype(np.float64), n=4)[0].shape == (4, 3)
    assert total(x.tolist(), n=4)[1].shape == (3,)
    with pytest.raises(OSError, match=r"absent\.so"):
        kind(tmp_path / "absent.so")


@pytest.mark.parametrize("name", PROGRAMS)
def test_files_of_all_formats_are_verified(name: str, tmp_path: Path) -> None:
    """Each is compared with the replay when it is written; a library has a loader of its own."""
    step = PROGRAMS[name]()
    for kind in ("so", "a", "ferrule"):
        exported = step.export(tmp_path / f"program.{kind}")
        assert exported.verified.endswith("runs: the replay's bits")
    threaded = step.export(tmp_path / "threaded.ferrule", threads=True, targets=["native", "sse2"])
    assert "native: " in threaded.verified
    program = module_at(tmp_path / "program.py").Program()
    other = ferrule.load(tmp_path / "threaded.ferrule")
    other.set_threads(2)
    given = [rand(*one.shape).astype(one.dtype) for one in other.arguments]
    sizes = {name: high for name, (_, high) in other.sizes.items()}
    twice = [_leaves(run(*given, **sizes)) for run in (program, other)]
    for found, wanted in zip(*twice, strict=True):
        assert found.tobytes() == wanted.tobytes()


def _leaves(results: Any) -> list[np.ndarray]:
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, list | tuple):
        return [leaf for part in results for leaf in _leaves(part)]
    return [np.asarray(results)]


def test_a_library_needs_nothing_but_libc(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    classify.export(tmp_path / "digits.so")
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    command = ["nm", "-D", str(tmp_path / "digits.so")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    needed = {line.split()[-1] for line in lines if " U " in line}
    assert needed <= {"posix_memalign", "free", "memcpy", "memset", "memmove"}
    defined = {line.split()[-1] for line in lines if " T " in line}
    assert all(name.startswith("digits_") for name in defined)
    assert {"digits_create", "digits_run_tensors", "digits_destroy"} <= defined


def test_kernels_for_several_targets_are_in_one_file(
    classify: TinyJit[Tensor], tmp_path: Path
) -> None:
    x = rand(16, 1, 28, 28, seed=6)
    wanted = classify(Tensor(x)).numpy()
    for target in ("sse2", "avx2"):
        try:
            exported = classify.export(tmp_path / "a.ferrule", targets=[target], name=target)
        except ExportError:
            pytest.skip("not an x86-64 processor")
        if "not run here" in exported.verified:
            continue
        program = ferrule.load(tmp_path / "a.ferrule")
        assert program.target == f"x86-64-{target}"
        np.testing.assert_allclose(program(x), wanted, rtol=1e-4, atol=1e-6)
    classify.export(tmp_path / "all.ferrule", targets=["native", "avx512", "avx2", "sse2"])
    program = ferrule.load(tmp_path / "all.ferrule")
    assert program(x).tobytes() == wanted.tobytes()
    with pytest.raises(ValueError, match="no target is called 'mmx'"):
        classify.export(tmp_path / "b.so", targets=["mmx"])


def test_weights_are_packed_for_each_target(tmp_path: Path) -> None:
    layers = [nn.Linear(512, 512, bias=False) for _ in range(3)]
    for layer in layers:
        layer.weight.requires_grad = False

    @TinyJit
    def deep(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x).relu()
        return x.realize()

    x = rand(128, 512)
    for _ in range(4):
        wanted = deep(Tensor(x)).numpy()
    host = host_compiler().target
    if host.arch != "x86-64":
        pytest.skip("not an x86-64 processor")
    program = retargeted(exported_program(deep, packed=False), named_cpu("avx2")).program
    packed = [block for block in program.blocks if block.name.startswith("packed")]
    assert len(packed) == 3
    used = {program.blocks[number].name for number in program.used_blocks}
    assert "layers.0.weight" not in used
    exported = deep.export(tmp_path / "deep.ferrule", targets=["avx2"])
    assert exported.nbytes < 4 << 20, "one copy of each weight"
    if "not run here" not in exported.verified:
        np.testing.assert_allclose(
            ferrule.load(exported.path)(x), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max()
        )


def test_threads_are_an_option(tmp_path: Path) -> None:
    w = Tensor(rand(512, 512))

    @TinyJit
    def product(x: Tensor) -> Tensor:
        return (x @ w).relu().realize()

    x = rand(512, 512, seed=1)
    for _ in range(3):
        wanted = product(Tensor(x)).numpy()
    product.export(tmp_path / "threads.ferrule", threads=True)
    product.export(tmp_path / "one.ferrule")
    program = ferrule.load(tmp_path / "threads.ferrule")
    for threads in (1, 3, 2, 1):
        program.set_threads(threads)
        assert program(x).tobytes() == wanted.tobytes()
    with pytest.raises(LoadError, match="size"):
        program.set_threads(0)
    with pytest.raises(LoadError, match="for one thread"):
        ferrule.load(tmp_path / "one.ferrule").set_threads(2)


def test_instances_in_two_threads_have_states_of_their_own(tmp_path: Path) -> None:
    total = Tensor.zeros(1000).contiguous().realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    for _ in range(3):
        add(Tensor(np.zeros(1000, np.float32)))
    add.export(tmp_path / "add.so")
    kind = module_at(tmp_path / "add.py").Add
    found: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        program = kind()
        for _ in range(200):
            found[number] = program(np.full(1000, number, np.float32))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 3):
        np.testing.assert_array_equal(found[number], np.full(1000, 400 * number, np.float32))


# *** programs in C ***

_CLASSIFY = """
#include "digits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  static float x[16 * 784], y[160];
  digits *one;
  if (digits_interface_version() != DIGITS_INTERFACE_VERSION) return 1;
  int32_t error = digits_create(&one);
  if (error) { fprintf(stderr, "%s\\n", digits_error_string(error)); return 2; }
  if (fread(x, sizeof x, 1, stdin) != 1) return 3;
  if (digits_run(one, x, y)) return 4;
  if (digits_run(one, NULL, y) != DIGITS_NULL_POINTER) return 5;
  if (digits_run(NULL, x, y) != DIGITS_NULL_POINTER) return 6;
  if (digits_create(NULL) != DIGITS_NULL_POINTER) return 7;
  if (digits_state(one, 0) || digits_set_state(one, 0, x) == DIGITS_OK) return 8;
  const digits_tensor *t = digits_describe(DIGITS_ARGUMENT, 0);
  if (strcmp(t->name, "x") || strcmp(t->dtype, "float32") || t->ndim != 4) return 9;
  if (strcmp(t->sizes, "16, 1, 28, 28") || t->shape[0] != 16 || t->strides[0] != 784) return 10;
  if (t->nbytes != sizeof x || t->offset || t->place) return 11;
  if (digits_describe(DIGITS_ARGUMENT, 1) || digits_describe(7, 0)) return 12;
  if (digits_describe(DIGITS_RESULT, 0)->place != 1) return 13;
  if (strcmp(digits_error_string(99), "an unknown error")) return 14;
  fwrite(y, sizeof y, 1, stdout);
  digits_destroy(one);
  digits_destroy(NULL);
  return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("format", ["so", "a"])
@pytest.mark.parametrize("checks", [[], ["-fsanitize=address,undefined", "-g"]])
def test_a_program_in_c_gives_the_replays_bits(
    classify: TinyJit[Tensor], tmp_path: Path, compiler: str, format: str, checks: list[str]
) -> None:
    if compiler not in COMPILERS:
        pytest.skip(f"{compiler} is not installed")
    classify.export(tmp_path / f"digits.{format}")
    program = compiled(tmp_path, _CLASSIFY, f"digits.{format}", *checks, compiler=compiler)
    x = rand(16, 1, 28, 28, seed=7)
    done = subprocess.run(
        [str(program)], cwd=tmp_path, input=x.tobytes(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == classify(Tensor(x)).numpy().tobytes()


@needs_gcc
def test_an_archive_shows_others_its_interface_alone(
    classify: TinyJit[Tensor], tmp_path: Path
) -> None:
    """In a library that somebody links it into; and its objects ask for no executable stack."""
    classify.export(tmp_path / "digits.a")
    command = ["gcc", "-shared", "-Wl,--whole-archive", "digits.a", "-Wl,--no-whole-archive"]
    subprocess.run([*command, "-o", "all.so"], cwd=tmp_path, check=True)
    data = (tmp_path / "all.so").read_bytes()
    at, count = elf.HEADER.size, int.from_bytes(data[56:58], "little")
    segments = [struct.unpack_from("<II", data, at + 56 * number) for number in range(count)]
    assert dict(segments)[0x6474E551] == 6
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    command = ["nm", "-D", "--defined-only", "all.so"]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    defined = {line.split()[-1] for line in lines.stdout.splitlines()}
    ends = "create destroy run_tensors reset state set_state describe target"
    ends += " interface_version error_string about"
    assert {name for name in defined if "digits" in name} == {
        f"digits_{end}" for end in ends.split()
    }


_TRAIN = """
#include "train.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float x[8 * 784];
static int32_t y[8];

int main(void) {
  train *one;
  float loss;
  if (train_create(&one)) return 1;
  if (fread(x, sizeof x, 1, stdin) != 1 || fread(y, sizeof y, 1, stdin) != 1) return 2;
  const train_tensor *w = train_describe(TRAIN_STATE, TRAIN_STATE_NET_L1_WEIGHT);
  if (strcmp(w->name, "net.l1.weight") || w->place != -1 - TRAIN_STATE_NET_L1_WEIGHT) return 3;
  /* The weight is in our own memory from now on. */
  float *mine = aligned_alloc(64, (size_t)(w->nbytes + 63) / 64 * 64);
  memcpy(mine, train_state(one, TRAIN_STATE_NET_L1_WEIGHT), (size_t)w->nbytes);
  if (train_set_state(one, TRAIN_STATE_NET_L1_WEIGHT, mine)) return 4;
  for (int n = 0; n < 5; n++) {
    if (train_run(one, x, y, &loss)) return 5;
    fwrite(&loss, sizeof loss, 1, stdout);
  }
  fwrite(mine, (size_t)w->nbytes, 1, stdout);
  train_reset(one);
  if (train_run(one, x, y, &loss)) return 6;
  fwrite(&loss, sizeof loss, 1, stdout);
  train_destroy(one);
  free(mine);
  return 0;
}
"""


@needs_gcc
def test_a_training_step_in_c_loses_the_same_losses(tmp_path: Path) -> None:
    Tensor.manual_seed(0)
    net = Net(28)
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).dropout(0.2).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
        return loss.realize()

    x, y = rand(8, 1, 28, 28), (np.arange(8) % 10).astype(np.int32)
    for _ in range(4):
        step(Tensor(x), Tensor(y))
    before = net.l1.weight.numpy()
    step.export(tmp_path / "train.so")
    assert net.l1.weight.numpy().tobytes() == before.tobytes(), "an export changes nothing"
    program = compiled(tmp_path, _TRAIN, "train.so", "-fsanitize=address,undefined")
    data = x.tobytes() + y.tobytes()
    done = subprocess.run(
        [str(program)], cwd=tmp_path, input=data, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    got = np.frombuffer(done.stdout, np.float32)
    wanted = [step(Tensor(x), Tensor(y)).item() for _ in range(5)]
    assert got[:5].tolist() == wanted
    assert len(set(wanted)) == 5
    assert got[5:-1].tobytes() == net.l1.weight.numpy().tobytes()
    assert got[-1] == wanted[0], "reset goes back to the export"


class Attention:
    """One layer of a transformer that keeps its keys and values."""

    def __init__(self, width: int, most: int) -> None:
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 50)
        self.embed = nn.Embedding(50, width)
        self.keys = Tensor.zeros(most, width).contiguous().realize()
        self.values = Tensor.zeros(most, width).contiguous().realize()

    def __call__(self, token: Tensor, at: Variable) -> Tensor:
        q, k, v = self.qkv(self.embed(token)).chunk(3, dim=-1)
        self.keys[at : at + 1] = k
        self.values[at : at + 1] = v
        weights = (q @ self.keys[: at + 1].T * 0.25).softmax(-1)
        return self.out(weights @ self.values[: at + 1]).argmax(-1).cast(ferrule.dtypes.int32)


_GENERATE = """
#include "generate.h"
#include <stdio.h>

int main(void) {
  generate *one;
  int32_t token = 7, next;
  if (generate_create(&one)) return 1;
  if (generate_run(one, &token, &next, 16) != GENERATE_SIZE) return 2;
  if (generate_run(one, &token, &next, -1) != GENERATE_SIZE) return 3;
  generate_reset(one);
  for (int64_t at = 0; at < 16; at++) {
    if (generate_run(one, &token, &next, at)) return 4;
    printf("%d ", (int)next);
    token = next;
  }
  generate_destroy(one);
  return 0;
}
"""


@needs_gcc
def test_a_step_of_generation_keeps_its_cache(tmp_path: Path) -> None:
    Tensor.manual_seed(3)
    model = Attention(16, 16)
    for parameter in nn.state.get_parameters(model):
        parameter.requires_grad = False
    at = Variable("at", 0, 15)

    @TinyJit
    def generate(token: Tensor, place: Variable) -> Tensor:
        return model(token, place).realize()

    def tokens() -> list[int]:
        found, token = [], np.array([7], np.int32)
        for number in range(16):
            token = generate(Tensor(token), at.bind(number)).numpy()
            found.append(int(token[0]))
        return found

    wanted = tokens()
    generate.export(tmp_path / "generate.a")
    program = compiled(tmp_path, _GENERATE, "generate.a")
    assert [int(token) for token in ran(program).split()] == tokens() == wanted
    assert len(set(wanted)) > 1


def test_sizes_are_arguments_with_bounds(tmp_path: Path) -> None:
    w = Tensor(rand(8, 3))
    n = Variable("n", 1, 10)

    @TinyJit
    def total(x: Tensor) -> dict[str, Tensor]:
        y = (x @ w).relu()
        return {"rows": y.realize(), "sum": y.sum(0).realize()}

    whole = rand(10, 8, seed=2)
    for number in (3, 4, 5, 6):
        total(Tensor(whole)[: n.bind(number)])
    total.export(tmp_path / "total.so")
    total.export(tmp_path / "total.ferrule")
    for program in (
        module_at(tmp_path / "total.py").Total(),
        ferrule.load(tmp_path / "total.ferrule"),
    ):
        for number in (1, 7, 10):
            got = program(whole[:number], n=number)
            wanted = total(Tensor(whole)[: n.bind(number)])
            assert got.keys() == wanted.keys()
            for name, array in got.items():
                expected = np.ascontiguousarray(wanted[name].numpy())
                assert np.ascontiguousarray(array).tobytes() == expected.tobytes()
        with pytest.raises(ValueError, match="n is 11, not from 1 to 10"):
            program(whole, n=11)


# *** files for ferrule.load ***


def test_a_program_runs_without_a_compiler(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    classify.export(tmp_path / "digits.ferrule")
    x = rand(16, 1, 28, 28, seed=8)
    np.save(tmp_path / "x.npy", x)
    code = """
import sys
import numpy as np
import ferrule
program = ferrule.load(sys.argv[1])
np.save(sys.argv[3], program(np.load(sys.argv[2])))
loaded = {name for name in sys.modules if name.split(".")[0] in ("ferrule", "llvmlite")}
assert loaded <= {"ferrule", "ferrule.imports", "ferrule.export", "ferrule.export.loading"}, loaded
"""
    paths = [str(tmp_path / name) for name in ("digits.ferrule", "x.npy", "y.npy")]
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "y.npy").tobytes() == classify(Tensor(x)).numpy().tobytes()


def test_states_can_be_read_changed_and_reset(tmp_path: Path) -> None:
    total = Tensor.zeros(4).contiguous().realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    for _ in range(3):
        add(Tensor(np.ones(4, np.float32)))
    add.export(tmp_path / "add.ferrule")
    program = ferrule.load(tmp_path / "add.ferrule")
    assert program.states["total"].tolist() == [3, 3, 3, 3]
    program.states["total"][:] = 10
    assert program(np.ones(4)).tolist() == [22, 22, 22, 22]
    other = ferrule.load(tmp_path / "add.ferrule")
    assert other.states["total"].tolist() == [3, 3, 3, 3]
    program.reset()
    assert program.states["total"].tolist() == [3, 3, 3, 3]
    kept = ferrule.load(tmp_path / "add.ferrule").states["total"]
    assert kept.tolist() == [3, 3, 3, 3], "an array keeps its program"


def test_a_new_file_of_the_same_name_is_loaded(tmp_path: Path) -> None:
    for factor in (2, 3):

        @TinyJit
        def scale(x: Tensor, factor: int = factor) -> Tensor:
            return (x * factor).realize()

        for _ in range(3):
            scale(Tensor([1.0, 2.0]))
        scale.export(tmp_path / "scale.ferrule")
        program = ferrule.load(tmp_path / "scale.ferrule")
        assert program([1.0, 2.0]).tolist() == [factor, 2 * factor]


def test_calls_that_do_not_fit_are_refused(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    classify.export(tmp_path / "digits.ferrule")
    program = ferrule.load(tmp_path / "digits.ferrule")
    with pytest.raises(TypeError, match=r"takes \(x\), and got 0"):
        program()
    with pytest.raises(ValueError, match=r"x has the shape \(3, 1, 28, 28\)"):
        program(rand(3, 1, 28, 28))
    with pytest.raises(TypeError, match="takes the sizes"):
        program(rand(16, 1, 28, 28), n=3)


def with_footer(data: bytes, version: int = 1, length: int | None = None) -> bytes:
    """A file with another description or version, and a checksum that is right."""
    from ferrule.export.loading import MAGIC, checksum

    size = FOOTER.unpack(data[-FOOTER.size :])[1] if length is None else length
    rest = FOOTER.pack(bytes(32), size, version, 0, MAGIC)
    digest = checksum([data[: -FOOTER.size], rest])
    return data[: -FOOTER.size] + FOOTER.pack(digest, size, version, 0, MAGIC)


def test_damaged_files_are_refused(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    path = tmp_path / "digits.ferrule"
    classify.export(path)
    data = path.read_bytes()
    end = len(data) - FOOTER.size
    about_bytes = FOOTER.unpack(data[end:])[1]

    def message(contents: bytes) -> str:
        damaged = tmp_path / "damaged.ferrule"
        damaged.write_bytes(contents)
        with pytest.raises(LoadError) as caught:
            ferrule.load(damaged)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "too short" in message(b"")
    assert "too short" in message(data[:10])
    assert "not a program" in message(data[:-1])
    assert "not a program" in message(data[: len(data) // 2])
    assert "not a program" in message(bytes(1000))
    generator = np.random.default_rng(0)
    for place in generator.integers(0, end, 40):
        changed = bytearray(data)
        changed[place] ^= 1 << int(generator.integers(8))
        assert "checksum differs" in message(bytes(changed))
    assert "version 9 of the format" in message(with_footer(data, version=9))
    assert "longer than the file" in message(with_footer(data, length=1 << 60))
    assert "not readable" in message(with_footer(data, length=about_bytes - 1))
    assert "not readable" in message(with_footer(data, length=0))
    about = data[end - about_bytes : end]
    other = about.replace(b'"machine": "', b'"machine": "other-')
    grown = data[: end - about_bytes] + other + data[end:]
    assert "it is for other-" in message(with_footer(grown, length=len(other)))
    other = about.replace(b'"interface": 1', b'"interface": 7')
    assert "version 7 of the interface" in message(
        with_footer(data[: end - about_bytes] + other + data[end:])
    )
    text = about + data[end:]
    assert "the system cannot load it" in message(with_footer(text))


# *** errors ***


def test_formats_are_told_apart_by_the_suffix(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no format is called 'exe'; there are so, a, ferrule"):
        classify.export(tmp_path / "digits.exe")
    classify.export(tmp_path / "libdigits.so.1", "so", name="digits")
    assert ctypes.CDLL(str(tmp_path / "libdigits.so.1")).digits_interface_version() == 1


def test_files_of_others_stay(classify: TinyJit[Tensor], tmp_path: Path) -> None:
    script = tmp_path / "digits.py"
    script.write_text("print('the program that exports')")
    with pytest.raises(ExportError, match=r"digits\.py is there"):
        classify.export(tmp_path / "digits.so")
    assert [file.name for file in tmp_path.iterdir()] == ["digits.py"]
    assert "exports" in script.read_text()
    script.unlink()
    for _ in range(2):  # an export takes the place of an earlier one
        classify.export(tmp_path / "digits.so")


def test_methods_are_exported_with_their_instance(tmp_path: Path) -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = Tensor([factor])

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return (x * self.factor).realize()

    two, three = Scale(2), Scale(3)
    for _ in range(3):
        two(Tensor([1.0]))
        three(Tensor([1.0]))
    Scale.__call__.__get__(three).export(tmp_path / "three.ferrule")
    assert ferrule.load(tmp_path / "three.ferrule")([5.0]).tolist() == [15.0]


def test_odd_dtypes_and_names(tmp_path: Path) -> None:
    @TinyJit
    def odd(**values: Tensor) -> dict[str, Tensor]:
        total = values["int"].cast(ferrule.dtypes.float32) + values["class"].sum()
        return {"for": total.realize(), "half": total.half().realize(), "b": (total > 0).realize()}

    for _ in range(3):
        wanted = odd(**{"int": Tensor([1, 2]), "class": Tensor([0.5, 0.25])})
    odd.export(tmp_path / "odd.so")
    got = module_at(tmp_path / "odd.py").Odd()([1, 2], [0.5, 0.25])
    assert {name: array.tolist() for name, array in got.items()} == {
        name: tensor.tolist() for name, tensor in wanted.items()
    }
    if "gcc" in COMPILERS:
        compiled(tmp_path, '#include "odd.h"\nint main(void) { return 0; }\n', "odd.so")
