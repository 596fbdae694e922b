"""Fast path: a call like the last replayed one is recognised without reading its signature.

Reading a signature takes longer than all the rest of a short call. So each argument of the last
call is kept as a matcher that compares what the signature (`inputs.read_arguments`) would hold of
it. If an argument differs, or has no matcher, the signature is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

import numpy as np

from ferrule.base.config import Config, config
from ferrule.base.containers import is_record
from ferrule.base.threadstate import ThreadState, this_thread
from ferrule.device import Device
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import BoundVariable, Expr, Variable
from ferrule.jit.hooks import hooks_of
from ferrule.jit.inputs import Arguments, Chain, Reachable, follow, has_variables, is_copy
from ferrule.jit.replay import Replay
from ferrule.tensor import Tensor

_COMPARED = frozenset({int, bool, str, bytes, type(None)})
_REFUSED = (Expr, np.ndarray, np.generic, complex, range, slice, Tensor)
"""Types that the signature compares by contents, and `==` alone cannot: they have no matcher."""


Given: TypeAlias = tuple[list[Tensor], list[Buffer], dict[Variable, int]]
"""The input of a replay: the tensors of a call, their memory, and the values of variables."""


class _Known(Protocol):
    def accepts(
        self,
        value: Any,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        others: list[Buffer],
    ) -> bool:
        """True if the signature would hold the same of a value; notes its input to the replay.

        The buffers that are not those of the last call are also added to `others`.
        """


@final
class _Memory:
    """The matcher of a tensor in memory, or a view, without a gradient: any tensor of its kind."""

    __slots__ = ("device", "dtype", "is_plain", "kind", "memory", "nbytes", "node", "shape")

    def __init__(self, kind: tuple[Any, ...], memory: Buffer, value: Tensor) -> None:
        self.kind = kind
        self.shape, self.dtype, self.device, self.nbytes = kind[:4]
        self.is_plain = kind[4:] == _PLAIN
        """True for a tensor that is no view and not on the tape."""
        self.node = value._cell.value.node.serial if self.is_plain else -1
        """The serial number of the node of such a tensor."""
        self.memory = memory.serial

    def accepts(
        self,
        value: Any,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        others: list[Buffer],
    ) -> bool:
        if type(value) is not Tensor or value._grad is not None:
            return False
        found = _kind_of(value)
        if found is None or found[0] != self.kind:
            return False
        buffer = found[1]
        tensors.append(value)
        buffers.append(buffer)
        if buffer.serial != self.memory:
            others.append(buffer)
        return True


def _kind_of(tensor: Tensor) -> tuple[tuple[Any, ...], Buffer] | None:
    """The part of the signature for a tensor, and its memory; None if it is not in memory."""
    held = tensor._cell.value if tensor._parent is None else tensor._read()
    node = held.node
    buffer = node.realized
    chain: Chain = ()
    if buffer is None:
        found = follow(node)
        if found is None:
            return None
        buffer, chain = found
    memory = node.shape, node.dtype, node.device, buffer.nbytes, is_copy(tensor, node)
    tape = tensor._leaf is None, held.edge is None, tensor._detached
    return (*memory, hooks_of(tensor), chain, *tape), buffer


_PLAIN = False, (), (), True, True, False
"""The end of `_kind_of` for a tensor that is no view and not on the tape."""


@final
class _Plain:
    """The matcher of a Python value: numbers and strings by equality, other objects by identity."""

    __slots__ = ("_compared", "_kind", "_value")

    def __init__(self, value: Any) -> None:
        self._kind: type[Any] = type(value)
        self._value = value
        # 0.0 == -0.0, and NaN != NaN, so zeros and NaN have to be the same object.
        self._compared = self._kind in _COMPARED or (self._kind is float and value != 0)

    def accepts(
        self,
        value: Any,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        others: list[Buffer],
    ) -> bool:
        if value is self._value:
            return True
        return self._compared and type(value) is self._kind and bool(value == self._value)


@final
class _Bound:
    """The matcher of a bound variable, with any value."""

    __slots__ = ("_variable",)

    def __init__(self, value: BoundVariable) -> None:
        self._variable = value.unbound()[0]

    def accepts(
        self,
        value: Any,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        others: list[Buffer],
    ) -> bool:
        if type(value) is not BoundVariable:
            return False
        variable, number = value.unbound()
        # A variable with two values is an error; `read_arguments` raises it.
        known = var_vals.setdefault(variable, number)
        return variable is self._variable and known == number


@final
class _Container:
    """The matcher of a list, a tuple or a dict, made of the matchers of its items."""

    __slots__ = ("_keys", "_kind", "_parts")

    def __init__(self, kind: type[Any], keys: list[Any] | None, parts: Sequence[_Known]) -> None:
        self._kind = kind
        self._keys = keys
        self._parts = parts

    def accepts(
        self,
        value: Any,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        others: list[Buffer],
    ) -> bool:
        if type(value) is not self._kind:
            return False
        if self._keys is not None:
            if list(value) != self._keys:
                return False
            value = value.values()
        if len(value) != len(self._parts):
            return False
        notes = tensors, buffers, var_vals, others
        pairs = zip(self._parts, value, strict=True)
        return all([one.accepts(part, *notes) for one, part in pairs])


def _known(value: Any) -> _Known | None:
    """The matcher of an argument; None if only its signature can be compared."""
    if type(value) is Tensor:
        found = None if value._grad is not None else _kind_of(value)
        return None if found is None or has_variables(found[0]) else _Memory(*found, value)
    if hasattr(value, "__dict__") and isinstance(value, list | tuple | dict):
        return None  # the signature includes the attributes of subclasses
    if isinstance(value, list | tuple):
        parts = _all_known(value)
        return None if parts is None else _Container(type(value), None, parts)
    if isinstance(value, dict):
        keys = list(value)
        parts = _all_known(value.values()) if {*map(type, keys)} <= {str} else None
        return None if parts is None else _Container(type(value), keys, parts)
    if type(value) is BoundVariable:
        return _Bound(value)
    return None if isinstance(value, _REFUSED) or is_record(value) else _Plain(value)


def _all_known(values: Iterable[Any]) -> list[_Known] | None:
    found = [_known(value) for value in values]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


@final
class Recent:
    """The replay used last, with matchers of its arguments; keeps no tensor and no memory alive."""

    __slots__ = (
        *("_apart", "_autocast", "_cells", "_config", "_default_float"),
        *(
            "_default_int",
            "_device",
            "_finds_inputs",
            "_known",
            "_names",
            "_reachable",
            "_recording",
            "_training",
        ),
        "replay",
    )

    def __init__(
        self,
        replay: Replay,
        known: Sequence[_Known],
        names: Sequence[str],
        tensors: Sequence[Tensor],
        buffers: Sequence[Buffer],
        reachable: Reachable,
    ) -> None:
        self.replay = replay
        self._known = [
            (number, one.accepts, one if type(one) is _Memory and one.is_plain else None)
            for number, one in enumerate(known)
        ]
        """The number of each argument, its matcher, and that again if it is a plain tensor's."""
        self._names = names
        """The names of the keyword arguments, in the order of the call."""
        self._training = this_thread.state.training
        self._recording = this_thread.state.recording
        self._autocast = this_thread.state.autocast
        self._config = config()
        self._device = Device.defaults.get(self._config.FERRULE_DEVICE)
        self._default_float = dtypes.default_float
        self._default_int = dtypes.default_int
        self._reachable = reachable
        # A copy-on-write copy is in the memory of the original, but has another cell.
        self._cells = [id(tensor._cell) for tensor in tensors]
        self._finds_inputs = bool(replay.found.used)
        self._apart = self._are_apart(buffers)

    @staticmethod
    def of(
        replay: Replay, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Recent | None:
        """The fast path for calls like this one; None if an argument has no matcher."""
        values = (*args, *kwargs.values())
        fills_given = replay.fills and any(isinstance(v, list | tuple | dict) for v in values)
        if arguments.parts or fills_given:
            return None
        known = _all_known(values)
        if known is None:
            return None
        count = arguments.explicit
        tensors, buffers = arguments.tensors[:count], arguments.buffers[:count]
        return Recent(replay, known, list(kwargs), tensors, buffers, arguments.reachable)

    def given(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], state: ThreadState, settings: Config
    ) -> Given | None:
        """The input of the replay from a call; None if its signature has to be read.

        The thread's `state` and `settings` are those of the call.
        """
        if not (  # `inputs.settings()` are the same as before, without a tuple of them
            state.training is self._training
            and state.recording is self._recording
            and state.autocast == self._autocast
            and settings is self._config
            and Device.defaults.get(settings.FERRULE_DEVICE) == self._device
            and dtypes.default_float is self._default_float
            and dtypes.default_int is self._default_int
        ):
            return None
        values = args
        if kwargs or self._names:
            if list(kwargs) != self._names:
                return None
            values = (*args, *kwargs.values())
        if len(values) != len(self._known):
            return None
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        var_vals: dict[Variable, int] = {}
        others: list[Buffer] = []
        for number, accepts, plain in self._known:
            value = values[number]
            if plain is not None and type(value) is Tensor and value._grad is None:
                # What `accepts` does, for most arguments: a call would take as long as all of it.
                cell = value._whole
                if cell is not None:
                    held = cell.value
                    node = held.node
                    buffer = node.realized
                    if (
                        buffer is not None
                        and held.edge is None
                        and (  # nodes are immutable, so the same node needs no comparison
                            node.serial == plain.node
                            or (
                                node.shape == plain.shape
                                and node.dtype is plain.dtype
                                and node.device == plain.device
                                and buffer.nbytes == plain.nbytes
                            )
                        )
                    ):
                        tensors.append(value)
                        buffers.append(buffer)
                        if buffer.serial != plain.memory:
                            others.append(buffer)
                        continue
            if not accepts(value, tensors, buffers, var_vals, others):
                return None
        if others and not (self._apart and self._are_apart(buffers)):
            return None
        if not self._apart and [id(tensor._cell) for tensor in tensors] != self._cells:
            return None
        if self._finds_inputs and not self._has_found(tensors, buffers):
            return None
        return tensors, buffers, var_vals

    def _has_found(self, tensors: list[Tensor], buffers: list[Buffer]) -> bool:
        """Adds the implicit inputs; True if they are of the same kinds as in the capture."""
        replay = self.replay
        signature = replay.found.add_to(tensors, buffers)
        return signature == replay.found_key and not replay.watch.overlaps(buffers)

    def _are_apart(self, buffers: Sequence[Buffer]) -> bool:
        """True if no two buffers share memory, and the function does not reach any by itself."""
        serials = set()
        for buffer in buffers:
            base = buffer._base
            serials.add(buffer.serial if base is None else base.serial)
        if len(serials) != len(buffers) or not serials.isdisjoint(self._reachable.keys()):
            return False
        return not self.replay.watch.overlaps(buffers)
