"""`Parameter`; the initial values of layers, which are PyTorch's; checks that layers share."""

from __future__ import annotations

from math import prod, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.base.calls import whole
from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.data import DTypeLike, to_dtype


class _ParameterType(type):
    """The type of `Parameter`, whose instances are plain tensors."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.requires_grad is True

    def __call__(cls, data: Any, requires_grad: bool = True) -> Tensor:
        tensor = data.detach() if isinstance(data, Tensor) else Tensor(data)
        return tensor.requires_grad_(requires_grad)


if TYPE_CHECKING:

    class Parameter(Tensor):  # type: ignore[misc]
        """To type checkers, a class of tensors."""

        def __init__(self, data: Any, requires_grad: bool = True) -> None: ...

else:

    class Parameter(metaclass=_ParameterType):
        """`Parameter(tensor)` is a tensor in the same memory that collects gradients.

        It is a plain `Tensor` whose `requires_grad` is set, and in an attribute of a `Module` a
        parameter. `isinstance(x, Parameter)` is true for tensors that collect gradients.

        Raises `TypeError` for data that is no tensor, array or list, and an error for integers.

        >>> from ferrule import Tensor, nn
        >>> weight = nn.Parameter(Tensor.zeros(2))
        >>> weight.requires_grad, isinstance(weight, nn.Parameter)
        (True, True)
        """


def check_sizes(layer: object, **sizes: int) -> None:
    """Raises for sizes of a layer that are no whole numbers of at least 0."""
    for name, size in sizes.items():
        whole(size, f"{type(layer).__name__}: {name}")
        if size < 0:
            raise ShapeError(f"{type(layer).__name__}: {name} is {size}; it must be at least 0")


def check_counts(layer: object, **counts: int) -> None:
    """Raises for settings of a layer that are no whole numbers of at least 1."""
    check_sizes(layer, **counts)
    for name, count in counts.items():
        if count < 1:
            raise ShapeError(f"{type(layer).__name__}: {name} is {count}; it must be at least 1")


def check_number(layer: object, name: str, value: object) -> None:
    """Raises `TypeError` for a setting that is no number."""
    if not isinstance(value, Real):
        raise TypeError(f"{type(layer).__name__}: {name} is {value!r}; it must be a number")


def check_chance(layer: object, name: str, value: float) -> None:
    """Raises for a setting that is no probability."""
    check_number(layer, name, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{type(layer).__name__}: {name} is {value}; it must be from 0 to 1")


def uniform(
    shape: tuple[int, ...], bound: float, dtype: DTypeLike | None, device: str | None
) -> Tensor:
    """A parameter that is spread evenly between -bound and bound."""
    values = Tensor.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device)
    return values.requires_grad_()


def inverse_root(fan_in: int) -> float:
    """1 / sqrt(fan_in), the bound of most parameters; 0 if `fan_in` is 0."""
    return 1 / sqrt(fan_in) if fan_in else 0.0


def glorot_uniform(shape: tuple[int, int], dtype: DTypeLike | None, device: str | None) -> Tensor:
    """A matrix whose bound is sqrt(6 / (rows + columns)).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks"
    (2010).
    """
    return uniform(shape, sqrt(6 / sum(shape)), dtype, device)


def _filled(
    shape: tuple[int, ...], value: float, dtype: DTypeLike | None, device: str | None
) -> Tensor:
    """A tensor with memory of its own; copied from the host, it needs no kernel."""
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    return Tensor(np.full(shape, value, kind.np), device=device)


def constant(
    shape: tuple[int, ...], value: float, dtype: DTypeLike | None, device: str | None
) -> Tensor:
    """A parameter that starts with the same value everywhere."""
    return _filled(shape, value, dtype, device).requires_grad_()


def statistic(
    shape: tuple[int, ...], value: float, dtype: DTypeLike | None, device: str | None
) -> Tensor:
    """A tensor that is saved with the parameters, and that optimisers leave alone."""
    return _filled(shape, value, dtype, device).requires_grad_(False)


def filter_weights(
    shape: tuple[int, ...], outputs: int, bias: bool, dtype: DTypeLike | None, device: str | None
) -> tuple[Tensor, Tensor | None]:
    """Filters and a bias; their bound follows from the product of the second and later axes."""
    bound = inverse_root(prod(shape[1:]))
    weight = uniform(shape, bound, dtype, device)
    return weight, uniform((outputs,), bound, dtype, device) if bias else None
