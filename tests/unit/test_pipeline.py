"""Copies to shared memory ahead of their use, and their layout there: values, races, banks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product as every
from typing import Any

import numpy as np
import pytest
from tests.clprograms import compile_as_cuda, run_as_opencl
from tests.gpus import ASYNC as GPU
from tests.gpus import nvrtc
from tests.kernels import add, as_multiplied, load, matmul, store, widened
from tests.roles import copies, the_output, the_reduce

from ferrule.codegen.interpret import AccessError, RaceError, interpret
from ferrule.codegen.interpret.memory import Memory
from ferrule.codegen.intrinsics import MMA, MMA_TF32, MatrixIntrinsic
from ferrule.codegen.kernel import BANK_LINE_BYTES, MAX_ACCESS_BYTES, Kernel, KernelError, show
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.schedules.gpu.cost import BlockTile
from ferrule.codegen.schedules.gpu.tile import tile_grid
from ferrule.codegen.uops import UOp, UOps
from ferrule.codegen.wellformed import verify
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import Expr, ExprOp
from ferrule.ir.target import detect_cpu
from ferrule.ops import LazyOp
from ferrule.renderer.base import RenderError
from ferrule.renderer.c.style import cuda_renderer, opencl_renderer

TRANSPOSED = list(every((False, True), repeat=2))
WARPS = BlockTile(4, 4, 8, 8, step=32, matrices=MMA)
THREADS = BlockTile(rows=2, columns=4, row_threads=8, column_threads=8, step=8)


@dataclass(frozen=True)
class Product:
    """`a @ b` of m x k and k x n, either of them stored the other way round."""

    m: int
    n: int
    k: int
    dtype: DType = dtypes.float32
    transposed: tuple[bool, bool] = (False, False)

    @property
    def ast(self) -> LazyOp:
        factors = []
        for slot, shape, transposed in self._operands():
            x = load(slot, *(shape[::-1] if transposed else shape), dtype=self.dtype)
            x = x.permute((1, 0)) if transposed else x
            factors.append(x if self.dtype is dtypes.float32 else widened(x))
        return store(matmul(*factors))

    def _operands(self) -> list[tuple[int, tuple[int, int], bool]]:
        return [
            (1, (self.m, self.k), self.transposed[0]),
            (2, (self.k, self.n), self.transposed[1]),
        ]

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        generator = np.random.default_rng(0)
        return [
            generator.standard_normal(shape).astype(self.dtype.np)
            for _, shape, _ in self._operands()
        ]

    def check(self, run: Any, by: MatrixIntrinsic = MMA) -> None:
        """`run` changes flat buffers as the kernel does."""
        inputs = self.inputs()
        pairs = zip(inputs, self.transposed, strict=True)
        stored = [np.ascontiguousarray(x.T if t else x).ravel() for x, t in pairs]
        found = run([np.full(self.m * self.n, np.nan, np.float32), *stored])
        a, b = (as_multiplied(x, by) for x in inputs)
        np.testing.assert_allclose(found.reshape(self.m, self.n), a @ b, rtol=1e-5, atol=1e-4)


def tiled(product: Product, tile: BlockTile) -> Linearizer:
    """A kernel with a tile of its own."""
    plan = Plan(lower(product.ast, "tiled"), GPU)
    plan.collapse()
    assert tile_grid(plan, the_output(plan.kernel).name, tile)
    return Linearizer(product.ast, GPU, plan.opts, "tiled").linearize()


def interpreted(uops: Sequence[UOp]) -> Any:
    def run(buffers: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        interpret(uops, buffers)
        return buffers[0]

    return run


def count(uops: Sequence[UOp], op: UOps) -> int:
    return sum(u.op is op for u in uops)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline_depth", [2, 3, 4])
@pytest.mark.parametrize("transposed", TRANSPOSED, ids=str)
def test_tiles_of_threads(transposed: tuple[bool, bool], pipeline_depth: int) -> None:
    product = Product(19, 37, 43, transposed=transposed)
    uops = tiled(product, replace(THREADS, pipeline_depth=pipeline_depth)).uops
    product.check(interpreted(uops))
    assert count(uops, UOps.COMMIT) == pipeline_depth
    # What a step copies is on its way until the step that reads it: one barrier for each.
    assert count(uops, UOps.BARRIER) == 1
    waits = [u.arg for u in uops if u.op is UOps.WAIT]
    assert waits == [pipeline_depth - 2, 0]


@pytest.mark.parametrize("pipeline_depth", [1, 2, 3])
@pytest.mark.parametrize("transposed", TRANSPOSED, ids=str)
def test_tiles_of_warps(transposed: tuple[bool, bool], pipeline_depth: int) -> None:
    """No operand is transposed on the way: what the warps load are rows or columns of it."""
    product = Product(70, 36, 74, dtypes.float16, transposed)
    uops = tiled(product, replace(WARPS, pipeline_depth=pipeline_depth)).uops
    product.check(interpreted(uops))
    # Two rows of matrices and one pair of columns for four products.
    matrices = [u.arg for u in uops if u.op is UOps.MATRICES]
    assert sorted(matrices) == sorted([transposed[0]] * 2 + [not transposed[1]])
    assert count(uops, UOps.MMA) == 4
    assert (count(uops, UOps.COPY) > 0) == (pipeline_depth > 1)
    shared = {u for u in uops if u.op is UOps.SHARED}
    assert not any(u.op is UOps.LOAD and u.src[0] in shared for u in uops)


@pytest.mark.parametrize("terms", [2, 8, 9, 16, 31])
def test_sums_that_are_shorter_than_what_there_is_memory_for(terms: int) -> None:
    product = Product(17, 20, terms)
    product.check(interpreted(tiled(product, replace(THREADS, pipeline_depth=4)).uops))


@pytest.mark.parametrize("pipeline_depth", [2, 3])
@pytest.mark.parametrize(
    ("product", "tile", "copies"),
    [
        (Product(33, 35, 101, dtypes.bfloat16), WARPS, 0),  # nothing copies two bytes by itself
        (Product(33, 35, 102, dtypes.float16), WARPS, 8),  # one operand has pairs
        (Product(19, 37, 43, dtypes.float16), THREADS, 0),  # both are widened on the way
        (Product(19, 36, 44, dtypes.float16, (True, False)), THREADS, 0),
    ],
    ids=["odd", "odd and even", "widened", "transposed"],
)
def test_what_cannot_go_by_itself_is_in_registers_while_the_threads_multiply(
    product: Product, tile: BlockTile, copies: int, pipeline_depth: int
) -> None:
    uops = tiled(product, replace(tile, pipeline_depth=pipeline_depth)).uops
    product.check(interpreted(uops))
    assert count(uops, UOps.COPY) == copies * pipeline_depth
    assert count(uops, UOps.BARRIER) == 1
    body = uops[next(i for i, u in enumerate(uops) if u.op is UOps.BARRIER) :]
    loaded = [i for i, u in enumerate(body) if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM]
    stored = [i for i, u in enumerate(body) if u.op is UOps.STORE and u.src[0].op is UOps.SHARED]
    multiply = (UOps.MMA, UOps.MATRICES) if tile.matrices else (UOps.SET,)
    multiplied = [i for i, u in enumerate(body) if u.op in multiply]
    # Behind the loop there are no products; what is stored to the result is no shared memory.
    assert max(loaded) < multiplied[0]
    assert multiplied[-1] < min(stored)


def test_the_same_in_opencl() -> None:
    for product, tile in (
        (Product(19, 37, 43, transposed=(True, False)), replace(THREADS, pipeline_depth=3)),
        (Product(19, 36, 44, transposed=(False, True)), replace(THREADS, pipeline_depth=2)),
    ):
        uops = tiled(product, tile).uops
        product.check(lambda buffers, uops=uops: run_as_opencl(uops, buffers)[0])


@pytest.mark.parametrize("op", [UOps.BARRIER, UOps.WAIT])
@pytest.mark.parametrize(
    ("product", "tile"),
    [
        (Product(19, 37, 43), THREADS),
        (Product(40, 36, 74, dtypes.float16), WARPS),
        (Product(40, 35, 74, dtypes.float16), WARPS),
    ],
    ids=["threads", "warps", "registers"],
)
def test_without_waiting_it_is_a_race(product: Product, tile: BlockTile, op: UOps) -> None:
    uops = tiled(product, replace(tile, pipeline_depth=3)).uops
    waits = next(u for u in uops if u.op is op)
    with pytest.raises((RaceError, AccessError)):
        product.check(interpreted([u for u in uops if u is not waits]))


def test_waiting_for_too_few_is_found() -> None:
    product = Product(19, 37, 43)
    uops = tiled(product, replace(THREADS, pipeline_depth=3)).uops
    later = {u: UOp(UOps.WAIT, arg=u.arg + 1) for u in uops if u.op is UOps.WAIT and u.arg}
    assert later
    with pytest.raises(AccessError, match="never written"):
        product.check(interpreted([later.get(u, u) for u in uops]))


# -- banks of shared memory ------------------------------------------------------------------------

BANK_BYTES = 4
Access = tuple[str, str, np.ndarray[Any, Any]]


@contextmanager
def recorded() -> Iterator[list[Access]]:
    """What all threads do to memory: (load, store or copy; where; an index for thread and lane)."""
    found: list[Access] = []
    chosen = Memory.chosen

    def record(self: Any, index: Any, mask: Any, what: str, shape: tuple[int, int]) -> Any:
        every_lane = index if index.shape[1] == shape[1] else index + np.arange(shape[1])
        found.append((what, self.name, np.broadcast_to(every_lane, shape)))
        return chosen(self, index, mask, what, shape)

    Memory.chosen = record  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Memory.chosen = chosen  # type: ignore[method-assign]


def turns(index: np.ndarray[Any, Any], itemsize: int) -> tuple[int, int]:
    """How often the banks have their turn for an access of a warp, and how often they have to.

    A thread takes up to 16 bytes at a time, and so many threads are served at once that they take
    all that the banks give.
    """
    lanes = min(index.shape[1], MAX_ACCESS_BYTES // itemsize)
    together = min(32, BANK_LINE_BYTES // (lanes * itemsize))
    real = least = 0
    for part in range(0, index.shape[1], lanes):
        for first in range(0, len(index), together):
            some = index[first : first + together, part : part + lanes] * itemsize
            words = np.unique(some // BANK_BYTES)
            banks = np.bincount(words % (BANK_LINE_BYTES // BANK_BYTES))
            real += banks.max()
            least += -(-len(words) * BANK_BYTES // BANK_LINE_BYTES)
    return int(real), least


def bank_turns(product: Product, tile: BlockTile) -> dict[str, tuple[int, int]]:
    """The turns of loads, stores and copies of a block, and the least that these could take."""
    uops = tiled(product, tile).uops
    totals: dict[str, tuple[int, int]] = {}
    with recorded() as found:
        product.check(interpreted(uops), tile.matrices or MMA)
    for what, name, index in found:
        if name.startswith("buffer") or len(index) < 32:
            continue
        for warp in range(0, len(index), 32):
            real, least = turns(index[warp : warp + 32], product.dtype.itemsize)
            before = totals.get(what, (0, 0))
            totals[what] = (before[0] + real, before[1] + least)
    return totals


@pytest.mark.parametrize("step", [16, 32, 64])
@pytest.mark.parametrize("pipeline_depth", [1, 2])
@pytest.mark.parametrize("transposed", TRANSPOSED, ids=str)
@pytest.mark.parametrize("by", [MMA, MMA_TF32], ids=lambda by: by.name)
def test_warps_take_turns_at_no_bank(
    by: MatrixIntrinsic, transposed: tuple[bool, bool], pipeline_depth: int, step: int
) -> None:
    tile = BlockTile(4, 8, 16, 8, step, matrices=by, pipeline_depth=pipeline_depth)
    found = bank_turns(Product(64, 64, 2 * step, by.sources[0], transposed), tile)
    assert found.keys() == {"load", "copy" if pipeline_depth > 1 else "store"}
    for what, (real, least) in found.items():
        assert real == least, what


@pytest.mark.parametrize("transposed", TRANSPOSED, ids=str)
def test_threads_take_turns_at_no_bank(transposed: tuple[bool, bool]) -> None:
    tile = BlockTile(8, 8, 16, 16, step=16, pipeline_depth=2)
    found = bank_turns(Product(128, 128, 16, transposed=transposed), tile)
    assert found.keys() == {"load", "copy"}
    for what, (real, least) in found.items():
        assert real == least, what


def test_banks_have_turns_where_rows_are_as_long_as_all_of_them() -> None:
    """The count itself: a column of a matrix without padding, and with it."""
    rows = np.arange(32)[:, None]
    assert turns(rows * 32, 4) == (32, 1)
    assert turns(rows * 33, 4) == (1, 1)
    assert turns(rows * 64 + np.arange(8), 2) == (32, 4)


# -- the primitives --------------------------------------------------------------------------------


def planned(terms: int = 32, ast: LazyOp | None = None) -> Plan:
    """The schedule of a small product, in the making."""
    return Plan(lower(Product(4, 5, terms).ast if ast is None else ast, "k"), GPU)


def stage(plan: Plan, slot: int = 1, copy: str = "a", *, rows: bool = False) -> list[Expr]:
    """Copy an operand for a part of the sum; with `rows`, for all rows and terms."""
    out, total = the_output(plan.kernel).name, the_reduce(plan.kernel).name
    (e,) = (e for e in loads(the_reduce(plan.kernel).computes[0].value) if e.arg == slot)
    if rows:
        return plan.stage(total, e, out, 0, (plan.loops(out)[0], *plan.loops(total)), copy)
    return plan.stage(total, e, total, 1, plan.loops(total)[1:], copy)


def split_sum(plan: Plan, factor: int, *tail: str) -> Expr:
    """The loop over parts of the sum."""
    total = the_reduce(plan.kernel)
    return plan.split(total.name, total.loops[0].range, factor, *tail)[0]


def staged() -> Plan:
    plan = planned()
    split_sum(plan, 8, "mask")
    stage(plan)
    return plan


def test_opts_go_to_json_and_back() -> None:
    opts = tiled(Product(40, 36, 74, dtypes.float16), replace(WARPS, pipeline_depth=3)).opts
    assert {"pipeline", "swizzle"} <= {opt.primitive for opt in opts}
    assert tuple(Opt.from_json(opt.to_json()) for opt in opts) == opts


def test_a_kernel_says_the_depth_of_a_pipeline() -> None:
    plan = staged()
    plan.do("pipeline", "a", 3)
    assert "# pipeline of depth 3" in show(plan.kernel)


def _copied_for_all() -> Plan:
    plan = planned()
    stage(plan, rows=True)
    return plan


def _copied_ahead_by_one() -> Plan:
    plan = staged()
    stage(plan, 2, "b")
    plan.do("pipeline", "a", 2)
    return plan


def _copied_in_peeled_parts() -> Plan:
    plan = planned()
    split_sum(plan, 7, "peel")
    stage(plan)
    return plan


def _output(kernel: Kernel) -> str:
    return the_output(kernel).name


def _sum(kernel: Kernel) -> str:
    return the_reduce(kernel).name


def _copy(kernel: Kernel) -> str:
    return copies(kernel)[0].name  # the last one that was made


@pytest.mark.parametrize(
    ("plan", "nest", "pipeline_depth", "problem"),
    [
        (staged, _copy, 1, "there are two at least"),
        (planned, _output, 2, "it hangs in no loop"),
        (planned, _sum, 2, "it stores, combines or overwrites values"),
        (_copied_for_all, _copy, 2, "it hangs in no loop"),
        (_copied_ahead_by_one, _copy, 3, "another nest at its place has another pipeline depth"),
        (_copied_in_peeled_parts, _copy, 2, r".* is no plain loop"),
    ],
)
def test_what_cannot_be_made_ahead(
    plan: Callable[[], Plan], nest: Callable[[Kernel], str], pipeline_depth: int, problem: str
) -> None:
    made = plan()
    with pytest.raises(ScheduleError, match=rf"pipeline\(\w+, \d\) in kernel k: {problem}"):
        made.do("pipeline", nest(made.kernel), pipeline_depth)


def test_what_the_kernel_stores_to_is_not_copied_ahead() -> None:
    out = load(0, 4, 5)
    plan = planned(ast=store(add(out, matmul(load(1, 4, 32), load(2, 32, 5)))))
    root = the_output(plan.kernel)
    (e,) = (e for e in root.nodes if e.op is ExprOp.LOAD)
    plan.stage(root.name, e, root.name, 1, root.loop_ranges[1:], "a")
    with pytest.raises(ScheduleError, match="what it is made of is computed in the kernel"):
        plan.do("pipeline", "a", 2)


def test_a_loop_that_is_shared_out_later_is_found() -> None:
    plan = staged()
    plan.do("pipeline", "a", 2)
    verify(plan.kernel)
    total = the_reduce(plan.kernel)
    parts = total.loops[0].range
    bound = Opt("bind", (total.name, parts.name))
    with pytest.raises(
        KernelError, match=rf"a has a pipeline of depth 2, but {parts} is no plain loop"
    ):
        apply_opts(plan.kernel, [bound])


def swizzled(plan: Plan, factor: int) -> list[Expr]:
    """A copy of rows whose parts are swizzled; its loops."""
    split_sum(plan, factor)
    loops = stage(plan, rows=True)
    plan.do("swizzle", "a", loops[1])
    return loops


def test_rows_that_do_not_fill_lines_are_not_swizzled() -> None:
    plan = planned(24)
    with pytest.raises(ScheduleError, match=r"steps of \[24\] bytes are no pieces of 16"):
        swizzled(plan, 6)


def test_what_is_swizzled_is_not_padded() -> None:
    plan = planned()
    rows, *_ = swizzled(plan, 8)
    with pytest.raises(ScheduleError, match="or that is swizzled"):
        plan.do("pad", "a", rows, 4)


def test_a_swizzled_copy_has_the_same_values() -> None:
    product = Product(5, 6, 64)
    plan = planned(ast=product.ast)
    swizzled(plan, 16)
    uops = Linearizer(product.ast, detect_cpu(), plan.opts).linearize().uops
    product.check(interpreted(uops))


# -- what compilers make of it ---------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("-DFERRULE_UNALIGNED",)], ids=["aligned", "unaligned"])
def test_instructions_of_a_gpu(options: tuple[str, ...]) -> None:
    product = Product(64, 64, 64, dtypes.bfloat16, (True, False))
    uops = tiled(product, replace(WARPS, pipeline_depth=3)).uops
    text = compile_as_cuda(uops, "compute_80", options).decode()
    assert ("cp.async.cg.shared.global" in text) == (not options)
    assert "cp.async.wait_group 1;" in text
    assert "cp.async.wait_group 0;" in text
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") >= 3
    plain = compile_as_cuda(uops, "compute_75", options).decode()
    assert "cp.async" not in plain
    assert "ldmatrix" not in plain


def test_memory_that_a_launch_asks_for() -> None:
    target = replace(GPU, shared_bytes=96 << 10, static_shared_bytes=48 << 10)
    plan = Plan(lower(Product(64, 64, 64).ast, "tiled"), target)
    plan.collapse()
    assert tile_grid(
        plan, the_output(plan.kernel).name, BlockTile(4, 4, 16, 16, step=64, pipeline_depth=2)
    )
    linearizer = Linearizer(Product(64, 64, 64).ast, target, plan.opts, "tiled").linearize()
    arrays = [u.arg[1] * 4 for u in linearizer.uops if u.op is UOps.SHARED]
    assert linearizer.shared_bytes == sum(arrays) > 48 << 10
    text = cuda_renderer(target).render("k", linearizer.uops)
    assert "extern __shared__ __align__(16) u8 shared[];" in text
    assert f"(float *)(shared + {arrays[0]});" in text
    assert opencl_renderer(target).render("k", linearizer.uops).count("__local __attr") == 2
    nvrtc().build(text, "sm_80", ())
    small = tiled(Product(64, 64, 64), THREADS)
    assert small.shared_bytes == 0
    assert "extern __shared__" not in cuda_renderer(GPU).render("k", small.uops)
    with pytest.raises(RenderError, match="bytes in all are more than the 49152 that a block"):
        cuda_renderer(GPU).render("k", linearizer.uops)


def test_blocks_that_shared_memory_has_room_for() -> None:
    """Only where that, or how many there are, is what limits them is the compiler told."""
    many = replace(GPU, static_shared_bytes=48 << 10, shared_bytes=96 << 10, l1_bytes=228 << 10)
    target = replace(many, max_threads=1)
    uops = tiled(Product(128, 128, 64), THREADS).uops
    used = sum(u.arg[1] * 4 for u in uops if u.op is UOps.SHARED)
    room = target.l1_bytes // (used + 1024)
    kept = sum(u.lanes for u in uops if u.op is UOps.REG)
    assert room > 65536 // (64 * (64 + kept))
    assert "__launch_bounds__(64) " in cuda_renderer(target).render("k", uops)
    few = replace(target, l1_bytes=3 * (used + 1024))
    assert "__launch_bounds__(64, 3) " in cuda_renderer(few).render("k", uops)
    assert "(64, 1, 1)" in opencl_renderer(few).render("k", uops)
    unknown = replace(few, static_shared_bytes=None)
    assert "__launch_bounds__(64) " in cuda_renderer(unknown).render("k", uops)
    assert "__launch_bounds__(64, 1) " in cuda_renderer(many).render("k", uops)
    too_few = replace(target, l1_bytes=used)
    assert "__launch_bounds__(64) " in cuda_renderer(too_few).render("k", uops)


def test_elements_that_are_transposed_are_copied_one_by_one() -> None:
    uops = tiled(Product(64, 64, 64), replace(THREADS, pipeline_depth=2)).uops
    text = compile_as_cuda(uops, "compute_80").decode()
    assert "cp.async.ca.shared.global [%r" in text.replace("  ", " ")
