"""Transformations of functions inside of programs: `ferrule.grad(lambda x: ...)(v3)` and its like.

The function is a chain of methods, drawn for what it is given. A transformation that is added has
to get a form here, or a reason: `tests/fuzz/test_beyond.py` holds that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ferrule import Tensor
from ferrule.dtype import dtypes
from tests.fuzz.drawing import Drawing, NothingFitsError
from tests.fuzz.recipes import RECIPES
from tests.fuzz.surface import Method, methods

LEFT_OUT = {
    "custom_vjp": "takes three functions, which have to fit each other",
    "while_loop": "its function has to keep the shape and the dtype of what it is given",
}
FORMS = {
    "grad": "ferrule.grad(lambda {x}: ({f}).sum())({r})",
    "value_and_grad": "ferrule.value_and_grad(lambda {x}: ({f}).sum())({r})",
    "vjp": "ferrule.vjp(lambda {x}: {f}, {r})[1]({c})",
    "jvp": "ferrule.jvp(lambda {x}: {f}, ({r},), ({t},))",
    "linearize": "ferrule.linearize(lambda {x}: {f}, {r})[1]({t})",
    "jacfwd": "ferrule.jacfwd(lambda {x}: {f})({r})",
    "jacrev": "ferrule.jacrev(lambda {x}: {f})({r})",
    "jacobian": "ferrule.jacobian(lambda {x}: {f})({r})",
    "hessian": "ferrule.hessian(lambda {x}: ({f}).sum())({r})",
    "checkpoint": "ferrule.checkpoint(lambda {x}: {f}, {r})",
    "vmap": "ferrule.vmap(lambda {x}: {f})({r})",
    "scan": "ferrule.scan(lambda c, {x}: (c, {f}), {r}[0], {r})[1]",
    "cond": "ferrule.cond(({r} == {r}).all(), lambda {x}: {f}, lambda {x}: {f}, {r})",
}
"""By name: `f` of `x` is the function, `r` what it is given, `t` is like that, `c` like `f`."""
ANY_DTYPE = ("vmap", "checkpoint", "scan", "cond")
BY_ROWS = ("vmap", "scan")
MATRICES = ("jacfwd", "jacrev", "jacobian", "hessian")
MOST = 24
"""Elements of what Jacobians are taken by, and of."""
LEAVES_OUT = ("detach", "cast", "astype", "requires_grad_")


def transformed(draw: Drawing, values: Mapping[str, Any]) -> str:
    """A call of a transformation, as text."""
    name = draw.choice(list(FORMS))
    wanted = name not in ANY_DTYPE

    def fits(y: Tensor) -> bool:
        if wanted and not (dtypes.is_float(y.dtype) and y.dtype.bits > 8):
            return False
        if name in MATRICES and math.prod(y.shape) > MOST:
            return False
        return y.ndim > 0 and 0 not in y.shape

    given = draw.pick(fits)
    return call(draw, values, name, given, draw.values[given], ("x", "y", "z"))


def call(
    draw: Drawing,
    values: Mapping[str, Any],
    name: str,
    given: str,
    x: Tensor,
    letters: tuple[str, ...],
) -> str:
    """A transformation of a drawn function at `given`, which is an expression for `x`."""
    element = x[0] if name in BY_ROWS else x
    text, result = chain(draw, {**values}, letters, element)
    if name in MATRICES and math.prod(result.shape) > MOST:
        raise NothingFitsError
    needs_floats = name not in ANY_DTYPE
    if needs_floats and not dtypes.is_float(result.dtype):
        raise NothingFitsError
    form = FORMS[name]
    return form.format(
        x=letters[0],
        f=text,
        r=given,
        t=draw.like(x) if "{t}" in form else "",
        c=draw.like(result) if "{c}" in form else "",
    )


def chain(
    draw: Drawing, values: dict[str, Any], letters: tuple[str, ...], x: Tensor
) -> tuple[str, Tensor]:
    """A function of `x`, under the first of the letters, as text; and what it gives.

    A transformed function inside of it may close over `x`.
    """
    text: str = letters[0]
    draw.values[text] = x
    try:
        result = x
        if len(letters) > 1 and x.ndim and draw.chance(0.25) and 0 not in x.shape:
            names = [name for name in FORMS if name != "value_and_grad"]
            if math.prod(x.shape) > MOST:
                names = [name for name in names if name not in MATRICES]
            name = draw.choice(names)
            text = call(draw, values, name, text, x, letters[1:])
            text = f"{text}[1]" if name == "jvp" else text
            result = _value(text, {**values, **draw.values})
        for _ in range(draw.integer(1, 3)):
            method = draw.choice(_methods())
            text = method.call(draw, result, text)
            result = _value(text, {**values, **draw.values})
    finally:
        del draw.values[letters[0]]
    return text, result


def _methods() -> list[Method]:
    return [
        method
        for method in methods()
        if method.on_tensor
        and not method.in_place
        and not method.lacking
        and method.name not in RECIPES
        and method.name not in (*LEAVES_OUT, "where", "assign")
    ]


def _value(text: str, values: dict[str, Any]) -> Tensor:
    try:
        result = eval(text, values)
    except Exception as error:  # as a statement of its own, it may be a finding
        raise NothingFitsError from error
    if not isinstance(result, Tensor):
        raise NothingFitsError
    return result
