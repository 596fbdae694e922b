"""Layers in order, and layers by name; parameters in order, and by name."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from textwrap import indent
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

from ferrule.base.callbacks import call_back
from ferrule.nn.module import Layer as _Layer
from ferrule.nn.parameters import Parameter
from ferrule.nn.texts import alike_together
from ferrule.tensor import Tensor

Layer: TypeAlias = Callable[..., Any]


class _InOrder(_Layer):
    """The base of containers whose parts are attributes, named by their places: "0", "1", ..."""

    _is_container = True

    def _part(self, value: Any) -> Any:
        """A value as it is kept; raises `TypeError` for one that does not belong here."""
        return value

    def append(self, value: Any) -> Self:
        """Adds a part at the end, named by its place."""
        vars(self)[str(len(self))] = self._part(value)
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Adds parts at the end."""
        for value in values:
            self.append(value)
        return self

    def insert(self, index: int, value: Any) -> Self:
        """Puts a part before the one at a place; those after it get new names."""
        values = list(self)
        values.insert(index, self._part(value))
        return self._renew(values)

    def pop(self, key: int = -1) -> Any:
        """Removes a part and returns it; those after it get new names."""
        values = list(self)
        taken = values.pop(key)
        self._renew(values)
        return taken

    def _renew(self, values: Iterable[Any]) -> Self:
        vars(self).clear()
        vars(self).update({str(place): value for place, value in enumerate(values)})
        return self

    def __len__(self) -> int:
        return len(vars(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(list(vars(self).values()))

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            taken = type(self).__new__(type(self))
            vars(taken).update(list(vars(self).items())[place])
            return taken
        return list(vars(self).values())[place]

    def __setitem__(self, place: int, value: Any) -> None:
        vars(self)[list(vars(self))[place]] = self._part(value)

    def __delitem__(self, place: int | slice) -> None:
        values = list(self)
        del values[place]
        self._renew(values)

    def __add__(self, others: Iterable[Any]) -> Self:
        made = type(self).__new__(type(self))
        return made.extend(self).extend(others)

    def __iadd__(self, others: Iterable[Any]) -> Self:
        return self.extend(others)

    if TYPE_CHECKING:  # names are parts

        def __getattr__(self, name: str) -> Any: ...


class ModuleList(_InOrder):
    """Layers in a list, with parameters named by their places. Any list is a container of layers.

    Raises `TypeError` for what is no list of layers.

    >>> from ferrule import nn
    >>> layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), len(list(layers.parameters()))
    (3, 6)
    """

    def __init__(self, modules: Iterable[Layer] = ()) -> None:
        if not isinstance(modules, Iterable):
            kind = type(modules).__name__
            raise TypeError(f"ModuleList: {kind} is no list of layers; put it into one: [...]")
        self.extend(modules)

    def __repr__(self) -> str:
        return (
            f"ModuleList(\n{indent(alike_together(list(self)), '  ')}\n)"
            if self
            else "ModuleList()"
        )


class Sequential(_InOrder):
    """Layers or functions, called one after another; given a dict, under its names.

    Its layers are its attributes: `model[0]` is `getattr(model, "0")`.

    Raises `TypeError` for a layer that cannot be called.

    >>> from ferrule.nn import Sequential
    >>> from ferrule import Tensor
    >>> model = Sequential(Tensor.relu, Tensor.sqrt)
    >>> model(Tensor([-1.0, 4.0])).tolist()
    [0.0, 2.0]
    >>> Sequential({"first": Tensor.relu}).first is Tensor.relu
    True
    """

    def __init__(self, *layers: Layer | Mapping[str, Layer]) -> None:
        for layer in layers:
            if isinstance(layer, Mapping):
                vars(self).update(layer)
            else:
                self.append(layer)

    def __call__(self, x: Any) -> Any:
        """All layers applied to `x`, in order."""
        for layer in self:
            x = call_back(layer, x)
        return x

    def _part(self, value: Layer) -> Layer:
        if not callable(value):
            kind = type(value).__name__
            raise TypeError(f"Sequential: layer {len(self)} is {kind}, which cannot be called")
        if isinstance(value, type) and issubclass(value, _Layer):
            name = value.__name__
            raise TypeError(f"Sequential: layer {len(self)} is the class {name}; call it: {name}()")
        return value


class ParameterList(_InOrder):
    """Parameters in a list, named by their places.

    >>> from ferrule import Tensor, nn
    >>> weights = nn.ParameterList([Tensor.zeros(2), Tensor.zeros(3)])
    >>> list(weights.state_dict())
    ['0', '1']
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.extend(values)

    def _part(self, value: Any) -> Any:
        return _parameter(value)


def _parameter(value: Any) -> Any:
    """A tensor as a parameter, unless it is one; anything else as it is."""
    is_new = isinstance(value, Tensor) and value.requires_grad is None
    return Parameter(value) if is_new else value


class _ByName(_Layer):
    """The base of containers whose parts are attributes, under names of their own."""

    _is_container = True

    def _part(self, value: Any) -> Any:
        """A value as it is kept."""
        return value

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Sets parts by name."""
        for name, value in dict(values).items():
            self[name] = value

    def keys(self) -> KeysView[str]:
        """The names."""
        return vars(self).keys()

    def values(self) -> ValuesView[Any]:
        """The parts."""
        return vars(self).values()

    def items(self) -> ItemsView[str, Any]:
        """The names and the parts."""
        return vars(self).items()

    def pop(self, key: str) -> Any:
        """Removes a part and returns it. Raises `KeyError`."""
        return vars(self).pop(key)

    def clear(self) -> None:
        """Removes all parts."""
        vars(self).clear()

    def get(self, key: str, default: Any = None) -> Any:
        """A part, or the default."""
        return vars(self).get(key, default)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            kind = type(self).__name__
            raise TypeError(f"{kind}: the name {name!r} is no string")
        vars(self)[name] = self._part(value)

    def __delitem__(self, name: str) -> None:
        del vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    if TYPE_CHECKING:  # names are parts

        def __getattr__(self, name: str) -> Any: ...


class ModuleDict(_ByName):
    """Layers by name. Any dict is a container of layers, with parameters named by its keys.

    Raises `TypeError` for what is no dict of layers.

    >>> from ferrule.nn import ModuleDict
    >>> list(ModuleDict({"size": abs}))
    ['size']
    """

    def __init__(
        self, modules: Mapping[str, Layer] | Iterable[tuple[str, Layer]] = (), **named: Layer
    ) -> None:
        if not isinstance(modules, Iterable):
            kind = type(modules).__name__
            raise TypeError(f"ModuleDict: {kind} is no dict of layers; give it names: {{...}}")
        self.update({**dict(modules), **named})


class ParameterDict(_ByName):
    """Parameters by name.

    >>> from ferrule import Tensor, nn
    >>> weights = nn.ParameterDict({"left": Tensor.zeros(2)})
    >>> weights["left"].requires_grad, list(weights)
    (True, ['left'])
    """

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.update(parameters)

    def _part(self, value: Any) -> Any:
        return _parameter(value)
