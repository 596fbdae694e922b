"""Features of processors, as native code asks for them when an exported program is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

X86: Final[Mapping[str, tuple[int, int, int, int]]] = {
    # The leaf and the part of `cpuid` that has it, the register (a, b, c, d), and the bit.
    "sse3": (1, 0, 2, 0),
    "ssse3": (1, 0, 2, 9),
    "fma": (1, 0, 2, 12),
    "sse4.1": (1, 0, 2, 19),
    "sse4.2": (1, 0, 2, 20),
    "popcnt": (1, 0, 2, 23),
    "osxsave": (1, 0, 2, 27),
    "avx": (1, 0, 2, 28),
    "f16c": (1, 0, 2, 29),
    "bmi": (7, 0, 1, 3),
    "avx2": (7, 0, 1, 5),
    "bmi2": (7, 0, 1, 8),
    "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17),
    "avx512ifma": (7, 0, 1, 21),
    "avx512cd": (7, 0, 1, 28),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx512vbmi": (7, 0, 2, 1),
    "avx512vbmi2": (7, 0, 2, 6),
    "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12),
    "avx512vpopcntdq": (7, 0, 2, 14),
    "amx-bf16": (7, 0, 3, 22),
    "avx512fp16": (7, 0, 3, 23),
    "amx-tile": (7, 0, 3, 24),
    "amx-int8": (7, 0, 3, 25),
    "avxvnni": (7, 1, 0, 4),
    "avx512bf16": (7, 1, 0, 5),
    "lzcnt": (0x80000001, 0, 2, 5),
}
"""The bits of `cpuid`."""
_X86_REGISTERS: Final = {"avx512": 0xE6, "amx": 0x60006, "avx": 6}
"""The bits of the register XCR0 by which the system says that it saves the registers."""
_ARM: Final[Mapping[str, tuple[int, int]]] = {
    # The entry of the auxiliary vector, and the bit.
    "lse": (16, 8),
    "fullfp16": (16, 10),
    "dotprod": (16, 20),
    "sve": (16, 22),
    "sve2": (26, 1),
    "i8mm": (26, 13),
    "bf16": (26, 14),
}

_ASK: Final = '{ i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},0,2"'
_X86_IR: Final = """
define internal i32 @cpuid(i32 %leaf, i32 %part, i32 %register) nounwind {
  %base = and i32 %leaf, -2147483648
  %m = call $ASK(i32 %base, i32 0)
  %most = extractvalue { i32, i32, i32, i32 } %m, 0
  %r = call $ASK(i32 %leaf, i32 %part)
  %a = extractvalue { i32, i32, i32, i32 } %r, 0
  %b = extractvalue { i32, i32, i32, i32 } %r, 1
  %c = extractvalue { i32, i32, i32, i32 } %r, 2
  %d = extractvalue { i32, i32, i32, i32 } %r, 3
  %is_a = icmp eq i32 %register, 0
  %is_b = icmp eq i32 %register, 1
  %is_c = icmp eq i32 %register, 2
  %cd = select i1 %is_c, i32 %c, i32 %d
  %bcd = select i1 %is_b, i32 %b, i32 %cd
  %value = select i1 %is_a, i32 %a, i32 %bcd
  %known = icmp ule i32 %leaf, %most
  %found = select i1 %known, i32 %value, i32 0
  ret i32 %found
}

; The registers that the system saves; none if it has no say in it.
define internal i32 @saved_registers() nounwind {
entry:
  %word = call i32 @cpuid(i32 1, i32 0, i32 2)
  %bit = and i32 %word, 134217728
  %has = icmp ne i32 %bit, 0
  br i1 %has, label %ask, label %none
ask:
  %r = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue { i32, i32 } %r, 0
  ret i32 %low
none:
  ret i32 0
}
"""
_TILES_IR: Final = """
declare i64 @syscall(i64, ...)

; Linux saves the registers for tiles only if it is asked to.
define internal i1 @may_use_tiles() nounwind {
  %failed = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %granted = icmp eq i64 %failed, 0
  ret i1 %granted
}
"""
_ARM_IR: Final = "\ndeclare i64 @getauxval(i64)\n"


def names_of(features: str) -> list[str]:
    """The names in a text such as `+avx2,+fma`."""
    return [name.removeprefix("+") for name in features.split(",") if name]


def helpers(arch: str, features: list[str]) -> str:
    """The functions that `checks` calls for these features, as LLVM IR."""
    if arch != "x86-64":
        return _ARM_IR if any(name in _ARM for name in features) else ""
    tiles = _TILES_IR if any(name.startswith("amx") for name in features) else ""
    return _X86_IR.replace("$ASK", _ASK) + tiles


def checks(arch: str, features: list[str]) -> list[tuple[list[str], str]]:
    """LLVM IR that asks for features: lines, each list with the name of a bit that has to be 1.

    Raises `KeyError` for a feature that it does not know.
    """
    found: list[tuple[list[str], str]] = []
    if arch != "x86-64":
        for name in features:
            if name == "neon":
                continue
            entry, bit = _ARM[name]
            found.append(_masked(f"call i64 @getauxval(i64 {entry})", "i64", 1 << bit, name))
        return found
    words: dict[tuple[int, int, int], int] = {}
    for name in features:
        *place, bit = X86[name]
        key = (place[0], place[1], place[2])
        words[key] = words.get(key, 0) | 1 << bit
    for (leaf, part, register), mask in words.items():
        ask = f"call i32 @cpuid(i32 {leaf}, i32 {part}, i32 {register})"
        found.append(_masked(ask, "i32", mask, f"{leaf}.{part}.{register}"))
    needed = 0
    for start, mask in _X86_REGISTERS.items():
        if any(name.startswith(start) for name in features):
            needed |= mask
    if needed:
        found.append(_masked("call i32 @saved_registers()", "i32", needed, "saved"))
    if any(name.startswith("amx") for name in features):
        found.append((["  %tiles = call i1 @may_use_tiles()"], "%tiles"))
    return found


def _masked(ask: str, kind: str, mask: int, name: str) -> tuple[list[str], str]:
    lines = [
        f'  %"{name}" = {ask}',
        f'  %"{name}.bits" = and {kind} %"{name}", {mask}',
        f'  %"{name}.all" = icmp eq {kind} %"{name}.bits", {mask}',
    ]
    return lines, f'%"{name}.all"'
