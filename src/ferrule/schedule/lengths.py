"""Lengths that change from call to call, such as that of a sequence that grows.

A kernel for one length is simpler and quicker than one for any, but it has to be compiled. So
graphs that differ in nothing but sizes are collected in a *family*. After a few of them it is known
which sizes change, and how they depend on one another; then there is a plan for all of them: that
of a graph in which the lengths are variables. Values are laid out as they are for any one length.

Each graph's sizes are compared with what the plan says that they are, so that a wrong guess costs a
plan, and no more. Axes of size 1 can be repeated, which is why these sizes are a part of the form.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.buffer import Buffer
from ferrule.dtype import exact
from ferrule.expr import Length, as_expr, as_int, sint
from ferrule.lazy import LazyBuffer
from ferrule.opkinds import FORMS, OpError, infer
from ferrule.ops import (
    BufferOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    get_lazyop_info,
)
from ferrule.records import dataclass
from ferrule.schedule.graph import Graph
from ferrule.schedule.recipe import Recipe, Schedule
from ferrule.shape.view import Shape, ShapeError, View, prod_sint, same
from ferrule.target import Target

Plan: TypeAlias = Callable[[Graph], Recipe]
Numbers: TypeAlias = tuple[Hashable, ...]

_ENOUGH: Final = 3
"""How many graphs that differ in sizes have kernels of their own."""
_OFTEN: Final = 32
"""Sizes that come more often have kernels of their own, too: a model's layers, one by one."""
# What is remembered has bounds, so that sizes that never come again do not fill memory.
_MOST_COUNTED: Final = 4096
_MOST_SAMPLES: Final = 8
_MOST_LENGTHS: Final = 4
_MOST_FAMILIES: Final = 256
_MOST_PLANS: Final = 64
"""Of one family."""
_LEAST_BOUND: Final = 64
"""Lengths up to this have one plan, and so have those up to twice as many, and so on: costs are
estimated for the greatest length, and intermediate results have memory for it."""
_MOST_BYTES: Final = 1 << 26
_MOST_OPERATIONS: Final = 1 << 31
"""Of what is stored, and of a kernel: with more, compiling is not what takes the time."""
_STORE_SECONDS: Final = 0.3e-3
_KERNEL_SECONDS: Final = 5e-3
"""What a device does in so long may be more."""


@final
@dataclass(frozen=True)
class _Sample:
    """What may be different in another graph of the same form, in the order of its nodes."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    numbers: Numbers

    @property
    def integers(self) -> tuple[int, ...]:
        """Both kinds."""
        return self.sizes + self.offsets


def _sample(graph: Graph, key: tuple[Any, ...]) -> tuple[_Sample, Hashable]:
    """What may change of a graph, and the rest of its key."""
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
    """A node's part of the key without sizes, but for those that are 1, offsets and numbers."""
    if node.realized is not None:
        # See `Form`: the first is the shape, the third from the end how much memory it is.
        return (ones, *part[1:-3], *part[-2:])
    if not node.srcs:
        return (node.op, ones, *part[4:])
    op, sources, arg, owner = part
    kept = FORMS[op].rest(arg) if op in FORMS else None
    return (op, sources, kept, ones, owner)


def _integers(node: LazyBuffer) -> tuple[Sequence[Any], Sequence[Any]]:
    """The sizes and the offsets that a node brings in."""
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
    """Whether a leaf is all of some memory, so that it has no more elements than its sizes say."""
    buffer = node.realized
    return buffer is not None and buffer.base is buffer and buffer.size == prod_sint(node.shape)


def _argument(node: LazyBuffer, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
    """The argument of a node with sources, with these in place of its integers."""
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
    """`factor` times the product of some lengths, which are named by numbers."""

    factor: int
    lengths: tuple[int, ...]


@final
@dataclass(frozen=True)
class _Law:
    """An integer of a graph as a function of the lengths."""

    terms: tuple[_Term, ...]
    constant: int = 0

    def of(self, lengths: Sequence[Any]) -> Any:
        """Its value, or expression, for these lengths."""
        total = self.constant
        for term in self.terms:
            product = term.factor
            for number in term.lengths:
                product = product * lengths[number]
            total = total + product
        return total


def _laws(samples: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, _Law]] | None:
    """Which of the integers are the lengths, and what those that change are by these.

    None if they are too many. Those that change least are taken for lengths: others are multiples.
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
    """What a column is in all samples."""
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
                # So many parts of one length, and what is left.
                factor, rest = divmod(column[0] - lengths[j][0], max(lengths[i][0], 1))
                if rest == 0:
                    yield _Law((_Term(factor, (i,)), _Term(1, (j,))))


# *** graphs that differ in sizes ***


@final
class _Family:
    """Graphs of one form: some of them, the laws of their sizes, and plans for all lengths."""

    def __init__(self) -> None:
        self.samples: list[_Sample] = []
        self.seen: set[tuple[int, ...]] = set()
        self.lengths: list[int] = []
        self.laws: dict[int, _Law] | None = None
        self.numbers: list[int] = []
        """Those that change."""
        self.plans: dict[tuple[Target, tuple[Length, ...]], Recipe | None] = {}
        """By the variables with their bounds; None where there is no plan for these."""
        self.uses: dict[tuple[int, ...], int] = {}
        """How often graphs with these integers came."""

    def values(self, now: _Sample) -> list[int] | None:
        """The lengths of a graph; None where no law is known, or it breaks one."""
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
        """One more sample; graphs that differ in offsets alone are another module's concern."""
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
    graph: Graph, key: tuple[Any, ...], plan: Plan, target: Target
) -> Schedule | None:
    """The schedule of a graph by a plan for all lengths; None where there is none.

    `key` is that of the graph's form, for which there is no recipe; `plan` is for `target`.
    """
    if graph.symbolic or any([node.op is LoadOps.CUSTOM for node in graph.everything]):
        return None  # a runner of the user's, or the reader of a file, is for this very size
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
        family.plans[kind] = None if other is None else _planned(other, plan, target)
    recipe = family.plans[kind]
    if recipe is None:
        return None
    values: dict[Any, int] = dict(zip(variables, lengths, strict=True))
    nodes = [*leaves.values(), *graph.everything]
    return recipe.follow([values] * len(recipe.steps), nodes, values)


def _bounds(length: int) -> tuple[int, int]:
    """Between which numbers, inclusive, lengths have the same plan as this one."""
    if length <= _LEAST_BOUND:
        return (min(length, 1), _LEAST_BOUND)
    greatest = 1 << (length - 1).bit_length()
    return (greatest // 2 + 1, greatest)


def _number_leaves(graph: Graph, changed: Sequence[int]) -> dict[LazyBuffer, LazyBuffer]:
    """For the constants that change, by their places among all: one element in memory."""
    if not changed:
        return {}
    import numpy as np

    constants = [node for node in graph.everything if node.base_const() is not None]
    leaves: dict[LazyBuffer, LazyBuffer] = {}
    for place in changed:
        node = constants[place]
        number = np.array(node.base_const(), node.dtype.np)
        buffer = Buffer.fromCPU(node.device, number)
        leaves[node] = LazyBuffer.in_buffer(buffer, (1,) * len(node.shape))
    return leaves


# *** the graph of any length ***


def _generalised(
    graph: Graph,
    integers: list[sint],
    count: int,
    leaves: Mapping[LazyBuffer, LazyBuffer],
) -> Graph | None:
    """A graph with other integers, `count` of which are sizes, and leaves for some constants.

    None where it is not certain that shapes fit, whatever the lengths are.
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
    """A node with these integers, of the twins of its sources; itself where nothing is different.

    None where its shape is not certain.
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
    """The shape of such a node; None where it is not certain that its sources fit."""
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
    except OpError:  # these sizes are equal for other reasons, or by chance
        return None


def _planned(graph: Graph, plan: Plan, target: Target) -> Recipe | None:
    """The plan of a graph with symbolic sizes; None where these do not show that views fit, or
    what is stored is so much, or a kernel runs so long, that one for each length is worth it.
    """
    try:
        recipe = plan(graph)
    except ShapeError:
        return None
    stored = [place for place in recipe.places if place.node is None]
    most_bytes = max(_MOST_BYTES, _STORE_SECONDS * target.bytes_per_second * target.max_threads)
    if any([as_expr(p.size).max * p.dtype.itemsize > most_bytes for p in stored]):
        return None
    kernels = [step.ast for step in recipe.steps if isinstance(step.ast.op, BufferOps)]
    longest = max([as_expr(get_lazyop_info(ast).flops).max for ast in kernels], default=0)
    most = max(_MOST_OPERATIONS, _KERNEL_SECONDS * target.flops_per_second * target.max_threads)
    return recipe if longest <= most else None
