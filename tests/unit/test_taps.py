"""Sums over the taps of a window alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import adjoint, load, mul, numpy_adjoint, store, total

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import Kernel, Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import step_of
from ferrule.ops import LazyOp


def scheduled(ast: LazyOp) -> Kernel:
    return schedule(lower(store(ast), "k"), TARGET).kernel


@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"), [(7, 5, 2, 2), (28, 3, 2, 1), (40, 5, 3, 0)]
)
def test_lines_of_all_phases_of_a_strided_adjoint_leave_whole(
    size: int, taps: int, stride: int, padding: int
) -> None:
    """Their lanes are neighbours, and those of the sums too; what they load is copied once."""
    g, w = load(1, 8, 6, size, size), load(2, 1, 6, taps, taps)
    kernel = scheduled(adjoint(g, w, stride, padding))
    assert {nest.name for nest in kernel.nests} == {"sum0.copy1", "sum0", "out0"}
    for name in ("sum0", "out0"):
        nest = kernel.by_name[name]
        (lane,) = (loop.range for loop in nest.loops if loop.kind is Kind.VECTOR)
        (compute,) = nest.computes
        assert name == "sum0" or step_of(compute.store.index, lane) == 1
        assert name == "out0" or compute.ranges[-1] is lane
    kinds = {loop.range.name: loop.kind for loop in kernel.by_name["sum0"].loops}
    assert all(kinds[f"i0.{axis}p@sum0"] is Kind.UNROLL for axis in (2, 3))


@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"),
    [(7, 5, 2, 2), (17, 3, 2, 1), (5, 4, 2, 1), (6, 4, 3, 0), (9, 7, 4, 3), (9, 9, 3, 1)],
)
def test_strided_adjoints_in_phases(size: int, taps: int, stride: int, padding: int) -> None:
    generator = np.random.default_rng(0)
    g = generator.standard_normal((1, 2, size, size)).astype(np.float32)
    w = generator.standard_normal((1, 2, taps, taps)).astype(np.float32)
    expected = numpy_adjoint(g, w, stride, padding)
    ast = store(adjoint(load(1, *g.shape), load(2, *w.shape), stride, padding))
    linearizer = Linearizer(ast, TARGET).linearize()
    assert "sum0.copy1" in linearizer.scheduled.by_name
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, g.ravel(), w.ravel()])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("lines", "together"), [(5, 5), (7, 7), (8, 8), (14, 7), (15, 5), (28, 4), (56, 4), (31, 4)]
)
def test_lines_at_a_time_leave_few_beyond_the_last(lines: int, together: int) -> None:
    """One line alone has too few sums that do not wait for one another."""
    full = (2, 6, lines, lines, 3, 3)
    x = load(1, 2, 6, lines, lines).pad(((0, 0), (0, 0), (1, 1), (1, 1)))
    right = load(2, 1, 6, 1, 1, 3, 3).expand(full)
    kernel = scheduled(total(mul(x.window(2, 3).window(3, 3), right), 4, 5))
    copies = [loop.range for loop in kernel.by_name["sum0"].loops if loop.kind is Kind.UNROLL]
    assert together in [r.size.arg for r in copies if r.name.startswith("i0.2")]


def test_phases_are_more_than_registers_hold() -> None:
    """64 phases of a place would each need a vector of sums."""
    g, w = load(1, 8, 6, 9, 9), load(2, 1, 6, 17, 17)
    kernel = scheduled(adjoint(g, w, 8, 0))
    assert "sum0.copy1" not in kernel.by_name


def test_several_results_for_each_channel_are_no_phases() -> None:
    """Two filters for each channel: their results are further apart than places are."""
    x = load(1, 2, 6, 1, 20, 20).window(3, 3).window(4, 3)
    full = (2, 6, 2, 18, 18, 3, 3)
    left = x.reshape((2, 6, 1, 18, 18, 3, 3)).expand(full)
    right = load(2, 1, 6, 2, 1, 1, 3, 3).expand(full)
    kernel = scheduled(total(mul(left, right), 5, 6))
    assert "sum0" in kernel.by_name
    assert "sum0.copy1" not in kernel.by_name
