"""Gradient descent, its average, and variants that scale whole layers: SGD, ASGD, LARS, Muon."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, final

from ferrule.nn.optim.groups import (
    OptimizerError,
    ParamGroup,
    Params,
    State,
    below_one,
    check_number,
    choice,
    not_negative,
    rules_with,
    several,
    whole_above_zero,
)
from ferrule.nn.optim.optimizer import takes_settings
from ferrule.nn.optim.tensorwise import TensorWise, decayed, moved, with_decay
from ferrule.tensor import Tensor


@final
class SGD(TensorWise):
    """Stochastic gradient descent, with momentum (Nesterov's if asked) and weight decay.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> weight = Tensor([1.0, -1.0])
    >>> optimizer = SGD([weight], lr=0.5)
    >>> _ = (weight * weight).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.0, 0.0]
    """

    state_names = ()
    # The first step is not dampened: only then does the number of the step matter.
    structural = (("dampening", "step"), ("momentum", "momentum_buffer"))

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        if settings["nesterov"] and (not settings["momentum"] or settings["dampening"]):
            raise OptimizerError("SGD: nesterov needs a momentum above 0, and no dampening")

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        gradient = with_decay(gradient, value, group)
        if "momentum_buffer" not in state:
            return value - group["lr"] * gradient, {}
        fresh = gradient
        if group["dampening"]:
            later = (state["step"] > 1).cast(gradient.dtype)
            fresh = gradient * (1 - group["dampening"] * later)
        velocity = group["momentum"] * state["momentum_buffer"] + fresh
        direction = gradient + group["momentum"] * velocity if group["nesterov"] else velocity
        return value - group["lr"] * direction, {"momentum_buffer": velocity}


@final
class ASGD(TensorWise):
    """Gradient descent with a falling rate, and the average of where it has been.

    The rate of step t is `lr / (1 + lambd * lr * (t - 1)) ** alpha`, and parameters shrink by the
    rate times `lambd` at each step. The state "ax" is the average of the parameters from step
    `t0 + 2` on; until then it is a copy of them. Polyak and Juditsky, "Acceleration of stochastic
    approximation by averaging" (1992); rates as in Bottou, "Stochastic Gradient Descent Tricks"
    (2012). A change of "lr" acts at once, where PyTorch's acts one step later.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import ASGD
    >>> weight = Tensor([1.0])
    >>> optimizer = ASGD([weight], lr=0.25, lambd=0.0)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist(), optimizer.state[0]["ax"].tolist()
    ([0.25], [0.25])
    """

    state_names = ("step", "ax")
    rules = rules_with(lambd=check_number, alpha=check_number, t0=check_number)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        before = state["step"] - 1
        fall = 1 + group["lambd"] * group["lr"] * before
        rate = group["lr"] * (fall.log() * -group["alpha"]).exp()
        gradient = with_decay(gradient, value, group)
        value = value * (1 - group["lambd"] * rate) - rate * gradient
        share = 1 / (before - group["t0"]).maximum(1.0)
        return value, {"ax": state["ax"] + share * (value - state["ax"])}


def size_of(value: Tensor) -> Tensor:
    """The Euclidean norm of all elements."""
    return value.square().sum().sqrt()


def trust_ratio(weight: Tensor, update: Tensor) -> Tensor:
    """|weight| / |update|, and 1 where either is zero."""
    usable = (weight > 0).logical_and(update > 0)
    return usable.where(weight / usable.where(update, 1.0), 1.0)


@final
class LARS(TensorWise):
    """Layer-wise adaptive rate scaling, for large batches.

    Each tensor's rate is `lr * trust_coefficient * |w| / (|gradient| + weight_decay * |w| + eps)`;
    momentum is that of `SGD`, of updates that are scaled already. You, Gitman, Ginsburg, "Large
    Batch Training of Convolutional Networks" (2017), algorithm 1. Give biases and the parameters of
    normalisations a group of their own, with `trust_coefficient` 0: that is plain momentum.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import LARS
    >>> weight = Tensor([3.0, 4.0])
    >>> optimizer = LARS([weight], lr=1.0, trust_coefficient=0.5, weight_decay=0.0)
    >>> _ = (weight * Tensor([1.0, 0.0])).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5, 4.0]
    """

    state_names = ("momentum_buffer",)
    rules = rules_with(trust_coefficient=not_negative)

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
        eps: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        update = group["lr"] * self._scaled(value, gradient, group)
        velocity = group["momentum"] * state["momentum_buffer"] + update
        direction = update + group["momentum"] * velocity if group["nesterov"] else velocity
        return value - direction, {"momentum_buffer": velocity}

    @staticmethod
    def _scaled(value: Tensor, gradient: Tensor, group: ParamGroup) -> Tensor:
        update = with_decay(gradient, value, group)
        if not group["trust_coefficient"]:
            return update
        weight = size_of(value)
        slope = size_of(gradient)
        bound = slope + group["weight_decay"] * weight + group["eps"]
        usable = (weight > 0).logical_and(slope > 0)
        ratio = group["trust_coefficient"] * weight / usable.where(bound, 1.0)
        return update * usable.where(ratio, 1.0)


@final
class Muon(TensorWise):
    """Momentum whose updates are made orthogonal, for matrices inside a network.

    The update is the nearest orthogonal matrix to the momentum, by `ns_steps` of a Newton-Schulz
    iteration whose quintic has `ns_coefficients`; they are computed in float32, where PyTorch takes
    bfloat16. `adjust_lr_fn` scales the rate by the shape: "original" (also None) by
    `sqrt(max(1, rows / columns))`, "match_rms_adamw" by `0.2 * sqrt(max(rows, columns))`, so that
    AdamW's rates fit. Jordan and others, "Muon: An optimizer for hidden layers" (2024).

    Raises `OptimizerError` for parameters that are not matrices: give them to AdamW.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import Muon
    >>> weight = Tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> optimizer = Muon([weight], lr=0.5, weight_decay=0.0)
    >>> _ = weight.sum().backward()
    >>> optimizer.step()
    >>> weight.shape
    (2, 2)
    """

    state_names = ("momentum_buffer",)
    rules = rules_with(
        momentum=below_one,
        ns_coefficients=several("three numbers", *[check_number] * 3),
        ns_steps=whole_above_zero,
        adjust_lr_fn=choice("original", "match_rms_adamw", None),
    )

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        maximize: bool = False,
    ) -> None: ...

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        for position, param in enumerate(settings["params"]):
            if param.ndim != 2:
                raise OptimizerError(
                    f"Muon: parameter {position} has shape {tuple(param.shape)}, and only matrices"
                    " can be made orthogonal; give it to AdamW"
                )

    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        velocity = moved(state["momentum_buffer"], gradient, group["momentum"])
        ahead = moved(velocity, gradient, group["momentum"]) if group["nesterov"] else velocity
        update = orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * _shape_factor(group["adjust_lr_fn"], *value.shape)
        return decayed(value, group) - rate * update, {"momentum_buffer": velocity}


def _shape_factor(kind: str | None, rows: Any, columns: Any) -> float:
    if kind == "match_rms_adamw":
        return 0.2 * sqrt(max(rows, columns))
    return sqrt(max(1.0, rows / columns))


def orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """A matrix whose singular values are all moved towards 1, by a Newton-Schulz iteration.

    Each step makes a singular value s into `a*s + b*s**3 + c*s**5`.
    """
    a, b, c = coefficients
    rows, columns = matrix.shape
    x = matrix.transpose() if rows > columns else matrix
    x = x / size_of(x).maximum(eps)
    for _ in range(steps):
        gram = x.matmul(x.transpose())
        x = a * x + (b * gram + c * gram.matmul(gram)).matmul(x)
    return x.transpose() if rows > columns else x
