"""What code generation may assume about a GPU, by what its driver says."""

import pytest
from tests.gpus import nvidia, told

from ferrule.runtime.cuda.driver import gpu_target


@pytest.mark.parametrize(
    ("arch", "count", "flops", "bandwidth", "shared_bytes"),
    [("sm_80", 108, 19.5e12, 2.04e12, 163 << 10), ("sm_90a", 132, 66.9e12, 3.35e12, 227 << 10)],
)
def test_large_gpus(
    arch: str, count: int, flops: float, bandwidth: float, shared_bytes: int
) -> None:
    target = nvidia(arch)
    assert target.arch == arch
    assert target.multiprocessors == count
    assert target.flops_per_second * target.max_threads == pytest.approx(flops, rel=0.01)
    assert target.bytes_per_second * target.max_threads == pytest.approx(bandwidth, rel=0.01)
    assert target.shared_bytes == shared_bytes


def test_clocks_that_nobody_tells() -> None:
    target = gpu_target(told("sm_90a", CLOCK_RATE=0, MEMORY_CLOCK_RATE=0))
    assert target.flops_per_second * target.max_threads == pytest.approx(50.7e12, rel=0.01)
    assert target.bytes_per_second == target.flops_per_second / 40
    shared = gpu_target(told("sm_90a", GLOBAL_MEMORY_BUS_WIDTH=0))
    assert shared.bytes_per_second > 0


def test_less_shared_memory() -> None:
    assert (
        gpu_target(told("sm_80", MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=64 << 10)).shared_bytes
        == 64 << 10
    )
