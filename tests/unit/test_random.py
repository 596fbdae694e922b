"""The generator itself: published test vectors, and a count of every word it gives."""

import numpy as np
import pytest

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.dtype import dtypes
from ferrule.engine.random import random_words, threefry
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


def _words(*numbers: int) -> list[TracedValue]:
    return [TracedValue(LazyBuffer.const(n, dtypes.uint32, (1,), "NUMPY")) for n in numbers]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_published_vectors(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    k, c = _words(*key), _words(*counter)
    a, b = threefry((k[0], k[1]), (c[0], c[1]))
    assert (Tensor._wrap(a).item(), Tensor._wrap(b).item()) == expected


def _rotate(word: int, distance: int) -> int:
    return ((word << distance) | (word >> (32 - distance))) & 0xFFFFFFFF


def _block(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """The definition, in Python integers."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = ((c + k) & 0xFFFFFFFF for c, k in zip(counter, key, strict=True))
    for step in range(20):
        a = (a + b) & 0xFFFFFFFF
        b = _rotate(b, (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]) ^ a
        if step % 4 == 3:
            n = step // 4 + 1
            a = (a + keys[n % 3]) & 0xFFFFFFFF
            b = (b + keys[(n + 1) % 3] + n) & 0xFFFFFFFF
    return a, b


def test_elements_are_blocks_of_their_position_and_the_call() -> None:
    seed = 0x123456789ABCDEF0
    key = (seed & 0xFFFFFFFF, seed >> 32)
    Tensor.manual_seed(seed)
    for call in range(3):
        words = [Tensor._wrap(word).numpy() for word in random_words((2, 3), "NUMPY")]
        expected = [_block(key, (place, call)) for place in range(6)]
        assert words[0].reshape(-1).tolist() == [a for a, _ in expected]
        assert words[1].reshape(-1).tolist() == [b for _, b in expected]


def test_bits_are_balanced() -> None:
    Tensor.manual_seed(0)
    for word in random_words((4096,), "NUMPY"):
        bits = np.unpackbits(Tensor._wrap(word).numpy().view(np.uint8)).reshape(-1, 32)
        assert (np.abs(bits.mean(0) - 0.5) < 0.04).all()
        assert len(np.unique(bits, axis=0)) > 4090


def test_too_many_at_once() -> None:
    with pytest.raises(
        ShapeError, match=r"\[rand\] shape \(65536, 65536\) has 4294967296 elements"
    ):
        Tensor.rand(65536, 65536)


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 4097, 10_000])
def test_counting(size: int) -> None:
    numbers = Tensor._wrap(iota(size, dtypes.int32, "NUMPY")).numpy()
    np.testing.assert_array_equal(numbers, np.arange(size, dtype=np.int32))


def test_counting_beyond_two_digits() -> None:
    large = Tensor._wrap(iota(20_000_000, dtypes.int32, "NUMPY"))
    part = large[16_777_210:16_777_220]
    assert part.tolist() == list(range(16_777_210, 16_777_220))
