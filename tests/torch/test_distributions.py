"""`ferrule.distributions` beside `torch.distributions`: probabilities, gradients, divergences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor
from ferrule import distributions as ours
from ferrule.distributions.kl import _TABLE

torch = pytest.importorskip("torch")
theirs = torch.distributions
pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)


def matrix(size: int, batch: int = 2) -> Array:
    factor = RNG.standard_normal((batch, size, size))
    return factor @ factor.transpose(0, 2, 1) + size * np.eye(size)


A = np.array([0.4, 1.7, 3.2])
B = np.array([[0.6], [2.5]])
P = np.array([0.1, 0.5004, 0.8])
ROWS = np.array([[0.2, 0.3, 0.5], [1.0, 2.0, 4.0]])
LOGITS = RNG.standard_normal((2, 3))
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Normal", {"loc": A, "scale": B}),
    ("Normal", {"loc": 0.5, "scale": A}),
    ("Laplace", {"loc": A, "scale": B}),
    ("Cauchy", {"loc": A, "scale": B}),
    ("Gumbel", {"loc": A, "scale": B}),
    ("StudentT", {"df": A + 0.7, "loc": B, "scale": A}),
    ("VonMises", {"loc": A, "concentration": B}),
    ("Exponential", {"rate": A}),
    ("Gamma", {"concentration": A, "rate": B}),
    ("Chi2", {"df": A}),
    ("InverseGamma", {"concentration": A, "rate": B}),
    ("LogNormal", {"loc": A, "scale": B}),
    ("HalfNormal", {"scale": A}),
    ("HalfCauchy", {"scale": A}),
    ("Weibull", {"scale": A, "concentration": B}),
    ("Pareto", {"scale": A, "alpha": B}),
    ("FisherSnedecor", {"df1": A + 1, "df2": B + 2.5}),
    ("Uniform", {"low": A, "high": A + B}),
    ("Beta", {"concentration1": A, "concentration0": B}),
    ("Kumaraswamy", {"concentration1": A, "concentration0": B}),
    ("ContinuousBernoulli", {"probs": P}),
    ("ContinuousBernoulli", {"logits": A - 1}),
    ("Bernoulli", {"probs": P}),
    ("Bernoulli", {"logits": A - 1}),
    ("Geometric", {"probs": P}),
    ("Geometric", {"logits": A - 1}),
    ("Binomial", {"total_count": 7, "probs": P}),
    ("Binomial", {"total_count": 7, "logits": A - 1}),
    ("NegativeBinomial", {"total_count": B, "probs": P}),
    ("NegativeBinomial", {"total_count": B, "logits": A - 1}),
    ("Poisson", {"rate": A}),
    ("Categorical", {"probs": ROWS}),
    ("Categorical", {"logits": LOGITS}),
    ("OneHotCategorical", {"probs": ROWS}),
    ("OneHotCategoricalStraightThrough", {"logits": LOGITS}),
    ("Multinomial", {"total_count": 5, "probs": ROWS}),
    ("Multinomial", {"total_count": 5, "logits": LOGITS}),
    ("RelaxedBernoulli", {"temperature": 0.7, "probs": P}),
    ("RelaxedOneHotCategorical", {"temperature": 0.7, "logits": LOGITS}),
    ("Dirichlet", {"concentration": ROWS + 0.3}),
    ("Dirichlet", {"concentration": ROWS + 1.3}),
    ("MultivariateNormal", {"loc": LOGITS, "covariance_matrix": matrix(3)}),
    ("MultivariateNormal", {"loc": LOGITS, "precision_matrix": matrix(3)}),
    ("MultivariateNormal", {"loc": LOGITS, "scale_tril": np.linalg.cholesky(matrix(3)[0])}),
    (
        "LowRankMultivariateNormal",
        {
            "loc": LOGITS,
            "cov_factor": RNG.standard_normal((3, 2)),
            "cov_diag": np.array([0.5, 1.0, 2.0]),
        },
    ),
    ("Wishart", {"df": np.array([3.5, 5.0]), "covariance_matrix": matrix(3)}),
    ("Wishart", {"df": np.array([4.5, 5.5]), "precision_matrix": matrix(3)}),
]
IDS = [f"{name}-{'-'.join(given)}" for name, given in CASES]
WHOLE = ("total_count", "temperature")  # numbers with a role of their own


def made(name: str, given: dict[str, Any]) -> tuple[Any, Any, dict[str, tuple[Any, Any]]]:
    """Our distribution, PyTorch's, and their parameters, which need gradients."""
    pairs: dict[str, tuple[Any, Any]] = {}
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            pairs[key] = (
                Tensor(value, requires_grad=True),
                torch.tensor(value, requires_grad=True),
            )
    # A number takes the type of the tensors, as PyTorch's default type here.
    mine = {**given, **{key: one for key, (one, _) in pairs.items()}}
    other = {**given, **{key: other for key, (_, other) in pairs.items()}}
    if "temperature" in given:
        other["temperature"] = torch.tensor(given["temperature"], dtype=torch.float64)
    return getattr(ours, name)(**mine), getattr(theirs, name)(**other), pairs


def assert_close(one: Any, other: Any, rtol: float = 1e-9) -> None:
    found, exact = one.numpy(), other.detach().numpy()
    assert found.shape == exact.shape
    np.testing.assert_allclose(found, exact, rtol=rtol, atol=rtol)


def value_of(reference: Any, name: str) -> Any:
    torch.manual_seed(5)
    value = reference.sample((4,)).double()
    if name == "Wishart":
        value = (value + value.mT) / 2
    return value


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_log_prob_and_its_gradients(name: str, given: dict[str, Any]) -> None:
    mine, reference, pairs = made(name, given)
    assert tuple(mine.batch_shape) == tuple(reference.batch_shape)
    assert tuple(mine.event_shape) == tuple(reference.event_shape)
    value = value_of(reference, name)
    found, exact = mine.log_prob(Tensor(value.numpy())), reference.log_prob(value)
    # PyTorch has polynomials of ten terms for Bessel's functions.
    rtol = 1e-7 if name == "VonMises" else 1e-9
    assert_close(found, exact, rtol)
    slope = np.random.default_rng(1).standard_normal(tuple(exact.shape))
    (found * Tensor(slope)).sum().backward()
    (exact * torch.tensor(slope)).sum().backward()
    for one, other in pairs.values():
        if other.grad is not None:
            # Of a positive definite matrix only the symmetric part matters.
            ours_, theirs_ = one.grad.numpy(), other.grad.numpy()
            if "matrix" in " ".join(pairs) and ours_.ndim == 3:
                ours_, theirs_ = (g + g.transpose(0, 2, 1) for g in (ours_, theirs_))
            np.testing.assert_allclose(ours_, theirs_, rtol=10 * rtol, atol=10 * rtol)


@pytest.mark.parametrize("what", ["mean", "mode", "variance", "stddev", "entropy"])
@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_moments(name: str, given: dict[str, Any], what: str) -> None:
    mine, reference, _ = made(name, given)
    try:
        exact = getattr(reference, what)
        exact = exact() if what == "entropy" else exact
    except NotImplementedError:
        pytest.skip("PyTorch has none")
    found = getattr(mine, what)
    found = found() if what == "entropy" else found
    if what == "mode":
        # PyTorch has NaN or any vertex where the density is not bounded.
        same = found.numpy() == exact.detach().numpy()
        at_least = mine.log_prob(found) >= mine.log_prob(Tensor(exact.detach().numpy()))
        better = at_least.numpy().reshape(*at_least.shape, *[1] * len(mine.event_shape))
        keep = np.isnan(exact.detach().numpy()) | (better & ~same)
        exact = torch.where(torch.tensor(keep), torch.tensor(found.numpy()), exact)
    assert_close(found, exact, 1e-7 if name == "VonMises" else 1e-9)


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_cdf_and_icdf(name: str, given: dict[str, Any]) -> None:
    mine, reference, _ = made(name, given)
    value = value_of(reference, name)
    try:
        exact = reference.cdf(value)
    except NotImplementedError:
        pytest.skip("PyTorch has none")
    assert_close(mine.cdf(Tensor(value.numpy())), exact)
    chances = torch.rand(exact.shape)
    try:
        exact = reference.icdf(chances)
    except NotImplementedError:
        return
    assert_close(mine.icdf(Tensor(chances.numpy())), exact)


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_expanded_samples_are_in_the_support(name: str, given: dict[str, Any]) -> None:
    mine, reference, _ = made(name, given)
    batch = (5, *mine.batch_shape)
    wide, exact = mine.expand(batch), reference.expand(torch.Size(batch))
    assert tuple(wide.batch_shape) == tuple(exact.batch_shape) == batch
    drawn = wide.sample((2,))
    assert tuple(drawn.shape) == tuple(exact.sample((2,)).shape)
    assert bool(wide.support.check(drawn).all().item())
    value = torch.tensor(drawn.numpy())
    assert bool(exact.support.check(value).all()) or name == "Wishart"
    assert_close(wide.log_prob(drawn), exact.log_prob(value), rtol=1e-7)
    assert mine.has_rsample == reference.has_rsample


@pytest.mark.parametrize("name", ["Bernoulli", "Categorical", "OneHotCategorical", "Binomial"])
@pytest.mark.parametrize("expand", [True, False])
def test_enumerated_support(name: str, expand: bool) -> None:
    given = next(given for other, given in CASES if other == name)
    mine, reference, _ = made(name, given)
    assert_close(mine.enumerate_support(expand), reference.enumerate_support(expand))


def others(given: dict[str, Any]) -> dict[str, Any]:
    """Other parameters of the same kind."""
    changed = {}
    for key, value in given.items():
        keep = not isinstance(value, np.ndarray) or key in ("low", "probs", "high")
        changed[key] = value if keep else value * 1.1 + (0.1 if value.ndim < 2 else 0)
    if "probs" in given and isinstance(given["probs"], np.ndarray):
        changed["probs"] = given["probs"] ** 2
    return changed


def kl_cases() -> list[tuple[str, str]]:
    names = list(dict.fromkeys(name for name, _ in CASES))
    found = []
    for p in names:
        for q in names:
            kinds = [getattr(ours, name) for name in (p, q)]
            if any((a, b) in _TABLE for a in kinds[0].__mro__ for b in kinds[1].__mro__):
                found.append((p, q))
    return found


def test_there_are_many_pairs() -> None:
    assert len(kl_cases()) >= 50


@pytest.mark.parametrize(("p", "q"), kl_cases(), ids=["-".join(pair) for pair in kl_cases()])
def test_divergences(p: str, q: str) -> None:
    first = next(given for name, given in CASES if name == p)
    second = others(next(given for name, given in CASES if name == q))
    if p == "Uniform" and q in ("Beta", "Uniform"):
        first = {"low": np.array([0.1, 0.2, 0.3]), "high": np.array([[0.7], [0.9]])}
    if p == q == "Pareto":
        first = {"scale": A * 2, "alpha": B}
    if q == "Uniform":
        second = {"low": np.array(0.0), "high": np.array([0.8, 0.95, 1.0])}
    if p == "LogNormal":
        first = {"loc": A / 3, "scale": B / 10}  # for samples with a small variance
    if q == "Pareto" and p == "Pareto":
        second = {"scale": A, "alpha": B * 1.1}
    mine, reference, pairs = made(p, first)
    mine_q, reference_q, _ = made(q, second)
    try:
        exact = theirs.kl_divergence(reference, reference_q)
    except NotImplementedError:
        exact = None
    if exact is None or p == "Wishart":  # PyTorch's divergence of Wisharts may be below 0
        check_by_samples(mine, mine_q)
        return
    found = ours.kl_divergence(mine, mine_q)
    assert_close(found, exact)
    if not np.isfinite(found.numpy()).all():
        return
    found.sum().backward()
    exact.sum().backward()
    for one, other in pairs.values():
        slopes = [np.zeros(one.shape) if t.grad is None else t.grad.numpy() for t in (one, other)]
        if "matrix" in " ".join(pairs) and one.ndim == 3:
            slopes = [g + g.transpose(0, 2, 1) for g in slopes]
        np.testing.assert_allclose(*slopes, rtol=1e-8, atol=1e-8)


def check_by_samples(p: Any, q: Any) -> None:
    """The divergence against the mean over samples, within five standard errors."""
    Tensor.manual_seed(4)
    drawn = p.sample((40000,))
    parts = (p.log_prob(drawn) - q.log_prob(drawn)).numpy()
    error = parts.std(0) / np.sqrt(len(parts))
    found = ours.kl_divergence(p, q).numpy()
    assert (np.abs(parts.mean(0) - found) < 5 * error + 1e-12).all()


# Combinations


def both(build: Callable[[Any, Callable[..., Any]], Any]) -> tuple[Any, Any]:
    return build(ours, Tensor), build(theirs, torch.tensor)


MADE: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
    "independent": lambda d, t: d.Independent(d.Normal(t(LOGITS), t(A)), 1),
    "mixture": lambda d, t: d.MixtureSameFamily(
        d.Categorical(t(ROWS)), d.Normal(t(LOGITS), t(np.abs(LOGITS)))
    ),
    "mixture of vectors": lambda d, t: d.MixtureSameFamily(
        d.Categorical(logits=t(LOGITS[0, :2])), d.MultivariateNormal(t(LOGITS), t(matrix(3)))
    ),
    "sigmoid": lambda d, t: d.TransformedDistribution(
        d.Normal(t(A), t(B)), d.transforms.SigmoidTransform()
    ),
    "tanh of affine": lambda d, t: d.TransformedDistribution(
        d.Normal(t(A), t(B)),
        [d.transforms.AffineTransform(t(B), t(-A)), d.transforms.TanhTransform()],
    ),
    "power of exp": lambda d, t: d.TransformedDistribution(
        d.Normal(t(A), t(B)),
        [d.transforms.ExpTransform(), d.transforms.PowerTransform(t(np.array(2.0)))],
    ),
    "softplus": lambda d, t: d.TransformedDistribution(
        d.Laplace(t(A), t(B)), d.transforms.SoftplusTransform()
    ),
    "stick breaking": lambda d, t: d.TransformedDistribution(
        d.Normal(t(LOGITS), t(A)), d.transforms.StickBreakingTransform()
    ),
    "stick breaking of exp": lambda d, t: d.TransformedDistribution(
        d.Independent(d.Normal(t(LOGITS), t(A)), 1),
        [d.transforms.TanhTransform(), d.transforms.StickBreakingTransform()],
    ),
    "reshaped": lambda d, t: d.TransformedDistribution(
        d.Independent(d.Normal(t(RNG.standard_normal((2, 4)) * 0), t(np.array(1.0))), 1),
        [d.transforms.ReshapeTransform((4,), (2, 2)), d.transforms.ExpTransform()],
    ),
    "inverse": lambda d, t: d.TransformedDistribution(
        d.Exponential(t(A)), d.transforms.ExpTransform().inv
    ),
    "composed": lambda d, t: d.TransformedDistribution(
        d.Normal(t(A), t(B)),
        d.transforms.ComposeTransform(
            [d.transforms.AffineTransform(t(B), t(A)), d.transforms.ExpTransform()]
        ),
    ),
    "independent transform": lambda d, t: d.TransformedDistribution(
        d.Normal(t(LOGITS), t(A)),
        d.transforms.IndependentTransform(d.transforms.ExpTransform(), 1),
    ),
    "affine of vectors": lambda d, t: d.TransformedDistribution(
        d.MultivariateNormal(t(LOGITS), t(matrix(3))),
        d.transforms.AffineTransform(t(A), t(A), event_dim=1),
    ),
}


@pytest.mark.parametrize("what", MADE)
def test_combinations(what: str) -> None:
    state = RNG.bit_generator.state
    mine = MADE[what](ours, Tensor)
    RNG.bit_generator.state = state
    reference = MADE[what](theirs, torch.tensor)
    assert tuple(mine.batch_shape) == tuple(reference.batch_shape)
    assert tuple(mine.event_shape) == tuple(reference.event_shape)
    value = value_of(reference, what)
    assert_close(mine.log_prob(Tensor(value.numpy())), reference.log_prob(value))
    drawn = mine.sample((3,))
    assert tuple(drawn.shape) == tuple(reference.sample((3,)).shape)
    assert_close(mine.log_prob(drawn), reference.log_prob(torch.tensor(drawn.numpy())), 1e-7)
    wide, exact = mine.expand((5, *mine.batch_shape)), reference.expand((5, *mine.batch_shape))
    assert_close(wide.log_prob(Tensor(value[0].numpy())), exact.log_prob(value[0]))
    for name in ("mean", "variance"):
        try:
            other = getattr(reference, name)
        except NotImplementedError:
            continue
        assert_close(getattr(mine, name), other)
    try:
        other = reference.cdf(value)
    except NotImplementedError:
        return
    assert_close(mine.cdf(Tensor(value.numpy())), other)


TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Array]] = {
    "exp": (lambda t: t.ExpTransform(), LOGITS),
    "power": (lambda t: t.PowerTransform(3.0), np.abs(LOGITS)),
    "sigmoid": (lambda t: t.SigmoidTransform(), LOGITS * 9),
    "tanh": (lambda t: t.TanhTransform(), LOGITS * 2),
    "softplus": (lambda t: t.SoftplusTransform(), LOGITS),
    "affine": (lambda t: t.AffineTransform(2.0, -3.0, 1), LOGITS),
    "stick breaking": (lambda t: t.StickBreakingTransform(), LOGITS),
    "lower cholesky": (lambda t: t.LowerCholeskyTransform(), RNG.standard_normal((2, 3, 3))),
    "softmax": (lambda t: t.SoftmaxTransform(), LOGITS),
    "abs": (lambda t: t.AbsTransform(), LOGITS),
    "composed": (
        lambda t: t.ComposeTransform([t.AffineTransform(0.0, 0.5), t.StickBreakingTransform()]),
        LOGITS,
    ),
}


@pytest.mark.parametrize("what", TRANSFORMS)
def test_transforms(what: str) -> None:
    build, value = TRANSFORMS[what]
    mine, reference = build(ours.transforms), build(theirs.transforms)
    x, y = Tensor(value), torch.tensor(value)
    assert_close(mine(x), reference(y))
    assert_close(mine.inv(mine(x)), reference.inv(reference(y)), 1e-7)
    assert mine.bijective == reference.bijective or what == "lower cholesky"
    assert mine.domain.event_dim == reference.domain.event_dim
    assert mine.codomain.event_dim == reference.codomain.event_dim
    assert tuple(mine.forward_shape((4, 3, 3))) == tuple(reference.forward_shape((4, 3, 3)))
    assert bool(mine.codomain.check(mine(x)).all().item())
    try:
        exact = reference.log_abs_det_jacobian(y, reference(y))
    except NotImplementedError:
        with pytest.raises(NotImplementedError):
            mine.log_abs_det_jacobian(x, mine(x))
        return
    assert_close(mine.log_abs_det_jacobian(x, mine(x)), exact)


def test_all_names_of_pytorch_that_are_meant_to_be_here() -> None:
    missing = set(theirs.__all__) - set(ours.__all__)
    assert missing == {
        "CatTransform",
        "CorrCholeskyTransform",
        "CumulativeDistributionTransform",
        "ExponentialFamily",
        "GeneralizedPareto",
        "LKJCholesky",
        "LogisticNormal",
        "PositiveDefiniteTransform",
        "StackTransform",
        "biject_to",
        "transform_to",
    }
