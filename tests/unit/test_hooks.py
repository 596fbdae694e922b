"""Hooks on gradients, and gradients that results of operations keep."""

from __future__ import annotations

import gc

import pytest

from ferrule import Tensor, TinyJit, checkpoint, grad, jvp
from ferrule.autograd import GradientError
from ferrule.autograd.backward import hooks
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.autograd import _retaining


def leaf(*numbers: float) -> Tensor:
    return Tensor([float(number) for number in numbers], requires_grad=True)


def grad_of(x: Tensor) -> list[float]:
    assert x.grad is not None
    found: list[float] = x.grad.tolist()
    return found


def test_a_hook_is_given_the_whole_gradient() -> None:
    """Of all uses, those before it was registered too; and once."""
    x = leaf(1, 2)
    y = x * 3
    z = y * y
    seen: list[list[float]] = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    (z + y).sum().backward()
    assert seen == [[7, 13]]  # 2y + 1
    assert grad_of(x) == [21, 39]


def test_what_a_hook_returns_flows_on() -> None:
    x = leaf(1, 2)
    y = x * 3
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert grad_of(x) == [60, 60]


def test_what_a_hook_changes_in_place_flows_on() -> None:
    x = leaf(1, 2)
    y = x * 3

    def double(g: Tensor) -> None:
        g.mul_(2)

    y.register_hook(double)
    y.sum().backward()
    assert grad_of(x) == [6, 6]


def test_a_leaf_has_hooks_too() -> None:
    """They come before what is added to `.grad`, and see no gradients of earlier passes."""
    x = leaf(1, 2)
    x.register_hook(lambda g: g * 10)
    for _ in range(2):
        (x * x).sum().backward()
    assert grad_of(x) == [40, 80]
    assert (x * x).sum().gradient(x)[0].tolist() == [20, 40]


def test_a_hook_is_removed() -> None:
    x = leaf(1, 2)
    y = x * 3
    first = y.register_hook(lambda g: g * 10)
    with y.register_hook(lambda g: g * 100):
        y.sum().backward(retain_graph=True)
    assert grad_of(x) == [3000, 3000]
    first.remove()
    first.remove()
    x.zero_grad()
    y.sum().backward()
    assert grad_of(x) == [3, 3]


def test_a_copy_has_a_gradient_of_its_own() -> None:
    x = leaf(1, 2)
    y = x * 3
    copy = y.clone()
    copy.register_hook(lambda g: g * 10)
    copy.retain_grad()
    (y + copy * 2).sum().backward()
    assert grad_of(x) == [63, 63]
    assert grad_of(copy) == [20, 20]
    assert y.grad is None


def test_hooks_off_the_way_are_not_called() -> None:
    x, w = leaf(1), leaf(2)
    y, z = x * 2, w * 3
    called: list[str] = []
    y.register_hook(lambda g: called.append("y"))
    z.register_hook(lambda g: called.append("z"))
    (y * z).sum().gradient(x)
    assert called == ["y"]


def test_gradients_of_hooked_gradients() -> None:
    x = leaf(3)
    y = x * x
    y.register_hook(lambda g: g * x)
    (first,) = (y * 1).sum().gradient(x, create_graph=True)
    assert first.tolist() == [18]  # x * 2x
    assert first.gradient(x)[0].tolist() == [12]


def test_hooks_inside_of_a_transformed_function() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * x
        y.register_hook(lambda g: g * 5)
        return y.sum()

    assert grad(function)(Tensor([3.0])).tolist() == [30]


def test_hooks_change_no_tangents() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * x
        y.register_hook(lambda g: g * 5)
        return y

    assert jvp(function, (Tensor([3.0]),), (Tensor([1.0]),))[1].tolist() == [6]


def test_hooks_around_and_inside_of_what_is_computed_again() -> None:
    """Each once, though the gradients outside of it come from two passes."""
    x = leaf(1, 2)
    y = x * 3
    x.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 10)

    def function(y: Tensor) -> Tensor:
        square = y * y
        square.register_hook(lambda g: g * 100)
        return square + x

    result = checkpoint(function)(y)
    (result + y).sum().backward()
    assert grad_of(x) == [1 + 3 * 10 * (100 * 6 + 1) + 1, 1 + 3 * 10 * (100 * 12 + 1) + 1]


def test_what_hooks_compute_is_replayed() -> None:
    x = leaf(1, 2)

    @TinyJit
    def step(scale: Tensor) -> Tensor:
        y = x * 3
        y.register_hook(lambda g: g * scale)
        return y.sum().gradient(x)[0].realize()

    for scale in range(1, 5):
        assert step(Tensor([float(scale)]).realize()).tolist() == [3 * scale, 3 * scale]


@pytest.mark.parametrize("is_argument", [False, True])
def test_hooks_that_come_and_go_between_replays(is_argument: bool) -> None:
    """And those whose numbers change, though the captured function does not name these."""
    x = leaf(1, 2)
    factor = [10.0]

    def gradient(x: Tensor, scale: Tensor) -> Tensor:
        return (x * scale).sum().gradient(x)[0].realize()

    found = TinyJit(lambda scale: gradient(x, scale))
    given = TinyJit(gradient)

    def step(scale: float) -> list[float]:
        size = Tensor([scale]).realize()
        numbers: list[float] = (given(x, size) if is_argument else found(size)).tolist()
        return numbers

    assert [step(1)[0] for _ in range(3)] == [1, 1, 1]
    handle = x.register_hook(lambda g: g * factor[0])
    assert [step(number)[0] for number in (1, 2, 3)] == [10, 20, 30]
    factor[0] = 100.0
    assert [step(number)[0] for number in (1, 2, 3)] == [100, 200, 300]
    last = x.register_hook(lambda g: g + 1)
    assert [step(number)[0] for number in (1, 2, 3)] == [101, 201, 301]
    handle.remove()
    assert [step(number)[0] for number in (1, 2, 3)] == [2, 3, 4]
    last.remove()
    assert [step(number)[0] for number in (1, 2, 3)] == [1, 2, 3]


def test_results_of_replays_keep_their_gradients() -> None:
    x = leaf(1, 2)

    @TinyJit
    def step(scale: Tensor) -> tuple[Tensor, Tensor]:
        y = x * scale
        y.retain_grad()
        z = y * 2
        (z * y).sum().backward()
        return z, y

    for scale in range(1, 6):
        z, y = step(Tensor([float(scale)]).realize())
        assert z.grad is None
        assert grad_of(y) == [4 * scale, 8 * scale]


def test_a_view_has_hooks() -> None:
    x = leaf(1, 2, 3)
    part = x[1:]
    part.register_hook(lambda g: g * 10)
    part.retain_grad()
    (part.sum() + x.sum()).backward()
    assert grad_of(x) == [1, 11, 11]
    assert grad_of(part) == [10, 10]


def test_results_keep_their_gradients() -> None:
    x = leaf(1, 2)
    y = x * 3
    assert not y.retains_grad
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    for _ in range(2):
        (y * y).sum().backward(retain_graph=True)
    assert grad_of(y) == [12, 24]
    assert grad_of(x) == [36, 72]
    y.zero_grad()
    y.register_hook(lambda g: g * 2)
    (y * y).sum().backward()
    assert grad_of(y) == [12, 24]


def test_a_leaf_has_its_gradient_once() -> None:
    x = leaf(1, 2)
    x.retain_grad()
    assert not x.retains_grad
    x.sum().backward()
    assert grad_of(x) == [1, 1]


def test_only_backward_keeps_gradients() -> None:
    x = leaf(1, 2)
    y = x * 3
    y.retain_grad()
    (y * y).sum().gradient(x)
    assert y.grad is None
    (y * y).sum().backward(inputs=[x])
    assert y.grad is None


def test_the_loss_may_keep_its_own() -> None:
    loss = leaf(1, 2).sum()
    loss.retain_grad()
    loss.backward()
    assert loss.grad is not None
    assert loss.grad.item() == 1


def test_nothing_is_held() -> None:
    gc.collect()
    before = len(hooks), len(_retaining)
    x = leaf(1, 2)
    y = x * 3
    handle = y.register_hook(lambda g: g)
    y.retain_grad()
    total = y.sum()
    del y
    total.backward()
    assert grad_of(x) == [3, 3]
    del x, total
    gc.collect()
    assert (len(hooks), len(_retaining)) == before
    handle.remove()


def test_errors() -> None:
    with pytest.raises(GradientError, match=r"\[register_hook\] .* does not require a gradient"):
        Tensor([1.0]).register_hook(lambda g: g)
    with pytest.raises(GradientError, match=r"\[retain_grad\] .* does not require a gradient"):
        Tensor([1.0]).retain_grad()
    x = leaf(1, 2)
    handle = x.register_hook(lambda g: g.sum())
    with pytest.raises(ShapeError, match=r"a gradient of shape \(\) for a tensor of shape \(2,\)"):
        x.sum().backward()
    handle.remove()
    wrong: object = 3
    x.register_hook(lambda g: wrong)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="returns a Tensor or None, not 3"):
        x.sum().backward()
    with pytest.raises(AttributeError, match=r"call it on the tensor after backward\(\)"):
        _ = x.register_post_accumulate_grad_hook
