"""Running the tape backwards: gradients of some values from those of others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ferrule.gradient import Edge, Entry, GradientError, Leaf, Value, no_grad


def entries_below(
    roots: Iterable[Edge], since: int = 0, known: Container[Edge] = ()
) -> list[Entry]:
    """All entries below the roots, each after its parents.

    Left out, with what is only below them, are those of a serial below `since`, and `known` ones.
    """
    order: list[Entry] = []
    seen: set[Edge] = set()
    pending: list[tuple[Edge, bool]] = [(root, False) for root in roots]
    while pending:
        edge, done = pending.pop()
        if isinstance(edge, Leaf):
            continue
        if done:
            order.append(edge)
            continue
        if edge in seen or edge.serial < since or edge in known:
            continue
        seen.add(edge)
        pending.append((edge, True))
        pending.extend((parent, False) for parent in edge.parents if parent is not None)
    return order


def _leading_to(targets: set[Edge], order: Sequence[Entry]) -> set[Edge]:
    """The edges from which a target can be reached, the targets included."""
    leading = set(targets)
    for entry in order:
        if any(parent in leading for parent in entry.parents):
            leading.add(entry)
    return leading


def pull_back(
    outputs: Sequence[Value],
    seeds: Sequence[Value],
    targets: Iterable[Edge] | None = None,
    *,
    retain: bool = False,
    create_graph: bool = False,
) -> dict[Edge, Value]:
    """The gradients of the targets (None: all leaves below), given those of the outputs.

    A target that the outputs do not depend on is missing from the answer. What the tape kept is
    freed, unless `retain`; the rules themselves are recorded if `create_graph`. Raises
    `GradientError` where the tape was freed before.
    """
    grads: dict[Edge, Value] = {}
    for output, seed in zip(outputs, seeds, strict=True):
        if output.edge is not None:
            _add(grads, output.edge, seed)
    order = entries_below(list(grads))
    wanted = None if targets is None else set(targets)
    leading = None if wanted is None else _leading_to(wanted, order)
    with no_grad(not create_graph):
        for entry in reversed(order):
            if leading is None or entry in leading:
                _step(grads, entry, leading, wanted)
    if not (retain or create_graph):
        for entry in order:
            entry.free()
    if wanted is None:
        return {edge: grad for edge, grad in grads.items() if isinstance(edge, Leaf)}
    return {edge: grad for edge, grad in grads.items() if edge in wanted}


def _step(
    grads: dict[Edge, Value], entry: Entry, leading: set[Edge] | None, wanted: set[Edge] | None
) -> None:
    """Takes the gradient of one entry to its parents."""
    keep = wanted is not None and entry in wanted
    grad = grads.get(entry) if keep else grads.pop(entry, None)
    if grad is None:
        return
    if entry.freed:
        raise GradientError(
            f"the tape was freed at {entry.name}: backward() ran over it before; "
            "call the first backward(retain_graph=True), or compute the result again"
        )
    for parent, part in zip(entry.parents, entry.rule.reverse(grad, entry), strict=True):
        if parent is None or part is None:
            continue
        if leading is None or parent in leading:
            _add(grads, parent, part)


def _add(grads: dict[Edge, Value], edge: Edge, grad: Value) -> None:
    before = grads.get(edge)
    grads[edge] = grad if before is None else before + grad
