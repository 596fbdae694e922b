"""Limits: the rates that a device reaches here, measured once, to compare kernels with.

There is no table of machines. A kernel's operations are compared with a product of matrices, and
its bytes with an element-wise kernel that moves as many: small arrays stay in caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, final

from ferrule.base.config import Context, config
from ferrule.base.records import dataclass
from ferrule.device.capture import Capture
from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor

_RUNS: Final = range(20)
"""Runs of which the fastest counts, as other programs may run meanwhile."""
_MIN_BYTES: Final = 1 << 12
_MAX_BYTES: Final = 1 << 28
"""Bytes of the smallest and the largest array: a larger one is in no cache either."""
_MIN_SIZE: Final = 256
_MAX_SIZE: Final = 4096
_MAX_SECONDS: Final = 0.02
"""The sizes of matrices, and the seconds of a product after which no larger one is tried."""


@final
@dataclass(frozen=True)
class Peak:
    """The rate of the fastest product of matrices that was measured."""

    operations_per_second: float
    size: int


def peak(device: str, dtype: DType) -> Peak:
    """The fastest product of matrices of a dtype, on the threads that kernels may use now."""
    return _peak(device, dtype, config().FERRULE_NUM_THREADS, config().ALLOW_TF32)


def bandwidth(device: str, nbytes: int) -> float:
    """The bytes a second of `x + 1`, reads and writes, if both together are about `nbytes`."""
    size = _MIN_BYTES
    while size < min(nbytes, _MAX_BYTES):
        size *= 2
    return _bandwidth(device, size, config().FERRULE_NUM_THREADS)


# Sizes are counted apart from the program's, whose plans depend on which sizes change.
_APART: Final = {"FERRULE_SKIP": "lengths"}


@cache
@Context(**_APART)
def _peak(device: str, dtype: DType, threads: int, tf32: int) -> Peak:
    best, size = Peak(0.0, 0), _MIN_SIZE
    while size <= _MAX_SIZE:
        x = _zeros((size, size), dtype, device)
        seconds = _seconds(lambda x: x @ x, x)
        rate = 2 * size**3 / seconds
        if rate > best.operations_per_second:
            best = Peak(rate, size)
        if seconds > _MAX_SECONDS:
            break
        size *= 2
    return best


@cache
@Context(**_APART)
def _bandwidth(device: str, nbytes: int, threads: int) -> float:
    x = _zeros((nbytes // 2 // dtypes.float32.itemsize,), dtypes.float32, device)
    return nbytes / _seconds(lambda x: x + 1, x)


def _zeros(shape: tuple[int, ...], dtype: DType, device: str) -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype, device=device).contiguous().realize()


def _seconds(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The seconds of the kernels of a function, the fastest of several runs."""
    with Capture() as capture:
        result = function(x).realize()
    runs = [(item.prg, [b for b in item.rawbufs if b is not None]) for item in capture.items()]
    times = [sum([run(buffers, {}, wait=True) or 0.0 for run, buffers in runs]) for _ in _RUNS]
    del result
    return max(min(times), 1e-9)
