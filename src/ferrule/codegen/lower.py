"""`LazyOp -> Kernel`: the nests that compute what an AST stores.

`expressions.py` says what the value of each element is. Here every STORE gets a root nest, and
every REDUCE in a value becomes a nest in the innermost loop that it varies with: so softmax or
layernorm come out as one kernel without any rule for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ferrule.base.records import dataclass
from ferrule.codegen.elementwise import elementwise
from ferrule.codegen.expressions import Lowering
from ferrule.codegen.kernel import MONOIDS, Compute, Guard, Kernel, Loop, Nest, Store
from ferrule.codegen.polyphase import digits_of, strides_of
from ferrule.codegen.sums import Sum
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import (
    BOOL,
    INDEX,
    TRUE,
    Expr,
    ExprOp,
    alu,
    as_expr,
    both,
    cast,
    const,
    less,
    load,
    range_,
    sint,
    substitute,
    toposort,
    uncast,
    within,
)
from ferrule.ir.lazyop import (
    BinaryOps,
    BufferOps,
    LazyOp,
    MemBuffer,
    MovementOps,
    ReduceOps,
    TernaryOps,
    how_scattered,
    scatter_start,
)
from ferrule.ir.op_table import scattered
from ferrule.ir.shape.movement import Index
from ferrule.ir.shape.shapetracker import ShapeTracker

# The nodes that become a nest.
_NESTED = frozenset({ExprOp.REDUCE, ExprOp.STAGE})


def lower(ast: LazyOp, name: str) -> Kernel:
    """The kernel of an AST, in loop order, with every reduce in the innermost loop that it varies
    with.

    If it is right only while some slots are finite, its guard has the kernel for any elements.
    """
    lowering = Lowering()
    builder = _Builder(lowering.sums)
    stores = stores_of(ast)
    for number, group in enumerate(_groups(stores)):
        builder.add_store(lowering, number, stores[number], group)
    kernel = Kernel(name, tuple(builder.nests), _slots(ast), tuple(ast.vars()))
    if not builder.exact:
        return kernel
    exact = replace(kernel, nests=tuple(builder.exact.get(n.name, n) for n in builder.nests))
    return replace(kernel, guard=Guard(frozenset(builder.finite), exact))


def stores_of(ast: LazyOp) -> list[LazyOp]:
    """The STORE nodes of an AST; a bare value is stored, row-major, to buffer 0."""
    if ast.op is BufferOps.SINK:
        return list(ast.src)
    if ast.op is BufferOps.STORE:
        return [ast]
    return [
        LazyOp(BufferOps.STORE, (ast,), MemBuffer(0, ast.dtype, ShapeTracker.from_shape(ast.shape)))
    ]


def _slots(ast: LazyOp) -> tuple[DType, ...]:
    dtype_of: dict[int, DType] = {}
    stores = stores_of(ast)
    for root in stores:
        for node in root.toposort():
            if node.op in (BufferOps.LOAD, BufferOps.STORE):
                dtype_of[node.arg.idx] = node.arg.dtype
    return tuple(dtype_of.get(i, dtypes.float32) for i in range(max(dtype_of) + 1))


@dataclass(frozen=True)
class _Memory:
    """The memory that a STORE reads and writes."""

    elements: frozenset[LazyOp]
    """LOADs of more than one element."""
    read: frozenset[int]
    written: int

    @staticmethod
    def of(node: LazyOp) -> _Memory:
        """The memory of a STORE."""
        loads = [x for x in node.src[0].toposort() if x.op is BufferOps.LOAD]
        strides = {x: [as_expr(n) for n in x.arg.st.view.strides] for x in loads}
        several = frozenset(x for x in loads if any(n is not const(0) for n in strides[x]))
        return _Memory(several, frozenset(x.arg.idx for x in loads), node.arg.idx)

    def meets(self, other: _Memory) -> bool:
        """True if both read the same elements, or one of them writes what the other reads.

        Otherwise a shared loop would only go through more places in memory at once. These are often
        a multiple of a page apart, and the first cache has no room for so many.
        """
        same = not self.elements.isdisjoint(other.elements) or self.written == other.written
        return same or self.written in other.read or other.written in self.read


def _groups(stores: Sequence[LazyOp]) -> list[int]:
    """A number for each STORE, equal for STOREs whose memory meets, directly or by way of others.

    Overwritten elements that another STORE reads must be read first, so both belong in one loop.
    """
    memories = [_Memory.of(store) for store in stores]
    groups = list(range(len(stores)))
    for number, memory in enumerate(memories):
        for other in range(number):
            if groups[other] != groups[number] and memory.meets(memories[other]):
                old, new = groups[number], groups[other]
                groups = [new if group == old else group for group in groups]
    return groups


class _Builder:
    """Collects nests; a REDUCE or STAGE becomes a nest once for each place where it is needed."""

    def __init__(self, sums: Mapping[Expr, Sum]) -> None:
        self.sums = sums
        self.nests: list[Nest] = []
        self.finite: set[int] = set()
        """The slots that have to be finite."""
        self.exact: dict[str, Nest] = {}
        """By name: the nests that replace those that need finite slots."""
        self._placed: dict[tuple[Expr, tuple[str, tuple[Expr, ...]], tuple[str, int]], str] = {}
        self._used: set[str] = set()
        """The names of all loops so far."""
        self._number = itertools.count()
        self._roots: dict[tuple[Any, ...], tuple[str, Index, Expr]] = {}
        """By shape and group of STOREs: the nest of those without reduces, its index, and the
        condition that the index is inside of the shape."""
        self._staged: tuple[Nest, dict[LazyOp, Index]] | None = None
        """The last root nest with stages, and the index at which each stage is read."""

    def add_store(self, lowering: Lowering, number: int, node: LazyOp, group: int) -> None:
        """A root nest for a STORE; those of one shape and group without reduces share a nest."""
        value: LazyOp = node.src[0]
        if value.op is ReduceOps.SCATTER:
            self._add_scatter(lowering, number, node)
            return
        name = f"out{number}"
        if self._joins_root(lowering, name, node, group):
            return
        idx = _index(f"i{number}", node.shape)
        met = len(lowering.stages)
        ranges = [i for i in idx if not i.is_const]
        found = lowering.lower(value, idx, phased=frozenset(ranges))
        compute = _store(name, node, found, idx)
        stages = dict(lowering.stages[met:])
        if stages and self._add_sum(compute, ranges, stages):
            return
        digits = digits_of(compute.value, ranges)
        if digits:
            node = _by_digits(node, [digits.get(i, ()) for i in idx])
            self.add_store(lowering, number, node, group)
            return
        strides = strides_of(compute.value, ranges)
        inside = TRUE
        if strides:
            compute, ranges, idx, inside = _in_phases(name, lowering, node, idx, strides)
        order = self._chain_order(compute.value, ranges)
        self._used.update([r.name for r in order])
        nest = Nest(name, (compute,), tuple(Loop(r) for r in order))
        nest = self._place(nest, [(name, order)])
        self.nests.append(nest)
        if stages:
            self._staged = nest, stages
        if not any(e.op is ExprOp.READ for e in nest.nodes):
            self._roots[node.shape, group] = name, idx, inside

    def _joins_root(self, lowering: Lowering, name: str, node: LazyOp, group: int) -> bool:
        """Computes a STORE in the loops of an earlier one, if it has no reduces either."""
        found = self._roots.get((node.shape, group))
        if found is None:
            return False
        root, idx, inside = found
        compute = _store(name, node, lowering.lower(node.src[0], idx, inside), idx, inside)
        if any(e.op in _NESTED for e in toposort([compute.value])):
            return False
        at = next(p for p, nest in enumerate(self.nests) if nest.name == root)
        nest = self.nests[at]
        self.nests[at] = Nest(root, (*nest.computes, compute), nest.loops)
        return True

    def _add_sum(self, c: Compute, idx: list[Expr], stages: dict[LazyOp, Index]) -> bool:
        """Compute a STORE of a sum over a stage of another root inside of that root.

        The part of each block is added to memory as soon as the block is there. False if the STORE
        is no such sum.
        """
        if self._staged is None or c.store is None:
            return False
        root, known = self._staged
        same = _matching_ranges(stages, known)
        if same is None or c.value.op is not ExprOp.REDUCE or c.value.arg[0] != "sum":
            return False
        (term,) = c.value.src
        (summed, *others) = c.value.arg[1]
        depth = len(same)
        outer = [loop.range for loop in root.loops[:depth]]
        if others or summed not in same or set(outer) != set(same.values()):
            return False
        index, valid, term = (e.substitute(same) for e in (c.store.index, c.store.valid, term))
        later = both(valid, less(const(0), same[summed]))
        old = load(c.store.slot, term.dtype, index, later)
        value = alu(ExprOp.ADD, old, term)
        added = Compute(c.name, value, store=Store(c.store.slot, index, valid))
        own = [r for r in idx if r not in same]
        self._used.update([r.name for r in own])
        nest = Nest(c.name, (added,), tuple(Loop(r) for r in own), (root.name, depth))
        done, self.nests = self.nests, []
        nest = self._place(nest, [(root.name, outer), (nest.name, own)])
        wanted = {e.arg for n in (*self.nests, nest) for e in n.reads}
        ready = [p + 1 for p, n in enumerate(done) if any(x.name in wanted for x in n.computes)]
        at = max(ready, default=0)
        self.nests = [*done[:at], *self.nests, nest, *done[at:]]
        return True

    def _add_scatter(self, lowering: Lowering, number: int, node: LazyOp) -> None:
        """Add a nest that stores the identity or the base, then one that goes through the source in
        order.
        """
        scatter: LazyOp = node.src[0]
        value, index, *_ = scatter.src
        axis, size = scatter.arg[:2]
        how = how_scattered(scatter.arg)
        name = f"out{number}"
        idx = _index(f"i{number}", value.shape)
        at = cast(lowering.lower(index, idx), INDEX)
        offset, valid = node.arg.st.index((*idx[:axis], at, *idx[axis + 1 :]))
        valid = both(valid, within(at, size))
        new = lowering.lower(value, idx)
        if how != "last":
            new = _combined(how, load(node.arg.idx, node.dtype, offset, valid), new)
        compute = Compute(name, new, store=Store(node.arg.idx, offset, valid))
        order = [i for i in idx if not i.is_const]
        nest = self._place(Nest(name, (compute,), tuple(Loop(r) for r in order)), [(name, order)])
        self.nests.extend((*_initial_values(f"{name}z", lowering, number, node), nest))

    def _chain_order(self, value: Expr, ranges: list[Expr]) -> list[Expr]:
        """The loop order in which every reduce can be computed as far out as possible."""
        sets = [e.ranges for e in toposort([value]) if e.op in _NESTED]
        return sorted(ranges, key=lambda r: -sum(r in s for s in sets))

    def _place(self, nest: Nest, path: list[tuple[str, list[Expr]]]) -> Nest:
        """Make nests of the reduces below, and let the nest read them."""
        computes = []
        for c in nest.computes:
            value = self._extract(c.value, path)
            store = c.store
            if store is not None:
                index, valid = (self._extract(e, path) for e in (store.index, store.valid))
                store = Store(store.slot, index, valid, store.nontemporal)
            computes.append(Compute(c.name, value, c.ranges, c.monoid, store))
        return Nest(nest.name, tuple(computes), nest.loops, nest.at)

    def _extract(self, value: Expr, path: list[tuple[str, list[Expr]]]) -> Expr:
        outermost = _outermost_nested(value)
        mapping = {
            e: Expr(ExprOp.READ, e.dtype, e.src[1:], self._nest_of(e, path)) for e in outermost
        }
        return value.substitute(mapping) if mapping else value

    def _nest_of(self, node: Expr, path: list[tuple[str, list[Expr]]]) -> str:
        """The nest of a REDUCE or STAGE, in the innermost loop of the path that it varies with."""
        body, (kind, ranges) = node.src[0], node.arg
        monoid = MONOIDS[kind] if node.op is ExprOp.REDUCE else None
        needed = body.ranges - frozenset(ranges)
        depth_of = [(name, d + 1, r) for name, ranges in path for d, r in enumerate(ranges)]
        place = (path[0][0], 0)
        for name, depth, r in depth_of:
            if r in needed:
                place = (name, depth)
        key = (body, node.arg, place)
        if key in self._placed:
            return self._placed[key]
        name = f"{kind}{next(self._number)}"
        simpler = self.sums.get(uncast(body)) if kind == "sum" else None
        exact = body if simpler is None else cast(simpler.exact, body.dtype)
        # Ranges belong to the node, loops to each use.
        if any(r.name in self._used for r in ranges):
            fresh = {r: range_(f"{r.name}@{name}", r.size) for r in ranges}
            body, exact = substitute([body, exact], fresh)
            ranges = tuple(fresh.values())
        self._used.update([r.name for r in ranges])
        around = itertools.takewhile(lambda p: p[0] != place[0], path)
        outer = [*around, (place[0], dict(path)[place[0]][: place[1]])]
        nest = Nest(
            name,
            (Compute(name, body, ranges if monoid is None else (), monoid),),
            tuple(Loop(r) for r in ranges),
            place,
        )
        self._placed[key] = name
        if simpler is not None:
            self.finite |= simpler.finite
            self.exact[name] = Nest(name, (Compute(name, exact, (), monoid),), nest.loops, place)
        self.nests.append(self._place(nest, [*outer, (name, list(ranges))]))
        return name


def _matching_ranges(
    stages: dict[LazyOp, Index], known: dict[LazyOp, Index]
) -> dict[Expr, Expr] | None:
    """The ranges that index some stages, mapped to those of the same stages elsewhere.

    None if there is no such mapping.
    """
    same: dict[Expr, Expr] = {}
    for node, idx in stages.items():
        if node not in known:
            return None
        for axis, (mine, theirs) in enumerate(zip(idx, known[node], strict=True)):
            if axis in node.arg or mine is theirs:
                continue
            if mine.op is not ExprOp.RANGE or same.setdefault(mine, theirs) is not theirs:
                return None
    return same


def _outermost_nested(value: Expr) -> list[Expr]:
    out: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in _NESTED:
            out[node] = None
        else:
            stack.extend(reversed(node.src))
    return list(out)


def _index(prefix: str, shape: Sequence[sint]) -> Index:
    """A range for each axis that has more than one place."""
    return tuple(const(0) if n == 1 else range_(f"{prefix}.{a}", n) for a, n in enumerate(shape))


def _store(name: str, node: LazyOp, value: Expr, idx: Index, inside: Expr = TRUE) -> Compute:
    offset, valid = node.arg.st.index(idx)
    return Compute(name, value, store=Store(node.arg.idx, offset, both(valid, inside)))


def _combined(how: str, old: Expr, new: Expr) -> Expr:
    """A stored element of a SCATTER combined with a new one."""
    binary = scattered(how).binary
    if binary is not None:
        return elementwise(binary, [old, new], None)
    assert how == "min", f"no rule combines by {how}"
    if new.dtype is BOOL:
        return elementwise(BinaryOps.MUL, [old, new], None)
    less_or_nan = elementwise(BinaryOps.CMPLT, [new, old], None)
    if dtypes.is_float(new.dtype):
        is_nan = elementwise(BinaryOps.CMPNE, [new, new], None)
        less_or_nan = elementwise(BinaryOps.MAX, [less_or_nan, is_nan], None)
    return elementwise(TernaryOps.WHERE, [less_or_nan, new, old], None)


def _initial_values(name: str, lowering: Lowering, number: int, node: LazyOp) -> list[Nest]:
    """The nest that stores the initial values of a SCATTER; none if these are in place already."""
    _, _, *base = node.src[0].src
    idx = _index(f"z{number}", node.shape)
    identity = const(scatter_start(how_scattered(node.src[0].arg), node.dtype), node.dtype)
    value = lowering.lower(base[0], idx) if base else identity
    start = _store(name, node, value, idx)
    assert start.store is not None
    if value is load(start.store.slot, node.dtype, start.store.index, start.store.valid):
        return []
    return [Nest(name, (start,), tuple(Loop(r) for r in idx if not r.is_const))]


def _by_digits(node: LazyOp, divisors: Sequence[Sequence[int]]) -> LazyOp:
    """A STORE with an axis for each digit that the divisors of its axes leave."""
    shape: list[sint] = []
    for size, by in zip(node.shape, divisors, strict=True):
        shape += [n // m for n, m in itertools.pairwise((size, *by, 1))] if by else [size]
    value = node.src[0].replace_with_movement_ops([(MovementOps.RESHAPE, tuple(shape))])
    memory = replace(node.arg, st=node.arg.st.reshape(shape))
    return LazyOp(BufferOps.STORE, (value,), memory)


def _in_phases(
    name: str, lowering: Lowering, node: LazyOp, idx: Index, strides: Mapping[Expr, int]
) -> tuple[Compute, list[Expr], Index, Expr]:
    """A STORE whose index is `stride * place + phase` along some axes: the compute, its ranges, its
    index, and the condition that the index is inside of the shape.
    """
    ranges: list[Expr] = []
    index: list[Expr] = []
    inside = TRUE
    for i in idx:
        if i not in strides:
            index.append(i)
            ranges += [] if i.is_const else [i]
            continue
        stride = strides[i]
        place = range_(i.name, (i.size + (stride - 1)) // stride)
        phase = range_(f"{i.name}p", stride)
        index.append(place * stride + phase)
        ranges += [place, phase]
        tail = less(index[-1], i.size)
        if tail is not TRUE:
            lowering.tails[tail] = place
            inside = both(inside, tail)
    whole = tuple(index)
    compute = _store(name, node, lowering.lower(node.src[0], whole, inside), whole, inside)
    return compute, ranges, whole, inside
