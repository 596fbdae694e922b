"""Nests and loops of a kernel by what they are for, so that tests do not spell their names."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.kernel import Kernel, Kind, Loop, Nest
from ferrule.ir.expr import Expr, ExprOp


def the_output(kernel: Kernel) -> Nest:
    """The only nest that hangs in no other."""
    (root,) = kernel.roots
    return root


def reduces(kernel: Kernel) -> list[Nest]:
    """The nests that combine values, in their order; of a reduce in two passes, the second one."""
    found = [n for n in kernel.nests if any(c.monoid is not None for c in n.computes)]
    return [n for n in found if not _is_partial(kernel, n)]


def the_reduce(kernel: Kernel) -> Nest:
    """The only reduce."""
    (nest,) = reduces(kernel)
    return nest


def partials(kernel: Kernel) -> list[Nest]:
    """The nests of partial results, which reduces combine in a second pass."""
    return [n for n in kernel.nests if _is_partial(kernel, n)]


def _is_partial(kernel: Kernel, nest: Nest) -> bool:
    """Whether all that a nest combines is all that another one combines, at the same place."""
    own = {c.name for c in nest.computes if c.monoid is not None and c.ranges}
    again = [c for n in kernel.nests if n.at == nest.at for c in n.computes if c.monoid is not None]
    return any(c.value.op is ExprOp.READ and c.value.arg in own for c in again)


def copies(kernel: Kernel, slot: int | None = None) -> list[Nest]:
    """The nests that copy what is in a buffer, or in any, to scratch."""
    return [n for n in kernel.nests if copied(n) is not None and slot in (None, copied(n))]


def the_copy(kernel: Kernel, slot: int) -> Nest:
    """The only nest that copies what is in a buffer."""
    (nest,) = copies(kernel, slot)
    return nest


def copied(nest: Nest) -> int | None:
    """The buffer from which a nest copies, if it does only that."""
    (c, *others) = nest.computes
    if others or c.value.op is not ExprOp.LOAD or c.monoid is not None or c.store is not None:
        return None
    return int(c.value.arg)


def axis(kernel: Kernel, place: int) -> Expr:
    """The range that was one of the loops of an output, in their order, before it was scheduled."""
    return the_output(kernel).loops[place].range


def parts(nest: Nest, r: Expr) -> list[Loop]:
    """The loops of a nest that are from one over a range: it, its parts, and copies of those."""
    return [loop for loop in nest.loops if loop.is_from(r)]


def of_kind(nest: Nest, kind: Kind) -> list[Loop]:
    """The loops of a nest that are run in one way."""
    return [loop for loop in nest.loops if loop.kind is kind]


def origins(kernel: Kernel, loops: Sequence[Loop]) -> list[Expr]:
    """The ranges that loops were before they were split, or computed elsewhere."""
    return [kernel.origin(loop.range) for loop in loops]


def last_reduce(kernel: Kernel) -> Nest:
    """The last of several reduces: that whose results leave a chain of them."""
    return reduces(kernel)[-1]


def copied_slots(kernel: Kernel) -> list[int | None]:
    """The buffers from which nests copy, in the order of these."""
    return [copied(nest) for nest in copies(kernel)]
