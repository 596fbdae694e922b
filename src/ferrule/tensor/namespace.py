"""What the array API standard asks of its arrays beside operators and DLPack."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, Self

from ferrule.tensor.copying import Copying
from ferrule.tensor.data import to_device

_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
# The namespace is made of tensors, and so above them; it is loaded when it is asked for.
_NAMESPACE = "ferrule.array_api"


class Namespace(Copying):
    """The namespace of functions on tensors, and moves between devices."""

    __slots__ = ()

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """`ferrule.array_api`, the functions of the Python array API standard.

        Raises `ValueError` for a version that it does not follow.
        """
        if api_version is not None and api_version not in _VERSIONS:
            raise ValueError(
                f"[__array_namespace__] version {api_version!r} of the array API is none of "
                f"{', '.join(_VERSIONS)}"
            )
        return import_module(_NAMESPACE)

    def to_device(self, device: str, /, *, stream: Any | None = None) -> Self:
        """The tensor on another device; the same tensor if it is there.

        Raises `ValueError` for a stream: ferrule's devices have none.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2], device="NUMPY").to_device("CPU").device
        'CPU'
        """
        if stream is not None:
            raise ValueError(f"[to_device] devices have no streams; pass none, not {stream!r}")
        target = to_device(device)
        return self if target == self.device else self._wrap(self._read().copy_to(target))
