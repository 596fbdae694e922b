"""Train a network that reads digits, and put it into a web page where visitors draw them.

Shows the format `wasm` of `TinyJit.export`: the network becomes a module of WebAssembly, which the
page loads and runs by itself. Nothing is sent anywhere, and nothing of Python is left.

    python examples/digits_in_browser.py --folder build/digits
    python -m http.server --directory build/digits

Prints the files and what was verified. The second command serves the page at localhost:8000.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ferrule import Tensor, TinyJit
from ferrule.demo import digits
from ferrule.nn.state import get_parameters

PAGE = Path(__file__).with_suffix(".html")


class Result(NamedTuple):
    """What was made: the files, and how often the network is right on held-out images."""

    files: list[Path]
    accuracy: float


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains, exports, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/digits"))
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(arguments)

    Tensor.manual_seed(0)
    choose = np.random.default_rng(0)
    data = digits.load(choose)
    trainer = digits.Trainer()
    digits.train(trainer, data, options.epochs, choose, digits.Log(0.0), sys.stdout)
    accuracy = float((trainer.answers(data.test_images) == data.test_labels).mean())

    # Probabilities of one image, with weights that are constants from now on.
    for parameter in get_parameters(trainer.network):
        parameter.requires_grad = False

    @TinyJit
    def classify(image: Tensor) -> Tensor:
        return trainer.network(image).softmax(-1).realize()

    for image in data.test_images[:3]:
        classify(Tensor(digits.scaled(image[None])))

    options.folder.mkdir(parents=True, exist_ok=True)
    exported = classify.export(options.folder / "classify.wasm")
    page = options.folder / "index.html"
    page.write_text(PAGE.read_text())
    print(f"right on {accuracy:.1%} of the held-out images")
    print(f"{exported}\nthe page: {page}")
    return Result([*exported.files, page], accuracy)


if __name__ == "__main__":
    main()
