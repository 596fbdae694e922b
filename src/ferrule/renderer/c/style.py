"""Programs as C, CUDA C and OpenCL C: one text, with a record for the differences of the languages.

C has the binary interface of the CPU, with `NAME_extent` for `NAME.extent`, and one thread. The
others have the interface of devices with thread blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.target import Target
from ferrule.renderer.base import Renderer, RenderError
from ferrule.renderer.c.alu import bare
from ferrule.renderer.c.dialect import CUDA, OPENCL, Dialect, memory_type, symbol
from ferrule.renderer.c.function import Function
from ferrule.renderer.c.launch import blocks_at_once
from ferrule.renderer.c.prelude import Prelude


def _memory_type(u: UOp) -> str:
    assert u.dtype is not None
    return memory_type(u.dtype)


def _slots(uops: Sequence[UOp]) -> dict[int, UOp]:
    return {u.arg: u for u in uops if u.op in (UOps.PARAM, UOps.VALUE)}


def _stored(uops: Sequence[UOp]) -> frozenset[int]:
    """The slots of the buffers that a program writes."""
    pointers = (u.src[0] for u in uops if u.op is UOps.STORE)
    return frozenset(p.arg for p in pointers if p.op is UOps.PARAM)


def _parameters(function: Function, uops: Sequence[UOp]) -> str:
    """A pointer for each buffer, then an integer for each variable."""
    slots, dialect = _slots(uops), function.dialect
    n_buffers = 1 + max((slot for slot, u in slots.items() if u.op is UOps.PARAM), default=-1)
    texts, stored = [], _stored(uops)
    for slot in range(max(slots, default=-1) + 1):
        u = slots.get(slot)
        if slot >= n_buffers:
            texts.append(f"i32 value{slot - n_buffers}")
            continue
        kind = "void" if u is None else _memory_type(u)
        const, restrict = "", ""
        if slot not in stored:
            const, restrict = "const ", dialect.restrict
        texts.append(f"{dialect.device}{const}{kind} *{restrict}data{slot}")
    for u in uops:
        if u.op is UOps.PARAM:
            function.pointers[u] = f"data{u.arg}"
        elif u.op is UOps.VALUE:
            function.lanes[u] = [f"value{u.arg - n_buffers}"]
    return ", ".join(texts)


def _from_table(function: Function, uops: Sequence[UOp]) -> None:
    """Declare the same names, from the argument table of the CPU's interface."""
    stored = _stored(uops)
    for u in uops:
        if u.op is UOps.PARAM:
            const = "" if u.arg in stored else "const "
            kind = f"{const}{_memory_type(u)} *"
            function.pointers[u] = f"data{u.arg}"
            function.top.append(f"{kind}data{u.arg} = ({kind})args[{u.arg}];")
        elif u.op is UOps.VALUE:
            function.lanes[u] = [f"value{u.arg}"]
            function.top.append(f"const i64 value{u.arg} = args[{u.arg}];")


def _extent_of(name: str, uops: Sequence[UOp]) -> int:
    for position, u in enumerate(uops):
        if u.op is UOps.EXTENT:
            return position
    raise RenderError(f"kernel {name} has no EXTENT; put one behind what computes it")


@final
class CStyleRenderer(Renderer):
    """Renders programs in one of the dialects, for one target."""

    def __init__(self, dialect: Dialect, target: Target) -> None:
        self.dialect = dialect
        self.target = target

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """The source of the kernel `name`; the function has its `symbol`.

        Raises:
            RenderError: no EXTENT, arithmetic on a dtype that is for storage only, an operation
                that has to be expanded first, or more threads or shared memory than there are.
        """
        extent = uops[_extent_of(name, uops)]
        if (extent.arg or 1) > max(self.target.block_threads, 1):
            raise RenderError(
                f"kernel {name} has blocks of {extent.arg} threads; {self.target.name} takes "
                f"{self.target.block_threads}: bind fewer"
            )
        prelude = Prelude(self.dialect)
        functions = [self._kernel(name, uops, prelude)]
        if not self.dialect.has_blocks:
            functions.append(self._extent(name, uops, prelude))
        parts = [f"// kernel {name}", self._header(uops), prelude.text(), *functions]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _header(self, uops: Sequence[UOp]) -> str:
        doubles = any(u.dtype is dtypes.float64 for u in uops)
        if self.dialect is OPENCL and doubles:
            return f"#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n{self.dialect.header}"
        return self.dialect.header

    def _kernel(self, name: str, uops: Sequence[UOp], prelude: Prelude) -> str:
        function = Function(self.dialect, self.target, prelude, uops)
        parameters = "const i64 *args, i64 start, i64 stop"
        if self.dialect.has_blocks:
            parameters = _parameters(function, uops)
        else:
            _from_table(function, uops)
        for u in uops:
            function.add(u)
        body = function.text()  # tells how much memory the threads share
        before = self._launch(function, uops) if self.dialect.has_blocks else "void "
        return "\n".join([f"{before}{symbol(name)}({parameters}) {{", *body, "}"])

    def _launch(self, function: Function, uops: Sequence[UOp]) -> str:
        """The qualifiers before the name of a kernel for thread blocks."""
        blocks = blocks_at_once(uops, function.threads, function.shared_bytes, self.target)
        launch = self.dialect.launch.format(
            threads=function.threads, blocks="" if blocks is None else f", {blocks}"
        )
        return self.dialect.kernel + launch

    def _extent(self, name: str, uops: Sequence[UOp], prelude: Prelude) -> str:
        position = _extent_of(name, uops)
        root = uops[position].src[0]
        # Values without a use are left out, so the returned number needs one.
        returned = UOp(UOps.SET, src=(root, root))
        before = [*uops[:position], returned]
        function = Function(self.dialect, self.target, prelude, before)
        _from_table(function, before)
        for u in before[:-1]:
            function.add(u)
        result = bare(function.scalar(root))
        head = f"i64 {symbol(name)}_extent(const i64 *args)"
        return "\n".join([f"{head} {{", *function.text(), f"  return {result};", "}"])


def cuda_renderer(target: Target) -> CStyleRenderer:
    """Renders CUDA C."""
    return CStyleRenderer(CUDA, target)


def opencl_renderer(target: Target) -> CStyleRenderer:
    """Renders OpenCL C."""
    return CStyleRenderer(OPENCL, target)
