"""Execution plans: schedules that name nodes by numbers, and so serve all graphs with one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, final
from weakref import ref

from ferrule.base.config import Config
from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.device.runner import JITRunner
from ferrule.fusion.plans.plan_key import Values
from ferrule.ir.buffer import Buffer, readable_bytes
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr, Variable, as_expr, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, LazyOp, LoadOps, ScheduleItem

_ASSIGN: Final = LoadOps.ASSIGN
_NO_LENGTHS: Final[Mapping[Expr, int]] = {}


@final
@dataclass(frozen=True)
class Place:
    """Memory that kernels use: a node's, a part of an arena or of another place, or new memory."""

    device: str
    dtype: DType
    size: sint
    node: int | None = None
    """The number of a node that has this memory already."""
    arena: int | None = None
    offset: int = 0
    """The offset in the memory that it is a part of, in elements."""
    whole: int | None = None
    """The number of the place that it is a part of, which comes before it."""
    table: Buffer | None = None
    """The memory itself, where it belongs to a template and so to no node of the graph."""


@final
@dataclass(frozen=True)
class Step:
    """A kernel and the numbers of the places that it runs on."""

    ast: LazyOp
    places: tuple[int, ...]
    outputs: int
    variables: tuple[Variable, ...]
    node: int | None = None
    """The number of the node that is its first output; None if that is none of the graph."""
    size: int | None = None
    """The number of elements, the kernel's only variable, if the kernel is for any."""

    def sized(self, runner: JITRunner) -> JITRunner:
        """The runner of the kernel, for the number of elements of this step."""
        return runner if self.size is None else runner.sized(self.size)


@final
class Schedule:
    """Kernels to run in order, and the buffers that the nodes have once they have run.

    `buffers` has the memory of each place, `values` the values of each step's variables, and
    `nodes` the nodes by their numbers in the plan.
    """

    __slots__ = ("buffers", "nodes", "plan", "values")

    def __init__(
        self,
        plan: ExecutionPlan,
        values: Sequence[Mapping[Variable, int]],
        buffers: Sequence[Buffer],
        nodes: Sequence[LazyBuffer],
    ) -> None:
        self.plan = plan
        self.values = values
        self.buffers = buffers
        self.nodes = nodes

    def runs(self) -> Iterator[tuple[Step, list[Buffer], Values]]:
        """The steps, the buffers of each, outputs first, and the values of its variables."""
        buffers = self.buffers
        for number, step in enumerate(self.plan.steps):
            values: Values = {}
            for variable in step.variables:
                values[variable] = self.values[number][variable]
            yield step, [buffers[place] for place in step.places], values

    @property
    def items(self) -> list[ScheduleItem]:
        """The steps as the items that `create_schedule` returns."""
        return [_item(step, used, values) for step, used, values in self.runs()]

    def commit(self) -> None:
        """Give the nodes the buffers of their values. Copies of old versions come first."""
        state = this_thread.state
        computed = state.computed
        nodes, buffers = self.nodes, self.buffers
        for number, place in self.plan.results:
            node, buffer = nodes[number], buffers[place]
            if computed is not None:
                computed.append(ref(node))
            if node.op is _ASSIGN:
                _give_up_replaced(node, buffer)
            node.set_realized(buffer, state)


def _give_up_replaced(version: LazyBuffer, buffer: Buffer) -> None:
    """The version that was in the same memory before is no more."""
    old = version.srcs[0]
    while old.realized is None and old.op is LoadOps.ASSIGN:
        old = old.srcs[0]
    memory = old.realized
    if memory is None or memory.base is not buffer.base:
        return
    if memory.byte_offset == buffer.byte_offset:
        old.give_up()


def _item(step: Step, used: list[Buffer], values: Values) -> ScheduleItem:
    outputs = tuple(used[: step.outputs])
    if step.size is not None:
        values = dict.fromkeys(step.ast.vars(), step.size)
    return ScheduleItem(step.ast, outputs[0], tuple(used[step.outputs :]), values, outputs)


@final
class PlanUse:
    """What is known of a plan from its use, and made for its next one."""

    __slots__ = (
        *("graph", "is_recent", "last_to_raise", "runners", "runs", "settings", "tuned"),
        "written",
    )

    def __init__(self, written: tuple[int, ...], last_to_raise: int) -> None:
        self.written = written
        """The places that steps write to and that a node has already."""
        self.last_to_raise = last_to_raise
        """The number of the last step that is a function of the host, which may raise.

        0 if there is none, or only the first step is one."""
        self.is_recent = False
        """True if the plan was found by a graph's key since the cache last looked at it."""
        self.settings: Config | None = None
        """The settings that `runners` were made with; None: there are none yet."""
        self.tuned = 0
        """`Compiled.tuned` when they were made."""
        self.runners: Sequence[JITRunner | None] = ()
        """The runners of the steps; None for a copy between devices, whose size may change."""
        self.runs = 0
        """The number of runs with them."""
        self.graph: Any = None
        """The `GraphExecutor` of all steps, with the memory of all places as its inputs."""


@final
@dataclass(frozen=True)
class ExecutionPlan:
    """A schedule without buffers and values."""

    places: tuple[Place, ...]
    arenas: tuple[tuple[str, int], ...]
    """The device and the size in bytes of each arena."""
    steps: tuple[Step, ...]
    results: tuple[tuple[int, int], ...]
    """Pairs of a node's number and the number of the place that has its value afterwards."""

    def bind(
        self,
        nodes: list[LazyBuffer],
        values: Sequence[Mapping[Variable, int]] = (),
        lengths: Mapping[Any, int] = _NO_LENGTHS,
        has_room: bool = False,
    ) -> Schedule:
        """The schedule for `nodes`, which have the key that the plan was made for.

        `values` holds the values of each step's variables, if any has one, `lengths` those of
        variables in the sizes of places. With `has_room` these are the greatest there may be, so
        that a replay may have any, and the memory of nodes is taken as it is.

        Raises `MemoryError` with a note that names the largest values.
        """
        try:
            buffers = self._buffers(nodes, lengths, has_room)
        except MemoryError as error:
            self.explain(error)
            raise
        return Schedule(self, values, buffers, nodes)

    def explain(self, error: MemoryError) -> None:
        """Add a note on what takes most memory to an error."""
        error.add_note(f"The largest values to be stored: {self._largest()}")

    def renumbered(self, numbers: Mapping[int, int], nodes: Sequence[LazyBuffer]) -> ExecutionPlan:
        """The plan for a graph in which the `nodes` have other `numbers`, or are missing.

        The plan itself holds the memory of missing nodes, such as the tables of a template.
        """
        places = []
        for place in self.places:
            if place.node is None:
                places.append(place)
            elif place.node in numbers:
                places.append(replace(place, node=numbers[place.node]))
            else:
                places.append(replace(place, node=None, table=_memory(place, nodes)))
        results = [(numbers[node], place) for node, place in self.results if node in numbers]
        steps = [
            step if step.node is None else replace(step, node=numbers.get(step.node))
            for step in self.steps
        ]
        return replace(self, places=tuple(places), steps=tuple(steps), results=tuple(results))

    @cached_property
    def use(self) -> PlanUse:
        """The record of its use."""
        asts = enumerate([step.ast for step in self.steps])
        raising = [n for n, ast in asts if ast.op is LoadOps.CUSTOM and ast.arg.may_raise]
        written = [place for step in self.steps for place in step.places[: step.outputs]]
        existing = [n for n in written if self._has_contents(self.places[n])]
        return PlanUse(tuple(dict.fromkeys(existing)), max(raising, default=0))

    @cached_property
    def kernels(self) -> dict[str, list[LazyOp]]:
        """The ASTs of the steps that are kernels, grouped by device."""
        devices = [self.places[step.places[0]].device for step in self.steps]
        return kernels_by_device(zip(devices, [step.ast for step in self.steps], strict=True))

    def _has_contents(self, place: Place) -> bool:
        whole = place.whole
        return place.node is not None or (
            whole is not None and self._has_contents(self.places[whole])
        )

    @cached_property
    def _sources(self) -> tuple[tuple[Place, int | None, Any, bool], ...]:
        """The places, with their nodes, their sizes, and True if that is an expression."""
        return tuple([(p, p.node, p.size, not isinstance(p.size, int)) for p in self.places])

    def _largest(self) -> str:
        """The shapes of the three values that take most memory, for a message."""
        stored: dict[str, int] = {}
        for step in self.steps:
            roots = step.ast.src if step.ast.op is BufferOps.SINK else (step.ast,)
            for root, place in zip(roots, step.places, strict=False):
                if isinstance(root.op, LoadOps):
                    continue
                value = root.src[0] if root.op is BufferOps.STORE else root
                nbytes = as_expr(self.places[place].size).max * value.dtype.itemsize
                stored[f"{value.shape} {value.dtype} ({readable_bytes(nbytes)})"] = nbytes
        return ", ".join(sorted(stored, key=lambda shown: -stored[shown])[:3])

    def _buffers(
        self, nodes: list[LazyBuffer], lengths: Mapping[Any, int], has_room: bool
    ) -> list[Buffer]:
        """The memory at each place."""
        arenas: list[Buffer] = []
        for device, nbytes in self.arenas:
            arenas.append(Buffer(device, nbytes, dtypes.uint8))
        buffers: list[Buffer] = []
        for place, node, size, is_expression in self._sources:
            if is_expression:
                size = size.infer(lengths)
            if node is not None:
                found = nodes[node].realized
                assert found is not None, "a leaf lost its memory"
                is_whole = size == found.size or (has_room and is_expression)
                buffer = found if is_whole else found.view(place.offset, size)
            elif place.table is not None:
                buffer = place.table
            elif place.arena is not None:
                buffer = arenas[place.arena].view(place.offset, size, place.dtype)
            elif place.whole is not None:
                buffer = buffers[place.whole].view(place.offset, size)
            else:
                buffer = Buffer(place.device, size, place.dtype)
            buffers.append(buffer)
        return buffers


def _memory(place: Place, nodes: Sequence[LazyBuffer]) -> Buffer:
    """The memory of a node, or a part of it; the size of the place is known."""
    assert place.node is not None
    assert isinstance(place.size, int)
    found = nodes[place.node].realized
    assert found is not None, "a leaf lost its memory"
    return found if place.size == found.size else found.view(place.offset, place.size)


def kernels_by_device(steps: Iterable[tuple[str, LazyOp]]) -> dict[str, list[LazyOp]]:
    """The ASTs of kernels, grouped by device; `steps` are pairs of a device and an AST."""
    found: dict[str, list[LazyOp]] = {}
    for device, ast in steps:
        if not isinstance(ast.op, LoadOps):
            found.setdefault(device, []).append(ast)
    return found
