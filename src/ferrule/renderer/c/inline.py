"""The values of a program that a C text needs, and those that need no variable of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, final

from ferrule.codegen.uops import NO_VALUE, UOp, UOps

# A PREFETCH changes nothing but the time, and standard C has no such statement.
_EFFECTS: Final = (NO_VALUE - {UOps.EXTENT, UOps.PREFETCH}) | {
    *(UOps.LOOP, UOps.ACROSS, UOps.MMA, UOps.MATRICES, UOps.WGMMA)
}
_PURE: Final = frozenset({UOps.ALU, UOps.CAST})
# The operand that is the value of a UOp without one.
_STORED: Final = {UOps.STORE: 2, UOps.SET: 1, UOps.IF: 0}
_TAKE_EXPRESSIONS: Final = _PURE | {UOps.LOAD, *_STORED}
# UOps that only rename the lanes of their operands.
_RENAME: Final = frozenset({UOps.SPLAT, UOps.EXTRACT, UOps.SHUFFLE})
# A cast that changes nothing does so as well.
_MAY_RENAME: Final = _RENAME | {UOps.CAST}
_MAX_OPERATIONS: Final = 4  # operations of an inlined expression; not measured


def _all_operands(u: UOp) -> Sequence[UOp]:
    return u.src


@final
class Uses:
    """The form of each value of a program in a C text.

    `live`: values that a store, a loop, a condition or another thread depends on. `inlined`: values
    used once, near the place where they are computed. `unnamed`: these, and register values that
    are used before the register changes, so that the register can be read instead.
    """

    def __init__(
        self, uops: Sequence[UOp], operands: Callable[[UOp], Sequence[UOp]] = _all_operands
    ) -> None:
        """`operands` gives the values that a UOp's text contains."""
        self.place = {u: i for i, u in enumerate(uops)}
        self.live = _live(uops, operands)
        self.scope = _scopes(uops)
        self.users: dict[UOp, list[UOp]] = defaultdict(list)
        self.sets: dict[UOp, list[int]] = defaultdict(list)
        for u in uops:
            if u in self.live:
                for s in operands(u):
                    self.users[s].append(u)
            if u.op is UOps.SET:
                self.sets[u.src[0]].append(self.place[u])
        self.inlined = self._inlined(uops)
        renamed = {u for u in uops if u.op is UOps.GET and self._may_rename(u)}
        self.unnamed = self.inlined | renamed

    def _inlined(self, uops: Sequence[UOp]) -> set[UOp]:
        length: dict[UOp, int] = {}
        for u in uops:
            if u.op not in _PURE or len(self.users[u]) != 1:
                continue
            operations = 1 + sum(length.get(s, 0) for s in u.src)
            if operations <= _MAX_OPERATIONS and self._takes(self.users[u][0], u):
                length[u] = operations
        return set(length)

    def _takes(self, user: UOp, u: UOp) -> bool:
        """True if a user can contain the expression instead of a variable."""
        if user.op not in _TAKE_EXPRESSIONS or self.scope[user] is not self.scope[u]:
            return False
        value = user.src[_STORED[user.op]] if user.op in _STORED else user
        # An index of many lanes is repeated in each of their accesses.
        return value.lanes == u.lanes

    def _may_rename(self, u: UOp) -> bool:
        after = [place for place in self.sets[u.src[0]] if place > self.place[u]]
        last = min(after, default=len(self.place))
        if u.lanes > 1 and any(self._mixes(user) for user in self.users[u]):
            # Lanes change one after the other, and one must not be read after another has changed.
            last -= 1
        return all(self._stays(user, u) and self._evaluated(user) <= last for user in self.users[u])

    def _mixes(self, u: UOp) -> bool:
        """True if a lane of an expression may come from another lane."""
        if u.op in _RENAME:
            return True
        return u in self.inlined and any(self._mixes(user) for user in self.users[u])

    def _stays(self, user: UOp, u: UOp) -> bool:
        """True if a value is used in its own scope only, under any name.

        A loop evaluates its limit again and again, inside of it.
        """
        if self.scope[user] is not self.scope[u] or user.op is UOps.LOOP:
            return False
        return user.op not in _MAY_RENAME or all(self._stays(v, u) for v in self.users[user])

    def _evaluated(self, u: UOp) -> int:
        """The last place at which the text of a value is evaluated."""
        if u.op in _MAY_RENAME or u in self.inlined:
            return max((self._evaluated(user) for user in self.users[u]), default=self.place[u])
        return self.place[u]


def _live(uops: Sequence[UOp], operands: Callable[[UOp], Sequence[UOp]]) -> set[UOp]:
    live: set[UOp] = set()
    for u in reversed(uops):
        if u.op in _EFFECTS or u in live:
            live.add(u)
            live.update(operands(u))
    return live


def _scopes(uops: Sequence[UOp]) -> dict[UOp, UOp | None]:
    """The loop or condition that each UOp is in."""
    scope: dict[UOp, UOp | None] = {}
    stack: list[UOp | None] = [None]
    for u in uops:
        if u.op in (UOps.END, UOps.ENDIF):
            stack.pop()
        scope[u] = stack[-1]
        if u.op in (UOps.LOOP, UOps.IF):
            stack.append(u)
    return scope
