"""Where versions live, and in which order tasks may run.

A task runs after those that produce what it reads, and a task that writes over an old version runs
after all who read that version. Where the second rule contradicts the first, the old version is
copied, and its readers read the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from ferrule.base.config import config
from ferrule.fusion.any_size import SharedPrograms
from ferrule.fusion.concat import Pieces
from ferrule.fusion.graph import Graph, late_readers
from ferrule.fusion.horizontal_elementwise import merge_small
from ferrule.fusion.order import Temporaries, in_order
from ferrule.fusion.slots import Slots
from ferrule.fusion.tasks import Reader, Task
from ferrule.fusion.updates import BASE, base_of, stored_scatter
from ferrule.ir.buffer import Buffer
from ferrule.ir.dependence import Contents
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps
from ferrule.ir.shape.view import View

_AlignedViews: TypeAlias = dict[LazyBuffer, dict[LazyBuffer, View | None]]


@final
class Hazards:
    """Gives roots their slots, adds the copies that writing in place needs, orders the tasks."""

    def __init__(self, graph: Graph, tasks: list[Task], reader: Reader, pieces: Pieces) -> None:
        self.graph = graph
        self.tasks = tasks
        self.reader = reader
        self.pieces = pieces
        self.slots = Slots()
        self._late: dict[LazyBuffer, frozenset[LazyBuffer]] | None = None
        self.copies: dict[LazyBuffer, LazyBuffer] = {}
        """For the old versions that are read later: their copies."""
        self._producer = {root: task for task in tasks for root in task.outputs}
        self._position = {node: place for place, node in enumerate(graph.order)}
        self._place_roots()
        for task in tasks:
            reader.find_reads(task)
        self._keep_late_readers()
        for task in list(tasks):
            self._avoid_reads_of_what_is_written(task)

    # -- placing ---------------------------------------------------------------------------------

    def _place_roots(self) -> None:
        parts = self.pieces.parts
        for node in self.graph.order:
            if node in self.reader.roots and node not in parts:
                if node.op is LoadOps.ASSIGN:
                    self._place_version(node)
                elif not self._is_put_into_temporary(node):
                    self.slots.add(node)
        for node, part in parts.items():
            self.slots.add_part(node, part.memory, part.start, part.size)
            self._position.setdefault(node, self._position[part.memory])

    def _place_version(self, version: LazyBuffer) -> None:
        old = self.slots.previous(version)
        if self.slots.may_overwrite(version, old):
            self.slots.overwrite(version, old)
        elif version.arg is None:
            self.slots.add(version)
        else:
            self.slots.overwrite(version, self._copy(old))

    def _is_put_into_temporary(self, scatter: LazyBuffer) -> bool:
        """Places a SCATTER where its base is, if nothing needs that afterwards; whether it is so.

        The base is an intermediate result, then. Those of its users that do not come to wait for
        the SCATTER run before it; the others read a copy.
        """
        base = base_of(scatter)
        while base is not None and base.op is MovementOps.RESHAPE and base not in self.reader.roots:
            base = base.srcs[0]
        if base is None or base not in self.slots:  # it has no memory, or none of this schedule
            return False
        if base in scatter.srcs[:BASE] or base.op is LoadOps.ASSIGN or self._is_needed_later(base):
            return False
        if not self.slots.may_overwrite(scatter, base):
            return False
        self.slots.overwrite(scatter, base)
        return True

    def _is_needed_later(self, node: LazyBuffer) -> bool:
        if self._late is None:
            self._late = late_readers(self.graph)
        return bool(self._late[node])

    def _copy(self, old: LazyBuffer) -> LazyBuffer:
        """A copy of a version, in new memory, and the task that makes it."""
        copy = LazyBuffer.empty(old.shape, old.dtype, old.device).assign(old)
        self._add_root(copy, self._position.get(old, -1))
        self._add_task(Task([copy], reads=[old]))
        return copy

    def _add_root(self, root: LazyBuffer, position: int) -> None:
        self.reader.roots.add(root)
        self.slots.add(root)
        self._position[root] = position

    def _add_task(self, task: Task) -> None:
        self.tasks.append(task)
        for root in task.outputs:
            self._producer[root] = task

    def _read_copy_instead(self, old: LazyBuffer, writer: Task) -> LazyBuffer:
        """All tasks but the writer, and the one that copies, read a copy of `old`; gives it."""
        copy = self._copy(old)
        copying = self._producer[copy]
        for task in self.tasks:
            if task is not writer and task is not copying and old in task.reads:
                task.instead[old] = copy
                self.reader.find_reads(task)
        return copy

    def _keep_late_readers(self) -> None:
        needed_later = set(self.graph.moved_out)
        for version, old in list(self.slots.overwrites.items()):
            if old in needed_later:
                self.copies[old] = self._read_copy_instead(old, self._producer[version])

    # -- inside one task -------------------------------------------------------------------------

    def _avoid_reads_of_what_is_written(self, task: Task) -> None:
        """A task may read memory that it writes only at the very place that it writes.

        Otherwise the value goes to memory of its own, and is copied from there if it is a version.
        """
        views: _AlignedViews = {}
        for root in list(task.outputs):
            if root not in self.slots.overwrites or self._is_safe(task, root, views):
                continue
            views.clear()
            scatter = self._stored_scatter(root)
            if scatter is not None:
                self._compute_first(task, root, scatter.srcs[:BASE])
            if scatter is not None and self._is_safe(task, root, views):
                continue
            if root.op is LoadOps.ASSIGN:
                self._write_through_temporary(task, root)
            else:
                self.slots.move_out(root)
            views.clear()

    def _is_safe(self, task: Task, version: LazyBuffer, views: _AlignedViews) -> bool:
        """True if a version can be written in place; `views` caches the task's aligned views."""
        slot = self.slots[version]
        touched = [leaf for leaf in task.reads if self.slots[leaf].overlaps(slot)]
        if not touched:
            return True
        place = self.reader.stored(task, version)[1]
        for root in task.outputs:
            if root not in views:
                views[root] = self.reader.aligned_views(task, root)
            found = views[root]
            for leaf in touched:
                if leaf in found and (found[leaf] != place or self.slots[leaf] is not slot):
                    return False
        return True

    def _stored_scatter(self, root: LazyBuffer) -> LazyBuffer | None:
        """The SCATTER with a base that a task stores as a root."""
        found = stored_scatter(root, self.reader.roots)
        scatter = root if found is None else found[0]
        return scatter if base_of(scatter) is not None else None

    def _compute_first(self, task: Task, root: LazyBuffer, sources: Sequence[LazyBuffer]) -> None:
        """Compute the sources first, in tasks of their own, if they need the memory it writes."""
        slot = self.slots[root]
        for source in dict.fromkeys(sources):
            temporary = LazyBuffer.empty(source.shape, source.dtype, source.device).assign(source)
            first = Task([temporary], dict(task.instead), stages=dict(task.stages))
            self.reader.find_reads(first)
            if any(self.slots[leaf].overlaps(slot) for leaf in first.reads):
                self._add_root(temporary, self._position[root])
                self._add_task(first)
                task.instead[source] = temporary
        self.reader.find_reads(task)

    def _write_through_temporary(self, task: Task, version: LazyBuffer) -> None:
        value = task.sources(version)[0]
        memory = LazyBuffer.empty(value.shape, value.dtype, value.device)
        temporary = memory.assign(value)
        self._add_root(temporary, self._position[version])
        task.outputs[task.outputs.index(version)] = temporary
        task.instead[version] = temporary
        self._producer[temporary] = task
        self._add_task(Task([version], {value: temporary}, [temporary]))
        self.reader.find_reads(task)

    # -- between tasks ---------------------------------------------------------------------------

    def ordered(self, programs: SharedPrograms) -> list[Task]:
        """The tasks, small ones merged, in an order in which each may run.

        Finds the `programs` that tasks share; these tasks are not merged.
        """
        nothing = Temporaries({})
        while True:
            after = self.successors()
            order = in_order(self.tasks, after, self._priority, nothing)
            if len(order) == len(self.tasks):
                break
            self._break_cycle(set(self.tasks) - set(order))
        self.tasks = order
        skipped = config().FERRULE_SKIP
        if "sizes" not in skipped:
            programs.find(order)
        if "merge" not in skipped:
            self.tasks = merge_small(order, after, self.slots, programs)
        if len(self.tasks) < len(order):
            self._producer = {root: task for task in self.tasks for root in task.outputs}
            after = self.successors()
        order = in_order(self.tasks, after, self._priority, self._temporaries())
        assert len(order) == len(self.tasks), "merged kernels wait for each other"
        return order

    def _temporaries(self) -> Temporaries:
        """The memory that nobody needs once its last reader has run."""
        kept = {
            self.slots[node].memory
            for node in (*self.graph.requested, *self.graph.external)
            if node in self.slots
        }
        touched = {
            task: [self.slots[node].memory for node in (*task.outputs, *task.reads)]
            for task in self.tasks
        }
        return Temporaries(
            {
                task: [slot for slot in slots if slot.buffer is None and slot not in kept]
                for task, slots in touched.items()
            }
        )

    def _priority(self, task: Task) -> int:
        return max(self._position[root] for root in task.outputs)

    def successors(self) -> dict[Task, set[Task]]:
        """For each task, those that must run after it."""
        after: dict[Task, set[Task]] = {task: set() for task in self.tasks}
        contents = {old: self._contents(old) for old in self.slots.overwrites.values()}
        in_memory: dict[Buffer, list[LazyBuffer]] = {}
        for task in self.tasks:
            for leaf in task.reads:
                if leaf not in contents:
                    contents[leaf] = self._contents(leaf)
                contents[leaf].readers.add(task)
        for leaf, found in contents.items():
            if leaf.realized is not None:
                in_memory.setdefault(leaf.realized.base, []).append(leaf)
            for writer in found.before(writes=False):
                after[writer] |= found.readers - {writer}
        for version, old in self.slots.overwrites.items():
            writer, slot = self._producer[version], self.slots[version]
            sharing = [] if slot.buffer is None else in_memory.get(slot.buffer.base, [])
            for leaf in (old, *[leaf for leaf in sharing if self.slots[leaf].overlaps(slot)]):
                for earlier in contents[leaf].before(writes=True) - {writer}:
                    after[earlier].add(writer)
        return after

    def _contents(self, version: LazyBuffer) -> Contents[Task]:
        """The tasks that make a version: several, where its pieces are computed in its stead."""
        makers = map(self._producer.get, self.pieces.computed(version))
        return Contents([task for task in makers if task is not None])

    def _break_cycle(self, stuck: set[Task]) -> None:
        """Copy something that a stuck task reads and another one overwrites.

        That is a version that is replaced, or a leaf in the same memory that is no version of it.
        """
        for version, old in self.slots.overwrites.items():
            writer = self._producer[version]
            if writer not in stuck or old in self.copies:
                continue
            if any(old in task.reads for task in stuck if task is not writer):
                self.copies[old] = self._read_copy_instead(old, writer)
                return
        for version, old in self.slots.overwrites.items():
            writer, slot = self._producer[version], self.slots[version]
            others = [task for task in self.tasks if task in stuck and task is not writer]
            for leaf in [leaf for task in others for leaf in task.reads if leaf.realized]:
                if writer in stuck and leaf is not old and self.slots[leaf].overlaps(slot):
                    self._read_copy_instead(leaf, writer)
                    return
        raise AssertionError(f"kernels that wait for each other: {[t.outputs for t in stuck]}")
