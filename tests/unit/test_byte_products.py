"""Products of matrices of bytes, added up in int32 by the instructions for them.

They are exact and wrap, so that all results are NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from tests.cprograms import needs_compiler, run_as_c
from tests.kernels import Case, load, mul, store, total
from tests.programs import HOST, Array, Builder, elementwise, run_both
from tests.unit.test_tensorize import as_contraction, empty_result, expected_product, is_tensorized

from ferrule import Tensor, TinyJit
from ferrule.codegen.interpret import interpret
from ferrule.codegen.intrinsics import INTRINSICS, Intrinsic, native_intrinsic
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import UOp, verify
from ferrule.dtype import DType, dtypes
from ferrule.fusion.costs import widened_factors
from ferrule.ir.expr import ExprOp
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.target import Target
from ferrule.ops import LazyOp, ReduceOps, UnaryOps
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.schedule import create_schedule

OF_BYTES = [i for i in INTRINSICS.values() if i.result is dtypes.int32]
BYTES = (dtypes.int8, dtypes.uint8)
PAIRS = list(product(BYTES, BYTES))
_X86 = {"+sse2", "+avx", "+avx2", "+fma"}
_AVX512 = {"+avx512f", "+avx512vl"}


def target_with(intrinsic: Intrinsic) -> Target:
    """A target that has no better instruction than one."""
    wide = intrinsic.lanes[-1] == 16
    features = {*_X86, *(_AVX512 if wide else ()), *(f"+{need}" for need in intrinsic.needs)}
    return replace(
        HOST,
        name=intrinsic.name,
        vector_bytes=64 if wide else 32,
        n_vector_registers=32 if wide else 16,
        features=",".join(sorted(features)),
    )


def int32(x: LazyOp) -> LazyOp:
    return LazyOp(UnaryOps.CAST, (x,), dtypes.int32)


def byte_product(
    rows: int,
    terms: int,
    columns: int,
    kinds: tuple[DType, DType],
    form: str = "NN",
    batch: int = 1,
) -> Case:
    """a @ b in int32; T in `form` is an operand that is stored transposed."""
    shapes = (
        (batch, terms, rows) if form[0] == "T" else (batch, rows, terms),
        (batch, columns, terms) if form[1] == "T" else (batch, terms, columns),
    )
    operands = zip(shapes, kinds, strict=True)
    a, b = (load(i, *shape, dtype=dtype) for i, (shape, dtype) in enumerate(operands, 1))
    a = a.permute((0, 2, 1)) if form[0] == "T" else a
    b = b if form[1] == "T" else b.permute((0, 2, 1))
    full = (batch, rows, columns, terms)
    left = int32(a).reshape((batch, rows, 1, terms)).expand(full)
    right = int32(b).reshape((batch, 1, columns, terms)).expand(full)
    name = f"{form}{full}.{kinds[0].name}.{kinds[1].name}"
    expected = partial(expected_product, form)
    return Case(name, store(total(mul(left, right), 3)), shapes, expected)


def everything(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Random numbers over the whole range of an integer dtype, with both ends."""
    limits = np.iinfo(dtype.np)
    values = np.random.default_rng(seed).integers(limits.min, limits.max, shape, endpoint=True)
    values.ravel()[:2] = limits.min, limits.max
    found: Array = values.astype(dtype.np)
    return found


SIZES = [(7, 16, 20), (13, 17, 70), (40, 35, 80), (4, 64, 64), (64, 9, 5), (6, 10, 16)]
CASES = [
    byte_product(*size, kinds, form)
    for size, (kinds, form) in zip(
        SIZES * 3, product(PAIRS, ("NN", "NT", "TN", "TT")), strict=False
    )
]
CASES += [
    byte_product(9, 31, 33, kinds, form, 3)
    for kinds, form in zip(PAIRS, ("NN", "TT") * 2, strict=True)
]


def operands_of(case: Case) -> list[Array]:
    kinds = [dtypes_of(name) for name in case.name.split(".")[1:]]
    return [
        everything(dtype, *shape, seed=seed)
        for seed, (dtype, shape) in enumerate(zip(kinds, case.inputs, strict=True))
    ]


def dtypes_of(name: str) -> DType:
    return next(dtype for dtype in BYTES if dtype.name == name)


def check(case: Case, target: Target, *, compiled: bool = False) -> None:
    linearizer = as_contraction(case.ast, target)
    assert is_tensorized(linearizer)
    verify(linearizer.uops)
    operands = operands_of(case)
    out = empty_result(case)
    interpret(linearizer.uops, [out, *(x.ravel() for x in operands)])
    wanted = case.expected(*(x.astype(np.int32) for x in operands))
    np.testing.assert_array_equal(out, wanted.ravel())
    if compiled:
        run_both(linearizer.uops, [empty_result(case), *(x.ravel() for x in operands)], (), target)


@pytest.mark.parametrize("intrinsic", OF_BYTES, ids=lambda i: i.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_products_are_exact(case: Case, intrinsic: Intrinsic) -> None:
    """By each instruction; compiled too if the processor has it."""
    check(case, target_with(intrinsic), compiled=intrinsic.is_native(HOST))


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_blocks_of_a_long_sum(kinds: tuple[DType, DType]) -> None:
    """With a small cache, a panel is used in parts, the last of which is shorter."""
    small = replace(target_with(INTRINSICS["dpbusd"]), l2_bytes=1 << 13)
    check(byte_product(20, 1333, 40, kinds), small)


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_lanes_along_the_rows(kinds: tuple[DType, DType]) -> None:
    """The factor with the lanes may be the left one."""
    check(byte_product(64, 20, 3, kinds, "TN"), target_with(INTRINSICS["dpbusd"]))


@pytest.mark.parametrize("intrinsic", OF_BYTES, ids=lambda i: i.name)
def test_every_target_has_code_for_its_instruction(intrinsic: Intrinsic) -> None:
    for kinds in PAIRS:
        target = target_with(intrinsic)
        uops = as_contraction(byte_product(12, 16, 32, kinds).ast, target).uops
        source = LLVMRenderer(target).render("product", uops)
        assert ("vpdpbusd" if intrinsic.mixed else "pmadd") in source


def test_where_an_instruction_is_estimated_to_be_faster() -> None:
    """A right operand that is stored transposed needs a load for each byte, unless a copy of it is
    transposed for many rows, or lanes are along the rows. Else plain multiply-adds along the terms
    are faster (four rows, 50 products, a core with AVX512_VNNI, 2026-11-28: 159 us with a load for
    each byte, 41 without the instruction, 26 with lanes along the rows).
    """
    target = target_with(INTRINSICS["dpbusd"])
    for (rows, form), faster in (((2, "NT"), False), ((4, "NT"), True), ((2, "NN"), True)):
        case = byte_product(rows, 64, 64, PAIRS[0], form, batch=50)
        assert is_tensorized(Linearizer(case.ast, target).linearize()) == faster


# -- the operation ---------------------------------------------------------------------------------

WORDS = list(product((dtypes.int32, dtypes.uint32), repeat=2))


def dots(kinds: Sequence[DType], lanes: int, size: int) -> list[UOp]:
    def body(builder: Builder, values: Sequence[UOp]) -> UOp:
        return builder.alu(ExprOp.DOT, *values)

    return elementwise(body, [*kinds, dtypes.int32], lanes, size // lanes)


def buffers(kinds: Sequence[DType], size: int) -> list[Array]:
    operands = [everything(dtype, size, seed=seed) for seed, dtype in enumerate(kinds)]
    return [np.zeros(size, np.int32), *operands, everything(dtypes.int32, size, seed=2)]


@pytest.mark.parametrize("kinds", WORDS, ids=str)
def test_sums_wrap(kinds: tuple[DType, DType]) -> None:
    size = 256
    out, a, b, c = buffers(kinds, size)
    interpret(dots(kinds, 1, size), [out, a, b, c])
    left, right = (
        x.view(np.int8 if x.dtype == np.int32 else np.uint8).reshape(size, 4).astype(np.int64)
        for x in (a, b)
    )
    wanted = (c + (left * right).sum(1)).astype(np.int32)
    assert (wanted != c + (left * right).sum(1)).any()
    np.testing.assert_array_equal(out, wanted)


def wide_words(intrinsic: Intrinsic) -> list[tuple[DType, DType]]:
    """The operands that an instruction takes without another sum."""
    return [kinds for kinds in WORDS if kinds[0] is not kinds[1] or not intrinsic.mixed]


@pytest.mark.parametrize("intrinsic", OF_BYTES, ids=lambda i: i.name)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_compiled_sums_are_the_interpreted_ones(intrinsic: Intrinsic, lanes: int) -> None:
    if not intrinsic.is_native(HOST) or lanes > intrinsic.lanes[-1]:
        pytest.skip("the processor has no such instruction")
    for kinds in wide_words(intrinsic):
        target = target_with(intrinsic)
        run_both(dots(kinds, lanes, 64), buffers(kinds, 64), (), target)


@needs_compiler
@pytest.mark.parametrize("kinds", WORDS, ids=str)
def test_sums_in_c(kinds: tuple[DType, DType]) -> None:
    run_as_c(dots(kinds, 4, 64), buffers(kinds, 64))


@needs_compiler
@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_products_in_c(kinds: tuple[DType, DType]) -> None:
    case = byte_product(7, 18, 20, kinds)
    uops = as_contraction(case.ast, target_with(INTRINSICS["dpbusd"])).uops
    run_as_c(uops, [empty_result(case), *(x.ravel() for x in operands_of(case))])


# -- tensors ---------------------------------------------------------------------------------------


def same_as_numpy(left: Array, right: Array) -> None:
    a, b = Tensor(left), Tensor(right)
    found = (a.cast("int32") @ b.cast("int32")).numpy()
    np.testing.assert_array_equal(found, left.astype(np.int32) @ right.astype(np.int32))


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_tensors(kinds: tuple[DType, DType]) -> None:
    for rows, terms, columns in ((1, 7, 5), (3, 130, 65), (65, 64, 1), (33, 3, 130), (70, 150, 90)):
        left, right = everything(kinds[0], rows, terms), everything(kinds[1], terms, columns)
        same_as_numpy(left, right)
        same_as_numpy(right.T, left.T)
        same_as_numpy(left[::2], right[:, ::-1])
    same_as_numpy(everything(kinds[0], 3, 2, 20, 33), everything(kinds[1], 2, 33, 40))


@pytest.mark.parametrize(
    "result", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint32, dtypes.int64]
)
def test_other_results(result: DType) -> None:
    """Sums in narrower integers are the low bits of those in int32; wider ones are not int32's."""
    for kinds in PAIRS:
        left, right = everything(kinds[0], 40, 70), everything(kinds[1], 70, 50, seed=1)
        found = Tensor(left).matmul(Tensor(right), dtype=result).numpy()
        np.testing.assert_array_equal(found, left.astype(result.np) @ right.astype(result.np))


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_products_without_casts(kinds: tuple[DType, DType]) -> None:
    """The result has NumPy's dtype, int8 for two of int8, and wraps as NumPy's does."""
    left, right = everything(kinds[0], 40, 70), everything(kinds[1], 70, 50, seed=1)
    found = (Tensor(left) @ Tensor(right)).numpy()
    assert found.dtype == (left @ right).dtype
    np.testing.assert_array_equal(found, left @ right)


def test_a_sum_that_exceeds_int32_wraps() -> None:
    """65536 products of 255 and 255, which an instruction adds up in 16384 steps."""
    terms = 1 << 16
    left, right = np.full((8, terms), 255, np.uint8), np.full((terms, 64), 255, np.uint8)
    same_as_numpy(left, right)
    assert terms * 255 * 255 > np.iinfo(np.int32).max


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_constant_weights(kinds: tuple[DType, DType]) -> None:
    """Panels of weights that a captured function does not change are packed once."""
    weights = everything(kinds[1], 130, 200, seed=7)
    constant = Tensor(weights).realize()
    layer = TinyJit(lambda x: (x.cast("int32") @ constant.cast("int32")).relu().realize())
    for seed in range(4):
        x = everything(kinds[0], 64, 130, seed=seed)
        wanted = np.maximum(x.astype(np.int32) @ weights.astype(np.int32), 0)
        np.testing.assert_array_equal(layer(Tensor(x).realize()).numpy(), wanted)


def total_of(x: Tensor) -> LazyBuffer:
    node = x.lazydata
    while node.op is not ReduceOps.SUM:
        node = node.srcs[0]
    return node


def test_which_casts_an_instruction_does() -> None:
    target = target_with(INTRINSICS["dpbusd"])
    signed, unsigned = (Tensor(everything(kind, 8, 8)).realize() for kind in BYTES)
    for a, b in product((signed, unsigned), repeat=2):
        casts = widened_factors(total_of(a.cast("int32") @ b.cast("int32")), target)
        assert [node.srcs[0].dtype for node in casts] == [a.dtype, b.dtype]
    short = Tensor(everything(dtypes.int16, 8, 8)).realize()
    whole = Tensor(everything(dtypes.int32, 8, 8)).realize()
    for other in (short.cast("int32"), whole):
        assert widened_factors(total_of(signed.cast("int32") @ other), target) == []
    for result in (dtypes.int64, dtypes.float32):
        assert native_intrinsic(set(BYTES), result, target) is None


def test_bytes_are_read_where_they_are() -> None:
    if native_intrinsic(set(BYTES), dtypes.int32, HOST) is None:
        pytest.skip("the processor has no such instruction")
    a, b = (Tensor(everything(dtypes.int8, 128, 128, seed=seed)).realize() for seed in (0, 1))
    assert len(create_schedule([(a.cast("int32") @ b.cast("int32")).lazydata])) == 1
    # Also where something else adds up the same numbers: they are not stored, four times as wide.
    wide = b.cast("int32")
    sums = (a.cast("int32") @ wide) + wide.sum(0).contiguous()
    assert len(create_schedule([sums.lazydata])) == 2
