"""Sums on targets without fused multiply-adds: terms are rounded before they are added."""

from __future__ import annotations

import pytest
from tests.kernels import load, matmul, store

from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import UOps
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import named_cpu


@pytest.mark.parametrize(("target", "fused"), [("avx2", True), ("sse2", False)])
@pytest.mark.parametrize("terms", [2, 64])
def test_a_sum_has_the_instructions_of_its_target(target: str, fused: bool, terms: int) -> None:
    product = store(matmul(load(1, 16, terms), load(2, terms, 16)))
    uops = Linearizer(product, named_cpu(target)).linearize().uops
    used = {u.arg for u in uops if u.op is UOps.ALU and u.dtype is not None}
    floats = {u.arg for u in uops if u.op is UOps.ALU and str(u.dtype) == "dtypes.float32"}
    assert (ExprOp.MULACC in floats) is fused, used
    assert ExprOp.MUL in floats or fused
