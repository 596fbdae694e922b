"""Sums that read an operand once, row by row: the panels of columns, and what they fetch ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.kernels import load, matmul, store, total
from tests.programs import HOST, Compiled
from tests.roles import the_output, the_reduce

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.linearizer import linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import LINE_BYTES, PREFETCH_BYTES
from ferrule.codegen.schedules.cpu.gemv import MAX_PANEL_BYTES
from ferrule.codegen.schedules.packed import STEPS_AHEAD
from ferrule.dtype import DType, dtypes
from ferrule.ir.target import Target
from ferrule.ops import LazyOp

TWO = replace(HOST, max_threads=2, l2_bytes=1 << 20)
# A second cache that none of the operands below fits, so that all of them are fetched ahead.
SMALL = replace(TWO, l2_bytes=4 << 10)
NARROW = [
    SMALL,
    replace(SMALL, vector_bytes=32, n_vector_registers=16, max_threads=3),
    replace(SMALL, vector_bytes=16, n_vector_registers=16, max_threads=1),
]


def scheduled(value: LazyOp, target: Target) -> Kernel:
    return schedule(lower(store(value), "k"), target).kernel


def product(rows: int, terms: int, columns: int, dtype: DType = dtypes.float32) -> LazyOp:
    return matmul(load(1, rows, terms, dtype=dtype), load(2, terms, columns, dtype=dtype))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("columns", [300, 768, 1000, 2304, 3072, 4096, 50257])
def test_all_threads_have_as_many_panels(columns: int, threads: int) -> None:
    """With one panel more for one of two threads, three took a third longer than four."""
    root = scheduled(product(1, 768, columns), replace(TWO, max_threads=threads)).roots[0]
    panels, *inner = (loop.range.size.arg for loop in root.loops)
    width = int(np.prod(inner))
    assert (panels - 1) * width < columns <= panels * width
    assert width * 4 <= MAX_PANEL_BYTES
    assert width * 4 % LINE_BYTES == 0
    whole_lines = -(-columns * 4 // LINE_BYTES)
    assert panels % threads == 0 or whole_lines < 8 * panels  # too few for equal shares


@pytest.mark.parametrize(
    ("terms", "columns"), [(4096, 300), (768, 768), (3072, 768), (4096, 2304), (4096, 4096)]
)
def test_rows_that_are_read_later_are_fetched(terms: int, columns: int) -> None:
    """As many whole turns ahead as it takes for memory to answer."""
    kernel = scheduled(product(1, terms, columns), TWO)
    fetching = [(nest, dict(nest.ahead)) for nest in kernel.nests if nest.ahead]
    ((nest, ahead),) = fetching
    *_, computed = (loop for loop in nest.loops if loop.range not in nest.result_axes)
    steps = computed.range.size.arg
    width = int(np.prod([loop.range.size.arg for loop in kernel.roots[0].loops[1:]]))
    turns = ahead[2] // (steps * columns)
    assert ahead == {2: turns * steps * columns}
    assert turns * steps * width * 4 >= PREFETCH_BYTES > (turns - 1) * steps * width * 4


def test_what_the_second_cache_holds_is_not_fetched() -> None:
    assert not any(nest.ahead for nest in scheduled(product(1, 300, 512), TWO).nests)


@pytest.mark.parametrize(("rows", "panels"), [(1, True), (4, True), (5, False)])
def test_few_rows(rows: int, panels: bool) -> None:
    """Sums of more rows are tiles; those read the operand where it is, and the next columns too."""
    kernel = scheduled(product(rows, 4096, 4096), TWO)
    assert list(kernel.nests) == [the_reduce(kernel), the_output(kernel)]
    ahead = dict(the_reduce(kernel).ahead)[2]
    assert (ahead >= 4096) == panels


@pytest.mark.parametrize(("terms", "columns", "fetched"), [(4096, 4096, True), (200, 1024, False)])
def test_a_copy_of_a_panel_fetches_later_steps(terms: int, columns: int, fetched: bool) -> None:
    """Each is in another page, where no processor looks ahead."""
    (copy,) = (n for n in scheduled(product(100, terms, columns), TWO).nests if "pack" in n.name)
    assert copy.ahead == (((2, STEPS_AHEAD * columns),) if fetched else ())


@pytest.mark.parametrize("target", NARROW, ids=["host", "avx2", "sse2"])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(1, 77, 771), (1, 40, 256), (2, 99, 1030), (2, 61, 1500)]
)
def test_products(rows: int, terms: int, columns: int, target: Target) -> None:
    rng = np.random.default_rng(terms)
    left, right = (
        rng.standard_normal(s).astype(np.float32) for s in ((rows, terms), (terms, columns))
    )
    kernel = scheduled(product(rows, terms, columns), target)
    assert any(nest.ahead for nest in kernel.nests)
    out = np.full((rows, columns), np.nan, np.float32)
    Compiled(linearize(kernel), target)([out, left, right])
    np.testing.assert_allclose(out, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(("terms", "columns"), [(45, 259), (33, 512)])
def test_sums_down_columns(terms: int, columns: int, dtype: DType) -> None:
    """Interpreted too, which raises for any element out of range."""
    values = np.random.default_rng(columns).standard_normal((terms, columns)).astype(dtype.np)
    kernel = scheduled(total(load(1, terms, columns, dtype=dtype), 0), SMALL)
    assert any(nest.ahead for nest in kernel.nests)
    for run in (Compiled(linearize(kernel), SMALL), None):
        out = np.full(columns, np.nan, dtype.np)
        if run is None:
            interpret(linearize(kernel), [out, values.reshape(-1)])
        else:
            run([out, values])
        np.testing.assert_allclose(out, values.astype(np.float64).sum(0), rtol=1e-4, atol=1e-5)
