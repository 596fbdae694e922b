"""Questions about schedules on a target, for whoever plans kernels or builds graphs.

A planner asks what the schedule of a kernel can do, by the name of the question, and never what the
hardware is like. All answers follow from one fact today: whether the kernels of a target run in
thread blocks. A target of another kind may answer each question in its own way, here.

>>> from dataclasses import replace
>>> from ferrule.ir.target import detect_cpu
>>> processor = detect_cpu()
>>> gpu = replace(processor, block_threads=256, warp=32)
>>> continues_totals(processor), continues_totals(gpu)
(True, False)
"""

from __future__ import annotations

from typing import Final

from ferrule.ir.target import Target

MAX_SEGMENTS: Final = 17
"""Parts of all loops of a nest together, in each of which conditions on indices are known: each is
a copy of the loop's body. Not measured; 17 is enough for 9 values side by side, of which neighbours
share a vector."""
MIN_PARALLEL_WORK: Final = 150_000
"""Operations, about 2 us of a core: with less work a kernel is not shared out among threads.
Set in 2026-11; not measured by itself."""
CHUNK_ELEMENTS: Final = 8192
"""Elements of a stream that one thread takes at a time. Set on 2026-11-21; not measured by
itself."""
MAX_CACHED_BYTES: Final = 16 << 20
"""Bytes that the caches may keep until they are read again: half of a third cache of 32 MiB. Set in
2026-11; not measured by itself."""
_LOAD_BYTES: Final = 16
"""The widest load of one thread."""


def _has_blocks(target: Target) -> bool:
    return target.block_threads > 1


def fills_vectors(target: Target) -> bool:
    """True if neighbouring elements become lanes of vectors, rather than threads of a block.

    Unused lanes are lost throughput: a scalar takes as long as a whole vector.
    """
    return not _has_blocks(target)


def continues_totals(target: Target) -> bool:
    """True if one loop computes a running total, each element from the one before it.

    In thread blocks each element is a separate reduce, over all elements before it.
    """
    return not _has_blocks(target)


def tiles_stages(target: Target) -> bool:
    """True if a kernel computes a stage tile by tile, rather than row by row.

    A thread block does: it then needs no memory for whole rows, and sums only the elements that its
    own results need. A CPU thread has whole rows in its cache.
    """
    return _has_blocks(target)


def shares_reduces(target: Target) -> bool:
    """True if several threads share one element of a reduce that the rest of a kernel reads."""
    return _has_blocks(target)


def repeats_long_sums(target: Target) -> bool:
    """True if a long sum may be computed again inside other loops of a kernel.

    A thread block cannot: its threads first divide the terms of a sum, then the elements.
    """
    return not _has_blocks(target)


def widens_factors(target: Target) -> bool:
    """True if casts of the factors of a product cost nothing, whatever their dtypes.

    Thread blocks cast the elements they load, and loads are their bottleneck. On CPUs only an
    instruction that takes narrow factors casts for free (`tensorize.native_intrinsic`).
    """
    return _has_blocks(target)


def combines_in_one_kernel(target: Target) -> bool:
    """True if a kernel is never split by the time that its reduces take.

    For thread blocks it may be, and a second kernel combines the parts
    (`codegen/schedules/gpu/split_reduce.py`).
    """
    return not _has_blocks(target)


def sizes_of_one_program(
    target: Target, size: int, work: int, itemsize: int
) -> tuple[int, int] | None:
    """The bounds between which element-wise work along memory has one schedule for any number of
    elements, among them `size`; None if each number has its own.

    Each element takes `work` operations, and the narrowest result `itemsize` bytes. Two chunks or
    more are shared out, if that is enough work. Results that exceed the caches may bypass them.
    Thread blocks have launches that differ by size.
    """
    if _has_blocks(target) or size * itemsize >= MAX_CACHED_BYTES:
        return None
    shared = max(2 * CHUNK_ELEMENTS, -(-MIN_PARALLEL_WORK // work))
    if size < shared:
        return 1, shared - 1
    return shared, (MAX_CACHED_BYTES - 1) // itemsize


def copies_own_memory(target: Target) -> bool:
    """True if chunks copy operands to memory of their own, so that copies can be made beforehand.

    Thread blocks copy to shared memory, whose contents end with the kernel.
    """
    return not _has_blocks(target)


def part_alignment(target: Target) -> int:
    """The alignment in bytes that parts of a buffer need when kernels take them as operands.

    Threads of a block load vectors, whose addresses have to be known multiples of this.
    """
    return _LOAD_BYTES if _has_blocks(target) else 1
