"""The checker of kernels: every range is open where it is used, every value is ready where it is
read.
"""

from __future__ import annotations

from ferrule.codegen.kernel import (
    LANES_OR_COPIES,
    Compute,
    Kernel,
    KernelError,
    Kind,
    Nest,
    Store,
    can_overwrite,
    expressions,
    reads,
    why_not_pipelined,
)
from ferrule.ir.expr import Expr, ExprOp, conjuncts, less, toposort


def verify(kernel: Kernel) -> None:
    """Check that every range is open where it is used and every value is ready where it is read.

    Raises:
        KernelError: it is not.
    """
    position = {nest.name: i for i, nest in enumerate(kernel.nests)}
    if len(position) != len(kernel.nests):
        raise KernelError(f"two nests of one name in {sorted(n.name for n in kernel.nests)}")
    seen_ranges: set[Expr] = set()
    for nest in kernel.nests:
        if nest.at is not None:
            parent = kernel.by_name.get(nest.at[0])
            if parent is None or nest.at[1] > len(parent.loops):
                raise KernelError(f"nest {nest.name} hangs at {nest.at}, which is no place")
            if position[nest.at[0]] < position[nest.name]:
                raise KernelError(f"nest {nest.name} comes after {nest.at[0]}, which reads it")
        _verify_nest(kernel, nest, seen_ranges)
    _verify_stores(kernel)


def _verify_stores(kernel: Kernel) -> None:
    """Check that no root nest loads elements that another one stores at a wrong time.

    A later root would find them changed. An earlier one would race with the store if both are
    shared out, as no chunk waits for another. An element that a nest adds to is an exception.
    """
    roots = kernel.roots
    if len(roots) < 2:
        return
    root_of: dict[str, Nest] = {}
    loaded: dict[str, dict[int, list[Expr]]] = {root.name: {} for root in roots}
    stored: dict[str, dict[int, list[Store]]] = {root.name: {} for root in roots}
    for nest in reversed(kernel.nests):
        root = root_of[nest.name] = nest if nest.at is None else root_of[nest.at[0]]
        for e in nest.nodes:
            if e.op is ExprOp.LOAD:
                loaded[root.name].setdefault(e.arg, []).append(e.src[0])
        for store in (c.store for c in nest.computes if c.store is not None):
            stored[root.name].setdefault(store.slot, []).append(store)
    for number, writer in enumerate(roots):
        for place, reader in enumerate(roots):
            is_done_before = place < number and not (writer.is_shared_out and reader.is_shared_out)
            if reader is writer or is_done_before:
                continue
            for slot in stored[writer.name].keys() & loaded[reader.name].keys():
                own = stored[reader.name].get(slot, [])
                indices = [
                    index
                    for index in loaded[reader.name][slot]
                    if not any(_is_place_of(store, index) for store in own)
                ]
                changed = [store.index for store in stored[writer.name][slot]]
                if any(_may_overlap(a, b) for a in indices for b in changed):
                    raise KernelError(
                        f"{reader.name} loads from b{slot}, which {writer.name} changes"
                    )


def _is_place_of(store: Store, index: Expr) -> bool:
    """True if an index is the place of a store, whenever that stores anything.

    Beyond the end of an incomplete tile, loads are clamped and nothing is stored.
    """
    inside = set(conjuncts(store.valid))
    clamped = [e for e in toposort([index, store.index]) if e.op is ExprOp.MIN]
    exact = {e: e.src[0] for e in clamped if less(e.src[0], e.src[1] + 1) in inside}
    return index.substitute(exact) is store.index.substitute(exact)


def _may_overlap(a: Expr, b: Expr) -> bool:
    return a.min <= b.max and b.min <= a.max


def _verify_nest(kernel: Kernel, nest: Nest, seen_ranges: set[Expr]) -> None:
    path = kernel.path(nest)
    for owner, _, loop in path:
        if owner != nest.name and loop.kind in LANES_OR_COPIES:
            raise KernelError(
                f"nest {nest.name} is computed inside of {loop.range}, which is {loop.kind.name}: "
                "one computation would stand for all of its iterations"
            )
    open_ranges = {loop.range for _, _, loop in path}
    _verify_loops(kernel, nest, open_ranges, seen_ranges)
    for e in expressions(nest):
        unbound = e.ranges - open_ranges
        if unbound:
            raise KernelError(
                f"nest {nest.name}: ranges {sorted(r.name for r in unbound)} are not open"
            )
    for c in nest.computes:
        _verify_compute(kernel, nest, c)
    _verify_reads(kernel, nest)


def _verify_loops(
    kernel: Kernel, nest: Nest, open_ranges: set[Expr], seen_ranges: set[Expr]
) -> None:
    for loop in nest.loops:
        if loop.range in seen_ranges:
            raise KernelError(f"range {loop.range} is a loop twice")
        seen_ranges.add(loop.range)
        if loop.kind in LANES_OR_COPIES and not loop.range.size.is_const:
            raise KernelError(f"loop {loop.range} of unknown size is {loop.kind.name}")
    for depth, loop in enumerate(nest.loops):
        inside = {inner.range for inner in nest.loops[depth:]}
        for bound in (loop.start, loop.end, loop.bitmask, *(s.end for s in loop.segments)):
            if bound is not None and not bound.ranges <= open_ranges - inside:
                raise KernelError(f"the bounds of loop {loop.range} are not known where it begins")
        if loop.bitmask is not None and not _has_bitmask(kernel, nest, depth):
            raise KernelError(f"the bitmask of loop {loop.range} is not known where it begins")


def _verify_compute(kernel: Kernel, nest: Nest, c: Compute) -> None:
    if c.carried_by is not None and c.carried_by not in _may_carry(kernel, nest):
        raise KernelError(f"{c.carried_by} cannot carry {c.name}: it is no loop that it is in")
    for r in c.ranges:
        if r not in nest.loop_ranges:
            raise KernelError(f"{c.name}: axis {r} is no loop of its nest")
    if c.pipeline_depth > 1 and (problem := why_not_pipelined(kernel, nest)):
        raise KernelError(f"{c.name} has a pipeline of depth {c.pipeline_depth}, but {problem}")
    if c.overwrites is not None and not can_overwrite(kernel, c.name, c.overwrites):
        raise KernelError(f"{c.name} overwrites {c.overwrites}, which is read at another place")


def _verify_reads(kernel: Kernel, nest: Nest) -> None:
    places = _places(kernel, nest)
    for read in nest.reads:
        source = kernel.computes.get(read.arg)
        if source is None:
            raise KernelError(f"{nest.name} reads {read.arg}, which nothing computes")
        if len(read.src) != len(source.ranges):
            raise KernelError(
                f"{nest.name} reads {read.arg} with {len(read.src)} indices of {len(source.ranges)}"
            )
        made_at = _ready_at(kernel, source)
        if made_at is not None and places.get(made_at[0], -1) < made_at[1]:
            raise KernelError(
                f"{nest.name} reads {read.arg} where it is not computed yet: {made_at}"
            )


def _has_bitmask(kernel: Kernel, nest: Nest, depth: int) -> bool:
    """True if the bitmask of a loop is computed before the loop begins."""
    loop = nest.loops[depth]
    assert loop.bitmask is not None
    found = [kernel.owner[e.arg].at for e in reads([loop.bitmask]) if e.arg in kernel.owner]
    return loop.kind is Kind.SERIAL and all(
        at is not None and (at[0] != nest.name or at[1] <= depth) for at in found
    )


def _may_carry(kernel: Kernel, nest: Nest) -> list[Expr]:
    """The loops that may carry a nest's reduces: its first, or the one that it hangs in."""
    around = kernel.by_name[nest.at[0]].loops[: nest.at[1]] if nest.at is not None else ()
    return [loop.range for loop in (*nest.loops[:1], *around[-1:])]


def _ready_at(kernel: Kernel, c: Compute) -> tuple[str, int] | None:
    """The place from which on a compute's value is known: after the loop that carries it, if one
    does.
    """
    owner = kernel.owner[c.name]
    if c.carried_by is not None and owner.at is not None and c.carried_by not in owner.loop_ranges:
        owner = kernel.by_name[owner.at[0]]
    return owner.at


def _places(kernel: Kernel, nest: Nest) -> dict[str, int]:
    """The number of open loops around a nest's body, for the nest and for those that it
    hangs in.
    """
    places = {nest.name: len(nest.loops)}
    while nest.at is not None:
        places[nest.at[0]] = nest.at[1]
        nest = kernel.by_name[nest.at[0]]
    return places
