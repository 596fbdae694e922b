"""The tape: what is recorded, kept and freed, and how gradients accumulate."""

import gc
import weakref

import numpy as np
import pytest
from tests.gpus import nvidia

from ferrule import fusion
from ferrule.autograd import (
    FLAT,
    REVERSE,
    GradientError,
    Gradients,
    GradNode,
    Parts,
    Rule,
    TracedValue,
    is_recording,
    record_several,
)
from ferrule.autograd.backward import pull_back
from ferrule.base.config import Context
from ferrule.ir.target import Target, detect_cpu
from ferrule.ops import BinaryOps, LoadOps, MovementOps, ReduceOps, TernaryOps, UnaryOps
from ferrule.tensor import Tensor


@pytest.fixture(autouse=True)
def _numpy_device() -> object:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values), requires_grad=True)


def test_every_differentiable_op_has_a_rule() -> None:
    """Integers only, or no sources, or a result that is no number of the sources: no rule."""
    without = {
        *(BinaryOps.XOR, BinaryOps.AND, BinaryOps.OR, BinaryOps.SHL, BinaryOps.SHR),
        *(LoadOps.EMPTY, LoadOps.CONST, LoadOps.CUSTOM, LoadOps.TEMPLATE, LoadOps.RESULT),
        MovementOps.AS_STRIDED,
    }
    for kind in (UnaryOps, BinaryOps, TernaryOps, ReduceOps, MovementOps, LoadOps):
        for op in kind:
            assert (op in REVERSE) + (op in FLAT) + (op in without) == 1, op


def test_nothing_is_recorded_without_need() -> None:
    x = Tensor([1.0])
    assert (x * 2)._read().edge is None
    assert (x * 2).requires_grad is None
    y = leaf(1.0)
    with Tensor.no_grad():
        assert not is_recording()
        z = y * 2
        with Tensor.no_grad(False):
            assert (y * 2).requires_grad
        assert not is_recording()
    assert z.requires_grad is None
    assert (y > 0).requires_grad is None
    assert y.int().requires_grad is None
    assert y.floor().requires_grad is None

    @Tensor.no_grad()
    def compute() -> Tensor:
        return y + 1

    assert compute().requires_grad is None
    assert (y + 1).requires_grad


def test_gradients_accumulate() -> None:
    x = leaf(3.0)
    (x * x).sum().backward()
    assert x.grad.tolist() == [6.0]
    kept = x.grad
    (x * 2).sum().backward()
    assert x.grad is kept
    assert x.grad.tolist() == [8.0]
    x.zero_grad()
    assert x.grad is None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0]
    x.grad = None
    (x * 5).sum().backward()
    assert x.grad.tolist() == [5.0]
    x.grad *= 0.5
    assert x.grad.tolist() == [2.5]


def test_backward_after_reading() -> None:
    x = leaf(1.0, 2.0)
    loss = (x.exp() * x).sum()
    loss.realize()
    assert loss.item() == pytest.approx(np.exp(1) + 2 * np.exp(2))
    loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1, 2]) * np.array([2, 3]))


def test_backward_frees_the_tape() -> None:
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0]
    with pytest.raises(GradientError, match=r"the tape was freed at MUL: backward\(\) ran over"):
        y.backward()


def test_freeing_drops_what_was_kept() -> None:
    x = leaf(2.0)
    hidden = x.exp().realize()
    memory = weakref.ref(hidden.lazydata)
    loss = (hidden * hidden).sum().realize()
    del hidden
    assert memory() is not None
    loss.backward()
    x.grad.realize()
    assert memory() is None


def test_operations_that_keep_nothing_may_be_used_again() -> None:
    w = leaf(1.0, 2.0)
    turned = w.reshape(2, 1).T
    for _ in range(2):
        (turned * 3).sum().backward()
    assert w.grad.tolist() == [6.0, 6.0]


def test_results_without_use_are_not_kept() -> None:
    """Adding keeps neither operand."""
    x = leaf(2.0)
    hidden = (x * 3).realize()
    memory = weakref.ref(hidden.lazydata)
    total = hidden + 1
    del hidden
    total.realize()
    gc.collect()
    assert memory() is None
    total.sum().backward()
    assert x.grad.tolist() == [3.0]


def test_a_tensor_used_many_times() -> None:
    x = leaf(2.0)
    y = x
    for _ in range(4):
        y = y * y
    y.backward(Tensor(np.array([1.0])))
    assert x.grad.item() == 16 * 2.0**15


def test_long_chains() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(3000):
        y = y + x
    y.sum().backward()
    assert x.grad.item() == 3001


def test_a_given_gradient() -> None:
    x = leaf(1.0, 2.0)
    (x * x).backward(Tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]


def test_gradient_leaves_grad_alone() -> None:
    x, y = leaf(2.0), leaf(5.0)
    hidden = x * y
    z = (hidden * hidden).sum()
    by_x, by_hidden, by_y = z.gradient(x, hidden, y)
    assert (by_x.item(), by_hidden.item(), by_y.item()) == (100.0, 20.0, 40.0)
    assert x.grad is None
    assert y.grad is None
    (again,) = z.gradient(x, gradient=Tensor(0.5))
    assert again.item() == 50.0


def test_backward_to_some_inputs_only() -> None:
    x, y = leaf(2.0), leaf(5.0)
    hidden = x * y
    loss = (hidden * hidden).sum()
    loss.backward(inputs=[x, hidden, hidden], retain_graph=True)
    assert x.grad.item() == 100.0
    assert hidden.grad.item() == 40.0  # it is named twice
    assert y.grad is None
    loss.backward(inputs=y)
    assert y.grad.item() == 40.0
    with pytest.raises(
        GradientError, match=r"\[backward\] input 0, of shape \(1,\), does not require"
    ):
        (x * x).backward(inputs=Tensor([1.0]))


def test_backward_that_can_be_differentiated() -> None:
    x = leaf(2.0)
    loss = (x**3).sum()
    loss.backward(create_graph=True)
    (second,) = x.grad.gradient(x)
    assert (x.grad.item(), second.item()) == (12.0, 12.0)
    loss.backward(create_graph=True)
    assert x.grad.item() == 24.0
    assert x.grad.gradient(x)[0].item() == 24.0


def test_an_operation_with_several_results() -> None:
    calls: list[list[int]] = []

    def reverse(grad: Parts, entry: GradNode) -> Gradients:
        calls.append(sorted(grad.of))
        (x,) = entry.saved
        parts = [grad.of[number] * (number + 2) for number in grad.of]
        return (sum(parts[1:], parts[0]) * x,)

    x = leaf(1.0, 2.0)
    value = x._read()
    nodes = [(value * number).node for number in (2, 3)] + [(value > 1).node]
    first, second, above = record_several("pair", Rule(reverse, (0,)), [value], nodes, None)
    assert above.edge is None
    (Tensor._wrap(first) * Tensor._wrap(second) + Tensor._wrap(first)).sum().backward()
    assert calls == [[0, 1]]
    assert x.grad.tolist() == [(3 + 1) * 2 + 2 * 3, ((6 + 1) * 2 + 4 * 3) * 2]


def test_third_derivative() -> None:
    x = leaf(1.5)
    y = x**5
    for factor in (5, 20, 60):
        (y,) = y.sum().gradient(x, create_graph=True)
        power = {5: 4, 20: 3, 60: 2}[factor]
        assert y.item() == pytest.approx(factor * 1.5**power)


def test_detach_stops_the_gradient() -> None:
    x = leaf(3.0)
    (x * x.detach()).sum().backward()
    assert x.grad.item() == 3.0
    assert x.detach().requires_grad is None


def test_views_of_leaves() -> None:
    x = leaf(1.0, 2.0, 3.0)
    part = x[1:]
    assert part.requires_grad
    assert not part.is_leaf
    (part * part).sum().backward()
    assert x.grad.tolist() == [0.0, 4.0, 6.0]
    assert part.grad is None


def test_leaves_that_are_views() -> None:
    whole = Tensor(np.array([1.0, 2.0, 3.0]))
    part = whole[1:].requires_grad_()
    (whole * 5).sum()
    assert whole.requires_grad is None
    (part * part).sum().backward()
    assert part.grad.tolist() == [4.0, 6.0]


def test_parameters_keep_being_leaves_when_written() -> None:
    w = leaf(1.0, 2.0)
    for _ in range(3):
        (w * w).sum().backward()
        with Tensor.no_grad():
            w -= w.grad * 0.25
            w.grad = None
    assert w.is_leaf
    np.testing.assert_allclose(w.numpy(), [0.125, 0.25])
    w.assign(Tensor([7.0, 8.0]))
    assert w.is_leaf
    assert w.tolist() == [7.0, 8.0]


def test_saved_values_are_those_of_the_forward_pass() -> None:
    w = leaf(3.0)
    loss = (w * w * w).sum()
    with Tensor.no_grad():
        w.assign(Tensor([100.0]))
    loss.backward()
    assert w.grad.item() == 27.0


def test_writes_to_results_are_part_of_the_tape() -> None:
    x, v = leaf(1.0, 2.0, 3.0), leaf(10.0)
    y = x * 2
    part = y[1:]
    y[0] = v[0] * 3
    part *= 5
    assert y.tolist() == [30.0, 20.0, 30.0]
    (y * Tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [0.0, 20.0, 30.0]
    assert v.grad.tolist() == [3.0]


def test_writing_into_a_constant_makes_it_depend() -> None:
    v = leaf(2.0, 3.0)
    x = Tensor(np.zeros(4))
    x[1:3] = v * v
    assert x.requires_grad
    (x * Tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert v.grad.tolist() == [8.0, 18.0]


def test_writes_without_recording_do_not_change_the_tape() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3
    with Tensor.no_grad():
        y[0] = 100.0
    assert y.tolist() == [100.0, 6.0]
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_loss_that_depends_on_nothing_else() -> None:
    x = leaf(4.0)
    x.sum().backward()
    assert x.grad.tolist() == [1.0]
    y = leaf(4.0)
    y.backward()
    assert y.grad.tolist() == [1.0]


def test_ties_share_the_gradient() -> None:
    x = leaf(2.0, 5.0, 5.0)
    x.max().backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]
    a, b = leaf(1.0, 3.0), leaf(1.0, 2.0)
    a.maximum(b).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([0.5, 1.0], [0.5, 0.0])
    c = leaf(0.0, -1.0, 1.0)
    (c.relu() + c.abs()).sum().backward()
    assert c.grad.tolist() == [0.0, -1.0, 2.0]


def test_unused_branches_cost_nothing() -> None:
    x, y = leaf(2.0), leaf(3.0)
    a, b = x * x, y.exp()
    (only,) = (a + b).sum().gradient(x, retain_graph=False)
    assert only.item() == 4.0


def test_values_and_pull_back() -> None:
    x = leaf(2.0, 3.0)._read()
    assert x.edge is not None
    y = x * x + 1
    grads = pull_back([y], [y.full(1)])
    assert Tensor._wrap(grads[x.edge]).tolist() == [4.0, 6.0]
    with pytest.raises(GradientError, match="freed"):
        pull_back([y], [y.full(1)])
    assert pull_back([TracedValue(y.node)], [y]) == {}


def test_mixed_precision() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    loss = (w.half() * w.half()).float().sum()
    loss.backward()
    assert w.grad.dtype is w.dtype
    assert w.grad.tolist() == [2.0, 4.0]


# *** losses of classes ***


@pytest.mark.parametrize("target", [detect_cpu(), nvidia("sm_90a")], ids=["cpu", "gpu"])
def test_a_loss_over_many_classes_reads_its_scores_twice(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """Once for numbers of each row, once for the gradient; a label's score is gathered."""
    monkeypatch.setattr(fusion, "target_of", lambda device: target)
    x = Tensor(np.zeros((512, 5000), np.float32)).realize().requires_grad_()
    loss = x.cross_entropy(Tensor(np.zeros(512, np.int32)).realize())
    loss.backward()
    assert x.grad is not None
    items = fusion.make_schedule([loss.lazydata, x.grad.lazydata]).items
    assert [item.out.size for item in items if item.out.size > 1024] == [512 * 5000]
    reading = [item.ast for item in items if any(b.size == x.numel() for b in item.inputs)]
    gathers = [ast for ast in reading if any(n.op is MovementOps.GATHER for n in ast.toposort())]
    assert (len(reading), len(gathers)) == (3, 1)
    assert not any(n.op is ReduceOps.SCATTER for item in items for n in item.ast.toposort())
    # No sum but those of a row's powers is along the classes.
    wide = [n for ast in reading for n in ast.toposort() if n.op is ReduceOps.SUM]
    assert sum(n.src[0].shape == (512, 5000) for n in wide) == 1
