"""Distributions over a choice of several: its number, as a vector, counted, or relaxed."""

from __future__ import annotations

from typing import Any, ClassVar, final

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import (
    Distribution,
    Parameter,
    as_tensors,
    clamped,
    split,
    uniform,
)
from ferrule.ir.dtype import dtypes
from ferrule.tensor import Tensor


class _Choice(Distribution):
    """A choice of several, by probabilities in the last axis, or their logarithms."""

    arg_constraints: ClassVar = {
        "probs": constraints.nonnegative_vector,
        "logits": constraints.real_vector,
    }

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._one_of(probs=probs, logits=logits)
        self._set_up(validate_args, probs=probs, logits=logits)

    @property
    def probs(self) -> Tensor:
        """The probabilities, whose sum is 1."""
        if "probs" not in self._given:
            return self._given["logits"].softmax(-1)
        given = self._given["probs"]
        return given / given.sum(-1, keepdim=True)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        if "logits" not in self._given:
            return clamped(self.probs).log()
        return self._given["logits"].log_softmax(-1)

    @property
    def param_shape(self) -> Shape:
        """The shape of the probabilities."""
        return tuple(self._parameter.shape)

    @property
    def _events(self) -> Any:
        """The number of choices."""
        return self._parameter.shape[-1]

    def _numbers(self, shape: Shape) -> Tensor:
        """The numbers of choices that are drawn, of a shape without the axis of choices."""
        # Exponential races: the first of all is each one with its probability.
        full = (*shape, self._events)
        probs = self._parameter
        if "logits" in self._given:
            gumbel = -(-uniform(full, probs.dtype, probs.device).log()).log()
            return (self._given["logits"] + gumbel).argmax(-1)
        times = -uniform(full, probs.dtype, probs.device).log()
        return (self._given["probs"] / times).argmax(-1)

    def entropy(self) -> Tensor:
        return -(self.probs * self.logits).sum(-1)

    def _log_probs_of(self, number: Tensor) -> Tensor:
        """The logarithm of the probability of each number."""
        whole = number.cast(dtypes.int32).unsqueeze(-1)
        logits = self.logits
        batch, event = split(logits, 1)
        rank = max(whole.ndim, logits.ndim)
        shape = whole.reshape(*[1] * (rank - whole.ndim), *whole.shape)
        logits = logits.reshape(*[1] * (rank - logits.ndim), *batch, *event)
        common = [
            one if other == 1 else other
            for one, other in zip(shape.shape[:-1], logits.shape[:-1], strict=True)
        ]
        found = logits.expand(*common, *event).gather(-1, shape.expand(*common, 1))
        return found.squeeze(-1)


@final
class Categorical(_Choice):
    """The number of one of several choices, of the probabilities in the last axis; int32.

    `probs` need not have the sum 1. Samples have no axis of choices.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Categorical
    >>> Categorical(Tensor([0.0, 1.0, 0.0])).sample().item()
    1
    >>> round(Categorical(Tensor([1.0, 3.0])).log_prob(1).exp().item(), 4)
    0.75
    """

    has_enumerate_support = True

    @property
    def support(self) -> Constraint:
        return constraints.integer_interval(0, self._events - 1)

    @property
    def mean(self) -> Tensor:
        return self._parameter[..., 0].full_like(float("nan"))

    @property
    def mode(self) -> Tensor:
        return self._parameter.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return self._parameter[..., 0].full_like(float("nan"))

    def _draw(self, shape: Shape) -> Tensor:
        return self._numbers(shape)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._log_probs_of(value)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(Tensor.arange(self._events, device=self._parameter.device), expand)


class _Vector(_Choice):
    """A choice as a vector."""

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(probs, logits, validate_args)
        self._event_shape = (self._events,)

    has_enumerate_support = True

    @property
    def support(self) -> Constraint:
        return constraints.one_hot

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._one_hot(self._parameter.argmax(-1))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _one_hot(self, numbers: Tensor) -> Tensor:
        return numbers.one_hot(self._events).cast(self._parameter.dtype)

    def _draw(self, shape: Shape) -> Tensor:
        return self._one_hot(self._numbers(shape[:-1]))

    def _log_prob(self, value: Tensor) -> Tensor:
        return (value * self.logits).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        like = self._parameter
        return self._enumerated(
            Tensor.eye(self._events, dtype=like.dtype, device=like.device), expand
        )


@final
class OneHotCategorical(_Vector):
    """One of several choices, as a vector of one 1 and else 0.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import OneHotCategorical
    >>> OneHotCategorical(Tensor([0.0, 1.0, 0.0])).sample().tolist()
    [0.0, 1.0, 0.0]
    """


@final
class OneHotCategoricalStraightThrough(_Vector):
    """`OneHotCategorical` whose samples have the gradient of the probabilities.

    Bengio, Léonard and Courville, "Estimating or propagating gradients" (2013).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import OneHotCategoricalStraightThrough
    >>> OneHotCategoricalStraightThrough(Tensor([0.0, 1.0])).rsample().tolist()
    [0.0, 1.0]
    """

    has_rsample = True

    def _draw(self, shape: Shape) -> Tensor:
        probs = self.probs
        return super()._draw(shape).detach() + (probs - probs.detach())


@final
class Multinomial(_Choice):
    """How often each of several choices comes in `total_count` draws.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Multinomial
    >>> Multinomial(10, Tensor([1.0, 1.0])).sample().sum().item()
    10.0
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int) or total_count < 0:
            raise ValueError(
                f"Multinomial: total_count is one whole number of at least 0, not {total_count!r}"
            )
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)
        self._event_shape = (self._events,)

    def _settings(self) -> dict[str, Any]:
        return {"total_count": self.total_count}

    @property
    def support(self) -> Constraint:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def _draw(self, shape: Shape) -> Tensor:
        numbers = self._numbers((self.total_count, *shape[:-1]))
        return numbers.one_hot(self._events).cast(self._parameter.dtype).sum(0)

    def _log_prob(self, value: Tensor) -> Tensor:
        logits = self.logits
        impossible = (value == 0) & (logits == float("-inf"))
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (impossible.where(0.0, logits) * value).sum(-1)

    def entropy(self) -> Tensor:
        n = Tensor(float(self.total_count), dtype=self._parameter.dtype)
        counts = Tensor.arange(1, self.total_count + 1, device=self._parameter.device)
        counts = counts.cast(self._parameter.dtype).reshape(-1, *[1] * self._parameter.ndim)
        logits = self.logits
        ways = (n + 1).lgamma() - (counts + 1).lgamma() - (n - counts + 1).lgamma()
        log_mass = ways + counts * logits + (n - counts) * (-self.probs).log1p()
        inner = (log_mass.exp() * (counts + 1).lgamma()).sum((0, -1))
        choice = -(self.probs * logits).sum(-1)
        return n * choice - (n + 1).lgamma() + inner


@final
class RelaxedOneHotCategorical(_Choice):
    """Vectors with the sum 1, with gradients: those of `OneHotCategorical` for temperature 0.

    Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax" (2017).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import RelaxedOneHotCategorical
    >>> round(RelaxedOneHotCategorical(0.5, Tensor([1.0, 3.0])).rsample().sum().item(), 4)
    1.0
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
        super().__init__(probs, logits, validate_args)
        self._event_shape = (self._events,)
        like = self._parameter
        self.temperature = as_tensors({"temperature": temperature, "like": like})["temperature"]

    def _settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @property
    def support(self) -> Constraint:
        return constraints.simplex

    def _draw(self, shape: Shape) -> Tensor:
        gumbel = -(-self._uniform(shape).log()).log()
        return ((self.logits + gumbel) / self.temperature).softmax(-1)

    def _log_prob(self, value: Tensor) -> Tensor:
        events = Tensor(float(self._events), dtype=value.dtype)
        constant = events.lgamma() + (events - 1) * self.temperature.log()
        log_value = value.log()
        score = self.logits - log_value * self.temperature
        total = (score - score.logsumexp(-1, keepdim=True)).sum(-1)
        return constant + total - log_value.sum(-1)
