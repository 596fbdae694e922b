"""Models in ONNX's format: loaded, they are functions of tensors, which can be written again."""

from ferrule.onnx.exporting import Exported, export
from ferrule.onnx.model import Model, load
from ferrule.onnx.values import OnnxError

__all__ = ["Exported", "Model", "OnnxError", "export", "load"]
