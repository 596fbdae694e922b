"""The form in which the scheduler wants a computation that can be written in several ways.

Functions of tensors ask here, by the name of a device, how the graph will be scheduled. They know
nothing of the hardware.
"""

from __future__ import annotations

from ferrule import fusion
from ferrule.codegen.policy import continues_totals, tiles_stages
from ferrule.device import Compiled, Device


def has_kernels(device: str) -> bool:
    """True if a device fuses many nodes into few kernels, rather than call NumPy for each.

    >>> has_kernels("CPU"), has_kernels("NUMPY")
    (True, False)
    """
    found = Device[device]
    return isinstance(found, Compiled) and found.renderer is not None


def wants_long_totals(device: str) -> bool:
    """True if a running total is cheapest as one reduce over everything before each element.

    A loop then goes on from element to element. Elsewhere totals are better made of short blocks.

    >>> wants_long_totals("NUMPY")
    False
    """
    return has_kernels(device) and continues_totals(fusion.target_of(device))


def wants_one_number_a_row(device: str) -> bool:
    """True if rows that are computed again should need one number each, rather than two.

    A kernel that goes along rows tile by tile loads such numbers for each tile.

    >>> wants_one_number_a_row("CPU")
    False
    """
    return tiles_stages(fusion.target_of(device))
