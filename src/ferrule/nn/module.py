"""`Module`: layers and models with PyTorch's methods. A model need not be one.

A module keeps its tensors and its layers in ordinary attributes. So whatever walks attributes (a
capture, `nn.state`) finds in it what it finds in any object, at the same cost. Only what attributes
do not say is beside them, in slots: the mode, the hooks, the names of buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from ferrule.autograd import is_training, train
from ferrule.base.calls import explain_constructor
from ferrule.base.changes import changes
from ferrule.ir.dtype import DType, dtypes
from ferrule.nn.hooks import NOTHING, Extra, Hook, RemovableHandle, Role, numbers, with_hooks
from ferrule.nn.state.model import Array, Mismatch, children_of, load_tensors, parts_of
from ferrule.nn.texts import settings, text, tree
from ferrule.tensor import Tensor
from ferrule.tensor.data import DTypeLike

Tensors: TypeAlias = Iterator[tuple[str, Tensor]]

# Methods of PyTorch's modules, and their replacements here.
_INSTEAD = {
    "cuda": "to('CUDA') moves it",
    "share_memory": "processes load a model from a file: nn.state.safe_load",
    "compile": "ferrule.TinyJit(model) captures its calls",
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
        if isinstance(part, Module):
            part.training = mode


# Calling a module


def _separate(cls: type[Module]) -> None:
    """Make the `__call__` that a class itself defines its `forward`, below hooks and the mode.

    One that overrides the `__call__` of another layer stays, and runs in the layer's own mode.
    """
    call: Callable[..., Any] | None = vars(cls).get("__call__")
    if call is None:
        return
    inherited = next(vars(base)["__call__"] for base in cls.__mro__[1:] if "__call__" in vars(base))
    if inherited is Module.__call__ and "forward" not in vars(cls):
        type.__setattr__(cls, "forward", call)
        type.__setattr__(cls, "__call__", wraps(call)(_dispatching()))
        return

    @wraps(call)
    def following(self: Module, *args: Any, **kwargs: Any) -> Any:
        extra = self._beside
        if extra is None or extra.mode is None:
            return call(self, *args, **kwargs)
        with train(extra.mode):
            return call(self, *args, **kwargs)

    type.__setattr__(cls, "__call__", following)


def _dispatching() -> Callable[..., Any]:
    """A new `__call__` of modules, since its name and docstring are a class's own."""

    def dispatching(self: Module, *args: Any, **kwargs: Any) -> Any:
        extra = self._beside
        if extra is None:
            return self.forward(*args, **kwargs)
        return _called(self, extra, args, kwargs)

    return dispatching


def _called(module: Module, extra: Extra, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a module in its own mode, with its hooks."""
    with nullcontext() if extra.mode is None else train(extra.mode):
        if extra.hooks:
            return with_hooks(module, extra.hooks, args, kwargs)
        return module.forward(*args, **kwargs)


# Modules


class _Beside:
    """The slot of a module, in a class of its own: `Module` has attributes too."""

    __slots__ = ("_beside",)

    _beside: Extra | None


class Module(_Beside):
    """The base class of models in the manner of PyTorch: override `forward`, call the module.

    A tensor in an attribute is a parameter if its `requires_grad` was set (`nn.Parameter` sets it);
    a buffer if `register_buffer` put it there; else it belongs to the program, and `state_dict`
    leaves it out. Layers in attributes, also in lists and dicts, are its sub-modules.

    A model of a class of your own starts in training, and `train()` and `eval()` decide for it and
    what is in it. ferrule's layers go by the model that calls them, else by `Tensor.training`.

    >>> from ferrule import Tensor, nn
    >>> class Double(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = nn.Linear(3, 2)
    ...     def forward(self, x):
    ...         return self.fc(x) * 2
    >>> model = Double()
    >>> model(Tensor.ones(4, 3)).shape, [name for name, _ in model.named_parameters()]
    ((4, 2), ['fc.weight', 'fc.bias'])
    """

    _at_first: ClassVar[Extra | None] = Extra(mode=True)
    """What a new module has beside its attributes."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """A module without attributes."""
        self = super().__new__(cls)
        object.__setattr__(self, "_beside", cls._at_first)
        return self

    def __init_subclass__(cls) -> None:
        explain_constructor(cls)
        _separate(cls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the module, which a class defines; call the module, not this."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward method; define it: def forward(self, x)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward` in the module's mode, with its hooks."""
        extra = self._beside
        if extra is None:
            return self.forward(*args, **kwargs)
        return _called(self, extra, args, kwargs)

    # -- training and evaluation -----------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Make this module, and all modules in it, behave as in training from now on.

        It has priority over `Tensor.training`, in every thread that calls the module. Those in it
        that override `train` have theirs called.

        >>> from ferrule import nn
        >>> nn.Dropout(0.5).train().training
        True
        """
        self.training = mode
        for child in self.children():
            child.train(mode)
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
        """True if the module behaves as in training: its own mode if it was set, else the thread's.

        Setting it sets the mode of this module alone, and None removes it.
        """
        mode = (self._beside or NOTHING).mode
        return is_training() if mode is None else mode

    @training.setter
    def training(self, mode: bool | None) -> None:
        self._set_beside(mode=None if mode is None else bool(mode))

    def _set_beside(self, **changed: Any) -> None:
        extra = (self._beside or NOTHING)._replace(**changed)
        object.__setattr__(self, "_beside", None if extra == NOTHING else extra)
        changes.count += 1

    def _set_role(self, name: str, role: Role) -> None:
        roles = dict((self._beside or NOTHING).roles)
        self._set_beside(roles=((*{**roles, name: role}.items(),)))

    # -- attributes ------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # which would take any name for one of a layer

        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, Tensor) and value.requires_grad is None:
                old = vars(self).get(name)
                is_parameter = isinstance(old, Tensor) and old.requires_grad is not None
                if is_parameter and name not in dict((self._beside or NOTHING).roles):
                    self._set_role(name, "parameter")  # as the tensor before it
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> Any:
            # Only where there is no such attribute.
            if name == "_beside":  # made without `__new__`
                return None
            hint = _INSTEAD.get(name, f"it has {', '.join(vars(self)) or 'none'}")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; {hint}",
                name=name,
                obj=self,
            )

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set an attribute to a tensor that `to` moves, `state_dict` has, and nobody trains.

        If it is not `persistent`, `state_dict` leaves it out.

        >>> from ferrule import Tensor, nn
        >>> model = nn.Module()
        >>> model.register_buffer("mask", Tensor.ones(2))
        >>> list(model.state_dict()), list(model.parameters())
        (['mask'], [])
        """
        self._set_role(name, "buffer" if persistent else "unsaved buffer")
        vars(self)[name] = tensor

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Set an attribute to a parameter, or to None where there is none."""
        self._set_role(name, "parameter")
        vars(self)[name] = param

    def add_module(self, name: str, module: Callable[..., Any] | None) -> None:
        """Set an attribute to a module."""
        setattr(self, name, module)

    register_module = add_module

    # -- what is in it ---------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules in attributes, each once; those in lists and dicts have dotted names."""
        seen: set[int] = set()
        for name, module in _modules_in(self, "", frozenset()):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules in attributes, each once."""
        return (module for _, module in self.named_children())

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all modules in it under dotted names, outer ones first.

        >>> from ferrule import nn
        >>> [name for name, _ in nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())).named_modules()]
        ['', '0', '1', '1.0']
        """
        seen = set() if memo is None else memo
        if remove_duplicate and id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, module in _modules_in(self, prefix, frozenset()):
            yield from module.named_modules(seen, name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all modules in it, each once."""
        return (module for _, module in self.named_modules())

    def _tensors(
        self, roles: Sequence[Role], prefix: str, recurse: bool, distinct: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of some roles, under dotted names: a module's own before those below."""
        seen: set[int] = set()
        holders = (
            self.named_modules(prefix=prefix, remove_duplicate=distinct)
            if recurse
            else [(prefix, self)]
        )
        for name, module in holders:
            named = dict((module._beside or NOTHING).roles)
            for key, tensor, role in _roles_in(module, name, named, frozenset()):
                if role in roles and not (distinct and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield key, tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Tensors:
        """The parameters under dotted names, each once. Frozen ones are among them."""
        return self._tensors(["parameter"], prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """The parameters, each once: what an optimiser takes.

        >>> from ferrule import nn
        >>> [parameter.shape for parameter in nn.Linear(3, 2).parameters()]
        [(2, 3), (2,)]
        """
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Tensors:
        """The buffers under dotted names, each once."""
        return self._tensors(["buffer", "unsaved buffer"], prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, each once."""
        return (tensor for _, tensor in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Any:
        """The module of a dotted name; this one for "". Raises `AttributeError`."""
        found: Any = self
        for name in target.split(".") if target else ():
            found = dict(children_of(found)).get(name)
            if found is None:
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return found

    def get_parameter(self, target: str) -> Tensor:
        """The parameter of a dotted name. Raises `AttributeError`."""
        return self._found(target, self.named_parameters(remove_duplicate=False), "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted name. Raises `AttributeError`."""
        return self._found(target, self.named_buffers(remove_duplicate=False), "buffer")

    def _found(self, target: str, tensors: Iterable[tuple[str, Tensor]], what: str) -> Tensor:
        for name, tensor in tensors:
            if name == target:
                return tensor
        raise AttributeError(f"{type(self).__name__} has no {what} {target!r}")

    # -- states ----------------------------------------------------------------------------------

    def state_dict(self, *, prefix: str = "") -> dict[str, Tensor]:
        """The parameters and the persistent buffers under dotted names, in the same memory.

        >>> from ferrule import nn
        >>> list(nn.BatchNorm2d(3).state_dict())[:3]
        ['weight', 'bias', 'running_mean']
        """
        start = prefix.rstrip(".")
        return {name: tensor.detach() for name, tensor in self._saved(start)}

    def _saved(self, prefix: str = "") -> Tensors:
        return self._tensors(["parameter", "buffer"], prefix, recurse=True, distinct=False)

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor | Array], strict: bool = True
    ) -> Mismatch:
        """Copy tensors or arrays into the parameters and persistent buffers of the same names.

        As `nn.state.load_state_dict`, which also explains the errors.
        """
        return load_tensors(dict(self._saved()), state_dict, strict)

    # -- changes of all tensors ------------------------------------------------------------------

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call a function on all modules, this one last."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _change(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Make all parameters and buffers what a function makes of them, and gradients too."""
        roles: Sequence[Role] = ("parameter", "buffer", "unsaved buffer")
        with Tensor.no_grad():
            for _, tensor in self._tensors(roles, "", recurse=True, distinct=True):
                slope = tensor.grad
                tensor.grad = None
                tensor.replace(function(tensor.detach()).detach())
                if slope is not None:
                    tensor.grad = function(slope)
        return self

    def to(self, *args: Any, device: str | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move parameters and buffers to a device, and cast those of floats to a dtype, in place.

        Takes a device, a dtype, both, or a tensor that has them.

        >>> from ferrule import dtypes, nn
        >>> nn.Linear(3, 2).to("CPU", dtypes.float64).weight.dtype
        dtypes.float64
        """
        for given in args:
            if isinstance(given, Tensor):
                device, dtype = given.device, given.dtype
            elif isinstance(given, DType):
                dtype = given
            elif isinstance(given, str):
                device = given
            elif given is not None and not isinstance(given, bool):
                kind = type(given).__name__
                raise TypeError(f"to: {kind} is neither a device nor a dtype")

        def changed(tensor: Tensor) -> Tensor:
            moved = tensor if device is None else tensor.to(device)
            is_cast = dtype is not None and tensor.is_floating_point()
            return moved.cast(dtype) if is_cast and dtype is not None else moved

        return self._change(changed)

    def cpu(self) -> Self:
        """Move parameters and buffers to the device CPU, in place."""
        return self.to("CPU")

    def float(self) -> Self:
        """Cast parameters and buffers of floats to float32, in place."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Cast parameters and buffers of floats to float64, in place."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Cast parameters and buffers of floats to float16, in place."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast parameters and buffers of floats to bfloat16, in place."""
        return self.to(dtypes.bfloat16)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let all parameters collect gradients, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        for parameter in self.parameters():
            slope = parameter.grad
            if slope is not None:
                parameter.grad = None if set_to_none else slope.zeros_like()

    # -- hooks -----------------------------------------------------------------------------------

    def _register(self, hook: Hook, prepend: bool) -> RemovableHandle:
        known = (self._beside or NOTHING).hooks
        self._set_beside(hooks=(hook, *known) if prepend else (*known, hook))
        return RemovableHandle(self, hook.number)

    def _remove_hook(self, number: int) -> None:
        known = (self._beside or NOTHING).hooks
        self._set_beside(hooks=tuple(hook for hook in known if hook.number != number))

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; what it returns takes the arguments' place.

        With `with_kwargs` it is called with the keywords too, and returns both.
        """
        return self._register(Hook(next(numbers), "pre", hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, result)` after `forward`; what it returns is the result then.

        With `with_kwargs` the keywords come after the arguments.
        """
        return self._register(Hook(next(numbers), "forward", hook, with_kwargs), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when gradients have gone through the module.

        Both are tuples, with None for what has no gradient. If it returns a tuple, that takes the
        place of `grad_input`.

        >>> from ferrule import Tensor, nn
        >>> x, layer = Tensor([-1.0, 2.0], requires_grad=True), nn.ReLU()
        >>> handle = layer.register_full_backward_hook(lambda module, into, out: (into[0] * 10,))
        >>> _ = layer(x).sum().backward()
        >>> x.grad.tolist()
        [0.0, 10.0]
        """
        return self._register(Hook(next(numbers), "backward", hook), prepend)

    # -- text ------------------------------------------------------------------------------------

    _is_container: ClassVar[bool] = False
    """True if attributes are the parts of a container, and no settings."""

    def _is_below(self, value: object) -> bool:
        """True for an attribute that has a line of its own."""
        if isinstance(value, list | tuple):
            return any(isinstance(part, Module) for part in value)
        return self._is_container or isinstance(value, Module)

    _shown: ClassVar[str | None] = None
    """The settings in its text, in the words of `texts.settings`; all attributes for None."""

    def _settings(self) -> list[str]:
        if self._shown is not None:
            return list(settings(self, self._shown))
        shown = [(name, value) for name, value in vars(self).items() if not name.startswith("_")]
        return [f"{name}={text(value)}" for name, value in shown if not self._is_below(value)]

    def extra_repr(self) -> str:
        """The settings in a module's `repr`, for a class to override."""
        return ", ".join(self._settings())

    def __repr__(self) -> str:
        below = [
            (name, part)
            for name, part in vars(self).items()
            if not name.startswith("_") and self._is_below(part)
        ]
        each = self._settings() if self._shown is None else ()
        return tree(type(self).__name__, self.extra_repr(), each, below)


class Layer(Module):
    """A module whose `repr` names its settings, and that has no mode unless one is set.

    >>> from ferrule import nn
    >>> nn.Linear(3, 2)
    Linear(in_features=3, out_features=2, bias=True)
    """

    __slots__ = ()

    _at_first = None


def _modules_in(
    holder: object, prefix: str, open_parts: frozenset[int]
) -> Iterator[tuple[str, Module]]:
    """The modules in a holder that are in no other module."""
    inside = open_parts | {id(holder)}
    for key, part in children_of(holder):
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(part, Module):
            yield name, part
        elif not isinstance(part, Tensor) and id(part) not in inside:
            yield from _modules_in(part, name, inside)


def _roles_in(
    holder: object, prefix: str, roles: Mapping[str, Role], open_parts: frozenset[int]
) -> Iterator[tuple[str, Tensor, Role]]:
    """The tensors in a holder that are in no module below, and have a role."""
    inside = open_parts | {id(holder)}
    for key, part in children_of(holder):
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(part, Tensor):
            if key in roles:
                yield name, part, roles[key]
            elif part.requires_grad is not None:
                yield name, part, "parameter"
        elif not isinstance(part, Module) and id(part) not in inside:
            yield from _roles_in(part, name, {}, inside)
