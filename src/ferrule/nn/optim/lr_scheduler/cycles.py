"""Schedules that go up and down, and move the momentum the other way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import final

from ferrule.nn.optim.groups import ParamGroup
from ferrule.nn.optim.lr_scheduler.schedule import (
    LRScheduler,
    each,
    half_cosine,
    line,
    require,
    require_one_of,
)
from ferrule.nn.optim.optimizer import Optimizer
from ferrule.tensor import Tensor


class _Cycle(LRScheduler):
    """A schedule that may set the momentum as well, or the first of `betas`."""

    relative = False

    def __init__(
        self, optimizer: Optimizer, starts: Sequence[float], cycle_momentum: bool, last_epoch: int
    ) -> None:
        groups = optimizer.param_groups
        self.momentum_name = self._name_of_momentum(groups) if cycle_momentum else ""
        if last_epoch == -1:
            for group, start in zip(groups, starts, strict=True):
                group["initial_lr"] = start
        super().__init__(optimizer, last_epoch)

    def _name_of_momentum(self, groups: Sequence[ParamGroup]) -> str:
        name = "betas" if "betas" in groups[0] else "momentum"
        require(
            name in groups[0] and bool(groups[0][name]),
            self,
            "the optimiser has no momentum to cycle; pass cycle_momentum=False",
        )
        for group in groups:
            group.as_tensor(name)
        return name

    def _apply(self) -> None:
        super()._apply()
        if not self.momentum_name:
            return
        for place, group in enumerate(self.optimizer.param_groups):
            momentum = self._momentum(place, self.last_epoch)
            now = group[self.momentum_name]
            group[self.momentum_name] = (momentum, *now[1:]) if isinstance(now, tuple) else momentum
            Tensor.realize(now[0] if isinstance(now, tuple) else now)

    @abstractmethod
    def _momentum(self, place: int, t: int) -> float:
        """The momentum of a group after `t` steps."""


@final
class OneCycleLR(_Cycle):
    """Up from `max_lr / div_factor` to `max_lr`, and down to a `final_div_factor` of the start.

    The length is `total_steps`, or `epochs * steps_per_epoch`, and the rise takes `pct_start` of
    it; with `three_phase` the fall is as the rise, and a third phase goes on to the end.
    `cycle_momentum` moves the momentum, or the first of `betas`, the other way, in a tensor: make
    the schedule before the step is captured. Smith and Topin, "Super-Convergence" (2017).

    `step` may be called as often, after each step of the optimiser, and leaves the last rate then.
    Raises `OptimizerError` for more calls.

    >>> from ferrule.nn.optim.lr_scheduler import OneCycleLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = OneCycleLR(optimizer, max_lr=1.0, total_steps=4, cycle_momentum=False)
    >>> rates = []
    >>> for _ in range(3):
    ...     rates.append(round(optimizer.lr.item(), 2))
    ...     schedule.step()
    >>> rates
    [0.04, 0.81, 0.28]
    """

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
        require(0 <= pct_start <= 1, self, f"pct_start is {pct_start}; it must be in [0, 1]")
        require_one_of(self, ("cos", "linear"), anneal_strategy=anneal_strategy)
        self.anneal_strategy = anneal_strategy
        self.ends = self._phases(pct_start, three_phase)
        tops = each(max_lr, groups, self, "max_lr")
        starts = [top / div_factor for top in tops]
        self.rates = [
            self._points(start, top, start / final_div_factor, three_phase)
            for start, top in zip(starts, tops, strict=True)
        ]
        highs = each(max_momentum, groups, self, "max_momentum")
        lows = each(base_momentum, groups, self, "base_momentum")
        self.momenta = [
            self._points(high, low, high, three_phase)
            for high, low in zip(highs, lows, strict=True)
        ]
        super().__init__(optimizer, starts, cycle_momentum, last_epoch)

    def _length(self, total: int | None, epochs: int | None, per_epoch: int | None) -> int:
        if total is None and epochs is not None and per_epoch is not None:
            total = epochs * per_epoch
        require(total is not None, self, "give total_steps, or epochs and steps_per_epoch")
        assert total is not None
        require(total > 0, self, f"{total} steps are no cycle; it must be at least 1")
        return total

    def _phases(self, part: float, three: bool) -> list[float]:
        """The steps at which the phases end."""
        rise = part * self.total_steps - 1
        last = self.total_steps - 1
        return [rise, 2 * part * self.total_steps - 2, last] if three else [rise, last]

    @staticmethod
    def _points(start: float, middle: float, end: float, three: bool) -> list[float]:
        return [start, middle, start, end] if three else [start, middle, end]

    def _between(self, points: Sequence[float], t: int) -> float:
        require(
            t <= self.total_steps, self, f"step {t} is after the last of {self.total_steps} steps"
        )
        anneal = half_cosine if self.anneal_strategy == "cos" else line
        begin = 0.0
        phase = 0
        t = min(t, self.total_steps - 1)
        while t > self.ends[phase]:
            begin = self.ends[phase]
            phase += 1
        length = self.ends[phase] - begin
        part = (t - begin) / length if length else 1.0
        return anneal(points[phase], points[phase + 1], part)

    def _rate(self, place: int, t: int) -> float:
        return self._between(self.rates[place], t)

    def _momentum(self, place: int, t: int) -> float:
        return self._between(self.momenta[place], t)


@final
class CyclicLR(_Cycle):
    """Up from `base_lr` to `max_lr` in `step_size_up` steps, down in `step_size_down`, and again.

    Heights are the same with mode "triangular", half of the last cycle's with "triangular2", and
    times `gamma` at every step with "exp_range"; or times what `scale_fn` gives, for the number of
    the cycle, from 1, or of the step, as `scale_mode` ("cycle", "iterations") says.
    `cycle_momentum` moves the momentum, or the first of `betas`, from `max_momentum` down to
    `base_momentum` and back, in a tensor: make the schedule before the step is captured. Smith,
    "Cyclical Learning Rates for Training Neural Networks" (2015).

    >>> from ferrule.nn.optim.lr_scheduler import CyclicLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = CyclicLR(optimizer, 0.25, 0.75, step_size_up=2, cycle_momentum=False)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(optimizer.lr.item())
    ...     schedule.step()
    >>> rates
    [0.25, 0.5, 0.75, 0.5, 0.25]
    """

    unsaved = ("optimizer", "scale_fn")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[int], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        step_size_down = step_size_up if step_size_down is None else step_size_down
        sizes = f"step_size_up is {step_size_up}, step_size_down {step_size_down}"
        require(step_size_up > 0 < step_size_down, self, f"{sizes}; they must be above 0")
        if scale_fn is None:
            require_one_of(self, ("triangular", "triangular2", "exp_range"), mode=mode)
        require_one_of(self, ("cycle", "iterations"), scale_mode=scale_mode)
        self.rise, self.length = step_size_up, step_size_up + step_size_down
        self.mode, self.gamma = mode, gamma
        self.scale_fn, self.scale_mode = scale_fn, scale_mode
        self.max_lrs = each(max_lr, groups, self, "max_lr")
        self.base_momenta = each(base_momentum, groups, self, "base_momentum")
        self.max_momenta = each(max_momentum, groups, self, "max_momentum")
        starts = each(base_lr, groups, self, "base_lr")
        super().__init__(optimizer, starts, cycle_momentum, last_epoch)

    def _rate(self, place: int, t: int) -> float:
        low, high = self.base_lrs[place], float(self.max_lrs[place])
        return low + (high - low) * self._height(t)

    def _momentum(self, place: int, t: int) -> float:
        low, high = float(self.base_momenta[place]), float(self.max_momenta[place])
        return high - (high - low) * self._height(t)

    def _height(self, t: int) -> float:
        """Where between the ends step `t` is, from 0 to 1."""
        cycle, step = divmod(t, self.length)
        fall = self.length - self.rise
        part = step / self.rise if step <= self.rise else (self.length - step) / fall
        return part * self._scale(cycle + 1, t)

    def _scale(self, cycle: int, t: int) -> float:
        if self.scale_fn is not None:
            return self.scale_fn(cycle if self.scale_mode == "cycle" else t)
        if self.mode == "triangular2":
            return 0.5 ** (cycle - 1)
        return self.gamma**t if self.mode == "exp_range" else 1.0
