"""Learning-rate schedules against their formulas, and clipping of gradients."""

from collections.abc import Callable
from math import cos, factorial, pi
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.jit import JitError
from ferrule.nn.optim import SGD, AdamW, OptimizerError
from ferrule.nn.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from ferrule.nn.utils import clip_grad_norm_, clip_grad_value_

pytestmark = pytest.mark.usefixtures("device")


def sgd(*rates: float, **settings: Any) -> SGD:
    return SGD([{"params": [Tensor([0.0])], "lr": rate} for rate in rates], **settings)


def cycle(t: int) -> float:
    """10 steps, the top after 2: 0.04 to 1, down to 4e-6."""
    if t <= 2:
        return 1 + (0.04 - 1) * (1 + cos(pi * t / 2)) / 2
    return 4e-6 + (1 - 4e-6) * (1 + cos(pi * (t - 2) / 7)) / 2


CASES: dict[str, tuple[Callable[[SGD], Any], Callable[[int], float]]] = {
    "step": (lambda o: StepLR(o, 3, gamma=0.5), lambda t: 0.5 ** (t // 3)),
    "multistep": (
        lambda o: MultiStepLR(o, [4, 2, 4], gamma=0.5),
        lambda t: 0.5 ** ((t >= 2) + 2 * (t >= 4)),
    ),
    "exponential": (lambda o: ExponentialLR(o, 0.5), lambda t: 0.5**t),
    "constant": (lambda o: ConstantLR(o, 0.25, 3), lambda t: 0.25 if t < 3 else 1.0),
    "linear": (lambda o: LinearLR(o, 0.2, total_iters=4), lambda t: 0.2 + 0.8 * min(t, 4) / 4),
    "polynomial": (lambda o: PolynomialLR(o, 4, 2.0), lambda t: (1 - min(t, 4) / 4) ** 2),
    "cosine": (lambda o: CosineAnnealingLR(o, 4), lambda t: (1 + cos(pi * t / 4)) / 2),
    "restarts": (
        lambda o: CosineAnnealingWarmRestarts(o, 1, 2),
        lambda t: (1 + cos(pi * (0 if t < 1 else (t - 1) / 2 if t < 3 else (t - 3) / 4))) / 2,
    ),
    "lambda": (lambda o: LambdaLR(o, lambda t: 1 / (1 + t)), lambda t: 1 / (1 + t)),
    "cycle": (
        lambda o: OneCycleLR(o, 1.0, 10, cycle_momentum=False),
        cycle,
    ),
    "multiplicative": (lambda o: MultiplicativeLR(o, lambda t: 1 / t), lambda t: 1 / factorial(t)),
    "triangles": (
        lambda o: CyclicLR(o, 0.2, 1.0, 2, 1, "triangular2", cycle_momentum=False),
        lambda t: [0.2, 0.6, 1.0, 0.2, 0.4, 0.6, 0.2][t],
    ),
    "shrinking": (
        lambda o: CyclicLR(o, 0.0, 1.0, 1, 2, "exp_range", 0.5, cycle_momentum=False),
        lambda t: [0, 1, 0.5][t % 3] * 0.5**t,
    ),
    "sequential": (
        lambda o: SequentialLR(o, [LinearLR(o, 0.5, total_iters=2), ExponentialLR(o, 0.5)], [3]),
        lambda t: 0.5 + min(t, 2) / 4 if t < 3 else 0.5 ** (t - 3),
    ),
    "chained": (
        lambda o: ChainedScheduler([ExponentialLR(o, 0.5), StepLR(o, 2, 0.1)]),
        lambda t: 0.5**t * 0.1 ** (t // 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rates(name: str) -> None:
    make, formula = CASES[name]
    optimizer = sgd(1.0)
    schedule = make(optimizer)
    for t in range(7):
        assert schedule.get_last_lr() == pytest.approx([formula(t)], rel=1e-6, abs=1e-12)
        assert optimizer.lr.item() == pytest.approx(formula(t), rel=1e-6, abs=1e-12)
        schedule.step()


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_on_where_it_was_made(name: str) -> None:
    make, _ = CASES[name]
    schedule = make(sgd(1.0))
    for _ in range(4):
        schedule.step()
    optimizer = sgd(1.0)
    resumed = make(optimizer)
    resumed.load_state_dict(schedule.state_dict())
    assert optimizer.lr.item() == pytest.approx(schedule.get_last_lr()[0], rel=1e-6)
    schedule.step()
    resumed.step()
    assert resumed.get_last_lr() == pytest.approx(schedule.get_last_lr(), rel=1e-6)


def test_every_group_has_its_rate() -> None:
    optimizer = sgd(1.0, 0.5)
    schedule = ExponentialLR(optimizer, 0.5)
    schedule.step()
    assert [group["lr"].item() for group in optimizer.param_groups] == [0.5, 0.25]


def test_a_change_from_outside_is_kept() -> None:
    optimizer = sgd(1.0)
    schedule = ExponentialLR(optimizer, 0.5)
    schedule.step()
    optimizer.lr = 8.0
    schedule.step()
    assert optimizer.lr.item() == 4.0


def test_a_captured_step_follows_without_a_new_capture() -> None:
    param, grad = Tensor([0.0]), Tensor([1.0]).realize()
    optimizer = SGD([param], lr=1.0)
    schedule = ExponentialLR(optimizer, 0.5)

    @TinyJit
    def step(grad: Tensor) -> None:
        param.grad = grad
        optimizer.step()

    values = []
    for _ in range(6):
        step(grad)
        values.append(param.item())
        schedule.step()
    assert np.diff([0.0, *values]).tolist() == [-1.0, -0.5, -0.25, -0.125, -0.0625, -0.03125]
    assert step.cnt == 6


def test_a_schedule_inside_a_captured_function_is_refused() -> None:
    optimizer = sgd(1.0)
    schedule = ExponentialLR(optimizer, 0.5)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        schedule.step()
        return (x + optimizer.lr).realize()

    step(Tensor([1.0]).realize())
    rates = schedule.get_last_lr()
    with pytest.raises(JitError, match=r"LR.step\(\) is called .* call it after the captured"):
        step(Tensor([1.0]).realize())
    assert (schedule.last_epoch, schedule.get_last_lr()) == (1, rates)  # of the plain call


@pytest.mark.parametrize(
    "make",
    [
        lambda o: SequentialLR(o, [ConstantLR(o), ExponentialLR(o, 0.9)], [2]),
        lambda o: ChainedScheduler([ConstantLR(o), ExponentialLR(o, 0.9)]),
        ReduceLROnPlateau,
    ],
)
def test_no_schedule_takes_a_step_in_a_captured_function(make: Any) -> None:
    schedule = make(SGD([Tensor([0.0])], lr=0.5))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        schedule.step(*([x.sum()] if isinstance(schedule, ReduceLROnPlateau) else []))
        return (x + 1).realize()

    step(Tensor([1.0]).realize())
    rates = schedule.get_last_lr()
    with pytest.raises(JitError, match="call it after the captured function"):
        step(Tensor([1.0]).realize())
    assert schedule.get_last_lr() == rates


def test_one_cycle_moves_the_momentum_the_other_way() -> None:
    optimizer = AdamW([Tensor([0.0])])
    schedule = OneCycleLR(optimizer, 1.0, total_steps=5, pct_start=0.6, anneal_strategy="linear")
    momenta = []
    for _ in range(4):
        momenta.append(optimizer.param_groups[0]["betas"][0].item())
        schedule.step()
    np.testing.assert_allclose(momenta, [0.95, 0.9, 0.85, 0.9], rtol=1e-6)


def test_reduce_on_plateau() -> None:
    optimizer = sgd(1.0)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    rates = []
    for loss in (3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        schedule.step(Tensor(loss))
        rates.append(round(optimizer.lr.item(), 6))
    assert rates == [1.0] * 3 + [0.5] * 3 + [0.25] * 3 + [0.2] * 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda o: StepLR(o, 0), "StepLR: step_size is 0; it must be a whole number above 0"),
        (lambda o: ConstantLR(o, 2.0), "ConstantLR: factor is 2.0; it must be between"),
        (lambda o: LinearLR(o, 0.0), "LinearLR: start_factor is 0.0; it must be in"),
        (lambda o: LambdaLR(o, [abs, abs]), "2 values of lr_lambda do not fit 1 parameter groups"),
        (lambda o: CyclicLR(o, 0.1, 1.0, 0), "step_size_up is 0, step_size_down 0; they must be"),
        (
            lambda o: CyclicLR(o, 0.1, 1.0, mode="x"),
            "mode 'x' is not one of 'triangular', 'triangular2',",
        ),
        (
            lambda o: CyclicLR(o, 0.1, 1.0, scale_mode="x"),
            "scale_mode 'x' is not one of 'cycle', 'iterations'",
        ),
        (lambda o: CyclicLR(o, 0.1, 1.0), "has no momentum to cycle; pass cycle_momentum=False"),
        (lambda o: OneCycleLR(o, 1.0), "give total_steps, or epochs and steps_per_epoch"),
        (lambda o: OneCycleLR(o, 1.0, 5), "has no momentum to cycle; pass cycle_momentum=False"),
        (
            lambda o: OneCycleLR(o, 1.0, 5, anneal_strategy="x"),
            "anneal_strategy 'x' is not one of 'cos', 'linear'",
        ),
        (lambda o: SequentialLR(o, [StepLR(o, 1)], [1]), "1 schedules need 0 milestones, not 1"),
        (lambda o: ChainedScheduler([]), "ChainedScheduler: there are no schedules in it"),
        (
            lambda o: SequentialLR(o, [StepLR(o, 1), StepLR(sgd(1.0), 1)], [1]),
            "the schedules have different optimisers",
        ),
        (lambda o: ReduceLROnPlateau(o, "up"), "mode 'up' is not one of 'min', 'max'"),
        (lambda o: ExponentialLR(o, 0.5, last_epoch=3), "groups need their initial_lr"),
        (lambda o: StepLR([o], 1), "StepLR: list is no Optimizer"),
        (lambda o: StepLR(o, 1).load_state_dict({"gama": 1}), "the state has gama, which is no"),
    ],
)
def test_misuse_is_explained(make: Callable[[Any], LRScheduler], text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        make(sgd(1.0))


def test_a_cycle_ends() -> None:
    schedule = OneCycleLR(sgd(1.0), 1.0, 2, cycle_momentum=False)
    schedule.step()
    last = schedule.get_last_lr()
    schedule.step()  # after the second step of the optimiser
    assert schedule.get_last_lr() == last == [pytest.approx(1 / 25 / 1e4)]
    with pytest.raises(OptimizerError, match="step 3 is after the last of 2 steps"):
        schedule.step()


# Gradients kept in bounds


def with_gradients(*values: Any) -> list[Tensor]:
    params = [Tensor(np.zeros_like(value), requires_grad=True) for value in values]
    for param, value in zip(params, values, strict=True):
        param.grad = Tensor(value)
    return params


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_are_scaled_together(order: float) -> None:
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    params = [*with_gradients(*grads), Tensor([1.0], requires_grad=True)]
    total = clip_grad_norm_(params, 0.5, order)
    exact = np.linalg.norm(np.concatenate([grad.ravel() for grad in grads]), order)
    assert total.item() == pytest.approx(exact, rel=1e-12)
    for param, grad in zip(params, grads, strict=False):
        assert param.grad is not None
        np.testing.assert_allclose(param.grad.numpy(), grad * 0.5 / (exact + 1e-6), rtol=1e-12)
    assert params[2].grad is None


def test_small_gradients_are_left() -> None:
    (param,) = with_gradients(np.array([3.0, 4.0]))
    assert clip_grad_norm_(param, 10.0).item() == 5.0
    assert param.grad is not None
    assert param.grad.tolist() == [3.0, 4.0]
    assert clip_grad_norm_([], 1.0).item() == 0.0


def test_the_norm_of_halves_does_not_overflow() -> None:
    (param,) = with_gradients(np.array([3000.0, 4000.0], np.float16))
    assert clip_grad_norm_(param, 5.0).item() == 5000.0
    assert param.grad is not None
    assert param.grad.tolist() == [3.0, 4.0]


def test_a_gradient_that_is_not_finite_can_be_an_error() -> None:
    params = with_gradients(np.array([1.0, np.inf]))
    with pytest.raises(OptimizerError, match="clip_grad_norm_: the norm of the gradients is inf"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


def test_elements_are_limited() -> None:
    (param,) = with_gradients(np.array([3.0, -4.0, 0.5]))
    clip_grad_value_([param], 1.0)
    assert param.grad is not None
    assert param.grad.tolist() == [1.0, -1.0, 0.5]
