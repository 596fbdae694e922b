"""`scan`: against the same function in a Python loop, forwards, backwards, mapped and captured."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.planning import Work

from ferrule import Context, GlobalCounters, Tensor, TinyJit, Variable, nn
from ferrule.errors import GradientError, LoopError, ShapeError
from ferrule.transforms import checkpoint, cond, grad, jvp, scan, vmap, while_loop

RNG = np.random.default_rng(5)
ROWS, WEIGHT, STATE = (RNG.normal(size=n) for n in ((6, 2, 4), (4, 4), (2, 4)))
Function = Callable[..., Any]


def in_python(f: Function, init: Any, xs: Any, reverse: bool = False) -> Any:
    """`scan` of one array, as a loop."""
    carry, rows = init, []
    for row in xs.unbind()[:: -1 if reverse else 1]:
        carry, y = f(carry, row)
        rows.append(y)
    rows = rows[::-1] if reverse else rows
    return carry, Tensor.stack(rows)


def network(loop: Function, reverse: bool) -> Function:
    """A function of a weight, a state and rows, with two carried values."""

    def function(weight: Tensor, state: Tensor, rows: Tensor) -> Tensor:
        def step(carry: Any, row: Tensor) -> Any:
            hidden, total = carry
            hidden = (row + hidden @ weight.tanh()).tanh()
            total = total * hidden.sigmoid() + row
            return (hidden, total), hidden * total.exp2()

        (hidden, total), rows = loop(step, (state, state * 2), rows, reverse=reverse)
        return (hidden * hidden).sum() + (rows**2).sum() + total.sum()

    return function


def close(found: Any, wanted: Any, atol: float = 1e-9) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=atol)


def point() -> list[Tensor]:
    return [Tensor(array) for array in (WEIGHT, STATE, ROWS)]


# *** values ***


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_values_are_those_of_a_loop(device: str, reverse: bool, count: int) -> None:
    args = [Tensor(WEIGHT), Tensor(STATE), Tensor(ROWS[:count])]
    found = network(scan, reverse)(*args)
    np.testing.assert_allclose(found.item(), network(in_python, reverse)(*args).item(), rtol=1e-12)


@dataclass
class State:
    count: Tensor
    parts: dict[str, Tensor]


def test_carries_and_rows_are_containers(device: str) -> None:
    def step(state: State, row: dict[str, Tensor]) -> tuple[State, list[Any]]:
        parts = {"sum": state.parts["sum"] + row["a"], "last": row["b"]}
        return State(state.count + 1, parts), [row["b"] > 0, None, state.count]

    first = State(Tensor(np.int32(0)), {"sum": Tensor(np.zeros(4)), "last": Tensor(np.zeros(2))})
    rows = {"a": Tensor(ROWS[:, 0]), "b": Tensor(ROWS[:, 1, :2])}
    last, (positive, nothing, counts) = scan(step, first, rows)
    assert isinstance(last, State)
    assert last.count.item() == len(ROWS)
    assert nothing is None
    np.testing.assert_allclose(last.parts["sum"].numpy(), ROWS[:, 0].sum(0), atol=1e-12)
    np.testing.assert_array_equal(last.parts["last"].numpy(), ROWS[-1, 1, :2])
    np.testing.assert_array_equal(positive.numpy(), ROWS[:, 1, :2] > 0)
    assert counts.tolist() == list(range(len(ROWS)))


def test_numbers_and_arrays_become_tensors(device: str) -> None:
    last, rows = scan(lambda c, x: (c * x, c), 1, np.array([2, 3, 4], np.int32))
    assert (last.item(), rows.tolist()) == (24, [1, 2, 6])


def test_no_rows_but_a_length(device: str) -> None:
    last, rows = scan(lambda c, _: (c[::-1] * 2, c[0]), Tensor([1.0, 3.0]), None, length=3)
    assert (last.tolist(), rows.tolist()) == ([24.0, 8.0], [1.0, 6.0, 4.0])


def test_carries_that_change_places_or_stay(device: str) -> None:
    a, b, c = (Tensor(np.arange(3.0) + n) for n in range(3))
    (last_a, last_b, last_c), rows = scan(
        lambda s, _: ((s[1], s[0], s[2]), s[2]), (a, b, c), length=3
    )
    close([last_a, last_b, last_c], [b, a, c])
    close([rows], [Tensor.stack([c, c, c])])


def test_no_trips(device: str) -> None:
    last, rows = scan(lambda c, x: (c + x, c), Tensor(ROWS[0]), Tensor(ROWS[:0]))
    close([last], [Tensor(ROWS[0])])
    assert rows.shape == (0, 2, 4)


def test_values_without_elements(device: str) -> None:
    empty = Tensor(np.zeros((0, 3)))
    (last, total), rows = scan(
        lambda c, x: ((c[0], c[1] + x.sum()), c[0]), (empty, Tensor(0.0)), Tensor(ROWS).float()
    )
    assert (last.shape, rows.shape) == ((0, 3), (6, 0, 3))
    np.testing.assert_allclose(total.item(), ROWS.sum(), rtol=1e-5)


def test_rows_that_are_a_part_are_read_in_place(device: str) -> None:
    rows = Tensor(ROWS).realize()
    before = GlobalCounters.kernel_count
    last, _ = scan(lambda c, x: (c + x, None), Tensor(np.zeros((2, 4))), rows[1:4])
    last.realize()
    assert GlobalCounters.kernel_count - before <= 3 + 3
    np.testing.assert_allclose(last.numpy(), ROWS[1:4].sum(0), atol=1e-12)


def test_what_does_not_change_is_computed_once(device: str) -> None:
    weight = Tensor(WEIGHT)

    def step(carry: Tensor, row: Tensor) -> Any:
        return carry + row @ (weight @ weight).exp(), None

    before = GlobalCounters.global_ops
    last, _ = scan(step, Tensor(STATE), Tensor(ROWS))
    np.testing.assert_allclose(
        last.numpy(), STATE + (ROWS @ np.exp(WEIGHT @ WEIGHT)).sum(0), rtol=1e-9
    )
    product, trip = 2 * 4 * 4 * 4, 2 * 2 * 4 * 4 + 2 * 4
    assert GlobalCounters.global_ops - before < 6 * trip + 2 * product


def test_carries_that_nobody_needs_are_dropped(device: str) -> None:
    def step(carry: Any, row: Tensor) -> Any:
        a, b, c = carry
        return (a + row, b * a.exp(), c + b), a

    rows, start = Tensor(ROWS), Tensor(STATE)
    (last, _, _), _ = scan(step, (start, start, start), rows)
    last.realize()
    before = GlobalCounters.global_ops
    (last, _, _), _ = scan(step, (start, start, start), rows)
    del _
    last.realize()
    assert GlobalCounters.global_ops - before <= 6 * 8


def test_results_that_are_asked_for_one_after_the_other(device: str) -> None:
    (hidden, total), rows = scan(
        lambda c, x: ((c[0] + x, c[1] * x), c[0] * c[1]),
        (Tensor(STATE), Tensor(STATE)),
        Tensor(ROWS),
    )
    found = [value.numpy() for value in (rows, total, hidden)]
    a, b, wanted = STATE, STATE, []
    for row in ROWS:
        wanted.append(a * b)
        a, b = a + row, b * row
    for one, other in zip(found, [np.stack(wanted), b, a], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_loop_inside_a_loop(device: str) -> None:
    def inner(carry: Tensor, element: Tensor) -> Any:
        return carry * 0.5 + element, None

    def step(carry: Tensor, row: Tensor) -> Any:
        last, _ = scan(inner, carry, row)
        return last, last

    last, rows = scan(step, Tensor(np.zeros(4)), Tensor(ROWS))
    carry, wanted = np.zeros(4), []
    for row in ROWS:
        for element in row:
            carry = carry * 0.5 + element
        wanted.append(carry)
    np.testing.assert_allclose(rows.numpy(), np.stack(wanted), atol=1e-12)
    np.testing.assert_allclose(last.numpy(), carry, atol=1e-12)


def test_a_function_of_the_host_in_a_loop(device: str) -> None:
    last, rows = scan(lambda c, x: (c + x.sort(-1)[0], c), Tensor(STATE), Tensor(ROWS))
    np.testing.assert_allclose(last.numpy(), STATE + np.sort(ROWS, -1).sum(0), atol=1e-12)
    assert rows.shape == ROWS.shape


def test_writes_to_tensors_of_a_trip(device: str) -> None:
    def step(carry: Tensor, row: Tensor) -> Any:
        new = Tensor.zeros(2, 4, dtype=row.dtype).contiguous()
        new[0] = row[1]
        carry[1] = new[0] + carry[0]
        return carry, new

    start = Tensor(STATE)
    last, rows = scan(step, start, Tensor(ROWS))
    carry = STATE.copy()
    for row in ROWS:
        carry[1] = row[1] + carry[0]
    np.testing.assert_allclose(last.numpy(), carry, atol=1e-12)
    np.testing.assert_allclose(rows.numpy()[:, 0], ROWS[:, 1])
    np.testing.assert_array_equal(rows.numpy()[:, 1], 0)
    np.testing.assert_array_equal(start.numpy(), STATE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_length_that_is_a_variable(device: str, reverse: bool) -> None:
    rows = Tensor(ROWS).contiguous().realize()
    n = Variable("n", 1, 6)
    for count in (1, 4, 6, 3):
        given = rows[: n.bind(count)]
        last, sums = scan(
            lambda c, x: (c + x, c + x), Tensor(np.zeros((2, 4))), given, reverse=reverse
        )
        np.testing.assert_allclose(last.numpy(), ROWS[:count].sum(0), atol=1e-12)
        part = ROWS[:count][::-1] if reverse else ROWS[:count]
        wanted = np.cumsum(part, 0)[::-1] if reverse else np.cumsum(part, 0)
        np.testing.assert_allclose(sums.numpy(), wanted, atol=1e-12)


# *** any number of trips ***

COUNTS = [6, 3, 9, 5, 1, 2, 12, 0, 4, 70, 7, 11, 1, 2, 90]
WEIGHT32, STATE32 = WEIGHT.astype(np.float32) / 2, STATE.astype(np.float32)


def rows_of(count: int, batch: int = 2) -> Any:
    return RNG.normal(size=(count, batch, 4)).astype(np.float32)


def recurrent(weight: Tensor, state: Tensor, rows: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The last state, and the rows of states."""

    def step(hidden: Tensor, row: Tensor) -> Any:
        hidden = (hidden @ weight + row).tanh()
        return hidden, hidden

    last, states = scan(step, state, rows, reverse=reverse)
    return last, states


def recurrent_in_numpy(weight: Any, state: Any, rows: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """The rows of states, and the gradients of the sum of their squares by weight and rows."""
    rows = rows[::-1] if reverse else rows
    states = [state]
    for row in rows:
        states.append(np.tanh(states[-1] @ weight + row))
    by_weight, by_rows, slope = np.zeros_like(weight), np.zeros_like(rows), np.zeros_like(state)
    for n in reversed(range(len(rows))):
        by_rows[n] = (slope + 2 * states[n + 1]) * (1 - states[n + 1] ** 2)
        by_weight += states[n].T @ by_rows[n]
        slope = by_rows[n] @ weight.T
    outs = np.reshape(states[1:], rows.shape)
    return (outs[::-1], by_weight, by_rows[::-1]) if reverse else (outs, by_weight, by_rows)


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_any_number_of_trips_has_one_plan(device: str, work: Work, reverse: bool) -> None:
    weight, state = Tensor(WEIGHT32).realize(), Tensor(STATE32).realize()
    for number, count in enumerate([*COUNTS, 20, 13]):
        rows = rows_of(count)
        if number == len(COUNTS):
            before = work.plans
        last, states = recurrent(weight, state, Tensor(rows).realize() * 2, reverse)
        Tensor.realize(last, states)
        wanted, _, _ = recurrent_in_numpy(WEIGHT32, STATE32, rows * 2, reverse)
        near(states, wanted)
        near(last, wanted[0 if reverse else -1] if count else STATE32)
    assert work.plans == before
    # A plan for each of the first two lengths and for the body; and one each for more than 64
    # rows, no row, and one row, whose axis may be repeated.
    assert before <= 6


def test_any_number_of_trips_without_arrays(device: str, work: Work) -> None:
    for number, count in enumerate((4, 7, 9, 2, 5, 12)):
        if number == 2:
            before = work.plans
        _, pairs = scan(lambda c, _: (c, Tensor([2.0, 3.0]) * 1.5), (), length=count)
        last, numbers = scan(lambda c, _: (c + 1, c), Tensor.zeros(2), length=count)
        assert pairs.tolist() == [[3.0, 4.5]] * count
        assert numbers.tolist() == [[n, n] for n in range(count)]
        assert last.tolist() == [count, count]
    assert work.plans == before


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_training_steps_with_any_number_of_trips(
    device: str, work: Work, reverse: bool, jit: bool
) -> None:
    weight, state = Tensor(WEIGHT32, requires_grad=True).realize(), Tensor(STATE32).realize()
    optimizer = nn.optim.SGD([weight], lr=0.01)

    def step(rows: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        rows = rows.detach()
        rows.requires_grad = True
        loss = (recurrent(weight, state, rows, reverse)[1] ** 2).sum()
        loss.backward()
        optimizer.step()
        assert rows.grad is not None
        return loss.realize(), rows.grad.realize()

    trained = TinyJit(step) if jit else step
    current = WEIGHT32
    counts = [count for count in COUNTS if count]  # a sum of no rows has no gradient
    for number, count in enumerate([*counts, *counts, 20, 13]):
        rows = rows_of(count)
        if number == 2 * len(counts):
            before = work.plans
        loss, slopes = trained(Tensor(rows).realize())
        states, by_weight, by_rows = recurrent_in_numpy(current, STATE32, rows, reverse)
        current = current - 0.01 * by_weight
        near(loss, (states**2).sum())
        near(slopes, by_rows)
        near(weight, current)
    assert work.plans == before


SIZES = [(5, 2), (7, 3), (9, 2), (4, 5), (11, 8), (3, 3), (1, 6), (6, 9), (8, 2), (2, 7), (70, 4)]


def test_batch_and_number_of_trips_change(device: str, work: Work) -> None:
    weight = Tensor(WEIGHT32, requires_grad=True).realize()
    for number, (count, batch) in enumerate([*SIZES, *SIZES, (10, 11), (12, 10)]):
        if number == 2 * len(SIZES):
            before = work.plans
        rows, state = rows_of(count, batch), np.zeros((batch, 4), np.float32)
        _, states = recurrent(weight, Tensor.zeros(batch, 4), Tensor(rows).realize() + 1, False)
        weight.grad = None
        (states**2).sum().backward()
        wanted, by_weight, _ = recurrent_in_numpy(WEIGHT32, state, rows + 1, False)
        near(states, wanted)
        assert weight.grad is not None
        near(weight.grad, by_weight)
    assert work.plans == before


def test_a_loop_in_a_loop_of_any_sizes(device: str, work: Work) -> None:
    def inner(carry: Tensor, element: Tensor) -> Any:
        return carry * 0.5 + element, carry.sum()

    def step(carry: Tensor, row: Tensor) -> Any:
        last, sums = scan(inner, carry, row)
        return last, sums

    for number, (count, batch) in enumerate([(3, 2), (5, 3), (4, 2), (6, 5), (2, 4), (7, 6)]):
        rows = RNG.normal(size=(count, 4, batch)).astype(np.float32)
        if number == 4:
            before = work.plans
        last, sums = scan(step, Tensor.zeros(batch), Tensor(rows).realize() * 2)
        Tensor.realize(last, sums)
        carry = np.zeros(batch)
        wanted = []
        for element in 2 * rows.reshape(-1, batch):
            wanted.append(carry.sum())
            carry = carry * 0.5 + element
        near(last, carry)
        near(sums, np.reshape(wanted, (count, 4)))
    assert work.plans == before


def test_a_body_that_runs_often_has_kernels_of_its_own(
    device: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = Tensor(WEIGHT32).realize()

    def check(count: int, batch: int) -> None:
        rows, state = rows_of(count, batch), np.zeros((batch, 4), np.float32)
        _, states = recurrent(weight, Tensor.zeros(batch, 4), Tensor(rows).realize() + 1, False)
        near(states, recurrent_in_numpy(WEIGHT32, state, rows + 1, False)[0])

    for sizes in SIZES[:6]:
        check(*sizes)
    before = set(work.kernels)
    check(6, 7)
    assert work.kernels == before
    monkeypatch.setattr("ferrule.engine.loop_runs.uses_worth_kernels", lambda costs, _: 20)
    check(9, 4)
    check(8, 4)
    assert work.kernels == before
    check(7, 4)
    own = set(work.kernels)
    assert own > before
    check(10, 4)
    check(5, 4)
    assert work.kernels == own


def test_layers_of_both_directions_have_one_plan(device: str, work: Work) -> None:
    layer = nn.LSTM(4, 5, 2, bidirectional=True)
    Tensor.realize(*nn.state.get_parameters(layer))
    plans = []
    for count in (6, 3, 9, 5, 12, 2, 31):
        rows = Tensor(rows_of(count)).realize()
        found = layer(rows)[0].numpy()
        plans.append(work.plans)
        with Context(FERRULE_SKIP="lengths"):
            near(layer(rows)[0], found)
        work.plans = plans[-1]
    assert plans[2:] == plans[1:2] * 5


def test_the_costs_of_a_captured_loop_are_those_of_all_trips() -> None:
    @TinyJit
    def total(rows: Tensor) -> Tensor:
        return scan(lambda c, row: ((c * row).exp(), None), Tensor(STATE32), rows)[0].realize()

    def operations(count: int) -> int:
        rows = Tensor(rows_of(count)).realize()
        for _ in range(3):
            total(rows)
        (loop,) = [one for one in total.explain().kernels if one.name == "loop"]
        return loop.operations

    with Context(FERRULE_DEVICE="CPU"):
        assert operations(8) == 2 * operations(4) > 0


def test_few_kernels_are_made_for_many_trips(device: str, work: Work) -> None:
    layer = nn.LSTM(3, 5)
    Tensor.realize(*nn.state.get_parameters(layer))
    before = len(work.kernels)
    out, _ = layer(Tensor(RNG.normal(size=(64, 2, 3)).astype(np.float32)))
    out.realize()
    assert len(work.kernels) - before <= 5


def test_weights_are_packed_once_a_run_from_the_second_on() -> None:
    weight = Tensor((RNG.normal(size=(512, 512)) / 32).astype(np.float32)).realize()
    start = Tensor(RNG.normal(size=(192, 512)).astype(np.float32)).realize()

    def run() -> tuple[int, Any]:
        before = GlobalCounters.kernel_count
        last, _ = scan(lambda c, _: ((c @ weight.T).tanh(), None), start, length=4)
        found = last.numpy()
        return GlobalCounters.kernel_count - before, found

    with Context(FERRULE_DEVICE="CPU"):
        counts, values = zip(*[run() for _ in range(3)], strict=True)
        assert counts == (counts[0], counts[0] + 1, counts[0] + 1)
        np.testing.assert_array_equal(values[1], values[0])
        np.testing.assert_array_equal(values[2], values[0])
        weight.assign(weight * 0.5).realize()
        _, after = run()
    wanted = start.numpy()
    for _ in range(4):
        wanted = np.tanh(wanted @ weight.numpy().T)
    np.testing.assert_allclose(after, wanted, atol=1e-5)


# *** random numbers ***


def test_each_trip_draws_numbers_of_its_own(device: str) -> None:
    Tensor.manual_seed(3)
    _, drawn = scan(lambda c, _: (c, Tensor.rand(50)), Tensor(0.0), length=4)
    values = drawn.numpy()
    assert len(np.unique(values)) > 190
    _, more = scan(lambda c, _: (c, Tensor.rand(50)), Tensor(0.0), length=4)
    assert not np.array_equal(more.numpy(), values)
    Tensor.manual_seed(3)
    _, again = scan(lambda c, _: (c, Tensor.rand(50)), Tensor(0.0), length=4)
    np.testing.assert_array_equal(again.numpy(), values)


def test_dropout_in_a_loop_has_the_gradient_of_its_mask(device: str) -> None:
    x = Tensor(np.ones((5, 40)))

    def total(x: Tensor) -> Any:
        _, rows = scan(lambda c, row: (c, row.dropout(0.5)), Tensor(0.0), x)
        return rows.sum(), rows

    with Tensor.train():
        slope, rows = grad(total, has_aux=True)(x)
    np.testing.assert_array_equal(slope.numpy(), rows.numpy())
    assert 0 < (rows.numpy() == 0).sum() < 200


# *** derivatives ***


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_are_those_of_a_loop(device: str, reverse: bool) -> None:
    by = (0, 1, 2)
    found = grad(network(scan, reverse), by)(*point())
    close(found, grad(network(in_python, reverse), by)(*point()))


@pytest.mark.parametrize("reverse", [False, True])
def test_second_derivatives_are_those_of_a_loop(device: str, reverse: bool) -> None:
    def length(loop: Function) -> Function:
        slopes = grad(network(loop, reverse), (0, 1, 2))
        return lambda *args: sum((slope * slope).sum() for slope in slopes(*args))

    wanted = grad(length(in_python), (0, 1, 2))(*point())
    for found, other in zip(grad(length(scan), (0, 1, 2))(*point()), wanted, strict=True):
        scale = abs(other.numpy()).max()
        np.testing.assert_allclose(found.numpy() / scale, other.numpy() / scale, atol=1e-9)


@pytest.mark.parametrize("reverse", [False, True])
def test_tangents_are_those_of_a_loop(device: str, reverse: bool) -> None:
    along = tuple(Tensor(RNG.normal(size=array.shape)) for array in (WEIGHT, STATE, ROWS))
    found = jvp(network(scan, reverse), tuple(point()), along)
    close(found, jvp(network(in_python, reverse), tuple(point()), along))


def test_backward_after_the_value_was_read(device: str) -> None:
    weight, state, rows = (Tensor(a.numpy(), requires_grad=True) for a in point())
    value = network(scan, False)(weight, state, rows)
    value.item()
    value.backward()
    wanted = grad(network(in_python, False), (0, 1, 2))(*point())
    close([weight.grad, state.grad, rows.grad], wanted)


def test_hooks_see_the_whole_gradient(device: str) -> None:
    weight = Tensor(WEIGHT, requires_grad=True)
    seen: list[Tensor] = []
    weight.register_hook(lambda slope: seen.append(slope) or slope * 2)
    _, state, rows = point()
    network(scan, False)(weight, state, rows).backward()
    (wanted,) = grad(network(in_python, False), (0,))(*point())
    close([*seen, weight.grad], [wanted, wanted * 2])


def test_a_checkpointed_loop(device: str) -> None:
    def function(*args: Tensor) -> Any:
        return checkpoint(network(scan, False), *args)

    close(grad(function, (0, 1, 2))(*point()), grad(network(in_python, False), (0, 1, 2))(*point()))


def test_integers_have_no_gradient(device: str) -> None:
    def total(x: Tensor) -> Tensor:
        (last, count), _ = scan(
            lambda c, row: ((c[0] * row, c[1] + 1), c[1]), (Tensor(np.float64(1)), 0), x
        )
        return last * count

    x = np.array([2.0, 3.0, 5.0])
    np.testing.assert_allclose(grad(total)(Tensor(x)).numpy(), 3 * x.prod() / x)


# *** mapped ***

AXES: list[Sequence[int | None]] = [(None, 0, 0), (0, None, None), (None, None, 0), (None, 0, None)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_mapped_loop(device: str, axes: Sequence[int | None], reverse: bool) -> None:
    pairs = zip(axes, (WEIGHT, STATE, ROWS), strict=True)
    args = [
        Tensor(array if axis is None else RNG.normal(size=(3, *array.shape)))
        for axis, array in pairs
    ]
    found, wanted = network(scan, reverse), network(in_python, reverse)
    close([vmap(found, tuple(axes))(*args)], [vmap(wanted, tuple(axes))(*args)])
    by = (0, 1, 2)
    slopes = vmap(grad(found, by), tuple(axes))(*args)
    close(slopes, vmap(grad(wanted, by), tuple(axes))(*args), 1e-8)


# *** captured ***


def test_a_captured_training_step(device: str) -> None:
    def losses(loop: Function, jit: int) -> list[float]:
        weight = Tensor(WEIGHT, requires_grad=True)
        optimizer = nn.optim.SGD([weight], lr=0.01)

        @TinyJit
        def step(rows: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = network(loop, False)(weight, Tensor(STATE), rows)
            loss.backward()
            optimizer.step()
            return loss.realize()

        batches = np.random.default_rng(1).normal(size=(6, *ROWS.shape))
        with Context(JIT=jit):
            return [step(Tensor(rows)).item() for rows in batches]

    wanted = losses(in_python, 0)
    for jit in (0, 1, 2):
        np.testing.assert_allclose(losses(scan, jit), wanted, rtol=1e-9)


def test_kernels_around_a_loop_and_a_host_function_are_batches() -> None:
    @TinyJit
    def function(x: Tensor) -> Tensor:
        x = (x @ x).realize()
        x, _ = scan(lambda c, _: (c * 0.5, None), x.exp().realize(), length=3)
        x = ((x + 1).realize() @ x).realize()
        return (x.svdvals().realize() @ x).realize()

    with Context(FERRULE_DEVICE="CPU"):
        wanted = None
        for _ in range(4):
            found = function(Tensor(WEIGHT / 9)).numpy()
            wanted = found if wanted is None else wanted
            np.testing.assert_array_equal(found, wanted)
    assert [type(item.prg).__name__ for item in function.jit_cache] == [
        *("CPUGraph", "Loop", "CPUGraph", "HostFunction", "CPUGraph")
    ]


def test_a_part_at_a_variable_is_taken_before_the_loop(device: str) -> None:
    rows = np.arange(10, dtype=np.float32)
    x, start = Tensor(rows, device=device).realize(), Tensor([1.0], device=device)
    for place in (3, 4, 7):
        n = Variable("n", 0, 9).bind(place)
        last, _ = scan(lambda c, _, n=n: (c + x[n], None), start, length=3)
        np.testing.assert_array_equal(last.numpy(), 1 + 3 * rows[place])
        for is_true in (True, False):
            chosen = cond(
                Tensor(is_true, device=device),
                lambda c, n=n: c + x[n],
                lambda c, n=n: c - x[n] * 2,
                start,
            )
            wanted = 1 + rows[place] if is_true else 1 - 2 * rows[place]
            np.testing.assert_array_equal(chosen.numpy(), wanted)


def test_a_part_of_a_carried_value_at_a_variable_is_refused(device: str) -> None:
    n = Variable("n", 0, 9).bind(3)
    with pytest.raises(LoopError, match="takes a part of a value of the trip at n, whose value no"):
        scan(lambda c, _: (c + c[n], None), Tensor(np.arange(10.0), device=device), length=3)


def test_branches_that_read_elements_of_many_lengths_and_places(device: str) -> None:
    """Enough of them to be planned for any, but what the loop is given does not tell the place."""
    limit = Tensor(0.5, device=device)
    for length in range(20, 50):
        values = np.arange(length) % 3 / 2
        for place in (0, length // 2):
            x = Tensor(values, device=device)[place].reshape(1)
            found = cond((x == x).all(), lambda y: y.less(limit), lambda y: y.less(limit), x)
            assert found.tolist() == [values[place] < 0.5]


def test_a_captured_length_that_is_a_variable(device: str) -> None:
    n = Variable("n", 1, 6)
    weight = Tensor(WEIGHT)

    @TinyJit
    def step(rows: Tensor) -> Tensor:
        return scan(lambda c, x: (c @ weight + x, None), Tensor(STATE), rows)[0].realize()

    memory = Tensor(ROWS).contiguous().realize()
    for count in (2, 5, 6, 1, 3):
        wanted = STATE
        for row in ROWS[:count]:
            wanted = wanted @ WEIGHT + row
        np.testing.assert_allclose(step(memory[: n.bind(count)]).numpy(), wanted, rtol=1e-9)


# *** loops that end by a condition ***


def roots(loop: Function, max_trips: int | None = 40) -> Function:
    """Newton's method for the cube root, in so many trips as it takes."""

    def function(number: Tensor, factor: Tensor) -> Any:
        def step(carry: Any) -> Any:
            x, count = carry
            return x - (x**3 - number * factor) / (3 * x**2), count + 1

        def goes_on(carry: Any) -> Tensor:
            x, _ = carry
            return ((x**3 - number * factor).abs() > 1e-9).any()

        return loop(goes_on, step, (number, 0), max_trips)

    return function


def while_in_python(cond: Function, body: Function, value: Any, max_trips: int | None) -> Any:
    trips = 0
    value = (value[0], Tensor(0))
    while trips != max_trips and cond(value).item():
        value = body(value)
        trips += 1
    return value


NUMBERS, FACTOR = np.array([2.0, 30.0, 0.5]), np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("max_trips", [None, 0, 3, 40])
def test_a_loop_ends_when_its_condition_does(device: str, max_trips: int | None) -> None:
    args = Tensor(NUMBERS), Tensor(FACTOR)
    found = roots(while_loop, max_trips)(*args)
    close(found, roots(while_in_python, max_trips)(*args))


def test_a_loop_without_a_first_trip(device: str) -> None:
    last, count = while_loop(lambda c: c[0] < 0, lambda c: (c[0] - 1, c[1] + 1), (Tensor(3.0), 0))
    assert (last.item(), count.item()) == (3.0, 0)


@pytest.mark.parametrize("max_trips", [3, 40])
def test_the_gradient_of_a_loop_with_a_condition(device: str, max_trips: int) -> None:
    def total(loop: Function) -> Function:
        return lambda *args: (roots(loop, max_trips)(*args)[0] ** 2).sum()

    args = Tensor(NUMBERS), Tensor(FACTOR)
    close(grad(total(while_loop), (0, 1))(*args), grad(total(while_in_python), (0, 1))(*args))
    along = Tensor(FACTOR), Tensor(NUMBERS)
    close(jvp(total(while_loop), args, along), jvp(total(while_in_python), args, along))


def test_second_derivatives_of_a_loop_with_a_condition(device: str) -> None:
    def slope(loop: Function) -> Function:
        inner = grad(lambda *args: (roots(loop)(*args)[0] ** 2).sum(), (0, 1))
        return lambda *args: sum((part**2).sum() for part in inner(*args))

    args = Tensor(NUMBERS), Tensor(FACTOR)
    close(grad(slope(while_loop), (0, 1))(*args), grad(slope(while_in_python), (0, 1))(*args))


def test_a_gradient_through_any_number_of_trips(device: str) -> None:
    x = Tensor(3.0, requires_grad=True)
    last = while_loop(lambda c: c > 1, lambda c: c / 2, x)
    assert last.item() == 0.75
    with pytest.raises(GradientError, match=r"\[while_loop\] a gradient arrives.*give max_trips"):
        last.backward()


def test_a_captured_loop_with_a_condition(device: str) -> None:
    function = TinyJit(lambda *args: [t.realize() for t in roots(while_loop)(*args)])
    for scale in (1.0, 1.0, 5.0, 300.0, 0.1):
        args = Tensor(NUMBERS * scale), Tensor(FACTOR)
        close(function(*args), roots(while_in_python)(*args))


def test_a_mapped_loop_whose_condition_is_the_same_for_all(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        pair = while_loop(lambda c: c[1] < 4, lambda c: (c[0] * 2 + x, c[1] + 1), (x, 0))
        return pair[0]

    found = vmap(function)(Tensor(NUMBERS))
    np.testing.assert_allclose(found.numpy(), NUMBERS * 31)


def one_root(number: Tensor, factor: Tensor) -> Any:
    """`roots` of one number, whose lanes end at different times."""
    return roots(while_loop)(number, factor)


def test_a_mapped_loop_whose_lanes_end_one_after_the_other(device: str) -> None:
    many = np.array([2.0, 3e4, 5e-7])
    found, counts = vmap(one_root, (0, None))(Tensor(many), Tensor(np.float64(2)))
    pairs = [roots(while_in_python)(Tensor(one), Tensor(np.float64(2))) for one in many]
    close([found], [Tensor.stack([value for value, _ in pairs])])
    assert counts.tolist() == [count.item() for _, count in pairs]
    assert len(set(counts.tolist())) == 3


def test_the_gradient_of_a_mapped_loop_with_a_condition(device: str) -> None:
    many, factors = Tensor(np.array([2.0, 3e4, 5e-2])), Tensor(FACTOR)

    def slopes(loop: Function) -> Function:
        return grad(lambda *args: roots(loop)(*args)[0] ** 2, (0, 1))

    pairs = [slopes(while_in_python)(a, b) for a, b in zip(many, factors, strict=True)]
    wanted = [Tensor.stack(list(parts)) for parts in zip(*pairs, strict=True)]
    close(vmap(slopes(while_loop))(many, factors), wanted)

    def total(*args: Tensor) -> Tensor:
        return (vmap(one_root)(*args)[0] ** 2).sum()

    close(grad(total, (0, 1))(many, factors), wanted)


def test_a_mapped_choice(device: str) -> None:
    def choose(x: Tensor, y: Tensor) -> Tensor:
        return cond(x.sum() > 0, lambda: (x * y).tanh(), lambda: (x @ y).exp() * y)

    x, y = Tensor(RNG.normal(size=(6, 4))), Tensor(STATE[0])
    wanted = [(a * y).tanh() if a.sum().item() > 0 else (a @ y).exp() * y for a in x]
    close([vmap(choose, (0, None))(x, y)], [Tensor.stack(wanted)])
    slopes = vmap(grad(lambda *args: choose(*args).sum(), (0, 1)), (0, None))(x, y)

    def plain(a: Tensor) -> Any:
        is_true = a.sum().item() > 0
        return grad(lambda a, b: ((a * b).tanh() if is_true else (a @ b).exp() * b).sum(), (0, 1))(
            a, y
        )

    pairs = [plain(a) for a in x]
    close(slopes, [Tensor.stack(list(parts)) for parts in zip(*pairs, strict=True)])


class Stop(Exception):
    pass


def test_a_loop_without_an_end_can_be_interrupted(device: str) -> None:
    """And again it runs as if nothing had been."""
    limit = Tensor(np.inf).realize()

    def count() -> Tensor:
        return while_loop(lambda c: c < limit, lambda c: c + 1, Tensor(np.float64(0)))

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Stop):
                count().realize()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    limit.assign(Tensor(np.float64(7))).realize()
    assert count().item() == 7


def test_a_handler_may_run_the_loop_that_it_interrupts(device: str) -> None:
    limit = Tensor(np.inf).realize()
    found = []

    def count(limit: Tensor) -> Tensor:
        return while_loop(lambda c: c < limit, lambda c: c + 1, Tensor(np.float64(0)))

    def handle(*_: object) -> None:
        found.append(count(Tensor(np.float64(5)).realize()).item())
        raise Stop

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Stop):
            count(limit).realize()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert found == [5]


# *** choices ***


def choice(x: Tensor, y: Tensor) -> Tensor:
    return cond(x.sum() > 0, lambda a, b: (a * b.exp()).tanh(), lambda a, b: (a @ a.T) @ b, x, y)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_choice_between_functions(device: str, sign: float) -> None:
    a, b = np.abs(WEIGHT) * sign, np.abs(WEIGHT.T)
    wanted = np.tanh(a * np.exp(b)) if sign > 0 else a @ a.T @ b
    np.testing.assert_allclose(choice(Tensor(a), Tensor(b)).numpy(), wanted, rtol=1e-9)

    def plain(x: Tensor, y: Tensor) -> Tensor:
        return (x * y.exp()).tanh() if sign > 0 else (x @ x.T) @ y

    def first(f: Function) -> Function:
        return grad(lambda *args: (f(*args) ** 2).sum(), (0, 1))

    def second(f: Function) -> Function:
        return grad(lambda *args: sum((part**2).sum() for part in first(f)(*args)), (0, 1))

    args = Tensor(a), Tensor(b)
    close(first(choice)(*args), first(plain)(*args), 1e-7)
    close(second(choice)(*args), second(plain)(*args), 1e-7)
    close(jvp(choice, args, args[::-1]), jvp(plain, args, args[::-1]), 1e-7)


def test_only_the_chosen_function_is_computed(device: str) -> None:
    x = Tensor(np.ones((30, 30)))
    for sign, is_cheap in ((1, True), (-1, False)):
        before = GlobalCounters.global_ops
        pred = (x * sign).sum() > 0
        cond(pred, lambda: x.sum(), lambda: (x @ x @ x).exp().sum()).realize()
        assert (GlobalCounters.global_ops - before < 30**3) is is_cheap


def test_a_captured_choice(device: str) -> None:
    function = TinyJit(lambda x, y: choice(x, y).realize())
    b = np.abs(WEIGHT.T)
    for sign in (1.0, -1.0, 1.0, -1.0, -1.0):
        a = np.abs(WEIGHT) * sign
        wanted = np.tanh(a * np.exp(b)) if sign > 0 else a @ a.T @ b
        np.testing.assert_allclose(function(Tensor(a), Tensor(b)).numpy(), wanted, rtol=1e-9)


def test_a_choice_in_a_loop(device: str) -> None:
    def step(total: Tensor, row: Tensor) -> Any:
        total = cond(row.sum() > 0, lambda: total + row, lambda: total * 0.5)
        return total, total

    last, rows = scan(step, Tensor(STATE), Tensor(ROWS))
    total = STATE
    for row, found in zip(ROWS, rows.numpy(), strict=True):
        total = total + row if row.sum() > 0 else total * 0.5
        np.testing.assert_allclose(found, total, rtol=1e-9)
    np.testing.assert_allclose(last.numpy(), total, rtol=1e-9)


def test_a_python_bool_chooses_at_once() -> None:
    def fails() -> Any:
        raise AssertionError("called")

    assert cond(True, lambda: 3, fails) == 3
    assert cond(np.bool_(False), fails, lambda: 4) == 4


def test_choices_that_do_not_fit(device: str) -> None:
    x = Tensor(STATE)
    with pytest.raises(LoopError, match=r"true_fn gives dtypes.float64 of shape \(2, 4\), and fal"):
        cond(x.sum() > 0, lambda: x, lambda: x.sum(0))
    with pytest.raises(LoopError, match=r"the result of false_fn: Tensor does not match"):
        cond(x.sum() > 0, lambda: (x, x), lambda: x)
    with pytest.raises(ShapeError, match=r"\[cond\] the condition has shape \(2, 4\)"):
        cond(x > 0, lambda: x, lambda: x)
    with pytest.raises(LoopError, match=r"the values of one trip are known only when"):
        while_loop(lambda _: True, lambda c: c * c.sum().item(), x)


# *** recurrences that people write ***


def soft_dtw(costs: Tensor, smooth: float) -> Tensor:
    """Cuturi and Blondel, "Soft-DTW" (2017): a loop over rows, in it one over columns."""

    def least(*values: Tensor) -> Tensor:
        return -(-Tensor.stack(values) / smooth).logsumexp(0) * smooth

    def element(left: Tensor, parts: Any) -> Any:
        cost, above, corner = parts
        value = cost + least(left, above, corner)
        return value, value

    def row(above: Any, row: Tensor) -> Any:
        values, corner = above
        corners = corner.reshape(1).cat(values[:-1])
        far = Tensor(np.float64(1e6), device=row.device)
        _, values = scan(element, far, (row, values, corners))
        return (values, far), None

    far = Tensor.full((costs.shape[1],), 1e6, dtype=costs.dtype)
    (last, _), _ = scan(row, (far, Tensor(np.float64(0))), costs)
    return last[-1]


def soft_dtw_in_numpy(costs: Any, smooth: float) -> float:
    rows, columns = costs.shape
    table = np.full((rows + 1, columns + 1), 1e6)
    table[0, 0] = 0
    for i in range(rows):
        for j in range(columns):
            near = -np.array([table[i, j], table[i, j + 1], table[i + 1, j]]) / smooth
            table[i + 1, j + 1] = costs[i, j] - smooth * np.logaddexp.reduce(near)
    return float(table[-1, -1])


def test_soft_dtw_and_its_gradient(device: str) -> None:
    costs = np.abs(RNG.normal(size=(5, 4)))
    found, slope = soft_dtw(Tensor(costs), 0.3), grad(lambda c: soft_dtw(c, 0.3))(Tensor(costs))
    np.testing.assert_allclose(found.item(), soft_dtw_in_numpy(costs, 0.3), rtol=1e-9)
    wanted = np.zeros_like(costs)
    for place in np.ndindex(*costs.shape):
        step = np.zeros_like(costs)
        step[place] = 1e-6
        more, less = (soft_dtw_in_numpy(costs + d, 0.3) for d in (step, -step))
        wanted[place] = (more - less) / 2e-6
    np.testing.assert_allclose(slope.numpy(), wanted, atol=1e-6)


def test_a_state_space_model(device: str) -> None:
    """The recurrence of Mamba: gates from the input, a state for each channel, and a read-out."""
    decay = Tensor(-np.abs(RNG.normal(size=(4, 3))))
    into, out, gate = (Tensor(RNG.normal(size=(4, 3)) / 2) for _ in range(3))

    def step(state: Tensor, row: Tensor) -> Any:
        delta = (row @ gate[:, :1]).softplus().unsqueeze(-1)
        drive = (row.unsqueeze(-1) * (row @ into).unsqueeze(-2)) * delta
        state = state * (decay * delta).exp() + drive
        return state, (state * (row @ out).unsqueeze(-2)).sum(-1)

    rows, state = Tensor(ROWS), Tensor(np.zeros((2, 4, 3)))
    found, wanted = scan(step, state, rows), in_python(step, state, rows)
    close(found, wanted)

    def total(loop: Function) -> Function:
        return lambda rows: (loop(step, state, rows)[1] ** 2).sum()

    close([grad(total(scan))(rows)], [grad(total(in_python))(rows)])


def test_a_minimal_gated_unit(device: str) -> None:
    """Feng and others, "Were RNNs all we needed?" (2024): the gates do not depend on the state."""
    weight = Tensor(RNG.normal(size=(4, 8)))

    def layer(loop: Function) -> Function:
        def function(weight: Tensor, rows: Tensor) -> Tensor:
            gates, fresh = (rows @ weight).chunk(2, -1)

            def step(state: Tensor, parts: Any) -> Any:
                gate, fresh = (parts[0], parts[1])
                state = state + gate.sigmoid() * (fresh.tanh() - state)
                return state, state

            pairs = Tensor.stack((gates, fresh), 1)
            return (loop(step, Tensor(STATE), pairs)[1] ** 2).sum()

        return function

    by = (0, 1)
    found = grad(layer(scan), by)(weight, Tensor(ROWS))
    close(found, grad(layer(in_python), by)(weight, Tensor(ROWS)))


# *** errors ***


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c, x: c, r"\[scan\] the function returns a pair \(carry, y\), not dict"),
        (lambda c, x: ({"a": c["a"]}, x), r"the carry that the function returns: a dict of 'a'"),
        (lambda c, x: ({"a": c["a"], "b": None}, x), r"carry\['b'\] is a Tensor before a trip"),
        (
            lambda c, x: ({"a": c["a"].float(), "b": c["b"]}, x),
            r"carry\['a'\] is of dtypes.float64 before a trip and of dtypes.float32 after it",
        ),
        (
            lambda c, x: ({"a": c["a"], "b": c["b"].sum(0)}, x),
            r"carry\['b'\] has shape \(2, 4\) before a trip and \(4,\) after it",
        ),
        (lambda c, x: (c, c["a"].sum().item()), r"the values of one trip are known only when"),
        (lambda c, x: (c, "text"), r"y holds 'text' \(str\)"),
    ],
)
def test_functions_that_are_no_trip(device: str, function: Function, message: str) -> None:
    init = {"a": Tensor(STATE), "b": Tensor(STATE)}
    with pytest.raises(LoopError, match=message):
        scan(function, init, Tensor(ROWS))


def test_a_write_to_a_tensor_from_outside(device: str) -> None:
    outside = Tensor(STATE).realize()

    def step(carry: Tensor, row: Tensor) -> Any:
        outside.assign(outside + row)
        return carry, row

    with pytest.raises(LoopError, match=r"writes to a tensor from outside, of shape \(2, 4\)"):
        scan(step, Tensor(0.0), Tensor(ROWS))
    np.testing.assert_array_equal(outside.numpy(), STATE)


def test_rows_that_do_not_fit(device: str) -> None:
    with pytest.raises(ShapeError, match=r"\[scan\] a tensor in xs has 4 rows, in shape \(4, 4\)"):
        scan(lambda c, x: (c, None), Tensor(0.0), (Tensor(ROWS), Tensor(WEIGHT)))
    with pytest.raises(ShapeError, match=r"has 6 rows.*there are to be 5"):
        scan(lambda c, x: (c, None), Tensor(0.0), Tensor(ROWS), length=5)
    with pytest.raises(ShapeError, match="neither xs nor a length"):
        scan(lambda c, x: (c, None), Tensor(0.0))
    with pytest.raises(ShapeError, match="a tensor without axes"):
        scan(lambda c, x: (c, None), Tensor(0.0), Tensor(1.0))
    with pytest.raises(TypeError, match="length is an integer"):
        scan(lambda c, x: (c, None), Tensor(0.0), length=2.5)


def test_an_error_in_the_function_reaches_the_caller(device: str) -> None:
    def step(carry: Tensor, row: Tensor) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        scan(step, Tensor(0.0), Tensor(ROWS))
