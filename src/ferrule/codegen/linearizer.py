"""`Kernel -> list[UOp]`: loops opened in order, every value in the outermost loop where its
operands are known.

Vector loops become lanes, unrolled loops become copies, and accumulators become registers where the
loops inside a reduce are all lanes or copies; otherwise they live in scratch memory and are held in
registers across the innermost reduce loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ferrule.codegen import transcendental
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.intrinsics import MMA
from ferrule.codegen.kernel import (
    LANES_OR_COPIES,
    Compute,
    Kernel,
    Kind,
    Loop,
    Monoid,
    Nest,
    expressions,
    reads,
    show,
    verify,
)
from ferrule.codegen.lower import lower, stores_of
from ferrule.codegen.opt import Opt, apply_opts
from ferrule.codegen.primitives.editing import descendants, mapped
from ferrule.codegen.primitives.products import matrix_operands
from ferrule.codegen.threads import Digit, Threads
from ferrule.codegen.uops import UOp, UOps
from ferrule.codegen.uops import show as show_program
from ferrule.dtype import DType, dtypes
from ferrule.expr import (
    COSTLY,
    FALSE,
    INDEX,
    TRUE,
    Expr,
    ExprOp,
    as_int,
    both,
    conjuncts,
    const,
    load,
    range_,
    rebuild,
    sint,
    substitute,
    toposort,
)
from ferrule.ops import LazyOp, ReduceOps
from ferrule.target import Target

I32 = dtypes.int32
I64 = dtypes.int64
LANE = -1  # stands for "every lane" in the place of an index
_DEEPEST = 64  # recursion beyond this depth goes bottom-up instead
_OWN_OPERANDS = frozenset({ExprOp.LOAD, ExprOp.READ, ExprOp.DOT})  # have a way of their own
# A value that is added to an accumulator -> one operation that does both; a DOT adds to 0 before.
_FUSED = {ExprOp.MUL: ExprOp.MULACC, ExprOp.DOT: ExprOp.DOT}


@dataclass
class _Scope:
    """The body of an open loop: its code so far, and the values that are known in it."""

    items: list[UOp] = field(default_factory=list)
    values: dict[Expr, UOp] = field(default_factory=dict)
    ranges: dict[Expr, UOp] = field(default_factory=dict)


class Linearizer:
    """An AST on its way to a program for a target: `kernel`, the `opts` chosen for it, and its
    `uops`.

    >>> from ferrule.target import detect_cpu
    >>> from ferrule.ops import BufferOps, LazyOp, MemBuffer, UnaryOps
    >>> from ferrule.shape.shapetracker import ShapeTracker
    >>> x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, ShapeTracker.from_shape((4,))))
    >>> Linearizer(LazyOp(UnaryOps.NEG, (x,)), detect_cpu()).linearize().uops[0].op.name
    'CONST'
    """

    def __init__(
        self,
        ast: LazyOp,
        target: Target,
        opts: Sequence[Opt] | None = None,
        name: str | None = None,
    ) -> None:
        self.ast = ast
        self.target = target
        self.name = name or kernel_name(ast)
        self.kernel = lower(ast, self.name)
        if opts is None:
            plan = schedule(self.kernel, target)
            self.opts = tuple(plan.opts)
            self.scheduled = plan.kernel
            verify(self.scheduled)
        else:
            self.opts = tuple(opts)
            self.scheduled = apply_opts(self.kernel, self.opts)
        self.uops: list[UOp] = []

    def __str__(self) -> str:
        """The loop tree, as scheduled."""
        return show(self.scheduled)

    @property
    def blocks(self) -> sint:
        """How many chunks the kernel has: what EXTENT says, as an expression of the variables."""
        sizes = [nest.loops[0].range.size for nest in shared_roots(self.scheduled)]
        return as_int(sum(sizes, const(0))) if sizes else 1

    @property
    def threads(self) -> int:
        """How many threads do a chunk together."""
        return Threads(self.scheduled).count

    def program(self) -> str:
        """The UOps as text."""
        return show_program(self.uops)

    def linearize(self) -> Linearizer:
        """Fill in `uops`."""
        if not self.uops:
            self.uops = linearize(self.scheduled, self.target)
        return self


def kernel_name(ast: LazyOp) -> str:
    """A readable name and a digest: equal ASTs have equal names."""
    stores = stores_of(ast)
    shape = "x".join(str(n) if isinstance(n, int) else "n" for n in stores[0].shape) or "1"
    found = [
        node for store in stores for node in store.toposort() if isinstance(node.op, ReduceOps)
    ]
    what = found[-1].op.name.lower() if found else "map"
    return f"{what}_{shape}_{ast.key[:8]}"


def linearize(kernel: Kernel, target: Target | None = None) -> list[UOp]:
    """The program of a kernel; one for blocks of threads where the target has them."""
    blocks = target is not None and target.block_threads > 1
    narrow = target is not None and target.index_bits == 32
    kernel = _once(expand(kernel))
    if blocks:
        kernel = _without_single(kernel)
    return _Linearizer(kernel, blocks=blocks, narrow=narrow).run()


def shared_roots(kernel: Kernel) -> list[Nest]:
    """The root nests that are shared out in chunks."""
    return [n for n in kernel.roots if n.loops and n.loops[0].kind is Kind.PARALLEL]


def expand(kernel: Kernel) -> Kernel:
    """The kernel with its transcendental functions written out."""
    nests = []
    for nest in kernel.nests:
        computes = tuple(replace(c, value=_expand(c.value)) for c in nest.computes)
        nests.append(replace(nest, computes=computes))
    return replace(kernel, nests=tuple(nests))


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


def _without_single(kernel: Kernel) -> Kernel:
    """The kernel with 0 for every range of one iteration, so that equal indices are one."""
    loops = [loop for nest in kernel.nests for loop in nest.loops]
    zeros = {loop.range: const(0) for loop in loops if loop.range.size is const(1)}
    if not zeros:
        return kernel
    return replace(kernel, nests=tuple(mapped(nest, zeros) for nest in kernel.nests))


def _runs_once(loop: Loop) -> bool:
    size = loop.range.size
    whole = loop.peel is None and loop.start is None and loop.end is None
    return loop.kind is Kind.SERIAL and whole and size.is_const and size.arg == 1


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


class _Linearizer:
    def __init__(self, kernel: Kernel, *, blocks: bool, narrow: bool) -> None:
        self.kernel = kernel
        self.blocks = blocks
        self.narrow = narrow and _fits_int32(kernel)
        self.index = I64
        self.thread: UOp | None = None
        self.threads = Threads(kernel)
        self.prelude: list[UOp] = []
        self.scopes: list[_Scope] = [_Scope()]
        self.params: dict[int, UOp] = {}
        self.locals: dict[str, UOp] = {}
        self.constants: dict[tuple[DType, int, str], UOp] = {}
        self.splats: dict[tuple[UOp, int], UOp] = {}
        self.level: dict[UOp, int] = {}
        self.lane: Expr | None = None
        self.copies: dict[Expr, Expr] = {}
        self.current: dict[tuple[object, ...], Expr] = {}
        self.depth = 0
        self.kept: list[dict[tuple[str, tuple[int, ...]], UOp]] = [{}]
        self.in_registers = _registers(kernel, self.threads)
        self.filled: dict[str, int] = {}
        self.fresh: dict[UOp, int] = {}
        self.names = itertools.count()
        self.stores = frozenset(c.store.slot for n in kernel.nests for c in n.computes if c.store)

    def _memory_dtype(self, dtype: DType) -> DType:
        """The dtype of a value in a UOp: index arithmetic is int64, or int32, by now."""
        return self.index if dtype is INDEX else dtype

    # -- the whole ---------------------------------------------------------------------------------

    def run(self) -> list[UOp]:
        for slot, variable in enumerate(self.kernel.variables):
            u = self._top(UOp(UOps.VALUE, I64, arg=len(self.kernel.slots) + slot))
            self.scopes[0].values[variable] = u
        roots = self.kernel.roots
        shared = shared_roots(self.kernel)
        offsets: list[Expr] = [const(0)]
        for nest in shared:
            offsets.append(offsets[-1] + nest.loops[0].range.size)
        extent = self.value(offsets[-1] if shared else const(1))
        self._top(UOp(UOps.EXTENT, src=(extent,), arg=self.threads.count if self.blocks else None))
        if self.narrow:
            self._narrow()
        start = self._typed(self._top(UOp(UOps.START, I64)), self.index)
        stop = self._typed(self._top(UOp(UOps.STOP, I64)), self.index)
        for slot, dtype in enumerate(self.kernel.slots):
            self.params[slot] = self._top(UOp(UOps.PARAM, dtype, arg=slot))
        for nest in roots:
            if nest in shared:
                offset = offsets[shared.index(nest)]
                self._shared_root(nest, start, stop, offset, alone=len(shared) == 1)
            else:
                self._first_chunk_only(nest, start, stop, bool(shared))
        return self.scopes[0].items

    def _narrow(self) -> None:
        """From here on an index is an int32."""
        values = self.scopes[0].values
        known: dict[Expr, UOp] = {v: self._typed(values[v], I32) for v in self.kernel.variables}
        self.index = I32
        values.clear()
        values.update(known)

    def _shared_root(self, nest: Nest, start: UOp, stop: UOp, offset: Expr, *, alone: bool) -> None:
        """The chunks [offset, offset + size) of a kernel belong to this nest."""
        if alone:
            self._loops(nest, 0, bounds=(start, stop))
            return
        size = self.value(nest.loops[0].range.size)
        before = self.value(offset)
        zero = self.constant(0, self.index, 1)
        first = self._top(UOp(UOps.ALU, self.index, 1, (start, before), ExprOp.SUB))
        first = self._top(UOp(UOps.ALU, self.index, 1, (first, zero), ExprOp.MAX))
        last = self._top(UOp(UOps.ALU, self.index, 1, (stop, before), ExprOp.SUB))
        last = self._top(UOp(UOps.ALU, self.index, 1, (last, size), ExprOp.MIN))
        self._loops(nest, 0, bounds=(first, last))

    def _first_chunk_only(self, nest: Nest, start: UOp, stop: UOp, guarded: bool) -> None:
        if not guarded:
            self._loops(nest, 0)
            return
        zero = self.constant(0, self.index, 1)
        one = self.constant(1, self.index, 1)
        last = self._top(UOp(UOps.ALU, self.index, 1, (stop, one), ExprOp.MIN))
        first = self._top(UOp(UOps.ALU, self.index, 1, (start, zero), ExprOp.MAX))
        self._open(None, first, last)
        self._loops(nest, 0)
        self._close()

    # -- loops -------------------------------------------------------------------------------------

    def _open(self, loop: Loop | None, start: UOp, stop: UOp) -> None:
        step = self.constant(1, self.index, 1)
        name = loop.range.name if loop is not None else "once"
        counter = UOp(UOps.LOOP, self.index, 1, (start, stop, step), name)
        scope = _Scope([counter])
        self.scopes.append(scope)
        self.kept.append({})
        self.level[counter] = len(self.scopes) - 1
        if loop is not None:
            scope.values[loop.range] = counter

    def _close(self) -> None:
        scope = self.scopes.pop()
        self.kept.pop()
        counter = scope.items[0]
        self.scopes[-1].items.extend([*scope.items, UOp(UOps.END, src=(counter,))])

    def _loops(self, nest: Nest, depth: int, bounds: tuple[UOp, UOp] | None = None) -> None:
        """The loops of a nest from a depth on, and its body."""
        self._children(nest, depth)
        if depth == _first_reduce(nest):
            self._reduce(nest, depth)
            return
        if depth == len(nest.loops):
            self._body(nest)
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.UNROLL:
            for copy in range(loop.size):
                self.copies[loop.range] = const(copy)
                self._loops(nest, depth + 1)
            del self.copies[loop.range]
        elif loop.kind is Kind.VECTOR:
            outside, self.lane = self.lane, loop.range
            self._loops(nest, depth + 1)
            self.lane = outside
        elif loop.kind is Kind.TRANSPOSE:
            self._transpose(nest, loop, nest.loops[depth + 1])
        elif loop.kind is Kind.THREAD:
            self._loops(nest, depth + 1)
        else:
            self._serial(loop, bounds, lambda: self._loops(nest, depth + 1))

    def _children(self, nest: Nest, depth: int) -> None:
        """What is computed where `depth` loops of a nest are open.

        Threads wait for each other before they replace what they share, if another iteration may
        still read it, and before they read it.
        """
        filled: set[str] = set()
        for child in self.kernel.children(nest.name, depth):
            family = [self.kernel.by_name[name] for name in descendants(self.kernel, child.name)]
            if filled & {e.arg for n in family for e in reads(expressions(n))}:
                self._barrier()
                filled.clear()
            shares = {c.name for c in child.computes} & self.threads.shared
            if shares and not filled and self._in_serial_loop():
                self._barrier()
            self._child(child)
            filled |= shares
        if filled:
            self._barrier()

    def _barrier(self) -> None:
        self._place(UOp(UOps.BARRIER), len(self.scopes) - 1)

    def _in_serial_loop(self) -> bool:
        """Whether a loop other than that over chunks, of which a block does one, is open."""
        loops = [scope.items[0] for scope in self.scopes[1:]]
        return any(UOps.START not in _sources(loop.src[0]) for loop in loops)

    def _child(self, nest: Nest) -> None:
        outside, self.lane = self.lane, None
        for c in nest.computes:
            self.filled.pop(c.name, None)
        self._loops(nest, 0)
        for c in nest.computes:
            self.filled[c.name] = len(self.scopes) - 1
        self.lane = outside

    def _serial(self, loop: Loop, bounds: tuple[UOp, UOp] | None, body: Callable[[], None]) -> None:
        size = loop.range.size if loop.end is None else loop.end
        first = const(0) if loop.start is None else loop.start
        start, stop = bounds or (self._plain(first), self._plain(size))
        if loop.peel is None:
            self._open(loop, start, stop)
            body()
            self._close()
            return
        last = self.value(loop.range.size - 1)
        conditions = dict.fromkeys(conjuncts(loop.peel), TRUE)
        self.copies.update(conditions)
        if (loop.range.size - 1).max > 0:
            self._open(loop, start, self._least(stop, last) if bounds else last)
            body()
            self._close()
        for condition in conditions:
            del self.copies[condition]
        if bounds:
            last = self._emit(UOp(UOps.ALU, self.index, 1, (start, last), ExprOp.MAX))
        self._open(loop, last, stop)
        body()
        self._close()

    def _least(self, a: UOp, b: UOp) -> UOp:
        return self._emit(UOp(UOps.ALU, self.index, 1, (a, b), ExprOp.MIN))

    def _transpose(self, nest: Nest, along: Loop, across: Loop) -> None:
        """Squares of values, computed as vectors along one range and kept or stored as vectors
        along the other. Stores come last, as in `_body`.
        """
        squares = []
        for c in nest.computes:
            rows = []
            self.lane = along.range
            for i in range(across.size):
                self.copies[across.range] = const(i)
                rows.append(self._widen(self.vector(c.value), along.size))
            del self.copies[across.range]
            columns = self._transposed(rows)
            if c.store is None:
                self._put_columns(c, columns, along, across)
            else:
                squares.append((c, columns))
        for c, columns in squares:
            self._put_columns(c, columns, along, across)

    def _put_columns(self, c: Compute, columns: list[UOp], along: Loop, across: Loop) -> None:
        self.lane = across.range
        for i, column in enumerate(columns):
            self.copies[along.range] = const(i)
            self._write(c, column)
        del self.copies[along.range]
        self.lane = None

    def _transposed(self, rows: list[UOp]) -> list[UOp]:
        """Swap the off-diagonal blocks of 2n x 2n squares, for n from half the size down to 1."""
        size = len(rows)
        half = size // 2
        while half:
            upper = tuple(i if not i & half else size + i - half for i in range(size))
            lower = tuple(i + half if not i & half else size + i for i in range(size))
            for i in range(size):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i] = self._emit(UOp(UOps.SHUFFLE, a.dtype, size, (a, b), upper))
                    rows[i + half] = self._emit(UOp(UOps.SHUFFLE, a.dtype, size, (a, b), lower))
            half //= 2
        return rows

    # -- reduces -----------------------------------------------------------------------------------

    def _reduce(self, nest: Nest, depth: int) -> None:
        """Accumulate: in registers from `hold` on, which is where only reduces, lanes and copies
        remain.
        """
        hold = _hold_depth(nest)
        if hold == depth:
            accumulators = self._registers(nest, hold)
            self._accumulate(nest, hold, accumulators)
            self._finish(nest, hold, accumulators)
            return
        self._fill_identity(nest, depth)
        self._reduce_outer(nest, depth, hold)

    def _reduce_outer(self, nest: Nest, depth: int, hold: int) -> None:
        if depth == hold:
            accumulators = self._registers(nest, hold)
            self._accumulate(nest, hold, accumulators)
            self._finish(nest, hold, accumulators, partial=True)
            return
        if depth > _first_reduce(nest):
            self._children(nest, depth)
        loop = nest.loops[depth]
        if loop.kind is Kind.THREAD:
            self._reduce_outer(nest, depth + 1, hold)
            return
        self._serial(loop, None, lambda: self._reduce_outer(nest, depth + 1, hold))

    def _fill_identity(self, nest: Nest, depth: int) -> None:
        """Scratch accumulators start as the identity."""
        for c in nest.computes:
            inner = [loop for loop in nest.loops[depth:] if loop.range in c.ranges]
            identity = c.monoid.identity(c.value.dtype) if c.monoid else const(0, c.value.dtype)
            fill = Nest(c.name, (Compute(c.name, identity, c.ranges),), tuple(inner))
            self._loops_plain(fill, 0)

    def _loops_plain(self, nest: Nest, depth: int) -> None:
        """Loops without children or reduces."""
        if depth == len(nest.loops):
            for c in nest.computes:
                self._keep(c, self.vector(c.value))
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.THREAD:
            self._loops_plain(nest, depth + 1)
        elif loop.kind is Kind.UNROLL:
            for copy in range(loop.size):
                self.copies[loop.range] = const(copy)
                self._loops_plain(nest, depth + 1)
            del self.copies[loop.range]
        elif loop.kind is Kind.VECTOR:
            outside, self.lane = self.lane, loop.range
            self._loops_plain(nest, depth + 1)
            self.lane = outside
        else:
            self._open(loop, self.constant(0, self.index, 1), self.value(loop.range.size))
            self._loops_plain(nest, depth + 1)
            self._close()

    def _combinations(self, loops: Sequence[Loop]) -> Iterator[dict[Expr, Expr]]:
        """All copies of unrolled loops."""
        unrolled = [loop for loop in loops if loop.kind is Kind.UNROLL]
        for choice in itertools.product(*(range(loop.size) for loop in unrolled)):
            yield {loop.range: const(i) for loop, i in zip(unrolled, choice, strict=True)}

    def _registers(self, nest: Nest, hold: int) -> dict[tuple[str, tuple[int, ...]], UOp]:
        """A register for every copy of every accumulator; it starts as the identity."""
        out: dict[tuple[str, tuple[int, ...]], UOp] = {}
        for c in nest.computes:
            if c.monoid is None:
                continue
            inner = [loop for loop in nest.loops[hold:] if loop.range in c.ranges]
            lanes = prod(loop.size for loop in inner if loop.kind is Kind.VECTOR)
            identity = c.monoid.identity(c.value.dtype).arg
            for copies in self._combinations(inner):
                self.copies.update(copies)
                first = self.constant(identity, c.value.dtype, lanes)
                name = f"{c.name}.{next(self.names)}"
                register = UOp(UOps.REG, self._memory_dtype(c.value.dtype), lanes, (first,), name)
                out[(c.name, self._key(c))] = self._emit(register)
                self.fresh[register] = len(self.scopes)
                for r in copies:
                    del self.copies[r]
        return out

    def _own_read(self, c: Compute) -> Expr:
        read = Expr(ExprOp.READ, c.value.dtype, c.ranges, c.name)
        return read.substitute(self.copies) if self.copies else read

    def _key(self, c: Compute) -> tuple[int, ...]:
        """Which copy of an accumulator is meant now."""
        return tuple(int(self.copies[r].arg) if r in self.copies else LANE for r in c.ranges)

    def _accumulate(
        self, nest: Nest, depth: int, registers: dict[tuple[str, tuple[int, ...]], UOp]
    ) -> None:
        """The loops from `depth` on; the innermost lanes and copies update the registers."""
        if depth > _first_reduce(nest):
            self._children(nest, depth)
        rest = nest.loops[depth:]
        if rest and rest[-1].kind is Kind.MATRIX and rest[0].kind in LANES_OR_COPIES:
            self._multiply(nest, rest, registers)
            return
        if all(loop.kind in LANES_OR_COPIES for loop in rest):
            self._update(nest, rest, registers)
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.THREAD:
            self._accumulate(nest, depth + 1, registers)
            return
        if loop.kind in LANES_OR_COPIES:
            raise AssertionError(
                f"{nest.name}: the serial loops must be outside of lanes and copies"
            )
        self._serial(loop, None, lambda: self._accumulate(nest, depth + 1, registers))

    def _update(
        self, nest: Nest, rest: Sequence[Loop], registers: dict[tuple[str, tuple[int, ...]], UOp]
    ) -> None:
        outside = self.lane
        self.lane = next((loop.range for loop in rest if loop.kind is Kind.VECTOR), outside)
        for c in nest.computes:
            if c.monoid is None:
                self._keep_all(c, rest)
                continue
            kept = [loop for loop in rest if loop.range in c.ranges]
            combined = [loop for loop in rest if loop.range not in c.ranges]
            if len(combined) > 0 and not kept:
                self._update_tree(c, combined, registers)
                continue
            for step in self._combinations(combined):
                self.copies.update(step)
                for copies in self._combinations(kept):
                    self.copies.update(copies)
                    self._combine(c, registers[(c.name, self._key(c))])
                    for r in copies:
                        del self.copies[r]
                for r in step:
                    del self.copies[r]
        self.lane = outside

    def _multiply(
        self, nest: Nest, rest: Sequence[Loop], registers: dict[tuple[str, tuple[int, ...]], UOp]
    ) -> None:
        """A product of matrices for each copy of a warp's tile; its halves are copies too."""
        *copies, half, lane, term = rest
        (c,) = nest.computes
        for copy in self._combinations(copies):
            self.copies.update(copy)
            held = []
            for i in range(half.size):
                self.copies[half.range] = const(i)
                held.append(registers[(c.name, self._key(c))])
            del self.copies[half.range]
            before = self._joined([self._emit(UOp(UOps.GET, r.dtype, 2, (r,))) for r in held])
            parts = self._fragments(nest, half, lane, term)
            matrix = UOp(UOps.MMA, before.dtype, before.lanes, (*parts, before))
            after = self._place(matrix, len(self.scopes) - 1)
            for i, register in enumerate(held):
                order = tuple(range(i * lane.size, (i + 1) * lane.size))
                part = self._emit(UOp(UOps.SHUFFLE, after.dtype, lane.size, (after,), order))
                self._emit(UOp(UOps.SET, src=(register, part)))
                self.fresh.pop(register, None)
            for r in copy:
                del self.copies[r]

    def _fragments(self, nest: Nest, half: Loop, lane: Loop, term: Loop) -> tuple[UOp, UOp]:
        """What this thread holds of the operands of an MMA."""
        (c,) = nest.computes
        down, across = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
        left, right = (factor.src[0] for factor in matrix_operands(c.value, down))
        pair = range_("pair", MMA.near)
        outside, self.lane = self.lane, pair
        near = across * MMA.near + pair
        column = {across: down // MMA.near, lane.range: down % MMA.near}
        lefts, rights = [], []
        for i in range(MMA.terms // MMA.down):
            terms = {term.range: near + i * MMA.down}
            for h in range(half.size):
                lefts.append(self.vector(left.substitute({**terms, half.range: const(h)})))
            rights.append(self.vector(right.substitute({**terms, **column})))
        self.lane = outside
        return self._joined(lefts), self._joined(rights)

    def _joined(self, parts: list[UOp]) -> UOp:
        """Vectors one after the other."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [
                self._emit(
                    UOp(UOps.SHUFFLE, a.dtype, 2 * a.lanes, (a, b), tuple(range(2 * a.lanes)))
                )
                for a, b in pairs
            ]
        return parts[0]

    def _keep_all(self, c: Compute, rest: Sequence[Loop]) -> None:
        for copies in self._combinations(rest):
            self.copies.update(copies)
            self._keep(c, self.vector(c.value))
            for r in copies:
                del self.copies[r]

    def _update_tree(
        self,
        c: Compute,
        combined: Sequence[Loop],
        registers: dict[tuple[str, tuple[int, ...]], UOp],
    ) -> None:
        """Combine all copies, then all lanes, and last the register: short chains of dependent
        operations.
        """
        assert c.monoid is not None
        values = []
        for step in self._combinations(combined):
            self.copies.update(step)
            values.append(self.vector(c.value))
            for r in step:
                del self.copies[r]
        while len(values) > 1:
            pairs = [
                self._alu(c.monoid.op, a, b)
                for a, b in zip(values[::2], values[1::2], strict=False)
            ]
            values = pairs + ([values[-1]] if len(values) % 2 else [])
        total = values[0]
        if total.lanes > 1 and any(loop.kind is Kind.VECTOR for loop in combined):
            total = self._emit(UOp(UOps.HREDUCE, total.dtype, 1, (total,), c.monoid.op))
        elif any(loop.kind is Kind.VECTOR for loop in combined):
            total = self._repeat(
                c.monoid, total, next(o for o in combined if o.kind is Kind.VECTOR).size
            )
        self._add(c.monoid, registers[(c.name, self._key(c))], total)

    def _add(self, monoid: Monoid, register: UOp, value: UOp) -> None:
        """Combine a register with a value; the first one replaces the identity."""
        if self.fresh.pop(register, 0) != len(self.scopes):
            old = self._emit(UOp(UOps.GET, register.dtype, register.lanes, (register,)))
            value = self._alu(monoid.op, old, value)
        self._emit(UOp(UOps.SET, src=(register, value)))

    def _repeat(self, monoid: Monoid, value: UOp, times: int) -> UOp:
        """A value that is the same in all lanes, combined with itself."""
        vector = self._widen(value, times)
        return self._emit(UOp(UOps.HREDUCE, vector.dtype, 1, (vector,), monoid.op))

    def _combine(self, c: Compute, register: UOp) -> None:
        assert c.monoid is not None
        product = c.value
        if product.op is ExprOp.WHERE:  # it guards a tail that is peeled off, perhaps
            product = self._current(product)
        fused = _FUSED.get(product.op) if c.monoid.op is ExprOp.ADD else None
        if fused is None or not dtypes.is_float(product.dtype):
            self._add(c.monoid, register, self._widen(self.vector(product), register.lanes))
            return
        self.fresh.pop(register, None)
        old = self._emit(UOp(UOps.GET, register.dtype, register.lanes, (register,)))
        a, b = (self._widen(self.vector(s), register.lanes) for s in product.src[:2])
        new = self._emit(UOp(UOps.ALU, register.dtype, register.lanes, (a, b, old), fused))
        self._emit(UOp(UOps.SET, src=(register, new)))

    def _finish(
        self,
        nest: Nest,
        hold: int,
        registers: dict[tuple[str, tuple[int, ...]], UOp],
        *,
        partial: bool = False,
    ) -> None:
        """After the loops: the values stay in registers, or go to scratch; there they are combined
        with what is there, if they are a part of the result.
        """
        outside = self.lane
        for c in nest.computes:
            if c.monoid is None:
                continue
            inner = [loop for loop in nest.loops[hold:] if loop.range in c.ranges]
            self.lane = next((loop.range for loop in inner if loop.kind is Kind.VECTOR), outside)
            for copies in self._combinations(inner):
                self.copies.update(copies)
                register = registers[(c.name, self._key(c))]
                value = self._emit(UOp(UOps.GET, register.dtype, register.lanes, (register,)))
                value = self._across(nest, c.monoid, value)
                if partial:
                    before = self._widen(self._read_memory(self._own_read(c)), register.lanes)
                    value = self._alu(c.monoid.op, before, value)
                self._keep(c, value)
                for r in copies:
                    del self.copies[r]
        self.lane = outside

    def _across(self, nest: Nest, monoid: Monoid, value: UOp) -> UOp:
        """What several threads have combined, each a part, in all of them."""
        for digit in self.threads.combined(nest):
            arg = (monoid.op, digit.size, digit.step)
            value = UOp(UOps.ACROSS, value.dtype, value.lanes, (value,), arg)
            self._place(value, len(self.scopes) - 1)
        return value

    # -- bodies ------------------------------------------------------------------------------------

    def _body(self, nest: Nest) -> None:
        """All values come before the first store, which may replace what another reads."""
        values = []
        for c in nest.computes:
            value = self.vector(c.value)
            if c.store is None:
                self._write(c, value)
            else:
                values.append((c, value))
        for c, value in values:
            self._write(self._once_a_block(nest, c), value)

    def _once_a_block(self, nest: Nest, c: Compute) -> Compute:
        """A store by one of the threads that would do the same."""
        alone = self.threads.is_first(nest)
        if alone is TRUE or c.store is None:
            return c
        return replace(c, store=replace(c.store, valid=both(c.store.valid, alone)))

    def _write(self, c: Compute, value: UOp) -> None:
        """Store a value of this iteration, or keep it."""
        if c.store is None:
            self._keep(c, value)
            return
        valid = self._current(c.store.valid)
        if valid is not FALSE:
            pointer = self.params[c.store.slot]
            hint = "nontemporal" if c.store.nontemporal else None
            self._store(pointer, self._current(c.store.index), value, valid, hint)

    def _store(
        self, pointer: UOp, index: Expr, value: UOp, valid: Expr, hint: str | None = None
    ) -> None:
        lanes = value.lanes
        if self.lane is not None and (self.lane in index.ranges or self.lane in valid.ranges):
            lanes = int(self.lane.size.arg)
        at = self._address(index, lanes)
        mask = self._mask(valid, lanes)
        src = (pointer, at, self._widen(value, lanes), *([mask] if mask is not None else []))
        multiple = self._multiple(index, at, lanes)
        self._emit(UOp(UOps.STORE, src=src, arg=multiple if hint is None else hint))

    def _keep(self, c: Compute, value: UOp) -> None:
        """Remember a value of this iteration under its name, in a register or in scratch."""
        if c.name in self.in_registers:
            self.kept[-1][(c.name, self._key(c))] = value
            return
        index = self.threads.place(c, [self._current(r) for r in c.ranges])
        valid = TRUE
        if c.name in self.threads.shared:
            valid = self.threads.is_first(self.kernel.owner[c.name])
        self._store(self._local(c), index, value, valid)

    def _local(self, c: Compute) -> UOp:
        arg = self.kernel.memory[c.name]
        found = self.locals.get(arg[0])
        if found is None:
            op = UOps.SHARED if c.name in self.threads.shared else UOps.LOCAL
            if self.threads.count > 1:
                arg = (arg[0], self.threads.elements(c))
            found = self._top(UOp(op, self._memory_dtype(c.value.dtype), arg=arg))
            self.locals[arg[0]] = found
        return found

    # -- values ------------------------------------------------------------------------------------

    def vector(self, node: Expr) -> UOp:
        """The value of an expression now: its copies chosen, scalars where it is the same in all
        lanes.
        """
        return self.value(self._current(node))

    def _current(self, node: Expr) -> Expr:
        if not self.copies:
            return node
        relevant = {
            k: v for k, v in self.copies.items() if k.op is not ExprOp.RANGE or k in node.ranges
        }
        if not relevant:
            return node
        # Copies along one axis of a tile share what varies with the other axis only.
        key = (node, *relevant.items())
        found = self.current.get(key)
        if found is None:
            found = self.current[key] = substitute([node], relevant)[0]
        return found

    def value(self, node: Expr) -> UOp:
        """The UOp of an expression, in the outermost open loop where its operands are known."""
        for scope in reversed(self.scopes):
            found = scope.values.get(node)
            if found is not None:
                return found
        if self.depth == _DEEPEST:
            self._compute_below(node)
        self.depth += 1
        u = self._make(node)
        self.depth -= 1
        level = self.level.get(u, 0)
        self.scopes[level].values[node] = u
        return u

    def _compute_below(self, node: Expr) -> None:
        """Computes what a value is made of, from the leaves up: recursion would go too deep."""
        outside, self.depth = self.depth, 0
        done: set[Expr] = {node}
        stack = _operands(node)[::-1]
        while stack:
            e = stack[-1]
            missing = [s for s in _operands(e) if s not in done]
            if e in done or not missing:
                stack.pop()
                done.add(e)
                self.value(e)
            else:
                stack += missing[::-1]
        self.depth = outside

    def _make(self, node: Expr) -> UOp:
        lanes = self._lanes(node)
        dtype = self._memory_dtype(node.dtype)
        match node.op:
            case ExprOp.CONST:
                return self.constant(node.arg, dtype, 1)
            case ExprOp.RANGE if node in self.threads.digits:
                return self._digit(self.threads.digits[node])
            case ExprOp.RANGE if node is self.threads.thread:
                return self._digit(Digit(1, self.threads.count))
            case ExprOp.RANGE:
                assert node is self.lane, f"range {node} is not open"
                return self._typed(self._top(UOp(UOps.IOTA, I64, lanes)), I32)
            case ExprOp.LOAD:
                return self._load_element(node, lanes)
            case ExprOp.READ:
                return self._read(node)
            case ExprOp.CAST | ExprOp.BITCAST:
                return self._convert(node, lanes)
            case _:
                if lanes > 1 and _is_short(node):
                    return self._short(node, lanes)
                src = tuple(self._widen(self._plain(s), lanes) for s in node.src)
                return self._emit(UOp(UOps.ALU, dtype, lanes, src, node.op))

    def _digit(self, digit: Digit) -> UOp:
        """`thread // step % size`."""
        if self.thread is None:
            self.thread = self._typed(self._top(UOp(UOps.THREAD, I64)), self.index)
        u = self.thread
        if digit.step > 1:
            step = self.constant(digit.step, self.index, 1)
            u = self._emit(UOp(UOps.ALU, self.index, 1, (u, step), ExprOp.IDIV))
        if digit.step * digit.size < self.threads.count:
            size = self.constant(digit.size, self.index, 1)
            u = self._emit(UOp(UOps.ALU, self.index, 1, (u, size), ExprOp.MOD))
        return u

    def _plain(self, node: Expr) -> UOp:
        """The value of an expression; of an index, as int64."""
        u = self.value(node)
        return self._typed(u, self.index) if node.dtype is INDEX else u

    def _short(self, node: Expr, lanes: int) -> UOp:
        """Index arithmetic by lane in int32, where it fits: half the width, and cheap division."""
        src = []
        for s in node.src:
            u = self.value(s)
            src.append(self._widen(self._typed(u, I32) if s.dtype is INDEX else u, lanes))
        dtype = I32 if node.dtype is INDEX else self._memory_dtype(node.dtype)
        return self._emit(UOp(UOps.ALU, dtype, lanes, tuple(src), node.op))

    def _typed(self, u: UOp, dtype: DType) -> UOp:
        if u.dtype is dtype:
            return u
        if u.op is UOps.CONST:
            return self.constant(u.arg, dtype, u.lanes)
        return self._emit(UOp(UOps.CAST, dtype, u.lanes, (u,)))

    def _convert(self, node: Expr, lanes: int) -> UOp:
        x = self._plain(node.src[0])
        dtype = self._memory_dtype(node.dtype)
        if x.dtype is dtype:
            return x
        op = UOps.CAST if node.op is ExprOp.CAST else UOps.BITCAST
        return self._emit(UOp(op, dtype, x.lanes, (x,)))

    def _lanes(self, node: Expr) -> int:
        return int(self.lane.size.arg) if self.lane is not None and self.lane in node.ranges else 1

    def _load(self, pointer: UOp, index: Expr, valid: Expr, lanes: int) -> UOp:
        mask = self._mask(valid, lanes)
        if lanes > 1 and self.lane is not None and self._step(index) == -1:
            first = self._plain(index + self.lane - (lanes - 1))
            src = (pointer, first, *([self._reversed(mask)] if mask is not None else []))
            return self._reversed(self._emit(UOp(UOps.LOAD, pointer.dtype, lanes, src)))
        at = self._address(index, lanes)
        src = (pointer, at, *([mask] if mask is not None else []))
        multiple = self._multiple(index, at, lanes)
        return self._emit(UOp(UOps.LOAD, pointer.dtype, lanes, src, multiple))

    def _reversed(self, u: UOp) -> UOp:
        order = tuple(reversed(range(u.lanes)))
        return self._emit(UOp(UOps.SHUFFLE, u.dtype, u.lanes, (u,), order))

    def _load_element(self, node: Expr, lanes: int) -> UOp:
        """One element of a buffer for each lane, or two of them packed."""
        pointer = self.params[node.arg]
        index, valid, *second = node.src
        if not second:
            return self._load(pointer, index, valid, lanes)
        if second[0] - index is const(1) and (lanes == 1 or self._step(index) == 2):
            base = index - self.lane * 2 if lanes > 1 and self.lane is not None else index
            mask = self._mask_of_two(valid, second[1], lanes)
            src = (pointer, self._plain(base), *([mask] if mask is not None else []))
            both = self._emit(UOp(UOps.LOAD, pointer.dtype, 2 * lanes, src))
            return self._emit(UOp(UOps.BITCAST, node.dtype, lanes, (both,)))
        assert pointer.dtype is not None
        elements = [load(node.arg, pointer.dtype, *e) for e in ((index, valid), second)]
        low, high = (self._widen(self._bits(e, node.dtype), lanes) for e in elements)
        shift = self.constant(node.dtype.bits // 2, node.dtype, lanes)
        return self._alu(ExprOp.OR, low, self._alu(ExprOp.SHL, high, shift))

    def _bits(self, node: Expr, dtype: DType) -> UOp:
        """The bits of a value of 16 bits, in the low part of a wider integer."""
        u = self.value(node)
        narrow = self._emit(UOp(UOps.BITCAST, dtypes.uint16, u.lanes, (u,)))
        return self._typed(narrow, dtype)

    def _step(self, index: Expr) -> int:
        """How far an index moves from lane to lane; 0 where that is not the same for all."""
        assert self.lane is not None
        terms, _ = index.linear()
        step = terms.get(self.lane, 0)
        return step if self.lane not in (index - self.lane * step).ranges else 0

    def _address(self, index: Expr, lanes: int) -> UOp:
        """The first index where the lanes are neighbours, else an index for each lane."""
        if lanes > 1 and self.lane is not None:
            terms, _ = index.linear()
            base = index - self.lane if terms.get(self.lane, 0) == 1 else index
            if base is index or self.lane in base.ranges:
                return self._widen(self._plain(index), lanes)
            index = base
        return self._plain(index)

    def _multiple(self, index: Expr, at: UOp, lanes: int) -> int | None:
        """What the first index of several neighbours is a multiple of, at most `lanes`; where
        nobody wants to know, None.
        """
        if not self.blocks or lanes == 1 or at.lanes != 1 or self.lane is None:
            return None
        terms, first = index.linear()
        return math.gcd(lanes, first, *(n for e, n in terms.items() if e is not self.lane))

    def _mask(self, valid: Expr, lanes: int) -> UOp | None:
        if valid is TRUE:
            return None
        parts = conjuncts(valid)
        uniform = [p for p in parts if self.lane is None or self.lane not in p.ranges]
        by_lane = [p for p in parts if p not in uniform]
        masks = [self._all(uniform)] if uniform else []
        masks.extend([self._all(by_lane)] if by_lane else [])
        out = self._widen(masks[0], lanes)
        for mask in masks[1:]:
            out = self._alu(ExprOp.AND, out, self._widen(mask, lanes))
        return out

    def _mask_of_two(self, first: Expr, second: Expr, lanes: int) -> UOp | None:
        """The mask of neighbours that alternate between two conditions."""
        if first is TRUE and second is TRUE:
            return None
        width = max(lanes, 2)
        true = self.constant(True, dtypes.bool, width)
        a, b = (self._widen(self._mask(v, lanes) or true, width) for v in (first, second))
        order = tuple(i + side for i in range(lanes) for side in (0, width))
        return self._emit(UOp(UOps.SHUFFLE, dtypes.bool, 2 * lanes, (a, b), order))

    def _all(self, conditions: Sequence[Expr]) -> UOp:
        out = self.value(conditions[0])
        for condition in conditions[1:]:
            out = self._alu(ExprOp.AND, out, self.value(condition))
        return out

    def _read(self, node: Expr) -> UOp:
        if node.arg in self.in_registers:
            key = tuple(int(i.arg) if i.is_const else LANE for i in node.src)
            for kept in reversed(self.kept):
                if (node.arg, key) in kept:
                    return kept[(node.arg, key)]
            raise AssertionError(f"{node} is read before it is computed")
        return self._read_memory(node)

    def _read_memory(self, node: Expr) -> UOp:
        c = self.kernel.computes[node.arg]
        index = self.threads.place(c, node.src)
        return self._load_local(c, index, self._lanes(node))

    def _load_local(self, c: Compute, index: Expr, lanes: int) -> UOp:
        at = self._address(index, lanes)
        multiple = self._multiple(index, at, lanes)
        src = (self._local(c), at)
        u = UOp(UOps.LOAD, self._memory_dtype(c.value.dtype), lanes, src, multiple)
        return self._place(u, max(self.level.get(at, 0), self._filled_at(c.name)))

    def _filled_at(self, name: str) -> int:
        """The scope in which a scratch array was filled: it changes from one iteration of that loop
        to the next.
        """
        return self.filled.get(name, len(self.scopes) - 1)

    # -- emitting ----------------------------------------------------------------------------------

    def constant(self, value: object, dtype: DType, lanes: int) -> UOp:
        key = (dtype, lanes, repr(value))
        found = self.constants.get(key)
        if found is None:
            found = self._top(UOp(UOps.CONST, dtype, lanes, (), value))
            self.constants[key] = found
        return found

    def _widen(self, u: UOp, lanes: int) -> UOp:
        if u.lanes == lanes:
            return u
        assert u.lanes == 1, f"{u.lanes} lanes where {lanes} are needed"
        if u.op is UOps.CONST:
            return self.constant(u.arg, u.dtype or self.index, lanes)
        found = self.splats.get((u, lanes))
        if found is None or self.level.get(found, 0) >= len(self.scopes):
            found = self._emit(UOp(UOps.SPLAT, u.dtype, lanes, (u,)))
            self.splats[(u, lanes)] = found
        return found

    def _alu(self, op: ExprOp, a: UOp, b: UOp) -> UOp:
        return self._emit(UOp(UOps.ALU, a.dtype, a.lanes, (a, b), op))

    def _top(self, u: UOp) -> UOp:
        """Put a UOp at the very front: it depends on nothing."""
        return self._place(u, 0)

    def _emit(self, u: UOp) -> UOp:
        """Put a UOp where its operands are known; one with an effect goes to the innermost loop."""
        if u.op in (UOps.STORE, UOps.SET, UOps.GET, UOps.REG):
            return self._place(u, len(self.scopes) - 1)
        return self._place(u, max((self.level.get(s, 0) for s in u.src), default=0))

    def _place(self, u: UOp, level: int) -> UOp:
        self.level[u] = level
        self.scopes[level].items.append(u)
        return u


def _operands(node: Expr) -> list[Expr]:
    """The values that a node is computed from, where they are computed by themselves."""
    if node.dtype is INDEX or node.op in _OWN_OPERANDS:
        return []
    return [s for s in node.src if s.dtype is not INDEX]


def _is_short(node: Expr) -> bool:
    """Whether a node is index arithmetic, or compares indices, that fit int32."""
    operands = [e for e in (node, *node.src) if e.dtype is INDEX]
    return bool(operands) and all(-(2**31) <= e.min and e.max < 2**31 for e in operands)


def _first_reduce(nest: Nest) -> int:
    """The depth of the first loop that is combined over; -1 if there is none."""
    if all(c.monoid is None for c in nest.computes):
        return -1
    kept = frozenset(r for c in nest.computes for r in c.ranges if c.monoid is not None)
    for depth, loop in enumerate(nest.loops):
        if loop.range not in kept:
            return depth
    return len(nest.loops)


def _hold_depth(nest: Nest) -> int:
    """The depth from which no serial loop over a kept axis follows."""
    first = _first_reduce(nest)
    kept = frozenset(r for c in nest.computes for r in c.ranges if c.monoid is not None)
    depth = first
    for d in range(first, len(nest.loops)):
        loop = nest.loops[d]
        if loop.range in kept and loop.kind not in (*LANES_OR_COPIES, Kind.THREAD):
            depth = d + 1
    return depth


def _registers(kernel: Kernel, threads: Threads) -> frozenset[str]:
    """The computes whose values need no memory: scalars, lanes and copies, read exactly as they
    were made, by the thread that made them.
    """
    without_memory = (*LANES_OR_COPIES, Kind.THREAD)
    out = set()
    for nest in kernel.nests:
        kinds = {loop.range: loop.kind for loop in nest.loops}
        for c in nest.computes:
            if c.store is None and all(kinds[r] in without_memory for r in c.ranges):
                out.add(c.name)
    out -= threads.shared
    kind_of = {loop.range: loop.kind for nest in kernel.nests for loop in nest.loops}
    for nest in kernel.nests:
        for read in reads(expressions(nest)):
            for i, r in zip(read.src, kernel.computes[read.arg].ranges, strict=True):
                chosen = i.is_const and kind_of[r] is Kind.UNROLL
                if not chosen and not (i.op is ExprOp.RANGE and kind_of[i] is kind_of[r]):
                    out.discard(read.arg)
    return frozenset(out)


def _sources(u: UOp) -> set[UOps]:
    """The kinds of UOps that a value is computed from."""
    found: set[UOps] = set()
    stack = [u]
    while stack:
        u = stack.pop()
        found.add(u.op)
        stack.extend(u.src)
    return found


def _fits_int32(kernel: Kernel) -> bool:
    """Whether every index of a kernel is an int32, on the way to it and in the end."""
    exprs = [e for nest in kernel.nests for e in expressions(nest)]
    exprs += [loop.range.size for nest in kernel.nests for loop in nest.loops]
    found = [e for e in toposort(exprs) if e.dtype is INDEX]
    return all(-(2**31) <= e.min and e.max < 2**31 for e in found)
