"""Guards: a kernel that is right if some operands are finite, and another where they are not.

Lowering takes the mask of a border from one factor of a product, as from the filter in the adjoint
of a convolution (`sums.py`), and says which slots have to be finite for that. A guarded program
begins with a look at their elements. That is a multiply-add for each of them, where the kernel has
one for each of its terms. Only where it finds an infinity or NaN does the kernel run that was
lowered with all conditions.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

from ferrule.codegen.chains import has_blocks
from ferrule.codegen.kernel import (
    MONOIDS,
    Compute,
    Kernel,
    Kind,
    Loop,
    Nest,
    Store,
    stores_to_one_place,
)
from ferrule.codegen.plan import Plan, step_of
from ferrule.codegen.rows import schedule_rows
from ferrule.codegen.wellformed import verify
from ferrule.dtype import dtypes
from ferrule.expr import Expr, ExprOp, alu, as_expr, cast, const, load, range_
from ferrule.ops import BufferOps, LazyOp
from ferrule.shape.movement import Index
from ferrule.target import Target

# Of a kernel's multiply-adds that a guard may have: one of its own waits for a load, and takes two
# to three times as long (Zen 4, 2026-11).
MOST_SHARE = 1 / 140
COPIES = (4, 2)  # of a vector that are added to side by side: a multiply-add takes 4 cycles
FEW = 1 << 14  # multiply-adds of a guard that count for nothing: about a microsecond
MOST_CALLS = 64  # of a program for the chunks of one run: see `BLOCKS_ALONE` of the native runtime


def guarded(kernel: Kernel, ast: LazyOp, target: Target) -> Kernel:
    """A scheduled kernel whose guard looks at those slots for which that costs little.

    It costs more where each element is in few products, as a large filter's are in those of one
    small image. Blocks of threads look at nothing: each would have to look at all elements.
    """
    guard = kernel.guard
    if guard is None or target.block_threads > 1:
        return kernel
    most = max(MOST_SHARE * sum(_terms(guard.exact, nest) for nest in guard.exact.nests), FEW)
    looks = _looks(kernel)
    loads = [e for e in _elements(ast, guard.finite) if looks * _count(e) <= most]
    if not loads:
        return kernel
    check = _in_lanes(_check(kernel, loads), target)
    exact = _in_rows(guard.exact, target)
    verify(check)
    verify(exact)
    return replace(kernel, guard=replace(guard, exact=exact, check=check))


def _terms(kernel: Kernel, nest: Nest) -> int:
    """How many terms the sums of a nest have."""
    sums = sum(c.monoid is not None for c in nest.computes)
    return sums * prod(loop.range.size.max for _, _, loop in kernel.path(nest))


def _looks(kernel: Kernel) -> int:
    """How often a program looks at the elements: once a call for some of its chunks."""
    shared = [n.loops[0] for n in kernel.roots if n.loops and n.loops[0].kind is Kind.PARALLEL]
    chunks = sum(loop.range.size.max for loop in shared)
    return max(1, min(chunks, MOST_CALLS))


def _elements(ast: LazyOp, slots: Set[int]) -> list[Expr]:
    """All that an AST may load from some slots."""
    nodes = [node for node in ast.toposort() if node.op is BufferOps.LOAD]
    return [_whole(node, f"f{n}") for n, node in enumerate(nodes) if node.arg.idx in slots]


def _whole(node: LazyOp, name: str) -> Expr:
    """Every element of a LOAD, once."""
    strides = [as_expr(n) for n in node.arg.st.view.strides]
    idx: Index = tuple(
        const(0) if n == 1 or stride is const(0) else range_(f"{name}.{axis}", n)
        for axis, (n, stride) in enumerate(zip(node.shape, strides, strict=True))
    )
    return load(node.arg.idx, node.dtype, *node.arg.st.index(idx))


def _count(e: Expr) -> int:
    return prod(r.size.max for r in e.ranges)


def _check(kernel: Kernel, loads: Sequence[Expr]) -> Kernel:
    """A kernel that adds up 0 times each element: that is 0 if all are finite, else NaN."""
    nests = []
    total: Expr = const(0, dtypes.float32)
    for number, e in enumerate(loads):
        wide = e if e.dtype.itemsize >= dtypes.float32.itemsize else cast(e, dtypes.float32)
        term = alu(ExprOp.MUL, wide, const(0, wide.dtype))
        if e.ranges:
            name = f"finite{number}"
            loops = tuple(Loop(r) for r in _in_order(e))
            compute = Compute(name, term, monoid=MONOIDS["sum"])
            nests.append(Nest(name, (compute,), loops, ("finite", 0)))
            term = Expr(ExprOp.READ, wide.dtype, (), name)
        total = alu(ExprOp.ADD, total, cast(term, dtypes.float32))
    bad = alu(ExprOp.WHERE, alu(ExprOp.CMPNE, total, const(0, total.dtype)), const(1), const(0))
    root = Compute("finite", bad, store=Store(0, const(0)))
    return replace(kernel, nests=(*nests, Nest("finite", (root,), ())), guard=None)


def _in_order(e: Expr) -> list[Expr]:
    """The ranges of a load, those last along which it goes through neighbours."""
    return sorted(e.ranges, key=lambda r: (-step_of(e.src[0], r), r.rank))


def _in_lanes(kernel: Kernel, target: Target) -> Kernel:
    """Such a kernel with vectors of partial sums: without a tail, where some number has none."""
    plan = Plan(kernel, target)
    plan.collapse()
    for name in plan.below("finite"):
        r = plan.nest(name).loops[-1].range
        lanes = plan.lanes(plan.nest(name), r.size.max)
        if lanes > 1:
            copies = next((n for n in COPIES if r.size.max % (n * lanes) == 0), 1)
            plan.do("split", name, r.name, copies * lanes, "peel")
            plan.do("group", name, plan.vectors(name, f"{r.name}.i", lanes))
    return plan.kernel


def _in_rows(kernel: Kernel, target: Target) -> Kernel:
    """A kernel in a schedule that takes little time to compile, and more to run."""
    plan = Plan(kernel, target)
    for nest in plan.kernel.roots:
        below = plan.below(nest.name)
        if below and not stores_to_one_place(nest) and not has_blocks(plan, nest.name):
            schedule_rows(plan, nest.name, below)
    return plan.kernel
