"""Primitives for how a loop is run: as lanes, copies, threads or the kernel's chunks."""

from __future__ import annotations

from dataclasses import replace

from ferrule.codegen.analysis.injective_stores import is_injective, is_injective_index
from ferrule.codegen.kernel import Kernel, Kind, Nest, scatters
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    depth_of,
    is_combined,
    is_ordered,
    nest_of,
    refuse_carried,
    stores_in,
)
from ferrule.ir.expr import Expr, ExprOp


def vectorize(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Make the iterations of a loop the lanes of vectors. Its size is constant. Exact."""
    return set_kind(kernel, nest_name, name, Kind.VECTOR)


def unroll(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Make the iterations of a loop copies of its body. Its size is constant. Exact."""
    return set_kind(kernel, nest_name, name, Kind.UNROLL)


def transpose(kernel: Kernel, nest_name: str, along: str, across: str) -> Kernel:
    """Compute a square of values as vectors along one range, and store it along the other.

    Both are the last loops, of one constant size, a power of two. Exact.
    """
    nest = nest_of(kernel, nest_name)
    last = nest.loops[-2:]
    sizes = [loop.range.size for loop in last]
    fits = [loop.range.name for loop in last] == [along, across] and sizes[0] is sizes[-1]
    plain = all(c.monoid is None for c in nest.computes)
    if not (fits and plain and sizes[0].is_const and sizes[0].arg & (sizes[0].arg - 1) == 0):
        raise ScheduleError(
            f"transpose({along}, {across}) in kernel {kernel.name}: these must be the last two "
            f"loops, of one size that is a power of two, and reduce nothing; {nest_name} ends "
            f"with {[loop.range.name for loop in last]}"
        )
    transposed = (replace(last[0], kind=Kind.TRANSPOSE), replace(last[1], kind=Kind.VECTOR))
    return kernel.with_nest(replace(nest, loops=(*nest.loops[:-2], *transposed)))


def parallel(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Make the iterations of a root nest's outermost loop the kernel's chunks. Exact."""
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    if nest.at is not None or depth != 0 or is_combined(nest, nest.loops[0].range):
        raise ScheduleError(
            f"parallel({name}) in kernel {kernel.name}: only the outermost loop of a root nest "
            "can be shared out"
        )
    r = nest.loops[0].range
    for inner in kernel.nests:
        for c in inner.computes:
            if inner is nest or c.store is None or not stores_in(kernel, inner, r):
                continue
            steps = c.store.index.linear()[0]
            of_sizes = any(not x.ranges.isdisjoint({r}) and x.op is ExprOp.MUL for x in steps)
            apart = steps.get(r, 0) != 0 or is_injective(c.store, r)
            if not apart and not (of_sizes and is_injective_index(c.store.index, r)):
                raise ScheduleError(
                    f"parallel({name}) in kernel {kernel.name}: {inner.name} is stored to one "
                    f"place in several iterations of {name}; share out fewer loops"
                )
    shared = set_kind(kernel, nest_name, name, Kind.PARALLEL)
    if is_ordered(kernel, nest_name):
        raise ScheduleError(
            f"parallel({name}) in kernel {kernel.name}: {nest_name} and another nest use memory "
            "that one of them stores to, and chunks are done in any order; leave its loops serial"
        )
    return shared


def bind(
    kernel: Kernel, nest_name: str, name: str, axis: str = "thread", step: int | None = None
) -> Kernel:
    """Give each thread of a block one iteration of a loop; with the axis "block", see `parallel`.

    Threads whose numbers are `step` apart do neighbouring iterations. Without a `step`, the loops
    around a nest are the digits of the thread's number, the outermost the highest.

    Binding a loop that is combined over re-associates, and takes a power of two of threads.
    Otherwise exact.
    """
    if axis == "block":
        return parallel(kernel, nest_name, name)
    if axis != "thread":
        raise ScheduleError(
            f"bind({name}, {axis!r}) in kernel {kernel.name}: the axis is thread or block"
        )
    kernel = set_kind(kernel, nest_name, name, Kind.THREAD)
    nest = nest_of(kernel, nest_name)
    loops = [replace(o, step=step) if o.range.name == name else o for o in nest.loops]
    return kernel.with_nest(replace(nest, loops=tuple(loops)))


def set_kind(kernel: Kernel, nest_name: str, name: str, kind: Kind) -> Kernel:
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    loop = nest.loops[depth]
    at_once = kind in (Kind.PARALLEL, Kind.VECTOR, Kind.THREAD)
    others = kind is not Kind.VECTOR  # lanes belong to one thread, which does the roots in order
    if at_once and scatters(nest) and not _is_free(kernel, nest, loop.range, others=others):
        raise ScheduleError(
            f"{kind.name.lower()}({name}) in kernel {kernel.name}: a value says where {nest_name} "
            "stores, and two iterations may store to one place; leave its loops serial"
        )
    if kind is not Kind.PARALLEL and not loop.range.size.is_const:
        raise ScheduleError(
            f"{kind.name.lower()}({name}) in kernel {kernel.name}: its size {loop.range.size} "
            "is not constant; split it first"
        )
    if loop.bitmask is not None:
        raise ScheduleError(
            f"{kind.name.lower()}({name}) in kernel {kernel.name}: only some of its iterations are "
            "run, and which is known when it begins; do it without `skip`"
        )
    refuse_carried(kernel, loop.range, f"{kind.name.lower()}({name})")
    loops = (*nest.loops[:depth], replace(loop, kind=kind), *nest.loops[depth + 1 :])
    return kernel.with_nest(replace(nest, loops=loops))


def _is_free(kernel: Kernel, nest: Nest, r: Expr, *, others: bool) -> bool:
    """True if the iterations of a loop store to different elements.

    With `others`, no other root may store to the same slots either.
    """
    stores = [c.store for c in nest.computes if c.store is not None]
    slots = {s.slot for s in stores}
    roots = [c.store for n in kernel.roots if n.name != nest.name for c in n.computes]
    if others and any(s is not None and s.slot in slots for s in roots):
        return False
    return all(is_injective(s, r) for s in stores)
