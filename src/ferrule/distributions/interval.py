"""Distributions over an interval: uniform, beta, and relatives between 0 and 1."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import numpy as np

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Distribution, Parameter, clamped, epsilon
from ferrule.distributions.location import EULER
from ferrule.distributions.sampling import log_gamma_sample
from ferrule.tensor import Tensor


@final
class Uniform(Distribution):
    """The uniform distribution of numbers of at least `low` and below `high`.

    >>> from ferrule.distributions import Uniform
    >>> Uniform(0.0, 4.0).mean.item()
    2.0
    """

    arg_constraints: ClassVar = {"low": constraints.real, "high": constraints.real}
    has_rsample = True
    low: Tensor
    high: Tensor

    def __init__(self, low: Parameter, high: Parameter, validate_args: bool | None = None) -> None:
        are_numbers = not isinstance(low, Tensor) | isinstance(high, Tensor)
        if validate_args is not False and are_numbers and not np.less(low, high).all():
            raise ValueError(f"Uniform: low {low} is not below high {high}")
        self._set_up(validate_args, low=low, high=high)
        if self._validates and not (self.low < self.high).all().item():
            raise ValueError("Uniform: some values of low are not below those of high")

    @property
    def support(self) -> Constraint:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def mode(self) -> Tensor:
        return self.low.full_like(math.nan)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).square() / 12

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12)

    def _draw(self, shape: Shape) -> Tensor:
        like = self._parameter
        drawn = Tensor.rand(*shape, dtype=like.dtype, device=like.device)
        return self.low + drawn * (self.high - self.low)

    def _log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return inside.where(-(self.high - self.low).log(), -math.inf)

    def _cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def _icdf(self, value: Tensor) -> Tensor:
        return self.low + value * (self.high - self.low)

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class _Between(Distribution):
    """A distribution between 0 and 1 with two concentrations."""

    arg_constraints: ClassVar = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    has_rsample = True
    concentration1: Tensor
    concentration0: Tensor

    def __init__(
        self,
        concentration1: Parameter,
        concentration0: Parameter,
        validate_args: bool | None = None,
    ) -> None:
        self._set_up(validate_args, concentration1=concentration1, concentration0=concentration0)

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval


@final
class Beta(_Between):
    """The beta distribution, between 0 and 1.

    >>> from ferrule.distributions import Beta
    >>> Beta(1.0, 3.0).mean.item()
    0.25
    """

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside = (a > 1) | (b > 1)
        found = (a - 1).clamp(min=0) / inside.where((a - 1).clamp(min=0) + (b - 1).clamp(min=0), 1)
        edge = (a == b).where(a.full_like(math.nan), (a > b).cast(a.dtype))
        return inside.where(found, edge)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def _draw(self, shape: Shape) -> Tensor:
        first = log_gamma_sample(self.concentration1.expand(*shape))
        second = log_gamma_sample(self.concentration0.expand(*shape))
        return (first - second).sigmoid()

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return (a - 1).xlogy(value) + (b - 1).xlog1py(-value) - log_beta(a, b)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        slopes = (a - 1) * a.digamma() + (b - 1) * b.digamma()
        return log_beta(a, b) - slopes + (a + b - 2) * (a + b).digamma()


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of the beta function."""
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


@final
class Kumaraswamy(_Between):
    """The Kumaraswamy distribution: `cdf(x)` is `1 - (1 - x ** a) ** b`.

    a is `concentration1`, b is `concentration0`.

    >>> from ferrule.distributions import Kumaraswamy
    >>> Kumaraswamy(1.0, 1.0).mean.item()
    0.5
    """

    def _log_moment(self, n: int) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return b.log() + log_beta(1 + n / a, b)

    @property
    def mean(self) -> Tensor:
        return self._log_moment(1).exp()

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside = (a >= 1) & (b >= 1) & ~((a == 1) & (b == 1))
        ratio = inside.where((a - 1) / inside.where(a * b - 1, 1), 1)
        return inside.where(ratio ** (1 / a), math.nan)

    @property
    def variance(self) -> Tensor:
        return self._log_moment(2).exp() - self.mean.square()

    def _draw(self, shape: Shape) -> Tensor:
        drawn = self._icdf(self._uniform(shape))
        return drawn.clamp(0.0, 1 - epsilon(drawn.dtype) / 2)

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        rest = (-(value**a)).log1p()
        return a.log() + b.log() + (a - 1).xlogy(value) + (b == 1).where(0.0, (b - 1) * rest)

    def _cdf(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return -(b * (-(value**a)).log1p()).expm1()

    def _icdf(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return (-((-value).log1p() / b).expm1()) ** (1 / a)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - a.log() - b.log()


@final
class ContinuousBernoulli(Distribution):
    """The continuous Bernoulli distribution: `p ** x * (1 - p) ** (1 - x)` over its integral.

    Between the numbers `lims`, where the formulas lose their digits, they are replaced by series.
    Loaiza-Ganem and Cunningham, "The continuous Bernoulli" (2019).

    >>> from ferrule.distributions import ContinuousBernoulli
    >>> ContinuousBernoulli(0.5).mean.item()
    0.5
    """

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}
    has_rsample = True

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._one_of(probs=probs, logits=logits)
        self._lims = lims
        self._set_up(validate_args, probs=probs, logits=logits)
        if logits is None:
            self.probs = clamped(self.probs)
            self.logits = self.probs.logit()
        else:
            self.probs = self.logits.sigmoid()

    probs: Tensor
    logits: Tensor

    def _settings(self) -> dict[str, Any]:
        return {"lims": self._lims}

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval

    def _apart(self) -> tuple[Tensor, Tensor]:
        """True where the probability is not near 1/2, and the probability there."""
        low, high = self._lims
        apart = (self.probs <= low) | (self.probs > high)
        return apart, apart.where(self.probs, low)

    def _log_normalizer(self) -> Tensor:
        apart, p = self._apart()
        exact = ((-p).log1p() - p.log()).abs().log() - (1 - 2 * p).abs().log()
        x = (self.probs - 0.5).square()
        return apart.where(exact, math.log(2) + (4 / 3 + 104 / 45 * x) * x)

    @property
    def mean(self) -> Tensor:
        apart, p = self._apart()
        exact = p / (2 * p - 1) + 1 / ((-p).log1p() - p.log())
        x = self.probs - 0.5
        return apart.where(exact, 0.5 + (1 / 3 + 16 / 45 * x.square()) * x)

    @property
    def variance(self) -> Tensor:
        apart, p = self._apart()
        exact = p * (p - 1) / (1 - 2 * p).square() + 1 / ((-p).log1p() - p.log()).square()
        x = (self.probs - 0.5).square()
        return apart.where(exact, 1 / 12 - (1 / 15 - 128 / 945 * x) * x)

    def _draw(self, shape: Shape) -> Tensor:
        return self._icdf(self._uniform(shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        base = value * self.logits + (-self.logits).logsigmoid()
        return base + self._log_normalizer()

    def _cdf(self, value: Tensor) -> Tensor:
        apart, p = self._apart()
        power = p**value * (1 - p) ** (1 - value)
        exact = (power + p - 1) / (2 * p - 1)
        inside = apart.where(exact, value)
        return (value <= 0).where(0.0, (value >= 1).where(1.0, inside))

    def _icdf(self, value: Tensor) -> Tensor:
        apart, p = self._apart()
        logits = p.log() - (-p).log1p()
        exact = ((-p + value * (2 * p - 1)).log1p() - (-p).log1p()) / logits
        return apart.where(exact, value)

    def entropy(self) -> Tensor:
        log_rest = (-self.probs).log1p()
        return self.mean * (log_rest - self.probs.log()) - self._log_normalizer() - log_rest
