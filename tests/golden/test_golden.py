"""Curated kernels, as text: a change of what the compiler makes shows in a diff.

`pytest tests/golden --update-golden` writes the files anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.kernels import (
    CASES,
    CHAIN_WITH_SUMS,
    Case,
    add,
    adjoint,
    convolution,
    load,
    matmul,
    store,
    total,
    widened,
)

from ferrule.codegen.kernel import show as show_kernel
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import show as show_program
from ferrule.dtype import dtypes
from ferrule.ir.target import Target
from ferrule.ops import LazyOp, UnaryOps
from ferrule.renderer.c.dialect import CUDA, OPENCL, C, Dialect
from ferrule.renderer.c.style import CStyleRenderer
from ferrule.renderer.llvm.ir import LLVMRenderer

FOLDER = Path(__file__).parent

# A target of the tests' own, so that the files do not depend on the machine.
TARGET = Target(
    name="x86-64-avx512",
    arch="x86-64",
    features="+avx512f,+fma",
    vector_bytes=64,
    n_vector_registers=32,
    max_threads=2,
    l1_bytes=48 * 1024,
    l2_bytes=1024 * 1024,
    has_fma=True,
    flops_per_second=2e11,
    bytes_per_second=2e10,
    native_ops=frozenset({"MULACC", "ROUND", "SQRT", "TRUNC"}),
)

ARM = replace(
    TARGET,
    name="aarch64-neon",
    arch="aarch64",
    features="+lse,+neon",
    vector_bytes=16,
    l1_bytes=64 * 1024,
)

WITH_DOT = replace(TARGET, features="+avx512bf16,+avx512f,+avx512vl,+avx512vnni,+fma")

SMALL = ["add", "pad_exp", "sum_rows", "softmax_columns"]


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path.name} is missing; run pytest tests/golden --update-golden"
    assert path.read_text() == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_schedule(case: Case, update_golden: bool) -> None:
    compare_kernel(Linearizer(case.ast, TARGET, name=case.name), update_golden)


# Sizes at which memory decides, and at which nothing needs to run.
LARGE = {
    "vector_matrix": lambda: matmul(load(1, 1, 3001), load(2, 3001, 5000)),
    "few_rows": lambda: matmul(load(1, 100, 2001), load(2, 2001, 3000)),
    "sum_long_columns": lambda: total(load(1, 4003, 1000), 0),
    "matmul_square": lambda: matmul(load(1, 777, 1000), load(2, 1000, 650)),
    "convolution_deep": lambda: convolution(load(1, 4, 64, 30, 30), load(2, 48, 64, 3, 3)),
}


@pytest.mark.parametrize("name", LARGE)
def test_schedule_of_a_large_kernel(name: str, update_golden: bool) -> None:
    compare_kernel(Linearizer(store(LARGE[name]()), TARGET, name=name), update_golden)


def compare_kernel(linearizer: Linearizer, update: bool) -> None:
    opts = "\n".join(opt.to_json() for opt in linearizer.opts)
    text = f"{opts}\n\n{show_kernel(linearizer.scheduled)}\n"
    compare(FOLDER / "kernels" / f"{linearizer.name}.txt", text, update)


ADJOINTS = {
    "depthwise_adjoint": ((2, 3, 9, 9), (1, 3, 5, 5), 2),
    "adjoint_of_small_images": ((8, 96, 6, 6), (96, 40, 4, 4), 1),
}


@pytest.mark.parametrize("name", ADJOINTS)
def test_schedule_of_a_strided_adjoint(name: str, update_golden: bool) -> None:
    places, filters, padding = ADJOINTS[name]
    ast = store(adjoint(load(1, *places), load(2, *filters), 2, padding))
    compare_kernel(Linearizer(ast, TARGET, name=name), update_golden)


def test_schedule_of_sums_beside_a_chain(update_golden: bool) -> None:
    compare_kernel(Linearizer(CHAIN_WITH_SUMS, TARGET, name="chain_with_sums"), update_golden)


def test_schedule_with_an_intrinsic(update_golden: bool) -> None:
    a, b = (widened(load(i, *s, dtype=dtypes.bfloat16)) for i, s in ((1, (13, 35)), (2, (35, 70))))
    linearizer = Linearizer(store(matmul(a, b)), WITH_DOT, name="matmul_bfloat16")
    compare_kernel(linearizer, update_golden)


def test_schedule_with_products_of_bytes(update_golden: bool) -> None:
    """Of two signed matrices, one of which is taken as unsigned, and corrected."""
    operands = [load(i, *s, dtype=dtypes.int8) for i, s in ((1, (13, 35)), (2, (35, 70)))]
    a, b = (LazyOp(UnaryOps.CAST, (operand,), dtypes.int32) for operand in operands)
    compare_kernel(Linearizer(store(matmul(a, b)), WITH_DOT, name="matmul_int8"), update_golden)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SMALL], ids=lambda case: case.name)
def test_program(case: Case, update_golden: bool) -> None:
    linearizer = Linearizer(case.ast, TARGET, name=case.name).linearize()
    text = show_program(linearizer.uops) + "\n"
    compare(FOLDER / "programs" / f"{case.name}.txt", text, update_golden)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SMALL], ids=lambda case: case.name)
def test_source(case: Case, update_golden: bool) -> None:
    linearizer = Linearizer(case.ast, TARGET, name=case.name).linearize()
    text = LLVMRenderer(TARGET).render(case.name, linearizer.uops)
    compare(FOLDER / "sources" / f"{case.name}.ll", text, update_golden)


@pytest.mark.parametrize("name", ["matmul", "convolution", "softmax", "sum_columns"])
def test_schedule_for_arm(name: str, update_golden: bool) -> None:
    case = next(case for case in CASES if case.name == name)
    compare_kernel(Linearizer(case.ast, ARM, name=f"{name}_neon"), update_golden)


def test_source_for_arm(update_golden: bool) -> None:
    case = next(case for case in CASES if case.name == "sum_rows")
    linearizer = Linearizer(case.ast, ARM, name="sum_rows_neon").linearize()
    text = LLVMRenderer(ARM).render("sum_rows_neon", linearizer.uops)
    compare(FOLDER / "sources" / "sum_rows_neon.ll", text, update_golden)


# A target with blocks of threads, of the tests' own.
GRID = replace(
    TARGET,
    name="grid",
    arch="grid",
    features="",
    vector_bytes=16,
    block_threads=256,
    warp=32,
    shared_bytes=48 * 1024,
    index_bits=32,
    max_threads=64,
)
IN_C = [
    ("sum_rows", C, replace(TARGET, vector_bytes=16), "c"),
    ("stream", CUDA, GRID, "cu"),
    ("softmax", CUDA, GRID, "cu"),
    ("sum_columns", OPENCL, replace(GRID, warp=1), "cl"),
]


@pytest.mark.parametrize(("name", "dialect", "target", "suffix"), IN_C, ids=[c[0] for c in IN_C])
def test_source_in_c(
    name: str, dialect: Dialect, target: Target, suffix: str, update_golden: bool
) -> None:
    stream = store(add(load(1, 64, 1000), load(2, 64, 1000)))
    ast = next((case.ast for case in CASES if case.name == name), stream)
    linearizer = Linearizer(ast, target, name=f"kernel_{name}").linearize()
    text = CStyleRenderer(dialect, target).render(linearizer.name, linearizer.uops)
    compare(FOLDER / "sources" / f"{name}.{suffix}", text, update_golden)
