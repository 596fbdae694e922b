"""Fourier transforms of values, as products by small matrices or as butterflies.

A transform of n = r1 * r2 * … points is one of r1, then one of r2, and so on, in Stockham's order:
what a step has done lies along the lanes of the next, and nothing is sorted. A step is a product of
a matrix of r * r complex numbers by the points. Between two of them each number is turned by its
twiddle factor, a power of the n-th root of one.

Transforms of 128 points and more whose factors are small are sums of a few points at a time
instead: a step loads up to ten, and stores as many results.

Complex numbers are pairs in the last axis, points are in the axis before it; those in front are
rows. An even number of real points is taken for half as many complex ones, whose spectrum is that
of the even points and that of the odd ones, told apart by one pass more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.autograd.concat import concatenated
from ferrule.autograd.iota import table
from ferrule.ir.dtype import DType
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.tensor.algebra.matrices import matrix_product
from ferrule.tensor.broadcast import expanded, part_of

Array: TypeAlias = np.ndarray[Any, Any]
Pair: TypeAlias = tuple[TracedValue, TracedValue]

MOST_POINTS: Final = 1 << 17  # the tables of a transform take some 32 bytes a point
_LARGEST_RADIX: Final = 64
_RADICES: Final = (2, 3, 4, 5, 6, 7, 8, 10)  # of butterflies
_MIN_POINTS_OF_BUTTERFLIES: Final = 128  # a product or two transform fewer
_MAX_DIRECT_POINTS: Final = 96  # real points up to which one product transforms them
_LANES: Final = 8  # pairs in a vector
_FIRST_STEP_COST: Final = 1.5  # times the work of a later step, whose lanes are contiguous
_TWIDDLE_COST: Final = 16  # columns of a product that take as long as the twiddle factors


def can_transform(n: int) -> bool:
    """True if a transform of n points can be made of products by small matrices."""
    return n <= MOST_POINTS and _cheapest(n, 1) is not None


def transformed(x: TracedValue, axis: int, inverse: bool) -> TracedValue:
    """The sums of x[j] exp(-2i pi j k / n), or with + if `inverse`, of pairs along an axis.

    The axis counts from the end, where that of the pairs is.
    """
    n = x.shape[axis]
    assert isinstance(n, int)
    if _has_butterflies(n):
        return _butterflies(x, axis, inverse)
    return moved(_steps(moved(x, axis, -2), inverse, n), -2, axis)


def moved(x: TracedValue, source: int, target: int) -> TracedValue:
    """An axis in another place."""
    axes = list(range(len(x.shape)))
    axes.insert(range(len(axes))[target], axes.pop(source))
    return x.permute(axes)


def halved(x: TracedValue, weighted: bool) -> TracedValue:
    """The transform of real points up to the middle frequency: (…, n) to (…, n // 2 + 1, 2).

    With `weighted` each frequency is multiplied by how often a real signal has it, 1 or 2.
    """
    *rows, n = x.shape
    assert isinstance(n, int)
    count = n // 2 + 1
    if n <= _MAX_DIRECT_POINTS:
        sums = _product(x, _table(_real_matrix, x, n, weighted))
        return sums.reshape((*rows, count, 2))
    if n % 2 == 0:
        pairs = x.reshape((*rows, n // 2, 2))
        if _has_butterflies(n // 2):
            spectrum = _butterflies(pairs, -2, False).contiguous()
            first, others = part_of(spectrum, 0, 1, -2), part_of(spectrum, 1, n // 2, -2)
            pieces = [(first, 0), (others, 1), (first, n // 2)]
        else:  # a part of a product would be computed number by number
            spectrum = _steps(pairs, False, count).contiguous()
            pieces = [(part_of(spectrum, 0, count, -2), 0)]
        combined = [
            _combined(piece, _reversed(piece, -2), start, n, _split_factors, weighted)
            for piece, start in pieces
        ]
        return concatenated(combined, -2)
    spectrum = _steps(x.reshape((*rows, n, 1)), False, count).contiguous()
    spectrum = part_of(spectrum, 0, count, -2)
    return _scaled(spectrum, n) if weighted else spectrum


def unhalved(x: TracedValue, n: int, weighted: bool) -> TracedValue:
    """n real points from frequencies up to the middle: (…, n // 2 + 1, 2) to (…, n), without 1/n.

    They are the real part of the sum of x[k] exp(2i pi j k / n); with `weighted` that of all
    frequencies, of which those above the middle are conjugates of others.
    """
    rows, count = x.shape[:-2], n // 2 + 1
    if n <= _MAX_DIRECT_POINTS:
        matrix = _table(_real_inverse, x, n, weighted)
        return _product(x.reshape((*rows, 2 * count)), matrix)
    if n % 2 == 0:
        own, other = part_of(x, 0, n // 2, -2), _reversed(part_of(x, 1, count, -2), -2)
        joined = _combined(own, other, 0, n, _joined, weighted)
        points = transformed(joined, -2, True)
        return points.reshape((*rows, n))
    x = _scaled(x, n) if weighted else x
    whole = x.pad([*((0, 0) for _ in rows), (0, n - count), (0, 0)])
    points = _steps(whole, True, n).contiguous()
    return points.shrink([*((0, size) for size in rows), (0, n), (0, 1)]).reshape((*rows, n))


# *** tables ***


@lru_cache(maxsize=256)
def _stored(make: Callable[..., Array], dtype: DType, device: str, *args: Any) -> LazyBuffer:
    return table(np.ascontiguousarray(make(*args), dtype=dtype.np), device)


def _table(make: Callable[..., Array], like: TracedValue, *args: Any) -> TracedValue:
    """The array `make(*args)` in the dtype and on the device of a value; it is kept."""
    return TracedValue(_stored(make, like.dtype, like.node.device, *args))


def _roots(numerator: Array, n: int, inverse: bool = False) -> Array:
    """exp(-2i pi numerator / n), or with + if `inverse`, right to the last bits of float64."""
    turn = 8 * np.arctan(np.longdouble(1))
    angles = np.arange(n, dtype=np.longdouble) * ((1 if inverse else -1) * turn / n)
    roots = np.cos(angles).astype(np.float64) + 1j * np.sin(angles).astype(np.float64)
    quarters, rest = np.divmod(4 * np.arange(n), n)  # of a turn: exact, as no multiple of pi is
    exact = np.array([1, 1j, -1, -1j])
    roots = np.where(rest == 0, (exact if inverse else exact.conj())[quarters], roots)
    return np.asarray(roots[numerator % n])


def frequency_weights(n: int) -> Array:
    """How often a real signal of n points has each of its frequencies: all but the ends twice."""
    weights = np.full(n // 2 + 1, 2.0)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return weights


def _first_matrix(radix: int, inverse: bool, parts: int, count: int) -> Array:
    """(results * 2, points, parts of a point): one for real points, two for pairs."""
    k, j = np.ogrid[:count, :radix]
    roots = _roots(j * k, radix, inverse)
    numbers = np.stack([roots, 1j * roots][:parts], -1)
    return np.stack([numbers.real, numbers.imag], 1).reshape(2 * count, radix, parts)


def _later_matrix(radix: int, inverse: bool, count: int) -> Array:
    """(results, radix * 2): for points, and for points times i."""
    k, j = np.ogrid[:count, :radix]
    roots = _roots(j * k, radix, inverse)
    return np.stack([roots.real, roots.imag], -1).reshape(count, 2 * radix)


def _real_matrix(n: int, weighted: bool) -> Array:
    """(frequencies * 2, n): the whole transform of real points."""
    matrix = _first_matrix(n, False, 1, n // 2 + 1).reshape(-1, 2, n)
    return (matrix * frequency_weights(n).reshape(-1, 1, 1) if weighted else matrix).reshape(-1, n)


def _real_inverse(n: int, weighted: bool) -> Array:
    """(n, frequencies * 2): the whole way back."""
    return _real_matrix(n, weighted).T


def _twiddles(turned: bool, radix: int, done: int, inverse: bool) -> Array:
    """(radix, 2, done, 2): the factors of points, and of points times i, after so many results.

    Factors of pairs; `turned` gives those of pairs the other way round, which are added.
    """
    j, k = np.ogrid[:radix, :done]
    roots = _roots(j * k, radix * done, inverse)
    factors = np.stack([roots, 1j * roots], 1)
    if turned:
        return np.stack([-factors.imag, factors.imag], -1)
    return np.stack([factors.real, factors.real], -1)


def _split_factors(n: int, weighted: bool) -> tuple[Array, Array]:
    """The factors of the spectrum of pairs of points and of its conjugate, for a real transform."""
    roots = _roots(np.arange(n // 2 + 1), n)
    weights = frequency_weights(n) / 2 if weighted else 0.5
    return weights * (1 - 1j * roots), weights * (1 + 1j * roots)


def _joined(n: int, weighted: bool) -> tuple[Array, Array]:
    """The same for the way back, from a spectrum of real points."""
    roots = _roots(np.arange(n // 2), n, inverse=True)
    weights = np.ones(n // 2) if weighted else 1 / frequency_weights(n)[:-1]
    return weights * (1 + 1j * roots), weights * (1 - 1j * roots)


def _combination(number: int, make: Callable[..., tuple[Array, Array]], *args: Any) -> Array:
    """The factors of the pairs, of these the other way round, and of the conjugates likewise."""
    own, other = make(*args)
    parts = [
        (own.real, own.real),
        (-own.imag, own.imag),
        (other.real, -other.real),
        (other.imag, other.imag),
    ]
    factors = np.stack(parts[number], -1)
    if make is _joined:  # what is imaginary in the frequencies at the ends does not count
        factors[0, (1, 0, 1, 0)[number]] = 0
    return factors


# *** steps ***


def radices(n: int) -> tuple[int, ...]:
    """The sizes of the steps of a transform of n points.

    >>> from ferrule.tensor.algebra.fourier import radices
    >>> radices(256), radices(1000)
    ((16, 16), (8, 25, 5))
    """
    found = _cheapest(n, 1)
    assert found is not None, f"{n} points have a large prime factor"
    return found[1]


@cache
def _cheapest(n: int, done: int) -> tuple[float, tuple[int, ...]] | None:
    """The least cost of the steps for n points after so many results, and their sizes.

    None if a prime factor is too large for a step.
    """
    best = None
    for radix in range(min(n, _LARGEST_RADIX), 0, -1):
        if n % radix == 0 and (radix > 1 or n == 1):
            rest = _cheapest(n // radix, done * radix) if radix < n else (0.0, ())
            cost = _cost(radix, done)
            if rest is not None and (best is None or cost + rest[0] < best[0]):
                best = cost + rest[0], (radix, *rest[1])
    return best


def _cost(radix: int, done: int) -> float:
    """The cost of a step, in columns of a product with whole vectors along its lanes."""
    if done == 1:
        return _FIRST_STEP_COST * -(-radix // _LANES) * _LANES
    vectors, others = divmod(done, _LANES)
    whole = done / _LANES
    return radix * (vectors + (others > 0)) / whole + _TWIDDLE_COST * (vectors + others) / whole


def _steps(x: TracedValue, inverse: bool, wanted: sint) -> TracedValue:
    """A transform of pairs, or of real points as (…, n, 1).

    At least `wanted` frequencies are computed; after the last one they begin again.
    """
    *rows, n, _ = x.shape
    assert isinstance(n, int)
    assert isinstance(wanted, int)
    first, *others = radices(n)
    value = _first_step(x, first, inverse, first if others else wanted)
    for number, radix in enumerate(others, 1):
        done = n // prod(others[number - 1 :])
        count = radix if number < len(others) else -(-wanted // done)
        value = _later_step(value, radix, done, inverse, count)
    return value.reshape((*rows, value.shape[-2], 2))


def _first_step(x: TracedValue, radix: int, inverse: bool, count: int) -> TracedValue:
    """(…, n, parts) to (…, n / radix, results, 2)."""
    *rows, n, parts = x.shape
    rest = n // radix
    axes = list(range(len(rows)))
    at = len(rows)
    points = x.reshape((*rows, radix, rest, parts)).permute([*axes, at + 1, at, at + 2])
    sums = _product(points, _table(_first_matrix, x, radix, inverse, parts, count))
    return sums.reshape((*rows, rest, count, 2))


def _later_step(x: TracedValue, radix: int, done: int, inverse: bool, count: int) -> TracedValue:
    """(…, radix * rest, done, 2) to (…, rest, results * done, 2)."""
    *rows, size, _, _ = x.shape
    rest = size // radix
    axes = list(range(len(rows)))
    at = len(rows)
    points = x.reshape((*rows, radix, rest, 1, done, 2))
    points = points.permute([*axes, at + 1, at, at + 2, at + 3, at + 4])
    points = points.expand((*rows, rest, radix, 2, done, 2))
    factors = _table(_twiddles, x, False, radix, done, inverse)
    turned = _table(_twiddles, x, True, radix, done, inverse)
    points = _pairs_times(points, factors, turned)
    # In memory, where the product finds them row by row.
    points = points.contiguous().reshape((*rows, rest, 2 * radix, 2 * done))
    sums = matrix_product(_table(_later_matrix, x, radix, inverse, count), points)
    return sums.reshape((*rows, rest, count * done, 2))


def _pairs_times(x: TracedValue, factors: TracedValue, turned: TracedValue) -> TracedValue:
    """Pairs by factors, and the other way round by others, added."""
    factors, turned = expanded(factors, x.shape), expanded(turned, x.shape)
    return x.muladd(factors, _reversed(x, -1) * turned)


def _reversed(x: TracedValue, axis: int) -> TracedValue:
    steps = [1] * len(x.shape)
    steps[axis] = -1
    return x.stride(steps)


# *** butterflies ***


@cache
def _small_radices(n: int) -> tuple[int, ...] | None:
    """The fewest factors of n for which there is a butterfly, the smallest first; None without."""
    if n == 1:
        return ()
    found = [
        (*rest, r) for r in _RADICES if n % r == 0 and (rest := _small_radices(n // r)) is not None
    ]
    return min(
        (tuple(sorted(one)) for one in found), key=lambda one: (len(one), sum(one)), default=None
    )


def _has_butterflies(n: int) -> bool:
    return n >= _MIN_POINTS_OF_BUTTERFLIES and _small_radices(n) is not None


def _butterflies(x: TracedValue, axis: int, inverse: bool) -> TracedValue:
    """A transform of pairs along an axis, each step as element-wise sums of a few points.

    Real and imaginary parts are apart: (rows, results, points left, what lies behind them). The
    points of a step lie side by side, and so do the lanes of the next.
    """
    *shape, _ = x.shape
    n = shape[axis + 1]
    assert isinstance(n, int)
    rows, behind = shape[: axis + 1 + len(shape)], shape[axis + 2 + len(shape) :]
    outer, inner = prod(rows), prod(behind)
    real, imag = [part_of(x, part, part + 1).reshape((outer, 1, n, inner)) for part in (0, 1)]
    if inverse:  # of numbers whose parts change places, the transform is that of the other way
        real, imag = imag, real
    done = 1
    radices = _small_radices(n)
    assert radices is not None
    for radix in radices:
        results = _butterfly(_points(real, imag, radix))
        real, imag = [
            concatenated([one[part].contiguous() for one in results], 1).contiguous()
            for part in (0, 1)  # stored in its place, so that one kernel has all
        ]
        done *= radix
    if inverse:
        real, imag = imag, real
    return concatenated([part.reshape((*rows, n, *behind, 1)) for part in (real, imag)], -1)


def _points(real: TracedValue, imag: TracedValue, radix: int) -> list[Pair]:
    """The points of a step, each times its factor."""
    _, done, left, _ = real.shape
    assert isinstance(done, int)
    assert isinstance(left, int)
    tables = [_table(_turns, real, part, radix, done) for part in (0, 1)] if done > 1 else []
    points = []
    for j in range(radix):
        start, stop = j * left // radix, (j + 1) * left // radix
        re, im = [part_of(part, start, stop, -2) for part in (real, imag)]
        if j > 0 and tables:
            factors = [part_of(table, j, j + 1, 0).reshape((done,)) for table in tables]
            cosine, sine = [expanded(factor, re.shape, 1) for factor in factors]
            re, im = re * cosine - im * sine, re * sine + im * cosine
        points.append((re, im))
    return points


def _turns(part: int, radix: int, done: int) -> Array:
    """(radix, results): the real or imaginary parts of the factors of points."""
    j, k = np.ogrid[:radix, :done]
    roots = _roots(j * k, radix * done)
    return np.asarray(roots.imag if part else roots.real)


def _butterfly(points: list[Pair]) -> list[Pair]:
    """The transform of a few complex numbers."""
    count = len(points)
    if count == 1:
        return points
    if count % 2:
        return _odd_butterfly(points)
    even, odd = _butterfly(points[::2]), _butterfly(points[1::2])
    results = [*even, *even]
    for k, (re, im) in enumerate(odd):
        root = complex(_roots(np.array(k), count))
        re, im = _times_root(re, im, root)
        results[k] = even[k][0] + re, even[k][1] + im
        results[k + count // 2] = even[k][0] - re, even[k][1] - im
    return results


def _times_root(re: TracedValue, im: TracedValue, root: complex) -> Pair:
    if root == 1:
        return re, im
    if root == -1j:
        return im, -re
    if root.real == -root.imag:
        return (re + im) * root.real, (im - re) * root.real
    if root.real == root.imag:
        return (re - im) * root.real, (re + im) * root.real
    return re * root.real - im * root.imag, re * root.imag + im * root.real


def _odd_butterfly(points: list[Pair]) -> list[Pair]:
    """That of an odd number: the sums and differences of points from both ends."""
    count = len(points)
    first, half = points[0], range(1, count // 2 + 1)
    sums = {j: (points[j][0] + points[-j][0], points[j][1] + points[-j][1]) for j in half}
    differences = {j: (points[j][0] - points[-j][0], points[j][1] - points[-j][1]) for j in half}
    re, im = first
    for j in half:
        re, im = re + sums[j][0], im + sums[j][1]
    results = [(re, im)] * count
    for k in half:
        (re, im), (across_re, across_im) = first, (first[0].full(0), first[0].full(0))
        for j in half:
            root = complex(_roots(np.array(j * k), count))
            re, im = re + sums[j][0] * root.real, im + sums[j][1] * root.real
            across_re = across_re + differences[j][1] * root.imag
            across_im = across_im + differences[j][0] * root.imag
        results[k] = re - across_re, im + across_im
        results[-k] = re + across_re, im - across_im
    return results


# *** real points ***


def _combined(
    own: TracedValue,
    other: TracedValue,
    start: int,
    n: int,
    make: Callable[..., Any],
    weighted: bool,
) -> TracedValue:
    """Frequencies from `start` on times factors, and conjugates of those from the other end times
    others.
    """
    count = own.shape[-2]
    tables = [_table(_combination, own, number, make, n, weighted) for number in range(4)]
    factors = [part_of(table, start, start + count, 0) for table in tables]
    return _pairs_times(own, *factors[:2]) + _pairs_times(other, *factors[2:])


def _scaled(x: TracedValue, n: int) -> TracedValue:
    """Frequencies up to the middle times how often a real signal has each."""
    weights = _table(frequency_weights, x, n)
    return x * expanded(weights, x.shape, len(x.shape) - 2)


def _product(x: TracedValue, matrix: TracedValue) -> TracedValue:
    """(…, terms) by (results, terms), with any number of axes of terms: (…, results)."""
    results, *terms = matrix.shape
    rows = x.shape[: len(x.shape) - len(terms)]
    shape = (*rows, *matrix.shape)
    points = x.reshape((*rows, 1, *terms)).expand(shape)
    factors = expanded(matrix, shape)
    axes = range(len(rows) + 1, len(shape))
    return (points * factors).sum(tuple(axes)).reshape((*rows, results))
