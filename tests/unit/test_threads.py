"""Kernels for devices with blocks of threads, in the interpreter: values, races, barriers."""

import numpy as np
import pytest
from tests.blocks import GRID, run
from tests.kernels import CASES, Case, load, make_inputs, softmax, store, total
from tests.roles import reduces, the_output, the_reduce

from ferrule.codegen.interpret import AccessError, InterpretError, RaceError, interpret
from ferrule.codegen.kernel import KernelError
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.search import reassociates
from ferrule.codegen.uops import UOp, UOps
from ferrule.dtype import dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ops import BinaryOps, LazyOp, ReduceOps, UnaryOps

I64 = dtypes.int64
F32 = dtypes.float32
# Many blocks take long.
LONG = ("long", "matmul_transposed", "causal_attention", "dot_products")
SMALL = [case for case in CASES if case.name not in LONG]
PRELUDE = {UOps.CONST, UOps.START, UOps.STOP, UOps.THREAD, UOps.EXTENT, UOps.IOTA}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_kernels_of_blocks(case: Case) -> None:
    run(case)


def test_a_stream_has_a_vector_for_each_thread() -> None:
    ast = store(LazyOp(BinaryOps.ADD, (load(1, 6, 64), load(2, 6, 64))))
    linearizer = run(Case("add", ast, ((6, 64), (6, 64)), np.add))
    assert (linearizer.blocks, linearizer.threads) == (3, 32)
    accesses = [u for u in linearizer.uops if u.op in (UOps.LOAD, UOps.STORE)]
    assert [u.arg for u in accesses] == [4, 4, 4]
    assert all(u.dtype is not I64 or u.op in PRELUDE for u in linearizer.uops)


def test_rows_are_combined_across_threads() -> None:
    case = Case("sum", store(total(load(1, 3, 200), 1)), ((3, 200),), lambda x: x.sum(1))
    linearizer = run(case)
    assert [u.arg for u in linearizer.uops if u.op is UOps.ACROSS] == [(ExprOp.ADD, 32, 1)]
    assert linearizer.blocks == 3


def test_maxima_are_combined_with_their_own_operation() -> None:
    ast = store(LazyOp(ReduceOps.MAX, (load(1, 3, 70),), (3, 1)))
    run(Case("max", ast, ((3, 70),), lambda x: x.max(1)))


def test_threads_of_a_scatter_have_places_of_their_own() -> None:
    index = load(2, 6, dtype=dtypes.int32)
    ast = store(LazyOp(ReduceOps.SCATTER, (load(1, 6), index), (0, 4)))
    linearizer = Linearizer(ast, GRID).linearize()
    assert (linearizer.blocks, linearizer.threads) == (1, 4)
    out = np.zeros(4, np.float32)
    values = np.arange(6, dtype=np.float32)
    interpret(linearizer.uops, [out, values, np.array([1, 1, 3, 0, 1, 3], np.int32)])
    assert out.tolist() == [3, 5, 0, 7]


MATMUL = next(case for case in CASES if case.name == "matmul")


def tiled() -> list[Opt]:
    """A block computes 4 x 8 results; its threads share tiles of both operands."""
    plan = Plan(lower(MATMUL.ast, "matmul"), GRID)
    out, total = the_output(plan.kernel).name, the_reduce(plan.kernel).name
    (rows, columns), (terms,) = plan.loops(out), plan.loops(total)
    row_tiles, row = plan.split(out, rows, 4, "mask")
    column_tiles, column = plan.split(out, columns, 8, "mask")
    plan.do("reorder", out, (row_tiles, column_tiles, row, column))
    plan.do("bind", out, row)
    plan.do("bind", out, column)
    plan.do("compute_at", total, 2)
    parts, term = plan.split(total, terms, 8, "mask")
    row_here, column_here = plan.copies_of((row, column), total)
    plan.do("reorder", total, (parts, row_here, column_here, term))
    found = loads(the_reduce(plan.kernel).computes[0].value)
    left, right = sorted(found, key=lambda e: int(e.arg))
    for r in plan.stage(total, left, total, 1, (row_here, term), "a"):
        plan.do("bind", "a", r)
    several, near = plan.stage(total, right, total, 1, (term, column_here), "b")
    plan.do("bind", "b", plan.split("b", several, 4)[1])
    plan.do("bind", "b", near)
    plan.do("bind", out, plan.fuse(out, row_tiles), "block")
    return plan.opts


def test_tiles_in_shared_memory() -> None:
    linearizer = run(MATMUL, tiled())
    shared = {u.arg for u in linearizer.uops if u.op is UOps.SHARED}
    assert shared == {("a", 32), ("b", 64)}
    assert sum(u.op is UOps.BARRIER for u in linearizer.uops) == 2
    assert (linearizer.blocks, linearizer.threads) == (4 * 9, 32)


def test_without_its_barriers_a_tile_is_a_race() -> None:
    uops = Linearizer(MATMUL.ast, GRID, tiled()).linearize().uops
    inputs = [i.ravel() for i in make_inputs(MATMUL)]
    for barrier in [u for u in uops if u.op is UOps.BARRIER]:
        without = [u for u in uops if u is not barrier]
        with pytest.raises((RaceError, AccessError)):
            interpret(without, [np.zeros(13 * 70, np.float32), *inputs])


def test_threads_must_divide_those_of_the_block() -> None:
    ast = store(softmax(load(1, 3, 200), 1))
    plan = Plan(lower(ast, "softmax"), GRID)
    for nest, threads in zip(reduces(plan.kernel), (32, 5), strict=True):
        _, thread = plan.split(nest.name, nest.loops[0].range, threads, "mask")
        plan.do("bind", nest.name, thread)
    with pytest.raises(KernelError, match="do not divide the 32"):
        Linearizer(ast, GRID, plan.opts).linearize()


def test_bind_names_the_axes_there_are() -> None:
    with pytest.raises(ScheduleError, match="the axis is thread or block"):
        Linearizer(store(load(1, 4)), GRID, [Opt("bind", ("out0", "i0.0", "warp"))])


def _program(*body: UOp, threads: int = 4) -> list[UOp]:
    one = UOp(UOps.CONST, I64, arg=1)
    return [one, UOp(UOps.EXTENT, src=(one,), arg=threads), *body]


def test_two_threads_that_store_to_one_place() -> None:
    zero = UOp(UOps.CONST, I64, arg=0)
    value = UOp(UOps.CONST, F32, arg=1.0)
    buffer = UOp(UOps.PARAM, F32, arg=0)
    store_ = UOp(UOps.STORE, src=(buffer, zero, value))
    with pytest.raises(RaceError, match=r"thread 1 writes buffer 0\[0\]"):
        interpret(_program(zero, value, buffer, store_), [np.zeros(1, np.float32)])


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    one = UOp(UOps.CONST, I64, arg=2)
    thread = UOp(UOps.THREAD, I64)
    less = UOp(UOps.ALU, dtypes.bool, 1, (thread, one), ExprOp.CMPLT)
    branch = UOp(UOps.IF, src=(less,))
    barrier = UOp(UOps.BARRIER)
    end = UOp(UOps.ENDIF, src=(branch,))
    with pytest.raises(InterpretError, match=r"different places: \['BARRIER', 'the end'\]"):
        interpret(_program(one, thread, less, branch, barrier, end), [])


def test_groups_of_threads_are_combined_apart() -> None:
    thread = UOp(UOps.THREAD, I64)
    pairs = UOp(UOps.ACROSS, I64, 1, (thread,), (ExprOp.ADD, 2, 1))
    buffer = UOp(UOps.PARAM, I64, arg=0)
    out = np.zeros(4, np.int64)
    interpret(_program(thread, pairs, buffer, UOp(UOps.STORE, src=(buffer, thread, pairs))), [out])
    assert out.tolist() == [1, 1, 5, 5]
    apart = UOp(UOps.ACROSS, I64, 1, (thread,), (ExprOp.ADD, 2, 2))
    interpret(_program(thread, apart, buffer, UOp(UOps.STORE, src=(buffer, thread, apart))), [out])
    assert out.tolist() == [2, 4, 2, 4]


def test_indices_that_do_not_fit_int32_are_int64() -> None:
    """A kernel of 2**32 elements is not run here."""
    ast = store(LazyOp(UnaryOps.NEG, (load(1, 1 << 16, 1 << 16),)))
    uops = Linearizer(ast, GRID).linearize().uops
    (access,) = [u for u in uops if u.op is UOps.LOAD]
    assert access.src[1].dtype is I64


def test_vectors_say_how_far_their_addresses_are_aligned() -> None:
    """Rows of 6 elements begin at even places only; those of 4 at multiples of 4."""
    part = load(1, 5, 6).shrink(((0, 5), (0, 4)))
    plan = Plan(lower(store(part), "part"), GRID)
    out = the_output(plan.kernel)
    plan.do("vectorize", out.name, out.loops[1].range)
    uops = Linearizer(store(part), GRID, plan.opts).linearize().uops
    assert [u.arg for u in uops if u.op in (UOps.LOAD, UOps.STORE)] == [2, 4]


def test_threads_along_a_sum_change_the_order_of_its_terms() -> None:
    kernel = Linearizer(store(total(load(1, 32, 64), 1)), GRID, []).kernel
    out, summed, plan = the_output(kernel), the_reduce(kernel), Plan(kernel, GRID)
    _, half = plan.split(summed.name, summed.loops[0].range, 32)
    plan.do("bind", summed.name, half)
    assert reassociates(kernel, plan.opts)
    assert not reassociates(kernel, [Opt("bind", (out.name, out.loops[0].range.name))])


def test_two_blocks_that_store_to_one_place() -> None:
    two, zero = (UOp(UOps.CONST, I64, arg=n) for n in (2, 0))
    extent_ = UOp(UOps.EXTENT, src=(two,), arg=4)
    thread = UOp(UOps.THREAD, I64)
    buffer = UOp(UOps.PARAM, I64, arg=0)
    store_ = UOp(UOps.STORE, src=(buffer, thread, thread))
    with pytest.raises(RaceError, match=r"writes buffer 0 \(as a block\)"):
        interpret([two, zero, extent_, thread, buffer, store_], [np.zeros(4, np.int64)])
