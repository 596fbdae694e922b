"""The number of changes to tensors that exist, for those who would else look at each of them."""

from __future__ import annotations

from typing import Final, final


@final
class Changes:
    """Counts the changes that a captured function has to notice, of all tensors and threads.

    They are: another version in memory, other memory, another gradient, a gradient that is
    collected or no longer, another hook. New tensors and results do not count.

    >>> from ferrule import Tensor
    >>> x, before = Tensor([1.0, 2.0]), changes.count
    >>> y = (x + 1).realize()
    >>> changes.count == before
    True
    >>> x[0] = 5.0
    >>> changes.count == before
    False
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


changes: Final = Changes()
