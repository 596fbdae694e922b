"""ASTs that the compiler's tests share, with NumPy's answer for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ferrule.codegen.intrinsics import MatrixIntrinsic
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    ConstBuffer,
    LazyOp,
    MemBuffer,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)

Array = np.ndarray
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Case:
    """An AST, the shapes of its inputs (buffers 1, 2, ...), and the expected result."""

    name: str
    ast: LazyOp
    inputs: tuple[tuple[int, ...], ...]
    expected: Callable[..., Array]


def load(index: int, *shape: sint, dtype: DType = dtypes.float32) -> LazyOp:
    return LazyOp(BufferOps.LOAD, (), MemBuffer(index, dtype, ShapeTracker.from_shape(shape)))


def sizes(x: LazyOp) -> tuple[int, ...]:
    """A shape without variables."""
    return tuple(int(size) for size in x.shape)


def constant(value: float, shape: tuple[sint, ...], dtype: DType = dtypes.float32) -> LazyOp:
    st = ShapeTracker.from_shape((1,) * len(shape)).expand(shape)
    return LazyOp(BufferOps.CONST, (), ConstBuffer(value, dtype, st))


def store(value: LazyOp, index: int = 0) -> LazyOp:
    st = ShapeTracker.from_shape(value.shape)
    return LazyOp(BufferOps.STORE, (value,), MemBuffer(index, value.dtype, st))


def add(a: LazyOp, b: LazyOp) -> LazyOp:
    return LazyOp(BinaryOps.ADD, (a, b))


def sub(a: LazyOp, b: LazyOp) -> LazyOp:
    return LazyOp(BinaryOps.SUB, (a, b))


def widened(x: LazyOp) -> LazyOp:
    return LazyOp(UnaryOps.CAST, (x,), dtypes.float32)


def as_multiplied(x: Array, by: MatrixIntrinsic) -> Array:
    """What an instruction for matrices multiplies of an operand, in float64: all of its bits, or
    11, the first of which is not stored, with halves away from zero.
    """
    wide = x.astype(np.float64)
    if not by.rounds:
        return wide
    fraction, exponent = np.frexp(wide)
    return np.ldexp(np.trunc(fraction * 2**11 + np.copysign(0.5, fraction)), exponent - 11)


def mul(a: LazyOp, b: LazyOp) -> LazyOp:
    return LazyOp(BinaryOps.MUL, (a, b))


def exp(x: LazyOp) -> LazyOp:
    return LazyOp(UnaryOps.EXP2, (mul(x, constant(LOG2_E, x.shape)),))


def reduce(op: ReduceOps, x: LazyOp, *axes: int) -> LazyOp:
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return LazyOp(op, (x,), shape)


def total(x: LazyOp, *axes: int) -> LazyOp:
    return reduce(ReduceOps.SUM, x, *axes)


def softmax(x: LazyOp, axis: int) -> LazyOp:
    largest = reduce(ReduceOps.MAX, x, axis).expand(x.shape)
    powers = exp(sub(x, largest))
    inverse = LazyOp(UnaryOps.RECIP, (total(powers, axis),))
    return mul(powers, inverse.expand(x.shape))


def layernorm(x: LazyOp) -> LazyOp:
    rows, columns = x.shape
    scale = constant(1 / columns, (rows, 1))
    centred = sub(x, mul(total(x, 1), scale).expand(x.shape))
    variance = mul(total(mul(centred, centred), 1), scale)
    deviation = LazyOp(UnaryOps.SQRT, (add(variance, constant(1e-5, (rows, 1))),))
    return mul(centred, LazyOp(UnaryOps.RECIP, (deviation,)).expand(x.shape))


def matmul(a: LazyOp, b: LazyOp) -> LazyOp:
    rows, inner = a.shape
    columns = b.shape[1]
    left = a.reshape((rows, 1, inner)).expand((rows, columns, inner))
    right = b.permute((1, 0)).reshape((1, columns, inner)).expand((rows, columns, inner))
    return total(mul(left, right), 2).reshape((rows, columns))


def convolution(x: LazyOp, w: LazyOp) -> LazyOp:
    """3x3, padding 1, on (batch, channels, height, width) and (filters, channels, 3, 3)."""
    batch, channels, height, width = x.shape
    filters = w.shape[0]
    padded = x.pad(((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = padded.window(2, 3).window(3, 3)
    full = (batch, filters, channels, height, width, 3, 3)
    left = windows.reshape((batch, 1, channels, height, width, 3, 3)).expand(full)
    right = w.reshape((1, filters, channels, 1, 1, 3, 3)).expand(full)
    return total(mul(left, right), 2, 5, 6).reshape((batch, filters, height, width))


def adjoint(g: LazyOp, w: LazyOp, stride: int, padding: int) -> LazyOp:
    """Of a convolution with the filters (filters, channels, k, k), or (1, channels, k, k) of its
    own for each channel: what (batch, filters, out, out), or (batch, channels, out, out), adds to
    the image.
    """
    batch, filters, out, _ = g.shape
    own, channels, taps, _ = w.shape
    summed = filters if own > 1 else 1
    full = (batch, summed, channels, out, out, taps, taps)
    left = g.reshape((batch, summed, 1 if own > 1 else channels, out, out, 1, 1)).expand(full)
    right = w.reshape((1, own, channels, 1, 1, taps, taps)).expand(full)
    size = (out - 1) * stride + taps
    product = mul(left, right) if summed == 1 else total(mul(left, right), 1)
    columns = product.reshape((batch, channels, out, out, taps, taps)).unwindow(3, size, stride)
    lines = total(columns, 5).reshape((batch, channels, out, size, taps)).unwindow(2, size, stride)
    whole = total(lines, 4).reshape((batch, channels, size, size))
    kept = (padding, size - padding)
    return whole.shrink(((0, batch), (0, channels), kept, kept))


def dot_products(a: LazyOp, b: LazyOp) -> LazyOp:
    """Sums over the first and the last axis: the gradient of a 1x1 convolution's weights."""
    batch, rows, size = a.shape
    columns = b.shape[1]
    full = (batch, rows, columns, size)
    left = a.reshape((batch, rows, 1, size)).expand(full)
    right = b.reshape((batch, 1, columns, size)).expand(full)
    return total(mul(left, right), 0, 3).reshape((rows, columns))


def stage(x: LazyOp, *axes: int) -> LazyOp:
    return LazyOp(BufferOps.STAGE, (x,), axes)


def attention(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """Scores, powers and weights are stages, in blocks of rows."""
    scores = stage(matmul(q, k.permute((1, 0))), 1)
    powers = stage(exp(sub(scores, reduce(ReduceOps.MAX, scores, 1).expand(scores.shape))), 1)
    inverse = LazyOp(UnaryOps.RECIP, (total(powers, 1),))
    return matmul(stage(mul(powers, inverse.expand(powers.shape)), 1), v)


def causal_attention(q: LazyOp, k: LazyOp, v: LazyOp) -> LazyOp:
    """As above, with a mask that is a condition on the indices of row and column."""
    rows, columns = q.shape[0], k.shape[0]
    ones = constant(1, (rows,), dtypes.bool).pad(((columns - 1, 0),))
    seen = ones.window(0, columns).stride((1, -1))
    scores = matmul(q, k.permute((1, 0)))
    low = constant(-1e30, scores.shape)
    scores = stage(LazyOp(TernaryOps.WHERE, (seen, scores, low)), 1)
    powers = stage(exp(sub(scores, reduce(ReduceOps.MAX, scores, 1).expand(scores.shape))), 1)
    inverse = LazyOp(UnaryOps.RECIP, (total(powers, 1),)).expand(powers.shape)
    nothing = constant(0, scores.shape)
    return matmul(stage(LazyOp(TernaryOps.WHERE, (seen, mul(powers, inverse), nothing)), 1), v)


def narrow_attention(dtype: DType, rows: int, terms: int, depth: int, columns: int) -> LazyOp:
    """Scores and weights are rounded to a narrow float, as tensors of it are."""
    shapes = ((rows, depth), (terms, depth), (terms, columns))
    q, k, v = (widened(load(i, *s, dtype=dtype)) for i, s in enumerate(shapes, 1))
    product = matmul(q, k.permute((1, 0)))
    scores = stage(widened(LazyOp(UnaryOps.CAST, (product,), dtype)), 1)
    powers = stage(exp(sub(scores, reduce(ReduceOps.MAX, scores, 1).expand(scores.shape))), 1)
    inverse = LazyOp(UnaryOps.RECIP, (total(powers, 1),)).expand(powers.shape)
    weights = LazyOp(UnaryOps.CAST, (mul(powers, inverse),), dtype)
    return store(matmul(stage(widened(weights), 1), v))


def log_of_sums(scores: LazyOp) -> LazyOp:
    """The logarithm of the sum of powers of each row of scores, which are a stage."""
    staged = stage(scores, 1)
    largest = reduce(ReduceOps.MAX, staged, 1)
    powers = total(exp(sub(staged, largest.expand(staged.shape))), 1)
    scale = constant(1 / LOG2_E, powers.shape)
    return add(mul(LazyOp(UnaryOps.LOG2, (powers,)), scale), largest)


def no_later(shape: tuple[int, ...]) -> LazyOp:
    """Where the column is not above the row, as a condition on indices."""
    rows, columns = shape
    ones = constant(1, (rows,), dtypes.bool).pad(((columns - 1, 0),))
    return ones.window(0, columns).stride((1, -1))


def masked_scores(q: LazyOp, k: LazyOp, causal: bool = False) -> LazyOp:
    """The products of rows of two matrices, or a very low number."""
    scores = matmul(q, k.permute((1, 0)))
    if not causal:
        return scores
    low = constant(-1e30, scores.shape)
    return LazyOp(TernaryOps.WHERE, (no_later(sizes(scores)), scores, low))


@dataclass(frozen=True)
class AttentionGradients:
    """What the gradients of attention are made of, as tensors of one dtype are; each gradient
    has what it needs of weights or slopes as a stage, in blocks of its own rows.

    Buffers 1 to 6 are query, key, value, gradient, the logarithm of each row's sum and the mean.
    """

    rows: int
    terms: int
    depth: int
    dtype: DType = dtypes.float32
    causal: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the buffers."""
        n, m, d = self.rows, self.terms, self.depth
        return ((n, d), (m, d), (m, d), (n, d), (n, 1), (n, 1))

    def _load(self, slot: int) -> LazyOp:
        found = load(slot, *self.shapes[slot - 1], dtype=self.dtype if slot < 5 else dtypes.float32)
        return found if found.dtype is dtypes.float32 else widened(found)

    def _rounded(self, x: LazyOp) -> LazyOp:
        if self.dtype is dtypes.float32:
            return x
        return widened(LazyOp(UnaryOps.CAST, (x,), self.dtype))

    def _weights(self) -> LazyOp:
        scores = masked_scores(self._load(1), self._load(2), self.causal)
        powers = exp(sub(scores, self._load(5).expand(scores.shape)))
        if not self.causal:
            return powers
        nothing = constant(0, powers.shape)
        return LazyOp(TernaryOps.WHERE, (no_later((self.rows, self.terms)), powers, nothing))

    def _slope(self) -> LazyOp:
        slope = matmul(self._load(4), self._load(3).permute((1, 0)))
        return mul(self._weights(), sub(slope, self._load(6).expand(slope.shape)))

    def query(self) -> LazyOp:
        """The gradient of the query."""
        return store(matmul(stage(self._rounded(self._slope()), 1), self._load(2)))

    def key(self) -> LazyOp:
        """The gradient of the key."""
        slope = stage(self._rounded(self._slope()), 0)
        return store(matmul(slope.permute((1, 0)), self._load(1)))

    def value(self) -> LazyOp:
        """The gradient of the value."""
        weights = stage(self._rounded(self._weights()), 0)
        return store(matmul(weights.permute((1, 0)), self._load(4)))

    def inputs(self) -> tuple[Array, ...]:
        """Random operands, and what belongs to them of each row."""
        generator = np.random.default_rng(7)
        operands = [generator.standard_normal(s).astype(self.dtype.np) for s in self.shapes[:4]]
        operands[1] /= np.asarray(np.sqrt(self.depth), self.dtype.np)
        scores = self._numpy_scores(*operands[:2])
        number = np.log(np.exp(scores).sum(1, keepdims=True))
        v, g = (x.astype(np.float64) for x in operands[2:])
        mean = (np.exp(scores - number) @ v * g).sum(1, keepdims=True)
        return (*operands, number.astype(np.float32), mean.astype(np.float32))

    def _numpy_scores(self, q: Array, k: Array) -> Array:
        scores = q.astype(np.float64) @ k.astype(np.float64).T
        return np.where(np.tril(np.ones_like(scores)), scores, -np.inf) if self.causal else scores

    def expected(self) -> dict[str, Array]:
        """The gradients, by name."""
        *operands, number, mean = self.inputs()
        q, k, v, g = (x.astype(np.float64) for x in operands)
        weights = np.exp(self._numpy_scores(q, k) - number)
        slope = weights * (g @ v.T - mean)
        return {"query": slope @ k, "key": slope.T @ q, "value": weights.T @ g}


def positions(x: LazyOp) -> LazyOp:
    return LazyOp(UnaryOps.CAST, (x,), dtypes.int32)


def numpy_gather(x: Array, places: Array) -> Array:
    """Elements at truncated positions along the second axis, 0 where there is none."""
    places = places.astype(np.int32)
    inside = (places >= 0) & (places < x.shape[1])
    return np.where(inside, np.take_along_axis(x, np.where(inside, places, 0), 1), 0)


def numpy_scatter(values: Array, places: Array, rows: int) -> Array:
    """Sums of the elements that have the same truncated position along the first axis."""
    out = np.zeros((rows, values.shape[1]), values.dtype)
    for row, column in np.ndindex(*values.shape):
        place = int(places[row, column])
        if 0 <= place < rows:
            out[place, column] += values[row, column]
    return out


def running(op: ReduceOps, x: LazyOp, axis: int, neutral: float) -> LazyOp:
    """Each element of an axis combined with all before it, as reduces over windows."""
    size = sizes(x)[axis]
    none = ((0, 0),) * len(x.shape)
    pads = (*none[:axis], (size - 1, 0), *none[axis + 1 :])
    filled = padded(x, pads, neutral)
    return reduce(op, filled.window(axis, size), len(x.shape)).reshape(x.shape)


def padded(x: LazyOp, pads: tuple[tuple[int, int], ...], number: float) -> LazyOp:
    """Padded with zeros, or another number."""
    wide = x.pad(pads)
    if number == 0:
        return wide
    inside = constant(True, x.shape, dtypes.bool).pad(pads)
    return LazyOp(TernaryOps.WHERE, (inside, wide, constant(number, wide.shape)))


def largest_in_windows(x: LazyOp) -> LazyOp:
    """Windows of 3x3, two apart, over images with a border."""
    wide = padded(x, ((0, 0), (1, 1), (1, 1)), -math.inf)
    windows = wide.window(1, 3, 2).window(2, 3, 2)
    return reduce(ReduceOps.MAX, windows, 3, 4)


def numpy_largest_in_windows(x: Array) -> Array:
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-math.inf)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))[:, ::2, ::2]
    return np.asarray(windows.max((3, 4)))[..., None, None]


def joined(a: LazyOp, b: LazyOp) -> LazyOp:
    """One after the other along the last axis."""
    before, after = a.shape[-1], b.shape[-1]
    none = ((0, 0),) * (len(a.shape) - 1)
    is_second = constant(True, b.shape, dtypes.bool).pad((*none, (before, 0)))
    parts = (is_second, b.pad((*none, (before, 0))), a.pad((*none, (0, after))))
    return LazyOp(TernaryOps.WHERE, parts)


def products(a: LazyOp, b: LazyOp) -> LazyOp:
    """Matrix products along the first axis."""
    batch, rows, inner = a.shape
    columns = b.shape[2]
    full = (batch, rows, columns, inner)
    left = a.reshape((batch, rows, 1, inner)).expand(full)
    right = b.permute((0, 2, 1)).reshape((batch, 1, columns, inner)).expand(full)
    return total(mul(left, right), 3).reshape((batch, rows, columns))


def chain_with_sums(x: LazyOp, w: LazyOp, u: LazyOp, g: LazyOp) -> LazyOp:
    """`h = tril(exp(x @ w))` and `s = h * (g @ u.T)` in blocks of rows; stored are `s @ u`, and
    the sums over rows `h.T @ g` and `s.T @ x`.
    """
    (batch, rows, _), columns = sizes(x), sizes(w)[2]
    ones = constant(1, (rows,), dtypes.bool).pad(((columns - 1, 0),))
    seen = ones.window(0, columns).stride((1, -1)).reshape((1, rows, columns))
    seen = seen.expand((batch, rows, columns))
    powers = exp(mul(products(x, w), constant(0.2, seen.shape)))
    staged = stage(LazyOp(TernaryOps.WHERE, (seen, powers, constant(0, seen.shape))), 2)
    scaled = stage(mul(staged, products(g, u.permute((0, 2, 1)))), 2)
    sums = (products(staged.permute((0, 2, 1)), g), products(scaled.permute((0, 2, 1)), x))
    stores = [store(value, i) for i, value in enumerate((products(scaled, u), *sums))]
    return LazyOp(BufferOps.SINK, tuple(stores))


def numpy_chain_with_sums(x: Array, w: Array, u: Array, g: Array) -> list[Array]:
    kept = np.tril(np.exp(0.2 * (x @ w)))
    scaled = kept * (g @ u.swapaxes(1, 2))
    return [scaled @ u, kept.swapaxes(1, 2) @ g, scaled.swapaxes(1, 2) @ x]


CHAIN_SHAPES = ((3, 37, 12), (3, 12, 40), (3, 40, 9), (3, 37, 9))
CHAIN_WITH_SUMS = chain_with_sums(*(load(i, *s) for i, s in enumerate(CHAIN_SHAPES, 3)))


def numpy_causal_attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.T
    return numpy_softmax(np.where(np.tril(np.ones(scores.shape)), scores, -np.inf), 1) @ v


def numpy_softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def numpy_layernorm(x: Array) -> Array:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def numpy_convolution(x: Array, w: Array) -> Array:
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], height, width), x.dtype)
    for ky in range(3):
        for kx in range(3):
            part = padded[:, :, ky : ky + height, kx : kx + width]
            out += np.einsum("ncyx,fc->nfyx", part, w[:, :, ky, kx])
    return out


def numpy_adjoint(g: Array, w: Array, stride: int, padding: int) -> Array:
    """Each result laid over the image, times the filters."""
    batch, out, taps = g.shape[0], g.shape[2], w.shape[2]
    size = (out - 1) * stride + taps
    whole = np.zeros((batch, w.shape[1], size, size), g.dtype)
    for ky in range(taps):
        for kx in range(taps):
            filters = w[:, :, ky, kx]
            if len(w) == 1:
                part = g * filters[:, :, None, None]
            else:
                part = np.einsum("nfyx,fc->ncyx", g, filters)
            whole[:, :, ky : ky + out * stride : stride, kx : kx + out * stride : stride] += part
    return whole[:, :, padding : size - padding, padding : size - padding]


def _outer_of_sums() -> LazyOp:
    sums = total(load(1, 5, 8), 1)
    return mul(sums.expand((5, 5)), sums.permute((1, 0)).expand((5, 5)))


CASES = [
    Case("add", store(add(load(1, 7, 33), load(2, 7, 33))), ((7, 33), (7, 33)), np.add),
    Case(
        "add_row",
        store(add(load(1, 7, 33), load(2, 1, 33).expand((7, 33)))),
        ((7, 33), (1, 33)),
        np.add,
    ),
    Case("transpose", store(load(1, 20, 13).permute((1, 0))), ((20, 13),), lambda x: x.T),
    Case("long", store(add(load(1, 60001), load(2, 60001))), ((60001,), (60001,)), np.add),
    Case(
        "pad_exp",
        store(exp(load(1, 5)).pad(((2, 3),))),
        ((5,),),
        lambda x: np.pad(np.exp(x), (2, 3)),
    ),
    Case(
        "pad_sum",
        store(total(load(1, 5, 6), 1).pad(((2, 3), (0, 0)))),
        ((5, 6),),
        lambda x: np.pad(x.sum(1, keepdims=True), ((2, 3), (0, 0))),
    ),
    Case("sum_rows", store(total(load(1, 9, 77), 1)), ((9, 77),), lambda x: x.sum(1)),
    Case("sum_columns", store(total(load(1, 77, 35), 0)), ((77, 35),), lambda x: x.sum(0)),
    Case("sum_all", store(total(load(1, 9, 31), 0, 1)), ((9, 31),), lambda x: x.sum()),
    Case("softmax", store(softmax(load(1, 6, 100), 1)), ((6, 100),), lambda x: numpy_softmax(x, 1)),
    Case(
        "softmax_columns",
        store(softmax(load(1, 30, 40), 0)),
        ((30, 40),),
        lambda x: numpy_softmax(x, 0),
    ),
    Case("layernorm", store(layernorm(load(1, 5, 130))), ((5, 130),), numpy_layernorm),
    Case(
        "outer_of_sums", store(_outer_of_sums()), ((5, 8),), lambda x: np.outer(x.sum(1), x.sum(1))
    ),
    Case(
        "matmul",
        store(matmul(load(1, 13, 35), load(2, 35, 70))),
        ((13, 35), (35, 70)),
        np.matmul,
    ),
    Case(
        "matmul_transposed",
        store(matmul(load(1, 29, 40), load(2, 66, 40).permute((1, 0)))),
        ((29, 40), (66, 40)),
        lambda a, b: a @ b.T,
    ),
    Case(
        "dot_products",
        store(dot_products(load(1, 2, 9, 410), load(2, 2, 6, 410))),
        ((2, 9, 410), (2, 6, 410)),
        lambda a, b: np.einsum("nik,njk->ij", a, b),
    ),
    Case(
        "convolution",
        store(convolution(load(1, 2, 3, 9, 9), load(2, 5, 3, 3, 3))),
        ((2, 3, 9, 9), (5, 3, 3, 3)),
        numpy_convolution,
    ),
    Case(
        "attention",
        store(attention(load(1, 37, 12), load(2, 21, 12), load(3, 21, 20))),
        ((37, 12), (21, 12), (21, 20)),
        lambda q, k, v: numpy_softmax(q @ k.T, 1) @ v,
    ),
    Case(
        "causal_attention",
        store(causal_attention(load(1, 37, 12), load(2, 40, 12), load(3, 40, 20))),
        ((37, 12), (40, 12), (40, 20)),
        numpy_causal_attention,
    ),
    Case(
        "gather",
        store(load(1, 9, 7).gather(positions(load(2, 9, 3)), 1)),
        ((9, 7), (9, 3)),
        numpy_gather,
    ),
    Case(
        "sum_of_gathered",
        store(total(load(1, 5, 7).gather(positions(load(2, 5, 37)), 1), 1)),
        ((5, 7), (5, 37)),
        lambda x, places: numpy_gather(x, places).sum(1),
    ),
    Case(
        "gathered_running_sums",
        store(
            running(ReduceOps.SUM, load(1, 12), 0, 0)
            .reshape((3, 4))
            .gather(positions(load(2, 1, 2)).expand((3, 2)), 1)
        ),
        ((12,), (1, 2)),
        lambda x, places: numpy_gather(np.cumsum(x).reshape(3, 4), places.repeat(3, 0)),
    ),
    Case(
        "scatter",
        store(
            LazyOp(ReduceOps.SCATTER, (load(1, 9, 21), positions(load(2, 9, 21))), (0, 3)),
        ),
        ((9, 21), (9, 21)),
        lambda values, places: numpy_scatter(values, places, 3),
    ),
    Case(
        "scatter_rows",
        store(
            LazyOp(
                ReduceOps.SCATTER,
                (load(1, 9, 21), positions(load(2, 9, 1)).expand((9, 21))),
                (0, 3),
            ),
        ),
        ((9, 21), (9, 1)),
        lambda values, places: numpy_scatter(values, places.repeat(21, 1), 3),
    ),
    Case(
        "sum_pixels",
        store(total(load(1, 1, 171, 3), 1)),
        ((1, 171, 3),),
        lambda x: x.sum(1),
    ),
    Case(
        "sums_of_pairs",
        store(total(load(1, 6, 2, 40, 2), 1, 3)),
        ((6, 2, 40, 2),),
        lambda x: x.sum((1, 3), keepdims=True),
    ),
    Case(
        "largest_in_windows",
        store(largest_in_windows(load(1, 3, 15, 75))),
        ((3, 15, 75),),
        numpy_largest_in_windows,
    ),
    Case(
        "every_third",
        store(load(1, 5, 140).shrink(((0, 5), (2, 139))).stride((1, 3))),
        ((5, 140),),
        lambda x: x[:, 2:139:3],
    ),
    Case(
        "each_three_times",
        store(load(1, 75, 1).expand((75, 3)).reshape((225,))),
        ((75, 1),),
        lambda x: x.repeat(3),
    ),
    Case(
        "interleaved",
        store(load(1, 3, 2, 37).permute((1, 2, 0))),
        ((3, 2, 37),),
        lambda x: x.transpose(1, 2, 0),
    ),
    Case(
        "joined",
        store(exp(joined(load(1, 3, 70), load(2, 3, 51)))),
        ((3, 70), (3, 51)),
        lambda a, b: np.exp(np.concatenate([a, b], 1)),
    ),
    Case(
        "joined_in_chunks",
        store(joined(joined(load(1, 17001), load(2, 30000)), load(3, 999))),
        ((17001,), (30000,), (999,)),
        lambda *parts: np.concatenate(parts),
    ),
    Case(
        "running_sums",
        store(add(running(ReduceOps.SUM, load(1, 4, 77), 1, 0), load(2, 4, 77))),
        ((4, 77), (4, 77)),
        lambda x, y: np.cumsum(x, 1) + y,
    ),
    Case(
        "running_sums_of_columns",
        store(running(ReduceOps.SUM, load(1, 40, 2, 37), 0, 0)),
        ((40, 2, 37),),
        lambda x: np.cumsum(x, 0),
    ),
    Case(
        "running_products_in_blocks",
        store(
            running(ReduceOps.PROD, load(1, 5, 44).pad(((0, 0), (0, 22))).reshape((5, 2, 33)), 2, 1)
            .reshape((5, 66))
            .shrink(((0, 5), (0, 44)))
        ),
        ((5, 44),),
        lambda x: np.cumprod(np.pad(x, ((0, 0), (0, 22))).reshape(5, 2, 33), 2).reshape(5, 66)[
            :, :44
        ],
    ),
    Case(
        "running_largest",
        store(running(ReduceOps.MAX, load(1, 9, 50).stride((1, -1)), 1, -math.inf)),
        ((9, 50),),
        lambda x: np.maximum.accumulate(x[:, ::-1], 1),
    ),
]


def make_inputs(case: Case, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(np.float32) for shape in case.inputs]
