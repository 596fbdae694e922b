"""Averages of weights over training: exponential (EMA), and equal (stochastic weight averaging)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Final, TypeAlias, final

from ferrule.base.callbacks import call_back
from ferrule.ir.dtype import dtypes
from ferrule.nn.module import Module
from ferrule.nn.normalization import BatchNorm
from ferrule.nn.optim.groups import OptimizerError, ParamGroup
from ferrule.nn.optim.lr_scheduler.schedule import (
    LRScheduler,
    each,
    half_cosine,
    line,
    rate_of,
    require,
    require_one_of,
    rounded,
)
from ferrule.nn.optim.optimizer import Optimizer
from ferrule.nn.state.model import get_state_dict, parts_of
from ferrule.tensor import Tensor

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

Average: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Averages: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


# Averages


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """The function that makes `decay * average + (1 - decay) * now` of an average and a value.

    Raises `OptimizerError` for a `decay` outside of 0 to 1.
    """
    if not 0.0 <= decay <= 1.0:
        raise OptimizerError(f"get_ema_avg_fn: decay is {decay}; it must be from 0 to 1")

    def ema(averaged: Tensor, now: Tensor, _: Tensor) -> Tensor:
        return averaged + (now - averaged) * (1 - decay)

    return ema


def get_swa_avg_fn() -> Average:
    """The function that makes the mean of all values so far of an average and a value."""

    def swa(averaged: Tensor, now: Tensor, count: Tensor) -> Tensor:
        return averaged + (now - averaged) / (count + 1)

    return swa


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` for lists of tensors, of which it writes the first.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim.swa_utils import get_ema_multi_avg_fn
    >>> averages = [Tensor([1.0])]
    >>> get_ema_multi_avg_fn(0.75)(averages, [Tensor([2.0])], Tensor(1))
    >>> averages[0].tolist()
    [1.25]
    """
    return _for_each(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """`get_swa_avg_fn` for lists of tensors, of which it writes the first."""
    return _for_each(get_swa_avg_fn())


def _for_each(average: Average) -> Averages:
    def averages(averaged: Sequence[Tensor], now: Sequence[Tensor], count: Tensor) -> None:
        for one, value in zip(averaged, now, strict=True):
            one.assign(call_back(average, one, value, count.to(one.device)).cast(one.dtype))

    return averages


@final
class AveragedModel(Module):
    """A copy of a model whose parameters are averages of that model's.

    `update_parameters(model)` takes the values of now into the average, after a step of the
    optimiser; in a captured step, too. The average is the mean of all values; with
    `multi_avg_fn=get_ema_multi_avg_fn(0.999)` an exponential one. `avg_fn(averaged, now, count)`
    gives an average of one's own, and `multi_avg_fn` writes it into the first of two lists. Buffers
    are copied, or averaged with `use_buffers`. The model may be any object; its parameters are then
    all of its tensors that require a gradient.

    >>> from ferrule import Tensor, nn
    >>> from ferrule.nn.optim.swa_utils import AveragedModel
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.assign([[1.0]])
    >>> average = AveragedModel(model)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = model.weight.assign([[value]])
    ...     average.update_parameters(model)
    >>> average(Tensor([[10.0]])).tolist()
    [[30.0]]
    """

    n_averaged: Tensor

    _shown = ""

    def __init__(
        self,
        model: Any,
        device: str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise OptimizerError("AveragedModel: avg_fn and multi_avg_fn exclude each other")
        self.module = deepcopy(model)
        for tensor in get_state_dict(self.module).values():
            tensor.grad = None
            if device is not None:
                tensor.replace(tensor.detach().to(device))
        self.register_buffer("n_averaged", Tensor(0, dtype=dtypes.int64, device=device).realize())
        self.use_buffers = use_buffers
        self._averages = multi_avg_fn or _for_each(avg_fn or get_swa_avg_fn())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the averaged model."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Any) -> None:
        """Take the parameters of a model into the average.

        Raises `OptimizerError` for a model with other tensors.
        """
        averaged, now = get_state_dict(self.module), get_state_dict(model)
        if averaged.keys() != now.keys():
            names = ", ".join(sorted(averaged.keys() ^ now.keys())[:5])
            raise OptimizerError(f"AveragedModel: the models differ in {names}")
        distinct = {id(averaged[name]): name for name in averaged}
        taken: list[str] = []
        copied: list[str] = []
        for name in distinct.values():
            is_taken = self.use_buffers or bool(now[name].requires_grad)
            (taken if is_taken else copied).append(name)
        with Tensor.no_grad():
            count = self.n_averaged
            own = [averaged[name].detach() for name in taken]
            new = [now[name].detach().to(averaged[name].device) for name in taken]
            call_back(self._averages, own, new, count)
            for average, value in zip(own, new, strict=True):
                is_first = (count == 0).to(average.device)
                average.assign(is_first.where(value.cast(average.dtype), average))
            for name in copied:
                target = averaged[name].detach()
                target.assign(now[name].detach().to(target.device).cast(target.dtype))
            count.assign(count + 1)
            Tensor.realize(count, *averaged.values())


# What goes with it


def update_bn(loader: Iterable[Any], model: Any, device: str | None = None) -> None:
    """Compute the statistics of all batch normalisations anew, from the batches of a loader.

    Averaged weights do not fit averaged statistics. A batch is a tensor, or a list or tuple that
    begins with one, which goes to `device`. The model is called on each, as in training.

    >>> from ferrule import Tensor, nn
    >>> from ferrule.nn.optim.swa_utils import update_bn
    >>> layer = nn.BatchNorm1d(1)
    >>> update_bn([Tensor([[1.0], [3.0]]), Tensor([[2.0], [6.0]])], layer)
    >>> layer.running_mean.tolist()
    [3.0]
    """
    layers = [
        part for part in parts_of(model) if isinstance(part, BatchNorm) and part.track_running_stats
    ]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    with Tensor.no_grad():
        for layer in layers:
            layer.momentum = None  # all batches count the same
            layer.running_mean.assign(layer.running_mean.zeros_like())
            layer.running_var.assign(layer.running_var.ones_like())
            layer.num_batches_tracked.assign(layer.num_batches_tracked.zeros_like())
    modes = [(part, part._beside) for part in parts_of(model) if isinstance(part, Module)]
    try:
        for part, _ in modes:
            part.training = True
        with Tensor.no_grad(), Tensor.train():
            for batch in loader:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                call_back(model, x if device is None else x.to(device))
                Tensor.realize(*[tensor for layer in layers for tensor in layer.buffers()])
    finally:
        for part, beside in modes:
            part.training = None if beside is None else beside.mode
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


_STRATEGIES: Final = {"cos": half_cosine, "linear": line}


@final
class SWALR(LRScheduler):
    """From the rate that other schedules left to `swa_lr`, in `anneal_epochs` steps; then constant.

    `swa_lr` is one rate, or one for each group; `anneal_strategy` is "cos" or "linear".

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import SGD
    >>> from ferrule.nn.optim.swa_utils import SWALR
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = SWALR(optimizer, swa_lr=0.5, anneal_epochs=2, anneal_strategy="linear")
    >>> rates = []
    >>> for _ in range(3):
    ...     schedule.step()
    ...     rates.append(schedule.get_last_lr()[0])
    >>> rates
    [0.75, 0.5, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        require_one_of(self, tuple(_STRATEGIES), anneal_strategy=anneal_strategy)
        is_count = isinstance(anneal_epochs, int) and anneal_epochs >= 0
        require(is_count, self, f"anneal_epochs is {anneal_epochs!r}; it must be 0 or more")
        self.swa_lrs: list[float] = each(swa_lr, optimizer.param_groups, self, "swa_lr")
        self.anneal_epochs = anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _part(self, t: int) -> float:
        """The share of the final rate after `t` steps."""
        if not self.anneal_epochs:
            return 1.0
        return _STRATEGIES[self.anneal_strategy](0.0, 1.0, min(1.0, t / self.anneal_epochs))

    def _rate(self, place: int, t: int) -> float:
        part = self._part(t)
        return self.swa_lrs[place] * part + self.base_lrs[place] * (1 - part)

    def _next(self, place: int, group: ParamGroup) -> float:
        # The rate of now is what the steps so far made of the one at the start, which others set.
        now, last = rate_of(group), self._last_lr[place]
        if now == rounded(last, group):
            now = last
        goal, before = self.swa_lrs[place], self._part(max(0, self.last_epoch - 1))
        start = goal if before == 1.0 else (now - before * goal) / (1 - before)
        part = self._part(self.last_epoch)
        return goal * part + start * (1 - part)
