"""The AST of a task: its nodes as `LazyOp`s, with a STORE for each output.

Buffers are numbered in the order of the walk, outputs first, so that equal tasks have equal ASTs.
"""

from __future__ import annotations

from typing import Any, final

from ferrule.base.records import dataclass
from ferrule.fusion.slots import Slot, Slots
from ferrule.fusion.tasks import Reader, Task
from ferrule.ir.expr import Expr, Variable, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BufferOps,
    ConstBuffer,
    FunctionOps,
    LazyOp,
    LoadOps,
    MemBuffer,
    MovementOps,
)
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import ShapeError, View


@final
@dataclass(frozen=True)
class Tree:
    """The AST of a task, the memory of its buffer numbers, and the values of its variables."""

    ast: LazyOp
    slots: list[Slot]
    var_vals: dict[Variable, int]


@final
class Trees:
    """The ASTs of tasks, each built once. See `_TreeBuilder` for the arguments."""

    def __init__(
        self, reader: Reader, slots: Slots, *, symbolic: bool = False, alignment: int = 1
    ) -> None:
        self._reader = reader
        self._slots = slots
        self._symbolic = symbolic
        self._alignment = alignment
        self._built: dict[Task, Tree] = {}

    def of(self, task: Task) -> Tree:
        """The AST of a task that is a kernel."""
        found = self._built.get(task)
        if found is None:
            builder = _TreeBuilder(task, self._reader, self._slots, self._symbolic, self._alignment)
            found = self._built[task] = Tree(builder.build(), builder.slots, builder.var_vals)
        return found


@final
class _TreeBuilder:
    """Builds the AST of one task. `slots` lists the memory of the AST's buffer numbers.

    Where memory is divisible, a buffer is only the part of it that the kernel uses. So one kernel
    serves all elements, rows or batches, wherever they begin. Such parts begin at multiples of
    `alignment` bytes.
    """

    def __init__(
        self, task: Task, reader: Reader, slots: Slots, symbolic: bool, alignment: int
    ) -> None:
        self.task = task
        self.reader = reader
        self.symbolic = symbolic
        self.var_vals: dict[Variable, int] = {}
        self.slots: list[Slot] = []
        self._slot_of = slots
        self._number: dict[Slot, int] = {}
        self._done: dict[LazyBuffer, LazyOp] = {}
        self._alignment = alignment
        self._views: dict[int, set[View]] = {}
        """The kernel's views of each buffer, by number."""
        self._starts: dict[int, int] = {}
        """The first element of each buffer that is a part of memory, by number."""

    def build(self) -> LazyOp:
        """The AST: one STORE, or a SINK of several."""
        for root in self.task.outputs:
            self._index(self._slot_of[root])
        stores = [self._store(root) for root in self.task.outputs]
        if self._take_parts():
            self._done.clear()
            stores = [self._store(root) for root in self.task.outputs]
        return stores[0] if len(stores) == 1 else LazyOp(BufferOps.SINK, tuple(stores))

    def _store(self, root: LazyBuffer) -> LazyOp:
        value, view = self.reader.stored(self.task, root)
        memory = self._memory(root, view)
        return LazyOp(BufferOps.STORE, (self._tree(value),), memory)

    def _memory(self, node: LazyBuffer, view: View) -> MemBuffer:
        number = self._index(self._slot_of[node])
        self._views.setdefault(number, set()).add(view)
        start = self._starts.get(number, 0)
        if start:
            view = View.create(view.shape, view.strides, view.offset - start, view.mask)
        return MemBuffer(number, node.dtype, self._tracker(view))

    def _take_parts(self) -> bool:
        """Replace buffers by the parts of memory that the kernel uses; True if there are any."""
        for number, views in self._views.items():
            slot = self.slots[number]
            ranges = [view.reach for view in views]
            known = [found for found in ranges if found is not None]
            if slot.is_divisible and len(known) == len(ranges):
                start, stop = min(start for start, _ in known), max(stop for _, stop in known)
                start -= start % max(1, self._alignment // slot.dtype.itemsize)
                stop = min(stop, slot.size)  # no value of a variable that fits goes beyond
                if start > 0:
                    self._starts[number] = start
                    self.slots[number] = slot.part(start, stop - start)
        return bool(self._starts)

    def _index(self, slot: Slot) -> int:
        number = self._number.get(slot)
        if number is None:
            number = self._number[slot] = len(self.slots)
            self.slots.append(slot)
        return number

    def _tree(self, value: LazyBuffer) -> LazyOp:
        done = self._done
        begun: dict[LazyBuffer, list[LazyBuffer]] = {}  # with the sources, which come first
        stack = [value]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            srcs = begun.get(node)
            if srcs is None:
                leaf = self._leaf(node)
                if leaf is not None:
                    done[node] = leaf
                    stack.pop()
                    continue
                srcs = [self.task.instead.get(s, s) for s in self.task.sources(node)]
                begun[node] = srcs
                stack.extend([source for source in reversed(srcs) if source not in done])
                continue
            done[node] = self._node(node, tuple([done[source] for source in srcs]))
            axes = self.task.stages.get(node)
            if axes is not None:
                done[node] = LazyOp(BufferOps.STAGE, (done[node],), axes)
            stack.pop()
        return done[value]

    def _node(self, node: LazyBuffer, srcs: tuple[LazyOp, ...]) -> LazyOp:
        if node.op in (LoadOps.ASSIGN, LoadOps.CONTIGUOUS):
            return srcs[0]
        if node.op is FunctionOps.STEPS:
            tree: LazyOp = node.arg.tree(*srcs)
            return tree
        arg = self._unbound(node.arg) if self.symbolic else node.arg
        return LazyOp(node.op, srcs, arg)

    def _leaf(self, node: LazyBuffer) -> LazyOp | None:
        value = node.base_const()
        if value is not None:
            return self._const(node, node, None)
        found = self.reader.leaf_view(node, self.task)
        if found is None:
            if not isinstance(node.op, MovementOps):
                return None
            moved = self.reader.views.of(node)
            if moved is None or moved[0].base_const() is None:
                return None
            return self._const(node, moved[0], moved[1])
        leaf, view = found
        return LazyOp(BufferOps.LOAD, (), self._memory(leaf, view))

    def _const(self, node: LazyBuffer, base: LazyBuffer, view: View | None) -> LazyOp:
        shape = self._unbound(node.shape) if self.symbolic else node.shape
        # A constant needs no strides, and without them equal kernels have equal ASTs.
        strides = (0,) * len(shape)
        mask = None if view is None else view.mask
        tracker = self._tracker(View.create(shape, strides, 0, mask))
        value = self._unbound(base.arg) if self.symbolic else base.arg
        return LazyOp(BufferOps.CONST, (), ConstBuffer(value, base.dtype, tracker))

    # -- symbolic sizes --------------------------------------------------------------------------

    def _tracker(self, view: View) -> ShapeTracker:
        tracker = ShapeTracker(view)
        if not self.symbolic:
            return tracker
        free, values = tracker.unbind()
        self._bind(values)
        return free

    def _unbound(self, arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple([self._unbound(part) for part in arg])
        if isinstance(arg, Expr):
            free, values = unbind(arg)
            self._bind(values)
            return free
        return arg

    def _bind(self, values: dict[Variable, int]) -> None:
        for variable, value in values.items():
            if self.var_vals.setdefault(variable, value) != value:
                raise ShapeError(
                    f"variable {variable.name} is {self.var_vals[variable]} and {value} "
                    "in one kernel; use one value, or two variables"
                )
