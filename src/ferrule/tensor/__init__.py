"""`Tensor`: arrays that are computed lazily, on any device, with gradients.

The class is put together by theme, each on top of the one before: memory and autograd (`base`),
operators (`elementwise`), functions of one tensor (`functions`), `movement`, `reduce`, `creation`,
`indexing`, `linalg`, `neural`, `loss`.
"""

from __future__ import annotations

from typing import final

from ferrule.dtype import DType
from ferrule.gradient import is_training, train
from ferrule.helpers import not_a_function
from ferrule.tensor.base import TensorBase
from ferrule.tensor.data import DTypeLike, to_device
from ferrule.tensor.hints import Hints
from ferrule.tensor.keywords import accept_arguments
from ferrule.threadstate import this_thread

__all__ = ["Tensor"]

not_a_function(__name__, "ferrule.Tensor(data) makes a tensor")


class _Short(TensorBase):
    """The first base of `Tensor`, which makes its objects cheaper.

    Python walks from a class to its first base, and on, for each object that it frees. By way of
    the themes that is 45 steps, and a fifth of what it takes to make a tensor.
    """

    __slots__ = ()


class _TensorType(type):
    """The type of `Tensor`, for what is an attribute of the class and belongs to a thread."""

    @property
    def training(cls) -> bool:
        """Whether layers such as dropout and batch normalisation behave as in training.

        It belongs to the thread that reads or sets it; a new thread starts with False, which is
        evaluation. `with Tensor.train():` sets it for a block, and setting it to None takes back
        what was set. A layer that has a mode of its own (`model.train()`, `model.eval()`) goes by
        that.
        """
        return is_training()

    @training.setter
    def training(cls, mode: bool | None) -> None:
        this_thread.state.training = None if mode is None else bool(mode)

    @training.deleter
    def training(cls) -> None:
        this_thread.state.training = None


@final
@accept_arguments
class Tensor(_Short, Hints, metaclass=_TensorType):
    """An array of numbers on a device, lazy and differentiable.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> loss = (x * x).sum().backward()
    >>> x.grad.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """

    __slots__ = ()

    train = train

    def to(
        self,
        target: str | DType | Tensor | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
        copy: bool = False,
        *,
        device: str | None = None,
    ) -> Tensor:
        """The tensor on another device, with another dtype, or both; itself if nothing changes.

        `target` is a device, a dtype, or a tensor that has both; None with nothing else given is
        the default device. `copy` gives memory of its own in any case. `non_blocking` is PyTorch's,
        and changes nothing: a copy is done when it is needed.

        >>> from ferrule import Tensor, dtypes
        >>> Tensor([1, 2], device="NUMPY").to("CPU").device
        'CPU'
        >>> Tensor([1.5]).to(dtypes.int32).tolist(), Tensor([1]).to(Tensor([0.5])).dtype
        ([1], dtypes.float32)
        """
        if isinstance(target, Tensor):
            device, dtype = target.device, target.dtype
        elif isinstance(target, DType):
            dtype = target
        elif target is not None or dtype is None:
            device = to_device(device if target is None else target)
        place = self.device if device is None else to_device(device)
        result = self if dtype is None else self.cast(dtype)
        if place != self.device:
            return self._wrap(result._read().copy_to(place))
        return result.clone() if copy and result is self else result

    def cpu(self) -> Tensor:
        """The tensor on the device CPU.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2], device="NUMPY").cpu().device
        'CPU'
        """
        return self.to("CPU")
