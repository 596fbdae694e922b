"""Plans that were met before run by one call of the device, where it has one."""

import numpy as np
import pytest
from tests.planning import forget

import ferrule.fusion
from ferrule import Context, Tensor
from ferrule.device import Compiled, Device
from ferrule.engine import realize
from ferrule.fusion import Schedule
from ferrule.helpers import GlobalCounters

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each schedule that ran, True if it ran by one call; no plan is known before."""
    forget()
    found: list[bool] = []
    run = realize._is_run_at_once

    def noting(schedule: Schedule) -> bool:
        found.append(run(schedule))
        return found[-1]

    monkeypatch.setattr(realize, "_is_run_at_once", noting)
    return found


def takes_plans(device: str) -> bool:
    return getattr(getattr(Device[device], "graph", None), "takes_plans", False)


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1) @ x.transpose(0, 1)


def test_the_second_run_is_one_call(device: str, graphs: list[bool]) -> None:
    counts = []
    for call in range(4):
        rows = X * (call + 1)
        x = Tensor(rows).realize()
        before = GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem
        graphs.clear()
        result = normalised(x).realize()
        after = GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem
        counts.append([b - a for a, b in zip(before, after, strict=True)])
        expected = (rows - rows.mean(0)) / (rows.std(0, ddof=1) + 1) @ rows.T
        np.testing.assert_allclose(result.numpy(), expected, 1e-3, 1e-3)
        assert graphs == [call > 0 and takes_plans(device)]
    assert counts[1:] == counts[:1] * 3


def test_values_of_variables_are_given(device: str, graphs: list[bool]) -> None:
    for n in (9, 4, 17, 30, 1, 9):
        x = Tensor(X[:n]).realize()
        np.testing.assert_allclose((x.exp().sum(0) * 2).numpy(), np.exp(X[:n]).sum(0) * 2, 1e-4)
    assert graphs[-1] == takes_plans(device)


def test_writes_are_counted(device: str, graphs: list[bool]) -> None:
    x = Tensor(X).realize()
    versions = []
    for call in range(4):
        x += 1
        x.realize()
        memory = x.lazydata.realized
        assert memory is not None
        versions.append(memory.base._version)
        np.testing.assert_allclose(x.numpy(), X + call + 1, 1e-5)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("settings", [{"JIT": 2}, {"DEBUG": 2}])
def test_kernels_run_one_by_one_where_that_is_asked_for(
    device: str, graphs: list[bool], settings: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with Context(**settings):
        for _ in range(4):
            (Tensor(X).realize().exp() * 3).realize()
    assert not any(graphs)


def test_a_call_inside_of_a_call_runs_kernel_by_kernel(device: str, graphs: list[bool]) -> None:
    seen = []
    for call in range(4):
        x = Tensor(X + call).realize()
        result = x.exp() * 5
        schedules = [plan.use.graph for plan in ferrule.fusion._plans.values() if plan.use.graph]
        for graph in schedules:
            graph.inside = call == 3
        result.realize()
        seen.append(graphs[-1])
        for graph in schedules:
            graph.inside = False
        np.testing.assert_allclose(result.numpy(), np.exp(X + call) * 5, 1e-4)
    assert seen == [False, *[takes_plans(device)] * 2, False]


def test_a_tuned_kernel_is_taken_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    prepare = Device[device].prepare

    def noting(asts: object) -> object:
        asked.append(asts)
        return prepare(asts)

    for call in range(4):
        if call == 2:
            monkeypatch.setattr(Device[device], "prepare", noting)
            (Tensor(X).realize().exp() * 7).realize()
            assert not asked
            monkeypatch.setattr(Compiled, "tuned", Compiled.tuned + 1)
        (Tensor(X).realize().exp() * 7).realize()
    assert len(asked) == 1
