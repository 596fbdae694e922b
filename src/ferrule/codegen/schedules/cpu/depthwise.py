"""Depthwise convolutions: sums over a few taps of a window, with no channels to sum over.

A tile would have no operand to keep, so lanes run along memory and all taps are copies: a vector
that one tap loads serves the others. For the gradient of the taps every tap has a vector of partial
sums. If the processor has masked loads, the image is read in place, with masks at the border. Else
it is copied with its border, so that no load needs a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.window import distance, overlap
from ferrule.codegen.kernel import Nest
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.ir.expr import Expr

# Tuning constants, set between 2026-11-21 and 23 on Zen 4 (docs/design/experiments.md, Depthwise).
MAX_UNROLLED_TAPS = 64
"""Taps that are copies; if there are more, the outer axes of the taps stay loops."""
MAX_PARTIAL_SUMS = 32
"""Vectors of partial sums, one for each tap."""
MIN_ROWS = 4
"""Lines of results at a time, so that they share loads."""
MAX_ROWS = 8
"""Lines of results at a time: a multiply-add takes 4 cycles, and two begin in a cycle."""
MAX_UNROLLED_VECTORS = 8
"""Vectors of a line of a copy that are unrolled."""
MIN_POSITIONS = 5
"""Positions along memory that lanes are worth."""
MAX_MASKED_TAPS = 9
"""Taps with partial sums of their own that read in place: each needs mask registers."""


@dataclass(frozen=True)
class _Windows:
    """A load through windows: its positions (the longer ranges) and taps (the shorter), outermost
    first.
    """

    slot: int
    positions: tuple[Expr, ...]
    taps: tuple[Expr, ...]
    strides: tuple[int, ...]
    """For each position, its step in units of its tap's step."""


def schedule_taps(plan: Plan, name: str, reduce: str) -> bool:
    """Schedule the reduce inside of a root nest if it is a sum over taps; else False."""
    root, nest = plan.nest(name), plan.nest(reduce)
    result_axes = [loop.range for loop in root.loops]
    terms = [loop.range for loop in nest.loops]
    if any(not r.size.is_const for r in (*result_axes, *terms)):
        return False
    found = _through_windows(nest, result_axes, terms)
    if found is None:
        return False
    rest = [r for r in result_axes if r not in (*found.positions, *found.taps)]
    whole = all(tap in terms for tap in found.taps) and len(terms) == len(found.taps)
    if not _is_along_memory(nest, found):
        channel = _channel_along_memory(plan, nest, found, rest)
        return (
            channel is not None
            and whole
            and _sum_over_taps(plan, name, reduce, found, rest, channel)
        )
    data = [e for e in loads(nest.computes[0].value) if all(r in e.ranges for r in found.positions)]
    phases = [r for r in rest if not any(r in e.ranges for e in data)]
    rest = [r for r in rest if r not in phases]
    if any(r not in e.ranges for r in rest for e in data):
        return False
    if phases:
        return whole and _sum_in_phases(plan, name, reduce, found, rest, phases)
    if whole:
        return _sum_over_taps(plan, name, reduce, found, rest)
    if found.strides[-1] > 1 or found.taps[-1].size.arg > MAX_PARTIAL_SUMS:
        return False
    if all(tap in result_axes for tap in found.taps) and all(
        position in terms for position in found.positions
    ):
        return _sum_for_each_tap(plan, name, reduce, found, rest)
    return False


def _through_windows(
    nest: Nest, result_axes: Sequence[Expr], terms: Sequence[Expr]
) -> _Windows | None:
    """The windows of the only load that has some, each with a result axis and a summed range."""
    out = []
    for e in loads(nest.computes[0].value):
        pairs = [(a, b) for a in result_axes for b in terms if overlap(e, a, b)]
        if pairs:
            out.append((e, pairs))
    if len(out) != 1:
        return None
    element, pairs = out[0]
    if len({r for pair in pairs for r in pair}) != 2 * len(pairs):
        return None
    ordered = [sorted(pair, key=lambda r: -int(r.size.arg)) for pair in pairs]
    positions, taps = (tuple(pair[i] for pair in ordered) for i in (0, 1))
    sides = {tap in terms for tap in taps}
    index = element.src[0]
    steps = [(distance(index, a), distance(index, b)) for a, b in zip(positions, taps, strict=True)]
    if not all(tap for _, tap in steps):
        return None  # the index is no sum: a line that is circular, or reflected
    strides = tuple(max(1, position // tap) for position, tap in steps)
    return _Windows(element.arg, positions, taps, strides) if len(sides) == 1 else None


def _is_along_memory(nest: Nest, found: _Windows) -> bool:
    """True if all loads that vary with the last position are contiguous along it, or along its
    taps.
    """
    x = found.positions[-1]
    same_slot = sum(e.arg == found.slot for e in loads(nest.computes[0].value))
    contiguous = all(
        step_of(e.src[0], x) == (found.strides[-1] if e.arg == found.slot else 1)
        for e in loads(nest.computes[0].value)
        if x in e.ranges
    )
    return x.size.arg >= MIN_POSITIONS and contiguous and same_slot == 1


def _channel_along_memory(
    plan: Plan, nest: Nest, found: _Windows, rest: Sequence[Expr]
) -> Expr | None:
    """The range along which the windowed load is contiguous, if that is no position (channels
    last).

    None if another load varies with the last position too, or channels are too few.
    """
    x = found.positions[-1]
    varying = [e for e in loads(nest.computes[0].value) if x in e.ranges]
    if len(varying) != 1 or found.strides[-1] > 1 or x.size.arg < MIN_POSITIONS:
        return None
    channel = next((r for r in rest if step_of(varying[0].src[0], r) == 1), None)
    lanes = plan.lanes(nest, x.size.arg)
    return channel if channel is not None and channel.size.arg >= lanes > 1 else None


def _sum_over_taps(
    plan: Plan,
    name: str,
    reduce: str,
    found: _Windows,
    rest: Sequence[Expr],
    channel: Expr | None = None,
) -> bool:
    """Compute a vector of results at a time.

    If lanes are not adjacent but channels are, as many channels are copied together, transposed.
    """
    x = found.positions[-1]
    root = plan.nest(name)
    if found.taps[-1].size.arg > MAX_UNROLLED_TAPS:
        return False
    if any(step_of(c.store.index, x) != 1 for c in root.computes if c.store is not None):
        return False
    lanes = plan.lanes(plan.nest(reduce), x.size.arg)
    images = [r for r in rest if r is not channel]
    together, transposed = 1, None
    if channel is not None:
        together = lanes
        channels, transposed = plan.split(name, channel, together, "mask")
        images.append(channels)
    vectors, lane = plan.split(name, x, lanes, "mask")
    serial, copies = _split_lines(plan, name, found, _rows_together(found), images, together)
    if transposed is not None:
        serial.insert(0, transposed)
    for copy in copies:
        plan.do("unroll", name, copy)
    copies.append(lane)
    serial.append(vectors)
    plan.do("vectorize", name, lane)
    plan.do("reorder", name, (*images, *serial, *copies))
    plan.do("compute_at", reduce, len(images) + len(serial))
    phase = None
    if found.strides[-1] > 1:
        _, phase = plan.split(reduce, found.taps[-1], found.strides[-1], "mask")
    _unroll_taps(plan, reduce, found)
    if transposed is not None:
        _copy(plan, reduce, found, name, len(images), channel=transposed)
    elif not _reads_in_place(plan, found):
        _copy(plan, reduce, found, name, len(images), phase)
    plan.share(name, len(images))
    return True


def _reads_in_place(plan: Plan, found: _Windows) -> bool:
    """True if lanes are adjacent in place, and the processor loads some lanes in one instruction.

    False in three dimensions, where a line has conditions of two axes for each of its taps.
    """
    return found.strides[-1] == 1 and plan.target.has_masks and len(found.positions) < 3


def _rows_together(found: _Windows) -> int:
    """The lines at a time: all if they are few, else the number that leaves least beyond the last
    line.
    """
    lines = int(found.positions[-2:][0].size.arg)
    if lines <= MAX_ROWS:
        return lines
    return min(range(MIN_ROWS, MAX_ROWS + 1), key=lambda rows: -lines % rows)


def _split_lines(
    plan: Plan, name: str, found: _Windows, rows: int, images: list[Expr], together: int = 1
) -> tuple[list[Expr], list[Expr]]:
    """The loops over the lines of an image, and the loop over lines that are computed together.

    If a copy of the lines for `together` channels exceeds the cache, a loop over blocks of lines is
    added to `images`.
    """
    if len(found.positions) == 1:
        return [], []
    *serial, y = found.positions[:-1]
    lines, row = plan.split(name, y, rows, "mask")
    most = max(1, _most_lines(plan, found) // together // rows)
    if y.size.arg > most * rows:
        blocks, lines = plan.split(name, lines, most, "mask")
        images.append(blocks)
    return [*serial, lines], [row]


def _sum_in_phases(
    plan: Plan,
    name: str,
    reduce: str,
    found: _Windows,
    rest: Sequence[Expr],
    phases: Sequence[Expr],
) -> bool:
    """Sum the adjoint of a strided window: each position of the data is several of the result
    (phases).

    Each phase has taps of its own. All phases of a position are summed side by side, so that they
    share loads, and stay in scratch until a line of the result is complete.
    """
    x = found.positions[-1]
    ordered = _phase_of_each(plan.nest(name), found, phases)
    count = prod(int(p.size.arg) for p in phases)
    rows = MAX_PARTIAL_SUMS // 2 // count
    if ordered is None or found.strides[-1] > 1 or rows == 0:
        return False
    *others, last = ordered
    images = list(rest)
    serial, copies = _split_lines(plan, name, found, rows, images)
    copies += others
    lanes = plan.lanes(plan.nest(reduce), x.size.arg)
    vectors, lane = plan.split(name, x, lanes, "mask")
    plan.do("reorder", name, (*images, *serial, *copies, last, vectors, lane))
    plan.do("compute_at", reduce, len(images) + len(serial))
    for r in (*copies, last):
        plan.do("unroll", reduce, plan.copy_of(r, reduce))
    plan.do("vectorize", reduce, plan.copy_of(lane, reduce))
    _unroll_taps(plan, reduce, found, MAX_UNROLLED_TAPS // count)
    first = plan.copy_of(vectors, reduce)
    plan.do("reorder", reduce, (first, *plan.others(reduce, (first,))))
    if not _reads_in_place(plan, found):
        _copy(plan, reduce, found, name, len(images))
    plan.do("reorder", name, (*images, *serial, *copies, vectors, lane, last))
    plan.vectors(name, plan.fuse(name, lane), lanes)
    plan.share(name, len(images))
    return True


def _phase_of_each(root: Nest, found: _Windows, phases: Sequence[Expr]) -> list[Expr] | None:
    """The phases in the order of their positions.

    None if some range is no phase of a position of the result, or the last position has no phase.
    """
    (index, *others) = {c.store.index for c in root.computes if c.store is not None}
    between = [
        (position, p)
        for position in found.positions
        for p in phases
        if step_of(index, position) == p.size.arg * step_of(index, p) > 0
    ]
    if others or len(between) != len(phases) or between[-1][0] is not found.positions[-1]:
        return None
    ordered = [p for _, p in between]
    return ordered if step_of(index, ordered[-1]) == 1 else None


def _unroll_taps(plan: Plan, reduce: str, found: _Windows, most: int = MAX_UNROLLED_TAPS) -> None:
    """Unroll the taps, those along memory outermost, so that lines that rows of results share are
    loaded one after the other.

    If there are too many, the outermost axes of the taps stay loops.
    """
    taps = found.taps
    serial = _serial_taps(found, most)
    loops, copies = (
        [o.range for tap in group for o in plan.nest(reduce).loops if o.is_from(tap)]
        for group in (serial, [taps[-1], *taps[len(serial) : -1]])
    )
    rest = plan.others(reduce, (*loops, *copies))
    plan.do("reorder", reduce, (*loops, *copies, *rest))
    for r in copies:
        plan.do("unroll", reduce, r)


def _serial_taps(found: _Windows, most: int) -> tuple[Expr, ...]:
    """The outermost axes of the taps, which stay loops if there are more than `most` taps."""
    sizes = [int(tap.size.arg) for tap in found.taps]
    count = next((i for i in range(len(sizes)) if prod(sizes[i:]) <= most), len(sizes) - 1)
    return found.taps[:count]


def _most_lines(plan: Plan, found: _Windows) -> int:
    """The number of lines of a copy that take half of the second cache, a few at least."""
    line = 4 * int(found.positions[-1].size.arg) * prod(found.strides[-2:])
    return max(2 * MAX_ROWS, plan.target.l2_bytes // 2 // line)


def _sum_for_each_tap(
    plan: Plan, name: str, reduce: str, found: _Windows, rest: Sequence[Expr]
) -> bool:
    taps = found.taps
    x = found.positions[-1]
    in_place = (
        _reads_in_place(plan, found) and prod(t.size.arg for t in found.taps) <= MAX_MASKED_TAPS
    )
    plan.do("reorder", name, (*rest, *taps))
    plan.do("compute_at", reduce, len(rest))
    lanes = plan.lanes(plan.nest(reduce), x.size.arg)
    outer = list(found.positions[:-1])
    lines: list[Expr] = []
    together = _rows_together(found) if in_place and outer else 1
    if together > 1:
        outer[-1], line = plan.split(reduce, outer[-1], together, "peel")
        plan.do("unroll", reduce, line)
        lines.append(line)
    elif not in_place and outer and found.positions[-2].size.arg > _most_lines(plan, found):
        _, outer[-1] = plan.split(reduce, outer[-1], _most_lines(plan, found), "peel")
    vectors, lane = plan.split(reduce, x, lanes, "peel")
    plan.do("vectorize", reduce, lane)
    partial = plan.group(reduce, (lane,))
    serial = plan.copies_of(_serial_taps(found, MAX_PARTIAL_SUMS), partial)
    copies = plan.copies_of(taps[len(serial) :], partial)
    for copy in copies:
        plan.do("unroll", partial, copy)
    inner = (*copies, *lines, lane)
    positions = [*outer, vectors]
    batches = plan.others(partial, (*serial, *positions, *inner))
    plan.do("reorder", partial, (*batches, *serial, *positions, *inner))
    if not in_place:
        _copy(plan, partial, found, partial, len(batches))
    plan.share(name, len(rest))
    return True


def _copy(
    plan: Plan,
    reduce: str,
    found: _Windows,
    at: str,
    depth: int,
    phase: Expr | None = None,
    channel: Expr | None = None,
) -> None:
    """Copy the windowed load with its border, transposed if `channel` is its contiguous range.

    If positions are several elements apart, the copy has a line for each `phase` between them, so
    that lanes are adjacent again.
    """
    nest = plan.nest(reduce)
    element = next(e for e in loads(nest.computes[0].value) if e.arg == found.slot)
    inside = [loop for _, _, loop in plan.kernel.path(nest) if loop.range in element.ranges]
    groups: list[Sequence[Expr]] = [] if channel is None else [[channel]]
    for position, tap in zip(found.positions, found.taps, strict=True):
        members = [o.range for o in inside if o.is_from(position) or o.is_from(tap)]
        if phase in members:
            members.remove(phase)
            groups.append([phase])
        groups.append(members)
    copy = plan.kernel.free_name(f"{reduce}.copy{found.slot}")
    loops = plan.stage(reduce, element, at, depth, groups, copy)
    if channel is not None:
        plan.transpose_squares(copy, loops[0], loops[-1], loops[0].size.max)
        return
    if found.strides[-1] > 1:
        plan.do("unroll", copy, loops[-2])  # then it is known which lanes are masked
    line = loops[-1]
    plan.vectorize_inner(copy, plan.nest(copy).loops[-1])
    vectors = plan.nest(copy).loops[-2:][0]
    if line in vectors.lineage and vectors.range.size.max <= MAX_UNROLLED_VECTORS:
        plan.do("unroll", copy, vectors.range)  # its masks are the same for all lines
