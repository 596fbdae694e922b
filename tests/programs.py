"""Programs built by hand, and two ways to run them: interpreted, and compiled from LLVM IR."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.uops import UOp, UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import COMPARISONS, Expr, ExprOp, toposort
from ferrule.ir.target import Target, detect_cpu
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu.llvm import CPUCompiler, load_object

Array = np.ndarray[Any, Any]
I64 = dtypes.int64
HOST = detect_cpu()
SIZE = 96
INTS = [d for d in dtypes.all if dtypes.is_int(d)]
REALS = [dtypes.float32, dtypes.float64]
NARROW = [dtypes.float16, dtypes.bfloat16]
COMPUTED = [dtypes.bool, *INTS, *REALS]


class Builder:
    """Appends UOps to a program; each method gives the UOp that it made."""

    def __init__(self, chunks: int = 1) -> None:
        self.uops: list[UOp] = []
        if chunks:
            self.add(UOps.EXTENT, src=(self.const(chunks),))

    def add(
        self,
        op: UOps,
        dtype: DType | None = None,
        lanes: int = 1,
        src: Sequence[UOp] = (),
        arg: object = None,
    ) -> UOp:
        u = UOp(op, dtype, lanes, tuple(src), arg)
        self.uops.append(u)
        return u

    def const(self, value: float, dtype: DType = I64, lanes: int = 1) -> UOp:
        return self.add(UOps.CONST, dtype, lanes, arg=value)

    def param(self, slot: int, dtype: DType) -> UOp:
        return self.add(UOps.PARAM, dtype, arg=slot)

    def alu(self, op: ExprOp, *src: UOp) -> UOp:
        dtype = dtypes.bool if op in COMPARISONS else src[-1].dtype
        if op in (ExprOp.SHL, ExprOp.SHR):
            dtype = src[0].dtype
        return self.add(UOps.ALU, dtype, src[0].lanes, src, op)

    def load(self, pointer: UOp, index: UOp, lanes: int = 1, mask: UOp | None = None) -> UOp:
        src = (pointer, index) if mask is None else (pointer, index, mask)
        return self.add(UOps.LOAD, pointer.dtype, lanes, src)

    def store(
        self, pointer: UOp, index: UOp, value: UOp, mask: UOp | None = None, arg: object = None
    ) -> UOp:
        src = (pointer, index, value) if mask is None else (pointer, index, value, mask)
        return self.add(UOps.STORE, src=src, arg=arg)

    def splat(self, x: UOp, lanes: int) -> UOp:
        return self.add(UOps.SPLAT, x.dtype, lanes, (x,))

    def loop(self, first: UOp, limit: UOp, step: int = 1, name: str = "i") -> UOp:
        return self.add(UOps.LOOP, I64, 1, (first, limit, self.const_before(step)), name)

    def const_before(self, value: int) -> UOp:
        return self.const(value)

    def end(self, loop: UOp) -> None:
        self.add(UOps.END if loop.op is UOps.LOOP else UOps.ENDIF, src=(loop,))

    def expression(self, root: Expr, leaves: Mapping[Expr, UOp], lanes: int) -> UOp:
        """The UOps of an expression without memory, each node once."""
        made = dict(leaves)
        for node in toposort([root]):
            if node in made:
                continue
            src = tuple(made[s] for s in node.src)
            if node.op is ExprOp.CONST:
                made[node] = self.const(node.arg, node.dtype, lanes)
            elif node.op in (ExprOp.CAST, ExprOp.BITCAST):
                op = UOps.CAST if node.op is ExprOp.CAST else UOps.BITCAST
                made[node] = self.add(op, node.dtype, lanes, src)
            else:
                made[node] = self.add(UOps.ALU, node.dtype, lanes, src, node.op)
        return made[root]


def special(dtype: DType) -> list[float]:
    """Values at which operations differ from the rule."""
    if dtype is dtypes.bool:
        return [False, True]
    if not dtypes.is_float(dtype):
        low, high = dtypes.min(dtype), dtypes.max(dtype)
        return [low, low + 1, 0, 1, 2, 7, high - 1, high, *([] if low == 0 else [-1, -2, -7])]
    known = dtype.np in (np.float16, np.float32, np.float64)
    info = np.finfo(dtype.np if known else np.float32)
    finite = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.75, 1e-3, 2.0**23 - 0.5, 2.0**52 - 0.5]
    if dtype is dtypes.float32:  # half of the last bit that tf32 keeps
        finite += [1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, 1 + 3 * 2.0**-11]
    edges = [float(info.tiny), float(info.tiny) / 8, float(info.max), math.inf]
    return [*finite, *(-x for x in finite), *edges, *(-x for x in edges), math.nan]


def sample(dtype: DType, size: int, seed: int) -> Array:
    """Special values first, then any."""
    generator = np.random.default_rng(seed)
    if dtype is dtypes.bool:
        return generator.integers(0, 2, size).astype(bool)
    if dtypes.is_float(dtype):
        drawn = (generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)).tolist()
    else:
        low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
        drawn = [low + int(u * (high - low)) for u in generator.random(size)]
    with np.errstate(over="ignore"):
        array = np.array(drawn, dtype.np)
        array[: size // 2] = generator.choice(np.array(special(dtype), dtype.np), size // 2)
    generator.shuffle(array)
    return array


def operations(dtype: DType) -> list[ExprOp]:
    """What programs may do with values of a dtype."""
    common = [ExprOp.ADD, ExprOp.MUL, ExprOp.MIN, ExprOp.MAX, ExprOp.NEG, ExprOp.WHERE]
    common += [ExprOp.CMPLT, ExprOp.CMPNE, ExprOp.MULACC]
    bitwise = [ExprOp.AND, ExprOp.OR, ExprOp.XOR, ExprOp.NOT]
    if dtype is dtypes.bool:
        return common + bitwise
    if dtypes.is_float(dtype):
        real = [ExprOp.FDIV, ExprOp.FMOD, ExprOp.RECIP, ExprOp.SQRT, ExprOp.TRUNC, ExprOp.ROUND]
        return [*common, ExprOp.SUB, *real, *([ExprOp.TF32] if dtype is dtypes.float32 else [])]
    if dtype is dtypes.uint32:
        bitwise.append(ExprOp.POPCOUNT)
    return [*common, *bitwise, ExprOp.SUB, ExprOp.TDIV, ExprOp.TMOD, ExprOp.SHL, ExprOp.SHR]


def operand_count(op: ExprOp) -> int:
    if op in (ExprOp.MULACC, ExprOp.WHERE):
        return 3
    unary = {ExprOp.NEG, ExprOp.NOT, ExprOp.RECIP, ExprOp.SQRT, ExprOp.TRUNC, ExprOp.ROUND}
    return 1 if op in unary | {ExprOp.TF32, ExprOp.POPCOUNT} else 2


def every_operation(dtype: DType, lanes: int) -> tuple[list[UOp], list[DType]]:
    """A program that does each operation on buffers 0, 1, 2, and the dtypes of what it stores."""
    b = Builder(SIZE // lanes)
    chunks = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    inputs = [b.param(slot, dtype) for slot in range(3)]
    loop = b.loop(*chunks)
    index = b.alu(ExprOp.MUL, loop, b.const(lanes))
    values = [b.load(pointer, index, lanes) for pointer in inputs]
    results = []
    for op in operations(dtype):
        operands = values[: operand_count(op)]
        if op is ExprOp.WHERE:
            operands = [b.alu(ExprOp.CMPLT, values[0], values[1]), *values[1:]]
        if op in (ExprOp.SHL, ExprOp.SHR):
            below_width = b.const(dtype.bits - 1, dtype, lanes)
            operands = [values[0], b.alu(ExprOp.AND, values[1], below_width)]
        results.append(b.alu(op, *operands))
    stored = [dtypes.bool if op in COMPARISONS else dtype for op in operations(dtype)]
    for slot, (result, kind) in enumerate(zip(results, stored, strict=True)):
        b.store(b.param(3 + slot, kind), index, result)
    b.end(loop)
    return b.uops, stored


def in_range(x: Array, target: DType) -> Array:
    """The values that a cast to an integer type defines: whole ones within it."""
    if not dtypes.is_int(target):
        return x
    wide = x.astype(np.float64)
    low = max(float(dtypes.min(target)), -(2.0**62))
    high = min(float(dtypes.max(target)), 2.0**62)
    return np.where(np.isfinite(wide) & (wide >= low) & (wide <= high), x, x.dtype.type(1))


def dot(size: int, lanes: int) -> list[UOp]:
    """out[chunk] = sum of a[i] * b[i] over a row, in a vector register."""
    b = Builder(0)
    b.add(UOps.EXTENT, src=(b.add(UOps.VALUE, I64, arg=3),))
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    out, x, y = (b.param(slot, dtypes.float32) for slot in range(3))
    row = b.loop(start, stop, name="row")
    zero = b.const(0.0, dtypes.float32, lanes)
    register = b.add(UOps.REG, dtypes.float32, lanes, (zero,), "sum")
    base = b.alu(ExprOp.MUL, row, b.const(size))
    inner = b.loop(b.const(0), b.const(size), lanes, "k")
    index = b.alu(ExprOp.ADD, base, inner)
    old = b.add(UOps.GET, dtypes.float32, lanes, (register,))
    new = b.alu(ExprOp.MULACC, b.load(x, index, lanes), b.load(y, index, lanes), old)
    b.add(UOps.SET, src=(register, new))
    b.end(inner)
    last = b.add(UOps.GET, dtypes.float32, lanes, (register,))
    reduced = b.add(UOps.HREDUCE, dtypes.float32, 1, (last,), ExprOp.ADD)
    b.store(out, row, reduced)
    b.end(row)
    return b.uops


def tail(size: int, lanes: int) -> list[UOp]:
    """out[i] = max(in[i], 0) of bfloat16, the last vector masked."""
    b = Builder()
    out, x = b.param(0, dtypes.bfloat16), b.param(1, dtypes.bfloat16)
    loop = b.loop(b.const(0), b.const(size), lanes)
    iota = b.add(UOps.IOTA, I64, lanes)
    index = b.alu(ExprOp.ADD, b.splat(loop, lanes), iota)
    mask = b.alu(ExprOp.CMPLT, index, b.const(size, I64, lanes))
    wide = b.add(UOps.CAST, dtypes.float32, lanes, (b.load(x, loop, lanes, mask),))
    positive = b.alu(ExprOp.MAX, wide, b.const(0.0, dtypes.float32, lanes))
    b.store(out, loop, b.add(UOps.CAST, dtypes.bfloat16, lanes, (positive,)), mask)
    b.end(loop)
    return b.uops


def elementwise(
    function: Callable[[Builder, Sequence[UOp]], UOp],
    inputs: Sequence[DType],
    lanes: int,
    steps: int,
) -> list[UOp]:
    """out[i] = function(in[i], ...), `lanes` at a time; the output is buffer 0."""
    b = Builder(0)
    b.add(UOps.EXTENT, src=(b.const(steps),))
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    pointers = [b.param(slot + 1, dtype) for slot, dtype in enumerate(inputs)]
    loop = b.loop(start, stop)
    index = b.alu(ExprOp.MUL, loop, b.const(lanes))
    values = [b.load(pointer, index, lanes) for pointer in pointers]
    result = function(b, values)
    assert result.dtype is not None
    b.store(b.param(0, result.dtype), index, result)
    b.end(loop)
    return b.uops


class Compiled:
    """A program as native code; what it is called with is a NumPy array for each buffer."""

    def __init__(
        self,
        uops: Sequence[UOp],
        target: Target = HOST,
        name: str = "kernel",
        emulate: Callable[[str], str] | None = None,
    ) -> None:
        self.source = LLVMRenderer(target).render(name, uops)
        if emulate is not None:  # what the target has and the host may lack
            self.source, target = emulate(self.source), HOST
        lib = CPUCompiler(target).compile(self.source)
        self.object = load_object(lib, {}, [name, f"{name}.extent"])
        table = ctypes.c_void_p
        extent_type = ctypes.CFUNCTYPE(ctypes.c_int64, table)
        self._extent = extent_type(self.object.address(f"{name}.extent"))
        run_type = ctypes.CFUNCTYPE(None, table, ctypes.c_int64, ctypes.c_int64)
        self._run = run_type(self.object.address(name))

    def extent(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> int:
        return int(self._extent(self.table(buffers, values)))

    def __call__(
        self,
        buffers: Sequence[Array],
        values: Sequence[int] = (),
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        table = self.table(buffers, values)
        self._run(table, start, int(self._extent(table)) if stop is None else stop)

    def table(self, buffers: Sequence[Array], values: Sequence[int]) -> Any:
        slots = [*(buffer.ctypes.data for buffer in buffers), *values]
        return (ctypes.c_int64 * max(len(slots), 1))(*slots)


def bits(array: Array) -> Array:
    """The array's bits, NaNs all alike."""
    raw = np.ascontiguousarray(array)
    if raw.dtype.kind in "fV" or raw.dtype.name == "bfloat16":
        raw = np.where(np.isnan(raw), np.array(np.nan, raw.dtype), raw).astype(raw.dtype)
    return raw.view(f"u{raw.dtype.itemsize}")


def run_both(
    uops: Sequence[UOp],
    buffers: Sequence[Array],
    values: Sequence[int] = (),
    target: Target = HOST,
    emulate: Callable[[str], str] | None = None,
) -> list[Array]:
    """The buffers after a run; fails unless interpreter and native code agree bit for bit."""
    expected = [buffer.copy() for buffer in buffers]
    interpret(uops, expected, values)
    found = [buffer.copy() for buffer in buffers]
    compiled = Compiled(uops, target, emulate=emulate)
    assert compiled.extent(found, values) == extent(uops, values, len(buffers))
    compiled(found, values)
    for slot, (a, b) in enumerate(zip(expected, found, strict=True)):
        different = np.flatnonzero(bits(a) != bits(b))
        where = different[:5]
        assert not len(different), (
            f"buffer {slot} differs at {where}: {a[where]} interpreted, {b[where]} compiled\n"
            + compiled.source
        )
    return found
