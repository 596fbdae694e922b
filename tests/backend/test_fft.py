"""Fourier transforms against NumPy's; complex numbers are pairs in a last axis."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

import ferrule
from ferrule import Context, Tensor, TinyJit, dtypes, fft
from ferrule.helpers import GlobalCounters
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra import spectra

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


def to_numbers(pairs: Tensor) -> Array:
    found = pairs.numpy()
    return np.asarray(found[..., 0] + 1j * found[..., 1])


@pytest.fixture(params=["kernels", "host"])
def computed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On each device both ways compute transforms, whichever it has."""
    monkeypatch.setattr(spectra, "has_kernels", lambda device: request.param == "kernels")
    return str(request.param)


@pytest.mark.usefixtures("device", "computed_by")
@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 1, 4, 5, 9])
@pytest.mark.parametrize("dim", [-1, 0])
def test_transforms(n: int | None, dim: int, norm: Any) -> None:
    z = complex_normal(6, 7)
    close(fft.fft(to_pairs(z), n, dim, norm), np.fft.fft(z, n, dim, norm))
    close(fft.ifft(to_pairs(z), n, dim, norm), np.fft.ifft(z, n, dim, norm))
    close(fft.rfft(Tensor(z.real), n, dim, norm), np.fft.rfft(z.real, n, dim, norm))
    close(fft.irfft(to_pairs(z), n, dim, norm), np.fft.irfft(z, n, dim, norm))


@pytest.mark.usefixtures("device", "computed_by")
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_there_and_back(n: int) -> None:
    x = RNG.normal(size=(3, n))
    close(fft.irfft(fft.rfft(Tensor(x)), n), x)
    z = complex_normal(n, 2)
    close(fft.ifft(fft.fft(to_pairs(z), dim=0), dim=0), z)
    assert fft.fft(Tensor.zeros(0, 4, 2)).shape == (0, 4, 2)


@pytest.mark.usefixtures("device", "computed_by")
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize(
    ("s", "dim"),
    [(None, None), ((4, 5), None), (None, (0, 2)), ((3, -1), (2, 0)), ((6,), (1,))],
)
def test_several_axes(s: Any, dim: Any, norm: Any) -> None:
    z = complex_normal(3, 4, 6)
    axes = tuple(range(-len(s), 0)) if dim is None and s else dim
    sizes = s and [z.shape[a] if n == -1 else n for n, a in zip(s, axes, strict=True)]
    numpys = {"s": sizes, "axes": axes, "norm": norm}
    for name in ("fftn", "ifftn", "irfftn"):
        if name == "irfftn" and s is not None and -1 in s:
            continue  # NumPy has no word for the even number
        found = getattr(fft, name)(to_pairs(z), s, dim, norm)
        close(found, getattr(np.fft, name)(z, **numpys))
    close(fft.rfftn(Tensor(z.real), s, dim, norm), np.fft.rfftn(z.real, **numpys))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("n", "dim"), [(128, -1), (210, 0), (250, 1), (343, -1), (1001, 0)])
def test_steps_of_several_radices(n: int, dim: int) -> None:
    """128 points and more go by butterflies, where all factors have one: 1001 has 11 and 13."""
    shape = [2, 3, 2]
    shape[dim] = n
    z = complex_normal(*shape)
    close(fft.fft(to_pairs(z), dim=dim), np.fft.fft(z, axis=dim))
    close(fft.ifft(to_pairs(z), dim=dim), np.fft.ifft(z, axis=dim))
    shape[dim] = 2 * n
    x = RNG.normal(size=shape)
    half = np.fft.rfft(x, axis=dim)
    close(fft.rfft(Tensor(x), dim=dim), half)
    close(fft.irfft(to_pairs(half), dim=dim), x)


@pytest.mark.usefixtures("device")
def test_two_axes() -> None:
    z = complex_normal(3, 4, 6)
    for name in ("fft2", "ifft2", "irfft2"):
        close(getattr(fft, name)(to_pairs(z)), getattr(np.fft, name)(z))
        close(getattr(fft, name)(to_pairs(z), (5, 7)), getattr(np.fft, name)(z, (5, 7)))
        close(getattr(fft, name)(to_pairs(z), dim=(0, 1)), getattr(np.fft, name)(z, axes=(0, 1)))
    close(fft.rfft2(Tensor(z.real)), np.fft.rfft2(z.real))
    half = fft.rfft2(Tensor(z.real, dtype="float16"))
    assert half.dtype is dtypes.float16
    once = fft.rfft2(Tensor(z.real, dtype="float16").float()).half()
    np.testing.assert_array_equal(half.numpy(), once.numpy())


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


# One step, two and three; an odd number of points; a large prime factor, of which 67 is the least.
SIZES = [1, 2, 3, 16, 31, 61, 64, 96, 97, 98, 99, 122, 128, 134, 243, 400, 512, 1000, 1023, 2048]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_errors_grow_with_the_logarithm_of_the_size(
    n: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound that the module states, of transforms in a higher precision."""
    monkeypatch.setattr(spectra, "has_kernels", lambda device: True)
    z = complex_normal(3 + 300 // n, n)  # so many that their mean error is much the same
    x, half = z.real, z[:, : n // 2 + 1]
    bound = max(1.0, np.log2(n)) * np.finfo(dtype).eps / 2

    def check(found: Array, exact: Array) -> None:
        error = np.linalg.norm(found - exact.astype(np.result_type(exact, np.float64)))
        assert error <= bound * np.linalg.norm(exact)

    rounded = to_pairs(z).cast(dtype)
    wide = to_numbers(rounded).astype(np.clongdouble)
    check(to_numbers(fft.fft(rounded)), np.fft.fft(wide))
    check(to_numbers(fft.ifft(rounded)), np.fft.ifft(wide))
    check(to_numbers(fft.rfft(Tensor(x, dtype=dtype))), np.fft.rfft(wide.real))
    found = fft.irfft(to_pairs(half).cast(dtype), n)
    check(found.numpy(), np.fft.irfft(wide[:, : n // 2 + 1], n))


def test_it_is_lazy_and_runs_on_the_host_where_there_are_no_kernels(device: str) -> None:
    before = GlobalCounters.host_calls
    lazy = fft.rfft(Tensor([1.0, 2.0]))
    assert GlobalCounters.host_calls == before
    lazy.realize()
    interpreted = int(device == "NUMPY")
    assert GlobalCounters.host_calls == before + interpreted
    fft.rfft(Tensor.ones(1 << 10, 67 * 5)).realize()  # a large prime factor
    assert GlobalCounters.host_calls == before + interpreted + 1


@pytest.mark.parametrize("n", [4, 100, 150, 2000])
def test_captured_programs_have_kernels(n: int, device: str) -> None:
    @TinyJit
    def smooth(x: Tensor) -> Tensor:
        spectrum = fft.rfft(x)
        return fft.irfft(spectrum * (Tensor.arange(n // 2 + 1) < 2).reshape(-1, 1), n).realize()

    for _ in range(4):
        x = RNG.normal(size=(2, n))
        spectrum = np.fft.rfft(x)
        spectrum[:, 2:] = 0
        before = GlobalCounters.host_calls
        close(smooth(Tensor(x)), np.fft.irfft(spectrum, n))
        calls = 2 if device == "NUMPY" else 0
        assert GlobalCounters.host_calls == before + calls


@pytest.mark.usefixtures("device", "computed_by")
@pytest.mark.parametrize("n", [6, 100, 130, 243])
def test_mapped_functions(n: int) -> None:
    x = RNG.normal(size=(3, 2, n))
    close(ferrule.vmap(fft.rfft)(Tensor(x)), np.fft.rfft(x))
    z = complex_normal(3, n, 2)
    close(ferrule.vmap(lambda z: fft.fft(z, dim=0))(to_pairs(z)), np.fft.fft(z, axis=1))


@pytest.mark.usefixtures("device", "computed_by")
@pytest.mark.parametrize("n", [96, 98, 99, 200])
def test_gradients_are_the_transforms_the_other_way(n: int) -> None:
    """That of rfft counts each frequency once, that of irfft those that a signal has twice."""
    x, weight = RNG.normal(size=(2, n)), complex_normal(2, n // 2 + 1)
    at = Tensor(x, requires_grad=True)
    (found,) = (fft.rfft(at) * to_pairs(weight)).sum().gradient(at)
    waves = np.exp(-2j * np.pi / n * np.outer(np.arange(n // 2 + 1), np.arange(n)))
    close(found, np.asarray((weight.conj() @ waves).real))
    pairs = to_pairs(weight).requires_grad_(True)
    (found,) = (fft.irfft(pairs, n) * Tensor(x)).sum().gradient(pairs)
    often = np.full(n // 2 + 1, 2.0)
    often[[0, -1] if n % 2 == 0 else [0]] = 1
    close(found, np.asarray((x @ waves.T) * often / n))


@pytest.mark.usefixtures("computed_by")
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


@pytest.mark.usefixtures("computed_by")
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
        (lambda: fft.fftn(Tensor.ones(2, 2, 2), dim=(0, -2)), ShapeError, r"one or more different"),
        (lambda: fft.rfftn(Tensor([1.0]), dim=()), ShapeError, r"\[rfftn\] takes one or more"),
        (lambda: fft.irfft2(Tensor.ones(2, 2, 2), (3,)), ShapeError, r"and as many sizes, not"),
        (lambda: fft.fftfreq(0), ShapeError, r"\[fftfreq\] the number of points is"),
        (lambda: fft.fftshift(Tensor([1.0] * 3)), ShapeError, r"\[fftshift\] takes .* pairs=False"),
        (lambda: fft.fftshift(Tensor([1.0] * 2)), ShapeError, r"\[fftshift\] takes .* pairs=False"),
    ],
)
def test_errors(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function()
