"""Reduces for thread blocks: rows that are contiguous in memory, and columns that are not.

All nests that hang at one place of a root, and the root's own loops there, run along the axis of
the sums. Some threads of a block share that axis, and combine their partial results; the others
take other results. For rows, neighbouring threads take neighbouring vectors of a row. For columns,
they take neighbouring columns, 16 bytes each if all accesses stay aligned. Each thread keeps its
part of the elements that several nests load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Kind
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.nests import shared_row
from ferrule.codegen.schedules.gpu.streams import MIN_SIDE, aligned_lanes, last
from ferrule.ir.expr import Expr, ExprOp, toposort
from ferrule.ir.target import LINE_BYTES

# Not measured unless a figure is given: chosen from registers and from NVRTC's machine code
# (docs/design/experiments.md, Rows, and sums in parts).
MAX_REGISTER_VALUES = 64
"""Values of one row that a thread has in registers."""
UNROLLED_LOADS = 8
"""Loads of a row that a thread begins before it needs the first."""
LOADS_AHEAD = UNROLLED_LOADS // 2
"""The same in a loop over a longer row."""
PIECE_VALUES = 16
"""Values of a piece of a row that a thread has in registers, if it cannot have them all."""
MAX_PIECES = 16
"""Pieces of a row: with each, the error of a sum may grow by that of a power."""
MIN_CONTIGUOUS = 4
"""Elements along an axis that count as contiguous."""
MIN_TERMS = 4
"""Terms of one thread, if several share a sum."""


@final
@dataclass(frozen=True)
class Layout:
    """The layout of a block's threads: `results` by `along` threads.

    Each thread takes `lanes` terms at a time, of `near` results. With `across`, neighbouring
    threads have neighbouring results. A thread begins the loads of `ahead` turns before it needs
    the first, if it has more turns than it can unroll.
    """

    results: int
    along: int
    lanes: int
    across: bool
    near: int = 1
    ahead: int = LOADS_AHEAD
    terms: int = 1

    @property
    def result_step(self) -> int:
        return 1 if self.across else self.along

    @property
    def along_step(self) -> int:
        return self.results if self.across else 1


def schedule_reduces(plan: Plan, name: str, more: int = 1) -> bool:
    """Schedule blocks and threads for a root and its reduces; False if they do not suit.

    With `more`, so many times the usual number of threads share a sum.
    """
    below = plan.below(name)
    depth = place_of_all(plan, name, below)
    if depth is None:
        return False
    column = column_of(plan, name, below, depth)
    layout = layout_of(plan, name, below, depth, column)
    if more > 1:
        along = more * layout.along
        if along > min(plan.target.block_threads, layout.terms // layout.lanes):
            return False
        results = max(1, layout.results // more)
        layout = replace(layout, along=along, results=results)
    family = [*below, *([name] if len(plan.nest(name).loops) > depth else [])]
    if column is not None:
        last(plan, name, column, depth)
    if column is not None and layout.near > 1:
        _take_neighbours(plan, name, below[0], column, layout)
    _share_results(plan, name, depth, layout)
    depth = min(depth, 1) + (layout.results > 1)
    if column is None and _in_pieces(plan, below, layout):
        family = [n for n in family if n not in below]
    if layout.near == 1 and family:
        _stage_shared(plan, family, name, depth, layout)
    for nest in [n.name for n in plan.kernel.nests if n.at == (name, depth)]:
        if plan.nest(nest).computes[0].carried_by is None:
            _share_out(plan, nest, layout)
    if name in family:
        _share_out(plan, name, layout)
    return True


def _in_pieces(plan: Plan, below: Sequence[str], layout: Layout) -> bool:
    """Let reduces that need one another go along their rows together, a piece at a time.

    For rows that are too long for registers: each element is loaded once for all of the reduces.
    """
    sizes = [plan.nest(n).loops[-1].range.size for n in below]
    piece = layout.along * PIECE_VALUES
    if len(below) < 2 or not all(s is sizes[0] and s.is_const for s in sizes):
        return False
    if not MAX_REGISTER_VALUES * layout.along < sizes[0].max <= MAX_PIECES * piece or any(
        len(plan.nest(n).loops) > 1 for n in below
    ):
        return False
    if not _loaded_again(plan, below):
        return False
    if sizes[0].max % piece:  # a piece that ends early has an incomplete vector
        layout = replace(layout, lanes=1)

    def run(plan: Plan) -> bool:
        for n in below:
            plan.do("split", n, plan.loops(n)[-1], piece, "mask")
        plan.do("fuse_reduces", below[-1])
        _stage_shared(plan, below, below[-1], 1, layout)
        for n in [n.name for n in plan.kernel.nests if n.at == (below[-1], 1)]:
            _share_out(plan, n, layout)
        _share_out(plan, below[-1], layout)
        return True

    return plan.attempt(run)


def place_of_all(plan: Plan, name: str, below: Sequence[str]) -> int | None:
    """The number of a root's loops around all its reduces; None if these hang at several places."""
    places = {plan.nest(n).at for n in below}
    if len(places) > 1:
        return None
    ((root, depth),) = [at for at in places if at is not None]
    return depth if root == name else None


def column_of(plan: Plan, name: str, below: Sequence[str], depth: int) -> Expr | None:
    """The loop of the results along which most loads of the reduces are contiguous.

    None if they are contiguous along the terms.
    """
    found = [
        (e, plan.nest(n).loops[-1].range)
        for n in below
        for c in plan.nest(n).computes
        for e in loads(c.value)
    ]
    across = sum(_elements(e) for e, term in found if _unit_step(e, term))
    along = {
        loop.range: sum(_elements(e) for e, _ in found if _unit_step(e, loop.range))
        for loop in plan.nest(name).loops[:depth]
    }
    best = max(along, key=along.__getitem__, default=None)
    return best if best is not None and along[best] > across else None


def _elements(e: Expr) -> int:
    """About the number of different elements of a load."""
    return prod(r.size.max for r in e.ranges)


def _unit_step(e: Expr, r: Expr) -> bool:
    return r.size.max >= MIN_CONTIGUOUS and step_of(e.src[0], r) == 1


# -- how many threads ------------------------------------------------------------------------------


def layout_of(
    plan: Plan, name: str, below: Sequence[str], depth: int, column: Expr | None
) -> Layout:
    """The layout of a block's threads, from the sizes and the target alone."""
    loops = plan.nest(name).loops
    results = prod(loop.range.size.max for loop in loops[:depth])
    nests = [plan.nest(n) for n in below]
    own = [loop.range for nest in nests for loop in nest.loops[-1:]]
    own += [loop.range for loop in loops[depth:][-1:]]
    terms = max(r.size.max for r in own)
    if column is not None:
        return _columns(plan, results, terms, _near(plan, name, below, depth, column))
    family = [*zip(nests, (nest.loops[-1].range for nest in nests), strict=True)]
    if len(loops) > depth:
        family.append((plan.nest(name), loops[-1].range))
    lanes = gcd(*(aligned_lanes(nest, r) for nest, r in family))
    return _rows(plan, results, -(-terms // lanes), lanes)


def _rows(plan: Plan, results: int, vectors: int, lanes: int) -> Layout:
    """The layout for rows: a row has the fewest threads that hold it in registers, a warp at least.
    It has more if there are few rows.
    """
    target = plan.target
    held = min(UNROLLED_LOADS, MAX_REGISTER_VALUES // lanes)
    along = 1
    while (
        along < vectors
        and 2 * along <= target.block_threads
        and (along < target.warp or vectors > along * held or 2 * results * along < _resident(plan))
    ):
        along *= 2
    terms = vectors * lanes
    return Layout(_spread(plan, results, along), along, lanes, across=False, terms=terms)


def _resident(plan: Plan) -> int:
    """The number of threads that run at once."""
    return plan.target.max_threads * plan.target.block_threads


def _spread(plan: Plan, results: int, along: int) -> int:
    """The number of results of a block: as many as fill it, if enough blocks are left."""
    count = 1
    while count < results and 2 * count * along <= plan.target.block_threads:
        blocks = results // (2 * count)
        if count * along >= plan.target.warp and blocks < plan.target.max_threads:
            break
        count *= 2
    return count


def _columns(plan: Plan, results: int, terms: int, near: int) -> Layout:
    """The layout for columns: blocks fill the multiprocessors, their columns fill lines
    of memory.
    """
    block = plan.target.block_threads
    results = -(-results // near)
    least = max(MIN_SIDE, LINE_BYTES // 4 // near)
    count = 1
    while count < min(results, max(plan.target.warp, least)):
        count *= 2
    while count > least and results < count * plan.target.max_threads:
        if 2 * MIN_TERMS * (block // count) > terms:
            break
        count //= 2
    along = 1
    while (
        count * along < block and MIN_TERMS * along <= terms and results * along < _resident(plan)
    ):
        along *= 2
    count = max(count, _spread(plan, results, along))
    ahead = _ahead(plan, -(-results // count) * count * along, terms // along, near)
    return Layout(count, along, 1, across=True, near=near, ahead=ahead, terms=terms)


def _ahead(plan: Plan, threads: int, turns: int, near: int) -> int:
    """The number of loads that each thread has under way: together they hide the latency of memory,
    which is twice as long where memory is busy.
    """
    target = plan.target
    speed = target.bytes_per_second * target.max_threads / target.clock
    under_way = 2 * target.block_speeds.load_latency * speed
    ahead = LOADS_AHEAD
    while ahead * threads * MAX_ACCESS_BYTES < under_way and 2 * ahead <= min(
        MAX_REGISTER_VALUES // near, turns // 2
    ):
        ahead *= 2
    return ahead


def _near(plan: Plan, name: str, below: Sequence[str], depth: int, column: Expr) -> int:
    """The number of neighbouring results of one thread: as many as one load gives it."""
    if len(below) > 1 or len(plan.nest(name).loops) > depth or depth == 0:
        return 1
    return gcd(*(aligned_lanes(plan.nest(n), column) for n in (name, *below)))


# -- threads and blocks ----------------------------------------------------------------------------


def _take_neighbours(plan: Plan, name: str, reduce: str, column: Expr, layout: Layout) -> None:
    """Give each thread neighbouring results, as lanes of the reduce and of the root."""
    depth = len(plan.nest(name).loops)
    _, near = plan.split(name, column, layout.near)
    plan.do("compute_at", reduce, depth)
    for nest, lane in ((name, near), (reduce, plan.copy_of(near, reduce))):
        plan.do("vectorize", nest, lane)


def _share_results(plan: Plan, name: str, depth: int, layout: Layout) -> None:
    """Make the loops of the results blocks, and threads of a block."""
    if depth == 0:
        return
    flat = plan.fuse_first(name, depth)
    if layout.results > 1:
        flat, thread = plan.split(name, flat, layout.results, "mask")
        plan.do("bind", name, thread, "thread", layout.result_step)
    plan.do("parallel", name, flat)


def _share_out(plan: Plan, name: str, layout: Layout) -> None:
    """Bind threads along the last loop of a nest, and unroll the part of one thread."""
    r = [o.range for o in plan.nest(name).loops if o.kind is Kind.SERIAL][-1]
    if layout.lanes > 1:
        r, lane = plan.split(name, r, layout.lanes)
        plan.do("vectorize", name, lane)
    if layout.along > 1:
        rounds = -(-r.size.max // layout.along)
        tail = "mask" if _few(plan, name, r, rounds, layout) else "peel"
        r, thread = plan.split(name, r, layout.along, tail)
        plan.do("bind", name, thread, "thread", layout.along_step)
        _before(plan, name, thread, r)
    _copies(plan, name, r, layout)


def _few(plan: Plan, name: str, r: Expr, rounds: int, layout: Layout) -> bool:
    """True if one thread's part is unrolled as a whole."""
    most = MAX_REGISTER_VALUES if _reads_stages(plan, name) else UNROLLED_LOADS * layout.lanes
    return r.size.is_const and rounds * layout.lanes <= most


def _reads_stages(plan: Plan, name: str) -> bool:
    """True if a nest computes or reads stages that a thread has in registers."""
    nest = plan.nest(name)
    own = any(c.ranges and c.monoid is None and c.store is None for c in nest.computes)
    return own or any(e.src for e in nest.reads)


def _before(plan: Plan, name: str, outer: Expr, inner: Expr) -> None:
    """Move a loop directly before another."""
    loops = plan.loops(name)
    loops.remove(outer)
    loops.insert(loops.index(inner), outer)
    plan.do("reorder", name, loops)


def _copies(plan: Plan, name: str, r: Expr, layout: Layout) -> None:
    """Unroll the part of one thread: all of it, or a few turns at a time."""
    if _few(plan, name, r, r.size.max, layout):
        plan.do("unroll", name, r)
        return
    _, load = plan.split(name, r, layout.ahead, "peel")
    plan.do("unroll", name, load)


# -- stages in registers --------------------------------------------------------------------------


def _stage_shared(plan: Plan, family: Sequence[str], name: str, depth: int, layout: Layout) -> None:
    """Load once the elements that several nests load, and compute once the costly values."""
    sizes = [plan.nest(n).loops[-1].range.size for n in family]
    part = max(-(-size.max // (layout.along * layout.lanes)) * layout.lanes for size in sizes)
    if not all(size.is_const for size in sizes):
        return
    left = MAX_REGISTER_VALUES // part
    for first, e in _loaded_again(plan, family):
        # A load whose index is loaded too may have gone with that load's copy.
        if left > 0 and e in _all_loads(plan, first):
            _stage(plan, family, first, e, (name, depth))
            left -= 1
    for n in reversed(family[:-1]):
        if left > 0 and name in family and shared_row(plan.kernel, plan.nest(n), plan.nest(name)):
            plan.do("stage_row", n, name)
            left -= 1


def _loaded_again(plan: Plan, family: Sequence[str]) -> list[tuple[str, Expr]]:
    """The loads that several nests do along their last loops: (the first of these nests, its load).

    A load comes before the loads inside of its index.
    """
    first: dict[Expr, tuple[str, Expr]] = {}
    out: dict[Expr, tuple[str, Expr]] = {}
    axis = plan.nest(family[0]).loops[-1].range
    for n in family:
        nest = plan.nest(n)
        r = nest.loops[-1].range
        if r.size is not axis.size:
            continue
        for e in dict.fromkeys(e for c in nest.computes for e in loads(c.value)):
            inner = {loop.range for loop in nest.loops if loop.kind is Kind.SERIAL}
            inner -= {c.carried_by for c in nest.computes}  # one piece is open
            if e.ranges & inner != {r} or len(e.src) != 2:
                continue
            key = e.substitute({r: axis})
            if key in first:
                out[key] = first[key]
            first.setdefault(key, (n, e))
    found = list(out.values())
    return sorted(found, key=lambda pair: sum(pair[1] in toposort([e]) for _, e in found))


def _stage(plan: Plan, family: Sequence[str], first: str, e: Expr, place: tuple[str, int]) -> None:
    """Copy a load of a nest for all nests that have it."""
    axis = plan.nest(first).loops[-1].range
    copy = plan.kernel.free_name(f"{first}.x", numbered=True)
    plan.do("stage", first, e.arg, *place, (axis,), copy, plan.number(first, e))
    for n in family:
        r = plan.nest(n).loops[-1].range
        same = e.substitute({axis: r})
        if n != first and same in _all_loads(plan, n):
            plan.do("reuse", n, e.arg, copy, plan.number(n, same))


def _all_loads(plan: Plan, name: str) -> list[Expr]:
    return [e for e in plan.nest(name).nodes if e.op is ExprOp.LOAD]
