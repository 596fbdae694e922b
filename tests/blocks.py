"""A small device with blocks of threads, for the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ferrule.codegen.interpret import interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.opt import Opt
from ferrule.ir.target import Target, detect_cpu
from tests.kernels import Case, make_inputs

GRID = replace(
    detect_cpu(),
    name="grid",
    vector_bytes=16,
    block_threads=32,
    warp=8,
    index_bits=32,
    max_threads=8,
    shared_bytes=16 << 10,
)


def run(case: Case, opts: Sequence[Opt] | None = None, target: Target = GRID) -> Linearizer:
    """Interprets a kernel, and compares with NumPy."""
    linearizer = Linearizer(case.ast, target, opts).linearize()
    inputs = make_inputs(case)
    expected = case.expected(*inputs)
    out = np.full(expected.size, np.nan, expected.dtype)
    interpret(linearizer.uops, [out, *(i.ravel() for i in inputs)])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=2e-5, atol=1e-5)
    return linearizer
