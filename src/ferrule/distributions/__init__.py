"""Probability distributions: samples, also with gradients, `log_prob`, `cdf`, `kl_divergence`.

Names, parameters and results are those of `torch.distributions`.
"""

from ferrule.distributions import constraints, transforms
from ferrule.distributions.categorical import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    RelaxedOneHotCategorical,
)
from ferrule.distributions.combined import (
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
)
from ferrule.distributions.discrete import (
    Bernoulli,
    Binomial,
    Geometric,
    NegativeBinomial,
    Poisson,
    RelaxedBernoulli,
)
from ferrule.distributions.distribution import Distribution
from ferrule.distributions.interval import Beta, ContinuousBernoulli, Kumaraswamy, Uniform
from ferrule.distributions.kl import kl_divergence, register_kl
from ferrule.distributions.location import Cauchy, Gumbel, Laplace, Normal, StudentT, VonMises
from ferrule.distributions.multivariate import (
    Dirichlet,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Wishart,
)
from ferrule.distributions.positive import (
    Chi2,
    Exponential,
    FisherSnedecor,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Pareto,
    Weibull,
)
from ferrule.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "ContinuousBernoulli",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "FisherSnedecor",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "Laplace",
    "LogNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transforms",
]
