"""Methods that draw by chance: equal seeds give equal numbers in all ways to run a program."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace

from ferrule import Tensor
from ferrule.dtype import dtypes
from tests.fuzz.drawing import Drawing
from tests.fuzz.program import CHANCE
from tests.fuzz.recipes import ranked
from tests.fuzz.surface import Maker, Method, Parameter, among, any_shape, axis, parameters_of

FLOAT_NAMES = ('"float32"', '"float64"', '"float16"')
MAKERS: dict[str, Maker] = {
    "shape": any_shape,
    "training": among("True"),
    "p": among("0.5", "0.25"),
    "n": among("1", "2", "7", "12"),
    "a": among("0.5"),
    "mean": among("0.5", "-1.0"),
    "std": among("0.5", "2.0"),
    "low": among("-1", "0", "-3"),
    "high": among("2", "5"),
    "lower": among("0.125", "0.25"),
    "upper": among("0.5"),
    "lambd": among("0.5", "2.0"),
    "tau": among("1.0", "2.0"),
    "hard": among("True", "False"),
    "dim": axis,
    "num_samples": among("1", "3"),
    "replacement": among("True"),
    "dtype": among(*FLOAT_NAMES),
    "randint_like.low": among("2", "5"),
    "randint_like.high": among("7"),
    "randint.dtype": among('"int32"', '"int64"', '"uint8"'),
    "randint.low": among("0", "1"),
    "randperm.dtype": among('"int32"', '"int64"'),
}
WANTED = ("training", "replacement")
"""Arguments that are always given: without them, some methods draw nothing."""


@dataclass(frozen=True)
class Chance(Method):
    """A method, or a function on `Tensor`, that draws by chance."""

    def maker(self, parameter: Parameter) -> Maker | None:
        return MAKERS.get(f"{self.name}.{parameter.name}", MAKERS.get(parameter.name))

    @property
    def lacking(self) -> list[str]:
        return [p.name for p in self.parameters if p.required and self.maker(p) is None]


@functools.cache
def chances() -> tuple[Chance, ...]:
    """All public methods that draw by chance."""
    found = []
    for name in sorted(CHANCE):
        member = inspect.getattr_static(Tensor, name)
        parameters = tuple(
            replace(p, kind=p.kind.KEYWORD_ONLY, required=True) if p.name in WANTED else p
            for p in parameters_of(inspect.signature(getattr(Tensor, name)))
        )
        on_tensor = not isinstance(member, classmethod | staticmethod)
        found.append(Chance(name, parameters, on_tensor))
    return tuple(found)


def call(draw: Drawing, method: Chance) -> str:
    """A call of one, as text."""
    if not method.on_tensor:
        name = draw.pick()
        return method.call(draw, draw.values[name], "Tensor")
    if method.name.startswith("dropout") and method.name.endswith("d"):  # of whole channels
        name, _ = ranked(draw, int(method.name[-2]) + draw.integer(1, 2))
    elif method.name == "multinomial":  # of weights that are not negative
        name, _ = ranked(draw, draw.integer(1, 2))
        return method.call(draw, draw.values[name], f"({name}.abs() + 1)")
    else:
        name = draw.pick(lambda y: dtypes.is_float(y.dtype) and y.dtype.bits > 8)
    return method.call(draw, draw.values[name], name)
