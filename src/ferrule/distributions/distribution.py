"""The base class of distributions: parameters of one shape, samples, and checks of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from ferrule.autograd import Shape
from ferrule.base.calls import explain_constructor, is_several
from ferrule.distributions.constraints import Constraint
from ferrule.ir.dtype import DType, dtypes, promote
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import broadcast_shape

Parameter: TypeAlias = Tensor | float
"""A parameter: a tensor, a NumPy array, or a number."""
Sizes: TypeAlias = Sequence[sint] | sint


class Distribution(ABC):
    """The base class of distributions.

    A distribution has a `batch_shape`, to which its parameters broadcast, and an `event_shape`, the
    shape of one sample. `sample(shape)` has the shape `shape + batch_shape + event_shape`, and
    `log_prob(value)` that of `value` without the axes of the event.

    Parameters may be tensors, arrays or numbers. Shapes, and numbers of Python, are checked in any
    case but `validate_args=False`. With `validate_args=True` the values of tensors are read and
    checked too, those of parameters at once, others by `log_prob` and `cdf`; a captured function
    can not do that.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Normal
    >>> Normal(Tensor.zeros(3), 1.0).sample((2,)).shape
    (2, 3)
    >>> Normal(0.0, -1.0)
    Traceback (most recent call last):
    ValueError: Normal: scale is -1.0; it must be positive
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    """The parameters, and what they must be."""
    has_rsample: ClassVar[bool] = False
    """True if gradients flow through `rsample` to the parameters."""
    has_enumerate_support: ClassVar[bool] = False
    """True if `enumerate_support` gives all values of a sample."""
    _by_default: ClassVar[bool | None] = None

    _batch_shape: Shape
    _event_shape: Shape
    _given: dict[str, Tensor]
    """The parameters that the constructor was given, expanded; the others are computed of them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_constructor(cls)

    def _set_up(self, validate_args: bool | None, **parameters: Parameter | None) -> None:
        """Keep the parameters that are not None, expanded to one batch shape."""
        self._validates = Distribution._by_default if validate_args is None else validate_args
        given = {name: value for name, value in parameters.items() if value is not None}
        if self._validates is not False:
            for name, value in given.items():
                self._check_number(name, value)
        tensors = as_tensors(given)
        dims = {name: self.arg_constraints[name].event_dim for name in given}
        what = type(self).__name__
        for name, tensor in tensors.items():
            if tensor.ndim < dims[name]:
                raise ShapeError(
                    f"{what}: {name} has the shape {tuple(tensor.shape)}; it has at least"
                    f" {dims[name]} axes"
                )
        parts = {name: split(tensor, dims[name]) for name, tensor in tensors.items()}
        self._batch_shape = tuple(broadcast_shape([batch for batch, _ in parts.values()], what))
        self._event_shape = ()
        self._given = {
            name: tensor.expand(*self._batch_shape, *parts[name][1])
            for name, tensor in tensors.items()
        }
        for name, tensor in self._given.items():
            if not isinstance(getattr(type(self), name, None), property):
                setattr(self, name, tensor)
        if self._validates:
            for name, tensor in tensors.items():
                self._check(self.arg_constraints[name], tensor, name)

    def _one_of(self, **parameters: object) -> None:
        """Raises `ValueError` unless one parameter of several is given."""
        given = [name for name, value in parameters.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"{type(self).__name__}: give one of {', '.join(parameters)}, not"
                f" {' and '.join(given) or 'none'}"
            )

    # Checks

    @staticmethod
    def set_default_validate_args(value: bool | None) -> None:
        """Set `validate_args` of all distributions that are made without it.

        >>> from ferrule.distributions import Distribution
        >>> Distribution.set_default_validate_args(None)
        """
        Distribution._by_default = value

    def _check_number(self, name: str, value: object) -> None:
        """Raises `ValueError` for a number of Python that a parameter can not be."""
        if isinstance(value, Real) and not isinstance(value, Tensor):
            constraint = self.arg_constraints[name]
            # The checks are written for NumPy's numbers, too.
            check: Callable[[Any], Any] = constraint.check
            if not constraint.event_dim and not check(np.float64(value)):
                raise ValueError(
                    f"{type(self).__name__}: {name} is {value}; it must be {constraint}"
                )

    def _check(self, constraint: Constraint, value: Tensor, name: str) -> None:
        if not constraint.check(value).all().item():
            raise ValueError(
                f"{type(self).__name__}: some values of {name}, of shape {tuple(value.shape)}, are"
                f" not {constraint}"
            )

    def _checked(self, value: Any) -> Tensor:
        """A value whose probability is asked for, as a tensor of this distribution's dtype."""
        tensor = value if isinstance(value, Tensor) else self._like(value)
        if self._validates is False:
            return tensor
        dims = len(self._event_shape)
        event = tuple(tensor.shape[tensor.ndim - dims :]) if tensor.ndim >= dims else None
        if event != tuple(self._event_shape):
            raise ShapeError(
                f"{type(self).__name__}: a value has the shape {tuple(tensor.shape)}; its last axes"
                f" are the event's, {tuple(self._event_shape)}"
            )
        broadcast_shape([split(tensor, dims)[0], self._batch_shape], type(self).__name__)
        if self._validates:
            self._check(self.support, tensor, "the value")
        return tensor

    def _like(self, value: Any) -> Tensor:
        """A value as a tensor of this distribution's dtype and device."""
        like = self._parameter
        return Tensor(value, dtype=like.dtype, device=like.device)

    @property
    def _parameter(self) -> Tensor:
        """One of the parameters: dtype and device are the same for all."""
        return next(iter(self._given.values()))

    # Shapes

    @property
    def batch_shape(self) -> Shape:
        """The shape of the parameters together."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one sample."""
        return self._event_shape

    def _sample_shape(self, sizes: Sizes) -> Shape:
        """The shape of samples."""
        leading = tuple(sizes) if is_several(sizes) else (sizes,)
        return (*leading, *self._batch_shape, *self._event_shape)

    def expand(self, batch_shape: Sizes) -> Self:
        """This distribution with parameters expanded to a batch shape.

        Raises `ShapeError` for a shape to which the present one does not broadcast.

        >>> from ferrule.distributions import Normal
        >>> Normal(0.0, 1.0).expand((2, 3)).batch_shape
        (2, 3)
        """
        shape = tuple(batch_shape) if is_several(batch_shape) else (batch_shape,)
        expanded = {
            name: tensor.expand(*shape, *split(tensor, self.arg_constraints[name].event_dim)[1])
            for name, tensor in self._given.items()
        }
        constructor: Any = type(self)
        found: Self = constructor(**expanded, **self._settings(), validate_args=self._not_again())
        return found

    def _settings(self) -> dict[str, Any]:
        """The arguments of the constructor that are no parameters."""
        return {}

    def _not_again(self) -> bool | None:
        """`validate_args` for a distribution whose parameters were checked."""
        return False if self._validates is False else None

    # Samples

    def sample(self, sample_shape: Sizes = ()) -> Tensor:
        """Random values, with `sample_shape` in front; no gradient flows through them.

        >>> from ferrule.distributions import Bernoulli
        >>> Bernoulli(1.0).sample((3,)).tolist()
        [1.0, 1.0, 1.0]
        """
        with Tensor.no_grad():
            return self._draw(self._sample_shape(sample_shape)).detach()

    def rsample(self, sample_shape: Sizes = ()) -> Tensor:
        """Random values through which gradients flow to the parameters.

        Raises `NotImplementedError` for a distribution whose `has_rsample` is false.

        >>> from ferrule import Tensor
        >>> from ferrule.distributions import Normal
        >>> mean = Tensor(1.0, requires_grad=True)
        >>> _ = Normal(mean, 1.0).rsample().backward()
        >>> mean.grad.item()
        1.0
        """
        if not self.has_rsample:
            raise NotImplementedError(
                f"{type(self).__name__} has no rsample: its samples have no gradient; use sample()"
                " and log_prob()"
            )
        return self._draw(self._sample_shape(sample_shape))

    @abstractmethod
    def _draw(self, shape: Shape) -> Tensor:
        """Samples of a shape, which ends in that of the batch and the event."""

    def _uniform(self, shape: Shape) -> Tensor:
        """Uniform random numbers above 0 and below 1."""
        like = self._parameter
        return uniform(shape, like.dtype, like.device)

    def _normal(self, shape: Shape) -> Tensor:
        like = self._parameter
        return Tensor.randn(*shape, dtype=like.dtype, device=like.device)

    # Probabilities

    @property
    def support(self) -> Constraint:
        """The values that samples have.

        >>> from ferrule.distributions import Exponential
        >>> Exponential(1.0).support
        at least 0
        """
        raise self._lacks("support")

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability, or of its density, at a value.

        >>> from ferrule.distributions import Uniform
        >>> Uniform(0.0, 0.5).log_prob(0.25).exp().item()
        2.0
        """
        return self._log_prob(self._checked(value))

    @abstractmethod
    def _log_prob(self, value: Tensor) -> Tensor:
        """`log_prob` of a value that was checked."""

    def cdf(self, value: Any) -> Tensor:
        """The probability of a sample of at most `value`.

        >>> from ferrule.distributions import Uniform
        >>> Uniform(0.0, 4.0).cdf(1.0).item()
        0.25
        """
        return self._cdf(self._checked(value))

    def _cdf(self, value: Tensor) -> Tensor:
        raise self._lacks("cdf")

    def icdf(self, value: Any) -> Tensor:
        """The number that a sample is below with the probability `value`: `cdf` inverted.

        >>> from ferrule.distributions import Uniform
        >>> Uniform(0.0, 4.0).icdf(0.25).item()
        1.0
        """
        return self._icdf(value if isinstance(value, Tensor) else self._like(value))

    def _icdf(self, value: Tensor) -> Tensor:
        raise self._lacks("icdf")

    def entropy(self) -> Tensor:
        """The mean of `-log_prob` of samples, for each distribution of the batch.

        >>> from ferrule.distributions import Uniform
        >>> Uniform(0.0, 1.0).entropy().item()
        0.0
        """
        raise self._lacks("entropy")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a sample along a new first axis, for each distribution of the batch.

        >>> from ferrule.distributions import Bernoulli
        >>> Bernoulli(0.5).enumerate_support().tolist()
        [0.0, 1.0]
        """
        raise self._lacks("enumerate_support")

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """Values along the first axis, with axes for the batch."""
        shape = (-1, *[1] * len(self._batch_shape), *values.shape[1:])
        found = values.reshape(*shape)
        if not expand:
            return found
        return found.expand(-1, *self._batch_shape, *values.shape[1:])

    # Moments

    @property
    def mean(self) -> Tensor:
        """The mean of samples."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance of samples."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of samples."""
        return self.variance.sqrt()

    def perplexity(self) -> Tensor:
        """The exponential of the entropy.

        >>> from ferrule.distributions import Uniform
        >>> Uniform(0.0, 1.0).perplexity().item()
        1.0
        """
        return self.entropy().exp()

    def _lacks(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {name}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {tuple(value.shape)}" for name, value in self._given.items())
        return f"{type(self).__name__}({shown})"


def as_tensors(given: dict[str, Any]) -> dict[str, Tensor]:
    """Parameters as tensors of one float dtype; numbers take that of the tensors."""
    arrays = (np.ndarray, np.generic)
    found = {n: Tensor(v) if isinstance(v, arrays) else v for n, v in given.items()}
    tensors = [value for value in found.values() if isinstance(value, Tensor)]
    chosen: DType | None = None
    for tensor in tensors:
        chosen = tensor.dtype if chosen is None else promote(chosen, tensor.dtype)
    if chosen is None or not dtypes.is_float(chosen):
        chosen = dtypes.default_float
    device = tensors[0].device if tensors else None
    return {
        name: value.cast(chosen)
        if isinstance(value, Tensor)
        else Tensor(value, dtype=chosen, device=device)
        for name, value in found.items()
    }


def split(tensor: Tensor, event_dim: int) -> tuple[Shape, Shape]:
    """The shape of the batch, and that of the event, which is in the last axes."""
    place = tensor.ndim - event_dim
    return tuple(tensor.shape[:place]), tuple(tensor.shape[place:])


def uniform(shape: Shape, dtype: DType, device: str) -> Tensor:
    """Uniform random numbers above 0 and below 1, so that all logarithms are finite."""
    # `rand` gives multiples of 2**-(bits of the mantissa + 1), 0 among them.
    return Tensor.rand(*shape, dtype=dtype, device=device).clamp(2.0 ** -(dtype.mantissa_bits + 2))


def summed(value: Tensor, dims: int) -> Tensor:
    """The sum over the last axes."""
    return value.sum(tuple(range(-dims, 0))) if dims else value


def epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    return 2.0**-dtype.mantissa_bits


def clamped(probs: Tensor) -> Tensor:
    """Probabilities that are not 0 or 1, by the precision of their dtype."""
    eps = epsilon(probs.dtype)
    return probs.clamp(eps, 1 - eps)
