"""Distributions made of others: transformed, mixed, and with axes of the batch as the event's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

from ferrule.autograd import Shape
from ferrule.base.calls import is_several
from ferrule.distributions import constraints
from ferrule.distributions.categorical import Categorical
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Distribution, Sizes, summed
from ferrule.distributions.transforms import ComposeTransform, Transform
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size


class _Made(Distribution):
    """A distribution without parameters of its own."""

    def _take_from(self, base: Distribution, validate_args: bool | None) -> None:
        self._given = {}
        self._validates = Distribution._by_default if validate_args is None else validate_args
        self.base_dist = base

    @property
    def _parameter(self) -> Tensor:
        return self.base_dist._parameter


@final
class Independent(_Made):
    """A distribution whose last axes of the batch are axes of the event: `log_prob` sums over them.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Independent, Normal
    >>> pixels = Independent(Normal(Tensor.zeros(2, 3), 1.0), 1)
    >>> pixels.batch_shape, pixels.event_shape, pixels.log_prob(Tensor.zeros(2, 3)).shape
    ((2,), (3,), (2,))
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        dims = reinterpreted_batch_ndims
        whole = base_distribution.batch_shape
        if not 0 <= dims <= len(whole):
            raise ShapeError(
                f"Independent: reinterpreted_batch_ndims is {dims}, and the batch has"
                f" {len(whole)} axes, {tuple(whole)}"
            )
        self._take_from(base_distribution, validate_args)
        self.reinterpreted_batch_ndims = dims
        self._batch_shape = tuple(whole[: len(whole) - dims])
        self._event_shape = (*whole[len(whole) - dims :], *base_distribution.event_shape)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Constraint:
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def expand(self, batch_shape: Sizes) -> Self:
        shape = tuple(batch_shape) if is_several(batch_shape) else (batch_shape,)
        whole = self.base_dist.batch_shape
        own = whole[len(whole) - self.reinterpreted_batch_ndims :]
        base = self.base_dist.expand([*shape, *own])
        return type(self)(base, self.reinterpreted_batch_ndims, self._not_again())

    def _draw(self, shape: Shape) -> Tensor:
        return self.base_dist._draw(shape)

    def _log_prob(self, value: Tensor) -> Tensor:
        return summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


@final
class MixtureSameFamily(_Made):
    """A mixture: a distribution whose last axis of the batch has the components, one is chosen.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Categorical, MixtureSameFamily, Normal
    >>> weights, means = Tensor([0.25, 0.75]), Tensor([0.0, 4.0])
    >>> MixtureSameFamily(Categorical(weights), Normal(means, 1.0)).mean.item()
    3.0
    """

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise TypeError(
                "MixtureSameFamily: mixture_distribution is a Categorical, not"
                f" {type(mixture_distribution).__name__}"
            )
        whole = tuple(component_distribution.batch_shape)
        number = mixture_distribution.param_shape[-1]
        if not whole or whole[-1] != number:
            raise ShapeError(
                f"MixtureSameFamily: the batch of components is {whole}; its last axis has the"
                f" {number} of the mixture"
            )
        self._take_from(component_distribution, validate_args)
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        self._batch_shape = whole[:-1]
        self._event_shape = component_distribution.event_shape
        mixed = tuple(mixture_distribution.batch_shape)
        if mixed not in ((), self._batch_shape):
            raise ShapeError(
                f"MixtureSameFamily: the batch of the mixture is {mixed}, and that of the"
                f" components {whole}"
            )

    @property
    def support(self) -> Constraint:
        return self.component_distribution.support

    def _over_events(self, weights: Tensor) -> Tensor:
        """Weights of components with axes for the event."""
        return weights.reshape(*weights.shape, *[1] * len(self._event_shape))

    def _mixed(self, values: Tensor) -> Tensor:
        """The mean of values of the components."""
        axis = -1 - len(self._event_shape)
        return (self._over_events(self.mixture_distribution.probs) * values).sum(axis)

    @property
    def mean(self) -> Tensor:
        return self._mixed(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        axis = -1 - len(self._event_shape)
        apart = (self.component_distribution.mean - self.mean.unsqueeze(axis)).square()
        return self._mixed(self.component_distribution.variance + apart)

    def expand(self, batch_shape: Sizes) -> Self:
        shape = tuple(batch_shape) if is_several(batch_shape) else (batch_shape,)
        number = self.component_distribution.batch_shape[-1]
        components = self.component_distribution.expand((*shape, number))
        return type(self)(self.mixture_distribution.expand(shape), components, self._not_again())

    def _draw(self, shape: Shape) -> Tensor:
        events = len(self._event_shape)
        batch = shape[: len(shape) - events]
        number = known_size(self.component_distribution.batch_shape[-1], "MixtureSameFamily")
        chosen = self.mixture_distribution._draw(batch)
        drawn = self.component_distribution._draw((*batch, number, *self._event_shape))
        mask = self._over_events(chosen.one_hot(number).bool())
        return mask.where(drawn, 0).sum(-1 - events).cast(drawn.dtype)

    def _joint(self, value: Tensor) -> Tensor:
        return value.unsqueeze(-1 - len(self._event_shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        found = self.component_distribution.log_prob(self._joint(value))
        return (found + self.mixture_distribution.logits).logsumexp(-1)

    def _cdf(self, value: Tensor) -> Tensor:
        found = self.component_distribution.cdf(self._joint(value))
        return (found * self.mixture_distribution.probs).sum(-1)

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self.mixture_distribution!r}, {self.component_distribution!r})"


class TransformedDistribution(_Made):
    """The distribution of a function of a random value; the function is one or several transforms.

    >>> from ferrule.distributions import Normal, TransformedDistribution
    >>> from ferrule.distributions.transforms import ExpTransform
    >>> TransformedDistribution(Normal(0.0, 1.0), ExpTransform()).cdf(1.0).item()
    0.5
    """

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        for part in self.transforms:
            if not isinstance(part, Transform):
                raise TypeError(
                    f"TransformedDistribution: transforms has a {type(part).__name__}, which is no"
                    " Transform"
                )
        whole = ComposeTransform(self.transforms)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        if len(shape) < whole.domain.event_dim:
            raise ShapeError(
                f"TransformedDistribution: the transforms take {whole.domain.event_dim} axes, and"
                f" samples have {len(shape)}"
            )
        # Axes of the batch that the transforms take together belong to the event.
        more = max(whole.domain.event_dim - len(base_distribution.event_shape), 0)
        base = Independent(base_distribution, more) if more else base_distribution
        self._take_from(base, validate_args)
        self._transform = whole
        self._last: tuple[Tensor, Tensor] | None = None
        """The last sample's value of the base, and the sample, if transforms ask for that."""
        found = whole.forward_shape(shape)
        gained = whole.codomain.event_dim - whole.domain.event_dim
        events = max(len(base.event_shape) + gained, whole.codomain.event_dim)
        self._batch_shape = tuple(found[: len(found) - events])
        self._event_shape = tuple(found[len(found) - events :])

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Constraint:
        codomain = self._transform.codomain
        return constraints.independent(codomain, len(self._event_shape) - codomain.event_dim)

    def expand(self, batch_shape: Sizes) -> Self:
        base: Any = self.base_dist.expand(batch_shape)
        return type(self)(base, self.transforms, self._not_again())

    def _draw(self, shape: Shape) -> Tensor:
        x = self.base_dist._draw(self._transform.inverse_shape(shape))
        y = self._transform(x)
        self._last = (x, y) if self._transform.cache_size else None
        return y

    def sample(self, sample_shape: Sizes = ()) -> Tensor:
        found = super().sample(sample_shape)
        if self._last is not None:
            self._last = self._last[0].detach(), found
        return found

    def _log_prob(self, value: Tensor) -> Tensor:
        is_last = self._last is not None and self._last[1] is value
        x = self._last[0] if self._last and is_last else self._transform._inverse(value)
        found = self._transform.log_abs_det_jacobian(x, value)
        more = len(self._event_shape) - self._transform.codomain.event_dim
        return self.base_dist.log_prob(x) - summed(found, more)

    def _turned(self, probability: Tensor) -> Tensor:
        """A probability, or the rest to 1 where the transforms fall."""
        sign = self._transform.sign
        if isinstance(sign, int):
            return probability if sign > 0 else 1 - probability
        return sign * (probability - 0.5) + 0.5

    def _cdf(self, value: Tensor) -> Tensor:
        return self._turned(self.base_dist.cdf(self._transform._inverse(value)))

    def _icdf(self, value: Tensor) -> Tensor:
        return self._transform(self.base_dist.icdf(self._turned(value)))

    def __repr__(self) -> str:
        return f"TransformedDistribution({self.base_dist!r}, {self.transforms!r})"
