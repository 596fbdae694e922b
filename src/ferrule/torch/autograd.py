"""Gradients under the names of `torch.autograd`: `grad`, and functions with slopes of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, final

from ferrule.tensor import Tensor
from ferrule.transforms import custom_vjp


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of the sum of outputs with respect to inputs; no `.grad` is changed.

    `grad_outputs` are the gradients of the outputs, which may be left out for one number.
    `retain_graph` changes nothing: graphs are kept as long as their tensors.

    Raises `GradientError` for an input that an output does not depend on.

    >>> from ferrule import torch
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    >>> slope.tolist(), torch.autograd.grad(slope.sum(), x)[0].tolist()
    ([27.0], [18.0])
    """
    targets, results = _listed(inputs), _listed(outputs)
    slopes = [None] * len(results) if grad_outputs is None else _listed(grad_outputs)
    parts = [
        result if slope is None else (result * slope).sum()
        for result, slope in zip(results, slopes, strict=True)
    ]
    return tuple(sum(parts[1:], parts[0]).gradient(*targets, create_graph=create_graph))


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, tuple | list) else [given]


@final
class FunctionContext:
    """What the forward part of a `Function` leaves for the backward part."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors as `saved_tensors`; gradients of second order flow through them."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """Nothing to do: the backward part says what has no gradient by None."""

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing to do: gradients that are zero take no memory."""


class Function:
    """The base class of functions with a backward part of one's own; call them by `apply`.

    `forward(ctx, *args)` computes, and keeps tensors by `ctx.save_for_backward` and other things as
    attributes of `ctx`; or `forward(*args)` computes and `setup_context(ctx, inputs, output)`
    keeps. `backward(ctx, *gradients)` returns a gradient for each argument, or None. Raises
    `GradientError` for another number of them.

    >>> from ferrule import torch
    >>> class Cube(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return gradient * 3 * x**2
    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> _ = Cube.apply(x).sum().backward()
    >>> x.grad.tolist()
    [12.0]
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        """Compute; see the class."""
        raise NotImplementedError("a torch.autograd.Function needs a static method forward")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of the arguments; see the class."""
        raise NotImplementedError("a torch.autograd.Function needs a static method backward")

    setup_context: Any = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function.

        >>> from ferrule import torch
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * 2
        >>> Double.apply(torch.ones(2)).tolist()
        [2.0, 2.0]
        """
        needs = tuple(isinstance(arg, Tensor) and bool(arg.requires_grad) for arg in args)

        def forward(*args: Any) -> tuple[Any, tuple[FunctionContext, tuple[Any, ...]]]:
            ctx = FunctionContext(needs)
            if cls.setup_context is None:
                result = cls.forward(ctx, *args)
            else:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
            return result, (ctx, ctx.saved_tensors)

        def backward(kept: tuple[FunctionContext, tuple[Any, ...]], slopes: Any) -> tuple[Any, ...]:
            ctx = copy(kept[0])
            ctx.saved_tensors = kept[1]
            return tuple(_listed(cls.backward(ctx, *_listed(slopes))))

        def value(*args: Any) -> Any:
            return forward(*args)[0]

        value.__name__ = cls.__name__
        function = custom_vjp(value)
        function.defvjp(forward, backward)
        return function(*args)
