"""Axes by name: `rearrange`, `reduce` and `repeat`, in the notation of einops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.base.calls import one_of
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.shaping import patterns
from ferrule.tensor.shaping.joining import repeated

_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


@method
def rearrange(self: Tensor, pattern: str, /, **sizes: int) -> Tensor:
    """Axes split, merged and reordered, as "b (h w) c -> b h w c" says.

    A name stands for an axis, a group in parentheses for an axis that is made of several (the
    last varies fastest), "..." for any number of axes, 1 for an axis of size 1. All but one of
    the sizes in a group must be given. A view wherever NumPy's reshape would be one.

    Raises `ShapeError` for a pattern that makes no sense or does not fit.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3, 4]]).rearrange("a (b c) -> c (a b)", b=2).tolist()
    [[1, 3], [2, 4]]
    """
    parsed = patterns.parse(pattern, "rearrange")
    patterns.check_same_axes(parsed)
    plan = patterns.plan(parsed, self._shape, sizes)
    return self.reshape(plan.apart).permute(plan.kept).reshape(plan.together)


@method
def reduce(
    self: Tensor,
    pattern: str,
    /,
    reduction: str | Callable[[Tensor, tuple[int, ...]], Tensor],
    **sizes: int,
) -> Tensor:
    """Rearranged, with the axes that the right side has not reduced.

    `reduction` is "sum", "mean", "max", "min", "prod", "any" or "all", or a function of a
    tensor and the axes to reduce.

    Raises `ShapeError` as `rearrange`, `ValueError` for another reduction.

    >>> from ferrule import Tensor
    >>> Tensor([1, 5, 7, 2]).reduce("(n 2) -> n", "max").tolist()
    [5, 7]
    """
    parsed = patterns.parse(pattern, "reduce")
    patterns.check_drops(parsed)
    plan = patterns.plan(parsed, self._shape, sizes)
    if not callable(reduction):
        one_of(reduction, _REDUCTIONS, "[reduce] reduction")
    result = self.reshape(plan.apart).permute(plan.kept + plan.dropped)
    axes = tuple(range(len(plan.kept), len(plan.apart)))
    if axes:
        given = reduction if callable(reduction) else None
        result = given(result, axes) if given else getattr(result, str(reduction))(axes)
    return result.reshape(plan.together)


@method
def repeat(self: Tensor, *repeats: Any, **sizes: int) -> Tensor:
    """The whole tensor several times along each axis; new axes come in front.

    With a pattern: rearranged, with new axes that repeat what is there. Their sizes are given,
    or stand in the pattern as numbers.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).repeat(2, 2).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    >>> Tensor([1, 2]).repeat("a -> (a 2)").tolist()
    [1, 1, 2, 2]
    """
    if len(repeats) != 1 or not isinstance(repeats[0], str):
        if sizes:
            raise TypeError(
                f"[repeat] sizes of axes, such as {next(iter(sizes))!r}, go with a pattern: "
                "x.repeat('h w -> h w c', c=3)"
            )
        return repeated(self, *repeats)
    parsed = patterns.parse(repeats[0], "repeat")
    patterns.check_adds(parsed)
    plan = patterns.plan(parsed, self._shape, sizes)
    kept = self.reshape(plan.apart).permute(plan.kept).reshape(plan.inserted)
    return kept.expand(plan.expanded).reshape(plan.together)
