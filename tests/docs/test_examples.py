"""The programs of examples/ do what they say, in runs as short as that allows."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ferrule import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """One of the programs, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_image_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("image_classifier").main(["--epochs", "8"])
    assert accuracy > 0.94
    assert f"accuracy {accuracy:.4f} on 359 held-out images" in capsys.readouterr().out


def test_small_gpt() -> None:
    example = load("small_gpt")
    result = example.main(["--steps", "150", "--length", "40"])
    assert result.losses[0] > 2.5
    assert result.losses[-1] < 0.3
    prompt = "merrily merrily merrily life is but "
    assert result.written.startswith(prompt)
    assert len(result.written) == len(prompt) + 40
    assert result.written in example.ROUND * 3


def test_generate(capsys: pytest.CaptureFixture[str]) -> None:
    result = load("generate").main(["--tokens", "20"])
    assert len(result.cached) == 24
    assert result.cached == result.recomputed
    assert " ".join(map(str, result.cached)) in capsys.readouterr().out


def test_fine_tune() -> None:
    result = load("fine_tune").main(["--steps", "200"])
    assert result.unchanged
    assert result.tuned > 0.85
    assert result.tuned > result.untrained


def test_autoencoder() -> None:
    result = load("autoencoder").main(["--epochs", "10"])
    assert result.losses[-1] < result.losses[0] - 10
    assert result.images.shape == (4, 8, 8)
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    # No two of them are the same image.
    assert np.abs(result.images[:, None] - result.images[None]).max((2, 3))[0, 1:].min() > 0.1


def test_newton() -> None:
    result = load("newton").main([])
    np.testing.assert_allclose(result.point, [1, 1], rtol=1e-12)
    # The differences between neighbours are exact up to the square of their distance.
    assert result.error < (np.pi / 201) ** 2 / 10


def test_per_example_gradients() -> None:
    example = load("per_example_gradients")
    result = example.main(["--steps", "400"])
    assert result.largest_clipped <= example.CLIP * (1 + 1e-5)
    assert result.largest > example.CLIP
    assert result.accuracy > 0.9


def test_the_gradient_of_each_example_is_that_of_it_alone() -> None:
    example = load("per_example_gradients")
    points, labels = (example.Tensor(array[:3]) for array in example.rings(3))
    example.Tensor.manual_seed(0)
    weights = {name: example.Tensor.randn(*shape) for name, shape in SHAPES.items()}
    together = example.each_gradient(weights, points, labels)
    for number in range(3):
        alone = example.ferrule.grad(example.loss)(weights, points[number], labels[number])
        for name in SHAPES:
            found = together[name][number].numpy()
            np.testing.assert_allclose(found, alone[name].numpy(), rtol=1e-5, atol=1e-6)


SHAPES = {"first": (2, 16), "bias": (16,), "second": (16,)}


def test_custom_gradient() -> None:
    result = load("custom_gradient").main(["--steps", "60"])
    assert result.difference < 1e-4
    assert result.losses[-1] < result.losses[0] * 0.6


def test_fit_motion() -> None:
    example = load("fit_motion")
    result = example.main(["--steps", "8"])
    assert abs(result.length - example.LENGTH) < 0.02
    assert abs(result.friction - example.FRICTION) < 0.02


def test_kernel_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = Tensor.ones(4, device="CPU").contiguous().realize()
    waiting.assign(waiting + 1)  # other programs of the process may leave writes, too
    result = load("kernel_schedule").main(["--size", "64"])
    assert list(result.products) == ["no schedule", "this schedule", "ferrule's"]
    for product in result.products.values():
        np.testing.assert_allclose(product, result.expected, rtol=1e-4, atol=1e-4)
    assert waiting.tolist() == [2.0] * 4
    assert "for i0.1.i in 16 vector:" in capsys.readouterr().out


def test_digits_in_browser(tmp_path: Path) -> None:
    """In a browser it is tested in `tests/export/test_browser.py`."""
    result = load("digits_in_browser").main(["--folder", str(tmp_path), "--epochs", "10"])
    assert result.accuracy > 0.94
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in result.files}


def test_every_program_is_listed_and_tested() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"\[(\w+)\.py\]\(\1\.py\)", (EXAMPLES / "README.md").read_text()))
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert listed == programs
    assert programs <= tested
