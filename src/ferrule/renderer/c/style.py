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
from ferrule.renderer.base import Renderer, RenderError, until_extent
from ferrule.renderer.c.alu import bare
from ferrule.renderer.c.dialect import CUDA, OPENCL, Dialect, memory_type, symbol
from ferrule.renderer.c.function import Function
from ferrule.renderer.c.launch import blocks_at_once
from ferrule.renderer.c.prelude import Prelude


def _parameters(function: Function, uops: Sequence[UOp]) -> str:
    """Name the buffers and the variables; the parameters of the kernel.

    For thread blocks it has a pointer for each buffer, then an integer for each variable. On the
    CPU the same names are declared, from the argument table.
    """
    dialect = function.dialect
    slots = {u.arg: u for u in uops if u.op in (UOps.PARAM, UOps.VALUE)}
    stored = {u.src[0].arg for u in uops if u.op is UOps.STORE and u.src[0].op is UOps.PARAM}
    buffers = [slot for slot, u in slots.items() if u.op is UOps.PARAM]
    n_buffers = 1 + max(buffers, default=-1) if dialect.has_blocks else 0

    def kind(slot: int) -> str:
        dtype = slots[slot].dtype if slot in slots else None
        return ("" if slot in stored else "const ") + (memory_type(dtype) if dtype else "void")

    for u in uops:
        if u.op is UOps.PARAM:
            function.pointers[u] = f"data{u.arg}"
            text = f"{kind(u.arg)} *data{u.arg} = ({kind(u.arg)} *)args[{u.arg}];"
        elif u.op is UOps.VALUE:
            function.lanes[u] = [f"value{u.arg - n_buffers}"]
            text = f"const i64 value{u.arg} = args[{u.arg}];"
        else:
            continue
        if not dialect.has_blocks:
            function.top.append(text)
    if not dialect.has_blocks:
        return "const i64 *args, i64 start, i64 stop"
    texts = []
    for slot in range(n_buffers):
        restrict = "" if slot in stored else dialect.restrict
        texts.append(f"{dialect.device}{kind(slot)} *{restrict}data{slot}")
    n_values = 1 + max(slots, default=-1) - n_buffers
    return ", ".join([*texts, *(f"i32 value{i}" for i in range(n_values))])


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
        before, extent = until_extent(name, uops)
        if (extent.arg or 1) > max(self.target.block_threads, 1):
            raise RenderError(
                f"kernel {name} has blocks of {extent.arg} threads; {self.target.name} takes "
                f"{self.target.block_threads}: bind fewer"
            )
        prelude = Prelude(self.dialect)
        functions = [self._kernel(name, uops, prelude)]
        if not self.dialect.has_blocks:
            functions.append(self._extent(name, before, extent.src[0], prelude))
        parts = [f"// kernel {name}", self._header(uops), prelude.text(), *functions]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _header(self, uops: Sequence[UOp]) -> str:
        doubles = any(u.dtype is dtypes.float64 for u in uops)
        if self.dialect is OPENCL and doubles:
            return f"#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n{self.dialect.header}"
        return self.dialect.header

    def _kernel(self, name: str, uops: Sequence[UOp], prelude: Prelude) -> str:
        function = Function(self.dialect, self.target, prelude, uops)
        parameters = _parameters(function, uops)
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

    def _extent(self, name: str, before: Sequence[UOp], root: UOp, prelude: Prelude) -> str:
        # Values without a use are left out, so the returned number needs one.
        returned = UOp(UOps.SET, src=(root, root))
        function = Function(self.dialect, self.target, prelude, [*before, returned])
        _parameters(function, before)
        for u in before:
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
