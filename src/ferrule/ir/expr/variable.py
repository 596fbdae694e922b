"""Sizes that change from call to call: a `Variable`, and one together with its present value."""

from __future__ import annotations

from typing import Any, Self

from ferrule.ir.expr.base import INDEX, ExprOp, toposort
from ferrule.ir.expr.build import Expr, sint
from ferrule.ir.expr.numbers import is_zero


class Variable(Expr):
    """A named integer with bounds, for shapes that change from call to call.

    Bound to a value it is an integer to Python: `+ - * // %` with integers give expressions, which
    follow the variable in replays. Other arithmetic gives plain numbers: `n / 2`, `n * 0.5`,
    `float(n)`, `n == 3`, `if n > 2`. A replay with another value, for which they would be others,
    calls the function instead. In `x * n * 0.5` the tensor comes first, so that replays follow.

    Raises `TypeError` if a number is needed and the variable is not bound.

    >>> n = Variable("n", 1, 10)
    >>> n.bind(3).unbind()
    (n, 3)
    >>> n.bind(3) * 0.5, n.bind(3) / 2, n.bind(3) * 2 + 1
    (1.5, 1.5, n=3 * 2 + 1)
    """

    __slots__ = ()

    def __new__(cls, name: str, min: int, max: int) -> Self:
        """The interned variable; raises `ValueError` if there is no value between the bounds."""
        if min > max:
            raise ValueError(f"Variable {name}: min {min} is above max {max}; swap them")
        return super().__new__(cls, ExprOp.VARIABLE, INDEX, (), (name, min, max))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Variable, self.arg)

    def bind(self, value: int) -> BoundVariable:
        """The variable with a value, to be used as a size or passed to a captured function.

        Raises:
            ValueError: the value is outside the bounds.
        """
        return BoundVariable(self, value)

    @property
    def val(self) -> int:
        """The bound value; an unbound variable has none."""
        raise ValueError(f"variable {self.name} is not bound; use {self.name}.bind(value)")


class _Exact(tuple[Any, ...]):
    """The argument of a `Length`: no user's variable of the same name is the same node."""

    __slots__ = ()


class Length(Variable):
    """A variable of the scheduler's: memory of such a size is dense, and no larger than needed.

    That of a user's variable is laid out for the upper bound, so that it can be used on when the
    value changes.
    """

    __slots__ = ()

    def __new__(cls, name: str, min: int, max: int) -> Self:
        """The interned length."""
        return Expr.__new__(cls, ExprOp.VARIABLE, INDEX, (), _Exact((name, min, max)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Length, tuple(self.arg))


class _Given(tuple[Any, ...]):
    """The argument of an `Extent`, which is no other variable either."""

    __slots__ = ()


class Extent(Variable):
    """A variable for the size of a tensor that was made without one.

    Memory of such a size is dense, as the tensor's is, and a replay follows its value.
    """

    __slots__ = ()

    def __new__(cls, name: str, min: int, max: int) -> Self:
        """The interned variable."""
        return Expr.__new__(cls, ExprOp.VARIABLE, INDEX, (), _Given((name, min, max)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Extent, tuple(self.arg))


def is_exact(size: Expr) -> bool:
    """True if memory of a size is dense: it depends on lengths and extents only."""
    below = [node for node in size.vars() if not isinstance(node, BoundVariable)]
    return all([isinstance(variable, Length | Extent) for variable in below])


class BoundVariable(Expr):
    """A `Variable` together with its present value.

    It is an expression like the variable itself.
    """

    __slots__ = ()

    def __new__(cls, variable: Variable, value: int) -> Self:
        """The interned variable with its value; raises `ValueError` for one out of its bounds."""
        name, low, high = variable.arg
        if not low <= value <= high:
            raise ValueError(f"cannot bind {name} to {value}: it goes from {low} to {high}")
        node = Expr.__new__(cls, ExprOp.VARIABLE, INDEX, (variable,), (name, low, high, int(value)))
        assert isinstance(node, cls)
        return node

    def __reduce__(self) -> tuple[Any, ...]:
        return (BoundVariable, (self.src[0], self.arg[3]))

    @property
    def val(self) -> int:
        """The bound value."""
        return self.unbind()[1]

    def unbind(self) -> tuple[Variable, int]:
        """The variable and its value."""
        variable, value = self.unbound()
        is_zero(self - value)
        return variable, value

    def unbound(self) -> tuple[Variable, int]:
        """`unbind` for a property that holds for any value."""
        variable = self.src[0]
        assert isinstance(variable, Variable)
        return variable, int(self.arg[3])


def unbind(node: sint) -> tuple[sint, dict[Variable, int]]:
    """An expression without bound values, and the values."""
    if isinstance(node, int):
        return node, {}
    values: dict[Variable, int] = {}
    replace: dict[Expr, Expr] = {}
    for below in toposort([node]):
        if isinstance(below, BoundVariable):
            variable, value = below.unbound()
            if values.setdefault(variable, value) != value:
                raise ValueError(
                    f"variable {variable.name} is bound to {values[variable]} and {value} at once; "
                    "use one value, or two variables"
                )
            replace[below] = variable
    return (node.substitute(replace) if replace else node), values
