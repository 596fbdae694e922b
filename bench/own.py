"""ferrule's figures that have no peer: imports, launches, fusion, the demonstration."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from ferrule import GlobalCounters, Tensor, TinyJit

CHAIN = 100
FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(),
    "layernorm": lambda x: x.layernorm(),
    "logsumexp": lambda x: x.logsumexp(axis=1),
    "rms_norm": lambda x: x.rms_norm(),
    "softmax((x*w+b), axis=0)": lambda x: (x * Tensor.ones(1024) + x[0]).softmax(axis=0),
    "attention": lambda x: x.scaled_dot_product_attention(x, x),
}


def import_ms() -> float:
    """What `import ferrule` adds to `import numpy`, which it needs."""

    def start(program: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        return time.perf_counter() - begin

    pairs = [(start("import numpy, ferrule"), start("import numpy")) for _ in range(21)]
    return 1e3 * statistics.median(ours - theirs for ours, theirs in pairs[1:])


def replay_us() -> float:
    """A replay of 100 captured kernels on 8 floats, each of which needs the one before."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(CHAIN):
            x = (x * 0.5 + 1).realize()
        return x

    jitted, x = TinyJit(chain), Tensor(np.arange(8, dtype=np.float32)).realize()
    samples = []
    for _ in range(2000):
        begin = time.perf_counter()
        jitted(x)
        samples.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(samples)


def kernels(expression: Callable[[Tensor], Tensor]) -> int:
    """How many kernels an expression takes."""
    x = Tensor(np.ones((256, 1024), np.float32)).realize()
    before = GlobalCounters.kernel_count
    expression(x).realize()
    return GlobalCounters.kernel_count - before


def demonstration() -> str:
    """The last line of the digits demonstration, a run of its own."""
    command = [sys.executable, "-m", "ferrule", "demo", "digits"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return found.stdout.splitlines()[-1]


if __name__ == "__main__":
    print(f"import ferrule, over import numpy: {import_ms():.1f} ms")
    print(f"replay of {CHAIN} kernels on 8 floats: {replay_us():.1f} us")
    for name, expression in FUSED.items():
        print(f"kernels of {name}: {kernels(expression)}")
    print(f"demonstration: {demonstration()}")
