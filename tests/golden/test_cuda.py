"""Kernels as CUDA C, compiled for real GPUs: their registers are kept, and nothing may be spilled.

`pytest tests/golden --update-golden` writes the file anew. The figures are of one version of
NVIDIA's compiler; with any other, half as many again are not too many.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.test_golden import LARGE
from tests.gpus import ARCHITECTURES, nvidia, nvrtc
from tests.kernels import (
    CASES,
    AttentionGradients,
    add,
    attention,
    causal_attention,
    convolution,
    load,
    log_of_sums,
    masked_scores,
    matmul,
    narrow_attention,
    store,
    widened,
)

from ferrule.codegen.intrinsics import MMA
from ferrule.codegen.linearizer import Linearizer
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import Length
from ferrule.ops import LazyOp, ReduceOps
from ferrule.renderer.c.style import cuda_renderer

FILE = Path(__file__).parent / "registers.json"
ROWS = 1 << 16
"""Of attention, as many in all as several heads have: every multiprocessor has several blocks."""


def _kernels() -> dict[str, LazyOp]:
    small = {case.name: case.ast for case in CASES}
    narrow = {dtype.name: store(_product(dtype)) for dtype in MMA.sources}
    narrow["bfloat16_convolution"] = store(_convolution(dtypes.bfloat16))
    chains = {
        "attention_64": store(attention(*(load(i, ROWS, 64) for i in (1, 2, 3)))),
        "attention_128": store(attention(*(load(i, ROWS, 128) for i in (1, 2, 3)))),
        "causal_attention_64": store(causal_attention(*(load(i, ROWS, 64) for i in (1, 2, 3)))),
        "bfloat16_attention_64": narrow_attention(dtypes.bfloat16, ROWS, ROWS, 64, 64),
        "bfloat16_attention_96": narrow_attention(dtypes.bfloat16, ROWS, ROWS, 96, 96),
        "bfloat16_attention_128": narrow_attention(dtypes.bfloat16, ROWS, ROWS, 128, 128),
    }
    wide, causal = (AttentionGradients(ROWS, ROWS, 64, causal=c) for c in (False, True))
    bfloat16 = {n: AttentionGradients(ROWS, ROWS, n, dtypes.bfloat16) for n in (64, 96, 128)}
    gradients = {
        "key_gradient_64": wide.key(),
        "causal_key_gradient_64": causal.key(),
        "log_of_sums_64": store(log_of_sums(masked_scores(load(1, ROWS, 64), load(2, ROWS, 64)))),
        "query_gradient_64": wide.query(),
        "causal_value_gradient_64": causal.value(),
        "key_gradient_128": AttentionGradients(ROWS, ROWS, 128).key(),
        "bfloat16_query_gradient_64": bfloat16[64].query(),
        "bfloat16_key_gradient_128": bfloat16[128].key(),
        "bfloat16_value_gradient_64": bfloat16[64].value(),
        "bfloat16_value_gradient_96": bfloat16[96].value(),
    }
    large = {name: store(make()) for name, make in LARGE.items()}
    return small | large | narrow | chains | gradients | _of_any_length() | _scatters()


def _of_any_length() -> dict[str, LazyOp]:
    """As `fusion/dynamic/lengths.py` plans them for graphs that differ in a size."""
    n, many = Length("length0", 513, 1024), Length("length0", ROWS // 2 + 1, ROWS)
    x, w, rows = load(1, n, 768), load(2, 768, 768), load(1, 64, n)
    return {
        "any_product": store(matmul(x, w)),
        "any_rows_added": store(add(rows, rows)),
        "any_attention_64": store(attention(*(load(i, many, 64) for i in (1, 2, 3)))),
    }


def _rounded() -> dict[str, LazyOp]:
    """Of float32, where its products may be of operands rounded to tf32."""
    a, b = (load(slot, 1024, 1024) for slot in (1, 2))
    x, w = load(1, 32, 64, 56, 56), load(2, 64, 64, 3, 3)
    wide = AttentionGradients(ROWS, ROWS, 64)
    return {
        "tf32": store(matmul(a, b)),
        "tf32_transposed": store(matmul(a.permute((1, 0)), b)),
        "tf32_of_rows": store(matmul(a, b.permute((1, 0)))),
        "tf32_convolution": store(convolution(x, w)),
        "tf32_attention_64": store(attention(*(load(i, ROWS, 64) for i in (1, 2, 3)))),
        "tf32_attention_128": store(attention(*(load(i, ROWS, 128) for i in (1, 2, 3)))),
        "tf32_query_gradient_64": wide.query(),
        "tf32_key_gradient_64": wide.key(),
        "tf32_value_gradient_64": wide.value(),
    }


def _scatters() -> dict[str, LazyOp]:
    """Rows that go where a value says: into zeros, as a table's gradient does, or what is there."""
    rows, places, width = 8192, 50257, 768
    chosen = load(2, rows, 1, dtype=dtypes.int32).expand((rows, width))
    cases: dict[str, tuple[tuple[str, ...], int | None]] = {
        "table_gradient": ((), None),
        "rows_added_in_place": ((), 0),
        "rows_put_in_place": (("last",), 0),
        "rows_put_into_a_copy": (("last",), 3),
    }
    return {
        name: store(
            LazyOp(
                ReduceOps.SCATTER,
                (
                    load(1, rows, width),
                    chosen,
                    *([] if base is None else [load(base, places, width)]),
                ),
                (0, places, *how),
            )
        )
        for name, (how, base) in cases.items()
    }


def _product(dtype: DType) -> LazyOp:
    """Of matrices of narrow floats, for the instruction that multiplies matrices."""
    a, b = (widened(load(slot, 1024, 1024, dtype=dtype)) for slot in (1, 2))
    return matmul(a, b)


def _convolution(dtype: DType) -> LazyOp:
    """Whose images are too narrow for copies without registers, at places shifted by taps."""
    x, w = load(1, 32, 64, 56, 56, dtype=dtype), load(2, 64, 64, 3, 3, dtype=dtype)
    return convolution(widened(x), widened(w))


KERNELS = _kernels()
ROUNDED = _rounded()


def source_of(name: str, arch: str) -> str:
    """A kernel in CUDA C, as it is scheduled for a GPU."""
    target = nvidia(arch).with_tf32 if name in ROUNDED else nvidia(arch)
    ast = ROUNDED[name] if name in ROUNDED else KERNELS[name]
    linearizer = Linearizer(ast, target, name=f"kernel_{name}").linearize()
    return cuda_renderer(target).render(linearizer.name, linearizer.uops)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_registers(arch: str, update_golden: bool) -> None:
    compiler = nvrtc()
    found = {}
    for name in (*KERNELS, *ROUNDED):
        source = source_of(name, arch)
        used = compiler.resources(source, arch)
        assert used.spilled_bytes == 0, f"{name} on {arch} spills {used.spilled_bytes} bytes"
        found[name] = used.registers
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if update_golden:
        kept[arch] = {"compiler": compiler.version, "registers": found}
        FILE.write_text(json.dumps(kept, indent=1) + "\n")
    assert arch in kept, f"{FILE.name} has no {arch}; run pytest tests/golden --update-golden"
    expected = kept[arch]["registers"]
    if compiler.version == kept[arch]["compiler"]:
        assert found == expected
    else:
        assert found.keys() == expected.keys()
        more = {name: n for name, n in found.items() if n > max(32, 1.5 * expected[name])}
        assert not more, f"{compiler.version}: {more}, where {kept[arch]['compiler']} had fewer"
