"""Schedules of element-wise work."""

from __future__ import annotations

import pytest
from tests.kernels import add, constant, exp, load, store
from tests.programs import HOST

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.lower import lower
from ferrule.codegen.streams import CHUNK
from ferrule.dtype import DType, dtypes
from ferrule.expr import const


def _iterations(kernel: Kernel) -> list[int]:
    """How many iterations the loop over vectors has in each chunk of a root nest."""
    chunks, vectors = kernel.roots[0].loops[:2]
    end = vectors.range.size if vectors.end is None else vectors.end
    return [int(end.substitute({chunks.range: const(i)}).arg) for i in range(chunks.size)]


@pytest.mark.parametrize("size", [65_000, 100_000, 100_003, 12 * CHUNK])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float64])
def test_the_last_chunk_ends_where_the_data_end(size: int, dtype: DType) -> None:
    """Masked vectors beyond the end may lie in memory that is not there, which takes long."""
    x = load(1, size, dtype=dtype)
    value = exp(x) if dtype is dtypes.float32 else add(x, constant(1, (size,), dtype))
    kernel = schedule(lower(store(value), "k"), HOST).kernel
    lanes = kernel.roots[0].loops[-1].size
    full = CHUNK // lanes
    counts = _iterations(kernel)
    assert counts[:-1] == [full] * (len(counts) - 1)
    assert sum(counts) == -(-size // lanes)
