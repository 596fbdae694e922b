"""Meshes of devices, and placements of tensors on them.

Names and meanings are those of `jax.sharding`, but that a mesh is made of its axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, final

from ferrule.base.records import dataclass
from ferrule.device import Device


@final
class Mesh:
    """Devices in a grid whose axes have names; `devices` are in order, the last axis fastest.

    Without `devices` they are the first ones of the default device's kind. Two meshes with equal
    axes and devices are equal.

    Raises `ValueError` for a size below 1, or a number of devices that is not that of the grid, or
    if one is there twice; `DeviceUnavailableError` for a device that cannot be opened.

    >>> from ferrule.distributed import Mesh
    >>> mesh = Mesh({"data": 2, "model": 2}, ["CPU", "CPU:1", "CPU:2", "CPU:3"])
    >>> mesh.shape["data"], mesh.size, mesh.coordinates(2)
    (2, 4, {'data': 1, 'model': 0})
    """

    def __init__(self, axes: Mapping[str, int], devices: Sequence[str] | None = None) -> None:
        for name, size in axes.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"[Mesh] the axis {name!r} has size {size!r}; the least is 1")
        self._axes = dict(axes)
        size = prod(self._axes.values())
        if devices is None:
            kind = Device.DEFAULT.partition(":")[0]
            devices = [f"{kind}:{index}" for index in range(size)]
        self.devices: tuple[str, ...] = tuple(Device.known(device) for device in devices)
        if len(self.devices) != size or len(set(self.devices)) != size:
            raise ValueError(
                f"[Mesh] axes {self._axes} need {size} different devices, not "
                f"{', '.join(self.devices)}"
            )

    @property
    def shape(self) -> Mapping[str, int]:
        """The size of each axis, by its name."""
        return MappingProxyType(self._axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self._axes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        return list(product(*[range(size) for size in self._axes.values()]))

    def coordinates(self, number: int) -> dict[str, int]:
        """The place of a device on each axis, by its number among `devices`."""
        return dict(zip(self._axes, self._coordinates[number], strict=True))

    def number(self, coordinates: Mapping[str, int]) -> int:
        """The number of the device at a place, which has all axes."""
        number = 0
        for name, size in self._axes.items():
            number = number * size + coordinates[name]
        return number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (list(self._axes.items()), self.devices) == (
            list(other._axes.items()),
            other.devices,
        )

    def __hash__(self) -> int:
        return hash((tuple(self._axes.items()), self.devices))

    def __repr__(self) -> str:
        return f"Mesh({self._axes}, {list(self.devices)})"


@final
@dataclass(frozen=True)
class _Spec:
    """The contents of a `P`: the mesh axes of each dimension, and those of partial sums."""

    dims: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]


@final
class P:
    """A placement: for each dimension of a tensor the axis of a mesh that splits it, or None.

    A tuple of axes splits a dimension by all of them, the first one outermost. Dimensions that are
    left out at the end are not split. Over the axes that are not named the tensor is copied, but
    over those in `unreduced` its parts are partial sums. It is JAX's `PartitionSpec`.

    Raises `ValueError` for an axis that is named twice.

    >>> from ferrule.distributed import P
    >>> P("data", None), P(("data", "model")), P("data", unreduced={"model"})
    (P('data', None), P(('data', 'model')), P('data', unreduced={'model'}))
    """

    __slots__ = ("_spec",)

    def __init__(
        self, *dims: str | Sequence[str] | None, unreduced: Sequence[str] | frozenset[str] = ()
    ) -> None:
        entries = tuple(
            () if dim is None else (dim,) if isinstance(dim, str) else tuple(dim) for dim in dims
        )
        partial = frozenset([unreduced] if isinstance(unreduced, str) else unreduced)
        named = [name for entry in entries for name in entry] + sorted(partial)
        twice = [name for name in dict.fromkeys(named) if named.count(name) > 1]
        if twice:
            raise ValueError(f"[P] the axis {twice[0]!r} is named twice: an axis does one thing")
        self._spec = _Spec(entries, partial)

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]:
        """The axes that split each dimension, outermost first."""
        return self._spec.dims

    @property
    def unreduced(self) -> frozenset[str]:
        """The axes over which parts are partial sums."""
        return self._spec.unreduced

    def axes_of(self, dim: int) -> tuple[str, ...]:
        """The axes that split a dimension, also one that is left out."""
        return self.dims[dim] if dim < len(self.dims) else ()

    def axes(self) -> Iterator[str]:
        """All axes that are named."""
        for entry in self.dims:
            yield from entry
        yield from sorted(self.unreduced)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, P) and self._spec == other._spec

    def __hash__(self) -> int:
        return hash(self._spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return _placement, (self.dims, self.unreduced)

    def __repr__(self) -> str:
        shown = [
            repr(None) if not entry else repr(entry[0] if len(entry) == 1 else entry)
            for entry in self.dims
        ]
        if self.unreduced:
            shown.append("unreduced={" + ", ".join(map(repr, sorted(self.unreduced))) + "}")
        return f"P({', '.join(shown)})"


def _placement(dims: Sequence[Sequence[str]], unreduced: frozenset[str]) -> P:
    return P(*dims, unreduced=unreduced)
