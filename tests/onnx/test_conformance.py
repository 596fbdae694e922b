"""The public cases of the onnx package, for each operator and each variant of it."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")

from onnx import TensorProto, numpy_helper  # noqa: E402
from onnx.backend.test import loader  # noqa: E402

from ferrule.onnx import OnnxError  # noqa: E402
from ferrule.onnx.backend import prepare  # noqa: E402
from ferrule.onnx.values import is_supported  # noqa: E402

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

# Not ONNX's own operators, or images in files.
OTHER_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview")
DECODERS = ("ImageDecoder",)
# Random numbers, which no two implementations draw alike.
RANDOM = ("test_bernoulli", "test_training_dropout")
# The expected values are rounded in another order, in floats of 16 bits or near zero.
ROUNDED = (
    "test_attention_3d_causal_bf16", "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16", "test_attention_4d_causal_fp16",
    "test_attention_4d_causal_padded_kv_bf16", "test_attention_4d_padded_kv_bf16",
    "test_dft_inverse",
)  # fmt: skip
NOT_COMPARED = (*RANDOM, *ROUNDED)


@functools.cache
def cases() -> dict[str, Any]:
    """All cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some divide by zero to make what they expect
        return {case.name: case for kind in KINDS for case in loader.load_model_tests(kind=kind)}


def read(folder: Path, kind: str, infos: Any) -> list[Any]:
    """The inputs or outputs of a case in files."""
    values = []
    for i, info in enumerate(infos):
        path = folder / f"{kind}_{i}.pb"
        if path.exists():
            assert info.type.HasField("tensor_type")
            values.append(numpy_helper.to_array(TensorProto.FromString(path.read_bytes())))
    return values


def examples(case: Any) -> tuple[Any, list[Any]]:
    """The model of a case, and pairs of inputs and outputs."""
    if case.model is not None:
        return case.model, case.data_sets
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    return model, [
        (read(folder, "input", model.graph.input), read(folder, "output", model.graph.output))
        for folder in sorted(Path(case.model_dir).glob("test_data_set_*"))
    ]


def has_odd_types(model: Any) -> bool:
    """Whether a model has tensors of strings, complex numbers or the smallest floats."""
    ports = [*model.graph.input, *model.graph.output]
    kinds = [p.type.tensor_type.elem_type for p in ports if p.type.HasField("tensor_type")]
    tensors = [a.t.data_type for n in model.graph.node for a in n.attribute if a.HasField("t")]
    casts = [a.i for n in model.graph.node for a in n.attribute if a.name == "to"]
    return not all(map(is_supported, [*kinds, *tensors, *casts]))


def is_foreign(model: Any) -> bool:
    return any(n.domain in OTHER_DOMAINS or n.op_type in DECODERS for n in model.graph.node)


def plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def compare(found: Any, expected: Any, rtol: float, atol: float) -> None:
    expected = plain(expected)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other, rtol, atol)
    elif expected is None:
        assert found is None
    else:
        expected = np.asarray(expected)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        if expected.dtype.kind not in "biuf":
            found, expected = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(found, expected, max(rtol, 1e-3), atol)


def run(case: Any) -> str:
    """What is wrong with a case, in a line; empty if nothing is."""
    model, sets = examples(case)
    try:
        ready = prepare(model)
    except OnnxError as error:
        return "" if has_odd_types(model) or is_foreign(model) else f"{case.name}: {error}"
    for inputs, outputs in sets:
        found = ready.run([plain(value) for value in inputs])
        if case.name.removesuffix("_expanded").startswith(NOT_COMPARED):
            continue
        try:
            assert len(found) == len(outputs)
            for one, other in zip(found, outputs, strict=True):
                compare(one, other, case.rtol, case.atol)
        except AssertionError as error:
            return f"{case.name}: {error}"
    return ""


PARTS = 24


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_pass(part: int) -> None:
    problems = [problem for problem in map(run, list(cases().values())[part::PARTS]) if problem]
    assert not problems, "\n".join(problems)


def test_there_are_as_many_cases_as_expected() -> None:
    """Of these 1,771 passed with onnx 1.23: those in data types that ferrule has."""
    with_types = [case for case in cases().values() if not has_odd_types(examples(case)[0])]
    assert len(with_types) >= 1600
