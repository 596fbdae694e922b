"""Expressions as readable text. Long parts that are used again are written once, and numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ferrule.ir.dtype import shown
from ferrule.ir.expr.base import ExprBase, ExprOp

_SYMBOL: Final = {
    ExprOp.ADD: "+",
    ExprOp.SUB: "-",
    ExprOp.MUL: "*",
    ExprOp.FDIV: "/",
    ExprOp.IDIV: "//",
    ExprOp.MOD: "%",
    ExprOp.CMPLT: "<",
    ExprOp.CMPNE: "!=",
    ExprOp.AND: "&",
    ExprOp.OR: "|",
    ExprOp.XOR: "^",
    ExprOp.SHL: "<<",
    ExprOp.SHR: ">>",
}
# The strength of an operator: a product binds more than a sum, a sum more than all others.
_ATOM: Final = 3
_PRODUCTS: Final = frozenset({ExprOp.MUL, ExprOp.FDIV, ExprOp.IDIV, ExprOp.MOD})
_SUMS: Final = frozenset({ExprOp.ADD, ExprOp.SUB})
_CHAINED: Final = frozenset({ExprOp.ADD, ExprOp.MUL, ExprOp.AND, ExprOp.OR})
# Characters; a shorter text is repeated wherever it is used, which reads better than a number.
_MIN_NUMBERED: Final = 100


def render(node: ExprBase) -> str:
    """An expression as readable text; the parts that it uses again follow."""
    (text,), parts = texts([node])
    return f"{text} where {', '.join(parts)}" if parts else text


def texts(roots: Sequence[ExprBase]) -> tuple[list[str], list[str]]:
    """Expressions as readable texts, and the long parts that several places in them use.

    Each part is "%3 = …", and its number stands for it in the texts and in later parts.
    """
    order = _printed(roots)
    uses = Counter(source for node in order for source in _operands(node))
    uses.update(roots)
    found: dict[ExprBase, str] = {}
    parts: list[str] = []
    numbered: set[ExprBase] = set()
    for node in order:
        text = _text(node, found, numbered)
        if uses[node] > 1 and len(text) > _MIN_NUMBERED:
            number = f"%{len(parts)}"
            parts.append(f"{number} = {text}")
            text = number
            numbered.add(node)
        found[node] = text
    return [found[root] for root in roots], parts


def _operands(node: ExprBase) -> tuple[ExprBase, ...]:
    """The operands that are part of a node's text: a range is known by its name."""
    return () if node.op is ExprOp.RANGE else node.src


def _printed(roots: Sequence[ExprBase]) -> list[ExprBase]:
    """All nodes that are part of the texts, operands first."""
    order: dict[ExprBase, None] = {}
    stack = list(reversed(roots))
    while stack:
        missing = [s for s in _operands(stack[-1]) if s not in order]
        if missing:
            stack += reversed(missing)
        else:
            order[stack.pop()] = None
    return list(order)


def _text(node: ExprBase, found: Mapping[ExprBase, str], numbered: Collection[ExprBase]) -> str:
    """The text of a node whose operands' texts were found."""
    operands = [found[source] for source in _operands(node)]
    match node.op:
        case ExprOp.CONST:
            return shown(node.arg)
        case ExprOp.VARIABLE:
            bound = node.arg[3:]
            return f"{node.name}={bound[0]}" if bound else node.name
        case ExprOp.RANGE:
            return node.name
        case ExprOp.LOAD:
            pairs = zip(operands[::2], operands[1::2], node.src[1::2], strict=True)
            elements = [i + ("" if v.arg is True else f" if {valid}") for i, valid, v in pairs]
            return f"b{node.arg}[{', '.join(elements)}]"
        case ExprOp.READ:
            return f"{node.arg}[{', '.join(operands)}]" if operands else str(node.arg)
        case ExprOp.REDUCE:
            monoid, ranges = node.arg
            return f"{monoid}({operands[0]} for {', '.join(r.name for r in ranges)})"
        case ExprOp.STAGE:
            name, ranges = node.arg
            value, *index = operands
            return f"{name}({value} for {', '.join(r.name for r in ranges)})[{', '.join(index)}]"
        case ExprOp.CAST | ExprOp.BITCAST:
            return f"{node.op.name.lower()}({operands[0]}, {node.dtype.name})"
        case _:
            if node.op in _SYMBOL:
                return _infix(node, operands, numbered)
            return f"{node.op.name.lower()}({', '.join(operands)})"


def _infix(node: ExprBase, operands: Sequence[str], numbered: Collection[ExprBase]) -> str:
    """Two operands around a symbol, in parentheses where they would be read otherwise."""
    symbol = _SYMBOL[node.op]
    left, right = (
        f"({text})" if source not in numbered and _needs_parentheses(source, node, i > 0) else text
        for i, (source, text) in enumerate(zip(node.src, operands, strict=True))
    )
    if node.op is ExprOp.ADD and _is_negative(node.src[1]):
        symbol, right = "-", right[1:]
    return f"{left} {symbol} {right}"


def _needs_parentheses(operand: ExprBase, node: ExprBase, is_right: bool) -> bool:
    """True if an operand needs parentheses: its operator binds no more than the one around it.

    A sum needs none on the left of a sum, nor does a chained operator on the left of the same one.
    """
    own, around = _strength(operand.op), _strength(node.op)
    if own != around:
        return own < around
    goes_on = operand.op is node.op and node.op in _CHAINED
    return is_right or not (goes_on or node.op in _SUMS)


def _strength(op: ExprOp) -> int:
    if op in _PRODUCTS:
        return 2
    if op in _SUMS:
        return 1
    return 0 if op in _SYMBOL else _ATOM


def _is_negative(node: ExprBase) -> bool:
    return node.op is ExprOp.CONST and isinstance(node.arg, int) and node.arg < 0
