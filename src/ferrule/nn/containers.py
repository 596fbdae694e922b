"""Layers in order, and layers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final, overload

from ferrule.base.callbacks import call_back
from ferrule.nn.shown import Shown

Layer: TypeAlias = Callable[..., Any]


@final
class ModuleList(list[Any]):
    """A list of layers. Any list is a container of layers, with parameters named by their places.

    >>> from ferrule.nn import ModuleList
    >>> len(ModuleList([abs, round]))
    2
    """

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        if not isinstance(layers, Iterable):
            kind = type(layers).__name__
            raise TypeError(f"ModuleList: {kind} is no list of layers; put it into one: [...]")
        super().__init__(layers)


@final
class ModuleDict(dict[str, Any]):
    """Layers by name. Any dict is a container of layers, with parameters named by its keys.

    >>> from ferrule.nn import ModuleDict
    >>> list(ModuleDict({"size": abs}))
    ['size']
    """

    def __init__(
        self, layers: Mapping[str, Layer] | Iterable[tuple[str, Layer]] = (), **named: Layer
    ) -> None:
        if not isinstance(layers, Iterable):
            kind = type(layers).__name__
            raise TypeError(f"ModuleDict: {kind} is no dict of layers; give it names: {{...}}")
        super().__init__(layers, **named)


@final
class Sequential(Shown):
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

    def append(self, layer: Layer) -> Sequential:
        """Adds a layer at the end, named by its place."""
        if not callable(layer):
            kind = type(layer).__name__
            raise TypeError(f"Sequential: layer {len(self)} is {kind}, which cannot be called")
        if isinstance(layer, type) and issubclass(layer, Shown):
            name = layer.__name__
            raise TypeError(f"Sequential: layer {len(self)} is the class {name}; call it: {name}()")
        vars(self)[str(len(self))] = layer
        return self

    def extend(self, layers: Iterable[Layer]) -> Sequential:
        """Adds layers at the end."""
        for layer in layers:
            self.append(layer)
        return self

    def __len__(self) -> int:
        return len(vars(self))

    def __iter__(self) -> Iterator[Layer]:
        return iter(list(vars(self).values()))

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequential: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return Sequential(dict(list(vars(self).items())[place]))
        return list(vars(self).values())[place]

    def __setitem__(self, place: int, layer: Layer) -> None:
        vars(self)[list(vars(self))[place]] = layer

    if TYPE_CHECKING:  # names are layers

        def __getattr__(self, name: str) -> Any: ...
