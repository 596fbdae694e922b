"""Optimisers and schedules against PyTorch's: the same trajectories from the same gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.nn import optim, utils
from ferrule.nn.optim import lr_scheduler

torch = pytest.importorskip("torch")
# PyTorch's own advice on the order of steps, which these comparisons have no need of.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

STEPS = 20
SHAPES = [(3, 4), (5,), ()]
Array = np.ndarray[Any, Any]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "betas": (0.8, 0.95), "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3, "eps": 1e-3, "maximize": True}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RMSprop", {"lr": 0.1}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.8, "centered": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.1}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (0.05, 0.2), "maximize": True}),
    ("ASGD", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.2, "alpha": 0.5, "t0": 3, "weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.3}),
    ("Adafactor", {"lr": 0.3, "eps": (1e-3, 0.1), "d": 2.0, "weight_decay": 0.1}),
]


def initial(dtype: str) -> list[Array]:
    rng = np.random.default_rng(1)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def gradients(dtype: str) -> Iterator[list[Array]]:
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        yield [np.asarray(rng.standard_normal(shape) * 3, dtype) for shape in SHAPES]


def torch_params(dtype: str) -> list[Any]:
    return [torch.tensor(value, requires_grad=True) for value in initial(dtype)]


def torch_step(optimizer: Any, params: list[Any], grads: list[Array]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad)
    optimizer.step()


def step(optimizer: optim.Optimizer, params: list[Tensor], grads: list[Tensor]) -> None:
    optimizer.zero_grad()
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer.step()


def assert_same(params: list[Tensor], exact: list[Any], tolerance: float) -> None:
    for param, reference in zip(params, exact, strict=True):
        expected = reference.detach().numpy()
        np.testing.assert_allclose(param.numpy(), expected, rtol=tolerance, atol=tolerance)


def assert_follows(
    ours: optim.Optimizer,
    params: list[Tensor],
    theirs: Any,
    reference: list[Any],
    dtype: str,
    tolerance: float,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Twenty captured steps, and PyTorch's."""
    captured = TinyJit(lambda *grads: step(ours, params, list(grads)))
    for grads in gradients(dtype):
        torch_step(theirs, reference, grads)
        captured(*[Tensor(grad).realize() for grad in grads])
        after()
        assert_same(params, reference, tolerance)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-5), ("float64", 1e-10)])
def test_captured_steps_follow_pytorch(
    name: str, settings: dict[str, Any], dtype: str, tolerance: float
) -> None:
    params = [Tensor(value) for value in initial(dtype)]
    reference = torch_params(dtype)
    ours = getattr(optim, name)(params, **settings)
    theirs = getattr(torch.optim, name)(reference, **settings)
    if name in ("ASGD", "NAdam"):
        tolerance = max(tolerance, 1e-6)  # PyTorch keeps rates and products of momenta in float32
    assert_follows(ours, params, theirs, reference, dtype, tolerance)


@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}])
def test_muon_follows_pytorch_as_far_as_its_bfloat16_goes(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype("float32") for shape in [(6, 4), (3, 5)]]
    params = [Tensor(value) for value in values]
    reference = [torch.tensor(value, requires_grad=True) for value in values]
    ours = optim.Muon(params, lr=0.1, **settings)
    theirs = torch.optim.Muon(reference, lr=0.1, **settings)
    for _ in range(5):
        grads = [rng.standard_normal(value.shape).astype("float32") for value in values]
        torch_step(theirs, reference, grads)
        step(ours, params, [Tensor(grad) for grad in grads])
    assert_same(params, reference, 2e-2)


def test_groups_have_their_own_settings() -> None:
    params = [Tensor(value) for value in initial("float64")]
    reference = torch_params("float64")
    ours = optim.AdamW([{"params": params[:1], "lr": 0.3}, {"params": params[1:]}], lr=0.1)
    theirs = torch.optim.AdamW(
        [{"params": reference[:1], "lr": 0.3}, {"params": reference[1:]}], lr=0.1
    )
    assert_follows(ours, params, theirs, reference, "float64", 1e-10)


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adam",
        "NAdam",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "RAdam",
        "Rprop",
        "ASGD",
        "Adafactor",
    ],
)
def test_a_state_of_pytorch_is_continued(name: str) -> None:
    settings: dict[str, Any] = {"lr": 0.1}
    if name == "SGD":
        settings["momentum"] = 0.9
    reference = torch_params("float64")
    theirs = getattr(torch.optim, name)(reference, **settings)
    for grads in gradients("float64"):
        torch_step(theirs, reference, grads)
    params = [Tensor(param.detach().numpy()) for param in reference]
    ours = getattr(optim, name)(params, **{**settings, "lr": 9.0})
    ours.load_state_dict(theirs.state_dict())
    tolerance = 1e-6 if name == "ASGD" else 1e-10  # PyTorch has its rates in float32
    assert_follows(ours, params, theirs, reference, "float64", tolerance)


@pytest.mark.parametrize("settings", [{"lr": 0.3, "max_iter": 4}, {"history_size": 2, "lr": 0.5}])
def test_lbfgs_follows_pytorch_and_continues_its_state(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    start, mixed = rng.standard_normal(6), rng.standard_normal((6, 6))
    reference = [torch.tensor(start[:2], requires_grad=True)]
    reference.append(torch.tensor(start[2:].reshape(2, 2), requires_grad=True))
    theirs = torch.optim.LBFGS(reference, **settings)

    def torch_closure() -> Any:
        theirs.zero_grad()
        x = torch.cat([param.reshape(-1) for param in reference])
        loss = (torch.tensor(mixed) @ x).cosh().log().sum() + 0.1 * x.square().sum()
        loss.backward()
        return loss

    def follow(ours: optim.Optimizer, params: list[Tensor]) -> None:
        def closure() -> Tensor:
            ours.zero_grad()
            x = Tensor.cat(*(param.reshape(-1) for param in params))
            loss = Tensor(mixed).matmul(x).cosh().log().sum() + 0.1 * x.square().sum()
            return loss.backward()

        for _ in range(2):
            expected = theirs.step(torch_closure).item()
            np.testing.assert_allclose(ours.step(closure).item(), expected, rtol=1e-9)
            assert_same(params, reference, 1e-8)

    params = [Tensor(param.detach().numpy()) for param in reference]
    follow(optim.LBFGS(params, **settings), params)
    params = [Tensor(param.detach().numpy()) for param in reference]
    resumed = optim.LBFGS(params, **settings)
    resumed.load_state_dict(theirs.state_dict())
    follow(resumed, params)


# Schedules

SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 4}),
    ("LinearLR", {"start_factor": 0.1, "total_iters": 7}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 5}),
    ("PolynomialLR", {"total_iters": 8, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 6, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2, "eta_min": 0.001}),
    ("LambdaLR", {"lr_lambda": [lambda t: 0.9**t, lambda t: 1 / (1 + t)]}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 25}),
    ("OneCycleLR", {"max_lr": [1.0, 2.0], "epochs": 7, "steps_per_epoch": 4, "pct_start": 0.4}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 22, "three_phase": True}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 21, "anneal_strategy": "linear"}),
    ("MultiplicativeLR", {"lr_lambda": [lambda t: 0.9**t, lambda t: 1 / (1 + t)]}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 4}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": [1.0, 2.0], "step_size_up": 3, "step_size_down": 4}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "mode": "triangular2"}),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 5, "mode": "exp_range", "gamma": 0.9},
    ),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "scale_fn": lambda cycle: 1 / cycle},
    ),
]


def grouped(values: list[Any]) -> list[dict[str, Any]]:
    return [{"params": values[:1], "lr": 0.5}, {"params": values[1:]}]


def optimisers(name: str = "SGD", **settings: Any) -> tuple[optim.Optimizer, Any]:
    params = [Tensor([1.0]), Tensor([2.0])]
    reference = [torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)]
    ours = getattr(optim, name)(grouped(params), lr=0.2, **settings)
    theirs = getattr(torch.optim, name)(grouped(reference), lr=0.2, **settings)
    for param in reference:
        param.grad = torch.zeros(1)
    theirs.step()
    return ours, theirs


def assert_same_rates(ours: Any, theirs: Any, steps: int = STEPS) -> None:
    for _ in range(steps):
        np.testing.assert_allclose(ours.get_last_lr(), theirs.get_last_lr(), rtol=1e-7, atol=1e-12)
        rates = [group["lr"].item() for group in ours.optimizer.param_groups]
        np.testing.assert_allclose(rates, theirs.get_last_lr(), rtol=1e-6, atol=1e-12)
        ours.step()
        theirs.step()


@pytest.mark.parametrize(
    ("name", "settings"), SCHEDULES, ids=[f"{i} {name}" for i, (name, _) in enumerate(SCHEDULES)]
)
def test_schedules_give_the_rates_of_pytorch(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = optimisers(momentum=0.9)
    assert_same_rates(
        getattr(lr_scheduler, name)(ours, **settings),
        getattr(torch.optim.lr_scheduler, name)(theirs, **settings),
    )


@pytest.mark.parametrize("kind", ["SequentialLR", "ChainedScheduler"])
def test_schedules_of_schedules(kind: str) -> None:
    ours, theirs = optimisers()
    made = []
    for optimizer, module in ((ours, lr_scheduler), (theirs, torch.optim.lr_scheduler)):
        parts = [
            module.LinearLR(optimizer, start_factor=0.1, total_iters=4),
            module.ExponentialLR(optimizer, gamma=0.8),
            module.StepLR(optimizer, step_size=3),
        ]
        if kind == "SequentialLR":
            made.append(module.SequentialLR(optimizer, parts, milestones=[4, 11]))
        else:
            made.append(module.ChainedScheduler(parts))
    mine, reference = made
    for _ in range(STEPS):
        np.testing.assert_allclose(mine.get_last_lr(), reference.get_last_lr(), rtol=3e-6)
        mine.step()
        reference.step()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mode": "max", "threshold_mode": "abs", "threshold": 0.1},
        {"cooldown": 2, "min_lr": [0.05, 0.1]},
        {"threshold_mode": "abs"},
        {"mode": "max", "threshold": 0.3},
    ],
    ids=str,
)
def test_reduce_on_plateau(settings: dict[str, Any]) -> None:
    ours, theirs = optimisers()
    settings = {"factor": 0.5, "patience": 2, **settings}
    mine = lr_scheduler.ReduceLROnPlateau(ours, **settings)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **settings)
    for loss in np.random.default_rng(0).uniform(1, 2, 40):
        mine.step(float(loss))
        reference.step(float(loss))
        np.testing.assert_allclose(mine.get_last_lr(), reference.get_last_lr(), rtol=1e-6)


@pytest.mark.parametrize(("name", "settings"), [("SGD", {"momentum": 0.9}), ("AdamW", {})])
def test_a_captured_step_follows_one_cycle(name: str, settings: dict[str, Any]) -> None:
    params = [Tensor(value) for value in initial("float64")]
    reference = torch_params("float64")
    ours = getattr(optim, name)(params, **settings)
    theirs = getattr(torch.optim, name)(reference, **settings)
    cycle = {"max_lr": 0.3, "total_steps": STEPS + 1}
    mine = lr_scheduler.OneCycleLR(ours, **cycle)
    other = torch.optim.lr_scheduler.OneCycleLR(theirs, **cycle)

    def schedule() -> None:
        mine.step()
        other.step()

    assert_follows(ours, params, theirs, reference, "float64", 1e-10, schedule)


@pytest.mark.parametrize(("name", "settings"), [("SGD", {"momentum": 0.9}), ("AdamW", {})])
def test_a_captured_step_follows_many_cycles(name: str, settings: dict[str, Any]) -> None:
    params = [Tensor(value) for value in initial("float64")]
    reference = torch_params("float64")
    ours = getattr(optim, name)(params, **settings)
    theirs = getattr(torch.optim, name)(reference, **settings)
    cycle = {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 3, "step_size_down": 2}
    mine = lr_scheduler.CyclicLR(ours, **cycle)
    other = torch.optim.lr_scheduler.CyclicLR(theirs, **cycle)

    def schedule() -> None:
        mine.step()
        other.step()

    assert_follows(ours, params, theirs, reference, "float64", 1e-10, schedule)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_clipping_by_norm(order: float) -> None:
    for limit in (0.5, 1e6):
        params = [Tensor(value, requires_grad=True) for value in initial("float64")]
        reference = torch_params("float64")
        for param, other, grad in zip(params, reference, next(gradients("float64")), strict=True):
            param.grad = Tensor(grad)
            other.grad = torch.tensor(grad)
        ours = utils.clip_grad_norm_(params, limit, order)
        theirs = torch.nn.utils.clip_grad_norm_(reference, limit, order)
        np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-12)
        for param, other in zip(params, reference, strict=True):
            np.testing.assert_allclose(param.grad.numpy(), other.grad.numpy(), rtol=1e-12)
