"""Copies of constant operands as kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.kernels import convolution, load, matmul, mul, products, store, total, widened
from tests.programs import HOST, Compiled, bits
from tests.roles import the_copy, the_reduce

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.intrinsics import INTRINSICS
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.linearizer import linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.prepack import Prepacked, prepack
from ferrule.codegen.uops import UOp
from ferrule.dtype import dtypes
from ferrule.ir.target import Target
from ferrule.ops import LazyOp, UnaryOps

# A small cache, so that small operands are blocked as large ones are.
SMALL = replace(HOST, l1_bytes=16 << 10, l2_bytes=64 << 10)
RIGHT = frozenset({2})
A, B = (26, 15), (48, 15)
DOT = INTRINSICS["dpbf16ps"]
Run = Callable[[list[UOp], list[np.ndarray]], None]


def scheduled(value: LazyOp, target: Target = HOST) -> Kernel:
    return schedule(lower(store(value), "k"), target).kernel


def sizes_of(value: LazyOp, *inputs: tuple[int, ...]) -> tuple[int, ...]:
    shapes = [value.shape, *inputs]
    return tuple(int(np.prod(np.array(shape))) * 4 for shape in shapes)


def check(
    kernel: Kernel,
    found: Prepacked,
    arrays: list[np.ndarray],
    target: Target,
    run: Run | None = None,
) -> None:
    """The packed form gives the bits of the kernel, whatever the new buffers held before."""
    run = run or (lambda uops, buffers: Compiled(uops, target)(buffers))
    plain = [array.copy() for array in arrays]
    run(linearize(kernel), plain)
    panels = []
    for copy in found.copies:
        scratch = bytearray(b"\xff" * copy.elements * copy.dtype.itemsize)  # NaNs, if floats
        filled = np.frombuffer(scratch, copy.dtype.np)
        run(linearize(copy.kernel), [filled, arrays[copy.source]])
        panels.append(filled)
    packed = [*(array.copy() for array in arrays), *panels]
    run(linearize(found.kernel), packed)
    np.testing.assert_array_equal(bits(packed[0]), bits(plain[0]))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", [HOST, SMALL], ids=["host", "small"])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(64, 96, 128), (61, 77, 190), (129, 130, 67), (40, 300, 96)]
)
def test_products_with_a_transposed_operand(
    rows: int, terms: int, columns: int, target: Target
) -> None:
    value = matmul(load(1, rows, terms), load(2, columns, terms).permute((1, 0)))
    kernel = scheduled(value, target)
    found = prepack(kernel, RIGHT, sizes_of(value, (rows, terms), (columns, terms)), target)
    assert [copy.source for copy in found.copies] == [2]
    check(
        kernel,
        found,
        [numbers(rows, columns), numbers(rows, terms), numbers(columns, terms)],
        target,
    )


@pytest.mark.parametrize(("rows", "terms", "columns"), [(64, 1200, 1024), (61, 1201, 1030)])
def test_few_rows(rows: int, terms: int, columns: int) -> None:
    """A panel takes more than half of the second cache: it is copied by blocks of terms."""
    value = matmul(load(1, rows, terms), load(2, terms, columns))
    target = replace(HOST, l2_bytes=256 << 10)
    kernel = scheduled(value, target)
    assert the_copy(kernel, 2).at == (the_reduce(kernel).name, 1)
    found = prepack(kernel, RIGHT, sizes_of(value, (rows, terms), (terms, columns)), target)
    assert len(found.copies) == 1
    check(
        kernel,
        found,
        [numbers(rows, columns), numbers(rows, terms), numbers(terms, columns)],
        target,
    )


@pytest.mark.parametrize(
    ("images", "channels", "filters", "size"), [(2, 32, 32, 14), (1, 24, 40, 9), (3, 20, 33, 16)]
)
def test_filters(images: int, channels: int, filters: int, size: int) -> None:
    shapes = [(images, channels, size, size), (filters, channels, 3, 3)]
    value = convolution(load(1, *shapes[0]), load(2, *shapes[1]))
    kernel = scheduled(value)
    sizes = (*sizes_of(value, shapes[0]), 1 << 30)  # taps are padded: more than twice as much here
    found = prepack(kernel, RIGHT, sizes, HOST)
    assert [copy.source for copy in found.copies] == [2]
    assert found.kernel.slots == (*kernel.slots, dtypes.float32)
    check(kernel, found, [numbers(*value.shape), *(numbers(*shape) for shape in shapes)], HOST)


@pytest.mark.parametrize("target", [HOST, SMALL, replace(HOST, max_threads=1)])
@pytest.mark.parametrize(("images", "size"), [(1, 7), (1, 14), (9, 14)])
def test_the_order_of_loops_for_constant_filters_changes_no_bit(
    images: int, size: int, target: Target
) -> None:
    """Images are outermost where filters are packed beforehand, panels of filters else."""
    shapes = [(images, 16, size, size), (160, 16, 3, 3)]
    value = convolution(load(1, *shapes[0]), load(2, *shapes[1]))
    kernel = lower(store(value), "k")
    own = schedule(kernel, target).kernel
    constant = schedule(kernel, target, RIGHT).kernel
    found = prepack(constant, RIGHT, (*sizes_of(value, shapes[0]), 1 << 30), target)
    assert [copy.source for copy in found.copies] == [2]
    check(own, found, [numbers(*value.shape), *(numbers(*shape) for shape in shapes)], target)
    if images > 1:
        orders = [kernel.roots[0].loops[0].range.name for kernel in (own, constant)]
        assert [order.startswith("i0.0") for order in orders] == [False, True]


def test_a_batch_of_matrices_is_packed_whole() -> None:
    value = products(load(1, 6, 48, 64), load(2, 6, 80, 64).permute((0, 2, 1)))
    kernel = scheduled(value)
    found = prepack(kernel, RIGHT, sizes_of(value, (6, 48, 64), (6, 80, 64)), HOST)
    assert found.copies[0].elements >= 6 * 80 * 64
    check(kernel, found, [numbers(6, 48, 80), numbers(6, 48, 64), numbers(6, 80, 64)], HOST)


def test_chunks_that_read_the_same_panels_share_a_copy() -> None:
    """Where panels are too few for the threads, chunks are panels times blocks of rows."""
    target = replace(HOST, max_threads=16)
    value = matmul(load(1, 512, 64), load(2, 192, 64).permute((1, 0)))
    kernel = scheduled(value, target)
    assert any("*" in loop.range.name for loop in kernel.roots[0].loops)
    found = prepack(kernel, RIGHT, sizes_of(value, (512, 64), (192, 64)), target)
    assert [copy.elements for copy in found.copies] == [192 * 64]
    check(kernel, found, [numbers(512, 192), numbers(512, 64), numbers(192, 64)], target)


def test_narrow_weights_are_copied_as_they_are() -> None:
    right = load(2, 128, 96, dtype=dtypes.int8).permute((1, 0))
    value = matmul(load(1, 64, 96), LazyOp(UnaryOps.CAST, (right,), dtypes.float32))
    kernel = scheduled(value)
    found = prepack(kernel, RIGHT, (64 * 128 * 4, 64 * 96 * 4, 128 * 96), HOST)
    assert [copy.dtype for copy in found.copies] == [dtypes.int8]
    weights = np.random.default_rng(0).integers(-100, 100, (128, 96)).astype(np.int8)
    check(kernel, found, [numbers(64, 128), numbers(64, 96), weights], HOST)


def test_pairs_of_an_intrinsic_are_copied_as_pairs() -> None:
    features = ",".join(sorted({*HOST.features.split(","), *(f"+{n}" for n in DOT.needs)}))
    target = replace(HOST, vector_bytes=64, n_vector_registers=32, features=features)
    left, right = (load(n, *shape, dtype=dtypes.bfloat16) for n, shape in ((1, A), (2, B)))
    kernel = scheduled(matmul(widened(left), widened(right.permute((1, 0)))), target)
    found = prepack(kernel, RIGHT, (26 * 48 * 4, 26 * 15 * 2, 48 * 15 * 2), target)
    assert [copy.dtype for copy in found.copies] == [dtypes.uint32]
    arrays = [numbers(26, 48), *(numbers(*shape).astype(ml_dtypes.bfloat16) for shape in (A, B))]
    check(kernel, found, [array.reshape(-1) for array in arrays], target, interpret)


def test_the_same_copy_has_the_same_name() -> None:
    """Whatever else a kernel does: so that its buffer is made once for all that read it."""
    right = load(2, 128, 96).permute((1, 0))
    plain = matmul(load(1, 64, 96), right)
    doubled = mul(matmul(load(1, 64, 96), right), matmul(load(1, 64, 96), right))
    sizes = (64 * 128 * 4, 64 * 96 * 4, 128 * 96 * 4)
    names = set()
    for value in (plain, mul(plain, plain), doubled):
        found = prepack(scheduled(value), RIGHT, sizes, HOST)
        names.update(copy.kernel.name for copy in found.copies)
    assert len(names) == 1


def test_what_gains_too_little_stays() -> None:
    rows, terms, columns = 4096, 256, 256
    value = matmul(load(1, rows, terms), load(2, terms, columns))
    kernel = scheduled(value)
    assert the_copy(kernel, 2)
    found = prepack(kernel, RIGHT, sizes_of(value, (rows, terms), (terms, columns)), HOST)
    assert (found.kernel, found.copies) == (kernel, ())


def test_only_what_is_constant_is_taken_out() -> None:
    value = matmul(load(1, 64, 96), load(2, 128, 96).permute((1, 0)))
    kernel = scheduled(value)
    sizes = sizes_of(value, (64, 96), (128, 96))
    assert prepack(kernel, frozenset(), sizes, HOST).kernel is kernel
    assert prepack(kernel, frozenset({0, 1}), sizes, HOST).kernel is kernel
    assert prepack(kernel, RIGHT, sizes, replace(HOST, block_threads=32)).kernel is kernel


def test_copies_much_larger_than_their_source_stay() -> None:
    """A window that is copied with its overlap, for example."""
    value = matmul(load(1, 64, 96), load(2, 128, 96).permute((1, 0)))
    kernel = scheduled(value)
    assert prepack(kernel, RIGHT, (1 << 20, 1 << 20, 100 * 96), HOST).kernel is kernel


def test_a_sum_alone_has_no_copies() -> None:
    kernel = scheduled(total(load(2, 64, 64), 1))
    assert prepack(kernel, RIGHT, (256, 0, 1 << 14), HOST).copies == ()
