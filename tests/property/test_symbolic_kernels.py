"""Kernels with a size that is a variable: one program, right for every value."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import add, constant, load, matmul, softmax, store, total

from ferrule.buffer import Buffer
from ferrule.device import Device
from ferrule.expr import Variable
from ferrule.ops import BufferOps, LazyOp

N = Variable("n", 1, 100)
ELEMENTS = 100 * 100

KERNELS: dict[str, LazyOp] = {
    "add": store(add(load(1, N, 4), load(2, N, 4))),
    "sum_rows": store(total(load(1, N, 16), 1)),
    "sum_columns": store(total(load(1, N, 16), 0)),
    "sum_of_variable_rows": store(total(load(1, 16, N), 1)),
    "softmax": store(softmax(load(1, 16, N), 1)),
    "matmul_inner": store(matmul(load(1, 16, N), load(2, N, 20))),
    "matmul_rows": store(matmul(load(1, N, 16), load(2, 16, 20))),
    "matmul_columns": store(matmul(load(1, 20, 16), load(2, 16, N))),
    "matmul_transposed": store(matmul(load(1, 20, 16), load(2, N, 16).permute((1, 0)))),
    "reshape": store(add(load(1, N, 4).reshape((N * 4,)), constant(1.0, (N * 4,)))),
    "shrink": store(load(1, 100, 4).shrink(((0, N), (0, 4)))),
}


def run(device: str, ast: LazyOp, value: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2)]
    out = Buffer.fromCPU(device, np.zeros(ELEMENTS, np.float32))
    count = len({node.arg.idx for node in ast.toposort() if node.op is BufferOps.LOAD})
    buffers = [out, *(Buffer.fromCPU(device, x) for x in inputs[:count])]
    Device[device].get_runner(ast).exec(buffers, {N: value})
    return out.toCPU()


@pytest.mark.parametrize("value", [1, 7, 33, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_the_reference(name: str, value: int) -> None:
    expected = run("NUMPY", KERNELS[name], value)
    np.testing.assert_allclose(run("CPU", KERNELS[name], value), expected, rtol=1e-4, atol=1e-5)
