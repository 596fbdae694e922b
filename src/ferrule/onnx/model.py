"""`load`: a model in ONNX's format, as a function of tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ferrule.autograd import no_grad
from ferrule.base.threadstate import this_thread
from ferrule.device.capture import is_capturing
from ferrule.ir.buffer import AllocationSizeError
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Extent
from ferrule.jit import JitError
from ferrule.nn.module import Layer
from ferrule.onnx.fusion import fused
from ferrule.onnx.graph import (
    Builder,
    Graph,
    Node,
    reading,
    unsupported,
    versions_of,
    without_rules,
)
from ferrule.onnx.values import Array, Constant, OnnxError, Value, as_tensor, dtype_of
from ferrule.onnx.weights import Weight, mapped, split
from ferrule.tensor import Tensor
from ferrule.tensor.extents import Extents, copied_with, is_within, note_extents, with_numbers

Bounds: TypeAlias = Mapping[str, tuple[int, int]]
"""The least and the greatest sizes of axes, by their names."""


class Port(NamedTuple):
    """An input or an output of a model."""

    name: str
    dtype: str
    """The name of a data type, or what else it is."""
    shape: tuple[int | str | None, ...] | None
    """Sizes; a name for one that may vary, None for one that is not known."""

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join(str(size or "?") for size in self.shape)
        return f"{self.name}: {self.dtype.removeprefix('dtypes.')}[{sizes}]"


class Model(Layer):
    """A model of ONNX: call it with its inputs, by position or by name.

    Its tensors have the names that they have in the file: `model.state_dict()` lists them,
    `load_state_dict` replaces them, and an optimiser takes `model.parameters()`.

    `inputs` and `outputs` have names, dtypes and shapes. `reading` has the nodes that read what was
    computed, since the sizes of their results, or their trips, depend on it: no replay can do that,
    so `TinyJit` raises `JitError` where it comes to one. `plain` is empty, or names the first node
    that takes no variables as sizes: then sizes within `bounds` are plain numbers.
    """

    # Only its tensors are in its `__dict__`.
    __slots__ = (
        "_extents",
        "_graph",
        "_host",
        "_is_tried",
        "bounds",
        "inputs",
        "outputs",
        "plain",
        "reading",
    )

    def __init__(self, proto: Any, weights: Sequence[Weight], bounds: Bounds) -> None:
        from onnx import numpy_helper

        graph, needed = Builder(versions_of(proto)).graph(proto.graph)
        arrays = {t.name: np.asarray(numpy_helper.to_array(t)) for t in proto.graph.initializer}
        arrays |= {weight.name: weight.array for weight in weights}
        self.inputs = tuple(
            port_of(value) for value in proto.graph.input if value.name not in arrays
        )
        self.outputs = tuple(port_of(value) for value in proto.graph.output)
        self.bounds = _checked(bounds, self.inputs)
        self._extents = {port.name: _extents(port, self.bounds) for port in self.inputs}
        self.plain = ""
        self._is_tried = False
        self._host = frozenset(needed & {port.name for port in self.inputs})
        constants = []
        used, statistics = _uses(graph)
        for name, array in arrays.items():
            if name in used and dtypes.is_float(dtypes.from_np(array.dtype)):
                if name in statistics:
                    self.register_buffer(name, Tensor(array, requires_grad=False))
                else:
                    self.register_parameter(name, Tensor(array, requires_grad=True))
            else:
                constants.append((name, Constant.of(array, name in needed)))
        with no_grad():
            # Weights are dequantised only where no product takes them as they are.
            known = graph._replace(constants=tuple(constants)).folded(needed, {"DequantizeLinear"})
            self._graph = fused(known).folded(needed)
        self.reading = tuple(str(node) for node in reading(self._graph))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for these inputs: a tensor, or a tuple of several."""
        given = self._bound(args, kwargs)
        state = this_thread.state
        general = self._generalised(given)
        results: list[Any] | None = None
        # Gradients of calls with several sizes are added, and a graph has one value of a variable.
        if general and not state.recording:
            results = self._general_results(given, general)
        elif general and state.extents is not None and not self._is_tried:
            # A capture will have variables as sizes: find out now if all operators take them.
            with no_grad():
                self._general_results(given, general)
        if results is None:
            results = self._results(given)
        for name, value in given.items():
            if isinstance(value, Tensor) and self._extents[name] and not self.plain:
                note_extents(value, self._extents[name])
        return results[0] if len(results) == 1 else tuple(results)

    def _general_results(
        self, given: dict[str, Value], general: dict[str, Value]
    ) -> list[Any] | None:
        """The results with variables as sizes; None, and a warning, if only numbers give any."""
        self._is_tried = True
        try:
            return self._results({**given, **general})
        except JitError:
            raise
        except Exception as error:
            self._results(given)  # or the error is raised here
            where = getattr(error, "__notes__", ["in the plan of the model"])[0]
            self.plain = f"{where}: {error}"
            warnings.warn(
                "the sizes within bounds are plain numbers, each with plans and captures of its "
                f"own, {self.plain}",
                stacklevel=4,
            )
            return None

    def _results(self, given: dict[str, Value]) -> list[Any]:
        values = self._run(given)
        results = [_result(values[name]) for name in self._graph.outputs]
        if not is_capturing():  # a captured function gives numbers itself
            results = [with_numbers(one) if isinstance(one, Tensor) else one for one in results]
        return results

    def values(self, *args: Any, **kwargs: Any) -> dict[str, Value]:
        """All values by their names in the file: inputs, outputs, and what is between them."""
        return self._run(self._bound(args, kwargs))

    def _run(self, given: dict[str, Value]) -> dict[str, Value]:
        values: dict[str, Value] = {**vars(self), **given}
        try:
            self._graph.run(values)
        except JitError as error:
            if len(self.reading) > 1:
                error.add_note(f"all that read values: {', '.join(self.reading)}")
            raise
        return values

    def _generalised(self, given: dict[str, Value]) -> dict[str, Value]:
        """The inputs whose sizes are within bounds, with variables as sizes.

        Empty in a capture, whose arguments have them already, and if equal names have two sizes.
        """
        state = this_thread.state
        if self.plain or state.transforming or state.observer is not None or state.calls:
            return {}
        found: dict[str, Value] = {}
        sizes: dict[Extent, int] = {}
        for name, value in given.items():
            extents = self._extents[name]
            if not isinstance(value, Tensor) or not extents or not is_within(value, extents):
                continue
            now = [(one, value.shape[axis]) for axis, one in extents.items()]
            if any(sizes.setdefault(one, size) != size for one, size in now):
                return {}
            found[name] = copied_with(value, extents)
        return found

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"Model({inputs} -> {outputs})"

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes that a call runs, in order."""
        return self._graph.nodes

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Value]:
        names = [port.name for port in self.inputs]
        if len(args) > len(names):
            raise TypeError(f"the model takes {len(names)} inputs, {names}; {len(args)} were given")
        bound = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(f"the model has no input {name!r}; it has {names}")
            if name in bound:
                raise TypeError(f"input {name!r} is given twice")
            bound[name] = value
        missing = [name for name in names if name not in bound]
        if missing:
            raise TypeError(f"the inputs {missing} are missing")
        return {port.name: self._input(port, bound[port.name]) for port in self.inputs}

    def _input(self, port: Port, value: Any) -> Value:
        if value is None or (isinstance(value, list | tuple) and port.shape is None):
            return None if value is None else [as_tensor(np.asarray(part)) for part in value]
        array = value if isinstance(value, Tensor | np.ndarray) else np.asarray(value)
        if port.shape is not None:
            _check_shape(port, tuple(array.shape), self.bounds)
        return array if port.name in self._host else as_tensor(array)


def _checked(bounds: Bounds, inputs: Sequence[Port]) -> tuple[tuple[str, int, int], ...]:
    """Bounds of axes by their names; raises `OnnxError` if they are of no axis, or no bounds."""
    axes = {size for port in inputs for size in port.shape or () if isinstance(size, str)}
    unknown = sorted(bounds.keys() - axes)
    if unknown:
        raise OnnxError(f"no axis of an input has the names {unknown}; there are {sorted(axes)}")
    for name, (least, greatest) in bounds.items():
        if not 0 <= least <= greatest:
            raise OnnxError(f"the bounds of axis {name!r} are {least} and {greatest}")
    return tuple((name, least, greatest) for name, (least, greatest) in bounds.items())


def _extents(port: Port, bounds: Sequence[tuple[str, int, int]]) -> Extents:
    """The variables for the sizes of the axes with bounds; sizes of 0 and 1 are plain numbers."""
    known = {
        name: Extent(name, max(least, 2), greatest)
        for name, least, greatest in bounds
        if greatest >= max(least, 2)
    }
    axes = enumerate(port.shape or ())
    return {axis: known[size] for axis, size in axes if isinstance(size, str) and size in known}


def _check_shape(
    port: Port, shape: tuple[Any, ...], bounds: Sequence[tuple[str, int, int]]
) -> None:
    fits = len(shape) == len(port.shape or ()) and all(
        not isinstance(size, int) or size == given
        for size, given in zip(port.shape or (), shape, strict=True)
    )
    if not fits:
        raise OnnxError(f"input {port.name!r} has the shape {shape}; it must be {port.shape}")
    for name, least, greatest in bounds:
        for axis, given in zip(port.shape or (), shape, strict=True):
            if axis == name and not least <= given <= greatest:
                raise OnnxError(
                    f"input {port.name!r} has the shape {shape}; axis {name!r} must be from "
                    f"{least} to {greatest}"
                )


def _result(value: Value) -> Any:
    if isinstance(value, list):
        return [_result(part) for part in value]
    return value if value is None else as_tensor(value)


def port_of(value: Any) -> Port:
    """The input or output that an `onnx.ValueInfoProto` describes."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, kind or "unknown", None)
    tensor = value.type.tensor_type
    dtype = str(dtype_of(tensor.elem_type)) if tensor.elem_type else "unknown"
    if not tensor.HasField("shape"):
        return Port(value.name, dtype, None)
    sizes = [
        size.dim_value if size.HasField("dim_value") else (size.dim_param or None)
        for size in tensor.shape.dim
    ]
    return Port(value.name, dtype, tuple(sizes))


def _uses(graph: Graph) -> tuple[set[str], set[str]]:
    """The names that something computes with, and those of which no gradient is wanted."""
    used: set[str] = set(graph.outputs)
    statistics: set[str] = set()
    for node in graph.all_nodes():
        for place, name in enumerate(node.inputs):
            if node.entry.is_statistic(place):
                statistics.add(name)
            entry = node.entry
            if not (entry.is_host(place) or entry.is_scale(place) or node.needed):
                used.add(name)
    return used, statistics


def load(source: str | os.PathLike[str] | bytes, bounds: Bounds | None = None) -> Model:
    """The model in a file of ONNX's format, or in its bytes.

    The weights, those in files beside it too, are mapped into memory and copied once, into the
    model's tensors. Called with tensors or NumPy arrays, by position or by name, the model gives a
    tensor, or a tuple of several. It is an `nn.Module`: `state_dict()` has its tensors under the
    names in the file, `parameters()` those to train. It works in `TinyJit`, `grad` and `vmap`.

    Axes of the inputs to which the file gives names may have any sizes. `bounds`, such as
    `{"batch": (1, 64)}`, are the least and the greatest for some of them: all sizes within them but
    0 and 1 have one plan, and under `TinyJit` one capture. A call with another size raises
    `OnnxError`.

    Raises `OnnxError` if the model is not valid, or has operators or data types that are not
    supported: the message lists them all. Also if `bounds` has a name that no axis has.

    >>> import ferrule
    >>> from onnx import helper
    >>> x, y = (helper.make_tensor_value_info(name, 1, ["n", 2]) for name in "xy")
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    >>> model = ferrule.onnx.load(helper.make_model(graph).SerializeToString())
    >>> model(ferrule.Tensor([[-1.0, 2.0]])).tolist()
    [[0.0, 2.0]]
    """
    if isinstance(source, bytes):
        return _loaded(np.frombuffer(source, np.uint8), None, bounds or {})
    path = Path(source)
    return _loaded(mapped(path), path.parent, bounds or {})


def from_proto(proto: Any) -> Model:
    """The model that an `onnx.ModelProto` describes; see `load`."""
    return load(proto.SerializeToString())


def _loaded(data: Array, folder: Path | None, bounds: Bounds) -> Model:
    import onnx

    try:
        proto, weights = split(data, folder)
        onnx.checker.check_model(proto)
        return of_checked(proto, weights, bounds)
    except (onnx.checker.ValidationError, UnicodeDecodeError, AllocationSizeError) as error:
        raise OnnxError(f"no valid model: {str(error).strip().splitlines()[0]}") from error


def of_checked(proto: Any, weights: Sequence[Weight], bounds: Bounds) -> Model:
    """The model that an `onnx.ModelProto` describes, which is known to be valid.

    `weights` are tensors that are inputs in it. Raises `OnnxError` for what is not supported.
    """
    from onnx import inliner

    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    missing = sorted(set(without_rules(proto.graph, versions_of(proto))))
    if missing:
        proto = inliner.inline_selected_functions(proto, missing, inline_schema_functions=True)
    problems = list(unsupported(proto.graph, versions_of(proto)))
    if problems:
        raise OnnxError("the model is not supported:\n" + "\n".join(problems))
    return Model(proto, weights, bounds)
