"""Random numbers: the counter-based generator Threefry-2x32, the same stream on every device.

Call number c draws its element i from the block with counter (i, c) under the seed's key, so that
no two numbers of a stream share a block, and none depends on how many were drawn before. Key and
call number are in three words of memory on each device, advanced by a write: what a captured
program draws at every replay is new, and follows `manual_seed`.

The words are the same on every device, and so are the numbers of `rand`. Normal numbers are made of
them by logarithms and cosines, so their last bits may differ. Each device counts its own calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.engine.realize import realize
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import ShapeError, View
from ferrule.ir.storage import Storage, turn

_ROTATIONS: Final = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY: Final = 0x1BD11BDA
_CALLS: Final = View.create((3,)).shrink(((2, 3),))

Words: TypeAlias = tuple[TracedValue, TracedValue]
Draw: TypeAlias = Callable[[Sequence[sint], str], Words]
_drawing: ContextVar[Draw | None] = ContextVar("ferrule_drawing", default=None)

_states: dict[str, Storage] = {}
_seed: int | None = None


def manual_seed(seed: int = 0) -> None:
    """Restart the streams of all devices; equal seeds give equal numbers.

    >>> from ferrule import Tensor
    >>> Tensor.manual_seed(7)
    >>> first = Tensor.rand(3).tolist()
    >>> Tensor.manual_seed(7)
    >>> first == Tensor.rand(3).tolist()
    True
    """
    global _seed
    with turn:
        started = [(storage, _initial(device, seed)) for device, storage in _states.items()]
        for storage, start in started:
            storage.write(start)
        before, _seed = _seed, seed
        try:
            realize([storage.node for storage, _ in started])
        except Exception:
            _seed = before  # the streams are where they were, too
            raise


def stream_of(device: str) -> LazyBuffer:
    """The position of a device's stream: its key, and the number of the next call."""
    return _state(device).take()


def streams() -> list[Storage]:
    """The memory of the streams of all devices."""
    return list(_states.values())


def continue_stream(device: str, words: np.ndarray[Any, Any]) -> None:
    """Set the stream of a device to a position that `stream_of` gave."""
    with turn:
        storage = _state(device)
        storage.write(_in_memory(device, words))
        realize([storage.node])


def _initial(device: str, seed: int) -> LazyBuffer:
    words = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, 0], np.uint32)
    return _in_memory(device, words)


def _in_memory(device: str, words: np.ndarray[Any, Any]) -> LazyBuffer:
    return LazyBuffer.from_buffer(Buffer.fromCPU(device, words), (3,))


def _state(device: str) -> Storage:
    """The key and the number of the next call, in the memory of a device."""
    global _seed
    with turn:
        if _seed is None:
            _seed = int.from_bytes(os.urandom(8), "little")
        storage = _states.get(device)
        if storage is None:
            storage = _states[device] = Storage(_initial(device, _seed))
        return storage


@contextmanager
def drawn_by(draw: Draw) -> Iterator[None]:
    """A block in which `draw(shape, device)` gives the random words.

    The words that `draw` itself draws come from the source outside of the block.
    """
    outside = _drawing.get()

    def instead(shape: Sequence[sint], device: str) -> Words:
        inner = _drawing.set(outside)
        try:
            return draw(shape, device)
        finally:
            _drawing.reset(inner)

    token = _drawing.set(instead)
    try:
        yield
    finally:
        _drawing.reset(token)


def _rotated(word: TracedValue, distance: int) -> TracedValue:
    left = word.alu(BinaryOps.SHL, word.full(distance))
    right = word.alu(BinaryOps.SHR, word.full(32 - distance))
    return left.alu(BinaryOps.OR, right)


def threefry(
    key: tuple[TracedValue, TracedValue], counter: tuple[TracedValue, TracedValue], rounds: int = 20
) -> tuple[TracedValue, TracedValue]:
    """The Threefry-2x32 block of a counter under a key; all are uint32 of one shape.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (2011).
    """
    parity = key[0].alu(BinaryOps.XOR, key[1])
    keys = (*key, parity.alu(BinaryOps.XOR, parity.full(_PARITY)))
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for step in range(rounds):
        a = a + b
        b = _rotated(b, _ROTATIONS[step % 8]).alu(BinaryOps.XOR, a)
        if step % 4 == 3:
            injection = step // 4 + 1
            a = a + keys[injection % 3]
            b = b + keys[(injection + 1) % 3] + injection
    return a, b


def random_words(shape: Sequence[sint], device: str) -> Words:
    """Two random uint32 words for each element; the stream of the device moves on by one call.

    Raises `ShapeError` for a shape of 2**32 elements or more.
    """
    instead = _drawing.get()
    if instead is not None:
        return instead(shape, device)
    size = storage_size(shape)
    if size >= 1 << 32:
        raise ShapeError(
            f"[rand] shape {tuple(shape)} has {size} elements, and one call draws less than 2**32; "
            "draw it in parts"
        )
    flat = (size,)
    numbers = iota(size, dtypes.uint32, device)
    with turn:  # two threads must not draw the same numbers
        storage = _state(device)
        state = TracedValue(storage.take())
        key0, key1, call = [state.shrink(((place, place + 1),)).expand(flat) for place in range(3)]
        words = threefry((key0, key1), (numbers, call))
        storage.write((state.shrink(((2, 3),)) + 1).node, _CALLS)
    first, second = [_shaped(word, shape) for word in words]
    return first, second


def _shaped(flat: TracedValue, shape: Sequence[sint]) -> TracedValue:
    """The flat words under a shape; a symbolic one takes the first words of its upper bound."""
    bounds = tuple([size if isinstance(size, int) else size.max for size in shape])
    return flat.reshape(bounds).shrink([(0, size) for size in shape])


def uniform_from(words: tuple[TracedValue, TracedValue], dtype: DType) -> TracedValue:
    """Numbers in [0, 1), evenly spaced by the float type's precision at 1."""
    if dtype is dtypes.float64:
        high = words[0].alu(BinaryOps.SHR, words[0].full(5)).cast(dtype)
        low = words[1].alu(BinaryOps.SHR, words[1].full(6)).cast(dtype)
        return (high * 2.0**26 + low) * 2.0**-53
    bits = dtype.mantissa_bits + 1
    # A signed word: fewer than 25 bits, and devices convert it faster.
    word = words[0].alu(BinaryOps.SHR, words[0].full(32 - bits)).bitcast(dtypes.int32)
    return (word.cast(dtypes.float32) * 2.0**-bits).cast(dtype)
