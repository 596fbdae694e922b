"""`GradScaler`: losses scaled up, so that small gradients are not rounded to zero in float16.

The scale, the count of good steps and whether a step is taken are tensors: a captured step decides
anew in each replay, without a round trip to the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ferrule.base.containers import mapped
from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes, promote
from ferrule.nn.optim import Optimizer
from ferrule.nn.optim.groups import OptimizerError
from ferrule.nn.optim.tensorwise import TensorWise
from ferrule.tensor import Tensor


@final
@dataclass
class _Gradients:
    """The gradients of an optimiser since the last `update`."""

    are_infinite: Tensor
    """A bool: True if one of them was infinite or NaN."""
    is_stepped: bool = False


@final
class GradScaler:
    """Scales losses up and gradients down again, and leaves steps out whose gradients overflowed.

    `init_scale` is the first factor. A step with infinite or NaN gradients is left out, and
    multiplies it by `backoff_factor`; `growth_interval` good steps in a row multiply it by
    `growth_factor`. Only float16 needs that; bfloat16 has the range of float32. `device` holds the
    factor; None is the default device. With `enabled=False` all methods do nothing but their part
    without scales.

    All optimisers of `nn.optim` but `LBFGS` can be stepped, also inside of a `TinyJit`.

    >>> import ferrule
    >>> from ferrule import Tensor, dtypes, nn
    >>> model, scaler = nn.Linear(3, 1), ferrule.amp.GradScaler(init_scale=256.0)
    >>> optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    >>> with ferrule.autocast(dtype=dtypes.float16):
    ...     loss = model(Tensor.ones(2, 3)).square().mean()
    >>> _ = scaler.scale(loss).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> scaler.get_scale()
    256.0
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1.0:
            raise ValueError(f"GradScaler: growth_factor is {growth_factor}; it must be above 1")
        if not 0.0 < backoff_factor < 1.0:
            raise ValueError(
                f"GradScaler: backoff_factor is {backoff_factor}; it must be between 0 and 1"
            )
        self._enabled = enabled
        device = device if enabled else None  # programs name one that may not be there
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._scale = Tensor([init_scale], device=device, dtype=dtypes.float32).realize()
        self._growth_tracker = Tensor([0], device=device, dtype=dtypes.int32).realize()
        self._found: dict[int, _Gradients] = {}
        """For each optimiser, by its `id`, that has been unscaled since the last `update`."""

    # -- a step ----------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale; or a list, tuple or dict of losses."""
        if not self._enabled:
            return outputs

        def scaled(value: Any) -> Any:
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise TypeError(f"GradScaler.scale: takes tensors, or lists of them, not {kind}")
            return value * self._scale.reshape(()).to(value.device)

        return mapped(outputs, scaled)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser by the scale, once before its `step`.

        Between both they may be looked at and clipped. `step` does it, if it was not done. Raises
        `OptimizerError` for a second time, and where no parameter has a gradient.
        """
        if not self._enabled:
            return
        known = self._found.get(id(optimizer))
        if known is not None:
            when = "after step()" if known.is_stepped else "twice"
            raise OptimizerError(
                f"GradScaler.unscale_: called {when} for one optimiser; call it once before"
                " step(), and update() after that"
            )
        finite = []
        with Tensor.no_grad():
            # In float64, since a target may compute inverses of float32 inexactly.
            inverse = self._scale.cast(dtypes.float64).reciprocal()
            factor = inverse.cast(dtypes.float32).reshape(())
            for param in optimizer.params:
                slope = param.grad
                if slope is None:
                    continue
                wide = slope.cast(promote(slope.dtype, dtypes.float32))
                param.grad = (wide * factor.to(slope.device)).cast(slope.dtype)
                finite.append(slope.isfinite().all().to(self._scale.device))
            if not finite:
                raise OptimizerError(
                    "GradScaler.unscale_: no parameter of the optimiser has a gradient; call"
                    " scaler.scale(loss).backward() first"
                )
            self._found[id(optimizer)] = _Gradients(~Tensor.stack(*finite).all())

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step()`, unless a gradient is infinite or NaN: then nothing changes.

        An optimiser of a class of your own reads that back to the host. Raises `OptimizerError` for
        a second step before `update`, and for a closure.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or kwargs:
            raise OptimizerError("GradScaler.step: closures are not supported; leave it out")
        known = self._found.get(id(optimizer))
        if known is not None and known.is_stepped:
            raise OptimizerError(
                "GradScaler.step: called twice for one optimiser; call update() in between"
            )
        if known is None:
            self.unscale_(optimizer)
            known = self._found[id(optimizer)]
        known.is_stepped = True
        if isinstance(optimizer, TensorWise):
            return optimizer.step_unless(known.are_infinite)
        return None if known.are_infinite.item() else optimizer.step()

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Make the scale what the steps since the last call ask for, or `new_scale`.

        Raises `OptimizerError` if there was no step, and none is given.
        """
        if not self._enabled:
            return
        with Tensor.no_grad():
            scale, tracker = self._scale, self._growth_tracker
            if new_scale is not None:
                scale.assign(_number(new_scale, scale))
            elif not self._found:
                raise OptimizerError("GradScaler.update: there was no step; call step() before")
            else:
                found = [gradients.are_infinite for gradients in self._found.values()]
                is_infinite = Tensor.stack(*found).any()
                count = is_infinite.where(0, tracker + 1)
                is_due = count >= self._growth_interval
                grown = scale * self._growth_factor
                grown = (is_due & grown.isfinite()).where(grown, scale)
                tracker.assign(is_due.where(0, count).cast(tracker.dtype))
                scale.assign(is_infinite.where(scale * self._backoff_factor, grown))
            Tensor.realize(scale, tracker)
        self._found.clear()

    # -- settings --------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """True if losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale, read back to the host; 1 if it is not enabled."""
        return float(self._scale.item()) if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """The factor after `growth_interval` good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor after `growth_interval` good steps."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor after a step that was left out."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor after a step that was left out."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of good steps in a row after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of good steps in a row after which the scale grows."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """The scale and the settings as numbers, as in PyTorch; empty if it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker.item(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict()`, or that of PyTorch's, gave.

        Raises `OptimizerError` for a state that lacks something.
        """
        if not self._enabled:
            return
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        lacking = [name for name in names if name not in state_dict]
        if lacking:
            raise OptimizerError(
                f"GradScaler.load_state_dict: the state lacks {', '.join(lacking)}; it may be that"
                " of a scaler that was not enabled"
            )
        self._growth_factor = float(state_dict["growth_factor"])
        self._backoff_factor = float(state_dict["backoff_factor"])
        self._growth_interval = int(state_dict["growth_interval"])
        with Tensor.no_grad():
            self._scale.assign(_number(state_dict["scale"], self._scale))
            tracker = self._growth_tracker
            tracker.assign(_number(state_dict["_growth_tracker"], tracker))
        Tensor.realize(self._scale, self._growth_tracker)


def _number(value: float | Tensor, like: Tensor) -> Tensor:
    """A number as a tensor like another of one element."""
    tensor = value.detach() if isinstance(value, Tensor) else Tensor([value])
    return tensor.reshape(1).cast(like.dtype).to(like.device)
