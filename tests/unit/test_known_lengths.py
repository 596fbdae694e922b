"""Graphs with other lengths than before: they are not looked at, and nothing is taken for one."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.planning import Work

import ferrule.fusion
from ferrule import Tensor, TinyJit, nn
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.ir.target import Target

X = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
LENGTHS = [7, 12, 3, 40, 2, 1, 0, 9, 64, 65, 150, 11, 1, 0, 66]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.fixture
def looked_at(work: Work, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list to which each graph adds that is looked at more closely; none is known before."""
    found: list[None] = []
    graph = KeyedGraph.graph

    def noting(keyed: KeyedGraph) -> object:
        found.append(None)
        return graph(keyed)

    monkeypatch.setattr(KeyedGraph, "graph", noting)
    return found


def test_other_lengths_are_not_looked_at(looked_at: list[None]) -> None:
    for n in range(10, 50):
        x = Tensor(X[:n]).realize()
        np.testing.assert_allclose((x * 2 + 1).sum(0).numpy(), (X[:n] * 2 + 1).sum(0), 1e-4, 1e-4)
    assert len(looked_at) == 2


def test_equal_lengths_have_the_plan_of_different_ones(work: Work) -> None:
    """Parts with equal lengths share their constants, so that the graph has fewer nodes."""
    counts = np.random.default_rng(0).integers(5, 9, (60, 4)).tolist()
    planned = []
    for lengths in counts:
        parts = [Tensor(X[:n]).realize() for n in lengths]
        work.plans = 0
        sums = [(part.maximum(0.5) * (k + 2.0)).sum(0) for k, part in enumerate(parts)]
        found = sum(sums, Tensor(np.zeros(6, np.float32))).numpy()
        planned.append(work.plans)
        expected = sum((np.maximum(X[:n], 0.5) * (k + 2)).sum(0) for k, n in enumerate(lengths))
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert len({tuple(lengths) for lengths in counts}) > 40
    assert sum(planned) <= 8


def test_all_lengths_are_right() -> None:
    for n in LENGTHS * 2:
        x = Tensor(X[:n]).realize()
        np.testing.assert_allclose((x.exp() / 2).numpy(), np.exp(X[:n]) / 2, 1e-4, 1e-4)
        np.testing.assert_allclose(x.sum(0).numpy(), X[:n].sum(0), 1e-4, 1e-4)


CHANGES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a constant": lambda x, call: x * (2.0 if call < 6 else float(call)),
    "an axis": lambda x, call: x.sum(0 if call < 6 else 1),
    "an order": lambda x, call: (x.permute(1, 0) if call < 6 else x.permute(0, 1)) + 1,
    "an offset": lambda x, call: x.exp()[0 if call < 6 else call % 3 : x.shape[0] - 2] * 2,
    "another size": lambda x, call: x.pad(((0, 2 if call < 6 else call), (0, 0))) + 1,
    "who needs a value": lambda x, call: x.exp() * 2,
    "two of one memory": lambda x, call: x.exp() + (x if call < 6 else x + 1),
    "a written one": lambda x, call: x.add_(1) if call < 6 else x.add_(2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_later_is_seen(name: str, work: Work) -> None:
    function = CHANGES[name]
    for call, n in enumerate([10, 20, 30, 12, 14, 16, 18, 22, 24, 26, 28, 32]):
        first = Tensor(X[:n]).realize()
        with ferrule.Context(FERRULE_SKIP="lengths"):
            expected = function(Tensor(X[:n]).realize(), call).numpy()
        np.testing.assert_allclose(function(first, call).numpy(), expected, 1e-4, 1e-4)


def test_a_value_that_something_needs_is_stored(work: Work) -> None:
    for call, n in enumerate([10, 20, 30, 12, 14, 16]):
        x = Tensor(X[:n]).realize()
        middle = x.exp()
        result = middle * 2
        if call < 4:
            del middle
        result.realize()
        np.testing.assert_allclose(result.numpy(), np.exp(X[:n]) * 2, 1e-4, 1e-4)
        if call >= 4:
            np.testing.assert_allclose(middle.numpy(), np.exp(X[:n]), 1e-4, 1e-4)


def test_rows_that_experts_choose(work: Work) -> None:
    """Several counts, all of which change in each call; some are 0 or 1."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((3, 6, 6)).astype(np.float32)
    experts = [Tensor(weight).realize() for weight in weights]
    planned = []
    for _ in range(40):
        rows, choice = rng.standard_normal((24, 6)).astype(np.float32), rng.integers(0, 3, 24)
        x, chosen = Tensor(rows).realize(), Tensor(choice.astype(np.int32)).realize()
        out = Tensor.zeros(24, 6).contiguous()
        for number, weight in enumerate(experts):
            index = (chosen == number).nonzero().squeeze(1)
            out[index] += (x[index] @ weight).relu()
        expected = np.maximum(np.einsum("ni,nij->nj", rows, weights[choice]), 0)
        np.testing.assert_allclose(out.numpy(), expected, 1e-3, 1e-4)
        planned.append(work.plans)
    assert planned[-1] - planned[20] <= 2


def test_a_training_step_of_many_lengths(work: Work) -> None:
    """Some calls are captured, and have the kernels of any length, too; others run plainly."""
    rng = np.random.default_rng(2)
    first, weight = (rng.standard_normal((6, 6)).astype(np.float32) / 3 for _ in range(2))
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    model[0].weight.assign(Tensor(first)).realize()
    model[2].weight.assign(Tensor(weight)).realize()
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.05)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.realize()

    planned = []
    for n in [20, 9, 33, 12, 50, 17, 9, 33, 9, 33, 20, 20, 61, 44, 9, 8, 64]:
        rows = X[:n]
        hidden = rows @ first.T
        active = np.maximum(hidden, 0)
        found = active @ weight.T
        slope = 2 * found / found.size
        loss = step(Tensor(rows).realize()).item()
        np.testing.assert_allclose(loss, (found**2).mean(), 1e-4)
        first -= 0.05 * ((slope @ weight) * (hidden > 0)).T @ rows
        weight -= 0.05 * slope.T @ active
        np.testing.assert_allclose(model[0].weight.numpy(), first, 1e-3, 1e-5)
        np.testing.assert_allclose(model[2].weight.numpy(), weight, 1e-3, 1e-5)
        planned.append(work.plans)
    assert planned[10:] == planned[10:11] * 7, "four of these lengths are new"


def test_a_capture_that_is_replayed_often_gets_kernels_of_its_own(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrule.jit.batch.uses_worth_kernels", lambda costs, target: 6)
    function = TinyJit(lambda x: (x.exp() * 11).sum(0).realize())
    symbolic = []
    for call in range(14):
        rows = X[: 30 if call < 2 else 45] / (call + 1)
        found = function(Tensor(rows).realize()).numpy()
        np.testing.assert_allclose(found, (np.exp(rows) * 11).sum(0), 1e-4)
        kernels = {runner.ast for item in function.jit_cache for runner in _runners(item.prg)}
        symbolic.append(any(ast.vars() for ast in kernels))
    # Captured in call 2, replayed six times, and captured anew.
    assert symbolic[1:] == [False, *[True] * 7, *[False] * 5]


def test_a_capture_that_takes_longer_than_estimated_gets_kernels_of_its_own_sooner(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate takes kernels for any length for as fast as the processor."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("ferrule.jit.thread_time", lambda: next(clock))
    function = TinyJit(lambda x: (x.exp() * 13).sum(0).realize())
    symbolic = []
    for call in range(6):
        rows = X[: 30 if call < 2 else 45] / (call + 1)
        found = function(Tensor(rows).realize()).numpy()
        np.testing.assert_allclose(found, (np.exp(rows) * 13).sum(0), 1e-4)
        kernels = {runner.ast for item in function.jit_cache for runner in _runners(item.prg)}
        symbolic.append(any(ast.vars() for ast in kernels))
    # Captured in call 2, replayed twice, and captured anew.
    assert symbolic[1:] == [False, True, True, True, False]


def test_equal_kernels_of_a_capture_are_compiled_once(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a chain of them gets kernels of its own after as many replays as one of them would."""
    seen: list[tuple[int, float]] = []

    def noting(costs: list[tuple[int, int]], target: Target) -> float:
        seen.append((len(costs), 12.0 * len(costs)))
        return seen[-1][1]

    monkeypatch.setattr("ferrule.jit.batch.uses_worth_kernels", noting)

    weight = Tensor(X[:6]).realize()

    def chain(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x @ weight
        return x.realize()

    function = TinyJit(chain)
    for rows in (X[:30], X[:45], X[:45]):
        function(Tensor(rows).realize())
    ((count, _),) = seen
    assert count > 1
    (replay,) = function._replays.values()
    assert replay.batch.enough == 12


def test_constants_in_memory_are_no_data_of_the_host(work: Work) -> None:
    """Data of the host beside a large array, which is not compared, would forbid a capture."""
    large = np.full(1 << 19, 2.0)
    for n in range(10, 20):
        np.testing.assert_array_equal((Tensor(X[:n]).realize() + n).numpy(), X[:n] + n)
    function = TinyJit(lambda x: x + 1 if large[0] < 3 else x)
    for call in range(4):
        rows = X[:25] * call
        np.testing.assert_array_equal(function(Tensor(rows).realize()).numpy(), rows + 1)
    assert function.jit_cache, "it was captured"


def _runners(runner: Any) -> list[Any]:
    items = getattr(runner, "jit_cache", None)
    return [runner] if items is None else [item.prg for item in items]
