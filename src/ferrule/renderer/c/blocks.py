"""The cooperation of a block's threads in C: combined values (`UOps.ACROSS`), matrices, and
asynchronous copies to shared memory.

The order of combining is that of HREDUCE: the lower half of a group of threads with the upper, and
so on. The threads of a warp exchange their values directly if the language can do that; others use
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, final

from ferrule.codegen.intrinsics import COPIED_BYTES, MMA_TF32, WGMMA, matrix_intrinsic
from ferrule.codegen.kernel import COMBINING_BYTES, MAX_ACCESS_BYTES
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import dtype_of
from ferrule.renderer.c.alu import Arithmetic, alu, cast
from ferrule.renderer.c.dialect import memory_type, type_of
from ferrule.renderer.c.prelude import (
    SHIM,
    Helper,
    Prelude,
    bits_of,
    either,
    lanes_of,
    of_bits,
    struct,
)

_COMMUTES: Final = frozenset({ExprOp.ADD, ExprOp.MUL, ExprOp.AND, ExprOp.OR, ExprOp.XOR})
_WARP_GROUPS_IF: Final = f"!{SHIM} && defined(__CUDA_ARCH_FEAT_SM90_ALL)"
_NAMES: Final = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}
# The types that a warp can exchange; narrower values go as integers.
_EXCHANGED: Final = frozenset({"i32", "u32", "i64", "u64", "float", "double"})


@final
class Across:
    """The way in which the `threads` of a block combine their values of an ACROSS; `warp`
    neighbours run in step.
    """

    def __init__(self, prelude: Prelude, u: UOp, threads: int, warp: int) -> None:
        self.op, self.count, self.step = u.arg
        self.prelude = prelude
        dtype = dtype_of(u)
        self.kind = type_of(dtype)
        self.arithmetic = Arithmetic(prelude, dtype, self.kind)
        self.span = self.count * self.step
        """The number of adjacent threads that contain those of a group."""
        # An incomplete last warp would need a mask of its own.
        full = threads < warp or threads % warp == 0
        self.in_step = min(self.span, warp) if full else 1
        """The number of adjacent threads that exchange their values directly."""
        self.mask = f"{(1 << min(warp, threads)) - 1:#x}u"
        self.needs_memory = self.in_step < self.span
        self.lanes = 1
        """The lanes that are combined in one go. If barriers take the time, those of one access."""
        if self.needs_memory:
            room = min(MAX_ACCESS_BYTES, COMBINING_BYTES // threads) // dtype.itemsize
            self.lanes = max(1, math.gcd(u.lanes, room))
        self.kept = prelude.vector(memory_type(dtype), self.lanes)
        """The type of an element of the array in shared memory, one for each thread."""

    def helper(self) -> Helper:
        """The function that combines the threads' values: `(x, thread)` or `(x, thread, scratch)`.

        It takes `lanes` lanes of x; of several it returns a struct. `scratch` has an element for
        each thread of the block, and can be used again afterwards.
        """
        names = ["x"] if self.lanes == 1 else [f"x{lane}" for lane in range(self.lanes)]
        lines, parameters = [], [*(f"{self.kind} {x}" for x in names), "i32 thread"]
        if self.needs_memory:
            parameters.append(f"{self.prelude.dialect.to_shared}{self.kept} *scratch")
            lines = self._by_memory(names)
        for distance in _halves(self.in_step, self.step):
            for x in names:
                lines += self._exchanged(distance, x)
        name = f"across_{self.op.name.lower()}_{self.kind}_{self.count}x{self.step}"
        result = self.kind
        if self.lanes == 1:
            lines.append("return x;")
        else:
            result = self.kept
            lines += [f"const {result} all = {struct(names)};", "return all;"]
            name += f"_of_{self.lanes}"
        return Helper(name, result, ", ".join(parameters), "\n".join(lines))

    def _combined(self, *pair: str) -> str:
        return alu(self.op, self.arithmetic, pair)

    def _by_memory(self, names: Sequence[str]) -> list[str]:
        """Combine the halves that are further apart than a warp."""
        barrier = self.prelude.dialect.barrier
        lanes = [""] if self.lanes == 1 else lanes_of("", self.lanes)
        lines = [f"const i32 place = thread % {self.span};"]
        lines += [f"scratch[thread]{lane} = {x};" for lane, x in zip(lanes, names, strict=True)]
        lines.append(barrier)
        least = max(self.in_step, self.step)
        for distance in _halves(self.span, least):
            places = [(f"scratch[thread]{e}", f"scratch[thread + {distance}]{e}") for e in lanes]
            new = [f"{pair[0]} = {self._combined(*pair)};" for pair in places]
            body = new[0] if len(new) == 1 else f"{{ {' '.join(new)} }}"
            lines += [f"if (place < {distance}) {body}", barrier]
        own = f" + place % {least}" if least > 1 else ""
        mine = f"scratch[thread - place{own}]"
        lines += [f"{x} = {mine}{lane};" for lane, x in zip(lanes, names, strict=True)]
        return [*lines, barrier]

    def _exchanged(self, distance: int, name: str) -> list[str]:
        """Emit one step inside a warp: both threads of a pair combine the same values in the same
        order.
        """
        is_direct = self.kind in _EXCHANGED
        x = name if is_direct else f"(i32){name}"
        other = self.prelude.dialect.exchange.format(mask=self.mask, x=x, distance=distance)
        theirs = f"other{name.removeprefix('x')}_{distance}"
        taken = f"const {self.kind} {theirs} = {other if is_direct else f'({self.kind}){other}'};"
        result = self._combined(name, theirs)
        if self.op not in _COMMUTES and self.arithmetic.is_real:
            result = f"thread & {distance} ? {self._combined(theirs, name)} : {result}"
        return [taken, f"{name} = {result};"]


def _halves(count: int, least: int) -> Iterator[int]:
    """The half of a number of threads, the half of that, and so on down to the least."""
    while count > least:
        count //= 2
        yield count


# The threads of a warp exchange the elements that they hold: an element of the result takes a row
# of the left matrix from four threads and a column of the right one from four others.
_MMA_BY_EXCHANGE: Final = """const i32 row = thread & 28, column = (thread & 3) * 8;
for (i32 term = 0; term < 16; term++) {{
  const i32 pair = term % 8 / 2, side = term / 8, odd = term % 2;
  for (i32 half = 0; half < 2; half++) {{
    const u16 x = (u16)__shfl_sync(0xffffffffu, (u32)a[side * 4 + half * 2 + odd], row + pair);
    for (i32 near = 0; near < 2; near++) {{
      const u16 y = (u16)__shfl_sync(0xffffffffu, (u32)b[side * 2 + odd], column + near * 4 + pair);
      c.lane[half * 2 + near] += {left} * {right};
    }}
  }}
}}"""
# The same for elements of 32 bits, of which the instruction takes the upper 19.
_MMA_TF32_BY_EXCHANGE: Final = """const i32 row = thread & 28, column = (thread & 3) * 8;
for (i32 term = 0; term < 8; term++) {
  const i32 place = term % 4, side = term / 4;
  for (i32 half = 0; half < 2; half++) {
    const u32 x = __shfl_sync(0xffffffffu, a[side * 2 + half], row + place);
    for (i32 near = 0; near < 2; near++) {
      const u32 y = __shfl_sync(0xffffffffu, b[side], column + near * 4 + place);
      c.lane[half * 2 + near] += float_of_bits(x & 0xFFFFE000u) * float_of_bits(y & 0xFFFFE000u);
    }
  }
}"""
_MMA_TF32_INSTRUCTION: Final = """\
asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(c.lane[0]), "+f"(c.lane[1]), "+f"(c.lane[2]), "+f"(c.lane[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));"""
_MMA_INSTRUCTION: Final = """const u32 a0 = a[0] | (u32)a[1] << 16, a1 = a[2] | (u32)a[3] << 16;
const u32 a2 = a[4] | (u32)a[5] << 16, a3 = a[6] | (u32)a[7] << 16;
const u32 b0 = b[0] | (u32)b[1] << 16, b1 = b[2] | (u32)b[3] << 16;
asm("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
    : "+f"(c.lane[0]), "+f"(c.lane[1]), "+f"(c.lane[2]), "+f"(c.lane[3])
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));"""


def mma(prelude: Prelude, source: DType) -> Helper:
    """The function that multiplies matrices by a warp: `(thread, elements of a, of b, of c)`."""
    by = matrix_intrinsic(source)
    assert by is not None, f"no matrices of {source}"
    result = prelude.vector("float", 4)
    a, b, c = ([f"{x}{i}_" for i in range(n)] for x, n in zip("abc", by.held, strict=True))
    needs: tuple[Helper, ...] = ()
    if by is MMA_TF32:
        kind, held, kept = "tf32", "float", "u32"
        instruction, exchange = _MMA_TF32_INSTRUCTION, _MMA_TF32_BY_EXCHANGE
        bits, needs = "bits_of_float({})", (bits_of("float"), of_bits("float"))
    else:
        kind, held, kept, bits = _NAMES[source], "u16", "u16", "{}"
        left, right = (cast(prelude, source, dtypes.float32, x) for x in ("x", "y"))
        instruction = _MMA_INSTRUCTION.format(kind=kind)
        exchange = _MMA_BY_EXCHANGE.format(left=left, right=right)
    body = [
        f"const {kept} a[{len(a)}] = {{{', '.join(map(bits.format, a))}}};",
        f"const {kept} b[{len(b)}] = {{{', '.join(map(bits.format, b))}}};",
        f"{result} c = {struct(c)};",
        either(prelude.dialect.instructions_if, instruction, otherwise=exchange),
        "return c;",
    ]
    parameters = [f"{held} {name}" for name in a + b] + [f"float {name}" for name in c]
    head = ", ".join(["i32 thread", *parameters])
    return Helper(f"mma_{kind}", result, head, "\n".join(body), needs)


# Each thread reads its rows and columns from swizzled memory, in pieces of 16 bytes. Elements that
# the threads of a row hold are exchanged among these.
_WGMMA_BY_THREADS: Final = """const i32 lane = thread % 32, first = {first};
for (i32 term = 0; term < 16; term++) {{
  for (i32 e = 0; e < {results}; e++) {{
    const i32 row = first + e / 2 % 2 * 8, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
    const u32 j = beside + {right};
    {left}
    const u16 y = b[j ^ (j >> 6 & 7) << 3];
    c.lane[e] += {x} * {y};
  }}
}}"""
_LEFT_IN_MEMORY: Final = "const u32 i = at + {left};\n    const u16 x = a[i ^ (i >> 6 & 7) << 3];"
_LEFT_HELD: Final = """const i32 held = term / 8 * 4 + row / 8 % 2 * 2 + term % 2;
    const u16 x = (u16)__shfl_sync(0xffffffffu, (u32)a[held], lane / 4 * 4 + term % 8 / 2);"""
_PLACE_OF_GROUPS: Final = "{row} / 64 * {distance} + term * 64 + {row} % 64"


def _place_in_lines(row: str, distance: int) -> str:
    """The distance of an element from an operand's first one, before swizzling."""
    if not distance:
        return f"{row} * 64 + term"
    return _PLACE_OF_GROUPS.format(row=row, distance=distance)


def _descriptor(name: str, place: str, distance: int) -> str:
    """The descriptor of an operand in shared memory: its address, and its layout in lines of 128
    bytes, eight to a group.

    https://docs.nvidia.com/cuda/parallel-thread-execution/, "Asynchronous warpgroup level matrix
    instructions", has the bits.
    """
    how = (distance * 2 >> 4) << 16 | 1024 >> 4 << 32 | 1 << 62
    address = f"((u32)__cvta_generic_to_shared({place}) & 0x3FFFF) >> 4"
    return f"const u64 {name} = (u64)({address}) | {how:#x}ull;"


def wgmma(prelude: Prelude, source: DType, results: int, layouts: tuple[int | None, int]) -> Helper:
    """The function by which four warps multiply from shared memory.

    Its parameters are `(thread, a, at, b, beside, elements of c)`, with the places of the first
    elements in the arrays a and b. If threads hold the left operand, they are `(thread, elements of
    a, b, beside, elements of c)`.
    """
    kind = _NAMES[source]
    result, (above, distance) = prelude.vector("float", results), layouts
    c = [f"c{i}_" for i in range(results)]
    x, y = (cast(prelude, source, dtypes.float32, name) for name in "xy")
    lines = [f"{result} c = {struct(c)};"]
    descriptors = [_descriptor("right", "b + beside", distance)]
    turned = [distance]
    if above is None:
        a = [f"a{i}_" for i in range(WGMMA.held[0])]
        parameters, first, taken = [f"u16 {name}" for name in a], "lane / 4", _LEFT_HELD
        lines.append(f"const u16 a[{len(a)}] = {{{', '.join(a)}}};")
        pairs = zip(a[::2], a[1::2], strict=True)
        inputs = [f'"r"({low} | (u32){high} << 16)' for low, high in pairs]
    else:
        parameters, first = ["const u16 *a", "i32 at"], "thread / 32 % 4 * 16 + lane / 4"
        taken = _LEFT_IN_MEMORY.format(left=_place_in_lines("row", above))
        descriptors.append(_descriptor("left", "a + at", above))
        turned, inputs = [above, distance], ['"l"(left)']
    number = results + len(inputs)
    named = [f"%{i}" for i in range(results, number)]
    operand = f"{{{', '.join(named)}}}" if above is None else named[0]
    outputs = ", ".join(f'"+f"(c.lane[{i}])' for i in range(results))
    registers = ", ".join(f"%{i}" for i in range(results))
    form = ", ".join(["1", "1", *(str(int(n > 0)) for n in turned)])
    shape = f"m64n{results * 2}k16.f32.{kind}.{kind}"
    instruction = [
        *descriptors,
        'asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\\n"',
        f'    "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, "',
        f'    "{operand}, %{number}, p, {form}; }}"',
        f'    : {outputs} : {", ".join(inputs)}, "l"(right));',
    ]
    by_threads = _WGMMA_BY_THREADS.format(
        first=first,
        results=results,
        left=taken,
        right=_place_in_lines("column", distance),
        x=x,
        y=y,
    )
    lines += [either(_WARP_GROUPS_IF, "\n".join(instruction), otherwise=by_threads), "return c;"]
    parameters += ["const u16 *b", "i32 beside", *(f"float {name}" for name in c)]
    layout = "held" if above is None else str(above)
    name = f"wgmma_{kind}_{results * 2}_{layout}_{distance}"
    return Helper(name, result, ", ".join(["i32 thread", *parameters]), "\n".join(lines))


_OF_WARP_GROUPS: Final = {
    UOps.WGMMA_FENCE: ("begin_products", "wgmma.fence.sync.aligned;"),
    UOps.WGMMA_COMMIT: ("commit_products", "wgmma.commit_group.sync.aligned;"),
    UOps.WGMMA_WAIT: ("wait_for_all_products_but_{}", "wgmma.wait_group.sync.aligned {};"),
    UOps.PROXY_FENCE: ("show_copies_to_products", "fence.proxy.async.shared::cta;"),
}


def of_warp_groups(u: UOp) -> Helper:
    """The function that orders products by warp groups.

    Without the instruction each thread computes by itself, and there is nothing to wait for.
    """
    name, instruction = (text.format(u.arg) for text in _OF_WARP_GROUPS[u.op])
    body = either(_WARP_GROUPS_IF, f'asm volatile("{instruction}" ::: "memory");')
    return Helper(name, "void", "void", body)


_MATRICES_INSTRUCTION: Final = """asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 "
    "{{%0, %1, %2, %3}}, [%4];"
    : "=r"(out.lane[0]), "=r"(out.lane[1]), "=r"(out.lane[2]), "=r"(out.lane[3])
    : "r"((u32)__cvta_generic_to_shared(row)) : "memory");"""
# Each thread tells the others the place of its row.
_MATRICES_BY_EXCHANGE: Final = """const i32 lane = thread % 32;
for (i32 matrix = 0; matrix < 4; matrix++) {{
  u32 pair = 0;
  for (i32 element = 0; element < 2; element++) {{
    const i32 near = lane / 4, far = lane % 4 * 2 + element;
    const u64 place = __shfl_sync(0xffffffffu, (u64)row, matrix * 8 + {row});
    pair |= (u32)((const u16 *)place)[{column}] << 16 * element;
  }}
  out.lane[matrix] = pair;
}}"""


def matrices(prelude: Prelude, turned: bool) -> Helper:
    """The function that loads four 8 x 8 matrices of 16 bits, two elements of each in a u32.

    Its parameters are `(thread, row)`, with the place of the row that the thread gives. The
    matrices may also have 8 x 4 elements of 32 bits.
    """
    result = prelude.vector("u32", 4)
    row, column = ("far", "near") if turned else ("near", "far")
    instruction = _MATRICES_INSTRUCTION.format(trans=".trans" if turned else "")
    exchange = _MATRICES_BY_EXCHANGE.format(row=row, column=column)
    body = [
        f"{result} out;",
        either(prelude.dialect.instructions_if, instruction, otherwise=exchange),
        "return out;",
    ]
    name = "matrices_turned" if turned else "matrices"
    return Helper(name, result, "i32 thread, const void *row", "\n".join(body))


def copy_ahead(prelude: Prelude, dtype: DType, lanes: int) -> Helper:
    """The function that begins to copy adjacent elements to shared memory: `(to, source, valid)`.

    Without an instruction for it, the copy is complete when it returns.
    """
    dialect, size = prelude.dialect, lanes * dtype.itemsize
    kind = prelude.vector(memory_type(dtype), lanes)
    zero = "*to = 0;"
    if lanes > 1:
        zero = f"for (i32 lane = 0; lane < {lanes}; lane++) to->lane[lane] = 0;"
    body = f"if (valid) *to = *source;\nelse {zero}"
    if dialect.copy and size in COPIED_BYTES:
        aligned = "" if lanes == 1 else " && !defined(FERRULE_UNALIGNED)"
        cache = "cg" if size == max(COPIED_BYTES) else "ca"
        body = either(
            dialect.instructions_if + aligned,
            dialect.copy.format(bytes=size, cache=cache),
            in_tests=f"__pipeline_memcpy_async(to, source, {size}, valid ? 0 : {size});",
            otherwise=body,
        )
    name = f"copy_{memory_type(dtype)}_x{lanes}"
    parameters = f"{dialect.to_shared}{kind} *to, {dialect.device}const {kind} *source, bool valid"
    return Helper(name, "void", parameters, body)


def commit_copies(prelude: Prelude) -> Helper:
    """The function after which the copies begun before are a group."""
    return _of_copies(prelude, "commit_copies", prelude.dialect.commit, "__pipeline_commit();")


def wait_for_copies(prelude: Prelude, newest: int) -> Helper:
    """The function that waits for the copies of all groups but the newest ones."""
    instruction = prelude.dialect.wait.format(groups=newest)
    name = f"wait_for_all_copies_but_{newest}" if newest else "wait_for_all_copies"
    return _of_copies(prelude, name, instruction, f"__pipeline_wait_prior({newest});")


def _of_copies(prelude: Prelude, name: str, instruction: str, in_tests: str) -> Helper:
    return Helper(
        name, "void", "void", either(prelude.dialect.instructions_if, instruction, in_tests)
    )
