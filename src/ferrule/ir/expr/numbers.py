"""Expressions as Python numbers: a bound variable is an integer with a value.

Integer arithmetic with integers stays symbolic. All else that Python asks of a number is answered
by the present value: arithmetic with floats, `float(n)`, `if n > 2`, `math.sqrt(n)`. A capture
keeps in `required` what its replays must have in common with it, so that no answer is stale.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from numbers import Complex, Real
from typing import TYPE_CHECKING, Any, Final, Self

from ferrule.ir.expr.base import BOOL, INDEX, UNBOUNDED, ExprBase, ExprOp, toposort

if TYPE_CHECKING:
    from numpy import ndarray

required: Final[ContextVar[dict[Any, None] | None]] = ContextVar("ferrule_required", default=None)
"""In a capture: expressions of unbound variables that must not be negative in replays."""


def require(spare: Any) -> None:
    """Notes an expression that is not negative now as one that must not be in replays."""
    noted = required.get()
    if noted is not None and spare.min < 0:
        noted[free(spare)] = None


# *** values ***


def bound_nodes(expr: ExprBase) -> list[Any]:
    """The bound variables below an expression."""
    return [node for node in toposort([expr]) if node.op is ExprOp.VARIABLE and node.src]


def free(expr: Any) -> Any:
    """The expression without the values of its variables."""
    bound = bound_nodes(expr)
    return expr.substitute({node: node.src[0] for node in bound}) if bound else expr


def present_value(expr: Any) -> int | None:
    """The value of an integer expression now, which no capture notes.

    None if a variable has no value, or two.
    """
    if expr.op is ExprOp.CONST:
        return int(expr.arg)
    values: dict[Any, int] = {}
    for node in bound_nodes(expr):
        if values.setdefault(node.src[0], node.arg[3]) != node.arg[3]:
            return None
    unbound = free(expr)
    if unbound.ranges or not unbound.vars() <= values.keys():
        return None
    return int(unbound.infer(values))


def is_zero(expr: Any) -> bool | None:
    """True if an expression is 0 now, which replays keep to; None if it has no value."""
    value = present_value(expr)
    if value is None:
        return None
    if value >= 0:
        require(expr if value == 0 else expr - 1)
    if value <= 0:
        require(-expr if value == 0 else -expr - 1)
    return value == 0


_COMPUTES: Final[Mapping[ExprOp, Callable[..., int]]] = {
    ExprOp.ADD: operator.add,
    ExprOp.MUL: operator.mul,
    ExprOp.IDIV: operator.floordiv,
    ExprOp.MOD: operator.mod,
    ExprOp.MIN: min,
    ExprOp.MAX: max,
    ExprOp.CMPLT: operator.lt,
    ExprOp.AND: operator.and_,
    ExprOp.XOR: operator.xor,
}


def _of_variable(variable: ExprBase, values: Mapping[Any, int]) -> int:
    if variable not in values:
        raise KeyError(f"variable {variable.name} has no value; bind it, or pass it in var_vals")
    value = values[variable]
    low, high = variable.arg[1:3]
    if not low <= value <= high:
        raise ValueError(
            f"variable {variable.name} cannot be {value}: it goes from {low} to {high}"
        )
    return value


# *** numbers of other kinds ***


def by_value(op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """An operation of an expression and a number, by the expression's present value.

    NotImplemented if there is no number, but a tensor, say, which knows itself what to do.
    """
    other = b if isinstance(a, ExprBase) else a
    if not isinstance(other, ExprBase | Complex) and not _is_of_numpy(other):
        return NotImplemented
    return op(*[int(part) if isinstance(part, Number) else part for part in (a, b)])


def _is_of_numpy(other: object) -> bool:
    """True for arrays and their elements, which there are none of before NumPy is imported."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(other, numpy.generic | numpy.ndarray)


def compared(op: Callable[[Any, Any], Any], a: Any, b: Any, rounding: Callable[[Any], int]) -> Any:
    """A comparison with a number that is no integer, as one with the next integer.

    By value with arrays; NotImplemented with what is no number.
    """
    if not isinstance(b, Real):
        return by_value(op, a, b)
    if b != b:
        return a < UNBOUNDED[0]
    return op(a, UNBOUNDED[float(b) > 0] if math.isinf(b) else int(rounding(b)))


def _asked_inside() -> bool:
    """Tells if the caller's caller is a module of this package.

    For these an expression equals only itself, as memory that is laid out for a variable is
    not laid out for its present value. Tuples of sizes are compared with `==`, so that no other
    operator could tell one from the other.
    """
    name = sys._getframe(2).f_globals.get("__name__") or ""
    return name == "ferrule" or name.startswith("ferrule.")


class Number(ExprBase):
    """The operators and conversions by which Python takes an expression for a number.

    Raises `TypeError` if a value is needed, and a variable has none.
    """

    __slots__ = ()

    __array_priority__ = 1000
    """NumPy's numbers and arrays leave their operators to an expression's."""

    def infer(self, values: Mapping[Any, int]) -> int:
        """The value of an integer expression, its variables taken from `values`.

        Raises:
            KeyError: a variable has no value.
            ValueError: a variable's value is outside its bounds.
        """
        if self.op is ExprOp.CONST:
            return int(self.arg)
        if self.op is ExprOp.VARIABLE:
            return _of_variable(self, values)
        if self.dtype is INDEX:
            total = self._sum_of_products(values)
            if total is not None:
                return total
        known: dict[Any, int] = {}
        for node in toposort([self]):
            if node.op in (ExprOp.CONST, ExprOp.VARIABLE):
                known[node] = node.infer(values)
            elif node.op in _COMPUTES:
                known[node] = _COMPUTES[node.op](*[known[part] for part in node.src])
            else:
                raise KeyError(f"{node} has no value that follows from those of variables")
        return known[self]

    def _sum_of_products(self, values: Mapping[Any, int]) -> int | None:
        """`infer` for what most sizes are: a sum of products of variables; None for the rest."""
        terms, total = self.linear()
        for atom, factor in terms.items():
            for part in atom.src if atom.op is ExprOp.MUL else (atom,):
                if part.op not in (ExprOp.VARIABLE, ExprOp.ADD, ExprOp.MUL):
                    return None
                factor *= part.infer(values)
            total += factor
        return total

    def _value(self) -> int:
        value = present_value(self)
        if value is None:
            raise TypeError(
                f"{self} has no value; bind each of its variables to one: variable.bind(value)"
            )
        for node in bound_nodes(self):
            is_zero(node - node.arg[3])
        return value

    def _truth(self) -> bool:
        if self.op is ExprOp.CONST:
            return bool(self.arg)
        if self.op is ExprOp.AND:
            return all([bool(part) for part in self.src])
        if self.op is ExprOp.CMPLT:
            high: Any = self.src[1]
            spare = high - self.src[0]
            value = present_value(spare)
            if value is not None:
                require(spare - 1 if value > 0 else -spare)
                return value > 0
        raise TypeError(
            f"the truth of {self} is not known before it runs; "
            "compare its bounds() instead, or bind its variables: variable.bind(value)"
        )

    def __bool__(self) -> bool:
        if self.dtype is BOOL:
            return self._truth()
        if self.bounds()[0] > 0:
            return True
        zero = is_zero(self)
        return bool(self._value()) if zero is None else not zero

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        return NotImplemented if _asked_inside() else self._equals(other)

    def __ne__(self, other: object) -> Any:
        if self is other:
            return False
        same = NotImplemented if _asked_inside() else self._equals(other)
        if same is NotImplemented or isinstance(same, bool):
            return same if same is NotImplemented else not same
        return ~same  # an array

    def _equals(self, other: object) -> Any:
        if self.dtype is BOOL:
            return bool(self) == other if isinstance(other, bool) else NotImplemented
        mine: Any = self
        if isinstance(other, Number):
            same = is_zero(mine - other) if other.dtype is self.dtype else None
            return NotImplemented if same is None else same
        if present_value(mine) is None:
            return NotImplemented
        if not isinstance(other, Real):
            return by_value(operator.eq, self, other)
        number: Any = other
        is_whole = number == number and abs(number) != math.inf and int(number) == number
        return is_whole and bool(is_zero(mine - int(number)))

    __hash__ = ExprBase.__hash__

    def __int__(self) -> int:
        return int(self._truth()) if self.dtype is BOOL else self._value()

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> ndarray[Any, Any]:
        import numpy

        return numpy.asarray(bool(self) if self.dtype is BOOL else int(self), dtype)

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)

    def __neg__(self) -> Any:
        mine: Any = self
        return mine * -1

    def __abs__(self) -> Self | int:
        return self if self.bounds()[0] >= 0 else abs(int(self))

    # -- whole numbers are as they are rounded ---------------------------------------------------

    def __pos__(self) -> Self:
        return self

    __floor__ = __ceil__ = __trunc__ = __pos__

    def __round__(self, digits: int | None = None) -> Self | int:
        return self if digits is None or digits >= 0 else round(int(self), digits)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        mine: Any = self
        return mine // other, mine % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        mine: Any = self
        return other // mine, other % mine

    # -- arithmetic that has no expression, or seldom --------------------------------------------

    def __truediv__(self, other: Any) -> Any:
        return by_value(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return by_value(operator.truediv, other, self)

    def __pow__(self, exponent: Any) -> Any:
        if type(exponent) is int and 0 <= exponent <= 4:
            return math.prod([self] * exponent)
        return by_value(operator.pow, self, exponent)

    def __rpow__(self, other: Any) -> Any:
        return by_value(operator.pow, other, self)

    def __or__(self, other: Any) -> Any:
        return by_value(operator.or_, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return by_value(operator.xor, self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Any:
        return by_value(operator.lshift, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return by_value(operator.lshift, other, self)

    def __rshift__(self, other: Any) -> Any:
        return by_value(operator.rshift, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return by_value(operator.rshift, other, self)
