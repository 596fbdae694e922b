"""The kernels of each workload for a GPU: how long each takes, and what it reaches.

gpu_kernels.py [PATTERN ...]    such as 'A@B*'; all of them if none
"""

from __future__ import annotations

import sys
import time

import numpy as np
from run import chosen
from worker import load, prepare
from workloads import Workload

from ferrule import Context, Device

CALLS = 3


def show(workload: Workload) -> None:
    """Prints a line for each kernel of a late call, and the time of the whole in a row of calls."""
    library = load("ferrule", "")
    library.use_gpu()
    with Context(ALLOW_TF32=int(workload.tf32)):
        begin = time.perf_counter()
        call = prepare(library, workload)
        library.finish()
        ready = time.perf_counter()
        call()
        library.finish()
        first = time.perf_counter()
        print(f"-- {workload.name}: inputs {ready - begin:.2f} s, first call {first - ready:.2f} s")
        with Context(DEBUG=2, JIT=2):
            call()
            call()
        call()
        library.finish()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        library.finish()
        seconds = (time.perf_counter() - begin) / CALLS
    rates = [f"{workload.flops / seconds / 1e12:.1f} TFLOPS"] if workload.flops else []
    moved = workload.reads + workload.writes
    rates += [f"{moved / seconds / 1e12:.3f} TB/s"] if moved else []
    print(f"-- {workload.name}: {1e3 * seconds:.3f} ms {', '.join(rates)}", flush=True)


def main() -> None:
    np.seterr(all="raise")
    print(Device["CUDA"])
    for workload in chosen(sys.argv[1:], quick=False, gpu=True):
        try:
            show(workload)
        except Exception as error:  # the others may work
            print(f"-- {workload.name}: {type(error).__name__}: {error}"[:2000], flush=True)


if __name__ == "__main__":
    main()
