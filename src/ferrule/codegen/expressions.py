"""A node of an AST at an index, as one scalar expression over ranges.

`Lowering.lower(node, index, valid)` is memoised on all three arguments. Movement ops only transform
the index. Every load carries its whole condition, so that a value may be computed, or hoisted,
anywhere. A REDUCE is an expression too, over ranges of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import assert_never

from ferrule.codegen.elementwise import elementwise
from ferrule.codegen.kernel import MONOIDS, Monoid
from ferrule.codegen.polyphase import NonzeroTerms, nonzero_terms
from ferrule.codegen.sums import Sum, one_sum
from ferrule.ir.dtype import compute_dtype
from ferrule.ir.expr import (
    BOOL,
    INDEX,
    TRUE,
    Expr,
    ExprOp,
    all_of,
    alu,
    both,
    cast,
    conjuncts,
    const,
    load,
    range_,
    select,
    sint,
    within,
)
from ferrule.ir.lazyop import (
    BinaryOps,
    BufferOps,
    ConstBuffer,
    FunctionOps,
    LazyOp,
    LoadOps,
    MemBuffer,
    MovementOps,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)
from ferrule.ir.op_table import MOVEMENTS, REDUCED, reduced_axes
from ferrule.ir.shape.movement import Index

Visit = tuple[LazyOp, Index, Expr]
Rule = Generator[Visit, Expr, Expr]


class Lowering:
    """The lowering of one AST."""

    def __init__(self) -> None:
        self.memo: dict[Visit, Expr] = {}
        self.sums: dict[Expr, Sum] = {}
        """By their terms: the sums that are right only if some slots are finite."""
        self.tails: dict[Expr, Expr] = {}
        """Conditions that hold wherever a result is stored, each with the range that it is about.
        """
        self.stages: list[tuple[LazyOp, Index]] = []
        """The STAGE nodes met so far, each with the index at which it is read."""
        self._own_ranges: dict[LazyOp, tuple[Expr, ...]] = {}
        self._phased: frozenset[Expr] = frozenset()
        self._number = itertools.count()

    def lower(
        self,
        root: LazyOp,
        idx: Index,
        valid: Expr = TRUE,
        phased: frozenset[Expr] = frozenset(),
    ) -> Expr:
        """The value of a node at an index, by a stack of generators instead of recursion.

        `phased` are the ranges that can be divided into phases (`polyphase.py`).
        """
        self._phased = phased
        stack: list[tuple[Visit, Rule]] = []
        pending: Visit | None = (root, idx, valid)
        result: Expr | None = None
        while True:
            if pending is not None:
                result = self.memo.get(pending)
                if result is None:
                    stack.append((pending, self._rule(*pending)))
            pending = None
            if not stack:
                assert result is not None
                return result
            visit, rule = stack[-1]
            try:
                pending = next(rule) if result is None else rule.send(result)
                result = None
            except StopIteration as done:
                stack.pop()
                result = self.memo[visit] = done.value

    def _rule(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        match node.op:
            case BufferOps.STAGE:
                return self._stage(node, idx, valid)
            case BufferOps():
                return self._leaf(node, idx, valid)
            case MovementOps.GATHER:
                return self._gather(node, idx, valid)
            case MovementOps():
                return self._move(node, idx, valid)
            case ReduceOps():
                return self._reduce(node, idx, valid)
            case UnaryOps() | BinaryOps() | TernaryOps():
                return self._elementwise(node, idx, valid)
            case LoadOps() | FunctionOps():
                raise ValueError(f"{node.op} belongs to the graph; a kernel's AST has no such node")
            case _:
                assert_never(node.op)

    def _leaf(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        yield from ()
        if node.op is BufferOps.CONST:
            arg: ConstBuffer = node.arg
            val, dtype = arg.val, arg.dtype
            value = cast(val, dtype) if isinstance(val, Expr) else const(val, dtype)
            _, inside = arg.st.index(idx)
            if inside is TRUE:
                return value
            return alu(ExprOp.WHERE, inside, value, const(0, dtype))
        mem: MemBuffer = node.arg
        offset, inside = mem.st.index(idx)
        return load(mem.idx, mem.dtype, offset, both(valid, inside))

    def _move(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        source: LazyOp = node.src[0]
        if node.op is MovementOps.RESHAPE:
            while source.op is MovementOps.RESHAPE:
                source = source.src[0]
        elif node.op is MovementOps.UNWINDOW:
            valid = self._without_checked_bounds(valid, idx, node.arg[0])
        rule = MOVEMENTS[node.op].index
        assert rule is not None, f"{node.op} has no index rule"
        inner, inside = rule(idx, node.arg, source.shape)
        if inside is TRUE:
            return (yield source, inner, valid)
        value = yield source, inner, both(valid, inside)
        return select(inside, value, const(0, value.dtype))

    def _gather(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        source: LazyOp = node.src[0]
        valid = _needed_bounds(valid, idx, node.shape)
        position = yield node.src[1], idx, valid
        axis: int = node.arg
        at = cast(position, INDEX)
        inside = within(at, source.shape[axis])
        value = yield source, (*idx[:axis], at, *idx[axis + 1 :]), both(valid, inside)
        return select(inside, value, const(0, value.dtype))

    def _without_checked_bounds(self, valid: Expr, idx: Index, axis: int) -> Expr:
        """The condition without its bounds on the index along `axis`: UNWINDOW checks these
        itself.
        """
        others = {r for a, i in enumerate(idx) if a != axis for r in i.ranges}
        return all_of(
            part
            for part in conjuncts(valid)
            if part not in self.tails or self.tails[part] in others
        )

    def _reduce(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        source: LazyOp = node.src[0]
        axes = reduced_axes(node.src[0].shape, node.shape)
        ranges = self._ranges_of(node, axes)
        at: dict[int, Expr] = dict(zip(axes, ranges, strict=True))
        valid = _needed_bounds(valid, idx, node.shape)
        body = yield source, _index_at(idx, at), valid
        wide = compute_dtype(node.dtype)
        monoid = _monoid_of(node)
        if not ranges:
            return body
        if monoid.op is ExprOp.ADD:
            sparse = _sparse_axes(body, at, self._phased)
            if sparse:
                inside = all_of(found.inside for found in sparse.values())
                at |= {a: found.index for a, found in sparse.items()}
                body = yield source, _index_at(idx, at), both(valid, inside)
                body = select(inside, body, const(0, body.dtype))
                counters = {a: found.counter for a, found in sparse.items()}
                counted = [counters.get(a, r) for a, r in zip(axes, ranges, strict=True)]
                ranges = tuple(r for r in counted if not r.is_const)
            simpler = one_sum(body, wide, self.sums)
            body, ranges = simpler.term, (*ranges, *simpler.ranges)
            if not ranges:
                return cast(simpler.exact, node.dtype)
            if simpler.finite:
                self.sums[body] = simpler
        total = Expr(ExprOp.REDUCE, wide, (cast(body, wide),), (monoid.name, ranges))
        return cast(total, node.dtype)

    def _ranges_of(self, node: LazyOp, axes: Sequence[int]) -> tuple[Expr, ...]:
        """The ranges that a REDUCE or a STAGE has of its own, over `axes` of its source."""
        ranges = self._own_ranges.get(node)
        if ranges is None:
            number = next(self._number)
            ranges = tuple(range_(f"r{number}.{a}", node.src[0].shape[a]) for a in axes)
            self._own_ranges[node] = ranges
        return ranges

    def _stage(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        """A block of a stage, over all of its axes, read at `idx`.

        The block is the same for every index along these axes. So it is computed under the parts of
        the condition that do not depend on them.
        """
        axes = [a for a in node.arg if not idx[a].is_const]
        ranges = self._ranges_of(node, axes)
        at = dict(zip(axes, ranges, strict=True))
        along = frozenset(r for a in axes for r in idx[a].ranges)
        outside = all_of(part for part in conjuncts(valid) if not part.ranges & along)
        body = yield node.src[0], _index_at(idx, at), outside
        if not ranges:
            return body
        index = tuple(idx[a] for a in axes)
        self.stages.append((node, idx))
        return Expr(ExprOp.STAGE, body.dtype, (body, *index), ("stage", ranges))

    def _elementwise(self, node: LazyOp, idx: Index, valid: Expr) -> Rule:
        operands = []
        for source in node.src:
            operands.append((yield source, idx, valid))
        return elementwise(node.op, operands, node.arg)


def _index_at(idx: Index, at: Mapping[int, Expr]) -> Index:
    """An index with some axes replaced."""
    return tuple(at.get(a, i) for a, i in enumerate(idx))


def _sparse_axes(
    body: Expr, at: Mapping[int, Expr], phased: frozenset[Expr]
) -> dict[int, NonzeroTerms]:
    """The axes of a sum along which only some terms are not zero, each with these terms.

    A condition may relate two axes, as that of a diagonal does. The index along one of them then
    follows from the index along the other, so only one can be shortened.
    """
    found: dict[int, NonzeroTerms] = {}
    for axis, r in at.items():
        if any(r in other.index.ranges for other in found.values()):
            continue
        terms = nonzero_terms(body, r, phased)
        if terms is not None and terms.index.ranges.isdisjoint(at[a] for a in found):
            found[axis] = terms
    return found


def _needed_bounds(valid: Expr, idx: Index, shape: Sequence[sint]) -> Expr:
    """The condition `valid`, or TRUE if the index is inside of the shape without it.

    A condition that keeps no index inside only says where a value is used. Left in, it would make a
    separate value, and a separate loop of a reduce, for each use, and multiply them along a chain
    of ops.
    """
    pairs = zip(idx, shape, strict=True)
    return TRUE if all(within(i, size) is TRUE for i, size in pairs) else valid


def _monoid_of(node: LazyOp) -> Monoid:
    """The monoid of a REDUCE node."""
    assert isinstance(node.op, ReduceOps)
    assert node.op is not ReduceOps.SCATTER, f"{node.op} is only ever the root of a kernel"
    row = REDUCED[node.op]
    name = row.bools if node.dtype is BOOL and row.bools is not None else row.name
    return MONOIDS[name]
