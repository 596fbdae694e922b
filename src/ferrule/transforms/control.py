"""`while_loop` and `cond`: computations whose extent is known only when they run.

Both are loops (`loops.py`). One goes on while a carried condition holds; a choice between two
functions is two loops, of which one makes a trip and the other none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.base.containers import leaves, mapped, matching
from ferrule.base.helpers import check_function
from ferrule.engine.loop_body import LoopError, Trips
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import UnaryOps
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor import Tensor
from ferrule.transforms.loop_gradients import node_mark
from ferrule.transforms.loops import (
    LoopTrace,
    check_carry,
    filled_tensors,
    number_as_tensor,
    values_in,
)


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_trips: int | None = None,
) -> Any:
    """Replace a value by `body(value)` again and again, while `cond(value)` is true.

    The value is a tensor, or tensors in tuples, lists, dicts or dataclasses; numbers and NumPy
    arrays become tensors. `cond` returns one element: true if there is to be another trip. Both
    functions are called on tensors that stand for the values of a trip, as in `scan`.

    With `max_trips` the loop ends after that many trips at the latest. Then the result has a
    gradient: there is room for what each trip computed.

    Raises `LoopError` if `body` returns a value of another shape, dtype or structure, if the
    functions read the values of tensors, or write to tensors from outside. Raises `ShapeError` if
    `cond` returns more than one element, `GradientError` if a gradient arrives at a loop without
    `max_trips`.

    >>> import ferrule
    >>> def halve(pair):
    ...     x, steps = pair
    ...     return x / 2, steps + 1
    >>> x, steps = ferrule.while_loop(lambda pair: pair[0] > 1, halve, (ferrule.Tensor(100.0), 0))
    >>> x.item(), steps.item()
    (0.78125, 7)
    """
    check_function(cond, "while_loop")
    check_function(body, "while_loop")
    if max_trips is not None and (isinstance(max_trips, bool) or not isinstance(max_trips, int)):
        raise TypeError(f"[while_loop] max_trips is an integer or None, not {max_trips!r}")
    if max_trips is not None and max_trips < 0:
        raise ValueError(f"[while_loop] max_trips={max_trips} is negative")
    init = mapped(init, number_as_tensor)
    starts = values_in("while_loop", "init", init)
    if not starts:
        raise LoopError("[while_loop] init holds no tensors, so that nothing can change")
    device = starts[0].node.device
    start = _truth("while_loop", cond(init), device)
    trace = LoopTrace("while_loop", [*starts, start.detach()], (), max_trips)

    def trip(carry: Any, _: Any) -> Any:
        value, _ = carry
        following = mapped(body(value), number_as_tensor)
        return following, Tensor._wrap(_truth("while_loop", cond(following), device))

    following, go_on = trace.call(trip, (init, Tensor._wrap(start)), None)
    carries = [*check_carry("while_loop", init, following), go_on._read()]
    last, _ = trace.loop(carries, (), Trips(max_trips, condition=len(starts)))
    return filled_tensors(init, last[:-1])


def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
) -> Any:
    """The result of `true_fn(*operands)` if `pred` is true, else that of `false_fn(*operands)`.

    `pred` is a tensor of one element. Both functions are traced, and give tensors, in tuples,
    lists, dicts or dataclasses, of the same shapes and dtypes; only the chosen one is computed. For
    a Python bool the other function is not even called. `where` chooses element by element.

    Raises `LoopError` if the two results differ in structure, shape or dtype, if the functions read
    the values of tensors, or write to tensors from outside. Raises `ShapeError` if `pred` has more
    than one element.

    >>> import ferrule
    >>> x = ferrule.Tensor([1.0, 4.0])
    >>> ferrule.cond(x.sum() > 3, lambda x: x.sqrt(), lambda x: -x, x).tolist()
    [1.0, 2.0]
    """
    check_function(true_fn, "cond")
    check_function(false_fn, "cond")
    if isinstance(pred, bool | np.bool_):
        return (true_fn if pred else false_fn)(*operands)
    operands = tuple(mapped(list(operands), number_as_tensor))
    if not isinstance(pred, Tensor):
        raise TypeError(f"[cond] pred is a tensor of one element or a bool, not {pred!r:.40}")
    is_true = _truth("cond", pred, "").detach()
    mark = node_mark()
    result: Any = None
    values: list[TracedValue] = []
    for function, count in ((true_fn, is_true), (false_fn, is_true.alu(UnaryOps.NEG))):
        trace = LoopTrace("cond", (), (), 1)
        found = mapped(
            trace.call(lambda *_, f=function: f(*operands), None, None), number_as_tensor
        )
        outs = values_in("cond", "the result", found)
        if function is true_fn:
            result = found
            values = [out.full(0).detach() for out in outs]
        else:
            outs = _alike(result, found)
        trace.enter(values)
        number = count.reshape((1,)).cast(dtypes.int32).node
        values, _ = trace.loop(outs, (), Trips(1, count=number, since=mark))
    return filled_tensors(result, values)


def _truth(what: str, found: Any, device: str) -> TracedValue:
    """A condition as one bool."""
    if isinstance(found, bool | np.bool_):
        found = Tensor(bool(found), device=device)
    if not isinstance(found, Tensor):
        raise LoopError(
            f"[{what}] the condition is a tensor of one element, not {found!r:.40} "
            f"({type(found).__name__})"
        )
    value = found._read()
    if prod_sint(value.shape) != 1:
        raise ShapeError(
            f"[{what}] the condition has shape {value.shape}, and is to be one element; reduce it, "
            "for example by .any() or .all()"
        )
    return value.reshape(()).cast(dtypes.bool)


def _alike(first: Any, second: Any) -> list[TracedValue]:
    """The values of the second function; raises `LoopError` unless they are as the first one's."""
    try:
        given = matching(second, first, "[cond] the result of false_fn")
    except ValueError as error:
        raise LoopError(str(error)) from None
    found = []
    for leaf, other in zip(given, leaves(first), strict=True):
        if leaf is None and other is None:
            continue
        a = None if other is None else other._read()
        b = None if not isinstance(leaf, Tensor) else leaf._read()
        if a is None or b is None or a.shape != b.shape or a.dtype is not b.dtype:
            raise LoopError(
                f"[cond] true_fn gives {_form(a)}, and false_fn {_form(b)}; both give tensors of "
                "the same shapes and dtypes"
            )
        found.append(b)
    return found


def _form(value: TracedValue | None) -> str:
    return "no tensor" if value is None else f"{value.dtype} of shape {value.shape}"
