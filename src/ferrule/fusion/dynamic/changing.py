"""Numbers and offsets that change from call to call, such as a learning rate.

Kernels are specialised for the numbers and offsets of a graph, which makes them simpler. But a loop
that changes these would compile new kernels in each turn. So graphs that differ in nothing else are
counted. After a few of them the changed numbers and offsets are generalised: a number becomes
memory of one element, and `offsets.py` replaces offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.fusion.dynamic.offsets import offsets_of, without_offsets
from ferrule.fusion.graph import Graph
from ferrule.ir.dtype import exact
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps

Numbers: TypeAlias = list[Hashable]
Offsets: TypeAlias = list[tuple[int, tuple[Any, ...]]]

_ENOUGH: Final = 4
"""Graphs of one form that have kernels of their own, before a plan serves all. Not measured."""
_MOST_FORMS: Final = 256
"""Forms that are remembered, the least recently used being dropped. Not measured."""


@final
class _Seen:
    """Graphs of one form: the first's numbers and offsets, the changed ones, and a count."""

    def __init__(self, numbers: Numbers, offsets: Offsets) -> None:
        self.numbers = numbers
        self.offsets = offsets
        self.changed_numbers: set[int] = set()
        self.changed_offsets: set[tuple[int, int]] = set()
        self.count = 0

    def add(self, numbers: Numbers, offsets: Offsets) -> None:
        """Count one more graph, and note which of its numbers and offsets differ."""
        self.count += 1
        if numbers != self.numbers:
            pairs = enumerate(zip(numbers, self.numbers, strict=True))
            self.changed_numbers.update([place for place, (now, first) in pairs if now != first])
        if offsets != self.offsets:
            for (place, now), (_, first) in zip(offsets, self.offsets, strict=True):
                axes = enumerate(zip(now, first, strict=True))
                self.changed_offsets.update([(place, axis) for axis, (a, b) in axes if a != b])


_forms: OrderedDict[Hashable, _Seen] = OrderedDict()


@final
@dataclass(frozen=True)
class Changes:
    """The numbers and offsets that changed between graphs of one form."""

    numbers: list[LazyBuffer]
    """The constants whose values changed."""
    offsets: frozenset[tuple[int, int]]
    """The changed offsets: the number of the node, and the axis."""


_NONE: Final = Changes([], frozenset())


def changes(graph: Graph, key: tuple[Any, ...]) -> Changes:
    """The changes between graphs of this one's form; none while there were only a few of them.

    `key` is the key of the graph's form.
    """
    constants = [node for node in graph.everything if _is_number(node)]
    offsets: Offsets = []
    if not graph.symbolic:
        found = [(place, offsets_of(node)) for place, node in enumerate(graph.everything)]
        offsets = [pair for pair in found if pair[1]]
    if not constants and not offsets:
        return _NONE
    form = tuple([without_offsets(without_number(part)) for part in key])
    numbers = [exact(node.arg) for node in constants]
    seen = _forms.get(form)
    if seen is None:
        seen = _forms[form] = _Seen(numbers, offsets)
        if len(_forms) > _MOST_FORMS:
            _forms.popitem(last=False)
    _forms.move_to_end(form)
    seen.add(numbers, offsets)
    if seen.count <= _ENOUGH:
        return _NONE
    chosen = [constants[place] for place in seen.changed_numbers]
    return Changes(chosen, frozenset(seen.changed_offsets))


def _is_number(node: LazyBuffer) -> bool:
    value = node.base_const()
    return value is not None and not isinstance(value, Expr)


def names_number(part: Any) -> bool:
    """True if a part of a graph's key stands for a constant: CONST, the number, its bits, ..."""
    return part[0] is LoadOps.CONST and not isinstance(part[1], Expr)


def without_number(part: Any) -> Any:
    """A part of a graph's key without the number of a constant."""
    return part[3:] if names_number(part) else part
