"""Element-wise tasks that differ in size alone: one program for all of them, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests import gpus

from ferrule import Context, Tensor, TinyJit, scan
from ferrule.codegen.policy import CHUNK_ELEMENTS, MAX_CACHED_BYTES, sizes_of_one_program
from ferrule.engine.realize import run, settle_writes
from ferrule.fusion import make_schedule
from ferrule.fusion.any_size import for_any_size
from ferrule.fusion.plans.plan_cache import from_bytes, to_bytes
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import BufferOps, LazyOp, ScheduleItem
from ferrule.ir.target import detect_cpu
from ferrule.nn.optim import SGD, AdamW

Array = np.ndarray[Any, Any]

SHAPES = [(2,), (3, 5), (16,), (7, 1, 31), (2 * CHUNK_ELEMENTS - 1,), (2, CHUNK_ELEMENTS)]
"""Fewer elements than a vector, whole vectors and a rest, and both sides of a bound."""
LARGE = [(300, 301), (60_000,), (65_536,)]


@pytest.fixture(autouse=True, params=[1, 2])
def on_the_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    settle_writes()
    with Context(FERRULE_DEVICE="CPU", FERRULE_NUM_THREADS=request.param):
        yield


def arrays(shapes: Sequence[tuple[int, ...]], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def scheduled(results: Sequence[Tensor]) -> list[ScheduleItem]:
    return make_schedule([result.lazydata for result in results]).items


def programs(items: Sequence[ScheduleItem]) -> int:
    return len({item.ast for item in items})


def test_tasks_of_all_sizes_in_some_bounds_run_one_program() -> None:
    given = arrays([*SHAPES, *LARGE])
    factor = Tensor([2.5]).realize()
    results = [(Tensor(x).realize() * factor).relu() + 0.5 for x in given]
    items = scheduled(results)
    assert len(items) == len(given)
    assert programs(items) == 2
    assert [dict(item.var_vals) for item in items] == [
        dict.fromkeys(item.ast.vars(), x.size) for item, x in zip(items, given, strict=True)
    ]
    for x, result in zip(given, results, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.maximum(x * np.float32(2.5), 0) + 0.5)


def test_tasks_of_one_size_run_a_program_of_that_size() -> None:
    results = [Tensor(x).realize() * 3 for x in arrays([(40, 5)] * 3)]
    items = scheduled(results)
    assert (len(items), programs(items)) == (3, 1)
    assert not items[0].ast.vars()


def test_tasks_with_a_common_operand_are_one_kernel() -> None:
    x, *others = [Tensor(x).realize() for x in arrays([(40, 5)] * 3)]
    (item,) = scheduled([x * other for other in others])
    assert len(item.outputs) == 2


def test_devices_that_compile_nothing_merge_tasks() -> None:
    with Context(FERRULE_DEVICE="NUMPY"):
        (item,) = scheduled([Tensor(x).realize() * 3 for x in arrays([(40,), (7,)])])
    assert len(item.outputs) == 2


def repeated(x: Tensor) -> Tensor:
    return x * Tensor(np.arange(x.shape[-1], dtype=np.float32)).realize()


def turned(x: Tensor) -> Tensor:
    return x.reshape(2, -1).transpose() * 2


def counted(x: Tensor) -> Tensor:
    return Tensor.arange(x.shape[-1]) * x


def padded(x: Tensor) -> Tensor:
    return x.pad(((0, 0), (1, 2))) + 1


def beside_padded_ones(x: Tensor) -> Tensor:
    return Tensor.ones(4, 2).pad(((0, 0), (1, x.shape[-1] - 3))) + x


def part(x: Tensor) -> Tensor:
    return x[:, 1:] + 1


@pytest.mark.parametrize("function", [repeated, turned, counted, padded, beside_padded_ones, part])
def test_what_does_not_pass_along_memory_has_programs_of_its_sizes(
    function: Callable[[Tensor], Tensor],
) -> None:
    given = arrays([(4, 6), (4, 10)])
    results = [function(Tensor(x).realize()) for x in given]
    assert not any(item.ast.vars() for item in scheduled(results))
    with Context(FERRULE_DEVICE="NUMPY"):
        expected = [function(Tensor(x).realize()).numpy() for x in given]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), wanted)


def updated(shapes: Sequence[tuple[int, ...]], make: Callable[..., Any], steps: int) -> list[Array]:
    """The parameters of these shapes after some steps, of which the last ones are replays."""
    params = [Tensor(x, requires_grad=True).realize() for x in arrays(shapes)]
    optimizer = make(params)

    @TinyJit
    def step(scale: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = sum([(param * param * scale).sum() for param in params], start=Tensor(0.0))
        loss.backward()
        optimizer.step()
        return loss.realize()

    for n in range(steps):
        step(Tensor([0.5 + n]).realize())
    return [param.numpy() for param in params]


@pytest.mark.parametrize(
    "make", [lambda p: AdamW(p, lr=0.01), lambda p: SGD(p, lr=0.1, momentum=0.9)]
)
def test_updates_of_parameters_have_the_bits_of_kernels_for_their_sizes(
    make: Callable[..., Any],
) -> None:
    shapes = [*SHAPES, *LARGE]
    found = updated(shapes, make, 4)
    with Context(FERRULE_SKIP="sizes"):
        expected = updated(shapes, make, 4)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_stored_plan_has_the_sizes() -> None:
    given = arrays(SHAPES)
    schedule = make_schedule([(Tensor(x).realize() + 2).lazydata for x in given])
    read = from_bytes(to_bytes(schedule.plan))
    assert read.steps == schedule.plan.steps
    assert [step.size for step in read.steps] == [x.size for x in given]


def test_items_of_a_schedule_can_be_run() -> None:
    given = arrays(SHAPES)
    items = scheduled([Tensor(x).realize() * 7 for x in given])
    run(items)
    for x, item in zip(given, items, strict=True):
        found = np.empty_like(x)
        item.out.copyout(memoryview(found).cast("B"))
        np.testing.assert_array_equal(found, x * 7)


def test_steps_of_a_loop_have_their_sizes() -> None:
    given = arrays([(3, 4), (50,), (9, 9)])

    def body(carried: list[Tensor], _: None) -> tuple[list[Tensor], None]:
        return [x * 0.5 + 1 for x in carried], None

    results, _ = scan(body, [Tensor(x) for x in given], length=5)
    for x, result in zip(given, results, strict=True):
        for _ in range(5):
            x = x * np.float32(0.5) + 1
        np.testing.assert_array_equal(result.numpy(), x)


# *** the bounds ***


def test_the_bounds_of_sizes_partition_all_sizes() -> None:
    target, most = detect_cpu(), MAX_CACHED_BYTES // 4
    for work in (1, 5, 20, 400):
        bounds = {sizes_of_one_program(target, size, work, 4) for size in (1, 10**5, most - 1)}
        found = sorted({b for b in bounds if b is not None})
        assert found[0][0] == 1
        assert found[-1][1] == most - 1
        for (_, last), (first, _) in pairwise(found):
            assert first == last + 1
        for low, high in found:
            assert {sizes_of_one_program(target, n, work, 4) for n in (low, high)} == {(low, high)}
        assert sizes_of_one_program(target, most, work, 4) is None


def test_thread_blocks_have_programs_of_their_sizes() -> None:
    assert sizes_of_one_program(gpus.GPU, 100, 5, 4) is None


def test_the_rewritten_kernel_is_of_one_axis() -> None:
    (item,) = scheduled([Tensor(arrays([(3, 4)])[0]).realize() + Tensor([1.0]).realize()])
    found = for_any_size(item.ast, 12, detect_cpu())
    assert isinstance(found, LazyOp)
    (n,) = found.vars()
    assert isinstance(n, Variable)
    loads = [x.arg.st.view for x in found.toposort() if x.op is BufferOps.LOAD]
    assert sorted(view.strides for view in loads) == [(0,), (1,)]
    assert found.arg.st.shape == (n,)
    assert for_any_size(item.ast, 13, detect_cpu()) is None
