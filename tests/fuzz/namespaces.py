"""Functions outside of `Tensor`: Fourier transforms, signals, windows, the array API.

A function that is added to one of these modules is fuzzed as soon as its parameters have usual
names. `tests/fuzz/test_beyond.py` holds which ones no program calls, and why.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

import ferrule.array_api
import ferrule.fft
import ferrule.signal.windows
from ferrule import Tensor
from ferrule.dtype import dtypes
from tests.fuzz.drawing import Drawing
from tests.fuzz.surface import (
    MAKERS,
    Maker,
    Method,
    Parameter,
    among,
    any_shape,
    axes,
    axis,
    integer,
    operand,
    parameters_of,
)

MODULES = {
    "ferrule.fft": ferrule.fft,
    "ferrule.signal": ferrule.signal,
    "ferrule.signal.windows": ferrule.signal.windows,
}
# Never called by a program, each with the reason.
LEFT_OUT: dict[str, str] = {}


def sizes(draw: Drawing, x: Tensor) -> str:
    return str(tuple(draw.integer(1, 5) for _ in range(draw.integer(1, 2))))


def fourier_axes(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["-1", "0", "-2", "1"])


def several_axes(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["(-2, -1)", "(0, 1)", "(-1,)", "(0,)"])


OWN: dict[str, Maker] = {
    "n": integer(1, 9),
    "s": sizes,
    "dim": fourier_axes,
    "fft2.dim": several_axes,
    "ifft2.dim": several_axes,
    "rfft2.dim": several_axes,
    "irfft2.dim": several_axes,
    "fftn.dim": several_axes,
    "ifftn.dim": several_axes,
    "rfftn.dim": several_axes,
    "irfftn.dim": several_axes,
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


@functools.cache
def functions() -> tuple[Function, ...]:
    """All public functions that programs may call."""
    found = []
    for path, module in MODULES.items():
        for name in module.__all__:
            member = getattr(module, name)
            if not inspect.isfunction(member) or f"{path}.{name}" in LEFT_OUT:
                continue
            parameters = parameters_of(inspect.signature(member))
            on_tensor = bool(parameters) and parameters[0].annotation.endswith("Tensor")
            found.append(
                Function(name, parameters[on_tensor:], on_tensor, f"{path}.{name}")
            )
    return tuple(found)


def call(draw: Drawing, function: Function) -> str:
    """A call of a function, as text."""

    def fits(y: Tensor) -> bool:
        return dtypes.is_float(y.dtype) and y.dtype.bits > 8 and y.ndim > 0

    if draw.chance(0.5):  # complex numbers
        pairs = draw.fitting(lambda y: fits(y) and y.shape[-1] == 2)
        shape = [draw.integer(1, 6) for _ in range(draw.integer(1, 3))]
        name = draw.choice(pairs) if pairs and draw.chance(0.5) else draw.fresh((*shape, 2), "float32")
    else:
        name = draw.pick(fits)
    return function.call(draw, draw.values[name], name)
