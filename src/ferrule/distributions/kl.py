"""`kl_divergence`: the Kullback-Leibler divergence of two distributions, by a table of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ferrule.distributions.categorical import Categorical, _Choice, _Vector
from ferrule.distributions.combined import Independent, TransformedDistribution
from ferrule.distributions.discrete import Bernoulli, Binomial, Geometric, Poisson
from ferrule.distributions.distribution import Distribution, summed
from ferrule.distributions.interval import Beta, ContinuousBernoulli, Uniform, log_beta
from ferrule.distributions.location import EULER, Cauchy, Gumbel, Laplace, Normal
from ferrule.distributions.multivariate import (
    Dirichlet,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Wishart,
    half_log_det,
    inverse_of,
    squared_length,
)
from ferrule.distributions.positive import (
    Exponential,
    Gamma,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Pareto,
    _Gamma,
)
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

Formula: TypeAlias = Callable[[Any, Any], Tensor]

_TABLE: Final[dict[tuple[type, type], Formula]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Make a function compute `kl_divergence(p, q)` of two types, and of their subclasses.

    >>> from ferrule.distributions import Distribution, register_kl
    >>> class Mine(Distribution): ...
    >>> @register_kl(Mine, Mine)
    ... def my_divergence(p, q):
    ...     return (p.loc - q.loc).square()
    """
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"register_kl: {kind!r} is no type of distributions")

    def keep(formula: Formula) -> Formula:
        _TABLE[type_p, type_q] = formula
        return formula

    return keep


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean of `p.log_prob(x) - q.log_prob(x)` over samples x of p, exactly.

    Raises `NotImplementedError` for a pair of types whose formula is not known.

    >>> from ferrule.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item()
    0.5
    """
    for one in type(p).__mro__:
        for other in type(q).__mro__:
            formula = _TABLE.get((one, other))
            if formula is not None:
                return formula(p, q)
    raise NotImplementedError(
        f"kl_divergence: there is no formula for {type(p).__name__} and {type(q).__name__}; write"
        " one with @register_kl, or take the mean of p.log_prob(x) - q.log_prob(x) of samples x"
    )


# The same family twice


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    def part(chance: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return (chance == 0).where(0.0, chance * (own - other))

    hit = part(p.probs, p._log_probs[0], q._log_probs[0])
    return hit + part(1 - p.probs, p._log_probs[1], q._log_probs[1])


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    success = p.probs * (p._log_probs[0] - q._log_probs[0])
    failure = (1 - p.probs) * (p._log_probs[1] - q._log_probs[1])
    found = p.total_count * (success + failure)
    fits = p.total_count == q.total_count
    # Fewer trials of p have no formula; more are impossible for q.
    return fits.where(found, (p.total_count > q.total_count).where(math.inf, math.nan))


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate.xlogy(p.rate) - p.rate.xlogy(q.rate) - (p.rate - q.rate)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs.xlogy(q.rate) - q.rate)


def _choices(p: _Choice, q: _Choice) -> Tensor:
    parts = p.probs * (p.logits - q.logits)
    parts = (q.probs == 0).where(math.inf, parts)
    return (p.probs == 0).where(0.0, parts).sum(-1)


register_kl(Categorical, Categorical)(_choices)
register_kl(_Vector, _Vector)(_choices)


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log()) / 2


@register_kl(LogNormal, LogNormal)
def _log_normal(p: LogNormal, q: LogNormal) -> Tensor:
    return _normal(Normal(p.loc, p.scale), Normal(q.loc, q.scale))


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return (ratio - 1 - ratio.log()) / 2


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    apart = (p.loc - q.loc).abs()
    near = p.scale / q.scale * (-apart / p.scale).exp()
    return (q.scale / p.scale).log() + apart / q.scale + near - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    above = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return above.log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    apart = (p.loc - q.loc) / q.scale
    tail = (-apart + (ratio + 1).lgamma()).exp()
    return -ratio.log() + apart + EULER * (ratio - 1) + tail - 1


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(_Gamma, _Gamma)
def _gamma(p: _Gamma, q: _Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    rates = b * (p.rate / q.rate).log() + a * (q.rate / p.rate - 1)
    return rates + b.lgamma() - a.lgamma() + (a - b) * a.digamma()


@register_kl(InverseGamma, InverseGamma)
def _inverse_gamma(p: InverseGamma, q: InverseGamma) -> Tensor:
    return _gamma(Gamma(p.concentration, p.rate), Gamma(q.concentration, q.rate))


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    slopes = (a - c) * a.digamma() + (b - d) * b.digamma()
    return log_beta(c, d) - log_beta(a, b) + slopes + (c + d - a - b) * (a + b).digamma()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    slopes = ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)
    constant = total.lgamma() - b.sum(-1).lgamma()
    return constant - (a.lgamma() - b.lgamma()).sum(-1) + slopes


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    scales, alphas = p.scale / q.scale, q.alpha / p.alpha
    found = q.alpha * scales.log() - alphas.log() + alphas - 1
    return (p.scale < q.scale).where(math.inf, found)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return ((q.low > p.low) | (q.high < p.high)).where(math.inf, found)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    constants = p._log_normalizer() - q._log_normalizer()
    logs = (-p.probs).log1p() - (-q.probs).log1p()
    return p.mean * (p.logits - q.logits) + constants + logs


_Vectors: TypeAlias = MultivariateNormal | LowRankMultivariateNormal


def _normal_vectors(p: _Vectors, q: _Vectors) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ShapeError(
            f"kl_divergence: vectors of {p.event_shape[0]} and of {q.event_shape[0]} elements"
        )
    own, other = p.scale_tril, q.scale_tril
    # The trace of inv(q's covariance) @ p's covariance.
    trace = (inverse_of(other) * p.covariance_matrix).sum((-2, -1))
    length = squared_length(other, q.loc - p.loc)
    return half_log_det(other) - half_log_det(own) + (trace + length - p._size) / 2


for _normal_p in (MultivariateNormal, LowRankMultivariateNormal):
    for _normal_q in (MultivariateNormal, LowRankMultivariateNormal):
        register_kl(_normal_p, _normal_q)(_normal_vectors)


@register_kl(Wishart, Wishart)
def _wishart(p: Wishart, q: Wishart) -> Tensor:
    size, half = p._size, p.df / 2
    trace = (inverse_of(q.scale_tril) * p.covariance_matrix).sum((-2, -1))
    factors = q.df * (half_log_det(q.scale_tril) - half_log_det(p.scale_tril))
    slopes = (p.df - q.df) / 2 * p._degrees().digamma().sum(-1)
    constants = (q.df / 2).mvlgamma(size) - half.mvlgamma(size)
    return factors + constants + slopes + half * (trace - size)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    dims = p.reinterpreted_batch_ndims
    if dims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            f"kl_divergence: Independent of {dims} and of {q.reinterpreted_batch_ndims} axes"
        )
    return summed(kl_divergence(p.base_dist, q.base_dist), dims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms:
        raise NotImplementedError("kl_divergence: the transforms of the two are different objects")
    return kl_divergence(p.base_dist, q.base_dist)


# Two families: the mean of q's log_prob over p, where p's moments are enough


def _and_normal(p: Distribution, q: Normal) -> Tensor:
    spread = (p.variance + (p.mean - q.loc).square()) / (2 * q.scale.square())
    return -p.entropy() + (2 * math.pi * q.scale.square()).log() / 2 + spread


for _with_moments in (Beta, Exponential, _Gamma, Gumbel, Laplace, LogNormal, Pareto, Uniform):
    register_kl(_with_moments, Normal)(_and_normal)


def _and_exponential(p: Distribution, q: Exponential) -> Tensor:
    return -p.entropy() - q.rate.log() + q.rate * p.mean


for _positive in (Beta, _Gamma, LogNormal, Pareto):
    register_kl(_positive, Exponential)(_and_exponential)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    return (p.low < 0).where(math.inf, _and_exponential(p, q))


@register_kl(Exponential, _Gamma)
def _exponential_gamma(p: Exponential, q: _Gamma) -> Tensor:
    return _gamma(Gamma(p.rate.ones_like(), p.rate), q)


@register_kl(Beta, _Gamma)
def _beta_gamma(p: Beta, q: _Gamma) -> Tensor:
    a, b = p.concentration1, p.concentration0
    log_mean = a.digamma() - (a + b).digamma()
    constant = q.concentration.lgamma() - q.concentration * q.rate.log()
    return -p.entropy() + constant - (q.concentration - 1) * log_mean + q.rate * p.mean


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    apart, ratio = (p.loc - q.loc) / q.scale, (p.scale / q.scale).square()
    tail = (-apart + ratio / 2).exp()
    return q.scale.log() - p.entropy() + apart + tail


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    apart = p.loc - q.loc
    scaled = apart / p.scale
    # The mean of |x - q.loc|.
    distance = p.scale * math.sqrt(2 / math.pi) * (-scaled.square() / 2).exp()
    distance = distance + apart * (scaled * math.sqrt(0.5)).erf()
    return -p.entropy() + (2 * q.scale).log() + distance / q.scale


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    low, high = (p.low - q.loc) / q.scale, (p.high - q.loc) / q.scale
    tail = ((-low).exp() - (-high).exp()) / (high - low)
    return q.scale.log() - p.entropy() + (low + high) / 2 + tail


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    def log_mean(low: Tensor, high: Tensor) -> Tensor:
        return (high.xlogy(high) - low.xlogy(low)) / (high - low) - 1

    a, b = q.concentration1, q.concentration0
    logs = (a - 1) * log_mean(p.low, p.high) + (b - 1) * log_mean(1 - p.high, 1 - p.low)
    found = -p.entropy() + log_beta(a, b) - logs
    return ((p.low < 0) | (p.high > 1)).where(math.inf, found)
