"""Dynamic shapes: one plan for lengths that change from call to call, as a growing sequence's.

A kernel that is specialised for one length is simpler and faster, but has to be compiled. So graphs
that differ in nothing but sizes are collected in a *family*. A few of them show which sizes change,
and how they depend on one another. Then the family is generalised: one plan, of a graph in which
the lengths are variables, serves them all. Memory is laid out as for a single length.

Each graph's sizes are compared with the plan's, so that a wrong guess costs a plan, and no more.
Axes of size 1 can be repeated, so that these sizes are a part of the form.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.fusion.dynamic.offsets import number_in_memory
from ferrule.fusion.graph import Graph
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Schedule
from ferrule.ir.dtype import exact
from ferrule.ir.expr import Length, as_expr, as_int, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, FunctionOps, LoadOps, MovementOps, get_lazyop_info
from ferrule.ir.op_table import FORMS, OpError, infer
from ferrule.ir.shape.view import Shape, ShapeError, View, prod_sint, same
from ferrule.ir.target import Target

Planner: TypeAlias = Callable[[Graph], ExecutionPlan]
Numbers: TypeAlias = tuple[Hashable, ...]

_ENOUGH: Final = 3
"""Graphs of a family that have kernels of their own before they are generalised. Not measured."""
_OFTEN: Final = 32
"""Uses of the same sizes above which they have kernels of their own again: a model may run its
layers one by one. Not measured."""
# Bounds of what is remembered, so that sizes that never come again do not fill memory. None of
# them is measured.
_MOST_COUNTED: Final = 4096
"""Different sizes of one family whose uses are counted."""
_MOST_SAMPLES: Final = 8
"""Graphs of one family that are kept to find the laws of its sizes."""
_MOST_LENGTHS: Final = 4
"""Independent lengths of one family."""
_MOST_FAMILIES: Final = 256
"""Families, the least recently used being dropped."""
_MOST_PLANS: Final = 64
"""Plans of one family."""
_LEAST_BOUND: Final = 64
"""The greatest length of the first plan; the next ones serve lengths up to 128, 256 and so on.
Costs are estimated for the greatest length, and intermediate results have memory for it. Not
measured."""
_MOST_BYTES: Final = 1 << 26
"""Bytes of a stored value above which each length has its own plan: compiling is then a small part
of the time. Not measured."""
_MOST_OPERATIONS: Final = 1 << 31
"""Operations of a kernel above which each length has its own plan. Not measured."""
_STORE_SECONDS: Final = 0.3e-3
"""Seconds of memory traffic that raise `_MOST_BYTES` on a fast device. Not measured."""
_KERNEL_SECONDS: Final = 5e-3
"""Seconds of operations that raise `_MOST_OPERATIONS` on a fast device. Not measured."""


@final
@dataclass(frozen=True)
class _Sample:
    """The integers and numbers that may differ between graphs of one form, in order of nodes."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    numbers: Numbers

    @property
    def integers(self) -> tuple[int, ...]:
        """The sizes and the offsets."""
        return self.sizes + self.offsets


def _sample(graph: Graph, key: tuple[Any, ...]) -> tuple[_Sample, Hashable]:
    """The sizes, offsets and numbers of a graph, and the rest of its key."""
    sizes: list[int] = []
    offsets: list[int] = []
    numbers: list[Hashable] = []
    parts: list[Hashable] = []
    for node, part in zip(graph.everything, key, strict=False):
        own_sizes, own_offsets = _integers(node)
        sizes += own_sizes
        offsets += own_offsets
        value = node.base_const()
        if value is not None:
            numbers.append(exact(value))
        ones = tuple([size == 1 for size in own_sizes])
        changes = bool(own_sizes or own_offsets)
        parts.append(_form(node, part, ones) if changes or value is not None else part)
    form = (*parts, *key[len(graph.everything) :])
    return _Sample(tuple(sizes), tuple(offsets), tuple(numbers)), form


def _form(node: LazyBuffer, part: tuple[Any, ...], ones: tuple[bool, ...]) -> Hashable:
    """A node's part of the key without offsets, numbers, and sizes other than 1."""
    if node.realized is not None:
        # See `parts_of` in graph_key: the shape is first, the memory's size third from the end.
        return (ones, *part[1:-3], *part[-2:])
    if not node.srcs:
        return (node.op, ones, *part[4:])
    op, sources, arg, owner = part
    kept = FORMS[op].rest(arg) if op in FORMS else None
    return (op, sources, kept, ones, owner)


def _integers(node: LazyBuffer) -> tuple[Sequence[Any], Sequence[Any]]:
    """The sizes and the offsets that a node introduces."""
    arg = node.arg
    op = node.op
    if node.realized is not None:
        return (node.shape if _is_whole(node) else ()), ()
    if not node.srcs:
        return node.shape, ()
    if op is LoadOps.ASSIGN and arg is not None:
        return arg.shape, (*arg.strides, arg.offset)
    form = FORMS.get(op)
    return ((), ()) if form is None else (form.sizes(arg), form.offsets(arg))


def _is_whole(node: LazyBuffer) -> bool:
    """True for a leaf that is all of its memory, so that its sizes tell the number of elements."""
    buffer = node.realized
    return buffer is not None and buffer.base is buffer and buffer.size == prod_sint(node.shape)


def _argument(node: LazyBuffer, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
    """The argument of a node with sources, with the next `sizes` and `offsets` as its integers."""
    arg = node.arg
    op = node.op
    if op is LoadOps.ASSIGN and arg is not None:
        shape = tuple([next(sizes) for _ in arg.shape])
        return View(shape, tuple([next(offsets) for _ in arg.strides]), next(offsets))
    form = FORMS.get(op)
    return arg if form is None else form.replaced(arg, sizes, offsets)


# *** how sizes depend on one another ***


@final
@dataclass(frozen=True)
class _Term:
    """The product of `factor` and some lengths, which are named by numbers."""

    factor: int
    lengths: tuple[int, ...]


@final
@dataclass(frozen=True)
class _Law:
    """An integer of a graph as a polynomial of the lengths."""

    terms: tuple[_Term, ...]
    constant: int = 0

    def of(self, lengths: Sequence[Any]) -> Any:
        """The value, or expression, of the integer for these lengths."""
        total = self.constant
        for term in self.terms:
            product = term.factor
            for number in term.lengths:
                product = product * lengths[number]
            total = total + product
        return total


def _laws(samples: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, _Law]] | None:
    """Split the changing integers into independent lengths and expressions of those.

    Returns the positions of the lengths, and the laws by position; None if there are too many
    lengths. Integers that change least are taken for lengths, since others are multiples of them.
    """
    columns = list(zip(*samples, strict=True))
    changing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    changing.sort(key=lambda place: max(columns[place]) - min(columns[place]))
    lengths: list[int] = []
    laws: dict[int, _Law] = {}
    for place in changing:
        law = _law(columns[place], [columns[length] for length in lengths])
        if law is None:
            law = _Law((_Term(1, (len(lengths),)),))
            lengths.append(place)
            if len(lengths) > _MOST_LENGTHS:
                return None
        laws[place] = law
    return lengths, laws


def _law(column: tuple[int, ...], lengths: Sequence[tuple[int, ...]]) -> _Law | None:
    """The law of an integer that holds in all samples; None if there is none."""
    for law in _candidates(column, lengths):
        if all([law.of(row) == n for n, *row in zip(column, *lengths, strict=True)]):
            return law
    return None


def _candidates(column: tuple[int, ...], lengths: Sequence[tuple[int, ...]]) -> Iterator[_Law]:
    numbers = range(len(lengths))
    for i in numbers:
        length = lengths[i]
        other = next(row for row, n in enumerate(length) if n != length[0])
        factor, rest = divmod(column[other] - column[0], length[other] - length[0])
        if rest == 0:
            yield _Law((_Term(factor, (i,)),), column[0] - factor * length[0])
    for i in numbers:
        for j in numbers:
            both = lengths[i][0] * lengths[j][0]
            if both and column[0] % both == 0:
                yield _Law((_Term(column[0] // both, (i, j)),))
            if i != j:
                for sign in (1, -1):
                    terms = (_Term(1, (i,)), _Term(sign, (j,)))
                    yield _Law(terms, column[0] - lengths[i][0] - sign * lengths[j][0])
                # A multiple of one length, and a remainder.
                factor, rest = divmod(column[0] - lengths[j][0], max(lengths[i][0], 1))
                if rest == 0:
                    yield _Law((_Term(factor, (i,)), _Term(1, (j,))))


# *** graphs that differ in sizes ***


@final
class _Family:
    """Graphs of one form: samples, the laws of their sizes, and plans for all lengths."""

    def __init__(self) -> None:
        self.samples: list[_Sample] = []
        self.seen: set[tuple[int, ...]] = set()
        self.lengths: list[int] = []
        self.laws: dict[int, _Law] | None = None
        self.numbers: list[int] = []
        """The positions of the numbers that change."""
        self.plans: dict[tuple[Target, tuple[Length, ...]], ExecutionPlan | None] = {}
        """The plans by target and variables with bounds; None where there can be no plan."""
        self.uses: dict[tuple[int, ...], int] = {}
        """The number of graphs with these integers so far."""

    def values(self, now: _Sample) -> list[int] | None:
        """The lengths of a graph; None if laws are unknown, or broken, or the sizes come often."""
        integers = now.integers
        if len(self.uses) >= _MOST_COUNTED:
            self.uses.clear()
        self.uses[integers] = self.uses.get(integers, 0) + 1
        if self.uses[integers] > _OFTEN:
            return None
        if self.laws is not None:
            lengths = [integers[place] for place in self.lengths]
            as_expected = integers == tuple(self.integers(lengths)) and min(lengths) >= 0
            if as_expected and self._has_known_numbers(now):
                return lengths
        self._learn(now)
        return None

    def integers(self, lengths: Sequence[sint]) -> list[sint]:
        """The sizes and the offsets of graphs with these lengths."""
        assert self.laws is not None
        found: list[sint] = list(self.samples[0].integers)
        for place, law in self.laws.items():
            found[place] = as_int(law.of(lengths))
        return found

    def _has_known_numbers(self, now: _Sample) -> bool:
        changed = set(self.numbers)
        pairs = enumerate(zip(now.numbers, self.samples[0].numbers, strict=True))
        return all([place in changed for place, (number, first) in pairs if number != first])

    def _learn(self, now: _Sample) -> None:
        """Learn from one more sample; `offsets.py` handles graphs that differ in offsets alone."""
        is_new = self.laws is not None or now.sizes not in self.seen
        if not is_new or len(self.samples) >= _MOST_SAMPLES:
            return
        self.seen.add(now.sizes)
        self.samples.append(now)
        self.laws = None
        self.plans.clear()
        if len(self.samples) < _ENOUGH:
            return
        found = _laws([sample.integers for sample in self.samples])
        if found is not None:
            self.lengths, self.laws = found
        columns = zip(*[sample.numbers for sample in self.samples], strict=True)
        self.numbers = [place for place, column in enumerate(columns) if len(set(column)) > 1]


_families: OrderedDict[Hashable, _Family] = OrderedDict()


def schedule_of_any_length(
    graph: Graph, key: tuple[Any, ...], planner: Planner, target: Target
) -> Schedule | None:
    """The schedule of a graph by a plan for all lengths; None if there is none.

    `key` is the key of the graph's form, for which there is no plan; `planner` plans for `target`.
    """
    if graph.symbolic or any([node.op is LoadOps.CUSTOM for node in graph.everything]):
        return None  # a user's runner, or the reader of a file, works for this size only
    now, form = _sample(graph, key)
    family = _families.get(form)
    if family is None:
        family = _families[form] = _Family()
        if len(_families) > _MOST_FAMILIES:
            _families.popitem(last=False)
    _families.move_to_end(form)
    lengths = family.values(now)
    if lengths is None:
        return None
    pairs = enumerate([_bounds(length) for length in lengths])
    variables = tuple([Length(f"length{number}", *pair) for number, pair in pairs])
    leaves = _number_leaves(graph, family.numbers)
    kind = (target, variables)
    if kind not in family.plans:
        if len(family.plans) >= _MOST_PLANS:
            family.plans.clear()
        bound = [variable.bind(n) for variable, n in zip(variables, lengths, strict=True)]
        other = _generalised(graph, family.integers(bound), len(now.sizes), leaves)
        family.plans[kind] = None if other is None else _planned(other, planner, target)
    plan = family.plans[kind]
    if plan is None:
        return None
    values: dict[Any, int] = dict(zip(variables, lengths, strict=True))
    nodes = [*leaves.values(), *graph.everything]
    return plan.follow([values] * len(plan.steps), nodes, values)


def _bounds(length: int) -> tuple[int, int]:
    """The least and the greatest length that have the same plan as this one."""
    if length <= _LEAST_BOUND:
        return (min(length, 1), _LEAST_BOUND)
    greatest = 1 << (length - 1).bit_length()
    return (greatest // 2 + 1, greatest)


def _number_leaves(graph: Graph, changed: Sequence[int]) -> dict[LazyBuffer, LazyBuffer]:
    """A leaf of one element for each constant that changes; `changed` has their positions."""
    if not changed:
        return {}
    constants = [node for node in graph.everything if node.base_const() is not None]
    return {constants[place]: number_in_memory(constants[place]) for place in changed}


# *** the graph of any length ***


def _generalised(
    graph: Graph,
    integers: list[sint],
    count: int,
    leaves: Mapping[LazyBuffer, LazyBuffer],
) -> Graph | None:
    """The graph with other integers, `count` of which are sizes, and leaves for some constants.

    None if shapes may not fit for some lengths.
    """
    sizes, offsets = iter(integers[:count]), iter(integers[count:])
    twins: dict[LazyBuffer, LazyBuffer] = {}
    for node in graph.everything:
        counts = [len(found) for found in _integers(node)]
        own = [next(sizes) for _ in range(counts[0])], [next(offsets) for _ in range(counts[1])]
        twin = _twin(node, own, twins, leaves.get(node))
        if twin is node:
            continue
        if twin is None:
            return None
        twins[node] = twin

    def all_of(nodes: Iterable[LazyBuffer]) -> list[LazyBuffer]:
        return [twins.get(node, node) for node in nodes]

    everything = [*leaves.values(), *all_of(graph.everything)]
    order = everything
    if graph.order is not graph.everything:
        present = set(graph.order)
        order = [leaves[node] for node in leaves if node in present] + all_of(graph.order)
    return Graph(
        order,
        dict.fromkeys(all_of(graph.requested)),
        everything,
        set(all_of(graph.external)),
        all_of(graph.moved_out),
        symbolic=True,
    )


def _twin(
    node: LazyBuffer,
    own: tuple[list[sint], list[sint]],
    twins: Mapping[LazyBuffer, LazyBuffer],
    leaf: LazyBuffer | None,
) -> LazyBuffer | None:
    """The node with its `own` new integers on the twins of its sources; itself if all is equal.

    None if its shape is not certain.
    """
    sizes, offsets = own
    changes = not all([isinstance(n, int) for n in (*sizes, *offsets)])
    if leaf is not None:
        return leaf.like((leaf,), tuple(sizes), tuple(sizes), MovementOps.EXPAND)
    if node.realized is not None:
        if not changes:
            return node
        twin = LazyBuffer.in_buffer(node.realized, tuple(sizes))
        twin.owner = node.owner
        return twin
    srcs = tuple([twins.get(source, source) for source in node.srcs])
    moved = any([new is not old for new, old in zip(srcs, node.srcs, strict=True)])
    if not changes and not moved:
        return node
    if not node.srcs:
        return node.like((), node.arg, tuple(sizes))
    arg = _argument(node, iter(sizes), iter(offsets))
    shape = _shape(node, srcs, arg)
    return None if shape is None else node.like(srcs, arg, shape)


def _shape(node: LazyBuffer, srcs: tuple[LazyBuffer, ...], arg: Any) -> Shape | None:
    """The shape of a node with these sources and argument; None if they may not fit."""
    shapes = [source.shape for source in srcs]
    if node.op is LoadOps.FROM:
        return None  # what is copied to another device is all of some memory
    if isinstance(node.op, LoadOps | FunctionOps):
        fitting = arg.shape if isinstance(arg, View) else shapes[0]
        return shapes[0] if all([shape == fitting for shape in shapes[1:]]) else None
    if node.op is MovementOps.RESHAPE and not same(prod_sint(shapes[0]), prod_sint(arg)):
        return None
    try:
        return infer(node.op, [(source.shape, source.dtype) for source in srcs], arg)[0]
    except OpError:  # sizes that must be equal follow different laws
        return None


def _planned(graph: Graph, planner: Planner, target: Target) -> ExecutionPlan | None:
    """The plan of a graph with symbolic sizes.

    None if it is uncertain that views fit. None as well if values are so large, or kernels run so
    long, that a plan for each length is worth its compilation.
    """
    try:
        plan = planner(graph)
    except ShapeError:
        return None
    stored = [place for place in plan.places if place.node is None]
    most_bytes = max(_MOST_BYTES, _STORE_SECONDS * target.bytes_per_second * target.max_threads)
    if any([as_expr(p.size).max * p.dtype.itemsize > most_bytes for p in stored]):
        return None
    kernels = [step.ast for step in plan.steps if isinstance(step.ast.op, BufferOps)]
    longest = max([as_expr(get_lazyop_info(ast).flops).max for ast in kernels], default=0)
    most = max(_MOST_OPERATIONS, _KERNEL_SECONDS * target.flops_per_second * target.max_threads)
    return plan if longest <= most else None
