"""Optimisers: PyTorch's formulas, names and settings, on lazy tensors; learning-rate schedules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ferrule.base.helpers import no_attribute
from ferrule.nn.optim import lr_scheduler
from ferrule.nn.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from ferrule.nn.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop, Rprop
from ferrule.nn.optim.groups import OptimizerError
from ferrule.nn.optim.lbfgs import LBFGS
from ferrule.nn.optim.optimizer import Optimizer, TrainingModeWarning
from ferrule.nn.optim.sgd import ASGD, LARS, SGD, Muon

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "OptimizerError",
    "RAdam",
    "RMSprop",
    "Rprop",
    "TrainingModeWarning",
    "lr_scheduler",
]

# What newcomers look for, and what does it here.
_INSTEAD = {
    "AdaBelief": "AdamW, RAdam and Muon are the nearest",
    "Lion": "AdamW with a rate of three to ten times Lion's is the nearest",
    "SparseAdam": "gradients are dense: Adam",
    "Lookahead": "keep copies of the parameters, and move these: slow.lerp_(fast, 0.5)",
}


if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name == "swa_utils":  # it has a model, and models are above optimisers
            return import_module(f"{__name__}.swa_utils")
        raise no_attribute(__name__, name, __all__, _INSTEAD)
