"""`FERRULE_SKIP`: each optimisation of the scheduler, left out: what runs is another, and right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ferrule.fusion
from ferrule import Context, Tensor, TinyJit
from ferrule.base.config import PASSES, ConfigError, config, config_from
from ferrule.fusion import make_schedule
from ferrule.fusion.dynamic.families import _families

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    """All plans anew: earlier tests may have made some."""
    caches: list[Any] = [
        *(ferrule.fusion._known_graphs, ferrule.fusion._plans),
        _families,
    ]
    for cache in caches:
        cache.clear()
    with Context(FERRULE_DEVICE="CPU", FERRULE_NUM_THREADS=2):
        yield


def elementwise() -> list[Tensor]:
    x = Tensor(X).realize()
    return [x * x.sum(1, keepdim=True)]


def attention() -> list[Tensor]:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, 64, 32)).astype(np.float32) for _ in range(3)]
    q, k, v = (Tensor(array).realize() for array in arrays)
    return [(q.matmul(k.transpose(1, 2)) * 0.125).softmax(-1).matmul(v)]


def attention_gradients() -> list[Tensor]:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, 4, 128, 32)).astype(np.float32) for _ in range(3)]
    q, k, v = (Tensor(array).requires_grad_() for array in arrays)
    result = (q.matmul(k.transpose(2, 3)) * 0.125).softmax(-1).matmul(v)
    return [result, *(result * result).sum().gradient(q, k, v)]


def several() -> list[Tensor]:
    y = Tensor(X).realize().exp()
    return [y, y * 2]


def unrelated() -> list[Tensor]:
    a, b = Tensor(X).realize(), Tensor(X[:7, :5]).realize()
    return [a + 1, b * 2]


def joined() -> list[Tensor]:
    a = Tensor(X).realize()
    b = a.matmul(Tensor(X.T.copy()).realize())
    c = a.sum(1, keepdim=True)
    return [b.relu(), Tensor.cat(b, b * c, dim=1)]


def chain() -> list[Tensor]:
    """Several products in a row, so that memory is free again for later ones."""
    a = Tensor(X[:, :48]).realize()
    for _ in range(4):
        a = a.matmul(a) * 0.01
    return [a]


PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {
    "fusion": elementwise,
    "blocks": attention,
    "guests": attention_gradients,
    "outputs": several,
    "merge": unrelated,
    "pieces": joined,
    "memory": chain,
}


def computed(program: Callable[[], list[Tensor]]) -> tuple[list[Array], list[Any]]:
    """The results of a program, and the kernels that computed them with the size of memory."""
    results = program()
    schedule = make_schedule([result.lazydata for result in results])
    buffers = [buffer for item in schedule.items for buffer in (item.out, *item.inputs)]
    memory = {id(buffer.base): buffer.base.nbytes for buffer in buffers}
    shape = [len(schedule.items), sum(memory.values())]
    return [result.numpy() for result in results], shape


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_skipped_optimisation_is_not_made_and_the_results_are_the_same(name: str) -> None:
    program = PROGRAMS[name]
    expected, usual = computed(program)
    with Context(FERRULE_SKIP=name):
        found, other = computed(program)
    assert other != usual, "the program does not depend on the optimisation"
    assert other[0] > usual[0] or other[1] > usual[1]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    again, ran = computed(program)
    assert ran == usual
    for a, b in zip(again, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("skipped", ["", "lengths"])
def test_without_lengths_each_has_a_plan(skipped: str) -> None:
    with Context(FERRULE_SKIP=skipped):
        for size in range(3, 20):
            x = Tensor(X[:size]).realize()
            np.testing.assert_allclose((x * 2 + 1).sum(1).numpy(), (X[:size] * 2 + 1).sum(1), 1e-4)
    plans = len(ferrule.fusion._plans)
    assert plans == 17 if skipped else plans < 17


@pytest.mark.parametrize("skipped", ["", "offsets"])
def test_without_offsets_each_has_a_plan(skipped: str) -> None:
    x = Tensor(X).realize()
    with Context(FERRULE_SKIP=f"{skipped},lengths"):
        for start in range(20):
            np.testing.assert_array_equal((x[start : start + 9] * 2).numpy(), X[start:][:9] * 2)
    plans = len(ferrule.fusion._plans)
    assert plans >= 20 if skipped else plans < 20


def test_all_optimisations_together_may_be_left_out() -> None:
    for program in PROGRAMS.values():
        expected, _ = computed(program)
        with Context(FERRULE_SKIP=",".join(PASSES)):
            found, _ = computed(program)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_captured_function_is_captured_anew() -> None:
    @TinyJit
    def function(x: Tensor) -> Tensor:
        return (x * x.sum(1, keepdim=True)).realize()

    counts = []
    expected = X * X.sum(1, keepdims=True)
    for skipped in ("", "fusion", ""):
        with Context(FERRULE_SKIP=skipped, JIT=2):
            for _ in range(3):
                result = function(Tensor(X).realize())
                np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
            counts.append(len(function.jit_cache))
    assert counts[1] > counts[0] == counts[2]


def test_names_are_checked() -> None:
    assert config_from({"FERRULE_SKIP": "merge, fusion"}).FERRULE_SKIP == {"merge", "fusion"}
    with pytest.raises(ConfigError, match="no optimisation 'speed' to leave out; expected some of"):
        Context(FERRULE_SKIP="speed")
    with pytest.raises(ConfigError, match="no optimisation 3"):
        Context(FERRULE_SKIP=3)
    with Context(FERRULE_SKIP=("merge",)):
        assert config().FERRULE_SKIP == frozenset({"merge"})
    assert config().FERRULE_SKIP == frozenset()
