"""What becomes of a kernel's functions before it is a program."""

import numpy as np
import pytest
from tests.gpus import nvidia
from tests.kernels import constant, exp, load, mul, narrow_attention, reduce, store, sub

from ferrule.codegen.emit import transcendental
from ferrule.codegen.interpret import interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import Expr, ExprOp
from ferrule.ir.target import detect_cpu
from ferrule.ops import BinaryOps, LazyOp, ReduceOps, TernaryOps, UnaryOps

GPU = nvidia("sm_90a")
NARROW = pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)


def rounded(x: LazyOp, dtype: DType) -> LazyOp:
    return LazyOp(UnaryOps.CAST, (x,), dtype)


def near_powers(ast: LazyOp) -> int:
    """How many powers a program for a GPU takes by its instruction."""
    uops = Linearizer(ast, GPU).linearize().uops
    return sum(u.op is UOps.ALU and u.arg is ExprOp.NEAR_EXP2 for u in uops)


def shifted(x: LazyOp) -> LazyOp:
    largest = reduce(ReduceOps.MAX, x, 1).expand(x.shape)
    return exp(sub(x, largest))


@NARROW
def test_powers_that_are_rounded_take_the_instruction(dtype: DType) -> None:
    x = load(1, 32, 64)
    assert near_powers(store(rounded(exp(x), dtype))) > 0
    assert near_powers(store(rounded(mul(exp(x), x), dtype))) > 0
    assert near_powers(store(rounded(reduce(ReduceOps.SUM, shifted(x), 1), dtype))) > 0


@NARROW
def test_other_powers_do_not(dtype: DType) -> None:
    x = load(1, 32, 64)
    assert near_powers(store(exp(x))) == 0
    assert near_powers(store(reduce(ReduceOps.SUM, shifted(x), 1))) == 0
    # What is rounded and what is not: the sum of both counts as it is.
    power = exp(x)
    both = LazyOp(BinaryOps.ADD, (power, rounded(rounded(power, dtype), dtypes.float32)))
    assert near_powers(store(both)) == 0
    # Which of two numbers is stored depends on a comparison of what is exact.
    less = LazyOp(BinaryOps.CMPLT, (exp(x), x))
    chosen = LazyOp(TernaryOps.WHERE, (less, x, constant(1, x.shape)))
    assert near_powers(store(rounded(chosen, dtype))) == 0
    wide = LazyOp(UnaryOps.EXP2, (load(1, 8, dtype=dtypes.float64),))
    assert near_powers(store(rounded(wide, dtype))) == 0


def test_a_processor_has_no_such_instruction() -> None:
    uops = (
        Linearizer(store(rounded(exp(load(1, 64)), dtypes.float16)), detect_cpu()).linearize().uops
    )
    assert not any(u.op is UOps.ALU and u.arg is ExprOp.NEAR_EXP2 for u in uops)


def test_attention_of_narrow_floats_stored_wide_is_exact_but_for_its_weights() -> None:
    """The sum of the powers counts as it is, and so do they."""
    assert near_powers(narrow_attention(dtypes.bfloat16, 64, 64, 32, 32)) == 0


def run_near(values: np.ndarray) -> np.ndarray:
    """Powers by the instruction, before they are rounded."""
    x = load(1, values.size)
    power = LazyOp(UnaryOps.EXP2, (x,))
    uops = Linearizer(store(rounded(power, dtypes.bfloat16)), GPU).linearize().uops
    out = np.zeros(values.size, dtypes.bfloat16.np)
    interpret(uops, [out, values])
    return out.astype(np.float64)


def test_near_powers_at_the_limits() -> None:
    inf = np.inf
    values = np.array([0, -0.0, 1, -1, 127, -126, -130, -133, -inf], np.float32)
    np.testing.assert_array_equal(run_near(values), np.exp2(values.astype(np.float64)))
    beyond = np.array([-150, -300, 128, 300, inf], np.float32)
    np.testing.assert_array_equal(run_near(beyond), [0, 0, inf, inf, inf])
    assert np.isnan(run_near(np.full(8, np.nan, np.float32))).all()


def test_the_power_of_half_is_never_subnormal() -> None:
    """So an instruction that has 0 for these loses nothing."""
    x = Expr(ExprOp.READ, dtypes.float32, (), "x")
    product = transcendental.near_exp2(x)
    power = product.src[0]
    assert (product.op, product.src[1], power.op) == (ExprOp.MUL, power, ExprOp.NEAR_EXP2)
    least = np.float32(-150)  # whose power is rounded to 0
    assert np.exp2(least / 2) > np.finfo(np.float32).tiny
