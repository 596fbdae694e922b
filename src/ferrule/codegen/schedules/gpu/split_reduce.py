"""Split reduces for thread blocks: one kernel combines parts of each, the next one combines the
parts.

A kernel with few results has few blocks, and most of the device is idle, however long the sums are.
Parts of the sums are results of their own. The number of parts that is worth a second kernel
follows from the estimate of the kernel's own schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.codegen.estimate_blocks import BlockWork, Estimate
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.scatter import scattered
from ferrule.codegen.schedules.gpu.tile import cycles_in_parts
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import as_expr, sint
from ferrule.ir.lazyop import BufferOps, LazyOp, ReduceOps
from ferrule.ir.op_table import combination_of, reduced_axes
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.target import Target

_MIN_GAIN: Final = 0.1
"""The share of its time that a kernel has to save."""
_MAX_PARTS: Final = 1 << 15
"""Of scatters; each of these is small."""
_MIN_TERMS: Final = 8
"""Terms of one part; a multiple of them keeps adjacent elements together."""


@final
@dataclass(frozen=True)
class Parts:
    """The number of parts of an AST's reduces, and the axis of their sources that is split.

    The reduces are all of one shape.
    """

    reduces: tuple[LazyOp, ...]
    axis: int
    count: int


@lru_cache(maxsize=4096)
def parts_of(ast: LazyOp, target: Target) -> Parts | None:
    """The parts in which the reduces of an AST take the least time; None if that is one part."""
    reduces = _reduces_to_results(ast)
    if not reduces:
        return None
    is_scatter = reduces[0].op is ReduceOps.SCATTER
    schedules = _Schedules(ast, target, is_scatter=is_scatter)
    stored = sum(storage_size(r.shape) * max(r.dtype.itemsize, 4) for r in reduces)
    best, least = None, (1 - _MIN_GAIN) * schedules.cycles(1)
    if least <= schedules.launch + schedules.least:
        return None
    sizes = reduces[0].src[0].shape
    axes = [reduces[0].arg[0]] if is_scatter else reduced_axes(sizes, reduces[0].shape)
    for axis, count in _candidates(sizes, axes):
        # Parts are stored, and loaded again by the second kernel.
        second = schedules.launch + 2 * count * stored / schedules.memory_bytes
        taken = schedules.cycles(count) + second
        if taken < least:
            best, least = Parts(reduces, axis, count), taken
    return best


@final
class _Schedules:
    """The schedules that a kernel may have if its reduces are in parts."""

    def __init__(self, ast: LazyOp, target: Target, *, is_scatter: bool) -> None:
        if is_scatter:
            self._plan = Plan(lower(ast, "parts"), target)
            self._plan.collapse()
            kernels = list(scattered(self._plan)) or [self._plan.kernel]
        else:
            linearizer = Linearizer(ast, target)
            self._plan = Plan(linearizer.kernel, target)
            self._plan.collapse()
            kernels = [linearizer.scheduled]
        self._works = [BlockWork(kernel, target) for kernel in kernels]
        (self._root, *_) = (nest.name for nest in self._plan.kernel.roots)
        self.launch = self._works[0].launch
        self.memory_bytes = self._works[0].memory_bytes

    @property
    def least(self) -> float:
        """The cycles that the kernel takes with any number of parts, at least."""
        filled = self._plan.target.multiprocessors
        return self._least([work.balanced() for work in self._works], filled)

    def _least(self, estimates: Sequence[Estimate], parts: int) -> float:
        tiled = cycles_in_parts(self._plan, self._root, parts)
        in_tiles = [replace(e, cache=0.0, busiest=tiled) for e in estimates]
        return min([e.cycles for e in (*estimates, *in_tiles)])

    def cycles(self, parts: int) -> float:
        """The cycles until so many parts are stored, by the schedules that are made for one part;
        a contraction has a tile for each number of parts.
        """
        return self._least([work.estimate(parts) for work in self._works], parts)


def _reduces_to_results(ast: LazyOp) -> tuple[LazyOp, ...]:
    """The reduces of a kernel that stores their results, all at one index and over the same axes.

    Empty if one reduce needs another, if sizes are symbolic, or if the order of scattered elements
    counts.
    """
    if ast.op is not BufferOps.STORE or ast.vars():
        return ()
    found = [node for node in ast.toposort() if isinstance(node.op, ReduceOps)]
    if any(node.op is ReduceOps.SCATTER for node in found):
        return tuple(found) if len(found) == 1 and _is_in_any_order(found[0]) else ()
    shapes = {(node.shape, node.src[0].shape) for node in found}
    if len(shapes) != 1 or storage_size(found[0].shape) != storage_size(ast.src[0].shape):
        return ()
    below = {node for reduce in found for node in reduce.src[0].toposort()}
    return () if below & set(found) else tuple(found)


def _is_in_any_order(scatter: LazyOp) -> bool:
    """True if a reduce combines parts of a SCATTER; else the order of all elements decides."""
    combine = combination_of(ReduceOps.SCATTER, scatter.arg).reduce
    return combine is not None and scatter.dtype is not dtypes.bool and len(scatter.src) == 2


def _candidates(sizes: Sequence[sint], axes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Axes and numbers of parts, about doubled each time; outer axes are preferred."""
    known = {a: as_expr(sizes[a]).max for a in axes}
    fit = [
        (a, n) for a in axes for n in range(2, min(_MAX_PARTS, known[a]) + 1) if known[a] % n == 0
    ]
    seen = set()
    for wanted in (1 << i for i in range(1, _MAX_PARTS.bit_length())):

        def distance(choice: tuple[int, int], wanted: int = wanted) -> float:
            axis, count = choice
            uneven = axis == axes[-1] and known[axis] // count % _MIN_TERMS
            return abs(log2(count / wanted)) + (0.5 if uneven else 0.0)

        choice = min(fit, key=distance, default=None)
        if choice is not None and choice not in seen:
            seen.add(choice)
            yield choice
