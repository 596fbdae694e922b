"""Two cores for each process of the tests: how many there are decides schedules, so all machines
have as many.
"""

import os
from collections.abc import MutableMapping, Sequence

_CORES = 2
_ALL = "TESTS_CORES"  # pytest-xdist's workers inherit it, and of the cores only two


def own(cores: Sequence[int], worker: int) -> list[int]:
    """Those of the worker of that number: neighbours, which the next workers do not have."""
    groups = max(len(cores) // _CORES, 1)
    first = worker % groups * _CORES
    return list(cores[first : first + _CORES])


def keep_to_own(environment: MutableMapping[str, str]) -> None:
    """This process, and what it starts, runs on its own cores from now on.

    Called before ferrule is imported, which counts them. Where the system does not know of cores
    for a process, nothing changes.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    everything = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    cores = [int(core) for core in environment.setdefault(_ALL, everything).split()]
    worker = environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.sched_setaffinity(0, own(cores, int(worker)))
