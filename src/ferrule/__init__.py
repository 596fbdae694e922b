"""ferrule: a tensor compiler in Python.

The names below are all that most programs need. They are imported when they are first used, so that
`import ferrule` costs almost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule import array_api, fft, nn, signal
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
    "signal",
    "tune",
    "value_and_grad",
    "vjp",
    "vmap",
]


# Where each name lives; a module stands for itself.
_HOMES = {
    "Context": "config",
    "Device": "device",
    "GlobalCounters": "helpers",
    "Tensor": "tensor",
    "TinyJit": "jit",
    "Variable": "expr",
    "dtypes": "dtype",
    "enable_grad": "gradient",
    "from_dlpack": "array_api",
    "get_num_threads": "config",
    "no_grad": "gradient",
    "set_num_threads": "config",
    "tune": "tuning",
}
_MODULES = ("array_api", "fft", "nn", "signal")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"ferrule has no attribute {name!r}; its names are {', '.join(__all__)}, "
            "and those of its submodules"
        )
    home = name if name in _MODULES else _HOMES.get(name, "transforms")
    module = import_module(f"ferrule.{home}")
    found = module if name in _MODULES else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
