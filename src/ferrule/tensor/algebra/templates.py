"""Functions of one value that are many nodes, as one node of the graph until it is planned."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from ferrule.autograd import TracedValue
from ferrule.fusion.dynamic.templates import Template
from ferrule.ir.dtype import DType
from ferrule.ir.lazy import LazyBuffer

Nodes: TypeAlias = Callable[..., TracedValue]


def by_kernels(x: LazyBuffer, nodes: Nodes, *args: Any) -> LazyBuffer:
    """The function `nodes` of a value, as one node (a template) if all sizes are known.

    A constant gets all nodes at once, since they fold as they are made.
    """
    is_known = all([isinstance(size, int) for size in x.shape])
    if is_known and x.base_const() is None:
        return _template(nodes, x.shape, x.dtype, x.device, *args).of(x)
    return nodes(TracedValue(x), *args).node


@lru_cache(maxsize=256)
def _template(
    nodes: Nodes, shape: tuple[int, ...], dtype: DType, device: str, *args: Any
) -> Template:
    argument = LazyBuffer.empty(shape, dtype, device)
    result = nodes(TracedValue(argument), *args).node
    return Template(argument, result, lambda x: by_kernels(x, nodes, *args))
