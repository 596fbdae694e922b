"""A call of a function on tensors that stand for its arguments: what its results are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, final

import numpy as np

from ferrule.autograd import TracedValue, transforming
from ferrule.base.callbacks import call_back
from ferrule.base.containers import is_record, leaves, mapped
from ferrule.base.threadstate import this_thread
from ferrule.engine.loop_body import Placeholder
from ferrule.engine.random import stream_of, streams
from ferrule.engine.realize import realize
from ferrule.ir.expr import BoundVariable, Variable, required, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.jit import BoundJit, TinyJit
from ferrule.jit.before import compute_lazy
from ferrule.jit.hooks import code_of
from ferrule.jit.names import names_of
from ferrule.jit.state import State
from ferrule.nn.state import get_state_dict
from ferrule.nn.state.model import holder_of, parts_of
from ferrule.onnx.values import OnnxError
from ferrule.onnx.writer.plan import Calls
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef, watch_writes

Dynamic = Mapping[str, Mapping[int, "str | Variable"]]
_MOST: Final = 2**31 - 1


def _given(argument: str) -> Placeholder:
    """Stands for an argument while a function is traced."""
    text = (
        f"the function reads values that depend on {argument!r} (item, tolist, numpy, "
        "bool, if, masks as indices): a model computes them only when it runs; use x.where(...)"
    )
    return Placeholder("an argument", OnnxError, text)


class Port(NamedTuple):
    """An input or an output: its name, and the node that it is."""

    name: str
    node: LazyBuffer


@final
class Trace:
    """What a call of a function computes: nodes made of inputs, and of the memory of weights."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.inputs: list[Port] = []
        self.variables: dict[Variable, tuple[str, int | None]] = {}
        """The names of the inputs that variables are, or whose axis they are the size of."""
        self.outputs: list[Port] = []
        self.states: list[tuple[Port, Port]] = []
        """Memory that is written to: what it held before the call, and after it."""
        self.weights: dict[LazyBuffer, str] = {}
        self.conditions: list[str] = []
        """What sizes that vary must fulfil."""

    @property
    def results(self) -> list[Port]:
        """The outputs, and then the states after the call."""
        return [*self.outputs, *[after for _, after in self.states]]


class Bound(NamedTuple):
    """A function with its arguments, and the names of what they hold."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """The function that is to be called, with arrays as tensors."""
        plain = function.fxn if isinstance(function, TinyJit) else function
        given = mapped(tuple(args), _as_tensor)
        return Bound(plain, given, {name: mapped(arg, _as_tensor) for name, arg in kwargs.items()})

    def named(self) -> dict[str, Any]:
        """The arguments by the names of the parameters."""
        shown = getattr(self.function, "forward", self.function)  # of a module
        try:
            bound = inspect.signature(shown).bind(*self.args, **self.kwargs)
        except ValueError:  # of a function in C
            return {**{f"input_{n}": arg for n, arg in enumerate(self.args)}, **self.kwargs}
        parameters = bound.signature.parameters
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            else:
                found[name] = value
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The tensors in the arguments by name: that of the argument, and the place in it."""
        return {name: leaf for name, leaf in self._named_leaves() if isinstance(leaf, Tensor)}

    def variables(self) -> dict[str, BoundVariable]:
        """The bound variables among the arguments."""
        named = self._named_leaves()
        return {name: leaf for name, leaf in named if isinstance(leaf, BoundVariable)}

    def _named_leaves(self) -> list[tuple[str, Any]]:
        return [pair for name, arg in self.named().items() for pair in named_leaves(name, arg)]

    def with_tensors(self, others: Mapping[int, Tensor]) -> Bound:
        """The same arguments with other tensors, by the `id()` of those that they take the place
        of."""

        def change(leaf: Any) -> Any:
            return others.get(id(leaf), leaf)

        kwargs = {name: mapped(arg, change) for name, arg in self.kwargs.items()}
        return Bound(self.function, mapped(self.args, change), kwargs)

    def of_other_sizes(self, dynamic: Dynamic) -> Bound:
        """The arguments with other sizes of the axes that vary: one less, or else one more.

        What is more are elements from the start again. A size stays if bounds allow no other, or
        if there are no elements to repeat.
        """
        others: dict[int, Tensor] = {}
        for name, tensor in self.tensors().items():
            array = tensor.numpy()
            for axis, wanted in dynamic.get(name, {}).items():
                size = array.shape[axis]
                bounds = _variable(wanted, size)
                other = size - 1 if size > bounds.min else min(size + 1, bounds.max)
                if size:
                    array = np.take(array, np.arange(other) % size, axis)
            if name in dynamic:
                others[id(tensor)] = Tensor(array, requires_grad=tensor.requires_grad)
        return self.with_tensors(others)

    def call(self) -> Any:
        """Call the function."""
        return call_back(self.function, *self.args, **self.kwargs)


def _as_tensor(leaf: Any) -> Any:
    return Tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def named_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of containers, each with the name of its place."""
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        fields = getattr(value, "_fields", range(len(value)))
        parts = list(zip(fields, value, strict=True))
    elif is_record(value):
        parts = list(vars(value).items())
    else:
        yield name, value
        return
    for key, part in parts:
        yield from named_leaves(f"{name}.{key}" if name else str(key), part)


# *** what a function reaches without its arguments ***


class Place(NamedTuple):
    """A place in the reach of a function that holds a tensor."""

    name: str
    holder: Any
    """A dict or a list: the container, or the attributes of an object."""
    key: Any
    tensor: Tensor


class Reached(NamedTuple):
    """The tensors that a function reaches by itself, their names, and where they are."""

    tensors: list[Tensor]
    names: dict[str, Tensor]
    places: list[Place]

    @staticmethod
    def by(bound: Bound) -> Reached:
        """The tensors that a call may use, in memory."""
        others = [leaf for leaf in leaves([bound.args, bound.kwargs]) if not _is_tensor(leaf)]
        state = State([*code_of(bound.function), *others], None)
        found = list(state.tensors())
        compute_lazy(found)
        for device in {tensor.device for tensor in (*found, *bound.tensors().values())}:
            stream_of(device)  # or the plain call would start it, and the trace go on
        realize([stream.node for stream in streams()])
        names = _names(bound.function)
        by_tensor = {id(tensor): name for name, tensor in names.items()}
        places = [
            Place(by_tensor[id(part)], holder, key, part)
            for model in _models(bound.function).values()
            for holder in map(holder_of, parts_of(model))
            for key, part in (holder.items() if isinstance(holder, dict) else enumerate(holder))
            if id(part) in by_tensor and isinstance(holder, dict | list)
        ]
        return Reached(found, names, places)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _models(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function finds without its arguments, by name; a model itself has none."""
    if not inspect.isfunction(function):
        return {"": getattr(function, "__self__", function)}
    variables = inspect.getclosurevars(function)
    # Names of attributes are among them, too: `Tensor.train()` does not use a global `train`.
    used = names_of(function.__code__)[0].everything()
    found = {**{k: v for k, v in variables.globals.items() if k in used}, **variables.nonlocals}
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, type | TinyJit | BoundJit) and not inspect.ismodule(value)
    }


def _names(function: Callable[..., Any]) -> dict[str, Tensor]:
    """Names of tensors as in the state of the model; those of several begin with its variable."""
    states = {name: get_state_dict(model) for name, model in _models(function).items()}
    full = {name: state for name, state in states.items() if state}
    if len(full) == 1:
        ((name, state),) = full.items()
        return {key or name: tensor for key, tensor in state.items()}
    return {
        f"{name}.{key}" if key else name: tensor
        for name, state in full.items()
        for key, tensor in state.items()
    }


@contextmanager
def restored(reached: Reached) -> Iterator[dict[StorageRef, TracedValue]]:
    """A block after which memory, attributes, gradients and random streams are as before.

    Gives the memory that was written to, and what it held.
    """
    gradients = [(tensor, tensor._grad) for tensor in reached.tensors]
    before = [(stream, stream.take()) for stream in streams()]
    kept = [TracedValue(node) for _, node in before]  # or they would be written over
    with watch_writes() as written:
        try:
            yield written
        finally:
            for cell, value in written.items():
                cell.restore(value)
            for tensor, gradient in gradients:
                tensor._grad = gradient
            for place in reached.places:
                place.holder[place.key] = place.tensor
            for (stream, _), value in zip(before, kept, strict=True):
                stream.put(value.node)


# *** the trace ***


def traced(bound: Bound, reached: Reached, dynamic: Dynamic) -> Trace:
    """Call the function on tensors that stand for its arguments, and put all back after it."""
    trace = Trace()
    stand_ins, cells = _stand_ins(trace, bound, dynamic)
    ordered = sorted(reached.names.items(), key=lambda pair: -pair[0].count("."))
    names = {id(tensor._cell): name for name, tensor in ordered}  # the shortest name comes last
    for tensor in reached.tensors:
        if tensor._grad is not None and id(tensor._cell) in names:
            names.setdefault(id(tensor._grad._cell), f"{names[id(tensor._cell)]}.grad")
    for number, tensor in enumerate(reached.tensors):
        node = tensor._cell.value.node
        trace.weights.setdefault(node, names.get(id(tensor._cell), f"tensor_{number}"))
    before = {stream: stream.node for stream in streams()}
    state = this_thread.state
    token = required.set({})
    with restored(reached) as written:
        state.calls = trace.calls
        try:
            with transforming(recording=state.recording):
                result = bound.with_tensors(stand_ins).call()
            _outputs(trace, result)
            _states(trace, written, cells)
            _replaced(trace, reached)
            _random_states(trace, before)
        finally:
            state.calls = None
            noted = required.get() or {}
            required.reset(token)
    trace.conditions = [f"{condition} >= 0" for condition in noted]
    return trace


def check_dynamic(dynamic: Any) -> None:
    """Raise `OnnxError` if these are not names of sizes, by the axes of arguments."""
    is_right = isinstance(dynamic, Mapping) and all(
        isinstance(axes, Mapping)
        and all(isinstance(size, str | Variable) for size in axes.values())
        for axes in dynamic.values()
    )
    if not is_right:
        raise OnnxError(
            f"dynamic={dynamic!r}: for each argument it needs its axes and the names of their "
            'sizes, such as {"x": {0: "batch"}}'
        )


def _stand_ins(
    trace: Trace, bound: Bound, dynamic: Dynamic
) -> tuple[dict[int, Tensor], dict[StorageRef, str]]:
    """Tensors that stand for the arguments, by their `id()`, and the names of their memory."""
    found: dict[int, Tensor] = {}
    cells: dict[StorageRef, str] = {}
    sizes: dict[str, BoundVariable] = {}
    for name, bound_variable in bound.variables().items():
        trace.variables[bound_variable.unbound()[0]] = name, None
    unknown = sorted(set(dynamic) - set(bound.tensors()))
    if unknown:
        raise OnnxError(f"dynamic: there are no arguments {unknown}; {sorted(bound.tensors())} are")
    for name, tensor in bound.tensors().items():
        if id(tensor) in found:
            continue
        shape = [_size(trace, name, axis, size) for axis, size in enumerate(tensor.shape)]
        for axis, size_name in dynamic.get(name, {}).items():
            place = tensor._axis(axis, "export")
            shape[place] = _named_size(sizes, size_name, shape[place])
            trace.variables.setdefault(shape[place].unbound()[0], (name, place))
        node = LazyBuffer.custom(_given(name), (), shape, tensor.dtype, tensor.device)
        stand_in = Tensor._wrap(TracedValue(node))
        if tensor._leaf is not None:
            stand_in.requires_grad = True
        found[id(tensor)] = stand_in
        cells[stand_in._cell] = name
        trace.inputs.append(Port(name, node))
    return found, cells


def _size(trace: Trace, name: str, axis: int, size: Any) -> Any:
    """A size of an argument: that of a bound variable can be told from it."""
    if isinstance(size, BoundVariable):
        trace.variables.setdefault(size.unbound()[0], (name, axis))
    return size


def _variable(wanted: str | Variable, size: int) -> Variable:
    """The variable that a size is: 0 and 1 are apart from others, since 1 is broadcast."""
    return wanted if isinstance(wanted, Variable) else Variable(wanted, min(size, 2), _MOST)


def _named_size(sizes: dict[str, BoundVariable], wanted: Any, size: sint) -> BoundVariable:
    """A size with a name; equal names are equal sizes."""
    if not isinstance(size, int):
        raise OnnxError(f"dynamic: the size {size} varies already, since a variable is bound to it")
    variable = _variable(wanted, size)
    name = variable.name
    if name not in sizes:
        sizes[name] = variable.bind(size)
    if sizes[name].unbound()[1] != size:
        raise OnnxError(
            f"dynamic: the axes called {name!r} have the sizes {sizes[name]} and {size}"
        )
    return sizes[name]


def _outputs(trace: Trace, result: Any) -> None:
    is_one = isinstance(result, Tensor)
    for key, leaf in named_leaves("output" if is_one else "", result):
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise OnnxError(
                f"the function returns {leaf!r:.40} ({type(leaf).__name__}); it has to return "
                "tensors"
            )
        name = f"output_{key}" if key[:1].isdigit() else key
        trace.outputs.append(Port(name or "output", leaf._read().node))


def _states(
    trace: Trace, written: Mapping[StorageRef, TracedValue], cells: Mapping[StorageRef, str]
) -> None:
    """The memory that the function has written to."""
    for cell, value in written.items():
        new = cell.value.node
        if cell in cells:  # an argument
            name = cells[cell]
            port = next(port for port in trace.inputs if port.name == name)
            trace.states.append((port, Port(f"{name}_out", new)))
            continue
        name = trace.weights.pop(value.node, f"state_{len(trace.states)}")
        port = Port(name, value.node)
        trace.inputs.append(port)
        trace.states.append((port, Port(f"{name}_out", new)))


def _replaced(trace: Trace, reached: Reached) -> None:
    """The tensors that took the place of others in the reach of the function."""
    seen: set[str] = set()
    for name, holder, key, tensor in reached.places:
        new = holder[key] if isinstance(holder, list) else holder.get(key)
        if new is tensor or name in seen:
            continue
        seen.add(name)
        old = tensor._read().node
        if not isinstance(new, Tensor) or new.dtype is not tensor.dtype or new.shape != old.shape:
            raise OnnxError(
                f"the function leaves another value in the place of the tensor {name!r}, of "
                f"{tensor.dtype} and shape {old.shape}: a model can only give tensors like those "
                "that it is given"
            )
        trace.weights.pop(old, None)
        port = Port(name, old)
        trace.inputs.append(port)
        trace.states.append((port, Port(f"{name}_out", new._read().node)))


def replaced_tensors(reached: Reached) -> dict[LazyBuffer, Tensor]:
    """The tensors that took the place of others, by what these are."""
    return {
        place.tensor._read().node: place.holder[place.key]
        for place in reached.places
        if place.holder[place.key] is not place.tensor
    }


def _random_states(trace: Trace, before: Mapping[Storage, LazyBuffer]) -> None:
    """The positions in the streams of random numbers that were drawn from."""
    for stream in streams():
        old = before.get(stream)
        if old is not None and stream.node is not old:
            port = Port("random_state", old)
            trace.inputs.append(port)
            trace.states.append((port, Port("random_state_out", stream.node)))
