"""Templates: functions of many nodes that are one node of the graph until it is planned.

A Fourier transform is 30 to 60 nodes. Building them, and finding the plan of their graph, takes
longer than the transform of a few thousand points. So a graph has one node for it, and its plan is
found as fast as any other. Only a graph that was never planned before is expanded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ferrule.fusion.graph import toposort
from ferrule.fusion.long_reduces import rebuilt
from ferrule.ir.lazy import LazyBuffer


@final
class Template:
    """The nodes of `result`, as a function of `argument`.

    `again` is the same function of any value, such as one with more axes in front. Only the same
    template finds its plan again, so callers keep their templates. The memory that its nodes read
    beside the argument is never written to.
    """

    def __init__(
        self,
        argument: LazyBuffer,
        result: LazyBuffer,
        again: Callable[[LazyBuffer], LazyBuffer],
    ) -> None:
        self.again = again
        self._argument = argument
        self._result = result
        nodes = [node for node in toposort([result]) if node is not argument]
        self.nodes = [node for node in nodes if node.realized is None]

    def of(self, x: LazyBuffer) -> LazyBuffer:
        """The value of the function, as one node of the graph."""
        return x.template(self, self._result.shape, self._result.dtype)

    def expanded(self, x: LazyBuffer) -> LazyBuffer:
        """The value of the function, as all its nodes."""
        twins = {self._argument: x}
        for node in self.nodes:
            twins[node] = rebuilt(node, tuple([twins.get(source, source) for source in node.srcs]))
        return twins[self._result]
