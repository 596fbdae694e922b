"""Split reduces for thread blocks: one kernel combines parts of each, the next one combines the
parts.

A kernel with few results has few blocks, and most of the device is idle, however long the sums are.
Parts of the sums are results of their own. The number of parts that is worth a second kernel
follows from the kernel's own schedule: the number of its threads, and the time of each; or, if it
multiplies matrices in tiles, the time of its best tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import hypot, log2, prod
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu.cost import SECOND_KERNEL
from ferrule.codegen.schedules.gpu.scatter import scatter_seconds
from ferrule.codegen.schedules.gpu.tile import seconds_in_parts
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import as_expr, sint
from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, ReduceOps
from ferrule.ir.op_table import combination_of, reduced_axes
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.target import Target

# Estimates for an H100, from its published figures and NVRTC's machine code (2026-11-23); not
# measured.
_LOAD_SECONDS: Final = 0.8e-6
"""Seconds from a load to its value."""
_LOADS_AT_ONCE: Final = 4
"""Loads of a thread that are under way at once, at least."""
_OPERATION_SECONDS: Final = 2.5e-9
"""Seconds for each operation of a thread whose operations depend on one another."""
_MAX_RESULT_WAVES: Final = 16
"""Results for each thread of the device; with more, the device is busy without parts."""
_MIN_GAIN: Final = 0.1
"""The share of its time that a kernel has to save."""
_MIN_MORE_GAIN: Final = 0.03
"""The share of the time that twice as many parts have to save."""
_MAX_TIME_RATIO: Final = 1.5
"""Times the least time so far; more parts than such a number only get worse."""
_MAX_PARTS: Final = 512
_MAX_SCATTER_PARTS: Final = 1 << 15
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
    if (
        storage_size(reduces[0].shape)
        > _MAX_RESULT_WAVES * target.max_threads * target.block_threads
    ):
        return None
    is_scatter = reduces[0].op is ReduceOps.SCATTER
    model = _ScatterModel(ast, target) if is_scatter else _Model(ast, reduces, target)
    whole = model.seconds(1)
    best, least = None, (1 - _MIN_GAIN) * whole
    if model.is_filled or whole <= SECOND_KERNEL or model.least >= least:
        return None
    sizes = reduces[0].src[0].shape
    axes = [reduces[0].arg[0]] if is_scatter else reduced_axes(sizes, reduces[0].shape)
    for axis, count in _candidates(sizes, axes, _MAX_SCATTER_PARTS if is_scatter else _MAX_PARTS):
        seconds = model.seconds(count) + (SECOND_KERNEL + count * model.part_seconds)
        if seconds < least * (1.0 if best is None else 1 - _MIN_MORE_GAIN):
            best, least = Parts(reduces, axis, count), seconds
        elif best is not None and seconds > _MAX_TIME_RATIO * least:
            break
    return best


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


def _candidates(sizes: Sequence[sint], axes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Axes and numbers of parts, about doubled each time; outer axes are preferred."""
    known = {a: as_expr(sizes[a]).max for a in axes}
    fit = [(a, n) for a in axes for n in range(2, min(most, known[a]) + 1) if known[a] % n == 0]
    seen = set()
    for wanted in (1 << i for i in range(1, most.bit_length())):

        def distance(choice: tuple[int, int], wanted: int = wanted) -> float:
            axis, count = choice
            uneven = axis == axes[-1] and known[axis] // count % _MIN_TERMS
            return abs(log2(count / wanted)) + (0.5 if uneven else 0.0)

        choice = min(fit, key=distance, default=None)
        if choice is not None and choice not in seen:
            seen.add(choice)
            yield choice


@final
class _Model:
    """The time of a kernel with its reduces in parts."""

    def __init__(self, ast: LazyOp, reduces: Sequence[LazyOp], target: Target) -> None:
        reduce = reduces[0]
        linearizer = Linearizer(ast, target)
        self._plan = Plan(linearizer.kernel, target)
        self._plan.collapse()
        (self._root,) = (nest.name for nest in linearizer.kernel.roots)
        bandwidth = target.bytes_per_second * target.max_threads
        stored = sum(storage_size(r.shape) * max(r.dtype.itemsize, 4) for r in reduces)
        self.part_seconds = 2 * stored / bandwidth
        """Seconds to store and load one part of each reduce."""
        work = self._plan.work(self._root)
        self._is_tiled = seconds_in_parts(self._plan, self._root, 1) is not None
        operations = 2 * work / (target.flops_per_second * target.max_threads)
        self.least = max(_read_bytes(ast) / bandwidth, 0.0 if self._is_tiled else operations)
        """Seconds that the device takes if no part of it is idle."""
        blocks = linearizer.blocks
        assert isinstance(blocks, int)
        threads = blocks * linearizer.threads
        self.is_filled = not self._is_tiled and threads >= target.max_threads * target.block_threads
        """True if the kernel has as many threads as the device can hold."""
        lanes, at_once = _loads(linearizer)
        loads = storage_size(reduce.src[0].shape) / threads / lanes / at_once
        self._turns = loads * _LOAD_SECONDS + work / threads * _OPERATION_SECONDS
        """Seconds of the loads and operations that one thread does one after the other."""

    def seconds(self, count: int) -> float:
        """Seconds until `count` parts are stored. The latency of loads overlaps partly with the
        memory's own time.
        """
        busy = seconds_in_parts(self._plan, self._root, count) if self._is_tiled else None
        if busy is None:
            busy = self._turns / count
        return hypot(busy, self.least)


@final
class _ScatterModel:
    """The time of a kernel that scatters in parts."""

    def __init__(self, ast: LazyOp, target: Target) -> None:
        self._plan = Plan(lower(ast, "scatter"), target)
        self._plan.collapse()
        bandwidth = target.bytes_per_second * target.max_threads
        memory: int = storage_size(ast.src[0].shape) * ast.src[0].dtype.itemsize
        # Identities are stored, elements added, and both loaded again.
        self.part_seconds = 3 * memory / bandwidth
        self.least = (_read_bytes(ast) + memory) / bandwidth
        self.is_filled = scatter_seconds(self._plan, 1) is None
        """True if parts would not help."""

    def seconds(self, count: int) -> float:
        """Seconds until `count` parts are stored."""
        return max(scatter_seconds(self._plan, count) or 0.0, self.least)


def _read_bytes(ast: LazyOp) -> int:
    """The number of different bytes that a kernel reads."""
    found: dict[int, int] = {}
    for node in ast.toposort():
        if node.op is BufferOps.LOAD:
            arg: MemBuffer = node.arg
            size = arg.st.real_size()
            assert isinstance(size, int)
            found[arg.idx] = max(found.get(arg.idx, 0), size * arg.dtype.itemsize)
    return sum(found.values())


def _loads(linearizer: Linearizer) -> tuple[int, int]:
    """The number of terms that a thread loads at a time, and the number of such loads under way at
    once.
    """
    nests = linearizer.scheduled.nests
    reduces = [nest for nest in nests if any(c.monoid is not None for c in nest.computes)]

    def least(kind: Kind) -> int:
        sizes = [prod(o.size for o in nest.loops if o.kind is kind) for nest in reduces]
        return min(sizes, default=1)

    return least(Kind.VECTOR), max(least(Kind.UNROLL), _LOADS_AT_ONCE)
