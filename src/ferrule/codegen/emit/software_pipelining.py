"""Software pipelining: copies that are made in earlier iterations of the loop that reads them.

In a pipeline of depth n, the copies of a loop's first n - 1 iterations begin before it. Each
iteration waits for its own copies, passes a barrier, and begins the copies of a later iteration in
the memory of the iteration before.

Products by warp groups are asynchronous: they read their operands until the next iteration has
begun its own. So the memory of the iteration before is not reused yet, which takes one more copy.

A copy that needs registers, because it is too narrow or computed from several loads, is loaded at
the beginning of an iteration and stored at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import final

from ferrule.codegen.emit.values import Values
from ferrule.codegen.kernel import Compute, Kernel, Kind, Loop, Nest
from ferrule.codegen.plan import loads
from ferrule.codegen.primitives.editing import mapped
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.expr import FALSE, Expr, ExprOp, alu, both, const, less, rebuild


@final
class SoftwarePipeline:
    """Emit copies of operands in earlier iterations than their use (software pipelining).

    `fill` emits the loops of such a copy.
    """

    def __init__(self, kernel: Kernel, values: Values, fill: Callable[[Nest], None]) -> None:
        self.values = values
        self.out = values.out
        self.fill = fill
        self._loaded: list[Callable[[], None]] | None = None
        """The stores of loads that are on their way; None if a copy is stored at once."""
        self._nests: dict[Expr, list[Nest]] = {}
        self._together = {
            loop.range
            for nest in kernel.nests
            if is_by_warp_groups(nest) and products_go_on(kernel, nest)
            for loop in nest.loops
        }
        """The loops around products by warp groups that overlap the next iteration."""
        self.shown = read_by_warp_groups(kernel)
        for nest in kernel.nests:
            loop = kernel.loop_around(nest)
            if is_pipelined(nest) and loop is not None:
                self._nests.setdefault(loop.range, []).append(nest)

    def __contains__(self, loop: Loop) -> bool:
        """True if a loop reads copies that are made ahead."""
        return loop.range in self._nests

    def before(self, loop: Loop) -> None:
        """Begin the copies of the first iterations, as many as are copied ahead."""
        first = const(0) if loop.start is None else loop.start
        for i in range(self._ahead(loop)):
            self._copy(loop, first + i, (first + i) % self._depth(loop))

    def inside(self, loop: Loop) -> None:
        """Wait for the copies that an iteration reads, and begin later ones in the memory of the
        last ones.

        After the barrier the copies of all threads are there, and no thread reads the last ones.
        """
        together = loop.range in self._together
        self.out.inside(UOp(UOps.WAIT, arg=self._ahead(loop) - 1))
        self.barrier({c.name for nest in self._nests[loop.range] for c in nest.computes})
        self._loaded = None if together else []
        self._copy_ahead(loop)
        if together:
            self.out.inside(UOp(UOps.WGMMA_FENCE))
        for nest in self._nests[loop.range]:
            for c in nest.computes:
                self.values.filled(c)

    def barrier(self, filled: Set[str]) -> None:
        """Emit a barrier, after which all threads, and products by warp groups, see what was
        filled.
        """
        if filled & self.shown:
            self.out.inside(UOp(UOps.PROXY_FENCE))
        self.out.inside(UOp(UOps.BARRIER))

    def stores_later(self, nest: Nest, c: Compute) -> bool:
        """Load a copy that needs registers; True if it is to be stored at the end of the iteration.

        False if its nest has serial loops: these would need registers for all of their iterations.
        """
        serial = any(loop.kind is Kind.SERIAL for loop in nest.loops)
        if self._loaded is None or not is_pipelined(nest) or serial:
            return False
        for e in loads(c.value):
            self.values.vector(e)
        store = partial(self._store, c)
        self._loaded.append(self.values.later(store))
        return True

    def _store(self, c: Compute) -> None:
        self.values.write(c, self.values.vector(c.value))

    def finish(self, loop: Loop) -> None:
        """Store what this iteration has loaded for a later one, or wait for the products of the
        iteration before.
        """
        for store in self._loaded or ():
            store()
        self._loaded = None
        if loop.range in self._together:
            self.out.inside(UOp(UOps.WGMMA_COMMIT))
            self.out.inside(UOp(UOps.WGMMA_WAIT, arg=1))

    def after(self, loop: Loop) -> None:
        """Wait for all copies and products."""
        self.out.inside(UOp(UOps.WAIT, arg=0))
        if loop.range in self._together:
            self.out.inside(UOp(UOps.WGMMA_WAIT, arg=0))

    def _copy_ahead(self, loop: Loop) -> None:
        """Begin the copies of the last iteration that there is memory for."""
        ahead, depth = self._ahead(loop), self._depth(loop)
        read, rest = loop.range % depth, depth - ahead
        before = alu(ExprOp.WHERE, less(read, const(rest)), read + ahead, read - rest)
        self._copy(loop, loop.range + ahead, before)

    def _ahead(self, loop: Loop) -> int:
        """The number of iterations whose copies are on their way when an iteration begins."""
        return self._depth(loop) - (2 if loop.range in self._together else 1)

    def _depth(self, loop: Loop) -> int:
        return self._nests[loop.range][0].computes[0].pipeline_depth

    def _copy(self, loop: Loop, iteration: Expr, ring_slot: Expr) -> None:
        """Begin the copies that an iteration reads, if there is such an iteration."""
        there = less(iteration, loop.range.size if loop.end is None else loop.end)
        self.values.ring_slot = ring_slot
        for nest in self._nests[loop.range]:
            if there is not FALSE:
                self.fill(_for_iteration(nest, {loop.range: iteration}, there))
        self.values.ring_slot = None
        self.out.inside(UOp(UOps.COMMIT))


def is_by_warp_groups(nest: Nest) -> bool:
    """True if a nest adds up products of matrices by several warps."""
    return bool(nest.loops) and nest.loops[-1].kind is Kind.WARP_GROUP


def hangs_until(kernel: Kernel, nest: Nest) -> int:
    """The depth of a nest from which on no nest hangs in its loops."""
    return max([n.at[1] for n in kernel.nests if n.at and n.at[0] == nest.name], default=0)


def products_go_on(kernel: Kernel, nest: Nest) -> bool:
    """True if products by warp groups may overlap the next iteration of a nest's loop.

    Only copies ahead hang in that loop, so no nest waits for the products.
    """
    inside = [n for n in kernel.nests if n.at is not None and n.at[0] == nest.name]
    return bool(inside) and all(is_pipelined(n) for n in inside)


def read_by_warp_groups(kernel: Kernel) -> frozenset[str]:
    """The names of the values that products by warp groups read."""
    return frozenset(e.arg for n in kernel.nests if is_by_warp_groups(n) for e in n.reads)


def is_pipelined(nest: Nest) -> bool:
    """True if a nest's values are made ahead of their use."""
    return any(c.pipeline_depth > 1 for c in nest.computes)


def _for_iteration(nest: Nest, iteration: Mapping[Expr, Expr], there: Expr) -> Nest:
    """A nest as it is in one iteration of the loop around it; its loads are 0 if there is no such
    iteration.
    """
    moved = mapped(nest, iteration)
    found = [e for e in moved.nodes if e.op is ExprOp.LOAD]
    return mapped(moved, {e: _only_if(e, there) for e in found})


def _only_if(element: Expr, condition: Expr) -> Expr:
    """A load that is 0 if a condition fails."""
    src: Sequence[Expr] = element.src
    masked = [both(e, condition) if i % 2 else e for i, e in enumerate(src)]
    return rebuild(element, tuple(masked))
