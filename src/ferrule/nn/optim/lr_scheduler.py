"""Learning-rate schedules: PyTorch's names, settings and sequences.

A schedule says what the rate is after `t` steps of it, from the rate that the optimiser began with.
`step()` writes that into the optimiser's tensors, which a captured step reads. So it goes outside
the captured function; inside it raises `JitError`.

Where something else changed the rate in between, such as a second schedule, a schedule multiplies
what is there by what its own rate changed by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import cos, inf, pi
from typing import Any, ClassVar, final

import numpy as np

from ferrule.nn.optim.optimizer import Optimizer, OptimizerError, ParamGroup
from ferrule.tensor import Tensor


def _require(holds: bool, scheduler: object, problem: str) -> None:
    if not holds:
        raise OptimizerError(f"{type(scheduler).__name__}: {problem}")


def _rate_of(group: ParamGroup) -> float:
    rate: float = group["lr"].item()
    return rate


def _each(value: Any, groups: Sequence[ParamGroup], scheduler: object, name: str) -> list[Any]:
    """One value for each group of parameters."""
    values = list(value) if isinstance(value, list | tuple) else [value] * len(groups)
    problem = f"{len(values)} values of {name} do not fit {len(groups)} parameter groups"
    _require(len(values) == len(groups), scheduler, problem)
    return values


class LRScheduler(ABC):
    """What all schedules share; `last_epoch` is how many steps were taken.

    With `last_epoch` other than -1 a schedule continues there: the groups then need their
    "initial_lr", which the first schedule of an optimiser notes.
    """

    relative: ClassVar[bool] = True
    """Whether changes to the rate by others are kept."""
    unsaved: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        _require(
            isinstance(optimizer, Optimizer), self, f"{type(optimizer).__name__} is no Optimizer"
        )
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if last_epoch == -1:
                group.setdefault("initial_lr", _rate_of(group))
            _require("initial_lr" in group, self, "to continue, groups need their initial_lr")
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr = [_rate_of(group) for group in optimizer.param_groups]
        self.step()

    def get_last_lr(self) -> list[float]:
        """The rate of each group that the last step set."""
        return list(self._last_lr)

    def step(self) -> None:
        """Sets the rates for what follows; call it after `optimizer.step()`."""
        self.last_epoch += 1
        groups = self.optimizer.param_groups
        self._last_lr = [self._next(place, group) for place, group in enumerate(groups)]
        self._apply()

    def restart(self) -> None:
        """Begins anew, at the rates of the schedule's beginning."""
        self.last_epoch = 0
        places = range(len(self.base_lrs))
        self._last_lr = [self._rate(place, 0) for place in places]
        self._apply()

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
        Tensor.realize(*(group["lr"] for group in self.optimizer.param_groups))

    def _next(self, place: int, group: ParamGroup) -> float:
        """The new rate of a group."""
        own = self._rate(place, self.last_epoch)
        start = self.last_epoch == 0
        before = self.base_lrs[place] if start else self._rate(place, self.last_epoch - 1)
        now = _rate_of(group)
        if not self.relative or now == _rounded(before, group):
            return own
        last = self._last_lr[place]
        if now == _rounded(last, group):
            now = last  # before it was rounded
        return now * own / before if before else now

    @abstractmethod
    def _rate(self, place: int, t: int) -> float:
        """The rate of a group after `t` steps of this schedule alone."""

    def state_dict(self) -> dict[str, Any]:
        """All settings and counts, but for the optimiser and for functions."""
        return {name: value for name, value in vars(self).items() if name not in self.unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        unknown = sorted(set(state_dict) - set(self.state_dict()))
        _require(
            not unknown, self, f"the state has {', '.join(unknown)}, which is no setting of it"
        )
        vars(self).update(state_dict)
        self._apply()


def _rounded(rate: float, group: ParamGroup) -> float:
    """A rate as the group's tensor would hold it."""
    return float(np.asarray(rate, group["lr"].dtype.np))


class _Factor(LRScheduler):
    """A schedule that multiplies the rate that the optimiser began with."""

    def _rate(self, place: int, t: int) -> float:
        return self.base_lrs[place] * self._factor(t)

    @abstractmethod
    def _factor(self, t: int) -> float:
        """The rate after `t` steps over the first one."""


@final
class StepLR(_Factor):
    """Times `gamma` after every `step_size` steps.

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
        _require(step_size > 0, self, f"step_size is {step_size}; it must be above 0")
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma ** (t // self.step_size)


@final
class MultiStepLR(_Factor):
    """Times `gamma` at each of the `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma ** bisect_right(self.milestones, t)


@final
class ExponentialLR(_Factor):
    """Times `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.gamma**t


@final
class ConstantLR(_Factor):
    """Times `factor` for `total_iters` steps, and then no more."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        _require(0 <= factor <= 1, self, f"factor is {factor}; it must be between 0 and 1")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        return self.factor if t < self.total_iters else 1.0


@final
class LinearLR(_Factor):
    """From `start_factor` to `end_factor` of the rate in `total_iters` steps: a warm-up.

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
        _require(
            0 < start_factor <= 1, self, f"start_factor is {start_factor}; it must be in (0, 1]"
        )
        _require(0 <= end_factor <= 1, self, f"end_factor is {end_factor}; it must be in [0, 1]")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int) -> float:
        part = min(t / self.total_iters, 1.0) if self.total_iters else 1.0
        return self.start_factor + (self.end_factor - self.start_factor) * part


@final
class PolynomialLR(_Factor):
    """(1 - t / total_iters) ** power, down to 0."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
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
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        _require(T_max > 0, self, f"T_max is {T_max}; it must be above 0")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        return _half_cosine(self.base_lrs[place], self.eta_min, t / self.T_max)


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + cos(pi * part)) / 2


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


@final
class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines down to `eta_min`, of `T_0` steps, each `T_mult` times as long as the last."""

    relative = False

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        _require(T_0 > 0, self, f"T_0 is {T_0}; it must be above 0")
        _require(T_mult >= 1, self, f"T_mult is {T_mult}; it must be at least 1")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        length = self.T_0
        while t >= length and self.T_mult > 1:
            t -= length
            length *= self.T_mult
        return _half_cosine(self.base_lrs[place], self.eta_min, t % length / length)


@final
class LambdaLR(LRScheduler):
    """The rate times what a function, or one for each group, gives for the number of steps.

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
        self.lr_lambdas = _each(lr_lambda, optimizer.param_groups, self, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        rate: float = self.base_lrs[place] * self.lr_lambdas[place](t)
        return rate


@final
class OneCycleLR(LRScheduler):
    """Up from `max_lr / div_factor` to `max_lr`, and down to a `final_div_factor` of the start.

    The length is `total_steps`, or `epochs * steps_per_epoch`, and the rise takes `pct_start` of
    it; with `three_phase` the fall is as the rise, and a third phase goes on to the end.
    `cycle_momentum` moves the momentum, or the first of `betas`, the other way, in a tensor: make
    the schedule before the step is captured. Smith and Topin, "Super-Convergence" (2017).

    Raises `OptimizerError` for a step after the last.
    """

    relative = False

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        self.total_steps = self._length(total_steps, epochs, steps_per_epoch)
        _require(0 <= pct_start <= 1, self, f"pct_start is {pct_start}; it must be in [0, 1]")
        _require(
            anneal_strategy in ("cos", "linear"),
            self,
            f"anneal_strategy is {anneal_strategy!r}; it must be 'cos' or 'linear'",
        )
        self.anneal_strategy = anneal_strategy
        self.ends = self._phases(pct_start, three_phase)
        tops = _each(max_lr, groups, self, "max_lr")
        starts = [top / div_factor for top in tops]
        self.rates = [
            self._points(start, top, start / final_div_factor, three_phase)
            for start, top in zip(starts, tops, strict=True)
        ]
        self.momentum_name = self._momentum_name(groups) if cycle_momentum else ""
        highs = _each(max_momentum, groups, self, "max_momentum")
        lows = _each(base_momentum, groups, self, "base_momentum")
        self.momenta = [
            self._points(high, low, high, three_phase)
            for high, low in zip(highs, lows, strict=True)
        ]
        if last_epoch == -1:
            for group, start in zip(groups, starts, strict=True):
                group["initial_lr"] = start
        super().__init__(optimizer, last_epoch)

    def _length(self, total: int | None, epochs: int | None, per_epoch: int | None) -> int:
        if total is None and epochs is not None and per_epoch is not None:
            total = epochs * per_epoch
        _require(total is not None, self, "give total_steps, or epochs and steps_per_epoch")
        assert total is not None
        _require(total > 0, self, f"{total} steps are no cycle; it must be at least 1")
        return total

    def _phases(self, part: float, three: bool) -> list[float]:
        """The steps at which the phases end."""
        rise = part * self.total_steps - 1
        last = self.total_steps - 1
        return [rise, 2 * part * self.total_steps - 2, last] if three else [rise, last]

    @staticmethod
    def _points(start: float, middle: float, end: float, three: bool) -> list[float]:
        return [start, middle, start, end] if three else [start, middle, end]

    def _momentum_name(self, groups: Sequence[ParamGroup]) -> str:
        name = "betas" if "betas" in groups[0] else "momentum"
        _require(
            name in groups[0] and bool(groups[0][name]),
            self,
            "the optimiser has no momentum to cycle; pass cycle_momentum=False",
        )
        for group in groups:
            group.as_tensor(name)
        return name

    def _between(self, points: Sequence[float], t: int) -> float:
        _require(
            t < self.total_steps, self, f"step {t} is after the last of {self.total_steps} steps"
        )
        anneal = _half_cosine if self.anneal_strategy == "cos" else _line
        begin = 0.0
        phase = 0
        while t > self.ends[phase]:
            begin = self.ends[phase]
            phase += 1
        length = self.ends[phase] - begin
        part = (t - begin) / length if length else 1.0
        return anneal(points[phase], points[phase + 1], part)

    def _rate(self, place: int, t: int) -> float:
        return self._between(self.rates[place], t)

    def _apply(self) -> None:
        super()._apply()
        if not self.momentum_name:
            return
        for group, points in zip(self.optimizer.param_groups, self.momenta, strict=True):
            momentum = self._between(points, self.last_epoch)
            now = group[self.momentum_name]
            group[self.momentum_name] = (momentum, *now[1:]) if isinstance(now, tuple) else momentum
            Tensor.realize(now[0] if isinstance(now, tuple) else now)


# Schedules of schedules


def _same_optimizer(scheduler: object, schedulers: Sequence[LRScheduler]) -> Optimizer:
    _require(bool(schedulers), scheduler, "there are no schedules in it")
    optimizer = schedulers[0].optimizer
    for part in schedulers:
        _require(part.optimizer is optimizer, scheduler, "the schedules have different optimisers")
    return optimizer


class _Combined:
    """What holds several schedules of one optimiser."""

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        self._schedulers = list(schedulers)
        self.optimizer = _same_optimizer(self, self._schedulers)
        self._last_lr: list[float] = []

    def get_last_lr(self) -> list[float]:
        """The rate of each group that the last step set."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """All counts, and the states of the schedules."""
        own = {name: value for name, value in vars(self).items() if name != "optimizer"}
        return {**own, "_schedulers": [part.state_dict() for part in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        own = {name: value for name, value in state_dict.items() if name != "_schedulers"}
        vars(self).update(own)
        for part, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            part.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


@final
class SequentialLR(_Combined):
    """One schedule after another: the next begins at each of the `milestones`.

    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> warmup = LinearLR(optimizer, start_factor=0.5, total_iters=2)
    >>> decay = ExponentialLR(optimizer, gamma=0.25)
    >>> schedule = SequentialLR(optimizer, [warmup, decay], milestones=[2])
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(optimizer.lr.item())
    ...     schedule.step()
    >>> rates
    [0.5, 0.75, 1.0, 0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        super().__init__(schedulers)
        _require(optimizer is self.optimizer, self, "the schedules have another optimiser")
        _require(
            len(milestones) == len(schedulers) - 1,
            self,
            f"{len(schedulers)} schedules need {len(schedulers) - 1} milestones, not"
            f" {len(milestones)}",
        )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for part in schedulers:
            part.last_epoch -= 1
        first = schedulers[bisect_right(self._milestones, 0)]
        first.restart()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:
        """Sets the rates for what follows; call it after `optimizer.step()`."""
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            scheduler.restart()
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


@final
class ChainedScheduler(_Combined):
    """Several schedules at once: their factors are multiplied."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        super().__init__(schedulers)
        known = optimizer is None or optimizer is self.optimizer
        _require(known, self, "the schedules have another optimiser")
        self._last_lr = self._schedulers[-1].get_last_lr()

    def step(self) -> None:
        """A step of every schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._schedulers[-1].get_last_lr()


# Schedules that watch


@final
class ReduceLROnPlateau:
    """Times `factor` once a measure has not improved for more than `patience` steps.

    "min" wants it to fall, "max" to rise; better is by more than `threshold`, a part of the best
    value so far ("rel") or absolute ("abs"). After a reduction, `cooldown` steps do not count.

    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 3.0, 3.0): schedule.step(loss)
    >>> optimizer.lr.item()
    0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        _require(factor < 1, self, f"factor is {factor}; it must be below 1")
        _require(mode in ("min", "max"), self, f"mode is {mode!r}; it must be 'min' or 'max'")
        _require(
            threshold_mode in ("rel", "abs"),
            self,
            f"threshold_mode is {threshold_mode!r}; it must be 'rel' or 'abs'",
        )
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = _each(min_lr, optimizer.param_groups, self, "min_lr")
        self.eps = eps
        self.best = inf if mode == "min" else -inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self.last_epoch = 0
        self._last_lr = [_rate_of(group) for group in optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """The rate of each group after the last step."""
        return list(self._last_lr)

    def step(self, metrics: float | Tensor) -> None:
        """Notes a measure, such as the loss on a validation set."""
        current = float(metrics.item() if isinstance(metrics, Tensor) else metrics)
        self.last_epoch += 1
        if self._is_better(current):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return sign * value > sign * self.best + self.threshold
        return sign * value > sign * self.best * (1 + sign * self.threshold)

    def _reduce(self) -> None:
        for place, group in enumerate(self.optimizer.param_groups):
            now = _rate_of(group)
            before = self._last_lr[place]
            # Exactly what was set, if nothing else has changed it.
            old = before if now == _rounded(before, group) else now
            rate = max(old * self.factor, self.min_lrs[place])
            self._last_lr[place] = old
            if old - rate > self.eps:
                group["lr"] = self._last_lr[place] = rate
            Tensor.realize(group["lr"])

    def state_dict(self) -> dict[str, Any]:
        """All settings and counts."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        vars(self).update(state_dict)
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
