"""What all optimisers share: parameter groups, their settings and state, and the order of a step.

`step()` builds the updates of all parameters and their state first and realises them together, so
that the scheduler may merge them into few kernels. Learning rates, step counts and all other state
live in tensors, which makes a step fit for `TinyJit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.dtype import DType, dtypes, promote
from ferrule.tensor import Tensor

State: TypeAlias = dict[str, Tensor]
Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Betas: TypeAlias = tuple[float | Tensor, float | Tensor]


class OptimizerError(ValueError):
    """An optimiser that cannot do what it is asked, such as a step without gradients."""


# Parameters


def _problem(param: object) -> str | None:
    """Why `param` cannot be optimised; None if it can."""
    if not isinstance(param, Tensor):
        return f"is {type(param).__name__}, not a Tensor; pass nn.state.get_parameters(model)"
    if not dtypes.is_float(param.dtype):
        return f"has dtype {param.dtype.name}, and only floats have gradients; leave it out"
    if not param.is_leaf:
        return "is computed from other tensors; optimise those, or pass its detach()"
    return None


def _distinct(name: str, params: Iterable[Any]) -> list[Tensor]:
    """The parameters that are to be optimised, each once."""
    found: dict[int, Tensor] = {}
    for position, given in enumerate(params):
        param = given[1] if isinstance(given, tuple) else given  # (name, parameter)
        if isinstance(param, Tensor) and param.requires_grad is False:
            continue  # a statistic, such as a running mean
        problem = _problem(param)
        if problem is not None:
            raise OptimizerError(f"{name}: parameter {position} {problem}")
        found[id(param)] = param
    if not found:
        raise OptimizerError(f"{name}: there are no parameters to optimise")
    return list(found.values())


def state_dtype(param: Tensor) -> DType:
    """Halves are too coarse to add small steps up in."""
    return promote(param.dtype, dtypes.float32)


def wide(tensor: Tensor) -> Tensor:
    """Outside autograd, and in the type that steps are computed in."""
    return tensor.detach().cast(state_dtype(tensor))


def filled_like(param: Tensor, value: float = 0.0) -> Tensor:
    """State of a parameter's shape. Copied from the host: that needs no kernel for each shape."""
    array = np.full(param.shape, value, state_dtype(param).np)
    return Tensor(array, device=param.device)


# Settings


def _check_number(name: str, setting: str, value: object) -> None:
    if not isinstance(value, int | float | np.number):
        raise OptimizerError(f"{name}: {setting} is {value!r}; it must be a number")


def at_least(name: str, setting: str, value: float, smallest: float = 0.0) -> float:
    """`value`, or `OptimizerError` if it is too small or no number."""
    _check_number(name, setting, value)
    if not value >= smallest:
        raise OptimizerError(f"{name}: {setting} is {value}; it must be at least {smallest:g}")
    return value


def below_one(name: str, setting: str, value: float | Tensor) -> float | Tensor:
    """`value`, or `OptimizerError` if it is not in [0, 1); a tensor is taken as it is."""
    if isinstance(value, Tensor):
        return value
    _check_number(name, setting, value)
    if not 0 <= value < 1:
        raise OptimizerError(f"{name}: {setting} is {value}; it must be in [0, 1)")
    return value


@final
class ParamGroup(UserDict[str, Any]):
    """Some parameters, under "params", and their settings by name, as in PyTorch.

    A setting that is a tensor, as "lr" always is, stays the same tensor: setting it writes the
    value there, so that a captured step sees it.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        self.data[name] = _written(self.data.get(name), value)

    def as_tensor(self, name: str) -> None:
        """Makes a number, or the first of several, a tensor, so that it may change in a capture."""
        value = self[name]
        if isinstance(value, tuple):
            self.data[name] = (self._tensor(value[0]), *value[1:])
        else:
            self.data[name] = self._tensor(value)

    def _tensor(self, value: float | Tensor) -> Tensor:
        return value if isinstance(value, Tensor) else scalar(value, self["params"])


def _written(now: Any, value: Any) -> Any:
    """What a setting becomes: a tensor that is there is written, and kept."""
    if isinstance(now, tuple) and isinstance(value, Sequence):
        return tuple(_written(*pair) for pair in zip(now, value, strict=True))
    if isinstance(now, Tensor) and value is not now:
        # Copied from a tensor even if it is a number: a constant would be a new kernel each time.
        tensor = value if isinstance(value, Tensor) else Tensor([value], dtype=now.dtype)
        with Tensor.no_grad():
            now.assign(tensor.detach().reshape(1).cast(now.dtype).to(now.device))
        return now
    return value


def scalar(value: float, params: Sequence[Tensor]) -> Tensor:
    """A tensor of one element with memory of its own, in the widest type of the parameters."""
    dtype = promote(*(state_dtype(param) for param in params))
    return Tensor([value], dtype=dtype, device=params[0].device)


class Optimizer(ABC):
    """What all optimisers share.

    `params` are tensors, (name, tensor) pairs, or dicts with "params" and settings of their own,
    one for each group. Duplicates in a group count once, and tensors with `requires_grad=False`
    are left alone. `maximize` goes uphill.

    Raises `OptimizerError` for anything that is no float tensor, and for no parameters at all.
    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[ParamGroup] = []
        self.state: list[State] = []
        self._shared: list[State] = []
        if not isinstance(params, Iterable):
            raise OptimizerError(
                f"{self._name}: {type(params).__name__} is no collection of parameters; pass "
                "nn.state.get_parameters(model)"
            )
        entries: list[Any] = list(params)
        groups = entries if entries and isinstance(entries[0], dict) else [{"params": entries}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Adds parameters with settings of their own; what is not set is as for the others.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.optim import SGD
        >>> optimizer = SGD([Tensor([1.0])], lr=0.5)
        >>> optimizer.add_param_group({"params": [Tensor([2.0])], "lr": 0.25})
        >>> [group["lr"].item() for group in optimizer.param_groups]
        [0.5, 0.25]
        """
        unknown = sorted(set(param_group) - set(self.defaults) - {"params", "initial_lr", "name"})
        if unknown:
            known = ", ".join(self.defaults)
            raise OptimizerError(f"{self._name}: no setting {', '.join(unknown)}; it has {known}")
        if "params" not in param_group:
            raise OptimizerError(f'{self._name}: a group of parameters needs them, as "params"')
        given = param_group["params"]
        params = _distinct(self._name, [given] if isinstance(given, Tensor) else given)
        self._check_new(params)
        settings = {**self.defaults, **param_group, "params": params}
        self._check(settings)
        rate = settings["lr"]
        settings["lr"] = scalar(0.0 if isinstance(rate, Tensor) else rate, params)
        group = ParamGroup(settings)
        group["lr"] = rate
        for param in params:
            param.requires_grad = True
        shared = self._start_shared(group)
        self.param_groups.append(group)
        self._shared.append(shared)
        self.state.extend({**shared, **self._start(param, group)} for param in params)
        # What a captured step updates in place must have memory before it.
        Tensor.realize(*params, group["lr"])

    def _check_new(self, params: Sequence[Tensor]) -> None:
        known = {id(param) for param in self.params}
        for position, param in enumerate(params):
            if id(param) in known:
                raise OptimizerError(
                    f"{self._name}: parameter {position} is in another group already; a parameter"
                    " has one group"
                )

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def params(self) -> list[Tensor]:
        """All parameters, those of the first group first."""
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def lr(self) -> Tensor:
        """The learning rate of the first group, a tensor of one element.

        Setting it, to a number or a tensor of one element, copies the value into the tensors of all
        groups. A captured step reads them anew each time. A function that is captured may set it to
        one of its arguments.
        """
        rate: Tensor = self.param_groups[0]["lr"]
        return rate

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            at_least(self._name, "lr", value)
        for group in self.param_groups:
            group["lr"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients, or makes them zeros, so that `backward()` starts afresh."""
        for param in self.params:
            param.grad = None if set_to_none or param.grad is None else param.grad.zeros_like()

    # -- a step ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Updates every parameter from its gradient, in place.

        Raises `OptimizerError` where a parameter has none; nothing is changed then.
        """
        params = self.params
        gradients = [self._gradient(position, param) for position, param in enumerate(params)]
        with Tensor.no_grad():
            self._step(gradients)
        states = {id(tensor): tensor for state in self.state for tensor in state.values()}
        # The gradients too: they stay in `.grad`, and what they were made of is written over.
        Tensor.realize(*params, *states.values(), *gradients)

    def _gradient(self, position: int, param: Tensor) -> Tensor:
        if param.grad is None:
            raise OptimizerError(
                f"{self._name}.step: parameter {position}, of shape {tuple(param.shape)}, has no"
                " gradient; call loss.backward() first, or leave the parameter out"
            )
        return param.grad

    def _step(self, gradients: Sequence[Tensor]) -> None:
        # First of all: whatever reads an old version has to run before it is written over.
        for group, shared in zip(self.param_groups, self._shared, strict=True):
            _write(shared, self._advance(shared, group))
        place = 0
        for group in self.param_groups:
            for param in group["params"]:
                self._update(param, gradients[place], self.state[place], group)
                place += 1

    def _update(self, param: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> None:
        slope = -wide(gradient) if group["maximize"] else wide(gradient)
        value, after = self._change(wide(param), slope, state, group)
        param.assign(value.reshape(*param.shape).cast(param.dtype))
        _write(state, after)

    # -- what an optimiser is --------------------------------------------------------------------

    @abstractmethod
    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raises `OptimizerError` for settings that make no sense."""

    def _start_shared(self, group: ParamGroup) -> State:
        """The state that all parameters of a group share: how many steps were taken."""
        return {"step": scalar(0.0, group["params"])}

    def _advance(self, shared: State, group: ParamGroup) -> State:
        """The shared state of the step that begins."""
        return {name: count + 1 for name, count in shared.items()}

    @abstractmethod
    def _start(self, param: Tensor, group: ParamGroup) -> State:
        """The state of a parameter before its first step."""

    @abstractmethod
    def _change(
        self, value: Tensor, gradient: Tensor, state: State, group: ParamGroup
    ) -> tuple[Tensor, State]:
        """A parameter and its own state after a step, from those before it."""

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of every parameter by its number, and the groups' settings, as in PyTorch.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.optim import Adam
        >>> sorted(Adam([Tensor([1.0])]).state_dict()["state"][0])
        ['exp_avg', 'exp_avg_sq', 'step']
        """
        groups = []
        start = 0
        for group in self.param_groups:
            stop = start + len(group["params"])
            settings = {name: _number(value) for name, value in group.items()}
            groups.append({**settings, "params": list(range(start, stop))})
            start = stop
        state = {
            place: {name: _saved(tensor, name in shared) for name, tensor in state.items()}
            for place, (state, shared) in enumerate(
                zip(self.state, self._each_shared(), strict=True)
            )
        }
        return {"state": state, "param_groups": groups}

    def _each_shared(self) -> list[State]:
        """The shared state of each parameter's group."""
        pairs = zip(self.param_groups, self._shared, strict=True)
        return [shared for group, shared in pairs for _ in group["params"]]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what `state_dict()`, or that of PyTorch's optimiser of this name, gave.

        A parameter without a state starts anew, and settings that this optimiser does not have are
        left out. Raises `OptimizerError` where groups or shapes differ; nothing is changed then.
        """
        if not isinstance(state_dict, Mapping) or not {"param_groups", "state"} <= set(state_dict):
            raise OptimizerError(
                f'{self._name}.load_state_dict: a dict with "param_groups" and "state" is needed, '
                "as state_dict() gives"
            )
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise OptimizerError(
                f"{self._name}.load_state_dict: groups of {sizes} parameters do not fit those of"
                f" this optimiser, {own}; make it with the same groups"
            )
        numbers = [number for group in groups for number in group["params"]]
        found = [state_dict["state"].get(number, {}) for number in numbers]
        fresh = [
            {name: scalar(0.0, group["params"]) for name in shared} | self._start(param, group)
            for group, shared in zip(self.param_groups, self._shared, strict=True)
            for param in group["params"]
        ]
        values = [self._loaded(place, found[place], state) for place, state in enumerate(fresh)]
        self._check_shared(values)
        with Tensor.no_grad():
            for state, value in zip(self.state, values, strict=True):
                _write(state, value)
        for group, saved in zip(self.param_groups, groups, strict=True):
            for name in (set(group) & set(saved)) - {"params"}:
                group[name] = tuple(saved[name]) if isinstance(saved[name], list) else saved[name]
        Tensor.realize(*(tensor for state in self.state for tensor in state.values()))

    def _loaded(self, place: int, found: Mapping[str, Any], fresh: State) -> State:
        """The state of one parameter, with what was found for it."""
        result = {}
        for name, tensor in fresh.items():
            value = found.get(name)
            if value is None:
                result[name] = tensor
                continue
            loaded = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
            if loaded.numel() != tensor.numel():
                raise OptimizerError(
                    f"{self._name}.load_state_dict: {name} of parameter {place} has shape"
                    f" {tuple(loaded.shape)}, not {tuple(tensor.shape)}"
                )
            result[name] = loaded.detach().to(tensor.device).reshape(*tensor.shape).clone()
        return result

    def _check_shared(self, values: Sequence[State]) -> None:
        place = 0
        for group, shared in zip(self.param_groups, self._shared, strict=True):
            states = values[place : place + len(group["params"])]
            place += len(states)
            for name in shared:
                if len({state[name].item() for state in states}) > 1:
                    raise OptimizerError(
                        f"{self._name}.load_state_dict: {name} differs between parameters of one"
                        " group; put those that were stepped less often into a group of their own"
                    )


def _write(tensors: State, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        target = tensors[name]
        target.assign(value.reshape(*target.shape).cast(target.dtype))


def _number(value: Any) -> Any:
    """A setting as a number, if it is kept in a tensor."""
    if isinstance(value, tuple):
        return tuple(_number(part) for part in value)
    return value.item() if isinstance(value, Tensor) else value


def _saved(tensor: Tensor, is_number: bool) -> Tensor:
    copy = tensor.detach().clone()
    return copy.reshape(()) if is_number else copy


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
