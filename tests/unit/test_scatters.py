"""Scatters on processors: threads share rows that have places of their own."""

from dataclasses import replace

import numpy as np
import pytest
from tests.kernels import load, store
from tests.programs import HOST

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.schedules.cpu import scatters
from ferrule.dtype import dtypes
from ferrule.ops import LazyOp, ReduceOps

TARGET = replace(HOST, vector_bytes=32, max_threads=2)


def scatter(shape: tuple[int, ...], axis: int, size: int, *, in_place: bool, whole: bool) -> LazyOp:
    """Elements added along an axis, to zeros or to what is there; with a place for each element, or
    for each place of the axis.
    """
    given = tuple(n if i == axis or whole else 1 for i, n in enumerate(shape))
    places = load(2, *given, dtype=dtypes.int32).expand(shape)
    there = (load(0, *shape[:axis], size, *shape[axis + 1 :]),) if in_place else ()
    return store(LazyOp(ReduceOps.SCATTER, (load(1, *shape), places, *there), (axis, size)))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "size"), [((7, 9), 1, 5), ((2, 3, 10), 2, 4), ((4, 6, 19), 1, 5)]
)
def test_rows_are_shared_in_any_order(
    shape: tuple[int, ...],
    axis: int,
    size: int,
    whole: bool,
    in_place: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scatters, "MIN_PARALLEL_WORK", 0)
    ast = scatter(shape, axis, size, in_place=in_place, whole=whole)
    uops = Linearizer(ast, TARGET).linearize().uops
    chunks = extent(uops, [])
    assert chunks >= min(shape[:axis])
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape).astype(np.float32)
    given = tuple(n if i == axis or whole else 1 for i, n in enumerate(shape))
    places = rng.integers(-1, size + 1, given).astype(np.int32)
    expected = np.zeros((*shape[:axis], size, *shape[axis + 1 :]), np.float32)
    expected += in_place
    out = expected.ravel() if in_place else np.full(expected.size, np.nan, np.float32)
    out = out.copy()
    for index in np.ndindex(*shape):
        place = int(np.broadcast_to(places, shape)[index])
        if 0 <= place < size:
            expected[(*index[:axis], place, *index[axis + 1 :])] += values[index]
    for chunk in reversed(range(chunks)):
        interpret(uops, [out, values.ravel(), places.ravel()], [], chunk, chunk + 1)
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)


@pytest.mark.parametrize(("shape", "axis"), [((400, 1000), 0), ((10, 20), 1), ((1, 400_000), 1)])
def test_what_has_no_rows_or_is_little_is_done_in_order(shape: tuple[int, int], axis: int) -> None:
    ast = scatter(shape, axis, 50, in_place=False, whole=True)
    loops = [loop for nest in schedule(lower(ast, "k"), TARGET).kernel.roots for loop in nest.loops]
    assert all(loop.kind is not Kind.PARALLEL for loop in loops)


def test_much_is_shared() -> None:
    ast = scatter((400, 1000), 1, 50, in_place=False, whole=True)
    (root,) = schedule(lower(ast, "k"), TARGET).kernel.roots
    assert root.loops[0].kind is Kind.PARALLEL
