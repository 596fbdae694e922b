"""The targets of exports that are compiled elsewhere, and a program's kernels for one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ferrule.codegen.linearizer import Linearizer
from ferrule.export.program import ExportedProgram, ExportError
from ferrule.ir.target import Target, detect_cpu, named_cpu

_C_OPS: Final = frozenset({"MULACC", "SQRT", "TRUNC", "ROUND"})
_L1_BYTES: Final = 32 << 10
_L2_BYTES: Final = 512 << 10
WASM: Final = replace(
    named_cpu("sse2"),
    name="wasm32",
    arch="wasm32",
    features="+bulk-memory,+mutable-globals,+nontrapping-fptoint,+sign-ext,+simd128",
    max_threads=1,
    l1_bytes=_L1_BYTES,
    l2_bytes=_L2_BYTES,
    native_ops=frozenset({"SQRT", "TRUNC", "ROUND"}),
)
"""WebAssembly with SIMD, as all browsers have it since 2023. The caches are those of most
processors, so that modules do not depend on the machine that made them."""


def c_target(name: str) -> Target:
    """The target of kernels in C: a processor's vectors and caches, and no special instructions.

    `name` is "native", for this processor, or one that `named_cpu` takes.
    """
    processor = detect_cpu() if name == "native" else named_cpu(name)
    return replace(
        processor,
        name="c11",
        arch="c11",
        features="",
        max_threads=1,
        has_fma=True,
        native_ops=_C_OPS,
    )


def scheduled(program: ExportedProgram, target: Target) -> dict[str, Linearizer]:
    """The kernels of a program, scheduled for a target, by name; functions of rows are none.

    Raises `ExportError` for a kernel without a tree: one of packed weights.
    """
    found: dict[str, Linearizer] = {}
    for kernel in program.kernels:
        if kernel.row_function is not None:
            continue
        if kernel.ast is None:
            raise ExportError(
                f"kernel {kernel.name} reads packed weights, in the layout of one target; make the "
                "program with packed=False"
            )
        if kernel.name not in found:
            found[kernel.name] = Linearizer(kernel.ast, target, name=kernel.name).linearize()
    return found
