"""Matchers: code generated from a graph that recognises equal ones, and binds their plan.

To make a graph's key (`graph_key.py`) takes a microsecond for each node, half of what a small
operation takes besides its kernel. A matcher compares all that the key holds by straight-line code,
and then gives the nodes and the memory of each place of the plan:

    def match(roots):
        [n2] = roots
        if n2.op is not k0 or n2.arg is not None or n2.owner is not None: return None
        [n0, n1] = n2.srcs
        bn1 = n1.realized
        if bn1 is None or n1.shape != k1 or n1.dtype is not k2 ...: return None
        ...
        if bn0 is bn1: return None
        p2 = Buffer(k9, 256, k10)
        return [n0, n1, n2], [bn0, bn1, p2]

It need not look whether nodes that are two in the graph are two in the other one as well: as memory
and constants differ in pairs, and so what is made of these, they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.fusion.plans.execution_plan import ExecutionPlan
from ferrule.fusion.plans.graph_key import KeyedGraph, is_run
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes, exact
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.node import needed_outside

Matched: TypeAlias = tuple[list[LazyBuffer], list[Buffer]]
"""A graph's nodes in the order of `KeyedGraph.numbers`, and the memory of its plan's places."""
Matcher: TypeAlias = Callable[[Sequence[LazyBuffer]], "Matched | None"]
"""Takes the roots of a graph; None if that is not equal to the one that it is made from."""

PAYS_AFTER: Final = 128
"""Uses of a graph after which a matcher pays: it takes 60 us for each node to make, and saves half
a microsecond (Zen 4, CPython 3.11, 2026-11)."""


def matcher_of(keyed: KeyedGraph, plan: ExecutionPlan) -> Matcher | None:
    """The matcher of a graph with its plan; None where equal graphs would need another look.

    These are graphs with the user's or the host's runs, and with equal nodes that are not one
    object, as several threads make them. The roots are all nodes to compute, in order.
    """
    if any(map(is_run, keyed.numbers)):
        return None
    return _Writer(keyed).matcher([*keyed.requested], plan)


@final
class _Writer:
    """Writes the code of a matcher."""

    def __init__(self, keyed: KeyedGraph) -> None:
        self._keyed = keyed
        self._numbers = keyed.numbers
        self._lines: list[str] = []
        self._values: dict[str, Any] = {"exact": exact, "outside": needed_outside, "Buffer": Buffer}
        """The names in the code, and their values."""
        self._known = set(keyed.requested)
        """The nodes that the code has met."""
        self._things: dict[int, str] = {}
        """The memory and the owners that the code has met, by `id()`, and its names for them."""
        self._kinds: set[Hashable] = set()

    def matcher(self, roots: Sequence[LazyBuffer], plan: ExecutionPlan) -> Matcher | None:
        """The function; None if two nodes are equal."""
        nodes = list(self._numbers)
        self._lines.append(f"[{self._names(roots)}] = roots")
        for node in reversed(nodes):  # users before sources
            kind = self._write(node)
            if kind in self._kinds:
                return None
            self._kinds.add(kind)
        things = list(self._things.values())
        if len(things) == 2:
            self._refuse(f"{things[0]} is {things[1]}")
        elif len(things) > 2:
            self._refuse(f"len({{{', '.join(things)}}}) != {len(things)}")
        self._write_outside(nodes)
        memory = self._write_memory_of_places(nodes, plan)
        self._lines.append(f"return [{self._names(nodes)}], [{memory}]")
        body = "\n        ".join(self._lines)
        # Another thread may compute a node meanwhile, which has no sources then.
        text = (
            f"def match(roots):\n    try:\n        {body}\n"
            "    except ValueError:\n        return None\n"
        )
        # Sizes are compared as this package does, by the name of the module.
        space = {**self._values, "__name__": __name__}
        exec(compile(text, "<matcher>", "exec"), space)
        found: Matcher = space["match"]
        return found

    def _names(self, nodes: Sequence[LazyBuffer]) -> str:
        return ", ".join([f"n{self._numbers[node]}" for node in nodes])

    def _value(self, value: Any) -> str:
        """The name of a value in the code."""
        name = f"k{len(self._values)}"
        self._values[name] = value
        return name

    def _refuse(self, condition: str) -> None:
        self._lines.append(f"if {condition}: return None")

    def _differs(self, text: str, value: Any) -> str:
        """The condition that the value of an expression is another one."""
        return f"{text} is not None" if value is None else f"{text} != {self._value(value)}"

    def _write(self, node: LazyBuffer) -> Hashable:
        """Write what has to be so for a node, which the code has met; and what else tells it from
        all others.
        """
        name = f"n{self._numbers[node]}"
        if node.realized is not None:
            self._write_memory(node, name)
            return name
        if node.srcs:
            conditions = [f"{name}.op is not {self._value(node.op)}"]
            conditions.append(self._differs(f"{name}.arg", node.arg))
            self._write_owner(node, name, conditions)
            self._write_sources(node, name)
            return node.op, node.arg, node.srcs
        kind = node.shape, node.dtype, node.device
        found = f"{name}.shape, {name}.dtype, {name}.device"
        if node.op is LoadOps.CONST:
            value = exact(node.arg)
            other = f"({found}, exact({name}.arg)) != {self._value((*kind, value))}"
            # The serial number is that of the very node, as constants are kept.
            conditions = [f"{name}.op is not {self._value(node.op)}"]
            conditions.append(f"({name}.serial != {node.serial} and {other})")
            self._write_owner(node, name, conditions)
            return node.op, kind, value
        known = self._value((node.op, *kind, node.arg))
        self._write_owner(node, name, [f"({name}.op, {found}, {name}.arg) != {known}"])
        return node.op, kind, node.arg

    def _write_owner(self, node: LazyBuffer, name: str, conditions: list[str]) -> None:
        """Write the conditions on a node, and on the storage whose version it is."""
        if node.owner is None:
            self._refuse(" or ".join([*conditions, f"{name}.owner is not None"]))
            return
        self._refuse(" or ".join(conditions))
        self._lines.append(f"t{name} = {name}.owner")
        self._refuse(f"t{name} is None")
        self._meet(node.owner, f"t{name}")

    def _meet(self, thing: object, name: str) -> bool:
        """Write that a thing is the one that it was met as, if it was; True if so."""
        known = self._things.setdefault(id(thing), name)
        if known != name:
            self._refuse(f"{name} is not {known}")
        return known != name

    def _write_memory(self, node: LazyBuffer, name: str) -> None:
        buffer = node.realized
        assert buffer is not None
        memory = f"b{name}"
        self._lines.append(f"{memory} = {name}.realized")
        conditions = [
            f"{memory} is None",
            f"{name}.shape != {self._value(node.shape)}",
            f"{name}.dtype is not {self._value(node.dtype)}",
            f"{name}.device != {self._value(node.device)}",
            f"{memory}.size != {buffer.size}",
        ]
        is_shared = bool(buffer.base._exports and buffer.arrays)
        if buffer._base is None:
            conditions.append(f"{memory}._base is not None")
            shares = f"({memory}._exports and {memory}.arrays)"
            conditions.append(f"not {shares}" if is_shared else shares)
            self._write_owner(node, name, conditions)
        else:
            conditions.append(f"{memory}._base is None")
            conditions.append(f"{memory}.byte_offset != {buffer.byte_offset}")
            conditions.append(f"bool({memory}.arrays) is not {is_shared}")
            self._write_owner(node, name, conditions)
            self._lines.append(f"w{name} = {memory}._base")
            self._meet(buffer._base, f"w{name}")
        if self._meet(buffer, memory):
            others = [n for n in self._numbers if n.realized is buffer and n is not node]
            self._refuse(" or ".join([f"{name} is n{self._numbers[other]}" for other in others]))

    def _write_sources(self, node: LazyBuffer, name: str) -> None:
        """Write the names of the sources, and which of them are the same nodes as others."""
        targets: list[str] = []
        same: list[str] = []
        for place, source in enumerate(node.srcs):
            known = f"n{self._numbers[source]}"
            if source in self._known:
                targets.append(f"s{place}")
                same.append(f"s{place} is not {known}")
            else:
                self._known.add(source)
                targets.append(known)
        self._lines.append(f"[{', '.join(targets)}] = {name}.srcs")
        if same:
            self._refuse(" or ".join(same))

    def _write_outside(self, nodes: Sequence[LazyBuffer]) -> None:
        """Write that the same nodes are needed outside of the graph."""
        inner = [node for node in nodes if node.srcs]
        if len(inner) == 1 and inner[0].op is not LoadOps.ASSIGN:
            return  # see `KeyedGraph`
        numbers = ", ".join([f"n{number}: {number}" for number in range(len(nodes))])
        self._refuse(f"outside({{{numbers}}}) != {self._value(list(self._keyed.outside))}")

    def _write_memory_of_places(self, nodes: Sequence[LazyBuffer], plan: ExecutionPlan) -> str:
        """Write what gives the memory of all places, as `ExecutionPlan.bind` does; the names."""
        for number, (device, nbytes) in enumerate(plan.arenas):
            arena = f"Buffer({device!r}, {nbytes}, {self._value(dtypes.uint8)})"
            self._lines.append(f"a{number} = {arena}")
        names: list[str] = []
        for number, place in enumerate(plan.places):
            dtype = self._value(place.dtype)
            if place.node is not None:
                buffer = nodes[place.node].realized
                assert buffer is not None, "a leaf lost its memory"
                found = f"bn{place.node}"
                if buffer.size != place.size:
                    found = f"{found}.view({place.offset}, {place.size})"
            elif place.table is not None:
                found = self._value(place.table)
            elif place.arena is not None:
                found = f"a{place.arena}.view({place.offset}, {place.size}, {dtype})"
            elif place.whole is not None:
                found = f"{names[place.whole]}.view({place.offset}, {place.size})"
            else:
                found = f"Buffer({place.device!r}, {place.size}, {dtype})"
            name = found if found.isidentifier() else f"p{number}"
            if name != found:
                self._lines.append(f"{name} = {found}")
            names.append(name)
        return ", ".join(names)
