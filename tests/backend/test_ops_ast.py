"""Every op of a kernel, from a hand-built `LazyOp`, on every device against NumPy."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from ferrule.device import Device
from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    ConstBuffer,
    LazyOp,
    MemBuffer,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)

Array = np.ndarray[Any, Any]
HALVES = (dtypes.float16, dtypes.bfloat16)
FLOATS = (*HALVES, dtypes.float32, dtypes.float64)
SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
INTS = (*SIGNED, *UNSIGNED)
EPS = {dtypes.float16: 2e-3, dtypes.bfloat16: 1.6e-2, dtypes.float32: 1e-6, dtypes.float64: 1e-12}


def load(idx: int, array: Array, view: View | None = None) -> LazyOp:
    st = ShapeTracker.from_shape(array.shape) if view is None else ShapeTracker(view)
    return LazyOp(BufferOps.LOAD, (), MemBuffer(idx, dtypes.from_np(array.dtype), st))


def const(value: float, dtype: DType, shape: tuple[int, ...]) -> LazyOp:
    return LazyOp(BufferOps.CONST, (), ConstBuffer(value, dtype, ShapeTracker.from_shape(shape)))


def store(idx: int, value: LazyOp, view: View | None = None) -> LazyOp:
    st = ShapeTracker.from_shape(value.shape) if view is None else ShapeTracker(view)
    return LazyOp(BufferOps.STORE, (value,), MemBuffer(idx, value.dtype, st))


def run(device: str, ast: LazyOp, *inputs: Array, var_vals: dict[Any, int] | None = None) -> Array:
    """What the kernel writes to buffer 0; symbolic sizes have their bounds' memory."""
    sizes = [size if isinstance(size, int) else size.max for size in ast.shape]
    out = Buffer(device, prod(sizes), ast.dtype)
    buffers = [out, *[Buffer.fromCPU(device, array) for array in inputs]]
    Device[device].get_runner(ast).exec(buffers, var_vals)
    return out.toCPU().reshape(sizes).copy()


def run_all(device: str, asts: Sequence[LazyOp], *inputs: Array) -> list[Array]:
    """What one kernel writes to a buffer for each of `asts`, whose loads are of those behind.

    For few simple ops a compiler for threads takes hardly longer than for one.
    """
    outs = [Buffer(device, prod(ast.shape), ast.dtype) for ast in asts]
    stores = tuple(store(slot, ast) for slot, ast in enumerate(asts))
    buffers = [*outs, *[Buffer.fromCPU(device, array) for array in inputs]]
    Device[device].get_runner(LazyOp(BufferOps.SINK, stores)).exec(buffers)
    return [out.toCPU().reshape(ast.shape) for out, ast in zip(outs, asts, strict=True)]


def each(device: str, ops: Sequence[Any], *inputs: Array, args: Sequence[Any] = ()) -> list[Array]:
    """The results of several ops on the same inputs, in one kernel."""
    loads = tuple(load(len(ops) + i, array) for i, array in enumerate(inputs))
    wanted = zip(ops, args or [None] * len(ops), strict=True)
    return run_all(device, [LazyOp(op, loads, arg) for op, arg in wanted], *inputs)


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def floats(dtype: DType, *shape: int, low: float = -3.0, high: float = 3.0, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return values.astype(dtype.np)


def integers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype.np)
    values = np.random.default_rng(seed).integers(
        info.min, info.max, shape, dtype.np, endpoint=True
    )
    flat = values.reshape(-1)
    extremes = [info.min, info.max, 0, 1]
    flat[: len(extremes)] = extremes
    return values


def values_of(dtype: DType, *shape: int, seed: int = 0) -> Array:
    if dtype is dtypes.bool:
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    return (floats if dtypes.is_float(dtype) else integers)(dtype, *shape, seed=seed)


# *** element-wise ***

UNARY: dict[UnaryOps, tuple[Callable[[Array], Array], float, float]] = {
    UnaryOps.EXP2: (np.exp2, -6, 6),
    UnaryOps.LOG2: (np.log2, 0.01, 50),
    UnaryOps.SIN: (np.sin, -20, 20),
    UnaryOps.COS: (np.cos, -20, 20),
    UnaryOps.SQRT: (np.sqrt, 0, 50),
    UnaryOps.RECIP: (np.reciprocal, 0.1, 9),
    UnaryOps.TRUNC: (np.trunc, -9, 9),
    UnaryOps.NEG: (np.negative, -9, 9),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY, ids=str)
def test_unary(device: str, op: UnaryOps, dtype: DType) -> None:
    function, low, high = UNARY[op]
    x = floats(dtype, 37, low=low, high=high)
    result = run(device, LazyOp(op, (load(1, x),)), x)
    assert result.dtype == x.dtype
    rtol = 4 * EPS[dtype]
    np.testing.assert_allclose(wide(result), function(wide(x)), rtol=rtol, atol=EPS[dtype])


def test_unary_at_the_edges(device: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 200.0], np.float32)
    expected = {
        UnaryOps.EXP2: [1, 1, np.inf, 0, np.nan, 0.5, np.inf],
        UnaryOps.LOG2: [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, np.log2(200)],
        UnaryOps.SQRT: [0, -0.0, np.inf, np.nan, np.nan, np.nan, np.sqrt(200)],
        UnaryOps.RECIP: [np.inf, -np.inf, 0, -0.0, np.nan, -1, 1 / 200],
        UnaryOps.TRUNC: [0, -0.0, np.inf, -np.inf, np.nan, -1, 200],
        UnaryOps.NEG: [-0.0, 0, -np.inf, np.inf, np.nan, 1, -200],
    }
    results = each(device, list(expected), x)
    for (op, values), result in zip(expected.items(), results, strict=True):
        np.testing.assert_allclose(result, np.array(values, np.float32), rtol=1e-6, err_msg=str(op))
        if op in (UnaryOps.SQRT, UnaryOps.RECIP, UnaryOps.TRUNC, UnaryOps.NEG):
            known = ~np.isnan(result)  # the sign of a NaN means nothing
            signs = np.signbit(np.array(values, np.float32))
            np.testing.assert_array_equal(np.signbit(result)[known], signs[known])


@pytest.mark.parametrize("dtype", [*INTS, dtypes.bool], ids=str)
def test_negation_of_integers_and_bool(device: str, dtype: DType) -> None:
    x = values_of(dtype, 21)
    expected = ~x if dtype is dtypes.bool else np.negative(x)
    np.testing.assert_array_equal(run(device, LazyOp(UnaryOps.NEG, (load(1, x),)), x), expected)


@pytest.mark.parametrize("unsigned", [True, False], ids=["unsigned", "others"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, dtypes.bool], ids=str)
def test_cast(device: str, dtype: DType, unsigned: bool) -> None:
    targets = UNSIGNED if unsigned else (*FLOATS, *SIGNED, dtypes.bool)
    x = np.array([0, 1, 2, 3, 100, 0.5, 1.75], np.float32).astype(dtype.np)
    if dtypes.is_float(dtype) and not unsigned:
        x = np.concatenate([x, -x])
    results = each(device, [UnaryOps.CAST] * len(targets), x, args=targets)
    for target, result in zip(targets, results, strict=True):
        expected = x != 0 if target is dtypes.bool else x.astype(np.float64).astype(target.np)
        assert result.dtype == target.np
        np.testing.assert_array_equal(result, expected, err_msg=str(target))


def test_casts_of_integers_wrap(device: str) -> None:
    x = integers(dtypes.int32, 64)
    targets = (dtypes.int8, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.int64)
    results = each(device, [UnaryOps.CAST] * len(targets), x, args=targets)
    for target, result in zip(targets, results, strict=True):
        np.testing.assert_array_equal(result, x.astype(target.np), err_msg=str(target))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_casts_to_halves_round_to_even(device: str, dtype: DType) -> None:
    x = np.arange(1.0, 1.1, 1e-4, np.float32)
    result = run(device, LazyOp(UnaryOps.CAST, (load(1, x),), dtype), x)
    np.testing.assert_array_equal(result, x.astype(dtype.np))


def test_bitcast(device: str) -> None:
    x = floats(dtypes.float32, 3, 5)
    result = run(device, LazyOp(UnaryOps.CAST, (load(1, x),), (dtypes.int32, True)), x)
    np.testing.assert_array_equal(result, x.view(np.int32))
    half = floats(dtypes.bfloat16, 7)
    result = run(device, LazyOp(UnaryOps.CAST, (load(1, half),), (dtypes.uint16, True)), half)
    np.testing.assert_array_equal(result, half.view(np.uint16))


ARITHMETIC: dict[BinaryOps, Callable[[Array, Array], Array]] = {
    BinaryOps.ADD: np.add,
    BinaryOps.SUB: np.subtract,
    BinaryOps.MUL: np.multiply,
    BinaryOps.MAX: np.maximum,
    BinaryOps.CMPLT: np.less,
    BinaryOps.CMPNE: np.not_equal,
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, dtypes.bool], ids=str)
def test_binary(device: str, dtype: DType) -> None:
    ops = [op for op in ARITHMETIC if op is not BinaryOps.SUB or dtype is not dtypes.bool]
    a, b = values_of(dtype, 5, 9, seed=1), values_of(dtype, 5, 9, seed=2)
    b[0] = a[0]
    # Half types compute in float32 and round once, which is what one op in float32 does.
    compute = [x.astype(np.float32) if dtype in HALVES else x for x in (a, b)]
    for op, result in zip(ops, each(device, ops, a, b), strict=True):
        with np.errstate(over="ignore"):
            expected = ARITHMETIC[op](*compute)
        compares = op in (BinaryOps.CMPLT, BinaryOps.CMPNE)
        assert result.dtype == (np.bool_ if compares else dtype.np)
        np.testing.assert_array_equal(result, expected.astype(result.dtype), err_msg=str(op))


def test_max_propagates_nan(device: str) -> None:
    a = np.array([np.nan, 1, np.nan, -np.inf, np.inf], np.float32)
    b = np.array([1, np.nan, np.nan, -np.inf, np.nan], np.float32)
    result = run(device, LazyOp(BinaryOps.MAX, (load(1, a), load(2, b))), a, b)
    np.testing.assert_array_equal(result, np.maximum(a, b))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_division_and_remainder(device: str, dtype: DType) -> None:
    a, b = floats(dtype, 33, seed=1), floats(dtype, 33, low=0.5, seed=2)
    b[::2] *= -1
    narrow = np.float32 if dtype in HALVES else dtype.np
    results = each(device, (BinaryOps.DIV, BinaryOps.MOD), a, b)
    for function, result in zip((np.true_divide, np.fmod), results, strict=True):
        expected = function(a.astype(narrow), b.astype(narrow)).astype(dtype.np)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_division_truncates(device: str, dtype: DType) -> None:
    a, b = integers(dtype, 64, seed=1), integers(dtype, 64, seed=2)
    b[4:40] = np.random.default_rng(3).integers(0, 12, 36)
    if dtype in SIGNED:
        b[6:40:3] *= -1
        a[:4], b[:4] = np.iinfo(dtype.np).min, (-1, 0, 1, 2)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    quotients = [0 if y == 0 else abs(x) // abs(y) * (1 if x * y >= 0 else -1) for x, y in pairs]
    rests = [x - y * q for (x, y), q in zip(pairs, quotients, strict=True)]
    results = each(device, (BinaryOps.DIV, BinaryOps.MOD), a, b)
    for values, result in zip((quotients, rests), results, strict=True):
        wrapped = [value & (2 ** (8 * dtype.itemsize) - 1) for value in values]
        expected = np.array(wrapped, f"uint{8 * dtype.itemsize}").view(dtype.np)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [*INTS, dtypes.bool], ids=str)
def test_bits(device: str, dtype: DType) -> None:
    a, b = values_of(dtype, 33, seed=1), values_of(dtype, 33, seed=2)
    functions = {
        BinaryOps.XOR: np.bitwise_xor,
        BinaryOps.AND: np.bitwise_and,
        BinaryOps.OR: np.bitwise_or,
    }
    results = each(device, list(functions), a, b)
    for (op, function), result in zip(functions.items(), results, strict=True):
        np.testing.assert_array_equal(result, function(a, b), err_msg=str(op))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts(device: str, dtype: DType) -> None:
    a = integers(dtype, 64)
    count = (np.arange(64) % (8 * dtype.itemsize)).astype(dtype.np)
    results = each(device, (BinaryOps.SHL, BinaryOps.SHR), a, count)
    for function, result in zip((np.left_shift, np.right_shift), results, strict=True):
        np.testing.assert_array_equal(result, function(a, count))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_mulacc(device: str, dtype: DType) -> None:
    a, b, c = (values_of(dtype, 29, seed=seed) for seed in (1, 2, 3))
    ast = LazyOp(TernaryOps.MULACC, (load(1, a), load(2, b), load(3, c)))
    result = run(device, ast, a, b, c)
    if dtypes.is_float(dtype):
        expected = wide(a) * wide(b) + wide(c)
        np.testing.assert_allclose(wide(result), expected, rtol=EPS[dtype], atol=EPS[dtype])
    else:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(result, a * b + c)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_mulacc_rounds_once(device: str, dtype: DType) -> None:
    epsilon = np.finfo(dtype.np).eps
    a = np.array([1 + epsilon, 1 + epsilon, 1 + epsilon, 3], dtype.np)
    b = np.array([1 - epsilon, 1 - epsilon, 1 + epsilon, 1 / 3], dtype.np)
    c = np.array([-1, 0, -1 - 2 * epsilon, -1], dtype.np)
    ast = LazyOp(TernaryOps.MULACC, (load(1, a), load(2, b), load(3, c)))
    result = run(device, ast, a, b, c)
    third = float(3 * (int(b[3] * 2**60)) - 2**60) / 2**60
    expected = [-(epsilon**2), 1, epsilon**2, third]
    np.testing.assert_array_equal(result, np.array(expected, dtype.np))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.int64], ids=str)
def test_where(device: str, dtype: DType) -> None:
    a, b = values_of(dtype, 4, 7, seed=1), values_of(dtype, 4, 7, seed=2)
    for condition in (values_of(dtypes.bool, 4, 7), np.array([[0.0, 2, -0.0, 1, 0, 0, 9]] * 4)):
        ast = LazyOp(TernaryOps.WHERE, (load(1, condition), load(2, a), load(3, b)))
        result = run(device, ast, condition, a, b)
        np.testing.assert_array_equal(result, np.where(condition != 0, a, b))


def test_halves_round_after_each_op(device: str) -> None:
    for dtype in HALVES:
        a, b, c = (floats(dtype, 200, seed=seed) for seed in (1, 2, 3))
        product = LazyOp(BinaryOps.MUL, (load(1, a), load(2, b)))
        result = run(device, LazyOp(BinaryOps.ADD, (product, load(3, c))), a, b, c)
        rounded = (a.astype(np.float32) * b.astype(np.float32)).astype(dtype.np)
        expected = (rounded.astype(np.float32) + c.astype(np.float32)).astype(dtype.np)
        np.testing.assert_array_equal(result, expected)


# *** reductions ***

REDUCTIONS: dict[ReduceOps, Callable[..., Array]] = {
    ReduceOps.SUM: np.sum,
    ReduceOps.MAX: np.max,
    ReduceOps.PROD: np.prod,
}


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 1, 7), (3, 5, 1), (1, 1, 1), (3, 5, 7)], ids=str)
@pytest.mark.parametrize("op", REDUCTIONS, ids=str)
def test_reduce(device: str, op: ReduceOps, shape: tuple[int, ...]) -> None:
    x = floats(dtypes.float32, 3, 5, 7, low=0.5, high=1.5)
    result = run(device, LazyOp(op, (load(1, x),), shape), x)
    axes = tuple(axis for axis in range(3) if shape[axis] == 1)
    expected = REDUCTIONS[op](wide(x), axis=axes, keepdims=True)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [*INTS, dtypes.bool], ids=str)
@pytest.mark.parametrize("op", REDUCTIONS, ids=str)
def test_reduce_of_integers_and_bool(device: str, op: ReduceOps, dtype: DType) -> None:
    x = values_of(dtype, 6, 11)
    result = run(device, LazyOp(op, (load(1, x),), (6, 1)), x)
    np.testing.assert_array_equal(result, _reduced(op, x, dtype))


def test_reduces_in_one_kernel(device: str) -> None:
    """A loop for each of them: on threads, all of a block wait for each other in each."""
    x = values_of(dtypes.int8, 6, 11)
    ops = (ReduceOps.SUM, ReduceOps.MAX)
    results = each(device, ops, x, args=[(6, 1), (6, 1)])
    for op, result in zip(ops, results, strict=True):
        np.testing.assert_array_equal(result, _reduced(op, x, dtypes.int8), err_msg=str(op))


def _reduced(op: ReduceOps, x: Array, dtype: DType) -> Array:
    """Along rows, in the dtype itself."""
    if dtype is dtypes.bool:
        return (np.all if op is ReduceOps.PROD else np.any)(x, axis=1, keepdims=True)
    if op is ReduceOps.MAX:
        return np.max(x, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        return REDUCTIONS[op](x, axis=1, keepdims=True, dtype=dtype.np)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_of_halves_accumulate_wide(device: str, dtype: DType) -> None:
    x = np.full((2, 4096), 1, dtype.np)
    result = run(device, LazyOp(ReduceOps.SUM, (load(1, x),), (2, 1)), x)
    assert result.astype(np.float32).tolist() == [[4096], [4096]]


def test_max_of_nan(device: str) -> None:
    x = np.array([[1, np.nan, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
    result = run(device, LazyOp(ReduceOps.MAX, (load(1, x),), (2, 1)), x)
    np.testing.assert_array_equal(result, [[np.nan], [-np.inf]])


def test_matmul(device: str) -> None:
    a, b = floats(dtypes.float32, 6, 8, seed=1), floats(dtypes.float32, 8, 5, seed=2)
    x = load(1, a).reshape((6, 8, 1)).expand((6, 8, 5))
    y = load(2, b).reshape((1, 8, 5)).expand((6, 8, 5))
    ast = LazyOp(ReduceOps.SUM, (LazyOp(BinaryOps.MUL, (x, y)),), (6, 1, 5))
    result = run(device, ast, a, b).reshape(6, 5)
    np.testing.assert_allclose(result, wide(a) @ wide(b), rtol=1e-5, atol=1e-6)


def test_batched_matmul_with_permuted_axes(device: str) -> None:
    a, b = floats(dtypes.float32, 2, 8, 6, seed=1), floats(dtypes.float32, 5, 8, 2, seed=2)
    x = load(1, a).reshape((2, 8, 6, 1)).expand((2, 8, 6, 5))
    y = load(2, b).permute((2, 1, 0)).reshape((2, 8, 1, 5)).expand((2, 8, 6, 5))
    ast = LazyOp(ReduceOps.SUM, (LazyOp(BinaryOps.MUL, (x, y)),), (2, 1, 6, 5))
    result = run(device, ast, a, b)[:, 0]
    expected = np.einsum("bki,jkb->bij", wide(a), wide(b))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_softmax_in_one_kernel(device: str) -> None:
    x = floats(dtypes.float32, 4, 10)
    value = load(1, x)
    largest = LazyOp(ReduceOps.MAX, (value,), (4, 1)).expand((4, 10))
    powers = LazyOp(UnaryOps.EXP2, (LazyOp(BinaryOps.SUB, (value, largest)),))
    total = LazyOp(ReduceOps.SUM, (powers,), (4, 1)).expand((4, 10))
    result = run(device, LazyOp(BinaryOps.DIV, (powers, total)), x)
    expected = np.exp2(wide(x)) / np.exp2(wide(x)).sum(1, keepdims=True)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


# *** movements ***


def test_movements(device: str) -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    value = load(1, x)
    padded = np.pad(x, ((1, 0), (0, 2), (0, 0)))
    cases = {
        "reshape": (value.reshape((4, 6)), x.reshape(4, 6)),
        "permute": (value.permute((2, 0, 1)), x.transpose(2, 0, 1)),
        "expand": (value.reshape((2, 1, 12)).expand((2, 3, 12)), x.reshape(2, 1, 12).repeat(3, 1)),
        "pad": (value.pad(((1, 0), (0, 2), (0, 0))), padded),
        "shrink": (value.shrink(((0, 1), (1, 3), (2, 4))), x[0:1, 1:3, 2:4]),
        "stride": (value.stride((-1, 2, -3)), x[::-1, ::2, ::-3]),
        "as_strided": (
            value.as_strided((3, 4), (2, 5), 1),
            np.array([[1 + 2 * i + 5 * j for j in range(4)] for i in range(3)]),
        ),
    }
    for name, (ast, expected) in cases.items():
        np.testing.assert_array_equal(run(device, ast, x), expected, err_msg=name)


def test_movements_of_computed_values(device: str) -> None:
    x = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    halved = LazyOp(BinaryOps.MUL, (load(1, x), const(0.5, dtypes.float32, (4, 6))))
    ast = halved.permute((1, 0)).pad(((0, 1), (2, 0))).stride((1, -1)).reshape((6, 7))
    expected = np.pad((x / 2).T, ((0, 1), (2, 0)))[:, ::-1].reshape(6, 7)
    np.testing.assert_array_equal(run(device, ast, x), expected)


@pytest.mark.parametrize("window", [(3, 1, 1), (2, 2, 1), (3, 2, 2), (1, 3, 1), (7, 1, 1)], ids=str)
def test_window(device: str, window: tuple[int, int, int]) -> None:
    size, stride, dilation = window
    x = np.arange(3 * 7 * 2, dtype=np.int32).reshape(3, 7, 2)
    count = (7 - dilation * (size - 1) - 1) // stride + 1
    expected = np.zeros((3, count, 2, size), np.int32)
    for o in range(count):
        for k in range(size):
            expected[:, o, :, k] = x[:, o * stride + k * dilation, :]
    np.testing.assert_array_equal(run(device, load(1, x).window(1, *window), x), expected)


@pytest.mark.parametrize("window", [(3, 1, 1), (2, 2, 1), (3, 2, 2), (1, 3, 1)], ids=str)
def test_unwindow(device: str, window: tuple[int, int, int]) -> None:
    size, stride, dilation = window
    length = 7
    count = (length - dilation * (size - 1) - 1) // stride + 1
    x = np.arange(1, 1 + 3 * count * 2 * size, dtype=np.int32).reshape(3, count, 2, size)
    expected = np.zeros((3, length, 2, size), np.int32)
    for i in range(length):
        for k in range(size):
            o, rest = divmod(i - k * dilation, stride)
            if rest == 0 and 0 <= o < count:
                expected[:, i, :, k] = x[:, o, :, k]
    ast = load(1, x).unwindow(1, length, stride, dilation)
    np.testing.assert_array_equal(run(device, ast, x), expected)
    summed = LazyOp(ReduceOps.SUM, (ast,), (3, length, 2, 1))
    np.testing.assert_array_equal(run(device, summed, x)[..., 0], expected.sum(-1))


@pytest.mark.parametrize("index_dtype", [dtypes.int32, dtypes.int64], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_gather(device: str, axis: int, index_dtype: DType) -> None:
    x = floats(dtypes.float32, 5, 6)
    shape = (4, 6) if axis == 0 else (5, 4)
    index = np.random.default_rng(1).integers(-2, 8, shape).astype(index_dtype.np)
    valid = (index >= 0) & (index < x.shape[axis])
    taken = np.take_along_axis(x, np.where(valid, index, 0), axis)
    result = run(device, load(1, x).gather(load(2, index), axis), x, index)
    np.testing.assert_array_equal(result, np.where(valid, taken, 0))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, *HALVES], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter(device: str, axis: int, dtype: DType) -> None:
    value = (np.random.default_rng(0).integers(-8, 8, (5, 6)) / 4).astype(dtype.np)
    index = np.random.default_rng(1).integers(-2, 6, (5, 6)).astype(np.int32)
    size = 4
    expected = np.zeros((size, 6) if axis == 0 else (5, size), np.float64)
    for place in np.ndindex(5, 6):
        target = list(place)
        target[axis] = index[place]
        if 0 <= index[place] < size:
            expected[tuple(target)] += value[place]
    ast = LazyOp(ReduceOps.SCATTER, (load(1, value), load(2, index)), (axis, size))
    np.testing.assert_array_equal(wide(run(device, ast, value, index)), expected)


@pytest.mark.parametrize("index_dtype", [dtypes.int32, dtypes.int64], ids=str)
@pytest.mark.parametrize("width", [129, 40])
def test_scatter_of_rows(device: str, width: int, index_dtype: DType) -> None:
    """As a table's gradient: a place for each row, in any order, often again, or none at all."""
    generator = np.random.default_rng(2)
    count, size = 230, 90
    value = generator.standard_normal((count, width)).astype(np.float32)
    index = generator.integers(-3, size + 3, (count, 1)).astype(index_dtype.np)
    index[50:120] = 7
    index[180:200] = generator.integers(0, 3, (20, 1))
    expected = np.zeros((size, width), np.float32)
    for row, (place,) in zip(value, index, strict=True):
        if 0 <= place < size:
            expected[place] += row
    positions = load(2, index).expand((count, width))
    ast = LazyOp(ReduceOps.SCATTER, (load(1, value), positions), (0, size))
    np.testing.assert_array_equal(run(device, ast, value, index), expected)


# *** memory ***


def test_load_through_a_view_with_a_mask(device: str) -> None:
    x = np.arange(12, dtype=np.float32)
    view = View.create((3, 4)).permute((1, 0)).pad(((1, 1), (0, 2))).stride((-1, 1))
    result = run(device, load(1, x, view), x)
    expected = np.pad(x.reshape(3, 4).T, ((1, 1), (0, 2)))[::-1]
    np.testing.assert_array_equal(result, expected)


def test_const(device: str) -> None:
    values = {dtype: True if dtype is dtypes.bool else 3 for dtype in (*FLOATS, *INTS, dtypes.bool)}
    results = run_all(device, [const(value, dtype, (2, 3)) for dtype, value in values.items()])
    for (dtype, value), result in zip(values.items(), results, strict=True):
        assert result.dtype == dtype.np
        np.testing.assert_array_equal(result, np.full((2, 3), value, dtype.np))


def test_const_keeps_special_values(device: str) -> None:
    values = (np.inf, -np.inf, np.nan, -0.0, 1e-45, 0.1)
    results = run_all(device, [const(value, dtypes.float32, (3,)) for value in values])
    for value, result in zip(values, results, strict=True):
        expected = np.full(3, value, np.float32)
        np.testing.assert_array_equal(result.view(np.int32) << 1, expected.view(np.int32) << 1)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_const_through_a_mask(device: str) -> None:
    st = ShapeTracker(View.create((1, 1), (0, 0)).expand((2, 3)).pad(((1, 0), (0, 1))))
    ast = LazyOp(BufferOps.CONST, (), ConstBuffer(2.0, dtypes.float32, st))
    result = run(device, ast)
    np.testing.assert_array_equal(result, np.pad(np.full((2, 3), 2.0), ((1, 0), (0, 1))))


def execute(device: str, ast: LazyOp, arrays: Sequence[Array]) -> list[Array]:
    buffers = [Buffer.fromCPU(device, array) for array in arrays]
    Device[device].get_runner(ast).exec(buffers)
    return [
        buffer.toCPU().reshape(array.shape) for buffer, array in zip(buffers, arrays, strict=True)
    ]


def test_store_through_a_view(device: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = View.create((4, 5)).shrink(((1, 3), (0, 3))).stride((-1, 1))
    result, _ = execute(device, store(0, load(1, x), view), [np.full((4, 5), -1, np.float32), x])
    expected = np.full((4, 5), -1, np.float32)
    expected[1:3, 0:3] = x[::-1]
    np.testing.assert_array_equal(result, expected)


def test_several_outputs(device: str) -> None:
    x = floats(dtypes.float32, 4, 5)
    value = load(3, x)
    total = LazyOp(ReduceOps.SUM, (value,), (4, 1))
    count = LazyOp(UnaryOps.CAST, (value,), dtypes.int32)
    double = LazyOp(BinaryOps.ADD, (value, value))
    ast = LazyOp(BufferOps.SINK, (store(0, double), store(1, total), store(2, count)))
    empty = [np.zeros((4, 5), np.float32), np.zeros((4, 1), np.float32), np.zeros((4, 5), np.int32)]
    results = execute(device, ast, [*empty, x])
    np.testing.assert_array_equal(results[0], x + x)
    np.testing.assert_allclose(results[1], wide(x).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(results[2], x.astype(np.int32))


def test_disjoint_regions_of_one_buffer(device: str) -> None:
    a, b = np.full((2, 3), 1.0, np.float32), np.full((1, 3), 2.0, np.float32)
    whole = View.create((3, 3))
    first = store(0, load(1, a), whole.shrink(((0, 2), (0, 3))))
    second = store(0, load(2, b), whole.shrink(((2, 3), (0, 3))))
    ast = LazyOp(BufferOps.SINK, (first, second))
    result, *_ = execute(device, ast, [np.zeros((3, 3), np.float32), a, b])
    np.testing.assert_array_equal(result, np.concatenate([a, b]))


def test_update_in_place(device: str) -> None:
    x, y = floats(dtypes.float32, 40, seed=1), floats(dtypes.float32, 40, seed=2)
    ast = store(0, LazyOp(BinaryOps.MUL, (load(0, x), load(1, y))))
    result, _ = execute(device, ast, [x, y])
    np.testing.assert_array_equal(result, x * y)


def test_update_in_place_and_an_output_of_the_old_values(device: str) -> None:
    x, y = floats(dtypes.float32, 40, seed=1), floats(dtypes.float32, 40, seed=2)
    new = store(0, LazyOp(BinaryOps.ADD, (load(0, x), load(2, y))))
    old = store(1, load(0, x))
    results = execute(device, LazyOp(BufferOps.SINK, (new, old)), [x, np.zeros_like(x), y])
    np.testing.assert_array_equal(results[0], x + y)
    np.testing.assert_array_equal(results[1], x)


def test_sub_buffers(device: str) -> None:
    x = np.arange(12, dtype=np.float32)
    memory = Buffer.fromCPU(device, np.zeros(12, np.float32))
    source = Buffer.fromCPU(device, x)
    ast = LazyOp(BinaryOps.ADD, (load(1, x[:4]), load(2, x[:4])))
    parts = [memory.view(4, 4), source.view(0, 4), source.view(8, 4)]
    Device[device].get_runner(ast).exec(parts)
    expected = np.zeros(12)
    expected[4:8] = x[0:4] + x[8:12]
    np.testing.assert_array_equal(memory.toCPU(), expected)


# *** symbolic sizes ***


def test_symbolic_shapes(device: str) -> None:
    n = Variable("n", 1, 6)
    dtype = dtypes.float32
    whole = LazyOp(
        BufferOps.LOAD, (), MemBuffer(1, dtype, ShapeTracker(View.create((n, 4), (4, 1))))
    )
    ast = LazyOp(ReduceOps.SUM, (LazyOp(BinaryOps.ADD, (whole, whole)),), (n, 1))
    column = LazyOp(ReduceOps.SUM, (whole,), (1, 4))
    x = floats(dtype, 6, 4)
    for size in (1, 4, 6):
        result = run(device, ast, x, var_vals={n: size})
        expected = 2 * wide(x[:size]).sum(1, keepdims=True)
        np.testing.assert_allclose(result[:size], expected, rtol=1e-5, atol=1e-6)
        result = run(device, column, x, var_vals={n: size})
        expected = wide(x[:size]).sum(0, keepdims=True)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_symbolic_offsets(device: str) -> None:
    at = Variable("at", 0, 5)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    ast = load(1, x).shrink(((at, at + 1), (0, 4)))
    for value in (0, 3, 5):
        result = run(device, ast, x, var_vals={at: value})
        np.testing.assert_array_equal(result, x[value : value + 1])


# *** runners ***


def test_equal_asts_share_a_runner(device: str) -> None:
    x = np.zeros(4, np.float32)

    def build() -> LazyOp:
        return LazyOp(BinaryOps.ADD, (load(1, x), load(2, x)))

    assert Device[device].get_runner(build()) is Device[device].get_runner(build())


def test_a_contraction_of_halves_rounds_each_product(device: str) -> None:
    a, b = floats(dtypes.float16, 3, 40, seed=1), floats(dtypes.float16, 40, 2, seed=2)
    x = load(1, a).reshape((3, 40, 1)).expand((3, 40, 2))
    y = load(2, b).reshape((1, 40, 2)).expand((3, 40, 2))
    ast = LazyOp(ReduceOps.SUM, (LazyOp(BinaryOps.MUL, (x, y)),), (3, 1, 2))
    products = a[:, :, None].astype(np.float32) * b[None].astype(np.float32)
    expected = products.astype(np.float16).astype(np.float32).sum(1, keepdims=True)
    result = run(device, ast, a, b)
    np.testing.assert_allclose(wide(result), expected, rtol=2e-3, atol=2e-3)
