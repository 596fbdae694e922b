"""`TinyJit` gives the numbers of the plain function, call after call, whatever the arguments."""

import copy
import gc
import itertools
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import ferrule.engine.realize
from ferrule.base.config import Context
from ferrule.device import Device, GlobalCounters, JITRunner
from ferrule.dtype import dtypes
from ferrule.ir.expr import Variable
from ferrule.jit import (
    _MOST_UNUSED,
    GraphException,
    JitItem,
    TinyJit,
    get_input_replace,
    get_jit_stats,
)
from ferrule.jit.state import State
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")


def rows(*shape: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


@TinyJit
def tripled(x: Tensor) -> Tensor:
    return x * 3


class Scale:
    """A model whose step is captured, as an attribute and as a method."""

    def __init__(self, factor: float) -> None:
        self.factor = Tensor([factor]).realize()
        self.step = TinyJit(self.plain)

    def plain(self, x: Tensor) -> Tensor:
        return x * self.factor

    @TinyJit
    def method(self, x: Tensor) -> Tensor:
        return x * self.factor


# *** calls and results ***


def test_the_first_call_runs_the_second_captures_the_third_replays() -> None:
    runs = []

    @TinyJit
    def double(x: Tensor) -> Tensor:
        runs.append(x.shape)
        return x * 2

    for i in range(5):
        assert double(Tensor([float(i), 1.0])).tolist() == [2.0 * i, 2.0]
    assert len(runs) == 2
    assert double.cnt == 5
    assert len(double.jit_cache) == 1
    assert double.ret is not None
    assert len(double.expected_name_sts_dtype) > 0


def test_results_keep_their_values_after_later_calls() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x + x

    results = [double(Tensor([float(i)])) for i in range(5)]
    assert [result.item() for result in results] == [0, 2, 4, 6, 8]


def test_an_output_can_be_fed_back() -> None:
    @TinyJit
    def next_one(x: Tensor) -> Tensor:
        return x * 2 + 1

    x = Tensor([1.0, 2.0])
    expected = np.array([1.0, 2.0])
    seen = []
    for _ in range(7):
        x = next_one(x)
        expected = expected * 2 + 1
        seen.append((x, expected))
    for result, value in seen:
        assert result.tolist() == value.tolist()


def test_several_outputs_in_containers() -> None:
    class Pair(NamedTuple):
        first: Tensor
        second: Tensor

    @TinyJit
    def f(x: Tensor) -> Any:
        y = x + 1
        return {"a": y, "b": [y * 2, None], "c": (Pair(x, y.sum()),)}

    for i in range(4):
        x = Tensor([float(i), 3.0])
        result = f(x)
        assert result["a"].tolist() == [i + 1, 4]
        assert result["b"][0].tolist() == [2 * i + 2, 8]
        assert result["b"][1] is None
        pair = result["c"][0]
        assert type(pair) is Pair
        assert pair.first is x
        assert pair.second.item() == i + 5


@pytest.mark.parametrize("shape", [(60, 2500), (33, 65)])
def test_results_of_other_forms_in_one_kernel(shape: tuple[int, int]) -> None:
    """A transposition, through memory that threads share, beside values in their places."""

    @TinyJit
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.permute((1, 0)).contiguous(), y * 2, y.reshape(-1, 3).sum(1)

    for call in range(4):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + call
        y = np.arange(18, dtype=np.float32) - call
        turned, doubled, sums = function(Tensor(x).realize(), Tensor(y).realize())
        np.testing.assert_array_equal(turned.numpy(), x.T)
        np.testing.assert_array_equal(doubled.numpy(), y * 2)
        np.testing.assert_array_equal(sums.numpy(), y.reshape(-1, 3).sum(1))


def test_one_tensor_returned_twice() -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y

    for i in range(4):
        a, b = f(Tensor([i]))
        assert (a.item(), b.item()) == (i + 1, i + 1)


def test_a_returned_value_that_is_the_arguments_own_is_a_copy() -> None:
    @TinyJit
    def same_value(x: Tensor) -> Tensor:
        return x * 1

    results = []
    for i in range(4):
        x = Tensor([float(i)])
        results.append(same_value(x))
        x.assign(Tensor([-1.0])).realize()
    assert [result.item() for result in results] == [0, 1, 2, 3]


def test_a_constant_result() -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return Tensor.full((2, 2), 3.0), x + 1

    for i in range(4):
        constant, other = f(Tensor([i]))
        assert constant.tolist() == [[3, 3], [3, 3]]
        assert other.item() == i + 1
        constant.assign(Tensor.zeros(2, 2)).realize()


def test_a_tensor_made_of_python_numbers_inside() -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        table = Tensor([1.0, 2.0, 3.0])
        return table, table + x

    for i in range(4):
        table, result = f(Tensor([float(i)]))
        assert table.tolist() == [1, 2, 3]
        assert result.tolist() == [1 + i, 2 + i, 3 + i]
        table.assign(Tensor([0.0, 0.0, 0.0])).realize()


def test_host_data_made_inside_and_updated_in_place() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        total = Tensor([1.0, 2.0]).realize()
        total.assign(total + x).realize()
        total.assign(total * 2)
        return total

    for i in range(5):
        assert f(Tensor([float(i), float(i)])).tolist() == [2 * (1 + i), 2 * (2 + i)]


def test_a_function_that_returns_nothing() -> None:
    total = Tensor([0.0]).realize()

    @TinyJit
    def add(x: Tensor) -> None:
        total.assign(total + x)

    for i in range(5):
        add(Tensor([float(i)]))
        assert total.item() == sum(range(i + 1))


# *** arguments ***


def test_keyword_arguments_in_any_order() -> None:
    @TinyJit
    def f(first: Tensor, second: Tensor) -> Tensor:
        return first - second

    for i in range(5):
        a, b = Tensor([float(i)]), Tensor([10.0])
        result = f(first=a, second=b) if i % 2 else f(second=b, first=a)
        assert result.item() == i - 10


def test_tensors_in_nested_containers() -> None:
    @dataclass
    class Batch:
        x: Tensor
        scale: int

    @TinyJit
    def f(batch: Batch, parts: dict[str, Any]) -> Tensor:
        return batch.x * batch.scale + parts["a"][0] - parts["b"][1][0]

    for i in range(5):
        parts = {"a": [Tensor([float(i)])], "b": (None, [Tensor([2.0])])}
        assert f(Batch(Tensor([3.0]), 2), parts).item() == 6 + i - 2


def test_constant_arguments() -> None:
    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    for i in range(5):
        assert f(Tensor.full((3,), float(i)), Tensor.ones(3)).tolist() == [i, i, i]


def test_lazy_arguments() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x + 1

    for i in range(5):
        lazy = (Tensor([float(i), 2.0]) * 3).exp2()
        assert f(lazy).tolist() == [2.0 ** (3 * i) + 1, 65]


def test_duplicate_arguments_and_then_different_ones() -> None:
    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x - y * 2

    for i in range(8):
        a = Tensor([float(i)])
        b = a if i % 2 else Tensor([100.0])
        assert f(a, b).item() == (i - 2 * i if i % 2 else i - 200)


_PARTS = {
    "a part of what is computed in between": lambda x: (x * 2).realize()[0][:2],
    "two parts": lambda x: (lambda y: (y[0], y[1], y[1:].T))((x * 2).realize()),
    "a part, and all": lambda x: (lambda y: (y[1:], y))((x * 2).realize()),
    "a part of what the host computes": lambda x: x.argsort(-1)[..., :1],
    "samples": lambda x: (x * 0 + Tensor([0.0, 1.0, 0.0])).multinomial(1),
}


@pytest.mark.parametrize("kind", _PARTS)
def test_results_that_are_parts_of_others(kind: str) -> None:
    runs: list[int] = []

    def f(x: Tensor) -> Any:
        runs.append(1)
        return _PARTS[kind](x)

    captured = TinyJit(f)
    kept = []
    for i in range(4):
        x = Tensor(rows(2, 3, start=i)[:, ::-1].copy()).realize()
        results, expected = captured(x), _PARTS[kind](x)
        pairs = (
            zip(results, expected, strict=True)
            if kind in ("two parts", "a part, and all")
            else [(results, expected)]
        )
        kept += [(result, wanted.numpy()) for result, wanted in pairs]
    for result, wanted in kept:
        np.testing.assert_array_equal(result.numpy(), wanted)
    assert len(runs) == 2


class Kept:
    """What functions leave something in that no walk from them finds."""

    tensors: ClassVar[list[Tensor]] = []


@pytest.mark.parametrize("which", ["all", "the part in between", "the same memory"])
def test_no_replay_of_a_part_whose_whole_is_kept_somewhere(which: str) -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = (x * 2).realize()
        part = y[1:]
        kept = getattr(sys.modules[__name__], "".join(["Ke", "pt"])).tensors
        kept.append({"all": y, "the same memory": y.detach()}.get(which, part))
        return part[0]

    Kept.tensors.clear()
    for i in range(4):
        result = f(Tensor(rows(2, 3, start=i)).realize())
        kept = Kept.tensors[i]
        kept += 1
        np.testing.assert_array_equal(kept.numpy()[-1], rows(2, 3, start=i)[-1] * 2 + 1)
        np.testing.assert_array_equal(result.numpy(), kept.numpy()[-1])
    Kept.tensors.clear()


def test_views_of_one_memory_as_arguments() -> None:
    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * 10 + y

    for i in range(5):
        whole = Tensor(rows(4, 2, start=i)).realize()
        result = f(whole[:2], whole[2:])
        expected = rows(4, 2, start=i)
        np.testing.assert_equal(result.numpy(), expected[:2] * 10 + expected[2:])


@pytest.mark.parametrize("reached", [True, False])
def test_views_see_what_a_replay_writes(reached: bool) -> None:
    total = Tensor(np.ones(4, np.float32)).realize()
    view = total[1:3]
    reference = weakref.ref(total)

    def found() -> Tensor:
        tensor = reference()
        assert tensor is not None
        return tensor

    def add(x: Tensor) -> Tensor:
        return (total.assign(total + x) if reached else found().assign(found() + x)).sum()

    captured = TinyJit(add)
    for i in range(4):
        captured(Tensor(np.full(4, 10**i, np.float32)).realize())
        np.testing.assert_equal(view.numpy(), total.numpy()[1:3])
    assert captured.jit_cache


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("moved", [0, 1])
def test_tensors_that_a_function_reaches_weakly_are_watched(reached: bool, moved: int) -> None:
    whole = Tensor(rows(2, 3)).realize()
    tensors = whole, whole.clone()  # in one memory until one of them is written to
    reference = weakref.ref(tensors[1])

    def f(x: Tensor) -> Tensor:
        copied = reference()
        assert copied is not None
        return x + copied + (whole * 10 if reached else 0)

    captured = TinyJit(f)
    x = Tensor(np.ones((2, 3), np.float32)).realize()
    for i in range(6):
        np.testing.assert_equal(captured(x).numpy(), f(x).numpy())
        assert i == 0 or captured.jit_cache
        if i == 3:
            tensors[moved].assign(tensors[moved] * 3)


@dataclass(eq=False)
class Keeps:
    copy: Tensor | None = None


def test_a_copy_that_a_call_put_out_of_reach_stays_a_copy() -> None:
    weight, keeps = Tensor(rows(2, 3)).realize(), Keeps()
    hidden = itertools.repeat(keeps)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        found = next(hidden)
        if found.copy is None:
            found.copy = weight.clone()
        return x + found.copy

    x = Tensor(np.ones((2, 3), np.float32)).realize()
    f(x)
    keeps.copy = None
    for i in range(6):
        np.testing.assert_equal(f(x).numpy(), rows(2, 3) + 1)
        assert not f.jit_cache  # what an iterator from outside gives is anybody's guess
        if i == 2:
            weight.assign(weight * 3)


def test_garbage_of_a_call_may_be_something_that_it_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody looks for the garbage, and the collector tells nobody."""

    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = (x * 2).realize()
        circle = [y]
        circle.append(circle)
        return y + 1

    gc.disable()
    try:
        with Context(DEBUG=1):
            for i in range(4):
                result = f(Tensor(rows(2, start=i)).realize())
                np.testing.assert_equal(result.numpy(), rows(2, start=i) * 2 + 1)
    finally:
        gc.enable()
    assert not f.jit_cache
    assert "in garbage that is not collected yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    "part",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[:, i : i + 3],
        lambda x, i: x[i::12],
        lambda x, i: x[i : i + 4].T,
        lambda x, i: x[1, i : i + 3].expand(2, 3),
        lambda x, i: x[i : i + 4].reshape(2, -1)[:, 1:],
        lambda x, i: x[::-1][i : i + 4],
    ],
)
def test_other_parts_of_one_memory_share_a_capture(part: Any) -> None:
    runs: list[int] = []
    data = Tensor(rows(24, 15)).realize()
    plain = data.numpy()

    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        runs.append(1)
        return x * 2 + y

    y = data[0, 4:5]
    for i in range(10):
        x = part(data, i)
        assert f(x, y).tolist() == (np.array(x.tolist()) * 2 + plain[0, 4]).tolist()
    assert len(runs) == 3  # plainly, for one part, and for all


def test_a_part_that_stays_beside_one_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Tensor(rows(24, 16)).realize()
    f = TinyJit(lambda x, y: x * y)
    copied: list[int] = []
    copy_of = ferrule.jit.inputs._copied_part

    def noting(tensor: Tensor, *others: Any) -> Any:
        copied.append(tensor.shape[0])
        return copy_of(tensor, *others)

    monkeypatch.setattr("ferrule.jit.inputs._copied_part", noting)
    for i in range(5):
        f(data[i : i + 3, 1], data.T[2, 3:4])
    assert set(copied) == {3}


def test_batches_of_one_data_set_share_a_capture() -> None:
    runs: list[int] = []
    data, labels = Tensor(rows(60, 3)).realize(), Tensor(rows(60)).realize()

    @TinyJit
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        return x * 2 + y.reshape(4, 1), x

    for i in [*range(0, 60, 4), 1, 7, 7]:
        if i == 20:
            data[24:26] = 5.0
        result, again = f(data[i : i + 4], labels[i : i + 4])
        x, y = data.numpy()[i : i + 4], labels.numpy()[i : i + 4]
        np.testing.assert_array_equal(result.numpy(), x * 2 + y.reshape(4, 1))
        np.testing.assert_array_equal(again.numpy(), x)
    assert len(runs) == 3  # plainly, for one part, and for all


def kernels_run(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """A set to which the AST of each kernel is added as it is scheduled."""
    asts: set[Any] = set()
    prepare = ferrule.engine.realize.prepare

    def noting(kernels: Any) -> Any:
        asts.update(*kernels.values())
        return prepare(kernels)

    monkeypatch.setattr("ferrule.engine.realize.prepare", noting)
    return asts


@pytest.mark.parametrize("how", ["outside", "argument"])
def test_a_window_that_slides_in_a_captured_function(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Tensor(rows(60, 4)).realize()
    x = Tensor(rows(8, 4)).realize()

    @TinyJit
    def f(given: Tensor, x: Tensor, i: int) -> Tensor:
        return (given[i : i + 8] * 3 if how == "argument" else data[i : i + 8] * 3) - x

    f(x if how == "outside" else data, x, 4)
    asts = kernels_run(monkeypatch)
    for i in [*range(4, 52, 4), *range(4, 52, 4)]:
        given = Tensor(rows(60, 4) + i).realize() if how == "argument" else x
        whole = given if how == "argument" else data
        expected = whole.numpy()[i : i + 8] * 3 - x.numpy()
        np.testing.assert_array_equal(f(given, x, i).numpy(), expected)
    assert len(f._replays) == 12
    assert len(asts) == 1


def test_a_part_of_an_argument_that_shares_its_memory() -> None:
    data = Tensor(rows(24)).realize()

    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x[2:6] - y[0:4] * 2).realize() + x[8:12]

    for turn in range(5):
        data.assign(data + turn).realize()
        for x, y in ((data, data), (data, data[4:])):
            expected = x.numpy()[2:6] - y.numpy()[:4] * 2 + x.numpy()[8:12]
            np.testing.assert_array_equal(f(x, y).numpy(), expected)


def test_a_part_of_an_argument_that_the_function_also_reaches() -> None:
    data = Tensor(rows(24)).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x[2:6] - data[4:8] * 2

    for x in (data, data, data, Tensor(rows(24) * 5).realize(), data, Tensor(-rows(24)).realize()):
        expected = x.numpy()[2:6] - data.numpy()[4:8] * 2
        np.testing.assert_array_equal(f(x).numpy(), expected)


def test_parts_of_what_the_call_makes() -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = (x * 2).realize()
        middle = (x + 1).realize()
        return doubled, (doubled[2:6] + middle[4:8]).realize()

    for i in range(6):
        x = rows(12) + i
        whole, part = f(Tensor(x).realize())
        np.testing.assert_array_equal(whole.numpy(), x * 2)
        np.testing.assert_array_equal(part.numpy(), x[2:6] * 2 + x[4:8] + 1)


def test_parts_of_arguments_are_written_in_replays() -> None:
    @TinyJit
    def f(x: Tensor, i: int) -> Tensor:
        x[i : i + 2] = x[i + 2 : i + 4] * 10
        return x.sum()

    for turn in range(4):
        for i in (0, 3, 5):
            expected = rows(12) + turn
            x = Tensor(expected).realize()
            expected[i : i + 2] = expected[i + 2 : i + 4] * 10
            assert f(x, i).item() == expected.sum()
            np.testing.assert_array_equal(x.numpy(), expected)


def test_a_part_that_stays_where_it_is_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    data = Tensor(rows(1 << 16)).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x.sum()

    f(data[4:])
    f(data[4:])
    monkeypatch.delattr("ferrule.jit.inputs.BufferCopy")
    for _ in range(3):
        f(data[4:])
    assert len(runs) == 2


def test_overlapping_parts_as_arguments() -> None:
    data = Tensor(rows(12)).realize()

    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x - y * 2

    for i in range(6):
        for j in (i, i + 1):
            x, y = data[i : i + 4], data[j : j + 4]
            expected = x.numpy() - y.numpy() * 2
            np.testing.assert_array_equal(f(x, y if i != j else x).numpy(), expected)


@pytest.mark.parametrize("reached", [False, True])
def test_a_part_that_is_written_to(reached: bool) -> None:
    data = Tensor(rows(12)).realize()
    plain = rows(12)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        if reached:
            data[:] = data + 1
        else:
            x.assign(x + 1)
        return x * 2

    for i in [0, 4, 8, 4, 5, 6]:
        result = f(data[i : i + 4])
        plain[slice(None) if reached else slice(i, i + 4)] += 1
        np.testing.assert_array_equal(result.numpy(), plain[i : i + 4] * 2)
        np.testing.assert_array_equal(data.numpy(), plain)


def test_the_gradient_of_a_part() -> None:
    data = Tensor(rows(12), requires_grad=True).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        loss = x.square().sum()
        loss.backward()
        return loss

    for i in range(5):
        data.grad = None
        f(data[i : i + 4])
        expected = np.zeros(12, np.float32)
        expected[i : i + 4] = 2 * rows(4, start=i)
        gradient = data.grad
        assert gradient is not None
        np.testing.assert_array_equal(gradient.numpy(), expected)


def test_another_view_is_another_signature() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * 2

    data = rows(4, 4)
    whole = Tensor(data).realize()
    for _ in range(3):
        np.testing.assert_equal(f(whole[:2, :2]).numpy(), data[:2, :2] * 2)
        np.testing.assert_equal(f(whole[2:, 1:3]).numpy(), data[2:, 1:3] * 2)
        np.testing.assert_equal(f(whole[:2, :2].T).numpy(), data[:2, :2].T * 2)


def test_other_shapes_and_dtypes_are_captured_at_first_sight() -> None:
    runs = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(x.shape)
        return x + x

    for size in (2, 2, 2, 3, 3, 2, 3):
        assert f(Tensor(rows(size))).tolist() == (rows(size) * 2).tolist()
    assert runs == [(2,), (2,), (3,)]
    for _ in range(3):
        assert f(Tensor([1, 2])).dtype is dtypes.int32
    assert runs == [(2,), (2,), (3,), (2,)]


def test_python_values_are_part_of_the_signature() -> None:
    @TinyJit
    def f(x: Tensor, scale: float, flags: list[bool], mode: str | None = None) -> Tensor:
        y = x * scale
        return y + 1 if flags[0] and mode == "up" else y

    for _ in range(3):
        for scale in (2.0, 3.0, -0.0):
            for flag in (True, False):
                expected = 5.0 * scale + flag
                assert f(Tensor([5.0]), scale, [flag], mode="up").item() == expected
    assert np.signbit(f(Tensor([5.0]), -0.0, [False]).item())
    assert not np.signbit(f(Tensor([5.0]), 0.0, [False]).item())


def test_the_number_of_captures_is_bounded() -> None:
    @TinyJit
    def f(x: Tensor, i: int) -> Tensor:
        return x + i

    for i in range(50):
        assert f(Tensor([1.0]), i).item() == 1 + i
    assert len(f._replays) <= 32
    assert f(Tensor([1.0]), 3).item() == 4


def test_numpy_arguments_are_known_by_their_contents() -> None:
    @TinyJit
    def f(x: Tensor, table: np.ndarray[Any, Any]) -> Tensor:
        return x + Tensor(table)

    for i in (0, 1, 1, 0, 2):
        assert f(Tensor([1.0]), np.array([i], np.float32)).item() == 1 + i


def test_a_size_of_zero() -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x.sum()

    for _ in range(4):
        same, total = f(Tensor(np.zeros((0, 3), np.float32)))
        assert same.shape == (0, 3)
        assert total.item() == 0


# *** memory from outside ***


def test_a_tensor_from_outside_is_read_anew() -> None:
    weight = Tensor([2.0, 3.0]).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * weight

    for i in range(6):
        weight.assign(Tensor([float(i), 1.0]))
        assert f(Tensor([2.0, 2.0])).tolist() == [2 * i, 2]


def test_the_same_tensor_as_argument_and_from_outside() -> None:
    weight = Tensor([2.0, 3.0]).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * 10 + weight

    for other in ([1.0, 1.0], [5.0, 6.0], [7.0, 8.0]):
        for _ in range(2):
            assert f(weight).tolist() == [22, 33]
            assert f(Tensor(other)).tolist() == [other[0] * 10 + 2, other[1] * 10 + 3]


def test_state_on_an_object_passed_as_an_argument() -> None:
    class Cell:
        def __init__(self) -> None:
            self.hidden = Tensor([1.0, 2.0]).realize()
            self.scale = Tensor([2.0]).realize()
            self.runs = 0

        @TinyJit
        def next_state(self, x: Tensor, hidden: Tensor) -> Tensor:
            self.runs += 1
            return hidden * self.scale + x

        def step(self, x: Tensor) -> Tensor:
            self.hidden = self.next_state(x, self.hidden)
            return self.hidden

    cell = Cell()
    expected = np.array([1.0, 2.0])
    states = []
    for i in range(8):
        expected = expected * 2 + i
        states.append((cell.step(Tensor([float(i)])), expected))
    for state, value in states:
        assert state.tolist() == value.tolist()
    assert cell.runs == 2


def test_an_argument_that_is_also_reached_and_written() -> None:
    state = Tensor([1.0]).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        x.assign(x * 2)
        return state + x

    for i in range(5):
        assert f(state).item() == 2 ** (i + 2)
    other = Tensor([10.0]).realize()
    for i in range(4):
        assert f(other).item() == 32 + 10 * 2 ** (i + 1)


def test_a_write_to_a_tensor_that_is_replaced_reaches_an_argument() -> None:
    class Model:
        def __init__(self) -> None:
            self.state = Tensor([1.0]).realize()

        @TinyJit
        def f(self, x: Tensor) -> Tensor:
            self.state.assign(x * 0.5)
            self.state = x + 1
            return x

    model = Model()
    for i in range(3):
        assert model.f(Tensor([float(i)])).item() == i
    assert model.f(model.state).item() == 1.5


def test_an_argument_in_memory_that_the_function_updates() -> None:
    state = Tensor([1.0]).realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state * x

    expected = 1.0
    for x in (2.0, 3.0, 4.0, None, None, 5.0, None, 6.0):
        given = state if x is None else Tensor([x])
        x = expected if x is None else x
        expected += x
        result = add(given).item()
        assert result == expected * (expected if given is state else x)
        assert state.item() == expected


def test_a_parameter_as_argument_and_from_outside() -> None:
    def train(captured: bool) -> list[Any]:
        weight = Tensor([1.0, 2.0], requires_grad=True)
        other = Tensor([3.0, 4.0], requires_grad=True)

        def gradients(x: Tensor) -> Tensor:
            weight.zero_grad()
            x.zero_grad()
            loss = (weight * x).sum()
            loss.backward()
            return loss

        run = TinyJit(gradients) if captured else gradients
        seen = []
        for x in (other, other, other, weight, weight, other, weight):
            loss = run(x).item()
            assert weight.grad is not None
            assert x.grad is not None
            seen.append((loss, weight.grad.tolist(), x.grad.tolist()))
        return seen

    assert train(True) == train(False)


def test_what_is_refused_again_and_again_just_runs() -> None:
    class Model:
        state: ClassVar = {"hidden": Tensor([0.0])}

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.state = {"hidden": self.state["hidden"] + x}
            return self.state["hidden"]

    model = Model()
    total = 0
    for i in range(40):
        total += i
        assert model.step(Tensor([float(i)])).item() == total
    assert not model.step.jit_cache


def test_what_changes_every_time_is_captured_at_second_sight() -> None:
    @TinyJit
    def f(x: Tensor, i: int) -> Tensor:
        return x + i

    for i in range(40):
        assert f(Tensor([1.0]), i).item() == 1 + i
    captured = set(f._replays)
    for _ in range(3):
        assert f(Tensor([1.0]), 99).item() == 100
    assert len(set(f._replays) - captured) == 1


def test_numbers_that_never_come_again_are_captured_a_few_times() -> None:
    @TinyJit
    def f(x: Tensor, i: int) -> Tensor:
        return x + i

    for i in range(30):
        assert f(Tensor([1.0]), i).item() == 1 + i
    assert len(f._replays) == _MOST_UNUSED
    for _ in range(2):
        for i in range(20, 30):
            assert f(Tensor([1.0]), i).item() == 1 + i
    assert len(f._replays) == _MOST_UNUSED + 10
    for i in range(20, 30):
        runs = [replay.runs for replay in f._replays.values()]
        assert f(Tensor([1.0]), i).item() == 1 + i
        assert sum(replay.runs for replay in f._replays.values()) == sum(runs) + 1


def test_a_loop_over_more_signatures_than_there_is_room_for() -> None:
    runs: list[int] = []

    @TinyJit
    def f(x: Tensor, i: int) -> Tensor:
        runs.append(i)
        return x + i

    for epoch in range(4):
        if epoch == 2:
            runs.clear()
        for i in range(40):
            assert f(Tensor([1.0]), i).item() == 1 + i
    assert runs == [0, *range(33, 40)] * 2  # the others are replayed
    for _ in range(3):
        for i in range(100, 132):
            assert f(Tensor([1.0]), i).item() == 1 + i
    runs.clear()
    for i in range(100, 132):
        assert f(Tensor([1.0]), i).item() == 1 + i
    assert runs == []


def test_a_replaced_tensor_from_outside() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = Tensor([2.0]).realize()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    model = Model()
    forward = TinyJit(model.forward)
    for i in range(8):
        if i % 3 == 0:
            model.weight = Tensor([float(i)])
        assert forward(Tensor([2.0])).item() == 2 * (i - i % 3)


def test_state_that_the_function_replaces_advances() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = Tensor([0.0]).realize()

        @TinyJit
        def add(self, x: Tensor) -> Tensor:
            self.total = self.total + x
            return self.total

    counter = Counter()
    for i in range(6):
        assert counter.add(Tensor([float(i)])).item() == sum(range(i + 1))
        assert counter.total.item() == sum(range(i + 1))


def test_lazy_state_that_the_function_replaces_advances() -> None:
    class Counter:
        total = Tensor([0.0])

        @TinyJit
        def add(self, x: Tensor) -> None:
            self.total = self.total + x

    counter = Counter()
    for i in range(6):
        counter.add(Tensor([float(i)]))
    assert counter.total.item() == 15


def test_constant_state_is_read_anew() -> None:
    class Model:
        def __init__(self) -> None:
            self.scale = Tensor.full((1,), 2.0)
            self.total = Tensor.zeros(1)

        @TinyJit
        def f(self, x: Tensor) -> Tensor:
            return x * self.scale

        @TinyJit
        def add(self, x: Tensor) -> Tensor:
            self.total = self.total + x
            return self.total

    model = Model()
    for i in range(9):
        if i % 3 == 2:
            model.scale = Tensor.full((1,), float(i))
        elif i % 3 == 1:
            model.scale.assign(Tensor.full((1,), float(i)))
        expected = 2.0 if i == 0 else i - (i % 3 == 0)
        assert model.f(Tensor([3.0])).item() == 3 * expected
        if i % 3 == 0:
            model.total = Tensor.zeros(1)
        assert model.add(Tensor([1.0])).item() == 1 + i % 3


def test_constants_that_are_written_are_captured_from_the_next_call_on() -> None:
    """Each call finds a constant, and leaves one."""

    def trained(wrap: Any) -> tuple[list[float], int]:
        runs = []
        w = Tensor.zeros(3)
        slope = Tensor.zeros(3)

        def step(x: Tensor) -> Tensor:
            runs.append(1)
            error = x * w - 1
            slope.add_(error * x)
            w.sub_(slope * 0.01)
            slope.zero_()
            return error.square().sum()

        call = wrap(step)
        losses = [call(Tensor(rows(3, start=i)).realize()).item() for i in range(7)]
        return [*losses, *w.tolist(), *slope.tolist()], len(runs)

    expected, _ = trained(lambda step: step)
    found, runs = trained(TinyJit)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert runs == 3


def test_state_is_updated_in_place() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = Tensor([0.0]).realize()

        @TinyJit
        def add(self, x: Tensor) -> Tensor:
            self.total.assign(self.total + x)
            return self.total + 0.5

    counter = Counter()
    for i in range(6):
        assert counter.add(Tensor([float(i)])).item() == sum(range(i + 1)) + 0.5
        assert counter.total.item() == sum(range(i + 1))
    assert len(counter.add.jit_cache) == 1


def test_writes_beside_a_function_of_the_host() -> None:
    """What is written to is kept meanwhile, in case the function raises: no read of values."""

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        y += 1
        return x.sort()[0]

    for i in range(4):
        y = Tensor([float(i)]).realize()
        assert step(Tensor([3.0, i, 2.0]).realize(), y).tolist() == sorted([3, i, 2])
        assert y.tolist() == [i + 1]


def test_an_argument_is_updated_in_place() -> None:
    @TinyJit
    def bump(x: Tensor) -> None:
        x.assign(x + 1)

    x = Tensor([0.0]).realize()
    for i in range(5):
        bump(x)
        assert x.item() == i + 1
    other = Tensor([10.0]).realize()
    bump(other)
    assert (x.item(), other.item()) == (5, 11)


def test_part_of_an_argument_is_updated_in_place() -> None:
    @TinyJit
    def fill(x: Tensor, value: Tensor) -> Tensor:
        x[1:3] = value
        return x.sum()

    for i in range(5):
        x = Tensor(rows(4)).realize()
        assert fill(x, Tensor([float(i), 0.0])).item() == 3 + i
        assert x.tolist() == [0, i, 0, 3]


def test_a_lazy_reader_keeps_the_old_version() -> None:
    state = Tensor([1.0]).realize()

    @TinyJit
    def double() -> None:
        state.assign(state * 2)

    lazy = []
    for _ in range(6):
        lazy.append(state + 0.5)
        double()
    assert state.item() == 64
    assert [value.item() for value in lazy] == [1.5, 2.5, 4.5, 8.5, 16.5, 32.5]


def test_a_shared_array_keeps_its_contents() -> None:
    state = Tensor([1.0, 1.0]).realize()

    @TinyJit
    def double() -> Tensor:
        state.assign(state * 2)
        return state + 1

    arrays = []
    for _ in range(6):
        arrays.append(state.numpy(copy=False))
        double()
    assert [array[0] for array in arrays] == [1, 2, 4, 8, 16, 32]


def test_a_lazy_tensor_from_outside_is_computed_once() -> None:
    source = Tensor([1.0]).realize()
    lazy = source * 3

    @TinyJit
    def f(x: Tensor) -> Tensor:
        source.assign(source + 1)
        return x + lazy

    f(Tensor([0.0]))
    late = source * 100
    for i in range(5):
        assert f(Tensor([float(i)])).item() == 3 + i
    assert late.item() == 200


def test_a_result_that_is_kept_as_well() -> None:
    class Model:
        last: Tensor | None = None

        @TinyJit
        def f(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return self.last

    model = Model()
    results = []
    for i in range(6):
        results.append(model.f(Tensor([float(i)])))
        assert model.last is not None
        assert model.last.item() == 2 * i
    assert [result.item() for result in results] == [0, 2, 4, 6, 8, 10]


def test_pending_writes_come_first() -> None:
    state = Tensor([0.0]).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return state + x

    for i in range(6):
        state.assign(Tensor([float(i)]))
        x = Tensor([1.0]).realize()
        x.assign(Tensor([float(10 * i)]))
        assert f(x).item() == 11 * i


# *** methods, nesting, settings ***


def test_each_instance_has_its_own_state() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = Tensor([factor]).realize()

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor

    a, b = Scale(2.0), Scale(3.0)
    for i in range(5):
        assert a(Tensor([float(i)])).item() == 2 * i
        assert b(Tensor([float(i)])).item() == 3 * i
    assert type(a).__call__.cnt == 0


def test_an_instance_can_go() -> None:
    class Model:
        @TinyJit
        def f(self, x: Tensor) -> Tensor:
            return x + 1

    model = Model()
    for _ in range(4):
        model.f(Tensor([1.0]))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not Model.__dict__["f"]._instances


def test_a_jit_inside_a_jit() -> None:
    @TinyJit
    def inner(x: Tensor) -> Tensor:
        return x * 2

    @TinyJit
    def outer(x: Tensor) -> Tensor:
        return inner(x) + inner(x + 1)

    for i in range(6):
        assert outer(Tensor([float(i)])).item() == 4 * i + 2
    assert inner(Tensor([5.0])).item() == 10


def test_jit_0_runs_plainly() -> None:
    runs = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x + 1

    with Context(JIT=0):
        for i in range(4):
            assert f(Tensor([i])).item() == i + 1
    assert len(runs) == 4
    assert f.cnt == 4
    assert not f.jit_cache


def test_jit_2_makes_no_graphs() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x + 1).realize() * 2

    with Context(JIT=2):
        for i in range(4):
            assert f(Tensor([float(i)])).item() == 2 * i + 2
        assert len(f.jit_cache) == 2


def test_a_graph_that_cannot_be_made_is_replayed_item_by_item(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise GraphException("not today")

    monkeypatch.setattr(Device[device], "graph", refuse)

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x + 1).realize() * 2

    for i in range(5):
        assert f(Tensor([float(i)])).item() == 2 * i + 2
    assert len(f.jit_cache) == 2
    assert f.input_replace == {(0, 1): 0, (1, 0): 1}


def test_a_graph_holds_its_items(device: str) -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x + 1).realize() * 2

    with Context(JIT=1):
        for i in range(4):
            f(Tensor([float(i)]))
    items = f.jit_cache
    if Device[device].graph is not None:
        assert len(items) == 1
        items = items[0].prg.jit_cache
    assert len(items) == 2
    assert items[0].rawbufs[1] is None
    assert items[1].rawbufs[0] is None


def test_threads_take_turns() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        for _ in range(3):
            x = (x * 2).realize()
        return x

    for i in range(3):
        f(Tensor([float(i)] * 50))
    wrong: list[int] = []

    default = Device.DEFAULT

    def work(number: int) -> None:
        with Context(FERRULE_DEVICE=default):
            given = Tensor([float(number)] * 50).realize()
            for _ in range(50):
                if f(given).tolist() != [8.0 * number] * 50:
                    wrong.append(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not wrong


def test_reset_forgets() -> None:
    runs = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        return x + 1

    for _ in range(3):
        f(Tensor([1]))
    f.reset()
    assert (f.cnt, f.jit_cache, f.input_replace, f.ret) == (0, [], {}, None)
    assert f(Tensor([1])).item() == 2
    assert len(runs) == 3


def test_an_exception_leaves_the_jit_usable() -> None:
    fail = [True]

    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        if fail[0]:
            raise ValueError("no")
        return y * 2

    fail[0] = False
    f(Tensor([1.0]))
    fail[0] = True
    with pytest.raises(ValueError, match="no"):
        f(Tensor([1.0]))
    fail[0] = False
    for i in range(4):
        assert f(Tensor([float(i)])).item() == 2 * i + 2


def test_counters_advance_in_a_replay() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x + 1).realize() * 2

    x = Tensor(rows(8)).realize()
    for _ in range(3):
        f(x)
    GlobalCounters.reset()
    f(x)
    assert GlobalCounters.kernel_count == 2
    assert GlobalCounters.global_ops == 16


# *** training ***


def test_a_training_step_equals_the_plain_one() -> None:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((4, 3)).astype(np.float32) for _ in range(6)]
    first = rng.standard_normal((3, 2)).astype(np.float32)

    def train(captured: bool) -> tuple[list[float], Any, list[Any]]:
        weight = Tensor(first, requires_grad=True)
        runs = []

        def step(x: Tensor) -> Tensor:
            runs.append(1)
            weight.zero_grad()
            loss = (x.matmul(weight) ** 2).mean()
            loss.backward()
            assert weight.grad is not None
            weight.detach().assign(weight.detach() - weight.grad * 0.1)
            return loss

        run = TinyJit(step) if captured else step
        losses, gradients = [], []
        for x in data:
            losses.append(run(Tensor(x)).item())
            assert weight.grad is not None
            gradients.append(weight.grad.numpy())
        assert len(runs) == (2 if captured else len(data))
        return losses, weight.numpy(), gradients

    plain, captured = train(False), train(True)
    np.testing.assert_array_equal(captured[0], plain[0])
    np.testing.assert_array_equal(captured[1], plain[1])
    np.testing.assert_array_equal(captured[2], plain[2])


def test_the_gradient_of_an_argument() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss

    for i in range(5):
        x = Tensor([float(i), 1.0], requires_grad=True)
        assert f(x).item() == i * i + 1
        assert x.grad is not None
        assert x.grad.tolist() == [2 * i, 2]
    for times in (2, 3):
        f(x)
        assert x.grad.tolist() == [times * 8, times * 2]


def test_gradients_of_earlier_calls_keep_their_values() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)

    @TinyJit
    def f(x: Tensor) -> None:
        weight.zero_grad()
        (weight * x).sum().backward()

    gradients = []
    for i in range(6):
        f(Tensor([float(i), 1.0]))
        assert weight.grad is not None
        gradients.append(weight.grad)
    assert [gradient.tolist() for gradient in gradients] == [[i, 1] for i in range(6)]


def test_old_gradients_are_gone_before_new_ones_need_memory() -> None:
    """In captures and in replays: there is one gradient at a time, unless somebody keeps it."""
    weight = Tensor(rows(1 << 16), requires_grad=True).realize()
    most: list[int] = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        weight.zero_grad()
        loss = (weight * weight * x).sum().backward()
        assert weight.grad is not None
        weight.grad.realize()
        return loss.realize()

    x = Tensor(rows(1 << 16)).realize()
    allocator = Device[weight.device].allocator
    take = allocator.alloc

    def alloc(size: int) -> Any:
        opaque = take(size)
        most.append(getattr(allocator, "used", 0))
        return opaque

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "alloc", alloc)
        for _ in range(5):
            gc.collect()
            before = getattr(allocator, "used", 0)
            had = 0 if weight.grad is None else 1 << 18
            most.clear()
            f(x)
            assert max(most) - before + had < 1.5 * (1 << 18)


def test_gradients_add_up_until_they_are_forgotten() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    runs = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        runs.append(1)
        loss = (weight * x).sum()
        loss.backward()
        return loss

    total = np.zeros(2)
    for i in range(12):
        if i % 4 == 0:
            weight.zero_grad()
            total = np.zeros(2)
        total = np.add(total, [i, 1])
        f(Tensor([float(i), 1.0]))
        assert weight.grad is not None
        assert weight.grad.tolist() == total.tolist()
    assert len(runs) < 12


@pytest.mark.parametrize("between", [False, True])
def test_random_numbers_are_those_of_the_plain_function(between: bool) -> None:
    def sample(captured: bool) -> list[Any]:
        Tensor.manual_seed(7)
        runs = []

        def f(x: Tensor) -> Tensor:
            runs.append(1)
            return Tensor.rand(3) + x * Tensor.rand(3)

        run = TinyJit(f) if captured else f
        seen = []
        for i in range(6):
            lazy = Tensor.rand(2) if between else None
            seen.append(run(Tensor([float(i)])).tolist())
            if lazy is not None:
                seen.append(lazy.tolist())
        assert len(runs) == (2 if captured else 6)
        return seen

    assert sample(True) == sample(False)


# *** symbolic sizes ***


@pytest.mark.parametrize("sizes", [(3, 4, 5, 1, 8)])
def test_symbolic_sizes(sizes: tuple[int, ...]) -> None:
    n = Variable("n", 1, 8)

    @TinyJit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x + 1).matmul(y)

    data = rows(8, 3)
    whole = Tensor(data).realize()
    for size in sizes:
        x = whole[: n.bind(size)]
        result = f(x, Tensor(rows(3, 2)))
        np.testing.assert_allclose(result.numpy(), (data[:size] + 1) @ rows(3, 2))
    assert f.cnt == len(sizes)
    assert f.expected_vals == (n,)


def test_a_bound_variable_as_argument() -> None:
    position = Variable("position", 0, 7)
    cache = Tensor(rows(8)).realize()

    @TinyJit
    def f(x: Tensor, at: Any) -> Tensor:
        return cache.shrink(((at, at + 1),)) + x

    for i in (1, 2, 3, 0, 7):
        assert f(Tensor([100.0]), position.bind(i)).item() == 100 + i


# *** the pieces ***


def test_long_chains_share_memory() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x + 1).realize()
        return x

    with Context(JIT=2):
        for i in range(4):
            assert f(Tensor([float(i), 0.0])).tolist() == [i + 20, 20]
        buffers = [buffer for item in f.jit_cache for buffer in item.rawbufs if buffer]
        assert len({buffer.base.serial for buffer in buffers}) <= 3


def test_inputs_are_let_go() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x + 1

    x = Tensor([1.0]).realize()
    for _ in range(4):
        f(x)
    buffer = x.lazydata.realized
    assert buffer is not None
    gone = weakref.ref(buffer)
    del x, buffer
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (2, 5, 3, 4)], ids=["fixed", "changing"])
def test_a_batch_costs_what_its_items_cost(sizes: tuple[int, ...]) -> None:
    """Whether a device has a graph executor or replays item by item, the statistics are equal."""
    a = Tensor(rows(6, 4)).realize()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        total = (x @ a).realize()
        return total, (total * 2).sum().realize()

    found = []
    for mode in (1, 2):
        with Context(JIT=mode):
            captured = TinyJit(step)
            for size in sizes:
                bound = Variable("n", 1, 5).bind(size) if len({*sizes}) > 1 else size
                captured(Tensor(rows(5, 6)).realize()[:bound])
            before = GlobalCounters.global_ops, GlobalCounters.global_mem
            captured(Tensor(rows(5, 6)).realize()[:bound])
            run = GlobalCounters.global_ops - before[0], GlobalCounters.global_mem - before[1]
        total = get_jit_stats(captured.jit_cache)
        values = {Variable("n", 1, 5): sizes[-1]}
        assert [n if isinstance(n, int) else n.infer(values) for n in total] == [*run]
        assert run[0] > 0
        found.append(run)
        for item in captured.jit_cache:
            assert isinstance(item.prg, JITRunner)
            assert item.prg.name
            assert item.prg.device == Device.DEFAULT
            assert {v.name for v in item.prg.vars} <= {"n"}
    assert found[0] == found[1]


def test_get_input_replace_and_stats() -> None:
    x = (Tensor([1.0, 2.0]) + 1).realize()
    buffer = x.lazydata.realized
    assert buffer is not None
    runner = type("Runner", (), {"op_estimate": 3, "mem_estimate": 8})()
    items = [JitItem(runner, [buffer, None]), JitItem(runner, [buffer.view(0, 2), buffer])]
    assert get_input_replace(items, [buffer]) == {(0, 0): 0, (1, 1): 0}
    assert get_jit_stats(items) == (6, 16)


def test_the_device_is_part_of_the_signature() -> None:
    names = [name for name in ("CPU", "NUMPY") if name in Device.names()]

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x + 1

    for i in range(3):
        for name in names:
            result = f(Tensor([float(i)], device=name))
            assert result.device == name
            assert result.item() == i + 1


def test_copies_between_devices_are_replayed(device: str) -> None:
    other = "NUMPY" if device == "CPU" else "CPU"

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x + 1).to(other) * 2

    for i in range(4):
        assert f(Tensor([float(i)])).item() == 2 * i + 2


class _Anything:
    """Has every attribute that it is asked for."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        return object()


anything = _Anything()


def test_an_object_that_makes_up_attributes() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        assert anything is not None
        return (x + 1).realize()

    for i in range(4):
        assert f(Tensor([float(i)])).tolist() == [i + 1]


def test_a_tuple_in_an_attribute() -> None:
    class Model:
        state = (Tensor([1.0]), Tensor([2.0]))

    model = Model()
    model.state = Model.state

    @TinyJit
    def step(x: Tensor) -> Tensor:
        model.state = (model.state[1], x * 2)
        return x + model.state[0]

    for i in range(5):
        before = model.state[1].item()
        assert step(Tensor([float(i)])).item() == i + before
        assert [tensor.item() for tensor in model.state] == [before, 2.0 * i]


def test_after_many_calls_of_one_kind_another_is_noticed() -> None:
    total = Tensor(rows(4)).realize()

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        total.assign(total + x)
        return (x * 2 + y + total).realize()

    def check(x: Tensor, y: Tensor) -> None:
        sums = total.numpy() + x.numpy()
        expected = x.numpy() * 2 + y.numpy() + (sums if y is not total else 2 * sums - y.numpy())
        np.testing.assert_array_equal(step(x, y).numpy(), expected)
        np.testing.assert_array_equal(total.numpy(), sums)

    a, b, c = (Tensor(rows(4, start=start)).realize() for start in (1, 5, 9))
    long = Tensor(rows(8)).realize()
    leaf = Tensor(rows(4), requires_grad=True).realize()
    others = [(b, a), (a, a), (a, total), (a, c.flip(0)), (a, long[2:6])]
    others += [(leaf, a), (leaf.detach(), a), (a.cast(dtypes.float64), a)]
    for x, y in others:
        for first, second in [(a, b), (a, b), (c, b), (a, b), (x, y), (a, b), (x, y)]:
            with Tensor.no_grad():
                check(first, second)


def test_the_devices_are_not_searched_for_tensors() -> None:
    """They have all kernels that were ever made, which a capture has no time for."""
    state = State([lambda: Device], None)
    assert state.tensors() == []
    assert len(state._holders) < 5


def test_pytest_is_not_searched_for_tensors() -> None:
    """It rewrites asserts, so that a function which has one can get at pytest, and at all tests."""

    def function(x: Tensor) -> Tensor:
        assert x.shape == (2,)
        return x + 1

    assert any("pytest" in name for name in function.__code__.co_names)
    assert len(State([function], None)._holders) < 50


# *** copies ***


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_capture_calls_of_their_own(copied: Any) -> None:
    model = Scale(2.0)
    x = Tensor([5.0]).realize()
    for _ in range(3):
        assert model.step(x).tolist() == model.method(x).tolist() == [10.0]
    other = copied(model)
    other.factor.assign([7.0])
    for _ in range(3):
        assert other.step(x).tolist() == other.method(x).tolist() == [35.0]
        assert model.step(x).tolist() == model.method(x).tolist() == [10.0]
    assert other.step.cnt == 3


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(tripled)) is tripled
    assert copy.deepcopy([tripled])[0] is tripled
    by_value = copy.copy(TinyJit(abs))
    assert by_value(Tensor([-1.0])).tolist() == [1.0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, Tensor.clone, Tensor.contiguous, Tensor, lambda w: w * 1]
)
@pytest.mark.parametrize("is_read", [True, False])
def test_a_write_to_a_copy_of_what_a_replay_reads(copied: Any, is_read: bool) -> None:
    weight = Tensor([2.0]).realize()
    scale = TinyJit(lambda x: (x * weight).realize())
    x = Tensor([5.0]).realize()
    for _ in range(3):
        scale(x)
    average = copied(weight)
    for step in range(4):
        average.assign(average * 0.5 + weight * 0.5 + step)
        if is_read:
            assert average.item() >= 2.0
        assert scale(x).tolist() == [10.0]
        assert weight.tolist() == [2.0]
