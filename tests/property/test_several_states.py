"""States that are written together, each from what the others held before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule.tensor import Tensor

Arrange = Callable[[Any, Any], Any]

# How a kernel is given its elements, as functions of Tensor or NumPy and a vector of an even size.
ARRANGEMENTS: dict[str, Arrange] = {
    "as it is": lambda lib, x: x,
    "interleaved": lambda lib, x: lib.stack([x[: len(x) // 2], x[len(x) // 2 :]], 1).reshape(-1),
    "every second": lambda lib, x: lib.concatenate([x[::2], x[1::2]]),
    "mirrored": lambda lib, x: lib.concatenate(
        [x[: len(x) // 2], lib.flip(x[len(x) // 2 :], (0,))]
    ),
    "mirrored, interleaved": lambda lib, x: lib.stack(
        [x[: len(x) // 2], lib.flip(x[len(x) // 2 :], (0,))], 1
    ).reshape(-1),
    "one later": lambda lib, x: lib.concatenate([x[-1:], x[:-1]]),
    "each twice": lambda lib, x: lib.stack([x[::2], x[::2]], 1).reshape(-1),
}
SIZES = (4, 6, 16, 100, 1030)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ARRANGEMENTS)
@pytest.mark.parametrize("in_step", [True, False], ids=["in step", "one after another"])
def test_each_reads_what_the_others_held(name: str, size: int, in_step: bool) -> None:
    """As the steps of optimisers do, whose gradients come out of such an arrangement."""
    random = np.random.RandomState(size)
    given = random.randint(-4, 5, size) * 0.5
    states = [random.randint(-4, 5, size) * 0.5 for _ in range(3)]
    tensors = [Tensor(s).realize() for s in states]

    def formulas(lib: Any, x: Any, a: Any, b: Any, c: Any) -> list[Any]:
        gradient = ARRANGEMENTS[name](lib, x) * 1.5 + b * 0.5
        total = c + gradient * gradient
        return [a + b * gradient, b - gradient * 0.25 - a * 0.5, total - a * b]

    values = formulas(Tensor, Tensor(given), *tensors)
    for tensor, value in zip(tensors, values, strict=True):
        tensor.assign(value)
    if in_step:
        tensors[0].realize(*tensors[1:])
    expected = formulas(np, given, *states)
    for tensor, value in zip(tensors, expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), value)
