"""The interface of the onnx package to whatever runs models: `onnx.backend.base.Backend`.

>>> from onnx import helper
>>> import numpy as np
>>> import ferrule.onnx.backend as backend
>>> node = helper.make_node("Relu", ["x"], ["y"])
>>> backend.run_node(node, [np.float32([-1, 2])])[0].tolist()
[0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    checker,
    defs,
    helper,
    numpy_helper,
)
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from ferrule.onnx.model import Model, from_proto, of_checked
from ferrule.onnx.values import OnnxError
from ferrule.tensor import Tensor


class FerruleRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for these inputs, as NumPy arrays, lists of such, or None."""
        given = [_input(value) for value in inputs]
        results = self._model(**inputs) if isinstance(inputs, dict) else self._model(*given)
        outputs = results if isinstance(results, tuple) else (results,)
        return tuple(map(_output, outputs))


def _input(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _output(value: Any) -> Any:
    if isinstance(value, list):
        return [_output(part) for part in value]
    return value.numpy() if isinstance(value, Tensor) else value


class FerruleBackend(Backend):
    """Runs models by ferrule, on its default device."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether a model can be loaded."""
        try:
            from_proto(model)
        except OnnxError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> FerruleRep:
        """Load a model; raises `OnnxError` if that is not possible."""
        return FerruleRep(from_proto(model))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node, in the newest version of ONNX's operators."""
        graph = GraphProto(name="node", node=[node])
        graph.input.extend(ValueInfoProto(name=name) for name in node.input if name)
        graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
        opset = helper.make_opsetid("", defs.onnx_opset_version())
        checker.check_node(node)
        model = of_checked(helper.make_model(graph, opset_imports=[opset]), [], {})
        return FerruleRep(model).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there."""
        return bool(Device(device).type == DeviceType.CPU)


is_compatible = FerruleBackend.is_compatible
prepare = FerruleBackend.prepare
run_model = FerruleBackend.run_model
run_node = FerruleBackend.run_node
supports_device = FerruleBackend.supports_device
