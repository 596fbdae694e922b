"""Primitives for running totals: a reduce over everything up to an element, as one that the loop
over the elements carries.

The total of a window that ends with each element, and is as long as the axis, takes n * n / 2
operations as it stands. As each total is that of the element before and one more, n operations are
enough. In lanes a vector takes log2(lanes) steps, in each of which a lane adds the total of the
lane 1, 2, 4, ... before it. Then all lanes add the total of the vectors before.
"""

from __future__ import annotations

from dataclasses import replace

from ferrule.codegen.kernel import Kernel, Kind, Nest
from ferrule.codegen.primitives.editing import ScheduleError, depth_of, nest_of
from ferrule.codegen.primitives.kinds import vectorize
from ferrule.codegen.primitives.loops import split
from ferrule.codegen.primitives.nests import compute_at
from ferrule.ir.expr import Expr, ExprOp, as_int, both, const, range_, sint, toposort


def scan(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Let a loop carry a reduce over all elements up to each of its iterations.

    `for i in n: for k in n: s sum= x[i + k - n + 1] if i + k >= n - 1; b[i] = s` -> `for i in n: s
    sum= x[i] carried by i; b[i] = s`. The reduce hangs right inside of that loop. If it starts
    again after every n iterations of a longer loop, this loop is split by n. Re-associates.
    """
    nest = nest_of(kernel, nest_name)
    root = nest_of(kernel, nest.at[0]) if nest.at is not None else nest
    depth = depth_of(kernel, root, name)
    r = root.loops[depth].range
    length = scanned(nest, r)
    if length is None or nest.at != (root.name, depth + 1) or root.at is not None:
        raise ScheduleError(
            f"scan({nest_name}, {name}) in kernel {kernel.name}: it is no reduce right inside of "
            f"{name} over a window that ends with each element and begins before the first"
        )
    (c,) = nest.computes
    (k,) = nest.loop_ranges
    last = replace(c, value=c.value.substitute({k: k.size - 1}))
    kernel = kernel.with_nest(replace(nest, computes=(last,), loops=()))
    if isinstance(length, int) and r.size.max > length:
        kernel = split(kernel, root.name, name, length, "mask")
        r = nest_of(kernel, root.name).loops[depth + 1].range
    return _carried_by(kernel, nest_name, r)


def scanned(nest: Nest, r: Expr) -> sint | None:
    """The number of iterations of a loop up to each of which a reduce combines; None if it is no
    such reduce.

    It is the loop's size, which may be symbolic, or that of the parts in which the reduce starts
    again. The terms decide, whatever the tree was; `ir.lazyop.running_axis` describes trees.
    """
    if len(nest.computes) != 1 or len(nest.loops) != 1 or nest.loops[0].kind is not Kind.SERIAL:
        return None
    ((c,), (k,)) = nest.computes, nest.loop_ranges
    if c.monoid is None or c.ranges or c.carried_by is not None:
        return None
    ends = any(e.op is ExprOp.CMPLT and {r, k} <= e.ranges for e in toposort([c.value]))
    whole = k.size is r.size
    if not ends or not (whole or (k.size.is_const and r.size.is_const)):
        return None
    length = as_int(r.size) if whole else min(int(k.size.arg), int(r.size.arg))
    parts, inside = range_("parts", -(-r.size // length)), range_("inside", length)
    place = inside if whole or r.size.arg <= length else parts * length + inside
    value = c.value.substitute({r: place})
    # k is that of the term that is `other` elements into this part, or `before` it
    other, before = range_("other", length), range_("before", k.size - 1)
    term = value.substitute({k: other - inside + (k.size - 1)})
    own = value.substitute({k: k.size - 1}).substitute({inside: other})
    none = value.substitute({k: const(-1) - before - inside + (k.size - 1)})
    runs = term is own and none is c.monoid.identity(c.value.dtype)
    return length if runs else None


def prefix(kernel: Kernel, nest_name: str, lanes: int) -> Kernel:
    """Scan by vectors: the loop that carries a reduce is split, its inner part is lanes.

    `for i: s sum= x[i] carried by i; b[i] = s` -> `for i.o: for i.i in lanes: s[i.i] sum= x[i.o *
    lanes + i.i] carried by i.o scanning lanes i.i; for i.i in lanes: b[…] = s[i.i]`. Re-associates.
    """
    nest = nest_of(kernel, nest_name)
    (c, *others) = nest.computes
    plain = nest.at is not None and not others and not nest.loops and c.initial is None
    carried = plain and c.carried_by is not None and c.carried_by in c.value.ranges
    if c.carried_by is None or not carried or lanes < 2 or lanes & (lanes - 1):
        raise ScheduleError(
            f"prefix({nest_name}, {lanes}) in kernel {kernel.name}: the loop that it hangs "
            "in does not carry it alone, its terms do not vary with that, or the lanes are no "
            "power of two"
        )
    assert nest.at is not None
    root, depth = nest.at
    name = c.carried_by.name
    kernel = kernel.with_nest(replace(nest, computes=(replace(c, carried_by=None),)))
    kernel = split(kernel, root, name, lanes, "peel")
    scan_lanes = nest_of(kernel, root).loops[depth].range
    kernel = vectorize(kernel, root, scan_lanes.name)
    # A term that is the same for all elements is still added once for each lane.
    kernel = compute_at(kernel, nest_name, depth, always=scan_lanes)
    kernel = _peeled_alike(kernel, root, depth - 1, nest_of(kernel, nest_name))
    return _carried_by(kernel, nest_name, nest_of(kernel, root).loops[depth - 1].range)


def _peeled_alike(kernel: Kernel, root_name: str, depth: int, nest: Nest) -> Kernel:
    """Let the peel condition of a loop hold for the lanes of a nest in it as for its own."""
    root = nest_of(kernel, root_name)
    outer, inner = root.loops[depth : depth + 2]
    if outer.peel is None:
        return kernel
    peel = both(outer.peel, outer.peel.substitute({inner.range: nest.loops[0].range}))
    loops = (*root.loops[:depth], replace(outer, peel=peel), *root.loops[depth + 1 :])
    return kernel.with_nest(replace(root, loops=loops))


def _carried_by(kernel: Kernel, nest_name: str, loop: Expr) -> Kernel:
    nest = nest_of(kernel, nest_name)
    (c,) = nest.computes
    scan_lanes = nest.loops[0].range if nest.loops else None
    return kernel.with_nest(
        replace(nest, computes=(replace(c, carried_by=loop, scan_lanes=scan_lanes),))
    )
