"""Signatures: the named parts that tell calls apart, and the differences between two of them.

A part is a tuple, so that signatures are hashed and compared in C. `inputs.py` fills it in, and its
class names its items. An item that is no part is a leaf.
"""

from __future__ import annotations

import dataclasses
import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias, cast, final

import numpy as np

from ferrule.ir.lazyop import MovementOps

Named: TypeAlias = Iterator[tuple[str, Any]]
"""The items of a part, each with its name."""

_MAX_SHOWN = 60  # characters of a value in a message
_MISSING = "nothing"
"""The value of an argument that was not given, or of an item that is not there."""


class Part(tuple[Any, ...]):
    """A part of a signature. `suffixes` make the names of its items from its own name."""

    __slots__ = ()

    suffixes: ClassVar[tuple[str, ...]] = ()

    def named(self, name: str) -> Named:
        """The items of a part with this name."""
        yield from [(name + end, item) for end, item in zip(self.suffixes, self, strict=True)]

    def brief(self) -> str:
        """The value that the part is of, in a few words."""
        return str(self[0].__name__)

    def differences(self, name: str, new: Part) -> Iterator[str]:
        """The differences to another part of the same class; both have this name."""
        return _among(self.named(name), new.named(name))


@final
class SettingsPart(Part):
    """The global settings that a call's results depend on."""

    __slots__ = ()
    suffixes = (
        *("Tensor.training", "recording of gradients", "autocast", "ALLOW_TF32"),
        "FERRULE_CHECK_INDEX",
        *("FERRULE_SKIP", "Device.DEFAULT", "dtypes.default_float", "dtypes.default_int"),
    )


@final
class TensorPart(Part):
    """A tensor; its gradient is a part of the same kind, or None."""

    __slots__ = ()
    suffixes = (
        *(".shape", ".dtype", ".device", ".requires_grad", " computed from parameters"),
        *(" detached", "'s hooks", "'s view of its memory", " in memory beside its base's"),
        *("'s bytes of memory", ".grad"),
    )

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        for end, item in zip(self.suffixes, self, strict=True):
            yield name + end, _moves(item) if end == "'s view of its memory" else item

    def brief(self) -> str:
        """A tensor and its shape."""
        return f"tensor of shape {shown(self[0])}"

    def differences(self, name: str, new: Part) -> Iterator[str]:
        """The differences; see `Part.differences`."""
        found = list(super().differences(name, new))
        # Another shape mostly has other bytes, a parameter is on the tape: one word will do.
        told = [text for text in found if not text.startswith((f"{name}'s bytes", f"{name} comp"))]
        return iter(told or found)


@final
class ListPart(Part):
    """A list or a tuple: its class, its items, and what a subclass adds."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        kind, items, others = self
        yield f"type({name})", kind
        yield from [(f"{name}[{number}]", item) for number, item in enumerate(items)]
        yield from _attributes(name, others)


@final
class DictPart(Part):
    """A dict: its class, its keys in order, its values, and what a subclass adds."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        kind, keys, values, others = self
        yield f"type({name})", kind
        pairs = zip(keys, values, strict=True)
        yield from [(f"{name}[{shown(key)}]", value) for key, value in pairs]
        yield f"list({name})", keys
        yield from _attributes(name, others)


@final
class RecordPart(Part):
    """A dataclass: its class, its fields, and its other attributes."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        kind, values, others = self
        yield f"type({name})", kind
        pairs = zip(dataclasses.fields(kind), values, strict=True)
        yield from [(f"{name}.{field.name}", value) for field, value in pairs]
        yield from _attributes(name, others)


@final
class SlicePart(Part):
    """A slice: its class, and its three numbers, which may be variables or tensors."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        kind, *numbers = self
        yield f"type({name})", kind
        names = ("start", "stop", "step")
        yield from [(f"{name}.{end}", n) for end, n in zip(names, numbers, strict=True)]


@final
class ArrayPart(Part):
    """A NumPy array or scalar: its class, dtype, shape and contents."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        kind, dtype, shape, contents = self
        yield f"type({name})", kind
        yield from [(f"{name}.dtype", dtype), (f"{name}.shape", shape)]
        yield f"{name}[...]" if isinstance(contents, bytes) else f"{name}.tolist()", contents


@final
class ObjectPart(Part):
    """An object: its class and its `id()`."""

    __slots__ = ()

    def named(self, name: str) -> Named:
        """The items; see `Part.named`."""
        yield from [(f"type({name})", self[0]), (f"id({name})", self[1])]

    def differences(self, name: str, new: Part) -> Iterator[str]:
        """The differences; see `Part.differences`."""
        if self[0] is not new[0]:
            yield from differences(f"type({name})", self[0], new[0])
        elif self != new:
            yield f"{name} is another {self.brief()}"


@final
class Parameters:
    """The names of a function's arguments, as its code writes them.

    Without a signature of the function they are `args[0]` and `kwargs['key']`.
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        try:
            parameters = inspect.signature(cast("Any", function)).parameters.values()
        except (TypeError, ValueError):
            parameters = {}.values()
        is_star = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        self._names = [one.name for one in parameters if one.kind not in is_star]
        rest = [one.name for one in parameters if one.kind is is_star[0]]
        keywords = [one.name for one in parameters if one.kind is is_star[1]]
        self._rest = rest[0] if rest else "args"
        self._keywords = keywords[0] if keywords else "kwargs"

    def positional(self, number: int) -> str:
        """The name of an argument by its position."""
        first = len(self._names)
        return self._names[number] if number < first else f"{self._rest}[{number - first}]"

    def keyword(self, name: str) -> str:
        """The name of an argument by its keyword."""
        return name if name in self._names else f"{self._keywords}[{name!r}]"


@final
class Signature(Part):
    """The settings, the arguments, the names and values of keywords, and what tensors share.

    Of each tensor in the memory of an earlier one, `shared` has its number, that of the earlier
    one, and the first number with the same storage. `reached` has the tensors in memory that the
    function can reach by itself: the number, the memory, and True if it can reach this storage.
    """

    __slots__ = ()

    def arguments(self, parameters: Parameters) -> Named:
        """The arguments, with the names of their parameters."""
        _, args, keywords, values, _, _ = self
        yield from [(parameters.positional(number), item) for number, item in enumerate(args)]
        pairs = zip(keywords, values, strict=True)
        yield from [(parameters.keyword(keyword), item) for keyword, item in pairs]

    def changes(self, new: Signature, parameters: Parameters) -> list[str]:
        """The differences to another call's signature."""
        found = [
            *self[0].differences("", new[0]),
            *_among(self.arguments(parameters), new.arguments(parameters)),
        ]
        before, now = self._relations(parameters), new._relations(parameters)
        for text in dict.fromkeys([*before, *now]):
            if before.get(text) != now.get(text):
                found.append(f"{text} {'no longer' if text not in now else 'now'}")
        # Keywords that are not the same ones were told of.
        return found or list(differences("order of keyword arguments", self[2], new[2]))

    def _relations(self, parameters: Parameters) -> dict[str, Any]:
        """What tensors share, as sentences, with what the signature has of it."""
        arguments = self.arguments(parameters)
        names = [name for pair in arguments for name, _ in tensors_below(*pair)]
        found: dict[str, Any] = {}
        for number, earlier, same in self[4]:
            found[f"{names[number]} shares memory with {names[earlier]}"] = True
            if same != number:
                found[f"{names[number]} is a view of {names[same]}, or of the same tensor"] = True
        for number, memory, is_same in self[5]:
            found[f"{names[number]} is in memory that the function finds by itself"] = memory
            found[f"{names[number]} is a tensor that the function finds by itself"] = is_same
        return found


@final
class CallKey(Part):
    """A whole signature: that of the arguments, then of numbers, gradients and states."""

    __slots__ = ()
    suffixes = ("arguments", "numbers", "places of gradients and states", "gradients and states")


def tensors_below(name: str, part: Any) -> Named:
    """The tensors in a part, gradients included, in the order of `Arguments.tensors`."""
    if isinstance(part, TensorPart):
        yield name, part
    if isinstance(part, Part):
        for label, item in part.named(name):
            yield from tensors_below(label, item)


def objects_below(name: str, part: Any) -> Iterator[tuple[str, int]]:
    """The objects in a part that are known by their `id()`, which follows the name."""
    if isinstance(part, ObjectPart):
        yield name, part[1]
    elif isinstance(part, Part):
        for label, item in part.named(name):
            yield from objects_below(label, item)


def _among(old: Named, new: Named) -> Iterator[str]:
    """The differences between items with the same names, some of which may be missing."""
    before, now = dict(old), dict(new)
    for name in dict.fromkeys([*before, *now]):
        yield from differences(name, before.get(name, _MISSING), now.get(name, _MISSING))


def differences(name: str, old: Any, new: Any) -> Iterator[str]:
    """The differences between two items, in the words of somebody who reads the function."""
    if old == new:
        return
    if isinstance(old, Part) and type(old) is type(new):
        yield from old.differences(name, new)
    elif isinstance(old, bytes) and isinstance(new, bytes):
        yield f"{name} has other contents"
    else:
        yield f"{name} {shown(old)} -> {shown(new)}"


def shown(item: Any) -> str:
    """An item as text: a leaf as Python writes the value that it stands for."""
    if isinstance(item, Part):
        return item.brief()
    if isinstance(item, type):
        return item.__name__
    if isinstance(item, str):
        return item
    if not isinstance(item, tuple):
        return _cut(repr(item))
    if item and isinstance(item[0], type):
        return _cut(repr(value_of(item)))
    comma = "," if len(item) == 1 else ""
    return _cut(f"({', '.join(map(shown, item))}{comma})")


def value_of(leaf: Any) -> Any:
    """The value that `numbers.form` made a leaf of."""
    if not isinstance(leaf, tuple) or not leaf or not isinstance(leaf[0], type):
        return tuple(map(value_of, leaf)) if isinstance(leaf, tuple) else leaf
    kind, *values = leaf
    if issubclass(kind, float):
        return struct.unpack("<d", values[0])[0]
    if issubclass(kind, complex):
        return complex(*[struct.unpack("<d", value)[0] for value in values])
    if issubclass(kind, np.generic):
        return np.frombuffer(values[1], values[0])[0]
    if issubclass(kind, slice | range):
        return kind(*value_of(values[0]))
    return value_of(values[0]) if issubclass(kind, tuple) else values[0]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]} ..."


def _attributes(name: str, others: Any) -> Named:
    """What a subclass adds to a container: plain attributes by name, or the object as a whole."""
    if isinstance(others, ObjectPart):
        yield name, others
    else:
        yield from [(f"{name}.{key}", value) for key, value in others]


def _moves(chain: Sequence[tuple[MovementOps, Any]]) -> str:
    """The movements that make a view from its memory."""
    return ", ".join([f"{op.name.lower()} {shown(arg)}" for op, arg in chain]) or "all of it"
