"""Distributions over vectors and matrices: Dirichlet, normal, Wishart."""

from __future__ import annotations

import math
from typing import ClassVar, final

from ferrule.autograd import Shape
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Distribution, Parameter
from ferrule.distributions.sampling import log_gamma_sample
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size

_LOG_TWO_PI = math.log(2 * math.pi)


@final
class Dirichlet(Distribution):
    """The Dirichlet distribution: vectors of probabilities, by concentrations in the last axis.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Dirichlet
    >>> Dirichlet(Tensor([1.0, 3.0])).mean.tolist()
    [0.25, 0.75]
    """

    arg_constraints: ClassVar = {"concentration": constraints.positive_vector}
    has_rsample = True
    concentration: Tensor

    def __init__(self, concentration: Parameter, validate_args: bool | None = None) -> None:
        self._set_up(validate_args, concentration=concentration)
        self._size = known_size(self.concentration.shape[-1], "Dirichlet")
        self._event_shape = (self._size,)

    @property
    def support(self) -> Constraint:
        return constraints.simplex

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        above = (self.concentration - 1).clamp(min=0)
        found = above / above.sum(-1, keepdim=True)
        largest = self.concentration.argmax(-1).one_hot(self._size).cast(above.dtype)
        return (self.concentration < 1).all(-1, keepdim=True).where(largest, found)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def _draw(self, shape: Shape) -> Tensor:
        return log_gamma_sample(self.concentration.expand(*shape)).softmax(-1)

    def _log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return (a - 1).xlogy(value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, events = self.concentration, self._size
        total = a.sum(-1)
        slopes = (total - events) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)
        return a.lgamma().sum(-1) - total.lgamma() + slopes


def cholesky_of_inverse(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of the inverse of a positive definite matrix."""
    # With rows and columns in reverse order the factor is that of matrix = upper @ upper.T.
    lower = matrix.flip((-2, -1)).cholesky().flip((-2, -1)).mT
    return lower.solve_triangular(_identity(lower), upper=False)


def _identity(like: Tensor) -> Tensor:
    eye = Tensor.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape)


def inverse_of(factor: Tensor) -> Tensor:
    """The inverse of L @ L.T for a lower triangle L."""
    inverse = factor.solve_triangular(_identity(factor), upper=False)
    return inverse.mT @ inverse


def squared_length(factor: Tensor, vectors: Tensor) -> Tensor:
    """x @ inv(L @ L.T) @ x for a lower triangle L and each vector x, which broadcast."""
    rank = max(factor.ndim - 1, vectors.ndim)
    vectors = vectors.reshape(*[1] * (rank - vectors.ndim), *vectors.shape)
    factor = factor.reshape(*[1] * (rank + 1 - factor.ndim), *factor.shape)
    common = [
        a if b == 1 else b for a, b in zip(vectors.shape[:-1], factor.shape[:-2], strict=True)
    ]
    wide = factor.expand(*common, *factor.shape[-2:])
    column = vectors.expand(*common, vectors.shape[-1]).unsqueeze(-1)
    return wide.solve_triangular(column, upper=False).squeeze(-1).square().sum(-1)


def half_log_det(factor: Tensor) -> Tensor:
    """The logarithm of the determinant of a triangle: half of that of its product with itself."""
    return factor.diagonal(0, -2, -1).log().sum(-1)


class _WithCovariance(Distribution):
    """A distribution with one of three: a covariance, its inverse, or its lower Cholesky factor."""

    arg_constraints: ClassVar = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    has_rsample = True
    scale_tril: Tensor

    def _set_covariance(
        self,
        validate_args: bool | None,
        covariance_matrix: Parameter | None,
        precision_matrix: Parameter | None,
        scale_tril: Parameter | None,
        **others: Parameter,
    ) -> None:
        """Set the parameters, and the Cholesky factor, which all is computed with."""
        matrices = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        self._one_of(**matrices)
        (kind,) = [name for name, value in matrices.items() if value is not None]
        self._set_up(validate_args, **others, **matrices)
        matrix = self._given[kind]
        self._size = known_size(matrix.shape[-1], type(self).__name__)
        loc = self._given.get("loc", matrix)
        if (loc.shape[-1], *matrix.shape[-2:]) != (self._size,) * 3:
            raise ShapeError(
                f"{type(self).__name__}: {kind} of shape {tuple(matrix.shape)} does not fit vectors"
                f" of {loc.shape[-1]} elements"
            )
        if kind == "covariance_matrix":
            self.scale_tril = matrix.cholesky()
        elif kind == "precision_matrix":
            self.scale_tril = cholesky_of_inverse(matrix)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        given = self._given.get("covariance_matrix")
        return self.scale_tril @ self.scale_tril.mT if given is None else given

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        given = self._given.get("precision_matrix")
        return inverse_of(self.scale_tril) if given is None else given


@final
class MultivariateNormal(_WithCovariance):
    """Normal vectors with a mean `loc`, and one of three: their covariance, its inverse
    (`precision_matrix`), or its lower Cholesky factor (`scale_tril`), which needs no work.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import MultivariateNormal
    >>> MultivariateNormal(Tensor.zeros(2), Tensor.eye(2)).rsample((3,)).shape
    (3, 2)
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        **_WithCovariance.arg_constraints,
    }
    loc: Tensor

    def __init__(
        self,
        loc: Parameter,
        covariance_matrix: Parameter | None = None,
        precision_matrix: Parameter | None = None,
        scale_tril: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_covariance(
            validate_args, covariance_matrix, precision_matrix, scale_tril, loc=loc
        )
        self._event_shape = (self._size,)

    @property
    def support(self) -> Constraint:
        return constraints.real_vector

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1)

    def _draw(self, shape: Shape) -> Tensor:
        normal = self._normal(shape).unsqueeze(-1)
        return self.loc + (self.scale_tril @ normal).squeeze(-1)

    def _log_prob(self, value: Tensor) -> Tensor:
        length = squared_length(self.scale_tril, value - self.loc)
        constant = self._size * _LOG_TWO_PI / 2
        return -length / 2 - constant - half_log_det(self.scale_tril)

    def entropy(self) -> Tensor:
        return self._size * (1 + _LOG_TWO_PI) / 2 + half_log_det(self.scale_tril)


@final
class LowRankMultivariateNormal(Distribution):
    """Normal vectors whose covariance is `cov_factor @ cov_factor.T`, plus `cov_diag` diagonally.

    With a `cov_factor` of n x k it costs k x k matrices instead of n x n.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import LowRankMultivariateNormal
    >>> LowRankMultivariateNormal(Tensor.zeros(2), Tensor.ones(2, 1), Tensor.ones(2)).mean.tolist()
    [0.0, 0.0]
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.real_matrix,
        "cov_diag": constraints.positive_vector,
    }
    has_rsample = True
    loc: Tensor
    cov_factor: Tensor
    cov_diag: Tensor

    def __init__(
        self,
        loc: Parameter,
        cov_factor: Parameter,
        cov_diag: Parameter,
        validate_args: bool | None = None,
    ) -> None:
        self._set_up(validate_args, loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        self._size = known_size(self.loc.shape[-1], "LowRankMultivariateNormal")
        self._event_shape = (self._size,)
        sizes = [self.cov_factor.shape[-2], self.cov_diag.shape[-1]]
        if sizes != [*self._event_shape] * 2:
            raise ShapeError(
                f"LowRankMultivariateNormal: cov_factor and cov_diag are for {sizes[0]} and"
                f" {sizes[1]} elements, and loc has {self._event_shape[0]}"
            )

    @property
    def support(self) -> Constraint:
        return constraints.real_vector

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.cov_factor.square().sum(-1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return inverse_of(self.scale_tril)

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return self.covariance_matrix.cholesky()

    def _capacitance(self) -> tuple[Tensor, Tensor]:
        """The factor over the diagonal; the Cholesky factor of `1 + factor.T @ factor / diagonal`.

        Woodbury's formula has the inverse and the determinant by it.
        """
        scaled = self.cov_factor / self.cov_diag.unsqueeze(-1)
        inner = self.cov_factor.mT @ scaled
        return scaled, (inner + _identity(inner)).cholesky()

    def _draw(self, shape: Shape) -> Tensor:
        inner = self._normal((*shape[:-1], self.cov_factor.shape[-1])).unsqueeze(-1)
        outer = self.cov_diag.sqrt() * self._normal(shape)
        return self.loc + (self.cov_factor @ inner).squeeze(-1) + outer

    def _half_log_det(self, capacitance: Tensor) -> Tensor:
        return half_log_det(capacitance) + self.cov_diag.log().sum(-1) / 2

    def _log_prob(self, value: Tensor) -> Tensor:
        scaled, capacitance = self._capacitance()
        apart = value - self.loc
        inner = (scaled.mT @ apart.unsqueeze(-1)).squeeze(-1)
        length = (apart.square() / self.cov_diag).sum(-1) - squared_length(capacitance, inner)
        constant = self._size * _LOG_TWO_PI / 2
        return -length / 2 - constant - self._half_log_det(capacitance)

    def entropy(self) -> Tensor:
        constant = self._size * (1 + _LOG_TWO_PI) / 2
        return constant + self._half_log_det(self._capacitance()[1])


@final
class Wishart(_WithCovariance):
    """The Wishart distribution: of the sum of `df` products x @ x.T of normal vectors around 0.

    The vectors have one of three: a covariance, its inverse, or its lower Cholesky factor. `df` is
    above the size of the matrices less 1.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import Wishart
    >>> Wishart(3.0, Tensor.eye(2)).mean.tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """

    arg_constraints: ClassVar = {
        "df": constraints.positive,
        **_WithCovariance.arg_constraints,
    }
    df: Tensor

    def __init__(
        self,
        df: Parameter,
        covariance_matrix: Parameter | None = None,
        precision_matrix: Parameter | None = None,
        scale_tril: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_covariance(validate_args, covariance_matrix, precision_matrix, scale_tril, df=df)
        self._event_shape = (self._size, self._size)

    @property
    def support(self) -> Constraint:
        return constraints.positive_definite

    def _times_df(self, matrix: Tensor, less: int = 0) -> Tensor:
        return (self.df - less).unsqueeze(-1).unsqueeze(-1) * matrix

    @property
    def mean(self) -> Tensor:
        return self._times_df(self.covariance_matrix)

    @property
    def mode(self) -> Tensor:
        factor = self.df - (self._size + 1)
        factor = (factor > 0).where(factor, math.nan)
        return factor.unsqueeze(-1).unsqueeze(-1) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        covariance = self.covariance_matrix
        diagonal = covariance.diagonal(0, -2, -1)
        return self._times_df(covariance.square() + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def _degrees(self) -> Tensor:
        """The degrees of freedom of each row, over 2."""
        rows = Tensor.arange(self._size, device=self.df.device).cast(self.df.dtype)
        return (self.df.unsqueeze(-1) - rows) / 2

    def _draw(self, shape: Shape) -> Tensor:
        # Bartlett's decomposition.
        degrees = self._degrees().expand(*shape[:-1])
        diagonal = (2 * log_gamma_sample(degrees).exp()).sqrt()
        triangle = self._normal(shape).tril(-1) + diagonal.diag_embed()
        root = self.scale_tril @ triangle
        return root @ root.mT

    def _log_prob(self, value: Tensor) -> Tensor:
        size, half = self._size, self.df / 2
        rank = max(value.ndim, self.scale_tril.ndim)
        batch = self._batch_shape
        value = value.reshape(*[1] * (rank - value.ndim), *value.shape)
        whole = (*value.shape[: rank - 2 - len(batch)], *batch, size, size)
        value = value.expand(*whole)
        inner = inverse_of(self.scale_tril).expand(*whole)
        trace = (inner * value).sum((-2, -1))
        constant = half * size * math.log(2) + 2 * half * half_log_det(self.scale_tril)
        determinant = half_log_det(value.cholesky())
        return (self.df - size - 1) * determinant - trace / 2 - constant - half.mvlgamma(size)

    def entropy(self) -> Tensor:
        size, half = self._size, self.df / 2
        slopes = self._degrees().digamma().sum(-1)
        found = (size + 1) * (half_log_det(self.scale_tril) + size * math.log(2) / 2)
        return found + half.mvlgamma(size) - (self.df - size - 1) / 2 * slopes + size * half
