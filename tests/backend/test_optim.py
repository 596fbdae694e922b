"""Optimisers against their formulas, written out in NumPy's float64."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes
from ferrule.helpers import GlobalCounters
from ferrule.nn.optim import SGD, Adam, AdamW, Optimizer, OptimizerError
from ferrule.nn.state import get_state_dict, load_state_dict

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


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam"])
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


def test_a_step_of_adam_takes_few_kernels() -> None:
    shapes = [(784, 64), (64,), (64, 32), (32,), (32, 10), (10,)]
    params = [Tensor(np.ones(shape, np.float32)) for shape in shapes]
    optimizer = Adam(params)
    for param in params:
        param.grad = Tensor(np.full(param.shape, 0.5, np.float32)).realize()
    before = GlobalCounters.kernel_count
    optimizer.step()
    assert GlobalCounters.kernel_count - before <= 3


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
