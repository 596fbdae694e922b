"""Addresses in LLVM IR, in the form that takes LLVM least time.

An index is a sum whose terms change in different loops. An address has three parts: terms that do
not change in the innermost loop, computed before that loop opens; terms that do; and a number, so
that all elements of a tile share the first two. The first part is hidden from LLVM's analysis of
loops, which would examine each address again for each loop around it, and could not separate its
number. `llvm.strip.invariant.group` returns the pointer that it is given, and is gone before
instructions are selected. `docs/design/cpu-runtime.md` has the gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.llvm.value import Code

_OPAQUE: Final = "llvm.strip.invariant.group.p0"
_INDEXED: Final = frozenset({UOps.LOAD, UOps.STORE, UOps.PREFETCH, UOps.TILE_LOAD, UOps.TILE_STORE})


def is_address(u: UOp, position: int) -> bool:
    """True if an operand is the index of one element, from which an address is made."""
    if u.op not in _INDEXED or position != 1:
        return False
    return u.src[1].lanes == 1 and u.src[1].dtype is dtypes.int64


def is_sum(u: UOp) -> bool:
    """True if a UOp can be a part of an index that is a sum."""
    return u.op is UOps.ALU and u.arg is ExprOp.ADD and u.lanes == 1 and u.dtype is dtypes.int64


def terms_of(index: UOp) -> tuple[list[UOp], int]:
    """The terms whose sum an index is, and the constant in it."""
    terms, number, stack = [], 0, [index]
    while stack:
        u = stack.pop()
        if u.op is UOps.CONST:
            number += u.arg
        elif is_sum(u):
            stack.extend(reversed(u.src))
        else:
            terms.append(u)
    return terms, number


def computed_values(uops: Sequence[UOp]) -> set[UOp]:
    """The UOps that have to be computed: all but the sums that are only part of addresses."""
    found: set[UOp] = set()
    for u in reversed(uops):
        if is_sum(u) and u not in found:
            continue
        for position, s in enumerate(u.src):
            found.update(terms_of(s)[0] if is_address(u, position) else [s])
    return found


@final
class _Block:
    """An open loop or branch: the sums and addresses known in it, and for a loop the lines before
    it.
    """

    def __init__(self, before: list[str] | None) -> None:
        self.before = before
        self.known: dict[str, str] = {}


@final
class Addresses:
    """The addresses of one function, and the loops in which its values are computed."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.blocks = [_Block(None)]
        self.loops: list[_Block] = []
        self.levels: dict[str, int] = {}

    def define(self, name: str) -> None:
        """Record that a value is computed here, or has been."""
        self.levels.setdefault(name, len(self.loops) if name.startswith("%v") else 0)

    def open_loop(self, counter: str) -> None:
        """Record the beginning of a loop; to be called before its first line."""
        self.blocks.append(_Block(self.code.gap()))
        self.loops.append(self.blocks[-1])
        self.levels[counter] = len(self.loops)

    def close_loop(self) -> None:
        self.loops.pop()
        self.blocks.pop()

    def open_branch(self) -> None:
        self.blocks.append(_Block(None))

    def close_branch(self) -> None:
        self.blocks.pop()

    def element(self, kind: str, size: int, pointer: str, terms: Sequence[str], number: int) -> str:
        """The address of element `sum(terms) + number`, of `size` bytes, after `pointer`.

        Not `inbounds`: the address of a masked access may be outside where the mask is false.
        """
        ordered = sorted(terms, key=self._level)
        inside = len(self.loops)
        outer = [term for term in ordered if self._level(term) < inside]
        base = pointer
        if outer and self._level(pointer) < inside:
            base = self._base(kind, pointer, outer)
            ordered = ordered[len(outer) :]
        if ordered:
            total = self._total(ordered)
            base = self._known(inside, f"getelementptr {kind}, ptr {base}, i64 {total}")
        if number == 0:
            return base
        return self.code.assign(f"getelementptr i8, ptr {base}, i64 {number * size}")

    def chosen(self, condition: str, address: str, other: str) -> str:
        """One of two addresses: the first if a condition holds.

        A condition known outside of the innermost loop becomes a mask for the distance of the two.
        Selects by one comparison end up next to each other, as its result is in flags. For many in
        one tile LLVM then loads all elements there, and has no registers for them.
        """
        level = self._level(condition)
        if level == len(self.loops):
            return self.code.assign(f"select i1 {condition}, ptr {address}, ptr {other}")
        mask = self._known(level, f"sext i1 {condition} to i64")
        start, end = (self.code.assign(f"ptrtoint ptr {p} to i64") for p in (other, address))
        distance = self.code.assign(f"sub i64 {end}, {start}")
        masked = self.code.assign(f"and i64 {distance}, {mask}")
        place = self.code.assign(f"add i64 {start}, {masked}")
        return self.code.assign(f"inttoptr i64 {place} to ptr")

    def _level(self, name: str) -> int:
        return self.levels.get(name, 0)

    def _base(self, kind: str, pointer: str, terms: Sequence[str]) -> str:
        """The address with the terms that do not change in the innermost loop, computed as far out
        as possible.
        """
        level = max(self._level(name) for name in (pointer, *terms))
        total = self._total(terms)
        address = self._known(level, f"getelementptr {kind}, ptr {pointer}, i64 {total}")
        self.code.needed.add(f"declare ptr @{_OPAQUE}(ptr)")
        return self._known(level, f"call ptr @{_OPAQUE}(ptr {address})")

    def _total(self, terms: Sequence[str]) -> str:
        """The sum of terms, those of outer loops first, each addition as far out as possible."""
        total = terms[0]
        for term in terms[1:]:
            level = max(self._level(total), self._level(term))
            total = self._known(level, f"add i64 {total}, {term}")
        return total

    def _known(self, level: int, text: str) -> str:
        """The result of an instruction that belongs inside of `level` loops: before the next loop,
        or here.
        """
        if level == len(self.loops):
            for block in reversed(self.blocks):
                if text in block.known:
                    return block.known[text]
            name = self.code.assign(text)
            self.blocks[-1].known[text] = name
        else:
            loop = self.loops[level]
            if text in loop.known:
                return loop.known[text]
            assert loop.before is not None
            name = f"%v{self.code.number()}"
            loop.before.append(f"  {name} = {text}")
            loop.known[text] = name
        self.levels[name] = level
        return name
