"""The process that `compile_crew.py` starts: it makes kernels on request.

The answer to a question is the kernel's entry of the disk cache, and no bytes if making it raised
an error. The process ends with its questions, and after a while without any.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
from typing import Any, Final

# What all kernels need, imported while the other process makes the first ones.
import ferrule.codegen.linearizer as linearizer
from ferrule.base.config import Context
from ferrule.device import entry_of
from ferrule.device.compile_crew import IDLE_S, Question, receive, send

_COLLECT_AFTER: Final = 100_000
"""Objects after which garbage is collected, where the default is 700. Not measured."""

_known: dict[bytes, Any] = {}
"""Tools that were unpickled before."""


def serve() -> None:
    """Answer the questions of the standard input on the standard output until they end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what is printed is no answer
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    while select.select([questions], [], [], IDLE_S)[0]:
        try:
            send(answers, make(pickle.loads(receive(questions))))
        except (EOFError, OSError):
            return


def make(asked: Question) -> bytes:
    """The entry of a kernel; no bytes if it cannot be made.

    The other process makes it then, and so raises the error.
    """
    if asked.tools not in _known:
        _known[asked.tools] = pickle.loads(asked.tools)
    renderer, compiler, target, settings = _known[asked.tools]
    try:
        with Context(**settings):
            k = linearizer.Linearizer(asked.ast(), target, asked.opts)
            return entry_of(k, renderer, compiler)
    except Exception:
        return b""
