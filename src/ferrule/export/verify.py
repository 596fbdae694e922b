"""Compares what a backend wrote with the captured function: the same inputs, the same bits.

The inputs are random numbers; integers are zeros, which are good as indices too. The replay runs on
copies, so that the tensors of the program that exports keep their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.device import BufferCopy
from ferrule.export.interpret import Array as Array
from ferrule.export.interpret import Instance
from ferrule.export.program import BlockKind, Copy, ExportedProgram, ExportError
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Variable, as_expr
from ferrule.ir.storage import turn
from ferrule.jit import BoundJit, TinyJit
from ferrule.jit.replay import Replay

Run: TypeAlias = Callable[
    [Mapping[str, Array], Mapping[Variable, int]], tuple[Mapping[str, Array], Mapping[str, Array]]
]
"""`run(arguments, sizes)` gives the results and the states afterwards, all by name, and writes to
the arguments that the program changes. A call goes on with the states that the one before left."""


@final
@dataclass(frozen=True)
class Verified:
    """What was compared, and the largest difference, relative to the largest number."""

    tensors: int
    runs: int
    error: float

    def __str__(self) -> str:
        count = "1 tensor" if self.tensors == 1 else f"{self.tensors} tensors"
        same = "the replay's bits" if self.error == 0 else f"within {self.error:.1e} of the replay"
        return f"{count} in {self.runs} runs: {same}"


def random_arguments(program: ExportedProgram, seed: int) -> dict[str, Array]:
    """Arguments of the largest sizes."""
    generator = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for spec in program.arguments:
        array = np.zeros(spec.capacity, spec.dtype.np)
        if spec.dtype.exponent_bits:
            array[...] = generator.standard_normal(spec.capacity)
        found[spec.name] = array
    return found


def sizes_to_try(
    program: ExportedProgram, captured: Mapping[Variable, int]
) -> list[dict[Variable, int]]:
    """Values of the variables: those of the captured call, and the largest and least that fit."""
    tries = [
        {one: captured.get(one, one.max) for one in program.variables},
        {one: one.max for one in program.variables},
        {one: one.min for one in program.variables},
    ]
    fitting: list[dict[Variable, int]] = []
    for values in tries:
        fits = all([as_expr(spare).infer(values) >= 0 for spare in program.limits])
        if fits and values not in fitting:
            fitting.append(values)
    return fitting


def verify(
    step: TinyJit[Any] | BoundJit[Any],
    program: ExportedProgram,
    run: Run,
    tolerance: float = 0.0,
) -> Verified:
    """Runs a program and the replay that it was made of, three times or more, and compares them.

    Raises `ExportError` if a result or a state differs: in its bits, or, with a `tolerance`, by
    more than that, relative to the largest number of the tensor.
    """
    with turn:
        replay, _, _ = step.last_replay()
        assert replay is not None, "the program was made of it"
        reference = Instance(program)
        tries = sizes_to_try(program, replay.var_vals)
        count, worst = 0, 0.0
        while len(tries) < 3:
            tries.append(tries[-1])
        for number, values in enumerate(tries):
            arguments = random_arguments(program, number)
            for name, array in arguments.items():
                reference.arguments[name][...] = array
            _run_replay(replay, reference, values)
            results, states = run(arguments, values)
            compared = [
                *[("result", spec, results, values) for spec in program.results],
                *[("state", spec, states, {}) for spec in (*program.states, *program.effects)],
                *[("argument", spec, arguments, values) for spec in program.changed],
            ]
            for what, spec, found, known in compared:
                wanted = reference.array(spec, known)
                got = found[spec.name][tuple([slice(size) for size in wanted.shape])]
                limit = _limit(spec.dtype, tolerance)
                name = f"{what} {spec.name}"
                worst = max(worst, _compare(program.name, name, got, wanted, limit))
                count += 1
        return Verified(count // len(tries), len(tries), worst)


def _limit(dtype: DType, tolerance: float) -> float:
    """The allowed difference: of floats that have few digits, half of these may differ."""
    few = 2.0 ** (-dtype.mantissa_bits / 2) if dtype.exponent_bits else 0.0
    return max(tolerance, few) if tolerance else 0.0


def _compare(program: str, name: str, got: Array, wanted: Array, tolerance: float) -> float:
    """The difference of two arrays, relative to the largest number; of integers, the part that
    differs, such as the place of the largest of two numbers that are nearly equal."""
    if got.shape == wanted.shape and got.tobytes() == wanted.tobytes():
        return 0.0
    error = float("inf")
    if got.shape == wanted.shape and tolerance and wanted.dtype.kind in "biu":
        error = float((got != wanted).mean())
    elif got.shape == wanted.shape and tolerance:
        a, b = got.view(wanted.dtype).astype(np.float64), wanted.astype(np.float64)
        if (np.isnan(a) == np.isnan(b)).all():
            with np.errstate(invalid="ignore"):
                distance = np.where(a == b, 0, np.abs(a - b))
            largest = np.max(np.abs(b), where=np.isfinite(b), initial=0.0)
            error = float(np.nanmax(distance, initial=0.0) / (largest or 1.0))
    if error > tolerance:
        raise ExportError(
            f"{program}: the {name} of the exported program differs from the replay's (relative "
            f"error {error:.2e}); this is a fault of ferrule, please report it"
        )
    return error


def _run_replay(replay: Replay, instance: Instance, values: Mapping[Variable, int]) -> None:
    """Runs a replay on the memory of an instance, and puts what it computes there."""
    program = instance.program
    kept = [(memory, _copied(memory)) for memory in replay.changed]
    inputs = [Buffer(*kind) for kind in replay.batch.kinds]
    first_part = len(inputs) - len(replay.parts)
    for buffer, cell in zip(inputs, program.inputs, strict=True):
        memory = instance.memory[cell.block][cell.offset : cell.offset + cell.nbytes]
        buffer.copyin(np.ascontiguousarray(memory).data)
    for number, part in enumerate(replay.parts, start=first_part):
        inputs[number] = part.take(inputs)
    blocks = [
        (number, block.memory)
        for number, block in program.of_kind(BlockKind.STATE)
        if block.memory is not None and block.memory in replay.changed
    ]
    try:
        for number, state in blocks:
            state.copyin(instance.memory[number].data)
        batch = replay.batch
        if replay.packed is not None and replay.packed.are_ready():
            batch = replay.packed.batch
        batch.run(inputs, {**replay.var_vals, **values})
        for number, state in blocks:
            instance.memory[number][:] = state.copied((state.size,)).view(np.uint8)
    finally:
        for state, contents in kept:
            BufferCopy(state.device, state.nbytes, state.device)([state, contents], {})
    for buffer, cell in zip(inputs, program.inputs, strict=True):
        memory = instance.memory[cell.block][cell.offset : cell.offset + cell.nbytes]
        memory[...] = buffer.copied((buffer.size,)).view(np.uint8)
    for step in program.steps[program.replayed :]:
        assert isinstance(step, Copy), "all kernels are the replay's"
        to, source = step.to, step.source
        moved = instance.memory[source.block][source.offset : source.offset + source.nbytes]
        instance.memory[to.block][to.offset : to.offset + to.nbytes] = moved


def _copied(memory: Buffer) -> Buffer:
    copy = Buffer(memory.device, memory.size, memory.dtype)
    BufferCopy(copy.device, copy.nbytes, memory.device)([copy, memory], {})
    return copy
