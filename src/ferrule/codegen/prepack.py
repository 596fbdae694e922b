"""Copies of constants that a kernel would make in each run, made beforehand by kernels of their
own.

A scheduled kernel fills packed panels in each run (`stage`). If such a copy is of a buffer that is
the same in the next run, such as a model's weights, `prepack` takes it out. The kernel then reads
all panels from one more buffer. Results keep their bits.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from hashlib import sha256
from math import prod

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Compute, Kernel, Kind, Loop, Nest, Store, expressions, show
from ferrule.codegen.plan import load_step, loads
from ferrule.codegen.policy import MIN_PARALLEL_WORK, copies_own_memory
from ferrule.codegen.primitives.editing import map_reads
from ferrule.codegen.wellformed import verify
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, ExprOp, Variable, const, load, range_, toposort
from ferrule.ir.target import Target

# Set on 2026-11-22; not measured by themselves.
MIN_GAIN = 0.02
"""The share of a kernel's time; less is not worth the memory."""
MAX_GROWTH = 2
"""Times the size of the copied buffer."""
NEAR_CYCLES = 0.3
"""Cycles to copy an element whose neighbours in the copy are neighbours in memory."""
FAR_CYCLES = 0.7
"""Cycles to copy another element."""


@dataclass(frozen=True)
class Copy:
    """A kernel that fills the buffer in its slot 0 from the one in its slot 1."""

    kernel: Kernel
    source: int
    """The slot of the copied buffer in the kernel that the copy was taken out of."""
    elements: int
    """The number of elements of the filled buffer, of the dtype `kernel.slots[0]`."""

    @property
    def dtype(self) -> DType:
        """The dtype of the filled buffer."""
        return self.kernel.slots[0]


@dataclass(frozen=True)
class Prepacked:
    """A kernel that reads its last `len(copies)` slots, which the copies fill."""

    kernel: Kernel
    copies: tuple[Copy, ...]

    def reads(self, slot: int) -> bool:
        """True if the kernel still reads the buffer in a slot, beside the copies of it."""
        loops = [loop for nest in self.kernel.nests for loop in nest.loops]
        bounds = [e for x in loops for e in (x.start, x.end, x.peel) if isinstance(e, Expr)]
        values = [e for nest in self.kernel.nests for e in expressions(nest)]
        return any(e.op is ExprOp.LOAD and e.arg == slot for e in toposort([*values, *bounds]))


def prepack(kernel: Kernel, constant: Set[int], sizes: Sequence[int], target: Target) -> Prepacked:
    """The kernel without those copies of `constant` slots that are worth taking out.

    `sizes` has the bytes of the buffer in each slot.
    """
    copies: list[Copy] = []
    for nest in kernel.nests:
        slot = _copied_slot(kernel, nest)
        if slot not in constant or not copies_own_memory(target):
            continue
        copy = _copy(kernel, nest, slot)
        size = copy.elements * copy.dtype.itemsize
        if size <= MAX_GROWTH * sizes[slot] and _gain(kernel, nest, target) >= MIN_GAIN:
            kernel = _without(kernel, nest)
            copies.append(copy)
    verify(kernel)
    return Prepacked(kernel, tuple(copies))


def _copied_slot(kernel: Kernel, nest: Nest) -> int:
    """The slot that a nest copies all its values from; -1 if the nest is not just such a copy."""
    if nest.at is None or len(nest.computes) != 1:
        return -1
    (c,) = nest.computes
    slots = {e.arg for e in loads(c.value)}
    stored = {x.store.slot for x in kernel.computes.values() if x.store is not None}
    replaced = {x.overwrites for x in kernel.computes.values()}
    plain = c.monoid is None and c.store is None and c.overwrites is None and c.name not in replaced
    bounded = any(loop.start is not None or loop.end is not None for loop in nest.loops)
    known = all(loop.range.size.is_const for _, _, loop in kernel.path(nest))
    leaves = [e for e in toposort([c.value]) if isinstance(e, Variable) or e.op is ExprOp.READ]
    hangs = any(n.at is not None and n.at[0] == nest.name for n in kernel.nests)
    if len(slots) != 1 or slots & stored or not plain or bounded or not known or leaves or hangs:
        return -1
    return int(slots.pop())


def _around(kernel: Kernel, nest: Nest) -> list[tuple[Expr, Expr]]:
    """The outer values that a copy varies with, outermost first, each with a range over it.

    A value is the range of a loop; or its quotient, if several iterations share a copy.
    """
    peels = [loop.peel for loop in nest.loops if loop.peel is not None]
    nodes = toposort([*expressions(nest), *peels])
    found = []
    for name, _, loop in kernel.path(nest):
        r = loop.range
        users = [e for e in nodes if any(source is r for source in e.src)]
        if name == nest.name or not users:
            continue
        if len(users) == 1 and users[0].op is ExprOp.IDIV and users[0].src[1].is_const:
            count = -(-loop.size // users[0].src[1].arg)
            found.append((users[0], range_(f"{r.name}.{count}", count)))
        else:
            found.append((r, r))
    return found


def _start(around: Sequence[Expr], sizes: Sequence[int], elements: int) -> Expr:
    """The place where the copy of some outer iterations begins."""
    number = const(0)
    for place, size in zip(around, sizes, strict=True):
        number = number * size + place
    return number * elements


def _copy(kernel: Kernel, nest: Nest, slot: int) -> Copy:
    (c,) = nest.computes
    around = _around(kernel, nest)
    ranges = [r for _, r in around]
    sizes = [int(r.size.arg) for r in ranges]
    value = c.value.substitute(dict(around))
    value = value.substitute({e: Expr(ExprOp.LOAD, e.dtype, e.src, 1) for e in loads(value)})
    place = _start(ranges, sizes, c.elements) + c.place(c.ranges)
    stored = Compute("out0", value, store=Store(0, place))
    loops = [*(Loop(r) for r in ranges), *(loop.mapped(dict(around)) for loop in nest.loops)]
    if loops[0].kind is Kind.SERIAL and prod(loop.size for loop in loops) >= MIN_PARALLEL_WORK:
        loops[0] = replace(loops[0], kind=Kind.PARALLEL)
    root = Nest("out0", (stored,), tuple(loops))
    packing = Kernel("pack", (root,), (c.value.dtype, kernel.slots[slot]))
    verify(packing)
    name = f"pack_{sha256(show(packing).encode()).hexdigest()[:8]}"
    return Copy(replace(packing, name=name), slot, prod(sizes) * c.elements)


def _without(kernel: Kernel, nest: Nest) -> Kernel:
    """The kernel without the nest of a copy, which it reads from a buffer in a new last slot."""
    (c,) = nest.computes
    slot = len(kernel.slots)
    around = _around(kernel, nest)
    start = _start([e for e, _ in around], [int(r.size.arg) for _, r in around], c.elements)
    kernel = replace(
        kernel,
        nests=tuple(n for n in kernel.nests if n is not nest),
        slots=(*kernel.slots, c.value.dtype),
    )
    return map_reads(kernel, {c.name}, lambda e: load(slot, e.dtype, start + c.place(e.src)))


def _gain(kernel: Kernel, nest: Nest, target: Target) -> float:
    """About the share of the kernel's time that a copy takes, if sums take most of the rest."""
    (c,) = nest.computes
    lane = c.ranges[-1]
    near = all(load_step(e, lane) == 1 for e in loads(c.value))
    copied = _iterations(kernel, nest) * (NEAR_CYCLES if near else FAR_CYCLES)
    lanes = target.lanes(max(c.value.dtype.itemsize, 4))
    sums = [n for n in kernel.nests if any(c.monoid is not None for c in n.computes)]
    summed = sum(_iterations(kernel, n) for n in sums) / (2 * lanes)
    return copied / summed if summed else 0.0


def _iterations(kernel: Kernel, nest: Nest) -> int:
    return prod(loop.range.size.max for _, _, loop in kernel.path(nest))
