"""Functions that give floats give the same ones for integers as for equal floats.

Unsigned integers wrap around below 0: a difference has to be taken in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.fuzz.surface import Method, methods

from ferrule import Tensor
from ferrule.dtype import dtypes

DTYPES = ("uint8", "int8", "uint64", "bool")
OTHER = np.array([[3, 1], [2, 90]])
# Their results depend on the dtype, or the target is 1 or -1, which no bool is.
BY_DTYPE = {"type_as", "bitcast", "view", "hinge_embedding_loss"}
# They take texts, or several matrices, or overflow.
OTHERS = {"matrix_exp", "rearrange", "reduce", "block_diag", "chain_matmul", "multi_dot"}


def results(array: np.ndarray[Any, Any], method: Method, given: Sequence[Any]) -> list[Tensor]:
    """What a method gives, of floats; nothing if it refuses such arguments."""
    try:
        found = getattr(Tensor(array), method.name)(*given)
        found = [found] if isinstance(found, Tensor) else list(found)
        found = [x for x in found if isinstance(x, Tensor) and dtypes.is_float(x.dtype)]
        return [x.realize() for x in found]
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError, NotImplementedError):
        return []


@pytest.mark.parametrize(
    "method",
    [m for m in methods() if m.on_tensor and not m.in_place and m.name not in BY_DTYPE | OTHERS],
    ids=lambda method: method.name,
)
def test_integers_are_as_good_as_floats(method: Method) -> None:
    for dtype in DTYPES:
        array = np.array([[0, 1], [2, 100]]).astype(dtype)
        other = OTHER.astype(dtype)
        floats = other.astype(np.float32)
        x, y = Tensor(other), Tensor(floats)
        for given, same in (((), ()), ((1,), (1,)), ((x,), (y,)), ((x, x), (y, y))):
            found = results(array, method, given)
            expected = results(array.astype(np.float32), method, same)
            for result, wanted in zip(found, expected, strict=False):
                np.testing.assert_allclose(
                    result.numpy().astype(np.float64),
                    wanted.numpy().astype(np.float64),
                    rtol=1e-3,
                    atol=1e-4,
                    err_msg=f"{dtype}, {given}",
                )
