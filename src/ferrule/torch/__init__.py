"""PyTorch's names, and its models: loaded from `torch.export`, or compiled by `torch.compile`.

`from ferrule import torch` stands for `import torch`: types, devices, functions and modules under
PyTorch's names. `from_exported` and the rules are used where PyTorch is installed, and import it
only when it is needed.

>>> from ferrule import torch
>>> torch.tensor([1, 2], dtype=torch.float32).sum().item()
3.0
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ferrule.torch.model import Model, from_exported
    from ferrule.torch.registry import rule
    from ferrule.torch.values import TorchError

__all__ = ["Model", "TorchError", "from_exported", "rule"]

_HOMES: Final = {
    "Model": "model",
    "from_exported": "model",
    "rule": "registry",
    "TorchError": "values",
}

if "torch" in sys.modules:
    from ferrule.torch.compiling import register

    register()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name.startswith("__"):
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    else:
        found = import_module(f"{__name__}.namespace").find(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *import_module(f"{__name__}.namespace").names()})
