"""Graphs that are seen often are recognised by generated code: the same ones as by their keys."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.planning import forget

import ferrule.fusion
from ferrule import Tensor
from ferrule.base.threadstate import this_thread
from ferrule.fusion.plans.graph_key import KeyedGraph

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> list[KeyedGraph]:
    """The graphs whose keys are made; a matcher is made in the first use of a known graph."""
    forget()
    found: list[KeyedGraph] = []

    def noted(*args: Any) -> KeyedGraph:
        found.append(KeyedGraph(*args))
        return found[-1]

    monkeypatch.setattr(ferrule.fusion, "PAYS_AFTER", 1)
    monkeypatch.setattr(ferrule.fusion, "KeyedGraph", noted)
    return found


def computed(tensor: Tensor, keyed: list[KeyedGraph]) -> tuple[Array, bool]:
    """The elements of a tensor, and True if its graph was recognised without its key."""
    keyed.clear()
    elements = tensor.realize().numpy()
    return elements, not keyed


Function = Callable[..., Any]
FUNCTIONS: list[Function] = [
    lambda x, y: x + y,
    lambda x, y: (x * 0.5 + y) * 3,
    lambda x, y: x.T @ y,
    lambda x, y: (x - x.sum(0)) * (y + x.sum(0)),
    lambda x, y: x[1:3] * y[::2],
    lambda x, y: x * x + y,
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_a_graph_is_recognised(number: int, keyed: list[KeyedGraph]) -> None:
    function = FUNCTIONS[number]
    known = []
    for turn in range(4):
        x, y = X + turn, Y * (turn + 1)
        tensors = Tensor(x).realize(), Tensor(y).realize()
        found, is_known = computed(function(*tensors), keyed)
        np.testing.assert_allclose(found, function(x, y), 1e-4, 1e-4)
        known.append(is_known)
    assert known == [False, False, True, True]


def taught(function: Function, arrays: tuple[Array, ...], keyed: list[KeyedGraph]) -> None:
    """Have the graph of a function recognised from now on."""
    for _ in range(3):
        tensors = [Tensor(array).realize() for array in arrays]
        _, is_known = computed(function(*tensors), keyed)
    assert is_known


def add(x: Any, y: Any) -> Any:
    return x + y


def test_other_memory_is_no_equal_graph(keyed: list[KeyedGraph]) -> None:
    taught(add, (X, Y), keyed)
    x, y = Tensor(X).realize(), Tensor(Y).realize()
    exported = Tensor(Y).realize()
    array = exported.numpy(copy=False)
    large = Tensor(np.stack([X, Y])).realize()
    written = Tensor(X).realize()
    written[0] = 1
    written.realize()
    others: dict[str, tuple[Tensor, Array]] = {
        "one operand": (x + x, X + X),
        "shape": (x[:2] + y[:2], X[:2] + Y[:2]),
        "dtype": (x.int() + y.int(), X.astype(int) + Y.astype(int)),
        "constant": (x + 2, X + 2),
        "shared": (x + exported, X + array),
        "part": (large[0] + large[1], X + Y),
        "owner": (written + y, np.vstack([np.ones(6), X[1:]]) + Y),
    }
    for name, (tensor, expected) in others.items():
        found, is_known = computed(tensor, keyed)
        np.testing.assert_allclose(found, expected, 1e-5, err_msg=name)
        assert not is_known, name
    assert computed(x + y, keyed)[1]


def test_constants_are_compared_by_their_bits(keyed: list[KeyedGraph]) -> None:
    taught(lambda x: x / 0.0, (X,), keyed)
    x = Tensor(X).realize()
    for number in (-0.0, 2.0, 0.0):
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal((x / number).numpy(), X / np.float32(number))


def test_a_node_between_is_stored_if_it_is_held(keyed: list[KeyedGraph]) -> None:
    def twice(x: Any) -> Any:
        return x.sum(0) * 2

    taught(twice, (X,), keyed)
    x = Tensor(X).realize()
    total = x.sum(0)
    found, is_known = computed(total * 2, keyed)
    assert not is_known  # as somebody else has a node of it
    np.testing.assert_allclose(found, X.sum(0) * 2, 1e-5)
    np.testing.assert_allclose(total.numpy(), X.sum(0), 1e-5)


def test_several_roots(keyed: list[KeyedGraph]) -> None:
    for turn in range(4):
        x = Tensor(X + turn).realize()
        a, b = x + 1, (x + 1) * 2
        keyed.clear()
        a.realize(b)
        np.testing.assert_allclose(b.numpy(), (X + turn + 1) * 2, 1e-5)
        assert bool(keyed) is (turn < 2)


def test_writes_that_are_pending(keyed: list[KeyedGraph]) -> None:
    known = []
    for turn in range(4):
        x, rows = Tensor(X + turn).realize(), Tensor(Y).realize()
        held = x.clone()
        x += rows
        rows[1:3] = 0
        total, is_known = computed(x.sum(0), keyed)
        known.append(is_known)
        np.testing.assert_allclose(total, (X + turn + Y).sum(0), 1e-4, 1e-5)
        np.testing.assert_allclose(x.numpy(), X + turn + Y, 1e-5)
        np.testing.assert_allclose(held.numpy(), X + turn, 1e-5)
        assert not rows.numpy()[1:3].any()
    assert known == [False, False, True, True]


def test_values_that_other_schedules_passed(keyed: list[KeyedGraph]) -> None:
    """They are stored when they are needed again; other graphs are recognised meanwhile."""
    x, y = Tensor(X).realize(), Tensor(Y).realize()
    other = x.exp()
    (other + 1).realize()
    assert other.lazydata.serial in this_thread.state.passed
    taught(lambda x, y: x * y - 1, (X, Y), keyed)
    held = []
    known = []
    for _ in range(4):
        held.append(Tensor(X).realize() + y)
        found, is_known = computed(held[-1] * 2, keyed)
        np.testing.assert_allclose(found, (X + Y) * 2, 1e-5)
        known.append(is_known)
    assert known == [False, False, True, True]
    assert held[-1].lazydata.realized is None
    for _ in range(3):
        found, _ = computed(held[-1] * 2, keyed)
        np.testing.assert_allclose(found, (X + Y) * 2, 1e-5)
    assert held[-1].lazydata.realized is not None


def test_graphs_whose_roots_are_alike_are_told_apart(keyed: list[KeyedGraph]) -> None:
    functions: list[Function] = [
        lambda x, y: x + y,
        lambda x, y: x + x,
        lambda x, y: x * 2 + y,
        lambda x, y: x + y * 2,
        lambda x, y: (x - y) + y,
    ]
    for turn in range(4):
        for function in functions:
            x, y = X + turn, Y - turn
            found, is_known = computed(function(Tensor(x).realize(), Tensor(y).realize()), keyed)
            np.testing.assert_allclose(found, function(x, y), 1e-4, 1e-5)
            assert is_known is (turn > 1)


def test_a_plan_that_is_gone_is_made_anew(keyed: list[KeyedGraph]) -> None:
    taught(add, (X, Y), keyed)
    ferrule.fusion._plans.clear()
    found, _ = computed(add(Tensor(X).realize(), Tensor(Y).realize()), keyed)
    np.testing.assert_allclose(found, X + Y, 1e-5)


def test_settings_of_the_scheduler_count(keyed: list[KeyedGraph]) -> None:
    taught(add, (X, Y), keyed)
    x, y = Tensor(X).realize(), Tensor(Y).realize()
    with ferrule.Context(FERRULE_SKIP="fusion"):
        found, is_known = computed(x + y, keyed)
    assert not is_known
    np.testing.assert_allclose(found, X + Y, 1e-5)
