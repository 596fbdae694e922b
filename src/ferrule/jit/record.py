"""Capturing a call: the function runs as ever, and what ran becomes a `Replay`.

Where a replay could give other numbers than the function, there is none, and the function just runs
again each time: `capture_call` gives the reason. In the words used here a buffer is *fresh* if it
is a result of the call, *settled* if it holds a value that was defined before the call (which
replays must leave alone), and *kept* if the call left it in a tensor that outlives it, such as a
gradient.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.capture import Capture, PlaceHolder, Recorded
from ferrule.device import BufferCopy
from ferrule.dtype import dtypes
from ferrule.jit.inputs import Arguments, follow
from ferrule.jit.reach import cells, holders, reachable_tensors
from ferrule.jit.replay import Replay, Watch
from ferrule.jit.results import Fresh, Given, Leaf, Same, build_result, map_result, returned_tensors
from ferrule.lazy import LazyBuffer, pending_writes
from ferrule.realize import realize
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell


class NotReplayable(Exception):
    """A call ran well, but replays of it could go wrong; the message is the reason."""


def settle_writes() -> None:
    """Does all writes that are still pending."""
    pending = pending_writes()
    if pending:
        realize([storage.node for storage in pending])


def memory_serials(tensors: Sequence[Tensor]) -> set[int]:
    """The serial numbers of the memory that tensors are in, as far as they have some."""
    found = (follow(tensor.lazydata) for tensor in tensors)
    return {place[0].base.serial for place in found if place is not None}


def capture_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    arguments: Arguments,
) -> tuple[Any, Replay | NotReplayable]:
    """Calls the function; gives its result, and a replay or the reason why there is none."""
    call = _Call(arguments, [function, args, kwargs])
    with call.capture:
        call.compute(function(*args, **kwargs))
    # What only the call's own tensors and its tape referred to is gone from here on.
    gc.collect()
    try:
        replay: Replay | NotReplayable = call.replay()
    except NotReplayable as reason:
        replay = reason
    return call.result(), replay


@final
class _Call:
    """One call while it is captured."""

    def __init__(self, arguments: Arguments, roots: list[Any]) -> None:
        self.arguments = arguments
        self.capture = Capture()
        self._roots = roots
        before = reachable_tensors(roots)
        self._before = weakref.WeakSet(before)
        self._serials_before = memory_serials(before)
        self._had_gradient = [tensor.grad is not None for tensor in arguments.tensors]
        # Nodes are numbered as well: all that are made in the call come after this one.
        self._last_node = LazyBuffer.empty((), dtypes.uint8, "").serial
        self._fresh: list[Fresh] = []
        self._buffers: list[Buffer] = []
        self._index: dict[LazyBuffer, int] = {}
        self._template: Any = None
        self._gradients: dict[int, Fresh] = {}

    def result(self) -> Any:
        """What the call returned; tensors from inside are outside autograd, as a replay's are."""
        tensors = self.arguments.tensors
        return build_result(self._template, self._buffers, tensors, self.arguments.var_vals)

    # -- at the end of the call, still recorded --------------------------------------------------

    def compute(self, result: Any) -> None:
        """Runs everything that the call left lazy, and takes its result apart."""
        returned = list(returned_tensors(result))
        kinds = [self._kind(tensor) for tensor in returned]
        nodes = [
            _computable(tensor)
            for tensor, kind in zip(returned, kinds, strict=True)
            if kind is None
        ]
        outliving = reachable_tensors(self._roots)
        lazy = [root for root in map(self._lazy_root, outliving) if root is not None]
        pending = [storage.node for storage in pending_writes()]
        realize(list(dict.fromkeys([*nodes, *lazy, *pending])))
        kept = {tensor.lazydata for tensor in outliving}
        waiting = iter(nodes)
        leaves = [self._add(next(waiting), kept) if kind is None else kind for kind in kinds]
        self._template = map_result(result, iter(leaves))
        self._add_gradients(kept)
        # Recorded runs refer to nodes by nothing but memory, so that intermediates may go.
        self._index.clear()

    def _kind(self, tensor: Tensor) -> Leaf | None:
        """How a returned tensor comes about, where it is none that the call made."""
        for number, given in enumerate(self.arguments.tensors):
            if given is tensor:
                return Given(number)
        return Same(tensor) if tensor in self._before else None

    def _lazy_root(self, tensor: Tensor) -> LazyBuffer | None:
        """What to compute for a tensor that outlives the call, if it was made in it."""
        node = tensor.lazydata
        if node.base_const() is not None or follow(node) is not None:
            return None
        root = tensor._root()
        return root if root.serial > self._last_node else None

    def _add(self, node: LazyBuffer, kept: set[LazyBuffer]) -> Fresh:
        """A result in memory of its own; a copy of it where its memory has another use too."""
        known = self._index.get(node)
        if known is not None:
            return self._fresh[known]
        buffer = node.realized
        assert buffer is not None, f"{node} was not computed"
        is_own = self.capture.is_produced(buffer) and buffer.base is buffer and node not in kept
        fresh = Fresh.of(len(self._fresh), node)
        if not is_own:
            source, buffer = buffer, fresh.allocate()
            copy = BufferCopy(buffer.device, buffer.nbytes, source.device)
            copy.exec([buffer, source])
        self._index[node] = fresh.index
        self._fresh.append(fresh)
        self._buffers.append(buffer)
        return fresh

    def _add_gradients(self, kept: set[LazyBuffer]) -> None:
        """A gradient that an argument has got is a result of the call."""
        for number, tensor in enumerate(self.arguments.tensors):
            gradient = tensor.grad
            if gradient is not None and not self._had_gradient[number]:
                node = gradient.lazydata
                self._gradients[number] = self._add(node, kept - {node})

    # -- afterwards ------------------------------------------------------------------------------

    def replay(self) -> Replay:
        """The replay.

        Raises `NotReplayable` where it could give other numbers than the function.
        """
        self._check_arguments()
        capture = self.capture
        made = self._made()
        external = {**capture.read, **capture.updated}
        held = holders([*made.values(), *external.values()])
        settled = {
            serial
            for serial in made
            if any(node.serial <= self._last_node for node in held.get(serial, ()))
        }
        capture.recorded = list(self._without_settled(settled))
        self._check_parts()
        present = cells([node for nodes in held.values() for node in nodes])
        kept = {
            serial: buffer
            for serial, buffer in made.items()
            if serial not in settled and any(node in present for node in held.get(serial, ()))
        }
        used = self._used_from_before()
        self._check_reachable(used)
        watched = [
            (cell, buffer, serial in capture.updated or serial in kept, serial in kept)
            for serial, buffer in {**used, **kept}.items()
            for cell in _cells_of(serial, held, present)
        ]
        # References are counted from here on: these are not to be among them.
        del held, present
        watch = Watch()
        for cell, buffer, written, may_be_gone in watched:
            watch.add(cell, buffer, written, may_be_gone)
        released = made.keys() - kept.keys() - settled
        return self._built(watch, released)

    def _built(self, watch: Watch, released: set[int]) -> Replay:
        capture = self.capture
        items = capture.items(released)
        replay = Replay(
            items, self._fresh, self._template, self._gradients, watch, dict(capture.var_vals)
        )
        replay.batch([*self.arguments.buffers, *self._buffers])
        written = [
            number
            for number, buffer in enumerate(self.arguments.buffers)
            if buffer.base.serial in capture.updated
        ]
        replay.guard_inputs(self.arguments, written)
        return replay

    def _made(self) -> dict[int, Buffer]:
        """The memory that the call made, wrote to, and left alive; the results are not among it."""
        results = {buffer.base.serial for buffer in self._buffers}
        found: dict[int, Buffer] = {}
        for record in self.capture.recorded:
            for arg in record.args:
                memory = arg.memory() if isinstance(arg, PlaceHolder) else None
                if memory is not None and memory.serial not in results:
                    found[memory.serial] = memory
        return found

    def _without_settled(self, settled: set[int]) -> Iterator[Recorded]:
        """The runs but for those that compute what was defined before the call: once is enough."""
        done: set[int] = set()
        for record in self.capture.recorded:
            written = record.written()
            if not written & settled:
                yield record
            elif written <= settled and not written & done:
                done |= written
            else:
                raise NotReplayable("it computes a tensor from before the call along with others")

    def _used_from_before(self) -> dict[int, Buffer]:
        """The memory from before the call, other than the arguments', that the runs use."""
        given = {buffer.base.serial for buffer in self.arguments.buffers}
        return {
            arg.base.serial: arg.base
            for record in self.capture.recorded
            for arg in record.args
            if isinstance(arg, Buffer)
            and not self.capture.is_new(arg)
            and arg.base.serial not in given
        }

    def _check_arguments(self) -> None:
        for tensor, buffer in zip(self.arguments.tensors, self.arguments.buffers, strict=True):
            place = follow(tensor.lazydata)
            if place is None or place[0] is not buffer:
                raise NotReplayable("it moved an argument to other memory")

    def _check_parts(self) -> None:
        """The graph executors replace whole inputs only."""
        replaced = [*self.arguments.buffers, *self._buffers]
        whole = {(buffer.base.serial, buffer.byte_offset, buffer.nbytes) for buffer in replaced}
        serials = {serial for serial, _, _ in whole}
        for record in self.capture.recorded:
            for arg in record.args:
                if record.serial(arg) in serials and record.place(arg) not in whole:
                    raise NotReplayable("a kernel uses a part of an argument's or result's memory")

    def _check_reachable(self, used: Mapping[int, Buffer]) -> None:
        """What the function reads must still be where it finds it in the next call."""
        after = memory_serials(reachable_tensors(self._roots))
        for serial in used:
            if serial in self._serials_before and serial not in after:
                raise NotReplayable(
                    "it replaced a tensor that it reads; write to it with assign instead"
                )


def _computable(tensor: Tensor) -> LazyBuffer:
    """The node to compute for a result; a constant is written to memory too."""
    node = tensor.lazydata
    if node.base_const() is not None:
        node = node.contiguous()
    return node


def _cells_of(
    serial: int,
    held: Mapping[int, Sequence[LazyBuffer]],
    present: Mapping[LazyBuffer, Sequence[Cell]],
) -> list[Cell]:
    nodes = held.get(serial, ())
    found = [cell for node in nodes for cell in present.get(node, ())]
    if not found:
        raise NotReplayable("a tensor that it reads is gone after the call")
    return found
