"""Recurrent layers: RNN, GRU and LSTM, each a scan over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ferrule.onnx.registry import rule
from ferrule.onnx.values import OnnxError
from ferrule.tensor import Tensor
from ferrule.transforms.loops import scan

Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    a, b = alpha, beta
    known: dict[str, Activation] = {
        "affine": lambda x: (1.0 if a is None else a) * x + (0.0 if b is None else b),
        "elu": lambda x: x.elu(1.0 if a is None else a),
        "hardsigmoid": lambda x: ((0.2 if a is None else a) * x + (0.5 if b is None else b)).clip(
            0, 1
        ),
        "leakyrelu": lambda x: x.leaky_relu(0.01 if a is None else a),
        "relu": lambda x: x.relu(),
        "scaledtanh": lambda x: (1.0 if a is None else a) * ((1.0 if b is None else b) * x).tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "softplus": lambda x: x.softplus(),
        "softsign": lambda x: x.softsign(),
        "tanh": lambda x: x.tanh(),
        "thresholdedrelu": lambda x: (x > (1.0 if a is None else a)).where(x, 0.0),
    }
    if name.lower() not in known:
        raise OnnxError(f"there is no activation {name!r}")
    return known[name.lower()]


# The functions that take a parameter alpha, and those that take beta too: lists of parameters have
# no entries for the others.
_WITH_ALPHA = {
    "affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu",
}  # fmt: skip
_WITH_BETA = {"affine", "hardsigmoid", "scaledtanh"}


class Settings(NamedTuple):
    """The attributes that all recurrent layers have."""

    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    activations: Sequence[str] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def functions(self, usual: Sequence[str], sides: int) -> list[list[Activation]]:
        """The activation functions of each direction; `usual` are those that none is given for."""
        names = self.activations or list(usual) * sides
        alpha, beta = iter(self.activation_alpha or ()), iter(self.activation_beta or ())
        found = [
            _activation(
                name,
                next(alpha, None) if name.lower() in _WITH_ALPHA else None,
                next(beta, None) if name.lower() in _WITH_BETA else None,
            )
            for name in names
        ]
        if self.clip is not None:
            found = [_clipped(function, self.clip) for function in found]
        each = len(found) // sides
        return [found[side * each : (side + 1) * each] for side in range(sides)]

    def is_backwards(self, side: int) -> bool:
        """Whether a direction begins at the last step."""
        return self.direction == "reverse" or side == 1


USUAL = Settings()


class _Direction:
    """The weights of one direction of a layer, and its activation functions."""

    def __init__(
        self,
        w: Tensor,
        r: Tensor,
        b: Tensor | None,
        functions: list[Activation],
    ) -> None:
        # Each step multiplies with all of `r`, so it is stored in the order of the product.
        self.w, self.r = w, r.transpose(0, 1).contiguous()
        self.size = r.shape[-1]
        gates = r.shape[0]
        self.input_bias = None if b is None else b[:gates]
        self.state_bias = None if b is None else b[gates:]
        self.functions = functions

    def part(self, values: Tensor, gate: int) -> Tensor:
        """The part of a gate, along the last axis."""
        return values[..., gate * self.size : (gate + 1) * self.size]


def _clipped(function: Activation, bound: float) -> Activation:
    return lambda x: function(x.clip(-bound, bound))


def _layer(
    settings: Settings,
    usual: Sequence[str],
    cell: Callable[[_Direction, Tensor, State, int], State],
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    *starts: Tensor | None,
) -> tuple[Tensor, ...]:
    """A layer in one direction or both: all outputs, and the last ones of each state."""
    if settings.layout:
        x = x.transpose(0, 1)
    outputs, lasts = [], []
    for side, functions in enumerate(settings.functions(usual, w.shape[0])):
        weights = _Direction(w[side], r[side], None if b is None else b[side], functions)
        first = tuple(
            Tensor.zeros(x.shape[1], weights.size, dtype=x.dtype)
            if start is None
            else (start[:, side] if settings.layout else start[side])
            for start in starts
        )
        ys, last = _run(weights, x, lengths, first, settings.is_backwards(side), side, cell)
        outputs.append(ys)
        lasts.append(last)
    y = Tensor.stack(*outputs, dim=1)  # (steps, directions, batch, size)
    states = [Tensor.stack(*parts) for parts in zip(*lasts, strict=True)]
    if settings.layout:
        y, states = y.permute(2, 0, 1, 3), [state.transpose(0, 1) for state in states]
    return (y, *states)


def _run(
    weights: _Direction,
    x: Tensor,
    lengths: Tensor | None,
    first: State,
    backwards: bool,
    side: int,
    cell: Callable[[_Direction, Tensor, State, int], State],
) -> tuple[Tensor, State]:
    inputs = x.contiguous() @ weights.w.transpose(0, 1)
    if weights.input_bias is not None:
        inputs = inputs + weights.input_bias
    numbers = Tensor.arange(x.shape[0])

    def step(state: State, row: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
        given, number = row
        new = cell(weights, given, state, side)
        if lengths is None:
            return new, new[0]
        going = (number < lengths).unsqueeze(1)
        kept = tuple(going.where(n, old) for n, old in zip(new, state, strict=True))
        return kept, going.where(new[0], 0.0)

    last, ys = scan(step, first, (inputs, numbers), reverse=backwards)
    return ys, last


@rule("RNN", 7)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    settings: Settings = USUAL,
) -> tuple[Tensor, ...]:
    def cell(d: _Direction, given: Tensor, state: State, side: int) -> State:
        total = given + state[0] @ d.r
        if d.state_bias is not None:
            total = total + d.state_bias
        return (d.functions[0](total),)

    return _layer(settings, ["Tanh"], cell, x, w, r, b, sequence_lens, initial_h)


@rule("GRU", 7)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    settings: Settings = USUAL,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    def cell(d: _Direction, given: Tensor, state: State, side: int) -> State:
        (h,) = state
        f, g = d.functions
        size = d.size

        def through(values: Tensor, low: int, high: int) -> Tensor:
            y = values @ d.r[:, low * size : high * size]
            return y if d.state_bias is None else y + d.state_bias[low * size : high * size]

        gates = f(given[..., : 2 * size] + through(h, 0, 2))
        update, reset = gates[..., :size], gates[..., size:]
        inner = reset * through(h, 2, 3) if linear_before_reset else through(reset * h, 2, 3)
        new = g(d.part(given, 2) + inner)
        return ((1 - update) * new + update * h,)

    return _layer(settings, ["Sigmoid", "Tanh"], cell, x, w, r, b, sequence_lens, initial_h)


@rule("LSTM", 7)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    settings: Settings = USUAL,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    def cell(d: _Direction, given: Tensor, state: State, side: int) -> State:
        h, c = state
        f, g, out = d.functions
        total = given + h @ d.r
        if d.state_bias is not None:
            total = total + d.state_bias

        def peeped(gate: int, peephole: int, cell_state: Tensor) -> Tensor:
            y = d.part(total, gate)
            return y if p is None else y + d.part(p[side], peephole) * cell_state

        entering = f(peeped(0, 0, c))
        kept = 1 - entering if input_forget else f(peeped(2, 2, c))
        new = kept * c + entering * g(d.part(total, 3))
        return f(peeped(1, 1, new)) * out(new), new

    usual = ["Sigmoid", "Tanh", "Tanh"]
    return _layer(settings, usual, cell, x, w, r, b, sequence_lens, initial_h, initial_c)
