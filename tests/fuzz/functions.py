"""Functions made of a program's function: its gradients in several ways, mapped, or cut in two.

Each of them takes the arguments of a call, and returns what a plain run of that call gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ferrule
from ferrule import Tensor, TinyJit
from tests.fuzz.program import Program, assigned, loaded, tuple_text, written
from tests.fuzz.reference import gradients, total

Step = Callable[..., Sequence[Tensor]]

DERIVATIVES = ("tape", "grad", "vjp", "jvp", "checkpoint")
"""Ways to the same gradients; the empty one is `Tensor.gradient`."""
INSIDE = ("grad", "vjp", "jvp")
"""The derivatives that are function transformations, so that others can contain them."""
ORACLES = ("differences", "second")
"""Gradients, and gradients of gradients, compared with differences of what they are of."""
MOST_COLUMNS = 64
"""Of a Jacobian: with more elements to differentiate by, a way by columns takes too long."""


# -- gradients -----------------------------------------------------------------------------------


def with_gradients(step: Step, wanted: Sequence[int], derivative: str) -> Step:
    """The results of `step`, and the gradients of their `total` by the arguments of `wanted`."""
    if not wanted:
        return step
    return {
        "": _by_gradient,
        "tape": _by_tape,
        "grad": _by_grad,
        "vjp": _by_vjp,
        "jvp": _by_columns,
        "checkpoint": _by_checkpoint,
    }[derivative](step, wanted)


def _by_gradient(step: Step, wanted: Sequence[int]) -> Step:
    def whole(*arguments: Tensor) -> Sequence[Tensor]:
        results = step(*arguments)
        return (*results, *gradients(results, [arguments[place] for place in wanted]))

    return whole


def _by_checkpoint(step: Step, wanted: Sequence[int]) -> Step:
    return _by_gradient(ferrule.checkpoint(step), wanted)


def _by_tape(step: Step, wanted: Sequence[int]) -> Step:
    """By `backward`, with results that were computed before; gradients are added up in `grad`."""

    def whole(*arguments: Tensor) -> Sequence[Tensor]:
        for place in wanted:
            arguments[place].grad = None
        results = step(*arguments)
        Tensor.realize(*results)
        number = total(results)
        if number is not None and number.requires_grad:
            number.backward()
        found = [arguments[place].grad for place in wanted]
        zeros = [arguments[place].detach() * 0 for place in wanted]
        pairs = zip(found, zeros, strict=True)
        return (*results, *(zero if slope is None else slope for slope, zero in pairs))

    return whole


def of_wanted(step: Step, wanted: Sequence[int], arguments: Sequence[Tensor]) -> Step:
    """The results as a function of the arguments of `wanted` alone."""

    def function(*inputs: Tensor) -> Sequence[Tensor]:
        given = list(arguments)
        for place, value in zip(wanted, inputs, strict=True):
            given[place] = value
        return step(*given)

    return function


def number_of(function: Step) -> Callable[..., tuple[Tensor, Any]]:
    """The `total` of a function's results, and these."""

    def number(*inputs: Tensor) -> tuple[Tensor, Any]:
        results = tuple(function(*inputs))
        found = total(results)
        return (Tensor(0.0) if found is None else found), results

    return number


def _by_grad(step: Step, wanted: Sequence[int]) -> Step:
    def whole(*arguments: Tensor) -> Sequence[Tensor]:
        function = number_of(of_wanted(step, wanted, arguments))
        inputs = [arguments[place].detach() for place in wanted]
        slopes, results = ferrule.grad(function, tuple(range(len(inputs))), True)(*inputs)
        return (*results, *slopes)

    return whole


def _by_vjp(step: Step, wanted: Sequence[int]) -> Step:
    def whole(*arguments: Tensor) -> Sequence[Tensor]:
        function = number_of(of_wanted(step, wanted, arguments))
        inputs = [arguments[place].detach() for place in wanted]
        number, pull, results = ferrule.vjp(function, *inputs, has_aux=True)
        slopes = pull(Tensor.ones_like(number))
        return (*results, *slopes)

    return whole


def _by_columns(step: Step, wanted: Sequence[int]) -> Step:
    """Forwards: one column of the Jacobian for each element; by `grad` if there are many."""

    def whole(*arguments: Tensor) -> Sequence[Tensor]:
        inputs = [arguments[place].detach() for place in wanted]
        if sum(math.prod(x.shape) for x in inputs) > MOST_COLUMNS:
            return _by_grad(step, wanted)(*arguments)
        function = number_of(of_wanted(step, wanted, arguments))
        slopes, results = ferrule.jacfwd(function, tuple(range(len(inputs))), True)(*inputs)
        # A column is of the dtype of what is differentiated, a gradient of that of the argument.
        pairs = zip(slopes, inputs, strict=True)
        return (*results, *(slope.cast(x.dtype) for slope, x in pairs))

    return whole


# -- the function mapped over calls ---------------------------------------------------------------


def mapped(function: Step) -> Callable[[Sequence[Sequence[Tensor]]], list[Sequence[Tensor]]]:
    """All calls at once: their arguments stacked, the results taken apart."""

    def over(calls: Sequence[Sequence[Tensor]]) -> list[Sequence[Tensor]]:
        stacked = [Tensor.stack(*tensors).detach() for tensors in zip(*calls, strict=True)]
        results = ferrule.vmap(function)(*stacked)
        return [[result[number] for result in results] for number in range(len(calls))]

    return over


# -- the function as two --------------------------------------------------------------------------


def in_two(program: Program, place: int, names: dict[str, Any], jit: bool) -> Step:
    """The function as two, of which the second goes on from the statement at `place`."""
    first, second = program.body[:place], program.body[place:]
    arguments = [source.name for source in program.arguments]
    made = [*arguments, *(name for line in first for name in assigned(line))]
    used = {name for line in second for name in (*loaded(line), written(line))}
    passed = [name for name in dict.fromkeys(made) if name in used or name in program.results]
    parts = [
        (_part(program, first, "first", arguments, passed)),
        (_part(program, second, "second", passed, list(program.results))),
    ]
    for text in parts:
        exec(text, names)
    one, two = names["first"], names["second"]
    if jit:
        one, two = TinyJit(one), TinyJit(two)

    def whole(*values: Tensor) -> Sequence[Tensor]:
        results: Sequence[Tensor] = two(*one(*values))
        return results

    return whole


def _part(
    program: Program, body: Sequence[str], name: str, inputs: Sequence[str], outputs: Sequence[str]
) -> str:
    states = [source.name for source in program.states]
    writes = [state for state in states if any(written(line) == state for line in body)]
    lines = [f"def {name}({', '.join(inputs)}):"]
    lines += [f"    global {', '.join(writes)}"] if writes else []
    lines += [f"    {line}" for line in body]
    return "\n".join([*lines, f"    return {tuple_text(outputs) if outputs else '()'}"]) + "\n"
