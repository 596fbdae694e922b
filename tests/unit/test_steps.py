"""Functions that are built again from the steps that they took the first time."""

from __future__ import annotations

import pytest

from ferrule.dtype import DType, dtypes
from ferrule.gradient import Value
from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, ReduceOps, UnaryOps
from ferrule.tensor import errorfunction, special
from ferrule.tensor.steps import Function, applied


def value(dtype: DType, shape: tuple[int, ...] = (3, 4)) -> LazyBuffer:
    return LazyBuffer.empty(shape, dtype, "NUMPY")


def negated_twice(x: Value) -> Value:
    return special.magnitude(x.alu(UnaryOps.NEG)) * 3.0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16])
@pytest.mark.parametrize(
    "function",
    [special.tanh, special.sigmoid, special.silu, errorfunction.gelu, special.expm1, negated_twice],
)
def test_they_are_the_very_nodes_of_the_function(function: Function, dtype: DType) -> None:
    first, second = value(dtype), value(dtype, (5,))
    for x in (first, second, first.e(UnaryOps.NEG)):
        assert applied(function, x) is function(Value(x)).node


def test_what_is_known_stays_so() -> None:
    """A number, or nothing, has a result that is none of the steps."""
    for shape, number in (((2, 3), 0.0), ((2, 0), 1.0)):
        x = LazyBuffer.const(number, dtypes.float32, shape, "NUMPY")
        found = applied(special.relu, x)
        assert found.op is LoadOps.CONST
        assert found is special.relu(Value(x)).node
    empty = value(dtypes.float32, (0, 3))
    assert applied(special.tanh, empty).op is LoadOps.CONST


def test_what_is_no_element_wise_function_is_called_each_time() -> None:
    calls = []

    def total(x: Value) -> Value:
        calls.append(x.shape)
        return Value(x.node.r(ReduceOps.SUM, range(len(x.shape))))

    x = value(dtypes.float32)
    assert applied(total, x).op is ReduceOps.SUM
    assert calls[-1] == (3, 4)
