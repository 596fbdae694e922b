"""Groups of parameters: the tensors to optimise, and their settings."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.base.calls import one_of
from ferrule.ir.dtype import DType, dtypes, promote
from ferrule.tensor import Tensor

State: TypeAlias = dict[str, Tensor]
Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Betas: TypeAlias = tuple[float | Tensor, float | Tensor]


class OptimizerError(ValueError):
    """An optimiser that cannot do what it is asked, such as a step without gradients."""


# Parameters


def _problem(param: object) -> str | None:
    """The reason why `param` cannot be optimised; None if it can."""
    if not isinstance(param, Tensor):
        return f"is {type(param).__name__}, not a Tensor; pass nn.state.get_parameters(model)"
    if not dtypes.is_float(param.dtype):
        return f"has dtype {param.dtype.name}, and only floats have gradients; leave it out"
    if not param.is_leaf:
        return "is computed from other tensors; optimise those, or pass its detach()"
    return None


def distinct(name: str, params: Any) -> tuple[Tensor, ...]:
    """The parameters that are to be optimised, each once."""
    found: dict[int, Tensor] = {}
    for position, given in enumerate(_collected(name, params)):
        param = given[1] if _is_named(given) else given
        if isinstance(param, Tensor) and param.requires_grad is False:
            continue  # a statistic, such as a running mean
        problem = _problem(param)
        if problem is not None:
            raise OptimizerError(f"{name}: parameter {position} {problem}")
        found[id(param)] = param
    if not found:
        used_up = "; the iterator of them is used up: pass a list"
        hint = used_up if isinstance(params, Iterator) else ""
        raise OptimizerError(f"{name}: there are no parameters to optimise{hint}")
    return tuple(found.values())


def _is_named(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def _collected(name: str, params: Any) -> Iterable[Any]:
    """`params`, if it is a collection that can be iterated."""
    if isinstance(params, Mapping):
        raise OptimizerError(
            f"{name}: a dict is no collection of parameters; pass its values(), or a list of"
            " groups: [{'params': ...}]"
        )
    if not isinstance(params, Iterable):
        raise OptimizerError(
            f"{name}: {type(params).__name__} is no collection of parameters; pass "
            "nn.state.get_parameters(model)"
        )
    return params


def as_groups(name: str, params: Any) -> list[Mapping[str, Any]]:
    """The groups of parameters in an optimiser's argument."""
    if isinstance(params, Tensor):
        raise OptimizerError(f"{name}: a Tensor is no collection of parameters; pass a list of it")
    entries = list(_collected(name, params))
    if not any(isinstance(entry, Mapping) for entry in entries):
        return [{"params": entries or params}]
    for position, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise OptimizerError(
                f"{name}: entry {position} is {type(entry).__name__} among groups of parameters;"
                " put it into a group: {'params': [...]}"
            )
    return entries


def state_dtype(param: Tensor) -> DType:
    """The dtype of a parameter's state: float32 for narrower floats, too coarse for small steps."""
    return promote(param.dtype, dtypes.float32)


# Settings


Check: TypeAlias = Callable[[str, str, Any], None]
"""Raises `OptimizerError`, given the optimiser, the setting and the value, unless this will do."""


def unfit(name: str, setting: str, value: object, wanted: str) -> OptimizerError:
    """The error for a value that a setting cannot have."""
    return OptimizerError(f"{name}: {setting} is {value!r}; it must be {wanted}")


def check_number(name: str, setting: str, value: object) -> None:
    """`OptimizerError` for a setting that is no number, and no tensor of one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise OptimizerError(f"{name}: {setting} has shape {shape}; it must be one number")
    elif not isinstance(value, int | float | np.number):
        raise unfit(name, setting, value, "a number")


def bounded(wanted: str, holds: Callable[[Any], bool]) -> Check:
    """The check of a number for which something holds; a tensor is not read."""

    def check(name: str, setting: str, value: Any) -> None:
        check_number(name, setting, value)
        if not isinstance(value, Tensor) and not holds(value):
            raise unfit(name, setting, value, wanted)

    return check


not_negative = bounded("at least 0", lambda value: value >= 0)
below_one = bounded("in [0, 1)", lambda value: 0 <= value < 1)
at_least_one = bounded("at least 1", lambda value: value >= 1)


def whole_above_zero(name: str, setting: str, value: object) -> None:
    """`OptimizerError` for a setting that is no number of steps, or of other things."""
    if not isinstance(value, int) or value < 1:
        raise unfit(name, setting, value, "a whole number of at least 1")


def choice(*choices: str | None) -> Check:
    """The check of a setting that has one of some values."""
    return lambda name, setting, value: one_of(value, choices, f"{name}: {setting}", OptimizerError)


def or_none(check: Check) -> Check:
    """The check of a setting that may be None."""
    return lambda name, setting, value: None if value is None else check(name, setting, value)


def several(wanted: str, *checks: Check) -> Check:
    """The check of a tuple or list with one value for each of some checks."""

    def check(name: str, setting: str, values: Any) -> None:
        if not isinstance(values, tuple | list) or len(values) != len(checks):
            raise unfit(name, setting, values, wanted)
        for part, value in zip(checks, values, strict=True):
            part(name, setting, value)

    return check


def rules_with(**others: Check) -> Mapping[str, Check]:
    """The checks of settings that several optimisers have, and others, by name."""
    return {
        "lr": not_negative,
        "weight_decay": not_negative,
        "eps": not_negative,
        "momentum": not_negative,
        "dampening": check_number,
        "betas": several("two numbers", below_one, below_one),
        **others,
    }


def check_names(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """`OptimizerError` for names that are no settings."""
    known = list(known)
    unknown = sorted({str(setting) for setting in given} - set(known) - _BESIDES)
    if unknown:
        settings = ", ".join(setting for setting in known if setting not in _BESIDES)
        raise OptimizerError(f"{name}: no setting {', '.join(unknown)}; it has {settings}")


# What a group may have besides settings; schedules note the first rate in it.
_BESIDES = frozenset({"params", "initial_lr", "name"})


@final
class ParamGroup(UserDict[str, Any]):
    """Some parameters, under "params", and their settings by name, as in PyTorch.

    A setting that is a tensor, as "lr" always is, stays the same tensor: setting it writes the
    value there, so that a captured step sees it. The settings named in `structural` decide which
    state there is; what was off when the state was made stays off.
    """

    def __init__(self, owner: str, settings: dict[str, Any], structural: Container[str]) -> None:
        self.data = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in settings.items()
        }
        self._owner = owner
        self._structural = structural

    def __setitem__(self, name: str, value: Any) -> None:
        self.check(name, value)
        self.data[name] = _written(self.data.get(name), value)

    def check(self, name: str, value: Any) -> None:
        """`OptimizerError` for a value that a setting cannot take."""
        if name == "params":
            raise OptimizerError(
                f"{self._owner}: a group keeps its parameters; add_param_group adds others, and a "
                "new optimiser may leave some out"
            )
        check_names(self._owner, [name], self.data)
        now = self.data.get(name)
        if isinstance(now, tuple):
            parts = [or_none(check_number) if old is None else check_number for old in now]
            several(f"{len(now)} numbers", *parts)(self._owner, name, value)
        elif name == "lr":
            not_negative(self._owner, name, value)
        elif isinstance(now, int | float | Tensor):
            check_number(self._owner, name, value)
        was_off = not isinstance(now, Tensor) and not now
        if name in self._structural and was_off and (isinstance(value, Tensor) or value):
            raise OptimizerError(
                f"{self._owner}: {name} was off when the optimiser was made, which has no state for"
                f" it; make one with {name}={value}"
            )

    def moved(self, device: str) -> ParamGroup:
        """The group with the tensors among its settings on a device."""
        data = {name: _on(value, device) for name, value in self.data.items() if name != "params"}
        return ParamGroup(self._owner, {"params": self["params"], **data}, self._structural)

    def as_tensor(self, name: str) -> None:
        """Makes a number, or the first of several, a tensor, so that it may change in a capture."""
        value = self[name]
        if isinstance(value, tuple):
            self.data[name] = (self._tensor(value[0]), *value[1:])
        else:
            self.data[name] = self._tensor(value)

    def _tensor(self, value: float | Tensor) -> Tensor:
        return value if isinstance(value, Tensor) else scalar(value, self["params"])


def _on(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple([_on(part, device) for part in value])
    return value.to(device) if isinstance(value, Tensor) else value


def _written(now: Any, value: Any) -> Any:
    """The new value of a setting; a setting that is a tensor is written and stays that tensor."""
    if isinstance(now, tuple) and isinstance(value, Sequence):
        return tuple(_written(*pair) for pair in zip(now, value, strict=True))
    if isinstance(now, Tensor) and value is not now:
        # Copied from a tensor even if it is a number: a constant would be a new kernel each time.
        tensor = value if isinstance(value, Tensor) else Tensor([value], dtype=now.dtype)
        with Tensor.no_grad():
            now.assign(tensor.detach().reshape(1).cast(now.dtype).to(now.device))
        return now
    return value


def adopted(what: str, value: Any, like: Tensor) -> Tensor:
    """A copy of a saved tensor or array in the shape of another, and where that is."""
    loaded = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
    if loaded.numel() != like.numel():
        raise OptimizerError(f"{what} has shape {tuple(loaded.shape)}, not {tuple(like.shape)}")
    return loaded.detach().to(like.device).reshape(*like.shape).clone()


def scalar(value: float, params: Sequence[Tensor]) -> Tensor:
    """A tensor of one element with memory of its own, in the widest type of the parameters."""
    dtype = promote(*(state_dtype(param) for param in params))
    return Tensor([value], dtype=dtype, device=params[0].device)
