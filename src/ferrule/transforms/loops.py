"""`scan`: a function that is run again and again on values that it carries on.

The function is traced once, on placeholders, and becomes the body of a loop (`engine/loop.py`).
Its gradient is another loop, in the other direction: the body of that is the reverse pass through
one trip. It reads the values that the trip began with, which the first loop then keeps, and the
results of reduces and of slow functions; the rest it computes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeVar, final

import numpy as np

from ferrule.autograd import (
    IDENTITY,
    GradEdge,
    GradientError,
    Gradients,
    GradNode,
    Parts,
    Rule,
    TracedValue,
    is_recording,
    record_several,
    result_of,
    tape_position,
    transforming,
)
from ferrule.autograd.backward import entries_below, pull_back
from ferrule.base.callbacks import call_back
from ferrule.base.containers import leaves, mapped, matching
from ferrule.base.helpers import check_function
from ferrule.base.records import dataclass
from ferrule.engine.loop import (
    Body,
    LoopError,
    Results,
    Trips,
    loop_results,
    made_of,
    placeholder,
    toposort_until,
)
from ferrule.engine.random import Words, drawn_by, random_words
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps, ReduceOps, UnaryOps
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor import Tensor
from ferrule.tensor.cell import watch_writes

Carry = TypeVar("Carry")

_STORED: Final = frozenset(
    {
        *ReduceOps,
        *FunctionOps,
        *(UnaryOps.EXP2, UnaryOps.LOG2, UnaryOps.SIN, UnaryOps.COS),
        *(LoadOps.CUSTOM, LoadOps.RESULT, LoadOps.TEMPLATE, MovementOps.GATHER),
    }
)
"""The ops whose results the reverse pass reads: to compute them again would take longer."""


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: sint | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `carry, y = f(carry, x)` for each row `x` of `xs`; gives the last carry, and all `y`.

    `init` is the first carry. `carry`, `x` and `y` are tensors, or tuples, lists, dicts or
    dataclasses of tensors; numbers and NumPy arrays in `init` and `xs` become tensors. The rows are
    along axis 0 of the tensors in `xs`, and the `y` are stacked there. With `reverse` the last row
    comes first. Without `xs`, `x` is None and `length` is the number of rows: an integer or a bound
    `Variable`.

    `f` is called once, on tensors that stand for the values of each row, and runs as one loop.
    Tensors that it closes over may be parts of it; what depends on these alone is computed once. It
    may draw random numbers, which differ from row to row.

    Raises `LoopError` if `f` returns no pair, or a carry of another shape, dtype or structure; if
    it reads the values of tensors, or writes to tensors from outside. Raises `ShapeError` if the
    numbers of rows differ, or are not given.

    >>> import ferrule
    >>> def step(total, x):
    ...     total = total + x
    ...     return total, total * 10
    >>> last, all_of_them = ferrule.scan(step, ferrule.Tensor(0.0), ferrule.Tensor([1.0, 2.0, 3.0]))
    >>> last.item(), all_of_them.tolist()
    (6.0, [10.0, 30.0, 60.0])
    """
    check_function(f, "scan")
    init, xs = mapped(init, number_as_tensor), mapped(xs, number_as_tensor)
    starts, arrays = values_in("scan", "init", init), values_in("scan", "xs", xs)
    n_rows = _trips(arrays, length)
    trace = LoopTrace("scan", starts, arrays, n_rows)
    found = trace.call(f, init, xs)
    if not isinstance(found, tuple) or len(found) != 2:
        raise LoopError(
            f"[scan] the function returns a pair (carry, y), not {_shown(found)}; return "
            "(carry, None) if there is nothing to stack"
        )
    carry, y = mapped(found[0], number_as_tensor), mapped(found[1], number_as_tensor)
    following = check_carry("scan", init, carry)
    rows = values_in("scan", "y", y)
    last, stacked = trace.loop(following, rows, Trips(n_rows, reverse))
    return filled_tensors(init, last), filled_tensors(y, stacked)


def number_as_tensor(leaf: Any) -> Any:
    """Numbers and arrays as tensors; everything else as it is."""
    return Tensor(leaf) if isinstance(leaf, int | float | np.ndarray | np.generic) else leaf


def filled_tensors(tree: Any, values: Sequence[TracedValue]) -> Any:
    """The containers with other values in the place of their tensors."""
    contents = iter(values)
    return mapped(tree, lambda leaf: None if leaf is None else Tensor._wrap(next(contents)))


def values_in(what: str, where: str, tree: Any) -> list[TracedValue]:
    """The values of the tensors in containers. Raises `LoopError` for anything but tensors."""
    found = [leaf for leaf in leaves(tree) if leaf is not None]
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise LoopError(
                f"[{what}] {where} holds {leaf!r:.40} ({type(leaf).__name__}); it holds tensors, "
                "numbers and arrays, or None, in tuples, lists, dicts and dataclasses"
            )
    return [leaf._read() for leaf in found]


def _shown(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def _trips(arrays: Sequence[TracedValue], length: sint | None) -> sint:
    """The number of rows."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | Expr)):
        raise TypeError(f"[scan] length is an integer or a bound Variable, not {length!r}")
    if isinstance(length, int) and length < 0:
        raise ShapeError(f"[scan] length {length} is negative")
    found = length
    for value in arrays:
        if not value.shape:
            raise ShapeError(
                "[scan] xs holds a tensor without axes; its tensors have a row for each trip, "
                "along axis 0: close over what is the same in all of them"
            )
        size = value.shape[0]
        if found is None:
            found = size
        elif not same(found, size):
            raise ShapeError(
                f"[scan] a tensor in xs has {size} rows, in shape {value.shape}, and there are to "
                f"be {found}; give all as many"
            )
    if found is None:
        raise ShapeError("[scan] there are neither xs nor a length; give one of them")
    return found


def check_carry(what: str, init: Any, carry: Any) -> list[TracedValue]:
    """The values of a carry after a trip. Raises `LoopError` if they are not as those before it."""
    try:
        after = matching(carry, init, f"[{what}] the carry that the function returns")
    except ValueError as error:
        raise LoopError(str(error)) from None
    paths = list(_paths(init))
    found = []
    for leaf, before, path in zip(after, leaves(init), paths, strict=True):
        if before is None and leaf is None:
            continue
        if before is None or not isinstance(leaf, Tensor):
            raise LoopError(
                f"[{what}] carry{path} is {_kind(before)} before a trip and {_kind(leaf)} after it"
            )
        old, new = before._read(), leaf._read()
        if old.dtype is not new.dtype:
            raise LoopError(
                f"[{what}] carry{path} is of {old.dtype} before a trip and of {new.dtype} after "
                f"it; cast one of them: the loop has one place for both"
            )
        if not _same_shape(old.shape, new.shape):
            raise LoopError(
                f"[{what}] carry{path} has shape {old.shape} before a trip and {new.shape} after "
                "it; expand one of them: the loop has one place for both"
            )
        found.append(new)
    return found


def _same_shape(a: Sequence[sint], b: Sequence[sint]) -> bool:
    return len(a) == len(b) and all(same(m, n) for m, n in zip(a, b, strict=True))


def _kind(leaf: Any) -> str:
    return "None" if leaf is None else f"a {type(leaf).__name__}"


def _paths(tree: Any) -> Any:
    """For each leaf, the text that names it in the containers."""
    if isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", None)
        for number, part in enumerate(tree):
            name = f"[{number}]" if names is None else f".{names[number]}"
            yield from (name + rest for rest in _paths(part))
    elif isinstance(tree, dict):
        for key, part in tree.items():
            yield from (f"[{key!r}]" + rest for rest in _paths(part))
    elif hasattr(type(tree), "__dataclass_fields__"):
        for name in type(tree).__dataclass_fields__:
            yield from (f".{name}" + rest for rest in _paths(getattr(tree, name)))
    else:
        yield ""


# *** the trace of one trip ***


@final
class LoopTrace:
    """The call of a function on placeholders, and the loop that it becomes."""

    def __init__(
        self,
        what: str,
        starts: Sequence[TracedValue],
        arrays: Sequence[TracedValue],
        rows: sint | None,
    ) -> None:
        self.what = what
        self.arrays = list(arrays)
        self._n_rows = rows
        self._tape_start = tape_position()
        self.carries: list[TracedValue] = []
        self.enter(starts)
        self.rows = [self._stand_in(value, value.shape[1:]) for value in arrays]

    def _stand_in(self, value: TracedValue, shape: Sequence[sint]) -> TracedValue:
        """A placeholder for a value in each trip; its edge is an end of the trip's tape."""
        if 0 in shape:
            return value.full(0, tuple(shape))
        node = placeholder(self.what, shape, value.dtype, value.node.device)
        if not dtypes.is_float(value.dtype) or not is_recording():
            return TracedValue(node)
        return TracedValue(node, GradNode("argument", IDENTITY, (TracedValue(node),), node, None))

    def enter(self, starts: Sequence[TracedValue]) -> None:
        """Set the values that the loop starts with."""
        self.starts = list(starts)
        self.carries = [self._stand_in(value, value.shape) for value in starts]

    def call(self, function: Callable[..., Any], init: Any, xs: Any) -> Any:
        """The result of the function on the placeholders."""
        with watch_writes() as before, transforming(is_recording()), drawn_by(self._draw):
            carry, row = filled_tensors(init, self.carries), filled_tensors(xs, self.rows)
            found = call_back(function, carry, row)
        written = [cell for cell, old in before.items() if cell.value.node is not old.node]
        for cell in written:
            cell.restore(before[cell])
        if written:
            raise LoopError(
                f"[{self.what}] the function writes to a tensor from outside, of shape "
                f"{written[0].value.shape}; carry it on, and write to it after the loop"
            )
        return found

    def _draw(self, shape: Sequence[sint], device: str) -> Words:
        """The words of one trip: the words of all trips are rows that it reads."""
        if self._n_rows is None:
            raise LoopError(
                f"[{self.what}] the function draws random numbers, of shape {tuple(shape)}, for an "
                "unknown number of trips; give max_trips"
            )
        words = random_words((self._n_rows, *shape), device)
        found = [self._stand_in(word, tuple(shape)) for word in words]
        self.arrays += words
        self.rows += found
        return found[0], found[1]

    def loop(
        self, following: Sequence[TracedValue], rows: Sequence[TracedValue], trips: Trips
    ) -> tuple[list[TracedValue], list[TracedValue]]:
        """The last carries and the stacked rows."""
        outs = [*following, *rows]
        if trips.most == 0:
            return self.starts, [row.full(0, (0, *row.shape)).detach() for row in rows]
        edges = [value.edge for value in outs if value.edge is not None]
        outside = edges_from_outside(edges, self._tape_start)
        trip = Trip(self.carries, self.rows, outs, outside, self._tape_start)
        return looped(self.what, trip, self.starts, self.arrays, trips)


def edges_from_outside(edges: Sequence[GradEdge], start: int) -> list[GradEdge]:
    """The edges made before a position of the tape that others depend on."""
    below = entries_below(edges, start)
    found = [*edges]
    found += [parent for entry in below for parent in entry.parents if parent is not None]
    inside = set(below)
    return [edge for edge in dict.fromkeys(found) if edge not in inside]


# *** loops as operations with gradients ***


@final
@dataclass(frozen=True, eq=False)
class Trip:
    """One trip as values: placeholders, what it computes of them, and edges from outside.

    `start` is a position of the tape before its entries. `known` are nodes of it that were computed
    before, with the arrays that have them as rows.
    """

    carries: Sequence[TracedValue]
    rows: Sequence[TracedValue]
    outs: Sequence[TracedValue]
    outside: Sequence[GradEdge]
    start: int
    known: Mapping[LazyBuffer, LazyBuffer] = field(default_factory=dict)


def looped(
    what: str,
    trip: Trip,
    starts: Sequence[TracedValue],
    arrays: Sequence[TracedValue],
    trips: Trips,
) -> tuple[list[TracedValue], list[TracedValue]]:
    """The last carries and the stacked rows of a loop, on the tape."""
    sources = [*starts, *arrays]
    n, n_outs = len(starts), len(trip.outs)
    is_recorded = is_recording() and (
        bool(trip.outside) or any(value.edge is not None for value in sources)
    )
    has_rule = is_recorded and trips.most is not None
    needed = _needed(trip, trips.since) if has_rule else _Needed()
    nodes = [out.node for out in trip.outs]
    extra = [node for node in needed.stored if node not in trip.known]
    found = _results(trip, [*nodes, *extra], starts, arrays, trips)
    results = [*found.last, *found.stacked[: n_outs - n]]
    if not is_recorded:
        values = [TracedValue(node) for node in results]
        return values[:n], values[n:]
    known = {**trip.known, **dict(zip(extra, found.stacked[n_outs - n :], strict=True))}
    used = needed.stored
    call = _Call(what, trip, needed, trips, used, n_outs)
    reverse = _reverse if has_rule else _refuse
    rule = Rule(reverse, inputs=tuple([n + j for j in needed.rows]))
    others = [found.kept[k] for k in needed.carries]
    if trips.condition is not None and has_rule:
        others.append(found.count)
    values = record_several(
        what,
        rule,
        sources,
        results,
        call,
        trip.outside,
        kept=[*others, *[known[node] for node in used]],
    )
    return values[:n], values[n:]


def _results(
    trip: Trip,
    outs: Sequence[LazyBuffer],
    starts: Sequence[TracedValue],
    arrays: Sequence[TracedValue],
    trips: Trips,
) -> Results:
    """`loop_results`, for values without elements as well."""
    n = len(starts)
    carried = [k for k in range(n) if 0 not in starts[k].shape]
    read = [j for j, row in enumerate(trip.rows) if 0 not in row.shape]
    given = [k for k in range(n, len(outs)) if 0 not in outs[k].shape]
    leaves_of = [trip.rows[j].node for j in read]
    reached = toposort_until(
        [outs[k] for k in (*carried, *given)],
        {v: None for v in [*[trip.carries[k].node for k in carried], *leaves_of, *trip.known]},
    )
    sources = {source for node in reached for source in node.srcs} | set(outs)
    used = [j for j in read if trip.rows[j].node in sources]
    known = [node for node in trip.known if node in sources]
    body = Body(
        [trip.carries[k].node for k in carried],
        [*[trip.rows[j].node for j in used], *known],
        [outs[k] for k in (*carried, *given)],
    )
    condition = None if trips.condition is None else carried.index(trips.condition)
    found = loop_results(
        body,
        [starts[k].node for k in carried],
        [*[arrays[j].node for j in used], *[trip.known[node] for node in known]],
        replace(trips, condition=condition),
        _device_of(outs, starts, arrays),
    )
    last = [value.node for value in starts]
    kept = [value.full(0, (trips.rows, *value.shape)).node for value in starts]
    for k, node, kept_node in zip(carried, found.last, found.kept, strict=True):
        last[k], kept[k] = node, kept_node
    stacked = [
        LazyBuffer.const(0, out.dtype, (trips.rows, *out.shape), out.device) for out in outs[n:]
    ]
    for k, node in zip(given, found.stacked, strict=True):
        stacked[k - n] = node
    return Results(last, stacked, kept, found.count)


def _device_of(
    outs: Sequence[LazyBuffer], starts: Sequence[TracedValue], arrays: Sequence[TracedValue]
) -> str:
    nodes = [*[value.node for value in (*starts, *arrays)], *outs]
    return nodes[0].device


# *** gradients ***


@final
@dataclass(frozen=True, eq=False)
class _Needed:
    """The values of a trip that its reverse pass reads."""

    carries: Sequence[int] = ()
    rows: Sequence[int] = ()
    stored: Sequence[LazyBuffer] = ()


@final
@dataclass(frozen=True, eq=False)
class _Call:
    """A loop on the tape. `used` are the nodes of a trip whose rows are kept."""

    what: str
    trip: Trip
    needed: _Needed
    trips: Trips
    used: Sequence[LazyBuffer]
    n_outs: int


def _needed(trip: Trip, since: int | None) -> _Needed:
    """The values that the gradients of all results need."""
    floats = [n for n, out in enumerate(trip.outs) if out.edge is not None]
    seeds = {n: _seed(trip.outs[n]) for n in floats}
    mark = node_mark()
    slopes = _pulled(trip, seeds, {}, create=False)
    return _read_by([slope.node for slope in slopes.values()], trip, mark, since)


def node_mark() -> int:
    """A serial number above those of all nodes so far."""
    return LazyBuffer.empty((), dtypes.uint8, "").serial


def _seed(value: TracedValue) -> TracedValue:
    return TracedValue(placeholder("scan", value.shape, value.dtype, value.node.device))


def _pulled(
    trip: Trip,
    seeds: Mapping[int, TracedValue],
    begun: Mapping[int, TracedValue],
    create: bool,
) -> dict[GradEdge, TracedValue]:
    """The gradients of a trip's placeholders and of the edges outside.

    `seeds` are those of what it computes, `begun` those of carries where it begins, by number.
    """
    ends = [value.edge for value in (*trip.carries, *trip.rows) if value.edge is not None]
    targets = [*ends, *trip.outside]
    pairs = [(trip.outs[n], seed) for n, seed in seeds.items()]
    pairs += [(trip.carries[k], seed) for k, seed in begun.items()]
    return pull_back(
        [value for value, _ in pairs],
        [seed for _, seed in pairs],
        targets,
        retain=True,
        create_graph=create,
        unhooked=targets,
    )


def _read_by(nodes: Sequence[LazyBuffer], trip: Trip, mark: int, since: int | None) -> _Needed:
    """The values of a trip that nodes made after `mark` are made of.

    These are also the carries and rows that only stored values are made of: derivatives of the
    reverse pass go on there.
    """
    leaves = [value.node for value in (*trip.carries, *trip.rows)]
    varying = made_of(nodes, leaves)
    below = set(toposort_until(nodes, {}))
    if since is not None:
        varying |= {node for node in below if node.serial >= since and node.realized is None}
    stored: dict[LazyBuffer, None] = {}
    seen: set[LazyBuffer] = set(leaves)
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in trip.known or (node in varying and node.serial < mark and node.op in _STORED):
            stored[node] = None
        else:
            stack += node.srcs
    return _Needed(
        [k for k, value in enumerate(trip.carries) if value.node in below],
        [j for j, value in enumerate(trip.rows) if value.node in below],
        list(stored),
    )


def _reverse(grad: Parts, entry: GradNode) -> Gradients:
    """The loop in the other direction, whose body is the reverse pass of one trip."""
    call: _Call = entry.arg
    trip, needed = call.trip, call.needed
    n, n_outs = len(trip.carries), call.n_outs
    create = is_recording()
    arrays = dict(zip(needed.rows, entry.saved, strict=False))
    more = entry.saved[len(needed.rows) :]
    kept = dict(zip(needed.carries, more, strict=False))
    rest = [value.node for value in more[len(needed.carries) :]]
    trips = replace(call.trips, backwards=not call.trips.backwards, condition=None)
    if call.trips.condition is not None:
        trips = replace(trips, count=rest.pop(0))
    stacks = rest
    known = dict(zip(call.used, stacks, strict=True))
    floats = [k for k in range(n) if trip.carries[k].edge is not None]
    carried = {k: _end(_seed(trip.carries[k]), create) for k in floats}
    given = {k: _end(_seed(trip.outs[k]), create) for k in grad.of if n <= k < n_outs}
    begun = {
        k - n_outs: _end(_seed(trip.carries[k - n_outs]), create) for k in grad.of if k >= n_outs
    }
    seeds = {k: seed for k, seed in {**carried, **given}.items() if trip.outs[k].edge is not None}
    found = _pulled(trip, seeds, begun, create)
    sums = [edge for edge in trip.outside if edge in found]
    totals = [_end(_seed(found[edge]), create) for edge in sums]
    asked = [
        j
        for j, row in enumerate(trip.rows)
        if entry.parents[n + j] is not None and row.edge in found
    ]

    def slope(value: TracedValue) -> TracedValue:
        return found[value.edge] if value.edge in found else value.full(0).detach()

    outs = [slope(trip.carries[k]) for k in floats]
    outs += [total + found[edge] for total, edge in zip(totals, sums, strict=True)]
    outs += [slope(trip.rows[j]) for j in asked]
    kept_values = {
        k: result_of(entry, value.node, n_outs + k) if create else value
        for k, value in kept.items()
    }
    rows = [*given.values(), *begun.values()]
    row_arrays = [*[grad.of[k] for k in given], *[grad.of[n_outs + k] for k in begun]]
    rows += [trip.rows[j] for j in arrays] + [trip.carries[k] for k in kept]
    row_arrays += [*arrays.values(), *kept_values.values()]
    edges = [out.edge for out in outs if out.edge is not None]
    inner_ends = {value.edge for value in (*rows, *trip.rows, *trip.carries)}
    outside = [edge for edge in edges_from_outside(edges, trip.start) if edge not in inner_ends]
    back = Trip([*carried.values(), *totals], rows, outs, outside, trip.start, known)
    starts = [grad.of[k] if k in grad.of else trip.carries[k].full(0).detach() for k in floats]
    starts += [total.full(0).detach() for total in totals]
    last, stacked = looped(call.what, back, starts, row_arrays, trips)
    slopes: list[TracedValue | None] = [None] * (n + len(trip.rows))
    for k, value in zip(floats, last, strict=False):
        slopes[k] = value
    for j, value in zip(asked, stacked, strict=True):
        slopes[n + j] = value
    found_sums = dict(zip(sums, last[len(floats) :], strict=True))
    return (*slopes, *[found_sums.get(edge) for edge in trip.outside])


def _refuse(grad: Parts, entry: GradNode) -> Gradients:
    call: _Call = entry.arg
    raise GradientError(
        f"[{call.what}] a gradient arrives at a loop whose number of trips has no limit, so that "
        "there is no room for what its trips compute; give max_trips, or detach() the result"
    )


def _end(value: TracedValue, create: bool) -> TracedValue:
    """The value with an end of the tape, if the pass is recorded."""
    if not create:
        return value
    node = value.node
    return TracedValue(node, GradNode("argument", IDENTITY, (value,), node, None))
