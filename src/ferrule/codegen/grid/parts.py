"""Sums in parts for blocks of threads: one kernel combines parts of each, the next one the parts.

Where a kernel has few results, few blocks compute them, and most of the device has nothing to do,
however long the sums are. Parts of them are results of their own. How many are worth a second
kernel is asked of the kernel's own schedule: how many threads it has, and what each of them does
in turn; or, where it multiplies matrices tile by tile, how long its best tiles take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import hypot, log2, prod
from typing import Final, final

from ferrule.codegen.grid.cost import SECOND_KERNEL
from ferrule.codegen.grid.scatter import scatter_seconds
from ferrule.codegen.grid.tile import seconds_in_parts
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.dtype import dtypes
from ferrule.expr import as_expr, sint
from ferrule.opkinds import scattered
from ferrule.ops import BufferOps, LazyOp, MemBuffer, ReduceOps, how_scattered
from ferrule.records import dataclass
from ferrule.shape.layout import storage_size
from ferrule.target import Target

# From a load to its value; at least so many loads of a thread are under way at once.
_LOAD_SECONDS: Final = 0.8e-6
_LOADS_AT_ONCE: Final = 4
# Of a thread whose operations wait for one another.
_OPERATION_SECONDS: Final = 2.5e-9
# More blocks of the device's size than this, for each of which there are results, fill it.
_FILLED: Final = 16
# The part of its time that a kernel has to save.
_LEAST_GAIN: Final = 0.1
# And by which twice as many parts have to be better.
_LEAST_MORE: Final = 0.03
# With more parts than those that take so many times the least time, it only gets worse.
_TRIED: Final = 1.5
_MOST_PARTS: Final = 512
_MOST_SCATTERED: Final = 1 << 15
_LEAST_TERMS: Final = 8
"""Of one part; a multiple of them keeps neighbours together."""


@final
@dataclass(frozen=True)
class Parts:
    """Into how many parts the reduces of an AST are split, and along which axis of their sources.

    These are all of one shape.
    """

    reduces: tuple[LazyOp, ...]
    axis: int
    count: int


@lru_cache(maxsize=4096)
def parts_of(ast: LazyOp, target: Target) -> Parts | None:
    """The parts in which the reduces of an AST take the least time; None if that is one."""
    reduces = _reduces_to_results(ast)
    if not reduces:
        return None
    if storage_size(reduces[0].shape) > _FILLED * target.max_threads * target.block_threads:
        return None
    is_scatter = reduces[0].op is ReduceOps.SCATTER
    model = _ScatterModel(ast, target) if is_scatter else _Model(ast, reduces, target)
    whole = model.seconds(1)
    best, least = None, (1 - _LEAST_GAIN) * whole
    if model.is_filled or whole <= SECOND_KERNEL or model.least >= least:
        return None
    sizes = reduces[0].src[0].shape
    axes = [reduces[0].arg[0]] if is_scatter else _reduced_axes(reduces[0])
    for axis, count in _candidates(sizes, axes, _MOST_SCATTERED if is_scatter else _MOST_PARTS):
        seconds = model.seconds(count)
        if seconds < least * (1.0 if best is None else 1 - _LEAST_MORE):
            best, least = Parts(reduces, axis, count), seconds
        elif best is not None and seconds > _TRIED * least:
            break
    return best


def _reduces_to_results(ast: LazyOp) -> tuple[LazyOp, ...]:
    """The reduces of a kernel that stores what they give, all at its own index and over the same
    axes; none where one needs another, or sizes vary, or the order of what is scattered counts.
    """
    if ast.op is not BufferOps.STORE or ast.vars():
        return ()
    found = [node for node in ast.toposort() if isinstance(node.op, ReduceOps)]
    if any(node.op is ReduceOps.SCATTER for node in found):
        return tuple(found) if len(found) == 1 and how_combined(found[0]) else ()
    shapes = {(node.shape, node.src[0].shape) for node in found}
    if len(shapes) != 1 or storage_size(found[0].shape) != storage_size(ast.src[0].shape):
        return ()
    below = {node for reduce in found for node in reduce.src[0].toposort()}
    return () if below & set(found) else tuple(found)


def how_combined(reduce: LazyOp) -> ReduceOps | None:
    """The reduce that combines parts of another; None where only the order of all says more."""
    if reduce.op is not ReduceOps.SCATTER:
        assert isinstance(reduce.op, ReduceOps)
        return reduce.op
    if reduce.dtype is dtypes.bool or len(reduce.src) > 2:
        return None
    return scattered(how_scattered(reduce.arg)).reduce


def _reduced_axes(reduce: LazyOp) -> list[int]:
    pairs = zip(reduce.src[0].shape, reduce.shape, strict=True)
    return [axis for axis, (before, after) in enumerate(pairs) if before != after]


def _candidates(sizes: Sequence[sint], axes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Axes and numbers of parts, about doubled each time; outer axes are preferred."""
    known = {a: as_expr(sizes[a]).max for a in axes}
    fit = [(a, n) for a in axes for n in range(2, min(most, known[a]) + 1) if known[a] % n == 0]
    seen = set()
    for wanted in (1 << i for i in range(1, most.bit_length())):

        def distance(choice: tuple[int, int], wanted: int = wanted) -> float:
            axis, count = choice
            uneven = axis == axes[-1] and known[axis] // count % _LEAST_TERMS
            return abs(log2(count / wanted)) + (0.5 if uneven else 0.0)

        choice = min(fit, key=distance, default=None)
        if choice is not None and choice not in seen:
            seen.add(choice)
            yield choice


@final
class _Model:
    """How long a kernel takes with its reduce in parts, the kernel that combines them included."""

    def __init__(self, ast: LazyOp, reduces: Sequence[LazyOp], target: Target) -> None:
        reduce = reduces[0]
        linearizer = Linearizer(ast, target)
        self._plan = Plan(linearizer.kernel, target)
        self._plan.collapse()
        (self._root,) = (nest.name for nest in linearizer.kernel.roots)
        bandwidth = target.bytes_per_second * target.max_threads
        stored = sum(storage_size(r.shape) * max(r.dtype.itemsize, 4) for r in reduces)
        self._part_seconds = 2 * stored / bandwidth
        work = self._plan.work(self._root)
        self._is_tiled = seconds_in_parts(self._plan, self._root, 1) is not None
        operations = 2 * work / (target.flops_per_second * target.max_threads)
        self.least = max(_read_bytes(ast) / bandwidth, 0.0 if self._is_tiled else operations)
        """What a device takes of which no part is idle."""
        blocks = linearizer.blocks
        assert isinstance(blocks, int)
        threads = blocks * linearizer.threads
        self.is_filled = not self._is_tiled and threads >= target.max_threads * target.block_threads
        """Whether there is a thread for each that the device can have."""
        lanes, at_once = _loads(linearizer)
        loads = storage_size(reduce.src[0].shape) / threads / lanes / at_once
        self._turns = loads * _LOAD_SECONDS + work / threads * _OPERATION_SECONDS
        """What one thread does after another."""

    def seconds(self, count: int) -> float:
        """The time for so many parts. Waiting overlaps in part with what the memory does."""
        busy = seconds_in_parts(self._plan, self._root, count) if self._is_tiled else None
        if busy is None:
            busy = self._turns / count
        again = SECOND_KERNEL + count * self._part_seconds if count > 1 else 0.0
        return hypot(busy, self.least) + again


@final
class _ScatterModel:
    """How long a kernel takes that scatters in parts, the kernel that combines them included."""

    def __init__(self, ast: LazyOp, target: Target) -> None:
        self._plan = Plan(lower(ast, "scatter"), target)
        self._plan.collapse()
        bandwidth = target.bytes_per_second * target.max_threads
        memory: int = storage_size(ast.src[0].shape) * ast.src[0].dtype.itemsize
        # Identities are stored, elements added, and both loaded again.
        self._part_seconds = 3 * memory / bandwidth
        self.least = (_read_bytes(ast) + memory) / bandwidth
        self.is_filled = scatter_seconds(self._plan, 1) is None
        """Whether parts would not help."""

    def seconds(self, count: int) -> float:
        """The time for so many parts."""
        busy = scatter_seconds(self._plan, count) or 0.0
        again = SECOND_KERNEL + count * self._part_seconds if count > 1 else 0.0
        return max(busy, self.least) + again


def _read_bytes(ast: LazyOp) -> int:
    """The different bytes that a kernel reads."""
    found: dict[int, int] = {}
    for node in ast.toposort():
        if node.op is BufferOps.LOAD:
            arg: MemBuffer = node.arg
            size = arg.st.real_size()
            assert isinstance(size, int)
            found[arg.idx] = max(found.get(arg.idx, 0), size * arg.dtype.itemsize)
    return sum(found.values())


def _loads(linearizer: Linearizer) -> tuple[int, int]:
    """How many terms a thread loads at a time, and how many such loads are under way at once."""
    nests = linearizer.scheduled.nests
    reduces = [nest for nest in nests if any(c.monoid is not None for c in nest.computes)]

    def least(kind: Kind) -> int:
        sizes = [prod(o.size for o in nest.loops if o.kind is kind) for nest in reduces]
        return min(sizes, default=1)

    return least(Kind.VECTOR), max(least(Kind.UNROLL), _LOADS_AT_ONCE)
