"""Statements beyond methods and operators: layers, training, transformations, other functions.

About one program in six has one of these kinds, in several of its statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrule.dtype import dtypes
from tests.fuzz import chances, namespaces, training, transforms
from tests.fuzz.drawing import Drawing, NothingFitsError
from tests.fuzz.given import tensors_of
from tests.fuzz.layers import Drawn, drawn, layers

SHARE = 0.18
"""Of programs."""
FEW = 4
"""Tensors of a model; one with more has many kernels, takes long, and is drawn more seldom."""


@dataclass
class Beyond:
    """Draws statements of these kinds, for one program."""

    draw: Drawing
    values: Mapping[str, Any]
    """All that the program has, also what is no tensor."""
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By model: what it was drawn for."""
    spent: set[str] = field(default_factory=set)
    """Tensors whose tape a step may have freed."""
    few: int = FEW

    def objects(self, letters: str) -> list[str]:
        """The objects of a kind that the program has so far."""
        return [name for name in self.inputs if name[0] in letters]

    # -- layers ----------------------------------------------------------------------------------

    def layer(self) -> str:
        """A call of a layer, with its own parameters or with others."""
        draw = self.draw
        known = self.objects("mt")
        if known and draw.chance(0.35):
            return self.again(draw.choice(known))
        return self.called(drawn(draw, draw.choice(layers())))

    def model(self) -> str:
        """A call of a model that can be trained."""
        draw = self.draw
        layer = draw.choice([x for x in layers() if x.has_tensors or x.name == "Sequential"])
        return self.called(drawn(draw, layer), False)

    def called(self, chosen: Drawn, with_others: bool = True) -> str:
        draw = self.draw
        given = ", ".join(chosen.inputs)
        if "dtype=" not in chosen.made:
            return f"{chosen.made}({given})"
        letter = draw.choice("mmt")
        made = f"filled({chosen.made}, {{}})"
        name = draw.object(letter, f"{made}.train()" if letter == "t" else made)
        self.inputs[name] = chosen.inputs
        count = len(tensors_of(self.values[name]))
        if not draw.chance((self.few / max(count, self.few)) ** 1.5):
            raise NothingFitsError
        if letter == "m" and with_others and draw.chance(0.5):
            return self.with_others(name, given)
        return f"{name}({given})"

    def with_others(self, name: str, given: str) -> str:
        """A call with parameters that are tensors of the program."""
        pairs = [
            f"{key!r}: {self.draw.fresh(x.shape, x.dtype.name)}"
            for key, x in tensors_of(self.values[name]).items()
            if x.requires_grad
        ]
        return f"nn.state.functional_call({name}, {{{', '.join(pairs)}}}, ({given},))"

    def again(self, name: str) -> str:
        """A second call of a model, with the same inputs or others like them."""
        draw = self.draw
        others = []
        for text in self.inputs[name]:
            x = draw.values.get(text)
            is_like = x is not None and dtypes.is_float(x.dtype) and draw.chance(0.7)
            others.append(draw.like(x) if is_like and x is not None else text)
        return f"{name}({', '.join(others)})"

    # -- training --------------------------------------------------------------------------------

    def training(self) -> str:
        """A call of a model, or a step of an optimiser of the models that there are."""
        draw = self.draw
        models = self.objects("mt")
        learnt = draw.fitting(lambda y: bool(y.requires_grad) and dtypes.is_float(y.dtype))
        learnt = [name for name in learnt if name not in self.spent]
        if not models or not learnt or draw.chance(0.2):
            return self.again(draw.choice(models)) if models and draw.chance(0.6) else self.model()
        known = self.objects("o")
        if known and draw.chance(0.6):
            name = draw.choice(known)
            if draw.chance(0.25):
                return self.scheduled(name)
        else:
            maker = draw.choice(training.optimizers())
            name = draw.object("o", maker.made(draw, training.parameters(draw, models, maker)))
            self.inputs[name] = ()
        self.spent |= {*draw.values}
        return training.step(draw, name, draw.choice(learnt))

    def scheduled(self, optimizer: str) -> str:
        """A step of a schedule of learning rates; an object that is none has no parameters."""
        schedule = self.draw.choice(training.schedules())
        return f"{self.draw.object('o', schedule.made(self.draw, optimizer))}.step()"

    # -- functions -------------------------------------------------------------------------------

    def transform(self) -> str:
        return transforms.transformed(self.draw, self.values)

    def function(self) -> str:
        function = self.draw.choice(namespaces.functions())
        if function.lacking:
            raise NothingFitsError
        return namespaces.call(self.draw, function)

    def chance(self) -> str:
        method = self.draw.choice(chances.chances())
        if method.lacking:
            raise NothingFitsError
        return chances.call(self.draw, method)


KINDS: dict[str, Callable[[Beyond], str]] = {
    "layers": Beyond.layer,
    "training": Beyond.training,
    "transforms": Beyond.transform,
    "functions": Beyond.function,
    "chance": Beyond.chance,
}
WEIGHTS = {"layers": 35, "training": 15, "transforms": 25, "functions": 12, "chance": 13}
