"""The formats of float8, as data for every renderer."""

from __future__ import annotations

from typing import Final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes


@dataclass(frozen=True, slots=True)
class Format:
    """A float8 format: one sign bit, an exponent, a fraction."""

    fraction: int  # bits of the fraction
    bias: int  # bias of the exponent
    largest: int  # bits of the largest finite number; larger bits are infinity or NaN
    overflow: int  # bits of the result of an overflow
    nan: int

    @property
    def shift(self) -> int:
        """The number of bits by which the fraction of a float32 is wider."""
        return 23 - self.fraction


FORMATS: Final = {
    dtypes.float8_e4m3: Format(fraction=3, bias=7, largest=0x7E, overflow=0x7F, nan=0x7F),
    dtypes.float8_e5m2: Format(fraction=2, bias=15, largest=0x7B, overflow=0x7C, nan=0x7E),
}
