"""Sums of which only every s-th term counts: no remainders are left, and no useless iterations."""

from __future__ import annotations

import itertools

import pytest
from tests.kernels import load, mul, store, total, widened

from ferrule.codegen.kernel import show
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import apply_opts
from ferrule.codegen.polyphase import digits_of, nonzero_terms, strides_of
from ferrule.codegen.primitives.loops import limit
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import Expr, ExprOp, alu, const, less, range_
from ferrule.ir.expr import load as element
from ferrule.ops import LazyOp


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("taps", [2, 3, 5])
@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (2, 3), (3, 1), (3, 2), (5, 2)])
def test_every_term_that_counts_is_found_once(
    stride: int, dilation: int, taps: int, offset: int
) -> None:
    place, phase, tap = range_("q", 4), range_("p", stride), range_("k", taps)
    distance = place * stride + phase + offset - tap * dilation
    found = nonzero_terms(element(1, dtypes.float32, tap, less(distance % stride, const(1))), tap)
    if found is None:
        assert taps < stride + dilation  # there is little to gain
        return
    for q, p in itertools.product(range(4), range(stride)):
        counted = range(found.counter.size.arg) if not found.counter.is_const else range(1)
        indices = []
        for t in counted:
            at = {place: const(q), phase: const(p), found.counter: const(t)}
            at = {r: i for r, i in at.items() if not r.is_const}
            if found.inside.substitute(at).arg:
                indices.append(found.index.substitute(at).arg)
        whole = q * stride + p + offset
        assert indices == [k for k in range(taps) if (whole - k * dilation) % stride == 0]


def test_terms_that_count_without_the_remainder_are_kept() -> None:
    x, k = range_("x", 4), range_("k", 4)
    condition = less((x - k) % 5, const(1))
    masked, plain = element(1, dtypes.float32, x, condition), element(2, dtypes.float32, k)
    both = element(2, dtypes.float32, k, condition)
    product = alu(ExprOp.MUL, masked, both)
    assert nonzero_terms(alu(ExprOp.MUL, masked, plain), k) is None  # 0 times infinity is NaN
    assert nonzero_terms(alu(ExprOp.MUL, masked, const(2.0, dtypes.float32)), k) is not None
    numbers = element(1, dtypes.int32, x, condition), element(2, dtypes.int32, k)
    assert nonzero_terms(alu(ExprOp.MUL, *numbers), k) is not None
    for body in (masked, product, alu(ExprOp.ADD, masked, product), alu(ExprOp.NEG, product)):
        assert nonzero_terms(body, k) is not None
    for body in (alu(ExprOp.SUB, plain, masked), alu(ExprOp.MAX, plain, masked)):
        assert nonzero_terms(body, k) is None
    one = const(1.0, dtypes.float32)
    assert nonzero_terms(alu(ExprOp.WHERE, condition, plain, one), k) is None
    assert nonzero_terms(alu(ExprOp.FDIV, plain, alu(ExprOp.ADD, masked, one)), k) is None


def test_remainders_by_two_numbers_decide_nothing() -> None:
    x, k = range_("x", 12), range_("k", 3)
    halves = element(1, dtypes.float32, x, less((x - k) % 2, const(1)))
    thirds = element(1, dtypes.float32, x, less((x - k) % 3, const(1)))
    assert strides_of(halves, [x]) == {x: 2}
    assert strides_of(alu(ExprOp.ADD, halves, thirds), [x]) == {}


def adjoint(
    taps: int, stride: int, padding: int, out: int = 4, dtype: DType = dtypes.float32
) -> LazyOp:
    """(2, 16, L): the adjoint of a convolution of 16 channels with 8 filters along one axis."""
    g, w = load(1, 2, 8, out, dtype=dtype), load(2, 8, 16, taps, dtype=dtype)
    if dtype is not dtypes.float32:
        g, w = widened(g), widened(w)
    g = g.reshape((2, 8, 1, out, 1)).expand((2, 8, 16, out, taps))
    w = w.reshape((1, 8, 16, 1, taps)).expand((2, 8, 16, out, taps))
    length = (out - 1) * stride + taps
    part = total(mul(g, w), 1).reshape((2, 16, out, taps)).unwindow(2, length, stride)
    whole = total(part, 3).reshape((2, 16, length))
    return store(whole.shrink(((0, 2), (0, 16), (padding, length - padding))))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("taps", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (4, 2, 1), (5, 3, 0)]
)
def test_a_strided_adjoint_is_one_sum_without_remainders(
    taps: int, stride: int, padding: int, dtype: DType
) -> None:
    kernel = lower(adjoint(taps, stride, padding, dtype=dtype), "adjoint")
    assert len(kernel.nests) == 2
    assert "%" not in show(kernel)
    assert "//" not in show(kernel)


@pytest.mark.parametrize("out", [2, 3, 5])
@pytest.mark.parametrize(("taps", "stride"), [(3, 2), (5, 2), (5, 3), (7, 4)])
def test_an_adjoint_of_few_places_is_one_sum_too(taps: int, stride: int, out: int) -> None:
    length = (out - 1) * stride + taps
    for padding in range(min(taps, (length - 1) // 2)):
        kernel = lower(adjoint(taps, stride, padding, out=out), "adjoint")
        assert len(kernel.nests) == 2, padding
        assert "%" not in show(kernel)


def test_filters_of_all_groups_are_written_as_group_and_filter() -> None:
    rows, columns = load(1, 4, 3, 1, 16), load(2, 1, 3, 5, 16)
    product = mul(rows.expand((4, 3, 5, 16)), columns.expand((4, 3, 5, 16)))
    grouped = total(product, 3).reshape((4, 15))
    kernel = lower(store(mul(grouped, load(3, 4, 15))), "groups")
    assert [loop.range.size.arg for loop in kernel.roots[0].loops] == [4, 3, 5]
    assert "//" not in show(kernel)


def test_channels_and_places_in_a_line_are_ranges_of_their_own() -> None:
    images, filters = load(1, 4, 5, 1, 7, 16), load(2, 1, 1, 3, 1, 16)
    whole = (4, 5, 3, 7, 16)
    product = mul(images.expand(whole), filters.expand(whole))
    line = total(product, 4).permute((0, 2, 1, 3, 4)).reshape((4, 105))
    kernel = lower(store(mul(line, load(3, 4, 105))), "line")
    assert [loop.range.size.arg for loop in kernel.roots[0].loops] == [4, 3, 5, 7]
    assert "//" not in show(kernel)
    assert "%" not in show(kernel)


def test_an_adjoint_in_a_line_has_its_digits_and_its_phases() -> None:
    value = adjoint(3, 2, 1).src[0]
    line = value.reshape((2, 16 * value.shape[2]))
    kernel = lower(store(mul(line, load(3, *line.shape))), "line")
    assert len(kernel.nests) == 2
    assert "//" not in show(kernel)
    assert "%" not in show(kernel)


def test_digits_by_numbers_that_do_not_divide_one_another_stay_one_range() -> None:
    x, k = range_("x", 60), range_("k", 8)
    by = [element(slot, dtypes.float32, x // n * 8 + k) for slot, n in ((1, 30), (2, 6), (3, 4))]
    for parts, digits in ((by[:2], {x: (30, 6)}), (by[::2], {}), (by[1:], {})):
        terms = alu(ExprOp.ADD, *parts)
        assert (
            digits_of(Expr(ExprOp.REDUCE, dtypes.float32, (terms,), ("sum", (k,))), [x]) == digits
        )


def test_a_loop_over_taps_starts_and_ends_with_those_of_the_phase() -> None:
    kernel = lower(adjoint(4, 2, 1), "adjoint")
    text = show(limit(kernel, "sum0", "r0.3t"))
    assert "for r0.3t in " in text
    assert ".." in text  # the first tap of a phase
    apply_opts(kernel, ())
