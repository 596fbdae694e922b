"""The other direction: functions of tensors as models in ONNX's format."""
