"""What element-wise mathematics says of misuse."""

from collections.abc import Callable

import pytest

from ferrule.dtype import DTypeError
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

X = Tensor([1.0, 2.0, 3.0])
N = Tensor([1, 2, 3])
B = Tensor([True, False, True])
MISUSES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "gcd": (lambda: X.gcd(N), DTypeError, "[gcd] is defined for integers, not dtypes.float32"),
    "lcm": (lambda: B.lcm(B), DTypeError, "[lcm] is defined for integers, not dtypes.bool"),
    "shift": (lambda: X << 1, DTypeError, "[<<] is defined for integers, not dtypes.float32"),
    "not": (lambda: X.bitwise_not(), DTypeError, "[~] is defined for integers and bools"),
    "positive": (lambda: B.positive(), DTypeError, "[positive] is not defined for bool"),
    "fmod": (lambda: B.fmod(B), DTypeError, "[fmod] is not defined for bool"),
    "rounding": (
        lambda: X.div(2, rounding_mode="up"),
        ValueError,
        "[div] rounding_mode is None, 'trunc' or 'floor', not 'up'",
    ),
    "decimals": (
        lambda: N.round(-1),
        DTypeError,
        "[round] to -1 decimals is not defined for dtypes.int32; cast it to a float first",
    ),
    "order": (lambda: X.polygamma(-1), ValueError, "[polygamma] n = -1 counts derivatives"),
    "high order": (lambda: X.polygamma(10**20), ValueError, "it is from 0 to 170, since n!"),
    "slope of a high order": (
        lambda: Tensor([1.0], requires_grad=True).polygamma(170).backward(),
        ValueError,
        "[polygamma] n = 171 counts derivatives",
    ),
    "lambd": (lambda: X.softshrink(-1), ValueError, "[softshrink] lambd is at least 0, not -1"),
    "weights": (
        lambda: X.reshape(1, 3).prelu(Tensor([0.5, 0.5])),
        ShapeError,
        "[prelu] weights of shape (2,) for 3 channels; give one weight, or one for each channel",
    ),
    "halves": (lambda: X.glu(), ShapeError, "[glu] axis -1 of (3,) has no halves"),
    "axis": (lambda: X.glu(3), ShapeError, "[glu] axis 3 is out of range"),
    "shapes": (lambda: X.atan2(Tensor([1.0, 2.0])), ShapeError, "[atan2]"),
    "text": (lambda: X.hypot("2"), TypeError, "[hypot] str is no operand"),
    "negative power": (lambda: N**-1, ValueError, "[pow] a tensor of dtypes.int32 to the power -1"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_message(name: str) -> None:
    misuse, kind, message = MISUSES[name]
    with pytest.raises(kind) as caught:
        misuse()
    assert message in str(caught.value)
