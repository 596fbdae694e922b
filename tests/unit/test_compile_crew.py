"""Processes that make kernels beside this one: the same bytes, whatever becomes of them."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernels import CASES, add, load, mul, store, total

from ferrule.base.config import Context, config
from ferrule.device import Compiled, compile_crew
from ferrule.device.compile_crew import Crew, Question, tools_of
from ferrule.ir.expr import Variable
from ferrule.ops import LazyOp, OpError
from ferrule.runtime.cpu import device

ENTRY = "ferrule.device.compile_worker"
ASTS = [case.ast for case in CASES][:24]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the CPU device needs POSIX")


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """A crew of its own for all new devices."""
    found = Crew(ENTRY)
    monkeypatch.setattr("ferrule.device._crew", lambda: found)
    yield found
    found.close()


def cpu(folder: Path) -> Compiled:
    """A device without runners, and with an empty cache on disk: to be used inside `Context`."""
    folder.mkdir(exist_ok=True)
    return device("CPU")


def made(opened: Compiled, asts: list[LazyOp]) -> list[bytes]:
    runners = opened.prepare(asts)
    return [runners[ast].lib for ast in asts]


def shared(crew: Crew, count: int, here: Callable[[int], object]) -> dict[int, bytes]:
    """The answers of workers to questions for the first kernels."""
    opened = device("CPU")
    tools = tools_of(opened.renderer, opened.compiler, opened.linearizer_opts)
    found = crew.share(count, lambda number: Question.of(tools, ASTS[number], None), here)
    assert found is not None
    return found


def asked_of(number: int) -> Question:
    raise AssertionError(f"kernel {number} is asked of a worker")


def pids(crew: Crew) -> list[int]:
    return [worker.process.pid for worker in crew._workers]


def ends(pid: int, seconds: float = 10.0) -> bool:
    """True if a process that is no child of this one ends in time."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


# *** questions ***


def test_questions_keep_trees_interned() -> None:
    n = Variable("n", 1, 10)
    deep = load(1, 8)
    for _ in range(3000):
        deep = add(deep, load(1, 8))
    for ast in [*ASTS, store(total(mul(load(1, n, 4), load(2, n, 4)), 0)), store(deep)]:
        question = pickle.loads(pickle.dumps(Question.of(b"", ast, None)))
        assert question.ast() is ast
        assert question.key == ast.key


# *** the same programs ***


def test_workers_make_the_same_bytes(crew: Crew, tmp_path: Path) -> None:
    here = device("CPU")
    with Context(FERRULE_COMPILE_WORKERS=0, FERRULE_CACHE_DIR=str(tmp_path / "a")):
        expected = made(here, ASTS)
    assert not crew._workers
    with Context(FERRULE_COMPILE_WORKERS=2, FERRULE_CACHE_DIR=str(tmp_path / "b")):
        shared_out = device("CPU")
        assert made(shared_out, ASTS) == expected
        assert len(crew._workers) == 2
        for ast in ASTS:
            a, b = here._runners[ast], shared_out._runners[ast]
            assert (a.name, a.facts, a.launch_dims({})) == (b.name, b.facts, b.launch_dims({}))
        # What workers made is on disk, too.
        again = device("CPU")
        again._take_from_cache(ASTS)
        assert [again._runners[ast].lib for ast in ASTS] == expected


def test_the_largest_kernels_are_made_first(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def share(
        crew: Crew, count: int, question: Callable[[int], Question], here: Callable[[int], object]
    ) -> dict[int, bytes]:
        sizes.extend([len(question(number).rows) for number in range(count)])
        for number in range(count):
            here(number)
        return {}

    monkeypatch.setattr(Crew, "share", share)
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        made(cpu(tmp_path), ASTS[:4])
    assert sizes == sorted([len(ast.toposort()) for ast in ASTS[:4]], reverse=True)
    assert len(set(sizes)) > 1


def test_workers_answer_most_questions_when_this_process_is_slow(crew: Crew) -> None:
    def here(number: int) -> None:
        time.sleep(0.5)

    with Context(FERRULE_COMPILE_WORKERS=2):
        answers = shared(crew, len(ASTS), here)
    assert len(answers) > len(ASTS) // 2
    assert all(answers.values())


def test_few_kernels_start_no_worker(crew: Crew, tmp_path: Path) -> None:
    with Context(FERRULE_COMPILE_WORKERS=2, FERRULE_CACHE_DIR=str(tmp_path)):
        made(device("CPU"), ASTS[:4])
    assert not crew._workers


def test_kernels_on_disk_start_no_worker(crew: Crew, tmp_path: Path) -> None:
    with Context(FERRULE_COMPILE_WORKERS=0, FERRULE_CACHE_DIR=str(tmp_path)):
        made(device("CPU"), ASTS)
    with Context(FERRULE_COMPILE_WORKERS=2, FERRULE_CACHE_DIR=str(tmp_path)):
        made(device("CPU"), ASTS)
    assert not crew._workers


def test_one_thread_has_no_workers(crew: Crew, tmp_path: Path) -> None:
    """Unless they are asked for: their number is by default one less."""
    for threads, workers, expected in ((1, None, 0), (2, None, 1), (3, 0, 0), (1, 1, 1)):
        settings = {"FERRULE_NUM_THREADS": threads, "FERRULE_COMPILE_WORKERS": workers}
        with Context(**settings, FERRULE_CACHE_DIR=str(tmp_path / f"{threads}{workers}")):
            made(device("CPU"), ASTS)
        assert len(crew._workers[:expected]) == expected
        assert expected or not crew._workers
        for worker in list(crew._workers):
            crew._dismiss(worker)


# *** workers that fail ***


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_kernels_of_a_lost_worker_are_made_here(
    crew: Crew, stop: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_crew, "_PATIENCE_S", 0.5)
    here: set[int] = set()

    def do(number: int) -> None:
        if not here:
            time.sleep(0.5)  # the worker has begun
            os.kill(pids(crew)[0], stop)
        here.add(number)

    with Context(FERRULE_COMPILE_WORKERS=1):
        answers = shared(crew, len(ASTS), do)
        assert here.isdisjoint(answers)
        assert here | set(answers) == set(range(len(ASTS)))
        lost = pids(crew)
        shared(crew, len(ASTS), here.add)
    assert pids(crew) != lost


@pytest.mark.parametrize("executable", ["/no/such/python", "/bin/false", "/bin/cat"])
def test_a_worker_that_cannot_start_is_done_without(
    crew: Crew, executable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Context(FERRULE_COMPILE_WORKERS=0, FERRULE_CACHE_DIR=str(tmp_path / "a")):
        expected = made(device("CPU"), ASTS)
    monkeypatch.setattr(sys, "executable", executable)
    with Context(FERRULE_COMPILE_WORKERS=1, FERRULE_CACHE_DIR=str(tmp_path / "b")):
        assert made(device("CPU"), ASTS) == expected


def test_workers_that_are_lost_again_and_again_are_started_no_more(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Context(FERRULE_COMPILE_WORKERS=1):
        for _ in range(compile_crew._MAX_LOSSES):
            shared(crew, len(ASTS), lambda number: time.sleep(0.01))
        assert crew.share(len(ASTS), asked_of, print) is None


def test_a_kernel_that_a_worker_cannot_make_raises_its_error_here(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = LazyOp(ASTS[0].op, (load(1, 4),), ASTS[1].arg)
    asts = [*ASTS, bad]
    found = []
    for workers in (0, 1):
        with (
            Context(FERRULE_COMPILE_WORKERS=workers, FERRULE_CACHE_DIR=str(tmp_path)),
            pytest.raises(OpError) as caught,
        ):
            made(device("CPU"), asts)
        found.append((caught.type, str(caught.value)))
    assert found[0] == found[1]


def test_an_interrupt_ends_the_batch_and_not_the_crew(crew: Crew) -> None:
    def interrupted(number: int) -> None:
        raise KeyboardInterrupt

    with Context(FERRULE_COMPILE_WORKERS=1):
        with pytest.raises(KeyboardInterrupt):
            shared(crew, len(ASTS), interrupted)
        assert shared(crew, len(ASTS), lambda number: time.sleep(0.2))


def test_a_crew_that_is_busy_leaves_other_threads_to_themselves(crew: Crew) -> None:
    found = []

    def meanwhile(number: int) -> None:
        if not found:
            other = threading.Thread(target=lambda: found.append(crew.share(24, asked_of, print)))
            other.start()
            other.join()

    with Context(FERRULE_COMPILE_WORKERS=1):
        shared(crew, len(ASTS), meanwhile)
    assert found == [None]


def test_a_worker_that_was_idle_for_long_is_replaced(crew: Crew) -> None:
    with Context(FERRULE_COMPILE_WORKERS=1):
        shared(crew, len(ASTS), lambda number: time.sleep(0.1))
        (worker,) = crew._workers
        worker.used -= compile_crew.IDLE_S
        shared(crew, len(ASTS), lambda number: time.sleep(0.1))
    assert pids(crew) != [worker.process.pid]
    assert worker.process.returncode is not None


# *** processes that end ***

BATCH = """
import os, sys, time
from ferrule.base.config import Context
from ferrule.device import _crew
from tests.unit.test_compile_crew import ASTS, pids, shared

crew = _crew()
with Context(FERRULE_COMPILE_WORKERS=1):
    shared(crew, len(ASTS), lambda number: time.sleep(0.1))
print(*pids(crew), flush=True)
"""


def process(more: str) -> subprocess.Popen[str]:
    """A process that has had a worker, whose number it prints; and then does more."""
    program = BATCH + textwrap.dedent(more)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {"PYTHONPATH": path, "FERRULE_CACHE_DIR": config().FERRULE_CACHE_DIR}
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@linux
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_killed_leaves_no_worker(by: signal.Signals) -> None:
    with process("time.sleep(100)") as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        assert not ends(worker, 0.1)
        running.send_signal(by)
        running.wait()
    assert ends(worker)


@linux
def test_a_process_that_ends_leaves_no_worker_and_no_warning() -> None:
    with process("") as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        assert running.wait() == 0
    assert ends(worker)


@linux
def test_a_forked_child_has_workers_of_its_own_and_does_not_keep_the_parents() -> None:
    more = """
    pid = os.fork()
    if pid == 0:
        mine = pids(crew)
        with Context(FERRULE_COMPILE_WORKERS=1):
            shared(crew, len(ASTS), lambda number: time.sleep(0.1))
        print(mine, *pids(crew), os.getpid(), flush=True)
        time.sleep(100)
    time.sleep(100)
    """
    with process(more) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        nothing, other, child = running.stdout.readline().split()
        assert nothing == "[]"
        assert int(other) != worker
        running.kill()
        assert ends(worker)  # though the child still runs
        assert not ends(int(other), 0.1)
        os.kill(int(child), signal.SIGKILL)
        assert ends(int(other))
