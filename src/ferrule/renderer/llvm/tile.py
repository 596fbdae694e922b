"""Tile registers in LLVM IR: AMX.

Registers are numbers in the instructions. A thread configures their shape before it uses them, and
releases them when it is done: until then the system saves their 8 KiB whenever it interrupts the
thread.
"""

from __future__ import annotations

from ferrule.codegen.intrinsics import TILE
from ferrule.codegen.uops import UOp, UOps
from ferrule.renderer.base import RenderError, dtype_of
from ferrule.renderer.llvm.value import Code

_ROW_BYTES = 64
_PALETTE = 1
_ROW_BYTES_AT, _ROWS_AT, _CONFIGURATION_BYTES = 16, 48, 64  # offsets and size of the configuration

_NAMES = {
    UOps.TILE_ZERO: "tilezero",
    UOps.TILE_LOAD: "tileloadd64",
    UOps.TILE_DOT: TILE.name,
    UOps.TILE_STORE: "tilestored64",
}


def configuration() -> bytes:
    """The operand of LDTILECFG: all registers have 16 rows of 64 bytes."""
    out = bytearray(_CONFIGURATION_BYTES)
    out[0] = _PALETTE
    for n in range(TILE.registers):
        out[_ROW_BYTES_AT + 2 * n] = _ROW_BYTES
        out[_ROWS_AT + n] = TILE.rows
    return bytes(out)


def configure(code: Code) -> None:
    """Configure the tile registers of this thread.

    Raises:
        RenderError: the target has none.
    """
    if not TILE.is_native(code.target):
        raise RenderError(
            f"products in tile registers: {code.target.name} has none; they take "
            f"{sorted(TILE.needs)}"
        )
    values = ", ".join(f"i8 {byte}" for byte in configuration())
    kind = f"[{_CONFIGURATION_BYTES} x i8]"
    code.needed.add(f"@tiles = internal constant {kind} [{values}], align 64")
    code.call("llvm.x86.ldtilecfg", "void", ("ptr", "@tiles"))


def release(code: Code) -> None:
    """Release the tile registers."""
    code.call("llvm.x86.tilerelease", "void")


def add(code: Code, u: UOp, address: str) -> None:
    """Emit one of the UOps of tile registers."""
    numbers, place = u.arg, []
    if u.src:
        *numbers, stride = u.arg
        place = [("ptr", address), ("i64", stride * dtype_of(u.src[0]).itemsize)]
    registers = [("i8 immarg", number) for number in numbers]
    code.call(f"llvm.x86.{_NAMES[u.op]}", "void", *registers, *place)
