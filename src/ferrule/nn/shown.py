"""What `repr` shows of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any, NoReturn

from ferrule.calls import explain_constructor
from ferrule.tensor import Tensor

_WIDTH = 100

# What PyTorch's modules have, and what does it here.
_INSTEAD = {
    "add_module": "layers are attributes: setattr(model, name, layer), and append of a Sequential",
    "apply": "nn.state.get_state_dict(model) has all tensors by name",
    "bfloat16": "nn.state.get_parameters(model) are the tensors: p.replace(p.bfloat16())",
    "buffers": "nn.state.get_state_dict(model) has all tensors by name",
    "children": "layers are attributes: vars(model)",
    "cpu": "layers are made on a device: nn.Linear(4, 2, device='CPU')",
    "cuda": "layers are made on a device: nn.Linear(4, 2, device='CUDA')",
    "eval": "Tensor.training = False, or no `with Tensor.train():`, is evaluation",
    "forward": "call the layer",
    "half": "nn.state.get_parameters(model) are the tensors: p.replace(p.half())",
    "load_state_dict": "nn.state.load_state_dict(model, tensors) loads them",
    "modules": "layers are attributes: vars(model)",
    "named_modules": "layers are attributes: vars(model)",
    "named_parameters": "nn.state.get_state_dict(model) has all tensors by name",
    "parameters": "nn.state.get_parameters(model) finds them",
    "double": "nn.state.get_parameters(model) are the tensors: p.replace(p.double())",
    "float": "nn.state.get_parameters(model) are the tensors: p.replace(p.float())",
    "register_buffer": "assign a Tensor with requires_grad=False to an attribute",
    "register_forward_hook": "wrap the layer: a function that calls it is a layer too",
    "register_parameter": "assign a Tensor to an attribute",
    "requires_grad_": "nn.state.get_parameters(model) are the tensors: p.requires_grad_(False)",
    "state_dict": "nn.state.get_state_dict(model) has all tensors by name",
    "to": "layers are made on a device: nn.Linear(4, 2, device='CPU')",
    "train": "with Tensor.train(): is training",
    "zero_grad": "the optimiser's zero_grad() forgets all gradients",
}


class Shown:
    """A layer whose `repr` names its settings, the shapes of its tensors, and the layers in it.

    >>> from ferrule import nn
    >>> nn.Linear(3, 2)
    Linear(weight=(2, 3), bias=(2,))
    """

    def __init_subclass__(cls) -> None:
        explain_constructor(cls)

    if not TYPE_CHECKING:  # which would take any name for one of a layer

        def __getattr__(self, name: str) -> NoReturn:
            # Only where there is no such attribute.
            hint = _INSTEAD.get(name, f"it has {', '.join(vars(self)) or 'none'}")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; {hint}",
                name=name,
                obj=self,
            )

    def __repr__(self) -> str:
        parts = [
            f"{name}={_text(value)}"
            for name, value in vars(self).items()
            if not name.startswith("_")
        ]
        line = ", ".join(parts)
        kind = type(self).__name__
        if len(kind) + len(line) < _WIDTH and "\n" not in line:
            return f"{kind}({line})"
        return f"{kind}({_block(parts)})"


def _block(parts: Sequence[str]) -> str:
    """The parts on lines of their own, between two brackets."""
    lines = indent(",\n".join(parts), "  ")
    return f"\n{lines},\n"


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.shape)
    if isinstance(value, list | tuple) and any(isinstance(part, Shown) for part in value):
        return f"[{_block([repr(part) for part in value])}]"
    if callable(value) and not isinstance(value, Shown):
        return str(getattr(value, "__name__", value))
    return repr(value)
