"""Programs of PyTorch with Fourier transforms: complex numbers inside, real ones at both ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit
from ferrule.torch import TorchError, from_exported
from ferrule.torch.compiling import backend

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about its own export

WINDOW = torch.hann_window(16)
FACTOR = torch.randn(17, dtype=torch.float32)


def filtered(x: Any) -> Any:
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * torch.fft.rfft(x.flip(-1)) / (spectrum + 9), n=x.shape[-1])


def mixed(x: Any) -> Any:
    z = torch.complex(x[:, :4], x[:, 4:8])
    both = torch.cat([z.conj(), z[:, 1:].flip(1)], 1).unsqueeze(1).expand(2, 3, 7)
    turned = (
        (2 - both * x[:, :3, None] - z.sum() - z.mean(-1, keepdim=True)[:1, None])
        .permute(1, 0, 2)
        .reshape(3, -1)
    )
    return torch.view_as_real(turned.T[2:, 1] ** 2 + torch.polar(x[0, :12].abs(), x[1, :12]))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "pairs": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "magnitude": lambda x: torch.fft.rfft(x, norm="ortho").abs(),
    "angle": lambda x: torch.fft.rfft(x).angle(),
    "power": lambda x: torch.fft.rfft(x, norm="forward").real ** 2,
    "phase": lambda x: torch.fft.fft(x).imag,
    "scaled": lambda x: torch.fft.irfft(torch.fft.rfft(x) * FACTOR, norm="ortho"),
    "odd": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=31, norm="forward"),
    "images": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]),
    "mixing": lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    "back": lambda x: torch.fft.ifft2(torch.fft.fft2(x, norm="ortho"), norm="ortho").real,
    "pieces": lambda x: torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs(),
    "whole": lambda x: torch.istft(
        torch.stft(x, 16, 4, window=WINDOW, return_complex=True), 16, 4, window=WINDOW
    ),
    "filtered": filtered,
    "mixed": mixed,
}


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def exported(function: Callable[[Any], Any], x: Any, decomposed: bool = True) -> Any:
    program = torch.export.export(Module(function), (x,))
    return program.run_decompositions() if decomposed else program


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_and_gradients_are_pytorchs(name: str, decomposed: bool) -> None:
    function = FUNCTIONS[name]
    array = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    theirs = torch.from_numpy(array).requires_grad_()
    wanted = function(theirs)
    seed = np.random.default_rng(1).standard_normal(tuple(wanted.shape)).astype(np.float32)
    (slope,) = torch.autograd.grad(wanted, theirs, torch.from_numpy(seed))
    model = from_exported(exported(function, theirs.detach(), decomposed))
    found, pull = ferrule.vjp(model, Tensor(array))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pull(Tensor(seed))[0].numpy(), slope.numpy(), rtol=1e-3, atol=1e-3)
    step = TinyJit(lambda x: model(x).realize())
    for _ in range(3):
        replayed = step(Tensor(array))
    np.testing.assert_allclose(replayed.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["scaled", "filtered", "magnitude", "images"])
def test_they_are_compiled_with_their_slopes(name: str) -> None:
    torch._dynamo.reset()
    found = []
    for function in (FUNCTIONS[name], torch.compile(FUNCTIONS[name], backend=backend)):
        x = torch.linspace(-1, 2, 64).reshape(2, 32).sin().requires_grad_()
        y = function(x)
        y.square().sum().backward()
        found.append([y.detach().numpy(), x.grad.numpy()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_what_is_complex_at_an_end_or_has_no_rule_is_named() -> None:
    x = torch.randn(2, 32)
    with pytest.raises(TorchError, match=r"node '_fft_r2c': complex results; .*view_as_real"):
        from_exported(exported(torch.fft.rfft, x))
    with pytest.raises(TorchError, match=r"operator aten\.tanh\.default on complex numbers"):
        from_exported(exported(lambda x: torch.fft.rfft(x).tanh().abs(), x))
    with pytest.raises(TorchError, match="complex64"):
        from_exported(exported(lambda z: z.abs(), torch.fft.rfft(x)))
