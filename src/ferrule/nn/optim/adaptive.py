"""Optimisers whose steps adapt to the gradients so far, element by element or by rows and columns.

RMSprop, Adagrad, Adadelta, Rprop, Adafactor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ferrule.nn.optim.groups import (
    OptimizerError,
    ParamGroup,
    Params,
    State,
    at_least,
    below_one,
    check_number,
)
from ferrule.nn.optim.tensorwise import TensorWise, decayed, filled_like, moved, with_decay
from ferrule.tensor import Tensor


def _check_settings(name: str, settings: Mapping[str, Any], *names: str) -> None:
    for setting in names:
        at_least(name, setting, settings[setting])


@final
class RMSprop(TensorWise):
    """Gradients over the root of the moving average of their squares.

    `centered` takes their variance instead. Hinton, "Neural Networks for Machine Learning" (2012),
    lecture 6.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import RMSprop
    >>> weight = Tensor([1.0])
    >>> optimizer = RMSprop([weight], lr=0.25, alpha=0.75)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5]
    """

    structural = ("momentum", "centered")

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
class Adagrad(TensorWise):
    """Gradients over the root of the sum of all their squares so far.

    Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Adagrad
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
class Adadelta(TensorWise):
    """The gradient times the RMS of earlier updates, over the RMS of gradients.

    update = sqrt(avg(update**2) + eps) / sqrt(avg(gradient**2) + eps) * gradient, with moving
    averages that keep `rho` of the past.

    Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Adadelta
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


@final
class Rprop(TensorWise):
    """Steps of a size of their own for each element, of which only the gradient's sign is used.

    A size is multiplied by the second of `etas` while the sign stays, and by the first when it
    changes; then the element waits for a step. Sizes begin at `lr` and stay within `step_sizes`.
    For whole batches. Riedmiller and Braun, "A Direct Adaptive Method for Faster Backpropagation
    Learning: The RPROP Algorithm" (1993), without going back to the value before.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Rprop
    >>> weight = Tensor([1.0, -2.0])
    >>> optimizer = Rprop([weight], lr=0.25)
    >>> _ = (weight * weight).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75, -1.75]
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        settings = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        _check_settings(self._name, settings, "lr")
        for name, rule in (("etas", "0 < down < 1 < up"), ("step_sizes", "0 <= least <= most")):
            pair = settings[name]
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise OptimizerError(f"Rprop: {name} is {pair!r}; it must be two numbers")
            low, high = pair
            check_number(self._name, name, low)
            check_number(self._name, name, high)
            if not (0 < low < 1 < high if name == "etas" else 0 <= low <= high):
                raise OptimizerError(f"Rprop: {name} is {pair!r}; it must be {rule}")

    def _start_shared(self, group: ParamGroup) -> State:
        return {}

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        return {"prev": filled_like(param), "step_size": filled_like(param, group["lr"].item())}

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        down, up = group["etas"]
        same = gradient * state["prev"]
        factor = (same > 0).where(up, (same < 0).where(down, same.ones_like()))
        size = (state["step_size"] * factor).clamp(*group["step_sizes"])
        used = (same < 0).where(0.0, gradient)
        return value - used.sign() * size, {"prev": used, "step_size": size}


@final
class Adafactor(TensorWise):
    """Gradients over the root of a mean of squares that is kept for rows and columns only.

    The mean square of an element of a matrix, or of the last two axes, is that of its row times
    that of its column, over that of all; vectors keep one for each element. The averages forget
    with `1 - t ** beta2_decay`. The update is scaled down to a root mean square of `d`, and then by
    `min(lr, 1 / sqrt(t))` times that of the parameter, of at least the second of `eps`; the first,
    by default the precision of the type, keeps mean squares from zero. Shazeer and Stern,
    "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), with PyTorch's settings.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Adafactor
    >>> weight = Tensor([[3.0, 4.0], [3.0, 4.0]])
    >>> optimizer = Adafactor([weight], lr=0.5)
    >>> _ = weight.sum().backward()
    >>> optimizer.step()
    >>> [round(value, 3) for value in weight[0].tolist()]
    [1.232, 2.232]
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 0.001),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        _check_settings(self._name, settings, "lr", "weight_decay")
        at_least(self._name, "d", settings["d"], 1.0)
        decay, eps = settings["beta2_decay"], settings["eps"]
        check_number(self._name, "beta2_decay", decay)
        if not decay <= 0:
            raise OptimizerError(f"Adafactor: beta2_decay is {decay}; it must be at most 0")
        if not isinstance(eps, tuple | list) or len(eps) != 2:
            raise OptimizerError(
                f"Adafactor: eps is {eps!r}; it must be two numbers, the first of them or None"
            )
        for bound in eps[eps[0] is None :]:
            at_least(self._name, "eps", bound)

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        if param.ndim < 2:
            return {"variance": filled_like(param)}
        *batch, rows, columns = param.shape
        return {
            "row_var": filled_like(param, shape=(*batch, rows, 1)),
            "col_var": filled_like(param, shape=(*batch, 1, columns)),
        }

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        least, smallest = group["eps"]
        least = float(np.finfo(value.dtype.np).eps) if least is None else least
        step, rate = state["step"], group["lr"]
        keep = 1 - (step.log() * group["beta2_decay"]).exp()
        squares = gradient.square()
        if "variance" in state:
            after = {"variance": moved(state["variance"], squares, keep)}
            mean = after["variance"]
        else:
            rows = moved(state["row_var"], squares.mean(-1, keepdim=True), keep)
            columns = moved(state["col_var"], squares.mean(-2, keepdim=True), keep)
            mean = rows * columns / rows.mean(-2, keepdim=True).maximum(least)
            after = {"row_var": rows, "col_var": columns}
        update = gradient / mean.maximum(least * least).sqrt()
        update = update / (_mean_size(update) / group["d"]).maximum(1.0)
        scale = rate.minimum(1 / step.sqrt()) * _mean_size(value).maximum(smallest)
        return decayed(value, group) - scale * update, after


def _mean_size(value: Tensor) -> Tensor:
    """The root of the mean square of all elements."""
    return value.square().mean().sqrt()
