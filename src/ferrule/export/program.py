"""Exported programs: what a replay runs, as data, for backends that write it to files.

A backend reads an `ExportedProgram` in this order:

1. `blocks` are the memory. Blocks of constants are bytes that come with the program, and that
   nothing writes to. Arguments and results are the caller's. State is memory that outlives a call:
   it starts with the block's `contents` (None: the program writes it before it reads it). Scratch
   is memory for one call; values with disjoint live ranges already share it.
2. `arguments`, `states` and `results` are the tensors in those blocks, with names, shapes, strides
   and dtypes. A result may lie in the block of an argument or of a state; it then is an alias.
   `effects` are tensors that the function leaves somewhere, such as gradients: states that each
   call writes anew.
3. `variables` are integers that each call is given. Refuse a value outside of the bounds, and
   values with which one of `limits` is negative: a kernel would leave its memory.
4. `steps` run in order. A `Kernel` takes the address of each of its `cells`, then each of its
   `values`: a number, or a variable. A `Copy` moves bytes between cells that do not overlap. A
   `Loop` has steps of its own, and the addresses of their cells move on from trip to trip.

Addresses of blocks are multiples of `ALIGNMENT`. Sizes in bytes are for the largest values of the
variables, so memory is planned once.

A backend that compiles for another target takes the tree `kernel.ast`, schedules it for that
target (`linearize_for`), and calls what comes out with the same cells and values. It asks for
programs with `packed=False`: packed copies of weights have the layout of one target. Kernels that
sort have no tree: they are functions of the rows of an array, written by hand
(`runtime/cpu/native_sort.py`, and `renderer/c/sorting.py` in C).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.device.runner import CompiledASTRunner, RowFunction
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, Variable, as_expr, sint
from ferrule.ir.lazyop import LazyOp

if TYPE_CHECKING:
    from numpy import ndarray

ALIGNMENT: Final = 64
"""Bytes; addresses of blocks are multiples of this: a cache line, and the widest vector."""


class ExportError(ValueError):
    """A captured function cannot be exported; the message names what stands in the way."""


class BlockKind(Enum):
    """What a block of memory is for."""

    ARGUMENT = "argument"
    RESULT = "result"
    CONSTANT = "constant"
    STATE = "state"
    SCRATCH = "scratch"


@final
@dataclass(frozen=True)
class Block:
    """`nbytes` of memory. Constants, and states with a first value, have `memory`."""

    kind: BlockKind
    name: str
    """The name of the tensor in it; empty for scratch, and for constants without a name."""
    nbytes: int
    memory: Buffer | None = None
    is_written: bool = False
    """True if the program writes to it."""

    @property
    def contents(self) -> ndarray[Any, Any] | None:
        """The present bytes of a constant, or the first ones of a state."""
        return None if self.memory is None else self.memory.copied((self.memory.size,)).view("u1")


@final
@dataclass(frozen=True)
class Move:
    """Bytes by which memory is behind its first place in the trips of one of the loops around."""

    depth: int
    """The number of loops around that loop."""
    stride: int
    """The bytes from a trip to the next one."""
    other: int
    """The bytes between two memories that take turns."""
    phase: int
    """1 if the first trip has the second of these."""
    backwards: bool
    """True if the first trip has the last part."""

    def at(self, trip: int, trips: int) -> int:
        """The bytes in a trip of so many."""
        number = trips - 1 - trip if self.backwards else trip
        return self.stride * number + self.other * ((trip + self.phase) & 1)


@final
@dataclass(frozen=True)
class Cell:
    """`nbytes` from byte `offset` on in a block, which is given by its number; loops move it."""

    block: int
    offset: int
    nbytes: int
    moves: tuple[Move, ...] = ()


@final
@dataclass(frozen=True)
class TensorSpec:
    """A tensor: element `i` is `sum(i[k] * strides[k])` elements behind the start of its cell."""

    name: str
    shape: tuple[sint, ...]
    strides: tuple[sint, ...]
    dtype: DType
    cell: Cell

    @property
    def capacity(self) -> tuple[int, ...]:
        """The shape with the largest values of the variables."""
        return tuple([as_expr(size).max for size in self.shape])

    @property
    def reach(self) -> Cell:
        """The cell with what lies in front of it: elements at negative strides."""
        steps = zip(self.shape, self.strides, strict=True)
        before = sum([max(0, as_expr((1 - size) * stride).max) for size, stride in steps])
        start = before * self.dtype.itemsize
        return Cell(self.cell.block, self.cell.offset - start, self.cell.nbytes + start)


Value: TypeAlias = int | Variable


@final
@dataclass(frozen=True)
class Kernel:
    """A run of a compiled kernel: `runner` has its machine code, `ast` is what it computes.

    `ast` is None for packed kernels, and for functions of rows. `reads` and `writes` are positions
    among the cells.
    """

    name: str
    runner: CompiledASTRunner
    ast: LazyOp | None
    cells: tuple[Cell, ...]
    values: tuple[Value, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    line: str = ""
    """The line of the program that asked for the result, as `file:line`."""

    @property
    def row_function(self) -> str | None:
        """The name of the function of rows that it is: "sort", "select" or "median"."""
        return self.runner.function if isinstance(self.runner, RowFunction) else None


@final
@dataclass(frozen=True)
class Copy:
    """A copy of the bytes of `source` to `to`; both have the same size, and do not overlap."""

    to: Cell
    source: Cell


@final
@dataclass(frozen=True)
class Loop:
    """Runs its `body` again and again; there is a number of trips, or a condition to go on."""

    most: sint | None
    """The number of trips, or the largest number; None: any number."""
    count: Cell | None
    """An int32 that limits the number of trips, too."""
    start: Cell | None
    """A bool: without it there are no trips."""
    condition: Cell | None
    """A bool; after a trip in which it is false, there are no more."""
    before: tuple[Step, ...]
    """Steps on the memory of the first trip, even if there is none."""
    body: tuple[Step, ...]
    after: tuple[Step, ...]
    """Steps on the memory of the trip that would be next after the last one."""
    counted: Cell | None
    """Where the number of trips is written to, as int32, before the steps after them."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps."""
        return (*self.before, *self.body, *self.after)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The memory that the loop itself reads and writes."""
        every = (self.count, self.start, self.condition, self.counted)
        return tuple([cell for cell in every if cell is not None])


Step: TypeAlias = "Kernel | Copy | Loop"


def every_step(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps in order, those of loops behind their loop."""
    for step in steps:
        yield step
        if isinstance(step, Loop):
            yield from every_step(step.steps)


def with_kernels(steps: Sequence[Step], change: Callable[[Kernel], Kernel]) -> tuple[Step, ...]:
    """The steps with others in the place of their kernels, which are changed in order."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Kernel):
            step = change(step)
        elif isinstance(step, Loop):
            parts = [with_kernels(part, change) for part in (step.before, step.body, step.after)]
            step = replace(step, before=parts[0], body=parts[1], after=parts[2])
        found.append(step)
    return tuple(found)


@final
@dataclass(frozen=True)
class ExportedProgram:
    """A captured function as data. See the docstring of the module for how to use one."""

    name: str
    blocks: tuple[Block, ...]
    arguments: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...]
    effects: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    template: Any
    """What the function returns, with the number of a result in the place of each tensor."""
    variables: tuple[Variable, ...]
    limits: tuple[Expr, ...]
    steps: tuple[Step, ...]
    inputs: tuple[Cell, ...] = ()
    """The memory of what the replay takes anew in each run, in its order; see `verify.py`."""
    replayed: int = 0
    """The number of steps that the replay runs; those behind them put tensors into their places."""
    numbers: tuple[str, ...] = ()
    """The Python values that the function found, and that are fixed in the program."""

    def of_kind(self, kind: BlockKind) -> Iterator[tuple[int, Block]]:
        """The blocks of one kind, with their numbers."""
        return ((n, block) for n, block in enumerate(self.blocks) if block.kind is kind)

    def nbytes(self, kind: BlockKind) -> int:
        """The bytes of all blocks of one kind."""
        return sum([block.nbytes for _, block in self.of_kind(kind)])

    @property
    def changed(self) -> list[TensorSpec]:
        """The arguments that the program writes to."""
        return [spec for spec in self.arguments if self.blocks[spec.cell.block].is_written]

    @property
    def used_blocks(self) -> frozenset[int]:
        """The blocks that steps use, and all states."""
        used = {number for number, _ in self.of_kind(BlockKind.STATE)}
        for step in every_step(self.steps):
            cells = (step.to, step.source) if isinstance(step, Copy) else step.cells
            used |= {cell.block for cell in cells if cell.nbytes}
        return frozenset(used)

    @property
    def kernels(self) -> list[Kernel]:
        """The steps that are kernels, those of loops too."""
        return [step for step in every_step(self.steps) if isinstance(step, Kernel)]

    @property
    def row_functions(self) -> dict[str, str]:
        """The functions of rows among the kernels, by the kernel's name."""
        found = [(kernel.name, kernel.row_function) for kernel in self.kernels]
        return {name: function for name, function in found if function is not None}

    def check_values(self, values: Mapping[Variable, int]) -> None:
        """Raises `ValueError` for a variable without a value, or with one that does not fit."""
        for variable in self.variables:
            if variable not in values:
                raise ValueError(f"{self.name}: variable {variable.name} has no value")
            variable.bind(values[variable])
        for spare in self.limits:
            if spare.infer(values) < 0:
                raise ValueError(f"{self.name}: {spare} is negative with these values")
