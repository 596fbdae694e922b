"""The tour runs, shows every step, and ends with the right product."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np

TOUR = Path(__file__).parents[2] / "docs" / "tour.py"


def _tour() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tour", TOUR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tour() -> None:
    shown: list[str] = []
    tour = _tour().Tour(shown.append)
    result = tour.run()
    expected = np.maximum(tour.left.astype(np.float64) @ tour.right.astype(np.float64), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    steps = [int(number) for number in re.findall(r"^=== (\d+)\. ", "".join(shown), re.MULTILINE)]
    assert steps == list(range(1, 10))
    assert "SUM" in shown[0]
    assert "STORE" in shown[1]
    assert "for r0.2 in 64" in shown[2]
    assert "LOOP" in shown[5]
    assert "define void" in shown[6] or "fma" in shown[6]
    assert "the interpreter's bits: True" in shown[-1]
