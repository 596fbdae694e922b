"""`export`: a function of tensors as a model in ONNX's format, checked at once."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.base.config import Context
from ferrule.base.containers import leaves
from ferrule.base.records import dataclass
from ferrule.device.capture import is_capturing
from ferrule.engine.random import streams
from ferrule.ir.dtype import DType, compute_dtype, dtypes
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.onnx.model import Port, load, port_of
from ferrule.onnx.values import Array, OnnxError, dtype_of, number_of
from ferrule.onnx.writer import elementwise, functions, loops, movements, reductions
from ferrule.onnx.writer.builder import Builder, Scope, Value, names_read, reachable
from ferrule.onnx.writer.plan import Planner, check
from ferrule.onnx.writer.trace import (
    Bound,
    Dynamic,
    Reached,
    Trace,
    check_dynamic,
    replaced_tensors,
    restored,
    traced,
)
from ferrule.tensor import Tensor

_OLDEST: Final = 20
"""The oldest version of the operators in which models are written: that of ONNX 1.15 (2023-10). It
is used unless something needs a newer one, or one is given."""
_LARGE: Final = 2**31 - 2**24
"""Bytes of weights beyond which these go to a file of their own: a protocol buffer has at most
2**31 - 1, with the nodes."""
_SMALL: Final = 1024
"""Bytes up to which a constant stays in the model, since it may be a shape."""
_RULES: Final = (elementwise, functions, loops, movements, reductions)


@dataclass(frozen=True)
class Exported:
    """A model that was written, and how it was checked."""

    path: Path | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[tuple[str, str], ...]
    """The inputs that the function writes to, and the outputs with what it has written."""
    opset: int
    operators: dict[str, int]
    """How many nodes there are of each operator."""
    difference: float
    """The largest difference from the function's own results, over the largest of each."""
    checked_by: str
    """What the model ran on for that."""
    conditions: tuple[str, ...]
    """What the sizes that vary must fulfil beside their bounds."""
    proto: Any
    """The `onnx.ModelProto`; weights beside it are not in it."""

    def __repr__(self) -> str:
        where = "a model" if self.path is None else str(self.path)
        ports = [", ".join(map(str, part)) for part in (self.inputs, self.outputs)]
        lines = [
            f"{where}: {ports[0]} -> {ports[1]}",
            f"opset {self.opset}, {sum(self.operators.values())} nodes; checked by onnx.checker, "
            f"and on {self.checked_by}: differs from the function by {self.difference:.1e}",
        ]
        if self.states:
            pairs = ", ".join([f"{before} -> {after}" for before, after in self.states])
            lines.append(f"state: {pairs}")
        if self.conditions:
            lines.append(f"only where {', '.join(self.conditions)}")
        return "\n".join(lines)


class _Expected(NamedTuple):
    """What a plain call gives: results, and the contents of memory that it writes to."""

    results: list[Array]
    states: dict[LazyBuffer | str, Array]


def export(
    function: Callable[..., Any],
    path: str | os.PathLike[str] | None,
    *args: Any,
    dynamic: Mapping[str, Mapping[int, str | Variable]] | None = None,
    opset: int | None = None,
    external_data: bool = False,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Exported:
    """Write `function(*args, **kwargs)` to a file as a model in ONNX's format.

    The function is a model, a function of tensors, or a `TinyJit`; the arguments are examples.
    Tensors in them (NumPy arrays too) are the inputs, named as the parameters; all else is as it is
    now in the model. Results are outputs: "output", or named by their places in a tuple, a dict or
    a dataclass. Other tensors that the function uses are weights, named as in the model's
    `state_dict()`. Memory that it writes to (running statistics, a cache of keys and values,
    parameters in a training step, the stream of random numbers) is an input and an output more; the
    memory itself is left as it was.

    Axes vary with a bound `Variable` as their size, or one as an argument, or if they are named:
    `dynamic={"x": {0: "batch"}}`. Weights go to a file beside the model, `path` and ".data", with
    `external_data`, or if they are more than 2 GB; else an older file of that name is removed.

    The model is checked by `onnx.checker`, and run at once, by ONNX Runtime if that is installed,
    else by `ferrule.onnx.load`; the returned object says how far its results are from the
    function's. If axes are named, it is also run with other sizes of these, on the same elements.
    Without a path nothing is written.

    Raises `OnnxError` that lists the operations that ONNX cannot express; if the function reads
    values of its arguments; if a captured function calls this; if it gives and changes no tensors;
    if results differ by more than `tolerance` of the largest number; if `dynamic` does not name
    axes of arguments, or ONNX has no such `opset`.

    >>> import ferrule
    >>> from ferrule import Tensor, nn
    >>> exported = ferrule.onnx.export(nn.Linear(3, 2), None, Tensor.ones(4, 3))
    >>> [str(port) for port in exported.inputs], exported.difference < 1e-6
    (['x: float32[4, 3]'], True)
    """
    if is_capturing():
        raise OnnxError("a captured function calls export, and replays would not: call it after")
    _check_opset(opset)
    sizes = {} if dynamic is None else dynamic
    check_dynamic(sizes)
    bound = Bound.of(function, args, kwargs)
    reached = Reached.by(bound)
    expected = _expected(bound, reached)
    trace = traced(bound, reached, sizes)
    proto, states = _written(trace, opset)
    target = None if path is None else Path(path)
    parent = None if target is None else target.parent
    with tempfile.TemporaryDirectory(dir=parent) as folder:  # it takes its place if all is well
        file = Path(folder) / ("model.onnx" if target is None else target.name)
        _save(proto, file, external_data)
        _check(file)
        by, difference = _compared(file, trace, bound, expected, tolerance)
        if sizes and not trace.conditions:
            other = bound.of_other_sizes(sizes)
            _, second = _compared(file, trace, other, _expected(other, reached), tolerance)
            difference = max(difference, second)
        if target is not None:
            _replace(target, file)
    return Exported(
        target,
        tuple([port_of(value) for value in proto.graph.input]),
        tuple([port_of(value) for value in proto.graph.output]),
        tuple(states),
        proto.opset_import[0].version,
        dict(Counter([node.op_type for node in proto.graph.node])),
        difference,
        by,
        tuple(trace.conditions),
        proto,
    )


def _check_opset(opset: int | None) -> None:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if opset is not None and not _OLDEST <= opset <= newest:
        raise OnnxError(f"opset {opset}: models are written in {_OLDEST} to {newest}")


# *** the function's own results ***


def _expected(bound: Bound, reached: Reached) -> _Expected:
    given = {tensor._cell: name for name, tensor in bound.tensors().items()}
    with restored(reached) as written, Context(JIT=0):  # what replays write is not seen
        before = {stream: stream.node for stream in streams()}
        results = [leaf for leaf in leaves(bound.call()) if isinstance(leaf, Tensor)]
        arrays = [np.array(result.numpy()) for result in results]
        states: dict[LazyBuffer | str, Array] = {}
        for cell, old in written.items():
            key = given.get(cell, old.node)
            states[key] = np.array(Tensor._wrap(cell.take()).numpy())
        for node, tensor in replaced_tensors(reached).items():
            states[node] = np.array(tensor.numpy())
        for stream in streams():
            if stream in before and stream.node is not before[stream]:
                states[before[stream]] = np.array(Tensor(stream.take()).numpy())
    return _Expected(arrays, states)


def _in_order(trace: Trace, expected: _Expected) -> list[Array]:
    """What the outputs of the model have to be."""
    arrays = list(expected.results)
    for before, _ in trace.states:
        by_name = expected.states.get(before.name)
        arrays.append(expected.states[before.node] if by_name is None else by_name)
    return arrays


# *** writing ***


def _written(trace: Trace, opset: int | None) -> tuple[Any, list[tuple[str, str]]]:
    """The model, and its states: names of inputs and outputs."""
    from onnx import helper

    scope = Scope()
    builder = Builder(scope)
    known = {node: Value(scope.fresh(name), node.dtype, node.shape) for name, node in trace.inputs}
    inputs = [*known.values(), *_set_variables(trace, builder, known)]
    weights: dict[str, LazyBuffer] = {}
    for node, name in trace.weights.items():
        own = scope.fresh(name)
        known[node] = Value(own, node.dtype, node.shape)
        weights[own] = node
    ports = trace.results
    if not ports:
        raise OnnxError("the function gives no tensors and changes none: a model needs an output")
    planner = Planner(trace.calls, known)
    planner.plan([port.node for port in ports])
    newest = max(planner.needs_opset, default=_OLDEST)
    if opset is not None and opset < newest:
        planner.problems.append(f"{planner.needs_opset[newest]}, which needs opset {newest}")
    check(planner.problems)
    values = planner.write(builder, [port.node for port in ports])
    outputs = [
        builder.copied(value, port.name)._replace(dtype=port.node.dtype, shape=port.node.shape)
        for port, value in zip(ports, values, strict=True)
    ]
    afters = outputs[len(trace.outputs) :]
    pairs = zip(trace.states, afters, strict=True)
    states = [(known[before.node].name, after.name) for (before, _), after in pairs]
    nodes = _without_copies(reachable(builder.nodes, [value.name for value in outputs]))
    used = {name for node in nodes for name in names_read(node)}
    arrays = {name: array for name, array in scope.initializers.items() if name in used}
    arrays |= {name: _contents(node) for name, node in weights.items() if name in used}
    tensors = [_tensor(name, array) for name, array in arrays.items()]
    given, made = [[value.info() for value in part] for part in (inputs, outputs)]
    graph = helper.make_graph(nodes, "ferrule", given, made, tensors)
    version = helper.make_opsetid("", newest if opset is None else opset)
    proto = helper.make_model(graph, opset_imports=[version], producer_name="ferrule")
    proto.ir_version = helper.find_min_ir_version_for([version])
    return proto, states


def _set_variables(
    trace: Trace, builder: Builder, known: Mapping[LazyBuffer, Value]
) -> list[Value]:
    """Enter the values of variables; returns the inputs that some of them are."""
    inputs: list[Value] = []
    for variable, (name, axis) in trace.variables.items():
        if axis is None:
            scalar = Value(builder.scope.fresh(name), dtypes.int64, ())
            inputs.append(scalar)
            value = builder.reshape(scalar, (1,))
        else:
            node = next(port.node for port in trace.inputs if port.name == name)
            options = {"start": axis, "end": axis + 1}
            value = builder.add("Shape", [known[node]], dtypes.int64, (1,), **options)
        builder.scope.variables[variable] = value
    return inputs


def _without_copies(nodes: Sequence[Any]) -> list[Any]:
    """The nodes, where those give the outputs themselves that only a copy reads."""
    readers = Counter([name for node in nodes for name in names_read(node)])
    makers = {name: node for node in nodes for name in node.output}
    kept = []
    for node in nodes:
        maker = makers.get(node.input[0]) if node.op_type == "Identity" else None
        if maker is None or readers[node.input[0]] > 1:
            kept.append(node)
            continue
        place = list(maker.output).index(node.input[0])
        maker.output[place] = node.output[0]
        makers[node.output[0]] = maker
    return kept


def _contents(node: LazyBuffer) -> Array:
    return Tensor._wrap(TracedValue(node)).numpy()


def _tensor(name: str, array: Array) -> Any:
    """An array as an `onnx.TensorProto`."""
    from onnx import TensorProto

    data = np.ascontiguousarray(array)
    tensor = TensorProto(name=name, data_type=number_of(dtypes.from_np(array.dtype)))
    tensor.dims.extend(array.shape)
    tensor.raw_data = data.tobytes()
    return tensor


def _data_of(path: Path) -> Path:
    """The file with the weights of a model, if they are not in it."""
    return path.with_name(path.name + ".data")


def _save(proto: Any, path: Path, external: bool) -> None:
    """Write a model; weights that go to a file of their own are no longer in `proto` then."""
    import onnx

    weights = sum([len(tensor.raw_data) for tensor in proto.graph.initializer])
    if external or weights > _LARGE:
        onnx.save_model(
            proto,
            str(path),
            save_as_external_data=True,
            location=_data_of(path).name,
            size_threshold=_SMALL,
        )
    else:
        onnx.save_model(proto, str(path))


def _replace(target: Path, file: Path) -> None:
    """Move a written model to its place; weights of an older model that are beside it go away."""
    data = _data_of(file)
    if data.exists():
        data.replace(_data_of(target))
        file.replace(target)
    else:
        file.replace(target)
        _data_of(target).unlink(missing_ok=True)


# *** checking ***


def _compared(
    path: Path, trace: Trace, bound: Bound, expected: _Expected, tolerance: float | None
) -> tuple[str, float]:
    """The name of what ran the model, and the difference of its outputs from the expected ones."""
    by, found = _run(path, _feeds(trace, bound))
    return by, _difference(trace, found, _in_order(trace, expected), tolerance)


def _feeds(trace: Trace, bound: Bound) -> dict[str, Array]:
    given = bound.tensors()
    feeds: dict[str, Array] = {}
    for name, node in trace.inputs:
        feeds[name] = given[name].numpy() if name in given else _contents(node)
    for name, variable in bound.variables().items():
        feeds[name] = np.array(variable.unbound()[1], np.int64)
    return feeds


def _check(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxError(f"the written model is not valid: {str(error).strip()}") from error


def _run(path: Path, feeds: Mapping[str, Array]) -> tuple[str, list[Array]]:
    """What ran the model in a file, and its outputs."""
    why = ""
    try:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # fatal errors alone: others are raised
        by = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(_shown(path)), options, providers=by)
        ports = zip(session.get_inputs(), feeds.values(), strict=True)
        plain = {port.name: _plain(array) for port, array in ports}
        return f"ONNX Runtime {onnxruntime.__version__}", session.run(None, plain)
    except ImportError:
        pass
    except NoKernel as error:  # it has none for some dtypes of the standard
        why = f" (ONNX Runtime: {str(error).split(' : ')[-1]})"
    found = load(path)(*feeds.values())
    results = found if isinstance(found, tuple) else (found,)
    return f"ferrule itself{why}", [result.numpy() for result in results]


def _shown(path: Path) -> Path:
    """The model with float32 in the place of inputs and outputs that NumPy has no type for."""
    import onnx
    from onnx import TensorProto, helper

    shown = onnx.load(str(path), load_external_data=False)
    graph = shown.graph
    pairs = [*((port, True) for port in graph.input), *((port, False) for port in graph.output)]
    odd = [(p, first) for p, first in pairs if _is_odd(dtype_of(p.type.tensor_type.elem_type))]
    for port, is_input in odd:
        kind = port.type.tensor_type
        name, own = port.name, kind.elem_type
        kind.elem_type, port.name = TensorProto.FLOAT, f"{name} as float32"
        ends = (port.name, name, own) if is_input else (name, port.name, TensorProto.FLOAT)
        cast = helper.make_node("Cast", ends[:1], ends[1:2], to=ends[2])
        graph.node.insert(0 if is_input else len(graph.node), cast)
    if not odd:
        return path
    file = path.with_name(f"shown.{path.name}")  # another name than that of the model
    onnx.save_model(shown, str(file))
    return file


def _is_odd(dtype: DType) -> bool:
    """True for floats that NumPy has no type for."""
    return dtypes.is_float(dtype) and np.dtype(dtype.np).isbuiltin != 1


def _plain(array: Array) -> Array:
    return array.astype(np.float32) if _is_odd(dtypes.from_np(array.dtype)) else array


def _difference(
    trace: Trace, found: Sequence[Array], wanted: Sequence[Array], tolerance: float | None
) -> float:
    """The largest difference, over the largest number or 1; raises `OnnxError` if that is much."""
    worst = 0.0
    for port, got, own in zip(trace.results, found, wanted, strict=True):
        if got.shape != own.shape:
            raise OnnxError(
                f"output {port.name!r} has shape {got.shape}, the function's {own.shape}"
            )
        difference = _between(np.asarray(got), own)
        limit = _limit(port.node.dtype) if tolerance is None else tolerance
        if not difference <= limit:
            raise OnnxError(
                f"output {port.name!r} differs from the function's result by {difference:.1e}, "
                f"and {limit:.1e} is allowed; give another tolerance if that is right"
            )
        worst = max(worst, difference)
    return worst


def _between(a: Array, b: Array) -> float:
    wide = [np.asarray(x).astype(np.float64) for x in (a, b)]
    finite = np.isfinite(wide[1])
    if not np.array_equal(wide[0][~finite], wide[1][~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    distance = np.abs(wide[0][finite] - wide[1][finite]).max()
    return float(distance / max(1.0, np.abs(wide[1][finite]).max()))


def _limit(dtype: DType) -> float:
    """The root of the distance of 1 and the next number: half of the digits may differ."""
    if not dtypes.is_float(dtype):
        return 0.0
    precise = compute_dtype(dtype) if dtype is not compute_dtype(dtype) else dtype
    bits = min(dtype.mantissa_bits, precise.mantissa_bits)
    return float(2.0 ** (-bits / 2))


__all__ = ["Dynamic", "Exported", "export"]
