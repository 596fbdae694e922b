"""Models in ONNX's format: loaded, they are functions of tensors."""

from ferrule.onnx.model import Model, load
from ferrule.onnx.values import OnnxError

__all__ = ["Model", "OnnxError", "load"]
