"""Random models of ONNX: they give what ONNX Runtime gives, and a wrong rule is found."""

from __future__ import annotations

import pytest

from ferrule import Tensor
from tests.fuzz import onnx_models

if not onnx_models.IS_THERE:
    pytest.skip("the onnx package or ONNX Runtime is not installed", allow_module_level=True)

from tests.fuzz.onnx_nodes import DRAWS, draw

MODELS = 12


def test_random_models_are_those_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_models, "SHARE", 1.0)
    assert [onnx_models.finding(1, index) for index in range(MODELS)] == [None] * MODELS


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [
        seed for seed in range(100)
        if any(node.op_type == "Softmax" for node in draw(seed)[0].graph.node)
    ]  # fmt: skip
    drawn = [onnx_models.Drawn(seed) for seed in seeds[:3]]
    monkeypatch.setattr(Tensor, "softmax", lambda x, *_, **__: x)
    assert any("differs by" in model.mistake() for model in drawn)


def test_reciprocals_of_what_is_nearly_zero_are_no_finding() -> None:
    """Roundings of a convolution before it are one percent of a result."""
    drawn = onnx_models.Drawn(2081491705)
    assert any(node.op_type == "Reciprocal" for node in drawn.proto.graph.node)
    assert drawn.mistake() == ""


def test_all_kinds_of_nodes_are_drawn() -> None:
    drawn = {node.op_type for seed in range(150) for node in draw(seed)[0].graph.node}
    assert len(drawn) > 70, sorted(drawn)
    assert len(DRAWS) > 30
