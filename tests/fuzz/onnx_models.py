"""Random models in ONNX's format: plain and captured, they give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from ferrule import Tensor, TinyJit, no_grad
from tests.fuzz.check import Finding, finding_beside

Array = npt.NDArray[Any]
SHARE = 0.05
"""Of the programs, beside which models are drawn."""
CAPTURED = 0.3
"""Of the models, which are also captured and replayed."""
EPSILON = float(np.finfo(np.float32).eps)
IS_THERE = all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class Drawn:
    """A random model, and whether it is captured too."""

    def __init__(self, seed: int, captured: bool = False) -> None:
        from tests.fuzz.onnx_nodes import draw

        self.seed = seed
        self.captured = captured
        self.proto, self.inputs = draw(seed)

    def __str__(self) -> str:
        kinds = ", ".join(node.op_type for node in self.proto.graph.node)
        return f"onnx_nodes.draw({self.seed}): {kinds}"

    def mistake(self) -> str:
        """How the outputs differ from ONNX Runtime's, in words; empty if they do not."""
        from ferrule.onnx import load

        names = [port.name for port in self.proto.graph.output]
        expected = by_onnx_runtime(self.proto, self.inputs)
        model = load(self.proto.SerializeToString())
        with no_grad():
            said = self._compared(names, several(model(**self.inputs)), expected)
            if said or not self.captured or not self.inputs:
                return said
            replay = TinyJit(lambda **given: [y.realize() for y in several(model(**given))])
            for _ in range(3):
                found = replay(**{name: Tensor(array) for name, array in self.inputs.items()})
            said = self._compared(names, found, expected)
        return f"captured: {said}" if said else ""

    def _compared(
        self, names: Sequence[str], found: Sequence[Tensor], expected: Sequence[Array]
    ) -> str:
        """The first difference that is more than what roundings may make of it."""
        said = compared(names, found, expected, [0.0] * len(names))
        if not said:
            return ""
        near = by_onnx_runtime(*shaken(self.proto, self.inputs))
        moved = [10 * distance(x, y) for x, y in zip(near, expected, strict=True)]
        return compared(names, found, expected, moved)


def distance(x: Array, y: Array) -> float:
    """The largest difference of finite elements."""
    both = np.isfinite(x) & np.isfinite(y)
    return float(np.abs(x[both].astype(np.float64) - y[both].astype(np.float64)).max(initial=0))


def by_onnx_runtime(proto: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs that ONNX Runtime gives."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(inputs)))


def shaken(proto: Any, inputs: Mapping[str, Array]) -> tuple[Any, dict[str, Array]]:
    """A model and inputs whose floats are others in their last digits."""
    from onnx import ModelProto, numpy_helper

    rng = np.random.default_rng(0)

    def other(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        return (array * (1 + 4 * EPSILON * rng.standard_normal(array.shape))).astype(array.dtype)

    near = ModelProto()
    near.CopyFrom(proto)
    for one in near.graph.initializer:
        one.CopyFrom(numpy_helper.from_array(other(numpy_helper.to_array(one)), one.name))
    return near, {name: other(array) for name, array in inputs.items()}


def several(values: Any) -> Sequence[Tensor]:
    """The outputs of a model that may have one."""
    return values if isinstance(values, tuple) else (values,)


def compared(
    names: Sequence[str],
    found: Sequence[Tensor],
    expected: Sequence[Array],
    roundings: Sequence[float],
) -> str:
    """The first difference of outputs, in words, beyond what roundings make of each."""
    for name, tensor, wanted, rounding in zip(names, found, expected, roundings, strict=True):
        array = tensor.numpy()
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            return f"{name} is {array.dtype} {array.shape}, not {wanted.dtype} {wanted.shape}"
        # Where one overflows, or divides by what is nearly zero, the other may not.
        usual = np.isfinite(wanted) & (np.abs(wanted) < 1e30)
        scale = np.abs(wanted[usual]).max(initial=1)
        error = np.abs(array[usual] - wanted[usual]).max(initial=0)
        if not error <= 1e-3 * scale + rounding:
            return f"{name} differs by {error:.2g} of {scale:.2g}"
    return ""


def finding(seed: int, index: int) -> Finding | None:
    """A finding in a model of ONNX, which is drawn for a share of the programs."""
    rng = Random(f"onnx:{seed}:{index}")
    if not IS_THERE or rng.random() > SHARE:
        return None
    drawn = Drawn(rng.randrange(2**31), rng.random() < CAPTURED)
    return finding_beside("a model of ONNX", drawn, drawn.mistake)
