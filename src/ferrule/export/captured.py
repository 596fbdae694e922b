"""The exported program of a captured function: memory and steps of the replay that it used last."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from ferrule.autograd.iota import is_numbers
from ferrule.base.containers import mapped
from ferrule.base.helpers import round_up
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.loop import LoopStep, Operand
from ferrule.device.runner import ASTRunner, JITRunner, RowFunction
from ferrule.engine.loop_runs import Loop as LoopRunner
from ferrule.engine.loop_runs import LoopParts
from ferrule.engine.random import streams
from ferrule.export.program import (
    ALIGNMENT,
    Block,
    BlockKind,
    Cell,
    Copy,
    ExportedProgram,
    ExportError,
    Kernel,
    Loop,
    Move,
    Step,
    TensorSpec,
    Value,
    every_step,
)
from ferrule.export.runs import Memory, Run, check_runs, loop_parts, runs_of, size_of
from ferrule.fusion.views import dense
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Variable, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LazyOp, MovementOps
from ferrule.ir.op_table import MOVEMENTS
from ferrule.ir.shape.view import View
from ferrule.ir.storage import turn
from ferrule.jit import BoundJit, TinyJit
from ferrule.jit.inputs import Chain, follow, is_copy, layout, memory_serial, without_values
from ferrule.jit.places import Place
from ferrule.jit.replay import Replay
from ferrule.jit.report.messages import way_to_spot, ways_of
from ferrule.jit.report.signature import CallKey, Parameters, Signature, tensors_below
from ferrule.jit.results import Effect
from ferrule.tensor import Tensor
from ferrule.tensor.cell import MOVES


def exported_program(
    step: TinyJit[Any] | BoundJit[Any], *, packed: bool = True, name: str = ""
) -> ExportedProgram:
    """The program of the replay that a captured function used last.

    With `packed` the kernels read constant weights from packed copies, as replays do, and have no
    trees. The program refers to the memory of weights and states: write it out before they change.

    Raises `ExportError` if the function has no replay yet, and if it does what a program cannot;
    the message names all such operations, and the way out.

    >>> from ferrule import Tensor, TinyJit
    >>> double = TinyJit(lambda x: x * 2)
    >>> for i in range(3):
    ...     y = double(Tensor([i], device="CPU"))
    >>> program = exported_program(double)
    >>> [(one.name, one.shape) for one in (*program.arguments, *program.results)]
    [('x', (1,)), ('result', (1,))]
    """
    with turn:
        replay, key, function = step.last_replay()
        if replay is None:
            raise ExportError(
                "the function has no replay to export: call it three times with arguments of the "
                f"same kind first. {step.explain()}"
            )
        name = name or getattr(function, "__name__", type(function).__name__)
        return _Builder(replay, key, function, packed, name.strip("<>")).program()


# *** views ***


def view_of_chain(shape: Sequence[sint], chain: Chain) -> View | None:
    """The view that movements, the last one first, make of memory of a shape; None if no single
    view expresses it.
    """
    view: View | None = dense(shape)
    now = tuple(shape)
    for op, arg in reversed(chain):
        row = MOVEMENTS.get(op) if isinstance(op, MovementOps) else None
        if view is None or row is None or row.shape is None or row.view is None:
            return None
        now = row.shape(now, arg)
        view = row.view(view, arg, now)
    return view


def state_name(way: str) -> str:
    """The name that state dicts have for an expression, such as `layers.0.weight`.

    >>> state_name("self.layers[0].weight"), state_name("net.blocks['a'].bias")
    ('layers.0.weight', 'net.blocks.a.bias')
    """
    dotted = re.sub(r"\[['\"]?(.*?)['\"]?\]", r".\1", way)
    return dotted.removeprefix("self.").lstrip(".")


# *** the program ***


@final
class _Builder:
    """Makes the blocks and the steps of one program."""

    def __init__(
        self,
        replay: Replay,
        key: CallKey,
        function: Callable[..., Any],
        packed: bool,
        name: str,
    ) -> None:
        self._replay = replay
        self._name = name
        signature = key[0]
        assert isinstance(signature, Signature)
        parameters = Parameters(function)
        self._ways = ways_of(function, signature, parameters, replay)
        self._labels = [
            (label, part[1])
            for argument, item in signature.arguments(parameters)
            for label, part in tensors_below(argument, item)
        ]
        """The names and dtypes of the arguments' tensors."""
        self._check_aliases(signature)
        self._panels: dict[int, Buffer] = {}
        """The weight of each packed copy, by the serial number of the copy."""
        self._packed = packed
        self._runs = runs_of(replay.batch)
        check_runs(self._runs, replay.batch.kinds)
        copies = replay.packed if packed else None
        # The first question notes the versions of the weights, the second one packs them.
        if copies is not None and (copies.are_ready() or copies.are_ready()):
            self._runs = runs_of(copies.batch)
            self._panels = {panel.packed.serial: panel.weight for panel in copies.panels}
        self._changed = {buffer.base.serial for buffer in replay.changed}
        self._named = {
            serial: state_name(way)
            for way, tensor in reversed(self._ways.tensors)
            if (serial := memory_serial(tensor.lazydata)) is not None
        }
        for stream in streams():
            if stream.node.realized is not None:
                self._named[stream.node.realized.base.serial] = "random_numbers"
        self.blocks: list[Block] = []
        self._of_memory: dict[int, int] = {}
        """The block of each memory from outside, by serial number."""
        self._inputs: list[Cell] = []
        """The memory of each input of the batch."""
        self._scratch: dict[int, int] = {}
        """The first byte of each arena in the scratch block, by serial number."""
        self._scratch_bytes = 0
        self._block_of_scratch = self._add(Block(BlockKind.SCRATCH, "", 0))
        self._unused = Cell(self._block_of_scratch, 0, 0)
        """In the place of memory that a kernel takes, but does not use: packed weights."""
        self._copies: list[Copy] = []
        self._tensors: list[TensorSpec] = []
        """The tensors that leaves of results and effects number."""
        self._states: dict[str, TensorSpec] = {}

    def _check_aliases(self, signature: Signature) -> None:
        for number, earlier, _ in signature[4]:
            raise ExportError(
                f"{self._labels[number][0]} and {self._labels[earlier][0]} share memory in the "
                "captured call, and the kernels rely on that; pass one of them, or a copy"
            )

    # -- blocks ----------------------------------------------------------------------------------

    def _add(self, block: Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1

    def _unique(self, name: str) -> str:
        """A name that no block has yet."""
        taken = {block.name for block in self.blocks}
        found, number = name, 2
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        return found

    def _new_scratch(self, nbytes: int) -> Cell:
        start = round_up(self._scratch_bytes, ALIGNMENT)
        self._scratch_bytes = start + nbytes
        return Cell(self._block_of_scratch, start, nbytes)

    def _outside(self, base: Buffer) -> int:
        """The block of memory from outside: a constant, or a state that the program writes to."""
        found = self._of_memory.get(base.serial)
        if found is None:
            is_state = base.serial in self._changed
            name = self._named.get(base.serial, "")
            if base.serial in self._panels:
                weight = self._named.get(self._panels[base.serial].base.serial, "weight")
                name = f"packed {weight}"
            elif is_numbers(base):
                name = "0, 1, 2, ..."
            name = self._unique(name or "state") if is_state else name
            kind = BlockKind.STATE if is_state else BlockKind.CONSTANT
            found = self._add(Block(kind, name, base.nbytes, base, is_state))
            self._of_memory[base.serial] = found
        return found

    # -- inputs ----------------------------------------------------------------------------------

    def _add_inputs(self) -> None:
        """Adds the blocks of arguments, of states that the function finds, and of new values."""
        replay = self._replay
        kinds = replay.batch.kinds
        written = {
            buffer
            for run in self._runs
            for i, buffer in enumerate(run.buffers)
            if isinstance(buffer, int) and run.runner.access(i)[1]
        }
        for number, (label, dtype) in enumerate(self._labels):
            _, size, memory_dtype = kinds[number]
            nbytes = size * memory_dtype.itemsize
            kind = BlockKind.ARGUMENT
            block = Block(kind, self._unique(label), nbytes, None, number in written)
            self._add_tensor(number, self._add(block), dtype)
        self._add_found(written)
        self.given = len(self._tensors)
        self._add_values()
        for part in replay.parts:
            given = self._inputs[part.number]
            start, nbytes = part.offset * part.dtype.itemsize, part.size * part.dtype.itemsize
            self._inputs.append(Cell(given.block, given.offset + start, nbytes))

    def _add_tensor(self, number: int, block: int, dtype: DType) -> TensorSpec:
        """Adds a given tensor, whose view of its memory was noted in the capture."""
        name, nbytes = self.blocks[block].name, self.blocks[block].nbytes
        self._inputs.append(Cell(block, 0, nbytes))
        view = view_of_chain(*self._replay.layouts[number])
        spec = self._spec(name, view, dtype, Cell(block, 0, nbytes))
        self._tensors.append(spec)
        return spec

    def _spec(self, name: str, view: View | None, dtype: DType, cell: Cell) -> TensorSpec:
        if view is None or view.mask is not None or not isinstance(view.offset, int):
            raise ExportError(
                f"{name} is a view that sizes and strides alone cannot describe; pass or return a "
                "copy of it, x.contiguous()"
            )
        start = view.offset * dtype.itemsize
        place = Cell(cell.block, cell.offset + start, cell.nbytes - start)
        return TensorSpec(name, view.shape, view.strides, dtype, place)

    def _add_found(self, written: set[int]) -> None:
        """Adds the gradients and the states that the function finds by itself."""
        replay = self._replay
        self._spots: dict[Any, list[int]] = {}
        """The numbers of the tensors in each place that the function reads and replaces."""
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        used = len(replay.found.used)
        # The rest of the key says which other parameters have gradients: no memory of the program.
        if replay.found.add_to(tensors, buffers)[:used] != replay.found_key[:used]:
            raise ExportError(
                "the gradients or states that the function finds are of another kind now than in "
                "the captured call; call the function again, then export it"
            )
        present = iter(zip(tensors, buffers, strict=True))
        for spot, kind in zip(replay.found.used, replay.found_key, strict=False):
            if not isinstance(kind, tuple):
                continue
            way = state_name(way_to_spot(spot, self._ways))
            count = len(kind) - 1
            numbers = self._spots[_spot_key(spot)] = []
            for place in range(count):
                tensor, buffer = next(present)
                number = len(self._tensors)
                name = self._unique(way if count == 1 else f"{way}.{place}")
                block = Block(BlockKind.STATE, name, buffer.nbytes, buffer, number in written)
                self._states[name] = self._add_tensor(number, self._add(block), tensor.dtype)
                numbers.append(number)

    def _add_values(self) -> None:
        """Gives each value that the program computes a block of its own, or scratch memory."""
        outcome = self._replay.outcome
        named: dict[int, str] = {}
        for name, leaf in leaves_of("result", outcome.template):
            self._note_value(named, name, leaf)
        left = self._values_left()
        for number, fresh in enumerate(outcome.fresh):
            nbytes = fresh.size * fresh.dtype.itemsize
            if number in named:
                block = Block(BlockKind.RESULT, self._unique(named[number]), nbytes, None, True)
                cell = Cell(self._add(block), 0, nbytes)
            elif number in left:
                block = Block(BlockKind.STATE, self._unique(left[number]), nbytes, None, True)
                cell = Cell(self._add(block), 0, nbytes)
            else:
                cell = self._new_scratch(nbytes)
            self._inputs.append(cell)
        for number, _ in outcome.made:
            fresh, cell = outcome.fresh[number], self._inputs[self.given + number]
            name = self.blocks[cell.block].name
            self._tensors.append(self._spec(name, dense(fresh.shape), fresh.dtype, cell))
        for shared in outcome.shared:
            whole = self._tensors[shared.whole]
            view: View | None = View.create(whole.shape, whole.strides)
            now = whole.shape
            for (op, arg), _ in shared.moves:
                row = MOVEMENTS.get(op) if isinstance(op, MovementOps) else None
                if view is not None and row is not None and row.shape and row.view:
                    now = row.shape(now, without_values(arg)[0])
                    view = row.view(view, without_values(arg)[0], now)
                else:
                    view = None
            self._tensors.append(self._spec(whole.name, view, whole.dtype, whole.cell))

    def _values_left(self) -> dict[int, str]:
        """The values that the function leaves in places that it does not read, with names."""
        outcome = self._replay.outcome
        found: dict[int, str] = {}
        for effect in outcome.effects:
            if self._key_of(effect) in self._spots:
                continue
            for name, leaf in leaves_of(self._name_of(effect), effect.leaf):
                self._note_value(found, name, leaf)
        return found

    def _note_value(self, names: dict[int, str], name: str, leaf: Any) -> None:
        """Notes the name of the new value that a leaf is, or is a view of."""
        outcome = self._replay.outcome
        while isinstance(leaf, int) and leaf >= self.given + len(outcome.made):
            leaf = outcome.shared[leaf - self.given - len(outcome.made)].whole
        if isinstance(leaf, int) and leaf >= self.given:
            names.setdefault(outcome.made[leaf - self.given][0], name)

    def _key_of(self, effect: Effect) -> Any:
        where = effect.where
        if isinstance(where, int):
            return ("gradient of", where)
        is_gradient = isinstance(where.holder, Tensor) and where.key == "grad"
        return ("gradient", id(where.holder)) if is_gradient else where.identity

    def _name_of(self, effect: Effect) -> str:
        where = effect.where
        if isinstance(where, int):
            owner = self._labels[where][0] if where < len(self._labels) else "result"
            return f"{owner}.grad"
        return state_name(self._ways.to(where) or str(where.key))

    # -- steps -----------------------------------------------------------------------------------

    def _cell(self, buffer: Memory, is_first_written: bool) -> Cell:
        if isinstance(buffer, int):
            return self._inputs[buffer]
        base = buffer.base
        start = self._scratch.get(base.serial)
        if start is None and is_first_written and base.serial not in self._changed:
            start = self._scratch[base.serial] = self._new_scratch(base.nbytes).offset
        if start is not None:
            return Cell(self._block_of_scratch, start + buffer.byte_offset, buffer.nbytes)
        return Cell(self._outside(base), buffer.byte_offset, buffer.nbytes)

    def _step(self, run: Run) -> Step:
        runner = run.runner
        access = [runner.access(place) for place in range(len(run.buffers))]
        # What a run writes comes first, so that memory it also reads is known to be scratch.
        cells = [
            self._cell(buffer, writes) if reads or writes else self._unused
            for buffer, (reads, writes) in zip(run.buffers, access, strict=True)
        ]
        size = size_of(run.buffers[0], self._replay.batch.kinds)
        return self._step_on(runner, cells, size, run.line, run.ast, 0)

    def _step_on(
        self,
        runner: JITRunner,
        cells: Sequence[Cell],
        size: int,
        line: str,
        ast: LazyOp | None,
        depth: int,
    ) -> Step:
        """A run on memory as a step, with so many loops around it; `size` is that of its first
        buffer."""
        if isinstance(runner, BufferCopy):
            return Copy(cells[0], cells[1])
        if isinstance(runner, LoopRunner):
            return self._loop(loop_parts(runner, size, self._packed), cells, line, depth)
        assert isinstance(runner, CompiledASTRunner)
        access = [runner.access(place) for place in range(len(cells))]
        values: tuple[Value, ...] = (*runner.fixed, *runner.vars)
        # One function of rows is for all sizes.
        name = f"{runner.function}_rows" if isinstance(runner, RowFunction) else runner.name
        return Kernel(
            *(name, runner, ast, tuple(cells), values),
            reads=frozenset([place for place, (reads, _) in enumerate(access) if reads]),
            writes=frozenset([place for place, (_, writes) in enumerate(access) if writes]),
            line=line,
        )

    def _loop(self, parts: LoopParts, given: Sequence[Cell], line: str, depth: int) -> Loop:
        """A loop on memory, with so many loops around it."""
        tables = [
            Cell(self._outside(one.base), one.byte_offset, one.nbytes) for one in parts.tables
        ]
        memory = [*given, self._new_scratch(parts.scratch_bytes), *tables]

        def cell(operand: Operand) -> Cell:
            stream, whole = operand.stream, memory[operand.stream.buffer]
            moves = whole.moves
            if stream.stride or stream.other:
                move = Move(depth, stream.stride, stream.other, stream.phase, stream.backwards)
                moves = (*moves, move)
            start = whole.offset + stream.offset + operand.offset
            return Cell(whole.block, start, operand.nbytes, moves)

        def steps(some: Sequence[LoopStep]) -> tuple[Step, ...]:
            found: list[Step] = []
            for one in some:
                ast = one.runner.ast if isinstance(one.runner, ASTRunner) else None
                cells, size = [*map(cell, one.operands)], one.operands[0].size
                found.append(self._step_on(one.runner, cells, size, line, ast, depth + 1))
            return tuple(found)

        def at(number: int | None) -> Cell | None:
            return None if number is None else memory[number]

        return Loop(
            parts.most,
            at(parts.count),
            at(parts.start),
            None if parts.condition is None else cell(parts.condition),
            steps(parts.before),
            steps(parts.body),
            steps(parts.after),
            at(parts.counted),
        )

    def _leave(self, effect: Effect) -> Iterator[TensorSpec]:
        """Adds the copies by which an effect puts tensors into its place; gives the new states."""
        targets = self._spots.get(self._key_of(effect))
        name = self._name_of(effect)
        for place, (label, leaf) in enumerate(leaves_of(name, effect.leaf)):
            source = self._tensor_at(label, leaf)
            if targets is not None:
                self._copy(self._tensors[targets[place]], source, label)
                continue
            block = self.blocks[source.cell.block]
            if block.kind is BlockKind.STATE and block.name == label:
                yield TensorSpec(label, source.shape, source.strides, source.dtype, source.cell)
                continue
            yield self._copied(BlockKind.STATE, label, source)

    def _copy(self, to: TensorSpec, source: TensorSpec, name: str) -> None:
        if to.strides != source.strides or to.cell.nbytes != source.cell.nbytes:
            raise ExportError(
                f"the function leaves a view in {name}; assign a copy of it, x.contiguous()"
            )
        self._copies.append(Copy(to.reach, source.reach))

    def _copied(self, kind: BlockKind, name: str, source: TensorSpec) -> TensorSpec:
        """A tensor of this name in a new block, to which the memory of another one is copied."""
        reach = source.reach
        made = self._add(Block(kind, self._unique(name), reach.nbytes, None, True))
        self._copies.append(Copy(Cell(made, 0, reach.nbytes), reach))
        cell = Cell(made, source.cell.offset - reach.offset, source.cell.nbytes)
        return TensorSpec(name, source.shape, source.strides, source.dtype, cell)

    def _tensor_at(self, name: str, leaf: Any) -> TensorSpec:
        """The tensor that a leaf stands for: a number, or a handle on memory from before."""
        if isinstance(leaf, int):
            return self._tensors[leaf]
        node = _node_in_base(leaf)
        found = follow(node)
        if found is None:
            raise ExportError(f"{name} is a constant tensor without memory; return x.contiguous()")
        view = view_of_chain(*layout(node))
        buffer, _ = found
        block = self._outside(buffer.base)
        cell = Cell(block, buffer.byte_offset, buffer.nbytes)
        return self._spec(self.blocks[block].name or name, view, leaf.dtype, cell)

    def _simultaneous(self) -> list[Copy]:
        """The copies at the end, as if all were made at once: sources that others overwrite first
        go to scratch memory."""
        targets = {copy.to.block for copy in self._copies}
        saved: list[Copy] = []
        copies: list[Copy] = []
        for copy in self._copies:
            if copy.to == copy.source or not copy.to.nbytes:
                continue
            if copy.source.block in targets:
                aside = self._new_scratch(copy.source.nbytes)
                saved.append(Copy(aside, copy.source))
                copies.append(Copy(copy.to, aside))
            else:
                copies.append(copy)
        return [*saved, *copies]

    def program(self) -> ExportedProgram:
        """The program."""
        replay = self._replay
        self._add_inputs()
        every = map(self._step, self._runs)
        steps = [one for one in every if not isinstance(one, Copy) or one.to.nbytes]
        effects = [spec for effect in replay.outcome.effects for spec in self._leave(effect)]
        results = [
            self._result(name, self._tensor_at(name, leaf))
            for name, leaf in leaves_of("result", replay.outcome.template)
        ]
        moved = self._simultaneous()
        steps += moved
        numbers = iter(range(len(results)))
        template = mapped(
            replay.outcome.template, lambda leaf: None if leaf is None else next(numbers)
        )
        scratch = Block(BlockKind.SCRATCH, "", round_up(self._scratch_bytes, ALIGNMENT), None, True)
        self.blocks[self._block_of_scratch] = scratch
        variables: set[Variable] = set()
        sizes = [s for spec in (*self._tensors, *results) for s in (*spec.shape, *spec.strides)]
        for step in every_step(steps):
            if isinstance(step, Kernel):
                sizes += step.values
            elif isinstance(step, Loop) and step.most is not None:
                sizes.append(step.most)
        for size in [*sizes, *replay.limits]:
            found = set() if isinstance(size, int) else size.vars()
            variables |= {one for one in found if isinstance(one, Variable)}
        return ExportedProgram(
            self._name,
            tuple(self.blocks),
            arguments=tuple(self._tensors[: len(self._labels)]),
            states=tuple([*self._states.values(), *self._states_outside()]),
            effects=tuple(effects),
            results=tuple(results),
            template=template,
            variables=tuple(sorted(variables, key=lambda one: one.name)),
            limits=tuple(replay.limits),
            steps=tuple(steps),
            inputs=tuple(self._inputs),
            replayed=len(steps) - len(moved),
            numbers=tuple(replay.numbers.shown(self._ways.to)),
        )

    def _result(self, name: str, spec: TensorSpec) -> TensorSpec:
        """A tensor as a result of this name. A constant is copied: callers may write to it."""
        if self.blocks[spec.cell.block].kind is BlockKind.CONSTANT:
            return self._copied(BlockKind.RESULT, name, spec)
        return TensorSpec(name, spec.shape, spec.strides, spec.dtype, spec.cell)

    def _states_outside(self) -> Iterator[TensorSpec]:
        """The states in memory from outside, as whole tensors where the function reaches them."""
        known = {
            memory_serial(tensor.lazydata): tensor
            for _, tensor in reversed(self._ways.tensors)
            if tensor._parent is None
        }
        for serial, number in self._of_memory.items():
            block = self.blocks[number]
            if block.kind is not BlockKind.STATE or block.memory is None:
                continue
            tensor = known.get(serial)
            dtype = block.memory.dtype
            shape: tuple[sint, ...] = (block.memory.size,)
            if tensor is not None and tensor.lazydata.size == block.memory.size:
                shape = without_values(tensor.shape)[0]
            view = dense(shape)
            yield self._spec(block.name, view, dtype, Cell(number, 0, block.nbytes))


def _node_in_base(tensor: Tensor) -> LazyBuffer:
    """The node of a tensor as a view of its base's memory.

    A view that was computed by itself has a copy, which later writes to the base do not reach.
    """
    node, part = tensor.lazydata, tensor._part()
    if part is None or not is_copy(tensor, node):
        return node
    value = tensor._cell.value
    for op, arg in part.moves:
        value = MOVES[op](value, arg)
    return value.node


def _spot_key(spot: Any) -> Any:
    """The key of an implicit input, as `_key_of` has it for an effect."""
    if not isinstance(spot, Place):
        return ("gradient", id(spot()))
    is_gradient = isinstance(spot.holder, Tensor) and spot.key == "grad"
    return ("gradient", id(spot.holder)) if is_gradient else spot.identity


def leaves_of(name: str, template: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a template but None, and the expressions for them."""
    if isinstance(template, list | tuple):
        for number, part in enumerate(template):
            yield from leaves_of(f"{name}.{number}", part)
    elif isinstance(template, dict):
        for key, part in template.items():
            yield from leaves_of(f"{name}.{key}", part)
    elif template is not None:
        yield name, template
