"""Bodies of loops: what one trip computes, as nodes that are made of placeholders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.device.runner import JITRunner
from ferrule.fusion.graph import toposort
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, Variable, as_expr, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps


class LoopError(RuntimeError):
    """The body of a loop does something that cannot be done once for all trips."""


@final
class Placeholder(JITRunner):
    """Stands for a value while a function is traced. It cannot run: that raises the error."""

    def __init__(self, name: str, error: type[Exception], text: str) -> None:
        self.name = name
        self.error = error
        self.text = text

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Raise the error: the value was asked for."""
        raise self.error(self.text)


def placeholder(what: str, shape: Sequence[sint], dtype: DType, device: str) -> LazyBuffer:
    """A node that stands for a value of one trip of the loop `what`."""
    text = (
        f"[{what}] the values of one trip are known only when the loop runs, after the "
        "function has returned. It cannot read them (item, tolist, numpy, bool, if, masks as "
        "indices), nor leave them in an attribute or a variable from outside; use "
        "x.where(...), and return what is needed"
    )
    runner = Placeholder("a value of one trip", LoopError, text)
    return LazyBuffer.custom(runner, (), shape, dtype, device)


# *** bodies ***


@final
@dataclass(frozen=True, eq=False)
class Body:
    """One trip: nodes that are made of placeholders.

    `carries` and `rows` are placeholders, `outs` the next carries, then a row of each result.
    """

    carries: Sequence[LazyBuffer]
    rows: Sequence[LazyBuffer]
    outs: Sequence[LazyBuffer]

    @property
    def next(self) -> Sequence[LazyBuffer]:
        """The carried values of the next trip."""
        return self.outs[: len(self.carries)]


def rebuilt(roots: Sequence[LazyBuffer], twins: dict[LazyBuffer, LazyBuffer]) -> list[LazyBuffer]:
    """The nodes made of `twins` in the place of some others; adds those in between to `twins`."""
    for node in toposort(roots, everything=True, known=twins):
        srcs = tuple([twins.get(source, source) for source in node.srcs])
        if srcs == node.srcs:
            continue
        if (
            node.op is LoadOps.ASSIGN
            and srcs[0].realized is not None
            and srcs[0] is not node.srcs[0]
        ):
            fresh = LazyBuffer.empty(srcs[0].shape, srcs[0].dtype, srcs[0].device)
            srcs = (fresh.assign(srcs[0]), *srcs[1:])
        twins[node] = node.like(srcs, node.arg)
    return [twins.get(root, root) for root in roots]


def made_of(roots: Sequence[LazyBuffer], leaves: Iterable[LazyBuffer]) -> set[LazyBuffer]:
    """The nodes below the roots that depend on one of `leaves`, these included."""
    found = set(leaves)
    for node in toposort(roots, everything=True, known=found):
        if any([source in found for source in node.srcs]):
            found.add(node)
    return found


LoopForm: TypeAlias = tuple[Expr | None, bool, bool, int | None, bool]
"""See `Trips.form`."""


@final
@dataclass(frozen=True)
class Trips:
    """How often a loop runs its body, and in which direction."""

    most: sint | None
    """The number of trips, or the largest number; None: any number."""
    backwards: bool = False
    """True if the first trip has the last row."""
    condition: int | None = None
    """The number of a carried value that is true while the loop is to go on."""
    count: LazyBuffer | None = None
    """A number of trips that is known when the loop runs."""
    since: int | None = None
    """Nodes with this serial number or a later one are not computed before the loop, as they may
    not be needed at all."""

    @property
    def rows(self) -> sint:
        """The number of rows of results."""
        return 1 if self.most is None else self.most

    def form(self) -> LoopForm:
        """All that loops have in common which differ in a fixed number of trips alone."""
        most = as_expr(unbind(self.most)[0]) if isinstance(self.most, Expr) else None
        is_limited = self.most is not None
        return most, is_limited, self.backwards, self.condition, self.count is not None

    @property
    def size(self) -> sint:
        """The bytes of the loop's node: one, and one for each trip that results have room for."""
        return 1 if self.most is None else 1 + self.most
