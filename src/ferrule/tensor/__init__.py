"""`Tensor`: arrays that are computed lazily, on any device, with gradients.

The class is put together by theme, each on top of the one before: memory and autograd (`base`),
operators (`elementwise`), functions of one tensor (`functions`), `movement`, `reduce`, `creation`,
`indexing`, `linalg`, `neural`, `loss`.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Self, final

from ferrule.tensor.data import to_device
from ferrule.tensor.keywords import accept_synonyms
from ferrule.tensor.loss import Loss

__all__ = ["Tensor"]


@final
@accept_synonyms
class Tensor(Loss):
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

    def to(self, device: str | None) -> Tensor:
        """The tensor on another device; the same tensor if it is there.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2], device="NUMPY").to("CPU").device
        'CPU'
        """
        target = to_device(device)
        return self if target == self.device else self._wrap(self._read().copy_to(target))
