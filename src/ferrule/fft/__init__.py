"""Fourier transforms. Complex numbers are pairs: a last axis of two, real and imaginary part.

`dim` counts axes without that of the pairs, so that it is the same as in `numpy.fft` and
`torch.fft`: -1 is the last axis of complex numbers. Transforms are linear, and differentiable any
number of times; float16 and bfloat16 go through float32.

Kernels compute them if the size is at most 131,072 and has no prime factor above 64. Other sizes,
and all on the device NUMPY, are NumPy's, on the host, when they are realised. Captured functions
and their replays compute the same bits as plain calls. The error of a result, as the root of the
mean of its square, is below log2(n) * 2**-24 times the result (in float64, 2**-53); it is mostly a
third of that.

>>> from ferrule import Tensor, fft
>>> spectrum = fft.rfft(Tensor([1.0, 2.0, 3.0, 4.0]))
>>> spectrum.tolist()
[[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
>>> fft.irfft(spectrum).tolist()
[1.0, 2.0, 3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.engine.host import Array
from ferrule.ir.dtype import compute_dtype, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.algebra.spectra import half_transform, signal_from, transform
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.reduce.rowwise import accumulating

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]


# *** arguments ***


def _axis(x: Tensor, dim: int, pairs: bool, what: str) -> int:
    """An axis counted from the front, without that of the pairs."""
    rank = x.ndim - pairs
    if not -rank <= dim < rank:
        raise ShapeError(
            f"[{what}] axis {dim} is out of range for {rank} axes"
            f"{' and that of the pairs' if pairs else ''} in shape {x.shape}"
        )
    return dim % rank


def _value(x: Tensor, dim: int, pairs: bool, what: str) -> tuple[TracedValue, int]:
    """The numbers as float32 or float64, and the axis counted from the front."""
    if pairs and (not x.shape or x.shape[-1] != 2):
        raise ShapeError(
            f"[{what}] takes complex numbers as a last axis of two, real and imaginary part, not "
            f"shape {x.shape}; for real ones use rfft, or x.stack(x.zeros_like(), dim=-1)"
        )
    value = x._read()
    value = value if dtypes.is_float(value.dtype) else value.cast(dtypes.default_float)
    return accumulating(value), _axis(x, dim, pairs, what)


def _resized(value: TracedValue, axis: int, size: int | None, what: str) -> TracedValue:
    """The first elements of an axis, or zeros behind them."""
    own = known_size(value.shape[axis], what)
    size = own if size is None else size
    if size < 1:
        raise ShapeError(f"[{what}] the number of points is at least 1, not {size}")
    if size <= own:
        return value.shrink([(0, size if i == axis else n) for i, n in enumerate(value.shape)])
    return value.pad([(0, size - own if i == axis else 0) for i in range(len(value.shape))])


def _finished(value: TracedValue, x: Tensor, size: int, norm: str | None, forward: bool) -> Tensor:
    """The result scaled as `norm` says, in the float type of the argument."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"[fft] norm {norm!r} is not one of 'backward', 'ortho', 'forward'")
    if norm == "ortho":
        value = value * size**-0.5
    elif forward == (norm == "forward"):
        value = value / size
    return Tensor._wrap(value.cast(x.dtype if dtypes.is_float(x.dtype) else dtypes.default_float))


# *** transforms ***


@checks_arguments
def fft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform of complex numbers along one axis.

    X[k] is the sum of x[j] exp(-2i pi j k / n). The axis is cut, or filled up with zeros, to `n`
    elements. `norm` says where a factor is: "backward" (None): 1/n in `ifft`; "forward": 1/n here;
    "ortho": 1/sqrt(n) in both.

    Raises `ShapeError` if the last axis holds no pairs, `ValueError` for another norm.

    >>> from ferrule import Tensor, fft
    >>> fft.fft(Tensor([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    value, axis = _value(x, dim, True, "fft")
    value = _resized(value, axis, n, "fft")
    size = known_size(value.shape[axis], "fft")
    return _finished(transform(value, axis, False), x, size, norm, forward=True)


@checks_arguments
def ifft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`, with the same arguments.

    >>> from ferrule import Tensor, fft
    >>> fft.ifft(Tensor([[1.0, 1.0], [1.0, -1.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    value, axis = _value(x, dim, True, "ifft")
    value = _resized(value, axis, n, "ifft")
    size = known_size(value.shape[axis], "ifft")
    return _finished(transform(value, axis, True), x, size, norm, forward=False)


@checks_arguments
def rfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of real numbers: the frequencies from 0 to n // 2, as pairs.

    The others are the conjugates of these. A shape (…, n) gives (…, n // 2 + 1, 2).

    >>> from ferrule import Tensor, fft
    >>> fft.rfft(Tensor([1.0, 0.0, 0.0])).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    value, axis = _value(x, dim, False, "rfft")
    value = _resized(value, axis, n, "rfft")
    size = known_size(value.shape[axis], "rfft")
    return _finished(half_transform(value, axis, False), x, size, norm, forward=True)


@checks_arguments
def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: `n` real numbers from n // 2 + 1 pairs.

    Without `n` it is the even number 2 * (pairs - 1). The imaginary parts of the first frequency,
    and of the last for an even n, do not count.

    >>> from ferrule import Tensor, fft
    >>> fft.irfft(Tensor([[1.0, 0.0], [1.0, 0.0]]), n=3).tolist()
    [1.0, 0.0, 0.0]
    """
    value, axis = _value(x, dim, True, "irfft")
    size = 2 * (known_size(value.shape[axis], "irfft") - 1) if n is None else n
    if size < 1:
        raise ShapeError(f"[irfft] the number of points is at least 1, not {size}; give n")
    value = _resized(value, axis, size // 2 + 1, "irfft")
    return _finished(signal_from(value, size, axis, False), x, size, norm, forward=False)


# *** along several axes ***


_Step: TypeAlias = tuple[Callable[..., Tensor], int | None, int]
"""A transform, its number of points, and its axis."""


@checks_arguments
def fftn(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """`fft` along several axes: all of them, the last as many as `s` has sizes, or those in `dim`.

    Each is cut, or filled up with zeros, to its size in `s`; -1 leaves it as it is.

    Raises `ShapeError` for an axis that is given twice, or sizes that are not as many as axes.

    >>> from ferrule import Tensor, fft
    >>> fft.fftn(Tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])).tolist()
    [[[2.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    return _several(x, [(fft, n, axis) for n, axis in _along(x, s, dim, True, "fftn")], norm)


@checks_arguments
def ifftn(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """The inverse of `fftn`, with the same arguments.

    >>> from ferrule import Tensor, fft
    >>> fft.ifftn(Tensor([[[2.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])).tolist()
    [[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    """
    return _several(x, [(ifft, n, axis) for n, axis in _along(x, s, dim, True, "ifftn")], norm)


@checks_arguments
def rfftn(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """`fftn` of real numbers: `rfft` along the last of the axes, `fft` along the others.

    >>> from ferrule import Tensor, fft
    >>> fft.rfftn(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    *others, (n, axis) = _along(x, s, dim, False, "rfftn")
    return _several(x, [(rfft, n, axis), *((fft, n, axis) for n, axis in others)], norm)


@checks_arguments
def irfftn(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """The inverse of `rfftn`; without `s`, the last axis gets an even number of points.

    >>> from ferrule import Tensor, fft
    >>> fft.irfftn(fft.rfftn(Tensor([[1.0, 2.0], [3.0, 4.0]]))).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    *others, (n, axis) = _along(x, s, dim, True, "irfftn")
    return _several(x, [*((ifft, n, axis) for n, axis in others), (irfft, n, axis)], norm)


@checks_arguments
def fft2(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`fftn` along two axes, the last two unless given.

    >>> from ferrule import Tensor, fft
    >>> fft.fft2(Tensor.ones(4, 2, 2, 2)).shape
    (4, 2, 2, 2)
    """
    return fftn(x, s, dim, norm)


@checks_arguments
def ifft2(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`ifftn` along two axes, the last two unless given.

    >>> from ferrule import Tensor, fft
    >>> fft.ifft2(Tensor.ones(4, 2, 2, 2)).shape
    (4, 2, 2, 2)
    """
    return ifftn(x, s, dim, norm)


@checks_arguments
def rfft2(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`rfftn` along two axes, the last two unless given.

    >>> from ferrule import Tensor, fft
    >>> fft.rfft2(Tensor.ones(4, 8, 8)).shape
    (4, 8, 5, 2)
    """
    return rfftn(x, s, dim, norm)


@checks_arguments
def irfft2(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`irfftn` along two axes, the last two unless given.

    >>> from ferrule import Tensor, fft
    >>> fft.irfft2(Tensor.ones(4, 8, 5, 2)).shape
    (4, 8, 8)
    """
    return irfftn(x, s, dim, norm)


def _along(
    x: Tensor, s: Sequence[int] | None, dim: Sequence[int] | None, pairs: bool, what: str
) -> list[tuple[int | None, int]]:
    """The number of points along each axis, None for the axis's own size, and the axis."""
    rank = x.ndim - pairs
    if dim is None:
        dim = range(rank) if s is None else range(-len(s), 0)
    axes = [_axis(x, axis, pairs, what) for axis in dim]
    sizes = [-1] * len(axes) if s is None else list(s)
    if not axes or len(set(axes)) < len(axes) or len(sizes) != len(axes):
        raise ShapeError(
            f"[{what}] takes one or more different axes, and as many sizes, not the axes "
            f"{tuple(dim)} and the sizes {None if s is None else tuple(s)} for shape {x.shape}"
        )
    return [(None if n == -1 else n, axis) for n, axis in zip(sizes, axes, strict=True)]


def _several(x: Tensor, steps: Sequence[_Step], norm: str | None) -> Tensor:
    """Transforms one after the other, of narrow floats in float32."""
    wide = compute_dtype(x.dtype)
    result = x.cast(wide)
    for step, n, axis in steps:
        result = step(result, n, axis, norm)
    return result if wide is x.dtype else result.cast(x.dtype)


# *** frequencies ***


@checks_arguments
def fftfreq(
    n: int, d: float = 1.0, device: str | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """The frequency of each element of `fft`'s result, for points `d` apart.

    >>> from ferrule import fft
    >>> fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies(np.fft.fftfreq(_points(n, "fftfreq"), d), device, dtype)


@checks_arguments
def rfftfreq(
    n: int, d: float = 1.0, device: str | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """The frequency of each element of `rfft`'s result, for points `d` apart.

    >>> from ferrule import fft
    >>> fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies(np.fft.rfftfreq(_points(n, "rfftfreq"), d), device, dtype)


def _points(n: int, what: str) -> int:
    if n < 1:
        raise ShapeError(f"[{what}] the number of points is at least 1, not {n}")
    return n


def _frequencies(numbers: Array, device: str | None, dtype: DTypeLike | None) -> Tensor:
    return Tensor(numbers, device=device, dtype=dtypes.default_float if dtype is None else dtype)


@checks_arguments
def fftshift(x: Tensor, dim: int | Sequence[int] | None = None, *, pairs: bool = True) -> Tensor:
    """Moves the frequency 0 to the middle of some axes, or of all.

    Real tensors, such as frequencies, need `pairs=False`.

    >>> from ferrule import fft
    >>> fft.fftshift(fft.fftfreq(4), pairs=False).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted(x, dim, pairs, "fftshift", lambda size: size // 2)


@checks_arguments
def ifftshift(x: Tensor, dim: int | Sequence[int] | None = None, *, pairs: bool = True) -> Tensor:
    """Undoes `fftshift`.

    >>> from ferrule import Tensor, fft
    >>> fft.ifftshift(Tensor([-0.5, -0.25, 0.0, 0.25]), pairs=False).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _shifted(x, dim, pairs, "ifftshift", lambda size: -(size // 2))


def _shifted(
    x: Tensor,
    dim: int | Sequence[int] | None,
    pairs: bool,
    what: str,
    shift: Callable[[int], int],
) -> Tensor:
    rank = x.ndim - pairs
    if pairs and (rank < 1 or x.shape[-1] != 2):
        raise ShapeError(
            f"[{what}] takes complex numbers as a last axis of two, not shape {x.shape}; "
            "give pairs=False for real ones"
        )
    dims = range(rank) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = [_axis(x, axis, pairs, what) for axis in dims]
    return x.roll([shift(known_size(x.shape[axis], what)) for axis in axes], axes) if axes else x
