"""Capturing a call: the function runs as ever, and what ran becomes a `Replay`.

Where a replay could give other numbers than the function, there is none, and the function just runs
again each time: `capture_call` gives the reason. In the words used here a buffer is *fresh* if it
holds a result of the call, or a tensor that the call left in some attribute, such as a gradient:
each replay makes these anew. It is *settled* if it holds a value that was defined before the call:
replays must leave it alone. It is *used* if it is from before the call, and no argument's.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, final

from ferrule.backward import backward_passes
from ferrule.buffer import Buffer
from ferrule.capture import Capture, JitError, PlaceHolder, Recorded, user_location
from ferrule.containers import mapped
from ferrule.counting import is_numbers
from ferrule.device import BufferCopy
from ferrule.dtype import dtypes
from ferrule.jit.batch import Batch
from ferrule.jit.found import FoundBefore, FoundInputs
from ferrule.jit.hooks import code_of
from ferrule.jit.inputs import Arguments, InputPart, follow, memory_serial, stand_ins
from ferrule.jit.numbers import Numbers
from ferrule.jit.places import Path, Place, tensors_of
from ferrule.jit.reach import Reach, holders, memory_of_views, owners
from ferrule.jit.readers import renew
from ferrule.jit.replay import Replay
from ferrule.jit.results import (
    Effect,
    Fresh,
    Leaf,
    Outcome,
    end_of_tape,
    replace_tensors,
    returned_tensors,
    tensors_in,
)
from ferrule.jit.sharing import Sharing
from ferrule.jit.watch import Watch
from ferrule.jit.weights import PackedWeights
from ferrule.lazy import LazyBuffer
from ferrule.node import forget_nodes
from ferrule.realize import realize
from ferrule.storage import Storage, keep_written, pending_writes
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell
from ferrule.tensor.limits import Limits, noting_limits


class NotReplayable(Exception):
    """A call ran well, but replays of it could go wrong; the message is the reason."""


def settle_writes() -> None:
    """Does all writes that are still pending."""
    pending = pending_writes()
    if pending:
        realize([storage.node for storage in pending])


def capture_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    arguments: Arguments,
    writes: bool,
    found: FoundInputs,
) -> tuple[Any, Replay | NotReplayable]:
    """Calls the function; gives its result, and a replay or the reason why there is none.

    `writes` tells whether it is known to write to memory from outside, `found` which inputs it is
    known to find by itself.
    """
    call = _Call(arguments, function, writes, found)
    if call.stand_ins:
        args, kwargs = replace_tensors((tuple(args), dict(kwargs)), call.stand_ins)
    try:
        noting, written = noting_limits(), keep_written(call.last_before)
        with call.capture, noting as call.limits, written as call.written:
            result = function(*args, **kwargs)
            call.finish(result, [*args, kwargs])
        call.check_stand_ins()
        # Tensors that are garbage would look like some that the call left behind.
        gc.collect()
        replay: Replay | NotReplayable = call.replay()
    except NotReplayable as reason:
        replay = reason
    return replace_tensors(result, call.originals) if call.originals else result, replay


@final
class _Call:
    """One call while it is captured."""

    def __init__(
        self,
        arguments: Arguments,
        function: Callable[..., Any],
        writes: bool,
        found: FoundInputs,
    ) -> None:
        self.arguments = arguments
        self.capture = Capture()
        self.stand_ins = stand_ins(arguments)
        self.originals = {stand_in: tensor for tensor, stand_in in self.stand_ins.items()}
        """For stand-ins, and views of them that the call leaves: the same of the arguments."""
        self._gradients = [tensor.grad for tensor in arguments.tensors]
        self._watch = Watch()
        self._roots = [*code_of(function), *arguments.objects]
        self._before = Reach(self._roots)
        self.numbers = Numbers(self._roots)
        """What the function can read besides tensors, as it was before the call."""
        tensors = self._before.tensors()
        # What is lazy would melt into the function's kernels, and could not be told from them.
        compute_lazy(tensors)
        count = len(arguments.tensors)
        stored = self.numbers.assigned
        self._found = FoundBefore(self._before, arguments, found, stored)
        self._passes = backward_passes()
        self._given = {
            self.stand_ins.get(tensor, tensor): number
            for number, tensor in enumerate(arguments.tensors)
        }
        for tensor in tensors:
            if tensor._leaf is not None and tensor.grad is None:
                self._watch.add_no_gradient(tensor)
        self._watch.add_hooks(tensors)
        self._constants = [
            (weakref.ref(tensor), tensor._cell.value.node.serial)
            for tensor in tensors
            if tensor.lazydata.base_const() is not None
        ]
        self._cells = {id(tensor._cell): weakref.ref(tensor._cell) for tensor in tensors}
        self._forget_cells(arguments.tensors[count:])
        # Nodes are numbered as well: all that are made in the call come after this one. Equal
        # ones from before are not to be taken for them: their values stay what they are.
        forget_nodes()
        self.last_node = _newest_node()
        self._renew_memory(tensors, writes)
        self.last_before = _newest_node()
        cells = [weakref.ref(tensor._cell) for tensor in tensors]
        serials = [memory_serial(tensor.lazydata) for tensor in tensors]
        self._memory = list(zip(map(weakref.ref, tensors), serials, cells, strict=True))
        self._outcome = Outcome()
        self._buffers: list[Buffer] = []
        """The memory in which the call made the values that replays make anew."""
        self._parts: dict[Buffer, InputPart] = {}
        """The parts of arguments that kernels use."""
        self._views: list[Tensor] = []
        """The results that are views of what the call made: in replays they are no views."""
        self._made: set[int] = set()
        """The memories, by `id()`, of what replays make anew, as far as the caller has it."""
        self._same: list[Cell] = []
        """The memory from before the call that it returned handles on."""
        self.limits: Limits = {}
        """What must hold for the variables in replays."""
        self.written: list[Storage] = []
        """What it wrote to, kept until all is known: a write to a tensor that the function then
        replaces would not be done, and so not be seen; but in a call with that very tensor as an
        argument it matters. What is not written to may go: a training step's old gradients are as
        large as the parameters.
        """

    def _renew_memory(self, reached: Sequence[Tensor], writes: bool) -> None:
        """Copies that the function makes are to be known from those of before the call.

        What is found below a view may be in memory of its own, so its whole stays as it was read.
        """
        read = {id(tensor._cell) for tensor in self._given if tensor._parent is not None}
        cells = [tensor._cell for tensor in [*reached, *self._given]]
        renew([cell for cell in cells if id(cell) not in read], writes)

    # -- at the end of the call, still recorded --------------------------------------------------

    def finish(self, result: Any, args: list[Any]) -> None:
        """Runs everything that the call left lazy, and finds all that it made."""
        returned = returned_tensors(result)
        after = Reach(self._roots)
        changes = self._before.changes(after)
        contents = [place.get() for place, _ in changes]
        left = [tensor for content in contents for tensor in tensors_of(content) or ()]
        gradients = self._new_gradients()
        retained = self._retained([*returned, *left])
        found = [*returned, *left, *gradients.values(), *retained.values()]
        everything = {id(tensor): tensor for tensor in found}
        sharing = self._sharing(everything.values())
        everything |= {id(tensor): tensor for tensor in sharing.wholes.values()}
        made = {
            number: _computable(tensor)
            for number, tensor in everything.items()
            if self._kind(tensor) is None and tensor not in sharing
        }
        pending = [storage.node for storage in pending_writes()]
        realize(list(dict.fromkeys([*made.values(), *pending])))
        seen = {id(tensor._cell) for tensor in everything.values()}
        self._add_found(seen, {place.identity for place, _ in changes})
        leaves = self._leaves(everything, made, self._sharing(everything.values()))
        for (place, _), content in zip(changes, contents, strict=True):
            if any(tensor in self.originals for tensor in tensors_of(content) or ()):
                place.set(replace_tensors(content, self.originals))
        # Whatever is refused from here on, the call has done what the function does.
        self._check_containers(args, gradients)
        if self._found.tape_matters() and backward_passes() != self._passes:
            raise NotReplayable("a state that it replaces is on the tape: detach() it")
        self._outcome.template = mapped(result, lambda leaf: leaves.get(id(leaf)))
        for (place, path), content in zip(changes, contents, strict=True):
            self._add_effect(place, path, content, leaves)
        for number, tensor in gradients.items():
            self._outcome.effects.append(Effect(number, leaves[id(tensor)]))
        for made_tensor, tensor in retained.items():
            owner = leaves[id(made_tensor)]
            assert isinstance(owner, int)
            self._outcome.effects.append(Effect(owner, leaves[id(tensor)]))

    def _add_found(self, seen: Set[int], replaced: Set[Any]) -> None:
        """The inputs that the function has found by itself are arguments from here on."""
        used = {**self.capture.read, **self.capture.updated}
        first = len(self.arguments.tensors)
        added = self._found.add_used(used, seen, replaced, self.arguments)
        self._given.update({tensor: first + number for number, tensor in enumerate(added)})
        self._forget_cells(added)

    def _forget_cells(self, found: Iterable[Tensor]) -> None:
        """What shares memory with an input that was found does so with each call's own."""
        for tensor in found:
            self._cells.pop(id(tensor._cell), None)

    def _new_gradients(self) -> dict[int, Tensor]:
        """The gradients that arguments have got, by the argument's number."""
        pairs = enumerate(zip(self.arguments.tensors, self._gradients, strict=False))
        found = {number: (tensor.grad, old) for number, (tensor, old) in pairs}
        return {n: new for n, (new, old) in found.items() if new is not None and new is not old}

    def _retained(self, tensors: Iterable[Tensor]) -> dict[Tensor, Tensor]:
        """The gradients that tensors which the call made have kept."""
        made = [tensor for tensor in tensors if self._kind(tensor) is None]
        return {tensor: tensor.grad for tensor in made if tensor.grad is not None}

    def _kind(self, tensor: Tensor) -> Leaf | None:
        """What a tensor is, if the call has not made its value."""
        number = self._given.get(tensor)
        if number is not None:
            return number
        cell = self._cells.get(id(tensor._cell))
        if tensor in self._before or (cell is not None and cell() is tensor._cell):
            return tensor
        return None

    def _sharing(self, tensors: Iterable[Tensor]) -> Sharing:
        """Which of the tensors that the call made are in memory of others."""
        made = [tensor for tensor in tensors if self._kind(tensor) is None]
        return Sharing(self._given, made, self.arguments.var_vals.keys())

    def _leaves(
        self, tensors: Mapping[int, Tensor], made: Mapping[int, LazyBuffer], sharing: Sharing
    ) -> dict[int, Leaf]:
        """For each tensor, how a replay comes by it."""
        values: dict[LazyBuffer, int] = {}
        leaves: dict[int, Leaf] = {}
        for number, tensor in tensors.items():
            kind = self._kind(tensor)
            if kind is None and tensor in sharing:
                continue
            if kind is None:
                node = made[number]
                self._made.add(id(tensor._cell))
                if tensor._parent is not None:
                    self._views.append(tensor)
                if node not in values:
                    values[node] = self._add_value(node)
                kind = len(self.arguments.tensors) + len(self._outcome.made)
                self._note_leaf(tensor, kind)
                self._outcome.made.append((values[node], end_of_tape(tensor)))
            if isinstance(kind, Tensor):
                self._same.append(tensor._cell)
            leaves[number] = kind
        first = len(self.arguments.tensors) + len(self._outcome.made)
        variables = self.arguments.var_vals
        for number, tensor in tensors.items():
            if number not in leaves:
                shared = sharing.shared(tensor, leaves)
                leaves[number] = kind = first + len(self._outcome.shared)
                self._note_leaf(tensor, kind)
                self._outcome.shared.append(shared)
                if sharing.is_of(tensor, self.originals):
                    twin = shared.of(self.arguments.tensors, variables)
                    if tensor._leaf is not None:
                        twin.requires_grad_().grad = tensor.grad
                    self.originals[tensor] = twin
        return leaves

    def _note_leaf(self, tensor: Tensor, number: int) -> None:
        if tensor._leaf is not None:
            self._outcome.collecting.append(number)

    def _add_value(self, node: LazyBuffer) -> int:
        """A value in memory of its own: a copy, where its memory has another use too."""
        buffer = node.realized
        assert buffer is not None, f"{node} was not computed"
        fresh = Fresh.like(node)
        is_new = node.serial > self.last_node and self.capture.is_produced(buffer)
        if not is_new or buffer.base is not buffer:
            source, buffer = buffer, fresh.allocate()
            copy = BufferCopy(buffer.device, buffer.nbytes, source.device)
            copy.exec([buffer, source])
        self._outcome.fresh.append(fresh)
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _add_effect(
        self, place: Place, path: Path, content: Any, leaves: Mapping[int, Leaf]
    ) -> None:
        """What the call put somewhere: each replay puts its own there."""
        tensors = tensors_of(content)
        found = [leaves.get(id(tensor)) for tensor in tensors or ()]
        known = content is None or (tensors is not None and None not in found)
        moved = any(isinstance(leaf, Tensor) and leaf in self._before for leaf in found)
        if not known or moved or not self._before.knows(place):
            raise NotReplayable("it moves tensors about in a way that replays cannot follow")
        self._watch.add_path(path)
        if isinstance(place.holder, Tensor):  # which may be in several places
            self._watch.add_tensor(place.holder, self._before)
        template = mapped(content, lambda tensor: leaves.get(id(tensor)))
        self._outcome.effects.append(Effect(place, template))

    def _check_containers(self, args: list[Any], gradients: Mapping[int, Tensor]) -> None:
        """No list or dict among the arguments may have got another tensor."""
        known = {id(tensor) for tensor in [*self._given, *gradients.values()]}
        if not {id(tensor) for tensor in tensors_in(args)} <= known:
            raise NotReplayable("it puts a tensor into an argument")

    def check_stand_ins(self) -> None:
        """What has a stand-in must not be written to: the function may have seen old contents."""
        for tensor, part in self.arguments.parts.items():
            place = follow(self.stand_ins[tensor].lazydata)
            if place is None or place[0] is not part or part.serial in self.capture.updated:
                raise JitError(
                    f"{user_location()}: the captured function writes to an argument of shape "
                    f"{tensor.shape} that is a part of another tensor, and wrote to none in the "
                    "first call; pass a tensor of its own, such as x.clone()"
                )
        for tensor in self.stand_ins.keys() - self.arguments.parts.keys():
            place = follow(tensor.lazydata)
            if place is None or place[0].base.serial in self.capture.updated:
                raise JitError(
                    f"{user_location()}: the captured function writes to an argument of shape "
                    f"{tensor.shape} that it can also reach by itself, and did not in the first "
                    "call; pass it only, or reach it only"
                )

    # -- afterwards ------------------------------------------------------------------------------

    def replay(self) -> Replay:
        """The replay.

        Raises `NotReplayable` where it could give other numbers than the function.
        """
        self._check_arguments()
        capture = self.capture
        self._check_numbers()
        alive = self._alive()
        constants = self._host_data()
        outside = [*capture.read.values(), *capture.updated.values()]
        held = holders([*alive.values(), *constants.values(), *outside])
        settled = {
            serial
            for serial in alive
            if any(node.serial <= self.last_node for node in held.get(serial, ()))
        }
        capture.recorded = list(self._without_settled(settled))
        self._find_parts()
        self._own({n: buffer for n, buffer in constants.items() if n in held})
        of_results = memory_of_views(self._views)  # references are counted: before `present`
        present = owners([node for nodes in held.values() for node in nodes])
        for serial in alive.keys() - settled:
            left = [owner for node in held.get(serial, ()) for owner in present.get(node, ())]
            if any(id(owner) not in of_results for owner in left):
                raise NotReplayable("it leaves a tensor where replays cannot put another")
        used = self._used()
        watched = [
            (owner, buffer)
            for serial, buffer in used.items()
            for node in self._versions(serial, held, present)
            for owner in present.get(node, ())
            if id(owner) not in self._made
        ]
        # References are counted from here on: these are not to be among them.
        del held, present
        for owner, buffer in watched:
            self._watch.add(owner, buffer, buffer.serial in capture.updated)
        self._watch_paths(used.keys())
        self._watch.add_numbers(self.numbers)
        return self._built(used, alive.keys() - settled)

    def _built(self, used: Mapping[int, Buffer], released: Set[int]) -> Replay:
        items = self.capture.items(released)
        inputs = [*self.arguments.buffers, *self._buffers, *self._parts]
        updated = self.capture.updated
        constants = {serial: used[serial] for serial in used.keys() - updated.keys()}
        var_vals = dict(self.capture.var_vals)
        packed = PackedWeights.of(items, constants, inputs, var_vals)
        batch = Batch(items, inputs, var_vals)
        given = {buffer.base.serial for buffer in self.arguments.buffers}
        changed = [buffer for serial, buffer in updated.items() if serial not in given]
        self._watch.add_arguments(self.arguments, used, updated)
        objects = self.arguments.objects
        return Replay(
            *(batch, packed, self._outcome, self._watch),
            *(changed, var_vals, objects, self.numbers),
            found=self._found.mattering(),
            parts=list(self._parts.values()),
            limits=self.limits,
        )

    def _alive(self) -> dict[int, Buffer]:
        """The memory that the call wrote to and that is alive, other than fresh values."""
        fresh = {buffer.serial for buffer in self._buffers}
        kept = [arg.memory() for arg in self._args() if isinstance(arg, PlaceHolder)]
        alive = [memory for memory in kept if memory is not None]
        return {memory.serial: memory for memory in alive if memory.serial not in fresh}

    def _args(self) -> Iterator[Buffer | PlaceHolder]:
        return (arg for record in self.capture.recorded for arg in record.args)

    def _host_data(self) -> dict[int, Buffer]:
        """The memory that the call made and only the host put something in."""
        return {
            arg.base.serial: arg.base
            for arg in self._args()
            if isinstance(arg, Buffer) and self.capture.is_new(arg)
        }

    def _own(self, constants: Mapping[int, Buffer]) -> None:
        """Replays read copies of constants that some tensor is in: that may be written to."""
        copies = {serial: _copied(buffer) for serial, buffer in constants.items()}
        for record in self.capture.recorded:
            record.args = [
                _same_part(arg, copies[arg.base.serial])
                if isinstance(arg, Buffer) and arg.base.serial in copies
                else arg
                for arg in record.args
            ]

    def _without_settled(self, settled: set[int]) -> Iterator[Recorded]:
        """The runs but for those that compute what was defined before the call: once is enough."""
        done: set[int] = set()
        changing: set[int] = set()
        for record in self.capture.recorded:
            written, read = record.written(), record.read()
            if not written & settled:
                if read & changing:
                    raise NotReplayable("it reads a copy, made for others, of what it writes to")
                yield record
            elif written <= settled and not written & done:
                done |= written
                if read & (changing | self.capture.updated.keys()):
                    changing |= written
            else:
                raise NotReplayable("it computes a tensor from before the call along with others")

    def _used(self) -> dict[int, Buffer]:
        """The used memory, by serial number."""
        given = {buffer.serial for buffer in [*self.arguments.buffers, *self._parts]}
        return {
            arg.base.serial: arg.base
            for arg in self._args()
            if isinstance(arg, Buffer) and not self.capture.is_new(arg) and arg.serial not in given
            if not is_numbers(arg.base)
        }

    def _versions(
        self, serial: int, held: Mapping[int, list[LazyBuffer]], present: Collection[LazyBuffer]
    ) -> list[LazyBuffer]:
        """The nodes that hold what is in some used memory.

        One that is no tensor's present version, such as a table that this package keeps, can only
        be read: nobody can write to it.
        """
        nodes = held.get(serial, [])
        is_written = serial in self.capture.updated
        if not nodes or (is_written and not any(node in present for node in nodes)):
            raise NotReplayable(
                "a tensor that it uses is gone after the call; where the function replaces it, "
                "write to it with assign instead"
            )
        return nodes

    def _watch_paths(self, used: Set[int]) -> None:
        """What the function reads must be where it finds it, now and in later calls.

        Reading a constant leaves no trace, so all of them count as read; so does what it returns,
        and what it can reach and was given, but for the inputs that it finds. Nor does a tensor
        leave one that is moved to where it is already.
        """
        pairs = enumerate(self.arguments.buffers)
        stood_for = set(self.arguments.closed_over)
        given = {buffer.base.serial for number, buffer in pairs if number not in stood_for}
        found = {n: paths for n, paths in self._found.paths.items() if n in given}
        for path in [path for paths in found.values() for path in paths]:
            self._watch.add_path(path)
        read = [
            reference
            for reference, serial, cell in self._memory
            if serial in used or serial in given or _is_one_of(cell(), self._same)
            if serial not in found
        ]
        constants = [reference for reference, _ in self._constants]
        moved = map(weakref.ref, self._before.aliased(self.numbers.assigned))
        for reference in [*read, *constants, *moved]:
            tensor = reference()
            if tensor is None or not self._watch.add_tensor(tensor, self._before):
                raise NotReplayable(
                    "it replaces a tensor that it reads; write to it with assign instead"
                )
        self._watch_constants()

    def _watch_constants(self) -> None:
        """Constants have no memory that replays could write to; those that are written get some.

        So the next call can be captured.
        """
        found = [(reference(), serial) for reference, serial in self._constants]
        cells = {tensor._cell: serial for tensor, serial in found if tensor is not None}
        written = [cell for cell, serial in cells.items() if cell.value.node.serial != serial]
        for cell in written:
            if cell.value.node.base_const() is not None:
                cell.settle()
        if written:
            realize([cell.value.node for cell in written])
            raise NotReplayable("it writes to a constant from before the call, now in memory")
        for cell in cells:
            self._watch.add_constant(cell)

    def _check_arguments(self) -> None:
        for tensor, buffer in zip(self.arguments.tensors, self.arguments.buffers, strict=True):
            place = follow(self.stand_ins.get(tensor, tensor).lazydata)
            if place is None or place[0] is not buffer:
                raise NotReplayable("it moves an argument to other memory")

    def _check_numbers(self) -> None:
        changed = self.numbers.problem()
        if changed is not None:
            raise NotReplayable(f"it changes what it reads besides tensors: {changed}")
        for place, child in self.numbers.path:
            if place.get() is not child:
                raise NotReplayable(f"it replaces {place.key!r}, which it reads")
        if self.numbers.has_large_arrays and self._host_data():
            raise NotReplayable(
                "it reads data of the host, perhaps from an array outside that is too large to be "
                "compared before each replay; make that a tensor outside"
            )

    def _find_parts(self) -> None:
        """Finds which parts of arguments the kernels use: graph executors replace whole buffers."""
        reachable = set(self.arguments.closed_over)
        pairs = list(enumerate(self.arguments.buffers))
        given = [(number, buffer) for number, buffer in pairs if number not in reachable]
        serials = {buffer.serial for _, buffer in given}
        bases = {buffer.base.serial for _, buffer in given}
        results = {buffer.serial: buffer.nbytes for buffer in self._buffers}
        for arg in self._args():
            if isinstance(arg, PlaceHolder):
                if arg.nbytes != results.get(arg.serial, arg.nbytes):
                    raise NotReplayable("a kernel uses a part of a result's memory")
            elif arg.base.serial in bases and arg.serial not in serials:
                found = [InputPart.of(arg, buffer, number) for number, buffer in given]
                parts = [part for part in found if part is not None]
                if not parts:
                    raise NotReplayable("a kernel uses memory that an argument is in, beside it")
                self._parts[arg] = parts[0]


def _newest_node() -> int:
    return LazyBuffer.empty((), dtypes.uint8, "").serial


def _is_one_of(cell: Cell | None, memories: Sequence[Cell]) -> bool:
    return cell is not None and any(cell is memory for memory in memories)


def compute_lazy(tensors: Iterable[Tensor]) -> None:
    """Computes those that are not in memory yet, such as the weights of a model that is new."""
    realize([node for node in map(_lazy_root, tensors) if node is not None])


def _lazy_root(tensor: Tensor) -> LazyBuffer | None:
    """What to compute so that a tensor is in memory; None if it is, or is a constant.

    What a view is of has to be, too, though the view's own values were computed: a write goes
    there, and is none to memory if there is none yet.
    """
    node, whole = tensor.lazydata, tensor._cell.value.node
    if node.base_const() is not None:
        return None
    if follow(node) is None:
        return tensor._root()
    return whole if follow(whole) is None else None


def _computable(tensor: Tensor) -> LazyBuffer:
    """The node to compute for a tensor; a constant is written to memory too."""
    node = tensor.lazydata
    if node.base_const() is not None:
        node = node.contiguous()
    return node


def _copied(buffer: Buffer) -> Buffer:
    copied = Buffer(buffer.device, buffer.size, buffer.dtype)
    BufferCopy(buffer.device, buffer.nbytes, buffer.device)([copied, buffer], {})
    return copied


def _same_part(buffer: Buffer, memory: Buffer) -> Buffer:
    """What `buffer` is of its memory, of other memory."""
    start = buffer.byte_offset // buffer.dtype.itemsize
    return memory.view(start, buffer.size, buffer.dtype)
