"""Optimisers that update each parameter from its own gradient and state: the order of a step.

`step()` builds the updates of all parameters and their state first and realises them together, so
that the scheduler may merge them into few kernels. Learning rates, step counts and all other state
live in tensors, which makes a step fit for `TinyJit`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar

import numpy as np

from ferrule.base.callbacks import call_back
from ferrule.nn.optim.groups import (
    OptimizerError,
    ParamGroup,
    State,
    adopted,
    scalar,
    state_dtype,
)
from ferrule.nn.optim.optimizer import Optimizer
from ferrule.tensor import Tensor
from ferrule.tensor.cell import writes_together


class TensorWise(Optimizer):
    """The base of optimisers that update each tensor on its own."""

    state_names: ClassVar[tuple[str, ...]]
    """The names of the state: "step", the number of steps, for each group of parameters; each other
    for each parameter, of its shape, and 0 before the first step."""

    state: list[State]
    """The state of each parameter."""

    def _begin(self, group: ParamGroup) -> None:
        if not self.param_groups:
            self.state = []
            self._shared: list[State] = []
        shared = self._start_shared(group)
        self._shared.append(shared)
        self.state.extend({**shared, **self._start(param, group)} for param in group["params"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter from its gradient, in place.

        `closure`, if given, is called first; it computes the loss and the gradients, and what it
        gives is returned. A parameter whose `requires_grad` was set to False is left alone, unless
        it has a gradient. Raises `OptimizerError` where another has none; nothing is changed then,
        nor where something else raises, such as `MemoryError`.
        """
        loss = None if closure is None else call_back(closure)
        self._take(None)
        return loss

    def step_unless(self, skipped: Tensor) -> None:
        """Take a step if a tensor of one bool is False; else leave all as it is.

        Nothing is read back to the host, so a captured function decides anew in each replay.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.optim import SGD
        >>> x = Tensor([1.0], requires_grad=True)
        >>> _ = (x * 2).sum().backward()
        >>> SGD([x], lr=0.5).step_unless(Tensor(True))
        >>> x.tolist()
        [1.0]
        """
        self._take(skipped)

    def _take(self, skipped: Tensor | None) -> None:
        self._check_groups()
        self._look_at_mode()
        gradients = {
            place: self._gradient(place, param)
            for place, param in enumerate(self.params)
            if param.grad is not None or param.requires_grad is not False
        }
        with writes_together():
            with Tensor.no_grad():
                self._step(gradients, skipped)
            states = {id(tensor): tensor for state in self.state for tensor in state.values()}
            # The gradients too: they stay in `.grad`, and their operands are overwritten.
            Tensor.realize(*self.params, *states.values(), *gradients.values())

    def _check_groups(self) -> None:
        if len(self.param_groups) != len(self._shared):
            raise OptimizerError(
                f"{self._name}.step: there are {len(self.param_groups)} groups in param_groups and"
                f" state for {len(self._shared)}; add groups by add_param_group(group)"
            )

    def _step(self, gradients: Mapping[int, Tensor], skipped: Tensor | None) -> None:
        # Written first, so that updates read the new version: readers of an old version would have
        # to run before its memory is overwritten.
        for group, shared in zip(self.param_groups, self._shared, strict=True):
            _write(shared, self._advance(shared, group), skipped)
        places = count()
        for group, shared in zip(self.param_groups, self._shared, strict=True):
            common = self._common(shared, group)
            for param in group["params"]:
                place = next(places)
                if place in gradients:
                    state, settings = {**self.state[place], **common}, group
                    if param.device != group["params"][0].device:
                        # Where the values are that the parameters share.
                        state, settings = _moved(state, param), group.moved(param.device)
                    self._update(param, gradients[place], state, settings, skipped)

    def _update(
        self,
        param: Tensor,
        gradient: Tensor,
        state: State,
        group: ParamGroup,
        skipped: Tensor | None,
    ) -> None:
        slope = -wide(gradient) if group["maximize"] else wide(gradient)
        value, after = self._change(wide(param), slope, state, group)
        _write({"": param}, {"": value}, skipped)
        _write(state, after, skipped)

    # -- the rules of an optimiser ---------------------------------------------------------------

    def _state_names(self, group: ParamGroup) -> list[str]:
        """The names of the state with the settings of a group."""
        by_setting = [name for setting, name in self.structural if group[setting]]
        return [*self.state_names, *by_setting]

    def _start_shared(self, group: ParamGroup) -> State:
        """The state that all parameters of a group share."""
        return {"step": scalar(0.0, group["params"])} if "step" in self._state_names(group) else {}

    def _advance(self, shared: State, group: ParamGroup) -> State:
        """The shared state of the step that begins."""
        return {name: count + 1 for name, count in shared.items()}

    def _common(self, shared: State, group: ParamGroup) -> State:
        """Values computed from the shared state, which `_change` gets as well."""
        return {}

    def _start(self, param: Tensor, group: ParamGroup) -> State:
        """The state of a parameter before its first step."""
        return {name: filled_like(param) for name in self._state_names(group) if name != "step"}

    @abstractmethod
    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        """A parameter and its own state after a step, from their values before it."""

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of every parameter by its number, and the groups' settings, as in PyTorch.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.optim import Adam
        >>> sorted(Adam([Tensor([1.0])]).state_dict()["state"][0])
        ['exp_avg', 'exp_avg_sq', 'step']
        """
        shared = {id(tensor) for state in self._shared for tensor in state.values()}
        state = {
            place: {name: _saved(tensor, id(tensor) in shared) for name, tensor in state.items()}
            for place, state in enumerate(self.state)
        }
        return {"state": state, "param_groups": self._saved_groups()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what `state_dict()`, or that of PyTorch's optimiser of this name, gave.

        A parameter without a state starts anew, and settings that this optimiser does not have are
        left out. Raises `OptimizerError` where groups or shapes differ; nothing is changed then.
        """
        groups = self._checked_groups(state_dict)
        numbers = [number for group in groups for number in group["params"]]
        found = [self._found(state_dict["state"], number) for number in numbers]
        fresh = [
            self._start_shared(group) | self._start(param, group)
            for group in self.param_groups
            for param in group["params"]
        ]
        values = [self._loaded(place, found[place], state) for place, state in enumerate(fresh)]
        self._check_shared(values)
        with writes_together():
            with Tensor.no_grad():
                for state, value in zip(self.state, values, strict=True):
                    _write(state, value)
            Tensor.realize(*(tensor for state in self.state for tensor in state.values()))
        self._load_settings(groups)

    def _found(self, states: Any, number: int) -> Mapping[str, Any]:
        """The part of a saved state for a parameter."""
        found = states.get(number, {}) if isinstance(states, Mapping) else None
        if not isinstance(found, Mapping):
            raise OptimizerError(
                f'{self._name}.load_state_dict: "state" is a dict of dicts, one for each parameter'
                " by its number, as state_dict() gives"
            )
        return found

    def _loaded(self, place: int, found: Mapping[str, Any], fresh: State) -> State:
        """The state of one parameter, with the saved values for it."""
        result = dict(fresh)
        own, others = set(fresh) - {"step"}, set(found) - {"step"}
        if own and others and not own & others:
            raise OptimizerError(
                f"{self._name}.load_state_dict: parameter {place} has {', '.join(sorted(others))},"
                f" as of another optimiser; this one keeps {', '.join(sorted(own))}"
            )
        for name, tensor in fresh.items():
            if found.get(name) is not None:
                what = f"{self._name}.load_state_dict: {name} of parameter {place}"
                result[name] = adopted(what, found[name], tensor)
        return result

    def _check_shared(self, values: Sequence[State]) -> None:
        places = iter(values)
        for group, shared in zip(self.param_groups, self._shared, strict=True):
            states = [next(places) for _ in group["params"]]
            for name in shared:
                if len({state[name].item() for state in states}) > 1:
                    raise OptimizerError(
                        f"{self._name}.load_state_dict: {name} differs between parameters of one"
                        " group; put those that were stepped less often into a group of their own"
                    )


def _moved(state: State, param: Tensor) -> State:
    """The state on the device of its parameter."""
    return {name: tensor.to(param.device) for name, tensor in state.items()}


def _write(tensors: State, values: Mapping[str, Tensor], skipped: Tensor | None = None) -> None:
    for name, value in values.items():
        target = tensors[name]
        new = value.reshape(*target.shape).cast(target.dtype)
        if skipped is not None:
            new = skipped.to(target.device).where(target.detach(), new)
        target.assign(new)


def _saved(tensor: Tensor, is_number: bool) -> Tensor:
    copy = tensor.detach().clone()
    return copy.reshape(()) if is_number else copy


# State


def wide(tensor: Tensor) -> Tensor:
    """The tensor off the tape, in the dtype in which steps are computed."""
    return tensor.detach().cast(state_dtype(tensor))


def filled_like(param: Tensor, value: float = 0.0, shape: Sequence[int] | None = None) -> Tensor:
    """State of a parameter's shape, or another. Copied from the host: that needs no kernel."""
    sizes = param.shape if shape is None else shape
    return Tensor(np.full(sizes, value, state_dtype(param).np), device=param.device)


# Formulas that several optimisers share


def moved(average: Tensor, sample: Tensor | float, keep: float | Tensor) -> Tensor:
    """One step of an exponential moving average."""
    return keep * average + (1 - keep) * sample


def decayed(value: Tensor, group: ParamGroup) -> Tensor:
    """A parameter after decoupled weight decay: it shrinks by `lr * weight_decay`."""
    kept: float | Tensor = 1 - group["lr"] * group["weight_decay"]
    return value * kept if group["weight_decay"] else value


def with_decay(gradient: Tensor, value: Tensor, group: ParamGroup) -> Tensor:
    """A gradient with that of `weight_decay / 2 * |value|**2` added (L2)."""
    return gradient + group["weight_decay"] * value if group["weight_decay"] else gradient
