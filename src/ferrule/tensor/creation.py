"""Making tensors: constants, sequences, random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.autograd import Number, Shape, TracedValue
from ferrule.autograd.iota import iota
from ferrule.base.calls import is_several, one_of
from ferrule.engine.random import manual_seed as seed_devices
from ferrule.engine.random import random_words, uniform_from
from ferrule.ir.dtype import DType, DTypeError, check_range, dtypes
from ferrule.ir.expr import Expr, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.algebra.matrices import above, diagonal_matrix
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import fit_shape, whole_size
from ferrule.tensor.data import (
    DTypeLike,
    constant,
    python_number,
    scalar_dtype,
    to_device,
    to_dtype,
)
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import count_steps, plain
from ferrule.tensor.math import special
from ferrule.tensor.shaping.joining import tensors_of
from ferrule.tensor.shaping.movement import listed

_COUNTERS = (dtypes.int32, dtypes.int64, dtypes.uint64)


def _shape(sizes: Sequence[Any], what: str) -> Shape:
    shape = tuple([whole_size(size, what) for size in listed(sizes)])
    for size in shape:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"[{what}] the shape {shape} has a negative size; sizes start at 0")
    return shape


def _float_dtype(dtype: DTypeLike | None, what: str) -> DType:
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not dtypes.is_float(chosen):
        raise DTypeError(f"[{what}] gives floats, not {chosen}; cast the result")
    return chosen


def _made(cls: type[Tensor], /, value: TracedValue, requires_grad: bool | None) -> Tensor:
    tensor = cls._wrap(value)
    if requires_grad is not None:
        tensor.requires_grad = requires_grad
    return tensor


# -- constants -----------------------------------------------------------------------------------


@method
def empty(
    cls: type[Tensor],
    /,
    *shape: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Memory with no particular contents.

    >>> from ferrule import Tensor
    >>> Tensor.empty(2, 3).shape
    (2, 3)
    """
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    node = LazyBuffer.empty(_shape(shape, "empty"), chosen, to_device(device))
    return _made(cls, TracedValue(node), requires_grad)


@method
def full(
    cls: type[Tensor],
    /,
    shape: Any,
    fill_value: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Every element is one value; without `dtype`, of the type that goes with the value.

    A Python number has the default dtype of its kind, a NumPy scalar its own. A tensor or an
    array as the value is broadcast to the shape, and may need a gradient.

    Raises `TypeError` for a value that is no number, `ShapeError` for one that does not
    broadcast, `OverflowError` for a number that does not fit an integer dtype.

    >>> from ferrule import Tensor
    >>> Tensor.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    sizes = tuple(shape) if is_several(shape) else (shape,)
    wanted = _shape(sizes, "full")
    if isinstance(fill_value, np.ndarray) and not fill_value.ndim:
        fill_value = fill_value[()]
    if isinstance(fill_value, Tensor | np.ndarray):
        value = cls(fill_value, device, dtype)._read()
        return _made(cls, fit_shape(value, wanted, "full"), requires_grad)
    number = python_number(fill_value, "[full] the value is a number")
    own = fill_value.dtype if isinstance(fill_value, np.generic) else scalar_dtype(number)
    chosen = to_dtype(own if dtype is None else dtype)
    node = constant(number, chosen, wanted, to_device(device))
    return _made(cls, TracedValue(node), requires_grad)


@method
def zeros(
    cls: type[Tensor],
    /,
    *shape: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Zeros, float32 unless told otherwise.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    chosen = dtypes.default_float if dtype is None else dtype
    return cls.full(_shape(shape, "zeros"), 0, device, chosen, requires_grad)


@method
def ones(
    cls: type[Tensor],
    /,
    *shape: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Ones, float32 unless told otherwise.

    >>> from ferrule import Tensor
    >>> Tensor.ones(3).tolist()
    [1.0, 1.0, 1.0]
    """
    chosen = dtypes.default_float if dtype is None else dtype
    return cls.full(_shape(shape, "ones"), 1, device, chosen, requires_grad)


@method
def full_like(
    self: Tensor,
    fill_value: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """One value with this tensor's shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).full_like(7).tolist()
    [7, 7]
    """
    return self.full(
        self._shape, fill_value, device or self.device, dtype or self.dtype, requires_grad
    )


@method
def zeros_like(
    self: Tensor,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Zeros with this tensor's shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).zeros_like().tolist()
    [0, 0]
    """
    return self.full_like(0, device, dtype, requires_grad)


@method
def ones_like(
    self: Tensor,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Ones with this tensor's shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).ones_like().tolist()
    [1, 1]
    """
    return self.full_like(1, device, dtype, requires_grad)


# -- sequences -----------------------------------------------------------------------------------


@method
def arange(
    cls: type[Tensor],
    /,
    start: Any = None,
    stop: Any = None,
    step: Number = 1,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """start, start + step, … below stop; with one argument, from 0. int32 if all are ints.

    Raises `OverflowError` if a number does not fit an integer dtype.

    >>> from ferrule import Tensor
    >>> Tensor.arange(3).tolist(), Tensor.arange(5, 0, -2).tolist()
    ([0, 1, 2], [5, 3, 1])
    """
    if stop is None:
        start, stop = 0, start
    start = 0 if start is None else start
    if stop is None:
        raise TypeError("[arange] where to stop is missing: Tensor.arange(stop)")
    rule = "[arange] start, stop and step are numbers"
    start, stop, step = (python_number(part, rule) for part in (start, stop, plain(step)))
    if step == 0:
        raise ValueError("[arange] step is 0; use Tensor.full for a constant")
    whole = all(isinstance(part, int | Expr) for part in (start, stop, step))
    if not whole:
        start, stop = plain(start), plain(stop)
    natural = dtypes.default_int if whole else dtypes.default_float
    chosen = natural if dtype is None else to_dtype(dtype)
    size = count_steps(start, stop, step)
    where = to_device(device)
    if size == 0:
        return _made(cls, TracedValue(LazyBuffer.const(0, chosen, (0,), where)), requires_grad)
    counted = _counted_in(start, step, size, chosen) if whole else dtypes.float64
    numbers = iota(size, counted, where)
    scaled = numbers * step if step != 1 else numbers
    if not isinstance(start, int | float) or start != 0:
        scaled = scaled + numbers.full(start)
    return _made(cls, scaled.cast(chosen), requires_grad)


@method
def linspace(
    cls: type[Tensor],
    /,
    start: float,
    stop: float,
    steps: int,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """`steps` numbers from start to stop, both included.

    >>> from ferrule import Tensor
    >>> Tensor.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if steps < 0:
        raise ShapeError(f"[linspace] the number of steps is at least 0, not {steps}")
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    where = to_device(device)
    start, stop = (python_number(x, "[linspace] ends are numbers") for x in (start, stop))
    if steps < 2:
        return cls.full((steps,), start, where, chosen, requires_grad)
    numbers = iota(steps, dtypes.float64, where)
    scaled = numbers * ((stop - start) / (steps - 1)) + start
    last = numbers.equals(steps - 1).where(scaled.full(stop), scaled)
    return _made(cls, last.cast(chosen), requires_grad)


@method
def eye(
    cls: type[Tensor],
    /,
    n: int,
    m: int | None = None,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Ones on the diagonal of an n x m matrix, zeros elsewhere.

    >>> from ferrule import Tensor
    >>> Tensor.eye(2, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    n, columns = plain(n), plain(n if m is None else m)
    _shape((n, columns), "eye")
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    where = to_device(device)
    size = min(n, columns)
    square = diagonal_matrix(TracedValue(LazyBuffer.const(1, chosen, (size,), where)))
    return _made(cls, square.pad(((0, n - size), (0, columns - size))), requires_grad)


@method
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros above a diagonal of the last two axes.

    >>> from ferrule import Tensor
    >>> Tensor.ones(2, 2, dtype="int32").tril().tolist()
    [[1, 0], [1, 1]]
    """
    value = self._read()
    zero = value.full(0)
    return self._wrap(_above(self, diagonal + 1, "tril").where(zero, value))


@method
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros below a diagonal of the last two axes.

    >>> from ferrule import Tensor
    >>> Tensor.ones(2, 2, dtype="int32").triu().tolist()
    [[1, 1], [0, 1]]
    """
    value = self._read()
    return self._wrap(_above(self, diagonal, "triu").where(value, 0))


def _above(self: Tensor, diagonal: int, what: str) -> TracedValue:
    """Where the column is at least the row + diagonal."""
    if len(self._shape) < 2:
        raise ShapeError(f"[{what}] shape {self._shape} has less than two axes")
    return above(self._shape, diagonal, self.device)


@method
def meshgrid(
    self: Tensor | Sequence[Tensor], *others: Any, indexing: str = "ij"
) -> tuple[Tensor, ...]:
    """The coordinates of a grid whose axes are given by this and other vectors, or one list.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    one_of(indexing, ("ij", "xy"), "[meshgrid] indexing")
    vectors = tensors_of(self, others, "meshgrid")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = [1, 0]
    shape = [prod_sint(vectors[place]._shape) for place in order]
    grids = []
    for place, vector in enumerate(vectors):
        own = [-1 if axis == order.index(place) else 1 for axis in range(len(vectors))]
        grids.append(vector.reshape(own).expand(shape))
    return tuple(grids)


# -- random numbers ------------------------------------------------------------------------------


@method
def manual_seed(seed: int = 0) -> None:
    """Starts the random numbers of all devices anew; equal seeds give equal numbers.

    >>> from ferrule import Tensor
    >>> Tensor.manual_seed(1)
    """
    seed_devices(seed)


@method
def rand(
    cls: type[Tensor],
    /,
    *shape: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Uniform random numbers in [0, 1).

    >>> from ferrule import Tensor
    >>> x = Tensor.rand(100)
    >>> bool((x >= 0).all() & (x < 1).all())
    True
    """
    chosen = _float_dtype(dtype, "rand")
    words = random_words(_shape(shape, "rand"), to_device(device))
    return _made(cls, uniform_from(words, chosen), requires_grad)


@method
def rand_like(self: Tensor, dtype: DTypeLike | None = None, **kwargs: Any) -> Tensor:
    """Uniform random numbers in [0, 1) with this tensor's shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).rand_like().shape
    (2,)
    """
    kwargs.setdefault("device", self.device)
    return self.rand(self._shape, dtype=dtype or self.dtype, **kwargs)


@method
def randn(
    cls: type[Tensor],
    /,
    *shape: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Normally distributed random numbers with mean 0 and standard deviation 1.

    >>> from ferrule import Tensor
    >>> Tensor.randn(2, 3).shape
    (2, 3)
    """
    chosen = _float_dtype(dtype, "randn")
    words = random_words(_shape(shape, "randn"), to_device(device))
    wide = dtypes.float64 if chosen is dtypes.float64 else dtypes.float32
    # Box and Muller: a radius from a number in (0, 1], an angle from the second word.
    radius = special.log((words[0].cast(wide) + 1.0) * 2.0**-32) * -2.0
    angle = uniform_from((words[1], words[1]), dtypes.float32).cast(wide) * (2 * math.pi)
    normal = radius.alu(UnaryOps.SQRT) * special.cos(angle)
    return _made(cls, normal.cast(chosen), requires_grad)


@method
def randn_like(self: Tensor, dtype: DTypeLike | None = None, **kwargs: Any) -> Tensor:
    """Normally distributed random numbers with this tensor's shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).randn_like().shape
    (2,)
    """
    kwargs.setdefault("device", self.device)
    return self.randn(self._shape, dtype=dtype or self.dtype, **kwargs)


@method
def randint(
    cls: type[Tensor],
    /,
    *shape: Any,
    low: int = 0,
    high: int = 10,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Random integers from low to high - 1; int32 unless told otherwise.

    PyTorch's `randint(high, size)` and `randint(low, high, size)` are taken as well: `size` is
    a tuple or a list, behind one or two numbers.

    >>> from ferrule import Tensor
    >>> x = Tensor.randint(100, low=-2, high=3)
    >>> x.min().item() >= -2, x.max().item() <= 2
    (True, True)
    >>> Tensor.randint(5, 6, (2, 2)).tolist()
    [[5, 5], [5, 5]]
    """
    if len(shape) in (2, 3) and isinstance(shape[-1], list | tuple):
        *bounds, shape = shape
        low, high = [0, *bounds][-2:]
    low, high = (python_number(x, "[randint] bounds are numbers") for x in (low, high))
    chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
    if not dtypes.is_int(chosen):
        raise DTypeError(f"[randint] gives integers, not {chosen}; cast the result")
    if not low < high:
        raise ValueError(f"[randint] low {low} is not below high {high}")
    if low < dtypes.min(chosen) or high - 1 > dtypes.max(chosen):
        raise OverflowError(f"[randint] {low} to {high - 1} do not fit {chosen}")
    first, second = random_words(_shape(shape, "randint"), to_device(device))
    word = first.cast(dtypes.uint64)
    if high - low <= 1 << 32:
        scaled = (word * (high - low)).alu(BinaryOps.SHR, word.full(32))
    else:
        joined = word.alu(BinaryOps.SHL, word.full(32))
        joined = joined.alu(BinaryOps.OR, second.cast(dtypes.uint64))
        scaled = joined.alu(BinaryOps.MOD, joined.full(high - low))
    offset = scaled.cast(dtypes.int64) + _signed(low)
    return _made(cls, offset.cast(chosen), requires_grad)


@method
def uniform(
    cls: type[Tensor], /, *shape: Any, low: float = 0.0, high: float = 1.0, **kwargs: Any
) -> Tensor:
    """Uniform random numbers in [low, high); takes the keyword arguments of `rand`.

    >>> from ferrule import Tensor
    >>> Tensor.uniform(2, 3, low=-1, high=1).shape
    (2, 3)
    """
    if low > high:
        raise ValueError(f"[uniform] low {low} is above high {high}; swap them")
    requires_grad = kwargs.pop("requires_grad", None)
    dtype = kwargs.pop("dtype", None)
    wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
    drawn = wanted if dtypes.is_float(wanted) else dtypes.default_float
    value = cls.rand(*shape, dtype=drawn, **kwargs)._read()
    return _made(cls, (value * (high - low) + low).cast(wanted), requires_grad)


@method
def normal(
    cls: type[Tensor], /, *shape: Any, mean: float = 0.0, std: float = 1.0, **kwargs: Any
) -> Tensor:
    """Normally distributed random numbers; takes the keyword arguments of `randn`.

    >>> from ferrule import Tensor
    >>> Tensor.normal(2, 3, mean=10, std=0.1).shape
    (2, 3)
    """
    if std < 0:
        raise ValueError(f"[normal] the standard deviation std is at least 0, not {std}")
    requires_grad = kwargs.pop("requires_grad", None)
    value = cls.randn(*shape, **kwargs)._read()
    return _made(cls, value * std + mean, requires_grad)


@method
def scaled_uniform(cls: type[Tensor], /, *shape: Any, **kwargs: Any) -> Tensor:
    """Uniform in [-1, 1) over the square root of the number of elements.

    >>> from ferrule import Tensor
    >>> bool((Tensor.scaled_uniform(4, 4).abs() <= 0.25).all())
    True
    """
    bound = _elements(_shape(shape, "scaled_uniform")) ** -0.5
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)


@method
def glorot_uniform(cls: type[Tensor], /, *shape: Any, **kwargs: Any) -> Tensor:
    """Glorot's uniform initialisation: the bound is sqrt(6 / (fan in + fan out)).

    >>> from ferrule import Tensor
    >>> Tensor.glorot_uniform(4, 4).shape
    (4, 4)
    """
    sizes = _shape(shape, "glorot_uniform")
    bound = (6 / max(_elements(sizes[:1]) + _elements(sizes[1:]), 1)) ** 0.5
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)


@method
def kaiming_uniform(cls: type[Tensor], /, *shape: Any, a: float = 0.01, **kwargs: Any) -> Tensor:
    """He's uniform initialisation for a leaky_relu of slope `a`.

    >>> from ferrule import Tensor
    >>> Tensor.kaiming_uniform(4, 4).shape
    (4, 4)
    """
    bound = 3**0.5 * _kaiming_std(_shape(shape, "kaiming_uniform"), a)
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)


@method
def kaiming_normal(cls: type[Tensor], /, *shape: Any, a: float = 0.01, **kwargs: Any) -> Tensor:
    """He's normal initialisation for a leaky_relu of slope `a`.

    >>> from ferrule import Tensor
    >>> Tensor.kaiming_normal(4, 4).shape
    (4, 4)
    """
    return cls.normal(*shape, std=_kaiming_std(_shape(shape, "kaiming_normal"), a), **kwargs)


def _counted_in(start: sint, step: Any, size: sint, chosen: DType) -> DType:
    """An integer type that holds start, start + step, …, as the chosen type does.

    Raises `OverflowError` if that is an integer type, and does not.
    """
    if isinstance(start, Expr) or isinstance(size, Expr):
        wide = chosen.itemsize > 4 and not dtypes.is_float(chosen)
        return chosen if wide else dtypes.int32
    ends = (start, start + (size - 1) * step)
    if dtypes.is_int(chosen):
        for end in ends:
            check_range(end, chosen)
    enough = [dtype for dtype in _COUNTERS if _holds(dtype, min(ends), max(*ends, size))]
    return enough[0] if enough else dtypes.float64


def _holds(dtype: DType, low: int, high: int) -> bool:
    return dtypes.min(dtype) <= low and high <= dtypes.max(dtype)


def _signed(number: int) -> int:
    """A number as int64 holds it."""
    return int(np.array(number & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(np.int64))


def _elements(shape: Shape) -> int:
    size = prod_sint(shape)
    return size if isinstance(size, int) else size.max


def _kaiming_std(shape: Shape, a: float) -> float:
    return math.sqrt(2 / (1 + a**2) / max(_elements(shape[1:]), 1))
