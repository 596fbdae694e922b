"""The tensors of a model by name, and files of them: safetensors, `.npz`, PyTorch's checkpoints."""

from typing import TYPE_CHECKING, NoReturn

from ferrule.base.helpers import no_attribute
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
from ferrule.nn.state.pickling import torch_save
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
    "torch_save",
]

# What newcomers look for, and what does it here.
_INSTEAD = {
    "load": "safe_load, npz_load and torch_load read files",
    "save": "safe_save(get_state_dict(model), path) writes a file",
    "gguf_load": "safe_load, npz_load and torch_load read files",
}


if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> NoReturn:
        raise no_attribute(__name__, name, __all__, _INSTEAD)
