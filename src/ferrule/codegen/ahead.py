"""Copies that are made ahead of their use: in earlier iterations of the loop that reads them.

For a loop that reads copies in n stages, those of the first n - 1 iterations begin before it. Each
iteration waits for its own, passes a barrier, and begins the copies of the last iteration that
there is memory for, where those of the iteration before were.

Products by warp groups are not done when they are begun: they read what was copied until the next
iteration has begun its own. So nothing is copied to where the last iteration's are, which takes
one more stage.

What cannot go there by itself, because it is too narrow or something is computed from it, goes by
way of registers: an iteration loads it at its beginning, and stores it at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import final

from ferrule.codegen.kernel import Compute, Kernel, Kind, Loop, Nest
from ferrule.codegen.plan import loads
from ferrule.codegen.primitives.editing import mapped
from ferrule.codegen.uops import UOp, UOps
from ferrule.codegen.values import Values
from ferrule.expr import FALSE, Expr, ExprOp, alu, both, const, less, rebuild


@final
class CopiesAhead:
    """Puts copies ahead of their use into a program; `fill` does the loops of such a nest."""

    def __init__(self, kernel: Kernel, values: Values, fill: Callable[[Nest], None]) -> None:
        self.values = values
        self.out = values.out
        self.fill = fill
        self._loaded: list[Callable[[], None]] | None = None
        """What stores that which was loaded; None where that is stored at once."""
        self._nests: dict[Expr, list[Nest]] = {}
        self._together = {
            loop.range
            for nest in kernel.nests
            if is_by_warp_groups(nest) and products_go_on(kernel, nest)
            for loop in nest.loops
        }
        """The loops around products by warp groups that go on."""
        self.shown = read_by_warp_groups(kernel)
        for nest in kernel.nests:
            loop = kernel.loop_around(nest)
            if is_ahead(nest) and loop is not None:
                self._nests.setdefault(loop.range, []).append(nest)

    def __contains__(self, loop: Loop) -> bool:
        """Whether a loop reads such copies."""
        return loop.range in self._nests

    def before(self, loop: Loop) -> None:
        """Begin the copies of as many iterations as are copied ahead."""
        first = const(0) if loop.start is None else loop.start
        for i in range(self._ahead(loop)):
            self._copy(loop, first + i, (first + i) % self._stages(loop))

    def inside(self, loop: Loop) -> None:
        """Await what an iteration reads, and begin copies in the place of what the last one read.

        Behind the barrier the copies of all threads are there, and nobody reads the last ones.
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
        """Let all threads see what each of them has filled, and products by warp groups."""
        if filled & self.shown:
            self.out.inside(UOp(UOps.PROXY_FENCE))
        self.out.inside(UOp(UOps.BARRIER))

    def stores_later(self, nest: Nest, c: Compute) -> bool:
        """Load what goes by way of registers; whether it is stored at the end of the iteration.

        Loops that run would need registers for all of their iterations.
        """
        serial = any(loop.kind is Kind.SERIAL for loop in nest.loops)
        if self._loaded is None or not is_ahead(nest) or serial:
            return False
        for e in loads(c.value):
            self.values.vector(e)
        store = partial(self._store, c)
        self._loaded.append(self.values.later(store))
        return True

    def _store(self, c: Compute) -> None:
        self.values.write(c, self.values.vector(c.value))

    def finish(self, loop: Loop) -> None:
        """Store what this iteration has loaded for a later one; or wait until the products of the
        iteration before are done.
        """
        for store in self._loaded or ():
            store()
        self._loaded = None
        if loop.range in self._together:
            self.out.inside(UOp(UOps.WGMMA_COMMIT))
            self.out.inside(UOp(UOps.WGMMA_WAIT, arg=1))

    def after(self, loop: Loop) -> None:
        """Nothing is on its way any more."""
        self.out.inside(UOp(UOps.WAIT, arg=0))
        if loop.range in self._together:
            self.out.inside(UOp(UOps.WGMMA_WAIT, arg=0))

    def _copy_ahead(self, loop: Loop) -> None:
        """The copies of the last iteration that there is memory for."""
        ahead, stages = self._ahead(loop), self._stages(loop)
        read, rest = loop.range % stages, stages - ahead
        before = alu(ExprOp.WHERE, less(read, const(rest)), read + ahead, read - rest)
        self._copy(loop, loop.range + ahead, before)

    def _ahead(self, loop: Loop) -> int:
        """How many iterations' copies are on their way when one begins."""
        return self._stages(loop) - (2 if loop.range in self._together else 1)

    def _stages(self, loop: Loop) -> int:
        return self._nests[loop.range][0].computes[0].stages

    def _copy(self, loop: Loop, iteration: Expr, stage: Expr) -> None:
        """The copies that an iteration reads, if there is one."""
        there = less(iteration, loop.range.size if loop.end is None else loop.end)
        self.values.stage = stage
        for nest in self._nests[loop.range]:
            if there is not FALSE:
                self.fill(_for_iteration(nest, {loop.range: iteration}, there))
        self.values.stage = None
        self.out.inside(UOp(UOps.COMMIT))


def is_by_warp_groups(nest: Nest) -> bool:
    """Whether a nest adds up products of matrices by several warps."""
    return bool(nest.loops) and nest.loops[-1].kind is Kind.WARP_GROUP


def hangs_until(kernel: Kernel, nest: Nest) -> int:
    """The depth of a nest from which on nothing hangs in its loops."""
    return max([n.at[1] for n in kernel.nests if n.at and n.at[0] == nest.name], default=0)


def products_go_on(kernel: Kernel, nest: Nest) -> bool:
    """Whether products by warp groups may go on beside the next iteration of a nest's loop: nothing
    but copies ahead hangs in it, so that nobody waits for them.
    """
    inside = [n for n in kernel.nests if n.at is not None and n.at[0] == nest.name]
    return bool(inside) and all(is_ahead(n) for n in inside)


def read_by_warp_groups(kernel: Kernel) -> frozenset[str]:
    """What products by warp groups read."""
    return frozenset(e.arg for n in kernel.nests if is_by_warp_groups(n) for e in n.reads)


def is_ahead(nest: Nest) -> bool:
    """Whether what a nest keeps is made ahead of its use."""
    return any(c.stages > 1 for c in nest.computes)


def _for_iteration(nest: Nest, iteration: Mapping[Expr, Expr], there: Expr) -> Nest:
    """A nest as it is in one iteration of the loop around it, with zeros if there is no such."""
    moved = mapped(nest, iteration)
    found = [e for e in moved.nodes if e.op is ExprOp.LOAD]
    return mapped(moved, {e: _only_if(e, there) for e in found})


def _only_if(element: Expr, condition: Expr) -> Expr:
    """A load that is 0 where a condition fails."""
    src: Sequence[Expr] = element.src
    masked = [both(e, condition) if i % 2 else e for i, e in enumerate(src)]
    return rebuild(element, tuple(masked))
