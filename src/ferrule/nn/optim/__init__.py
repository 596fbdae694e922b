"""Optimisers: PyTorch's formulas, names and settings, on lazy tensors; learning-rate schedules."""

from ferrule.nn.optim import lr_scheduler
from ferrule.nn.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from ferrule.nn.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop, Rprop
from ferrule.nn.optim.groups import OptimizerError
from ferrule.nn.optim.lbfgs import LBFGS
from ferrule.nn.optim.optimizer import Optimizer
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
    "lr_scheduler",
]
