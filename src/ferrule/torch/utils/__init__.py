"""The name `torch.utils`: what programs use of it is `torch.utils.data`."""

from ferrule.torch.utils import data

__all__ = ["data"]
