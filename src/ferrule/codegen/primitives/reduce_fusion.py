"""The primitive that fuses reduces over one axis into one loop: a sum and all its operands, part by
part (online softmax).

A nest may need values that others make of the same axis: the weights of a softmax need the largest
score and the sum of the powers. If one loop computes all of these, only their values so far are
known. Two laws make that enough:

- A factor that is the same for all terms of a sum may multiply the sum instead: `sum_j(a[j] * c) ->
  sum_j(a[j]) * c`.
- A maximum that powers are shifted by may be the maximum so far, if the sum so far is multiplied by
  a power whenever the maximum grows: `2**(x - m) = 2**(x - before) * 2**(before - m)`.

Both re-associate. No name decides: any sum of products with such powers will do, with a mask or
without, divided by another sum or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Compute, Kernel, Kind, Nest, reads
from ferrule.codegen.primitives.editing import ScheduleError, mapped, nest_of
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import (
    TRUE,
    Expr,
    ExprOp,
    alu,
    cast,
    conjuncts,
    const,
    select,
    substitute,
    uncast,
)


class _NotKnownError(ValueError):
    """A nest needs a value that is only known after the loop."""


@final
@dataclass(frozen=True)
class Parts:
    """A value as `inner`, which is known part by part, and operations left for its final sum."""

    inner: Expr
    factors: tuple[tuple[ExprOp, Expr], ...] = ()
    """Operations with values that are known after the loop: MUL or FDIV."""
    growth: tuple[Expr, Expr] | None = None
    """(the maximum before this part, the factor of a sum so far)."""
    masked: bool = False
    """True if terms may be left out, so that a sum may have no term."""
    guarded: bool = False
    """True if a power is shifted by the maximum only where that is finite."""

    def mapped(self, ranges: Sequence[Expr], index: Sequence[Expr]) -> Parts:
        """The parts of a value that is read at an index."""
        at = dict(zip(ranges, index, strict=True))
        factors = tuple((op, e.substitute(at)) for op, e in self.factors)
        if self.growth is None:
            return replace(self, factors=factors)
        before, factor = substitute(self.growth, at)
        return replace(self, factors=factors, growth=(before, factor))

    def times(self, other: Parts, inner: Expr) -> Parts:
        """The parts of a product with that inner value."""
        if self.growth is not None and other.growth is not None:
            raise _NotKnownError("a product of two values that both grow")
        growth = self.growth if other.growth is None else other.growth
        factors = self.factors + other.factors
        masked, guarded = self.masked or other.masked, self.guarded or other.guarded
        return Parts(inner, factors, growth, masked, guarded)

    def whole(self, total: Expr) -> Expr:
        """The final value of a sum of such values, from the sum of their inner values.

        If no term is left, it is 0, whatever it would be divided by.
        """
        value = total
        for op, factor in self.factors:
            value = alu(op, value, factor)
        if value is total or not self.masked:
            return value
        zero = const(0, total.dtype)
        return alu(ExprOp.WHERE, alu(ExprOp.CMPNE, total, zero), value, zero)


def fuse_reduces(kernel: Kernel, nest_name: str) -> Kernel:
    """Fuse all nests at the place of a sum into the first loop of the sum, a part at a time.

    `for a: x[a] = …; for b: m max= x[b]; for c: s sum= exp2(x[c] - m) * y[c]` -> `for c: x = …; m
    max= x carried by c; s sum= exp2(x - m) * y[c] carried by c from s.carried * exp2(m.carried -
    m)`. Their first loops have one size. Stages have that loop as an axis, and are read at the same
    iteration only. Re-associates.

    >>> from ferrule.codegen.kernel import MONOIDS, Loop, Store, show
    >>> from ferrule.ir.expr import load, range_
    >>> def read(name, *index):
    ...     return Expr(ExprOp.READ, dtypes.float32, index, name)
    >>> i, a, b, c = (range_(name, 4) for name in "iabc")
    >>> x = Compute("x", load(1, dtypes.float32, a), (a,))
    >>> m = Compute("m", read("x", b), (), MONOIDS["max"])
    >>> power = alu(ExprOp.EXP2, alu(ExprOp.SUB, read("x", c), read("m")))
    >>> s = Compute("s", power, (), MONOIDS["sum"])
    >>> steps = [Nest(k.name, (k,), (Loop(r),), ("out", 1)) for k, r in ((x, a), (m, b), (s, c))]
    >>> out = Nest("out", (Compute("out", read("s"), store=Store(0, i)),), (Loop(i),))
    >>> print(show(fuse_reduces(Kernel("powers", (*steps, out), (dtypes.float32,) * 2), "s")))
    kernel powers(b0: float32, b1: float32)
      # out
      for i in 4:
        # s
        for c in 4:
          # x
          x = b1[c]
          # m
          m max= x carried by c
          s sum= exp2(x - m) carried by c from where(-inf < m.carried, \
    s.carried * exp2(m.carried - m), 0.0)
        b0[i] = s
    """
    last = nest_of(kernel, nest_name)
    try:
        if last.at is None or not last.loops or len(last.computes) != 1:
            raise _NotKnownError(f"{nest_name} is no reduce in another nest")
        if last.computes[0].carried_by is not None:
            raise _NotKnownError(f"a loop carries {nest_name} already")
        return _ReduceFusion(kernel, last).apply()
    except _NotKnownError as error:
        raise ScheduleError(
            f"fuse_reduces({nest_name}) in kernel {kernel.name}: {error}"
        ) from error


@dataclass
class _ReduceFusion:
    """The nests at the place of a sum, on the way into its first loop."""

    kernel: Kernel
    last: Nest

    def __post_init__(self) -> None:
        self.steps = [n for n in self.kernel.nests if n.at == self.last.at and n is not self.last]
        self.along = self.last.loops[0].range
        self.here = const(0) if self.along.size is const(1) else self.along
        self.parts: dict[str, Parts] = {}
        """By name, of stages and reduces: the parts, with the operations that readers have to
        do.
        """
        self.largest: set[str] = set()
        """The names of the running maxima."""
        self.result_axes: frozenset[Expr] = frozenset()
        """The axes of the present compute."""
        for nest in (*self.steps, self.last):
            first = nest.loops[:1]
            plain = [o for o in first if o.kind is Kind.SERIAL and (o.start, o.end) == (None, None)]
            if not plain or plain[0].range.size is not self.along.size or plain[0].peel is not None:
                raise _NotKnownError(f"the first loop of {nest.name} is not as that of the sum")

    def apply(self) -> Kernel:
        self._join()
        for nest in (*self.steps, self.last):
            self.kernel = self.kernel.with_nest(self._fused(self.kernel.by_name[nest.name]))
        self._narrow_stage()
        self._mask_stage()
        return self._read_in_the_end()

    # -- one loop ----------------------------------------------------------------------------------

    def _join(self) -> None:
        """Let the steps hang in the first loop of the sum, which replaces theirs."""
        mapping = {nest.loops[0].range: self.here for nest in (*self.steps, self.last)}
        names = {nest.name for nest in self.steps}
        stages = {c.name for nest in self.steps for c in nest.computes if c.monoid is None}
        nests = []
        for nest in self.kernel.nests:
            if nest.name in names:
                nest = replace(nest, loops=nest.loops[1:], at=(self.last.name, 1))
            elif nest.at is not None and nest.at[0] in names:
                if nest.at[1] == 0:
                    raise _NotKnownError(f"{nest.name} is computed outside of the loop")
                nest = replace(nest, at=(nest.at[0], nest.at[1] - 1))
            nests.append(mapped(nest, mapping))
        axis = {name: self._axis(self.kernel.computes[name]) for name in stages}
        nests = [self._without_axis(nest, axis) for nest in nests]
        self.kernel = replace(self.kernel, nests=tuple(nests))

    def _axis(self, c: Compute) -> int:
        first = self.kernel.owner[c.name].loops[0].range
        if first not in c.ranges:
            raise _NotKnownError(f"the loop is no axis of {c.name}")
        return c.ranges.index(first)

    def _without_axis(self, nest: Nest, axis: dict[str, int]) -> Nest:
        """A nest that computes and reads the part of one iteration."""
        found = {e: e.arg for e in nest.reads if e.arg in axis}
        if any(e.src[axis[n]] is not self.here for e, n in found.items()):
            raise _NotKnownError(f"{nest.name} reads what another iteration computes")
        nest = mapped(nest, {e: _read(e, _without(e.src, axis[n])) for e, n in found.items()})
        computes = tuple(
            replace(c, ranges=_without(c.ranges, axis[c.name])) if c.name in axis else c
            for c in nest.computes
        )
        return replace(nest, computes=computes)

    # -- rewrites ----------------------------------------------------------------------------------

    def _fused(self, nest: Nest) -> Nest:
        """A nest with values so far in place of values that are only known after the loop."""
        if len(nest.computes) != 1 or nest.computes[0].store is not None:
            raise _NotKnownError(f"{nest.name} does more than one thing")
        (c,) = nest.computes
        self.result_axes = frozenset(c.ranges)
        parts = self._parts(c.value)
        if c.monoid is None:
            self.parts[c.name] = parts
            return replace(nest, computes=(replace(c, value=parts.inner),))
        self._check_reduce(nest, c, parts)
        initial = None
        carried = Expr(ExprOp.READ, c.value.dtype, c.ranges, c.carried)
        if parts.growth is not None:
            largest, factor = parts.growth
            least = const(dtypes.min(largest.dtype), largest.dtype)
            grown = alu(ExprOp.MUL, carried, factor)
            # Before the first number the value so far is the identity, or no number.
            some = alu(ExprOp.CMPLT, least, largest)
            if parts.guarded:  # a thread's powers may all be 0, and the factor infinite
                some = alu(ExprOp.AND, some, alu(ExprOp.CMPNE, carried, const(0, carried.dtype)))
            initial = alu(ExprOp.WHERE, some, grown, const(0, c.value.dtype))
        self.parts[c.name] = replace(parts, growth=None)
        if c.monoid.op is ExprOp.MAX:
            self.largest.add(c.name)
        fused = replace(c, value=parts.inner, carried_by=self.along, initial=initial)
        return replace(nest, computes=(fused,))

    def _check_reduce(self, nest: Nest, c: Compute, parts: Parts) -> None:
        assert c.monoid is not None
        rest = [e for _, e in parts.factors] + list(parts.growth or ())
        combined = {self.along, *nest.loop_ranges}.difference(c.ranges)
        if rest and c.monoid.op is not ExprOp.ADD:
            raise _NotKnownError(f"{c.name} is no sum of what is multiplied later")
        if any(not e.ranges.isdisjoint(combined) for e in rest):
            raise _NotKnownError(f"the terms of {c.name} have different factors")
        # A sum of powers alone may be infinite, whatever factor the sum so far is multiplied by.
        whole = not parts.masked and _term(parts.inner).op is ExprOp.EXP2
        if parts.guarded and not whole:
            raise _NotKnownError(f"{c.name} is no sum of all powers, and of nothing else")

    def _parts(self, e: Expr) -> Parts:
        """The parts of a value."""
        if not self._is_running(e):
            return Parts(e)
        match e.op:
            case ExprOp.MUL:
                for a, b in (e.src, e.src[::-1]):
                    if self._is_total(b):
                        parts = self._parts(a)
                        return replace(parts, factors=(*parts.factors, (e.op, self._total(b))))
                left, right = (self._parts(s) for s in e.src)
                return left.times(right, alu(e.op, left.inner, right.inner))
            case ExprOp.FDIV if self._is_total(e.src[1]):
                parts = self._parts(e.src[0])
                return replace(parts, factors=(*parts.factors, (e.op, self._total(e.src[1]))))
            case ExprOp.FDIV if not self._is_running(e.src[1]):
                parts = self._parts(e.src[0])
                return replace(parts, inner=alu(e.op, parts.inner, e.src[1]))
            case ExprOp.WHERE if self._is_zero_elsewhere(e):
                parts = self._parts(e.src[1])
                masked = parts.masked or not self._is_tail(e.src[0])
                inner = select(e.src[0], parts.inner, e.src[2])
                return replace(parts, inner=inner, masked=masked)
            case ExprOp.CAST:
                parts = self._parts(e.src[0])
                return replace(parts, inner=self._rounded(parts, e))
            case ExprOp.READ if e.arg in self.parts and not self._is_known_in_the_end(e.arg):
                parts = self.parts[e.arg].mapped(self.kernel.computes[e.arg].ranges, e.src)
                return replace(parts, inner=e)
            case ExprOp.EXP2:
                return self._shifted(e)
            case _:
                raise _NotKnownError(f"{e} needs what is only known after the loop")

    def _rounded(self, parts: Parts, e: Expr) -> Expr:
        """A cast before the left operations, if it may be exchanged with them."""
        old, new = e.src[0].dtype, e.dtype
        if not (dtypes.is_float(old) and dtypes.is_float(new)):
            raise _NotKnownError(f"{e} is no rounding")
        if new.exponent_bits < old.exponent_bits and parts.growth is None:
            raise _NotKnownError(f"what is rounded in {e} may be too large for it before the end")
        return cast(parts.inner, e.dtype)

    def _shifted(self, e: Expr) -> Parts:
        """The parts of a power of 2 whose exponent is `x - m`, or that times a positive number."""
        exponent = e.src[0]
        scaled = exponent.op is ExprOp.MUL and exponent.src[1].op is ExprOp.CONST
        difference = exponent.src[0] if scaled else exponent
        if difference.op is not ExprOp.SUB or (scaled and not exponent.src[1].arg > 0):
            raise _NotKnownError(f"{e} is no power of a difference")
        x, shift = difference.src
        largest = shift if shift.op is ExprOp.READ else self._guarded(x, shift)
        running = largest is not None and largest.arg in self.largest
        if largest is None or self._is_running(x) or not running:
            raise _NotKnownError(f"{e} is not shifted by a largest value")
        if self.parts[largest.arg].factors:
            raise _NotKnownError(f"{e} is shifted by a multiple of a largest value")
        before = _read(largest, largest.src, self.kernel.computes[largest.arg].carried)
        shifted = shift.substitute({largest: before})
        return Parts(e, growth=(before, e.substitute({x: shifted})), guarded=shift is not largest)

    def _guarded(self, x: Expr, shift: Expr) -> Expr | None:
        """The maximum of all `x`, if a shift is that or, where it is infinite, 0; else None."""
        if shift.op is not ExprOp.WHERE or shift.src[2] is not const(0, shift.dtype):
            return None
        condition, largest, _ = shift.src
        if largest.op is not ExprOp.READ or largest.arg not in self.largest:
            return None
        if list(reads([condition])) != [largest] or condition.ranges - largest.ranges:
            return None
        own = self.kernel.owner[largest.arg].loop_ranges
        of = _term(self.kernel.computes[largest.arg].value)
        inner = [r for r in x.ranges if r is not self.along and r not in of.ranges]
        free = [r for r in own if r in of.ranges]
        same = len(inner) == len(free) == 1 and inner[0].size is free[0].size
        return largest if same and x.substitute({inner[0]: free[0]}) is of else None

    # -- predicates --------------------------------------------------------------------------------

    def _is_known_in_the_end(self, name: str) -> bool:
        return self.kernel.computes[name].monoid is not None

    def _is_running(self, e: Expr) -> bool:
        """True if a value depends on a value that is only known after the loop."""
        return any(
            self._is_known_in_the_end(r.arg) or self._is_scaled(r.arg) for r in self._found(e)
        )

    def _is_scaled(self, name: str) -> bool:
        parts = self.parts[name]
        return bool(parts.factors) or parts.growth is not None

    def _found(self, e: Expr) -> list[Expr]:
        """The reads of values that the loop carries."""
        return [r for r in reads([e]) if r.arg in self.parts]

    def _is_total(self, e: Expr) -> bool:
        """True if a value depends on values that are known after the loop, and on no part."""
        found = self._found(e)
        return bool(found) and all(self._is_known_in_the_end(r.arg) for r in found)

    def _total(self, e: Expr) -> Expr:
        """A value that is known after the loop, in terms of the running values."""
        return e.substitute({r: self._whole(r) for r in self._found(e)})

    def _whole(self, r: Expr) -> Expr:
        c = self.kernel.computes[r.arg]
        return self.parts[r.arg].mapped(c.ranges, r.src).whole(r)

    def _is_zero_elsewhere(self, e: Expr) -> bool:
        condition, _, otherwise = e.src
        return (
            otherwise.op is ExprOp.CONST and otherwise.arg == 0 and not self._is_running(condition)
        )

    def _is_tail(self, condition: Expr) -> bool:
        """True if a condition only leaves out the end of the loop: never all terms of a sum."""
        first = {r: const(0) for r in condition.ranges}
        return condition.substitute(first) is TRUE and self.result_axes.isdisjoint(condition.ranges)

    # -- stored values -----------------------------------------------------------------------------

    def _operand(self) -> tuple[Compute, Expr] | None:
        """The stage that the sum alone reads, and the read of it; None if there is none."""
        (c,) = self.kernel.by_name[self.last.name].computes
        found = [e for e in reads([c.value]) if e.arg in self.parts]
        if len(found) != 1 or self._is_known_in_the_end(found[0].arg):
            return None
        (e,) = found
        readers = [n for n in self.kernel.nests if any(r.arg == e.arg for r in n.reads)]
        return (self.kernel.computes[e.arg], e) if len(readers) == 1 else None

    def _mask_stage(self) -> None:
        """Store 0 instead of masking a product, where the end of a loop is left out."""
        last = self.kernel.by_name[self.last.name]
        (c,) = last.computes
        found = self._operand()
        if found is None or c.value.op is not ExprOp.WHERE or c.value.src[1].op is not ExprOp.MUL:
            return
        condition, product, _ = c.value.src
        stage, read = found
        other = [s for s in product.src if uncast(s) is not read]
        masked = len(other) == 1 and set(conjuncts(condition)) <= _conditions(other[0])
        back = {i: r for i, r in zip(read.src, stage.ranges, strict=True) if i.op is ExprOp.RANGE}
        if not masked or not condition.ranges <= {*back, self.along}:
            return
        value = select(condition.substitute(back), stage.value, const(0, stage.value.dtype))
        self._replace(stage.name, value)
        self._replace(c.name, product)

    def _narrow_stage(self) -> None:
        """Store a narrow float instead of its cast to a wider one."""
        found = self._operand()
        if found is None or found[0].value.op is not ExprOp.CAST:
            return
        stage, read = found
        (narrow,) = stage.value.src
        if narrow.dtype.itemsize >= stage.value.dtype.itemsize:
            return
        self._replace(stage.name, narrow)
        (c,) = self.kernel.by_name[self.last.name].computes
        wide = cast(Expr(ExprOp.READ, narrow.dtype, read.src, read.arg), read.dtype)
        self._replace(c.name, c.value.substitute({read: wide}))

    def _replace(self, name: str, value: Expr) -> None:
        nest = self.kernel.owner[name]
        computes = tuple(replace(c, value=value) if c.name == name else c for c in nest.computes)
        self.kernel = self.kernel.with_nest(replace(nest, computes=computes))

    # -- afterwards --------------------------------------------------------------------------------

    def _read_in_the_end(self) -> Kernel:
        """Let other nests read the final values of what the loop has carried."""
        inside = {self.last.name, *(n.name for n in self.steps)}
        for nest in self.kernel.nests:
            inside |= {nest.name} if nest.at is not None and nest.at[0] in inside else set()
        nests = []
        for nest in self.kernel.nests:
            found = [e for e in nest.reads if e.arg in self.parts]
            if nest.name not in inside and found:
                if any(not self._is_known_in_the_end(e.arg) for e in found):
                    raise _NotKnownError(f"{nest.name} reads the parts after the loop")
                nest = mapped(nest, {e: self._whole(e) for e in found})
            nests.append(nest)
        return replace(self.kernel, nests=tuple(nests))


def _conditions(e: Expr) -> set[Expr]:
    """The conditions without which a value is 0."""
    e = uncast(e)
    return set(conjuncts(e.src[1])) if e.op is ExprOp.LOAD and len(e.src) == 2 else set()


def _term(e: Expr) -> Expr:
    """A term of a reduce, without the condition that leaves out others."""
    return e.src[1] if e.op is ExprOp.WHERE and e.src[2].op is ExprOp.CONST else e


def _read(e: Expr, index: Iterable[Expr], name: str | None = None) -> Expr:
    return Expr(ExprOp.READ, e.dtype, tuple(index), e.arg if name is None else name)


def _without(items: tuple[Expr, ...], place: int) -> tuple[Expr, ...]:
    return (*items[:place], *items[place + 1 :])
