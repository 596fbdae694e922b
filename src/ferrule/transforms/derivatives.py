"""Derivatives of functions: gradients, and products with the Jacobian from either side.

They take and give nested tuples, lists and dicts of tensors, and can be put into one another. What
a function closes over, such as a model with its parameters, is constant to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ferrule.autograd import GradientError
from ferrule.base.calls import explains
from ferrule.base.helpers import check_function
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor import Tensor
from ferrule.transforms.trace import Trace, fitting, replaced, wrap

Function = Callable[..., Any]


@explains
def grad(function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The function that gives the gradient of `function`, which returns one element.

    The gradient is by the argument of number `argnums`, in that argument's containers; by several
    arguments it is a tuple. It has the shapes and dtypes of the argument's tensors, and is zeros
    for a tensor on which the result does not depend. With `has_aux` the function returns a pair,
    whose second part is returned after the gradient, unchanged.

    Raises `ShapeError` if the function returns more than one element, `DTypeError` if it returns
    anything but a float, or for an argument that holds anything else.

    >>> import ferrule
    >>> ferrule.grad(lambda x: (x**3).sum())(ferrule.Tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    both = _value_and_grad("grad", function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, slopes = both(*args, **kwargs)
        return (slopes, value[1]) if has_aux else slopes

    return gradient


@explains
def value_and_grad(
    function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Function:
    """The function that gives the value of `function` and its gradient: see `grad`.

    With `has_aux` the value is the pair that the function returned.

    >>> import ferrule
    >>> value, slope = ferrule.value_and_grad(lambda x: (x * x).sum())(ferrule.Tensor([3.0]))
    >>> value.item(), slope.tolist()
    (9.0, [6.0])
    """
    return functools.wraps(function)(_value_and_grad("value_and_grad", function, argnums, has_aux))


def _value_and_grad(
    what: str, function: Function, argnums: int | Sequence[int], has_aux: bool
) -> Function:
    check_function(function, what)

    def both(*args: Any, **kwargs: Any) -> Any:
        trace, form, result, aux = traced(what, function, argnums, has_aux, args, kwargs)
        if not isinstance(result, Tensor):
            raise GradientError(
                f"[{what}] the function returned {type(result).__name__}; a gradient is that of "
                "one tensor: return it alone, or use jacobian, or has_aux=True for what comes "
                "beside it"
            )
        (output,) = trace.differentiable(result)
        if prod_sint(output.shape) != 1:
            raise ShapeError(
                f"[{what}] the function returned a tensor of shape {output.shape}, and a gradient "
                "is that of one element; reduce it, for example by .sum(), or use jacobian"
            )
        slopes = replaced(form, wrap(trace.pull({0: output.full(1)})))
        value = trace.leave(result)
        return ((value, trace.leave(aux)) if has_aux else value), slopes

    return both


def traced(
    what: str,
    function: Function,
    argnums: int | Sequence[int],
    has_aux: bool,
    args: Sequence[Any],
    kwargs: Any,
) -> tuple[Trace, Any, Any, Any]:
    """A call to differentiate by some arguments: these as it got them, its result, and the rest."""
    check_function(function, what)
    trace = Trace(what)
    chosen = _positions(what, argnums, len(args))
    given = list(args)
    for position in chosen:
        given[position] = trace.enter(args[position], f"argument {position}")
    result = trace.call(function, given, kwargs)
    form = tuple(given[position] for position in chosen)
    if isinstance(argnums, int):
        (form,) = form
    return trace, form, *split_aux(what, result, has_aux)


def split_aux(what: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """The result of a function, and the second part of the pair that it returned with it."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise GradientError(
            f"[{what}] with has_aux=True the function returns a pair (result, anything), "
            f"not {type(result).__name__}"
        )
    return result


def _positions(what: str, argnums: int | Sequence[int], count: int) -> list[int]:
    wanted = list(argnums) if isinstance(argnums, Sequence) else [argnums]
    if not all(isinstance(place, int) for place in wanted):
        raise TypeError(f"[{what}] argnums is a whole number, or several, not {argnums!r}")
    for number in wanted:
        if not -count <= number < count:
            raise ValueError(
                f"[{what}] argnums={argnums}: the function was called with {count} positional "
                "arguments; pass what is differentiated by position"
            )
    positions = [number % count for number in wanted]
    if len(set(positions)) < len(positions):
        raise ValueError(f"[{what}] argnums={argnums} names an argument twice")
    return positions


@explains
def vjp(function: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function, and the function that takes gradients back through it.

    `value, pull = vjp(f, *primals)`; `pull(gradient)` takes the gradient of the value, in the
    value's containers, and returns a tuple with the gradient of each primal. It may be called many
    times. With `has_aux` the function returns a pair, whose second part is returned third.

    Raises `DTypeError` for primals or values that are no floats; `pull` raises `ShapeError` or
    `GradientError` for a gradient of another shape or in other containers.

    >>> import ferrule
    >>> value, pull = ferrule.vjp(lambda x, y: x * y, ferrule.Tensor(3.0), ferrule.Tensor(4.0))
    >>> [slope.item() for slope in pull(ferrule.Tensor(1.0))]
    [4.0, 3.0]
    """
    numbers = range(len(primals))
    trace, form, result, aux = traced("vjp", function, numbers, has_aux, primals, {})
    outputs = trace.differentiable(result)

    def pull(gradient: Any) -> Any:
        seeds = fitting("vjp", "gradient", gradient, outputs, result)
        return replaced(form, wrap(trace.pull(dict(enumerate(seeds)))))

    value = trace.leave(result)
    return (value, pull, trace.leave(aux)) if has_aux else (value, pull)


@explains
def jvp(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """The value of a function at some arguments, and its derivative along tangents of them.

    `primals` and `tangents` are tuples of as many arguments, alike in containers and shapes. With
    `has_aux` the function returns a pair, whose second part is returned third.

    Raises `DTypeError` for primals or values that are no floats, `ShapeError` for a tangent of
    another shape.

    >>> import ferrule
    >>> x, along = ferrule.Tensor([1.0, 2.0]), ferrule.Tensor([1.0, 0.0])
    >>> value, slope = ferrule.jvp(lambda x: x * x, (x,), (along,))
    >>> slope.tolist()
    [2.0, 0.0]
    """
    if not isinstance(primals, list | tuple) or not isinstance(tangents, list | tuple):
        raise GradientError(
            "[jvp] primals and tangents are tuples of the function's arguments: jvp(f, (x,), (t,))"
        )
    value, push, *aux = _linearized("jvp", function, primals, has_aux)
    return value, push(*tangents), *aux


@explains
def linearize(function: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function, and its derivative there as a function of tangents: see `jvp`.

    The function is called once, however often the derivative is.

    >>> import ferrule
    >>> value, push = ferrule.linearize(lambda x: x * x, ferrule.Tensor(3.0))
    >>> [push(ferrule.Tensor(along)).item() for along in (1.0, 2.0)]
    [6.0, 12.0]
    """
    return _linearized("linearize", function, primals, has_aux)


def _linearized(what: str, function: Function, primals: Sequence[Any], has_aux: bool) -> Any:
    numbers = range(len(primals))
    trace, form, result, aux = traced(what, function, numbers, has_aux, tuple(primals), {})
    trace.differentiable(result)
    linear = trace.linear()

    def push(*tangents: Any) -> Any:
        given = fitting(what, "tangent", tangents, trace.arguments, form)
        return replaced(result, wrap(linear.push(dict(enumerate(given)))))

    value = trace.leave(result)
    return (value, push, trace.leave(aux)) if has_aux else (value, push)
