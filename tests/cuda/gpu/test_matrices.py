"""Products of matrices by the warps of a GPU: the instruction, or what stands for it elsewhere."""

import numpy as np
import pytest
from tests.cuda.gpu.conftest import MakeRunner
from tests.kernels import load, matmul, store, widened

from ferrule.buffer import Buffer
from ferrule.codegen.gridtile import GridTile, tile_grid
from ferrule.codegen.intrinsics import MMA
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.uops import UOps
from ferrule.dtype import DType
from ferrule.renderer.cstyle import cuda_renderer
from ferrule.runtime.cuda_driver import GPU, gpu_target

WARPS = GridTile(4, 4, 8, 8, step=32, matrices=True)
ROWS, COLUMNS, TERMS = 45, 30, 70


@pytest.mark.parametrize("dtype", MMA.sources, ids=lambda dtype: dtype.name)
def test_products_of_narrow_floats(dtype: DType, gpu: GPU, runner: MakeRunner) -> None:
    a, b = load(1, ROWS, TERMS, dtype=dtype), load(2, TERMS, COLUMNS, dtype=dtype)
    ast = store(matmul(widened(a), widened(b)))
    plan = Plan(lower(ast, "product"), gpu_target(gpu))
    plan.collapse()
    assert tile_grid(plan, "out0", WARPS)
    k = Linearizer(ast, plan.target, plan.opts, "product").linearize()
    assert any(u.op is UOps.MMA for u in k.uops)
    product = runner(k.name, cuda_renderer(plan.target).render(k.name, k.uops), k.blocks, k.threads)
    generator = np.random.default_rng(0)
    shapes = ((ROWS, TERMS), (TERMS, COLUMNS))
    x, y = (generator.standard_normal(shape).astype(dtype.np) for shape in shapes)
    out = Buffer.fromCPU("CUDA", np.zeros((ROWS, COLUMNS), np.float32))
    product.exec([out, *(Buffer.fromCPU("CUDA", value) for value in (x, y))])
    expected = x.astype(np.float64) @ y.astype(np.float64)
    found = out.toCPU().reshape(ROWS, COLUMNS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
