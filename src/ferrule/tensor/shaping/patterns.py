"""The grammar of `rearrange`, `reduce` and `repeat`: "b (h w) c -> b h w c".

A side of a pattern has one word for each axis: a name, a number, "..." for any number of axes, or a
group in parentheses for an axis that is made of several, the last of which varies fastest. `1` and
`()` are axes of size 1. It is the notation of einops (Rogozhnikov, 2022).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ferrule.autograd import Shape
from ferrule.base.records import dataclass
from ferrule.ir.expr import Expr, as_int, sint
from ferrule.ir.shape.view import ShapeError, prod_sint, same

Group: TypeAlias = tuple[str, ...]
DOTS, DOTS_IN_GROUP = "...", "(...)"
_WORD = re.compile(r"\s*(\.\.\.|[A-Za-z_]\w*|[0-9]+|[()])")


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pattern: a group of names for each axis."""

    groups: tuple[Group, ...]
    numbers: Mapping[str, int]
    """The sizes of axes that are given as numbers, by the names made for them."""

    @property
    def names(self) -> tuple[str, ...]:
        """All axes in order, taken apart."""
        return tuple([name for group in self.groups for name in group])


@dataclass(frozen=True, slots=True)
class Pattern:
    """Both sides."""

    context: str
    """How errors begin: the function and the text."""
    left: Side
    right: Side

    def error(self, reason: str) -> ShapeError:
        """An error about this pattern."""
        return ShapeError(f"{self.context} {reason}")


def parse(text: str, what: str) -> Pattern:
    """The two sides of a pattern; raises `ShapeError`, or `TypeError` for anything but a string."""
    if not isinstance(text, str):
        raise TypeError(
            f"[{what}] the pattern is a string such as 'b h w -> b (h w)', "
            f"not {type(text).__name__}"
        )
    context = f"[{what}] {text!r}:"
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise ShapeError(f"{context} one '->' is needed, as in 'b (h w) -> b h w'")
    pattern = Pattern(context, _side(left, "left", context), _side(right, "right", context))
    if DOTS_IN_GROUP in pattern.left.names:
        raise pattern.error("'...' in a group cannot be taken apart on the left; name the axes")
    dots = {DOTS, DOTS_IN_GROUP} & set(pattern.right.names)
    if dots and DOTS not in pattern.left.names:
        raise pattern.error("'...' is on the right only; write it on the left as well")
    return pattern


def _words(text: str, context: str) -> Iterator[str]:
    """Names, numbers, "..." and parentheses, one by one."""
    place = 0
    text = text.rstrip()
    while place < len(text):
        found = _WORD.match(text, place)
        if found is None:
            raise ShapeError(
                f"{context} {text[place:].split()[0]!r} is no axis; write names, numbers, '...' "
                "and groups in parentheses, with spaces between them"
            )
        place = found.end()
        yield found.group(1)


def _side(text: str, side: str, context: str) -> Side:
    groups: list[Group] = []
    numbers: dict[str, int] = {}
    inner: list[str] | None = None
    for word in _words(text, context):
        if word == "(" and inner is None:
            inner = []
        elif word == ")" and inner is not None:
            groups.append(tuple(inner))
            inner = None
        elif word in "()":
            raise ShapeError(f"{context} parentheses do not match, or are nested")
        elif inner is None:
            groups.append((DOTS,) if word == DOTS else _named_axes(word, numbers, side))
        else:
            inner += (DOTS_IN_GROUP,) if word == DOTS else _named_axes(word, numbers, side)
    if inner is not None:
        raise ShapeError(f"{context} a parenthesis is not closed")
    result = Side(tuple(groups), numbers)
    names = [name.strip("()") for name in result.names]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ShapeError(f"{context} {repeated[0]!r} is twice on one side")
    return result


def _named_axes(word: str, numbers: dict[str, int], side: str) -> tuple[str, ...]:
    """The name of an axis; a number gets one, and 1 is no axis."""
    if not word.isdecimal():
        return (word,)
    if int(word) == 1:
        return ()
    name = f"{word}#{side}{len(numbers)}"
    numbers[name] = int(word)
    return (name,)


# *** patterns and shapes ***


@dataclass(frozen=True, slots=True)
class Plan:
    """A pattern for one shape: axes taken apart, those kept or new in order, and put together."""

    apart: Shape
    kept: tuple[int, ...]
    """Which of the axes taken apart the right side has, in its order."""
    inserted: Shape
    """The axes of the right side, with size 1 where they are new."""
    expanded: Shape
    together: Shape

    @property
    def dropped(self) -> tuple[int, ...]:
        """The axes that the right side has not."""
        return tuple([axis for axis in range(len(self.apart)) if axis not in self.kept])


def plan(pattern: Pattern, shape: Shape, given: Mapping[str, Any]) -> Plan:
    """The steps of a pattern on a shape, given the sizes of some axes; raises `ShapeError`."""
    left, right = _without_dots(pattern, shape)
    sizes = _given_sizes(pattern, given)
    for group, size in zip(left, shape, strict=True):
        _infer(pattern, group, size, sizes, shape)
    names = [name for group in left for name in group]
    wanted = [name for group in right for name in group]
    unknown = [name for name in wanted if name not in sizes]
    if unknown:
        raise pattern.error(f"the size of {unknown[0]!r} is not known; give it: {unknown[0]}=2")
    return Plan(
        apart=tuple([sizes[name] for name in names]),
        kept=tuple([names.index(name) for name in wanted if name in names]),
        inserted=tuple([sizes[name] if name in names else 1 for name in wanted]),
        expanded=tuple([sizes[name] for name in wanted]),
        together=tuple([prod_sint([sizes[name] for name in group]) for group in right]),
    )


def _without_dots(pattern: Pattern, shape: Shape) -> tuple[list[Group], list[Group]]:
    """Both sides with names for the axes that "..." stands for."""
    groups = pattern.left.groups
    has_dots = (DOTS,) in groups
    extra = len(shape) - len(groups) + has_dots
    if extra < 0 or (extra > 0 and not has_dots):
        raise pattern.error(
            f"the left side has {len(groups) - has_dots} axes, and shape {shape} has {len(shape)}; "
            "name each axis, or write '...' for the rest"
        )
    names = [f"...{place}" for place in range(extra)]
    return _named(groups, names), _named(pattern.right.groups, names)


def _named(groups: Sequence[Group], names: Sequence[str]) -> list[Group]:
    result: list[Group] = []
    for group in groups:
        if group == (DOTS,):
            result.extend((name,) for name in names)
        else:
            parts = [names if part == DOTS_IN_GROUP else [part] for part in group]
            result.append(tuple([name for part in parts for name in part]))
    return result


def _given_sizes(pattern: Pattern, given: Mapping[str, Any]) -> dict[str, sint]:
    sizes: dict[str, sint] = {**pattern.left.numbers, **pattern.right.numbers}
    known = {*pattern.left.names, *pattern.right.names}
    for name, size in given.items():
        if name not in known:
            raise pattern.error(f"there is no axis {name!r}, whose size is given")
        if not isinstance(size, int | Expr) or (isinstance(size, int) and size < 0):
            raise pattern.error(f"the size of {name!r} is a whole number, not {size!r}")
        sizes[name] = size
    return sizes


def _infer(
    pattern: Pattern, group: Group, size: sint, sizes: dict[str, sint], shape: Shape
) -> None:
    """Finds the one size of a group that is not known, and checks the others."""
    unknown = [name for name in group if name not in sizes]
    if len(unknown) > 1:
        raise pattern.error(
            f"the sizes of {' and '.join(map(repr, unknown))} do not follow from {size}; "
            f"give all but one: {unknown[0]}=2"
        )
    known = prod_sint([sizes[name] for name in group if name in sizes])
    fits = same(known, size)
    if unknown and not same(known, 0):
        fits = same(as_int(size % known), 0)
        sizes[unknown[0]] = as_int(size // known)
    if not fits:
        of = f"({' '.join(name.partition('#')[0] for name in group)})"
        raise pattern.error(
            f"{of} does not fit the axis of size {size} in shape {shape}: the sizes given make "
            f"{known}"
        )


def _axes(side: Side) -> set[str]:
    return {DOTS if name == DOTS_IN_GROUP else name for name in side.names}


def check_same_axes(pattern: Pattern) -> None:
    """Raises unless both sides have the same axes; numbers above 1 have no partner."""
    left, right = _axes(pattern.left), _axes(pattern.right)
    if left != right:
        name = sorted(left ^ right)[0].partition("#")[0]
        raise pattern.error(
            f"{name!r} is on one side only; use reduce to drop axes, and repeat to make new ones"
        )


def check_drops(pattern: Pattern) -> None:
    """Raises if the right side has an axis that the left has not."""
    new = sorted(_axes(pattern.right) - _axes(pattern.left))
    if new:
        raise pattern.error(
            f"{new[0].partition('#')[0]!r} is on the right only; use repeat to make new axes"
        )


def check_adds(pattern: Pattern) -> None:
    """Raises if the left side has an axis that the right has not."""
    lost = sorted(_axes(pattern.left) - _axes(pattern.right))
    if lost:
        raise pattern.error(
            f"{lost[0].partition('#')[0]!r} is on the left only; use reduce to drop axes"
        )
