"""Threads as a program meets them: how many there are, forks, spawns, signals, several callers."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit, get_num_threads, set_num_threads
from ferrule.runtime.cpu_program import native_runtime

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

rng = np.random.default_rng(0)
X = rng.standard_normal((300, 257), np.float32)
W = rng.standard_normal((257, 131), np.float32)


@pytest.fixture(autouse=True)
def threads() -> Iterator[int]:
    before = get_num_threads()
    yield before
    set_num_threads(before)


def step(x: Tensor, w: Tensor) -> Tensor:
    """A stream, a product, rows, columns and a whole sum, all of them large enough to share."""
    y = ((x @ w).gelu() + 1).softmax(-1)
    return (y.sum(0) + (x * x).sum()).realize()


def computed() -> bytes:
    with Context(FERRULE_DEVICE="CPU"):
        return step(Tensor(X, device="CPU"), Tensor(W, device="CPU")).numpy().tobytes()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own runs `code`."""
    return run_python("-c", textwrap.dedent(code), **environment)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:This process:DeprecationWarning",
            *arguments,
        ],
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("number", [2, 3, 5])
def test_the_same_bits_for_any_number_of_threads(number: int) -> None:
    set_num_threads(1)
    alone = computed()
    set_num_threads(number)
    assert all(computed() == alone for _ in range(5))


def test_captured_functions_follow() -> None:
    captured = TinyJit(step)
    x, w = Tensor(X, device="CPU").realize(), Tensor(W, device="CPU").realize()
    set_num_threads(1)
    alone = [captured(x, w).numpy().tobytes() for _ in range(3)][-1]
    workers = native_runtime().threads
    for number in (3, 1, 2):
        set_num_threads(number)
        assert captured(x, w).numpy().tobytes() == alone
        assert workers() == number


def test_the_environment_says_how_many(tmp_path: Path) -> None:
    done = run(
        """
        import ferrule, threading
        from ferrule import Tensor
        (Tensor.rand(512, 512, device="CPU") + 1).realize()
        print(ferrule.get_num_threads(), threading.active_count())
        """,
        FERRULE_NUM_THREADS="3",
        FERRULE_CACHE_DIR=str(tmp_path),
    )
    assert (done.stderr, done.stdout) == ("", "3 3\n")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_the_affinity_says_how_many() -> None:
    done = run(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import ferrule
        print(ferrule.get_num_threads())
        """
    )
    assert (done.stderr, done.stdout) == ("", "1\n")


def test_several_threads_at_once() -> None:
    """Each calls a captured function of its own, and one that all share."""
    expected = computed()
    shared = TinyJit(step)
    wrong: list[int] = []

    def work(number: int) -> None:
        own = TinyJit(step)
        x, w = Tensor(X, device="CPU").realize(), Tensor(W, device="CPU").realize()
        for _ in range(10):
            for function in (own, shared):
                if function(x, w).numpy().tobytes() != expected:
                    wrong.append(number)

    callers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


CHILDREN = """
import multiprocessing, sys
from ferrule import Tensor

def compute():
    x = Tensor.arange(90000, device="CPU").reshape(300, 300).float() / 90000
    return (x @ x).softmax(-1).sum(0).tolist()

def send(connection):
    connection.send(compute())

if __name__ == "__main__":
    expected = compute()
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=send, args=(theirs,))
    child.start()
    theirs.close()
    same = ours.recv() == expected
    child.join()
    print(same, child.exitcode, compute() == expected)
"""


@needs_fork
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(method: str, tmp_path: Path) -> None:
    """A child computes what its parent does, and the parent goes on."""
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    done = run_python(str(script), method, FERRULE_CACHE_DIR=str(tmp_path))
    assert (done.stderr, done.stdout) == ("", "True 0 True\n")


@needs_fork
def test_ctrl_c_in_a_captured_function(tmp_path: Path) -> None:
    """The call ends soon, and the function can be called again."""
    done = run(
        """
        import os, signal, threading, time
        from ferrule import Tensor, TinyJit
        x = Tensor.rand(512, 512, device="CPU").realize()

        @TinyJit
        def power(x):
            y = x
            for _ in range(50):
                y = (y @ x) * 0.001
            return y.realize()

        for _ in range(3):
            expected = power(x).numpy()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            for _ in range(1000):
                power(x)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", (power(x).numpy() == expected).all())
        """,
        FERRULE_CACHE_DIR=str(tmp_path),
    )
    assert (done.stderr, done.stdout) == ("", "interrupted True\n")


@needs_fork
def test_exit_during_work(tmp_path: Path) -> None:
    done = run(
        """
        import threading, time
        from ferrule import Tensor
        x = Tensor.rand(512, 512, device="CPU").realize()
        started = threading.Event()

        def work():
            y = x
            while True:
                y = ((y @ x) * 0.01).realize()
                started.set()

        threading.Thread(target=work, daemon=True).start()
        started.wait()
        print("done")
        """,
        FERRULE_CACHE_DIR=str(tmp_path),
        FERRULE_NUM_THREADS="3",
    )
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)
