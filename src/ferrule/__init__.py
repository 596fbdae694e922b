"""ferrule: a tensor compiler in Python.

The names below are all that most programs need. They are imported when they are first used, so that
`import ferrule` costs almost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ferrule import imports

if TYPE_CHECKING:
    from ferrule import (
        amp,
        array_api,
        data,
        distributed,
        distributions,
        fft,
        nn,
        onnx,
        signal,
        torch,
    )
    from ferrule.array_api import from_dlpack
    from ferrule.autograd import enable_grad, no_grad
    from ferrule.base.config import (
        Context,
        get_float32_matmul_precision,
        get_num_threads,
        set_float32_matmul_precision,
        set_num_threads,
    )
    from ferrule.base.helpers import GlobalCounters
    from ferrule.device import Device
    from ferrule.export.loading import load
    from ferrule.ir.dtype import dtypes
    from ferrule.ir.expr import Variable
    from ferrule.jit import TinyJit
    from ferrule.jit.tuning import tune
    from ferrule.tensor import Tensor
    from ferrule.tensor.autocast import autocast
    from ferrule.transforms import (
        checkpoint,
        cond,
        custom_vjp,
        grad,
        hessian,
        jacfwd,
        jacobian,
        jacrev,
        jvp,
        linearize,
        scan,
        value_and_grad,
        vjp,
        vmap,
        while_loop,
    )

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Device",
    "GlobalCounters",
    "Tensor",
    "TinyJit",
    "Variable",
    "amp",
    "array_api",
    "autocast",
    "checkpoint",
    "cond",
    "custom_vjp",
    "data",
    "distributed",
    "distributions",
    "dtypes",
    "enable_grad",
    "fft",
    "from_dlpack",
    "get_float32_matmul_precision",
    "get_num_threads",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "load",
    "nn",
    "no_grad",
    "onnx",
    "scan",
    "set_float32_matmul_precision",
    "set_num_threads",
    "signal",
    "torch",
    "tune",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]


# The module of each name; a module stands for itself.
_HOMES = {
    "Context": "base.config",
    "Device": "device",
    "GlobalCounters": "base.helpers",
    "Tensor": "tensor",
    "TinyJit": "jit",
    "Variable": "ir.expr",
    "autocast": "tensor.autocast",
    "dtypes": "ir.dtype",
    "enable_grad": "autograd",
    "from_dlpack": "array_api",
    "get_float32_matmul_precision": "base.config",
    "get_num_threads": "base.config",
    "no_grad": "autograd",
    "set_float32_matmul_precision": "base.config",
    "set_num_threads": "base.config",
    "load": "export.loading",
    "tune": "jit.tuning",
}
_MODULES = (
    "amp",
    "array_api",
    "data",
    "distributed",
    "distributions",
    "fft",
    "nn",
    "onnx",
    "signal",
    "torch",
)


# Names that newcomers look for, and their replacements here.
_INSTEAD = {
    "autograd": "ferrule.grad and x.gradient(y) give gradients, x.backward() adds them to .grad",
    "backends": "with Context(ALLOW_TF32=1): rounds products of float32 to tf32 on a GPU",
    "compile": "ferrule.TinyJit(function) captures a function",
    "engine": "from ferrule import TinyJit",
    "functional": "functions are in nn.functional: from ferrule.nn import functional as F",
    "cuda": "x.to('CUDA') is a tensor on a GPU",
    "func": "ferrule.grad, ferrule.vmap and ferrule.jacobian transform functions",
    "inference_mode": "with Tensor.no_grad(): records nothing",
    "linalg": "its functions are methods of tensors, such as x.inv(), x.svd() and x.norm()",
    "load": "nn.state.safe_load, npz_load and torch_load read files",
    "numpy": "functions are methods of tensors, such as x.sin(), Tensor.zeros(2) makes one",
    "manual_seed": "Tensor.manual_seed(0) seeds",
    "optim": "optimisers are in nn.optim: from ferrule.nn import optim",
    "Module": "modules are in nn: from ferrule.nn import Module",
    "Parameter": "parameters are in nn: from ferrule.nn import Parameter",
    "random": "Tensor.rand(2, 3), randn, randint, … draw numbers, Tensor.manual_seed(0) seeds",
    "save": "nn.state.safe_save(nn.state.get_state_dict(model), path) writes a file",
    "set_grad_enabled": "with Tensor.no_grad(): records nothing",
    "special": "its functions are methods of tensors, such as x.erfinv() and x.lgamma()",
    "utils": "data sets and loaders are in data: from ferrule.data import DataLoader",
}


def _hint(name: str) -> str:
    """The hint for a name that is not here."""
    from ferrule.ir.dtype import dtypes
    from ferrule.tensor import Tensor

    if name in _INSTEAD:
        return _INSTEAD[name]
    if not name.startswith("_") and hasattr(dtypes, name):
        return f"number types are in ferrule.dtypes: dtypes.{name}"
    if not name.startswith("_") and hasattr(Tensor, name):
        return f"functions are methods of tensors: Tensor.{name}"
    return f"its names are {', '.join(__all__)}, and those of its submodules"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        # Probes for dunder names, as by imports, must not load the tensors.
        hint = "dunder names are Python's" if name.startswith("__") else _hint(name)
        raise AttributeError(f"ferrule has no attribute {name!r}; {hint}")
    home = name if name in _MODULES else _HOMES.get(name, "transforms")
    module = import_module(f"ferrule.{home}")
    found = module if name in _MODULES else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


imports.install()
