"""Functions outside of `Tensor`: Fourier transforms, signals, windows, the array API.

A function that is added to one of these modules is fuzzed as soon as its parameters have usual
names. `tests/fuzz/test_beyond.py` holds which ones no program calls, and why.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import ferrule.array_api
import ferrule.array_api.linalg
import ferrule.fft
import ferrule.signal.windows
from ferrule import Tensor
from ferrule.dtype import dtypes
from tests.fuzz.drawing import Drawing
from tests.fuzz.surface import (
    Maker,
    Method,
    Parameter,
    among,
    axis,
    integer,
    like,
    matrix_right,
    operand,
    parameters_of,
)

MODULES = {
    "ferrule.fft": ferrule.fft,
    "ferrule.signal": ferrule.signal,
    "ferrule.signal.windows": ferrule.signal.windows,
    "ferrule.array_api": ferrule.array_api,
    "ferrule.array_api.linalg": ferrule.array_api.linalg,
}
# Never called by a program, each with the reason.
LEFT_OUT = {
    "asarray from_dlpack": "takes what is no tensor",
    "can_cast isdtype result_type finfo iinfo": "gives no tensor",
    "empty empty_like": "has any values",
    "nonzero unique_all unique_counts unique_inverse unique_values": (
        "its shape depends on values"
    ),
    "cholesky inv solve": "takes well-conditioned matrices; the method has a recipe",
    "eig eigvals eigh svd qr": "its results are not determined",
}
_OUT = {name: reason for names, reason in LEFT_OUT.items() for name in names.split()}


def fourier_axes(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["-1", "0", "-1", "0", "-2", "1"])


def several_axes(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["(-2, -1)", "(0, 1)", "(-1, -2)"])


def several(draw: Drawing, x: Tensor) -> str:
    return f"[{', '.join(draw.like(x) for _ in range(draw.integer(1, 3)))}]"


OWN: dict[str, Maker] = {
    "n": integer(1, 9),
    "s": among("(3, 4)", "(2, 1)", "(1, 5)"),
    "fftn.s": among("None"),
    "ifftn.s": among("None"),
    "rfftn.s": among("None"),
    "irfftn.s": among("None"),
    "dim": fourier_axes,
    "fft2.dim": several_axes,
    "ifft2.dim": several_axes,
    "rfft2.dim": several_axes,
    "irfft2.dim": several_axes,
    "fftn.dim": among("None", "(-1,)", "(0,)"),
    "ifftn.dim": among("None", "(-1,)", "(0,)"),
    "rfftn.dim": among("None", "(-1,)", "(0,)"),
    "irfftn.dim": among("None", "(-1,)", "(0,)"),
    "ifftshift.dim": among("None", "0", "(0,)"),
    "fftshift.dim": among("None", "0", "(0,)"),
    "fftshift.pairs": among("False"),
    "ifftshift.pairs": among("False"),
    "norm": among("None", "'ortho'", "'forward'", "'backward'"),
    "d": among("1.0", "0.5", "2.0"),
    "M": integer(1, 12),
    "a": among("[0.5, 0.5]", "[0.25, 0.5, 0.25]"),
    "alpha": among("0.5", "0.25"),
    "std": among("1.0", "2.0"),
    "beta": among("2.0", "6.0"),
    "tau": among("1.0", "0.5"),
    "n_fft": among("2", "4", "5"),
    "hop_length": among("1", "2"),
    "pad_mode": among("'reflect'", "'constant'"),
    "x2": operand,
    "where.x1": operand,
    "matmul.x2": matrix_right,
    "vecdot.x2": like,
    "cross.x2": like,
    "outer.x2": like,
    "solve.x2": like,
    "tensordot.x2": like,
    "searchsorted.x2": like,
    "axes": among("0", "1"),
    "arrays": several,
    "repetitions": among("(2,)", "(1, 2)", "(2, 1)"),
    "repeats": integer(1, 3),
    "shift": integer(-2, 2),
    "n_rows": integer(1, 4),
    "n_cols": integer(1, 4),
    "start": among("0", "1"),
    "stop": among("3", "5"),
    "num": integer(1, 6),
    "dtype": among("None"),
    "astype.dtype": among("ferrule.dtypes.float64", "ferrule.dtypes.int32"),
    "copy": among("True"),
    "mode": among("'reduced'"),
    "source": axis,
    "destination": axis,
}


@dataclass(frozen=True)
class Function(Method):
    """A function of a module; `on_tensor` says that its first argument is a tensor."""

    path: str = ""

    def maker(self, parameter: Parameter) -> Maker | None:
        own = OWN.get(f"{self.name}.{parameter.name}", OWN.get(parameter.name))
        return own or super().maker(parameter)

    @property
    def lacking(self) -> list[str]:
        return [p.name for p in self.parameters if p.required and self.maker(p) is None]

    def call(self, draw: Drawing, x: Tensor, receiver: str) -> str:
        first = [receiver] if self.on_tensor else []
        return f"{self.path}({', '.join([*first, *self.arguments(draw, x)])})"


def member_of(function: Function) -> Any:
    """The function itself."""
    path, _, name = function.path.rpartition(".")
    return getattr(MODULES[path], name)


@functools.cache
def functions() -> tuple[Function, ...]:
    """All public functions that programs may call."""
    found = []
    for path, module in MODULES.items():
        for name in module.__all__:
            member = getattr(module, name)
            if not inspect.isfunction(member) or name in _OUT or name.startswith("__"):
                continue
            parameters = parameters_of(inspect.signature(member))
            first = parameters[0].annotation if parameters else ""
            on_tensor = first in ("Tensor", "Tensor | Scalar")
            path_of = f"{path}.{name}"
            found.append(Function(name, parameters[on_tensor:], on_tensor, path_of))
    return tuple(found)


def call(draw: Drawing, function: Function) -> str:
    """A call of a function, as text."""
    least = 2 if function.name.endswith("2") else 1
    takes_pairs = function.name.removeprefix("i") in PAIRS or function.name.startswith("irfft")
    if function.name == "istft":  # of what has the right number of frequencies
        name, size = _real(draw, 1), draw.integer(2, 5)
        return f"ferrule.signal.istft(ferrule.signal.stft({name}, {size}), {size})"
    if function.path.startswith("ferrule.array_api"):
        name = _real(draw, 1) if draw.chance(0.5) else draw.pick()
        if function.name == "where":
            name = draw.mask(draw.values[name].shape)
    else:
        name = _pairs(draw, least) if takes_pairs else _real(draw, least)
    return function.call(draw, draw.values[name], name)


PAIRS = ("fft", "fft2", "fftn")
"""Functions of complex numbers, which are a last axis of two, and their inverses."""


def _real(draw: Drawing, least: int) -> str:
    names = draw.fitting(lambda y: _is_wide_float(y) and y.ndim >= least and 0 not in y.shape)
    shape = [draw.integer(1, 9) for _ in range(draw.integer(least, 3))]
    return draw.choice(names) if names and draw.chance(0.6) else draw.fresh(shape, "float32")


def _pairs(draw: Drawing, least: int) -> str:
    def fits(y: Tensor) -> bool:
        return _is_wide_float(y) and y.ndim > least and y.shape[-1] == 2 and 0 not in y.shape

    names = draw.fitting(fits)
    shape = [draw.integer(1, 6) for _ in range(draw.integer(least, 3))]
    return draw.choice(names) if names and draw.chance(0.6) else draw.fresh((*shape, 2), "float32")


def _is_wide_float(y: Tensor) -> bool:
    return dtypes.is_float(y.dtype) and y.dtype.bits > 8
