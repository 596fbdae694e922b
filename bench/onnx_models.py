"""Models in ONNX's format beside ONNX Runtime, on one thread or more; results are compared.

    .venv/bin/python bench/onnx_models.py [--threads 1] [--batch 1] [model.onnx ...]

Without files: the nine networks in the onnx package, which have one number for each weight there,
and get random weights here. Calls are timed by turns; of each contender the least time counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from math import exp, log, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import ferrule
from ferrule import Tensor, TinyJit
from ferrule.onnx import Model, load
from ferrule.onnx.commands import difference, inputs_for

ROUNDS, CALLS = 5, 4


def networks() -> Iterator[tuple[str, bytes]]:
    """The networks of the onnx package with random weights."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(folder.glob("*.onnx")):
        yield path.stem.removeprefix("light_"), with_weights(onnx.load(path)).SerializeToString()


def with_weights(model: Any) -> Any:
    """A model whose constants by shape are random numbers, small enough for a hundred layers."""
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    left = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            left.append(node)
            continue
        shape = shapes[node.input[0]]
        deviation = max(prod(int(size) for size in shape[1:]), 1) ** -0.5
        values = (
            rng.standard_normal(shape) * deviation if len(shape) > 1 else rng.uniform(0.5, 1, shape)
        )
        model.graph.initializer.append(
            numpy_helper.from_array(values.astype(np.float32), node.output[0])
        )
    model.ir_version = 8  # initializers of older versions are inputs too
    del model.graph.node[:]
    model.graph.node.extend(left)
    return model


def with_rows(model: Model, batch: int) -> dict[str, Any]:
    """Random inputs, with `batch` for each size that may vary."""
    names = {size for port in model.inputs for size in port.shape or () if isinstance(size, str)}
    return inputs_for(model, [], [f"{name}={batch}" for name in names])


def least(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The least milliseconds of each, of several rounds by turns."""
    times = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for place, call in enumerate(calls):
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                times[place] = min(times[place], (time.perf_counter() - start) * 1e3)
    return times


def compare(name: str, data: bytes, threads: int, batch: int) -> float:
    """Print a line; gives ONNX Runtime's time over ferrule's."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    loads = [time.perf_counter() - start]
    start = time.perf_counter()
    model = load(data)
    inputs = with_rows(model, batch)
    captured = TinyJit(lambda **inputs: model(**inputs).realize())
    tensors = {key: Tensor(value) for key, value in inputs.items()}
    with ferrule.no_grad():
        found = captured(**tensors).numpy()
        loads.append(time.perf_counter() - start)
        problem = difference(found, session.run(None, inputs)[0])
        captured(**tensors)
        ours, theirs = least(
            [lambda: captured(**tensors).numpy(), lambda: session.run(None, inputs)]
        )
    print(
        f"{name:<16s}{ours:9.2f} ms{theirs:9.2f} ms   x{theirs / ours:5.2f}   first result "
        f"{loads[1]:5.2f} s, session {loads[0]:5.2f} s  {problem}",
        flush=True,
    )
    return theirs / ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    ferrule.set_num_threads(arguments.threads)
    models = [(path.stem, path.read_bytes()) for path in arguments.files] or list(networks())
    print(f"{'model':<16s}{'ferrule':>12s}{'ONNX Rt.':>12s}")
    ratios = [compare(*model, arguments.threads, arguments.batch) for model in models]
    print(f"geometric mean x{exp(sum(map(log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
