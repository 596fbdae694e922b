"""Fourier transforms. Complex numbers are pairs: a last axis of two, real and imaginary part.

`dim` counts axes without that of the pairs, so that it is the same as in `numpy.fft` and
`torch.fft`: -1 is the last axis of complex numbers. NumPy computes the transforms on the host when
they are realised, in captured programs as well; float16 and bfloat16 go through float32. They are
linear, and differentiable any number of times.

>>> from ferrule import Tensor, fft
>>> spectrum = fft.rfft(Tensor([1.0, 2.0, 3.0, 4.0]))
>>> spectrum.tolist()
[[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
>>> fft.irfft(spectrum).tolist()
[1.0, 2.0, 3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrule.dtype import dtypes
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.host import Array, on_host
from ferrule.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.rowwise import accumulating

__all__ = ["fft", "fftfreq", "fftshift", "ifft", "ifftshift", "irfft", "rfft", "rfftfreq"]


# *** what the host computes, without factors, and the rules ***


def _complex(pairs: Array) -> Array:
    """The numbers in the same memory."""
    pairs = np.ascontiguousarray(pairs)
    return pairs.view(np.result_type(pairs, np.complex64))[..., 0]


def _pairs(numbers: Array) -> Array:
    """The pairs in the same memory."""
    numbers = np.ascontiguousarray(numbers)
    return numbers[..., np.newaxis].view(numbers.real.dtype)


def _fft(pairs: Array, axis: int, inverse: bool) -> Array:
    numbers = _complex(pairs)
    if inverse:
        return _pairs(np.fft.ifft(numbers, axis=axis, norm="forward"))
    return _pairs(np.fft.fft(numbers, axis=axis))


def _transformed(pairs: Value, axis: int, inverse: bool) -> Value:
    """The sum of x[j] exp(-2i pi j k / n), or with + if `inverse`, for each k."""
    node = on_host(_fft, [pairs], pairs.shape, pairs.dtype, axis, inverse).node
    return record("fft", _FFT, (pairs,), node, (axis, inverse))


def _reverse_fft(grad: Value, entry: Entry) -> Gradients:
    axis, inverse = entry.arg
    return (_transformed(grad, axis, not inverse),)


def _weights(size: int, axis: int, rank: int, dtype: Any) -> Array:
    """How often a real signal of a size has each of its frequencies: all but the ends twice."""
    weights = np.full(size // 2 + 1, 2.0, dtype)
    weights[0] = 1
    if size % 2 == 0:
        weights[-1] = 1
    return weights.reshape((-1,) + (1,) * (rank - axis - 1))


def _rfft(x: Array, axis: int, weighted: bool) -> Array:
    numbers = np.fft.rfft(x, axis=axis)
    return _pairs(numbers * _weights(x.shape[axis], axis, x.ndim, x.dtype) if weighted else numbers)


def _irfft(pairs: Array, size: int, axis: int, unweighted: bool) -> Array:
    numbers = _complex(pairs)
    if unweighted:
        numbers = numbers / _weights(size, axis, numbers.ndim, pairs.dtype)
    return np.fft.irfft(numbers, size, axis, norm="forward")


def _halved(x: Value, axis: int, weighted: bool) -> Value:
    """The transform of real numbers up to the middle frequency; times its weights if `weighted`."""
    size = x.shape[axis]
    assert isinstance(size, int)
    shape = (*x.shape[:axis], size // 2 + 1, *x.shape[axis + 1 :], 2)
    node = on_host(_rfft, [x], shape, x.dtype, axis, weighted).node
    return record("rfft", _RFFT, (x,), node, (size, axis, weighted))


def _reverse_rfft(grad: Value, entry: Entry) -> Gradients:
    size, axis, weighted = entry.arg
    return (_unhalved(grad, size, axis, not weighted),)


def _unhalved(pairs: Value, size: int, axis: int, unweighted: bool) -> Value:
    """Real numbers from the frequencies up to the middle, over their weights if `unweighted`."""
    shape = (*pairs.shape[:axis], size, *pairs.shape[axis + 1 : -1])
    node = on_host(_irfft, [pairs], shape, pairs.dtype, size, axis, unweighted).node
    return record("irfft", _IRFFT, (pairs,), node, (axis, unweighted))


def _reverse_irfft(grad: Value, entry: Entry) -> Gradients:
    axis, unweighted = entry.arg
    return (_halved(grad, axis, not unweighted),)


_FFT = Rule(_reverse_fft)
_RFFT = Rule(_reverse_rfft)
_IRFFT = Rule(_reverse_irfft)


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


def _value(x: Tensor, dim: int, pairs: bool, what: str) -> tuple[Value, int]:
    """The numbers as float32 or float64, and the axis counted from the front."""
    if pairs and (not x.shape or x.shape[-1] != 2):
        raise ShapeError(
            f"[{what}] takes complex numbers as a last axis of two, real and imaginary part, not "
            f"shape {x.shape}; for real ones use rfft, or x.stack(x.zeros_like(), dim=-1)"
        )
    value = x._read()
    value = value if dtypes.is_float(value.dtype) else value.cast(dtypes.default_float)
    return accumulating(value), _axis(x, dim, pairs, what)


def _resized(value: Value, axis: int, size: int | None, what: str) -> Value:
    """The first elements of an axis, or zeros behind them."""
    own = known_size(value.shape[axis], what)
    size = own if size is None else size
    if size < 1:
        raise ShapeError(f"[{what}] the number of points is at least 1, not {size}")
    if size <= own:
        return value.shrink([(0, size if i == axis else n) for i, n in enumerate(value.shape)])
    return value.pad([(0, size - own if i == axis else 0) for i in range(len(value.shape))])


def _finished(value: Value, x: Tensor, size: int, norm: str | None, forward: bool) -> Tensor:
    """Scaled as `norm` says, in the float type of what was transformed."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"[fft] norm {norm!r} is not one of 'backward', 'ortho', 'forward'")
    if norm == "ortho":
        value = value * size**-0.5
    elif forward == (norm == "forward"):
        value = value / size
    return Tensor._wrap(value.cast(x.dtype if dtypes.is_float(x.dtype) else dtypes.default_float))


# *** transforms ***


def fft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform of complex numbers along one axis. Computed on the host.

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
    return _finished(_transformed(value, axis, False), x, size, norm, forward=True)


def ifft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`, with the same arguments. Computed on the host.

    >>> from ferrule import Tensor, fft
    >>> fft.ifft(Tensor([[1.0, 1.0], [1.0, -1.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    value, axis = _value(x, dim, True, "ifft")
    value = _resized(value, axis, n, "ifft")
    size = known_size(value.shape[axis], "ifft")
    return _finished(_transformed(value, axis, True), x, size, norm, forward=False)


def rfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of real numbers: the frequencies from 0 to n // 2, as pairs. Computed on the host.

    The others are the conjugates of these. A shape (…, n) gives (…, n // 2 + 1, 2).

    >>> from ferrule import Tensor, fft
    >>> fft.rfft(Tensor([1.0, 0.0, 0.0])).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    value, axis = _value(x, dim, False, "rfft")
    value = _resized(value, axis, n, "rfft")
    size = known_size(value.shape[axis], "rfft")
    return _finished(_halved(value, axis, False), x, size, norm, forward=True)


def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: `n` real numbers from n // 2 + 1 pairs. Computed on the host.

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
    return _finished(_unhalved(value, size, axis, False), x, size, norm, forward=False)


# *** frequencies ***


def fftfreq(
    n: int, d: float = 1.0, device: str | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """The frequency of each element of `fft`'s result, for points `d` apart.

    >>> from ferrule import fft
    >>> fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies(np.fft.fftfreq(_points(n, "fftfreq"), d), device, dtype)


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


def fftshift(x: Tensor, dim: int | Sequence[int] | None = None, *, pairs: bool = True) -> Tensor:
    """Moves the frequency 0 to the middle of some axes, or of all.

    Real tensors, such as frequencies, need `pairs=False`.

    >>> from ferrule import fft
    >>> fft.fftshift(fft.fftfreq(4), pairs=False).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted(x, dim, pairs, "fftshift", lambda size: size // 2)


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
