"""The names of `torch` itself, so that programs of PyTorch keep them: `from ferrule import torch`.

Functions are those of `Tensor`. Here is what is no method of tensors: types of numbers, devices,
modes of recording, files.
"""

from __future__ import annotations

from math import e, inf, nan, pi
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from ferrule import amp, distributions, fft, nn
from ferrule.array_api import finfo, iinfo
from ferrule.autograd import is_recording, no_grad
from ferrule.base.containers import leaves
from ferrule.base.helpers import no_attribute
from ferrule.data import Generator
from ferrule.device import Device, DeviceUnavailableError
from ferrule.ir.dtype import DType, dtypes
from ferrule.nn.state import torch_load, torch_save
from ferrule.tensor import Tensor
from ferrule.torch import autograd, utils

_DTYPES: Final = {
    **{name: name for name in ("float32", "float64", "float16", "bfloat16", "bool")},
    **{f"int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"float": "float32", "double": "float64", "half": "float16"},
    **{"short": "int16", "int": "int32", "long": "int64"},
}
"""The types of numbers by PyTorch's names, which are before methods: `torch.float` is a type."""

_INSTEAD: Final = {
    "compile": "ferrule.TinyJit captures a function",
    "jit": "ferrule.TinyJit captures a function",
    "func": "ferrule.grad, ferrule.vmap and ferrule.jacobian transform functions",
    "linalg": "its functions are methods of tensors, such as x.inv(), x.svd() and x.norm()",
    "special": "its functions are methods of tensors, such as x.erfinv() and x.lgamma()",
}


@final
class device(str):
    """A device's name, with PyTorch's attributes: `torch.device("cuda", 1)`.

    The device is opened where a tensor is made on it, which raises for one that there is not.

    >>> from ferrule import torch
    >>> cpu = torch.device("cpu")
    >>> cpu.type, torch.zeros(2, device=cpu).device == cpu
    ('cpu', True)
    """

    __slots__ = ()

    def __new__(cls, name: str, index: int | None = None) -> device:
        """The name, of a kind of devices and maybe a number."""
        given = name if index is None else f"{name}:{index}"
        return super().__new__(cls, Device.canonicalize(given))

    @property
    def type(self) -> str:
        """The kind of device in lower case, as `autocast` takes it."""
        return self.partition(":")[0].lower()

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The number of the device, None for the first."""
        number = self.partition(":")[2]
        return int(number) if number else None


@final
class cuda:
    """What programs ask of `torch.cuda` before they choose a device."""

    @staticmethod
    def is_available() -> bool:
        """True if there is a GPU that CUDA can use.

        >>> from ferrule import torch
        >>> torch.device("cuda" if torch.cuda.is_available() else "cpu").type in ("cuda", "cpu")
        True
        """
        try:
            Device.known("CUDA")
        except DeviceUnavailableError:
            return False
        return True


def as_tensor(data: Any, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Data as a tensor; a tensor that has that type and device already is returned as it is.

    >>> from ferrule import torch
    >>> torch.as_tensor([1, 2], dtype=torch.float32).tolist()
    [1.0, 2.0]
    """
    tensor = data if isinstance(data, Tensor) else Tensor(data, dtype=dtype, device=device)
    moved = tensor if device is None else tensor.to(device)
    return moved if dtype is None else moved.cast(dtype)


def is_tensor(obj: object) -> bool:
    """True for a tensor.

    >>> from ferrule import torch
    >>> torch.is_tensor(torch.ones(2)), torch.is_tensor([1.0])
    (True, False)
    """
    return isinstance(obj, Tensor)


def is_grad_enabled() -> bool:
    """True where operations are recorded, so that gradients can be computed.

    >>> from ferrule import torch
    >>> with torch.no_grad():
    ...     torch.is_grad_enabled()
    False
    """
    return is_recording()


def inference_mode(mode: Any = True) -> Any:
    """A block, or a decorator, in which nothing is recorded: `no_grad`; with False it is not.

    >>> from ferrule import torch
    >>> with torch.inference_mode():
    ...     torch.is_grad_enabled()
    False
    """
    if callable(mode):
        return no_grad()(mode)
    return no_grad(bool(mode) or not is_recording())


def set_grad_enabled(mode: bool) -> no_grad:
    """A block, or a decorator, in which operations are recorded or not.

    >>> from ferrule import torch
    >>> with torch.set_grad_enabled(False):
    ...     torch.is_grad_enabled()
    False
    """
    return no_grad(not mode)


def save(obj: Any, f: Any) -> None:
    """Write a checkpoint to a path, or to a file object; see `nn.state.torch_save`.

    >>> from ferrule import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3}, f"{folder}/run.pt")
    ...     torch.load(f"{folder}/run.pt")
    {'epoch': 3}
    """
    if not hasattr(f, "write"):
        return torch_save(obj, f)
    with TemporaryDirectory() as folder:
        path = Path(folder, "archive.pt")
        torch_save(obj, path)
        f.write(path.read_bytes())


def load(
    f: Any,
    map_location: str | None = None,
    *,
    weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """Read a checkpoint from a path, or a file object, to a device; see `nn.state.torch_load`.

    Nothing in a file is ever executed, whatever `weights_only` says, and files are always mapped.

    >>> from ferrule import torch
    >>> from io import BytesIO
    >>> file = BytesIO()
    >>> torch.save([1, 2], file)
    >>> torch.load(BytesIO(file.getvalue()))
    [1, 2]
    """
    if not hasattr(f, "read"):
        return torch_load(f, map_location)
    with TemporaryDirectory() as folder:
        path = Path(folder, "archive.pt")
        path.write_bytes(f.read())
        found = torch_load(path, map_location)
        if tensors := [leaf for leaf in leaves(found) if isinstance(leaf, Tensor)]:
            Tensor.realize(*tensors)
    return found


_OWN: Final[dict[str, Any]] = {
    **{"Tensor": Tensor, "tensor": Tensor, "device": device, "dtype": DType, "cuda": cuda},
    **{"Size": tuple, "finfo": finfo, "iinfo": iinfo, "e": e, "inf": inf, "nan": nan, "pi": pi},
    **{"as_tensor": as_tensor, "is_tensor": is_tensor, "is_grad_enabled": is_grad_enabled},
    **{"inference_mode": inference_mode, "set_grad_enabled": set_grad_enabled},
    **{"save": save, "load": load, "amp": amp, "autocast": amp.autocast, "autograd": autograd},
    **{"distributions": distributions, "fft": fft, "nn": nn, "optim": nn.optim},
    **{"Generator": Generator, "utils": utils},
}


def find(name: str) -> Any:
    """What a name means in `torch`; raises `AttributeError`, with what to write instead."""
    if name in _OWN:
        return _OWN[name]
    if name in _DTYPES:
        return getattr(dtypes, _DTYPES[name])
    if not name.startswith("_") and callable(getattr(Tensor, name, None)):
        return getattr(Tensor, name)
    raise no_attribute(f"{__package__}", name, names(), _INSTEAD)


def names() -> list[str]:
    """All names that `find` knows."""
    methods = (name for name in dir(Tensor) if name[0] != "_" and callable(getattr(Tensor, name)))
    return sorted({*_OWN, *_DTYPES, *methods})
