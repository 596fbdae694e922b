"""Schedules of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, final

from ferrule.nn.optim.lr_scheduler.schedule import (
    LRScheduler,
    Schedule,
    require,
    require_no_capture,
)
from ferrule.nn.optim.optimizer import Optimizer


def _same_optimizer(scheduler: object, schedulers: Sequence[LRScheduler]) -> Optimizer:
    require(bool(schedulers), scheduler, "there are no schedules in it")
    for part in schedulers:
        kind = type(part).__name__
        require(isinstance(part, LRScheduler | _Combined), scheduler, f"{kind} is no schedule")
    optimizer = schedulers[0].optimizer
    for part in schedulers:
        require(part.optimizer is optimizer, scheduler, "the schedules have different optimisers")
    return optimizer


class _Combined(Schedule):
    """The base of schedules that combine several schedules of one optimiser."""

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        is_list = isinstance(schedulers, Iterable)
        require(is_list, self, f"{type(schedulers).__name__} is no list of schedules")
        self._schedulers = list(schedulers)
        self.optimizer = _same_optimizer(self, self._schedulers)
        self._last_lr = []

    def state_dict(self) -> dict[str, Any]:
        """All counts, and the states of the schedules."""
        states = [part.state_dict() for part in self._schedulers]
        return {**super().state_dict(), "_schedulers": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave, and sets the rates that it had last."""
        for part, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            part.load_state_dict(state)
        super().load_state_dict({**state_dict, "_schedulers": self._schedulers})


@final
class SequentialLR(_Combined):
    """One schedule after another: the next begins at each of the `milestones`.

    >>> from ferrule.nn.optim.lr_scheduler import SequentialLR
    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> from ferrule.nn.optim.lr_scheduler import ExponentialLR, LinearLR
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
        require(optimizer is self.optimizer, self, "the schedules have another optimiser")
        is_list = isinstance(milestones, Sequence)
        require(is_list, self, f"milestones is {milestones!r}; it must be a list of numbers")
        require(
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
        require_no_capture(self)
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
        require(known, self, "the schedules have another optimiser")
        self._last_lr = self._schedulers[-1].get_last_lr()

    def step(self) -> None:
        """A step of every schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._schedulers[-1].get_last_lr()
