"""Random kernels: what the compiled device computes is what the reference computes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import (
    CASES,
    CHAIN_SHAPES,
    CHAIN_WITH_SUMS,
    Case,
    add,
    constant,
    load,
    make_inputs,
    mul,
    numpy_chain_with_sums,
    reduce,
    store,
)

from ferrule.codegen.heuristic import choose
from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, apply_opts
from ferrule.codegen.uops import verify
from ferrule.device import Device
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.target import Target, detect_cpu
from ferrule.ops import BufferOps, LazyOp, ReduceOps, UnaryOps

SHAPES = [(3, 4), (2, 3, 4), (12,), (5, 7), (4, 4), (17, 3), (2, 33), (6, 1, 5), (40,)]
LARGEST = 600


class Grower:
    """Grows an AST by one random op after another."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.inputs = 0
        self.pool = [self.leaf(random.choice(SHAPES))]

    def leaf(self, shape: tuple[int, ...]) -> LazyOp:
        if self.random.random() < 0.15:
            return constant(self.random.choice([0.5, 2.0, -1.0]), shape)
        self.inputs += 1
        return load(self.inputs, *shape)

    def fitted(self, x: LazyOp, shape: tuple[int, ...]) -> LazyOp:
        return x.reshape(shape) if prod(x.shape) == prod(shape) else self.leaf(shape)

    def grow(self) -> LazyOp:
        x = self.pool[-1]
        grown = self.random.choice(STEPS)(self, x)
        if prod(grown.shape) == 0 or prod(grown.shape) > LARGEST:
            return x
        self.pool.append(grown)
        return grown

    def power(self, x: LazyOp) -> LazyOp:
        return LazyOp(UnaryOps.EXP2, (mul(x, constant(0.1, x.shape)),))

    def sum_of_two(self, x: LazyOp) -> LazyOp:
        return add(x, self.fitted(self.random.choice(self.pool), x.shape))

    def product(self, x: LazyOp) -> LazyOp:
        return mul(x, self.leaf(x.shape))

    def reduced(self, x: LazyOp) -> LazyOp:
        axes = [a for a in range(len(x.shape)) if self.random.random() < 0.5] or [0]
        op = self.random.choice([ReduceOps.SUM, ReduceOps.SUM, ReduceOps.MAX])
        return reduce(op, x, *axes)

    def permuted(self, x: LazyOp) -> LazyOp:
        axes = list(range(len(x.shape)))
        self.random.shuffle(axes)
        return x.permute(tuple(axes))

    def padded(self, x: LazyOp) -> LazyOp:
        return x.pad(tuple((self.random.randint(0, 2), self.random.randint(0, 2)) for _ in x.shape))

    def shrunk(self, x: LazyOp) -> LazyOp:
        starts = [self.random.randint(0, n - 1) for n in x.shape]
        return x.shrink(
            tuple((a, self.random.randint(a + 1, n)) for a, n in zip(starts, x.shape, strict=True))
        )

    def strided(self, x: LazyOp) -> LazyOp:
        return x.stride(tuple(self.random.choice([1, 1, -1, 2, -2]) for _ in x.shape))

    def reshaped(self, x: LazyOp) -> LazyOp:
        size = prod(x.shape)
        first = self.random.choice([d for d in range(1, size + 1) if size % d == 0])
        return x.reshape((first, size // first))

    def expanded(self, x: LazyOp) -> LazyOp:
        return x.expand(tuple(self.random.choice([2, 3, 5]) if n == 1 else n for n in x.shape))

    def windowed(self, x: LazyOp) -> LazyOp:
        axis = self.random.randrange(len(x.shape))
        if x.shape[axis] >= 3:
            return x.window(axis, self.random.choice([2, 3]), self.random.choice([1, 2]), 1)
        return x

    def unwindowed(self, x: LazyOp) -> LazyOp:
        if len(x.shape) < 2 or x.shape[-1] > 4:
            return x
        axis = self.random.randrange(len(x.shape) - 1)
        return x.unwindow(axis, x.shape[axis] + x.shape[-1] + 1, 1, 1)


STEPS = [
    Grower.power,
    Grower.sum_of_two,
    Grower.product,
    Grower.reduced,
    Grower.permuted,
    Grower.padded,
    Grower.shrunk,
    Grower.strided,
    Grower.reshaped,
    Grower.expanded,
    Grower.windowed,
    Grower.unwindowed,
]


def run(device: str, ast: LazyOp, inputs: list[np.ndarray]) -> np.ndarray:
    size = prod(ast.src[0].shape)
    buffers = [Buffer(device, size, dtypes.float32)]
    buffers += [Buffer.fromCPU(device, x.ravel()) for x in inputs]
    Device[device].get_runner(ast).exec(buffers)
    return buffers[0].toCPU()


def random_inputs(ast: LazyOp, count: int) -> list[np.ndarray]:
    sizes = {n.arg.idx: prod(n.shape) for n in ast.toposort() if n.op is BufferOps.LOAD}
    generator = np.random.default_rng(len(sizes))
    shapes = [sizes.get(i + 1, 1) for i in range(count)]
    return [generator.standard_normal(size).astype(np.float32) for size in shapes]


@given(st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_compiled_kernels_agree_with_the_reference(random: Random) -> None:
    grower = Grower(random)
    for _ in range(random.randint(1, 8)):
        value = grower.grow()
    ast = store(value)
    inputs = random_inputs(ast, grower.inputs)
    expected = run("NUMPY", ast, inputs)
    np.testing.assert_allclose(run("CPU", ast, inputs), expected, rtol=1e-4, atol=1e-4)


def by_name(case: Case) -> str:
    return case.name


HOST = detect_cpu()
TARGETS = [
    replace(HOST, name="512", vector_bytes=64, n_vector_registers=32),
    replace(HOST, name="256", vector_bytes=32, n_vector_registers=16),
    replace(HOST, name="128", vector_bytes=16, n_vector_registers=16),
    replace(HOST, name="threads", max_threads=64),
]


def interpreted(case: Case, target: Target, parts: int) -> np.ndarray:
    """The case run by the interpreter, its chunks in several calls, last ones first."""
    linearizer = Linearizer(case.ast, target).linearize()
    verify(linearizer.uops)
    out = np.full(prod(case.ast.src[0].shape), np.nan, np.float32)
    buffers = [out, *(x.ravel() for x in make_inputs(case))]
    chunks = extent(linearizer.uops, [])
    bounds = sorted({chunks * i // parts for i in range(parts + 1)})
    for start, stop in reversed(list(pairwise(bounds))):
        interpret(linearizer.uops, buffers, [], start, stop)
    return out


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_schedules_keep_the_meaning_on_every_target(case: Case, target: Target) -> None:
    expected = np.asarray(case.expected(*make_inputs(case))).ravel()
    np.testing.assert_allclose(interpreted(case, target, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_chunks_are_independent(case: Case) -> None:
    np.testing.assert_array_equal(
        interpreted(case, TARGETS[0], 1), interpreted(case, TARGETS[0], 3)
    )


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_kernels_without_a_schedule_are_right(case: Case) -> None:
    expected = np.asarray(case.expected(*make_inputs(case))).ravel()
    linearizer = Linearizer(case.ast, TARGETS[0], opts=()).linearize()
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, *(x.ravel() for x in make_inputs(case))], [])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_opts_survive_json(case: Case) -> None:
    kernel = lower(case.ast, "k")
    opts = choose(kernel, TARGETS[0])
    again = [Opt.from_json(opt.to_json()) for opt in opts]
    assert apply_opts(kernel, again) == apply_opts(kernel, opts)


def interpreted_sums(
    target: Target, parts: int, opts: tuple[Opt, ...] | None = None
) -> list[np.ndarray]:
    """What the chain with sums stores, its chunks in several calls, last ones first."""
    linearizer = Linearizer(CHAIN_WITH_SUMS, target, opts).linearize()
    verify(linearizer.uops)
    shapes = [node.shape for node in CHAIN_WITH_SUMS.src]
    outs = [np.full(shape, np.nan, np.float32) for shape in shapes]
    buffers = [x.ravel() for x in (*outs, *chain_inputs())]
    chunks = extent(linearizer.uops, [])
    bounds = sorted({chunks * i // parts for i in range(parts + 1)})
    for start, stop in reversed(list(pairwise(bounds))):
        interpret(linearizer.uops, buffers, [], start, stop)
    return outs


def chain_inputs() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for shape in CHAIN_SHAPES]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_sums_over_the_blocks_of_a_chain(target: Target) -> None:
    _check_sums(interpreted_sums(target, 2))  # of three chunks, two in the call that comes first


def test_sums_over_the_blocks_of_a_chain_without_a_schedule() -> None:
    _check_sums(interpreted_sums(TARGETS[0], 1, opts=()))


def _check_sums(found: list[np.ndarray]) -> None:
    for array, expected in zip(found, numpy_chain_with_sums(*chain_inputs()), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-4)
