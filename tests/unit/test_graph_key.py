"""Graphs that were scheduled before: found by their key, and by nothing less."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.planning import forget

import ferrule.fusion
from ferrule import Tensor
from ferrule.base.threadstate import this_thread
from ferrule.device.runner import JITRunner
from ferrule.engine.host import on_host
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ops import UnaryOps

X = np.arange(35, dtype=np.float32).reshape(5, 7) / 8


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list to which each graph adds that is looked at more closely; none is known before."""
    found: list[None] = []
    graph = KeyedGraph.graph

    def noting(keyed: KeyedGraph) -> object:
        found.append(None)
        return graph(keyed)

    forget()
    monkeypatch.setattr(KeyedGraph, "graph", noting)
    return found


def test_a_graph_that_was_seen_before_is_not_looked_at(looked_at: list[None]) -> None:
    for seed in range(3):
        x = Tensor(X + seed).realize()
        expected = (X + seed) * 2 + (X + seed).sum()
        np.testing.assert_allclose((x * 2 + x.sum()).numpy(), expected, rtol=1e-5)
    assert len(looked_at) == 1


def test_a_plan_that_is_forgotten_is_made_again(looked_at: list[None]) -> None:
    for _ in range(2):
        ferrule.fusion._plans.clear()
        np.testing.assert_array_equal((Tensor(X).realize() + 1).numpy(), X + 1)
    assert len(looked_at) == 2


def test_who_reads_the_old_version_is_a_part_of_the_key(looked_at: list[None]) -> None:
    held: list[Tensor] = []
    for turn in range(6):
        x = Tensor(X).realize()
        before = x * 3
        if turn % 2:
            held.append(before)
        x += before
        del before
        x.realize()
        np.testing.assert_array_equal(x.numpy(), X * 4)
        if turn % 2:
            np.testing.assert_array_equal(held.pop().numpy(), X * 3)
    assert len(looked_at) == 2


def test_an_old_version_that_is_referred_to_is_a_part_of_the_key() -> None:
    for turn in range(4):
        x = Tensor(X).realize()
        held = [Handle(x.lazydata)] if turn % 2 else []
        x += 1
        x.realize()
        np.testing.assert_array_equal(x.numpy(), X + 1)
        for handle in held:
            np.testing.assert_array_equal(Tensor(handle.node).numpy(), X)


def test_memory_that_was_handed_out_is_a_part_of_the_key() -> None:
    for turn in range(4):
        x = Tensor(X).realize()
        shared = x.numpy(copy=False) if turn % 2 else None
        x *= 2
        x.realize()
        np.testing.assert_array_equal(x.numpy(), X * 2)
        if shared is not None:
            np.testing.assert_array_equal(shared, X)


def test_writes_to_one_memory_and_to_two(looked_at: list[None]) -> None:
    for turn in range(4):
        x = Tensor(X).realize()
        y = x if turn % 2 else Tensor(X).realize()
        x[0] = x[1]
        y[1] = y[2] + x[0]
        Tensor.realize(x, y)
        expected, other = X.copy(), X.copy()
        other = expected if turn % 2 else other
        expected[0] = expected[1]
        other[1] = other[2] + expected[0]
        np.testing.assert_array_equal(x.numpy(), expected)
        np.testing.assert_array_equal(y.numpy(), other)


def test_numbers_on_the_way_are_noted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[LazyBuffer] = []

    def note(numbers: Iterable[LazyBuffer]) -> None:
        noted.extend(numbers)

    ferrule.fusion._known_graphs.clear()
    monkeypatch.setattr("ferrule.fusion.note_passed", note)
    for turn in range(3):
        x = Tensor(X).realize()
        total = x.sum()
        (x - total).realize()
        assert noted[turn:] == [total.lazydata.srcs[0]], turn


def test_a_held_value_that_is_needed_in_each_turn_does_not_make_graphs_grow() -> None:
    keys, parts = Tensor(X).realize(), [X]
    sizes = []
    for turn in range(8):
        new = X[:1] + turn
        keys = Tensor.cat(keys, Tensor(new).realize())
        parts.append(new)
        total = keys.sum(1)
        sizes.append(len(KeyedGraph([total.lazydata]).numbers))
        np.testing.assert_allclose(total.numpy(), np.concatenate(parts).sum(1), rtol=1e-6)
    assert sizes[-3:] == sizes[-1:] * 3


def test_a_held_value_is_stored_the_third_time_that_it_is_needed() -> None:
    x = Tensor(X).realize()
    held = x * 2 + 1
    for turn in range(3):
        assert held.lazydata.realized is None
        np.testing.assert_array_equal((held + turn).numpy(), X * 2 + 1 + turn)
    assert held.lazydata.realized is not None


def test_a_held_value_that_is_larger_than_its_sources_is_not_stored() -> None:
    lengths = Tensor(X[:, 0]).realize()
    mask = lengths.reshape(-1, 1) < Tensor.arange(40)
    for turn in range(4):
        expected = np.where(X[:, :1] < np.arange(40), turn, 0)
        np.testing.assert_array_equal(mask.where(turn, 0).numpy(), expected)
    assert mask.lazydata.realized is None


def test_a_view_of_memory_that_is_held_is_not_stored() -> None:
    turned = Tensor(X).realize().permute((1, 0))
    for turn in range(4):
        np.testing.assert_array_equal((turned + turn).numpy(), X.T + turn)
    assert turned.lazydata.realized is None


def test_variables_have_other_values(looked_at: list[None]) -> None:
    n = Variable("n", 1, 3)
    for value in (2, 3, 2):
        total = Tensor(X).realize()[: n.bind(value)].sum()
        assert total.item() == X[:value].sum()


class _Counting(JITRunner):
    """Gives how often it ran."""

    device = "CPU"
    runs = 0

    def __call__(self, rawbufs: Sequence[Buffer], *args: Any, **kwargs: Any) -> None:
        self.runs += 1
        rawbufs[0].fill(np.full(X.shape, self.runs, np.float32))


def test_what_a_runner_of_the_users_does_is_not_known() -> None:
    x = Tensor(X).realize().lazydata
    runner = _Counting()
    for turn in range(3):
        node = LazyBuffer.custom(runner, [x], x.shape, x.dtype, x.device)
        assert KeyedGraph([node]).key != KeyedGraph([node]).key
        np.testing.assert_array_equal(Tensor(node).numpy(), np.full(X.shape, turn + 1))


def test_a_function_on_the_host_is_known(looked_at: list[None]) -> None:
    for turn in range(6):
        function = (np.square, np.negative)[turn % 2]
        x = (Tensor(X + turn).realize() + 1)._read()
        y = Tensor(on_host(function, [x], x.shape, x.dtype).node)
        np.testing.assert_array_equal((y * 2).numpy(), function(X + turn + 1) * 2)
    assert len(looked_at) == 2


def test_what_a_function_on_the_host_is_given_is_a_part_of_the_key() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    for turn in range(12):
        k, first = 1 + turn % 3, turn % 4
        found = Tensor(rows + turn).realize()[first].topk(k).values
        expected = -np.sort(-(rows[first] + turn))[:k]
        np.testing.assert_array_equal(found.numpy(), expected)


def test_what_is_asked_for_is_a_part_of_the_key() -> None:
    for turn in range(4):
        y = Tensor(X).realize() * 2
        z = y + 1
        Tensor.realize(*([y, z] if turn % 2 else [z]))
        assert (y.lazydata.realized is not None) == bool(turn % 2)
        np.testing.assert_array_equal(z.numpy(), X * 2 + 1)


def outside(tensor: Tensor) -> list[LazyBuffer]:
    """The nodes below a lazy tensor that something else needs, the last one first."""
    keyed = KeyedGraph([tensor.lazydata])
    nodes = list(keyed.numbers)
    return [nodes[number] for number in keyed.outside]


def test_what_is_needed_outside() -> None:
    x = Tensor(X).realize()
    middle = x * 2
    result = middle.exp2() + 1
    assert outside(result) == [result.lazydata, middle.lazydata]
    user = middle + 3
    inner = middle.lazydata
    del middle
    assert outside(result) == [result.lazydata, inner]
    assert outside(user) == [user.lazydata, inner]
    user.realize()
    assert outside(result) == [result.lazydata], "its only user is computed"


def test_memory_is_needed_outside_where_it_is_written_to() -> None:
    x = Tensor(X).realize()
    copy = x.clone()
    old = x.lazydata
    assert outside(x + 1) != [old]
    x += 1
    assert outside(x) == [x.lazydata, old]
    copy += 1
    del copy
    assert outside(x) == [x.lazydata]


def test_numbers_that_became_memory_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    begin = KeyedGraph.__init__

    def noting(keyed: KeyedGraph, roots: Iterable[LazyBuffer]) -> None:
        begin(keyed, roots)
        made.append((len(keyed.numbers), len(keyed.outside)))

    monkeypatch.setattr(KeyedGraph, "__init__", noting)
    x = Tensor(X).realize()
    for turn in range(8):
        number = 0.5 + turn / 16
        result = ((x * number).exp2() + x).numpy()
        np.testing.assert_allclose(result, np.exp2(X * number) + X, rtol=1e-5)
    assert set(made) == {(5, 1)}, "what stands in for a graph needs none of its nodes"


def test_a_node_that_another_thread_computes_amid_the_walk() -> None:
    class Computed(tuple[LazyBuffer, ...]):
        """Sources of a node that is computed once they were looked at."""

        __slots__ = ()

        def __iter__(self) -> Iterator[LazyBuffer]:
            yield from tuple(self[:])
            inner.set_realized(Buffer.fromCPU("NUMPY", X.reshape(-1)), this_thread.state)

    x = Tensor(X, device="NUMPY").realize().lazydata
    inner = x.e(UnaryOps.SQRT)
    node = inner.e(UnaryOps.NEG)
    inner.srcs = Computed(inner.srcs)
    keyed = KeyedGraph([node])
    assert list(keyed.numbers) == [x, inner, node]
    assert keyed.key == (*_memory(x), *_memory(inner), UnaryOps.NEG, None, 1, None, 2, None)


def _memory(node: LazyBuffer) -> tuple[Any, ...]:
    assert node.realized is not None
    return node.shape, node.dtype, node.device, node.realized.size
