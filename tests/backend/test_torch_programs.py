"""Programs written for PyTorch, with other lines of imports: the losses are PyTorch's.

`tests/torch/test_programs.py` compares the stored losses with PyTorch itself.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import Tensor

FOLDER = Path(__file__).parents[1] / "torch"
LOSSES = json.loads((FOLDER / "losses.json").read_text())

IMPORTS = {
    "import torch\n": "from ferrule import torch\n",
    "from torch import nn": "from ferrule.torch import nn",
    "from torch.nn import functional as F\n": "from ferrule.nn import functional as F\n",
    "from torch.nn.utils import": "from ferrule.nn.utils import",
    "from torch.optim.lr_scheduler import": "from ferrule.nn.optim.lr_scheduler import",
    "from torch.utils.data import": "from ferrule.data import",
}


def programs() -> dict[str, Any]:
    """The programs, with ferrule's imports."""
    source = (FOLDER / "programs.py").read_text()
    for line, ours in IMPORTS.items():
        assert source.count(line) == 1
        source = source.replace(line, ours)
    space: dict[str, Any] = {}
    exec(compile(source, "programs.py", "exec"), space)
    return {program.__name__: program for program in space["PROGRAMS"]}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_pytorchs(name: str) -> None:
    assert programs()[name]() == pytest.approx(LOSSES[name], rel=1e-5, abs=1e-5)


def test_all_programs_are_run() -> None:
    assert list(programs()) == list(LOSSES)
    assert not Tensor.training
