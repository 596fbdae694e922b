"""Schedules that watch a measure."""

from __future__ import annotations

from math import inf
from numbers import Real
from typing import final

from ferrule.nn.optim.lr_scheduler.schedule import (
    Schedule,
    each,
    rate_of,
    require,
    require_no_capture,
    require_number,
    require_one_of,
    require_optimizer,
    rounded,
)
from ferrule.nn.optim.optimizer import Optimizer
from ferrule.tensor import Tensor


@final
class ReduceLROnPlateau(Schedule):
    """Times `factor` once a measure has not improved for more than `patience` steps.

    "min" wants it to fall, "max" to rise; better is by more than `threshold`, a part of the best
    value so far ("rel") or absolute ("abs"). After a reduction, `cooldown` steps do not count. The
    rates and the state are read as those of an `LRScheduler`.

    >>> from ferrule.nn.optim.lr_scheduler import ReduceLROnPlateau
    >>> from ferrule import Tensor
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
        require_optimizer(self, optimizer)
        require_number(self, factor=factor, patience=patience, threshold=threshold, eps=eps)
        require(factor < 1, self, f"factor is {factor}; it must be below 1")
        require_one_of(self, ("min", "max"), mode=mode)
        require_one_of(self, ("rel", "abs"), threshold_mode=threshold_mode)
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = each(min_lr, optimizer.param_groups, self, "min_lr")
        self.eps = eps
        self.best = inf if mode == "min" else -inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self.last_epoch = 0
        self._last_lr = [rate_of(group) for group in optimizer.param_groups]

    def step(self, metrics: float | Tensor) -> None:
        """Notes a measure, such as the loss on a validation set."""
        require_no_capture(self)
        value = metrics.item() if isinstance(metrics, Tensor) else metrics
        require(isinstance(value, Real), self, f"the measure is {value!r}; it must be a number")
        current = float(value)
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
            now = rate_of(group)
            before = self._last_lr[place]
            # Exactly what was set, if nothing else has changed it.
            old = before if now == rounded(before, group) else now
            rate = max(old * self.factor, self.min_lrs[place])
            self._last_lr[place] = old
            if old - rate > self.eps:
                group["lr"] = self._last_lr[place] = rate
            Tensor.realize(group["lr"])
