"""`custom_vjp`: functions with derivatives that the user defines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from ferrule.autograd import (
    GradientError,
    Gradients,
    GradNode,
    Parts,
    Rule,
    TracedValue,
    is_recording,
    record_several,
    transforming,
)
from ferrule.base.callbacks import call_back
from ferrule.base.helpers import check_function
from ferrule.base.records import dataclass
from ferrule.transforms.trace import blank, fitting, read, replaced, tensors_of, wrap


@final
class custom_vjp:
    """A function whose gradient is computed by the functions given to `defvjp`.

    `f.defvjp(forward, backward)`: `forward(*args)` returns a pair of the function's result, and of
    tensors to keep (in tuples, lists, dicts). `backward(kept, gradient)` returns a tuple with the
    gradient of each argument, or None for zeros. `backward` can be differentiated in turn. Tensors
    that the functions close over get no gradient.

    Raises `GradientError` if it is called before `defvjp`, or if `backward` returns anything else.

    >>> import ferrule
    >>> @ferrule.custom_vjp
    ... def bounded(x):
    ...     return x
    >>> bounded.defvjp(lambda x: (x, None), lambda kept, slope: (slope.clip(-1, 1),))
    >>> ferrule.grad(lambda x: (bounded(x) * 5).sum())(ferrule.Tensor([2.0])).tolist()
    [1.0]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        check_function(function, "custom_vjp")
        functools.update_wrapper(self, function)
        self._function = function
        self._forward: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the functions that compute the value and its gradient."""
        self._forward = forward
        self._backward = backward

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        if self._forward is None or self._backward is None:
            raise GradientError(
                f"[custom_vjp] {self._name} has no derivative; give it one: "
                "f.defvjp(forward, backward)"
            )
        given = read(tensors_of(args))
        if not is_recording() or all(value.edge is None for value in given):
            return call_back(self._function, *args)
        found = call_back(self._forward, *args)
        if not isinstance(found, tuple) or len(found) != 2:
            raise GradientError(
                f"[custom_vjp] the forward part of {self._name} gives a pair (result, kept), "
                f"not {type(found).__name__}"
            )
        result, kept = found
        outputs = read(tensors_of(result))
        residuals = read(tensors_of(kept))
        positions = tuple(range(len(given), len(given) + len(residuals)))
        call = _Call(self._name, self._backward, *map(blank, (args, result, kept)))
        nodes = [value.node for value in outputs]
        rule = Rule(_reverse, inputs=positions)
        values = record_several("custom_vjp", rule, [*given, *residuals], nodes, call)
        return replaced(result, wrap(values))

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))


@final
@dataclass(frozen=True)
class _Call:
    """The backward function, and the containers of arguments, results and kept tensors."""

    name: str
    backward: Callable[..., Any]
    args: tuple[Any, ...]
    result: Any
    kept: Any


def _reverse(grad: Parts, entry: GradNode) -> Gradients:
    call: _Call = entry.arg
    grads = [
        grad.of[number] if number in grad.of else value.full(0)
        for number, value in enumerate(read(tensors_of(call.result)))
    ]
    with transforming(is_recording()):
        slopes = call_back(
            call.backward,
            replaced(call.kept, wrap(entry.saved)),
            replaced(call.result, wrap(grads)),
        )
    if not isinstance(slopes, tuple | list) or len(slopes) != len(call.args):
        raise GradientError(
            f"[custom_vjp] the backward part of {call.name} gives a tuple with a gradient for each "
            f"of {len(call.args)} arguments, not {type(slopes).__name__}"
        )
    return _in_order(call, slopes, entry)


def _in_order(call: _Call, slopes: Sequence[Any], entry: GradNode) -> Gradients:
    """The gradients of all sources: of the arguments' tensors, and none for kept tensors."""
    found: list[TracedValue | None] = []
    for arg, slope in zip(call.args, slopes, strict=True):
        count = len(tensors_of(arg))
        if slope is None or count == 0:
            found += [None] * count
            continue
        like = read(tensors_of(arg))
        found += fitting("custom_vjp", "gradient", slope, like, arg)
    return (*found, *[None] * len(entry.saved))
