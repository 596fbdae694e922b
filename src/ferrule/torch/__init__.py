"""Models of PyTorch: loaded from `torch.export`, or compiled by `torch.compile`.

It is used where PyTorch is installed, and imports it only when it is needed.
"""

from ferrule.torch.compiling import register
from ferrule.torch.model import Model, from_exported
from ferrule.torch.registry import rule
from ferrule.torch.values import TorchError

__all__ = ["Model", "TorchError", "from_exported", "rule"]

register()
