"""Several threads of a program build, compute and write at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit
from ferrule.base.diskcache import DiskCache
from ferrule.device import Device
from ferrule.engine import realize as engine
from ferrule.fusion.plans import graph_key
from ferrule.ir.buffer import Allocator, LRUAllocator, allocators
from ferrule.ir.storage import turn
from ferrule.jit import readers
from ferrule.nn.optim import Adam
from ferrule.tensor import reading

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    """Threads change after a few instructions, so that whatever can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with Context(FERRULE_DEVICE="NUMPY"):
        yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None], count: int = 6) -> None:
    """Calls `work(number)` in each of some threads; raises what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            with Context(FERRULE_DEVICE="NUMPY"):
                work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_equal_expressions_are_one_node_in_all_threads() -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = Tensor(array)

    def work(number: int) -> None:
        for step in range(20):
            y = ((x * 2 + 1) @ x).relu()
            np.testing.assert_allclose(y.sum(0).numpy(), ((array * 2 + 1) @ array).sum(0))
            assert (y * 0 + step).mean().item() == step

    in_threads(work)


def test_each_thread_writes_to_its_own() -> None:
    def work(number: int) -> None:
        for step in range(15):
            x = Tensor.arange(10).contiguous()
            part = x[2:5]
            part += step
            x[0] = number
            assert x.tolist() == [number, 1, 2 + step, 3 + step, 4 + step, 5, 6, 7, 8, 9]

    in_threads(work)


def test_gradients() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)

    def work(number: int) -> None:
        for step in range(10):
            x = Tensor([float(number), float(step)], requires_grad=True)
            (x * x * w.detach()).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2 * number, 4 * step]
            with Tensor.no_grad():
                assert not (w * step).requires_grad

    in_threads(work)


def test_no_numbers_are_drawn_twice() -> None:
    drawn: list[tuple[float, ...]] = []

    def work(number: int) -> None:
        for _ in range(10):
            drawn.append(tuple(Tensor.rand(4).tolist()))

    Tensor.manual_seed(0)
    in_threads(work)
    assert len(set(drawn)) == len(drawn) == 60


def test_a_captured_function() -> None:
    double = TinyJit(lambda x: (x * 2).realize())

    def work(number: int) -> None:
        for step in range(10):
            assert double(Tensor([number + step]).realize()).tolist() == [2 * (number + step)]

    in_threads(work)


def in_a_thread(work: Callable[[], object]) -> None:
    """Calls `work()` in another thread, and waits for it."""

    def once(_: int) -> None:
        work()

    in_threads(once, 1)


def test_a_captured_call_does_its_own_writes() -> None:
    w = Tensor([0.0]).realize()

    @TinyJit
    def count(x: Tensor) -> Tensor:
        w.assign(w + x)
        in_a_thread(lambda: (Tensor([1.0]) * 2).realize())
        return (w * 1).realize()

    assert [count(Tensor([1.0])).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]


def test_an_equal_expression_of_another_thread_is_another_node() -> None:
    x = Tensor([2.0]).realize()

    @TinyJit
    def product(a: Tensor) -> Tensor:
        y = x * a
        in_a_thread(lambda: (x * a).realize())
        return y + 1

    numbers = [Tensor([float(i)]).realize() for i in range(5)]
    assert [product(number).item() for number in numbers] == [1, 3, 5, 7, 9]


def test_a_decorated_function_leaves_each_thread_as_it_was() -> None:
    w = Tensor([2.0], requires_grad=True)

    @Tensor.no_grad()
    def quiet() -> Tensor:
        return w * 2

    def work(number: int) -> None:
        for _ in range(30):
            if number % 2:
                with Tensor.no_grad():
                    assert not quiet().requires_grad
                    assert not (w * 2).requires_grad
            assert not quiet().requires_grad
            assert (w * 2).requires_grad

    in_threads(work)


def test_writes_of_threads_that_are_over() -> None:
    w = Tensor([0.0]).realize()

    def add_one() -> None:
        w.assign(w + 1)

    for _ in range(5):
        in_a_thread(add_one)
    (Tensor([1.0]) * 2).realize()
    assert w.item() == 5


def trained(seed: int, is_captured: bool) -> list[list[float]]:
    """The parameters of a small model after a few steps."""
    random = np.random.RandomState(seed)

    def uniform(*shape: int) -> Tensor:
        return Tensor(random.rand(*shape).astype(np.float32))

    weights = [uniform(6, 8).realize(), uniform(8, 3).realize()]
    optimizer = Adam(weights, lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((x @ weights[0]).tanh() @ weights[1] - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    function = TinyJit(step) if is_captured else step
    for _ in range(5):
        function(uniform(4, 6), uniform(4, 3))
    return [weight.flatten().tolist() for weight in weights]


@pytest.mark.parametrize("is_captured", [True, False])
def test_training_goes_as_it_does_alone(is_captured: bool) -> None:
    alone = [trained(seed, is_captured) for seed in range(3)]
    beside: dict[int, list[list[float]]] = {}

    def work(number: int) -> None:
        beside[number] = trained(number, is_captured)

    in_threads(work, 3)
    assert [beside[seed] for seed in range(3)] == alone


def test_a_loader_beside_a_training_loop() -> None:
    alone = trained(7, True)
    stop = threading.Event()
    beside: list[list[list[float]]] = []

    def work(number: int) -> None:
        if number == 0:
            try:
                beside.append(trained(7, True))
            finally:
                stop.set()
        batch = 0
        while not stop.is_set():
            batch += 1
            found = (Tensor(np.full((3, 4), batch, np.float32)) * 2 + 1).transpose(0, 1).realize()
            assert (found.numpy() == 2 * batch + 1).all()

    in_threads(work, 2)
    assert beside == [alone]


# *** memory that several threads write to ***


def accumulator(w: Tensor, times: float = 1) -> TinyJit[Tensor]:
    """A captured function that adds to a tensor, and returns all of it."""
    return TinyJit(lambda x: (w.assign(w + x * times) * 1).realize())


def test_one_captured_function_in_several_threads() -> None:
    """The first call and the one that is captured are in the middle of others."""
    w = Tensor.zeros(1000).contiguous().realize()
    add = accumulator(w)

    def work(number: int) -> None:
        for _ in range(8):
            found = add(Tensor([1.0])).numpy()
            assert (found == found[0]).all()

    in_threads(work)
    assert (w.numpy() == 48).all()


def test_captured_functions_that_write_to_one_tensor() -> None:
    w = Tensor.zeros(100).contiguous().realize()
    functions = [accumulator(w, times) for times in range(1, 5)]

    def work(number: int) -> None:
        for _ in range(8):
            functions[number](Tensor([1.0]))

    in_threads(work, 4)
    assert (w.numpy() == 80).all()


def test_signatures_that_differ_between_threads() -> None:
    w = Tensor.zeros(10).contiguous().realize()
    add = TinyJit(lambda x: w.assign(w + x.sum()).realize())

    def work(number: int) -> None:
        for _ in range(6):
            add(Tensor.ones(number + 1).contiguous())

    in_threads(work, 4)
    assert (w.numpy() == 60).all()


def test_reads_and_plain_writes_beside_a_captured_function() -> None:
    w, rows = Tensor.zeros(1000).contiguous().realize(), Tensor.zeros(8, 10).contiguous().realize()
    add, view = TinyJit(lambda x: (w.add_(x) * 1).realize()), w[10:990]

    def work(number: int) -> None:
        for step in range(8):
            if number < 2:
                add(Tensor([1.0]))
            elif number == 2:
                w.add_(1)
            else:
                for found in (w.numpy(), (w * 2).numpy(), view.numpy(), w.numpy(copy=False)):
                    assert (found == found[0]).all()
            rows[step, number] = number

    in_threads(work)
    assert (w.numpy() == 24).all()
    assert rows.tolist() == [[0, 1, 2, 3, 4, 5, 0, 0, 0, 0]] * 8


def test_what_another_thread_writes_meanwhile_leaves_a_read_its_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = Tensor.zeros(3).contiguous().realize()

    def write_first(*args: Any) -> Any:
        in_a_thread(lambda: w.add_(1).realize())
        return bound_shape(*args)

    bound_shape = reading.bound_shape
    monkeypatch.setattr(reading, "bound_shape", write_first)
    assert [w.tolist(), w[1:].tolist(), w.numpy().sum()] == [[0] * 3, [1, 1], 6]


def test_an_array_that_is_dropped_meanwhile_spoils_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept for later: one that writes over memory is none for memory that arrays share.

    The array goes when its graph has a key already, and no plan yet.
    """
    arrays: list[Any] = []
    graph_of = graph_key.KeyedGraph.graph

    def drop_first(keyed: graph_key.KeyedGraph) -> Any:
        arrays.clear()
        return graph_of(keyed)

    for is_dropped in (True, False):
        w = Tensor.zeros(3, 7).contiguous().realize()
        arrays.append(w.numpy(copy=False))
        if is_dropped:
            monkeypatch.setattr(graph_key.KeyedGraph, "graph", drop_first)
        w.assign((w + 3) * 5).realize()
        monkeypatch.undo()
    assert w.tolist() == [[15] * 7] * 3
    assert (arrays[0] == 0).all()


def test_what_is_taken_while_a_capture_begins_keeps_its_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The capture gives the memory a new node, and another thread has just taken the old one."""
    w, taken = Tensor.zeros(3).contiguous().realize(), list[Tensor]()
    add = TinyJit(lambda x: w.add_(x).realize())
    add(Tensor([1.0]))

    def take_first(owner: Any, node: Any) -> Any:
        if owner is w._cell and not taken:
            in_a_thread(lambda: taken.append(w * 1))
        return replaced(owner, node)

    replaced = readers._replaced
    monkeypatch.setattr(readers, "_replaced", take_first)
    for _ in range(3):
        add(Tensor([1.0]))
    assert w.tolist() == [4] * 3
    assert taken[0].tolist() == [1] * 3


def test_writes_after_those_of_a_thread_that_is_over_belong_to_their_own() -> None:
    """What the thread left to do is no reason for others to do a later write to the same tensor."""
    w = Tensor.zeros(3).contiguous().realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        in_a_thread(lambda: w.add_(0))
        w.add_(x)
        in_a_thread(lambda: (Tensor([1.0]) * 2).realize())
        return (w * 1).realize()

    assert [add(Tensor([1.0])).tolist() for _ in range(6)] == [[n] * 3 for n in range(1, 7)]


def test_a_captured_call_holds_its_own_writes_only() -> None:
    """What another thread writes meanwhile is no part of it."""
    w = Tensor.zeros(3).contiguous().realize()
    calls = 0

    @TinyJit
    def add(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls < 4:
            in_a_thread(lambda: w.add_(100))
        result = w.assign(w + x) * 1
        if calls < 4:
            in_a_thread(lambda: w.add_(100))
        return result.realize()

    for _ in range(8):
        add(Tensor([1.0]))
    assert w.tolist() == [8 + 200 * min(calls, 3)] * 3


def test_a_function_is_captured_beside_threads_that_write_elsewhere() -> None:
    w, other, stop = Tensor([0.0]).realize(), Tensor.zeros(100).realize(), threading.Event()
    add = accumulator(w)

    def work(number: int) -> None:
        if number:
            while not stop.is_set():
                held = other * 2
                other.add_(Tensor.rand(100)).realize()
                held.realize()
            return
        try:
            for _ in range(5):
                add(Tensor([1.0]))
        finally:
            stop.set()

    in_threads(work, 3)
    assert add.jit_cache
    assert w.item() == 5


def test_a_captured_function_draws_new_numbers_beside_others() -> None:
    draw = TinyJit(lambda x: (x + Tensor.rand(4)).realize())
    drawn: list[tuple[float, ...]] = []

    def work(number: int) -> None:
        zero = Tensor([0.0]).realize()
        for _ in range(8):
            found = draw(zero) if number % 2 else Tensor.rand(4)
            drawn.append(tuple(found.tolist()))

    in_threads(work, 4)
    assert len(set(drawn)) == len(drawn) == 32


# *** captured functions that share out their work, or wait ***


def test_a_captured_function_may_share_out_its_work_to_threads() -> None:
    """They call a captured function with the same tensors, or the function itself."""
    w = Tensor([2.0]).realize()
    times = TinyJit(lambda x: (x * w).realize())

    @TinyJit
    def parts(x: Tensor, depth: int = 0) -> Tensor:
        if depth:
            return (x * 3).realize()
        with ThreadPoolExecutor(2, initializer=_on_numpy) as pool:
            a, b = pool.map(times, [x, x])
            c, d = pool.map(lambda part: parts(part, 1), [x, x + 1])
        return a + b + c + d

    def work(number: int) -> None:
        for step in range(6):
            assert parts(Tensor([float(step)]).realize()).item() == 10 * step + 3

    in_threads(work, 3)
    assert not parts.jit_cache or parts(Tensor([1.0])).item() == 13


def test_what_a_captured_function_gets_from_a_thread_is_no_constant() -> None:
    @TinyJit
    def scaled(x: Tensor) -> Tensor:
        found: list[float] = []
        in_a_thread(lambda: found.append(x.sum().item()))
        return x * found[0]

    for step in range(6):
        assert scaled(Tensor([step, 1.0])).tolist() == [step * (step + 1), step + 1]


def test_no_update_is_lost_around_a_wait() -> None:
    """Others go on while a call waits, and then it takes its tensors again."""
    w = Tensor([0.0]).realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        in_a_thread(lambda: None)
        return w.assign(w + x).realize()

    def work(number: int) -> None:
        for _ in range(10):
            add(Tensor([1.0]))

    in_threads(work, 4)
    assert w.item() == 40


# *** servers, and what threads begin with ***


def test_requests_of_many_threads_to_one_captured_model() -> None:
    """Batches of several sizes, and a setting of the model that changes amid them."""
    random = np.random.RandomState(0)
    w = Tensor(random.randint(-3, 4, (5, 3)).astype(np.float32)).realize()
    model = SimpleNamespace(w=w, scale=1.0)
    infer = TinyJit(lambda x: (x @ model.w).relu() * model.scale)
    batches = [random.randint(-3, 4, (1 + n % 5, 5)).astype(np.float32) for n in range(32)]
    weights = w.numpy()

    def request(number: int) -> None:
        x = Tensor(batches[number]).realize()
        for step in range(4):
            found = infer(x).numpy()
            wanted = np.maximum(batches[number] @ weights, 0)
            assert any((found == wanted * scale).all() for scale in (1.0, 2.0))
            if number == step == 3:
                model.scale = 2.0

    in_threads(request, 32)
    assert infer.jit_cache
    for batch in batches[:5]:
        assert (infer(Tensor(batch)).numpy() == np.maximum(batch @ weights, 0) * 2).all()


def test_threads_that_open_a_device_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def opened(name: str) -> Any:
        both.wait(20)
        return SimpleNamespace(allocator=Allocator())

    monkeypatch.setattr(Device, "_opened", dict(Device._opened))
    monkeypatch.setitem(Device._registered, "OPENED_TWICE", opened)
    found: list[Any] = []
    in_threads(lambda _: found.append(Device["OPENED_TWICE"]), 2)
    assert found[0] is found[1]
    assert allocators["OPENED_TWICE"] is found[0].allocator


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_takes_memory_though_another_thread_was_at_it() -> None:
    inside = threading.Event()

    class Slow(LRUAllocator):
        def _alloc(self, size: int) -> Any:
            inside.set()
            time.sleep(0.2)
            return bytearray(size)

        def _free(self, opaque: Any) -> None:
            pass

    allocator = Slow()
    thread = threading.Thread(target=allocator.alloc, args=(8,))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if len(allocator.alloc(16)) == 16 else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


# *** handlers of signals, which run amid whatever the main thread does ***

needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal here")


@pytest.fixture
def read_in_handler() -> Iterator[list[Any]]:
    """What a handler of SIGUSR1 has read, which computes with tensors of its own."""
    own, read = Tensor([1.0, 2.0]).realize(), []

    def handle(*_: object) -> None:
        read.append((own * 2).tolist())
        read.append(own.tolist())

    before = signal.signal(signal.SIGUSR1, handle)
    yield read
    signal.signal(signal.SIGUSR1, before)


@needs_signals
def test_a_handler_of_a_signal_reads_amid_a_captured_function(read_in_handler: list[Any]) -> None:
    w = Tensor([0.0]).realize()
    signals = [signal.SIGUSR1] * 4

    @TinyJit
    def add(x: Tensor) -> Tensor:
        w.add_(x)
        if signals:
            signal.raise_signal(signals.pop())
        return w * 1

    assert [add(Tensor([1.0])).item() for _ in range(40)] == list(range(1, 41))
    assert read_in_handler == [[2.0, 4.0], [1.0, 2.0]] * 4
    assert add.jit_cache


@needs_signals
def test_a_handler_of_a_signal_leaves_writes_to_the_computation_that_it_interrupts(
    read_in_handler: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = Tensor([0.0]).realize()

    def prepare(kernels: Any) -> Any:
        if not read_in_handler:
            read_in_handler.append("begun")
            signal.raise_signal(signal.SIGUSR1)
        return prepared(kernels)

    prepared = engine.prepare
    monkeypatch.setattr(engine, "prepare", prepare)
    w.add_(1)
    assert (w * 10).item() == 10
    assert w.item() == 1
    assert read_in_handler == ["begun", [2.0, 4.0], [1.0, 2.0]]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_calls_a_function_that_another_thread_was_in() -> None:
    """The function waits without locks: the child would find these locked itself."""
    begun: list[int] = []
    may_end = [True]

    @TinyJit
    def double(x: Tensor) -> Tensor:
        begun.append(1)
        while not may_end:
            time.sleep(0.001)
        return x * 2

    def work() -> None:
        with Context(FERRULE_DEVICE="NUMPY"):
            double(Tensor([1.0]))

    double(Tensor([1.0]))
    may_end.clear()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while len(begun) < 2:
            time.sleep(0.001)
        child = os.fork()
        if not child:
            signal.alarm(20)
            may_end.append(True)
            os._exit(0 if double(Tensor([3.0])).tolist() == [6.0] else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        may_end.append(True)
        thread.join()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_waits_for_threads_before_it_takes_the_cache(tmp_path: Path) -> None:
    """A thread that computes looks into the cache; each would wait for the other for ever."""
    cache = DiskCache(str(tmp_path))
    computes = threading.Event()
    found: list[bool] = []

    def compute() -> None:
        with turn:
            computes.set()
            time.sleep(0.2)  # in which the other thread begins to fork
            found.append(cache._lock.acquire(timeout=10))
            if found[0]:
                cache._lock.release()

    thread = threading.Thread(target=compute)
    thread.start()
    computes.wait()
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert found == [True]


def _on_numpy() -> None:
    Context(FERRULE_DEVICE="NUMPY").__enter__()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_computes_whatever_other_threads_did() -> None:
    stop = threading.Event()

    def work() -> None:
        with Context(FERRULE_DEVICE="NUMPY"):
            while not stop.is_set():
                Tensor.rand(3).sum().item()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                right = (Tensor([1.0]) * 2).tolist() == [2.0] and 0 <= Tensor.rand(1).item() < 1
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_a_lock_that_is_held_around_a_call_and_taken_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ferrule.jit.exclusion._PATIENCE", 0.2)
    lock, begun = threading.Lock(), threading.Event()
    total, one = Tensor([4.0]).realize(), Tensor([1.0]).realize()

    @TinyJit
    def scale(x: Tensor) -> Tensor:
        begun.set()
        with lock:
            return (x * total).realize()

    add = TinyJit(lambda x: (x + total).realize())
    with lock:
        other = threading.Thread(target=scale, args=(one,), daemon=True)
        other.start()
        assert begun.wait(10)
        assert add(one).tolist() == [5.0]
    other.join(20)
    assert not other.is_alive()
    assert [add(one).tolist() for _ in range(3)] == [[5.0]] * 3
    assert add.jit_cache
