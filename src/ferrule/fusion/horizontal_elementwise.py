"""Horizontal fusion of element-wise tasks that do not depend on one another.

It saves the launch of a kernel, and the wait for the last thread at its end. Tasks so large that
neither counts stay apart, and so do tasks that run one program (`any_size.py`): a launch takes
0.1 us, and each task that is merged takes 5 ms to compile, so that merging would pay after 50,000
runs (Zen 4, 2026-11).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, final

from ferrule.fusion.slots import Slots
from ferrule.fusion.tasks import Task

# Bytes that a task reads and writes up to which it is merged: beside the time of more, a launch
# does not count. Not measured.
_MAX_BYTES: Final = 1 << 26
# Buffers of one kernel; the time to compile it grows with them. Not measured.
_MAX_BUFFERS: Final = 64
# Nodes of one kernel; the time to compile it grows with them. Not measured.
_MAX_NODES: Final = 1000
# Tasks of a graph up to which they are merged. Each is compared with each group, which takes longer
# than it saves for more. Not measured.
_MAX_TASKS: Final = 2000


@final
class _Group:
    """Tasks that become one kernel. `members` is the set of them, as bits."""

    def __init__(self, task: Task, member: int) -> None:
        self.tasks = [task]
        self.members = member
        self.buffers = len(task.outputs) + len(task.reads)
        self.nodes = task.nodes

    def has_room(self, task: Task) -> bool:
        first = self.tasks[0]
        if task.outputs[0].device != first.outputs[0].device or task.instead != first.instead:
            return False
        buffers = self.buffers + len(task.outputs) + len(task.reads)
        return buffers <= _MAX_BUFFERS and self.nodes + task.nodes <= _MAX_NODES


def merge_small(
    order: list[Task], after: dict[Task, set[Task]], slots: Slots, apart: Container[Task]
) -> list[Task]:
    """The tasks of `order`, some of them merged; the caller orders them again.

    `after` has the tasks that must run after each task. Those in `apart` are not merged.
    """
    candidates = [task for task in order if task not in apart and _is_small(task, slots)]
    if len(candidates) < 2 or len(order) > _MAX_TASKS:
        return order
    bit = {task: 1 << place for place, task in enumerate(order)}
    before = _all_before(order, after, bit)
    groups: list[_Group] = []
    for task in candidates:
        group = _find_group(groups, task, before[task])
        if group is None:
            groups.append(_Group(task, bit[task]))
        else:
            _add(group, task, bit[task], before)
    merged = {task: group for group in groups for task in group.tasks}
    rest = [task for task in order if task not in merged]
    return rest + [_as_one(group) for group in groups]


def _is_small(task: Task, slots: Slots) -> bool:
    if not task.is_kernel or task.has_reduce:
        return False
    return sum(slots[node].nbytes for node in (*task.outputs, *task.reads)) <= _MAX_BYTES


def _all_before(
    order: list[Task], after: dict[Task, set[Task]], bit: dict[Task, int]
) -> dict[Task, int]:
    """The tasks that must run before each task, directly or not, as bits."""
    before = dict.fromkeys(order, 0)
    for task in order:
        upto = before[task] | bit[task]
        for follower in after[task]:
            before[follower] |= upto
    return before


def _find_group(groups: list[_Group], task: Task, before: int) -> _Group | None:
    # No group has to wait for the task: what groups wait for comes before it in the order.
    for group in groups:
        if not before & group.members and group.has_room(task):
            return group
    return None


def _add(group: _Group, task: Task, member: int, before: dict[Task, int]) -> None:
    """Add a task to a group: all that runs after one of its members runs after all of them."""
    earlier = before[group.tasks[0]] | before[task]
    group.tasks.append(task)
    group.members |= member
    group.buffers += len(task.outputs) + len(task.reads)
    group.nodes += task.nodes
    upto = earlier | group.members
    for other, known in before.items():
        if known & group.members:
            before[other] = known | upto
    for merged in group.tasks:
        before[merged] = earlier


def _as_one(group: _Group) -> Task:
    first = group.tasks[0]
    if len(group.tasks) == 1:
        return first
    outputs = [output for task in group.tasks for output in task.outputs]
    reads = dict.fromkeys([leaf for task in group.tasks for leaf in task.reads])
    return Task(outputs, dict(first.instead), list(reads), nodes=group.nodes)
