"""Recurrent layers: `RNN`, `LSTM`, `GRU`, and the cells that do one step of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias, final, overload

from ferrule.autograd import Shape
from ferrule.base.calls import one_of
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.module import Layer
from ferrule.nn.packed import PackedSequence
from ferrule.nn.parameters import check_chance, check_counts, check_sizes, inverse_root, uniform
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments, no_tensor
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.notes import note
from ferrule.transforms import scan

States: TypeAlias = tuple[Tensor, ...]
"""The hidden state, and for an LSTM the cell's too: each (N, hidden_size)."""


Inputs: TypeAlias = Tensor | PackedSequence


class _Steps(Layer, ABC):
    """The base of all recurrent steps: the number of gates, and the next states from them."""

    gates: ClassVar[int]
    """The number of gates: matrices have that many times `hidden_size` rows."""
    states: ClassVar[int] = 1

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _kind(self) -> tuple[str, str]:
        """The name of the steps, and of the function of their new state."""
        return ("LSTM" if self.states > 1 else "GRU" if self.gates > 1 else "RNN"), "tanh"

    @abstractmethod
    def _step(self, given: Tensor, kept: Tensor, states: States) -> States:
        """The next states, from the input and the hidden state times their matrices."""

    def _first(self, x: Tensor, states: States | None, wanted: Sequence[Shape]) -> States:
        """The given states, which are to have some shapes; zeros unless given."""
        if states is None:
            return tuple(Tensor.zeros(*shape, dtype=x.dtype, device=x.device) for shape in wanted)
        given = [tuple(state.shape) for state in states]
        if given != wanted:
            raise ShapeError(
                f"{self._name}: states of shape {', '.join(map(str, given))} do not fit; for an"
                f" input of {tuple(x.shape)} they are {', '.join(map(str, wanted))}"
            )
        return states


class _Simple(_Steps):
    """One gate: the new state."""

    gates = 1
    nonlinearity: str

    def _choose(self, nonlinearity: str) -> None:
        one_of(nonlinearity, ("tanh", "relu"), f"{self._name}: nonlinearity")
        self.nonlinearity = nonlinearity

    @property
    def _kind(self) -> tuple[str, str]:
        return "RNN", self.nonlinearity

    def _step(self, given: Tensor, kept: Tensor, states: States) -> States:
        total = given + kept
        return (total.relu() if self.nonlinearity == "relu" else total.tanh(),)


class _LongShortTerm(_Steps):
    """Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with forget gates."""

    gates = 4
    states = 2

    def _step(self, given: Tensor, kept: Tensor, states: States) -> States:
        write, forget, fresh, show = (given + kept).chunk(4, -1)
        cell = forget.sigmoid() * states[1] + write.sigmoid() * fresh.tanh()
        return show.sigmoid() * cell.tanh(), cell


class _Gated(_Steps):
    """Cho and others, "Learning Phrase Representations using RNN Encoder-Decoder" (2014).

    As in PyTorch, the reset gate acts after the product with the matrix.
    """

    gates = 3

    def _step(self, given: Tensor, kept: Tensor, states: States) -> States:
        reset_given, update_given, fresh_given = given.chunk(3, -1)
        reset_kept, update_kept, fresh_kept = kept.chunk(3, -1)
        reset = (reset_given + reset_kept).sigmoid()
        update = (update_given + update_kept).sigmoid()
        fresh = (fresh_given + reset * fresh_kept).tanh()
        return (fresh + update * (states[0] - fresh),)


# One step


class _Cell(_Steps):
    """One step: (N, input_size) and a state of (N, hidden_size) to the next state.

    `weight_ih` and `weight_hh` are (gates * hidden_size, size), the biases (gates * hidden_size,).
    """

    _shown = "input_size hidden_size bias? nonlinearity?"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_sizes(self, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        rows = self.gates * hidden_size
        bound = inverse_root(hidden_size)
        self.weight_ih = uniform((rows, input_size), bound, dtype, device)
        self.weight_hh = uniform((rows, hidden_size), bound, dtype, device)
        self.bias_ih = uniform((rows,), bound, dtype, device) if bias else None
        self.bias_hh = uniform((rows,), bound, dtype, device) if bias else None

    @property
    def bias(self) -> bool:
        """True if there are biases."""
        return self.bias_ih is not None

    def _next(self, x: Tensor, states: States | None) -> States:
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{self._name}: expected (N, {self.input_size}) or ({self.input_size},),"
                f" got {tuple(x.shape)}"
            )
        wanted = [(*x.shape[:-1], self.hidden_size)] * self.states
        states = self._first(x, states, wanted)
        given = x.linear(self.weight_ih.transpose(), self.bias_ih)
        kept = states[0].linear(self.weight_hh.transpose(), self.bias_hh)
        return self._step(given, kept, states)


class _OneStateCell(_Cell):
    """A cell whose only state is the hidden one."""

    @checks_arguments
    def __call__(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """The state after `x`."""
        return self._next(x, None if hx is None else (hx,))[0]


@final
class RNNCell(_Simple, _OneStateCell):
    """One step of `RNN`: (N, input_size), and (N, hidden_size) or zeros, to (N, hidden_size).

    Raises `ShapeError` for an input or a state of other sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import RNNCell
    >>> RNNCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        self._choose(nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype=dtype, device=device)


@final
class LSTMCell(_LongShortTerm, _Cell):
    """One step of `LSTM`: (N, input_size), and two states or zeros, to two states.

    Raises `ShapeError` for an input or states of other sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import LSTMCell
    >>> hidden, cell = LSTMCell(3, 4)(Tensor.ones(2, 3))
    >>> hidden.shape, cell.shape
    ((2, 4), (2, 4))
    """

    @checks_arguments
    def __call__(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The hidden and the cell's state after `x`."""
        hidden, cell = self._next(x, hx)
        return hidden, cell


@final
class GRUCell(_Gated, _OneStateCell):
    """One step of `GRU`: (N, input_size), and (N, hidden_size) or zeros, to (N, hidden_size).

    Raises `ShapeError` for an input or a state of other sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import GRUCell
    >>> GRUCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """


# Whole sequences


class _Recurrent(_Steps):
    """Layers of steps over a sequence: (T, N, input_size) to (T, N, directions * hidden_size).

    Parameters are called as PyTorch's: `weight_ih_l0`, `bias_hh_l1_reverse`.
    """

    _shown = (
        "input_size hidden_size proj_size? num_layers? bias? batch_first? dropout? bidirectional?"
    )

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_sizes(self, input_size=input_size, proj_size=proj_size)
        check_counts(self, hidden_size=hidden_size, num_layers=num_layers)
        check_chance(self, "dropout", dropout)
        if not 0 <= proj_size < hidden_size:
            raise ShapeError(
                f"{self._name}: proj_size {proj_size} must be between 0 and hidden_size"
                f" {hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._suffixes = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            inputs = self._out_size * len(self._suffixes) if layer else input_size
            for suffix in self._suffixes:
                self._add_parameters(f"_l{layer}{suffix}", inputs, dtype, device)

    @property
    def _out_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _add_parameters(
        self, place: str, inputs: int, dtype: DTypeLike | None, device: str | None
    ) -> None:
        rows = self.gates * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, inputs),
            "weight_hh": (rows, self._out_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        bound = inverse_root(self.hidden_size)
        for name, shape in shapes.items():
            setattr(self, name + place, uniform(shape, bound, dtype, device))

    def _parameter(self, name: str, place: str) -> Tensor | None:
        found: Tensor | None = getattr(self, name + place, None)
        return found

    def _sequence(self, x: Inputs, states: States | None) -> tuple[Inputs, States]:
        """The outputs of the last layer, and the last states of all layers."""
        if isinstance(x, PackedSequence):
            self._check_size(x.padded, x.padded.ndim == 3)
            out, last = self._batched(x.padded, states, x.mask().unsqueeze(-1))
            return PackedSequence.of(out, x.lengths), last
        self._check_size(x, x.ndim in (2, 3))
        if x.ndim == 2:
            added = None if states is None else tuple(state.unsqueeze(1) for state in states)
            out, last = self._batched(x.unsqueeze(1), added)
            return out.squeeze(1), tuple(state.squeeze(1) for state in last)
        if not self.batch_first:
            return self._batched(x, states)
        out, last = self._batched(x.transpose(0, 1), states)
        return out.transpose(0, 1), last

    def _check_arguments(self, x: object, hx: object = None) -> None:
        """Raises `TypeError` for what is no tensor, or packed sequence."""
        if not isinstance(x, Tensor | PackedSequence):
            raise no_tensor(self._name, "x", x)
        if not isinstance(hx, Tensor | None):
            raise no_tensor(self._name, "hx", hx)

    def _check_size(self, x: Tensor, has_axes: bool) -> None:
        if not has_axes or x.shape[-1] != self.input_size:
            order = "(N, T" if self.batch_first else "(T, N"
            raise ShapeError(
                f"{self._name}: expected {order}, {self.input_size}) or (T, {self.input_size}), got"
                f" {tuple(x.shape)}"
            )

    def _batched(
        self, x: Tensor, states: States | None, mask: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """Outputs and last states; where a `mask` of (T, N, 1) is false, states stay."""
        count = self.num_layers * len(self._suffixes)
        sizes = [self._out_size, self.hidden_size][: self.states]
        first = self._first(x, states, [(count, x.shape[1], size) for size in sizes])
        last: list[States] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = x.dropout(self.dropout)
            outs = []
            for direction, suffix in enumerate(self._suffixes):
                number = layer * len(self._suffixes) + direction
                start = tuple(state[number] for state in first)
                out, end = self._run(x, start, f"_l{layer}{suffix}", direction == 1, mask)
                outs.append(out)
                last.append(end)
            x = outs[0] if len(outs) == 1 else outs[0].cat(outs[1], dim=-1)
        return x, tuple(parts[0].stack(*parts[1:]) for parts in zip(*last, strict=True))

    def _run(
        self, x: Tensor, states: States, place: str, reverse: bool, mask: Tensor | None
    ) -> tuple[Tensor, States]:
        """One layer in one direction."""
        weight, matrix = self._parameter("weight_ih", place), self._parameter("weight_hh", place)
        assert weight is not None
        assert matrix is not None
        bias = self._parameter("bias_hh", place)
        shrinking = self._parameter("weight_hr", place)
        # The products with the inputs need no state: one for all steps.
        given = x.linear(weight.transpose(), self._parameter("bias_ih", place))

        def step(before: States, row: tuple[Tensor, Tensor | None]) -> tuple[States, Tensor]:
            given, inside = row
            kept = before[0].linear(matrix.transpose(), bias)
            states = self._step(given, kept, before)
            if shrinking is not None:
                states = (states[0].linear(shrinking.transpose()), *states[1:])
            pairs = zip(states, before, strict=True)
            # What `autocast` made of a step is no state yet.
            states = tuple([new.cast(old.dtype) for new, old in pairs])
            if inside is not None:
                pairs = zip(states, before, strict=True)
                states = tuple([inside.where(new, old) for new, old in pairs])
            return states, states[0]

        last, out = scan(step, states, (given, mask), reverse=reverse)
        if shrinking is None and mask is None:
            operands = [x, weight, matrix, self._parameter("bias_ih", place), bias, *states]
            for number, result in enumerate((out, *last)):
                note("recurrent", operands, result, (self._kind, reverse, number))
        return out, last


class _OneState(_Recurrent):
    """Layers whose only state is the hidden one."""

    @overload
    def __call__(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(
        self, x: PackedSequence, hx: Tensor | None = None
    ) -> tuple[PackedSequence, Tensor]: ...

    def __call__(self, x: Inputs, hx: Tensor | None = None) -> tuple[Inputs, Tensor]:
        """The outputs, and the last state of each layer and direction."""
        self._check_arguments(x, hx)
        out, (last,) = self._sequence(x, None if hx is None else (hx,))
        return out, last


@final
class RNN(_Simple, _OneState):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), over a sequence, in `num_layers` layers.

    Takes (T, N, input_size), with `batch_first` (N, T, input_size), or (T, input_size), and states
    of (layers * directions, N, hidden_size), zeros if left out; gives the outputs of the last layer
    and the last states. `dropout` acts between layers, while `Tensor.training`. `nonlinearity` may
    be "relu". A `PackedSequence` (see `nn.utils.rnn`) gives another one, and the states behind the
    end of each of its sequences.

    Raises `ShapeError` for an input or states of other sizes, `ValueError` for another
    `nonlinearity`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import RNN
    >>> out, last = RNN(3, 4)(Tensor.ones(5, 2, 3))
    >>> out.shape, last.shape
    ((5, 2, 4), (1, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        self._choose(nonlinearity)
        settings = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*settings, dtype=dtype, device=device)


@final
class LSTM(_LongShortTerm, _Recurrent):
    """Long short-term memory over a sequence, in `num_layers` layers; see `RNN` for the shapes.

    There are two states, hidden and cell. With `proj_size` the hidden state is multiplied by a
    matrix to that size. Hochreiter and Schmidhuber (1997).

    Raises `ShapeError` for an input or states of other sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import LSTM
    >>> out, (hidden, cell) = LSTM(3, 4, bidirectional=True)(Tensor.ones(5, 2, 3))
    >>> out.shape, hidden.shape, cell.shape
    ((5, 2, 8), (2, 2, 4), (2, 2, 4))
    """

    @overload
    def __call__(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...

    @overload
    def __call__(
        self, x: PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]: ...

    def __call__(
        self, x: Inputs, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Inputs, tuple[Tensor, Tensor]]:
        """The outputs, and the last states of each layer and direction."""
        self._check_arguments(x)
        out, (hidden, cell) = self._sequence(x, hx)
        return out, (hidden, cell)


@final
class GRU(_Gated, _OneState):
    """Gated recurrent units over a sequence, in `num_layers` layers; see `RNN` for the shapes.

    Raises `ShapeError` for an input or states of other sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import GRU
    >>> out, last = GRU(3, 4, num_layers=2, batch_first=True)(Tensor.ones(2, 5, 3))
    >>> out.shape, last.shape
    ((2, 5, 4), (2, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        settings = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*settings, dtype=dtype, device=device)
