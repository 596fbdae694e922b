"""Adam and its family: a moving average of gradients, over the root of one of their squares."""

from __future__ import annotations

from math import log
from typing import final

from ferrule.ir.dtype import dtypes
from ferrule.nn.optim.groups import (
    Betas,
    ParamGroup,
    Params,
    State,
    not_negative,
    rules_with,
    scalar,
)
from ferrule.nn.optim.optimizer import takes_settings
from ferrule.nn.optim.sgd import size_of, trust_ratio
from ferrule.nn.optim.tensorwise import TensorWise, decayed, moved, with_decay
from ferrule.tensor import Tensor


def _power(beta: float | Tensor, step: Tensor) -> Tensor:
    """The exponent of e in `beta**step`."""
    return step * (beta.log() if isinstance(beta, Tensor) else log(max(beta, 1e-300)))


def _weight(beta: float | Tensor, step: Tensor) -> Tensor:
    """`1 - beta**step`: the moving average of the constant 1 from zero on after `step` steps.

    Dividing by it corrects the bias. By `expm1`, it is exact to rounding from the first step on.
    """
    return -_power(beta, step).expm1()


class _Moments(TensorWise):
    """The base of Adam's family: `betas`, `eps`, `weight_decay`, two averages and a step count."""

    state_names = ("step", "exp_avg", "exp_avg_sq")

    @staticmethod
    def _moments(state: State, gradient: Tensor, group: ParamGroup) -> State:
        """The averages after a step."""
        first, second = group["betas"]
        return {
            "exp_avg": moved(state["exp_avg"], gradient, first),
            "exp_avg_sq": moved(state["exp_avg_sq"], gradient.square(), second),
        }

    def _common(self, shared: State, group: ParamGroup) -> State:
        """The divisors that correct the bias of each average, for squares after the square root."""
        first, second = group["betas"]
        return {
            "mean_weight": _weight(first, shared["step"]),
            "root_weight": _weight(second, shared["step"]).sqrt(),
        }

    def _adam_step(self, gradient: Tensor, state: State, group: ParamGroup) -> tuple[Tensor, State]:
        """Adam's direction, to be multiplied by the rate."""
        after = self._moments(state, gradient, group)
        square = after["exp_avg_sq"]
        if "max_exp_avg_sq" in state:
            square = after["max_exp_avg_sq"] = state["max_exp_avg_sq"].maximum(square)
        size = square.sqrt() / state["root_weight"] + group["eps"]
        return after["exp_avg"] / state["mean_weight"] / size, after


@final
class Adam(_Moments):
    """Adam; weight decay is added to the gradient (L2), as in PyTorch's `Adam`.

    `amsgrad` divides by the largest average of squares so far. Kingma and Ba, "Adam: A Method for
    Stochastic Optimization" (2014); Reddi and others, "On the Convergence of Adam" (2018).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Adam
    >>> weight = Tensor([1.0])
    >>> optimizer = Adam([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75]
    """

    structural = (("amsgrad", "max_exp_avg_sq"),)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        update, after = self._adam_step(with_decay(gradient, value, group), state, group)
        return value - group["lr"] * update, after


@final
class AdamW(_Moments):
    """Adam with decoupled weight decay: parameters shrink by `lr * weight_decay` at each step.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import AdamW
    >>> weight = Tensor([1.0])
    >>> optimizer = AdamW([weight], lr=0.25, weight_decay=1.0)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5]
    """

    structural = (("amsgrad", "max_exp_avg_sq"),)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        update, after = self._adam_step(gradient, state, group)
        return decayed(value, group) - group["lr"] * update, after


@final
class LAMB(_Moments):
    """Adam whose step is scaled to the size of each tensor, for large batches.

    The direction is Adam's with `weight_decay * w` added, and the rate `lr * |w| / |direction|`.
    You and others, "Large Batch Optimization for Deep Learning" (2019), algorithm 2.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import LAMB
    >>> weight = Tensor([3.0, 4.0])
    >>> optimizer = LAMB([weight], lr=0.1)
    >>> _ = (weight * Tensor([1.0, 0.0])).sum().backward()
    >>> optimizer.step()
    >>> [round(value, 4) for value in weight.tolist()]
    [2.5, 4.0]
    """

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        update, after = self._adam_step(gradient, state, group)
        update = with_decay(update, value, group)
        ratio = trust_ratio(size_of(value), size_of(update))
        return value - group["lr"] * ratio * update, after


@final
class Adamax(_Moments):
    """Adam with the largest gradient, discounted, in place of the root of the mean square.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), section 7.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Adamax
    >>> weight = Tensor([1.0])
    >>> optimizer = Adamax([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75]
    """

    state_names = ("step", "exp_avg", "exp_inf")

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.002,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        gradient = with_decay(gradient, value, group)
        first, second = group["betas"]
        mean = moved(state["exp_avg"], gradient, first)
        largest = (second * state["exp_inf"]).maximum(gradient.abs() + group["eps"])
        rate = group["lr"] / state["mean_weight"]
        return value - rate * mean / largest, {"exp_avg": mean, "exp_inf": largest}


class _Decoupling(_Moments):
    """Weight decay of either kind, by a setting."""

    @staticmethod
    def _split(value: Tensor, gradient: Tensor, group: ParamGroup) -> tuple[Tensor, Tensor]:
        if group["decoupled_weight_decay"]:
            return decayed(value, group), gradient
        return value, with_decay(gradient, value, group)


@final
class NAdam(_Decoupling):
    """Adam with Nesterov's momentum, whose share grows with the steps.

    Dozat, "Incorporating Nesterov Momentum into Adam" (2016).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import NAdam
    >>> weight = Tensor([1.0])
    >>> optimizer = NAdam([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.item() < 1
    True
    """

    rules = rules_with(momentum_decay=not_negative)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.002,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 0.004,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _start_shared(self, group: ParamGroup) -> State:
        return {**super()._start_shared(group), "mu_product": scalar(1.0, group["params"])}

    def _advance(self, shared: State, group: ParamGroup) -> State:
        step = shared["step"] + 1
        return {"step": step, "mu_product": shared["mu_product"] * self._momentum(step, group)}

    @staticmethod
    def _momentum(step: Tensor, group: ParamGroup) -> Tensor:
        growth = _power(0.96, step * group["momentum_decay"]).exp()
        momentum: Tensor = group["betas"][0] * (1 - 0.5 * growth)
        return momentum

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        value, gradient = self._split(value, gradient, group)
        after = self._moments(state, gradient, group)
        now = self._momentum(state["step"], group)
        ahead = self._momentum(state["step"] + 1, group)
        product = state["mu_product"]
        size = after["exp_avg_sq"].sqrt() / state["root_weight"] + group["eps"]
        update = gradient * ((1 - now) / (1 - product))
        update = update + after["exp_avg"] * (ahead / (1 - product * ahead))
        return value - group["lr"] * update / size, after


@final
class RAdam(_Decoupling):
    """Adam that waits with dividing until the average of squares is worth it.

    Liu and others, "On the Variance of the Adaptive Learning Rate and Beyond" (2019).

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import RAdam
    >>> weight = Tensor([1.0])
    >>> optimizer = RAdam([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.25]
    """

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        value, gradient = self._split(value, gradient, group)
        after = self._moments(state, gradient, group)
        length, factor = self._rectification(state["step"], group["betas"][1])
        adaptive = factor * state["root_weight"] / (after["exp_avg_sq"].sqrt() + group["eps"])
        update = after["exp_avg"] / state["mean_weight"] * (length > 5).where(adaptive, 1.0)
        return value - group["lr"] * update, after

    @staticmethod
    def _rectification(step: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
        """The length of the average of squares, roughly, and the factor for their variance.

        The length is a small difference of large numbers, hence float64.
        """
        exact = step.cast(dtypes.float64)
        limit = 2 / (1 - beta) - 1
        power = _power(beta, exact)
        length = limit + 2 * exact * power.exp() / power.expm1()
        used = length.maximum(5.0)
        ratio = (used - 4) * (used - 2) * limit / ((limit - 4) * (limit - 2) * used)
        return length, ratio.sqrt().cast(step.dtype)
