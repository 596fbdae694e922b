"""Worker processes that make kernels beside this one, which Python's lock would else make one by
one.

Each is an interpreter of its own, never a fork, since this process may have threads. Its questions
come through its standard input, so that it ends with this process, however that ends. A kernel that
a worker does not answer for is made here: no fault of a worker is one of the program.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, SimpleQueue
from struct import Struct
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from ferrule.base.config import config
from ferrule.base.records import dataclass
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.target import Target

if TYPE_CHECKING:
    from ferrule.codegen.opt import Opt

IDLE_S: Final = 30.0
"""Seconds without a question after which a worker ends. Not measured: it keeps 60 MB until then."""
_PATIENCE_S: Final = 2.0
"""Seconds that answers may be late by, at least, before kernels are made here. Not measured."""
_KERNELS_A_START: Final = 12
"""Uncached kernels for each worker that is started. Estimated, not measured by itself: they take
about three times as long to make as a worker to start (0.35 s and 0.11 s, Zen 4, 2026-11)."""
_MAX_LOSSES: Final = 3
"""Workers that were lost, after which this process starts no more."""
_PIPE_BYTES: Final = 16 << 10
"""Bytes that a pipe takes on any system without a reader."""

# -P: no modules are imported from the folder that this process was started in.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; from importlib import import_module; "
    "import_module(sys.argv[1]).serve()"
)
_SIZE: Final = Struct("<Q")

_Row: TypeAlias = tuple[Any, tuple[int, ...], Any]
"""A node of an AST: its op, the numbers of its sources, its argument."""


# *** messages ***


def send(file: int, message: bytes) -> None:
    """Write a message, with its length before it. Raises `OSError` if nobody reads."""
    rest = memoryview(_SIZE.pack(len(message)) + message)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> bytes:
    """Read a message that `send` wrote. Raises `EOFError` where there is none, or not all of it."""
    (size,) = _SIZE.unpack(_read(file, _SIZE.size))
    return _read(file, size)


def _read(file: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(file, size)
        if not part:
            raise EOFError("the other process ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def tools_of(renderer: Any, compiler: Any, target: Target) -> bytes:
    """All that decides the program of an AST, pickled: a device's renderer and compiler, the
    target, and the settings in force.
    """
    return pickle.dumps((renderer, compiler, target, asdict(config()) | {"DEBUG": 0}))


@final
@dataclass(frozen=True)
class Question:
    """A kernel to make, by pickled `tools`.

    The AST is in rows, since pickling a deep tree would need as deep a stack. `opts` is the
    schedule that a search found; None: the heuristic chooses.
    """

    tools: bytes
    rows: list[_Row]
    key: str
    opts: tuple[Opt, ...] | None

    @staticmethod
    def of(tools: bytes, ast: LazyOp, opts: tuple[Opt, ...] | None) -> Question:
        """The question for the program of an AST."""
        numbers = {node: number for number, node in enumerate(ast.toposort())}
        rows = [(x.op, tuple([numbers[source] for source in x.src]), x.arg) for x in numbers]
        return Question(tools, rows, ast.key, opts)

    def ast(self) -> LazyOp:
        """The AST, interned."""
        nodes: list[LazyOp] = []
        for op, sources, arg in self.rows:
            nodes.append(LazyOp(op, tuple([nodes[source] for source in sources]), arg))
        nodes[-1].set_key(self.key)
        return nodes[-1]


# *** workers ***


@final
class _Worker:
    """A worker process. Raises `OSError` if it cannot be started."""

    def __init__(self, entry: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, entry, *sys.path],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if config().DEBUG >= 1 else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process alone
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._files = self.process.stdin, self.process.stdout
        self.questions, self.answers = (file.fileno() for file in self._files)
        self.used = time.monotonic()
        self.is_lost = False

    def end(self) -> None:
        """End the process; the files stay open for a thread that may be reading."""
        self.is_lost = True
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process, and close the files."""
        self.end()
        for file in self._files:
            file.close()

    def disown(self) -> None:
        """Forget, in a forked child, the process of the parent."""
        self.process.returncode = 0
        for file in self._files:
            file.close()


@final
class Crew:
    """The workers of this process. `entry` is the module that runs in them."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._workers: list[_Worker] = []
        self._lock = Lock()
        self._losses = 0
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disown)

    def share(
        self, count: int, question: Callable[[int], Question], here: Callable[[int], object]
    ) -> dict[int, bytes] | None:
        """Make kernels 0 to `count` - 1, each by a worker or by `here`; the answers of workers.

        None, with nothing done, where workers gain nothing or are busy for another thread.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            workers = self._staff(count)
            return self._share(workers, count, question, here) if workers else None
        finally:
            self._lock.release()

    def _staff(self, count: int) -> list[_Worker]:
        """The workers for so many kernels, of which some may still be starting."""
        settings = config()
        most = settings.FERRULE_COMPILE_WORKERS
        if most is None:
            most = settings.FERRULE_NUM_THREADS - 1
        now = time.monotonic()
        for worker in list(self._workers):
            # One that is about to end might do so with a question in hand.
            if worker.is_lost or now - worker.used > IDLE_S / 2:
                self._dismiss(worker)
        while len(self._workers) < min(most, count // _KERNELS_A_START):
            if self._losses >= _MAX_LOSSES:
                break
            try:
                self._workers.append(_Worker(self._entry))
            except OSError as error:
                self._losses = _MAX_LOSSES
                if settings.DEBUG >= 1:
                    print(f"no process that compiles can be started: {error}")
        return self._workers[:most]

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.close()

    def _share(
        self,
        workers: list[_Worker],
        count: int,
        question: Callable[[int], Question],
        here: Callable[[int], object],
    ) -> dict[int, bytes]:
        begin = time.monotonic()
        todo = deque(range(count))
        done: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        feeders = [
            Thread(target=_feed, args=(worker, todo, question, done), daemon=True)
            for worker in workers
        ]
        for feeder in feeders:
            feeder.start()
        answers: dict[int, bytes] = {}
        mine = 0
        try:
            while mine + len(answers) < count:
                number = _next(todo)
                if number is None:
                    # Waiting for as long as all took so far, at least, doubles it at most.
                    patience = max(time.monotonic() - begin, _PATIENCE_S)
                    try:
                        number, answer = done.get(timeout=patience)
                    except Empty:
                        for worker in workers:
                            worker.end()
                        continue
                    if answer:
                        answers[number] = answer
                        continue
                here(number)
                mine += 1
        except BaseException:
            todo.clear()
            for worker in workers:  # their answers would be taken for those of other questions
                worker.end()
            raise
        finally:
            for feeder in feeders:
                feeder.join()
        for worker in workers:
            worker.used = time.monotonic()
            self._losses += worker.is_lost
        return answers

    def close(self) -> None:
        """End all workers, at the end of the process: it can start no thread that feeds others."""
        self._losses = _MAX_LOSSES
        for worker in list(self._workers):
            self._dismiss(worker)

    def _disown(self) -> None:
        """Be without workers in a forked child, where those of the parent are none of its own."""
        for worker in self._workers:
            worker.disown()
        self._workers = []
        self._lock = Lock()


def _feed(
    worker: _Worker,
    todo: deque[int],
    question: Callable[[int], Question],
    done: SimpleQueue[tuple[int, bytes]],
) -> None:
    """Let a worker make kernels until there are none left; those that it does not make have no
    bytes.

    A worker gets its next question before it answers one, since this thread may have to wait for
    Python's lock in between. That is only one which the pipe surely takes: else each process might
    wait for the other one to read.
    """
    asked: deque[int] = deque()
    try:
        while True:
            number = _next(todo)
            if number is None and not asked:
                return
            if number is not None:
                asked.append(number)
                text = pickle.dumps(question(number))
                while len(asked) > 1 and len(text) > _PIPE_BYTES:
                    _collect(worker, asked, done)
                send(worker.questions, text)
                if len(asked) < 2:
                    continue
            _collect(worker, asked, done)
    except (OSError, EOFError):
        pass  # the worker ended: these are left
    finally:
        worker.is_lost |= bool(asked)
        for number in asked:
            done.put((number, b""))


def _collect(worker: _Worker, asked: deque[int], done: SimpleQueue[tuple[int, bytes]]) -> None:
    answer = receive(worker.answers)
    done.put((asked.popleft(), answer))


def _next(todo: deque[int]) -> int | None:
    try:
        return todo.popleft()
    except IndexError:
        return None
