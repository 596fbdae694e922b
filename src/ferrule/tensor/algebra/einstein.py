"""Einstein's notation for sums of products: reading it, and computing it two operands at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

from ferrule.autograd import Shape, TracedValue
from ferrule.ir.expr import sint
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.algebra.matrices import diagonal_part
from ferrule.tensor.reduce.rowwise import accumulating

Term: TypeAlias = tuple[str, TracedValue]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Names for the axes that "..." stands for, which no formula can hold.
_SPARE = "".join(chr(code) for code in range(0x100, 0x140))


def formula_of(arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The formula and the operands of `operand, [0, 1], operand, [1, 2], [0, 2]`.

    A list names an operand's axes by numbers below 52, or Ellipsis; a last list without an operand
    is that of the result.
    """
    pairs = len(arguments) // 2
    terms = ",".join(_letters_of(arguments[2 * pair + 1]) for pair in range(pairs))
    result = f"->{_letters_of(arguments[-1])}" if len(arguments) % 2 else ""
    return terms + result, tuple([arguments[2 * pair] for pair in range(pairs)])


def _letters_of(sublist: Any) -> str:
    wrong = not isinstance(sublist, list | tuple) or any(
        part is not Ellipsis and (not isinstance(part, int) or not 0 <= part < len(_LETTERS))
        for part in sublist
    )
    if wrong:
        raise TypeError(
            f"[einsum] {sublist!r} does not name axes: after each operand comes a list of numbers "
            "from 0 to 51 or Ellipsis; or give a formula such as 'ij,jk->ik' first"
        )
    return "".join("..." if part is Ellipsis else _LETTERS[part] for part in sublist)


def parse(formula: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; "..." is replaced by letters of its own."""
    left, arrow, right = formula.replace(" ", "").partition("->")
    terms = left.split(",")
    _check_letters(formula, [*terms, right])
    if len(terms) != len(shapes):
        raise ShapeError(
            f"[einsum] {formula!r} names {len(terms)} operands, and {len(shapes)} are given"
        )
    inputs: list[str] = []
    widest = ""
    for term, shape in zip(terms, shapes, strict=True):
        extra = len(shape) - len(term.replace("...", ""))
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ShapeError(
                f"[einsum] {formula!r}: {term!r} does not name the {len(shape)} axes of shape "
                f"{shape}"
            )
        dots = _SPARE[len(_SPARE) - extra :]
        widest = max(widest, dots, key=len)
        inputs.append(term.replace("...", dots))
    letters = "".join(inputs)
    if arrow:
        output = right.replace("...", widest)
    else:
        output = widest + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1 and c not in widest)
        )
    if set(output) - set(letters) or len(set(output)) < len(output):
        raise ShapeError(
            f"[einsum] {formula!r}: the result {right!r} needs letters of the operands, each once"
        )
    return inputs, output


def _check_letters(formula: str, terms: Sequence[str]) -> None:
    for term in terms:
        rest = term.replace("...", "", 1)
        strange = [letter for letter in rest if letter not in _LETTERS]
        if strange:
            raise ShapeError(
                f"[einsum] {formula!r}: {strange[0]!r} is no axis; a term holds letters and at "
                "most one '...', terms are apart by ',', and '->' comes once, before the result"
            )


def einsum(inputs: Sequence[str], output: str, values: Sequence[TracedValue]) -> TracedValue:
    """The products of the operands, summed over all letters that are not in the result."""
    _sizes("".join(inputs), *[(a, x.shape) for a, x in zip(inputs, values, strict=True)])
    terms = [_diagonal(a, accumulating(x)) for a, x in zip(inputs, values, strict=True)]
    while len(terms) > 1:
        first, second = _cheapest(terms, output)
        rest = [term for place, term in enumerate(terms) if place not in (first, second)]
        needed = output + "".join(letters for letters, _ in rest)
        terms = [*rest, _contracted(*terms[first], *terms[second], needed)]
    letters, result = _summed(*terms[0], output)
    return result.permute([letters.index(letter) for letter in output])


def _cheapest(terms: Sequence[Term], output: str) -> tuple[int, int]:
    """The two operands whose product frees the most memory, and of these takes the fewest steps."""
    if len(terms) == 2:
        return 0, 1
    sizes: dict[str, int] = {}
    for letters, value in terms:
        for letter, size in zip(letters, value.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), storage_size((size,)))

    def elements(letters: Sequence[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        one, other = (terms[place][0] for place in pair)
        rest = [letters for place, (letters, _) in enumerate(terms) if place not in pair]
        both = list(dict.fromkeys(one + other))
        kept = [letter for letter in both if letter in output + "".join(rest)]
        return elements(kept) - elements(one) - elements(other), elements(both)

    return min(combinations(range(len(terms)), 2), key=cost)


def _diagonal(term: str, value: TracedValue) -> Term:
    """An operand without repeated letters."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            order = [axis for axis in range(len(term)) if axis not in (first, second)]
            value = value.permute([*order, first, second])
            if not isinstance(value.shape[-1], int) or not same(*value.shape[-2:]):
                raise ShapeError(f"[einsum] {letter!r} stands for two sizes in shape {value.shape}")
            value = diagonal_part(value)
            term = "".join(term[axis] for axis in order) + letter
    return term, value


def _contracted(a: str, left: TracedValue, b: str, right: TracedValue, needed: str) -> Term:
    """The product of two operands, summed over the letters that are needed no more."""
    a, left = _summed(a, left, needed + b)
    b, right = _summed(b, right, needed + a)
    letters = "".join(dict.fromkeys(a + b))
    kept = [letter for letter in letters if letter in needed]
    gone = [letter for letter in letters if letter not in needed]
    order = "".join([*kept, *gone])
    sizes = _sizes(order, (a, left.shape), (b, right.shape))
    product = _aligned(a, left, order, sizes) * _aligned(b, right, order, sizes)
    total = product.sum(range(len(kept), len(order)))
    return "".join(kept), total.reshape(sizes[: len(kept)])


def _sizes(letters: str, *terms: tuple[str, Shape]) -> Shape:
    sizes: dict[str, sint] = {}
    for term, shape in terms:
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter, 1)
            if not same(known, size) and not same(known, 1) and not same(size, 1):
                raise ShapeError(
                    f"[einsum] {letter!r} stands for two sizes: {known} and {size}; "
                    "use another letter, or make them equal"
                )
            sizes[letter] = size if same(known, 1) else known
    return tuple([sizes[letter] for letter in letters])


def _aligned(term: str, value: TracedValue, order: str, sizes: Shape) -> TracedValue:
    """An operand with an axis for each letter in order."""
    present = [letter for letter in order if letter in term]
    value = value.permute([term.index(letter) for letter in present])
    axes = dict(zip(present, value.shape, strict=True))
    return value.reshape(tuple([axes.get(letter, 1) for letter in order])).expand(sizes)


def _summed(term: str, value: TracedValue, needed: str) -> Term:
    """An operand summed over letters that nothing else needs."""
    axes = [axis for axis, letter in enumerate(term) if letter not in needed]
    kept = [axis for axis in range(len(term)) if axis not in axes]
    shape = tuple([value.shape[axis] for axis in kept])
    return "".join(term[axis] for axis in kept), value.sum(axes).reshape(shape)
