"""Programs for any number of elements, which element-wise tasks of several sizes share.

An optimiser updates each parameter by the same operations, so that its updates differ in their
sizes alone. One program for all of them is made in the time of one. It runs as fast, as the bounds
of its size hold only sizes for which a kernel of its own has the same schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias, final

from ferrule.base.helpers import prod
from ferrule.base.records import dataclass
from ferrule.codegen.policy import sizes_of_one_program
from ferrule.device import Compiled, Device
from ferrule.fusion.slots import Slots
from ferrule.fusion.tasks import Task
from ferrule.fusion.trees import Trees
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import BufferOps, ConstBuffer, LazyOp, MemBuffer, MovementOps
from ferrule.ir.op_table import ELEMENTWISE
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ir.target import Target

_Tasks: TypeAlias = list[tuple[Task, int]]


@final
@dataclass(frozen=True)
class AnySize:
    """A kernel for any number of elements, and the number that a task has."""

    ast: LazyOp
    size: int


@final
class SharedPrograms:
    """The tasks of a graph that share programs."""

    def __init__(self, trees: Trees, slots: Slots, target: Target) -> None:
        self._trees = trees
        self._slots = slots
        self._target = target
        self._sharing: set[Task] = set()
        self._of: dict[Task, AnySize] = {}

    def find(self, tasks: Iterable[Task]) -> None:
        """Find those of the tasks that share a program."""
        families: dict[tuple[str, LazyOp], _Tasks] = {}
        found = {task: self._size(task) for task in tasks if _is_elementwise(task)}
        sizes = {task: size for task, size in found.items() if size > 1}
        readers = Counter([self._slots[node] for task in sizes for node in task.reads])
        for task, size in sizes.items():
            operands = [slot for slot in map(self._slots.__getitem__, task.reads) if slot.size > 1]
            # Tasks with a common operand are better merged, so that it is read once.
            if all([readers[slot] == 1 for slot in operands]):
                ast = for_any_size(self._trees.of(task).ast, size, self._target)
                if ast is not None:
                    family = families.setdefault((task.outputs[0].device, ast), [])
                    family.append((task, size))
        for (_, ast), members in families.items():
            if len(members) > 1:
                self._sharing.update([task for task, _ in members])
            if len({size for _, size in members}) > 1:
                self._of.update({task: AnySize(ast, size) for task, size in members})

    def __contains__(self, task: object) -> bool:
        """True if another task runs the same program."""
        return task in self._sharing

    def of(self, task: Task) -> AnySize | None:
        """The program that a task shares with tasks of other sizes."""
        return self._of.get(task)

    def _size(self, task: Task) -> int:
        """The number of elements of all results, where operands have as many, or one; else 0."""
        size = self._slots[task.outputs[0]].size
        if any([self._slots[node].size != size for node in task.outputs]):
            return 0
        return size if all([self._slots[n].size in (1, size) for n in task.reads]) else 0


def _is_elementwise(task: Task) -> bool:
    """True if a task is element-wise work, for a device that makes programs of it."""
    if not task.is_kernel or task.has_reduce or task.stages:
        return False
    device = Device[task.outputs[0].device]
    return isinstance(device, Compiled) and device.renderer is not None


def for_any_size(ast: LazyOp, size: int, target: Target) -> LazyOp | None:
    """The kernel of any number of elements that does to each what `ast` does to each of `size`.

    None where it does anything but pass along memory: each result is computed from the elements at
    its own place, and from single elements.
    """
    stores = ast.src if ast.op is BufferOps.SINK else (ast,)
    if any([prod(store.arg.st.shape) != size for store in stores]):
        return None
    narrowest = min([store.arg.dtype.itemsize for store in stores])
    computed = [node for node in ast.toposort() if node.op in ELEMENTWISE]
    work = len(stores) + sum([prod(node.shape) == size for node in computed])
    bounds = sizes_of_one_program(target, size, work, narrowest)
    if bounds is None:
        return None
    rewriting = _Rewriting(size, Variable("n", *bounds))
    return rewriting.of(ast)


@final
class _Rewriting:
    """Rewrites an AST of `size` elements into one of `any_size`, along one axis."""

    def __init__(self, size: int, any_size: Variable) -> None:
        self.size = size
        self.many = (any_size,)

    def of(self, ast: LazyOp) -> LazyOp | None:
        done: dict[LazyOp, LazyOp] = {}
        for node in ast.toposort():
            found = self._node(node, tuple([done[source] for source in node.src]))
            if found is None:
                return None
            done[node] = found
        return done[ast]

    def _node(self, node: LazyOp, srcs: tuple[LazyOp, ...]) -> LazyOp | None:
        if node.op is BufferOps.SINK or node.op in ELEMENTWISE:
            return LazyOp(node.op, srcs, node.arg)
        if isinstance(node.arg, (MemBuffer, ConstBuffer)):
            view = self._view(node.arg.st.view)
            if view is None:
                return None
            tracker = ShapeTracker(view)
            if isinstance(node.arg, ConstBuffer):
                return LazyOp(node.op, srcs, ConstBuffer(node.arg.val, node.arg.dtype, tracker))
            return LazyOp(node.op, srcs, MemBuffer(node.arg.idx, node.arg.dtype, tracker))
        if node.op not in (MovementOps.RESHAPE, MovementOps.EXPAND):
            return None
        before, after = prod(node.src[0].shape), prod(node.shape)
        if before == after:
            return srcs[0]
        return LazyOp(MovementOps.EXPAND, srcs, self.many) if before == 1 else None

    def _view(self, view: View) -> View | None:
        """One element, which may be repeated, or all elements in order."""
        if view.mask is not None:
            return None
        count = prod(view.shape)
        if count == 1:
            return View.create((1,), (0,), view.offset)
        if count != self.size:
            return None
        if not any(view.strides):
            return View.create(self.many, (0,), view.offset)
        return View.create(self.many) if view.contiguous else None
