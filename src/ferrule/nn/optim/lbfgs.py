"""A quasi-Newton method: `LBFGS`, whose steps evaluate the loss as often as they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ferrule.base.callbacks import call_back
from ferrule.device.capture import JitError, is_capturing
from ferrule.ir.dtype import promote
from ferrule.nn.optim.groups import (
    OptimizerError,
    ParamGroup,
    Params,
    adopted,
    at_least_one,
    check_number,
    choice,
    or_none,
    rules_with,
    state_dtype,
    whole_above_zero,
)
from ferrule.nn.optim.linesearch import Trial, strong_wolfe
from ferrule.nn.optim.optimizer import Optimizer, takes_settings
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of several tensors as one vector, in the widest type that steps need."""
    dtype = promote(*(state_dtype(tensor) for tensor in tensors))
    parts = [tensor.detach().reshape(-1).cast(dtype) for tensor in tensors]
    return Tensor.cat(*parts).contiguous().realize()


def _times(factor: float, vector: Tensor) -> Tensor:
    """A multiple of a vector. The factor is memory: a constant would be a new kernel each time."""
    return vector * Tensor(np.asarray([factor], vector.dtype.np), device=vector.device)


class _Pair(NamedTuple):
    """A step, the change of the gradient over it, and one over their inner product."""

    step: Tensor
    change: Tensor
    scale: Tensor


def _pair(step: Tensor, change: Tensor) -> _Pair:
    return _Pair(step, change, (1 / change.dot(step)).realize())


def _direction(gradient: Tensor, pairs: Sequence[_Pair]) -> Tensor:
    """The negative gradient times the estimate of the inverse Hessian.

    The two loops of Nocedal, "Updating quasi-Newton matrices with limited storage" (1980).
    """
    result = (-gradient).realize()
    if not pairs:
        return result
    shares = []
    for pair in reversed(pairs):
        share = (pair.scale * pair.step.dot(result)).realize()
        result = (result - share * pair.change).realize()
        shares.append(share)
    last = pairs[-1]
    result = (result / (last.scale * last.change.dot(last.change))).realize()
    for pair, share in zip(pairs, reversed(shares), strict=True):
        rest = (share - pair.scale * pair.change.dot(result)).realize()
        result = (result + rest * pair.step).realize()
    return result


@final
class LBFGS(Optimizer):
    """Limited-memory BFGS, for few parameters and losses without noise.

    `step(closure)` takes up to `max_iter` steps, and needs a function that forgets the gradients,
    computes the loss, calls `backward()` and returns the loss; it is called up to about `max_eval`
    times. A step has length `lr`, or with `line_search_fn="strong_wolfe"` one that meets the strong
    Wolfe conditions. It ends early where no gradient is above `tolerance_grad`, or where steps or
    the loss change by less than `tolerance_change`. Liu and Nocedal, "On the limited memory BFGS
    method for large scale optimization" (1989).

    How often it evaluates depends on values, so a step cannot be captured; the closure can:
    `optimizer.step(TinyJit(closure))`. There is one group of parameters.

    Raises `OptimizerError` for no parameters, for parameters that are no float tensors, and for
    settings out of range.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.optim import LBFGS
    >>> weight = Tensor([3.0, -4.0])
    >>> optimizer = LBFGS([weight], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (weight - 1).square().sum()
    ...     return loss.backward()
    >>> optimizer.step(closure).item()
    29.0
    >>> [round(value, 3) for value in weight.tolist()]
    [1.0, 1.0]
    """

    rules = rules_with(
        max_iter=whole_above_zero,
        max_eval=or_none(at_least_one),
        tolerance_grad=check_number,
        tolerance_change=check_number,
        history_size=whole_above_zero,
        line_search_fn=choice("strong_wolfe", None),
    )

    @takes_settings
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None: ...

    def _begin(self, group: ParamGroup) -> None:
        if self.param_groups:
            raise OptimizerError("LBFGS: it has one group of parameters; put all into that")
        self._pairs: list[_Pair] = []
        self._last: tuple[Tensor, Tensor] | None = None  # the last step, and the gradient before it

    # -- a step ----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` steps. Returns the loss before them, as `closure` returned it.

        Where `closure` or anything else raises, the parameters are put back where they were.
        """
        if closure is None:
            raise OptimizerError(
                "LBFGS.step: it computes the loss several times; pass a function that forgets the"
                " gradients, calls backward() and returns the loss: step(closure)"
            )
        if is_capturing():
            raise JitError(
                "LBFGS.step: how often the loss is computed depends on values, so a captured"
                " function cannot have a step in it; capture the closure:"
                " optimizer.step(TinyJit(closure))"
            )
        origin = [param.detach().clone() for param in self.params]
        pairs, last = list(self._pairs), self._last
        try:
            return self._steps(closure)
        except BaseException:
            self._pairs, self._last = pairs, last
            with Tensor.no_grad():
                for param, value in zip(self.params, origin, strict=True):
                    param.assign(value)
            raise

    def _steps(self, closure: Callable[[], Any]) -> Any:
        (group,) = self.param_groups
        most = group["max_iter"] * 5 // 4 if group["max_eval"] is None else group["max_eval"]
        result = call_back(closure)
        self._look_at_mode()
        loss, gradient, evaluations = _number(result), _flat(self._gradients()), 1
        for turn in range(group["max_iter"]):
            if _largest(gradient) <= group["tolerance_grad"] or (turn and evaluations >= most):
                break
            direction, length = self._next(gradient, group)
            now = Trial(0.0, loss, gradient.dot(direction).item(), gradient)
            if now.slope > -group["tolerance_change"]:
                break
            # Without a search, nobody needs the loss after the last step.
            is_last = turn + 1 == group["max_iter"]
            after, count = self._moved(closure, now, direction, length, is_last)
            evaluations += count
            step = _times(after.step, direction).realize()
            self._last = step, gradient
            loss, gradient = after.loss, after.gradient
            small = group["tolerance_change"]
            if _largest(step) <= small or abs(loss - now.loss) < small:
                break
        return result

    def _next(self, gradient: Tensor, group: ParamGroup) -> tuple[Tensor, float]:
        """The direction, and the length of the first trial step."""
        rate: float = group["lr"].item()
        if self._last is None:
            return (-gradient).realize(), min(1.0, 1 / gradient.abs().sum().item()) * rate
        step, before = self._last
        change = (gradient - before).realize()
        product = change.dot(step).item()
        if product > 1e-10:  # or else the curvature along the step is not above zero
            self._pairs.append(_pair(step, change))
            del self._pairs[: -group["history_size"]]
        return _direction(gradient, self._pairs), rate

    def _moved(
        self,
        closure: Callable[[], Any],
        start: Trial,
        direction: Tensor,
        length: float,
        is_last: bool,
    ) -> tuple[Trial, int]:
        """Move the parameters along a direction. Returns the trial, and how many there were."""
        (group,) = self.param_groups
        origin = [param.detach().clone().realize() for param in self.params]
        count = 0

        def evaluate(step: float) -> Trial:
            nonlocal count
            count += 1
            self._place(origin, _times(step, direction))
            loss, gradient = _number(call_back(closure)), _flat(self._gradients())
            return Trial(step, loss, gradient.dot(direction).item(), gradient)

        if group["line_search_fn"] is None:
            if not is_last:
                return evaluate(length), count
            self._place(origin, _times(length, direction))
            return Trial(length, start.loss, start.slope, start.gradient), 0
        shortest = group["tolerance_change"] / _largest(direction)
        found = strong_wolfe(evaluate, start, length, shortest)
        self._place(origin, _times(found.step, direction))
        return found, count

    def _place(self, origin: Sequence[Tensor], move: Tensor) -> None:
        """Set the parameters to `origin` plus a move."""
        start = 0
        with Tensor.no_grad():
            for param, value in zip(self.params, origin, strict=True):
                stop = start + known_size(value.numel(), self._name)
                part = move[start:stop].reshape(*param.shape)
                param.assign((value.cast(move.dtype) + part).cast(param.dtype))
                start = stop
        Tensor.realize(*self.params)

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The last steps and changes of the gradient, and the settings, under PyTorch's names."""
        state: dict[str, Any] = {
            "old_stps": [pair.step.clone() for pair in self._pairs],
            "old_dirs": [pair.change.clone() for pair in self._pairs],
        }
        if self._last is not None:
            state["d"], state["prev_flat_grad"] = (tensor.clone() for tensor in self._last)
            state["t"] = 1.0
        return {"state": {0: state}, "param_groups": self._saved_groups()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what `state_dict()`, or that of PyTorch's LBFGS, gave.

        Raises `OptimizerError` where groups or sizes differ; nothing is changed then.
        """
        groups = self._checked_groups(state_dict)
        state = state_dict["state"].get(0, {})
        steps, changes = (
            [self._vector(name, value) for value in state.get(name) or []]
            for name in ("old_stps", "old_dirs")
        )
        last = None
        if state.get("d") is not None and state.get("prev_flat_grad") is not None:
            direction = self._vector("d", state["d"])
            step = _times(float(state["t"]), direction).realize()
            last = step, self._vector("prev_flat_grad", state["prev_flat_grad"])
        self._load_settings(groups)
        self._pairs = [_pair(*pair) for pair in zip(steps, changes, strict=True)]
        self._last = last

    def _vector(self, name: str, value: Any) -> Tensor:
        """A vector that was saved, as one of this optimiser."""
        own = _flat(self.params)
        return adopted(f"LBFGS.load_state_dict: {name}", value, own).cast(own.dtype).realize()


def _number(loss: Any) -> float:
    """The loss that a closure returned, as one number."""
    if loss is None:
        raise OptimizerError("LBFGS.step: the closure returned None; it must return the loss")
    return float(loss.item() if isinstance(loss, Tensor) else loss)


def _largest(vector: Tensor) -> float:
    """The largest size of an element."""
    size: float = vector.abs().max().item()
    return size
