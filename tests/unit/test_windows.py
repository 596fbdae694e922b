"""Windows are NumPy's where it has them, and formulas of their own elsewhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.signal import windows

Window = Callable[..., Tensor]
ALL: dict[str, Window] = {
    name: getattr(windows, name) for name in windows.__all__ if name != "general_cosine"
}


@pytest.mark.parametrize(
    ("window", "reference"),
    [
        (windows.bartlett, np.bartlett),
        (windows.blackman, np.blackman),
        (windows.hamming, np.hamming),
        (windows.hann, np.hanning),
        (lambda n, **more: windows.kaiser(n, beta=8.6, **more), lambda n: np.kaiser(n, 8.6)),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 32])
def test_numpys(window: Window, reference: Callable[[int], Any], size: int) -> None:
    found = window(size, dtype="float64").numpy()
    np.testing.assert_allclose(found, reference(size), rtol=1e-12, atol=1e-15)


def test_others() -> None:
    k = np.arange(6)
    same = np.testing.assert_allclose
    same(windows.cosine(6, dtype="float64").numpy(), np.sin(np.pi * (k + 0.5) / 6))
    far = (k - 2.5) / 1.5
    same(windows.gaussian(6, std=1.5, dtype="float64").numpy(), np.exp(-(far**2) / 2))
    same(windows.exponential(6, tau=1.5, dtype="float64").numpy(), np.exp(-np.abs(far)))
    shifted = windows.exponential(6, center=1.0, sym=False, dtype="float64").numpy()
    same(shifted, np.exp(-np.abs(k - 1.0)))
    x = 2 * np.pi * k / 5
    terms = 0.3635819 - 0.4891775 * np.cos(x) + 0.1365995 * np.cos(2 * x)
    same(windows.nuttall(6, dtype="float64").numpy(), terms - 0.0106411 * np.cos(3 * x))
    same(windows.general_cosine(6, a=[1, 2], dtype="float64").numpy(), 1 - 2 * np.cos(x))
    same(windows.general_hamming(6, alpha=0.6, dtype="float64").numpy(), 0.6 - 0.4 * np.cos(x))


@pytest.mark.parametrize("name", ALL)
def test_symmetry_and_periods(name: str) -> None:
    window = ALL[name]
    for size in (0, 1, 2, 5, 8):
        found = window(size).numpy()
        np.testing.assert_allclose(found, found[::-1], rtol=1e-6, atol=1e-7)
        if size > 1:
            np.testing.assert_array_equal(
                window(size, sym=False).numpy(), window(size + 1).numpy()[:-1]
            )


def test_types_and_devices() -> None:
    assert windows.hann(4).dtype is dtypes.float32
    assert windows.hann(4, dtype=dtypes.float16, device="NUMPY").device == "NUMPY"


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"^\[hann\] a window has no -1 points; give 0 or more$"):
        windows.hann(-1)
    with pytest.raises(
        DTypeError, match=r"^\[hann\] the weights are fractions, which dtypes.int32"
    ):
        windows.hann(4, dtype="int32")
    with pytest.raises(ValueError, match=r"^\[gaussian\] std is a positive number, not 0$"):
        windows.gaussian(4, std=0)
    with pytest.raises(ValueError, match=r"^\[exponential\] tau is a positive number, not -1$"):
        windows.exponential(4, tau=-1)
    with pytest.raises(ValueError, match=r"^\[exponential\] the center of a symmetric window is"):
        windows.exponential(4, center=1.0)
    with pytest.raises(ValueError, match=r"^\[kaiser\] beta is not negative, -1 is$"):
        windows.kaiser(4, beta=-1)
    with pytest.raises(ValueError, match=r"^\[general_cosine\] a is a list of at least one"):
        windows.general_cosine(4, a=[])
