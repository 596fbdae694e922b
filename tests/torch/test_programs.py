"""The stored losses of programs are PyTorch's; `tests/backend/test_torch_programs.py` has ours."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about hooks without inputs

FOLDER = Path(__file__).parent
LOSSES = json.loads((FOLDER / "losses.json").read_text())


@pytest.mark.parametrize("name", LOSSES)
def test_stored_losses_are_pytorchs(name: str) -> None:
    spec = importlib.util.spec_from_file_location("programs", FOLDER / "programs.py")
    assert spec is not None
    assert spec.loader is not None
    programs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(programs)
    assert getattr(programs, name)() == pytest.approx(LOSSES[name], rel=1e-5, abs=1e-5)
