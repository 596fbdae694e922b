"""Optimisers: PyTorch's formulas, on lazy tensors.

`step()` builds the updates of all parameters and their state first and realises them together, so
that the scheduler may merge them into few kernels. All state lives in tensors, which makes a step
fit for `TinyJit`, and lets `get_state_dict(optimizer)` save it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from ferrule.dtype import DType, dtypes, promote
from ferrule.tensor import Tensor


class OptimizerError(ValueError):
    """An optimiser that cannot do what it is asked, such as a step without gradients."""


def _problem(param: object) -> str | None:
    """Why `param` cannot be optimised; None if it can."""
    if not isinstance(param, Tensor):
        return f"is {type(param).__name__}, not a Tensor; pass nn.state.get_parameters(model)"
    if not dtypes.is_float(param.dtype):
        return f"has dtype {param.dtype.name}, and only floats have gradients; leave it out"
    if not param.is_leaf:
        return "is computed from other tensors; optimise those, or pass its detach()"
    return None


def _distinct(name: str, params: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that are to be optimised, each once."""
    found: dict[int, Tensor] = {}
    for position, param in enumerate(params):
        if isinstance(param, Tensor) and param.requires_grad is False:
            continue  # a statistic, such as a running mean
        problem = _problem(param)
        if problem is not None:
            raise OptimizerError(f"{name}: parameter {position} {problem}")
        found[id(param)] = param
    if not found:
        raise OptimizerError(f"{name}: there are no parameters to optimise")
    return list(found.values())


def _at_least(name: str, setting: str, value: float, smallest: float) -> float:
    if not value >= smallest:
        raise OptimizerError(f"{name}: {setting} is {value}; it must be at least {smallest}")
    return value


def _below_one(name: str, setting: str, value: float) -> float:
    if not 0 <= value < 1:
        raise OptimizerError(f"{name}: {setting} is {value}; it must be in [0, 1)")
    return value


def _state_dtype(param: Tensor) -> DType:
    """Halves are too coarse to add small steps up in."""
    return promote(param.dtype, dtypes.float32)


def _zeros_for(params: Sequence[Tensor]) -> list[Tensor]:
    # Copied from the host: that needs no kernel, and so no compilation, for each shape.
    return [
        Tensor(np.zeros(param.shape, _state_dtype(param).np), device=param.device)
        for param in params
    ]


class Optimizer(ABC):
    """What all optimisers share: the parameters, the learning rate, and the order of a step.

    Duplicates among `params` count once. Raises `OptimizerError` for anything that is no float
    tensor, and for no parameters at all.
    """

    def __init__(self, params: Iterable[Tensor], lr: float | Tensor) -> None:
        self.params = _distinct(self._name, params)
        for param in self.params:
            param.requires_grad = True
        self._scalar_dtype = promote(*(_state_dtype(param) for param in self.params))
        self._lr = self._rate(lr)
        # What a captured step updates in place must have memory before it.
        Tensor.realize(*self.params)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _scalar(self, value: float) -> Tensor:
        """A tensor of one element with memory of its own."""
        return Tensor([value], dtype=self._scalar_dtype, device=self.params[0].device)

    def _rate(self, lr: float | Tensor) -> Tensor:
        if isinstance(lr, Tensor):
            return lr.detach().reshape(1).cast(self._scalar_dtype).clone()
        return self._scalar(_at_least(self._name, "lr", lr, 0.0))

    @property
    def lr(self) -> Tensor:
        """The learning rate, a tensor of one element.

        Setting it, to a number or a tensor of one element, copies the value into that tensor. A
        captured step reads it anew each time. A function that is captured may set it to one of its
        arguments.
        """
        return self._lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        # Copied from a tensor even if it is a number: a constant would be a new kernel each time.
        self._lr.assign(self._rate(value))

    def zero_grad(self) -> None:
        """Forgets all gradients, so that the next `backward()` starts afresh."""
        for param in self.params:
            param.grad = None

    def step(self) -> None:
        """Updates every parameter from its gradient, in place.

        Raises `OptimizerError` where a parameter has none; nothing is changed then.
        """
        gradients = [self._gradient(position) for position in range(len(self.params))]
        with Tensor.no_grad():
            written = self._update([_wide(gradient) for gradient in gradients])
        # The gradients too: they stay in `.grad`, and what they were made of is written over.
        Tensor.realize(*self.params, *written, *gradients)

    def _gradient(self, position: int) -> Tensor:
        param = self.params[position]
        if param.grad is None:
            raise OptimizerError(
                f"{self._name}.step: parameter {position}, of shape {tuple(param.shape)}, has no"
                " gradient; call loss.backward() first, or leave the parameter out"
            )
        return param.grad

    @abstractmethod
    def _update(self, gradients: list[Tensor]) -> list[Tensor]:
        """Assigns to all parameters and states, lazily; returns the states."""


def _wide(tensor: Tensor) -> Tensor:
    """Outside autograd, and in the type that steps are computed in."""
    return tensor.detach().cast(_state_dtype(tensor))


def _store(param: Tensor, value: Tensor) -> None:
    param.assign(value.cast(param.dtype))


@final
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Nesterov's if asked) and weight decay.

    >>> weight = Tensor([1.0, -1.0])
    >>> optimizer = SGD([weight], lr=0.5)
    >>> _ = (weight * weight).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.0, 0.0]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr)
        self.momentum = _at_least(self._name, "momentum", momentum, 0.0)
        self.weight_decay = _at_least(self._name, "weight_decay", weight_decay, 0.0)
        self.nesterov = nesterov
        if nesterov and momentum == 0:
            raise OptimizerError("SGD: nesterov needs a momentum above 0")
        self.velocities = _zeros_for(self.params) if momentum else []

    def _update(self, gradients: list[Tensor]) -> list[Tensor]:
        for position, (param, gradient) in enumerate(zip(self.params, gradients, strict=True)):
            if self.weight_decay:
                gradient = gradient + self.weight_decay * _wide(param)
            direction = self._direction(position, gradient) if self.momentum else gradient
            _store(param, _wide(param) - self._lr * direction)
        return self.velocities

    def _direction(self, position: int, gradient: Tensor) -> Tensor:
        velocity = self.velocities[position]
        moved = self.momentum * velocity + gradient
        velocity.assign(moved)
        return gradient + self.momentum * moved if self.nesterov else moved


class _Adam(Optimizer):
    """Adam with either kind of weight decay.

    The moving averages of the gradient and of its square start at zero, which biases them. The same
    average taken of the constant 1 is biased equally: dividing by it (`mean_weight`,
    `square_weight`, which are `1 - beta**t`) is the correction. It stays exact to rounding from the
    first step on, and needs no step counter outside the tensors.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(params, lr)
        self.betas = tuple(_below_one(self._name, "betas", beta) for beta in betas)
        self.eps = _at_least(self._name, "eps", eps, 0.0)
        self.weight_decay = _at_least(self._name, "weight_decay", weight_decay, 0.0)
        self.mean_weight = self._scalar(0.0)
        self.square_weight = self._scalar(0.0)
        self.means = _zeros_for(self.params)
        self.squares = _zeros_for(self.params)

    def _update(self, gradients: list[Tensor]) -> list[Tensor]:
        # First of all: whatever reads an old version has to run before it is written over.
        self.mean_weight.assign(_moved(self.mean_weight, 1.0, self.betas[0]))
        self.square_weight.assign(_moved(self.square_weight, 1.0, self.betas[1]))
        rate = self._lr / self.mean_weight
        root_weight = self.square_weight.sqrt()
        for position, gradient in enumerate(gradients):
            value, gradient = self._decayed(_wide(self.params[position]), gradient)
            mean = _moved(self.means[position], gradient, self.betas[0])
            square = _moved(self.squares[position], gradient * gradient, self.betas[1])
            size = square.sqrt() / root_weight + self.eps
            _store(self.params[position], value - rate * mean / size)
            self.means[position].assign(mean)
            self.squares[position].assign(square)
        return [*self.means, *self.squares, self.mean_weight, self.square_weight]

    @abstractmethod
    def _decayed(self, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The parameter and its gradient after weight decay."""


def _moved(average: Tensor, sample: Tensor | float, keep: float) -> Tensor:
    return keep * average + (1 - keep) * sample


@final
class Adam(_Adam):
    """Adam; weight decay is added to the gradient (L2), as in PyTorch's `Adam`.

    >>> weight = Tensor([1.0])
    >>> optimizer = Adam([weight], lr=0.25)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _decayed(self, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        if not self.weight_decay:
            return value, gradient
        return value, gradient + self.weight_decay * value


@final
class AdamW(_Adam):
    """Adam with decoupled weight decay: parameters shrink by `lr * weight_decay` at each step.

    >>> weight = Tensor([1.0])
    >>> optimizer = AdamW([weight], lr=0.25, weight_decay=1.0)
    >>> _ = (weight * 3).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _decayed(self, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        if not self.weight_decay:
            return value, gradient
        return value * (1 - self._lr * self.weight_decay), gradient
