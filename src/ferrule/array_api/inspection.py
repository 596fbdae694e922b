"""Inspection of the namespace: its capabilities, devices and data types."""

from __future__ import annotations

from typing import Any, final

from ferrule.array_api.data_types import STANDARD, Kind, isdtype
from ferrule.device import Device, DeviceUnavailableError
from ferrule.ir.dtype import DType, dtypes

_MAX_AXES = 64  # of a NumPy array, in which data comes back


@final
class Info:
    """The answers of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """Shapes that depend on data are there, and masks as indices."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _MAX_AXES,
        }

    def default_device(self) -> str:
        """The device of tensors for which none is named."""
        return Device.DEFAULT

    def devices(self) -> list[str]:
        """The devices that can be opened here."""
        return [name for name in Device.names() if _opens(name)]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The types of Python numbers and of positions, the same on all devices."""
        return {
            "real floating": dtypes.default_float,
            "integral": dtypes.default_int,
            "indexing": dtypes.default_int,
        }

    def dtypes(self, *, device: str | None = None, kind: Kind | None = None) -> dict[str, DType]:
        """The standard's types by name, those of a kind such as "integral" or of several."""
        return {dtype.name: dtype for dtype in STANDARD if kind is None or isdtype(dtype, kind)}


def _opens(name: str) -> bool:
    try:
        Device[name]
    except DeviceUnavailableError:
        return False
    return True


def __array_namespace_info__() -> Info:
    """The capabilities of the namespace: its devices, types and abilities."""
    return Info()
