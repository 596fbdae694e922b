"""Search for opts by timing: proposals of the heuristic, then edits of the fastest schedules.

The heuristic is a function of the target. For targets with fewer registers, shorter vectors, other
caches or more threads it proposes other tiles, lanes, blocks and chunks. All of them are right on
the real target, and one may be faster. From there the search goes on by single edits (`mutate.py`),
always from the fastest schedule that has edits left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, product

from ferrule.base.records import dataclass
from ferrule.codegen.heuristic import choose, proposed
from ferrule.codegen.kernel import Kernel, Kind, Nest, expressions
from ferrule.codegen.mutate import Opts, combined, neighbours
from ferrule.codegen.opt import PRIMITIVES
from ferrule.ir.expr import ExprOp, toposort
from ferrule.ir.target import Target


@dataclass(frozen=True)
class Trial:
    """A schedule, and the seconds that its kernel took."""

    opts: Opts
    seconds: float


def seeds(kernel: Kernel, target: Target) -> Iterator[Opts]:
    """Different schedules: the heuristic's own, those with its other candidates, and then its own
    for other targets, the most similar ones first.
    """
    found: set[Opts] = set()
    others = (choose(kernel, variant) for variant in _variants(target))
    for opts in chain(proposed(kernel, target), others):
        if opts not in found:
            found.add(opts)
            yield opts


def search(
    kernel: Kernel,
    target: Target,
    measure: Callable[[Opts], float | None],
    width: int,
    expired: Callable[[], bool],
    known: Sequence[Opts] = (),
) -> list[Trial]:
    """All schedules that could be timed, the fastest first.

    `measure` gives the seconds of one, None where it is not legal or cannot be timed. It ends when
    `expired()`, or once all edits of the `width` fastest are tried. `known` is tried early.
    """
    seconds: dict[Opts, float] = {}
    refused: set[Opts] = set()
    rest: dict[Opts, Iterator[Opts]] = {}

    def attempt(opts: Opts) -> None:
        taken = measure(opts)
        if taken is None:
            refused.add(opts)
        else:
            seconds[opts] = taken

    first = seeds(kernel, target)
    for opts in chain(islice(first, 1), known, first):
        if expired():
            break
        if opts not in seconds and opts not in refused:
            attempt(opts)
    while not expired():
        best = sorted(seconds, key=seconds.__getitem__)[:width]
        for opts in best:
            if opts not in rest:
                rest[opts] = _edits(kernel, opts, target)
        fresh = (edit for opts in best for edit in rest[opts])
        candidate = next((o for o in fresh if o not in seconds and o not in refused), None)
        if candidate is None:
            break
        attempt(candidate)
    return sorted((Trial(*item) for item in seconds.items()), key=lambda trial: trial.seconds)


def _edits(kernel: Kernel, opts: Opts, target: Target) -> Iterator[Opts]:
    """The edits of a schedule; none if it is too unusual to be edited."""
    # Schedules get more unusual with every edit, and a search has to end well whatever they are.
    try:
        return iter(neighbours(kernel, opts, target))
    except Exception:
        return iter(())


_EXACT = frozenset(PRIMITIVES) - {"group", "prefix", "scan", "tensorize"}


def reassociates(kernel: Kernel, opts: Opts) -> bool:
    """True if a schedule may change the bits of a sum.

    It may change the order of the terms, by partial sums. Or it may round the last terms
    differently, if a loop's factor does not divide their number.
    """
    for opt in opts:
        if opt.primitive not in _EXACT:
            return True
        if opt.primitive == "bind":
            name, r = opt.args[:2]
            if any(o.range.name == r for o in combined(kernel.by_name[name])):
                return True
        if opt.primitive == "split":
            name, r, factor = opt.args[:3]
            sizes = [o.range.size for o in combined(kernel.by_name[name]) if o.range.name == r]
            if any(not size.is_const or size.arg % factor for size in sizes):
                return True
        kernel = PRIMITIVES[opt.primitive](kernel, *opt.args)
    return any(_adds_up_parts(nest) for nest in kernel.nests)


def _adds_up_parts(nest: Nest) -> bool:
    """True if a reduce goes through its results once for each part of the combined range."""
    inside = combined(nest)
    if not inside:
        return False
    rest = nest.loops[nest.loops.index(inside[0]) :]
    return any(loop.kind is Kind.SERIAL and loop not in inside for loop in rest)


def slot_sizes(kernel: Kernel) -> list[int] | None:
    """The number of elements that each buffer needs for a trial run; None if loaded indices decide
    that.
    """
    sizes = [1] * len(kernel.slots)
    found = [e for nest in kernel.nests for e in expressions(nest)]
    elements = [e for e in toposort(found) if e.op is ExprOp.LOAD]
    places = [(e.arg, index) for e in elements for index in e.src[::2]]
    stores = [c.store for nest in kernel.nests for c in nest.computes if c.store is not None]
    places += [(store.slot, store.index) for store in stores]
    for slot, index in places:
        if any(e.op is ExprOp.LOAD for e in toposort([index])):
            return None
        sizes[slot] = max(sizes[slot], index.max + 1)
    return sizes


# Factors of the target's registers, caches, threads, vector widths and threads of a block that the
# heuristic is asked about, the true target first. Not measured; they cover the usual processors.
_REGISTERS = (1.0, 0.75, 0.5, 0.375)
_CACHES = (1.0, 0.5, 2.0, 0.25, 4.0)
_THREADS = (1, 4, 16)
_VECTORS = (1.0, 0.5)
_BLOCKS = (1.0, 0.5, 0.25)


def _variants(target: Target) -> list[Target]:
    """Targets that differ from a target in one respect, then in two."""
    blocks = target.block_threads > 1
    widths = _BLOCKS if blocks else _VECTORS
    choices = product(*(range(len(c)) for c in (_REGISTERS, _CACHES, _THREADS, widths)))
    similar = [choice for choice in choices if sum(map(bool, choice)) <= 2]
    ordered = sorted(similar, key=lambda choice: (sum(map(bool, choice)), sum(choice)))
    return [
        replace(
            target,
            n_vector_registers=int(target.n_vector_registers * _REGISTERS[registers]),
            l2_bytes=int(target.l2_bytes * _CACHES[caches]),
            max_threads=target.max_threads * _THREADS[threads],
            vector_bytes=max(16, int(target.vector_bytes * (1.0 if blocks else _VECTORS[width]))),
            block_threads=int(target.block_threads * _BLOCKS[width]) if blocks else 1,
        )
        for registers, caches, threads, width in ordered
    ]
