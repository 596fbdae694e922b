"""Fourier transforms against NumPy's; complex numbers are pairs in a last axis."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import Context, Tensor, TinyJit, dtypes, fft
from ferrule.helpers import GlobalCounters
from ferrule.shape.view import ShapeError

RNG = np.random.default_rng(6)
Array = np.ndarray[Any, Any]


def complex_normal(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape) + 1j * RNG.normal(size=shape))


def to_pairs(numbers: Array) -> Tensor:
    return Tensor(np.stack([numbers.real, numbers.imag], -1))


def close(found: Tensor, expected: Array) -> None:
    if np.iscomplexobj(expected):
        expected = np.stack([expected.real, expected.imag], -1)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 1, 4, 5, 9])
@pytest.mark.parametrize("dim", [-1, 0])
def test_transforms(n: int | None, dim: int, norm: Any) -> None:
    z = complex_normal(6, 7)
    close(fft.fft(to_pairs(z), n, dim, norm), np.fft.fft(z, n, dim, norm))
    close(fft.ifft(to_pairs(z), n, dim, norm), np.fft.ifft(z, n, dim, norm))
    close(fft.rfft(Tensor(z.real), n, dim, norm), np.fft.rfft(z.real, n, dim, norm))
    close(fft.irfft(to_pairs(z), n, dim, norm), np.fft.irfft(z, n, dim, norm))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_there_and_back(n: int) -> None:
    x = RNG.normal(size=(3, n))
    close(fft.irfft(fft.rfft(Tensor(x)), n), x)
    z = complex_normal(n, 2)
    close(fft.ifft(fft.fft(to_pairs(z), dim=0), dim=0), z)
    assert fft.fft(Tensor.zeros(0, 4, 2)).shape == (0, 4, 2)


@pytest.mark.usefixtures("device")
def test_frequencies_and_shifts() -> None:
    for n in (1, 4, 5):
        np.testing.assert_allclose(fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), 1e-6)
        np.testing.assert_allclose(fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5), 1e-6)
    z = complex_normal(3, 4)
    close(fft.fftshift(to_pairs(z)), np.fft.fftshift(z))
    close(fft.ifftshift(to_pairs(z), -2), np.fft.ifftshift(z, -2))
    close(fft.fftshift(Tensor(z.real), (0,), pairs=False), np.fft.fftshift(z.real, 0))
    close(fft.ifftshift(fft.fftshift(to_pairs(z))), z)


@pytest.mark.usefixtures("device")
def test_dtypes() -> None:
    for name in ("float16", "bfloat16", "float32", "float64"):
        assert fft.rfft(Tensor([1, 2, 3], dtype=name)).dtype is dtypes.from_name(name)
    assert fft.rfft(Tensor([1, 2, 3])).dtype is dtypes.float32


@pytest.mark.usefixtures("device")
def test_it_is_lazy_and_runs_in_captured_programs() -> None:
    @TinyJit
    def smooth(x: Tensor) -> Tensor:
        spectrum = fft.rfft(x)
        return fft.irfft(spectrum * (Tensor.arange(3) < 2).reshape(3, 1)).realize()

    before = GlobalCounters.host_calls
    lazy = fft.rfft(Tensor([1.0, 2.0]))
    assert GlobalCounters.host_calls == before
    lazy.realize()
    assert GlobalCounters.host_calls == before + 1
    for _ in range(4):
        x = RNG.normal(size=4)
        spectrum = np.fft.rfft(x)
        spectrum[2] = 0
        close(smooth(Tensor(x)), np.fft.irfft(spectrum))


@pytest.mark.parametrize("n", [3, 4, 6])
@pytest.mark.parametrize("norm", ["backward", "ortho"])
@Context(FERRULE_DEVICE="NUMPY")
def test_gradients(n: int, norm: str) -> None:
    x, z = RNG.normal(size=(2, 5)), RNG.normal(size=(2, 5, 2))
    assert_gradients(lambda x: fft.rfft(x, n, norm=norm), x)
    assert_gradients(lambda x: fft.rfft(x, n, 0, norm=norm), x)
    assert_gradients(lambda z: fft.irfft(z, n, norm=norm), z)
    assert_gradients(lambda z: fft.fft(z, n, norm=norm), z)
    assert_gradients(lambda z: fft.ifft(z, n, 0, norm=norm), z)


@Context(FERRULE_DEVICE="NUMPY")
def test_second_gradients() -> None:
    """A power spectrum is quadratic: its second gradient along a line is its gradient there."""
    x, along = RNG.normal(size=5), RNG.normal(size=5)

    def slope(at: Tensor) -> Tensor:
        return fft.rfft(at).square().sum().gradient(at, create_graph=True)[0]

    at = Tensor(x, requires_grad=True)
    (found,) = (slope(at) * Tensor(along)).sum().gradient(at)
    close(found, slope(Tensor(along, requires_grad=True)).numpy())


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda: fft.fft(Tensor([1.0, 2.0, 3.0])), ShapeError, r"\[fft\] takes complex numbers"),
        (lambda: fft.fft(Tensor([[1.0, 2.0]]), dim=1), ShapeError, r"\[fft\] axis 1 is out of"),
        (lambda: fft.rfft(Tensor([1.0]), 0), ShapeError, r"\[rfft\] the number of points is at"),
        (lambda: fft.irfft(Tensor([[1.0, 2.0]])), ShapeError, r"\[irfft\] the number of points is"),
        (lambda: fft.rfft(Tensor([1.0]), norm="no"), ValueError, r"\[fft\] norm 'no' is not"),
        (lambda: fft.fftfreq(0), ShapeError, r"\[fftfreq\] the number of points is"),
        (lambda: fft.fftshift(Tensor([1.0] * 3)), ShapeError, r"\[fftshift\] takes .* pairs=False"),
        (lambda: fft.fftshift(Tensor([1.0] * 2)), ShapeError, r"\[fftshift\] takes .* pairs=False"),
    ],
)
def test_errors(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function()
