"""Gradients kept in bounds, between `backward()` and `step()`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from ferrule.dtype import dtypes, promote
from ferrule.nn.optim.groups import OptimizerError
from ferrule.tensor import Tensor


def _with_gradients(
    parameters: Tensor | Iterable[Tensor], what: str
) -> list[tuple[Tensor, Tensor]]:
    """The parameters that have a gradient, and these."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in given:
        if not isinstance(parameter, Tensor):
            kind = type(parameter).__name__
            raise TypeError(f"{what}: {kind} is no tensor; pass nn.state.get_parameters(model)")
    pairs = [(parameter, parameter.grad) for parameter in given]
    return [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]


def _wide(gradient: Tensor) -> Tensor:
    """Squares of halves overflow early, so norms are taken in float32."""
    return gradient.cast(promote(gradient.dtype, dtypes.float32))


def _norm(value: Tensor, order: float) -> Tensor:
    """The norm of all elements, of any order above 0, also infinity."""
    if order == inf:
        return value.abs().max()
    if order == 2:
        return value.square().sum().sqrt()
    return value.abs().pow(order).sum().pow(1 / order)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scales all gradients by one factor, so that their norm together is at most `max_norm`.

    Returns the norm before, lazily; parameters without a gradient do not count. Works in a
    captured function, but for `error_if_nonfinite`, which reads the norm and raises
    `OptimizerError` if it is infinite or NaN.

    >>> weight = Tensor([3.0, 4.0], requires_grad=True)
    >>> _ = (weight * weight / 2).sum().backward()
    >>> clip_grad_norm_([weight], max_norm=1.0).item()
    5.0
    >>> [round(value, 4) for value in weight.grad.tolist()]
    [0.6, 0.8]
    """
    with Tensor.no_grad():
        found = _with_gradients(parameters, "clip_grad_norm_")
        if not found:
            return Tensor(0.0)
        norms = [_norm(_wide(gradient), norm_type) for _, gradient in found]
        total = _norm(Tensor.stack(*[norm.to(norms[0].device) for norm in norms]), norm_type)
        if error_if_nonfinite and not total.isfinite().item():
            raise OptimizerError(
                f"clip_grad_norm_: the norm of the gradients is {total.item()}; look for the"
                " infinite or NaN one, or pass error_if_nonfinite=False"
            )
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for parameter, gradient in found:
            scaled = _wide(gradient) * factor.to(gradient.device)
            parameter.grad = scaled.cast(gradient.dtype)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limits every element of all gradients to [-clip_value, clip_value].

    >>> weight = Tensor([3.0, -4.0], requires_grad=True)
    >>> _ = (weight * weight).sum().backward()
    >>> clip_grad_value_(weight, 7.0)
    >>> weight.grad.tolist()
    [6.0, -7.0]
    """
    with Tensor.no_grad():
        for parameter, gradient in _with_gradients(parameters, "clip_grad_value_"):
            parameter.grad = gradient.clamp(-clip_value, clip_value)
