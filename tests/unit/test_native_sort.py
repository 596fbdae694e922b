"""Functions of rows in the native runtime: sorting and selecting, beside NumPy's sort."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Context, Tensor, TinyJit
from ferrule.engine.rows import by_rows
from ferrule.helpers import GlobalCounters
from ferrule.transforms import vmap

SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 1000, 70_000]


def _codes(random: np.random.Generator, rows: int, size: int, words: int, top: int = 0) -> Any:
    drawn = random.integers(0, words, (rows, size), np.uint64) ^ np.uint64(top)
    return drawn << np.uint64(32) | np.arange(size, dtype=np.uint64)


def _by_rows(name: str, codes: Any, width: int, *values: int, threads: int = 1) -> Any:
    with Context(FERRULE_NUM_THREADS=threads):
        found = by_rows(name, Tensor(codes, device="CPU")._read(), width, *values)
        return Tensor._wrap(found).numpy()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("words", [1, 5, 1 << 9, 1 << 20, 1 << 32])
def test_rows_of_codes_are_sorted(rows: int, size: int, words: int) -> None:
    """Of each digit some values, one or all are there; equal words keep the order of places."""
    codes = _codes(np.random.default_rng(size + rows), rows, size, words)
    np.testing.assert_array_equal(_by_rows("sort", codes, size), np.sort(codes, -1))


@given(
    st.integers(1, 4),
    st.integers(1, 3000),
    st.sampled_from([1, 2, 300, 1 << 12, 1 << 22, 1 << 32]),
    st.sampled_from([0, 0x80000000, 0xFFFFFFFF]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 3),
)
def test_ranks_are_selected(
    rows: int, size: int, words: int, top: int, first: float, part: float, threads: int
) -> None:
    """Ranks in one bucket of digits or in several, at each level of digits."""
    codes = _codes(np.random.default_rng(size), rows, size, words, top)
    start = int(first * (size - 1))
    width = 1 + int(part * (size - start - 1))
    found = _by_rows("select", codes, width, start, threads=threads)
    np.testing.assert_array_equal(found, np.sort(codes, -1)[:, start : start + width])


def test_the_extreme_words_are_sorted() -> None:
    words = np.array([0xFFFFFFFF, 0, 0x80000000, 0x7FFFFFFF, 0, 0xFFFFFFFF] * 50, np.uint64)
    codes = (words << np.uint64(32) | np.arange(300, dtype=np.uint64))[np.newaxis]
    assert _by_rows("sort", codes, 300)[0].tolist() == sorted(codes[0].tolist())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [5, 200, 2000])
def test_orders_are_numpys(size: int, threads: int) -> None:
    """Plain and captured, with ties and NaN."""
    random = np.random.default_rng(size)

    @TinyJit
    def orders(x: Tensor) -> list[Tensor]:
        k = size // 2 + 1
        found = [x.argsort(), x.argsort(descending=True), x.topk(k).indices]
        found += [x.kthvalue(k).indices, x.median(1).indices, x.nanmedian(1).indices]
        return [one.realize() for one in found]

    with Context(FERRULE_NUM_THREADS=threads):
        for _ in range(4):
            x = random.integers(-9, 9, (17, size)).astype(np.float32)
            x[random.random(x.shape) < random.choice([0, 0.3, 0.9])] = np.nan
            up = np.argsort(x, -1, kind="stable")
            down = size - 1 - np.argsort(x[:, ::-1], -1, kind="stable")[:, ::-1]
            there = size - np.isnan(x).sum(-1, keepdims=True)
            ignoring = np.maximum(there - 1, 0) // 2
            place = np.where(there < size, there, ignoring)
            want = [up, down, down[:, : size // 2 + 1], up[:, size // 2]]
            want += [np.take_along_axis(up, at, -1)[:, 0] for at in (place, ignoring)]
            for one, expected in zip(orders(Tensor(x, device="CPU")), want, strict=True):
                np.testing.assert_array_equal(one.numpy(), expected)


def test_a_captured_order_is_one_batch() -> None:
    """A graph executor takes it between kernels, and no function of the host runs."""
    f = TinyJit(lambda x: (x * 2).sort().values.sum(0).realize())
    x = Tensor(np.random.default_rng(0).random((5, 300), np.float32), device="CPU")
    f(x)
    f(x)
    before = GlobalCounters.host_calls
    found = f(x)
    assert GlobalCounters.host_calls == before
    np.testing.assert_allclose(found.numpy(), np.sort(x.numpy() * 2, -1).sum(0), rtol=1e-6)
    assert len(f.jit_cache) == 1


@pytest.mark.parametrize("size", [6, 600])
def test_lanes_are_rows(size: int) -> None:
    array = np.random.default_rng(1).random((4, 3, size), np.float32)
    x = Tensor(array, device="CPU")
    found = vmap(lambda row: row.argsort())(x)
    np.testing.assert_array_equal(found.numpy(), np.argsort(array, -1))
    found = vmap(lambda row: row.kthvalue(5).values)(x)
    np.testing.assert_array_equal(found.numpy(), np.sort(array, -1)[..., 4])


def test_gradients_flow_to_what_was_selected() -> None:
    array = np.random.default_rng(2).random((3, 400), np.float32)
    x = Tensor(array, device="CPU", requires_grad=True)
    (x.topk(50).values * x.median(1, keepdim=True).values).sum().backward()
    order = np.argsort(array, -1)
    want = np.zeros_like(array)
    median = np.take_along_axis(array, order[:, 199:200], -1)
    np.put_along_axis(want, order[:, -50:], median, -1)
    total = np.sort(array, -1)[:, -50:].sum(-1, keepdims=True)
    np.put_along_axis(want, order[:, 199:200], total, -1)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)
