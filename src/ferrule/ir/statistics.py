"""Kernel statistics: the operations of a run and the memory that it touches, found from the AST.

Finding them takes a third of a millisecond, so the disk cache keeps them beside the program.
"""

from __future__ import annotations

import json
from typing import final

from ferrule.base.records import dataclass
from ferrule.ir.expr import Expr, Variable, as_expr, as_int, sint
from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, get_lazyop_info


@final
@dataclass(frozen=True)
class KernelStatistics:
    """The statistics of a run, found from its AST; buffers are named by their positions."""

    op_estimate: sint
    mem_estimate: sint
    vars: tuple[Variable, ...]
    writes: frozenset[int]
    reads: frozenset[int]
    least_bytes: tuple[tuple[int, int], ...]
    """The least size in bytes of each buffer for which it is a number."""
    least_symbolic: tuple[tuple[int, Expr, sint], ...] = ()
    """The least sizes that depend on variables, each with the number of elements of the view. A
    view without elements touches nothing."""

    @staticmethod
    def of(ast: LazyOp) -> KernelStatistics:
        """The facts of a kernel."""
        info = get_lazyop_info(ast)
        writes, reads = set[int](), set[int]()
        least: dict[int, int] = {}
        symbolic: list[tuple[int, Expr, sint]] = []
        for node in ast.toposort():
            if node.op is BufferOps.STORE:
                writes.add(node.arg.idx)
            elif node.op is BufferOps.LOAD:
                reads.add(node.arg.idx)
            else:
                continue
            size = _touched_bytes(node.arg)
            if isinstance(size, Expr):
                symbolic.append((node.arg.idx, size, node.arg.st.view.size))
            elif size is not None:
                least[node.arg.idx] = max(least.get(node.arg.idx, 0), size)
        return KernelStatistics(
            info.flops,
            info.mem_estimate,
            tuple(ast.vars()),
            # A tree without a STORE is stored to the first buffer.
            frozenset(writes or {0}),
            frozenset(reads),
            tuple(least.items()),
            tuple(dict.fromkeys(symbolic)),
        )

    def to_json(self) -> str:
        """The facts as JSON text; empty where some of them are symbolic."""
        costs = (self.op_estimate, self.mem_estimate)
        if self.vars or not all(isinstance(cost, int) for cost in costs):
            return ""
        return json.dumps([*costs, sorted(self.writes), sorted(self.reads), self.least_bytes])

    @staticmethod
    def from_json(text: str) -> KernelStatistics:
        """The facts that `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            ops, mem, writes, reads, least = json.loads(text)
            pairs = tuple([(int(position), int(size)) for position, size in least])
            return KernelStatistics(
                int(ops), int(mem), (), _positions(writes), _positions(reads), pairs
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the facts of a kernel: {error}") from error


def _positions(numbers: list[int]) -> frozenset[int]:
    return frozenset([int(number) for number in numbers])


def _touched_bytes(arg: MemBuffer) -> sint | None:
    """The end of the memory that a view touches, in bytes; None if it is unknown."""
    view = arg.st.view
    if view.mask is not None:
        return None
    end: sint = view.offset + 1
    for size, stride in zip(view.shape, view.strides, strict=True):
        low, high = as_expr(stride).bounds()
        if low < 0 < high:
            return None
        if low >= 0:
            end = end + (size - 1) * stride
    return 0 if 0 in view.shape else as_int(end * arg.dtype.itemsize)
