"""Questions about schedules on a target, for whoever plans kernels or builds graphs.

A planner asks what the schedule of a kernel can do, by the name of the question, and never what the
hardware is like. All answers follow from one fact today: whether the kernels of a target run in
thread blocks. A target of another kind may answer each question in its own way, here.

>>> from dataclasses import replace
>>> from ferrule.target import detect_cpu
>>> processor = detect_cpu()
>>> gpu = replace(processor, block_threads=256, warp=32)
>>> continues_totals(processor), continues_totals(gpu)
(True, False)
"""

from __future__ import annotations

from typing import Final

from ferrule.target import Target

_LOAD_BYTES: Final = 16
"""The widest load of one thread."""


def _has_blocks(target: Target) -> bool:
    return target.block_threads > 1


def fills_vectors(target: Target) -> bool:
    """True if neighbouring elements are lanes of vectors, not elements of threads.

    Lanes that stay empty are lost, and an element on its own takes as long as a vector of them.
    """
    return not _has_blocks(target)


def continues_totals(target: Target) -> bool:
    """True if one loop computes a running total, each element from the one before it.

    Elsewhere each element is a reduce of its own, over all that is before it.
    """
    return not _has_blocks(target)


def keeps_tiles(target: Target) -> bool:
    """True if a kernel goes tile by tile along the rows of a value that it keeps.

    A block of threads does; it then needs no room for whole rows, and adds up nothing of them but
    what its own result needs. Elsewhere a thread keeps whole rows in its cache.
    """
    return _has_blocks(target)


def shares_reduces(target: Target) -> bool:
    """True if several threads compute one element of a reduce that the rest of a kernel awaits."""
    return _has_blocks(target)


def repeats_long_sums(target: Target) -> bool:
    """True if a kernel has a place for a long sum inside of other loops.

    A block of threads has none: it shares out the terms of a sum, and then elements.
    """
    return not _has_blocks(target)


def widens_factors(target: Target) -> bool:
    """True if casts of the factors of a product cost nothing, whatever their dtypes.

    Blocks of threads cast what they load, and loads are what limits them. Elsewhere only an
    instruction that takes narrow factors does it (`tensorize.native_intrinsic`).
    """
    return _has_blocks(target)


def combines_in_one_kernel(target: Target) -> bool:
    """True if a kernel combines parts of a long reduce that its own chunks compute.

    Elsewhere a second kernel combines them (`grid/parts.py`).
    """
    return not _has_blocks(target)


def copies_own_memory(target: Target) -> bool:
    """True if copies of operands are in a chunk's own memory, so that they can be made beforehand.

    Elsewhere they are in the memory that a block's threads share, and end with the kernel.
    """
    return not _has_blocks(target)


def part_alignment(target: Target) -> int:
    """Bytes; kernels take parts of memory that begin at multiples of it.

    Threads of a block load vectors, at places that have to be known to be multiples of these.
    """
    return _LOAD_BYTES if _has_blocks(target) else 1
