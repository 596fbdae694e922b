"""A program in the making: the bodies of the open loops, and the body that each UOp belongs to.

A UOp goes to the outermost open loop in which its operands are known. So nothing is computed again
in an inner loop, and no later pass needs to move it. A UOp with an effect stays innermost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType, dtypes, exact
from ferrule.ir.expr import INDEX, Expr, ExprOp, toposort

I32 = dtypes.int32
I64 = dtypes.int64
# The copy of a stage: its name, and its index along each axis that is unrolled.
Copy = tuple[str, tuple[int, ...]]
_EFFECTS = frozenset({UOps.STORE, UOps.PREFETCH, UOps.SET, UOps.GET, UOps.REG})


@final
@dataclass
class Scope:
    """The body of an open loop: the code emitted into it, and the values known in it."""

    items: list[UOp] = field(default_factory=list)
    values: dict[Expr, UOp] = field(default_factory=dict)
    stages: dict[Copy, UOp] = field(default_factory=dict)
    matrices: dict[Expr, UOp] = field(default_factory=dict)


@final
class Emitter:
    """Takes UOps, and puts them into the bodies of the loops that are open, outermost first."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = [Scope()]
        self.index = I64
        """The dtype of an index in a UOp: int64, or int32 where all indices fit."""
        self._level: dict[UOp, int] = {}
        self._constants: dict[tuple[DType, int, Hashable], UOp] = {}
        self._splats: dict[tuple[UOp, int], UOp] = {}

    @property
    def innermost(self) -> int:
        """The level of the innermost open loop; level 0 is outside of all loops."""
        return len(self.scopes) - 1

    def level(self, u: UOp) -> int:
        """The number of loops around a UOp."""
        return self._level.get(u, 0)

    def known(self, node: Expr) -> UOp | None:
        """The UOp of an expression in the open loops, if it is known."""
        for scope in reversed(self.scopes):
            found = scope.values.get(node)
            if found is not None:
                return found
        return None

    def remember(self, node: Expr, u: UOp) -> None:
        """Note the UOp of an expression, for as long as its loop is open."""
        self.scopes[self.level(u)].values[node] = u

    def forget_loads(self, slot: int) -> None:
        """Forget values computed from elements of a buffer that has changed."""
        for scope in self.scopes:
            old = [e for e in scope.values if _loads_from(e, slot)]
            for e in old:
                del scope.values[e]

    def memory_dtype(self, dtype: DType) -> DType:
        """The dtype of a value in a UOp; for index arithmetic the present index dtype."""
        return self.index if dtype is INDEX else dtype

    # -- loops -------------------------------------------------------------------------------------

    def open(self, name: str, start: UOp, stop: UOp) -> UOp:
        """Open a loop inside of those that are open. Returns its counter."""
        step = self.constant(1, self.index)
        counter = UOp(UOps.LOOP, self.index, 1, (start, stop, step), name)
        self.scopes.append(Scope([counter]))
        self._level[counter] = self.innermost
        return counter

    def open_if(self, condition: UOp) -> None:
        """Open a conditional block, like a loop of at most one iteration."""
        self.scopes.append(Scope([UOp(UOps.IF, src=(condition,))]))

    def close(self) -> None:
        """Close the innermost loop or condition."""
        scope = self.scopes.pop()
        first = scope.items[0]
        end = UOps.ENDIF if first.op is UOps.IF else UOps.END
        self.scopes[-1].items.extend([*scope.items, UOp(end, src=(first,))])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within the block, names may be bound to other UOps; the bindings from before are restored
        after it.
        """
        before = [(dict(s.values), dict(s.stages), dict(s.matrices)) for s in self.scopes]
        yield
        for scope, (values, stages, matrices) in zip(self.scopes, before, strict=True):
            scope.values, scope.stages, scope.matrices = values, stages, matrices

    # -- placing -----------------------------------------------------------------------------------

    def top(self, u: UOp) -> UOp:
        """Put a UOp at the very front: it depends on nothing."""
        return self.place(u, 0)

    def emit(self, u: UOp) -> UOp:
        """Put a UOp where its operands are known; one with an effect goes to the innermost loop."""
        if u.op in _EFFECTS:
            return self.inside(u)
        return self.place(u, max((self.level(s) for s in u.src), default=0))

    def inside(self, u: UOp) -> UOp:
        """Put a UOp into the innermost loop."""
        return self.place(u, self.innermost)

    def place(self, u: UOp, level: int) -> UOp:
        """Append a UOp to the body of the open loop at `level`."""
        self._level[u] = level
        self.scopes[level].items.append(u)
        return u

    # -- common UOps -------------------------------------------------------------------------------

    def constant(self, value: object, dtype: DType, lanes: int = 1) -> UOp:
        """A literal in all lanes."""
        key = (dtype, lanes, exact(value))
        found = self._constants.get(key)
        if found is None:
            found = self.top(UOp(UOps.CONST, dtype, lanes, (), value))
            self._constants[key] = found
        return found

    def less(self, a: UOp, b: UOp) -> UOp:
        """True in the UOp's value if one scalar is less than another."""
        return self.emit(UOp(UOps.ALU, dtypes.bool, 1, (a, b), ExprOp.CMPLT))

    def alu(self, op: ExprOp, *src: UOp) -> UOp:
        """An operation whose result has the dtype and the lanes of its operands."""
        return self.emit(UOp(UOps.ALU, src[0].dtype, src[0].lanes, src, op))

    def widen(self, u: UOp, lanes: int) -> UOp:
        """Broadcast a scalar to `lanes` lanes; a vector of `lanes` lanes is unchanged."""
        if u.lanes == lanes:
            return u
        assert u.lanes == 1, f"{u.lanes} lanes where {lanes} are needed"
        if u.op is UOps.CONST:
            assert u.dtype is not None
            return self.constant(u.arg, u.dtype, lanes)
        found = self._splats.get((u, lanes))
        if found is None or self.level(found) > self.innermost:
            found = self.emit(UOp(UOps.SPLAT, u.dtype, lanes, (u,)))
            self._splats[(u, lanes)] = found
        return found

    def typed(self, u: UOp, dtype: DType) -> UOp:
        """A value in another dtype."""
        if u.dtype is dtype:
            return u
        if u.op is UOps.CONST:
            return self.constant(u.arg, dtype, u.lanes)
        return self.emit(UOp(UOps.CAST, dtype, u.lanes, (u,)))

    def get(self, register: UOp) -> UOp:
        """The present value of a register."""
        return self.emit(UOp(UOps.GET, register.dtype, register.lanes, (register,)))

    def set(self, register: UOp, value: UOp) -> None:
        """Store a value in a register."""
        self.emit(UOp(UOps.SET, src=(register, value)))

    def shuffle(self, order: tuple[int, ...], *vectors: UOp) -> UOp:
        """Lanes of one or two vectors, those of the second numbered after those of the first."""
        return self.emit(UOp(UOps.SHUFFLE, vectors[0].dtype, len(order), vectors, order))

    def gathered(self, vectors: Sequence[UOp], places: Sequence[tuple[int, int]]) -> UOp:
        """A vector whose lanes are lanes of others: `places` has the number of the vector and the
        lane in it.

        All vectors have one width; more than two are as wide as the result.
        """
        width = vectors[0].lanes
        order = tuple(n * width + place if n < 2 else 0 for n, place in places)
        found = self.shuffle(order, *vectors[:2])
        for number, vector in enumerate(vectors[2:], 2):
            order = tuple(width + at if n == number else i for i, (n, at) in enumerate(places))
            found = self.shuffle(order, found, vector)
        return found


def _loads_from(e: Expr, slot: int) -> bool:
    return any(x.op is ExprOp.LOAD and x.arg == slot for x in toposort([e]))
