"""The base class of learning-rate schedules, and checks that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import cos, pi
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from ferrule.base.calls import explain_constructor, one_of
from ferrule.device.capture import JitError, is_capturing, user_location
from ferrule.nn.optim.groups import OptimizerError, ParamGroup
from ferrule.nn.optim.optimizer import Optimizer
from ferrule.tensor import Tensor


def require(holds: bool, scheduler: object, problem: str) -> None:
    """Raise `OptimizerError` with the name of the schedule, unless the condition holds."""
    if not holds:
        raise OptimizerError(f"{type(scheduler).__name__}: {problem}")


def require_number(scheduler: object, **settings: Any) -> None:
    """`OptimizerError` for settings that are no numbers."""
    for name, value in settings.items():
        require(isinstance(value, Real), scheduler, f"{name} is {value!r}; it must be a number")


def require_count(scheduler: object, **settings: Any) -> None:
    """`OptimizerError` for settings that are no whole numbers above 0."""
    for name, value in settings.items():
        above = isinstance(value, Integral) and int(value) > 0
        problem = f"{name} is {value!r}; it must be a whole number above 0"
        require(above, scheduler, problem)


def require_one_of(scheduler: object, choices: Sequence[str], **settings: Any) -> None:
    """`OptimizerError` for settings that are none of some choices."""
    for name, value in settings.items():
        one_of(value, choices, f"{type(scheduler).__name__}: {name}", OptimizerError)


def require_optimizer(scheduler: object, optimizer: object) -> None:
    """Raise `OptimizerError` if a schedule is given anything but an optimiser."""
    kind = type(optimizer).__name__
    require(isinstance(optimizer, Optimizer), scheduler, f"{kind} is no Optimizer; pass one first")


def require_no_capture(scheduler: object) -> None:
    """Raise `JitError` in a capture: its replays would neither count steps nor compute rates."""
    if is_capturing():
        raise JitError(
            f"{user_location()}: {type(scheduler).__name__}.step() is called in a captured "
            "function, but counts in Python, which replays do not run; call it after the captured "
            "function: a captured optimizer.step() reads the new rate"
        )


def rate_of(group: ParamGroup) -> float:
    """The learning rate of a group as a number."""
    rate: float = group["lr"].item()
    return rate


def each(value: Any, groups: Sequence[ParamGroup], scheduler: object, name: str) -> list[Any]:
    """One value for each group of parameters."""
    values = list(value) if isinstance(value, list | tuple) else [value] * len(groups)
    problem = f"{len(values)} values of {name} do not fit {len(groups)} parameter groups"
    require(len(values) == len(groups), scheduler, problem)
    return values


class Schedule(ABC):
    """The base of all that sets the rates of an optimiser: the rates, and what is saved."""

    unsaved: ClassVar[tuple[str, ...]] = ("optimizer",)
    optimizer: Optimizer
    _last_lr: list[float]

    def __init_subclass__(cls) -> None:
        explain_constructor(cls)

    def get_last_lr(self) -> list[float]:
        """The rate of each group that the last step set."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """All settings and counts, but for the optimiser and for functions."""
        return {name: value for name, value in vars(self).items() if name not in self.unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        vars(self).update(state_dict)
        self._apply()

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
        Tensor.realize(*(group["lr"] for group in self.optimizer.param_groups))


class LRScheduler(Schedule):
    """The base of all schedules by a count; `last_epoch` is the number of steps that were taken.

    With `last_epoch` other than -1 a schedule continues there: the groups then need their
    "initial_lr", which the first schedule of an optimiser notes. Raises `OptimizerError` without
    it, and for anything that is no optimiser.
    """

    relative: ClassVar[bool] = True
    """True if changes to the rate by others are kept."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        require_optimizer(self, optimizer)
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            require("initial_lr" in group, self, "to continue, groups need their initial_lr")
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr = [rate_of(group) for group in optimizer.param_groups]
        self.step()

    def step(self) -> None:
        """Set the rates of the next steps; call it after `optimizer.step()`.

        Raises `JitError` in a function that is being captured.
        """
        require_no_capture(self)
        self.last_epoch += 1
        groups = self.optimizer.param_groups
        self._last_lr = [self._next(place, group) for place, group in enumerate(groups)]
        self._apply()

    def restart(self) -> None:
        """Begin again, at the initial rates of the schedule."""
        self.last_epoch = 0
        places = range(len(self.base_lrs))
        self._last_lr = [self._rate(place, 0) for place in places]
        self._apply()

    def _next(self, place: int, group: ParamGroup) -> float:
        """The new rate of a group."""
        own = self._rate(place, self.last_epoch)
        start = self.last_epoch == 0
        before = self.base_lrs[place] if start else self._rate(place, self.last_epoch - 1)
        now = rate_of(group)
        if not self.relative or now == rounded(before, group):
            return own
        last = self._last_lr[place]
        if now == rounded(last, group):
            now = last  # before it was rounded
        return now * own / before if before else now

    @abstractmethod
    def _rate(self, place: int, t: int) -> float:
        """The rate of a group after `t` steps of this schedule alone."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        is_dict = isinstance(state_dict, Mapping)
        require(is_dict, self, f"a state is a dict, not {type(state_dict).__name__}")
        unknown = sorted(set(state_dict) - set(self.state_dict()))
        require(not unknown, self, f"the state has {', '.join(unknown)}, which is no setting of it")
        super().load_state_dict(state_dict)


def rounded(rate: float, group: ParamGroup) -> float:
    """A rate as the group's tensor would hold it."""
    return float(np.asarray(rate, group["lr"].dtype.np))


class Factor(LRScheduler):
    """A schedule that multiplies the rate that the optimiser began with."""

    def _rate(self, place: int, t: int) -> float:
        return self.base_lrs[place] * self._factor(t)

    @abstractmethod
    def _factor(self, t: int) -> float:
        """The rate after `t` steps over the first one."""


def half_cosine(start: float, end: float, part: float) -> float:
    """From start to end along half a cosine, for a part from 0 to 1."""
    return end + (start - end) * (1 + cos(pi * part)) / 2


def line(start: float, end: float, part: float) -> float:
    """From start to end along a line, for a part from 0 to 1."""
    return start + (end - start) * part
