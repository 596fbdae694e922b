"""How good the estimate of a kernel's time is: what its choice loses against the best candidate.

For each kernel of some programs the candidates are the schedules that `ferrule.tune` begins with,
and edits of them. All are compiled and timed by turns, and the least time of each is kept. The loss
of a choice is its time over that of the fastest candidate.

    .venv/bin/python bench/estimates.py [program ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import exp, log

import numpy as np

from ferrule import Device, Tensor
from ferrule.codegen.estimate import cycles
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.mutate import neighbours
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.search import seeds
from ferrule.device import Compiled, CompiledASTRunner, JITRunner, observer
from ferrule.device.runner import watched_since
from ferrule.ir.buffer import Buffer, newest_serial
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import LazyOp

SEEDS, EDITS = 10, 12
"""Candidates of a kernel, at most."""
ROUNDS = 7
ROUND_S = 0.004
"""Seconds of one candidate in each round."""

Shape = tuple[int, ...]


def _gradient(f: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def both(*tensors: Tensor) -> list[Tensor]:
        for tensor in tensors:
            tensor.requires_grad = True
        (f(*tensors) ** 2).sum().backward()
        return [tensor.grad for tensor in tensors if tensor.grad is not None]

    return both


def _squeeze(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * ((x.mean((2, 3)) @ a).relu() @ b).sigmoid()[:, :, None, None]


PROGRAMS: dict[str, tuple[Callable[..., Tensor | list[Tensor]], list[Shape]]] = {
    "gelu": (lambda x: x.gelu(), [(256, 512)]),
    "transpose": (lambda x: x.T.contiguous(), [(512, 768)]),
    "to channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), [(4, 64, 32, 32)]),
    "sum of rows": (lambda x: x.sum(1), [(512, 768)]),
    "sum of columns": (lambda x: x.sum(0), [(512, 768)]),
    "sum of the middle": (lambda x: x.sum(1), [(64, 96, 80)]),
    "sum of few": (lambda x: x.sum(-1), [(300, 200, 3)]),
    "softmax": (lambda x: x.softmax(1), [(256, 512)]),
    "softmax of columns": (lambda x: x.softmax(0), [(256, 512)]),
    "layernorm": (lambda x: x.layernorm(), [(256, 768)]),
    "variance of the middle": (lambda x: x.var(1), [(32, 128, 256)]),
    "columns less means": (lambda x: x - x.mean(0, keepdim=True), [(512, 768)]),
    "logsumexp": (lambda x: x.logsumexp(0), [(64, 1000)]),
    "argmax": (lambda x: x.argmax(1), [(512, 300)]),
    "running totals": (lambda x: x.cumsum(1), [(256, 512)]),
    "product": (lambda a, b: a @ b, [(256, 256), (256, 256)]),
    "product, odd": (lambda a, b: a @ b, [(33, 1000), (1000, 257)]),
    "product, four rows": (lambda a, b: a @ b, [(4, 512), (512, 1024)]),
    "product, few terms": (lambda a, b: a.T @ b, [(5, 500), (5, 300)]),
    "product, small": (lambda a, b: a @ b, [(2000, 4, 4), (2000, 4, 4)]),
    "product, transposed": (lambda a, b: a @ b.T, [(128, 256), (192, 256)]),
    "layer": (lambda a, b, c: (a @ b + c).relu(), [(128, 256), (256, 192), (192,)]),
    "matrix by vector": (lambda a, b: a @ b, [(1000, 800), (800,)]),
    "vector by matrix": (lambda a, b: a @ b, [(800,), (800, 1000)]),
    "distances": (lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), [(128, 64), (100, 64)]),
    "time embedding": (
        lambda x, t, w: x + (t @ w)[:, :, None, None],
        [(4, 128, 32, 32), (4, 16), (16, 128)],
    ),
    "squeeze and excite": (_squeeze, [(4, 64, 16, 16), (64, 8), (8, 64)]),
    "scaled rows": (lambda x, s: x / (s * s).sum(0).sqrt()[:, None], [(256, 512), (16, 256)]),
    "attention": (
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        [(2, 4, 64, 32), (2, 4, 64, 32), (2, 4, 64, 32)],
    ),
    "bilinear": (
        lambda a, w, b: Tensor.einsum("bi,oij,bj->bo", a, w, b),
        [(64, 32), (16, 32, 24), (64, 24)],
    ),
    "convolution": (lambda x, w: x.conv2d(w, padding=1), [(2, 32, 28, 28), (32, 32, 3, 3)]),
    "convolution, few": (lambda x, w: x.conv2d(w, padding=1), [(2, 4, 32, 32), (4, 4, 3, 3)]),
    "convolution, 1 x 1": (lambda x, w: x.conv2d(w), [(2, 64, 14, 14), (128, 64, 1, 1)]),
    "convolution, stride 2": (
        lambda x, w: x.conv2d(w, stride=2, padding=1),
        [(2, 32, 28, 28), (64, 32, 3, 3)],
    ),
    "depthwise": (
        lambda x, w: x.conv2d(w, groups=32, padding=1),
        [(2, 32, 28, 28), (32, 1, 3, 3)],
    ),
    "max pool": (lambda x: x.max_pool2d((3, 3), stride=2), [(4, 32, 28, 28)]),
    "mean pool": (lambda x: x.avg_pool2d((3, 3), stride=1), [(4, 32, 32, 32)]),
    "gradients of a layer": (_gradient(lambda a, b: a @ b), [(100, 200), (200, 60)]),
    "gradients of softmax": (_gradient(lambda x: x.softmax(1)), [(128, 300)]),
    "gradients of layernorm": (_gradient(lambda x, w: x.layernorm() * w), [(128, 256), (256,)]),
    "gradients of a convolution": (
        _gradient(lambda x, w: x.conv2d(w, padding=1)),
        [(4, 16, 20, 20), (24, 16, 3, 3)],
    ),
    "gradients of depthwise": (
        _gradient(lambda x, w: x.conv2d(w, groups=16, padding=1)),
        [(4, 16, 20, 20), (16, 1, 3, 3)],
    ),
    "gradients of a pool": (_gradient(lambda x: x.max_pool2d((2, 2))), [(4, 16, 20, 20)]),
    "gradients of attention": (
        _gradient(lambda q, k, v: q.scaled_dot_product_attention(k, v)),
        [(2, 4, 48, 32), (2, 4, 48, 32), (2, 4, 48, 32)],
    ),
    "gradients of squeeze and excite": (_gradient(_squeeze), [(4, 64, 16, 16), (64, 8), (8, 64)]),
}


def kernels_of(
    function: Callable[..., Tensor | list[Tensor]], shapes: Sequence[Shape]
) -> dict[LazyOp, list[Buffer]]:
    """The kernels that a function runs, with the buffers of one run."""
    generator = np.random.default_rng(0)
    given = [Tensor(generator.standard_normal(s).astype(np.float32)).realize() for s in shapes]
    found: dict[LazyOp, list[Buffer]] = {}

    def watch(
        runner: JITRunner, buffers: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> float | None:
        if isinstance(runner, CompiledASTRunner) and runner.ast is not None and not var_vals:
            found.setdefault(runner.ast, list(buffers))
        return runner(buffers, var_vals, wait=True)

    token, since = observer.set(watch), watched_since.set(newest_serial())
    try:
        results = function(*given)
        for result in results if isinstance(results, list) else [results]:
            result.realize()
    finally:
        observer.reset(token)
        watched_since.reset(since)
    return found


def compared(device: Compiled, ast: LazyOp, buffers: list[Buffer]) -> list[tuple[float, float]]:
    """(estimated cycles, measured seconds) of each candidate; the heuristic's own is the first."""
    target = device.linearizer_opts
    kernel = Linearizer(ast, target).kernel
    candidates = list(islice(seeds(kernel, target), SEEDS))
    candidates += neighbours(kernel, candidates[0], target)[:EDITS]
    runs: list[tuple[float, Callable[[], float]]] = []
    for opts in dict.fromkeys(candidates):
        try:
            linearizer = Linearizer(ast, target, opts)
            runner = device.to_program(linearizer)
        except (ScheduleError, AssertionError):  # an edit need not be legal
            continue
        estimate = cycles(linearizer.scheduled, target)
        runs.append((estimate, lambda runner=runner: runner(buffers, {}, wait=True)))  # type: ignore[misc]
    least = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for number, (_, run) in enumerate(runs):
            stop = time.perf_counter() + ROUND_S
            run()
            while time.perf_counter() < stop:
                least[number] = min(least[number], run())
    return [(estimate, taken) for (estimate, _), taken in zip(runs, least, strict=True)]


def main() -> None:
    """Print the loss of each kernel, and the geometric mean."""
    device = Device["CPU"]
    assert isinstance(device, Compiled)
    losses: list[tuple[float, float]] = []
    done: set[LazyOp] = set()
    for name, (function, shapes) in PROGRAMS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for ast, buffers in kernels_of(function, shapes).items():
            if ast in done:
                continue
            done.add(ast)
            found = compared(device, ast, buffers)
            if len(found) < 2:
                continue
            best = min(taken for _, taken in found)
            chosen, own = min(found)[1] / best, found[0][1] / best
            losses.append((chosen, own))
            print(f"{name:32s} {chosen:6.2f} {own:6.2f} {best * 1e6:10.1f} us {len(found):3d}")
    for title, values in zip(("estimate", "heuristic"), zip(*losses, strict=True), strict=True):
        mean = exp(sum(map(log, values)) / len(values))
        print(f"{title}: {len(values)} kernels, loss {mean:.3f}, at most {max(values):.2f}")


if __name__ == "__main__":
    main()
