"""The types of error that a user may meet, in one place; `docs/errors/` has a page for each.

>>> from ferrule import Tensor
>>> from ferrule.errors import ShapeError
>>> try:
...     Tensor([1, 2]) + Tensor([1, 2, 3])
... except ShapeError:
...     print("the shapes do not fit")
the shapes do not fit
"""

from ferrule.autograd import GradientError
from ferrule.base.config import ConfigError
from ferrule.codegen.opt import ScheduleError
from ferrule.device import (
    CompileError,
    DeviceIndexError,
    DeviceUnavailableError,
    UnknownDeviceError,
)
from ferrule.device.capture import GraphException, JitError
from ferrule.device.runner import RunnerError
from ferrule.engine.loop_body import LoopError
from ferrule.export.loading import LoadError
from ferrule.export.program import ExportError
from ferrule.ir.buffer import AllocationSizeError, BufferUseError
from ferrule.ir.dtype import DTypeError
from ferrule.ir.lazy import DeviceMismatchError
from ferrule.ir.lazyop import OpError, OpTypeError
from ferrule.ir.shape.view import ShapeError
from ferrule.jit.tuning import TuneError
from ferrule.nn.optim import OptimizerError, TrainingModeWarning
from ferrule.nn.state import StateError
from ferrule.onnx.values import OnnxError
from ferrule.runtime.cuda.driver import CUDAError
from ferrule.tensor.algebra.solving import LinalgError
from ferrule.torch.values import TorchError
from ferrule.transforms.batching import VmapError

__all__ = [
    "AllocationSizeError",
    "BufferUseError",
    "CUDAError",
    "CompileError",
    "ConfigError",
    "DTypeError",
    "DeviceIndexError",
    "DeviceMismatchError",
    "DeviceUnavailableError",
    "ExportError",
    "GradientError",
    "GraphException",
    "JitError",
    "LinalgError",
    "LoadError",
    "LoopError",
    "OnnxError",
    "OpError",
    "OpTypeError",
    "OptimizerError",
    "RunnerError",
    "ScheduleError",
    "ShapeError",
    "StateError",
    "TorchError",
    "TrainingModeWarning",
    "TuneError",
    "UnknownDeviceError",
    "VmapError",
]
