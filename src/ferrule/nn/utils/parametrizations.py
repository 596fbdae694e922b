"""Weights that are normalised: `weight_norm`, `spectral_norm`."""

from __future__ import annotations

from math import prod
from typing import TypeVar, final

from ferrule.base.calls import explains
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ferrule.nn.module import Layer
from ferrule.nn.utils.parametrize import Parametrization, register, weight_of
from ferrule.tensor import Tensor

__all__ = ["spectral_norm", "weight_norm"]

L = TypeVar("L")


def _check_axis(what: str, weight: Tensor, dim: object) -> None:
    if type(dim) is not int or not -weight.ndim <= dim < max(weight.ndim, 1):
        raise ShapeError(f"{what}: dim {dim!r} is no axis of a weight of shape {weight.shape}")


# *** weight normalisation ***


@final
class WeightNorm(Parametrization):
    """A weight as its sizes along an axis, and its directions."""

    keeps_original = False

    def __init__(self, weight: Tensor, dim: int | None) -> None:
        with Tensor.no_grad():
            self.original0 = _sizes(weight.detach(), dim).contiguous().requires_grad_()
        self.original1 = weight
        self.dim = dim

    def value(self) -> Tensor:
        """`original0 * original1 / norm(original1)`."""
        return self.original1 * (self.original0 / _sizes(self.original1, self.dim))

    def assign(self, weight: Tensor) -> None:
        """Takes the sizes and the directions of a weight."""
        with Tensor.no_grad():
            self.original0.assign(_sizes(weight.detach(), self.dim))
            self.original1.assign(weight.detach())

    def plain(self) -> Tensor:
        """The directions."""
        return self.original1


def _sizes(weight: Tensor, dim: int | None) -> Tensor:
    """The norm for each place along an axis, over all others; of all elements for None."""
    if dim is None:
        return weight.square().sum().sqrt()
    others = tuple(axis for axis in range(weight.ndim) if axis != dim % weight.ndim)
    squares = weight.square()
    return (squares.sum(others, keepdim=True) if others else squares).sqrt()


@explains
def weight_norm(module: L, name: str = "weight", dim: int | None = 0) -> L:
    """Makes a layer's weight `g * v / norm(v)`, and sizes `g` and directions `v` its parameters.

    Norms are over all axes but `dim`; None takes one norm of the whole. Gives the layer, which is
    changed: optimisers are to be made afterwards. In states the tensors are called as by PyTorch's
    function, `parametrizations.weight.original0` and `original1`. Salimans and Kingma, "Weight
    Normalization" (2016).

    >>> from ferrule.nn.utils.parametrizations import weight_norm
    >>> from ferrule import nn
    >>> layer = weight_norm(nn.Linear(3, 2))
    >>> {name: x.shape for name, x in nn.state.get_state_dict(layer.parametrizations).items()}
    {'weight.original0': (2, 1), 'weight.original1': (2, 3)}
    """
    weight = weight_of(module, name, "weight_norm")
    # PyTorch's -1 is not the last axis.
    axis = None if dim == -1 else dim
    if axis is not None:
        _check_axis("weight_norm", weight, axis)
    register(module, name, WeightNorm(weight, axis))
    return module


# *** spectral normalisation ***


@final
class _Vectors(Layer):
    """Estimates of singular vectors of a weight; no parameters."""

    _u: Tensor
    _v: Tensor

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        self.register_buffer("_u", _direction(rows, like))
        self.register_buffer("_v", _direction(columns, like))


def _direction(size: int, like: Tensor) -> Tensor:
    numbers = Tensor.randn(size, dtype=like.dtype, device=like.device)
    return numbers.normalize(dim=0).contiguous().realize().requires_grad_(False)


@final
class SpectralNorm(Parametrization):
    """A weight divided by the largest singular value of it as a matrix."""

    def __init__(self, weight: Tensor, dim: int, iterations: int, eps: float) -> None:
        self.original = weight
        self.dim = dim
        self.n_power_iterations = iterations
        self.eps = eps
        if weight.ndim > 1:
            rows = int(weight.shape[dim])
            vectors = _Vectors(rows, prod(weight.shape) // rows, weight)
            setattr(self, "0", vectors)
            self._improve(15)

    def _matrix(self) -> Tensor:
        """The weight with an axis of rows in front."""
        return self.original.movedim(self.dim, 0).flatten(1)

    def _improve(self, times: int) -> None:
        """Steps of the power method."""
        vectors: _Vectors = getattr(self, "0")
        with Tensor.no_grad():
            matrix = self._matrix().detach()
            u, v = vectors._u, vectors._v
            for _ in range(times):
                u = (matrix @ v).normalize(dim=0, eps=self.eps)
                v = (matrix.T @ u).normalize(dim=0, eps=self.eps)
            vectors._u.assign(u)
            vectors._v.assign(v)

    def value(self) -> Tensor:
        """The weight over its norm, whose estimate is improved first in training."""
        if self.original.ndim < 2:
            return self.original.normalize(dim=0, eps=self.eps)
        if Tensor.training:
            self._improve(self.n_power_iterations)
        vectors: _Vectors = getattr(self, "0")
        u, v = vectors._u.detach(), vectors._v.detach()
        return self.original / (u * (self._matrix() @ v)).sum()

    def assign(self, weight: Tensor) -> None:
        """Take the weight as it is; the estimate of its norm improves in training."""
        with Tensor.no_grad():
            self.original.assign(weight.detach())

    def plain(self) -> Tensor:
        """The weight that is not divided."""
        return self.original


@explains
def spectral_norm(
    module: L,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> L:
    """Divides a layer's weight by its largest singular value, with axis `dim` as the rows.

    That is 1 for transposed convolutions and 0 otherwise, unless given; the other axes are the
    columns. The singular vectors are found by the power method: 15 steps now, and in training
    (`Tensor.train()`) `n_power_iterations` each time that the weight is read. Gives the layer,
    which is changed. In states the tensors are called as by PyTorch's function,
    `parametrizations.weight.original` and `parametrizations.weight.0._u`. Miyato et al., "Spectral
    Normalization for Generative Adversarial Networks" (2018).

    >>> from ferrule.nn.utils.parametrizations import spectral_norm
    >>> from ferrule import nn
    >>> layer = spectral_norm(nn.Linear(3, 2))
    >>> bool(layer.weight.svd().S[0] < 1.01)
    True
    """
    weight = weight_of(module, name, "spectral_norm")
    if type(n_power_iterations) is not int or n_power_iterations < 1:
        raise ValueError(
            f"spectral_norm: n_power_iterations is {n_power_iterations!r}; it must be a whole "
            "number of at least 1"
        )
    if dim is None:
        transposed = isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d)
        dim = 1 if transposed else 0
    _check_axis("spectral_norm", weight, dim)
    register(module, name, SpectralNorm(weight, dim, n_power_iterations, eps))
    return module
