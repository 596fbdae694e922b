"""Layers without parameters: a function of tensors, and its settings.

`layer` makes a class of a function and the settings that it gets, which become attributes:
`LeakyReLU(0.2)(x)` is `x.leaky_relu(0.2)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeAlias

from ferrule.base.calls import is_several, whole
from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_chance, check_number
from ferrule.tensor import Tensor
from ferrule.tensor.checked import no_tensor

P = ParamSpec("P")
Chance: TypeAlias = float
"""From 0 to 1."""


class Function(Layer):
    """A layer that calls a function with settings; `layer` makes its classes."""

    _function: ClassVar[Callable[..., Any]]

    def _settle(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make attributes of the arguments of a constructor of some signature."""
        settings = signature.bind(*args, **kwargs)
        settings.apply_defaults()
        for name, value in settings.arguments.items():
            annotation = str(signature.parameters[name].annotation)
            if isinstance(value, Tensor) and "Tensor" not in annotation:
                kind = type(self).__name__
                raise TypeError(
                    f"{kind}: {name} is a tensor; settings make the layer, which is then called on"
                    f" tensors: {kind}()(...)"
                )
            self._check(name, annotation, value)
            if isinstance(value, Tensor):
                self.register_buffer(name, value.detach().requires_grad_(False))
            else:
                vars(self)[name] = value
        if "kernel_size" in vars(self) and vars(self).get("stride", 0) is None:
            vars(self)["stride"] = vars(self)["kernel_size"]

    def _check(self, name: str, annotation: str, value: Any) -> None:
        """Raise an error for a setting whose kind does not fit its annotation."""
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
        return self._function(*inputs, **vars(self))


def layer(
    function: Callable[..., Any], shown: str | None = None
) -> Callable[[Callable[P, None]], Callable[P, Function]]:
    """The class of layers that call a function of tensors with settings.

    The parameters of the decorated function are the settings, and its docstring the class's; it has
    no body. The function gets the settings by name, but for `inplace`. `shown` says which settings
    the text of a layer has, as `texts.settings` reads it; all, if it is None.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.functions import layer
    >>> @layer(Tensor.leaky_relu)
    ... def Leaky(negative_slope: float = 0.5) -> None:
    ...     "x, and below zero a part of it."
    >>> Leaky()(Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def made(settings: Callable[P, None]) -> Any:
        signature = inspect.signature(settings)
        takes_inplace = "inplace" in signature.parameters

        def __init__(self: Function, *args: Any, **kwargs: Any) -> None:
            self._settle(signature, args, kwargs)

        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        named = signature.replace(parameters=[this, *signature.parameters.values()])
        __init__.__signature__ = named  # type: ignore[attr-defined]
        members = {
            "__doc__": settings.__doc__,
            "__module__": settings.__module__,
            "__qualname__": settings.__qualname__,
            "__init__": __init__,
            "_shown": shown,
            "_function": staticmethod(_never_in_place(function) if takes_inplace else function),
        }
        return type(settings.__name__, (Function,), members)

    return made


def _never_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs, inplace, **settings: function(*inputs, **settings)
