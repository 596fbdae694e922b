"""The program IR: a flat list of `UOp`s in order, with explicit vectors; its checker and its
printer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto
from typing import Any

from ferrule.base.enums import Enum
from ferrule.base.records import dataclass
from ferrule.codegen.intrinsics import TILE, WGMMA, WGMMA_COLUMNS, matrix_intrinsic
from ferrule.codegen.kernel import COMBINING_BYTES, MAX_ACCESS_BYTES
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import COMPARISONS, ExprOp
from ferrule.ir.target import Target


class UOps(Enum):
    """The kind of an instruction; `docs/design/interfaces.md` has the table of operands."""

    PARAM = auto()
    VALUE = auto()
    START = auto()
    STOP = auto()
    CONST = auto()
    IOTA = auto()
    ALU = auto()
    CAST = auto()
    BITCAST = auto()
    SPLAT = auto()
    EXTRACT = auto()
    SHUFFLE = auto()
    HREDUCE = auto()
    LOCAL = auto()
    LOAD = auto()
    STORE = auto()
    PREFETCH = auto()
    REG = auto()
    GET = auto()
    SET = auto()
    LOOP = auto()
    END = auto()
    IF = auto()
    ENDIF = auto()
    EXTENT = auto()
    THREAD = auto()
    SHARED = auto()
    BARRIER = auto()
    ACROSS = auto()
    MMA = auto()
    MATRICES = auto()
    COPY = auto()
    COMMIT = auto()
    WAIT = auto()
    WGMMA = auto()
    WGMMA_FENCE = auto()
    WGMMA_COMMIT = auto()
    WGMMA_WAIT = auto()
    PROXY_FENCE = auto()
    TILE_ZERO = auto()
    TILE_LOAD = auto()
    TILE_DOT = auto()
    TILE_STORE = auto()


@dataclass(frozen=True, eq=False, slots=True)
class UOp:
    """One instruction. `lanes` 1 is a scalar.

    `dtype` None is no value (a pointer has its elements' dtype).
    """

    op: UOps
    dtype: DType | None = None
    lanes: int = 1
    src: tuple[UOp, ...] = ()
    arg: Any = None


GUARDED = "guarded"
"""The arg of a LOAD or STORE of several lanes on a CPU whose mask is the SPLAT of one condition.

Without any lane it takes about a microsecond if its page is not there. So it has to be at the
beginning of the buffer then.
"""
POINTERS = frozenset({UOps.PARAM, UOps.LOCAL, UOps.SHARED})
_COPYING = frozenset({UOps.COPY, UOps.COMMIT, UOps.WAIT})
_OF_WARP_GROUPS = frozenset(
    {UOps.WGMMA_FENCE, UOps.WGMMA_COMMIT, UOps.WGMMA_WAIT, UOps.PROXY_FENCE}
)
OF_TILES = frozenset({UOps.TILE_ZERO, UOps.TILE_LOAD, UOps.TILE_DOT, UOps.TILE_STORE})
NO_VALUE = (
    _COPYING
    | _OF_WARP_GROUPS
    | OF_TILES
    | {
        *(
            UOps.STORE,
            UOps.PREFETCH,
            UOps.SET,
            UOps.END,
            UOps.IF,
            UOps.ENDIF,
            UOps.EXTENT,
            UOps.BARRIER,
        )
    }
)
_OF_BLOCKS = (_COPYING | _OF_WARP_GROUPS) | {
    *(UOps.THREAD, UOps.SHARED, UOps.BARRIER, UOps.ACROSS, UOps.MMA, UOps.MATRICES, UOps.WGMMA)
}
_SHARED_ALIGNMENT = 16  # bytes, the widest access of a thread
_GROUP_BYTES = 1024  # bytes of eight lines, whose order products by warp groups tell by addresses
_INDICES = (dtypes.int32, dtypes.int64)


class ProgramError(AssertionError):
    """A program that breaks the rules of the IR: a mistake in the compiler, never in the user's
    code.
    """


def verify(uops: Sequence[UOp]) -> None:
    """Check a program.

    The first UOps, up to EXTENT, may only be VALUE, CONST, ALU: they compute the number of chunks
    (`EXTENT.src[0]`, scalar int64). Its arg is the number of threads that do a chunk together.

    Raises:
        ProgramError: an operand comes too late, a loop is not closed, lanes or dtypes do not fit.
    """
    seen: set[UOp] = set()
    open_blocks: list[UOp] = []
    for position, u in enumerate(uops):
        for s in u.src:
            if s not in seen:
                raise ProgramError(f"{position}: {u.op.name} uses {s.op.name} before it is defined")
        problem = _problem(u, open_blocks)
        if problem:
            raise ProgramError(f"{position}: {u.op.name}: {problem}")
        seen.add(u)
    if open_blocks:
        raise ProgramError(f"{len(open_blocks)} loops or ifs are not closed")
    extents = [u for u in uops if u.op is UOps.EXTENT]
    if len(extents) != 1:
        raise ProgramError("a program has exactly one EXTENT")
    if extents[0].arg is None and any(u.op in _OF_BLOCKS for u in uops):
        raise ProgramError("one thread alone has no index, no barrier and no shared memory")


def _problem(u: UOp, open_blocks: list[UOp]) -> str:
    match u.op:
        case UOps.LOOP | UOps.IF:
            open_blocks.append(u)
        case UOps.END | UOps.ENDIF:
            if not open_blocks or open_blocks.pop() is not u.src[0]:
                return "closes something that is not the innermost open block"
        case UOps.ALU:
            return _alu_problem(u)
        case UOps.MMA:
            return _mma_problem(u)
        case UOps.MATRICES:
            return _matrices_problem(u)
        case UOps.COPY:
            return _copy_problem(u)
        case UOps.TILE_ZERO | UOps.TILE_LOAD | UOps.TILE_DOT | UOps.TILE_STORE:
            return _tile_problem(u)
        case UOps.WGMMA:
            return _wgmma_problem(u)
        case UOps.WAIT | UOps.WGMMA_WAIT if not isinstance(u.arg, int) or u.arg < 0:
            return f"waits for all but {u.arg} groups; that is a number from 0 on"
        case UOps.LOAD:
            return _load_problem(u)
        case UOps.STORE:
            return _store_problem(u)
        case UOps.PREFETCH if u.src[0].op is not UOps.PARAM:
            return "fetches from no buffer"
        case UOps.PREFETCH if u.src[1].dtype not in _INDICES or u.src[1].lanes != 1:
            return "the index must be a scalar, int32 or int64"
        case UOps.SET if u.src[0].op is not UOps.REG:
            return "the first operand is no register"
        case UOps.SET if (u.src[0].dtype, u.src[0].lanes) != (u.src[1].dtype, u.src[1].lanes):
            return "the value does not fit the register"
        case UOps.SPLAT if u.src[0].lanes != 1:
            return "splats a vector"
        case UOps.CAST if u.lanes != u.src[0].lanes:
            return "changes the lanes"
        case UOps.BITCAST if _bits(u) != _bits(u.src[0]):
            return f"makes {_bits(u)} bits of {_bits(u.src[0])}"
        case UOps.HREDUCE if u.lanes != 1 or u.src[0].lanes & (u.src[0].lanes - 1):
            return "needs a vector of a power of two and gives a scalar"
        case UOps.ACROSS if (u.dtype, u.lanes) != (u.src[0].dtype, u.src[0].lanes):
            return "changes the dtype or the lanes"
        case UOps.ACROSS if any(n < 1 or n & (n - 1) for n in u.arg[1:]):
            return f"combines {u.arg[1]} threads, {u.arg[2]} apart; both numbers are powers of two"
        case _:
            pass
    return ""


def _bits(u: UOp) -> int:
    assert u.dtype is not None
    return u.lanes * u.dtype.bits


def _alu_problem(u: UOp) -> str:
    if any(s.lanes != u.lanes for s in u.src):
        return f"{u.arg.name}: lanes differ: {[s.lanes for s in u.src]} for {u.lanes}"
    if u.arg is ExprOp.DOT:
        kinds = [s.dtype for s in (*u.src, u)]
        of_pairs = kinds == [dtypes.uint32] * 2 + [dtypes.float32] * 2
        of_bytes = kinds[2:] == [dtypes.int32] * 2 and {*kinds[:2]} <= {dtypes.int32, dtypes.uint32}
        wanted = "two uint32 and a float32, or two integers of 32 bits and an int32"
        return "" if of_pairs or of_bytes else f"DOT: takes {wanted}, and gives one; not {kinds}"
    if u.arg is ExprOp.TF32 and u.dtype is not dtypes.float32:
        return f"TF32: rounds float32, not {u.dtype}"
    if u.arg is ExprOp.NEAR_EXP2 and u.dtype is not dtypes.float32:
        return f"NEAR_EXP2: computes in float32, not {u.dtype}"
    if u.arg is ExprOp.POPCOUNT and u.src[0].dtype is not dtypes.uint32:
        return f"POPCOUNT: counts the bits of a uint32, not of a {u.src[0].dtype}"
    operands = u.src[1:] if u.arg is ExprOp.WHERE else u.src
    if u.arg in (ExprOp.SHL, ExprOp.SHR):
        operands = u.src[:1]
    if len({s.dtype for s in operands}) > 1:
        return f"{u.arg.name}: dtypes differ: {[s.dtype for s in operands]}"
    expected = dtypes.bool if u.arg in COMPARISONS else operands[0].dtype
    if u.dtype is not expected:
        return f"{u.arg.name}: gives {expected}, not {u.dtype}"
    return ""


def _mma_problem(u: UOp) -> str:
    source, shapes = u.src[0].dtype, [(s.dtype, s.lanes) for s in (*u.src, u)]
    intrinsic = matrix_intrinsic(source)
    if intrinsic is None:
        return f"multiplies float16, bfloat16, or float32 rounded to tf32, not {source}"
    left, right, result = intrinsic.held
    of_results = (intrinsic.result_dtype, result)
    if shapes != [(source, left), (source, right), of_results, of_results]:
        return (
            f"takes {left} and {right} elements and {result} float32, and gives {result} float32; "
            f"not {shapes}"
        )
    if intrinsic.rounds and not all(_is_rounded(s) for s in u.src[:2]):
        return f"multiplies {source} that is not rounded to tf32"
    return ""


def _wgmma_problem(u: UOp) -> str:
    *left, right, beside, before = u.src
    held = (left[0].dtype, left[0].lanes) == (right.dtype, WGMMA.held[0])
    pointers = [right] if len(left) == 1 else [left[0], right]
    shared = all(p.op is UOps.SHARED and p.dtype is right.dtype for p in pointers)
    if not shared or right.dtype not in WGMMA.sources or (len(left) == 1 and not held):
        return "multiplies float16 or bfloat16 in memory that the block shares, or held on the left"
    indices = [*left[1:], beside]
    if any(index.dtype not in _INDICES or index.lanes != 1 for index in indices):
        return "an index must be int32 or int64, a scalar"
    shape = (WGMMA.result_dtype, u.lanes)
    if (u.dtype, u.lanes) != shape or (before.dtype, before.lanes) != shape:
        return f"adds to {u.lanes} float32"
    if u.lanes % 4 or not 4 <= u.lanes <= WGMMA_COLUMNS // 2:
        return f"gives 4 to {WGMMA_COLUMNS // 2} of them, 4 for each 8 columns; not {u.lanes}"
    return ""


def _is_rounded(u: UOp) -> bool:
    """True if all lanes are rounded to tf32."""
    if u.op is UOps.SHUFFLE:
        return all(_is_rounded(s) for s in u.src)
    return u.op is UOps.ALU and u.arg is ExprOp.TF32


def _matrices_problem(u: UOp) -> str:
    pointer, index = u.src
    if pointer.op is not UOps.SHARED or pointer.dtype is not u.dtype or _bits(u) != 128:
        return "loads 16 bytes for each thread from memory that the block shares"
    if u.dtype is None or u.dtype.itemsize not in ((2,) if u.arg else (2, 4)):
        return "loads elements of 16 bits, or, as they lie there, of 32"
    if index.dtype not in _INDICES or index.lanes != 1:
        return "the index must be int32 or int64, a scalar"
    return ""


def _copy_problem(u: UOp) -> str:
    to, to_index, source, index, mask, *only_if = u.src
    if to.op is not UOps.SHARED or source.op is not UOps.PARAM or to.dtype is not source.dtype:
        return "copies from a buffer to memory that the block shares, of its dtype"
    if any(i.dtype not in _INDICES or i.lanes not in (1, u.lanes) for i in (to_index, index)):
        return "an index must be int32 or int64, scalar or one for each lane"
    if mask.dtype is not dtypes.bool or mask.lanes != u.lanes:
        return "the mask must be bool, one for each lane"
    if any(condition.dtype is not dtypes.bool or condition.lanes != 1 for condition in only_if):
        return "the condition must be bool, a scalar"
    return ""


def _tile_problem(u: UOp) -> str:
    numbers = u.arg if u.op is UOps.TILE_DOT else u.arg[:1]
    if any(not 0 <= number < TILE.registers for number in numbers):
        return f"there is no tile register {numbers}; they are 0 to {TILE.registers - 1}"
    if u.op in (UOps.TILE_ZERO, UOps.TILE_DOT):
        return "" if not u.src else "takes tile registers only"
    pointer, index = u.src
    if pointer.op not in (UOps.PARAM, UOps.LOCAL) or pointer.dtype is None:
        return "the rows of a tile are in a buffer or in scratch"
    if index.dtype not in _INDICES or index.lanes != 1:
        return "the index must be int32 or int64, a scalar"
    return ""


def _load_problem(u: UOp) -> str:
    pointer, index, *mask = u.src
    if pointer.op not in POINTERS or pointer.dtype is not u.dtype:
        return "does not load the pointer's elements"
    return _access_problem(index, mask, u.lanes)


def _store_problem(u: UOp) -> str:
    pointer, index, value, *mask = u.src
    if pointer.op not in POINTERS or pointer.dtype is not value.dtype:
        return "does not store the pointer's elements"
    return _access_problem(index, mask, value.lanes)


def _access_problem(index: UOp, mask: Sequence[UOp], lanes: int) -> str:
    if index.dtype not in _INDICES or index.lanes not in (1, lanes):
        return "the index must be int32 or int64, scalar or one for each lane"
    if mask and (mask[0].dtype is not dtypes.bool or mask[0].lanes != lanes):
        return "the mask must be bool, one for each lane"
    return ""


def shared_alignment(uops: Sequence[UOp]) -> int:
    """The multiple of bytes at which each SHARED of a program begins."""
    together = any(u.op is UOps.WGMMA for u in uops)
    return _GROUP_BYTES if together else _SHARED_ALIGNMENT


def shared_to_ask_for(uops: Sequence[UOp], target: Target) -> int:
    """The bytes of shared memory that a kernel has to ask for at its launch, for all of its SHARED.

    0 if they fit the memory that every kernel has, beside what each thread needs for ACROSS.
    """
    if target.static_shared_bytes is None:
        return 0
    sizes = [u.arg[1] * u.dtype.itemsize for u in uops if u.op is UOps.SHARED and u.dtype]
    multiple = shared_alignment(uops)
    total = sum(-(-size // multiple) * multiple for size in sizes)
    scratch = min(MAX_ACCESS_BYTES * target.block_threads, COMBINING_BYTES)
    scratch = scratch if any(u.op is UOps.ACROSS for u in uops) else 0
    return total if total + scratch > target.static_shared_bytes else 0


def show(uops: Sequence[UOp]) -> str:
    """The program as text, a line for each UOp."""
    names = {u: f"%{i}" for i, u in enumerate(uops)}
    depth = 0
    lines = []
    for u in uops:
        if u.op in (UOps.END, UOps.ENDIF):
            depth -= 1
        kind = "" if u.dtype is None else u.dtype.name + (f"x{u.lanes}" if u.lanes > 1 else "")
        arg = "" if u.arg is None else (u.arg.name if isinstance(u.arg, ExprOp) else repr(u.arg))
        operands = ", ".join(names[s] for s in u.src)
        target = f"{names[u]} = " if u.op not in NO_VALUE else ""
        lines.append(f"{'  ' * depth}{target}{u.op.name} {kind} {arg} {operands}".rstrip())
        if u.op in (UOps.LOOP, UOps.IF):
            depth += 1
    return "\n".join(lines)
