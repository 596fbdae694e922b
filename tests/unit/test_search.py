"""Schedules found by timing."""

from __future__ import annotations

import numpy as np
from tests.kernels import load, matmul, store

from ferrule import Context, Tensor
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt
from ferrule.codegen.search import candidates, search, slot_sizes
from ferrule.target import detect_cpu

KERNEL = lower(store(matmul(load(1, 96, 200), load(2, 200, 128))), "product")


def test_candidates_differ_and_begin_with_the_heuristics_own() -> None:
    found = candidates(KERNEL, detect_cpu(), 5)
    assert 2 <= len(found) <= 5
    assert len(set(found)) == len(found)
    assert candidates(KERNEL, detect_cpu(), 1) == found[:1]


def test_the_fastest_is_taken() -> None:
    found = candidates(KERNEL, detect_cpu(), 4)
    seconds = {opts: float(len(found) - i) for i, opts in enumerate(found)}

    def measure(opts: tuple[Opt, ...]) -> float:
        return seconds[opts]

    assert search(KERNEL, detect_cpu(), measure, 4) == found[-1]


def test_trial_buffers_are_large_enough() -> None:
    assert slot_sizes(KERNEL) == [96 * 128, 96 * 200, 200 * 128]


def test_results_do_not_depend_on_the_search() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((70, 90)).astype(np.float32)
    b = generator.standard_normal((90, 50)).astype(np.float32)
    with Context(BEAM=3):
        found = (Tensor(a, device="CPU") @ Tensor(b, device="CPU")).numpy()
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)
