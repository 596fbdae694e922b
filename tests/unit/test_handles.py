"""Who needs a value later: handles, and nodes that were left out; nothing else that has it."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest

import ferrule
from ferrule import Tensor
from ferrule.base.threadstate import this_thread
from ferrule.dtype import dtypes
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.ir.buffer import Buffer, GlobalCounters
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ir.node import _MOST_DEAD, needed_outside, recent_nodes, sweep
from ferrule.ops import UnaryOps

X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


def written(x: Tensor) -> Tensor:
    """The tensor, to which something is added."""
    x += 1
    return x.realize()


def memory_of(x: Tensor) -> Buffer:
    """Where the version is that was computed last."""
    node = x.lazydata
    while node.realized is None:
        node = node.srcs[0]
    return node.realized


# *** what holds a value ***


class Node:
    """A part of a reference cycle."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.itself = self


def _by_a_tensor(value: Tensor) -> Callable[[], Tensor]:
    return lambda: value


def _by_a_list(value: Tensor) -> Callable[[], Tensor]:
    held = [[value]]
    return lambda: held[0][0]


def _by_a_view(value: Tensor) -> Callable[[], Tensor]:
    view = value.reshape(-1)
    return lambda: view.reshape(3, 4)


def _by_a_generator(value: Tensor) -> Callable[[], Tensor]:
    def generate(inner: Tensor) -> Iterator[Tensor]:
        yield inner[0]
        yield inner

    generator = generate(value)
    next(generator)
    return lambda: next(generator)


def _by_another_thread(value: Tensor) -> Callable[[], Tensor]:
    found: list[Tensor] = []
    begin, ready = threading.Event(), threading.Event()

    def wait(inner: Tensor) -> None:
        ready.set()
        begin.wait(20)
        found.append((inner + 0).realize())

    thread = threading.Thread(target=wait, args=(value,), daemon=True)
    thread.start()
    ready.wait()

    def end() -> Tensor:
        begin.set()
        thread.join()
        return found[0]

    return end


def _by_what_is_made_of_it(value: Tensor) -> Callable[[], Tensor]:
    lazy = (value + 5) - 5
    return lambda: lazy


def _by_garbage(value: Tensor) -> Callable[[], Tensor]:
    """Garbage that is found again, as by a weak reference."""
    node = Node(value)
    return lambda: node.itself.tensor


HOLDERS = (
    *(_by_a_tensor, _by_a_list, _by_a_view, _by_a_generator, _by_another_thread),
    *(_by_what_is_made_of_it, _by_garbage),
)


@pytest.mark.parametrize("hold", HOLDERS)
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("make", [lambda x: x * 2, lambda x: x.clone(), lambda x: x[:] + x.sum()])
def test_what_is_held_is_there_after_a_write(
    hold: Callable[[Tensor], Callable[[], Tensor]], is_used: bool, make: Callable[[Tensor], Tensor]
) -> None:
    x = Tensor(X).realize()
    expected = make(Tensor(X)).numpy()
    value = make(x)
    held = hold(value)
    if is_used:
        x += value
    del value
    x = written(x)
    np.testing.assert_array_equal(x.numpy(), X + 1 + (expected if is_used else 0))
    np.testing.assert_array_equal(held().numpy(), expected)


def test_what_the_tape_holds_is_there_after_a_write() -> None:
    w = Tensor([2.0, 3.0], requires_grad=True)
    x = Tensor([5.0, 7.0]).realize()
    loss = (w * (x * 2)).sum()
    with Tensor.no_grad():
        x += 1
        x.realize()
    loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [10.0, 14.0]


def test_garbage_costs_a_copy_until_it_is_collected() -> None:
    x = Tensor(X).realize()
    gc.disable()
    try:
        Node(x.clone())
        x = written(x)
        np.testing.assert_array_equal(x.numpy(), X + 1)
    finally:
        gc.enable()
    gc.collect()
    before = memory_of(x)
    x = written(x)
    assert memory_of(x) is before


# *** what holds nothing ***


def test_a_value_that_nothing_holds_is_computed_on_the_way() -> None:
    x = Tensor(X).realize()
    value = x * 2
    x += value
    del value
    before = GlobalCounters.kernel_count
    memory = memory_of(x)
    x = written(x)
    assert memory_of(x) is memory
    assert GlobalCounters.kernel_count == before + 1
    np.testing.assert_array_equal(x.numpy(), X * 3 + 1)


@pytest.mark.parametrize("made", [2, 3 * _MOST_DEAD])
def test_readers_that_are_gone_cost_nothing(made: int) -> None:
    x = Tensor(X).realize()
    for number in range(made):
        _ = x * number
    del _
    memory = memory_of(x)
    x = written(x)
    assert memory_of(x) is memory


def test_readers_that_were_computed_cost_nothing() -> None:
    x = Tensor(X).realize()
    readers = [x * number for number in range(2, 5)]
    (x + 9).realize()  # which leaves them out
    Tensor.realize(*readers)
    memory = memory_of(x)
    x = written(x)
    assert memory_of(x) is memory
    for number, reader in enumerate(readers, 2):
        np.testing.assert_array_equal(reader.numpy(), X * number)


def test_a_reader_may_be_left_out_and_computed_in_turns() -> None:
    """It marks what it reads when a schedule leaves it out, and no more when one has it."""
    x = LazyBuffer.in_buffer(Buffer("CPU", 4, dtypes.float32), (4,))
    middle = x.e(UnaryOps.NEG)
    user, other = middle.e(UnaryOps.EXP2), middle.e(UnaryOps.SQRT)
    both = {node: number for number, node in enumerate((x, middle, user, other))}
    one = {node: number for number, node in enumerate((x, middle, user))}
    for _ in range(3):
        assert needed_outside(both) == []
        assert needed_outside(one) == [1]
    handle = Handle(user)
    assert needed_outside(both) == [2]
    assert needed_outside(one) == [2, 1]
    del handle, other, both
    assert needed_outside(one) == []


def test_nodes_that_are_never_computed_leave_nothing_behind() -> None:
    x = Tensor(X).realize()
    sweep()  # the limit follows from what is alive, and was set when that was other tests' nodes
    others = len(recent_nodes)
    for number in range(20 * _MOST_DEAD):
        x * number
    assert len(recent_nodes) < 2 * others + 4 * _MOST_DEAD


def test_a_handle_is_not_copied_unseen() -> None:
    import copy

    value = Tensor(X).realize()._read()
    twin = copy.copy(value)
    del value
    keyed = KeyedGraph([twin.node.e(UnaryOps.NEG)])
    assert next(iter(keyed.numbers)) is twin.node
    x = Tensor._wrap(twin)
    twin = copy.copy(twin)
    x = written(x)
    np.testing.assert_array_equal(Tensor._wrap(twin).numpy(), X)


def test_what_is_in_memory_keeps_nothing_that_it_was_made_of() -> None:
    x = Tensor(X).realize()
    middle = x * 2
    result = middle + 1
    source = weakref.ref(middle.lazydata)
    this_thread.state.nodes.clear()  # as a capture does
    result.realize()
    del middle
    assert source() is None


# *** what refers to nodes, and needs none of them ***


def _program() -> tuple[list[bool], int]:
    """Whether writes happened in place, and how many kernels ran."""
    before = GlobalCounters.kernel_count
    in_place = []
    x = Tensor(X).realize()
    for turn in range(4):
        value = (x * (2 + turn)).exp().sum(1, keepdim=True)
        memory = memory_of(x)
        x += value / (value + 1)
        del value
        x.realize()
        in_place.append(memory_of(x) is memory)
    w = Tensor(X, requires_grad=True)
    (w.relu() * x).sum().backward()
    assert w.grad is not None
    w.grad.realize()
    return in_place, GlobalCounters.kernel_count - before


def test_a_debugger_that_refers_to_nodes_changes_nothing() -> None:
    _program()
    expected = _program()
    seen: list[Any] = []

    def look(frame: FrameType, event: str, arg: object) -> Any:
        local = frame.f_locals
        if "ferrule" in frame.f_code.co_filename:
            for thing in (arg, *local.values()):
                parts = thing if isinstance(thing, list | tuple | dict | set) else (thing,)
                seen.extend([part for part in parts if isinstance(part, LazyBuffer)])
        return look

    tracing = sys.gettrace()
    sys.settrace(look)
    try:
        found = _program()
    finally:
        sys.settrace(tracing)
    assert len(seen) > 100
    assert found == expected
    assert expected[0] == [True] * 4


# *** threads, the collector, and the end of the process ***


@contextmanager
def switching_often() -> Iterator[None]:
    """A block in which threads change after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(*works: Callable[[], None]) -> None:
    """Calls functions, each in a thread of its own; raises what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def test_chains_are_freed_while_other_threads_schedule() -> None:
    """What is deep in a chain waits to be freed, and threads change then: nobody may find it."""
    values = [(Tensor(X) * 2)._read()]
    source = values[0].node
    ends: list[Tensor | None] = [None]
    left: list[None] = [None] * 30

    def make_and_free() -> None:
        try:
            while left:
                x = Tensor._wrap(values[0])
                end = x
                for _ in range(150):
                    end = (end + x).exp2()
                ends[0] = end  # freed by whoever replaces it
                # It leaves `end` out, so that this marks `x`.
                KeyedGraph([Tensor(X).lazydata.e(UnaryOps.NEG)])
                left[-1:] = []
        finally:
            left.clear()
            ends[0] = None

    def schedule() -> None:
        while left:
            for user in (source, source.e(UnaryOps.NEG)):
                assert source in KeyedGraph([user]).numbers
                assert Handle(source).node is source

    in_threads(make_and_free, schedule, make_and_free, schedule)
    gc.collect()
    assert needed_outside({source: 0}) == [0]
    values.clear()
    assert needed_outside({source: 0}) == []


def test_threads_read_what_another_one_writes_to() -> None:
    """Each reads one version, whole, whenever the next one is written over it."""
    x = Tensor(np.zeros(256, np.float32)).realize()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            assert len(set(((x + 1) * 2).tolist())) == 1

    def write() -> None:
        try:
            nonlocal x
            for _ in range(60):
                x += 1
                x.realize()
        finally:
            done.set()

    in_threads(read, write, read, read)
    assert set(x.tolist()) == {60.0}


def test_handles_that_are_collected_with_their_nodes_give_them_back() -> None:
    x = Tensor(X).realize()
    for _ in range(3):
        for made in (x.clone(), x * 2, x.reshape(-1)):
            Node(made)
        del made
        gc.collect()
        memory = memory_of(x)
        x = written(x)
        assert memory_of(x) is memory


class Computing:
    """A part of a reference cycle that computes when it is collected."""

    found: ClassVar[list[list[float]]] = []

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.itself = self

    def __del__(self) -> None:
        self.found.append((self.tensor + 1).tolist())


def test_destructors_compute_in_the_middle_of_everything() -> None:
    Computing.found.clear()
    before = gc.get_threshold()
    x = Tensor([0.0, 0.0]).realize()
    gc.set_threshold(20, 2, 2)
    try:
        for number in range(40):
            held = x * 3
            Computing(x.clone())
            x += 1
            x.realize()
            assert held.tolist() == [3.0 * number] * 2
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert sorted(Computing.found) == [[number + 1.0] * 2 for number in range(40)]
    assert x.tolist() == [40.0] * 2


def test_who_asks_while_another_looks_may_find_too_many() -> None:
    """A destructor may ask at any time, also while its own thread finds out who needs what."""
    x = LazyBuffer.in_buffer(Buffer("CPU", 4, dtypes.float32), (4,))
    user = x.e(UnaryOps.NEG)
    inner: list[list[int]] = []

    class Asking(dict[LazyBuffer, int]):
        def __contains__(self, node: object) -> bool:
            inner.append(needed_outside({x: 0, user: 1}))
            return super().__contains__(node)

    assert needed_outside(Asking({x: 0, user: 1})) == []
    assert inner[0] == [1, 0]
    assert needed_outside({x: 0, user: 1}) == []


def test_weak_references_to_a_node_need_nothing() -> None:
    x = Tensor(X).realize()
    node = x.lazydata
    seen = [weakref.ref(node), weakref.ref(node, id), weakref.proxy(node)]
    known = weakref.WeakKeyDictionary({node: 1})
    memory = memory_of(x)
    x = written(x)
    assert memory_of(x) is memory
    assert (len(seen), len(known)) == (3, 1)


def test_the_process_ends_with_handles_left() -> None:
    program = """
import gc, threading
from ferrule import Tensor
gc.disable()
class Node:
    def __init__(self, value):
        self.value, self.itself = value, self
x = Tensor([1.0, 2.0], requires_grad=True)
y = x
for _ in range(200):
    y = (y * x).relu()
Node((y, y.sum()))
Node(x.detach())
(x + 1).realize()
def make():
    while True:
        x * 2
threading.Thread(target=make, daemon=True).start()
print("done")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("done\n", "", 0)


# *** what product code does without ***


def _private(source: str) -> set[str]:
    """The means of one interpreter, or of tests, that some code uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update([name.name.split(".")[0] for name in node.names])
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    unwanted = {"getrefcount", "get_objects", "get_referrers", "dis", "pytest", "_pytest"}
    # Up to Python 3.12 this also gives those that another thread is about to free.
    unwanted.update(["getweakrefs", "collect", "get_freeze_count"])
    return found & unwanted


def test_nothing_asks_one_interpreter() -> None:
    root = Path(ferrule.__file__).parent
    found = {
        path.relative_to(root).as_posix(): _private(path.read_text()) for path in root.rglob("*.py")
    }
    # The names of functions that programs may call.
    assert found.pop("jit/executed.py") == {"collect", "getrefcount"}
    assert {name: used for name, used in found.items() if used} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import sys\nsys.getrefcount(x)", "from sys import getrefcount as count"),
        *("import gc\ngc.get_objects()", "import dis", "from dis import get_instructions"),
        *("tools = {'pytest'}", "import _pytest.assertion", "weakref.getweakrefs(x)"),
    ],
)
def test_what_asks_one_interpreter_is_found(source: str) -> None:
    assert _private(source)
