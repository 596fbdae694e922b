"""A tour of ferrule: one matrix product on its way from a Tensor to machine code.

Run it with `python docs/tour.py`. Every step takes what the one before gave, and each form can be
printed; `docs/layout.md` says where the steps live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ferrule import Device, Tensor
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import show
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt
from ferrule.device import Compiled
from ferrule.ir.lazy import LazyBuffer
from ferrule.ops import ScheduleItem
from ferrule.schedule import create_schedule

ROWS, DEPTH, COLUMNS = 48, 64, 32


def graph_lines(root: LazyBuffer) -> Iterator[str]:
    """The lazy graph below a node, sources first, one line for each node."""
    numbers: dict[LazyBuffer, int] = {}
    pending = [root]
    while pending:
        node = pending[-1]
        missing = [source for source in node.srcs if source not in numbers]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        sources = ", ".join(f"%{numbers[source]}" for source in node.srcs)
        state = "" if node.realized is None else f"   in {node.realized}"
        yield f"%{numbers[node]} = {node.op.name}({sources}) {node.shape} {node.dtype}{state}"


def excerpt(text: str, lines: int, around: str = "") -> str:
    """Some lines of a text: those from just before the first that holds a word."""
    every = text.splitlines()
    hits = [number for number, line in enumerate(every) if around in line]
    first = max(hits[0] - 3, 0) if hits else 0
    shown = every[first : first + lines]
    return "\n".join(
        [f"({len(every)} lines, of which {first + 1} to {first + len(shown)})", *shown]
    )


class Tour:
    """The steps, in order; `write` takes what they show."""

    def __init__(self, write: Callable[[str], object] = print) -> None:
        self.write = write
        device = Device["CPU"]
        assert isinstance(device, Compiled)
        self.device = device

    def step(self, number: int, title: str, text: str) -> None:
        """Shows one step."""
        self.write(f"\n=== {number}. {title} ===\n\n{text}")

    def run(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """All steps; gives the result of the last one."""
        random = np.random.default_rng(0)
        self.left = random.normal(size=(ROWS, DEPTH)).astype(np.float32)
        self.right = random.normal(size=(DEPTH, COLUMNS)).astype(np.float32)
        node = self.write_expression()
        item = self.cut_into_kernels(node)
        self.lower(item)
        kernel = self.schedule(item)
        source = self.render(kernel)
        self.compile(kernel, source)
        return self.execute(kernel, item)

    def write_expression(self) -> LazyBuffer:
        """Nothing is computed: an operation on tensors makes nodes of a graph."""
        a = Tensor(self.left, device="CPU")
        b = Tensor(self.right, device="CPU")
        c = (a @ b).relu()
        text = "c = (a @ b).relu()\n" + "\n".join(graph_lines(c.lazydata))
        self.step(1, "The expression is a graph of LazyBuffers", text)
        return c.lazydata

    def cut_into_kernels(self, node: LazyBuffer) -> ScheduleItem:
        """The graph is cut where values should be in memory: here nowhere, so it is one kernel.

        The kernel's AST reads and writes buffers by number, the output first.
        """
        items = create_schedule([node])
        assert len(items) == 1
        (item,) = items
        buffers = "\n".join(f"buffer {n}: {buffer}" for n, buffer in enumerate(item.buffers))
        self.step(2, "The schedule: one kernel, as an AST", f"{item.ast}\n\n{buffers}")
        return item

    def lower(self, item: ScheduleItem) -> None:
        """Movements become arithmetic on indices; a reduce becomes a loop with an accumulator."""
        kernel = lower(item.ast, "product")
        self.step(3, "Lowered: loops and scalar expressions", show(kernel))

    def schedule(self, item: ScheduleItem) -> Linearizer:
        """How to run the loops is data beside the algorithm, and chosen for the target."""
        kernel = self.device.get_linearizer(item.ast)
        texts = [opt.to_json() for opt in kernel.opts]
        self.step(4, "The schedule's primitives, chosen for this machine", "\n".join(texts))
        # Plain data: read back and applied again they give the same kernel.
        again = [Opt.from_json(text) for text in texts]
        target = self.device.linearizer_opts
        assert str(Linearizer(item.ast, target, again)) == str(kernel)
        self.step(5, "The same kernel with them applied", excerpt(str(kernel), 60))
        return kernel

    def render(self, kernel: Linearizer) -> str:
        """The loop tree becomes a flat program of vector operations, and that becomes LLVM IR."""
        kernel.linearize()
        self.step(6, "The program", excerpt(kernel.program(), 30, "LOOP"))
        source: str = self.device.renderer.render(kernel.name, kernel.uops)
        self.step(7, "The program as LLVM IR", excerpt(source, 30, "llvm.fma"))
        return source

    def compile(self, kernel: Linearizer, source: str) -> None:
        """An object file, which the disk cache keeps for the next process."""
        library = self.device.compiler.compile_cached(source)
        code = self.device.compiler.disassemble(library)
        title = f"Machine code: an object file of {len(library)} bytes"
        self.step(8, title, excerpt(code, 30, "vfmadd"))

    def execute(
        self, kernel: Linearizer, item: ScheduleItem
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """The program runs on the buffers; an interpreter of the same program agrees to the bit."""
        runner = self.device.to_program(kernel)
        runner.exec(list(item.buffers), {})
        result = item.out.toCPU().reshape(ROWS, COLUMNS)
        arrays = [buffer.toCPU().copy() for buffer in item.buffers]
        arrays[0][:] = 0
        interpret(kernel.uops, arrays)
        same = np.array_equal(arrays[0].reshape(ROWS, COLUMNS), result)
        exact = np.maximum(self.left.astype(np.float64) @ self.right.astype(np.float64), 0)
        error = float(np.abs(result - exact).max())
        text = f"largest error against float64: {error:.1e}\nthe interpreter's bits: {same}"
        self.step(9, "The result", text)
        return result


if __name__ == "__main__":
    Tour().run()
