"""The base class of optimisers: groups of parameters, their settings, and gradients."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import count
from typing import Any, ClassVar, Final, TypeVar, cast
from weakref import WeakSet

from ferrule.autograd.training import take_noted
from ferrule.base.calls import explain_constructor
from ferrule.device.capture import is_capturing
from ferrule.nn.optim.groups import (
    Check,
    OptimizerError,
    ParamGroup,
    Params,
    as_groups,
    check_names,
    distinct,
    not_negative,
    rules_with,
    scalar,
)
from ferrule.tensor import Tensor

F = TypeVar("F", bound=Callable[..., None])


class TrainingModeWarning(UserWarning):
    """An optimiser trains a model of which a part behaved as in evaluation by default."""


_warned: Final[WeakSet[Optimizer]] = WeakSet()
"""The optimisers that have given that warning."""


def takes_settings(constructor: F) -> F:
    """Makes the parameters of a constructor the settings of an optimiser, but for `params`."""
    signature = inspect.signature(constructor)

    @wraps(constructor)
    def __init__(self: Optimizer, params: Params, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, params, *args, **kwargs)
        given.apply_defaults()
        _, _, *settings = given.arguments.items()
        Optimizer.__init__(self, params, dict(settings))

    return cast(F, __init__)


class Optimizer(ABC):
    """The base of all optimisers.

    One of your own needs no class: `with Tensor.no_grad(): p.assign(p - 0.1 * p.grad)`.

    `params` are tensors, (name, tensor) pairs, or dicts with "params" and settings of their own,
    one for each group. Duplicates in a group count once, and tensors with `requires_grad=False`
    are left alone. `maximize` goes uphill.

    Raises `OptimizerError` for anything that is no float tensor, and for no parameters at all.
    """

    rules: ClassVar[Mapping[str, Check]] = rules_with()
    """The checks of settings, by name."""
    structural: ClassVar[tuple[tuple[str, str], ...]] = ()
    """The settings that decide which state there is, each with the name of its part."""

    def __init_subclass__(cls) -> None:
        explain_constructor(cls)

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[ParamGroup] = []
        for group in as_groups(self._name, params):
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with settings of their own; other settings are the optimiser's defaults.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.optim import SGD
        >>> optimizer = SGD([Tensor([1.0])], lr=0.5)
        >>> optimizer.add_param_group({"params": [Tensor([2.0])], "lr": 0.25})
        >>> [group["lr"].item() for group in optimizer.param_groups]
        [0.5, 0.25]
        """
        if not isinstance(param_group, Mapping):
            kind = type(param_group).__name__
            raise OptimizerError(
                f"{self._name}: a group of parameters is a dict, not {kind}; pass"
                ' {"params": [...]}'
            )
        check_names(self._name, param_group, self.defaults)
        if "params" not in param_group:
            raise OptimizerError(f'{self._name}: a group of parameters needs them, as "params"')
        given = param_group["params"]
        params = distinct(self._name, [given] if isinstance(given, Tensor) else given)
        self._check_new(params)
        settings = {**self.defaults, **param_group, "params": params}
        self._check(settings)
        rate = settings["lr"]
        settings["lr"] = scalar(0.0 if isinstance(rate, Tensor) else rate, params)
        group = ParamGroup(self._name, settings, dict(self.structural))
        group["lr"] = rate
        for param in params:
            param.requires_grad = True
        self._begin(group)
        self.param_groups.append(group)
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

    def __repr__(self) -> str:
        read: Callable[[Any], object] = str if is_capturing() else _number
        settings = [
            f"{name}={read(value)}" if name != "params" else f"<{len(value)} parameters>"
            for group in self.param_groups
            for name, value in group.items()
        ]
        return f"{self._name}({', '.join(settings)})"

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
        not_negative(self._name, "lr", value)
        for group in self.param_groups:
            group["lr"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or make them zeros, so that `backward()` starts afresh."""
        for param in self.params:
            param.grad = None if set_to_none or param.grad is None else param.grad.zeros_like()

    def _gradients(self) -> list[Tensor]:
        """The gradient of each parameter; raises `OptimizerError` if one has none."""
        return [self._gradient(position, param) for position, param in enumerate(self.params)]

    def _gradient(self, position: int, param: Tensor) -> Tensor:
        if param.grad is None:
            raise OptimizerError(
                f"{self._name}.step: parameter {position}, of shape {tuple(param.shape)}, has no"
                " gradient; call loss.backward() first, or leave the parameter out"
            )
        return param.grad

    def _look_at_mode(self) -> None:
        """Warn, once, if gradients went through a layer that evaluated by default."""
        noted = take_noted(param._leaf for param in self.params)
        if noted is None or self in _warned:
            return
        _warned.add(self)
        warnings.warn(
            f"{self._name}.step: {noted} ran as in evaluation on the way to these gradients, and "
            "nobody asked for that; write `with Tensor.train():` around the training step, or "
            "model.train() before it. If evaluation is meant, say Tensor.training = False or "
            "model.eval()",
            TrainingModeWarning,
            stacklevel=3,
        )

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise `OptimizerError` for settings that make no sense."""
        for name, value in settings.items():
            if name in self.rules:
                self.rules[name](self._name, name, value)

    @abstractmethod
    def _begin(self, group: ParamGroup) -> None:
        """Make the state of a group that is about to be added."""

    @abstractmethod
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter in place. Returns the result of `closure`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state, and the groups' settings, as in PyTorch."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict()`."""

    # -- saving settings -------------------------------------------------------------------------

    def _saved_groups(self) -> list[dict[str, Any]]:
        """The settings of all groups, with numbers in place of parameters."""
        places = count()
        return [
            {name: _number(value) for name, value in group.items() if name != "params"}
            | {"params": [next(places) for _ in group["params"]]}
            for group in self.param_groups
        ]

    def _checked_groups(self, state_dict: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The settings in a saved state, if its groups match this optimiser's."""
        if not isinstance(state_dict, Mapping) or not {"param_groups", "state"} <= set(state_dict):
            raise OptimizerError(
                f'{self._name}.load_state_dict: a dict with "param_groups" and "state" is needed, '
                "as state_dict() gives"
            )
        groups: Any = state_dict["param_groups"]
        if not isinstance(groups, list | tuple) or not all(
            isinstance(group, Mapping) and "params" in group for group in groups
        ):
            raise OptimizerError(
                f'{self._name}.load_state_dict: "param_groups" is a list of dicts with "params", '
                "as state_dict() gives"
            )
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise OptimizerError(
                f"{self._name}.load_state_dict: groups of {sizes} parameters do not fit those of"
                f" this optimiser, {own}; make it with the same groups"
            )
        for group, name, value in self._loaded_settings(groups):
            group.check(name, value)
        return groups

    def _load_settings(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for group, name, value in self._loaded_settings(groups):
            group[name] = value

    def _loaded_settings(
        self, groups: Sequence[Mapping[str, Any]]
    ) -> list[tuple[ParamGroup, str, Any]]:
        """Each setting that a saved group has and its own group too."""
        return [
            (group, name, tuple(saved[name]) if isinstance(saved[name], list) else saved[name])
            for group, saved in zip(self.param_groups, groups, strict=True)
            for name in group
            if name in saved and name != "params"
        ]


def _number(value: Any) -> Any:
    """A setting as a number, if it is kept in a tensor."""
    if isinstance(value, tuple):
        return tuple(_number(part) for part in value)
    return value.item() if isinstance(value, Tensor) else value
