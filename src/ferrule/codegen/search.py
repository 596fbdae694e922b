"""Choosing opts by timing: schedules for slightly different machines, tried on this one.

The heuristic is a function of the target. Asked about targets with fewer registers, shorter
vectors, other caches or more threads, it proposes other tiles, lanes, blocks and chunks; all of
them are right on the real target, and one of them may be faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ferrule.codegen.heuristic import choose
from ferrule.codegen.kernel import Kernel, expressions
from ferrule.codegen.opt import Opt
from ferrule.expr import ExprOp, toposort
from ferrule.target import Target


def candidates(kernel: Kernel, target: Target, width: int) -> list[tuple[Opt, ...]]:
    """At most `width` different schedules, the heuristic's own choice first."""
    found: dict[tuple[Opt, ...], None] = {}
    for variant in _variants(target):
        if len(found) == width:
            break
        found[choose(kernel, variant)] = None
    return list(found)


def search(
    kernel: Kernel, target: Target, measure: Callable[[tuple[Opt, ...]], float], width: int
) -> tuple[Opt, ...]:
    """The candidate that takes the least time; `measure` gives the seconds of one."""
    return min(candidates(kernel, target, width), key=measure)


def slot_sizes(kernel: Kernel) -> list[int] | None:
    """How many elements each buffer must have for a trial run; None where data decide that."""
    sizes = [1] * len(kernel.slots)
    found = [e for nest in kernel.nests for e in expressions(nest)]
    elements = [e for e in toposort(found) if e.op is ExprOp.LOAD]
    places = [(e.arg, index) for e in elements for index in e.src[::2]]
    stores = [c.store for nest in kernel.nests for c in nest.computes if c.store is not None]
    places += [(store.slot, store.index) for store in stores]
    for slot, index in places:
        if any(e.op is ExprOp.LOAD for e in toposort([index])):
            return None
        sizes[slot] = max(sizes[slot], index.max + 1)
    return sizes


def _variants(target: Target) -> list[Target]:
    registers = target.n_vector_registers
    return [
        target,
        replace(target, l2_bytes=target.l2_bytes // 2),
        replace(target, n_vector_registers=registers * 3 // 4),
        replace(target, max_threads=4 * target.max_threads),
        replace(target, vector_bytes=max(target.vector_bytes // 2, 16)),
        replace(target, l2_bytes=2 * target.l2_bytes),
        replace(target, n_vector_registers=registers // 2),
        replace(target, max_threads=1),
        replace(target, n_vector_registers=registers // 2, l2_bytes=target.l2_bytes // 2),
        replace(target, vector_bytes=16),
    ]
