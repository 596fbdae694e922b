"""Windows: weights, at most 1, that fade a piece of a signal out towards both ends.

Names, arguments and values are PyTorch's, and SciPy's. A window is symmetric, for filters; with
`sym=False` it is one period of a window of `M + 1` points, for Fourier transforms. They are
computed on the host, in float64, when they are made.

>>> from ferrule.signal import windows
>>> windows.hann(5).tolist(), windows.hann(4, sym=False).tolist()
([0.0, 0.5, 1.0, 0.5, 0.0], [0.0, 0.5, 1.0, 0.5])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike, to_dtype

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]

Array: TypeAlias = np.ndarray[Any, Any]


def _window(
    what: str,
    M: int,
    sym: bool,
    values: Callable[[Array, int], Array],
    dtype: DTypeLike | None,
    device: str | None,
) -> Tensor:
    """The first `M` of the values that a function of positions and their number gives."""
    if M < 0:
        raise ShapeError(f"[{what}] a window has no {M} points; give 0 or more")
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not dtypes.is_float(kind):
        raise DTypeError(f"[{what}] the weights are fractions, which {kind} cannot hold")
    size = M if sym else M + 1
    positions = np.arange(M, dtype=np.float64)
    found = np.ones(M) if M <= 1 else values(positions, size)
    return Tensor(found, dtype=kind, device=device)


def _positive(what: str, name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"[{what}] {name} is a positive number, not {value}")


@checks_arguments
def bartlett(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """A triangle, 0 at both ends.

    >>> from ferrule.signal import windows
    >>> windows.bartlett(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return _window(
        "bartlett", M, sym, lambda k, size: 1 - np.abs(2 * k / (size - 1) - 1), dtype, device
    )


@checks_arguments
def cosine(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """Half a period of a sine.

    >>> from ferrule.signal import windows
    >>> windows.cosine(3).tolist()
    [0.5, 1.0, 0.5]
    """
    return _window(
        "cosine", M, sym, lambda k, size: np.sin(np.pi / size * (k + 0.5)), dtype, device
    )


@checks_arguments
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """exp(-abs(k - center) / tau); a symmetric window has its center in the middle.

    >>> from ferrule.signal import windows
    >>> windows.exponential(3, tau=0.5, dtype="float64").log().tolist()
    [-2.0, 0.0, -2.0]
    """
    _positive("exponential", "tau", tau)
    if sym and center is not None:
        raise ValueError(
            "[exponential] the center of a symmetric window is its middle; with center give "
            "sym=False"
        )

    def values(k: Array, size: int) -> Array:
        middle = (size - 1) / 2 if center is None else center
        return np.asarray(np.exp(-np.abs(k - middle) / tau))

    return _window("exponential", M, sym, values, dtype, device)


@checks_arguments
def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """The bell curve with the standard deviation `std`, 1 in the middle.

    >>> from ferrule.signal import windows
    >>> windows.gaussian(3, std=0.5, dtype="float64").log().tolist()
    [-2.0, 0.0, -2.0]
    """
    _positive("gaussian", "std", std)
    return _window(
        "gaussian",
        M,
        sym,
        lambda k, size: np.exp(-(((k - (size - 1) / 2) / std) ** 2) / 2),
        dtype,
        device,
    )


@checks_arguments
def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """Kaiser's, made of the Bessel function `i0`; a larger `beta` makes it narrower.

    >>> from ferrule.signal import windows
    >>> windows.kaiser(3, beta=0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    if not beta >= 0:
        raise ValueError(f"[kaiser] beta is not negative, {beta} is")

    def values(k: Array, size: int) -> Array:
        place = np.minimum(np.abs(2 * k / (size - 1) - 1), 1.0)
        return np.asarray(np.i0(beta * np.sqrt(1 - place * place)) / np.i0(beta))

    return _window("kaiser", M, sym, values, dtype, device)


@checks_arguments
def general_cosine(
    M: int,
    *,
    a: Iterable[float],
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """a[0] - a[1] * cos(x) + a[2] * cos(2 * x) - ..., over one period of x.

    >>> from ferrule.signal import windows
    >>> windows.general_cosine(3, a=[0.75, 0.25]).tolist()
    [0.5, 1.0, 0.5]
    """
    return _cosines("general_cosine", M, tuple(a), sym, dtype, device)


def _cosines(
    what: str,
    M: int,
    weights: tuple[float, ...],
    sym: bool,
    dtype: DTypeLike | None,
    device: str | None,
) -> Tensor:
    if not weights:
        raise ValueError(f"[{what}] a is a list of at least one number")

    def values(k: Array, size: int) -> Array:
        x = 2 * np.pi * k / (size - 1)
        terms = [(-1) ** n * weight * np.cos(n * x) for n, weight in enumerate(weights)]
        return np.asarray(sum(terms))

    return _window(what, M, sym, values, dtype, device)


@checks_arguments
def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """alpha - (1 - alpha) * cos(x), over one period of x.

    >>> from ferrule.signal import windows
    >>> windows.general_hamming(3, alpha=0.75).tolist()
    [0.5, 1.0, 0.5]
    """
    return _cosines("general_hamming", M, (alpha, 1 - alpha), sym, dtype, device)


@checks_arguments
def hamming(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """`general_hamming` with 0.54: the ends are not 0, and the spectrum beside its peak is low.

    >>> from ferrule.signal import windows
    >>> windows.hamming(3, dtype="float64").round(decimals=9).tolist()
    [0.08, 1.0, 0.08]
    """
    return _cosines("hamming", M, (0.54, 0.46), sym, dtype, device)


@checks_arguments
def hann(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """`general_hamming` with 0.5: the square of a sine.

    >>> from ferrule.signal import windows
    >>> windows.hann(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return _cosines("hann", M, (0.5, 0.5), sym, dtype, device)


@checks_arguments
def blackman(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """`general_cosine` of 0.42, 0.5 and 0.08.

    >>> from ferrule.signal import windows
    >>> windows.blackman(3).abs().round(decimals=6).tolist()
    [0.0, 1.0, 0.0]
    """
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, dtype, device)


@checks_arguments
def nuttall(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """`general_cosine` of four weights by Nuttall, whose spectrum is below 98 dB beside its peak.

    >>> from ferrule.signal import windows
    >>> windows.nuttall(3)[1].item()
    1.0
    """
    weights = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
    return _cosines("nuttall", M, weights, sym, dtype, device)
