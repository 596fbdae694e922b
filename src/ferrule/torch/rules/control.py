"""Branches and loops, whose bodies are graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import ferrule.transforms as loops
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule
from ferrule.torch.values import Operand, as_tensor, result_dtype

Values = Sequence[Operand]


class Graph(Protocol):
    """A branch, or the body of a loop."""

    def run(self, inputs: Values) -> list[Any]:
        """The outputs for these inputs."""


@rule("higher_order::cond")
def cond(pred: Operand, true_fn: Graph, false_fn: Graph, operands: Values) -> tuple[Tensor, ...]:
    chosen: tuple[Tensor, ...] = loops.cond(
        pred,
        lambda *given: tuple(_tensors(true_fn.run(given))),
        lambda *given: tuple(_tensors(false_fn.run(given))),
        *_tensors(operands),
    )
    return chosen


@rule("higher_order::while_loop")
def while_loop(
    cond_fn: Graph, body_fn: Graph, carried_inputs: Values, additional_inputs: Values
) -> tuple[Tensor, ...]:
    last: tuple[Tensor, ...] = loops.while_loop(
        lambda carried: cond_fn.run([*carried, *additional_inputs])[0],
        lambda carried: tuple(_tensors(body_fn.run([*carried, *additional_inputs]))),
        tuple(_tensors(carried_inputs)),
    )
    return last


@rule("higher_order::scan")
def scan(
    combine_fn: Graph, init: Sequence[Tensor], xs: Sequence[Tensor], additional_inputs: Values
) -> tuple[Tensor, ...]:
    count = len(init)

    def step(carry: tuple[Tensor, ...], row: tuple[Tensor, ...]) -> tuple[Values, Values]:
        results = _tensors(combine_fn.run([*carry, *row, *additional_inputs]))
        return tuple(results[:count]), tuple(results[count:])

    last, rows = loops.scan(step, tuple(init), tuple(xs))
    return (*last, *rows)


@rule("higher_order::map_impl")
def map_impl(f: Graph, xs: Sequence[Tensor], pos_args: Values) -> tuple[Tensor, ...]:
    return scan(f, (), xs, pos_args)


def _tensors(values: Values) -> list[Tensor]:
    return [as_tensor(value, result_dtype(value)) for value in values]
