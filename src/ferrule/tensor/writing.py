"""Writing tensors: other elements, or another memory."""

from __future__ import annotations

from typing import Any

from ferrule.base.changes import changes
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method


@method
def assign(self: Tensor, value: Any) -> Tensor:
    """Replaces this tensor's elements, in memory shared with all views; returns the tensor.

    The value is broadcast to this tensor's shape and cast to its dtype.

    Raises `ShapeError` if it does not fit, `GradientError` for a tensor that requires a
    gradient and a value that needs one.

    >>> from ferrule import Tensor
    >>> x = Tensor([1, 2, 3, 4])
    >>> _ = x[::2].assign([0, 0])
    >>> x.tolist()
    [0, 2, 0, 4]
    """
    self._store(self._fitted(value, "assign"), "assign")
    return self


@method
def replace(self: Tensor, other: Tensor) -> Tensor:
    """Makes this tensor a handle on the memory of `other`; its views keep the old memory.

    >>> from ferrule import Tensor
    >>> x = Tensor([1])
    >>> x.replace(Tensor([2, 3])).tolist()
    [2, 3]
    """
    if other is self:
        return self
    before = self._same_handle()
    before._leaf = self._leaf
    before._note_whole()
    for reference in list(self._cell.caches or ()):
        cache = reference()
        view = None if cache is None else cache.view()
        if isinstance(view, Tensor) and view._parent is self:
            view._parent = before
    leaf, requires_grad, grad = self._leaf, self._requires_grad, self._grad
    self._become(other)
    changes.count += 1
    self._detached = other._detached
    self._leaf, self._requires_grad, self._grad = leaf, requires_grad, grad
    self._note_whole()
    return self
