"""The launch of a kernel on thread blocks, as a record that the disk cache can keep."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, final

from ferrule.base.records import dataclass
from ferrule.ir.expr import INDEX, Expr, ExprOp, Variable, alu, as_int, const, minimum, sint

# Index arithmetic has a normal form, which these functions build.
_NORMAL: dict[ExprOp, Callable[..., Expr]] = {
    ExprOp.ADD: operator.add,
    ExprOp.MUL: operator.mul,
    ExprOp.IDIV: operator.floordiv,
    ExprOp.MOD: operator.mod,
    ExprOp.MIN: minimum,
}


@final
@dataclass(frozen=True)
class Launch:
    """A grid of `blocks` blocks, which may depend on variables, of `threads` threads each.

    Each block asks for `shared_bytes` of shared memory, in addition to what the kernel declares.

    >>> n = Variable("n", 1, 100)
    >>> Launch((n + 3) // 4, 256).to_json()
    '[256, ["n", 3, ["ADD", 2], 4, ["IDIV", 2]], 0]'
    """

    blocks: sint
    threads: int
    shared_bytes: int = 0

    def to_json(self) -> str:
        """The launch as text: the threads, the blocks in postfix notation, the memory."""
        return json.dumps([self.threads, list(_postfix(self.blocks)), self.shared_bytes])

    @staticmethod
    def from_json(text: str, variables: Iterable[Variable]) -> Launch:
        """The launch that `to_json` wrote, in terms of `variables`.

        Raises `ValueError` for any other text.
        """
        try:
            threads, items, shared_bytes = json.loads(text)
            blocks = _from_postfix(items, {variable.name: variable for variable in variables})
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"Launch: {text[:80]!r} is no launch: {error!r}") from error
        if type(threads) is not int or type(shared_bytes) is not int:
            raise ValueError(
                f"Launch: {text[:80]!r} is no launch: {threads!r} threads, {shared_bytes!r} bytes"
            )
        return Launch(blocks, threads, shared_bytes)


def _postfix(size: sint) -> Iterator[Any]:
    """Numbers, names of variables, and operations with the number of their operands."""
    if isinstance(size, int):
        yield size
    elif size.op is ExprOp.CONST:
        yield size.arg
    elif size.op is ExprOp.VARIABLE:
        yield size.name
    else:
        for operand in size.src:
            yield from _postfix(operand)
        yield [size.op.name, len(size.src)]


def _from_postfix(items: Iterable[Any], variables: dict[str, Variable]) -> sint:
    stack: list[Expr] = []
    for item in items:
        if isinstance(item, list):
            name, arity = item
            op = ExprOp[name]
            operands = [stack.pop() for _ in range(arity)][::-1]
            stack.append(_NORMAL.get(op, partial(alu, op))(*operands))
        else:
            stack.append(variables[item] if isinstance(item, str) else const(item, INDEX))
    (size,) = stack
    return as_int(size)
