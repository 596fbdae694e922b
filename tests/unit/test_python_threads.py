"""Several threads of a program build, compute and write at once."""

import os
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit

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
