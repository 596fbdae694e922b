"""Element-wise work for blocks of threads: vectors, tails, squares that are transposed."""

import numpy as np
import pytest
from tests.blocks import GRID, run
from tests.kernels import Case, add, exp, load, store
from tests.roles import copies

from ferrule.codegen.interpret import interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import UOp, UOps
from ferrule.dtype import dtypes
from ferrule.ops import BufferOps, LazyOp


def transposed(*shape: int) -> Case:
    return Case("turn", store(load(1, *shape).permute((1, 0))), (shape,), lambda x: x.T)


def accesses(linearizer: Linearizer, op: UOps) -> list[UOp]:
    """The loads, or the stores, of buffers."""
    return [u for u in linearizer.uops if u.op is op and u.src[0].op is UOps.PARAM]


@pytest.mark.parametrize("shape", [(16, 24), (13, 9), (40, 8), (8, 100), (3, 50)])
def test_transposes_of_any_shape(shape: tuple[int, int]) -> None:
    run(transposed(*shape))


def test_a_square_is_transposed_in_shared_memory() -> None:
    linearizer = run(transposed(16, 24))
    (shared,) = [u for u in linearizer.uops if u.op is UOps.SHARED]
    assert shared.arg == (copies(linearizer.scheduled)[0].name, 8 * 9)
    assert sum(u.op is UOps.BARRIER for u in linearizer.uops) == 1
    assert (linearizer.blocks, linearizer.threads) == (2 * 3, 32)


@pytest.mark.parametrize("shape", [(45, 70), (30, 40)])
def test_squares_of_narrow_elements_are_larger(shape: tuple[int, int]) -> None:
    """Their rows are a bank of shared memory apart from full ones."""
    side = 16
    ast = store(load(1, *shape, dtype=dtypes.float16).permute((1, 0)))
    linearizer = Linearizer(ast, GRID).linearize()
    x = np.arange(np.prod(shape)).astype(np.float16)
    out = np.full(x.size, np.nan, np.float16)
    interpret(linearizer.uops, [out, x])
    np.testing.assert_array_equal(out.reshape(shape[::-1]), x.reshape(shape).T)
    (shared,) = [u for u in linearizer.uops if u.op is UOps.SHARED]
    assert shared.arg == (copies(linearizer.scheduled)[0].name, side * (side + 2))
    assert linearizer.blocks == -(-shape[0] // side) * -(-shape[1] // side)


def test_neighbouring_threads_load_and_store_neighbours() -> None:
    linearizer = run(transposed(16, 24))
    for op in (UOps.LOAD, UOps.STORE):
        places = [_places(linearizer, u) for u in accesses(linearizer, op)]
        assert all(place[:8] == list(range(place[0], place[0] + 8)) for place in places)


def _places(linearizer: Linearizer, u: UOp) -> list[int]:
    """The index of an access in each thread of block 0."""
    values: dict[UOp, np.ndarray] = {}
    operations = {"ADD": np.add, "MUL": np.multiply, "IDIV": np.floor_divide, "MOD": np.mod}
    for v in linearizer.uops:
        if v.op is UOps.CONST and dtypes.is_int(v.dtype or dtypes.bool):
            values[v] = np.full(32, v.arg)
        elif v.op is UOps.THREAD:
            values[v] = np.arange(32)
        elif v.op is UOps.START or (v.op is UOps.LOOP and v.src[0] in values):
            values[v] = np.zeros(32, int)
        elif v.op is UOps.CAST and v.src[0] in values:
            values[v] = values[v.src[0]]
        elif v.op is UOps.ALU and v.arg.name in operations and all(s in values for s in v.src):
            values[v] = operations[v.arg.name](*(values[s] for s in v.src))
    return [int(i) for i in values[u.src[1]]]


def test_what_lies_right_already_is_not_staged() -> None:
    ast = store(add(load(1, 30, 20), load(2, 20, 30).permute((1, 0))))
    linearizer = run(Case("add", ast, ((30, 20), (20, 30)), lambda a, b: a + b.T))
    (shared,) = [u for u in linearizer.uops if u.op is UOps.SHARED]
    assert shared.arg[0] == copies(linearizer.scheduled)[0].name


def test_two_transposed_operands_have_a_square_each() -> None:
    turns = [load(i, 20, 30).permute((1, 0)) for i in (1, 2)]
    case = Case("add", store(add(*turns)), ((20, 30), (20, 30)), lambda a, b: (a + b).T)
    assert sum(u.op is UOps.SHARED for u in run(case).uops) == 2


def test_two_results_that_are_transposed_have_squares_of_their_own() -> None:
    """Though each is a nest of its own, and its square the first there."""
    stores = [store(load(2 + i, 16, 24).permute((1, 0)), i) for i in range(2)]
    linearizer = Linearizer(LazyOp(BufferOps.SINK, tuple(stores)), GRID).linearize()
    inputs = [np.arange(16 * 24, dtype=np.float32) * (i + 1) for i in range(2)]
    outs = [np.full(16 * 24, np.nan, np.float32) for _ in range(2)]
    interpret(linearizer.uops, [*outs, *inputs])
    for out, x in zip(outs, inputs, strict=True):
        np.testing.assert_array_equal(out.reshape(24, 16), x.reshape(16, 24).T)
    assert sum(u.op is UOps.SHARED for u in linearizer.uops) == 2


def test_channels_move_last() -> None:
    ast = store(load(1, 2, 9, 3, 5).permute((0, 2, 3, 1)))
    run(Case("nhwc", ast, ((2, 9, 3, 5),), lambda x: x.transpose(0, 2, 3, 1)))


@pytest.mark.parametrize("size", [127, 128, 129, 301, 3])
def test_only_the_last_block_of_a_stream_is_masked(size: int) -> None:
    linearizer = run(Case("exp", store(exp(load(1, size))), ((size,),), np.exp))
    loads = accesses(linearizer, UOps.LOAD)
    assert [u.lanes for u in loads if len(u.src) == 2] == ([4] if size >= 128 else [])


def test_a_broadcast_operand_keeps_vectors() -> None:
    ast = store(add(load(1, 6, 64), load(2, 1, 64).expand((6, 64))))
    linearizer = run(Case("bias", ast, ((6, 64), (1, 64)), np.add))
    assert [u.lanes for u in accesses(linearizer, UOps.LOAD)] == [4, 4]
