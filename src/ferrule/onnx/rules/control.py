"""Control flow: branches, loops, and scans over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.engine.loop_body import LoopError
from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.values import Value, as_host, as_tensor, is_host
from ferrule.tensor import Tensor
from ferrule.transforms.control import cond
from ferrule.transforms.loops import scan as scan_rows


@rule("If")
def if_(condition: Any, *, then_branch: Any, else_branch: Any) -> tuple[Value, ...]:
    if isinstance(condition, Tensor):
        try:
            chosen: tuple[Value, ...] = cond(
                condition, lambda: _tensors(then_branch()), lambda: _tensors(else_branch())
            )
            return chosen
        except LoopError:
            pass  # the branches differ in shapes, or one needs values: the condition is read
    return tuple(then_branch() if bool(as_host(condition).item()) else else_branch())


def _tensors(values: Sequence[Value]) -> tuple[Tensor, ...]:
    """Values as tensors; raises `LoopError` for sequences, which no loop can carry."""
    if any(value is None or isinstance(value, list) for value in values):
        raise LoopError("a sequence cannot be carried by a loop")
    return tuple(as_tensor(value) for value in values)  # type: ignore[arg-type]


@rule("Loop")
def loop(trips: Any = None, condition: Any = None, *carried: Any, body: Any) -> tuple[Value, ...]:
    most = None if trips is None else int(as_host(trips).item())
    going = condition is None or bool(as_host(condition).item())
    if most is not None and most > 1 and going:
        try:
            return _counted(most, carried, body)
        except LoopError:
            pass  # shapes change, or values are needed: each trip is run from here
    return _one_by_one(most, going, carried, body)


def _counted(trips: int, carried: Sequence[Value], body: Any) -> tuple[Value, ...]:
    """A loop of a known number of trips, as one node; raises `LoopError` if it cannot be one."""
    true = np.asarray(True)

    def step(state: tuple[Tensor, ...], trip: Tensor) -> tuple[Any, Any]:
        again, *results = body(trip, true, *state)
        if not is_host(again) or not as_host(again).item():
            raise LoopError("the loop may end early")
        values = _tensors(results)
        return values[: len(state)], values[len(state) :]

    last, rows = scan_rows(step, _tensors(carried), Tensor.arange(trips, dtype=dtypes.int64))
    return (*last, *rows)


def _one_by_one(
    most: int | None, going: bool, carried: Sequence[Value], body: Any
) -> tuple[Value, ...]:
    state: list[Value] = list(carried)
    rows: list[list[Value]] = [[] for _ in range(body.n_outputs - 1 - len(state))]
    trip = 0
    while going and (most is None or trip < most):
        again, *results = body(np.asarray(trip, np.int64), np.asarray(True), *state)
        state = results[: len(state)]
        for row, value in zip(rows, results[len(state) :], strict=True):
            row.append(value)
        going = bool(as_host(again).item())
        trip += 1
    return (*state, *map(_stacked, rows))


def _stacked(rows: Sequence[Value]) -> Value:
    return Tensor.stack(*_tensors(rows)) if rows else Tensor.zeros(0)


@rule("Scan", 9)
def scan(
    *values: Tensor,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    n = num_scan_inputs
    state, rows = values[: len(values) - n], values[len(values) - n :]
    xs = tuple(
        _turned(x.moveaxis(axis, 0), backwards)
        for x, axis, backwards in zip(
            rows, scan_input_axes or [0] * n, scan_input_directions or [0] * n, strict=True
        )
    )

    def step(carry: tuple[Tensor, ...], row: tuple[Tensor, ...]) -> tuple[Any, Any]:
        results = [as_tensor(value) for value in body(*carry, *row)]
        return tuple(results[: len(carry)]), tuple(results[len(carry) :])

    last, ys = scan_rows(step, tuple(state), xs)
    count = len(ys)
    outputs = [
        _turned(y, backwards).moveaxis(0, axis)
        for y, axis, backwards in zip(
            ys, scan_output_axes or [0] * count, scan_output_directions or [0] * count, strict=True
        )
    ]
    return (*last, *outputs)


def _turned(x: Tensor, backwards: int) -> Tensor:
    return x.flip(0) if backwards else x


@rule("Scan", 8)
def scan_8(
    lengths: Any,
    *values: Tensor,
    body: Any,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    # One scan for each example of a batch.
    examples = [
        scan(
            *(value[i] for value in values),
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        for i in range(values[0].shape[0])
    ]
    return tuple(Tensor.stack(*parts) for parts in zip(*examples, strict=True))
