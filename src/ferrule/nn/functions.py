"""Layers without parameters: a function of tensors, and its settings.

`layer` makes a class of a function. What comes before the `/` are the layer's inputs, the rest are
its settings, which become attributes: `LeakyReLU(0.2)(x)` is `x.leaky_relu(0.2)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias

from ferrule.base.calls import is_several, misfit, whole
from ferrule.nn.parameters import check_chance, check_number
from ferrule.nn.shown import Shown
from ferrule.tensor import Tensor
from ferrule.tensor.checked import no_tensor

P = ParamSpec("P")
Sizes: TypeAlias = int | Sequence[int]
Chance: TypeAlias = float
"""From 0 to 1."""
Wanted: TypeAlias = int | Sequence[int | None]


class Function(Shown):
    """A layer that calls a function with settings; `layer` and `criterion` make its classes."""

    function: ClassVar[Callable[..., Any]]
    signature: ClassVar[inspect.Signature]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            settings = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit(type(self).__name__, self.signature, args, kwargs) or error from None
        settings.apply_defaults()
        for name, value in settings.arguments.items():
            if isinstance(value, Tensor) and "Tensor" not in str(
                self.signature.parameters[name].annotation
            ):
                kind = type(self).__name__
                raise TypeError(
                    f"{kind}: {name} is a tensor; settings make the layer, which is then called on"
                    f" tensors: {kind}()(...)"
                )
            self._check(name, value)
            setattr(self, name, _unlearnt(value))

    def _check(self, name: str, value: Any) -> None:
        """Raise an error for a setting whose kind does not fit its annotation."""
        annotation = str(self.signature.parameters[name].annotation)
        kind = annotation.removesuffix(" | None")
        if value is None and kind != annotation:
            return
        if kind == "float":
            check_number(self, name, value)
        elif kind == "Chance":
            check_chance(self, name, value)
        elif kind in ("int", "Sizes"):
            what = f"{type(self).__name__}: {name}"
            for number in value if kind == "Sizes" and is_several(value) else (value,):
                whole(number, what)

    def __call__(self, *inputs: Tensor) -> Any:
        """The function of the inputs, with the layer's settings."""
        if inputs and not isinstance(inputs[0], Tensor):
            raise no_tensor(type(self).__name__, "the input", inputs[0])
        return type(self).function(*inputs, **vars(self))


def _unlearnt(value: Any) -> Any:
    """A setting; a tensor becomes one that is saved with the model and not trained."""
    return value.detach().requires_grad_(False) if isinstance(value, Tensor) else value


def _class_of(function: Callable[..., Any]) -> Any:
    signature = inspect.signature(function)
    settings = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    ]
    members = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "function": staticmethod(function),
        "signature": inspect.Signature(settings),
    }
    return type(function.__name__, (Function,), members)


def layer(function: Callable[Concatenate[Tensor, P], Any]) -> Callable[P, Function]:
    """The class of layers that call a function of one tensor.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.functions import layer
    >>> @layer
    ... def Scale(x: Tensor, /, factor: float = 2.0) -> Tensor:
    ...     return x * factor
    >>> Scale(factor=3.0)(Tensor([1.0, 2.0])).tolist()
    [3.0, 6.0]
    """
    made: Callable[P, Function] = _class_of(function)
    return made


def criterion(function: Callable[Concatenate[Tensor, Tensor, P], Any]) -> Callable[P, Function]:
    """The class of layers that call a function of two tensors, such as a loss."""
    made: Callable[P, Function] = _class_of(function)
    return made


def comparison(
    function: Callable[Concatenate[Tensor, Tensor, Tensor, P], Any],
) -> Callable[P, Function]:
    """The class of layers that call a function of three tensors."""
    made: Callable[P, Function] = _class_of(function)
    return made
