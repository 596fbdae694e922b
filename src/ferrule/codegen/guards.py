"""Guards: a kernel that is right if some operands are finite, with another one for other operands.

Lowering removes the mask of a border from one factor of a product, as from the filter in the
adjoint of a convolution (`sums.py`), and records which slots have to be finite for that. A guarded
program, or each of its chunks, first checks the elements. That is a multiply-add for each element,
where the kernel has one for each term. Only if it finds an infinity or NaN, the kernel with all
conditions runs instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ferrule.codegen.kernel import MONOIDS, Compute, Kernel, Loop, Nest, Store, stores_to_one_place
from ferrule.codegen.opt import Opt
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.schedules.cpu.chains import has_stages
from ferrule.codegen.schedules.cpu.rows import schedule_rows
from ferrule.codegen.wellformed import verify
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, alu, as_expr, cast, const, load, minimum, range_
from ferrule.ir.lazyop import BufferOps, LazyOp
from ferrule.ir.shape.movement import Index
from ferrule.ir.target import Target

VECTOR_ELEMENTS = 16
"""Elements; the parts that are checked have a multiple of these."""
UNROLL_FACTORS = (4, 2)
"""Accumulators side by side: a multiply-add takes 4 cycles."""
# How the native runtime hands out chunks, estimated on 2026-11-24.
MAX_CALLS_PER_THREAD = 16
TERMS_PER_CALL = 1 << 18
"""Multiply-adds in about 5 us."""


def guarded(kernel: Kernel, ast: LazyOp, target: Target, opts: Sequence[Opt]) -> Kernel:
    """A scheduled kernel with a guard that checks the elements of some slots.

    For each slot it checks all elements once a call, or in each chunk the elements that the chunk
    loads, whichever are fewer. Thread blocks check nothing: each would have to check all.
    """
    guard = kernel.guard
    if guard is None or target.block_threads > 1:
        return kernel
    calls = _calls(kernel, target)
    alike = _in_chunks(kernel, guard.exact, opts, target)
    loaded = [node for node in ast.toposort() if node.op is BufferOps.LOAD]
    whole: list[Expr] = []
    parts: list[Expr] = []
    for slot in sorted(guard.finite):
        nodes = [node for node in loaded if node.arg.idx == slot]
        elements = [_whole(node, f"f{slot}.{number}") for number, node in enumerate(nodes)]
        own = None if alike is None else _parts(alike, slot, nodes)
        if own is not None and _count(own) < calls * _count(elements):
            parts += own
        else:
            whole += elements
    checks = [_check(kernel, whole)] if whole else []
    if alike is not None and parts:
        chunks = alike.roots[0].loops[0]
        checks.append(_check(kernel, parts, Loop(chunks.range)))
        faster = _in_rows(alike, target)
        exact = faster if faster.roots[0].loops[0] == chunks else alike
    else:
        exact = _in_rows(guard.exact, target)
    checks = [_in_lanes(check, target) for check in checks]
    for found in (*checks, exact):
        verify(found)
    return replace(kernel, guard=replace(guard, exact=exact, checks=tuple(checks)))


def _in_chunks(kernel: Kernel, exact: Kernel, opts: Sequence[Opt], target: Target) -> Kernel | None:
    """A kernel with the same chunks as another one, made by the opts that split, fuse and reorder
    its root; None if the other has not exactly one root that is shared out.
    """
    root = kernel.roots[0]
    if len(kernel.roots) > 1 or not root.is_shared_out:
        return None
    plan = Plan(exact, target)
    try:
        for opt in opts:
            if opt.primitive in ("split", "fuse", "reorder") and opt.args[0] == root.name:
                plan.do(opt.primitive, *opt.args)
        plan.do("parallel", root.name, root.loops[0].range.name)
    except ScheduleError:
        return None
    return plan.kernel if plan.kernel.roots[0].loops[0] == root.loops[0] else None


def _parts(kernel: Kernel, slot: int, nodes: Sequence[LazyOp]) -> list[Expr] | None:
    """The elements that a chunk loads of a slot, perhaps with some beside them.

    None if all chunks load the same, or if the part of each chunk is not known. Symbolic sizes do
    not say how far memory goes.
    """
    chunk = kernel.roots[0].loops[0].range
    reached = [node.arg.st.view.reach for node in nodes]
    ends = [reach for reach in reached if reach is not None]
    if kernel.variables or len(ends) < len(reached):
        return None
    found = dict.fromkeys(e for nest in kernel.nests for c in nest.computes for e in loads(c.value))
    start, stop = min(start for start, _ in ends), max(stop for _, stop in ends)
    parts = []
    for number, e in enumerate(e for e in found if e.arg == slot):
        index = _part(e.src[0], chunk, f"p{slot}.{number}", (start, stop))
        if index is None or chunk not in index.ranges:
            return None
        parts.append(load(slot, e.dtype, index))
    return parts


def _part(index: Expr, chunk: Expr, name: str, ends: tuple[int, int]) -> Expr | None:
    """The memory of a load for one value of a range and all values of the others.

    It includes the gaps between neighbours, is whole vectors, and stays between two ends. None if
    that is more than there is between the ends.
    """
    terms = _terms_of(index, chunk)
    if terms is None:
        return None
    base, steps = terms
    reach, span = 1, 1
    others = []
    for step, count in sorted(steps):
        span += step * (count - 1)
        if step <= reach:
            reach += step * (count - 1)
        else:
            others.append((step, count))
    whole = -(-reach // VECTOR_ELEMENTS) * VECTOR_ELEMENTS
    span += whole - reach
    start, stop = ends
    if span > stop - start:
        return None
    base = -minimum(-minimum(base, stop - span), -start)
    own = [range_(f"{name}.{number}", count) * step for number, (step, count) in enumerate(others)]
    return sum(own, base + range_(name, whole))


def _terms_of(index: Expr, chunk: Expr) -> tuple[Expr, list[tuple[int, int]]] | None:
    """The least value of an index for one value of a range, and the steps of the other ranges.

    Each step comes with the number of its values at most.
    """
    terms, constant = index.linear()
    base = const(constant)
    steps = []
    for atom, step in terms.items():
        found = _values_of(atom, chunk)
        if found is None:
            return None
        low, count = found
        base += (low if step > 0 else low + (count - 1)) * step
        if count > 1:
            steps.append((abs(step), count))
    return base, steps


def _values_of(atom: Expr, chunk: Expr) -> tuple[Expr, int] | None:
    """The least value of a term for one value of a range, and the number of its values at most."""
    if atom.ranges <= {chunk}:
        return atom, 1
    if chunk not in atom.ranges:
        return const(atom.min), atom.max - atom.min + 1
    by = atom.src[1] if atom.op in (ExprOp.IDIV, ExprOp.MOD) else const(0)
    if not by.is_const or by.arg <= 0:
        return None
    if atom.op is ExprOp.MOD:
        return const(0), by.arg
    terms = _terms_of(atom.src[0], chunk)
    if terms is None:
        return None
    low, steps = terms
    return low // by, sum(step * (count - 1) for step, count in steps) // by.arg + 2


def _calls(kernel: Kernel, target: Target) -> int:
    """About the number of calls, each for some chunks, that a program gets in one run."""
    shared = [nest.loops[0] for nest in kernel.roots if nest.is_shared_out]
    chunks = sum(loop.range.size.max for loop in shared)
    each = (
        sum(_terms(kernel, nest) for nest in kernel.nests) // target.max_threads // TERMS_PER_CALL
    )
    return max(1, min(chunks, target.max_threads * max(1, min(each, MAX_CALLS_PER_THREAD))))


def _terms(kernel: Kernel, nest: Nest) -> int:
    """The number of terms of a nest's sums."""
    sums = sum(c.monoid is not None for c in nest.computes)
    return sums * prod(loop.range.size.max for _, _, loop in kernel.path(nest))


def _whole(node: LazyOp, name: str) -> Expr:
    """Every element of a LOAD, once."""
    strides = [as_expr(n) for n in node.arg.st.view.strides]
    idx: Index = tuple(
        const(0) if n == 1 or stride is const(0) else range_(f"{name}.{axis}", n)
        for axis, (n, stride) in enumerate(zip(node.shape, strides, strict=True))
    )
    return load(node.arg.idx, node.dtype, *node.arg.st.index(idx))


def _count(elements: Sequence[Expr]) -> int:
    return sum(prod(r.size.max for r in e.ranges) for e in elements)


def _check(kernel: Kernel, elements: Sequence[Expr], around: Loop | None = None) -> Kernel:
    """A kernel that adds up 0 times each element: 0 if all are finite, else NaN.

    With `around`, it does so for one iteration of that loop.
    """
    outer = () if around is None else (around,)
    place = ("finite", len(outer))
    nests = []
    total: Expr = const(0, dtypes.float32)
    for number, e in enumerate(elements):
        wide = e if e.dtype.itemsize >= dtypes.float32.itemsize else cast(e, dtypes.float32)
        term = alu(ExprOp.MUL, wide, const(0, wide.dtype))
        loops = tuple(Loop(r) for r in _in_order(e) if Loop(r) not in outer)
        if loops:
            name = f"finite{number}"
            compute = Compute(name, term, monoid=MONOIDS["sum"])
            nests.append(Nest(name, (compute,), loops, place))
            term = Expr(ExprOp.READ, wide.dtype, (), name)
        total = alu(ExprOp.ADD, total, cast(term, dtypes.float32))
    bad = alu(ExprOp.WHERE, alu(ExprOp.CMPNE, total, const(0, total.dtype)), const(1), const(0))
    root = Compute("finite", bad, store=Store(0, const(0)))
    return replace(kernel, nests=(*nests, Nest("finite", (root,), outer)), guard=None)


def _in_order(e: Expr) -> list[Expr]:
    """The ranges of a load, those with the shortest steps last."""
    return sorted(e.ranges, key=lambda r: (-step_of(e.src[0], r), r.rank))


def _in_lanes(kernel: Kernel, target: Target) -> Kernel:
    """A check with vectors of partial sums, unrolled by a factor that leaves no tail if there is
    one.
    """
    plan = Plan(kernel, target)
    plan.collapse()
    for name in plan.below("finite"):
        r = plan.nest(name).loops[-1].range
        lanes = plan.lanes(plan.nest(name), r.size.max)
        if lanes > 1:
            copies = next((n for n in UNROLL_FACTORS if r.size.max % (n * lanes) == 0), 1)
            _, inner = plan.split(name, r, copies * lanes, "peel")
            plan.do("group", name, plan.vectors(name, inner, lanes))
    return plan.kernel


def _in_rows(kernel: Kernel, target: Target) -> Kernel:
    """Schedule a kernel for a short compile time, at the cost of a longer run time."""
    plan = Plan(kernel, target)
    for nest in plan.kernel.roots:
        below = plan.below(nest.name)
        if below and not stores_to_one_place(nest) and not has_stages(plan, nest.name):
            schedule_rows(plan, nest.name)
    return plan.kernel
