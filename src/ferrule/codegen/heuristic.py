"""`(Kernel, Target) -> tuple[Opt, ...]`: a schedule that is good without any search.

Three shapes of work are told apart by what the expressions load, never by what the user called:
a contraction (some loads are used again for many results) gets a register tile; other reduces get
lanes along the axis that is contiguous in memory; what is left is a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ferrule.codegen import opt
from ferrule.codegen.kernel import Kernel, Kind, Loop, Nest, expressions, reads
from ferrule.codegen.opt import COSTLY, Opt
from ferrule.expr import TRUE, Expr, ExprOp, toposort
from ferrule.target import Target

CHUNK = 8192  # elements of a stream that one thread takes at a time
SERIAL_WORK = 40_000  # operations below which sharing out costs more than it gains
FAR_BYTES = 4096  # between two steps of k: beyond this, blocks of rows are copied
MOST_ROWS = 512  # of a tile's column of accumulators
SCATTER_CYCLES = 1.5  # to store one element of a vector that goes to many places
STRIDED_CYCLES = 1.0  # to copy one element from where its neighbours are far apart
MASK_CYCLES = 3.0  # to load one element under a condition, inside a tile
COSTLY_WORK = 12  # operations in a transcendental


def choose(kernel: Kernel, target: Target) -> tuple[Opt, ...]:
    """The opts for a kernel; the same for equal kernels and targets."""
    plan = _Plan(kernel, target)
    plan.collapse()
    for name in [nest.name for nest in plan.kernel.roots]:
        plan.schedule_root(name)
    return tuple(plan.opts)


@dataclass(frozen=True)
class _Tile:
    """A register tile: rows x (vectors of lanes)."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


class _Plan:
    """Collects opts, and applies each at once so that the next choice sees its effect."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.opts: list[Opt] = []

    def do(self, primitive: str, *args: object) -> None:
        choice = Opt(primitive, args)
        self.kernel = opt.PRIMITIVES[primitive](self.kernel, *args)
        self.opts.append(choice)

    def nest(self, name: str) -> Nest:
        return self.kernel.by_name[name]

    # -- loops that are one loop in disguise -------------------------------------------------------

    def collapse(self) -> None:
        """Fuse neighbouring loops wherever every index stays as simple as it was."""
        for name in [nest.name for nest in self.kernel.nests]:
            depth = len(self.nest(name).loops) - 2
            while depth >= 0:
                self._try_fuse(name, depth)
                depth -= 1

    def _try_fuse(self, name: str, depth: int) -> bool:
        loop = self.nest(name).loops[depth]
        if any(n.at == (name, depth + 1) for n in self.kernel.nests):
            return False
        fused = opt.fuse(self.kernel, name, loop.range.name)
        r = fused.by_name[name].loops[depth].range
        for nest in fused.nests:
            for e in toposort(expressions(nest)):
                if e.op in (ExprOp.IDIV, ExprOp.MOD) and r in e.ranges:
                    return False
        self.do("fuse", name, loop.range.name)
        return True

    # -- one root nest -----------------------------------------------------------------------------

    def schedule_root(self, name: str) -> None:
        nest = self.nest(name)
        below = self._below(name)
        if _writes_scattered(nest):
            return
        if not below:
            self._stream(name)
            return
        contraction = next((n for n in below if self._is_contraction(nest, self.nest(n))), None)
        tiled = contraction is not None and len(below) == 1 and self._contraction(name, contraction)
        if not tiled:
            self._rows(name, below)

    def _below(self, name: str) -> list[str]:
        """The nests inside a root, producers first."""
        family = opt.descendants(self.kernel, name)
        return [n.name for n in self.kernel.nests if n.name in family and n.name != name]

    def work(self, name: str) -> int:
        """About how many scalar operations a root nest and all inside it take."""
        total = 0
        for n in [*self._below(name), name]:
            nest = self.nest(n)
            times = prod(loop.range.size.max for _, _, loop in self.kernel.path(nest))
            nodes = toposort(c.value for c in nest.computes)
            cost = sum(COSTLY_WORK if e.op in COSTLY else 1 for e in nodes if e.src)
            total += times * max(cost, 1)
        return total

    # -- streams -----------------------------------------------------------------------------------

    def _stream(self, name: str) -> None:
        """Element-wise work: lanes along the contiguous axis, the rest shared out."""
        nest = self.nest(name)
        if not nest.loops:
            return
        v = self._contiguous_axis(nest)
        w = self._other_orientation(nest, v)
        if w is not None:
            self._turn(name, v, w)
            return
        names = [loop.range.name for loop in nest.loops]
        if names[-1] != v.name:
            self.do("reorder", name, (*(n for n in names if n != v.name), v.name))
        parallel = self.work(name) >= SERIAL_WORK
        outer = prod(loop.range.size.max for loop in self.nest(name).loops[:-1])
        enough = 4 * self.target.max_threads
        if parallel and len(names) > 1 and outer >= enough:
            self._vectorize_inner(name, self.nest(name).loops[-1])
            self._share_outer(name, enough)
        elif parallel and v.size.max >= 2 * CHUNK:
            self._chunk_inner(name)
        else:
            self._vectorize_inner(name, self.nest(name).loops[-1])
            if parallel and len(names) > 1:
                self._share_outer(name, enough)

    def _other_orientation(self, nest: Nest, v: Expr) -> Expr | None:
        """A loop along which what is loaded is contiguous, where it is not along the store's."""
        lanes = self._lanes(nest, v.size.max)
        found = [e for c in nest.computes for e in _loads(c.value)]
        far = [e for e in found if _step(e.src[0], v) not in (0, 1)]
        if not far or lanes < 4 or v.size.max < lanes:
            return None
        for loop in nest.loops:
            w = loop.range
            if w is not v and w.size.max >= lanes and all(_step(e.src[0], w) == 1 for e in far):
                return w
        return None

    def _turn(self, name: str, v: Expr, w: Expr) -> None:
        """Squares of values: computed along `w`, stored along `v`."""
        parallel = self.work(name) >= SERIAL_WORK
        lanes = self._lanes(self.nest(name), v.size.max)
        self.do("split", name, v.name, lanes, "peel")
        self.do("split", name, w.name, lanes, "peel")
        last = (f"{w.name}.i", f"{v.name}.i")
        names = [loop.range.name for loop in self.nest(name).loops]
        self.do("reorder", name, (*(x for x in names if x not in last), *last))
        self.do("transpose", name, *last)
        if parallel:
            self.do("parallel", name, self.nest(name).loops[0].range.name)

    def _chunk_inner(self, name: str) -> None:
        """Share out the last loop itself, by chunks."""
        loop = self.nest(name).loops[-1]
        v = loop.range.name
        self.do("split", name, v, CHUNK, "peel")
        names = [o.range.name for o in self.nest(name).loops]
        if names[0] != f"{v}.o":
            self.do("reorder", name, (f"{v}.o", *(n for n in names if n != f"{v}.o")))
        self.do("parallel", name, f"{v}.o")
        self._vectorize_inner(name, self.nest(name).loops[-1])

    def _share_outer(self, name: str, enough: int) -> None:
        """Make the outermost loop parallel, fused with the next ones while it is too short."""
        while True:
            nest = self.nest(name)
            if nest.loops[0].range.size.max >= enough or len(nest.loops) < 3:
                break
            if any(n.at == (name, 1) for n in self.kernel.nests):
                break
            self.do("fuse", name, nest.loops[0].range.name)
        self.do("parallel", name, self.nest(name).loops[0].range.name)

    def _contiguous_axis(self, nest: Nest) -> Expr:
        """The loop along which the store, or else most loads, are contiguous."""
        best = nest.loops[-1].range
        best_score = -1
        for loop in nest.loops:
            score = 0
            for c in nest.computes:
                if c.store is not None and _step(c.store.index, loop.range) == 1:
                    score += 4
                score += sum(_step(e.src[0], loop.range) == 1 for e in _loads(c.value))
            if loop.range.size.max >= 4 and score >= best_score:
                best, best_score = loop.range, score
        return best

    def _lanes(self, nest: Nest, size: int) -> int:
        """How many lanes suit a loop of a size: a full vector, or the next power of two for a short
        one.
        """
        widest = max(
            (
                e.dtype.itemsize
                for e in toposort(c.value for c in nest.computes)
                if e.op is ExprOp.LOAD
            ),
            default=4,
        )
        full = max(1, self.target.vector_bytes // max(widest, 4))
        lanes = 1
        while lanes < min(size, full):
            lanes *= 2
        return lanes

    def _vectorize_inner(self, name: str, loop: Loop) -> None:
        r = loop.range
        lanes = self._lanes(self.nest(name), r.size.max)
        if lanes == 1:
            return
        self.do("split", name, r.name, lanes, "peel")
        self.do("vectorize", name, f"{r.name}.i")

    # -- reduces along rows or columns -------------------------------------------------------------

    def _rows(self, name: str, below: Sequence[str]) -> None:
        self._merge_siblings(below)
        below = self._below(name)
        column = self._column_axis(name, below)
        if column is None:
            column = self._gather_axis(name, below)
        if column is not None:
            self._columns(name, below, column)
        else:
            self._keep_rows(name, below)
            for n in below:
                self._reduce_lanes(n)
            self._vectorize_last(name, below)
        self._share_rows(name)

    def _merge_siblings(self, below: Sequence[str]) -> None:
        for second in below:
            for first in below:
                if first == second or first not in self.kernel.by_name:
                    continue
                if opt.mergeable(self.kernel, self.nest(first), self.nest(second)) and self._ready(
                    first, second
                ):
                    self.do("merge", first, second)

    def _ready(self, first: str, second: str) -> bool:
        """Whether no nest between two siblings reads the first, which moves down to the second."""
        order = [n.name for n in self.kernel.nests]
        a, b = order.index(first), order.index(second)
        if a > b:
            return False
        names = {c.name for c in self.nest(first).computes}
        between = [self.kernel.nests[i] for i in range(a + 1, b)]
        return not any(e.arg in names for n in between for e in reads(expressions(n)))

    def _column_axis(self, name: str, below: Sequence[str]) -> Expr | None:
        """A kept axis that all reduces vary with and along which what they load is contiguous."""
        nest = self.nest(name)
        direct = [self.nest(n) for n in below]
        shortest = min((n.at[1] for n in direct if n.at is not None and n.at[0] == name), default=0)
        candidates = [loop.range for loop in nest.loops[:shortest]]
        best: Expr | None = None
        best_score = 0
        for r in candidates:
            along = across = 0
            for n in direct:
                for e in (e for c in n.computes for e in _loads(c.value)):
                    inner = n.loops[-1].range
                    along += _step(e.src[0], r) == 1 and r.size.max >= 4
                    across += _step(e.src[0], inner) == 1 and inner.size.max >= 4
            if along > across and along > best_score:
                best, best_score = r, along
        return best

    def _gather_axis(self, name: str, below: Sequence[str]) -> Expr | None:
        """Where nothing is contiguous: the longest kept axis along which no condition changes."""
        nest = self.nest(name)
        direct = [self.nest(n) for n in below]
        found = [e for n in direct for c in n.computes for e in _loads(c.value)]
        inner = [n.loops[-1].range for n in direct]
        if any(_step(e.src[0], r) == 1 and r.size.max >= 4 for e in found for r in inner):
            return None
        shortest = min((n.at[1] for n in direct if n.at is not None and n.at[0] == name), default=0)
        fit = [
            loop.range
            for loop in nest.loops[:shortest]
            if loop.range.size.max >= 8
            and all(_step(e.src[0], loop.range) >= 0 for e in found)
            and all(loop.range not in e.src[1].ranges for e in found)
        ]
        return max(fit, key=lambda r: r.size.max, default=None)

    def _columns(self, name: str, below: Sequence[str], r: Expr) -> None:
        """Lanes along a kept axis: every reduce keeps a vector of results."""
        lanes = self._lanes(self.nest(name), r.size.max)
        many = r.size.max >= 8 * lanes * 4 * self.target.max_threads
        vectors = 4 if many else 1
        self.do("split", name, r.name, lanes * vectors, "mask")
        outer, inner = f"{r.name}.o", f"{r.name}.i"
        lane_names = [inner]
        if vectors > 1:
            self.do("split", name, inner, lanes, "mask")
            self.do("unroll", name, f"{inner}.o")
            lane_names = [f"{inner}.o", f"{inner}.i"]
        self.do("vectorize", name, lane_names[-1])
        names = [loop.range.name for loop in self.nest(name).loops]
        position = names.index(outer)
        first = [*names[:position], outer]
        for n in below:
            at = self.nest(n).at
            if at is not None and at[0] == name:
                inside = [x for x in names[: at[1]] if x in lane_names]
                if inside:
                    self._move_out(name, n, lane_names)
        rest = [x for x in names if x not in first and x not in lane_names]
        self.do("reorder", name, (*first, *rest, *lane_names))

    def _move_out(self, name: str, n: str, lane_names: Sequence[str]) -> None:
        """Compute a reduce outside of the lanes; other loops between stay in front of it."""
        names = [loop.range.name for loop in self.nest(name).loops]
        at = self.nest(n).at
        assert at is not None
        depth = names.index(lane_names[0])
        between = [x for x in names[depth : at[1]] if x not in lane_names]
        if between:  # bring the lanes to the end of the prefix first
            prefix = [x for x in names[: at[1]] if x not in lane_names]
            self.do("reorder", name, (*prefix, *lane_names, *names[at[1] :]))
            depth = len(prefix)
        self.do("compute_at", n, depth)

    def _keep_rows(self, name: str, below: Sequence[str]) -> None:
        """Keep a costly row that a reduce computed for the nest that computes it again."""
        nest = self.nest(name)
        for n in reversed(below):
            producer = self.nest(n)
            shared = opt.shared_row(self.kernel, producer, nest)
            if shared is None:
                continue
            size = producer.loops[-1].range.size
            if size.is_const and size.arg * shared[0].dtype.itemsize <= self.target.l2_bytes // 4:
                self.do("keep", n, name)
                return

    def _reduce_lanes(self, n: str) -> None:
        """Several vectors of partial results along the innermost loop of a reduce."""
        nest = self.nest(n)
        r = nest.loops[-1].range
        lanes = self._lanes(nest, r.size.max)
        if lanes == 1 or any(c.at is not None and c.at[0] == n for c in self.kernel.nests):
            return
        contiguous = any(_step(e.src[0], r) == 1 for c in nest.computes for e in _loads(c.value))
        if not contiguous and not any(e.src for e in reads(expressions(nest))):
            return
        copies = max((c for c in (2, 4) if r.size.max >= c * lanes), default=1)
        self.do("split", n, r.name, lanes * copies, "peel")
        inner = f"{r.name}.i"
        names = [inner]
        if copies > 1:
            self.do("split", n, inner, lanes, "mask")
            self.do("unroll", n, f"{inner}.o")
            names = [f"{inner}.o", f"{inner}.i"]
        self.do("vectorize", n, names[-1])
        self.do("group", n, tuple(names))

    def _vectorize_last(self, name: str, below: Sequence[str]) -> None:
        """Lanes for the loops of the root inside of all its reduces."""
        nest = self.nest(name)
        deepest = max(
            (d for n in below if (at := self.nest(n).at) and at[0] == name for d in [at[1]]),
            default=0,
        )
        if len(nest.loops) <= deepest:
            return
        last = nest.loops[-1]
        if any(
            c.store is not None and _step(c.store.index, last.range) == 1 for c in nest.computes
        ):
            self._vectorize_inner(name, last)

    def _share_rows(self, name: str) -> None:
        nest = self.nest(name)
        if not nest.loops or self.work(name) < SERIAL_WORK:
            return
        if nest.loops[0].kind is Kind.SERIAL and nest.loops[0].range.size.max > 1:
            inner_reduces = any(n.at == (name, 0) for n in self.kernel.nests)
            if not inner_reduces:
                while self._can_fuse_rows(name):
                    self.do("fuse", name, self.nest(name).loops[0].range.name)
                self.do("parallel", name, self.nest(name).loops[0].range.name)

    def _can_fuse_rows(self, name: str) -> bool:
        nest = self.nest(name)
        if len(nest.loops) < 2 or nest.loops[0].range.size.max >= 8 * self.target.max_threads:
            return False
        if nest.loops[1].kind is not Kind.SERIAL or any(o.peel is not None for o in nest.loops[:2]):
            return False
        return not any(n.at in ((name, 0), (name, 1)) for n in self.kernel.nests)

    # -- contractions ------------------------------------------------------------------------------

    def _is_contraction(self, root: Nest, nest: Nest) -> bool:
        """Whether loads of a reduce are used again: each misses a loop that another one has."""
        if nest.at != (root.name, len(root.loops)) or len(nest.computes) != 1:
            return False
        found = _loads(nest.computes[0].value)
        kept = [loop.range for loop in root.loops]
        missing = [frozenset(r for r in kept if r not in e.ranges) for e in found]
        return len(found) >= 2 and any(missing)

    def _contraction(self, name: str, n: str) -> bool:
        root, nest = self.nest(name), self.nest(n)
        found = _loads(nest.computes[0].value)
        best: tuple[float, Expr, Expr | None, _Tile] | None = None
        for loop in root.loops:
            v = loop.range
            if v.size.max < 2 or all(v in e.ranges for e in found):
                continue
            m = self._row_axis(root, found, v)
            tile = self._tile(root, nest, v, m)
            cost = self._contraction_cost(root, nest, v, m, tile)
            if tile.lanes > 1 and (best is None or cost < best[0]):
                best = cost, v, m, tile
        if best is None or best[0] == float("inf"):
            return False
        _Contraction(self, name, n, *best[1:]).apply()
        return True

    def _contraction_cost(
        self, root: Nest, nest: Nest, v: Expr, m: Expr | None, tile: _Tile
    ) -> float:
        """Cycles for a multiply-add, with lanes along `v`: the tile, the stores, the copies."""
        rows = m.size.max if m is not None else 1
        k = max(prod(loop.range.size.max for loop in nest.loops), 1)
        full = max(1, self.target.vector_bytes // 4)
        cost = _tile_cost(tile, rows, v.size.max, full) / (rows * v.size.max)
        steps = [_step(c.store.index, v) for c in root.computes if c.store is not None]
        cost += sum(0.1 if step == 1 else SCATTER_CYCLES for step in steps) / k
        for e in _loads(nest.computes[0].value):
            if v not in e.ranges:
                cost += 0.0 if e.src[1] is TRUE else MASK_CYCLES / tile.columns
            elif _step(e.src[0], v) != 1:
                if rows < 4:
                    return float("inf")
                cost += STRIDED_CYCLES / rows
        return cost

    def _row_axis(self, root: Nest, found: Sequence[Expr], v: Expr) -> Expr | None:
        """The axis of the tile's rows: what is loaded along the lanes does not vary with it."""
        vectors = [e for e in found if v in e.ranges]
        fit = [
            loop.range
            for loop in root.loops
            if loop.range is not v and all(loop.range not in e.ranges for e in vectors)
        ]
        return max(fit, key=lambda r: r.size.max, default=None)

    def _tile(self, root: Nest, nest: Nest, v: Expr, m: Expr | None) -> _Tile:
        """The tile with the least time: padded work over what its loads and accumulators allow."""
        itemsize = max(nest.computes[0].value.dtype.itemsize, 4)
        full = max(1, self.target.vector_bytes // itemsize)
        registers = self.target.n_vector_registers
        rows = m.size.max if m is not None else 1
        best = _Tile(1, 1, 1)
        best_cost = float("inf")
        for lanes in (full, full // 2, full // 4):
            if lanes < 2 or (lanes < full and v.size.max > lanes * 2):
                continue
            for vectors in (1, 2, 3, 4, 6, 8):
                for r in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16):
                    if r * vectors + vectors + 1 > registers or r > rows:
                        continue
                    cost = _tile_cost(_Tile(r, vectors, lanes), rows, v.size.max, full)
                    if cost < best_cost:
                        best, best_cost = _Tile(r, vectors, lanes), cost
        return best


def _tile_cost(tile: _Tile, rows: int, columns: int, full: int) -> float:
    """Relative time for rows x columns, one step of k: two multiply-adds and two loads a cycle,
    latency 4.
    """
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    chains = tile.rows * tile.vectors
    loads = tile.vectors + tile.rows
    cycles = max(chains / 2, loads / 2, 4.0) + 0.06 * loads
    return tiles * cycles


@dataclass
class _Contraction:
    """The schedule of one contraction: `plan` holds the kernel."""

    plan: _Plan
    name: str
    reduce: str
    v: Expr
    m: Expr | None
    tile: _Tile

    def apply(self) -> None:
        names = [loop.range.name for loop in self.plan.nest(self.name).loops]
        tiled = [r.name for r in (self.v, self.m) if r is not None]
        batch = [x for x in names if x not in tiled]
        first = [*batch, *self._copy_far_rows(batch)]
        inner, v_outer = self._split_lanes()
        row_inner, row_outer = self._split_rows(v_outer, first)
        outer = [*first, *v_outer, *row_outer]
        self.plan.do("reorder", self.name, (*outer, *row_inner, *inner))
        panel = len(outer) - (1 if row_outer else 0)
        if row_outer and self._block_reduce(panel, row_outer[0], (*row_inner, *inner)):
            self._stages(self.reduce, 1, panel)
        else:
            self.plan.do("compute_at", self.reduce, len(outer))
            self._stages(self.name, panel, panel)
        self._unroll_reduce()
        self._share(panel if len(first) == len(batch) else len(first))

    def _panel_bytes(self, k: int) -> int:
        """The size of a packed panel of the operand that runs along the lanes."""
        return k * self.tile.columns * self.plan.nest(self.reduce).computes[0].value.dtype.itemsize

    def _block_reduce(self, panel: int, row_outer: str, tile_loops: Sequence[str]) -> bool:
        """Where a panel is too large for the cache: blocks of k outside of the rows.

        The accumulators of all rows of a block then live in scratch memory between two blocks of k.
        """
        plan = self.plan
        nest = plan.nest(self.reduce)
        k = nest.loops[-1].range
        limit = plan.target.l2_bytes // 2
        if len(nest.loops) != 1 or not k.size.is_const or self._panel_bytes(k.size.arg) <= limit:
            return False
        blocks = -(-self._panel_bytes(k.size.arg) // limit)
        block = next((n for n in range(blocks, 2 * blocks + 1) if k.size.arg % n == 0), blocks)
        plan.do("split", self.reduce, k.name, -(-k.size.arg // block), "peel")
        plan.do("compute_at", self.reduce, panel)
        kept = [f"{x}@{self.reduce}" for x in (row_outer, *tile_loops)]
        order = (f"{k.name}.o", kept[0], f"{k.name}.i", *kept[1:])
        plan.do("reorder", self.reduce, order)
        return True

    def _split_lanes(self) -> tuple[list[str], list[str]]:
        """The loops over vectors and lanes, and the loop over panels of columns."""
        plan, v = self.plan, self.v.name
        plan.do("split", self.name, v, self.tile.columns, "mask")
        inner = [f"{v}.i"]
        if self.tile.vectors > 1:
            plan.do("split", self.name, f"{v}.i", self.tile.lanes, "mask")
            plan.do("unroll", self.name, f"{v}.i.o")
            inner = [f"{v}.i.o", f"{v}.i.i"]
        plan.do("vectorize", self.name, inner[-1])
        return inner, [f"{v}.o"]

    def _split_rows(self, v_outer: list[str], first: Sequence[str]) -> tuple[list[str], list[str]]:
        """The loop over the rows of a tile.

        Its outer loop, in blocks where threads need more chunks.
        """
        if self.m is None:
            return [], []
        plan, m = self.plan, self.m.name
        plan.do("split", self.name, m, self.tile.rows, "clamp")
        plan.do("unroll", self.name, f"{m}.i")
        blocks = self._row_blocks([*v_outer, f"{m}.o"], first)
        if blocks == 1:
            return [f"{m}.i"], [f"{m}.o"]
        tiles = next(
            o.range.size.max for o in plan.nest(self.name).loops if o.range.name == f"{m}.o"
        )
        plan.do("split", self.name, f"{m}.o", -(-tiles // blocks), "clamp")
        v_outer.append(f"{m}.o.o")
        return [f"{m}.i"], [f"{m}.o.i"]

    def _copy_far_rows(self, batch: Sequence[str]) -> list[str]:
        """Copy blocks of an operand whose rows are neighbours but whose steps of k are pages apart.

        Each step of k would otherwise touch another page, and often the same cache set.
        """
        plan = self.plan
        nest = plan.nest(self.reduce)
        k = nest.loops[-1].range
        if (
            self.m is None
            or len(nest.loops) != 1
            or not k.size.is_const
            or not self.m.size.is_const
        ):
            return []
        far = [
            e
            for e in _loads(nest.computes[0].value)
            if self.m in e.ranges and self.v not in e.ranges and _step(e.src[0], self.m) == 1
            if _step(e.src[0], k) * e.dtype.itemsize >= FAR_BYTES
        ]
        if len(far) != 1 or k.size.arg < 64 or self.m.size.arg < 8 * self.tile.rows:
            return []
        m, rows = self.m.name, self.tile.rows
        most = max(1, plan.target.l2_bytes * 2 // 5 // (k.size.arg * far[0].dtype.itemsize * rows))
        threads = plan.target.max_threads
        blocks = -(-self.m.size.arg // (rows * most))
        blocks = -(-blocks // threads) * threads
        block = -(-self.m.size.arg // (rows * blocks)) * rows
        plan.do("split", self.name, m, block, "mask")
        names = [loop.range.name for loop in plan.nest(self.name).loops]
        rest = [x for x in names if x not in (*batch, f"{m}.o")]
        plan.do("reorder", self.name, (*batch, f"{m}.o", *rest))
        copy = f"{self.reduce}.rows"
        plan.do(
            "stage", self.reduce, far[0].arg, self.name, len(batch) + 1, (k.name, f"{m}.i"), copy
        )
        plan._vectorize_inner(copy, plan.nest(copy).loops[-1])
        self.m = next(o.range for o in plan.nest(self.name).loops if o.range.name == f"{m}.i")
        return [f"{m}.o"]

    def _row_blocks(self, outer: Sequence[str], batch: Sequence[str]) -> int:
        """How many blocks of rows make enough chunks for all threads."""
        threads = self.plan.target.max_threads
        sizes = {o.range.name: o.range.size.max for o in self.plan.nest(self.name).loops}
        chunks = sizes[outer[0]] * prod(sizes[b] for b in batch)
        tiles = sizes[outer[1]]
        blocks = -(-tiles * self.tile.rows // MOST_ROWS)
        while chunks * blocks < 8 * threads and tiles // (blocks * 2) >= 8:
            blocks *= 2
        return blocks

    def _unroll_reduce(self) -> None:
        """Unroll the innermost loop that is combined over."""
        plan = self.plan
        nest = plan.nest(self.reduce)
        kept = [loop for loop in nest.loops if loop.range in nest.computes[0].ranges]
        combined = [loop for loop in nest.loops if loop not in kept]
        k = combined[-1].range
        if k.size.max >= 8:
            plan.do("split", self.reduce, k.name, 4, "peel")
            plan.do("unroll", self.reduce, f"{k.name}.i")

    def _stages(self, at: str, depth: int, panel: int) -> None:
        """Pack what is loaded along the lanes, where it is used by many tiles of rows."""
        plan = self.plan
        nest = plan.nest(self.reduce)
        root = plan.nest(self.name)
        tiles = root.loops[panel].range.size.max if self.m is not None else 1
        for e in _loads(nest.computes[0].value):
            along = [loop.range for loop in nest.loops if loop.kind is Kind.VECTOR]
            if not along or along[0] not in e.ranges or tiles < 2:
                continue
            step = _step(e.src[0], along[0])
            if step == 1 and tiles < 4:
                continue
            self._pack(nest, e, at, depth)

    def _pack(self, nest: Nest, e: Expr, at: str, depth: int) -> None:
        """A copy in the order in which the tile reads it: k outermost, lanes innermost."""
        plan = self.plan
        kept = nest.computes[0].ranges
        opened = {loop.range for loop in nest.loops[:depth]} if at == nest.name else set()
        combined = [loop.range for loop in nest.loops if loop.range not in kept]
        axes = [r for r in combined if r in e.ranges - opened] + [r for r in kept if r in e.ranges]
        size = prod(r.size.max for r in axes) * e.dtype.itemsize
        if size > plan.target.l2_bytes * 5 // 8 or any(not r.size.is_const for r in axes):
            return
        same_slot = [x for x in _loads(nest.computes[0].value) if x.arg == e.arg]
        if len(same_slot) != 1:
            return
        name = f"{self.reduce}.pack{e.arg}"
        order = tuple(r.name for r in axes)
        plan.do("stage", self.reduce, e.arg, at, depth, order, name)
        for d in reversed(range(len(axes) - 1)):
            plan._try_fuse(name, d)
        axes = [loop.range for loop in plan.nest(name).loops]
        e = plan.nest(name).computes[0].value
        lane = axes[-1]
        if _step(e.src[0], lane) == 1:
            plan._vectorize_inner(name, plan.nest(name).loops[-1])
            return
        if lane.size.arg > self.tile.lanes:
            plan.do("split", name, lane.name, self.tile.lanes, "mask")
            lane = plan.nest(name).loops[-1].range
        along = next((r for r in axes[:-1] if _step(e.src[0], r) == 1), None)
        size = lane.size.arg
        if along is not None and along.size.max >= size:
            plan.do("split", name, along.name, size, "peel")
            names = [loop.range.name for loop in plan.nest(name).loops]
            last = (f"{along.name}.i", lane.name)
            plan.do("reorder", name, (*(x for x in names if x not in last), *last))
            plan.do("transpose", name, *last)

    def _share(self, panel: int) -> None:
        plan = self.plan
        if plan.work(self.name) < SERIAL_WORK:
            return
        for _ in range(panel - 1):
            plan.do("fuse", self.name, plan.nest(self.name).loops[0].range.name)
        if panel >= 1:
            plan.do("parallel", self.name, plan.nest(self.name).loops[0].range.name)


def _loads(value: Expr) -> list[Expr]:
    return [e for e in toposort([value]) if e.op is ExprOp.LOAD]


def _step(index: Expr, r: Expr) -> int:
    """How far an index moves along a range.

    0 where it does not depend on it, -1 where it is not linear in it.
    """
    if r not in index.ranges:
        return 0
    terms, _ = index.linear()
    if any(r in atom.ranges for atom in terms if atom is not r):
        return -1
    return terms.get(r, 0)


def _writes_scattered(nest: Nest) -> bool:
    """Whether a store goes where a loaded value says."""
    return any(
        e.op is ExprOp.LOAD
        for c in nest.computes
        if c.store is not None
        for e in toposort([c.store.index])
    )
