"""Gradient hooks that code outside a captured function set on the parameters that it uses."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

from ferrule.autograd import Leaf
from ferrule.autograd.backward import hooks
from ferrule.tensor import Tensor


def hooks_of(tensor: Tensor) -> tuple[int, ...]:
    """The numbers of the hooks that a gradient of this parameter goes through."""
    leaf = tensor._leaf
    return tuple(hooks.get(leaf, ())) if hooks and leaf is not None else ()


def code_of(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """All code that a call may run: the function, and the hooks on parameters."""
    leaves = [found for edge, found in list(hooks.items()) if isinstance(edge, Leaf)]
    return [function, *[hook.function for found in leaves for hook in found.values()]]


@final
class HooksBefore:
    """The hooks on the parameters in a function's reach, as they were in the captured call."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._hooks = [
            (weakref.ref(tensor), hooks_of(tensor))
            for tensor in tensors
            if tensor._leaf is not None
        ]
        self._were_any = any(numbers for _, numbers in self._hooks)

    def have_changed(self) -> bool:
        """True if a parameter has other hooks now."""
        if not (hooks or self._were_any):
            return False
        pairs = [(reference(), numbers) for reference, numbers in self._hooks]
        return any(tensor is not None and hooks_of(tensor) != then for tensor, then in pairs)
