"""Runs a program in several ways and says where they disagree."""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import finfo

from ferrule import Tensor, dtypes, errors
from tests.fuzz.derivatives import mistake
from tests.fuzz.functions import ORACLES
from tests.fuzz.numpys import DiffersError, NumpyOracle
from tests.fuzz.program import Program, assigned, is_object, loaded, methods, written
from tests.fuzz.reference import (
    Expected,
    Machine,
    Outcome,
    UndefinedError,
    evaluate,
    is_float,
    mantissa,
    noisy,
)
from tests.fuzz.ways import Way, run

Array = np.ndarray[Any, Any]

# Of the largest element of a result; what may be off before the question is looked into.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
NOISE = {"float64": 1e-15, "float32": 3e-7, "float16": 2e-3, "bfloat16": 1.6e-2}
CL_BLUR = 5.0
"""Factor on the noise for OpenCL: its standard allows functions errors of up to 16 units."""
COARSE = 0.3
FLOOR = 3e-7
"""Absolute tolerance for tensors of models and optimisers: their gradients may cancel to noise."""
SAMPLES = 8

TYPED = tuple(getattr(errors, name) for name in errors.__all__)
# Errors that say that something inside is wrong, whatever the program was.
INTERNAL = (AssertionError, KeyError, AttributeError, RecursionError, NameError, SystemError)


@dataclass(frozen=True)
class Finding:
    """A program that is not what it should be in some way."""

    kind: str
    """"wrong", "error", "crash" or "hang"."""
    program: Program
    way: Way | None
    where: str
    """The location that, with the kind, identifies a finding."""
    detail: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.where

    def text(self) -> str:
        title = f"{self.kind}: {self.where}\n\nWay: {self.way}\n\n{self.detail}"
        return self.program.text(title.replace('"""', "'''").replace("\\", "\\\\") + "\n")


def is_internal(error: BaseException) -> bool:
    """True if an error is no answer to what a user did, but a fault within."""
    if isinstance(error, TYPED):
        return False
    return isinstance(error, INTERNAL)


def not_possible(error: BaseException, way: Way) -> bool:
    """True if an error says that a way is not for such programs, as the documentation does."""
    if way.jit and isinstance(error, errors.JitError):
        return "a replay of" not in str(error)  # a check's error: the replay was wrong
    if way.mapped and isinstance(error, errors.VmapError):
        return True
    # A state that something to differentiate by was written to keeps the tape of the call before.
    if way.derivative == "tape" and isinstance(error, errors.GradientError):
        return "the tape was freed" in str(error)
    # Sizes that a function needs to know, and literal ones that do not go with a variable's.
    if way.variable and not is_internal(error):
        return isinstance(error, (*TYPED, ValueError, TypeError, IndexError, NotImplementedError))
    return way.derivative == "second" and isinstance(error, errors.GradientError)


def place_of(error: BaseException) -> str:
    """The innermost function of ferrule's that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/ferrule/" in frame.filename]
    if not inside:
        return type(error).__name__
    last = inside[-1]
    module = last.filename.rpartition("/ferrule/")[2]
    return f"{type(error).__name__} in {module}:{last.name}"


def error_finding(error: BaseException, program: Program, way: Way | None) -> Finding:
    text = "".join(traceback.format_exception(error)[-8:])
    return Finding("error", program, way, place_of(error), text)


def finding_beside(where: str, drawn: object, mistake: Callable[[], str]) -> Finding | None:
    """The finding of what is drawn beside programs: the mistake that it has, if any.

    An error is one too: all that is drawn can be done.
    """
    try:
        said = mistake()
    except Exception as error:
        said = "".join(traceback.format_exception(error)[-2:])
    return Finding("wrong", Program((), (), ()), None, where, f"{drawn}\n{said}") if said else None


def differing(error: DiffersError, program: Program) -> Finding:
    """The finding of a program, a statement of which is not what NumPy gives."""
    where = " ".join(["numpy", *sorted(methods(str(error).partition("\n")[0]))])
    return Finding("wrong", program, None, where, str(error))


def check(program: Program, ways: Sequence[Way]) -> Finding | None:
    """The first finding of a program; None if all ways agree with its meaning.

    Raises what the program itself raises, if that is a user's error.
    """
    try:
        expected = evaluate(program, oracle=NumpyOracle())
    except DiffersError as error:
        return differing(error, program)
    except Exception as error:
        if is_internal(error):
            return error_finding(error, program, None)
        raise
    for way in ways:
        try:
            finding = check_way(program, way, expected)
        except Exception as error:
            if not_possible(error, way):
                impossible[kind_of(way)] += 1
                continue
            return error_finding(error, program, way)
        if finding is not None:
            return finding
    return None


impossible: Counter[str] = Counter()
"""Counts of ways that did not apply to a program, by kind: one that never applies is a mistake."""


def kind_of(way: Way) -> str:
    kinds = {"variable": way.variable, "mapped": way.mapped, "split": way.split, "jit": way.jit}
    return next((kind for kind, chosen in kinds.items() if chosen), way.derivative)


def check_way(program: Program, way: Way, expected: Expected) -> Finding | None:
    if way.derivative in ORACLES:
        return check_derivative(program, way)
    return compare(program, way, expected, run(program, way))


def check_derivative(program: Program, way: Way, forwards: bool = True) -> Finding | None:
    said = mistake(program, way, forwards)
    where = signature(program, way)
    return None if said is None else Finding("wrong", program, way, where, said)


def compare(program: Program, way: Way, expected: Expected, outcome: Outcome) -> Finding | None:
    labels = outcome.labels(program)
    shadows = shadows_of(program, CL_BLUR if way.device == "CL" else 1.0)
    for call, arrays in enumerate(outcome.calls):
        if len(arrays) != len(expected.calls[call]):
            detail = f"call {call}: state of {expected.states}, found {outcome.states}"
            return Finding("wrong", program, way, signature(program, way), detail)
        for place, found in enumerate(arrays):
            wanted, exact = expected.calls[call][place], expected.exact[call][place]
            if way.derivative == "jvp" and labels[place].endswith(".grad"):
                wanted, found = _finite_in_both(wanted, found)
            floor = FLOOR if is_object(labels[place].partition(".")[0]) else 0.0
            if agree(wanted, found, exact, floor):
                continue
            if not exact and plausible(shadows, call, place, wanted, found):
                continue
            detail = f"call {call}, {labels[place]} ({'exact' if exact else 'inexact'})\n"
            detail += f"expected {short(wanted)}\nfound    {short(found)}"
            return Finding("wrong", program, way, signature(program, way), detail)
    return None


def _finite_in_both(wanted: Array, found: Array) -> tuple[Array, Array]:
    """The arrays with 0 where one of them is not finite.

    Forwards, 0 times the infinite slope of what is overwritten is NaN; backwards, nothing is.
    """
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return wanted, found
    fine = np.isfinite(wanted.astype(np.float64)) & np.isfinite(found.astype(np.float64))
    zero = np.zeros((), wanted.dtype)
    return np.where(fine, wanted, zero), np.where(fine, found, zero)


def signature(program: Program, way: Way) -> str:
    used = sorted({name for line in program.body for name in methods(line)})
    return f"{way.device} {'jit ' if way.jit else ''}{' '.join(used)}"


def short(array: Array) -> str:
    text = np.array2string(array, threshold=60, edgeitems=4, max_line_width=90)
    return f"{array.dtype} {array.shape} {text}"


def agree(wanted: Array, found: Array, exact: bool, floor: float = 0.0) -> bool:
    """True if an array is what it should be, or near enough to pass without a closer look."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    if not is_float(wanted) or exact:
        return bool(np.array_equal(wanted, found, equal_nan=is_float(wanted)))
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(a) + 0.1 * np.abs(a[finite]).mean() if finite.any() else np.abs(a)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= TOLERANCE.get(wanted.dtype.name, COARSE) * scale + floor
    return bool(np.all(same | near))


class Shadows:
    """Evaluations of a program in float64, with noise as large as that of rounding, times `blur`.

    They are made when the first array needs them, and are there for all others.
    """

    def __init__(self, program: Program, blur: float = 1.0) -> None:
        self.program = program
        self.noise = blur * _noise_of(program)
        self.made: dict[float, list[Expected] | None] = {}

    @functools.cached_property
    def may_overflow(self) -> bool:
        return _meets(self.program, _may_overflow)

    @functools.cached_property
    def rounds_integers(self) -> bool:
        return _meets(self.program, _is_rounded_integer)

    def of(self, noise: float) -> list[Expected] | None:
        """The evaluations, the first without noise; None if noise makes it another program."""
        if noise not in self.made:
            self.made[noise] = self._evaluated(noise)
        return self.made[noise]

    def _evaluated(self, noise: float) -> list[Expected] | None:
        found = []
        for number in range(SAMPLES):
            for everything in (False, True):
                amplitude = noise * (0 if number == 0 and not everything else 1)
                try:
                    found.append(noisy(self.program, number, everything, amplitude))
                except Exception as error:
                    if is_internal(error):
                        raise
                    return None
        return found


@functools.lru_cache(2)
def shadows_of(program: Program, blur: float) -> Shadows:
    """The evaluations for all ways to run a program."""
    return Shadows(program, blur)


def plausible(shadows: Shadows, call: int, place: int, wanted: Array, found: Array) -> bool:
    """True if the noise of shadows explains a difference."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    same_finite = is_float(wanted) and np.array_equal(np.isfinite(wanted), np.isfinite(found))
    if not same_finite and shadows.may_overflow:
        return True
    if shadows.rounds_integers:
        return True
    noise = max(shadows.noise, NOISE.get(wanted.dtype.name, 0))
    samples: list[Array] = [wanted.astype(np.float64)]
    made = shadows.of(noise)
    if made is None:
        return True
    for shadow in made:
        if len(shadow.calls) <= call or shadow.calls[call][place].shape != wanted.shape:
            return True
        samples.append(shadow.calls[call][place].astype(np.float64))
    return _within(np.stack(samples), found.astype(np.float64), noise)


def _meets(program: Program, test: Callable[[Tensor, Sequence[Tensor]], bool]) -> bool:
    """True if a test is true of an operand and the results of some statement."""
    found = False

    def look(machine: Machine, line: str) -> None:
        nonlocal found
        names = [*assigned(line), written(line)] if line else []
        results = [machine.values.get(name) for name in names if name is not None]
        tensors = [result for result in results if isinstance(result, Tensor)]
        for name in loaded(line) if line else ():
            value = machine.values.get(name)
            found = found or (isinstance(value, Tensor) and test(value, tensors))

    evaluate(program, look)
    return found


def _may_overflow(operand: Tensor, results: Sequence[Tensor]) -> bool:
    """True if sums of an operand overflow in one order of its elements, and not in another."""
    if not dtypes.is_float(operand.dtype):
        return False
    sizes = np.abs(operand.detach().numpy().astype(np.float64))
    return bool(sizes[np.isfinite(sizes)].sum() > float(finfo(operand.dtype.np).max))


def _is_rounded_integer(operand: Tensor, results: Sequence[Tensor]) -> bool:
    """True for integers that floats of a result cannot hold: their sums cancel by order."""
    floats = [result.dtype.np for result in results if dtypes.is_float(result.dtype)]
    if dtypes.is_float(operand.dtype) or not floats or not operand.numel():
        return False
    largest = np.abs(operand.numpy().astype(np.float64)).max()
    return bool(largest > 2.0 ** min(mantissa(np.dtype(kind)) for kind in floats))


def _noise_of(program: Program) -> float:
    text = " ".join([*(source.made for source in program.sources), *program.body])
    if "bfloat16" in text or "float8" in text:
        return NOISE["bfloat16"] if "float8" not in text else COARSE
    if "float16" in text or ".half()" in text:
        return NOISE["float16"]
    # Integers, too, are computed in float32 unless something says otherwise.
    wide = all("float64" in source.made for source in program.sources) and "float32" not in text
    return NOISE["float64" if wide else "float32"]


def _within(samples: Array, found: Array, noise: float) -> bool:
    wild = ~np.isfinite(samples).all(0) | (np.abs(samples).max(0) > 1e30)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = samples.min(0), samples.max(0)
        # The first sample is a run's own, and the second the same without rounding.
        rounding = np.abs(samples[0] - samples[1]).max(initial=0, where=~wild)
        room = 10 * (high - low) + 20 * noise * np.abs(samples).max(0) + 20 * noise * 1e-3
        room = room + 4 * rounding
        fine = (found >= low - room) & (found <= high + room)
    return bool(np.all(wild | fine))


__all__ = ["Finding", "UndefinedError", "check", "compare", "error_finding", "is_internal"]
