"""From a lazy graph to a list of kernels: cut, place in memory, order, and build the ASTs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import replace
from functools import cache, partial
from typing import Final, TypeAlias, final
from weakref import ref

from ferrule.base.config import config
from ferrule.base.helpers import prod
from ferrule.base.records import dataclass
from ferrule.base.threadstate import ThreadState, left_behind, this_thread
from ferrule.codegen.policy import combines_in_one_kernel, part_alignment, tiles_stages
from ferrule.device import Compiled, Device
from ferrule.device.memory_planner import plan_arenas
from ferrule.fusion.any_size import SharedPrograms
from ferrule.fusion.concat import place_pieces
from ferrule.fusion.cut import cut as cut_into_kernels
from ferrule.fusion.dynamic.families import Family, family_of, has_only_form
from ferrule.fusion.dynamic.known_lengths import schedule_of_known_lengths
from ferrule.fusion.dynamic.lengths import schedule_of_any_length
from ferrule.fusion.dynamic.offsets import stand_in
from ferrule.fusion.dynamic.parameters import Parameters, by_node, constants_of, parameters_of
from ferrule.fusion.dynamic.stand_in import (
    StandIn,
    generalised,
    nodes_by,
    with_own_constants,
)
from ferrule.fusion.expansion import expanded
from ferrule.fusion.graph import Graph, nodes_to_compute, note_passed, were_passed
from ferrule.fusion.hazards import Hazards
from ferrule.fusion.plans import plan_cache
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Place, Schedule, Step
from ferrule.fusion.plans.graph_key import KeyedGraph, serves_any_size
from ferrule.fusion.plans.matcher import PAYS_AFTER, Matcher, matcher_of
from ferrule.fusion.plans.plan_key import GraphForm, PlanKey
from ferrule.fusion.slots import Slot, Slots
from ferrule.fusion.tasks import Reader, Task
from ferrule.fusion.trees import Trees
from ferrule.ir.expr import Expr, Variable, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, LazyOp, LoadOps, ScheduleItem
from ferrule.ir.shape.layout import memory_size
from ferrule.ir.storage import none_pending
from ferrule.ir.target import Target, detect_cpu

__all__ = ["ClosedGraph", "Schedule", "create_schedule", "make_schedule", "target_of"]

# Plans in the plan cache, which drops the least recently used one. A program with more graphs
# plans some again. Not measured.
_MAX_PLANS: Final = 512
_Remember: TypeAlias = Callable[[PlanKey, StandIn | None], None]


_plans: OrderedDict[PlanKey, ExecutionPlan] = OrderedDict()


@final
@dataclass(eq=False)
class _KnownGraph:
    """A graph that was planned before, as itself or as its stand-in with constants in memory."""

    plan: ref[ExecutionPlan]
    passed: tuple[int, ...]
    """The numbers of the nodes in `Graph.passed`."""
    nodes: tuple[int, ...] | None = None
    """The nodes of the stand-in, see `StandIn.numbers_in`; None for the graph itself."""
    fixed: tuple[tuple[int, Hashable], ...] = ()
    """The constants of a stand-in that must be as they were: their positions, and their bits."""
    uses: int = 0
    """The number of times that it was found by its key."""
    is_matched: bool = False
    """True once it has a matcher, or can have none."""


_known_graphs: dict[tuple[Hashable, ...], _KnownGraph] = {}
"""The known graphs, by `FERRULE_SKIP`, their keys, and their constants; None for any constants."""

_matchers: dict[Hashable, list[tuple[Matcher, _KnownGraph]]] = {}
"""The matchers of graphs that are found often, by what tells their roots apart.

The first of a list was used last."""


def create_schedule(nodes: Sequence[LazyBuffer]) -> list[ScheduleItem]:
    """The kernels that compute `nodes`, to be run in this order by the caller.

    From now on the nodes count as realised.
    """
    schedule = make_schedule(nodes)
    schedule.commit()
    return schedule.items


def make_schedule(nodes: Sequence[LazyBuffer]) -> Schedule:
    """The schedule that computes `nodes`; the graph stays as it is until `commit`."""
    state = this_thread.state
    schedule = _schedule_of_matched(nodes, state)
    if schedule is not None:
        return schedule
    keyed = KeyedGraph(nodes)
    if not keyed.requested:
        return ExecutionPlan((), (), (), ()).bind([])
    if state.constants is not None:
        state.constants += keyed.constants
    schedule = _schedule_of_known(keyed, state)
    if schedule is None and not state.specialises:
        schedule = schedule_of_known_lengths(_target_of_any(keyed.requested), keyed)
    return schedule or _schedule_of_new(keyed)


def _schedule_of_matched(nodes: Sequence[LazyBuffer], state: ThreadState) -> Schedule | None:
    """The schedule of a graph that is seen often; None for any other, or where more than the graph
    is to be looked at.
    """
    if state.kept is not None or state.watched_since is not None or state.constants is not None:
        return None
    if state.written or left_behind:
        nodes = [*nodes_to_compute(nodes, state)]
    if not nodes:
        return None
    root = nodes[0]
    key = root.op, root.arg, root.shape, root.dtype, config().FERRULE_SKIP, len(nodes)
    found = _matchers.get(key)
    if found is None:
        return None
    for one in found:
        match, known = one
        plan = known.plan()
        if plan is None:
            continue
        try:
            matched = match(nodes)
        except MemoryError as error:
            plan.explain(error)
            raise
        if matched is None:
            continue
        if found[0] is not one:  # a new list, as another thread may go through this one
            _matchers[key] = [one, *[other for other in found if other is not one]]
        plan.use.is_recent = True
        bound, buffers = matched
        if were_passed(bound):  # some may have to be stored
            return None
        if known.passed:
            note_passed([bound[number] for number in known.passed])
        return Schedule(plan, (), buffers, bound)
    return None


def _match_from_now_on(keyed: KeyedGraph, known: _KnownGraph) -> None:
    """Make the matcher of a graph, if it can have one."""
    plan = known.plan()
    match = None if plan is None else matcher_of(keyed, plan)
    if match is None:
        return
    while sum(map(len, _matchers.values())) >= _MAX_PLANS:
        del _matchers[next(iter(_matchers))]
    root = next(iter(keyed.requested))
    key = root.op, root.arg, root.shape, root.dtype, config().FERRULE_SKIP, len(keyed.requested)
    others = [one for one in _matchers.get(key, ()) if one[1].plan() is not None]
    # One that does not match takes less than what a match saves for a node (0.1 us and 0.5 us).
    _matchers[key] = [(match, known), *others[: len(keyed.numbers)]]


def _schedule_of_known(keyed: KeyedGraph, state: ThreadState) -> Schedule | None:
    """The schedule of a graph that was seen before, or differs from such a one in constants that
    keep changing; None for any other.
    """
    skipped = config().FERRULE_SKIP
    known = _known_graphs.get((skipped, keyed.key, keyed.constants))
    if known is None:
        if state.observer is not None:  # replays do not change constants
            return None
        known = _known_graphs.get((skipped, keyed.key, None))
        if known is None:
            return None
        if any([keyed.constants[place] != bits for place, bits in known.fixed]):
            return None
    plan = known.plan()
    if plan is None:
        return None
    plan.use.is_recent = True
    nodes = [*keyed.numbers]
    passed_before = were_passed(nodes)
    if known.passed:
        note_passed([nodes[number] for number in known.passed])
    if known.nodes is not None:
        return plan.bind(nodes_by(known.nodes, nodes))
    known.uses += 1
    if known.uses >= PAYS_AFTER and not known.is_matched and not passed_before:
        known.is_matched = True
        _match_from_now_on(keyed, known)
    return plan.bind(nodes)


def _schedule_of_new(keyed: KeyedGraph) -> Schedule:
    """The schedule of any graph."""
    graph = keyed.graph()
    note_passed(graph.passed)
    target = _target_of_any(graph.requested)
    whole = expanded(graph)
    if whole is None:
        form = GraphForm(graph, target)
        return _schedule_of(graph, form, target, partial(_remember, keyed, graph), keyed)
    remember = partial(_remember_expanded, keyed, graph, whole)
    form = GraphForm(whole.graph, target)
    return whole.named(_schedule_of(whole.graph, form, target, remember))


def _schedule_of(
    graph: Graph,
    form: GraphForm,
    target: Target,
    remember: _Remember,
    keyed: KeyedGraph | None = None,
) -> Schedule:
    """The schedule of a graph without templates; `keyed` is its key, if that is known.

    `remember` is called with the key of a plan that is good for the same graph again; for a
    stand-in with constants in memory, with that.
    """
    if form.key is None:
        plan, values = _plan(graph, target)
        return plan.bind(graph.everything, values, _greatest(form), has_room=True)
    if form.key not in _plans:
        found = _generalised(graph, form, target, remember, keyed)
        if found is not None:
            return found
    schedule = _follow_plan(graph, form, form.key, target)
    if not graph.symbolic:
        remember(form.key, None)
    return schedule


def _generalised(
    graph: Graph,
    form: GraphForm,
    target: Target,
    remember: _Remember,
    keyed: KeyedGraph | None,
) -> Schedule | None:
    """The schedule of a graph by a plan in which what keeps changing is memory or a variable; None
    where the graph is to get a plan of its own.
    """
    skipped = config().FERRULE_SKIP
    # A capture keeps constants, and what is no part of memory, as its replays do not change them.
    is_captured = this_thread.state.observer is not None
    now, rest = parameters_of(graph, form)
    family = family_of((skipped, *rest))
    family.count(now)
    if "lengths" not in skipped and not this_thread.state.specialises:
        found = _schedule_of_any_length(graph, family, now, rest, target, keyed)
        if found is not None:
            return found
    constants, offsets = family.changes(now)
    other = stand_in(
        graph,
        () if is_captured else constants,
        () if "offsets" in skipped else offsets,
        part_alignment(target),
        may_vary=not is_captured,
    )
    if other is None:
        return None
    other_form = GraphForm(other.graph, target)
    if other_form.key is None:
        return None
    schedule = _follow_plan(other.graph, other_form, other_form.key, target)
    if not other.graph.parts and not other.graph.symbolic:
        remember(other_form.key, other)
    return other.named(schedule)


def _schedule_of_any_length(
    graph: Graph,
    family: Family,
    now: Parameters,
    rest: Hashable,
    target: Target,
    keyed: KeyedGraph | None,
) -> Schedule | None:
    """`schedule_of_any_length`, whichever of the lengths are equal.

    Graphs of equal ops have several forms if equal lengths share constants. Such forms are one
    family, in which each use has a constant of its own.
    """
    ops = tuple([node.op for node in graph.everything if node.op is not LoadOps.CONST])
    if not graph.symbolic and not has_only_form(ops, rest):
        apart = with_own_constants(graph)
        whole = graph if apart is None else apart.graph
        each, others = parameters_of(whole, GraphForm(whole, target))
        all_forms = family_of(("apart", config().FERRULE_SKIP, *others))
        all_forms.count(each)
        if all_forms.has_laws or family.is_new:
            found = schedule_of_any_length(whole, all_forms, each, _plan, target, None)
            if found is not None:
                return found if apart is None else apart.named(found)
    return schedule_of_any_length(graph, family, now, _plan, target, keyed)


def _remember(keyed: KeyedGraph, graph: Graph, key: PlanKey, other: StandIn | None) -> None:
    """Remember the key of the plan for graphs with the same key, as itself or as its stand-in."""
    while len(_known_graphs) >= _MAX_PLANS:
        del _known_graphs[next(iter(_known_graphs))]
    passed = set(graph.passed)
    numbers = tuple([number for number, node in enumerate(graph.everything) if node in passed])
    skipped = config().FERRULE_SKIP
    if other is None:
        known = _KnownGraph(ref(_plans[key]), numbers)
        _known_graphs[skipped, keyed.key, keyed.constants] = known
        return
    in_memory = set(other.constants.values())
    pairs = zip(constants_of(graph.everything), keyed.constants, strict=True)
    fixed = [(n, bits) for n, (node, bits) in enumerate(pairs) if node not in in_memory]
    known = _KnownGraph(ref(_plans[key]), numbers, other.numbers_in(graph), tuple(fixed))
    _known_graphs[skipped, keyed.key, None] = known


def _remember_expanded(
    keyed: KeyedGraph, graph: Graph, whole: StandIn, key: PlanKey, other: StandIn | None
) -> None:
    """Remember the plan of a graph with templates.

    The plan is that of `whole`, the graph expanded, with the numbers of this graph's nodes. A
    stand-in of that is found by way of `whole` each time.
    """
    if other is not None:
        return
    places = {node: number for number, node in enumerate(graph.everything)}
    numbers = {
        number: places[original]
        for number, node in enumerate(whole.graph.everything)
        if (original := whole.originals.get(node, node)) in places
    }
    renamed = PlanKey(("expanded", config().FERRULE_SKIP, keyed.key, keyed.constants))
    _keep(renamed, _plans[key].renumbered(numbers, whole.graph.everything))
    _remember(keyed, graph, renamed, None)


def _keep(key: PlanKey, plan: ExecutionPlan) -> None:
    """Put a plan into the cache, and drop one that was not used for long if it is full."""
    _plans[key] = plan
    while len(_plans) > _MAX_PLANS:
        oldest, dropped = _plans.popitem(last=False)
        if dropped.use.is_recent:
            dropped.use.is_recent = False
            _plans[oldest] = dropped


@final
class ClosedGraph:
    """A graph that is to be planned by itself, apart from pending writes and from other graphs.

    `key` is equal for graphs with one plan; None for a graph that is like no other. `numbers` has
    the number of each node, `values` the values of variables.
    """

    def __init__(self, nodes: Sequence[LazyBuffer]) -> None:
        with none_pending():
            keyed = KeyedGraph(nodes)
            self._graph = keyed.graph()
        self.numbers = keyed.numbers
        self._target = target_of(nodes[0].device)
        self._form = GraphForm(self._graph, self._target)
        self.key = self._form.key
        self.values = self._form.values

    def parameters(self) -> tuple[Parameters, tuple[Hashable, ...]]:
        """`parameters_of` the graph."""
        return parameters_of(self._graph, self._form)

    def generalised(self, integers: Sequence[sint], n_sizes: int) -> StandIn | None:
        """The stand-in with other integers, the first `n_sizes` of them being sizes."""
        nodes = self._graph.everything
        return generalised(self._graph, dict(by_node(nodes, integers, n_sizes)))

    def plan(self) -> tuple[ExecutionPlan, list[LazyBuffer]]:
        """The plan, and the nodes by their numbers in it: twins in the place of some."""
        graph, form = self._graph, self._form
        whole = expanded(graph)
        if whole is not None:
            graph, form = whole.graph, GraphForm(whole.graph, self._target)
        if form.key is None:
            plan, _ = _plan(graph, self._target)
        else:
            plan = _plan_of(graph, form, form.key, self._target)
        originals = {} if whole is None else whole.originals
        return plan, [originals.get(node, node) for node in graph.everything]


def _follow_plan(graph: Graph, form: GraphForm, key: PlanKey, target: Target) -> Schedule:
    """The schedule of a graph by the plan with its key."""
    plan = _plan_of(graph, form, key, target)
    values = [form.values] * len(plan.steps)
    return plan.bind(graph.everything, values, _greatest(form), has_room=True)


def _greatest(form: GraphForm) -> dict[Variable, int]:
    """The greatest values of the variables: a replay with them finds room."""
    return {variable: variable.max for variable in form.values}


def _plan_of(graph: Graph, form: GraphForm, key: PlanKey, target: Target) -> ExecutionPlan:
    """The plan with a key: made before, stored by an earlier process, or made now."""
    plan = _plans.get(key)
    if plan is not None:
        _plans.move_to_end(key)
    else:
        stored = plan_cache.key_of(target, form.described)
        plan = None if stored is None else plan_cache.load(stored)
        if plan is None:
            plan, _ = _plan(graph, target)
            if stored is not None:
                plan_cache.store(stored, plan)
        _keep(key, plan)
    return plan


@cache
def target_of(device: str) -> Target:
    """The target that the scheduler plans for; the host's for devices without a renderer."""
    found = Device[device]
    if isinstance(found, Compiled) and found.renderer is not None:
        return found.linearizer_opts
    return detect_cpu()


def _target_of_any(nodes: Iterable[LazyBuffer]) -> Target:
    return target_of(next(iter(nodes)).device)


@final
@dataclass(frozen=True)
class _Work:
    """A kernel, the memory that it runs on, and the values of its variables."""

    ast: LazyOp
    slots: list[Slot]
    outputs: int
    var_vals: dict[Variable, int]
    node: LazyBuffer
    """The node that is its first output, or that it is a part of."""
    size: int | None = None
    """The number of elements, if the kernel is for any."""


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
    trees = Trees(reader, hazards.slots, symbolic=graph.symbolic, alignment=alignment)
    programs = SharedPrograms(trees, hazards.slots, target)
    order = hazards.ordered(programs)
    whole = [_work(task, trees, programs, hazards.slots) for task in order]
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


def _work(task: Task, trees: Trees, programs: SharedPrograms, slots: Slots) -> _Work:
    if task.is_kernel:
        tree, shared = trees.of(task), programs.of(task)
        ast, size = (tree.ast, None) if shared is None else (shared.ast, shared.size)
        outputs = len({slots[root] for root in task.outputs})
        return _Work(ast, tree.slots, outputs, tree.var_vals, task.outputs[0], size)
    root, *results = task.outputs
    sources = [task.instead.get(source, source) for source in root.srcs]
    nodes = (root, *results, *sources)
    runner, var_vals = root.arg, {}
    if root.op is LoadOps.CUSTOM and runner.n_results:
        runner = runner.narrowed(tuple([result.arg for result in results]))
        var_vals = {variable: values_of(nodes)[variable] for variable in runner.vars}
    ast = LazyOp(root.op, (), runner)
    return _Work(ast, [slots[node] for node in nodes], len(task.outputs), var_vals, root)


def values_of(nodes: Iterable[LazyBuffer]) -> dict[Variable, int]:
    """The values of the variables in the shapes of nodes."""
    sizes = [size for node in nodes for size in node.shape if isinstance(size, Expr)]
    found: dict[Variable, int] = {}
    for size in sizes:
        found |= unbind(size)[1]
    return found


def _in_parts(work: _Work, target: Target) -> list[_Work]:
    """Split a kernel of few results and long sums into two, unless one kernel can combine parts."""
    if combines_in_one_kernel(target) or work.ast.op is not BufferOps.STORE:
        return [work]
    from ferrule.codegen.schedules.gpu.split_reduce import parts_of
    from ferrule.fusion.long_reduces import in_parts, numbered

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
        works.append(_Work(renumbered, [slots[number] for number in old], outputs, {}, work.node))
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
    # A run that serves any size finds it from that of its own memory.
    runs = [(work.node, work.slots[0]) for work in works if serves_any_size(work.node)]
    for node, slot in (*results, *runs):
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
            number.get(work.node),
            work.size,
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
