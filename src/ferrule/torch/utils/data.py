"""The names of `torch.utils.data`, which are those of `ferrule.data`."""

from ferrule.data import *  # noqa: F403
from ferrule.data import __all__ as __all__
