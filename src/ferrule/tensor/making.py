"""More ways to make tensors: like another one, from files, spaced by powers, drawn by chance."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

import numpy as np

from ferrule.autograd import Number, TracedValue
from ferrule.autograd.iota import iota
from ferrule.engine.random import continue_stream, random_words, stream_of
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import expanded, known_size
from ferrule.tensor.data import DTypeLike, to_device, to_dtype
from ferrule.tensor.index.positions import in_range
from ferrule.tensor.keywords import method
from ferrule.tensor.math.power import power
from ferrule.tensor.reduce import order

# -- from indices --------------------------------------------------------------------------------


@method
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """Each class index as a row that is 1 there and 0 elsewhere; int32.

    Without `num_classes` it is the largest index + 1, for which the tensor is computed now.

    **An index that is no class gives a row of zeros**, where PyTorch raises: it is known only
    when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([0, 2]).one_hot(3).tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    if dtypes.is_float(self.dtype):
        raise DTypeError(f"[one_hot] class indices are integers, not {self.dtype}")
    classes = _class_count(self) if num_classes == -1 else num_classes
    return self._wrap(is_class(self, classes, "one_hot").cast(dtypes.default_int))


def _class_count(self: Tensor) -> int:
    low, high = (int(part.item()) for part in self.aminmax())
    if low < 0:
        raise IndexError(f"[one_hot] class indices are 0 or more, not {low}")
    return high + 1


def is_class(self: Tensor, classes: int, what: str) -> TracedValue:
    """For each index and class whether they are the same, as a new last axis."""
    value = self._read()
    if dtypes.is_unsigned(value.dtype) or value.dtype.itemsize < 4:
        wide = value.dtype.itemsize > 4 or value.dtype is dtypes.uint32
        value = value.cast(dtypes.int64 if wide else dtypes.int32)
    value = in_range(value, classes, what, len(value.shape))
    shape = (*value.shape, classes)
    numbers = iota(classes, value.dtype, self.device) if classes else value.full(0, (0,))
    return expanded(value, shape, 0).equals(expanded(numbers, shape))


# -- like another --------------------------------------------------------------------------------


def _like(self: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments, with this tensor's dtype and device where none are given."""
    chosen = {"device": self.device, "dtype": self.dtype}
    return chosen | {key: value for key, value in kwargs.items() if value is not None}


@method
def empty_like(self: Tensor, **kwargs: Any) -> Tensor:
    """Memory with this tensor's shape, dtype and device, and no particular contents.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).empty_like().shape
    (1, 2)
    """
    return self.empty(*self._shape, **_like(self, kwargs))


@method
def randint_like(self: Tensor, low: int, high: int | None = None, **kwargs: Any) -> Tensor:
    """Random integers from low to high - 1, or 0 to low - 1, with this shape, dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).randint_like(1).tolist()
    [0, 0]
    """
    first, last = (0, low) if high is None else (low, high)
    chosen = to_dtype(_like(self, kwargs)["dtype"])
    drawn = chosen if dtypes.is_int(chosen) else dtypes.int64
    made = self.randint(
        *self._shape, low=first, high=last, **_like(self, kwargs) | {"dtype": drawn}
    )
    return made.cast(chosen)


@method
def new_tensor(self: Tensor, data: Any, **kwargs: Any) -> Tensor:
    """A tensor of `data` with this tensor's dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).new_tensor([1, 2]).tolist()
    [1.0, 2.0]
    """
    return type(self)(data, **_like(self, kwargs))


@method
def new_empty(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """Memory of another shape with this tensor's dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).new_empty((2, 3)).shape
    (2, 3)
    """
    return self.empty(*size, **_like(self, kwargs))


@method
def new_zeros(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """Zeros of another shape with this tensor's dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1]).new_zeros(2).tolist()
    [0, 0]
    """
    return self.zeros(*size, **_like(self, kwargs))


@method
def new_ones(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """Ones of another shape with this tensor's dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1]).new_ones(2).tolist()
    [1, 1]
    """
    return self.ones(*size, **_like(self, kwargs))


@method
def new_full(self: Tensor, size: Any, fill_value: Number, **kwargs: Any) -> Tensor:
    """One value under another shape with this tensor's dtype and device.

    >>> from ferrule import Tensor
    >>> Tensor([1]).new_full((2,), 7).tolist()
    [7, 7]
    """
    return self.full(size, fill_value, **_like(self, kwargs))


@method
def fill(self: Tensor, value: Any) -> Tensor:
    """A tensor like this one with one value everywhere; a tensor of one element counts as one.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).fill(7).tolist()
    [7, 7]
    """
    if isinstance(value, Tensor):
        if value._shape:
            raise ShapeError(f"[fill] one value is needed, not shape {value._shape}")
        return self._wrap(value._read().cast(self.dtype)).expand(self._shape).clone()
    return self.full_like(value)


# -- in place ------------------------------------------------------------------------------------


@method
def fill_(self: Tensor, value: Any) -> Tensor:
    """Writes one value everywhere, in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).fill_(7).tolist()
    [7, 7]
    """
    return self.assign(value)


@method
def zero_(self: Tensor) -> Tensor:
    """Writes zeros everywhere, in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).zero_().tolist()
    [0, 0]
    """
    return self.assign(0)


@method
def copy_(self: Tensor, src: Any) -> Tensor:
    """PyTorch's name of `assign`.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).copy_(Tensor([3.0, 4.0])).tolist()
    [3, 4]
    """
    return self.assign(src)


# -- from elsewhere ------------------------------------------------------------------------------


@method
def from_file(
    cls: type[Tensor],
    /,
    filename: str | PathLike[str],
    size: int | None = None,
    dtype: DTypeLike | None = None,
    offset: int = 0,
    device: str | None = None,
) -> Tensor:
    """`size` elements of a file from byte `offset` on, or all; a vector, mapped into memory.

    Nothing is read before it is needed, and the file is never written. Raises `ValueError`
    where the file is too short, or its size is no multiple of that of an element.

    >>> import pathlib, tempfile
    >>> from ferrule import Tensor
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "numbers")
    ...     _ = path.write_bytes(bytes([1, 0, 2, 0]))
    ...     Tensor.from_file(path, dtype="int16").tolist()
    [1, 2]
    """
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    shape = None if size is None else (size,)
    if size == 0:
        return cls.zeros(0, dtype=chosen, device=device)
    mapped = np.memmap(fspath(filename), chosen.np, "r", offset, shape)
    return cls.from_numpy(np.asarray(mapped), device)


@method
def scalar_tensor(cls: type[Tensor], /, value: Number, **kwargs: Any) -> Tensor:
    """A tensor without axes, float32 unless told otherwise.

    >>> from ferrule import Tensor
    >>> Tensor.scalar_tensor(3).item()
    3.0
    """
    return cls.full((), value, **{"dtype": dtypes.default_float} | kwargs)


# -- sequences -----------------------------------------------------------------------------------


@method
def logspace(
    cls: type[Tensor],
    /,
    start: float,
    stop: float,
    steps: int,
    base: float = 10.0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """`steps` powers of a base, whose exponents go from start to stop, both included.

    >>> from ferrule import Tensor
    >>> Tensor.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    exponents = cls.linspace(start, stop, steps, device=device, dtype=dtypes.float64)
    powers = exponents._read()
    value = power(powers.full(base), powers) if steps else powers
    if not dtypes.is_float(chosen):
        # The powers of whole exponents are whole, up to the last bit.
        value = (value + value * 2.0**-50) if base > 0 else value
    return cls._wrap(value.cast(chosen))


@method
def tri(
    cls: type[Tensor],
    /,
    n: int,
    m: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """Ones on and below a diagonal of an n x m matrix, zeros above; NumPy's.

    >>> from ferrule import Tensor
    >>> Tensor.tri(2, dtype="int32").tolist()
    [[1, 0], [1, 1]]
    """
    return cls.ones(n, n if m is None else m, dtype=dtype, device=device).tril(k)


# -- by chance -----------------------------------------------------------------------------------


@method
def bernoulli(self: Tensor, p: Any = None) -> Tensor:
    """1 with the probability that each element gives, or p gives for all; else 0.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0]).bernoulli().tolist()
    [0.0, 1.0]
    """
    if p is None and not self.is_floating_point():
        raise DTypeError(f"[bernoulli] probabilities are floats, not {self.dtype}; cast them")
    chances = self if p is None else p
    drawn = self.rand(*self._shape, device=self.device, dtype=dtypes.float32)
    return (drawn < chances).cast(self.dtype)


@method
def get_rng_state(cls: type[Tensor], /, device: str | None = None) -> Tensor:
    """Where the random numbers of a device are: three words, to be saved beside a model.

    >>> from ferrule import Tensor
    >>> state = Tensor.get_rng_state()
    >>> first = Tensor.rand(3).tolist()
    >>> Tensor.set_rng_state(state)
    >>> first == Tensor.rand(3).tolist()
    True
    """
    words = cls._wrap(TracedValue(stream_of(to_device(device)))).numpy()
    return cls(words.copy())


@method
def set_rng_state(state: Tensor, device: str | None = None) -> None:
    """Continues the random numbers of a device from where `get_rng_state` told they were.

    Raises `ValueError` for a tensor that is no such state.

    >>> from ferrule import Tensor
    >>> Tensor.set_rng_state(Tensor.get_rng_state())
    """
    if not isinstance(state, Tensor):
        raise TypeError(f"[set_rng_state] {state!r:.60} is no tensor; see get_rng_state()")
    if state._shape != (3,) or state.dtype != dtypes.uint32:
        raise ValueError(
            f"[set_rng_state] a state is three words of uint32, as get_rng_state() gives them, "
            f"not {state.dtype} of shape {state._shape}"
        )
    continue_stream(to_device(device), state.numpy().copy())


@method
def randperm(
    cls: type[Tensor], /, n: int, device: str | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """The numbers 0 to n - 1 in random order: the order of n random numbers.

    >>> from ferrule import Tensor
    >>> sorted(Tensor.randperm(5).tolist())
    [0, 1, 2, 3, 4]
    """
    chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
    if isinstance(n, int) and n < 0:
        raise ShapeError(f"[randperm] the number of elements is at least 0, not {n}")
    key, _ = random_words((n,), to_device(device))
    return cls._wrap(order.argsort(key).cast(chosen))


@method
def multinomial(self: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Indices along the last axis, drawn with the weights there; int32.

    Without `replacement` no index is drawn twice: the first ones by exponential races. Of
    several, they are sorted.

    Efraimidis, Spirakis: Weighted random sampling with a reservoir (2006).

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 3.0]).multinomial(2, replacement=True).tolist()
    [1, 1]
    """
    if self.ndim not in (1, 2):
        raise ShapeError(
            f"[multinomial] weights are a vector or rows of a matrix, not shape {self._shape}"
        )
    classes = known_size(self._shape[-1], "multinomial")
    if num_samples < 1 or (not replacement and num_samples > classes):
        raise ShapeError(
            f"[multinomial] {num_samples} samples of {classes} classes; draw at least one, "
            "and more than there are with replacement=True only"
        )
    weights = self.detach().cast(dtypes.float32)
    if not replacement:
        times = self.rand(*self._shape, device=self.device)
        races = (weights > 0).where((1 - times).log().neg() / weights, float("inf"))
        if num_samples == 1:
            return races.argmin(-1, keepdim=True).cast(dtypes.default_int)
        return races.argsort(-1)[..., :num_samples].cast(dtypes.default_int)
    totals = weights.cumsum(-1)
    drawn = self.rand(*self._shape[:-1], num_samples, device=self.device)
    # A number below 1 times the total may round up to it.
    below = totals.searchsorted(drawn * _last(totals), right=True)
    last = _last_nonzero((weights > 0).cast(dtypes.int32))
    return below.minimum(last).cast(dtypes.default_int)


def _last(self: Tensor) -> Tensor:
    """The last element of the last axis, which stays."""
    return self.narrow(-1, self._shape[-1] - 1, 1)


def _last_nonzero(self: Tensor) -> Tensor:
    """Where the last element of each row that is not 0 is; the last axis has size 1."""
    size = self._shape[-1]
    numbers = self.arange(size, device=self.device)
    return (self * numbers).max(-1, keepdim=True)
