"""Tables of embeddings: their rows at positions, and sums of several rows."""

from __future__ import annotations

from ferrule.autograd import Gradients, GradNode, Rule, Shape, TracedValue, no_grad, record
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.index.positions import index_value, wrapped
from ferrule.tensor.keywords import method

# What a bag can be, and the reduction that it is.
_MODES = {"sum": "sum", "mean": "mean", "max": "amax"}


@method
def embedding(
    self: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """The rows of a table `weight`, (rows, width), at the positions that this tensor holds.

    The table may be given the other way round, `weight.embedding(positions)`. The row
    `padding_idx` gets no gradient; `scale_grad_by_freq` divides gradients by how often a
    position occurs. Rows used whose norm, of the order `norm_type`, is above `max_norm` are
    first scaled down to it in the table itself.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([1, 0]).embedding(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    ids, table = _ids_and_table(self, weight, "embedding")
    return _rows(self, ids, table, padding_idx, max_norm, norm_type, scale_grad_by_freq)


@method
def embedding_bag(
    self: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of several rows of a table for each bag: (bags, width).

    The positions are (bags, positions), or a vector in which `offsets` say where each bag
    begins; with `include_last_offset` the last of them is the end of the last bag. Rows of
    `padding_idx` do not count, and an empty bag is 0. `per_sample_weights` multiply the rows of
    a sum. The rest is as in `embedding`.

    Raises `ShapeError` for other shapes, `ValueError` for what does not go together.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> table = Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> Tensor([[0, 1], [2, 2]]).embedding_bag(table).tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    >>> Tensor([0, 1, 2]).embedding_bag(table, Tensor([0, 1]), mode="sum").tolist()
    [[1.0, 2.0], [8.0, 10.0]]
    """
    ids, table = _ids_and_table(self, weight, "embedding_bag")
    _check_bags(ids._shape, offsets, mode)
    rows = _rows(self, ids, table, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * _factors(self, per_sample_weights, ids._shape, mode)
    counted = ids.ones_like(dtype=dtypes.bool)
    if padding_idx is not None:
        counted = ids.ne(_row(padding_idx, table))
    if offsets is None:
        return _even_bags(rows, counted, mode)
    return _bags_at(rows, offsets, include_last_offset, counted, mode)


def _ids_and_table(self: Tensor, other: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """The positions and the table as it was given, which may come in either order."""
    ids, table = self, other
    if dtypes.is_float(self.dtype) and not dtypes.is_float(other.dtype):
        ids, table = other, self
    index_value(ids._read(), what)
    if len(table._shape) != 2:
        raise ShapeError(f"[{what}] a table has rows and columns, and {table._shape} is none")
    return ids, table


def _rows(
    self: Tensor,
    ids: Tensor,
    table: Tensor,
    padding_idx: int | None,
    max_norm: float | None,
    norm_type: float,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The rows at positions, with the gradients that are asked for."""
    if max_norm is not None:
        _shorten(self, ids, table, max_norm, norm_type)
    rows = table[ids]
    if scale_grad_by_freq:
        rows = self._wrap(_by_frequency(rows._read(), ids._read(), table._shape[0]))
    if padding_idx is None:
        return rows
    kept = ids.ne(_row(padding_idx, table)).unsqueeze(-1)
    return kept.where(rows, rows.detach())


def _shorten(self: Tensor, ids: Tensor, table: Tensor, max_norm: float, norm_type: float) -> None:
    """Scales those rows of a table down to a norm that are used and longer."""
    own = self._wrap(table._read().detach())
    norm = own.norm(norm_type, 1, keepdim=True)
    rows = table._shape[0]
    places = wrapped(index_value(ids._read()), rows, "embedding", 0)
    places = places.reshape((prod_sint(ids._shape), 1))
    ones = norm._read().full(1, places.shape)
    used = self._wrap(ones.scatter(places, 0, rows, "last")) > 0
    shorter = own * (max_norm / (norm + 1e-7))
    with no_grad():
        table.assign((used & (norm > max_norm)).where(shorter, own))


def _factors(self: Tensor, given: Tensor, shape: Shape, mode: str) -> Tensor:
    """One factor for each position, as a column."""
    if mode != "sum":
        raise ValueError(
            f"[embedding_bag] per_sample_weights are for mode 'sum', not {mode!r}; "
            "multiply the table by them for the others"
        )
    if given._shape != shape:
        raise ShapeError(
            f"[embedding_bag] per_sample_weights of shape {given._shape} for positions of "
            f"shape {shape}; give one for each"
        )
    return given.unsqueeze(-1)


def _even_bags(self: Tensor, counted: Tensor, mode: str) -> Tensor:
    """Rows (bags, positions, width) as one row for each bag."""
    shown = counted.unsqueeze(-1)
    if mode == "max" and self._shape[1] != 0:
        top = shown.where(self, dtypes.min(self.dtype)).max(1)
        return counted.any(1, keepdim=True).where(top, 0)
    total = shown.where(self, 0).sum(1)
    return total / counted.count_nonzero(1, keepdim=True).maximum(1) if mode == "mean" else total


def _bags_at(self: Tensor, offsets: Tensor, has_end: bool, counted: Tensor, mode: str) -> Tensor:
    """Rows (positions, width) as one row for each bag, which begin at offsets."""
    bags = known_size(offsets._shape[0], "embedding_bag") - has_end
    places = self.arange(self._shape[0], device=self.device)
    bag = offsets.searchsorted(places, right=True) - 1
    bag = ((bag >= 0) & counted).where(bag, bags)  # others write nowhere
    empty = self.zeros(bags, self._shape[1], dtype=self.dtype, device=self.device)
    return empty.index_reduce(0, bag, self, _MODES[mode], include_self=False)


def _check_bags(shape: Shape, offsets: Tensor | None, mode: str) -> None:
    if mode not in _MODES:
        raise ValueError(f"[embedding_bag] mode is one of {', '.join(_MODES)}, not {mode!r}")
    if len(shape) not in (1, 2):
        raise ShapeError(
            f"[embedding_bag] positions of shape {shape} are neither (bags, positions) nor a "
            "vector; reshape them"
        )
    if (len(shape) == 1) != (offsets is not None):
        raise ShapeError(
            f"[embedding_bag] positions of shape {shape}: offsets say where the bags in a vector "
            "begin, and those of (bags, positions) have none"
        )
    if offsets is not None and len(offsets._shape) != 1:
        raise ShapeError(f"[embedding_bag] offsets are a vector, not of shape {offsets._shape}")


def _row(place: int, table: Tensor) -> int:
    """The number of a row, counted from the start."""
    return place % known_size(table._shape[0], "embedding")


def _by_frequency(rows: TracedValue, ids: TracedValue, size: sint) -> TracedValue:
    """Rows of a table, whose gradients are divided by how often each occurs."""
    places = wrapped(index_value(ids), size, "embedding", 0).reshape((prod_sint(ids.shape),))
    ones = rows.full(1, places.shape)
    count = ones.scatter(places, 0, size).gather(places, 0).reshape((*ids.shape, 1))
    return record("by frequency", _BY_FREQUENCY, (rows, count), rows.node, None)


def _reverse_by_frequency(grad: TracedValue, entry: GradNode) -> Gradients:
    return grad / entry.saved[0].expand(grad.shape), None


_BY_FREQUENCY = Rule(_reverse_by_frequency, inputs=(1,))
