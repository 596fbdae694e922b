"""Capture of a call: runs the function, records its kernels, and makes a `Replay` of them.

If a replay could give other results than the function, there is none and the function runs in every
call; `capture_call` gives the reason. Buffers have three names here:

- *fresh*: it holds a result of the call, or a tensor that the call left in some attribute, such as
  a gradient. Each replay makes a new one.
- *settled*: it holds a value that was defined before the call. Replays leave it alone.
- *used*: it is from before the call, and belongs to no argument.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from ferrule.autograd.backward import Passed, note_passed
from ferrule.autograd.iota import is_numbers, is_table
from ferrule.base.containers import mapped
from ferrule.base.threadstate import this_thread
from ferrule.device import BufferCopy, CompileError
from ferrule.device.capture import Capture, JitError, PlaceHolder, Recorded, user_location
from ferrule.engine.random import streams
from ferrule.engine.realize import others_turn, realize
from ferrule.fusion.dynamic.stand_in import captured_constants
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage, keep_written, pending_writes
from ferrule.jit.batch import Batch
from ferrule.jit.before import Before
from ferrule.jit.containers import Containers
from ferrule.jit.executed import Executed, watching
from ferrule.jit.found import FoundInputs
from ferrule.jit.inputs import Arguments, InputPart, follow, is_symbolic_view, layout
from ferrule.jit.made import Made
from ferrule.jit.numbers import Numbers
from ferrule.jit.owners import Owner, have, owners_among
from ferrule.jit.places import Place, tensors_of
from ferrule.jit.replay import AtRisk, Replay
from ferrule.jit.results import (
    Effect,
    Leaf,
    replace_tensors,
    returned_tensors,
    tensors_in,
)
from ferrule.jit.state import State
from ferrule.jit.weights import PackedWeights
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef, noting_cells, writes_together
from ferrule.tensor.limits import Limits, noting_limits


class NotReplayable(Exception):
    """A call ran correctly, but a replay of it could be wrong; the message is the reason."""


def capture_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    arguments: Arguments,
    writes: bool,
    found: FoundInputs,
    state: State,
    executed: Executed,
) -> tuple[Any, Replay | NotReplayable]:
    """Calls the function; returns its result, and a replay or the reason why there is none.

    The caller holds the lock `turn`, which is released while the function runs.

    `writes` is True if the function is known to write to memory from outside. `found` are the
    implicit inputs known from earlier calls, `state` is what it can reach by itself.
    """
    constants = executed.constants
    failures, taken = this_thread.state.failures, this_thread.state.taken
    call = _Call(Before(arguments, writes, found, state), executed)
    containers = Containers((tuple(args), dict(kwargs)), call.before.stand_ins)
    if containers.are_found_twice(state):
        with others_turn(), watching(executed):
            result = function(*args, **kwargs)
        return result, NotReplayable(
            "a container that it is given can be got at in another way; "
            "pass it, or let the function find it, but not both"
        )
    args, kwargs = containers.used
    try:
        noting, written = noting_limits(), keep_written(call.before.last_version)
        noted = noting_cells()
        with call.capture, noting as call.limits, written as call.written, noted as call.cells:
            kept = containers.put_back()
            watched, put_back = watching(executed), call.put_back_if_it_raises()
            with note_passed() as call.passed, put_back, others_turn(), kept, watched as watch:
                result = function(*args, **kwargs)
                watch.note_lazy(tensors_in([result]))
            call.finish(result, containers)
        call.check_stand_ins()
        call.check_code(watch.ran, constants)
        if this_thread.state.failures != failures:
            raise NotReplayable(
                "something in it raised an error when it was computed; "
                "compute what may raise outside of the function"
            )
        if this_thread.state.taken != taken or call.capture.uses_others:
            raise NotReplayable(
                "another thread, or a signal's handler, computed some of it, or wrote to what it "
                "reads; a later call is tried again"
            )
        replay: Replay | NotReplayable = call.replay_if_there_is_room()
    except NotReplayable as reason:
        replay = reason
    call.made.rejoin()
    return replace_tensors(result, call.made.originals) if call.made.originals else result, replay


@final
class _Call:
    """One call while it is captured."""

    def __init__(self, before: Before, executed: Executed) -> None:
        self.before = before
        self._executed = executed
        """What ran in all calls of the function."""
        self.arguments = before.arguments
        self.capture = Capture()
        self.made = Made(before, self.capture)
        self._watch = before.watch()
        self._parts: dict[Buffer, InputPart] = {}
        """The slices of arguments and of fresh values that kernels use."""
        self.limits: Limits = {}
        """The conditions on the values of variables in replays."""
        self.passed = Passed()
        """The oldest entry of the tape that a gradient passed."""
        self.written: list[Storage] = []
        """The storages that the call wrote to, kept alive until the end of the capture.

        Otherwise a write to a tensor that the function then replaces would be dropped, and not be
        recorded; but it matters in a call with that tensor as an argument. Other storages may be
        freed: the old gradients of a training step are as large as the parameters.
        """
        self.cells: list[weakref.ref[StorageRef]] = []
        """The cells that were made during the call."""
        self._states = [(place, place.get()) for place in before.state.states()]
        """The places in reach that hold tensors, and the tensors, until all is computed."""

    @contextmanager
    def put_back_if_it_raises(self) -> Iterator[None]:
        """A block that, if it raises, replaces the stand-ins that it left by their arguments."""
        try:
            yield
        except BaseException:
            if self.before.stand_ins:
                for place in self.before.state.changes(self._present_state()):
                    self.made.restore(place, place.get())
            raise

    def _present_state(self) -> State:
        return self.before.state.again(self._executed)

    # -- at the end of the call, still recorded --------------------------------------------------

    def finish(self, result: Any, containers: Containers) -> None:
        """Computes everything that the call left lazy, and finds all tensors that it made."""
        before = self.before
        returned = returned_tensors(result)
        self.later = self._present_state()
        changes = before.state.changes(self.later)
        contents = [place.get() for place in changes]
        left = [tensor for content in contents for tensor in tensors_of(content) or ()]
        gradients = before.new_gradients()
        retained = before.retained([*returned, *left])
        found = [*returned, *left, *gradients.values(), *retained.values()]
        everything = {id(tensor): tensor for tensor in found}
        replaced = self._replaced_states()
        try:
            with writes_together(dict.fromkeys(self.written, before.last_version)):
                nodes = self._compute(everything)
        except BaseException:
            for place, content in zip(changes, contents, strict=True):
                self.made.restore(place, content)
            _put_back(replaced)
            raise
        self._states.clear()
        replaced.clear()
        seen = {id(tensor._cell) for tensor in everything.values()}
        before.add_found(self.capture, seen, {place.identity for place in changes})
        leaves = self.made.add(everything, nodes, before.sharing(everything.values()))
        for place, content in zip(changes, contents, strict=True):
            self.made.restore(place, content)
        # From here on a refusal does no harm: the call has had all effects of the function.
        if containers.have_changed():
            raise NotReplayable(
                "it puts a tensor of an argument elsewhere, or another one there; "
                "return the tensor, and put it there outside"
            )
        handles = [leaf for leaf in leaves.values() if isinstance(leaf, Tensor)]
        if any(is_symbolic_view(leaf) and leaf not in before.state for leaf in handles):
            raise NotReplayable(
                "it returns a part of a tensor from outside, and a variable says which; return a "
                "copy of it"
            )
        if self.passed.oldest < before.tape:
            raise NotReplayable(
                "backward() in it goes on through what was computed before the call; compute that "
                "in the function too, or detach() it"
            )
        self.made.outcome.template = mapped(result, lambda leaf: leaves.get(id(leaf)))
        for place, content in zip(changes, contents, strict=True):
            self._add_effect(place, content, leaves)
        self.made.add_gradients(gradients, retained, leaves)

    def _compute(self, everything: dict[int, Tensor]) -> dict[int, LazyBuffer]:
        """Computes the tensors that the call made and its pending writes; returns their values.

        The common base of several views is added to `everything`.
        """
        sharing = self.before.sharing(everything.values())
        everything |= {id(tensor): tensor for tensor in sharing.wholes.values()}
        nodes = {
            number: _computable(tensor)
            for number, tensor in everything.items()
            if self.before.kind(tensor) is None and tensor not in sharing
        }
        pending = [storage.node for storage in pending_writes()]
        realize(list(dict.fromkeys([*nodes.values(), *pending])))
        return nodes

    def _replaced_states(self) -> list[_ReplacedState]:
        """The places with states that the call has left to be computed."""
        found = [(place, old, place.get()) for place, old in self._states]
        return [
            (place, old, [tensor.lazydata for tensor in tensors_of(now) or ()])
            for place, old, now in found
            if now is not old
        ]

    def _add_effect(self, place: Place, content: Any, leaves: Mapping[int, Leaf]) -> None:
        """Adds a place that the call has assigned to: each replay puts its own tensor there."""
        state = self.before.state
        tensors = tensors_of(content)
        found = [leaves.get(id(tensor)) for tensor in tensors or ()]
        known = content is None or (tensors is not None and None not in found)
        moved = any(isinstance(leaf, Tensor) and leaf in state for leaf in found)
        if not known or moved or not state.knows(place):
            raise NotReplayable(
                "it moves tensors about in a way that replays cannot follow; "
                "assign a tensor that it computes, or return it"
            )
        if isinstance(place.holder, Tensor):
            self._watch.add_tensor(place.holder, state)
        template = mapped(content, lambda tensor: leaves.get(id(tensor)))
        self.made.outcome.effects.append(Effect(place, template))

    def check_stand_ins(self) -> None:
        """Raises `JitError` if the call wrote to a stand-in.

        The function may then have read old contents of the argument by its other way to it.
        """
        stand_ins, parts = self.before.stand_ins, self.arguments.parts
        for tensor in parts:
            if self.before.was_written(tensor):
                raise JitError(
                    f"{user_location()}: the captured function writes to an argument of shape "
                    f"{tensor.shape} that is a part of another tensor, and wrote to none in the "
                    "first call; pass a tensor of its own, such as x.clone()"
                )
        for tensor in stand_ins.keys() - parts.keys():
            place = follow(tensor.lazydata)
            written = place is None or place[0].base.serial in self.capture.updated
            if written or self.before.was_written(tensor):
                raise JitError(
                    f"{user_location()}: the captured function writes to an argument of shape "
                    f"{tensor.shape} that it can also reach by itself, and did not in the first "
                    "call; pass it only, or reach it only"
                )

    # -- afterwards ------------------------------------------------------------------------------

    def replay_if_there_is_room(self) -> Replay:
        """The replay. The call itself is done: `NotReplayable` is all that this raises."""
        lacking = self.made.lacking or self.capture.lacking
        if lacking is None:
            try:
                return self.replay()
            except MemoryError as error:
                lacking = str(error)
            except CompileError as error:
                raise NotReplayable(f"replays would need other kernels: {error}") from error
        raise NotReplayable(f"replays would take more memory: {lacking}")

    def replay(self) -> Replay:
        """The replay.

        Raises `NotReplayable` if it could give other results than the function.
        """
        self._check_arguments()
        self._check_written()
        self._check_numbers()
        released = self._leave_settled()
        self._own_host_data()
        self._find_parts()
        parts = self._parts_outside()
        used = {part.base.serial: part.base for part in parts}
        for serial, owners in self._owners_of(used, parts).items():
            for owner in owners:
                self._watch.add(owner, used[serial], serial in self.capture.updated)
        self._watch_paths(used.keys())
        self._watch_numbers()
        return self._built(used, released)

    def _built(self, used: Mapping[int, Buffer], released: Set[int]) -> Replay:
        items = self.capture.items(released)
        inputs = [*self.arguments.buffers, *self.made.buffers, *self._parts]
        updated = self.capture.updated
        constants = {serial: used[serial] for serial in used.keys() - updated.keys()}
        var_vals = dict(self.capture.var_vals)
        packed = PackedWeights.of(items, constants, inputs, var_vals)
        batch = Batch(items, inputs, var_vals)
        given = {buffer.base.serial for buffer in self.arguments.buffers}
        changed = [buffer for serial, buffer in updated.items() if serial not in given]
        self._watch.add_arguments(self.arguments, used, updated)
        objects = self.arguments.objects
        stand_ins = self.before.stand_ins
        given_nodes = [stand_ins.get(one, one).lazydata for one in self.arguments.tensors]
        return Replay(
            *(batch, packed, self.made.outcome, self._watch),
            *(changed, var_vals, objects, self.before.numbers),
            found=self.before.found.mattering(),
            layouts=list(map(layout, given_nodes)),
            parts=list(self._parts.values()),
            limits=self.limits,
            at_risk=self._at_risk(changed),
            gradients=self.made.outcome.gradients(len(self.arguments.tensors)),
        )

    def _at_risk(self, changed: Sequence[Buffer]) -> AtRisk | None:
        """The memory written to before the last run that may raise; None if no run may."""
        recorded = self.capture.recorded
        raising = [n for n, record in enumerate(recorded) if record.prg.may_raise]
        if not raising:
            return None
        written = set().union(*[record.written() for record in recorded[: raising[-1]]])
        numbers = enumerate(self.arguments.buffers)
        arguments = [number for number, buffer in numbers if buffer.base.serial in written]
        return AtRisk(arguments, [memory for memory in changed if memory.serial in written])

    def _leave_settled(self) -> Set[int]:
        """Drops the runs that computed settled memory.

        Returns the serial numbers of the other memory of the call that is alive: a replay uses new
        memory in its place.
        """
        alive = self._alive()
        if not alive:
            return alive
        nodes = [node for reference in self.capture.computed if (node := reference()) is not None]
        old = [node.realized for node in nodes if node.serial <= self.before.last_node]
        settled = alive & {memory.base.serial for memory in old if memory is not None}
        del nodes
        self.capture.recorded = list(self._without_settled(settled))
        released = alive - settled
        if self._leaves_tensors(released):
            self.made.take_from_bases()
            if self._leaves_tensors(released):
                raise NotReplayable(
                    "it leaves a tensor where replays cannot put another, or in garbage that is "
                    "not collected yet, such as two objects that refer to each other; return it, "
                    "or assign it to an attribute that it had before"
                )
        return released

    def _leaves_tensors(self, serials: Set[int]) -> bool:
        """True if a tensor is left in memory of the call with one of these serial numbers."""
        return any(owners_among([*self._cells_made(), *streams()], serials).values())

    def _cells_made(self) -> list[StorageRef]:
        """The cells that were made during the call and are still alive."""
        return [cell for reference in self.cells if (cell := reference()) is not None]

    def _alive(self) -> Set[int]:
        """The serials of memory that the call allocated and is still alive, except fresh values."""
        fresh = {buffer.serial for buffer in self.made.buffers}
        kept = [arg.memory() for arg in self._args() if isinstance(arg, PlaceHolder)]
        return {memory.serial for memory in kept if memory is not None} - fresh

    def _args(self) -> Iterator[Buffer | PlaceHolder]:
        return (arg for record in self.capture.recorded for arg in record.args)

    def _host_data(self) -> dict[int, Buffer]:
        """The memory that the call allocated and that only the host wrote to."""
        return {
            arg.base.serial: arg.base
            for arg in self._args()
            if isinstance(arg, Buffer) and self.capture.is_new(arg)
        }

    def _own_host_data(self) -> None:
        """Makes the runs read copies of host data: a tensor in that memory may be written to."""
        data = self._host_data()
        copies = {serial: _copied(buffer) for serial, buffer in data.items()}
        constants = [s for s, buffer in data.items() if buffer in captured_constants]
        captured_constants.update([copies[serial] for serial in constants])
        for record in self.capture.recorded:
            record.args = [
                _same_part(arg, copies[arg.base.serial])
                if isinstance(arg, Buffer) and arg.base.serial in copies
                else arg
                for arg in record.args
            ]

    def _without_settled(self, settled: Set[int]) -> Iterator[Recorded]:
        """The runs without those that compute values from before the call: once is enough."""
        done: set[int] = set()
        changing: set[int] = set()
        for record in self.capture.recorded:
            written, read = record.written(), record.read()
            if not written & settled:
                if read & changing:
                    raise NotReplayable(
                        "it reads a copy, made for others, of what it writes to; "
                        "take the copy by clone().realize() before the call"
                    )
                yield record
            elif written <= settled and not written & done:
                done |= written
                if read & (changing | self.capture.updated.keys()):
                    changing |= written
            else:
                raise NotReplayable(
                    "it computes a tensor from before the call along with others; "
                    "realize() it before the call"
                )

    def _parts_outside(self) -> list[Buffer]:
        """The buffers in used memory, which may be slices of it."""
        given = {buffer.serial for buffer in [*self.arguments.buffers, *self._parts]}
        return [
            arg
            for arg in self._args()
            if isinstance(arg, Buffer) and not self.capture.is_new(arg) and arg.serial not in given
            if not is_numbers(arg.base)
        ]

    def _owners_of(
        self, used: Mapping[int, Buffer], parts: Collection[Buffer]
    ) -> Mapping[int, list[Owner]]:
        """The owners of the `parts` of used memory that kernels read or write, by serial number.

        They are in the function's reach, or were made by the call. Other tensors may have the same
        memory until they are written to. The memory of a view that was computed by itself has no
        owner, and that of a table of this package: nothing writes there.
        """
        made = [cell for cell in self._cells_made() if id(cell) not in self.made.cells]
        owners = owners_among([*self.before.owners(), *made], used)
        reached = {serial for tensor, serial, _ in self.before.memory if tensor() is not None}
        read_only = reached - self.capture.updated.keys()
        for part in parts:
            serial = part.base.serial
            is_known = have(owners[serial], part) or serial in read_only or is_table(part.base)
            if not is_known:
                raise NotReplayable(
                    "a tensor that it uses is gone after the call, or was got at in an unknown "
                    "way; where the function replaces it, write to it with assign instead"
                )
        return owners

    def _watch_paths(self, used: Set[int]) -> None:
        """Adds guards on the places of the tensors that the function reads.

        Some reads and writes leave no trace in the kernels: of constants, of a tensor moved to
        where it already is, of a write of equal contents. So these tensors count as read: all
        constants, the tensors returned or written to, those both reachable and given, and those in
        several places of which the code assigns one. Implicit inputs have paths of their own.
        """
        before = self.before
        pairs = enumerate(self.arguments.buffers)
        stood_for = set(self.arguments.closed_over)
        given = {buffer.base.serial for number, buffer in pairs if number not in stood_for}
        found = {n: path for n, path in before.found.paths.items() if n in given}
        for path in found.values():
            self._watch.add_path(path)
        holders = [storage.holder for storage in self.written]
        same = [*self.made.same, *[holder() for holder in holders if holder is not None]]
        read = [
            reference
            for reference, serial, cell in before.memory
            if serial in used or serial in given or _is_one_of(cell(), same)
            if serial not in found
        ]
        constants = [reference for reference, _ in before.constants]
        moved = map(weakref.ref, before.state.aliased(before.state.assigned))
        for reference in [*read, *constants, *moved]:
            tensor = reference()
            if tensor is None or not self._watch.add_tensor(tensor, before.state):
                raise NotReplayable(
                    "it replaces a tensor that it reads; write to it with assign instead"
                )
        self._watch_constants()

    def _watch_numbers(self) -> None:
        numbers = self.before.numbers
        inputs = self.before.found.spots()
        state = self.before.state
        if state.tells_apart:
            places = [p for p in state.tensor_places() if p.identity not in inputs]
            self._watch.add_path(tuple([(place, place.get()) for place in places]))
        numbers.add_kinds(lambda place: place.identity in inputs or self._watch.watches(place))
        self._watch.add_numbers(numbers)

    def _watch_constants(self) -> None:
        """Adds guards on constants.

        A constant has no memory for replays to write to. If the call wrote to one, gives it memory,
        so that the next call can be captured, and raises `NotReplayable`.
        """
        found = [(reference(), serial) for reference, serial in self.before.constants]
        cells = {tensor._cell: serial for tensor, serial in found if tensor is not None}
        written = [cell for cell, serial in cells.items() if cell.value.node.serial != serial]
        for cell in written:
            if cell.value.node.base_const() is not None:
                cell.settle()
        if written:
            realize([cell.value.node for cell in written])
            raise NotReplayable(
                "it writes to a constant from before the call, now in memory, "
                "so that the next call is captured"
            )
        for cell in cells:
            self._watch.add_constant(cell)

    def _check_arguments(self) -> None:
        for tensor, buffer in zip(self.arguments.tensors, self.arguments.buffers, strict=True):
            place = follow(self.before.stand_ins.get(tensor, tensor).lazydata)
            if place is None or place[0] is not buffer:
                raise NotReplayable(
                    "it moves an argument to other memory; write to it with assign instead"
                )

    def _check_written(self) -> None:
        """Raises `NotReplayable` if written memory has moved: replays write to the old place.

        A tensor that the call made, such as a copy, has no old place.
        """
        made = set(map(id, self.cells))  # an object has one weak reference, also after its end
        moved = [storage for storage in self.written if id(storage.holder) not in made]
        memories = [storage.node.realized for storage in moved]
        if any(memory is None or self.capture.is_new(memory) for memory in memories):
            raise NotReplayable(
                "what it writes to is in other memory afterwards, or another thread writes to it; "
                "write with assign, and in one thread at a time"
            )

    def check_code(self, ran: Executed, constants: Counter[Hashable]) -> None:
        """Raises `NotReplayable` if code that `ran` may have read what replays cannot compare.

        `constants` are those of the graphs of the call before.
        """
        state = self.before.state
        if not ran.codes.keys() <= state.codes:
            self._check_numbers()
            if not self.later.adds_to(state):
                raise NotReplayable(
                    "it ran other code than the calls before, which may have changed what it read; "
                    "a later call is tried again"
                )
            self.before.numbers, state = Numbers(self.later), self.later
        if ran.reads_clock and ran.constants != constants:
            raise NotReplayable(
                "it asks for the time, or the like, and computes with other numbers than the call "
                "before; pass them as tensors"
            )
        for line in ran.waits:
            raise NotReplayable(
                f"it waits for another thread, whose work is no part of a replay: {line}"
            )
        for line in ran.unseen:
            raise NotReplayable(
                f"it handles an error of ferrule's, and what it ran before {line} could not be seen"
                "; handle it outside of the function"
            )
        for name, kind in state.opaque.items():
            raise NotReplayable(
                f"it may use {name!r}, a {kind}, whose state cannot be compared; "
                "pass what it needs of that as an argument"
            )
        for name, line in ran.impure.items():
            raise NotReplayable(
                f"it calls {name} at {line}, which may give another result each time; "
                "pass the result as an argument, a number that changes as a tensor"
            )

    def _check_numbers(self) -> None:
        numbers = self.before.numbers
        changed = numbers.problem()
        if changed is not None:
            raise NotReplayable(
                f"it changes what it reads besides tensors: {changed}; "
                "keep it in a tensor, or pass it as one"
            )
        for place, child in numbers.path:
            if place.get() is not child:
                raise NotReplayable(
                    f"it replaces {place.key!r}, which it reads; replace it outside of the function"
                )
        data = [one for one in self._host_data().values() if one not in captured_constants]
        if numbers.has_large_arrays and data:
            raise NotReplayable(
                "it reads data of the host, perhaps from an array outside that is too large to be "
                "compared before each replay; make that a tensor outside"
            )

    def _find_parts(self) -> None:
        """Finds the slices of arguments and of results that kernels use.

        Graph executors replace whole buffers, so each slice is an input of its own.
        """
        reachable = set(self.arguments.closed_over)
        pairs = list(enumerate(self.arguments.buffers))
        given = [(number, buffer) for number, buffer in pairs if number not in reachable]
        serials = {buffer.serial for _, buffer in given}
        bases = {buffer.base.serial for _, buffer in given}
        for arg in self._args():
            if isinstance(arg, Buffer) and arg.base.serial in bases and arg.serial not in serials:
                found = [InputPart.of(arg, buffer, number) for number, buffer in given]
                parts = [part for part in found if part is not None]
                if not parts:
                    raise NotReplayable(
                        "a kernel uses memory that an argument is in, beside it; "
                        "pass a copy of it, or all of that memory"
                    )
                self._parts[arg] = parts[0]
        self._find_parts_of_results()

    def _find_parts_of_results(self) -> None:
        first = len(self.arguments.buffers)
        numbers = {buffer.serial: first + i for i, buffer in enumerate(self.made.buffers)}
        found: dict[PlaceHolder, Buffer] = {}
        for record in self.capture.recorded:
            for position, arg in enumerate(record.args):
                if not isinstance(arg, PlaceHolder) or arg.whole is arg:
                    continue
                number = numbers.get(arg.serial)
                if number is None:
                    continue
                if arg not in found:
                    offset = arg.byte_offset // arg.dtype.itemsize
                    whole = self.made.buffers[number - first]
                    found[arg] = part = whole.view(offset, arg.size, arg.dtype)
                    self._parts[part] = InputPart(number, offset, arg.size, arg.dtype)
                record.args[position] = found[arg]


def _is_one_of(cell: StorageRef | None, memories: Sequence[object]) -> bool:
    return cell is not None and any(cell is memory for memory in memories)


_ReplacedState: TypeAlias = tuple[Place, Any, list[LazyBuffer]]
"""A place, its content before the call, and the nodes of the tensors that are there now."""


def _put_back(replaced: Sequence[_ReplacedState]) -> None:
    """Puts states back where the new ones have not been computed. Old gradients are gone."""
    for place, old, nodes in replaced:
        if any([node.realized is None and node.base_const() is None for node in nodes]):
            place.set(old)


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
    """The slice of `memory` at the same position as `buffer` in its own memory."""
    start = buffer.byte_offset // buffer.dtype.itemsize
    return memory.view(start, buffer.size, buffer.dtype)
