"""Kernels with a size that is a variable: one program, right for every value."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import add, constant, load, matmul, softmax, store, total

from ferrule.device import Device
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ops import BufferOps, LazyOp

N = Variable("n", 1, 100)
EMPTY_OR_NOT = Variable("n", 0, 100)
MANY = Variable("n", 1, 600)
ELEMENTS = 100 * 100
GUARD = 1024


def kernels(n: Variable) -> dict[str, LazyOp]:
    return {
        "add": store(add(load(1, n, 4), load(2, n, 4))),
        "sum_rows": store(total(load(1, n, 16), 1)),
        "sum_columns": store(total(load(1, n, 16), 0)),
        "sum_of_variable_rows": store(total(load(1, 16, n), 1)),
        "softmax": store(softmax(load(1, 16, n), 1)),
        "matmul_inner": store(matmul(load(1, 16, n), load(2, n, 20))),
        "matmul_rows": store(matmul(load(1, n, 16), load(2, 16, 20))),
        "matmul_columns": store(matmul(load(1, 20, 16), load(2, 16, n))),
        "matmul_transposed": store(matmul(load(1, 20, 16), load(2, n, 16).permute((1, 0)))),
        "reshape": store(add(load(1, n, 4).reshape((n * 4,)), constant(1.0, (n * 4,)))),
        "shrink": store(load(1, 100, 4).shrink(((0, n), (0, 4)))),
    }


KERNELS = kernels(N)
OF_NOTHING = kernels(EMPTY_OR_NOT)


def run(device: str, ast: LazyOp, value: int, variable: Variable = N) -> np.ndarray:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2)]
    out = Buffer.fromCPU(device, np.zeros(ELEMENTS, np.float32))
    count = len({node.arg.idx for node in ast.toposort() if node.op is BufferOps.LOAD})
    buffers = [out, *(Buffer.fromCPU(device, x) for x in inputs[:count])]
    Device[device].get_runner(ast).exec(buffers, {variable: value})
    return out.toCPU()


@pytest.mark.parametrize("value", [1, 7, 33, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_the_reference(name: str, value: int) -> None:
    expected = run("NUMPY", KERNELS[name], value)
    np.testing.assert_allclose(run("CPU", KERNELS[name], value), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [1, 312, 313, 599])
def test_blocks_of_rows(value: int) -> None:
    """Of which the last may have few, or none."""
    ast = store(matmul(load(1, MANY, 16), load(2, 16, 16)))
    expected = run("NUMPY", ast, value, MANY)
    np.testing.assert_allclose(run("CPU", ast, value, MANY), expected, rtol=1e-4, atol=1e-5)


def guarded(contents: np.ndarray) -> Buffer:
    """A buffer between elements that are NaN."""
    whole = np.full(len(contents) + 2 * GUARD, np.nan, np.float32)
    whole[GUARD:-GUARD] = contents
    return Buffer.fromCPU("CPU", whole)


@pytest.mark.parametrize("value", [0, 1, 33])
@pytest.mark.parametrize("name", sorted(OF_NOTHING.keys() - {"softmax"}))
def test_a_size_that_may_be_zero(name: str, value: int) -> None:
    """Of no elements the last are no elements either: nothing before the memory is touched."""
    ast = OF_NOTHING[name]
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2)]
    count = len({node.arg.idx for node in ast.toposort() if node.op is BufferOps.LOAD})
    contents = [np.zeros(ELEMENTS, np.float32), *inputs[:count]]
    wholes = [guarded(array) for array in contents]
    parts = [whole.view(GUARD, ELEMENTS) for whole in wholes]
    Device["CPU"].get_runner(ast).exec(parts, {EMPTY_OR_NOT: value})
    plain = [Buffer.fromCPU("NUMPY", array) for array in contents]
    Device["NUMPY"].get_runner(ast).exec(plain, {EMPTY_OR_NOT: value})
    np.testing.assert_allclose(parts[0].toCPU(), plain[0].toCPU(), rtol=1e-4, atol=1e-5)
    for whole in wholes:
        array = whole.toCPU()
        assert np.isnan(array[:GUARD]).all()
        assert np.isnan(array[-GUARD:]).all()
