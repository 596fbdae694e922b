"""Learning-rate schedules: PyTorch's names, settings and sequences.

A schedule says what the rate is after `t` steps of it, from the rate that the optimiser began with.
`step()` writes that into the optimiser's tensors, which a captured step reads. So it goes outside
the captured function; inside it raises `JitError`.

Where something else changed the rate in between, such as a second schedule, a schedule multiplies
what is there by what its own rate changed by.
"""

from typing import TYPE_CHECKING, NoReturn

from ferrule.base.helpers import no_attribute
from ferrule.nn.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from ferrule.nn.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from ferrule.nn.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from ferrule.nn.optim.lr_scheduler.plateau import ReduceLROnPlateau
from ferrule.nn.optim.lr_scheduler.schedule import LRScheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

# What newcomers look for, and what does it here.
_INSTEAD = {
    "WarmupLR": "LinearLR(optimizer, start_factor=0.1, total_iters=...) is a warm-up",
    "get_cosine_schedule_with_warmup": "SequentialLR puts a LinearLR before a CosineAnnealingLR",
    "get_linear_schedule_with_warmup": "SequentialLR puts a LinearLR before another",
}


if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> NoReturn:
        raise no_attribute(__name__, name, __all__, _INSTEAD)
