"""Several devices of this process together: collectives, and tensors spread over a mesh.

A collective is a function of a list of tensors, one for each device.

The list stands for one value on several devices, as a rank's tensor does in a program of several
processes. Each function takes such a list, or makes one. They are made of copies and of operations
of tensors, so that they have gradients of any order, are scheduled and captured like all others,
and run at once where they do not wait for each other.

Sums are added up in the order of the list, so that repeated runs, and all devices, have equal bits.

>>> from ferrule import Tensor, distributed
>>> parts = [Tensor([1.0, 2.0], device="CPU"), Tensor([3.0, 4.0], device="CPU:1")]
>>> [(total.device, total.tolist()) for total in distributed.all_reduce(parts)]
[('CPU', [4.0, 6.0]), ('CPU:1', [4.0, 6.0])]

A `Mesh` has names for the axes of a grid of devices, and a placement `P` says which of them split a
tensor. `x.shard(mesh, placement)` moves it there; names and meanings are those of `jax.sharding`.

>>> from ferrule.distributed import Mesh, P
>>> mesh = Mesh({"data": 2, "model": 2}, ["CPU", "CPU:1", "CPU:2", "CPU:3"])
>>> x = Tensor([[1, 2], [3, 4]]).shard(mesh, P("data", "model"))
>>> [part.item() for part in x.parts], x.placement
([1, 2, 3, 4], P('data', 'model'))
>>> [part.tolist() for part in x.reshard(P(None, "data")).parts]
[[[1], [3]], [[1], [3]], [[2], [4]], [[2], [4]]]
>>> x.gather().tolist()
[[1, 2], [3, 4]]
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
from ferrule.tensor.sharding.mesh import Mesh, P
from ferrule.tensor.sharding.sharded import ShardedTensor

__all__ = [
    "Mesh",
    "P",
    "ShardedTensor",
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
