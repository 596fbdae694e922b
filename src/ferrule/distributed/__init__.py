"""Collectives: operations on a list of tensors, one for each of several devices of this process.

A list stands for one value on several devices, as a rank's tensor does in a program of several
processes. Each function takes such a list, or makes one. They are made of copies and of operations
of tensors, so that they have gradients of any order, are scheduled and captured like all others,
and run at once where they do not wait for each other.

Sums are added up in the order of the list, so that repeated runs, and all devices, have equal bits.

>>> from ferrule import Tensor, distributed
>>> parts = [Tensor([1.0, 2.0], device="CPU"), Tensor([3.0, 4.0], device="CPU:1")]
>>> [(total.device, total.tolist()) for total in distributed.all_reduce(parts)]
[('CPU', [4.0, 6.0]), ('CPU:1', [4.0, 6.0])]
"""

from ferrule.distributed.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    permute,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "permute",
    "reduce",
    "reduce_scatter",
    "scatter",
]
