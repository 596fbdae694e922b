"""Operators that compute each element from those at the same place in their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.values import dtype_of
from ferrule.tensor import Tensor

# Operators that are methods of a tensor, by their names there.
_METHODS = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Mish": "mish", "Neg": "neg",
    "Not": "logical_not", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus",
    "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
    "BitwiseNot": "bitwise_not",
}  # fmt: skip

_PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "And": lambda x, y: x.logical_and(y),
    "Or": lambda x, y: x.logical_or(y),
    "Xor": lambda x, y: x.logical_xor(y),
    "Equal": lambda x, y: x == y,
    "Greater": lambda x, y: x > y,
    "GreaterOrEqual": lambda x, y: x >= y,
    "Less": lambda x, y: x < y,
    "LessOrEqual": lambda x, y: x <= y,
    "BitwiseAnd": lambda x, y: x & y,
    "BitwiseOr": lambda x, y: x | y,
    "BitwiseXor": lambda x, y: x ^ y,
}


def _enter_method(operator: str, method: str) -> None:
    @rule(operator)
    def compute(x: Tensor) -> Tensor:
        result: Tensor = getattr(x, method)()
        return result


def _enter_pair(operator: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @rule(operator, 7)
    def compute(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    # Before version 7 the second one was broadcast only if asked for, from an axis on.
    @rule(operator)
    def compute_old(x: Tensor, y: Tensor, *, axis: int = -1, broadcast: int = 0) -> Tensor:
        return function(x, _from_axis(x, y, axis) if broadcast else y)


def _from_axis(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """`y` with its axes at those of `x` from `axis` on."""
    if axis < 0 or y.ndim == 0:
        return y
    return y.reshape(*y.shape, *(1,) * (x.ndim - axis - y.ndim))


def divide(x: Tensor, y: Tensor) -> Tensor:
    """The quotient; of whole numbers it is rounded towards zero."""
    if dtypes.is_float(x.dtype):
        return x / y
    return x.div(y, rounding_mode="trunc").cast(x.dtype)


_PAIRS["Div"] = divide

for _operator, _method in _METHODS.items():
    _enter_method(_operator, _method)
for _operator, _function in _PAIRS.items():
    _enter_pair(_operator, _function)


@rule("Pow", 7)
def power(x: Tensor, y: Tensor) -> Tensor:
    if dtypes.is_float(x.dtype) or not dtypes.is_float(y.dtype):
        return (x ** y.cast(x.dtype)).cast(x.dtype)
    return (x.cast(y.dtype) ** y).cast(x.dtype)


@rule("Pow")
def power_old(x: Tensor, y: Tensor, *, axis: int = -1, broadcast: int = 0) -> Tensor:
    return power(x, _from_axis(x, y, axis) if broadcast else y)


@rule("Mod", 10)
def modulo(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    return x.fmod(y) if fmod else x.mod(y)


@rule("BitShift", 11)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    shifted = x.bitwise_left_shift(y) if direction == "LEFT" else x.bitwise_right_shift(y)
    return shifted.cast(x.dtype)


@rule("Sum")
def add_all(*xs: Tensor) -> Tensor:
    return reduce(lambda x, y: x + y, xs)


@rule("Mean")
def mean_of_all(*xs: Tensor) -> Tensor:
    return add_all(*xs) / len(xs)


@rule("Max")
def largest(*xs: Tensor) -> Tensor:
    return reduce(lambda x, y: x.maximum(y), xs)


@rule("Min")
def smallest(*xs: Tensor) -> Tensor:
    return reduce(lambda x, y: x.minimum(y), xs)


@rule("Where", 9)
def choose(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return condition.where(x, y)


@rule("Clip", 11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is not None:
        x = x.maximum(low)
    return x if high is None else x.minimum(high)


@rule("Clip")
def clip_old(
    x: Tensor, *, min: float = -3.4028234663852886e38, max: float = 3.4028234663852886e38
) -> Tensor:
    return x.clip(min, max)


@rule("Cast", 6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    dtype = dtype_of(to)
    if saturate and dtype in _LARGEST and dtypes.is_float(x.dtype):
        bound = _LARGEST[dtype]
        # A NaN stays one.
        x = x.isnan().where(x, x.clip(-bound, bound))
    return x.cast(dtype)


_LARGEST = {dtypes.float8_e4m3: 448.0, dtypes.float8_e5m2: 57344.0}


@rule("CastLike", 15)
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    from ferrule.onnx.values import number_of

    return cast(x, to=number_of(like.dtype), saturate=saturate)


@rule("BitCast", 26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.detach().bitcast(dtype_of(to))  # bits have no gradient, and parameters want one


@rule("Identity")
def identity(x: Any) -> Any:
    return x


@rule("IsInf", 10)
def is_infinite(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    infinite = x.isinf()
    if not detect_negative:
        infinite = infinite.logical_and(x > 0)
    return infinite if detect_positive else infinite.logical_and(x < 0)


# Activations


@rule("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.elu(alpha)


@rule("Celu", 12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.celu(alpha)


@rule("Selu")
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return gamma * (x > 0).where(x, alpha * (x.exp() - 1))


@rule("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return x.leaky_relu(alpha)


@rule("PRelu", 7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return (x < 0).where(x * slope, x)


@rule("PRelu")
def prelu_old(x: Tensor, slope: Tensor) -> Tensor:
    return prelu(x, slope if slope.numel() == 1 else _from_axis(x, slope, 1))


@rule("ThresholdedRelu", 10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return (x > alpha).where(x, 0.0)


@rule("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clip(0.0, 1.0)


@rule("HardSwish", 14)
def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@rule("Gelu", 20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x.gelu(approximate=approximate)


@rule("Shrink", 9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0.0)).cast(x.dtype)


@rule("Swish", 24)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * (alpha * x).sigmoid()
