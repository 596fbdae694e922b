"""Signals in the middle of something: sent when it has begun, however long that takes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_once(
    begun: Callable[[], object], by: signal.Signals = signal.SIGINT
) -> Iterator[None]:
    """Sends this process a signal, Ctrl-C's, as soon as `begun` holds while the block runs."""
    left = threading.Event()

    def watch() -> None:
        while not left.is_set():
            if begun():
                os.kill(os.getpid(), by)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
