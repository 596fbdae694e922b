"""What transformations say when something is wrong."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.autograd import GradientError
from ferrule.dtype import DTypeError
from ferrule.ir.shape.view import ShapeError
from ferrule.transforms import checkpoint, custom_vjp, grad, jacrev, jvp, value_and_grad, vjp, vmap
from ferrule.transforms.batching import VmapError

X = Tensor(np.zeros((2, 3), np.float32))
Y = Tensor(np.zeros((4, 3), np.float32))


def square(x: Tensor) -> Tensor:
    return x * x


def badly_defined(forward: Any, backward: Any) -> Any:
    function = custom_vjp(square)
    function.defvjp(forward, backward)
    return grad(lambda x: function(x).sum())(X)


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: grad(square)(X),
        ShapeError,
        "[grad] the function returned a tensor of shape (2, 3), and a gradient is that of one",
    ),
    (
        lambda: value_and_grad(lambda x: (x.sum(), 1))(X),
        GradientError,
        "[value_and_grad] the function returned tuple; a gradient is that of one tensor",
    ),
    (
        lambda: grad(lambda x: x.sum())(Tensor([1, 2])),
        DTypeError,
        "[grad] argument 0 holds a tensor of dtypes.int32 and shape (2,): only floats have",
    ),
    (
        lambda: grad(lambda x, y: x, 1)(X, ["weights"]),
        DTypeError,
        "[grad] argument 1 holds 'weights' (str): only tensors of floats have derivatives",
    ),
    (
        lambda: grad(square, 1)(X),
        ValueError,
        "[grad] argnums=1: the function was called with 1 positional arguments",
    ),
    (lambda: grad(square, (0, -1))(X), ValueError, "[grad] argnums=(0, -1) names an argument"),
    (
        lambda: grad(lambda x: x.sum(), has_aux=True)(X),
        GradientError,
        "[grad] with has_aux=True the function returns a pair (result, anything), not Tensor",
    ),
    (
        lambda: grad(lambda x: (x > 0).sum())(X),
        DTypeError,
        "[grad] the function returned a tensor of dtypes.int64 and shape (), which has no",
    ),
    (
        lambda: jacrev(lambda x: 2.0)(X),
        DTypeError,
        "[jacrev] the function returned 2.0 (float); it must return tensors",
    ),
    (
        lambda: jvp(square, (X,), (Y,)),
        ShapeError,
        "[jvp] the tangent of shape (4, 3) does not fit a tensor of shape (2, 3)",
    ),
    (lambda: jvp(square, X, X), GradientError, "[jvp] primals and tangents are tuples of the"),
    (
        lambda: jvp(square, (X,), (X, X)),
        GradientError,
        "[jvp] the tangent: a tuple of 2 does not match a tuple of 1; give the same containers",
    ),
    (
        lambda: vjp(square, X)[1](Y),
        ShapeError,
        "[vjp] the gradient of shape (4, 3) does not fit a tensor of shape (2, 3)",
    ),
    (
        lambda: vjp(lambda x: {"a": x}, X)[1]({"b": X}),
        GradientError,
        "[vjp] the gradient: a dict of 'b' does not match a dict of 'a'; give the same",
    ),
    (
        lambda: vmap(lambda x, y: x, (0, 1))(X, Y),
        ShapeError,
        "[vmap] the mapped axes differ in size: axis 0 of shape (2, 3) has 2, axis 1 of shape "
        "(4, 3) has 3",
    ),
    (
        lambda: vmap(square, 2)(X),
        ShapeError,
        "[vmap] in_axes: axis 2 is out of range for an argument of shape (2, 3); pass it whole",
    ),
    (
        lambda: vmap(square, (0, 0))(X),
        ValueError,
        "[vmap] in_axes=(0, 0) has 2 axes, and the function was called with 1 positional",
    ),
    (
        lambda: vmap(square, ({"a": 0},))(X),
        ValueError,
        "[vmap] in_axes: a dict of 'a' does not match Tensor; give the same containers",
    ),
    (lambda: vmap(square, (0.5,))(X), ValueError, "[vmap] in_axes holds 0.5; axes are integers"),
    (lambda: vmap(square, None)(X), ValueError, "[vmap] no argument has a mapped axis: give a"),
    (
        lambda: vmap(square, out_axes=2)(X),
        ShapeError,
        "[vmap] out_axes: 2 is no place for the mapped axis in a result of 2 axes; use -2 to 1",
    ),
    (
        lambda: vmap(lambda x: 3)(X),
        VmapError,
        "[vmap] the mapped function returned 3 (int); it returns tensors, or None",
    ),
    (
        lambda: vmap(square, randomness="none"),  # type: ignore[arg-type]
        ValueError,
        '[vmap] randomness is "different", "same" or "error", not \'none\'',
    ),
    (
        lambda: vmap(lambda x: x + Tensor.rand(3), randomness="error")(X),
        VmapError,
        '[vmap] the function draws random numbers, of shape (3,), which randomness="error"',
    ),
    (
        lambda: vmap(square, 0, in_dims=0),  # type: ignore[call-arg]
        TypeError,
        "got multiple values for argument 'in_axes'",
    ),
    (
        lambda: vmap(lambda x: x * x.sum().item())(X),
        VmapError,
        "[vmap] the values of a mapped tensor, here of shape (3,) in each of 2 lanes, are known "
        "only after the mapped function has returned",
    ),
    (lambda: vmap(lambda x: x if x.sum() else -x)(X), VmapError, "[vmap] the values of a mapped"),
    (lambda: vmap(lambda x: x[x > 0])(X), VmapError, "use x.where(...) and return it"),
    (
        lambda: custom_vjp(square)(X),
        GradientError,
        "[custom_vjp] square has no derivative; give it one: f.defvjp(forward, backward)",
    ),
    (
        lambda: badly_defined(square, lambda kept, slope: (slope,)),
        GradientError,
        "[custom_vjp] the forward part of square gives a pair (result, kept), not Tensor",
    ),
    (
        lambda: badly_defined(lambda x: (x, None), lambda kept, slope: slope),
        GradientError,
        "[custom_vjp] the backward part of square gives a tuple with a gradient for each of 1",
    ),
    (
        lambda: badly_defined(lambda x: (x, None), lambda kept, slope: (slope.sum(),)),
        ShapeError,
        "[custom_vjp] the gradient of shape () does not fit a tensor of shape (2, 3)",
    ),
]


@pytest.mark.parametrize(("action", "kind", "text"), CASES, ids=[case[2][:60] for case in CASES])
def test_message(action: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()


def test_tensors_still_work_after_an_error() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(VmapError):
        vmap(lambda part: part * x.sum() * part.item())(x)
    checkpoint(lambda x: x * x)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
