"""Loops: those over rows are ONNX's Scan, those with a condition or a counted number its Loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from ferrule.engine.loop_runs import Loop
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import as_int
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.shape.view import Shape, same
from ferrule.onnx.writer.builder import Builder, Value, reachable
from ferrule.onnx.writer.movements import sliced
from ferrule.onnx.writer.plan import Plan, Planner, rule

_NO_NAME: Final = ""


@rule(LoadOps.RESULT)
def _result(planner: Planner, node: LazyBuffer) -> Plan | None:
    (run,) = node.srcs
    if not isinstance(run.arg, Loop):
        return None
    written = planner.loops.get(run)
    if written is None:
        written = planner.loops[run] = Written(planner, run)
    if not written.can_give(node.arg):
        return None
    return Plan(run.srcs, lambda builder, *values: written.result(builder, values, node.arg))


@final
class Written:
    """One run of a loop, which is written when the first of its results is."""

    def __init__(self, planner: Planner, run: LazyBuffer) -> None:
        self.loop: Loop = run.arg
        self.trips = as_int(run.shape[0] - 1)
        self.node = run
        self.body = self.loop.body
        self.inner = planner.inside()
        self._results: list[Value] | None = None
        leaves = [*self.body.carries, *self.body.rows, *self.loop.constants]
        for leaf in leaves:
            self.inner.values[leaf] = Value(_NO_NAME, leaf.dtype, leaf.shape)
        self.inner.plan(self.body.outs)

    @property
    def is_scan(self) -> bool:
        """True if the number of trips is known before it runs."""
        return self.loop.is_limited and self.loop.condition is None and not self.loop.is_counted

    def can_give(self, number: int) -> bool:
        """True for the last carries, and for rows of a known number."""
        return self.is_scan or number < len(self.body.carries) or number == self._count

    @property
    def _count(self) -> int:
        """The number of the result that is the number of trips."""
        return len(self.body.carries) + len(self.body.outs)

    def result(self, builder: Builder, values: Sequence[Value], number: int) -> Value:
        """The result with a number: last carries, stacked rows, stacked carries, trips."""
        if self._results is None:
            self._results = (
                self._scan(builder, values) if self.is_scan else self._loop(builder, values)
            )
        return self._results[number]

    # -- over rows -------------------------------------------------------------------------------

    def _scan(self, builder: Builder, values: Sequence[Value]) -> list[Value]:
        body = self.body
        n, m = len(body.carries), len(body.rows)
        inner = Builder(builder.scope, builder)
        starts = self._starts(builder, values[:n])
        arrays = [
            self._rows(builder, array, first)
            for array, first in zip(values[n : n + m], self.loop.firsts, strict=True)
        ]
        carries = [self._given(inner, node, "carry") for node in body.carries]
        rows = [self._given(inner, node, "row") for node in body.rows]
        self._set_constants(values[n + m :])
        outs = self.inner.write(inner, body.outs)
        given = [inner.copied(out, "after") for out in [*outs, *carries]]
        graph = _graph(inner, [*carries, *rows], given, "trip")
        stacked = [(node.dtype, (self.trips, *node.shape)) for node in body.outs[n:]]
        kept = [(node.dtype, (self.trips, *node.shape)) for node in body.carries]
        last = [(node.dtype, node.shape) for node in body.carries]
        backwards = int(self.loop.backwards)
        options: dict[str, Any] = {"num_scan_inputs": m}
        if backwards:
            options["scan_input_directions"] = [1] * m
            options["scan_output_directions"] = [1] * (len(stacked) + n)
        if not m:
            arrays, options = [self._count_of(builder)], {**options, "num_scan_inputs": 1}
            if backwards:
                options["scan_input_directions"] = [1]
            graph = _graph(inner, [*carries, self._unused(inner)], given, "trip")
        outputs = [*last, *stacked, *kept]
        found = builder.several("Scan", [*starts, *arrays], outputs, body=graph, **options)
        ends, others, before = found[:n], found[n : n + len(stacked)], found[n + len(stacked) :]
        pairs = zip(before, ends, strict=True)
        kept_all = [self._with_last(builder, some, end) for some, end in pairs]
        count = builder.cast(builder.size(self.trips), dtypes.int32)
        return [*ends, *others, *kept_all, count]

    def _rows(self, builder: Builder, array: Value, first: Any) -> Value:
        if same(array.shape[0], self.trips):
            return array
        part = sliced(builder, array, [(0, first, as_int(first + self.trips), 1)])
        return part._replace(shape=(self.trips, *array.shape[1:]))

    def _count_of(self, builder: Builder) -> Value:
        """A row of nothing for each trip, where there are no others."""
        zero = builder.number(0, dtypes.bool)
        return builder.expand(zero, (self.trips,))

    def _unused(self, inner: Builder) -> Value:
        return Value(inner.scope.fresh("row"), dtypes.bool, ())

    def _with_last(self, builder: Builder, rows: Value, last: Value) -> Value:
        """The carries before each trip, and those after the last one where the next would be."""
        shape = (as_int(self.trips + 1), *last.shape)
        end = builder.reshape(last, (1, *last.shape))
        parts = [end, rows] if self.loop.backwards else [rows, end]
        return builder.add("Concat", parts, last.dtype, shape, axis=0)

    # -- with a condition ------------------------------------------------------------------------

    def _loop(self, builder: Builder, values: Sequence[Value]) -> list[Value]:
        body, loop = self.body, self.loop
        n, m = len(body.carries), len(body.rows)
        starts = self._starts(builder, values[:n])
        arrays = values[n : n + m]
        constants = values[n + m :]
        most = builder.reshape(builder.size(self.trips), ()) if loop.is_limited else None
        if loop.is_counted:
            *constants, count = constants
            wanted = builder.reshape(builder.cast(count, dtypes.int64), ())
            most = wanted if most is None else builder.like("Min", wanted, most)
        self._set_constants(constants)
        inner = Builder(builder.scope, builder)
        trip = Value(inner.scope.fresh("trip"), dtypes.int64, ())
        going = Value(inner.scope.fresh("going"), dtypes.bool, ())
        carries = [self._given(inner, node, "carry") for node in body.carries]
        before = Value(inner.scope.fresh("count"), dtypes.int32, (1,))
        for node, array, first in zip(body.rows, arrays, loop.firsts, strict=True):
            place = trip
            if loop.backwards:
                assert most is not None
                end = inner.like("Sub", most, inner.number(1, dtypes.int64))
                place = inner.like("Sub", end, trip)
            place = inner.like("Add", place, inner.reshape(inner.size(first), ()))
            row = inner.add("Gather", [array, place], array.dtype, array.shape[1:], axis=0)
            self.inner.values[node] = row
        outs = self.inner.write(inner, body.outs[:n])
        after = inner.like("Add", before, inner.constant(np.ones(1, np.int32)))
        if loop.condition is None:
            on: Value = inner.number(True, dtypes.bool)
        else:
            on = inner.reshape(outs[loop.condition], ())
        given = [inner.copied(value, "after") for value in (on, *outs, after)]
        graph = _graph(inner, [trip, going, *carries, before], given, "trip")
        first_going = None
        if loop.condition is not None:
            first_going = builder.reshape(starts[loop.condition], ())
        zero = builder.constant(np.zeros(1, np.int32))
        outputs: list[tuple[DType, Shape]] = [(node.dtype, node.shape) for node in body.carries]
        outputs.append((dtypes.int32, (1,)))
        inputs = [most, first_going, *starts, zero]
        found = builder.several("Loop", inputs, outputs, body=graph)
        count_after = found[-1]
        # Rows of results are never asked for.
        return [*found[:n], *[count_after] * (self._count - n + 1)]

    # -- the body --------------------------------------------------------------------------------

    def _starts(self, builder: Builder, values: Sequence[Value]) -> list[Value]:
        """The carries before the first trip."""
        pairs = zip(values, self.body.carries, strict=True)
        return [builder.reshape(value, node.shape) for value, node in pairs]

    def _given(self, inner: Builder, node: LazyBuffer, wanted: str) -> Value:
        value = Value(inner.scope.fresh(wanted), node.dtype, node.shape)
        self.inner.values[node] = value
        return value

    def _set_constants(self, values: Sequence[Value]) -> None:
        self.inner.values.update(zip(self.loop.constants, values, strict=True))


def _graph(inner: Builder, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> Any:
    from onnx import helper

    nodes = reachable(inner.nodes, [value.name for value in outputs])
    given, made = [[value.info() for value in part] for part in (inputs, outputs)]
    return helper.make_graph(nodes, name, given, made)
