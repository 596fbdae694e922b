"""GPUs that tests schedule for, whether there is one or not, and NVIDIA's compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ferrule.runtime.cuda_compiler import NVRTC
from ferrule.target import Target, detect_cpu

ARCHITECTURES = ("sm_80", "sm_90a")
GPU = replace(
    detect_cpu(),
    name="gpu",
    vector_bytes=16,
    block_threads=256,
    warp=32,
    index_bits=32,
    max_threads=1056,
    shared_bytes=48 << 10,
)
"""132 multiprocessors with eight blocks each, at the rates of this machine's processor."""
TENSOR = replace(GPU, name="tensor", features="+mma")
ASYNC = replace(GPU, features="+async,+mma")
LARGE = replace(TENSOR, flops_per_second=6e10, bytes_per_second=3e9)
"""With the ratio of operations and bytes that large ones have."""


def nvidia(arch: str) -> Target:
    """A GPU with all that large ones have, whatever machine the tests run on."""
    return Target(
        name=f"cuda-{arch}",
        arch=arch,
        features="+async,+mma",
        vector_bytes=16,
        n_vector_registers=64,
        max_threads=132,
        l1_bytes=228 << 10,
        l2_bytes=256 << 10,
        has_fma=True,
        flops_per_second=5e11,
        bytes_per_second=2.3e10,
        native_ops=frozenset({"MULACC", "ROUND", "SQRT", "TRUNC"}),
        index_bits=32,
        block_threads=256,
        warp=32,
        shared_bytes=96 << 10,
        static_shared_bytes=48 << 10,
    )


def nvrtc_bindings() -> Any:
    """Those of NVIDIA's compiler; a test that asks is skipped where they are not installed."""
    return pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")


def nvrtc() -> NVRTC:
    """The compiler itself, likewise."""
    nvrtc_bindings()
    return NVRTC()
