"""The interface of every renderer: a program in, the text for one compiler out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.target import Target

if TYPE_CHECKING:
    from ferrule.codegen.uops import UOp

# Dtypes without arithmetic; registers hold their bits.
STORAGE_ONLY: Final = frozenset(
    {dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2}
)


def dtype_of(u: UOp) -> DType:
    """The dtype of a UOp that has one."""
    assert u.dtype is not None, u
    return u.dtype


def storage_bits(dtype: DType, value: float) -> int:
    """The bits of a value of a dtype that registers hold as bits."""
    import numpy

    array = numpy.array([value], dtype.np)
    return int(array.view(f"u{dtype.itemsize}")[0])


def quiet(value: float) -> float:
    """The number; of a NaN the quiet one of the same sign."""
    return math.copysign(math.nan, value) if math.isnan(value) else value


class RenderError(ValueError):
    """A program that a renderer's language or target cannot express."""


def until_extent(name: str, uops: Sequence[UOp]) -> tuple[Sequence[UOp], UOp]:
    """The UOps before the EXTENT of the program of kernel `name`, and the EXTENT.

    Raises:
        RenderError: there is none.
    """
    from ferrule.codegen.uops import UOps

    for position, u in enumerate(uops):
        if u.op is UOps.EXTENT:
            return uops[:position], u
    raise RenderError(f"kernel {name} has no EXTENT; put one behind what computes it")


class Renderer(ABC):
    """Turns programs into source text for the device that `target` describes.

    A renderer keeps no state between calls: equal programs give equal text.
    """

    target: Target

    @abstractmethod
    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """The source of the kernel `name`, which does what `uops` say.

        Raises:
            RenderError: the program needs what the language or the target lacks.
        """
