"""Contractions whose operands are copied, block by block, into the order in which tiles read them.

There are two forms.

*Windows*: the rows of the tile are read through a window, as in a convolution or the gradient of
its input. Tiles read a block of rows at shifted places. They read it in place, or, if that takes
longer, from a copy with its border. The same form serves places that are several elements apart, as
patches of an image: nothing is shifted, but a block of several lines makes a copy of the filters
worth its time.

*Long sums*: the tile's axes are far apart in memory and the terms of the sum are neighbours, as in
the gradient of a convolution's weights. Blocks of terms of both operands are copied, and the sums
of all tiles stay in scratch memory between two blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

from ferrule.codegen.analysis.window import Window, distance
from ferrule.codegen.kernel import Nest
from ferrule.codegen.plan import MAX_SCRATCH_BYTES, Plan, bytes_loaded, loads, step_of
from ferrule.codegen.primitives.loops import fuse
from ferrule.codegen.schedules.copies import Copies, Operands
from ferrule.codegen.schedules.tile import SCATTER_CYCLES, Tile, best_tile, tile_cost
from ferrule.ir.expr import Expr, conjuncts

# Tuning constants, set between 2026-11-21 and 23 on Zen 4 and Zen 5. docs/design/experiments.md
# (Convolutions) has the measured kernels; a number without a figure was not measured by itself.
MIN_TERMS = 16
"""Terms of a sum; with fewer, the copies would take longer than the sums."""
MAX_NEAR_STEP = 4
"""Elements between steps of a sum that share cache lines."""
MIN_ROWS = 4
"""Rows of one axis; if it is shorter, several axes are the rows of a tile."""
MAX_ROWS = 14
"""Rows of a tile that several axes make."""
MIN_PRODUCTS = 8
"""Multiply-adds of a vector for each copied element; with fewer, copies take much of the time."""
MIN_GROUP_SAVING = 2
"""Bytes saved for each byte copied again, from which images are taken in groups."""
COPIED_L2_SHARE = 0.4
"""The share of the second cache for a block of rows that is copied."""
IN_PLACE_L2_SHARE = 0.8
"""The share of the second cache for a block of rows that is read in place."""
L2_WAYS = 8
"""Ways of the second cache, at least."""
MAX_OVERHANG = 2
"""Places that taps reach beyond a line, to read it in place. Each costs an address for each term:
5 x 5 taps were 4 % slower in place than copied (Zen 4)."""
CHUNKS_PER_THREAD = 4
"""Chunks for each thread, if blocks may have any size."""


def schedule_blocks(plan: Plan, name: str, reduce: str) -> bool:
    """Schedule the contraction `reduce` of the root nest `name`; False where no form suits."""
    root, fit = plan.nest(name), operands_of(plan, name, reduce)
    for operands in fit:
        m = _window_row(operands)
        if m is not None:
            Windows(plan, name, reduce, operands).apply(m)
            return True
    for operands in fit:
        places = _places(plan, root, operands)
        if places is not None:
            Windows(plan, name, reduce, operands).apply(*places)
            return True
    long = [operands for operands in fit if _is_long_sum(operands)]
    if not long:
        return False
    through_window = [o for o in long if any(len(o.window(r)) > 1 for r in o.row_ranges)]
    _LongSum(plan, name, reduce, (through_window or long)[0]).apply()
    return True


def operands_of(plan: Plan, name: str, reduce: str) -> list[Operands]:
    """The operands of a contraction, for each of the two that may be the rows' one."""
    root, nest = plan.nest(name), plan.nest(reduce)
    found = loads(nest.computes[0].value)
    if len({e.arg for e in found}) != 2 or len(found) != 2:
        return []
    if any(not loop.range.size.is_const for loop in (*root.loops, *nest.loops)):
        return []
    both = [_operands(root, nest, *pair) for pair in (found, found[::-1])]
    return [operands for operands in both if operands is not None]


def _operands(root: Nest, nest: Nest, rows: Expr, lanes: Expr) -> Operands | None:
    result_axes = [loop.range for loop in root.loops]
    terms = tuple(loop.range for loop in nest.loops)
    operands = Operands(
        rows,
        lanes,
        tuple(r for r in result_axes if r in rows.ranges and r in lanes.ranges),
        tuple(r for r in result_axes if r in rows.ranges and r not in lanes.ranges),
        tuple(r for r in result_axes if r in lanes.ranges and r not in rows.ranges),
        terms,
    )
    count = len(operands.shared) + len(operands.row_ranges) + len(operands.lane_ranges)
    enough = prod(r.size.arg for r in terms) >= MIN_TERMS
    wide = max((r.size.arg for r in operands.lane_ranges), default=1) >= 4
    fits = count == len(result_axes) and enough and wide and bool(operands.row_ranges)
    return operands if fits else None


def _count(ranges: Iterable[Expr]) -> int:
    """The number of iterations of loops over some ranges together."""
    return prod(r.size.max for r in ranges)


def _window_row(operands: Operands) -> Expr | None:
    """The nearest axis of the rows that has a window: fewer taps than places, which overlap."""
    fit = []
    for r in operands.row_ranges:
        taps = operands.window(r)[1:]
        if taps and prod(tap.size.arg for tap in taps) < r.size.arg:
            fit.append(r)
    return min(fit, key=lambda r: distance(operands.rows.src[0], r), default=None)


def _places(plan: Plan, root: Nest, operands: Operands) -> tuple[Expr, Expr | None] | None:
    """The places of a line and the lines of a result, for patches.

    The places are several elements apart in the rows' operand (patches of an image, or every second
    pixel of it), or in the result (an image made of patches), and other lanes' results are between
    them. None if lanes along the places, or along the axes in between, take less time.
    """
    index = next(c.store.index for c in root.computes if c.store is not None)
    element = operands.rows
    full = plan.target.lanes(max(element.dtype.itemsize, 4))
    longest = max(operands.lane_ranges, key=lambda r: int(r.size.arg))
    others = [r for r in operands.lane_ranges if r is not longest and r.size.arg < full]
    between = {int(r.size.arg) for r in others if step_of(index, r) == 1}
    for m in operands.row_ranges:
        lines, step = _lines(index, operands, m), step_of(index, m)
        in_line = step == 1 and lines is not None and step_of(index, lines) == m.size.arg
        if step in between or (in_line and distance(element.src[0], m) > 1):
            places, columns = int(m.size.arg), int(longest.size.arg)
            across = step * _least_cost(plan, element.dtype.itemsize, places, columns)
            along = _least_cost(plan, element.dtype.itemsize, columns * step, places)
            if step > 1:
                terms = prod(int(r.size.arg) for r in operands.terms)
                along += SCATTER_CYCLES * columns * step * places / terms
            return (m, lines) if across <= along else None
    return None


def _lines(index: Expr, operands: Operands, m: Expr) -> Expr | None:
    """The axis along which the next place is in the next line of the result, or in one of the next
    few.

    A line is all places along `m`.
    """
    line = step_of(index, m) * m.size.arg
    steps = {r: step_of(index, r) for r in operands.row_ranges}
    whole = [r for r, step in steps.items() if step > 0 and step % line == 0 and r is not m]
    return min(whole, key=lambda r: steps[r], default=None)


def _least_cost(plan: Plan, itemsize: int, rows: int, columns: int) -> float:
    tile = best_tile(plan.target, itemsize, rows, columns)
    return tile_cost(plan.target.speeds, tile, rows, columns)


def _is_long_sum(operands: Operands) -> bool:
    """True if both operands are near along a long term of the sum, and the sum has several axes."""
    near = [
        r
        for r in operands.terms
        if r.size.arg >= 4
        and all(0 < distance(e.src[0], r) <= MAX_NEAR_STEP for e in (operands.rows, operands.lanes))
    ]
    return len(operands.terms) > 1 and bool(near)


class Windows(Copies):
    """The schedule for rows that are read through a window."""

    def apply(self, m: Expr, lines: Expr | None = None) -> None:
        plan, operands, v = self.plan, self.operands, self.v
        phases = self._phases(m)
        tile = self._fit_scratch(
            best_tile(plan.target, self.itemsize, m.size.arg, v.size.arg), phases
        )
        in_place = self._reads_in_place(m)
        blocked, block = self._block(m, lines, IN_PLACE_L2_SHARE if in_place else COPIED_L2_SHARE)
        images = [r for r in (*operands.shared, *operands.row_ranges) if r not in (m, blocked)]
        rows = []
        if blocked is not None:
            outside, inside = plan.split(self.name, blocked, block, "mask")
            images.append(outside)
            rows.append(inside)
        panels, panel = plan.split(self.name, v, tile.columns, "mask")
        apart = [r for r in operands.lane_ranges if r is not v and r not in phases]
        if phases and len(operands.window(m)) == 1 and self._panel_fits_cache(tile):
            rows += apart  # in the operand along the lanes they are neighbours of the phases
            apart = []
        places = _count((m, *rows))
        outer, rows_at, lanes_at, shared_out = self._outer_loops(
            tile, places, images, [*apart, panels]
        )
        plan.do("reorder", self.name, (*outer, *rows, m, *phases, panel))
        channels = self._tile(len(outer) + len(rows), m, phases, panel, tile)
        if not in_place:
            self.copy(operands.rows, self.name, rows_at, channels)
            self.prefetch_later(operands.rows)
        self.copy(operands.lanes, self.name, lanes_at, [*self._packed_order(), v])
        self.read_in_order(operands.lanes)
        self.prefetch_later(operands.lanes)
        self.unroll_terms(self.order[-1])
        line = m
        for _ in phases:
            line = plan.fuse(self.name, line)
        self.store(line, panel)
        plan.prefetch_results(self.name)
        plan.share(self.name, shared_out)
        if in_place and blocked is not None:
            self._prefetch_next_line(rows)

    def _outer_loops(
        self, tile: Tile, places: int, images: list[Expr], panels: list[Expr]
    ) -> tuple[list[Expr], int, int, int]:
        """The loops over blocks of rows and over panels, the depths at which rows and panels are
        copied, and the number of loops that threads share.
        """
        batch = len(self.operands.shared)
        together, groups = self._panels_together(tile, places, images, batch, panels[:-1])
        if together is None and images:
            outer = [*images, *panels]
            return outer, len(images), len(outer), len(images)
        panels[-1], panel = self.plan.split(self.name, panels[-1], together or 1, "mask")
        first = [*images[:batch], *self._split_images(images, batch, groups), *panels]
        outer = [*first, *images[batch:], panel]
        # A panel that is copied for all runs lies in one piece.
        lanes_at = len(outer if self.operands.lanes.arg in self.plan.constants else first)
        return outer, len(outer) - 1, lanes_at, len(first)

    def _reads_in_place(self, m: Expr) -> bool:
        """True if tiles read the rows' operand in place, line by line.

        A copy of the block would take longer than the masks of the few rows that may be beyond the
        border.
        """
        rows = self.operands.rows
        windows = [w for w in self.windows if len(w) > 1]
        lines = [w for w in windows if w[0] is not m]
        near = 0 < distance(rows.src[0], m) <= MAX_NEAR_STEP
        if not near or self._crowds_cache_sets():
            return False
        if not windows:
            return True
        if len(lines) != 1:
            return False
        window = self.operands.window(m)
        found = Window.of(rows, window)
        border = any(m in part.ranges for part in conjuncts(rows.src[1]))
        if found is None:
            return False
        beyond = sum(abs(found.weights[tap]) * (tap.size.arg - 1) for tap in window[1:])
        return not border or beyond <= MAX_OVERHANG

    def _crowds_cache_sets(self) -> bool:
        """True if the lines of different channels crowd into so few sets of the second cache that
        they take more than half of these.
        """
        rows = self.operands.rows
        taps = {tap for window in self.windows for tap in window[1:]}
        channels = [r for r in self.operands.terms if r in rows.ranges and r not in taps]
        way = self.plan.target.l2_bytes // L2_WAYS
        steps = [(r, distance(rows.src[0], r) * rows.dtype.itemsize) for r in channels]
        return any(r.size.arg * gcd(step, way) > L2_WAYS // 2 * way for r, step in steps)

    def _prefetch_next_line(self, blocked: Sequence[Expr]) -> None:
        """Prefetch the next line of the rows' operand while tiles read one.

        Adjacent lines of an image are far apart in memory for each channel.
        """
        plan, rows = self.plan, self.operands.rows
        nest = plan.nest(self.reduce)
        (element,) = (e for e in loads(nest.computes[0].value) if e.arg == rows.arg)
        if bytes_loaded(rows) > plan.target.l2_bytes // 2:
            plan.do("prefetch", self.reduce, rows.arg, distance(element.src[0], blocked[0]))

    def _panel_fits_cache(self, tile: Tile) -> bool:
        """True if a panel of the operand along the lanes fits the cache, with all elements between
        its columns.
        """
        operands = self.operands
        between = [r for r in operands.lane_ranges if r is not self.v]
        column = self.copied_bytes(operands.lanes, [*operands.terms, *between])
        return column * tile.columns <= self.plan.target.l2_bytes // 2

    def _split_images(self, images: list[Expr], batch: int, groups: int) -> list[Expr]:
        """The loop over groups of images, if there is more than one group."""
        if groups == 1:
            return []
        image = images[batch]
        size = -(-image.size.max // groups)
        outside, images[batch] = self.plan.split(self.name, image, size, "mask")
        return [outside]

    def _phases(self, m: Expr) -> list[Expr]:
        """The ranges whose results lie between those along the rows' axis: both make one line."""
        (index,) = {c.store.index for c in self.plan.nest(self.name).computes if c.store}
        return [
            r
            for r in self.operands.lane_ranges
            if r is not self.v and step_of(index, r) == 1 and step_of(index, m) == r.size.arg
        ]

    def _block(self, m: Expr, lines: Expr | None, share: float) -> tuple[Expr | None, int]:
        """Another axis of the window, and the size of its blocks.

        A block of rows fits a share of the second cache, and there are enough blocks for all
        threads.
        """
        operands, target = self.operands, self.plan.target
        others = [w[0] for w in self.windows if len(w) > 1 and w[0] is not m]
        others = [lines] if lines is not None else others
        if not others:
            return None, 0
        blocked = min(others, key=lambda r: distance(operands.rows.src[0], r))
        size = int(blocked.size.arg)
        inside = {m, *operands.terms}
        line = self.copied_bytes(operands.rows, inside) // prod(
            tap.size.arg for tap in operands.window(blocked)[1:]
        )
        most = max(1, int(target.l2_bytes * share) // line)
        images = prod(r.size.arg for r in (*operands.shared, *operands.row_ranges))
        images //= m.size.arg * size
        least = -(-CHUNKS_PER_THREAD * target.max_threads // images)
        blocks = max(-(-size // most), min(least, size // 4), 1)
        even = next((n for n in range(blocks, 2 * blocks) if size % n == 0), blocks)
        return blocked, -(-size // even)

    def _fit_scratch(self, tile: Tile, phases: Sequence[Expr]) -> Tile:
        """The tile with fewer vectors, if a panel of the operand along the lanes would need too
        much scratch.
        """
        operands = self.operands
        inside = [*operands.terms, *phases]
        column = self.copied_bytes(operands.lanes, inside)
        while tile.vectors > 1 and column * tile.columns > MAX_SCRATCH_BYTES // 2:
            tile = Tile(tile.rows, tile.vectors // 2, tile.lanes)
        return tile

    def _panels_together(
        self, tile: Tile, places: int, images: Sequence[Expr], batch: int, apart: Sequence[Expr]
    ) -> tuple[int | None, int]:
        """The number of panels that are copied at a time, and the number of groups of images.

        The first is None if blocks of rows are the outermost loop, not panels. An operand that is
        inside is copied again for each iteration outside: the smaller copies go inside.
        """
        operands, target = self.operands, self.plan.target
        shared, blocks = _count(images[:batch]), _count(images[batch:])
        phases = _count(apart)
        total = -(-int(self.v.size.arg) // tile.columns)
        lane_bytes = self.copied_bytes(operands.lanes, (*operands.lane_ranges, *operands.terms))
        row_bytes = self.copied_bytes(operands.rows, (*operands.row_ranges, *operands.terms))
        enough = 2 * target.max_threads
        if operands.lanes.arg in self.plan.constants:
            # Panels are copied once for all runs, so that a thread's may be any number.
            if blocks * shared >= enough:
                return None, 1
            return -(-total // target.max_threads), 1
        most = max(1, target.l2_bytes // 2 * total * phases // lane_bytes)
        while most > 1 and -(-total // most) * phases < enough:
            most -= 1
        outside = -(-total // most) * phases
        if outside < CHUNKS_PER_THREAD * target.max_threads:
            outside = -(-outside // target.max_threads) * target.max_threads  # a share for each
        together = -(-total * phases // outside)
        outside = -(-total // together) * phases
        if outside * shared >= enough or blocks * shared < enough:
            return (together if outside * row_bytes < blocks * lane_bytes else None), 1
        groups = -(-enough // (outside * shared))
        most_groups = images[batch].size.max
        if places >= MIN_PRODUCTS * tile.lanes or groups > most_groups:
            return (
                None,
                1,
            )  # a copy of the filters takes little time here, or there are few images
        more, fewer = (outside - 1) * row_bytes, (blocks - groups) * lane_bytes
        return (together if MIN_GROUP_SAVING * more < fewer else None), groups

    def _packed_order(self) -> list[Expr]:
        """The terms in the order of a panel of the operand along the lanes.

        Terms that are adjacent in memory stay adjacent: a copy transposes squares of them. Other
        terms are in the order in which they are summed up.
        """
        index = self.operands.lanes.src[0]
        return sorted(self.operands.terms, key=lambda r: -distance(index, r))

    def _tile(
        self, depth: int, m: Expr, phases: Sequence[Expr], panel: Expr, tile: Tile
    ) -> list[Expr]:
        """Compute a line of sums at a time, tile by tile; the terms that are not taps."""
        plan = self.plan
        taps = {tap for window in self.windows for tap in window[1:]}
        terms = self.operands.terms
        channels = [r for r in terms if r not in taps]
        self.order = [*(r for r in terms if r in taps), *channels]
        plan.do("compute_at", self.reduce, depth)
        tiles, rows = self.split_rows(plan.copy_of(m, self.reduce), tile)
        columns = plan.vectors(self.reduce, plan.copy_of(panel, self.reduce), tile.lanes)
        first = plan.copies_of(phases, self.reduce)
        plan.do("reorder", self.reduce, (*first, *tiles, *self.order, rows, *columns))
        for tap in [r for r in terms if r in taps]:
            plan.limit(self.reduce, tap)
        return channels


class _LongSum(Copies):
    """The schedule for terms that are neighbours in both operands."""

    def apply(self) -> None:
        plan, operands, v = self.plan, self.operands, self.v
        rows = self._rows()
        tile = self._tile(rows)
        together = self._panels_together(tile)
        outer, inner, panel = self._split_results(rows, tile, together)
        taps = [r for r in operands.row_ranges if r not in rows]
        places = sorted([*taps, *inner], key=self._store_step, reverse=True)
        plan.do("reorder", self.name, (*outer, *places, panel))
        plan.do("compute_at", self.reduce, len(outer))
        blocks, last = self._tile_sums(taps, inner, panel, tile, together)
        self.copy(operands.rows, self.reduce, blocks, rows)
        self.prefetch_later(operands.rows)
        if len(rows) == 1:
            self.pad_rows(operands.rows, rows[0], tile)
        self.copy(operands.lanes, self.reduce, blocks, [v])
        self.prefetch_next(operands.lanes, blocks)
        self.unroll_terms(last)
        for depth in reversed(range(len(outer), len(outer) + len(places) - 1)):
            self._fuse_stored_axes(depth)
        self.store(plan.loops(self.name)[-2], panel)
        plan.share(self.name, len(outer))

    def _split_results(
        self, rows: Sequence[Expr], tile: Tile, together: int
    ) -> tuple[list[Expr], list[Expr], Expr]:
        """The loops over panels and blocks of rows, the loops over the rows of a block, and the
        loop over the columns of a panel.
        """
        plan, operands, v = self.plan, self.operands, self.v
        panels, panel = plan.split(self.name, v, together * tile.columns, "mask")
        others = [r for r in (*operands.shared, *operands.lane_ranges) if r is not v]
        outer = [*others, panels]
        count = self._row_blocks(rows[0], tile, outer) if len(rows) == 1 else 1
        if count == 1:
            return outer, list(rows), panel
        (row,) = rows
        size = -(-row.size.arg // (count * tile.rows)) * tile.rows
        blocks, inside = plan.split(self.name, row, size, "mask")
        return [*outer, blocks], [inside], panel

    def _tile_sums(
        self, taps: Sequence[Expr], rows: Sequence[Expr], panel: Expr, tile: Tile, together: int
    ) -> tuple[int, Expr]:
        """Split the sums into tiles; the number of loops over blocks of terms, and the last loop
        over terms.
        """
        plan = self.plan
        blocks, terms = self._split_terms(panel.size.max)
        outer = plan.copies_of(taps, self.reduce)
        copies = []
        for r in plan.copies_of(rows, self.reduce):
            tiles, copy = self.split_rows(r, tile)
            outer += tiles
            copies.append(copy)
        lanes = plan.copy_of(panel, self.reduce)
        if together > 1:
            panels, lanes = plan.split(self.reduce, lanes, tile.columns, "mask")
            outer.append(panels)
        columns = plan.vectors(self.reduce, lanes, tile.lanes)
        plan.do("reorder", self.reduce, (*blocks, *outer, *terms, *copies, *columns))
        return len(blocks), terms[-1]

    def _fuse_stored_axes(self, depth: int) -> None:
        """Fuse two loops of the final stores if they are one axis of the result."""
        loop = self.plan.nest(self.name).loops[depth]
        fused = fuse(self.plan.kernel, self.name, loop.range.name).by_name[self.name]
        r = fused.loops[depth].range
        if all(step_of(c.store.index, r) > 0 for c in fused.computes if c.store is not None):
            self.plan.do("fuse", self.name, loop.range)

    def _store_step(self, r: Expr) -> int:
        nest = self.plan.nest(self.name)
        return max(step_of(c.store.index, r) for c in nest.computes if c.store is not None)

    def _rows(self) -> list[Expr]:
        """The axes that are the rows of the tile: one, or all if each is short."""
        operands = self.operands
        single = max(operands.row_ranges, key=lambda r: (len(operands.window(r)) == 1, r.size.arg))
        if single.size.arg >= MIN_ROWS:
            return [single]
        total = prod(r.size.arg for r in operands.row_ranges)
        return list(operands.row_ranges) if total <= MAX_ROWS else [single]

    def _tile(self, rows: Sequence[Expr]) -> Tile:
        """The tile, with fewer vectors if panels would be too few for the threads."""
        target, v = self.plan.target, self.v
        count = prod(int(r.size.arg) for r in rows)
        tile = best_tile(target, self.itemsize, count, v.size.arg)
        if len(rows) > 1:
            vectors = max(1, (target.n_vector_registers - 1) // (count + 1))
            tile = Tile(count, min(vectors, -(-v.size.arg // tile.lanes)), tile.lanes)
        others = prod(r.size.arg for r in (*self.operands.shared, *self.operands.lane_ranges))
        others //= v.size.arg
        while tile.vectors > 1 and others * -(-v.size.arg // tile.columns) < target.max_threads:
            tile = Tile(tile.rows, tile.vectors // 2, tile.lanes)
        return tile

    def _panels_together(self, tile: Tile) -> int:
        """The number of panels that share a copy of the rows, while there are chunks for all
        threads.

        Each thread has two chunks in case one is delayed, unless copies are a large part of the
        work.
        """
        total = -(-int(self.v.size.arg) // tile.columns)
        rows = (*self.operands.row_ranges, *self.operands.terms)
        copied = self.copied_bytes(self.operands.rows, rows) // self.operands.rows.dtype.itemsize
        products = prod(int(r.size.arg) for r in rows) * tile.vectors
        enough = (1 if copied * MIN_PRODUCTS > products else 2) * self.plan.target.max_threads
        return next(n for n in (4, 2, 1) if n == 1 or (total % n == 0 and total // n >= enough))

    def _row_blocks(self, rows: Expr, tile: Tile, outer: Sequence[Expr]) -> int:
        """The number of blocks of rows that makes enough chunks for all threads."""
        chunks = _count(outer)
        threads = self.plan.target.max_threads
        if chunks % threads == 0 or chunks >= CHUNKS_PER_THREAD * threads:
            return 1
        return min(-(-int(rows.size.arg) // tile.rows), -(-CHUNKS_PER_THREAD * threads // chunks))

    def _split_terms(self, columns: int) -> tuple[list[Expr], list[Expr]]:
        """The loops over blocks of terms, and those inside of a block that fits the cache with
        `columns` columns.
        """
        limit = self.plan.target.l2_bytes // 2
        terms = sorted(self.operands.terms, key=lambda r: -distance(self.operands.rows.src[0], r))
        inside = [terms.pop()]
        while terms and self._block_bytes(columns, [terms[-1], *inside]) <= limit:
            inside.insert(0, terms.pop())
        blocks, rest = list(terms), list(inside)
        if terms and self._block_bytes(columns, [terms[-1], *inside], 2) <= limit:
            partial = terms[-1]
            size = int(partial.size.arg)
            count = next(
                n
                for n in range(1, size)
                if self._block_bytes(columns, [partial, *inside], -(-size // n)) <= limit
            )
            count = next((n for n in range(count, 2 * count) if size % n == 0), count)
            blocks[-1], part = self.plan.split(self.reduce, partial, -(-size // count), "peel")
            rest.insert(0, part)
        return blocks, rest

    def _block_bytes(self, columns: int, terms: Sequence[Expr], first: int | None = None) -> int:
        """The bytes of both operands' copies for some terms; of the first term only `first` values
        if given.
        """
        part = None if first is None else (terms[0], first)
        ranges = (*self.operands.row_ranges, *terms)
        rows = self.copied_bytes(self.operands.rows, ranges, part)
        return rows + self.copied_bytes(self.operands.lanes, terms, part) * columns
