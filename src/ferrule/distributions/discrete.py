"""Distributions over whole numbers: events, counts, and the relaxed Bernoulli distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import (
    Distribution,
    Parameter,
    as_tensors,
    clamped,
    uniform,
)
from ferrule.distributions.sampling import binomial_sample, log_gamma_sample, poisson_sample
from ferrule.tensor import Tensor


class _Chance(Distribution):
    """A distribution of something that happens with a probability, given as that or as logits."""

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_chance(validate_args, probs, logits)

    def _set_chance(
        self,
        validate_args: bool | None,
        probs: Parameter | None,
        logits: Parameter | None,
        **others: Parameter,
    ) -> None:
        self._one_of(probs=probs, logits=logits)
        self._set_up(validate_args, probs=probs, logits=logits, **others)

    @property
    def probs(self) -> Tensor:
        """The probability."""
        return self._given["probs"] if "probs" in self._given else self.logits.sigmoid()

    @property
    def logits(self) -> Tensor:
        """The logarithm of the probability over that of the contrary."""
        return self._given["logits"] if "logits" in self._given else clamped(self.probs).logit()

    @property
    def _log_probs(self) -> tuple[Tensor, Tensor]:
        """The logarithms of the probability, and of that of the contrary."""
        return self.logits.logsigmoid(), (-self.logits).logsigmoid()


@final
class Bernoulli(_Chance):
    """1 with the probability `probs`, else 0.

    >>> from ferrule.distributions import Bernoulli
    >>> round(Bernoulli(0.25).log_prob(1.0).exp().item(), 4)
    0.25
    """

    has_enumerate_support = True

    @property
    def support(self) -> Constraint:
        return constraints.boolean

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        found = (self.probs >= 0.5).cast(self.probs.dtype)
        return (self.probs == 0.5).where(math.nan, found)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _draw(self, shape: Shape) -> Tensor:
        probs = self.probs.expand(*shape)
        return (Tensor.rand(*shape, dtype=probs.dtype, device=probs.device) < probs).cast(
            probs.dtype
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        return value * self.logits + self._log_probs[1]

    def entropy(self) -> Tensor:
        return -self._log_probs[1] - self.logits * self.probs

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(self._like([0.0, 1.0]), expand)


@final
class Geometric(_Chance):
    """The number of failures before the first success, whose probability is `probs`.

    >>> from ferrule.distributions import Geometric
    >>> Geometric(0.25).mean.item()
    3.0
    """

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs.zeros_like()

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def _draw(self, shape: Shape) -> Tensor:
        probs = self.probs.expand(*shape)
        return (uniform(shape, probs.dtype, probs.device).log() / (-probs).log1p()).floor()

    def _log_prob(self, value: Tensor) -> Tensor:
        certain = (self.probs == 1) & (value == 0)
        failures = certain.where(0.0, value * (-certain.where(0.0, self.probs)).log1p())
        return failures + self.probs.log()

    def entropy(self) -> Tensor:
        return (-self._log_probs[1] - self.logits * self.probs) / self.probs


@final
class Binomial(_Chance):
    """The number of successes in `total_count` trials.

    >>> from ferrule.distributions import Binomial
    >>> Binomial(10, 0.5).mean.item()
    5.0
    """

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative_integer,
        **_Chance.arg_constraints,
    }
    has_enumerate_support = True
    total_count: Tensor

    def __init__(
        self,
        total_count: Parameter = 1,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_chance(validate_args, probs, logits, total_count=total_count)

    @property
    def support(self) -> Constraint:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def _draw(self, shape: Shape) -> Tensor:
        return binomial_sample(self.total_count.expand(*shape), self.probs.expand(*shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        n = self.total_count
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * self.logits + n * self._log_probs[1]

    def entropy(self) -> Tensor:
        """The entropy; `total_count` is one number, which is read.

        Raises `NotImplementedError` for different numbers of trials.
        """
        terms = self.log_prob(self.enumerate_support())
        return -(terms.exp() * terms).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All counts up to `total_count`, which is one number, and is read.

        Raises `NotImplementedError` for different numbers of trials.
        """
        least, most = self.total_count.min().item(), self.total_count.max().item()
        if least != most:
            raise NotImplementedError("Binomial: the total_count differs within the batch")
        return self._enumerated(self._like(list(range(int(most) + 1))), expand)


@final
class NegativeBinomial(_Chance):
    """The number of successes, of probability `probs`, before `total_count` failures.

    >>> from ferrule.distributions import NegativeBinomial
    >>> NegativeBinomial(3.0, 0.5).mean.item()
    3.0
    """

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0, 1),
        "logits": constraints.real,
    }
    total_count: Tensor

    def __init__(
        self,
        total_count: Parameter,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_chance(validate_args, probs, logits, total_count=total_count)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def _draw(self, shape: Shape) -> Tensor:
        # A Poisson distribution whose rate has a gamma distribution.
        logits = self.logits.expand(*shape)
        rate = (log_gamma_sample(self.total_count.expand(*shape)) + logits).exp()
        return poisson_sample(rate)

    def _log_prob(self, value: Tensor) -> Tensor:
        n = self.total_count
        success, failure = self._log_probs
        ways = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        return ((n + value) == 0).where(0.0, ways) + n * failure + value * success


@final
class Poisson(Distribution):
    """The number of events that happen at random, `rate` on average.

    >>> from ferrule.distributions import Poisson
    >>> Poisson(2.0).log_prob(0.0).item()
    -2.0
    """

    arg_constraints: ClassVar = {"rate": constraints.nonnegative}
    rate: Tensor

    def __init__(self, rate: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, rate=rate)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def _draw(self, shape: Shape) -> Tensor:
        return poisson_sample(self.rate.expand(*shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        return value.xlogy(self.rate) - self.rate - (value + 1).lgamma()


@final
class RelaxedBernoulli(_Chance):
    """Numbers between 0 and 1, with gradients: 0 and 1 of `Bernoulli` as `temperature` goes to 0.

    Maddison, Mnih and Teh, "The concrete distribution" (2017).

    >>> from ferrule.distributions import RelaxedBernoulli
    >>> RelaxedBernoulli(0.5, 0.3).rsample((2,)).shape
    (2,)
    """

    has_rsample = True
    temperature: Tensor

    def __init__(
        self,
        temperature: Parameter,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_chance(validate_args, probs, logits)
        like = self._parameter
        self.temperature = as_tensors({"temperature": temperature, "like": like})["temperature"]
        if (
            self._validates is not False
            and not isinstance(temperature, Tensor)
            and temperature <= 0
        ):
            raise ValueError(f"RelaxedBernoulli: temperature is {temperature}; it must be positive")

    def _settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval

    def _draw(self, shape: Shape) -> Tensor:
        drawn = self._uniform(shape)
        return ((drawn.logit() + self.logits) / self.temperature).sigmoid()

    def _log_prob(self, value: Tensor) -> Tensor:
        logit = clamped(value).logit()
        apart = self.logits - logit * self.temperature
        density = self.temperature.log() + apart + 2 * (-apart).logsigmoid()
        return density - logit.logsigmoid() - (-logit).logsigmoid()
