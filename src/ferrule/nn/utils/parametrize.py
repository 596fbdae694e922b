"""Weights of layers that are computed from other tensors, each time that they are read.

A layer keeps those other tensors in `parametrizations`, and its class becomes one of its own, in
which the weight's name computes it. Names in states are PyTorch's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ferrule.nn.module import Layer
from ferrule.tensor import Tensor

__all__ = ["Parametrization", "is_parametrized", "register", "remove_parametrizations"]


class Parametrization(Layer, ABC):
    """The tensors that a weight is computed from, and how."""

    keeps_original = True
    """True if the original weight is one of the tensors."""

    @abstractmethod
    def value(self) -> Tensor:
        """The weight."""

    @abstractmethod
    def assign(self, weight: Tensor) -> None:
        """Changes the tensors so that the weight is this one, as far as that can be."""

    @abstractmethod
    def plain(self) -> Tensor:
        """The tensor, among its own, that a weight of the same shape can be in."""


def is_parametrized(module: object, tensor_name: str | None = None) -> bool:
    """True if any weight of a layer, or the one of a name, is computed from other tensors."""
    found = vars(module).get("parametrizations", {}) if hasattr(module, "__dict__") else {}
    return bool(found) if tensor_name is None else tensor_name in found


def weight_of(module: Any, name: str, what: str) -> Tensor:
    """The tensor of a layer that is to be parametrized; raises `TypeError` or `ValueError`."""
    if is_parametrized(module, name):
        raise ValueError(
            f"{what}: {name} of this {type(module).__name__} is parametrized already; call"
            " nn.utils.parametrize.remove_parametrizations first"
        )
    weight = vars(module).get(name) if hasattr(module, "__dict__") else None
    if not isinstance(weight, Tensor):
        tensors = [
            key for key, value in getattr(module, "__dict__", {}).items() if is_tensor(value)
        ]
        raise TypeError(
            f"{what}: {type(module).__name__} has no tensor {name!r}; it has "
            f"{', '.join(tensors) or 'none'}"
        )
    return weight


def is_tensor(value: object) -> bool:
    """True for a tensor."""
    return isinstance(value, Tensor)


def register(module: Any, name: str, parametrization: Parametrization) -> None:
    """Makes a layer's tensor one that is computed."""
    del vars(module)[name]
    vars(module).setdefault("parametrizations", {})[name] = parametrization
    _change_class(module)


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Make a computed weight a plain tensor again: its value, or the original weight.

    Returns the layer. Raises `ValueError` if the weight is not parametrized, or if the original is
    not kept.

    >>> from ferrule.nn.utils.parametrize import remove_parametrizations
    >>> from ferrule import nn
    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> sorted(nn.state.get_state_dict(remove_parametrizations(layer, "weight")))
    ['bias', 'weight']
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(
            f"remove_parametrizations: {tensor_name} of this {type(module).__name__} is not"
            " parametrized"
        )
    found: Parametrization = module.parametrizations[tensor_name]
    if not leave_parametrized and not found.keeps_original:
        raise ValueError(
            f"remove_parametrizations: {type(found).__name__} does not keep what {tensor_name} was"
            " before; use leave_parametrized=True"
        )
    weight = found.plain()
    if leave_parametrized:
        with Tensor.no_grad():
            weight.assign(found.value().detach())
    del module.parametrizations[tensor_name]
    _change_class(module)
    vars(module)[tensor_name] = weight
    return module


def _change_class(module: Any) -> None:
    """Gives a layer the class in which the names of its parametrized weights compute them."""
    plain = getattr(type(module), "_plain_class", type(module))
    names = list(module.parametrizations)
    if not names:
        del vars(module)["parametrizations"]
        module.__class__ = plain
        return
    members: dict[str, Any] = {name: _computed(name) for name in names}
    kind = f"Parametrized{plain.__name__}"
    module.__class__ = type(kind, (plain,), {**members, "_plain_class": plain})


def _computed(name: str) -> property:
    def read(module: Any) -> Tensor:
        found: Parametrization = module.parametrizations[name]
        return found.value()

    def write(module: Any, weight: Tensor) -> None:
        module.parametrizations[name].assign(weight)

    return property(read, write)
