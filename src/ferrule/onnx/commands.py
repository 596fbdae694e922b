"""What `python -m ferrule onnx ...` does: shows, runs, checks and times a model in a file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.autograd import no_grad
from ferrule.base.helpers import GlobalCounters
from ferrule.ir.buffer import readable_bytes
from ferrule.ir.dtype import dtypes
from ferrule.jit import TinyJit
from ferrule.nn.state import get_state_dict
from ferrule.onnx.graph import versions_of
from ferrule.onnx.model import Model, Port, load
from ferrule.onnx.values import Array, OnnxError, as_host, is_host
from ferrule.tensor import Tensor

_TOLERANCE = 1e-3
"""The largest difference that a check lets pass, in parts of the largest element of a value."""

_LAST_CHANGE = 15
"""ONNX's version in which operators last changed in ways that its reference implementation, which
computes some as they are today, does not follow."""


def inputs_for(model: Model, given: Sequence[str], sizes: Sequence[str]) -> dict[str, Array]:
    """The inputs of a model: from files (`name=file.npy`), or random.

    `sizes` (`name=3`) are those of axes that may vary; other such axes have one element.
    """
    files = dict(_pair(text, "name=file.npy") for text in given)
    lengths = {name: int(size) for name, size in (_pair(text, "axis=3") for text in sizes)}
    names = {port.name for port in model.inputs}
    if files.keys() - names:
        raise OnnxError(f"there are no inputs {sorted(files.keys() - names)}; there are {names}")
    rng = np.random.default_rng(0)
    return {
        port.name: np.load(files[port.name]) if port.name in files else _random(port, lengths, rng)
        for port in model.inputs
    }


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals:
        raise OnnxError(f"{text!r} is not of the form {form}")
    return name, value


def _random(port: Port, lengths: Mapping[str, int], rng: np.random.Generator) -> Array:
    if port.shape is None:
        raise OnnxError(f"input {port.name!r} has no known shape; give it as {port.name}=file.npy")
    shape = [size if isinstance(size, int) else lengths.get(size or "", 1) for size in port.shape]
    dtype = dtypes.from_name(port.dtype.removeprefix("dtypes."))
    if dtypes.is_float(dtype):
        return rng.standard_normal(shape).astype(dtype.np)
    return rng.integers(0, 2, shape).astype(dtype.np)


def info(path: str, given: Sequence[str], sizes: Sequence[str]) -> int:
    """Show what a model takes and gives, what it is made of, and what a call costs.

    Also which nodes read what was computed, and so cannot be captured.
    """
    model = load(path)
    for what, ports in (("input", model.inputs), ("output", model.outputs)):
        for port in ports:
            print(f"{what:<12s}{port}")
    state = get_state_dict(model).values()
    count = sum(prod(tensor.shape) for tensor in state)
    size = sum(prod(tensor.shape) * tensor.dtype.itemsize for tensor in state)
    print(f"{'parameters':<12s}{count:,} in {len(state)} tensors, {readable_bytes(size)}")
    kinds = Counter(node.operator for node in model.nodes)
    print(f"{'operators':<12s}" + ", ".join(f"{n} {name}" for name, n in kinds.most_common()))
    if model.reading:
        print(f"{'reading':<12s}" + ", ".join(model.reading))
    inputs = inputs_for(model, given, sizes)
    with no_grad():
        GlobalCounters.reset()
        _realized(model(**inputs))
        print(f"{'a call':<12s}{GlobalCounters.global_ops / 1e9:.3g} G operations, "
              f"{readable_bytes(GlobalCounters.global_mem)} moved")  # fmt: skip
    return 0


def _realized(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.realize()
    return [_realized(part) for part in value] if isinstance(value, list | tuple) else value


def run(path: str, given: Sequence[str], sizes: Sequence[str], folder: str | None) -> int:
    """Run a model; show its outputs, or write them to files in a folder."""
    model = load(path)
    with no_grad():
        results = model(**inputs_for(model, given, sizes))
    for port, value in zip(model.outputs, _several(results), strict=True):
        array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        print(f"{port.name}: {array.dtype} {'x'.join(map(str, array.shape))}")
        if folder is None:
            print(array)
        else:
            Path(folder).mkdir(parents=True, exist_ok=True)
            np.save(Path(folder) / f"{port.name.replace('/', '_')}.npy", array)
    return 0


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def check(path: str, given: Sequence[str], sizes: Sequence[str]) -> int:
    """Compare all values of a model with ONNX's reference implementation, in their order.

    Shows the first node whose outputs differ; the status is 1 then.
    """
    import onnx
    from onnx import version_converter
    from onnx.reference import ReferenceEvaluator

    model = load(path)
    inputs = inputs_for(model, given, sizes)
    proto = onnx.load(path)
    if versions_of(proto)[""] < _LAST_CHANGE:
        proto = version_converter.convert_version(proto, _LAST_CHANGE)
    expected = ReferenceEvaluator(proto).run(None, inputs, intermediate=True)
    assert isinstance(expected, dict)
    with no_grad():
        values = model.values(**inputs)
        compared = 0
        for node in model.nodes:
            for name in node.outputs:
                value = values.get(name)
                if name not in expected or not (isinstance(value, Tensor) or is_host(value)):
                    continue
                compared += 1
                problem = difference(as_host(value), expected[name])
                if problem:
                    print(f"{node}: output {name!r} {problem}")
                    return 1
    print(f"{compared} values agree with the reference implementation")
    return 0


def difference(found: Array, expected: Any) -> str:
    """How an array differs from what is expected, in words; empty if it does not."""
    wanted = np.asarray(expected)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"is {found.dtype} {found.shape}, not {wanted.dtype} {wanted.shape}"
    if not found.size or found.dtype == np.bool_:
        return "" if np.array_equal(found, wanted) else "has other truth values"
    ours, theirs = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return "is NaN at other places"
    same = (ours == theirs) | np.isnan(ours)
    largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-30)
    error = np.abs(np.where(same, 0, ours - theirs)).max() / largest
    return "" if error <= _TOLERANCE else f"differs by {error:.2g} of its largest element"


def bench(path: str, given: Sequence[str], sizes: Sequence[str]) -> int:
    """Time calls of a model, captured, beside ONNX Runtime's where that is installed."""
    model = load(path)
    inputs = inputs_for(model, given, sizes)
    tensors = {name: Tensor(array) for name, array in inputs.items()}
    captured = TinyJit(lambda **inputs: _realized(model(**inputs)))
    with no_grad():
        start = time.perf_counter()
        ours = [value.numpy() for value in _several(captured(**tensors))]
        print(f"{'first call':<14s}{time.perf_counter() - start:8.3f} s")
        captured(**tensors)
        print(f"{'ferrule':<14s}{_milliseconds(lambda: captured(**tensors)):8.3f} ms")
    try:
        import onnxruntime
    except ImportError:
        print("ONNX Runtime is not installed: pip install onnxruntime")
        return 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    theirs = session.run(None, inputs)
    print(f"{'ONNX Runtime':<14s}{_milliseconds(lambda: session.run(None, inputs)):8.3f} ms")
    for port, found, expected in zip(model.outputs, ours, theirs, strict=True):
        problem = difference(found, expected)
        if problem:
            print(f"ferrule: output {port.name!r} {problem}", file=sys.stderr)
            return 1
    return 0


def _milliseconds(call: Callable[[], Any]) -> float:
    """The least time of a call, of at least five and at most two seconds."""
    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3
