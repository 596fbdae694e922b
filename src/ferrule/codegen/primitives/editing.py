"""Helpers of the scheduling primitives: finding nests and loops, queries, and rewriting
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from operator import is_

from ferrule.codegen.kernel import Compute, Kernel, Nest, expressions
from ferrule.ir.expr import Expr, ExprOp, substitute, uncast


class ScheduleError(ValueError):
    """A scheduling primitive that is not legal on this kernel."""


# Names are the keys of loops in opts, which are data. Only the functions below compose names, and
# none takes them apart: a loop has a record of what it was made from (`Loop.lineage`).


def part_names(name: str) -> tuple[str, str]:
    """The names of the outer and the inner loop that a loop is split into."""
    return f"{name}.o", f"{name}.i"


def fused_name(first: str, second: str) -> str:
    """The name of the loop that two loops become."""
    return f"{first}*{second}"


def copy_name(name: str, nest: str) -> str:
    """The name of the copy of a loop that a nest gets."""
    return f"{name}@{nest}"


def nest_of(kernel: Kernel, name: str) -> Nest:
    found = kernel.by_name.get(name)
    if found is None:
        raise ScheduleError(
            f"no nest {name} in kernel {kernel.name}; there are {sorted(kernel.by_name)}"
        )
    return found


def depth_of(kernel: Kernel, nest: Nest, name: str) -> int:
    for depth, loop in enumerate(nest.loops):
        if loop.range.name == name:
            return depth
    names = [loop.range.name for loop in nest.loops]
    raise ScheduleError(
        f"no loop {name} in nest {nest.name} of kernel {kernel.name}; there are {names}"
    )


def is_combined(nest: Nest, r: Expr) -> bool:
    """True if the nest reduces over a range."""
    monoids = [c for c in nest.computes if c.monoid is not None]
    return bool(monoids) and all(r not in c.ranges for c in monoids)


def is_product_of_loads(c: Compute) -> bool:
    """True if a sum adds up products of two loads, perhaps cast: 0 where both are masked."""
    if c.monoid is None or c.monoid.op is not ExprOp.ADD or c.value.op is not ExprOp.MUL:
        return False
    factors = [uncast(factor) for factor in c.value.src]
    return all(factor.op is ExprOp.LOAD and len(factor.src) == 2 for factor in factors)


def refuse_carried(kernel: Kernel, r: Expr, what: str) -> None:
    """Raise a ScheduleError if the loop over a range carries a reduce."""
    carried = [c.name for c in kernel.computes.values() if c.carried_by is r]
    if carried:
        raise ScheduleError(
            f"{what} in kernel {kernel.name}: {r} carries {carried[0]}; do it before `fuse_reduces`"
        )


def stores_in(kernel: Kernel, nest: Nest, r: Expr) -> bool:
    """True if a nest stores something inside of the loop over a range."""
    stores = any(c.store is not None for c in nest.computes)
    return stores and any(loop.range is r for _, _, loop in kernel.path(nest))


def descendants(kernel: Kernel, name: str) -> set[str]:
    """The nests that hang in a nest, directly or not, and the nest itself."""
    out = {name}
    for nest in reversed(kernel.nests):  # producers come first
        if nest.at is not None and nest.at[0] in out:
            out.add(nest.name)
    return out


def ranges_used(kernel: Kernel, names: Iterable[str]) -> set[Expr]:
    """The ranges that the expressions of some nests vary with."""
    return {r for n in names for e in expressions(kernel.by_name[n]) for r in e.ranges}


def is_ordered(kernel: Kernel, name: str) -> bool:
    """True if a root nest and another one use memory that one of them stores to.

    One must then be done before the other, such as the zeros that a SCATTER adds to. Chunks are
    done in any order.
    """
    mine = descendants(kernel, name)
    return not _are_apart(kernel, mine, kernel.by_name.keys() - mine)


def are_apart(kernel: Kernel, first: str, second: str) -> bool:
    """True if neither of two root nests loads or stores memory that the other one stores to.

    The nests that hang in them count too.
    """
    return _are_apart(kernel, descendants(kernel, first), descendants(kernel, second))


def _are_apart(kernel: Kernel, names: Set[str], others: Set[str]) -> bool:
    used, stored = _slots_of(kernel, names)
    used_there, stored_there = _slots_of(kernel, others)
    return not (stored & used_there or stored_there & used)


def _slots_of(kernel: Kernel, names: Set[str]) -> tuple[set[int], set[int]]:
    """The slots that some nests load or store, and the slots that they store."""
    nests = [kernel.by_name[name] for name in names]
    stored = {c.store.slot for nest in nests for c in nest.computes if c.store is not None}
    loaded = {e.arg for nest in nests for e in nest.nodes if e.op is ExprOp.LOAD}
    return stored | loaded, stored


def mapped(nest: Nest, mapping: Mapping[Expr, Expr]) -> Nest:
    """A nest with parts of its expressions replaced."""
    computes = tuple([_map_compute(c, mapping) for c in nest.computes])
    loops = tuple([loop.mapped(mapping) for loop in nest.loops])
    is_same = all(map(is_, computes, nest.computes)) and all(map(is_, loops, nest.loops))
    return nest if is_same else replace(nest, computes=computes, loops=loops)


def _map_compute(c: Compute, mapping: Mapping[Expr, Expr]) -> Compute:
    old = [c.value] if c.store is None else [c.value, c.store.index, c.store.valid]
    if c.initial is not None:
        old.append(c.initial)
    new = substitute(old, mapping)
    if new == old:
        return c
    initial = None if c.initial is None else new.pop()
    value, *place = new
    store = None if c.store is None else replace(c.store, index=place[0], valid=place[1])
    return replace(c, value=value, store=store, initial=initial)


def map_all(kernel: Kernel, mapping: Mapping[Expr, Expr]) -> Kernel:
    return replace(kernel, nests=tuple(mapped(n, mapping) for n in kernel.nests))


def map_reads(
    kernel: Kernel, names: set[str], new: Callable[[Expr], Expr], skip: Set[str] = frozenset()
) -> Kernel:
    """Replace the READs of some names everywhere but in the nests of `skip`."""
    if not names:
        return kernel
    nests = []
    for nest in kernel.nests:
        found = [e for e in nest.reads if e.arg in names]
        if found and nest.name not in skip:
            nest = mapped(nest, {e: new(e) for e in found})
        nests.append(nest)
    return replace(kernel, nests=tuple(nests))


def move_children(kernel: Kernel, nest_name: str, new_depth: Callable[[int], int]) -> Kernel:
    nests = []
    for n in kernel.nests:
        if n.at is not None and n.at[0] == nest_name:
            n = replace(n, at=(nest_name, new_depth(n.at[1])))
        nests.append(n)
    return replace(kernel, nests=tuple(nests))
