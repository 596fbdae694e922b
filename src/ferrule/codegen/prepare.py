"""What becomes of a scheduled kernel before it is a program: functions that processors have no
instruction for are written out, and loops of one iteration are copies.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ferrule.codegen import transcendental
from ferrule.codegen.kernel import LANES_OR_COPIES, Compute, Kernel, Kind, Loop
from ferrule.codegen.primitives.editing import mapped
from ferrule.dtype import DType
from ferrule.expr import COSTLY, Expr, ExprOp, const, rebuild, toposort


def prepared(kernel: Kernel, *, blocks: bool) -> Kernel:
    """The kernel as a program has it; for blocks of threads, or for one."""
    kernel = _once(_expanded(kernel))
    return _without_single(kernel) if blocks else kernel


def _expanded(kernel: Kernel) -> Kernel:
    """The kernel with its transcendental functions written out."""
    nests = []
    for nest in kernel.nests:
        computes = tuple(_written_out(c) for c in nest.computes)
        nests.append(replace(nest, computes=computes))
    return replace(kernel, nests=tuple(nests))


def _written_out(c: Compute) -> Compute:
    start = None if c.start is None else _expand(c.start)
    store = c.store
    if store is not None:
        store = replace(store, index=_expand(store.index), valid=_expand(store.valid))
    return replace(c, value=_expand(c.value), start=start, store=store)


def _expand(e: Expr) -> Expr:
    nodes = toposort([e])
    if not any(node.op in COSTLY for node in nodes):
        return e
    done: dict[Expr, Expr] = {}
    for node in nodes:
        src = tuple(done[s] for s in node.src)
        if node.op in COSTLY:
            x = node.src[0]
            if node.op is ExprOp.EXP2 and x.op is ExprOp.MUL and x.src[1] is _log2_e(x.dtype):
                done[node] = transcendental.exp(done[x.src[0]])
            else:
                done[node] = transcendental.expand(node.op, src[0])
        else:
            same = all(a is b for a, b in zip(src, node.src, strict=True))
            done[node] = node if same else _rebuilt(node, src, done)
    return done[e]


def _rebuilt(node: Expr, src: tuple[Expr, ...], done: dict[Expr, Expr]) -> Expr:
    if node.op is ExprOp.MUL and node.src[0].op is ExprOp.LOG2:
        product = transcendental.expand_product(node, done[node.src[0].src[0]])
        if product is not None:
            return product
    return rebuild(node, src)


def _log2_e(dtype: DType) -> Expr:
    return const(1 / math.log(2), dtype)


def _once(kernel: Kernel) -> Kernel:
    """Loops of one iteration around lanes and copies are copies, if nothing else is inside."""
    deepest: dict[str, int] = {}
    for nest in kernel.nests:
        if nest.at is not None:
            deepest[nest.at[0]] = max(deepest.get(nest.at[0], 0), nest.at[1])
    nests = []
    for nest in kernel.nests:
        loops = list(nest.loops)
        for depth in reversed(range(deepest.get(nest.name, 0), len(loops))):
            if _runs_once(loops[depth]):
                loops[depth] = replace(loops[depth], kind=Kind.UNROLL)
            elif loops[depth].kind not in LANES_OR_COPIES:
                break
        nests.append(replace(nest, loops=tuple(loops)))
    return replace(kernel, nests=tuple(nests))


def _runs_once(loop: Loop) -> bool:
    size = loop.range.size
    bounds = (loop.peel, loop.start, loop.end, loop.bits, loop.segments)
    whole = bounds == (None, None, None, None, ())
    return loop.kind is Kind.SERIAL and whole and size.is_const and size.arg == 1


def _without_single(kernel: Kernel) -> Kernel:
    """The kernel with 0 for every range of one iteration, so that equal indices are one."""
    loops = [loop for nest in kernel.nests for loop in nest.loops]
    zeros = {loop.range: const(0) for loop in loops if loop.range.size is const(1)}
    if not zeros:
        return kernel
    return replace(kernel, nests=tuple(mapped(nest, zeros) for nest in kernel.nests))
