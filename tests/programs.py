"""Programs built by hand, and two ways to run them: interpreted, and compiled from LLVM IR."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.uops import UOp, UOps
from ferrule.dtype import DType, dtypes
from ferrule.expr import COMPARISONS, Expr, ExprOp, toposort
from ferrule.renderer.llvmir import LLVMRenderer
from ferrule.runtime.llvm import CPUCompiler, load_object
from ferrule.target import Target, detect_cpu

Array = np.ndarray[Any, Any]
I64 = dtypes.int64
HOST = detect_cpu()


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

    def __init__(self, uops: Sequence[UOp], target: Target = HOST, name: str = "kernel") -> None:
        self.source = LLVMRenderer(target).render(name, uops)
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
) -> list[Array]:
    """The buffers after a run; fails unless interpreter and native code agree bit for bit."""
    expected = [buffer.copy() for buffer in buffers]
    interpret(uops, expected, values)
    found = [buffer.copy() for buffer in buffers]
    compiled = Compiled(uops, target)
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
