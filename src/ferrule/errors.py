"""The types of error that a user may meet, in one place; `docs/errors/` has a page for each.

>>> from ferrule import Tensor
>>> from ferrule.errors import ShapeError
>>> try:
...     Tensor([1, 2]) + Tensor([1, 2, 3])
... except ShapeError:
...     print("the shapes do not fit")
the shapes do not fit
"""

from ferrule.buffer import AllocationSizeError, BufferUseError
from ferrule.capture import GraphException, JitError
from ferrule.codegen.opt import ScheduleError
from ferrule.config import ConfigError
from ferrule.device import CompileError, DeviceUnavailableError, UnknownDeviceError
from ferrule.dtype import DTypeError
from ferrule.gradient import GradientError
from ferrule.lanes import VmapError
from ferrule.lazy import DeviceMismatchError
from ferrule.nn.optim import OptimizerError, TrainingModeWarning
from ferrule.nn.state import StateError
from ferrule.ops import OpError, OpTypeError
from ferrule.runner import RunnerError
from ferrule.runtime.cuda_driver import CUDAError
from ferrule.shape.view import ShapeError
from ferrule.tensor.solving import LinalgError
from ferrule.tuning import TuneError

__all__ = [
    "AllocationSizeError",
    "BufferUseError",
    "CUDAError",
    "CompileError",
    "ConfigError",
    "DTypeError",
    "DeviceMismatchError",
    "DeviceUnavailableError",
    "GradientError",
    "GraphException",
    "JitError",
    "LinalgError",
    "OpError",
    "OpTypeError",
    "OptimizerError",
    "RunnerError",
    "ScheduleError",
    "ShapeError",
    "StateError",
    "TrainingModeWarning",
    "TuneError",
    "UnknownDeviceError",
    "VmapError",
]
