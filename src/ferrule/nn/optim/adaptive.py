"""Optimisers that divide by a size of each element's gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ferrule.nn.optim.optimizer import (
    Optimizer,
    ParamGroup,
    Params,
    State,
    at_least,
    below_one,
    filled_like,
    moved,
    with_decay,
)
from ferrule.tensor import Tensor


def _check_settings(name: str, settings: Mapping[str, Any], *names: str) -> None:
    for setting in names:
        if not isinstance(settings[setting], Tensor):
            at_least(name, setting, settings[setting])


@final
class RMSprop(Optimizer):
    """Gradients over the root of the moving average of their squares.

    `centered` takes their variance instead. Hinton, "Neural Networks for Machine Learning" (2012),
    lecture 6.

    >>> weight = Tensor([1.0])
    >>> optimizer = RMSprop([weight], lr=0.25, alpha=0.75)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        _check_settings(self._name, settings, "lr", "alpha", "eps", "weight_decay", "momentum")

    def _start_shared(self, group: ParamGroup) -> State:
        return {}

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        names = ["square_avg"]
        if group["momentum"]:
            names.append("momentum_buffer")
        if group["centered"]:
            names.append("grad_avg")
        return {name: filled_like(param) for name in names}

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        gradient = with_decay(gradient, value, group)
        square = moved(state["square_avg"], gradient.square(), group["alpha"])
        after = {"square_avg": square}
        if "grad_avg" in state:
            after["grad_avg"] = moved(state["grad_avg"], gradient, group["alpha"])
            square = square - after["grad_avg"].square()
        update = gradient / (square.sqrt() + group["eps"])
        if "momentum_buffer" in state:
            update = group["momentum"] * state["momentum_buffer"] + update
            after["momentum_buffer"] = update
        return value - group["lr"] * update, after


@final
class Adagrad(Optimizer):
    """Gradients over the root of the sum of all their squares so far.

    Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).

    >>> weight = Tensor([1.0])
    >>> optimizer = Adagrad([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75]
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        names = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
        _check_settings(self._name, settings, *names)

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        return {"sum": filled_like(param, group["initial_accumulator_value"])}

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        gradient = with_decay(gradient, value, group)
        total = state["sum"] + gradient.square()
        rate = group["lr"]
        if group["lr_decay"]:
            rate = rate / (1 + (state["step"] - 1) * group["lr_decay"])
        return value - rate * gradient / (total.sqrt() + group["eps"]), {"sum": total}


@final
class Adadelta(Optimizer):
    """Steps of the size of earlier steps, in the direction of gradients over their size.

    Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012).

    >>> weight = Tensor([1.0])
    >>> optimizer = Adadelta([weight])
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.item() < 1
    True
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        _check_settings(self._name, settings, "lr", "eps", "weight_decay")
        below_one(self._name, "rho", settings["rho"])

    def _start_shared(self, group: ParamGroup) -> State:
        return {}

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        return {"square_avg": filled_like(param), "acc_delta": filled_like(param)}

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        gradient = with_decay(gradient, value, group)
        square = moved(state["square_avg"], gradient.square(), group["rho"])
        ratio = (state["acc_delta"] + group["eps"]).sqrt() / (square + group["eps"]).sqrt()
        delta = ratio * gradient
        steps = moved(state["acc_delta"], delta.square(), group["rho"])
        return value - group["lr"] * delta, {"square_avg": square, "acc_delta": steps}
