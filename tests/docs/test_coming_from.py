"""The last column of docs/coming-from.md runs."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, dtypes, nn

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def rows() -> list[tuple[str, str]]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) == 8 and cells[6].strip().startswith("`"):
            found.append((cells[1].strip(), cells[6].strip().strip("`").replace("\\|", "|")))
    return found


def names(folder: Path) -> dict[str, Any]:
    """What the rows start from."""
    rng = np.random.default_rng(0)
    model = nn.Linear(4, 2)
    return {
        "ferrule": ferrule,
        "Tensor": Tensor,
        "TinyJit": TinyJit,
        "dtypes": dtypes,
        "nn": nn,
        "a": np.arange(3.0),
        "x": Tensor(rng.standard_normal((4, 4)).astype(np.float32)),
        "y": Tensor(rng.standard_normal((4, 4)).astype(np.float32)),
        "p": Tensor([1.0, 2.0], requires_grad=True),
        "i": Tensor([2, 0]),
        "labels": Tensor([0, 1, 2, 3]),
        "im": Tensor.ones(1, 3, 8, 8),
        "w": Tensor.ones(2, 3, 3, 3),
        "q": Tensor.ones(1, 2, 5, 4),
        "model": model,
        "opt": nn.optim.SGD(nn.state.get_parameters(model), lr=0.1),
        "path": str(folder / "model.safetensors"),
    }


@pytest.mark.parametrize(("what", "code"), rows(), ids=[what for what, _ in rows()])
def test_the_last_column_runs(what: str, code: str, tmp_path: Path) -> None:
    exec(code, names(tmp_path))


def test_the_table_is_found() -> None:
    assert len(rows()) > 35
