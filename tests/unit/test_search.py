"""Schedules found by timing: what is proposed, in which order, and what it must not change."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from tests.kernels import CASES, Case, load, matmul, store
from tests.roles import the_output, the_reduce

from ferrule.codegen.estimate import cycles
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import Kernel, KernelError
from ferrule.codegen.linearizer import linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.mutate import Opts, copies, neighbours
from ferrule.codegen.opt import Opt, apply_opts
from ferrule.codegen.plan import Plan
from ferrule.codegen.search import reassociates, search, seeds, slot_sizes
from ferrule.ir.target import detect_cpu

KERNEL = lower(store(matmul(load(1, 96, 200), load(2, 200, 128))), "product")
ROOT, SUM = the_output(KERNEL), the_reduce(KERNEL)
TARGET = detect_cpu()


def legal(kernel: Kernel, opts: Opts) -> bool:
    """Whether a schedule makes a program. Edits promise nothing."""
    try:
        linearize(apply_opts(kernel, opts))
    except Exception:
        return False
    return True


def test_seeds_differ_and_begin_with_the_heuristics_own() -> None:
    found = list(seeds(KERNEL, TARGET))
    assert len(found) >= 3
    assert len(set(found)) == len(found)
    assert found[0] == next(seeds(KERNEL, TARGET))
    assert all(legal(KERNEL, opts) for opts in found)


def test_seeds_have_each_candidate_that_the_heuristic_weighed() -> None:
    plan = schedule(KERNEL, TARGET)
    weighed = [candidate for candidate in plan.candidates if candidate.cycles is not None]
    assert len(weighed) >= 3
    first = list(islice(seeds(KERNEL, TARGET), 10))
    estimates = {cycles(apply_opts(KERNEL, opts), TARGET) for opts in first}
    assert {candidate.cycles for candidate in weighed} <= estimates


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wanted_form_is_taken_where_it_suits(case: Case) -> None:
    kernel = lower(case.ast, case.name)
    for candidate in schedule(kernel, TARGET).candidates:
        path = candidate.path
        wanted = {path[:n]: path[n] for n in range(1, len(path), 2)}
        taken = [c.path for c in schedule(kernel, TARGET, wanted=wanted).candidates if c.is_taken]
        assert candidate.cycles is None or path in taken


def test_neighbours_differ_and_most_are_legal() -> None:
    own = next(seeds(KERNEL, TARGET))
    found = neighbours(KERNEL, own, TARGET)
    assert own not in found
    assert len(set(found)) == len(found) >= 20
    assert found == neighbours(KERNEL, own, TARGET)
    assert sum(legal(KERNEL, opts) for opts in found) > len(found) / 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_edits_can_be_made_of_every_legal_schedule(case: Case) -> None:
    kernel = lower(case.ast, case.name)
    for own in islice(seeds(kernel, TARGET), 3):
        found = (opts for opts in neighbours(kernel, own, TARGET) if legal(kernel, opts))
        for opts in islice(found, 6):
            assert opts not in neighbours(kernel, opts, TARGET)


def test_the_fastest_is_found_by_edits_of_edits() -> None:
    """Here a schedule is the faster the more columns its first split takes together."""

    def columns(opts: Opts) -> float:
        return float(next(opt.args[2] for opt in opts if opt.primitive == "split"))

    def measure(opts: Opts) -> float | None:
        return 1 / columns(opts) if 4 <= columns(opts) <= 256 else None

    own = next(seeds(KERNEL, TARGET))
    calls = iter(range(400))
    found = search(KERNEL, TARGET, measure, 2, lambda: next(calls, None) is None)
    assert columns(found[0].opts) == 256 > columns(own)
    assert [trial.seconds for trial in found] == sorted(trial.seconds for trial in found)


def test_a_search_ends_when_its_time_is_over() -> None:
    assert search(KERNEL, TARGET, lambda opts: 1.0, 2, lambda: True) == []


def test_a_search_ends_when_nothing_is_left_to_try() -> None:
    kernel = lower(store(load(1, 3)), "three")
    tried: list[Opts] = []

    def measure(opts: Opts) -> float | None:
        tried.append(opts)
        return 1.0 if len(tried) == 1 else None

    assert len(search(kernel, TARGET, measure, 4, lambda: False)) == 1
    assert len(set(tried)) == len(tried)


def test_what_is_known_is_tried_early() -> None:
    known = (Opt("split", (ROOT.name, ROOT.loops[0].range.name, 5, "mask")),)
    tried: list[Opts] = []

    def measure(opts: Opts) -> float:
        tried.append(opts)
        return 1.0

    search(KERNEL, TARGET, measure, 2, lambda: len(tried) == 2, (known,))
    assert tried == [next(seeds(KERNEL, TARGET)), known]


@pytest.mark.parametrize("name", ["sum_rows", "softmax"])
def test_legal_edits_keep_the_meaning(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    kernel = lower(case.ast, case.name)
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in case.inputs]
    expected = case.expected(*inputs)
    own = next(seeds(kernel, TARGET))
    for opts in neighbours(kernel, own, TARGET)[:12]:
        if not legal(kernel, opts) or copies(apply_opts(kernel, opts)) > 64:
            continue
        out = np.zeros(expected.size, np.float32)
        interpret(linearize(apply_opts(kernel, opts)), [out, *(i.ravel() for i in inputs)])
        np.testing.assert_allclose(out, expected.ravel(), rtol=1e-4, atol=1e-5)


def test_which_schedules_reassociate() -> None:
    own = next(seeds(KERNEL, TARGET))
    nest, (terms,) = SUM.name, SUM.loop_ranges
    assert not reassociates(KERNEL, own)
    assert not reassociates(KERNEL, ())
    assert reassociates(KERNEL, (Opt("split", (nest, terms.name, 3, "peel")),))
    assert not reassociates(KERNEL, (Opt("split", (nest, terms.name, 8, "peel")),))
    assert reassociates(KERNEL, (Opt("group", (nest, (terms.name,))),))
    plan = Plan(KERNEL, TARGET)
    parts, term = plan.split(nest, terms, 8, "peel")
    plan.do("compute_at", nest, 1)
    plan.do("reorder", nest, (parts, plan.copy_of(ROOT.loops[1].range, nest), term))
    assert reassociates(KERNEL, tuple(plan.opts))


def test_trial_buffers_are_large_enough() -> None:
    assert slot_sizes(KERNEL) == [96 * 128, 96 * 200, 200 * 128]


def test_copies_of_a_loop_in_which_a_reduce_is_computed_are_refused() -> None:
    plan = Plan(KERNEL, TARGET)
    _, row = plan.split(ROOT.name, ROOT.loops[0].range, 4, "mask")
    plan.do("unroll", ROOT.name, row)
    with pytest.raises(KernelError, match=rf"inside of {row}, which is UNROLL"):
        apply_opts(KERNEL, plan.opts)
    apply_opts(KERNEL, (*plan.opts, Opt("compute_at", (SUM.name, 1))))
