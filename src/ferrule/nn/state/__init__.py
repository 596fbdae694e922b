"""The tensors of a model by name, and files of them: safetensors, `.npz`, PyTorch's checkpoints."""

from ferrule.nn.state.checkpoints import torch_load
from ferrule.nn.state.files import StateError
from ferrule.nn.state.model import (
    Mismatch,
    functional_call,
    get_parameters,
    get_state_dict,
    load_state_dict,
)
from ferrule.nn.state.npz import npz_load, npz_save
from ferrule.nn.state.safetensors import safe_load, safe_save

__all__ = [
    "Mismatch",
    "StateError",
    "functional_call",
    "get_parameters",
    "get_state_dict",
    "load_state_dict",
    "npz_load",
    "npz_save",
    "safe_load",
    "safe_save",
    "torch_load",
]
