"""The tensors of a model under dotted names; calling it with others.

A model is any Python object: its tensors are found by walking attributes, lists, tuples and dicts,
so `model.layers[0].weight` is called `layers.0.weight`, as in PyTorch's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ferrule.base.callbacks import call_back
from ferrule.base.helpers import type_name
from ferrule.nn.state.files import StateError
from ferrule.tensor import Tensor

Array = npt.NDArray[Any]


class Mismatch(NamedTuple):
    """The names that `load_state_dict(strict=False)` left alone."""

    missing: tuple[str, ...]
    """Names in the model, not in the state."""
    unexpected: tuple[str, ...]
    """Names in the state, not in the model."""

    @property
    def missing_keys(self) -> list[str]:
        """`missing` under PyTorch's name, as a list."""
        return list(self.missing)

    @property
    def unexpected_keys(self) -> list[str]:
        """`unexpected` under PyTorch's name, as a list."""
        return list(self.unexpected)


# Walking a model


def holder_of(value: object) -> Any:
    """The holder of the parts of a value: a container itself, or the attributes of an object."""
    if isinstance(value, Mapping | list | tuple):
        return value
    return vars(value) if hasattr(value, "__dict__") and not isinstance(value, type) else {}


def _held(holder: Any) -> Iterator[tuple[Any, Any]]:
    """The parts, and their keys or positions."""
    yield from holder.items() if isinstance(holder, Mapping) else enumerate(holder)


def children_of(value: object) -> Iterator[tuple[str, object]]:
    """The named parts of a container or an object; nothing for a leaf."""
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    for key, part in _held(holder_of(value)):
        yield str(key if names is None else names[key]), part


def _walk(value: object, name: str, open_parts: frozenset[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if id(value) in open_parts:
        return  # a part that refers back to its owner
    inside = open_parts | {id(value)}
    for key, part in children_of(value):
        yield from _walk(part, f"{name}.{key}" if name else key, inside)


def parts_of(model: object) -> Iterator[object]:
    """A model and everything in it, each once: containers, objects, and what these hold."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting.extend([child for _, child in children_of(part)])


def get_state_dict(model: object, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of `model` under dotted names, in the order in which they are found.

    A tensor that occurs twice (tied weights) is listed under both names. Raises `StateError` if two
    different tensors have one name.

    >>> from ferrule.nn.state import get_state_dict
    >>> from ferrule import nn
    >>> layers = [nn.Linear(3, 2), nn.Linear(2, 1, bias=False)]
    >>> {name: tensor.shape for name, tensor in get_state_dict(layers).items()}
    {'0.weight': (2, 3), '0.bias': (2,), '1.weight': (1, 2)}
    """
    state: dict[str, Tensor] = {}
    for name, tensor in _walk(model, prefix.rstrip("."), frozenset()):
        if state.setdefault(name, tensor) is not tensor:
            raise StateError(f"get_state_dict: two tensors are called {name!r}; rename one of them")
    return state


def get_parameters(model: object) -> list[Tensor]:
    """All distinct tensors of `model`: what an optimiser takes.

    >>> from ferrule.nn.state import get_parameters
    >>> from ferrule import nn
    >>> len(get_parameters(nn.Linear(3, 2)))
    2
    """
    distinct = {id(tensor): tensor for tensor in get_state_dict(model).values()}
    return list(distinct.values())


# Calling a model with other tensors


def functional_call(
    model: Callable[..., Any],
    state_dict: Mapping[str, Tensor],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """`model(*args, **kwargs)` with other tensors in the place of those of the same names.

    So a model is a function of its parameters, for `ferrule.grad` and `ferrule.vmap`. An argument
    that is no tuple is the only one. The model is as before afterwards; tensors with several names
    are replaced under all of them. Raises `StateError` for names that it does not have, tensors of
    other shapes, and tensors in tuples, which cannot be replaced.

    >>> from ferrule.nn.state import functional_call, get_state_dict
    >>> from ferrule import Tensor, grad, nn
    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = Tensor([3.0, 4.0])
    >>> loss = lambda weights: functional_call(model, weights, x).sum()
    >>> grad(loss)(get_state_dict(model))["weight"].tolist()
    [[3.0, 4.0]]
    """
    own = get_state_dict(model)
    unknown = tuple(name for name in state_dict if name not in own)
    problems = _name_problems(Mismatch((), unknown)) or _shape_problems(own, state_dict)
    if problems:
        raise StateError(f"functional_call: {'; '.join(problems)}")
    new = {id(own[name]): tensor for name, tensor in state_dict.items()}
    given = args if isinstance(args, tuple) else (args,)
    undo: list[tuple[Any, Any, Tensor]] = []
    try:
        _exchange(model, new, undo, frozenset())
        return call_back(model, *given, **(kwargs or {}))
    finally:
        for container, key, tensor in undo:
            container[key] = tensor


def _exchange(
    value: object,
    new: Mapping[int, Tensor],
    undo: list[tuple[Any, Any, Tensor]],
    open_parts: frozenset[int],
) -> None:
    """Replace tensors in a value by their `id`; notes the old ones in `undo`."""
    if isinstance(value, Tensor) or id(value) in open_parts:
        return
    container = holder_of(value)
    for key, part in list(_held(container)):
        if id(part) not in new:
            _exchange(part, new, undo, open_parts | {id(value)})
        elif isinstance(container, tuple):
            raise StateError(
                f"functional_call: a tensor of shape {part.shape} is in a tuple, where it cannot "
                "be replaced; keep it in a list or an attribute"
            )
        else:
            container[key] = new[id(part)]
            undo.append((container, key, part))


# Loading into a model


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _name_problems(mismatch: Mismatch) -> list[str]:
    problems = []
    if mismatch.missing:
        problems.append(f"missing {_listed(mismatch.missing)}")
    if mismatch.unexpected:
        problems.append(f"unexpected {_listed(mismatch.unexpected)}")
    if problems:
        problems[-1] += _prefix_hint(mismatch) or " (strict=False loads the rest)"
    return problems


def _prefix_hint(mismatch: Mismatch) -> str:
    """The hint for names that differ by a prefix: how to rename them."""
    for names, others, change in [
        (mismatch.unexpected, mismatch.missing, "name.removeprefix({!r})"),
        (mismatch.missing, mismatch.unexpected, "{!r} + name"),
    ]:
        for other in others:
            if names and names[0].endswith(f".{other}"):
                prefix = names[0].removesuffix(other)
                renamed = change.format(prefix)
                return f"; names differ by {prefix!r}: load {{{renamed}: x for name, x in ...}}"
    return ""


def _shape_problems(model: Mapping[str, Tensor], state: Mapping[str, Tensor | Array]) -> list[str]:
    return [
        f"{name} has shape {tuple(state[name].shape)} where the model has {tuple(tensor.shape)}"
        for name, tensor in model.items()
        if name in state and tuple(state[name].shape) != tuple(tensor.shape)
    ]


def _adapted(value: Tensor | Array, parameter: Tensor) -> Tensor:
    tensor = value if isinstance(value, Tensor) else Tensor(value, device=parameter.device)
    moved = tensor.detach().to(parameter.device).cast(parameter.dtype)
    # A copy: the value may be a view of another parameter, which is written before this one.
    return moved.clone()


def load_state_dict(
    model: object, state_dict: Mapping[str, Tensor | Array], strict: bool = True
) -> Mismatch:
    """Copies the tensors or arrays of `state_dict` into the model's tensors of the same name.

    Arrays may be NumPy's, or another library's, as in PyTorch's `model.state_dict()`. Values take
    the dtype and device of the tensor that they go into. With `strict=False`, names that only one
    side has are left alone and returned. Raises `StateError` for any other mismatch, and where no
    name is on both sides; the model is then unchanged.

    >>> from ferrule.nn.state import load_state_dict
    >>> from ferrule import Tensor, nn
    >>> layer = nn.Linear(2, 1)
    >>> _ = load_state_dict(layer, {"weight": Tensor([[1.0, 2.0]]), "bias": Tensor([3.0])})
    >>> layer(Tensor([[10.0, 100.0]])).tolist()
    [[213.0]]
    """
    return load_tensors(get_state_dict(model), state_dict, strict)


def load_tensors(
    parameters: Mapping[str, Tensor], state_dict: Mapping[str, Tensor | Array], strict: bool
) -> Mismatch:
    """Copies tensors or arrays into those of the same name, as `load_state_dict` does."""
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise StateError(f"load_state_dict: {kind} is no dict of tensors by name; see safe_load")
    for name, value in state_dict.items():
        if not isinstance(value, Tensor | np.ndarray) and not hasattr(value, "__dlpack__"):
            kind = type_name(value)
            inside = isinstance(value, Mapping) and value
            hint = f"load what is in it: state[{name!r}]" if inside else "leave it out"
            raise StateError(f"load_state_dict: {name} is {kind}, not a tensor or an array; {hint}")
    mismatch = Mismatch(
        missing=tuple(name for name in parameters if name not in state_dict),
        unexpected=tuple(name for name in state_dict if name not in parameters),
    )
    problems = _shape_problems(parameters, state_dict)
    if strict or (state_dict and parameters and len(mismatch.missing) == len(parameters)):
        problems += _name_problems(mismatch)
    if problems:
        raise StateError(f"load_state_dict: {'; '.join(problems)}")
    _assign_all({name: parameters[name] for name in parameters if name in state_dict}, state_dict)
    return mismatch


def _assign_all(parameters: Mapping[str, Tensor], state_dict: Mapping[str, Tensor | Array]) -> None:
    """Computes every value before the first is written, so that an error changes nothing."""
    values = {name: _adapted(state_dict[name], tensor) for name, tensor in parameters.items()}
    if not values:
        return
    Tensor.realize(*values.values())
    with Tensor.no_grad():
        for name, tensor in parameters.items():
            tensor.assign(values[name])
    Tensor.realize(*parameters.values())
