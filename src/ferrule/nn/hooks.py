"""Hooks of modules, called before and after `forward` and where gradients leave; `Extra`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, final

from ferrule.tensor import Tensor
from ferrule.transforms import custom_vjp

Role: TypeAlias = Literal["parameter", "buffer", "unsaved buffer"]


class Hook(NamedTuple):
    """A function that a module calls."""

    number: int
    kind: Literal["pre", "forward", "backward"]
    function: Callable[..., Any]
    with_kwargs: bool = False


class Extra(NamedTuple):
    """What is set beside the attributes of a module.

    It is immutable and in one slot, so that a replay compares one object for each module.
    """

    mode: bool | None = None
    hooks: tuple[Hook, ...] = ()
    """In the order in which they are called."""
    roles: tuple[tuple[str, Role], ...] = ()
    """The names of tensors whose role their `requires_grad` does not tell."""


NOTHING: Final = Extra()


numbers = count()


@final
class RemovableHandle:
    """A hook of a module; `remove()` ends it. It may be used in a `with` block.

    >>> from ferrule import Tensor, nn
    >>> layer = nn.ReLU()
    >>> with layer.register_forward_hook(lambda module, args, out: out + 1):
    ...     layer(Tensor([1.0])).tolist()
    [2.0]
    >>> layer(Tensor([1.0])).tolist()
    [1.0]
    """

    __slots__ = ("_module", "_number")

    def __init__(self, module: Any, number: int) -> None:
        self._module = module
        self._number = number

    def remove(self) -> None:
        """End the hook; a second call changes nothing."""
        self._module._remove_hook(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def with_hooks(
    module: Any, hooks: tuple[Hook, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a module's `forward`, with its hooks called before and after."""
    for hook in hooks:
        if hook.kind == "pre":
            args, kwargs = _before(hook, module, args, kwargs)
    backward = [hook for hook in hooks if hook.kind == "backward"]
    relay = _Relay(module, backward) if backward else None
    if relay is not None:
        args = relay.inputs(args)
    result = module.forward(*args, **kwargs)
    for hook in hooks:
        if hook.kind == "forward":
            given = (args, kwargs) if hook.with_kwargs else (args,)
            changed = hook.function(module, *given, result)
            result = result if changed is None else changed
    return result if relay is None else relay.outputs(result)


def _before(
    hook: Hook, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after a hook that may change them."""
    if hook.with_kwargs:
        changed = hook.function(module, args, kwargs)
        return (args, kwargs) if changed is None else changed
    changed = hook.function(module, args)
    if changed is None:
        return args, kwargs
    return changed if isinstance(changed, tuple) else (changed,), kwargs


class _Relay:
    """Calls backward hooks where gradients leave a module, with those that entered it."""

    def __init__(self, module: Any, hooks: Sequence[Hook]) -> None:
        self._module = module
        self._hooks = hooks
        self._count = 0
        """The number of the positional arguments."""
        self._places: list[int] = []
        """The places of those that get gradients."""
        self._entered: tuple[Tensor | None, ...] = ()

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with those that get gradients relayed."""
        self._count = len(args)
        self._places = [
            place
            for place, value in enumerate(args)
            if isinstance(value, Tensor) and value._read().edge is not None
        ]
        if not self._places:
            return args
        passed = _passing(self._leave)(*[args[place] for place in self._places])
        found = dict(zip(self._places, passed, strict=True))
        return tuple(found.get(place, value) for place, value in enumerate(args))

    def outputs(self, result: Any) -> Any:
        """The results, with the tensors among them relayed."""
        several = isinstance(result, tuple | list)
        values = list(result) if several else [result]
        places = [
            place
            for place, value in enumerate(values)
            if isinstance(value, Tensor) and value._read().edge is not None
        ]
        if not places:
            return result

        def enter(slopes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            by_place: dict[int, Tensor] = dict(zip(places, slopes, strict=True))
            self._entered = tuple(by_place.get(place) for place in range(len(values)))
            if not self._places:
                self._call((None,) * self._count)
            return slopes

        passed = _passing(enter)(*[values[place] for place in places])
        for place, value in zip(places, passed, strict=True):
            values[place] = value
        return type(result)(values) if several else values[0]

    def _leave(self, slopes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradients of the inputs, as the hooks leave them."""
        by_place: dict[int, Tensor] = dict(zip(self._places, slopes, strict=True))
        found = self._call(tuple(by_place.get(place) for place in range(self._count)))
        return tuple(found[place] for place in self._places)

    def _call(self, leaving: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self._hooks:
            changed = hook.function(self._module, leaving, self._entered)
            if changed is not None:
                leaving = changed if isinstance(changed, tuple) else (changed,)
        return leaving


def _passing(function: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]) -> Callable[..., Any]:
    """A function that returns its arguments, and whose gradients go through `function`."""
    same = custom_vjp(lambda *values: values)
    same.defvjp(lambda *values: (values, None), lambda _, slopes: function(slopes))
    return same
