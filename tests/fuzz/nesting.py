"""Functions that are transformed several times over: maps in maps, derivatives through them.

A nest of transformations of a small function is computed twice: as it is, and with loops in the
place of `vmap`, `jacrev` and `jacfwd`. Both have to give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

import numpy as np

import ferrule
from ferrule import Context, Tensor
from tests.fuzz.check import Finding, finding_beside

Function = Callable[[Tensor], Tensor]

SHARE = 0.08
"""Of the programs, beside which a nest is drawn."""
MOST = 400
"""Elements of what a nest gives."""
DERIVATIVES = 3
"""At most, one of another."""
TOLERANCE = 1e-9
STEPS = (
    *("x * x", "x * x.sum()", "x.tanh()", "x.flip(0) * x", "x.roll(1, 0) - x * x", "x.exp() * x"),
    *("x.softmax(0)", "x.cumsum(0) * x", "x.cumprod(0)", "x.sort(0)[0] * x", "x * x.amax(0)"),
    *("x[[0, -1]] * x.mean()", "x[:1] * x", "x.outer(x).sum(1)", "(x > 0.1).where(x * x, x.sin())"),
    *("x.scatter_add(0, (x * 0).long(), x * x)", "x / (x * x + 1)", "x.logsumexp(0) * x"),
    *("x.repeat(2)", "x.exp2() - x", "x.abs() * x", "x.norm() + x", "x.expand(2, -1).sum(0) * x"),
    *("checkpoint(lambda x: x * x.sin(), x)", "x.prod() + x", "x.reshape(1, -1).squeeze(0) ** 3"),
)
"""Functions of a vector."""
OUTER = {
    "map": "vmap({f})",
    "map of a product": "(lambda v: vmap(lambda k: ({f})(v * k))(v.new_tensor([0.5, -1.0, 2.0])))",
    "map of a factor": "(lambda v: vmap(lambda k: ({f})(v) * k)(v.new_tensor([0.5, -1.0, 2.0])))",
    "map beside": "(lambda v: vmap(lambda k: ({f})(k) * v.sum())(v.stack(v * v)))",
    "gradient": "grad(lambda v: ({f})(v).square().sum())",
    "jvp": "(lambda v: jvp({f}, (v,), (v * 0.5 + 1,))[1])",
    "jacrev": "jacrev({f})",
    "jacfwd": "jacfwd({f})",
    "checkpoint": "(lambda v: checkpoint({f}, v))",
}
"""The transformations of a function `f`."""
DERIVED = ("gradient", "jvp", "jacrev", "jacfwd")


def _units(x: Tensor) -> list[Tensor]:
    count = prod(map(int, x.shape))
    return [Tensor(row.reshape(x.shape)) for row in np.eye(count)]


def _loop(function: Function) -> Function:
    return lambda x: Tensor.stack(*[function(part) for part in x])


def _by_rows(function: Function) -> Function:
    def jacobian(x: Tensor) -> Tensor:
        value, pull = ferrule.vjp(function, x)
        rows = [pull(unit)[0] for unit in _units(value)]
        return Tensor.stack(*rows).reshape(*value.shape, *x.shape)

    return jacobian


def _by_columns(function: Function) -> Function:
    def jacobian(x: Tensor) -> Tensor:
        columns = [ferrule.jvp(function, (x,), (unit,))[1] for unit in _units(x)]
        return Tensor.stack(*columns, dim=-1).reshape(*columns[0].shape, *x.shape)

    return jacobian


NAMES = {"grad": ferrule.grad, "jvp": ferrule.jvp, "checkpoint": ferrule.checkpoint}
AT_ONCE = {**NAMES, "vmap": ferrule.vmap, "jacrev": ferrule.jacrev, "jacfwd": ferrule.jacfwd}
IN_LOOPS = {**NAMES, "vmap": _loop, "jacrev": _by_rows, "jacfwd": _by_columns}


class Nest:
    """A transformed function as text, and what it is given."""

    def __init__(self, rng: Random) -> None:
        size = rng.choice([1, 2, 2, 3])
        text = "x"
        for step in rng.choices(STEPS, k=rng.choice([1, 1, 2, 3])):
            text = f"(lambda x: {step})({text})"
        self.text = f"lambda x: {text}"
        shape = [size]
        derivatives, elements = 0, 2 * size
        inside = rng.choices([*OUTER], k=rng.choice([1, 1, 2]))
        for name in (*inside, "map", *rng.choices(DERIVED, k=rng.choice([1, 2, 2]))):
            derivatives += name in DERIVED
            if name in ("jacrev", "jacfwd"):
                elements *= prod(shape)
            elif name.startswith("map"):
                elements *= 3
            if derivatives > DERIVATIVES or elements > MOST:
                break
            self.text = OUTER[name].format(f=self.text)
            if name == "map":
                shape.insert(0, rng.choice([1, 2, 2]))
        numbers = [rng.randint(-12, 12) / 8 + 0.03 * k for k in range(prod(shape))]
        self.given = np.array(numbers).reshape(shape)

    def __str__(self) -> str:
        return f"{self.text}\nat {self.given.tolist()}"

    def mistake(self) -> str:
        """The difference of the two results; empty if there is none."""
        with Context(FERRULE_DEVICE="NUMPY"):
            found, expected = (
                eval(self.text, dict(names))(Tensor(self.given)).numpy()
                for names in (AT_ONCE, IN_LOOPS)
            )
        if found.shape != expected.shape:
            return f"shape {found.shape}, in loops {expected.shape}"
        size = np.abs(expected).max(initial=1, where=np.isfinite(expected))
        with np.errstate(invalid="ignore"):
            near = np.abs(found - expected) <= TOLERANCE * size
        if np.all(near | ~np.isfinite(expected)):
            return ""
        return f"found\n{found}\nin loops\n{expected}"


def finding(seed: int, index: int) -> Finding | None:
    """A finding in a nest, which is drawn for a share of the programs; None if there is none."""
    rng = Random(f"nest:{seed}:{index}")
    if rng.random() > SHARE:
        return None
    nest = Nest(rng)
    return finding_beside("nest", nest, nest.mistake)
