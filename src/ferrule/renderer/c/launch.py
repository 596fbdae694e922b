"""The number of blocks of a kernel that a multiprocessor is to run at once, as a hint for the
compiler.

Without the hint the compiler guesses, and may keep a thread to fewer registers than there are for
it. That causes spills, or loads that wait for each other. If shared memory has room for a few
blocks only, or there are only a few, further blocks could not use these registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.target import Target

_RESERVED_BYTES: Final = 1024
"""Bytes of shared memory that the driver reserves for each block."""
# Registers of a thread beside those of its sums: addresses and operands, which are more if a warp's
# matrices are among them. Estimated from what NVRTC reports (2026-11).
_OTHER_REGISTERS: Final = 64
_OTHER_MATRIX_REGISTERS: Final = 80
_OF_MATRICES: Final = frozenset({UOps.MMA, UOps.WGMMA})


def blocks_at_once(
    uops: Sequence[UOp], threads: int, shared_bytes: int, target: Target
) -> int | None:
    """The blocks that shared memory has room for, or that there are.

    None if registers are the limit, or if it is not known.
    """
    if target.static_shared_bytes is None:
        return None
    limits = [_share(uops, target)]
    if shared_bytes:
        limits.append(target.l1_bytes // (shared_bytes + _RESERVED_BYTES))
    room = min([n for n in limits if n is not None], default=0)
    return (
        room if 1 <= room <= target.block_speeds.registers // (threads * _registers(uops)) else None
    )


def _share(uops: Sequence[UOp], target: Target) -> int | None:
    """One multiprocessor's share of the blocks, at most; None if their number is symbolic."""
    (blocks,) = (u.src[0] for u in uops if u.op is UOps.EXTENT)
    if blocks.op is not UOps.CONST:
        return None
    return -(-int(blocks.arg) // target.multiprocessors)


def _registers(uops: Sequence[UOp]) -> int:
    """About the number of registers that a thread needs."""
    others = (
        _OTHER_MATRIX_REGISTERS if any(u.op in _OF_MATRICES for u in uops) else _OTHER_REGISTERS
    )
    kept = [(u.lanes, u.dtype) for u in uops if u.op is UOps.REG]
    return others + sum(n * max(1, dtype.itemsize // 4) for n, dtype in kept if dtype is not None)
