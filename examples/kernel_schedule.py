"""Write the schedule of one kernel by hand, and compare it with the one that ferrule chooses.

Shows code generation from the outside. A product of matrices is three loops; a schedule is a tuple
of `Opt`s, plain data, each of which changes the loops and nothing of what is computed.

    python examples/kernel_schedule.py --size 256

Prints the loops before and after, and the speed with no schedule, with this one and with ferrule's.
"""

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferrule import Device, Tensor
from ferrule.codegen.kernel import show
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, apply_opts
from ferrule.device import Compiled
from ferrule.engine.realize import run
from ferrule.schedule import create_schedule

# Tiles of 4 rows and 16 columns, whose sums stay in registers while the terms go by.
TILES = (
    Opt("split", ("out0", "i0.0", 4)),
    Opt("split", ("out0", "i0.1", 16)),
    Opt("reorder", ("out0", ("i0.0.o", "i0.1.o", "i0.0.i", "i0.1.i"))),
    Opt("unroll", ("out0", "i0.0.i")),
    Opt("vectorize", ("out0", "i0.1.i")),
    Opt("compute_at", ("sum0", 2)),
)


class Result(NamedTuple):
    """The results of the three kernels, and the exact one."""

    products: dict[str, np.ndarray]
    expected: np.ndarray


def main(arguments: Sequence[str] | None = None) -> Result:
    """Compiles the three kernels, runs them and prints their speed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="of the matrices; a multiple of 16")
    size = parser.parse_args(arguments).size

    draw = np.random.default_rng(0)
    left, right = draw.normal(size=(2, size, size)).astype(np.float32)
    device = Device["CPU"]
    assert isinstance(device, Compiled)
    # The graph is cut into kernels. One makes the product; others would be of writes to other
    # tensors, such as statistics of batches, that have waited for a schedule to be run.
    product = (Tensor(left, device="CPU") @ Tensor(right, device="CPU")).lazydata
    items = create_schedule([product])
    run(items)
    (item,) = [item for item in items if item.out is product.realized]
    kernel = lower(item.ast, "product")
    print(show(kernel))
    print(show(apply_opts(kernel, TILES)))

    schedules = {
        "no schedule": (),
        "this schedule": TILES,
        "ferrule's": device.get_linearizer(item.ast).opts,
    }
    products = {}
    for name, opts in schedules.items():
        program = device.to_program(Linearizer(item.ast, device.linearizer_opts, opts))
        buffers = list(item.buffers)
        program.exec(buffers)
        start = time.perf_counter()
        program.exec(buffers)
        device.synchronize()
        seconds = time.perf_counter() - start
        print(f"{name:14} {2 * size**3 / seconds / 1e9:6.1f} GFLOPS, {len(opts)} opts")
        products[name] = item.out.toCPU().reshape(size, size).copy()
    return Result(products, left.astype(np.float64) @ right.astype(np.float64))


if __name__ == "__main__":
    main()
