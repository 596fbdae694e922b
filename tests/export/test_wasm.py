"""The format `wasm`: modules compute the replay's numbers, in wasmtime and in Node."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable
from ferrule.export import ExportError, exported_program, trials
from ferrule.export.interpret import Instance
from ferrule.export.targets import WASM
from ferrule.export.wasm import wasm_program
from ferrule.export.wasm_object import WasmObject
from ferrule.runtime.cpu.llvm import compile_wasm
from tests.export.programs import PROGRAMS, generation, lengths, network, rand

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
HAS_WASMTIME = importlib.util.find_spec("wasmtime") is not None

# Calls a module by its loader, once for each set of arguments, and prints what it gives.
CALLS = """
import { load } from "%(folder)s/program.mjs";
import { readFileSync } from "fs";
const call = await load(readFileSync("%(folder)s/program.wasm"));
const out = [];
const plain = (tensors) => Object.fromEntries(
  Object.entries(tensors).map(([name, x]) => [name, [...x].map(Number)]));
for (const given of %(calls)s) {
  try {
    out.push(plain(call(given)));
  } catch (error) {
    out.push(error.message);
  }
}
console.log(JSON.stringify([out, plain(call.states), call.about]));
"""


def called(folder: Path, calls: Sequence[Mapping[str, object]]) -> tuple[list[Any], Any, Any]:
    (folder / "calls.mjs").write_text(CALLS % {"folder": folder, "calls": json.dumps(calls)})
    done = subprocess.run(
        [str(NODE), str(folder / "calls.mjs")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results, states, about = json.loads(done.stdout)
    return results, states, about


@pytest.mark.parametrize("name", PROGRAMS)
def test_modules_are_verified(name: str, tmp_path: Path) -> None:
    """Results and states, in three runs with other arguments, to a part in a thousand."""
    exported = PROGRAMS[name]().export(tmp_path / "program.wasm")
    assert [file.name for file in exported.files] == ["program.wasm", "program.mjs"]
    how = "run by wasmtime" if HAS_WASMTIME else "its kernels compiled by LLVM, as wasmtime"
    assert how in exported.verified


def test_without_wasmtime_the_kernels_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "find_spec", lambda name: None)
    verified = network().export(tmp_path / "program.wasm").verified
    assert verified.endswith("(its kernels compiled by LLVM, as wasmtime is not installed)")


@needs_node
def test_the_loader_gives_the_replays_numbers(tmp_path: Path) -> None:
    classify = network()
    classify.export(tmp_path / "program.wasm")
    x = rand(3, 1, 8, 8, seed=9)
    (first, short, missing), states, about = called(
        tmp_path, [{"x": x.ravel().tolist()}, {"x": [1, 2]}, {}]
    )
    wanted = classify(Tensor(x))
    assert isinstance(first, dict)
    np.testing.assert_allclose(first["result.0"], wanted[0].numpy().ravel(), rtol=1e-5)
    assert first["result.1"] == wanted[1].numpy().tolist()
    assert short == "x has 2 elements; it takes 3,1,8,8"
    assert missing == "program: x is missing"
    assert states == {}
    assert (about["name"], about["interface"]) == ("program", 1)


@needs_node
def test_the_loader_takes_sizes_and_keeps_states(tmp_path: Path) -> None:
    step = generation()
    step.export(tmp_path / "program.wasm")
    instance = Instance(exported_program(step))
    (position,) = instance.program.variables
    wanted, calls = [], []
    for number in (4, 5):
        x = rand(1, 4, seed=number)
        instance.arguments["x"][:] = x
        instance.run({position: number})
        wanted.append(float(instance.results["result"]))
        calls.append({"x": x.ravel().tolist(), "position": number})
    results, states, _ = called(tmp_path, [*calls, {"x": [0, 0, 0, 0], "position": 8}])
    for found, expected in zip(results, wanted, strict=False):
        assert isinstance(found, dict)
        np.testing.assert_allclose(found["result"], [expected], rtol=1e-5)
    assert results[2] == "program: position is 8, not from 0 to 7"
    np.testing.assert_array_equal(states["cache"], instance.states["cache"].ravel())


@needs_node
def test_the_loader_knows_the_sizes_of_a_call(tmp_path: Path) -> None:
    total = lengths()
    total.export(tmp_path / "program.wasm")
    x = rand(10, 8, seed=3)
    given = x.ravel().tolist()
    calls = [{"x": given[: 8 * n], "n": n} for n in (10, 4)]
    bad = [{"x": given[:32], "n": 5}, {"x": given[:32]}, {"x": given[:32], "n": (1 << 32) + 4}]
    results, _, _ = called(tmp_path, [*calls, *bad])
    for n, found in zip((10, 4), results[:2], strict=True):
        wanted = total(Tensor(x)[: Variable("n", 1, 10).bind(n)])
        for number, one in enumerate(wanted):
            array = np.ascontiguousarray(one.numpy()).ravel()
            np.testing.assert_allclose(found[f"result.{number}"], array, rtol=1e-4, atol=1e-5)
    assert results[2:] == [
        "x has 32 elements; it takes 5,8",
        "program: n is undefined, not from 1 to 10",
        "program: n is 4294967300, not from 1 to 10",
    ]


@needs_node
def test_the_loader_takes_and_gives_elements_in_the_order_of_c(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)

    @TinyJit
    def turned(x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total.assign(total + 1)
        y = (x * 2).realize()
        return y.T, y[1:3, :2]

    for _ in range(3):
        wanted = turned(Tensor(x.T.copy()).realize().T, Tensor([1.0, 2.0]))
    turned.export(tmp_path / "program.wasm")
    results, _, about = called(tmp_path, [{"x": x.ravel().tolist(), "total": [1, 2]}])
    assert about["arguments"][0]["strides"] == [1, 4], "it is no plain array"
    for number, one in enumerate(wanted):
        assert results[0][f"result.{number}"] == one.numpy().ravel().tolist()


def test_the_module_has_no_imports_and_says_where_its_tensors_are() -> None:
    program = exported_program(lengths(), packed=False)
    module = wasm_program(program, "total").module
    assert module.startswith(b"\0asm\1\0\0\0")
    description = json.loads(module[module.index(b'{"interface"') :])
    assert description["variables"] == [{"name": "n", "min": 1, "max": 10}]
    assert description["arguments"][0]["shape"] == ["n", 8]
    spans = []
    for block, address in zip(
        program.blocks, wasm_program(program, "total").addresses, strict=True
    ):
        assert address % 64 == 0
        spans.append((address, address + block.nbytes))
    for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        assert end <= start


def test_an_object_that_needs_a_function_is_refused() -> None:
    source = "declare float @expf(float)\ndefine float @f(float %x) {\n"
    source += "  %y = call float @expf(float %x)\n  ret float %y\n}\n"
    with pytest.raises(ExportError, match="the kernels need expf"):
        WasmObject(compile_wasm([source], WASM.features))


def test_data_of_the_object_is_placed() -> None:
    """Addresses of an object's own data, in code, are those of its place in the module."""
    source = """@table = internal constant [4 x i32] [i32 3, i32 5, i32 7, i32 11], align 16
define i32 @f(i32 %i) {
  %p = getelementptr i32, ptr @table, i32 %i
  %x = load i32, ptr %p
  ret i32 %x
}
"""
    wasmtime = pytest.importorskip("wasmtime")
    made = WasmObject(compile_wasm([source], WASM.features))
    assert made.data_bytes == 16
    module = made.module({"f": "f"}, [], base=4096, stack_bytes=1024, memory_bytes=8192, customs={})
    store = wasmtime.Store()
    found = wasmtime.Instance(store, wasmtime.Module(store.engine, module), []).exports(store)
    assert [found["f"](store, i) for i in range(4)] == [3, 5, 7, 11]


def test_large_stacks_and_copies(tmp_path: Path) -> None:
    """Views and copies at the end of a call."""
    w = Tensor(rand(40, 40))

    @TinyJit
    def turn(x: Tensor) -> Tensor:
        y = (w @ x).softmax(0)
        w.assign(y.T.contiguous()).realize()
        return y.realize()

    for number in range(4):
        turn(Tensor(rand(40, 40, seed=number)))
    assert "3 runs" in turn.export(tmp_path / "program.wasm").verified
