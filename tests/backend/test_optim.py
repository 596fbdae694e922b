"""Optimisers against their formulas, written out in NumPy's float64.

PYTEST_DONT_REWRITE: what a captured function can reach is searched, which would be all of pytest.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes
from ferrule.device import Device
from ferrule.errors import JitError
from ferrule.fusion.forms import has_kernels
from ferrule.helpers import GlobalCounters
from ferrule.nn.optim import (
    ASGD,
    LAMB,
    LARS,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    OptimizerError,
    RAdam,
    RMSprop,
    Rprop,
)
from ferrule.nn.state import get_state_dict, load_state_dict
from ferrule.nn.utils import get_total_norm, parameters_to_vector, vector_to_parameters

pytestmark = pytest.mark.usefixtures("device")

SHAPES = [(3, 4), (5,), ()]
STEPS = 6
Array = np.ndarray[Any, Any]
Formula = Callable[[Array, Iterator[Array]], Iterator[Array]]


def initial() -> list[Array]:
    rng = np.random.default_rng(1)
    return [np.asarray(rng.standard_normal(shape)) for shape in SHAPES]


def gradients(position: int) -> Iterator[Array]:
    """A parameter's gradients, step after step."""
    rng = np.random.default_rng(100 + position)
    for _ in range(STEPS):
        yield np.asarray(rng.standard_normal(SHAPES[position]) * 3)


def sgd(
    lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        velocity = np.zeros_like(value)
        for grad in grads:
            grad = grad + weight_decay * value
            velocity = momentum * velocity + grad
            value = value - lr * (grad + momentum * velocity if nesterov else velocity)
            yield value

    return values


def adam(
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = square = np.zeros_like(value)
        for step, grad in enumerate(grads, start=1):
            if decoupled:
                value = value - lr * weight_decay * value
            else:
                grad = grad + weight_decay * value
            mean = betas[0] * mean + (1 - betas[0]) * grad
            square = betas[1] * square + (1 - betas[1]) * grad * grad
            unbiased_mean = mean / (1 - betas[0] ** step)
            unbiased_square = square / (1 - betas[1] ** step)
            value = value - lr * unbiased_mean / (np.sqrt(unbiased_square) + eps)
            yield value

    return values


def amsgrad(lr: float, weight_decay: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = square = largest = np.zeros_like(value)
        for step, grad in enumerate(grads, start=1):
            value = value * (1 - lr * weight_decay)
            mean = 0.9 * mean + 0.1 * grad
            square = 0.999 * square + 0.001 * grad * grad
            largest = np.maximum(largest, square)
            size = np.sqrt(largest / (1 - 0.999**step)) + 1e-8
            value = value - lr * mean / (1 - 0.9**step) / size
            yield value

    return values


def dampened(lr: float, momentum: float, dampening: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        velocity = None
        for grad in grads:
            later = velocity is not None
            velocity = momentum * velocity + (1 - dampening) * grad if later else grad
            value = value - lr * velocity
            yield value

    return values


def rmsprop(lr: float, alpha: float, momentum: float) -> Formula:
    """Centred."""

    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        square = mean = velocity = np.zeros_like(value)
        for grad in grads:
            square = alpha * square + (1 - alpha) * grad * grad
            mean = alpha * mean + (1 - alpha) * grad
            velocity = momentum * velocity + grad / (np.sqrt(square - mean * mean) + 1e-8)
            value = value - lr * velocity
            yield value

    return values


def adagrad(lr: float, lr_decay: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        total = np.zeros_like(value)
        for step, grad in enumerate(grads):
            total = total + grad * grad
            value = value - lr / (1 + step * lr_decay) * grad / (np.sqrt(total) + 1e-10)
            yield value

    return values


def adadelta(lr: float, rho: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        square = steps = np.zeros_like(value)
        for grad in grads:
            square = rho * square + (1 - rho) * grad * grad
            delta = np.sqrt(steps + 1e-6) / np.sqrt(square + 1e-6) * grad
            steps = rho * steps + (1 - rho) * delta * delta
            value = value - lr * delta
            yield value

    return values


def adamax(lr: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = largest = np.zeros_like(value)
        for step, grad in enumerate(grads, start=1):
            mean = 0.9 * mean + 0.1 * grad
            largest = np.maximum(0.999 * largest, np.abs(grad) + 1e-8)
            value = value - lr / (1 - 0.9**step) * mean / largest
            yield value

    return values


def nadam(lr: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = square = np.zeros_like(value)
        product = 1.0
        for step, grad in enumerate(grads, start=1):
            now, ahead = (0.9 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (step, step + 1))
            product *= now
            mean = 0.9 * mean + 0.1 * grad
            square = 0.999 * square + 0.001 * grad * grad
            update = (1 - now) / (1 - product) * grad + ahead / (1 - product * ahead) * mean
            value = value - lr * update / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
            yield value

    return values


def radam(lr: float, beta: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = square = np.zeros_like(value)
        limit = 2 / (1 - beta) - 1
        for step, grad in enumerate(grads, start=1):
            mean = 0.9 * mean + 0.1 * grad
            square = beta * square + (1 - beta) * grad * grad
            weight = 1 - beta**step
            length = limit - 2 * step * beta**step / weight
            factor: Any = 1.0
            if length > 5:
                top = (length - 4) * (length - 2) * limit
                factor = np.sqrt(top / ((limit - 4) * (limit - 2) * length) * weight)
                factor = factor / (np.sqrt(square) + 1e-8)
            value = value - lr * mean / (1 - 0.9**step) * factor
            yield value

    return values


def lamb(lr: float, weight_decay: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        mean = square = np.zeros_like(value)
        for step, grad in enumerate(grads, start=1):
            mean = 0.9 * mean + 0.1 * grad
            square = 0.999 * square + 0.001 * grad * grad
            size = np.sqrt(square / (1 - 0.999**step)) + 1e-6
            update = mean / (1 - 0.9**step) / size + weight_decay * value
            ratio = np.linalg.norm(value.ravel()) / np.linalg.norm(update.ravel())
            value = value - lr * ratio * update
            yield value

    return values


def lars(lr: float, momentum: float, weight_decay: float, trust: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        velocity = np.zeros_like(value)
        for grad in grads:
            weight, slope = (np.linalg.norm(part.ravel()) for part in (value, grad))
            local = trust * weight / (slope + weight_decay * weight)
            velocity = momentum * velocity + lr * local * (grad + weight_decay * value)
            value = value - velocity
            yield value

    return values


def rprop(lr: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        before, size = np.zeros_like(value), np.full_like(value, lr)
        for grad in grads:
            turned, same = before * grad < 0, before * grad > 0
            size = np.clip(np.where(turned, 0.5, np.where(same, 1.2, 1.0)) * size, 1e-6, 50)
            before = np.where(turned, 0, grad)
            value = value - size * np.sign(before)
            yield value

    return values


def asgd(lr: float, lambd: float, weight_decay: float) -> Formula:
    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        for step, grad in enumerate(grads):
            rate = lr / (1 + lambd * lr * step) ** 0.75
            value = value - rate * (grad + weight_decay * value) - rate * lambd * value
            yield value

    return values


def adafactor(lr: float, weight_decay: float) -> Formula:
    def mean_size(x: Array) -> Any:
        return np.sqrt(np.mean(x * x))

    def values(value: Array, grads: Iterator[Array]) -> Iterator[Array]:
        square: Any = 0.0
        rows: Any = 0.0
        columns: Any = 0.0
        for step, grad in enumerate(grads, start=1):
            share = step**-0.8
            if value.ndim < 2:
                square = square + share * (grad * grad - square)
            else:
                rows = rows + share * ((grad * grad).mean(1) - rows)
                columns = columns + share * ((grad * grad).mean(0) - columns)
                square = np.outer(rows, columns) / rows.mean()
            update = grad / np.sqrt(square)
            update = update / max(1.0, mean_size(update))
            scale = min(lr, step**-0.5) * max(1e-3, mean_size(value))
            value = (1 - lr * weight_decay) * value - scale * update
            yield value

    return values


CASES: dict[str, tuple[Callable[[list[Tensor]], Optimizer], Formula]] = {
    "sgd": (lambda ps: SGD(ps, lr=0.1), sgd(0.1)),
    "momentum": (lambda ps: SGD(ps, 0.1, momentum=0.9), sgd(0.1, 0.9)),
    "decay": (
        lambda ps: SGD(ps, 0.1, momentum=0.5, weight_decay=0.2),
        sgd(0.1, 0.5, 0.2),
    ),
    "nesterov": (
        lambda ps: SGD(ps, 0.1, momentum=0.9, weight_decay=0.2, nesterov=True),
        sgd(0.1, 0.9, 0.2, nesterov=True),
    ),
    "adam": (lambda ps: Adam(ps, lr=0.1), adam(0.1)),
    "adam with decay": (
        lambda ps: Adam(ps, 0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
        adam(0.1, (0.8, 0.95), 1e-3, 0.3),
    ),
    "adamw": (lambda ps: AdamW(ps, lr=0.1), adam(0.1, weight_decay=0.01, decoupled=True)),
    "adamw with decay": (
        lambda ps: AdamW(ps, 0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
        adam(0.1, (0.8, 0.95), 1e-3, 0.3, decoupled=True),
    ),
    "amsgrad": (lambda ps: AdamW(ps, 0.1, amsgrad=True), amsgrad(0.1, 0.01)),
    "dampened": (lambda ps: SGD(ps, 0.1, 0.9, dampening=0.3), dampened(0.1, 0.9, 0.3)),
    "rmsprop": (
        lambda ps: RMSprop(ps, 0.1, alpha=0.9, momentum=0.5, centered=True),
        rmsprop(0.1, 0.9, 0.5),
    ),
    "adagrad": (lambda ps: Adagrad(ps, 0.1, lr_decay=0.5), adagrad(0.1, 0.5)),
    "adadelta": (lambda ps: Adadelta(ps, 0.5, rho=0.8), adadelta(0.5, 0.8)),
    "adamax": (lambda ps: Adamax(ps, 0.1), adamax(0.1)),
    "nadam": (lambda ps: NAdam(ps, 0.1), nadam(0.1)),
    "radam": (lambda ps: RAdam(ps, 0.1, betas=(0.9, 0.8)), radam(0.1, 0.8)),
    "lamb": (lambda ps: LAMB(ps, 0.1, weight_decay=0.3), lamb(0.1, 0.3)),
    "lars": (
        lambda ps: LARS(ps, 0.5, weight_decay=0.1, trust_coefficient=0.2),
        lars(0.5, 0.9, 0.1, 0.2),
    ),
    "rprop": (lambda ps: Rprop(ps, 0.1), rprop(0.1)),
    "asgd": (lambda ps: ASGD(ps, 0.1, lambd=0.3, weight_decay=0.1), asgd(0.1, 0.3, 0.1)),
    "adafactor": (lambda ps: Adafactor(ps, 0.5, weight_decay=0.1), adafactor(0.5, 0.1)),
}


def take_step(optimizer: Optimizer, params: list[Tensor], grads: list[Tensor]) -> None:
    optimizer.zero_grad()
    loss = sum((param * grad).sum() for param, grad in zip(params, grads, strict=True))
    assert isinstance(loss, Tensor)
    loss.backward()
    optimizer.step()


def numbers(params: list[Tensor]) -> list[Array]:
    return [param.numpy() for param in params]


def run(optimizer: Optimizer, params: list[Tensor], dtype: Any) -> list[list[Array]]:
    history = []
    for grads in zip(*(gradients(place) for place in range(len(SHAPES))), strict=True):
        take_step(optimizer, params, [Tensor(grad, dtype=dtype) for grad in grads])
        history.append(numbers(params))
    return history


def expected(formula: Formula) -> list[list[Array]]:
    columns = [list(formula(value, gradients(place))) for place, value in enumerate(initial())]
    return [list(row) for row in zip(*columns, strict=True)]


def assert_close(found: list[list[Array]], exact: list[list[Array]], tolerance: float) -> None:
    for found_step, exact_step in zip(found, exact, strict=True):
        for value, reference in zip(found_step, exact_step, strict=True):
            np.testing.assert_allclose(value, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(dtypes.float32, 2e-6), (dtypes.float64, 1e-12)])
def test_steps_follow_the_formula(name: str, dtype: Any, tolerance: float) -> None:
    make, formula = CASES[name]
    params = [Tensor(value, dtype=dtype) for value in initial()]
    assert_close(run(make(params), params, dtype), expected(formula), tolerance)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_half_parameters_keep_their_type_and_exact_state(name: str) -> None:
    make, formula = CASES[name]
    params = [Tensor(value, dtype=dtypes.float16) for value in initial()]
    found = run(make(params), params, dtypes.float16)
    assert all(value.dtype == np.float16 for value in found[-1])
    assert_close(found, expected(formula), 2e-2)


CAPTURED = [
    "sgd",
    "nesterov",
    "adam",
    "dampened",
    "nadam",
    "radam",
    "lamb",
    "rprop",
    "asgd",
    "adafactor",
]


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_step_does_the_same(name: str) -> None:
    make, formula = CASES[name]
    params = [Tensor(value, dtype=dtypes.float32) for value in initial()]
    optimizer = make(params)
    step = TinyJit(lambda *grads: take_step(optimizer, params, list(grads)))
    history = []
    for grads in zip(*(gradients(place) for place in range(len(SHAPES))), strict=True):
        step(*(Tensor(grad, dtype=dtypes.float32).realize() for grad in grads))
        history.append(numbers(params))
    assert_close(history, expected(formula), 2e-6)


def one_parameter_steps(optimizer: Optimizer, param: Tensor, rates: list[float]) -> list[float]:
    values = []
    grad = Tensor([1.0]).realize()
    step = TinyJit(lambda grad: take_step(optimizer, [param], [grad]))
    for rate in rates:
        optimizer.lr = rate
        step(grad)
        values.append(param.item())
    return values


def test_a_captured_step_sees_a_new_learning_rate() -> None:
    param = Tensor([0.0])
    values = one_parameter_steps(SGD([param], lr=9.0), param, [1.0, 2.0, 4.0, 8.0, 16.0])
    assert values == [-1.0, -3.0, -7.0, -15.0, -31.0]


def test_the_learning_rate_may_be_an_argument_of_the_captured_function() -> None:
    param, grad = Tensor([0.0]), Tensor([1.0]).realize()
    optimizer = SGD([param])

    @TinyJit
    def step(grad: Tensor, rate: Tensor) -> None:
        optimizer.lr = rate
        take_step(optimizer, [param], [grad])

    values = []
    for rate in (1.0, 2.0, 4.0, 8.0):
        step(grad, Tensor([rate]).realize())
        values.append(param.item())
    assert values == [-1.0, -3.0, -7.0, -15.0]


def test_learning_rate_is_a_tensor_of_one_element() -> None:
    optimizer = SGD([Tensor([1.0])], lr=Tensor(0.5))
    assert optimizer.lr.tolist() == [0.5]
    optimizer.lr = 0.25
    assert optimizer.lr.tolist() == [0.25]


def test_a_parameter_given_twice_is_updated_once() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param, param], lr=1.0)
    take_step(optimizer, [param], [Tensor([0.25])])
    assert param.tolist() == [0.75]


def test_tensors_without_gradients_are_left_alone() -> None:
    param, statistic = Tensor([1.0]), Tensor([5], requires_grad=False)
    optimizer = SGD([param, statistic], lr=1.0)
    take_step(optimizer, [param], [Tensor([0.25])])
    assert statistic.tolist() == [5]


def test_views_of_a_parameter_see_the_step() -> None:
    param = Tensor([1.0, 2.0])
    first = param.detach()[0]
    take_step(SGD([param], lr=1.0), [param], [Tensor([0.5, 0.5])])
    assert first.item() == 0.5


def test_an_optimiser_shows_its_settings() -> None:
    optimizer = SGD([Tensor([1.0]), Tensor([2.0])], lr=0.5)
    start = "SGD(lr=0.5, momentum=0.0, "
    assert repr(optimizer).startswith(start)
    assert repr(optimizer).endswith("<2 parameters>)")

    @TinyJit
    def step() -> Tensor:
        assert "lr=<Tensor" in repr(optimizer) or repr(optimizer).startswith(start)
        return optimizer.params[0] * 2

    assert [step().item() for _ in range(3)] == [2.0] * 3


def test_zero_grad_forgets() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param], lr=1.0)
    param.square().sum().backward()
    optimizer.zero_grad()
    assert param.grad is None


def test_state_can_be_saved_and_loaded() -> None:
    def trained(steps: int) -> tuple[Adam, Tensor]:
        param = Tensor([1.0, 2.0])
        optimizer = Adam([param], lr=0.1)
        for _ in range(steps):
            take_step(optimizer, [param], [Tensor([0.5, -1.0])])
        return optimizer, param

    optimizer, param = trained(3)
    resumed, other = trained(0)
    load_state_dict(resumed, get_state_dict(optimizer))
    for one, tensor in ((optimizer, param), (resumed, other)):
        take_step(one, [tensor], [Tensor([1.0, 1.0])])
    np.testing.assert_array_equal(param.numpy(), other.numpy())


def test_groups_have_settings_of_their_own() -> None:
    first, second, third = Tensor([1.0]), Tensor([1.0]), Tensor([1.0])
    optimizer = SGD([{"params": [first], "lr": 0.5}, {"params": second}], lr=0.25)
    optimizer.add_param_group({"params": [third], "lr": 1.0, "maximize": True})
    take_step(optimizer, [first, second, third], [Tensor([1.0])] * 3)
    assert [param.item() for param in (first, second, third)] == [0.5, 0.75, 2.0]
    assert optimizer.params == [first, second, third]


def test_the_rate_of_a_group_is_set_in_its_tensor() -> None:
    optimizer = SGD([Tensor([0.0])], lr=1.0)
    rate = optimizer.lr
    optimizer.param_groups[0]["lr"] = 0.5
    assert rate.item() == 0.5
    optimizer.param_groups[0].update(lr=0.25)
    assert optimizer.lr is rate
    assert rate.item() == 0.25


@pytest.mark.parametrize("name", [name for name in CASES if name != "sgd"])
def test_a_state_dict_goes_on_where_it_was_made(name: str) -> None:
    make, _ = CASES[name]
    params = [Tensor(value) for value in initial()]
    grads = [Tensor(value) for value in initial()]
    optimizer = make(params)
    for _ in range(3):
        take_step(optimizer, params, grads)
    saved = optimizer.state_dict()
    copies = [Tensor(param.numpy()) for param in params]
    resumed = make(copies)
    resumed.lr = 9.0
    resumed.load_state_dict(saved)
    for one, tensors in ((optimizer, params), (resumed, copies)):
        take_step(one, tensors, grads)
    for one, other in zip(params, copies, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    optimizer = Adam([Tensor([1.0]), Tensor([1.0, 2.0])])
    other = Adam([Tensor([1.0]), Tensor([1.0, 2.0, 3.0])], lr=9.0)
    with pytest.raises(
        OptimizerError, match=r"exp_avg of parameter 1 has shape \(3,\), not \(2,\)"
    ):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(OptimizerError, match=r"groups of \[1\] parameters do not fit .* \[2\]"):
        optimizer.load_state_dict(Adam([Tensor([1.0])]).state_dict())
    state = optimizer.state_dict()
    state["state"][0]["step"] = Tensor(5.0)
    with pytest.raises(OptimizerError, match="step differs between parameters of one group"):
        optimizer.load_state_dict(state)
    assert optimizer.lr.item() == np.float32(0.001)


def orthogonalised(matrix: Array) -> Array:
    """Muon's quintic of the singular values."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return np.asarray((left * values) @ right)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_muon(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    value = rng.standard_normal(shape)
    param = Tensor(value)
    optimizer = Muon([param], lr=0.1)
    velocity = np.zeros(shape)
    for _ in range(4):
        grad = rng.standard_normal(shape)
        velocity = 0.95 * velocity + 0.05 * grad
        update = orthogonalised(0.95 * velocity + 0.05 * grad)
        value = value * (1 - 0.1 * 0.1) - 0.1 * max(1, shape[0] / shape[1]) ** 0.5 * update
        take_step(optimizer, [param], [Tensor(grad)])
        np.testing.assert_allclose(param.numpy(), value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [LAMB, LARS])
def test_a_tensor_of_zeros_moves(kind: Any) -> None:
    param = Tensor([0.0, 0.0])
    take_step(kind([param], lr=1.0), [param], [Tensor([1.0, -1.0])])
    np.testing.assert_allclose(param.numpy(), [-1.0, 1.0], rtol=1e-5)


def test_a_step_of_adam_takes_few_kernels() -> None:
    shapes = [(784, 64), (64,), (64, 32), (32,), (32, 10), (10,)]
    params = [Tensor(np.ones(shape, np.float32)) for shape in shapes]
    optimizer = Adam(params)
    for param in params:
        param.grad = Tensor(np.full(param.shape, 0.5, np.float32)).realize()
    before = GlobalCounters.kernel_count
    optimizer.step()
    # Where programs are compiled, all updates run two of them, one for each parameter.
    runs = 1 + len(params) if has_kernels(Device.DEFAULT) else 3
    assert GlobalCounters.kernel_count - before <= runs


@pytest.mark.parametrize("captured", [False, True])
def test_a_parameter_that_is_frozen_is_left_alone(captured: bool) -> None:
    frozen, other = Tensor([1.0, 2.0]), Tensor([3.0])
    optimizer = Adam([frozen, other], lr=0.1)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (frozen.sum() * other).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    run = TinyJit(step) if captured else step
    for _ in range(3):
        run()
    frozen.requires_grad_(False)
    before = frozen.tolist(), other.tolist()
    for _ in range(3):
        run()
    assert frozen.tolist() == before[0]
    assert other.tolist() != before[1]
    frozen.requires_grad_(True)
    run()
    assert frozen.tolist() != before[0]


def test_a_missing_gradient_is_an_error_and_changes_nothing() -> None:
    first, second = Tensor([1.0]), Tensor([[2.0]])
    optimizer = SGD([first, second], lr=1.0)
    first.sum().backward()
    with pytest.raises(
        OptimizerError, match=r"SGD.step: parameter 1, of shape \(1, 1\), has no gradient"
    ):
        optimizer.step()
    assert first.tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD([]), "SGD: there are no parameters to optimise"),
        (lambda: Adam([np.ones(3)]), "Adam: parameter 0 is ndarray, not a Tensor; pass"),  # type: ignore[list-item]
        (lambda: SGD([Tensor([1])]), "SGD: parameter 0 has dtype int32, and only floats"),
        (
            lambda: SGD([Tensor([1.0], requires_grad=True) * 2]),
            "SGD: parameter 0 is computed from other tensors",
        ),
        (lambda: SGD([Tensor([1.0])], lr=-1), "SGD: lr is -1; it must be at least 0"),
        (lambda: SGD([Tensor([1.0])], nesterov=True, momentum=0.9, dampening=0.1), "no dampening"),
        (lambda: Muon([Tensor([1.0])]), r"Muon: parameter 0 has shape \(1,\), and only matrices"),
        (lambda: Muon([Tensor([[1.0]])], adjust_lr_fn="x"), "adjust_lr_fn 'x' is not one of"),
        (
            lambda: SGD([{"params": [Tensor([1.0])], "beta": 1}]),
            "SGD: no setting beta; it has lr, momentum",
        ),
        (
            lambda: SGD([{"params": (x := Tensor([1.0]))}, {"params": x}]),
            "SGD: parameter 0 is in another group already",
        ),
        (lambda: SGD([Tensor([1.0])], momentum=-1), "SGD: momentum is -1; it must be at least 0"),
        (lambda: SGD([Tensor([1.0])], nesterov=True), "SGD: nesterov needs a momentum above 0"),
        (
            lambda: Adam([Tensor([1.0])], betas=(0.9, 1.0)),
            r"Adam: betas is 1.0; it must be in \[0, 1\)",
        ),
        (lambda: AdamW([Tensor([1.0])], eps=-1.0), "AdamW: eps is -1.0; it must be at least 0"),
        (lambda: AdamW([Tensor([1.0])], weight_decay=float("nan")), "AdamW: weight_decay is nan"),
    ],
)
def test_misuse_is_explained(make: Callable[[], Optimizer], text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        make()


# Groups that are changed


def test_a_closure_is_called_first_and_its_loss_returned() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param], lr=0.25)
    loss = optimizer.step(lambda: param.square().sum().backward())
    assert (loss.item(), param.item()) == (1.0, 0.5)


def test_groups_are_added_by_their_method() -> None:
    param, other = Tensor([1.0]), Tensor([1.0])
    optimizer = SGD([param], lr=1.0)
    param.grad = other.grad = Tensor([1.0])
    optimizer.param_groups.append({"params": [other]})  # type: ignore[arg-type]
    with pytest.raises(OptimizerError, match=r"there are 2 groups .* 1; add groups by add_param"):
        optimizer.step()
    assert param.item() == 1.0


@pytest.mark.parametrize(
    ("make", "name", "value", "text"),
    [
        (SGD, "lr", "x", "SGD: lr is 'x'; it must be a number"),
        (SGD, "lr", -1, "SGD: lr is -1; it must be at least 0"),
        (SGD, "lr", np.zeros(3), "SGD: lr is array"),
        (SGD, "learning_rate", 1, "SGD: no setting learning_rate; it has lr, momentum"),
        (SGD, "weight_decay", "x", "SGD: weight_decay is 'x'; it must be a number"),
        (SGD, "params", [], "SGD: a group keeps its parameters; add_param_group adds others"),
        (SGD, "momentum", 0.9, "SGD: momentum was off when .* make one with momentum=0.9"),
        (RMSprop, "centered", True, "RMSprop: centered was off when the optimiser was made"),
        (Adam, "betas", 0.9, "Adam: betas is 0.9; it must be 2 numbers"),
        (Adam, "betas", (0.9,), r"Adam: betas is \(0.9,\); it must be 2 numbers"),
        (Adam, "amsgrad", True, "Adam: amsgrad was off when the optimiser was made"),
    ],
)
def test_settings_of_a_group_are_checked(make: Any, name: str, value: Any, text: str) -> None:
    group = make([Tensor([1.0])]).param_groups[0]
    before = group.get(name)
    with pytest.raises(OptimizerError, match=text):
        group[name] = value
    assert group.get(name) is before


def test_a_rate_of_several_numbers_is_refused() -> None:
    with pytest.raises(OptimizerError, match=r"SGD: lr has shape \(2,\); it must be one number"):
        SGD([Tensor([1.0])], lr=Tensor([0.1, 0.2]))


def test_the_state_of_another_optimiser_is_refused() -> None:
    param = Tensor([1.0])
    saved = SGD([param], momentum=0.9).state_dict()
    text = "parameter 0 has momentum_buffer, as of another optimiser; this one keeps exp_avg"
    with pytest.raises(OptimizerError, match=text):
        Adam([param]).load_state_dict(saved)
    with pytest.raises(OptimizerError, match="momentum was off when the optimiser was made"):
        SGD([param]).load_state_dict(saved)


def test_a_parameter_without_a_state_starts_anew() -> None:
    grad = Tensor([0.5])
    first, second = Tensor([1.0]), Tensor([1.0])
    fresh, loaded = NAdam([first]), NAdam([second])
    take_step(loaded, [Tensor([1.0], requires_grad=True), second][1:], [grad])
    second.assign(Tensor([1.0])).realize()
    loaded.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    for optimizer, param in ((fresh, first), (loaded, second)):
        take_step(optimizer, [param], [grad])
    assert second.item() == first.item()


# The average of ASGD


def test_asgd_averages_after_its_first_steps() -> None:
    param = Tensor([1.0], dtype=dtypes.float64)
    optimizer = ASGD([param], lr=0.1, lambd=0.0, t0=2)
    seen = []
    for value in (1.0, -2.0, 3.0, 4.0, -1.0):
        take_step(optimizer, [param], [Tensor([value], dtype=dtypes.float64)])
        seen.append(param.item())
    np.testing.assert_allclose(optimizer.state[0]["ax"].item(), np.mean(seen[3:]), rtol=1e-12)


# LBFGS


def quadratic(rank: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    root = rng.standard_normal((rank, rank))
    return root @ root.T + np.eye(rank), rng.standard_normal(rank)


def lbfgs_reference(steps: int, rate: float, history: int) -> Array:
    """The minimum of x'Ax/2 - b'x by the inverse Hessian as a matrix, from the last pairs."""
    matrix, target = quadratic(4)
    x = np.zeros(4)
    pairs: list[tuple[Array, Array]] = []
    grad = matrix @ x - target
    length = min(1.0, 1 / np.abs(grad).sum()) * rate
    inverse = np.eye(4)
    for _ in range(steps):
        step = -length * inverse @ grad
        x, before = x + step, grad
        grad = matrix @ x - target
        pairs = [*pairs, (step, grad - before)][-history:]
        last, change = pairs[-1]
        inverse = np.eye(4) * (last @ change) / (change @ change)
        for s, y in pairs:
            left = np.eye(4) - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
        length = rate
    return x


def lbfgs_closure(optimizer: Optimizer, params: list[Tensor]) -> Callable[[], Tensor]:
    matrix, target = (Tensor(part) for part in quadratic(4))

    def closure() -> Tensor:
        optimizer.zero_grad()
        x = Tensor.cat(*(param.reshape(-1) for param in params))
        return (x.matmul(matrix).dot(x) / 2 - x.dot(target)).backward()

    return closure


@pytest.mark.parametrize(("calls", "history"), [(1, 100), (3, 100), (3, 2)])
def test_lbfgs_follows_its_matrices(calls: int, history: int) -> None:
    params = [Tensor(np.zeros((1, 3))), Tensor(np.zeros(()))]
    optimizer = LBFGS(params, 0.5, max_iter=6 // calls, max_eval=99, history_size=history)
    closure = lbfgs_closure(optimizer, params)
    for _ in range(calls):
        optimizer.step(closure)
    found = np.concatenate([param.numpy().ravel() for param in params])
    np.testing.assert_allclose(found, lbfgs_reference(6, 0.5, history), rtol=1e-9, atol=1e-12)


def test_lbfgs_with_a_search_finds_the_end_of_a_bent_valley() -> None:
    param = Tensor([-1.2, 1.0], dtype=dtypes.float64)
    optimizer = LBFGS([param], 1.0, 99, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def rosenbrock() -> Tensor:
        optimizer.zero_grad()
        x, y = param[0], param[1]
        return ((1 - x).square() + 100 * (y - x.square()).square()).backward()

    first = optimizer.step(rosenbrock)
    np.testing.assert_allclose(first.item(), 24.2)
    np.testing.assert_allclose(param.numpy(), [1.0, 1.0], rtol=1e-6)


def test_lbfgs_evaluates_about_as_often_as_it_may() -> None:
    params = [Tensor(np.zeros(4))]
    optimizer = LBFGS(params, lr=0.1, max_eval=3)
    plain, calls = lbfgs_closure(optimizer, params), []

    def closure() -> Tensor:
        calls.append(0)
        return plain()

    optimizer.step(closure)
    assert len(calls) == 3


def test_the_closure_of_lbfgs_may_be_captured() -> None:
    plain, captured = [Tensor(np.zeros(4))], [Tensor(np.zeros(4))]
    one, other = LBFGS(plain), LBFGS(captured)
    one.step(lbfgs_closure(one, plain))
    other.step(TinyJit(lbfgs_closure(other, captured)))
    np.testing.assert_allclose(captured[0].numpy(), plain[0].numpy(), rtol=1e-9)


def test_a_state_of_lbfgs_goes_on_where_it_was_made() -> None:
    params = [Tensor(np.zeros(4))]
    optimizer = LBFGS(params, lr=0.5, max_iter=3)
    optimizer.step(lbfgs_closure(optimizer, params))
    copies = [Tensor(params[0].numpy())]
    resumed = LBFGS(copies)
    resumed.load_state_dict(optimizer.state_dict())
    for one, tensors in ((optimizer, params), (resumed, copies)):
        one.step(lbfgs_closure(one, tensors))
    np.testing.assert_array_equal(copies[0].numpy(), params[0].numpy())
    with pytest.raises(OptimizerError, match=r"old_stps has shape \(4,\), not \(3,\)"):
        LBFGS([Tensor(np.zeros(3))]).load_state_dict(optimizer.state_dict())


def test_misuse_of_lbfgs_is_explained() -> None:
    param = Tensor([1.0])
    optimizer = LBFGS([param])
    with pytest.raises(OptimizerError, match="it computes the loss several times; pass a function"):
        optimizer.step()
    with pytest.raises(OptimizerError, match="the closure returned None; it must return the loss"):
        optimizer.step(lambda: param.square().sum().backward() and None)
    with pytest.raises(OptimizerError, match="it has one group of parameters"):
        optimizer.add_param_group({"params": [Tensor([1.0])]})
    with pytest.raises(OptimizerError, match="line_search_fn 'armijo' is not one of 'strong_wol"):
        LBFGS([param], line_search_fn="armijo")
    step = TinyJit(lambda: optimizer.step(lambda: param.square().sum().backward()))
    step()
    with pytest.raises(JitError, match=r"LBFGS.step: .*; capture the closure"):
        step()


# All parameters in one vector


def test_parameters_go_into_a_vector_and_back() -> None:
    params = [Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor(5.0), Tensor([6.0], dtype=dtypes.float16)]
    view = params[0].detach()[1]
    vector = parameters_to_vector(params)
    assert vector.tolist() == [1, 2, 3, 4, 5, 6]
    vector_to_parameters(vector * 2, params)
    assert [param.tolist() for param in params] == [[[2, 4], [6, 8]], 10, [12]]
    assert params[2].dtype == dtypes.float16
    assert view.tolist() == [6, 8]
    assert vector.tolist() == [1, 2, 3, 4, 5, 6]


def test_gradients_go_through_the_vector() -> None:
    params = [Tensor([1.0, 2.0], requires_grad=True), Tensor(3.0, requires_grad=True)]
    parameters_to_vector(params).square().sum().backward()
    assert [param.grad.tolist() for param in params if param.grad is not None] == [[2, 4], 6]


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_the_norm_of_several_tensors_is_that_of_their_vector(order: float) -> None:
    parts = [np.asarray(value) for value in initial()]
    flat = np.concatenate([part.ravel() for part in parts])
    total = get_total_norm([Tensor(part) for part in parts], order)
    np.testing.assert_allclose(total.item(), np.linalg.norm(flat, order), rtol=1e-12)
