"""Laws of sizes: which integers of a family's graphs are independent, and what the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from ferrule.base.records import dataclass

MOST_LENGTHS: Final = 16
"""Independent lengths of one family. Not measured."""


@final
@dataclass(frozen=True)
class _Term:
    """The product of `factor` and some lengths, which are named by numbers."""

    factor: int
    lengths: tuple[int, ...]


@final
@dataclass(frozen=True)
class Law:
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


def laws_of(samples: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, Law]] | None:
    """Split the changing integers into independent lengths and expressions of those.

    Returns the positions of the lengths, and the laws by position; None if there are too many
    lengths. Integers that change least are taken for lengths, since others are multiples of them.

    >>> lengths, laws = laws_of([(3, 6, 7), (5, 10, 7)])
    >>> lengths, laws[1].of([11])
    ([0], 22)
    """
    columns = list(zip(*samples, strict=True))
    changing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    changing.sort(key=lambda place: max(columns[place]) - min(columns[place]))
    lengths: list[int] = []
    laws: dict[int, Law] = {}
    for place in changing:
        law = _law(columns[place], [columns[length] for length in lengths])
        if law is None:
            law = Law((_Term(1, (len(lengths),)),))
            lengths.append(place)
            if len(lengths) > MOST_LENGTHS:
                return None
        laws[place] = law
    return lengths, laws


def _law(column: tuple[int, ...], lengths: Sequence[tuple[int, ...]]) -> Law | None:
    """The law of an integer that holds in all samples; None if there is none."""
    for law in _candidates(column, lengths):
        if all([law.of(row) == n for n, *row in zip(column, *lengths, strict=True)]):
            return law
    return None


def _candidates(column: tuple[int, ...], lengths: Sequence[tuple[int, ...]]) -> Iterator[Law]:
    """Laws that hold in one or two samples, the likeliest first: two samples may have several."""
    numbers = range(len(lengths))
    for i in numbers:
        least = next((row for row, n in enumerate(lengths[i]) if n), 0)
        factor, rest = divmod(column[least], max(lengths[i][least], 1))
        if rest == 0:
            yield Law((_Term(factor, (i,)),))
        yield Law((_Term(1, (i,)),), column[0] - lengths[i][0])
    for i in numbers:
        for j in numbers:
            both = lengths[i][0] * lengths[j][0]
            if both and column[0] % both == 0:
                yield Law((_Term(column[0] // both, (i, j)),))
    for i in numbers:
        length = lengths[i]
        other = next(row for row, n in enumerate(length) if n != length[0])
        factor, rest = divmod(column[other] - column[0], length[other] - length[0])
        if rest == 0:
            yield Law((_Term(factor, (i,)),), column[0] - factor * length[0])
    for i in numbers:
        for j in numbers:
            if i != j:
                for sign in (1, -1):
                    terms = (_Term(1, (i,)), _Term(sign, (j,)))
                    yield Law(terms, column[0] - lengths[i][0] - sign * lengths[j][0])
                # A multiple of one length, and a remainder.
                factor, rest = divmod(column[0] - lengths[j][0], max(lengths[i][0], 1))
                if rest == 0:
                    yield Law((_Term(factor, (i,)), _Term(1, (j,))))
