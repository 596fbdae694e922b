"""Edits of a schedule: schedules that differ from it in a single decision.

A schedule is data, so an edit is one of a tuple of opts: another factor, an opt left out, loops in
another order, a few opts more at the end. An edit need not be legal: `apply_opts` checks that, and
the search tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from random import Random
from typing import TypeAlias

from ferrule.codegen.kernel import Kernel, Kind, Loop, Nest
from ferrule.codegen.opt import PRIMITIVES, Opt, apply_opts
from ferrule.codegen.plan import step_of
from ferrule.codegen.primitives.editing import copy_name, fused_name, part_names
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target

Opts: TypeAlias = tuple[Opt, ...]

# Sizes that edits try; not measured, chosen around those of the heuristic.
_MAX_LANES = 64
_BLOCKS = (4, 16, 64)
_CHUNKS = (8, 32, 128)
_COPIES = (2, 4, 8)
_LEFT_OUT = frozenset({"merge", "pipeline", "stage_row", "unroll"})
_SHARING = frozenset({"fuse", "parallel"})


def neighbours(kernel: Kernel, opts: Opts, target: Target) -> list[Opts]:
    """Edits of a schedule of `kernel`, one kind after the other, in a fixed order.

    >>> from ferrule.codegen.lower import lower
    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, UnaryOps
    >>> from ferrule.ir.shape.shapetracker import ShapeTracker
    >>> from ferrule.ir.target import detect_cpu
    >>> place = MemBuffer(1, dtypes.float32, ShapeTracker.from_shape((4096,)))
    >>> root = LazyOp(UnaryOps.SQRT, (LazyOp(BufferOps.LOAD, (), place),))
    >>> opts = (Opt("split", ("out0", "i0.0", 8, "peel")), Opt("vectorize", ("out0", "i0.0.i")))
    >>> found = neighbours(lower(root, "root"), opts, detect_cpu())
    >>> sorted(edit[0].args[2] for edit in found if edit[1:] == opts[1:])
    [4, 16]
    """
    scheduled = apply_opts(kernel, opts)
    kinds = [
        list(_resized(opts)),
        list(_shortened(opts)),
        list(_reordered(opts)),
        [edit for root in scheduled.roots for edit in _shared(kernel, opts, root.name)],
        [opts + more for more in _unrolled(scheduled)],
        list(_blocked(kernel, opts)),
        [opts + more for more in _packed(scheduled, target)],
    ]
    generator = Random(0)
    for kind in kinds:
        generator.shuffle(kind)
    mixed = [edit for edits in zip_longest(*kinds) for edit in edits if edit is not None]
    return [edit for edit in dict.fromkeys(mixed) if edit != opts]


def _resized(opts: Opts) -> Iterator[Opts]:
    """Other factors of a split."""
    for i, opt in enumerate(opts):
        if opt.primitive != "split":
            continue
        nest, name, _, *rest = opt.args
        for other in _factors(opt, opts[i + 1 :]):
            changed = Opt("split", (nest, name, other, *rest))
            yield (*opts[:i], changed, *opts[i + 1 :])


def _factors(opt: Opt, later: Sequence[Opt]) -> list[int]:
    """The other factors of a split that are tried, by the use of its inner loop."""
    nest, name, factor, tail = opt.args
    _, inner = part_names(name)
    use = next((o for o in later if o.args[:2] == (nest, inner)), None)
    found = [factor // 2, factor * 2]
    if use is None:
        found += [factor // 4, factor * 4]
    elif use.primitive == "vectorize":
        found = [n for n in found if n <= _MAX_LANES]
    elif use.primitive == "unroll" and tail == "clamp":
        found += [factor - 2, factor - 1, factor + 1, factor + 2]
    elif use.primitive == "split":
        step = use.args[2]
        found = [factor - step, factor + step, factor // 2 // step * step, factor * 2]
    return [n for n in dict.fromkeys(found) if n >= 2 and n != factor]


def _shortened(opts: Opts) -> Iterator[Opts]:
    """Schedules without one decision: an operand's copy and its opts, or a single opt."""
    for i, opt in enumerate(opts):
        if opt.primitive == "stage":
            name = opt.args[5]
            yield tuple(o for o in opts if o is not opt and o.args[0] != name)
        elif opt.primitive in _LEFT_OUT:
            yield (*opts[:i], *opts[i + 1 :])


def _reordered(opts: Opts) -> Iterator[Opts]:
    """Exchange two neighbouring loops of a reorder."""
    for i, opt in enumerate(opts):
        if opt.primitive != "reorder":
            continue
        nest, names = opt.args
        for d in range(len(names) - 1):
            swapped = (*names[:d], names[d + 1], names[d], *names[d + 2 :])
            yield (*opts[:i], Opt("reorder", (nest, swapped)), *opts[i + 1 :])


def _shared(kernel: Kernel, opts: Opts, root: str) -> Iterator[Opts]:
    """Other thread chunks: fewer or more loops fused, larger steps, or no threads."""
    last = len(opts)
    while last and opts[last - 1].primitive in _SHARING and opts[last - 1].args[0] == root:
        last -= 1
    bare = opts[:last]
    loops = apply_opts(kernel, bare).by_name[root].loops
    yield bare
    if not loops or loops[0].kind is not Kind.SERIAL:
        return
    first = loops[0].range.name
    yield (*bare, Opt("parallel", (root, first)))
    for chunk in _CHUNKS:
        if chunk < loops[0].range.size.max:
            split = Opt("split", (root, first, chunk, "peel"))
            yield (*bare, split, Opt("parallel", (root, part_names(first)[0])))
    fused: Opts = ()
    for loop in loops[1:]:
        if loop.kind is not Kind.SERIAL:
            break
        fused += (Opt("fuse", (root, first)),)
        first = fused_name(first, loop.range.name)
        yield (*bare, *fused, Opt("parallel", (root, first)))


def _unrolled(kernel: Kernel) -> Iterator[Opts]:
    """Split the innermost serial loop, if no other nest is computed inside, and unroll a part."""
    for nest in kernel.nests:
        inside = max((n.at[1] for n in kernel.nests if n.at and n.at[0] == nest.name), default=0)
        serial = [loop for loop in nest.loops[inside:] if loop.kind is Kind.SERIAL]
        if not serial:
            continue
        name = serial[-1].range.name
        for copies in _COPIES:
            if copies <= serial[-1].range.size.max:
                split = Opt("split", (nest.name, name, copies, "peel"))
                yield (split, Opt("unroll", (nest.name, part_names(name)[1])))


def _blocked(kernel: Kernel, opts: Opts) -> Iterator[Opts]:
    """Move a reduce out of the last loop around it, or out of blocks of that loop.

    Results so far are a stage for a whole block, and the reduce goes through the block once for
    each part of the combined range.
    """
    for i, opt in enumerate(opts):
        if opt.primitive != "compute_at" or opt.args[1] == 0:
            continue
        name, depth, *_ = opt.args
        before = _after(kernel, opts[:i])
        nest = before.by_name[name]
        if nest.at is None or not combined(nest):
            continue
        root = nest.at[0]
        around = before.by_name[root].loops[depth - 1].range
        yield _moved_out(before, opts, i, depth - 1)
        for block in _BLOCKS:
            if block < around.size.max:
                split = Opt("split", (root, around.name, block, "mask"))
                blocks = _after(before, [split])
                rest = _renamed(opts[i:], root, around.name)
                yield _moved_out(blocks, (*opts[:i], split, *rest), i + 1, depth)


def _after(kernel: Kernel, opts: Sequence[Opt]) -> Kernel:
    """The kernel after the first opts of a schedule, maybe illegal without the later ones."""
    for opt in opts:
        kernel = PRIMITIVES[opt.primitive](kernel, *opt.args)
    return kernel


def _moved_out(kernel: Kernel, opts: Opts, i: int, depth: int) -> Opts:
    """Let opt i compute its nest at `depth` instead; `kernel` has had the opts before i.

    The unrolled part of the nest's last loop goes inside of the first new loop.
    """
    nest = kernel.by_name[opts[i].args[0]]
    assert nest.at is not None
    consumer = kernel.by_name[nest.at[0]]
    k = nest.loops[-1].range.name
    parts = [o for o in opts[i:] if o.primitive == "split" and o.args[:2] == (nest.name, k)]
    rest = tuple(o for o in opts[i + 1 :] if o not in parts)
    part = parts[0] if parts else Opt("split", (nest.name, k, _BLOCKS[0], "peel"))
    outer, inner = part_names(k)
    unroll: Opts = () if parts else (Opt("unroll", (nest.name, inner)),)
    others = [loop.range.name for loop in nest.loops[:-1]]
    used = {r for c in nest.computes for r in c.value.ranges}
    left = [o.range.name for o in consumer.loops[depth:] if o.range in used]
    moved = [copy_name(name, nest.name) for name in left]
    order = (*others, outer, *moved[:1], inner, *moved[1:])
    out = Opt("compute_at", (nest.name, depth, *opts[i].args[2:]))
    return (*opts[:i], part, out, Opt("reorder", (nest.name, order)), *unroll, *rest)


def _renamed(opts: Sequence[Opt], nest: str, name: str) -> Opts:
    """Opts on a loop that was split, now on its outer part."""
    changed = {"fuse", "parallel", "split"}
    return tuple(
        Opt(o.primitive, (nest, part_names(name)[0], *o.args[2:]))
        if o.primitive in changed and o.args[:2] == (nest, name)
        else o
        for o in opts
    )


def combined(nest: Nest) -> list[Loop]:
    """The loops that a nest reduces over."""
    reduces = [c for c in nest.computes if c.monoid is not None]
    result_axes = {r for c in reduces for r in c.ranges}
    return [loop for loop in nest.loops if reduces and loop.range not in result_axes]


def _packed(kernel: Kernel, target: Target) -> Iterator[Opts]:
    """Copy a load of a reduce, in the order of its loops."""
    for nest in kernel.nests:
        if nest.at is None or not combined(nest):
            continue
        found = [e for e in nest.nodes if e.op is ExprOp.LOAD]
        for e in found:
            consumer, most = nest.at
            number = [other for other in found if other.arg == e.arg].index(e)
            which = (number,) if number else ()
            name = ".".join([f"{nest.name}.copy{e.arg}", *map(str, which)])
            if name in kernel.by_name:
                continue
            for depth in range(most + 1):
                axes = [
                    loop
                    for n, d, loop in kernel.path(nest)
                    if loop.range in e.ranges and (n == nest.name or d >= depth)
                ]
                if axes:
                    order = tuple(loop.range.name for loop in axes)
                    stage = Opt("stage", (nest.name, e.arg, consumer, depth, order, name, *which))
                    contiguous = step_of(e.src[0], axes[-1].range) == 1
                    lanes = target.lanes(max(e.dtype.itemsize, 4)) if contiguous else 1
                    yield (stage, *_lanes(name, axes[-1], lanes))


def _lanes(name: str, loop: Loop, lanes: int) -> Opts:
    """The last loop of a copy as vectors."""
    lane = copy_name(loop.range.name, name)
    if lanes < 2 or loop.range.size.max < lanes:
        return ()
    split = Opt("split", (name, lane, lanes, "peel"))
    return (split, Opt("vectorize", (name, part_names(lane)[1])))


def copies(kernel: Kernel) -> int:
    """The largest number of copies of an operation in a kernel's program: the cost of unrolling."""
    most = 1
    for nest in kernel.nests:
        times = 1
        for _, _, loop in kernel.path(nest):
            times *= loop.size if loop.kind in (Kind.UNROLL, Kind.TRANSPOSE) else 1
            times *= 2 if loop.peel is not None else 1
        most = max(most, times)
    return most
