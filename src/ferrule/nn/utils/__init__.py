"""Gradient clipping, between `backward()` and `step()`; parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

from ferrule.base.calls import explains
from ferrule.base.helpers import no_attribute
from ferrule.ir.dtype import dtypes, promote
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.optim.groups import OptimizerError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "rnn",
    "vector_to_parameters",
]


def _tensors(given: Tensor | Iterable[Tensor], what: str) -> list[Tensor]:
    """Tensors, one or several of which were given."""
    if not isinstance(given, Tensor | Iterable):
        kind = type(given).__name__
        raise TypeError(f"{what}: {kind} is no list of tensors; see nn.state.get_parameters(model)")
    found = [given] if isinstance(given, Tensor) else list(given)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise TypeError(f"{what}: {kind} is no tensor; pass nn.state.get_parameters(model)")
    return found


def _check_bound(what: str, name: str, value: float) -> None:
    if not isinstance(value, Tensor) and not (isinstance(value, Real) and value >= 0):
        raise ValueError(f"{what}: {name} is {value!r}; it must be a number of at least 0")


def _check_order(what: str, order: float) -> None:
    if not isinstance(order, Real) or not order > 0:
        raise ValueError(f"{what}: norm_type is {order!r}; it must be a number above 0")


def _with_gradients(
    parameters: Tensor | Iterable[Tensor], what: str
) -> list[tuple[Tensor, Tensor]]:
    """The parameters that have a gradient, and these."""
    pairs = [(parameter, parameter.grad) for parameter in _tensors(parameters, what)]
    return [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]


def _wide(gradient: Tensor) -> Tensor:
    """The gradient in float32 at least, since squares of narrower floats overflow early."""
    return gradient.cast(promote(gradient.dtype, dtypes.float32))


def _norm(value: Tensor, order: float) -> Tensor:
    """The norm of all elements, of any order above 0, also infinity."""
    if order == inf:
        return value.abs().max()
    if order == 2:
        return value.square().sum().sqrt()
    return value.abs().pow(order).sum().pow(1 / order)


@explains
def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all elements of all tensors together, lazily.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils import get_total_norm
    >>> get_total_norm([Tensor([3.0]), Tensor([[4.0]])]).item()
    5.0
    """
    _check_order("get_total_norm", norm_type)
    return _total(_tensors(tensors, "get_total_norm"), norm_type)


def _total(tensors: list[Tensor], order: float) -> Tensor:
    if not tensors:
        return Tensor(0.0)
    norms = [_norm(_wide(tensor), order) for tensor in tensors]
    return _norm(Tensor.stack(*[norm.to(norms[0].device) for norm in norms]), order)


@explains
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

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils import clip_grad_norm_
    >>> weight = Tensor([3.0, 4.0], requires_grad=True)
    >>> _ = (weight * weight / 2).sum().backward()
    >>> clip_grad_norm_([weight], max_norm=1.0).item()
    5.0
    >>> [round(value, 4) for value in weight.grad.tolist()]
    [0.6, 0.8]
    """
    _check_bound("clip_grad_norm_", "max_norm", max_norm)
    _check_order("clip_grad_norm_", norm_type)
    with Tensor.no_grad():
        found = _with_gradients(parameters, "clip_grad_norm_")
        total = _total([gradient for _, gradient in found], norm_type)
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


@explains
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limits every element of all gradients to [-clip_value, clip_value].

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils import clip_grad_value_
    >>> weight = Tensor([3.0, -4.0], requires_grad=True)
    >>> _ = (weight * weight).sum().backward()
    >>> clip_grad_value_(weight, 7.0)
    >>> weight.grad.tolist()
    [6.0, -7.0]
    """
    _check_bound("clip_grad_value_", "clip_value", clip_value)
    with Tensor.no_grad():
        for parameter, gradient in _with_gradients(parameters, "clip_grad_value_"):
            parameter.grad = gradient.clamp(-clip_value, clip_value)


@explains
def parameters_to_vector(parameters: Tensor | Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after another: a new vector, which gradients go through.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils import parameters_to_vector
    >>> parameters_to_vector([Tensor([[1.0, 2.0]]), Tensor(3.0)]).tolist()
    [1.0, 2.0, 3.0]
    """
    found = _tensors(parameters, "parameters_to_vector")
    if not found:
        raise ValueError("parameters_to_vector: there are no parameters")
    return Tensor.cat(*(parameter.reshape(-1) for parameter in found))


@explains
def vector_to_parameters(vec: Tensor, parameters: Tensor | Iterable[Tensor]) -> None:
    """Writes the elements of a vector into the parameters, in place, one after another.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils import vector_to_parameters
    >>> weight, bias = Tensor([[1.0, 2.0]]), Tensor(3.0)
    >>> vector_to_parameters(Tensor([4.0, 5.0, 6.0]), [weight, bias])
    >>> weight.tolist(), bias.tolist()
    ([[4.0, 5.0]], 6.0)
    """
    found = _tensors(parameters, "vector_to_parameters")
    (vector,) = _tensors(vec, "vector_to_parameters")
    sizes = [known_size(parameter.numel(), "vector_to_parameters") for parameter in found]
    if vector.shape != (sum(sizes),):
        raise ShapeError(
            f"vector_to_parameters: {tuple(vector.shape)} is not the shape of all parameters in one"
            f" vector, ({sum(sizes)},)"
        )
    with Tensor.no_grad():
        for parameter, part in zip(found, vector.split(sizes), strict=True):
            parameter.assign(part.reshape(*parameter.shape).cast(parameter.dtype))
    Tensor.realize(*found)


# What newcomers look for, and what does it here.
_INSTEAD = {
    "clip_grad_norm": "clip_grad_norm_ scales the gradients in place",
    "clip_grad_value": "clip_grad_value_ limits the gradients in place",
    "prune": "multiply by a mask: weight.mul_(weight.abs() > threshold)",
    "spectral_norm": "nn.utils.parametrizations.spectral_norm(layer) does it",
    "weight_norm": "nn.utils.parametrizations.weight_norm(layer) does it",
}


if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in ("parametrizations", "parametrize", "rnn"):
            return import_module(f"{__name__}.{name}")
        raise no_attribute(__name__, name, __all__, _INSTEAD)
