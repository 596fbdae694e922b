"""How exported programs are called from Python, and what an export refuses before it writes."""

from __future__ import annotations

import gc
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, Variable, dtypes
from ferrule.export import ExportError, exported_program
from ferrule.export.interface import program_name
from ferrule.export.interpret import Instance
from ferrule.export.loading import FOOTER, LoadError
from ferrule.export.verify import sizes_to_try, verify
from tests.export.test_native import compiled, module_at

Make = Callable[[TinyJit[Any], Path], Any]


def loaded(step: TinyJit[Any], folder: Path) -> Any:
    return ferrule.load(step.export(folder / "p.ferrule").path)


def generated(step: TinyJit[Any], folder: Path) -> Any:
    return module_at(step.export(folder / "p.so").files[2]).P()


both = pytest.mark.parametrize("make", [loaded, generated])


def captured(function: Callable[..., Any], *arrays: Any) -> TinyJit[Any]:
    step: TinyJit[Any] = TinyJit(function)
    for _ in range(3):
        step(*[Tensor(array) for array in arrays])
    return step


@both
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (np.ones(1), ValueError),
        (np.ones((1, 4)), ValueError),
        (np.ones((2, 4)), ValueError),
        (np.ones(4) * 1j, TypeError),
        (np.array(["1"] * 4), TypeError),
    ],
)
def test_arrays_of_other_shapes_and_kinds_are_refused(
    make: Make, given: Any, error: type[Exception], tmp_path: Path
) -> None:
    program = make(captured(lambda x: (x * 2).realize(), np.ones(4, np.float32)), tmp_path)
    with pytest.raises(error, match="x has the"):
        program(given)
    assert program(np.arange(4)).tolist() == [0, 2, 4, 6]


@both
def test_floats_are_no_integers(make: Make, tmp_path: Path) -> None:
    step = captured(lambda i: (i + 1).realize(), np.arange(3, dtype=np.int32))
    program = make(step, tmp_path)
    with pytest.raises(TypeError, match="i has the dtype float64, and not int32"):
        program(np.array([1.7, 2.9, 3.2]))
    assert program(np.arange(3, dtype=np.int64)).tolist() == [1, 2, 3]
    if make is loaded:
        with pytest.raises(ValueError, match="cannot hold"):
            program(np.array([1 << 40, 0, 0]))


@both
def test_bits_of_bfloat16_are_not_taken_for_numbers(make: Make, tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0]).cast(ferrule.dtypes.bfloat16).realize()
    step = TinyJit(lambda x: (x + x).realize())
    for _ in range(3):
        wanted = step(x).numpy()
    program = make(step, tmp_path)
    with pytest.raises(TypeError, match="x has the dtype"):
        program(x.numpy())
    assert program(x.numpy().view(np.uint16)).tobytes() == wanted.tobytes()


@both
def test_too_few_and_too_many_arguments_are_refused(make: Make, tmp_path: Path) -> None:
    n = Variable("n", 1, 9)
    step = TinyJit(lambda x: (x * 2).realize())
    whole = Tensor(np.ones((9, 2), np.float32))
    for size in (3, 4, 5):
        step(whole[: n.bind(size)])
    program = make(step, tmp_path)
    x = np.ones((2, 2), np.float32)
    for arguments, sizes in (((), {"n": 2}), ((x, x), {"n": 2}), ((x,), {}), ((x,), {"m": 2})):
        with pytest.raises(TypeError, match="takes"):
            program(*arguments, **sizes)
    assert program(x, n=2).tolist() == [[2, 2], [2, 2]]


@both
def test_arguments_that_the_function_changes_are_changed(make: Make, tmp_path: Path) -> None:
    def add(total: Tensor, x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    program = make(captured(add, zeros, ones), tmp_path)
    total = np.zeros(3, np.float32)
    assert program(total, ones).tolist() == [2, 2, 2]
    assert program(total, ones).tolist() == [4, 4, 4]
    assert total.tolist() == [2, 2, 2]
    assert ones.tolist() == [1, 1, 1]


@pytest.mark.parametrize("format", ["so", "a", "ferrule", "c", "wasm"])
def test_changed_arguments_are_compared(format: str, tmp_path: Path) -> None:
    def add(total: Tensor) -> None:
        total.assign(total + 1)

    exported = captured(add, np.zeros(3, np.float32)).export(tmp_path / f"add.{format}")
    assert exported.verified.startswith("1 tensor in 3 runs: the replay's bits")


@both
def test_arrays_of_states_keep_their_program(make: Make, tmp_path: Path) -> None:
    total = Tensor.zeros(1000).contiguous().realize()

    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total.sum().realize()

    step = captured(add, np.ones(1000, np.float32))
    state = make(step, tmp_path).states["total"]
    gc.collect()
    others = [make(step, tmp_path) for _ in range(3)]
    for other in others:
        other.states["total"][:] = 7
    assert state.tolist() == [3] * 1000


@both
def test_keys_of_results_are_what_they_were(make: Make, tmp_path: Path) -> None:
    def keyed(x: Tensor) -> dict[Any, Any]:
        return {1: (x + 1).realize(), (2, "a"): [None, (x * 2).realize()], None: x, "b": ()}

    found = make(captured(keyed, np.ones(2, np.float32)), tmp_path)(np.ones(2, np.float32))
    assert list(found) == [1, (2, "a"), None, "b"]
    assert found[2, "a"][0] is None
    assert found[2, "a"][1].tolist() == [2, 2]


def test_keys_that_are_objects_are_refused(tmp_path: Path) -> None:
    key = frozenset([1])
    step = captured(lambda x: {key: (x + 1).realize()}, np.ones(2, np.float32))
    for format in ("so", "ferrule"):
        with pytest.raises(ExportError, match="no text or number"):
            step.export(tmp_path / f"p.{format}")
    assert not list(tmp_path.iterdir())


# *** what is refused ***


@pytest.fixture(scope="module")
def double() -> TinyJit[Any]:
    return captured(lambda x: (x * 2).realize(), np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("file", "format"), [("p.py", "so"), ("p.h", "a"), ("p.h", "c"), ("p.mjs", "wasm")]
)
def test_one_name_for_two_files_is_refused(
    double: TinyJit[Any], file: str, format: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="the name of the header or the loader, too"):
        double.export(tmp_path / file, format)
    assert not list(tmp_path.iterdir())


def test_files_of_others_stay(double: TinyJit[Any], tmp_path: Path) -> None:
    for name in ("main.c", "main.h"):
        (tmp_path / name).write_text("/* by hand */")
    for format in ("c", "so"):
        with pytest.raises(ExportError, match="no part of an exported program"):
            double.export(tmp_path / f"main.{format}")
    (tmp_path / "folder.ferrule").mkdir()
    with pytest.raises(ExportError, match="no part of an exported program"):
        double.export(tmp_path / "folder.ferrule")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"main.c", "main.h", "folder.ferrule"}
    assert (tmp_path / "main.c").read_text() == "/* by hand */"


def test_long_names_are_replaced_too(double: TinyJit[Any], tmp_path: Path) -> None:
    for _ in range(2):
        double.export(tmp_path / f"{'long' * 55}.so")


@pytest.mark.parametrize(
    ("format", "option", "known"),
    [("so", "foo", "targets, threads"), ("c", "threads", "weights, target"), ("wasm", "x", "none")],
)
def test_options_of_other_formats_are_refused(
    double: TinyJit[Any], format: str, option: str, known: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"no option '{option}'; it has {known}"):
        double.export(tmp_path / f"p.{format}", **{option: True})
    assert not list(tmp_path.iterdir())


def test_one_target_may_be_a_text(double: TinyJit[Any], tmp_path: Path) -> None:
    exported = double.export(tmp_path / "p.ferrule", targets="native")
    assert exported.verified == "1 tensor in 3 runs: the replay's bits"


def test_exports_within_captures_are_refused(double: TinyJit[Any], tmp_path: Path) -> None:
    def outer(x: Tensor) -> Tensor:
        double.export(tmp_path / "p.ferrule")
        return (x + 1).realize()

    with pytest.raises(ExportError, match="a captured function calls export"):
        captured(outer, np.ones(4, np.float32))


@pytest.mark.parametrize("format", ["so", "ferrule", "c", "wasm"])
def test_tensors_without_elements(format: str, tmp_path: Path) -> None:
    step = captured(lambda x: (x * 2).realize(), np.ones((0, 3), np.float32))
    exported = step.export(tmp_path / f"p.{format}")
    if format == "ferrule":
        assert ferrule.load(exported.path)(np.ones((0, 3), np.float32)).shape == (0, 3)


_HEADERS = ["math.h", "stdio.h", "stdlib.h", "string.h", "strings.h", "sys/stat.h", "unistd.h"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("name", ["log", "rand", "exp", "y0", "free", "memcpy", "stat", "main"])
def test_names_of_the_library_of_c_are_changed(
    double: TinyJit[Any], name: str, tmp_path: Path
) -> None:
    assert program_name(name) == f"{name}_"
    exported = double.export(tmp_path / f"{name}.so")
    header = exported.files[1].name
    source = "".join([f"#include <{one}>\n" for one in _HEADERS])
    compiled(tmp_path, f'{source}#include "{header}"\nint main(void) {{ return 0; }}\n')
    double.export(tmp_path / "source.c", name=name)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("name", ["unix", "NULL", "double", "ä", "instance"])
def test_names_of_arguments_are_names_in_c(name: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(f"def twice({name}):\n    return ({name} * 2).realize()\n", scope)
    step = captured(scope["twice"], np.ones(4, np.float32))
    header = step.export(tmp_path / "named.so").files[1]
    text = f'#include <stdlib.h>\n#include "{header.name}"\nint main(void) {{ return 0; }}\n'
    (tmp_path / "main.c").write_text(text)
    command = ["gcc", "-Wall", "-Werror", "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)


# *** sizes and memory ***


@both
def test_sizes_that_do_not_go_together_are_refused(make: Make, tmp_path: Path) -> None:
    at = Variable("at", 0, 15)
    step = TinyJit(lambda x, at: x[at : at + 2].sum(0).realize())
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    for number in (0, 2, 5):
        step(Tensor(x), at.bind(number))
    program = make(step, tmp_path)
    assert program(x, at=6).tolist() == (x[6] + x[7]).tolist()
    for number in (7, 15):
        with pytest.raises((ValueError, RuntimeError), match="outside of its bounds"):
            program(x, at=number)


def rounded(
    step: Callable[[Tensor], Tensor], values: tuple[int, ...], tmp_path: Path
) -> list[tuple[int, ...]]:
    """The shapes of a program's results for some sizes."""
    n = Variable("n", 1, 64)
    captured_step, whole = TinyJit(step), Tensor(np.ones((64, 4), np.float32))
    for size in (16, 32, 48):
        captured_step(whole[: n.bind(size)])
    program = loaded(captured_step, tmp_path)
    return [program(np.ones((size, 4), np.float32), n=size).shape for size in values]


def test_sizes_are_rounded_down(tmp_path: Path) -> None:
    shapes = rounded(lambda x: x[: x.shape[0] // 3].relu().realize(), (9, 10, 11), tmp_path)
    assert shapes == [(3, 4), (3, 4), (3, 4)]


@both
def test_states_begin_at_lines_of_the_cache(make: Make, tmp_path: Path) -> None:
    parts = [Tensor.zeros(size).contiguous().realize() for size in (3, 5, 7)]

    def add(x: Tensor) -> None:
        for part in parts:
            part.assign(part + x)

    step = captured(add, np.ones(1, np.float32))
    programs = [make(step, tmp_path) for _ in range(4)]
    addresses = [part.ctypes.data for one in programs for part in one.states.values()]
    assert len(set(addresses)) == 12
    assert not any(address % 64 for address in addresses)


@both
def test_results_in_states_are_copies(make: Make, tmp_path: Path) -> None:
    total = Tensor.zeros(3).contiguous().realize()

    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total

    program = make(captured(add, np.ones(3, np.float32)), tmp_path)
    first, second = (program(np.ones(3, np.float32)) for _ in range(2))
    assert first.tolist() == [4, 4, 4]
    assert second.tolist() == [5, 5, 5]


@both
def test_reset_clears_what_each_call_writes_anew(make: Make, tmp_path: Path) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)

    def gradient(x: Tensor) -> Tensor:
        w.grad = None
        return (w * x).sum().backward().realize()

    program = make(captured(gradient, np.ones(2, np.float32)), tmp_path)
    assert program.states["w.grad"].tolist() == [0, 0]
    program(np.array([3, 4], np.float32))
    assert program.states["w.grad"].tolist() == [3, 4]
    if make is loaded:
        program.reset()
        assert program.states["w.grad"].tolist() == [0, 0]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="not on Linux")
def test_threads_wait_until_there_are_others(tmp_path: Path) -> None:
    step = captured(lambda x: (x @ x).realize(), np.ones((256, 256), np.float32))
    path = step.export(tmp_path / "p.ferrule", threads=True).path
    program, x = ferrule.load(path), np.ones((256, 256), np.float32)

    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = count()
    for threads in (3, 2, 4, 1):
        program.set_threads(threads)
        assert program(x)[0, 0] == 256
        time.sleep(0.05)
        assert count() == before + threads - 1


@both
def test_results_are_in_the_states_that_they_are_of(make: Make, tmp_path: Path) -> None:
    """With several states, each result finds its own."""
    parts = [Tensor.zeros(size).contiguous().realize() for size in (3, 5, 7)]

    def add(x: Tensor) -> list[Tensor]:
        for number, part in enumerate(parts):
            part.assign(part + x * (number + 1))
        return [part for part in parts]

    program = make(captured(add, np.ones(1, np.float32)), tmp_path)
    found = program(np.ones(1, np.float32))
    assert [one.tolist() for one in found] == [[4] * 3, [8] * 5, [12] * 7]


def test_a_checksum_is_of_every_byte_unless_it_is_not_asked_for(
    double: TinyJit[Any], tmp_path: Path
) -> None:
    path = double.export(tmp_path / "p.ferrule").path
    data = bytearray(path.read_bytes())
    length = FOOTER.unpack(data[-FOOTER.size :])[1]
    data[-FOOTER.size - length - 1] ^= 1  # in the headers of sections, which no loader reads
    path.write_bytes(data)
    with pytest.raises(ValueError, match="checksum differs"):
        ferrule.load(path)
    assert ferrule.load(path, check=False)(np.ones(4, np.float32)).tolist() == [2, 2, 2, 2]


def test_the_number_of_threads_has_bounds(tmp_path: Path) -> None:
    step = captured(lambda x: (x * 2).realize(), np.ones(4, np.float32))
    program = ferrule.load(step.export(tmp_path / "p.ferrule", threads=True).path)
    for threads in (0, -1, 257, 1 << 20):
        with pytest.raises(LoadError, match="a size is outside of its bounds"):
            program.set_threads(threads)
    program.set_threads(256)
    program.set_threads(1)
    assert program(np.ones(4, np.float32)).tolist() == [2, 2, 2, 2]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_states_of_one_name_in_c_are_told_apart(tmp_path: Path) -> None:
    states = {"a b": Tensor.zeros(3).contiguous().realize()}
    states["a_b"] = Tensor.zeros(4).contiguous().realize()

    def add(x: Tensor) -> None:
        for name in states:
            states[name].assign(states[name] + x)

    header = captured(add, np.ones(1, np.float32)).export(tmp_path / "named.so").files[1]
    assert header.read_text().count("NAMED_STATE_STATES_A_B") == 2
    text = f'#include "{header.name}"\nint main(void) {{ return 0; }}\n'
    compiled(tmp_path, text)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_arguments_that_are_not_written_to_are_const(tmp_path: Path) -> None:
    def add(total: Tensor, x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    ones = np.ones(3, np.float32)
    header = captured(add, ones, ones).export(tmp_path / "named.so").files[1]
    assert "float *total, const float *x, float *result" in header.read_text()


# *** what verification finds ***


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_results_that_differ_are_found(dtype: str) -> None:
    def both_results(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1).realize(), (x.cast(getattr(dtypes, dtype)) * 3 + 7).realize()

    step = captured(both_results, np.ones(4, np.float32))
    program = exported_program(step)

    def run(arguments: Mapping[str, Any], sizes: Mapping[Any, int]) -> tuple[Any, Any]:
        instance = Instance(program)
        instance.arguments["x"][...] = arguments["x"]
        instance.run(sizes)
        results = {name: array.copy() for name, array in instance.results.items()}
        results["result.1"][wrong] = 0
        return results, {}

    wrong = slice(0)
    assert verify(step, program, run, 1e-3).error == 0
    wrong = slice(1, 2)
    with pytest.raises(ExportError, match=r"the result result\.1 of the exported program differs"):
        verify(step, program, run, 1e-3)


def test_the_least_and_the_largest_sizes_are_tried() -> None:
    n = Variable("n", 1, 9)
    step = TinyJit(lambda x: (x * 2).realize())
    whole = Tensor(np.ones((9, 2), np.float32))
    for size in (3, 4, 5):
        step(whole[: n.bind(size)])
    found = sizes_to_try(exported_program(step), {n: 5})
    assert [list(values.values()) for values in found] == [[5], [9], [1]]
