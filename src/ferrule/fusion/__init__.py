"""From a lazy graph to a list of kernels: cut, place in memory, order, and build the ASTs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, partial
from typing import Final, final

from ferrule.base.config import config
from ferrule.base.helpers import prod
from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.codegen.policy import combines_in_one_kernel, part_alignment, tiles_stages
from ferrule.device import Compiled, Device
from ferrule.device.memory_planner import plan_arenas
from ferrule.fusion.concat import place_pieces
from ferrule.fusion.cut import cut as cut_into_kernels
from ferrule.fusion.dynamic.changing import changes, names_number, without_number
from ferrule.fusion.dynamic.lengths import schedule_of_any_length
from ferrule.fusion.dynamic.offsets import (
    StandIn,
    number_in_memory,
    stand_in,
    with_numbers_in_memory,
)
from ferrule.fusion.expansion import written_out
from ferrule.fusion.graph import Graph, note_passed
from ferrule.fusion.hazards import Hazards
from ferrule.fusion.plans import plan_cache
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Form, Place, Schedule, Step
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.fusion.slots import Slot, Slots
from ferrule.fusion.tasks import Reader, Task
from ferrule.fusion.trees import TreeBuilder
from ferrule.ir.expr import Variable, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, LazyOp, LoadOps, ScheduleItem
from ferrule.ir.shape.layout import memory_size
from ferrule.ir.target import Target, detect_cpu

__all__ = ["Schedule", "create_schedule", "make_schedule", "target_of"]

# Plans in the plan cache, which drops the least recently used one. A program with more graphs
# plans some again. Not measured.
_MAX_PLANS: Final = 512
_NO_VALUES: Final[Mapping[Variable, int]] = {}


@final
class _Key:
    """The key of a plan. Its hash is computed once, since forms of large graphs are long."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.parts == other.parts


_plans: OrderedDict[_Key, ExecutionPlan] = OrderedDict()


@final
@dataclass(frozen=True)
class _KnownGraph:
    """A known graph: the key of its plan, and the numbers of `Graph.passed`."""

    key: _Key
    passed: tuple[int, ...]


_known_graphs: dict[tuple[Hashable, ...], _KnownGraph] = {}
"""The known graphs, by `FERRULE_SKIP` and their keys."""


@final
@dataclass(frozen=True)
class _Numbered:
    """A known graph, some of whose constants are memory in the graph that was planned."""

    key: _Key
    nodes: tuple[int, ...]
    """Which of the graph's nodes each of the other graph is; ~n for the memory of constant n."""
    fixed: tuple[tuple[int, Hashable], ...]
    """The other constants, which must be as they were: their places, and their bits."""
    passed: tuple[int, ...]


_numbered: dict[tuple[Hashable, ...], _Numbered] = {}
"""By the optimisations that are left out, and the graphs' keys without numbers."""


def create_schedule(nodes: Sequence[LazyBuffer]) -> list[ScheduleItem]:
    """The kernels that compute `nodes`, to be run in this order by the caller.

    From now on the nodes count as realised.
    """
    schedule = make_schedule(nodes)
    schedule.commit()
    return schedule.items


def make_schedule(nodes: Sequence[LazyBuffer]) -> Schedule:
    """The schedule that computes `nodes`; the graph stays as it is until `commit`."""
    keyed = KeyedGraph(nodes)
    if not keyed.requested:
        return ExecutionPlan((), (), (), ()).follow((), [])
    known = _schedule_of_known(keyed) or _schedule_of_numbered(keyed)
    return known or _schedule_of_new(keyed)


def _schedule_of_known(keyed: KeyedGraph) -> Schedule | None:
    """The schedule of a graph whose key was seen before; None for any other."""
    known = _known_graphs.get((config().FERRULE_SKIP, keyed.key))
    plan = None if known is None else _plans.get(known.key)
    if known is None or plan is None:
        return None
    _plans.move_to_end(known.key)
    if known.passed:
        note_passed([keyed.nodes[number] for number in known.passed])
    return plan.follow([_NO_VALUES] * len(plan.steps), keyed.nodes)


def _schedule_of_numbered(keyed: KeyedGraph) -> Schedule | None:
    """The schedule of a graph that differs from an earlier one in numbers that keep changing."""
    if not _numbered or this_thread.state.observer is not None:
        return None
    numbered = _numbered.get((config().FERRULE_SKIP, _without_numbers(keyed)))
    plan = None if numbered is None else _plans.get(numbered.key)
    if numbered is None or plan is None:
        return None
    if any([keyed.parts[place][2] != bits for place, bits in numbered.fixed]):
        return None
    _plans.move_to_end(numbered.key)
    nodes = keyed.nodes
    note_passed([nodes[number] for number in numbered.passed])
    found = [nodes[n] if n >= 0 else number_in_memory(nodes[~n]) for n in numbered.nodes]
    return plan.follow([_NO_VALUES] * len(plan.steps), found)


def _without_numbers(keyed: KeyedGraph) -> tuple[Hashable, ...]:
    parts = keyed.parts
    return (*[without_number(part) for part in parts], *keyed.key[len(parts) :])


def _schedule_of_new(keyed: KeyedGraph) -> Schedule:
    """The schedule of any graph."""
    graph = keyed.graph()
    note_passed(graph.passed)
    whole = written_out(graph)
    if whole is None:
        form = Form(graph, keyed.parts)
        return _schedule_of(graph, form, partial(_remember, keyed, graph), keyed)
    remember = partial(_remember_written_out, keyed, graph, whole)
    return whole.named(_schedule_of(whole.graph, Form(whole.graph), remember))


def _schedule_of(
    graph: Graph, form: Form, remember: Callable[[_Key], None], keyed: KeyedGraph | None = None
) -> Schedule:
    """The schedule of a graph without templates.

    `remember` is called with the key of a plan that is good for the same graph again. With its
    `keyed` a graph that differs in numbers alone is found again.
    """
    target = target_of(next(iter(graph.requested)).device)
    if form.key is None:
        return ExecutionPlan.follow(*_plan(graph, target), graph.everything)
    found = _by_another_graph(graph, target, form, keyed)
    if found is not None:
        return found
    found = _follow_plan(graph, target, form)
    if not graph.symbolic:
        remember(_Key((target, config().FERRULE_SKIP, form.key)))
    return found


def _by_another_graph(
    graph: Graph, target: Target, form: Form, keyed: KeyedGraph | None = None
) -> Schedule | None:
    """The schedule of a graph by the plan for one in which what keeps changing is memory or a
    variable; None where the graph has a plan of its own, or is to get one.

    With its `keyed` a graph that differs in numbers alone is found again.
    """
    parts = form.key
    assert parts is not None, "graphs without a key have no plan"
    skipped = config().FERRULE_SKIP
    if _Key((target, skipped, parts)) in _plans:
        return None
    changed = changes(graph, parts)
    # A capture keeps the numbers, as its replays do not change them.
    is_captured = this_thread.state.observer is not None
    if changed.numbers and not is_captured:
        other = with_numbers_in_memory(graph, changed.numbers)
        other_form = Form(other.graph)
        found = _by_another_graph(other.graph, target, other_form)
        if found is None:
            found = _follow_plan(other.graph, target, other_form)
            if keyed is not None and not graph.symbolic:
                assert other_form.key is not None, "it was followed"
                key = _Key((target, skipped, other_form.key))
                _remember_numbered(keyed, graph, other, key)
        return other.named(found)
    if changed.offsets and "offsets" not in skipped:
        moved = stand_in(graph, changed.offsets, part_alignment(target), not is_captured)
        if moved is not None:
            return moved.named(_follow_plan(moved.graph, target, Form(moved.graph)))
    if is_captured or "lengths" in skipped:
        return None
    return schedule_of_any_length(graph, (*parts, skipped), lambda g: _plan(g, target)[0], target)


def _remember(keyed: KeyedGraph, graph: Graph, key: _Key) -> None:
    """Remember the key of the plan for graphs with the same key."""
    if len(_known_graphs) >= _MAX_PLANS:
        _known_graphs.clear()
    passed = set(graph.passed)
    numbers = [number for number, node in enumerate(graph.everything) if node in passed]
    _known_graphs[config().FERRULE_SKIP, keyed.key] = _KnownGraph(key, tuple(numbers))


def _remember_written_out(keyed: KeyedGraph, graph: Graph, whole: StandIn, key: _Key) -> None:
    """Remember the plan of a graph with templates.

    The plan is that of `whole`, the graph written out, with the numbers of this graph's nodes.
    """
    places = {node: number for number, node in enumerate(graph.everything)}
    numbers = {
        number: places[original]
        for number, node in enumerate(whole.graph.everything)
        if (original := whole.originals.get(node, node)) in places
    }
    renamed = _Key(("written out", config().FERRULE_SKIP, keyed.key))
    _keep(renamed, _plans[key].renumbered(numbers, whole.graph.everything))
    _remember(keyed, graph, renamed)


def _keep(key: _Key, plan: ExecutionPlan) -> None:
    """Put a plan into the cache, and drop the least recently used one if it is full."""
    _plans[key] = plan
    if len(_plans) > _MAX_PLANS:
        _plans.popitem(last=False)


def _remember_numbered(keyed: KeyedGraph, graph: Graph, other: StandIn, key: _Key) -> None:
    """From now on a graph that differs from this one in numbers has the plan with that key."""
    if len(_numbered) >= _MAX_PLANS:
        _numbered.clear()
    number = {node: place for place, node in enumerate(graph.everything)}
    nodes: list[int] = []
    in_memory: set[int] = set()
    for node in other.graph.everything:
        constant = other.numbers.get(node)
        if constant is not None:
            in_memory.add(number[constant])
        original = other.originals.get(node, node)
        nodes.append(number[original] if constant is None else ~number[constant])
    constants = [place for place, part in enumerate(keyed.parts) if names_number(part)]
    fixed = [(place, keyed.parts[place][2]) for place in constants if place not in in_memory]
    passed = set(graph.passed)
    _numbered[config().FERRULE_SKIP, _without_numbers(keyed)] = _Numbered(
        key,
        tuple(nodes),
        tuple(fixed),
        tuple([place for place, node in enumerate(graph.everything) if node in passed]),
    )


def _follow_plan(graph: Graph, target: Target, form: Form) -> Schedule:
    """The schedule of a graph by the plan for its form, which is planned if it is missing."""
    parts = form.key
    assert parts is not None, "graphs without a key have no plan"
    key = _Key((target, config().FERRULE_SKIP, parts))
    plan = _plans.get(key)
    if plan is None:
        plan = _stored_or_planned(graph, target, plan_cache.key_of(target, parts))
        _keep(key, plan)
    else:
        _plans.move_to_end(key)
    return plan.follow([form.values] * len(plan.steps), graph.everything)


def _stored_or_planned(graph: Graph, target: Target, key: str | None) -> ExecutionPlan:
    """The plan that an earlier process stored under the key, or else a new one."""
    plan = None if key is None else plan_cache.load(key)
    if plan is None:
        plan, _ = _plan(graph, target)
        if key is not None:
            plan_cache.store(key, plan)
    return plan


@cache
def target_of(device: str) -> Target:
    """The target that the scheduler plans for; the host's for devices without a renderer."""
    found = Device[device]
    if isinstance(found, Compiled) and found.renderer is not None:
        return found.linearizer_opts
    return detect_cpu()


@final
@dataclass(frozen=True)
class _Work:
    """A kernel, the memory that it runs on, and the values of its variables."""

    ast: LazyOp
    slots: list[Slot]
    outputs: int
    var_vals: dict[Variable, int]


def _plan(
    graph: Graph, target: Target, without_stages: Set[LazyBuffer] = frozenset()
) -> tuple[ExecutionPlan, list[dict[Variable, int]]]:
    """The plan for a graph, and the values of each kernel's variables."""
    roots, groups = cut_into_kernels(graph, target, without_stages)
    tasks = [Task(outputs, stages=stages) for outputs, stages in groups]
    alignment = part_alignment(target)
    pieces = place_pieces(graph, roots, tasks, alignment)
    reader = Reader(roots, pieces.layouts)
    hazards = Hazards(graph, tasks, reader, pieces)
    order = hazards.ordered()
    whole = [_work(task, reader, hazards.slots, graph.symbolic, alignment) for task in order]
    if tiles_stages(target):
        unsuited = _with_unsuited_stages(order, whole)
        if unsuited:
            return _plan(graph, target, without_stages | unsuited)
    works = []
    for task, work in zip(order, whole, strict=True):
        works += [work] if task.stages else _in_parts(work, target)
    results = _results(graph, roots, hazards)
    return _execution_plan(graph, works, results), [work.var_vals for work in works]


def _with_unsuited_stages(tasks: list[Task], works: list[_Work]) -> set[LazyBuffer]:
    """The first outputs of kernels whose stages cannot be computed tile by tile on a GPU."""
    # Imported here and below: other targets need no code generation to plan kernels.
    from ferrule.codegen.lower import lower
    from ferrule.codegen.schedules.gpu.chains import can_fuse_reduces

    staged = [(task, work.ast) for task, work in zip(tasks, works, strict=True) if task.stages]
    return {task.outputs[0] for task, ast in staged if not can_fuse_reduces(lower(ast, "chain"))}


def _work(task: Task, reader: Reader, slots: Slots, symbolic: bool, alignment: int) -> _Work:
    if task.is_kernel:
        builder = TreeBuilder(task, reader, slots, symbolic, alignment)
        ast = builder.build()
        outputs = len({slots[root] for root in task.outputs})
        return _Work(ast, builder.slots, outputs, builder.var_vals)
    root = task.outputs[0]
    sources = [task.instead.get(source, source) for source in root.srcs]
    ast = LazyOp(root.op, (), root.arg)
    return _Work(ast, [slots[node] for node in (root, *sources)], 1, {})


def _in_parts(work: _Work, target: Target) -> list[_Work]:
    """Split a kernel of few results and long sums into two, unless one kernel can combine parts."""
    if combines_in_one_kernel(target) or work.ast.op is not BufferOps.STORE:
        return [work]
    from ferrule.codegen.schedules.gpu.split_reduce import parts_of
    from ferrule.fusion.split_reduce import in_parts, numbered

    parts = parts_of(work.ast, target)
    if parts is None:
        return [work]
    first, second = in_parts(work.ast, parts, len(work.slots))
    stores = first.src if first.op is BufferOps.SINK else (first,)
    device = work.slots[0].device
    memory = [Slot(device, store.arg.dtype, prod(store.src[0].shape)) for store in stores]
    slots = [*work.slots, *memory]
    works = []
    for ast, outputs in ((first, len(stores)), (second, 1)):
        renumbered, old = numbered(ast)
        works.append(_Work(renumbered, [slots[number] for number in old], outputs, {}))
    return [works[0], *_in_parts(works[1], target)]


def _results(
    graph: Graph, roots: set[LazyBuffer], hazards: Hazards
) -> list[tuple[LazyBuffer, Slot]]:
    """The nodes that get a buffer, requested or still needed outside, with their memory."""
    found = [(old, hazards.slots[copy]) for old, copy in hazards.copies.items()]
    held: set[LazyBuffer] = set()
    for node in reversed(graph.order):
        needed = node in graph.external or node in held
        if node.realized is not None:
            continue
        requested = node in graph.requested
        if requested or (node in roots and node.op is not LoadOps.CONST):
            if (requested or needed) and node not in hazards.copies:
                found.append((node, hazards.slots[node]))
        elif needed:
            held.update(node.srcs)
    return found


def _execution_plan(
    graph: Graph, works: list[_Work], results: list[tuple[LazyBuffer, Slot]]
) -> ExecutionPlan:
    """The plan that runs the works, with numbers for nodes and memory."""
    number = {node: place for place, node in enumerate(graph.everything)}
    holder = {
        node.realized: place
        for place, node in enumerate(graph.everything)
        if node.realized is not None
    }
    places: dict[Slot, Place] = {}
    for slot in [slot for work in works for slot in work.slots] + [slot for _, slot in results]:
        if slot.buffer is not None:
            leaf = holder[slot.buffer]
            # A part is the same for any length, see `View.reach`; a whole may be longer.
            size = slot.size if slot.start else _size(graph.everything[leaf], slot)
            places[slot] = Place(slot.device, slot.dtype, size, leaf, offset=slot.start)
    for node, slot in results:
        places.setdefault(slot, Place(slot.device, slot.dtype, _size(node, slot)))
    arenas = _share_arenas(works, places)
    numbers = {slot: place for place, slot in enumerate(places)}
    for slot in [slot for work in works for slot in work.slots]:
        if slot not in places:
            numbers[slot] = len(places)
            places[slot] = _part(slot, places[slot.memory], numbers[slot.memory])
    steps = [
        Step(
            work.ast,
            tuple([numbers[slot] for slot in work.slots]),
            work.outputs,
            tuple(work.var_vals),
        )
        for work in works
    ]
    named = [(number[node], numbers[slot]) for node, slot in results]
    return ExecutionPlan(tuple(places.values()), arenas, tuple(steps), tuple(named))


def _size(node: LazyBuffer, slot: Slot) -> sint:
    """The number of elements in the memory of a node, which is all of `slot`."""
    size = memory_size(node.shape)
    return slot.size if isinstance(size, int) else size


def _part(slot: Slot, whole: Place, number: int) -> Place:
    """The place of a part of the memory at `whole`, which is place number `number`."""
    if whole.arena is None:
        return Place(slot.device, slot.dtype, slot.size, offset=slot.start, whole=number)
    return replace(whole, size=slot.size, offset=whole.offset + slot.start)


def _share_arenas(works: list[_Work], places: dict[Slot, Place]) -> tuple[tuple[str, int], ...]:
    """Add places for intermediate results, which share one arena on each device."""
    steps = [[slot.memory for slot in work.slots if slot.memory not in places] for work in works]
    if "memory" in config().FERRULE_SKIP:  # all live ranges are the whole schedule
        steps = [[slot for used in steps for slot in used]]
    found, arenas = plan_arenas(steps)
    for slot, (arena, offset) in found.items():
        start = offset // slot.dtype.itemsize
        places[slot] = Place(slot.device, slot.dtype, slot.size, None, arena, start)
    return arenas
