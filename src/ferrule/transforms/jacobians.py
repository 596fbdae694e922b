"""Matrices of derivatives: Jacobians, column by column or row by row, and Hessians."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ferrule.autograd import TracedValue
from ferrule.base.calls import explains
from ferrule.base.helpers import check_function
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.transforms.batching import Batch
from ferrule.transforms.derivatives import Function, traced
from ferrule.transforms.trace import replaced


@explains
def jacrev(function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The function that gives the Jacobian of `function`, row by row: by gradients of each output.

    For an output of shape (A) and an argument of shape (B) it has the shape (A, B), in the
    containers of the outputs, and in these of the arguments. It takes one backward pass, over as
    many lanes as outputs: the way if these are fewer than the arguments' elements.

    Raises `DTypeError`, `ShapeError` as `grad` and `vmap` do.

    >>> import ferrule
    >>> ferrule.jacrev(lambda x: x * x)(ferrule.Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    check_function(function, "jacrev")

    @functools.wraps(function)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        trace, form, result, aux = traced("jacrev", function, argnums, has_aux, args, kwargs)
        outputs = trace.differentiable(result)
        by_output: list[Any] = []
        for number, output in enumerate(outputs):
            lanes, basis = _basis(output, "jacrev")
            rows = lanes.leave(trace.pull({number: lanes.enter(basis)}))
            blocks = [Tensor._wrap(row.reshape((*output.shape, *row.shape[1:]))) for row in rows]
            by_output.append(replaced(form, blocks))
        found = replaced(result, by_output)
        return (found, trace.leave(aux)) if has_aux else found

    return jacobian


jacobian = jacrev


@explains
def jacfwd(function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The function that gives the Jacobian of `function`, column by column: see `jacrev`.

    It takes one pass forwards, over as many lanes as the arguments have elements: the way if these
    are fewer than the outputs.

    >>> import ferrule
    >>> ferrule.jacfwd(lambda x: x * x)(ferrule.Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    check_function(function, "jacfwd")

    @functools.wraps(function)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        trace, form, result, aux = traced("jacfwd", function, argnums, has_aux, args, kwargs)
        trace.differentiable(result)
        linear = trace.linear()
        by_argument: list[list[Tensor]] = []
        for number, argument in enumerate(trace.arguments):
            lanes, basis = _basis(argument, "jacfwd")
            columns = lanes.leave(linear.push({number: lanes.enter(basis)}))
            by_argument.append([_last(column, argument) for column in columns])
        by_output = [replaced(form, blocks) for blocks in zip(*by_argument, strict=True)]
        found = replaced(result, by_output)
        return (found, trace.leave(aux)) if has_aux else found

    return jacobian


@explains
def hessian(function: Function, argnums: int | Sequence[int] = 0) -> Function:
    """The function that gives the second derivatives of `function`: forwards over backwards.

    For an argument of shape (A) and a result of one element without axes it has the shape (A, A);
    with several arguments, a tuple for the first derivative of tuples for the second.

    >>> import ferrule
    >>> ferrule.hessian(lambda x: x.prod())(ferrule.Tensor([2.0, 3.0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return jacfwd(jacrev(function, argnums), argnums)


def _basis(value: TracedValue, what: str) -> tuple[Batch, TracedValue]:
    """One lane for each element; in each a tensor with 1 at the element and 0 elsewhere."""
    size = 1
    for length in value.shape:
        if not isinstance(length, int):
            raise ShapeError(f"[{what}] a Jacobian needs known sizes, not {value.shape}")
        size *= length
    eye = Tensor.eye(size, dtype=value.dtype, device=value.node.device)
    return Batch(size), eye._read().reshape((size, *value.shape))


def _last(column: TracedValue, argument: TracedValue) -> Tensor:
    """The column with its axis of lanes moved behind the others, in the argument's shape."""
    rank = len(column.shape)
    turned = column.permute((*range(1, rank), 0))
    return Tensor._wrap(turned.reshape((*turned.shape[:-1], *argument.shape)))
