"""Derivatives compared with finite differences in float64.

A program is differentiated at one of three kinds of points. Off round numbers no two arguments tie.
On round numbers many rules differ, as for zeros and integers. At tied points equal arguments move
together, so that a maximum of several equal elements has a derivative.

If differences of two step sizes, or to both sides, do not agree, the function has a corner there or
is ill-conditioned, and there is no verdict. Two checks hold anywhere: reverse and forward
derivatives are transposes of each other, and derivatives are finite where finite results have
finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ferrule
from ferrule import Context, Tensor
from ferrule.dtype import dtypes
from tests.fuzz.functions import Step, number_of
from tests.fuzz.given import NAMES
from tests.fuzz.program import Program, methods, words
from tests.fuzz.reference import widened
from tests.fuzz.ways import Way, settings_of

Array = np.ndarray[Any, Any]
Function = Callable[..., Tensor]
"""From the arguments of `wanted` to one number."""

STEP = 2e-5
AGREE = 3e-6
"""Relative: what differences of two steps may differ by where they are believed."""
SIDES = 1e-2
"""Relative: what differences to both sides may differ by where there is no corner."""
WRONG = 1e-4
"""Relative: a derivative that is off by more is wrong."""
TRANSPOSED = 1e-7
"""Relative: by how much derivatives backwards and forwards may differ."""
CANCELLED = 1e-9
"""Rounding error left by terms that cancel, as those of a softmax of large scores do."""
FLOOR = 1e-6
"""Of a value: a derivative below it, such as one that is 0 but for rounding, has its size."""
LARGEST = 1e3
"""Of an argument: what is computed of larger ones may be all rounding."""
POINTS = ("off", "round", "tied", "tied")
DIRECTIONS = 3
"""In how many of them a derivative has to be wrong to be a finding."""

# Their derivatives are not those of their values, by definition: the edges of a histogram are
# constants, a variance that is too small has the derivative at the smallest one, and eigenvalues
# are of symmetric matrices, of which only one half is read but both have a share of the derivative.
CUT = words(
    """detach data cast astype byte char short int long bool half bfloat16 float type_as nextafter
    histogram nanstd GaussianNLLLoss eigh eigvalsh"""
)

# The same of options: gradients of a table are divided by how often a row was taken, or left out.
OPTIONS = ("scale_grad_by_freq=", "padding_idx=")

# Where two of their operands are equal, each has half of the derivative: the mean of both sides.
HALVES = words("maximum minimum fmax fmin")

# The derivative of a norm at 0 is 0 by definition, also where it is smooth there; that of a cube
# root is infinite, which differences in directions that leave the 0 do not show; a pseudoinverse
# is not even continuous at singular matrices, as those of round numbers often are; a target may be
# cut to an integer; and differences to both sides do not show corners that cancel: of losses with
# one in their slopes at both 1 and -1, where one element comes in as another one leaves, and of a
# sign that changes together with a size.
AT_ROUND_NUMBERS = words(
    """lp_pool1d lp_pool2d lp_pool3d LPPool1d LPPool2d LPPool3d cbrt pinv pinverse
    multilabel_margin_loss smooth_l1_loss huber_loss SmoothL1Loss HuberLoss copysign"""
)


@dataclass
class Slopes:
    """The derivative of a number in a direction, in three ways; `differences` may be None."""

    backwards: float
    forwards: float
    differences: float | None
    scale: float
    wrong: str = ""
    """A mistake in a gradient that shows without differences."""


def mistake(program: Program, way: Way, forwards: bool = True) -> str | None:
    """The mistake in the gradients of a program; None if there is none, or no verdict.

    Without `forwards`, derivatives forwards are only found where differences do not say enough.

    Raises what a run of the program raises.
    """
    program = replace(widened(program), calls=1)
    # Floats of 8 bits, and those whose bits are read, cannot be widened.
    if any(word in program.text() for word in ("float8", "bitcast")):
        return None
    said = ""
    for direction in range(DIRECTIONS):
        try:
            slopes = _slopes(program, way, direction, forwards)
        except MemoryError:  # in float64, with directions, it needs several times its memory
            return None
        said = "" if slopes is None else _said(slopes, _is_smooth(program))
        if not said:
            return None
    return said


def _is_smooth(program: Program) -> bool:
    cut = CUT if _kind(program) == "off" else CUT | AT_ROUND_NUMBERS
    chosen = any(option in line for option in OPTIONS for line in program.body)
    names = {name.removesuffix("_") for line in program.body for name in methods(line)}
    return not chosen and cut.isdisjoint(names)


def _kind(program: Program) -> str:
    """The kind of point at which a program is differentiated: one of `POINTS`."""
    return POINTS[program.seed % len(POINTS)]


def _said(slopes: Slopes, is_smooth: bool) -> str:
    a, b, c = slopes.backwards, slopes.forwards, slopes.differences
    if slopes.wrong:
        return slopes.wrong
    if not np.isfinite([a, slopes.scale]).all():
        return ""
    if np.isfinite(b) and abs(a - b) > TRANSPOSED * slopes.scale + CANCELLED:
        return f"backwards {a}, forwards {b}, differences {c}"
    if is_smooth and c is not None and abs(a - c) > WRONG * slopes.scale:
        return f"backwards {a}, forwards {b}, differences {c}"
    return ""


def _slopes(program: Program, way: Way, seed: int, forwards: bool) -> Slopes | None:
    """The derivative in a random direction; None at extremes."""
    rng = np.random.default_rng([program.seed, seed])
    places = _Places(program, rng)
    if not all(np.abs(array).max(initial=0) <= LARGEST for array in places.arrays):  # nor NaN
        return None
    directions = places.directions(rng)
    with Context(**settings_of(replace(way, jit=0))):
        function = places.function(way)
        inputs = [Tensor(array) for array in places.arrays]
        numbers = tuple(range(len(inputs)))
        found = ferrule.grad(function, numbers)(*inputs)
        Tensor.realize(*found)
        gradients = [g.numpy() for g in found]
    for place, (array, slope) in enumerate(zip(places.arrays, gradients, strict=True)):
        if array.shape != slope.shape:
            shapes = f"a gradient of {places.names[place]}, {array.shape}, is {slope.shape}"
            return Slopes(0.0, 0.0, None, 0.0, shapes)
    # Where a function is not defined for an element, nothing is said of that element alone.
    fine = [np.isfinite(g) for g in gradients]
    gradients = [np.where(f, g, 0.0) for f, g in zip(fine, gradients, strict=True)]
    known = [np.where(f, d, 0.0) for f, d in zip(fine, directions, strict=True)]
    # Tied zeros stay, so that they may be at the end of where it is.
    lost = any((k != d).any() for k, d in zip(known, directions, strict=True))
    if lost and places.kind != "tied" and _is_smooth(program):
        slope, _ = _differences(places, directions, way, None)
        if slope is not None:
            return Slopes(0.0, 0.0, None, 0.0, f"a gradient is not finite, differences {slope}")
    directions = known
    terms = [g.astype(np.float64) * d for g, d in zip(gradients, directions, strict=True)]
    backwards = float(sum(term.sum() for term in terms))
    differences, scale = _differences(places, directions, way, backwards)
    pushed = np.nan
    if forwards or differences is None or abs(backwards - differences) > WRONG * scale:
        with Context(**settings_of(replace(way, jit=0))):
            function = places.function(way)
            _, tangent = ferrule.jvp(function, tuple(inputs), tuple(map(Tensor, directions)))
            pushed = float(tangent.numpy())
    scale += float(sum(np.abs(term).sum() for term in terms))
    scale += abs(pushed) if np.isfinite(pushed) else 0.0
    return Slopes(backwards, pushed, differences, scale)


def _differences(
    places: _Places, directions: Sequence[Array], way: Way, wanted: float | None
) -> tuple[float | None, float]:
    """The derivative by differences, None if it cannot be told; and its size.

    Whether it can be is only looked into where it is not the one that is `wanted`. If that is None,
    all results have to be finite.
    """

    def moved(step: float) -> list[Tensor]:
        pairs = zip(places.arrays, directions, strict=True)
        return [Tensor(array + step * along, device="NUMPY") for array, along in pairs]

    def at(step: float) -> float:
        with Context(FERRULE_DEVICE="NUMPY"):
            function = places.function(way, masked=wanted is not None, in_loop=True)
            return float(function(*moved(step)).numpy())

    if wanted is None and not np.isfinite(at(0)):
        return None, 0.0
    after, before = at(STEP), at(-STEP)
    coarse = (after - before) / (2 * STEP)
    floor = FLOOR * (1 + abs(after))
    if wanted is not None and abs(coarse - wanted) <= WRONG * (abs(coarse) + floor):
        return coarse, abs(coarse) + floor
    middle = at(0)
    right, left = (after - middle) / STEP, (middle - before) / STEP
    fine = (at(STEP / 4) - at(-STEP / 4)) / (STEP / 2)
    size = abs(coarse) + abs(fine)
    outcomes = [places.outcome(way, moved(step)) for step in (0, STEP, -STEP)]
    largest = max(abs(middle), *(outcome.largest for outcome in outcomes))
    rounding = largest * np.finfo(np.float64).eps / STEP
    floor = FLOOR * (1 + abs(middle))
    if not np.isfinite([coarse, fine]).all() or rounding > WRONG * size:
        return None, floor if np.isfinite(floor) else 0.0
    near = abs(coarse - fine) <= AGREE * size + 1e-9
    near = near and (places.has_halves or abs(right - left) <= SIDES * size + 1e-6)
    # What is left out has to be the same.
    near = near and len({outcome.defined for outcome in outcomes}) == 1
    # What the two steps leave open is no mistake: where three elements are 0, a product is not 0
    # at any distance from there, and its derivative is.
    return (coarse if near else None), abs(coarse) + abs(coarse - fine) / WRONG + floor


@dataclass
class Outcome:
    """Of all results of a program."""

    defined: bytes
    """The mask of finite elements."""
    largest: float
    """The size of a finite element, to which a sum of them is rounded, even if it is small."""


class _Places:
    """The point at which a program is differentiated: its arguments, in float64."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self.program = program
        with Context(FERRULE_DEVICE="NUMPY"):
            names = {**NAMES, "rng": program.rng(0), "call": 0}
            arguments = [eval(s.made, names) for s in program.arguments]
        pairs = list(zip(program.arguments, arguments, strict=True))
        self.fixed = {s.name: (x.numpy(), x.dtype) for s, x in pairs}
        wanted = [x for s, x in pairs if s.name in program.wanted]
        self.names = [s.name for s in program.arguments if s.name in program.wanted]
        self.kind = _kind(program)
        self.arrays = [x.numpy().astype(np.float64) for x in wanted]
        if self.kind == "off":
            self.arrays = [x + rng.uniform(0.05, 0.2, x.shape) for x in self.arrays]
        if self.kind == "tied":
            with np.errstate(invalid="ignore"):
                self.arrays = [x + 0.1 * np.sin(1.3 * x) for x in self.arrays]

    def directions(self, rng: np.random.Generator) -> list[Array]:
        """The directions of a step; at tied points equal elements of all arguments move together.

        There, with phase 0, equal absolute values stay equal and zeros stay 0; with phase 1, zeros
        move as well.
        """
        if self.kind != "tied" or self.has_halves:
            return [rng.uniform(-1, 1, x.shape) for x in self.arrays]
        wave, phase = rng.uniform(0.5, 2.5), rng.choice([0.0, 1.0])
        with np.errstate(invalid="ignore"):
            return [np.sin(wave * x + phase) for x in self.arrays]

    def step(self) -> Step:
        """The results of the arguments of `wanted`, of a program that starts anew."""
        names: dict[str, Any] = {**NAMES, "__name__": "program"}
        names["rng"] = self.program.rng(-1)
        for source in self.program.states:
            names[source.name] = eval(source.made, names)
        if self.program.is_random:
            Tensor.manual_seed(self.program.seed)
        exec(self.program.step_text(), names)
        step: Step = names["step"]

        def of_wanted(*inputs: Tensor) -> Sequence[Tensor]:
            given = {name: Tensor(array, dtype=kind) for name, (array, kind) in self.fixed.items()}
            given.update(zip(self.names, inputs, strict=True))
            return step(*given.values())

        return of_wanted

    def outcome(self, way: Way, inputs: Sequence[Tensor]) -> Outcome:
        """The results of a run, as far as differences need them."""
        with Context(FERRULE_DEVICE="NUMPY"):
            results = [*self.step()(*inputs)]
            if way.mapped:
                results += self.step()(*_halves(inputs))
            arrays = [result.detach().numpy().astype(np.float64) for result in results]
        finite = [np.isfinite(x) for x in arrays]
        largest = [np.abs(x).max(initial=0, where=f) for x, f in zip(arrays, finite, strict=True)]
        return Outcome(b"".join(f.tobytes() for f in finite), max(map(float, largest), default=0.0))

    @property
    def has_halves(self) -> bool:
        """True if at a corner the derivative is the mean of those to both sides."""
        return all(HALVES.issuperset(methods(line)) for line in self.program.body)

    def function(self, way: Way, masked: bool = True, in_loop: bool = False) -> Function:
        """The total of the results, or one of its gradients, of a program that starts anew.

        If it is `masked`, what is not finite is left out. A way that is mapped has the total for
        the inputs and for their halves, by one map of both unless it is `in_loop`.
        """
        finite = _where_finite if masked else (lambda result: result)
        step = self.step()

        def results(*inputs: Tensor) -> Sequence[Tensor]:
            return [finite(result) for result in step(*inputs)]

        def first(*inputs: Tensor) -> Tensor:
            return number_of(results)(*inputs)[0].cast("float64")

        def both(*inputs: Tensor) -> Tensor:
            halves = _halves(inputs)
            if in_loop:
                return first(*inputs) + first(*halves)
            pairs = [Tensor.stack(x, half) for x, half in zip(inputs, halves, strict=True)]
            totals: Tensor = ferrule.vmap(first)(*pairs)
            return totals.sum()

        whole = both if way.mapped else first

        def derived(*inputs: Tensor) -> Tensor:
            slopes = ferrule.grad(whole, tuple(range(len(inputs))))(*inputs)
            parts = [(finite(slope) * _waves(slope.shape)).sum() for slope in slopes]
            total: Tensor = sum(parts[1:], parts[0])
            return total

        return derived if way.derivative == "second" else whole


def _halves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [0.5 * x for x in inputs]


def _where_finite(result: Tensor) -> Tensor:
    """A result with 0 where it is not finite, so that the others can be told from differences."""
    return result.isfinite().where(result, 0) if dtypes.is_float(result.dtype) else result


def _waves(shape: Sequence[int]) -> Tensor:
    """Weights that are none of the round numbers that derivatives tend to be."""
    count = int(np.prod(shape))
    return Tensor(np.cos(np.arange(count) * 1.7 + 0.3).reshape(tuple(shape)))
