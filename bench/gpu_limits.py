"""What a GPU can do at most: a copy inside its memory, measured, and its nominal arithmetic."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from limits import Bandwidth, Limits

from ferrule.device import Device
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.runtime.cuda.driver import open_gpu

COPIED = 1 << 30
RUNS = 10
# Operations per clock of one multiprocessor, a multiply-add counting two, by NVIDIA's tables of
# arithmetic throughput: float32, and bfloat16 on tensor cores; by compute capability.
PER_CLOCK = {
    (8, 0): (128, 2048),
    (8, 6): (256, 1024),
    (8, 9): (256, 1024),
    (9, 0): (256, 4096),
    (10, 0): (256, 8192),
    (10, 3): (256, 8192),
    (12, 0): (256, 1024),
}
USUAL = (9, 0)
"""What others are taken for."""


def copy_rate() -> float:
    """Bytes read and written per second: the best of several copies of 1 GiB."""
    device = Device["CUDA"]
    source, target = (Buffer("CUDA", COPIED, dtypes.uint8) for _ in range(2))
    best = float("inf")
    for _ in range(RUNS):
        device.synchronize()
        start = time.perf_counter()
        device.allocator.transfer(target._buf, source._buf)
        device.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * COPIED / best


def measure(threads: int) -> Limits:
    """The limits of the first GPU; `threads` is what the table says of the host."""
    first = open_gpu(0)
    clock = 1e3 * first.attribute("CLOCK_RATE") * first.attribute("MULTIPROCESSOR_COUNT")
    plain, tensor = PER_CLOCK.get(first.capability, PER_CLOCK[USUAL])
    rate = copy_rate()
    level = Bandwidth(rate, rate, rate)
    # tf32 has half the rate of what is half as wide.
    return Limits(threads, plain * clock, tensor * clock, level, level, level, tensor * clock / 2)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
