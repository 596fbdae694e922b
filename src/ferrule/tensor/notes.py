"""Notes of functions of tensors, for exports, which write such a function as one operator."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.autograd import is_noting, note_call
from ferrule.tensor.base import Tensor


def note(name: str, given: Sequence[Tensor | None], result: Tensor, arg: object) -> None:
    """Note in an export that a tensor is the result of a function of others."""
    if is_noting():
        sources = [None if tensor is None else tensor._read() for tensor in given]
        note_call(name, sources, result._read(), arg)
