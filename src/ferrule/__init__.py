"""ferrule: a tensor compiler in Python.

The names below are all that most programs need. They are imported when they are first used, so that
`import ferrule` costs almost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule import array_api, fft, nn
    from ferrule.array_api import from_dlpack
    from ferrule.config import Context, get_num_threads, set_num_threads
    from ferrule.device import Device
    from ferrule.dtype import dtypes
    from ferrule.expr import Variable
    from ferrule.gradient import enable_grad, no_grad
    from ferrule.helpers import GlobalCounters
    from ferrule.jit import TinyJit
    from ferrule.tensor import Tensor
    from ferrule.transforms import (
        checkpoint,
        custom_vjp,
        grad,
        hessian,
        jacfwd,
        jacobian,
        jacrev,
        jvp,
        linearize,
        value_and_grad,
        vjp,
        vmap,
    )
    from ferrule.tuning import tune

__all__ = [
    "Context",
    "Device",
    "GlobalCounters",
    "Tensor",
    "TinyJit",
    "Variable",
    "array_api",
    "checkpoint",
    "custom_vjp",
    "dtypes",
    "enable_grad",
    "fft",
    "from_dlpack",
    "get_num_threads",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "nn",
    "no_grad",
    "set_num_threads",
    "tune",
    "value_and_grad",
    "vjp",
    "vmap",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"ferrule has no attribute {name!r}; its names are {', '.join(__all__)}, "
            "and those of its submodules"
        )
    found = _load(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load(name: str) -> Any:
    """The object behind a name of the façade."""
    match name:
        case "Context":
            from ferrule.config import Context

            return Context
        case "Device":
            from ferrule.device import Device

            return Device
        case "GlobalCounters":
            from ferrule.helpers import GlobalCounters

            return GlobalCounters
        case "array_api":
            import ferrule.array_api as array_api

            return array_api
        case "from_dlpack":
            from ferrule.array_api import from_dlpack

            return from_dlpack
        case "Tensor":
            from ferrule.tensor import Tensor

            return Tensor
        case "TinyJit":
            from ferrule.jit import TinyJit

            return TinyJit
        case "Variable":
            from ferrule.expr import Variable

            return Variable
        case "dtypes":
            from ferrule.dtype import dtypes

            return dtypes
        case "fft":
            import ferrule.fft as fft

            return fft
        case "get_num_threads":
            from ferrule.config import get_num_threads

            return get_num_threads
        case "enable_grad" | "no_grad":
            import ferrule.gradient as gradient

            return getattr(gradient, name)
        case "set_num_threads":
            from ferrule.config import set_num_threads

            return set_num_threads
        case "tune":
            from ferrule.tuning import tune

            return tune
        case "nn":
            import ferrule.nn as nn

            return nn
        case _:
            import ferrule.transforms as transforms

            return getattr(transforms, name)
