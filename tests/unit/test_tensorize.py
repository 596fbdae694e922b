"""Sums of products of bfloat16 by the instruction for them, on machines that lack it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

import ml_dtypes
import numpy as np
import pytest
from tests.kernels import Case, load, mul, store, total, widened
from tests.programs import HOST, Array, Builder, Compiled, elementwise, run_both
from tests.roles import the_reduce

from ferrule import Tensor
from ferrule.codegen.interpret import interpret
from ferrule.codegen.intrinsics import INTRINSICS, native_intrinsic
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.cpu.contraction import schedule_contraction
from ferrule.codegen.uops import ProgramError, UOp, verify
from ferrule.dtype import DType, dtypes
from ferrule.fusion.costs import widened_factors
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.ops import LazyOp, ReduceOps, UnaryOps
from ferrule.renderer.base import RenderError
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.schedule import create_schedule

BFLOAT16 = ml_dtypes.bfloat16
DOT = INTRINSICS["dpbf16ps"]
WITH_DOT = replace(
    HOST,
    name="dot",
    vector_bytes=64,
    n_vector_registers=32,
    features=",".join(sorted({*HOST.features.split(","), *(f"+{n}" for n in DOT.needs)})),
)
WITHOUT_DOT = replace(WITH_DOT, features="+avx512f,+avx512vl,+fma")
needs_dot = pytest.mark.skipif(not DOT.is_native(HOST), reason="the processor has no such sums")


def matrix_product(
    rows: int, terms: int, columns: int, form: str = "NN", batch: int = 1, out: DType | None = None
) -> Case:
    """a @ b in float32 from bfloat16; T in `form` is an operand that is stored transposed."""
    shapes = (
        (batch, terms, rows) if form[0] == "T" else (batch, rows, terms),
        (batch, columns, terms) if form[1] == "T" else (batch, terms, columns),
    )
    a, b = (load(i + 1, *shape, dtype=dtypes.bfloat16) for i, shape in enumerate(shapes))
    a = a.permute((0, 2, 1)) if form[0] == "T" else a
    b = b if form[1] == "T" else b.permute((0, 2, 1))
    full = (batch, rows, columns, terms)
    left = widened(a).reshape((batch, rows, 1, terms)).expand(full)
    right = widened(b).reshape((batch, 1, columns, terms)).expand(full)
    value = total(mul(left, right), 3)
    if out is not None:
        value = LazyOp(UnaryOps.CAST, (value,), out)
    return Case(f"{form}{full}", store(value), shapes, partial(expected_product, form))


def expected_product(form: str, a: Array, b: Array) -> Array:
    left = a.swapaxes(1, 2) if form[0] == "T" else a
    right = b.swapaxes(1, 2) if form[1] == "T" else b
    result: Array = left @ right
    return result


def inputs_of(case: Case) -> list[Array]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal(shape).astype(BFLOAT16) for shape in case.inputs]


def empty_result(case: Case) -> Array:
    value = case.ast.src[0]
    return np.zeros(prod(value.shape), value.dtype.np)


def is_tensorized(linearizer: Linearizer) -> bool:
    return any(opt.primitive == "tensorize" for opt in linearizer.opts)


def check(case: Case, out: Array) -> None:
    """The result against float64, as far off as float32 sums and one rounding may be."""
    exact = [x.astype(np.float64) for x in inputs_of(case)]
    wanted = case.expected(*exact).ravel()
    size = case.expected(*map(np.abs, exact)).ravel()
    rounding = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[out.dtype.name]
    terms = max(case.inputs[0][1:])
    assert (np.abs(out.astype(np.float64) - wanted) <= (rounding + terms * 2.0**-24) * size).all()


def as_contraction(ast: LazyOp, target: Target) -> Linearizer:
    """A kernel with the schedule of contractions, in tiles with lanes along the last axis, also
    where others are estimated to be as fast.
    """
    wanted = {("form", "in registers", "lanes"): "tiles along i0.2"}
    plan = Plan(lower(ast, "k"), target, wanted=wanted)
    plan.collapse()
    (root,) = plan.kernel.roots
    assert schedule_contraction(plan, root.name)
    return Linearizer(ast, target, plan.opts).linearize()


def interpreted(case: Case, target: Target) -> Array:
    linearizer = as_contraction(case.ast, target)
    assert is_tensorized(linearizer)
    verify(linearizer.uops)
    out = empty_result(case)
    interpret(linearizer.uops, [out, *(x.ravel() for x in inputs_of(case))])
    return out


SIZES = [(7, 16, 20), (13, 17, 70), (40, 33, 80), (4, 64, 64), (64, 9, 5), (6, 8, 16)]
CASES = [matrix_product(*size, form) for size, form in product(SIZES, ("NN", "NT", "TN", "TT"))]
CASES += [matrix_product(9, 31, 33, form, batch=3) for form in ("NN", "TT")]
CASES += [matrix_product(9, 22, 33, out=out) for out in (dtypes.float16, dtypes.bfloat16)]
CASES += [matrix_product(96, 70, 16, "TN")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_products_are_right(case: Case) -> None:
    check(case, interpreted(case, WITH_DOT))


@needs_dot
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled_products_are_the_interpreted_ones(case: Case) -> None:
    uops = Linearizer(case.ast, HOST).linearize().uops
    run_both(uops, [empty_result(case), *(x.ravel() for x in inputs_of(case))])


@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
def test_blocks_of_a_long_sum(form: str) -> None:
    """With a small cache, a panel is used in parts, the last of which is shorter."""
    case = matrix_product(20, 333, 40, form)
    check(case, interpreted(case, replace(WITH_DOT, l2_bytes=1 << 15)))


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_every_vector_size(vector_bytes: int) -> None:
    case = matrix_product(5, 18, 35)
    check(case, interpreted(case, replace(WITH_DOT, vector_bytes=vector_bytes)))


def test_other_targets_multiply_and_add() -> None:
    case = matrix_product(7, 16, 20)
    linearizer = Linearizer(case.ast, WITHOUT_DOT).linearize()
    assert not is_tensorized(linearizer)
    out = empty_result(case)
    interpret(linearizer.uops, [out, *(x.ravel() for x in inputs_of(case))])
    check(case, out)


def test_infinities_stay_outside_of_the_tail() -> None:
    """What fills the last pair is zero in both operands, so that no NaN comes of it."""
    case = matrix_product(3, 9, 16)
    a, b = (np.full(shape, np.inf, BFLOAT16) for shape in case.inputs)
    out = empty_result(case)
    interpret(Linearizer(case.ast, WITH_DOT).linearize().uops, [out, a.ravel(), b.ravel()])
    assert (out == np.inf).all()


# -- the operation ---------------------------------------------------------------------------------


def dots(a: Array, b: Array, c: Array) -> Array:
    """DOT of arrays of pairs and of float32, by the interpreter."""

    def body(builder: Builder, values: Sequence[UOp]) -> UOp:
        return builder.alu(ExprOp.DOT, *values)

    uops = elementwise(body, [dtypes.uint32, dtypes.uint32, dtypes.float32], 1, len(c))
    out = np.zeros_like(c)
    interpret(uops, [out, a, b, c])
    return out


def pairs(*values: tuple[float, float]) -> Array:
    return np.array(values).astype(BFLOAT16).view(np.uint32).ravel()


def test_the_upper_halves_are_added_first() -> None:
    c = np.array([1.0], np.float32)
    a, b = pairs((2.0**-24, 2.0**-24)), pairs((1.5, -1.0))
    assert dots(a, b, c)[0] == np.float32(1 - 2.0**-24) + np.float32(1.5 * 2.0**-24)
    assert dots(pairs((-1.0, 1.0)), pairs((1.0, 1.0)), np.array([2.0**-30], np.float32))[0] == 0


def test_subnormals_count_as_zeros() -> None:
    tiny = 2.0**-127
    one = np.array([0.0], np.float32)
    assert dots(pairs((tiny, 0)), pairs((2.0**100, 0)), one)[0] == 0
    assert dots(pairs((2.0**-64, 0)), pairs((2.0**-64, 0)), one)[0] == 0
    assert dots(pairs((0, 0)), pairs((0, 0)), np.array([tiny], np.float32))[0] == 0
    assert np.signbit(dots(pairs((2.0**-64, -0.0)), pairs((-(2.0**-64), 0)), -one)[0])


@needs_dot
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_compiled_sums_are_the_interpreted_ones(lanes: int) -> None:
    """On any bits: infinities, NaNs, subnormals, results that just are normal."""

    def body(builder: Builder, values: Sequence[UOp]) -> UOp:
        return builder.alu(ExprOp.DOT, *values)

    size = 4096
    generator = np.random.default_rng(1)
    a, b = (generator.integers(0, 2**32, size).astype(np.uint32) for _ in range(2))
    c = generator.integers(0, 2**32, size).astype(np.uint32).view(np.float32)
    near = generator.standard_normal((3, size)) * 2.0 ** generator.integers(-72, -58, (3, size))
    a[::3], b[::3] = (x.astype(BFLOAT16)[: 2 * len(a[::3])].view(np.uint32) for x in near[:2])
    c[::3] = (near[2] * 2.0**-64).astype(np.float32)[::3]
    uops = elementwise(body, [dtypes.uint32] * 2 + [dtypes.float32], lanes, size // lanes)
    run_both(uops, [np.zeros_like(c), a, b, c])


def test_programs_with_other_operands_are_refused() -> None:
    b = Builder()
    one = b.const(1.0, dtypes.float32)
    b.alu(ExprOp.DOT, one, one, one)
    with pytest.raises(ProgramError, match="takes two uint32 and a float32"):
        verify(b.uops)


def test_targets_without_it_are_refused() -> None:
    linearizer = Linearizer(matrix_product(7, 16, 20).ast, WITH_DOT).linearize()
    with pytest.raises(RenderError, match="no such instruction; there are"):
        LLVMRenderer(WITHOUT_DOT).render("product", linearizer.uops)


@needs_dot
def test_the_instruction_is_in_the_code() -> None:
    linearizer = Linearizer(matrix_product(48, 64, 64).ast, HOST).linearize()
    assert "dpbf16ps.512" in Compiled(linearizer.uops).source


def test_only_targets_with_all_features_have_it() -> None:
    assert native_intrinsic({dtypes.bfloat16}, dtypes.float32, WITH_DOT) is DOT
    assert native_intrinsic({dtypes.bfloat16}, dtypes.float64, WITH_DOT) is None
    assert native_intrinsic({dtypes.float16}, dtypes.float32, WITH_DOT) is None
    assert native_intrinsic({dtypes.bfloat16, dtypes.int8}, dtypes.float32, WITH_DOT) is None
    assert native_intrinsic({dtypes.bfloat16}, dtypes.float32, WITHOUT_DOT) is None


# -- the primitive ---------------------------------------------------------------------------------


def test_one_operand_squared() -> None:
    x = widened(load(1, 5, 11, dtype=dtypes.bfloat16))
    ast = store(total(mul(x, x), 1))
    nest = the_reduce(lower(ast, "k"))
    opts = [Opt("tensorize", (nest.name, nest.loops[0].range.name, "dpbf16ps"))]
    values = np.random.default_rng(0).standard_normal((5, 11)).astype(BFLOAT16)
    out = np.zeros(5, np.float32)
    interpret(Linearizer(ast, WITH_DOT, opts).linearize().uops, [out, values.ravel()])
    np.testing.assert_allclose(out, (values.astype(np.float64) ** 2).sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("ast", "name", "message"),
    [
        (matrix_product(2, 8, 2).ast, "sdot", "no intrinsic sdot; there are"),
        (store(total(mul(load(1, 3, 8), load(2, 3, 8)), 1)), "dpbf16ps", "two bfloat16 loads"),
        (store(total(widened(load(1, 3, 8, dtype=dtypes.bfloat16)), 1)), "dpbf16ps", "does not"),
    ],
)
def test_refusals(ast: LazyOp, name: str, message: str) -> None:
    kernel = lower(ast, "k")
    nest = next(n for n in kernel.nests if n.at is not None)
    with pytest.raises(ScheduleError, match=message):
        apply_opts(kernel, [Opt("tensorize", (nest.name, nest.loops[0].range.name, name))])


def test_a_loop_that_is_split_twice_keeps_both_tails() -> None:
    """The first split's tail is peeled off with the second's, not masked in every iteration."""
    ast = store(total(load(1, 3, 37), 1))
    plan = Plan(lower(ast, "k"), WITH_DOT)
    nest = the_reduce(plan.kernel)
    pairs, _ = plan.split(nest.name, nest.loops[0].range, 2, "peel")
    plan.split(nest.name, pairs, 3, "peel")
    linearizer = Linearizer(ast, WITH_DOT, plan.opts).linearize()
    loop = the_reduce(linearizer.scheduled).loops[0]
    assert str(loop.peel).count("<") == 2
    x = np.arange(111, dtype=np.float32)
    out = np.zeros(3, np.float32)
    interpret(linearizer.uops, [out, x])
    np.testing.assert_array_equal(out, x.reshape(3, 37).sum(1))


# -- tensors ---------------------------------------------------------------------------------------


def tensor(*shape: int) -> Tensor:
    values = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    return Tensor(values).cast(dtypes.bfloat16).realize()


@pytest.mark.parametrize("transposed", [False, True])
def test_tensors(transposed: bool) -> None:
    x, y = tensor(50, 60), tensor(70, 60)
    right = y.T if transposed else y.T.contiguous().realize()
    found = (x @ right).cast(dtypes.float32).numpy()
    exact = [t.cast(dtypes.float64).numpy() for t in (x, y)]
    np.testing.assert_allclose(found, exact[0] @ exact[1].T, rtol=2.0**-7, atol=2.0**-5)


@needs_dot
def test_casts_are_a_part_of_the_instruction() -> None:
    x, y, z = tensor(64, 128), tensor(128, 96), tensor(96, 64)
    assert len(create_schedule([(x @ y).relu().lazydata])) == 1
    items = create_schedule([((x @ y) @ z).lazydata])
    assert [item.out.dtype for item in items] == [dtypes.bfloat16] * 2
    items = create_schedule([(x.relu() @ y).lazydata])
    assert [item.out.dtype for item in items] == [dtypes.bfloat16] * 2


def test_which_casts_an_instruction_does() -> None:
    x, y = tensor(8, 16), tensor(16, 8)
    total = (x @ y).lazydata
    while total.op is not ReduceOps.SUM:
        total = total.srcs[0]
    casts = widened_factors(total, WITH_DOT)
    assert [node.srcs[0].dtype for node in casts] == [dtypes.bfloat16] * 2
    assert widened_factors(total, WITHOUT_DOT) == []
    assert widened_factors(x.cast(dtypes.float32).sum().lazydata.srcs[0], WITH_DOT) == []
