"""The loads and stores of a nest that thread blocks do: what they move between the memories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil, gcd, prod
from typing import Any, Final, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.index_values import index_values, sampled
from ferrule.codegen.intrinsics import WARP
from ferrule.codegen.kernel import BANK_LINE_BYTES, LANES_OR_COPIES, MAX_ACCESS_BYTES, Kind, Loop
from ferrule.ir.expr import Expr, step_along

_BANK_BYTES: Final = 4
_SAMPLES: Final = 256
"""Iterations that stand for all of a loop."""
_STRIDE: Final = 4099
"""A prime: multiples of it meet all iterations of a loop."""


@final
@dataclass(frozen=True)
class Access:
    """One load or store of each thread, of memory or, without a slot, of shared memory.

    `loops` are those around it, and `lane_digits` the iterations of THREAD loops that the threads
    of a warp do.
    """

    slot: int | None
    index: Expr
    itemsize: int
    is_store: bool
    loops: Sequence[Loop]
    lane_digits: Mapping[Expr, Any]
    sector: int
    """Bytes that are moved between the caches, at least."""
    depth: int
    """The number of loops around the place where it is done."""
    width: int
    """Adjacent elements that a thread accesses at once."""
    beside: float
    """Accesses of a thread that are done together."""
    times: float
    """Accesses of a thread in all."""
    chain: float
    """Accesses that wait for one another, this one the last."""

    @cached_property
    def _first(self) -> set[int]:
        """The bytes that the threads of a warp begin at."""
        values = index_values(self.index, self.lane_digits) * self.itemsize
        return set(values.ravel().tolist())

    def _pieces(self, size: int) -> set[int]:
        """The pieces of a size that the threads of a warp access, by their numbers."""
        inside = range(0, self.width * self.itemsize, size)
        return {(first + byte) // size for first in self._first for byte in inside}

    @cached_property
    def turns(self) -> float:
        """The accesses of all banks, or of a line of memory, that a warp needs at a time."""
        if self.slot is not None:
            return float(len(self._pieces(BANK_LINE_BYTES)))
        banks = Counter([word % WARP for word in self._pieces(_BANK_BYTES)])
        return float(max(banks.values()))

    @cached_property
    def asked(self) -> float:
        """The bytes of the sectors that a warp accesses in all."""
        return self.times * len(self._pieces(self.sector)) * self.sector

    def _touched(self, loops: Sequence[Loop]) -> float:
        """The bytes of the sectors that all iterations of some loops touch."""
        ranges = [o.range for o in loops if o.range in self.index.ranges and o.range.size.max > 1]
        steps = [(step_along(self.index, r), r) for r in ranges]
        known = [(abs(step) * self.itemsize, r.size.max) for step, r in steps if step is not None]
        span, count = self.itemsize, 1.0
        for apart, size in sorted(known):
            if apart <= max(span, self.sector):
                span += apart * (size - 1)
            else:
                count *= size
        for r in [r for step, r in steps if step is None]:  # quotients or remainders
            some = min(r.size.max, _SAMPLES)
            begins = index_values(self.index, {r: np.arange(some)}) * self.itemsize
            different = set((begins // max(span, self.sector)).tolist())
            count *= len(different) / some * r.size.max
        return count * ceil(span / self.sector) * self.sector

    @cached_property
    def of_block(self) -> float:
        """The bytes of the sectors that a block touches."""
        return self._touched([o for o in self.loops if o.kind is not Kind.PARALLEL])

    @cached_property
    def different(self) -> float:
        """The bytes of memory that the whole kernel touches."""
        extent = (self.index.max - self.index.min + 1) * self.itemsize
        loops = [loop for loop in self.loops if loop.range in self.index.ranges]
        if prod([loop.range.size.max for loop in loops]) * self.itemsize >= extent:
            return float(extent)  # there are no gaps, as a rule
        return min(self._touched(loops), float(extent))

    def traffic(self, cache_bytes: int, at_once: float, waves: float) -> float:
        """The bytes moved between memory and the second cache, if so many blocks run at once."""
        chunk = next((o.range for o in self.loops if o.kind is Kind.PARALLEL), None)
        fits = self.different <= cache_bytes
        if fits or chunk is None or chunk not in self.index.ranges:
            return self.different
        some = int(min(at_once, _SAMPLES, chunk.size.max))
        begins = set(index_values(self.index, {chunk: np.arange(some)}).tolist())
        of_wave = min(len(begins) / some * at_once * self.of_block, self.different)
        return max(self.different, of_wave * waves)


def side_by_side(
    loops: Sequence[Loop], index: Expr, itemsize: int, *, shared: bool
) -> tuple[int, float]:
    """The elements that one access takes, and the number of accesses in an iteration.

    Of shared memory, adjacent copies are read at once too.
    """
    kinds = LANES_OR_COPIES if shared else {Kind.VECTOR}
    width, count = 1, 1.0
    for loop in reversed(loops):
        if loop.kind not in LANES_OR_COPIES or loop.range not in index.ranges:
            continue
        size, most = loop.range.size.max, MAX_ACCESS_BYTES // itemsize
        if loop.kind in kinds and width < most and step_along(index, loop.range) == width:
            taken = gcd(size, most // width)
            width *= taken
            size //= taken
        count *= size
    return width, count


def holding_part(condition: Expr, loops: Sequence[Loop], lane_digits: Mapping[Expr, Any]) -> float:
    """The part of the iterations of a warp in which a condition holds for some thread."""
    ranges = [loop.range for loop in loops if loop.kind is not Kind.THREAD]
    samples = np.arange(_SAMPLES)[:, None]
    some = {r: samples * _STRIDE % r.size.max for r in ranges}
    holds = np.atleast_2d(sampled(condition, {**some, **lane_digits}, samples))
    return max(float(holds.any(axis=1).mean()), 1 / _SAMPLES)


def mean_iterations(loop: Loop) -> float:
    """The number of iterations of a loop that may start late or end early, on average."""
    size = loop.range.size.max
    bounds = [e for e in (loop.start, loop.end) if e is not None]
    some = {
        r: np.arange(_SAMPLES) * r.size.max // _SAMPLES for bound in bounds for r in bound.ranges
    }
    start = 0 if loop.start is None else sampled(loop.start, some)
    end = size if loop.end is None else sampled(loop.end, some)
    return float(np.mean(np.maximum(end - start, 1)))
