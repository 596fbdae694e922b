"""Functions that run on the host as nodes of the graph."""

import re

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable, dtypes
from ferrule.engine.host import on_host
from ferrule.helpers import GlobalCounters
from ferrule.ir.shape.view import ShapeError

pytestmark = pytest.mark.usefixtures("device")


def _halved(x: np.ndarray, by: int) -> np.ndarray:
    return x / by


def _fails(x: np.ndarray) -> np.ndarray:
    raise ArithmeticError("no result")


def halved(x: Tensor, by: int = 2) -> Tensor:
    value = x._read()
    return Tensor(on_host(_halved, [value], value.shape, dtypes.float32, by).node)


def test_it_is_lazy_counted_and_in_order() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    before = GlobalCounters.host_calls
    y = halved(x + 1).exp().sum()
    assert GlobalCounters.host_calls == before
    np.testing.assert_allclose(y.item(), np.exp((np.arange(1, 5) + 1) / 2).sum(), rtol=1e-6)
    assert GlobalCounters.host_calls == before + 1


def test_a_view_is_read_as_it_is_shaped() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    np.testing.assert_array_equal(halved(x.T[1:, ::2]).numpy(), x.numpy().T[1:, ::2] / 2)


def test_other_dtypes_come_and_go() -> None:
    x = Tensor([1, 2, 3], dtype=dtypes.bfloat16)
    assert halved(x).tolist() == [0.5, 1.0, 1.5]


def test_captured_programs_run_it_again() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (halved(x * 2) + halved(x, 4)).realize()

    for call in range(5):
        x = Tensor([1.0 + call, 2.0])
        np.testing.assert_allclose(f(x).numpy(), x.numpy() * 1.25)


def test_its_errors_reach_the_caller_and_nothing_is_lost() -> None:
    x = Tensor([1.0])
    value = x._read()
    bad = Tensor(on_host(_fails, [value], (1,), dtypes.float32).node)
    with pytest.raises(ArithmeticError, match="no result") as caught:
        bad.realize()
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"host fails, asked for at .*test_host\.py:\d+", note)
    assert halved(x).tolist() == [0.5]


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
def test_writes_before_an_error_are_done_once(part: slice) -> None:
    x = Tensor.zeros(4).contiguous().realize()
    held = x * 10
    x[part] += 1
    expected = np.zeros(4)
    expected[part] += 1
    value = (x * 2)._read()
    failing = Tensor(on_host(_fails, [value], (4,), dtypes.float32).node)
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            Tensor.realize(failing, x, held)
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(held.numpy(), np.zeros(4))


def _checked(x: np.ndarray) -> np.ndarray:
    if x.min() < 0:
        raise ArithmeticError("no result")
    return x


def test_a_replay_that_raises_has_not_happened() -> None:
    count, total = Tensor.zeros(1).contiguous().realize(), Tensor.zeros(2).contiguous().realize()
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def f(x: Tensor, log: Tensor) -> None:
        count.assign(count + 1)
        log.assign(log * 2 + count)
        value = (x + count * 0 + log.sum() * 0)._read()
        checked = Tensor(on_host(_checked, [value], value.shape, dtypes.float32).node)
        (weight * checked).sum().backward()
        total.assign(total + checked)

    sums, log = np.zeros(2), Tensor.zeros(3).contiguous()
    for call in range(8):
        x, fails = np.array([call, 1], np.float32), call in (4, 6)
        before = [count.item(), log.numpy(), None if weight.grad is None else weight.grad.numpy()]
        if fails:
            with pytest.raises(ArithmeticError):
                f(Tensor(-x), log)
            after = [count.item(), log.numpy(), weight.grad.numpy()]
            for one, other in zip(before, after, strict=True):
                np.testing.assert_array_equal(one, other)
        else:
            f(Tensor(x), log)
            sums += x
        np.testing.assert_array_equal(total.numpy(), sums)
    assert count.item() == 6


def test_a_symbolic_size_is_refused() -> None:
    n = Variable("n", 1, 3).bind(2)
    with pytest.raises(ShapeError, match=r"\[halved\] runs on the host and needs known sizes"):
        halved(Tensor([1.0, 2.0, 3.0])[:n])


def test_nothing_runs_for_an_empty_tensor() -> None:
    before = GlobalCounters.host_calls
    assert halved(Tensor.zeros(0, 3)).shape == (0, 3)
    assert GlobalCounters.host_calls == before
