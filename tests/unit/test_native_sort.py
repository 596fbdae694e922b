"""Sorting in the native runtime."""

import numpy as np
import pytest

from ferrule.runtime.cpu.program import sort_codes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 7, 256, 1000, 70_000])
@pytest.mark.parametrize("words", [1, 5, 1 << 20, 1 << 32])
def test_rows_of_codes_are_sorted(rows: int, size: int, words: int) -> None:
    """Of each digit some values, one or all are there; equal words keep the order of places."""
    random = np.random.default_rng(size + rows).integers(0, words, (rows, size), np.uint64)
    codes = random << np.uint64(32) | np.arange(size, dtype=np.uint64)
    found = codes.copy()
    sort_codes(found)
    np.testing.assert_array_equal(found, np.sort(codes, -1))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_nothing_is_sorted(shape: tuple[int, ...]) -> None:
    sort_codes(np.empty(shape, np.uint64))


def test_the_extreme_words_are_sorted() -> None:
    words = np.array([0xFFFFFFFF, 0, 0x80000000, 0x7FFFFFFF, 0, 0xFFFFFFFF], np.uint64)
    codes = words << np.uint64(32) | np.arange(6, dtype=np.uint64)
    found = codes.copy()
    sort_codes(found)
    assert found.tolist() == sorted(codes.tolist())
