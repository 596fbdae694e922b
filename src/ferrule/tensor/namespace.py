"""Methods of the array API standard's arrays beside operators and DLPack."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ferrule.tensor.base import Tensor

_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
# The namespace is made of tensors, and so above them; it is loaded when it is asked for.
_NAMESPACE = "ferrule.array_api"


def array_namespace(self: Tensor, *, api_version: str | None = None) -> ModuleType:
    """`ferrule.array_api`, the functions of the Python array API standard.

    Raises `ValueError` for a version that it does not follow.
    """
    if api_version is not None and api_version not in _VERSIONS:
        raise ValueError(
            f"[__array_namespace__] version {api_version!r} of the array API is none of "
            f"{', '.join(_VERSIONS)}"
        )
    return import_module(_NAMESPACE)
