"""Times the tiles of a GPU's contractions, to compare with what `codegen/schedules/gpu/cost.py`
estimates.

gpu_tiles.py OUTPUT.json [NAME ...]     on a GPU; all kernels are compiled first, in parallel
gpu_tiles.py OUTPUT.json --compile      for an H100, without one: what compiles, and its registers
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ferrule import Device, Tensor
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.schedules.gpu import chains, cost
from ferrule.codegen.schedules.gpu import tile as tiles
from ferrule.codegen.search import slot_sizes
from ferrule.ir.buffer import Buffer
from ferrule.ir.target import Target
from ferrule.ops import LazyOp
from ferrule.renderer.c.style import cuda_renderer
from ferrule.runtime.cuda.compiler import _FLAGS, NVRTC, _resources
from ferrule.runtime.cuda.driver import bindings, check, gpu_target, open_gpu
from ferrule.runtime.cuda.program import CUDAProgram
from ferrule.schedule import create_schedule

BEST, OTHERS = 24, 24
"""How many tiles of a shape are timed: those with the least estimates, and some of the rest."""
WORST = 4.0
"""Whose estimate is so many times the least one is not timed."""
RUNS = 4


def _product(dtype: str, m: int, k: int, n: int, form: str = "NN") -> Tensor:
    shapes = ((m, k), (k, n))
    stored = [s[::-1] if f == "T" else s for s, f in zip(shapes, form, strict=True)]
    a, b = (Tensor.empty(*shape, dtype=dtype, device="CUDA") for shape in stored)
    return (a.T if form[0] == "T" else a) @ (b.T if form[1] == "T" else b)


def _attention(size: int, width: int, heads: int, causal: bool) -> Tensor:
    q, k, v = (
        Tensor.empty(1, heads, size, width, dtype="bfloat16", device="CUDA") for _ in range(3)
    )
    return q.scaled_dot_product_attention(k, v, is_causal=causal)


SHAPES = (
    "bfloat16 8192x8192x8192",
    "bfloat16 4096x4096x4096",
    "bfloat16 4096x4096x4096 NT",
    "float32 4096x4096x4096",
    "float32 2048x1536x384",
    "float32 2048x384x1536 NT",
    "float32 1536x2048x384 TN",
    "tf32 4096x4096x4096",
    "attention 32x4096x64",
    "attention 16x4096x128",
    "attention 12x2048x64 causal",
)
"""A dtype, rows x terms x columns, and which operands are transposed; or heads x length x width."""


def result_of(shape: str) -> Tensor:
    """What a shape's kernel computes."""
    kind, sizes, *forms = shape.split()
    first, second, third = (int(size) for size in sizes.split("x"))
    if kind == "attention":
        return _attention(second, third, first, "causal" in forms)
    return _product("float32" if kind == "tf32" else kind, first, second, third, *forms)


@dataclass(frozen=True)
class Kernel:
    """A tile of a shape, and what became of it."""

    shape: str
    ast: LazyOp
    tile: Any
    estimate_s: float
    source: str = ""
    blocks: int = 0
    threads: int = 0
    shared_bytes: int = 0
    cubin: bytes = b""
    registers: int = 0
    spilled: int = 0
    error: str = ""
    compile_s: float = 0.0


def kernel_of(shape: str) -> LazyOp:
    """The first kernel of a shape: others may add up what it gives in parts."""
    return create_schedule([result_of(shape).lazydata])[0].ast


def target_of(shape: str, target: Target) -> Target:
    """What the shape's kernel may use."""
    return target.with_tf32 if shape.startswith("tf32") else target


def _plan(shape: str, ast: LazyOp, target: Target) -> Plan:
    plan = Plan(lower(ast, "kernel"), target_of(shape, target))
    plan.collapse()
    return plan


def candidates(shape: str, target: Target) -> list[Kernel]:
    """Tiles of a shape with their estimates, those that are to be timed."""
    ast = kernel_of(shape)
    plan = _plan(shape, ast, target)
    name = plan.kernel.roots[-1].name
    target = plan.target
    chain = chains.Chain.of(plan.kernel, name)
    if chain is not None:
        work = chains._work(plan, chain)
        fitting = chains.fitting_tiles(target, work)
        together = [t for t in fitting if t.scores.matrices is not work.matrices]
        all_tiles = [t for t in fitting if t.scores.matrices is work.matrices]
        estimate = partial(chains.chain_tile_cost, target, work)
    else:
        contraction = tiles._contraction(plan, name)
        work = tiles._work(plan, *contraction)
        all_tiles, together = [], []
        for by, depths in cost._kinds(target, work):
            found, table = cost._candidates(target, work.itemsize, by, work.period, depths)
            fits = cost._fits(target, work, table)
            fitting = [t for t, fit in zip(found, fits, strict=True) if fit]
            (together if by is not work.matrices else all_tiles).extend(fitting)
        estimate = partial(cost.grid_tile_cost, target, work)
    seconds = {t: estimate(t) / target.clock for t in dict.fromkeys(all_tiles)}
    ordered = sorted(seconds, key=seconds.__getitem__)
    rest = [t for t in ordered[BEST:] if seconds[t] < WORST * seconds[ordered[0]]]
    some = random.Random(0).sample(rest, min(OTHERS, len(rest)))
    chosen = [*ordered[:BEST], *some]
    found = [Kernel(shape, ast, t, seconds[t]) for t in chosen]
    return found + [Kernel(shape, ast, t, estimate(t) / target.clock) for t in together]


def compiled(target: Target, kernel: Kernel) -> Kernel:
    """The kernel with its machine code."""
    begin = time.perf_counter()
    try:
        ast, plan = kernel.ast, _plan(kernel.shape, kernel.ast, target)
        name = plan.kernel.roots[-1].name
        chain = chains.Chain.of(plan.kernel, name)
        if chain is None:
            assert tiles.tile_grid(plan, name, kernel.tile)
        else:
            chains.tile_chain(plan, chain, kernel.tile)
        k = Linearizer(ast, plan.target, plan.opts, "kernel").linearize()
        source = cuda_renderer(plan.target).render(k.name, k.uops)
        lib, log = NVRTC()._spilling_least(source, plan.target.arch, _FLAGS)
        used = _resources(log)
    except Exception as error:  # the others may do
        return replace(kernel, error=f"{type(error).__name__}: {error}"[:300])
    return replace(
        kernel,
        source=source,
        blocks=k.blocks,
        threads=k.threads,
        shared_bytes=k.shared_bytes,
        cubin=lib,
        registers=used.registers,
        spilled=used.spilled_bytes,
        compile_s=time.perf_counter() - begin,
    )


def buffers(kernel: Kernel) -> list[Buffer]:
    """Memory for a kernel, full of normal numbers."""
    lowered = lower(kernel.ast, "kernel")
    sizes = slot_sizes(lowered)
    assert sizes is not None
    some = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    found = []
    for dtype, size in zip(lowered.slots, sizes, strict=True):
        values = np.resize(some, size).astype(dtype.np)
        found.append(Buffer("CUDA", size, dtype).copyin(memoryview(values.view(np.uint8))))
    return found


def middle(of: Buffer) -> np.ndarray:
    """Some of what a buffer holds."""
    count = min(of.size, 1 << 18)
    found = np.empty(count, of.dtype.np)
    start = of._buf.address + (of.size - count) // 2 * of.dtype.itemsize
    driver = bindings()
    Device["CUDA"].synchronize()
    check(driver.cuMemcpyDtoH(found.ctypes.data, start, found.nbytes))
    return found.astype(np.float64)


def time_all(kernels: list[Kernel], output: Path) -> None:
    """Runs each kernel several times; the best time, and how far it is from the first one."""
    rows = []
    memory: list[Buffer] = []
    shape, right = "", np.zeros(0)
    gpu = open_gpu(0)
    for kernel in kernels:
        row = {
            name: getattr(kernel, name)
            for name in ("shape", "estimate_s", "threads", "shared_bytes", "registers", "spilled")
        }
        row |= {"blocks": int(kernel.blocks), "tile": repr(kernel.tile), "error": kernel.error}
        rows.append(row)
        if kernel.error:
            continue
        try:
            if kernel.shape != shape:
                memory, shape, right = buffers(kernel), kernel.shape, np.zeros(0)
            given = [buffer._buf for buffer in memory]
            program = CUDAProgram("kernel", kernel.cubin, gpu)
            grid, block = (int(kernel.blocks), 1, 1), (kernel.threads, 1, 1)
            asked = kernel.shared_bytes
            times = [
                program(*given, global_size=grid, local_size=block, wait=True, shared_bytes=asked)
                for _ in range(RUNS)
            ]
            found = middle(memory[0])
            right = right if right.size else found
            row["off"] = float(np.abs(found - right).max() / np.abs(right).max())
            row["seconds"] = min(times[1:])
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:300]
    output.write_text(json.dumps(rows, indent=1))
    for shape in dict.fromkeys(row["shape"] for row in rows):
        done = [row for row in rows if row["shape"] == shape and "seconds" in row]
        for row in sorted(done, key=lambda row: row["seconds"])[:3]:
            print(
                f"{shape}: {1e3 * row['seconds']:.3f} ms (estimate {1e3 * row['estimate_s']:.3f}),"
                f" {row['registers']} registers, {row['spilled']} spilled, {row['tile']}"
            )
        failed = [row for row in rows if row["shape"] == shape and row["error"]]
        if failed:
            print(f"{shape}: {len(failed)} failed, such as {failed[0]['error'][:200]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--compile", action="store_true", help="without a GPU")
    options = parser.parse_args()
    if options.compile:
        use_fake_driver()
    target = gpu_target(open_gpu(0))
    begin = time.perf_counter()
    shapes = options.shapes or list(SHAPES)
    wanted = [kernel for shape in shapes for kernel in candidates(shape, target)]
    print(f"{len(wanted)} tiles in {time.perf_counter() - begin:.1f} s", flush=True)
    spawn = multiprocessing.get_context("spawn")  # this process has opened the GPU
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawn) as pool:
        found = list(pool.map(partial(compiled, target), wanted))
    print(f"{len(found)} kernels compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    if options.compile:
        for kernel in found:
            print(
                kernel.shape,
                f"{1e3 * kernel.estimate_s:.3f} ms",
                kernel.registers,
                kernel.spilled,
                f"{kernel.compile_s:.1f} s",
                kernel.error,
                kernel.tile,
            )
        return
    time_all(found, options.output)


def use_fake_driver() -> None:
    """One that says of itself what an H100 says."""
    from tests.cuda import fake

    fake.install()


if __name__ == "__main__":
    main()
