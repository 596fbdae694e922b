"""Constraints: the sets of numbers that parameters and samples of distributions come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.tensor import Tensor

Bound: TypeAlias = Tensor | float


@final
@dataclass(frozen=True)
class Constraint:
    """A set of values: `check(x)` is true for each value in it.

    `event_dim` axes at the end of a tensor are one value, such as a vector of probabilities.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.positive.check(Tensor([1.0, 0.0])).tolist()
    [True, False]
    >>> constraints.simplex.check(Tensor([0.25, 0.75])).item()
    True
    """

    name: str
    check: Callable[[Tensor], Tensor]
    event_dim: int = 0
    is_discrete: bool = False

    def __repr__(self) -> str:
        return self.name


def greater_than(lower_bound: Bound) -> Constraint:
    """Numbers above a bound.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.greater_than(1).check(Tensor([1.0, 2.0])).tolist()
    [False, True]
    """
    return Constraint(f"greater than {_shown(lower_bound)}", lambda x: x > lower_bound)


def greater_than_eq(lower_bound: Bound) -> Constraint:
    """Numbers of at least a bound.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.greater_than_eq(1).check(Tensor([1.0, 2.0])).tolist()
    [True, True]
    """
    return Constraint(f"at least {_shown(lower_bound)}", lambda x: x >= lower_bound)


def less_than(upper_bound: Bound) -> Constraint:
    """Numbers below a bound.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.less_than(1).check(Tensor([0.0, 1.0])).tolist()
    [True, False]
    """
    return Constraint(f"less than {_shown(upper_bound)}", lambda x: x < upper_bound)


def interval(lower_bound: Bound, upper_bound: Bound) -> Constraint:
    """Numbers between two bounds, which belong to it.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.interval(0, 1).check(Tensor([0.0, 2.0])).tolist()
    [True, False]
    """
    name = f"between {_shown(lower_bound)} and {_shown(upper_bound)}"
    return Constraint(name, lambda x: (x >= lower_bound) & (x <= upper_bound))


def half_open_interval(lower_bound: Bound, upper_bound: Bound) -> Constraint:
    """Numbers between two bounds, of which the lower one belongs to it.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.half_open_interval(0, 1).check(Tensor([0.0, 1.0])).tolist()
    [True, False]
    """
    name = f"at least {_shown(lower_bound)} and less than {_shown(upper_bound)}"
    return Constraint(name, lambda x: (x >= lower_bound) & (x < upper_bound))


def integer_interval(lower_bound: Bound, upper_bound: Bound) -> Constraint:
    """Whole numbers between two bounds, which belong to it.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.integer_interval(0, 3).check(Tensor([3.0, 0.5])).tolist()
    [True, False]
    """
    name = f"a whole number between {_shown(lower_bound)} and {_shown(upper_bound)}"
    return Constraint(
        name, lambda x: _is_whole(x) & (x >= lower_bound) & (x <= upper_bound), is_discrete=True
    )


def multinomial(upper_bound: Bound) -> Constraint:
    """Counts along the last axis, whose sum is a bound.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.multinomial(3).check(Tensor([1.0, 2.0])).item()
    True
    """

    def check(x: Tensor) -> Tensor:
        return (_is_whole(x) & (x >= 0)).all(-1) & (x.sum(-1) == upper_bound)

    return Constraint(f"counts with the sum {_shown(upper_bound)}", check, 1, is_discrete=True)


def independent(base: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """Values of which each is in a set; some axes more are one value.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions import constraints
    >>> constraints.independent(constraints.positive, 1).check(Tensor([1.0, -1.0])).item()
    False
    """
    if not reinterpreted_batch_ndims:
        return base

    def check(x: Tensor) -> Tensor:
        return base.check(x).all(tuple(range(-reinterpreted_batch_ndims, 0)))

    dims = base.event_dim + reinterpreted_batch_ndims
    return Constraint(base.name, check, dims, base.is_discrete)


def _shown(bound: Bound) -> str:
    if isinstance(bound, Tensor):
        return f"a tensor of shape {tuple(bound.shape)}"
    return f"{bound:g}"


def _is_whole(x: Tensor) -> Tensor:
    return x % 1 == 0


def _is_on_simplex(x: Tensor) -> Tensor:
    return (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6)


def _is_one_hot(x: Tensor) -> Tensor:
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)


def _is_lower_cholesky(x: Tensor) -> Tensor:
    zeros = (x.tril() == x).all((-2, -1))
    return zeros & (x.diagonal(0, -2, -1) > 0).all(-1)


def _is_positive_definite(x: Tensor) -> Tensor:
    symmetric = x.isclose(x.mT, atol=1e-6).all((-2, -1))
    return symmetric & (x.eigvalsh() > 0).all(-1)


real: Final = Constraint("a number", lambda x: x == x)
positive: Final = Constraint("positive", lambda x: x > 0)
nonnegative: Final = Constraint("at least 0", lambda x: x >= 0)
unit_interval: Final = Constraint("between 0 and 1", lambda x: (x >= 0) & (x <= 1))
open_unit_interval: Final = Constraint("above 0 and below 1", lambda x: (x > 0) & (x < 1))
boolean: Final = Constraint("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
nonnegative_integer: Final = Constraint(
    "a whole number of at least 0", lambda x: _is_whole(x) & (x >= 0), is_discrete=True
)
real_vector: Final = Constraint("a vector of real numbers", lambda x: (x == x).all(-1), 1)
positive_vector: Final = Constraint("a vector of positive numbers", lambda x: (x > 0).all(-1), 1)
nonnegative_vector: Final = Constraint(
    "a vector of numbers of at least 0, and not only 0",
    lambda x: (x >= 0).all(-1) & (x > 0).any(-1),
    1,
)
simplex: Final = Constraint("a vector of probabilities with the sum 1", _is_on_simplex, 1)
one_hot: Final = Constraint("a vector of one 1 and else 0", _is_one_hot, 1, is_discrete=True)
real_matrix: Final = Constraint("a matrix of real numbers", lambda x: (x == x).all((-2, -1)), 2)
lower_cholesky: Final = Constraint(
    "a lower triangle with a positive diagonal", _is_lower_cholesky, 2
)
positive_definite: Final = Constraint("positive definite", _is_positive_definite, 2)
