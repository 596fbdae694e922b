"""Functions that are one node of the graph, and operations of their own in a kernel."""

from __future__ import annotations

import pytest

from ferrule import Tensor
from ferrule.autograd import TracedValue
from ferrule.dtype import DType, dtypes
from ferrule.fusion.costs import Cost, Costs
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.fusion.plans.plan_cache import key_of
from ferrule.fusion.plans.plan_key import GraphForm
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.steps import Steps
from ferrule.ir.target import detect_cpu
from ferrule.ops import FunctionOps, LoadOps, ReduceOps, UnaryOps
from ferrule.schedule import create_schedule
from ferrule.tensor.math import errorfunction, special
from ferrule.tensor.steps import Function, applied

FUNCTIONS = [special.tanh, special.sigmoid, special.silu, errorfunction.gelu, special.expm1]


def value(dtype: DType, shape: tuple[int, ...] = (3, 4)) -> LazyBuffer:
    size = 1
    for length in shape:
        size *= length
    return LazyBuffer.in_buffer(Buffer("CPU", size, dtype), shape)


def chain(x: TracedValue) -> TracedValue:
    """Each step has one user."""
    return (x.alu(UnaryOps.NEG) * 3.0).alu(UnaryOps.EXP2)


def nested(x: TracedValue) -> TracedValue:
    return special.magnitude(special.tanh(x).alu(UnaryOps.NEG)) * special.tanh(x)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16])
@pytest.mark.parametrize("function", [*FUNCTIONS, chain, nested])
def test_a_function_is_one_node_whose_kernel_has_its_steps(
    function: Function, dtype: DType
) -> None:
    x = value(dtype)
    node = applied(function, x)
    assert (node.op, node.srcs, node.shape) == (FunctionOps.STEPS, (x,), x.shape)
    assert node is applied(function, x)
    steps: Steps = node.arg
    assert not any(isinstance(step.op, FunctionOps) for step in steps.steps)
    assert len(steps.form) == len(set(steps.form)), "a step is done twice"
    spelled_out = steps.spelled_out(x)
    assert spelled_out.dtype is node.dtype
    assert spelled_out.op is not FunctionOps.STEPS
    (item,) = create_schedule([node])
    (other,) = create_schedule([spelled_out])
    assert item.ast is other.ast


def test_the_steps_are_those_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    # A capture forgets all nodes, and those that are kept are other ones than those made now.
    monkeypatch.setattr("ferrule.autograd.tape._constants", {})
    x = value(dtypes.float32)
    steps = applied(chain, x).arg
    assert steps.spelled_out(x) is chain(TracedValue(x)).node


def test_what_is_known_stays_so() -> None:
    """A number, or nothing, has a result that is none of the steps."""
    for shape, number in (((2, 3), 0.0), ((2, 0), 1.0)):
        x = LazyBuffer.const(number, dtypes.float32, shape, "NUMPY")
        found = applied(special.relu, x)
        assert found.op is LoadOps.CONST
        assert found is special.relu(TracedValue(x)).node
    empty = value(dtypes.float32, (0, 3))
    assert applied(special.tanh, empty).op is LoadOps.CONST
    steps: Steps = applied(special.relu, value(dtypes.float32)).arg
    assert steps.of(LazyBuffer.const(-1.0, dtypes.float32, (2,), "NUMPY")).base_const() == 0


def test_what_is_no_element_wise_function_is_called_each_time() -> None:
    calls = []

    def total(x: TracedValue) -> TracedValue:
        calls.append(x.shape)
        return TracedValue(x.node.r(ReduceOps.SUM, range(len(x.shape))))

    x = value(dtypes.float32)
    assert applied(total, x).op is ReduceOps.SUM
    assert calls[-1] == (3, 4)


def cost_of(node: LazyBuffer) -> Cost:
    return Costs(KeyedGraph([node]).graph(), set(), detect_cpu())[node]


@pytest.mark.parametrize("function", [*FUNCTIONS, chain])
def test_a_node_costs_what_its_steps_cost(function: Function) -> None:
    """Below it: memory, a sum that it may own, and something repeated."""
    wide = value(dtypes.float32)
    for x in (wide, wide.r(ReduceOps.SUM, (1,)), value(dtypes.float32, (1, 4)).expand((3, 4))):
        node = applied(function, x)
        cost, other = cost_of(node), cost_of(node.arg.spelled_out(x))
        steps = [step for step in node.arg.steps if step.op is not LoadOps.CONST]
        assert cost.nodes == len(steps) <= cost.each
        cost.each, cost.nodes = other.each, other.nodes
        assert cost == other
    assert bool(cost_of(applied(chain, wide.r(ReduceOps.SUM, (1,)))).owned)


def key(*functions: Function) -> str | None:
    x = value(dtypes.float32)
    for _ in range(20):
        for function in functions:
            x = applied(function, x)
    form = GraphForm(KeyedGraph([x]).graph(), detect_cpu())
    assert form.key is not None
    return key_of(detect_cpu(), form.described)


def test_schedules_of_functions_are_stored_by_what_these_do() -> None:
    same, other = key(special.tanh, special.silu), key(special.silu, special.tanh)
    assert same is not None
    assert other is not None
    assert key(special.tanh, special.silu) == same != other


def test_lanes_of_a_number() -> None:
    """What is mapped over may turn out to be a number, of which a function is one too."""
    from ferrule.transforms import vmap

    found = vmap(lambda x: (x * 1).relu() + x)(Tensor.full((3, 4), 2.0))
    assert found.tolist() == [[4.0] * 4] * 3


def test_a_function_of_a_symbolic_size() -> None:
    size = Variable("n", 1, 10).bind(3)
    x = value(dtypes.float32, (10,)).shrink([(0, size)])
    node = applied(special.tanh, x)
    spelled_out = node.arg.spelled_out(x)
    (item,) = create_schedule([node])
    (other,) = create_schedule([spelled_out])
    assert item.ast is other.ast
    assert item.var_vals == other.var_vals == {Variable("n", 1, 10): 3}
