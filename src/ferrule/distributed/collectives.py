"""Collectives as functions of lists of tensors: all_reduce, all_gather, reduce_scatter and others.

Names and meanings are those of MPI and of `jax.lax`, with the ranks' tensors in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as folded
from typing import Final

from ferrule.device import Device
from ferrule.ir.dtype import DTypeError
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size

_COMBINE: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": Tensor.add,
    "mean": Tensor.add,
    "prod": Tensor.mul,
    "max": Tensor.maximum,
    "min": Tensor.minimum,
}


def broadcast(tensor: Tensor, devices: Sequence[str]) -> list[Tensor]:
    """The tensor on each device; the gradient of the tensor is the sum of theirs.

    Raises `UnknownDeviceError` or `DeviceUnavailableError` for a device that cannot be opened.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import broadcast
    >>> [copy.device for copy in broadcast(Tensor([1.0], device="CPU"), ["CPU", "CPU:1"])]
    ['CPU', 'CPU:1']
    """
    return [tensor.to(device) for device in _known(devices, "broadcast")]


def scatter(tensor: Tensor, devices: Sequence[str], dim: int = 0) -> list[Tensor]:
    """A part of an axis on each device, in order. The sizes differ by one at most.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import scatter
    >>> x = Tensor([1, 2, 3], device="CPU")
    >>> [(part.device, part.tolist()) for part in scatter(x, ["CPU", "CPU:1"])]
    [('CPU', [1, 2]), ('CPU:1', [3])]
    """
    names = _known(devices, "scatter")
    parts = _parts(tensor, len(names), dim, "scatter")
    return [part.to(name) for part, name in zip(parts, names, strict=True)]


def gather(tensors: Sequence[Tensor], device: str | None = None, dim: int = 0) -> Tensor:
    """All tensors one after the other along an axis, on one device: that of the first if None.

    Raises `ShapeError` for shapes that differ in another axis, `DTypeError` for other dtypes.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import gather, scatter
    >>> x = scatter(Tensor([1, 2, 3], device="CPU"), ["CPU", "CPU:1"])
    >>> gather(x).tolist(), gather(x, "CPU:1").device
    ([1, 2, 3], 'CPU:1')
    """
    given = _checked(tensors, "gather", dim)
    to = given[0].device if device is None else Device.known(device)
    return _joined(given, to, dim)


def all_gather(tensors: Sequence[Tensor], dim: int = 0) -> list[Tensor]:
    """All tensors one after the other along an axis, on the device of each.

    Raises `ShapeError` for shapes that differ in another axis, `DTypeError` for other dtypes.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import all_gather
    >>> x = [Tensor([1, 2], device="CPU"), Tensor([3], device="CPU:1")]
    >>> [(whole.device, whole.tolist()) for whole in all_gather(x)]
    [('CPU', [1, 2, 3]), ('CPU:1', [1, 2, 3])]
    """
    given = _checked(tensors, "all_gather", dim)
    return [_joined(given, one.device, dim) for one in given]


def reduce(tensors: Sequence[Tensor], op: str = "sum", device: str | None = None) -> Tensor:
    """The sum of all tensors, in the order of the list, on one device: that of the first if None.

    `op` may be "mean", "prod", "max" or "min" instead of "sum". Raises `ShapeError` or `DTypeError`
    for tensors that differ in shape or dtype.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import reduce
    >>> x = [Tensor([1, 5], device="CPU"), Tensor([3, 4], device="CPU:1")]
    >>> reduce(x).tolist(), reduce(x, "max").tolist()
    ([4, 9], [3, 5])
    """
    given = _checked(tensors, "reduce")
    to = given[0].device if device is None else Device.known(device)
    return _combined(given, to, op, "reduce")


def all_reduce(tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
    """The sum of all tensors, in the order of the list, on the device of each.

    `op` may be "mean", "prod", "max" or "min" instead of "sum". The gradient is the same of the
    gradients. Raises `ShapeError` or `DTypeError` for tensors that differ in shape or dtype.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import all_reduce
    >>> x = [Tensor([1.0, 5.0], device="CPU"), Tensor([3.0, 4.0], device="CPU:1")]
    >>> [(mean.device, mean.tolist()) for mean in all_reduce(x, "mean")]
    [('CPU', [2.0, 4.5]), ('CPU:1', [2.0, 4.5])]
    """
    given = _checked(tensors, "all_reduce")
    if not _goes_by_parts(len(given)):
        return [_combined(given, one.device, op, "all_reduce") for one in given]
    flat = [one.reshape(-1) for one in given]
    wholes = all_gather(reduce_scatter(flat, op))
    return [whole.reshape(*one.shape) for whole, one in zip(wholes, given, strict=True)]


def _goes_by_parts(n: int) -> bool:
    """True if an all_reduce of `n` tensors moves fewer bytes by a reduce_scatter and an all_gather.

    In tensors that each device reads and writes; a copy does both.
    """
    others = n - 1
    at_once = 2 * others + (n + 1)  # copies of all others, and their sum
    part = 1 / n
    by_parts = (
        2 * others * part  # the parts for others, put by themselves
        + 2 * others * part  # copies of a part of all others
        + (n + 1) * part  # their sum
        + 2 * others * part  # copies of the others' sums
        + 2  # side by side
    )
    return by_parts < at_once


def reduce_scatter(tensors: Sequence[Tensor], op: str = "sum", dim: int = 0) -> list[Tensor]:
    """A part of the sum of all tensors on the device of each, in order along an axis.

    The sum is in the order of the list, and the sizes of parts differ by one at most. `op` may be
    "mean", "prod", "max" or "min" instead of "sum". Raises `ShapeError` or `DTypeError` for tensors
    that differ in shape or dtype.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import reduce_scatter
    >>> x = [Tensor([1, 5], device="CPU"), Tensor([3, 4], device="CPU:1")]
    >>> [(part.device, part.tolist()) for part in reduce_scatter(x)]
    [('CPU', [4]), ('CPU:1', [9])]
    """
    given = _checked(tensors, "reduce_scatter")
    parts = [_parts(one, len(given), dim, "reduce_scatter") for one in given]
    return [
        _combined([own[k] for own in parts], one.device, op, "reduce_scatter")
        for k, one in enumerate(given)
    ]


def all_to_all(tensors: Sequence[Tensor], split_dim: int = 0, concat_dim: int = 0) -> list[Tensor]:
    """Part `k` of each tensor on the device of the tensor `k`, one after the other.

    Parts are along the axis `split_dim`, whose sizes differ by one at most; they are joined along
    `concat_dim`. Raises `ShapeError` or `DTypeError` for tensors that differ in shape or dtype.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import all_to_all
    >>> x = [Tensor([1, 2], device="CPU"), Tensor([3, 4], device="CPU:1")]
    >>> [(mixed.device, mixed.tolist()) for mixed in all_to_all(x)]
    [('CPU', [1, 3]), ('CPU:1', [2, 4])]
    """
    given = _checked(tensors, "all_to_all")
    parts = [_parts(one, len(given), split_dim, "all_to_all") for one in given]
    return [
        _joined([own[k] for own in parts], one.device, concat_dim) for k, one in enumerate(given)
    ]


def permute(tensors: Sequence[Tensor], shift: int = 1) -> list[Tensor]:
    """Each tensor on the device of the one that is `shift` places later in the list, as in a ring.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import permute
    >>> x = [Tensor([1], device="CPU"), Tensor([2], device="CPU:1"), Tensor([3], device="CPU:2")]
    >>> [(one.device, one.item()) for one in permute(x)]
    [('CPU', 3), ('CPU:1', 1), ('CPU:2', 2)]
    """
    n = len(tensors)
    return [tensors[(k - shift) % n].to(one.device) for k, one in enumerate(tensors)]


def _known(devices: Sequence[str], what: str) -> list[str]:
    if isinstance(devices, str):
        raise TypeError(f"[{what}] expected a list of devices, not {devices!r}")
    return [Device.known(device) for device in devices]


def _checked(tensors: Sequence[Tensor], what: str, dim: int | None = None) -> list[Tensor]:
    """The tensors, which agree in dtype and shape; the sizes of an axis may differ if it is given.

    Raises `ShapeError` and `DTypeError`.
    """
    if isinstance(tensors, Tensor) or not tensors:
        raise TypeError(
            f"[{what}] expected a list of tensors, one for each device, not {tensors!r}"
        )
    first = tensors[0]
    for number, one in enumerate(tensors):
        if one.dtype is not first.dtype:
            raise DTypeError(
                f"[{what}] tensor 0 on {first.device} is {first.dtype}, tensor {number} on "
                f"{one.device} is {one.dtype}; cast one of them first"
            )
        if _fixed(one, dim) != _fixed(first, dim):
            raise ShapeError(
                f"[{what}] tensor 0 on {first.device} has shape {first.shape}, tensor {number} on "
                f"{one.device} has {one.shape}; they have to agree"
            )
    return list(tensors)


def _fixed(tensor: Tensor, dim: int | None) -> list[sint]:
    """The sizes of all axes but one."""
    sizes: list[sint] = list(tensor.shape)
    if dim is not None and -len(sizes) <= dim < len(sizes):
        del sizes[dim]
    return sizes


def _parts(tensor: Tensor, n: int, dim: int, what: str) -> tuple[Tensor, ...]:
    if tensor.ndim == 0:
        raise ShapeError(f"[{what}] a tensor without axes has no parts; reshape(1) gives it one")
    axis = dim + tensor.ndim if dim < 0 else dim
    if not 0 <= axis < tensor.ndim:
        raise ShapeError(f"[{what}] dim {dim} is out of range for shape {tensor.shape}")
    size = known_size(tensor.shape[axis], what)
    sizes = [size // n + (k < size % n) for k in range(n)]
    return tensor.split(sizes, dim=axis)


def _combined(tensors: Sequence[Tensor], device: str, op: str, what: str) -> Tensor:
    if op not in _COMBINE:
        raise ValueError(f"[{what}] expected one of {', '.join(_COMBINE)}, not {op!r}")
    total = folded(_COMBINE[op], [one.to(device) for one in tensors])
    return total / len(tensors) if op == "mean" else total


def _joined(tensors: Sequence[Tensor], device: str, dim: int) -> Tensor:
    return Tensor.cat([one.to(device) for one in tensors], dim=dim)
