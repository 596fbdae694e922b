"""The base class of layers: their `repr`, and their training mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from textwrap import indent
from typing import TYPE_CHECKING, Any, Self

from ferrule.autograd import is_training, train
from ferrule.base.calls import explain_constructor
from ferrule.nn.state.model import parts_of
from ferrule.tensor import Tensor

_WIDTH = 100

# Methods of PyTorch's modules, and their replacements here.
_INSTEAD = {
    "add_module": "layers are attributes: setattr(model, name, layer), and append of a Sequential",
    **dict.fromkeys(("children", "modules", "named_modules"), "layers are attributes: vars(model)"),
    **dict.fromkeys(
        ("apply", "buffers", "named_parameters", "state_dict"),
        "nn.state.get_state_dict(model) has all tensors by name",
    ),
    **{
        kind: f"nn.state.get_parameters(model) are the tensors: p.replace(p.{kind}())"
        for kind in ("bfloat16", "double", "float", "half")
    },
    **dict.fromkeys(
        ("cpu", "cuda", "to"), "layers are made on a device: nn.Linear(4, 2, device='CUDA')"
    ),
    "forward": "call the layer",
    "load_state_dict": "nn.state.load_state_dict(model, tensors) loads them",
    "parameters": "nn.state.get_parameters(model) finds them",
    "register_buffer": "assign a Tensor with requires_grad=False to an attribute",
    "register_forward_hook": "wrap the layer: a function that calls it is a layer too",
    "register_parameter": "assign a Tensor to an attribute",
    "requires_grad_": "nn.state.get_parameters(model) are the tensors: p.requires_grad_(False)",
    "zero_grad": "the optimiser's zero_grad() forgets all gradients",
}


def set_training(model: object, mode: bool | None = True) -> None:
    """Make all layers in a model behave as in training, or as in evaluation, from now on.

    A model is any object, list or dict with layers in it, as for `nn.state.get_state_dict`. The
    mode of a layer has priority over `Tensor.training`, in every thread; None removes it. Calls in
    a model of your own, such as `x.dropout(0.5)`, take the mode of the layer that calls them, else
    `Tensor.training`.

    >>> from ferrule import Tensor, nn
    >>> model = [nn.Dropout(1.0), nn.Linear(2, 2)]
    >>> nn.set_training(model)
    >>> model[0](Tensor([1.0, 2.0])).tolist()
    [0.0, 0.0]
    """
    for part in parts_of(model):
        if isinstance(part, Shown):
            part.training = mode


def _follow_own_mode(cls: type[Shown]) -> None:
    """Make the `__call__` that a class itself defines run in the layer's own mode, if set."""
    call: Callable[..., Any] | None = vars(cls).get("__call__")
    if call is None:
        return

    @wraps(call)
    def following(self: Shown, *args: Any, **kwargs: Any) -> Any:
        mode = self._own_mode
        if mode is None:
            return call(self, *args, **kwargs)
        with train(mode):
            return call(self, *args, **kwargs)

    type.__setattr__(cls, "__call__", following)


class Shown:
    """A layer whose `repr` names its settings, the shapes of its tensors, and the layers in it.

    >>> from ferrule import nn
    >>> nn.Linear(3, 2)
    Linear(weight=(2, 3), bias=(2,))
    """

    __slots__ = ("_own_mode",)  # beside the attributes, which are layers or settings

    _own_mode: bool | None

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """A layer without attributes, and without a mode of its own."""
        self = super().__new__(cls)
        self._own_mode = None
        return self

    def __init_subclass__(cls) -> None:
        explain_constructor(cls)
        _follow_own_mode(cls)

    # -- training and evaluation -----------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Make this layer, and all layers in it, behave as in training from now on.

        It has priority over `Tensor.training`, in every thread that calls the layer.

        >>> from ferrule import nn
        >>> nn.Dropout(0.5).train().training
        True
        """
        set_training(self, mode)
        return self

    def eval(self) -> Self:
        """The same as `train(False)`: evaluation.

        >>> from ferrule import nn
        >>> nn.Dropout(0.5).eval().training
        False
        """
        return self.train(False)

    @property
    def training(self) -> bool:
        """True if the layer behaves as in training: its own mode if it was set, else the thread's.

        Setting it sets the mode of this layer alone, and None removes it.
        """
        return is_training() if self._own_mode is None else self._own_mode

    @training.setter
    def training(self, mode: bool | None) -> None:
        self._own_mode = None if mode is None else bool(mode)

    if not TYPE_CHECKING:  # which would take any name for one of a layer

        def __getattr__(self, name: str) -> Any:
            # Only where there is no such attribute.
            if name == "_own_mode":  # made without `__new__`
                return None
            hint = _INSTEAD.get(name, f"it has {', '.join(vars(self)) or 'none'}")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; {hint}",
                name=name,
                obj=self,
            )

    def __repr__(self) -> str:
        parts = [
            f"{name}={_text(value)}"
            for name, value in vars(self).items()
            if not name.startswith("_")
        ]
        line = ", ".join(parts)
        kind = type(self).__name__
        if len(kind) + len(line) < _WIDTH and "\n" not in line:
            return f"{kind}({line})"
        return f"{kind}({_block(parts)})"


def _block(parts: Sequence[str]) -> str:
    """The parts on lines of their own, between two brackets."""
    lines = indent(",\n".join(parts), "  ")
    return f"\n{lines},\n"


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.shape)
    if isinstance(value, list | tuple) and any(isinstance(part, Shown) for part in value):
        return f"[{_block([repr(part) for part in value])}]"
    if callable(value) and not isinstance(value, Shown):
        return str(getattr(value, "__name__", value))
    return repr(value)
