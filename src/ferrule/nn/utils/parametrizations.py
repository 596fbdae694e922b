"""Weights that are normalised or orthogonal: `weight_norm`, `spectral_norm`, `orthogonal`."""

from __future__ import annotations

from math import prod
from typing import TypeVar, final

import numpy as np

from ferrule.base.calls import explains, one_of
from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ferrule.nn.module import Layer
from ferrule.nn.utils.parametrize import Parametrization, register, weight_of
from ferrule.tensor import Tensor
from ferrule.tensor.data import Array

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

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


# *** orthogonal weights ***

_MAPS = ("matrix_exp", "cayley", "householder")


@final
class _Base(Layer):
    """An orthogonal matrix that others start from; no parameter."""

    base: Tensor

    def __init__(self, base: Tensor) -> None:
        self.register_buffer("base", base)


@final
class Orthogonal(Parametrization):
    """A matrix whose columns, or rows if fewer, are orthogonal, of a matrix without a condition."""

    def __init__(self, weight: Tensor, map_name: str, is_based: bool) -> None:
        self.original = weight
        self.map = map_name
        if is_based:
            with Tensor.no_grad():
                base = Tensor(_completed(weight.numpy()), dtype=weight.dtype, device=weight.device)
            setattr(self, "0", _Base(base.realize().requires_grad_(False)))
        self.assign(weight)

    def value(self) -> Tensor:
        """The matrix."""
        x, is_wide = self.original, self._is_wide
        found = self._tall(x.transpose(-1, -2) if is_wide else x)
        return found.transpose(-1, -2) if is_wide else found

    @property
    def _is_wide(self) -> bool:
        return bool(self.original.shape[-2] < self.original.shape[-1])

    def _tall(self, x: Tensor) -> Tensor:
        """The orthogonal columns of a matrix with at least as many rows."""
        rows, columns = int(x.shape[-2]), int(x.shape[-1])
        base: _Base | None = getattr(self, "0", None)
        if self.map == "householder":
            found = _reflected(x)
            return found if base is None else base.base @ found
        lower = x.tril().pad((0, rows - columns))
        skew = lower - lower.transpose(-1, -2)
        if self.map == "matrix_exp":
            found = skew.matrix_exp()
        else:
            unit = Tensor.eye(rows, dtype=x.dtype, device=x.device)
            found = (unit - skew / 2).solve(unit + skew / 2)
        found = found if base is None else base.base @ found
        return found[..., :columns]

    def assign(self, weight: Tensor) -> None:
        """Takes an orthogonal matrix, or the nearest in the sense of a QR decomposition.

        Raises `ValueError` for maps that have no inverse, without `use_trivialization`.
        """
        base: _Base | None = getattr(self, "0", None)
        if base is None and self.map != "householder":
            raise ValueError(
                f"orthogonal: {self.map} without use_trivialization has no matrix for a weight; "
                "assign to parametrizations.weight.original, or use_trivialization"
            )
        array = weight.detach().numpy()
        if base is None:
            new = _reflectors(array)
        else:
            new = np.zeros_like(array)
            places = range(min(array.shape[-2:]))
            new[..., places, places] = -1
        with Tensor.no_grad():
            if base is not None:
                base.base.assign(
                    Tensor(_completed(array), dtype=weight.dtype, device=weight.device)
                )
            self.original.assign(Tensor(new, dtype=weight.dtype, device=weight.device))

    def plain(self) -> Tensor:
        """The matrix without a condition."""
        return self.original


def _reflected(x: Tensor) -> Tensor:
    """The first columns of a product of Householder reflections, whose vectors are below the
    diagonal of a matrix, with the signs of the diagonal.

    The product of I - tau v v' is I - V T V', where the inverse of T is the upper triangle of V'V
    with half of its diagonal, as tau is 2 / v'v.
    """
    columns = int(x.shape[-1])
    unit = Tensor.eye(int(x.shape[-2]), columns, dtype=x.dtype, device=x.device)
    vectors = x.tril(-1) + unit
    products = vectors.transpose(-1, -2) @ vectors
    inner = products.triu() - products.tril().triu() / 2
    top = vectors[..., :columns, :].transpose(-1, -2)
    found = unit - vectors @ inner.solve_triangular(top, upper=True)
    signs = x.diagonal(dim1=-2, dim2=-1).detach().cast(dtypes.int32).cast(x.dtype)
    return found * signs.unsqueeze(-2)


def _reflectors(weight: Array) -> Array:
    """The reflections of a QR decomposition, and the signs of its columns on the diagonal."""
    is_wide = weight.shape[-2] < weight.shape[-1]
    tall = np.swapaxes(weight, -1, -2) if is_wide else weight
    raw, tau = np.linalg.qr(tall, mode="raw")
    found = np.array(np.swapaxes(raw, -1, -2), weight.dtype)
    places = range(tall.shape[-1])
    signs = np.sign(found[..., places, places])
    found[..., places, places] = np.where(tau == 0, -signs, signs)
    return np.swapaxes(found, -1, -2) if is_wide else found


def _completed(weight: Array) -> Array:
    """A square orthogonal matrix whose first columns, or rows of a wide one, are those of a weight.

    They are made orthogonal if they are not.
    """
    tall = np.swapaxes(weight, -1, -2) if weight.shape[-2] < weight.shape[-1] else weight
    rows, columns = tall.shape[-2:]
    unit = np.eye(columns, dtype=weight.dtype)
    is_done = rows == columns and np.allclose(
        np.swapaxes(tall, -1, -2) @ tall, unit, atol=10 * columns * np.finfo(weight.dtype).eps
    )
    if is_done:
        return np.array(tall)
    more = np.asarray(Tensor.randn(*tall.shape[:-1], rows - columns).numpy(), weight.dtype)
    q, r = np.linalg.qr(np.concatenate([tall, more], -1))
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
    return np.asarray(q * signs[..., np.newaxis, :], weight.dtype)


@explains
def orthogonal(
    module: L,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> L:
    """Keeps a layer's weight orthogonal: its columns, or its rows if these are fewer.

    The weight is computed from a matrix without a condition, by `orthogonal_map`: "matrix_exp" or
    "cayley" of the matrix less its transpose (square ones by default the first), or "householder"
    (others by default), a product of reflections. With `use_trivialization` it is a fixed
    orthogonal matrix, the first weight, times that. More axes in front are those of a batch.

    Gives the layer, which is changed: optimisers are to be made afterwards. In states the tensors
    are called as by PyTorch's function, `parametrizations.weight.original` and
    `parametrizations.weight.0.base`. Lezcano-Casado, "Trivializations for Gradient-Based
    Optimization on Manifolds" (2019).

    Raises `ValueError` for another map, and for "matrix_exp" and "cayley" without
    `use_trivialization`, `ShapeError` for a weight with less than two axes.

    >>> from ferrule import Tensor, nn
    >>> from ferrule.nn.utils.parametrizations import orthogonal
    >>> rows = orthogonal(nn.Linear(4, 2)).weight
    >>> bool((rows @ rows.T - Tensor.eye(2)).abs().max() < 1e-5)
    True
    """
    weight = weight_of(module, name, "orthogonal")
    if weight.ndim < 2:
        raise ShapeError(f"orthogonal: a weight of shape {weight.shape} is no matrix")
    if orthogonal_map is None:
        is_square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if is_square else "householder"
    one_of(orthogonal_map, _MAPS, "orthogonal: orthogonal_map")
    if orthogonal_map != "householder" and not use_trivialization:
        raise ValueError(
            f"orthogonal: {orthogonal_map} gives the present weight with use_trivialization only"
        )
    register(module, name, Orthogonal(weight, orthogonal_map, use_trivialization))
    return module
