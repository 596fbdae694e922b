"""Legalization of a scheduled kernel: transcendental functions are expanded, loops of one iteration
are copies.

A power of two that is only used in floats of at most 11 bits may be less exact. If the target has
an instruction for that (NEAR_EXP2), the power uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ferrule.codegen.emit import transcendental
from ferrule.codegen.kernel import LANES_OR_COPIES, Compute, Kernel, Kind, Loop, expressions
from ferrule.codegen.primitives.editing import mapped
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import COSTLY, Expr, ExprOp, const, rebuild, toposort

_NARROW_BITS = 10  # stored bits of the mantissa of a float16; with the implicit one it has 11


def legalized(kernel: Kernel, *, blocks: bool, native_ops: frozenset[str] = frozenset()) -> Kernel:
    """The kernel as it is emitted; `blocks` if it is for thread blocks, not for a CPU's thread."""
    rounded = _inexact_powers(kernel) if ExprOp.NEAR_EXP2.name in native_ops else frozenset()
    kernel = _unroll_single(_expanded(kernel, rounded))
    return _fold_single(kernel) if blocks else kernel


def _inexact_powers(kernel: Kernel) -> frozenset[Expr]:
    """The float32 powers of two that are only used in floats of at most 11 bits."""
    nodes = toposort(e for nest in kernel.nests for e in expressions(nest))
    powers = {e for e in nodes if e.op is ExprOp.EXP2 and e.dtype is dtypes.float32}
    if not powers:
        return frozenset()
    computes = [c for nest in kernel.nests for c in nest.computes]
    always = [c.value for c in computes if c.store is not None]
    always += [s for e in nodes if _counts_exactly(e) for s in e.src]
    names: set[str] = set()  # of the stages that are used with all of their bits
    while True:
        used = [c for c in computes if names.intersection(c.names)]
        initial = [c.initial for c in used if c.initial is not None]
        wide = _unrounded([*always, *(c.value for c in used), *initial])
        found = {e.arg for e in wide if e.op is ExprOp.READ}
        if found <= names:
            return frozenset(powers - wide)
        names |= found


def _counts_exactly(e: Expr) -> bool:
    """True if a value that is no float is computed from floats, other than by a comparison with
    0.
    """
    if dtypes.is_float(e.dtype):
        return False
    return not any(s.op is ExprOp.CONST and s.arg == 0 for s in e.src)


def _unrounded(roots: Iterable[Expr]) -> set[Expr]:
    """All values that some roots are computed from, up to those that are rounded to a narrow
    float.
    """
    found: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in found:
            found.add(e)
            stack += () if _is_narrow(e) else e.src
    return found


def _is_narrow(e: Expr) -> bool:
    """True if a value is rounded to at most 11 bits."""
    narrow = dtypes.is_float(e.dtype) and e.dtype.mantissa_bits <= _NARROW_BITS
    return narrow and e.op is ExprOp.CAST


def _expanded(kernel: Kernel, rounded: frozenset[Expr]) -> Kernel:
    """The kernel with its transcendental functions expanded; those in `rounded` less exactly."""
    done = _expansions(toposort(e for nest in kernel.nests for e in expressions(nest)), rounded)
    if not done:
        return kernel
    nests = []
    for nest in kernel.nests:
        computes = tuple([_expanded_compute(c, done) for c in nest.computes])
        nests.append(replace(nest, computes=computes))
    return replace(kernel, nests=tuple(nests))


def _expanded_compute(c: Compute, done: Mapping[Expr, Expr]) -> Compute:
    initial = None if c.initial is None else done[c.initial]
    store = c.store
    if store is not None:
        store = replace(store, index=done[store.index], valid=done[store.valid])
    return replace(c, value=done[c.value], initial=initial, store=store)


def _expansions(nodes: Sequence[Expr], rounded: frozenset[Expr]) -> dict[Expr, Expr]:
    """What takes the place of each node; empty if there are no transcendental functions."""
    done: dict[Expr, Expr] = {}
    if not any([node.op in COSTLY for node in nodes]):
        return done
    for node in nodes:
        src = tuple([done[s] for s in node.src])
        if node.op in COSTLY:
            x = node.src[0]
            if node in rounded:
                done[node] = transcendental.near_exp2(src[0])
            elif node.op is ExprOp.EXP2 and x.op is ExprOp.MUL and x.src[1] is _log2_e(x.dtype):
                done[node] = transcendental.exp(done[x.src[0]])
            else:
                done[node] = transcendental.expand(node.op, src[0])
        else:
            same = all([a is b for a, b in zip(src, node.src, strict=True)])
            done[node] = node if same else _rebuilt(node, src, done)
    return done


def _rebuilt(node: Expr, src: tuple[Expr, ...], done: Mapping[Expr, Expr]) -> Expr:
    if node.op is ExprOp.MUL and node.src[0].op is ExprOp.LOG2:
        product = transcendental.expand_product(node, done[node.src[0].src[0]])
        if product is not None:
            return product
    return rebuild(node, src)


def _log2_e(dtype: DType) -> Expr:
    return const(1 / math.log(2), dtype)


def _unroll_single(kernel: Kernel) -> Kernel:
    """The kernel with copies instead of loops of one iteration around lanes and copies.

    A loop in which another nest hangs stays.
    """
    deepest: dict[str, int] = {}
    for nest in kernel.nests:
        if nest.at is not None:
            deepest[nest.at[0]] = max(deepest.get(nest.at[0], 0), nest.at[1])
    nests = []
    for nest in kernel.nests:
        loops = list(nest.loops)
        for depth in reversed(range(deepest.get(nest.name, 0), len(loops))):
            if _runs_once(loops[depth]):
                loops[depth] = replace(loops[depth], kind=Kind.UNROLL, peel=None)
            elif loops[depth].kind not in LANES_OR_COPIES:
                break
        nests.append(replace(nest, loops=tuple(loops)))
    return replace(kernel, nests=tuple(nests))


def _runs_once(loop: Loop) -> bool:
    """True for a loop of one iteration, which is the last one too."""
    size = loop.range.size
    whole = (loop.start, loop.end, loop.bitmask, loop.segments) == (None, None, None, ())
    return loop.kind is Kind.SERIAL and whole and size.is_const and size.arg == 1


def _fold_single(kernel: Kernel) -> Kernel:
    """The kernel with 0 for every range of one iteration, so that equal indices are one node."""
    loops = [loop for nest in kernel.nests for loop in nest.loops]
    zeros = {loop.range: const(0) for loop in loops if loop.range.size is const(1)}
    if not zeros:
        return kernel
    return replace(kernel, nests=tuple(mapped(nest, zeros) for nest in kernel.nests))
