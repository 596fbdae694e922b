"""Hints for attributes that newcomers look for on a tensor: the replacements here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, final

from ferrule.tensor.base import Tensor

_SAME_SHAPE: Final = "a tensor keeps its shape; write x = x.{}(...), which shares its memory"
_REAL: Final = "tensors are real: leave it out"
_DENSE: Final = "tensors are dense"
_DEVICE: Final = "x.device is the device's name, such as 'CPU' or 'CUDA'"
_INSTEAD: Final = {
    "apply_": "compute with whole tensors, or with x.numpy()",
    "as_strided": "x[::2], x.expand and x.diagonal are such views, and x.unfold copies windows",
    "conj": _REAL,
    "cuda": "x.to('CUDA') is the tensor on a GPU",
    "data_ptr": "x.numpy(copy=False).ctypes.data is where a tensor on the host is",
    "detach_": "write x = x.detach(), or x.requires_grad_(False) for a parameter",
    "grad_fn": "x.requires_grad says whether x depends on a tensor that requires a gradient",
    "fractional_max_pool2d": "x.max_pool2d and x.adaptive_max_pool2d have regions that are fixed",
    "fractional_max_pool3d": "x.max_pool3d and x.adaptive_max_pool3d have regions that are fixed",
    "get_device": _DEVICE,
    "imag": "tensors are real",
    "is_complex": "tensors are real",
    "kernelize": "x.realize() computes, and DEBUG=2 shows the kernels",
    "is_cpu": _DEVICE,
    "is_cuda": _DEVICE,
    "is_quantized": _DENSE,
    "is_signed": "dtypes.is_unsigned(x.dtype) is the opposite",
    "is_sparse": _DENSE,
    "layout": _DENSE,
    "map_": "compute with whole tensors, or with x.numpy()",
    "mps": "devices are CPU, CUDA and CL: x.to('CL')",
    "multi_head_attention_forward": "nn.MultiheadAttention has the weights, and "
    "q.scaled_dot_product_attention(k, v) is the function",
    "pad2d": "x.pad((left, right, top, bottom)) does that",
    "pin_memory": "there is nothing to pin: leave it out",
    "real": _REAL,
    "register_post_accumulate_grad_hook": "call it on the tensor after backward()",
    "resize_": _SAME_SHAPE.format("reshape"),
    "schedule": "ferrule.schedule.create_schedule([x.lazydata]) has the kernels of x",
    "set_": "x.replace(other) makes x a handle on the memory of other",
    "share_memory_": "threads share tensors as they are; processes do by files: nn.state.safe_load",
    "stft": "ferrule.signal.stft(x, n_fft) has it, with pairs for complex numbers",
    "istft": "ferrule.signal.istft(x, n_fft) has it, with pairs for complex numbers",
    "slice": "x[1:3], or x.shrink(((1, 3), None)) and x.pad(...)",
    "squeeze_": _SAME_SHAPE.format("squeeze"),
    "storage": "x.numpy(copy=False) is the memory, for reading",
    "strides": "x.stride() has the steps in elements, as PyTorch's",
    "swapaxes_": _SAME_SHAPE.format("swapaxes"),
    "swapdims_": _SAME_SHAPE.format("swapdims"),
    "t_": _SAME_SHAPE.format("t"),
    "to_": "write x = x.to(device)",
    "to_dense": "tensors are dense: leave it out",
    "to_sparse": _DENSE,
    "transpose_": _SAME_SHAPE.format("transpose"),
    "type": "x.dtype is the number type, and x.to(dtype) converts",
    "unsqueeze_": _SAME_SHAPE.format("unsqueeze"),
    "uop": "x.lazydata is the node of the graph",
    "untyped_storage": "x.numpy(copy=False) is the memory, for reading",
    "values": "x.max(axis) and x.min(axis) are tensors; x.argmax(axis) says where",
}
_DATA: Final = (
    "[data] x.data() is the memory of the tensor, and no tensor: where PyTorch has x.data, write "
    "x.detach(), which shares the memory and is not recorded, and x.assign(y) for x.data = y"
)


def _in_place_hint(owner: type, name: str) -> str:
    """The hint for an in-place function that exists only out of place; empty if it does not."""
    function = name.removesuffix("_")
    exists = function != name and not name.startswith("_") and hasattr(owner, function)
    return f"x.assign(x.{function}(...)) does that in place" if exists else ""


@final
class Memory:
    """The method `data` of a tensor, which says what to write where PyTorch has an attribute."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], memoryview]) -> None:
        self._read = read

    def __call__(self) -> memoryview:
        """The elements as a read-only memoryview."""
        return self._read()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(_DATA)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(_DATA)

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _refuse
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _refuse
    __matmul__ = __rmatmul__ = __getitem__ = __setitem__ = __len__ = __iter__ = _refuse


@final
class DataMethod:
    """Gives instances a `Memory`; on the class it is the method."""

    def __init__(self, function: Callable[[Any], memoryview]) -> None:
        self.__func__ = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.__func__ if instance is None else Memory(self.__func__.__get__(instance))

    def __set__(self, instance: Any, value: object) -> NoReturn:
        raise AttributeError(_DATA)


def explain_missing(self: Tensor, name: str) -> Any:
    """`__getattr__`: the error for a name that tensors do not have, with what does it here."""
    try:
        return object.__getattribute__(self, name)
    except AttributeError as error:
        hint = _INSTEAD.get(name) or _in_place_hint(type(self), name)
        if hint:
            error.args = (f"{error}; {hint}",)
        raise
