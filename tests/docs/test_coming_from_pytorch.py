"""The right column of docs/coming-from-pytorch.md runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.backend.test_torch_programs import IMPORTS

import ferrule
from ferrule import Tensor, TinyJit, data, distributions, dtypes, nn, torch
from ferrule.nn import functional as F
from ferrule.nn.optim import swa_utils

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-pytorch.md"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.fc(x)


def rows() -> list[tuple[str, str]]:
    cells = [re.split(r"(?<!\\)\|", line) for line in PAGE.read_text().splitlines()]
    found = [[cell.strip().strip("`") for cell in line] for line in cells if len(line) == 5]
    return [(line[1], line[3]) for line in found if line[1] not in ("to", "---")]


@pytest.mark.parametrize(("what", "code"), rows(), ids=[what for what, _ in rows()])
def test_the_right_column_runs(what: str, code: str, tmp_path: Path) -> None:
    model = Net()
    names = {
        **{"Tensor": Tensor, "TinyJit": TinyJit, "dtypes": dtypes, "nn": nn, "F": F},
        **{"distributions": distributions, "torch": torch, "data": data},
        **{"ferrule": ferrule, "swa_utils": swa_utils, "scaler": ferrule.amp.GradScaler()},
        **{"model": model, "x": Tensor.ones(3, 4), "labels": Tensor([0, 1, 1])},
        "opt": nn.optim.SGD(model.parameters(), lr=0.1),
        "path": str(tmp_path / "model.safetensors"),
    }
    exec(code, names)


def test_there_are_thirty_idioms() -> None:
    assert len(rows()) >= 30


def test_the_lines_of_imports_are_those_of_the_programs() -> None:
    page = PAGE.read_text()
    for theirs, ours in IMPORTS.items():
        assert f"| `{theirs.strip()}" in page
        assert f"| `{ours.strip()}" in page
