"""Optimisers whose steps adapt to the gradients so far, element by element or by rows and columns.

RMSprop, Adagrad, Adadelta, Rprop, Adafactor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ferrule.nn.optim.groups import (
    ParamGroup,
    Params,
    State,
    at_least_one,
    below_one,
    bounded,
    check_number,
    not_negative,
    or_none,
    rules_with,
    several,
    unfit,
)
from ferrule.nn.optim.optimizer import takes_settings
from ferrule.nn.optim.tensorwise import TensorWise, decayed, filled_like, moved, with_decay
from ferrule.tensor import Tensor

_PAIR = several("two numbers", check_number, check_number)


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

    state_names = ("square_avg",)
    structural = (("momentum", "momentum_buffer"), ("centered", "grad_avg"))
    rules = rules_with(alpha=not_negative)

    @takes_settings
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
    ) -> None: ...

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

    state_names = ("step", "sum")
    rules = rules_with(lr_decay=not_negative, initial_accumulator_value=not_negative)

    @takes_settings
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
    ) -> None: ...

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

    state_names = ("square_avg", "acc_delta")
    rules = rules_with(rho=below_one)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

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

    state_names = ("prev", "step_size")
    rules = rules_with(etas=_PAIR, step_sizes=_PAIR)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None: ...

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        (down, up), (least, most) = settings["etas"], settings["step_sizes"]
        if not 0 < down < 1 < up:
            raise unfit(self._name, "etas", settings["etas"], "0 < down < 1 < up")
        if not 0 <= least <= most:
            raise unfit(self._name, "step_sizes", settings["step_sizes"], "0 <= least <= most")

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

    state_names = ("step",)  # and more by the shape of each parameter
    rules = rules_with(
        beta2_decay=bounded("at most 0", lambda value: value <= 0),
        eps=several("two numbers, the first of them or None", or_none(not_negative), not_negative),
        d=at_least_one,
    )

    @takes_settings
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
    ) -> None: ...

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
