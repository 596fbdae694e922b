"""Sampling by rejection: gamma, Poisson, binomial and von Mises distributions.

Each element has a stream of random numbers of its own: its words, of one call of the device's
generator, are the key, and the trip of the loop is the counter. So the loop ends when all elements
have accepted a candidate, and draws as many numbers as it needs, also in a captured function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from ferrule.autograd import Shape, TracedValue
from ferrule.base.records import dataclass
from ferrule.distributions.distribution import uniform
from ferrule.distributions.incomplete import log_sample_slope
from ferrule.engine.random import random_words, threefry, uniform_from
from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor
from ferrule.transforms import custom_vjp, while_loop

Uniforms: TypeAlias = Sequence[Tensor]
Proposal: TypeAlias = Callable[[Uniforms], tuple[Tensor, Tensor]]
"""Candidates, and where they are accepted, of independent uniform numbers above 0 and below 1."""


def accepted(
    shape: Shape,
    dtype: DType,
    device: str,
    count: int,
    propose: Proposal,
    kind: DType | None = None,
) -> Tensor:
    """For each element the first accepted one of the candidates that `propose` makes.

    `propose` gets `count` uniform random numbers of `dtype` for each element; candidates are of
    that dtype or another `kind`.
    """
    keys = [Tensor._wrap(word) for word in random_words(shape, device)]
    first = keys[0].full_like(0)
    zeros = Tensor.zeros(*shape, dtype=kind or dtype, device=device)

    def trip(carry: Any) -> Any:
        number, value, done = carry
        candidate, accept = propose(_uniforms(keys, number, count, dtype))
        following = (accept & ~done).where(candidate, value)
        return number + count, following, done | accept

    start = (first, zeros, Tensor.zeros(*shape, dtype=dtypes.bool, device=device))
    _, value, _ = while_loop(lambda carry: ~carry[2].all(), trip, start)
    found: Tensor = value
    return found


def _uniforms(keys: Sequence[Tensor], number: Tensor, count: int, dtype: DType) -> list[Tensor]:
    """`count` numbers for each element, from its key and the counters from `number` on."""
    key = keys[0]._read(), keys[1]._read()
    found: list[TracedValue] = []
    while len(found) < count:
        counter = (number + len(found))._read()
        words = threefry(key, (counter, counter.full(0)))
        if dtype is dtypes.float64:  # which takes two words for a number
            found.append(uniform_from(words, dtype))
        else:
            found += [uniform_from((word, word), dtype) for word in words]
    least = 2.0 ** -(dtype.mantissa_bits + 2)
    return [Tensor._wrap(value).clamp(least) for value in found[:count]]


def _wide(dtype: DType) -> DType:
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _drawn_log_gamma(concentration: Tensor) -> Tensor:
    """The logarithm of a sample; it may be far below that of the smallest number.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). A sample of a
    concentration below 1 is one of the concentration + 1, times a power of a uniform number.
    """
    shape = tuple(concentration.shape)
    device, dtype = concentration.device, _wide(concentration.dtype)
    wide = concentration.cast(dtype)
    small = wide < 1
    raised = small.where(wide + 1, wide)
    d = raised - 1 / 3
    c = (9 * d).rsqrt()

    def propose(numbers: Uniforms) -> tuple[Tensor, Tensor]:
        normal = (-2 * numbers[0].log()).sqrt() * (numbers[1] * (2 * math.pi)).cos()
        cube = (1 + c * normal) ** 3
        log_cube = cube.clamp(1e-30).log()
        accept = numbers[2].log() < 0.5 * normal.square() + d * (1 - cube + log_cube)
        return d.log() + log_cube, (cube > 0) & accept

    drawn = accepted(shape, dtype, device, 3, propose)
    power = uniform(shape, dtype, device).log() / wide
    return (drawn + small.where(power, 0)).cast(concentration.dtype)


@custom_vjp
def _log_gamma(concentration: Tensor) -> Tensor:
    return _drawn_log_gamma(concentration)


def _forward(concentration: Tensor) -> tuple[Tensor, Any]:
    found = _drawn_log_gamma(concentration)
    return found, (concentration, found)


def _backward(kept: Any, slope: Tensor) -> tuple[Tensor]:
    return (slope * log_sample_slope(*kept),)


_log_gamma.defvjp(_forward, _backward)


def log_gamma_sample(concentration: Tensor) -> Tensor:
    """The logarithm of a sample of Gamma(concentration, 1), with its implicit gradient.

    Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients" (2018).
    """
    found: Tensor = _log_gamma(concentration)
    return found


def poisson_sample(rate: Tensor) -> Tensor:
    """A sample of each Poisson distribution.

    Hörmann, "The transformed rejection method for generating Poisson random variables" (1993).
    """
    few = rate < 10
    exact = few.where(10.0, rate).cast(dtypes.float64)

    def log_mass(k: Tensor) -> Tensor:
        return k * exact.log() - exact - (k + 1).lgamma()

    large = exact.cast(_wide(rate.dtype))
    spread = 0.931 + 2.53 * large.sqrt()
    fit = (1.1239 + 1.1328 / (spread - 3.4)).log()
    hat = _Hat(large + 0.43, spread, -0.059 + 0.02483 * spread, fit)
    many = _transformed(hat, log_mass, few)
    low = few.where(rate, 0.0).cast(dtypes.float64)
    found = few.where(_inverted((-low).exp(), lambda k: low / k), many)
    return found.cast(rate.dtype)


def binomial_sample(total: Tensor, probs: Tensor) -> Tensor:
    """A sample of each binomial distribution.

    Hörmann, "The generation of binomial random variates" (1993).
    """
    often = probs > 0.5
    rare = often.where(1 - probs, probs).cast(dtypes.float64)
    number = total.cast(dtypes.float64)
    few = number * rare < 10
    n, p = few.where(40.0, number), few.where(0.5, rare)
    log_odds = p.log() - (-p).log1p()

    def log_mass(k: Tensor) -> Tensor:
        inside = k <= n
        rest = inside.where(n - k, 0)
        found = (n + 1).lgamma() - (k + 1).lgamma() - (rest + 1).lgamma()
        return inside.where(found + k * log_odds + n * (-p).log1p(), -math.inf)

    deviation = (n * p * (1 - p)).sqrt()
    spread = 1.15 + 2.53 * deviation
    fit = ((2.83 + 5.1 / spread) * deviation).log() + log_mass(((n + 1) * p).floor())
    hat = _Hat(n * p + 0.5, spread, -0.0873 + 0.0248 * spread + 0.01 * p, fit)
    many = _transformed(hat, log_mass, few)
    low = few.where(rare, 0.0)
    odds = low / (1 - low)
    first = (number * (-low).log1p()).exp()
    found = few.where(_inverted(first, lambda k: (number - k + 1) / k * odds), many)
    return often.where(number - found, found).cast(probs.dtype)


@final
@dataclass(frozen=True)
class _Hat:
    """The curve above a discrete distribution, from which candidates are drawn."""

    center: Tensor
    spread: Tensor
    slope: Tensor
    log_scale: Tensor


def _transformed(hat: _Hat, log_mass: Callable[[Tensor], Tensor], unused: Tensor) -> Tensor:
    """Samples of a discrete distribution in float64, by transformed rejection."""
    center, spread, slope = hat.center, hat.spread, hat.slope

    def propose(numbers: Uniforms) -> tuple[Tensor, Tensor]:
        u = numbers[0] - 0.5
        edge = (0.5 - u.abs()).clamp(1e-7)
        k = ((2 * slope / edge + spread) * u + center).floor().cast(dtypes.float64)
        inside = k >= 0
        curve = (numbers[1] / (slope / edge.square() + spread)).log() + hat.log_scale
        return k, unused | (inside & (curve <= log_mass(inside.where(k, 0))))

    shape, device = tuple(center.shape), center.device
    return accepted(shape, dtypes.float32, device, 2, propose, dtypes.float64)


_MOST = 80
"""Events; with a mean of 10 there are more with a probability of 1e-40."""


def _inverted(first: Tensor, ratio: Callable[[Tensor], Tensor]) -> Tensor:
    """Samples of a discrete distribution in float64, from the probability of 0.

    `ratio(k)` is the probability of k over that of k - 1.
    """
    shape = tuple(first.shape)
    drawn = uniform(shape, dtypes.float64, first.device)

    def trip(carry: Any) -> Any:
        k, mass, total, count = carry
        k = k + 1
        mass = mass * ratio(k)
        return k, mass, total + mass, count + (drawn > total).cast(dtypes.float64)

    def goes_on(carry: Any) -> Tensor:
        k, _, total, _ = carry
        found: Tensor = (drawn > total).any() & (k.max() < _MOST)
        return found

    zeros = Tensor.zeros(*shape, dtype=dtypes.float64, device=first.device)
    count: Tensor = while_loop(goes_on, trip, (zeros, first, first, zeros))[3]
    return count


def von_mises_sample(concentration: Tensor) -> Tensor:
    """A sample of each von Mises distribution around 0, in radians.

    Best and Fisher, "Efficient simulation of the von Mises distribution" (1979).
    """
    kappa = concentration.cast(dtypes.float64)
    tau = 1 + (1 + 4 * kappa.square()).sqrt()
    # (tau - sqrt(2 tau)) / (2 kappa), without the difference of nearly equal numbers.
    rho = 2 * kappa / (tau + (2 * tau).sqrt())
    center = (1 + rho.square()) / (2 * rho)

    def propose(numbers: Uniforms) -> tuple[Tensor, Tensor]:
        z = (numbers[0] * math.pi).cos()
        cosine = (1 + center * z) / (center + z)
        c = kappa * (center - cosine)
        accept = (c * (2 - c) > numbers[1]) | ((c / numbers[1]).log() + 1 - c >= 0)
        angle = cosine.clamp(-1, 1).acos()
        return (numbers[2] > 0.5).where(angle, -angle), accept

    shape = tuple(kappa.shape)
    found = accepted(shape, dtypes.float64, kappa.device, 3, propose)
    return found.cast(concentration.dtype)
