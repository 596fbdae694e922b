"""Numbers that change from call to call, such as a learning rate: they are read from memory.

A number in an expression is part of its kernels, which can be simpler for it. But a loop in which
it is another one each time would make new kernels each time. So graphs that differ only in their
numbers are counted, and after a few of them the numbers that changed become memory, of one element:
then one kernel serves all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, TypeAlias, final

from ferrule.expr import Expr
from ferrule.fold import is_negative_zero
from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, MovementOps
from ferrule.schedule.graph import Graph
from ferrule.shape.view import View

Numbers: TypeAlias = list[tuple[Any, bool]]

_ENOUGH: Final = 4
"""How many graphs that differ in nothing else have kernels of their own."""
_MOST_FORMS: Final = 256


@final
class _Seen:
    """Graphs of one form: the numbers of the first, which of them changed, and how many came."""

    def __init__(self, numbers: Numbers) -> None:
        self.first = numbers
        self.changed: set[int] = set()
        self.count = 0


_forms: OrderedDict[Hashable, _Seen] = OrderedDict()


def store_changing(graph: Graph, key: tuple[Any, ...]) -> bool:
    """Moves numbers that keep changing to memory; whether there were any, so that the graph is not
    what it was. `key` is that of the graph's form.
    """
    constants = [node for node in graph.everything if _is_number(node)]
    if not constants:
        return False
    # The parts of the key that stand for constants begin: CONST, the number, its zero's sign.
    form = tuple([part[3:] if _names_number(part) else _anywhere(part) for part in key])
    numbers = [(node.arg, is_negative_zero(node.arg)) for node in constants]
    seen = _forms.get(form)
    if seen is None:
        seen = _forms[form] = _Seen(numbers)
        if len(_forms) > _MOST_FORMS:
            _forms.popitem(last=False)
    _forms.move_to_end(form)
    pairs = enumerate(zip(numbers, seen.first, strict=True))
    seen.changed.update([place for place, (now, first) in pairs if now != first])
    seen.count += 1
    if seen.count <= _ENOUGH or not seen.changed:
        return False
    for place in seen.changed:
        constants[place].store_number()
    return True


def _anywhere(part: Any) -> Any:
    """A part of a key without the place in memory: `x[i] = v` is of one form for all `i`."""
    if isinstance(part, tuple) and len(part) > 2:
        op, sources, arg = part[:3]
        if op is MovementOps.SHRINK:
            return (op, sources, tuple([stop - start for start, stop in arg]), *part[3:])
        if op is LoadOps.ASSIGN and isinstance(arg, View):
            return (op, sources, arg.shape, arg.strides, *part[3:])
    return part


def _is_number(node: LazyBuffer) -> bool:
    value = node.base_const()
    return value is not None and not isinstance(value, Expr)


def _names_number(part: Any) -> bool:
    is_constant = isinstance(part, tuple) and part[0] is LoadOps.CONST
    return is_constant and not isinstance(part[1], Expr)
