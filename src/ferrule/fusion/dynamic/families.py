"""Families of graphs: which sizes, offsets and constants change from call to call.

Kernels are specialised for the sizes, offsets and constants of a graph, which makes them simpler
and faster. But a loop that changes these would compile new kernels in each turn. So graphs that
differ in nothing else are collected in a *family*, which says what is to be generalised:

- after a few different sizes, those that follow laws of one or two lengths;
- after a few graphs of the same sizes, the offsets and constants that differ between them.

Each graph is compared with what the family expects of it, so that a wrong guess costs a plan, and
no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence, Set
from typing import Any, Final, final

from ferrule.fusion.dynamic.known_lengths import AnyLength
from ferrule.fusion.dynamic.laws import Law, laws_of
from ferrule.fusion.dynamic.parameters import Parameters
from ferrule.ir.expr import as_int, sint

ENOUGH_SIZES: Final = 2
"""Different sizes from which laws are learned: the first has kernels of its own."""
ENOUGH_ALIKE: Final = 4
"""Graphs of the same sizes that have kernels of their own, before offsets and constants are
generalised. Not measured."""
_LEAST_BOUND: Final = 64
"""The least bound of a length. Costs are estimated for the bound, and intermediate results have
memory for it. Not measured."""
# Bounds of what is remembered, so that what never comes again does not fill memory. None of them
# is measured.
_MOST_COUNTED: Final = 4096
"""Different sizes of one family whose uses are counted."""
_MOST_SAMPLES: Final = 8
"""Graphs of one family that are kept to find the laws of its sizes."""
_MOST_FAMILIES: Final = 256
"""Families, the least recently used being dropped."""


@final
class _Alike:
    """Graphs of the same sizes: their number, and the offsets and constants that differ."""

    def __init__(self, first: Parameters) -> None:
        self._first = first
        self.count = 0
        self.constants: set[int] = set()
        self.offsets: set[int] = set()

    def add(self, now: Parameters) -> None:
        """Count one more graph."""
        self.count += 1
        self.constants |= _differing(now.constants, self._first.constants)
        self.offsets |= _differing(now.offsets, self._first.offsets)


def _differing(values: Sequence[Any], others: Sequence[Any]) -> set[int]:
    """The positions at which two sequences differ."""
    if values == others:
        return set()
    pairs = enumerate(zip(values, others, strict=True))
    return {place for place, (value, other) in pairs if value != other}


@final
class Family:
    """Graphs of one form: those of the same sizes, samples of others, and the laws of sizes."""

    def __init__(self) -> None:
        self._alike: dict[tuple[int, ...], _Alike] = {}
        self._samples: list[Parameters] = []
        self._lengths: list[int] = []
        self._laws: dict[int, Law] | None = None
        self.constants: set[int] = set()
        """The positions of the constants that differ between samples."""
        self.plans: dict[Hashable, AnyLength] = {}
        """The plans for any length, by the target and the lengths' bounds."""

    def count(self, now: Parameters) -> None:
        """Count one more graph."""
        if len(self._alike) >= _MOST_COUNTED:
            self._alike.clear()
        alike = self._alike.get(now.sizes)
        if alike is None:
            alike = self._alike[now.sizes] = _Alike(now)
        alike.add(now)

    @property
    def is_new(self) -> bool:
        """True if all graphs that were counted have equal sizes."""
        return len(self._alike) == 1

    @property
    def has_laws(self) -> bool:
        """True if the laws of sizes are known."""
        return self._laws is not None

    def changes(self, now: Parameters) -> tuple[Set[int], Set[int]]:
        """The positions of the constants and of the offsets that differ between graphs with the
        sizes of this one, which was counted; none while there were only a few of them.
        """
        alike = self._alike[now.sizes]
        if alike.count <= ENOUGH_ALIKE:
            return frozenset(), frozenset()
        return alike.constants, alike.offsets

    def lengths_of(self, now: Parameters) -> tuple[int, ...]:
        """The lengths of a graph that was counted.

        None if the laws of sizes are unknown or broken, which are then learned.
        """
        lengths = self._following(now)
        if lengths is None:
            # Graphs that differ in offsets alone say nothing of sizes.
            if self._alike[now.sizes].count == 1 or (
                self._laws is not None and len(self._samples) > ENOUGH_SIZES
            ):
                self._learn(now)
            else:
                self._laws = None  # an offset follows from no size: wait for other sizes
            lengths = self._following(now)
        return lengths or ()

    def _following(self, now: Parameters) -> tuple[int, ...] | None:
        """The lengths of a graph that follows the laws; None for any other."""
        if self._laws is None:
            return None
        lengths = tuple([now.integers[place] for place in self._lengths])
        if now.integers != tuple(self.integers(lengths)) or min(lengths) < 0:
            return None
        differing = _differing(now.constants, self._samples[0].constants)
        return lengths if differing <= self.constants else None

    def bounds_of(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The least and the greatest number for each length that have the same plan as these."""
        return [
            _bounds(length, [sample.integers[place] for sample in self._samples])
            for length, place in zip(lengths, self._lengths, strict=True)
        ]

    def integers(self, lengths: Sequence[sint]) -> list[sint]:
        """The sizes and the offsets of graphs with these lengths."""
        assert self._laws is not None
        found: list[sint] = list(self._samples[0].integers)
        for place, law in self._laws.items():
            found[place] = as_int(law.of(lengths))
        return found

    def _learn(self, now: Parameters) -> None:
        """Learn from one more sample."""
        if len(self._samples) >= _MOST_SAMPLES:
            return
        self._samples.append(now)
        self._laws = None
        self.plans.clear()
        if len(self._samples) < ENOUGH_SIZES:
            return
        found = laws_of([sample.integers for sample in self._samples])
        if found is not None:
            self._lengths, self._laws = found
        self.constants = set()
        for sample in self._samples:
            self.constants |= _differing(sample.constants, self._samples[0].constants)


def _bounds(length: int, sampled: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest length that have the same plan as this one.

    The first plan serves all that the sampled lengths are among, the next ones lengths up to twice
    as large, and so on.
    """
    least = _power(max(*sampled, _LEAST_BOUND))
    if length <= least:
        return (min(length, 1), least)
    greatest = _power(length)
    return (greatest // 2 + 1, greatest)


def _power(length: int) -> int:
    """The least power of two that is not below a length."""
    return 1 << (length - 1).bit_length()


_families: OrderedDict[Hashable, Family] = OrderedDict()


_only_forms: OrderedDict[Hashable, Hashable] = OrderedDict()
"""By the ops of graphs: their form; None once there were several."""


def has_only_form(ops: Hashable, form: Hashable) -> bool:
    """True if all graphs with the same ops had this form."""
    only = _only_forms.setdefault(ops, form)
    if only != form:
        _only_forms[ops] = only = None
    if len(_only_forms) > _MOST_FAMILIES:
        _only_forms.popitem(last=False)
    return only is not None


def family_of(form: Hashable) -> Family:
    """The family of graphs of this form."""
    family = _families.get(form)
    if family is None:
        family = _families[form] = Family()
        if len(_families) > _MOST_FAMILIES:
            _families.popitem(last=False)
    _families.move_to_end(form)
    return family
