"""Which steps wait for which others: compared with the definition, byte by byte."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.dependence import Contents, Dependencies

Access = tuple[Buffer, bool, bool]


def memory(size: int = 12) -> Buffer:
    """Memory that nobody has to allocate."""
    buffer = Buffer("NUMPY", 0, dtypes.uint8)
    buffer.size = buffer.nbytes = size
    return buffer


def part(of: Buffer, start: int, stop: int) -> Buffer:
    made = Buffer("NUMPY", 0, dtypes.uint8)
    made.size = made.nbytes = stop - start
    made.byte_offset = start
    made._base = of
    return made


def added(steps: Sequence[Sequence[Access]]) -> list[list[int]]:
    dependencies = Dependencies()
    return [dependencies.add(step) for step in steps]


def reads(of: Buffer, start: int = 0, stop: int = 12) -> Access:
    return (part(of, start, stop), True, False)


def writes(of: Buffer, start: int = 0, stop: int = 12) -> Access:
    return (part(of, start, stop), False, True)


def test_what_some_memory_contains() -> None:
    contents = Contents(["w", "v"], ["r"])
    assert contents.before(writes=False) == {"w", "v"}
    assert contents.before(writes=True) == {"w", "v", "r"}


def test_reading_waits_for_writing() -> None:
    a, b = memory(), memory()
    assert added([[writes(a)], [writes(b), reads(a)], [reads(b)]]) == [[], [0], [1]]


def test_readers_do_not_wait_for_each_other() -> None:
    a = memory()
    steps = [[writes(a)], [reads(a)], [reads(a)], [reads(a)], [writes(a)]]
    assert added(steps) == [[], [0], [0], [0], [1, 2, 3]]


def test_writing_waits_for_writing() -> None:
    a = memory()
    assert added([[writes(a)], [writes(a)], [writes(a)]]) == [[], [0], [1]]


def test_parts_that_do_not_meet() -> None:
    a = memory()
    steps = [[writes(a, 0, 6)], [writes(a, 6, 12)], [reads(a, 2, 5)], [reads(a, 7, 8)], [reads(a)]]
    assert added(steps) == [[], [], [0], [1], [0, 1]]


def test_a_partial_write_keeps_what_was_written_beside_it() -> None:
    a = memory()
    steps = [[writes(a)], [writes(a, 4, 8)], [reads(a, 0, 2)], [reads(a, 5, 6)], [reads(a, 10, 12)]]
    assert added(steps) == [[], [0], [0], [1], [0]]


def test_a_partial_write_keeps_those_who_read_beside_it() -> None:
    a = memory()
    steps = [[writes(a)], [reads(a)], [writes(a, 4, 8)], [writes(a, 0, 4)], [writes(a, 8, 12)]]
    assert added(steps) == [[], [0], [1], [1], [1]]


def test_what_is_read_and_written_at_once() -> None:
    a = memory()
    both = (part(a, 0, 12), True, True)
    assert added([[both], [both], [reads(a)]]) == [[], [0], [1]]
    a = memory()
    overlapping = [writes(a, 0, 8), reads(a, 4, 12)]
    assert added([overlapping, overlapping, [reads(a, 0, 2)]]) == [[], [0], [1]]


def test_no_bytes() -> None:
    a = memory()
    assert added([[writes(a)], [writes(a, 3, 3)], [reads(a)]]) == [[], [], [0]]


ranges = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
accesses = st.lists(
    st.tuples(st.integers(0, 1), ranges, st.sampled_from([(1, 0), (0, 1), (1, 1)])), max_size=3
)


@given(st.lists(accesses, max_size=12))
def test_as_the_definition_says(
    program: list[list[tuple[int, list[int], tuple[int, int]]]],
) -> None:
    memories = [memory(), memory()]
    steps = [
        [(part(memories[m], *span), bool(r), bool(w)) for m, span, (r, w) in step]
        for step in program
    ]
    before = closure(added(steps))
    touched = [bytes_of(step) for step in program]
    for j, (read, written) in enumerate(touched):
        for i, (read_before, written_before) in enumerate(touched[:j]):
            conflict = written & (read_before | written_before) or read & written_before
            if conflict:
                assert i in before[j], f"step {j} has to wait for step {i}"
    needed = closure([conflicts(touched, j) for j in range(len(touched))])
    assert before == needed, "a step waits for more than it has to"


def closure(after: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each step, all that are done before it."""
    done: list[set[int]] = []
    for direct in after:
        done.append(set(direct).union(*(done[i] for i in direct)))
    return done


def bytes_of(
    step: list[tuple[int, list[int], tuple[int, int]]],
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The bytes that a step reads, and those that it writes."""
    read = {(m, b) for m, span, (r, _) in step if r for b in range(*span)}
    written = {(m, b) for m, span, (_, w) in step if w for b in range(*span)}
    return read, written


def conflicts(touched: Sequence[tuple[set[tuple[int, int]], ...]], j: int) -> list[int]:
    read, written = touched[j]
    return [i for i, (r, w) in enumerate(touched[:j]) if written & (r | w) or read & w]
