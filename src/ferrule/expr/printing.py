"""Expressions as readable text."""

from __future__ import annotations

from typing import Final

from ferrule.expr.base import ExprBase, ExprOp

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


def render(node: ExprBase) -> str:
    """The expression as readable text."""
    match node.op:
        case ExprOp.CONST:
            return repr(node.arg)
        case ExprOp.VARIABLE:
            bound = node.arg[3:]
            return f"{node.name}={bound[0]}" if bound else node.name
        case ExprOp.RANGE:
            return node.name
        case ExprOp.LOAD:
            pairs = zip(node.src[::2], node.src[1::2], strict=True)
            elements = [render(i) + ("" if v.arg is True else f" if {render(v)}") for i, v in pairs]
            return f"b{node.arg}[{' & '.join(elements)}]"
        case ExprOp.READ:
            return f"{node.arg}[{', '.join(map(render, node.src))}]"
        case ExprOp.REDUCE:
            monoid, ranges = node.arg
            return f"{monoid}({render(node.src[0])} for {', '.join(r.name for r in ranges)})"
        case ExprOp.KEEP:
            name, ranges = node.arg
            value, *index = map(render, node.src)
            return f"{name}({value} for {', '.join(r.name for r in ranges)})[{', '.join(index)}]"
        case ExprOp.CAST | ExprOp.BITCAST:
            return f"{node.op.name.lower()}({render(node.src[0])}, {node.dtype.name})"
        case _:
            symbol = _SYMBOL.get(node.op)
            if symbol is not None:
                return f"({render(node.src[0])} {symbol} {render(node.src[1])})"
            return f"{node.op.name.lower()}({', '.join(map(render, node.src))})"
