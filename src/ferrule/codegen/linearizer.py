"""`Kernel -> list[UOp]`: loops opened in order, every value in the outermost loop where its
operands are known.

Vector loops become lanes, unrolled loops become copies. `codegen/emit/emitter.py` says where a UOp
goes, `codegen/emit/values.py` makes the values, `codegen/emit/reduction.py` the loops that are
combined over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import final

from ferrule.codegen.emit.emitter import I32, I64, Emitter
from ferrule.codegen.emit.legalize import legalized
from ferrule.codegen.emit.loops import run_loop
from ferrule.codegen.emit.reduction import Reductions, first_reduce
from ferrule.codegen.emit.software_pipelining import SoftwarePipeline, is_pipelined
from ferrule.codegen.emit.sums import rounded_twice
from ferrule.codegen.emit.values import Values
from ferrule.codegen.guards import guarded
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.kernel import Compute, Guard, Kernel, Kind, Loop, Nest, expressions, show
from ferrule.codegen.launch import Launch
from ferrule.codegen.lower import lower, stores_of
from ferrule.codegen.opt import Opt, apply_opts
from ferrule.codegen.plan import Candidate
from ferrule.codegen.primitives.editing import descendants
from ferrule.codegen.threads import Threads
from ferrule.codegen.uops import UOp, UOps, shared_to_ask_for
from ferrule.codegen.uops import show as show_program
from ferrule.codegen.wellformed import verify
from ferrule.ir.expr import INDEX, TRUE, Expr, ExprOp, as_int, both, const, sint, toposort
from ferrule.ir.lazyop import LazyOp, ReduceOps
from ferrule.ir.target import Target


class Linearizer:
    """An AST on its way to a program for a target: `kernel`, the `opts` chosen for it, and its
    `uops`.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.target import detect_cpu
    >>> from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, UnaryOps
    >>> from ferrule.ir.shape.shapetracker import ShapeTracker
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
        constants: Set[int] = frozenset(),
    ) -> None:
        self.ast = ast
        self.target = target
        self.name = name or kernel_name(ast)
        self.kernel = lower(ast, self.name)
        self.candidates: Sequence[Candidate] = ()
        """The schedules that were weighed, if opts were not given."""
        if opts is None:
            plan = schedule(self.kernel, target, constants)
            self.opts = tuple(plan.opts)
            self.candidates = plan.candidates
            self.scheduled = plan.kernel
            verify(self.scheduled)
        else:
            self.opts = tuple(opts)
            self.scheduled = apply_opts(self.kernel, self.opts)
        self.scheduled = guarded(self.scheduled, ast, target, self.opts)
        self.uops: list[UOp] = []

    def __str__(self) -> str:
        """The loop tree, as scheduled."""
        return show(self.scheduled)

    @property
    def blocks(self) -> sint:
        """The number of chunks (the EXTENT of the program), as an expression of the variables."""
        sizes = [nest.loops[0].range.size for nest in shared_roots(self.scheduled)]
        return as_int(sum(sizes, const(0))) if sizes else 1

    @property
    def threads(self) -> int:
        """The number of threads that do one chunk together."""
        return Threads(self.scheduled).count

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that a launch has to ask for, once the kernel is
        linearized.
        """
        return shared_to_ask_for(self.uops, self.target)

    @property
    def launch(self) -> Launch | None:
        """The launch of thread blocks, once the kernel is linearized; None if its chunks are called
        by a CPU.
        """
        if self.target.block_threads == 1:
            return None
        return Launch(self.blocks, self.threads, self.shared_bytes)

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
    """The program of a kernel: one for thread blocks if the target has them."""
    blocks = target is not None and target.block_threads > 1
    narrow = target is not None and target.index_bits == 32
    narrow = narrow and _fits_int32(kernel)
    out = Emitter()
    native_ops = frozenset() if target is None else target.native_ops
    ready = legalized(kernel, blocks=blocks, native_ops=native_ops)
    nests = _Nests(ready, out, blocks=blocks)
    start, stop, extent = nests.begin(narrow=narrow)
    guard = kernel.guard
    if guard is None or not guard.checks:
        nests.roots(start, stop)
    else:
        _guarded(nests, guard, (start, stop, extent))
    nests.release()
    program = out.scopes[0].items
    fused = target is None or ExprOp.MULACC.name in native_ops
    return program if fused else rounded_twice(program)


def _guarded(nests: _Nests, guard: Guard, chunks: tuple[UOp, UOp, UOp]) -> None:
    """Emit the checks of a guard, then a branch to the kernel or to its exact version.

    The branch is taken once, or for each chunk if the last check has a loop over chunks.
    """
    out = nests.out
    others = _Nests(legalized(guard.exact, blocks=False), out, blocks=False)
    looks = [_Nests(legalized(check, blocks=False), out, blocks=False) for check in guard.checks]
    for each in (*looks, others):
        each.values.params = nests.values.params
    zero, one = (out.constant(n, out.index) for n in (0, 1))
    start, stop, extent = chunks
    bad = zero
    for look in looks:
        for loop in look.kernel.roots[-1].loops:
            start = out.open("chunk", start, stop)
            stop = out.alu(ExprOp.ADD, start, one)
            look.values.begin(loop, start)
        with out.apart():
            bad = out.alu(ExprOp.MAX, bad, look.result())
    by_chunks = start is not chunks[0]
    with out.apart():
        out.open_if(out.less(bad, one))
        nests.roots(start, stop)
        out.close()
    out.open_if(out.less(zero, bad))
    if by_chunks:
        others.roots(start, stop)
    else:
        others.roots_of_share(start, stop, extent)
    out.close()
    if by_chunks:
        out.close()
    for each in (*looks, others):
        each.release()


def shared_roots(kernel: Kernel) -> list[Nest]:
    """The root nests whose outermost loops are the kernel's chunks."""
    return [nest for nest in kernel.roots if nest.is_shared_out]


@final
class _Nests:
    """Puts the nests of a kernel into a program, the roots one after the other."""

    def __init__(self, kernel: Kernel, out: Emitter, *, blocks: bool) -> None:
        self.kernel = kernel
        self.blocks = blocks
        self.threads = Threads(kernel)
        self.out = out
        self.values = Values(kernel, self.threads, self.out, blocks=blocks)
        self.pipeline = SoftwarePipeline(kernel, self.values, self._emit_copy)
        self.reductions = Reductions(self.values, self._children, self._serial)
        self.prefetched = {
            _innermost(kernel, n) for n in kernel.nests if 0 in dict(n.ahead).values()
        }

    # -- the whole ---------------------------------------------------------------------------------

    def begin(self, *, narrow: bool) -> tuple[UOp, UOp, UOp]:
        """Emit the beginning of every program; the first chunk, the end of the chunks, and their
        total.
        """
        for slot, variable in enumerate(self.kernel.variables):
            u = self.out.top(UOp(UOps.VALUE, I64, arg=len(self.kernel.slots) + slot))
            self.out.remember(variable, u)
        shared = shared_roots(self.kernel)
        chunks = sum((nest.loops[0].range.size for nest in shared), const(0))
        extent = self.values.value(chunks if shared else const(1))
        threads = self.threads.count if self.blocks else None
        self.out.top(UOp(UOps.EXTENT, src=(extent,), arg=threads))
        if narrow:
            self._narrow()
        start = self.out.typed(self.out.top(UOp(UOps.START, I64)), self.out.index)
        stop = self.out.typed(self.out.top(UOp(UOps.STOP, I64)), self.out.index)
        for slot, dtype in enumerate(self.kernel.slots):
            self.values.params[slot] = self.out.top(UOp(UOps.PARAM, dtype, arg=slot))
        return start, stop, extent

    def roots(self, start: UOp, stop: UOp) -> None:
        """Emit the root nests for the chunks from `start` up to `stop`, exclusive."""
        shared = shared_roots(self.kernel)
        offset = const(0)
        for nest in self.kernel.roots:
            with self.values.prefetching(nest):
                if nest in shared:
                    self._shared_root(nest, start, stop, offset, alone=len(shared) == 1)
                    offset += nest.loops[0].range.size
                elif shared:
                    self._first_chunk_only(nest, start, stop)
                else:
                    self._loops(nest, 0)

    def roots_of_share(self, start: UOp, stop: UOp, extent: UOp) -> None:
        """Emit this kernel's share of its chunks: as large a part as [start, stop) is of `extent`.

        `extent` is the number of chunks of another kernel, which may have more or fewer.
        """
        for nest in self.kernel.roots:
            with self.values.prefetching(nest):
                if nest in shared_roots(self.kernel):
                    size = self.out.typed(self.values.value(nest.loops[0].range.size), I64)
                    first, last = (self._share(u, size, extent) for u in (start, stop))
                    self._loops(nest, 0, bounds=(first, last))
                else:
                    self._first_chunk_only(nest, start, stop)

    def _share(self, chunk: UOp, size: UOp, extent: UOp) -> UOp:
        """`chunk * size // extent`, in 64 bits."""
        product = self.out.alu(ExprOp.MUL, self.out.typed(chunk, I64), size)
        return self.out.typed(self.out.alu(ExprOp.IDIV, product, extent), self.out.index)

    def result(self) -> UOp:
        """The value that the last root would store, inside of the loops around it."""
        *_, root = self.kernel.roots
        self._children(root, len(root.loops))
        return self.values.plain(root.computes[0].value)

    def release(self) -> None:
        """Break the reference cycles of this object, so that its memory is freed now and not by the
        collector.
        """
        del self.pipeline, self.reductions

    def _narrow(self) -> None:
        """Use int32 for all indices from here on."""
        values = self.out.scopes[0].values
        known: dict[Expr, UOp] = {v: self.out.typed(values[v], I32) for v in self.kernel.variables}
        self.out.index = I32
        values.clear()
        values.update(known)

    def _shared_root(self, nest: Nest, start: UOp, stop: UOp, offset: Expr, *, alone: bool) -> None:
        """Emit a root nest for its part of the chunks, [offset, offset + size)."""
        if alone:
            self._loops(nest, 0, bounds=(start, stop))
            return
        size = self.values.value(nest.loops[0].range.size)
        before = self.values.value(offset)
        zero = self.out.constant(0, self.out.index)
        first = self.out.alu(ExprOp.SUB, start, before)
        first = self.out.alu(ExprOp.MAX, first, zero)
        last = self.out.alu(ExprOp.SUB, stop, before)
        last = self.out.alu(ExprOp.MIN, last, size)
        self._loops(nest, 0, bounds=(first, last))

    def _first_chunk_only(self, nest: Nest, start: UOp, stop: UOp) -> None:
        zero = self.out.constant(0, self.out.index)
        one = self.out.constant(1, self.out.index)
        last = self.out.alu(ExprOp.MIN, stop, one)
        first = self.out.alu(ExprOp.MAX, start, zero)
        self.out.open("once", first, last)
        self._loops(nest, 0)
        self.out.close()

    # -- loops -------------------------------------------------------------------------------------

    def _loops(self, nest: Nest, depth: int, bounds: tuple[UOp, UOp] | None = None) -> None:
        """Emit the loops of a nest from `depth` on, and its body."""
        if (nest.name, depth) in self.prefetched:
            self._prefetch_places(nest, depth)
        self._children(nest, depth)
        if depth == first_reduce(nest):
            self.reductions.reduce(nest, depth)
            return
        if depth == len(nest.loops):
            self._body(nest)
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.UNROLL:
            for _ in self.values.each_copy([loop]):
                self._loops(nest, depth + 1)
        elif loop.kind is Kind.VECTOR:
            with self.values.along(loop.range):
                self._loops(nest, depth + 1)
        elif loop.kind is Kind.TRANSPOSE:
            self._transpose(nest, loop, nest.loops[depth + 1])
        elif loop.kind is Kind.THREAD:
            self._loops(nest, depth + 1)
        else:
            self.reductions.begin_carried(nest, depth)
            self._serial(loop, lambda: self._loops(nest, depth + 1), bounds)

    def _prefetch_places(self, nest: Nest, depth: int) -> None:
        """Prefetch the places that the loops of a nest from `depth` on will load or store."""
        if depth == len(nest.loops):
            slots = {slot for slot, distance in nest.ahead if distance == 0}
            stores = [(c.store.slot, c.store.index) for c in nest.computes if c.store]
            loads = [(e.arg, e.src[0]) for e in nest.nodes if e.op is ExprOp.LOAD]
            for slot, index in dict.fromkeys([*stores, *loads]):
                if slot in slots:
                    self.values.prefetch_place(slot, index)
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.UNROLL:
            for _ in self.values.each_copy([loop]):
                self._prefetch_places(nest, depth + 1)
        elif loop.kind is Kind.VECTOR:
            with self.values.along(loop.range):
                self._prefetch_places(nest, depth + 1)
        elif loop.kind is Kind.TRANSPOSE:
            with self.values.along(nest.loops[depth + 1].range):
                for _ in self.values.each([loop]):
                    self._prefetch_places(nest, depth + 2)
        else:
            run_loop(self.values, loop, lambda: self._prefetch_places(nest, depth + 1))

    def _serial(
        self, loop: Loop, body: Callable[[], None], bounds: tuple[UOp, UOp] | None = None
    ) -> None:
        """Emit a serial loop, and around it the copies that are made ahead of its iterations."""
        if loop not in self.pipeline:
            run_loop(self.values, loop, body, bounds)
            return
        if self._in_serial_loop():  # other threads may still read the copies of the last time
            self.out.inside(UOp(UOps.BARRIER))

        def iteration() -> None:
            body()
            self.pipeline.finish(loop)

        self.pipeline.before(loop)
        run_loop(self.values, loop, iteration, bounds)
        self.pipeline.after(loop)

    def _emit_copy(self, nest: Nest) -> None:
        """Emit the loops of a nest that is copied ahead of its use."""
        with self.values.along(None):
            self._loops(nest, 0)

    def _children(self, nest: Nest, depth: int) -> None:
        """Emit the nests that hang where `depth` loops of a nest are open.

        Threads wait for each other before they read what they share, and before they replace it if
        another iteration may still read it.
        """
        filled: set[str] = set()
        if depth and nest.loops[depth - 1] in self.pipeline:
            self.pipeline.inside(nest.loops[depth - 1])
        for child in self.kernel.children(nest.name, depth):
            if is_pipelined(child):
                continue
            family = [self.kernel.by_name[name] for name in descendants(self.kernel, child.name)]
            if filled & {e.arg for n in family for e in n.reads}:
                self.pipeline.barrier(filled)
                filled.clear()
            shares = {c.name for c in child.computes} & self.threads.shared
            if shares and not filled and self._in_serial_loop():
                self.out.inside(UOp(UOps.BARRIER))
            self._child(child)
            filled |= shares
        if filled:
            self.pipeline.barrier(filled)

    def _in_serial_loop(self) -> bool:
        """True if a loop other than the one over chunks is open; a thread block does one chunk.

        The bounds of the loop over chunks depend on START, and on no other loop. Another loop may
        start at a place that depends on the chunk; it is then inside of the loop over chunks.
        """
        starts = [_sources(scope.items[0].src[0]) for scope in self.out.scopes[1:]]
        return any(UOps.START not in found or UOps.LOOP in found for found in starts)

    def _child(self, nest: Nest) -> None:
        for c in nest.computes:
            self.values.forget(c)
        with self.values.along(None), self.values.prefetching(nest):
            self._loops(nest, 0)
        for c in nest.computes:
            self.values.filled(c)

    # -- bodies ------------------------------------------------------------------------------------

    def _body(self, nest: Nest) -> None:
        """Emit the computes of a nest. All values come before the first store, which may replace an
        operand.
        """
        values = []
        for c in nest.computes:
            if self.values.is_copied_alone(c):
                self.values.copy(c)
                continue
            if self.pipeline.stores_later(nest, c):
                continue
            value = self.values.vector(c.value)
            if c.store is None:
                self.values.write(c, value)
            else:
                values.append((c, value))
        for c, value in values:
            self.values.write(self._by_first_thread(nest, c), value)

    def _by_first_thread(self, nest: Nest, c: Compute) -> Compute:
        """A store restricted to the first of the threads that all have the same value."""
        alone = self.threads.is_first(nest)
        if alone is TRUE or c.store is None:
            return c
        return replace(c, store=replace(c.store, valid=both(c.store.valid, alone)))

    def _transpose(self, nest: Nest, along: Loop, across: Loop) -> None:
        """Emit squares of values: computed as vectors along one range, staged or stored along the
        other.

        Stores come last, as in `_body`.
        """
        squares = []
        for c in nest.computes:
            with self.values.along(along.range):
                rows = [
                    self.out.widen(self.values.vector(c.value), along.size)
                    for _ in self.values.each([across])
                ]
            columns = self._transposed(rows)
            if c.store is None:
                self._put_columns(c, columns, along, across)
            else:
                squares.append((c, columns))
        for c, columns in squares:
            self._put_columns(c, columns, along, across)

    def _put_columns(self, c: Compute, columns: list[UOp], along: Loop, across: Loop) -> None:
        with self.values.along(across.range):
            for i, _ in enumerate(self.values.each([along])):
                self.values.write(c, columns[i])

    def _transposed(self, rows: list[UOp]) -> list[UOp]:
        """The columns of a square, by exchanging the off-diagonal blocks of 2n x 2n squares, for n
        from half the size down to 1.
        """
        size = len(rows)
        half = size // 2
        while half:
            upper = tuple(i if not i & half else size + i - half for i in range(size))
            lower = tuple(i + half if not i & half else size + i for i in range(size))
            for i in range(size):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i] = self.out.shuffle(upper, a, b)
                    rows[i + half] = self.out.shuffle(lower, a, b)
            half //= 2
        return rows


def _innermost(kernel: Kernel, nest: Nest) -> tuple[str, int]:
    """The place of the nests that are computed last for the stores of a nest, as (nest, depth)."""
    return max((n.at for n in kernel.nests if n.at and n.at[0] == nest.name), default=("", 0))


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
    """True if every index of a kernel, and every part of it, fits an int32."""
    exprs = [e for nest in kernel.nests for e in expressions(nest)]
    exprs += [loop.range.size for nest in kernel.nests for loop in nest.loops]
    found = [e for e in toposort(exprs) if e.dtype is INDEX]
    return all(-(2**31) <= e.min and e.max < 2**31 for e in found)
