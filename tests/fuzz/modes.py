"""Small models that train in one mode or another: which optimisers warn.

A layer that behaves otherwise in training, and is left in evaluation by nobody's decision, is
named by the next optimiser that steps along gradients through it, once. Nobody else is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random

from ferrule import Context, Tensor, nn
from ferrule.nn.optim import SGD
from ferrule.nn.optim.optimizer import TrainingModeWarning
from tests.fuzz.check import Finding, finding_beside

SHARE = 0.04
"""Of the programs, beside which models are drawn."""
WIDTH, ROWS, STEPS = 4, 6, 3
DEPENDENT: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "Dropout": lambda: nn.Dropout(0.5),
    "BatchNorm1d": lambda: nn.BatchNorm1d(WIDTH),
    "AlphaDropout": lambda: nn.AlphaDropout(0.5),
}
OTHERS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "ReLU": lambda: nn.ReLU(),
    "Linear": lambda: nn.Linear(WIDTH, WIDTH),
}


class Trained:
    """A model as the names of its layers, its mode, and perhaps another model beside it."""

    def __init__(self, rng: Random) -> None:
        self.layers = rng.choices([*DEPENDENT, *OTHERS], k=rng.randint(1, 4))
        self.own = rng.choice([None, None, None, True, False])
        """The mode of the model itself, if it has one."""
        self.block = rng.choice([None, None, True, False])
        """The mode of the thread, if it was set."""
        self.recorded = rng.random() < 0.9
        """False if the layers run without the tape, so that nothing is differentiated."""
        self.beside = rng.random() < 0.3
        """True if another model, without such layers, is trained as well."""

    def __str__(self) -> str:
        return f"{vars(self)}"

    @property
    def wanted(self) -> list[int]:
        """The steps at which the optimiser warns."""
        asked = self.own is not None or self.block is not None
        depends = any(name in DEPENDENT for name in self.layers)
        return [0] if depends and not asked and self.recorded else []

    def warned(self) -> tuple[list[int], int]:
        """The steps at which the optimiser warned, and how often another one did."""
        made = [(DEPENDENT | OTHERS)[name]() for name in self.layers]
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *made)
        other = nn.Linear(WIDTH, WIDTH)
        if self.own is not None:
            model.train(self.own)
        mine, others = (SGD(nn.state.get_parameters(each), lr=0.1) for each in (model, other))
        x = Tensor.ones(ROWS, WIDTH)
        found, more = [], 0
        block: AbstractContextManager[object] = nullcontext()
        with Context(FERRULE_DEVICE="NUMPY"):
            for step in range(STEPS):
                if self.block is not None:
                    block = Tensor.train(self.block)
                with block:
                    if not self.recorded:
                        with Tensor.no_grad():
                            model(x)
                        loss = model[0](x).sum()
                        unused = nn.state.get_parameters(model)[2:]
                        loss = loss + sum((p * 0).sum() for p in unused)
                    else:
                        loss = model(x).square().sum()
                    if step > 0 or not self.beside:
                        mine.zero_grad()
                    loss.backward()
                    found += [step] * self.warnings_of(mine)
                    if self.beside:
                        others.zero_grad()
                        other(x).sum().backward()
                        more += self.warnings_of(others)
        return found, more

    def mistake(self) -> str:
        """The steps at which the optimisers warn, if they should not, or do not; else nothing."""
        found = self.warned()
        return "" if found == (self.wanted, 0) else f"warns in steps {found}, not {self.wanted}"

    @staticmethod
    def warnings_of(optimizer: SGD) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        return sum(issubclass(w.category, TrainingModeWarning) for w in caught)


def finding(seed: int, index: int) -> Finding | None:
    """A finding in the warnings about modes, which are drawn for a share of the programs."""
    rng = Random(f"modes:{seed}:{index}")
    if rng.random() > SHARE:
        return None
    trained = Trained(rng)
    return finding_beside("modes", trained, trained.mistake)
