"""Operators that compute each element from those at the same place in their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import enter_rule, rule
from ferrule.torch.values import (
    Number,
    Operand,
    as_float,
    as_tensor,
    floats_together,
    result_dtype,
    together,
    wrapped,
)

# -- of one tensor -------------------------------------------------------------------------------

_OF_FLOATS = """
    acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 log log10 log1p log2
    lgamma digamma reciprocal rsqrt sigmoid sin sinh sqrt tan tanh deg2rad rad2deg sinc
"""
_OF_NUMBERS = "abs ceil floor neg round sign trunc relu square frac sgn"
_OF_BITS = "isnan isinf isfinite logical_not signbit isposinf isneginf"


def _called(name: str) -> Callable[[Tensor], Tensor]:
    """A method as a function of the tensor alone, called under its own name."""
    method = getattr(Tensor, name)
    return lambda self: method(self)


def _enter_unary() -> None:
    for name in _OF_FLOATS.split():
        method = getattr(Tensor, name)
        enter_rule(name, lambda self, method=method: method(as_float(self)))
    for name in _OF_NUMBERS.split():
        method = getattr(Tensor, name)
        enter_rule(name, lambda self, method=method: method(self).cast(self.dtype))
    for name in _OF_BITS.split():
        enter_rule(name, _called(name))


_enter_unary()


@rule("bitwise_not")
def bitwise_not(self: Tensor) -> Tensor:
    return self.logical_not() if self.dtype is dtypes.bool else self.bitwise_not()


@rule("round.decimals")
def round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    return self.round(decimals)


@rule("logit")
def logit(self: Tensor, eps: float | None = None) -> Tensor:
    x = as_float(self)
    return x.logit() if eps is None else x.logit(eps)


@rule("nan_to_num")
def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not dtypes.is_float(self.dtype):
        return self
    return self.nan_to_num(0.0 if nan is None else nan, posinf, neginf)


# -- activations ---------------------------------------------------------------------------------


@rule("elu")
def elu(self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    negative = (self.minimum(0) * input_scale).expm1() * alpha
    return (self > 0).where(self, negative) * scale


@rule("gelu")
def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    return self.gelu(approximate)


@rule("hardtanh")
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return clamp(self, min_val, max_val)


@rule("leaky_relu")
def leaky_relu(self: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return (self > 0).where(self, self * negative_slope)


@rule("prelu", "_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Tensor:
    one_each = weight.ndim == 1 and weight.shape[0] > 1 and self.ndim > 1
    shape = (weight.shape[0], *(1,) * (self.ndim - 2))
    slope = weight.reshape(*shape) if one_each else weight
    return (self > 0).where(self, self * slope)


@rule("softplus")
def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    scaled = self * beta
    soft = scaled.minimum(threshold).exp().log1p() / beta
    return (scaled > threshold).where(self, soft)


def _enter_activations() -> None:
    for name in ["silu", "mish", "hardswish", "hardsigmoid", "relu6", "selu"]:
        enter_rule(name, _called(name))


_enter_activations()


@rule("log_sigmoid_forward")
def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    return self.logsigmoid(), self.abs().neg().exp()


@rule("threshold")
def threshold(self: Tensor, threshold: Number, value: Number) -> Tensor:
    return (self <= threshold).where(value, self)


@rule("threshold_backward")
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number) -> Tensor:
    return (self <= threshold).where(0, grad_output)


# -- arithmetic ----------------------------------------------------------------------------------


def _scaled(value: Operand, alpha: Number) -> Operand:
    return value if alpha == 1 and not isinstance(alpha, bool) else value * alpha


@rule("add.Tensor", "add.Scalar")
def add(self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    a, b = together(self, other)
    return a.logical_or(b) if a.dtype is dtypes.bool else a + _scaled(b, alpha)


@rule("sub.Tensor", "sub.Scalar")
def sub(self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    a, b = together(self, other)
    return a - _scaled(b, alpha)


@rule("rsub.Tensor", "rsub.Scalar")
def rsub(self: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return sub(other, self, alpha)


@rule("mul.Tensor", "mul.Scalar")
def mul(self: Operand, other: Operand) -> Tensor:
    a, b = together(self, other)
    return a.logical_and(b) if a.dtype is dtypes.bool else a * b


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(self: Operand, other: Operand) -> Tensor:
    a, b = floats_together(self, other)
    return a / b


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return div(self, other)
    a, b = together(self, other)
    return a.div(b, rounding_mode)


@rule("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Operand, other: Operand) -> Tensor:
    return div_mode(self, other, rounding_mode="floor")


@rule("fmod.Tensor", "fmod.Scalar")
def fmod(self: Operand, other: Operand) -> Tensor:
    a, b = together(self, other)
    return a.fmod(b)


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(self: Operand, other: Operand) -> Tensor:
    a, b = together(self, other)
    return a.remainder(b)


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(self: Operand, exponent: Operand) -> Tensor:
    dtype = result_dtype(self, exponent)
    base = as_tensor(self, dtype)
    if isinstance(exponent, Tensor):
        return base.pow(exponent.cast(dtype))
    return base.pow(wrapped(exponent, dtype))


@rule("atan2", "atan2.out")
def atan2(self: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
    a, b = floats_together(self, other)
    found = a.atan2(b)
    return found if out is None else out.assign(found.cast(out.dtype))


@rule("maximum")
def maximum(self: Tensor, other: Tensor) -> Tensor:
    a, b = together(self, other)
    return a.maximum(b)


@rule("minimum")
def minimum(self: Tensor, other: Tensor) -> Tensor:
    a, b = together(self, other)
    return a.minimum(b)


@rule("clamp", "clamp.Tensor")
def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    limits = [limit for limit in (min, max) if limit is not None]
    dtype = result_dtype(self, *limits)
    low, high = (None if limit is None else as_tensor(limit, dtype) for limit in (min, max))
    return self.cast(dtype).clamp(low, high)


@rule("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Tensor, min: Operand) -> Tensor:
    return clamp(self, min)


@rule("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Tensor, max: Operand) -> Tensor:
    return clamp(self, None, max)


@rule("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    return add(self, mul(tensor1, tensor2), value)


@rule("addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    return add(self, div(tensor1, tensor2), value)


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return self + (end - self) * weight


def _enter_float_pairs() -> None:
    of_floats = "copysign.Tensor hypot logaddexp logaddexp2 nextafter xlogy.Tensor"
    for overload in of_floats.split():
        method = getattr(Tensor, overload.partition(".")[0])
        enter_rule(
            overload, lambda self, other, method=method: method(*floats_together(self, other))
        )


_enter_float_pairs()


# -- comparisons ---------------------------------------------------------------------------------


def _enter_comparisons() -> None:
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        method = getattr(Tensor, name)

        def compare(self: Operand, other: Operand, method: Any = method) -> Any:
            return method(*together(self, other))

        enter_rule(f"{name}.Tensor", compare)
        enter_rule(f"{name}.Scalar", compare)


_enter_comparisons()


def _enter_logic() -> None:
    for name in ["logical_and", "logical_or", "logical_xor"]:
        method = getattr(Tensor, name)
        enter_rule(name, lambda self, other, method=method: method(self.bool(), other.bool()))
    for name in ["and", "or", "xor"]:
        of_bits, of_bools = (getattr(Tensor, f"{kind}_{name}") for kind in ("bitwise", "logical"))

        def compute(
            self: Operand, other: Operand, of_bits: Any = of_bits, of_bools: Any = of_bools
        ) -> Any:
            a, b = together(self, other)
            return (of_bools if a.dtype is dtypes.bool else of_bits)(a, b)

        for overload in ("Tensor", "Scalar", "Scalar_Tensor"):
            enter_rule(f"bitwise_{name}.{overload}", compute)
    for name in ["left", "right"]:

        def shift(self: Operand, other: Operand, side: str = name) -> Tensor:
            a, b = together(self, other)
            return a.bitwise_left_shift(b) if side == "left" else a.bitwise_right_shift(b)

        enter_rule(f"bitwise_{name}_shift.Tensor", shift)
        enter_rule(f"bitwise_{name}_shift.Tensor_Scalar", shift)


_enter_logic()


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(condition: Tensor, self: Operand, other: Operand) -> Tensor:
    a, b = together(self, other)
    return condition.bool().where(a, b)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return mask.where(as_tensor(value, self.dtype), self)


# -- the same elements ---------------------------------------------------------------------------


@rule("alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "positive")
def alias(self: Tensor) -> Tensor:
    return self


@rule("clone")
def clone(self: Tensor) -> Tensor:
    return self


@rule("_to_copy")
def to_copy(self: Tensor, *, dtype: DType | None = None, non_blocking: bool = False) -> Tensor:
    return self if dtype is None else self.cast(dtype)


@rule("to.dtype")
def to_dtype(self: Tensor, dtype: DType, non_blocking: bool = False, copy: bool = False) -> Tensor:
    return self.cast(dtype)


@rule("copy")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.cast(self.dtype).expand(*self.shape)


@rule("copy_")
def copy_in_place(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return self.assign(copy(self, src))


@rule("_local_scalar_dense", "item")
def local_scalar_dense(self: Tensor) -> Number:
    number: Number = self.item()
    return number


# -- slopes --------------------------------------------------------------------------------------


@rule("tanh_backward")
def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * (1 - output * output)


@rule("sigmoid_backward")
def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * output * (1 - output)
