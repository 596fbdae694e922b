"""How many blocks of a kernel a multiprocessor is to run at once, which a compiler is told.

By itself it guesses, and may keep a thread to fewer registers than there are for it, at the price
of spills, or of loads that wait for each other. Where shared memory has room for a few blocks only,
or there are only a few, registers that more of them would take are of no use to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrule.codegen.grid.cost import LANES, REGISTERS, multiprocessors
from ferrule.codegen.uops import UOp, UOps
from ferrule.target import Target

_RESERVED_BYTES: Final = 1024
"""Of shared memory, which each block has besides."""
# A thread's registers beside those of its sums: addresses and operands, which are more where a
# warp's matrices are among them.
_OTHERS: Final = 64
_OTHERS_OF_MATRICES: Final = 80
_OF_MATRICES: Final = frozenset({UOps.MMA, UOps.WGMMA})


def blocks_at_once(
    uops: Sequence[UOp], threads: int, shared_bytes: int, target: Target
) -> int | None:
    """As many as shared memory has room for, or as there are; None if neither is what limits them,
    or known.
    """
    if target.static_shared_bytes is None:
        return None
    limits = [_share(uops, target)]
    if shared_bytes:
        limits.append(target.l1_bytes // (shared_bytes + _RESERVED_BYTES))
    room = min([n for n in limits if n is not None], default=0)
    return room if 1 <= room <= LANES * REGISTERS // (threads * _registers(uops)) else None


def _share(uops: Sequence[UOp], target: Target) -> int | None:
    """One multiprocessor's part of the blocks, at most; None where their number varies."""
    (blocks,) = (u.src[0] for u in uops if u.op is UOps.EXTENT)
    if blocks.op is not UOps.CONST:
        return None
    return -(-int(blocks.arg) // multiprocessors(target))


def _registers(uops: Sequence[UOp]) -> int:
    """About how many a thread needs."""
    others = _OTHERS_OF_MATRICES if any(u.op in _OF_MATRICES for u in uops) else _OTHERS
    kept = [(u.lanes, u.dtype) for u in uops if u.op is UOps.REG]
    return others + sum(n * max(1, dtype.itemsize // 4) for n, dtype in kept if dtype is not None)
