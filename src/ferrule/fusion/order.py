"""In which order kernels run: near that of the graph, but what frees memory runs first.

A kernel that is the last to read an intermediate result, and makes less than it frees, runs as soon
as it can: so a weight's gradient is computed when the gradient of its layer is, and not at the end
of the backward pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence, Set
from typing import final

from ferrule.fusion.slots import Slot
from ferrule.fusion.tasks import Task


@final
class Temporaries:
    """The memory of intermediate results, as it is while tasks run one after the other.

    `slots` has, for each task, the temporary memory that it reads or writes.
    """

    def __init__(self, slots: Mapping[Task, Sequence[Slot]]) -> None:
        self._slots = {task: list(dict.fromkeys(used)) for task, used in slots.items()}
        self._users: dict[Slot, list[Task]] = {}
        for task, used in self._slots.items():
            for slot in used:
                self._users.setdefault(slot, []).append(task)
        self._left = {slot: len(users) for slot, users in self._users.items()}

    def frees(self, task: Task) -> bool:
        """True if less memory is in use after the task than before it."""
        change = 0
        for slot in self._slots.get(task, ()):
            if self._left[slot] == 1:
                change -= slot.nbytes
            if self._left[slot] == len(self._users[slot]):
                change += slot.nbytes
        return change < 0

    def run(self, task: Task) -> list[Task]:
        """Notes that the task runs; gives those that have become the last users of something."""
        last: list[Task] = []
        for slot in self._slots.get(task, ()):
            self._left[slot] -= 1
            if self._left[slot] == 1:
                last += self._users[slot]
        return last


def in_order(
    tasks: Sequence[Task],
    after: Mapping[Task, Set[Task]],
    priority: Callable[[Task], int],
    temporaries: Temporaries,
) -> list[Task]:
    """A topological order; shorter than `tasks` if there is a cycle.

    Of the tasks that may run, one that frees memory is taken, else that of the least priority.
    """
    number = {task: place for place, task in enumerate(tasks)}
    waiting = dict.fromkeys(tasks, 0)
    for followers in after.values():
        for follower in followers:
            waiting[follower] += 1
    ready = [(priority(task), number[task]) for task in tasks if waiting[task] == 0]
    heapq.heapify(ready)
    freeing: list[tuple[int, int]] = []
    order: dict[Task, None] = {}
    while freeing or ready:
        task = tasks[heapq.heappop(freeing or ready)[1]]
        if task in order:
            continue
        order[task] = None
        candidates = temporaries.run(task)
        for follower in after[task]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (priority(follower), number[follower]))
                candidates.append(follower)
        for other in candidates:
            if waiting[other] == 0 and other not in order and temporaries.frees(other):
                heapq.heappush(freeing, (priority(other), number[other]))
    return list(order)
