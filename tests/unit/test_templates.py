"""Functions that are one node of the graph until it is planned."""

from typing import Any

import numpy as np
import pytest
from tests.planning import Work

import ferrule
from ferrule import Tensor, Variable, fft
from ferrule.fusion import make_schedule
from ferrule.fusion.dynamic.templates import Template
from ferrule.fusion.graph import toposort
from ferrule.ir.lazy import LazyBuffer
from ferrule.ops import LoadOps

RNG = np.random.default_rng(3)


def points(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape)


def close(found: Tensor, expected: np.ndarray[Any, Any]) -> None:
    if np.iscomplexobj(expected):
        expected = np.stack([expected.real, expected.imag], -1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


def test_it_is_one_node_and_equal_ones_are_the_same() -> None:
    x = Tensor(points(3, 500)).realize()
    first, second = fft.rfft(x).lazydata, fft.rfft(x).lazydata
    assert first is second
    templates = [node for node in toposort([first]) if node.op is LoadOps.TEMPLATE]
    assert len(templates) == 1
    template: Template = templates[0].arg
    assert len(toposort([template.expanded(x.lazydata)])) > 20


def test_its_kernels_are_those_of_its_nodes() -> None:
    """What is around it is fused into them."""
    x = Tensor(points(3, 500)).realize()
    node = (fft.rfft(x * 2.0) + 1.0).lazydata
    (place,) = [n for n in toposort([node]) if n.op is LoadOps.TEMPLATE]
    template: Template = place.arg
    written = (Tensor(template.expanded((x * 2.0).lazydata)) + 1.0).lazydata

    def kernels(node: LazyBuffer) -> list[Any]:
        return [item.ast for item in make_schedule([node]).items]

    assert kernels(node) == kernels(written)


def test_a_graph_is_expanded_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    calls = []
    expanded = Template.expanded
    monkeypatch.setattr(
        Template, "expanded", lambda self, x: calls.append(self) or expanded(self, x)
    )
    for _ in range(4):
        x = points(3, 504)
        close(fft.ifft(fft.fft(Tensor(np.stack([x, x], -1)) * 2.0)), 2 * (x + 1j * x))
    assert len(calls) == 2
    assert work.plans == 1


def test_numbers_and_places_that_change() -> None:
    x = points(40, 250)
    tensor = Tensor(x).realize()
    for number in range(5):
        scaled = fft.rfft(tensor[number : number + 2] * (0.5 + number)) - number
        close(scaled, np.fft.rfft(x[number : number + 2] * (0.5 + number)) - number * (1 + 1j))


def test_what_it_reads_may_be_overwritten_before_it_is_computed() -> None:
    x = points(2, 250)
    tensor = Tensor(x).realize()
    spectrum = fft.rfft(tensor)
    tensor += 1.0
    close(tensor, x + 1.0)
    close(spectrum, np.fft.rfft(x))


def test_its_result_may_be_asked_for_later() -> None:
    x = points(2, 250)
    spectrum = fft.rfft(Tensor(x))
    close(spectrum.square().sum(-1), np.abs(np.fft.rfft(x)) ** 2)
    close(spectrum, np.fft.rfft(x))


def test_it_may_be_written_into_memory() -> None:
    x = points(2, 250)
    memory = Tensor.zeros(3, 2, 126, 2, dtype="float64").contiguous().realize()
    memory[1] = fft.rfft(Tensor(x))
    close(memory[1], np.fft.rfft(x))
    assert not memory[0].numpy().any()
    assert not memory[2].numpy().any()
    moved = fft.fft(Tensor(np.stack([x, x], -1)), dim=0)
    moved += 1.0
    close(moved, np.fft.fft(x + 1j * x, axis=0) + 1 + 1j)


def test_rows_of_a_variable_number_and_of_a_constant() -> None:
    x = points(8, 250)
    n = Variable("n", 1, 8).bind(3)
    found = fft.rfft(Tensor(x).realize()[:n]).sum(0)
    close(found, np.fft.rfft(x[:3]).sum(0))
    close(fft.rfft(Tensor.ones(2, 250, dtype="float64")), np.fft.rfft(np.ones((2, 250))))


def test_lanes_of_lanes() -> None:
    x = points(2, 3, 250)
    close(ferrule.vmap(ferrule.vmap(fft.rfft))(Tensor(x)), np.fft.rfft(x))
