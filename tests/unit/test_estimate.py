"""The estimate of a kernel's time: what it tells apart, and that schedules are chosen by it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import CASES, Case, add, load, mul, softmax, store, total
from tests.roles import the_output

from ferrule.codegen.estimate import ERROR, cycles, least_cycles, least_untiled
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.kernel import Kernel, Kind
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan, Proposal
from ferrule.codegen.schedules.cpu.rows import schedule_rows
from ferrule.ir.expr import step_along
from ferrule.ops import LazyOp


def product(rows: int, terms: int, columns: int) -> LazyOp:
    full = (rows, terms, columns)
    return total(
        mul(load(1, rows, terms, 1).expand(full), load(2, 1, terms, columns).expand(full)), 1
    )


def embedding(terms: int) -> LazyOp:
    """x + (t @ w)[:, :, None]: images that are much larger than the sums added to them."""
    full = (4, terms, 64)
    sums = total(mul(load(2, 4, terms, 1).expand(full), load(3, 1, terms, 64).expand(full)), 1)
    return add(load(1, 4, 64, 900), sums.reshape((4, 64, 1)).expand((4, 64, 900)))


VALUES = {
    "copy": load(1, 512, 512),
    "rows": total(load(1, 300, 500), 1),
    "columns": total(load(1, 300, 500), 0),
    "softmax": softmax(load(1, 64, 200), 1),
    "product": product(64, 96, 128),
    "embedding": embedding(16),
}


def plan_of(value: LazyOp) -> Plan:
    return Plan(lower(store(value), "k"), TARGET)


# Not the softmax: a schedule stores its exponentials, which two nests would compute.
@pytest.mark.parametrize("name", [name for name in VALUES if name != "softmax"])
def test_no_schedule_is_below_the_least(name: str) -> None:
    kernel = lower(store(VALUES[name]), "k")
    least = least_cycles(kernel, TARGET)
    assert 0 < least <= cycles(schedule(kernel, TARGET).kernel, TARGET)
    assert least <= cycles(kernel, TARGET)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_chosen_schedules_are_far_better_than_none(value: LazyOp) -> None:
    kernel = lower(store(value), "k")
    assert 3 * cycles(schedule(kernel, TARGET).kernel, TARGET) < cycles(kernel, TARGET)


def test_twice_the_work_takes_twice_as_long() -> None:
    taken = [cycles(lower(store(product(64, n, 128)), "k"), TARGET) for n in (200, 400)]
    assert taken[1] / taken[0] == pytest.approx(2, rel=0.1)


def with_lanes(axis: int, lanes: int) -> Kernel:
    plan = plan_of(add(load(1, 512, 512), load(2, 512, 512)))
    (name,) = (nest.name for nest in plan.kernel.roots)
    _, inner = plan.split(name, plan.loops(name)[axis], lanes, "mask")
    plan.do("vectorize", name, inner)
    return plan.kernel


def test_lanes_that_are_neighbours_are_faster_than_others() -> None:
    scalar, along, across = with_lanes(1, 1), with_lanes(1, 16), with_lanes(0, 16)
    assert 3 * cycles(along, TARGET) < cycles(scalar, TARGET) < 2 * cycles(across, TARGET)


def test_threads_share_the_time() -> None:
    kernel = schedule(lower(store(load(1, 4096, 4096)), "k"), TARGET).kernel
    (nest,) = kernel.nests
    assert nest.is_shared_out
    alone = plan_of(load(1, 4096, 4096))
    alone.collapse()
    alone.vectorize_inner(nest.name, alone.nest(nest.name).loops[-1])
    ratio = cycles(alone.kernel, TARGET) / cycles(kernel, TARGET)
    assert ratio == pytest.approx(TARGET.max_threads, rel=0.2)


@pytest.mark.parametrize("terms", [2, 8, 16, 64])
def test_sums_with_a_large_epilogue_have_lanes_where_it_stores(terms: int) -> None:
    """Lanes where the sums load neighbours would gather the images, and scatter the results."""
    kernel = schedule(lower(store(embedding(terms)), "k"), TARGET).kernel
    root = the_output(kernel)
    (lane,) = (loop.range for loop in root.loops if loop.kind is Kind.VECTOR)
    stores = [c.store for c in root.computes if c.store is not None]
    assert [step_along(s.index, lane) for s in stores] == [1]


def unrolled(plan: Plan, axis: int, factor: int) -> bool:
    (name,) = (nest.name for nest in plan.kernel.roots)
    _, inner = plan.split(name, plan.loops(name)[axis], factor, "mask")
    plan.do("vectorize", name, inner)
    return factor > 1


def test_the_best_proposal_is_applied() -> None:
    plan = plan_of(add(load(1, 512, 512), load(2, 512, 512)))
    forms = {
        "across": partial(unrolled, axis=0, factor=16),
        "illegal": partial(unrolled, axis=1, factor=-3),
        "unfit": partial(unrolled, axis=1, factor=1),
        "along": partial(unrolled, axis=1, factor=16),
    }
    assert plan.best("lanes", *[Proposal(*form) for form in forms.items()])
    assert plan.kernel == with_lanes(1, 16)
    assert [opt.primitive for opt in plan.opts] == ["split", "vectorize"]
    assert [(c.path, c.is_taken) for c in plan.candidates] == [
        (("lanes", form), form == "along") for form in forms
    ]
    estimates = [c.cycles for c in plan.candidates]
    assert estimates == [
        cycles(with_lanes(0, 16), TARGET),
        None,
        None,
        cycles(with_lanes(1, 16), TARGET),
    ]
    assert "-3" in plan.candidates[1].note


def test_what_is_made_beforehand_has_no_part_in_a_choice() -> None:
    """So that copies of weights change no bits: only the form that is taken knows of them."""
    seen: list[tuple[int, frozenset[int]]] = []

    def form(plan: Plan, axis: int) -> bool:
        seen.append((axis, frozenset(plan.constants)))
        return unrolled(plan, axis, 16)

    kernel = lower(store(load(1, 512, 512)), "kernel")
    plan = Plan(kernel, TARGET, {1})
    proposals = [Proposal(str(axis), partial(form, axis=axis)) for axis in (0, 1)]
    assert plan.best("lanes", *proposals)
    assert seen == [(0, frozenset()), (1, frozenset()), (1, frozenset({1}))]


def test_without_a_proposal_that_suits_nothing_changes() -> None:
    plan = plan_of(load(1, 512, 512))
    before = plan.kernel
    unfit = Proposal("unfit", partial(unrolled, axis=1, factor=1))
    assert not plan.best("lanes", unfit)
    assert not plan.best("lanes", unfit, unfit)
    assert plan.kernel is before
    assert plan.opts == []


@pytest.mark.parametrize(
    ("sizes", "axis"),
    [((512, 2048, 49), "i0.0"), ((49, 2048, 512), "i0.2"), ((256, 256, 17), "i0.0")],
)
def test_lanes_of_a_tile_are_along_the_axis_that_fills_them(
    sizes: tuple[int, int, int], axis: str
) -> None:
    """49 columns leave a quarter of the lanes of two vectors empty; 512 rows fill them."""
    plan = schedule(lower(store(product(*sizes)), "kernel"), TARGET)
    loops = [loop for nest in plan.kernel.nests for loop in nest.loops]
    lanes = {loop.lineage[0].name for loop in loops if loop.kind is Kind.VECTOR}
    assert axis in lanes


def test_a_proposal_that_cannot_be_faster_is_not_made() -> None:
    def asked(plan: Plan) -> bool:
        raise AssertionError("it takes as long as the first one at least")

    plan = plan_of(add(load(1, 512, 512), load(2, 512, 512)))
    across = partial(unrolled, axis=0, factor=16)
    slow = cycles(with_lanes(0, 16), TARGET) / ERROR
    assert plan.best(
        "lanes", Proposal("across", across), Proposal("asked", asked, lambda kernel, target: slow)
    )
    assert plan.kernel == with_lanes(0, 16)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_take_at_least_the_loads_of_their_terms(case: Case) -> None:
    """So a contraction that is faster than that needs no comparison with rows."""
    kernel = lower(case.ast, case.name)
    for target in (TARGET, replace(TARGET, vector_bytes=32)):
        plan = Plan(kernel, target)
        plan.collapse()
        (name, *others) = [nest.name for nest in plan.kernel.roots]
        if others or len(plan.below(name)) != 1:
            continue  # a schedule may store what several nests compute
        least = least_untiled(plan.kernel, target)
        if plan.attempt(schedule_rows, name):
            assert cycles(plan.kernel, target) >= least


def test_terms_that_are_left_out_cost_no_product_of_their_own() -> None:
    """77 terms, four at a time, have a condition, which holds in all iterations but the last."""
    some, all_of_them = (schedule(lower(store(product(64, n, 96)), "k"), TARGET) for n in (77, 80))
    assert cycles(some.kernel, TARGET) < 1.2 * cycles(all_of_them.kernel, TARGET)
