"""Optimisers: PyTorch's formulas, names and settings, on lazy tensors; learning-rate schedules."""

from ferrule.nn.optim import lr_scheduler
from ferrule.nn.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from ferrule.nn.optim.adaptive import Adadelta, Adagrad, RMSprop
from ferrule.nn.optim.optimizer import Optimizer, OptimizerError
from ferrule.nn.optim.sgd import LARS, SGD, Muon

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adadelta",
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
    "lr_scheduler",
]
