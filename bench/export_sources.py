"""Exported C and WebAssembly beside the replays that they are made of: the time of a run.

    python bench/export_sources.py [digits] [gpt]

C is compiled by each of gcc and clang that is there, for this processor; WebAssembly runs in
wasmtime. Both run by turns with the replay on one thread; the least processor time counts. gcc
takes minutes for the GPT.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit, nn
from ferrule.demo.digits import Network
from ferrule.export.c import FLAGS
from ferrule.export.captured import exported_program
from ferrule.export.wasm import wasm_program

ROUNDS, SECONDS = 4, 0.3
TARGETS = ("native", "avx2")


def digits(count: int) -> tuple[Any, Any]:
    """The network of the demonstration, and images."""
    return Network(), np.random.default_rng(0).standard_normal((count, 1, 8, 8)).astype(np.float32)


def gpt(count: int) -> tuple[Any, Any]:
    """The transformer of the example, and letters."""
    path = Path(__file__).parents[1] / "examples" / "small_gpt.py"
    spec = importlib.util.spec_from_file_location("small_gpt", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    letters = np.random.default_rng(0).integers(0, len(example.LETTERS), (count, example.CONTEXT))
    return example.GPT(), letters.astype(np.int32)


def best(run: Callable[[], Any]) -> float:
    """The least processor time of a run."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.thread_time()
        run()
        least = min(least, time.thread_time() - started)
    return least


def in_c(step: TinyJit[Any], x: Any, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of the program in C, by compiler and target."""
    memory = x, np.zeros(1 << 20, np.float32)
    for target in TARGETS:
        step.export(folder / "step.c", target=target)
        for compiler in filter(shutil.which, ("gcc", "clang")):
            library = folder / f"{compiler}-{target}.so"
            command = [compiler, *FLAGS, "-shared", "-fPIC", "step.c", "-o", str(library), "-lm"]
            subprocess.run(command, cwd=folder, check=True)
            loaded, instance = ctypes.CDLL(str(library)), ctypes.c_void_p()
            assert loaded.step_create(ctypes.byref(instance)) == 0
            run = loaded.step_run_tensors
            yield f"C, {compiler}, {target}", partial(call, run, instance, *pointers_to(memory))


def pointers_to(memory: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The addresses of arrays, with the arrays, which have to live as long."""
    return (ctypes.c_void_p * len(memory))(*[array.ctypes.data for array in memory]), memory


def call(run: Any, instance: Any, pointers: Any, memory: Sequence[Any]) -> None:
    """Calls a program in C."""
    run(instance, pointers, None)


def in_wasmtime(step: TinyJit[Any], x: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of the module, if wasmtime is installed."""
    if importlib.util.find_spec("wasmtime") is None:
        return
    import wasmtime

    made = wasm_program(exported_program(step, packed=False), "step")
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, made.module)
    exports = wasmtime.Instance(store, module, []).exports(store)
    address = made.addresses[made.program.arguments[0].cell.block]
    exports["memory"].write(store, x.tobytes(), address)
    yield "WebAssembly, wasmtime", partial(exports["run"], store)


def compare(name: str, model: Any, x: Any) -> None:
    """Prints the rows of one network."""
    for parameter in nn.state.get_parameters(model):
        parameter.requires_grad = False
    step = TinyJit(lambda x: model(x).softmax(-1).realize())
    replay = partial(step, Tensor(x))
    for _ in range(4):
        replay()
    with tempfile.TemporaryDirectory() as folder:
        for label, run in (*in_c(step, x, Path(folder)), *in_wasmtime(step, x)):
            pairs = [(best(replay), best(run)) for _ in range(ROUNDS)]
            before, after = (min(times) * 1e6 for times in zip(*pairs, strict=True))
            print(f"| {name} | {label} | {before:.0f} us | {after:.0f} us | {after / before:.2f} |")


def main() -> None:
    """Prints the table."""
    ferrule.set_num_threads(1)
    chosen = sys.argv[1:] or ["digits", "gpt"]
    print("| | | replay | exported | ratio |\n|---|---|---|---|---|")
    for name, make, counts in (("digits", digits, (1, 64)), ("gpt", gpt, (1, 16))):
        for count in counts if name in chosen else ():
            compare(f"{name}, {count}", *make(count))


if __name__ == "__main__":
    main()
