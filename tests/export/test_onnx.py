"""Captured functions exported as ONNX models: arguments are made of what the signature tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable, nn
from ferrule.export import ExportError

pytest.importorskip("onnx")

import ferrule.onnx


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Options:
    scale: float
    rows: Tensor


def replayed(step: TinyJit[Any], *args: Any, **kwargs: Any) -> Any:
    for _ in range(3):
        result = step(*args, **kwargs)
    return result


def test_a_captured_model_is_its_own_example(tmp_path: Path) -> None:
    Tensor.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), Tensor.relu, nn.Linear(8, 3))
    x = Tensor.randn(2, 4)
    predict = TinyJit(lambda x: net(x))
    wanted = replayed(predict, x)
    exported = predict.export(tmp_path / "net.onnx")
    assert [file.name for file in exported.files] == ["net.onnx"]
    assert "of the function" in exported.verified
    loaded = ferrule.onnx.load(tmp_path / "net.onnx")
    np.testing.assert_allclose(loaded(x.numpy()).numpy(), wanted.numpy(), rtol=1e-5)


def test_containers_numbers_and_keywords_are_as_they_were(tmp_path: Path) -> None:
    def combine(pair: Pair, options: Options, others: list[Any], *, factor: float) -> Tensor:
        index, cut, weights = others[0], others[1], others[2]
        rows = options.rows[index] * options.scale + weights["a"]
        return (pair.left @ pair.right + rows)[cut] * factor

    step = TinyJit(combine)
    rng = np.random.default_rng(0)
    left, right, rows, a = (
        Tensor(rng.standard_normal(shape).astype(np.float32))
        for shape in ((3, 4), (4, 2), (5, 2), (3, 2))
    )
    index = Tensor([1, 4, 0])
    given = (Pair(left, right), Options(0.5, rows), [index, slice(1, 3), {"a": a}])
    wanted = replayed(step, *given, factor=2.0)
    step.export(tmp_path / "combine.onnx")
    loaded = ferrule.onnx.load(tmp_path / "combine.onnx")
    assert [port.name for port in loaded.inputs] == [
        *("pair.left", "pair.right", "options.rows", "others.0", "others.2.a"),
    ]
    found = loaded(*(one.numpy() for one in (left, right, rows, index, a)))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)


def test_a_method_and_sizes_that_vary(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = Tensor.ones(3, 3)

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return (x @ self.weight).softmax(-1)

    model, length = Model(), Variable("length", 1, 8)
    for count in (2, 3, 4, 5):
        model(Tensor.ones(8, 3).realize()[: length.bind(count)])
    exported = model.__call__.export(tmp_path / "model.onnx")
    assert exported.format == "onnx"
    loaded = ferrule.onnx.load(tmp_path / "model.onnx")
    assert loaded(np.ones((7, 3), np.float32)).shape == (7, 3)


def test_without_a_replay_arguments_are_needed(tmp_path: Path) -> None:
    double = TinyJit(lambda x: x * 2)
    with pytest.raises(ExportError, match="args="):
        double.export(tmp_path / "double.onnx")
    assert not list(tmp_path.iterdir())
    double.export(tmp_path / "double.onnx", args=(Tensor.ones(3),))
    found = ferrule.onnx.load(tmp_path / "double.onnx")(np.ones(3, np.float32))
    assert found.tolist() == [2.0] * 3
