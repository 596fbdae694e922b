"""`Tensor`: arrays that are computed lazily, on any device, with gradients.

The class is put together by theme, each on top of the one before: memory and autograd (`base`),
operators (`elementwise`), functions of one tensor (`functions`), `movement`, `reduce`, `creation`,
`indexing`, `linalg`, `neural`, `loss`.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Self, final

from ferrule.dtype import DType
from ferrule.helpers import not_a_function
from ferrule.tensor.base import TensorBase
from ferrule.tensor.data import DTypeLike, to_device
from ferrule.tensor.hints import Hints
from ferrule.tensor.keywords import accept_arguments

__all__ = ["Tensor"]

not_a_function(__name__, "ferrule.Tensor(data) makes a tensor")


class _Short(TensorBase):
    """The first base of `Tensor`, which makes its objects cheaper.

    Python walks from a class to its first base, and on, for each object that it frees. By way of
    the themes that is 45 steps, and a fifth of what it takes to make a tensor.
    """

    __slots__ = ()


@final
@accept_arguments
class Tensor(_Short, Hints):
    """An array of numbers on a device, lazy and differentiable.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> loss = (x * x).sum().backward()
    >>> x.grad.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """

    __slots__ = ()

    @final
    class train(ContextDecorator):
        """Sets `Tensor.training` while it is entered.

        >>> from ferrule import Tensor
        >>> with Tensor.train():
        ...     Tensor.training
        True
        >>> Tensor.training
        False
        """

        def __init__(self, mode: bool = True) -> None:
            self._mode = mode
            self._before: list[bool] = []

        def __enter__(self) -> Self:
            self._before.append(Tensor.training)
            Tensor.training = self._mode
            return self

        def __exit__(self, *_: object) -> None:
            Tensor.training = self._before.pop()

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
