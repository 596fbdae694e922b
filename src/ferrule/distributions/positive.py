"""Distributions over positive numbers."""

from __future__ import annotations

import math
from typing import ClassVar, final

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Distribution, Parameter
from ferrule.distributions.incomplete import gammainc
from ferrule.distributions.location import EULER
from ferrule.distributions.sampling import log_gamma_sample
from ferrule.tensor import Tensor


class _Positive(Distribution):
    """A distribution over positive numbers, whose samples have gradients."""

    has_rsample = True

    @property
    def support(self) -> Constraint:
        return constraints.positive


@final
class Exponential(_Positive):
    """The exponential distribution: `rate * exp(-rate * x)`.

    >>> from ferrule.distributions import Exponential
    >>> Exponential(2.0).mean.item()
    0.5
    """

    arg_constraints: ClassVar = {"rate": constraints.positive}
    rate: Tensor

    def __init__(self, rate: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, rate=rate)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.zeros_like()

    @property
    def stddev(self) -> Tensor:
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        return 1 / self.rate.square()

    def _draw(self, shape: Shape) -> Tensor:
        return -self._uniform(shape).log() / self.rate

    def _log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * value

    def _cdf(self, value: Tensor) -> Tensor:
        return -(-self.rate * value).expm1()

    def _icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()


class _Gamma(_Positive):
    """What a gamma distribution and its special cases share."""

    concentration: Tensor
    rate: Tensor

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def _draw(self, shape: Shape) -> Tensor:
        return log_gamma_sample(self.concentration.expand(*shape)).exp() / self.rate

    def _log_prob(self, value: Tensor) -> Tensor:
        power = self.concentration.xlogy(self.rate) + (self.concentration - 1).xlogy(value)
        return power - self.rate * value - self.concentration.lgamma()

    def _cdf(self, value: Tensor) -> Tensor:
        return gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()


@final
class Gamma(_Gamma):
    """The gamma distribution with the mean `concentration / rate`.

    Gradients of samples are implicit ones: exact, though samples are drawn by rejection.

    >>> from ferrule.distributions import Gamma
    >>> Gamma(3.0, 2.0).mean.item()
    1.5
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }

    def __init__(
        self, concentration: Parameter, rate: Parameter, validate_args: bool | None = None
    ) -> None:
        self._set_up(validate_args, concentration=concentration, rate=rate)


@final
class Chi2(_Gamma):
    """The chi-square distribution: of a sum of `df` squared standard normal numbers.

    >>> from ferrule.distributions import Chi2
    >>> Chi2(3.0).variance.item()
    6.0
    """

    arg_constraints: ClassVar = {"df": constraints.positive}
    df: Tensor

    def __init__(self, df: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, df=df)
        self.concentration = self.df / 2
        self.rate = self.df.full_like(0.5)


@final
class InverseGamma(_Positive):
    """The distribution of 1 over a sample of `Gamma(concentration, rate)`.

    >>> from ferrule.distributions import InverseGamma
    >>> InverseGamma(3.0, 4.0).mean.item()
    2.0
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    concentration: Tensor
    rate: Tensor

    def __init__(
        self, concentration: Parameter, rate: Parameter, validate_args: bool | None = None
    ) -> None:
        self._set_up(validate_args, concentration=concentration, rate=rate)

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return (a > 1).where(self.rate / (a > 1).where(a - 1, 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        finite = a > 2
        below = finite.where((a - 1).square() * (a - 2), 1)
        return finite.where(self.rate.square() / below, math.inf)

    def _draw(self, shape: Shape) -> Tensor:
        return self.rate * (-log_gamma_sample(self.concentration.expand(*shape))).exp()

    def _log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return a.xlogy(self.rate) - (a + 1) * value.log() - self.rate / value - a.lgamma()

    def _cdf(self, value: Tensor) -> Tensor:
        return 1 - gammainc(self.concentration, self.rate / value)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


@final
class LogNormal(_Positive):
    """The distribution of `exp(x)` of a normal x with the mean `loc`, the deviation `scale`.

    >>> from ferrule.distributions import LogNormal
    >>> LogNormal(0.0, 1.0).icdf(0.5).item()
    1.0
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def _draw(self, shape: Shape) -> Tensor:
        return (self.loc + self.scale * self._normal(shape)).exp()

    def _log_prob(self, value: Tensor) -> Tensor:
        scaled = (value.log() - self.loc) / self.scale
        constant = math.log(2 * math.pi) / 2
        return -scaled.square() / 2 - self.scale.log() - constant - value.log()

    def _cdf(self, value: Tensor) -> Tensor:
        return ((value.log() - self.loc) / self.scale).ndtr()

    def _icdf(self, value: Tensor) -> Tensor:
        return (self.loc + self.scale * (math.sqrt(2) * (2 * value - 1).erfinv())).exp()

    def entropy(self) -> Tensor:
        return self.loc + self.scale.log() + (0.5 + math.log(2 * math.pi) / 2)


class _Half(_Positive):
    """The absolute value of a distribution around 0."""

    arg_constraints: ClassVar = {"scale": constraints.positive}
    scale: Tensor

    def __init__(self, scale: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, scale=scale)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative

    @property
    def mode(self) -> Tensor:
        return self.scale.zeros_like()

    def _log_prob(self, value: Tensor) -> Tensor:
        return (value >= 0).where(
            self._log_density(value / self.scale) - self.scale.log(), -math.inf
        )

    def _log_density(self, scaled: Tensor) -> Tensor:
        """The logarithm of the density for the scale 1."""
        raise NotImplementedError


@final
class HalfNormal(_Half):
    """The distribution of |x| of a normal x with the mean 0 and the deviation `scale`.

    >>> from ferrule.distributions import HalfNormal
    >>> round(HalfNormal(1.0).mean.item(), 4)
    0.7979
    """

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)

    def _draw(self, shape: Shape) -> Tensor:
        return (self.scale * self._normal(shape)).abs()

    def _log_density(self, scaled: Tensor) -> Tensor:
        return math.log(2 / math.pi) / 2 - scaled.square() / 2

    def _cdf(self, value: Tensor) -> Tensor:
        return (value / self.scale * math.sqrt(0.5)).erf()

    def _icdf(self, value: Tensor) -> Tensor:
        return self.scale * math.sqrt(2) * value.erfinv()

    def entropy(self) -> Tensor:
        return self.scale.log() + (0.5 + math.log(math.pi / 2) / 2)


@final
class HalfCauchy(_Half):
    """The distribution of |x| of a Cauchy x around 0.

    >>> from ferrule.distributions import HalfCauchy
    >>> HalfCauchy(2.0).cdf(2.0).item()
    0.5
    """

    @property
    def mean(self) -> Tensor:
        return self.scale.full_like(math.inf)

    @property
    def variance(self) -> Tensor:
        return self.scale.full_like(math.inf)

    def _draw(self, shape: Shape) -> Tensor:
        return self._icdf(self._uniform(shape))

    def _log_density(self, scaled: Tensor) -> Tensor:
        return math.log(2 / math.pi) - scaled.square().log1p()

    def _cdf(self, value: Tensor) -> Tensor:
        return (value / self.scale).atan() * (2 / math.pi)

    def _icdf(self, value: Tensor) -> Tensor:
        return self.scale * (value * (math.pi / 2)).tan()

    def entropy(self) -> Tensor:
        return (2 * math.pi * self.scale).log()


@final
class Weibull(_Positive):
    """The Weibull distribution: `cdf(x)` is `1 - exp(-(x / scale) ** concentration)`.

    >>> from ferrule.distributions import Weibull
    >>> Weibull(2.0, 1.0).mean.item()
    2.0
    """

    arg_constraints: ClassVar = {
        "scale": constraints.positive,
        "concentration": constraints.positive,
    }
    scale: Tensor
    concentration: Tensor

    def __init__(
        self, scale: Parameter, concentration: Parameter, validate_args: bool | None = None
    ) -> None:
        self._set_up(validate_args, scale=scale, concentration=concentration)

    @property
    def mean(self) -> Tensor:
        return self.scale * (1 + 1 / self.concentration).lgamma().exp()

    @property
    def mode(self) -> Tensor:
        a = self.concentration
        return self.scale * ((a - 1).clamp(min=0) / a) ** (1 / a)

    @property
    def variance(self) -> Tensor:
        second = (1 + 2 / self.concentration).lgamma().exp()
        first = (2 * (1 + 1 / self.concentration).lgamma()).exp()
        return self.scale.square() * (second - first)

    def _draw(self, shape: Shape) -> Tensor:
        return self.scale * (-self._uniform(shape).log()) ** (1 / self.concentration)

    def _log_prob(self, value: Tensor) -> Tensor:
        a, scaled = self.concentration, value / self.scale
        return a.log() - self.scale.log() + (a - 1).xlogy(scaled) - scaled**a

    def _cdf(self, value: Tensor) -> Tensor:
        return -(-((value / self.scale) ** self.concentration)).expm1()

    def _icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-(-value).log1p()) ** (1 / self.concentration)

    def entropy(self) -> Tensor:
        a = self.concentration
        return EULER * (1 - 1 / a) + (self.scale / a).log() + 1


@final
class Pareto(_Positive):
    """The Pareto distribution: numbers above `scale`, whose density falls as a power.

    >>> from ferrule.distributions import Pareto
    >>> Pareto(1.0, 2.0).mean.item()
    2.0
    """

    arg_constraints: ClassVar = {"scale": constraints.positive, "alpha": constraints.positive}
    scale: Tensor
    alpha: Tensor

    def __init__(
        self, scale: Parameter, alpha: Parameter, validate_args: bool | None = None
    ) -> None:
        self._set_up(validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> Constraint:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        finite = self.alpha > 1
        return finite.where(self.alpha * self.scale / finite.where(self.alpha - 1, 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        finite = self.alpha > 2
        below = finite.where((self.alpha - 1).square() * (self.alpha - 2), 1)
        return finite.where(self.scale.square() * self.alpha / below, math.inf)

    def _draw(self, shape: Shape) -> Tensor:
        return self.scale * (-self._uniform(shape).log() / self.alpha).exp()

    def _log_prob(self, value: Tensor) -> Tensor:
        return self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * value.log()

    def _cdf(self, value: Tensor) -> Tensor:
        return 1 - (self.scale / value) ** self.alpha

    def _icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-(-value).log1p() / self.alpha).exp()

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + 1 + 1 / self.alpha


@final
class FisherSnedecor(_Positive):
    """The F distribution with `df1` and `df2` degrees of freedom: a ratio of mean squares.

    >>> from ferrule.distributions import FisherSnedecor
    >>> FisherSnedecor(3.0, 4.0).mean.item()
    2.0
    """

    arg_constraints: ClassVar = {"df1": constraints.positive, "df2": constraints.positive}
    df1: Tensor
    df2: Tensor

    def __init__(self, df1: Parameter, df2: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, df1=df1, df2=df2)

    @property
    def mean(self) -> Tensor:
        return (self.df2 > 2).where(self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return (self.df1 > 2).where(found, math.nan)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        above = 2 * b.square() * (a + b - 2)
        return (b > 4).where(above / (a * (b - 2).square() * (b - 4)), math.nan)

    def _draw(self, shape: Shape) -> Tensor:
        a, b = (df.expand(*shape) / 2 for df in (self.df1, self.df2))
        return (log_gamma_sample(a) - a.log() - log_gamma_sample(b) + b.log()).exp()

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.df1 / 2, self.df2 / 2
        ratio = self.df1 / self.df2
        constant = (a + b).lgamma() - a.lgamma() - b.lgamma() + a * ratio.log()
        return constant + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
