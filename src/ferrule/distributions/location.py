"""Distributions over all real numbers, by a location and a scale; von Mises, on a circle."""

from __future__ import annotations

import math
from typing import ClassVar, final

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Distribution, Parameter
from ferrule.distributions.sampling import log_gamma_sample, von_mises_sample
from ferrule.tensor import Tensor

_LOG_TWO_PI = math.log(2 * math.pi)
EULER = 0.57721566490153286060


class _LocationScale(Distribution):
    """A standard distribution, scaled and moved. The subclass has its functions."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, loc=loc, scale=scale)

    @property
    def support(self) -> Constraint:
        return constraints.real

    def _draw(self, shape: Shape) -> Tensor:
        return self.loc + self.scale * self._standard(shape)

    def _standard(self, shape: Shape) -> Tensor:
        """Samples with the location 0 and the scale 1."""
        return self._quantile(self._uniform(shape))

    def _quantile(self, probability: Tensor) -> Tensor:
        """`icdf` with the location 0 and the scale 1."""
        raise self._lacks("icdf")

    def _icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * self._quantile(value)

    def _scaled(self, value: Tensor) -> Tensor:
        return (value - self.loc) / self.scale

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


@final
class Normal(_LocationScale):
    """The normal distribution with the mean `loc` and the standard deviation `scale`.

    >>> from ferrule.distributions import Normal
    >>> round(Normal(0.0, 1.0).log_prob(0.0).item(), 4)
    -0.9189
    """

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    @property
    def stddev(self) -> Tensor:
        return self.scale

    def _standard(self, shape: Shape) -> Tensor:
        return self._normal(shape)

    def _quantile(self, probability: Tensor) -> Tensor:
        return math.sqrt(2) * (2 * probability - 1).erfinv()

    def _log_prob(self, value: Tensor) -> Tensor:
        return -self._scaled(value).square() / 2 - self.scale.log() - _LOG_TWO_PI / 2

    def _cdf(self, value: Tensor) -> Tensor:
        return self._scaled(value).ndtr()

    def entropy(self) -> Tensor:
        return 0.5 + _LOG_TWO_PI / 2 + self.scale.log()


@final
class Laplace(_LocationScale):
    """The Laplace distribution: `exp(-|x - loc| / scale) / (2 * scale)`.

    >>> from ferrule.distributions import Laplace
    >>> Laplace(1.0, 0.25).log_prob(1.0).exp().item()
    2.0
    """

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    def _quantile(self, probability: Tensor) -> Tensor:
        # The smaller part, for a logarithm without loss.
        upper = probability > 0.5
        log_part = (2 * upper.where(1 - probability, probability)).log()
        return upper.where(-log_part, log_part)

    def _log_prob(self, value: Tensor) -> Tensor:
        return -self._scaled(value).abs() - (2 * self.scale).log()

    def _cdf(self, value: Tensor) -> Tensor:
        scaled = self._scaled(value)
        return 0.5 - 0.5 * scaled.sign() * (-scaled.abs()).expm1()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


@final
class Cauchy(_LocationScale):
    """The Cauchy distribution, which has a median and no mean.

    >>> from ferrule.distributions import Cauchy
    >>> Cauchy(0.0, 1.0).cdf(1.0).item()
    0.75
    """

    @property
    def mean(self) -> Tensor:
        return self.loc.full_like(math.nan)

    @property
    def variance(self) -> Tensor:
        return self.loc.full_like(math.inf)

    def _quantile(self, probability: Tensor) -> Tensor:
        return (math.pi * (probability - 0.5)).tan()

    def _log_prob(self, value: Tensor) -> Tensor:
        return -(math.pi * self.scale).log() - self._scaled(value).square().log1p()

    def _cdf(self, value: Tensor) -> Tensor:
        return self._scaled(value).atan() / math.pi + 0.5

    def entropy(self) -> Tensor:
        return (4 * math.pi * self.scale).log()


@final
class Gumbel(_LocationScale):
    """The Gumbel distribution, of the largest of many values.

    >>> from ferrule.distributions import Gumbel
    >>> Gumbel(0.0, 1.0).log_prob(0.0).item()
    -1.0
    """

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (math.pi**2 / 6)

    def _quantile(self, probability: Tensor) -> Tensor:
        return -(-probability.log()).log()

    def _log_prob(self, value: Tensor) -> Tensor:
        scaled = self._scaled(value)
        return -scaled - (-scaled).exp() - self.scale.log()

    def _cdf(self, value: Tensor) -> Tensor:
        return (-(-self._scaled(value)).exp()).exp()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


@final
class StudentT(Distribution):
    """Student's t distribution with `df` degrees of freedom, scaled and moved.

    >>> from ferrule.distributions import StudentT
    >>> StudentT(4.0).variance.item()
    2.0
    """

    arg_constraints: ClassVar = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    has_rsample = True
    df: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(
        self,
        df: Parameter,
        loc: Parameter = 0.0,
        scale: Parameter = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self._set_up(validate_args, df=df, loc=loc, scale=scale)

    @property
    def support(self) -> Constraint:
        return constraints.real

    @property
    def mean(self) -> Tensor:
        return (self.df > 1).where(self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.df > 2
        found = self.scale.square() * self.df / finite.where(self.df - 2, 1)
        return finite.where(found, (self.df > 1).where(self.df.full_like(math.inf), math.nan))

    def _draw(self, shape: Shape) -> Tensor:
        half = self.df.expand(*shape) / 2
        # The square root of df over a sample of chi-square.
        root = ((half.log() - log_gamma_sample(half)) / 2).exp()
        return self.loc + self.scale * (self._normal(shape) * root)

    def _log_prob(self, value: Tensor) -> Tensor:
        scaled = (value - self.loc) / self.scale
        constant = (self.df * math.pi).log() / 2 + self.scale.log()
        constant = constant + (self.df / 2).lgamma() - ((self.df + 1) / 2).lgamma()
        return -(self.df + 1) / 2 * (scaled.square() / self.df).log1p() - constant

    def entropy(self) -> Tensor:
        half, more = self.df / 2, (self.df + 1) / 2
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        found = more * (more.digamma() - half.digamma()) + self.df.log() / 2 + log_beta
        return self.scale.log() + found


@final
class VonMises(Distribution):
    """The von Mises distribution of an angle in radians, around `loc`.

    Its `variance` is the circular one, 1 less the length of the mean direction.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import VonMises
    >>> bool((VonMises(0.0, 1.0).sample((9,)).abs() <= 3.1416).all())
    True
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "concentration": constraints.positive}
    loc: Tensor
    concentration: Tensor

    def __init__(
        self, loc: Parameter, concentration: Parameter, validate_args: bool | None = None
    ) -> None:
        self._set_up(validate_args, loc=loc, concentration=concentration)

    @property
    def support(self) -> Constraint:
        return constraints.real

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return 1 - self.concentration.i1e() / self.concentration.i0e()

    def _draw(self, shape: Shape) -> Tensor:
        angle = von_mises_sample(self.concentration.expand(*shape)) + self.loc
        turned = (angle + math.pi) % (2 * math.pi) - math.pi
        return turned.clamp(-math.pi, math.pi)

    def _log_prob(self, value: Tensor) -> Tensor:
        # i0e(k) is i0(k) * exp(-k).
        nearness = (value - self.loc).cos() - 1
        return self.concentration * nearness - _LOG_TWO_PI - self.concentration.i0e().log()
