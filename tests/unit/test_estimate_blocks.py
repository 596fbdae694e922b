"""The estimate for thread blocks: what warps access together, and what kernels take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpus import nvidia
from tests.kernels import load, matmul, store, total
from tests.planning import forget

from ferrule import Tensor
from ferrule.codegen.analysis.index_values import index_values
from ferrule.codegen.block_accesses import Access, holding_part, mean_iterations
from ferrule.codegen.estimate_blocks import BlockWork, block_cycles, least_block_cycles
from ferrule.codegen.kernel import Kernel, Kind, Loop
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.opt import Opt
from ferrule.dtype import dtypes
from ferrule.fusion import make_schedule
from ferrule.ir.expr import INDEX, TRUE, Expr, cast, const, less, range_
from ferrule.ir.expr import load as element
from ferrule.ops import BufferOps, LazyOp

H100 = nvidia("sm_90a")
THREAD, ROW = range_("thread", 32), range_("row", 64)
LANES = {THREAD: np.arange(32)}


@pytest.mark.parametrize(
    "index",
    [
        THREAD * 3 + 7,
        THREAD // 4 * 100 + THREAD % 4 + ROW,
        (THREAD * 5 + 3) // 7 % 6,
        (THREAD * 2 + ROW * 9) // 4,
    ],
    ids=str,
)
def test_values_are_those_of_each_iteration(index: Expr) -> None:
    expected = [index.substitute({THREAD: const(i), ROW: const(0)}).arg for i in range(32)]
    assert index_values(index, LANES).tolist() == expected


def access(index: Expr, slot: int | None, width: int = 1) -> Access:
    return Access(
        slot,
        index,
        itemsize=4,
        is_store=False,
        loops=[Loop(ROW), Loop(THREAD, Kind.THREAD)],
        lane_digits=LANES,
        sector=32,
        depth=2,
        width=width,
        beside=1,
        times=64,
        chain=1,
    )


@pytest.mark.parametrize(
    ("index", "width", "lines", "banks"),
    [
        (THREAD + ROW * 32, 1, 1, 1),
        (THREAD * 4, 4, 4, 4),  # 16 bytes each
        (THREAD * 32, 1, 32, 32),  # a column
        (THREAD * 33, 1, 32, 1),  # of rows that are padded
        (THREAD * 2, 1, 2, 2),
        (ROW, 1, 1, 1),  # one element for all
    ],
    ids=str,
)
def test_lines_and_banks(index: Expr, width: int, lines: int, banks: int) -> None:
    assert access(index, 0, width).turns == lines
    assert access(index, None, width).turns == banks


def test_sectors_that_a_block_touches() -> None:
    assert access(ROW * 32 + THREAD, 0).of_block == 64 * 32 * 4
    assert access(ROW * 1000 + THREAD * 16, 0).of_block == 64 * 32 * 32  # a sector for each element
    assert access((ROW * 32 + THREAD) // 2, 0).of_block <= 64 * 16 * 32


def test_conditions_of_loaded_values_hold_for_some_warps() -> None:
    place = cast(element(1, dtypes.int32, ROW), INDEX)
    loops = [Loop(ROW), Loop(THREAD, Kind.THREAD)]
    assert holding_part(less(place % 64, const(8)), loops, LANES) == pytest.approx(1 / 8, rel=0.5)
    mine = less((place - THREAD) % 64, const(1))  # each thread looks for another place
    assert holding_part(mine, loops, LANES) == pytest.approx(1 / 2, rel=0.3)
    assert holding_part(TRUE, loops, LANES) == 1


def test_loops_that_end_early_count_by_the_mean() -> None:
    block = range_("block", 64)
    assert mean_iterations(Loop(ROW, end=block + 1)) == pytest.approx(32, rel=0.1)
    assert mean_iterations(Loop(ROW, start=block)) == pytest.approx(32, rel=0.1)


# -- kernels ---------------------------------------------------------------------------------------


def scheduled(ast: LazyOp) -> Kernel:
    return Linearizer(ast, H100).scheduled


def test_no_kernel_takes_less_than_its_bytes() -> None:
    for ast in (
        store(total(load(1, 4096, 4096), 1)),
        store(load(1, 4096, 4096).permute((1, 0))),
        store(matmul(load(1, 512, 512), load(2, 512, 512))),
    ):
        made = Linearizer(ast, H100)
        assert block_cycles(made.scheduled, H100) >= 0.999 * least_block_cycles(made.kernel, H100)


def test_a_transposition_in_squares_takes_less() -> None:
    ast = store(load(1, 4096, 4096).permute((1, 0)))
    made = Linearizer(ast, H100)
    (root,) = made.kernel.roots
    i, j = (loop.range.name for loop in root.loops)
    flat = f"{i}*{j}"
    opts = [
        Opt("fuse", (root.name, i)),
        Opt("split", (root.name, flat, 256)),
        Opt("bind", (root.name, f"{flat}.i")),
        Opt("parallel", (root.name, f"{flat}.o")),
    ]
    plain = Linearizer(ast, H100, opts).scheduled
    assert block_cycles(plain, H100) > 2 * block_cycles(made.scheduled, H100)


def test_copies_ahead_hide_the_latency_of_memory() -> None:
    kernel = scheduled(store(matmul(load(1, 256, 4096), load(2, 4096, 256))))
    nests = tuple(
        replace(n, computes=tuple(replace(c, pipeline_depth=1) for c in n.computes))
        for n in kernel.nests
    )
    assert any(c.pipeline_depth > 1 for n in kernel.nests for c in n.computes)
    waits = replace(kernel, nests=nests)
    assert block_cycles(waits, H100) > 1.2 * block_cycles(kernel, H100)


def test_parts_share_out_what_few_blocks_do() -> None:
    one = BlockWork(scheduled(store(total(load(1, 1 << 16, 32), 0))), H100)
    many = BlockWork(scheduled(store(total(load(1, 4096, 4096), 1))), H100)
    assert one.estimate(16).busiest < one.estimate().busiest / 4
    assert many.estimate(16).cycles >= 0.99 * many.estimate().cycles


def test_an_index_may_be_computed_of_floats() -> None:
    """As the places of a quantile are."""
    forget()
    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0]).realize()
    for item in make_schedule([x.nanquantile([0]).lazydata]).items:
        if isinstance(item.ast.op, BufferOps):
            assert Linearizer(item.ast, H100).linearize().uops
