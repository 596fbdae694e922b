"""Distributions: samples and their statistics, captured and mapped; implicit gradients; errors."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, dtypes
from ferrule import distributions as d
from ferrule.distributions.incomplete import gammainc, log_sample_slope

COUNT = 20000
T = Tensor
MAKE: dict[str, Callable[[], d.Distribution]] = {
    "Normal": lambda: d.Normal(T([0.0, 3.0]), 2.0),
    "Laplace": lambda: d.Laplace(1.0, T([0.5, 2.0])),
    "Gumbel": lambda: d.Gumbel(1.0, T([0.5, 2.0])),
    "StudentT": lambda: d.StudentT(T([5.0, 9.0]), 1.0, 2.0),
    "Exponential": lambda: d.Exponential(T([0.5, 3.0])),
    "Gamma": lambda: d.Gamma(T([0.05, 0.7, 1.0, 30.0]), 2.0),
    "Chi2": lambda: d.Chi2(T([1.0, 5.0])),
    "InverseGamma": lambda: d.InverseGamma(T([5.0, 9.0]), 2.0),
    "LogNormal": lambda: d.LogNormal(0.3, T([0.2, 0.4])),
    "HalfNormal": lambda: d.HalfNormal(T([0.2, 4.0])),
    "Weibull": lambda: d.Weibull(2.0, T([1.0, 3.0])),
    "Pareto": lambda: d.Pareto(2.0, T([7.0, 9.0])),
    "FisherSnedecor": lambda: d.FisherSnedecor(4.0, T([12.0, 20.0])),
    "Uniform": lambda: d.Uniform(T([-1.0, 2.0]), 3.0),
    "Beta": lambda: d.Beta(T([0.05, 1.0, 3.0]), T([0.1, 2.0, 9.0])),
    "Kumaraswamy": lambda: d.Kumaraswamy(T([0.5, 2.0]), 3.0),
    "ContinuousBernoulli": lambda: d.ContinuousBernoulli(T([0.1, 0.5, 0.9])),
    "Bernoulli": lambda: d.Bernoulli(T([0.1, 0.7])),
    "Geometric": lambda: d.Geometric(T([0.1, 0.7])),
    "Binomial": lambda: d.Binomial(T([5.0, 40.0, 1000.0]), T([0.3, 0.9, 0.02])),
    "NegativeBinomial": lambda: d.NegativeBinomial(T([0.5, 20.0]), T([0.3, 0.6])),
    "Poisson": lambda: d.Poisson(T([0.0, 0.1, 3.0, 9.9, 10.1, 500.0])),
    "OneHotCategorical": lambda: d.OneHotCategorical(T([0.1, 0.3, 0.6])),
    "Multinomial": lambda: d.Multinomial(7, T([0.1, 0.3, 0.6])),
    "Dirichlet": lambda: d.Dirichlet(T([0.1, 1.0, 6.0])),
    "MultivariateNormal": lambda: d.MultivariateNormal(T([1.0, 2.0]), T([[2.0, 1.0], [1.0, 3.0]])),
    "LowRankMultivariateNormal": lambda: d.LowRankMultivariateNormal(
        T([1.0, 2.0]), T([[1.0], [2.0]]), T([0.5, 1.0])
    ),
    "Wishart": lambda: d.Wishart(5.0, T([[2.0, 1.0], [1.0, 3.0]])),
    "Independent": lambda: d.Independent(d.Normal(T([1.0, 2.0]), 1.0), 1),
    "MixtureSameFamily": lambda: d.MixtureSameFamily(
        d.Categorical(T([0.3, 0.7])), d.Normal(T([0.0, 5.0]), T([1.0, 2.0]))
    ),
}


@pytest.mark.parametrize("name", MAKE)
def test_samples_have_the_mean_and_the_variance(name: str) -> None:
    Tensor.manual_seed(11)
    made = MAKE[name]()
    drawn = made.sample((COUNT,)).numpy().astype(np.float64)
    assert np.isfinite(drawn).all()
    mean, variance = made.mean.numpy(), made.variance.numpy()
    # Five standard errors: one of a million tests fails by chance, and the seed is fixed.
    assert (np.abs(drawn.mean(0) - mean) <= 5 * np.sqrt(variance / COUNT) + 1e-6).all()
    apart = (drawn - mean) ** 2
    error = apart.std(0) / math.sqrt(COUNT)
    assert (np.abs(apart.mean(0) - variance) <= 5 * error + 1e-5).all()


CONTINUOUS = {
    "Normal": lambda: d.Normal(0.3, 2.0),
    "Laplace": lambda: d.Laplace(1.0, 2.0),
    "Cauchy": lambda: d.Cauchy(1.0, 2.0),
    "Gumbel": lambda: d.Gumbel(1.0, 2.0),
    "Exponential": lambda: d.Exponential(0.5),
    "Gamma": lambda: d.Gamma(0.6, 2.0),
    "InverseGamma": lambda: d.InverseGamma(0.6, 2.0),
    "HalfCauchy": lambda: d.HalfCauchy(3.0),
    "Weibull": lambda: d.Weibull(2.0, 0.7),
    "Pareto": lambda: d.Pareto(2.0, 0.7),
    "Kumaraswamy": lambda: d.Kumaraswamy(0.5, 3.0),
    "ContinuousBernoulli": lambda: d.ContinuousBernoulli(0.2),
    "tanh": lambda: d.TransformedDistribution(d.Normal(0.1, 1.0), d.TanhTransform()),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_have_the_distribution(name: str) -> None:
    """The distance of Kolmogorov and Smirnov: above 2.2 / sqrt(n) with a probability of 1e-4."""
    Tensor.manual_seed(5)
    made = CONTINUOUS[name]()
    chances = np.sort(made.cdf(made.sample((COUNT,))).numpy())
    steps = np.arange(COUNT + 1) / COUNT
    distance = max(np.abs(chances - steps[1:]).max(), np.abs(chances - steps[:-1]).max())
    assert distance < 2.2 / math.sqrt(COUNT)


DISCRETE = {
    "Poisson": lambda: d.Poisson(4.0),
    "Poisson of a high rate": lambda: d.Poisson(15.0),
    "Binomial": lambda: d.Binomial(12, 0.4),
    "Binomial of a high mean": lambda: d.Binomial(60, 0.6),
    "NegativeBinomial": lambda: d.NegativeBinomial(2.5, 0.6),
    "Geometric": lambda: d.Geometric(0.2),
    "Categorical": lambda: d.Categorical(T([1.0, 2.0, 0.0, 5.0])),
    "Categorical by logits": lambda: d.Categorical(logits=T([1.0, 2.0, -1.0, 0.0])),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_numbers_come_as_often_as_they_should(name: str) -> None:
    Tensor.manual_seed(5)
    made = DISCRETE[name]()
    drawn = made.sample((COUNT,)).numpy().astype(int)
    numbers = np.arange(4 if name.startswith("Cat") else 100)
    chance = np.exp(made.log_prob(Tensor(numbers).cast(dtypes.float32)).numpy().astype(np.float64))
    assert abs(chance.sum() - 1) < 1e-4
    expected = COUNT * chance
    many = expected > 10
    counts = np.bincount(drawn, minlength=len(numbers))
    assert len(counts) == len(numbers)
    assert (np.abs(counts - expected)[many] < 5 * np.sqrt(expected[many])).all()
    assert abs(counts[~many].sum() - expected[~many].sum()) < 5 * math.sqrt(10 + expected.min())


def test_angles_have_the_mean_direction() -> None:
    Tensor.manual_seed(5)
    made = d.VonMises(3.0, T([0.01, 1.0, 50.0, 1e4]))
    drawn = made.sample((COUNT,)).numpy()
    assert (np.abs(drawn) <= np.float32(math.pi)).all()
    length = np.cos(drawn - 3.0).mean(0)
    assert np.allclose(length, 1 - made.variance.numpy(), atol=5 / math.sqrt(2 * COUNT))
    assert np.abs(np.sin(drawn - 3.0).mean(0)).max() < 5 / math.sqrt(2 * COUNT)


@pytest.mark.parametrize("name", ["Normal", "Gamma", "Poisson", "Multinomial", "Beta", "Binomial"])
def test_each_replay_draws_new_numbers(name: str) -> None:
    made = MAKE[name]()

    @TinyJit
    def draw() -> Tensor:
        return made.sample((50,)).realize()

    Tensor.manual_seed(2)
    found = [draw().numpy().copy() for _ in range(4)]
    Tensor.manual_seed(2)
    plain = [made.sample((50,)).numpy() for _ in range(4)]
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert all((found[i] != found[j]).any() for i in range(4) for j in range(i))


def test_parameters_of_a_captured_distribution_are_read_anew() -> None:
    @TinyJit
    def step(loc: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        made = d.Normal(loc, 1.0)
        return made.log_prob(x).realize(), d.kl_divergence(made, d.Normal(0.0, 1.0)).realize()

    for value in (0.0, 1.0, 2.0, 3.0):
        found, divergence = step(Tensor([value]).realize(), Tensor([1.0]).realize())
        exact = -((1 - value) ** 2) / 2 - math.log(2 * math.pi) / 2
        assert found.item() == pytest.approx(exact, rel=1e-5)
        assert divergence.item() == pytest.approx(value**2 / 2, rel=1e-5)


def test_a_captured_step_of_policy_gradients() -> None:
    weight = Tensor([0.0, 0.0, 0.0], requires_grad=True)

    @TinyJit
    def step() -> Tensor:
        with Tensor.train():
            policy = d.Categorical(logits=weight)
            action = policy.sample((64,))
            reward = (action == 2).float()
            weight.grad = None
            loss = -(policy.log_prob(action) * (reward - reward.mean())).mean()
            loss.backward()
            weight.assign(weight.detach() - weight.grad)
            return loss.realize()

    Tensor.manual_seed(0)
    for _ in range(60):
        step()
    assert weight.softmax().numpy()[2] > 0.9


@pytest.mark.parametrize("name", ["Normal", "Gamma", "Dirichlet", "Beta", "StudentT"])
def test_vmap_is_the_batch(name: str) -> None:
    if name == "Dirichlet":
        rows = Tensor([[0.5, 1.0, 2.0], [3.0, 2.0, 1.0]])
        value = Tensor([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
        make: Callable[[Tensor], Any] = d.Dirichlet
    else:
        rows, value = Tensor([0.5, 2.0, 7.0]), Tensor([0.3, 0.6, 0.9])
        kind = getattr(d, name)
        make = lambda row: kind(row, 2.0)  # noqa: E731
    mapped = ferrule.vmap(lambda row, x: make(row).log_prob(x))(rows, value)
    np.testing.assert_allclose(mapped.numpy(), make(rows).log_prob(value).numpy(), rtol=1e-5)
    drawn = ferrule.vmap(lambda row: make(row).rsample((3000,)), out_axes=1)(rows).numpy()
    exact = make(rows)
    bound = 6 * np.sqrt(exact.variance.numpy() / 3000)
    assert (np.abs(drawn.mean(0) - exact.mean.numpy()) < bound)[exact.mean.numpy() < np.inf].all()


# Gradients of samples


@pytest.mark.parametrize("shape", [0.01, 0.3, 1.0, 2.5, 40.0, 1e4])
@pytest.mark.parametrize("place", [-3.0, -1.0, -0.01, 0.0, 0.5, 3.0])
def test_gamma_samples_move_with_their_quantile(shape: float, place: float) -> None:
    """By the derivatives of the incomplete gamma function, to forty digits."""
    x = shape * math.exp(place / max(math.sqrt(shape), 1))
    with mpmath.workdps(40):
        step = mpmath.mpf(shape) * mpmath.mpf(10) ** -13
        ends = [mpmath.gammainc(shape + s, 0, x, regularized=True) for s in (step, -step)]
        exact = mpmath.gammainc(shape, 0, x, regularized=True)
        density = mpmath.exp(shape * mpmath.log(x) - x - mpmath.loggamma(shape))
        slope = float(-(ends[0] - ends[1]) / (2 * step) / density)
    concentration = Tensor(shape, dtype=dtypes.float64)
    found = log_sample_slope(concentration, Tensor(math.log(x), dtype=dtypes.float64)).item()
    assert found == pytest.approx(slope, rel=1e-9)
    chance = gammainc(concentration, Tensor(x, dtype=dtypes.float64)).item()
    assert chance == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "function", "slope"),
    [
        (lambda a: d.Gamma(a, 1.0), lambda x: x, lambda a: 1.0),
        (lambda a: d.Gamma(a, 1.0), lambda x: x.square(), lambda a: 2 * a + 1),
        (lambda a: d.Beta(a, 2.0), lambda x: x, lambda a: 2 / (a + 2) ** 2),
        (
            lambda a: d.Dirichlet(a.reshape(1).cat(Tensor([1.0, 1.0]))),
            lambda x: x[..., 0],
            lambda a: 2 / (a + 2) ** 2,
        ),
        (lambda a: d.InverseGamma(a + 4, 1.0), lambda x: x, lambda a: -1 / (a + 3) ** 2),
    ],
    ids=["gamma", "square of gamma", "beta", "dirichlet", "inverse gamma"],
)
@pytest.mark.parametrize("a", [0.2, 1.0, 3.0])
def test_gradients_of_means_of_samples(
    make: Callable[[Tensor], Any], function: Any, slope: Any, a: float
) -> None:
    Tensor.manual_seed(3)
    copies = 20000
    given = Tensor.full((copies,), a, requires_grad=True)
    # One parameter for each sample, so that the spread of the gradients is known.
    if make(Tensor(a)).event_shape:
        rows = given.unsqueeze(1).cat(Tensor.ones(copies, 2), dim=1)
        drawn = d.Dirichlet(rows).rsample()
    else:
        drawn = make(given).rsample()
    function(drawn).sum().backward()
    found = given.grad.numpy()  # type: ignore[union-attr]
    error = found.std() / math.sqrt(copies)
    assert abs(found.mean() - slope(a)) < 5 * error + 1e-6


def test_gradients_of_gammainc() -> None:
    shape = Tensor([0.5, 2.0, 8.0], dtype=dtypes.float64, requires_grad=True)
    x = Tensor([0.4, 3.0, 5.0], dtype=dtypes.float64, requires_grad=True)
    gammainc(shape, x).sum().backward()
    for place in range(3):
        a, value = shape.numpy()[place], x.numpy()[place]

        def exact(a: Any, value: Any) -> Any:
            return mpmath.gammainc(a, 0, value, regularized=True)

        for tensor, slope in (
            (shape, mpmath.diff(lambda s: exact(s, value), a)),  # noqa: B023
            (x, mpmath.diff(lambda s: exact(a, s), value)),  # noqa: B023
        ):
            assert tensor.grad is not None
            assert tensor.grad.numpy()[place] == pytest.approx(float(slope), rel=1e-8)


def test_rsample_of_a_mean_field_posterior_learns() -> None:
    """Variational inference of the mean of normal data: the posterior is known."""
    data = Tensor(np.random.default_rng(0).normal(2.0, 1.0, 50).astype(np.float32))
    loc, log_scale = (Tensor(0.0, requires_grad=True) for _ in range(2))
    optimizer = ferrule.nn.optim.Adam([loc, log_scale], lr=0.05)

    @TinyJit
    def step() -> Tensor:
        with Tensor.train():
            q = d.Normal(loc, log_scale.exp())
            z = q.rsample((16,))
            fit = d.Normal(z.unsqueeze(1), 1.0).log_prob(data).sum(1).mean()
            loss = d.kl_divergence(q, d.Normal(0.0, 10.0)) - fit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.realize()

    Tensor.manual_seed(1)
    for _ in range(300):
        step()
    assert loc.item() == pytest.approx(data.mean().item(), abs=0.1)
    assert log_scale.exp().item() == pytest.approx(1 / math.sqrt(50), abs=0.05)


# Dtypes, shapes, errors


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("name", ["Normal", "Gamma", "Gumbel", "Exponential", "Laplace"])
def test_dtypes_of_parameters_are_those_of_samples(name: str, dtype: Any) -> None:
    one = Tensor([1.5, 2.0], dtype=dtype)
    made = d.Exponential(one) if name == "Exponential" else getattr(d, name)(one, 1.0)
    drawn = made.sample((1000,))
    assert drawn.dtype == dtype
    assert made.log_prob(drawn).dtype == dtype
    assert bool(drawn.isfinite().all().item())


def test_numbers_take_the_dtype_of_tensors_and_integers_become_floats() -> None:
    assert d.Normal(Tensor([1, 2]), 1).loc.dtype == dtypes.default_float
    assert d.Normal(0, Tensor([1.0], dtype=dtypes.float64)).loc.dtype == dtypes.float64
    assert d.Normal(np.zeros(3, np.float32), 1.0).sample((2,)).shape == (2, 3)
    assert d.Normal(0.0, 1.0).sample(4).shape == (4,)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: d.Normal(0.0, -1.0), "Normal: scale is -1.0; it must be positive"),
        (lambda: d.Bernoulli(1.5), "Bernoulli: probs is 1.5; it must be between 0 and 1"),
        (lambda: d.Bernoulli(), "Bernoulli: give one of probs, logits, not none"),
        (lambda: d.Bernoulli(0.5, 0.5), "not probs and logits"),
        (lambda: d.Uniform(1.0, 1.0), "Uniform: low 1.0 is not below high 1.0"),
        (lambda: d.Normal(Tensor.zeros(2), Tensor.ones(3)), r"Normal.*do not broadcast"),
        (lambda: d.Normal(0.0, T([-1.0]), validate_args=True), "some values of scale"),
        (lambda: d.Dirichlet(1.0), "Dirichlet: concentration has the shape"),
        (lambda: d.Multinomial(2.5, T([1.0, 1.0])), "total_count is one whole number"),
        (lambda: d.Poisson(1.0, validate_args=True).log_prob(0.5), "the value.*whole number"),
        (lambda: d.MultivariateNormal(T([0.0]), Tensor.eye(2)), "does not fit vectors"),
        (lambda: d.Independent(d.Normal(0.0, 1.0), 1), "reinterpreted_batch_ndims is 1"),
        (lambda: d.Poisson(1.0).rsample(), "Poisson has no rsample"),
        (lambda: d.Beta(1.0, 1.0).cdf(0.5), "Beta has no cdf"),
        (lambda: d.kl_divergence(d.Normal(0.0, 1.0), d.Beta(1.0, 1.0)), "no formula for Normal"),
        (lambda: d.Normal(0.0, scal=1.0), "Normal got an unexpected keyword argument 'scal'"),
        (lambda: d.MixtureSameFamily(d.Categorical(T([1.0])), d.Normal(0.0, 1.0)), "last axis"),
        (lambda: d.TransformedDistribution(d.Normal(0.0, 1.0), [3]), "no Transform"),
    ],
)
def test_errors(build: Callable[[], Any], text: str) -> None:
    kinds = (ValueError, TypeError, NotImplementedError, AttributeError)
    with pytest.raises(kinds, match=text):
        build()


def test_checks_can_be_left_out_and_made_the_rule() -> None:
    d.Normal(0.0, -1.0, validate_args=False)
    d.Normal(0.0, T([-1.0]))
    d.Distribution.set_default_validate_args(True)
    try:
        with pytest.raises(ValueError, match="some values of scale"):
            d.Normal(0.0, T([-1.0]))
    finally:
        d.Distribution.set_default_validate_args(None)


def test_expand_keeps_parameters_and_settings() -> None:
    made = d.Multinomial(5, logits=T([0.0, 1.0])).expand((3,))
    assert made.sample().sum(-1).tolist() == [5.0, 5.0, 5.0]
    assert d.Chi2(T([1.0, 2.0])).expand((4, 2)).sample().shape == (4, 2)
    assert repr(d.Normal(T([1.0, 2.0]), 1.0)) == "Normal(loc: (2,), scale: (2,))"


@pytest.mark.parametrize("draw", ["sample", "rsample"])
def test_a_cached_sample_needs_no_inverse(draw: str) -> None:
    """tanh(20) is 1 in float32, whose inverse is infinite."""
    made = d.TransformedDistribution(d.Normal(20.0, 1e-3), [d.TanhTransform(cache_size=1)])
    sample = getattr(made, draw)((3,))
    assert sample.tolist() == [1.0] * 3
    assert made.log_prob(sample).isfinite().all().item()
    assert not made.log_prob(Tensor([1.0])).isfinite().all().item()
    plain = d.TransformedDistribution(d.Normal(20.0, 1e-3), [d.TanhTransform()])
    assert not plain.log_prob(getattr(plain, draw)()).isfinite().item()


def test_a_cached_sample_has_the_same_gradients() -> None:
    found = []
    for size in (0, 1):
        mean = Tensor(0.5, requires_grad=True)
        chain = [d.AffineTransform(1.0, 2.0), d.TanhTransform(cache_size=size)]
        made = d.TransformedDistribution(d.Normal(mean, 0.1), chain)
        Tensor.manual_seed(3)
        made.log_prob(made.rsample()).backward()
        assert mean.grad is not None
        found.append(mean.grad.item())
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_cache_has_one_place_at_most() -> None:
    with pytest.raises(ValueError, match="cache_size is 2"):
        d.ExpTransform(2)
