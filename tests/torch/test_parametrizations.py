"""Weight and spectral normalisation, step by step beside PyTorch's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, nn
from ferrule.nn.optim import SGD
from ferrule.nn.state import get_parameters, get_state_dict, load_state_dict, torch_load
from ferrule.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

torch = pytest.importorskip("torch")

LAYERS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("Linear", (5, 3), (4, 5)),
    ("Conv2d", (2, 3, 2), (2, 2, 4, 4)),
    ("ConvTranspose1d", (2, 3, 2), (2, 2, 4)),
]


@pytest.mark.parametrize(("kind", "sizes", "shape"), LAYERS)
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_weight_norm(
    kind: str, sizes: tuple[int, ...], shape: tuple[int, ...], dim: int | None, tmp_path: Path
) -> None:
    theirs = torch.nn.utils.parametrizations.weight_norm(getattr(torch.nn, kind)(*sizes), dim=dim)
    ours = weight_norm(getattr(nn, kind)(*sizes), dim=dim)
    compare_training(ours, theirs, shape, tmp_path)


@pytest.mark.parametrize(("kind", "sizes", "shape"), LAYERS)
@pytest.mark.parametrize("iterations", [1, 3])
def test_spectral_norm(
    kind: str, sizes: tuple[int, ...], shape: tuple[int, ...], iterations: int, tmp_path: Path
) -> None:
    make = torch.nn.utils.parametrizations.spectral_norm
    theirs = make(getattr(torch.nn, kind)(*sizes), n_power_iterations=iterations)
    ours = spectral_norm(getattr(nn, kind)(*sizes), n_power_iterations=iterations)
    compare_training(ours, theirs, shape, tmp_path)


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("kind", [None, "matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("based", [True, False])
def test_orthogonal(sizes: tuple[int, int], kind: str | None, based: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"orthogonal_map": kind, "use_trivialization": based}
    layer: Any = nn.Linear(*sizes)
    if not based and (kind in ("matrix_exp", "cayley") or (kind is None and sizes == (4, 4))):
        with pytest.raises(ValueError, match="with use_trivialization only"):
            orthogonal(layer, **given)
        return
    theirs = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(*sizes), **given)
    compare_training(orthogonal(layer, **given), theirs, (2, sizes[0]), tmp_path)
    new = np.random.default_rng(1).standard_normal(sizes[::-1]).astype(np.float32)
    if sizes[0] != sizes[1] and based:
        new = np.linalg.qr(new if sizes[1] > sizes[0] else new.T)[0]
        new = new if sizes[1] > sizes[0] else new.T  # what is completed is at random
    layer.weight = Tensor(new)
    with torch.no_grad():
        theirs.weight = torch.from_numpy(np.ascontiguousarray(new))
    expected = theirs.weight.detach().numpy()
    np.testing.assert_allclose(layer.weight.numpy(), expected, rtol=1e-4, atol=1e-5)


def compare_training(ours: Any, theirs: Any, shape: tuple[int, ...], folder: Path) -> None:
    torch.save(theirs.state_dict(), folder / "x.pt")
    load_state_dict(ours, torch_load(folder / "x.pt"))
    assert list(get_state_dict(ours)) == list(theirs.state_dict())
    optimizers = (
        SGD([p for p in get_parameters(ours) if p.requires_grad], lr=0.1, momentum=0.9),
        torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9),
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with Tensor.train():
            (ours(Tensor(x)) - 1).square().mean().backward()
        (theirs(torch.from_numpy(x)) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for name, tensor in get_state_dict(ours).items():
            expected = theirs.state_dict()[name].numpy()
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-5)
    theirs.eval()
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
