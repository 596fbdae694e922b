"""The names of things in C, CUDA C and OpenCL C: one record for each, and the types and constants.

The text of a kernel is nearly the same in all of them, since each file begins with the same names
for the integer types. A dtype in a variable and in memory:

| dtype | variable | memory |
|---|---|---|
| bool | bool | u8, 0 or 1 |
| integers | i8 to i64, u8 to u64 | the same |
| float32, float64 | float, double | the same |
| float16, bfloat16, float8 | their bits, u16 or u8: nothing but moves and casts | the same |
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import field
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import STORAGE_ONLY, quiet, storage_bits


@final
@dataclass(frozen=True)
class Dialect:
    """A language of the C family. Qualifiers end with a space unless they are empty."""

    name: str
    header: str
    """The beginning of each file."""
    flags: tuple[str, ...]
    """The compiler's flags, so that the numbers are the interpreter's."""
    function: str
    """The qualifiers of a helper function."""
    aligned: str = "__attribute__((aligned({bytes}))) "
    """The alignment of a variable or a struct, `{bytes}`."""
    restrict: str = "restrict "
    float_suffix: str = "f"
    """The suffix of a mathematical function on float."""
    has_blocks: bool = True
    kernel: str = ""
    launch: str = ""
    """The limit of `{threads}` in a block of the kernel."""
    block: str = ""
    """The block's number."""
    thread: str = ""
    """The number of this thread in its block."""
    barrier: str = ""
    after_waiting: str = ""
    """The statement after a loop or a condition in which the threads wait for each other."""
    device: str = ""
    """The qualifier of a type in the memory of buffers."""
    shared: str = ""
    """The qualifier of a type in the memory that a block shares."""
    shared_at_launch: str = ""
    """The declaration of `shared`, the bytes that a launch asks for."""
    to_shared: str = ""
    """The qualifier of the type that a pointer to shared memory points to."""
    exchange: str = ""
    """The value `{x}` of the thread whose number differs by `{distance}`, in `{mask}` of a warp."""
    copy: str = ""
    """The statement that begins to copy `{bytes}` bytes to `to` from `source`, or zeros unless
    `valid`.
    """
    commit: str = ""
    """The statement that makes the copies begun since the last such statement a group."""
    wait: str = ""
    """The statement that waits for the copies of all groups but the newest `{groups}`."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """The names of the language's own functions, if they differ from C's."""
    instructions: Mapping[str, str] = field(default_factory=dict)
    """The statements of helper functions that are one instruction; see `prelude.py`."""
    instructions_if: str = ""
    """The condition under which the compiler knows these."""


CAN_OVERFLOW: Final = frozenset({ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.MULACC, ExprOp.NEG})
"""The operations on integers that may overflow, which C leaves undefined for signed ones."""
CORRECT_ROUNDING: Final = "-cl-fp32-correctly-rounded-divide-sqrt"
"""The flag of OpenCL's compiler for exact divisions and roots, which not every device has."""

_INTEGERS = """typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;"""

C: Final = Dialect(
    name="C",
    header=f"#include <math.h>\n#include <stdbool.h>\n\n{_INTEGERS}",
    flags=("-std=c11", "-O1", "-ffp-contract=off", "-fno-strict-aliasing"),
    function="static inline ",
    has_blocks=False,
)


def _two(pair: str) -> str:
    """Round two numbers, the first to the lower half."""
    return f'u32 z;\nasm("cvt.rn.{pair}.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));\nreturn z;'


def _one_of_two(pair: str) -> str:
    """Round by the instruction for two numbers: GPUs do four of these in the time of one other."""
    rounded = f'asm("cvt.rn.{pair}.f32 %0, %1, %2;" : "=r"(y) : "f"(0.0f), "f"(x));'
    return f"u32 y;\n{rounded}\nreturn (u16)y;"


CUDA: Final = Dialect(
    name="CUDA C",
    header=_INTEGERS,
    flags=("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
    function="static __device__ __forceinline__ ",
    aligned="alignas({bytes}) ",
    restrict="__restrict__ ",
    kernel='extern "C" __global__ void ',
    launch="__launch_bounds__({threads}{blocks}) ",
    block="(i32)blockIdx.x",
    thread="(i32)threadIdx.x",
    barrier="__syncthreads();",
    shared="__shared__ ",
    shared_at_launch=(
        "#ifdef FERRULE_SHIM\nu8 *const shared = fake_shared();\n#else\n"
        "extern __shared__ __align__({bytes}) u8 shared[];\n#endif"
    ),
    exchange="__shfl_xor_sync({mask}, {x}, {distance})",
    copy=(
        'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {bytes}, %2;"\n'
        '    :: "r"((u32)__cvta_generic_to_shared(to)), "l"(source), "r"(valid ? {bytes} : 0));'
    ),
    commit='asm volatile("cp.async.commit_group;");',
    wait='asm volatile("cp.async.wait_group {groups};" ::: "memory");',
    instructions={
        "count_bits": "return __popc(x);",
        "across_or_u32_32x1": "return __reduce_or_sync(0xffffffffu, x);",
        "float_of_f16": 'float y;\nasm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));\nreturn y;',
        "f16x2_of_floats": _two("f16x2"),
        "bf16x2_of_floats": _two("bf16x2"),
        "f16_of_float": _one_of_two("f16x2"),
        "bf16_of_float": _one_of_two("bf16x2"),
        "near_exp2": 'float y;\nasm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));\nreturn y;',
        "tf32_of_float": (
            'u32 y;\nasm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));\nreturn float_of_bits(y);'
        ),
    },
    instructions_if="!defined(FERRULE_SHIM) && __CUDA_ARCH__ >= 800",
)

_OPENCL_BARRIER: Final = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"

OPENCL: Final = Dialect(
    name="OpenCL C",
    header="""#pragma OPENCL FP_CONTRACT OFF

typedef char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;""",
    flags=("-cl-std=CL1.2", CORRECT_ROUNDING),
    # PoCL 3.1 runs barriers wrongly, now and then, in a function that it does not inline.
    function="static inline __attribute__((always_inline)) ",
    float_suffix="",
    kernel="__kernel ",
    launch="__attribute__((reqd_work_group_size({threads}, 1, 1))) void ",
    block="(i32)get_group_id(0)",
    thread="(i32)get_local_id(0)",
    barrier=_OPENCL_BARRIER,
    # PoCL 3.1 mixes up the values of variables if other code follows: in another such loop they are
    # wrong, and a later store loses its mask.
    after_waiting=_OPENCL_BARRIER,
    device="__global ",
    shared="__local ",
    to_shared="__local ",
)


def symbol(name: str) -> str:
    """A kernel's name as these languages allow it: letters, digits and `_`.

    >>> symbol("sum_4x4.extent")
    'sum_4x4_extent'
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def type_of(dtype: DType) -> str:
    """The type of a variable."""
    if dtype is dtypes.float32 or dtype is dtypes.float64:
        return "float" if dtype is dtypes.float32 else "double"
    if dtype is dtypes.bool:
        return "bool"
    unsigned = dtype in STORAGE_ONLY or dtypes.is_unsigned(dtype)
    return f"{'u' if unsigned else 'i'}{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The type of an element in memory."""
    return "u8" if dtype is dtypes.bool else type_of(dtype)


def bits_type(dtype: DType) -> str:
    """The unsigned integer of as many bits."""
    return f"u{dtype.bits}"


def literal(dtype: DType, value: float) -> str:
    """A constant that can be an operand; infinities and NaN are none (`is_special`)."""
    if dtype is dtypes.bool:
        return "true" if value else "false"
    if dtype in STORAGE_ONLY:
        return f"{storage_bits(dtype, value):#x}"
    if dtypes.is_float(dtype):
        return _real_literal(dtype, float(value))
    return _integer_literal(dtype, int(value))


def is_special(dtype: DType, value: float) -> bool:
    """True if a constant is an infinity or NaN of a dtype with arithmetic."""
    return dtypes.is_float(dtype) and dtype not in STORAGE_ONLY and not math.isfinite(value)


def special_bits(dtype: DType, value: float) -> str:
    """The bits of an infinity, or of the quiet NaN of the same sign."""
    return f"{storage_bits(dtype, quiet(value)):#x}u"


def _integer_literal(dtype: DType, value: int) -> str:
    wrapped = value & ((1 << dtype.bits) - 1)
    if dtypes.is_unsigned(dtype):
        return f"(u64){wrapped}u" if dtype is dtypes.uint64 else f"{wrapped}u"
    if not wrapped >> (dtype.bits - 1):
        return str(wrapped)
    negative = wrapped - (1 << dtype.bits)
    # The smallest has no literal: there is no such positive number.
    smallest = -(1 << (dtype.bits - 1))
    return f"({smallest + 1} - 1)" if negative == smallest else f"({negative})"


def _real_literal(dtype: DType, value: float) -> str:
    """The shortest decimal number that is rounded to the value."""
    code, suffix = ("f", "f") if dtype is dtypes.float32 else ("d", "")
    bits = struct.pack(code, value)
    texts = (f"{value:.{digits}g}" for digits in range(6, 18))
    text = next(t for t in texts if _packed(code, float(t)) == bits)
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"


def _packed(code: str, value: float) -> bytes | None:
    """The bits of a number; None if a decimal close to the largest is already too large."""
    try:
        return struct.pack(code, value)
    except OverflowError:
        return None
