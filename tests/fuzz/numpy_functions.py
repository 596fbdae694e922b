"""Functions of NumPy under the names of tensor methods, with their parameters as far as known here.

Each takes the tensor first, as an array of float64 or bool. Arguments that a function has not raise
`TypeError`, which says that NumPy is no oracle for such a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tests.fuzz.program import words

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

erf: Final = np.vectorize(math.erf, otypes=[np.float64])
_SELU, _SCALE = 1.6732632423543772, 1.0507009873554805


class Scaled(NamedTuple):
    """A result, and the largest partial result that there may be on the way to it."""

    value: Any
    magnitude: float


def only_if(condition: object) -> None:
    """Raises `TypeError` if NumPy's function is not meant for such arguments."""
    if not condition:
        raise TypeError


def as_integers(x: Any) -> Any:
    """The integers that a float64 stands for."""
    found = np.asarray(x)
    return found if found.dtype == np.bool_ else found.astype(np.int64)


def sizes_of(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes that were given one by one, or as one tuple."""
    if len(given) == 1 and isinstance(given[0], tuple | list):
        return tuple(given[0])
    return given


# -- functions that NumPy has under its own names --------------------------------------------------

_TAME = """abs absolute neg=negative square floor ceil trunc sign maximum minimum add sub=subtract
    mul=multiply subtract multiply less less_equal greater greater_equal lt=less le=less_equal
    gt=greater ge=greater_equal eq=equal ne=not_equal fmax fmin isnan isinf isfinite"""
_WILD = "sin cos exp exp2 expm1 tanh sinh cosh arctan atan=arctan arcsinh asinh=arcsinh"


def _functions(text: str, is_wild: bool) -> dict[str, tuple[np.ufunc, bool]]:
    pairs = [word.partition("=") for word in text.split()]
    return {ours: (getattr(np, theirs or ours), is_wild) for ours, _, theirs in pairs}


UFUNCS: Final = _functions(_TAME, False) | _functions(_WILD, True)
AGGREGATES: Final[Mapping[str, Callable[..., Any]]] = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "max": np.max,
    "amax": np.max,
    "min": np.min,
    "amin": np.min,
    "any": np.any,
    "all": np.all,
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
}


def aggregate(
    function: Callable[..., Any], x: Array, given: list[Any], named: dict[str, Any]
) -> Array:
    """With an axis, or several, and keepdim; running totals are of the first axis by default."""
    axis = named.pop("axis", named.pop("dim", given[0] if given else None))
    keep = named.pop("keepdim", named.pop("keepdims", given[1] if len(given) > 1 else False))
    only_if(not named and len(given) <= 2 and not isinstance(axis, bool))
    if function in (np.cumsum, np.cumprod):
        only_if(not keep and x.ndim)
        return np.asarray(function(x, 0 if axis is None else axis))
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    return np.asarray(function(x, axis=axis, keepdims=bool(keep)))


def transform(name: str, x: Array, given: list[Any], named: dict[str, Any]) -> Array:
    """A Fourier transform of `ferrule.fft`, where complex numbers are pairs along a last axis."""
    several = name.endswith(("2", "n", "shift"))
    if "dim" in named:
        named["axes" if several else "axis"] = named.pop("dim")
    if name.endswith("shift"):
        only_if(named.pop("pairs", True) is False)
    elif not name.startswith("rfft"):
        x = x[..., 0] + 1j * x[..., 1]
    result = getattr(np.fft, name)(x, *given, **named)
    if np.iscomplexobj(result):
        return np.stack([result.real, result.imag], -1)
    return np.asarray(result)


# -- element by element --------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _lgamma(x: Array) -> Array:
    found = np.full(x.shape, np.nan)  # where it is not asked, nothing is compared
    found[x > 0] = np.vectorize(math.lgamma, otypes=[np.float64])(x[x > 0])
    return found


def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    only_if(min is None or max is None or np.all(np.asarray(min) <= max))
    low = x if min is None else np.maximum(x, min)
    return low if max is None else np.minimum(low, max)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float = 1.0) -> Array:
    only_if(alpha > 0)
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x / alpha, 0)))


def _where(mask: Array, input: Any, other: Any) -> Array:
    only_if(mask.dtype == np.bool_)
    return np.where(mask, input, other)


def _logical(function: Function) -> Function:
    return lambda x, *others: function(*(np.asarray(y) != 0 for y in (x, *others)))


def _bitwise(function: Function) -> Function:
    return lambda x, *others: function(*map(as_integers, (x, *others)))


def _xlogy(x: Array, y: Any) -> Array:
    return np.where(np.asarray(x) == 0, 0, x * np.log(y))


ELEMENTS: Final[Mapping[str, Function]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "sigmoid": sigmoid,
    "expit": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "softplus": softplus,
    "logsigmoid": lambda x: -softplus(-x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
    "elu": _elu,
    "celu": _celu,
    "selu": lambda x: _SCALE * _elu(x, _SELU),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "erf": erf,
    "erfc": lambda x: 1 - erf(x),
    "ndtr": lambda x: 0.5 * (1 + erf(x / math.sqrt(2))),
    "lgamma": _lgamma,
    "logit": lambda x: np.log(x / (1 - x)),
    "entr": lambda x: np.where(x == 0, 0, -x * np.log(x)),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "reciprocal": lambda x: 1 / x,
    "asin": np.arcsin,
    "arcsin": np.arcsin,
    "acos": np.arccos,
    "arccos": np.arccos,
    "acosh": np.arccosh,
    "arccosh": np.arccosh,
    "atanh": np.arctanh,
    "arctanh": np.arctanh,
    "sinc": np.sinc,
    "deg2rad": np.deg2rad,
    "radians": np.deg2rad,
    "rad2deg": np.rad2deg,
    "degrees": np.rad2deg,
    "frac": lambda x: x - np.trunc(x),
    "fix": np.trunc,
    "round": lambda x: np.round(x),
    "sgn": np.sign,
    "negative": np.negative,
    "positive": lambda x: x,
    "isneginf": lambda x: np.zeros(x.shape, bool),
    "isposinf": lambda x: np.zeros(x.shape, bool),
    "nan_to_num": lambda x: x,
    "hypot": np.hypot,
    "atan2": np.arctan2,
    "arctan2": np.arctan2,
    "copysign": np.copysign,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
    "heaviside": np.heaviside,
    "xlogy": _xlogy,
    "xlog1py": lambda x, y: _xlogy(x, 1 + np.asarray(y)),
    "lerp": lambda x, end, weight: x + np.asarray(weight) * (end - x),
    "div": lambda x, y: x / np.asarray(y),
    "divide": lambda x, y: x / np.asarray(y),
    "true_divide": lambda x, y: x / np.asarray(y),
    "rsub": lambda x, y: y - x,
    "dist": lambda x, y: np.sqrt(np.square(x - y).sum()),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: np.maximum(x, min),
    "clamp_max": lambda x, max: np.minimum(x, max),
    "threshold": lambda x, threshold, value: np.where(x > threshold, x, value),
    "where": _where,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "logical_xor": _logical(np.logical_xor),
    "logical_not": _logical(np.logical_not),
    "bitwise_and": _bitwise(np.bitwise_and),
    "bitwise_or": _bitwise(np.bitwise_or),
    "bitwise_xor": _bitwise(np.bitwise_xor),
    "gcd": _bitwise(np.gcd),
    "lcm": _bitwise(np.lcm),
    "not_equal": np.not_equal,
    "addcmul": lambda x, a, b, value=1: x + value * (a * b),
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
}

# -- reductions ----------------------------------------------------------------------------------


def axes_of(axis: Any) -> Any:
    """Axes as NumPy has them."""
    return tuple(axis) if isinstance(axis, list | tuple) else axis


def _logsumexp(x: Array, axis: Any = None, keepdim: bool = False) -> Array:
    return np.logaddexp.reduce(x, axis=axes_of(axis), keepdims=keepdim)


def softmax(x: Array, axis: int = -1) -> Array:
    shifted = np.exp(x - x.max(axis, keepdims=True))
    return shifted / shifted.sum(axis, keepdims=True)


def _spread(power: float) -> Function:
    def spread(x: Array, axis: Any = None, keepdim: bool = False, correction: int = 1) -> Array:
        found = np.var(x, axis=axes_of(axis), keepdims=keepdim, ddof=correction)
        return np.asarray(found) ** power

    return spread


def _chosen(function: Function) -> Function:
    def choose(x: Array, axis: int | None = None, keepdim: bool = False) -> Any:
        only_if(axis is not None or not keepdim)
        return function(x, axis=axis, keepdims=keepdim)

    return choose


def _count(x: Array, axis: Any = None) -> Any:
    return np.count_nonzero(x, axis=axes_of(axis))


def _layer_norm(
    x: Array, shape: Sequence[int], weight: None = None, bias: None = None, eps: float = 1e-5
) -> Array:
    only_if(weight is None and bias is None)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axes, keepdims=True) + eps)


def _loss(function: Function) -> Function:
    def loss(x: Array, target: Any, reduction: str = "mean") -> Any:
        only_if(np.shape(x) == np.shape(target))
        found = function(x - target)
        return {"none": lambda y: y, "sum": np.sum, "mean": np.mean}[reduction](found)

    return loss


REDUCTIONS: Final[Mapping[str, Function]] = {
    "logsumexp": _logsumexp,
    "softmax": softmax,
    "softmin": lambda x, axis=-1: softmax(-x, axis),
    "log_softmax": lambda x, axis=-1: x - _logsumexp(x, axis, True),
    "var": _spread(1.0),
    "std": _spread(0.5),
    "argmax": _chosen(np.argmax),
    "argmin": _chosen(np.argmin),
    "count_nonzero": _count,
    "ptp": lambda x, axis=None: np.ptp(x, axis=axis),
    "msort": lambda x: np.sort(x, 0),
    "diff": lambda x, n=1, axis=-1: np.diff(x, n, axis),
    "logcumsumexp": lambda x, axis: np.logaddexp.accumulate(x, axis),
    "layer_norm": _layer_norm,
    "layernorm": lambda x: _layer_norm(x, x.shape[-1:]),
    "mse_loss": _loss(np.square),
    "mse": _loss(np.square),
    "l1_loss": _loss(np.abs),
    "l1": _loss(np.abs),
    "trace": np.trace,
}

# -- movements -----------------------------------------------------------------------------------


def expanded(x: Array, *given: Any) -> Array:
    sizes = sizes_of(given)
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [n if m == -1 else m for n, m in zip(own, sizes, strict=True)])


def padded(x: Array, padding: Sequence[Any], value: float = 0.0) -> Array:
    if padding and not isinstance(padding[0], int):
        edges = [pair or (0, 0) for pair in padding]
    else:  # flat, the last axis first
        edges = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)][::-1]
        edges = [(0, 0)] * (x.ndim - len(edges)) + edges
    cut = tuple(
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(x.shape, edges, strict=True)
    )
    widths = [(max(low, 0), max(high, 0)) for low, high in edges]
    return np.pad(x[cut], widths, constant_values=value)


def _shrunk(x: Array, arg: Sequence[Any]) -> Array:
    only_if(len(arg) == x.ndim)
    return x[tuple(slice(*pair) if pair else slice(None) for pair in arg)]


def _joined(function: Function) -> Function:
    def join(x: Array, *others: Array, dim: int = 0) -> Array:
        only_if(all(isinstance(y, np.ndarray) for y in others))
        return np.asarray(function([x, *others], dim))

    return join


def _unfolded(x: Array, dim: int, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    return windows[(slice(None),) * (dim % x.ndim) + (slice(None, None, step),)]


def _gathered(x: Array, dim: int, index: Array) -> Array:
    dim = dim % x.ndim
    kept = tuple(slice(None) if axis == dim else slice(n) for axis, n in enumerate(index.shape))
    return np.take_along_axis(x[kept], as_integers(index), dim)


def _scatter_added(x: Array, dim: int, index: Array, src: Array) -> Array:
    out = x.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim % x.ndim] = int(index[place])
        out[tuple(target)] += src[place]
    return out


def _index_added(x: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Array:
    out = np.moveaxis(x.copy(), dim, 0)
    np.add.at(out, as_integers(index), np.moveaxis(alpha * source, dim, 0))
    return np.moveaxis(out, 0, dim)


def _squeezed(x: Array, dim: Any = None) -> Array:
    if dim is None:
        return x.squeeze()
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return x.squeeze(tuple(axis for axis in dims if x.ndim and x.shape[axis] == 1))


def _unflattened(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim = dim % x.ndim
    return x.reshape((*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def _flattened(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    only_if(x.ndim)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    only_if(start <= end)
    size = math.prod(x.shape[start : end + 1])
    return x.reshape((*x.shape[:start], size, *x.shape[end + 1 :]))


MOVEMENTS: Final[Mapping[str, Function]] = {
    "reshape": lambda x, *sizes: x.reshape(sizes_of(sizes)),
    "view": lambda x, *sizes: x.reshape(sizes_of(sizes)),
    "permute": lambda x, *axes: x.transpose(sizes_of(axes)),
    "transpose": lambda x, a=1, b=0: np.swapaxes(x, a, b),
    "swapaxes": np.swapaxes,
    "swapdims": np.swapaxes,
    "t": np.transpose,
    "movedim": np.moveaxis,
    "moveaxis": np.moveaxis,
    "adjoint": lambda x: np.swapaxes(x, -1, -2),
    "flip": lambda x, *axes: np.flip(x, sizes_of(axes)),
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "rot90": lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims),
    "roll": lambda x, shifts, dims=None: np.roll(x, shifts, dims),
    "expand": expanded,
    "broadcast_to": expanded,
    "expand_as": lambda x, other: np.broadcast_to(x, other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "view_as": lambda x, other: x.reshape(other.shape),
    "repeat": lambda x, *times: np.tile(x, sizes_of(times)),
    "tile": lambda x, *times: np.tile(x, sizes_of(times)),
    "repeat_interleave": lambda x, repeats, dim=None: np.repeat(x, repeats, dim),
    "unsqueeze": np.expand_dims,
    "squeeze": _squeezed,
    "flatten": _flattened,
    "unflatten": _unflattened,
    "ravel": lambda x: x.reshape(-1),
    "tril": lambda x, diagonal=0: np.tril(x, diagonal),
    "triu": lambda x, diagonal=0: np.triu(x, diagonal),
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
    "diag": lambda x, diagonal=0: np.diag(x, diagonal),
    "diagflat": lambda x, offset=0: np.diagflat(x, offset),
    "narrow": lambda x, dim, start, length: np.take(x, range(start, start + length), dim),
    "select": lambda x, dim, index: np.take(x, index, dim),
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "detach": lambda x: x,
    "pad": padded,
    "shrink": _shrunk,
    "cat": _joined(np.concatenate),
    "concat": _joined(np.concatenate),
    "concatenate": _joined(np.concatenate),
    "stack": _joined(np.stack),
    "vstack": lambda x, *others: np.vstack([x, *others]),
    "row_stack": lambda x, *others: np.vstack([x, *others]),
    "hstack": lambda x, *others: np.hstack([x, *others]),
    "dstack": lambda x, *others: np.dstack([x, *others]),
    "column_stack": lambda x, *others: np.column_stack([x, *others]),
    "unfold": _unfolded,
    "gather": _gathered,
    "index_select": lambda x, dim, index: np.take(x, as_integers(index), dim),
    "take": lambda x, index: x.reshape(-1)[as_integers(index)],
    "zeros_like": np.zeros_like,
    "ones_like": np.ones_like,
}
ADDITIONS: Final[Mapping[str, Function]] = {
    "scatter_add": _scatter_added,
    "index_add": _index_added,
}

# -- products and windows ------------------------------------------------------------------------


def pairs(given: Any, count: int) -> tuple[int, ...]:
    return (given,) * count if isinstance(given, int) else tuple(given)


def windows(x: Array, sizes: Any, stride: Any, dilation: Any = 1) -> Array:
    """Windows over all axes behind the first two; their own axes are the last ones."""
    count = x.ndim - 2
    sizes, stride, dilation = (pairs(n, count) for n in (sizes, stride, dilation))
    reach = tuple((n - 1) * d + 1 for n, d in zip(sizes, dilation, strict=True))
    axes = tuple(range(2, x.ndim))
    found = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps = tuple(slice(None, None, n) for n in (*stride, *dilation))
    return found[(slice(None), slice(None), *steps)]


def _convolved(
    x: Array,
    weight: Array,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    count = x.ndim - 2
    only_if(weight.ndim == x.ndim)
    edges = [(n, n) for n in pairs(padding, count)]
    padded = np.pad(x, [(0, 0), (0, 0), *edges])
    taps = windows(padded, weight.shape[2:], stride, dilation)
    parts = []
    for part, filters in zip(np.split(taps, groups, 1), np.split(weight, groups, 0), strict=True):
        own, theirs = range(2 + count, 2 + 2 * count), range(2, 2 + count)
        found = np.tensordot(part, filters, ((1, *own), (1, *theirs)))
        parts.append(np.moveaxis(found, -1, 1))
    out = np.concatenate(parts, 1)
    return out if bias is None else out + np.reshape(bias, (1, -1) + (1,) * count)


def _pooled(rank: int, function: Function) -> Function:
    def pool(x: Array, kernel_size: Any, stride: Any = None) -> Array:
        only_if(x.ndim == rank + 2)
        stride = kernel_size if stride is None else stride
        found = windows(x, kernel_size, stride)
        return np.asarray(function(found, tuple(range(-rank, 0))))

    return pool


def _added(product: Function) -> Function:
    def add(x: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Any:
        return beta * x + alpha * product(a, b)

    return add


def _linear(x: Array, weight: Array, bias: Any = None) -> Any:
    only_if(x.ndim > 1 and weight.ndim == 2)
    found = x @ weight.T
    return found if bias is None else found + bias


PRODUCTS: Final[Mapping[str, Function]] = {
    "matmul": np.matmul,
    "dot": np.matmul,
    "mm": np.matmul,
    "mv": np.matmul,
    "bmm": np.matmul,
    "outer": np.outer,
    "ger": np.outer,
    "inner": np.inner,
    "kron": np.kron,
    "vdot": np.vdot,
    "addmm": _added(np.matmul),
    "addmv": _added(np.matmul),
    "baddbmm": _added(np.matmul),
    "addbmm": _added(lambda a, b: np.matmul(a, b).sum(0)),
    "addr": _added(np.outer),
    "conv1d": _convolved,
    "conv2d": _convolved,
    "conv3d": _convolved,
    **{f"max_pool{n}d": _pooled(n, np.max) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pooled(n, np.mean) for n in (1, 2, 3)},
}

FUNCTIONS: Final = {**ELEMENTS, **REDUCTIONS, **MOVEMENTS, **ADDITIONS, **PRODUCTS}
EXACT: Final = MOVEMENTS.keys() | words(
    """abs absolute neg negative positive floor ceil trunc fix round sign sgn heaviside copysign
    maximum minimum fmax fmin max amax min amin any all msort relu relu6 hardtanh clamp clip
    clamp_min clamp_max threshold where masked_fill nan_to_num"""
)
"""Functions that choose among numbers, or make integers of them: no result is rounded."""
