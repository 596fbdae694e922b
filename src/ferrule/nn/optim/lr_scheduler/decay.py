"""Schedules by a formula: steps, powers, lines, cosines, functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, final

from ferrule.base.callbacks import call_back
from ferrule.nn.optim.lr_scheduler.schedule import (
    Factor,
    LRScheduler,
    each,
    half_cosine,
    line,
    require,
    require_count,
    require_number,
    require_optimizer,
)
from ferrule.nn.optim.optimizer import Optimizer


@final
class StepLR(Factor):
    """Times `gamma` after every `step_size` steps.

    >>> from ferrule.nn.optim.lr_scheduler import StepLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(2): schedule.step()
    >>> optimizer.lr.item()
    0.5
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        require_count(self, step_size=step_size)
        require_number(self, gamma=gamma)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma ** (t // self.step_size)


@final
class MultiStepLR(Factor):
    """Times `gamma` at each of the `milestones`.

    >>> from ferrule.nn.optim.lr_scheduler import MultiStepLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = MultiStepLR(optimizer, milestones=[1, 3], gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 0.5, 0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        require_number(self, gamma=gamma)
        counts = list(milestones) if isinstance(milestones, Iterable) else [milestones]
        whole = isinstance(milestones, Iterable) and all(isinstance(t, Integral) for t in counts)
        require(whole, self, f"milestones is {milestones!r}; it must be a list of whole numbers")
        self.milestones = sorted(counts)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma ** bisect_right(self.milestones, t)


@final
class ExponentialLR(Factor):
    """Times `gamma` at every step.

    >>> from ferrule.nn.optim.lr_scheduler import ExponentialLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = ExponentialLR(optimizer, gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 0.25, 0.12]
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        require_number(self, gamma=gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma**t


@final
class ConstantLR(Factor):
    """Times `factor` for `total_iters` steps, and then no more.

    >>> from ferrule.nn.optim.lr_scheduler import ConstantLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = ConstantLR(optimizer, factor=0.5, total_iters=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [0.5, 0.5, 1.0, 1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        require_number(self, factor=factor, total_iters=total_iters)
        require(0 <= factor <= 1, self, f"factor is {factor}; it must be between 0 and 1")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.factor if t < self.total_iters else 1.0


@final
class LinearLR(Factor):
    """From `start_factor` to `end_factor` of the rate in `total_iters` steps: a warm-up.

    >>> from ferrule.nn.optim.lr_scheduler import LinearLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> warmup = LinearLR(optimizer, start_factor=0.25, total_iters=3)
    >>> for _ in range(2): warmup.step()
    >>> optimizer.lr.item()
    0.75
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        require_number(
            self, start_factor=start_factor, end_factor=end_factor, total_iters=total_iters
        )
        require(
            0 < start_factor <= 1, self, f"start_factor is {start_factor}; it must be in (0, 1]"
        )
        require(0 <= end_factor <= 1, self, f"end_factor is {end_factor}; it must be in [0, 1]")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        part = min(t / self.total_iters, 1.0) if self.total_iters else 1.0
        return line(self.start_factor, self.end_factor, part)


@final
class PolynomialLR(Factor):
    """(1 - t / total_iters) ** power, down to 0.

    >>> from ferrule.nn.optim.lr_scheduler import PolynomialLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = PolynomialLR(optimizer, total_iters=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 0.0, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        require_count(self, total_iters=total_iters)
        require_number(self, power=power)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        left: float = (1 - min(t, self.total_iters) / self.total_iters) ** self.power
        return left


@final
class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the rate down to `eta_min` in `T_max` steps, and back up in as many.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> from ferrule.nn.optim.lr_scheduler import CosineAnnealingLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = CosineAnnealingLR(optimizer, T_max=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 0.0, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        require_number(self, T_max=T_max, eta_min=eta_min)
        require(T_max > 0, self, f"T_max is {T_max}; it must be above 0")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        return half_cosine(self.base_lrs[place], self.eta_min, t / self.T_max)


@final
class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines down to `eta_min`, of `T_0` steps, each `T_mult` times as long as the last.

    >>> from ferrule.nn.optim.lr_scheduler import CosineAnnealingWarmRestarts
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = CosineAnnealingWarmRestarts(optimizer, T_0=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 1.0, 0.5]
    """

    relative = False

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        require_number(self, T_0=T_0, T_mult=T_mult, eta_min=eta_min)
        require(T_0 > 0, self, f"T_0 is {T_0}; it must be above 0")
        require(T_mult >= 1, self, f"T_mult is {T_mult}; it must be at least 1")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        length = self.T_0
        while t >= length and self.T_mult > 1:
            t -= length
            length *= self.T_mult
        return half_cosine(self.base_lrs[place], self.eta_min, t % length / length)


def _functions(lr_lambda: Any, optimizer: Optimizer, scheduler: object) -> list[Any]:
    """One function for each group of parameters."""
    require_optimizer(scheduler, optimizer)
    functions = each(lr_lambda, optimizer.param_groups, scheduler, "lr_lambda")
    for function in functions:
        problem = f"lr_lambda is {function!r}; it must be a function of the number of steps"
        require(callable(function), scheduler, problem)
    return functions


@final
class LambdaLR(LRScheduler):
    """The initial rate times `lr_lambda(steps)`, of one function or one for each group.

    >>> from ferrule.nn.optim.lr_scheduler import LambdaLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = LambdaLR(optimizer, lambda t: 1 / (1 + t))
    >>> schedule.step()
    >>> optimizer.lr.item()
    0.5
    """

    relative = False
    unsaved = ("optimizer", "lr_lambdas")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self.lr_lambdas = _functions(lr_lambda, optimizer, self)
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        rate: float = self.base_lrs[place] * call_back(self.lr_lambdas[place], t)
        return rate


@final
class MultiplicativeLR(LRScheduler):
    """The rate before times `lr_lambda(step)`, of one function or one for each group.

    >>> from ferrule.nn.optim.lr_scheduler import MultiplicativeLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = MultiplicativeLR(optimizer, lambda t: 0.5)
    >>> for _ in range(2): schedule.step()
    >>> optimizer.lr.item()
    0.25
    """

    unsaved = ("optimizer", "lr_lambdas")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self.lr_lambdas = _functions(lr_lambda, optimizer, self)
        self.products = [[1.0] for _ in self.lr_lambdas]  # of the first t factors
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        products, factor = self.products[place], self.lr_lambdas[place]
        while len(products) <= t:
            products.append(products[-1] * factor(len(products)))
        return self.base_lrs[place] * products[t]
