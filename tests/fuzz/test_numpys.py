"""Tests of NumPy as an oracle: it does these statements, and a mistake in one is a finding."""

import pytest

from ferrule.gradient import Value
from tests.fuzz.check import check
from tests.fuzz.numpys import compared
from tests.fuzz.program import Program, Source
from tests.fuzz.ways import Way

SOURCES = (
    Source("a0", 'Tensor(rng(0).integers(-6, 7, (3, 4)) / 2, dtype="float32")'),
    Source("a1", 'Tensor(rng(1).integers(-6, 7, (3, 4)), dtype="int32")'),
)
LINES = [
    "a0 + a1",
    "2 - a0",
    "a0 @ a1.permute(1, 0)",
    "a0 < a1",
    "-a0[1:, None, ::-2]",
    "a1.reshape((2, 6))",
    "a1.flip(0).roll(1, 1)",
    "a0.transpose(0, 1).expand(2, 4, 3)",
    "a0.tril(-1)",
    "a0.sum(1, keepdim=True)",
    "a1.max(dim=0)",
    "a0.cumsum(1)",
    "a0.tanh()",
    "a1.abs()",
    "a0.maximum(a1)",
]


@pytest.mark.parametrize("line", LINES)
def test_numpy_does_statements_of_these_kinds(line: str) -> None:
    before = compared[True]
    program = Program(SOURCES, (f"v2 = {line}",), ("v2",))
    assert check(program, [Way()]) is None
    assert compared[True] == before + 1


def test_what_all_devices_have_wrong_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Value, "absolute", lambda value: value)
    finding = check(Program(SOURCES, ("v2 = a0.abs()",), ("v2",)), [Way("CPU")])
    assert finding is not None
    assert finding.kind == "wrong"
    assert "NumPy" in finding.detail
