"""Invertible functions with the logarithms of their determinants, for transformed distributions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

from ferrule.autograd import Shape
from ferrule.base.helpers import prod
from ferrule.distributions import constraints
from ferrule.distributions.constraints import Constraint
from ferrule.distributions.distribution import Parameter, epsilon, summed
from ferrule.tensor import Tensor


class Transform(ABC):
    """A function of tensors, its inverse `inv`, and `log_abs_det_jacobian(x, y)`.

    `event_dim` axes at the end of an input are one value of the function. With `cache_size=1` a
    `TransformedDistribution` keeps what its last sample was made of: `log_prob` of that sample
    inverts nothing, so it is finite where the function is saturated.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import ExpTransform
    >>> double = ExpTransform()
    >>> double.inv(double(Tensor(2.0))).item()
    2.0
    """

    bijective: ClassVar[bool] = True
    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real
    cache_size: int = 0

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"{type(self).__name__}: cache_size is {cache_size}; it is 0 or 1")
        self.cache_size = cache_size

    @property
    def sign(self) -> int | Tensor:
        """1 for a function that grows everywhere, -1 for one that falls."""
        raise NotImplementedError(f"{type(self).__name__} neither grows nor falls everywhere")

    @property
    def event_dim(self) -> int:
        """The number of axes of one value."""
        return max(self.domain.event_dim, self.codomain.event_dim)

    @property
    def inv(self) -> Transform:
        """The inverse function."""
        return _Inverse(self)

    def __call__(self, x: Tensor) -> Tensor:
        """The function of a tensor."""
        return self._call(x)

    @abstractmethod
    def _call(self, x: Tensor) -> Tensor:
        """The function."""

    @abstractmethod
    def _inverse(self, y: Tensor) -> Tensor:
        """The inverse function."""

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the determinant of the derivatives, for an input and its output.

        >>> from ferrule import Tensor
        >>> from ferrule.distributions.transforms import AffineTransform
        >>> AffineTransform(0.0, 1.0).log_abs_det_jacobian(Tensor(3.0), Tensor(3.0)).item()
        0.0
        """
        raise NotImplementedError(f"{type(self).__name__} has no determinant")

    def forward_shape(self, shape: Shape) -> Shape:
        """The shape of the output for an input's.

        >>> from ferrule.distributions.transforms import StickBreakingTransform
        >>> StickBreakingTransform().forward_shape((2, 3))
        (2, 4)
        """
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        """The shape of the input for an output's.

        >>> from ferrule.distributions.transforms import StickBreakingTransform
        >>> StickBreakingTransform().inverse_shape((2, 4))
        (2, 3)
        """
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@final
class _Inverse(Transform):
    """The inverse of a transform."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform.cache_size)
        self._transform = transform
        self.domain, self.codomain = transform.codomain, transform.domain

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._transform.bijective

    @property
    def sign(self) -> int | Tensor:
        return self._transform.sign

    @property
    def inv(self) -> Transform:
        return self._transform

    def _call(self, x: Tensor) -> Tensor:
        return self._transform._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._transform._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._transform.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Shape) -> Shape:
        return self._transform.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._transform.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{self._transform!r}.inv"


class _Growing(Transform):
    """A function of one number that grows everywhere."""

    @property
    def sign(self) -> int:
        return 1


@final
class ExpTransform(_Growing):
    """exp(x).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import ExpTransform
    >>> ExpTransform()(Tensor(0.0)).item()
    1.0
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


@final
class PowerTransform(Transform):
    """x ** exponent, for positive x.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import PowerTransform
    >>> PowerTransform(2.0)(Tensor(3.0)).item()
    9.0
    """

    domain = constraints.positive
    codomain = constraints.positive

    def __init__(self, exponent: Parameter, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> int | Tensor:
        if isinstance(self.exponent, Tensor):
            return self.exponent.sign()
        return 1 if self.exponent > 0 else -1

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()


@final
class SigmoidTransform(_Growing):
    """1 / (1 + exp(-x)).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import SigmoidTransform
    >>> SigmoidTransform()(Tensor(0.0)).item()
    0.5
    """

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return clamped_to_open(x.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        return clamped_to_open(y).logit()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.logsigmoid() + (-x).logsigmoid()


def clamped_to_open(probability: Tensor) -> Tensor:
    """Probabilities that are not 0 or 1: the nearest numbers inside."""
    least = 2.0 ** -(2 ** (probability.dtype.exponent_bits - 1) - 2)  # the smallest normal number
    return probability.clamp(least, 1 - epsilon(probability.dtype))


@final
class TanhTransform(_Growing):
    """tanh(x).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import TanhTransform
    >>> TanhTransform()(Tensor(0.0)).item()
    0.0
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # 1 - tanh(x) ** 2, without the difference.
        return 2 * (math.log(2) - x - (-2 * x).softplus())


@final
class SoftplusTransform(_Growing):
    """log(1 + exp(x)).

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import SoftplusTransform
    >>> round(SoftplusTransform()(Tensor(0.0)).item(), 4)
    0.6931
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.softplus()

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.logsigmoid()


@final
class AbsTransform(Transform):
    """|x|; its inverse is the positive one of two.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import AbsTransform
    >>> AbsTransform()(Tensor(-2.0)).item()
    2.0
    """

    bijective = False
    codomain = constraints.nonnegative

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


@final
class AffineTransform(Transform):
    """loc + scale * x, over values with `event_dim` axes.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import AffineTransform
    >>> AffineTransform(1.0, 2.0)(Tensor(3.0)).item()
    7.0
    """

    def __init__(
        self, loc: Parameter, scale: Parameter, event_dim: int = 0, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.loc = loc
        self.scale = scale
        self.domain = constraints.independent(constraints.real, event_dim)
        self.codomain = self.domain

    @property
    def sign(self) -> int | Tensor:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return 1 if self.scale > 0 else -1 if self.scale < 0 else 0

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale: Any = self.scale
        log_scale = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        return summed(x.zeros_like() + log_scale, self.event_dim)


@final
class SoftmaxTransform(Transform):
    """softmax(x) along the last axis; its inverse is the logarithm.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import SoftmaxTransform
    >>> SoftmaxTransform()(Tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


@final
class StickBreakingTransform(Transform):
    """n numbers to n + 1 probabilities: each one breaks a part of the rest of a stick.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import StickBreakingTransform
    >>> StickBreakingTransform()(Tensor([0.0])).tolist()
    [0.5, 0.5]
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _offset(self, x: Tensor) -> Tensor:
        """The numbers of parts that are left, so that zeros give equal parts."""
        size = x.shape[-1]
        return Tensor.arange(size, 0, -1, device=x.device).cast(x.dtype).log()

    def _call(self, x: Tensor) -> Tensor:
        shifted = x - self._offset(x)
        part, rest = shifted.logsigmoid(), (-shifted).logsigmoid().cumsum(-1)
        none = x[..., :1].zeros_like()
        return (part.cat(none, dim=-1) + none.cat(rest, dim=-1)).exp()

    def _inverse(self, y: Tensor) -> Tensor:
        parts = y[..., :-1]
        rest = 1 - parts.cumsum(-1)
        rest = rest.clamp(min=epsilon(y.dtype) ** 2)
        return parts.log() - rest.log() + self._offset(parts)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shifted = x - self._offset(x)
        return (y[..., :-1].log() + (-shifted).logsigmoid()).sum(-1)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)


@final
class LowerCholeskyTransform(Transform):
    """The lower triangle of a matrix, with the exponential of its diagonal.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import LowerCholeskyTransform
    >>> LowerCholeskyTransform()(Tensor.zeros(2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    domain = constraints.real_matrix
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(0, -2, -1).log().diag_embed()


@final
class ReshapeTransform(Transform):
    """The axes of a value in another shape.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import ReshapeTransform
    >>> ReshapeTransform((4,), (2, 2))(Tensor.zeros(3, 4)).shape
    (3, 2, 2)
    """

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        if prod(in_shape) != prod(out_shape):
            raise ValueError(
                f"ReshapeTransform: {tuple(in_shape)} and {tuple(out_shape)} differ in their sizes"
            )
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        self.domain = constraints.independent(constraints.real, len(in_shape))
        self.codomain = constraints.independent(constraints.real, len(out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(*self.forward_shape(tuple(x.shape)))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(*self.inverse_shape(tuple(y.shape)))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return summed(x.zeros_like(), len(self.in_shape))

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[: len(shape) - len(self.in_shape)], *self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[: len(shape) - len(self.out_shape)], *self.in_shape)


@final
class IndependentTransform(Transform):
    """A transform over values with some axes more, whose determinants are multiplied.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import ExpTransform, IndependentTransform
    >>> x = Tensor([1.0, 2.0])
    >>> IndependentTransform(ExpTransform(), 1).log_abs_det_jacobian(x, x.exp()).item()
    3.0
    """

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(max(cache_size, base_transform.cache_size))
        self._base, self._dims = base_transform, reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, self._dims)
        self.codomain = constraints.independent(base_transform.codomain, self._dims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._base.bijective

    @property
    def sign(self) -> int | Tensor:
        return self._base.sign

    def _call(self, x: Tensor) -> Tensor:
        return self._base(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._base._inverse(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return summed(self._base.log_abs_det_jacobian(x, y), self._dims)

    def forward_shape(self, shape: Shape) -> Shape:
        return self._base.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._base.inverse_shape(shape)


@final
class ComposeTransform(Transform):
    """Transforms one after the other, the first one first.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.transforms import AffineTransform, ComposeTransform, ExpTransform
    >>> ComposeTransform([AffineTransform(0.0, 2.0), ExpTransform()])(Tensor(0.0)).item()
    1.0
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        self.parts = list(parts)
        super().__init__(max([cache_size, *(part.cache_size for part in self.parts)]))
        # The axes of a value at the input and at the output.
        before, after = 0, 0
        for part in reversed(self.parts):
            step = part.codomain.event_dim - part.domain.event_dim
            before = max(before - step, part.domain.event_dim)
        for part in self.parts:
            step = part.codomain.event_dim - part.domain.event_dim
            after = max(after + step, part.codomain.event_dim)
        if self.parts:
            first, last = self.parts[0].domain, self.parts[-1].codomain
            self.domain = constraints.independent(first, before - first.event_dim)
            self.codomain = constraints.independent(last, after - last.event_dim)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> int | Tensor:
        found: int | Tensor = 1
        for part in self.parts:
            found = found * part.sign
        return found

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return x.zeros_like()
        total: Tensor | None = None
        dims = self.domain.event_dim
        for number, part in enumerate(self.parts):
            following = y if number == len(self.parts) - 1 else part(x)
            found = part.log_abs_det_jacobian(x, following)
            found = summed(found, dims - part.domain.event_dim)
            total = found if total is None else total + found
            dims += part.codomain.event_dim - part.domain.event_dim
            x = following
        assert total is not None
        return total

    def forward_shape(self, shape: Shape) -> Shape:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape


identity_transform = ComposeTransform([])
