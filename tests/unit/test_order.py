"""The order of kernels: what frees memory first, else as the graph has it."""

from collections.abc import Mapping, Sequence

from ferrule.dtype import dtypes
from ferrule.fusion.order import Temporaries, in_order
from ferrule.fusion.slots import Slot
from ferrule.fusion.tasks import Task
from ferrule.ir.lazy import LazyBuffer


def slot(size: int) -> Slot:
    return Slot("CPU", dtypes.uint8, size)


def ordered(
    names: str, after: Mapping[str, str], memory: Mapping[str, Sequence[Slot]] | None = None
) -> str:
    """The order of tasks with one letter each, the priority being the alphabet's."""
    task = {name: Task([LazyBuffer.empty((1,), dtypes.uint8, "CPU")]) for name in names}
    name_of = {found: name for name, found in task.items()}
    followers = {task[name]: {task[other] for other in after.get(name, "")} for name in names}
    used = {task[name]: slots for name, slots in (memory or {}).items()}
    found = in_order(list(task.values()), followers, lambda t: ord(name_of[t]), Temporaries(used))
    return "".join(name_of[t] for t in found)


def test_by_priority() -> None:
    assert ordered("dbac", {}) == "abcd"
    assert ordered("abcd", {"d": "a", "c": "b"}) == "cbda"


def test_a_cycle_is_left_out() -> None:
    assert ordered("abc", {"b": "c", "c": "b"}) == "a"


def test_what_frees_memory_runs_as_soon_as_it_can() -> None:
    """The last reader of a result, once that is there, comes before what makes another."""
    first, second = slot(100), slot(100)
    memory = {"a": [first], "b": [second], "y": [first], "z": [second]}
    assert ordered("abyz", {"a": "y", "b": "z"}, memory) == "aybz"


def test_what_takes_as_much_as_it_frees_waits_for_its_turn() -> None:
    before, after = slot(100), slot(100)
    memory = {"a": [before], "y": [before, after], "z": [after]}
    assert ordered("abyz", {"a": "y", "y": "z"}, memory) == "abyz"


def test_one_of_two_readers_frees_nothing_until_the_other_has_run() -> None:
    shared = slot(100)
    memory = {"a": [shared], "c": [shared], "y": [shared]}
    assert ordered("abcdy", {"a": "cy"}, memory) == "abcyd"


def test_tasks_that_wait_for_others_wait_though_they_would_free_memory() -> None:
    shared = slot(100)
    memory = {"a": [shared], "y": [shared]}
    assert ordered("abcy", {"a": "y", "c": "y"}, memory) == "abcy"
