"""Functions in place, under PyTorch's names: the result is written into the tensor itself.

`x.name_(...)` writes `x.name(...)` into `x`, and into what shares its memory. The result is cast to
the tensor's dtype. Raises `ShapeError` if it has another shape, `DTypeError` for floats into
integers, and `GradientError` for a tensor that requires a gradient itself, outside
`Tensor.no_grad()`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import unwrap
from typing import Any, Concatenate, ParamSpec, TypeAlias

from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.ir.storage import turn
from ferrule.tensor import creation
from ferrule.tensor.algebra import linalg, products
from ferrule.tensor.base import Tensor
from ferrule.tensor.index import scattering
from ferrule.tensor.keywords import method
from ferrule.tensor.math import activations, arithmetic, elementwise, functions, numeric, scientific
from ferrule.tensor.math.arithmetic import Operand
from ferrule.tensor.reduce import running

P = ParamSpec("P")
Method: TypeAlias = Callable[Concatenate["Tensor", P], "Tensor"]


# -- writing a result ----------------------------------------------------------------------------
# With the turn to compute: what another thread wrote in between would be lost.


def _update(self: Tensor, result: Tensor, what: str) -> Tensor:
    """Writes the result of a function of this tensor to this tensor."""
    own, new = self.dtype, result.dtype
    loses = dtypes.is_float(new) and not dtypes.is_float(own)
    if loses or (own is dtypes.bool and new is not own):
        raise DTypeError(
            f"[{what}] a result of {new} does not go into a tensor of {own}; "
            f"write {_out_of_place(what)} instead, or cast the operand"
        )
    if result._shape != self._shape:
        raise ShapeError(
            f"[{what}] a result of shape {result._shape} does not go into a tensor of shape "
            f"{self._shape}; write {_out_of_place(what)} instead"
        )
    self._store(result._read().cast(own), what)
    return self


def _out_of_place(what: str) -> str:
    """The out-of-place form of `+=` or `add_`, for a hint."""
    return f"x = x {what[:-1]} y" if what.endswith("=") else f"x = x.{what[:-1]}(...)"


# -- operators -----------------------------------------------------------------------------------


def _operator(function: Callable[[Tensor, Operand], Tensor], what: str) -> Method[[Operand]]:
    """The method of an operator such as `+=`: writes a function's result into the tensor."""

    def in_place(self: Tensor, other: Operand, /) -> Tensor:
        with turn:
            return _update(self, function(self, other), what)

    return in_place


iadd = _operator(arithmetic.plus, "+=")
isub = _operator(arithmetic.sub, "-=")
imul = _operator(arithmetic.mul, "*=")
itruediv = _operator(arithmetic.div, "/=")
ifloordiv = _operator(arithmetic.floordiv, "//=")
imod = _operator(arithmetic.mod, "%=")
ipow = _operator(arithmetic.pow, "**=")
imatmul = _operator(linalg.dot, "@=")
iand = _operator(elementwise.bitwise_and, "&=")
ior = _operator(elementwise.bitwise_or, "|=")
ixor = _operator(elementwise.bitwise_xor, "^=")
ilshift = _operator(elementwise.bitwise_left_shift, "<<=")
irshift = _operator(elementwise.bitwise_right_shift, ">>=")

# -- functions -----------------------------------------------------------------------------------


def _in_place(function: Method[P], example: str, result: str) -> Method[P]:
    """The method that writes what another gives into the tensor, and returns the tensor."""
    plain = unwrap(function)
    name = plain.__name__
    what = f"{name}_"

    def in_place(self: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        with turn:
            return _update(self, function(self, *args, **kwargs), what)

    update_wrapper(in_place, plain)
    in_place.__name__ = what
    in_place.__module__ = __name__
    in_place.__doc__ = f"""`{name}`, written into this tensor, which is returned.

    >>> from ferrule import Tensor
    >>> {example}.tolist()
    {result}
    """
    return method(in_place)


abs_ = _in_place(functions.abs, "Tensor([-1.0, 4.0]).abs_()", "[1.0, 4.0]")
neg_ = _in_place(arithmetic.neg, "Tensor([-1.0, 4.0]).neg_()", "[1.0, -4.0]")
sign_ = _in_place(functions.sign, "Tensor([-1.0, 4.0]).sign_()", "[-1.0, 1.0]")
reciprocal_ = _in_place(functions.reciprocal, "Tensor([1.0, 4.0]).reciprocal_()", "[1.0, 0.25]")
sqrt_ = _in_place(functions.sqrt, "Tensor([1.0, 4.0]).sqrt_()", "[1.0, 2.0]")
square_ = _in_place(functions.square, "Tensor([1.0, 4.0]).square_()", "[1.0, 16.0]")
rsqrt_ = _in_place(functions.rsqrt, "Tensor([4.0, 0.25]).rsqrt_()", "[0.5, 2.0]")
exp_ = _in_place(functions.exp, "Tensor([0.0]).exp_()", "[1.0]")
exp2_ = _in_place(functions.exp2, "Tensor([0.0]).exp2_()", "[1.0]")
expm1_ = _in_place(functions.expm1, "Tensor([0.0]).expm1_()", "[0.0]")
sin_ = _in_place(functions.sin, "Tensor([0.0]).sin_()", "[0.0]")
tan_ = _in_place(functions.tan, "Tensor([0.0]).tan_()", "[0.0]")
asin_ = _in_place(scientific.asin, "Tensor([0.0]).asin_()", "[0.0]")
atan_ = _in_place(scientific.atan, "Tensor([0.0]).atan_()", "[0.0]")
sinh_ = _in_place(functions.sinh, "Tensor([0.0]).sinh_()", "[0.0]")
tanh_ = _in_place(functions.tanh, "Tensor([0.0]).tanh_()", "[0.0]")
asinh_ = _in_place(scientific.asinh, "Tensor([0.0]).asinh_()", "[0.0]")
erf_ = _in_place(functions.erf, "Tensor([0.0]).erf_()", "[0.0]")
log1p_ = _in_place(functions.log1p, "Tensor([0.0]).log1p_()", "[0.0]")
cos_ = _in_place(functions.cos, "Tensor([0.0]).cos_()", "[1.0]")
cosh_ = _in_place(functions.cosh, "Tensor([0.0]).cosh_()", "[1.0]")
acos_ = _in_place(scientific.acos, "Tensor([1.0]).acos_()", "[0.0]")
log_ = _in_place(functions.log, "Tensor([1.0]).log_()", "[0.0]")
log2_ = _in_place(functions.log2, "Tensor([1.0]).log2_()", "[0.0]")
log10_ = _in_place(functions.log10, "Tensor([1.0]).log10_()", "[0.0]")
sigmoid_ = _in_place(activations.sigmoid, "Tensor([0.0]).sigmoid_()", "[0.5]")
relu_ = _in_place(activations.relu, "Tensor([-1.0, 4.0]).relu_()", "[0.0, 4.0]")
elu_ = _in_place(activations.elu, "Tensor([0.0, 0.5]).elu_()", "[0.0, 0.5]")
leaky_relu_ = _in_place(activations.leaky_relu, "Tensor([0.0, 0.5]).leaky_relu_()", "[0.0, 0.5]")
hardtanh_ = _in_place(activations.hardtanh, "Tensor([0.0, 0.5]).hardtanh_()", "[0.0, 0.5]")
ceil_ = _in_place(functions.ceil, "Tensor([1.25, -1.5]).ceil_()", "[2.0, -1.0]")
floor_ = _in_place(functions.floor, "Tensor([1.25, -1.5]).floor_()", "[1.0, -2.0]")
trunc_ = _in_place(functions.trunc, "Tensor([1.25, -1.5]).trunc_()", "[1.0, -1.0]")
round_ = _in_place(functions.round, "Tensor([1.25, -1.5]).round_()", "[1.0, -2.0]")
frac_ = _in_place(numeric.frac, "Tensor([1.25, -1.5]).frac_()", "[0.25, -0.5]")
nan_to_num_ = _in_place(
    numeric.nan_to_num, 'Tensor([float("nan"), 2.0]).nan_to_num_()', "[0.0, 2.0]"
)
add_ = _in_place(arithmetic.add, "Tensor([1.0, 4.0]).add_(2)", "[3.0, 6.0]")
sub_ = _in_place(arithmetic.sub, "Tensor([1.0, 4.0]).sub_(2)", "[-1.0, 2.0]")
mul_ = _in_place(arithmetic.mul, "Tensor([1.0, 4.0]).mul_(2)", "[2.0, 8.0]")
div_ = _in_place(arithmetic.div, "Tensor([1.0, 4.0]).div_(2)", "[0.5, 2.0]")
pow_ = _in_place(arithmetic.pow, "Tensor([1.0, 4.0]).pow_(2)", "[1.0, 16.0]")
floor_divide_ = _in_place(numeric.floor_divide, "Tensor([1.0, 4.0]).floor_divide_(2)", "[0.0, 2.0]")
remainder_ = _in_place(numeric.remainder, "Tensor([1.0, 4.0]).remainder_(2)", "[1.0, 0.0]")
fmod_ = _in_place(numeric.fmod, "Tensor([1.0, 4.0]).fmod_(2)", "[1.0, 0.0]")
copysign_ = _in_place(numeric.copysign, "Tensor([1.0, 4.0]).copysign_(-1)", "[-1.0, -4.0]")
atan2_ = _in_place(scientific.atan2, "Tensor([0.0, 0.0]).atan2_(1)", "[0.0, 0.0]")
hypot_ = _in_place(
    scientific.hypot, "Tensor([3.0, 5.0]).hypot_(Tensor([4.0, 12.0]))", "[5.0, 13.0]"
)
clamp_ = _in_place(elementwise.clamp, "Tensor([1.0, 4.0]).clamp_(2, 3)", "[2.0, 3.0]")
clamp_min_ = _in_place(elementwise.clamp_min, "Tensor([1.0, 4.0]).clamp_min_(2)", "[2.0, 4.0]")
clamp_max_ = _in_place(elementwise.clamp_max, "Tensor([1.0, 4.0]).clamp_max_(2)", "[1.0, 2.0]")
lerp_ = _in_place(
    elementwise.lerp, "Tensor([1.0, 4.0]).lerp_(Tensor([3.0, 4.0]), 0.5)", "[2.0, 4.0]"
)
addcmul_ = _in_place(
    numeric.addcmul,
    "Tensor([1.0, 4.0]).addcmul_(Tensor([2.0, 3.0]), Tensor([1.0, 3.0]))",
    "[3.0, 13.0]",
)
addcdiv_ = _in_place(
    numeric.addcdiv,
    "Tensor([1.0, 4.0]).addcdiv_(Tensor([2.0, 3.0]), Tensor([1.0, 3.0]))",
    "[3.0, 5.0]",
)
addmm_ = _in_place(
    products.addmm,
    "Tensor([[1.0]]).addmm_(Tensor([[2.0]]), Tensor([[3.0]]))",
    "[[7.0]]",
)
cumsum_ = _in_place(running.cumsum, "Tensor([2.0, 3.0]).cumsum_(0)", "[2.0, 5.0]")
cumprod_ = _in_place(running.cumprod, "Tensor([2.0, 3.0]).cumprod_(0)", "[2.0, 6.0]")
tril_ = _in_place(creation.tril, "Tensor([[1, 2], [3, 4]]).tril_()", "[[1, 0], [3, 4]]")
triu_ = _in_place(creation.triu, "Tensor([[1, 2], [3, 4]]).triu_()", "[[1, 2], [0, 4]]")
bitwise_and_ = _in_place(elementwise.bitwise_and, "Tensor([1, 6]).bitwise_and_(3)", "[1, 2]")
bitwise_or_ = _in_place(elementwise.bitwise_or, "Tensor([1, 6]).bitwise_or_(3)", "[3, 7]")
bitwise_xor_ = _in_place(elementwise.bitwise_xor, "Tensor([1, 6]).bitwise_xor_(3)", "[2, 5]")
logical_not_ = _in_place(
    elementwise.logical_not, "Tensor([True, False]).logical_not_()", "[False, True]"
)
masked_fill_ = _in_place(
    elementwise.masked_fill,
    "Tensor([1, 2]).masked_fill_(Tensor([True, False]), 9)",
    "[9, 2]",
)
masked_scatter_ = _in_place(
    scattering.masked_scatter,
    "Tensor([1, 2]).masked_scatter_(Tensor([True, False]), Tensor([9]))",
    "[9, 2]",
)
index_fill_ = _in_place(
    scattering.index_fill,
    "Tensor([1, 2, 3]).index_fill_(0, Tensor([0]), 9)",
    "[9, 2, 3]",
)
index_add_ = _in_place(
    scattering.index_add,
    "Tensor([1, 2, 3]).index_add_(0, Tensor([0, 2]), Tensor([10, 20]))",
    "[11, 2, 23]",
)
index_copy_ = _in_place(
    scattering.index_copy,
    "Tensor([1, 2, 3]).index_copy_(0, Tensor([0, 2]), Tensor([10, 20]))",
    "[10, 2, 20]",
)
index_put_ = _in_place(
    scattering.index_put,
    "Tensor([1, 2, 3]).index_put_((Tensor([0, 2]),), Tensor([10, 20]))",
    "[10, 2, 20]",
)
scatter_ = _in_place(
    scattering.scatter,
    "Tensor([1, 2, 3]).scatter_(0, Tensor([0, 2]), Tensor([10, 20]))",
    "[10, 2, 20]",
)
scatter_add_ = _in_place(
    scattering.scatter_add,
    "Tensor([1, 2, 3]).scatter_add_(0, Tensor([0, 2]), Tensor([10, 20]))",
    "[11, 2, 23]",
)
scatter_reduce_ = _in_place(
    scattering.scatter_reduce,
    'Tensor([1, 2, 3]).scatter_reduce_(0, Tensor([0, 2]), Tensor([10, 2]), "amax")',
    "[10, 2, 3]",
)

# -- random numbers --------------------------------------------------------------------------


@method
def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform random numbers in [low, high), in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> bool((Tensor.zeros(8).uniform_(1, 2) >= 1).all())
    True
    """
    drawn = self.uniform(*self._shape, low=low, high=high, **_kind(self, "uniform_"))
    return self.assign(drawn)


@method
def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normally distributed random numbers, in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2, 3).normal_(std=0.5).shape
    (2, 3)
    """
    return self.assign(self.normal(*self._shape, mean=mean, std=std, **_kind(self, "normal_")))


@method
def exponential_(self: Tensor, lambd: float = 1.0) -> Tensor:
    """Exponentially distributed random numbers of mean 1 / lambd, in place.

    >>> from ferrule import Tensor
    >>> bool((Tensor.zeros(8).exponential_() >= 0).all())
    True
    """
    if not lambd > 0:
        raise ValueError(f"[exponential_] lambd {lambd} must be more than 0")
    drawn = self.rand(*self._shape, **_kind(self, "exponential_"))
    return self.assign((-drawn).log1p() / -lambd)


@method
def bernoulli_(self: Tensor, p: float = 0.5) -> Tensor:
    """1 with probability p, else 0, in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2).bernoulli_(1.0).tolist()
    [1.0, 1.0]
    """
    if not 0 <= p <= 1:
        raise ValueError(f"[bernoulli_] the probability is between 0 and 1, not {p}")
    return self.assign(self.rand(*self._shape, device=self.device) < p)


def _kind(self: Tensor, what: str) -> dict[str, Any]:
    """The dtype, a float, and the device of numbers to be drawn."""
    if not dtypes.is_float(self.dtype):
        raise DTypeError(f"[{what}] draws floats, and the tensor is of {self.dtype}; cast it")
    return {"dtype": self.dtype, "device": self.device}
