"""Runs a program in plain Python: the meaning of the program IR, and the oracle of every renderer.

Each value is a NumPy array with a column for each lane, in the value's own dtype, so that float32
arithmetic rounds to float32. It has a row for each thread that goes in step, or one row if all
threads have the same. The interpreter is strict where compiled code would silently do something
else: an access outside a buffer, a read of scratch memory that was never written, a divisor of an
index that is not positive, a shift by the width or more, an operation that needs expanding first, a
race between the threads of a block, or a barrier that not all of them reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy

from ferrule.codegen.interpret.arithmetic import Array, InterpretError, matrices, mma, unfolded
from ferrule.codegen.interpret.machine import Block, Machine, Program
from ferrule.codegen.interpret.memory import NOBODY, AccessError, Memory, RaceError, Users
from ferrule.codegen.uops import UOp, UOps, verify

__all__ = [
    "AccessError",
    "InterpretError",
    "RaceError",
    "extent",
    "interpret",
    "matrices",
    "mma",
    "unfolded",
]


def _by_slot(values: Mapping[int, int] | Sequence[int], n_buffers: int) -> Mapping[int, int]:
    return values if isinstance(values, Mapping) else dict(enumerate(values, n_buffers))


def extent(
    uops: Sequence[UOp], values: Mapping[int, int] | Sequence[int] = (), n_buffers: int = 0
) -> int:
    """The number of chunks of a program: its EXTENT.

    `values` are as for `interpret`; `n_buffers` is needed if they are a list.
    """
    by_slot = _by_slot(values, n_buffers)
    verify(uops)
    machine = Machine(Program(uops), (), by_slot, (0, 0), numpy.arange(1), {})
    for _ in machine.run(stop_at=UOps.EXTENT):
        pass
    (found,) = (u for u in uops if u.op is UOps.EXTENT)
    return machine.number(found.src[0])


def interpret(
    uops: Sequence[UOp],
    buffers: Sequence[Array],
    values: Mapping[int, int] | Sequence[int] = (),
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Do chunks `start` to `stop` - 1 of a program; all of them by default.

    `buffers` are flat arrays, in the order of the PARAMs' slots; the stores change them. `values`
    maps slots of the argument table to the variables' values; a list gives those of the slots
    behind the buffers.

    Raises:
        ProgramError: the program breaks the rules of the IR (`verify`).
        AccessError: a load or a store is out of range, or reads scratch that was never written.
        RaceError: a thread, or a block, touches what another writes.
        InterpretError: anything else that compiled code must not do.
    """
    verify(uops)
    by_slot = _by_slot(values, len(buffers))
    if stop is None:
        stop = extent(uops, by_slot)
    program = Program(uops)
    numbers = numpy.arange(program.threads)
    parts = [numbers] if program.in_step() else list(numbers[:, None])
    chunks = [(i, i + 1) for i in range(start, stop)] if program.threads > 1 else [(start, stop)]
    written: dict[int, Users] = {}
    with numpy.errstate(all="ignore"):
        for bounds in chunks:
            common: dict[UOp, Memory] = {}
            machines = [Machine(program, buffers, by_slot, bounds, t, common) for t in parts]
            Block(machines, common).run()
            _check_blocks(common, written, bounds[0])


def _check_blocks(common: Mapping[UOp, Memory], blocks: dict[int, Users], block: int) -> None:
    """Check the reads and writes of a block against those of the blocks before it."""
    for pointer, memory in common.items():
        if pointer.op is not UOps.PARAM or memory.users is None:
            continue
        of_all = blocks.setdefault(pointer.arg, Users(len(memory.data)))
        accesses = (memory.users.readers, of_all.read), (memory.users.writers, of_all.write)
        for users, record in accesses:
            (chosen,) = numpy.nonzero(users != NOBODY)
            record(chosen, numpy.full(len(chosen), block), f"{memory.name} (as a block)")
