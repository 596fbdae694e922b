"""Moves between devices."""

from __future__ import annotations

from typing import Any

from ferrule.ir.dtype import DType
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.data import to_device as known_device
from ferrule.tensor.keywords import method


@method
def to(
    self: Tensor,
    target: str | DType | Tensor | None = None,
    dtype: DTypeLike | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    *,
    device: str | None = None,
) -> Tensor:
    """The tensor on another device, with another dtype, or both; itself if nothing changes.

    `target` is a device, a dtype, or a tensor that has both; None with nothing else given is
    the default device. `copy` gives memory of its own in any case. `non_blocking` is PyTorch's,
    and changes nothing: a copy is done when it is needed.

    >>> from ferrule import Tensor, dtypes
    >>> Tensor([1, 2], device="NUMPY").to("CPU").device
    'CPU'
    >>> Tensor([1.5]).to(dtypes.int32).tolist(), Tensor([1]).to(Tensor([0.5])).dtype
    ([1], dtypes.float32)
    """
    if isinstance(target, Tensor):
        device, dtype = target.device, target.dtype
    elif isinstance(target, DType):
        dtype = target
    elif target is not None or dtype is None:
        device = known_device(device if target is None else target)
    place = self.device if device is None else known_device(device)
    result = self if dtype is None else self.cast(dtype)
    if place != self.device:
        return self._wrap(result._read().copy_to(place))
    return result.clone() if copy and result is self else result


@method
def cpu(self: Tensor) -> Tensor:
    """The tensor on the device CPU.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2], device="NUMPY").cpu().device
    'CPU'
    """
    return self.to("CPU")


@method
def to_device(self: Tensor, device: str, /, *, stream: Any | None = None) -> Tensor:
    """The tensor on another device; the same tensor if it is there.

    Raises `ValueError` for a stream: ferrule's devices have none.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2], device="NUMPY").to_device("CPU").device
    'CPU'
    """
    if stream is not None:
        raise ValueError(f"[to_device] devices have no streams; pass none, not {stream!r}")
    target = known_device(device)
    return self if target == self.device else self._wrap(self._read().copy_to(target))
