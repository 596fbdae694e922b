"""Tensors that are spread over a mesh of devices: moved there, back, and to other placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from operator import add
from typing import final

from ferrule.base.records import dataclass
from ferrule.device import Device
from ferrule.ir.dtype import DType, DTypeError
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.keywords import method
from ferrule.tensor.shaping.joining import cat
from ferrule.tensor.sharding.mesh import Mesh, P

Region = tuple[tuple[int, int], ...]
"""The first place of a part along each dimension, and that behind its last."""


@method
def shard(self: Tensor, mesh: Mesh, placement: P) -> ShardedTensor:
    """The tensor spread over the devices of a mesh: split along dimensions, and else copied.

    Raises `ShapeError` if an axis does not divide the size of the dimension that it splits,
    `ValueError` for axes that the mesh does not have and for partial sums: a tensor is none, and
    `TypeError` for what is no mesh or no placement.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import Mesh, P
    >>> mesh = Mesh({"data": 2}, ["CPU", "CPU:1"])
    >>> x = Tensor([[1, 2], [3, 4]], device="CPU").shard(mesh, P("data", None))
    >>> [(part.device, part.tolist()) for part in x.parts]
    [('CPU', [[1, 2]]), ('CPU:1', [[3, 4]])]
    >>> x.gather().tolist()
    [[1, 2], [3, 4]]
    """
    if not (isinstance(mesh, Mesh) and isinstance(placement, P)):
        raise TypeError(
            f"[shard] takes a Mesh and a P, not {type(mesh).__name__} and "
            f"{type(placement).__name__}: x.shard(mesh, P('data', None))"
        )
    if placement.unreduced:
        raise ValueError(
            f"[shard] {placement}: a tensor is no partial sum; ShardedTensor(mesh, placement, "
            "parts) is made of some"
        )
    shape = tuple([known_size(size, "shard") for size in self.shape])
    _check_placement(mesh, placement, len(shape))
    parts = [
        _cut(self, _region(mesh, placement, shape, mesh.coordinates(number))).to(device)
        for number, device in enumerate(mesh.devices)
    ]
    return ShardedTensor(mesh, placement, parts)


def _check_placement(mesh: Mesh, placement: P, ndim: int) -> None:
    for name in placement.axes():
        if name not in mesh.shape:
            raise ValueError(
                f"[shard] {placement} names {name!r}; the axes of the mesh are "
                f"{', '.join(mesh.axis_names)}"
            )
    if len(placement.dims) > ndim:
        raise ShapeError(
            f"[shard] {placement} is for {len(placement.dims)} dimensions, the tensor has {ndim}"
        )


def _count(mesh: Mesh, axes: Sequence[str]) -> int:
    return prod([mesh.shape[name] for name in axes])


def _region(
    mesh: Mesh, placement: P, shape: Sequence[int], coordinates: Mapping[str, int]
) -> Region:
    """The part of a tensor that a device has."""
    bounds = []
    for dim, size in enumerate(shape):
        axes = placement.axes_of(dim)
        count = _count(mesh, axes)
        if size % count:
            raise ShapeError(
                f"[shard] {placement} splits dimension {dim} of shape {tuple(shape)} into {count} "
                "parts, which does not divide its size; pad it first"
            )
        place = 0
        for name in axes:
            place = place * mesh.shape[name] + coordinates[name]
        bounds.append((size // count * place, size // count * (place + 1)))
    return tuple(bounds)


def _cut(tensor: Tensor, region: Region) -> Tensor:
    """The region of a tensor; the tensor itself if that is all."""
    if all(bounds == (0, size) for bounds, size in zip(region, tensor.shape, strict=True)):
        return tensor
    return tensor.shrink(region)


@final
@dataclass(frozen=True, eq=False)
class ShardedTensor:
    """A tensor whose parts are on the devices of a mesh, one on each, as a placement says.

    It has data and no operations: `parts` are computed with, and `ShardedTensor(mesh, placement,
    parts)` is made of results. All movement is asked for, by `gather` and `reshard`.

    Raises `ShapeError`, `DTypeError` or `ValueError` for parts that are not one on each device, or
    are of different shapes or dtypes.

    >>> from ferrule import Tensor
    >>> from ferrule.distributed import Mesh, P, ShardedTensor
    >>> mesh = Mesh({"model": 2}, ["CPU", "CPU:1"])
    >>> parts = [Tensor([1, 2], device="CPU"), Tensor([10, 20], device="CPU:1")]
    >>> x = ShardedTensor(mesh, P(unreduced={"model"}), parts)
    >>> x.shape, x.gather().tolist()
    ((2,), [11, 22])
    >>> [part.tolist() for part in x.reshard(P("model")).parts]
    [[11], [22]]
    """

    mesh: Mesh
    placement: P
    parts: Sequence[Tensor]
    """The parts, in the order of the mesh's devices."""

    def __post_init__(self) -> None:
        there = [part.device for part in self.parts]
        if there != list(self.mesh.devices):
            raise ValueError(
                f"[ShardedTensor] the mesh has devices {', '.join(self.mesh.devices)}, the parts "
                f"are on {', '.join(there)}"
            )
        first = self.parts[0]
        _check_placement(self.mesh, self.placement, first.ndim)
        for part in self.parts:
            if part.shape != first.shape:
                raise ShapeError(
                    f"[ShardedTensor] the part on {first.device} has shape {first.shape}, that on "
                    f"{part.device} has {part.shape}"
                )
            if part.dtype is not first.dtype:
                raise DTypeError(
                    f"[ShardedTensor] the part on {first.device} is {first.dtype}, that on "
                    f"{part.device} is {part.dtype}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        own = [known_size(size, "shape") for size in self.parts[0].shape]
        axes = [self.placement.axes_of(dim) for dim in range(len(own))]
        return tuple(size * _count(self.mesh, a) for size, a in zip(own, axes, strict=True))

    @property
    def dtype(self) -> DType:
        """The dtype of the parts."""
        return self.parts[0].dtype

    def __repr__(self) -> str:
        return f"<ShardedTensor {self.shape} {self.dtype} {self.placement} on {self.mesh}>"

    def gather(self, device: str | None = None) -> Tensor:
        """The whole tensor on a device, the mesh's first one if None; partial sums are added up.

        Sums are in the order of the mesh. Raises `DeviceUnavailableError` for a device that cannot
        be opened.
        """
        to = self.mesh.devices[0] if device is None else Device.known(device)
        near = self.mesh.devices.index(to) if to in self.mesh.devices else 0
        whole = tuple([(0, size) for size in self.shape])
        return self._fetched(whole, to, self.mesh.coordinates(near), P())

    def reshard(self, placement: P) -> ShardedTensor:
        """The tensor with another placement on the same mesh.

        Each device gets what it lacks: from the device that has it, or a copy of it nearest, and no
        more. Partial sums are added up in the order of the mesh, over the axes that `placement`
        does not leave `unreduced`.

        Raises `ShapeError` if an axis does not divide the size of the dimension that it splits,
        `ValueError` for other axes than those of the mesh, or partial sums over an axis over which
        there are none.
        """
        mesh, shape = self.mesh, self.shape
        _check_placement(mesh, placement, len(shape))
        made = placement.unreduced - self.placement.unreduced
        if made:
            raise ValueError(
                f"[reshard] {self.placement} to {placement}: there are no partial sums over "
                f"{', '.join(sorted(made))}"
            )
        parts = []
        for number, device in enumerate(mesh.devices):
            there = mesh.coordinates(number)
            region = _region(mesh, placement, shape, there)
            parts.append(self._fetched(region, device, there, placement))
        return ShardedTensor(mesh, placement, parts)

    def _fetched(
        self, region: Region, device: str, there: Mapping[str, int], placement: P
    ) -> Tensor:
        """A region of the whole tensor on a device, which is at the place `there`, or near it."""
        sizes = [known_size(size, "reshard") for size in self.parts[0].shape]

        def along(dim: int, cells: tuple[int, ...]) -> Tensor:
            if dim == len(region):
                return self._cell(cells, region, device, there, placement)
            start, stop = region[dim]
            size = max(sizes[dim], 1)
            covered = range(start // size, max(-(-stop // size), start // size + 1))
            pieces = [along(dim + 1, (*cells, cell)) for cell in covered]
            return pieces[0] if len(pieces) == 1 else cat(pieces, dim=dim)

        return along(0, ())

    def _cell(
        self,
        cells: tuple[int, ...],
        region: Region,
        device: str,
        there: Mapping[str, int],
        placement: P,
    ) -> Tensor:
        """The piece of a region in one part, given by the part's number along each dimension."""
        wanted = []
        for cell, size, (start, stop) in zip(cells, self.parts[0].shape, region, strict=True):
            first = cell * known_size(size, "reshard")
            last = first + known_size(size, "reshard")
            wanted.append((max(start, first) - first, min(stop, last) - first))
        terms = [
            _cut(self.parts[number], tuple(wanted)).to(device)
            for number in self._holders(cells, there, placement)
        ]
        return reduce(add, terms)

    def _holders(
        self, cells: tuple[int, ...], there: Mapping[str, int], placement: P
    ) -> Iterator[int]:
        """The numbers of the devices whose parts, added up, are a cell."""
        mesh = self.mesh
        coordinates = dict(there)  # of the copy that is nearest, where there are several
        for dim, cell in enumerate(cells):
            rest = cell
            for name in reversed(self.placement.axes_of(dim)):
                rest, coordinates[name] = divmod(rest, mesh.shape[name])
        summed = [
            name
            for name in mesh.axis_names
            if name in self.placement.unreduced - placement.unreduced
        ]
        for places in product(*[range(mesh.shape[name]) for name in summed]):
            yield mesh.number({**coordinates, **dict(zip(summed, places, strict=True))})
