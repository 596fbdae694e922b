"""Tensors spread over a mesh of devices."""
