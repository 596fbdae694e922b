"""The value of an expression at the current point of a program: `Expr -> UOp`.

`Values` knows this point: the copy of each unrolled loop, the loop whose iterations are the lanes,
and the open loops. Stages are registers if all their axes are lanes or copies, and scratch
memory otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from ferrule.codegen.analysis.vector_shuffles import few_vectors, near_lanes, whole_vectors
from ferrule.codegen.emit.emitter import I32, I64, Copy, Emitter
from ferrule.codegen.intrinsics import COPIED_BYTES
from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Compute, Kernel, Kind, Loop, Nest, loaded_again
from ferrule.codegen.plan import gap_of_copies
from ferrule.codegen.threads import Digit, Threads, in_registers
from ferrule.codegen.uops import GUARDED, UOp, UOps
from ferrule.ir.dtype import DType, dtype_from_name, dtypes
from ferrule.ir.expr import (
    FALSE,
    INDEX,
    TRUE,
    Expr,
    ExprOp,
    conjuncts,
    const,
    is_adjacent,
    load,
    step_along,
    substitute,
)
from ferrule.ir.target import LINE_BYTES

_LANE = -1  # in the place of an index: every lane
_MAX_RECURSION = 64  # levels; deeper expressions are computed bottom-up (not measured)
_OWN_OPERANDS = frozenset({ExprOp.LOAD, ExprOp.READ, ExprOp.DOT})  # they take their operands apart


@final
class Values:
    """Makes the UOps of a kernel's expressions; `out` takes them."""

    def __init__(self, kernel: Kernel, threads: Threads, out: Emitter, *, blocks: bool) -> None:
        self.kernel = kernel
        self.threads = threads
        self.out = out
        self.blocks = blocks
        self.params: dict[int, UOp] = {}
        self.lane: Expr | None = None
        """The range whose iterations are the lanes of vectors."""
        self.copies: dict[Expr, Expr] = {}
        """The values of the ranges of unrolled loops, and of conditions that are known here."""
        self.ring_slot: Expr | None = None
        """The number of the copy, of `pipeline_depth` ones, that is filled ahead of its use; None
        for the current one.
        """
        self._ahead: dict[UOp, tuple[int, int]] = {}
        self._filled: dict[str, int] = {}
        self._locals: dict[str, UOp] = {}
        self._thread: UOp | None = None
        self._in_registers = in_registers(kernel, threads)
        self._changing = loaded_again(kernel)
        self._chosen: dict[tuple[object, ...], dict[Expr, Expr]] = {}
        self._depth = 0

    # -- position in the program -------------------------------------------------------------------

    @contextmanager
    def along(self, lane: Expr | None) -> Iterator[None]:
        """Within the block, the iterations of `lane` are the lanes."""
        outside, self.lane = self.lane, lane
        yield
        self.lane = outside

    @contextmanager
    def knowing(self, known: Mapping[Expr, Expr]) -> Iterator[None]:
        """Within the block, some conditions are known."""
        outside = self.copies
        if known:
            self.copies = {**outside, **known}
        yield
        self.copies = outside

    @contextmanager
    def prefetching(self, nest: Nest) -> Iterator[None]:
        """Within the block, loads of a nest prefetch later elements."""
        found = {
            self.params[slot]: (far, gap_of_copies(nest, slot)) for slot, far in nest.ahead if far
        }
        outside, self._ahead = self._ahead, found
        yield
        self._ahead = outside

    def later(self, do: Callable[[], None]) -> Callable[[], None]:
        """A function that calls `do` later in the innermost open loop, as if it were
        called here.
        """
        here = dict(self.copies), self.lane, self.ring_slot

        def done_there() -> None:
            outside = self.copies, self.lane, self.ring_slot
            self.copies, self.lane, self.ring_slot = here
            do()
            self.copies, self.lane, self.ring_slot = outside

        return done_there

    def lane_of(self, loops: Iterable[Loop]) -> Expr | None:
        """The range of the loop whose iterations are lanes; the present one if none of `loops`
        is.
        """
        return next((loop.range for loop in loops if loop.kind is Kind.VECTOR), self.lane)

    def each_copy(self, loops: Iterable[Loop]) -> Iterator[None]:
        """Choose each combination of copies of the unrolled loops in turn."""
        return self.each([loop for loop in loops if loop.kind is Kind.UNROLL])

    def each(self, loops: Sequence[Loop]) -> Iterator[None]:
        """Choose each combination of iterations of some loops in turn."""
        for choice in itertools.product(*(range(loop.size) for loop in loops)):
            self.copies.update((o.range, const(i)) for o, i in zip(loops, choice, strict=True))
            yield
        for loop in loops:
            del self.copies[loop.range]

    def key(self, c: Compute) -> Copy:
        """The key of a stage's current copy."""
        at = (int(self.copies[r].arg) if r in self.copies else _LANE for r in c.ranges)
        return c.name, tuple(at)

    def begin(self, loop: Loop, iteration: UOp) -> None:
        """Enter the body of a loop in a given iteration.

        Elements that another iteration may have changed are loaded again.
        """
        self.out.remember(loop.range, iteration)
        self._forget_loads(self._changing)

    # -- expressions -------------------------------------------------------------------------------

    def vector(self, node: Expr) -> UOp:
        """The value of an expression here: with its copies chosen, a scalar if all lanes have the
        same.
        """
        return self.value(self.current(node))

    def current(self, node: Expr) -> Expr:
        """The expression with its copies chosen."""
        if not self.copies:
            return node
        ranges = node.ranges
        # A known condition is of use only if the node has all of its ranges.
        relevant = {k: v for k, v in self.copies.items() if k.ranges <= ranges}
        if not relevant:
            return node
        # Copies along one axis of a tile share values that vary with the other axis only.
        done = self._chosen.setdefault(tuple(relevant.items()), {})
        found = done.get(node)
        return substitute([node], relevant, done)[0] if found is None else found

    def value(self, node: Expr) -> UOp:
        """The UOp of an expression, in the outermost open loop where its operands are known."""
        found = self.out.known(node)
        if found is not None:
            return found
        if self._depth == _MAX_RECURSION:
            self._compute_operands(node)
        self._depth += 1
        u = self._make(node)
        self._depth -= 1
        self.out.remember(node, u)
        return u

    def _compute_operands(self, node: Expr) -> None:
        """Compute the operands of a value from the leaves up, as recursion would go too deep."""
        outside, self._depth = self._depth, 0
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
        self._depth = outside

    def plain(self, node: Expr) -> UOp:
        """The value of an expression; an index has the dtype of indices here."""
        u = self.value(node)
        return self.out.typed(u, self.out.index) if node.dtype is INDEX else u

    def _make(self, node: Expr) -> UOp:
        lanes = self._lanes(node)
        dtype = self.out.memory_dtype(node.dtype)
        match node.op:
            case ExprOp.CONST:
                return self.out.constant(node.arg, dtype)
            case ExprOp.RANGE if node in self.threads.digits:
                return self._digit(self.threads.digits[node])
            case ExprOp.RANGE if node is self.threads.thread:
                return self._digit(Digit(1, self.threads.count))
            case ExprOp.RANGE:
                assert node is self.lane, f"range {node} is not open"
                return self.out.typed(self.out.top(UOp(UOps.IOTA, I64, lanes)), I32)
            case ExprOp.LOAD:
                return self._load_element(node, lanes)
            case ExprOp.READ:
                return self._read(node)
            case ExprOp.CAST | ExprOp.BITCAST:
                return self._convert(node)
            case _:
                if lanes > 1 and _fits_int32(node):
                    return self._index_arithmetic(node, lanes)
                src = tuple(self.out.widen(self.plain(s), lanes) for s in node.src)
                return self.out.emit(UOp(UOps.ALU, dtype, lanes, src, node.op))

    def _digit(self, digit: Digit) -> UOp:
        """`thread // step % size`."""
        if self._thread is None:
            self._thread = self.out.typed(self.out.top(UOp(UOps.THREAD, I64)), self.out.index)
        u = self._thread
        if digit.step > 1:
            u = self.out.alu(ExprOp.IDIV, u, self.out.constant(digit.step, self.out.index))
        if digit.step * digit.size < self.threads.count:
            u = self.out.alu(ExprOp.MOD, u, self.out.constant(digit.size, self.out.index))
        return u

    def _index_arithmetic(self, node: Expr, lanes: int) -> UOp:
        """Index arithmetic by lane in int32, if it fits: half the width, and cheap division."""
        src = []
        for s in node.src:
            u = self.value(s)
            src.append(self.out.widen(self.out.typed(u, I32) if s.dtype is INDEX else u, lanes))
        dtype = I32 if node.dtype is INDEX else self.out.memory_dtype(node.dtype)
        return self.out.emit(UOp(UOps.ALU, dtype, lanes, tuple(src), node.op))

    def _convert(self, node: Expr) -> UOp:
        x = self.plain(node.src[0])
        dtype = self.out.memory_dtype(node.dtype)
        if x.dtype is dtype:
            return x
        op = UOps.CAST if node.op is ExprOp.CAST else UOps.BITCAST
        return self.out.emit(UOp(op, dtype, x.lanes, (x,)))

    def _lanes(self, node: Expr) -> int:
        return int(self.lane.size.arg) if self.lane is not None and self.lane in node.ranges else 1

    # -- memory ------------------------------------------------------------------------------------

    def _load_element(self, node: Expr, lanes: int) -> UOp:
        """One element of a buffer for each lane, or several of them packed."""
        pointer = self.params[node.arg]
        index, valids = node.src[0], node.src[1::2]
        count = len(valids)
        if count == 1:
            return self._load(pointer, index, valids[0], lanes)
        if is_adjacent(node) and (lanes == 1 or self._step(index) == count):
            base = index - self.lane * count if lanes > 1 and self.lane is not None else index
            mask = self._mask_of_packed(valids, lanes)
            src = (pointer, self.plain(base), *([mask] if mask is not None else []))
            together = self._loaded(UOp(UOps.LOAD, pointer.dtype, count * lanes, src))
            return self.out.emit(UOp(UOps.BITCAST, node.dtype, lanes, (together,)))
        assert pointer.dtype is not None
        elements = [
            load(node.arg, pointer.dtype, *e) for e in zip(node.src[::2], valids, strict=True)
        ]
        whole, *higher = [self.out.widen(self._bits(e, node.dtype), lanes) for e in elements]
        for place, bits in enumerate(higher, 1):
            shift = self.out.constant(node.dtype.bits // count * place, node.dtype, lanes)
            whole = self.out.alu(ExprOp.OR, whole, self.out.alu(ExprOp.SHL, bits, shift))
        return whole

    def _load(self, pointer: UOp, index: Expr, valid: Expr, lanes: int) -> UOp:
        mask = self._mask(valid, lanes)
        if lanes > 1 and self.lane is not None and self._step(index) == -1:
            first = self.plain(index + self.lane - (lanes - 1))
            src = (pointer, first, *([self._reversed(mask)] if mask is not None else []))
            return self._reversed(self._loaded(UOp(UOps.LOAD, pointer.dtype, lanes, src)))
        near = None if self.blocks else self._load_near(pointer, index, valid, lanes)
        if near is not None:
            return near
        at = self._address(index, lanes)
        src = (pointer, at, *([mask] if mask is not None else []))
        multiple = self._multiple(index, at, lanes)
        if pointer in self._ahead and at.lanes == 1:
            self._prefetch(pointer, index, at, lanes)
        how = multiple or self._guard(pointer, at, valid, lanes)
        return self._loaded(UOp(UOps.LOAD, pointer.dtype, lanes, src, how))

    def _load_near(self, pointer: UOp, index: Expr, valid: Expr, lanes: int) -> UOp | None:
        """A load of lanes that are not adjacent but all within a few vectors: load these and
        shuffle them.

        None if there are no such vectors.
        """
        if self.lane is None or self.lane not in index.ranges or self._step(index) == 1:
            return None
        once = {r: const(0) for r in index.ranges | valid.ranges if _runs_once(r)}
        near = near_lanes(index.substitute(once), valid.substitute(once), self.lane)
        vectors = None if near is None else few_vectors(near.distances)
        if near is None or vectors is None:
            return None
        mask = self._mask(near.valid, vectors.width)
        loaded = []
        for start in vectors.starts:
            at = self.plain(near.base + start)
            src = (pointer, at, *([mask] if mask is not None else []))
            how = self._guard(pointer, at, near.valid, vectors.width)
            loaded.append(self._loaded(UOp(UOps.LOAD, pointer.dtype, vectors.width, src, how)))
        found = self.out.gathered(loaded, [place or (0, 0) for place in vectors.places])
        if None not in vectors.places or pointer.dtype is None:
            return found
        order = tuple(i if place else lanes for i, place in enumerate(vectors.places))
        return self.out.shuffle(order, found, self.out.constant(0, pointer.dtype, lanes))

    def _loaded(self, u: UOp) -> UOp:
        """A load where its operands are known; after all stores so far if one of them may be to its
        buffer.
        """
        return self.out.inside(u) if u.src[0].arg in self._changing else self.out.emit(u)

    def _prefetch(self, pointer: UOp, index: Expr, at: UOp, lanes: int) -> None:
        """Prefetch the element a given distance after an address, once for each cache line.

        The load in which a line begins does it, judged by the constant part of the index.
        """
        assert pointer.dtype is not None
        size = pointer.dtype.itemsize
        distance, gap = self._ahead[pointer]
        if -index.linear()[1] * size % LINE_BYTES < max(lanes, gap) * size:
            far = self.out.constant(distance, self.out.index)
            self.out.emit(UOp(UOps.PREFETCH, src=(pointer, self.out.alu(ExprOp.ADD, at, far))))

    def _reversed(self, u: UOp) -> UOp:
        return self.out.shuffle(tuple(reversed(range(u.lanes))), u)

    def _bits(self, node: Expr, dtype: DType) -> UOp:
        """The bits of a narrow value, in the low part of a wider integer."""
        u = self.value(node)
        unsigned = dtype_from_name(f"uint{node.dtype.bits}")
        if u.dtype is not unsigned:
            u = self.out.emit(UOp(UOps.BITCAST, unsigned, u.lanes, (u,)))
        return self.out.typed(u, dtype)

    def _step(self, index: Expr) -> int:
        """The distance of an index from lane to lane; 0 if it is not the same for all lanes."""
        assert self.lane is not None
        return step_along(index, self.lane) or 0

    def _address(self, index: Expr, lanes: int) -> UOp:
        """The first index if the lanes are neighbours, else an index for each lane."""
        if lanes > 1 and self.lane is not None:
            if step_along(index, self.lane) != 1:
                return self.out.widen(self.plain(index), lanes)
            index = index - self.lane
        return self.plain(index)

    def _multiple(self, index: Expr, at: UOp, lanes: int) -> int | None:
        """A number that divides the first index of several neighbours, at most `lanes`.

        None for CPUs, which do not need it, and for scalars and scattered lanes.
        """
        if not self.blocks or lanes == 1 or at.lanes != 1 or self.lane is None:
            return None
        terms, first = index.linear()
        return math.gcd(lanes, first, *(n for e, n in terms.items() if e is not self.lane))

    def _guard(self, pointer: UOp, at: UOp, valid: Expr, lanes: int) -> str | None:
        """`GUARDED` for an access of neighbours that are all valid or none."""
        if self.blocks or lanes == 1 or at.lanes > 1 or pointer.op is not UOps.PARAM:
            return None
        return None if valid.is_const or self.lane in valid.ranges else GUARDED

    def _mask(self, valid: Expr, lanes: int) -> UOp | None:
        if valid is TRUE:
            return None
        parts = conjuncts(valid)
        uniform = [p for p in parts if self.lane is None or self.lane not in p.ranges]
        by_lane = [p for p in parts if p not in uniform]
        masks = [self._all(uniform)] if uniform else []
        masks.extend([self._all(by_lane)] if by_lane else [])
        out = self.out.widen(masks[0], lanes)
        for mask in masks[1:]:
            out = self.out.alu(ExprOp.AND, out, self.out.widen(mask, lanes))
        return out

    def _mask_of_packed(self, valids: Sequence[Expr], lanes: int) -> UOp | None:
        """The mask of neighbouring elements that have one of several conditions in turn."""
        if all(valid is TRUE for valid in valids):
            return None
        width = max(lanes, 2)
        true = self.out.constant(True, dtypes.bool, width)
        masks = [self.out.widen(self._mask(v, lanes) or true, width) for v in valids]
        while len(masks) > 1:
            order = tuple(i + side for i in range(lanes) for side in (0, masks[0].lanes))
            pairs = zip(masks[: len(masks) // 2], masks[len(masks) // 2 :], strict=True)
            masks = [self.out.shuffle(order, a, b) for a, b in pairs]
            lanes *= 2
        return masks[0]

    def _all(self, conditions: Sequence[Expr]) -> UOp:
        out = self.value(conditions[0])
        for condition in conditions[1:]:
            out = self.out.alu(ExprOp.AND, out, self.value(condition))
        return out

    # -- stages ------------------------------------------------------------------------------------

    def _read(self, node: Expr) -> UOp:
        if node.arg in self._in_registers:
            key = node.arg, tuple(int(i.arg) if i.is_const else _LANE for i in node.src)
            for scope in reversed(self.out.scopes):
                if key in scope.stages:
                    return scope.stages[key]
            raise AssertionError(f"{node} is read before it is computed")
        return self._read_memory(node)

    def is_in_registers(self, operand: Expr) -> bool:
        """True if an operand is a stage that is in registers."""
        return operand.op is ExprOp.READ and operand.arg in self._in_registers

    def read_own(self, c: Compute) -> UOp:
        """The value that a nest has in scratch memory so far, at the current point."""
        read = Expr(ExprOp.READ, c.value.dtype, c.ranges, c.name)
        return self._read_memory(read.substitute(self.copies) if self.copies else read)

    def _read_memory(self, node: Expr) -> UOp:
        c = self.kernel.computes[node.arg]
        index = self.threads.place(c, node.src)
        return self._load_local(c, index, self._lanes(node))

    def _load_local(self, c: Compute, index: Expr, lanes: int) -> UOp:
        whole = whole_vectors(index, self.lane, self.kernel.memory[c.name][1])
        if whole is not None and self.lane is not None and not self.blocks:
            loaded = [self._load_local(c, first + self.lane, lanes) for first in whole.firsts]
            return self.out.gathered(loaded, whole.places)
        at = self._address(index, lanes)
        multiple = self._multiple(index, at, lanes)
        src = (self.local(c), at)
        filled = self._filled.get(c.name, self.out.innermost)
        u = UOp(UOps.LOAD, self.out.memory_dtype(c.value.dtype), lanes, src, multiple)
        return self.out.place(u, max(self.out.level(at), filled))

    def matrices(self, operand: Expr, place: Expr, transposed: bool) -> UOp:
        """Four matrices in shared memory, of which each thread of a warp names one row.

        `operand` identifies them: in one iteration each is loaded once.
        """
        c = self.kernel.computes[operand.arg]
        at = self.plain(place)
        level = max(self.out.level(at), self._filled.get(c.name, self.out.innermost))
        known = self.out.scopes[level].matrices
        if operand not in known:
            dtype, src = self.out.memory_dtype(c.value.dtype), (self.local(c), at)
            lanes = MAX_ACCESS_BYTES // dtype.itemsize
            known[operand] = self.out.place(
                UOp(UOps.MATRICES, dtype, lanes, src, transposed), level
            )
        return known[operand]

    def is_copied_alone(self, c: Compute) -> bool:
        """True if a value made ahead of its use is copied from a buffer to shared memory by a COPY.

        It is stored as it was loaded, and has a size that such a copy can have.
        """
        if self.ring_slot is None or c.name not in self.threads.shared:
            return False
        element = self.current(c.value)
        if element.op is not ExprOp.LOAD:
            return False
        return self._lanes(element) * element.dtype.itemsize in COPIED_BYTES

    def copy(self, c: Compute) -> None:
        """Emit a COPY from a buffer to shared memory."""
        element, index = self.current(c.value), self._scratch_index(c)
        lanes = 1
        if self.lane is not None and self.lane in index.ranges | element.ranges:
            lanes = int(self.lane.size.arg)
        to, source = self._address(index, lanes), self._address(element.src[0], lanes)
        known = self._multiple(index, to, lanes), self._multiple(element.src[0], source, lanes)
        multiple = None if known[0] is None or known[1] is None else math.gcd(known[0], known[1])
        mask = self._mask(element.src[1], lanes) or self.out.constant(True, dtypes.bool, lanes)
        alone = self.threads.is_first(self.kernel.owner[c.name])
        only_if = () if alone is TRUE else (self._all(conjuncts(alone)),)
        src = (self.local(c), to, self.params[element.arg], source, mask, *only_if)
        self.out.inside(UOp(UOps.COPY, None, lanes, src, multiple))

    def write(self, c: Compute, value: UOp) -> None:
        """Store a value of this iteration, to a buffer or as a stage."""
        if c.store is None:
            self.write_stage(c, value)
            return
        valid = self.current(c.store.valid)
        if valid is not FALSE:
            pointer = self.params[c.store.slot]
            hint = "nontemporal" if c.store.nontemporal else None
            self._store(pointer, self.current(c.store.index), value, valid, hint)
            self._forget_loads(self._changing & {c.store.slot})

    def prefetch_place(self, slot: int, index: Expr) -> None:
        """Prefetch the place of a store or a load if its lanes are neighbours."""
        index = self.current(index)
        lanes = 1 if self.lane is None or self.lane not in index.ranges else self.lane.size.arg
        at = self._address(index, lanes)
        if at.lanes == 1:
            self.out.emit(UOp(UOps.PREFETCH, src=(self.params[slot], at)))

    def _forget_loads(self, slots: Iterable[int]) -> None:
        """Forget the loaded elements of these buffers, which may have changed."""
        for slot in slots:
            self.out.forget_loads(slot)

    def _store(
        self, pointer: UOp, index: Expr, value: UOp, valid: Expr, hint: str | None = None
    ) -> None:
        lanes = value.lanes
        if self.lane is not None and (self.lane in index.ranges or self.lane in valid.ranges):
            lanes = int(self.lane.size.arg)
        at = self._address(index, lanes)
        mask = self._mask(valid, lanes)
        src = (pointer, at, self.out.widen(value, lanes), *([mask] if mask is not None else []))
        how = hint or self._multiple(index, at, lanes) or self._guard(pointer, at, valid, lanes)
        self.out.emit(UOp(UOps.STORE, src=src, arg=how))

    def write_stage(self, c: Compute, value: UOp) -> None:
        """Store a value of this iteration as a stage, in a register or in scratch memory."""
        if c.name in self._in_registers:
            self.out.scopes[-1].stages[self.key(c)] = value
            return
        index = self._scratch_index(c)
        valid = TRUE
        if c.name in self.threads.shared:
            valid = self.threads.is_first(self.kernel.owner[c.name])
        self._store(self.local(c), index, value, valid)

    def _scratch_index(self, c: Compute) -> Expr:
        """The index in scratch memory of a value of this iteration."""
        return self.threads.place(c, [self.current(r) for r in c.ranges], self.ring_slot)

    def local(self, c: Compute) -> UOp:
        """The pointer to a stage's memory."""
        arg = self.kernel.memory[c.name]
        found = self._locals.get(arg[0])
        if found is None:
            op = UOps.SHARED if c.name in self.threads.shared else UOps.LOCAL
            if self.threads.count > 1:
                arg = (arg[0], self.threads.elements(c))
            found = self.out.top(UOp(op, self.out.memory_dtype(c.value.dtype), arg=arg))
            self._locals[arg[0]] = found
        return found

    def forget(self, c: Compute) -> None:
        """Note that a stage is computed anew: it changes where it is stored."""
        self._filled.pop(c.name, None)

    def filled(self, c: Compute) -> None:
        """Note that a stage is complete: from here on only the loops open now change it."""
        self._filled[c.name] = self.out.innermost


def _runs_once(r: Expr) -> bool:
    """True for the range of a loop of one iteration."""
    return r.op is ExprOp.RANGE and r.size.is_const and r.size.arg == 1


def _operands(node: Expr) -> list[Expr]:
    """The operands of a node that are computed by themselves."""
    if node.dtype is INDEX or node.op in _OWN_OPERANDS:
        return []
    return [s for s in node.src if s.dtype is not INDEX]


def _fits_int32(node: Expr) -> bool:
    """True if a node is index arithmetic, or a comparison of indices, that fits int32."""
    operands = [e for e in (node, *node.src) if e.dtype is INDEX]
    return bool(operands) and all(-(2**31) <= e.min and e.max < 2**31 for e in operands)
