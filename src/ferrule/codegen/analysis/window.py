"""Windows: ranges that a load uses only by one weighted sum, such as the rows and taps of a
convolution.

`x[y + k]` with `y < 8` and `k < 3` reads ten different elements, not 24: a copy of them has one
axis of ten for the two ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from ferrule.base.records import dataclass
from ferrule.ir.expr import Expr, ExprOp, all_of, conjuncts, const, less, load, sint


@dataclass(frozen=True)
class Window:
    """Ranges with the weight of each in the sum; the weights have no common divisor."""

    weights: dict[Expr, int]

    @staticmethod
    def of(element: Expr, members: Sequence[Expr]) -> Window | None:
        """The window of a LOAD over some ranges; None if it uses them by more than one sum.

        A single range is always a window.
        """
        if len(members) == 1:
            return Window({members[0]: 1})
        index, valid, *second = element.src
        if second or any(not r.size.is_const for r in members) or not _is_linear(index, members):
            return None
        terms, _ = index.linear()
        steps = [terms.get(r, 0) for r in members]
        if 0 in steps:
            return None
        shared = gcd(*steps)
        window = Window({r: step // shared for r, step in zip(members, steps, strict=True)})
        fits = all(window._condition(part, members[0]) is not None for part in conjuncts(valid))
        return window if fits else None

    @property
    def position(self) -> Expr:
        """The sum, counted from its least value."""
        return sum((r * weight for r, weight in self.weights.items()), const(-self._least()))

    @property
    def extent(self) -> sint:
        """The number of values of the sum."""
        if len(self.weights) == 1:
            (only,) = self.weights
            return only.size
        return self._most(self.weights) - self._least() + 1

    def _most(self, members: Iterable[Expr]) -> int:
        return sum(max(self.weights[r], 0) * (r.size.arg - 1) for r in members)

    def _least(self, members: Iterable[Expr] | None = None) -> int:
        members = self.weights if members is None else members
        return sum(self.weights[r] * (r.size.arg - 1) for r in members if self.weights[r] < 0)

    def moved(self, element: Expr, axis: Expr) -> Expr:
        """The load with `axis` in place of the sum.

        It is masked where no values of the ranges that satisfy the load's own conditions give that
        sum.
        """
        if len(self.weights) == 1:
            (only,) = self.weights
            return element.substitute({only: axis})
        index, valid = element.src
        terms, constant = index.linear()
        first = next(iter(self.weights))
        step = terms[first] // self.weights[first]
        rest = [c * atom for atom, c in terms.items() if atom not in self.weights]
        index = sum(rest, (axis + self._least()) * step + constant)
        parts = [self._condition(part, axis) for part in conjuncts(valid)]
        return load(element.arg, element.dtype, index, all_of(p for p in parts if p is not None))

    def widened(self, element: Expr) -> list[Expr]:
        """The load's conditions that are wider in the moved load, as they depend on some of the
        ranges only.
        """
        parts = [
            (sum(r in part.ranges for r in self.weights), part)
            for part in conjuncts(element.src[1])
        ]
        return [part for members, part in parts if 0 < members < len(self.weights)]

    def _condition(self, part: Expr, axis: Expr) -> Expr | None:
        """A condition on the ranges as a condition on their sum; None if there is no such
        condition.

        A condition on some of the ranges becomes one that holds if it holds for some values of the
        others.
        """
        mine = [r for r in self.weights if r in part.ranges]
        if not mine:
            return part
        if part.op is not ExprOp.CMPLT or not _is_linear(part.src[0] - part.src[1], mine):
            return None
        terms, constant = (part.src[0] - part.src[1]).linear()
        weight, term = self.weights[mine[0]], terms[mine[0]]
        scale = max(1, abs(weight) // abs(term))
        step = scale * term // weight
        if any(scale * terms[r] != step * self.weights[r] for r in mine):
            return None
        # sum + rest < 0, scaled: scale * (sum + rest) < 1 - scale
        others = [r for r in self.weights if r not in mine]
        slack = step * (self._most(others) if step > 0 else self._least(others))
        rest = [scale * c * atom for atom, c in terms.items() if atom not in mine]
        left = sum(rest, (axis + self._least()) * step + scale * constant)
        return less(left, const(1 - scale + slack))


def _is_linear(index: Expr, members: Sequence[Expr]) -> bool:
    """True if ranges appear in an index only as terms of its sum."""
    terms, _ = index.linear()
    return not any(r in atom.ranges for atom in terms for r in members if atom is not r)


def overlap(element: Expr, a: Expr, b: Expr) -> bool:
    """True if two ranges are the places and taps of a window: steps along one axis of the
    source.
    """
    index, valid = element.src
    one, other = distance(index, a), distance(index, b)
    if not one or not other or max(one, other) % min(one, other):
        return False
    near = one < other * b.size.max and other < one * a.size.max
    together = all((a in part.ranges) == (b in part.ranges) for part in conjuncts(valid))
    return near and together and Window.of(element, [a, b]) is not None


def distance(index: Expr, r: Expr) -> int:
    """The distance of an index's step along a range, without its sign; 0 if it is not linear in
    it.
    """
    terms, _ = index.linear()
    nonlinear = any(r in atom.ranges for atom in terms if atom is not r)
    return 0 if nonlinear else abs(terms.get(r, 0))
