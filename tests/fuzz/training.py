"""Optimisers and schedules of learning rates, found in what is public, and steps of training."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from ferrule import nn
from ferrule.nn.optim import lr_scheduler
from tests.fuzz.drawing import Drawing
from tests.fuzz.layers import Setting, settings_of

# Never made by a program, each with the reason.
LEFT_OUT = {
    "LBFGS": "takes a function that computes the loss",
    "Optimizer": "is what optimisers have in common",
    "LRScheduler": "is what schedules have in common",
    "LambdaLR": "takes a function",
    "MultiplicativeLR": "takes a function",
    "ChainedScheduler": "takes schedules",
    "SequentialLR": "takes schedules",
    "ReduceLROnPlateau": "takes a measure at each step",
}
ALWAYS = ("lr", "eps", "step_sizes")
"""Settings that are given despite a default: with a small `eps`, rounding decides about a step."""
LOSSES = (".sum()", ".mean()", ".square().mean()", ".sigmoid().sum()", ".tanh().square().sum()")
CLIPS = ("nn.utils.clip_grad_norm_(p, 0.5)", "nn.utils.clip_grad_value_(p, 0.25)")


@dataclass(frozen=True)
class Maker:
    """A class that makes an optimiser of parameters, or a schedule of an optimiser."""

    path: str
    settings: tuple[Setting, ...]
    """Without the first parameter."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def lacking(self) -> list[str]:
        return [s.name for s in self.settings if s.required and not s.words(self.name)]

    def made(self, draw: Drawing, first: str) -> str:
        parts = [first]
        for setting in self.settings:
            words = setting.words(self.name).split()
            wanted = setting.required or setting.name in ALWAYS
            if words and (wanted or draw.chance(0.3)):
                parts.append(f"{setting.name}={draw.choice(words)}")
        return f"{self.path}({', '.join(parts)})"


@functools.cache
def optimizers() -> tuple[Maker, ...]:
    """All public optimisers that programs may make."""
    return _makers("nn.optim", nn.optim, nn.optim.Optimizer)


@functools.cache
def schedules() -> tuple[Maker, ...]:
    """All public schedules of learning rates that programs may make."""
    return _makers("nn.optim.lr_scheduler", lr_scheduler, lr_scheduler.LRScheduler)


def _makers(path: str, module: object, kind: type) -> tuple[Maker, ...]:
    found = []
    for name in getattr(module, "__all__", ()):
        member = getattr(module, name)
        if isinstance(member, type) and issubclass(member, kind) and name not in LEFT_OUT:
            settings = settings_of(inspect.signature(member))[1:]
            found.append(Maker(f"{path}.{name}", settings))
    return tuple(found)


def parameters(draw: Drawing, models: Sequence[str], maker: Maker) -> str:
    """The parameters of some models, as an expression."""
    chosen = draw.rng.sample(models, draw.integer(1, len(models)))
    text = chosen[0] if len(chosen) == 1 else f"[{', '.join(chosen)}]"
    text = f"nn.state.get_parameters({text})"
    return f"[p for p in {text} if p.ndim == 2]" if maker.name == "Muon" else text


def step(draw: Drawing, optimizer: str, value: str) -> str:
    """A step of training by a loss that is made of a tensor."""
    loss = f"{value}{draw.choice(LOSSES)}"
    clip = f", lambda p: {draw.choice(CLIPS)}" if draw.chance(0.2) else ""
    return f"update({optimizer}, {loss}{clip})"
