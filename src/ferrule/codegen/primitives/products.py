"""The primitive for sums of products of which an instruction adds up several terms at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrule.codegen.intrinsics import (
    INTRINSICS,
    MATRIX_INTRINSICS,
    TILE,
    WGMMA,
    Intrinsic,
    MatrixIntrinsic,
    TileIntrinsic,
)
from ferrule.codegen.kernel import Kernel, Kind, Nest
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    copy_name,
    depth_of,
    is_combined,
    map_reads,
    move_children,
    nest_of,
)
from ferrule.codegen.primitives.kinds import set_kind
from ferrule.codegen.primitives.loops import split
from ferrule.ir.dtype import dtypes, truncate
from ferrule.ir.expr import Expr, ExprOp, alu, cast, const, pack, range_


def tensorize(
    kernel: Kernel, nest_name: str, name: str, intrinsic_name: str, shifted: int = 0
) -> Kernel:
    """Let a sum of products of narrow numbers take several steps at once, by an instruction for it.

    `for k in n: s sum= cast(a[k]) * cast(b[k])` -> `for k.o in ceil(n / 2): s sum= dot(a[2*k.o &
    2*k.o + 1], b[2*k.o & 2*k.o + 1], 0)`, where the 0 stands for the sum so far. If n is odd, the
    last pair is filled with zeros in a copy of the body. Re-associates, and takes subnormals for
    zeros.

    - "dpbusd" takes four steps, and multiplies unsigned bytes by signed ones. If both factors are
      signed, or both unsigned, the factor number `shifted` is taken as the other kind, with its
      first bit flipped. That adds 128 to each of its elements, or subtracts it. A nest of its own
      (`s.correction`) adds up 128 times the other factor, and the results are corrected where they
      are read. Exact.
    - "mma16816" leaves the loops as they are. The threads of a warp do the last one, of 16 terms,
      at once.
    - "mma1688" does so with 8 terms: `s sum= a[k] * b[k]` in float32 becomes `s sum= tf32(a[k]) *
      tf32(b[k])`, a different sum, of rounded operands.
    - "wgmma" is for the threads of four warps, whose operands are staged in shared memory. The
      copies must be made ahead (`pipeline`), to a depth of at least three.
    - "tdpbf16ps" does the last three loops of a nest that adds up pairs (rows, columns and k) at
      once, in tile registers.

    >>> from ferrule.codegen.kernel import MONOIDS, Compute, Loop, show
    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import alu, cast, load, range_
    >>> k = range_("k", 8)
    >>> a, b = (cast(load(slot, dtypes.bfloat16, k), dtypes.float32) for slot in (1, 2))
    >>> product = Compute("s", alu(ExprOp.MUL, a, b), (), MONOIDS["sum"])
    >>> nest = Nest("s", (product,), (Loop(k),))
    >>> dtypes_of_slots = (dtypes.float32, dtypes.bfloat16, dtypes.bfloat16)
    >>> print(show(tensorize(Kernel("dot", (nest,), dtypes_of_slots), "s", "k", "dpbf16ps")))
    kernel dot(b0: float32, b1: bfloat16, b2: bfloat16)
      # s
      for k.o in 4:
        s sum= dot(b1[k.o * 2, k.o * 2 + 1], b2[k.o * 2, k.o * 2 + 1], 0.0)
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    r = nest.loops[depth].range
    matrices = {**MATRIX_INTRINSICS, WGMMA.name: WGMMA}
    if intrinsic_name in matrices:
        return _multiply_matrices(kernel, nest, r, matrices[intrinsic_name])
    if intrinsic_name == TILE.name:
        return _multiply_tiles(kernel, nest, r, TILE)
    intrinsic = INTRINSICS.get(intrinsic_name)
    if intrinsic is None:
        raise ScheduleError(
            f"tensorize({name}) in kernel {kernel.name}: no intrinsic {intrinsic_name}; there are "
            f"{sorted((*INTRINSICS, *matrices, TILE.name))}"
        )
    if not (is_dot(nest, r, intrinsic) and r.size.is_const):
        sources = " or ".join(source.name for source, _ in intrinsic.operands)
        raise ScheduleError(
            f"tensorize({name}) in kernel {kernel.name}: {intrinsic_name} adds up products of two "
            f"{sources} loads that vary with the range, in "
            f"{intrinsic.result.name}, over a constant size; nest {nest_name} does not"
        )
    return _multiply_packed(kernel, nest, depth, intrinsic, shifted)


def _multiply_packed(
    kernel: Kernel, nest: Nest, depth: int, intrinsic: Intrinsic, shifted: int
) -> Kernel:
    """Let each lane add up several packed terms of the loop at a depth at once."""
    name = nest.name
    kernel = split(kernel, name, nest.loops[depth].range.name, intrinsic.terms, "peel")
    nest = nest_of(kernel, name)
    inner = nest.loops[depth + 1]
    (c,) = nest.computes
    product = c.value.src[1] if c.value.op is ExprOp.WHERE else c.value
    factors = [_packed(_narrow(factor), inner.range, intrinsic) for factor in product.src]
    offset = None
    if intrinsic.mixed and factors[0].dtype is factors[1].dtype:
        factors[shifted], offset = _shifted(factors[shifted])
    last = {inner.range: inner.range.size - 1}
    loops = tuple(loop.mapped(last) for loop in nest.loops if loop is not inner)
    nest = replace(nest, computes=(replace(c, value=_dot(factors, intrinsic)),), loops=loops)
    kernel = kernel.with_nest(nest)
    kernel = move_children(kernel, name, lambda d: d if d <= depth + 1 else d - 1)
    excess = None
    if offset is not None:
        factors[shifted] = offset
        other = _same_sum(nest, kernel.free_name(f"{name}.correction"), _dot(factors, intrinsic))
        kernel, excess = kernel.insert_before(name, other), other.name

    def corrected(e: Expr) -> Expr:
        total = Expr(ExprOp.READ, intrinsic.result, e.src, e.arg)
        if excess is not None:
            total = alu(ExprOp.SUB, total, Expr(ExprOp.READ, intrinsic.result, e.src, excess))
        return cast(total, e.dtype)

    return map_reads(kernel, {c.name}, corrected)


def _dot(factors: Sequence[Expr], intrinsic: Intrinsic) -> Expr:
    return Expr(ExprOp.DOT, intrinsic.result, (*factors, const(0, intrinsic.result)))


def _packed(e: Expr, r: Expr, intrinsic: Intrinsic) -> Expr:
    """A load at each place of a range, packed as one value."""
    elements = [e.substitute({r: const(i)}) for i in range(intrinsic.terms)]
    return pack(elements, intrinsic.packed(e.dtype))


def _shifted(e: Expr) -> tuple[Expr, Expr]:
    """Packed bytes with the first bit of each flipped, as bytes of the other kind; and how much
    larger they are for that.
    """
    dtype = dtypes.uint32 if e.dtype is dtypes.int32 else dtypes.int32
    first_bits = const(truncate(dtype, 0x80808080), dtype)
    return alu(ExprOp.XOR, Expr(ExprOp.LOAD, dtype, e.src, e.arg), first_bits), first_bits


def _same_sum(nest: Nest, name: str, value: Expr) -> Nest:
    """A nest that adds up other terms over the same ranges."""
    (c,) = nest.computes
    clones = {
        loop.range: range_(copy_name(loop.range.name, name), loop.size) for loop in nest.loops
    }
    loops = tuple(replace(o.mapped(clones), range=clones[o.range]) for o in nest.loops)
    total = replace(c, name=name, value=value.substitute(clones))
    return replace(nest, name=name, computes=(total,), loops=loops)


def is_dot(nest: Nest, r: Expr, intrinsic: Intrinsic) -> bool:
    """True if a nest adds up products of two loads over a range, cast or not, as an intrinsic does.

    Both loads vary with the range, so that each can be filled with zeros beyond its end.
    """
    if len(nest.computes) != 1 or not is_combined(nest, r):
        return False
    (c,) = nest.computes
    assert c.monoid is not None
    if c.monoid.op is not ExprOp.ADD or c.value.op is not ExprOp.MUL:
        return False
    return intrinsic.gives(c.value.dtype) and all(
        e.op is ExprOp.LOAD and intrinsic.takes(e.dtype) and r in e.ranges
        for e in map(_narrow, c.value.src)
    )


def _narrow(factor: Expr) -> Expr:
    """A factor before it is cast to the dtype of the product."""
    return factor.src[0] if factor.op is ExprOp.CAST else factor


def _multiply_matrices(kernel: Kernel, nest: Nest, r: Expr, by: MatrixIntrinsic) -> Kernel:
    """Make the last loop of a tile of a warp's results one instruction."""
    threads = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
    kinds = [(loop.kind, loop.range.size.max) for loop in nest.loops[-3:]]
    expected = [(Kind.UNROLL, by.rows // by.down), (Kind.VECTOR, by.near)]
    sizes = [thread.size.max for thread in threads]
    fits = (
        kinds == [*expected, (Kind.SERIAL, by.terms)]
        and nest.loops[-1].range is r
        and sizes == [by.down, by.across]
    )
    if not (fits and _is_matrix_product(nest, r, threads, by)):
        raise ScheduleError(
            f"tensorize({r}, {by.name}) in kernel {kernel.name}: nest {nest.name} does not add up "
            f"{by.terms} products of matrices of {[d.name for d in by.sources]} in the last of "
            f"its loops, after threads of {by.down} and {by.across}, copies of "
            f"{by.rows // by.down} and {by.near} lanes"
        )
    if by.rounds:
        kernel = kernel.with_nest(_of_rounded(nest))
    together = by.warps > 1
    if together and not _is_by_warp_groups(kernel, nest, by):
        raise ScheduleError(
            f"tensorize({r}, {by.name}) in kernel {kernel.name}: nest {nest.name} has no threads "
            f"of {by.warps} warps before those of a warp, or its operands are not staged"
        )
    return set_kind(kernel, nest.name, r.name, Kind.WARP_GROUP if together else Kind.MATRIX)


def _is_by_warp_groups(kernel: Kernel, nest: Nest, by: MatrixIntrinsic) -> bool:
    """True if warps are one below the other, and the operands are in shared memory."""
    warps = [loop.size for loop in nest.loops if loop.kind is Kind.THREAD][:-2]
    (c,) = nest.computes
    copies = [o.range for o in nest.loops[:-3] if o.kind is Kind.UNROLL and o.range in c.ranges]
    factors = [f.src[0] if f.op is ExprOp.CAST else f for f in c.value.src]
    threads = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
    left, _ = matrix_operands(c.value, threads[0])
    return (
        warps[-1:] == [by.warps]
        and left.ranges.isdisjoint(copies)
        and all(f.op is ExprOp.READ and kernel.owner[f.arg].at for f in factors)
    )


def _multiply_tiles(kernel: Kernel, nest: Nest, r: Expr, by: TileIntrinsic) -> Kernel:
    """Make the last three loops of a nest one instruction."""
    last = nest.loops[-3:]
    sizes = [loop.range.size for loop in last]
    expected = [const(size) for size in (by.rows, by.columns, by.terms)]
    if sizes != expected or last[-1].range is not r or not _is_tile_product(nest):
        raise ScheduleError(
            f"tensorize({r}, {by.name}) in kernel {kernel.name}: nest {nest.name} does not add up "
            f"products of pairs in its last three loops, {by.rows} rows, {by.columns} columns and "
            f"{by.terms} terms"
        )
    for loop in last:
        kernel = set_kind(kernel, nest.name, loop.range.name, Kind.MATRIX)
    return kernel


def _is_tile_product(nest: Nest) -> bool:
    """True if a nest adds up products of pairs.

    One operand varies with the rows, the other with the columns, and both with the terms.
    """
    rows, columns, terms = (loop.range for loop in nest.loops[-3:])
    if len(nest.computes) != 1 or nest.computes[0].value.op is not ExprOp.DOT:
        return False
    (c,) = nest.computes
    left, right = matrix_operands(c.value, rows)
    adds = c.monoid is not None and c.monoid.op is ExprOp.ADD
    return (
        adds
        and c.value.dtype is INTRINSICS[TILE.pairs].result
        and {rows, columns} <= set(c.ranges)
        and terms not in c.ranges
        and {rows, terms} <= left.ranges
        and {columns, terms} <= right.ranges
        and columns not in left.ranges
        and rows not in right.ranges
    )


def _of_rounded(nest: Nest) -> Nest:
    """A product of float32 as one of operands rounded to tf32."""
    (c,) = nest.computes
    a, b = (Expr(ExprOp.TF32, factor.dtype, (factor,)) for factor in c.value.src)
    return replace(nest, computes=(replace(c, value=Expr(ExprOp.MUL, c.value.dtype, (a, b))),))


def _is_matrix_product(nest: Nest, r: Expr, threads: Sequence[Expr], by: MatrixIntrinsic) -> bool:
    """True if a nest adds up products of one operand that varies with its rows and one with its
    columns.
    """
    (c,) = nest.computes
    down, across = threads
    half, lane = (loop.range for loop in nest.loops[-3:-1])
    adds = c.monoid is not None and c.monoid.op is ExprOp.ADD and c.value.op is ExprOp.MUL
    if not adds or c.value.dtype is not by.result_dtype:
        return False
    left, right = matrix_operands(c.value, down)
    sources = {f.src[0].dtype if f.op is ExprOp.CAST else f.dtype for f in (left, right)}
    return (
        len(sources) == 1
        and sources <= set(by.sources)
        and {down, half, r} <= left.ranges
        and {across, lane, r} <= right.ranges
        and left.ranges.isdisjoint((across, lane))
        and right.ranges.isdisjoint((down, half))
    )


def matrix_operands(product: Expr, row: Expr) -> tuple[Expr, Expr]:
    """The factor that varies with the rows of the result, and the other one."""
    a, b = product.src[:2]
    return (a, b) if row in a.ranges else (b, a)
