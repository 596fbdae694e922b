"""`GradScaler`: scaled losses, steps that are left out, the scale that follows; captured too."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, autocast, dtypes, nn
from ferrule.amp import GradScaler
from ferrule.nn.optim import optimizer as base
from ferrule.nn.optim.groups import OptimizerError

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    name: lambda params, name=name: getattr(nn.optim, name)(params, lr=0.05)
    for name in nn.optim.__all__
    if isinstance(getattr(nn.optim, name), type)
    and issubclass(getattr(nn.optim, name), base.Optimizer)
    and name not in ("Optimizer", "LBFGS")
}


def weights() -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [Tensor(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 4), (4, 4))]


def loss_of(params: list[Tensor], factor: Tensor) -> Tensor:
    return sum((param * param * factor).sum() for param in params)  # type: ignore[return-value]


def state_of(optimizer: Any) -> list[np.ndarray]:
    return [tensor.numpy() for state in optimizer.state for tensor in state.values()]


def test_a_scaler_that_is_off_needs_no_device() -> None:
    scaler = GradScaler("no such device", enabled=False)
    assert scaler.scale(Tensor([2.0])).tolist() == [2.0]
    assert scaler.get_scale() == 1.0


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_one_element_of_one_gradient_leaves_the_whole_step_out(place: int, value: float) -> None:
    params = weights()
    before = [param.numpy() for param in params]
    optimizer = nn.optim.SGD(params, lr=0.1)
    scaler = GradScaler(init_scale=256.0)
    factors = [np.ones(param.shape, np.float32) for param in params]
    factors[place][1, 2] = value
    losses = [(param * Tensor(factor)).sum() for param, factor in zip(params, factors, strict=True)]
    scaler.scale(losses[0] + losses[1]).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 128.0
    for param, was in zip(params, before, strict=True):
        np.testing.assert_array_equal(param.numpy(), was)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_the_optimisers_own_or_none(name: str, captured: bool) -> None:
    """Against the optimiser without a scaler, which is not called where a gradient is infinite."""
    params, plain_params = weights(), weights()
    optimizer, plain = OPTIMIZERS[name](params), OPTIMIZERS[name](plain_params)
    scaler = GradScaler(init_scale=256.0, growth_interval=2)

    def step(factor: Tensor) -> Tensor:
        optimizer.zero_grad()
        scaler.scale(loss_of(params, factor)).backward()
        scaler.step(optimizer)
        scaler.update()
        return params[0].sum().realize()

    run = TinyJit(step) if captured else step
    for factor in (1.0, 0.5, math.inf, 2.0, math.nan, 1.5):
        before = [*map(Tensor.numpy, params), *state_of(optimizer)]
        run(Tensor([factor]).realize())
        if math.isfinite(factor):
            plain.zero_grad()
            loss_of(plain_params, Tensor([factor])).backward()
            plain.step()
        else:
            after = [*map(Tensor.numpy, params), *state_of(optimizer)]
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        for one, other in zip(params, plain_params, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_the_scale_follows_the_steps(captured: bool) -> None:
    params = weights()
    optimizer = nn.optim.SGD(params, lr=0.01)
    scaler = GradScaler(init_scale=64.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)

    def step(factor: Tensor) -> Tensor:
        optimizer.zero_grad()
        scaler.scale(loss_of(params, factor)).backward()
        scaler.step(optimizer)
        scaler.update()
        return params[0].sum().realize()

    run = TinyJit(step) if captured else step
    scales = []
    for factor in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0, 1.0):
        run(Tensor([factor]).realize())
        scales.append(scaler.get_scale())
    assert scales == [64.0, 256.0, 256.0, 64.0, 64.0, 256.0, 256.0]
    if isinstance(run, TinyJit):
        assert len(run._replays) == 1  # which decided each time anew
    assert scaler.state_dict()["_growth_tracker"] == 1


def test_the_scale_does_not_grow_beyond_all_numbers() -> None:
    (param,) = params = weights()[:1]
    optimizer = nn.optim.SGD(params, lr=0.0)
    scaler = GradScaler(init_scale=2.0**127, growth_interval=1)
    scaler.scale((param * 1e-30).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**127


def test_clipping_after_unscaling_is_clipping_without_a_scale() -> None:
    params, plain_params = weights(), weights()
    optimizer, plain = nn.optim.SGD(params, lr=0.1), nn.optim.SGD(plain_params, lr=0.1)
    scaler = GradScaler(init_scale=1024.0)

    @TinyJit
    def step(factor: Tensor) -> Tensor:
        optimizer.zero_grad()
        scaler.scale(loss_of(params, factor)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)
        scaler.update()
        return norm.realize()

    for number in range(4):
        factor = Tensor([1.0 + number]).realize()
        norm = step(factor)
        plain.zero_grad()
        loss_of(plain_params, factor).backward()
        expected = nn.utils.clip_grad_norm_(plain_params, 1.0)
        plain.step()
        assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
        for one, other in zip(params, plain_params, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_small_gradients_survive_float16(captured: bool) -> None:
    """Gradients of 1e-8 are zero in float16, unless the loss is scaled up."""
    weight = Tensor([1.0, 2.0])
    optimizer = nn.optim.SGD([weight], lr=1e6)
    scaler = GradScaler(init_scale=2.0**14)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with autocast(dtype=dtypes.float16):
            loss = (x @ weight.reshape(2, 1)).sum() * 1e-8
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.realize()

    run = TinyJit(step) if captured else step
    for _ in range(3):
        run(Tensor([[1.0, 1.0]]).realize())
    np.testing.assert_allclose(weight.numpy(), [0.97, 1.97], rtol=1e-3)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("captured", ["all in one", "each part", "nothing"])
def test_gradient_accumulation(captured: str, scaled: bool) -> None:
    """Gradients of several batches add up to those of all in one, in whatever is captured."""
    Tensor.manual_seed(0)
    model, whole = nn.Linear(4, 2), nn.Linear(4, 2)
    nn.state.load_state_dict(whole, model.state_dict())
    optimizer = nn.optim.Adam(model.parameters(), lr=0.1)
    plain = nn.optim.Adam(whole.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=32.0, enabled=scaled)
    count = 3

    def accumulate(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss / count).backward()
        return loss.realize(*[p.grad for p in model.parameters() if p.grad is not None])

    def apply() -> None:
        scaler.step(optimizer)
        scaler.update()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.assign(parameter.grad.zeros_like())
        Tensor.realize(*[p.grad for p in model.parameters() if p.grad is not None])

    def together(*xs: Tensor) -> None:
        optimizer.zero_grad()
        for x in xs:
            accumulate(x)
        scaler.step(optimizer)
        scaler.update()

    parts: Any = TinyJit(accumulate), TinyJit(apply)
    at_once: Any = TinyJit(together) if captured == "all in one" else together
    for parameter in model.parameters():
        parameter.grad = parameter.zeros_like().contiguous().realize()
    rng = np.random.default_rng(1)
    for _ in range(4):
        xs = [Tensor(rng.normal(size=(5, 4)).astype(np.float32)).realize() for _ in range(count)]
        if captured == "each part":
            for x in xs:
                parts[0](x)
            parts[1]()
        else:
            at_once(*xs)
        plain.zero_grad()
        whole(Tensor.cat(*xs)).square().mean().backward()
        plain.step()
        for one, other in zip(model.parameters(), whole.parameters(), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    used = {"all in one": [at_once], "each part": parts, "nothing": []}[captured]
    assert [len(part._replays) for part in used] == [1] * len(used)


def test_several_optimisers_and_losses() -> None:
    left, right = (Tensor([1.0]) for _ in range(2))
    one, other = nn.optim.SGD([left], lr=0.5), nn.optim.SGD([right], lr=0.5)
    scaler = GradScaler(init_scale=8.0)
    losses = scaler.scale({"left": left.sum(), "right": [(right * math.inf).sum()]})
    losses["left"].backward()
    losses["right"][0].backward()
    scaler.step(one)
    scaler.step(other)
    scaler.update()
    assert (left.item(), right.item(), scaler.get_scale()) == (0.5, 1.0, 4.0)


def test_an_optimiser_of_another_class_is_not_called_for_infinite_gradients() -> None:
    class Own(nn.optim.Optimizer):
        steps = 0

        def _begin(self, group: Any) -> None: ...

        def step(self, closure: Any = None) -> None:
            self.steps += 1

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: Any) -> None: ...

    param = Tensor([1.0])
    optimizer, scaler = Own([param], {"lr": 0.1}), GradScaler()
    for factor in (1.0, math.inf):
        optimizer.zero_grad()
        scaler.scale((param * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.steps == 1


def test_states_are_saved_and_loaded() -> None:
    scaler = GradScaler(init_scale=8.0, growth_interval=5)
    scaler.update(new_scale=16.0)
    state = scaler.state_dict()
    assert state == {
        "scale": 16.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 5,
        "_growth_tracker": 0,
    }
    other = GradScaler()
    other.load_state_dict({**state, "_growth_tracker": 3})
    assert other.state_dict() == {**state, "_growth_tracker": 3}
    with pytest.raises(OptimizerError, match="the state lacks scale, growth_factor"):
        other.load_state_dict({})


def test_without_scales() -> None:
    scaler = GradScaler(enabled=False)
    param = Tensor([1.0])
    optimizer = nn.optim.SGD([param], lr=0.5)
    loss = param.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (param.item(), scaler.get_scale(), scaler.state_dict()) == (0.5, 1.0, {})


def test_errors() -> None:
    for settings in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            GradScaler(**settings)
    scaler, param = GradScaler(), Tensor([1.0])
    optimizer = nn.optim.SGD([param], lr=0.5)
    with pytest.raises(OptimizerError, match="there was no step"):
        scaler.update()
    with pytest.raises(OptimizerError, match="no parameter of the optimiser has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(TypeError, match="takes tensors, or lists of them, not str"):
        scaler.scale("loss")
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(OptimizerError, match="called twice"):
        scaler.unscale_(optimizer)
    with pytest.raises(OptimizerError, match="closures are not supported"):
        scaler.step(optimizer, lambda: None)
    scaler.step(optimizer)
    with pytest.raises(OptimizerError, match="called twice"):
        scaler.step(optimizer)
    with pytest.raises(OptimizerError, match="called after step"):
        scaler.unscale_(optimizer)
