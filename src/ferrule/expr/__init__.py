"""One interned scalar expression for symbolic shapes, indices and kernel code.

An `Expr` is an immutable node of a DAG; equal nodes are the same object, so equality is identity.
"""

from ferrule.expr.base import BOOL, COMPARISONS, COSTLY, INDEX, ExprOp, toposort, varying
from ferrule.expr.build import (
    FALSE,
    TRUE,
    Expr,
    Node,
    all_of,
    as_expr,
    as_int,
    both,
    conjuncts,
    const,
    less,
    minimum,
    range_,
    rebuild,
    sint,
    substitute,
    weighted_sum,
)
from ferrule.expr.values import alu, cast, load, pack, select, uncast
from ferrule.expr.variable import (
    BoundVariable,
    Length,
    Variable,
    is_exact,
    unbind,
    value_guard,
)

__all__ = [
    "BOOL",
    "COMPARISONS",
    "COSTLY",
    "FALSE",
    "INDEX",
    "TRUE",
    "BoundVariable",
    "Expr",
    "ExprOp",
    "Length",
    "Node",
    "Variable",
    "all_of",
    "alu",
    "as_expr",
    "as_int",
    "both",
    "cast",
    "conjuncts",
    "const",
    "is_exact",
    "less",
    "load",
    "minimum",
    "pack",
    "range_",
    "rebuild",
    "select",
    "sint",
    "substitute",
    "toposort",
    "unbind",
    "uncast",
    "value_guard",
    "varying",
    "weighted_sum",
]
